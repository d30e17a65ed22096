//! The best of several layouts, by a model of the instruction cache.
//!
//! Blocks are ordered and code is emitted once. What is tried is the order of functions and the space between them, as
//! that alone decides which lines share a set of the cache: each trial is a list of addresses, and
//! [`postlink_layout::front_end`] says what it costs. The best is linked, written and proved, once.
//!
//! ```text
//!  counts, graphs ──► Walk (before graphs are given up)
//!  emitted code ──► CallGraph ──► orders × alignments ──► addresses ──► Estimate ──► the cheapest
//! ```
//!
//! The first layout is what would be made without a search. Another is taken only if it costs 1 % less and two standard
//! errors less, and its hot code is at most 1 % longer than with functions at the usual alignment.

use postlink_elf::write::Writer;
use postlink_layout::front_end::{
    Callee, CodeGraph, Estimate, Place, Recorder, Site, Trace, WalkSize, Way,
};
use postlink_layout::padding::{self, Stretch};
use postlink_layout::{cdsort, hfsort};
use postlink_profile::windows::{Step, Windows};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;

use super::layout::CallGraph;
use crate::attach::{Call, Counted};
use crate::cfg::{BlockId, Callee as Known, Term, Use};
use crate::link::Ready;

/// What was executed in which order, by a trace or by a walk through the program, and where its blocks were.
pub(super) struct Walk {
    trace: Trace,
    recorded: bool,
    /// By function with counts: number of its first block among all of them.
    first: Vec<u32>,
    /// Places of all blocks in the input: of functions that stay.
    old: Vec<Place>,
}

