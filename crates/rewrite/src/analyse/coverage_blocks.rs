//! Which blocks need a coverage counter, and how the others follow.
//!
//! Coverage is a flag for each block, and flags of neighbours say much about one another:
//!
//! * If every way from `a` leads through `b`, and every way to `b` comes through `a`, both ran or none did
//!   (`a` dominates `b`, `b` post-dominates `a`).
//! * If all ways on from `a` go to blocks that `a` dominates, `a` ran if and only if any of them did.
//! * If all ways into `b` come from blocks that `b` post-dominates, `b` ran if and only if any of them did.
//!
//! So blocks fall into classes by the first rule. A class can do without a counter if the second or third
//! rule holds for one of its blocks; what it follows from may itself follow from others, but not in a circle.
//! Classes are tried in the order of how often their blocks may run, so that counters end up where little
//! runs. The class of the entry has a counter in any case: the function's.
//!
//! A call that may not come back ends a block of the graph. What follows it is entered from there alone, so
//! it is taken for a part of the same block here, as at compile time ([`heads`]): a block ran if it was
//! entered. It would need a counter after nearly every call else.
//!
//! What may end a block's way unseen makes an edge to the exit: returns, jumps out, indirect jumps, calls
//! that may not come back. What can be entered from elsewhere has an edge from the root. Blocks from which no
//! exit can be reached (endless loops) are exits, too. A program that is killed, or leaves by a call that was
//! thought to return, may have run a block although what follows from it did not.

use crate::cfg::{BlockId, Cfg, Term};

/// Steps of the search for circles, after which there is taken to be one.
const SEARCH: usize = 512;
/// Counters that a block may follow from.
const MAX_FROM: usize = 64;

/// Where counters go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CoverageBlocks {
    /// Blocks with counters, the entry first: a counter's number is the index here.
    pub counted: Vec<BlockId>,
    /// Blocks without, and the counters that they follow from.
    pub inferred: Vec<(BlockId, Vec<u32>)>,
}

/// A directed graph in both directions, with one node more than there are blocks.
struct Sides {
    root: u32,
    /// Ways on.
    to: Vec<Vec<u32>>,
    /// Ways in.
    from: Vec<Vec<u32>>,
}

impl Sides {
    fn new(n: usize) -> Sides {
        Sides {
            root: n as u32,
            to: vec![Vec::new(); n + 1],
            from: vec![Vec::new(); n + 1],
        }
    }

    fn add(&mut self, a: u32, b: u32) {
        self.to[a as usize].push(b);
        self.from[b as usize].push(a);
    }

    /// Immediate dominators from the root, by Cooper, Harvey and Kennedy's iteration; `u32::MAX` where the
    /// root does not reach.
    fn dominators(&self) -> Vec<u32> {
        let n = self.to.len();
        let mut number = vec![u32::MAX; n];
        let mut postorder = Vec::with_capacity(n);
        let mut seen = vec![false; n];
        let mut stack = vec![(self.root, 0usize)];
        seen[self.root as usize] = true;
        while let Some((node, next)) = stack.last_mut() {
            if let Some(&successor) = self.to[*node as usize].get(*next) {
                *next += 1;
                if !std::mem::replace(&mut seen[successor as usize], true) {
                    stack.push((successor, 0));
                }
            } else {
                number[*node as usize] = postorder.len() as u32;
                postorder.push(*node);
                stack.pop();
            }
        }
        let mut idom = vec![u32::MAX; n];
        idom[self.root as usize] = self.root;
        let mut changed = true;
        while changed {
            changed = false;
            for &node in postorder.iter().rev().skip(1) {
                let mut new = u32::MAX;
                for &p in &self.from[node as usize] {
                    if idom[p as usize] == u32::MAX {
                        continue;
                    }
                    let (mut a, mut b) = (p, if new == u32::MAX { p } else { new });
                    while a != b {
                        while number[a as usize] < number[b as usize] {
                            a = idom[a as usize];
                        }
                        while number[b as usize] < number[a as usize] {
                            b = idom[b as usize];
                        }
                    }
                    new = a;
                }
                if idom[node as usize] != new {
                    idom[node as usize] = new;
                    changed = true;
                }
            }
        }
        idom
    }
}

