//! Common instructions, decoded quickly.
//!
//! Nine of ten instructions of compiled code are of few forms: at most one of the prefixes `66`, `f2`, `f3`,
//! `64`, `65`, a REX prefix, an opcode of one byte or of two beginning with `0f`, a ModRM byte with what
//! belongs to it, an immediate. For those the proof needs no more than length, flow, and the field relative
//! to the program counter, all of which two tables say. Whatever is not in them is left to the decoder, and
//! whatever is must be the same with it: tests compare both for every opcode, ModRM byte and prefix. The same
//! holds for what they read and overwrite ([`effects`]).
//!
//! | entry | meaning |
//! |---|---|
//! | `NO` | not here |
//! | `M` | has a ModRM byte |
//! | `I1` | has an immediate of a byte |
//! | `IZ` | has an immediate of four bytes, two with `66` |

use super::super::{Effects, Field, FieldKind, Flow, Insn};
use crate::arch::step::flag;

const NO: u8 = 0;
/// No operands, or registers in the opcode.
const PLAIN: u8 = 1;
const M: u8 = 2;
const I1: u8 = 4;
const IZ: u8 = 8;

const fn fill(mut table: [u8; 256], from: usize, to: usize, kind: u8) -> [u8; 256] {
    let mut i = from;
    while i <= to {
        table[i] = kind;
        i += 1;
    }
    table
}

/// Opcodes of one byte. Groups are looked at by themselves ([`group`]).
const ONE: [u8; 256] = {
    let mut t = [NO; 256];
    let mut op = 0;
    while op < 0x40 {
        t = fill(t, op, op + 3, M);
        t[op + 4] = I1;
        t[op + 5] = IZ;
        op += 8;
    }
    t = fill(t, 0x50, 0x5f, PLAIN);
    t[0x63] = M;
    t[0x68] = IZ;
    t[0x69] = M | IZ;
    t[0x6a] = I1;
    t[0x6b] = M | I1;
    t[0x80] = M | I1;
    t[0x81] = M | IZ;
    t[0x83] = M | I1;
    t = fill(t, 0x84, 0x8b, M);
    t[0x8d] = M;
    t[0x98] = PLAIN;
    t[0x99] = PLAIN;
    t[0xa8] = I1;
    t[0xa9] = IZ;
    t = fill(t, 0xb0, 0xb7, I1);
    t = fill(t, 0xb8, 0xbf, IZ);
    t[0xc0] = M | I1;
    t[0xc1] = M | I1;
    t[0xc6] = M | I1;
    t[0xc7] = M | IZ;
    t = fill(t, 0xd0, 0xd3, M);
    t[0xf6] = M;
    t[0xf7] = M;
    t[0xfe] = M;
    t[0xff] = M;
    t
};

/// Opcodes after `0f` with which `f2` and `f3` are not used.
const TWO: [u8; 256] = {
    let mut t = [NO; 256];
    t = fill(t, 0x10, 0x11, M);
    t = fill(t, 0x28, 0x29, M);
    t = fill(t, 0x2e, 0x2f, M);
    t = fill(t, 0x40, 0x4f, M);
    t[0x54] = M;
    t[0x57] = M;
    t = fill(t, 0x58, 0x59, M);
    t = fill(t, 0x90, 0x9f, M);
    t[0xa3] = M;
    t[0xaf] = M;
    t = fill(t, 0xb6, 0xb7, M);
    t = fill(t, 0xbe, 0xbf, M);
    t
};

/// What follows the opcode of a group, if it is decoded here.
fn group(opcode: u8, reg: u8) -> Option<u8> {
    match (opcode, reg) {
        (0xc0 | 0xc1, 0..=5 | 7) => Some(M | I1),
        (0xd0..=0xd3, 0..=5 | 7) => Some(M),
        (0xc6, 0) => Some(M | I1),
        (0xc7, 0) => Some(M | IZ),
        (0xf6, 0) => Some(M | I1),
        (0xf7, 0) => Some(M | IZ),
        (0xf6 | 0xf7, 2..=7) => Some(M),
        (0xfe, 0 | 1) => Some(M),
        (0xff, 0 | 1 | 2 | 4 | 6) => Some(M),
        _ => None,
    }
}

/// Bytes that are looked at, so that none of the places below is outside of them.
const LOOKED_AT: usize = 32;

/// What an opcode of one byte is that goes elsewhere, if no prefix is in front of it.
const GOES: u8 = 16;

