//! What the output says of itself: the note `.note.postlink`.
//!
//! The note (owner `postlink`, type 1) names the functions that were moved and where their new code is. Nothing in it
//! is believed: it only tells the proof where to begin and which new addresses belong to which function. A claim that
//! is wrong makes the proof fail.
//!
//! | field of the note | encoding |
//! |---|---|
//! | version: 1; 2 where the rewriter used no relocations that the linker kept | u32 |
//! | kind: 0 instrumented, 1 optimised | u8 |
//! | length of the input's build-id, build-id | u8, bytes |
//! | version 2: what it knew pointers by (1 dynamic relocations, 2 nothing), flags (0) | u8, u8 |
//! | number of moved functions | uleb |
//! | per function, ascending: old entry − previous old entry | uleb |
//! | number of old ranges, each: start − old entry, length | uleb, (sleb, uleb)* |
//! | number of new ranges, each: start − end of the previous new range (of the file, 0 at first), length | uleb, (sleb, uleb)* |
//! | if that number is 0, the function was folded into another: the other's old entry − old entry | sleb |
//! | number of labels, each: old address − old entry, new address − start of the first new range | uleb, (sleb, sleb)* |
//! | version 2: what is at the old entry: 0 what was there, 2 a jump | u8 |
//! | version 2: number of own jump tables, each: old load − old entry, new load − start of the first new range, old table − old entry, base − old table, own table − end of the one before (of the first new range), entries, 1 guarded + 2 addresses | uleb, (sleb, sleb, sleb, sleb, sleb, uleb, u8)* |
//! | version 2: number of jumps that continue in old code, ascending; the first: address − old entry; each other: address − the one before | uleb, sleb, uleb* |
//!
//! Invariants of a [`Claim`] that parsed: at least one old and one new range for each function, none empty, none wraps;
//! the old entry is the start of an old range or inside one; new ranges and old ranges are disjoint over all functions,
//! but for folded functions: those have the new ranges of one that is not folded itself, and nothing else that is new.

use crate::Error;
use crate::addr::{Address, InputAddr, OutputAddr, Pair};
use crate::files::bytes::Reader;
use smallvec::SmallVec;
use std::ops::Sub;

/// Half-open range of addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Range<Addr = u64> {
    pub start: Addr,
    pub end: Addr,
}

impl<Addr: Copy + Ord + Sub<Output = u64>> Range<Addr> {
    pub(crate) fn contains(&self, addr: Addr) -> bool {
        self.start <= addr && addr < self.end
    }
    pub(crate) fn len(&self) -> u64 {
        self.end - self.start
    }
}

impl<Addr: Address> Range<Addr> {
    /// Its numbers.
    pub(crate) fn numbers(&self) -> Range {
        Range {
            start: self.start.number(),
            end: self.end.number(),
        }
    }
}

impl Range {
    /// As a range of one of the files.
    pub(crate) fn of<Addr: Address>(&self) -> Range<Addr> {
        Range {
            start: Addr::from_number(self.start),
            end: Addr::from_number(self.end),
        }
    }
}

/// A jump table said to be a function's own: what a load of new code reads in the place of another table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnTable {
    /// The instruction that loads an entry.
    pub load: Pair,
    /// The table that it reads in the input.
    pub old: InputAddr,
    /// What entries are added to; 0 if they are addresses.
    pub base: u64,
    /// The table that it reads in the output.
    pub new: OutputAddr,
    /// Number of entries.
    pub entries: u64,
    /// The index is compared with that in front of the load.
    pub guarded: bool,
    /// Entries are addresses of 8 bytes, not distances of 4.
    pub wide: bool,
}

impl OwnTable {
    /// Bytes of an entry.
    pub(crate) fn width(&self) -> u64 {
        if self.wide { 8 } else { 4 }
    }

    /// Whether it is of addresses, and no guard is in front of it.
    pub(crate) fn is_of_labels(&self) -> bool {
        self.base == 0 && !self.guarded
    }

    /// What it is in the input, and how many of its entries there are. Tables of labels that have the same may be one.
    pub(crate) fn key(&self) -> (InputAddr, u64, u64, bool) {
        (self.old, self.base, self.entries, self.wide)
    }

    /// Where it is in the output.
    pub(crate) fn range(&self) -> Range {
        let start = self.new.get();
        Range {
            start,
            end: start.saturating_add(self.entries.saturating_mul(self.width())),
        }
    }
}