impl Walk {
    /// By a trace, if there is one with code of the program in it, else by counts.
    pub(super) fn new(counted: &[Counted<'_>], calls: &[Call], windows: Option<&Windows>) -> Walk {
        let recorded = windows.and_then(|windows| recorded(counted, windows));
        let (mut first, mut old) = (Vec::with_capacity(counted.len()), Vec::new());
        for c in counted {
            first.push(old.len() as u32);
            old.extend(c.analysed.cfg.blocks.iter().map(|block| Place {
                start: block.start,
                len: (block.end - block.start) as u32,
            }));
        }
        Walk {
            recorded: recorded.is_some(),
            trace: recorded.unwrap_or_else(|| walked(counted, calls)),
            first,
            old,
        }
    }
}

/// A walk by counts.
fn walked(counted: &[Counted<'_>], calls: &[Call]) -> Trace {
    let number: FxHashMap<u32, u32> = (0..).zip(counted).map(|(i, c)| (c.function, i)).collect();
    let mut by_caller: Vec<Vec<&Call>> = vec![Vec::new(); counted.len()];
    for call in calls {
        if let Some(caller) = number.get(&call.caller) {
            by_caller[*caller as usize].push(call);
        }
    }
    let sites: Vec<Vec<Site>> = postlink_parallel::map_range(counted.len(), |i| {
        sites(&counted[i], &by_caller[i], &number)
    });
    let mut graph = CodeGraph::default();
    for (c, sites) in counted.iter().zip(&sites) {
        let cfg = &c.analysed.cfg;
        let ways: Vec<Way> = cfg
            .succs
            .iter()
            .zip(&c.counts.succs)
            .map(|(to, count)| Way {
                to: *to,
                count: *count,
            })
            .collect();
        let of = |b: BlockId| {
            let block = &cfg.blocks[b as usize];
            &ways[block.succ as usize..(block.succ + block.nsucc) as usize]
        };
        graph.push(c.entries, &c.counts.blocks, of, sites);
    }
    Trace::walk(&graph, WalkSize::default())
}

/// A trace of blocks from one of instructions. `None` if no instruction of a function with counts is in it.
fn recorded(counted: &[Counted<'_>], windows: &Windows) -> Option<Trace> {
    let blocks = |c: &Counted<'_>| {
        c.analysed
            .cfg
            .blocks
            .iter()
            .map(|b| (b.start, b.end))
            .collect()
    };
    let all: Vec<Vec<(u64, u64)>> = counted.iter().map(blocks).collect();
    // First address, one past the last, number.
    let mut places: Vec<(u64, u64, u32)> = (0u32..)
        .zip(all.iter().flatten())
        .map(|(number, (start, end))| (*start, *end, number))
        .collect();
    places.sort_unstable();
    let block_of = |address: u64| {
        let after = places.partition_point(|place| place.0 <= address);
        places[..after].last().filter(|place| address < place.1)
    };
    let mut recorder = Recorder::default();
    for window in &windows.windows {
        // The part of a block that is being executed: its place, and offsets of its first and last instruction.
        let mut part: Option<((u64, u64, u32), u32, u32)> = None;
        for step in window.steps() {
            if let (Step::Inside(address), Some((place, _, last))) = (step, &mut part) {
                let rest = place.0 + u64::from(*last)..place.1;
                if rest.contains(&address) {
                    *last = (address - place.0) as u32;
                    continue;
                }
            }
            close(&mut recorder, part.take());
            match step {
                Step::Elsewhere(line) => recorder.elsewhere(line),
                Step::Inside(address) => match block_of(address) {
                    None => recorder.fixed(address),
                    Some(place) => {
                        let offset = (address - place.0) as u32;
                        part = Some((*place, offset, offset));
                    }
                },
            }
        }
        close(&mut recorder, part);
        recorder.end();
    }
    recorder.finish(counted.iter().flat_map(|c| c.counts.blocks.iter().copied()))
}

/// Longest instruction of x86-64.
const LONGEST_INSTRUCTION: u64 = 15;

/// Records the part of a block that was executed.
fn close(recorder: &mut Recorder, part: Option<((u64, u64, u32), u32, u32)>) {
    if let Some(((start, end, block), from, last)) = part {
        // How long the last instruction is is not known. Near the block's end it is the block's last one.
        let left = (end - start).saturating_sub(u64::from(last));
        let to = if left <= LONGEST_INSTRUCTION {
            u32::MAX
        } else {
            last + 1
        };
        recorder.block(block, from, to);
    }
}

/// Calls of a function, and jumps out of it. What is not known to lead into a function with counts leads outside.
fn sites(c: &Counted<'_>, calls: &[&Call], number: &FxHashMap<u32, u32>) -> Vec<Site> {
    let cfg = &c.analysed.cfg;
    let mut at: FxHashMap<(BlockId, u64), Vec<(Callee, u64)>> = FxHashMap::default();
    for call in calls {
        let callee = number.get(&call.callee);
        let callee = callee.map_or(Callee::Outside(call.target as u32), |i| {
            Callee::Function(*i)
        });
        let list = at.entry((call.block, call.at)).or_default();
        list.push((callee, call.count));
    }
    let ran = |b: BlockId| c.counts.blocks[b as usize];
    for b in 0..cfg.blocks.len() as BlockId {
        let direct = cfg.fields(b).iter().filter(|f| f.role == Use::Call);
        for field in direct.filter(|_| ran(b) > 0) {
            at.entry((b, field.at))
                .or_insert_with(|| vec![(Callee::Outside(field.target as u32), ran(b))]);
        }
    }
    for site in cfg.sites.iter().filter(|site| ran(site.block) > 0) {
        let list = at.entry((site.block, site.at)).or_default();
        let known = list.iter().fold(0u64, |sum, c| sum.saturating_add(c.1));
        let rest = ran(site.block).saturating_sub(known);
        if rest > 0 && !matches!(site.callee, Known::Function(_)) {
            list.push((Callee::Outside(site.at as u32), rest));
        }
    }
    let tails: FxHashSet<u64> = cfg.sites.iter().filter(|s| s.tail).map(|s| s.at).collect();
    let mut sites: Vec<Site> = at
        .into_iter()
        .map(|((b, at), mut callees)| {
            let block = &cfg.blocks[b as usize];
            let leaves = matches!(
                block.term,
                Term::JumpOut { .. } | Term::CondOut { .. } | Term::ShortCondOut { .. }
            );
            callees.sort_unstable_by_key(|(callee, count)| match callee {
                Callee::Function(f) => (0, *f, *count),
                Callee::Outside(code) => (1, *code, *count),
            });
            Site {
                block: b,
                // The instruction ends a few bytes after what names it.
                offset: (at + 4).min(block.end).saturating_sub(block.start) as u32,
                tail: at == block.term_at && leaves || tails.contains(&at),
                callees,
            }
        })
        .collect();
    sites.sort_unstable_by_key(|site| (site.block, site.offset));
    sites
}

/// Order of functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// As without a search.
    Given,
    Hfsort,
    Cdsort,
    /// The same, with [raised](CallGraph::raised) counts.
    HfsortRaised,
    CdsortRaised,
}

/// Alignment of hot functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Align {
    /// As without a search.
    Given,
    /// Some functions at lines, the others [anywhere](postlink_layout::padding).
    Lines,
    /// Close together.
    Least,
    /// All alike.
    Even(u64),
}

const ORDERS: [Order; 5] = [
    Order::Given,
    Order::Hfsort,
    Order::HfsortRaised,
    Order::Cdsort,
    Order::CdsortRaised,
];
const ALIGNS: [Align; 6] = [
    Align::Given,
    Align::Lines,
    Align::Least,
    Align::Even(16),
    Align::Even(32),
    Align::Even(64),
];

