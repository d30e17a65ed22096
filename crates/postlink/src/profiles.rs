//! Profiles of any format, and what becomes of them with the binary at hand.
//!
//! | from \ to | counters | addresses | names (fdata) | blocks (YAML) |
//! |---|---|---|---|---|
//! | counters | as they are | | solved by the rewriter | likewise |
//! | addresses | | as they are | aggregated | aggregated, then by blocks |
//! | names | | | as they are | by blocks |
//! | blocks | | | by names | as they are |
//! | source lines | | by debug information or probes | likewise, aggregated | likewise |
//! | steps (traces) | | by the instructions of the binary | likewise, aggregated | likewise |
//!
//! Everything but the diagonal takes the binary.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use postlink_aggregate::{self as aggregate, Binary, yaml};
use postlink_elf::elf::Elf;
use postlink_isa::{Isa, with_isa};
use postlink_profgen::dwarf::Lines;
use postlink_profgen::dwarf::split::Files;
use postlink_profgen::{sample, spread};
use postlink_profile::address::{AddressProfile, Collector, Module, ModuleId, Place};
use postlink_profile::any::{self, Any, Model};
use postlink_profile::bolt_yaml::BoltYaml;
use postlink_profile::preaggregated::{self, Dialect};
use postlink_profile::samples::Options;
use postlink_profile::symbolic::SymbolicProfile;
use postlink_profile::windows::Windows;
use postlink_profile::{Source, Weighted, bolt_yaml, fdata, plprof};
use postlink_rewrite::{
    BoltBlocks, Cfg, CfgScratch, NonlocalExits, Program, build_cfg, export, hashes, identity,
};
use rustc_hash::FxHashMap;

use crate::errors::Usage;
use crate::input::{Input, Parsed};
use crate::options::Relocations;
use crate::ui::{Ui, count};

/// Formats that can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Target {
    /// Counts by function and offset
    Fdata,
    /// Counts by function and block (BOLT YAML)
    Yaml,
    /// Counts by address (perf2bolt -pa)
    Preaggregated,
    /// Merged counters of an instrumented program
    Plprof,
}

impl Target {
    /// By the extension of the output's name.
    pub fn of(path: &Path) -> Option<Target> {
        match path.extension()?.to_str()? {
            "fdata" => Some(Target::Fdata),
            "yaml" | "yml" => Some(Target::Yaml),
            "preagg" | "pa" | "txt" => Some(Target::Preaggregated),
            "plprof" => Some(Target::Plprof),
            _ => None,
        }
    }

    /// The model that is written to it.
    pub fn model(self) -> Model {
        match self {
            Target::Fdata => Model::Symbols,
            Target::Yaml => Model::Blocks,
            Target::Preaggregated => Model::Addresses,
            Target::Plprof => Model::Counters,
        }
    }
}

/// How profiles are read and converted.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// The binary they are of.
    pub binary: Option<PathBuf>,
    /// Which relocations of it are used.
    pub relocations: Relocations,
    /// What of recordings is wanted.
    pub samples: Options,
    /// What of aggregation may be chosen.
    pub aggregate: aggregate::Options,
}

/// Profiles as the command line names them.
pub fn weighted(files: &[String]) -> Result<Vec<Weighted>> {
    Ok(files
        .iter()
        .map(|file| Weighted::parse(file))
        .collect::<Result<Vec<_>, _>>()?)
}

/// The binary, opened.
struct Opened<'d> {
    elf: &'d Elf<'d>,
    path: &'d Path,
}

impl Opened<'_> {
    fn binary(&self) -> Result<Binary<'_, '_>> {
        Ok(Binary::new(self.path, self.elf)?)
    }
}

/// Reads profiles, adds them up, and makes the model of them that is wanted; without a wish, that of the files.
///
/// Files of several models meet in the model of names.
pub fn read(ui: &Ui, inputs: &[Weighted], wanted: Option<Model>, reading: &Reading) -> Result<Any> {
    read_of(ui, inputs, wanted, reading, None)
}

