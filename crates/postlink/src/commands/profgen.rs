//! `postlink profgen`: from samples to a profile that a compiler reads.

use std::fs;
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use postlink_aggregate::Placer;
use postlink_elf::elf::Elf;
use postlink_profgen::dwarf::Lines;
use postlink_profgen::dwarf::split::Files;
use postlink_profgen::sample::{gcov, summary};
use postlink_profgen::{
    Accesses, ContextLimits, Counters, EXTERNAL, Format, Input as SampleInput, Options, generate,
    pe, preinline,
};
use postlink_profile::address::Place;
use postlink_profile::{Format as ProfileFormat, Source, any, progress, samples};

use crate::errors::Usage;
use crate::input::Input;
use crate::ui::Ui;

/// Make a sample profile for a compiler
///
/// Samples are branch stacks, as perf record -b takes them, best with call chains (perf record -b -g);
/// without either, instructions are counted. The profile is for -fprofile-sample-use: by pseudo probes if the
/// program has them, else by source lines.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  perf record -b ./app; postlink profgen -p perf.data ./app -o app.prof
  perf script -F ip,brstack --show-mmap-events | postlink profgen --perfscript - ./app -o app.prof
  postlink profgen --perfscript app.script ./app -o app.prof --format text
  postlink profgen --perfscript app.script ./app -o app.raw --raw
  postlink profgen --unsymbolized app.raw ./app -o app.prof")]
