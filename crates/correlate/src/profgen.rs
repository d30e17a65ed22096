//! From a binary and its samples to a profile: the whole road, with everything that can be chosen on it.

use std::io::Write;
use std::path::Path;

use postlink_image::elf::{Elf, SymbolTable};
use postlink_profile::perf_data::PerfData;
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use crate::FormatError;
use crate::context::{self, Cold};
use crate::counters::{Counters, RawPart, read_raw};
use crate::dwarf::Lines;
use crate::flat;
use crate::probe::{self, Loaded};
use crate::program::{EXTERNAL, Program};
use crate::sample::summary::Summary;
use crate::sample::{Function, Names, Profile, extbinary, text};
use crate::script::{self, Branch, Sample, Script};
use crate::unwind::{ByAddress, ByLocation, Limits, Unwinder, by_location, cut, fold};

/// Samples, as they come.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// The text of `perf script`.
    Script(&'a [u8]),
    /// A file by `perf record`.
    PerfData(&'a [u8]),
    /// A raw profile.
    Raw(&'a [u8]),
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
}

/// What is wanted.
#[derive(Clone, Debug)]
pub struct Options {
    /// Form of the output.
    pub format: Format,
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
    /// Leave out functions below the cold threshold.
    pub trim_cold: bool,
    /// The cold threshold, if it is not to be found from the profile.
    pub cold_count: Option<u64>,
    /// The hot threshold likewise: contexts below it are folded.
    pub hot_count: Option<u64>,
    /// How chains of callers become keys.
    pub limits: Limits,
    /// Fold contexts that were hardly sampled into shorter ones.
    pub merge_cold: bool,
    /// How many frames these keep.
    pub cold_depth: usize,
    /// The pre-inliner or nesting is wanted. Neither exists yet: there is a warning, and contexts stay as they were sampled.
    pub preinline: bool,
    /// Say how dense the profile is.
    pub show_density: bool,
    /// Warn if the density is below this.
    pub density_threshold: f64,
    /// The share of the sum that the density is about, in millionths.
    pub density_cutoff: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            format: Format::default(),
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
            cold_count: None,
            hot_count: None,
            limits: Limits {
                fold: None,
                depth: None,
            },
            merge_cold: true,
            cold_depth: 1,
            preinline: false,
            show_density: false,
            density_threshold: 50.0,
            density_cutoff: 990_000,
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
}

/// Makes a profile (or a raw one) and writes it. `debug` is where debug information comes from, mostly the binary itself.
///
/// # Errors
/// Input that cannot be read, or that this version has no way to use; output that cannot be written.
pub fn run(
    elf: &Elf<'_>,
    debug: &Elf<'_>,
    input: Input<'_>,
    options: &Options,
    out: &mut impl Write,
) -> Result<Report, FormatError> {
    let mut report = Report::default();
    let lines = Lines::load(debug)?;
    if let (count @ 1.., Some(reason)) = &lines.unreadable {
        report.warnings.push(format!(
            "{count} units of debug information cannot be read: {reason}"
        ));
    }
    let program = Program::new(elf, &lines);
    let loaded = if options.by_lines {
        None
    } else {
        probe::load(elf)?
    };
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
        lines: &lines,
        loaded: loaded.as_ref(),
        flow_sensitive,
    };
    let failed =
        |error: std::io::Error| FormatError::new(format!("cannot write the profile: {error}"));
    let script = match input {
        Input::Finished(bytes) => {
            let profile = match extbinary::recognise(bytes) {
                true => extbinary::read(bytes)?,
                false => text::read(bytes)?,
            };
            return finish(profile, &lines, options, report, out);
        }
        Input::Raw(bytes) => {
            let raw = read_raw(bytes, base)?;
            let profile = if raw.iter().any(|part| part.0.is_some()) {
                from_raw_chains(&file, raw, base, options, &mut report)?
            } else {
                let mut all = Counters::default();
                raw.into_iter().for_each(|part| all.absorb(part.1));
                file.flat(&all, options)
            };
            return finish(profile, &lines, options, report, out);
        }
        Input::Script(bytes) => script::read(bytes, &program, &options.script)?,
        Input::PerfData(bytes) => recorded(bytes, elf, &program, &options.script)?,
    };
    report.warnings.extend(script.warnings.iter().cloned());
    report.mappings.clone_from(&script.mappings);
    if let Some(place) = script.bad_returns.first() {
        report.warnings.push(format!(
            "Truncated stack sample due to invalid return address at 0x{place:x}, likely caused by frame pointer omission"
        ));
    }
    if script.has_chains && !options.script.ignore_chains {
        return with_chains(&file, &script, base, options, report, out);
    }
    let counters = count(&program, &script, options.script.ip_only);
    if counters.runs.is_empty() && counters.branches.is_empty() {
        report
            .warnings
            .push("No samples in perf script!".to_owned());
    }
    if options.raw {
        counters.write(base, "", out).map_err(failed)?;
        return Ok(report);
    }
    let profile = file.flat(&counters, options);
    finish(profile, &lines, options, report, out)
}

/// What is known of the binary.
struct Binary<'a, 'd> {
    program: &'a Program<'d>,
    lines: &'a Lines<'d>,
    loaded: Option<&'a Loaded<'d>>,
    flow_sensitive: bool,
}

impl Binary<'_, '_> {
    fn flat(&self, counters: &Counters, options: &Options) -> Profile {
        let how = flat::Options {
            fill_all: options.fill_all,
            ip_only: options.script.ip_only,
            flow_sensitive: self.flow_sensitive,
        };
        match self.loaded {
            Some(loaded) => flat::by_probes(self.program, loaded, counters, how),
            None => flat::by_lines(self.program, self.lines, counters, how),
        }
    }

    fn by_address(
        &self,
        loaded: &Loaded<'_>,
        counters: &ByAddress,
        options: &Options,
        report: &mut Report,
    ) -> Profile {
        let (profile, truncated) =
            context::by_probes(self.program, loaded, counters, options.limits);
        if truncated > 0 {
            report.warnings.push(format!(
                "{:.2}%({truncated}/{}) of contexts are truncated due to missing probe for call instruction.",
                truncated as f64 * 100.0 / counters.len().max(1) as f64,
                counters.len()
            ));
        }
        profile
    }
}

/// Folds and cuts keys of addresses.
fn limited(counters: ByAddress, limits: Limits) -> ByAddress {
    let mut all = ByAddress::default();
    for (mut chain, counters) in counters {
        fold(&mut chain, limits.fold);
        cut(&mut chain, limits.depth);
        all.entry(chain).or_default().absorb(counters);
    }
    all
}

/// Samples with call chains: counters by chain, and a context-sensitive profile.
fn with_chains(
    file: &Binary<'_, '_>,
    script: &Script,
    base: u64,
    options: &Options,
    mut report: Report,
    out: &mut impl Write,
) -> Result<Report, FormatError> {
    let samples: Vec<(&Sample, &u64)> = script.samples.iter().collect();
    let lines = file.loaded.is_none().then_some(file.lines);
    let counters = samples
        .par_chunks(4096)
        .map(|samples| {
            let mut unwinder = Unwinder {
                program: file.program,
                lines,
                counters: ByAddress::default(),
            };
            samples
                .iter()
                .for_each(|(sample, count)| unwinder.add(sample, **count));
            unwinder.counters
        })
        .reduce(ByAddress::default, |mut a, b| {
            b.into_iter()
                .for_each(|(chain, counters)| a.entry(chain).or_default().absorb(counters));
            a
        });
    let mut names = Names::default();
    let mut raw: Vec<(Vec<u8>, &Counters)> = Vec::new();
    let profile = match file.loaded {
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
            context::by_lines(
                file.program,
                file.lines,
                &counters,
                names,
                file.flow_sensitive,
            )
        }
    };
    finish(profile, file.lines, options, report, out)
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
) -> Result<Profile, FormatError> {
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
            let context = match chain.is_empty() {
                true => Vec::new(),
                false => text::context(&chain, &mut names).ok_or_else(|| broken(&chain))?,
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
        None => context::by_lines(
            file.program,
            file.lines,
            &by_location,
            names,
            file.flow_sensitive,
        ),
    })
}

