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
//! | `NOP` | does nothing |

use super::super::{Effects, Field, FieldKind, FlagStep, FlagsOver, Flow, Insn};
use crate::arch::step::flag;

const NO: u8 = 0;
/// No operands, or registers in the opcode.
const PLAIN: u8 = 1;
const M: u8 = 2;
const I1: u8 = 4;
const IZ: u8 = 8;
/// Does nothing, if the register in its ModRM byte is 0.
const NOP: u8 = 32;

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

/// Opcodes after `0f` without `66`, `f2` and `f3`.
const TWO: [u8; 256] = {
    let mut t = [NO; 256];
    t = fill(t, 0x10, 0x11, M);
    t[0x14] = M;
    t[0x1f] = M | NOP;
    t = fill(t, 0x28, 0x29, M);
    t = fill(t, 0x2e, 0x2f, M);
    t = fill(t, 0x40, 0x4f, M);
    t[0x51] = M;
    t = fill(t, 0x54, 0x5f, M);
    t = fill(t, 0x90, 0x9f, M);
    t[0xa3] = M;
    t[0xaf] = M;
    t = fill(t, 0xb6, 0xb7, M);
    t[0xba] = M | I1;
    t = fill(t, 0xbc, 0xbf, M);
    t[0xc6] = M | I1;
    t
};

/// The same with `66`.
const TWO_66: [u8; 256] = {
    let mut t = TWO;
    t = fill(t, 0x60, 0x62, M);
    t = fill(t, 0x6c, 0x6f, M);
    t[0x70] = M | I1;
    t = fill(t, 0x74, 0x76, M);
    t = fill(t, 0x7e, 0x7f, M);
    t[0xd4] = M;
    t[0xd6] = M;
    t[0xdb] = M;
    t[0xdf] = M;
    t[0xeb] = M;
    t[0xef] = M;
    t = fill(t, 0xfa, 0xfb, M);
    t[0xfe] = M;
    t
};

/// With `f2`: numbers alone, in vector registers.
const TWO_F2: [u8; 256] = {
    let mut t = [NO; 256];
    t = fill(t, 0x10, 0x11, M);
    t[0x2a] = M;
    t = fill(t, 0x2c, 0x2d, M);
    t[0x51] = M;
    t = fill(t, 0x58, 0x5a, M);
    t = fill(t, 0x5c, 0x5f, M);
    t
};

