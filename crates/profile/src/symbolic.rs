//! A profile by names: branches, samples and memory accesses between places in functions, as sampling tools and BOLT's
//! instrumentation write it. The text form is [`crate::fdata`].
//!
//! A place is a [`Location`]: a function and an offset from its start in the *input* binary, or something
//! that is not in any function. Names are stored once, sorted; a record holds their numbers. Records are
//! sorted and unique. So two profiles with the same counts are equal values, whatever order they were read
//! in, and a million records of clang take 50 MB, not a map of strings.
//!
//! The order of branches is that of BOLT's writers made definite: function by function (by name, bytewise),
//! in each the branches that leave a place in it, then the entries into it that come from no function; last
//! what has no function at either end.
//!
//! Merging adds counts and mispredictions of equal records, saturating: a commutative monoid with
//! [`SymbolicProfile::default`] as identity. This is where it differs from LLVM's merge-fdata, on purpose:
//!
//! * merge-fdata 19 takes the misprediction count for part of the key: equal branches with different
//!   mispredictions are not merged, and equal ones are not added up. (Later versions add both up, like here.)
//! * merge-fdata 19 cannot read `no_lbr` profiles. Here they merge with each other; event names are united.
//! * its output is in hash order. Here it is sorted.
//! * it wraps around; here counts saturate.
//! * perf2bolt writes `boltedcollection` before `no_lbr`, which no reader of LLVM's accepts. Here both orders
//!   are read and the accepted one is written.
//! * llvm-bolt reads `1` (global) and `2` (local symbol) as the same thing, merge-fdata keeps them apart.
//!   Here they are the same.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;

use rayon::prelude::*;

use crate::Error;
use crate::error::Mismatch;

/// Number of a name in [`Names`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameId(pub u32);

/// Sorted names without repetition. Their numbers compare as they do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    bytes: Vec<u8>,
    /// End of each name in `bytes`.
    ends: Vec<usize>,
}

impl Names {
    /// How many.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The bytes of a name, without escapes; empty for a number that is not one of these names.
    pub fn get(&self, id: NameId) -> &[u8] {
        let index = id.0 as usize;
        let start = match index.checked_sub(1) {
            Some(before) => self.ends.get(before).copied().unwrap_or(0),
            None => 0,
        };
        self.ends
            .get(index)
            .map_or(&[], |&end| &self.bytes[start..end])
    }

    /// The number of a name.
    pub fn find(&self, name: &[u8]) -> Option<NameId> {
        let (mut low, mut high) = (0, self.ends.len());
        while low < high {
            let middle = low + (high - low) / 2;
            match self.get(NameId(middle as u32)).cmp(name) {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Some(NameId(middle as u32)),
            }
        }
        None
    }

    /// All names in order.
    pub fn iter(&self) -> impl Iterator<Item = (NameId, &[u8])> {
        (0..self.ends.len() as u32).map(|index| (NameId(index), self.get(NameId(index))))
    }

    /// Appends a name that sorts after all others.
    fn push(&mut self, name: &[u8]) {
        self.bytes.extend_from_slice(name);
        self.ends.push(self.bytes.len());
    }

    /// From names in any order, and the number that each got.
    fn sorted<N: AsRef<[u8]> + Sync>(list: &[N]) -> (Names, Vec<NameId>) {
        let mut order: Vec<u32> = (0..list.len() as u32).collect();
        order.par_sort_unstable_by(|&a, &b| {
            list[a as usize].as_ref().cmp(list[b as usize].as_ref())
        });
        let mut names = Names::default();
        let mut ids = vec![NameId(0); list.len()];
        let mut last: Option<&[u8]> = None;
        for index in order {
            let name = list[index as usize].as_ref();
            if last != Some(name) {
                names.push(name);
                last = Some(name);
            }
            ids[index as usize] = NameId(names.len() as u32 - 1);
        }
        (names, ids)
    }

    /// The union of two, and the new numbers of each one's names.
    fn union(&self, other: &Names) -> (Names, Vec<NameId>, Vec<NameId>) {
        let mut out = Names::default();
        let (mut mine, mut theirs) = (
            Vec::with_capacity(self.len()),
            Vec::with_capacity(other.len()),
        );
        while mine.len() < self.len() || theirs.len() < other.len() {
            let (a, b) = (NameId(mine.len() as u32), NameId(theirs.len() as u32));
            let order = match (mine.len() < self.len(), theirs.len() < other.len()) {
                (true, true) => self.get(a).cmp(other.get(b)),
                (true, false) => Ordering::Less,
                _ => Ordering::Greater,
            };
            let id = NameId(out.len() as u32);
            if order == Ordering::Greater {
                out.push(other.get(b));
            } else {
                out.push(self.get(a));
            }
            if order != Ordering::Greater {
                mine.push(id);
            }
            if order != Ordering::Less {
                theirs.push(id);
            }
        }
        (out, mine, theirs)
    }
}

