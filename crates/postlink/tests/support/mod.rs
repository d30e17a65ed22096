//! What several test programs need.

// Each of them uses a part of it.
#![allow(dead_code)]

pub mod described;
pub mod faults;
pub mod folder;
pub mod sequences;

use std::process::{Command, Output, Stdio};

/// Runs a command that must succeed.
pub fn done(command: &mut Command) -> Output {
    let output = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// Whether a tool is installed. Says so if it is not: what needs it is skipped.
pub fn is_installed(tool: &str) -> bool {
    // What it answers does not matter: dot and go know no `--version`, and callgrind_annotate fails after saying it. A
    // stand-in for a tool that is missing fails as a shell does that does not find one.
    let found = Command::new(tool)
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.code() != Some(127));
    if !found {
        eprintln!("SKIPPED: {tool} is not installed");
    }
    found
}
