//! Which blocks need a counter of their own.
//!
//! Whether a block ran often follows from whether others did. Three rules, each exact:
//!
//! | rule | block B ran if, and only if | provided that |
//! |---|---|---|
//! | same | its immediate dominator D did | every way from D leads through B |
//! | after | one of its predecessors P did | every way from each of these P leads through B; predecessors that B dominates do not count |
//! | before | one of its successors did | B is not left in another way, and every way to each of these leads through B; successors from which every way leads back to B do not count |
//!
//! "Every way" includes those that end early: a call may not return, since it exits, throws or jumps far. A
//! block that may be left has an edge to the function's exit, and so have endless loops; roots have one from
//! its entry. Dominators and post-dominators of this graph then say what is certain. What no rule gets right
//! is a process that is killed in the middle of a function.
//!
//! Blocks are taken in the order of their loop depth, deepest first, so that what remains is where it runs
//! seldom, and the rules in the order above: guesses of how often each block runs made neither better. A
//! block is left out if its sources do not depend on itself. The proposal's successor needed counters in
//! about 60 % of all blocks.
//!
//! # The entry
//!
//! The entry's counter is a block's like any other, and many functions begin with a fork. Where every way
//! from the entry meets a counter before any call, and before it could have gone around a loop, these
//! counters say that the function was called. Only there: a program that waits in a call until it is killed
//! should still tell that the caller ran.
//!
//! # Out of the loop
//!
//! The counter of a loop's first block need not be in the loop: where that block is entered by falling
//! through from the block before it and by the loop's own jumps only, the store goes in front of its label,
//! and is done once a loop.
//!
//! Dominators: Cooper, Harvey, Kennedy, "A Simple, Fast Dominance Algorithm".

use crate::blocks::Block;

/// Which blocks get counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Signature of the function's graph.
    pub signature: u32,
    /// Blocks with counters, other than the entry.
    pub counters: Vec<usize>,
    /// Those of them whose stores go in front of the block's labels.
    pub hoisted: Vec<usize>,
    /// Blocks without, and the numbers of the counters that they follow from: 0 is the entry's, `n` that of
    /// `counters[n - 1]`. The first may be the entry, and then no other follows from it.
    pub inferred: Vec<(usize, Vec<u32>)>,
}

impl Plan {
    /// Whether the entry needs no counter.
    pub fn infers_entry(&self) -> bool {
        self.inferred.first().is_some_and(|(block, _)| *block == 0)
    }
}

/// Which blocks get counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Each.
    All,
    /// Those that do not follow from others.
    Needed,
    /// The same, and the entry, whose counter says more.
    NeededAndEntry,
}

/// Signature of a graph.
pub fn signature(blocks: &[Block]) -> u32 {
    postlink_mip::hash::cfg_signature(blocks.iter().map(|block| &block.successors))
}

/// Longest list of counters that the entry follows from.
const MOST_ENTRY_SOURCES: usize = 16;
/// Blocks looked at for it.
const MOST_ENTRY_BLOCKS: usize = 64;
/// Longest list of counters that a block follows from.
const MOST_SOURCES: usize = 256;
/// Blocks looked at to find whether one depends on another.
const MOST_STEPS: usize = 1024;

/// Chooses the blocks that get counters.
pub fn plan(blocks: &[Block], which: Which) -> Plan {
    let mut plan = Plan {
        signature: signature(blocks),
        ..Plan::default()
    };
    if blocks.len() < 2 {
        return plan;
    }
    let shape = Shape::of(blocks);
    let mut rules = match which {
        Which::All => vec![None; blocks.len()],
        Which::Needed | Which::NeededAndEntry => choose(blocks, &shape),
    };
    if which == Which::Needed {
        rules[0] = entry_sources(blocks, &shape, &rules);
    }
    let mut number = vec![0u32; blocks.len()];
    for block in 1..blocks.len() {
        if rules[block].is_none() {
            plan.counters.push(block);
            number[block] = plan.counters.len() as u32;
            if shape.is_entered_from_above(blocks, block) {
                plan.hoisted.push(block);
            }
        }
    }
    let mut search = Search::new(blocks.len());
    for block in 0..blocks.len() {
        if rules[block].is_some() {
            let mut sources = search
                .resolve(block, &rules, usize::MAX)
                .unwrap_or_default();
            sources.sort_unstable();
            let from = sources.iter().map(|&source| number[source]).collect();
            plan.inferred.push((block, from));
        }
    }
    plan
}

