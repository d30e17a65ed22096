//! Pages in code that stays.
//!
//! When a function moves, code that stays and forms its address must form the new one: an `adrp` and what is added to it change together. Mostly
//! both stand in straight code ([`Arch::page_uses`]). Compilers also form the page before a call or a branch and use it far behind,
//! in another part of the function that may even lie in front. Then both directions are looked at:
//!
//! * forward, from each changed `adrp` along all ways until the register is overwritten: whatever reads the register on the way must be an instruction
//!   that makes an address of the page;
//! * backward, from each instruction so reached: on every way to it the register holds the same page, or it is overwritten there
//!   before it is read.
//!
//! Where control may come by ways that are not in the code (tables, landing pads), nothing is followed: the functions concerned are put back.

use crate::arch::{Arch, FieldKind, Flow};
use crate::graph::Graph;
use rustc_hash::{FxHashMap, FxHashSet};

/// Registers that calls leave alone: x18 to x29 of the procedure call standard.
const KEPT_BY_CALLS: u32 = 0x3ffc_0000;

/// How many instructions are looked at for one page.
const BUDGET: usize = 20_000;

/// An instruction that makes an address of a changed page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Use {
    /// Where it stands.
    pub at: u64,
    /// The address that it makes, in the input and in the output.
    pub old: u64,
    pub new: u64,
    /// Whether the address is formed or accessed.
    pub kind: FieldKind,
}

/// A piece of code in both files.
pub(crate) struct Piece<'c, 'g> {
    pub start: u64,
    pub old: &'c [u8],
    pub new: &'c [u8],
    pub graph: &'c Graph<'g>,
    /// The changed instructions that form pages, by address: register, old page, new page.
    pub pages: &'c FxHashMap<u64, (u8, u64, u64)>,
}

impl Piece<'_, '_> {
    fn bytes(&self, at: u64) -> Option<(&[u8], &[u8])> {
        let i = usize::try_from(at.checked_sub(self.start)?).ok()?;
        Some((self.old.get(i..i.checked_add(4)?)?, self.new.get(i..i + 4)?))
    }

    /// All uses of the page that the instruction at `from` forms; `None` if they cannot all be known.
    pub(crate) fn uses<A: Arch>(&self, from: u64) -> Option<Vec<Use>> {
        let &(reg, old_page, new_page) = self.pages.get(&from)?;
        let step = A::STEP as u64;
        let mut uses = Vec::new();
        let mut reached: FxHashSet<u64> = FxHashSet::default();
        let mut work = vec![from.checked_add(step)?];
        while let Some(at) = work.pop() {
            if !reached.insert(at) {
                continue;
            }
            if reached.len() > BUDGET {
                return None;
            }
            let (old, new) = self.bytes(at)?;
            let insn = A::decode(old, at)?;
            if let Some(u) = A::page_use(old).filter(|u| u.base == reg) {
                let now = A::page_use(new).filter(|_| A::equal_but_offset(old, new))?;
                let touched = A::touched(old)?;
                // The page itself may not be stored.
                let stored = u.dest.is_none() && old.first().is_some_and(|low| low & 31 == reg) && touched.kills >> reg & 1 == 0;
                if stored {
                    return None;
                }
                let kind = if u.dest.is_some() { FieldKind::Forms } else { FieldKind::Accesses };
                uses.push(Use { at, old: old_page.wrapping_add(u.offset), new: new_page.wrapping_add(now.offset), kind });
                if touched.kills >> reg & 1 == 0 {
                    work.push(at.checked_add(step)?);
                }
                continue;
            }
            match insn.flow {
                Flow::Call(_) | Flow::IndirectCall => {
                    if KEPT_BY_CALLS >> reg & 1 != 0 {
                        work.push(at.checked_add(step)?);
                    }
                    continue;
                }
                Flow::Stop if KEPT_BY_CALLS >> reg & 1 == 0 => continue,
                Flow::Stop | Flow::Trap | Flow::IndirectJump { .. } => return None,
                Flow::Jump(target) => {
                    work.push(target);
                    continue;
                }
                _ => {}
            }
            let touched = A::touched(old)?;
            if touched.reads >> reg & 1 != 0 {
                return None;
            }
            if touched.kills >> reg & 1 != 0 {
                continue;
            }
            if touched.writes >> reg & 1 != 0 {
                return None;
            }
            if let Flow::Branch { target, .. } = insn.flow {
                work.push(target);
            }
            work.push(at.checked_add(step)?);
        }
        // Every other way to what was reached.
        let same = |at: u64| self.pages.get(&at) == Some(&(reg, old_page, new_page));
        let carries = |at: u64| {
            same(at)
                || reached.contains(&at)
                    && self.bytes(at).is_some_and(|(old, _)| A::touched(old).is_none_or(|t| t.kills >> reg & 1 == 0))
        };
        for &at in &reached {
            let before = at.wrapping_sub(step);
            let falls = self.bytes(before).is_some_and(|(old, _)| {
                !A::decode(old, before).is_some_and(|i| matches!(i.flow, Flow::Jump(_) | Flow::Stop | Flow::IndirectJump { .. }))
            });
            let first = at == self.start;
            let all = !first && (!falls || carries(before)) && self.graph.jumps_to(at).iter().all(|j| carries(*j));
            if !all && !self.dead::<A>(at, reg) {
                return None;
            }
        }
        uses.sort_by_key(|u| u.at);
        Some(uses)
    }

    /// Whether nothing reads a register from `from` on before it is overwritten.
    fn dead<A: Arch>(&self, from: u64, reg: u8) -> bool {
        let mut seen: FxHashSet<u64> = FxHashSet::default();
        let mut work = vec![from];
        while let Some(at) = work.pop() {
            if !seen.insert(at) {
                continue;
            }
            let kept = KEPT_BY_CALLS >> reg & 1 != 0;
            let Some((old, _)) = self.bytes(at).filter(|_| seen.len() <= BUDGET) else {
                return false;
            };
            let Some(insn) = A::decode(old, at) else {
                return false;
            };
            match insn.flow {
                Flow::Call(_) | Flow::IndirectCall | Flow::Stop if !kept => continue,
                Flow::Call(_) | Flow::IndirectCall => {}
                Flow::Stop | Flow::Trap | Flow::IndirectJump { .. } => return false,
                Flow::Jump(target) => {
                    work.push(target);
                    continue;
                }
                _ => {
                    let Some(touched) = A::touched(old) else {
                        return false;
                    };
                    if touched.reads >> reg & 1 != 0 {
                        return false;
                    }
                    if touched.kills >> reg & 1 != 0 {
                        continue;
                    }
                    if let Flow::Branch { target, .. } = insn.flow {
                        work.push(target);
                    }
                }
            }
            work.push(at.wrapping_add(A::STEP as u64));
        }
        true
    }
}
