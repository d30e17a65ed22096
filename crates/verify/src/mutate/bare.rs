//! Faults in outputs for which no kept relocations were used: what a rewriter would write that knew less than it
//! thought, and claims that say something else than what is there.

use super::code_a64::moved_by;
use super::{Edit, Faults, Kind, Site};
use crate::addr::{InputAddr, OutputAddr};
use crate::arch::aarch64::AArch64;
use crate::arch::{Arch, FieldKind, Flow};
use crate::files::claim::{Basis, Claim};

impl Faults<'_> {
    pub(super) fn bare_edits(&self, kind: Kind) -> Vec<Edit> {
        if self.claim.basis.is_none() {
            return Vec::new();
        }
        match kind {
            Kind::BasisLied => self.spoilt_claims(&|claim, i| {
                claim.basis = match (claim.basis, i % 2) {
                    (_, 0) => None,
                    (Some(Basis::Dynamic), _) => Some(Basis::Nothing),
                    (_, _) => Some(Basis::Dynamic),
                };
                Some(())
            }),
            Kind::LevelLied => self.spoilt_claims(&|claim, i| {
                let f = claim.functions.get_mut(i)?;
                f.jumps = !f.jumps;
                Some(())
            }),
            Kind::FallBackUnclaimed => self.spoilt_claims(&|claim: &mut Claim<'_>, i| {
                claim.functions.get_mut(i)?.falls_back.pop().map(|_| ())
            }),
            _ => {
                let sites = self.sites.iter();
                if self.arm {
                    let elsewhere = |s| self.led_elsewhere_a64(kind, s);
                    sites.filter_map(elsewhere).collect()
                } else {
                    sites.filter_map(|s| self.led_elsewhere(kind, s)).collect()
                }
            }
        }
    }

    /// The same on AArch64: the page that is formed, with the instruction behind it; or a branch to the second
    /// instruction of its function's old body, if the jump there overwrote that.
    fn led_elsewhere_a64(&self, kind: Kind, s: &Site) -> Option<Edit> {
        let own = |addr: u64| {
            let mut functions = self.claim.functions.iter();
            functions.find(|f| f.in_new(OutputAddr::new(addr)) && f.jumps)
        };
        let w = self.word(s)?;
        match kind {
            Kind::FormedFollows if s.insn.field?.kind == FieldKind::Page => {
                let add = self.site_at(s.addr + 4)?;
                let then = AArch64::page_use(self.bytes(add)).filter(|u| u.dest.is_some())?;
                let register = AArch64::page_register(self.bytes(s))?;
                let page = s.insn.field?.target;
                let formed = page.wrapping_add(then.offset);
                let mut functions = self.claim.functions.iter();
                let f = functions.find(|f| f.old_entry == InputAddr::new(formed))?;
                let to = f.new_entry().get();
                let by = ((to & !0xfff).wrapping_sub(page) as i64) >> 12;
                let first = moved_by(w, by).filter(|_| then.base == register)?;
                let second = self.word(add)? & !(0xfff << 10) | ((to & 0xfff) as u32) << 10;
                let bytes = [first.to_le_bytes(), second.to_le_bytes()].concat();
                Some(Edit::new(
                    format!("at {:#x} to {to:#x}", s.addr),
                    s.at,
                    &bytes,
                ))
            }
            Kind::IntoEntryJump => {
                let (Flow::Branch { target, .. } | Flow::Jump(target)) = s.insn.flow else {
                    return None;
                };
                let to = (own(s.addr)?.old_entry + 4).kept().get();
                let changed = moved_by(w, (to.wrapping_sub(target) as i64) / 4)?;
                let what = format!("at {:#x} to {to:#x}", s.addr);
                let (old, new) = (self.input.bytes(to, 4), self.output.bytes(to, 4));
                (old != new).then(|| Edit::new(what, s.at, &changed.to_le_bytes()))
            }
            _ => None,
        }
    }

    /// An instruction with another address in it.
    fn led_elsewhere(&self, kind: Kind, s: &Site) -> Option<Edit> {
        let field = s.insn.field.filter(|f| f.len == 4)?;
        let own = || {
            let mut functions = self.claim.functions.iter();
            functions.find(|f| f.in_new(OutputAddr::new(s.addr)) && f.jumps)
        };
        let target = match kind {
            Kind::FormedFollows if field.kind == FieldKind::Forms => {
                let mut functions = self.claim.functions.iter();
                let f = functions.find(|f| f.old_entry == InputAddr::new(field.target))?;
                f.new_entry()
            }
            Kind::IntoEntryJump if matches!(s.insn.flow, Flow::Branch { .. }) => {
                (own()?.old_entry + 2).kept()
            }
            _ => return None,
        };
        let end = s.addr.wrapping_add(u64::from(s.insn.len));
        let value = i32::try_from(target.get().wrapping_sub(end) as i64).ok()?;
        Some(Edit::new(
            format!("at {:#x} to {target:#x}", s.addr),
            s.at + usize::from(field.at),
            &value.to_le_bytes(),
        ))
    }
}
