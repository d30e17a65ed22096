//! How often each block and each edge of a function may run, guessed from the code alone.
//!
//! Counters go where they run least, so the guess decides what instrumentation costs; it never decides what
//! is counted. Each conditional jump gets a probability from its shape, and the flow that enters the function
//! is sent along the edges, in the order of the blocks, until it has been round every loop a few times: loops
//! that do not overlap one after the other, so that only blocks in loops are visited more than once.
//!
//! Of a conditional jump both ways are looked at, and what holds of each makes it likelier or less likely ([`WAY`],
//! [`DISTANCE`]): heuristics that are put together by multiplying odds, as in logistic regression, by which the factors
//! were found (`examples/branch_weights.rs`, on exact counts of sqlite, lua, redis, ripgrep, gawk, cppcheck, bash, vim,
//! tclsh and a program that throws). They see the graph alone: [`super::predict`] knows more and guesses better, but
//! decodes instructions, and counters are placed anew in every function that ran whenever a profile is read. That a way
//! leads out of a loop turned out to say nothing beside the rest.
//!
//! | a jump that | is taken with |
//! |---|--:|
//! | goes to where nothing good follows (or continues there) | 0.002 (0.998) |
//! | has two other ways | by the odds |
//! | is conditional and leaves the function | 0.3 |
//! | is indirect | the same share for each target |
//!
//! A loop is what is between a jump back and where it leads, the way compilers lay code out. All arithmetic
//! is addition, multiplication and division in a fixed order, so the guess is the same on every machine.
//! A change of any number here changes where counters are, and needs a new [`super::counters::VERSION`], by which
//! profiles made before are refused.

use std::borrow::Cow;

use crate::cfg::{Block, BlockId, Cfg, Term, Use};

/// The odds of a way are multiplied by so much if
const WAY: [f32; 17] = [
    0.83, // it calls
    0.75, // it returns, and other ways lead there
    0.71, // it ends in a tail call
    1.22, // nothing else leads to it
    1.18, // two ways lead to it
    0.80, // more than three do
    0.85, // it only leads on to the other way
    0.86, // it may lead on to the other way
    0.75, // only returns follow
    1.30, // it ends in another conditional jump
    4.89, // it ends in an indirect jump within the function
    0.85, // nothing else leads to it, and it jumps forward
    0.88, // it only leads on to where more than three ways lead
    0.72, // nothing good need follow
    0.89, // it has at most 8 bytes
    0.86, // it has 9 to 16
    0.86, // it is more than a kilobyte off
];

/// The odds of being taken are multiplied by so much if the jump leads back; or forward by less than 16, 48, 128 bytes,
/// or further.
const DISTANCE: [f32; 5] = [1.03, 0.94, 0.89, 0.76, 0.62];

/// Rounds of flow: deep loops come out less often than they would for ever, but in the right order.
const ROUNDS: usize = 16;

/// Guessed counts; the function is entered once at each entry.
#[derive(Clone, Debug, Default)]
pub struct Frequencies {
    /// By block.
    pub blocks: Vec<f32>,
    /// Parallel to [`Cfg::succs`].
    pub edges: Vec<f32>,
}

impl Frequencies {
    /// Guesses for one function, in the memory of those for another.
    pub(super) fn guess(&mut self, cfg: &Cfg, space: &mut Space) {
        let n = cfg.blocks.len();
        let Frequencies {
            blocks,
            edges: shares,
        } = self;
        let Space {
            counted,
            furthest,
            room,
        } = space;
        counted.read(cfg);
        find_shares(counted, cfg, (shares, furthest));
        let entered = |b: usize| match &cfg.blocks[b] {
            x if x.landing_pad => 0.001,
            x if b == 0 || x.entry => 1.0,
            _ => 0.0,
        };
        let ways = |b: usize| {
            let block = &cfg.blocks[b];
            let ways = block.succ as usize..(block.succ + block.nsucc) as usize;
            cfg.succs[ways.clone()].iter().zip(&shares[ways])
        };
        // First what arrives by edges that continue, from in front of the region; then how often each block runs.
        blocks.clear();
        blocks.extend((0..n).map(entered));
        let mut low = 0;
        while low < n {
            let end = region(low, furthest);
            if furthest[low] != NOT_BACK {
                room.clear();
                for b in low..end {
                    room.first.push(room.edges.len() as u32);
                    let stay = ways(b).filter(|(s, _)| (**s as usize) < end);
                    room.edges.extend(stay.map(|(s, share)| {
                        let back = if *s as usize <= b { end - low } else { 0 };
                        ((*s as usize - low + back) as u32, *share)
                    }));
                }
                room.first.push(room.edges.len() as u32);
                room.rounds(&mut blocks[low..end]);
            }
            for b in low..end {
                for (s, share) in ways(b).filter(|(s, _)| **s as usize >= end) {
                    blocks[*s as usize] += blocks[b] * share;
                }
            }
            low = end;
        }
        for (block, count) in cfg.blocks.iter().zip(&*blocks) {
            for share in &mut shares[block.succ as usize..(block.succ + block.nsucc) as usize] {
                *share *= count;
            }
        }
    }
}

