//! The postlink command line.

fn main() {}