/// The same, of a binary that was read already.
pub fn read_of(
    ui: &Ui,
    inputs: &[Weighted],
    wanted: Option<Model>,
    reading: &Reading,
    binary: Option<&Parsed<'_>>,
) -> Result<Any> {
    let models = any::models(inputs)?;
    let Some(&first) = models.first() else {
        bail!(Usage("no profile".into()));
    };
    let mixed = models.iter().any(|model| *model != first);
    let model = wanted.unwrap_or(match (mixed, first) {
        (true, _) => Model::Symbols,
        // Sample profiles and traces are of no use as they are.
        (false, first) if first.is_by_address_with_binary() => Model::Addresses,
        (false, first) => first,
    });
    if !mixed && model == first {
        return merged(ui, inputs, model, reading);
    }
    let (input, parsed);
    let binary = match (binary, &reading.binary) {
        (Some(binary), _) => binary,
        (None, Some(path)) => {
            input = Input::open(path)?.using(reading.relocations)?;
            parsed = input.parse()?;
            &parsed
        }
        (None, None) if mixed => bail!(Usage(format!(
            "{}: holds {}, and {}: {first}: adding them up needs --binary",
            inputs[models.iter().position(|m| *m != first).unwrap_or(0)]
                .path
                .display(),
            models
                .iter()
                .find(|m| **m != first)
                .copied()
                .unwrap_or(first),
            inputs[0].path.display(),
        ))),
        (None, None) => bail!(Usage(format!(
            "{}: converting {first} to {model} needs --binary",
            inputs[0].path.display()
        ))),
    };
    let opened = Opened {
        elf: &binary.elf,
        path: &binary.path,
    };
    if model == Model::Blocks && !mixed && first == Model::Counters {
        let Any::Counters(profile) = merged(ui, inputs, first, reading)? else {
            bail!("internal error: counters expected");
        };
        let name = opened.path.as_os_str().as_encoded_bytes();
        return Ok(Any::Blocks(export::yaml(opened.elf, &*profile, name)?));
    }
    if model == Model::Addresses && !mixed && first.is_by_address_with_binary() {
        return Ok(Any::Addresses(by_address(first, inputs, &opened, reading)?));
    }
    if !matches!(model, Model::Symbols | Model::Blocks) {
        bail!(
            "{}: {first} cannot become {model}",
            inputs[0].path.display()
        );
    }
    let mut total: Option<(PathBuf, SymbolicProfile)> = None;
    let mut kinds = models.clone();
    kinds.sort_unstable();
    kinds.dedup();
    for kind in kinds {
        let group: Vec<Weighted> = inputs
            .iter()
            .zip(&models)
            .filter(|(_, model)| **model == kind)
            .map(|(input, _)| input.clone())
            .collect();
        let name = group.first().map(|g| g.path.clone()).unwrap_or_default();
        let part = match kind {
            Model::Lines | Model::Steps => {
                Any::Addresses(by_address(kind, &group, &opened, reading)?)
            }
            _ => merged(ui, &group, kind, reading)?,
        };
        let symbols = symbolic(ui, part, &opened, reading)
            .with_context(|| format!("with the profile {}", name.display()))?;
        total = Some(match total {
            None => (name, symbols),
            Some((before, sum)) => {
                let sum = sum.merge(symbols, (&before, &name))?;
                (before, sum)
            }
        });
    }
    let (_, symbols) = total.ok_or_else(|| anyhow!("no profile"))?;
    if model == Model::Symbols {
        return Ok(Any::Symbols(symbols));
    }
    let (yaml, left) = blocks(&opened.binary()?, &symbols)?;
    if left.counts > 0 {
        ui.warn(format_args!(
            "{} counts do not fit the code and were left out",
            count(left.counts)
        ));
    }
    if left.unknown > 0 {
        ui.warn(format_args!(
            "{} functions of the profile are not in the binary and were left out",
            count(left.unknown)
        ));
    }
    Ok(Any::Blocks(yaml))
}

