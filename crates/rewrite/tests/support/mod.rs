//! What tests that run programs need.

use std::io::ErrorKind;
use std::process::{Command, Output};
use std::time::Duration;

/// Runs a program that this process may have written a moment ago. As long as a child of another test, which was forked
/// while the program was written, holds it open, it is "busy": that lasts until the child runs what it is to run.
pub fn run(command: &mut Command) -> Output {
    for _ in 0..2000 {
        match command.output() {
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => {
                std::thread::sleep(Duration::from_millis(5));
            }
            result => return result.unwrap_or_else(|error| panic!("{command:?}: {error}")),
        }
    }
    panic!("{command:?}: the program is still open for writing");
}
