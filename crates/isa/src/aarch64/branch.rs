//! Address fields read and written; jumps, calls and nops encoded.
//!
//! Every field is the whole instruction word, so a field's place is its instruction's.
//!
//! | kind | bits | holds | reaches |
//! |---|---|---|---|
//! | `Branch26` | 25..0 | distance / 4 | ±128 MiB |
//! | `Imm19` | 23..5 | distance / 4 | ±1 MiB |
//! | `Branch14` | 18..5 | distance / 4 | ±32 KiB |
//! | `Adr` | 23..5, 30..29 | distance | ±1 MiB |
//! | `Page` | 23..5, 30..29 | distance of 4 KiB pages | ±4 GiB |
//! | `Low12 { scale }` | 21..10 | lowest 12 bits of the address >> scale | everything |
//! | `Low12Odd` | 21..10 | bits 11..8 of the address, 1 in the place of bits 7..0 | everything |
//! | `AdrOdd` | 23..5, 30..29 | distance of the address with 1 in the place of bits 7..0 | ±1 MiB |
//! | `FromOdd` | 20..12 | bits 7..0 of the address, less 1: what `Low12Odd` and `AdrOdd` leave | everything |
//! | `Abs32`, `Abs64` | a word or two in data | the address | |
//!
//! | what | code | bytes |
//! |---|---|---|
//! | jump | `b` | 4 |
//! | conditional jump, short | itself | 4 |
//! | conditional jump, long | the inverse, over a `b` | 8 |
//! | call | `bl` | 4 |
//! | `adr` to anywhere | `adrp`, `add` | 8 |
//! | `ldr` of a literal anywhere, to a general register | `adrp`, `ldr` | 8 |
//! | jump at an old entry | `b`; or where a `paciasp` was, which is a landing pad as well: `bti c`, `b` | 4 or 8 |

use super::decode::{adr_immediate, is_adr, is_literal, is_tbz, signed};
use super::encode;
use crate::{Code, Cond, Fixup, FixupKind, Insn, OutOfRange, Reach};

/// Reads the address in the field at the beginning of `bytes`, which is at `place`; of a `Low12` the bits that it has.
/// `None` if `bytes` are too few, or the kind is another machine's.
pub fn read_field(kind: FixupKind, bytes: &[u8], place: u64) -> Option<u64> {
    let word = u32::from_le_bytes(*bytes.first_chunk()?);
    Some(match kind {
        FixupKind::Branch26 => place.wrapping_add_signed(signed(word, 0, 26) << 2),
        FixupKind::Imm19 => place.wrapping_add_signed(signed(word, 5, 19) << 2),
        FixupKind::Branch14 => place.wrapping_add_signed(signed(word, 5, 14) << 2),
        FixupKind::Adr => place.wrapping_add_signed(adr_immediate(word)),
        FixupKind::Page => (place & !0xfff).wrapping_add_signed(adr_immediate(word) << 12),
        FixupKind::Low12 { scale } => u64::from(word >> 10 & 0xfff) << scale,
        FixupKind::Abs32 => u64::from(word),
        FixupKind::Abs32S => i64::from(word as i32) as u64,
        FixupKind::Abs64 => u64::from_le_bytes(*bytes.first_chunk()?),
        // They have no whole address, and are not read.
        FixupKind::Low12Odd | FixupKind::AdrOdd | FixupKind::FromOdd => return None,
        FixupKind::Rel8 { .. } | FixupKind::Rel32 { .. } => return None,
    })
}

