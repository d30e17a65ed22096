//! Functions of a profile whose names the program does not have.
//!
//! | found by | if |
//! |---|---|
//! | the hash of its code | one function asks for it, and one function that no name leads to has it |
//! | its neighbours in the graph of calls | the functions that call it and that it calls are called by and call, for the greater part, a function that no name leads to, and the greater part of its blocks have the hashes of blocks there |
//!
//! Of several functions that fit by their neighbours the one with the most in common is taken. What was found is a
//! neighbour of others, so it is tried again until nothing more is found. A compiler changes names (parts of functions
//! that it splits off are numbered), and so do programmers; both hardly change the code at the same time.

use std::cmp::Reverse;

use postlink_isa::Isa;
use postlink_profile::bolt_yaml::{BoltYaml, Function};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::analyse::bolt_blocks::BoltBlocks;
use crate::analyse::hashes::{self, BlockHash};
use crate::analyse::{Scratch, prepare};
use crate::attach::lookup::is_foreign;
use crate::cfg::{Term, Use};
use crate::discover::{NonlocalExits, Program};

/// What is looked at of a function of the program.
struct Seen {
    start: u64,
    /// Hash and number of blocks of its first part.
    code: (u64, u32),
    /// Loose hashes of its blocks, sorted.
    loose: Vec<u16>,
    /// Functions that it calls, sorted.
    calls: Vec<u32>,
}

/// Finds functions; `at` are the addresses of the profile's functions as far as they are known. `code`: whether
/// hashes of functions can be compared. Returns how many were found.
pub(super) fn find<I: Isa>(
    program: &Program<'_>,
    nonlocal_exits: &NonlocalExits,
    profile: &BoltYaml,
    code: bool,
    at: &mut [Option<u64>],
) -> u64 {
    let seen: Vec<Option<Seen>> = postlink_parallel::map_range_with(
        program.functions.len(),
        Scratch::default,
        |scratch, f| {
            let a = prepare::analyse::<I>(program, nonlocal_exits, f, scratch).ok()?;
            let blocks = BoltBlocks::new(&a.cfg);
            let part = hashes::of_part::<I>(program, &a.cfg, &blocks, 0);
            let mut loose: Vec<u16> = part.blocks.iter().map(|hash| hash.loose).collect();
            loose.sort_unstable();
            let fields = (0..a.cfg.blocks.len() as u32).flat_map(|b| a.cfg.fields(b));
            let calls = fields.filter(|field| field.role == Use::Call);
            let tail_calls = a.cfg.blocks.iter().filter_map(|block| match block.term {
                Term::JumpOut { target } | Term::CondOut { target, .. } => Some(target),
                _ => None,
            });
            let targets = calls.map(|field| field.target).chain(tail_calls);
            let mut calls: Vec<u32> = targets
                .filter_map(|target| program.piece_at(target))
                .map(|piece| piece.function)
                .collect();
            calls.sort_unstable();
            calls.dedup();
            Some(Seen {
                start: program.start(f),
                code: (part.function, part.blocks.len() as u32),
                loose,
                calls,
            })
        },
    );
    let by_code = if code { by_code(profile, &seen, at) } else { 0 };
    by_code + by_neighbours(program, profile, &seen, at)
}

/// By the hash of the code, where it says one of each.
fn by_code(profile: &BoltYaml, seen: &[Option<Seen>], at: &mut [Option<u64>]) -> u64 {
    let taken: FxHashSet<u64> = at.iter().flatten().copied().collect();
    let mut wanted: FxHashMap<(u64, u32), (usize, u32)> = FxHashMap::default();
    for (i, f) in profile.functions.iter().enumerate() {
        if at[i].is_none() && !is_foreign(&f.name) {
            wanted.entry((f.hash, f.nblocks)).or_insert((i, 0)).1 += 1;
        }
    }
    let mut of: FxHashMap<(u64, u32), (u64, u32)> = FxHashMap::default();
    for f in seen.iter().flatten().filter(|f| !taken.contains(&f.start)) {
        of.entry(f.code).or_insert((f.start, 0)).1 += 1;
    }
    let mut found = 0;
    for (key, (i, asking)) in wanted {
        if let Some((start, 1)) = of.get(&key)
            && asking == 1
        {
            at[i] = Some(*start);
            found += 1;
        }
    }
    found
}

