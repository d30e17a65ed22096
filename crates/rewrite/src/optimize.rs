//! A program laid out for its profile.
//!
//! Functions that ran move to a hot section, in an order that keeps callers near callees (cdsort); within each, blocks follow each other along
//! the likeliest paths (ext-TSP), and blocks that never ran, or only for an exception, go to a cold section. Everything else stays.

use std::path::Path;

use postlink_image::elf::Elf;
use postlink_image::note::NoteKind;
use postlink_image::unwind::lsda::Numbers;
use postlink_image::write::{WriteOptions, Writer};
use postlink_isa::{Code, Isa};
use postlink_layout::call_graph::{Arc, Function as LayoutFunction};
use postlink_layout::{cdsort, ext_tsp, hfsort};
use rayon::prelude::*;
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;

use crate::Error;
use crate::attach::{self, Account, Attached, Call, Counted, Source};
use crate::bat::{self, Moved};
use crate::cfg::{BlockId, Cfg, Term};
use crate::counters::Counts;
use crate::discover::Program;
use crate::emit::{self, Plan, Probes};
use crate::instrument::{carry, count_pins};
use crate::leaks::Leaks;
use crate::link::{self, LinkOptions, ProbeAddresses, Ready};
use crate::phases::Phases;
use crate::pin::Pin;
use crate::prepare::{self, Machine};
use crate::refs::Refs;
use crate::stats::DynoStats;
use crate::stress;
use crate::unwind::FunctionUnwind;
use crate::visible::Stays;

/// Bundles of options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Preset {
    /// Only placement of code changes.
    #[default]
    Safe,
    /// As `Safe`, with the smallest alignments, and cold code in the room of old bodies (not where start-up code registers the old unwind table).
    Size,
    /// As `Safe`, with alignments that favour speed.
    Fast,
}

/// Order of functions in the hot section.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FunctionOrder {
    /// As in the input.
    None,
    /// By how often they ran per byte.
    ExecCount,
    /// Cache-directed sort.
    #[default]
    Cdsort,
    /// Call-chain clustering.
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
    /// Alignment in bytes of hot blocks that are mostly jumped to; 1 for none, at most that of functions.
    pub align_blocks: u32,
    /// Pointers to functions keep their values: calls through them go by the old entry.
    pub keep_pointers: bool,
    /// For tests: everything that a layout is free to choose is chosen at random, by this seed ([`crate::stress`]).
    pub stress: Option<u64>,
    /// Compute dyno-stats.
    pub dyno_stats: bool,
    /// Write address translation tables, with which a profile of the output becomes one of the input.
    pub bat: bool,
    /// Functions (by entry address) that must stay, as the checker found fault with them.
    pub keep: FxHashSet<u64>,
}

impl Default for OptimizeOptions {
    fn default() -> Self {
        OptimizeOptions {
            preset: Preset::Safe,
            reorder_blocks: true,
            reorder_functions: FunctionOrder::Cdsort,
            split_functions: true,
            align_functions: 16,
            align_blocks: 1,
            keep_pointers: false,
            stress: None,
            dyno_stats: false,
            bat: false,
            keep: FxHashSet::default(),
        }
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
    /// Dyno-stats before and after.
    pub dyno_stats: Option<(DynoStats, DynoStats)>,
    /// Under stress, where nothing should run any more.
    #[serde(skip)]
    pub old_bodies: Vec<stress::OldBody>,
    /// Bytes of address translation tables.
    pub bat_bytes: u64,
    /// Size of the input.
    pub input_size: u64,
    /// Size of the output.
    pub output_size: u64,
}

/// Optimises an x86-64 file by a profile of it, of any kind.
pub fn optimize<'p>(
    elf: &Elf<'_>,
    profile: impl Into<Source<'p>>,
    options: &OptimizeOptions,
    out: &Path,
    mode: u32,
    phases: &mut Phases,
) -> Result<OptimizeReport, Error> {
    match prepare::check_input(elf)? {
        Machine::X86_64 => optimize_with::<postlink_isa::x86_64::X86_64>(
            elf,
            profile.into(),
            options,
            out,
            mode,
            phases,
        ),
        Machine::AArch64 => optimize_with::<postlink_isa::aarch64::AArch64>(
            elf,
            profile.into(),
            options,
            out,
            mode,
            phases,
        ),
    }
}

