//! Pages in code that stays.
//!
//! When a function moves, code that stays and forms its address must form the new one: an `adrp` and what is
//! added to it change together. Mostly both are in straight code ([`Arch::page_uses`]). Compilers also form
//! the page before a call or a branch and use it far after, in another part of the function that may even are
//! in front. Then both directions are looked at:
//!
//! * forward, from each changed `adrp` along all ways until the register is overwritten: whatever reads the
//!   register on the way must be an instruction that makes an address of the page;
//! * backward, from each instruction so reached: on every way to it the register holds the same page, or it
//!   is overwritten there before it is read.
//!
//! Where control may come on paths that are not in the code (tables, landing pads), nothing is followed: the
//! functions concerned are put back.

use crate::arch::graph::Graph;
use crate::arch::{Arch, FieldKind, Flow};
use rustc_hash::{FxHashMap, FxHashSet};

/// Registers that calls leave alone: x18 to x29 of the procedure call standard.
const KEPT_BY_CALLS: u32 = 0x3ffc_0000;

/// How many instructions are looked at for one page.
const BUDGET: usize = 20_000;

/// An instruction that makes an address of a changed page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Use {
    /// Where it is.
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

    /// Whether nothing but padding follows an instruction: a call there does not come back.
    fn is_last(&self, at: u64) -> bool {
        let from = usize::try_from(at.wrapping_sub(self.start))
            .unwrap_or(usize::MAX)
            .saturating_add(4);
        self.old.get(from..).is_none_or(|rest| {
            rest.chunks(4)
                .all(|word| matches!(word, [0, 0, 0, 0] | [0x1f, 0x20, 0x03, 0xd5]))
        })
    }

    /// All uses of the page that the instruction at `from` forms; `None` if they cannot all be known. Where
    /// it shares them with other instructions that form the same page in the same register, on ways that meet
    /// in front of a use, the uses of all of these.
    pub(crate) fn uses<A: Arch>(&self, from: u64) -> Option<Vec<Use>> {
        let page = self.pages.get(&from)?;
        let shared = || {
            let same = self.pages.iter().filter(|(_, other)| *other == page);
            same.map(|(at, _)| *at).collect::<Vec<u64>>()
        };
        self.uses_of::<A>(*page, &[from])
            .or_else(|| self.uses_of::<A>(*page, &shared()))
    }

    /// All uses of a page (register, old page, new page) that these instructions form.
    fn uses_of<A: Arch>(
        &self,
        (reg, old_page, new_page): (u8, u64, u64),
        formed_at: &[u64],
    ) -> Option<Vec<Use>> {
        let step = A::STEP as u64;
        let mut uses = Vec::new();
        let mut reached: FxHashSet<u64> = FxHashSet::default();
        let behind = formed_at.iter().map(|at| at.checked_add(step));
        let mut work = behind.collect::<Option<Vec<u64>>>()?;
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
                let stored = u.dest.is_none()
                    && old.first().is_some_and(|low| low & 31 == reg)
                    && touched.kills >> reg & 1 == 0;
                if stored {
                    return None;
                }
                let kind = if u.dest.is_some() {
                    FieldKind::Forms
                } else {
                    FieldKind::Accesses
                };
                uses.push(Use {
                    at,
                    old: old_page.wrapping_add(u.offset),
                    new: new_page.wrapping_add(now.offset),
                    kind,
                });
                if touched.kills >> reg & 1 == 0 {
                    work.push(at.checked_add(step)?);
                }
                continue;
            }
            match insn.flow {
                Flow::Call(_) | Flow::IndirectCall => {
                    if KEPT_BY_CALLS >> reg & 1 != 0 && !self.is_last(at) {
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
                    && self.bytes(at).is_some_and(|(old, _)| {
                        A::touched(old).is_none_or(|t| t.kills >> reg & 1 == 0)
                    })
        };
        for &at in &reached {
            let before = at.wrapping_sub(step);
            let falls = self.bytes(before).is_some_and(|(old, _)| {
                !A::decode(old, before).is_some_and(|i| {
                    matches!(
                        i.flow,
                        Flow::Jump(_) | Flow::Stop | Flow::IndirectJump { .. }
                    )
                })
            });
            let first = at == self.start;
            let all = !first
                && (!falls || carries(before))
                && self.graph.jumps_to(at).iter().all(|j| carries(*j));
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
                Flow::Call(_) | Flow::IndirectCall if self.is_last(at) => continue,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::aarch64::AArch64;

    const B: u32 = 0x1400_0000;
    const USE: u32 = 0x9100_4262; // add x2, x19, #0x10
    const RESTORE: u32 = 0xa8c1_53f3; // ldp x19, x20, [sp], #16
    const RET: u32 = 0xd65f_03c0;
    const PAGE: u32 = 0x9000_0013; // adrp x19, this page
    const CALL: u32 = 0x9400_0100;

    /// The page is formed after its use, and a call is between them. In the output it is the next page, and
    /// another offset.
    const CODE: [u32; 7] = [B | 4, USE, RESTORE, RET, PAGE, CALL, 0x17ff_fffb];

    fn uses(words: &[u32]) -> Option<Vec<Use>> {
        let bytes = |words: &[u32]| {
            words
                .iter()
                .flat_map(|w| w.to_le_bytes())
                .collect::<Vec<u8>>()
        };
        let moved: Vec<u32> = words
            .iter()
            .map(|w| match *w {
                PAGE => 0xb000_0013,
                USE => 0x9100_8262,
                w => w,
            })
            .collect();
        let (old, new) = (bytes(words), bytes(&moved));
        let graph = Graph::new::<AArch64>([(0x1000, &old[..])]);
        let changed = words.iter().enumerate().filter(|(_, w)| **w == PAGE);
        let pages = changed
            .map(|(i, _)| (0x1000 + 4 * i as u64, (19, 0x1000, 0x2000)))
            .collect();
        Piece {
            start: 0x1000,
            old: &old,
            new: &new,
            graph: &graph,
            pages: &pages,
        }
        .uses::<AArch64>(0x1010)
    }

    #[test]
    fn a_page_is_followed_past_a_call_and_a_jump_backwards() {
        let found = uses(&CODE).expect("it can be followed");
        assert_eq!(
            found,
            [Use {
                at: 0x1004,
                old: 0x1010,
                new: 0x2020,
                kind: FieldKind::Forms
            }]
        );
    }

    #[test]
    fn a_page_that_is_formed_on_either_of_two_ways_to_its_use_is_followed() {
        // cbz x0 to the second of them.
        let mut code = [
            0xb400_0080,
            PAGE,
            CALL,
            B | 3,
            PAGE,
            CALL,
            USE,
            RESTORE,
            RET,
        ];
        let found = uses(&code).expect("it can be followed");
        let places: Vec<u64> = found.iter().map(|u| u.at).collect();
        assert_eq!(places, [0x1018]);
        code[1] = 0xd503_201f; // One way has something else in the register.
        assert_eq!(uses(&code), None);
    }

    #[test]
    fn another_way_to_the_use_with_another_value_is_not_accepted() {
        let mut code = CODE;
        code[0] = 0xb400_0080; // cbz x0: else the use follows at once
        assert_eq!(uses(&code), None);
    }

    #[test]
    fn a_page_that_is_copied_or_given_back_is_not_accepted() {
        for (i, word) in [(5, 0xaa13_03e1), (2, 0xd503_201f), (5, 0xd61f_0200)] {
            let mut code = CODE;
            code[i] = word; // mov x1, x19; nop for the restore; br x16
            assert_eq!(uses(&code), None, "{word:#x}");
        }
    }

    #[test]
    fn code_ends_with_a_call_that_does_not_come_back() {
        // After the page: cbz x0 to the last instruction, else back to the use.
        assert!(
            uses(&[
                B | 4,
                USE,
                RESTORE,
                RET,
                PAGE,
                0xb400_0040,
                0x17ff_fffb,
                CALL
            ])
            .is_some()
        );
        assert_eq!(
            uses(&[
                B | 4,
                USE,
                RESTORE,
                RET,
                PAGE,
                0xb400_0040,
                0x17ff_fffb,
                CALL,
                RET
            ]),
            None
        );
    }
}
