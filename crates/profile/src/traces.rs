//! Traces, many of them.
//!
//! A long recording has tens of millions of branch records, and from hundreds to millions of different
//! [`Trace`]s. Two things are needed of them: to count the traces as they come ([`Tally`]), and to keep the
//! sum, sorted ([`Traces`]). Both store a trace in 32 bytes with its counts, a third of what the plain values
//! take:
//!
//! | field | bits | |
//! |---|---|---|
//! | from | 16 + 48 | module and address of the branch; module 0xffff: outside (0), unknown (1), external (2), external return (3) |
//! | start | 16 + 48 | module and address; module 0xffff: outside |
//! | run | 32 | 0: not recorded; else bytes from the start to the branch at the end, and 1 |
//! | mispredictions | 32 | |
//! | count | 64 | at least 1: 0 is a free slot of the table |
//!
//! Packed traces have the order of the traces they represent. What does not fit is *odd* and kept as it is,
//! beside the others: module numbers and addresses that are too large, runs over 4 GB, [`Origin::Return`],
//! mispredictions over 32 bits, counts of 0. In the sorted form a trace is packed if it can be, so equal sums
//! are equal values.
//!
//! The table is open addressing with linear probing; a slot's place are the uppermost bits of its hash. Two
//! habits make it fast when it is larger than the caches. Traces wait in a small batch until there are
//! [`BATCH`] of them; then all their slots are touched, and only then compared: the processor waits for many
//! lines of memory at once in place of one after the other. And because slots are in the order of hashes at
//! any size, growing and adding up tables go through both from the front to the back.

use std::cmp::Ordering;
use std::hint::black_box;

use rayon::prelude::*;
use rustc_hash::FxHashMap;

use crate::address::{Counts, ModuleId, Origin, Place, Trace};

/// Bits of an address in a packed place.
const ADDRESS_BITS: u32 = 48;
/// Module of a packed place that is in none.
const NO_MODULE: u64 = 0xffff;
const OUTSIDE: u64 = NO_MODULE << ADDRESS_BITS;
const UNKNOWN: u64 = OUTSIDE | 1;
const EXTERNAL: u64 = OUTSIDE | 2;
const EXTERNAL_RETURN: u64 = OUTSIDE | 3;

/// Traces that are looked up together.
const BATCH: usize = 128;
/// Slots of the smallest table.
const LEAST: usize = 1 << 12;

/// A trace and its counts in 32 bytes, which are never in two lines of the caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(align(32))]
struct Packed {
    from: u64,
    start: u64,
    run: u32,
    mispredictions: u32,
    count: u64,
}

#[inline]
fn pack_place(place: Place) -> Option<u64> {
    if place.is_outside() {
        return (place.address == 0).then_some(OUTSIDE);
    }
    let module = u64::from(place.module.0);
    (module < NO_MODULE && place.address >> ADDRESS_BITS == 0)
        .then_some(module << ADDRESS_BITS | place.address)
}

#[inline]
fn unpack_place(packed: u64) -> Place {
    match packed >> ADDRESS_BITS {
        NO_MODULE => Place::OUTSIDE,
        module => Place {
            module: ModuleId(module as u32),
            address: packed & ((1 << ADDRESS_BITS) - 1),
        },
    }
}

impl Packed {
    /// `None` for what is odd.
    #[inline]
    fn new(trace: &Trace, counts: Counts) -> Option<Packed> {
        let from = match trace.origin {
            Origin::Branch(place) => pack_place(place)?,
            Origin::Unknown => UNKNOWN,
            Origin::External => EXTERNAL,
            Origin::ExternalReturn => EXTERNAL_RETURN,
            Origin::Return(_) => return None,
        };
        let run = match trace.end {
            None => 0,
            Some(end) => {
                let bytes = end.checked_sub(trace.start.address)?;
                u32::try_from(bytes).ok()?.checked_add(1)?
            }
        };
        if counts.count == 0 {
            return None;
        }
        Some(Packed {
            from,
            start: pack_place(trace.start)?,
            run,
            mispredictions: u32::try_from(counts.mispredictions).ok()?,
            count: counts.count,
        })
    }

