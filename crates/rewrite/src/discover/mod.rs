//! Which functions there are, and what refers to their insides: all that is known of the input before any
//! function is worked on.
//!
//! | file | subject |
//! |---|---|
//! | [`file`] | what kind of file the input is, and whether it can be rewritten |
//! | [`runtimes`] | run-times that describe code by address |
//! | [`refs`] | known pointers to code |
//! | [`kept`] | among them those that relocations of the linker tell of |
//! | [`libc`] | library functions by name: what returns, unwinds, forks |
//! | [`library`] | functions of a C library that is linked in |
//! | [`program`] | pieces, functions, and what can be asked of them |
//! | [`pieces`] | pieces, from symbols and unwind entries |
//! | [`directory`] | where in a long list of addresses one is |
//! | [`sweep`] | one sweep over all code |
//! | [`shapes`] | what the number of a function's counters follows from |
//! | [`survey`] | what decides on counters per thread |
//! | [`data_in_code`] | addresses that words between functions form, and which of those are data |
//! | [`functions`] | functions, from pieces and what refers to them |
//! | [`exceptions`] | exception tables |
//! | [`visible`] | which pointers may follow functions that move |
//! | [`bounds`] | ranges of code whose bounds the program knows by symbols |
//! | [`entry_proof`] | where a jump may overwrite an old entry if the linker kept no relocations, and which numbers may be addresses inside of functions |
//! | [`nonlocal_exits`] | which calls may come back in another way than by returning |
//! | [`linker_veneers`] | veneers that the linker has made |

mod bounds;
mod data_in_code;
mod directory;
mod entry_proof;
mod exceptions;
mod file;
mod functions;
mod kept;
pub mod libc;
mod library;
pub mod linker_veneers;
mod nonlocal_exits;
mod pieces;
mod program;
mod refs;
pub mod runtimes;
mod shapes;
mod survey;
mod sweep;
mod visible;

pub use entry_proof::{NumberInside, Range, covered, gaps};
pub use exceptions::{lsda_of, personality};
pub use file::{check_input, check_program, finds_new_header, identity, is_program};
pub use nonlocal_exits::NonlocalExits;
pub use pieces::is_special;
pub use program::{Function, Piece, Program, table_entries};
pub use refs::{Basis, Pointer, Refs, Stored};
pub use visible::{Stays, Visible, runs_on};