/// The order of one function's blocks, and its score before and after.
struct Chosen {
    fragments: [Vec<BlockId>; 2],
    before: f64,
    after: f64,
}

/// A function in its new order.
fn emit_one<'d, I: Isa>(
    program: &Program<'d>,
    c: &Counted<'d>,
    order: &Chosen,
    options: &OptimizeOptions,
) -> Result<Ready, Pin> {
    if options.keep.contains(&program.start(c.function as usize)) {
        return Err(Pin::NotProved);
    }
    let cfg = &c.analysed.cfg;
    let plan = Plan {
        fragments: order.fragments.clone(),
        probes: Probes::default(),
        move_addresses: true,
        drop_padding: true,
        aligned: loop_heads(c, &order.fragments[0], options.align_blocks),
        block_alignment: options.align_blocks,
    };
    let code = emit::emit::<I>(program, cfg, &plan)?;
    let mut unwind = carry(program, cfg, c.analysed.unwind.as_ref(), &code)?;
    let mut splits = match options.bat {
        true => bat::splits(program, &moved(c, order, &code), &mut unwind)?,
        false => Vec::new(),
    };
    if (cfg.blocks.iter().zip(&c.counts.blocks)).any(|(block, runs)| block.landing_pad && *runs > 0)
    {
        let own = unwind.iter_mut().flatten();
        for u in own.chain(splits.iter_mut().flat_map(|s| &mut s.unwind)) {
            u.numbers = Numbers::Quickest;
        }
    }
    Ok(Ready {
        function: c.function,
        code,
        unwind,
        arrivals: cfg.arrivals.clone(),
        second: c.analysed.second.clone(),
        table_entries: cfg.table_entries.clone(),
        marks: cfg.labels(program, c.function as usize),
        recorders: Code::default(),
        recorder_offsets: Vec::new(),
        splits,
        counter_base: 0,
        site_base: 0,
    })
}

/// What a function does before and after.
fn dyno_stats<I: Isa>(
    program: &Program<'_>,
    c: &Counted<'_>,
    order: &Chosen,
    moved: bool,
) -> (DynoStats, DynoStats) {
    let mut stats = (DynoStats::default(), DynoStats::default());
    let mut original: [Vec<BlockId>; 2] = Default::default();
    for (b, block) in c.analysed.cfg.blocks.iter().enumerate() {
        original[usize::from(block.piece > 0)].push(b as BlockId);
    }
    stats.0.add::<I>(program, c, &original);
    stats
        .1
        .add::<I>(program, c, if moved { &order.fragments } else { &original });
    stats
}