/// Adds up the samples.
fn count(program: &Program<'_>, script: &Script, ip_only: bool) -> Counters {
    let samples: Vec<(&Sample, &u64)> = script.samples.iter().collect();
    samples
        .par_chunks(4096)
        .map(|samples| {
            let mut counters = Counters::default();
            for &(sample, &count) in samples {
                match ip_only {
                    true => counters.run(sample.ip, sample.ip, count),
                    false => counters.stack(program, &sample.branches, count),
                }
            }
            counters
        })
        .reduce(Counters::default, |mut a, b| {
            a.absorb(b);
            a
        })
}

/// Reads a recording. Every process has its own mappings.
fn recorded(
    bytes: &[u8],
    elf: &Elf<'_>,
    program: &Program<'_>,
    options: &script::Options,
) -> Result<Script, FormatError> {
    let name = Path::new("perf.data");
    let bad = |error: postlink_profile::Error| FormatError::new(error.to_string());
    let data = PerfData::new(name, bytes).map_err(bad)?;
    let spaces = data.spaces();
    let wanted: Vec<bool> = spaces
        .modules()
        .iter()
        .map(|module| {
            let same_name =
                module.path.rsplit(|&byte| byte == b'/').next() == Some(options.file.as_bytes());
            same_name || (!module.build_id.is_empty() && Some(&module.build_id[..]) == elf.build_id)
        })
        .collect();
    let mut script = Script::default();
    if !wanted.contains(&true) {
        return Err(FormatError::new(
            "No relevant mmap event is found in perf data.",
        ));
    }
    let mut known: FxHashMap<Option<i32>, postlink_profile::spaces::Space<'_>> =
        FxHashMap::default();
    data.for_each_sample(name, |sample| {
        let pid = sample.pid.map(i64::from);
        let event = String::from_utf8_lossy(&sample.event);
        if options.pid.is_some_and(|wanted| pid != Some(wanted))
            || (!options.events.is_empty() && !options.events.iter().any(|wanted| *wanted == event))
        {
            return;
        }
        script.total += 1;
        let space = known
            .entry(sample.pid)
            .or_insert_with(|| spaces.process(sample.pid));
        let mut place = |address: u64| {
            let place = space.resolve(address, sample.time);
            if !wanted
                .get(place.module.0 as usize)
                .is_some_and(|wanted| *wanted)
            {
                return EXTERNAL;
            }
            let mut loads = elf.loads();
            let load = loads.find(|load| {
                load.offset <= place.address && place.address - load.offset < load.file_size
            });
            let address = load.map_or(EXTERNAL, |load| place.address - load.offset + load.addr);
            match program.is_code(address) {
                true => address,
                false => EXTERNAL,
            }
        };
        let mut read = Sample::default();
        // Without branches a sample still says where the program was.
        if options.ip_only {
            read.ip = sample.ip.map_or(EXTERNAL, &mut place);
            if read.ip == EXTERNAL {
                return;
            }
        } else {
            let both = sample.branches.iter().map(|b| Branch {
                from: place(b.from),
                to: place(b.to),
            });
            read.branches = both
                .filter(|b| b.from != EXTERNAL || b.to != EXTERNAL)
                .collect();
            if read.branches.is_empty() {
                script.outside += 1;
                return;
            }
        }
        *script.samples.entry(read).or_default() += 1;
    })
    .map_err(bad)?;
    Ok(script)
}