pub struct Profgen {
    /// The program that was sampled
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Where the profile goes
    #[arg(long, short, value_name = "FILE")]
    pub output: PathBuf,
    #[command(flatten)]
    samples: Samples,
    #[command(flatten)]
    program: Program,
    #[command(flatten)]
    form: Form,
    #[command(flatten)]
    chains: Chains,
    #[command(flatten)]
    preinliner: PreInliner,
    #[command(flatten)]
    thresholds: Thresholds,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Samples")]
struct Samples {
    /// Samples by perf record; or any other profile by address: pre-aggregated (also of a fleet's rows), pprof,
    /// OpenTelemetry
    #[arg(long, short, value_name = "FILE")]
    perfdata: Option<PathBuf>,
    /// Samples as text by perf script; - is the standard input
    #[arg(long, value_name = "FILE", conflicts_with = "perfdata")]
    perfscript: Option<PathBuf>,
    /// Counters as written with --raw
    #[arg(long, value_name = "FILE", conflicts_with_all = ["perfdata", "perfscript"])]
    unsymbolized: Option<PathBuf>,
    /// A finished profile, to be worked over
    #[arg(long, value_name = "FILE", conflicts_with_all = ["perfdata", "perfscript", "unsymbolized"])]
    sample_profile: Option<PathBuf>,
    /// Reads of data with their addresses, by perf record -d, or as text by perf report -D: of which type objects
    /// were that were called through (virtual tables)
    #[arg(long, value_name = "FILE")]
    data_accesses: Option<PathBuf>,
    /// Only samples of this process
    #[arg(long, value_name = "ID")]
    pid: Option<i64>,
    /// Only samples of these events
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    event: Vec<String>,
    /// Count the instructions of samples, not their branches
    #[arg(long)]
    ip_only: bool,
    /// Leave out call chains
    #[arg(long)]
    ignore_chains: bool,
    /// Events per sample
    #[arg(long, value_name = "N", default_value_t = 1)]
    period: u64,
    /// The program is a Linux kernel
    #[arg(long)]
    kernel: bool,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Program")]
struct Program {
    /// Go by source lines although there are probes
    #[arg(long)]
    lines: bool,
    /// Take debug information from this file
    #[arg(long, value_name = "FILE")]
    debug_file: Option<PathBuf>,
    /// Package of split debug information [default: FILE.dwp]
    #[arg(long, value_name = "FILE")]
    dwp: Option<PathBuf>,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Output")]
struct Form {
    /// Form of the profile
    #[arg(long, value_name = "FORM", default_value = "extbinary")]
    format: Encoding,
    /// Write counters of addresses, to be looked up later
    #[arg(long)]
    raw: bool,
    /// Addresses of --raw and --unsymbolized are absolute
    #[arg(long)]
    no_offset: bool,
    /// Addresses of --raw and --unsymbolized count from the first segment, not from the first with code
    #[arg(long)]
    first_loadable: bool,
    /// Hashes in place of names
    #[arg(long)]
    md5: bool,
    /// List all functions of the program too
    #[arg(long)]
    symbol_list: bool,
    /// Set sums to what the counts add up to
    #[arg(long)]
    update_totals: bool,
    /// Count zero for functions without samples
    #[arg(long)]
    fill_all: bool,
    /// Say how dense the profile is
    #[arg(long)]
    show_density: bool,
    /// Name every place that a warning is about
    #[arg(long)]
    detailed: bool,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Call chains")]
struct Chains {
    /// Keep chains of callers, do not make functions with inlined functions of them
    #[arg(long)]
    keep_chains: bool,
    /// Do not look for callers that are missing because they jumped on
    #[arg(long)]
    no_infer_frames: bool,
    /// Most jumps in a row between two frames
    #[arg(long, value_name = "N", default_value_t = u32::MAX)]
    search_depth: u32,
    /// Longest sequence of frames that is folded when it repeats; 0: none [default: any]
    #[arg(long, value_name = "N")]
    fold: Option<usize>,
    /// Most callers that are kept [default: all]
    #[arg(long, value_name = "N")]
    context_depth: Option<usize>,
    /// Fold chains that were hardly sampled [default: unless the pre-inliner runs]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    merge_cold: Option<bool>,
    /// How many frames these keep
    #[arg(long, value_name = "N", default_value_t = 1)]
    cold_depth: usize,
    /// Add inlined functions to their own profile too
    #[arg(long)]
    duplicate: bool,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Pre-inliner")]
struct PreInliner {
    /// Do not decide what is to be inlined
    #[arg(long)]
    no_preinline: bool,
    /// Decide as the compiler of the program had
    #[arg(long)]
    replay: bool,
    /// The cost of inlining is the number of locations, not bytes of code
    #[arg(long)]
    cost_by_locations: bool,
    /// Cost below which the hottest calls are inlined
    #[arg(long, value_name = "N", default_value_t = 1500)]
    hot_cost: u32,
    /// Cost below which cold calls are inlined
    #[arg(long, value_name = "N", default_value_t = 0)]
    cold_cost: u32,
    /// How many times its size a function may grow to
    #[arg(long, value_name = "N", default_value_t = 12)]
    growth: u32,
    /// Size to which a function may always grow
    #[arg(long, value_name = "N", default_value_t = 100)]
    least_size: u32,
    /// Size beyond which no function grows
    #[arg(long, value_name = "N", default_value_t = 50_000)]
    most_size: u32,
    /// Factor for what was inlined before
    #[arg(long, value_name = "N", default_value_t = 100)]
    again: u32,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Thresholds")]
struct Thresholds {
    /// Leave out functions that hardly ran
    #[arg(long)]
    trim_cold: bool,
    /// Counts from this on are hot [default: by --hot-share]
    #[arg(long, value_name = "COUNT")]
    hot_count: Option<u64>,
    /// Counts up to this are cold [default: by --cold-share]
    #[arg(long, value_name = "COUNT")]
    cold_count: Option<u64>,
    /// Hot are the counts that make up this share of all, in millionths
    #[arg(long, value_name = "N", default_value_t = 990_000)]
    hot_share: u32,
    /// Cold are the counts beyond this share of all, in millionths
    #[arg(long, value_name = "N", default_value_t = 999_999)]
    cold_share: u32,
    /// Warn if there are fewer samples for each location
    #[arg(long, value_name = "X", default_value_t = 50.0)]
    density: f64,
    /// The share of samples whose functions that is about, in millionths
    #[arg(long, value_name = "N", default_value_t = 990_000)]
    density_share: u32,
}

/// Form of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Encoding {
    /// Text
    Text,
    /// LLVM's extensible binary form
    Extbinary,
    /// LLVM's plain binary form: by lines, without chains
    Binary,
    /// AutoFDO's form for clang: by lines, without chains
    Gcov,
    /// AutoFDO's form for GCC 12 to 15 (-fauto-profile)
    Afdo,
}

impl Profgen {
    pub fn run(self, ui: &Ui) -> Result<ExitCode> {
        let mut watched = ui.phases("profgen");
        let input = Input::open(&self.file)?;
        let file = self.file.display().to_string();
        let rewritten;
        let windows = pe::recognise(input.bytes());
        let elf = if windows {
            rewritten = pe::as_elf(input.bytes()).with_context(|| file.clone())?;
            Elf::parse(&rewritten).with_context(|| file.clone())?
        } else {
            input.elf()?
        };
        let samples = &self.samples;
        let given = [
            &samples.perfdata,
            &samples.perfscript,
            &samples.unsymbolized,
            &samples.sample_profile,
        ];
        let Some(path) = given.into_iter().flatten().next() else {
            bail!(Usage(
                "no samples: one of --perfdata, --perfscript, --unsymbolized, --sample-profile is needed"
                    .to_owned()
            ));
        };
        let named = || path.display().to_string();
        input.must_differ_from(&self.output)?;
        let (mut script, source);
        let samples = if samples.perfscript.is_some() {
            script = open(path)?;
            SampleInput::Script(&mut *script)
        } else {
            source = Source::open(path)?;
            match given {
                [Some(_), ..] if any::format_of(path)? == ProfileFormat::PerfData => {
                    SampleInput::PerfData(&source)
                }
                [Some(_), ..] => {
                    let (counters, ips) = self.counters(path, &elf)?;
                    SampleInput::Counters(counters, ips)
                }
                [_, _, Some(_), _] => SampleInput::Raw(&source),
                _ => SampleInput::Finished(&source),
            }
        };
        watched.phases.begin("lines");
        let debug_input = self
            .program
            .debug_file
            .as_deref()
            .map(Input::open)
            .transpose()?;
        let debug_elf = debug_input.as_ref().map(Input::elf).transpose()?;
        let debug = debug_elf.as_ref().unwrap_or(&elf);
        let files = Files::open(debug, &self.file, self.program.dwp.as_deref())
            .with_context(|| file.clone())?;
        let lines = Lines::load_split(debug, &files).with_context(|| file.clone())?;
        let mut options = self.options(windows);
        if let Some(path) = &self.samples.data_accesses {
            let trace = Source::open(path)?;
            let named = || path.display().to_string();
            options.accesses = Accesses::read(&trace, &elf, &options.script).with_context(named)?;
        }
        let mut out = Vec::new();
        watched.phases.begin("samples");
        if let SampleInput::Script(_) = samples {
            let size = fs::metadata(path).map_or(0, |data| data.len());
            progress::expect(size as usize);
        }
        let report = generate(&elf, &lines, samples, &options, &mut out).with_context(named)?;
        watched.phases.begin("write");
        let output = || self.output.display().to_string();
        let written = fs::File::create(&self.output).with_context(output)?;
        let mut written = BufWriter::new(written);
        written.write_all(&out).with_context(output)?;
        written.flush().with_context(output)?;
        watched.finish();
        for warning in &report.warnings {
            ui.warn(warning);
        }
        for note in &report.notes {
            ui.say(note);
        }
        ui.say(format_args!(
            "{}: {} functions of {} samples",
            output(),
            report.functions,
            report.samples
        ));
        Ok(ExitCode::SUCCESS)
    }