/// Samples by address of files that hold them, and of those that do with the binary, added up.
pub fn addresses(
    inputs: &[Weighted],
    elf: &Elf<'_>,
    path: &Path,
    reading: &Reading,
) -> Result<AddressProfile> {
    let opened = Opened { elf, path };
    let models = any::models(inputs)?;
    let of = |wanted: Option<Model>| -> Vec<Weighted> {
        let kind = |model: &Model| Some(*model).filter(|model| model.is_by_address_with_binary());
        let files = inputs.iter().zip(&models);
        let files = files.filter(|(_, model)| kind(model) == wanted);
        files.map(|(input, _)| input.clone()).collect()
    };
    let mut sum = any::merge_addresses(&of(None), &reading.samples)?;
    for kind in [Model::Lines, Model::Steps] {
        let files = of(Some(kind));
        if !files.is_empty() {
            sum = sum.merge(by_address(kind, &files, &opened, reading)?);
        }
    }
    Ok(sum)
}

/// Sample profiles or traces as samples by address, added up.
fn by_address(
    model: Model,
    inputs: &[Weighted],
    opened: &Opened<'_>,
    reading: &Reading,
) -> Result<AddressProfile> {
    match model {
        Model::Steps => of_steps(inputs, opened, reading),
        _ => of_lines(inputs, opened),
    }
}

/// Branches and runs of traces, added up.
fn of_steps(inputs: &[Weighted], opened: &Opened<'_>, reading: &Reading) -> Result<AddressProfile> {
    let own = identity(opened.elf);
    let mut sum = AddressProfile::default();
    for input in inputs {
        let windows = Windows::read(&input.path)?;
        if windows.identity != own && !reading.aggregate.ignore_build_id {
            bail!(
                "{}: the trace is of {}, {} is {own}: it was recorded with another version of the file (--ignore-build-id takes it nevertheless)",
                input.path.display(),
                windows.identity,
                opened.path.display()
            );
        }
        let mut profile = aggregate::steps::by_address(opened.path, opened.elf, &windows)?;
        if profile.traces().is_empty() {
            bail!(
                "{}: no branch of {} was executed in any window of the trace",
                input.path.display(),
                opened.path.display()
            );
        }
        profile.scale(input.weight);
        sum = sum.merge(profile);
    }
    Ok(sum)
}

/// Samples of instructions, as often as sample profiles say that their source lines ran, added up.
fn of_lines(inputs: &[Weighted], opened: &Opened<'_>) -> Result<AddressProfile> {
    let elf = opened.elf;
    let files = Files::open(elf, opened.path, None)?;
    let lines = Lines::load_split(elf, &files)?;
    let mut sum = Collector::default();
    // Weighed by instructions, as counts of them are.
    sum.events.insert(b"instructions".to_vec());
    for input in inputs {
        let named = || format!("{} with {}", input.path.display(), opened.path.display());
        let source = Source::open(&input.path)?;
        let profile = sample::read(&source).with_context(|| input.path.display().to_string())?;
        let counts = spread(elf, &lines, &profile).with_context(named)?;
        if counts.is_empty() {
            bail!("{}: no instruction is of a line of the profile", named());
        }
        for (address, count) in counts {
            let place = Place {
                module: ModuleId(0),
                address,
            };
            let count = count.saturating_mul(input.weight);
            sum.sample(place, count);
            sum.statistics.samples = sum.statistics.samples.saturating_add(count);
        }
    }
    Ok(sum.finish(&[Module::default()]))
}

/// Adds up files of one model.
fn merged(ui: &Ui, inputs: &[Weighted], model: Model, reading: &Reading) -> Result<Any> {
    if model == Model::Counters {
        let merged = postlink_profile::merge(inputs)?;
        for skipped in &merged.skipped {
            ui.warn(format_args!(
                "{}: holds no counts yet, left out",
                skipped.display()
            ));
        }
        return Ok(Any::Counters(Box::new(merged.profile)));
    }
    Ok(any::merge_of(model, inputs, &reading.samples)?)
}

