//! `postlink aggregate`: from samples to a profile by functions.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use postlink_aggregate::{self as aggregate, Aggregated, Binary, Quality};
use postlink_profile::samples::Options;
use postlink_profile::{bolt_yaml, fdata};

use crate::errors::Usage;
use crate::input::Input;
use crate::profiles::{self, Reading, Target};
use crate::ui::{BOLD, Ui, count};

/// Make a profile by functions of samples by address
///
/// Does perf2bolt's work, without perf: branch stacks become branches and fall-throughs between blocks, basic samples
/// become counts of instructions; traces (`postlink trace`) are taken as well. Several recordings of several processes
/// are added up, wherever each had the binary loaded. The binary may be one that was optimised with --enable-bat: the
/// profile is then of the one it was made from.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  perf record -e cycles:u -j any,u -o perf.data -- ./app
  postlink aggregate -p perf.data ./app -o app.fdata
  postlink aggregate -p monday.data -p tuesday.data:2 ./app -o app.fdata
  perf script -F pid,ip,brstack --show-mmap-events > app.script
  postlink aggregate -p app.script ./app -o app.fdata")]
pub struct Aggregate {
    /// The binary that was sampled
    #[arg(value_name = "BINARY")]
    pub binary: PathBuf,
    /// Samples: perf.data, text of perf script, pre-aggregated, or a trace, with a weight if they count more than
    /// once; may be given several times
    #[arg(long, short, value_name = "FILE[:WEIGHT]", required = true)]
    pub profile: Vec<String>,
    /// Where the profile goes
    #[arg(long, short, value_name = "OUTPUT")]
    pub output: PathBuf,
    /// Format of the profile [default: by the name of the output, else fdata]
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<Target>,
    /// Take a recording of another version of the binary
    #[arg(long)]
    pub ignore_build_id: bool,
    /// Count the sampled instructions, not the branches
    #[arg(long)]
    pub basic: bool,
    /// Take the sampled instruction for the end of the newest run
    #[arg(long)]
    pub event_ip: bool,
    /// Leave out the two newest branches of every sample from the first one with 32 on
    ///
    /// Skylake processors sometimes record the newest branch twice. Runs that this makes up are noticed by
    /// the code, but not where the binary was optimised before and its code is not looked at. perf2bolt does
    /// so whenever there are translation tables, on any x86-64 processor (and says "using Intel Skylake bug
    /// workaround"); the front end `perf2bolt` does as it does. With records of another processor two of 32
    /// branches are lost for nothing.
    #[arg(long)]
    pub without_newest: bool,
    /// Only samples of this process; may be given several times
    #[arg(long, value_name = "ID")]
    pub pid: Vec<i32>,
    /// Only samples of events with this in their name; may be given several times
    #[arg(long, value_name = "NAME")]
    pub event: Vec<String>,
    /// Keep accesses to memory that is no object of the binary
    #[arg(long)]
    pub all_memory: bool,
    /// Count what perf2bolt counts, no less and no more
    ///
    /// It leaves out fall-throughs in functions that have parts elsewhere, unless the linker kept relocations, and
    /// runs that continue from one part of an optimised binary to the one after it. It counts the newest branch of
    /// every sample, though what was executed after it is not known: code that is reached by branches then counts
    /// for more than code that is reached by falling through.
    #[arg(long)]
    pub only_explained: bool,
}

impl Aggregate {
    pub fn run(self, ui: &Ui) -> Result<ExitCode> {
        let mut watched = ui.phases("aggregate");
        watched.phases.begin("binary");
        let input = Input::open(&self.binary)?;
        input.must_differ_from(&self.output)?;
        let elf = input.elf()?;
        let binary = Binary::new(&self.binary, &elf)?;
        for remark in binary.translate.iter().flat_map(|t| t.remarks()) {
            ui.warn(remark);
        }
        watched.phases.begin("samples");
        let inputs = profiles::weighted(&self.profile)?;
        let options = Options {
            pids: self.pid.clone(),
            events: self.event.clone(),
            basic: self.basic,
            event_ip: self.event_ip,
            without_newest: self.without_newest,
            even: !self.only_explained,
        };
        let reading = Reading {
            samples: options,
            aggregate: aggregate::Options {
                ignore_build_id: self.ignore_build_id,
                all_memory: self.all_memory,
                only_explained: self.only_explained,
            },
            ..Reading::default()
        };
        let samples = profiles::addresses(&inputs, &elf, &self.binary, &reading)?;
        watched.phases.begin("aggregate");
        let Aggregated { profile, quality } =
            aggregate::aggregate(&binary, &samples, reading.aggregate)?;
        watched.phases.begin("write");
        let format = self.format.or(Target::of(&self.output));
        match format {
            Some(Target::Fdata) | None => fdata::write(&self.output, &profile)?,
            Some(Target::Yaml) => {
                bolt_yaml::write(&self.output, &profiles::to_yaml(&binary, &profile)?)?;
            }
            Some(_) => bail!(Usage(
                "aggregate writes fdata or YAML; `postlink convert` writes pre-aggregated text"
                    .into()
            )),
        }
        watched.finish();
        ui.say(format_args!(
            "{BOLD}{}{BOLD:#}: {} functions, {} branches, {} samples, {} memory accesses",
            self.output.display(),
            count(quality.functions),
            count(profile.branches().len()),
            count(profile.samples().len()),
            count(profile.memory().len()),
        ));
        say_quality(ui, &quality);
        Ok(ExitCode::SUCCESS)
    }
}

/// How many samples there are, and what could not be read.
pub fn say_samples(ui: &Ui, quality: &Quality) {
    if quality.read.samples > 0 {
        ui.say(format_args!(
            "  read {} samples with {} branches",
            count(quality.read.samples),
            count(quality.read.entries)
        ));
        let ignored = quality.ignored();
        if ignored > 0 {
            let share = ignored as f64 * 100.0 / quality.read.samples as f64;
            ui.say(format_args!(
                "  {} samples ({share:.1} %) are of processes that did not have the binary mapped",
                count(ignored)
            ));
        }
    }
    if quality.read.wrong_path > 0 {
        ui.say(format_args!(
            "  {} branches left out: the processor began their path and gave it up",
            count(quality.read.wrong_path)
        ));
    }
    if let Some((bytes, first)) = quality.read.undecoded {
        ui.warn(format_args!(
            "{} bytes of trace data are no packets of Arm SPE and were left out, the first at offset {first:#x} of the recording",
            count(bytes)
        ));
    }
    if quality.read.lost > 0 {
        ui.warn(format_args!(
            "perf lost {} records",
            count(quality.read.lost)
        ));
    }
}

/// What to think of the samples, with the code that they were compared with.
pub fn say_quality(ui: &Ui, quality: &Quality) {
    say_samples(ui, quality);
    let percent = |part| format!("{:.1} %", quality.percent(part));
    if quality.all_runs() > 0 {
        let wrong = quality.wrong();
        ui.say(format_args!(
            "  {} runs: {} contradict the code ({}), {} are outside of it ({})",
            count(quality.all_runs()),
            count(wrong),
            percent(wrong),
            count(quality.outside()),
            percent(quality.outside())
        ));
        if quality.percent(wrong) > 10.0 {
            ui.warn("many runs contradict the code: the samples are probably of another version of the binary");
        }
    }
    if quality.basic > 0 {
        ui.say(format_args!(
            "  {} samples of the binary, {} in no function",
            count(quality.basic),
            count(quality.basic_outside)
        ));
    }
}
