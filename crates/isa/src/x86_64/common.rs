//! The encodings that compiled code is made of, read without the full decoder.
//!
//! A rewriter looks at every instruction of a program several times, and nine of ten have one of few shapes:
//! at most one of the prefixes `66`, `f2`, `f3`, a REX prefix, an opcode of one byte or of two beginning with
//! `0f`, a ModRM byte. [`Shape`] is what such bytes say; [`decode`] makes an [`Insn`] of it and [`effects`]
//! what it reads and overwrites. Both say `None` to everything else, which is left to iced-x86, and must
//! agree with that wherever they do answer: tests compare them for every prefix, opcode and ModRM byte.
//!
//! | opcode | decoded | effects |
//! |---|---|---|
//! | `00`–`3f` arithmetic, `63`, `69`, `6b`, `80`–`8b`, `8d`, `a8`, `a9`, `b0`–`bf`, `c6`, `c7` | yes | yes |
//! | `50`–`5f` push, pop; `98`, `99` | yes | yes |
//! | `c1`, `d1`, `d3` shifts | yes | shifts by constants other than 0 |
//! | `f6`, `f7`, `fe`, `ff` | yes | `test`, `not`, `neg`, `inc`, `dec` |
//! | `70`–`7f`, `e8`, `e9`, `eb`, `c3`, `ff /2`, `ff /4`, `0f 80`–`0f 8f`, without prefixes | yes | by their [`Flow`] |
//! | `0f 40`–`0f 4f` cmov, `0f 90`–`0f 9f` set, `0f af`, `0f b6`, `0f b7`, `0f be`, `0f bf` | yes | yes |
//! | `0f 1f /0` nop | yes | yes |
//! | `0f 10`, `11`, `28`, `29`, `2e`, `2f`, `51`, `54`, `57`–`59`, `5c`–`5f`, `6f`, `7f`, `d6`, `ef` | yes | yes |

use super::{AF, CF, OF, PF, SF, ZF};
use crate::{Cond, Effects, FixupKind, Flow, Insn, PcField, RegSet, Traits};

/// What the bytes of an instruction say, up to its immediate.
#[derive(Clone, Copy)]
struct Shape {
    /// `66`, `f2`, `f3` or 0.
    prefix: u8,
    /// REX prefix, or 0.
    rex: u8,
    /// Opcode, with 0x100 after `0f`.
    opcode: u16,
    /// ModRM byte, or 0.
    modrm: u8,
    /// SIB byte, or 0.
    sib: u8,
    /// Where the displacement begins.
    disp: u8,
    /// Where the immediate begins.
    imm: u8,
    /// Where the instruction ends.
    len: u8,
}

const NO: u8 = 0;
/// Opcode only.
const O: u8 = 1;
/// ModRM byte.
const M: u8 = 2;
/// Immediate of one byte.
const I1: u8 = 4;
/// Immediate of four bytes; two with `66`, which is left alone.
const I4: u8 = 8;
/// Immediate of four bytes, eight with REX.W.
const IV: u8 = 16;
/// Without any prefix only.
const BARE: u8 = 32;
/// May have `f2` or `f3`, and means something else then, of the same shape.
const REP: u8 = 64;

