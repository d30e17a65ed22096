//! Jumps to jumps: branches go to where the jump leads, and conditional tail calls are one branch.
//!
//! | old | new |
//! |---|---|
//! | `jcc L` … `L: jmp T` | `jcc T` |
//! | `jmp L` … `L: jmp T` | `jmp T` |
//! | `jcc L` … `L: jmp F`, F another function | `jcc F` |
//! | `jcc X; jmp F` | `jncc F`, and X follows |
//!
//! A jump that nothing leads to any more is left out. Other than the changes of instructions ([`super::Change`]) this
//! one is made in the flow graph, before blocks are ordered: so layout sees where control really goes. Address
//! translation tables continue speaking of the input's blocks ([`Threaded::input`]). Readers of profiles find the way
//! over the jump again (`attach/records.rs`).
//!
//! A conditional tail call is made only where unwinding finds the same frame at the branch as at the jump, which
//! the checker compares (`verify/walk/relations.rs`), and on machines whose conditional branches reach everything.

use postlink_isa::Isa;

use super::Sum;
use crate::attach::{Call, Counted};
use crate::cfg::{BlockId, Cfg, Term};
use crate::discover::Program;

/// What became of a function's graph.
pub struct Threaded {
    /// The graph of the input.
    pub input: Cfg,
    /// By block: nothing leads to it any more.
    pub gone: Vec<bool>,
    /// Tail calls that blocks make now: block of the jump, block and address of the branch, executions.
    tail_calls: Vec<(BlockId, BlockId, u64, u64)>,
}

impl Threaded {
    /// Tells the calls of the function of the branches that make them now.
    pub(super) fn move_calls(&self, calls: &mut Vec<Call>) {
        for (jump, block, at, count) in &self.tail_calls {
            let Some(call) = calls.iter_mut().find(|c| c.block == *jump) else {
                continue;
            };
            let count = call.count.min(*count);
            call.count -= count;
            let moved = Call {
                block: *block,
                at: *at,
                count,
                ..*call
            };
            calls.push(moved);
        }
        calls.retain(|c| c.count > 0);
    }
}

/// How many jumps in a row are followed.
const LONGEST: usize = 8;

/// Which jumps to jumps are led on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Threading {
    /// Those in the function (`--peepholes=double-jumps`).
    pub double_jumps: bool,
    /// Conditional branches to jumps out of it (`--simplify-conditional-tail-calls`).
    pub tail_calls: bool,
}

/// Changes the graph of a function. Gives the graph before, and how often the changed branches ran.
pub(super) fn thread<I: Isa>(
    program: &Program<'_>,
    c: &mut Counted<'_>,
    which: Threading,
) -> (Option<Threaded>, [Sum; 2]) {
    let mut sums = [Sum::default(); 2];
    let mut tail_calls = Vec::new();
    let alone = jumps_alone::<I>(program, &c.analysed.cfg);
    if !alone.contains(&true) {
        return (None, sums);
    }
    let input = c.analysed.cfg.clone();
    for b in 0..input.blocks.len() as BlockId {
        let ways = if which.double_jumps {
            c.analysed.cfg.blocks[b as usize].nsucc
        } else {
            0
        };
        for way in 0..ways {
            if let Some(executions) = follow(c, &alone, b, way) {
                sums[0].add(executions);
            }
        }
        if which.tail_calls
            && !I::FAR_CONDITIONS_BY_STUB
            && let Some((jump, executions)) =
                tail_call::<I>(program, c, &alone, b, &mut sums[1].sites)
        {
            sums[1].add(executions);
            let at = c.analysed.cfg.blocks[b as usize].term_at;
            tail_calls.push((jump, b, at, executions));
        }
    }
    let changed = sums.iter().any(|sum| sum.changed > 0);
    let threaded = changed.then(|| Threaded {
        input,
        gone: unreached(&c.analysed.cfg, &alone),
        tail_calls,
    });
    // What counts that do not agree left over.
    for (b, _) in threaded
        .iter()
        .flat_map(|t| t.gone.iter().enumerate().filter(|g| *g.1))
    {
        c.counts.blocks[b] = 0;
    }
    (threaded, sums)
}

/// By block: it is a direct jump and nothing else.
fn jumps_alone<I: Isa>(program: &Program<'_>, cfg: &Cfg) -> Vec<bool> {
    let is_alone = |b: &crate::cfg::Block| {
        if !matches!(b.term, Term::Jump | Term::JumpOut { .. }) || b.term_at - b.start > 16 {
            return false;
        }
        let mut nops = true;
        if let Some(bytes) = program.elf.bytes_at(b.start, b.term_at - b.start) {
            I::sweep(bytes, b.start, |insn| {
                nops &= insn.traits.nop;
                nops
            });
        }
        nops
    };
    cfg.blocks.iter().map(is_alone).collect()
}

