//! `postlink completions`: for shells.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, CommandFactory};
use clap_complete::Shell;

/// Print completions for a shell
///
/// The script goes to standard output.
#[derive(Args, Debug)]
#[command(
    after_long_help = "Example:\n  postlink completions bash > ~/.local/share/bash-completion/completions/postlink"
)]
pub struct Completions {
    /// The shell
    pub shell: Shell,
}

impl Completions {
    pub fn run(self) -> Result<ExitCode> {
        clap_complete::generate(
            self.shell,
            &mut crate::cli::Cli::command(),
            "postlink",
            &mut std::io::stdout(),
        );
        Ok(ExitCode::SUCCESS)
    }
}
