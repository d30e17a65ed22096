//! A program laid out for its profile.
//!
//! Functions that ran move to a hot section, in an order that keeps callers near callees (hfsort); within
//! each, blocks follow each other along the likeliest paths (ext-TSP), and blocks that never ran, or only for
//! an exception, go to a cold section. Everything else stays.

use std::marker::PhantomData;
use std::path::Path;
use std::sync::Arc;

use postlink_elf::OutputAddr;
use postlink_elf::elf::Elf;
use postlink_elf::note::NoteKind;
use postlink_elf::unwind::lsda::Numbers;
use postlink_elf::write::{WriteOptions, Writer};
use postlink_isa::{Code, Isa, Machine, with_isa};
use postlink_layout::padding::Stretch;
use postlink_profile::bolt_yaml::BoltYaml;
use postlink_profile::symbolic::SymbolicProfile;
use postlink_profile::windows::Windows;
use rustc_hash::FxHashSet;
use serde::Serialize;

use super::entered::cheaper_where_they_are;
use super::layout::{CallGraph, Chosen, loop_heads, order_blocks, order_functions, original};
use super::rewriting::{Answer, OutputFile, Refusal, Rewriting, retain};
use super::search::{Layout, SearchReport, Trials, Walk, stretches};
use crate::analyse::counters::Counts;
use crate::analyse::{EntryPatch, FunctionCounters, Probes, count_pins, prepare};
use crate::attach::{self, Account, Attached, Call, Counted, Source};
use crate::cfg::{BlockId, Cfg};
use crate::discover::{NonlocalExits, Program, Refs, Stays, check_input, check_program, identity};
use crate::emit::{self, Plan, Stack, carry};
use crate::error::Error;
use crate::link::bat::{self, Moved};
use crate::link::debug::{
    self, CompressDebug, DebugInfo, DebugReport, How, SplitData, has_debug_info,
};
use crate::link::{
    self, Distances, LinkOptions, Placement, ProbeAddresses, Ready, ReadyFunction, moving,
    reusable_space, stress,
};
use crate::passes::{
    self, Changes, Folding, FoldingReport, Folds, PassOptions, PassReport, Ran, Threaded,
};
use crate::phases::{self, Phases};
use crate::pin::Pin;
use crate::report::export;
use crate::report::stats::DynoStats;

/// Bundles of options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Preset {
    /// Only placement of code changes.
    #[default]
    Safe,
    /// As `Safe`, with the smallest alignments, and cold code in the space of old bodies (not where start-up
    /// code registers the old unwind table).
    Size,
    /// As `Safe`, with alignments that favour speed.
    Fast,
    /// As `Fast`, with all changes of instructions that pay ([`PassOptions::MAX`]).
    Max,
}

/// Order of functions in the hot section.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FunctionOrder {
    /// As in the input.
    None,
    /// By how often they ran per byte.
    ExecCount,
    /// Cache-directed sort.
    Cdsort,
    /// Call-chain clustering, where a function counts as often as it calls or is called: it misses the cache less than
    /// by entries alone, and than cdsort, on most programs (`docs/layout-search.md`).
    #[default]
    Hfsort,
    /// Names in this order first, then the rest by cdsort.
    User(Vec<String>),
}

/// What to do.
#[derive(Clone, Debug)]
pub struct OptimizeOptions {
    /// Bundle of defaults.
    pub preset: Preset,
    /// Reorder blocks.
    pub reorder_blocks: bool,
    /// Order of functions.
    pub reorder_functions: FunctionOrder,
    /// Move blocks that never ran, or only for an exception, to the cold section.
    pub split_functions: bool,
    /// Alignment of hot functions in bytes.
    pub align_functions: u64,
    /// Hot functions have no alignment but what pointers need, and those that would be in one cache line more otherwise
    /// begin at one, where it saves most misses ([`postlink_layout::padding`]), as far as it takes 1 % more than
    /// `align_functions` would.
    pub functions_at_lines: bool,
    /// Alignment in bytes of hot blocks that are mostly jumped to; 1 for none, at most that of functions.
    pub align_blocks: u32,
    /// Functions move also where jumps at their old entries cost more branches than their new layouts save
    /// ([`super::entered`]).
    pub move_all: bool,
    /// Pointers to functions keep their values: calls through them go by the old entry.
    pub keep_pointers: bool,
    /// For tests: everything that a layout is free to choose is chosen at random, by this seed
    /// ([`crate::link::stress`]).
    pub stress: Option<u64>,
    /// Distances between functions by chance, by this seed: layouts that differ in nothing that matters.
    pub layout_seed: Option<u64>,
    /// How many layouts are tried, of which the best by a model of the instruction cache is taken; 0 and 1 for one.
    pub search: usize,
    /// A trace of the run, by which layouts are judged; without one a walk by counts takes its place.
    pub windows: Option<Arc<Windows>>,
    /// For measuring how good the model is: the layout with this number is taken, not the best.
    pub search_take: Option<usize>,
    /// Compute dyno-stats.
    pub dyno_stats: bool,
    /// Write address translation tables, with which a profile of the output becomes one of the input.
    pub bat: bool,
    /// What becomes of debug information.
    pub debug_info: DebugInfo,
    /// How sections of debug information are compressed.
    pub compress_debug: CompressDebug,
    /// Files of units that the program has only skeletons of (split DWARF).
    pub split_files: Vec<SplitData>,
    /// The output has the input's build-id, not one of its own.
    pub keep_build_id: bool,
    /// Functions (by entry address) to leave out: the user's wish.
    pub excluded: FxHashSet<u64>,
    /// Functions (by entry address) that must stay, as the checker found fault with them.
    pub keep: FxHashSet<u64>,
    /// Changes of instructions.
    pub passes: PassOptions,
    /// Hot code has huge pages for itself, which the program asks the system for when it starts.
    pub hugify: bool,
}