/// Opcodes of one byte without prefix: [`ONE`], and those that go elsewhere.
const BARE: [u8; 256] = {
    let mut t = ONE;
    t = fill(t, 0x70, 0x7f, GOES);
    t[0xe8] = GOES;
    t[0xe9] = GOES;
    t[0xeb] = GOES;
    t[0xc3] = GOES;
    t[0x90] = GOES;
    t
};

/// What is behind a ModRM byte, by that: bytes of displacement, and whether there is a SIB byte.
const BEHIND: [u8; 256] = {
    let mut t = [0; 256];
    let mut modrm = 0;
    while modrm < 0xc0 {
        let low = modrm & 7;
        let sib = if low == 4 { SIB } else { 0 };
        t[modrm] = sib
            | match modrm >> 6 {
                0 if low == 5 => 4,
                0 => 0,
                1 => 1,
                _ => 4,
            };
        modrm += 1;
    }
    t
};
const SIB: u8 = 8;

/// The instruction at the start of `bytes`, if it is one of the common ones.
#[inline]
pub(super) fn decode(bytes: &[u8], addr: u64) -> Option<Insn> {
    match bytes.first_chunk() {
        Some(looked) => decode_in(looked, addr),
        None => decode_last(bytes, addr),
    }
}

/// The same where fewer bytes are left.
#[cold]
fn decode_last(bytes: &[u8], addr: u64) -> Option<Insn> {
    let mut looked = [0; LOOKED_AT];
    let len = bytes.len();
    looked.get_mut(..len)?.copy_from_slice(bytes);
    let insn = decode_in(&looked, addr)?;
    (usize::from(insn.len) <= len).then_some(insn)
}

/// The same; what is decoded ends within the first 15 bytes.
#[inline(always)]
fn decode_in(bytes: &[u8; LOOKED_AT], addr: u64) -> Option<Insn> {
    let i32_at = |at: usize| -> i64 {
        let word = bytes.get(at..).and_then(<[u8]>::first_chunk);
        word.map_or(0, |word| i32::from_le_bytes(*word).into())
    };
    // No instruction of these forms is longer than so much.
    let byte = |at: usize| bytes[at & (LOOKED_AT - 1)];
    let plain = |len: usize| Insn {
        len: len as u8,
        flow: Flow::Next,
        field: None,
        prefixes: 0,
        landing_pad: false,
    };
    let goes = |len: usize, at: usize, flow: fn(u64, u8) -> Flow, number: u8| {
        let displacement = match len - at {
            1 => i64::from(byte(at) as i8),
            _ => i32_at(at),
        };
        let target = addr
            .wrapping_add(len as u64)
            .wrapping_add_signed(displacement);
        Some(Insn {
            flow: flow(target, number),
            field: Some(Field {
                at: at as u8,
                len: (len - at) as u8,
                kind: FieldKind::Branch,
                target,
                literal: 0,
            }),
            ..plain(len)
        })
    };
    let mut at = 0;
    let mut opcode = byte(0);
    let mut prefix = 0;
    let mut wide = false;
    let mut kind = BARE[usize::from(opcode)];
    if kind == GOES {
        return match opcode {
            0xe8 => goes(5, 1, |target, _| Flow::Call(target), 0),
            0xe9 => goes(5, 1, |target, _| Flow::Jump(target), 0),
            0xeb => goes(2, 1, |target, _| Flow::Jump(target), 0),
            0xc3 => Some(Insn {
                flow: Flow::Stop,
                ..plain(1)
            }),
            0x90 => Some(Insn {
                flow: Flow::Nothing,
                ..plain(1)
            }),
            _ => goes(2, 1, branch, opcode),
        };
    }
    if kind == NO {
        if matches!(opcode, 0x64..=0x66 | 0xf2 | 0xf3) {
            prefix = opcode;
            at = 1;
            opcode = byte(1);
        }
        if opcode & 0xf0 == 0x40 {
            wide = opcode & 8 != 0;
            at += 1;
            opcode = byte(at);
        }
        if opcode == 0x0f {
            at += 1;
            let second = byte(at);
            if at == 1 && second & 0xf0 == 0x80 {
                return goes(6, 2, branch, second);
            }
            let scalar = matches!(second, 0x10 | 0x11 | 0x58 | 0x59);
            if matches!(prefix, 0xf2 | 0xf3) && !scalar {
                return None;
            }
            kind = TWO[usize::from(second)];
        } else if matches!(prefix, 0xf2 | 0xf3) {
            return None;
        } else {
            kind = ONE[usize::from(opcode)];
        }
        if kind == NO {
            return None;
        }
    }
    at += 1;
    let mut flow = Flow::Next;
    let mut relative = None;
    if kind & M != 0 {
        let modrm = byte(at);
        at += 1;
        let reg = modrm >> 3 & 7;
        match opcode {
            0xc0 | 0xc1 | 0xc6 | 0xc7 | 0xd0..=0xd3 | 0xf6 | 0xf7 | 0xfe | 0xff => {
                kind = group(opcode, reg)?;
                match (opcode, reg) {
                    // Their operands' sizes are another matter.
                    (0xff, 2 | 4 | 6) if prefix == 0x66 => return None,
                    (0xff, 2) => flow = Flow::IndirectCall,
                    (0xff, 4) => {
                        flow = Flow::IndirectJump {
                            computed: modrm & 0xc7 != 5,
                        }
                    }
                    _ => {}
                }
            }
            0x8d if modrm >= 0xc0 => return None,
            _ => {}
        }
        if modrm & 0xc7 == 5 {
            relative = Some(at);
        }
        let behind = BEHIND[usize::from(modrm)];
        if behind & SIB != 0 {
            // Without a base there are four bytes, where there would be none with it.
            at += 1 + if modrm < 0x40 && byte(at) & 7 == 5 {
                4
            } else {
                0
            };
        }
        at += usize::from(behind & 7);
    }
    if kind & I1 != 0 {
        at += 1;
    } else if kind & IZ != 0 {
        at += match opcode {
            0xb8..=0xbf if wide => 8,
            0x68 if prefix == 0x66 => return None,
            _ if prefix == 0x66 && !wide => 2,
            _ => 4,
        };
    }
    // Longer ones there are not, and the decoder says why.
    if at > 15 {
        return None;
    }
    let field = relative.map(|field| Field {
        at: field as u8,
        len: 4,
        kind: if opcode == 0x8d {
            FieldKind::Forms
        } else {
            FieldKind::Accesses
        },
        target: addr
            .wrapping_add(at as u64)
            .wrapping_add_signed(i32_at(field)),
        literal: 0,
    });
    Some(Insn {
        flow,
        field,
        ..plain(at)
    })
}