fn optimize_with<I: Isa>(
    elf: &Elf<'_>,
    source: Source<'_>,
    options: &OptimizeOptions,
    out: &Path,
    mode: u32,
    phases: &mut Phases,
) -> Result<OptimizeReport, Error> {
    phases.begin("discover");
    let mut program = Program::discover::<I>(elf)?;
    if !program.refs.kept {
        return Err(Error::Unsupported(
            "the linker kept no relocations: link with -Wl,-q (--emit-relocs) so that every reference to code can be found".into(),
        ));
    }
    if options.keep_pointers {
        program.visible.stays = Some(Stays::Asked);
    }
    let leaks = Leaks::new(&program);
    elf.release();
    phases.begin("attach");
    let (attached, mut shares) = attach::attach_any::<I>(&program, &leaks, source)?;
    elf.release();
    let Attached {
        mut counted,
        calls,
        account,
        ..
    } = attached;
    if counted.is_empty() {
        return Err(Error::Profile(
            "no function of the profile can be moved: nothing to optimise".into(),
        ));
    }
    let profiled = counted.len();
    counted.extend(registrars::<I>(&program, &leaks, &counted));
    counted.sort_by_key(|c| c.function);
    phases.begin("layout");
    let chosen: Vec<Chosen> = counted
        .par_iter()
        .map(|c| order_blocks(c, options))
        .collect();
    phases.begin("emit");
    // What a function's graph is needed for is done while it is there: all of them at once are a tenth of the memory.
    let emitted: Vec<(Result<Ready, Pin>, (DynoStats, DynoStats))> = counted
        .par_iter_mut()
        .zip(&chosen)
        .map(|(c, order)| {
            let result = emit_one::<I>(&program, c, order, options);
            let stats = match options.dyno_stats {
                true => dyno_stats::<I>(&program, c, order, result.is_ok()),
                false => Default::default(),
            };
            if !options.bat {
                c.analysed.cfg = Cfg::default();
            }
            (result, stats)
        })
        .collect();
    elf.release();
    let mut stats = (DynoStats::default(), DynoStats::default());
    let mut ready = Vec::new();
    let mut of_ready = Vec::new(); // index into `counted`
    let mut stay = Vec::new();
    for (i, (e, of_function)) in emitted.into_iter().enumerate() {
        stats.0.merge(&of_function.0);
        stats.1.merge(&of_function.1);
        match e {
            Ok(r) => {
                of_ready.push(i);
                ready.push(r);
            }
            Err(pin) => {
                let share = &mut shares[counted[i].function as usize];
                share.pin = Some(pin);
                stay.push(*share);
            }
        }
    }
    let patches: Vec<(u64, u64)> = of_ready
        .iter()
        .flat_map(|i| counted[*i].analysed.entry_patch)
        .collect();

    phases.begin("functions");
    let mut order = order_functions(&program, &counted, &calls, &ready, &of_ready, options);
    if let Some(seed) = options.stress {
        stress::Random::of(seed, 0).shuffle(&mut order);
    }

    phases.begin("link");
    let mut writer = Writer::new(
        elf,
        WriteOptions {
            no_search_table: program.refs.registration_follows(),
            ..WriteOptions::default()
        },
    )?;
    let align = match options.preset {
        _ if options.stress.is_some() => u64::from(options.align_blocks),
        Preset::Size => 1,
        _ => options.align_functions.max(u64::from(options.align_blocks)),
    };
    let link_options = LinkOptions {
        sections: [".text.hot", ".text.cold"],
        align: [
            align,
            match options.preset {
                Preset::Size => 1,
                _ if options.stress.is_some() => 1,
                _ => 2,
            },
        ],
        move_pointers: true,
        stress: options.stress,
        room: match options.preset == Preset::Size
            && !options.bat
            && !Refs::registers_frames(elf)
            && prepare::check_input(elf)? == Machine::X86_64
        {
            true => room::<I>(&program, &ready, &patches, &FxHashSet::default()),
            false => Vec::new(),
        },
        room_for_all: false,
        slow: Vec::new(),
        kind: NoteKind::Optimised,
        input_id: elf.build_id.unwrap_or_default().to_vec(),
    };
    let orders = [order.as_slice(), order.as_slice()];
    let mut placed = link::place::<I>(&program, &ready, orders, &link_options, &mut writer);
    placed.bridge::<I>(&program, &ready, &mut writer);
    placed.unwind(&program, &ready, &mut writer)?;
    placed.fill::<I>(
        &program,
        &ready,
        orders,
        &ProbeAddresses::default(),
        &mut writer,
    )?;
    placed.references::<I>(&program, &ready, &patches, true, &mut writer)?;
    elf.release();
    let mut bat_bytes = 0;
    if options.bat {
        let list: Vec<Moved<'_, '_>> = ready
            .iter()
            .zip(&of_ready)
            .map(|(r, i)| moved(&counted[*i], &chosen[*i], &r.code))
            .collect();
        let tables = bat::tables::<I>(&program, &list, &placed.fragments)?;
        bat_bytes = bat::write(&tables, &mut writer)?;
    }
    placed.symbols(&program, &ready, &link_options, &mut writer);
    placed.note(&program, &ready, &link_options, &mut writer)?;
    elf.release();

    phases.begin("write");
    let summary = writer.write(out, mode)?;

    let dyno_stats = options.dyno_stats.then_some(stats);
    phases.end();
    let bytes = |f: usize| {
        ready
            .iter()
            .map(|r| r.code.fragments[f].code.bytes.len() as u64)
            .sum()
    };
    let mut inconsistent: Vec<_> = counted
        .iter()
        .filter(|c| c.counts.inconsistent > 0)
        .collect();
    inconsistent.sort_by_key(|c| std::cmp::Reverse(c.counts.inconsistent));
    let worst = inconsistent.iter().take(3);
    Ok(OptimizeReport {
        functions: program.functions.len(),
        profiled,
        moved: ready.len(),
        not_emitted: stay.len(),
        not_emitted_for: count_pins(&stay),
        pinned: count_pins(&shares),
        hot_bytes: bytes(0),
        cold_bytes: bytes(1),
        inconsistent_functions: inconsistent.len(),
        most_inconsistent: worst.map(|c| program.name(c.function as usize)).collect(),
        score_before: chosen.iter().map(|c| c.before).sum(),
        score_after: chosen.iter().map(|c| c.after).sum(),
        profile: account,
        pointers_stay: program.visible.stays.as_ref().map(ToString::to_string),
        dyno_stats,
        old_bodies: match options.stress {
            // With that preset other code lies there.
            Some(_) if options.preset != Preset::Size => {
                stress::old_bodies(&program, &ready, &patches)
            }
            _ => Vec::new(),
        },
        bat_bytes,
        input_size: elf.data.len() as u64,
        output_size: summary.size,
    })
}