    #[inline]
    fn trace(&self) -> Trace {
        let start = unpack_place(self.start);
        Trace {
            origin: match self.from {
                UNKNOWN => Origin::Unknown,
                EXTERNAL => Origin::External,
                EXTERNAL_RETURN => Origin::ExternalReturn,
                from => Origin::Branch(unpack_place(from)),
            },
            start,
            end: (self.run > 0).then(|| start.address + u64::from(self.run - 1)),
        }
    }

    #[inline]
    fn counts(&self) -> Counts {
        Counts {
            count: self.count,
            mispredictions: self.mispredictions.into(),
        }
    }

    #[inline]
    fn key(&self) -> (u64, u64, u32) {
        (self.from, self.start, self.run)
    }

    #[inline]
    fn hash(&self) -> u64 {
        // Numbers without a pattern.
        let mixed = fold(
            self.from ^ 0x9e37_79b9_7f4a_7c15,
            self.start ^ 0xd1b5_4a32_d192_ed03,
        );
        fold(mixed ^ u64::from(self.run), 0x8ebc_6af0_9c88_c6e3)
    }
}

/// Both halves of the product: every bit of the one depends on every bit of the factors.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// Asks for large pages where the elements of an empty list will be. Slots of a large table are met in no
/// order: with small pages nearly every one costs a walk through the page tables beside the access itself,
/// and each of the pages is a fault of its own at first.
fn prefer_large_pages<T>(list: &mut Vec<T>) {
    #[cfg(target_os = "linux")]
    {
        /// The size of a large page on x86-64 and, with small pages of 4 KB, on AArch64.
        const LARGE: usize = 2 << 20;
        let space = list.spare_capacity_mut();
        let (start, size) = (space.as_mut_ptr().addr(), size_of_val(space));
        let first = start.next_multiple_of(LARGE);
        let end = (start + size) & !(LARGE - 1);
        if first < end {
            // SAFETY: these are whole pages of the list's own memory, and the advice changes nothing that can
            // be read in them. It is no more than advice: a refusal makes no difference but for speed.
            unsafe { libc::madvise(first as *mut libc::c_void, end - first, libc::MADV_HUGEPAGE) };
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = list;
}

/// Traces that are being counted.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// A power of two of slots, or none.
    slots: Vec<Packed>,
    used: usize,
    waiting: Vec<(u64, Packed)>,
    odd: FxHashMap<Trace, Counts>,
}

impl Tally {
    /// Adds to a trace.
    #[inline]
    pub(crate) fn add(&mut self, trace: &Trace, counts: Counts) {
        match Packed::new(trace, counts) {
            Some(packed) => {
                self.waiting.push((packed.hash(), packed));
                if self.waiting.len() >= BATCH {
                    self.settle();
                }
            }
            None => self.add_odd(*trace, counts),
        }
    }

    #[cold]
    fn add_odd(&mut self, trace: Trace, counts: Counts) {
        self.odd.entry(trace).or_default().add(counts);
    }

    /// Looks up what waits.
    fn settle(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        self.reserve(waiting.len());
        let shift = self.shift();
        let mut touched = 0;
        for (hash, _) in &waiting {
            touched ^= self.slots[(hash >> shift) as usize].run; // as many slots as the hash has bits left
        }
        black_box(touched);
        for (hash, packed) in &waiting {
            self.insert(*hash, packed);
        }
        self.waiting = waiting;
        self.waiting.clear();
    }

    /// How far to shift a hash for the place of its slot.
    fn shift(&self) -> u32 {
        64 - self.slots.len().trailing_zeros()
    }

    /// Makes space for some more slots: a quarter stays free.
    fn reserve(&mut self, more: usize) {
        let wanted = self.used + more;
        if wanted <= self.slots.len() / 4 * 3 {
            return;
        }
        let size = (wanted / 3 * 4 + 4).next_power_of_two().max(LEAST);
        let mut slots = Vec::with_capacity(size);
        prefer_large_pages(&mut slots);
        slots.resize(size, Packed::default());
        let old = std::mem::replace(&mut self.slots, slots);
        self.used = 0;
        for packed in old.iter().filter(|packed| packed.count > 0) {
            self.insert(packed.hash(), packed);
        }
    }

    /// There must be a free slot.
    #[inline]
    fn insert(&mut self, hash: u64, packed: &Packed) {
        let mask = self.slots.len() - 1;
        let mut at = (hash >> self.shift()) as usize;
        loop {
            let slot = &mut self.slots[at & mask];
            if slot.count == 0 {
                *slot = *packed;
                self.used += 1;
                return;
            }
            if slot.key() == packed.key() {
                slot.count = slot.count.saturating_add(packed.count);
                match slot.mispredictions.checked_add(packed.mispredictions) {
                    Some(sum) => slot.mispredictions = sum,
                    None => {
                        let (trace, mispredictions) = (slot.trace(), packed.mispredictions.into());
                        let more = Counts {
                            count: 0,
                            mispredictions,
                        };
                        self.add_odd(trace, more);
                    }
                }
                return;
            }
            at += 1;
        }
    }

    /// Adds what another one counted.
    pub(crate) fn absorb(&mut self, mut other: Tally) {
        self.settle();
        other.settle();
        if other.slots.len() > self.slots.len() {
            std::mem::swap(&mut self.slots, &mut other.slots);
            std::mem::swap(&mut self.used, &mut other.used);
        }
        for packed in other.slots.iter().filter(|packed| packed.count > 0) {
            self.reserve(1);
            self.insert(packed.hash(), packed);
        }
        for (trace, counts) in other.odd {
            self.add_odd(trace, counts);
        }
    }

    /// Calls `each` with the module of every place, repeatedly.
    pub(crate) fn see(&mut self, mut each: impl FnMut(Place)) {
        self.settle();
        let mut last = OUTSIDE;
        for packed in self.slots.iter().filter(|packed| packed.count > 0) {
            for place in [packed.from, packed.start] {
                if place >> ADDRESS_BITS != last >> ADDRESS_BITS {
                    each(unpack_place(place));
                    last = place;
                }
            }
        }
        for trace in self.odd.keys() {
            each(trace.start);
            if let Origin::Branch(from) | Origin::Return(from) = trace.origin {
                each(from);
            }
        }
    }

    /// The sum, with other module numbers: `ids` has the new ones.
    pub(crate) fn finish(mut self, ids: &[ModuleId]) -> Traces {
        self.settle();
        let mut packed = self.slots;
        packed.retain(|packed| packed.count > 0);
        packed.shrink_to_fit();
        let mut traces = Traces {
            packed,
            odd: self.odd.into_iter().collect(),
        };
        let identical = traces.renumber_in_place(ids);
        traces.packed.par_sort_unstable_by_key(Packed::key);
        traces.odd.sort_unstable_by_key(|item| item.0);
        // Numbers that became one, and odd ones that a packed one is the greater part of.
        if !identical || !traces.odd.is_empty() {
            traces = Traces::from_sorted(traces.len(), traces.iter());
        }
        traces
    }
}

/// Traces and how often each was seen; sorted, each once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traces {
    packed: Vec<Packed>,
    odd: Vec<(Trace, Counts)>,
}