/// The number that may be at an instruction's end: an immediate operand, or a displacement behind which no immediate
/// is, of four or eight bytes. What is not in the tables may end in one of four.
pub(super) fn last_number(bytes: &[u8]) -> Option<u64> {
    match last_width(bytes) {
        0 => None,
        8 => Some(u64::from_le_bytes(*bytes.last_chunk()?)),
        _ => Some(u64::from(u32::from_le_bytes(*bytes.last_chunk()?))),
    }
}

/// How many bytes that number has; 0 if there is none.
fn last_width(bytes: &[u8]) -> usize {
    let last = |bytes: &[u8]| -> Option<usize> {
        let is_prefix = |b: &u8| {
            matches!(
                b,
                0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3
            )
        };
        let prefixes = bytes.iter().take_while(|b| is_prefix(b)).count();
        let (prefixes, bytes) = bytes.split_at_checked(prefixes)?;
        // Of REX, what is in front of another prefix means nothing.
        let wide = prefixes.last().is_some_and(|last| last & 0xf8 == 0x48);
        let (mut kind, group_of, operands) = match bytes {
            // Of a register with 64 bits, and of an address without registers.
            [0xb8..=0xbf, ..] if wide => return Some(8),
            [0xa0..=0xa3, ..] if !prefixes.contains(&0x67) => return Some(8),
            // Of two bytes, and without immediate operand whatever the prefix.
            [
                0x0f,
                0x0d
                | 0x10..=0x1f
                | 0x28..=0x2f
                | 0x40..=0x6f
                | 0x74..=0x76
                | 0x7c..=0x7f
                | 0x90..=0x9f
                | 0xaf
                | 0xb0
                | 0xb1
                | 0xb6
                | 0xb7
                | 0xbe
                | 0xbf
                | 0xc0
                | 0xc1
                | 0xd0..=0xfe,
                rest @ ..,
            ] => (M, None, rest),
            // Of two bytes, and with one of one byte.
            [
                0x0f,
                0x70..=0x73 | 0xa4 | 0xac | 0xba | 0xc2 | 0xc4..=0xc6,
                ..,
            ] => return Some(0),
            [0x0f, ..] => return None,
            [opcode, rest @ ..] if !prefixes.iter().any(|b| matches!(b, 0xf2 | 0xf3)) => {
                (*ONE.get(usize::from(*opcode))?, Some(*opcode), rest)
            }
            _ => return None,
        };
        if kind == NO {
            return None;
        }
        let mut displaced = false;
        if kind & M != 0 {
            let modrm = *operands.first()?;
            if let Some(opcode) = group_of
                && matches!(
                    opcode,
                    0xc0 | 0xc1 | 0xc6 | 0xc7 | 0xd0..=0xd3 | 0xf6 | 0xf7 | 0xfe | 0xff
                )
            {
                kind = group(opcode, modrm >> 3 & 7)?;
            }
            let base = match modrm & 7 {
                4 => operands.get(1).map_or(5, |sib| sib & 7),
                low => low,
            };
            displaced = modrm >> 6 == 2 || modrm >> 6 == 0 && base == 5;
        }
        Some(match kind & (I1 | IZ) {
            // Of two bytes.
            IZ if prefixes.contains(&0x66) && !wide => 0,
            IZ => 4,
            0 if displaced => 4,
            _ => 0,
        })
    };
    last(bytes).unwrap_or(4)
}

