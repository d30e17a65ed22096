//! What is said to the person: on standard error, as cargo does. Standard output is the workload's.

use std::fmt::Display;
use std::process::ExitCode;

use anstyle::{AnsiColor, Style};

const BOLD_GREEN: Style = AnsiColor::Green.on_default().bold();
const BOLD_YELLOW: Style = AnsiColor::Yellow.on_default().bold();
const BOLD_RED: Style = AnsiColor::Red.on_default().bold();

/// A step, in cargo's manner: a verb at the right of twelve columns, and what it is done to.
pub fn step(verb: &str, what: impl Display) {
    anstream::eprintln!("{BOLD_GREEN}{verb:>12}{BOLD_GREEN:#} {what}");
}

/// More about the last step.
pub fn more(what: impl Display) {
    anstream::eprintln!("{:>12} {what}", "");
}

/// What the person should know.
pub fn warn(what: impl Display) {
    anstream::eprintln!("{BOLD_YELLOW}warning:{BOLD_YELLOW:#} {what}");
}

/// The exit code, after an error has been printed: one line, the chain of causes, each once.
pub fn ending(result: anyhow::Result<ExitCode>) -> ExitCode {
    let error = match result {
        Ok(code) => return code,
        Err(error) => error,
    };
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    anstream::eprintln!("{BOLD_RED}error:{BOLD_RED:#} {text}");
    ExitCode::FAILURE
}
