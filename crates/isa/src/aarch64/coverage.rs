//! Counters of machine profiles: a flag for what ran, and calls with the order of first calls.
//!
//! | what | code | instructions | of which usually run |
//! |---|---|--:|--:|
//! | coverage | `adrp a,c`, `add a,a,#odd`, `sturb a,[a,#c]` | 3 | 3 |
//! | coverage, the flag within 1 MiB | `adr a,c+odd`, `sturb a,[a,#c]` | 2 | 2 |
//! | calls | `adrp x16,c`, `ldr w17,[x16,#c]`, `cbnz w17`, the slow way, `add w17,w17,#1`, `cbz w17`, `str w17,[x16,#c]` | 10 | 6 |
//! | calls and edges | `adrp`, `ldr`, `tst w17,#63`, `b.ne`, the slow way, `add`, `cbz`, `str` | 11 | 7 |
//! | the same in a block | `adrp`, `ldr`, `and w17,w17,#63`, `cbnz w17`, `add x16`, `mov x17,x30`, `bl slow`, `ldr`, `add`, `cbz`, `str` | 11 | 8 |
//! | the slow way | `add x16,x16,#c`, `mov x17,x30`, `bl slow`, `ldr w17,[x16,#c]` | | |
//!
//! **Coverage** takes one register. What is stored must not be zero, and a constant would need another
//! register; but the address can be formed so that its own lowest byte is 1 ([`FixupKind::Low12Odd`],
//! [`FixupKind::AdrOdd`]), which is near enough: the store's offset, nine bits with a sign, reaches the flag
//! from there. If no register is dead, one is saved on the stack.
//!
//! **Calls** take `x16` and `x17`, which the procedure call standard leaves to what is between a call and its
//! callee; where they may hold something all the same (in hand-written code, or where the function's own loop
//! passes through) they are saved on the stack. A count that overflows is not stored, so it saturates. In stubs edges
//! need flags, which mean nothing at an ordinary entry; where they may be live, calls are counted without. In blocks
//! the count is loaded again in place of that, which costs an instruction and touches no flag.
//!
//! The slow way gets the return address in `x17`, since the `bl` to it overwrites the link register, and puts
//! it back. So a counter must come before a `paciasp`, which changes that register: at entries they do, and
//! edges are recorded nowhere else. Functions that are emitted again have the counter there too, where pages are
//! guarded behind a `bti c`.
//!
//! There is no red zone: what is below `sp` is not used.

use super::branch::{put, put_fixup};
use super::counter::PREFERRED;
use super::encode::{self, SP, cond};
use super::runtime::assembler::Assembler;
use super::{NZCV, SCRATCH};
use crate::coverage::{CallCounter, CallPlace, PERIOD, PLACES, SlowConfig};
use crate::{Code, FixupKind, OutOfRange, RegSet};

/// The counter's address, or its page.
const AT: u32 = 16;
/// A count; on the slow way the return address.
const COUNT: u32 = 17;
const LINK: u32 = 30;
const ZR: u32 = 31;

fn dead(live: RegSet) -> Option<u32> {
    let is_dead = |register: &&u8| !live.meets(RegSet(1 << **register));
    PREFERRED
        .iter()
        .find(is_dead)
        .map(|register| u32::from(*register))
}

/// Length of what [`put_covered`] appends.
pub fn covered_len(live: RegSet, near: bool) -> usize {
    let saved = if dead(live).is_some() { 0 } else { 8 };
    saved + if near { 8 } else { 12 }
}

/// Appends what sets the flag `covered`.
pub fn put_covered<T: Copy>(out: &mut Code<T>, live: RegSet, near: bool, covered: T) {
    let free = dead(live);
    let a = free.unwrap_or(AT);
    if free.is_none() {
        put(out, encode::str_pre(a, SP, -16));
        out.stack_is(16, RegSet(1 << a));
    }
    if near {
        put_fixup(out, encode::adr(a), FixupKind::AdrOdd, covered);
    } else {
        put_fixup(out, encode::adrp(a), FixupKind::Page, covered);
        put_fixup(out, encode::add_imm(a, a, 0), FixupKind::Low12Odd, covered);
    }
    put_fixup(out, encode::sturb(a, a), FixupKind::FromOdd, covered);
    if free.is_none() {
        put(out, encode::ldr_post(a, SP, 16));
        out.stack_is(0, RegSet::EMPTY);
    }
}

