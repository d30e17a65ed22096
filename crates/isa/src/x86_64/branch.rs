//! Address fields read and written; jumps, calls and nops encoded.
//!
//! | what | bytes | length |
//! |---|---|---|
//! | jump, short | `eb rel8` | 2 |
//! | jump, long | `e9 rel32` | 5 |
//! | conditional jump, short | `70+cc rel8` | 2 |
//! | conditional jump, long | `0f 80+cc rel32` | 6 |
//! | call | `e8 rel32` | 5 |
//! | `loop`, `jrcxz` to anywhere | original with displacement 2, `eb 05`, `e9 rel32` | original + 7 |
//!
//! The last one jumps over a short jump to a long one: taken, it lands on the `e9`; not taken, the `eb` skips that.
//! The instruction keeps its prefixes, because the address size says whether `ecx` or `rcx` counts.
//!
//! A displacement counts from the end of its instruction, so the bytes between the field and that end (`trail`: an
//! immediate operand after a `rip`-relative one) belong to a field's kind.

use crate::{Code, Cond, Fixup, FixupKind, OutOfRange, Reach};

/// Bytes of a field.
fn width(kind: FixupKind) -> u64 {
    match kind {
        FixupKind::Rel8 { .. } => 1,
        FixupKind::Rel32 { .. } | FixupKind::Abs32 | FixupKind::Abs32S => 4,
        FixupKind::Abs64 => 8,
        // Another machine's.
        _ => 0,
    }
}

/// Reads the address in the field at the beginning of `bytes`, which is at `place`.
/// `None` if `bytes` are too few.
pub fn read_field(kind: FixupKind, bytes: &[u8], place: u64) -> Option<u64> {
    let word = || bytes.first_chunk::<4>().copied();
    let relative = |trail: u8, disp: i64| {
        place
            .wrapping_add(width(kind))
            .wrapping_add(u64::from(trail))
            .wrapping_add_signed(disp)
    };
    Some(match kind {
        FixupKind::Rel8 { trail } => relative(trail, i64::from(*bytes.first()? as i8)),
        FixupKind::Rel32 { trail } => relative(trail, i64::from(i32::from_le_bytes(word()?))),
        FixupKind::Abs32 => u64::from(u32::from_le_bytes(word()?)),
        FixupKind::Abs32S => i64::from(i32::from_le_bytes(word()?)) as u64,
        FixupKind::Abs64 => u64::from_le_bytes(*bytes.first_chunk()?),
        _ => return None,
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
    let relative = |trail: u8| {
        target
            .wrapping_sub(place)
            .wrapping_sub(width(kind))
            .wrapping_sub(u64::from(trail)) as i64
    };
    let value = match kind {
        FixupKind::Rel8 { trail } => i64::from(i8::try_from(relative(trail)).map_err(|_| error)?),
        FixupKind::Rel32 { trail } => i64::from(i32::try_from(relative(trail)).map_err(|_| error)?),
        FixupKind::Abs32 => i64::from(u32::try_from(target).map_err(|_| error)?),
        FixupKind::Abs32S => i64::from(i32::try_from(target as i64).map_err(|_| error)?),
        FixupKind::Abs64 => target as i64,
        _ => return Err(error),
    };
    let width = width(kind) as usize;
    bytes
        .get_mut(..width)
        .ok_or(error)?
        .copy_from_slice(&value.to_le_bytes()[..width]);
    Ok(())
}

/// Length of an unconditional jump.
pub fn jump_len(reach: Reach) -> usize {
    match reach {
        Reach::Short => 2,
        Reach::Long => 5,
    }
}

/// Length of a conditional jump.
pub fn cond_jump_len(reach: Reach) -> usize {
    match reach {
        Reach::Short => 2,
        Reach::Long => 6,
    }
}

/// Length of what [`put_short_cond`] appends.
pub fn short_cond_len(original: &[u8]) -> usize {
    original.len() + SKIP_AND_JUMP
}

/// `eb 05` and `e9 rel32`.
const SKIP_AND_JUMP: usize = 7;

/// Appends an empty field and its fixup.
pub(super) fn put_field<T>(out: &mut Code<T>, kind: FixupKind, target: T) {
    // Code is built function by function; 4 GiB of it would have failed long before.
    out.fixups.push(Fixup {
        at: out.bytes.len() as u32,
        kind,
        target,
    });
    out.bytes.extend_from_slice(&[0; 8][..width(kind) as usize]);
}

/// Appends an unconditional jump, and its fixup.
pub fn put_jump<T>(out: &mut Code<T>, reach: Reach, target: T) {
    match reach {
        Reach::Short => {
            out.bytes.push(0xeb);
            put_field(out, FixupKind::Rel8 { trail: 0 }, target);
        }
        Reach::Long => {
            out.bytes.push(0xe9);
            put_field(out, FixupKind::Rel32 { trail: 0 }, target);
        }
    }
}

/// Appends a conditional jump, and its fixup.
pub fn put_cond_jump<T>(out: &mut Code<T>, cond: Cond, reach: Reach, target: T) {
    let condition = (cond.0 & 15) as u8;
    match reach {
        Reach::Short => {
            out.bytes.push(0x70 | condition);
            put_field(out, FixupKind::Rel8 { trail: 0 }, target);
        }
        Reach::Long => {
            out.bytes.extend_from_slice(&[0x0f, 0x80 | condition]);
            put_field(out, FixupKind::Rel32 { trail: 0 }, target);
        }
    }
}

/// Appends what does the work of `loop*`, `jrcxz` or `jecxz` (`original` are its bytes) with a target anywhere.
pub fn put_short_cond<T>(out: &mut Code<T>, original: &[u8], target: T) {
    let displacement = original.len().saturating_sub(1);
    out.bytes.extend_from_slice(&original[..displacement]);
    out.bytes.extend_from_slice(&[2, 0xeb, 5]);
    put_jump(out, Reach::Long, target);
}

/// Appends a direct call, and its fixup.
pub fn put_call<T>(out: &mut Code<T>, target: T) {
    out.bytes.push(0xe8);
    put_field(out, FixupKind::Rel32 { trail: 0 }, target);
}

/// Appends `call *slot(%rip)` or `jmp *slot(%rip)`, and its fixup.
pub fn put_through_slot<T>(out: &mut Code<T>, jump: bool, slot: T) {
    out.bytes
        .extend_from_slice(&[0xff, if jump { 0x25 } else { 0x15 }]);
    put_field(out, FixupKind::Rel32 { trail: 0 }, slot);
}

/// The processor manuals' recommended nops of 1 to 9 bytes, and the usual way on to 11. More than three prefixes are
/// slow to decode on some processors.
const NOPS: [&[u8]; 11] = [
    &[0x90],
    &[0x66, 0x90],
    &[0x0f, 0x1f, 0x00],
    &[0x0f, 0x1f, 0x40, 0x00],
    &[0x0f, 0x1f, 0x44, 0x00, 0x00],
    &[0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00],
    &[0x0f, 0x1f, 0x80, 0x00, 0x00, 0x00, 0x00],
    &[0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
    &[0x66, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
    &[0x66, 0x2e, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
    &[
        0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00,
    ],
];

/// Appends `len` bytes that do nothing, in as few instructions as possible.
pub fn put_nops(out: &mut Vec<u8>, mut len: usize) {
    while let Some(longest) = len.min(NOPS.len()).checked_sub(1) {
        out.extend_from_slice(NOPS[longest]);
        len -= NOPS[longest].len();
    }
}
