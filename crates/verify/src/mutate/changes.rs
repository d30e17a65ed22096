//! Faults in changed instructions ([`crate::walk::changes`]): what a pass would write that got one thing wrong.

use super::{Edit, Faults, Kind, Site};
use crate::arch::aarch64::AArch64;
use crate::arch::x86_64::X86_64;
use crate::arch::{Arch, ThroughSlot};

const NOP_A64: u32 = 0xd503_201f;

impl Faults<'_> {
    pub(super) fn change_edits(&self, kind: Kind) -> Vec<Edit> {
        let sites = self.sites.iter();
        if self.arm {
            sites.filter_map(|s| self.slot_a64(kind, s)).collect()
        } else {
            sites.filter_map(|s| self.slot_x86(kind, s)).collect()
        }
    }

    /// Code at a site that goes through a slot.
    fn through<A: Arch>(&self, s: &Site) -> Option<ThroughSlot> {
        A::through_slot(self.output.bytes_from(s.addr)?, s.addr)
    }

    fn slot_x86(&self, kind: Kind, s: &Site) -> Option<Edit> {
        let through = self.through::<X86_64>(s)?;
        match kind {
            Kind::WrongSlot => self.shift(s, 8),
            Kind::SlotCallTurned => Some(Edit::new(
                format!("at {:#x}, through {:#x}", s.addr, through.slot),
                s.at + 1,
                &[if through.call { 0x25 } else { 0x15 }],
            )),
            _ => None,
        }
    }

    fn slot_a64(&self, kind: Kind, s: &Site) -> Option<Edit> {
        let through = self.through::<AArch64>(s)?;
        // adrp, ldr, add, blr
        let word = |i: usize| {
            let bytes = self.file(s.at + 4 * i, 4);
            Some(u32::from_le_bytes(bytes.try_into().ok()?))
        };
        let put = |i: usize, word: u32| (s.at + 4 * i, word.to_le_bytes().to_vec());
        let changes = match kind {
            // Both are counted from the page: the load by words of 8 bytes.
            Kind::WrongSlot => vec![put(1, word(1)? ^ 1 << 10), put(2, word(2)? ^ 8 << 10)],
            Kind::SlotCallTurned => vec![put(3, word(3)? & !(1 << 21))],
            Kind::SlotAddressLost => vec![put(2, NOP_A64)],
            _ => return None,
        };
        Some(Edit {
            what: format!("at {:#x}, through {:#x}", s.addr, through.slot),
            changes,
        })
    }

    /// Numbers in moves: those that took the place of a load are among them, and every other one is the program's own.
    pub(super) fn constant_edits(&self, kind: Kind) -> Vec<Edit> {
        let sites = self.sites.iter();
        sites.filter_map(|s| self.number(kind, s)).collect()
    }

    fn number(&self, kind: Kind, s: &Site) -> Option<Edit> {
        let what = format!("at {:#x}", s.addr);
        let bytes = self.bytes(s);
        let wrong = kind == Kind::WrongConstant;
        if self.arm {
            let w = u32::from_le_bytes(bytes.try_into().ok()?);
            // movz, movn
            let moves = w & 0x7f80_0000 == 0x5280_0000 || w & 0x7f80_0000 == 0x1280_0000;
            let changed = w ^ if wrong { 1 << 5 } else { 1 };
            return moves.then(|| Edit::new(what, s.at, &changed.to_le_bytes()));
        }
        match (bytes, wrong) {
            ([.., 0xb8..=0xbf, a, _, _, _], true) if bytes.len() <= 6 => {
                Some(Edit::new(what, s.at + bytes.len() - 4, &[a ^ 1]))
            }
            ([first @ 0xb8..=0xbf, _, _, _, _], false) => Some(Edit::new(what, s.at, &[first ^ 1])),
            ([_, 0xc7, 0xc0..=0xc7, a, _, _, _], true) => Some(Edit::new(what, s.at + 3, &[a ^ 1])),
            ([_, 0xc7, register @ 0xc0..=0xc7, _, _, _, _], false) => {
                Some(Edit::new(what, s.at + 2, &[register ^ 1]))
            }
            ([.., 0x83, 0xc0..=0xff, a], true) if bytes.len() <= 4 => {
                Some(Edit::new(what, s.at + bytes.len() - 1, &[a ^ 1]))
            }
            _ => None,
        }
    }

    /// Faults in the start-up routine that asks for huge pages, wherever new code that belongs to no function has one.
    pub(super) fn start_up_edits(&self, kind: Kind) -> Vec<Edit> {
        let new = self.output.loads().iter();
        let new = new.filter(|s| s.is_exec() && s.addr >= self.input.extent().1);
        let places = new.flat_map(|s| (s.addr.next_multiple_of(16)..s.file_end()).step_by(16));
        places.filter_map(|at| self.start_up(kind, at)).collect()
    }

    fn start_up(&self, kind: Kind, addr: u64) -> Option<Edit> {
        let bytes = self.output.bytes_from(addr)?;
        let asks = if self.arm {
            AArch64::asks_for_huge_pages(bytes, addr)?
        } else {
            X86_64::asks_for_huge_pages(bytes, addr)?
        };
        let at = self.offset(addr)?;
        // Where the number of the advice, the low byte of the address, and what continues are.
        let (advice, start, end) = if self.arm { (24, 12, 60) } else { (24, 14, 58) };
        let edit = |at: usize, bytes: &[u8]| {
            let what = format!("the start-up routine at {addr:#x}");
            Some(Edit::new(what, at, bytes))
        };
        match (kind, self.arm) {
            // MADV_DONTNEED is 4, 21 less than 25.
            (Kind::OtherAdvice, true) => edit(at + advice, &0xd280_0082u32.to_le_bytes()),
            (Kind::OtherAdvice, false) => edit(at + advice, &[4]),
            (Kind::AdviceElsewhere, true) => {
                let w = u32::from_le_bytes(bytes.get(start..start + 4)?.try_into().ok()?);
                edit(at + start, &(w ^ 1 << 5).to_le_bytes())
            }
            (Kind::AdviceElsewhere, false) => edit(at + start, &[bytes.get(start)? ^ 16]),
            (Kind::StartsElsewhere, _) => match (asks.next, self.arm) {
                // It returns instead, or skips an instruction of what is next.
                (Some(_), true) => edit(at + end, &0xd65f_03c0u32.to_le_bytes()),
                (Some(_), false) => edit(at + end + 1, &[bytes.get(end + 1)? ^ 4]),
                (None, true) => edit(at + end, &0xd503_201fu32.to_le_bytes()),
                (None, false) => edit(at + end, &[0x90]),
            },
            _ => None,
        }
    }
}