/// Appends the counting of a call.
pub fn put_call<T: Copy>(out: &mut Code<T>, live: RegSet, counter: CallCounter<T>) {
    let low = FixupKind::Low12 { scale: 2 };
    let keep = live.meets(SCRATCH);
    let edges = counter.edges.filter(|_| match counter.place {
        CallPlace::Entry => !live.meets(NZCV),
        CallPlace::EntryAgain => false,
        CallPlace::Block => true,
    });
    if keep {
        put(out, encode::stp_pre(AT, COUNT, SP, -16));
        out.stack_is(16, SCRATCH);
    }
    put_fixup(out, encode::adrp(AT), FixupKind::Page, counter.count);
    put_fixup(out, encode::ldr32(COUNT, AT, 0), low, counter.count);
    // Over the slow way.
    match edges {
        Some(_) if counter.place == CallPlace::Block => {
            put(out, encode::and32_63(COUNT, COUNT));
            // The count is loaded again there.
            put(out, encode::cbnz32(COUNT, 4));
        }
        Some(_) => {
            put(out, encode::tst32_63(COUNT));
            put(out, encode::b_cond(cond::NE, 5));
        }
        None => put(out, encode::cbnz32(COUNT, 5)),
    }
    put_fixup(
        out,
        encode::add_imm(AT, AT, 0),
        FixupKind::Low12 { scale: 0 },
        counter.count,
    );
    put(out, encode::mov(COUNT, LINK));
    out.link_is(COUNT as u8);
    put_fixup(
        out,
        encode::BL,
        FixupKind::Branch26,
        edges.unwrap_or(counter.slow),
    );
    out.link_is_back();
    put_fixup(out, encode::ldr32(COUNT, AT, 0), low, counter.count);
    put(out, encode::add32_imm(COUNT, COUNT, 1));
    put(out, encode::cbz32(COUNT, 2));
    put_fixup(out, encode::str32(COUNT, AT, 0), low, counter.count);
    if keep {
        put(out, encode::ldp_post(AT, COUNT, SP, 16));
        out.stack_is(0, RegSet::EMPTY);
    }
}

/// Where registers are saved, from `sp` on: `x0` to `x9`, the two of the link, flags.
const FRAME: i32 = 112;
const LINKS: i32 = 80;
const FLAGS: u32 = 96;

/// The slow way: called with the counter's address in `x16` and the return address in `x17`. It leaves the
/// page of the counter's address in `x16`, anything in `x17`, the return address in the link register, and
/// everything else as it was.
pub fn slow(config: SlowConfig) -> Result<Vec<u8>, OutOfRange> {
    let mut a = Assembler::default();
    let [start, again, timed] = a.labels();
    a.bind(start);
    a.put(&[encode::stp_pre(0, 1, SP, -FRAME)]);
    for pair in 1..5 {
        a.put(&[encode::stp(2 * pair, 2 * pair + 1, SP, 16 * pair as i32)]);
    }
    a.put(&[
        encode::stp(LINK, COUNT, SP, LINKS),
        encode::mrs_nzcv(0),
        encode::str(0, SP, FLAGS),
    ]);
    // x1: the load bias.
    a.adr(1, start);
    a.number(0, config.at);
    a.put(&[encode::sub(1, 1, 0), encode::ldr32(0, AT, 4)]);
    a.cbnz(0, timed);
    a.number(2, config.clock);
    a.put(&[encode::add(2, 2, 1)]);
    a.bind(again);
    a.put(&[
        encode::ldxr(0, 2),
        encode::add_imm(0, 0, 1),
        encode::stxr(3, 0, 2),
    ]);
    a.cbnz(3, again);
    a.put(&[encode::str32(0, AT, 4)]);
    a.bind(timed);
    if config.entries > 0 {
        put_edge(&mut a, config);
    }
    a.put(&[
        encode::ldr(0, SP, FLAGS),
        encode::msr_nzcv(0),
        // The other way round.
        encode::ldp(COUNT, LINK, SP, LINKS),
        encode::page_of(AT, AT),
    ]);
    for pair in 1..5 {
        a.put(&[encode::ldp(2 * pair, 2 * pair + 1, SP, 16 * pair as i32)]);
    }
    // Not a jump, which would need a landing pad.
    a.put(&[encode::ldp_post(0, 1, SP, FRAME), encode::ret(COUNT)]);
    a.finish()
}

