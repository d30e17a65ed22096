//! Memory that has the same meaning in both runs, but may be elsewhere: stack, heap, mappings, the module itself.
//!
//! The n-th mapping of one run is the n-th of the other. Where the emulator puts them follows from what was
//! mapped before, so it differs only as far as sizes do; [`super::prepare`] evens that out, and what is left
//! is told here.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

/// Which memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum What {
    /// The module that is compared.
    Module,
    /// The dynamic loader.
    Interpreter,
    /// The stack of the first thread.
    Stack,
    /// What `brk` gives.
    Heap,
    /// A mapping, by its number.
    Mapping(u32),
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::Module => f.write_str("module"),
            What::Interpreter => f.write_str("loader"),
            What::Stack => f.write_str("stack"),
            What::Heap => f.write_str("heap"),
            What::Mapping(number) => write!(f, "mapping {number}"),
        }
    }
}

/// A region of both runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Which.
    pub what: What,
    /// Where it is in the first run.
    pub old: u64,
    /// And in the second.
    pub new: u64,
    /// The same length in both.
    pub length: u64,
}

/// All regions; what was mapped last goes first, as it replaces what was there.
#[derive(Clone, Debug, Default)]
pub struct Regions {
    all: Vec<Region>,
    mappings: u32,
    /// Blocks of the allocator: old address to new address and length. Few at a time are of interest, but
    /// many come and go.
    allocations: BTreeMap<u64, (u64, u64)>,
    /// How far blocks were from each other: new address less old one, where they differ.
    distances: BTreeSet<u64>,
}

/// The stack is looked at this far on both sides of where it began.
const STACK: u64 = 8 << 20;

impl Regions {
    /// Adds one.
    pub fn add(&mut self, what: What, old: u64, new: u64, length: u64) {
        self.all.push(Region {
            what,
            old,
            new,
            length,
        });
    }

    /// The stack, from its pointer at the start.
    pub fn add_stack(&mut self, old: u64, new: u64) {
        let below = STACK.min(old).min(new);
        self.add(What::Stack, old - below, new - below, below + (1 << 20));
    }

    /// What a call of `mmap` gave.
    pub fn add_mapping(&mut self, old: u64, new: u64, length: u64) {
        self.mappings += 1;
        self.add(What::Mapping(self.mappings), old, new, length);
    }

    /// What the allocator gave. What it gave at that address before is gone.
    pub fn add_allocation(&mut self, old: u64, new: u64, length: u64) {
        if old != 0 && new != 0 {
            self.allocations.insert(old, (new, length.max(1)));
            if old != new {
                self.distances.insert(new.wrapping_sub(old));
            }
        }
    }

    /// Whether both are one number less the address of a block.
    pub fn is_less_block(&self, old: u64, new: u64) -> bool {
        self.distances.contains(&old.wrapping_sub(new))
    }

    fn allocation(&self, old: u64) -> Option<(u64, u64)> {
        let (start, (new, length)) = self.allocations.range(..=old).next_back()?;
        (old - start <= *length).then(|| (new.wrapping_add(old - start), *length))
    }

    /// What a call of `brk` gave: the heap begins where the first one says and ends where the largest does.
    pub fn add_break(&mut self, old: u64, new: u64) {
        match self.all.iter_mut().find(|r| r.what == What::Heap) {
            Some(heap) if old >= heap.old && new >= heap.new => {
                heap.length = heap.length.max((old - heap.old).min(new - heap.new));
            }
            Some(_) => (),
            None => self.add(What::Heap, old, new, 0),
        }
    }

    /// Where an address of the first run is in the second, and in what.
    pub fn translate(&self, old: u64) -> Option<(What, u64)> {
        if let Some((new, _)) = self.allocation(old) {
            return Some((What::Heap, new));
        }
        self.all
            .iter()
            .rev()
            .find(|r| old.wrapping_sub(r.old) < r.length)
            .map(|r| (r.what, old - r.old + r.new))
    }

    /// Whether both are the same place in the same region; `Some` also where that is at the same address.
    pub fn same(&self, old: u64, new: u64) -> Option<What> {
        if let Some((there, _)) = self.allocation(old)
            && there == new
        {
            return Some(What::Heap);
        }
        let here = |r: &&Region| {
            let offset = old.wrapping_sub(r.old);
            // One past the end is a pointer that programs use.
            offset <= r.length && new.wrapping_sub(r.new) == offset
        };
        self.all.iter().rev().find(here).map(|r| r.what)
    }

    /// What an address of one of the runs is in.
    pub fn what(&self, address: u64, second: bool) -> Option<(What, u64)> {
        let start = |r: &Region| if second { r.new } else { r.old };
        self.all
            .iter()
            .rev()
            .find(|r| address.wrapping_sub(start(r)) < r.length)
            .map(|r| (r.what, address - start(r)))
    }
}

