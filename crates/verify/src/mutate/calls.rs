//! Faults in counters of calls, in functions that are re-emitted.
//!
//! | machine | counter |
//! |---|---|
//! | x86-64, with callers | `test [c],63`, `jne`, the four on the slow way as below, `add [c],1`, `sbb [c],0`; likewise, but 136 for 128 on the slow way |
//! | x86-64 | `add [c],1`, `sbb [c],0`, `cmp [t],0`, `jne`, `push r11`, `lea r11,[c]`, `call`, `pop r11`; all of it, or the four on the slow way, perhaps between `lea rsp,[rsp-128]` and `lea rsp,[rsp+128]`; all of it perhaps between `pushfq` and `popfq` |
//! | AArch64, with callers | `adrp x16`, `ldr w17`, `and w17,w17,#63`, `cbnz w17`, `add x16`, `mov x17,x30`, `bl`, `ldr w17`, `add w17`, `cbz w17`, `str w17` |
//! | AArch64 | `adrp x16`, `ldr w17`, `cbnz w17`, `add x16`, `mov x17,x30`, `bl`, `ldr w17`, `add w17`, `cbz w17`, `str w17` |

use super::{Edit, Faults, Kind, Site};
use crate::arch::aarch64::AArch64;
use crate::arch::x86_64::X86_64;
use crate::arch::{Arch, Flow};
use crate::files::bytes::Reader;
use rustc_hash::FxHashSet;

/// `lea rsp,[rsp-128]`, `lea rsp,[rsp+128]`.
const OVER: [u8; 5] = [0x48, 0x8d, 0x64, 0x24, 0x80];
const BACK: [u8; 8] = [0x48, 0x8d, 0xa4, 0x24, 0x80, 0, 0, 0];
/// `lea rsp,[rsp-136]`, with a displacement of four bytes; `lea rsp,[rsp+136]` is as long as [`BACK`].
const FAR_OVER: [u8; 8] = [0x48, 0x8d, 0xa4, 0x24, 0x78, 0xff, 0xff, 0xff];

/// `bl` to itself; `and w17,w17,#63`; `cbnz w17` over four and five words.
const BL: u32 = 0x9400_0000;
const SAMPLED: u32 = 0x1200_1631;
const CBNZ_4: u32 = 0x3500_0011 | 4 << 5;
const CBNZ_5: u32 = 0x3500_0011 | 5 << 5;

/// Where a word of AArch64's counter is, which has one more from the third on if it notes callers.
fn in_a64(at: usize, callers: bool, word: usize) -> usize {
    at + 4 * (word + usize::from(callers && word >= 2))
}

/// A counter: places are offsets in the file.
#[derive(Clone, Copy, Debug)]
struct Call {
    addr: u64,
    /// What is at that address.
    site: usize,
    /// Where it begins, and its length.
    at: usize,
    len: usize,
    /// `add`, or `adrp`.
    add: usize,
    /// What says how far away the word is that is asked: of `cmp`, or of `test`.
    ask: usize,
    /// `push r11`, after which are `lea`, `call` and `pop`; or `add x16`, after which are `mov`, `bl` and `ldr`.
    slow: usize,
    /// `lea rsp,[rsp-128]` and the other way.
    zone: Option<(usize, usize)>,
    /// `pushfq` and `popfq`.
    flags: Option<(usize, usize)>,
    /// What it counts in.
    counter: u64,
    /// It notes where calls come from.
    callers: bool,
}

