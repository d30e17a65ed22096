//! Which block of a program each block of a profile is, where the code has changed since.
//!
//! # The problem
//!
//! Blocks have hashes of five pieces ([`crate::analyse::hashes`]), of which some survive a change and some
//! do not, and many blocks of a function are alike. A block must not be taken for one of its twins: the counts of
//! an interpreter's operations differ by orders of magnitude, and all end in the same few instructions.
//!
//! # The idea
//!
//! What is certain comes first and helps to tell the rest: hashes find blocks that are alike nowhere else
//! (*anchors*), and control flow leads from there to their neighbours (Wang, Pierce, McFarling: "BMAT", JILP 2000;
//! Ayupov, Panchenko, Pupyrev: "Stale Profile Matching", CC 2024, has the hashes, and only them).
//!
//! | round | pairs |
//! |---|---|
//! | 1 | blocks that have all pieces in common, offsets aside, and are the only ones on either side; the entries, if they are alike |
//! | 2 | likewise, by operands alone |
//! | 3 | likewise, by names of instructions and neighbours |
//! | 4 | blocks that have the names of their instructions in common, the least distance first, where offsets are compared after the move of the anchor before |
//! | 6 | blocks that call the same functions |
//! | 7 | what is left at the same place after blocks that end alike; the entries |
//!
//! After each round pairs spread along the edges: of two blocks that are a pair, those that follow at the same
//! place are one if they are alike, and so is what is alike among those that follow, or come before, only once. In the
//! first two rounds *alike* means the same operands, later the same names.
//!
//! # Invariants
//!
//! * A block is in one pair at most.
//! * Same input, same output.

use std::cmp::Reverse;

use rustc_hash::FxHashMap;

use crate::analyse::hashes::BlockHash;

/// A neighbour that is not in the list.
pub const UNLISTED: u32 = u32::MAX;

/// A block, as far as matching looks at it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Its hash.
    pub hash: BlockHash,
    /// The functions that it calls, sorted.
    pub calls: Vec<u64>,
    /// Its pseudo probes ([`super::pseudo_probes`]), sorted.
    pub probes: Vec<u64>,
    /// The blocks that follow, in the order of its edges, by their places in the list or [`UNLISTED`].
    pub next: Vec<u32>,
    /// The function is entered here.
    pub entry: bool,
}

/// Neighbours of one block that are looked at for one that is alike only once.
const WIDE: usize = 128;
/// Of very many equal blocks those near by: all pairs of thousands would be millions.
const NEAR: usize = 64;

/// The same instructions with the same operands.
fn same_operands(a: BlockHash, b: BlockHash) -> bool {
    a.loose == b.loose && a.strict == b.strict
}

/// The same names of instructions.
fn same_names(a: BlockHash, b: BlockHash) -> bool {
    a.loose == b.loose
}

/// The place in `new` of each block of `old`. `hashes`: whether they can be compared.
pub fn match_blocks(old: &[Node], new: &[Node], hashes: bool) -> Vec<Option<u32>> {
    let mut matching = Matching {
        old,
        new,
        old_before: before(old),
        new_before: before(new),
        found: vec![None; old.len()],
        used: vec![false; new.len()],
    };
    if hashes {
        matching.entries(same_names);
        matching.anchors(|h| h.word() >> 16);
        matching.spread(same_operands);
        matching.anchors(|h| u64::from(h.loose) | u64::from(h.strict) << 16);
        matching.spread(same_operands);
    }
    matching.by_probes();
    if hashes {
        matching.spread(same_operands);
        matching.anchors(|h| h.word() >> 16 & 0xffff_0000_ffff);
        matching.spread(same_names);
        matching.nearest();
        matching.spread(same_names);
    }
    matching.by_calls();
    if hashes {
        matching.spread(same_names);
        matching.follow();
    }
    matching.entries(|_, _| true);
    matching.found
}

/// The blocks before each.
fn before(nodes: &[Node]) -> Vec<Vec<u32>> {
    let mut out = vec![Vec::new(); nodes.len()];
    for (i, node) in nodes.iter().enumerate() {
        for to in &node.next {
            if let Some(list) = out.get_mut(*to as usize) {
                list.push(i as u32);
            }
        }
    }
    out
}

