//! Faults in instructions of AArch64.

use super::{Edit, Faults, Kind, Site};
use crate::addr::{InputAddr, OutputAddr};
use crate::arch::aarch64::{AArch64, word};
use crate::arch::graph::Graph;
use crate::arch::{Arch, Dispatch, FieldKind, Flow};
use crate::files::claim::Moved;
use crate::files::elf::Elf;

const NOP: u32 = 0xd503_201f;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;

/// The word with its address field moved by `by` units: words for branches and literals, bytes for `adr`,
/// pages for `adrp`.
pub(super) fn moved_by(w: u32, by: i64) -> Option<u32> {
    let put = |low: u32, width: u32| {
        let value = i64::from((w << (32 - low - width)) as i32 >> (32 - width)) + by;
        let limit = 1i64 << (width - 1);
        let mask = ((1u64 << width) - 1) as u32;
        (-limit..limit)
            .contains(&value)
            .then_some(w & !(mask << low) | (value as u32 & mask) << low)
    };
    if w & 0x7c00_0000 == 0x1400_0000 {
        put(0, 26)
    } else if w & 0x7e00_0000 == 0x3600_0000 {
        put(5, 14)
    } else if w & 0x1f00_0000 == 0x1000_0000 {
        let value = (i64::from((w << 8) as i32 >> 13) << 2 | i64::from(w >> 29 & 3)) + by;
        (-(1 << 20)..1 << 20).contains(&value).then_some(
            w & !0x60ff_ffe0 | (value as u32 & 3) << 29 | (value as u32 >> 2 & 0x7_ffff) << 5,
        )
    } else {
        put(5, 19)
    }
}

