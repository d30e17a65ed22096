//! The start-up routine that asks for huge pages, read.

use super::{field_bits, target};
use crate::arch::AsksForHugePages;

/// Its instructions; the fields of addresses and of the length are 0.
const ROUTINE: [u32; 15] = [
    0xd503_245f, // bti c
    0xa9be_07e0, // stp x0, x1, [sp, #-32]!
    0xa901_23e2, // stp x2, x8, [sp, #16]
    0x9000_0000, // adrp x0, start
    0xd280_0001, // movz x1, #len
    0xf2a0_0001, // movk x1, #len, lsl #16
    0xd280_0322, // movz x2, #25 (MADV_COLLAPSE)
    0xd280_1d28, // movz x8, #233 (madvise)
    0xd400_0001, // svc #0
    0xb400_0080, // cbz x0, over the next three
    0x9000_0000, // adrp x0, start
    0xd280_01c2, // movz x2, #14 (MADV_HUGEPAGE)
    0xd400_0001, // svc #0
    0xa941_23e2, // ldp x2, x8, [sp, #16]
    0xa8c2_07e0, // ldp x0, x1, [sp], #32
];
const RET: u32 = 0xd65f_03c0;

/// See [`crate::arch::Arch::asks_for_huge_pages`]. A system call destroys `x0` alone.
pub(super) fn read(bytes: &[u8], addr: u64) -> Option<AsksForHugePages> {
    let word = |i: usize| super::word(bytes.get(4 * i..)?);
    let at = |i: usize| addr.wrapping_add(4 * i as u64);
    let mut starts = Vec::new();
    let mut len = 0u64;
    for (i, expected) in ROUTINE.iter().enumerate() {
        let w = word(i)?;
        let field = match i {
            3 | 10 => {
                starts.push(target(w, at(i)));
                field_bits(w)
            }
            4 | 5 => {
                len |= u64::from(w >> 5 & 0xffff) << (16 * (i - 4));
                0xffff << 5
            }
            _ => 0,
        };
        if w & !field != *expected {
            return None;
        }
    }
    let last = word(ROUTINE.len())?;
    let next = match last {
        RET => None,
        _ if last >> 26 == 5 => Some(target(last, at(ROUTINE.len()))),
        _ => return None,
    };
    match starts[..] {
        [start, again] if start == again => Some(AsksForHugePages { start, len, next }),
        _ => None,
    }
}
