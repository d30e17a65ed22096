//! Language-specific data areas: what happens to an exception at a call.
//!
//! The personality routines of C++, C, Rust, D and others share one layout. A call site says for a range of
//! instructions where the landing pad is and which action applies; the first one that covers the place wins, and a
//! place that none covers before the table goes past it ends the program.
//!
//! | field | encoding |
//! |---|---|
//! | encoding of the landing pad base, the base (the function's start if omitted) | u8, pointer |
//! | encoding of the type table, distance from after this field to its end | u8, uleb |
//! | encoding of call sites, length of their table | u8, uleb |
//! | per call site: start, length, landing pad (0: none), action (0: cleanup, else 1 + offset in the action table) | 3 × encoded, uleb |
//! | action table: filter, distance from this field to the next record (0: last) | sleb, sleb |
//! | type table, growing downwards from its end; exception specifications, growing upwards | pointers; uleb lists |
//!
//! Two calls are treated alike if [`Outcome`]s are alike: the same ending, or landing pads that the proof pairs, with
//! equal chains of actions. Filters are handed to the code at the landing pad, so they must be equal as numbers, and
//! the types that they represent must be equal as addresses.

use crate::files::bytes::Reader;
use crate::files::elf::Elf;
use crate::files::pointer::{self, Bases, OMIT, Pointer};
use smallvec::SmallVec;

/// A call site as the personality routine's search sees it: ranges do not overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Site {
    start: u64,
    end: u64,
    /// 0: none.
    pad: u64,
    action: u64,
}

/// A parsed area.
#[derive(Clone, Debug)]
pub(crate) struct Lsda<'d> {
    sites: Vec<Site>,
    /// Everything from the area's start to the end of what is loaded.
    bytes: &'d [u8],
    addr: u64,
    actions: usize,
    /// Offset of the type table's end; `None` without one.
    types: Option<usize>,
    type_encoding: u8,
    /// Landing pads are counted from an address that it says, not from the function's start.
    has_base: bool,
}

/// What the personality routine decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Unwinding continues in the caller.
    Continue,
    /// No call site covers the place: the program ends.
    Terminate,
    /// Control goes to the landing pad; action as stored.
    Pad { pad: u64, action: u64 },
}

/// One step of an action chain: the filter, and the types it represents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Action {
    filter: i64,
    types: SmallVec<[Pointer; 2]>,
}

impl<'d> Lsda<'d> {
    /// Where the area is, up to the end of its types; lists of exceptions that a function may throw follow.
    pub(crate) fn extent(&self) -> (u64, u64) {
        let len = self.types.unwrap_or(self.actions).max(self.actions);
        (self.addr, self.addr.saturating_add(len as u64))
    }

    /// All landing pads.
    pub(crate) fn pads(&self) -> impl Iterator<Item = u64> {
        self.sites.iter().map(|s| s.pad).filter(|pad| *pad != 0)
    }

    /// Where outcomes may change.
    pub(crate) fn bounds(&self) -> impl Iterator<Item = u64> {
        self.sites.iter().flat_map(|s| [s.start, s.end])
    }

    /// Whether landing pads are counted from an address that it says, not from the function's start.
    pub(crate) fn has_base(&self) -> bool {
        self.has_base
    }

