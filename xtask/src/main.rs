//! Routine jobs.

fn main() {}