impl Default for OptimizeOptions {
    fn default() -> Self {
        OptimizeOptions {
            preset: Preset::Safe,
            reorder_blocks: true,
            reorder_functions: FunctionOrder::Hfsort,
            split_functions: true,
            align_functions: 16,
            functions_at_lines: true,
            align_blocks: 1,
            move_all: false,
            keep_pointers: false,
            stress: None,
            layout_seed: None,
            search: 1,
            windows: None,
            search_take: None,
            dyno_stats: false,
            bat: false,
            debug_info: DebugInfo::Update,
            compress_debug: CompressDebug::Keep,
            split_files: Vec::new(),
            keep_build_id: false,
            excluded: FxHashSet::default(),
            keep: FxHashSet::default(),
            passes: PassOptions::default(),
            hugify: false,
        }
    }
}

impl OptimizeOptions {
    /// Whether places are chosen by chance: then nothing else chooses them.
    fn by_chance(&self) -> bool {
        self.stress.is_some() || self.layout_seed.is_some()
    }

    /// Whether some functions begin at cache lines, and the others anywhere.
    fn aligns_at_lines(&self) -> bool {
        self.functions_at_lines && self.preset == Preset::Safe && !self.by_chance()
    }

    /// Whether more than one layout is tried.
    pub fn searches(&self) -> bool {
        !self.by_chance() && (self.search > 1 || self.search_take.is_some())
    }
}

/// What was done.
#[derive(Clone, Debug, Serialize)]
pub struct OptimizeReport {
    /// Functions found.
    pub functions: usize,
    /// Functions that ran.
    pub profiled: usize,
    /// Functions that moved.
    pub moved: usize,
    /// Functions that stay although they could not be moved, by reason.
    pub pinned: Vec<(Pin, usize)>,
    /// Functions that could not be moved and might have run.
    pub not_emitted: usize,
    /// Why, the most frequent reason first.
    pub not_emitted_for: Vec<(Pin, usize)>,
    /// Bytes of hot code.
    pub hot_bytes: u64,
    /// Bytes of cold code split off.
    pub cold_bytes: u64,
    /// Functions whose counters did not agree (torn by live reading, or by races of plain counters).
    pub inconsistent_functions: usize,
    /// Names of those whose counters are furthest from agreeing, at most three.
    pub most_inconsistent: Vec<String>,
    /// ext-TSP score of all hot functions before.
    pub score_before: f64,
    /// After.
    pub score_after: f64,
    /// How much of the profile was found again in the program; exact counters always fit.
    pub profile: Option<Account>,
    /// Why pointers to functions that moved keep their values, if all of them do.
    pub pointers_stay: Option<String>,
    /// The layouts that were tried, if it was more than one.
    pub search: Option<SearchReport>,
    /// What passes changed; empty if code is only placed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub passes: Vec<PassReport>,
    /// What became of identical functions, if they are folded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folding: Option<FoldingReport>,
    /// Dyno-stats before and after.
    pub dyno_stats: Option<(DynoStats, DynoStats)>,
    /// Under stress, where nothing should run any more.
    #[serde(skip)]
    pub old_bodies: Vec<stress::OldBody>,
    /// Bytes of address translation tables.
    pub bat_bytes: u64,
    /// What was done with debug information; `None` if there is none.
    pub debug: Option<DebugReport>,
    /// Size of the input.
    pub input_size: u64,
    /// Size of the output.
    pub output_size: u64,
}

/// Optimises a file by a profile of it, of any kind.
pub fn optimize<'p>(
    elf: &Elf<'_>,
    profile: impl Into<Source<'p>>,
    options: &OptimizeOptions,
    out: &Path,
    mode: u32,
    phases: &mut Phases,
) -> Result<OptimizeReport, Error> {
    let fitted = fit(elf, profile, options, phases)?;
    fitted
        .lay_out(phases)?
        .write(OutputFile::new(out, mode), phases)
}

/// Finds a file's functions, and their counts in a profile of any kind.
pub fn fit<'d, 'p>(
    elf: &'d Elf<'d>,
    profile: impl Into<Source<'p>>,
    options: &OptimizeOptions,
    phases: &mut Phases,
) -> Result<Box<dyn Fitted<'d> + 'd>, Error> {
    fit_source(elf, profile.into(), options, phases)
}

/// Not generic, so that this crate compiles it and all that it calls, and not each crate that calls [`fit`] anew.
fn fit_source<'d>(
    elf: &'d Elf<'d>,
    source: Source<'_>,
    options: &OptimizeOptions,
    phases: &mut Phases,
) -> Result<Box<dyn Fitted<'d> + 'd>, Error> {
    with_isa!(check_input(elf)?, I => Ok(Box::new(FittedTo::<I>::new(elf, source, options, phases)?)))
}

/// A program with the counts that it will be laid out for.
pub trait Fitted<'d> {
    /// The counts as BOLT's records of branches.
    fn symbolic(&self) -> SymbolicProfile;

    /// The counts by blocks, with hashes. `binary` is the file's name for the header.
    fn yaml(&self, binary: &[u8]) -> BoltYaml;

    /// Orders blocks and makes the new code.
    ///
    /// # Errors
    ///
    /// A profile none of whose functions can be moved.
    fn lay_out(
        self: Box<Self>,
        phases: &mut Phases,
    ) -> Result<Box<dyn Rewriting<Report = OptimizeReport> + 'd>, Error>;
}

