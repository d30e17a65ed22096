//! Functions re-emitted, with counters of calls or blocks.
//!
//! # Callers
//!
//! With `call-edges` a counter notes return addresses, and in re-emitted functions these are addresses of the output.
//! Nothing translates them while the program runs; the way of the data is:
//!
//! 1. Once all functions have their places ([`calls`]), each call in them has a pair of return addresses, of the output
//!    and of the input.
//! 2. The list goes into the output as a note ([`postlink_elf::callers`]), which the checker compares with the pairs of
//!    calls that it finds itself, and into the map (`postlink_mip`, `MOVED_CALLERS`), whose hash covers it.
//! 3. `mip create` takes it from the map into the profile.
//! 4. `mip merge` looks the addresses of a run up in it. From there on edges have addresses of the input, as they have
//!    in profiles of programs whose functions stay: `mip show` and `mip order` know no difference.
//!    What the list does not have is in code that did not move: an old body, or a function that was left alone.
//!
//! There is a return address only where a call leads to. A part that a compiler split off is jumped to, with anything
//! on the stack and, on AArch64, in the link register: the unwind table says so ([`is_called`]), and its calls are
//! counted without callers, as are those of a function that jumps to its own entry. Where a function signs the link
//! register (`paciasp`), the counter is in front of that: [`first_place`] takes no instruction for a landing pad that
//! does more than let branches in.

use postlink_dwarf::AddressMap;
use postlink_elf::callers::{self, Call};
use postlink_elf::unwind::rows::{self, CfaRule, RegRule};
use postlink_elf::write::{NewKind, Writer};
use postlink_isa::coverage::{CallPlace, Covers};
use postlink_isa::{Code, Flow, Isa, RegSet};
use postlink_mip::{self as mip, Block, InferredBlock, MovedCaller, Profile};
use rustc_hash::FxHashSet;

use super::runtime::{append_slow, counter_size, put_runtime, slow_frames, slow_size};
use super::{CoverageMode, CoverageOptions, call_counter, describe, seal};
use crate::analyse::counters::{cheapest, estimate, kept_at_calls, lets_in, live_at, spare};
use crate::analyse::coverage_blocks::{self, CoverageBlocks};
use crate::analyse::{Analysed, EntryPatch, NodeCounter, Probes, Scratch, Target, prepare};
use crate::cfg::{BlockId, Cfg, OwnTable, Term};
use crate::discover::{NonlocalExits, Program, Refs};
use crate::drivers::rewriting::retain;
use crate::error::Error;
use crate::link::{
    self, LinkOptions, Placement, Ready, RoutineAt, emit_in_place, hook, reusable_space,
};
use crate::phases;
use crate::pin::Pin;
use crate::report::inspect::tail_calls;

/// Functions re-emitted.
#[derive(Default)]
pub(super) struct Anew {
    /// By function of the program: why it does not count.
    pub pins: Vec<Option<Pin>>,
    /// Of those that count: what the map says.
    pub functions: Vec<mip::Function>,
    ready: Vec<Ready>,
    /// How many blocks each has.
    blocks: Vec<u64>,
    /// Where old entries get jumps.
    patches: Vec<EntryPatch>,
}

impl Anew {
    pub(super) fn make<I: Covers>(
        program: &Program<'_>,
        nonlocal_exits: &NonlocalExits,
        options: &CoverageOptions,
        near: bool,
    ) -> Anew {
        let mut anew = Anew::default();
        for one in make_all::<I>(program, nonlocal_exits, options, near) {
            anew.pins.push(one.as_ref().err().copied());
            let Ok(one) = one else { continue };
            anew.functions.push(one.function);
            anew.patches.extend(one.entry_patch);
            anew.blocks.push(one.blocks);
            anew.ready.push(one.ready);
        }
        anew
    }

    /// Blocks of all instrumented functions.
    pub(super) fn blocks(&self) -> u64 {
        self.blocks.iter().sum()
    }

