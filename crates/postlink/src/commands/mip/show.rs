//! `postlink mip show`, `covered` and `info`: what a profile says.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use postlink_mip::{Profile, mip, report};
use serde::Serialize;

use super::{Of, Selection, put};
use crate::errors::Usage;
use crate::ui::{Ui, count};

/// Print calls and block coverage of functions
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  postlink mip show -p app.mip --regex parse
  postlink mip show -p app.mip --debug ./app.unstripped
  postlink mip show -p app.mip --json | jq '.[0]'")]
pub struct Show {
    #[command(flatten)]
    of: Of,
    #[command(flatten)]
    selection: Selection,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    /// Where to write; - is standard output
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Serialize)]
struct FunctionJson<'a> {
    name: std::borrow::Cow<'a, str>,
    address: i64,
    size: u32,
    runs: u32,
    calls: u64,
    order_sum: u64,
    source: Option<String>,
    blocks: Vec<(u32, bool)>,
    called_from: Vec<(i64, u64)>,
}

impl Show {
    pub fn run(self, ui: &Ui) -> Result<ExitCode> {
        let mut watched = ui.phases("mip show");
        watched.phases.begin("read the profile");
        let profile = mip::open(&self.of.profile)?;
        watched.phases.begin("lines");
        let symbolizer = self.selection.symbolizer()?;
        let mut out = Vec::new();
        if self.json {
            let functions: Vec<FunctionJson<'_>> = profile
                .functions
                .iter()
                .filter(|f| self.selection.matches(&f.name))
                .map(|f| FunctionJson {
                    name: f.display_name(),
                    address: f.address,
                    size: f.size,
                    runs: f.raw_count,
                    calls: f.call_count,
                    order_sum: f.order_sum,
                    source: symbolizer.as_ref().and_then(|symbolizer| {
                        let frames = symbolizer.frames(f);
                        let frame = frames.first()?;
                        Some(format!("{}:{}", frame.file, frame.line))
                    }),
                    blocks: f
                        .all_blocks()
                        .iter()
                        .map(|b| (b.offset, b.covered))
                        .collect(),
                    called_from: f.edges.iter().map(|e| (e.source, e.weight)).collect(),
                })
                .collect();
            serde_json::to_writer_pretty(&mut out, &functions)?;
            out.push(b'\n');
        } else {
            let options = report::Options {
                filter: &|name| self.selection.matches(name),
                symbolizer: symbolizer.as_ref(),
                color: self.output.is_none() && colored(),
            };
            report::show(&mut out, &profile, options)?;
        }
        watched.printing();
        put(self.output.as_deref(), &out)?;
        watched.finish();
        Ok(ExitCode::SUCCESS)
    }
}

/// Whether standard output is for colours.
pub(crate) fn colored() -> bool {
    anstream::AutoStream::choice(&std::io::stdout()) != anstream::ColorChoice::Never
}

/// Print functions that have run
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  postlink mip covered -p app.mip
  postlink mip covered -p app.mip --debug ./app.unstripped --lines")]
pub struct Covered {
    #[command(flatten)]
    of: Of,
    #[command(flatten)]
    selection: Selection,
    /// Print file and line of each function, and of what is inlined at its start
    #[arg(long, conflicts_with = "paths")]
    lines: bool,
    /// Print the file of each function, and of what is inlined at its start
    #[arg(long)]
    paths: bool,
    /// Where to write; - is standard output
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Covered {
    pub fn run(self, ui: &Ui) -> Result<ExitCode> {
        if (self.lines || self.paths) && self.selection.debug.is_none() {
            return Err(Usage("--lines and --paths need --debug".to_owned()).into());
        }
        let mut watched = ui.phases("mip covered");
        watched.phases.begin("read the profile");
        let profile = mip::open(&self.of.profile)?;
        watched.phases.begin("lines");
        let symbolizer = self.selection.symbolizer()?;
        let options = report::Options {
            filter: &|name| self.selection.matches(name),
            symbolizer: symbolizer.as_ref(),
            color: false,
        };
        let how = match (self.lines, self.paths) {
            (true, _) => report::Covered::Lines,
            (_, true) => report::Covered::Paths,
            _ => report::Covered::Names,
        };
        let mut out = Vec::new();
        let found = report::covered(&mut out, &profile, options, how)?;
        watched.printing();
        put(self.output.as_deref(), &out)?;
        watched.finish();
        // Without any debug information, a warning for each function would say nothing more.
        let looked_up = if found.known == 0 {
            0
        } else {
            found.unknown.len()
        };
        for name in &found.unknown[..looked_up] {
            ui.warn(format_args!("no debug information found for {name}"));
        }
        if found.known == 0
            && !found.unknown.is_empty()
            && let Some(debug) = &self.selection.debug
        {
            ui.warn(format_args!(
                "{}: no debug information for any of {} functions: nothing is printed for them",
                debug.display(),
                count(found.unknown.len())
            ));
        }
        ui.say(format_args!(
            "{} of {} functions have run",
            count(found.total),
            count(profile.functions.len())
        ));
        Ok(ExitCode::SUCCESS)
    }
}

/// Print how much a profile covers
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  postlink mip info -p app.mip
  postlink mip info -p app.mip --json")]
pub struct Info {
    #[command(flatten)]
    of: Of,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    /// Where to write; - is standard output
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Serialize)]
struct InfoJson {
    types: Vec<&'static str>,
    module_hash: u32,
    identity: String,
    raw_profiles: u64,
    functions: u64,
    profiled_functions: u64,
    blocks: u64,
    covered_blocks: u64,
    call_edges: u64,
    traces: u64,
}

impl InfoJson {
    fn of(profile: &Profile) -> InfoJson {
        let info = report::Info::of(profile);
        InfoJson {
            types: profile.types.names().collect(),
            module_hash: profile.module_hash,
            identity: format!("{:016x}", profile.identity),
            raw_profiles: info.raw_profiles,
            functions: info.functions,
            profiled_functions: info.profiled_functions,
            blocks: info.blocks,
            covered_blocks: info.covered_blocks,
            call_edges: info.call_edges,
            traces: info.traces,
        }
    }
}

impl Info {
    pub fn run(self) -> Result<ExitCode> {
        let profile = mip::open(&self.of.profile)?;
        let mut out = Vec::new();
        if self.json {
            serde_json::to_writer_pretty(&mut out, &InfoJson::of(&profile))?;
            out.push(b'\n');
        } else {
            report::Info::of(&profile).print(&mut out)?;
        }
        put(self.output.as_deref(), &out)?;
        Ok(ExitCode::SUCCESS)
    }
}