/// A layout that was tried.
#[derive(Clone, Debug, Serialize)]
pub struct Tried {
    /// Order of functions and their alignment.
    pub name: String,
    /// Expected misses of the instruction cache.
    pub misses: f64,
    /// Lines with code that ran.
    pub lines: u64,
    /// Expected misses of the translation buffer.
    pub translation_misses: f64,
    /// What layouts are compared by.
    pub cost: f64,
    /// Standard error of the difference of misses to the first layout: what parts of the run that are not in the trace
    /// may make of it.
    pub error: f64,
    /// Bytes of hot code with what is between functions.
    pub bytes: u64,
}

/// What a search found.
#[derive(Clone, Debug, Serialize)]
pub struct SearchReport {
    /// Whether layouts were judged by a trace of the run; else by a walk by its counts.
    pub by_trace: bool,
    /// In the order in which they were tried; the first is what would have been made without a search.
    pub layouts: Vec<Tried>,
    /// Number of the one that was taken.
    pub chosen: usize,
}

/// A layout: where functions go.
pub(super) struct Layout {
    /// Positions in `ready`.
    pub(super) order: Vec<u32>,
    /// By position: alignment of hot fragments.
    pub(super) alignment: Vec<u64>,
}

/// What layouts are made of.
pub(super) struct Trials<'a> {
    pub(super) ready: &'a [Ready],
    /// By position: index among functions with counts.
    pub(super) of_ready: &'a [usize],
    pub(super) calls: &'a CallGraph,
    /// The order that is made without a search.
    pub(super) given: Vec<u32>,
    /// By position: least alignment of the hot fragment.
    pub(super) least: Vec<u64>,
    /// Alignment of hot and cold functions.
    pub(super) align: [u64; 2],
    /// Whether hot functions begin at lines or anywhere, without a search.
    pub(super) at_lines: bool,
    /// By position: the code of the hot fragment.
    pub(super) stretches: Vec<Vec<Stretch>>,
    /// Says where new code begins, if layouts are judged.
    pub(super) writer: Option<&'a Writer<'a>>,
}

/// A block's place in its fragment.
struct Part {
    block: u32,
    position: u32,
    fragment: u8,
    offset: u32,
    len: u32,
}

/// The code of a hot fragment, by how often it ran: `runs`, by block.
pub(super) fn stretches(ready: &Ready, runs: &[u64]) -> Vec<Stretch> {
    let blocks = ready.code.blocks.iter().zip(runs);
    let hot = blocks.filter(|((fragment, _), _)| *fragment == 0);
    let mut list: Vec<Stretch> = hot
        .map(|((_, offset), runs)| Stretch {
            offset: u64::from(*offset),
            len: 0,
            runs: *runs,
        })
        .collect();
    list.sort_unstable_by_key(|stretch| (stretch.offset, stretch.runs));
    let mut end = ready.code.fragments[0].code.bytes.len() as u64;
    for stretch in list.iter_mut().rev() {
        stretch.len = end.saturating_sub(stretch.offset);
        end = stretch.offset;
    }
    list
}

/// By how much of its cost a layout must be better to be taken in place of what is made without a search.
const LEAST_GAIN: f64 = 0.01;
/// By how many standard errors it must be better.
const LEAST_ERRORS: f64 = 2.0;

