//! Counters at entries of AArch64 programs.
//!
//! | what | code |
//! |---|---|
//! | coverage | `adrp a`, `add a,a` or `adr a`, then `sturb a,[a]`, perhaps between `str a,[sp,#-16]!` and `ldr a,[sp],#16` |
//! | calls | `adrp x16`, `ldr w17,[x16]`, `cbnz w17`, the slow way, `add w17,w17,#1`, `cbz w17`, `str w17,[x16]` |
//! | calls and edges | `adrp x16`, `ldr w17,[x16]`, `tst w17,#63`, `b.ne`, the slow way, `add`, `cbz`, `str` |
//! | the slow way | `add x16,x16`, `mov x17,x30`, `bl` to new code, `ldr w17,[x16]` |
//!
//! A call's counter may be between `stp x16,x17,[sp,#-16]!` and `ldp x16,x17,[sp],#16`. What is not saved so
//! is `x16`, `x17` or flags: they hold nothing at the entry of a compiled function for callers from outside.
//!
//! What replaces the beginning of a function is a `b`, or `bti c` and a `b` where a landing pad was that does
//! more (`paciasp`). Pointers to functions stay as they are.

use super::{Entries, Memory};
use crate::arch::aarch64::{AArch64, word};
use crate::arch::{Arch, FieldKind, Flow};

const BTI_C: u32 = 0xd503_245f;
const SCRATCH: u32 = 1 << 16 | 1 << 17;
/// `stp x16,x17,[sp,#-16]!`, `ldp x16,x17,[sp],#16`
const PUSH: u32 = 0xa9bf_47f0;
const POP: u32 = 0xa8c1_47f0;
/// `mov x17,x30`, `add w17,w17,#1`, `tst w17,#63`, and the branches after and over them.
const KEEP_LINK: u32 = 0xaa1e_03f1;
const COUNT: u32 = 0x1100_0631;
const TEST: u32 = 0x7200_163f;
const OVER: u32 = 5 << 5;
const CBNZ: u32 = 0x3500_0011 | OVER;
const B_NE: u32 = 0x5400_0001 | OVER;
const SATURATED: u32 = 0x3400_0011 | 2 << 5;

/// The routine begins with `stp x0,x1,[sp,#-112]!`.
const SAVES: [u8; 4] = 0xa9b9_07e0u32.to_le_bytes();

fn nth(bytes: &[u8], i: usize) -> Option<u32> {
    bytes.get(4 * i..).and_then(word)
}

/// The address that the n-th instruction forms.
fn formed(bytes: &[u8], at: u64, i: usize) -> Option<(FieldKind, u64)> {
    let code = bytes.get(4 * i..)?;
    let field = AArch64::decode(code, at.checked_add(4 * i as u64)?)?.field?;
    Some((field.kind, field.target))
}

/// The page that the n-th instruction forms.
fn page(bytes: &[u8], at: u64, i: usize) -> Option<u64> {
    let (kind, page) = formed(bytes, at, i)?;
    (kind == FieldKind::Page).then_some(page)
}

/// Coverage: number of instructions, and whether the register is saved.
fn coverage(bytes: &[u8], at: u64, memory: &Memory<'_>) -> Option<(usize, bool)> {
    let first = nth(bytes, 0)?;
    // str a,[sp,#-16]!
    let saved = first & 0xffff_ffe0 == 0xf81f_0fe0;
    let from = usize::from(saved);
    let (kind, formed) = formed(bytes, at, from)?;
    let first_word = nth(bytes, from)?;
    let a = first_word & 31;
    let is_adr = first_word & 0x9f00_0000 == 0x1000_0000;
    let (address, instructions) = match kind {
        FieldKind::Page => {
            let add = nth(bytes, from + 1)?;
            if add & 0xffc0_03ff != 0x9100_0000 | a << 5 | a {
                return None;
            }
            (formed.wrapping_add(u64::from(add >> 10 & 0xfff)), 3)
        }
        _ if is_adr => (formed, 2),
        _ => return None,
    };
    let store = nth(bytes, from + instructions - 1)?;
    let shapes = store & 0xffe0_0fff == 0x3800_0000 | a << 5 | a && a < 31;
    let flag = address.wrapping_add_signed(i64::from((store << 11) as i32 >> 23));
    // The byte that is stored is the lowest of the address.
    if !shapes || address as u8 == 0 || !memory.counts(flag, 1) {
        return None;
    }
    if !saved {
        return (SCRATCH >> a & 1 == 1).then_some((instructions, false));
    }
    let restored = nth(bytes, from + instructions)? == 0xf841_07e0 | a;
    (first & 31 == a && restored).then_some((instructions + 2, true))
}

