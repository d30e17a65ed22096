//! How often each block and each edge of a function may run, guessed from the code alone.
//!
//! Counters go where they run least, so the guess decides what instrumentation costs; it never decides what
//! is counted. Each conditional jump gets a probability from its shape, and the flow that enters the function
//! is sent along the edges, in the order of the blocks, until it has been round every loop a few times: loops
//! that do not overlap one after the other, so that only blocks in loops are visited more than once.
//!
//! | a jump that | is taken with |
//! |---|--:|
//! | goes back | 0.9 |
//! | goes to where nothing good follows (or continues there) | 0.002 (0.998) |
//! | leaves a loop (or continues outside of it) | 0.12 (0.88) |
//! | goes forward, less than 128 bytes | 0.4 |
//! | goes forward, further | 0.25 |
//! | is conditional and leaves the function | 0.3 |
//! | is indirect | the same share for each target |
//!
//! A loop is what is between a jump back and where it leads, the way compilers lay code out. All arithmetic
//! is addition and multiplication in a fixed order, so the guess is the same on every machine.

use crate::cfg::{BlockId, Cfg, Term};

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
    /// Guesses for one function.
    pub fn of(cfg: &Cfg) -> Self {
        let n = cfg.blocks.len();
        let (shares, furthest) = shares(cfg);
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
        let mut blocks: Vec<f32> = (0..n).map(entered).collect();
        let mut room = Room::default();
        let mut low = 0;
        while low < n {
            let end = region(low, &furthest);
            if furthest[low].is_some() {
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
        let mut edges = shares;
        for (b, count) in blocks.iter().enumerate() {
            let block = &cfg.blocks[b];
            for share in &mut edges[block.succ as usize..(block.succ + block.nsucc) as usize] {
                *share *= count;
            }
        }
        Frequencies { blocks, edges }
    }
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
fn region(low: usize, furthest: &[Option<u32>]) -> usize {
    let mut end = low + 1;
    let mut at = low;
    while at < end {
        if let Some(from) = furthest[at] {
            end = end.max(from as usize + 1);
        }
        at += 1;
    }
    end
}

/// Which share of a block's flow takes each of its ways out, and from which block the longest way back leads to each.
fn shares(cfg: &Cfg) -> (Vec<f32>, Vec<Option<u32>>) {
    let n = cfg.blocks.len();
    let mut depth = vec![0i32; n + 1];
    let mut furthest: Vec<Option<u32>> = vec![None; n];
    for b in 0..n {
        for s in cfg.succs(b as BlockId) {
            if *s as usize <= b {
                furthest[*s as usize] = Some(b as u32);
                if !matches!(cfg.blocks[b].term, Term::Dispatch { .. }) {
                    depth[*s as usize] += 1;
                    depth[b + 1] -= 1;
                }
            }
        }
    }
    let mut sum = 0;
    for d in &mut depth {
        sum += *d;
        *d = sum;
    }
    let mut shares = vec![1f32; cfg.succs.len()];
    for b in 0..n {
        let block = &cfg.blocks[b];
        let succs = cfg.succs(b as BlockId);
        let first = block.succ as usize;
        match block.term {
            Term::Cond { .. } | Term::ShortCond if succs.len() == 2 => {
                let [taken, next] = [succs[0] as usize, succs[1] as usize];
                let unlikely = |s: usize| cfg.blocks[s].unlikely;
                let leaves = |s: usize| depth[s] < depth[b];
                let distance = cfg.blocks[taken].start.wrapping_sub(block.end);
                let p = match () {
                    () if unlikely(taken) != unlikely(next) => {
                        if unlikely(taken) {
                            0.002
                        } else {
                            0.998
                        }
                    }
                    () if taken <= b => 0.9,
                    () if leaves(taken) != leaves(next) => {
                        if leaves(taken) {
                            0.12
                        } else {
                            0.88
                        }
                    }
                    () if distance < 128 => 0.4,
                    () => 0.25,
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
    (shares, furthest)
}
