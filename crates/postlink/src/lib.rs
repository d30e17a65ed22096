//! The postlink command line: all of it is here, so that `cargo-postlink` can be this program as well.
//!
//! [`cli`] says which commands there are, [`commands`] holds one file for each, [`options`] the groups of
//! options that several share. What they have in common otherwise: [`input`] maps the binary, [`rewriting`]
//! writes a new one beside its target, has it proved and only then puts it in place, [`workload`] fills in commands
//! that run a program, [`function_order`] reads orders of functions, [`ui`] talks to the person.
//!
//! Exit codes: 0 done; 1 an error, or a check that did not hold; 2 a wrong command line.

mod cli;
mod commands;
mod debug_files;
mod errors;
mod front_ends;
mod function_order;
mod input;
mod installed;
mod options;
mod profiles;
mod refused;
mod rewriting;
mod split_files;
mod ui;
mod workload;

use std::process::ExitCode;

use clap::Parser;
// For its features: see the workspace's manifest.
use serde_core as _;

/// What `postlink` does with the process's arguments: the first is its name, and may be that of one of LLVM's tools.
pub fn main() -> ExitCode {
    // A reader that has seen enough (`postlink show … | head`) ends us quietly, as it does any other tool.
    // SAFETY: called before any thread is started; SIG_DFL is a valid disposition.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let mut arguments = std::env::args();
    let program = arguments.next().unwrap_or_default();
    let mut arguments = arguments.peekable();
    if let Some(front_end) = front_ends::called(program.as_ref()) {
        return (front_end.main)(&mut arguments);
    }
    if let Some(compiler) = front_ends::mip_cc::called_as(program.as_ref()) {
        return front_ends::mip_cc::main(&compiler);
    }
    if let Some(front_end) = arguments.peek().and_then(|first| front_ends::named(first)) {
        return (front_end.main)(&mut arguments.skip(1));
    }
    let cli = cli::Cli::parse();
    let result = cli
        .global
        .apply()
        .and_then(|ui| commands::run(cli.command, &ui));
    match result {
        Ok(code) => code,
        Err(error) => errors::report(&error),
    }
}
