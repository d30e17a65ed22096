//! Faults in outputs for which no kept relocations were used: what a rewriter would write that knew less than it
//! thought, and claims that say something else than what is there.

use super::{Edit, Faults, Kind, Site};
use crate::addr::{InputAddr, OutputAddr};
use crate::arch::{FieldKind, Flow};
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
                sites.filter_map(|s| self.led_elsewhere(kind, s)).collect()
            }
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
