//! `postlink man`: manual pages.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, CommandFactory};

/// Write manual pages for all commands
///
/// One page for each command, made from the same descriptions as --help.
#[derive(Args, Debug)]
#[command(after_long_help = "Example:\n  postlink man ~/.local/share/man/man1")]
pub struct Man {
    /// Directory that gets the pages; it is made if it is not there
    pub directory: PathBuf,
}

impl Man {
    pub fn run(self) -> Result<ExitCode> {
        let named = || self.directory.display().to_string();
        std::fs::create_dir_all(&self.directory).with_context(named)?;
        clap_mangen::generate_to(crate::cli::Cli::command(), &self.directory)
            .with_context(named)?;
        Ok(ExitCode::SUCCESS)
    }
}