/// Finds what blocks follow from.
struct Search {
    /// The last search that reached a block.
    seen: Vec<u32>,
    number: u32,
}

impl Search {
    fn new(count: usize) -> Search {
        Search {
            seen: vec![0; count],
            number: 0,
        }
    }

    /// The blocks with counters that a block follows from. `None` if that takes too long or leads in a circle.
    fn resolve(
        &mut self,
        block: usize,
        rules: &[Option<Vec<usize>>],
        steps: usize,
    ) -> Option<Vec<usize>> {
        self.number += 1; // a few for each block
        let mut found = vec![];
        let mut steps_left = steps;
        let mut open: Vec<usize> = rules[block].clone()?;
        while let Some(source) = open.pop() {
            if source == block {
                return None;
            }
            if std::mem::replace(&mut self.seen[source], self.number) == self.number {
                continue;
            }
            steps_left = steps_left.checked_sub(1)?;
            match &rules[source] {
                Some(more) => open.extend(more),
                None => found.push(source),
            }
        }
        Some(found)
    }
}

/// What is known of a graph.
struct Shape {
    predecessors: Vec<Vec<usize>>,
    /// Who may be left to the outside, endless loops included.
    leaves: Vec<bool>,
    /// Dominators.
    forward: Tree,
    /// Post-dominators.
    backward: Tree,
}

impl Shape {
    fn of(blocks: &[Block]) -> Shape {
        let count = blocks.len();
        let mut predecessors: Vec<Vec<usize>> = vec![vec![]; count];
        for (index, block) in blocks.iter().enumerate() {
            for &successor in &block.successors {
                predecessors[successor as usize].push(index);
            }
        }
        // Forwards: node `count` is the outside, from where roots are entered.
        let forward = Tree::new(count, |node, each| {
            if node == count {
                (0..count)
                    .filter(|&block| blocks[block].is_root)
                    .for_each(each);
            } else {
                blocks[node]
                    .successors
                    .iter()
                    .for_each(|&next| each(next as usize));
            }
        });
        // Backwards: the outside is where blocks that may be left lead; and endless loops, which would lead nowhere.
        let mut leaves: Vec<bool> = blocks
            .iter()
            .map(|block| block.may_leave || block.successors.is_empty())
            .collect();
        let mut reaches = leaves.clone();
        let mut open: Vec<usize> = (0..count).filter(|&block| leaves[block]).collect();
        while let Some(block) = open.pop() {
            for &before in &predecessors[block] {
                if !std::mem::replace(&mut reaches[before], true) {
                    open.push(before);
                }
            }
        }
        for (leave, reach) in leaves.iter_mut().zip(&reaches) {
            *leave |= !reach;
        }
        let backward = Tree::new(count, |node, each| {
            if node == count {
                (0..count).filter(|&block| leaves[block]).for_each(each);
            } else {
                predecessors[node].iter().copied().for_each(each);
            }
        });
        Shape {
            predecessors,
            leaves,
            forward,
            backward,
        }
    }

    /// Whether a block heads a loop that is entered by falling through from the block before it, and in no other way.
    fn is_entered_from_above(&self, blocks: &[Block], block: usize) -> bool {
        let Some(above) = block.checked_sub(1) else {
            return false;
        };
        let loops = self.predecessors[block]
            .iter()
            .any(|&before| before != above);
        !blocks[block].is_root
            && blocks[block].before_labels > 0
            && loops
            && blocks[above].falls
            && !blocks[above].jumps_to_next
            && !self.forward.is_above(block, above)
            && self.predecessors[block].iter().all(|&before| {
                before == above || before == block || self.forward.is_above(block, before)
            })
    }
}