/// What follows each opcode; those after `0f` in the second half.
const FOLLOWS: [u8; 512] = {
    let mut t = [NO; 512];
    let mut op = 0;
    while op < 0x40 {
        let mut form = op;
        while form < op + 4 {
            t[form] = M;
            form += 1;
        }
        t[op + 4] = I1;
        t[op + 5] = I4;
        op += 8;
    }
    let ranges: [(usize, usize, u8); 45] = [
        (0x50, 0x5f, O),
        (0x63, 0x63, M),
        (0x69, 0x69, M | I4),
        (0x6b, 0x6b, M | I1),
        (0x70, 0x7f, I1 | BARE),
        (0x80, 0x80, M | I1),
        (0x81, 0x81, M | I4),
        (0x83, 0x83, M | I1),
        (0x84, 0x85, M),
        (0x88, 0x8b, M),
        (0x8d, 0x8d, M),
        (0x98, 0x99, O),
        (0xa8, 0xa8, I1),
        (0xa9, 0xa9, I4),
        (0xb0, 0xb7, I1),
        (0xb8, 0xbf, IV),
        (0xc1, 0xc1, M | I1),
        (0xc3, 0xc3, O | BARE),
        (0xc6, 0xc6, M | I1),
        (0xc7, 0xc7, M | I4),
        (0xd1, 0xd1, M),
        (0xd3, 0xd3, M),
        (0xe8, 0xe9, I4 | BARE),
        (0xeb, 0xeb, I1 | BARE),
        (0xf6, 0xf7, M),
        (0xfe, 0xff, M),
        (0x110, 0x111, M | REP),
        (0x11f, 0x11f, M | BARE),
        (0x128, 0x129, M),
        (0x12e, 0x12f, M),
        (0x140, 0x14f, M),
        (0x151, 0x151, M | REP),
        (0x154, 0x154, M),
        (0x157, 0x157, M),
        (0x158, 0x159, M | REP),
        (0x15c, 0x15f, M | REP),
        (0x16f, 0x16f, M | REP),
        (0x17f, 0x17f, M | REP),
        (0x180, 0x18f, I4 | BARE),
        (0x190, 0x19f, M),
        (0x1af, 0x1af, M),
        (0x1b6, 0x1b7, M),
        (0x1be, 0x1bf, M),
        (0x1d6, 0x1d6, M | REP),
        (0x1ef, 0x1ef, M),
    ];
    let mut i = 0;
    while i < ranges.len() {
        let (from, to, kind) = ranges[i];
        let mut op = from;
        while op <= to {
            t[op] = kind;
            op += 1;
        }
        i += 1;
    }
    t
};

impl Shape {
    /// Of the instruction at the beginning of `bytes`.
    #[inline(always)]
    fn of(bytes: &[u8]) -> Option<Shape> {
        let mut at = 0;
        let mut next = *bytes.first()?;
        let mut prefix = 0;
        if matches!(next, 0x66 | 0xf2 | 0xf3) {
            prefix = next;
            at = 1;
            next = *bytes.get(1)?;
        }
        let mut rex = 0;
        if next & 0xf0 == 0x40 {
            rex = next;
            at += 1;
            next = *bytes.get(at)?;
        }
        at += 1;
        let mut opcode = u16::from(next);
        if next == 0x0f {
            opcode = 0x100 | u16::from(*bytes.get(at)?);
            at += 1;
        }
        let follows = FOLLOWS[usize::from(opcode & 0x1ff)];
        if follows == NO {
            return None;
        }
        if prefix | rex != 0 && follows & BARE != 0 {
            return None;
        }
        match prefix {
            0 => {}
            0x66 if follows & (I4 | IV) == 0 => {}
            0xf2 | 0xf3 if follows & REP != 0 => {}
            _ => return None,
        }
        let mut shape = Shape {
            prefix,
            rex,
            opcode,
            modrm: 0,
            sib: 0,
            disp: at as u8,
            imm: at as u8,
            len: 0,
        };
        let mut immediate = match follows & (I1 | I4 | IV) {
            0 => 0,
            I1 => 1,
            IV if rex & 8 != 0 => 8,
            _ => 4,
        };
        if follows & M != 0 {
            let modrm = *bytes.get(at)?;
            at += 1;
            shape.modrm = modrm;
            let mut displacement = match modrm >> 6 {
                1 => 1,
                2 => 4,
                _ => 0,
            };
            if modrm >> 6 != 3 {
                if modrm & 7 == 4 {
                    shape.sib = *bytes.get(at)?;
                    at += 1;
                    if modrm >> 6 == 0 && shape.sib & 7 == 5 {
                        displacement = 4;
                    }
                } else if modrm & 0xc7 == 5 {
                    displacement = 4;
                }
            }
            shape.disp = at as u8;
            at += displacement;
            immediate = shape.group(immediate)?;
        }
        shape.imm = at as u8;
        at += immediate;
        shape.len = at as u8;
        (at <= bytes.len()).then_some(shape)
    }

