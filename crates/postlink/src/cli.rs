//! Which commands and general options there are. Help, manual pages and completions all come from these types.

use clap::{Args, Parser, Subcommand};

use crate::commands::{
    aggregate, bat, bench, completions, convert, debug, demo, diff, disasm, export, fleet, inspect,
    instrument, links, man, merge, mip, optimize, probes, profgen, report, show, trace, tune,
    verify, watch,
};
use crate::ui::{ColorChoice, Ui};

/// Makes a linked program faster by moving its code, and proves that nothing else has changed.
///
/// postlink takes an ELF program or shared library for x86-64 or AArch64, as distributions ship it or linked with
/// -Wl,-q, and a workload. It makes an instrumented binary, runs the workload with it, puts the code that ran
/// together in the order in which it ran, and has the result checked instruction by instruction before it is
/// written.
#[derive(Debug, Parser)]
#[command(
    name = "postlink",
    version,
    max_term_width = 100,
    disable_help_subcommand = true,
    subcommand_required = true,
    arg_required_else_help = true
)]
#[command(after_long_help = "\
Examples:
  The whole job in one go; {} stands for the instrumented program:
    postlink tune ./app -o ./app.opt -- ./run-workload.sh {}

  The same step by step:
    postlink instrument ./app -o ./app.inst
    POSTLINK_PROFILE=run.plraw ./app.inst …
    postlink optimize ./app -p run.plraw -o ./app.opt
    postlink verify ./app ./app.opt

Exit codes: 0 done; 1 error, or not proved; 2 wrong command line.")]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

/// Options of every command.
#[derive(Args, Debug)]
#[command(next_help_heading = "General options")]
pub struct Global {
    /// Say nothing but errors and what was asked for
    #[arg(long, short, global = true)]
    pub quiet: bool,
    /// Number of threads [default: one for each processor]
    ///
    /// The output is the same at any number.
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Print how long each phase took
    #[arg(long, global = true)]
    pub time: bool,
    /// When to use colour
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub color: ColorChoice,
}

impl Global {
    /// Sets threads and colours, and gives what commands talk through.
    pub fn apply(&self) -> anyhow::Result<Ui> {
        self.color.apply();
        if let Some(threads) = self.threads {
            rayon::ThreadPoolBuilder::new()
                .num_threads(usize::from(threads))
                .build_global()?;
        }
        Ok(Ui::new(self.quiet, self.time))
    }
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    Tune(tune::Tune),
    Inspect(inspect::Inspect),
    Instrument(instrument::Instrument),
    Show(show::Show),
    Report(report::Report),
    Export(export::Export),
    Aggregate(aggregate::Aggregate),
    Bat(bat::BatCommand),
    Merge(merge::Merge),
    Convert(convert::Convert),
    Diff(diff::Diff),
    Links(links::Links),
    Fleet(fleet::Fleet),
    Optimize(optimize::Optimize),
    Verify(verify::Verify),
    Debug(debug::Debug),
    Bench(bench::Bench),
    Demo(demo::Demo),
    Watch(watch::Watch),
    Trace(trace::Trace),
    Probes(probes::Probes),
    Disasm(disasm::Disasm),
    Profgen(profgen::Profgen),
    Mip(mip::Mip),
    Man(man::Man),
    Completions(completions::Completions),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_has_no_contradictions() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_explains_itself_and_most_with_an_example() {
        for command in Cli::command().get_subcommands() {
            assert!(
                command.get_about().is_some(),
                "{} has no description",
                command.get_name()
            );
            assert!(
                command.get_long_about().is_some(),
                "{} has no long description",
                command.get_name()
            );
            let examples = command
                .get_after_long_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            assert!(
                examples.contains("postlink "),
                "{} has no example",
                command.get_name()
            );
        }
    }

    #[test]
    fn options_are_described() {
        for command in Cli::command().get_subcommands() {
            for argument in command.get_arguments() {
                assert!(
                    argument.get_help().is_some(),
                    "{} {} has no help",
                    command.get_name(),
                    argument.get_id()
                );
            }
        }
    }
}
