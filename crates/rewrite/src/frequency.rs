//! How often each block and each edge of a function may run, guessed from the code alone.
//!
//! Counters go where they run least, so the guess decides what instrumentation costs; it never decides what is counted. Each
//! conditional jump gets a probability from its shape, and the flow that enters the function is sent along the edges until it has been
//! round every loop a few times.
//!
//! | a jump that | is taken with |
//! |---|--:|
//! | goes back | 0.9 |
//! | goes to where nothing good follows (or goes on there) | 0.002 (0.998) |
//! | leaves a loop (or goes on outside of it) | 0.12 (0.88) |
//! | goes forward, less than 128 bytes | 0.4 |
//! | goes forward, further | 0.25 |
//! | is conditional and leaves the function | 0.3 |
//! | is indirect | the same share for each target |
//!
//! A loop is what lies between a jump back and where it leads, the way compilers lay code out. All arithmetic is addition and multiplication
//! in a fixed order, so the guess is the same on every machine.

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
        let (shares, loops) = shares(cfg);
        let mut blocks = vec![0f32; n];
        // What arrives by edges that go on, and by those that go back; the latter count in the next round.
        let (mut on, mut back, mut again) = (vec![0f32; n], vec![0f32; n], vec![0f32; n]);
        for _ in 0..if loops { ROUNDS } else { 1 } {
            on.fill(0.0);
            again.fill(0.0);
            for b in 0..n {
                let block = &cfg.blocks[b];
                let entered = match block {
                    x if x.landing_pad => 0.001,
                    x if b == 0 || x.entry => 1.0,
                    _ => 0.0,
                };
                let count = entered + on[b] + back[b];
                blocks[b] = count;
                for k in block.succ..block.succ + block.nsucc {
                    let s = cfg.succs[k as usize] as usize;
                    let flow = count * shares[k as usize];
                    if s > b {
                        on[s] += flow;
                    } else {
                        again[s] += flow;
                    }
                }
            }
            std::mem::swap(&mut back, &mut again);
        }
        let mut edges = shares;
        for b in 0..n {
            let block = &cfg.blocks[b];
            for k in block.succ..block.succ + block.nsucc {
                edges[k as usize] *= blocks[b];
            }
        }
        Frequencies { blocks, edges }
    }
}

/// Which share of a block's flow takes each of its ways out, and whether there is a way back.
fn shares(cfg: &Cfg) -> (Vec<f32>, bool) {
    let n = cfg.blocks.len();
    let mut depth = vec![0i32; n + 1];
    let mut loops = false;
    for b in 0..n {
        for s in cfg.succs(b as BlockId) {
            if *s as usize <= b {
                loops = true;
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
    (shares, loops)
}