    /// Parses the area at `addr` of the FDE that starts at `function`. `None` if it is not in this layout.
    pub(crate) fn parse(elf: &Elf<'d>, addr: u64, function: u64) -> Option<Self> {
        // An area is in one section.
        let section = elf.section_at(addr);
        let bytes = match section {
            Some(s) => elf.bytes_near(addr, s.end() - addr)?,
            None => elf.bytes_from(addr)?,
        };
        let bases = Bases {
            section: addr,
            data: 0,
            function,
        };
        let mut r = Reader::new(bytes);
        let base_encoding = r.u8()?;
        let pad_base = if base_encoding == OMIT {
            function
        } else {
            let p = pointer::read(&mut r, base_encoding, &bases)?;
            if p.indirect {
                elf.u64_at(p.addr)?
            } else {
                p.addr
            }
        };
        let type_encoding = r.u8()?;
        let types = if type_encoding == OMIT {
            None
        } else {
            let distance = usize::try_from(r.uleb()?).ok()?;
            Some(
                r.pos()
                    .checked_add(distance)
                    .filter(|&t| t <= bytes.len())?,
            )
        };
        let site_encoding = r.u8()?;
        let table_len = usize::try_from(r.uleb()?).ok()?;
        let end = r
            .pos()
            .checked_add(table_len)
            .filter(|&e| e <= bytes.len())?;
        let mut sites = Vec::with_capacity(table_len / 4);
        // The search stops at the first call site that starts after the place, and takes the first that ends after
        // it: a call site matters from the largest start and the largest end so far.
        let mut from = 0u64;
        while r.pos() < end {
            let start = function.checked_add(pointer::read_value(&mut r, site_encoding)?)?;
            let len = pointer::read_value(&mut r, site_encoding)?;
            let pad = pointer::read_value(&mut r, site_encoding)?;
            let action = r.uleb()?;
            let stop = start.checked_add(len)?;
            from = from.max(start);
            if from < stop {
                let pad = if pad == 0 {
                    0
                } else {
                    pad_base.wrapping_add(pad)
                };
                sites.push(Site {
                    start: from,
                    end: stop,
                    pad,
                    action,
                });
                from = stop;
            }
        }
        (r.pos() == end).then_some(Lsda {
            sites,
            bytes,
            addr,
            actions: end,
            types,
            type_encoding,
            has_base: base_encoding != OMIT,
        })
    }

    /// What happens to an exception at `addr` (inside the call instruction).
    pub(crate) fn outcome(&self, addr: u64) -> Outcome {
        let index = self.sites.partition_point(|s| s.end <= addr);
        match self.sites.get(index).filter(|s| s.start <= addr) {
            None => Outcome::Terminate,
            Some(s) if s.pad == 0 => Outcome::Continue,
            Some(s) => Outcome::Pad {
                pad: s.pad,
                action: s.action,
            },
        }
    }

    /// The chain of an action; `None` if it leads out of the table or never ends.
    pub(crate) fn chain(&self, action: u64) -> Option<SmallVec<[Action; 2]>> {
        let mut chain = SmallVec::new();
        if action == 0 {
            return Some(chain);
        }
        let mut at = self
            .actions
            .checked_add(usize::try_from(action - 1).ok()?)?;
        loop {
            let mut r = Reader::new(self.bytes.get(at..)?);
            let filter = r.sleb()?;
            let link = at.checked_add(r.pos())?;
            let next = r.sleb()?;
            chain.push(Action {
                filter,
                types: self.filter_types(filter)?,
            });
            if next == 0 {
                return Some(chain);
            }
            at = link.checked_add_signed(isize::try_from(next).ok()?)?;
            if chain.len() > 4096 {
                return None;
            }
        }
    }

    fn filter_types(&self, filter: i64) -> Option<SmallVec<[Pointer; 2]>> {
        let mut types = SmallVec::new();
        if filter > 0 {
            types.push(self.type_entry(filter.unsigned_abs())?);
        } else if filter < 0 {
            // A list of type indexes, after the type table.
            let at = self
                .types?
                .checked_add(usize::try_from(filter.unsigned_abs() - 1).ok()?)?;
            let mut r = Reader::new(self.bytes.get(at..)?);
            loop {
                match r.uleb()? {
                    0 => break,
                    index => types.push(self.type_entry(index)?),
                }
            }
        }
        Some(types)
    }

