//! Faults in instructions.

use super::{Edit, Faults, Kind, Site};
use crate::addr::{InputAddr, OutputAddr};
use crate::arch::x86_64::X86_64;
use crate::arch::{Arch, FieldKind, Flow};
use crate::files::elf::SHT_SYMTAB;

/// Offset of the opcode after legacy and REX prefixes.
fn opcode_at(bytes: &[u8]) -> usize {
    let legacy = bytes
        .iter()
        .take_while(|b| {
            matches!(
                b,
                0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3
            )
        })
        .count();
    legacy + usize::from(bytes.get(legacy).is_some_and(|b| b & 0xf0 == 0x40))
}

/// Another operation for a two-operand instruction of the arithmetic group.
fn other_operation(opcode: u8) -> Option<u8> {
    matches!(opcode, 0x00..=0x3b)
        .then_some(opcode)
        .filter(|o| o & 7 <= 3)
        .map(|o| {
            if o & 0x38 == 0x28 {
                o & 7
            } else {
                o & 7 | 0x28
            }
        })
}

impl Faults<'_> {
    pub(super) fn code_edits(&self, kind: Kind) -> Vec<Edit> {
        match kind {
            Kind::ChangedOldCode => return self.old_code(),
            Kind::StayingCallToWrongFunction => return self.staying_calls(),
            Kind::EntryJumpToWrongFunction => return self.entry_jumps(),
            _ => {}
        }
        self.sites
            .iter()
            .filter_map(|s| self.spoil(kind, s))
            .collect()
    }

    /// A 4-byte displacement field of an instruction, moved by a distance.
    pub(super) fn shift(&self, s: &Site, by: i64) -> Option<Edit> {
        let f = s.insn.field.filter(|f| f.len == 4)?;
        let at = s.at + usize::from(f.at);
        let value = i32::from_le_bytes(self.file(at, 4).try_into().ok()?);
        let value = i32::try_from(i64::from(value) + by).ok()?;
        Some(Edit::new(
            format!("{:#x} at {:#x}", f.target.wrapping_add_signed(by), s.addr),
            at,
            &value.to_le_bytes(),
        ))
    }

    fn spoil(&self, kind: Kind, s: &Site) -> Option<Edit> {
        let bytes = self.bytes(s);
        let what = format!("at {:#x}", s.addr);
        let next = s.addr + u64::from(s.insn.len);
        let opcode = opcode_at(bytes);
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
                let at = if bytes.get(opcode) == Some(&0x0f) {
                    opcode + 1
                } else {
                    opcode
                };
                (target != next)
                    .then(|| Edit::new(what, s.at + at, &[bytes.get(at).copied().unwrap_or(0) ^ 1]))
            }
            Kind::BranchOffByOne => {
                // A nop at the target could be skipped without harm.
                branch.filter(|t| {
                    self.site_at(*t)
                        .is_some_and(|t| t.insn.flow != Flow::Nothing && t.insn.len > 1)
                })?;
                self.shift(s, 1)
            }
            Kind::BranchToWrongBlock => {
                let target = branch?;
                let f = self
                    .claim
                    .functions
                    .iter()
                    .find(|f| f.in_new(OutputAddr::new(s.addr)))?;
                let silent = |s: &Site| matches!(s.insn.flow, Flow::Jump(_) | Flow::Nothing);
                self.site_at(target).filter(|t| !silent(t))?;
                let other = self.sites.iter().find(|o| {
                    f.in_new(OutputAddr::new(o.addr)) && o.addr != target && !silent(o)
                })?;
                self.shift(s, other.addr.wrapping_sub(target) as i64)
            }
            Kind::CallToWrongFunction => {
                let Flow::Call(target) = s.insn.flow else {
                    return None;
                };
                let other = self
                    .claim
                    .functions
                    .iter()
                    .map(crate::files::claim::Moved::new_entry)
                    .find(|e| *e != OutputAddr::new(target))?;
                // The old entry of the same function is as good as the new one.
                let same = self
                    .claim
                    .functions
                    .iter()
                    .any(|f| f.new_entry() == other && f.old_entry == InputAddr::new(target));
                (!same).then(|| self.shift(s, other.get().wrapping_sub(target) as i64))?
            }
            Kind::OperandOffByOne | Kind::OperandOffByEight => {
                s.insn
                    .field
                    .filter(|f| matches!(f.kind, FieldKind::Accesses | FieldKind::Forms))?;
                self.shift(s, if kind == Kind::OperandOffByOne { 1 } else { 8 })
            }
            Kind::DroppedPrefix => {
                let at = bytes
                    .iter()
                    .take(opcode)
                    .position(|b| matches!(b, 0xf0 | 0xf2 | 0xf3 | 0x64 | 0x3e))?;
                Some(Edit::new(
                    format!("{:02x} {what}", bytes.get(at)?),
                    s.at + at,
                    &[0x2e],
                ))
            }
            Kind::ChangedOpcode => {
                let other = other_operation(*bytes.get(opcode)?)?;
                (s.insn.flow == Flow::Next).then(|| Edit::new(what, s.at + opcode, &[other]))
            }
            Kind::ChangedImmediate => {
                let with_immediate = matches!(
                    bytes.get(opcode)?,
                    0x81 | 0x83 | 0xc7 | 0xb8..=0xbf | 0x6b | 0xc1
                ) && s.insn.flow == Flow::Next;
                with_immediate.then(|| {
                    Edit::new(
                        what,
                        s.at + bytes.len() - 1,
                        &[bytes.last().copied().unwrap_or(0) ^ 1],
                    )
                })
            }
            Kind::ChangedRegister => {
                let with_register = matches!(
                    bytes.get(opcode)?,
                    0x01 | 0x03
                        | 0x29
                        | 0x2b
                        | 0x31
                        | 0x33
                        | 0x39
                        | 0x3b
                        | 0x85
                        | 0x89
                        | 0x8b
                        | 0x8d
                );
                let at = opcode + 1;
                with_register
                    .then(|| Edit::new(what, s.at + at, &[bytes.get(at).copied().unwrap_or(0) ^ 8]))
            }
            Kind::DroppedInstruction => {
                (s.insn.flow == Flow::Next).then(|| Edit::new(what, s.at, &vec![0x90; bytes.len()]))
            }
            Kind::DroppedReturn => (bytes == [0xc3]).then(|| Edit::new(what, s.at, &[0x90])),
            _ => None,
        }
    }

    /// Instructions of functions that stay.
    pub(super) fn old_code(&self) -> Vec<Edit> {
        let stays = |addr: u64| {
            !self.claim.functions.iter().any(|f| {
                f.in_old(InputAddr::new(addr)) || f.in_old(InputAddr::new(addr.wrapping_sub(16)))
            })
        };
        let symbols = self
            .input
            .symbols(SHT_SYMTAB)
            .filter(|s| s.is_function() && s.size > 0 && stays(s.value));
        symbols
            .filter_map(|s| {
                let bytes = self.input.bytes(s.value, s.size)?;
                let insn = self.decode(bytes, s.value).filter(|i| i.field.is_none())?;
                let last = usize::from(insn.len) - 1;
                Some(Edit::new(
                    format!("at {:#x}", s.value),
                    self.offset(s.value)? + last,
                    &[bytes.get(last)? ^ 0x09],
                ))
            })
            .take(1000)
            .collect()
    }

    /// Calls in functions that stay, retargeted to moved functions.
    pub(super) fn staying_calls(&self) -> Vec<Edit> {
        let mut edits = Vec::new();
        let entries: Vec<u64> = self
            .claim
            .functions
            .iter()
            .map(|f| f.new_entry().get())
            .collect();
        for s in self
            .input
            .symbols(SHT_SYMTAB)
            .filter(|s| s.is_function() && s.size > 0)
            .take(20_000)
        {
            if self
                .claim
                .functions
                .iter()
                .any(|f| f.in_old(InputAddr::new(s.value)))
            {
                continue;
            }
            let Some(bytes) = self.output.bytes(s.value, s.size) else {
                continue;
            };
            let mut at = 0usize;
            while let Some(insn) = bytes
                .get(at..)
                .and_then(|rest| self.decode(rest, s.value + at as u64))
            {
                let addr = s.value + at as u64;
                at += usize::from(insn.len);
                if let (Flow::Call(target), Some(offset)) = (insn.flow, self.offset(addr))
                    && let Some(other) = entries
                        .iter()
                        .find(|e| **e != target && entries.contains(&target))
                    && let site = (Site {
                        addr,
                        at: offset,
                        insn,
                    })
                    && let by = other.wrapping_sub(target) as i64
                    && let Some(edit) = if self.arm {
                        self.shift_a64(&site, by)
                    } else {
                        self.shift(&site, by)
                    }
                {
                    edits.push(edit);
                }
            }
            if edits.len() > 100 {
                break;
            }
        }
        edits
    }

    fn entry_jumps(&self) -> Vec<Edit> {
        let functions = &self.claim.functions;
        functions
            .iter()
            .filter_map(|f| {
                let bytes = self.output.bytes(f.old_entry.get(), 9)?;
                let (skip, _, target) = X86_64::entry_jump(bytes, f.old_entry.get())?;
                if self.input.bytes(f.old_entry.get(), 9) == Some(bytes) {
                    return None;
                }
                let other = functions
                    .iter()
                    .find(|o| o.old_entry != f.old_entry)?
                    .new_entry();
                let at = self.offset((f.old_entry + skip + 1).get())?;
                let value = i32::from_le_bytes(self.file(at, 4).try_into().ok()?);
                let value =
                    i32::try_from(i64::from(value) + other.get().wrapping_sub(target) as i64)
                        .ok()?;
                Some(Edit::new(
                    format!("{:#x} goes to {other:#x}", f.old_entry),
                    at,
                    &value.to_le_bytes(),
                ))
            })
            .collect()
    }
    /// A jump at the start of a function's new code, to the jump at its old entry.
    pub(super) fn back_to_old_entries(&self) -> Vec<Edit> {
        let moved = self.claim.functions.iter().filter(|f| {
            let has_jump =
                self.output.bytes(f.old_entry.get(), 4) != self.input.bytes(f.old_entry.get(), 4);
            has_jump && f.new.first().is_some_and(|r| r.end - r.start >= 5)
        });
        moved
            .filter_map(|f| {
                let start = f.new_entry();
                let distance = f.old_entry.get().wrapping_sub(start.get()) as i64;
                let bytes = if self.arm {
                    (0x1400_0000 | (distance >> 2) as u32 & 0x03ff_ffff)
                        .to_le_bytes()
                        .to_vec()
                } else {
                    let displacement = i32::try_from(distance - 5).ok()?.to_le_bytes();
                    [&[0xe9][..], &displacement].concat()
                };
                Some(Edit::new(
                    format!("{start:#x} jumps to {:#x}", f.old_entry),
                    self.offset(start.get())?,
                    &bytes,
                ))
            })
            .collect()
    }
}
