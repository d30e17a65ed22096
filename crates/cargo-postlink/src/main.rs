//! `cargo postlink`: programs of a cargo package, made faster after linking, with a proof.
//!
//! One executable with three parts, told apart by the name that it is called by:
//!
//! | name | part |
//! |---|---|
//! | `cargo-postlink` | the cargo subcommand ([`commands`]) |
//! | `cargo-postlink-runner` | what cargo starts programs through, in a temporary folder ([`runner`]) |
//! | anything else | `postlink` itself, so that nothing else needs to be installed ([`tool`]) |
//!
//! # What happens to a program
//!
//! ```text
//! cargo build --message-format json   the programs, linked with relocations kept, in target/postlink/cargo
//!   postlink instrument               beside each: NAME.instrumented
//! cargo run | test | bench            as the user would, through the runner: counts in target/postlink/profiles
//!   postlink merge, optimize          proved: target/postlink/TARGET/PROFILE/NAME
//!   strip, postlink verify            if the user's profile strips: the proof again, of what is left
//! ```
//!
//! Nothing of the user's is changed: flags go to cargo in its environment, after those that the user has; profile
//! settings that postlink cannot use are overridden on cargo's command line; all files are in `target/postlink`, so no
//! other build is made anew because of them.

mod cargo;
mod commands;
mod options;
mod pgo;
mod runner;
mod say;
mod session;
mod store;
mod strip;
mod tool;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let mut arguments: Vec<OsString> = std::env::args_os().collect();
    let name = arguments
        .first()
        .and_then(|program| Path::new(program).file_name())
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    if name == runner::NAME {
        return say::ending(runner::run(&arguments[1..]));
    }
    if !name.starts_with("cargo-postlink") {
        return postlink::main();
    }
    // cargo puts the subcommand's name in front; who calls the program directly does not.
    if arguments.get(1).is_some_and(|first| first == "postlink") {
        arguments.remove(1);
    }
    say::ending(commands::run(options::Cli::parse_from(arguments)))
}