/// [`Fitted`], for an instruction set.
struct FittedTo<'d, I> {
    program: Program<'d>,
    nonlocal_exits: NonlocalExits,
    attached: Attached<'d>,
    shares: Vec<FunctionCounters>,
    options: OptimizeOptions,
    isa: PhantomData<fn() -> I>,
}

impl<'d, I: Isa> FittedTo<'d, I> {
    fn new(
        elf: &'d Elf<'d>,
        source: Source<'_>,
        options: &OptimizeOptions,
        phases: &mut Phases,
    ) -> Result<Self, Error> {
        phases.begin("discover");
        let counted = matches!(source, Source::Exact(_));
        let mut program = discover::<I>(elf, options, counted)?;
        let nonlocal_exits = NonlocalExits::new(&program);
        elf.release();
        phases.begin("attach");
        let (attached, shares) = attach::attach_any::<I>(&program, &nonlocal_exits, source)?;
        program.shapes = None;
        elf.release();
        phases.end();
        Ok(FittedTo {
            program,
            nonlocal_exits,
            attached,
            shares,
            options: options.clone(),
            isa: PhantomData,
        })
    }
}

/// A trace must be of this very file: its addresses mean nothing in another.
fn check_trace(program: &Program<'_>, options: &OptimizeOptions) -> Result<(), Error> {
    let Some(windows) = &options.windows else {
        return Ok(());
    };
    let own = identity(program.elf);
    if windows.identity == own {
        return Ok(());
    }
    Err(Error::Profile(format!(
        "the trace is of {}, the file is {own}: record it with this file",
        windows.identity
    )))
}

impl<'d, I: Isa> Fitted<'d> for FittedTo<'d, I> {
    fn symbolic(&self) -> SymbolicProfile {
        let Attached { counted, calls, .. } = &self.attached;
        export::symbolic_of::<I>(&self.program, counted, calls)
    }

    fn yaml(&self, binary: &[u8]) -> BoltYaml {
        let Attached { counted, calls, .. } = &self.attached;
        export::yaml_of::<I>(&self.program, counted, calls, binary)
    }

    fn lay_out(
        self: Box<Self>,
        phases: &mut Phases,
    ) -> Result<Box<dyn Rewriting<Report = OptimizeReport> + 'd>, Error> {
        let FittedTo {
            mut program,
            nonlocal_exits,
            mut attached,
            mut shares,
            options,
            ..
        } = *self;
        let mut counted = std::mem::take(&mut attached.counted);
        check_trace(&program, &options)?;
        let bat = options.bat;
        if counted.is_empty() {
            return Err(Error::Profile(
                "no function of the profile can be moved: nothing to optimise".into(),
            ));
        }
        let profiled = counted.len();
        counted.extend(registrars::<I>(&program, &nonlocal_exits, &counted));
        counted.sort_by_key(|c| c.function);
        if !options.passes.is_placement_only() {
            phases.begin("passes");
        }
        let mut folds = Folds::default();
        if options.passes.folding != Folding::None {
            let others = perhaps_identical::<I>(&program, &nonlocal_exits, &counted);
            let (calls, which) = (&mut attached.calls, options.passes.folding);
            let all = (&mut counted, others);
            let stay = options.keep.union(&options.excluded).copied().collect();
            folds = passes::fold::<I>(&mut program, all, calls, which, &stay);
        }
        let (threaded, mut passes) =
            passes::thread::<I>(&program, &mut counted, &mut attached.calls, options.passes);
        let mut bodies = passes::bodies::<I>(&program, &counted, &folds, options.passes);
        bodies.leave_out(&[&options.keep, &options.excluded]);
        phases.begin("layout");
        let chosen: Vec<Chosen> = postlink_parallel::map_range(counted.len(), |i| {
            let mut chosen = order_blocks(&counted[i], &options);
            if let Some(threaded) = &threaded[i] {
                let stays = |b: &BlockId| !threaded.gone[*b as usize];
                chosen.fragments.iter_mut().for_each(|f| f.retain(stays));
            }
            chosen
        });
        let stay = if options.move_all || options.by_chance() {
            FxHashSet::default()
        } else {
            let exact = attached.account.is_none();
            let inlined = bodies.executions(&counted);
            cheaper_where_they_are(&program, &counted, &chosen, &inlined, exact)
        };
        bodies.leave_out(&[&stay]);
        if !options.passes.is_placement_only() {
            phases.begin("passes");
        }
        let (changes, others) =
            passes::run::<I>(&program, &counted, &attached.calls, &bodies, options.passes);
        passes.extend(others);
        let walk = options.searches().then(|| {
            phases.begin("walk");
            Walk::new(&counted, &attached.calls, options.windows.as_deref())
        });
        let agreement = |c: &Counted<'_>| (c.function, c.counts.inconsistent);
        let agreement: Vec<(u32, u64)> = counted.iter().map(agreement).collect();
        phases.begin("emit");
        let emitted = emit_all::<I>(
            &program,
            &mut counted,
            (&chosen, changes, &threaded),
            &mut shares,
            (&options, &stay),
        );
        program.elf.release();
        phases.end();
        // What could not be emitted stands for nothing.
        let found = folds.list.len();
        let emits: FxHashSet<u32> = emitted.ready.iter().map(|r| r.function).collect();
        let folded: FxHashSet<u32> = folds.list.iter().map(|f| f.function).collect();
        folds.retain(|f| emits.contains(&f) || folded.contains(&f));
        Ok(Box::new(LaidOut {
            debug_info: options.debug_info,
            not_updated: None,
            has_package: false,
            program,
            options,
            profiled,
            account: attached.account,
            agreement,
            counted,
            calls: attached.calls,
            chosen,
            shares,
            emitted,
            passes,
            folds: (folds, found),
            threaded: if bat { threaded } else { Vec::new() },
            walk,
            layout: None,
            isa: PhantomData::<fn() -> I>,
        }))
    }
}

