//! Deciding ahead of the compiler what will be inlined.
//!
//! Counts by chain of callers are of use to a compiler only where it inlines the chain, and a compiler that
//! sees one module at a time cannot move counts of what it does not inline to the function on its own, which
//! may be in another module. So the decision is made here, for the whole program: what is worth inlining
//! keeps its chain and is marked; everything else is added to the function on its own.
//!
//! Functions are taken callers first. Of each, the callees known from its chains are candidates, the hottest
//! first, until the function has grown to its limit. A candidate is taken if it costs less than a limit that
//! grows with its count, and more so if the compiler had inlined it before.

#![allow(
    clippy::indexing_slicing,
    reason = "indexes are numbers that this module gave to elements of its own lists; a file says none of them"
)]

use std::cmp::Reverse;
use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};

use super::queue::Queue;
use super::size::Sizes;
use super::trie::{self, ROOT, Trie};
use crate::guid::Guid;
use crate::sample::summary::Thresholds;
use crate::sample::{Location, NameId, Names, SHOULD_BE_INLINED, WAS_INLINED};

/// What the decisions depend on. The defaults are LLVM's.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Do again what the compiler did.
    pub replay: bool,
    /// Cost below which the hottest calls are inlined (in hundredths of a byte or of a location).
    pub hot: u32,
    /// Cost below which cold calls are inlined.
    pub cold: u32,
    /// How many times its size a function may grow to.
    pub growth: u32,
    /// It may always grow to this size.
    pub least: u32,
    /// It may never grow beyond this size.
    pub most: u32,
    /// The limit of cost is higher by this factor for what was inlined before.
    pub again: u32,
    /// Order functions that call each other by how often they do.
    pub order_cycles: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            replay: false,
            hot: 1500,
            cold: 0,
            growth: 12,
            least: 100,
            most: 50_000,
            again: 100,
            order_cycles: true,
        }
    }
}

/// A call that may be inlined. The one with the greatest key is tried first.
struct Candidate {
    free: bool,
    count: u64,
    size: Reverse<u32>,
    guid: Guid,
    sampled: usize,
}

impl Candidate {
    fn key(&self) -> (bool, u64, Reverse<u32>, Guid) {
        (self.free, self.count, self.size, self.guid)
    }
}

struct PreInliner<'a> {
    trie: &'a mut Trie,
    names: &'a Names,
    sizes: Option<&'a mut Sizes>,
    thresholds: &'a Thresholds,
    options: Options,
    /// Counts of each function in all chains.
    by_name: FxHashMap<NameId, Vec<usize>>,
}

/// Works over a tree: counts of what is to be inlined stay and are marked, all others are added to those of
/// the function on its own. Without `sizes` a function's cost is the number of its locations.
pub fn run(
    trie: &mut Trie,
    names: &Names,
    sizes: Option<&mut Sizes>,
    thresholds: &Thresholds,
    options: Options,
) {
    let order = top_down(trie, names, thresholds.cold, options.order_cycles);
    let mut by_name: FxHashMap<NameId, Vec<usize>> = FxHashMap::default();
    for id in trie.breadth_first() {
        if let Some(sampled) = trie.sampled(id) {
            by_name.entry(trie.node(id).name).or_default().push(sampled);
        }
    }
    let mut inliner = PreInliner {
        trie,
        names,
        sizes,
        thresholds,
        options,
        by_name,
    };
    for name in order {
        inliner.function(name);
    }
    for id in trie.breadth_first() {
        if let Some(sampled) = trie.sampled(id)
            && trie.parent(id) != Some(ROOT)
            && !trie.samples[sampled].inlined
        {
            trie.clear(id);
        }
    }
}

