//! A profile by blocks (BOLT's YAML) attached to a program, also one of an older build.
//!
//! Functions are found by name, then by what other builds leave of a name ([`super::lookup`]), then, where
//! the hashes are ours, by the hash of their code. A function whose blocks are all where the profile has them
//! takes its counts as they are. Any other is *stale*, and its counts are carried over block by block
//! (Ayupov, Panchenko, Pupyrev: "Stale Profile Matching", CC 2024):
//!
//! 1. *Anchors*: blocks whose pieces of hash, offsets aside, occur once in the profile and once in the
//!    program. They tell by how much the code between them has moved.
//! 2. Blocks of the same loose hash, the least distance first ([`BlockHash::distance`]), where offsets are
//!    compared after the move of the anchor before. Each block is used once.
//! 3. Blocks that call the same functions; the entry for the entry.
//! 4. Counts of blocks that were found and of edges between two of them are evidence; everything else is inferred.
//!
//! Whether two hashes can be compared depends on the tool that wrote the profile. Ours agree in all pieces. BOLT's
//! agree in offset, loose hash and neighbours ([`crate::analyse::hashes`]), so its profiles match too, only
//! with less certainty; with its older hash function only offsets and calls are left.

use postlink_flow::infer::{Inference, Prices};
use postlink_isa::Isa;
use postlink_profile::bolt_yaml::{self, BoltYaml, HashFunction};
use rayon::prelude::*;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::analyse::bolt_blocks::BoltBlocks;
use crate::analyse::hashes::{self, BlockHash, ORIGIN, PartHashes};
use crate::analyse::{Scratch, prepare};
use crate::attach::account::Account;
use crate::attach::evidence::Evidence;
use crate::attach::lookup::{self, Key, Lookup};
use crate::attach::{Attached, Outcome};
use crate::cfg::{BlockId, Cfg, Use};
use crate::discover::{NonlocalExits, Program};

/// Index of a function in the profile.
#[derive(Clone, Copy)]
struct Index(usize);

impl Key for Index {
    fn index(self) -> usize {
        self.0
    }
}

/// What hashes of the profile can be compared with ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparable {
    /// All pieces.
    All,
    /// Offset, loose hash and neighbours.
    Loose,
    /// Offsets.
    Offsets,
}

/// What is the same for all functions.
struct Context<'a, 'd> {
    program: &'a Program<'d>,
    nonlocal_exits: &'a NonlocalExits,
    profile: &'a BoltYaml,
    comparable: Comparable,
    /// Address by function number of the profile.
    callees: FxHashMap<u32, u64>,
    /// The same addresses.
    known: FxHashSet<u64>,
}

