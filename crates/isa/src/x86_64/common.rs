//! The encodings that compiled code is made of, read without the full decoder.
//!
//! A rewriter looks at every instruction of a program several times, and nine of ten have one of few shapes:
//! at most one of the prefixes `64`, `66`, `f2`, `f3`, a REX prefix, an opcode of one byte or of two beginning with
//! `0f`, a ModRM byte. [`Shape`] is what such bytes say; [`decode_into`] makes an [`Insn`] of it and [`effects`]
//! what it reads and overwrites. Both say `None` to everything else, which is left to iced-x86, and must
//! agree with that wherever they do answer: tests compare them for every prefix, opcode and ModRM byte.
//!
//! | opcode | decoded | effects |
//! |---|---|---|
//! | `00`–`3f` arithmetic, `63`, `69`, `6b`, `80`–`8b`, `8d`, `a8`, `a9`, `b0`–`bf`, `c6`, `c7` | yes | yes |
//! | `50`–`5f` push, pop; `6a` push; `98`, `99` | yes | yes |
//! | `c1`, `d1`, `d3` shifts | yes | shifts by constants other than 0 |
//! | `f6`, `f7`, `fe`, `ff` | yes | `test`, `not`, `neg`, `inc`, `dec` |
//! | `70`–`7f`, `e8`, `e9`, `eb`, `c3`, `ff /2`, `ff /4`, `0f 80`–`0f 8f`, without prefixes | yes | by their [`Flow`] |
//! | `0f 40`–`0f 4f` cmov, `0f 90`–`0f 9f` set, `0f af`, `0f b6`, `0f b7`, `0f be`, `0f bf` | yes | yes |
//! | `90`, `0f 1f /0` nop | yes | yes |
//! | `cc` int3, `0f 0b` ud2 | yes | by their [`Flow`] |
//! | `0f a3` bt | yes | yes |
//! | `0f 10`, `11`, `28`, `29`, `2e`, `2f`, `51`, `54`, `57`–`59`, `5c`–`5f`, `6f`, `7f`, `d6`, `ef` | yes | yes |

use super::{AF, CF, OF, PF, SF, ZF};
use crate::{Cond, Effects, FixupKind, Flow, Insn, PcField, RegSet, Traits};

