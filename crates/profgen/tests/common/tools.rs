//! Tools to compare with.

use std::process::Command;

/// Whether a tool can be run; says so if not.
pub fn have(tool: &str) -> bool {
    let found = Command::new(tool).arg("--version").output().is_ok();
    if !found {
        eprintln!("SKIPPED: {tool} is not installed: nothing is compared with it");
    }
    found
}