/// A place in a function, or outside of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location {
    /// Whether it is in a symbol. If not, the name is `[unknown]` or that of a shared object.
    pub in_symbol: bool,
    /// The symbol.
    pub name: NameId,
    /// Bytes from the symbol's start. Of a memory address in no symbol: the address.
    pub offset: u64,
}

/// How often control went from one place to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Branch {
    /// The branch or call; for a fall-through the last instruction of its block.
    pub from: Location,
    /// The start of a block or function.
    pub to: Location,
    /// How often it was mispredicted.
    pub mispredictions: u64,
    /// How often it was taken.
    pub count: u64,
}

impl Branch {
    /// The function that the branch is listed under: where it leaves, else where it arrives.
    pub fn owner(&self) -> Option<NameId> {
        if self.from.in_symbol {
            Some(self.from.name)
        } else if self.to.in_symbol {
            Some(self.to.name)
        } else {
            None
        }
    }

    fn key(&self) -> impl Ord + use<> {
        let owner = self.owner();
        (
            owner.is_none(),
            owner,
            !self.from.in_symbol,
            self.from,
            self.to,
        )
    }
}

/// How often a place was sampled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BasicSample {
    /// The instruction.
    pub at: Location,
    /// Samples.
    pub count: u64,
}

/// How often an instruction accessed an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryAccess {
    /// The instruction.
    pub at: Location,
    /// In a data symbol, or the address itself.
    pub address: Location,
    /// Samples.
    pub count: u64,
}

/// How a profile was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collection {
    /// From branch records or instrumentation; else from samples of single addresses (`no_lbr`).
    pub branches: bool,
    /// On a binary that had been optimised, and translated back (`boltedcollection`).
    pub bolted: bool,
}

/// A profile by names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SymbolicProfile {
    /// How it was taken; `None` for the empty profile that fits with all.
    pub collection: Option<Collection>,
    /// Names of the sampled events.
    pub events: BTreeSet<Vec<u8>>,
    names: Names,
    branches: Vec<Branch>,
    samples: Vec<BasicSample>,
    memory: Vec<MemoryAccess>,
}

/// Records in the order in which they come, with names numbered by an unsorted list: what readers make.
#[derive(Clone, Debug, Default)]
pub struct Records {
    /// Branches.
    pub branches: Vec<Branch>,
    /// Samples.
    pub samples: Vec<BasicSample>,
    /// Memory accesses.
    pub memory: Vec<MemoryAccess>,
}

impl Records {
    /// Gives every name the number `ids[old number]`.
    pub(crate) fn renumber(&mut self, ids: &[NameId]) {
        let new = |location: &mut Location| {
            location.name = ids
                .get(location.name.0 as usize)
                .copied()
                .unwrap_or_default()
        };
        for branch in &mut self.branches {
            new(&mut branch.from);
            new(&mut branch.to);
        }
        for sample in &mut self.samples {
            new(&mut sample.at);
        }
        for access in &mut self.memory {
            new(&mut access.at);
            new(&mut access.address);
        }
    }
}

impl SymbolicProfile {
    /// From records in any order, also repeated ones; `names[i]` is the name with number `i` in them.
    pub fn new<N: AsRef<[u8]> + Sync>(
        collection: Option<Collection>,
        events: BTreeSet<Vec<u8>>,
        names: &[N],
        mut records: Records,
    ) -> SymbolicProfile {
        let (names, ids) = Names::sorted(names);
        records.renumber(&ids);
        let Records {
            mut branches,
            mut samples,
            mut memory,
        } = records;
        branches.par_sort_unstable_by_key(Branch::key);
        branches.dedup_by(|next, kept| {
            let same = next.from == kept.from && next.to == kept.to;
            if same {
                kept.count = kept.count.saturating_add(next.count);
                kept.mispredictions = kept.mispredictions.saturating_add(next.mispredictions);
            }
            same
        });
        samples.par_sort_unstable_by_key(|sample| sample.at);
        samples.dedup_by(|next, kept| {
            let same = next.at == kept.at;
            if same {
                kept.count = kept.count.saturating_add(next.count);
            }
            same
        });
        memory.par_sort_unstable_by_key(|access| (access.at, access.address));
        memory.dedup_by(|next, kept| {
            let same = (next.at, next.address) == (kept.at, kept.address);
            if same {
                kept.count = kept.count.saturating_add(next.count);
            }
            same
        });
        SymbolicProfile {
            collection,
            events,
            names,
            branches,
            samples,
            memory,
        }
    }

