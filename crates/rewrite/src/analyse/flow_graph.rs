//! The flow graph of a function: nodes that conserve what enters them, and what counting each edge costs.
//!
//! Nodes: the outside, two for each block (its beginning and its end, joined by an edge that represents the
//! block itself), one for each class of indirect jumps that share targets. A class with a target that is
//! entered from outside as well cannot be told from the outside, and is the outside.
//!
//! The cost of an edge is a guess of how often it runs, times what its place costs. Edges that no code can be
//! put on have none: entries, returns, calls that leave by other ways, the targets of a jump table.

use postlink_flow::{Edge, Graph};
use rustc_hash::FxHashMap;

use super::frequency::{self, Frequencies};
use crate::cfg::{Block, BlockId, Cfg, Term};

/// What an edge of the graph represents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// A block.
    Node(BlockId),
    /// A way out of a block: index into its successors, `nsucc` for a conditional jump out of the function.
    Edge(BlockId, u32),
    /// From a class of indirect jumps to a block.
    Target(BlockId),
    /// Entering or leaving the function.
    Outside,
}

/// What an edge costs whose guess is zero: less than any guess, since flow into deep code is divided many times.
const LEAST: f32 = 1e-20;

/// What a counter costs, in counters that are put into blocks, on an edge that gets code of its own elsewhere: a jump
/// away from there as well.
const WITH_JUMP: f32 = 2.0;

/// The outside.
const OUTSIDE: u32 = 0;

/// Builds the graph, and says what each edge represents, in memory that is used again, as is that of `prices`.
pub(super) fn build(
    cfg: &Cfg,
    (mut graph, mut meaning): (Graph, Vec<Meaning>),
    prices: &mut Prices,
) -> (Graph, Vec<Meaning>) {
    graph.edges.clear();
    meaning.clear();
    prices.frequency.guess(cfg, &mut prices.space);
    ways_in(cfg, &mut prices.ways_in);
    let builder = build_with(cfg, Some(prices), (graph, meaning));
    (builder.graph, builder.meaning)
}

/// Builds the graph in `graph`, whose memory is used again. Which edges have a weight is said, but all weights are
/// zero: that is enough to know how many of them need a counter.
pub(super) fn build_without_prices(cfg: &Cfg, graph: &mut Graph) {
    graph.edges.clear();
    let memory = (std::mem::take(graph), Vec::new());
    *graph = build_with(cfg, None, memory).graph;
}

fn build_with<'a>(
    cfg: &'a Cfg,
    prices: Option<&'a Prices>,
    (graph, meaning): (Graph, Vec<Meaning>),
) -> Builder<'a> {
    let classes = Classes::new(cfg);
    let mut builder = Builder {
        cfg,
        prices,
        graph,
        meaning,
        classes,
    };
    builder.graph.nodes = 1 + 2 * builder.blocks() + cfg.dispatches.len() as u32;
    // Two edges a block are the usual: its own, and those to the next or from outside.
    let about = 2 * cfg.blocks.len() + cfg.succs.len() + builder.classes.of_block.len();
    if builder.prices.is_some() {
        builder.graph.edges.reserve_exact(about);
        builder.meaning.reserve_exact(about);
    }
    for b in 0..builder.blocks() {
        builder.block(b);
    }
    builder.dispatches();
    builder
}

/// Whether control comes to a block in another way than from a block of its function.
fn is_entered(block: &Block) -> bool {
    block.entry || block.landing_pad || block.returns_twice
}

/// How many ways lead into each block.
fn ways_in(cfg: &Cfg, into: &mut Vec<u32>) {
    into.clear();
    into.extend(cfg.blocks.iter().map(|b| u32::from(is_entered(b))));
    for s in &cfg.succs {
        into[*s as usize] += 1;
    }
}

/// Classes of indirect jumps that share a target.
struct Classes {
    /// By dispatch: its class, which is the lowest dispatch of it.
    of_dispatch: Vec<u32>,
    /// The class that a block is a target of.
    of_block: FxHashMap<BlockId, u32>,
    /// By class: a jump may leave the function.
    leaves: Vec<bool>,
    /// By class: it is the outside.
    is_outside: Vec<bool>,
}