/// Some of the traces.
#[derive(Clone, Debug)]
pub struct Iter<'a> {
    packed: std::slice::Iter<'a, Packed>,
    odd: std::slice::Iter<'a, (Trace, Counts)>,
}

impl Iterator for Iter<'_> {
    type Item = (Trace, Counts);

    #[inline]
    fn next(&mut self) -> Option<(Trace, Counts)> {
        let unpacked = |packed: &Packed| (packed.trace(), packed.counts());
        let Some(odd) = self.odd.as_slice().first() else {
            return self.packed.next().map(unpacked);
        };
        match self.packed.as_slice().first() {
            Some(packed) if packed.trace() <= odd.0 => self.packed.next().map(unpacked),
            _ => self.odd.next().copied(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let len = self.packed.len() + self.odd.len();
        (len, Some(len))
    }
}

impl ExactSizeIterator for Iter<'_> {}

impl<'a> IntoIterator for &'a Traces {
    type Item = (Trace, Counts);
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl Traces {
    /// How many.
    pub fn len(&self) -> usize {
        self.packed.len() + self.odd.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All, in order.
    pub fn iter(&self) -> Iter<'_> {
        Iter {
            packed: self.packed.iter(),
            odd: self.odd.iter(),
        }
    }

    /// Where returns are, as [`Origin::Return`] says: such traces are odd.
    pub fn returns(&self) -> impl Iterator<Item = Place> + '_ {
        self.odd.iter().filter_map(|(trace, _)| match trace.origin {
            Origin::Return(from) => Some(from),
            _ => None,
        })
    }

    /// All in parts of `size`, for working in parallel; each is in order, and traces of one branch are in at
    /// most two parts that follow each other, or the last.
    pub fn parts(&self, size: usize) -> Vec<Iter<'_>> {
        let packed = self.packed.chunks(size.max(1)).map(|part| Iter {
            packed: part.iter(),
            odd: [].iter(),
        });
        let odd = (!self.odd.is_empty()).then(|| Iter {
            packed: [].iter(),
            odd: self.odd.iter(),
        });
        packed.chain(odd).collect()
    }

    /// Of traces in order; equal ones are added up.
    fn from_sorted(most: usize, traces: impl Iterator<Item = (Trace, Counts)>) -> Traces {
        let mut out = Traces {
            packed: Vec::with_capacity(most),
            odd: Vec::new(),
        };
        let mut last: Option<(Trace, Counts)> = None;
        for (trace, counts) in traces {
            match &mut last {
                Some((kept, sum)) if *kept == trace => sum.add(counts),
                _ => {
                    if let Some((trace, counts)) = last.replace((trace, counts)) {
                        out.push(trace, counts);
                    }
                }
            }
        }
        if let Some((trace, counts)) = last {
            out.push(trace, counts);
        }
        out
    }

    fn push(&mut self, trace: Trace, counts: Counts) {
        match Packed::new(&trace, counts) {
            Some(packed) => self.packed.push(packed),
            None => self.odd.push((trace, counts)),
        }
    }

    /// The sum of two.
    pub(crate) fn merge(self, other: Traces) -> Traces {
        if self.is_empty() {
            return other;
        }
        if other.is_empty() {
            return self;
        }
        let most = self.len() + other.len();
        let (mut a, mut b) = (self.iter().peekable(), other.iter().peekable());
        let merged = std::iter::from_fn(|| match (a.peek(), b.peek()) {
            (Some(x), Some(y)) if x.0.cmp(&y.0) == Ordering::Greater => b.next(),
            (Some(_), _) => a.next(),
            (None, _) => b.next(),
        });
        let mut sum = Traces::from_sorted(most, merged);
        sum.packed.shrink_to_fit();
        sum
    }

    /// Multiplies all counts.
    pub(crate) fn scale(&mut self, weight: u64) {
        let scaled = self.iter().map(|(trace, counts)| {
            let counts = Counts {
                count: counts.count.saturating_mul(weight),
                mispredictions: counts.mispredictions.saturating_mul(weight),
            };
            (trace, counts)
        });
        *self = Traces::from_sorted(self.len(), scaled);
    }

    /// Changes the numbers of modules; they must keep their order.
    pub(crate) fn renumber(&mut self, ids: &[ModuleId]) {
        if !self.renumber_in_place(ids) {
            *self = Traces::from_sorted(self.len(), self.iter());
        }
    }

    /// Changes the numbers of modules, and leaves everything where it is. Whether what is packed and what is
    /// odd stays that, and no two numbers became one.
    fn renumber_in_place(&mut self, ids: &[ModuleId]) -> bool {
        let is_same = |(old, new): (usize, &ModuleId)| new.0 as usize == old;
        if ids.iter().enumerate().all(is_same) {
            return true;
        }
        let new = |module: u64| ids.get(module as usize).copied().unwrap_or(ModuleId::NONE);
        // Modules that nothing refers to have no new number.
        let fits = |id: &ModuleId| *id == ModuleId::NONE || u64::from(id.0) < NO_MODULE;
        let mut sorted: Vec<ModuleId> = ids.to_vec();
        sorted.retain(|id| *id != ModuleId::NONE);
        sorted.sort_unstable();
        let once = sorted.windows(2).all(|pair| pair[0] != pair[1]);
        if ids.len() as u64 > NO_MODULE || !ids.iter().all(fits) {
            // Some may be packed that were not, or the other way round.
            let mut all: Vec<(Trace, Counts)> = self.iter().collect();
            for (trace, _) in &mut all {
                let change = |place: &mut Place| place.module = new(place.module.0.into());
                change(&mut trace.start);
                if let Origin::Branch(from) | Origin::Return(from) = &mut trace.origin {
                    change(from);
                }
            }
            all.par_sort_unstable_by_key(|item| item.0);
            *self = Traces::from_sorted(all.len(), all.into_iter());
            return false;
        }
        let change = |place: &mut u64| {
            let module = *place >> ADDRESS_BITS;
            if module != NO_MODULE {
                let address = *place & ((1 << ADDRESS_BITS) - 1);
                *place = match new(module) {
                    ModuleId::NONE => OUTSIDE,
                    id => u64::from(id.0) << ADDRESS_BITS | address,
                };
            }
        };
        for packed in &mut self.packed {
            change(&mut packed.from);
            change(&mut packed.start);
        }
        for (trace, _) in &mut self.odd {
            let change = |place: &mut Place| place.module = new(place.module.0.into());
            change(&mut trace.start);
            if let Origin::Branch(from) | Origin::Return(from) = &mut trace.origin {
                change(from);
            }
        }
        once
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use arbitrary::{Result, Unstructured};

    use super::*;

    fn place(u: &mut Unstructured<'_>) -> Result<Place> {
        Ok(match u.int_in_range(0..=9)? {
            0 => Place::OUTSIDE,
            1 => Place {
                module: ModuleId(u.int_in_range(0xfffd..=0x1_0001)?),
                address: u.int_in_range(0..=2)?,
            },
            2 => Place {
                module: ModuleId(0),
                address: u64::MAX - u.int_in_range(0..=2u64)?,
            },
            _ => Place {
                module: ModuleId(u.int_in_range(0..=2)?),
                address: u.int_in_range(0..=7)?,
            },
        })
    }

    fn counted(u: &mut Unstructured<'_>) -> Result<(Trace, Counts)> {
        let start = place(u)?;
        let end = match u.int_in_range(0..=3)? {
            0 => None,
            1 => Some(u.arbitrary()?),
            _ => start.address.checked_add(u.int_in_range(0..=3)?),
        };
        let origin = match u.int_in_range(0..=7)? {
            0 => Origin::Return(place(u)?),
            1 => Origin::Unknown,
            2 => Origin::External,
            3 => Origin::ExternalReturn,
            _ => Origin::Branch(place(u)?),
        };
        let trace = Trace {
            origin,
            start,
            end: end.filter(|_| !start.is_outside()),
        };
        let counts = Counts {
            count: *u.choose(&[0, 1, 1, 1, 5, u64::MAX])?,
            mispredictions: *u.choose(&[0, 0, 1, u32::MAX.into(), u64::MAX])?,
        };
        Ok((trace, counts))
    }

    fn plain(list: &[(Trace, Counts)], factor: u64) -> Vec<(Trace, Counts)> {
        let mut sums: BTreeMap<Trace, Counts> = BTreeMap::new();
        for (trace, counts) in list {
            for _ in 0..factor {
                sums.entry(*trace).or_default().add(*counts);
            }
        }
        sums.into_iter().collect()
    }

    fn tally(list: &[(Trace, Counts)]) -> Tally {
        let mut tally = Tally::default();
        for (trace, counts) in list {
            tally.add(trace, *counts);
        }
        tally
    }

    /// Numbers of modules that stay what they are.
    fn same() -> Vec<ModuleId> {
        (0..0x1_0010).map(ModuleId).collect()
    }

    #[test]
    fn sums_are_those_of_a_plain_map() {
        arbtest::arbtest(|u| {
            let list: Vec<_> = (0..u.int_in_range(0..=400)?)
                .map(|_| counted(u))
                .collect::<Result<_>>()?;
            let (a, b) = list.split_at(u.int_in_range(0..=list.len())?);
            let traces = tally(&list).finish(&same());
            assert_eq!(traces.iter().collect::<Vec<_>>(), plain(&list, 1));
            assert_eq!(traces.len(), traces.iter().len());
            let mut parts: Vec<_> = traces.parts(3).into_iter().flatten().collect();
            parts.sort_unstable_by_key(|item| item.0);
            assert_eq!(parts, plain(&list, 1));
            let mut absorbed = tally(a);
            absorbed.absorb(tally(b));
            assert_eq!(absorbed.finish(&same()), traces);
            let (a, b) = (tally(a).finish(&same()), tally(b).finish(&same()));
            assert_eq!(b.clone().merge(a.clone()), a.merge(b));
            let mut doubled = traces.clone();
            doubled.scale(2);
            assert_eq!(doubled, traces.clone().merge(traces));
            assert_eq!(doubled.iter().collect::<Vec<_>>(), plain(&list, 2));
            Ok(())
        });
    }

    #[test]
    fn modules_that_become_one_are_added_up() {
        arbtest::arbtest(|u| {
            let list: Vec<_> = (0..u.int_in_range(0..=50)?)
                .map(|_| counted(u))
                .collect::<Result<_>>()?;
            let mut ids = same();
            ids[2] = ModuleId(1);
            ids[0xfffd] = ModuleId(3);
            ids[0xfffe] = ModuleId(4);
            ids[0xffff] = ModuleId(5);
            let new = |place: &mut Place| {
                if !place.is_outside() {
                    place.module = ids[place.module.0 as usize];
                }
            };
            let renamed: Vec<_> = list
                .iter()
                .map(|&(mut trace, counts)| {
                    new(&mut trace.start);
                    if let Origin::Branch(from) | Origin::Return(from) = &mut trace.origin {
                        new(from);
                    }
                    (trace, counts)
                })
                .collect();
            let traces = tally(&list).finish(&ids);
            assert_eq!(traces.iter().collect::<Vec<_>>(), plain(&renamed, 1));
            assert_eq!(traces, tally(&renamed).finish(&same()));
            Ok(())
        });
    }

    #[test]
    fn a_table_of_any_size_keeps_all() {
        let mut tally = Tally::default();
        for i in 0..30_000u64 {
            let from = Place {
                module: ModuleId(0),
                address: i % 10_000 * 4,
            };
            let trace = Trace {
                origin: Origin::Branch(from),
                start: from,
                end: None,
            };
            let counts = Counts {
                count: 1,
                mispredictions: i % 2,
            };
            tally.add(&trace, counts);
        }
        let traces = tally.finish(&[ModuleId(0)]);
        assert_eq!(traces.len(), 10_000);
        assert!(traces.iter().all(|(_, counts)| counts.count == 3));
    }
}