/// Calls: number of instructions, and whether registers are saved.
fn calls(bytes: &[u8], at: u64, memory: &Memory<'_>) -> Option<(usize, bool)> {
    let saved = nth(bytes, 0)? == PUSH;
    let mut i = usize::from(saved);
    let page = page(bytes, at, i)?;
    let load = nth(bytes, i + 1)?;
    let low = load >> 10 & 0xfff;
    let counter = page.wrapping_add(u64::from(low) << 2);
    let shapes = nth(bytes, i)? & 31 == 16 && load & 0xffc0_03ff == 0xb940_0211;
    if !shapes || !memory.counts(counter, 8) {
        return None;
    }
    i += 2;
    // With edges flags are lost: what keeps registers keeps them as well.
    let edges = match nth(bytes, i)? {
        CBNZ => false,
        TEST if nth(bytes, i + 1)? == B_NE && !saved => true,
        _ => return None,
    };
    i += 1 + usize::from(edges);
    let sum = 0x9100_0210 | (low << 2) << 10;
    let slow = bytes.get(4 * (i + 2)..)?;
    let calls = AArch64::decode(slow, at.checked_add(4 * (i as u64 + 2))?)?.flow;
    let way = low << 2 <= 0xfff
        && nth(bytes, i)? == sum
        && nth(bytes, i + 1)? == KEEP_LINK
        && nth(bytes, i + 3)? == load
        && matches!(calls, Flow::Call(target) if memory.is_slow(edges, target, &SAVES));
    let count = nth(bytes, i + 4)? == COUNT
        && nth(bytes, i + 5)? == SATURATED
        && nth(bytes, i + 6)? == 0xb900_0211 | low << 10;
    i += 7;
    if !way || !count {
        return None;
    }
    if saved {
        (nth(bytes, i)? == POP).then_some((i + 1, true))
    } else {
        Some((i, false))
    }
}

impl Entries for AArch64 {
    const MOVES_POINTERS: bool = false;
    /// mov x8, #139; svc #0
    const SIGNAL_RETURN: &[u8] = &[0x68, 0x11, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4];
    const FLAGS_ALONE: bool = false;

    fn counter(bytes: &[u8], at: u64, memory: &Memory<'_>) -> (u64, bool) {
        let found = coverage(bytes, at, memory).or_else(|| calls(bytes, at, memory));
        found.map_or((0, false), |(instructions, keeps)| {
            (4 * instructions as u64, keeps)
        })
    }

    fn jump(old: &[u8], new: &[u8], at: u64) -> Option<(u64, u64)> {
        let skip = match Self::keeps_state(old) {
            true if word(new)? == BTI_C => 4,
            true => return None,
            false => 0,
        };
        let jump = new.get(skip..)?;
        match Self::decode(jump, at.checked_add(skip as u64)?)?.flow {
            // Not one with a condition that always holds.
            Flow::Jump(to) if word(jump)? >> 26 == 5 => Some((skip as u64 + 4, to)),
            _ => None,
        }
    }

    /// Whether one of the first instructions reads `x16` or `x17`, which nothing has written.
    fn relies_on_scratch(bytes: &[u8]) -> bool {
        let mut open = SCRATCH;
        for code in bytes.chunks_exact(4).take(64) {
            let Some(insn) = Self::decode(code, 0) else {
                return false;
            };
            if !matches!(insn.flow, Flow::Next | Flow::Nothing | Flow::Branch { .. }) {
                return matches!(insn.flow, Flow::IndirectJump { .. } | Flow::IndirectCall)
                    && Self::operand(code, 0).is_some_and(
                        |o| matches!(o.0, crate::arch::Operand::Register(r) if open >> r & 1 == 1),
                    );
            }
            let effects = Self::effects(code);
            if effects.reads & open != 0 && effects.reads != u32::MAX {
                return true;
            }
            open &= !effects.kills;
            if matches!(insn.flow, Flow::Branch { .. }) {
                return false;
            }
        }
        false
    }
}
