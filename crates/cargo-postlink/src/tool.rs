//! `postlink` as a process of its own: this very program under that name, so its version always fits.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use postlink_measure::ending;

/// A postlink command with this name.
pub fn postlink(command: &str) -> Command {
    // Not by its path: a new version may have been installed there meanwhile.
    let mut postlink = Command::new("/proc/self/exe");
    postlink.arg0("postlink").arg(command).stdin(Stdio::null());
    postlink
}

/// Runs a command that must succeed; its output is shown.
pub fn done(command: &mut Command, what: &str) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("{what} cannot be started"))?;
    if !status.success() {
        bail!("{what} {}", ending(status));
    }
    Ok(())
}

/// What a command prints; an error with what it said if it fails.
pub fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("{name} cannot be started"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{name} {}: {}", ending(output.status), said.trim());
    }
    String::from_utf8(output.stdout).with_context(|| format!("{name}: what it prints is not UTF-8"))
}