    /// Length of the immediate, where the ModRM byte has a say in it; `None` for members of groups that are not common.
    #[inline(always)]
    fn group(&self, immediate: usize) -> Option<usize> {
        let member = self.modrm >> 3 & 7;
        let memory = self.modrm >> 6 != 3;
        match self.opcode {
            0xc1 | 0xd1 | 0xd3 => matches!(member, 4 | 5 | 7).then_some(immediate),
            0xc6 | 0xc7 | 0x11f => (member == 0).then_some(immediate),
            0x8d => memory.then_some(immediate),
            // `test` has an immediate; `mul` to `idiv` have none.
            0xf6 => (member != 1).then_some(usize::from(member == 0)),
            0xf7 if self.prefix != 0 && member == 0 => None,
            0xf7 => (member != 1).then_some(if member == 0 { 4 } else { 0 }),
            0xfe => (member < 2).then_some(immediate),
            0xff => match member {
                0 | 1 => Some(immediate),
                2 | 4 => (self.prefix | self.rex == 0).then_some(immediate),
                6 => (self.prefix == 0).then_some(immediate),
                _ => None,
            },
            // `movq` alone; the rest moves between old and new registers.
            0x1d6 => (self.prefix == 0x66).then_some(immediate),
            0x12e | 0x12f | 0x16f | 0x17f | 0x1ef if self.prefix == 0xf2 => None,
            _ => Some(immediate),
        }
    }

    /// Whether the operand is memory relative to `rip`.
    #[inline(always)]
    fn pc_relative(&self) -> bool {
        self.modrm & 0xc7 == 5 && FOLLOWS[usize::from(self.opcode & 0x1ff)] & M != 0
    }

    /// Whether the operand of the ModRM byte is memory.
    #[inline(always)]
    fn memory(&self) -> bool {
        self.modrm >> 6 != 3 && FOLLOWS[usize::from(self.opcode & 0x1ff)] & M != 0
    }

    /// Register in the `reg` field.
    fn reg(&self) -> u8 {
        self.modrm >> 3 & 7 | (self.rex & 4) << 1
    }

    /// Register in the `rm` field.
    fn rm(&self) -> u8 {
        self.modrm & 7 | (self.rex & 1) << 3
    }

    /// Register in the opcode.
    fn low(&self) -> u8 {
        self.opcode as u8 & 7 | (self.rex & 1) << 3
    }
}

/// Decodes a common instruction; see [`crate::Decode::decode`].
#[inline(always)]
pub fn decode(bytes: &[u8], addr: u64) -> Option<Insn> {
    let shape = Shape::of(bytes)?;
    let mut insn = Insn {
        addr,
        len: shape.len,
        flow: Flow::Next,
        field: None,
        traits: Traits::default(),
    };
    match shape.opcode {
        0x70..=0x7f | 0xeb | 0xe8 | 0xe9 | 0x180..=0x18f => {
            let short = matches!(shape.opcode, 0x70..=0x7f | 0xeb);
            let at = usize::from(shape.imm);
            let (kind, displacement) = if short {
                (FixupKind::Rel8 { trail: 0 }, i64::from(bytes[at] as i8))
            } else {
                (
                    FixupKind::Rel32 { trail: 0 },
                    i64::from(i32::from_le_bytes(*bytes[at..].first_chunk()?)),
                )
            };
            let target = insn.end().wrapping_add_signed(displacement);
            insn.field = Some(PcField {
                at: shape.imm,
                kind,
                target,
            });
            insn.flow = match shape.opcode {
                0xe8 => Flow::Call { target },
                0xe9 | 0xeb => Flow::Jump { target },
                _ => Flow::CondJump {
                    cond: Cond(u32::from(shape.opcode & 15)),
                    target,
                },
            };
            return Some(insn);
        }
        0xc3 => insn.flow = Flow::Return,
        0xff => match shape.modrm >> 3 & 7 {
            2 => insn.flow = Flow::IndirectCall,
            4 => insn.flow = Flow::IndirectJump,
            _ => {}
        },
        0x11f => insn.traits.nop = true,
        _ => {}
    }
    if shape.pc_relative() {
        let at = usize::from(shape.disp);
        let displacement = i32::from_le_bytes(*bytes.get(at..)?.first_chunk()?);
        insn.field = Some(PcField {
            at: shape.disp,
            kind: FixupKind::Rel32 {
                trail: shape.len - shape.disp - 4,
            },
            target: insn.end().wrapping_add_signed(i64::from(displacement)),
        });
        insn.traits.forms_address = shape.opcode == 0x8d;
    }
    Some(insn)
}

