//! A function's blocks as BOLT sees them.
//!
//! Profiles by blocks number BOLT's blocks, and its functions are what symbols give: a part that the compiler
//! split off is a function of its own there. Our blocks are finer:
//!
//! | ours | BOLT's |
//! |---|---|
//! | a block ends after a call that may not come back in the ordinary way | calls end no block |
//! | a jump alone within the function, after a conditional one, that nothing else leads to | is a part of the block of the conditional one |
//!
//! So a block of BOLT's is a run of ours. Its edges are those of the run that do not lead to the next of the run.

use postlink_isa::{Flow, Isa};
use rustc_hash::FxHashMap;

use crate::cfg::{BlockId, Cfg, Term};
use crate::discover::{Program, lsda_of};

/// A block of BOLT's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoltBlock {
    /// The first of our blocks in it.
    pub first: BlockId,
    /// The last of them.
    pub last: BlockId,
}

/// The blocks of a function, part by part.
#[derive(Clone, Debug, Default)]
pub struct BoltBlocks {
    /// Ascending by address within a part, parts in the function's order.
    pub blocks: Vec<BoltBlock>,
    /// By part: its first block, and one more.
    pub parts: Vec<u32>,
    /// By our block: the block that it is in.
    pub of: Vec<u32>,
}

impl BoltBlocks {
    /// Joins a function's blocks.
    pub fn new(cfg: &Cfg) -> BoltBlocks {
        let mut ways_in = vec![0u32; cfg.blocks.len()];
        for to in &cfg.succs {
            ways_in[*to as usize] += 1;
        }
        let mut out = BoltBlocks::default();
        for (b, block) in cfg.blocks.iter().enumerate() {
            let id = b as BlockId;
            let before = b.checked_sub(1).map(|p| &cfg.blocks[p]);
            let part_begins = before.is_none_or(|p| p.piece != block.piece);
            if part_begins {
                while out.parts.len() <= usize::from(block.piece) {
                    out.parts.push(out.blocks.len() as u32);
                }
            }
            let alone = ways_in[b] == 1 && !block.entry && !block.landing_pad;
            let joins = !part_begins
                && alone
                && cfg.label_at(block.start).is_none()
                && before.is_some_and(|p| {
                    let leads_here = cfg.succs(id - 1).contains(&id);
                    let jump_alone = block.start == block.term_at && block.term == Term::Jump;
                    leads_here
                        && match p.term {
                            Term::Fall => true,
                            Term::Cond { .. } | Term::ShortCond => jump_alone,
                            _ => false,
                        }
                });
            match out.blocks.last_mut() {
                Some(last) if joins => last.last = id,
                _ => out.blocks.push(BoltBlock {
                    first: id,
                    last: id,
                }),
            }
            out.of.push(out.blocks.len() as u32 - 1);
        }
        out.parts.push(out.blocks.len() as u32);
        out
    }

    /// The blocks of a part, by their numbers in [`BoltBlocks::blocks`].
    pub fn part(&self, part: usize) -> std::ops::Range<u32> {
        match (self.parts.get(part), self.parts.get(part + 1)) {
            (Some(from), Some(to)) => *from..*to,
            _ => 0..0,
        }
    }

    /// Our blocks in one of these.
    pub fn run(&self, block: u32) -> std::ops::RangeInclusive<BlockId> {
        let b = self.blocks[block as usize];
        b.first..=b.last
    }

    /// Edges in the order in which BOLT lists them: (our source, place among its successors, target).
    pub fn edges<'a>(
        &'a self,
        cfg: &'a Cfg,
        block: u32,
    ) -> impl Iterator<Item = (BlockId, usize, u32)> + 'a {
        let last = self.blocks[block as usize].last;
        self.run(block).flat_map(move |b| {
            let next = (b < last).then_some(b + 1);
            cfg.succs(b)
                .iter()
                .enumerate()
                .filter(move |(_, to)| Some(**to) != next)
                .map(move |(k, to)| (b, k, self.of[*to as usize]))
        })
    }

    /// The landing pads of what is called in each block of a part, in the order of the calls, by the pads'
    /// blocks. Empty if there are none at all.
    fn landing_pads<I: Isa>(
        &self,
        program: &Program<'_>,
        function: usize,
        cfg: &Cfg,
        part: usize,
    ) -> Vec<Vec<u32>> {
        let piece = program.functions[function].pieces.get(part);
        let Some(lsda) = piece.and_then(|p| lsda_of(program, *p as usize).ok().flatten()) else {
            return Vec::new();
        };
        let starts: FxHashMap<u64, BlockId> = cfg
            .blocks
            .iter()
            .enumerate()
            .map(|(b, block)| (block.start, b as BlockId))
            .collect();
        let of_block = |b: u32| {
            let mut pads = Vec::new();
            for x in self.run(b) {
                let block = &cfg.blocks[x as usize];
                let mut at = block.start;
                while at < block.end {
                    let bytes = program.elf.bytes_at(at, (block.end - at).min(16));
                    let Some(insn) = bytes.and_then(|bytes| I::decode(bytes, at)) else {
                        break;
                    };
                    if matches!(insn.flow, Flow::Call { .. } | Flow::IndirectCall) {
                        let site = lsda
                            .call_sites
                            .iter()
                            .find(|site| site.start <= at && at < site.end());
                        let pad = site.and_then(|site| starts.get(&site.landing_pad?));
                        let pad = pad.map(|pad| self.of[*pad as usize]);
                        pads.extend(pad.filter(|pad| !pads.contains(pad)));
                    }
                    at = at.saturating_add(u64::from(insn.len).max(1));
                }
            }
            pads
        };
        self.part(part).map(of_block).collect()
    }

    /// The numbers of a part's blocks in depth-first order: position by block, counted from the part's first.
    pub fn depth_first<I: Isa>(
        &self,
        program: &Program<'_>,
        function: usize,
        cfg: &Cfg,
        part: usize,
    ) -> Vec<u32> {
        let range = self.part(part);
        let pads = self.landing_pads::<I>(program, function, cfg, part);
        let own = |b: u32| range.contains(&b).then(|| (b - range.start) as usize);
        let mut position = vec![u32::MAX; range.len()];
        let mut next = 0;
        let mut stack: Vec<u32> = range
            .clone()
            .filter(|b| {
                *b == range.start || cfg.blocks[self.blocks[*b as usize].first as usize].entry
            })
            .collect();
        stack.reverse();
        while let Some(b) = stack.pop() {
            let Some(i) = own(b) else { continue };
            if position[i] != u32::MAX {
                continue;
            }
            position[i] = next;
            next += 1;
            stack.extend(pads.get(i).into_iter().flatten());
            let to: Vec<u32> = self.edges(cfg, b).map(|e| e.2).collect();
            let straight = self.run(b).all(|x| match cfg.blocks[x as usize].term {
                Term::Cond { cond } => I::is_canonical(cond),
                _ => true,
            });
            if to.len() == 2 && !straight {
                stack.extend(to.iter().rev());
            } else {
                stack.extend(&to);
            }
        }
        // What nothing leads to comes last.
        for p in position.iter_mut().filter(|p| **p == u32::MAX) {
            *p = next;
            next += 1;
        }
        position
    }
}