/// A dominator tree with an answer to "does a dominate b" in constant time.
struct Tree {
    idom: Vec<u32>,
    /// When a depth-first walk comes to each node, and leaves it.
    times: Vec<(u32, u32)>,
}

impl Tree {
    fn new(sides: &Sides) -> Tree {
        let idom = sides.dominators();
        let mut children = vec![Vec::new(); idom.len()];
        for (node, &parent) in (0u32..).zip(&idom) {
            if parent != u32::MAX && node != sides.root {
                children[parent as usize].push(node);
            }
        }
        let mut times = vec![(u32::MAX, 0); idom.len()];
        let mut clock = 0;
        let mut stack = vec![(sides.root, 0usize)];
        times[sides.root as usize].0 = 0;
        while let Some((node, next)) = stack.last_mut() {
            if let Some(&child) = children[*node as usize].get(*next) {
                *next += 1;
                clock += 1;
                times[child as usize].0 = clock;
                stack.push((child, 0));
            } else {
                times[*node as usize].1 = clock;
                stack.pop();
            }
        }
        Tree { idom, times }
    }

    fn dominates(&self, a: u32, b: u32) -> bool {
        let ((from, to), (inner, _)) = (self.times[a as usize], self.times[b as usize]);
        self.idom[a as usize] != u32::MAX
            && self.idom[b as usize] != u32::MAX
            && (from..=to).contains(&inner)
    }
}

/// For each block the one whose flag represents it: the block itself, or for what follows a call in a block,
/// and is reached in no other way, that in which the call is.
pub fn heads(cfg: &Cfg) -> Vec<BlockId> {
    let n = cfg.blocks.len();
    let mut ways_in = vec![0u32; n];
    for &to in cfg.succs.iter().chain(cfg.dispatches.iter().flatten()) {
        ways_in[to as usize] += 1;
    }
    let mut heads: Vec<BlockId> = (0..n as u32).collect();
    for (b, block) in (0u32..).zip(&cfg.blocks) {
        let &[next] = cfg.succs(b) else { continue };
        let behind = &cfg.blocks[next as usize];
        let entered = next == 0 || behind.entry || behind.landing_pad || behind.returns_twice;
        let falls =
            block.nonlocal_exits && matches!(block.term, Term::Fall) && behind.start == block.end;
        // What is in front has its head already.
        if falls && next > b && !entered && ways_in[next as usize] == 1 {
            heads[next as usize] = heads[b as usize];
        }
    }
    heads
}