/// New code of all functions that move, without addresses.
struct LaidOut<'d, I> {
    program: Program<'d>,
    options: OptimizeOptions,
    profiled: usize,
    account: Option<Account>,
    /// Functions with counts; nothing if [no more is made of them](LaidOut::is_laid_out).
    counted: Vec<Counted<'d>>,
    /// By function with counts: which it is, and how far its counters are from agreeing.
    agreement: Vec<(u32, u64)>,
    /// Calls between functions, for as long.
    calls: Vec<Call>,
    /// By function with counts: the order of its blocks.
    chosen: Vec<Chosen>,
    /// By function: why it stays, if it does.
    shares: Vec<FunctionCounters>,
    emitted: EmittedAll,
    /// The passes that ran.
    passes: Vec<Ran>,
    /// Functions for which others stand, and how many were found at first.
    folds: (Folds, usize),
    /// By function with counts: its graph in the input, if that was changed. Only for translation tables.
    threaded: Vec<Option<Threaded>>,
    /// A walk through the program by its counts, if layouts are searched.
    walk: Option<Walk>,
    /// The layout, once it is known.
    layout: Option<(Layout, Option<SearchReport>)>,
    /// What is done with debug information.
    debug_info: DebugInfo,
    /// Why it is kept although it was to be updated.
    not_updated: Option<String>,
    /// Whether a package of split units belongs to what was written.
    has_package: bool,
    isa: PhantomData<fn() -> I>,
}

/// A file that is ready to be written.
struct Linked<'d> {
    writer: Writer<'d>,
    /// Bytes of address translation tables.
    bat_bytes: u64,
    debug: Option<DebugReport>,
}

impl<I: Isa> Rewriting for LaidOut<'_, I> {
    type Report = OptimizeReport;

    fn write(&mut self, out: OutputFile<'_>, phases: &mut Phases) -> Result<OptimizeReport, Error> {
        let (layout, search) = match self.layout.take() {
            Some(known) => known,
            None => {
                phases.begin("functions");
                let known = self.layout()?;
                self.is_laid_out();
                known
            }
        };
        phases.begin("link");
        let Linked {
            writer,
            bat_bytes,
            debug,
        } = self.link(&layout, out.package)?;
        self.has_package = debug.as_ref().is_some_and(|d| d.package_bytes > 0);
        phases.begin("write");
        let summary = writer.write_onto(out.path, out.mode, out.onto)?;
        phases.end();
        let report = self.report(bat_bytes, debug, search.clone(), summary.size);
        self.layout = Some((layout, search));
        Ok(report)
    }

    fn has_package(&self) -> bool {
        self.has_package
    }

    fn answer(&mut self, refusal: &Refusal) -> Answer {
        if refusal.debug_info.is_some() && self.debug_info == DebugInfo::Update {
            self.debug_info = DebugInfo::Keep;
            self.not_updated.clone_from(&refusal.debug_info);
            return Answer::Changed;
        }
        let answer = Answer::taken_back(&refusal.functions, &self.options.keep);
        if let Answer::TakenBack(functions) = &answer {
            self.options.keep.extend(functions);
            self.emitted
                .take_back(&self.program, &mut self.shares, functions);
            self.take_back_folded(functions);
            // Other code may be in the space of their old bodies: then places are given anew.
            if self.options.preset == Preset::Size {
                self.emitted.drop_taken_back();
                self.layout = None;
            }
        }
        answer
    }
}

/// A function in its new order.
fn emit_one<'d, I: Isa>(
    program: &Program<'d>,
    c: &Counted<'d>,
    order: &Chosen,
    (changes, threaded): (Changes, Option<&Threaded>),
    (options, stay): (&OptimizeOptions, &FxHashSet<u64>),
) -> Result<Ready, Pin> {
    let start = program.start(c.function as usize);
    if options.excluded.contains(&start) {
        return Err(Pin::Excluded);
    }
    if options.keep.contains(&start) {
        return Err(Pin::NotProved);
    }
    if stay.contains(&start) {
        return Err(Pin::EnteredByOldEntry);
    }
    let cfg = &c.analysed.cfg;
    let plan = Plan {
        fragments: order.fragments.clone(),
        probes: Probes::default(),
        move_addresses: program.refs.kept,
        drop_padding: true,
        aligned: loop_heads(c, &order.fragments[0], options.align_blocks),
        block_alignment: options.align_blocks,
        changes,
        lends_spans: !options.bat,
    };
    let mut code = emit::emit::<I>(program, cfg, &plan)?;
    let mut unwind = carry(
        program,
        cfg,
        c.analysed.unwind.as_ref(),
        &code,
        Stack::of::<I>(),
    )?;
    let mut splits = if options.bat {
        bat::splits(
            program,
            &moved(c, threaded, order, &code),
            &mut unwind,
            Stack::of::<I>(),
        )?
    } else {
        code.keep_runs();
        Vec::new()
    };
    if (cfg.blocks.iter().zip(&c.counts.blocks)).any(|(block, runs)| block.landing_pad && *runs > 0)
    {
        let own = unwind.iter_mut().flatten();
        for u in own.chain(splits.iter_mut().flat_map(|s| &mut s.unwind)) {
            u.numbers = Numbers::Quickest;
        }
    }
    Ok(Box::new(ReadyFunction {
        function: c.function,
        code,
        unwind,
        anchored_targets: link::places(&cfg.anchored_targets),
        secondary_entries: c.analysed.secondary_entries.clone(),
        table_entries: cfg.table_entries.clone(),
        own_tables: cfg.own_tables.clone(),
        own_bases: cfg.own_bases.clone(),
        falls_back: link::addresses(&cfg.falls_back),
        address_taken: link::places(&cfg.labels(program, c.function as usize)),
        recorders: Code::default(),
        recorder_offsets: Vec::new(),
        splits,
        counter_base: 0,
        site_base: 0,
        taken_back: false,
    }))
}