    /// The names that records refer to.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// All branches; order as said above.
    pub fn branches(&self) -> &[Branch] {
        &self.branches
    }

    /// All samples, by place.
    pub fn samples(&self) -> &[BasicSample] {
        &self.samples
    }

    /// All memory accesses, by place.
    pub fn memory(&self) -> &[MemoryAccess] {
        &self.memory
    }

    /// Whether nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.branches.is_empty() && self.samples.is_empty() && self.memory.is_empty()
    }

    /// The functions that have branches, with these: leaving it, then entering it from no function.
    pub fn functions(&self) -> impl Iterator<Item = (NameId, &[Branch])> {
        self.branches
            .chunk_by(|a, b| a.owner() == b.owner())
            .filter_map(|group| Some((group.first()?.owner()?, group)))
    }

    /// The branches listed under a function.
    pub fn branches_of(&self, name: NameId) -> &[Branch] {
        &self.branches[range_of(&self.branches, |branch| {
            branch
                .owner()
                .map_or(Ordering::Greater, |owner| owner.cmp(&name))
        })]
    }

    /// The samples in a function.
    pub fn samples_of(&self, name: NameId) -> &[BasicSample] {
        &self.samples[range_of(&self.samples, |sample| {
            (sample.at.in_symbol, sample.at.name).cmp(&(true, name))
        })]
    }

    /// How often each function was entered at its start, by the number of its name: calls, jumps and whatever
    /// came from outside.
    pub fn execution_counts(&self) -> Vec<u64> {
        let mut counts = vec![0u64; self.names.len()];
        for branch in &self.branches {
            if branch.to.in_symbol
                && branch.to.offset == 0
                && let Some(count) = counts.get_mut(branch.to.name.0 as usize)
            {
                *count = count.saturating_add(branch.count);
            }
        }
        counts
    }

    /// Multiplies all counts.
    pub fn scale(&mut self, weight: u64) {
        for branch in &mut self.branches {
            branch.count = branch.count.saturating_mul(weight);
            branch.mispredictions = branch.mispredictions.saturating_mul(weight);
        }
        for count in self
            .samples
            .iter_mut()
            .map(|sample| &mut sample.count)
            .chain(self.memory.iter_mut().map(|access| &mut access.count))
        {
            *count = count.saturating_mul(weight);
        }
    }

    /// The sum of two profiles. `names` are the files for the error when one has branches and the other
    /// samples, or only one was taken on an optimised binary.
    pub fn merge(
        self,
        other: SymbolicProfile,
        names: (&Path, &Path),
    ) -> Result<SymbolicProfile, Error> {
        let collection = match (self.collection, other.collection) {
            (Some(a), Some(b)) if a != b => {
                let mismatch = |what, a: &str, b: &str| {
                    Error::Mismatch(Box::new(Mismatch {
                        first: names.0.to_owned(),
                        second: names.1.to_owned(),
                        what,
                        a: a.to_owned(),
                        b: b.to_owned(),
                        hint: "",
                    }))
                };
                let branches = |yes| {
                    if yes {
                        "branches"
                    } else {
                        "samples without branches (no_lbr)"
                    }
                };
                let bolted = |yes| {
                    if yes {
                        "an optimised binary (boltedcollection)"
                    } else {
                        "the original binary"
                    }
                };
                return Err(if a.branches != b.branches {
                    mismatch("records are", branches(a.branches), branches(b.branches))
                } else {
                    mismatch("it was taken on", bolted(a.bolted), bolted(b.bolted))
                });
            }
            (a, b) => a.or(b),
        };
        let mut events = self.events;
        events.extend(other.events);
        let (names, mine, theirs) = self.names.union(&other.names);
        let mut a = Records {
            branches: self.branches,
            samples: self.samples,
            memory: self.memory,
        };
        let mut b = Records {
            branches: other.branches,
            samples: other.samples,
            memory: other.memory,
        };
        // Names keep their order, so both stay sorted.
        a.renumber(&mine);
        b.renumber(&theirs);
        let branches = merge_sorted(a.branches, b.branches, Branch::key, |kept, next| {
            kept.count = kept.count.saturating_add(next.count);
            kept.mispredictions = kept.mispredictions.saturating_add(next.mispredictions);
        });
        let samples = merge_sorted(
            a.samples,
            b.samples,
            |sample| sample.at,
            |kept, next| kept.count = kept.count.saturating_add(next.count),
        );
        let memory = merge_sorted(
            a.memory,
            b.memory,
            |access| (access.at, access.address),
            |kept, next| kept.count = kept.count.saturating_add(next.count),
        );
        Ok(SymbolicProfile {
            collection,
            events,
            names,
            branches,
            samples,
            memory,
        })
    }
}

