//! Unwind tables: what a debugger, a profiler or a thrown exception needs to walk from a function to its caller.
//!
//! A rewriter that moves code must leave these tables true. For every instruction that it keeps, the *row* (where the
//! caller's registers are) must not change, and the instruction must keep its *call site* (where an exception
//! continues) or its not having one. So the tables are taken apart into facts per address and put together again for
//! the new order:
//!
//! | module | what it reads | what it writes |
//! |---|---|---|
//! | [`eh_frame`] | CIEs and FDEs: which code has which unwind program | one merged `.eh_frame` with its `.eh_frame_hdr` |
//! | [`rows`] | the program of an FDE, as rows | rows, as a short program, also for another place of the stack pointer |
//! | [`lsda`] | call sites, landing pads, actions, types | the same for a fragment of a function |
//! | [`without`] | a merged `.eh_frame` and its `.eh_frame_hdr` | what becomes other bytes where entries are taken out |
//! | [`mod@pointer`] | encoded pointers (`DW_EH_PE_*`), which all of them use | the same |
//!
//! All addresses are link-time addresses of the input unless a name says otherwise. Nothing here panics or allocates
//! out of proportion on a hostile file: every length, index and sum that comes from the file is checked, and what is
//! not understood is refused with its place.

mod cfi;
mod cursor;
pub mod eh_frame;
mod encoder;
mod lowered;
pub mod lsda;
mod merge;
pub mod pointer;
pub mod rows;
pub mod without;