/// What a function does before and after. `moved`: what was changed in it, if it moves.
fn dyno_stats<I: Isa>(
    program: &Program<'_>,
    c: &Counted<'_>,
    order: &Chosen,
    moved: Option<&Changes>,
) -> (DynoStats, DynoStats) {
    let mut stats = (DynoStats::default(), DynoStats::default());
    let original = original(c);
    let nothing = Changes::default();
    stats.0.add::<I>(program, c, &original, &nothing);
    let (blocks, changes) = match moved {
        Some(changes) => (&order.fragments, changes),
        None => (&original, &nothing),
    };
    stats.1.add::<I>(program, c, blocks, changes);
    stats
}

/// Finds functions, in a file that can be optimised; `counted`: by counters.
fn discover<'d, I: Isa>(
    elf: &'d Elf<'d>,
    options: &OptimizeOptions,
    counted: bool,
) -> Result<Program<'d>, Error> {
    let mut program = if counted {
        Program::discover_for_counters::<I>(elf)?
    } else {
        Program::discover::<I>(elf)?
    };
    check_program(&program)?;
    if !program.refs.kept && options.preset == Preset::Size {
        return Err(Error::Unsupported(
            "the linker kept no relocations: not every reference to old code is known, so the preset size, which reuses its space, is not possible; link with -Wl,-q (--emit-relocs)".into(),
        ));
    }
    if options.keep_pointers {
        program.visible.stays = Some(Stays::Asked);
    }
    Ok(program)
}

/// All functions in their new order.
#[derive(Default)]
struct EmittedAll {
    ready: Vec<Ready>,
    /// By position in `ready`: index among the functions with counts.
    of_ready: Vec<usize>,
    /// Of functions that could not be emitted.
    not_emitted: Vec<FunctionCounters>,
    /// Where old entries get jumps.
    patches: Vec<EntryPatch>,
    /// By function with counts: what is executed before and after, if it is asked for.
    stats: Vec<(DynoStats, DynoStats)>,
}

impl Drop for EmittedAll {
    /// There are tens of thousands of functions, each in a dozen pieces of memory: all threads give them back.
    fn drop(&mut self) {
        postlink_parallel::map_owned(std::mem::take(&mut self.ready), drop);
    }
}

impl EmittedAll {
    /// Notes that a function stays.
    fn stays(&mut self, function: u32, pin: Pin, shares: &mut [FunctionCounters]) {
        let share = &mut shares[function as usize];
        share.pin = Some(pin);
        self.not_emitted.push(*share);
    }

    /// Leaves functions where they were, by the addresses of their entries. Their places stay empty.
    fn take_back(
        &mut self,
        program: &Program<'_>,
        shares: &mut [FunctionCounters],
        functions: &FxHashSet<u64>,
    ) {
        for position in 0..self.ready.len() {
            let ready = &mut self.ready[position];
            if !functions.contains(&program.start(ready.function as usize)) {
                continue;
            }
            ready.taken_back = true;
            let function = ready.function;
            self.stays(function, Pin::NotProved, shares);
            if let Some((before, after)) = self.stats.get_mut(self.of_ready[position]) {
                *after = *before;
            }
        }
        self.patches
            .retain(|patch| !functions.contains(&patch.entry.get()));
    }

    /// Gives up the places of functions that were taken back.
    fn drop_taken_back(&mut self) {
        let moves: Vec<bool> = self.ready.iter().map(|r| !r.taken_back).collect();
        retain(&mut self.ready, &moves);
        retain(&mut self.of_ready, &moves);
    }

    /// Bytes of code in a fragment of all functions.
    fn bytes(&self, fragment: usize) -> u64 {
        let codes = moving(&self.ready).map(|(_, r)| &r.code.fragments[fragment].code);
        codes.map(|code| code.bytes.len() as u64).sum()
    }
}

/// Emits all functions. The reasons of those that stay are noted in `shares`.
fn emit_all<'d, I: Isa>(
    program: &Program<'d>,
    counted: &mut [Counted<'d>],
    (chosen, changes, threaded): (&[Chosen], Vec<Changes>, &[Option<Threaded>]),
    shares: &mut [FunctionCounters],
    (options, stay): (&OptimizeOptions, &FxHashSet<u64>),
) -> EmittedAll {
    // What a function's graph is needed for is done while it is there: all of them at once are a tenth of the memory.
    phases::expect(counted.len());
    let work: Vec<_> = counted.iter_mut().zip(changes).enumerate().collect();
    let emitted = postlink_parallel::map_owned(work, |(i, (c, changes))| {
        let (order, threaded) = (&chosen[i], &threaded[i]);
        let for_stats = options.dyno_stats.then(|| changes.clone());
        let changed = (changes, threaded.as_ref());
        let result = emit_one::<I>(program, c, order, changed, (options, stay));
        phases::did();
        let stats = for_stats.map_or_else(Default::default, |changes| {
            dyno_stats::<I>(program, c, order, result.is_ok().then_some(&changes))
        });
        if !options.bat {
            c.analysed.cfg = Cfg::default();
        }
        (result, stats)
    });
    let mut all = EmittedAll::default();
    for (i, (result, of_function)) in emitted.into_iter().enumerate() {
        if options.dyno_stats {
            all.stats.push(of_function);
        }
        match result {
            Ok(ready) => {
                all.of_ready.push(i);
                all.ready.push(ready);
                all.patches.extend(counted[i].analysed.entry_patch);
            }
            Err(pin) => all.stays(counted[i].function, pin, shares),
        }
    }
    all
}

