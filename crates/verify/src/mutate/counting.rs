//! Faults in instrumented code.
//!
//! They are put into copies of programs that count at edges and are proved. The counters are found by their shapes, the
//! same ones that `postlink-isa` describes; the checker knows of no shape.
//!
//! | machine | counter |
//! |---|---|
//! | AArch64 | `adrp a`, `ldr b,[a,#c]`, `add b,b,#1`, `str b,[a,#c]`, perhaps between a store and a load of `a` and `b` on the stack |
//! | AArch64 | `adrp a`, `add a,a,#c`, `ldxr b,[a]`, `add b,b,#1`, `stxr s,b,[a]`, `cbnz s` |
//! | x86-64 | `mov r,fs:[0]`, `cmp r,[owner]`, `jne`, `inc [o]`, `jne`, `inc [c]`, perhaps between `lahf` and `sahf` |
//! | x86-64 | `inc [c]`; or `mov r,[c]`, `lea r,[r+1]`, `mov [c],r`, perhaps with `rax` on the stack, below the red zone |
//!
//! What the checker shows is that a program does what it did, so each fault here is one that the program
//! could notice, or one after which some memory does not count. That every counter is at the place that the
//! profile takes it for is not shown by it, and no fault of these: counts are compared with those of a
//! simulator.

use super::{Edit, Faults, Kind, Site};
use crate::addr::{InputAddr, OutputAddr};
use crate::arch::aarch64::{AArch64, word};
use crate::arch::step::flag;
use crate::arch::x86_64::X86_64;
use crate::arch::{Arch, FieldKind, Flow};
use crate::files::claim::Range;

const NOP: u32 = 0xd503_201f;

/// A counter on AArch64.
struct Counter<'s> {
    /// `adrp` to `str`, or to `cbnz`.
    parts: &'s [Site],
    exclusive: bool,
    /// The store and the load of its registers, and whether it is the only store.
    saved: Option<(&'s Site, &'s Site)>,
    alone: bool,
    /// The instruction after.
    next: Option<&'s Site>,
}

/// A counter on x86-64.
struct Increment<'s> {
    /// `mov`, `lea`, `mov`, or `inc`.
    parts: &'s [Site],
    /// What makes space on the stack, `push`, `pop`, and what gives it back.
    saved: Option<[&'s Site; 4]>,
    next: Option<&'s Site>,
}

/// Registers that an instruction is known to read: what is not known reads all, and may read none.
fn known_reads<A: Arch>(bytes: &[u8]) -> u32 {
    let reads = A::effects(bytes).reads;
    if reads.count_ones() <= 3 { reads } else { 0 }
}

fn pushes(w: u32) -> bool {
    w & 0xffff_83e0 == 0xa9bf_03e0 & 0xffff_83e0 || w & 0xffff_ffe0 == 0xf81f_0fe0
}

fn pops(w: u32) -> bool {
    w & 0xffff_83e0 == 0xa8c1_03e0 & 0xffff_83e0 || w & 0xffff_ffe0 == 0xf841_07e0
}

