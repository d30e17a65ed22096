//! `postlink show`: what a profile says.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use postlink_profile::Profile;
use postlink_profile::any::{self, Model};
use postlink_rewrite::counts::{Counts, FunctionCounts};
use serde::Serialize;

use super::optimize::read_profiles;
use super::show_graph;
use crate::debug_files;
use crate::input::Input;
use crate::options;
use crate::profiles::{self, Reading};
use crate::ui::{BOLD, DIM, Ui, WARM, count, demangle, percent, shorten};

/// Print what a profile says: hottest functions, blocks and calls
///
/// Of every format, and also of a program that is still running. Of counters and samples by address, without
/// --binary only the totals can be told.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  postlink show run.plraw --binary ./app
  postlink show run.plraw --binary ./app --blocks parse_expression
  postlink show run.plraw --binary ./app --graph parse_expression
  postlink show run.plraw --binary ./app --json | jq '.functions[0]'")]
pub struct Show {
    /// Profiles of any format; several are added up
    #[arg(value_name = "PROFILE", required = true)]
    pub profiles: Vec<String>,
    /// The program that was sampled or instrumented (not its instrumented copy)
    #[arg(long, short, value_name = "FILE")]
    pub binary: Option<PathBuf>,
    #[command(flatten)]
    pub reading: options::Reading,
    #[command(flatten)]
    pub naming: options::Naming,
    /// How many rows a table has at most
    #[arg(long, short = 'n', value_name = "N", default_value_t = 20)]
    pub top: usize,
    /// Show the blocks and edges of one function, by its symbol name
    #[arg(long, value_name = "NAME")]
    pub blocks: Option<String>,
    /// Draw the graph of one function in box characters, by its symbol name
    #[arg(long, value_name = "NAME", conflicts_with_all = ["blocks", "json"])]
    pub graph: Option<String>,
    /// Print everything as JSON
    #[arg(long)]
    pub json: bool,
    /// Print symbol names as they are in the file
    #[arg(long)]
    pub no_demangle: bool,
}

/// The totals, which need no binary.
#[derive(Serialize)]
struct Totals {
    identity: String,
    digest: String,
    counters: u64,
    counters_used: u64,
    sites: u64,
    sites_used: u64,
    total: u64,
}

impl Totals {
    fn of(profile: &Profile) -> Totals {
        let subject = profile.subject();
        Totals {
            identity: subject.identity.to_string(),
            digest: format!("{:016x}", subject.digest.0),
            counters: subject.counters,
            counters_used: profile.counters().iter().filter(|c| **c > 0).count() as u64,
            sites: subject.sites,
            sites_used: profile.sites().count() as u64,
            total: profile.total(),
        }
    }
}

/// What `--json` prints.
#[derive(Serialize)]
struct Shown<'a> {
    totals: Totals,
    #[serde(flatten)]
    counts: Option<&'a Counts>,
}