/// What the bytes of an instruction say, up to its immediate.
#[derive(Clone, Copy)]
struct Shape {
    /// What follows its opcode.
    follows: u16,
    /// `64`, `66`, `f2`, `f3` or 0.
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

const NO: u16 = 0;
/// Opcode only.
const O: u16 = 1;
/// ModRM byte.
const M: u16 = 2;
/// The immediate has two bytes with `66`, which is left alone.
const SIZED: u16 = 4;
/// The immediate has eight bytes with REX.W.
const LARGE: u16 = 8;
/// Without any prefix only.
const BARE: u16 = 32;
/// May have `f2` or `f3`, and means something else then, of the same shape.
const REP: u16 = 64;
/// The ModRM byte decides whether it is common, or how long the immediate is.
const GROUP: u16 = 128;
/// Control may not go on to the next instruction, or it is a `nop`.
const FLOW: u16 = 256;
/// From here on: how long the immediate is.
const IMMEDIATE: u32 = 12;
/// Immediate of one byte.
const I1: u16 = 1 << IMMEDIATE;
/// Immediate of four bytes.
const I4: u16 = 4 << IMMEDIATE | SIZED;
/// Immediate of four bytes or eight.
const IV: u16 = 4 << IMMEDIATE | SIZED | LARGE;

/// What follows each opcode; those after `0f` in the second half.
const FOLLOWS: [u16; 512] = {
    let mut t = [NO; 512];
    let mut op = 0;
    while op < 0x40 {
        let mut form = op;
        while form < op + 4 {
            t[form] = M;
            form += 1;
        }
        t[op + 4] = O | I1;
        t[op + 5] = O | I4;
        op += 8;
    }
    let ranges: [(usize, usize, u16); 51] = [
        (0x50, 0x5f, O),
        (0x63, 0x63, M),
        (0x69, 0x69, M | I4),
        (0x6a, 0x6a, O | I1),
        (0x6b, 0x6b, M | I1),
        (0x70, 0x7f, O | I1 | BARE | FLOW),
        (0x80, 0x80, M | I1),
        (0x81, 0x81, M | I4),
        (0x83, 0x83, M | I1),
        (0x84, 0x85, M),
        (0x88, 0x8b, M),
        (0x8d, 0x8d, M | GROUP),
        (0x90, 0x90, O | BARE | FLOW),
        (0x98, 0x99, O),
        (0xa8, 0xa8, O | I1),
        (0xa9, 0xa9, O | I4),
        (0xb0, 0xb7, O | I1),
        (0xb8, 0xbf, O | IV),
        (0xc1, 0xc1, M | I1 | GROUP),
        (0xc3, 0xc3, O | BARE | FLOW),
        (0xc6, 0xc6, M | I1 | GROUP),
        (0xc7, 0xc7, M | I4 | GROUP),
        (0xcc, 0xcc, O | BARE | FLOW),
        (0xd1, 0xd1, M | GROUP),
        (0xd3, 0xd3, M | GROUP),
        (0xe8, 0xe9, O | I4 | BARE | FLOW),
        (0xeb, 0xeb, O | I1 | BARE | FLOW),
        (0xf6, 0xf7, M | GROUP),
        (0xfe, 0xfe, M | GROUP),
        (0xff, 0xff, M | GROUP | FLOW),
        (0x10b, 0x10b, O | BARE | FLOW),
        (0x110, 0x111, M | REP),
        (0x11f, 0x11f, M | BARE | GROUP | FLOW),
        (0x128, 0x129, M),
        (0x12e, 0x12f, M | GROUP),
        (0x140, 0x14f, M),
        (0x151, 0x151, M | REP),
        (0x154, 0x154, M),
        (0x157, 0x157, M),
        (0x158, 0x159, M | REP),
        (0x15c, 0x15f, M | REP),
        (0x16f, 0x16f, M | REP | GROUP),
        (0x17f, 0x17f, M | REP | GROUP),
        (0x180, 0x18f, O | I4 | BARE | FLOW),
        (0x190, 0x19f, M),
        (0x1a3, 0x1a3, M),
        (0x1af, 0x1af, M),
        (0x1b6, 0x1b7, M),
        (0x1be, 0x1bf, M),
        (0x1d6, 0x1d6, M | REP | GROUP),
        (0x1ef, 0x1ef, M | GROUP),
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

/// In [`OPERANDS`]: a SIB byte follows. The other bits are the length of the displacement.
const SIB: u8 = 8;

/// By ModRM byte: what follows it.
const OPERANDS: [u8; 256] = {
    let mut t = [0; 256];
    let mut modrm = 0;
    while modrm < 0xc0 {
        t[modrm] = match modrm >> 6 {
            1 => 1,
            2 => 4,
            _ if modrm & 7 == 5 => 4,
            _ => 0,
        };
        if modrm & 7 == 4 {
            t[modrm] |= SIB;
        }
        modrm += 1;
    }
    t
};

impl Shape {
    /// Of the instruction at the beginning of `bytes`. No processor foresees which instructions have a REX prefix, a
    /// ModRM byte or a displacement, so nothing is asked of these that decides where to go on here.
    #[inline(always)]
    fn of(bytes: &[u8]) -> Option<Shape> {
        // All that the shape depends on is in the first six bytes. Where some of those are missing the instruction
        // turns out to be longer than what there is of it, whatever stands for them.
        let word = match bytes.first_chunk() {
            Some(chunk) => u64::from_le_bytes(*chunk),
            None => {
                let mut chunk = [0; 8];
                chunk[..bytes.len()].copy_from_slice(bytes);
                u64::from_le_bytes(chunk)
            }
        };
        let first = word as u8;
        let prefixed = matches!(first, 0x64 | 0x66 | 0xf2 | 0xf3);
        let prefix = if prefixed { first } else { 0 };
        let word = if prefixed { word >> 8 } else { word };
        let extended = word as u8 & 0xf0 == 0x40;
        let rex = if extended { word as u8 } else { 0 };
        let word = word >> (8 * u32::from(extended));
        let long = word as u8 == 0x0f;
        let word = word >> (8 * u32::from(long));
        let opcode = u16::from(word as u8) | u16::from(long) << 8;
        let word = word >> 8;
        let follows = FOLLOWS[usize::from(opcode)];
        if (follows == NO) | ((prefix | rex != 0) & (follows & BARE != 0)) {
            return None;
        }
        if prefixed {
            let fits = match prefix {
                // The segment of an address, which is read in no other way than without it.
                0x64 => follows & M != 0,
                0x66 => follows & SIZED == 0,
                _ => follows & REP != 0,
            };
            if !fits {
                return None;
            }
        }
        let has_modrm = follows & M != 0;
        // Zero without one: then nothing follows it.
        let modrm = if has_modrm { word as u8 } else { 0 };
        let operand = OPERANDS[usize::from(modrm)];
        let has_sib = operand & SIB != 0;
        let sib = if has_sib { (word >> 8) as u8 } else { 0 };
        let without_base = has_sib & (modrm < 0x40) & (sib & 7 == 5);
        let displacement = operand & 7 | u8::from(without_base) << 2;
        let large = (follows & LARGE != 0) & (rex & 8 != 0);
        let mut immediate = (follows >> IMMEDIATE) as u8 + (u8::from(large) << 2);
        let disp = u8::from(prefixed)
            + u8::from(extended)
            + u8::from(long)
            + 1
            + u8::from(has_modrm)
            + u8::from(has_sib);
        let mut shape = Shape {
            follows,
            prefix,
            rex,
            opcode,
            modrm,
            sib,
            disp,
            imm: disp + displacement,
            len: 0,
        };
        if follows & GROUP != 0 {
            immediate = shape.group(immediate)?;
        }
        shape.len = shape.imm + immediate;
        (usize::from(shape.len) <= bytes.len()).then_some(shape)
    }

    /// Length of the immediate, where the ModRM byte has a say in it; `None` for members of groups that are not common.
    #[inline(always)]
    fn group(&self, immediate: u8) -> Option<u8> {
        let member = self.modrm >> 3 & 7;
        let memory = self.modrm >> 6 != 3;
        match self.opcode {
            0xc1 | 0xd1 | 0xd3 => matches!(member, 4 | 5 | 7).then_some(immediate),
            0xc6 | 0xc7 | 0x11f => (member == 0).then_some(immediate),
            0x8d => memory.then_some(immediate),
            // `test` has an immediate; `mul` to `idiv` have none.
            0xf6 => (member != 1).then_some(u8::from(member == 0)),
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
        // Without a ModRM byte that is 0.
        self.modrm & 0xc7 == 5
    }

    /// Whether the operand of the ModRM byte is memory.
    #[inline(always)]
    fn memory(&self) -> bool {
        (self.modrm < 0xc0) & (self.follows & M != 0)
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

/// Decodes a common instruction; see [`crate::Decode::decode`]. If it says `None`, `insn` is of no use.
#[inline(always)]
pub fn decode_into(bytes: &[u8], addr: u64, insn: &mut Insn) -> Option<()> {
    let shape = Shape::of(bytes)?;
    *insn = Insn {
        addr,
        len: shape.len,
        flow: Flow::Next,
        field: None,
        traits: Traits::default(),
    };
    if shape.follows & FLOW != 0 {
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
                return Some(());
            }
            0xc3 => insn.flow = Flow::Return,
            0xcc => insn.flow = Flow::Trap,
            0x10b => insn.flow = Flow::Stop,
            0xff => match shape.modrm >> 3 & 7 {
                2 => insn.flow = Flow::IndirectCall,
                4 => insn.flow = Flow::IndirectJump,
                _ => {}
            },
            0x90 | 0x11f => insn.traits.nop = true,
            _ => {}
        }
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
    Some(())
}

/// Flags that arithmetic sets.
const ARITHMETIC: RegSet = RegSet(CF.0 | PF.0 | AF.0 | ZF.0 | SF.0 | OF.0);
/// Flags that logical operations set: what becomes of AF is not said.
const LOGICAL: RegSet = RegSet(CF.0 | PF.0 | ZF.0 | SF.0 | OF.0);

/// What a condition reads.
pub const fn condition(cond: u8) -> RegSet {
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
    OF_PAIR[(cond >> 1 & 7) as usize]
}

/// An operand of an instruction, as a set of these.
type Role = u8;
/// Its old value matters.
const READ: Role = 1;
/// It is overwritten.
const WRITE: Role = 2;
/// One byte of a register, which may be the second one.
const BYTE: Role = 4;
/// With `66`, two bytes of a register; else four, with which the others are cleared, or eight.
const WIDE: Role = 8;

/// What an instruction does that is all there is to say of its opcode.
#[derive(Clone, Copy)]
struct Does {
    /// The operand of the `reg` field.
    reg: Role,
    /// The operand of the `rm` field.
    rm: Role,
    /// Flags that are read.
    flags_read: RegSet,
    /// Flags that are set.
    flags: RegSet,
    /// Whether the opcode is one of these.
    plain: bool,
    /// Whether it is something else with one register twice.
    differs: bool,
}

/// Of the eight arithmetic operations, by number: flags read, flags set, what happens to the first operand.
const fn arithmetic(operation: usize) -> (RegSet, RegSet, Role) {
    match operation & 7 {
        0 | 5 => (RegSet::EMPTY, ARITHMETIC, READ | WRITE),
        1 | 4 | 6 => (RegSet::EMPTY, LOGICAL, READ | WRITE),
        7 => (RegSet::EMPTY, ARITHMETIC, READ),
        _ => (CF, ARITHMETIC, READ | WRITE),
    }
}

/// By opcode. Vector registers are not modelled.
const DOES: [Does; 512] = {
    const NOTHING: Does = Does {
        reg: 0,
        rm: 0,
        flags_read: RegSet::EMPTY,
        flags: RegSet::EMPTY,
        plain: false,
        differs: false,
    };
    let mut t = [NOTHING; 512];
    let mut op = 0;
    while op < 0x40 {
        let (flags_read, flags, first) = arithmetic(op >> 3);
        let mut form = 0;
        while form < 4 {
            let width = if form & 1 == 0 { BYTE } else { WIDE };
            let (reg, rm) = if form < 2 {
                (READ, first)
            } else {
                (first, READ)
            };
            t[op + form] = Does {
                reg: reg | width,
                rm: rm | width,
                flags_read,
                flags,
                plain: true,
                differs: matches!(op >> 3, 3 | 5 | 6),
            };
            form += 1;
        }
        op += 8;
    }
    let product = RegSet(CF.0 | OF.0);
    let none = RegSet::EMPTY;
    let list: [(usize, usize, Role, Role, RegSet); 31] = [
        (0x63, 0x63, WRITE | WIDE, READ | WIDE, none),
        (0x69, 0x69, WRITE | WIDE, READ | WIDE, product),
        (0x6b, 0x6b, WRITE | WIDE, READ | WIDE, product),
        (0x84, 0x84, READ | BYTE, READ | BYTE, LOGICAL),
        (0x85, 0x85, READ | WIDE, READ | WIDE, LOGICAL),
        (0x88, 0x88, READ | BYTE, WRITE | BYTE, none),
        (0x89, 0x89, READ | WIDE, WRITE | WIDE, none),
        (0x8a, 0x8a, WRITE | BYTE, READ | BYTE, none),
        (0x8b, 0x8b, WRITE | WIDE, READ | WIDE, none),
        // An address that is formed is not an operand.
        (0x8d, 0x8d, WRITE | WIDE, 0, none),
        (0xc6, 0xc6, 0, WRITE | BYTE, none),
        (0xc7, 0xc7, 0, WRITE | WIDE, none),
        (0x110, 0x111, 0, 0, none),
        (0x128, 0x129, 0, 0, none),
        (0x12e, 0x12f, 0, 0, ARITHMETIC),
        (0x151, 0x151, 0, 0, none),
        (0x154, 0x154, 0, 0, none),
        (0x157, 0x157, 0, 0, none),
        (0x158, 0x159, 0, 0, none),
        (0x15c, 0x15f, 0, 0, none),
        (0x16f, 0x16f, 0, 0, none),
        (0x17f, 0x17f, 0, 0, none),
        (0x190, 0x19f, 0, WRITE | BYTE, none),
        (0x1a3, 0x1a3, READ | WIDE, READ | WIDE, CF),
        (0x1af, 0x1af, READ | WRITE | WIDE, READ | WIDE, product),
        (0x1b6, 0x1b6, WRITE | WIDE, READ | BYTE, none),
        (0x1b7, 0x1b7, WRITE | WIDE, READ | WIDE, none),
        (0x1be, 0x1be, WRITE | WIDE, READ | BYTE, none),
        (0x1bf, 0x1bf, WRITE | WIDE, READ | WIDE, none),
        (0x1d6, 0x1d6, 0, 0, none),
        (0x1ef, 0x1ef, 0, 0, none),
    ];
    let mut i = 0;
    while i < list.len() {
        let (from, to, reg, rm, flags) = list[i];
        let mut op = from;
        while op <= to {
            t[op] = Does {
                reg,
                rm,
                flags,
                plain: true,
                ..NOTHING
            };
            if op >= 0x190 && op <= 0x19f {
                t[op].flags_read = condition(op as u8);
            }
            op += 1;
        }
        i += 1;
    }
    t
};

/// Effects in the making.
struct Sum {
    shape: Shape,
    /// With `66`, unless REX.W outdoes it.
    part: bool,
    reads: u64,
    kills: u64,
}

impl Sum {
    /// A register as an operand.
    #[inline(always)]
    fn register(&mut self, number: u8, role: Role) {
        // Without REX, 4 to 7 are the second bytes of the first four.
        let second = (role & BYTE != 0) & (self.shape.rex == 0) & (number & 12 == 4);
        let number = number & if second { 3 } else { 15 };
        let whole = (role & BYTE == 0) & !((role & WIDE != 0) & self.part);
        self.reads |= u64::from(role & READ) << number;
        self.kills |= u64::from((role & WRITE != 0) & whole) << number;
    }

    /// The operand of the `reg` field.
    #[inline(always)]
    fn reg(&mut self, role: Role) {
        self.register(self.shape.reg(), role);
    }

    /// The operand of the `rm` field, if it is a register.
    #[inline(always)]
    fn rm(&mut self, role: Role) {
        let role = if self.shape.memory() { 0 } else { role };
        self.register(self.shape.rm(), role);
    }

    /// Registers of an address are read, whatever is done with what it points to.
    #[inline(always)]
    fn address(&mut self) {
        let shape = self.shape;
        let memory = shape.memory();
        let has_sib = memory & (shape.modrm & 7 == 4);
        let index = shape.sib >> 3 & 7 | (shape.rex & 2) << 2;
        let base = if has_sib { shape.sib } else { shape.modrm } & 7;
        // `rip` and nothing at all are in the place of the same register.
        let has_base = memory & !((base == 5) & (shape.modrm < 0x40));
        self.reads |= u64::from(has_sib & (index != 4)) << index;
        self.reads |= u64::from(has_base) << (base | (shape.rex & 1) << 3);
    }
}

/// What a common instruction without flow of its own reads and overwrites; see [`super::effects`].
#[inline]
pub fn effects(bytes: &[u8]) -> Option<Effects> {
    let shape = Shape::of(bytes)?;
    let mut sum = Sum {
        shape,
        part: (shape.prefix == 0x66) & (shape.rex & 8 == 0),
        reads: 0,
        kills: 0,
    };
    sum.address();
    let does = &DOES[usize::from(shape.opcode & 0x1ff)];
    let (mut flags_read, mut flags) = (does.flags_read, does.flags);
    if does.plain {
        let (mut reg, mut rm) = (does.reg, does.rm);
        if does.differs && !shape.memory() && shape.reg() == shape.rm() {
            // The old value does not matter to `xor` and `sub`. `sbb` is left to the decoder.
            if shape.opcode >> 3 == 3 {
                return None;
            }
            (reg, rm) = (0, rm & !READ | WRITE);
        }
        sum.reg(reg);
        sum.rm(rm);
    } else {
        (flags_read, flags) = sum.special(bytes)?;
    }
    Some(Effects {
        reads: RegSet(sum.reads).or(flags_read),
        kills: RegSet(sum.kills).or(flags),
    })
}

impl Sum {
    /// Instructions of which more is to be said than of their opcode, and those with a register in it. Gives which
    /// flags are read and which set.
    fn special(&mut self, bytes: &[u8]) -> Option<(RegSet, RegSet)> {
        let shape = self.shape;
        let either = if shape.opcode & 1 == 0 { BYTE } else { WIDE };
        let low = shape.opcode as u8;
        let member = shape.modrm >> 3 & 7;
        let (mut flags_read, mut flags) = (RegSet::EMPTY, RegSet::EMPTY);
        match shape.opcode {
            0x00..=0x3f => {
                let first;
                (flags_read, flags, first) = arithmetic(usize::from(low >> 3));
                self.register(0, first | either);
            }
            0x50..=0x57 => {
                self.register(4, READ | WRITE);
                self.register(shape.low(), READ);
            }
            0x58..=0x5f => {
                self.register(4, READ | WRITE);
                self.register(shape.low(), WRITE | WIDE);
            }
            0x6a => self.register(4, READ | WRITE),
            0x80 | 0x81 | 0x83 => {
                let first;
                (flags_read, flags, first) = arithmetic(usize::from(member));
                self.rm(first | either);
            }
            // A part of `rax` is read, and a larger part, or `rdx`, written.
            0x98 | 0x99 => {
                self.register(0, READ);
                self.register(if low == 0x98 { 0 } else { 2 }, WRITE | WIDE);
            }
            0xa8 | 0xa9 => {
                self.register(0, READ | either);
                flags = LOGICAL;
            }
            0xb0..=0xb7 => self.register(shape.low(), WRITE | BYTE),
            0xb8..=0xbf => self.register(shape.low(), WRITE | WIDE),
            0xc1 | 0xd1 => {
                let count = match shape.opcode {
                    0xd1 => 1,
                    _ => *bytes.get(usize::from(shape.imm))?,
                };
                let masked = count & if shape.rex & 8 != 0 { 63 } else { 31 };
                // By 0 it changes no flag; by more than the operand has bits, it depends on the operation what CF
                // becomes.
                if masked == 0 || self.part {
                    return None;
                }
                self.rm(READ | WRITE);
                flags = LOGICAL;
                if masked != 1 {
                    flags = flags.minus(OF);
                }
            }
            0xf6 | 0xf7 => match member {
                0 => {
                    self.rm(READ | either);
                    flags = LOGICAL;
                }
                2 => self.rm(READ | WRITE | either),
                3 => {
                    self.rm(READ | WRITE | either);
                    flags = ARITHMETIC;
                }
                _ => return None,
            },
            0xfe | 0xff => match member {
                0 | 1 => {
                    self.rm(READ | WRITE | either);
                    flags = ARITHMETIC.minus(CF);
                }
                _ => return None,
            },
            // Nothing at all, not even an address.
            0x90 | 0x11f => self.reads = 0,
            0x140..=0x14f => {
                flags_read = condition(low);
                self.rm(READ | WIDE);
                // The upper half of a register is cleared in any case.
                if shape.rex & 8 == 0 && !self.part {
                    self.reg(READ | WRITE);
                }
            }
            _ => return None,
        }
        Some((flags_read, flags))
    }
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
        for prefix in [
            None,
            Some(0x64u8),
            Some(0x66),
            Some(0xf2),
            Some(0xf3),
            Some(0x2e),
        ] {
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

    fn decode(bytes: &[u8], addr: u64) -> Option<Insn> {
        let mut insn = full::NOTHING;
        decode_into(bytes, addr, &mut insn).map(|()| insn)
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
