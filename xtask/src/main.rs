//! Routine jobs of the project: `cargo xtask JOB`.
//!
//! | job | what it does |
//! |---|---|
//! | `test` | installs what the tests need, runs all of them, ends with a summary |
//! | `lint` | formatting, clippy and documentation without warnings, the order of layers, unused dependencies, the fuzz targets |
//! | `digests` | digests of what postlink makes of the tests' programs, recorded and compared |
//! | `dist` | the release artefacts: a static binary, a package, an archive, checksums |
//! | `differ` | runs a program and postlink's output in lock step, and lists the values that differ |
//! | `campaign` | generated programs, and everything that postlink makes of them |
//! | `debian` | tries programs as the distribution ships them, in all states |
//! | `bench` | measures postlink on real programs, side by side with llvm-bolt |

mod bench;
mod campaign;
mod debian;
mod dependencies;
mod differ;
mod digests;
mod dist;
mod features;
mod layers;
mod lengths;
mod lint;
mod packages;
mod process;
mod test;
mod text;
mod widths;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "Routine jobs of the project"
)]
struct Cli {
    #[command(subcommand)]
    job: Job,
}

#[derive(Subcommand)]
enum Job {
    /// Run all tests, with a summary at the end; as root, install what they need through apt first
    Test {
        /// Install nothing: what is not there is skipped
        #[arg(long)]
        no_install: bool,
        /// Only tests whose name holds this
        filter: Option<String>,
    },
    /// Check formatting, clippy and documentation, with warnings as errors, the order of layers, and the fuzz targets:
    /// all of it, or the parts that options name
    Lint(lint::Parts),
    /// Make the release artefacts: a static binary, manual pages, completions, a .deb, a .tar.xz, checksums
    Dist {
        /// Where it goes
        #[arg(long, value_name = "DIR", default_value = "target/dist-out")]
        output: PathBuf,
        /// Build all of it a second time, from a clone in another folder, and compare
        #[arg(long)]
        check: bool,
    },
    /// Measure; writes bench/*.md
    #[command(disable_help_flag = true, after_help = BENCH)]
    Bench {
        /// What to measure, and its options
        #[arg(
            trailing_var_arg = true,
            allow_hyphen_values = true,
            value_name = "ARGUMENTS"
        )]
        arguments: Vec<String>,
    },
    /// Run a program and postlink's output in lock step under an emulator, and list the values that differ
    #[command(disable_help_flag = true)]
    Differ {
        /// The program and options; --help lists them
        #[arg(
            trailing_var_arg = true,
            allow_hyphen_values = true,
            value_name = "ARGUMENTS"
        )]
        arguments: Vec<String>,
    },
    /// Run generated programs plain, counting in every mode and optimised in every way, and compare
    Campaign(campaign::Options),
    /// Try programs as the distribution ships them, in all states; writes bench/debian.md
    Debian(debian::Options),
    /// Record digests of what postlink makes of the tests' programs, or compare them with a record
    Digests(digests::Options),
    /// Not for people: see `process`
    #[command(hide = true, disable_help_flag = true)]
    Measure {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

const BENCH: &str = "\
cargo xtask bench [--no-bolt] [--runs N] [NAME…]  measure on corpus programs; writes bench/results.md
cargo xtask bench probes [--script-megabytes N] [--probe-megabytes N] [--runs N]  sample profiles; writes bench/probes.md
cargo xtask bench profiles [--binary FILE] [--runs N]  measure reading and merging of profiles; writes bench/profiles.md
cargo xtask bench pointers [--runs N] [--postlink FILE]  calls through pointers that follow or stay; writes bench/pointers.md
cargo xtask bench refused [--runs N] [--postlink FILE] [--file FILE --refuse FUNCTION]  the cost of a function that the checker refuses; writes bench/refused.md
cargo xtask bench debug [--large] [--runs N] [--processor N] [--bolt-memory GB] [--alone MB] [--postlink FILE] [--file PROGRAM PROFILE] [NAME…]  debug information; writes bench/debug.md
cargo xtask bench samples [--built FOLDER] [NAME…]   poorer profiles; writes bench/samples.md
cargo xtask bench fleet (--profile FILE --binary FILE [--shards N,N])… [--executors N,N] [--cargo-profile NAME] [--programs FOLDER]  shards of a fleet; writes bench/fleet.md
cargo xtask bench mip-cc                          cost of machine profiles made at compile time; writes bench/mip-cc.md
cargo xtask bench aarch64 [--machine-profiles]    measure emulated programs, or only their machine profiles; writes bench/aarch64.md";

fn main() -> ExitCode {
    let done = match Cli::parse().job {
        Job::Test { no_install, filter } => test::run(!no_install, filter.as_deref()),
        Job::Lint(parts) => lint::run(parts),
        Job::Dist { output, check } => dist::run(&output, check),
        Job::Bench { arguments } if arguments.iter().any(|a| a == "--help" || a == "-h") => {
            println!("{BENCH}");
            Ok(true)
        }
        Job::Bench { arguments } => bench::run(&arguments),
        Job::Differ { arguments } => differ::run(&arguments),
        Job::Campaign(options) => campaign::run(&options),
        Job::Debian(options) => debian::run(&options),
        Job::Digests(options) => digests::run(&options),
        Job::Measure { arguments } => process::measure(&arguments),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
