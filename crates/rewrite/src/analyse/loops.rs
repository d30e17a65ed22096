//! The natural loops of a flow graph: what an edge back to a dominator closes (Aho, Lam, Sethi, Ullman: "Compilers",
//! 9.6), with immediate dominators as Cooper, Harvey and Kennedy find them ("A Simple, Fast Dominance Algorithm",
//! 2001). Cycles that are entered in several places are no loops here.

use crate::cfg::{BlockId, Cfg};

/// No loop, no block.
pub const NONE: u32 = u32::MAX;

/// Loops, an outer one before those in it.
#[derive(Debug, Default)]
pub struct Loops {
    /// By block: the innermost loop that it is in, or [`NONE`].
    pub of: Vec<u32>,
    /// By loop: its head.
    pub heads: Vec<BlockId>,
    /// By loop: the loop around it, or [`NONE`].
    pub outer: Vec<u32>,
    /// By loop: how many loops it is in, itself included.
    pub depth: Vec<u32>,
}

impl Loops {
    /// Of a flow graph.
    pub fn of(cfg: &Cfg) -> Loops {
        let n = cfg.blocks.len();
        let order = postorder(cfg);
        let mut number = vec![NONE; n + 1];
        for (i, b) in order.iter().enumerate() {
            number[*b as usize] = i as u32;
        }
        let mut before: Vec<Vec<u32>> = vec![Vec::new(); n];
        for b in 0..n {
            for s in cfg.succs(b as BlockId) {
                before[*s as usize].push(b as u32);
            }
        }
        let dominator = dominators(cfg, &order, &number, &before);
        let dominates = |a: u32, b: u32| {
            let mut at = b;
            while at != n as u32 && at != NONE {
                if at == a {
                    return true;
                }
                // Dominators have larger numbers in postorder.
                if number[at as usize] > number[a as usize] {
                    return false;
                }
                at = dominator[at as usize];
            }
            false
        };
        let mut loops = Loops {
            of: vec![NONE; n],
            ..Loops::default()
        };
        // Heads of outer loops come before those of inner ones in reverse postorder; a block's last is its innermost.
        for head in order.iter().rev().copied().filter(|b| (*b as usize) < n) {
            let latches: Vec<u32> = before[head as usize]
                .iter()
                .copied()
                .filter(|b| number[*b as usize] != NONE && dominates(head, *b))
                .collect();
            if latches.is_empty() {
                continue;
            }
            let outer = loops.of[head as usize];
            let own = loops.heads.len() as u32;
            loops.heads.push(head);
            loops.outer.push(outer);
            let depth = loops.depth.get(outer as usize).copied().unwrap_or(0);
            loops.depth.push(depth + 1);
            loops.of[head as usize] = own;
            let mut open = latches;
            while let Some(b) = open.pop() {
                if loops.of[b as usize] != own && number[b as usize] != NONE {
                    loops.of[b as usize] = own;
                    open.extend(&before[b as usize]);
                }
            }
        }
        loops
    }

    /// How many loops a block is in.
    pub fn depth(&self, b: BlockId) -> u32 {
        let own = self.of[b as usize];
        self.depth.get(own as usize).copied().unwrap_or(0)
    }

    /// Whether a block is in a loop.
    pub fn contains(&self, which: u32, b: BlockId) -> bool {
        let mut at = self.of[b as usize];
        while at != NONE {
            if at == which {
                return true;
            }
            at = self.outer[at as usize];
        }
        false
    }
}

/// Blocks that can be reached in postorder, and last a root in front of all entries.
fn postorder(cfg: &Cfg) -> Vec<u32> {
    let n = cfg.blocks.len();
    let mut order = Vec::with_capacity(n + 1);
    let mut seen = vec![false; n];
    for root in roots(cfg) {
        if std::mem::replace(&mut seen[root as usize], true) {
            continue;
        }
        let mut stack = vec![(root, 0usize)];
        while let Some((b, k)) = stack.pop() {
            match cfg.succs(b).get(k) {
                Some(s) => {
                    stack.push((b, k + 1));
                    if !std::mem::replace(&mut seen[*s as usize], true) {
                        stack.push((*s, 0));
                    }
                }
                None => order.push(b),
            }
        }
    }
    order.push(n as u32);
    order
}

/// Blocks that are entered from outside.
fn roots(cfg: &Cfg) -> impl Iterator<Item = u32> + '_ {
    (0..).zip(&cfg.blocks).filter_map(|(b, block)| {
        (b == 0 || block.entry || block.landing_pad || block.returns_twice).then_some(b)
    })
}

/// Immediate dominators; the root is the block after the last.
fn dominators(cfg: &Cfg, order: &[u32], number: &[u32], before: &[Vec<u32>]) -> Vec<u32> {
    let n = cfg.blocks.len();
    let root = n as u32;
    let mut dominator = vec![NONE; n + 1];
    dominator[n] = root;
    for b in roots(cfg) {
        dominator[b as usize] = root;
    }
    let meet = |dominator: &[u32], mut a: u32, mut b: u32| {
        while a != b {
            while number[a as usize] < number[b as usize] {
                a = dominator[a as usize];
            }
            while number[b as usize] < number[a as usize] {
                b = dominator[b as usize];
            }
        }
        a
    };
    let mut changed = true;
    while changed {
        changed = false;
        for b in order.iter().rev().skip(1) {
            if dominator[*b as usize] == root {
                continue;
            }
            let mut new = NONE;
            for p in &before[*b as usize] {
                if dominator[*p as usize] != NONE {
                    new = if new == NONE {
                        *p
                    } else {
                        meet(&dominator, new, *p)
                    };
                }
            }
            if new != NONE && dominator[*b as usize] != new {
                dominator[*b as usize] = new;
                changed = true;
            }
        }
    }
    dominator
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cfg::{Term, for_tests};

    fn graph(succs: &[&[BlockId]]) -> Cfg {
        for_tests::graph(16, succs.iter().map(|succs| (Term::Fall, *succs)))
    }

    fn depths(succs: &[&[BlockId]]) -> Vec<u32> {
        let loops = Loops::of(&graph(succs));
        (0..succs.len() as u32).map(|b| loops.depth(b)).collect()
    }

    #[test]
    fn a_loop_in_a_loop_is_deeper() {
        // 1 heads the outer loop (latch 4), 2 the inner one (latch 3).
        let succs: [&[BlockId]; 6] = [&[1], &[2, 5], &[3], &[2, 4], &[1], &[]];
        assert_eq!(depths(&succs), [0, 1, 2, 2, 1, 0]);
        let loops = Loops::of(&graph(&succs));
        assert_eq!(loops.heads, [1, 2]);
        assert_eq!(loops.outer, [NONE, 0]);
        assert!(loops.contains(0, 3) && !loops.contains(1, 4));
    }

    #[test]
    fn a_block_that_leads_to_itself_is_a_loop() {
        assert_eq!(depths(&[&[0, 1], &[]]), [1, 0]);
    }

    #[test]
    fn a_cycle_with_two_entries_is_no_loop() {
        assert_eq!(depths(&[&[1, 2], &[2], &[1]]), [0, 0, 0]);
    }

    #[test]
    fn what_nothing_leads_to_is_in_no_loop() {
        assert_eq!(depths(&[&[], &[2], &[1]]), [0, 0, 0]);
    }
}
