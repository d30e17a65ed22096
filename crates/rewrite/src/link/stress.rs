//! Layouts that make a wrong assumption show at once, for tests (`postlink optimize --stress SEED`).
//!
//! A layout for speed keeps most things as compilers made them: functions at multiples of 16, the entry's
//! block first, hot code together. An assumption that is false only elsewhere is then not noticed. Under
//! stress everything that a layout is free to choose is chosen at random, by a seed:
//!
//! | what | how |
//! |---|---|
//! | order of functions | random |
//! | order of blocks | random, the entry first |
//! | what is cold | by the function: nothing, all but the entry, or each block by chance |
//! | addresses | any that pointers to the function allow, odd ones among them |
//! | distances | here and there out of reach of short branches, and once of an AArch64 conditional branch ([`Gaps`]) |
//!
//! Whatever the choice, the output has to be proved and to do what the input does. Once it is proved, old
//! bodies after their entry jumps may be filled with breakpoints ([`OldBody`]): whatever still runs there was
//! an unnoticed fall-back.

use super::ready::{Ready, moving};
use crate::analyse::EntryPatch;
use crate::cfg::{BlockId, OwnTable};
use crate::discover::Program;

/// A generator of numbers that are spread well enough (SplitMix64, public domain, Sebastiano Vigna).
#[derive(Clone, Copy, Debug)]
pub struct Random(u64);

impl Random {
    /// For one thing, told by its address, under a seed.
    pub fn of(seed: u64, address: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ address)
    }

    /// The next number below a bound, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % bound.max(1)
    }

    /// Puts a list into any order.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for i in (1..list.len()).rev() {
            list.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

/// Distances between functions: mostly some bytes; one in sixteen is longer than an AArch64 test-and-branch
/// reaches (32 KiB), and one in each of the sections with more than one function is longer than its
/// conditional branches reach (1 MiB).
#[derive(Clone, Copy, Debug)]
pub struct Gaps {
    random: Random,
    /// Functions until the longest gap.
    until: u64,
    /// How many of the middle gaps are left: a large program stays within reach of calls.
    middle: u32,
}

impl Gaps {
    /// For one section of new code with so many functions.
    pub fn new(seed: u64, section: usize, functions: usize) -> Gaps {
        let mut random = Random::of(seed, section as u64 + 1);
        Gaps {
            until: random.below(functions as u64),
            random,
            middle: 24,
        }
    }

    /// Bytes in front of the next function, a multiple of `step`.
    pub fn next(&mut self, step: u64) -> u64 {
        let least = match (self.until, self.random.below(16)) {
            (0, _) => (1 << 20) + 4096,
            (_, 0) if self.middle > 0 => {
                self.middle -= 1;
                40 << 10
            }
            _ => 0,
        };
        self.until = self.until.wrapping_sub(1);
        least + self.random.below(32) * step
    }
}

/// The blocks of a function in a random order, in two fragments or in one.
pub fn blocks(seed: u64, start: u64, count: usize, split: bool) -> [Vec<BlockId>; 2] {
    let mut random = Random::of(seed, start);
    let mut order: Vec<BlockId> = (1..count as BlockId).collect();
    random.shuffle(&mut order);
    let way = random.below(3);
    let mut fragments = [vec![0], Vec::new()];
    for b in order {
        let cold = split && (way == 0 || way == 1 && random.below(2) == 0);
        fragments[usize::from(cold)].push(b);
    }
    fragments
}

/// A range of an old body that nothing should run any more: first address and length.
pub type OldBody = (u64, u64);

/// Where a fall-back into an old body would run: all of it but for what is near the places of jumps into the new code.
pub fn old_bodies(
    program: &Program<'_>,
    ready: &[Ready],
    entry_patches: &[EntryPatch],
) -> Vec<OldBody> {
    /// The longest jump at an entry, after a landing pad.
    const JUMP: u64 = 24;
    // Where control enters, and where the jump is.
    let jump = |patch: &EntryPatch| (patch.entry.get(), patch.at.get());
    let mut jumps: Vec<(u64, u64)> = entry_patches.iter().map(jump).collect();
    for (_, r) in moving(ready) {
        jumps.extend(r.secondary_entries.iter().map(|s| jump(&s.patch)));
        jumps.extend(r.anchored_targets.iter().map(|a| (a.0.get(), a.0.get())));
    }
    jumps.sort_unstable();
    let leads_on = |entry: &u64| jumps.binary_search_by_key(entry, |j| j.0).is_ok();
    // Old code runs where there is no space for a jump at an entry that a pointer leads to, and where a jump of new
    // code goes through a table that was not read as a whole, or by an entry that stays; it calls others by their old
    // entries.
    let stays = |function: usize, table: &OwnTable| {
        let mut old = table
            .entries
            .iter()
            .filter(|e| e.block.is_none() && !e.behind);
        let own = |target: u64| {
            let piece = program.piece_at(target);
            piece.is_some_and(|p| p.function as usize == function)
        };
        table.guarded || old.any(|e| own(e.target))
    };
    let runs_old_code = |r: &Ready| {
        let function = &program.functions[r.function as usize];
        let start = program.start(r.function as usize);
        function.address_taken && !leads_on(&start)
            || !function.entries.iter().all(leads_on)
            || !r.falls_back.is_empty()
            || r.own_tables.iter().any(|t| stays(r.function as usize, t))
    };
    let some_run_old_code = moving(ready).any(|(_, r)| runs_old_code(r));
    let mut bodies = Vec::new();
    for (_, r) in moving(ready) {
        let function = &program.functions[r.function as usize];
        let start = program.start(r.function as usize);
        if runs_old_code(r) || some_run_old_code && !leads_on(&start) {
            continue;
        }
        for p in &function.pieces {
            let p = &program.pieces[*p as usize];
            let first = jumps.partition_point(|j| j.0 < p.start);
            let mut from = p.start;
            for (entry, at) in jumps[first..].iter().take_while(|j| j.0 < p.end) {
                if *entry > from {
                    bodies.push((from, entry - from));
                }
                from = from.max(at + JUMP);
            }
            if from < p.end {
                bodies.push((from, p.end - from));
            }
        }
    }
    bodies
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_gap_is_out_of_reach_of_conditional_branches_and_some_of_short_ones() {
        for seed in 0..50 {
            let mut gaps = Gaps::new(seed, 0, 200);
            let all: Vec<u64> = (0..200).map(|_| gaps.next(4)).collect();
            assert_eq!(
                all.iter().filter(|g| **g > 1 << 20).count(),
                1,
                "seed {seed}"
            );
            assert!(
                all.iter().filter(|g| **g > 32 << 10).count() > 2,
                "seed {seed}"
            );
            assert!(all.iter().all(|g| g % 4 == 0));
            assert!(all.iter().sum::<u64>() < 3 << 20);
        }
    }
}
