//! Unwind tables: against another reader on real files, through real unwinders, and against damaged input.

#[path = "unwind/common.rs"]
mod common;
#[path = "unwind/hostile.rs"]
mod hostile;
#[path = "unwind/real.rs"]
mod real;
#[path = "unwind/run.rs"]
mod run;
#[path = "unwind/tables.rs"]
mod tables;
#[path = "common/mod.rs"]
mod tools;