fn symbolic(
    ui: &Ui,
    profile: Any,
    opened: &Opened<'_>,
    reading: &Reading,
) -> Result<SymbolicProfile> {
    Ok(match profile {
        Any::Symbols(profile) => profile,
        Any::Counters(profile) => export::symbolic(opened.elf, &*profile)?,
        Any::Addresses(profile) => {
            let done = aggregate::aggregate(&opened.binary()?, &profile, reading.aggregate)?;
            crate::commands::aggregate::say_quality(ui, &done.quality);
            done.profile
        }
        Any::Blocks(profile) => {
            let (symbols, left) = by_names(&opened.binary()?, &profile)?;
            if left.unknown > 0 || left.changed > 0 {
                ui.warn(format_args!(
                    "{} functions of the profile are not in the binary, {} have other blocks there: left out",
                    count(left.unknown),
                    count(left.changed)
                ));
            }
            symbols
        }
    })
}

/// The functions of a binary as the rewriter sees them: its blocks are cut in the same way as those that
/// samples are aggregated to, so one knows by where a block starts which it is.
struct Parts<'b, I> {
    binary: &'b Binary<'b, 'b>,
    program: Program<'b>,
    isa: std::marker::PhantomData<fn() -> I>,
}

/// A function (to the rewriter, a part of one).
struct Part {
    function: usize,
    cfg: Cfg,
    blocks: BoltBlocks,
    part: usize,
    /// By block: its offset.
    starts: Vec<u32>,
}