    /// Counts between addresses, of any profile that has them; and whether they are of instructions alone.
    fn counters(&self, path: &Path, elf: &Elf<'_>) -> Result<(Counters, bool)> {
        let samples = &self.samples;
        let pid = samples.pid.map(i32::try_from).transpose();
        let options = samples::Options {
            pids: pid.context("--pid")?.into_iter().collect(),
            events: samples.event.clone(),
            ..samples::Options::default()
        };
        let profile = any::read_addresses(path, any::format_of(path)?, &options)?;
        let placer = Placer::of_file(&self.file, elf, &profile, false)?;
        let at = |place: Place| placer.address(place).unwrap_or(EXTERNAL);
        let mut counters = Counters::default();
        let ips = profile.traces().is_empty() || samples.ip_only;
        for ((from, to), counts) in profile.branches() {
            let (from, to) = (at(from), at(to));
            if from != EXTERNAL || to != EXTERNAL {
                counters.branch(from, to, counts.count);
            }
        }
        for ((start, end, _), counts) in profile.fall_throughs() {
            let end = Place {
                address: end,
                ..start
            };
            if let (Some(first), Some(last)) = (placer.address(start), placer.address(end)) {
                counters.run(first, last, counts.count);
            }
        }
        if ips {
            counters = Counters::default();
            for &(place, count) in profile.samples() {
                if let Some(address) = placer.address(place) {
                    counters.run(address, address, count);
                }
            }
        }
        Ok((counters, ips))
    }