/// Attaches a profile.
pub fn attach<'d, I: Isa>(
    program: &Program<'d>,
    nonlocal_exits: &NonlocalExits,
    profile: &BoltYaml,
) -> Attached<'d> {
    let header = &profile.header;
    let comparable = if header.origin == ORIGIN.as_bytes() {
        Comparable::All
    } else if header.hash_function == HashFunction::Xxh3 {
        Comparable::Loose
    } else {
        Comparable::Offsets
    };
    let functions = profile.functions.iter().enumerate();
    let lookup = Lookup::of_names(
        program,
        functions.map(|(i, f)| (Index(i), f.name.as_slice())),
    );
    let mut account = Account {
        renamed: lookup.similar,
        ..Account::default()
    };
    let mut at: Vec<Option<u64>> = (0..profile.functions.len())
        .map(|i| lookup.address(Index(i)))
        .map(|a| a.filter(|a| program.piece_at(*a).is_some_and(|p| p.start == *a)))
        .collect();
    if comparable == Comparable::All && at.iter().any(Option::is_none) {
        account.renamed += by_hash::<I>(program, nonlocal_exits, profile, &mut at);
    }
    for (f, a) in profile.functions.iter().zip(&at) {
        if a.is_none() && !lookup::is_foreign(&f.name) {
            account.unknown_names += 1;
            account.lost_records += f.blocks.len() as u64;
            account.lost_counts = account.lost_counts.saturating_add(counts_of(f));
            if account.examples.len() < 5 {
                account
                    .examples
                    .push(String::from_utf8_lossy(&f.name).into_owned());
            }
        }
    }
    let callees: FxHashMap<u32, u64> = profile
        .functions
        .iter()
        .zip(&at)
        .filter_map(|(f, a)| Some((f.fid, (*a)?)))
        .collect();
    let context = Context {
        program,
        nonlocal_exits,
        profile,
        comparable,
        known: callees.values().copied().collect(),
        callees,
    };
    // Parts of one function are solved together.
    let mut parts: Vec<(u32, u64, usize)> = at
        .iter()
        .enumerate()
        .filter_map(|(i, a)| {
            let piece = program.piece_at((*a)?)?;
            Some((piece.function, piece.start, i))
        })
        .collect();
    parts.sort_unstable();
    parts.dedup_by_key(|p| (p.0, p.1));
    let groups: Vec<&[(u32, u64, usize)]> = parts.chunk_by(|a, b| a.0 == b.0).collect();
    account.functions = groups.len() as u64;
    let done: Vec<Outcome<'d>> = groups
        .par_iter()
        .map_init(
            || (Scratch::default(), Inference::default()),
            |(scratch, inference), group| context.attach_function::<I>(group, scratch, inference),
        )
        .collect();
    Attached::gather(program, done, account)
}

/// The sum of a function's block counts.
fn counts_of(f: &bolt_yaml::Function) -> u64 {
    let each = f.blocks.iter().map(|b| {
        let out = b
            .successors
            .iter()
            .map(|s| s.count)
            .fold(0, u64::saturating_add);
        out.max(b.exec).max(b.events)
    });
    each.fold(0, u64::saturating_add)
}

/// Finds functions of the profile that have another name now by the hash of their code, where it says one of each.
fn by_hash<I: Isa>(
    program: &Program<'_>,
    nonlocal_exits: &NonlocalExits,
    profile: &BoltYaml,
    at: &mut [Option<u64>],
) -> u64 {
    let taken: FxHashSet<u64> = at.iter().flatten().copied().collect();
    let mut wanted: FxHashMap<(u64, u32), (usize, u32)> = FxHashMap::default();
    for (i, f) in profile
        .functions
        .iter()
        .enumerate()
        .filter(|(i, _)| at[*i].is_none())
    {
        let slot = wanted.entry((f.hash, f.nblocks)).or_insert((i, 0));
        slot.1 += 1;
    }
    let found: Vec<((u64, u32), u64)> = (0..program.functions.len())
        .into_par_iter()
        .map_init(Scratch::default, |scratch, f| {
            let start = program.start(f);
            if taken.contains(&start) {
                return None;
            }
            let a = prepare::analyse::<I>(program, nonlocal_exits, f, scratch).ok()?;
            let blocks = BoltBlocks::new(&a.cfg);
            let hash = hashes::of_part::<I>(program, &a.cfg, &blocks, 0).function;
            Some(((hash, blocks.part(0).len() as u32), start))
        })
        .flatten()
        .collect();
    let mut of: FxHashMap<(u64, u32), (u64, u32)> = FxHashMap::default();
    for (key, start) in found {
        let slot = of.entry(key).or_insert((start, 0));
        slot.1 += 1;
    }
    let mut renamed = 0;
    for (key, (i, asking)) in wanted {
        if let Some((start, 1)) = of.get(&key)
            && asking == 1
        {
            at[i] = Some(*start);
            renamed += 1;
        }
    }
    renamed
}