impl Faults<'_> {
    pub(super) fn counting_edits(&self, kind: Kind) -> Vec<Edit> {
        let areas: Vec<Range> = self
            .output
            .loads()
            .iter()
            .filter(|s| s.is_writable() && !s.is_exec())
            // A segment of their own, or what the last one has after its end in the input.
            .map(|s| Range {
                start: s.addr.max(self.input.extent().1),
                end: s.end(),
            })
            .filter(|r| r.start < r.end)
            .collect();
        if areas.is_empty() {
            return Vec::new();
        }
        if kind == Kind::RecorderLeaves {
            return self.recorders();
        }
        let counts = |at: u64| areas.iter().any(|r| r.contains(at));
        if self.arm {
            let counters = self.counters(&counts);
            if kind == Kind::CounterBetweenExclusives {
                return counters.iter().filter_map(|c| self.between(c)).collect();
            }
            let spoilt = counters.iter().filter_map(|c| self.spoil_counter(kind, c));
            return spoilt.collect();
        }
        if Kind::COUNTING_X86_64.contains(&kind) {
            let owned = 0..self.sites.len();
            return owned.filter_map(|i| self.spoil_owned(kind, i)).collect();
        }
        let spoil = |c: &Increment<'_>| self.spoil_increment(kind, c);
        self.increments(&counts).iter().filter_map(spoil).collect()
    }

    /// A word of the program's own that is written: where no counter is.
    pub(super) fn own_data(&self) -> Option<u64> {
        let data = |l: &&crate::files::elf::Segment| l.is_writable() && l.file_size >= 64;
        let load = self.input.loads().iter().find(data)?;
        Some(load.addr.next_multiple_of(16))
    }

    /// What the program does after a counter: jumps there are followed. Nothing where another counter begins,
    /// for which registers are saved that need not be live.
    fn behind<'s>(&'s self, mut site: &'s Site) -> Option<&'s Site> {
        for _ in 0..4 {
            let Flow::Jump(target) = site.insn.flow else {
                break;
            };
            site = self.site_at(target)?;
        }
        let saves = if self.arm {
            self.word(site).is_some_and(pushes)
        } else {
            self.bytes(site) == [0x50]
        };
        let straight = matches!(site.insn.flow, Flow::Next | Flow::Branch { .. });
        (straight && !saves).then_some(site)
    }

    fn words<const N: usize>(&self, sites: &[Site]) -> Option<[u32; N]> {
        let sites: &[Site; N] = sites.first_chunk()?;
        let mut words = [0; N];
        for (i, (w, site)) in words.iter_mut().zip(sites).enumerate() {
            *w = word(self.bytes(site))?;
            if site.addr != sites.first()?.addr + 4 * i as u64 {
                return None;
            }
        }
        Some(words)
    }

    fn counters(&self, counts: &dyn Fn(u64) -> bool) -> Vec<Counter<'_>> {
        let mut found = Vec::new();
        for (i, first) in self.sites.iter().enumerate() {
            let page = |f: &crate::arch::Field| f.kind == FieldKind::Page && counts(f.target);
            if !first.insn.field.as_ref().is_some_and(page) {
                continue;
            }
            let rest = self.sites.get(i..).unwrap_or(&[]);
            let is_plain = self
                .words::<4>(rest)
                .is_some_and(|[adrp, load, add, store]| {
                    let (a, b) = (adrp & 31, load & 31);
                    load & 0xffc0_03e0 == 0xf940_0000 | a << 5
                        && add == 0x9100_0400 | b << 5 | b
                        && store & 0xffc0_03ff == 0xf900_0000 | a << 5 | b
                });
            let exclusive = self.words::<6>(rest).is_some_and(|w| {
                let [adrp, low, load, add, store, again] = w;
                let (a, b) = (adrp & 31, load & 31);
                low & 0xffc0_03ff == 0x9100_0000 | a << 5 | a
                    && load & 0xffff_ffe0 == 0xc85f_7c00 | a << 5
                    && add == 0x9100_0400 | b << 5 | b
                    && store & 0xffe0_ffff == 0xc800_7c00 | a << 5 | b
                    && again >> 24 == 0x35
            });
            let len = match (is_plain, exclusive) {
                (true, _) => 4,
                (_, true) => 6,
                _ => continue,
            };
            let (parts, behind) = rest.split_at(len);
            let store = i.checked_sub(1).and_then(|i| self.sites.get(i));
            let saved = store.zip(behind.first()).filter(|(store, load)| {
                store.addr + 4 == first.addr
                    && self.word(store).is_some_and(pushes)
                    && self.word(load).is_some_and(pops)
            });
            let before = i.checked_sub(2).and_then(|i| self.sites.get(i));
            let two = before.is_some_and(|s| self.word(s).is_some_and(pushes));
            found.push(Counter {
                alone: !two,
                parts,
                exclusive,
                saved,
                next: behind
                    .get(usize::from(saved.is_some()))
                    .and_then(|s| self.behind(s)),
            });
        }
        found
    }

    fn spoil_counter(&self, kind: Kind, c: &Counter<'_>) -> Option<Edit> {
        let first = c.parts.first()?;
        let what = format!("the counter at {:#x}", first.addr);
        let put = |changes: &[(&Site, u32)]| {
            let changes = changes
                .iter()
                .map(|(s, w)| (s.at, w.to_le_bytes().to_vec()));
            Some(Edit {
                what: what.clone(),
                changes: changes.collect(),
            })
        };
        let part = |i: usize| {
            let site = c.parts.get(i)?;
            Some((site, self.word(site)?))
        };
        let (add, plus) = part(if c.exclusive { 3 } else { 2 })?;
        match kind {
            Kind::CounterElsewhere => {
                let page = first.insn.field?.target;
                let pages = (self.own_data()? & !0xfff).wrapping_sub(page) as i64 >> 12;
                self.shift_a64(first, pages)
            }
            Kind::CounterMisaligned => {
                let (low, w) = part(1).filter(|_| c.exclusive)?;
                put(&[(low, w ^ 4 << 10)])
            }
            Kind::CounterTorn => {
                let (store, w) = part(3).filter(|_| !c.exclusive)?;
                put(&[(store, w ^ 1 << 10)])
            }
            Kind::IncrementLost => put(&[(add, NOP)]),
            Kind::IncrementTwice => put(&[(add, plus ^ 3 << 10)]),
            Kind::LiveFlags => put(&[(add, plus | 1 << 29)]),
            Kind::LiveRegister => {
                let next = c.next.filter(|_| c.saved.is_none() && !c.exclusive)?;
                let ((load, l), (store, s)) = (part(1)?, part(3)?);
                let a = self.word(first)? & 31;
                let reads = known_reads::<AArch64>(self.bytes(next)) & 0x7fff_ffff & !(1 << a);
                let reg = (reads != 0).then(|| reads.trailing_zeros())?;
                let with = |w: u32| w & !31 | reg;
                let sum = 0x9100_0400 | reg << 5 | reg;
                put(&[(load, with(l)), (add, sum), (store, with(s))])
            }
            Kind::SpillOverStack
            | Kind::SpillLost
            | Kind::RestoreWrong
            | Kind::RestoreLost
            | Kind::StackMoved => {
                let (store, load) = c.saved?;
                let (s, l) = (self.word(store)?, self.word(load)?);
                let two = l >> 24 == 0xa8;
                // Whether it matters what the registers hold.
                let reads = c
                    .next
                    .map_or(0, |next| known_reads::<AArch64>(self.bytes(next)));
                let both = 1 << (l & 31) | if two { 1 << (l >> 10 & 31) } else { 0 };
                let stack = matches!(kind, Kind::SpillOverStack | Kind::StackMoved);
                if !stack && reads & both == 0 || stack && !c.alone {
                    return None;
                }
                match kind {
                    // Above the stack pointer, which does not move.
                    Kind::SpillOverStack if two => {
                        let at = |w: u32| w & 0x0040_7fff | 0xa900_0000;
                        put(&[(store, at(s)), (load, at(l))])
                    }
                    Kind::SpillOverStack => {
                        put(&[(store, 0xf900_03e0 | s & 31), (load, 0xf940_03e0 | l & 31)])
                    }
                    // sub sp, sp, #16
                    Kind::SpillLost => put(&[(store, 0xd100_43ff)]),
                    Kind::RestoreWrong if two => {
                        put(&[(load, l & !0x7c1f | (l & 31) << 10 | l >> 10 & 31)])
                    }
                    Kind::RestoreWrong => put(&[(load, l ^ 1)]),
                    // add sp, sp, #16
                    Kind::RestoreLost => put(&[(load, 0x9100_43ff)]),
                    _ if two => put(&[(load, l ^ 6 << 15)]),
                    _ => put(&[(load, l ^ 0x30 << 12)]),
                }
            }
            _ => None,
        }
    }

    /// The exclusive load after a counter before it: then the counter is between it and its store.
    fn between(&self, c: &Counter<'_>) -> Option<Edit> {
        let (first, next) = (c.parts.first()?, c.next.filter(|_| c.saved.is_none())?);
        let load = self.word(next)?;
        let near = first.addr >> 12 == (next.addr + 4) >> 12;
        let exclusive = load & 0x3fc0_0000 == 0x0840_0000;
        if !exclusive || !near || next.addr != first.addr + 4 * c.parts.len() as u64 {
            return None;
        }
        let mut bytes = load.to_le_bytes().to_vec();
        bytes.extend_from_slice(self.file(first.at, 4 * c.parts.len()));
        Some(Edit::new(
            format!("the counter at {:#x}", first.addr),
            first.at,
            &bytes,
        ))
    }

    fn increments(&self, counts: &dyn Fn(u64) -> bool) -> Vec<Increment<'_>> {
        let mut found = Vec::new();
        for (i, first) in self.sites.iter().enumerate() {
            let access = |f: &crate::arch::Field| f.kind == FieldKind::Accesses && counts(f.target);
            if !first.insn.field.as_ref().is_some_and(access) {
                continue;
            }
            let rest = self.sites.get(i..).unwrap_or(&[]);
            let bytes = |i: usize| rest.get(i).map_or(&b""[..], |s| self.bytes(s));
            let len = match (bytes(0), bytes(1), bytes(2)) {
                ([_, 0x8b, ..], [_, 0x8d, ..], [_, 0x89, ..]) => 3,
                ([0x48, 0xff, 5, ..] | [0xf0, 0x48, 0xff, 5, ..], ..) => 1,
                _ => continue,
            };
            let (parts, behind) = rest.split_at(len);
            let before = i.checked_sub(2).and_then(|i| self.sites.get(i..i + 2));
            let saved = match (before, behind) {
                (Some([room, push]), [pop, back, ..])
                    if self.bytes(push) == [0x50]
                        && self.bytes(pop) == [0x58]
                        && self.bytes(room).starts_with(&[0x48, 0x8d, 0x64, 0x24]) =>
                {
                    Some([room, push, pop, back])
                }
                _ => None,
            };
            found.push(Increment {
                parts,
                saved,
                next: behind
                    .get(if saved.is_some() { 2 } else { 0 })
                    .and_then(|s| self.behind(s)),
            });
        }
        found
    }

    fn spoil_increment(&self, kind: Kind, c: &Increment<'_>) -> Option<Edit> {
        let first = c.parts.first()?;
        let what = format!("the counter at {:#x}", first.addr);
        let put = |changes: Vec<(usize, Vec<u8>)>| {
            Some(Edit {
                what: what.clone(),
                changes,
            })
        };
        // All accesses of the counter, moved.
        let by = |by: i64, sites: &[Site]| {
            let mut changes = Vec::new();
            for s in sites {
                let Some(f) = s.insn.field else { continue };
                let at = s.at + usize::from(f.at);
                let old = i32::from_le_bytes(self.file(at, 4).try_into().ok()?);
                let new = i32::try_from(i64::from(old) + by).ok()?;
                changes.push((at, new.to_le_bytes().to_vec()));
            }
            put(changes)
        };
        let three = || match c.parts {
            [load, sum, store] => Some((load, sum, store)),
            _ => None,
        };
        let last = |s: &Site| s.at + usize::from(s.insn.len) - 1;
        match kind {
            Kind::CounterElsewhere => {
                let target = first.insn.field?.target;
                by(self.own_data()?.wrapping_sub(target) as i64, c.parts)
            }
            Kind::CounterMisaligned => by(4, c.parts),
            Kind::CounterTorn => by(8, std::slice::from_ref(three()?.2)),
            Kind::IncrementLost => put(vec![(last(three()?.1), vec![0])]),
            Kind::IncrementTwice => put(vec![(last(three()?.1), vec![2])]),
            Kind::LiveFlags => {
                // add r, 1
                let ((_, sum, _), next) = (three()?, c.next?);
                let bytes = self.bytes(sum);
                let reads = X86_64::effects(self.bytes(next)).flag_reads;
                let (rex, modrm) = (*bytes.first()?, *bytes.get(2)?);
                if bytes.len() != 4 || reads == 0 || reads == flag::ALL {
                    return None;
                }
                let add = [0x48 | rex & 1, 0x83, 0xc0 | modrm & 7, 1];
                put(vec![(sum.at, add.to_vec())])
            }
            Kind::LiveRegister => {
                let ((load, sum, store), next) = (three()?, c.next?);
                let reads = known_reads::<X86_64>(self.bytes(next)) & 0xefef;
                if reads == 0 || c.saved.is_some() || sum.insn.len != 4 {
                    return None;
                }
                let reg = reads.trailing_zeros() as u8;
                let (high, low) = (reg >> 3, reg & 7);
                let access = |s: &Site| {
                    let mut bytes = self.bytes(s).to_vec();
                    if let [rex, _, modrm, ..] = &mut bytes[..] {
                        (*rex, *modrm) = (0x48 | high << 2, 5 | low << 3);
                    }
                    (s.at, bytes)
                };
                let lea = [0x48 | high << 2 | high, 0x8d, 0x40 | low << 3 | low, 1];
                put(vec![access(load), (sum.at, lea.to_vec()), access(store)])
            }
            Kind::SpillOverStack => {
                let [room, _, _, back] = c.saved?;
                let down = (-16i32).to_le_bytes().to_vec();
                let end = back.at + usize::from(back.insn.len);
                put(vec![(last(room), vec![16]), (end - 4, down)])
            }
            Kind::RestoreWrong | Kind::RestoreLost => {
                let pop = c.saved?[2];
                let live = known_reads::<X86_64>(self.bytes(c.next?)) & 1 != 0;
                // pop rcx, nop
                let other = if kind == Kind::RestoreWrong {
                    0x59
                } else {
                    0x90
                };
                live.then(|| put(vec![(pop.at, vec![other])]))?
            }
            Kind::StackMoved => {
                let back = c.saved?[3];
                let end = back.at + usize::from(back.insn.len);
                put(vec![(end - 4, 136u32.to_le_bytes().to_vec())])
            }
            _ => None,
        }
    }

    /// Of the biased counter whose first instruction is site `i`: the thread's identity is read from elsewhere, or
    /// into a register that lives, or flags that live are lost.
    fn spoil_owned(&self, kind: Kind, i: usize) -> Option<Edit> {
        let [load, compare, branch, own, over, shared, after, ..] = self.sites.get(i..)? else {
            return None;
        };
        let bytes = self.bytes(load);
        let [0x64, rex, 0x8b, modrm, 0x25, 0, 0, 0, 0] = *bytes else {
            return None;
        };
        let branches = |s: &Site| matches!(self.bytes(s), [0x75, _]);
        let counts = |s: &Site| matches!(self.bytes(s), [.., 0xff, 5, _, _, _, _]);
        if !branches(branch) || !branches(over) || !counts(own) || !counts(shared) {
            return None;
        }
        let what = format!("the counter at {:#x}", load.addr);
        match kind {
            Kind::OwnerElsewhere => Some(Edit::new(what, load.at + 5, &[8])),
            Kind::OwnerRegisterLive => {
                let reads = known_reads::<X86_64>(self.bytes(self.behind(after)?)) & 0xefef;
                let own = modrm >> 3 & 7 | (rex & 4) << 1;
                let reads = reads & !(1 << own);
                if reads == 0 {
                    return None;
                }
                let reg = reads.trailing_zeros() as u8;
                let (rex, field) = (0x48 | reg >> 3 << 2, (reg & 7) << 3);
                Some(Edit {
                    what,
                    changes: vec![
                        (load.at + 1, vec![rex]),
                        (load.at + 3, vec![0x04 | field]),
                        (compare.at, vec![rex]),
                        (compare.at + 2, vec![0x05 | field]),
                    ],
                })
            }
            Kind::OwnerFlagsLost => {
                let behind = self.sites.get(i + 6..)?;
                let sahf = |s: &Site| self.bytes(s) == [0x9e];
                let restore = behind.iter().take(2).position(sahf)?;
                // mov rax,r; pop; lea rsp,[rsp+128]
                let restores = |s: &&Site| {
                    let bytes = self.bytes(s);
                    matches!(bytes, [0x48 | 0x4c, 0x89, 0xc0..=0xff] | [0x58..=0x5a])
                        || bytes.starts_with(&[0x48, 0x8d, 0xa4, 0x24, 0x80])
                };
                let mut rest = behind.get(restore + 1..)?.iter();
                let next = self.behind(rest.find(|s| !restores(s))?)?;
                let reads = X86_64::effects(self.bytes(next)).flag_reads;
                let live = reads != 0 && reads != flag::ALL;
                let restore = behind.get(restore).filter(|_| live)?;
                Some(Edit::new(what, restore.at, &[0x90]))
            }
            _ => None,
        }
    }

    /// The last jumps of recorders go through another register or place.
    fn recorders(&self) -> Vec<Edit> {
        let mut edits = Vec::new();
        for s in &self.sites {
            let Flow::Call(mut at) = s.insn.flow else {
                continue;
            };
            if self
                .claim
                .functions
                .iter()
                .any(|f| f.in_new(OutputAddr::new(at)) || f.in_old(InputAddr::new(at)))
            {
                continue;
            }
            let what = format!("the recorder at {at:#x}");
            for _ in 0..48 {
                let decoded = self
                    .output
                    .bytes_from(at)
                    .and_then(|b| Some((b, self.decode(b, at)?)));
                let (Some((bytes, insn)), Some(place)) = (decoded, self.offset(at)) else {
                    break;
                };
                let len = usize::from(insn.len);
                if !matches!(insn.flow, Flow::IndirectJump { .. }) {
                    at += len as u64;
                    continue;
                }
                let (i, bit) = if self.arm { (0, 1 << 5) } else { (len - 1, 1) };
                if let Some(byte) = bytes.get(i) {
                    edits.push(Edit::new(what, place + i, &[byte ^ bit]));
                }
                break;
            }
        }
        edits
    }
}