/// The range of a sorted slice in which `order` says equal.
fn range_of<T>(sorted: &[T], order: impl Fn(&T) -> Ordering) -> Range<usize> {
    let start = sorted.partition_point(|item| order(item) == Ordering::Less);
    start..start + sorted[start..].partition_point(|item| order(item) == Ordering::Equal)
}

/// Merges two sorted lists without repetition to one; `add` adds the second of two equal ones to the first.
pub(crate) fn merge_sorted<T, K: Ord>(
    a: Vec<T>,
    b: Vec<T>,
    key: impl Fn(&T) -> K,
    add: impl Fn(&mut T, T),
) -> Vec<T> {
    if a.is_empty() {
        return b;
    }
    if b.is_empty() {
        return a;
    }
    let mut out = Vec::with_capacity(a.len().max(b.len()));
    let (mut a, mut b) = (a.into_iter().peekable(), b.into_iter().peekable());
    loop {
        let order = match (a.peek(), b.peek()) {
            (Some(x), Some(y)) => key(x).cmp(&key(y)),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => return out,
        };
        match order {
            Ordering::Less => out.extend(a.next()),
            Ordering::Greater => out.extend(b.next()),
            Ordering::Equal => {
                if let (Some(mut kept), Some(next)) = (a.next(), b.next()) {
                    add(&mut kept, next);
                    out.push(kept);
                }
            }
        }
    }
}

/// The part of a name that survives another link-time optimisation: up to and including the first of
/// `.__uniq.`, `.lto_priv.`, `.constprop.`, `.llvm.` (looked for in this order) that is in it. `None` if none
/// is: the name is stable.
pub fn lto_common_name(name: &[u8]) -> Option<&[u8]> {
    const MARKERS: [&[u8]; 4] = [b".__uniq.", b".lto_priv.", b".constprop.", b".llvm."];
    MARKERS.iter().find_map(|marker| {
        let at = name
            .windows(marker.len())
            .position(|window| window == *marker)?;
        Some(&name[..at + marker.len()])
    })
}

/// A name without the mark `(*N)` that printers add to functions of several names.
pub fn without_alias_mark(name: &[u8]) -> &[u8] {
    let end = name.windows(2).position(|window| window == b"(*");
    &name[..end.unwrap_or(name.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_get_numbers_in_their_order() {
        arbtest::arbtest(|u| {
            let list: Vec<Vec<u8>> = u.arbitrary()?;
            let (names, ids) = Names::sorted(&list);
            for (name, &id) in list.iter().zip(&ids) {
                assert_eq!(names.get(id), name);
                assert_eq!(names.find(name), Some(id));
            }
            assert!(
                names
                    .iter()
                    .zip(names.iter().skip(1))
                    .all(|(a, b)| a.1 < b.1)
            );
            let other: Vec<Vec<u8>> = u.arbitrary()?;
            let (others, _) = Names::sorted(&other);
            let (both, mine, theirs) = names.union(&others);
            assert!(
                names
                    .iter()
                    .all(|(id, name)| both.get(mine[id.0 as usize]) == name)
            );
            assert!(
                others
                    .iter()
                    .all(|(id, name)| both.get(theirs[id.0 as usize]) == name)
            );
            assert!(both.iter().zip(both.iter().skip(1)).all(|(a, b)| a.1 < b.1));
            Ok(())
        });
    }

    #[test]
    fn lto_names_keep_their_stable_part() {
        assert_eq!(lto_common_name(b"foo.llvm.123"), Some(&b"foo.llvm."[..]));
        assert_eq!(
            lto_common_name(b"foo.constprop.0.llvm.123"),
            Some(&b"foo.constprop."[..])
        );
        assert_eq!(lto_common_name(b"foo.cold"), None);
        assert_eq!(without_alias_mark(b"foo/1(*2)"), b"foo/1");
    }
}
