//! What a profile by names or blocks says of one function, and the counts that follow from it.
//!
//! Exact counters are solved; anything else is *evidence*: counts of some edges, blocks, entries and ways
//! out, which contradict each other and leave gaps. [`Evidence::solve`] turns it into the nearest counts that
//! conserve flow ([`postlink_flow::infer`]).
//!
//! What is assumed of an edge without a count:
//!
//! | way | assumption |
//! |---|---|
//! | into the next block | likely |
//! | the way of a branch that is expected to be taken ([`Evidence::taken`]) | likely, and into the next block less |
//! | any other branch, a table's target | less likely; not taken if the function's branches (or the table's jumps) were recorded at all |
//! | return, tail call, trap | free: what flows in flows out |
//! | out of a call that may not come back, into a landing pad | rare |
//! | out after a call that never comes back | free |

use postlink_flow::infer::{Block, Inference, Jump, Likely, OUTSIDE, Prices};
use rustc_hash::FxHashMap;

use crate::analyse::Analysed;
use crate::analyse::counters::Counts;
use crate::attach::Counted;
use crate::cfg::{BlockId, Cfg, Term};

/// What is known of a function.
#[derive(Clone, Debug)]
pub struct Evidence {
    /// By block.
    pub blocks: Vec<Option<u64>>,
    /// By edge, parallel to [`Cfg::succs`].
    pub edges: Vec<Option<u64>>,
    /// By block with a conditional jump out of the function: how often it was taken.
    pub out: FxHashMap<BlockId, u64>,
    /// By entry block: how often it was entered from outside.
    pub entries: FxHashMap<BlockId, u64>,
    /// Blocks whose conditional branch is likelier taken than not, where no count says it; ascending.
    pub taken: Vec<BlockId>,
    /// What changes cost.
    pub prices: Prices,
}

impl Evidence {
    /// None yet.
    pub fn new(cfg: &Cfg, prices: Prices) -> Evidence {
        Evidence {
            blocks: vec![None; cfg.blocks.len()],
            edges: vec![None; cfg.succs.len()],
            out: FxHashMap::default(),
            entries: FxHashMap::default(),
            taken: Vec::new(),
            prices,
        }
    }

    /// Adds to the count of an edge.
    pub fn add_edge(&mut self, edge: usize, count: u64) {
        if let Some(slot) = self.edges.get_mut(edge) {
            *slot = Some(slot.unwrap_or(0).saturating_add(count));
        }
    }

    /// Takes branches of which nothing was recorded for not taken: for complete records of branches. Ways
    /// into the next block stay unknown unless `falls`, as do those that only we see because a call ends a
    /// block of ours.
    pub fn close(&mut self, cfg: &Cfg, falls: bool, joined: impl Fn(BlockId) -> bool) {
        for (b, block) in cfg.blocks.iter().enumerate() {
            let id = b as BlockId;
            // Not every tool records jumps through tables.
            let own = block.succ as usize..(block.succ + block.nsucc) as usize;
            if matches!(block.term, Term::Dispatch { .. })
                && self.edges[own].iter().all(Option::is_none)
            {
                continue;
            }
            for k in 0..block.nsucc {
                let slot = &mut self.edges[(block.succ + k) as usize];
                let runs_on = runs_on(block.term, k);
                if slot.is_none() && !joined(id) && (!runs_on || falls) {
                    *slot = Some(0);
                }
            }
            if matches!(block.term, Term::CondOut { .. } | Term::ShortCondOut { .. }) {
                self.out.entry(id).or_insert(0);
            }
        }
    }

    /// The nearest counts that conserve flow.
    pub fn solve<'d>(
        &self,
        function: u32,
        analysed: Analysed<'d>,
        inference: &mut Inference,
    ) -> Counted<'d> {
        let cfg = &analysed.cfg;
        let blocks: Vec<Block> = self.blocks.iter().map(|c| Block { count: *c }).collect();
        let mut jumps: Vec<Jump> = Vec::with_capacity(cfg.succs.len() + cfg.blocks.len());
        // First the edges, in their order; what leads in and out follows.
        for (b, block) in cfg.blocks.iter().enumerate() {
            let is_taken = self.taken.binary_search(&(b as BlockId)).is_ok();
            for (k, to) in cfg.succs(b as BlockId).iter().enumerate() {
                let likely = match runs_on(block.term, k as u32) != is_taken {
                    true => Likely::Falls,
                    false if block.term == Term::Jump => Likely::Falls,
                    false => Likely::Taken,
                };
                jumps.push(Jump {
                    from: b as u32,
                    to: *to,
                    count: self.edges[block.succ as usize + k],
                    likely,
                });
            }
        }
        let mut outs: Vec<(usize, BlockId)> = Vec::new();
        for (b, block) in cfg.blocks.iter().enumerate() {
            let id = b as BlockId;
            let mut push = |from: u32, to: u32, count: Option<u64>, likely: Likely| {
                jumps.push(Jump {
                    from,
                    to,
                    count,
                    likely,
                });
            };
            if block.entry {
                let known = self.entries.get(&id).copied();
                push(
                    OUTSIDE,
                    id,
                    known,
                    if b == 0 { Likely::Free } else { Likely::Taken },
                );
            } else if block.landing_pad || block.returns_twice {
                push(OUTSIDE, id, None, Likely::Rare);
            }
            match block.term {
                Term::Return
                | Term::Stop
                | Term::JumpOut { .. }
                | Term::IndirectOut
                | Term::FallBack => {
                    push(id, OUTSIDE, None, Likely::Free);
                }
                Term::Dispatch { leaves: true, .. } => push(id, OUTSIDE, None, Likely::Taken),
                _ if block.nonlocal_exits => {
                    let never = block.unlikely && block.term == Term::Fall;
                    push(
                        id,
                        OUTSIDE,
                        None,
                        if never { Likely::Free } else { Likely::Rare },
                    );
                }
                _ => {}
            }
            if matches!(block.term, Term::CondOut { .. } | Term::ShortCondOut { .. }) {
                outs.push((jumps.len(), id));
                jumps.push(Jump {
                    from: id,
                    to: OUTSIDE,
                    count: self.out.get(&id).copied(),
                    likely: Likely::Taken,
                });
            }
        }
        let solved = inference.infer(&blocks, &jumps, &self.prices);
        let mut counts = Counts {
            blocks: solved.blocks,
            succs: solved.jumps[..cfg.succs.len()].to_vec(),
            out: FxHashMap::default(),
            inconsistent: 0,
        };
        for (j, b) in outs {
            counts.out.insert(b, solved.jumps[j]);
        }
        Counted::new(function, analysed, counts)
    }
}

/// Whether a way out of a block leads into the next one without a branch.
fn runs_on(term: Term, way: u32) -> bool {
    match term {
        Term::Fall | Term::CondOut { .. } | Term::ShortCondOut { .. } => way == 0,
        Term::Cond { .. } | Term::ShortCond => way == 1,
        _ => false,
    }
}
