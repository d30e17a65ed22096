//! From a binary and its samples to a profile: all steps, with their options.
//!
//! ```text
//!  script, perf.data ──► counters ──► (raw profile) ──► profile ──► finish ──► text, extbinary, binary
//! ```

mod finish;
mod record;

use std::io::{Read, Write};

use postlink_elf::elf::{Elf, SymbolTable};
use rustc_hash::FxHashSet;

use crate::FormatError;
use crate::accesses::Accesses;
use crate::context::frames::Frames;
use crate::context::{self, preinline};
use crate::context_key::{ByAddress, ByLocation, ContextLimits, by_location, cut, fold};
use crate::counters::{Counters, RawPart, read_raw_counters};
use crate::dwarf::Lines;
use crate::flat;
use crate::probe::{self, Loaded};
use crate::program::Program;
use crate::sample::{self, Names, Profile, gcov, summary, text};
use crate::script::{self, Script};
use crate::tally::How;

/// Samples, as they come.
pub enum Input<'a> {
    /// The text of `perf script`.
    Script(&'a mut (dyn Read + Send)),
    /// A file by `perf record`.
    PerfData(&'a [u8]),
    /// A raw profile.
    Raw(&'a [u8]),
    /// Runs and branches between addresses of the program as it is linked. Of instructions alone (the flag) each
    /// is a run.
    Counters(Counters, bool),
    /// A profile that is only to be worked over.
    Finished(&'a [u8]),
}

/// The form of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Text.
    Text,
    /// LLVM's extensible binary form.
    #[default]
    ExtBinary,
    /// LLVM's plain binary form: neither chains nor probes.
    Binary,
    /// AutoFDO's form: neither chains nor probes.
    Gcov(gcov::Version),
}

/// What is wanted.
#[derive(Clone, Debug)]
pub struct Options {
    /// Form of the output.
    pub format: Format,
    /// Virtual tables that were read, to be put into the profile; only by lines and without chains.
    pub accesses: Accesses,
    /// The extensible binary form has them too.
    pub vtables_in_binary: bool,
    /// Hashes in place of names.
    pub hashes: bool,
    /// List all functions of the program too.
    pub symbol_list: bool,
    /// Write a raw profile.
    pub raw: bool,
    /// Addresses of raw profiles are relative to the first segment with code (or the first segment).
    pub use_offset: bool,
    /// They are relative to the first segment of all.
    pub first_loadable: bool,
    /// Go by lines although there are probes.
    pub by_lines: bool,
    /// What of the samples counts.
    pub script: script::Options,
    /// Set sums to what the bodies hold.
    pub update_totals: bool,
    /// Count zero for functions without samples.
    pub fill_all: bool,
    /// Leave out functions below the cold threshold, and chains below the hot one.
    pub trim_cold: bool,
    /// Where hot and cold begin.
    pub summary: summary::Limits,
    /// How chains of callers become keys.
    pub limits: ContextLimits,
    /// Put callers into chains that are missing because they jumped on.
    pub infer_frames: bool,
    /// How many jumps in a row are looked for.
    pub search_depth: u32,
    /// Fold chains that were hardly sampled into shorter ones. `None`: unless the pre-inliner runs.
    pub merge_cold: Option<bool>,
    /// How many frames these keep.
    pub cold_depth: usize,
    /// Decide what is to be inlined, and keep only the chains of that.
    pub preinliner: Option<preinline::Options>,
    /// The cost of inlining is bytes of code, not the number of locations.
    pub cost_by_bytes: bool,
    /// Make functions with inlined functions of chains.
    pub nested: bool,
    /// Then add inlined functions to those that are alone too.
    pub duplicate: bool,
    /// Say how dense the profile is.
    pub show_density: bool,
    /// Warn if the density is below this.
    pub density_threshold: f64,
    /// The share of the sum that the density is about, in millionths.
    pub density_cutoff: u32,
    /// Name every place that a warning is about.
    pub detailed: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            format: Format::default(),
            accesses: Accesses::default(),
            vtables_in_binary: false,
            hashes: false,
            symbol_list: false,
            raw: false,
            use_offset: true,
            first_loadable: false,
            by_lines: false,
            script: script::Options::default(),
            update_totals: false,
            fill_all: false,
            trim_cold: false,
            summary: summary::Limits::default(),
            limits: ContextLimits {
                fold: None,
                depth: None,
                unsymbolized_depth: None,
            },
            infer_frames: true,
            search_depth: u32::MAX,
            merge_cold: None,
            cold_depth: 1,
            preinliner: Some(preinline::Options::default()),
            cost_by_bytes: true,
            nested: true,
            duplicate: false,
            show_density: false,
            density_threshold: 50.0,
            density_cutoff: 990_000,
            detailed: false,
        }
    }
}