impl Show {
    pub fn run(self, ui: &Ui) -> Result<ExitCode> {
        let mut watched = ui.phases("show");
        watched.phases.begin("profile");
        let inputs = profiles::weighted(&self.profiles)?;
        if any::models(&inputs)?
            .iter()
            .any(|model| *model != Model::Counters)
        {
            let reading = Reading {
                binary: self.binary.clone(),
                relocations: self.reading.relocations,
                ..Reading::default()
            };
            // With the binary, samples are told by functions.
            let models = any::models(&inputs)?;
            let samples = models.iter().any(|model| model.may_be_by_address());
            let wanted = (samples && self.binary.is_some()).then_some(Model::Symbols);
            if self.graph.is_some() {
                anyhow::bail!(crate::errors::Usage(
                    "graphs are drawn of counters of an instrumented program; of other profiles, --blocks shows the counts".into()
                ));
            }
            let profile = profiles::read(ui, &inputs, wanted, &reading)?;
            watched.finish();
            super::show_names::show(&self, &profile)?;
            return Ok(ExitCode::SUCCESS);
        }
        let profile = read_profiles(ui, &self.profiles)?;
        let counts = match &self.binary {
            None => None,
            Some(binary) => {
                let input = Input::open(binary)?.using(self.reading.relocations)?;
                let input = debug_files::name(input, &self.naming, ui)?;
                let counts =
                    postlink_rewrite::counts::counts(&input.elf()?, &profile, &mut watched.phases)
                        .with_context(|| {
                            format!("{} with {}", self.profiles.join(", "), binary.display())
                        })?;
                Some(counts)
            }
        };
        watched.finish();
        let totals = Totals::of(&profile);
        if self.json {
            println!(
                "{}",
                serde_json::to_string_pretty(&Shown {
                    totals,
                    counts: counts.as_ref()
                })?
            );
            return Ok(ExitCode::SUCCESS);
        }
        if let (Some(counts), Some(name)) = (&counts, &self.graph) {
            let function = self.function(counts, name)?;
            show_graph::print(function, &self.name(&function.name));
            return Ok(ExitCode::SUCCESS);
        }
        match (&counts, self.blocks.as_ref().or(self.graph.as_ref())) {
            (Some(counts), Some(name)) => self.print_blocks(counts, name)?,
            (Some(counts), None) => {
                self.print_totals(&totals);
                self.print_functions(counts);
                self.print_calls(counts);
            }
            (None, Some(_)) => anyhow::bail!(crate::errors::Usage(
                "--binary shows the blocks of counters".into()
            )),
            (None, None) => {
                self.print_totals(&totals);
                ui.say("  --binary FILE shows the functions");
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    fn name(&self, name: &str) -> String {
        if self.no_demangle {
            name.to_owned()
        } else {
            demangle(name)
        }
    }

    fn print_totals(&self, totals: &Totals) {
        anstream::println!(
            "{BOLD}{}{BOLD:#}: of {}, {} counts in {} of {} counters ({}), {} of {} indirect calls used",
            self.profiles.join(", "),
            totals.identity,
            count(totals.total),
            count(totals.counters_used),
            count(totals.counters),
            percent(totals.counters_used, totals.counters),
            count(totals.sites_used),
            count(totals.sites)
        );
    }

    fn print_functions(&self, counts: &Counts) {
        let all: u64 = counts
            .functions
            .iter()
            .map(|f| f.instructions)
            .fold(0, u64::saturating_add);
        let mut hottest: Vec<&FunctionCounts> = counts.functions.iter().collect();
        hottest.sort_by(|a, b| {
            b.instructions
                .cmp(&a.instructions)
                .then(a.address.cmp(&b.address))
        });
        anstream::println!(
            "\n{BOLD}{:>8} {:<10} {:>18} {:>15}  function{BOLD:#}",
            "share",
            "",
            "instructions",
            "entered"
        );
        let most = hottest.first().map_or(0, |f| f.instructions);
        for f in hottest.iter().take(self.top) {
            anstream::println!(
                "{:>8} {WARM}{:<10}{WARM:#} {:>18} {:>15}  {}",
                percent(f.instructions, all),
                show_graph::bar(f.instructions, most, 10),
                count(f.instructions),
                count(f.entries),
                shorten(&self.name(&f.name), 100)
            );
        }
        if hottest.len() > self.top {
            anstream::println!(
                "{DIM}… {} more functions ran{DIM:#}",
                count(hottest.len() - self.top)
            );
        }
    }

    fn print_calls(&self, counts: &Counts) {
        if counts.calls.is_empty() {
            return;
        }
        anstream::println!("\n{BOLD}{:>18}  call{BOLD:#}", "times");
        let mut calls: Vec<_> = counts.calls.iter().collect();
        calls.sort_by(|a, b| b.count.cmp(&a.count).then(a.at.cmp(&b.at)));
        for call in calls.iter().take(self.top) {
            let (from, to) = (self.name(&call.caller), self.name(&call.callee));
            anstream::println!(
                "{:>18}  {} {DIM}at {:#x}{DIM:#} -> {}",
                count(call.count),
                shorten(&from, 50),
                call.at,
                shorten(&to, 50)
            );
        }
    }

    fn function<'c>(&self, counts: &'c Counts, name: &str) -> Result<&'c FunctionCounts> {
        let mut functions = counts.functions.iter();
        let found = functions.find(|f| f.name == name || self.name(&f.name) == name);
        found.with_context(|| {
            format!(
                "no function '{name}' ran (names are compared as a whole, mangled or demangled)"
            )
        })
    }

    fn print_blocks(&self, counts: &Counts, name: &str) -> Result<()> {
        let function = self.function(counts, name)?;
        anstream::println!(
            "{BOLD}{}{BOLD:#} at {:#x}, entered {} times",
            self.name(&function.name),
            function.address,
            count(function.entries)
        );
        for block in &function.blocks {
            anstream::println!(
                "{:#12x} {:>6} bytes {:>18}",
                block.address,
                block.size,
                count(block.count)
            );
            for edge in &block.edges {
                anstream::println!(
                    "{DIM}{:>25} {:>18} -> {:#x}{}{DIM:#}",
                    "",
                    count(edge.count),
                    edge.to,
                    if edge.estimated {
                        " (estimated: other jumps lead there too)"
                    } else {
                        ""
                    }
                );
            }
        }
        Ok(())
    }
}