/// Records where the function was called from: `x17`. The bias is in `x1`; destroys `x0` to `x9`.
fn put_edge(a: &mut Assembler, config: SlowConfig) {
    let [near, weighed, probe, claim, taken] = a.labels();
    let [next, fewest, more, found] = a.labels();
    // From outside the program, or too far away to be written down: no place.
    a.put(&[
        encode::sub(0, COUNT, 1),
        encode::sxtw(2, 0),
        encode::cmp(2, 0),
    ]);
    a.b_cond(cond::EQ, near);
    a.put(&[encode::mov(0, ZR)]);
    a.bind(near);
    // x4: what the entry must say; x3: the table; x8: the mask.
    a.number(3, config.counters.wrapping_sub(super::UNIT));
    a.put(&[
        encode::add(3, 3, 1),
        encode::sub(4, AT, 3),
        encode::orr(4, 4, 0) | 32 << 10,
    ]);
    a.number(5, 0x9e37_79b9_7f4a_7c15);
    a.put(&[encode::mul(0, 4, 5), encode::lsr(0, 0, 32)]);
    a.number(3, config.table);
    a.put(&[encode::add(3, 3, 1)]);
    // The first call stands for itself, the others for a period.
    a.small(5, PERIOD as u16);
    a.put(&[encode::ldr32(2, AT, 0)]);
    a.cbnz(2, weighed);
    a.small(5, 1);
    a.bind(weighed);
    // x6: the entry with the fewest calls.
    a.put(&[encode::mov(6, ZR)]);
    a.small(7, PLACES as u16);
    a.bind(probe);
    a.number(8, u64::from(config.entries) - 1);
    a.put(&[encode::and(0, 0, 8), encode::add_lsl(2, 3, 0, 4)]);
    // Claims an empty entry, unless another thread has.
    a.bind(claim);
    a.put(&[encode::ldaxr(9, 2)]);
    a.cbnz(9, taken);
    a.put(&[encode::stlxr(8, 4, 2)]);
    a.cbnz(8, claim);
    a.b(found);
    a.bind(taken);
    a.put(&[encode::CLREX, encode::cmp(9, 4)]);
    a.b_cond(cond::EQ, found);
    a.bind(next);
    a.cbz(6, fewest);
    a.put(&[
        encode::ldr(8, 2, 8),
        encode::ldr(9, 6, 8),
        encode::cmp(8, 9),
    ]);
    a.b_cond(cond::HS, more);
    a.bind(fewest);
    a.put(&[encode::mov(6, 2)]);
    a.bind(more);
    a.put(&[encode::add_imm(0, 0, 1), encode::sub_imm(7, 7, 1)]);
    a.cbnz(7, probe);
    a.put(&[
        encode::mov(2, 6),
        encode::str(ZR, 2, 8),
        encode::str(4, 2, 0),
    ]);
    a.bind(found);
    a.put(&[
        encode::add_imm(2, 2, 8),
        encode::ldxr(8, 2),
        encode::add(8, 8, 5),
        encode::stxr(9, 8, 2),
        encode::cbnz32(9, -3),
    ]);
}

#[cfg(test)]
mod tests {
    use super::super::AArch64;
    use super::*;
    use crate::coverage::calls;
    use crate::{Decode, Encode};

    fn words(code: &[u8]) -> Vec<u32> {
        let word = |w: &[u8]| u32::from_le_bytes([w[0], w[1], w[2], w[3]]);
        code.chunks_exact(4).map(word).collect()
    }

    #[test]
    fn the_flag_is_covered_by_a_byte_that_is_never_zero() {
        for flag in [0x41_0000u64, 0x41_0001, 0x41_02ff, 0x41_0f80, 0x41_0fff] {
            let mut out = Code::default();
            put_covered(&mut out, RegSet(1 << 16), false, flag);
            assert_eq!(out.bytes.len(), covered_len(RegSet(1 << 16), false));
            let place = 0x1000;
            for f in &out.fixups {
                let at = f.at as usize;
                let place = place + u64::from(f.at);
                AArch64::write_field(f.kind, &mut out.bytes[at..], place, f.target)
                    .expect("in reach");
            }
            let [adrp, add, store] = words(&out.bytes)[..] else {
                panic!("three instructions");
            };
            let page =
                AArch64::read_field(FixupKind::Page, &adrp.to_le_bytes(), place).expect("a word");
            let address = page + u64::from(add >> 10 & 0xfff);
            assert_eq!(address as u8, 1);
            let offset = i64::from((store << 11) as i32 >> 23);
            assert_eq!(address.wrapping_add_signed(offset), flag);
            for word in [adrp, add, store] {
                assert_eq!(word & 31, 17, "x16 is live, so x17 is taken");
            }
        }
    }