/// What came of it, besides the output.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Things that the user should know.
    pub warnings: Vec<String>,
    /// What was asked to be shown.
    pub notes: Vec<String>,
    /// Every mapping in the samples: path, address.
    pub mappings: Vec<(String, u64)>,
    /// Functions in the profile.
    pub functions: usize,
    /// Samples that were read.
    pub samples: u64,
}

impl Report {
    /// Warns of a share, unless there is nothing to warn of.
    fn share(&mut self, part: u64, whole: u64, what: &str) {
        if part > 0 && whole > 0 {
            self.warnings.push(format!(
                "{:.2}%({part}/{whole}) {what}",
                part as f64 * 100.0 / whole as f64
            ));
        }
    }
}

/// What is known of the binary.
struct Binary<'a, 'd> {
    program: &'a Program<'d>,
    lines: &'a Lines<'d>,
    loaded: Option<&'a Loaded<'d>>,
    flow_sensitive: bool,
}

/// A profile before the last steps, and the functions of the program that it is about.
struct Made {
    profile: Profile,
    functions: FxHashSet<u32>,
}

/// Makes a profile (or a raw one) and writes it. `lines` is the debug information, mostly the binary's own.
///
/// # Errors
/// Input that cannot be read, or that this version has no way to use; output that cannot be written.
pub fn generate(
    elf: &Elf<'_>,
    lines: &Lines<'_>,
    input: Input<'_>,
    options: &Options,
    out: &mut impl Write,
) -> Result<Report, FormatError> {
    let mut report = Report::default();
    report.warnings.extend(lines.warnings());
    let program = Program::new(elf, lines);
    if program.same_start > 0 {
        report.warnings.push(format!(
            "Found {} start addresses with multiple symbols",
            program.same_start
        ));
    }
    report.share(
        program.without_entry as u64,
        program.ranges().len() as u64,
        "of functions failed to determine function entry due to inconsistent name from symbol table and dwarf info.",
    );
    let loaded = if options.by_lines {
        None
    } else {
        probe::load(elf)?
    };
    if loaded.is_some() {
        options.accesses.refuse("probes: go by lines")?;
    }
    let flow_sensitive = elf
        .symbols(SymbolTable::Static)
        .iter()
        .any(|symbol| symbol.name == flat::FLOW_SENSITIVE_SYMBOL);
    let base = match (options.use_offset, options.first_loadable) {
        (false, _) => 0,
        (true, true) => program.first_loadable,
        (true, false) => program.base(),
    };
    let file = Binary {
        program: &program,
        lines,
        loaded: loaded.as_ref(),
        flow_sensitive,
    };
    let how = How {
        program: &program,
        chains: false,
        lines: file.loaded.is_none().then_some(lines),
        ip_only: options.script.ip_only,
        period: options.script.period,
    };
    let script = match input {
        Input::Finished(bytes) => {
            let made = file.of_finished(sample::read(bytes)?);
            return finish::finish(&file, made, options, report, out);
        }
        Input::Raw(bytes) => {
            let raw = read_raw_counters(bytes, base)?;
            let made = if raw.iter().any(|part| part.0.is_some()) {
                from_raw_chains(&file, raw, base, options, &mut report)?
            } else {
                let mut all = Counters::default();
                raw.into_iter().for_each(|part| all.absorb(part.1));
                file.flat(&all, options)
            };
            return finish::finish(&file, made, options, report, out);
        }
        Input::Counters(counters, ips) => {
            let mut options = options.clone();
            options.script.ip_only = ips;
            let made = file.flat(&counters, &options);
            return finish::finish(&file, made, &options, report, out);
        }
        Input::Script(input) => script::read(input, &how, &options.script)?,
        Input::PerfData(bytes) => record::read(bytes, elf, &how, &options.script)?,
    };
    warn(&program, &script, options, &mut report);
    if script.chains {
        options
            .accesses
            .refuse("chains of callers: leave them out")?;
        return with_chains(&file, script, base, options, report, out);
    }
    let counters = &script.total.flat;
    if options.raw {
        counters
            .write(base, "", out)
            .map_err(|error| FormatError::new(format!("cannot write the profile: {error}")))?;
        return Ok(report);
    }
    let mut options = options.clone();
    options.script.ip_only = script.ips;
    let made = file.flat(counters, &options);
    finish::finish(&file, made, &options, report, out)
}

