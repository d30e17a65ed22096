//! `postlink profgen`: from samples to a profile that a compiler reads.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use postlink_correlate::dwarf::Lines;
use postlink_correlate::profgen::{self, Format, Options};
use postlink_correlate::script;
use postlink_profile::source::Source;

use crate::errors::Usage;
use crate::input::Input;
use crate::ui::Ui;

/// Make a sample profile for a compiler
///
/// Samples are branch stacks, as perf record -b takes them. The profile is for -fprofile-sample-use: by pseudo probes if the program has
/// them, else by source lines.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  perf record -b ./app; postlink profgen -p perf.data ./app -o app.prof
  perf script -F ip,brstack --show-mmap-events > app.script
  postlink profgen --perfscript app.script ./app -o app.prof --format text")]
pub struct Profgen {
    /// The program that was sampled
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Samples by perf record
    #[arg(long, short, value_name = "FILE")]
    pub perfdata: Option<PathBuf>,
    /// Samples as text by perf script
    #[arg(long, value_name = "FILE", conflicts_with = "perfdata")]
    pub perfscript: Option<PathBuf>,
    /// Counters as written with --raw
    #[arg(long, value_name = "FILE", conflicts_with_all = ["perfdata", "perfscript"])]
    pub unsymbolized: Option<PathBuf>,
    /// Where the profile goes
    #[arg(long, short, value_name = "FILE")]
    pub output: PathBuf,
    /// Form of the profile
    #[arg(long, value_name = "FORM", default_value = "extbinary")]
    pub format: Form,
    /// Go by source lines although there are probes
    #[arg(long)]
    pub lines: bool,
    /// Write counters of addresses, to be looked up later
    #[arg(long)]
    pub raw: bool,
    /// Hashes in place of names
    #[arg(long)]
    pub md5: bool,
    /// Leave out functions that hardly ran
    #[arg(long)]
    pub trim_cold: bool,
    /// Use samples without branch stacks
    #[arg(long)]
    pub ip_only: bool,
    /// Leave out call chains
    #[arg(long)]
    pub ignore_chains: bool,
    /// Only samples of this process
    #[arg(long, value_name = "ID")]
    pub pid: Option<i64>,
    /// Only samples of these events
    #[arg(long, value_name = "NAME")]
    pub event: Vec<String>,
}

/// Form of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// Text
    Text,
    /// LLVM's extensible binary form
    Extbinary,
}

impl Profgen {
    pub fn run(self, ui: &Ui) -> Result<ExitCode> {
        let input = Input::open(&self.file)?;
        let elf = input.elf()?;
        let given = [&self.perfdata, &self.perfscript, &self.unsymbolized];
        let Some(path) = given.into_iter().flatten().next() else {
            bail!(Usage(
                "no samples: one of --perfdata, --perfscript, --unsymbolized is needed".to_owned()
            ));
        };
        let named = || path.display().to_string();
        input.must_differ_from(&self.output)?;
        let (mut script, source);
        let samples = if self.perfscript.is_some() {
            script = open(path)?;
            profgen::Input::Script(&mut *script)
        } else {
            source = Source::open(path)?;
            match given {
                [Some(_), ..] => profgen::Input::PerfData(&source),
                _ => profgen::Input::Raw(&source),
            }
        };
        let file = self.file.file_name().unwrap_or_default();
        let options = Options {
            format: match self.format {
                Form::Text => Format::Text,
                Form::Extbinary => Format::ExtBinary,
            },
            hashes: self.md5,
            raw: self.raw,
            by_lines: self.lines,
            trim_cold: self.trim_cold,
            script: script::Options {
                file: file.to_string_lossy().into_owned(),
                pid: self.pid,
                events: self.event.clone(),
                ip_only: self.ip_only,
                period: 1,
                ignore_chains: self.ignore_chains,
                kernel: false,
                windows: false,
                branches_only: false,
            },
            ..Options::default()
        };
        let mut out = Vec::new();
        let lines = Lines::load(&elf).with_context(|| self.file.display().to_string())?;
        let report = profgen::run(&elf, &lines, samples, &options, &mut out).with_context(named)?;
        for warning in &report.warnings {
            ui.warn(warning);
        }
        fs::write(&self.output, out).with_context(|| self.output.display().to_string())?;
        ui.say(format_args!(
            "{}: {} functions",
            self.output.display(),
            report.functions
        ));
        Ok(ExitCode::SUCCESS)
    }
}

/// Opens samples as text; `-` is the standard input.
fn open(path: &Path) -> Result<Box<dyn Read + Send>> {
    if path == Path::new("-") {
        return Ok(Box::new(std::io::stdin()));
    }
    let file = fs::File::open(path).with_context(|| path.display().to_string())?;
    Ok(Box::new(file))
}
