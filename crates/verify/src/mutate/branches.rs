//! Faults in promoted calls ([`crate::walk::changes`]): comparisons with a function and the calls after them.

use super::{Edit, Faults, Kind, Site};
use crate::addr::{InputAddr, OutputAddr};
use crate::arch::x86_64::X86_64;
use crate::arch::{Arch, Flow, Operand};

/// The instructions of a comparison: the address that is compared, if it takes an instruction, the comparison, the
/// branch.
struct Guard<'f> {
    address: Option<&'f Site>,
    compare: &'f Site,
    branch: &'f Site,
}

impl Faults<'_> {
    pub(super) fn branch_edits(&self, kind: Kind) -> Vec<Edit> {
        if self.arm {
            return Vec::new();
        }
        if kind == Kind::PromotedCallElsewhere {
            let calls = self.sites.iter().filter_map(|s| self.call_elsewhere(s));
            return calls.collect();
        }
        if kind == Kind::TailCallToWrongFunction {
            let branches = self
                .sites
                .iter()
                .filter_map(|s| self.tail_call_elsewhere(s));
            return branches.collect();
        }
        let guards = (0..self.sites.len()).filter_map(|i| self.guard(i));
        guards.filter_map(|g| self.guard_edit(kind, &g)).collect()
    }

    /// The comparison that begins with a site's instruction, or with the one before that.
    fn guard(&self, i: usize) -> Option<Guard<'_>> {
        let [compare, branch, call] = self.sites.get(i..i + 3)? else {
            return None;
        };
        X86_64::comparison(self.bytes(compare), compare.addr)?;
        let adjacent = |a: &Site, b: &Site| a.addr + u64::from(a.insn.len) == b.addr;
        let is_guard = matches!(branch.insn.flow, Flow::Branch { .. })
            && matches!(call.insn.flow, Flow::Call(_))
            && adjacent(compare, branch)
            && adjacent(branch, call);
        let before = i.checked_sub(1).and_then(|i| self.sites.get(i));
        let address = before.filter(|a| matches!(self.bytes(a), [0x4c, 0x8d, 0x1d, ..]));
        // cmp REG,imm32 in programs at fixed addresses
        let number = matches!(self.bytes(compare), [_, 0x81, 0xf8..=0xff, ..]);
        (is_guard && (address.is_some() || number)).then_some(Guard {
            address,
            compare,
            branch,
        })
    }

    fn guard_edit(&self, kind: Kind, g: &Guard<'_>) -> Option<Edit> {
        let what = format!("at {:#x}", g.compare.addr);
        let bytes = self.bytes(g.compare);
        match kind {
            // Of another function, or of none.
            Kind::PromotedNumber => match g.address {
                Some(address) => self.shift(address, 16),
                None => {
                    let at = g.compare.at + bytes.len() - 4;
                    let number = u32::from_le_bytes(self.file(at, 4).try_into().ok()?);
                    Some(Edit::new(what, at, &(number ^ 16).to_le_bytes()))
                }
            },
            Kind::PromotedRegister => match *bytes {
                // cmp REG,r11; cmp REG,imm32
                [rex, 0x39, modrm @ 0xc0..=0xff] => {
                    Some(Edit::new(what, g.compare.at, &[rex, 0x39, modrm ^ 1]))
                }
                [rex, 0x81, modrm @ 0xc0..=0xff, ..] => {
                    Some(Edit::new(what, g.compare.at, &[rex, 0x81, modrm ^ 1]))
                }
                _ => None,
            },
            Kind::PromotionTurned => {
                let at = self.bytes(g.branch).iter().position(|b| *b == 0x75)?;
                Some(Edit::new(what, g.branch.at + at, &[0x74]))
            }
            // The address goes to r10 instead, in which calls may pass something, and is compared from there.
            Kind::PromotionLiveRegister => match (g.address, bytes) {
                (Some(address), [_, 0x39, modrm, ..]) => Some(Edit {
                    what,
                    changes: vec![
                        (address.at + 2, vec![0x15]),
                        (g.compare.at + 2, vec![modrm & 0xc7 | 2 << 3]),
                    ],
                }),
                _ => None,
            },
            _ => None,
        }
    }

    /// A conditional branch out of its function goes to another function.
    fn tail_call_elsewhere(&self, s: &Site) -> Option<Edit> {
        let Flow::Branch { target, .. } = s.insn.flow else {
            return None;
        };
        let functions = &self.claim.functions;
        let own = functions
            .iter()
            .find(|f| f.in_new(OutputAddr::new(s.addr)))?;
        if own.in_new(OutputAddr::new(target)) {
            return None;
        }
        let same = functions
            .iter()
            .find(|f| f.in_new(OutputAddr::new(target)) || f.in_old(InputAddr::new(target)));
        let old = same.map_or(target, |f| f.old_entry.get());
        let mut others = functions.iter().filter(|f| f.old_entry != own.old_entry);
        let other = others.find(|f| f.old_entry != InputAddr::new(old))?;
        self.shift(s, other.new_entry().get().wrapping_sub(target) as i64)
    }

    /// What is left of a call whose operand was read calls something else: `call [rsp-8]`, `call r11`.
    fn call_elsewhere(&self, s: &Site) -> Option<Edit> {
        let (operand, _) = X86_64::operand(self.bytes(s), s.addr)?;
        if s.insn.flow != Flow::IndirectCall {
            return None;
        }
        let with = match (operand, self.bytes(s)) {
            // The word above it; another register.
            (Operand::Memory(_), [0xff, 0x54, 0x24, 0xf8]) => &[0xff, 0x54, 0x24, 0xf0][..],
            (Operand::Register(11), [0x41, 0xff, 0xd3]) => &[0x41, 0xff, 0xd2],
            _ => return None,
        };
        Some(Edit::new(format!("at {:#x}", s.addr), s.at, with))
    }
}
