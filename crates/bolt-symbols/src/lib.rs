//! The functions of a binary under the names that BOLT's profiles have for them.
//!
//! fdata and YAML profiles speak of functions by name and of code by offsets in functions. A tool that writes
//! the writer and the reader of such a profile must agree which functions there are, where they begin and how they
//! are called; the rules are BOLT's, and they are written here once.
//!
//! | module | subject |
//! |---|---|
//! | [`names`] | the names of symbols |
//! | [`functions`] | which functions there are and how far they reach |

mod functions;
pub mod names;

pub use functions::{Function, Functions};
pub use names::{Name, fragment_of};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