/// Flags that arithmetic sets.
const ARITHMETIC: RegSet = RegSet(CF.0 | PF.0 | AF.0 | ZF.0 | SF.0 | OF.0);
/// Flags that logical operations set: what becomes of AF is not said.
const LOGICAL: RegSet = RegSet(CF.0 | PF.0 | ZF.0 | SF.0 | OF.0);

/// What a condition reads.
pub fn condition(cond: u8) -> RegSet {
    const OF_PAIR: [RegSet; 8] = [
        OF,
        CF,
        ZF,
        RegSet(CF.0 | ZF.0),
        SF,
        PF,
        RegSet(SF.0 | OF.0),
        RegSet(ZF.0 | SF.0 | OF.0),
    ];
    OF_PAIR[usize::from(cond >> 1 & 7)]
}

/// What an operand is to an instruction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Read,
    Write,
    Both,
}
use Use::{Both, Read, Write};

/// How much of a register an operand is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Width {
    /// One byte, which may be the second one.
    Byte,
    /// Two bytes.
    Part,
    /// Four, with which the others are cleared, or eight.
    Whole,
}
use Width::{Byte, Part, Whole};

/// Effects in the making.
struct Sum {
    shape: Shape,
    reads: RegSet,
    kills: RegSet,
}

impl Sum {
    /// A register as an operand.
    #[inline(always)]
    fn register(&mut self, number: u8, width: Width, how: Use) {
        // Without REX, 4 to 7 are the second bytes of the first four.
        let second = width == Byte && self.shape.rex == 0 && number & 12 == 4;
        let member = RegSet(1 << if second { number & 3 } else { number });
        if how != Write {
            self.reads = self.reads.or(member);
        }
        if how != Read && width == Whole {
            self.kills = self.kills.or(member);
        }
    }

    /// The operand of the `reg` field.
    #[inline(always)]
    fn reg(&mut self, width: Width, how: Use) {
        self.register(self.shape.reg(), width, how);
    }

    /// The operand of the `rm` field, if it is a register.
    #[inline(always)]
    fn rm(&mut self, width: Width, how: Use) {
        if !self.shape.memory() {
            self.register(self.shape.rm(), width, how);
        }
    }

    /// Registers of an address are read, whatever is done with what it points to.
    #[inline(always)]
    fn address(&mut self) {
        let shape = self.shape;
        if !shape.memory() {
            return;
        }
        if shape.modrm & 7 == 4 {
            let index = shape.sib >> 3 & 7 | (shape.rex & 2) << 2;
            if index != 4 {
                self.reads.0 |= 1 << index;
            }
            if shape.sib & 7 != 5 || shape.modrm >> 6 != 0 {
                self.reads.0 |= 1 << (shape.sib & 7 | (shape.rex & 1) << 3);
            }
        } else if !shape.pc_relative() {
            self.reads.0 |= 1 << shape.rm();
        }
    }
}

/// Of the eight arithmetic operations, by number: flags read, flags set, what happens to the first operand.
#[inline(always)]
fn arithmetic(operation: u8) -> (RegSet, RegSet, Use) {
    match operation & 7 {
        0 | 5 => (RegSet::EMPTY, ARITHMETIC, Both),
        1 | 4 | 6 => (RegSet::EMPTY, LOGICAL, Both),
        7 => (RegSet::EMPTY, ARITHMETIC, Read),
        _ => (CF, ARITHMETIC, Both),
    }
}