/// A function said to be moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Moved {
    pub old_entry: InputAddr,
    pub old: SmallVec<[Range<InputAddr>; 2]>,
    pub new: SmallVec<[Range<OutputAddr>; 2]>,
    /// The old entry of the function whose new ranges these are, if it has none of its own: it was folded into that.
    pub folded: Option<InputAddr>,
    /// Further pairs (old address, new address).
    pub labels: Vec<Pair>,
    /// Whether there is a jump at the old entry; version 2.
    pub jumps: bool,
    /// Jump tables of its own; version 2.
    pub tables: Vec<OwnTable>,
    /// Indirect jumps that continue in old code, by old address, ascending; version 2.
    pub falls_back: Vec<InputAddr>,
}

impl Moved {
    /// The new entry: where the first new range starts.
    pub(crate) fn new_entry(&self) -> OutputAddr {
        self.new.first().map_or(OutputAddr::new(0), |r| r.start)
    }
    /// The new address of a place in the new ranges, which are counted as if one followed the other.
    pub(crate) fn address(&self, slot: u32) -> Option<OutputAddr> {
        let mut left = u64::from(slot);
        for range in &self.new {
            if left < range.len() {
                return Some(range.start + left);
            }
            left -= range.len();
        }
        None
    }
    /// Bytes of its code in both files.
    pub(crate) fn size(&self) -> usize {
        let old: u64 = self.old.iter().map(Range::len).sum();
        let new: u64 = self.new.iter().map(Range::len).sum();
        (old + new) as usize
    }
    pub(crate) fn in_old(&self, addr: InputAddr) -> bool {
        self.old.iter().any(|r| r.contains(addr))
    }
    pub(crate) fn in_new(&self, addr: OutputAddr) -> bool {
        self.new.iter().any(|r| r.contains(addr))
    }
}

/// The parsed note.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim<'d> {
    pub kind: u8,
    pub build_id: &'d [u8],
    /// What the rewriter says that it knew pointers by; `None`: kept relocations.
    pub basis: Option<Basis>,
    pub functions: Vec<Moved>,
}

/// What tells of pointers where no kept relocations were used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Basis {
    /// Dynamic relocations.
    Dynamic,
    /// Nothing, at a fixed address.
    Nothing,
}

impl<'d> Claim<'d> {
    /// Parses the note's contents.
    pub(crate) fn parse(desc: &'d [u8]) -> Result<Self, Error> {
        let bad = |what: String| Error::Claim { what };
        let short = || bad("it ends early or holds a number that is too large".into());
        let mut r = Reader::new(desc);
        let version = r.u32().ok_or_else(short)?;
        if !matches!(version, 1 | 2) {
            return Err(bad(format!(
                "its version is {version}; this checker knows versions 1 and 2"
            )));
        }
        let kind = r.u8().ok_or_else(short)?;
        let len = r.u8().ok_or_else(short)?;
        let build_id = r.take(usize::from(len)).ok_or_else(short)?;
        let basis = match version {
            1 => None,
            _ => match (r.u8(), r.u8()) {
                (Some(1), Some(0)) => Some(Basis::Dynamic),
                (Some(2), Some(0)) => Some(Basis::Nothing),
                (basis, flags) => {
                    return Err(bad(format!(
                        "its basis is {basis:?} and its flags are {flags:?}; known are 1 and 2, and no flags"
                    )));
                }
            },
        };
        let count = r.uleb().ok_or_else(short)?;
        // None takes fewer bytes than that.
        const LEAST: usize = 6;
        let possible = desc.len() / LEAST;
        let mut functions = Vec::with_capacity(possible.min(count as usize));
        let mut entry = 0u64;
        let mut previous_end = 0u64;
        for index in 0..count {
            let step = r.uleb().ok_or_else(short)?;
            if step == 0 && index > 0 {
                return Err(bad(format!("two functions have the old entry {entry:#x}")));
            }
            entry = entry.checked_add(step).ok_or_else(short)?;
            let function = Self::function(&mut r, entry, &mut previous_end, basis).ok_or_else(|| {
                bad(format!("the entry of the function at {entry:#x} (number {index}) ends early or holds an impossible range"))
            })?;
            if !function.in_old(InputAddr::new(entry)) {
                return Err(bad(format!(
                    "the old entry {entry:#x} is in none of its function's old ranges"
                )));
            }
            functions.push(function);
        }
        if !r.is_empty() {
            return Err(bad(format!(
                "{} bytes follow its last function",
                desc.len() - r.pos()
            )));
        }
        let mut claim = Claim {
            kind,
            build_id,
            basis,
            functions,
        };
        claim.resolve_folded()?;
        let (old, new) = postlink_parallel::join(
            || claim.check_disjoint("old", |f| f.old.iter().map(Range::numbers).collect()),
            || {
                claim.check_disjoint("new", |f| match f.folded {
                    None => f.new.iter().map(Range::numbers).collect(),
                    Some(_) => SmallVec::new(),
                })
            },
        );
        old.and(new)?;
        Ok(claim)
    }

