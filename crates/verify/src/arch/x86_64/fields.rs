//! Bytes of code that may be address fields, or instructions of certain kinds, wherever instructions begin.
//!
//! In front of every field that [`super::X86_64::decode`] tells of are bytes that say so: the opcode of a branch, or a
//! ModRM byte with mod 0, rm 5. Where code has no such bytes with a number behind them that leads to a place of
//! interest, no instruction in it has a field that does, and decoding it would find none. That is said by bytes alone,
//! in a fraction of the time.

use crate::addr::InputAddr;
use crate::arch::MaybeField;
use std::ops::Range;

/// An instruction that has no field.
const NOP: u8 = 0x90;

/// Places that are looked at together.
const CHUNK: usize = 64;

/// Of a chunk of places, a bit for each whose byte, behind the one in front of it, may be of interest: all that
/// [`last`] looks for, and some more. With `all`, what may be something else than a field of four bytes as well. Each
/// place costs a few operations, which the compiler does for many places at once.
#[inline]
fn candidates(before: &[u8; CHUNK], bytes: &[u8; CHUNK], all: bool) -> u64 {
    if all {
        candidates_of::<true>(before, bytes)
    } else {
        candidates_of::<false>(before, bytes)
    }
}

fn candidates_of<const ALL: bool>(before: &[u8; CHUNK], bytes: &[u8; CHUNK]) -> u64 {
    let mut are = [0u8; CHUNK];
    for (is, (&before, &last)) in are.iter_mut().zip(before.iter().zip(bytes)) {
        let branch = (last & 0xfe == 0xe8)
            | ((before == 0x0f) & (last & 0xf0 == 0x80))
            | ((before == 0xc7) & (last >= 0xc0));
        let loaded = last & 0xf8 == 0xb8;
        let indirect = (before == 0xff) & (last & 0x30 == 0x20);
        let other = loaded | indirect | (last == OWN_SEGMENT);
        *is = u8::from(branch | is_relative(last) | (ALL & other));
    }
    packed(&are)
}

/// The bytes behind the first, and for each the one in front of it.
fn chunk_behind(bytes: &[u8]) -> Option<(&[u8; CHUNK], &[u8; CHUNK])> {
    let behind = bytes.get(1..)?;
    Some((bytes.first_chunk()?, behind.first_chunk()?))
}

/// The lowest bits of bytes, the first of which is the lowest.
#[inline]
fn packed(bytes: &[u8; CHUNK]) -> u64 {
    let (eights, _) = bytes.as_chunks::<8>();
    let bits = |eight: &[u8; 8]| {
        // Byte i is added at bit 56 + i, and everything else below or beyond.
        let spread = u64::from_le_bytes(*eight).wrapping_mul(0x0102_0408_1020_4080);
        spread >> 56
    };
    let words = (0..).step_by(8).zip(eights);
    words.fold(0, |all, (at, eight)| all | bits(eight) << at)
}

/// Whether these are, or end with, the opcode of a branch with a distance of four bytes. (`xbegin` is `c7 f8`; the
/// decoder takes others with the same mod for it, too.)
const fn may_be_branch(before: u8, last: u8) -> bool {
    matches!(
        (before, last),
        (_, 0xe8 | 0xe9) | (0x0f, 0x80..=0x8f) | (0xc7, 0xc0..=0xff)
    )
}

/// Whether an operand relative to the program counter is behind this ModRM byte.
const fn is_relative(modrm: u8) -> bool {
    modrm & 0xc7 == 5
}

/// Whether behind these may be a number that [`loaded_number`](crate::arch::Arch::loaded_number) tells of.
const fn may_be_loaded(before: u8, last: u8) -> bool {
    matches!((before, last), (_, 0xb8..=0xbf) | (0xc7, 0xc0..=0xc7))
}