impl PreInliner<'_> {
    fn size(&mut self, id: trie::Id) -> u32 {
        match &mut self.sizes {
            Some(sizes) => sizes.of(self.names, self.trie, id),
            None => self
                .trie
                .function(id)
                .map_or(0, |function| function.body.len() as u32),
        }
    }

    /// The node of a function on its own, with the counts of all chains that are not inlined.
    fn base(&mut self, name: NameId) -> Option<trie::Id> {
        let top = |trie: &mut Trie, names| trie.child(names, ROOT, Location::default(), name);
        let mut base = top(self.trie, self.names);
        for sampled in self.by_name.get(&name).cloned().unwrap_or_default() {
            let counts = &self.trie.samples[sampled];
            if counts.inlined || counts.merged || Some(counts.node) == base {
                continue;
            }
            base = Some(self.trie.promote(self.names, counts.node));
        }
        base
    }

    fn candidates(&mut self, id: trie::Id, queue: &mut Queue<Candidate>) {
        let children: Vec<trie::Id> = self.trie.node(id).children.values().copied().collect();
        for child in children {
            let Some(sampled) = self.trie.sampled(child) else {
                continue;
            };
            let size = self.size(child);
            let node = self.trie.node(child);
            queue.push(Candidate {
                free: size == 0,
                count: call_count(self.trie, id, child),
                size: Reverse(size),
                guid: Guid::of(self.names.get(node.name)),
                sampled,
            });
        }
    }

    fn is_worth(&self, candidate: &Candidate) -> bool {
        let attributes = self.trie.samples[candidate.sampled].function.attributes;
        let was_inlined = attributes & WAS_INLINED != 0;
        if self.options.replay {
            return was_inlined;
        }
        let cold = self.thresholds.cold;
        let mut limit = self.options.cold;
        if candidate.count > cold {
            let hottest = self.thresholds.hottest as f64 - cold as f64;
            let hotness = ((candidate.count - cold) as f64 / hottest).min(1.0);
            limit = (f64::from(self.options.hot) * hotness * 100.0
                + f64::from(self.options.cold)
                + 1.0) as u32;
            if was_inlined {
                limit = limit.wrapping_mul(self.options.again);
            }
        }
        candidate.size.0 < limit
    }

    fn function(&mut self, name: NameId) {
        let Some(base) = self.base(name) else { return };
        if self.trie.sampled(base).is_none() {
            return;
        }
        let mut size = self.size(base);
        let limit = size
            .wrapping_mul(self.options.growth)
            .min(self.options.most)
            .max(self.options.least);
        let mut queue = Queue::new(|a: &Candidate, b: &Candidate| a.key().cmp(&b.key()));
        self.candidates(base, &mut queue);
        while size < limit
            && let Some(candidate) = queue.pop()
        {
            if !self.is_worth(&candidate) {
                continue;
            }
            let counts = &mut self.trie.samples[candidate.sampled];
            counts.inlined = true;
            counts.function.attributes |= SHOULD_BE_INLINED;
            let node = counts.node;
            size = size.wrapping_add(candidate.size.0);
            self.candidates(node, &mut queue);
        }
    }
}

/// How often a function was called from its parent in the tree: as the parent counted calls, or as the
/// function counted entries.
fn call_count(trie: &Trie, caller: trie::Id, callee: trie::Id) -> u64 {
    let node = trie.node(callee);
    let (Some(from), Some(to)) = (trie.function(caller), trie.function(callee)) else {
        return 0;
    };
    let called = from
        .body
        .get(&node.site)
        .and_then(|record| record.targets.get(&node.name));
    to.estimated_head().max(called.copied().unwrap_or(0))
}

/// Callers and callees, by rank in the order of names.
type Graph = Vec<Vec<(u32, u64)>>;

/// The functions of a tree, callers before callees as far as that is possible.
fn top_down(trie: &Trie, names: &Names, cold: u64, order_cycles: bool) -> Vec<NameId> {
    let nodes = trie.breadth_first();
    let mut ranked: Vec<NameId> = nodes.iter().map(|&id| trie.node(id).name).collect();
    ranked.sort_by_key(|&name| names.get(name));
    ranked.dedup();
    let rank: FxHashMap<NameId, u32> = ranked.iter().copied().zip(0..).collect();
    let mut edges: Vec<BTreeMap<u32, u64>> = vec![BTreeMap::new(); ranked.len()];
    for &id in &nodes {
        let caller = rank[&trie.node(id).name] as usize;
        for &callee in trie.node(id).children.values() {
            let weight = edges[caller]
                .entry(rank[&trie.node(callee).name])
                .or_default();
            *weight = weight.saturating_add(call_count(trie, id, callee));
        }
    }
    let graph: Graph = edges
        .into_iter()
        .map(|edges| {
            edges
                .into_iter()
                .filter(|edge| cold == 0 || edge.1 > cold)
                .collect()
        })
        .collect();
    let mut order = Vec::with_capacity(ranked.len());
    for mut members in components(&graph) {
        if order_cycles && members.len() > 1 {
            members = by_weight(&graph, &members);
        }
        order.extend(members.into_iter().map(|member| ranked[member as usize]));
    }
    order.reverse();
    order
}

/// Strongly connected components, callees first (Tarjan).
fn components(graph: &Graph) -> Vec<Vec<u32>> {
    const NEW: u32 = 0;
    const DONE: u32 = u32::MAX;
    let mut numbers = vec![NEW; graph.len()];
    let (mut next, mut members) = (0, Vec::new());
    let mut all = Vec::new();
    // (function, next edge, lowest number reached)
    let mut visits: Vec<(u32, usize, u32)> = Vec::new();
    for start in 0..graph.len() as u32 {
        if numbers[start as usize] != NEW {
            continue;
        }
        let mut entering = Some(start);
        loop {
            if let Some(function) = entering.take() {
                next += 1;
                numbers[function as usize] = next;
                members.push(function);
                visits.push((function, 0, next));
            }
            let Some(visit) = visits.last_mut() else {
                break;
            };
            if let Some(&(callee, _)) = graph[visit.0 as usize].get(visit.1) {
                visit.1 += 1;
                match numbers[callee as usize] {
                    NEW => entering = Some(callee),
                    number => visit.2 = visit.2.min(number),
                }
                continue;
            }
            let (function, _, low) = *visit;
            visits.pop();
            if let Some(caller) = visits.last_mut() {
                caller.2 = caller.2.min(low);
            }
            if low == numbers[function as usize] {
                let mut component = Vec::new();
                while let Some(member) = members.pop() {
                    numbers[member as usize] = DONE;
                    component.push(member);
                    if member == function {
                        break;
                    }
                }
                all.push(component);
            }
        }
    }
    all
}