/// What a common instruction without flow of its own reads and overwrites; see [`super::effects`].
#[inline]
pub fn effects(bytes: &[u8]) -> Option<Effects> {
    let shape = Shape::of(bytes)?;
    let mut sum = Sum {
        shape,
        reads: RegSet::EMPTY,
        kills: RegSet::EMPTY,
    };
    sum.address();
    // REX.W outdoes `66`.
    let wide = if shape.prefix == 0x66 && shape.rex & 8 == 0 {
        Part
    } else {
        Whole
    };
    let either = if shape.opcode & 1 == 0 { Byte } else { wide };
    let low = shape.opcode as u8;
    let member = shape.modrm >> 3 & 7;
    let (mut flags_read, mut flags) = (RegSet::EMPTY, RegSet::EMPTY);
    match shape.opcode {
        0x00..=0x3f => {
            let operation = low >> 3;
            let how;
            (flags_read, flags, how) = arithmetic(operation);
            let same = !shape.memory() && shape.reg() == shape.rm();
            match low & 7 {
                0..=3 if same && matches!(operation, 3 | 5 | 6) => {
                    // The old value does not matter to `xor` and `sub`. `sbb` is left to the decoder.
                    if operation == 3 {
                        return None;
                    }
                    sum.rm(either, Write);
                }
                0 | 1 => {
                    sum.rm(either, how);
                    sum.reg(either, Read);
                }
                2 | 3 => {
                    sum.reg(either, how);
                    sum.rm(either, Read);
                }
                _ => sum.register(0, either, how),
            }
        }
        0x50..=0x57 => {
            sum.register(4, Whole, Both);
            sum.register(shape.low(), Whole, Read);
        }
        0x58..=0x5f => {
            sum.register(4, Whole, Both);
            sum.register(shape.low(), wide, Write);
        }
        0x63 => {
            sum.reg(wide, Write);
            sum.rm(wide, Read);
        }
        0x69 | 0x6b => {
            sum.reg(wide, Write);
            sum.rm(wide, Read);
            flags = CF.or(OF);
        }
        0x80 | 0x81 | 0x83 => {
            let how;
            (flags_read, flags, how) = arithmetic(member);
            sum.rm(either, how);
        }
        0x84 | 0x85 => {
            sum.rm(either, Read);
            sum.reg(either, Read);
            flags = LOGICAL;
        }
        0x88 | 0x89 => {
            sum.rm(either, Write);
            sum.reg(either, Read);
        }
        0x8a | 0x8b => {
            sum.reg(either, Write);
            sum.rm(either, Read);
        }
        0x8d => sum.reg(wide, Write),
        // A part of `rax` is read, and a larger part, or `rdx`, written.
        0x98 | 0x99 => {
            sum.register(0, Part, Read);
            sum.register(if low == 0x98 { 0 } else { 2 }, wide, Write);
        }
        0xa8 | 0xa9 => {
            sum.register(0, either, Read);
            flags = LOGICAL;
        }
        0xb0..=0xb7 => sum.register(shape.low(), Byte, Write),
        0xb8..=0xbf => sum.register(shape.low(), wide, Write),
        0xc6 | 0xc7 => sum.rm(either, Write),
        0xc1 | 0xd1 => {
            let count = match shape.opcode {
                0xd1 => 1,
                _ => *bytes.get(usize::from(shape.imm))?,
            };
            let masked = count & if shape.rex & 8 != 0 { 63 } else { 31 };
            // By 0 it changes no flag; by more than the operand has bits, it depends on the operation what CF becomes.
            if masked == 0 || wide == Part {
                return None;
            }
            sum.rm(Whole, Both);
            flags = LOGICAL;
            if masked != 1 {
                flags = flags.minus(OF);
            }
        }
        0xf6 | 0xf7 => match member {
            0 => {
                sum.rm(either, Read);
                flags = LOGICAL;
            }
            2 => sum.rm(either, Both),
            3 => {
                sum.rm(either, Both);
                flags = ARITHMETIC;
            }
            _ => return None,
        },
        0xfe | 0xff => match member {
            0 | 1 => {
                sum.rm(either, Both);
                flags = ARITHMETIC.minus(CF);
            }
            _ => return None,
        },
        // Nothing at all, not even an address.
        0x11f => return Some(Effects::default()),
        // Vector registers are not modelled.
        0x110 | 0x111 | 0x128 | 0x129 | 0x151 | 0x154 | 0x157..=0x159 | 0x15c..=0x15f => {}
        0x16f | 0x17f | 0x1d6 | 0x1ef => {}
        0x12e | 0x12f => flags = ARITHMETIC,
        0x140..=0x14f => {
            flags_read = condition(low);
            sum.rm(wide, Read);
            // The upper half of a register is cleared in any case.
            if shape.rex & 8 == 0 && wide == Whole {
                sum.reg(Whole, Both);
            }
        }
        0x190..=0x19f => {
            flags_read = condition(low);
            sum.rm(Byte, Write);
        }
        0x1af => {
            sum.reg(wide, Both);
            sum.rm(wide, Read);
            flags = CF.or(OF);
        }
        0x1b6 | 0x1be => {
            sum.reg(wide, Write);
            sum.rm(Byte, Read);
        }
        0x1b7 | 0x1bf => {
            sum.reg(wide, Write);
            sum.rm(wide, Read);
        }
        _ => return None,
    }
    Some(Effects {
        reads: sum.reads.or(flags_read),
        kills: sum.kills.or(flags),
    })
}