/// Whether these are the opcode and the ModRM byte of a jump through a register or memory. A far one has its operand in
/// memory.
const fn may_be_indirect(opcode: u8, modrm: u8) -> bool {
    opcode == 0xff && (modrm & 0x38 == 0x20 || modrm & 0x38 == 0x28 && modrm < 0xc0)
}

/// The prefix of the segment of per-thread counters.
const OWN_SEGMENT: u8 = 0x65;

/// Opcodes of branches with a distance of one byte.
const fn is_short_branch(opcode: u8) -> bool {
    matches!(opcode, 0x70..=0x7f | 0xe0..=0xe3 | 0xeb)
}

/// Whether something that is wanted may be behind a pair of bytes, the last of which is in front of `end`.
fn is_wanted_behind(
    (before, last): (u8, u8),
    (code, addr, end): (&[u8], u64, usize),
    all: bool,
    is_wanted: impl Fn(MaybeField) -> bool,
) -> bool {
    let field = code.get(end..).and_then(<[u8]>::first_chunk);
    let has_field = field.is_some_and(|field| {
        let target = addr
            .wrapping_add(end as u64 + 4)
            .wrapping_add_signed(i32::from_le_bytes(*field).into());
        let target = InputAddr::new(target);
        let forms = before == 0x8d;
        may_be_branch(before, last) && is_wanted(MaybeField::Branch(target))
            || is_relative(last) && is_wanted(MaybeField::Operand { target, forms })
            || all
                && may_be_loaded(before, last)
                && is_wanted(MaybeField::Loaded(u32::from_le_bytes(*field).into()))
    });
    has_field
        || all && may_be_indirect(before, last) && is_wanted(MaybeField::IndirectJump)
        || all && last == OWN_SEGMENT && is_wanted(MaybeField::OwnSegment)
}

/// See [`Arch::may_have`](crate::arch::Arch::may_have).
pub(super) fn last(
    code: &[u8],
    addr: u64,
    all: bool,
    is_wanted: impl Fn(MaybeField) -> bool,
) -> Option<usize> {
    let is_one =
        |before, last, end| is_wanted_behind((before, last), (code, addr, end), all, &is_wanted);
    let place = |at: usize| {
        let &[before, last] = code.get(at - 1..)?.first_chunk()?;
        is_one(before, last, at + 1).then_some(at)
    };
    // From the last place to the second, a chunk at a time.
    let mut end = code.len();
    while end > 1 {
        let start = end.saturating_sub(CHUNK).max(1);
        let mut padded = [NOP; CHUNK + 1];
        let whole = code.get(start - 1..).and_then(chunk_behind);
        let (before, bytes) = match whole {
            Some(whole) => whole,
            None => {
                padded
                    .iter_mut()
                    .zip(code)
                    .for_each(|(to, from)| *to = *from);
                chunk_behind(&padded)?
            }
        };
        // Of the first chunk some places may have been in the second.
        let mut left = candidates(before, bytes, all) & u64::MAX >> (CHUNK - (end - start));
        while left != 0 {
            let highest = left.ilog2();
            left ^= 1 << highest;
            if let Some(found) = place(start + highest as usize) {
                return Some(found);
            }
        }
        end = start;
    }
    let first = code.first().filter(|first| is_one(0, **first, 1));
    first.map(|_| 0)
}

/// See [`Arch::may_branch`](crate::arch::Arch::may_branch).
pub(super) fn last_short(
    code: &[u8],
    addr: u64,
    places: Range<usize>,
    is_wanted: impl Fn(InputAddr) -> bool,
) -> Option<usize> {
    let places = places.start..places.end.min(code.len());
    let is_there = |at: &usize| {
        let Some(&[opcode, distance]) = code.get(*at..).and_then(<[u8]>::first_chunk) else {
            return false;
        };
        let target = addr
            .wrapping_add(*at as u64 + 2)
            .wrapping_add_signed(i64::from(distance as i8));
        is_short_branch(opcode) && is_wanted(InputAddr::new(target))
    };
    let mut places = places;
    places.rfind(is_there)
}