/// What is on the stack because code outside the module has left it there: what was below the stack pointer when
/// control left the module, and is not the module's again, as that has stored something there or given code outside
/// a pointer to it.
#[derive(Clone, Debug, Default)]
pub struct Outside {
    /// The highest stack pointer with which control left the module.
    highest: u64,
    /// Words that the module has stored to since they were below the stack pointer.
    stored: BTreeSet<u64>,
    /// Pointers that were given since.
    given: BTreeSet<u64>,
}

/// What a pointer leads to has fewer bytes.
const GIVEN: u64 = 1 << 12;

impl Outside {
    /// Control leaves the module with this stack pointer and these arguments.
    pub fn leave(&mut self, sp: u64, arguments: impl Iterator<Item = u64>) {
        self.highest = self.highest.max(sp);
        self.stored = self.stored.split_off(&sp);
        self.given = self.given.split_off(&sp);
        let on_stack = |at: &u64| at.wrapping_sub(sp) < STACK;
        self.given.extend(arguments.filter(on_stack));
    }

    /// The module stores to so many bytes of the stack.
    pub fn store(&mut self, address: u64, size: u8) {
        self.stored.insert(address & !7);
        self.stored
            .insert(address.wrapping_add(u64::from(size.max(1)) - 1) & !7);
    }

    /// Whether code outside has left these bytes, if they are on the stack.
    pub fn has(&self, address: u64, size: u8) -> bool {
        let end = address.wrapping_add(u64::from(size.max(1)) - 1) & !7;
        let is_stored = |word| self.stored.contains(&word);
        let near = address.saturating_sub(GIVEN)..=address;
        address < self.highest
            && !is_stored(address & !7)
            && !is_stored(end)
            && self.given.range(near).next().is_none()
    }
}

/// A set of bytes in memory.
#[derive(Clone, Debug, Default)]
pub struct Scribbled(HashMap<u64, u8>);

impl Scribbled {
    /// The words that a range of at most eight bytes touches, with a bit for each byte.
    fn words(address: u64, size: u8) -> [(u64, u8); 2] {
        let bits = ((1u16 << size.min(8)) - 1) << (address & 7);
        let word = address & !7;
        [
            (word, bits as u8),
            (word.wrapping_add(8), (bits >> 8) as u8),
        ]
    }

    /// Adds bytes.
    pub fn add(&mut self, address: u64, size: u8) {
        for (word, bits) in Scribbled::words(address, size) {
            if bits != 0 {
                *self.0.entry(word).or_default() |= bits;
            }
        }
    }

    /// Adds all from an address to another.
    pub fn add_range(&mut self, from: u64, to: u64) {
        let mut at = from;
        while at < to {
            let size = (8 - at % 8).min(to - at);
            self.add(at, size as u8);
            at += size;
        }
    }

    /// Takes bytes out.
    pub fn clear(&mut self, address: u64, size: u8) {
        if self.0.is_empty() {
            return;
        }
        for (word, bits) in Scribbled::words(address, size) {
            if let Some(left) = self.0.get_mut(&word) {
                *left &= !bits;
                if *left == 0 {
                    self.0.remove(&word);
                }
            }
        }
    }

    /// Whether one of these bytes is in it.
    pub fn has(&self, address: u64, size: u8) -> bool {
        let words = Scribbled::words(address, size);
        words
            .iter()
            .any(|(word, bits)| self.0.get(word).is_some_and(|left| left & bits != 0))
    }
}

/// Bytes of memory that both runs have stored differently, as is explained, and nothing since: what each has there.
#[derive(Clone, Debug, Default)]
pub struct Stored(HashMap<u64, ([u8; 8], [u8; 8], u8)>);

impl Stored {
    /// Adds a store of at most eight bytes.
    pub fn put(&mut self, address: u64, size: u8, old: u64, new: u64) {
        let (old, new) = (old.to_le_bytes(), new.to_le_bytes());
        for i in 0..usize::from(size.min(8)) {
            let at = address.wrapping_add(i as u64);
            let place = (at & 7) as usize;
            let word = self.0.entry(at & !7).or_default();
            (word.0[place], word.1[place]) = (old[i], new[i]);
            word.2 |= 1 << place;
        }
    }

    /// Something else is stored there.
    pub fn clear(&mut self, address: u64, size: u8) {
        if self.0.is_empty() {
            return;
        }
        for (word, bits) in Scribbled::words(address, size) {
            if let Some(left) = self.0.get_mut(&word) {
                left.2 &= !bits;
                if left.2 == 0 {
                    self.0.remove(&word);
                }
            }
        }
    }