/// For each block what it follows from, if it gets no counter.
fn choose(blocks: &[Block], shape: &Shape) -> Vec<Option<Vec<usize>>> {
    let Shape {
        predecessors,
        leaves,
        forward,
        backward,
    } = shape;
    let count = blocks.len();
    let depths = loop_depths(blocks, predecessors, forward);
    let mut order: Vec<usize> = (1..count).collect();
    order.sort_by_key(|&block| (std::cmp::Reverse(depths[block]), block));
    let mut search = Search::new(count);
    let mut rules: Vec<Option<Vec<usize>>> = vec![None; count];
    for block in order {
        if !forward.is_reached(block) {
            continue;
        }
        let mut candidates: [Option<Vec<usize>>; 3] = [None, None, None];
        if let Some(above) = forward.parent(block).filter(|&above| above < count)
            && backward.is_above(block, above)
        {
            candidates[0] = Some(vec![above]);
        }
        if !blocks[block].is_root {
            let before: Vec<usize> = predecessors[block]
                .iter()
                .copied()
                .filter(|&before| forward.is_reached(before) && !forward.is_above(block, before))
                .filter(|&before| before != block)
                .collect();
            let certain = before
                .iter()
                .all(|&before| backward.is_above(block, before));
            if certain && !before.is_empty() && before.len() <= MOST_SOURCES {
                candidates[1] = Some(before);
            }
        }
        if !leaves[block] {
            let after: Vec<usize> = blocks[block]
                .successors
                .iter()
                .map(|&after| after as usize)
                .filter(|&after| after != block && !backward.is_above(block, after))
                .collect();
            let only = after.iter().all(|&after| forward.is_above(block, after));
            if only && !after.is_empty() && after.len() <= MOST_SOURCES {
                candidates[2] = Some(after);
            }
        }
        for candidate in candidates.into_iter().flatten() {
            rules[block] = Some(candidate);
            match search.resolve(block, &rules, MOST_STEPS) {
                Some(sources) if sources.len() <= MOST_SOURCES => break,
                _ => rules[block] = None,
            }
        }
    }
    rules
}

/// The counters that every call of the function meets first, if there are a few.
fn entry_sources(
    blocks: &[Block],
    shape: &Shape,
    rules: &[Option<Vec<usize>>],
) -> Option<Vec<usize>> {
    // Blocks whose ways are being followed, and those done.
    let mut done: Vec<(usize, bool)> = vec![];
    let mut sources = vec![];
    // A block is met twice: before its successors and after them.
    let mut open = vec![0];
    while let Some(&block) = open.last() {
        if let Some((_, over)) = done.iter_mut().find(|(seen, _)| *seen == block) {
            *over = true;
            open.pop();
            continue;
        }
        if block != 0 && rules[block].is_none() {
            if blocks[block].is_root || !shape.forward.is_above(0, block) {
                return None;
            }
            sources.push(block);
            done.push((block, true));
            open.pop();
            continue;
        }
        let certain = !shape.leaves[block] && !blocks[block].calls;
        if !certain || done.len() >= MOST_ENTRY_BLOCKS || sources.len() > MOST_ENTRY_SOURCES {
            return None;
        }
        done.push((block, false));
        for &next in &blocks[block].successors {
            let next = next as usize;
            match done.iter().find(|(seen, _)| *seen == next) {
                // Round a loop, before anything was counted.
                Some((_, false)) => return None,
                Some((_, true)) => {}
                None => open.push(next),
            }
        }
    }
    (!sources.is_empty() && sources.len() <= MOST_ENTRY_SOURCES).then_some(sources)
}

/// How many loops a block is in: loops by back edges, each walked through once, as long as that is not too much work.
fn loop_depths(blocks: &[Block], predecessors: &[Vec<usize>], forward: &Tree) -> Vec<u32> {
    let mut depths = vec![0u32; blocks.len()];
    let mut mark = vec![usize::MAX; blocks.len()];
    let mut work = 1 << 20;
    for (from, block) in blocks.iter().enumerate() {
        for &header in &block.successors {
            let header = header as usize;
            if !forward.is_reached(from) || !(header == from || forward.is_above(header, from)) {
                continue;
            }
            let mut open = vec![from];
            while let Some(inside) = open.pop() {
                if mark[inside] == from || work == 0 {
                    continue;
                }
                work -= 1;
                mark[inside] = from;
                depths[inside] += 1;
                if inside != header {
                    open.extend(&predecessors[inside]);
                }
            }
        }
    }
    depths
}

/// A dominator tree with the outside as its root, numbered `count`.
struct Tree {
    /// Immediate dominator; `usize::MAX` where nothing is known.
    parents: Vec<usize>,
    /// When a walk through the tree comes to a node, and when it leaves it.
    spans: Vec<(u32, u32)>,
}