#[cfg(test)]
mod tests {
    use super::super::super::{Arch, Field, FieldKind, Flow};
    use super::super::X86_64;
    use super::*;

    const ADDR: u64 = 0x40_1000;

    /// Whether a field that the decoder tells of is among those that may be.
    fn is_seen(bytes: &[u8], field: Field) -> bool {
        let target = field.target;
        if field.len == 1 {
            let places = 0..bytes.len();
            let leads = |at: InputAddr| at.get() == target;
            return last_short(bytes, ADDR, places, leads).is_some();
        }
        let is_it = |maybe| match (field.kind, maybe) {
            (FieldKind::Branch, MaybeField::Branch(at)) => at.get() == target,
            (FieldKind::Forms, MaybeField::Operand { target: at, forms }) => {
                forms && at.get() == target
            }
            (FieldKind::Accesses, MaybeField::Operand { target: at, .. }) => {
                (at.get()..=at.get() + MaybeField::FOLLOWING).contains(&target)
            }
            _ => false,
        };
        last(bytes, ADDR, false, is_it).is_some()
    }

    /// What [`last`] finds, place by place.
    fn slowly(code: &[u8], all: bool, is_wanted: impl Fn(MaybeField) -> bool) -> Option<usize> {
        (0..code.len()).rfind(|at| {
            let before = at.checked_sub(1).map_or(0, |at| code[at]);
            is_wanted_behind((before, code[*at]), (code, ADDR, at + 1), all, &is_wanted)
        })
    }

    /// Compares what is decoded at the start of `bytes`, and the same behind some other code. Gives whether it has a
    /// field.
    fn compare(bytes: &[u8]) -> bool {
        let Some(insn) = X86_64::decode(bytes, ADDR) else {
            return false;
        };
        let own = &bytes[..usize::from(insn.len)];
        let has = |wanted| last(own, ADDR, true, |maybe| maybe == wanted).is_some();
        if matches!(insn.flow, Flow::IndirectJump { .. }) {
            assert!(has(MaybeField::IndirectJump), "{own:02x?}");
        }
        if X86_64::uses_own(own) {
            assert!(has(MaybeField::OwnSegment), "{own:02x?}");
        }
        if let Some(number) = X86_64::loaded_number(own) {
            assert!(has(MaybeField::Loaded(number)), "{own:02x?}");
        }
        let Some(field) = insn.field else {
            return false;
        };
        assert!(is_seen(own, field), "{own:02x?} {field:?}");
        let behind = [&[0x90, 0xc3][..], own].concat();
        let target = field.target.wrapping_add(2);
        let moved = Field { target, ..field };
        assert!(is_seen(&behind, moved), "{own:02x?} {field:?}");
        true
    }

    #[test]
    fn every_field_that_is_decoded_is_one_that_may_be() {
        // Distances that lead out of the code; the lower two have an address without base behind a SIB byte.
        let tails = [
            [0x84u8, 0x11, 0x82, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88],
            [0x05, 0xfe, 0x7f, 0xff, 0xff, 1, 2, 3, 4],
            [0x25, 0x80, 0x90, 0xa0, 0xf0, 1, 2, 3, 4],
        ];
        let mut some = 0;
        let mut fields = |lead: &[u8]| {
            for opcode in 0..=255u8 {
                for modrm in 0..=255u8 {
                    let tail = &tails[usize::from(modrm) % 3];
                    let bytes = [lead, &[opcode, modrm], tail].concat();
                    some += usize::from(compare(&bytes));
                }
            }
        };
        let prefixes: [&[u8]; 8] = [
            &[],
            &[0x66],
            &[0xf2],
            &[0xf3],
            &[0x65],
            &[0x67],
            &[0x3e],
            &[0x66, 0x66],
        ];
        let maps: [&[u8]; 4] = [&[], &[0x0f], &[0x0f, 0x38], &[0x0f, 0x3a]];
        for prefix in prefixes {
            for rex in [&[][..], &[0x40], &[0x41], &[0x48], &[0x4c]] {
                for map in maps {
                    fields(&[prefix, rex, map].concat());
                }
            }
        }
        // VEX of two bytes and of three, XOP, EVEX.
        for pp in 0..8u8 {
            fields(&[0xc5, 0xf8 | pp]);
            for map in 1..=3u8 {
                for wide in [0, 0x80] {
                    fields(&[0xc4, 0xe0 | map, wide | 0x78 | pp]);
                    fields(&[
                        0x62,
                        0xf0 | map,
                        wide | 0x7c | pp & 3,
                        0x08 | pp << 4 & 0x60,
                    ]);
                }
                fields(&[0x8f, 0xe8 | map & 3, 0x78 | pp]);
            }
        }
        assert!(some > 100_000, "{some}");
    }

