//! Measuring programs: what a run costs, and how two programs compare.
//!
//! ```text
//!  run, server ──► series: rounds until the interval is narrow ──► ratio: estimate, interval, verdict
//!                                                              └─► luck: what layout alone does
//! ```
//!
//! | module | subject |
//! |---|---|
//! | [`run`](mod@run) | one run: time, memory, page faults |
//! | [`counters`] | hardware counters of a run |
//! | [`server`] | one run of a server under load |
//! | [`interrupt`] | Ctrl-C, which loses nothing that was measured |
//! | [`signed_rank`] | Wilcoxon's test turned round |
//! | [`bootstrap`] | intervals from resampling |
//! | [`ratio`] | two programs as one ratio; several workloads |
//! | [`series`] | runs in alternating order until enough is known |
//! | [`paired`] | the same for two commands |
//! | [`stepping`] | windows of a run, instruction by instruction |
//! | [`luck`] | how far layouts scatter that differ in nothing that matters |
//!
//! Shared by the commands that compare a program before and after, and by the project's own benchmarks, so
//! that the same word ("faster") always rests on the same test. How it is used is in `docs/bench.md`.

mod bootstrap;
mod counters;
pub mod interrupt;
mod luck;
mod paired;
pub mod ratio;
pub mod run;
pub mod series;
pub mod server;
mod signed_rank;
pub mod stepping;

pub use bootstrap::Random;
pub use counters::Counters;
pub use luck::Luck;
pub use paired::{Paired, compare, compare_within};
pub use ratio::{Ratio, Verdict};
pub use run::{Measure, Run, ending, run};
pub use signed_rank::Walsh;
