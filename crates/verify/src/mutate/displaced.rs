//! Faults in tables of labels of new code's own on x86-64, in the two instructions that load from them, and in their
//! fallbacks.

use super::labels::Claimed;
use super::{Edit, Faults, Kind};
use crate::addr::OutputAddr;
use crate::files::bytes::u32_in;

/// Bytes of the load in front of the sum.
const LOAD: usize = 8;

impl Faults<'_> {
    /// An instruction of what loads a label.
    pub(super) fn displaced_word(&self, kind: Kind, t: &Claimed) -> Option<Edit> {
        // REX, opcode, ModRM, SIB; the load's displacement.
        let byte = |k: usize| self.output.data.get(t.at + k).copied();
        let (k, bytes) = match kind {
            Kind::LabelPageOff => {
                let distance = u32_in(self.output.data, t.at + 4)?;
                (4, distance.wrapping_add(4).to_le_bytes().to_vec())
            }
            Kind::LabelIndexRegister => (3, vec![byte(3)? ^ 1 << 3]),
            Kind::LabelIndexNotScaled => (3, vec![byte(3)? & 0x3f]),
            Kind::LabelWordUnsigned => (0, vec![byte(0)? & !8]),
            Kind::LabelSumOff => (LOAD + 3, vec![byte(LOAD + 3)? | 1 << 6]),
            Kind::LabelSumElsewhere => (LOAD + 3, vec![byte(LOAD + 3)? ^ 1]),
            Kind::LabelRegister => (LOAD + 2, vec![byte(LOAD + 2)? ^ 1 << 3]),
            Kind::LabelSumByAddition => {
                let (rex, modrm, sib) = (byte(LOAD)?, byte(LOAD + 2)?, byte(LOAD + 3)?);
                let base = (rex & 1) << 2;
                let to = rex >> 2 & 1;
                let mut add = vec![0x48 | base | to, 0x01];
                add.push(0xc0 | (sib & 7) << 3 | modrm >> 3 & 7);
                add.resize(if modrm >> 6 == 1 { 5 } else { 4 }, 0x90);
                (LOAD, add)
            }
            _ => return None,
        };
        Some(Edit::new(
            format!("byte {k} at {:#x}", t.table.load.1),
            t.at + k,
            &bytes,
        ))
    }

    /// All claims that share a table, and what loads from it, say that it is elsewhere.
    pub(super) fn displaced_at(&self, t: &Claimed, to: u64) -> Option<Edit> {
        let mut claim = self.claim.clone();
        let mut changes = Vec::new();
        for table in &mut claim.functions.get_mut(t.function)?.tables {
            if table.key() != t.table.key() || table.new != t.table.new {
                continue;
            }
            table.new = OutputAddr::new(to);
            let at = self.site_at(table.load.1.get())?.at + 4;
            let distance = to.wrapping_sub(table.old.get()) as u32;
            changes.push((at, distance.to_le_bytes().to_vec()));
        }
        let mut edit = self.claiming(&claim, format!("at {:#x} to {to:#x}", t.table.load.1))?;
        edit.changes.extend(changes);
        Some(edit)
    }

    /// An entry of a table of labels.
    pub(super) fn displaced_entry(&self, kind: Kind, t: &Claimed) -> Option<Edit> {
        let table = &t.table;
        let at = self.offset(table.new.get())?;
        let base = table.old.get();
        let entry = |i: usize| {
            let word = u32_in(self.output.data, at + 4 * i)?;
            Some(base.wrapping_add_signed((word as i32).into()))
        };
        let stored = |to: u64| (to.wrapping_sub(base) as u32).to_le_bytes().to_vec();
        // endbr64; mov r,[rip+d]; notrack jmp r: where the operand of the jump is.
        let fallback = |to: u64| {
            let code = self.output.bytes(to, 14)?.get(4..)?;
            let loads = code.get(1) == Some(&0x8b) && code.get(2)? & 0xc7 == 5;
            let extended = code.get(8) == Some(&0x41);
            let jump = code.get(8 + usize::from(extended)..)?;
            (loads && code.get(7) == Some(&0x3e) && jump.first() == Some(&0xff))
                .then_some(13 + u64::from(extended))
        };
        let function = self.claim.functions.get(t.function)?;
        let is_label = |i: &usize| entry(*i).is_some_and(|to| fallback(to).is_none());
        let mut entries = 0..table.entries as usize;
        let place = |i: usize| at + 4 * i;
        let changes = match kind {
            Kind::LabelEntrySwapped => {
                let i = entries.find(is_label)?;
                let j = entries.find(|j| is_label(j) && entry(*j) != entry(i))?;
                vec![(place(i), stored(entry(j)?)), (place(j), stored(entry(i)?))]
            }
            Kind::LabelEntryOff => {
                let i = entries.find(is_label)?;
                vec![(place(i), stored(entry(i)?.wrapping_add(1)))]
            }
            Kind::LabelEntryToOtherFunction => {
                let i = entries.find(is_label)?;
                let mut others = self.claim.functions.iter();
                let other = others.find(|f| !f.in_new(table.load.1))?;
                vec![(place(i), stored(other.new_entry().get()))]
            }
            _ => {
                let i = entries.find(|i| entry(*i).is_some_and(|to| fallback(to).is_some()))?;
                let to = entry(i)?;
                let offset = match kind {
                    Kind::LabelFallbackElsewhere => {
                        let changes = vec![(place(i), stored(function.new_entry().get()))];
                        let what = format!("entry {i} of the table at {:#x}", table.new);
                        return Some(Edit { what, changes });
                    }
                    Kind::LabelFallbackEntry => 7,
                    Kind::LabelFallbackJump => fallback(to)?,
                    // endbr32
                    Kind::LabelFallbackPad => 3,
                    _ => return None,
                };
                let flipped = if offset == 7 { 8 } else { 1 };
                let at = self.offset(to + offset)?;
                let byte = *self.output.data.get(at)?;
                vec![(at, vec![byte ^ flipped])]
            }
        };
        let what = format!("the table at {:#x}", table.new);
        Some(Edit { what, changes })
    }
}
