//! One file for each command: its options, its work, its output.

pub mod aggregate;
pub mod bat;
pub mod bench;
pub mod completions;
pub mod convert;
pub mod debug;
pub mod demo;
pub mod diff;
pub mod disasm;
pub mod export;
pub mod fleet;
pub mod inspect;
pub mod instrument;
pub mod links;
pub mod man;
pub mod merge;
pub mod mip;
pub mod optimize;
pub mod probes;
pub mod profgen;
pub mod report;
pub mod show;
mod show_graph;
mod show_names;
pub mod trace;
pub mod tune;
pub mod verify;
pub mod watch;

use std::process::ExitCode;

use anyhow::Result;

use crate::cli::Command;
use crate::ui::Ui;

/// Runs a command.
pub fn run(command: Command, ui: &Ui) -> Result<ExitCode> {
    match command {
        Command::Tune(command) => command.run(ui),
        Command::Inspect(command) => command.run(ui),
        Command::Instrument(command) => command.run(ui),
        Command::Show(command) => command.run(ui),
        Command::Report(command) => command.run(ui),
        Command::Export(command) => command.run(ui),
        Command::Fleet(command) => command.run(),
        Command::Aggregate(command) => command.run(ui),
        Command::Bat(command) => command.run(ui),
        Command::Convert(command) => command.run(ui),
        Command::Diff(command) => command.run(ui),
        Command::Links(command) => command.run(ui),
        Command::Merge(command) => command.run(ui),
        Command::Optimize(command) => command.run(ui),
        Command::Verify(command) => command.run(ui),
        Command::Debug(command) => command.run(ui),
        Command::Bench(command) => command.run(ui),
        Command::Demo(command) => command.run(ui),
        Command::Trace(command) => command.run(ui),
        Command::Watch(command) => command.run(ui),
        Command::Probes(command) => command.run(ui),
        Command::Disasm(command) => command.run(ui),
        Command::Profgen(command) => command.run(ui),
        Command::Mip(command) => command.run(ui),
        Command::Man(command) => command.run(),
        Command::Completions(command) => command.run(),
    }
}
