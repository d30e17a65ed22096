//! Routine jobs of the project: `cargo xtask JOB`.
//!
//! | job | what it does |
//! |---|---|
//! | `test` | installs what the tests need, runs all of them, ends with a summary |
//! | `bench` | measures postlink on real programs, side by side with llvm-bolt |
//! | `differ` | runs a program and postlink's output in lock step, and lists the values that differ |
//! | `lint` | formatting, clippy and documentation, without warnings |

mod bench;
mod differ;
mod packages;
mod process;
mod test;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask test [--no-install] [FILTER]      run all tests; FILTER selects by name
       cargo xtask bench [--no-bolt] [--runs N] [NAME…]  measure on corpus programs; writes bench/results.md
       cargo xtask bench probes [--script-megabytes N] [--probe-megabytes N] [--runs N]  sample profiles; writes bench/probes.md
       cargo xtask bench profiles [--binary FILE] [--runs N]  measure reading and merging of profiles; writes bench/profiles.md
       cargo xtask bench mip-cc                       cost of machine profiles made at compile time; writes bench/mip-cc.md
       cargo xtask bench aarch64 [--machine-profiles] measure emulated programs, or only their machine profiles; writes bench/aarch64.md
       cargo xtask differ PROGRAM [OPTION…] [-- ARGS…] run a program and its output in lock step; see --help
       cargo xtask lint                               formatting, clippy, documentation";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (job, rest) = match arguments.split_first() {
        Some((job, rest)) => (job.as_str(), rest),
        None => ("--help", &[][..]),
    };
    let done = match job {
        "test" => test::run(rest),
        "bench" => bench::run(rest),
        "differ" => differ::run(rest),
        "lint" => test::lint(),
        // Not for people: see `process`.
        "measure" => process::measure(rest),
        "--help" | "-h" | "help" => {
            println!("{USAGE}");
            Ok(true)
        }
        other => {
            eprintln!("error: no job '{other}'\n{USAGE}");
            return ExitCode::from(2);
        }
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