    /// Leaves functions where they were, by the addresses of their entries.
    pub(super) fn take_back(&mut self, program: &Program<'_>, functions: &FxHashSet<u64>) {
        let refused = |r: &Ready| functions.contains(&program.start(r.function as usize));
        let count: Vec<bool> = self.ready.iter().map(|r| !refused(r)).collect();
        for r in self.ready.iter().filter(|r| refused(r)) {
            self.pins[r.function as usize] = Some(Pin::NotProved);
        }
        retain(&mut self.ready, &count);
        retain(&mut self.functions, &count);
        retain(&mut self.blocks, &count);
        self.patches
            .retain(|patch| !functions.contains(&patch.entry.get()));
    }

    /// Gives functions their places, with the counters of `profile`.
    pub(super) fn link<I: Covers>(
        &mut self,
        program: &Program<'_>,
        options: &CoverageOptions,
        profile: &mut Profile,
        next: u64,
        writer: &mut Writer<'_>,
    ) -> Result<(), Error> {
        let elf = program.elf;
        for (ready, function) in self.ready.iter_mut().zip(&profile.functions) {
            ready.counter_base =
                (function.raw_offset - I::COUNTER_UNIT) / counter_size(options.mode);
        }
        let (ready, patches) = (&self.ready, &self.patches);
        // Everything moves, so there is space in old bodies for nearly everything. What is there must not be
        // found by the old unwind entries, nor by debug information, which would name the functions that were
        // there: Rust's panics ask it. (The checker does not follow what becomes of an address that the
        // input's code registers.) Veneers are after the new code, which code in old bodies far away would not reach.
        let known = Refs::registers_frames(elf) || elf.section(".debug_info").is_some();
        let reusable = if options.reuse && !known && !program.has_far_code::<I>() {
            reusable_space::<I>(program, ready, patches, &options.sealed)
        } else {
            Vec::new()
        };
        let link_options = LinkOptions {
            reusable,
            notes: slow_size::<I>(elf, options, profile, next)?,
            room_for_all: true,
            ..LinkOptions::instrumented(elf)
        };
        let order: Vec<u32> = (0..ready.len() as u32).collect();
        let mut placed = link::place::<I>(program, ready, [&order, &order], &link_options, writer);
        placed.plan_veneers::<I>(program, ready, writer);
        let mut copies = placed.slow_copies.clone();
        if copies.is_empty() {
            copies.extend(append_slow::<I>(elf, options, profile, next, writer)?);
        }
        let frames = slow_frames::<I>(elf, options, profile, next)?;
        let routines = copies.iter().map(|copy| RoutineAt {
            start: copy.addr,
            frames: frames.clone(),
        });
        let routines: Vec<RoutineAt> = routines.collect();
        placed.unwind::<I>(program, ready, &routines, writer)?;
        if options.mode == CoverageMode::CallEdges {
            let calls = calls::<I>(program, &placed, ready, patches)?;
            put_calls(&calls, writer)?;
            let of_map = calls.iter().map(|call| MovedCaller {
                ran: call.new as i64,
                source: call.old as i64,
            });
            profile.callers = of_map.collect();
            seal(profile, elf);
        }
        let entry = hook(elf)?;
        let (start, probes, with_edges) =
            put_runtime::<I>(elf, options, profile, next, &entry, &copies, writer)?;
        if !placed.slow_copies.is_empty() {
            placed.slow_with_edges = with_edges;
        }
        placed.fill::<I>(program, ready, [&order, &order], &probes, writer)?;
        placed.references::<I>(program, ready, patches, false, writer)?;
        entry.install(start, writer)?;
        placed.symbols(program, ready, &link_options, writer);
        placed.note(program, ready, patches, &link_options, writer)?;
        Ok(())
    }
}

/// The calls in functions that are re-emitted, by where they return to.
fn calls<I: Isa>(
    program: &Program<'_>,
    placed: &Placement,
    ready: &[Ready],
    patches: &[EntryPatch],
) -> Result<Vec<Call>, Error> {
    let parts = placed.map_parts::<I>(program, ready, patches);
    let map = AddressMap::new(parts).map_err(|e| Error::internal(e.to_string()))?;
    let mut calls = Vec::new();
    for run in map.runs() {
        let bytes = program.elf.bytes_at(run.old, run.old_len.into());
        // Where the lengths differ it is one instruction.
        I::sweep(bytes.unwrap_or(&[]), run.old, |insn| {
            if matches!(insn.flow, Flow::Call { .. } | Flow::IndirectCall) {
                let old = insn.end();
                let new = run.new_end() - (run.old_end() - old);
                calls.push(Call { new, old });
            }
            true
        });
    }
    calls.sort_unstable();
    Ok(calls)
}