/// Leads a way out of a block past jumps in the function. Gives how often it was taken.
fn follow(c: &mut Counted<'_>, alone: &[bool], b: BlockId, way: u32) -> Option<u64> {
    let cfg = &c.analysed.cfg;
    let block = &cfg.blocks[b as usize];
    if alone[b as usize]
        || !matches!(
            block.term,
            Term::Fall | Term::Jump | Term::Cond { .. } | Term::CondOut { .. }
        )
    {
        return None;
    }
    let edge = (block.succ + way) as usize;
    let count = c.counts.succs[edge];
    let (mut to, mut past) = (cfg.succs[edge], Vec::new());
    while alone[to as usize] && cfg.blocks[to as usize].term == Term::Jump && past.len() < LONGEST {
        let [next] = *cfg.succs(to) else { break };
        if past.contains(&next) || next == to {
            return None;
        }
        past.push(to);
        to = next;
    }
    if past.is_empty() {
        return None;
    }
    for jump in past {
        take(c, jump, count);
    }
    c.analysed.cfg.succs[edge] = to;
    Some(count)
}

/// Takes executions off a jump.
fn take(c: &mut Counted<'_>, jump: BlockId, count: u64) {
    let runs = &mut c.counts.blocks[jump as usize];
    *runs = runs.saturating_sub(count);
    let block = &c.analysed.cfg.blocks[jump as usize];
    if block.nsucc > 0 {
        let edge = &mut c.counts.succs[block.succ as usize];
        *edge = edge.saturating_sub(count);
    }
}

/// Makes a conditional branch to a jump out of the function one out of the function. Gives the jump, and how
/// often it was taken.
fn tail_call<I: Isa>(
    program: &Program<'_>,
    c: &mut Counted<'_>,
    alone: &[bool],
    b: BlockId,
    sites: &mut u64,
) -> Option<(BlockId, u64)> {
    let cfg = &c.analysed.cfg;
    let block = cfg.blocks[b as usize];
    let Term::Cond { cond } = block.term else {
        return None;
    };
    let leaves = |way: usize| {
        let to = cfg.succs(b)[way];
        match cfg.blocks[to as usize].term {
            Term::JumpOut { target } if alone[to as usize] => Some((way, to, target)),
            _ => None,
        }
    };
    let (way, jump, target) = leaves(0).or_else(|| leaves(1))?;
    let other = cfg.succs(b)[1 - way];
    if other == jump {
        return None;
    }
    *sites += 1;
    let at = &cfg.blocks[jump as usize];
    let same_frame = match &c.analysed.unwind {
        Some(unwind) => {
            let (from, to) = ((block.term_at, block.piece), (at.term_at, at.piece));
            unwind.is_alike(program, from, to)
        }
        None => true,
    };
    if !same_frame {
        return None;
    }
    let first = block.succ as usize;
    let (out, stays) = (c.counts.succs[first + way], c.counts.succs[first + 1 - way]);
    take(c, jump, out);
    c.counts.succs[first] = stays;
    c.counts.succs[first + 1] = 0;
    c.counts.out.insert(b, out);
    let cfg = &mut c.analysed.cfg;
    cfg.succs[first] = other;
    let block = &mut cfg.blocks[b as usize];
    block.nsucc = 1;
    block.term = Term::CondOut {
        cond: if way == 0 { cond } else { I::invert(cond) },
        target,
    };
    Some((jump, out))
}

/// By block: it is a jump alone that nothing leads to.
fn unreached(cfg: &Cfg, alone: &[bool]) -> Vec<bool> {
    let mut gone = alone.to_vec();
    let mut keep = |b: BlockId| gone[b as usize] = false;
    for (b, block) in cfg.blocks.iter().enumerate() {
        if b == 0 || block.entry || block.landing_pad || block.returns_twice {
            keep(b as BlockId);
        }
    }
    let named = (cfg.dispatches.iter().flatten().copied())
        .chain(cfg.table_entries.iter().map(|e| e.block))
        .chain(cfg.anchored_targets.iter().map(|a| a.1))
        .chain(cfg.address_taken.iter().map(|a| a.1))
        .chain(cfg.forks.iter().map(|f| f.0));
    named.for_each(&mut keep);
    // Jumps that lead to jumps: what is kept keeps what it leads to.
    loop {
        let before = gone.iter().filter(|g| **g).count();
        for b in 0..cfg.blocks.len() {
            if !gone[b] {
                cfg.succs(b as BlockId)
                    .iter()
                    .for_each(|s| gone[*s as usize] = false);
            }
        }
        if gone.iter().filter(|g| **g).count() == before {
            return gone;
        }
    }
}
