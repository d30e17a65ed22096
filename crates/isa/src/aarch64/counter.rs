//! The increment of a counter.
//!
//! A counter sits on an edge or in a block of the program's code and must preserve what that code still needs. No form
//! touches a flag; what costs is registers. `a`, `b`, `s` are dead registers, `c` the counter.
//!
//! | mode | dead | code | instructions |
//! |---|---|---|---|
//! | plain | two | `adrp a,c`, `ldr b,[a,#c]`, `add b,b,#1`, `str b,[a,#c]` | 4 |
//! | plain | one | the same between a store and a load of `b` | 6 |
//! | plain | none | the same between `stp a,b,[sp,#-16]!` and `ldp a,b,[sp],#16` | 6 |
//! | atomic, by an exclusive pair | three | `adrp a,c`, `add a,a,#c`, `ldxr b,[a]`, `add b,b,#1`, `stxr s,b,[a]`, `cbnz s,ldxr` | 6 |
//! | atomic, in one instruction | two | `adrp a,c`, `add a,a,#c`, `mov b,#1`, `stadd b,[a]` | 4 |
//! | atomic | fewer | the same with what is missing saved on the stack | up to 10, 6 |
//!
//! For comparison, llvm-bolt's sequence has 9 to 11 instructions with two round trips to the stack, or 6 in
//! its latest version, and needs `stadd` (or 8 and a call without).
//!
//! There is no red zone in the procedure call standard: what is below `sp` is not used, so a push is safe.
//! `sp` is aligned to 16 where it is used to address memory. A counter between an exclusive load and its
//! store would clear the monitor and make the loop around them endless: the rewriter does not put one there
//! ([`Traits::exclusive_load`](crate::Traits)).

use super::branch::{put, put_fixup};
use super::encode::{self, SP};
use crate::{Code, CounterMode, FixupKind, RegSet};

/// Registers in the order in which they are taken when dead: those first that nothing lives in for long.
/// Never `x18` (the platform's), `x29` and `x30` (unwinders look at them).
pub(super) const PREFERRED: [u8; 28] = [
    16, 17, 9, 10, 11, 12, 13, 14, 15, 8, 7, 6, 5, 4, 3, 2, 1, 0, 19, 20, 21, 22, 23, 24, 25, 26,
    27, 28,
];

/// Registers that a mode needs.
fn needed(mode: CounterMode) -> usize {
    match mode {
        CounterMode::Plain | CounterMode::AtomicOne => 2,
        CounterMode::Atomic | CounterMode::PerThread | CounterMode::Biased => 3,
    }
}

/// Registers to use, the dead ones first, and how many of them, from the end, must be saved.
fn registers(mode: CounterMode, live: RegSet) -> ([u32; 3], usize) {
    let needed = needed(mode);
    let is_live = |register: &u8| live.meets(RegSet(1 << register));
    let dead = PREFERRED.iter().filter(|r| !is_live(r));
    let all = dead.chain(PREFERRED.iter().filter(|r| is_live(r)));
    let mut found = [0; 3];
    for (place, register) in found.iter_mut().zip(all).take(needed) {
        *place = u32::from(*register);
    }
    let saved = found[..needed]
        .iter()
        .filter(|r| live.meets(RegSet(1 << **r)))
        .count();
    (found, saved)
}

/// Whether there is an instruction of the large system extensions: `ldadd` and its like, `swp`, `cas`.
pub fn has_atomic_one(bytes: &[u8]) -> bool {
    bytes.chunks_exact(4).any(|word| {
        let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        let operation =
            word & 0x3f20_0c00 == 0x3820_0000 && (word >> 15 & 1 == 0 || word >> 12 & 7 == 0);
        operation || word & 0x3fa0_7c00 == 0x08a0_7c00
    })
}