/// Names of functions that compilers make for initialisers: they say nothing about the source.
const AMBIGUOUS: [&[u8]; 2] = [b"__cxx_global_var_init", b"__tls_init"];

/// Works over a profile, and writes it.
fn finish(
    mut profile: Profile,
    lines: &Lines<'_>,
    options: &Options,
    mut report: Report,
    out: &mut impl Write,
) -> Result<Report, FormatError> {
    if options.update_totals {
        profile
            .functions
            .values_mut()
            .for_each(Function::recompute_totals);
    }
    let ambiguous = |name: &[u8]| AMBIGUOUS.iter().any(|prefix| name.starts_with(prefix));
    let names = &profile.names;
    profile.functions.retain(|context, _| {
        !context
            .last()
            .is_some_and(|leaf| ambiguous(names.get(leaf.name)))
    });
    let dropped: Vec<_> = names.ids().filter(|id| ambiguous(names.get(*id))).collect();
    if !dropped.is_empty() {
        profile
            .functions
            .values_mut()
            .for_each(|function| drop_inlinees(function, &dropped));
    }
    if profile.context_sensitive {
        if options.preinline {
            report.warnings.push(
                "the pre-inliner and nested profiles are not available: contexts stay as they were sampled".to_owned(),
            );
        }
        let threshold = options
            .hot_count
            .unwrap_or_else(|| Cold::threshold(&profile));
        Cold {
            threshold,
            merge: options.merge_cold,
            trim: options.trim_cold,
            depth: options.cold_depth,
        }
        .apply(&mut profile);
    } else if options.trim_cold {
        let cold = options
            .cold_count
            .unwrap_or_else(|| Summary::of(&profile).threshold(999_999));
        profile
            .functions
            .retain(|_, function| function.total >= cold);
    }
    density(&profile, options, &mut report);
    report.functions = profile.functions.len();
    let mut symbols: Vec<&[u8]> = Vec::new();
    if options.symbol_list {
        symbols = lines
            .ranges()
            .iter()
            .map(|range| crate::names::canonical(range.name))
            .collect();
        symbols.sort_unstable();
        symbols.dedup();
    }
    let written = match options.format {
        Format::Text => text::write(&profile, out),
        Format::ExtBinary => {
            let how = extbinary::Options {
                hashes: options.hashes,
                symbols: options.symbol_list.then_some(&symbols[..]),
            };
            extbinary::write(&profile, &how, out)
        }
    };
    written.map_err(|error| FormatError::new(format!("cannot write the profile: {error}")))?;
    Ok(report)
}