impl<'d, I: Isa> LaidOut<'d, I> {
    /// Leaves folded functions where they were: those that were refused, and those that were folded into such.
    fn take_back_folded(&mut self, functions: &FxHashSet<u64>) {
        let (program, shares) = (&self.program, &mut self.shares);
        let refused = |function: u32| functions.contains(&program.start(function as usize));
        let folds = &mut self.folds.0;
        let before: Vec<u32> = folds.list.iter().map(|f| f.function).collect();
        folds.retain(|function| !refused(function));
        let left: FxHashSet<u32> = folds.list.iter().map(|f| f.function).collect();
        for function in before.into_iter().filter(|f| !left.contains(f)) {
            let share = &mut shares[function as usize];
            share.pin = Some(Pin::NotProved);
            self.emitted.not_emitted.push(*share);
        }
    }

    /// Gives up what only layouts are made of, if there will be no other one.
    fn is_laid_out(&mut self) {
        if self.options.preset == Preset::Size {
            return;
        }
        self.calls = Vec::new();
        self.walk = None;
        if !self.options.bat {
            postlink_parallel::map_owned(std::mem::take(&mut self.counted), drop);
            postlink_parallel::map_mut(&mut self.chosen, |_, c| c.fragments = Default::default());
        }
    }

    /// Where functions go, and which layouts were tried if there was a search.
    fn layout(&self) -> Result<(Layout, Option<SearchReport>), Error> {
        let emitted = &self.emitted;
        let (ready, of_ready) = (&emitted.ready, &emitted.of_ready);
        let ordered = || {
            let calls = CallGraph::new(&self.counted, &self.calls, ready, of_ready);
            let order = order_functions(&self.program, &calls, ready, &self.options);
            (calls, order)
        };
        let of_code = || -> Vec<Vec<Stretch>> {
            postlink_parallel::map_range(ready.len(), |i| {
                stretches(&ready[i], &self.counted[of_ready[i]].counts.blocks)
            })
        };
        let ((calls, mut order), stretches) = postlink_parallel::join(ordered, of_code);
        if let Some(seed) = self.options.stress {
            stress::Random::of(seed, 0).shuffle(&mut order);
        }
        let walk = self.walk.as_ref().filter(|_| !ready.is_empty());
        let writer = walk.map(|_| self.writer()).transpose()?;
        let trials = Trials {
            ready,
            of_ready,
            calls: &calls,
            given: order,
            least: self.least_alignment(),
            align: self.alignment(),
            at_lines: self.options.aligns_at_lines(),
            stretches,
            writer: writer.as_ref(),
        };
        Ok(match walk {
            None => (trials.given(), None),
            Some(walk) => {
                let (wanted, take) = (self.options.search, self.options.search_take);
                let (layout, report) = trials.best(walk, wanted, take);
                (layout, Some(report))
            }
        })
    }

    /// By position: what hot fragments have to be aligned to, for the sake of pointers and of their blocks.
    fn least_alignment(&self) -> Vec<u64> {
        // Where instructions have one length, code is at multiples of it.
        let step = if I::PADDING == 0 { 4 } else { 1 };
        let blocks = u64::from(self.options.align_blocks).max(step);
        let follow = self.program.refs.kept;
        let of = |r: &Ready| {
            if follow {
                link::alignment(&self.program, r)[0].max(blocks)
            } else {
                blocks
            }
        };
        self.emitted.ready.iter().map(of).collect()
    }

    /// Alignment of functions in the hot and the cold section.
    fn alignment(&self) -> [u64; 2] {
        let options = &self.options;
        let hot = match options.preset {
            _ if options.stress.is_some() => u64::from(options.align_blocks),
            Preset::Size => 1,
            _ => options.align_functions.max(u64::from(options.align_blocks)),
        };
        let cold = match options.preset {
            Preset::Size => 1,
            _ if options.stress.is_some() => 1,
            _ => 2,
        };
        [hot, cold]
    }