    /// Gives folded functions the new ranges of those that they were folded into.
    fn resolve_folded(&mut self) -> Result<(), Error> {
        let bad = |what: String| Err(Error::Claim { what });
        for index in 0..self.functions.len() {
            let Some((entry, into)) =
                (self.functions.get(index)).and_then(|f| Some((f.old_entry, f.folded?)))
            else {
                continue;
            };
            if self.kind != 1 {
                return bad(format!(
                    "the function at {entry:#x} is folded, in a file that was instrumented"
                ));
            }
            let found = self.functions.binary_search_by_key(&into, |f| f.old_entry);
            let other = found.ok().and_then(|i| self.functions.get(i));
            let Some(new) = other.filter(|f| f.folded.is_none()).map(|f| f.new.clone()) else {
                return bad(format!(
                    "the function at {entry:#x} is folded into {into:#x}, which has no new code of its own"
                ));
            };
            if let Some(f) = self.functions.get_mut(index) {
                f.new = new;
            }
        }
        Ok(())
    }

    fn function(
        r: &mut Reader<'d>,
        entry: u64,
        previous_end: &mut u64,
        basis: Option<Basis>,
    ) -> Option<Moved> {
        let range = |start: u64, len: u64| {
            let end = start.checked_add(len)?;
            (len > 0).then_some(Range { start, end })
        };
        let mut function = Moved {
            old_entry: InputAddr::new(entry),
            old: SmallVec::new(),
            new: SmallVec::new(),
            folded: None,
            labels: Vec::new(),
            jumps: false,
            tables: Vec::new(),
            falls_back: Vec::new(),
        };
        for _ in 0..r.uleb()? {
            let start = entry.checked_add_signed(r.sleb()?)?;
            function.old.push(range(start, r.uleb()?)?.of());
        }
        for _ in 0..r.uleb()? {
            let start = previous_end.checked_add_signed(r.sleb()?)?;
            let new = range(start, r.uleb()?)?;
            *previous_end = new.end;
            function.new.push(new.of());
        }
        if function.new.is_empty() {
            let into = entry.checked_add_signed(r.sleb()?)?;
            function.folded = Some(InputAddr::new(into));
        }
        for _ in 0..r.uleb()? {
            let first = function.new.first()?.start;
            let old = entry.checked_add_signed(r.sleb()?)?;
            let new = first.get().checked_add_signed(r.sleb()?)?;
            function
                .labels
                .push((InputAddr::new(old), OutputAddr::new(new)));
        }
        if basis.is_some() {
            function.jumps = match r.u8()? {
                0 => false,
                2 => true,
                _ => return None,
            };
            Self::tables(r, &mut function)?;
            let mut before = None;
            for _ in 0..r.uleb()? {
                let at = match before {
                    None => entry.checked_add_signed(r.sleb()?)?,
                    Some(before) => {
                        let step = r.uleb()?;
                        u64::checked_add(before, step).filter(|_| step > 0)?
                    }
                };
                function.falls_back.push(InputAddr::new(at));
                before = Some(at);
            }
        }
        Some(function)
    }

    /// The jump tables of a function's own.
    fn tables(r: &mut Reader<'d>, function: &mut Moved) -> Option<()> {
        let first = function.new.first().copied();
        let mut before = first.map_or(0, |r| r.end.get());
        for _ in 0..r.uleb()? {
            let (entry, start) = (function.old_entry.get(), first?.start.get());
            let load = (
                InputAddr::new(entry.checked_add_signed(r.sleb()?)?),
                OutputAddr::new(start.checked_add_signed(r.sleb()?)?),
            );
            let old = entry.checked_add_signed(r.sleb()?)?;
            let base = r.sleb()?;
            let new = before.checked_add_signed(r.sleb()?)?;
            let entries = r.uleb()?;
            let kind = r.u8().filter(|kind| *kind < 4)?;
            let table = OwnTable {
                load,
                old: InputAddr::new(old),
                base: match kind & 2 {
                    0 => old.checked_add_signed(base)?,
                    _ => 0,
                },
                new: OutputAddr::new(new),
                entries,
                guarded: kind & 1 != 0,
                wide: kind & 2 != 0,
            };
            before = new.checked_add(entries.checked_mul(table.width())?)?;
            function.tables.push(table);
        }
        Some(())
    }

