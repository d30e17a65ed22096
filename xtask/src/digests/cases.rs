//! The cases and how they are built: the same files as the tests of `crates/postlink/tests/cases`.

#[path = "../../../crates/postlink/tests/cases/build.rs"]
pub mod build;
#[path = "../../../crates/postlink/tests/cases/directives.rs"]
pub mod directives;
#[path = "../../../crates/postlink/tests/cases/run.rs"]
pub mod run;
#[path = "../../../crates/postlink/tests/cases/select.rs"]
pub mod select;