impl Faults<'_> {
    pub(super) fn code_edits_a64(&self, kind: Kind) -> Vec<Edit> {
        match kind {
            Kind::ChangedOldCode => self.old_code(),
            Kind::StayingCallToWrongFunction => self.staying_calls(),
            Kind::EntryJumpToWrongFunction => self.entry_jumps_a64(),
            Kind::TableScale | Kind::TableBaseOff => self.table_jumps(kind),
            Kind::LabelJumpToWrongBlock => self.label_jumps(),
            Kind::Registration => self.registrations(),
            _ => self
                .sites
                .iter()
                .filter_map(|s| self.spoil_a64(kind, s))
                .collect(),
        }
    }

    pub(super) fn word(&self, s: &Site) -> Option<u32> {
        word(self.bytes(s))
    }

    /// A field moved by a distance in bytes (pages for `adrp`).
    pub(super) fn shift_a64(&self, s: &Site, by: i64) -> Option<Edit> {
        let w = self.word(s)?;
        let unit = if matches!(s.insn.field?.kind, FieldKind::Forms | FieldKind::Page) {
            1
        } else {
            4
        };
        let changed = moved_by(w, by / unit).filter(|_| by % unit == 0)?;
        Some(Edit::new(
            format!("by {by} at {:#x}", s.addr),
            s.at,
            &changed.to_le_bytes(),
        ))
    }

    fn spoil_a64(&self, kind: Kind, s: &Site) -> Option<Edit> {
        let w = self.word(s)?;
        let edit = |w: u32| {
            Some(Edit::new(
                format!("at {:#x}", s.addr),
                s.at,
                &w.to_le_bytes(),
            ))
        };
        let next = s.addr + 4;
        let zero = w & 0x7e00_0000 == 0x3400_0000;
        let bit = w & 0x7e00_0000 == 0x3600_0000;
        let silent = |s: &Site| matches!(s.insn.flow, Flow::Jump(_) | Flow::Nothing);
        let branch = match s.insn.flow {
            Flow::Branch { target, .. } | Flow::Jump(target) => Some(target),
            _ => None,
        };
        match kind {
            Kind::InvertedCondition => {
                let Flow::Branch {
                    inverse: Some(_),
                    target,
                    ..
                } = s.insn.flow
                else {
                    return None;
                };
                if target == next {
                    return None;
                }
                edit(if zero || bit { w ^ 1 << 24 } else { w ^ 1 })
            }
            Kind::BranchOffByOne => {
                branch.filter(|t| self.site_at(*t).is_some_and(|t| !silent(t)))?;
                self.shift_a64(s, 4)
            }
            Kind::BranchToWrongBlock => {
                let target = branch?;
                let f = self
                    .claim
                    .functions
                    .iter()
                    .find(|f| f.in_new(OutputAddr::new(s.addr)))?;
                self.site_at(target).filter(|t| !silent(t))?;
                let other = self.sites.iter().find(|o| {
                    f.in_new(OutputAddr::new(o.addr)) && o.addr != target && !silent(o)
                })?;
                self.shift_a64(s, other.addr.wrapping_sub(target) as i64)
            }
            Kind::CallToWrongFunction => {
                let Flow::Call(target) = s.insn.flow else {
                    return None;
                };
                let other = self
                    .claim
                    .functions
                    .iter()
                    .map(Moved::new_entry)
                    .find(|e| *e != OutputAddr::new(target))?;
                let same = self
                    .claim
                    .functions
                    .iter()
                    .any(|f| f.new_entry() == other && f.old_entry == InputAddr::new(target));
                (!same).then(|| self.shift_a64(s, other.get().wrapping_sub(target) as i64))?
            }
            Kind::OperandOffByOne => {
                let f = s
                    .insn
                    .field
                    .filter(|f| matches!(f.kind, FieldKind::Accesses | FieldKind::Forms))?;
                self.shift_a64(s, if f.kind == FieldKind::Forms { 1 } else { 4 })
            }
            Kind::OperandOffByEight => {
                s.insn
                    .field
                    .filter(|f| matches!(f.kind, FieldKind::Accesses | FieldKind::Forms))?;
                self.shift_a64(s, 8)
            }
            Kind::PageOff => {
                s.insn.field.filter(|f| f.kind == FieldKind::Page)?;
                self.shift_a64(s, 1)
            }
            Kind::PageOffsetOff => {
                // Some instruction right before it forms the page.
                let u = AArch64::page_use(self.bytes(s))?;
                let page = (1..4)
                    .filter_map(|n| self.site_at(s.addr - 4 * n))
                    .find_map(|p| AArch64::page_register(self.bytes(p)));
                (page == Some(u.base)).then(|| edit(w ^ 1 << 10))?
            }
            _ => edit(changed_word(kind, w, s)?),
        }
    }

    /// `adrp` and `add` of new code that form the address of the new unwind table, where no search table tells it.
    fn registrations(&self) -> Vec<Edit> {
        let table = |elf: &Elf<'_>| elf.section(b".eh_frame").map(|s| s.addr);
        let (Some(old), Some(new), None) = (
            table(&self.input),
            table(&self.output),
            self.input.segment(PT_GNU_EH_FRAME),
        ) else {
            return Vec::new();
        };
        let mut edits = Vec::new();
        for s in &self.sites {
            let (Some(register), Some(page)) =
                (AArch64::page_register(self.bytes(s)), s.insn.field)
            else {
                continue;
            };
            let sums = (1..8).filter_map(|n| self.site_at(s.addr + 4 * n));
            for sum in sums {
                let forms = AArch64::page_use(self.bytes(sum))
                    .filter(|u| u.base == register && u.dest.is_some());
                let (Some(u), Some(w)) = (forms, self.word(sum)) else {
                    continue;
                };
                if page.target.wrapping_add(u.offset) != new {
                    continue;
                }
                // Another entry of the table, another page, or the table that was replaced.
                let what = format!("at {:#x}", s.addr);
                edits.push(Edit::new(
                    what.clone(),
                    sum.at,
                    &(w ^ 8 << 10).to_le_bytes(),
                ));
                edits.extend(self.shift_a64(s, 1));
                let pages = ((old & !0xfff).wrapping_sub(page.target) as i64) >> 12;
                let low = w & !(0xfff << 10) | (old as u32 & 0xfff) << 10;
                if let Some(mut both) = self.shift_a64(s, pages) {
                    both.what = what + ", the old table";
                    both.changes.push((sum.at, low.to_le_bytes().to_vec()));
                    edits.push(both);
                }
            }
        }
        edits
    }

    fn entry_jumps_a64(&self) -> Vec<Edit> {
        let functions = &self.claim.functions;
        let edit = |f: &Moved| {
            let bytes = self.output.bytes(f.old_entry.get(), 16)?;
            let (skip, len, target) = AArch64::entry_jump(bytes, f.old_entry.get())?;
            if len != 4 || self.input.bytes(f.old_entry.get(), 16) == Some(bytes) {
                return None;
            }
            let other = functions
                .iter()
                .find(|o| o.old_entry != f.old_entry)?
                .new_entry();
            let at = self.offset((f.old_entry + skip).get())?;
            let w = moved_by(
                word(self.file(at, 4))?,
                other.get().wrapping_sub(target) as i64 / 4,
            )?;
            Some(Edit::new(
                format!("{:#x} goes to {other:#x}", f.old_entry),
                at,
                &w.to_le_bytes(),
            ))
        };
        functions.iter().filter_map(edit).collect()
    }

    /// Jumps written over instructions of old bodies, not at entries.
    fn label_jumps(&self) -> Vec<Edit> {
        let mut edits = Vec::new();
        for f in &self.claim.functions {
            for r in &f.old {
                let entry = f.old_entry.get();
                for at in (r.start.get()..r.end.get())
                    .step_by(4)
                    .filter(|at| *at > entry + 4 || *at < entry)
                {
                    let (old, new) = (self.input.bytes(at, 4), self.output.bytes(at, 4));
                    let Some(Flow::Jump(target)) = new
                        .filter(|_| old != new)
                        .and_then(|b| self.decode(b, at))
                        .map(|i| i.flow)
                    else {
                        continue;
                    };
                    let other = self.sites.iter().find(|s| {
                        f.in_new(OutputAddr::new(s.addr))
                            && s.addr != target
                            && s.insn.flow == Flow::Next
                    });
                    let (Some(other), Some(place)) = (other, self.offset(at)) else {
                        continue;
                    };
                    let by = other.addr.wrapping_sub(target) as i64 / 4;
                    if let Some(w) = new.and_then(word).and_then(|w| moved_by(w, by)) {
                        edits.push(Edit::new(format!("at {at:#x}"), place, &w.to_le_bytes()));
                    }
                }
            }
        }
        edits
    }

    /// Table jumps of new code.
    pub(super) fn dispatches(&self) -> Vec<Dispatch> {
        let mut found = Vec::new();
        for f in &self.claim.functions {
            let code = f
                .new
                .iter()
                .filter_map(|r| Some((r.start.get(), self.output.bytes(r.start.get(), r.len())?)));
            let graph = Graph::new::<AArch64>(code);
            let first = self.sites.partition_point(|s| s.addr < f.new_entry().get());
            let own = self
                .sites
                .get(first..)
                .unwrap_or(&[])
                .iter()
                .take_while(|s| f.in_new(OutputAddr::new(s.addr)));
            let jumps = own.filter(|s| matches!(s.insn.flow, Flow::IndirectJump { .. }));
            found.extend(
                jumps
                    .filter_map(|s| AArch64::dispatch(s.addr, &graph))
                    .filter(|d| d.count.is_some()),
            );
        }
        found
    }

    fn table_jumps(&self, kind: Kind) -> Vec<Edit> {
        let mut edits = Vec::new();
        for d in self.dispatches() {
            for s in d.parts.iter().filter_map(|p| self.site_at(*p)) {
                let Some(w) = self.word(s) else { continue };
                let what = format!("the table jump at {:#x}", s.addr);
                // The sum scaled by another power, the load of another width, or an address that is another.
                if kind == Kind::TableScale && w & 0xffe0_0000 == 0x8b20_0000 {
                    edits.push(Edit::new(what.clone(), s.at, &(w ^ 1 << 10).to_le_bytes()));
                    edits.push(Edit::new(what, s.at, &(w ^ 1 << 11).to_le_bytes()));
                } else if kind == Kind::TableScale && w & 0x3b20_0c00 == 0x3820_0800 {
                    edits.push(Edit::new(what, s.at, &(w ^ 1 << 30).to_le_bytes()));
                } else if kind == Kind::TableBaseOff && w & 0xff80_0000 == 0x9100_0000 {
                    edits.push(Edit::new(what, s.at, &(w ^ 1 << 12).to_le_bytes()));
                }
            }
        }
        edits
    }

    /// Tables of the output whose jumps were read: (file offset, width, entries).
    pub(super) fn narrow_tables(&self) -> Vec<(usize, usize, u64)> {
        let place = |d: &Dispatch| Some((self.offset(d.table)?, usize::from(d.width), d.count?));
        self.dispatches().iter().filter_map(place).collect()
    }
}

