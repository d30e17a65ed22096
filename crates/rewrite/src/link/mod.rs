//! From emitted functions to a file.
//!
//! | file | subject |
//! |---|---|
//! | [`ready`] | a function ready to be placed |
//! | [`packed`] | functions between two writings of one file |
//! | [`changed`] | a file that was written, without some of its functions |
//! | [`reuse`] | space in old bodies |
//! | [`distances`] | distances between functions |
//! | [`stress`] | layouts at random, for tests |
//! | [`veneers`] | range-extension thunks, for branches that do not reach |
//! | [`place`] | addresses and fixups of new code |
//! | [`own_tables`] | jump tables of new code's own |
//! | [`references`] | old entries, jump tables, pointers, code that stays |
//! | [`unwind`] | unwind and exception tables |
//! | [`routines`] | unwind entries of recorders and routines |
//! | [`tables`] | symbols, the note |
//! | [`bat`] | address translation tables |
//! | [`debug`] | debug information |
//! | [`identity`] | the build-id |
//! | [`startup`] | how the start-up routine is invoked |

pub mod bat;
mod changed;
pub mod debug;
mod distances;
mod identity;
mod own_tables;
mod packed;
mod place;
mod ready;
mod references;
mod reuse;
mod routines;
mod startup;
pub mod stress;
mod tables;
mod unwind;
mod veneers;

pub use changed::Linked;
pub use distances::Distances;
pub use packed::{Packed, digests};
pub use place::{LinkOptions, Placement, ProbeAddresses, alignment, place};
pub use ready::{Ready, ReadyFunction, addresses, emit_in_place, moving, places};
pub use reuse::reusable_space;
pub use routines::{CALLED, RoutineAt, RoutineCie, frames_of};
pub use startup::{Hook, ask_for_huge_pages, hook};
pub use tables::put_note;
pub use unwind::read_only;