fn branch(target: u64, opcode: u8) -> Flow {
    let cond = u16::from(opcode & 15);
    Flow::Branch {
        cond,
        inverse: Some(cond ^ 1),
        target,
    }
}

/// What conditions ask, by number without the lowest bit, which inverts them.
const ASKED: [u8; 8] = [
    flag::OVERFLOW,
    flag::CARRY,
    flag::ZERO,
    flag::CARRY | flag::ZERO,
    flag::SIGN,
    flag::PARITY,
    flag::SIGN | flag::OVERFLOW,
    flag::ZERO | flag::SIGN | flag::OVERFLOW,
];

/// What logical operations overwrite: the auxiliary flag may be left.
const LOGICAL: u8 = flag::ALL & !flag::AUXILIARY;

/// What an instruction that decodes, and is one of the most common ones, reads and overwrites; else `None`,
/// and the decoder is asked ([`super::effects`]).
pub(super) fn effects(bytes: &[u8]) -> Option<Effects> {
    let (rex, rest) = match bytes {
        [rex @ 0x40..=0x4f, rest @ ..] => (*rex, rest),
        _ => (0, bytes),
    };
    let (two, opcode, rest) = match rest {
        [0x0f, opcode, rest @ ..] => (true, *opcode, rest),
        [opcode, rest @ ..] => (false, *opcode, rest),
        [] => return None,
    };
    let mut e = Effects::default();
    let extended = u32::from(rex & 1) << 3;
    let low = 1u32 << (u32::from(opcode & 7) | extended);
    match (two, opcode) {
        (false, 0x70..=0x7f) | (true, 0x80..=0x8f) if rex == 0 => {
            e.flag_reads = *ASKED.get(usize::from(opcode >> 1 & 7))?;
            return Some(e);
        }
        (false, 0x50..=0x57) => {
            e.reads = low | 1 << 4;
            return Some(e);
        }
        (false, 0x58..=0x5f) => {
            (e.reads, e.kills) = (1 << 4, low);
            return Some(e);
        }
        (false, 0xb8..=0xbf) => {
            e.kills = low;
            return Some(e);
        }
        (true, 0xb6 | 0xb7 | 0xbe | 0xbf)
        | (
            false,
            0x00..=0x3f | 0x63 | 0x80 | 0x81 | 0x83..=0x85 | 0x88..=0x8b | 0x8d | 0xc6 | 0xc7,
        ) => {}
        _ => return None,
    }
    if !two && opcode < 0x40 && opcode & 7 > 3 {
        return None;
    }
    let modrm = *rest.first()?;
    let (mode, middle) = (modrm >> 6, modrm >> 3 & 7);
    let wide = opcode & 1 != 0 || !two && matches!(opcode, 0x63 | 0x8d);
    // Without REX, bytes 4 to 7 are the second ones of the first four registers.
    let register = |number: u8, extension: u8, wide: bool| -> u32 {
        let number = u32::from(number | extension);
        1 << if wide || rex != 0 { number } else { number & 3 }
    };
    let reg = register(middle, rex << 1 & 8, wide || two);
    let memory = mode != 3;
    // Of the operand: a register's bit, and those of an address.
    let mut operand = 0;
    if !memory {
        operand = register(modrm & 7, rex << 3 & 8, wide);
    } else if modrm & 7 == 4 {
        let sib = *rest.get(1)?;
        let index = sib >> 3 & 7 | rex << 2 & 8;
        if index != 4 {
            e.reads |= 1 << index;
        }
        if mode != 0 || sib & 7 != 5 {
            e.reads |= 1 << (u32::from(sib & 7) | extended);
        }
    } else if mode != 0 || modrm & 7 != 5 {
        e.reads |= 1 << (u32::from(modrm & 7) | extended);
    }
    // A write of one byte leaves the others.
    let written = |bit: u32, wide: bool| if wide { bit } else { 0 };
    if two {
        e.reads |= operand;
        e.kills |= reg;
        return Some(e);
    }
    match opcode {
        0x00..=0x3f | 0x80..=0x83 => {
            let group = opcode >= 0x80;
            let operation = if group { middle } else { opcode >> 3 };
            (e.flag_reads, e.flag_kills) = match operation {
                2 | 3 => (flag::CARRY, flag::ALL),
                1 | 4 | 6 => (0, LOGICAL),
                _ => (0, flag::ALL),
            };
            if !group && !memory && wide && operand == reg && matches!(operation, 5 | 6) {
                // Zero, whatever it was.
                e.kills |= reg;
                return Some(e);
            }
            e.reads |= operand | if group { 0 } else { reg };
        }
        0x84 | 0x85 => {
            e.reads |= operand | reg;
            e.flag_kills = LOGICAL;
        }
        0x88 | 0x89 => {
            e.reads |= reg;
            e.kills |= written(operand, wide);
        }
        0x63 | 0x8a | 0x8b => {
            e.reads |= operand;
            e.kills |= written(reg, wide);
        }
        0x8d if memory => e.kills |= reg,
        0xc6 | 0xc7 if middle == 0 => e.kills |= written(operand, wide),
        _ => return None,
    }
    Some(e)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether quick effects were said; what they are must be what the decoder says.
    fn compare_effects(bytes: &[u8]) -> bool {
        if super::super::decode_raw(bytes).is_none() {
            return false;
        }
        let Some(quick) = effects(bytes) else {
            return false;
        };
        let slow = super::super::effects::effects_slowly(bytes);
        assert_eq!(quick, slow, "{bytes:02x?}");
        true
    }

    #[test]
    fn quick_effects_agree_with_the_decoder_for_every_opcode_and_modrm_byte() {
        let mut some = 0;
        for rex in (0x3f..=0x4fu8).map(|r| (r != 0x3f).then_some(r)) {
            for map in [None, Some(0x0fu8)] {
                for opcode in 0..=255u8 {
                    for modrm in 0..=255u8 {
                        for sib in [0x24, 0x05, 0x65, 0x8b, 0xd8] {
                            let mut bytes: Vec<u8> = Vec::with_capacity(18);
                            bytes.extend(rex);
                            bytes.extend(map);
                            bytes.extend([opcode, modrm, sib, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
                            some += usize::from(compare_effects(&bytes));
                        }
                    }
                }
            }
        }
        assert!(some > 1_000_000, "{some}");
    }

    /// What another decoder takes for a number at the end must be one here. Gives whether none was said to be there.
    fn compare_end(bytes: &[u8]) -> bool {
        use iced_x86::{Code, Decoder};
        let mut decoder = Decoder::new(64, bytes, 0);
        let insn = decoder.decode();
        let len = insn.len();
        if insn.code() == Code::INVALID {
            return false;
        }
        let fields = decoder.get_constant_offsets(&insn);
        let ends = |at: usize, size: usize| match size {
            4 if at + size == len => {
                Some(u64::from(u32::from_le_bytes(*bytes[at..].first_chunk()?)))
            }
            8 if at + size == len => Some(u64::from_le_bytes(*bytes[at..].first_chunk()?)),
            _ => None,
        };
        let number = ends(fields.displacement_offset(), fields.displacement_size())
            .or_else(|| ends(fields.immediate_offset(), fields.immediate_size()));
        let said = last_number(&bytes[..len]);
        assert!(number.is_none() || said == number, "{bytes:02x?} {insn}");
        said.is_none()
    }

    /// Every number at the end is noticed, also where the tables leave an instruction to the decoder.
    #[test]
    fn no_number_at_the_end_of_an_instruction_is_overlooked() {
        let mut none = 0;
        for prefix in [None, Some(0x66u8), Some(0xf2), Some(0xf3), Some(0x65)] {
            for rex in [None, Some(0x41u8), Some(0x48)] {
                for map in [None, Some(0x0fu8)] {
                    for opcode in 0..=255u8 {
                        for modrm in 0..=255u8 {
                            for sib in [0x24, 0x05, 0x65, 0x8d] {
                                let mut bytes: Vec<u8> = Vec::with_capacity(18);
                                bytes.extend(prefix);
                                bytes.extend(rex);
                                bytes.extend(map);
                                bytes.extend([opcode, modrm, sib, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
                                none += usize::from(compare_end(&bytes));
                            }
                        }
                    }
                }
            }
        }
        assert!(none > 1_000_000, "{none}");
        // cmpl $0,0x40(%rsp), which was taken for 0x40247c, and movl $0x40247c,(%rsp).
        assert_eq!(last_number(&[0x83, 0x7c, 0x24, 0x40, 0x00]), None);
        let stored = [0xc7, 0x04, 0x24, 0x7c, 0x24, 0x40, 0x00];
        assert_eq!(last_number(&stored), Some(0x40_247c));
    }

    /// What was taken for numbers in Debian's python3.11 and gawk and in glibc, and kept functions in place.
    #[test]
    fn neither_short_operands_nor_halves_of_long_ones_are_numbers() {
        // movw $0x5c,(%rsi,%r8), which was taken for 0x5c0604; movq 0x0(%r13),%xmm0, for 0x457e0f.
        let short = [0x66, 0x42, 0xc7, 0x04, 0x06, 0x5c, 0x00];
        assert_eq!(last_number(&short), None);
        let without = [0xf3, 0x41, 0x0f, 0x7e, 0x45, 0x00];
        assert_eq!(last_number(&without), None);
        // nopl 0x0(%rax), for 0x401f0f; lock cmpxchg %ecx,0x0(%rbp), for 0x4db10f.
        assert_eq!(last_number(&[0x0f, 0x1f, 0x40, 0x00]), None);
        assert_eq!(last_number(&[0xf0, 0x0f, 0xb1, 0x4d, 0x00]), None);
        // movabs $0x44b82fa09b5a53,%r14, for 0x44b82f.
        let long = [0x49, 0xbe, 0x53, 0x5a, 0x9b, 0xa0, 0x2f, 0xb8, 0x44, 0x00];
        assert_eq!(last_number(&long), Some(0x44_b82f_a09b_5a53));
        // movabs $0x40247c,%rax, which was taken for none.
        let address = [0x48, 0xb8, 0x7c, 0x24, 0x40, 0, 0, 0, 0, 0];
        assert_eq!(last_number(&address), Some(0x40_247c));
    }

    /// What quick decoding says must be what the decoder says. Gives whether it said anything.
    fn compare(bytes: &[u8]) -> bool {
        let addr = 0x40_1000;
        let Some(quick) = decode(bytes, addr) else {
            return false;
        };
        let slow = super::super::decode_slowly(bytes, addr);
        assert_eq!(Some(quick), slow, "{bytes:02x?}");
        true
    }

    #[test]
    fn quick_decoding_agrees_with_the_decoder_for_every_opcode_modrm_byte_and_prefix() {
        let mut some = 0;
        let tail = [
            0x24u8, 0x11, 0x82, 0x33, 0xc4, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb,
        ];
        let tails = [tail, [0x05, 0xfe, 0xff, 0xff, 0xff, 1, 2, 3, 4, 5, 6, 7]];
        for prefix in [
            None,
            Some(0x66u8),
            Some(0xf2),
            Some(0xf3),
            Some(0x64),
            Some(0x65),
        ] {
            for rex in (0x3f..=0x4fu8).map(|r| (r != 0x3f).then_some(r)) {
                for map in [None, Some(0x0fu8)] {
                    for opcode in 0..=255u8 {
                        for modrm in 0..=255u8 {
                            let tail = &tails[usize::from(modrm) & 1];
                            let mut bytes: Vec<u8> = Vec::with_capacity(18);
                            bytes.extend(prefix);
                            bytes.extend(rex);
                            bytes.extend(map);
                            bytes.extend([opcode, modrm]);
                            bytes.extend(tail);
                            some += usize::from(compare(&bytes));
                        }
                    }
                }
            }
        }
        assert!(some > 1_000_000, "{some}");
    }

    #[test]
    fn quick_decoding_leaves_cut_instructions_alone() {
        let long = [0x66u8, 0x41, 0x81, 0x84, 0x24, 1, 2, 3, 4, 5, 6];
        let len = usize::from(decode(&long, 0).expect("an instruction").len);
        assert_eq!(len, long.len());
        for cut in 0..len {
            assert_eq!(decode(&long[..cut], 0), None);
        }
    }
}