fn drop_inlinees(function: &mut Function, dropped: &[crate::sample::NameId]) {
    for functions in function.inlinees.values_mut() {
        functions.retain(|name, _| !dropped.contains(name));
        functions
            .values_mut()
            .for_each(|inlinee| drop_inlinees(inlinee, dropped));
    }
    function
        .inlinees
        .retain(|_, functions| !functions.is_empty());
}

/// How many samples there are for each location of the functions that matter.
fn density(profile: &Profile, options: &Options, report: &mut Report) {
    fn bodies(function: &Function) -> (u64, u64) {
        let mut sum = function
            .body
            .values()
            .fold(0u64, |sum, record| sum.saturating_add(record.count));
        let mut size = function.body.len() as u64;
        for inlinee in function
            .inlinees
            .values()
            .flat_map(|functions| functions.values())
        {
            let (more, places) = bodies(inlinee);
            sum = sum.saturating_add(more);
            size += places;
        }
        (sum, size)
    }
    let mut functions: Vec<(f64, u64)> = profile
        .functions
        .values()
        .map(bodies)
        .filter(|(_, size)| *size > 0)
        .map(|(sum, size)| (sum as f64 / size as f64, sum))
        .collect();
    functions.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let total: u128 = functions
        .iter()
        .map(|function| u128::from(function.1))
        .sum();
    let wanted = total * u128::from(options.density_cutoff) / 1_000_000;
    let (mut sum, mut density) = (0u128, 0.0);
    for (this, count) in functions {
        if sum >= wanted {
            break;
        }
        sum += u128::from(count);
        density = this;
    }
    if density == 0.0 {
        if options.show_density {
            report.notes.push(
                "Functions with density >= 0.0 account for 0.00% total sample counts.".to_owned(),
            );
        }
        return;
    }
    if density < options.density_threshold {
        report.warnings.push(format!(
            "Sample PGO is estimated to optimize better with {:.1}x more samples. Please consider increasing sampling rate or profiling for longer duration to get more samples.",
            options.density_threshold / density
        ));
    }
    if options.show_density {
        report.notes.push(format!(
            "Functions with density >= {density:.1} account for {:.2}% total sample counts.",
            options.density_cutoff as f64 / 10_000.0
        ));
    }
}
