//! Faults in counters of calls, in functions that are re-emitted.
//!
//! | machine | counter |
//! |---|---|
//! | x86-64 | `add [c],1`, `sbb [c],0`, `cmp [t],0`, `jne`, `push r11`, `lea r11,[c]`, `call`, `pop r11`; all of it, or the four on the slow way, perhaps between `lea rsp,[rsp-128]` and `lea rsp,[rsp+128]`; all of it perhaps between `pushfq` and `popfq` |
//! | AArch64 | `adrp x16`, `ldr w17`, `cbnz w17`, `add x16`, `mov x17,x30`, `bl`, `ldr w17`, `add w17`, `cbz w17`, `str w17` |

use super::{Edit, Faults, Kind};
use crate::arch::Arch;
use crate::arch::x86_64::X86_64;
use rustc_hash::FxHashSet;

/// `lea rsp,[rsp-128]`, `lea rsp,[rsp+128]`.
const OVER: [u8; 5] = [0x48, 0x8d, 0x64, 0x24, 0x80];
const BACK: [u8; 8] = [0x48, 0x8d, 0xa4, 0x24, 0x80, 0, 0, 0];

/// A counter: places are offsets in the file.
#[derive(Clone, Copy, Debug)]
struct Call {
    addr: u64,
    /// Where it begins, and its length.
    at: usize,
    len: usize,
    /// `add`, or `adrp`.
    add: usize,
    /// `push r11`, after which are `lea`, `call` and `pop`.
    slow: usize,
    /// `lea rsp,[rsp-128]` and the other way.
    zone: Option<(usize, usize)>,
    /// `pushfq` and `popfq`.
    flags: Option<(usize, usize)>,
    /// What it counts in.
    counter: u64,
}