/// Writes an address into the field at the beginning of `bytes`, which is at `place`.
/// An error, with `bytes` untouched, if the field cannot hold the address or `bytes` are too few for the field.
pub fn write_field(
    kind: FixupKind,
    bytes: &mut [u8],
    place: u64,
    target: u64,
) -> Result<(), OutOfRange> {
    let error = OutOfRange {
        kind,
        place,
        target,
    };
    if kind == FixupKind::Abs64 {
        bytes
            .get_mut(..8)
            .ok_or(error)?
            .copy_from_slice(&target.to_le_bytes());
        return Ok(());
    }
    let field = bytes.first_chunk_mut::<4>().ok_or(error)?;
    let word = u32::from_le_bytes(*field);
    // A distance, shifted right without loss, that fits into so many bits.
    let distance = |from: u64, to: u64, shift: u32, width: u32| {
        let distance = to.wrapping_sub(from) as i64;
        let value = distance >> shift;
        let fits = value << shift == distance && value >> (width - 1) == value >> 63;
        if fits {
            Ok(value as u32 & (u32::MAX >> (32 - width)))
        } else {
            Err(error)
        }
    };
    let split = |value: u32| word & 0x9f00_001f | (value & 3) << 29 | (value >> 2) << 5;
    let new = match kind {
        FixupKind::Branch26 => word & !0x3ff_ffff | distance(place, target, 2, 26)?,
        FixupKind::Imm19 => word & !(0x7_ffff << 5) | distance(place, target, 2, 19)? << 5,
        FixupKind::Branch14 => word & !(0x3fff << 5) | distance(place, target, 2, 14)? << 5,
        FixupKind::Adr => split(distance(place, target, 0, 21)?),
        FixupKind::AdrOdd => split(distance(place, target & !0xff | 1, 0, 21)?),
        FixupKind::Page => split(distance(place & !0xfff, target & !0xfff, 12, 21)?),
        FixupKind::Low12 { scale } => {
            let low = (target & 0xfff) as u32;
            if low & ((1 << scale) - 1) != 0 {
                return Err(error);
            }
            word & !(0xfff << 10) | (low >> scale) << 10
        }
        FixupKind::Low12Odd => word & !(0xfff << 10) | ((target & 0xf00) as u32 | 1) << 10,
        FixupKind::FromOdd => {
            word & !(0x1ff << 12) | ((target & 0xff) as u32).wrapping_sub(1) << 23 >> 11
        }
        FixupKind::Abs32 => u32::try_from(target).map_err(|_| error)?,
        FixupKind::Abs32S => i32::try_from(target as i64).map_err(|_| error)? as u32,
        FixupKind::Abs64 | FixupKind::Rel8 { .. } | FixupKind::Rel32 { .. } => return Err(error),
    };
    *field = new.to_le_bytes();
    Ok(())
}

/// The inverse condition: one bit of the instruction.
pub fn invert(cond: Cond) -> Cond {
    Cond(if cond.0 >> 24 == 0x54 {
        cond.0 ^ 1
    } else {
        cond.0 ^ 1 << 24
    })
}

/// Length of a conditional jump.
pub fn cond_jump_len(reach: Reach) -> usize {
    match reach {
        Reach::Short => 4,
        Reach::Long => 8,
    }
}

/// Whether a branch that ends `distance` bytes before its target reaches it in its short form.
pub fn reaches_short(cond: Option<Cond>, distance: i64) -> bool {
    let bits = match cond {
        None => 28,
        Some(cond) if is_tbz(cond.0) => 16,
        Some(_) => 21,
    };
    // From its own beginning.
    let distance = distance + 4;
    distance >> (bits - 1) == distance >> 63
}

/// Appends an instruction.
pub(super) fn put<T>(out: &mut Code<T>, word: u32) {
    out.bytes.extend_from_slice(&word.to_le_bytes());
}

/// Appends an instruction and its fixup.
pub(super) fn put_fixup<T>(out: &mut Code<T>, word: u32, kind: FixupKind, target: T) {
    // Code is built function by function; 4 GiB of it would have failed long before.
    out.fixups.push(Fixup {
        at: out.bytes.len() as u32,
        kind,
        target,
    });
    put(out, word);
}

/// Appends a jump, and its fixup.
pub fn put_jump<T>(out: &mut Code<T>, target: T) {
    put_fixup(out, encode::B, FixupKind::Branch26, target);
}

/// Appends a conditional jump, and its fixup.
pub fn put_cond_jump<T>(out: &mut Code<T>, cond: Cond, reach: Reach, target: T) {
    match reach {
        Reach::Short => {
            let kind = if is_tbz(cond.0) {
                FixupKind::Branch14
            } else {
                FixupKind::Imm19
            };
            put_fixup(out, cond.0, kind, target);
        }
        Reach::Long => {
            put(out, invert(cond).0 | 2 << 5); // over the next
            put_jump(out, target);
        }
    }
}

/// Appends a call, and its fixup.
pub fn put_call<T>(out: &mut Code<T>, target: T) {
    put_fixup(out, encode::BL, FixupKind::Branch26, target);
}

/// Appends what takes the place of an old entry; `original` are the instructions there. See
/// [`crate::Encode::put_entry`].
pub fn put_entry<T>(out: &mut Code<T>, original: &[u8], target: T) {
    let first = original
        .first_chunk()
        .map_or(0, |word| u32::from_le_bytes(*word));
    if matches!(first, encode::PACIASP | encode::PACIBSP) {
        put(out, encode::BTI_C);
    }
    put_jump(out, target);
}

/// Appends `adrp x16`, `add x16`, `br x16`; see [`crate::Encode::put_veneer`].
pub fn put_veneer<T: Copy>(out: &mut Code<T>, target: T) {
    put_fixup(out, encode::adrp(16), FixupKind::Page, target);
    put_fixup(
        out,
        encode::add_imm(16, 16, 0),
        FixupKind::Low12 { scale: 0 },
        target,
    );
    put(out, encode::br(16));
}