    /// How functions are placed.
    fn link_options(&self, layout: &Layout) -> Result<LinkOptions<'static>, Error> {
        let (program, options, emitted) = (&self.program, &self.options, &self.emitted);
        let elf = program.elf;
        let reuses = options.preset == Preset::Size
            && !options.bat
            && !Refs::registers_frames(elf)
            && check_input(elf)? == Machine::X86_64;
        Ok(LinkOptions {
            sections: [".text.hot", ".text.cold"],
            align: self.alignment(),
            hot_alignment: layout.alignment.clone(),
            move_pointers: program.refs.kept,
            distances: match (options.stress, options.layout_seed) {
                (Some(seed), _) => Distances::Stress(seed),
                (None, Some(seed)) => Distances::Chance(seed),
                (None, None) => Distances::Least,
            },
            reusable: if reuses {
                reusable_space::<I>(
                    program,
                    &emitted.ready,
                    &emitted.patches,
                    &FxHashSet::default(),
                )
            } else {
                Vec::new()
            },
            room_for_all: false,
            slow: Vec::new(),
            notes: 0,
            kind: NoteKind::Optimised,
            input_id: elf.build_id.unwrap_or_default().to_vec(),
            huge: options.hugify,
        })
    }

    /// What writes the output.
    fn writer(&self) -> Result<Writer<'d>, Error> {
        let program = &self.program;
        let options = WriteOptions {
            no_search_table: program.refs.registration_follows(),
            no_way: program.entry_proof.needs_headers,
            adds_search_table: false,
            like_text: self.debug_info == DebugInfo::Update
                && has_debug_info(program.elf)
                && !self.options.hugify,
            ..WriteOptions::default()
        };
        Ok(Writer::new(program.elf, options)?)
    }

    /// Gives functions their places and fills in what refers to them.
    /// A package of split units goes to a file of its own.
    fn link(&self, layout: &Layout, package: Option<&Path>) -> Result<Linked<'d>, Error> {
        let (program, ready) = (&self.program, &self.emitted.ready);
        let mut writer = self.writer()?;
        let options = self.link_options(layout)?;
        let orders = [layout.order.as_slice(); 2];
        let mut placed = link::place::<I>(program, ready, orders, &options, &mut writer);
        placed.fold(program, &self.folds.0);
        placed.plan_veneers::<I>(program, ready, &mut writer);
        placed.unwind::<I>(program, ready, &[], &mut writer)?;
        let startup = match placed.huge {
            Some(hot) => Some(link::ask_for_huge_pages::<I>(
                program.elf,
                hot,
                &mut writer,
            )?),
            None => None,
        };
        program.elf.release();
        // The map of addresses is one long list, and takes as long as all the rest.
        let patches = &self.emitted.patches;
        let map = || debug::map::<I>(program, &placed, ready, patches, self.debug_info);
        let filled = || self.fill(&placed, (orders, startup), &options, &mut writer);
        let (map, bat_bytes) = postlink_parallel::join(map, filled);
        let bat_bytes = bat_bytes?;
        let debug = self.debug_info(&placed, (map, package), &mut writer)?;
        program.elf.release();
        Ok(Linked {
            writer,
            bat_bytes,
            debug,
        })
    }

    /// Fills in what refers to functions that have their places. Gives the size of address translation tables.
    fn fill(
        &self,
        placed: &Placement,
        (orders, startup): ([&[u32]; 2], Option<(link::Hook, OutputAddr)>),
        options: &LinkOptions<'_>,
        writer: &mut Writer<'d>,
    ) -> Result<u64, Error> {
        let (program, ready) = (&self.program, &self.emitted.ready);
        let no_probes = ProbeAddresses::default();
        placed.fill::<I>(program, ready, orders, &no_probes, writer)?;
        program.elf.release();
        let follow = options.move_pointers;
        placed.references::<I>(program, ready, &self.emitted.patches, follow, writer)?;
        if let Some((hook, routine)) = startup {
            hook.install(routine, writer)?;
        }
        program.elf.release();
        let bat_bytes = if self.options.bat {
            self.translation_tables(placed, writer)?
        } else {
            0
        };
        placed.symbols(program, ready, options, writer);
        program.elf.release();
        let note = placed.note(program, ready, &self.emitted.patches, options, writer)?;
        if !self.options.keep_build_id {
            placed.build_id(program, ready, note, writer)?;
        }
        Ok(bat_bytes)
    }

    /// Describes new code in debug information, or drops it, or keeps it as it is.
    fn debug_info(
        &self,
        placed: &Placement,
        (map, package): (Option<debug::Mapped>, Option<&Path>),
        writer: &mut Writer<'d>,
    ) -> Result<Option<DebugReport>, Error> {
        let (ready, patches) = (&self.emitted.ready, &self.emitted.patches);
        let how = How {
            what: self.debug_info,
            compress: self.options.compress_debug,
            split: match package {
                Some(_) => &self.options.split_files,
                None => &[],
            },
            package,
        };
        let mut report =
            debug::write::<I>(&self.program, placed, ready, patches, (how, map), writer)?;
        if let (Some(report), Some(why)) = (&mut report, &self.not_updated) {
            report.kept_because = Some(why.clone());
        }
        Ok(report)
    }

    /// Appends address translation tables. Gives their size.
    fn translation_tables(
        &self,
        placed: &Placement,
        writer: &mut Writer<'_>,
    ) -> Result<u64, Error> {
        let list: Vec<Moved<'_, '_>> = self
            .emitted
            .ready
            .iter()
            .zip(&self.emitted.of_ready)
            .filter(|(r, _)| !r.taken_back)
            .map(|(r, i)| {
                let threaded = self.threaded.get(*i).and_then(Option::as_ref);
                moved(&self.counted[*i], threaded, &self.chosen[*i], &r.code)
            })
            .collect();
        let places = moving(&self.emitted.ready).map(|(i, _)| placed.fragments[i]);
        let places: Vec<_> = places.collect();
        let tables = bat::tables::<I>(&self.program, &list, &places)?;
        bat::write(&tables, writer)
    }

    /// What passes changed in functions that move.
    fn passes(&self) -> Vec<PassReport> {
        let mut moves = vec![false; self.agreement.len()];
        for (i, _) in moving(&self.emitted.ready) {
            moves[self.emitted.of_ready[i]] = true;
        }
        let (folds, found) = &self.folds;
        let folding = self.options.passes.folding != Folding::None;
        let folded = folding.then(|| folds.as_pass(*found));
        let passes = self.passes.iter();
        let passes = passes.map(|pass| pass.report(|at| moves[at]));
        folded.into_iter().chain(passes).collect()
    }

    fn report(
        &self,
        bat_bytes: u64,
        debug: Option<DebugReport>,
        search: Option<SearchReport>,
        output_size: u64,
    ) -> OptimizeReport {
        let (program, emitted) = (&self.program, &self.emitted);
        let (inconsistent_functions, most_inconsistent) = inconsistent(program, &self.agreement);
        OptimizeReport {
            functions: program.functions.len(),
            profiled: self.profiled,
            moved: moving(&emitted.ready).count(),
            not_emitted: emitted.not_emitted.len(),
            not_emitted_for: count_pins(&emitted.not_emitted),
            pinned: count_pins(&self.shares),
            hot_bytes: emitted.bytes(0),
            cold_bytes: emitted.bytes(1),
            inconsistent_functions,
            most_inconsistent,
            score_before: self.chosen.iter().map(|c| c.before).sum(),
            score_after: self.chosen.iter().map(|c| c.after).sum(),
            profile: self.account.clone(),
            pointers_stay: program.visible.stays.as_ref().map(ToString::to_string),
            search,
            passes: self.passes(),
            folding: (self.options.passes.folding != Folding::None).then(|| self.folds.0.report()),
            dyno_stats: self.options.dyno_stats.then(|| sum(&emitted.stats)),
            old_bodies: match self.options.stress {
                // With that preset other code is there.
                Some(_) if self.options.preset != Preset::Size => {
                    stress::old_bodies(program, &emitted.ready, &emitted.patches)
                }
                _ => Vec::new(),
            },
            bat_bytes,
            debug,
            input_size: program.elf.data.len() as u64,
            output_size,
        }
    }
}