/// Puts the note that says which calls are which.
fn put_calls(calls: &[Call], writer: &mut Writer<'_>) -> Result<(), Error> {
    let bytes = callers::encode(calls)?;
    writer.append_filled(callers::SECTION, NewKind::Note, callers::ALIGN, &bytes);
    Ok(())
}

/// Whether a call leads to a function's entry, by what the unwind table says there: the return address is where a call
/// leaves it.
fn is_called<I: Covers>(program: &Program<'_>, function: usize) -> bool {
    let start = program.start(function);
    let fde = program
        .piece_at(start)
        .and_then(|piece| piece.fde)
        .and_then(|fde| program.eh.fdes.get(fde as usize))
        .filter(|fde| fde.start == start);
    let Some(fde) = fde else { return false };
    let cie = &program.eh.cies[fde.cie];
    let Ok(rows) = rows::rows(cie, fde) else {
        return false;
    };
    let (stack, pushed) = (I::UNWIND_STACK, I::CALL_PUSHES);
    let returns = match pushed {
        0 => None,
        pushed => Some(RegRule::Offset(-pushed)),
    };
    let cfa = CfaRule::Offset {
        register: stack,
        offset: pushed,
    };
    rows.first().is_some_and(|(_, row)| {
        row.cfa == cfa && row.rule(cie.ra_register as u16) == returns && !row.ra_signed
    })
}

/// All functions re-emitted, or why not.
fn make_all<'d, I: Covers>(
    program: &Program<'d>,
    nonlocal_exits: &NonlocalExits,
    options: &CoverageOptions,
    near: bool,
) -> Vec<Result<Made, Pin>> {
    phases::expect(program.functions.len());
    postlink_parallel::map_range_with(program.functions.len(), Scratch::default, |scratch, f| {
        phases::did();
        let analysed = prepare::analyse::<I>(program, nonlocal_exits, f, scratch)?;
        if let Some(functions) = &options.functions
            && !functions.is_match(program.name(f).as_bytes())
        {
            return Err(Pin::Excluded);
        }
        if options.keep.contains(&program.start(f)) {
            return Err(Pin::NotProved);
        }
        make::<I>(program, f, &analysed, options.mode, near)
    })
}

/// A function with its counters.
struct Made {
    ready: Ready,
    entry_patch: Option<EntryPatch>,
    function: mip::Function,
    blocks: u64,
}