impl Faults<'_> {
    pub(super) fn call_edits(&self, kind: Kind) -> Vec<Edit> {
        let calls: Vec<Call> = if self.arm {
            self.calls_a64()
        } else {
            self.calls_x86()
        };
        let counters: FxHashSet<u64> = calls.iter().map(|c| c.counter).collect();
        let spoil = |c: &Call| {
            let changes = if self.arm {
                self.spoil_call_a64(kind, c, &counters)?
            } else {
                self.spoil_call(kind, c, &counters)?
            };
            let what = format!("the counter of calls at {:#x}", c.addr);
            Some(Edit { what, changes })
        };
        calls.iter().filter_map(spoil).collect()
    }

    /// The four bytes at a place.
    fn four(&self, at: usize) -> Option<u32> {
        Some(u32::from_le_bytes(self.file(at, 4).try_into().ok()?))
    }

    fn calls_x86(&self) -> Vec<Call> {
        let mut found = Vec::new();
        for s in &self.sites {
            let is = |at: usize, bytes: &[u8]| self.file(at, bytes.len()) == bytes;
            let add = s.at;
            let counts = is(add, &[0x83, 5]) && is(add + 6, &[1, 0x83, 0x1d]);
            if !counts || !is(add + 13, &[0, 0x83, 0x3d]) || !is(add + 20, &[0, 0x75]) {
                continue;
            }
            let over_zone = is(add + 23, &OVER);
            let slow = add + 23 + if over_zone { OVER.len() } else { 0 };
            let mut end = slow + 16;
            let mut zone = over_zone.then_some((add + 23, end));
            end += if over_zone { BACK.len() } else { 0 };
            let (mut at, mut flags) = (add, None);
            if is(add.saturating_sub(1), &[0x9c]) && is(end, &[0x9d]) {
                flags = Some((add - 1, end));
                (at, end) = (add - 1, end + 1);
                if is(at.saturating_sub(OVER.len()), &OVER) && is(end, &BACK) {
                    zone = Some((at - OVER.len(), end));
                    (at, end) = (at - OVER.len(), end + BACK.len());
                }
            }
            let Some(field) = self.four(add + 2) else {
                continue;
            };
            found.push(Call {
                addr: s.addr,
                at,
                len: end - at,
                add,
                slow,
                zone,
                flags,
                counter: (s.addr + 7).wrapping_add_signed(i64::from(field as i32)),
            });
        }
        found
    }

    fn spoil_call(
        &self,
        kind: Kind,
        c: &Call,
        counters: &FxHashSet<u64>,
    ) -> Option<Vec<(usize, Vec<u8>)>> {
        // Displacements of `add`, `sbb`, `cmp`, `lea`, and of the call.
        let [add, sbb, cmp, lea, call] =
            [c.add + 2, c.add + 9, c.add + 16, c.slow + 5, c.slow + 10];
        let moved = |fields: &[usize], by: i64| {
            let one = |at: &usize| {
                let field = i64::from(self.four(*at)? as i32).checked_add(by)?;
                Some((*at, i32::try_from(field).ok()?.to_le_bytes().to_vec()))
            };
            fields.iter().map(one).collect::<Option<Vec<_>>>()
        };
        match kind {
            Kind::CallNotCounted => Some(vec![(c.add + 6, vec![0])]),
            Kind::CallCounterLost => {
                let over = u8::try_from(c.len.checked_sub(2)?).ok()?;
                Some(vec![(c.at, vec![0xeb, over])])
            }
            Kind::CallSaturationOff => Some(vec![(c.add + 13, vec![1])]),
            Kind::CallTakenElsewhere => moved(&[sbb], 8),
            Kind::CallCountedElsewhere => moved(&[add, sbb], 8),
            Kind::CallAskedElsewhere => moved(&[cmp], 8),
            Kind::CallNotedElsewhere => moved(&[lea], 8),
            Kind::CallCounterShared => {
                let by = [8, -8]
                    .into_iter()
                    .find(|by| counters.contains(&c.counter.wrapping_add_signed(*by)))?;
                moved(&[add, sbb, cmp, lea], by)
            }
            Kind::CallCounterInData => {
                let by = self.own_data()?.wrapping_sub(c.counter) as i64;
                moved(&[add, sbb, cmp, lea], by)
            }
            Kind::CallRoutineOff => moved(&[call], 1),
            Kind::CallFlagsLost => {
                let (push, pop) = c.flags?;
                // Whether that matters is certain where the next instruction reads one.
                let next = self.site_at(c.addr + (c.at + c.len - c.add) as u64)?;
                if X86_64::effects(self.bytes(next)).flag_reads == 0 {
                    return None;
                }
                // push rax, pop rax
                Some(vec![(push, vec![0x50]), (pop, vec![0x58])])
            }
            Kind::CallOverRedZone => {
                let (over, back) = c.zone?;
                Some(vec![(over + 4, vec![0]), (back + 4, vec![0])])
            }
            // pop rbx, nop
            Kind::CallRegisterLost => Some(vec![(c.slow + 14, vec![0x5b, 0x90])]),
            Kind::CallStackMoved => Some(vec![(c.zone?.1 + 4, vec![136])]),
            _ => None,
        }
    }

    fn calls_a64(&self) -> Vec<Call> {
        let mut found = Vec::new();
        for s in &self.sites {
            let word = |i: usize| self.four(s.at + 4 * i).unwrap_or(0);
            let load = word(1);
            let is_call = word(0) & 0x9f00_001f == 0x9000_0010
                && load & 0xffc0_03ff == 0xb940_0211
                && word(2) == 0x3500_0011 | 5 << 5
                && word(4) == 0xaa1e_03f1
                && word(6) == load
                && word(7) == 0x1100_0631;
            let page = s.insn.field.filter(|_| is_call).map(|f| f.target);
            let Some(page) = page else { continue };
            found.push(Call {
                addr: s.addr,
                at: s.at,
                len: 40,
                add: s.at,
                slow: s.at + 12,
                zone: None,
                flags: None,
                counter: page + (u64::from(load >> 10 & 0xfff) << 2),
            });
        }
        found
    }

    fn spoil_call_a64(
        &self,
        kind: Kind,
        c: &Call,
        counters: &FxHashSet<u64>,
    ) -> Option<Vec<(usize, Vec<u8>)>> {
        const NOP: u32 = 0xd503_201f;
        let put = |words: &[(usize, u32)]| {
            let changes = words
                .iter()
                .map(|(i, w)| (c.at + 4 * i, w.to_le_bytes().to_vec()));
            Some(changes.collect::<Vec<_>>())
        };
        let word = |i: usize| self.four(c.at + 4 * i);
        let (load, sum, store) = (word(1)?, word(3)?, word(9)?);
        // Eight bytes further in the same page.
        let fits = c.counter & 0xfff < 0xff8;
        match kind {
            Kind::CallNotCounted => put(&[(7, NOP)]),
            Kind::CallCounterLost => put(&[(0, 0x1400_0000 | 10)]),
            Kind::CallCountedElsewhere if fits => put(&[(9, store + (2 << 10))]),
            Kind::CallNotedElsewhere if fits => put(&[(3, sum + (8 << 10))]),
            Kind::CallAskedElsewhere if fits => put(&[(1, load + (2 << 10))]),
            Kind::CallCounterShared if fits && counters.contains(&(c.counter + 8)) => {
                let load = load + (2 << 10);
                let all = [
                    (1, load),
                    (3, sum + (8 << 10)),
                    (6, load),
                    (9, store + (2 << 10)),
                ];
                put(&all)
            }
            Kind::CallRoutineOff => put(&[(5, word(5)? + 1)]),
            // The return address is not kept.
            Kind::CallRegisterLost => put(&[(4, NOP)]),
            _ => None,
        }
    }
}