impl Tree {
    fn new(count: usize, successors: impl Fn(usize, &mut dyn FnMut(usize))) -> Tree {
        let none = usize::MAX;
        // Nodes in reverse postorder.
        let mut place = vec![none; count + 1];
        let mut postorder = Vec::with_capacity(count + 1);
        let mut visited = vec![false; count + 1];
        let mut predecessors: Vec<Vec<usize>> = vec![vec![]; count + 1];
        let mut stack: Vec<(usize, Vec<usize>)> = vec![];
        let list = |node: usize| {
            let mut found = vec![];
            successors(node, &mut |next| found.push(next));
            found
        };
        visited[count] = true;
        stack.push((count, list(count)));
        for &next in &stack[0].1 {
            predecessors[next].push(count);
        }
        while let Some((node, rest)) = stack.last_mut() {
            let node = *node;
            match rest.pop() {
                Some(next) => {
                    if !std::mem::replace(&mut visited[next], true) {
                        let more = list(next);
                        for &after in &more {
                            predecessors[after].push(next);
                        }
                        stack.push((next, more));
                    }
                }
                None => {
                    place[node] = postorder.len();
                    postorder.push(node);
                    stack.pop();
                }
            }
        }
        let mut parents = vec![none; count + 1];
        parents[count] = count;
        let mut changed = true;
        while changed {
            changed = false;
            for &node in postorder.iter().rev().skip(1) {
                let mut parent = none;
                for &before in &predecessors[node] {
                    if parents[before] == none {
                        continue;
                    }
                    parent = if parent == none {
                        before
                    } else {
                        let (mut a, mut b) = (parent, before);
                        while a != b {
                            while place[a] < place[b] {
                                a = parents[a];
                            }
                            while place[b] < place[a] {
                                b = parents[b];
                            }
                        }
                        a
                    };
                }
                if parents[node] != parent {
                    parents[node] = parent;
                    changed = true;
                }
            }
        }
        Tree {
            spans: spans(&parents, count),
            parents,
        }
    }

    fn is_reached(&self, node: usize) -> bool {
        self.parents[node] != usize::MAX
    }

    /// The immediate dominator; `count` is the outside.
    fn parent(&self, node: usize) -> Option<usize> {
        Some(self.parents[node]).filter(|&parent| parent != usize::MAX)
    }

    /// Whether one node dominates another one.
    fn is_above(&self, above: usize, below: usize) -> bool {
        self.is_reached(above)
            && self.is_reached(below)
            && above != below
            && self.spans[above].0 <= self.spans[below].0
            && self.spans[below].1 <= self.spans[above].1
    }
}