/// Blocks of a function in the profile that have the loose hash of one of the program's, each used once.
fn in_common(f: &Function, loose: &[u16]) -> usize {
    let hashes = f.blocks.iter().map(|b| BlockHash::from_word(b.hash).loose);
    let mut theirs: Vec<u16> = hashes.collect();
    theirs.sort_unstable();
    let mut ours = loose.iter().copied().peekable();
    let is_ours = |hash: &u16| {
        while ours.next_if(|own| own < hash).is_some() {}
        ours.next_if_eq(hash).is_some()
    };
    theirs.into_iter().filter(is_ours).count()
}

/// By who calls it and what it calls.
fn by_neighbours(
    program: &Program<'_>,
    profile: &BoltYaml,
    seen: &[Option<Seen>],
    at: &mut [Option<u64>],
) -> u64 {
    let mut callers: Vec<Vec<u32>> = vec![Vec::new(); seen.len()];
    for (f, s) in (0..).zip(seen) {
        for callee in s.iter().flat_map(|s| &s.calls) {
            if let Some(list) = callers.get_mut(*callee as usize) {
                list.push(f);
            }
        }
    }
    let numbers: FxHashMap<u32, usize> = (0..)
        .zip(&profile.functions)
        .map(|(i, f)| (f.fid, i))
        .collect();
    // Calls of the profile by numbers of its functions, both ways.
    let mut neighbours: Vec<FxHashSet<(bool, usize)>> = vec![FxHashSet::default(); at.len()];
    for (i, f) in profile.functions.iter().enumerate() {
        for call in f.blocks.iter().flat_map(|b| &b.calls) {
            if let Some(callee) = numbers.get(&call.fid).filter(|callee| **callee != i) {
                neighbours[i].insert((true, *callee));
                neighbours[*callee].insert((false, i));
            }
        }
    }
    let mut found = 0;
    loop {
        let function = |a: &Option<u64>| Some(program.piece_at((*a)?)?.function);
        let taken: FxHashSet<u32> = at.iter().filter_map(function).collect();
        let mut fits: Vec<(Reverse<u64>, usize, u64)> = Vec::new();
        for (i, f) in profile.functions.iter().enumerate() {
            if at[i].is_some() || f.blocks.is_empty() || is_foreign(&f.name) {
                continue;
            }
            let known = neighbours[i].iter().filter_map(|(calls, other)| {
                let other = function(&at[*other])?;
                Some((*calls, other))
            });
            let known: FxHashSet<(bool, u32)> = known.collect();
            let mut shared: FxHashMap<u32, usize> = FxHashMap::default();
            for (calls, other) in &known {
                let of_other = seen[*other as usize].as_ref().map(|s| &s.calls);
                let list = match calls {
                    true => Some(&callers[*other as usize]),
                    false => of_other,
                };
                for g in list.into_iter().flatten().filter(|g| !taken.contains(g)) {
                    *shared.entry(*g).or_default() += 1;
                }
            }
            for (g, shared) in shared {
                let Some(s) = &seen[g as usize] else { continue };
                let blocks = in_common(f, &s.loose);
                if 2 * shared > known.len() && 2 * blocks > f.blocks.len() {
                    let score = (shared as u64 * 1000 / known.len() as u64)
                        * (blocks as u64 * 1000 / f.blocks.len() as u64);
                    fits.push((Reverse(score), i, s.start));
                }
            }
        }
        fits.sort_unstable();
        let before = found;
        let mut used: FxHashSet<u64> = FxHashSet::default();
        for (_, i, start) in fits {
            if at[i].is_none() && used.insert(start) {
                at[i] = Some(start);
                found += 1;
            }
        }
        if found == before {
            return found;
        }
    }
}