/// Functions that did not run but must move: those that form an address in the registered unwind table by one instruction. From where they are it
/// may not reach the new table; in a copy it is spelt so that it does.
fn registrars<'d, I: Isa>(
    program: &Program<'d>,
    leaks: &Leaks,
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
    let one = |function: u32| {
        let analysed =
            prepare::analyse::<I>(program, leaks, function as usize, &mut scratch).ok()?;
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
    };
    wanted.into_iter().filter_map(one).collect()
}

/// What is left of old bodies behind the jumps at their entries, as address and length: nothing comes there any more, as whatever referred to the
/// insides of a function that could be moved was found and follows it. (The checker looks for itself.)
pub(crate) fn room<I: Isa>(
    program: &Program<'_>,
    ready: &[Ready],
    patches: &[(u64, u64)],
    sealed: &FxHashSet<u64>,
) -> Vec<(u64, u64)> {
    let jumps: FxHashMap<u64, u64> = patches.iter().copied().collect();
    let behind = |r: &Ready| {
        let function = &program.functions[r.function as usize];
        let piece = &program.pieces[*function.pieces.first()? as usize];
        let at = *jumps.get(&piece.start)?;
        let mut jump: Code<()> = Code::default();
        I::put_entry(
            &mut jump,
            program.elf.bytes_at(at, (piece.end - at).min(16))?,
            (),
        );
        let start = at + jump.bytes.len() as u64;
        let plain = r.marks.is_empty()
            && r.arrivals.is_empty()
            && function.entries.is_empty()
            && !sealed.contains(&piece.start);
        (plain && start < piece.end).then(|| (start, piece.end - start))
    };
    ready.iter().filter_map(behind).collect()
}

/// What address translation needs to know of a function.
fn moved<'a, 'd>(c: &'a Counted<'d>, order: &'a Chosen, code: &'a emit::Emitted) -> Moved<'a, 'd> {
    Moved {
        function: c.function,
        cfg: &c.analysed.cfg,
        unwind: c.analysed.unwind.as_ref(),
        code,
        order: &order.fragments,
    }
}