/// Numbers by a walk through a tree given by parents.
fn spans(parents: &[usize], root: usize) -> Vec<(u32, u32)> {
    let mut children: Vec<Vec<usize>> = vec![vec![]; parents.len()];
    for (node, &parent) in parents.iter().enumerate() {
        if parent != usize::MAX && node != root {
            children[parent].push(node);
        }
    }
    let mut spans = vec![(0, 0); parents.len()];
    let mut time = 0;
    let mut stack = vec![(root, 0)];
    while let Some((node, next)) = stack.last_mut() {
        if *next == 0 {
            spans[*node].0 = time;
            time += 1;
        }
        match children[*node].get(*next) {
            Some(&child) => {
                *next += 1;
                stack.push((child, 0));
            }
            None => {
                spans[*node].1 = time;
                time += 1;
                stack.pop();
            }
        }
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks from a list of successors; those named in `calls` have a call.
    fn graph(successors: &[&[u32]], calls: &[usize]) -> Vec<Block> {
        let mut blocks: Vec<Block> = successors
            .iter()
            .map(|next| Block {
                successors: next.to_vec(),
                may_leave: next.is_empty(),
                ..Block::default()
            })
            .collect();
        for &call in calls {
            blocks[call].may_leave = true;
        }
        blocks[0].is_root = true;
        blocks
    }

    #[test]
    fn the_signature_is_that_of_the_test_vectors() {
        let blocks = graph(&[&[1, 2], &[2], &[]], &[]);
        assert_eq!(signature(&blocks), 0x70C9_FA27);
    }

    #[test]
    fn a_join_runs_when_its_fork_does_and_a_fork_when_a_branch_does() {
        // 0 forks to 1 and 2, which join in 3.
        let plan_of = |calls: &[usize]| {
            plan(
                &graph(&[&[1, 2], &[3], &[3], &[]], calls),
                Which::NeededAndEntry,
            )
        };
        assert_eq!(plan_of(&[]).counters, [1, 2]);
        assert_eq!(plan_of(&[]).inferred, [(3, vec![0])]);
        // A call in 1 may not return: then 3 needs a counter of its own.
        assert_eq!(plan_of(&[1]).counters, [1, 2, 3]);
        // One in 0 does not matter for what follows from 3, but for what is certain from 0.
        assert_eq!(plan_of(&[0]).inferred, [(3, vec![1, 2])]);
    }

    #[test]
    fn endless_loops_prove_nothing() {
        // 0 goes to an endless loop, or to 2.
        let plan = plan(
            &graph(&[&[1, 2], &[1], &[3], &[]], &[]),
            Which::NeededAndEntry,
        );
        assert!(plan.counters.contains(&1));
        assert_eq!(plan.counters.len() + plan.inferred.len(), 3);
        assert_eq!(plan.counters.len(), 2);
    }

    #[test]
    fn the_entry_follows_from_the_counters_that_every_call_meets_first() {
        let fork = |calls: &[usize]| graph(&[&[1, 2], &[3], &[3], &[]], calls);
        let which = Which::Needed;
        assert_eq!(
            plan(&fork(&[]), which).inferred,
            [(0, vec![1, 2]), (3, vec![1, 2])]
        );
        // What comes after the counters does not matter; a call before them does: it may be where the program
        // is killed.
        assert!(plan(&fork(&[1]), which).infers_entry());
        let mut blocks = fork(&[]);
        blocks[0].calls = true;
        assert_eq!(plan(&blocks, which).inferred, [(3, vec![0])]);
        // A way past all counters, and one round a loop.
        let skips = graph(&[&[1, 2], &[2], &[]], &[]);
        assert_eq!(plan(&skips, which).inferred, [(2, vec![0])]);
        let turns = graph(&[&[1], &[2, 1], &[3, 4], &[], &[]], &[]);
        let turning = plan(&turns, which);
        assert!(!turning.infers_entry(), "{turning:?}");
        // A counter that may be reached in another way says nothing.
        let mut blocks = fork(&[]);
        blocks[1].is_root = true;
        assert!(!plan(&blocks, which).infers_entry());
    }

    /// Runs random walks; what is inferred must be what happened.
    #[test]
    fn what_is_inferred_is_what_happened_on_random_graphs() {
        arbtest::arbtest(|u| {
            let count = u.int_in_range(2..=12usize)?;
            let mut blocks: Vec<Block> = vec![];
            for index in 0..count {
                let mut successors = vec![];
                for _ in 0..u.int_in_range(0..=3)? {
                    let next = u.int_in_range(0..=count - 1)? as u32;
                    if !successors.contains(&next) {
                        successors.push(next);
                    }
                }
                blocks.push(Block {
                    may_leave: successors.is_empty() || u.ratio(1, 5)?,
                    successors,
                    is_root: index == 0 || u.ratio(1, 10)?,
                    ..Block::default()
                });
            }
            for block in &mut blocks {
                block.calls = u.ratio(1, 5)?;
            }
            let which = *u.choose(&[Which::Needed, Which::NeededAndEntry])?;
            let plan = plan(&blocks, which);
            let roots: Vec<usize> = (0..count).filter(|&b| blocks[b].is_root).collect();
            let mut covered = vec![false; count];
            // A function's root other than its entry is entered once the entry was.
            let mut at = 0;
            for step in 0..200 {
                covered[at] = true;
                let block = &blocks[at];
                if block.may_leave && (block.successors.is_empty() || u.ratio(1, 3)?) {
                    if u.ratio(1, 2)? || step > 100 {
                        break;
                    }
                    at = *u.choose(&roots)?;
                    continue;
                }
                at = *u.choose(&block.successors)? as usize;
                if step == 199 {
                    // Still on its way: nothing can be said.
                    return Ok(());
                }
            }
            for (block, from) in &plan.inferred {
                let follows = from.iter().any(|&number| {
                    let source = match number {
                        0 if plan.infers_entry() => {
                            panic!("block {block} follows from an entry that has no counter")
                        }
                        0 => 0,
                        number => plan.counters[number as usize - 1],
                    };
                    covered[source]
                });
                assert_eq!(
                    follows, covered[*block],
                    "block {block} of {blocks:?}: {plan:?}"
                );
            }
            Ok(())
        });
    }
}