    fn type_entry(&self, index: u64) -> Option<Pointer> {
        let size = pointer::size(self.type_encoding)?;
        let at = self
            .types?
            .checked_sub(usize::try_from(index.checked_mul(size)?).ok()?)?;
        let mut r = Reader::new(self.bytes.get(at..)?);
        let bases = Bases {
            section: self.addr.wrapping_add(at as u64),
            data: 0,
            function: 0,
        };
        pointer::read(&mut r, self.type_encoding, &bases)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lsda(bytes: &'static [u8]) -> Lsda<'static> {
        let elf = elf_around(bytes);
        Lsda::parse(&elf, 0x5000, 0x1000).expect("a valid area")
    }

    /// A file that loads `bytes` at 0x5000.
    fn elf_around(bytes: &'static [u8]) -> Elf<'static> {
        let mut file = vec![0u8; 120];
        file[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        file[16] = 3;
        file[18] = 62;
        file[32] = 64;
        file[54] = 56;
        file[56] = 1;
        file[64] = 1;
        file[68] = 4;
        file[72] = 120;
        file[80..82].copy_from_slice(&0x5000u16.to_le_bytes());
        file[96..104].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        file[104..112].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        file.extend(bytes);
        Elf::parse(Vec::leak(file), "input").expect("the hand-made file is sound")
    }

    // No landing pad base; type table u32 absolute, 14 bytes to its end; call sites uleb, 8 bytes.
    const AREA: &[u8] = &[
        0xff, 0x03, 21, 0x01, 8, // header; the type table ends 21 bytes after offset 3
        0x10, 0x05, 0x40, 0x01, // [0x1010, 0x1015) -> 0x1040, action 1
        0x20, 0x05, 0x00, 0x00, // [0x1020, 0x1025) -> none
        0x01, 0x00, // action 1: filter 1, last
        0x00, // padding
        0x44, 0x33, 0x22, 0x11, 0x78, 0x56, 0x34, 0x12, // types 2 and 1
        0x02, 0x00,
    ];

    #[test]
    fn call_sites_decide_as_the_personality_routine_does() {
        let l = lsda(AREA);
        assert_eq!(
            l.outcome(0x1010),
            Outcome::Pad {
                pad: 0x1040,
                action: 1
            }
        );
        assert_eq!(
            l.outcome(0x1014),
            Outcome::Pad {
                pad: 0x1040,
                action: 1
            }
        );
        assert_eq!(l.outcome(0x1015), Outcome::Terminate);
        assert_eq!(l.outcome(0x1022), Outcome::Continue);
        assert_eq!(l.outcome(0x1030), Outcome::Terminate);
        assert_eq!(l.outcome(0x100f), Outcome::Terminate);
    }

    #[test]
    fn actions_resolve_to_type_addresses() {
        let l = lsda(AREA);
        let chain = l.chain(1).expect("the chain is sound");
        assert_eq!(chain.len(), 1);
        assert_eq!(chain[0].filter, 1);
        assert_eq!(
            chain[0].types.as_slice(),
            [Pointer {
                addr: 0x1234_5678,
                indirect: false
            }]
        );
        assert_eq!(l.chain(0).map(|c| c.len()), Some(0));
        assert_eq!(l.chain(500), None);
    }

    #[test]
    fn an_action_chain_that_never_ends_is_refused() {
        let l = lsda(&[0xff, 0xff, 0x01, 4, 0x10, 0x05, 0x40, 0x01, 0x00, 0x7f]);
        assert_eq!(l.chain(1), None);
    }

    #[test]
    fn arbitrary_bytes_never_panic() {
        arbtest::arbtest(|u| {
            let bytes: Vec<u8> = u.arbitrary()?;
            let elf = elf_around(Vec::leak(bytes));
            if let Some(l) = Lsda::parse(&elf, 0x5000, u.arbitrary()?) {
                for a in 0..8 {
                    let _ = l.chain(a);
                }
                let _ = l.outcome(u.arbitrary()?);
            }
            Ok(())
        })
        .budget_ms(200);
    }
}