    fn options(&self, windows: bool) -> Options {
        let (samples, form, chains) = (&self.samples, &self.form, &self.chains);
        let (inliner, thresholds) = (&self.preinliner, &self.thresholds);
        let file = self.file.file_name().unwrap_or_default();
        Options {
            format: match form.format {
                Encoding::Text => Format::Text,
                Encoding::Extbinary => Format::ExtBinary,
                Encoding::Binary => Format::Binary,
                Encoding::Gcov => Format::Gcov(gcov::Version::Llvm),
                Encoding::Afdo => Format::Gcov(gcov::Version::Gcc2),
            },
            hashes: form.md5,
            symbol_list: form.symbol_list,
            accesses: Accesses::default(),
            vtables_in_binary: samples.data_accesses.is_some(),
            raw: form.raw,
            use_offset: !form.no_offset,
            first_loadable: form.first_loadable,
            by_lines: self.program.lines,
            script: postlink_profgen::ScriptOptions {
                file: file.to_string_lossy().into_owned(),
                pid: samples.pid,
                events: samples.event.clone(),
                ip_only: samples.ip_only,
                period: samples.period,
                ignore_chains: samples.ignore_chains,
                kernel: samples.kernel,
                windows,
                branches_only: false,
            },
            update_totals: form.update_totals,
            fill_all: form.fill_all,
            trim_cold: thresholds.trim_cold,
            summary: summary::Limits {
                hot_count: thresholds.hot_count,
                cold_count: thresholds.cold_count,
                hot_cutoff: thresholds.hot_share,
                cold_cutoff: thresholds.cold_share,
            },
            limits: ContextLimits {
                fold: chains.fold,
                depth: chains.context_depth,
                unsymbolized_depth: None,
            },
            infer_frames: !chains.no_infer_frames,
            search_depth: chains.search_depth,
            merge_cold: chains.merge_cold,
            cold_depth: chains.cold_depth,
            preinliner: (!inliner.no_preinline).then_some(preinline::Options {
                replay: inliner.replay,
                hot: inliner.hot_cost,
                cold: inliner.cold_cost,
                growth: inliner.growth,
                least: inliner.least_size,
                most: inliner.most_size,
                again: inliner.again,
                order_cycles: true,
            }),
            cost_by_bytes: !inliner.cost_by_locations,
            nested: !chains.keep_chains,
            duplicate: chains.duplicate,
            show_density: form.show_density,
            density_threshold: thresholds.density,
            density_cutoff: thresholds.density_share,
            detailed: form.detailed,
        }
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
