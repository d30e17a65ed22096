//! Measuring programs: one run ([`run`](mod@run)), and two programs compared in alternating runs ([`paired`]).
//!
//! Shared by the commands that compare a program before and after, and by the project's own benchmarks, so
//! that the same word ("faster") always rests on the same test.

pub mod paired;
pub mod run;

pub use paired::{Paired, Verdict, compare};
pub use run::{Run, ending, run};