/// What guesses are made with, used again from function to function.
#[derive(Default)]
pub(super) struct Space {
    counted: Counted,
    /// By block: from which block the longest way back leads to it, or [`NOT_BACK`].
    furthest: Vec<u32>,
    room: Room,
}

/// A region as it is gone round, and space for the flow.
#[derive(Default)]
struct Room {
    /// By block, and one more: its first edge.
    first: Vec<u32>,
    /// Place in `flow` that the edge adds to, and its share.
    edges: Vec<(u32, f32)>,
    /// How often each block runs in this round, then what goes back to each for the next one.
    flow: Vec<f32>,
    back: Vec<f32>,
}

impl Room {
    fn clear(&mut self) {
        self.first.clear();
        self.edges.clear();
        self.back.clear();
    }

    /// From how often the region's blocks are entered from outside to how often they run.
    fn rounds(&mut self, blocks: &mut [f32]) {
        let size = blocks.len();
        self.back.resize(size, 0.0);
        for _ in 0..ROUNDS {
            self.flow.clear();
            let arrives = blocks
                .iter()
                .zip(&self.back)
                .map(|(outside, back)| outside + back);
            self.flow.extend(arrives);
            self.flow.resize(2 * size, 0.0);
            for (b, edges) in self.first.windows(2).enumerate() {
                let count = self.flow[b];
                for (place, share) in &self.edges[edges[0] as usize..edges[1] as usize] {
                    self.flow[*place as usize] += count * share;
                }
            }
            self.back.copy_from_slice(&self.flow[size..]);
        }
        blocks.copy_from_slice(&self.flow[..size]);
    }
}

/// The end of the region that starts at a block: of the loops, one in the other or overlapping, that no edge
/// back leaves, or of the block alone.
fn region(low: usize, furthest: &[u32]) -> usize {
    let mut end = low + 1;
    let mut at = low;
    while at < end {
        if furthest[at] != NOT_BACK {
            end = end.max(furthest[at] as usize + 1);
        }
        at += 1;
    }
    end
}

/// What is known of a function's blocks before its jumps are looked at.
pub(crate) struct Shape<'a> {
    cfg: &'a Cfg,
    counted: Cow<'a, Counted>,
}

/// What is counted of blocks.
#[derive(Clone, Default)]
struct Counted {
    /// By block: how many ways from others lead to it.
    ways_in: Vec<u32>,
    /// By block: it calls.
    calls: Vec<bool>,
}

impl Counted {
    fn read(&mut self, cfg: &Cfg) {
        let Counted { ways_in, calls } = self;
        ways_in.clear();
        ways_in.resize(cfg.blocks.len(), 0);
        for s in &cfg.succs {
            ways_in[*s as usize] += 1;
        }
        calls.clear();
        if cfg.field_index.is_empty() {
            calls.resize(cfg.blocks.len(), false);
        } else {
            let fields = cfg.field_index.windows(2);
            let fields = fields.map(|f| &cfg.fields[f[0] as usize..f[1] as usize]);
            calls.extend(fields.map(|fields| fields.iter().any(|f| f.role == Use::Call)));
        }
        for s in cfg.sites.iter().filter(|s| !s.tail) {
            calls[s.block as usize] = true;
        }
    }
}