    #[test]
    fn the_last_field_of_long_code_is_what_a_look_at_each_place_finds() {
        let mut state = 1u64;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u32
        };
        // Bytes that fields are behind, often.
        let frequent = [
            0xe8, 0xe9, 0x0f, 0x84, 0xc7, 0xf8, 0xc0, 0x05, 0x0d, 0x8d, 0xb8, 0xff, 0xe0, 0x2c,
            0x65,
        ];
        for round in 0..4000u64 {
            let len = next() as usize % 300;
            let one_of = 1 + next() % 200;
            let mut code: Vec<u8> = Vec::new();
            for _ in 0..len {
                code.push(match next() % one_of {
                    0 => frequent[next() as usize % frequent.len()],
                    _ => 0x90,
                });
            }
            // What is wanted depends on all that is told.
            let salt = round % 3;
            let is_wanted = |maybe: MaybeField| match maybe {
                MaybeField::Branch(at) => at.get() % 3 != salt,
                MaybeField::Operand { target, forms } => forms || target.get() % 3 == salt,
                MaybeField::Loaded(number) => number % 2 == salt,
                MaybeField::IndirectJump => salt == 1,
                MaybeField::OwnSegment => salt == 2,
            };
            for all in [false, true] {
                assert_eq!(
                    last(&code, ADDR, all, is_wanted),
                    slowly(&code, all, is_wanted),
                    "{code:02x?}"
                );
            }
        }
    }

    #[test]
    fn what_is_no_field_is_not_taken_for_one_where_that_can_be_said() {
        // push %rbp; mov %rsp,%rbp; mov 8(%rdi),%eax; pop %rbp; ret; nothing behind a byte that may be an opcode.
        let code = [0x55, 0x48, 0x89, 0xe5, 0x8b, 0x47, 8, 0x5d, 0xc3, 0xe8];
        assert_eq!(last(&code, ADDR, true, |_| true), None);
        assert_eq!(last_short(&code, ADDR, 0..code.len(), |_| true), None);
        // Two calls, of which the second is wanted, the first or none.
        let calls = [0xe8, 0, 0, 0, 0, 0xe8, 0, 0, 0, 0, 0x90];
        let wanted = |offset: u64| {
            let target = InputAddr::new(ADDR + offset);
            last(&calls, ADDR, false, |f| f == MaybeField::Branch(target))
        };
        assert_eq!([10, 5, 0].map(wanted), [Some(5), Some(0), None]);
        // Asked for alone.
        let jump = [0x90, 0xff, 0xe0];
        assert_eq!(last(&jump, ADDR, true, |_| true), Some(2));
        assert_eq!(last(&jump, ADDR, false, |_| true), None);
        let short = [0xeb, 0, 0x90, 0x74, 0, 0xc3];
        let leads = |places| last_short(&short, ADDR, places, |_| true);
        assert_eq!(
            [leads(0..6), leads(0..3), leads(1..3)],
            [Some(3), Some(0), None]
        );
    }
}
