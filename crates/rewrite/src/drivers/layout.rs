//! The order of blocks and of functions, chosen by counts.

use postlink_layout::call_graph::{Arc, Function as LayoutFunction};
use postlink_layout::{cdsort, ext_tsp, hfsort};
use rustc_hash::FxHashMap;

use super::optimize::{FunctionOrder, OptimizeOptions};
use crate::analyse::FunctionUnwind;
use crate::attach::lookup::{Index, Lookup, function_at};
use crate::attach::{Call, Counted};
use crate::cfg::{BlockId, Term};
use crate::discover::Program;
use crate::link::{Ready, stress};

/// The order of one function's blocks, and its score before and after.
pub(super) struct Chosen {
    /// Hot blocks, the entry first; then cold ones.
    pub fragments: [Vec<BlockId>; 2],
    /// Score of the input's order.
    pub before: f64,
    /// Score of this one.
    pub after: f64,
}

/// Blocks in the input's order, part by part.
pub(super) fn original(c: &Counted<'_>) -> [Vec<BlockId>; 2] {
    let mut order: [Vec<BlockId>; 2] = Default::default();
    for (block, b) in c.analysed.cfg.blocks.iter().zip(0..) {
        order[usize::from(block.piece > 0)].push(b);
    }
    order
}

/// Orders the blocks of a function and splits it.
pub(super) fn order_blocks(c: &Counted<'_>, options: &OptimizeOptions) -> Chosen {
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
    let problem = ext_tsp::Problem::new(&blocks, &jumps);
    let original = || (0..n as u32).collect::<Vec<u32>>();
    let (order, (before, after)) = match (&handlers, options.reorder_blocks) {
        (_, false) => {
            let order = original();
            let score = problem.score(&order);
            (order, (score, score))
        }
        (None, true) => problem.scored_order(),
        (Some(handler), true) => {
            // No chain has both kinds, so that handlers can go after all other blocks.
            let of = |b: u32| handler[b as usize];
            let apart: Vec<ext_tsp::Jump> = jumps
                .iter()
                .filter(|j| of(j.from) == of(j.to))
                .copied()
                .collect();
            let order = ext_tsp::order(&blocks, &apart);
            let (last, first): (Vec<u32>, Vec<u32>) = order.into_iter().partition(|b| of(*b));
            let order = [first, last].concat();
            let scores = (problem.score(&original()), problem.score(&order));
            (order, scores)
        }
    };
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
/// What throws costs thousands of instructions, most of them spent on unwind tables that are read from the
/// start of the function's part to the place that is unwound through. Handlers in front of that place would
/// make it longer for every exception, and a cleanup at the end of the hot part is itself unwound through,
/// where it resumes: the cold part's tables are a few rows. Their own places hardly matter.
fn handlers(c: &Counted<'_>) -> Option<Vec<bool>> {
    let cfg = &c.analysed.cfg;
    let ran = |b: usize| c.counts.blocks[b] > 0;
    if !(0..cfg.blocks.len()).any(|b| cfg.blocks[b].landing_pad && ran(b)) {
        return None;
    }
    // Only paths that were taken: after a call that never returns there may be a landing pad, and nothing says
    // that it never returns.
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

/// Runs of a block for each of its function from which on it is aligned, and how many times as often it is
/// jumped to as run into: llvm-bolt's `-align-blocks` takes the same numbers.
const LOOP_RUNS: u64 = 8;
const LOOP_JUMPS: u64 = 2;

/// Blocks of the hot fragment that are worth a place at the start of a fetch window: they run often, and are
/// mostly jumped to, as the heads of loops are; those that are run into would pay for the padding each time.
pub(super) fn loop_heads(c: &Counted<'_>, hot: &[BlockId], align: u32) -> Vec<BlockId> {
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

/// Functions that move and the calls between them, as orders of functions are made from.
pub(super) struct CallGraph {
    /// By position in `ready`; samples are entries.
    pub functions: Vec<LayoutFunction>,
    pub arcs: Vec<Arc>,
}

impl CallGraph {
    pub fn new(
        counted: &[Counted<'_>],
        calls: &[Call],
        ready: &[Ready],
        of_ready: &[usize],
    ) -> CallGraph {
        let functions = ready
            .iter()
            .zip(of_ready)
            .map(|(r, i)| LayoutFunction {
                size: (r.code.fragments[0].code.bytes.len() as u64).max(1),
                samples: counted[*i].entries.max(1),
            })
            .collect();
        CallGraph {
            functions,
            arcs: arcs(calls, ready),
        }
    }

    /// The functions with counts that are at least as large as those of the calls from them and to them: a function
    /// whose loop calls others runs as often as they do, however seldom it is entered. By entries alone it would look
    /// cold, and be placed apart from what it calls.
    pub fn raised(&self) -> Vec<LayoutFunction> {
        let mut raised = self.functions.clone();
        let mut sums = vec![[0u64; 2]; raised.len()];
        for arc in &self.arcs {
            for (side, function) in [arc.caller, arc.callee].into_iter().enumerate() {
                let sum = &mut sums[function as usize][side];
                *sum = sum.saturating_add(arc.count);
            }
        }
        for (function, sums) in raised.iter_mut().zip(sums) {
            function.samples = function.samples.max(sums[0]).max(sums[1]);
        }
        raised
    }
}

/// One arc for each pair of functions, with the average place of its calls. By positions in `ready`.
fn arcs(calls: &[Call], ready: &[Ready]) -> Vec<Arc> {
    let position: FxHashMap<u32, u32> = ready
        .iter()
        .enumerate()
        .map(|(i, r)| (r.function, i as u32))
        .collect();
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
}

/// Orders the hot fragments: positions in `ready`.
pub(super) fn order_functions(
    program: &Program<'_>,
    graph: &CallGraph,
    ready: &[Ready],
    options: &OptimizeOptions,
) -> Vec<u32> {
    let CallGraph { functions, arcs } = graph;
    let original: Vec<u32> = (0..ready.len() as u32).collect();
    match &options.reorder_functions {
        FunctionOrder::None => original,
        FunctionOrder::ExecCount => {
            let mut order = original;
            let runs = |i: &u32| functions[*i as usize].samples;
            order.sort_by(|a, b| runs(b).cmp(&runs(a)).then(a.cmp(b)));
            order
        }
        FunctionOrder::Cdsort => cdsort::order(functions, arcs),
        FunctionOrder::Hfsort => hfsort::order(&graph.raised(), arcs),
        FunctionOrder::User(names) => {
            let keyed = names.iter().enumerate();
            let lookup =
                Lookup::of_names(program, keyed.map(|(i, name)| (Index(i), name.as_bytes())));
            let mut rank: FxHashMap<u32, usize> = FxHashMap::default();
            for i in 0..names.len() {
                let address = lookup.address(Index(i));
                if let Some(f) = address.and_then(|address| function_at(program, address)) {
                    rank.entry(f).or_insert(i);
                }
            }
            let mut order = cdsort::order(functions, arcs);
            order.sort_by_key(|i| {
                let rank = rank.get(&ready[*i as usize].function);
                rank.copied().unwrap_or(usize::MAX)
            });
            order
        }
    }
}