/// Orders the members of a component, callees first, along the heaviest calls: those of a maximum spanning forest.
fn by_weight(graph: &Graph, members: &[u32]) -> Vec<u32> {
    let inside: FxHashSet<u32> = members.iter().copied().collect();
    let mut edges: Vec<(u64, u32, u32)> = Vec::new();
    for &caller in members {
        for &(callee, weight) in &graph[caller as usize] {
            if inside.contains(&callee) {
                edges.push((weight, caller, callee));
            }
        }
    }
    edges.sort_by_key(|edge| Reverse(edge.0));
    let mut group: FxHashMap<u32, u32> = members.iter().map(|&member| (member, member)).collect();
    fn find(group: &mut FxHashMap<u32, u32>, mut at: u32) -> u32 {
        while group[&at] != at {
            let up = group[&group[&at]];
            group.insert(at, up);
            at = up;
        }
        at
    }
    let mut tree: FxHashSet<(u32, u32)> = FxHashSet::default();
    let mut incoming: FxHashMap<u32, u32> = FxHashMap::default();
    for &(_, caller, callee) in &edges {
        let (a, b) = (find(&mut group, caller), find(&mut group, callee));
        if a != b {
            group.insert(a, b);
            tree.insert((caller, callee));
            *incoming.entry(callee).or_default() += 1;
        }
    }
    let mut seen: FxHashSet<u32> = FxHashSet::default();
    let mut order: Vec<u32> = Vec::new();
    for &(_, caller, _) in &edges {
        if !incoming.contains_key(&caller) && seen.insert(caller) {
            order.push(caller);
        }
    }
    let mut at = 0;
    while let Some(&caller) = order.get(at) {
        at += 1;
        for &(callee, _) in &graph[caller as usize] {
            if !tree.contains(&(caller, callee)) {
                continue;
            }
            let left = incoming.entry(callee).or_default();
            *left = left.saturating_sub(1);
            if *left == 0 {
                order.push(callee);
            }
        }
    }
    order.reverse();
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{Profile, text};

    fn inlined(profile: &str, options: Options) -> String {
        let mut profile: Profile = text::read(profile.as_bytes()).unwrap();
        let thresholds = Thresholds {
            cold: 1,
            hottest: 1000,
            hot: 100,
        };
        let mut trie = Trie::new(&profile.names, std::mem::take(&mut profile.functions));
        run(&mut trie, &profile.names, None, &thresholds, options);
        profile.functions = trie.into_functions();
        let mut out = Vec::new();
        text::write(&profile, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    const HOT_AND_COLD: &str = "[main:1 @ hot]:1000:1000\n 1: 1000\n[main:2 @ cold]:1:1\n 1: 1\n[main]:2000:1\n 1: 1000 hot:1000\n 2: 1 cold:1\n";

    #[test]
    fn hot_calls_keep_their_chain_and_cold_ones_lose_it() {
        assert_eq!(
            inlined(HOT_AND_COLD, Options::default()),
            "[main]:2000:1\n 1: 1000 hot:1000\n 2: 1 cold:1\n[main:1 @ hot]:1000:1000\n 1: 1000\n !Attributes: 2\n[cold]:1:1\n 1: 1\n"
        );
    }

    #[test]
    fn replaying_inlines_what_was_inlined() {
        let options = Options {
            replay: true,
            ..Options::default()
        };
        let before = HOT_AND_COLD.replace(" 1: 1\n[main]", " 1: 1\n !Attributes: 1\n[main]");
        assert_eq!(
            inlined(&before, options),
            "[main]:2000:1\n 1: 1000 hot:1000\n 2: 1 cold:1\n[hot]:1000:1000\n 1: 1000\n[main:2 @ cold]:1:1\n 1: 1\n !Attributes: 3\n"
        );
    }

    #[test]
    fn components_come_callees_first_and_cycles_along_their_heaviest_calls() {
        // 0 calls 1; 1, 2 and 3 call each other in a circle; 3 calls 4.
        let graph: Graph = vec![
            vec![(1, 5)],
            vec![(2, 10)],
            vec![(3, 30)],
            vec![(1, 20), (4, 1)],
            vec![],
        ];
        let all = components(&graph);
        assert_eq!(all, [vec![4], vec![3, 2, 1], vec![0]]);
        assert_eq!(by_weight(&graph, &all[1]), [1, 3, 2]);
    }
}
