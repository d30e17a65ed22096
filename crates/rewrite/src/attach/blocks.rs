//! A profile by blocks (BOLT's YAML) attached to a program, also one of an older build.
//!
//! Functions are found by name, then by what other builds leave of a name ([`super::lookup`]), then by the hash of
//! their code or by who calls them ([`super::renamed`]). A function whose blocks are all where the profile has them
//! takes its counts as they are. Any other is *stale*:
//!
//! * If its flow graph is the same, and nearly all blocks have the names of their instructions in common, its blocks
//!   are those at the same places of the graph, whatever became of operands.
//! * Else blocks are matched ([`super::matching`]).
//!
//! Counts of blocks that were found are evidence, and counts of edges between two of them. Where a branch leads to code
//! that was not found, or was put in between, the ways that are left on either side are the same, in their order. What
//! did not run in the profile hardly does now, so that is evidence as well, where the profile lists such blocks
//! (ours do). Everything else is inferred (Ayupov, Panchenko, Pupyrev: "Stale Profile Matching", CC 2024), where a
//! branch of which nothing is known rather goes the way that static prediction expects ([`crate::analyse::predict`]).
//!
//! Whether two hashes can be compared depends on the tool that wrote the profile. Ours agree in all pieces. BOLT's
//! agree in offset, loose hash and neighbours ([`crate::analyse::hashes`]), so its profiles match too, only
//! with less certainty; with its older hash function only offsets, calls and pseudo probes are left.

use postlink_flow::infer::{Inference, Prices};
use postlink_isa::Isa;
use postlink_profile::bolt_yaml::probes::SourceFunction;
use postlink_profile::bolt_yaml::{self, BoltYaml, HashFunction};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::analyse::bolt_blocks::BoltBlocks;
use crate::analyse::hashes::{self, BlockHash, ORIGIN, PartHashes};
use crate::analyse::predict::Predictor;
use crate::analyse::table_order::TableOrder;
use crate::analyse::{Scratch, prepare};
use crate::attach::account::Account;
use crate::attach::evidence::Evidence;
use crate::attach::lookup::{self, Key, Lookup};
use crate::attach::matching::{Node, UNLISTED, match_blocks};
use crate::attach::pseudo_probes::{self, OfProgram};
use crate::attach::{Attached, Outcome, renamed};
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

/// How a part of the program fits what the profile was taken of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fit {
    /// It is the same code.
    Same,
    /// The flow graph is the same, and nearly all blocks have the names of their instructions in common.
    Shape,
    /// Neither.
    Other,
}

