//! `postlink mip outline-report`: what could be smaller.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use postlink_mip::mip;
use postlink_mip::outline::{Advice, candidates};
use serde::Serialize;

use super::{Of, Selection, put};
use crate::ui::{Ui, bytes, count, percent};

/// List cold functions and blocks worth outlining, or compiling for size
///
/// Functions that never ran are candidates for -Oz, and so are those that are seldom called, unless they
/// spend their time in a loop, which calls do not show. In functions that ran, blocks that never did are
/// candidates for outlining or splitting off. What is seldom called is known from call counts, cold blocks
/// from block coverage.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  postlink mip outline-report -p app.mip
  postlink mip outline-report -p app.mip --top 0 --json | jq '.candidates[].name'")]
pub struct OutlineReport {
    #[command(flatten)]
    of: Of,
    #[command(flatten)]
    selection: Selection,
    /// A function called at most so often a run is rare
    #[arg(long, value_name = "CALLS", default_value_t = 1)]
    rare: u64,
    /// Cold blocks in a row smaller than that are not worth a call
    #[arg(long, value_name = "BYTES", default_value_t = 16)]
    least: u32,
    /// How many to list; 0 is all
    #[arg(long, short = 'n', value_name = "N", default_value_t = 20)]
    top: usize,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    /// Where to write; - is standard output
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Serialize)]
struct Row {
    name: String,
    advice: &'static str,
    size: u32,
    bytes: u64,
    calls: u64,
    cold_blocks: Vec<(u32, u32)>,
    source: Option<String>,
}

#[derive(Serialize)]
struct Report {
    functions: usize,
    bytes: u64,
    never_ran: (usize, u64),
    rare: (usize, u64),
    cold_blocks: (usize, u64),
    candidates: Vec<Row>,
}

impl OutlineReport {
    pub fn run(self, ui: &Ui) -> Result<ExitCode> {
        let profile = mip::open(&self.of.profile)?;
        if profile.functions.iter().all(|f| !f.is_covered()) {
            ui.warn(format_args!(
                "{}: nothing has run in this profile, so everything is cold",
                self.of.profile.display()
            ));
        }
        let symbolizer = self.selection.symbolizer()?;
        let mut found = candidates(&profile, self.rare, self.least);
        found.retain(|c| {
            self.selection
                .matches(&profile.functions[c.function as usize].name)
        });
        let sum = |advice: Advice| {
            let of = found.iter().filter(|c| c.advice == advice);
            (of.clone().count(), of.map(|c| c.bytes).sum::<u64>())
        };
        let top = if self.top == 0 { found.len() } else { self.top };
        let report = Report {
            functions: profile.functions.len(),
            bytes: profile.functions.iter().map(|f| u64::from(f.size)).sum(),
            never_ran: sum(Advice::NeverRan),
            rare: sum(Advice::Rare),
            cold_blocks: sum(Advice::ColdBlocks),
            candidates: found
                .iter()
                .take(top)
                .map(|c| {
                    let function = &profile.functions[c.function as usize];
                    Row {
                        name: function.display_name().into_owned(),
                        advice: match c.advice {
                            Advice::NeverRan => "never ran",
                            Advice::Rare => "rare",
                            Advice::ColdBlocks => "cold blocks",
                        },
                        size: function.size,
                        bytes: c.bytes,
                        calls: function.call_count,
                        cold_blocks: c.cold.clone(),
                        source: symbolizer.as_ref().and_then(|symbolizer| {
                            let frames = symbolizer.frames(function);
                            let frame = frames.last()?;
                            Some(format!("{}:{}", frame.file, frame.line))
                        }),
                    }
                })
                .collect(),
        };
        let mut out = Vec::new();
        if self.json {
            serde_json::to_writer_pretty(&mut out, &report)?;
            out.push(b'\n');
        } else {
            report.print(&mut out)?;
        }
        put(self.output.as_deref(), &out)?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Report {
    fn print(&self, out: &mut impl Write) -> std::io::Result<()> {
        writeln!(
            out,
            "{} functions, {}",
            count(self.functions),
            bytes(self.bytes)
        )?;
        for (what, (functions, size)) in [
            ("never ran: compile for size (-Oz)", self.never_ran),
            ("seldom called: -Oz, unless a loop in it is hot", self.rare),
            (
                "ran, with blocks that did not: outline or split",
                self.cold_blocks,
            ),
        ] {
            writeln!(
                out,
                "  {what:<50} {:>9} functions {:>10} {:>7}",
                count(functions),
                bytes(size),
                percent(size, self.bytes)
            )?;
        }
        if self.candidates.is_empty() {
            return Ok(());
        }
        writeln!(
            out,
            "\n{:>9} {:>9} {:>12} {:<12} name",
            "bytes", "of", "calls", "why"
        )?;
        for row in &self.candidates {
            write!(
                out,
                "{:>9} {:>9} {:>12} {:<12} {}",
                count(row.bytes),
                count(row.size),
                count(row.calls),
                row.advice,
                row.name
            )?;
            match &row.source {
                Some(source) => writeln!(out, " ({source})")?,
                None => writeln!(out)?,
            }
        }
        Ok(())
    }
}