struct Matching<'a> {
    old: &'a [Node],
    new: &'a [Node],
    old_before: Vec<Vec<u32>>,
    new_before: Vec<Vec<u32>>,
    /// By block of the profile.
    found: Vec<Option<u32>>,
    /// By block of the program.
    used: Vec<bool>,
}

impl Matching<'_> {
    fn pair(&mut self, i: usize, x: usize) {
        self.found[i] = Some(x as u32);
        self.used[x] = true;
    }

    fn unmatched(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.old.len()).filter(|i| self.found[*i].is_none())
    }

    fn free(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.new.len()).filter(|x| !self.used[*x])
    }

    /// Pairs the entries.
    fn entries(&mut self, alike: impl Fn(BlockHash, BlockHash) -> bool) {
        let entry = |nodes: &[Node]| nodes.iter().position(|node| node.entry);
        if let (Some(i), Some(x)) = (entry(self.old), entry(self.new))
            && self.found[i].is_none()
            && !self.used[x]
            && alike(self.old[i].hash, self.new[x].hash)
        {
            self.pair(i, x);
        }
    }

    /// Pairs blocks that are the only ones with their key on either side.
    fn anchors(&mut self, key: impl Fn(BlockHash) -> u64) {
        #[derive(Default)]
        struct Once {
            old: Option<usize>,
            new: Option<usize>,
            several: bool,
        }
        let mut once: FxHashMap<u64, Once> = FxHashMap::default();
        for i in self.unmatched() {
            let slot = once.entry(key(self.old[i].hash)).or_default();
            slot.several |= slot.old.replace(i).is_some();
        }
        for x in self.free() {
            if let Some(slot) = once.get_mut(&key(self.new[x].hash)) {
                slot.several |= slot.new.replace(x).is_some();
            }
        }
        for slot in once.into_values() {
            if let (Some(i), Some(x), false) = (slot.old, slot.new, slot.several) {
                self.pair(i, x);
            }
        }
    }

    /// Pairs blocks that have pseudo probes in common which no other block of the program has.
    fn by_probes(&mut self) {
        let mut places: FxHashMap<u64, Option<usize>> = FxHashMap::default();
        for (x, node) in self.new.iter().enumerate() {
            for probe in &node.probes {
                let place = places.entry(*probe).or_insert(Some(x));
                *place = place.filter(|only| *only == x);
            }
        }
        let mut pairs: Vec<(Reverse<usize>, usize, usize)> = Vec::new();
        for i in self.unmatched() {
            let probes = self.old[i].probes.iter();
            let mut votes: Vec<usize> = probes.filter_map(|p| *places.get(p)?).collect();
            votes.sort_unstable();
            for group in votes.chunk_by(|a, b| a == b) {
                if 2 * group.len() > votes.len() {
                    pairs.extend(group.first().map(|x| (Reverse(group.len()), i, *x)));
                }
            }
        }
        pairs.sort_unstable();
        for (_, i, x) in pairs {
            if !self.used[x] {
                self.pair(i, x);
            }
        }
    }

    /// Pairs neighbours of pairs that are alike.
    fn spread(&mut self, alike: fn(BlockHash, BlockHash) -> bool) {
        let mut work: Vec<(usize, usize)> = self.pairs();
        while let Some((i, x)) = work.pop() {
            let (old, new) = (self.old, self.new);
            let (theirs, ours) = (&old[i].next, &new[x].next);
            // A table may have got more entries at its end.
            if theirs.len() == ours.len() || theirs.len().min(ours.len()) > 2 {
                for (a, b) in theirs.iter().zip(ours) {
                    let (a, b) = (*a as usize, *b as usize);
                    let is_free =
                        self.found.get(a) == Some(&None) && self.used.get(b) == Some(&false);
                    if is_free && alike(old[a].hash, new[b].hash) {
                        self.pair(a, b);
                        work.push((a, b));
                    }
                }
            }
            for (a, b) in self.only_pairs(theirs, ours, alike) {
                self.pair(a, b);
                work.push((a, b));
            }
            for (a, b) in self.only_pairs(&self.old_before[i], &self.new_before[x], alike) {
                self.pair(a, b);
                work.push((a, b));
            }
        }
    }

    fn pairs(&self) -> Vec<(usize, usize)> {
        let found = self.found.iter().enumerate();
        found
            .filter_map(|(i, x)| Some((i, (*x)? as usize)))
            .collect()
    }

    /// Of two lists, what is alike only once on either side.
    fn only_pairs(
        &self,
        theirs: &[u32],
        ours: &[u32],
        alike: fn(BlockHash, BlockHash) -> bool,
    ) -> Vec<(usize, usize)> {
        if theirs.len() > WIDE || ours.len() > WIDE {
            return Vec::new();
        }
        let sorted = |list: &[u32], is_left: &dyn Fn(usize) -> bool| {
            let left = list.iter().map(|b| *b as usize);
            let mut left: Vec<usize> = left.filter(|b| is_left(*b)).collect();
            left.sort_unstable();
            left.dedup();
            left
        };
        let theirs = sorted(theirs, &|i| self.found.get(i) == Some(&None));
        let ours = sorted(ours, &|x| self.used.get(x) == Some(&false));
        let hash = |i: usize, x: usize| alike(self.old[i].hash, self.new[x].hash);
        let mut out = Vec::new();
        for i in &theirs {
            let mut candidates = ours.iter().filter(|x| hash(*i, **x));
            let (Some(x), None) = (candidates.next(), candidates.next()) else {
                continue;
            };
            if theirs.iter().filter(|i| hash(**i, *x)).count() == 1 {
                out.push((*i, *x));
            }
        }
        out
    }

    /// Pairs blocks of one loose hash, the least distance first.
    fn nearest(&mut self) {
        // (Their offset, how far it moved), by their offset.
        let mut anchors: Vec<(u16, i32)> = self
            .pairs()
            .into_iter()
            .map(|(i, x)| (self.old[i].hash.offset, self.new[x].hash.offset))
            .map(|(from, to)| (from, i32::from(to) - i32::from(from)))
            .collect();
        anchors.sort_unstable();
        let moved = |offset: u16| -> u16 {
            let after = anchors.partition_point(|a| a.0 <= offset);
            let before = after.saturating_sub(1);
            let by = anchors.get(before).map_or(0, |anchor| anchor.1);
            (i32::from(offset) + by).clamp(0, i32::from(u16::MAX)) as u16
        };
        let mut candidates: FxHashMap<u16, Vec<usize>> = FxHashMap::default();
        for x in self.free() {
            candidates
                .entry(self.new[x].hash.loose)
                .or_default()
                .push(x);
        }
        let mut pairs: Vec<(u64, usize, usize)> = Vec::new();
        for i in self.unmatched() {
            let hash = self.old[i].hash;
            let Some(list) = candidates.get(&hash.loose) else {
                continue;
            };
            let expected = BlockHash {
                offset: moved(hash.offset),
                ..hash
            };
            let near = list.partition_point(|x| self.new[*x].hash.offset < expected.offset);
            let window = near.saturating_sub(NEAR)..(near + NEAR).min(list.len());
            for x in list.get(window).unwrap_or_default() {
                pairs.push((self.new[*x].hash.distance(expected), i, *x));
            }
        }
        pairs.sort_unstable();
        for (_, i, x) in pairs {
            if self.found[i].is_none() && !self.used[x] {
                self.pair(i, x);
            }
        }
    }

    /// Pairs blocks that call the same functions, the nearest first.
    fn by_calls(&mut self) {
        let new = self.new;
        let mut by_calls: FxHashMap<&[u64], Vec<usize>> = FxHashMap::default();
        for x in self.free().filter(|x| !new[*x].calls.is_empty()) {
            by_calls.entry(&new[x].calls).or_default().push(x);
        }
        for i in self.unmatched().collect::<Vec<_>>() {
            let of = |x: usize| new[x].hash.offset.abs_diff(self.old[i].hash.offset);
            let nearest = by_calls.get(&self.old[i].calls[..]).and_then(|list| {
                let free = list.iter().copied().filter(|x| !self.used[*x]);
                free.min_by_key(|x| of(*x))
            });
            if let Some(x) = nearest {
                self.pair(i, x);
            }
        }
    }

    /// Pairs what follows at the same place after blocks with the same instructions.
    fn follow(&mut self) {
        let mut work = self.pairs();
        while let Some((i, x)) = work.pop() {
            let (theirs, ours) = (&self.old[i].next, &self.new[x].next);
            if theirs.len() != ours.len() || !same_names(self.old[i].hash, self.new[x].hash) {
                continue;
            }
            for (a, b) in theirs.iter().zip(ours) {
                let (a, b) = (*a as usize, *b as usize);
                if self.found.get(a) == Some(&None) && self.used.get(b) == Some(&false) {
                    self.pair(a, b);
                    work.push((a, b));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A block by its offset, the hashes of its names and operands, and what follows.
    fn node(offset: u16, loose: u16, strict: u16, next: &[u32]) -> Node {
        Node {
            hash: BlockHash {
                offset,
                loose,
                strict,
                ..BlockHash::default()
            },
            next: next.to_vec(),
            entry: offset == 0,
            ..Node::default()
        }
    }

    #[test]
    fn a_block_is_told_from_its_twins_by_what_leads_to_it() {
        // Two tests whose arms are the same instructions; their order in memory is another now.
        let old = [
            node(0, 1, 1, &[1, 2]),
            node(10, 2, 2, &[3, 4]),
            node(20, 3, 3, &[5, 6]),
            node(30, 9, 9, &[]),
            node(40, 8, 8, &[]),
            node(50, 9, 9, &[]),
            node(60, 8, 8, &[]),
        ];
        let new = [
            node(0, 1, 1, &[1, 2]),
            node(10, 2, 2, &[5, 6]),
            node(20, 3, 3, &[3, 4]),
            node(30, 9, 9, &[]),
            node(40, 8, 8, &[]),
            node(50, 9, 9, &[]),
            node(60, 8, 8, &[]),
        ];
        let found = match_blocks(&old, &new, true);
        assert_eq!(found, [0, 1, 2, 5, 6, 3, 4].map(Some));
    }

    #[test]
    fn operands_tell_blocks_apart_whose_neighbours_have_changed() {
        let mut old = vec![node(0, 1, 1, &[1, 2, 3])];
        let mut new = old.clone();
        for (i, strict) in [(1, 5), (2, 6), (3, 7)] {
            let mut block = node(16 * i, 9, strict, &[]);
            block.hash.before = 1;
            old.push(block.clone());
            block.hash.before = 2;
            block.hash.offset = 16 * (4 - i);
            new.push(block);
        }
        let found = match_blocks(&old, &new, true);
        assert_eq!(found, [0, 1, 2, 3].map(Some));
    }

    #[test]
    fn a_block_with_other_instructions_is_found_between_the_same_ones() {
        let old = [
            node(0, 1, 1, &[1, 2]),
            node(10, 2, 2, &[3]),
            node(20, 3, 3, &[3]),
            node(30, 4, 4, &[]),
        ];
        let mut new = old.clone();
        new[1].hash = node(10, 77, 77, &[]).hash;
        let found = match_blocks(&old, &new, true);
        assert_eq!(found, [0, 1, 2, 3].map(Some));
    }

    #[test]
    fn pseudo_probes_decide_between_blocks_before_names_of_instructions_do() {
        let mut old = vec![node(0, 1, 1, &[]), node(8, 2, 2, &[]), node(16, 3, 3, &[])];
        let mut new = vec![node(0, 9, 9, &[]), node(8, 2, 7, &[]), node(16, 3, 8, &[])];
        // A probe that two blocks of the program have says nothing.
        for (block, probes) in [(0, &[5][..]), (1, &[10, 11, 12, 99]), (2, &[20, 99])] {
            old[block].probes = probes.to_vec();
        }
        for (block, probes) in [(0, &[5][..]), (1, &[20, 99]), (2, &[10, 11, 99])] {
            new[block].probes = probes.to_vec();
        }
        assert_eq!(match_blocks(&old, &new, true), [0, 2, 1].map(Some));
        old.iter_mut().for_each(|node| node.probes.clear());
        assert_eq!(match_blocks(&old, &new, true), [0, 1, 2].map(Some));
    }

    #[test]
    fn blocks_without_comparable_hashes_are_found_by_what_they_call() {
        let mut old = [node(0, 1, 1, &[1]), node(8, 2, 2, &[]), node(16, 3, 3, &[])];
        let mut new = [node(0, 9, 9, &[2]), node(8, 8, 8, &[]), node(16, 7, 7, &[])];
        old[1].calls = vec![70];
        new[2].calls = vec![70];
        let found = match_blocks(&old, &new, false);
        assert_eq!(found, [Some(0), Some(2), None]);
    }
}
