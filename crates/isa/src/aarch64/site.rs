//! Recorders of indirect calls. The tables, and what they mean, are those of [`x86_64::site`](crate::x86_64::site).
//!
//! `blr xN` becomes a `bl` of its recorder, an indirect tail jump a `b`. The recorder may use `x16`, `x17`
//! and the flags, which hold nothing at a call, and must leave everything else as it is. Beside it what
//! it is in a program at a fixed address, where a target is its link-time address and a register more is
//! free:
//!
//! ```text
//!         adrp x16, bias       ldr  x16, [x16, #bias]
//!         sub  x17, xN, x16    the target as a link-time address
//!         adrp x16, t0         ldr  x16, [x16, #t0]           adrp x16, t0         ldr  x17, [x16, #t0]
//!         cmp  x16, x17                                       cmp  x17, xN
//!         b.ne miss                                           b.ne miss
//!         adrp x16, c0         then an increment with x17     ldr  x17, [x16, #c0]; add x17, x17, #1; str x17, [x16, #c0]
//!         mov  x16, xN                                        mov  x16, xN
//!         br   x16                                            br   x16
//! miss:   str  x30, [sp, #-16]!                               mov  x17, xN
//!         adrp x16, t0         add  x16, x16, #t0             str  x30, [sp, #-16]!
//!         bl   slow                                           add  x16, x16, #t0
//!         ldr  x30, [sp], #16                                 bl   slow
//!         mov  x16, xN                                        ldr  x30, [sp], #16
//!         br   x16                                            mov  x16, xN
//!                                                             br   x16
//! ```
//!
//! Where `x16` or `x17` holds the target it is the one on the left, at a fixed address too; the bias is got
//! into the other one, and the target, which is gone in the end, is made again from `t0` or what the slow
//! path leaves, and the bias. (A table is aligned to its size, so its words are in one page.)
//!
//! The last jump is through `x16`, which a landing pad for calls (`bti c`) accepts. An increment by an
//! exclusive pair needs a third register, `x15`, which is saved on the stack meanwhile. The link register of
//! a call is the program's, so the callee returns there, and the return stacks of processors stay matched.
//!
//! # The slow path
//!
//! [`put_site_slow`] gets the table in `x16` and the target in `x17`, returns through `x30` and preserves
//! everything but `x16` and flags. It first looks for the target among the entries, as a target that has one
//! is the usual case. Only then it asks whether the target is in the image, and claims an empty entry with an
//! exclusive pair, plain mode or not.
//!
//! # What is not recorded
//!
//! Calls and jumps with pointer authentication (`blraa` …), which check and strip the target; `blr x30`,
//! whose operand the `bl` of the recorder overwrites; and calls to TLS descriptor resolvers, which preserve
//! even `x16` (the rewriter leaves those out).

use super::branch::{put, put_fixup};
use super::counter::{put_add_one, put_increment, put_increment_in_page};
use super::encode::{self, SP, cond};
use crate::x86_64::site::{ENTRIES, EXTERNAL, OVERFLOW};
use crate::{Code, CounterMode, FixupKind, Flow, Insn, SiteRef};

const TARGET: u32 = 17;
const TABLE: u32 = 16;
const LINK: u32 = 30;