impl<'a> Shape<'a> {
    /// Of a function.
    pub(crate) fn of(cfg: &'a Cfg) -> Shape<'a> {
        let mut counted = Counted::default();
        counted.read(cfg);
        Shape {
            cfg,
            counted: Cow::Owned(counted),
        }
    }

    /// What holds of a conditional jump's ways and of its distance: places in [`WAY`] of the way taken and of the
    /// other, as bits, and the place in [`DISTANCE`]. `None` of blocks without two ways, and where it is known that
    /// nothing good follows on one of them.
    pub(crate) fn holds(&self, b: BlockId) -> Option<(u32, u32, usize)> {
        let block = &self.cfg.blocks[b as usize];
        let [taken, next] = *self.cfg.succs(b) else {
            return None;
        };
        let unlikely = |s: BlockId| self.cfg.blocks[s as usize].unlikely;
        if !matches!(block.term, Term::Cond { .. } | Term::ShortCond)
            || unlikely(taken) != unlikely(next)
        {
            return None;
        }
        let forward = self.cfg.blocks[taken as usize]
            .start
            .wrapping_sub(block.end);
        let distance = match forward {
            _ if taken <= b => 0,
            0..16 => 1,
            16..48 => 2,
            48..128 => 3,
            _ => 4,
        };
        let (way, other) = (self.way(block, taken, next), self.way(block, next, taken));
        Some((way, other, distance))
    }

    /// What holds, as numbers below [`SHAPES`], each with 1, or with -1 if it speaks against the jump being taken;
    /// empty if [`Self::holds`] says nothing.
    pub(crate) fn list(&self, b: BlockId) -> Vec<(usize, f64)> {
        let Some((way, other, distance)) = self.holds(b) else {
            return Vec::new();
        };
        let differ = (0..WAY.len()).filter(|k| (way ^ other) >> k & 1 == 1);
        let ways = differ.map(|k| (k, if way >> k & 1 == 1 { 1.0 } else { -1.0 }));
        ways.chain([(WAY.len() + distance, 1.0)]).collect()
    }

    fn way(&self, from: &Block, to: BlockId, other: BlockId) -> u32 {
        let at = to as usize;
        let block = &self.cfg.blocks[at];
        let succs = self.cfg.succs(to);
        let ways_in = self.counted.ways_in[at];
        let alone = ways_in == 1;
        let jumps_back = succs.first().is_some_and(|s| *s <= to);
        let size = block.end - block.start;
        let all_return =
            |s: &[BlockId]| !s.is_empty() && s.iter().all(|s| self.block(*s).term == Term::Return);
        let list: [bool; WAY.len()] = [
            self.counted.calls[at],
            block.term == Term::Return && !alone,
            matches!(block.term, Term::JumpOut { .. }),
            alone,
            ways_in == 2,
            ways_in > 3,
            succs == [other],
            succs.contains(&other),
            all_return(succs),
            matches!(block.term, Term::Cond { .. }),
            matches!(block.term, Term::Dispatch { .. }),
            alone && block.term == Term::Jump && !jumps_back,
            matches!(succs, [s] if self.counted.ways_in[*s as usize] > 3),
            succs.iter().any(|s| self.block(*s).unlikely),
            size <= 8,
            (9..=16).contains(&size),
            block.start.abs_diff(from.end) > 1024,
        ];
        let bits = list.iter().enumerate();
        bits.fold(0, |bits, (k, holds)| bits | u32::from(*holds) << k)
    }

    fn block(&self, b: BlockId) -> &Block {
        &self.cfg.blocks[b as usize]
    }
}

/// How many numbers [`Shape::list`] speaks of: of ways, then of distances.
pub const SHAPES: usize = WAY.len() + DISTANCE.len();

/// How likely a jump is taken.
fn taken((way, other, distance): (u32, u32, usize)) -> f32 {
    let odds = |mut bits: u32| {
        let mut odds = 1.0;
        while bits != 0 {
            odds *= WAY[bits.trailing_zeros() as usize];
            bits &= bits - 1;
        }
        odds
    };
    // What both have in common says nothing.
    let (way, other) = (odds(way & !other) * DISTANCE[distance], odds(other & !way));
    way / (way + other)
}

/// In [`Space::furthest`]: no way leads back to the block.
const NOT_BACK: u32 = u32::MAX;

/// Which share of a block's flow takes each of its ways out, and from which block the longest way back leads to each.
fn find_shares(counted: &Counted, cfg: &Cfg, (shares, furthest): (&mut Vec<f32>, &mut Vec<u32>)) {
    let n = cfg.blocks.len();
    furthest.clear();
    furthest.resize(n, NOT_BACK);
    shares.clear();
    shares.resize(cfg.succs.len(), 1.0);
    let shape = Shape {
        cfg,
        counted: Cow::Borrowed(counted),
    };
    for b in 0..n {
        for s in cfg.succs(b as BlockId) {
            if *s as usize <= b {
                furthest[*s as usize] = b as u32;
            }
        }
        let block = &cfg.blocks[b];
        let succs = cfg.succs(b as BlockId);
        let first = block.succ as usize;
        match block.term {
            Term::Cond { .. } | Term::ShortCond if succs.len() == 2 => {
                let p = match shape.holds(b as BlockId) {
                    Some(holds) => taken(holds),
                    None if shape.block(succs[0]).unlikely => 0.002,
                    None => 0.998,
                };
                (shares[first], shares[first + 1]) = (p, 1.0 - p);
            }
            Term::CondOut { .. } | Term::ShortCondOut { .. } => {
                shares[first..first + succs.len()].fill(0.7)
            }
            Term::Dispatch { .. } if !succs.is_empty() => {
                shares[first..first + succs.len()].fill(1.0 / succs.len() as f32);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use postlink_isa::Cond;

    use super::*;
    use crate::cfg::for_tests;

    fn graph(blocks: &[(Term, &[BlockId])]) -> Cfg {
        for_tests::graph(32, blocks.iter().copied())
    }

    fn guessed(cfg: &Cfg) -> Frequencies {
        let mut guess = Frequencies::default();
        guess.guess(cfg, &mut Space::default());
        guess
    }

    const COND: Term = Term::Cond { cond: Cond(4) };

    #[test]
    fn ways_that_look_alike_are_told_apart_by_distance_alone() {
        // Both ways return, and nothing else leads there.
        let cfg = graph(&[(COND, &[2, 1]), (Term::Return, &[]), (Term::Return, &[])]);
        let guess = guessed(&cfg);
        let p = DISTANCE[2] / (DISTANCE[2] + 1.0);
        assert_eq!(guess.blocks, [1.0, 1.0 - p, p]);
        assert_eq!(Shape::of(&cfg).list(0), [(WAY.len() + 2, 1.0)]);
    }

    #[test]
    fn a_way_to_a_dispatch_is_likely_and_one_to_a_failure_is_not() {
        let dispatch = Term::Dispatch {
            dispatch: 0,
            leaves: false,
        };
        let mut cfg = graph(&[
            (COND, &[2, 1]),
            (dispatch, &[3]),
            (Term::Return, &[]),
            (Term::Return, &[]),
        ]);
        let guess = guessed(&cfg);
        assert!(guess.blocks[1] > 0.8, "{guess:?}");
        cfg.blocks[1].unlikely = true;
        let guess = guessed(&cfg);
        assert_eq!(guess.blocks[2], 0.998);
    }

    #[test]
    fn what_leaves_a_block_is_what_came() {
        let cfg = graph(&[
            (Term::Fall, &[1]),
            (COND, &[3, 2]),
            (COND, &[1, 3]),
            (Term::Return, &[]),
        ]);
        let guess = guessed(&cfg);
        for (b, block) in cfg.blocks.iter().enumerate() {
            let ways = block.succ as usize..(block.succ + block.nsucc) as usize;
            let out: f32 = guess.edges[ways.clone()].iter().sum();
            assert!(
                ways.is_empty() || (out - guess.blocks[b]).abs() < 1e-6,
                "{guess:?}"
            );
        }
        assert!(guess.blocks[1] > 1.2, "the loop goes round: {guess:?}");
    }
}