/// One part of a function, in the program and in the profile.
struct Part<'a> {
    cfg: &'a Cfg,
    blocks: &'a BoltBlocks,
    /// Its first block.
    first: u32,
    hashes: PartHashes,
    profile: &'a bolt_yaml::Function,
    /// By block of the profile's list: its count.
    counts: Vec<u64>,
}

impl<'d> Context<'_, 'd> {
    fn attach_function<I: Isa>(
        &self,
        group: &[(u32, u64, usize)],
        scratch: &mut Scratch,
        inference: &mut Inference,
    ) -> Outcome<'d> {
        let mut out = Outcome::default();
        let Some(&(function, ..)) = group.first() else {
            return out;
        };
        for (_, _, i) in group {
            let f = &self.profile.functions[*i];
            out.account.records += f.blocks.len() as u64;
            out.account.counts = out.account.counts.saturating_add(counts_of(f));
        }
        let analysed = match prepare::analyse::<I>(
            self.program,
            self.nonlocal_exits,
            function as usize,
            scratch,
        ) {
            Ok(analysed) => analysed,
            Err(pin) => {
                out.pin = Some((function, pin));
                out.account.pinned += 1;
                return out;
            }
        };
        let cfg = &analysed.cfg;
        let blocks = BoltBlocks::new(cfg);
        let mut evidence = Evidence::new(cfg, Prices::SAMPLED);
        let mut stale = false;
        let mut matched = 0u64;
        for (_, start, i) in group {
            let pieces = &self.program.functions[function as usize].pieces;
            let Some(part) = pieces
                .iter()
                .position(|p| self.program.pieces[*p as usize].start == *start)
            else {
                continue;
            };
            let profile = &self.profile.functions[*i];
            let part = Part {
                cfg,
                blocks: &blocks,
                first: blocks.part(part).start,
                hashes: hashes::of_part::<I>(self.program, cfg, &blocks, part),
                profile,
                counts: self.block_counts(profile),
            };
            let order = if self.profile.header.dfs_order {
                let which = pieces
                    .iter()
                    .position(|p| self.program.pieces[*p as usize].start == *start)
                    .unwrap_or(0);
                invert(&blocks.depth_first::<I>(self.program, function as usize, cfg, which))
            } else {
                (0..part.hashes.blocks.len() as u32).collect()
            };
            let same = self.unchanged(&part, &order);
            let found: Vec<Option<u32>> = if same {
                profile
                    .blocks
                    .iter()
                    .map(|b| order.get(b.bid as usize).copied())
                    .collect()
            } else {
                stale = true;
                self.find(&part)
            };
            if !same {
                for (i, b) in profile.blocks.iter().enumerate() {
                    out.account.stale_blocks += 1;
                    out.account.stale_counts =
                        out.account.stale_counts.saturating_add(part.counts[i]);
                    let Some(x) = found[i] else { continue };
                    out.account.matched_blocks += 1;
                    out.account.matched_counts =
                        out.account.matched_counts.saturating_add(part.counts[i]);
                    let strict = BlockHash::from_word(b.hash).strict;
                    let own = part.hashes.blocks[x as usize].strict;
                    out.account.same_blocks +=
                        u64::from(self.comparable == Comparable::All && strict == own);
                }
            }
            let order = same.then_some(order.as_slice());
            matched += self.take(&part, &found, order, &mut evidence, &mut out.calls);
        }
        if stale {
            out.account.stale += 1;
            evidence.prices = Prices::STALE;
            if matched == 0 {
                out.account.dropped += 1;
                out.calls.clear();
                return out;
            }
        } else if self.profile.header.sample {
            evidence.prices = Prices::BLOCKS;
        } else {
            let joined = |b: BlockId| *blocks.run(blocks.of[b as usize]).end() != b;
            evidence.close(cfg, true, joined);
        }
        let counted = evidence.solve(function, analysed, inference);
        if counted.counts.blocks.iter().any(|c| *c > 0) {
            out.account.attached += 1;
            out.counted = Some(counted);
        }
        out
    }

    /// Counts of the blocks in a profile's list: the larger of what flows in and out, what is recorded, or
    /// samples by instruction.
    fn block_counts(&self, f: &bolt_yaml::Function) -> Vec<u64> {
        let mut into: FxHashMap<u32, u64> = FxHashMap::default();
        for s in f.blocks.iter().flat_map(|b| &b.successors) {
            let sum = into.entry(s.bid).or_default();
            *sum = sum.saturating_add(s.count);
        }
        f.blocks
            .iter()
            .map(|b| {
                if self.profile.header.sample && !self.profile.header.lbr {
                    let events = u128::from(b.events) * 1000 / u128::from(b.insns.max(1));
                    return u64::try_from(events).unwrap_or(u64::MAX);
                }
                let out = b
                    .successors
                    .iter()
                    .map(|s| s.count)
                    .fold(0, u64::saturating_add);
                let into = into.get(&b.bid).copied().unwrap_or(0);
                let entry = if b.bid == 0 { f.exec } else { 0 };
                out.max(into).max(b.exec).max(entry)
            })
            .collect()
    }

    /// Whether a part of the program is what the profile was taken of. `order` are its blocks in the profile's order.
    fn unchanged(&self, part: &Part<'_>, order: &[u32]) -> bool {
        let f = part.profile;
        if f.nblocks as usize != order.len() {
            return false;
        }
        let all = self.comparable == Comparable::All;
        if all && f.hash != part.hashes.function {
            return false;
        }
        let mut loose = 0usize;
        let blocks = f.blocks.iter().all(|b| {
            let Some(x) = order.get(b.bid as usize) else {
                return false;
            };
            let own = part.hashes.blocks[*x as usize];
            let theirs = BlockHash::from_word(b.hash);
            loose += usize::from(own.loose != theirs.loose);
            let same = match self.comparable {
                Comparable::All => own == theirs,
                _ => b.hash == 0 || own.offset == theirs.offset,
            };
            let targets: Vec<u32> = part.edges(*x).map(|e| e.1).collect();
            let known = b.successors.iter().all(|s| {
                let to = order.get(s.bid as usize);
                s.count == 0 || to.is_some_and(|to| targets.contains(to) || part.passes(*x, *to))
            });
            same && known
        });
        // LLVM may call a few instructions by other names than we do.
        blocks && (self.comparable != Comparable::Loose || loose * 8 <= f.blocks.len())
    }

    /// The blocks of a changed part that the profile's blocks are.
    fn find(&self, part: &Part<'_>) -> Vec<Option<u32>> {
        let list = &part.profile.blocks;
        let mut theirs: Vec<BlockHash> =
            list.iter().map(|b| BlockHash::from_word(b.hash)).collect();
        if self.comparable != Comparable::All {
            theirs.iter_mut().for_each(|h| h.strict = 0);
        }
        let mut ours = part.hashes.blocks.clone();
        if self.comparable != Comparable::All {
            ours.iter_mut().for_each(|h| h.strict = 0);
        }
        let mut found: Vec<Option<u32>> = vec![None; list.len()];
        let mut used = vec![false; ours.len()];
        if self.comparable != Comparable::Offsets {
            by_hashes(&theirs, &ours, &mut found, &mut used);
        }
        // By what they call.
        let mut by_calls: FxHashMap<Vec<u64>, Vec<u32>> = FxHashMap::default();
        for x in (0..ours.len() as u32).filter(|x| !used[*x as usize]) {
            let calls = self.called_by(part, x);
            if !calls.is_empty() {
                by_calls.entry(calls).or_default().push(x);
            }
        }
        for (i, b) in list
            .iter()
            .enumerate()
            .filter(|(i, _)| found[*i].is_none())
            .collect::<Vec<_>>()
        {
            let mut calls: Vec<u64> = b
                .calls
                .iter()
                .filter_map(|c| self.callees.get(&c.fid).copied())
                .collect();
            calls.sort_unstable();
            calls.dedup();
            let nearest = by_calls.get(&calls).and_then(|list| {
                let free = list.iter().filter(|x| !used[**x as usize]);
                free.min_by_key(|x| ours[**x as usize].offset.abs_diff(theirs[i].offset))
            });
            if let Some(x) = nearest {
                found[i] = Some(*x);
                used[*x as usize] = true;
            }
        }
        if let Some(i) = list.iter().position(|b| b.bid == 0)
            && found[i].is_none()
            && used.first() == Some(&false)
        {
            found[i] = Some(0);
        }
        found
    }

    /// The functions of the profile that a block calls, sorted.
    fn called_by(&self, part: &Part<'_>, x: u32) -> Vec<u64> {
        let run = part.blocks.run(part.first + x);
        let mut calls: Vec<u64> = run
            .flat_map(|b| part.cfg.fields(b))
            .filter(|f| f.role == Use::Call && self.known.contains(&f.target))
            .map(|f| f.target)
            .collect();
        calls.sort_unstable();
        calls.dedup();
        calls
    }

    /// Takes the counts of blocks that were found, and of all edges if nothing has changed (`order` are the
    /// blocks by their numbers then). Returns how many that are.
    fn take(
        &self,
        part: &Part<'_>,
        found: &[Option<u32>],
        order: Option<&[u32]>,
        evidence: &mut Evidence,
        calls: &mut Vec<(BlockId, u64, u64, u64)>,
    ) -> u64 {
        let list = &part.profile.blocks;
        let same = order.is_some();
        let of: FxHashMap<u32, u32> = list
            .iter()
            .zip(found)
            .filter_map(|(b, x)| Some((b.bid, (*x)?)))
            .collect();
        let by_samples = self.profile.header.sample && !self.profile.header.lbr;
        let mut matched = 0;
        for (i, b) in list.iter().enumerate() {
            let Some(x) = found[i] else { continue };
            matched += 1;
            let run = part.blocks.blocks[(part.first + x) as usize];
            if !same || by_samples {
                evidence.blocks[run.first as usize] = Some(part.counts[i]);
            }
            for s in &b.successors {
                let unlisted = || order?.get(s.bid as usize).copied();
                let to = of.get(&s.bid).copied().or_else(unlisted);
                let Some(to) = to else { continue };
                let edge = part.edges(x).find(|e| e.1 == to).map(|e| e.0);
                match edge {
                    Some(edge) => evidence.add_edge(edge, s.count),
                    None if same && s.count > 0 => {
                        if let Some((a, b)) = part.over(x, to) {
                            evidence.add_edge(a, s.count);
                            evidence.add_edge(b, s.count);
                        }
                    }
                    None => {}
                }
            }
            let own = part.hashes.blocks[x as usize];
            let places_hold = same
                || own.strict == BlockHash::from_word(b.hash).strict
                    && self.comparable == Comparable::All;
            if places_hold {
                let start = part.cfg.blocks[run.first as usize].start;
                for c in &b.calls {
                    let at = start + u64::from(c.offset);
                    let site = part.cfg.recorded().find(|s| s.at == at);
                    if let (Some(site), Some(target)) = (site, self.callees.get(&c.fid))
                        && c.discriminator == 0
                    {
                        calls.push((site.block, at, *target, c.count));
                    }
                }
            }
        }
        let entry = part.blocks.blocks[part.first as usize].first;
        if part.cfg.blocks[entry as usize].entry && !by_samples {
            evidence.entries.insert(entry, part.profile.exec);
        }
        matched
    }
}