    #[test]
    fn a_near_flag_is_covered_by_two_instructions_up_to_a_mebibyte_away() {
        let place = 0x40_0000;
        for flag in [0x30_0100u64, 0x41_0000, 0x41_0001, 0x41_02ff, 0x4f_ffff] {
            let mut out = Code::default();
            put_covered(&mut out, RegSet(1 << 16), true, flag);
            assert_eq!(out.bytes.len(), 8);
            assert_eq!(covered_len(RegSet(1 << 16), true), 8);
            for f in &out.fixups {
                let at = f.at as usize;
                let place = place + u64::from(f.at);
                AArch64::write_field(f.kind, &mut out.bytes[at..], place, f.target)
                    .expect("in reach");
            }
            let insn = AArch64::decode(&out.bytes, place).expect("adr");
            let address = insn.field.expect("an address").target;
            assert_eq!(address as u8, 1, "what is stored is not zero");
            let [_, store] = words(&out.bytes)[..] else {
                panic!("two instructions");
            };
            let offset = i64::from((store << 11) as i32 >> 23);
            assert_eq!(address.wrapping_add_signed(offset), flag);
        }
        let mut out = Code::default();
        put_covered(&mut out, RegSet(1 << 16), true, 0x50_0100u64);
        let (f, at) = (&out.fixups[0], out.fixups[0].at as usize);
        assert!(AArch64::write_field(f.kind, &mut out.bytes[at..], place, f.target).is_err());
    }

    #[test]
    fn a_register_is_saved_if_none_is_dead() {
        let mut out = Code::default();
        put_covered(&mut out, RegSet::ALL, false, 0u8);
        assert_eq!(out.bytes.len(), 20);
        assert_eq!(covered_len(RegSet::ALL, false), 20);
        let words = words(&out.bytes);
        assert_eq!(words[0], encode::str_pre(16, SP, -16));
        assert_eq!(words[4], encode::ldr_post(16, SP, 16));
    }

    #[test]
    fn calls_take_the_branch_over_the_slow_way_and_edges_need_dead_flags_in_stubs() {
        use CallPlace::{Block, Entry, EntryAgain};
        for (live, edges, place, len, slow) in [
            (RegSet::EMPTY, false, Entry, 10, 2),
            (RegSet::EMPTY, true, Entry, 11, 3),
            (NZCV, true, Entry, 10, 2),
            (RegSet::EMPTY, true, EntryAgain, 10, 2),
            (RegSet::EMPTY, false, Block, 10, 2),
            (RegSet::EMPTY, true, Block, 11, 3),
            (NZCV, true, Block, 11, 3),
            (RegSet::ALL, true, Block, 13, 3),
            (RegSet::ALL, true, Entry, 12, 2),
        ] {
            let code = calls::<AArch64>(live, edges, place);
            let words = words(&code.bytes);
            assert_eq!(words.len(), len);
            let call = code.fixups.iter().find(|f| f.kind == FixupKind::Branch26);
            assert_eq!(call.expect("a call").target, slow);
            // It lands after the load that follows the call, or there, where the count was lost.
            let from = words
                .iter()
                .position(|w| matches!(w >> 24, 0x35 | 0x54))
                .expect("a branch");
            let over = (words[from] >> 5 & 0x7ffff) as usize;
            let lost = words.contains(&encode::and32_63(17, 17));
            let add = from + over + usize::from(lost);
            assert_eq!(words[add], encode::add32_imm(17, 17, 1));
            assert_eq!(words[add - 2], encode::BL);
            assert_eq!(lost, slow == 3 && place == Block);
        }
    }

    #[test]
    fn the_slow_way_is_made_of_instructions_and_returns() {
        for entries in [0, 256, 1 << 20] {
            let code = slow(SlowConfig {
                at: 0x40_0000,
                clock: 0x50_0000,
                counters: 0x50_0000,
                table: 0x51_0000,
                entries,
                zone: false,
            })
            .expect("it can be assembled");
            let mut last = None;
            let stopped = AArch64::sweep(&code, 0x40_0000, |i| {
                last = Some(i.flow);
                true
            });
            assert_eq!((stopped, last), (None, Some(crate::Flow::Return)));
        }
    }
}
