//! What several test programs need.

// Each of them uses a part of it.
#![allow(dead_code)]

pub mod described;
pub mod faults;
pub mod folder;

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
    // Go's has commands alone.
    is_there(tool, if tool == "go" { "version" } else { "--version" })
}

/// Whether a tool is installed that says its version by this argument.
pub fn is_there(tool: &str, version: &str) -> bool {
    let found = Command::new(tool)
        .arg(version)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !found {
        eprintln!("SKIPPED: {tool} is not installed");
    }
    found
}