impl Trials<'_> {
    /// The layout that is made without a search.
    pub(super) fn given(&self) -> Layout {
        self.layout(Order::Given, Align::Given)
    }

    /// Tries layouts, and gives the best and what was tried. `take`: for measuring, the one with this number.
    pub(super) fn best(
        &self,
        walk: &Walk,
        layouts: usize,
        take: Option<usize>,
    ) -> (Layout, SearchReport) {
        let parts = self.parts(walk);
        let all: Vec<(Order, Align)> = ALIGNS
            .iter()
            .flat_map(|align| ORDERS.iter().map(|order| (*order, *align)))
            .take(layouts.max(1))
            .collect();
        let judged: Vec<(String, Layout, Estimate, u64)> =
            postlink_parallel::map_owned(all, |(order, align)| {
                let layout = self.layout(order, align);
                let (estimate, bytes) = self.judge(walk, &layout, &parts);
                let name = format!("{order:?}, {align:?}").to_lowercase();
                (name, layout, estimate, bytes)
            });
        let usual = judged[0].2.clone();
        let tried = judged.into_iter().map(|(name, layout, estimate, bytes)| {
            let tried = Tried {
                name,
                misses: estimate.misses,
                lines: estimate.lines,
                translation_misses: estimate.translation_misses,
                cost: estimate.cost(),
                error: estimate.error_of_difference(&usual),
                bytes,
            };
            (layout, tried)
        });
        let mut tried: Vec<(Layout, Tried)> = tried.collect();
        let given = &tried[0].1;
        let (limit, enough) = (self.limit(&self.given), given.cost * (1.0 - LEAST_GAIN));
        let better = |i: &usize| {
            let tried = &tried[*i].1;
            let sure = given.cost - tried.cost > LEAST_ERRORS * tried.error;
            tried.cost < enough && sure && tried.bytes <= limit
        };
        let cost = |i: &usize| tried[*i].1.cost;
        let cheapest = (1..tried.len()).filter(better);
        let cheapest = cheapest.min_by(|a, b| cost(a).total_cmp(&cost(b)));
        let chosen = take.or(cheapest).unwrap_or(0).min(tried.len() - 1);
        let report = SearchReport {
            by_trace: walk.recorded,
            layouts: tried.iter().map(|t| t.1.clone()).collect(),
            chosen,
        };
        (tried.swap_remove(chosen).0, report)
    }

    fn layout(&self, order: Order, align: Align) -> Layout {
        let CallGraph { functions, arcs } = self.calls;
        let order = match order {
            Order::Given => self.given.clone(),
            Order::Cdsort => cdsort::order(functions, arcs),
            Order::Hfsort => hfsort::order(functions, arcs),
            Order::CdsortRaised => cdsort::order(&self.calls.raised(), arcs),
            Order::HfsortRaised => hfsort::order(&self.calls.raised(), arcs),
        };
        let even = |bytes: u64| self.least.iter().map(|least| bytes.max(*least)).collect();
        let alignment = match align {
            Align::Given if !self.at_lines => even(self.align[0]),
            Align::Given | Align::Lines => {
                let limit = self.limit(&order);
                padding::by_misses(&order, functions, &self.stretches, &self.least, limit)
            }
            Align::Least => self.least.clone(),
            Align::Even(bytes) => even(bytes),
        };
        Layout { order, alignment }
    }

    /// Bytes of hot code that a layout may have: 1 % more than with the usual alignment.
    fn limit(&self, order: &[u32]) -> u64 {
        let mut at = 0u64;
        for i in order {
            let align = self.align[0].max(self.least[*i as usize]);
            at = at.next_multiple_of(align) + self.calls.functions[*i as usize].size;
        }
        at + at / 100
    }

    /// Where blocks are in new code.
    fn parts(&self, walk: &Walk) -> Vec<Part> {
        let mut parts = Vec::new();
        for (position, (r, counted)) in self.ready.iter().zip(self.of_ready).enumerate() {
            let first = walk.first[*counted];
            let from = parts.len();
            parts.extend((first..).zip(&r.code.blocks).filter_map(|(block, place)| {
                (place.0 < 2).then_some(Part {
                    block,
                    position: position as u32,
                    fragment: place.0,
                    offset: place.1,
                    len: 0,
                })
            }));
            let own = &mut parts[from..];
            own.sort_unstable_by_key(|part| (part.fragment, part.offset, part.block));
            for i in 0..own.len() {
                let part = &own[i];
                let end = r.code.fragments[usize::from(part.fragment)]
                    .code
                    .bytes
                    .len() as u32;
                let next = own.get(i + 1).filter(|next| next.fragment == part.fragment);
                own[i].len = next.map_or(end, |next| next.offset) - part.offset;
            }
        }
        parts
    }

    /// What a layout costs, and how long its hot section is.
    fn judge(&self, walk: &Walk, layout: &Layout, parts: &[Part]) -> (Estimate, u64) {
        let mut starts = vec![[0u64; 2]; self.ready.len()];
        let most = layout
            .alignment
            .iter()
            .copied()
            .fold(self.align[0], u64::max);
        let base = self.writer.and_then(|writer| writer.next(most));
        let base = base.map_or(0, |at| at.get());
        let mut at = base;
        let mut hot = 0;
        for fragment in 0..2 {
            for i in &layout.order {
                let len = self.ready[*i as usize].code.fragments[fragment]
                    .code
                    .bytes
                    .len() as u64;
                let align = match fragment {
                    0 => layout.alignment[*i as usize],
                    _ => self.align[1],
                };
                if len > 0 {
                    at = at.next_multiple_of(align);
                    starts[*i as usize][fragment] = at;
                    at += len;
                }
            }
            if fragment == 0 {
                hot = at - base;
            }
        }
        let mut places = walk.old.clone();
        for (r, counted) in self.ready.iter().zip(self.of_ready) {
            let first = walk.first[*counted] as usize;
            places[first..first + r.code.blocks.len()].fill(Place::default());
        }
        for part in parts {
            places[part.block as usize] = Place {
                start: starts[part.position as usize][usize::from(part.fragment)]
                    + u64::from(part.offset),
                len: part.len,
            };
        }
        (walk.trace.judge(&places), hot)
    }
}