/// Chooses blocks. `frequency` says how often each may run, in any unit.
pub fn choose(cfg: &Cfg, frequency: &[f32]) -> CoverageBlocks {
    let n = cfg.blocks.len();
    if n == 0 {
        return CoverageBlocks::default();
    }
    let heads = heads(cfg);
    let ways = Ways::of(cfg, &heads);
    let (dominators, post_dominators) = (Tree::new(&ways.forward), Tree::new(&ways.backward));
    let class = classes(n, &dominators, &post_dominators);
    let mut members: Vec<Vec<u32>> = vec![Vec::new(); n];
    for (block, &class) in (0u32..).zip(&class) {
        if heads[block as usize] == block {
            members[class as usize].push(block);
        }
    }
    // In some blocks nothing can count: rather in others of their classes, and rather in other classes.
    let closed = |b: u32| cfg.blocks[b as usize].watch.whole;
    for members in &mut members {
        members.sort_by_key(|&b| closed(b));
    }
    let weight = |class: u32| {
        if members[class as usize].iter().all(|&b| closed(b)) {
            return f32::INFINITY;
        }
        let of = members[class as usize].iter();
        of.map(|&b| frequency.get(b as usize).copied().unwrap_or(1.0))
            .fold(0.0, f32::max)
    };
    let mut order: Vec<u32> = (0..n as u32)
        .filter(|&c| !members[c as usize].is_empty() && c != class[0])
        .collect();
    order.sort_by(|&a, &b| weight(b).total_cmp(&weight(a)).then(b.cmp(&a)));

    let mut from: Vec<Option<Vec<u32>>> = vec![None; n];
    for &c in &order {
        let rule = members[c as usize].iter().find_map(|&block| {
            let all = |list: &[u32], tree: &Tree| {
                // A way from a block to itself is left some time, and was entered some time.
                let mut others = list.iter().filter(|&&other| other != block);
                let own = others.clone().all(|&other| tree.dominates(block, other))
                    && others.clone().next().is_some();
                let mut classes: Vec<u32> = others.by_ref().map(|&b| class[b as usize]).collect();
                classes.sort_unstable();
                classes.dedup();
                (own && !classes.contains(&c) && !circular(&from, &classes, c)).then_some(classes)
            };
            let ends = ways.leaves[block as usize];
            let enters = ways.enters[block as usize];
            let on = (!ends).then(|| all(&ways.forward.to[block as usize], &dominators));
            on.flatten().or_else(|| {
                (!enters)
                    .then(|| all(&ways.forward.from[block as usize], &post_dominators))
                    .flatten()
            })
        });
        from[c as usize] = rule;
    }
    number(&heads, &class, &members, from)
}

/// Edges between blocks, and with what is outside.
struct Ways {
    forward: Sides,
    backward: Sides,
    /// Its way may end in the block, or go to somewhere unknown.
    leaves: Vec<bool>,
    /// It may be entered from somewhere unknown.
    enters: Vec<bool>,
}

impl Ways {
    fn of(cfg: &Cfg, heads: &[BlockId]) -> Ways {
        let n = cfg.blocks.len();
        let mut ways = Ways {
            forward: Sides::new(n),
            backward: Sides::new(n),
            leaves: vec![false; n],
            enters: vec![false; n],
        };
        for (b, block) in (0u32..).zip(&cfg.blocks) {
            let successors = cfg.succs(b);
            let head = heads[b as usize];
            for &s in successors {
                // Not into the rest of the same block.
                if heads[s as usize] == s {
                    ways.forward.add(head, s);
                    ways.backward.add(s, head);
                }
            }
            ways.enters[head as usize] |=
                b == 0 || block.entry || block.landing_pad || block.returns_twice;
            ways.leaves[head as usize] |= block.nonlocal_exits
                || block.faults_from != u64::MAX
                || successors.is_empty()
                || !matches!(
                    block.term,
                    Term::Fall | Term::Jump | Term::Cond { .. } | Term::ShortCond
                );
        }
        // Targets of indirect jumps are as good as entered from elsewhere: their lists may be too long or too short.
        for targets in &cfg.dispatches {
            for &t in targets {
                ways.enters[t as usize] = true;
            }
        }
        let is_head = |b: usize| heads[b] == b as u32;
        for b in (0..n).filter(|b| is_head(*b)) {
            // A block without any way in is entered from somewhere, whatever is known.
            ways.enters[b] |= ways.forward.from[b].is_empty();
        }
        // Blocks from which no exit can be reached.
        let mut ends = ways.leaves.clone();
        let mut stack: Vec<u32> = (0..n as u32).filter(|&b| ends[b as usize]).collect();
        while let Some(b) = stack.pop() {
            for &p in &ways.forward.from[b as usize] {
                if !std::mem::replace(&mut ends[p as usize], true) {
                    stack.push(p);
                }
            }
        }
        for b in (0..n).filter(|b| is_head(*b)) {
            ways.leaves[b] |= !ends[b];
        }
        let root = n as u32;
        for b in (0..n as u32).filter(|b| is_head(*b as usize)) {
            if ways.enters[b as usize] {
                ways.forward.to[root as usize].push(b);
                ways.forward.from[b as usize].push(root);
            }
            if ways.leaves[b as usize] {
                ways.backward.to[root as usize].push(b);
                ways.backward.from[b as usize].push(root);
            }
        }
        ways
    }
}