/// Says what is odd about samples.
fn warn(program: &Program<'_>, script: &Script, options: &Options, report: &mut Report) {
    report.warnings.extend(script.warnings.iter().cloned());
    report.mappings.clone_from(&script.mappings);
    let notes = &script.total.notes;
    report.samples = notes.samples;
    if script.ips && !options.script.ip_only {
        report.warnings.push(
            "the samples have no branches: instructions are counted, and the profile is flat"
                .to_owned(),
        );
    }
    report.share(
        notes.leaf_outside,
        notes.samples,
        "of samples have leaf external frame in call stack.",
    );
    if options.detailed {
        let mut places: Vec<u64> = notes.bad_returns.iter().copied().collect();
        places.sort_unstable();
        report.warnings.extend(places.iter().map(|place| {
            format!(
                "Truncated stack sample due to invalid return address at 0x{place:x}, likely caused by frame pointer omission"
            )
        }));
    }
    report.share(
        notes.truncated,
        notes.samples,
        "of truncated stack samples due to invalid return address, likely caused by frame pointer omission.",
    );
    if script.total.runs == 0 {
        report
            .warnings
            .push("No samples in perf script!".to_owned());
    }
    warn_of_runs(program, script, options, report);
    for (part, what) in [
        (
            notes.odd_outside_frames,
            "of branches'source is a call instruction but doesn't match call frame stack, likely due to unwinding error of external frame.",
        ),
        (
            notes.outside_runs.saturating_mul(2),
            "of branches containing paired external address.",
        ),
        (
            notes.unpaired,
            "of branches containing external address but doesn't have another external address to pair, likely due to interrupt jmp or broken perf script.",
        ),
        (
            notes.odd_frames,
            "of branches'source is a call instruction but doesn't match call frame stack, likely due to frame in prolog/epilog.",
        ),
    ] {
        report.share(part, notes.branches, what);
    }
}

