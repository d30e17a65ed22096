//! Machine IR profiles at compile time, between the compiler and the assembler.
//!
//! # The idea
//!
//! What a profile of machine code counts are functions and blocks as the compiler emits them: after its last
//! pass, in front of the assembler. That is where this crate works. It reads the assembly as far as it must
//! ([`reader`]), puts a store or a count in front of each function and block ([`insert`], [`sequences`]), and
//! adds two sections ([`sections`]): `__llvm_mipraw` with the counters, which is all that the program
//! carries, and `__llvm_mipmap` with names, sizes and blocks, which is taken out of the program before it is
//! shipped.
//!
//! Any compiler whose assembly is that of gcc or clang is good for it, and nothing depends on its version.
//!
//! ```
//! use postlink_mip_asm::{Options, Target, instrument};
//! let source = b"\t.text\n\t.type\tf, @function\nf:\n\tret\n\t.size\tf, .-f\n";
//! let target = Target::of_triple("x86_64-linux-gnu").unwrap();
//! let done = instrument(source, target, &Options::default());
//! assert_eq!(done.report.functions, 1);
//! ```
//!
//! # The other half
//!
//! | module | subject |
//! |---|---|
//! | [`command`] | the compiler's command line: inputs, what is wanted, our own flags |
//! | [`driver`] | runs compiler, inserter, assembler and linker |
//! | [`aside`] | names of what the compiler writes besides its output |
//! | [`runtime`] | the start-up routine in C that maps the counters onto the profile's file |
//! | [`placement`] | the other direction: sections by what a profile says |
//! | [`seal`] | puts a hash of the map into the linked program, so that stale maps are refused |
//!
//! # Invariants
//!
//! * What is not understood is left alone, and counted under its reason ([`Report`]).
//! * The text that was there stays, byte for byte and in order.
//! * No text makes it panic.

mod aside;
mod blocks;
mod command;
pub mod driver;
mod flow;
mod insert;
mod lexer;
mod options;
mod placement;
mod probes;
mod reader;
mod report;
mod returns;
mod runtime;
mod seal;
mod sections;
mod sequences;
mod target;

pub use command::Flags;
pub use insert::{Instrumented, instrument};
pub use options::{Mode, Options};
pub use report::{Reason, Report};
pub use runtime::find_program;
pub use target::{Arch, Format, Target};