impl Faults<'_> {
    pub(super) fn call_edits(&self, kind: Kind) -> Vec<Edit> {
        if matches!(
            kind,
            Kind::CallerLied | Kind::CallerElsewhere | Kind::CallersUnsaid
        ) {
            return self.caller_note_edits(kind);
        }
        let calls: Vec<Call> = if self.arm {
            self.calls_a64()
        } else {
            self.calls_x86()
        };
        let counters: FxHashSet<u64> = calls.iter().map(|c| c.counter).collect();
        if kind == Kind::CallerOfPart {
            let noting = calls.iter().find(|c| c.callers);
            let routine = noting.and_then(|c| self.routine_of(c));
            let spoil = |c: &Call| {
                let (at, code) = self.noting(c, routine?)?;
                let what = format!("the counter of calls at {:#x}", c.addr);
                Some(Edit::new(what, at, &code))
            };
            return calls.iter().filter_map(spoil).collect();
        }
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
            if is(s.at, &[0xf6, 5]) && is(s.at + 6, &[63, 0x75]) {
                found.extend(self.call_with_caller(s));
                continue;
            }
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
                site: s.at,
                at,
                len: end - at,
                add,
                ask: add + 16,
                slow,
                zone,
                flags,
                counter: (s.addr + 7).wrapping_add_signed(i64::from(field as i32)),
                callers: false,
            });
        }
        found
    }

    /// The counter that asks by a `test`.
    fn call_with_caller(&self, s: &Site) -> Option<Call> {
        let is = |at: usize, bytes: &[u8]| self.file(at, bytes.len()) == bytes;
        let over_zone = is(s.at + 9, &FAR_OVER);
        let slow = s.at + 9 + if over_zone { FAR_OVER.len() } else { 0 };
        let add = slow + 16 + if over_zone { BACK.len() } else { 0 };
        let (mut at, mut end) = (s.at, add + 14);
        let mut zone = over_zone.then_some((s.at + 9, slow + 16));
        let mut flags = None;
        let down = s.at.saturating_sub(1 + OVER.len());
        if is(s.at.saturating_sub(1), &[0x9c]) && is(end, &[0x9d]) && is(down, &OVER) {
            flags = Some((s.at - 1, end));
            zone = Some((down, end + 1));
            (at, end) = (down, end + 1 + BACK.len());
        }
        let field = self.four(s.at + 2)?;
        let counts = is(add, &[0x83, 5]) && is(slow, &[0x41, 0x53]);
        counts.then_some(Call {
            addr: s.addr,
            site: s.at,
            at,
            len: end - at,
            add,
            ask: s.at + 2,
            slow,
            zone,
            flags,
            counter: (s.addr + 7).wrapping_add_signed(i64::from(field as i32)),
            callers: true,
        })
    }

    /// The address of a place in a counter.
    fn address_in(c: &Call, at: usize) -> u64 {
        c.addr.wrapping_add(at as u64).wrapping_sub(c.site as u64)
    }

    /// The routine that a counter calls.
    fn routine_of(&self, c: &Call) -> Option<u64> {
        if self.arm {
            let at = Self::address_in(c, c.slow + 8);
            return match AArch64::decode(self.file(c.slow + 8, 4), at)?.flow {
                Flow::Call(target) => Some(target),
                _ => None,
            };
        }
        let field = self.four(c.slow + 10)?;
        let end = Self::address_in(c, c.slow + 14);
        Some(end.wrapping_add_signed(i64::from(field as i32)))
    }

    /// A counter without callers, as one with: of the same length. And where it is. On x86-64 those can be that keep
    /// flags; on AArch64 it does not saturate, which is not what is looked for.
    fn noting(&self, c: &Call, routine: u64) -> Option<(usize, Vec<u8>)> {
        if self.arm {
            let distance = routine.wrapping_sub(Self::address_in(c, c.at + 24)) as i64 >> 2;
            let word = |i: usize| self.four(c.at + 4 * i);
            let call = BL | distance as u32 & 0x03ff_ffff;
            let reload = word(6)?;
            let code = [
                word(0)?,
                word(1)?,
                SAMPLED,
                CBNZ_4,
                word(3)?,
                word(4)?,
                call,
                reload,
                word(7)?,
                word(9)?,
            ];
            let code = code.iter().flat_map(|w| w.to_le_bytes()).collect();
            return (!c.callers).then_some((c.at, code));
        }
        c.flags.filter(|_| !c.callers && c.zone.is_some())?;
        let mut code: Vec<u8> = Vec::with_capacity(c.len);
        let field = |code: &mut Vec<u8>, to: u64, trail: u64| {
            let end = Self::address_in(c, c.at + code.len() + 4) + trail;
            let distance = i32::try_from(to.wrapping_sub(end) as i64).ok()?;
            code.extend(distance.to_le_bytes());
            Some(())
        };
        code.extend(OVER);
        code.extend([0x9c, 0xf6, 0x05]);
        field(&mut code, c.counter, 1)?;
        code.extend([63, 0x75, 16, 0x41, 0x53, 0x4c, 0x8d, 0x1d]);
        field(&mut code, c.counter, 0)?;
        code.push(0xe8);
        field(&mut code, routine, 0)?;
        code.extend([0x41, 0x5b, 0x83, 0x05]);
        field(&mut code, c.counter, 1)?;
        code.extend([1, 0x83, 0x1d]);
        field(&mut code, c.counter, 1)?;
        code.extend([0, 0x9d]);
        code.extend(BACK);
        (code.len() == c.len).then_some((c.at, code))
    }

    /// Changes of what the output says of calls that are in another place.
    fn caller_note_edits(&self, kind: Kind) -> Vec<Edit> {
        let Some(note) = self.output.note(b"postlink", 3) else {
            return Vec::new();
        };
        let start = (note.as_ptr() as usize).wrapping_sub(self.output.data.as_ptr() as usize);
        if kind == Kind::CallersUnsaid {
            // Its type is in front of the owner's name.
            let at = start.saturating_sub(16);
            return vec![Edit::new("the note of callers", at, &[4])];
        }
        let ends: FxHashSet<u64> = self
            .sites
            .iter()
            .map(|s| s.addr + u64::from(s.insn.len))
            .collect();
        let mut edits = Vec::new();
        let mut r = Reader::new(note);
        let (Some(_), Some(count)) = (r.u32(), r.uleb()) else {
            return edits;
        };
        let mut new = 0u64;
        for _ in 0..count {
            let further = start + r.pos();
            let Some(by) = r.uleb() else { break };
            let back = start + r.pos();
            let Some(_) = r.sleb() else { break };
            new = new.wrapping_add(by);
            let at = if kind == Kind::CallerLied {
                back
            } else {
                further
            };
            if let (true, Some(byte)) = (ends.contains(&new), self.output.data.get(at)) {
                let what = format!("the call that returns to {new:#x}");
                edits.push(Edit::new(what, at, &[byte ^ 1]));
            }
        }
        edits
    }

    fn spoil_call(
        &self,
        kind: Kind,
        c: &Call,
        counters: &FxHashSet<u64>,
    ) -> Option<Vec<(usize, Vec<u8>)>> {
        // Displacements of `add`, `sbb`, `cmp`, `lea`, and of the call.
        let [add, sbb, cmp, lea, call] = [c.add + 2, c.add + 9, c.ask, c.slow + 5, c.slow + 10];
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
                let next = self.site_at(Self::address_in(c, c.at + c.len))?;
                if X86_64::effects(self.bytes(next)).flag_reads == 0 {
                    return None;
                }
                // push rax, pop rax
                Some(vec![(push, vec![0x50]), (pop, vec![0x58])])
            }
            Kind::CallOverRedZone => {
                let (over, back) = c.zone?;
                let zero = if self.file(over, 8) == FAR_OVER { 4 } else { 1 };
                Some(vec![(over + 4, vec![0; zero]), (back + 4, vec![0])])
            }
            // pop rbx, nop
            Kind::CallRegisterLost => Some(vec![(c.slow + 14, vec![0x5b, 0x90])]),
            Kind::CallStackMoved => Some(vec![(c.zone?.1 + 4, vec![144])]),
            Kind::CallerWordOff if c.callers => {
                // mov rax,[rsp+n]
                let at = self.offset(self.routine_of(c)?)?;
                let code = self.file(at, 96);
                let load = [0x48, 0x8b, 0x84, 0x24];
                let at = at + 4 + code.windows(4).position(|w| w == load)?;
                moved(&[at], 8)
            }
            Kind::CallerSampledOften if c.callers => Some(vec![(c.site + 6, vec![31])]),
            _ => None,
        }
    }

    fn calls_a64(&self) -> Vec<Call> {
        let mut found = Vec::new();
        for s in &self.sites {
            let callers = self.four(s.at + 8) == Some(SAMPLED);
            let over = if callers { CBNZ_4 } else { CBNZ_5 };
            let word = |i: usize| self.four(in_a64(s.at, callers, i)).unwrap_or(0);
            let load = word(1);
            let is_call = word(0) & 0x9f00_001f == 0x9000_0010
                && load & 0xffc0_03ff == 0xb940_0211
                && word(2) == over
                && word(4) == 0xaa1e_03f1
                && word(6) == load
                && word(7) == 0x1100_0631;
            let page = s.insn.field.filter(|_| is_call).map(|f| f.target);
            let Some(page) = page else { continue };
            found.push(Call {
                addr: s.addr,
                site: s.at,
                at: s.at,
                len: in_a64(0, callers, 10),
                add: s.at,
                ask: s.at,
                slow: in_a64(s.at, callers, 3),
                zone: None,
                flags: None,
                counter: page + (u64::from(load >> 10 & 0xfff) << 2),
                callers,
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
            let changes = words.iter().map(|(i, w)| {
                let at = in_a64(c.at, c.callers, *i);
                (at, w.to_le_bytes().to_vec())
            });
            Some(changes.collect::<Vec<_>>())
        };
        let word = |i: usize| self.four(in_a64(c.at, c.callers, i));
        let (load, sum, store) = (word(1)?, word(3)?, word(9)?);
        // Eight bytes further in the same page.
        let fits = c.counter & 0xfff < 0xff8;
        match kind {
            Kind::CallNotCounted => put(&[(7, NOP)]),
            Kind::CallCounterLost => put(&[(0, 0x1400_0000 | (c.len as u32 / 4))]),
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
            Kind::CallerWordOff if c.callers => {
                // sub x0, x17, x1; of x30
                let (right, wrong) = (0xcb01_0220u32.to_le_bytes(), 0xcb01_03c0u32.to_le_bytes());
                let at = self.offset(self.routine_of(c)?)?;
                let code = self.file(at, 512);
                let at = at + 4 * code.chunks_exact(4).position(|w| w == right)?;
                Some(vec![(at, wrong.to_vec())])
            }
            // The mask is of a bit less.
            Kind::CallerSampledOften if c.callers => Some(vec![(
                c.at + 8,
                (SAMPLED - (1 << 10)).to_le_bytes().to_vec(),
            )]),
            Kind::CallerSigned if c.callers => {
                // All of it a word later, behind what signs. What is relative is of the same page, and a word nearer.
                let signs = self.four(c.at + c.len)?;
                let (first, moved) = (c.addr, c.addr + 4);
                if !AArch64::keeps_state(&signs.to_le_bytes()) || first >> 12 != moved >> 12 {
                    return None;
                }
                let call = word(5)?;
                let nearer = BL | call.wrapping_sub(1) & 0x03ff_ffff;
                let mut code = signs.to_le_bytes().to_vec();
                code.extend_from_slice(self.file(c.at, c.len));
                let at = in_a64(4, true, 5);
                code.splice(at..at + 4, nearer.to_le_bytes());
                Some(vec![(c.at, code)])
            }
            _ => None,
        }
    }
}