impl Part<'_> {
    /// Edges of a block within the part: (index into the flow graph's successors, block).
    fn edges(&self, x: u32) -> impl Iterator<Item = (usize, u32)> + '_ {
        self.blocks
            .edges(self.cfg, self.first + x)
            .filter_map(move |(source, k, to)| {
                let to = to.checked_sub(self.first)?;
                let edge = self.cfg.blocks[source as usize].succ as usize + k;
                ((to as usize) < self.hashes.blocks.len()).then_some((edge, to))
            })
    }

    /// Whether a block leads to another over one that only goes there.
    fn passes(&self, x: u32, to: u32) -> bool {
        self.over(x, to).is_some()
    }

    fn over(&self, x: u32, to: u32) -> Option<(usize, usize)> {
        let (first, middle) = self.edges(x).last()?;
        let mut onwards = self.edges(middle);
        let (second, end) = onwards.next()?;
        (end == to && onwards.next().is_none()).then_some((first, second))
    }
}

/// Position by value from value by position.
fn invert(position: &[u32]) -> Vec<u32> {
    let mut out = vec![0; position.len()];
    for (i, p) in position.iter().enumerate() {
        if let Some(slot) = out.get_mut(*p as usize) {
            *slot = i as u32;
        }
    }
    out
}

/// Pairs blocks of one loose hash: anchors first, then by distance.
fn by_hashes(
    theirs: &[BlockHash],
    ours: &[BlockHash],
    found: &mut [Option<u32>],
    used: &mut [bool],
) {
    // Anchors: all pieces but the offset, once on each side.
    let mut once: FxHashMap<u64, (Option<usize>, Option<usize>, bool)> = FxHashMap::default();
    for (i, h) in theirs.iter().enumerate() {
        let slot = once.entry(h.word() >> 16).or_default();
        slot.2 |= slot.0.replace(i).is_some();
    }
    for (x, h) in ours.iter().enumerate() {
        if let Some(slot) = once.get_mut(&(h.word() >> 16)) {
            slot.2 |= slot.1.replace(x).is_some();
        }
    }
    // (Their offset, how far it moved), by their offset.
    let mut anchors: Vec<(u16, i32)> = Vec::new();
    for slot in once.values() {
        if let (Some(i), Some(x), false) = slot {
            found[*i] = Some(*x as u32);
            used[*x] = true;
            anchors.push((
                theirs[*i].offset,
                i32::from(ours[*x].offset) - i32::from(theirs[*i].offset),
            ));
        }
    }
    anchors.sort_unstable();
    let moved = |offset: u16| -> u16 {
        let i = anchors.partition_point(|a| a.0 <= offset);
        let by = i
            .checked_sub(1)
            .or((!anchors.is_empty()).then_some(0))
            .map_or(0, |i| anchors[i].1);
        (i32::from(offset) + by).clamp(0, i32::from(u16::MAX)) as u16
    };
    // Candidates of one loose hash, by offset.
    let mut candidates: FxHashMap<u16, Vec<u32>> = FxHashMap::default();
    for (x, h) in ours.iter().enumerate().filter(|(x, _)| !used[*x]) {
        candidates.entry(h.loose).or_default().push(x as u32);
    }
    let mut pairs: Vec<(u64, u32, u32)> = Vec::new();
    for (i, h) in theirs
        .iter()
        .enumerate()
        .filter(|(i, _)| found[*i].is_none())
    {
        let Some(list) = candidates.get(&h.loose) else {
            continue;
        };
        let expected = BlockHash {
            offset: moved(h.offset),
            ..*h
        };
        // Of very many equal ones only those near by: all pairs of thousands would be millions.
        const NEAR: usize = 64;
        let near = list.partition_point(|x| ours[*x as usize].offset < expected.offset);
        let window = near.saturating_sub(NEAR)..(near + NEAR).min(list.len());
        for x in &list[window] {
            pairs.push((ours[*x as usize].distance(expected), i as u32, *x));
        }
    }
    pairs.sort_unstable();
    for (_, i, x) in pairs {
        if found[i as usize].is_none() && !used[x as usize] {
            found[i as usize] = Some(x);
            used[x as usize] = true;
        }
    }
}