/// [`put_entry`] with a veneer in place of the jump.
pub fn put_far_entry<T: Copy>(out: &mut Code<T>, original: &[u8], target: T) {
    let first = original
        .first_chunk()
        .map_or(0, |word| u32::from_le_bytes(*word));
    if matches!(first, encode::PACIASP | encode::PACIBSP) {
        put(out, encode::BTI_C);
    }
    put_veneer(out, target);
}

/// Where a veneer leads; see [`crate::Decode::veneer_target`].
pub fn veneer_target(bytes: &[u8], addr: u64) -> Option<u64> {
    let word = |i: usize| {
        Some(u32::from_le_bytes(
            bytes.get(4 * i..4 * i + 4)?.try_into().ok()?,
        ))
    };
    let (page, add, jump) = (word(0)?, word(1)?, word(2)?);
    if page & 0x9f00_001f != 0x9000_0010
        || add & 0xffc0_03ff != 0x9100_0210
        || jump != encode::br(16)
    {
        return None;
    }
    let target = super::decode::adr_immediate(page) << 12;
    Some(
        (addr & !0xfff)
            .wrapping_add_signed(target)
            .wrapping_add(u64::from(add >> 10 & 0xfff)),
    )
}

/// The slot of a stub of the procedure linkage table: `adrp x16; ldr x17, [x16]; add x16, x16; br x17`, after `bti c`
/// if that is there. The linker's other forms sign or check the address, and are none.
pub fn stub_slot(bytes: &[u8], addr: u64) -> Option<u64> {
    let word = |i: usize| {
        let bytes = bytes.get(4 * i..4 * i + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    let pad = usize::from(word(0)? == encode::BTI_C);
    let (page, load, add, jump) = (word(pad)?, word(pad + 1)?, word(pad + 2)?, word(pad + 3)?);
    let (low, offset) = (
        u64::from(add >> 10 & 0xfff),
        u64::from(load >> 10 & 0xfff) << 3,
    );
    let is_stub = page & 0x9f00_001f == 0x9000_0010
        && load & 0xffc0_03ff == encode::ldr(17, 16, 0)
        && add & 0xffc0_03ff == encode::add_imm(16, 16, 0)
        && jump == encode::br(17)
        && low == offset;
    let at = addr + 4 * pad as u64;
    let page = (at & !0xfff).wrapping_add_signed(super::decode::adr_immediate(page) << 12);
    is_stub.then(|| page.wrapping_add(low))
}

/// Appends a call to what a slot holds, as a stub would go there: with the slot's address in x16 and what it holds in
/// x17.
pub fn put_call_through_slot<T: Copy>(out: &mut Code<T>, slot: T) {
    put_fixup(out, encode::adrp(16), FixupKind::Page, slot);
    put_fixup(
        out,
        encode::ldr(17, 16, 0),
        FixupKind::Low12 { scale: 3 },
        slot,
    );
    put_fixup(
        out,
        encode::add_imm(16, 16, 0),
        FixupKind::Low12 { scale: 0 },
        slot,
    );
    put(out, encode::blr(17));
}

/// Whether an instruction reaches only nearby without being a branch; see [`crate::Decode::is_near`].
pub fn is_near(insn: &Insn) -> bool {
    insn.flow == crate::Flow::Next
        && insn
            .field
            .is_some_and(|field| matches!(field.kind, FixupKind::Adr | FixupKind::Imm19))
}

/// Appends what does the work of an `adr` or a load of a literal with a target anywhere; see
/// [`crate::Encode::put_far`].
pub fn put_far<T: Copy>(out: &mut Code<T>, original: &[u8], target: T) -> bool {
    let Some(word) = original.first_chunk().map(|word| u32::from_le_bytes(*word)) else {
        return false;
    };
    let register = word & 31;
    if is_adr(word) && word >> 31 == 0 {
        if register == 31 {
            put(out, encode::NOP);
            return true;
        }
        put_fixup(out, encode::adrp(register), FixupKind::Page, target);
        put_fixup(
            out,
            encode::add_imm(register, register, 0),
            FixupKind::Low12 { scale: 0 },
            target,
        );
        return true;
    }
    if is_literal(word) && word & 1 << 26 == 0 && register != 31 {
        let (load, scale) = match word >> 30 {
            0 => (encode::ldr32(register, register, 0), 2),
            1 => (encode::ldr(register, register, 0), 3),
            2 => (encode::ldrsw(register, register, 0), 2),
            _ => return false, // prfm
        };
        put_fixup(out, encode::adrp(register), FixupKind::Page, target);
        put_fixup(out, load, FixupKind::Low12 { scale }, target);
        return true;
    }
    false
}

/// Appends `len` bytes that do nothing (a rest of less than an instruction becomes zero bytes, which are never run).
pub fn put_nops(out: &mut Vec<u8>, len: usize) {
    for _ in 0..len / 4 {
        out.extend_from_slice(&encode::NOP.to_le_bytes());
    }
    out.resize(out.len() + len % 4, 0);
}