    fn check_disjoint(
        &self,
        which: &str,
        ranges: impl Fn(&Moved) -> SmallVec<[Range; 2]>,
    ) -> Result<(), Error> {
        let mut all: Vec<Range> = self.functions.iter().flat_map(ranges).collect();
        all.sort_unstable();
        for pair in all.windows(2) {
            if let [a, b] = pair
                && a.end > b.start
            {
                let what = format!(
                    "the {which} ranges {:#x}..{:#x} and {:#x}..{:#x} overlap",
                    a.start, a.end, b.start, b.end
                );
                return Err(Error::Claim { what });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smallvec::smallvec;

    fn sample() -> Claim<'static> {
        fn r<Addr: Address>(start: u64, end: u64) -> Range<Addr> {
            Range { start, end }.of()
        }
        Claim {
            kind: 1,
            build_id: b"\x01\x02",
            basis: None,
            functions: vec![
                Moved {
                    old_entry: InputAddr::new(0x1000),
                    old: smallvec![r(0x1000, 0x1020)],
                    new: smallvec![r(0x9000, 0x9010), r(0xa000, 0xa008)],
                    folded: None,
                    labels: vec![],
                    jumps: false,
                    tables: vec![],
                    falls_back: vec![],
                },
                Moved {
                    old_entry: InputAddr::new(0x1040),
                    old: smallvec![r(0x1040, 0x1060), r(0x800, 0x810)],
                    new: smallvec![r(0x9010, 0x9030)],
                    folded: None,
                    labels: vec![(InputAddr::new(0x1048), OutputAddr::new(0x9020))],
                    jumps: false,
                    tables: vec![],
                    falls_back: vec![],
                },
            ],
        }
    }

    #[test]
    fn a_claim_survives_the_round_trip() {
        let claim = sample();
        assert_eq!(
            Claim::parse(&claim.encode()).expect("it is well-formed"),
            claim
        );
    }

    #[test]
    fn a_claim_without_kept_relocations_survives_the_round_trip() {
        let mut claim = sample();
        claim.basis = Some(Basis::Nothing);
        claim.functions[0].jumps = true;
        let table = OwnTable {
            load: (InputAddr::new(0x1004), OutputAddr::new(0x9008)),
            old: InputAddr::new(0x3000),
            base: 0x2ff0,
            new: OutputAddr::new(0x9100),
            entries: 7,
            guarded: true,
            wide: false,
        };
        let other = OwnTable {
            base: 0,
            new: OutputAddr::new(0x9120),
            guarded: false,
            wide: true,
            ..table
        };
        claim.functions[1].tables = vec![table, other];
        claim.functions[1].falls_back = vec![
            InputAddr::new(0x804),
            InputAddr::new(0x1050),
            InputAddr::new(0x105e),
        ];
        let bytes = claim.encode();
        assert_eq!(Claim::parse(&bytes).expect("it is well-formed"), claim);
        for cut in 0..bytes.len() {
            assert!(Claim::parse(&bytes[..cut]).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn overlapping_new_ranges_are_refused() {
        let mut claim = sample();
        claim.functions[1].new[0].start = OutputAddr::new(0x900f);
        let error = Claim::parse(&claim.encode())
            .expect_err("ranges overlap")
            .to_string();
        assert!(error.contains("overlap"), "{error}");
    }

    #[test]
    fn a_folded_function_has_the_new_code_of_one_that_is_not() {
        let mut claim = sample();
        let into = claim.functions[0].old_entry;
        claim.functions[1].labels.clear();
        claim.functions[1].folded = Some(into);
        claim.functions[1].new = claim.functions[0].new.clone();
        let bytes = claim.encode();
        assert_eq!(Claim::parse(&bytes).expect("it is well-formed"), claim);
        for cut in 0..bytes.len() {
            assert!(Claim::parse(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        let refused = |claim: &Claim<'_>, what: &str| {
            let error = Claim::parse(&claim.encode()).expect_err(what).to_string();
            assert!(error.contains("folded"), "{error}");
        };
        let mut counting = claim.clone();
        counting.kind = 0;
        refused(&counting, "counters are in new code");
        let mut nowhere = claim.clone();
        nowhere.functions[1].folded = Some(InputAddr::new(0x1008));
        refused(&nowhere, "there is no such function");
        let mut itself = claim;
        itself.functions[1].folded = Some(InputAddr::new(0x1040));
        refused(&itself, "a function has no code to give itself");
    }

    #[test]
    fn every_cut_is_refused_and_none_panics() {
        let bytes = sample().encode();
        for cut in 0..bytes.len() {
            assert!(Claim::parse(&bytes[..cut]).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic() {
        arbtest::arbtest(|u| {
            let mut bytes = vec![1, 0, 0, 0, 1, 0];
            bytes.extend(u.arbitrary::<Vec<u8>>()?);
            let _ = Claim::parse(&bytes);
            Ok(())
        });
    }
}
