//! New code for one function, and its unwind information.
//!
//! | file | subject |
//! |---|---|
//! | [`body`] | the code: blocks in the order of a plan, with counters and recorders |
//! | [`unwind`] | rows and call sites, carried over to where the instructions went |

mod body;
mod unwind;

pub use body::{CodeRun, Emitted, Fragment, Plan, Span, emit};
pub use unwind::{FragmentUnwind, NewCallSite, Stack, carry};
