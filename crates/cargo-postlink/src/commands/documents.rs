//! `man` and `completions`: what the command line says of itself, for packages and for who installs it by hand.
//!
//! cargo looks for the manual page of a subcommand under its program's name: `cargo help postlink` shows
//! `cargo-postlink.1`. Shells complete the program's name, `cargo-postlink`; what they do after `cargo postlink` is up
//! to cargo's own completions.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::CommandFactory;
use clap_complete::Shell;

use crate::options::Cli;

/// The program's name.
const NAME: &str = "cargo-postlink";

/// Writes a manual page for each command into a folder, which is made if it is not there.
pub fn man(folder: &Path) -> Result<ExitCode> {
    let named = || folder.display().to_string();
    std::fs::create_dir_all(folder).with_context(named)?;
    clap_mangen::generate_to(Cli::command(), folder).with_context(named)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints completions for a shell.
pub fn completions(shell: Shell) -> Result<ExitCode> {
    // The words of the command line begin with the program's name, not with cargo's.
    let mut command = Cli::command().bin_name(NAME);
    clap_complete::generate(shell, &mut command, NAME, &mut io::stdout());
    Ok(ExitCode::SUCCESS)
}