/// Says what is odd about runs between branches.
fn warn_of_runs(program: &Program<'_>, script: &Script, options: &Options, report: &mut Report) {
    let total = &script.total;
    let (mut off, mut nowhere, mut across, mut bogus) = (0u64, 0u64, 0u64, 0u64);
    let mut detailed = Vec::new();
    let possible = total.flat.runs.iter().map(|(key, count)| (*key, *count));
    for ((first, last), count) in possible.chain(total.impossible.iter().copied()) {
        if !program.is_code(first) && !program.is_code(last) {
            continue;
        }
        let mut say = |sum: &mut u64, what: &str| {
            *sum = sum.saturating_add(count);
            if options.detailed {
                detailed.push(format!("[{first:8x},{last:8x}]: {what}"));
            }
        };
        if !script.ips && (!program.is_code(first) || !program.is_transfer(last)) {
            say(
                &mut off,
                "Range is not on instruction boundary, likely due to profile and binary mismatch.",
            );
        }
        let Some(range) = program.range_of(first) else {
            say(
                &mut nowhere,
                "Range does not belong to any functions, likely from PLT, .init or .fini section.",
            );
            continue;
        };
        if last >= range.end {
            say(
                &mut across,
                "Fall through range should not cross function boundaries, likely due to profile and binary mismatch.",
            );
        }
        if program.is_code(first) && program.is_code(last) && !program.falls_through(first, last) {
            say(
                &mut bogus,
                "Range start is after or too far from range end.",
            );
        }
    }
    detailed.sort_unstable();
    report.warnings.extend(detailed);
    for (part, what) in [
        (
            off,
            "of samples are from ranges that are not on instruction boundary.",
        ),
        (
            nowhere,
            "of samples are from ranges that do not belong to any functions.",
        ),
        (
            across,
            "of samples are from ranges that do cross function boundaries.",
        ),
        (
            bogus,
            "of samples are from ranges that have range start after or too far from range end acrossing the unconditinal jmp.",
        ),
    ] {
        report.share(part, total.runs, what);
    }
}

impl Binary<'_, '_> {
    fn flat(&self, counters: &Counters, options: &Options) -> Made {
        let how = flat::Options {
            fill_all: options.fill_all,
            ip_only: options.script.ip_only,
            flow_sensitive: self.flow_sensitive,
        };
        let profile = match self.loaded {
            Some(loaded) => flat::by_probes(self.program, loaded, counters, how),
            None => {
                let mut profile = flat::by_lines(self.program, self.lines, counters, how);
                flat::add_accesses(
                    self.lines,
                    &options.accesses,
                    how.flow_sensitive,
                    &mut profile,
                );
                profile
            }
        };
        Made {
            profile,
            functions: FxHashSet::default(),
        }
    }

    /// The functions that counters are about.
    fn functions<'c>(
        &self,
        counters: impl Iterator<Item = (Option<&'c [u64]>, &'c Counters)>,
    ) -> FxHashSet<u32> {
        let mut functions = FxHashSet::default();
        for (chain, counters) in counters {
            let runs = counters.runs.keys().map(|run| run.0);
            let branches = counters.branches.keys().flat_map(|&(from, to)| [from, to]);
            for address in chain
                .unwrap_or_default()
                .iter()
                .copied()
                .chain(runs)
                .chain(branches)
            {
                functions.extend(self.program.function_of(address));
            }
        }
        functions
    }

    /// The functions of the program that a profile names.
    fn of_finished(&self, profile: Profile) -> Made {
        let named: FxHashSet<&[u8]> = profile
            .functions
            .keys()
            .flatten()
            .map(|step| profile.names.get(step.name))
            .collect();
        let functions = self
            .program
            .ranges_with_functions()
            .filter(|(range, _)| named.contains(range.name))
            .map(|(_, function)| function)
            .collect();
        Made { profile, functions }
    }

    fn by_address(
        &self,
        loaded: &Loaded<'_>,
        counters: &ByAddress,
        options: &Options,
        report: &mut Report,
    ) -> Made {
        let frames = options
            .infer_frames
            .then(|| Frames::new(self.program, counters, options.search_depth));
        let (profile, truncated) =
            context::by_probes(self.program, loaded, counters, options.limits, frames);
        report.share(
            truncated as u64,
            counters.len() as u64,
            "of profiled contexts are truncated due to missing probe for call instruction.",
        );
        let counters = counters
            .iter()
            .map(|(chain, counters)| (Some(&chain[..]), counters));
        Made {
            profile,
            functions: self.functions(counters),
        }
    }

    fn by_location(&self, counters: &ByLocation, names: Names, options: &Options) -> Made {
        let functions = self.functions(counters.values().map(|entry| (None, &entry.0)));
        Made {
            profile: context::by_lines(
                self.program,
                self.lines,
                counters,
                names,
                self.flow_sensitive,
                options.update_totals,
            ),
            functions,
        }
    }
}