/// Appends a recorder; see [`crate::Counters::put_site`].
pub fn put_site<T: Copy>(
    out: &mut Code<T>,
    mode: CounterMode,
    fixed: bool,
    original: &[u8],
    insn: &Insn,
    refer: impl Fn(SiteRef) -> T,
) -> bool {
    let Some(word) = original.first_chunk().map(|word| u32::from_le_bytes(*word)) else {
        return false;
    };
    let register = word >> 5 & 31;
    let plain = match insn.flow {
        Flow::IndirectCall => word & 0xffff_fc1f == 0xd63f_0000 && register != LINK,
        Flow::IndirectJump => word & 0xffff_fc1f == 0xd61f_0000,
        _ => false,
    };
    if !plain || register == 31 {
        return false;
    }
    let load = |out: &mut Code<T>, into: u32, what: SiteRef| {
        put_fixup(out, encode::adrp(into), FixupKind::Page, refer(what));
        put_fixup(
            out,
            encode::ldr(into, into, 0),
            FixupKind::Low12 { scale: 3 },
            refer(what),
        );
    };
    let gone = matches!(register, TABLE | TARGET);
    let fixed = fixed && !gone;
    if fixed {
        put_fixup(
            out,
            encode::adrp(TABLE),
            FixupKind::Page,
            refer(SiteRef::Table(0)),
        );
        put_fixup(
            out,
            encode::ldr(TARGET, TABLE, 0),
            FixupKind::Low12 { scale: 3 },
            refer(SiteRef::Table(0)),
        );
        put(out, encode::cmp(TARGET, register));
    } else {
        let temporary = if register == TABLE { TARGET } else { TABLE };
        load(out, temporary, SiteRef::Bias);
        put(out, encode::sub(TARGET, register, temporary));
        load(out, TABLE, SiteRef::Table(0));
        put(out, encode::cmp(TABLE, TARGET));
    }
    let branch = out.bytes.len();
    put(out, encode::NOP); // b.ne miss
    if mode == CounterMode::Atomic {
        put(out, encode::str_pre(15, SP, -16));
    }
    if fixed {
        put_increment_in_page(out, mode, [TABLE, TARGET, 15], refer(SiteRef::Table(1)));
    } else {
        put_increment(out, mode, [TABLE, TARGET, 15], refer(SiteRef::Table(1)));
    }
    if mode == CounterMode::Atomic {
        put(out, encode::ldr_post(15, SP, 16));
    }
    if gone {
        load(out, TABLE, SiteRef::Table(0));
        load(out, TARGET, SiteRef::Bias);
        put(out, encode::add(TABLE, TABLE, TARGET));
    } else {
        put(out, encode::mov(TABLE, register));
    }
    put(out, encode::br(TABLE));
    // At most 16 instructions are between.
    let distance = ((out.bytes.len() - branch) / 4) as i32;
    out.bytes[branch..branch + 4]
        .copy_from_slice(&encode::b_cond(cond::NE, distance).to_le_bytes());
    if fixed {
        put(out, encode::mov(TARGET, register));
    } else {
        put_fixup(
            out,
            encode::adrp(TABLE),
            FixupKind::Page,
            refer(SiteRef::Table(0)),
        );
    }
    put(out, encode::str_pre(LINK, SP, -16));
    put_fixup(
        out,
        encode::add_imm(TABLE, TABLE, 0),
        FixupKind::Low12 { scale: 0 },
        refer(SiteRef::Table(0)),
    );
    put_fixup(out, encode::BL, FixupKind::Branch26, refer(SiteRef::Slow));
    put(out, encode::ldr_post(LINK, SP, 16));
    if gone {
        load(out, TABLE, SiteRef::Bias);
        put(out, encode::add(TABLE, TABLE, TARGET));
    } else {
        put(out, encode::mov(TABLE, register));
    }
    put(out, encode::br(TABLE));
    true
}

/// Puts a 64-bit number into a register, always in four instructions.
fn put_number<T>(out: &mut Code<T>, register: u32, value: u64) {
    put(out, encode::movz(register, value as u16, 0));
    for part in 1..4 {
        put(
            out,
            encode::movk(register, (value >> (16 * part)) as u16, part),
        );
    }
}

/// Appends the slow path of all recorders; see [`crate::Counters::put_site_slow`]. `image` is `[low, high)`.
pub fn put_site_slow<T>(out: &mut Code<T>, mode: CounterMode, image: (u64, u64)) {
    let (status, at) = (14, 15);
    // Adds one to the word at `x16`.
    let count = |out: &mut Code<T>| {
        put_add_one(out, mode, [TABLE, at, status]);
        put(out, encode::ldp_post(status, at, SP, 16));
        put(out, encode::RET);
    };
    let counting = {
        let mut probe = Code::<T>::default();
        put_add_one(&mut probe, mode, [TABLE, at, status]);
        (probe.bytes.len() / 4 + 2) as i32
    };
    put(out, encode::stp_pre(status, at, SP, -16));
    // Known targets; entries hold none but those inside of the image.
    for entry in 0..ENTRIES {
        put(out, encode::ldr(at, TABLE, 16 * entry));
        put(out, encode::cmp(at, TARGET));
        put(out, encode::b_cond(cond::NE, 2 + counting)); // next
        put(out, encode::add_imm(TABLE, TABLE, 16 * entry + 8));
        count(out);
    }
    put_number(out, at, image.0);
    put(out, encode::cmp(TARGET, at));
    put(out, encode::b_cond(cond::LO, 7)); // external
    put_number(out, at, image.1);
    put(out, encode::cmp(TARGET, at));
    put(out, encode::b_cond(cond::LO, 2 + counting)); // inside
    // external:
    put(out, encode::add_imm(TABLE, TABLE, EXTERNAL * 8));
    count(out);
    // inside:
    for entry in 0..ENTRIES {
        // An entry: its target, or a claim. The words are 16 bytes apart.
        if entry > 0 {
            put(out, encode::add_imm(TABLE, TABLE, 16));
        }
        put(out, encode::ldaxr(at, TABLE));
        put(out, encode::cmp(at, TARGET));
        put(out, encode::b_cond(cond::EQ, 4)); // found
        put(out, encode::cbnz(at, 5 + counting)); // next
        put(out, encode::stlxr(status, TARGET, TABLE));
        put(out, encode::cbnz32(status, -5)); // lost: look again
        // found:
        put(out, 0xd503_3f5f); // clrex
        put(out, encode::add_imm(TABLE, TABLE, 8));
        count(out);
        // next:
    }
    put(out, encode::add_imm(TABLE, TABLE, (OVERFLOW - 4) * 8));
    count(out);
}