#[cfg(test)]
mod tests {
    use super::super::{decode as full, effects as slow};
    use super::*;

    /// Every prefix, REX prefix, opcode and ModRM byte, with two tails.
    fn every(mut visit: impl FnMut(&[u8])) {
        let tails = [
            [
                0x24u8, 0x11, 0x82, 0x33, 0xc4, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa,
            ],
            [0x05, 0xfe, 0xff, 0xff, 0xff, 1, 2, 3, 4, 5, 6],
            [0x40, 0x01, 0x1f, 0x20, 0x21, 0x3f, 0x41, 3, 4, 5, 6],
        ];
        let mut which = 0;
        for prefix in [None, Some(0x66u8), Some(0xf2), Some(0xf3), Some(0x2e)] {
            for rex in (0x3f..=0x4fu8).map(|r| (r != 0x3f).then_some(r)) {
                for map in [None, Some(0x0fu8)] {
                    for opcode in 0..=255u8 {
                        for modrm in 0..=255u8 {
                            which = (which + 1) % tails.len();
                            let mut bytes: Vec<u8> = Vec::with_capacity(18);
                            bytes.extend(prefix);
                            bytes.extend(rex);
                            bytes.extend(map);
                            bytes.extend([opcode, modrm]);
                            bytes.extend(tails[which]);
                            visit(&bytes);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn common_instructions_decode_as_with_the_full_decoder() {
        let mut some = 0;
        every(|bytes| {
            for addr in [0x1000, u64::MAX - 4] {
                if let Some(insn) = decode(bytes, addr) {
                    assert_eq!(
                        Some(insn),
                        full::decode_fully(bytes, addr),
                        "{bytes:02x?} at {addr:#x}"
                    );
                    some += 1;
                }
            }
        });
        assert!(some > 2_000_000, "{some}");
    }

    #[test]
    fn effects_of_common_instructions_are_those_of_the_full_decoder() {
        let mut some = 0;
        every(|bytes| {
            let Some(insn) = decode(bytes, 0x1000).filter(|insn| insn.flow == Flow::Next) else {
                return;
            };
            if let Some(quick) = effects(bytes) {
                let full = slow::effects_fully(bytes, &insn);
                assert_eq!(quick, full, "{bytes:02x?}");
                some += 1;
            }
        });
        assert!(some > 1_000_000, "{some}");
    }

    #[test]
    fn flags_that_conditions_read_are_those_of_the_full_decoder() {
        for cond in 0..16u8 {
            let bytes = [0x70 | cond, 0];
            let insn = full::decode_fully(&bytes, 0).expect("a jump");
            let full = slow::effects_fully(&bytes, &insn);
            assert_eq!(condition(cond), full.reads, "{cond}");
        }
    }

    #[test]
    fn what_is_cut_short_is_left_to_the_full_decoder() {
        let long = [0x66u8, 0x41, 0x80, 0x84, 0x24, 1, 2, 3, 4, 5, 6];
        let len = usize::from(decode(&long, 0).expect("an instruction").len);
        assert_eq!(len, 10);
        for cut in 0..len {
            assert_eq!(decode(&long[..cut], 0), None);
        }
    }
}
