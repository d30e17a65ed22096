//! A program, its profile and what was made of it as one page to look at.
//!
//! ```text
//!  Elf, Facts, Note ──► gather ──► Model ──► JSON ──► page: one HTML file
//! ```
//!
//! | module | subject |
//! |---|---|
//! | [`model`] | what the page knows, and its JSON |
//! | [`placed`] | where the blocks of a moved function went |
//! | [`heat`] | cache lines and pages that run |
//! | [`sizes`] | what a file's bytes are for |
//! | [`startup`] | pages that a program has needed by when |
//! | [`graphs`] | one function: blocks, edges, instructions |
//! | [`mod@gather`] | all of that together, as much as there is space for |
//! | [`page`] | the HTML file |
//!
//! Style and script of the page are in `src/page`, written by hand and put in as they are: nothing has to be
//! built for them. What the views show and how it is computed is in `docs/report.md`.

mod gather;
mod graphs;
mod heat;
pub mod model;
mod page;
mod placed;
mod sizes;
mod startup;

pub use gather::{Room, Subjects, gather};
pub use model::Model;
pub use page::{LIMIT, fitting, html, json};
pub use startup::Moment;