/// What is executed before and after, of all functions.
fn sum(stats: &[(DynoStats, DynoStats)]) -> (DynoStats, DynoStats) {
    let mut all = (DynoStats::default(), DynoStats::default());
    for (before, after) in stats {
        all.0.merge(before);
        all.1.merge(after);
    }
    all
}

/// How many functions have counts that do not agree, and the names of the three worst.
fn inconsistent(program: &Program<'_>, agreement: &[(u32, u64)]) -> (usize, Vec<String>) {
    let mut list: Vec<_> = agreement.iter().filter(|c| c.1 > 0).collect();
    list.sort_by_key(|c| std::cmp::Reverse(c.1));
    let worst = list.iter().take(3);
    let names = worst.map(|c| program.name(c.0 as usize)).collect();
    (list.len(), names)
}

/// Functions that did not run but must move: those that form an address in the registered unwind table by one
/// instruction. From where they are it may not reach the new table; in a copy it is encoded so that it does.
fn registrars<'d, I: Isa>(
    program: &Program<'d>,
    nonlocal_exits: &NonlocalExits,
    counted: &[Counted<'_>],
) -> Vec<Counted<'d>> {
    let near = |at: u64| {
        let bytes = program.elf.bytes_at(at, 4).unwrap_or_default();
        I::decode(bytes, at).is_some_and(|insn| I::is_near(&insn))
    };
    let mut wanted: Vec<u32> = program
        .refs
        .formed
        .iter()
        .filter(|f| program.refs.is_registered_frame(f.1) && near(f.0))
        .filter_map(|f| program.piece_at(f.0).map(|p| p.function))
        .filter(|f| counted.iter().all(|c| c.function != *f))
        .collect();
    wanted.sort_unstable();
    wanted.dedup();
    let mut scratch = prepare::Scratch::default();
    let one = |function: u32| without_counts::<I>(program, nonlocal_exits, function, &mut scratch);
    wanted.into_iter().filter_map(one).collect()
}

/// A function that did not run, if it can be moved.
fn without_counts<'d, I: Isa>(
    program: &Program<'d>,
    nonlocal_exits: &NonlocalExits,
    function: u32,
    scratch: &mut prepare::Scratch,
) -> Option<Counted<'d>> {
    let analysed =
        prepare::analyse::<I>(program, nonlocal_exits, function as usize, scratch).ok()?;
    let counts = Counts {
        blocks: vec![0; analysed.cfg.blocks.len()],
        succs: vec![0; analysed.cfg.succs.len()],
        ..Counts::default()
    };
    Some(Counted {
        function,
        analysed,
        counts,
        entries: 0,
    })
}

/// Functions without counts that code which ran calls, and that may be identical to one that ran: those of its size,
/// with what they call in turn. A profile need not know of them: one of samples has none of what ran seldom, and one of
/// a program in which they were folded counts all in what stands for them.
fn perhaps_identical<'d, I: Isa>(
    program: &Program<'d>,
    nonlocal_exits: &NonlocalExits,
    counted: &[Counted<'_>],
) -> Vec<Counted<'d>> {
    let size = |c: &Counted<'_>| program.size(c.function as usize);
    let sizes: FxHashSet<u64> = counted.iter().map(size).collect();
    let mut known: FxHashSet<u32> = counted.iter().map(|c| c.function).collect();
    let mut scratch = prepare::Scratch::default();
    let mut found: Vec<Counted<'d>> = Vec::new();
    let mut called: Vec<u64> = counted.iter().flat_map(passes::called).collect();
    while !called.is_empty() {
        called.sort_unstable();
        called.dedup();
        let mut next = Vec::new();
        for target in called {
            let function = program.piece_at(target).map(|p| p.function);
            let Some(function) = function.filter(|f| {
                program.start(*f as usize) == target
                    && program.functions[*f as usize].pin.is_none()
                    && sizes.contains(&program.size(*f as usize))
                    && known.insert(*f)
            }) else {
                continue;
            };
            if let Some(c) = without_counts::<I>(program, nonlocal_exits, function, &mut scratch) {
                next.extend(passes::called(&c));
                found.push(c);
            }
        }
        called = next;
    }
    found
}

/// What address translation needs to know of a function.
fn moved<'a, 'd>(
    c: &'a Counted<'d>,
    threaded: Option<&'a Threaded>,
    order: &'a Chosen,
    code: &'a emit::Emitted,
) -> Moved<'a, 'd> {
    Moved {
        function: c.function,
        cfg: threaded.map_or(&c.analysed.cfg, |t| &t.input),
        unwind: c.analysed.unwind.as_ref(),
        code,
        order: &order.fragments,
    }
}