/// Orders the blocks of a function and splits it.
fn order_blocks(c: &Counted<'_>, options: &OptimizeOptions) -> Chosen {
    let cfg = &c.analysed.cfg;
    let n = cfg.blocks.len();
    let blocks: Vec<ext_tsp::Block> = (0..n)
        .map(|b| ext_tsp::Block {
            size: ((cfg.blocks[b].end - cfg.blocks[b].start) as u32).max(1),
            count: c.counts.blocks[b],
        })
        .collect();
    let handlers = handlers(c);
    let mut jumps = Vec::with_capacity(cfg.succs.len());
    for b in 0..n {
        // A table's targets cannot be fallen into.
        if matches!(cfg.blocks[b].term, Term::Dispatch { .. }) {
            continue;
        }
        for (k, s) in cfg.succs(b as BlockId).iter().enumerate() {
            let count = c.counts.succs[cfg.blocks[b].succ as usize + k];
            jumps.push(ext_tsp::Jump {
                from: b as u32,
                to: *s,
                count,
            });
        }
    }
    let original: Vec<u32> = (0..n as u32).collect();
    let problem = ext_tsp::Problem::new(&blocks, &jumps);
    let before = problem.score(&original);
    let order = match (&handlers, options.reorder_blocks) {
        (_, false) => original,
        (None, true) => problem.order(),
        (Some(handler), true) => {
            // No chain has both kinds, so that handlers can go behind all other blocks.
            let of = |b: u32| handler[b as usize];
            let apart: Vec<ext_tsp::Jump> = jumps
                .iter()
                .filter(|j| of(j.from) == of(j.to))
                .copied()
                .collect();
            let order = ext_tsp::order(&blocks, &apart);
            let (last, first): (Vec<u32>, Vec<u32>) = order.into_iter().partition(|b| of(*b));
            [first, last].concat()
        }
    };
    let after = problem.score(&order);
    let split = options.split_functions
        && !c
            .analysed
            .unwind
            .as_ref()
            .is_some_and(FunctionUnwind::one_fragment);
    if let Some(seed) = options.stress {
        let start = cfg.blocks.first().map_or(0, |b| b.start);
        return Chosen {
            fragments: stress::blocks(seed, start, n, split),
            before,
            after,
        };
    }
    let mut fragments: [Vec<BlockId>; 2] = Default::default();
    for b in order {
        let handler = handlers.as_ref().is_some_and(|h| h[b as usize]);
        let cold = split && b != 0 && (handler || c.counts.blocks[b as usize] == 0);
        fragments[usize::from(cold)].push(b);
    }
    Chosen {
        fragments,
        before,
        after,
    }
}

/// By block: whether it ran only when an exception was caught or cleaned up after; `None` if no such block ran.
///
/// What throws costs thousands of instructions, most of them spent on unwind tables that are read from the start of the function's part to the
/// place that is unwound through. Handlers in front of that place would make it longer for every exception, and a cleanup at the end of the hot
/// part is itself unwound through, where it resumes: the cold part's tables are a few rows. Their own places hardly matter.
fn handlers(c: &Counted<'_>) -> Option<Vec<bool>> {
    let cfg = &c.analysed.cfg;
    let ran = |b: usize| c.counts.blocks[b] > 0;
    if !(0..cfg.blocks.len()).any(|b| cfg.blocks[b].landing_pad && ran(b)) {
        return None;
    }
    // Only ways that were taken: behind a call that never returns there may be a landing pad, and nobody says that it never returns.
    let mut handler: Vec<bool> = (0..cfg.blocks.len()).map(ran).collect();
    let mut open: Vec<BlockId> = vec![0];
    open.extend((1..cfg.blocks.len() as BlockId).filter(|b| cfg.blocks[*b as usize].entry));
    while let Some(b) = open.pop() {
        if std::mem::take(&mut handler[b as usize]) {
            let first = cfg.blocks[b as usize].succ as usize;
            let taken = cfg
                .succs(b)
                .iter()
                .enumerate()
                .filter(|(way, _)| c.counts.succs[first + way] > 0);
            open.extend(taken.map(|(_, s)| *s));
        }
    }
    handler.contains(&true).then_some(handler)
}

/// Runs of a block for each of its function from which on it is aligned, and how many times as often it is jumped to as run into: llvm-bolt's
/// `-align-blocks` takes the same numbers.
const LOOP_RUNS: u64 = 8;
const LOOP_JUMPS: u64 = 2;

