//! Faults in changed instructions ([`crate::walk::changes`]): what a pass would write that got one thing wrong.

use super::{Edit, Faults, Kind, Site};
use crate::arch::aarch64::AArch64;
use crate::arch::x86_64::X86_64;
use crate::arch::{Arch, ThroughSlot};

const NOP_A64: u32 = 0xd503_201f;

impl Faults<'_> {
    pub(super) fn change_edits(&self, kind: Kind) -> Vec<Edit> {
        let sites = self.sites.iter();
        match self.arm {
            true => sites.filter_map(|s| self.slot_a64(kind, s)).collect(),
            false => sites.filter_map(|s| self.slot_x86(kind, s)).collect(),
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
}