impl<'b, I: Isa> Parts<'b, I> {
    fn new(binary: &'b Binary<'b, 'b>) -> Result<Parts<'b, I>> {
        Ok(Parts {
            binary,
            program: Program::discover::<I>(binary.elf)?,
            isa: std::marker::PhantomData,
        })
    }

    /// A function by its index in the binary.
    fn part(&self, nonlocal_exits: &NonlocalExits, index: usize) -> Option<Part> {
        let program = &self.program;
        let start = self.binary.functions.list().get(index)?.start;
        let piece = program
            .piece_at(start)
            .filter(|piece| piece.start == start)?;
        let function = piece.function as usize;
        let mut scratch = CfgScratch::default();
        let cfg = build_cfg::<I>(program, nonlocal_exits, function, &mut scratch).ok()?;
        let part = program.functions[function]
            .pieces
            .iter()
            .position(|&p| program.pieces[p as usize].start == start)?;
        let blocks = BoltBlocks::new(&cfg);
        let offset = |b: u32| {
            let first = blocks.blocks[b as usize].first as usize;
            cfg.blocks[first].start.wrapping_sub(start) as u32
        };
        let starts = blocks.part(part).map(offset).collect();
        Some(Part {
            function,
            cfg,
            blocks,
            part,
            starts,
        })
    }
}

/// A profile by names of one by blocks.
fn by_names(binary: &Binary<'_, '_>, profile: &BoltYaml) -> Result<(SymbolicProfile, yaml::Left)> {
    with_isa!(binary.machine, I => by_names_with::<I>(binary, profile))
}

fn by_names_with<I: Isa>(
    binary: &Binary<'_, '_>,
    profile: &BoltYaml,
) -> Result<(SymbolicProfile, yaml::Left)> {
    if !profile.header.dfs_order {
        return Ok(yaml::to_symbolic(binary, profile, &|_| None));
    }
    let parts = Parts::<I>::new(binary)?;
    let nonlocal_exits = NonlocalExits::new(&parts.program);
    let order = |index: usize| {
        let part = parts.part(&nonlocal_exits, index)?;
        let numbers =
            part.blocks
                .depth_first::<I>(&parts.program, part.function, &part.cfg, part.part);
        let mut starts = vec![0; numbers.len()];
        for (number, start) in numbers.iter().zip(&part.starts) {
            *starts.get_mut(*number as usize)? = *start;
        }
        Some(starts)
    };
    Ok(yaml::to_symbolic(binary, profile, &order))
}

/// A profile by blocks, with postlink's hashes.
pub fn to_yaml(binary: &Binary<'_, '_>, profile: &SymbolicProfile) -> Result<BoltYaml> {
    Ok(blocks(binary, profile)?.0)
}

fn blocks(binary: &Binary<'_, '_>, profile: &SymbolicProfile) -> Result<(BoltYaml, yaml::Left)> {
    with_isa!(binary.machine, I => blocks_with::<I>(binary, profile))
}

fn blocks_with<I: Isa>(
    binary: &Binary<'_, '_>,
    profile: &SymbolicProfile,
) -> Result<(BoltYaml, yaml::Left)> {
    if binary.translate.is_some() {
        return Ok(yaml::from_symbolic(
            binary,
            profile,
            "perf data aggregator",
            &|_| None,
        ));
    }
    let parts = Parts::<I>::new(binary)?;
    let nonlocal_exits = NonlocalExits::new(&parts.program);
    let hashes = |index: usize| -> Option<yaml::Hashes> {
        let part = parts.part(&nonlocal_exits, index)?;
        let found = hashes::of_part::<I>(&parts.program, &part.cfg, &part.blocks, part.part);
        let words = found.blocks.iter().map(|hash| hash.word());
        let by_start: FxHashMap<u32, u64> = part.starts.iter().copied().zip(words).collect();
        Some((found.function, by_start))
    };
    Ok(yaml::from_symbolic(
        binary,
        profile,
        hashes::ORIGIN,
        &hashes,
    ))
}

/// Writes a profile in the format of its model.
pub fn write(path: &Path, profile: &Any, dialect: Dialect, reading: &Reading) -> Result<()> {
    match profile {
        Any::Counters(profile) => plprof::write(path, profile)?,
        Any::Symbols(profile) => fdata::write(path, profile)?,
        Any::Blocks(profile) => bolt_yaml::write(path, profile)?,
        Any::Addresses(profile) => {
            let of_process = profile
                .modules()
                .iter()
                .any(|module| module.kind != postlink_profile::address::AddressKind::LinkTime);
            match &reading.binary {
                Some(file) => {
                    let input = Input::open(file)?;
                    let elf = input.elf()?;
                    let binary = Binary::new(file, &elf)?;
                    let placer = aggregate::Placer::new(
                        &binary,
                        profile,
                        reading.aggregate.ignore_build_id,
                    )?;
                    postlink_profile::write_atomically(path, |out| {
                        preaggregated::write_to(out, profile, dialect, |place| {
                            placer.address(place)
                        })
                    })?;
                }
                None if of_process => bail!(Usage(
                    "addresses of processes become addresses of a binary with --binary".into()
                )),
                None => postlink_profile::write_atomically(path, |out| {
                    preaggregated::write_to(out, profile, dialect, |place| {
                        (!place.is_outside()).then_some(place.address)
                    })
                })?,
            }
        }
    }
    Ok(())
}

/// Functions that a profile has branches or samples of.
fn functions(profile: &SymbolicProfile) -> usize {
    let with_branches = profile.functions().map(|(name, _)| name);
    let samples = profile.samples().chunk_by(|a, b| a.at.name == b.at.name);
    let with_samples = samples
        .filter_map(|group| group.first())
        .filter(|sample| sample.at.in_symbol)
        .map(|sample| sample.at.name);
    let mut all: Vec<_> = with_branches.chain(with_samples).collect();
    all.sort_unstable();
    all.dedup();
    all.len()
}

/// What a profile holds, in a few words.
pub fn summary(profile: &Any) -> String {
    match profile {
        Any::Counters(profile) => format!(
            "{} counts in {} counters",
            count(profile.total()),
            count(profile.counters().iter().filter(|c| **c > 0).count())
        ),
        Any::Addresses(profile) => format!(
            "{} branches and runs, {} sampled addresses",
            count(profile.traces().len()),
            count(profile.samples().len())
        ),
        Any::Symbols(profile) => format!(
            "{} functions, {} branches, {} samples, {} memory accesses",
            count(functions(profile)),
            count(profile.branches().len()),
            count(profile.samples().len()),
            count(profile.memory().len())
        ),
        Any::Blocks(profile) => format!(
            "{} functions, {} blocks",
            count(profile.functions.len()),
            count(
                profile
                    .functions
                    .iter()
                    .map(|f| f.blocks.len())
                    .sum::<usize>()
            )
        ),
    }
}