/// Blocks of the hot fragment that are worth a place at the start of a fetch window: they run often, and are mostly jumped to, as the heads of loops
/// are; those that are run into would pay for the padding each time.
fn loop_heads(c: &Counted<'_>, hot: &[BlockId], align: u32) -> Vec<BlockId> {
    if align <= 1 {
        return Vec::new();
    }
    let cfg = &c.analysed.cfg;
    let often = c.entries.max(1).saturating_mul(LOOP_RUNS);
    let mut heads = Vec::new();
    for (before, b) in hot.iter().zip(hot.iter().skip(1)) {
        let runs = c.counts.blocks[*b as usize];
        if runs < often {
            continue;
        }
        let block = &cfg.blocks[*before as usize];
        let ways = cfg
            .succs(*before)
            .iter()
            .enumerate()
            .filter(|(_, s)| *s == b);
        let run_into: u64 = match block.term {
            Term::Dispatch { .. } => 0,
            _ => ways.fold(0, |sum, (way, _)| {
                sum.saturating_add(c.counts.succs[block.succ as usize + way])
            }),
        };
        if runs / LOOP_JUMPS >= run_into {
            heads.push(*b);
        }
    }
    heads
}

/// Orders the hot fragments: positions in `ready`.
fn order_functions(
    program: &Program<'_>,
    counted: &[Counted<'_>],
    calls: &[Call],
    ready: &[Ready],
    of_ready: &[usize],
    options: &OptimizeOptions,
) -> Vec<u32> {
    let n = ready.len();
    let original: Vec<u32> = (0..n as u32).collect();
    let position: FxHashMap<u32, u32> = ready
        .iter()
        .enumerate()
        .map(|(i, r)| (r.function, i as u32))
        .collect();
    let functions: Vec<LayoutFunction> = ready
        .iter()
        .zip(of_ready)
        .map(|(r, i)| LayoutFunction {
            size: (r.code.fragments[0].code.bytes.len() as u64).max(1),
            samples: counted[*i].entries.max(1),
        })
        .collect();
    let arcs = || -> Vec<Arc> {
        // One arc for each pair, with the average place of its calls.
        let mut sums: FxHashMap<(u32, u32), (u64, u128)> = FxHashMap::default();
        for c in calls {
            let (Some(from), Some(to)) = (position.get(&c.caller), position.get(&c.callee)) else {
                continue;
            };
            let r = &ready[*from as usize];
            let (fragment, offset) = r.code.blocks[c.block as usize];
            if fragment != 0 {
                continue;
            }
            let e = sums.entry((*from, *to)).or_default();
            e.0 = e.0.saturating_add(c.count);
            e.1 = e.1.saturating_add(u128::from(c.count) * u128::from(offset));
        }
        let mut arcs: Vec<Arc> = sums
            .into_iter()
            .map(|((caller, callee), (count, weighted))| Arc {
                caller,
                callee,
                count,
                offset: (weighted / u128::from(count.max(1))) as u64,
            })
            .collect();
        arcs.sort_unstable_by_key(|a| (a.caller, a.callee));
        arcs
    };
    match &options.reorder_functions {
        FunctionOrder::None => original,
        FunctionOrder::ExecCount => {
            let mut order = original;
            order.sort_by(|a, b| {
                let density = |i: &u32| u128::from(functions[*i as usize].samples);
                density(b).cmp(&density(a)).then(a.cmp(b))
            });
            order
        }
        FunctionOrder::Cdsort => cdsort::order(&functions, &arcs()),
        FunctionOrder::Hfsort => hfsort::order(&functions, &arcs()),
        FunctionOrder::User(names) => {
            let rank: FxHashMap<&str, usize> = names
                .iter()
                .enumerate()
                .map(|(i, n)| (n.as_str(), i))
                .collect();
            let mut order = cdsort::order(&functions, &arcs());
            order.sort_by_key(|i| {
                rank.get(program.name(ready[*i as usize].function as usize).as_str())
                    .copied()
                    .unwrap_or(usize::MAX)
            });
            order
        }
    }
}
