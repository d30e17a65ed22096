//! One file for each thing that is done.
//!
//! | file | commands |
//! |---|---|
//! | [`info`] | `info` |
//! | [`build`] | `build` |
//! | [`count`] | `run`, `test`, `bench`: workloads are run and counted |
//! | [`optimize`] | `optimize` |
//! | [`documents`] | `man`, `completions` |

mod build;
mod count;
mod documents;
mod info;
mod optimize;

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;

use crate::options::{Cli, Command, TestsAndBenches};
use crate::session::Session;
use count::Work;

/// The profile of everything but benches.
const RELEASE: &str = "release";

/// Does what the command line says.
pub fn run(cli: Cli) -> Result<ExitCode> {
    match cli.command {
        Command::Info(info) => info::run(&Session::open(&info.building, RELEASE)?),
        Command::Build(build) => build::run(&build),
        Command::Run(run) => {
            let session = Session::open(&run.building, RELEASE)?;
            let work = Work {
                command: "run",
                selection: run.programs.arguments(),
                filter: None,
                arguments: &run.arguments,
                running: &run.running,
            };
            count::run(&session, &work)
        }
        Command::Test(test) => {
            let session = Session::open(&test.building, RELEASE)?;
            let work = Work {
                command: "test",
                selection: selected(test.programs.arguments(), &test.others),
                filter: test.filter.as_ref(),
                arguments: &test.arguments,
                running: &test.running,
            };
            count::run(&session, &work)
        }
        Command::Bench(bench) => {
            let session = Session::open(&bench.building, "bench")?;
            let work = Work {
                command: "bench",
                selection: selected(bench.programs.arguments(), &bench.others),
                filter: bench.filter.as_ref(),
                arguments: &bench.arguments,
                running: &bench.running,
            };
            count::run(&session, &work)
        }
        Command::Optimize(optimize) => optimize::run(&optimize),
        Command::Man { directory } => documents::man(&directory),
        Command::Completions { shell } => documents::completions(shell),
    }
}

fn selected(mut programs: Vec<OsString>, others: &TestsAndBenches) -> Vec<OsString> {
    programs.extend(others.arguments());
    programs
}