/// See [`crate::Encode::has_exclusive_load`].
pub fn has_exclusive_load(bytes: &[u8]) -> bool {
    bytes.chunks_exact(4).any(|word| {
        let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        // `caspa` has the place of pairs of bytes and half-words.
        let is_casp = word & 0x8020_0000 == 0x0020_0000;
        word & 0x3fc0_0000 == 0x0840_0000 && !is_casp
    })
}

/// Length of what [`put_counter`] appends; the table above.
pub fn counter_len(mode: CounterMode, live: RegSet) -> usize {
    let (_, saved) = registers(mode, live);
    let body = match mode {
        CounterMode::Plain | CounterMode::AtomicOne => 4,
        CounterMode::Atomic | CounterMode::PerThread | CounterMode::Biased => 6,
    };
    4 * (body + 2 * saved.div_ceil(2))
}

/// Appends an increment of `counter` that keeps what is in `live`; see [`crate::Counters::put_counter`].
pub fn put_counter<T: Copy>(out: &mut Code<T>, mode: CounterMode, live: RegSet, counter: T) {
    let (registers, saved) = registers(mode, live);
    let save = &registers[needed(mode) - saved..needed(mode)];
    let (mut down, mut on_stack) = (0, RegSet::EMPTY);
    let set = |pair: &[u32]| RegSet(pair.iter().fold(0, |set, r| set | 1 << r));
    for pair in save.chunks(2) {
        match *pair {
            [a, b] => put(out, encode::stp_pre(a, b, SP, -16)),
            [a] => put(out, encode::str_pre(a, SP, -16)),
            _ => {}
        }
        (down, on_stack) = (down + 16, on_stack.or(set(pair)));
        out.stack_is(down, on_stack);
    }
    put_increment(out, mode, registers, counter);
    for pair in save.chunks(2).rev() {
        match *pair {
            [a, b] => put(out, encode::ldp_post(a, b, SP, 16)),
            [a] => put(out, encode::ldr_post(a, SP, 16)),
            _ => {}
        }
        (down, on_stack) = (down - 16, on_stack.minus(set(pair)));
        out.stack_is(down, on_stack);
    }
}

/// Appends the increment with registers that may be destroyed.
pub(super) fn put_increment<T: Copy>(
    out: &mut Code<T>,
    mode: CounterMode,
    registers: [u32; 3],
    counter: T,
) {
    put_fixup(out, encode::adrp(registers[0]), FixupKind::Page, counter);
    put_increment_in_page(out, mode, registers, counter);
}

/// The same where the first register holds the counter's page already.
pub(super) fn put_increment_in_page<T: Copy>(
    out: &mut Code<T>,
    mode: CounterMode,
    [a, b, s]: [u32; 3],
    counter: T,
) {
    if mode == CounterMode::Plain {
        put_fixup(
            out,
            encode::ldr(b, a, 0),
            FixupKind::Low12 { scale: 3 },
            counter,
        );
        put(out, encode::add_imm(b, b, 1));
        put_fixup(
            out,
            encode::str(b, a, 0),
            FixupKind::Low12 { scale: 3 },
            counter,
        );
        return;
    }
    put_fixup(
        out,
        encode::add_imm(a, a, 0),
        FixupKind::Low12 { scale: 0 },
        counter,
    );
    put_add_one(out, mode, [a, b, s]);
}

/// Appends an addition of one to the word at `a`.
pub(super) fn put_add_one<T>(out: &mut Code<T>, mode: CounterMode, [a, b, s]: [u32; 3]) {
    match mode {
        CounterMode::Plain => {
            put(out, encode::ldr(b, a, 0));
            put(out, encode::add_imm(b, b, 1));
            put(out, encode::str(b, a, 0));
        }
        CounterMode::AtomicOne => {
            put(out, encode::movz(b, 1, 0));
            put(out, encode::stadd(b, a));
        }
        CounterMode::Atomic | CounterMode::PerThread | CounterMode::Biased => {
            put(out, encode::ldxr(b, a));
            put(out, encode::add_imm(b, b, 1));
            put(out, encode::stxr(s, b, a));
            put(out, encode::cbnz32(s, -3));
        }
    }
}