/// The class of each block, named by one of its blocks.
fn classes(n: usize, dominators: &Tree, post_dominators: &Tree) -> Vec<u32> {
    let mut class: Vec<u32> = (0..n as u32).collect();
    fn find(class: &mut [u32], mut b: u32) -> u32 {
        while class[b as usize] != b {
            class[b as usize] = class[class[b as usize] as usize];
            b = class[b as usize];
        }
        b
    }
    for b in 0..n as u32 {
        // If any dominator is post-dominated, so is the nearest one that b post-dominates: walk up a little.
        let mut a = dominators.idom[b as usize];
        for _ in 0..16 {
            if a as usize >= n {
                break;
            }
            if post_dominators.dominates(b, a) {
                let (x, y) = (find(&mut class, a), find(&mut class, b));
                class[x.max(y) as usize] = x.min(y);
                break;
            }
            a = dominators.idom[a as usize];
        }
    }
    (0..n as u32).map(|b| find(&mut class, b)).collect()
}

/// Whether one of `classes` follows, through others, from `target`.
fn circular(from: &[Option<Vec<u32>>], classes: &[u32], target: u32) -> bool {
    let mut stack = classes.to_vec();
    let mut seen = rustc_hash::FxHashSet::default();
    while let Some(c) = stack.pop() {
        if c == target || seen.len() > SEARCH {
            return true;
        }
        if seen.insert(c)
            && let Some(more) = &from[c as usize]
        {
            stack.extend(more);
        }
    }
    false
}

/// Turns rules between classes into counters and lists of counters.
fn number(
    heads: &[BlockId],
    class: &[u32],
    members: &[Vec<u32>],
    mut from: Vec<Option<Vec<u32>>>,
) -> CoverageBlocks {
    let n = heads.len();
    // What each class without a counter follows from, in classes with one. A list that is too long gets a
    // counter instead.
    let mut done: Vec<Option<Vec<u32>>> = vec![None; n];
    for c in 0..n as u32 {
        if members[c as usize].is_empty() {
            continue;
        }
        let mut stack = vec![c];
        while let Some(&top) = stack.last() {
            if done[top as usize].is_some() {
                stack.pop();
                continue;
            }
            let Some(rule) = from[top as usize].clone() else {
                done[top as usize] = Some(vec![top]);
                stack.pop();
                continue;
            };
            let missing: Vec<u32> = rule
                .iter()
                .copied()
                .filter(|&other| done[other as usize].is_none())
                .collect();
            if !missing.is_empty() {
                stack.extend(missing);
                continue;
            }
            let mut list: Vec<u32> = rule
                .iter()
                .flat_map(|&other| done[other as usize].iter().flatten().copied())
                .collect();
            list.sort_unstable();
            list.dedup();
            if list.len() > MAX_FROM {
                from[top as usize] = None;
                list = vec![top];
            }
            done[top as usize] = Some(list);
            stack.pop();
        }
    }
    let mut result = CoverageBlocks::default();
    let mut counter = vec![u32::MAX; n];
    // The entry's class first.
    for c in std::iter::once(class[0]).chain(0..n as u32) {
        let counted = !members[c as usize].is_empty() && from[c as usize].is_none();
        if counted && counter[c as usize] == u32::MAX {
            counter[c as usize] = result.counted.len() as u32;
            let block = if c == class[0] {
                0
            } else {
                members[c as usize][0]
            };
            result.counted.push(block);
        }
    }
    for b in (0..n as u32).filter(|b| heads[*b as usize] == *b) {
        let c = class[b as usize];
        if result.counted.get(counter[c as usize] as usize) == Some(&b) {
            continue;
        }
        let list = done[c as usize].iter().flatten();
        let counters: Vec<u32> = list.map(|&other| counter[other as usize]).collect();
        result.inferred.push((b, counters));
    }
    result
}