/// Faults of one instruction that look at nothing but itself: the word in its place.
fn changed_word(kind: Kind, w: u32, s: &Site) -> Option<u32> {
    let zero = w & 0x7e00_0000 == 0x3400_0000;
    let bit = w & 0x7e00_0000 == 0x3600_0000;
    let registers = w >> 25 & 7 == 5 && w & 0x1fe0_0000 != 0x1a40_0000;
    let immediate = w & 0x1f80_0000 == 0x1100_0000;
    match kind {
        Kind::TestedBit if bit => Some(w ^ 1 << 19),
        Kind::TestedRegister if zero || bit => Some(w ^ 1),
        Kind::TestedWidth if zero => Some(w ^ 1 << 31),
        Kind::GuardLost if s.insn.landing_pad => Some(NOP),
        // add and sub; and with or.
        Kind::ChangedOpcode if immediate || registers && w & 0x0f00_0000 == 0x0b00_0000 => {
            Some(w ^ 1 << 30)
        }
        Kind::ChangedOpcode if registers && w & 0x1f00_0000 == 0x0a00_0000 => Some(w ^ 1 << 29),
        Kind::ChangedImmediate if w & 0x1f80_0000 == 0x1280_0000 => Some(w ^ 1 << 5),
        Kind::ChangedImmediate if immediate || w & 0x3b00_0000 == 0x3900_0000 => Some(w ^ 1 << 10),
        Kind::ChangedRegister if registers => Some(w ^ 1),
        Kind::DroppedInstruction if s.insn.flow == Flow::Next => Some(NOP),
        Kind::DroppedReturn if w == 0xd65f_03c0 => Some(NOP),
        // A load or store of a loop that must be both.
        Kind::ExclusiveLost if w & 0x3f00_0000 == 0x0800_0000 => Some(w ^ 1 << 15),
        _ => None,
    }
}