impl Classes {
    fn new(cfg: &Cfg) -> Classes {
        let count = cfg.dispatches.len();
        let mut classes = Classes {
            of_dispatch: (0..count as u32).collect(),
            of_block: FxHashMap::default(),
            leaves: vec![false; count],
            is_outside: vec![false; count],
        };
        for (d, targets) in cfg.dispatches.iter().enumerate() {
            for t in targets {
                let own = classes.of_dispatch[d];
                let other = *classes.of_block.entry(*t).or_insert(own);
                if other != own {
                    classes.merge(other.min(own), other.max(own));
                }
            }
        }
        for b in cfg.blocks.iter().filter(|_| count > 0) {
            if let Term::Dispatch {
                dispatch,
                leaves: true,
            } = b.term
            {
                classes.leaves[classes.of_dispatch[dispatch as usize] as usize] = true;
            }
        }
        for (t, c) in &classes.of_block {
            classes.is_outside[*c as usize] |= is_entered(&cfg.blocks[*t as usize]);
        }
        classes
    }

    fn merge(&mut self, low: u32, high: u32) {
        let of_dispatch = self.of_dispatch.iter_mut();
        for class in of_dispatch.chain(self.of_block.values_mut()) {
            if *class == high {
                *class = low;
            }
        }
    }
}

/// What the costs of edges follow from.
#[derive(Default)]
pub(super) struct Prices {
    frequency: Frequencies,
    /// By block: how many ways lead into it.
    ways_in: Vec<u32>,
    space: frequency::Space,
}

struct Builder<'a> {
    cfg: &'a Cfg,
    /// Nothing if costs do not matter; then it is not noted either what edges represent.
    prices: Option<&'a Prices>,
    classes: Classes,
    graph: Graph,
    meaning: Vec<Meaning>,
}

/// The node at a block's beginning.
fn begin(block: BlockId) -> u32 {
    1 + 2 * block
}

/// The node at a block's end.
fn end(block: BlockId) -> u32 {
    2 + 2 * block
}