/// Folds and cuts keys of addresses.
fn limited(counters: ByAddress, limits: ContextLimits) -> ByAddress {
    let mut all = ByAddress::default();
    for (mut chain, counters) in counters {
        fold(&mut chain, limits.fold);
        cut(&mut chain, limits.unsymbolized_depth.or(limits.depth));
        all.entry(chain).or_default().absorb(counters);
    }
    all
}

/// Samples with call chains: a context-sensitive profile.
fn with_chains(
    file: &Binary<'_, '_>,
    script: Script,
    base: u64,
    options: &Options,
    mut report: Report,
    out: &mut impl Write,
) -> Result<Report, FormatError> {
    let counters = script.total.by_chain;
    let mut names = Names::default();
    let mut raw: Vec<(Vec<u8>, &Counters)> = Vec::new();
    let made = match file.loaded {
        Some(loaded) => {
            let counters = limited(counters, options.limits);
            if options.raw {
                for (chain, counters) in &counters {
                    let text: Vec<String> = chain
                        .iter()
                        .map(|frame| format!("0x{:x}", frame.wrapping_sub(base)))
                        .collect();
                    raw.push((text.join(" @ ").into_bytes(), counters));
                }
                return write_raw(raw, base, report, out);
            }
            file.by_address(loaded, &counters, options, &mut report)
        }
        None => {
            let counters = by_location(
                counters,
                file.lines,
                options.limits,
                file.flow_sensitive,
                &mut names,
            );
            if options.raw {
                for (chain, (counters, _)) in &counters {
                    raw.push((text::context_text(&names, chain), counters));
                }
                return write_raw(raw, base, report, out);
            }
            file.by_location(&counters, names, options)
        }
    };
    finish::finish(file, made, options, report, out)
}

fn write_raw(
    mut raw: Vec<(Vec<u8>, &Counters)>,
    base: u64,
    report: Report,
    out: &mut impl Write,
) -> Result<Report, FormatError> {
    raw.sort_by(|a, b| a.0.cmp(&b.0));
    let put = || {
        for (chain, counters) in raw {
            out.write_all(b"[")?;
            out.write_all(&chain)?;
            out.write_all(b"]\n")?;
            counters.write(base, "  ", out)?;
        }
        Ok(())
    };
    put().map_err(|error: std::io::Error| {
        FormatError::new(format!("cannot write the profile: {error}"))
    })?;
    Ok(report)
}

/// A raw profile with chains of callers.
fn from_raw_chains(
    file: &Binary<'_, '_>,
    raw: Vec<RawPart>,
    base: u64,
    options: &Options,
    report: &mut Report,
) -> Result<Made, FormatError> {
    let broken = |chain: &[u8]| {
        FormatError::new(format!(
            "chain of callers [{}] is broken",
            String::from_utf8_lossy(chain)
        ))
    };
    let (mut by_address, mut by_location) = (ByAddress::default(), ByLocation::default());
    let mut names = Names::default();
    for (chain, counters) in raw {
        let chain = chain.unwrap_or_default();
        if file.loaded.is_some() {
            let mut frames = Vec::new();
            for frame in chain
                .split(|&byte| byte == b'@')
                .map(<[u8]>::trim_ascii)
                .filter(|frame| !frame.is_empty())
            {
                let address = frame
                    .strip_prefix(b"0x")
                    .and_then(|digits| crate::counters::parse(digits, 16));
                frames.push(address.ok_or_else(|| broken(&chain))?.wrapping_add(base));
            }
            by_address.entry(frames).or_default().absorb(counters);
        } else {
            let context = if chain.is_empty() {
                Vec::new()
            } else {
                text::context(&chain, &mut names).ok_or_else(|| broken(&chain))?
            };
            by_location.entry(context).or_default().0.absorb(counters);
        }
    }
    Ok(match file.loaded {
        Some(loaded) => file.by_address(
            loaded,
            &limited(by_address, options.limits),
            options,
            report,
        ),
        None => file.by_location(&by_location, names, options),
    })
}
