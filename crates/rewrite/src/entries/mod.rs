//! Counters at the entries of functions that stay where they are, for machine profiles.
//!
//! | file | subject |
//! |---|---|
//! | [`displaced`] | instructions that a jump at an entry overwrites |
//! | [`stubs`] | where their copies and the counters are |
//! | [`frames`] | unwinding through them |
//! | [`references`] | what refers to functions, and can be changed |
//! | [`plan`] | which entry is counted in which way, and the code for it |

mod displaced;
mod frames;
mod plan;
mod references;
mod stubs;

pub use frames::{Described, OwnTable};
pub use plan::{Entered, Places, Plan, Put, STUBS, plan};
pub use stubs::Stubs;