impl Builder<'_> {
    fn blocks(&self) -> u32 {
        self.cfg.blocks.len() as u32
    }

    fn class_node(&self, class: u32) -> u32 {
        if self.classes.is_outside[class as usize] {
            OUTSIDE
        } else {
            1 + 2 * self.blocks() + class
        }
    }

    /// `cost`: of counting the edge, if that is possible.
    fn add(&mut self, from: u32, to: u32, cost: Option<f32>, meaning: Meaning) {
        self.graph.edges.push(Edge {
            from,
            to,
            weight: cost,
        });
        if self.prices.is_some() {
            self.meaning.push(meaning);
        }
    }

    /// Whether a block has an edge from outside by what it is itself.
    fn has_entry_edge(&self, b: BlockId) -> bool {
        let block = &self.cfg.blocks[b as usize];
        let class = self.classes.of_block.get(&b);
        // What a call returns to a second time comes from outside; that edge is added with the call.
        block.entry
            || block.landing_pad
            || class.is_some_and(|c| self.classes.is_outside[*c as usize])
    }

    /// The cost of counting a block's `k`-th way out.
    fn way_cost(&self, b: BlockId, k: u32) -> Option<f32> {
        let block = &self.cfg.blocks[b as usize];
        let s = self.cfg.succs(b)[k as usize] as usize;
        if block.watch.loaded_out && self.cfg.blocks[s].watch.stores_in {
            return None;
        }
        let Some(prices) = self.prices else {
            return Some(0.0);
        };
        let taken = prices.frequency.edges[(block.succ + k) as usize];
        Some(if prices.ways_in[s] == 1 {
            // The counter is in the block that the edge leads to.
            taken * 0.99
        } else if k == 0 && matches!(block.term, Term::Cond { .. } | Term::ShortCond) {
            // A taken branch gets code of its own, and a jump.
            taken * WITH_JUMP + LEAST
        } else {
            taken * 1.05 + LEAST
        })
    }

    /// The edges of a block: its own, the one from outside, its ways out.
    fn block(&mut self, b: BlockId) {
        let cfg = self.cfg;
        let block = &cfg.blocks[b as usize];
        let prices = self.prices;
        let runs = prices.map_or(0.0, |prices| prices.frequency.blocks[b as usize]);
        let own = (!block.watch.whole).then_some(runs);
        self.add(begin(b), end(b), own, Meaning::Node(b));
        if self.has_entry_edge(b) {
            self.add(OUTSIDE, begin(b), None, Meaning::Outside);
        }
        if block.faults_from != u64::MAX {
            self.faulting(b, runs);
            return;
        }
        self.ways(b, runs);
    }

    /// The ways out of a block at its end.
    fn ways(&mut self, b: BlockId, runs: f32) {
        let cfg = self.cfg;
        let block = &cfg.blocks[b as usize];
        match block.term {
            Term::Dispatch { dispatch, .. } => {
                let class = self.classes.of_dispatch[dispatch as usize];
                let node = self.class_node(class);
                self.add(end(b), node, None, Meaning::Outside);
            }
            Term::Fall | Term::Jump if block.nsucc == 1 => self.only_way(b, runs),
            Term::Cond { .. } | Term::ShortCond => {
                for (k, s) in (0u32..).zip(cfg.succs(b)) {
                    let cost = self.way_cost(b, k);
                    self.add(end(b), begin(*s), cost, Meaning::Edge(b, k));
                }
            }
            Term::CondOut { .. } | Term::ShortCondOut { .. } => {
                let (s, cost) = (cfg.succs(b)[0], self.way_cost(b, 0));
                self.add(end(b), begin(s), cost, Meaning::Edge(b, 0));
                let out = Some(runs * 0.3 * WITH_JUMP + LEAST);
                self.add(end(b), OUTSIDE, out, Meaning::Edge(b, 1));
            }
            _ => self.add(end(b), OUTSIDE, None, Meaning::Outside),
        }
    }

    /// The ways out of a block whose instructions may fault: some executions leave in the middle, for the outside.
    fn faulting(&mut self, b: BlockId, runs: f32) {
        let block = &self.cfg.blocks[b as usize];
        let ends_outside = match block.term {
            Term::Fall | Term::Jump => block.nsucc != 1 || block.nonlocal_exits,
            Term::Cond { .. } | Term::ShortCond => false,
            Term::CondOut { .. } | Term::ShortCondOut { .. } | Term::Dispatch { .. } => false,
            _ => true,
        };
        if ends_outside {
            self.ways(b, runs);
            return;
        }
        self.add(end(b), OUTSIDE, None, Meaning::Outside);
        let only = matches!(block.term, Term::Fall | Term::Jump);
        if only && !self.returns_twice_to(b, self.cfg.succs(b)[0]) {
            // Counting the block does not count its only way out.
            let (s, cost) = (self.cfg.succs(b)[0], self.way_cost(b, 0));
            self.add(end(b), begin(s), cost, Meaning::Edge(b, 0));
        } else {
            self.ways(b, runs);
        }
    }

    /// Whether a block ends with the call that returns to another one a second time. (A jump to there is one like any
    /// other.)
    fn returns_twice_to(&self, b: BlockId, next: BlockId) -> bool {
        let falls = self.cfg.blocks[b as usize].term == Term::Fall;
        falls && self.cfg.blocks[next as usize].returns_twice
    }

    /// The way out of a block that has one, maybe after a call.
    fn only_way(&mut self, b: BlockId, runs: f32) {
        let block = &self.cfg.blocks[b as usize];
        let s = self.cfg.succs(b)[0];
        if self.returns_twice_to(b, s) {
            // A counter after the call counts every return, also those that come from elsewhere (`longjmp`):
            // all of them are one edge from outside, and the call's own way ends outside.
            self.add(end(b), OUTSIDE, None, Meaning::Outside);
            if !self.has_entry_edge(s) {
                self.add(OUTSIDE, begin(s), None, Meaning::Edge(b, 0));
            }
            return;
        }
        if !block.nonlocal_exits {
            // Counting the block counts its only way out.
            self.add(end(b), begin(s), None, Meaning::Edge(b, 0));
            return;
        }
        self.add(end(b), OUTSIDE, None, Meaning::Outside);
        let cost = if block.unlikely {
            Some(runs * 0.001 + LEAST)
        } else {
            self.way_cost(b, 0)
        };
        self.add(end(b), begin(s), cost, Meaning::Edge(b, 0));
    }

    /// The edges of classes of indirect jumps that are nodes.
    fn dispatches(&mut self) {
        let of_block = self.classes.of_block.iter();
        let mut targets: Vec<(u32, BlockId)> = of_block.map(|(b, c)| (*c, *b)).collect();
        targets.sort_unstable();
        let mut last = u32::MAX;
        for (class, target) in targets {
            let node = self.class_node(class);
            if node == OUTSIDE {
                continue;
            }
            if class != last && self.classes.leaves[class as usize] {
                self.add(node, OUTSIDE, None, Meaning::Outside);
            }
            last = class;
            self.add(node, begin(target), None, Meaning::Target(target));
        }
    }
}