    /// Whether these are the bytes at an address.
    pub fn are(&self, address: u64, old: u8, new: u8) -> bool {
        let place = (address & 7) as usize;
        self.0.get(&(address & !7)).is_some_and(|word| {
            word.2 & 1 << place != 0 && (word.0[place], word.1[place]) == (old, new)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_translated_by_what_was_mapped_last() {
        let mut regions = Regions::default();
        regions.add_mapping(0x1000, 0x2000, 0x1000);
        regions.add_mapping(0x1800, 0x5800, 0x100);
        assert_eq!(regions.translate(0x1010), Some((What::Mapping(1), 0x2010)));
        assert_eq!(regions.translate(0x1810), Some((What::Mapping(2), 0x5810)));
        assert_eq!(regions.translate(0x3000), None);
        assert_eq!(regions.same(0x2000, 0x3000), Some(What::Mapping(1)));
        assert_eq!(regions.same(0x1010, 0x2011), None);
        assert_eq!(regions.what(0x5801, true), Some((What::Mapping(2), 1)));
    }

    #[test]
    fn what_the_allocator_gave_goes_before_the_heap() {
        let mut regions = Regions::default();
        regions.add_break(0x1000, 0x1000);
        regions.add_break(0x2000, 0x2000);
        regions.add_allocation(0x1100, 0x1180, 0x20);
        assert_eq!(regions.same(0x1110, 0x1190), Some(What::Heap));
        assert_eq!(regions.same(0x1200, 0x1280), None);
        assert_eq!(regions.translate(0x1110), Some((What::Heap, 0x1190)));
        assert_eq!(regions.translate(0x1010), Some((What::Heap, 0x1010)));
    }

    #[test]
    fn bytes_are_scribbled_until_they_are_stored() {
        let mut set = Scribbled::default();
        set.add(0x1004, 8);
        assert!(set.has(0x1000, 8) && set.has(0x100b, 1) && !set.has(0x100c, 4));
        set.clear(0x1000, 8);
        assert!(!set.has(0x1000, 8) && set.has(0x1008, 1));
        set.clear(0x1008, 4);
        assert!(!set.has(0x1008, 8));
        set.add_range(0x1003, 0x1012);
        assert!(set.has(0x1003, 1) && set.has(0x1008, 8) && set.has(0x1011, 1));
        assert!(!set.has(0x1002, 1) && !set.has(0x1012, 1));
    }

    #[test]
    fn bytes_are_those_that_were_stored_last() {
        let mut stored = Stored::default();
        stored.put(0x1006, 4, 0x4433_2211, 0x8877_6655);
        assert!(stored.are(0x1006, 0x11, 0x55) && stored.are(0x1008, 0x33, 0x77));
        assert!(!stored.are(0x1006, 0x11, 0x66) && !stored.are(0x1005, 0, 0));
        stored.put(0x1008, 1, 1, 2);
        assert!(stored.are(0x1008, 1, 2) && stored.are(0x1009, 0x44, 0x88));
        stored.clear(0x1004, 4);
        assert!(!stored.are(0x1006, 0x11, 0x55) && stored.are(0x1008, 1, 2));
    }

    #[test]
    fn code_outside_leaves_what_was_below_the_stack_pointer_and_nobody_has_stored_since() {
        let mut outside = Outside::default();
        assert!(!outside.has(0x7000, 8));
        outside.leave(0x8000, [0x10, 0x8100].into_iter());
        assert!(outside.has(0x7000, 8) && !outside.has(0x8000, 8));
        outside.store(0x7004, 8);
        assert!(!outside.has(0x7000, 8) && !outside.has(0x7008, 1) && outside.has(0x7010, 8));
        // A function has a frame from 0x6f00 on, and gives a pointer to something in it.
        outside.leave(0x6f00, [0x7100].into_iter());
        assert!(!outside.has(0x7000, 8) && outside.has(0x70f8, 8) && !outside.has(0x7180, 8));
        // It has come back, and another one has called.
        outside.leave(0x8000, [].into_iter());
        assert!(outside.has(0x7000, 8) && outside.has(0x7180, 8));
    }

    #[test]
    fn the_heap_grows() {
        let mut regions = Regions::default();
        regions.add_break(0x1000, 0x3000);
        assert_eq!(regions.translate(0x1000), None);
        regions.add_break(0x2000, 0x4000);
        assert_eq!(regions.translate(0x1fff), Some((What::Heap, 0x3fff)));
    }

    #[test]
    fn the_stack_reaches_both_ways() {
        let mut regions = Regions::default();
        regions.add_stack(0x4000_0000, 0x5000_0000);
        assert_eq!(
            regions.translate(0x3fff_0000),
            Some((What::Stack, 0x4fff_0000))
        );
        assert_eq!(regions.same(0x4000_0010, 0x5000_0010), Some(What::Stack));
    }
}