/// What is the same for all functions.
struct Context<'a, 'd> {
    program: &'a Program<'d>,
    nonlocal_exits: &'a NonlocalExits,
    profile: &'a BoltYaml,
    comparable: Comparable,
    /// The order of edges of indirect jumps, if the profile has them in it.
    tables: Option<TableOrder>,
    /// Source functions that the profile names pseudo probes of.
    source_functions: Vec<SourceFunction>,
    /// The program's pseudo probes, if the profile has some.
    probes: Option<OfProgram>,
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
    let is_lost =
        |(f, a): (&bolt_yaml::Function, &Option<u64>)| a.is_none() && !lookup::is_foreign(&f.name);
    if comparable != Comparable::Offsets && profile.functions.iter().zip(&at).any(is_lost) {
        let code = comparable == Comparable::All;
        account.renamed += renamed::find::<I>(program, nonlocal_exits, profile, code, &mut at);
    }
    for (f, a) in profile.functions.iter().zip(&at) {
        if is_lost((f, a)) {
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
    let source_functions = profile.source_functions();
    let has_probes = !source_functions.is_empty();
    let context = Context {
        tables: (comparable == Comparable::All).then(|| TableOrder::new(program)),
        probes: has_probes.then(|| OfProgram::new(program.elf)).flatten(),
        source_functions,
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
    let done: Vec<Outcome<'d>> = postlink_parallel::map_with(
        &groups,
        || (Scratch::default(), Inference::default()),
        |(scratch, inference), group| context.attach_function::<I>(group, scratch, inference),
    );
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

/// One part of a function, in the program and in the profile.
struct Part<'a> {
    cfg: &'a Cfg,
    blocks: &'a BoltBlocks,
    /// Its first block.
    first: u32,
    hashes: PartHashes,
    /// What follows its indirect jumps, in the order of their tables.
    tables: Vec<(u32, Vec<u32>)>,
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
                tables: match &self.tables {
                    Some(tables) => {
                        tables.of_part(self.program, function as usize, cfg, &blocks, part)
                    }
                    None => Vec::new(),
                },
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
            let fit = self.fit(&part, &order);
            let same = fit == Fit::Same;
            stale |= !same;
            let found: Vec<Option<u32>> = if fit == Fit::Other {
                self.find(&part)
            } else {
                let blocks = profile.blocks.iter();
                blocks.map(|b| order.get(b.bid as usize).copied()).collect()
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
            matched += self.take(&part, &found, (fit, &order), &mut evidence, &mut out.calls);
        }
        if stale {
            out.account.stale += 1;
            evidence.prices = Prices::STALE;
            if matched == 0 {
                out.account.dropped += 1;
                out.calls.clear();
                return out;
            }
            let predictor = Predictor::new::<I>(self.program, cfg);
            let is_taken = |b: &BlockId| {
                let taken = predictor.taken::<I>(self.program, *b);
                taken.is_some_and(|taken| taken > 0.5)
            };
            evidence.taken = (0..cfg.blocks.len() as BlockId).filter(is_taken).collect();
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

    /// How a part of the program fits what the profile was taken of. `order` are its blocks in the profile's order.
    fn fit(&self, part: &Part<'_>, order: &[u32]) -> Fit {
        let f = part.profile;
        if f.nblocks as usize != order.len() {
            return Fit::Other;
        }
        let mut same = self.comparable != Comparable::All || f.hash == part.hashes.function;
        let mut loose = 0usize;
        for b in &f.blocks {
            let Some(x) = order.get(b.bid as usize) else {
                return Fit::Other;
            };
            let own = part.hashes.blocks[*x as usize];
            let theirs = BlockHash::from_word(b.hash);
            loose += usize::from(own.loose != theirs.loose);
            same &= match self.comparable {
                Comparable::All => own == theirs,
                _ => b.hash == 0 || own.offset == theirs.offset,
            };
            let targets: Vec<u32> = part.edges(*x).map(|e| e.1).collect();
            let known = b.successors.iter().all(|s| {
                let to = order.get(s.bid as usize);
                s.count == 0 || to.is_some_and(|to| targets.contains(to) || part.passes(*x, *to))
            });
            if !known {
                return Fit::Other;
            }
        }
        // LLVM may call a few instructions by other names than we do.
        let alike = loose * 8 <= f.blocks.len();
        match self.comparable {
            Comparable::All | Comparable::Loose if !alike => Fit::Other,
            Comparable::Offsets if !same => Fit::Other,
            _ if same => Fit::Same,
            _ => Fit::Shape,
        }
    }

    /// The blocks of a changed part that the profile's blocks are.
    fn find(&self, part: &Part<'_>) -> Vec<Option<u32>> {
        let known = |hash: BlockHash| match self.comparable {
            Comparable::All => hash,
            _ => BlockHash { strict: 0, ..hash },
        };
        let list = &part.profile.blocks;
        let at: FxHashMap<u32, u32> = (0..).zip(list).map(|(i, b)| (b.bid, i)).collect();
        let callees = |b: &bolt_yaml::Block| {
            let calls = b.calls.iter();
            sorted(calls.filter_map(|c| self.callees.get(&c.fid).copied()))
        };
        let tree = pseudo_probes::of_tree(&self.source_functions, part.profile);
        let old: Vec<Node> = list
            .iter()
            .map(|b| Node {
                probes: pseudo_probes::of_block(&tree, b),
                hash: known(BlockHash::from_word(b.hash)),
                calls: callees(b),
                next: b
                    .successors
                    .iter()
                    .map(|s| at.get(&s.bid).copied().unwrap_or(UNLISTED))
                    .collect(),
                entry: b.bid == 0,
            })
            .collect();
        let mut new: Vec<Node> = (0..)
            .zip(&part.hashes.blocks)
            .map(|(x, hash)| Node {
                probes: self.probes.as_ref().map_or_else(Vec::new, |probes| {
                    let run = part.blocks.run(part.first + x);
                    let start = part.cfg.blocks[*run.start() as usize].start;
                    probes.within(start, part.cfg.blocks[*run.end() as usize].end)
                }),
                hash: known(*hash),
                calls: self.called_by(part, x),
                next: part.edges(x).map(|edge| edge.1).collect(),
                entry: x == 0,
            })
            .collect();
        // Of an older postlink they are in the order of addresses.
        let by_table = |b: &bolt_yaml::Block| !b.successors.is_sorted_by_key(|s| s.bid);
        let in_order = list.iter().any(|b| b.successors.len() > 2 && by_table(b));
        for (x, order) in part.tables.iter().filter(|_| in_order) {
            if let Some(node) = new.get_mut(*x as usize) {
                node.next.clone_from(order);
            }
        }
        match_blocks(&old, &new, self.comparable != Comparable::Offsets)
    }

    /// The functions of the profile that a block calls, sorted.
    fn called_by(&self, part: &Part<'_>, x: u32) -> Vec<u64> {
        let run = part.blocks.run(part.first + x);
        let fields = run.flat_map(|b| part.cfg.fields(b));
        let calls = fields.filter(|f| f.role == Use::Call && self.known.contains(&f.target));
        sorted(calls.map(|f| f.target))
    }

    /// Takes the counts of blocks that were found, and of all edges if the flow graph has not changed (`order` are
    /// the blocks by their numbers then). Returns how many that are.
    fn take(
        &self,
        part: &Part<'_>,
        found: &[Option<u32>],
        (fit, order): (Fit, &[u32]),
        evidence: &mut Evidence,
        calls: &mut Vec<(BlockId, u64, u64, u64)>,
    ) -> u64 {
        let list = &part.profile.blocks;
        let same = fit != Fit::Other;
        let order = same.then_some(order);
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
            // Ways that lead to blocks which were found; the others are left, on either side.
            let (mut left, mut free) = (Vec::new(), Vec::new());
            let mut edges: Vec<(usize, u32)> = part.edges(x).collect();
            let edges_of_branch = edges.len() <= 2;
            // Of a table that leads somewhere several times only the first entry is an edge.
            let mut seen = FxHashSet::default();
            let is_edge = |s: &&bolt_yaml::Successor| seen.insert(s.bid) || s.count > 0;
            for s in b.successors.iter().filter(is_edge) {
                let unlisted = || order?.get(s.bid as usize).copied();
                let to = of.get(&s.bid).copied().or_else(unlisted);
                let edge = edges.iter().position(|e| Some(e.1) == to);
                match (edge, to) {
                    (Some(edge), _) => evidence.add_edge(edges.remove(edge).0, s.count),
                    (None, Some(to)) if same && s.count > 0 => {
                        if let Some((a, b)) = part.over(x, to) {
                            evidence.add_edge(a, s.count);
                            evidence.add_edge(b, s.count);
                        }
                    }
                    _ => left.push(s.count),
                }
            }
            free.extend(edges.iter().map(|edge| edge.0));
            let own = part.hashes.blocks[x as usize];
            let theirs = BlockHash::from_word(b.hash);
            // The same branch leads to other blocks now, of which it says how often they run.
            let in_order = left.len() <= 1 || edges_of_branch;
            if !same && in_order && left.len() == free.len() && own.loose == theirs.loose {
                for (edge, count) in free.into_iter().zip(left) {
                    evidence.add_edge(edge, count);
                }
            }
            let places_hold = fit == Fit::Same
                || own.strict == theirs.strict && self.comparable == Comparable::All;
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

fn sorted(list: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut list: Vec<u64> = list.collect();
    list.sort_unstable();
    list.dedup();
    list
}