/// With `f3`: the same, and moves.
const TWO_F3: [u8; 256] = {
    let mut t = TWO_F2;
    t[0x5b] = M;
    t[0x6f] = M;
    t = fill(t, 0x7e, 0x7f, M);
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
    let mut second = 0;
    if kind == NO {
        if opcode == 0x2e || opcode == 0x66 && matches!(byte(1), 0x2e | 0x66) {
            let len = long_nop(bytes)?;
            return Some(Insn {
                flow: Flow::Nothing,
                ..plain(len)
            });
        }
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
            second = byte(at);
            if at == 1 && second & 0xf0 == 0x80 {
                return goes(6, 2, branch, second);
            }
            if (prefix, at, second, byte(at + 1)) == (0xf3, 2, 0x1e, 0xfa) {
                // endbr64
                return Some(Insn {
                    landing_pad: true,
                    ..plain(4)
                });
            }
            let table = match prefix {
                0x66 => &TWO_66,
                0xf2 => &TWO_F2,
                0xf3 => &TWO_F3,
                _ => &TWO,
            };
            kind = table[usize::from(second)];
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
            0x0f => match second {
                0x1f if reg != 0 || modrm & 0xc7 == 5 => return None,
                0x1f => flow = Flow::Nothing,
                // A bit that an immediate byte says.
                0xba if reg < 4 => return None,
                _ => {}
            },
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

/// Bytes of a nop of several bytes with prefixes that mean nothing in it, as assemblers make them for padding.
#[cold]
fn long_nop(bytes: &[u8; LOOKED_AT]) -> Option<usize> {
    let at = bytes.iter().position(|b| !matches!(b, 0x2e | 0x66))?;
    let [0x0f, 0x1f, modrm, sib, ..] = *bytes.get(at..)? else {
        return None;
    };
    if modrm & 0x38 != 0 || modrm & 0xc7 == 5 {
        return None;
    }
    let behind = BEHIND[usize::from(modrm)];
    let without_base = modrm < 0x40 && sib & 7 == 5;
    let len = match behind & SIB {
        0 => at + 3 + usize::from(behind),
        _ if without_base => at + 8,
        _ => at + 4 + usize::from(behind & 7),
    };
    (len <= 15).then_some(len)
}

/// Not in [`SOON`].
const ELSE: u8 = 1;
/// The middle field of the ModRM byte is 0.
const FIRST: u8 = 16;
/// The operand is in memory.
const IN_MEMORY: u8 = 64;
/// With REX.W the immediate has eight bytes.
const WIDE: u8 = 128;

/// Instructions without prefix but REX whose length a few sums say, by opcode; behind them those of two bytes.
const SOON: [u8; 512] = {
    let mut t = [ELSE; 512];
    let mut op = 0;
    while op < 256 {
        t[op] = match op {
            0xc6 | 0xc7 => ONE[op] | FIRST,
            0x8d => ONE[op] | IN_MEMORY,
            0xb8..=0xbf => IZ | WIDE,
            0xc0 | 0xc1 | 0xd0..=0xd3 | 0xf6 | 0xf7 | 0xfe | 0xff => ELSE,
            _ if ONE[op] == NO => ELSE,
            // Of these the lowest bit says that they are there.
            _ => ONE[op] & !PLAIN,
        };
        t[op + 256] = match op {
            0x1f | 0xba => ELSE,
            _ if TWO[op] == NO => ELSE,
            _ => TWO[op],
        };
        op += 1;
    }
    t
};

/// The length of the instruction at the start of `bytes`, if it is one of the common ones that continue with the next,
/// and whether there is an address in it: what [`decode`] says.
#[inline(always)]
pub(super) fn straight(bytes: &[u8]) -> Option<(u8, bool)> {
    let looked: &[u8; LOOKED_AT] = bytes.first_chunk()?;
    soon(looked).or_else(|| later(looked))
}

/// The same of those that are not.
#[inline(never)]
fn later(looked: &[u8; LOOKED_AT]) -> Option<(u8, bool)> {
    let insn = decode_in(looked, 0)?;
    let straight = insn.flow == Flow::Next && !insn.landing_pad;
    straight.then_some((insn.len, insn.field.is_some()))
}

/// The same of those in [`SOON`], told without a branch.
#[inline(always)]
fn soon(looked: &[u8; LOOKED_AT]) -> Option<(u8, bool)> {
    let word = u64::from_le_bytes(*looked.first_chunk()?);
    let rex = u32::from(word & 0xf0 == 0x40);
    let wide = word as u8 >> 3 & rex as u8;
    let word = word >> (rex * 8);
    let two = u32::from(word & 0xff == 0x0f);
    let word = word >> (two * 8);
    let kind = SOON[two as usize * 256 + (word & 0xff) as usize];
    let modrm = (word >> 8) as u8;
    let register = u8::from(modrm >= 0xc0);
    let further = u8::from(modrm & 0x38 != 0);
    let other = kind & ELSE | kind >> 4 & further | kind >> 6 & register & 1 | kind >> 7 & wide;
    if other & 1 != 0 {
        return None;
    }
    let has_modrm = kind >> 1 & 1;
    let behind = BEHIND[usize::from(modrm)];
    // Without a base there are four bytes, where there would be none with it.
    let base = word >> 16 & 7;
    let without = u8::from(base == 5) & u8::from(modrm < 0x40) & behind >> 3;
    let operand = 1 + (behind & 7) + (behind >> 3) + 4 * without;
    let immediate = (kind >> 2 & 1) + 4 * (kind >> 3 & 1);
    let len = 1 + (rex + two) as u8 + has_modrm * operand + immediate;
    Some((len, has_modrm & u8::from(modrm & 0xc7 == 5) != 0))
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
    let (prefixed, rest) = match bytes {
        [0x66 | 0xf2 | 0xf3, rest @ ..] => (true, rest),
        _ => (false, bytes),
    };
    let (rex, rest) = match rest {
        [rex @ 0x40..=0x4f, rest @ ..] => (*rex, rest),
        _ => (0, rest),
    };
    match rest {
        [0x0f, opcode, rest @ ..] => effects_of_two(prefixed, rex, *opcode, rest),
        [opcode, rest @ ..] if !prefixed => effects_of_one(rex, *opcode, rest),
        _ => None,
    }
}

/// What an instruction that decodes, and is one of the most common ones, does to flags: those that [`effects`] says it
/// reads and overwrites.
#[inline]
fn flags(bytes: &[u8]) -> Option<(u8, u8)> {
    let (prefix, rest) = match bytes {
        [prefix @ (0x64..=0x66 | 0xf2 | 0xf3), rest @ ..] => (*prefix, rest),
        _ => (0, bytes),
    };
    // Where operands in memory are is another matter.
    let prefixed = matches!(prefix, 0x66 | 0xf2 | 0xf3);
    let (rex, rest) = match rest {
        [rex @ 0x40..=0x4f, rest @ ..] => (*rex, rest),
        _ => (0, rest),
    };
    let carry = flag::CARRY;
    Some(match *rest {
        [0x0f, opcode, ..] => match opcode {
            0x10 | 0x11 | 0x28 | 0x29 | 0x54 | 0x57..=0x59 | 0x5c | 0x5e => (0, 0),
            0x6f | 0x7f | 0xd6 | 0xef if prefixed => (0, 0),
            0x60..=0x62
            | 0x6c
            | 0x6e
            | 0x70
            | 0x74..=0x76
            | 0x7e
            | 0xc5
            | 0xd4
            | 0xdb
            | 0xeb
            | 0xfa
            | 0xfe
                if prefix == 0x66 =>
            {
                (0, 0)
            }
            _ if prefixed => return None,
            0x40..=0x4f | 0x90..=0x9f => (*ASKED.get(usize::from(opcode >> 1 & 7))?, 0),
            0xa3 => (0, carry),
            0xaf => (0, carry | flag::OVERFLOW),
            0xb6 | 0xb7 | 0xbe | 0xbf => (0, 0),
            _ => return None,
        },
        _ if matches!(prefix, 0xf2 | 0xf3) => return None,
        [opcode, modrm, behind, ..] => match (opcode, modrm >> 3 & 7) {
            (0x00..=0x3f, _) if opcode & 7 < 6 => flags_of(opcode >> 3),
            (0x50..=0x5f | 0x63 | 0x68 | 0x6a | 0x88..=0x8b | 0x8d | 0x99 | 0xb0..=0xbf, _) => {
                (0, 0)
            }
            (0x69 | 0x6b, _) => (0, carry | flag::OVERFLOW),
            (0x80 | 0x81 | 0x83, middle) => flags_of(middle),
            (0x84 | 0x85 | 0xa8 | 0xa9, _) => (0, LOGICAL),
            (0xc0 | 0xc1, middle) if modrm >= 0xc0 && !prefixed => {
                let counted = if opcode & 1 != 0 && rex & 8 != 0 {
                    63
                } else {
                    31
                };
                (0, flags_of_shift(middle, behind & counted)?)
            }
            (0xd0 | 0xd1, middle) if !prefixed => (0, flags_of_shift(middle, 1)?),
            // By a register, which may be 0.
            (0xd2 | 0xd3, 0 | 1 | 4 | 5 | 7) => (0, 0),
            (0xc6 | 0xc7, 0) | (0xf6 | 0xf7, 2) | (0xff, 6) => (0, 0),
            (0xf6 | 0xf7, 0) => (0, LOGICAL),
            (0xf6 | 0xf7, 3) => (0, flag::ALL),
            (0xf6 | 0xf7, 4 | 5) => (0, carry | flag::OVERFLOW),
            (0xf6 | 0xf7, 6 | 7) => (0, 0),
            (0xfe | 0xff, 0 | 1) => (0, flag::ALL & !carry),
            _ => return None,
        },
        _ => return None,
    })
}

/// See [`Arch::flags_over`](super::super::Arch::flags_over).
pub(super) fn flags_over(bytes: &[u8], mut open: u8, most: usize) -> FlagsOver {
    let mut over = FlagsOver::default();
    while open != 0
        && over.count < most
        && let Some(looked) = bytes.get(over.len..).and_then(<[u8]>::first_chunk)
        && let Some((len, _)) = soon(looked)
        && let Some((reads, kills)) = flags(looked)
    {
        if open & reads != 0 {
            return over;
        }
        open &= !kills;
        over.len += usize::from(len);
        over.count += 1;
    }
    FlagsOver {
        open: Some(open),
        ..over
    }
}

/// See [`Arch::flag_step`](super::super::Arch::flag_step).
pub(super) fn flag_step(bytes: &[u8], addr: u64) -> Option<FlagStep> {
    let looked: &[u8; LOOKED_AT] = bytes.first_chunk()?;
    if let Some((len, _)) = soon(looked) {
        let (reads, kills) = flags(looked)?;
        return Some(FlagStep::Next { len, reads, kills });
    }
    let insn = decode_in(looked, addr)?;
    let len = insn.len;
    Some(match insn.flow {
        Flow::Next => {
            let (reads, kills) = flags(looked)?;
            FlagStep::Next { len, reads, kills }
        }
        Flow::Nothing => FlagStep::Next {
            len,
            reads: 0,
            kills: 0,
        },
        Flow::Branch { cond, target, .. } => FlagStep::Branch {
            len,
            reads: *ASKED.get(usize::from(cond >> 1))?,
            target,
        },
        Flow::Jump(target) => FlagStep::Jump(target),
        Flow::Call(_) | Flow::IndirectCall => FlagStep::Leaves,
        Flow::Stop if looked[0] == 0xc3 => FlagStep::Leaves,
        _ => return None,
    })
}

/// The registers that a ModRM byte and what is behind it name, one bit each.
struct Operands {
    /// Of the middle field, if it is a register of one byte and if it is a wider one.
    reg: (u32, u32),
    /// The same of the register that is the operand; nothing where that is in memory.
    operand: (u32, u32),
    /// Of its address.
    address: u32,
    /// The middle field itself.
    middle: u8,
    memory: bool,
}

impl Operands {
    #[inline]
    fn of(rex: u8, rest: &[u8]) -> Option<Self> {
        let modrm = *rest.first()?;
        let (mode, middle, low) = (modrm >> 6, modrm >> 3 & 7, modrm & 7);
        let extended = u32::from(rex & 1) << 3;
        // Without REX, bytes 4 to 7 are the second ones of the first four registers.
        let register = |number: u8, extension: u8| -> (u32, u32) {
            let number = u32::from(number | extension);
            (1 << if rex != 0 { number } else { number & 3 }, 1 << number)
        };
        let memory = mode != 3;
        let (mut operand, mut address) = ((0, 0), 0);
        if !memory {
            operand = register(low, rex << 3 & 8);
        } else if low == 4 {
            let sib = *rest.get(1)?;
            let index = sib >> 3 & 7 | rex << 2 & 8;
            if index != 4 {
                address |= 1 << index;
            }
            if mode != 0 || sib & 7 != 5 {
                address |= 1 << (u32::from(sib & 7) | extended);
            }
        } else if mode != 0 || low != 5 {
            address |= 1 << (u32::from(low) | extended);
        }
        Some(Operands {
            reg: register(middle, rex << 1 & 8),
            operand,
            address,
            middle,
            memory,
        })
    }
}

/// Flags that an operation of the first eight reads and overwrites.
fn flags_of(operation: u8) -> (u8, u8) {
    match operation {
        2 | 3 => (flag::CARRY, flag::ALL),
        1 | 4 | 6 => (0, LOGICAL),
        _ => (0, flag::ALL),
    }
}

/// Flags that a shift or rotation by a constant overwrites; `None`: not here.
fn flags_of_shift(operation: u8, count: u8) -> Option<u8> {
    Some(match (operation, count) {
        (0 | 1 | 4 | 5 | 7, 0) => 0,
        (0 | 1, 1) => flag::CARRY | flag::OVERFLOW,
        (0 | 1, _) => flag::CARRY,
        (4 | 5 | 7, 1) => LOGICAL,
        (4 | 5 | 7, _) => LOGICAL & !flag::OVERFLOW,
        _ => return None,
    })
}

/// The same for an opcode of one byte.
fn effects_of_one(rex: u8, opcode: u8, rest: &[u8]) -> Option<Effects> {
    const RAX: u32 = 1;
    const RDX: u32 = 1 << 2;
    const RSP: u32 = 1 << 4;
    let mut e = Effects::default();
    let low = 1u32 << (u32::from(opcode & 7) | u32::from(rex & 1) << 3);
    match opcode {
        0x00..=0x3f if opcode & 7 > 5 => return None,
        0x04..=0x3f if opcode & 7 > 3 => {
            e.reads = RAX;
            (e.flag_reads, e.flag_kills) = flags_of(opcode >> 3);
            return Some(e);
        }
        0x50..=0x57 => {
            e.reads = low | RSP;
            return Some(e);
        }
        0x58..=0x5f => {
            (e.reads, e.kills) = (RSP, low);
            return Some(e);
        }
        0x68 | 0x6a => {
            e.reads = RSP;
            return Some(e);
        }
        0x70..=0x7f if rex == 0 => {
            e.flag_reads = *ASKED.get(usize::from(opcode >> 1 & 7))?;
            return Some(e);
        }
        0x99 => {
            (e.reads, e.kills) = (RAX, RDX);
            return Some(e);
        }
        0xa8 | 0xa9 => {
            (e.reads, e.flag_kills) = (RAX, LOGICAL);
            return Some(e);
        }
        0xb0..=0xb7 => return Some(e),
        0xb8..=0xbf => {
            e.kills = low;
            return Some(e);
        }
        0x00..=0x3f | 0x63 | 0x69 | 0x6b | 0x80 | 0x81 | 0x83..=0x85 | 0x88..=0x8b | 0x8d => {}
        0xc0 | 0xc1 | 0xc6 | 0xc7 | 0xd0 | 0xd1 | 0xf6 | 0xf7 | 0xfe | 0xff => {}
        _ => return None,
    }
    let of = Operands::of(rex, rest)?;
    let wide = opcode & 1 != 0;
    let pick = |both: (u32, u32)| if wide { both.1 } else { both.0 };
    let (reg, operand) = (pick(of.reg), pick(of.operand));
    // A write of one byte leaves the others.
    let written = |bit: u32| if wide { bit } else { 0 };
    e.reads = of.address;
    match (opcode, of.middle) {
        (0x00..=0x3f | 0x80..=0x83, middle) => {
            let group = opcode >= 0x80;
            let operation = if group { middle } else { opcode >> 3 };
            (e.flag_reads, e.flag_kills) = flags_of(operation);
            if !group && !of.memory && wide && operand == reg && matches!(operation, 5 | 6) {
                // Zero, whatever it was.
                e.kills = reg;
                return Some(e);
            }
            e.reads |= operand | if group { 0 } else { reg };
        }
        (0x63, _) => {
            e.reads |= of.operand.1;
            e.kills = of.reg.1;
        }
        (0x69 | 0x6b, _) => {
            e.reads |= operand;
            e.kills = reg;
            e.flag_kills = flag::CARRY | flag::OVERFLOW;
        }
        (0x84 | 0x85, _) => {
            e.reads |= operand | reg;
            e.flag_kills = LOGICAL;
        }
        (0x88 | 0x89, _) => {
            e.reads |= reg;
            e.kills = written(operand);
        }
        (0x8a | 0x8b, _) => {
            e.reads |= operand;
            e.kills = written(reg);
        }
        (0x8d, _) if of.memory => e.kills = of.reg.1,
        (0xc6 | 0xc7, 0) => e.kills = written(operand),
        (0xc0 | 0xc1, middle) => {
            // Where the count is, is not looked for behind an address.
            let count = rest.get(1).filter(|_| !of.memory)?;
            let counted = if wide && rex & 8 != 0 { 63 } else { 31 };
            e.reads |= operand;
            e.flag_kills = flags_of_shift(middle, count & counted)?;
        }
        (0xd0 | 0xd1, middle) => {
            e.reads |= operand;
            e.flag_kills = flags_of_shift(middle, 1)?;
        }
        (0xf6 | 0xf7, 0) => {
            e.reads |= operand;
            e.flag_kills = LOGICAL;
        }
        (0xf6 | 0xf7, 2) => e.reads |= operand,
        (0xf6 | 0xf7, 3) => {
            e.reads |= operand;
            e.flag_kills = flag::ALL;
        }
        (0xfe | 0xff, 0 | 1) => {
            e.reads |= operand;
            e.flag_kills = flag::ALL & !flag::CARRY;
        }
        (0xff, 2 | 6) => e.reads |= operand | RSP,
        (0xff, 4) => e.reads |= operand,
        _ => return None,
    }
    Some(e)
}

/// The same for one of two bytes, the first of which is `0f`; `prefixed`: with `66`, `f2` or `f3`.
fn effects_of_two(prefixed: bool, rex: u8, opcode: u8, rest: &[u8]) -> Option<Effects> {
    let mut e = Effects::default();
    // What is between vector registers and memory. Comparisons write the flags.
    let vector = match opcode {
        0x10 | 0x11 | 0x28 | 0x29 | 0x54 | 0x57..=0x59 | 0x5c | 0x5e => true,
        0x6f | 0x7f | 0xd6 | 0xef => prefixed,
        _ => false,
    };
    if vector {
        e.reads = Operands::of(rex, rest)?.address;
        return Some(e);
    }
    let asked = *ASKED.get(usize::from(opcode >> 1 & 7))?;
    match opcode {
        _ if prefixed => return None,
        0x80..=0x8f if rex == 0 => {
            e.flag_reads = asked;
            return Some(e);
        }
        0x40..=0x4f | 0x90..=0x9f | 0xa3 | 0xaf | 0xb6 | 0xb7 | 0xbe | 0xbf => {}
        _ => return None,
    }
    let of = Operands::of(rex, rest)?;
    e.reads = of.address;
    match opcode {
        // The register may be left as it was, and is not read.
        0x40..=0x4f => {
            e.reads |= of.operand.1;
            e.flag_reads = asked;
        }
        0x90..=0x9f => e.flag_reads = asked,
        0xa3 => {
            e.reads |= of.operand.1 | of.reg.1;
            e.flag_kills = flag::CARRY;
        }
        0xaf => {
            e.reads |= of.operand.1 | of.reg.1;
            e.flag_kills = flag::CARRY | flag::OVERFLOW;
        }
        _ => {
            e.reads |= if opcode & 1 != 0 {
                of.operand.1
            } else {
                of.operand.0
            };
            e.kills = of.reg.1;
        }
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
        let slow = super::super::effects::effects_slowly(bytes);
        if let Some(flags) = flags(bytes) {
            assert_eq!(flags, (slow.flag_reads, slow.flag_kills), "{bytes:02x?}");
        }
        let Some(quick) = effects(bytes) else {
            return false;
        };
        assert_eq!(quick, slow, "{bytes:02x?}");
        true
    }

    #[test]
    fn quick_effects_agree_with_the_decoder_for_every_opcode_and_modrm_byte() {
        let mut some = 0;
        // Counts of shifts among them.
        let behind = [0x24, 0x05, 0x65, 0x8b, 0xd8, 0x00, 0x01, 0x20, 0x21, 0x40];
        for prefix in [
            None,
            Some(0x64),
            Some(0x65),
            Some(0x66),
            Some(0xf2),
            Some(0xf3),
        ] {
            for rex in (0x3f..=0x4fu8).map(|r| (r != 0x3f).then_some(r)) {
                for (map, opcode) in [None, Some(0x0fu8)]
                    .into_iter()
                    .flat_map(|map| (0..=255u8).map(move |opcode| (map, opcode)))
                {
                    for modrm in 0..=255u8 {
                        for sib in behind {
                            let mut bytes: Vec<u8> = Vec::with_capacity(18);
                            bytes.extend(prefix);
                            bytes.extend(rex);
                            bytes.extend(map);
                            bytes.extend([opcode, modrm, sib, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
                            some += usize::from(compare_effects(&bytes));
                        }
                    }
                }
            }
        }
        assert!(some > 5_000_000, "{some}");
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
        let quick = decode(bytes, addr);
        let mut longer = [0; 64];
        longer[..bytes.len()].copy_from_slice(bytes);
        if let Some(straight) = straight(&longer) {
            let said = quick.map(|i| (i.flow, i.landing_pad, (i.len, i.field.is_some())));
            assert_eq!(said, Some((Flow::Next, false, straight)), "{bytes:02x?}");
        }
        let Some(quick) = quick else {
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
    fn flags_are_followed_to_where_branches_lead() {
        let step = |code: &[u8]| {
            let mut bytes = [0xccu8; 40];
            bytes[..code.len()].copy_from_slice(code);
            flag_step(&bytes, 0x1000)
        };
        let (len, kills) = (2, flag::ALL & !flag::AUXILIARY);
        let test = FlagStep::Next {
            len,
            reads: 0,
            kills,
        };
        assert_eq!(step(&[0x85, 0xc0]), Some(test));
        let nop = FlagStep::Next {
            len: 3,
            reads: 0,
            kills: 0,
        };
        assert_eq!(step(&[0x0f, 0x1f, 0x00]), Some(nop));
        let reads = flag::ZERO | flag::SIGN | flag::OVERFLOW;
        let greater = |len, target| Some(FlagStep::Branch { len, reads, target });
        assert_eq!(step(&[0x7f, 0x10]), greater(2, 0x1012));
        assert_eq!(step(&[0x0f, 0x8f, 0, 1, 0, 0]), greater(6, 0x1106));
        assert_eq!(step(&[0xeb, 0xfe]), Some(FlagStep::Jump(0x1000)));
        assert_eq!(step(&[0xe8, 0, 0, 0, 0]), Some(FlagStep::Leaves));
        assert_eq!(step(&[0xc3]), Some(FlagStep::Leaves));
        // lea, mov, test, then what is not looked at; and a condition in front of the comparison.
        let mut code = vec![0x48u8, 0x8d, 0x04, 0x07, 0x89, 0xd8, 0x85, 0xc0, 0xc3];
        code.resize(64, 0);
        let over = |code: &[u8], open, most| flags_over(code, open, most);
        let all = FlagsOver {
            len: 8,
            count: 3,
            open: Some(0),
        };
        assert_eq!(over(&code, flag::ZERO, 32), all);
        let open = Some(flag::AUXILIARY);
        assert_eq!(over(&code, flag::ALL, 32), FlagsOver { open, ..all });
        let two = FlagsOver {
            len: 6,
            count: 2,
            open: Some(flag::ZERO),
        };
        assert_eq!(over(&code, flag::ZERO, 2), two);
        code[4..7].copy_from_slice(&[0x0f, 0x94, 0xc0]);
        let read = FlagsOver {
            len: 4,
            count: 1,
            open: None,
        };
        assert_eq!(over(&code, flag::ZERO, 32), read);
        assert_eq!(over(&code[..20], flag::ZERO, 32).len, 0);
        // Calls through a register and memory; a load from the thread's memory.
        assert_eq!(step(&[0xff, 0xd0]), Some(FlagStep::Leaves));
        assert_eq!(step(&[0x41, 0xff, 0x57, 8]), Some(FlagStep::Leaves));
        let canary = FlagStep::Next {
            len: 9,
            reads: 0,
            kills: 0,
        };
        let load = [0x64, 0x48, 0x8b, 0x04, 0x25, 0x28, 0, 0, 0];
        assert_eq!(step(&load), Some(canary));
        // An indirect jump, a shift by a register through the carry flag, a trap.
        for other in [&[0xffu8, 0xe0][..], &[0xd3, 0xd0], &[0x0f, 0x0b]] {
            assert_eq!(step(other), None);
        }
    }

    #[test]
    fn straight_code_and_padding_are_what_the_decoder_takes_them_for() {
        let padding: [&[u8]; 8] = [
            &[0x0f, 0x1f, 0x00],
            &[0x0f, 0x1f, 0x40, 0x00],
            &[0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00],
            &[0x0f, 0x1f, 0x80, 0, 0, 0, 0],
            &[0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0],
            &[0x2e, 0x0f, 0x1f, 0x04, 0x25, 1, 2, 3, 4],
            &[0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0],
            &[
                0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0,
            ],
        ];
        let mut tail = [0xccu8; 48];
        for nop in padding {
            tail[..nop.len()].copy_from_slice(nop);
            assert!(compare(&tail), "{nop:02x?}");
            let insn = decode(&tail, 0).expect("a nop");
            assert_eq!(
                (usize::from(insn.len), insn.flow),
                (nop.len(), Flow::Nothing)
            );
            assert_eq!(straight(&tail), None);
        }
        // With other prefixes, another ModRM byte, or too long.
        let others: [&[u8]; 4] = [
            &[0x66, 0x66, 0x48, 0x0f, 0x1f, 0x00],
            &[0x2e, 0x0f, 0x1f, 0x05, 0, 0, 0, 0],
            &[0x2e, 0x90],
            &[0x66; 16],
        ];
        for other in others {
            tail[..other.len()].copy_from_slice(other);
            assert_eq!(decode(&tail, 0), None, "{other:02x?}");
        }
        let lea = [0x48u8, 0x8d, 0x05, 1, 2, 3, 4];
        tail[..7].copy_from_slice(&lea);
        assert_eq!(straight(&tail), Some((7, true)));
        tail[..3].copy_from_slice(&[0x48, 0x89, 0xd8]);
        assert_eq!(straight(&tail), Some((3, false)));
        for goes in [
            &[0xc3u8][..],
            &[0xeb, 0],
            &[0x0f, 0x84, 0, 0, 0, 0],
            &[0xf3, 0x0f, 0x1e, 0xfa],
        ] {
            tail[..goes.len()].copy_from_slice(goes);
            assert_eq!(straight(&tail), None, "{goes:02x?}");
            assert!(compare(&tail));
        }
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