fn make<'d, I: Covers>(
    program: &Program<'d>,
    function: usize,
    a: &Analysed<'d>,
    mode: CoverageMode,
    near: bool,
) -> Result<Made, Pin> {
    if !program.refs.kept {
        if a.entry_patch.is_none() {
            return Err(Pin::NoRoomAtEntry);
        }
        let jumps = a.cfg.blocks.iter().filter(|b| b.term == Term::FallBack);
        let mut terms = a.cfg.blocks.iter().map(|b| b.term);
        let to_old_code = jumps.count() > tail_calls(program, function, a)
            || terms.any(|term| matches!(term, Term::Dispatch { leaves: true, .. }))
            || a.cfg.own_tables.iter().any(OwnTable::leaves);
        if mode == CoverageMode::BlockCoverage && to_old_code {
            return Err(Pin::UnknownIndirectJump);
        }
    }
    let start = program.start(function);
    let chosen = match mode {
        CoverageMode::BlockCoverage => coverage_blocks::choose(&a.cfg, &estimate(&a.cfg)),
        _ => CoverageBlocks {
            counted: vec![0],
            inferred: Vec::new(),
        },
    };
    // The first block also has predecessors in the function.
    let entered_again = a.cfg.succs.contains(&0);
    // Where pages are guarded, what lets calls in comes before the counter.
    let guarded_entry = program.guarded
        && program
            .elf
            .bytes_at(start, I::LANDING_PAD.len() as u64)
            .is_some_and(lets_in::<I>);
    let mut probes = Probes {
        before: if mode.calls() && guarded_entry {
            I::LANDING_PAD
        } else {
            &[]
        },
        put: Some(match mode {
            CoverageMode::FunctionCoverage | CoverageMode::BlockCoverage if near => {
                put_covered::<I, true>
            }
            CoverageMode::FunctionCoverage | CoverageMode::BlockCoverage => put_covered::<I, false>,
            // Without relocations it may be a part that a compiler split off.
            CoverageMode::CallEdges if !entered_again && is_called::<I>(program, function) => {
                put_call_and_caller::<I>
            }
            CoverageMode::CallGraph | CoverageMode::CallEdges
                if entered_again || !program.refs.kept =>
            {
                put_call_inside::<I>
            }
            CoverageMode::CallGraph | CoverageMode::CallEdges => put_call::<I>,
        }),
        ..Probes::default()
    };
    let spare = spare::<I>(program, &a.cfg);
    let kept = a.unwind.as_ref().map(|unwind| unwind.reads::<I>(program));
    let kept = kept.transpose()?.unwrap_or_default();
    // Where a store takes no register, one place is as good as another.
    let choosy =
        !mode.calls() && I::covered_len(RegSet::EMPTY, near) != I::covered_len(RegSet::ALL, near);
    for (counter, &b) in (0u32..).zip(&chosen.counted) {
        if a.cfg.blocks[b as usize].watch.whole {
            return Err(Pin::NoPlaceToCount);
        }
        let node = if choosy {
            cheapest::<I>(program, &a.cfg, b, counter, (spare, kept), &|live| {
                I::covered_len(live, near)
            })
        } else {
            let (at, live) = first_place::<I>(program, &a.cfg, b, mode);
            let live = live.or(kept);
            NodeCounter { counter, at, live }
        };
        probes.nodes.insert(b, node);
    }
    let ready = emit_in_place::<I>(program, function, a, probes, true)?;
    // A block in another piece has an offset that wraps.
    let offset = |b: BlockId| a.cfg.blocks[b as usize].start.wrapping_sub(start) as u32;
    let successors = (0..a.cfg.blocks.len() as u32).map(|b| a.cfg.succs(b));
    let mip = mip::Function {
        cfg_signature: mip::hash::cfg_signature(successors),
        blocks: chosen
            .counted
            .iter()
            .skip(1)
            .map(|&b| Block {
                offset: offset(b),
                covered: false,
            })
            .collect(),
        inferred: chosen
            .inferred
            .iter()
            .map(|(b, from)| InferredBlock {
                offset: offset(*b),
                from: from.clone(),
            })
            .collect(),
        ..describe(program, function)
    };
    Ok(Made {
        ready,
        entry_patch: a.entry_patch,
        function: mip,
        blocks: (chosen.counted.len() + chosen.inferred.len()) as u64,
    })
}

fn put_covered<I: Covers, const NEAR: bool>(out: &mut Code<Target>, live: RegSet, counter: u32) {
    I::put_covered(out, live, NEAR, Target::Counter(counter));
}

fn put_call<I: Covers>(out: &mut Code<Target>, live: RegSet, _counter: u32) {
    I::put_called(out, live, call_counter(false, CallPlace::Entry));
}

fn put_call_inside<I: Covers>(out: &mut Code<Target>, live: RegSet, _counter: u32) {
    I::put_called(out, live, call_counter(false, CallPlace::Block));
}

fn put_call_and_caller<I: Covers>(out: &mut Code<Target>, live: RegSet, _counter: u32) {
    I::put_called(out, live, call_counter(true, CallPlace::Block));
}

/// The first place in a block for a counter, after a landing pad of indirect branches, and what is live there.
fn first_place<I: Isa>(
    program: &Program<'_>,
    cfg: &Cfg,
    b: BlockId,
    mode: CoverageMode,
) -> (u64, RegSet) {
    let block = &cfg.blocks[b as usize];
    let len = block.end - block.start;
    let bytes = program.elf.bytes_at(block.start, len).unwrap_or(&[]);
    let mut at = block.start;
    I::sweep(bytes, block.start, |i| {
        let pad = i.traits.landing_pad;
        if pad {
            at = i.end();
        }
        pad
    });
    let live = if mode.calls() {
        live_at::<I>(program, cfg, b, at).or(kept_at_calls::<I>(program, block.start))
    } else {
        // A store of a constant destroys nothing.
        RegSet::ALL
    };
    (at.min(block.term_at), live)
}
