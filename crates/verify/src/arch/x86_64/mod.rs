//! x86-64, decoded by `yaxpeax-x86`.
//!
//! Common forms are read by tables ([`quick`]), all others by the decoder.
//!
//! The decoder says what an instruction is and how long it is. It does not say where the displacement is, so that is
//! found here from the encoding (prefixes, opcode map, ModRM) and then compared with the value that the decoder
//! read: two ways to the same number, or the instruction is refused.
//!
//! | position-dependent | encoding | field |
//! |---|---|---|
//! | `jmp`, `call` | `eb`, `e9`, `e8` | last 1 or 4 bytes |
//! | `jcc` | `70+c`, `0f 80+c` | last 1 or 4 bytes |
//! | `jrcxz`, `jecxz`, `loop…` | `e0`…`e3` | last byte |
//! | `xbegin` | `c7 f8` | last 4 bytes |
//! | memory at `rip` | ModRM with mod 0, rm 5 | 4 bytes after ModRM |
//! | absolute address (fixed-address programs) | 4-byte immediate at the end, 8 in `movabs` | last 4 or 8 bytes |
//!
//! Refused: operand-size prefix on a near branch without REX.W (AMD and Intel disagree about its length),
//! `eip`-relative memory.

mod constants;
mod effects;
mod fields;
mod guesses;
mod huge;
mod quick;
mod stack;
mod steps;
mod tables;

use super::{
    Arch, AsksForHugePages, Compared, Counter, Effects, Field, FieldKind, FlagStep, FlagsOver,
    Flow, Guess, IndexGuard, Insn, LabelFallback, LabelLoad, Leaves, Loaded, MaybeField, Notes,
    Operand as Recorded, Plain, TableLoad, Takes, ThroughSlot,
};
use crate::addr::InputAddr;
use crate::arch::step::Step;
use yaxpeax_arch::{Decoder, LengthedInstruction, U8Reader};
use yaxpeax_x86::long_mode::{InstDecoder, Instruction, Opcode, Operand, RegSpec};

/// The instruction set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct X86_64;

/// Numbers of conditions beyond the 16 of `jcc`.
const COND_RCXZ: u16 = 16;
const COND_ECXZ: u16 = 17;
const COND_LOOP: u16 = 18;
const COND_LOOPZ: u16 = 19;
const COND_LOOPNZ: u16 = 20;
const COND_XBEGIN: u16 = 21;

/// The instruction at the start of `bytes` and its length.
fn decode_raw(bytes: &[u8]) -> Option<(Instruction, usize)> {
    let window = bytes.get(..bytes.len().min(15))?;
    let mut insn = Instruction::invalid();
    let mut reader = U8Reader::new(window);
    InstDecoder::default()
        .decode_into(&mut insn, &mut reader)
        .ok()?;
    let len = usize::try_from(insn.len().to_const()).ok()?;
    (1..=window.len()).contains(&len).then_some((insn, len))
}

/// Instructions that the decoder lacks, in VEX, EVEX or XOP encoding. All have a ModRM byte and continue with the next
/// instruction; none but `kmov` and `vcvtusi2sd` knows of general registers, other than in addresses. A test compares
/// with a second decoder what is missing still.
///
/// | encoding, map | opcodes |
/// |---|---|
/// | VEX, 0f | masks of AVX-512: 41–47, 4a, 4b (between registers); 90, 91 (memory too), 92, 93, 98, 99 (registers) |
/// | VEX, 0f 38 | dot products 50–53, d2, d3; numbers of 16 bits 72, b0, b1; products of 52 bits b4, b5; SHA-512 cb–cd; GFNI cf; SM3, SM4 da |
/// | VEX, 0f 3a, with an immediate byte | masks 30–33 (registers); `vpclmulqdq` 44; XOP's `vpermil2` 48, 49; FMA4 5c–5f, 68–6f, 78–7f; GFNI ce, cf; SM3 de |
/// | EVEX, 0f | `vcvtusi2sd` of 64 bits 7b |
/// | EVEX, 0f 38 | gathering 90–93, of which the decoder knows some, and scattering a0–a3 |
/// | EVEX, 0f, with an immediate byte | shifts and rotations 71–73 |
/// | EVEX, 0f 3a, with an immediate byte | numbers of 16 bits 08, 0a, 26, 27, 56, 57, 66, 67, c2 |
/// | XOP, map 8, with an immediate byte; map 9 | all from 80 on |
fn decode_vex(bytes: &[u8], addr: u64) -> Option<Insn> {
    let (evex, map, at) = match *bytes.first()? {
        0xc5 => (false, 1, 2),
        0xc4 => match *bytes.get(1)? & 0x1f {
            map @ 1..8 => (false, map, 3),
            _ => return None,
        },
        0x62 => (true, *bytes.get(1)? & 0x0f, 4),
        // Others are `pop`.
        0x8f => match *bytes.get(1)? & 0x1f {
            map @ 8.. => (false, map, 3),
            _ => return None,
        },
        _ => return None,
    };
    let opcode = *bytes.get(at)?;
    let modrm = *bytes.get(at + 1)?;
    let (known, immediate, memory) = match (evex, map, opcode) {
        (false, 1, 0x41 | 0x42 | 0x44..=0x47 | 0x4a | 0x4b | 0x92 | 0x93 | 0x98 | 0x99) => {
            (true, 0, false)
        }
        (false, 1, 0x90 | 0x91) => (true, 0, true),
        (false, 2, 0x50..=0x53 | 0x72 | 0xb0 | 0xb1 | 0xb4 | 0xb5) => (true, 0, true),
        (false, 2, 0xcb..=0xcd | 0xcf | 0xd2 | 0xd3 | 0xda) => (true, 0, true),
        (false, 3, 0x30..=0x33) => (true, 1, false),
        (false, 8, 0x80..) => (true, 1, true),
        (false, 9, 0x80..) => (true, 0, true),
        (false, 3, 0x44 | 0x48 | 0x49 | 0xce | 0xcf | 0xde) => (true, 1, true),
        (false, 3, 0x5c..=0x5f | 0x68..=0x6f | 0x78..=0x7f) => (true, 1, true),
        (true, 1, 0x7b) => (bytes.get(2)? & 0x83 == 0x83, 0, true),
        // Memory with a vector for an index.
        (true, 2, 0x90..=0x93 | 0xa0..=0xa3) => (modrm >> 6 != 3 && modrm & 7 == 4, 0, true),
        (true, 1, 0x72) => (matches!(modrm >> 3 & 7, 0 | 1 | 2 | 4 | 6), 1, true),
        (true, 1, 0x71) => (matches!(modrm >> 3 & 7, 2 | 4 | 6), 1, true),
        (true, 1, 0x73) => (matches!(modrm >> 3 & 7, 2 | 3 | 6 | 7), 1, true),
        (true, 3, 0x08 | 0x0a | 0x26 | 0x27 | 0x56 | 0x57 | 0x66 | 0x67 | 0xc2) => (true, 1, true),
        _ => (false, 0, false),
    };
    let (mode, low) = (modrm >> 6, modrm & 7);
    if !known || !memory && mode != 3 {
        return None;
    }
    let mut len = at + 2;
    let mut relative = None;
    if mode != 3 {
        let base = if low == 4 {
            len += 1;
            *bytes.get(at + 2)? & 7
        } else {
            low
        };
        len += match mode {
            0 if low == 5 => {
                relative = Some(len);
                4
            }
            0 if low == 4 && base == 5 => 4,
            1 => 1,
            2 => 4,
            _ => 0,
        };
    }
    len += immediate;
    bytes.get(..len)?;
    let field = match relative {
        None => None,
        Some(at) => {
            let stored = i32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?);
            let target = addr
                .wrapping_add(len as u64)
                .wrapping_add_signed(i64::from(stored));
            Some(Field {
                at: at as u8,
                len: 4,
                kind: FieldKind::Accesses,
                target,
                literal: 0,
            })
        }
    };
    Some(Insn {
        len: len as u8,
        flow: Flow::Next,
        field,
        prefixes: 0,
        landing_pad: false,
    })
}

/// Instructions that the decoder lacks, which continue with the next one and have no operands but in fixed registers:
/// those of VIA's PadLock, which cryptographic libraries have (`xstore`, and with `rep` all), and `serialize`.
fn decode_without_operands(bytes: &[u8]) -> Option<Insn> {
    let repeated = usize::from(*bytes.first()? == 0xf3);
    let known = match *bytes.get(repeated..)?.first_chunk::<3>()? {
        [0x0f, 0xa7, 0xc0] => true,
        [0x0f, 0xa7, 0xc8 | 0xd0 | 0xd8 | 0xe0 | 0xe8] => repeated == 1,
        [0x0f, 0xa6, 0xc8 | 0xd0 | 0xe0] => repeated == 1,
        [0x0f, 0x01, 0xe8] => repeated == 0,
        _ => false,
    };
    known.then_some(Insn {
        len: repeated as u8 + 3,
        flow: Flow::Next,
        field: None,
        prefixes: 0,
        landing_pad: false,
    })
}

/// Number of legacy and REX prefix bytes.
fn prefix_len(bytes: &[u8]) -> usize {
    let legacy = bytes
        .iter()
        .take_while(|b| {
            matches!(
                b,
                0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65 | 0x66 | 0x67 | 0xf0 | 0xf2 | 0xf3
            )
        })
        .count();
    // Of several REX prefixes only the one right before the opcode counts; all of them are skipped.
    legacy
        + bytes
            .iter()
            .skip(legacy)
            .take_while(|b| (0x40..=0x4f).contains(*b))
            .count()
}

/// Offset of the ModRM byte of an instruction that has one.
fn modrm_at(bytes: &[u8]) -> Option<usize> {
    let p = prefix_len(bytes);
    let at = match *bytes.get(p)? {
        0xc5 => p + 3,
        0xc4 => p + 4,
        0x62 => p + 5,
        // XOP shares its first byte with `pop`, whose ModRM byte has a zero in bits 3 and 4.
        0x8f if bytes.get(p + 1)? & 0x18 != 0 => p + 4,
        0x0f => match *bytes.get(p + 1)? {
            0x38 | 0x3a => p + 3,
            _ => p + 2,
        },
        _ => p + 1,
    };
    (at < bytes.len()).then_some(at)
}

/// A direct branch's field: the last `len` bytes.
fn branch_field(bytes: &[u8], addr: u64, len: usize) -> Option<Field> {
    let at = bytes.len().checked_sub(len)?;
    let displacement = match len {
        1 => i64::from(*bytes.get(at)? as i8),
        4 => i64::from(i32::from_le_bytes(bytes.get(at..)?.try_into().ok()?)),
        _ => return None,
    };
    let target = addr
        .wrapping_add(bytes.len() as u64)
        .wrapping_add_signed(displacement);
    Some(Field {
        at: at as u8,
        len: len as u8,
        kind: FieldKind::Branch,
        target,
        literal: 0,
    })
}

/// Length of an immediate branch displacement, if the operand is one.
fn displacement_len(operand: &Operand) -> Option<usize> {
    match operand {
        Operand::ImmediateI8 { .. } => Some(1),
        Operand::ImmediateI32 { .. } => Some(4),
        _ => None,
    }
}

impl Arch for X86_64 {
    const MACHINE: u16 = 62;
    const NAME: &'static str = "x86-64";
    const RELATIVE: [u32; 2] = [8, 37];
    const IMPORTS: [u32; 2] = [6, 7];
    const ABS_8: &'static [u32] = &[1];
    const ABS_4: &'static [u32] = &[10, 11];
    /// R_X86_64_PC64
    const DISTANCE_8: u32 = 24;
    /// R_X86_64_PC32
    const DISTANCE_4: u32 = 2;
    /// R_X86_64_PC64, GOTOFF64, PLTOFF64
    const DISTANCES: &'static [u32] = &[24, 25, 31];
    /// R_X86_64_GOTPC64
    const DISTANCES_OF_DATA: &'static [u32] = &[29];
    const PC_REGISTER: u16 = 16;
    const VENDOR: gimli::Vendor = gimli::Vendor::Default;
    const STEP: usize = 1;

    const REGISTERS: u8 = 16;
    const STACK: u8 = 4;
    const RED_ZONE: i64 = 128;
    const UNWIND_STACK: u16 = 7;
    const CALL_PUSHES: i64 = 8;
    const LINK: &'static [u8] = &[];
    const TABLE: u8 = 11;
    const NOTES: Notes = Notes {
        counter: 11,
        leaves_page: false,
        destroys: 1 << 11,
        link: None,
        lost: crate::arch::step::flag::ALL,
    };
    const STUB_SCRATCH: u32 = 1 << 11;
    // rbx, rbp, r12 to r15.
    const KEPT_BY_CALLS: u32 = 1 << 3 | 1 << 5 | 0xf << 12;
    const STUBS_AT_CALLS: bool = false;
    const PROMOTION: Option<u8> = Some(11);

    fn of_unwind_register(number: u16) -> u32 {
        const NUMBERS: [u8; 8] = [0, 2, 1, 3, 6, 7, 5, 4];
        match number {
            0..=7 => NUMBERS.get(usize::from(number)).map_or(0, |r| 1 << r),
            8..=15 => 1 << number,
            _ => 0,
        }
    }

    fn effects(bytes: &[u8]) -> Effects {
        effects::effects(bytes)
    }

    fn flags_over(bytes: &[u8], open: u8, most: usize) -> FlagsOver {
        quick::flags_over(bytes, open, most)
    }

    fn flag_step(bytes: &[u8], addr: u64) -> Option<FlagStep> {
        quick::flag_step(bytes, addr)
    }

    fn is_return(bytes: &[u8]) -> bool {
        // Nearly all have one byte.
        bytes.first() == Some(&0xc3)
            || decode_raw(bytes).is_some_and(|(i, _)| i.opcode() == Opcode::RETURN)
    }

    fn only_faults(bytes: &[u8]) -> bool {
        let faults = [Opcode::HLT, Opcode::UD0, Opcode::UD1, Opcode::UD2];
        decode_raw(bytes).is_some_and(|(i, _)| faults.contains(&i.opcode()))
    }

    fn is_system_call(bytes: &[u8]) -> bool {
        decode_raw(bytes).is_some_and(|(i, _)| i.opcode() == Opcode::SYSCALL)
    }

    fn plain(bytes: &[u8], addr: u64) -> Option<Plain> {
        steps::plain(bytes, addr)
    }

    fn step(bytes: &[u8], addr: u64) -> Option<Step> {
        steps::step(bytes, addr)
    }

    fn own_counter(bytes: &[u8]) -> Option<Counter> {
        steps::counter(bytes)
    }

    fn leaves(bytes: &[u8], addr: u64) -> Leaves {
        tables::leaves(bytes, addr)
    }

    fn most_if(cond: u16, taken: bool, number: u64) -> Option<u64> {
        tables::most_if(cond, taken, number)
    }

    fn table_load(bytes: &[u8]) -> Option<TableLoad> {
        tables::table_load(bytes)
    }

    fn label_load(bytes: &[u8], _addr: u64) -> Option<LabelLoad> {
        tables::label_load(bytes)
    }

    fn label_fallback(bytes: &[u8], addr: u64) -> Option<LabelFallback> {
        tables::label_fallback(bytes, addr)
    }

    fn sum(bytes: &[u8]) -> Option<(u8, u8)> {
        tables::sum(bytes)
    }

    fn index_guard(bytes: &[u8], addr: u64) -> Option<IndexGuard> {
        tables::index_guard(bytes, addr)
    }

    fn operand(bytes: &[u8], addr: u64) -> Option<(Recorded, u32)> {
        steps::operand(bytes, addr)
    }

    fn leaves_stack(bytes: &[u8]) -> bool {
        stack::leaves_stack(bytes)
    }

    fn comparison(bytes: &[u8], addr: u64) -> Option<(Compared, Compared)> {
        steps::comparison(bytes, addr)
    }

    fn is_ambiguous(bytes: &[u8]) -> bool {
        // lahf; mov r,fs:[0]; mov r,rax in front of lahf (alone programs have it everywhere); lea rsp,[rsp-128]
        matches!(
            bytes,
            [0x9f, ..]
                | [0x64, 0x48 | 0x4c, 0x8b, _, 0x25, 0, 0, 0, 0, ..]
                | [0x48 | 0x49, 0x89, 0xc0..=0xc7, 0x9f, ..]
                | [0x48, 0x8d, 0x64, 0x24, 0x80, ..]
        )
    }

    fn uses_own(bytes: &[u8]) -> bool {
        // Most have no prefix but REX.
        if !matches!(
            bytes.first(),
            Some(0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3)
        ) {
            return false;
        }
        let lead = bytes.get(..prefix_len(bytes)).unwrap_or(b"");
        if !lead.contains(&0x65) || is_plain_nop(bytes) {
            return false;
        }
        let own = bytes.get(lead.len()..).unwrap_or(b"");
        !is_without_memory(own) && !Self::is_privileged(bytes)
    }

    fn is_privileged(bytes: &[u8]) -> bool {
        let at = prefix_len(bytes);
        match bytes.get(at..).unwrap_or(b"") {
            // in, out, hlt, cli, sti, iret, software interrupts but that of 32-bit system calls
            [
                0x6c..=0x6f | 0xe4..=0xe7 | 0xec..=0xef | 0xf4 | 0xfa | 0xfb | 0xcf,
                ..,
            ] => true,
            [0xcd, number, ..] => *number != 0x80,
            _ => false,
        }
    }

    fn decode(bytes: &[u8], addr: u64) -> Option<Insn> {
        // It is made where it is returned: copying what was just written in parts waits for that.
        let quick = quick::decode(bytes, addr);
        if quick.is_none() {
            return decode_slowly(bytes, addr);
        }
        quick
    }

    #[inline]
    fn straight(bytes: &[u8], _addr: u64) -> Option<(u8, bool)> {
        quick::straight(bytes)
    }

    const SHORT_REACH: u64 = 130;

    fn may_have(
        code: &[u8],
        addr: u64,
        all: bool,
        is_wanted: impl Fn(MaybeField) -> bool,
    ) -> Option<usize> {
        fields::last(code, addr, all, is_wanted)
    }

    fn may_branch(
        code: &[u8],
        addr: u64,
        places: std::ops::Range<usize>,
        is_wanted: impl Fn(InputAddr) -> bool,
    ) -> Option<usize> {
        fields::last_short(code, addr, places, is_wanted)
    }

    fn stub_slot(bytes: &[u8], addr: u64) -> Option<u64> {
        // endbr64, bnd; nothing else.
        let pad = 4 * usize::from(bytes.starts_with(&[0xf3, 0x0f, 0x1e, 0xfa]));
        let bnd = usize::from(bytes.get(pad) == Some(&0xf2));
        let (rest, at) = (
            bytes.get(pad + bnd..)?,
            addr.checked_add((pad + bnd) as u64)?,
        );
        let jump = Self::through_slot(rest, at).filter(|t| !t.call)?;
        Some(jump.slot)
    }

    fn through_slot(bytes: &[u8], addr: u64) -> Option<ThroughSlot> {
        let [0xff, kind @ (0x15 | 0x25), a, b, c, d, ..] = *bytes else {
            return None;
        };
        let end = addr.checked_add(6)?;
        let slot = end.wrapping_add_signed(i32::from_le_bytes([a, b, c, d]).into());
        Some(ThroughSlot {
            slot,
            len: 6,
            call: kind == 0x15,
        })
    }

    fn asks_for_huge_pages(bytes: &[u8], addr: u64) -> Option<AsksForHugePages> {
        huge::read(bytes, addr)
    }

    fn takes_loaded(bytes: &[u8], addr: u64) -> Option<(Takes, Loaded)> {
        constants::loaded(bytes, addr)
    }

    fn takes_number(bytes: &[u8], takes: &Takes, number: u64) -> Option<u8> {
        constants::number(bytes, takes, number)
    }

    fn loaded_number(bytes: &[u8]) -> Option<u64> {
        let number = |at: usize| {
            Some(u64::from(u32::from_le_bytes(
                bytes.get(at..)?.try_into().ok()?,
            )))
        };
        match bytes {
            [0xb8..=0xbf, _, _, _, _] => number(1),
            [0x41, 0xb8..=0xbf, _, _, _, _] => number(2),
            [0x48 | 0x49, 0xc7, 0xc0..=0xc7, _, _, _, _] => number(3),
            _ => None,
        }
    }

    fn absolute_field(bytes: &[u8]) -> Option<Field> {
        let (insn, len) = decode_raw(bytes)?;
        let last = insn.operand(insn.operand_count().checked_sub(1)?);
        let (value, wide) = match last {
            Operand::ImmediateI32 { imm } => (imm as u32 as u64, false),
            Operand::ImmediateU32 { imm } => (u64::from(imm), false),
            Operand::ImmediateI64 { imm } => (imm as u64, true),
            Operand::ImmediateU64 { imm } => (imm, true),
            _ => return None,
        };
        if bytes.len() != len {
            return None;
        }
        let p = prefix_len(bytes);
        let movabs = wide && matches!(bytes.get(p), Some(0xb8..=0xbf)) && len == p + 9;
        let field_len = if movabs { 8 } else { 4 };
        let at = len.checked_sub(field_len)?;
        let tail = bytes.get(at..)?;
        let target = if movabs {
            u64::from_le_bytes(tail.try_into().ok()?)
        } else {
            u64::from(u32::from_le_bytes(tail.try_into().ok()?))
        };
        let agrees = if movabs {
            target == value
        } else {
            target as u32 == value as u32
        };
        agrees.then_some(Field {
            at: at as u8,
            len: field_len as u8,
            kind: FieldKind::Absolute,
            target,
            literal: 0,
        })
    }

    const WIDEST: u64 = 64;
    const ENTRIES: &'static [(u64, u32)] = &[(4, 0)];

    fn last_number(bytes: &[u8]) -> Option<u64> {
        quick::last_number(bytes)
    }

    fn guesses(bytes: &[u8], addr: u64, visit: &mut dyn FnMut(Guess, u64)) {
        guesses::visit(bytes, addr, visit);
    }

    fn padding_len(bytes: &[u8]) -> usize {
        match bytes.first() {
            None => 0,
            Some(0xcc) => 1,
            Some(_) => match decode_raw(bytes) {
                Some((_, len)) if bytes.get(..len).is_some_and(is_plain_nop) => len,
                _ => 0,
            },
        }
    }

    fn entry_jump(bytes: &[u8], entry: u64) -> Option<(u64, u64, u64)> {
        let skip = if bytes.starts_with(&[0xf3, 0x0f, 0x1e, 0xfa]) {
            4
        } else {
            0
        };
        let jump = bytes.get(skip..skip + 5)?;
        if jump.first() != Some(&0xe9) {
            return None;
        }
        let field = branch_field(jump, entry.checked_add(skip as u64)?, 4)?;
        Some((skip as u64, 5, field.target))
    }

    fn calculates_with_formed(first: &[u8], rest: &[u8]) -> bool {
        let Some((lea, _)) = decode_raw(first) else {
            return true;
        };
        let Operand::Register { reg } = lea.operand(0) else {
            return true;
        };
        let mut at = 0;
        // Straight code only, and not for ever: what happens far away is beyond this check.
        for _ in 0..24 {
            let Some((insn, len)) = rest.get(at..).and_then(decode_raw) else {
                return false;
            };
            at += len;
            if matches!(
                insn.opcode(),
                Opcode::ADD | Opcode::SUB | Opcode::LEA | Opcode::MOVSXD
            ) && (0..insn.operand_count())
                .any(|i| mentions(&insn.operand(i), reg, insn.opcode()))
            {
                return true;
            }
            let overwritten = matches!(
                insn.opcode(),
                Opcode::MOV | Opcode::LEA | Opcode::POP | Opcode::MOVZX | Opcode::MOVSX
            ) && matches!(insn.operand(0), Operand::Register { reg: r } if same(r, reg));
            let leaves = matches!(insn.opcode(), Opcode::JMP | Opcode::CALL | Opcode::RETURN)
                || insn.opcode().condition().is_some_and(|_| true) && branch_like(&insn);
            if overwritten || leaves {
                return false;
            }
        }
        false
    }
}

/// The same with the decoder alone.
fn decode_slowly(bytes: &[u8], addr: u64) -> Option<Insn> {
    let Some((insn, len)) = decode_raw(bytes) else {
        return decode_vex(bytes, addr).or_else(|| decode_without_operands(bytes));
    };
    let bytes = bytes.get(..len)?;
    let plain = Insn {
        len: len as u8,
        flow: Flow::Next,
        field: None,
        prefixes: 0,
        landing_pad: false,
    };
    let branch = |make: &dyn Fn(u64) -> Flow| {
        let prefixes = prefix_len(bytes);
        let lead = bytes.get(..prefixes)?;
        let rex_w = lead.last().is_some_and(|b| b & 0xf8 == 0x48);
        if lead.contains(&0x66) && !rex_w {
            return None;
        }
        let field = branch_field(bytes, addr, displacement_len(&insn.operand(0))?)?;
        Some(Insn {
            flow: make(field.target),
            field: Some(field),
            prefixes: prefixes as u8,
            ..plain
        })
    };
    let cond = |number: u16, inverse: Option<u16>| {
        branch(&|target| Flow::Branch {
            cond: number,
            inverse,
            target,
        })
    };
    let jcc = |number: u16| cond(number, Some(number ^ 1));
    let flow = match insn.opcode() {
        Opcode::JO => return jcc(0),
        Opcode::JNO => return jcc(1),
        Opcode::JB => return jcc(2),
        Opcode::JNB => return jcc(3),
        Opcode::JZ => return jcc(4),
        Opcode::JNZ => return jcc(5),
        Opcode::JNA => return jcc(6),
        Opcode::JA => return jcc(7),
        Opcode::JS => return jcc(8),
        Opcode::JNS => return jcc(9),
        Opcode::JP => return jcc(10),
        Opcode::JNP => return jcc(11),
        Opcode::JL => return jcc(12),
        Opcode::JGE => return jcc(13),
        Opcode::JLE => return jcc(14),
        Opcode::JG => return jcc(15),
        Opcode::JRCXZ => return cond(COND_RCXZ, None),
        Opcode::JECXZ => return cond(COND_ECXZ, None),
        Opcode::LOOP => return cond(COND_LOOP, None),
        Opcode::LOOPZ => return cond(COND_LOOPZ, None),
        Opcode::LOOPNZ => return cond(COND_LOOPNZ, None),
        Opcode::XBEGIN => return cond(COND_XBEGIN, None),
        Opcode::JMP | Opcode::CALL => {
            let call = insn.opcode() == Opcode::CALL;
            if displacement_len(&insn.operand(0)).is_some() {
                return branch(&|target| {
                    if call {
                        Flow::Call(target)
                    } else {
                        Flow::Jump(target)
                    }
                });
            }
            if call {
                Flow::IndirectCall
            } else {
                // Modrm with mod 0, rm 5: one fixed slot, such as a GOT entry.
                let fixed = modrm_at(bytes)
                    .and_then(|at| bytes.get(at))
                    .is_some_and(|m| m & 0xc7 == 5);
                Flow::IndirectJump { computed: !fixed }
            }
        }
        Opcode::CALLF => Flow::IndirectCall,
        Opcode::JMPF => Flow::IndirectJump { computed: true },
        Opcode::RETURN
        | Opcode::RETF
        | Opcode::IRET
        | Opcode::IRETD
        | Opcode::IRETQ
        | Opcode::SYSRET
        | Opcode::SYSEXIT => Flow::Stop,
        Opcode::HLT | Opcode::UD0 | Opcode::UD1 | Opcode::UD2 => Flow::Stop,
        Opcode::INT | Opcode::SYSCALL | Opcode::SYSENTER => Flow::Trap,
        Opcode::NOP | Opcode::XCHG if is_plain_nop(bytes) => {
            return Some(Insn {
                flow: Flow::Nothing,
                ..plain
            });
        }
        Opcode::ENDBR64 => {
            return Some(Insn {
                landing_pad: true,
                ..plain
            });
        }
        _ => Flow::Next,
    };
    let mut field = None;
    for i in 0..insn.operand_count() {
        let displacement = match insn.operand(i) {
            Operand::Disp { base, disp } | Operand::DispMasked { base, disp, .. }
                if base == RegSpec::rip() =>
            {
                disp
            }
            Operand::MemDeref { base } | Operand::MemDerefMasked { base, .. }
                if base == RegSpec::rip() =>
            {
                0
            }
            Operand::Disp { base, .. } | Operand::MemDeref { base } if base == RegSpec::eip() => {
                return None;
            }
            Operand::DispMasked { base, .. } | Operand::MemDerefMasked { base, .. }
                if base == RegSpec::eip() =>
            {
                return None;
            }
            _ => continue,
        };
        let at = modrm_at(bytes)?;
        let stored = i32::from_le_bytes(bytes.get(at + 1..at + 5)?.try_into().ok()?);
        if bytes.get(at)? & 0xc7 != 5 || stored != displacement {
            return None;
        }
        let target = addr
            .wrapping_add(len as u64)
            .wrapping_add_signed(i64::from(stored));
        let kind = if insn.opcode() == Opcode::LEA {
            FieldKind::Forms
        } else {
            FieldKind::Accesses
        };
        field = Some(Field {
            at: (at + 1) as u8,
            len: 4,
            kind,
            target,
            literal: 0,
        });
        break;
    }
    Some(Insn {
        flow,
        field,
        ..plain
    })
}

/// Same general register, whatever part of it. The program counter has a number, too.
fn same(a: RegSpec, b: RegSpec) -> bool {
    matches!(effects::general(a), Some((_, true))) && a.num() == b.num()
}

fn branch_like(insn: &Instruction) -> bool {
    insn.opcode().condition().is_some() && displacement_len(&insn.operand(0)).is_some()
}

/// Whether an operand of an adding instruction takes the register's value into an address calculation.
fn mentions(operand: &Operand, reg: RegSpec, opcode: Opcode) -> bool {
    match *operand {
        Operand::Register { reg: r } => matches!(opcode, Opcode::ADD | Opcode::SUB) && same(r, reg),
        Operand::MemDeref { base } => {
            same(base, reg) && matches!(opcode, Opcode::MOVSXD | Opcode::ADD | Opcode::LEA)
        }
        Operand::Disp { base, .. } => same(base, reg),
        Operand::MemBaseIndexScale { base, index, .. }
        | Operand::MemBaseIndexScaleDisp { base, index, .. } => same(base, reg) || same(index, reg),
        _ => false,
    }
}

/// Whether an instruction, of which these are the bytes behind its prefixes, certainly has no operand in memory
/// that a segment prefix could mean. Stack slots of pushes and returns, and what string instructions write, are none.
fn is_without_memory(own: &[u8]) -> bool {
    match *own {
        // Branches to an address of their own.
        [0x70..=0x7f | 0xe0..=0xe3 | 0xe8 | 0xe9 | 0xeb, ..] | [0x0f, 0x80..=0x8f, ..] => true,
        // With a register and a number, or with no operand at all.
        [
            0x04
            | 0x05
            | 0x0c
            | 0x0d
            | 0x14
            | 0x15
            | 0x1c
            | 0x1d
            | 0x24
            | 0x25
            | 0x2c
            | 0x2d
            | 0x34
            | 0x35
            | 0x3c
            | 0x3d
            | 0x50..=0x5f
            | 0x68
            | 0x6a
            | 0x90..=0x99
            | 0x9b..=0x9f
            | 0xa8..=0xab
            | 0xae..=0xbf
            | 0xc2
            | 0xc3
            | 0xc9
            | 0xcc
            | 0xf1
            | 0xf5
            | 0xf8
            | 0xf9
            | 0xfc
            | 0xfd,
            ..,
        ] => true,
        // What is calculated is an address.
        [0x8d, ..] => true,
        // Between registers.
        [
            0x00..=0x03
            | 0x08..=0x0b
            | 0x10..=0x13
            | 0x18..=0x1b
            | 0x20..=0x23
            | 0x28..=0x2b
            | 0x30..=0x33
            | 0x38..=0x3b
            | 0x63
            | 0x69
            | 0x6b
            | 0x80..=0x8b
            | 0xc0
            | 0xc1
            | 0xc6
            | 0xc7
            | 0xd0..=0xd3
            | 0xd8..=0xdf
            | 0xf6
            | 0xf7
            | 0xfe
            | 0xff,
            0xc0..=0xff,
            ..,
        ]
        | [0x0f, 0x38 | 0x3a, _, 0xc0..=0xff, ..] => true,
        [0x0f, opcode, modrm @ 0xc0..=0xff, ..] => {
            // Some of groups 7 and 15 and the masked stores go by a register that is no operand.
            let watches = opcode == 0xae && modrm & 0xf8 == 0xf0;
            !watches && !matches!(opcode, 0x01 | 0x38 | 0x3a | 0xf7)
        }
        [0xc5, _, opcode, 0xc0..=0xff, ..] => opcode != 0xf7,
        [0xc4, map, _, opcode, 0xc0..=0xff, ..] => opcode != 0xf7 || map & 0x1f != 1,
        [0x62, _, _, _, _, 0xc0..=0xff, ..] => true,
        _ => false,
    }
}

/// One whole instruction that does nothing: `90` or `0f 1f`. The decoder also calls `f3 90` (`pause`) and the reserved
/// `0f 18`…`0f 1e` a nop; some of those act on newer processors, so they are copied like any other instruction.
fn is_plain_nop(bytes: &[u8]) -> bool {
    let lead = prefix_len(bytes);
    let (prefixes, opcode) = bytes.split_at(lead.min(bytes.len()));
    let harmless = !prefixes.iter().any(|b| matches!(b, 0xf0 | 0xf2 | 0xf3));
    match opcode {
        // With REX.B it is `xchg %r8, %rax`.
        [0x90] => harmless && !prefixes.iter().any(|b| b & 0xf1 == 0x41),
        [0x0f, 0x1f, ..] => harmless,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insn(bytes: &[u8]) -> Insn {
        X86_64::decode(bytes, 0x1000).expect("a valid instruction")
    }

    #[test]
    fn branches_have_their_targets_and_conditions() {
        assert_eq!(insn(&[0xeb, 0x10]).flow, Flow::Jump(0x1012));
        assert_eq!(
            insn(&[0xe9, 0xfb, 0xff, 0xff, 0xff]).flow,
            Flow::Jump(0x1000)
        );
        assert_eq!(insn(&[0xe8, 0, 1, 0, 0]).flow, Flow::Call(0x1105));
        assert_eq!(
            insn(&[0x74, 2]).flow,
            Flow::Branch {
                cond: 4,
                inverse: Some(5),
                target: 0x1004
            }
        );
        assert_eq!(
            insn(&[0x0f, 0x85, 0, 0, 0, 0]).flow,
            Flow::Branch {
                cond: 5,
                inverse: Some(4),
                target: 0x1006
            }
        );
        assert_eq!(
            insn(&[0xe3, 0xfe]).flow,
            Flow::Branch {
                cond: COND_RCXZ,
                inverse: None,
                target: 0x1000
            }
        );
        assert_eq!(
            insn(&[0xe2, 0xfe]).flow,
            Flow::Branch {
                cond: COND_LOOP,
                inverse: None,
                target: 0x1000
            }
        );
        assert_eq!(
            insn(&[0xc7, 0xf8, 4, 0, 0, 0]).flow,
            Flow::Branch {
                cond: COND_XBEGIN,
                inverse: None,
                target: 0x100a
            }
        );
    }

    /// What this decoder does not know, of what another does, in VEX, EVEX and XOP encodings: functions that have it
    /// stay, and as bytes without meaning are gone through one by one, those beside them may stay for nothing.
    #[test]
    fn what_is_not_decoded_of_vex_and_evex_is_known() {
        // They read or write general registers, or the processor's tiles.
        let known = |name: &str| {
            let cmpxadd = name.starts_with("Cmp") && name.ends_with("xadd");
            let tiles = ["Td", "Tc", "Tilelo", "Tilest"];
            let tiles =
                tiles.iter().any(|start| name.starts_with(start)) || name.ends_with("tilecfg");
            let masks = ["Blc", "Bls", "T1mskc", "Tzmsk", "Llwpcb", "Slwpcb"];
            let masks = masks.iter().any(|start| name.starts_with(start));
            cmpxadd || tiles || masks || matches!(name, "Vpextrb" | "Vpextrw")
        };
        let mut missing = std::collections::BTreeSet::new();
        let mut compared = 0;
        for code in encodings() {
            let insn = iced_x86::Decoder::with_ip(64, &code, 0x1000, 0).decode();
            if insn.is_invalid() {
                continue;
            }
            compared += 1;
            let ours = X86_64::decode(&code, 0x1000).map(|i| usize::from(i.len));
            let name = format!("{:?}", insn.mnemonic());
            if ours != Some(insn.len()) && !known(&name) {
                missing.insert((name, ours));
            }
        }
        assert!(compared > 20_000, "{compared}");
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn instructions_without_operands_are_as_long_as_another_decoder_says() {
        for repeated in [&[][..], &[0xf3]] {
            for (opcode, modrms) in [(0x01, 0xe8..=0xe8), (0xa6, 0..=255), (0xa7, 0..=255)] {
                for modrm in modrms {
                    let code = [repeated, &[0x0f, opcode, modrm], &[0x90; 8]].concat();
                    let insn = iced_x86::Decoder::with_ip(64, &code, 0x1000, 0).decode();
                    let theirs = (!insn.is_invalid()).then_some(insn.len());
                    let ours = X86_64::decode(&code, 0x1000).map(|i| usize::from(i.len));
                    assert!(ours.is_none() || ours == theirs, "{code:02x?} {theirs:?}");
                }
            }
        }
        let all: [&[u8]; 4] = [
            &[0x0f, 0x01, 0xe8],
            &[0x0f, 0xa7, 0xc0],
            &[0xf3, 0x0f, 0xa7, 0xc8],
            &[0xf3, 0x0f, 0xa6, 0xd0],
        ];
        for code in all {
            let decoded = X86_64::decode(code, 0x1000).map(|i| (usize::from(i.len), i.flow));
            assert_eq!(decoded, Some((code.len(), Flow::Next)), "{code:02x?}");
            // PadLock's write to where rdi points.
            let writes = code != [0x0f, 0x01, 0xe8];
            let reads = X86_64::effects(code).reads;
            assert_eq!(reads & 1 << 7 != 0, writes, "{code:02x?}");
        }
    }

    /// The same of all others: every opcode with every ModRM byte and the prefixes that choose another instruction.
    #[test]
    fn what_is_not_decoded_of_legacy_encodings_is_known() {
        // Branches of 16 bits, which are refused; additions in memory at a distance, which no program has yet; and what
        // kernels have, other makers' processors, or nobody.
        const KNOWN: [&str; 19] = [
            "Aadd",
            "Aand",
            "Aor",
            "Axor",
            "Ccs",
            "Erets",
            "Eretu",
            "Hreset",
            "Lkgs",
            "Pbndkb",
            "Rdmsrlist",
            "Reservednop",
            // With a prefix.
            "Serialize",
            "Undoc",
            "Wrmsrlist",
            "Wrmsrns",
            "Xcrypt",
            "Xsha",
            "Xstore",
        ];
        let narrow = |name: &str| {
            ["Call", "J", "Loop", "Xbegin"]
                .iter()
                .any(|start| name.starts_with(start))
        };
        let known = |name: &str| narrow(name) || KNOWN.iter().any(|start| name.starts_with(start));
        let mut missing = std::collections::BTreeSet::new();
        for prefixes in [&[][..], &[0x66], &[0xf2], &[0xf3], &[0x48], &[0xf3, 0x48]] {
            for map in [&[][..], &[0x0f], &[0x0f, 0x38], &[0x0f, 0x3a]] {
                for number in 0..1u32 << 16 {
                    let [opcode, modrm, ..] = number.to_le_bytes();
                    // One more prefix, or another map.
                    if map.is_empty() && (prefix_len(&[opcode]) != 0 || opcode == 0x0f) {
                        continue;
                    }
                    let end = [opcode, modrm, 5, 5, 5, 5, 5, 5, 5, 5, 5];
                    let code = [prefixes, map, &end].concat();
                    let insn = iced_x86::Decoder::with_ip(64, &code, 0x1000, 0).decode();
                    let name = format!("{:?}", insn.mnemonic());
                    if !insn.is_invalid()
                        && X86_64::decode(&code, 0x1000).is_none()
                        && !known(&name)
                    {
                        missing.insert(name);
                    }
                }
            }
        }
        assert!(missing.is_empty(), "{missing:?}");
    }

    /// All opcodes of three maps, and two of XOP, with all prefixes and lengths, between registers and with memory.
    fn encodings() -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        for number in 0..1u32 << 15 {
            let (opcode, evex) = (number as u8, number >> 8 & 1 == 1);
            let (pp, length, wide) = (number >> 9 & 3, number >> 11 & 3, number >> 13 & 1);
            let second = match number >> 14 & 1 {
                0 => 0x78,
                _ => 0x30,
            };
            let rest = (wide << 7 | second | pp) as u8;
            for map in 1..=3u8 {
                for modrm in [0xc1, 0x01, 0x41, 0x44, 0xc9, 0xd1, 0xe1, 0xf1] {
                    let end = [opcode, modrm, 5, 5, 5, 5, 5, 5, 5, 5];
                    if !evex {
                        let code = [0xc4, 0xe0 | map, rest | (length as u8 & 1) << 2];
                        all.push([&code[..], &end].concat());
                        continue;
                    }
                    // Without a mask, and with one that merges or sets to zero.
                    for mask in [0x08, 0x09, 0x89] {
                        let code = [0x62, 0xf0 | map, rest | 4, (length << 5) as u8 | mask];
                        all.push([&code[..], &end].concat());
                    }
                }
            }
            for map in [8, 9] {
                for modrm in [0xc1, 0x01, 0x41, 0xc9, 0xd1, 0xe1, 0xf1] {
                    let code = [
                        0x8f,
                        0xe0 | map,
                        rest | (length as u8 & 1) << 2,
                        opcode,
                        modrm,
                    ];
                    all.push([&code[..], &[5; 8]].concat());
                }
            }
        }
        all
    }

    /// Arithmetic in Galois fields, in all three encodings: the second decoder's lengths, as the assembler made them.
    #[test]
    fn instructions_of_galois_fields_are_known_in_every_encoding() {
        let all: [(&[u8], Option<u64>, u32); 19] = [
            // gf2p8mulb xmm1,xmm2
            (&[0x66, 0x0f, 0x38, 0xcf, 0xca], None, 0),
            // gf2p8mulb xmm9,XMMWORD PTR [rip+0x40]
            (
                &[0x66, 0x44, 0x0f, 0x38, 0xcf, 0x0d, 0x40, 0x00, 0x00, 0x00],
                Some(0x104a),
                0,
            ),
            // gf2p8affineqb xmm1,xmm2,0x5
            (&[0x66, 0x0f, 0x3a, 0xce, 0xca, 0x05], None, 0),
            // gf2p8affineqb xmm1,XMMWORD PTR [rip+0x40],0x5
            (
                &[0x66, 0x0f, 0x3a, 0xce, 0x0d, 0x40, 0x00, 0x00, 0x00, 0x05],
                Some(0x104a),
                0,
            ),
            // gf2p8affineinvqb xmm1,XMMWORD PTR [rax+rcx*2+0x8],0x5
            (
                &[0x66, 0x0f, 0x3a, 0xcf, 0x4c, 0x48, 0x08, 0x05],
                None,
                1 << 0 | 1 << 1,
            ),
            // vgf2p8mulb xmm0,xmm1,xmm2
            (&[0xc4, 0xe2, 0x71, 0xcf, 0xc2], None, 0),
            // vgf2p8mulb ymm0,ymm1,ymm9
            (&[0xc4, 0xc2, 0x75, 0xcf, 0xc1], None, 0),
            // vgf2p8mulb ymm0,ymm1,YMMWORD PTR [rip+0x40]
            (
                &[0xc4, 0xe2, 0x75, 0xcf, 0x05, 0x40, 0x00, 0x00, 0x00],
                Some(0x1049),
                0,
            ),
            // vgf2p8affineqb ymm0,ymm1,ymm2,0x5
            (&[0xc4, 0xe3, 0xf5, 0xce, 0xc2, 0x05], None, 0),
            // vgf2p8affineqb xmm0,xmm1,XMMWORD PTR [rip+0x40],0x5
            (
                &[0xc4, 0xe3, 0xf1, 0xce, 0x05, 0x40, 0x00, 0x00, 0x00, 0x05],
                Some(0x104a),
                0,
            ),
            // vgf2p8affineinvqb ymm0,ymm1,YMMWORD PTR [r9+rcx*2+0x8],0x5
            (
                &[0xc4, 0xc3, 0xf5, 0xcf, 0x44, 0x49, 0x08, 0x05],
                None,
                1 << 1 | 1 << 9,
            ),
            // vgf2p8affineinvqb ymm0,ymm1,YMMWORD PTR [rip+0x40],0x5
            (
                &[0xc4, 0xe3, 0xf5, 0xcf, 0x05, 0x40, 0x00, 0x00, 0x00, 0x05],
                Some(0x104a),
                0,
            ),
            // vgf2p8mulb zmm0,zmm1,zmm2
            (&[0x62, 0xf2, 0x75, 0x48, 0xcf, 0xc2], None, 0),
            // vgf2p8mulb zmm0{k1},zmm1,ZMMWORD PTR [rip+0x40]
            (
                &[0x62, 0xf2, 0x75, 0x49, 0xcf, 0x05, 0x40, 0x00, 0x00, 0x00],
                Some(0x104a),
                0,
            ),
            // vgf2p8mulb xmm20,xmm1,XMMWORD PTR [rax+0x10]
            (&[0x62, 0xe2, 0x75, 0x08, 0xcf, 0x60, 0x01], None, 1 << 0),
            // vgf2p8affineqb zmm0,zmm1,zmm2,0x5
            (&[0x62, 0xf3, 0xf5, 0x48, 0xce, 0xc2, 0x05], None, 0),
            // vgf2p8affineqb zmm0,zmm1,ZMMWORD PTR [rip+0x40],0x5
            (
                &[
                    0x62, 0xf3, 0xf5, 0x48, 0xce, 0x05, 0x40, 0x00, 0x00, 0x00, 0x05,
                ],
                Some(0x104b),
                0,
            ),
            // vgf2p8affineqb zmm0,zmm1,QWORD BCST [rip+0x40],0x5
            (
                &[
                    0x62, 0xf3, 0xf5, 0x58, 0xce, 0x05, 0x40, 0x00, 0x00, 0x00, 0x05,
                ],
                Some(0x104b),
                0,
            ),
            // vgf2p8affineinvqb ymm17{k2}{z},ymm1,YMMWORD PTR [r9+rcx*2+0x40],0x5
            (
                &[0x62, 0xc3, 0xf5, 0xaa, 0xcf, 0x4c, 0x49, 0x02, 0x05],
                None,
                1 << 1 | 1 << 9,
            ),
        ];
        for (bytes, target, reads) in all {
            // What follows does not belong to it.
            let code = [bytes, &[0x90; 4]].concat();
            let insn = X86_64::decode(&code, 0x1000);
            let seen = insn.map(|i| (usize::from(i.len), i.flow, i.field.map(|f| f.target)));
            assert_eq!(seen, Some((bytes.len(), Flow::Next, target)), "{bytes:x?}");
            let effects = X86_64::effects(&code);
            assert_eq!(
                (effects.reads, effects.kills, effects.flag_reads),
                (reads, 0, 0),
                "{bytes:x?}"
            );
        }
    }

    #[test]
    fn all_sixteen_conditions_agree_with_the_opcode_nibble() {
        for c in 0..16u8 {
            let Flow::Branch { cond, inverse, .. } = insn(&[0x70 + c, 0]).flow else {
                panic!("7{c:x} is a branch")
            };
            assert_eq!((cond, inverse), (u16::from(c), Some(u16::from(c) ^ 1)));
            let Flow::Branch { cond, .. } = insn(&[0x0f, 0x80 + c, 0, 0, 0, 0]).flow else {
                panic!("0f 8{c:x} is a branch")
            };
            assert_eq!(cond, u16::from(c));
        }
    }

    #[test]
    fn the_tls_call_with_padding_prefixes_is_a_call() {
        let i = insn(&[0x66, 0x66, 0x48, 0xe8, 1, 0, 0, 0]);
        assert_eq!((i.len, i.flow), (8, Flow::Call(0x1009)));
    }

    #[test]
    fn rip_relative_fields_lie_before_the_immediate() {
        // movl $7, 0x10(%rip)
        let i = insn(&[0xc7, 0x05, 0x10, 0, 0, 0, 7, 0, 0, 0]);
        assert_eq!(
            i.field,
            Some(Field {
                at: 2,
                len: 4,
                kind: FieldKind::Accesses,
                target: 0x101a,
                literal: 0
            })
        );
        // lea 0(%rip), %rdi
        let i = insn(&[0x48, 0x8d, 0x3d, 0, 0, 0, 0]);
        assert_eq!(
            i.field,
            Some(Field {
                at: 3,
                len: 4,
                kind: FieldKind::Forms,
                target: 0x1007,
                literal: 0
            })
        );
        // vmovaps 0x20(%rip), %ymm1; vpaddd 0x40(%rip), %zmm1, %zmm2; pshufb 8(%rip), %xmm0; cmpb $1, 4(%rip)
        assert_eq!(
            insn(&[0xc5, 0xfc, 0x28, 0x0d, 0x20, 0, 0, 0])
                .field
                .map(|f| (f.at, f.target)),
            Some((4, 0x1028))
        );
        assert_eq!(
            insn(&[0x62, 0xf1, 0x75, 0x48, 0xfe, 0x15, 0x40, 0, 0, 0])
                .field
                .map(|f| (f.at, f.target)),
            Some((6, 0x104a))
        );
        assert_eq!(
            insn(&[0x66, 0x0f, 0x38, 0x00, 0x05, 8, 0, 0, 0])
                .field
                .map(|f| (f.at, f.target)),
            Some((5, 0x1011))
        );
        assert_eq!(
            insn(&[0x80, 0x3d, 4, 0, 0, 0, 1])
                .field
                .map(|f| (f.at, f.target)),
            Some((2, 0x100b))
        );
    }

    #[test]
    fn whatever_another_decoder_sees_to_use_a_segment_is_noticed() {
        use iced_x86::{Decoder, InstructionInfoFactory, OpAccess, Register};
        let mut factory = InstructionInfoFactory::new();
        let mut uses = 0;
        let plain = (0..=u16::MAX).flat_map(|number| {
            let [opcode, modrm] = number.to_be_bytes();
            let maps: [&[u8]; 4] = [&[], &[0x0f], &[0x0f, 0x38], &[0x0f, 0x3a]];
            let leads: [&[u8]; 4] = [&[], &[0x66], &[0xf3], &[0x48]];
            let both = maps
                .into_iter()
                .flat_map(move |map| leads.map(|lead| (map, lead)));
            both.map(move |(map, lead)| {
                let rest = [opcode, modrm, 5, 5, 5, 5, 5, 5, 5, 5];
                [lead, map, rest.as_slice()].concat()
            })
        });
        for code in plain.chain(encodings()) {
            let code = [&[0x65], code.as_slice()].concat();
            let insn = Decoder::with_ip(64, &code, 0x1000, 0).decode();
            let Some(code) = code.get(..insn.len()).filter(|_| !insn.is_invalid()) else {
                continue;
            };
            let is_used = |m: &iced_x86::UsedMemory| {
                m.segment() == Register::GS && m.access() != OpAccess::NoMemAccess
            };
            let used = factory.info(&insn).used_memory().iter().any(is_used);
            // What only an operating system may do ends the program.
            let ends = X86_64::is_privileged(code);
            assert!(!used || ends || X86_64::uses_own(code), "{code:x?}");
            uses += usize::from(used);
        }
        assert!(uses > 20_000, "{uses}");
    }

    #[test]
    fn a_segment_is_used_by_what_has_an_operand_in_memory() {
        let used: [&[u8]; 7] = [
            &[0x65, 0xc5, 0xf9, 0xf7, 0xc1],             // vmaskmovdqu xmm0,xmm1
            &[0x65, 0xf3, 0x0f, 0xae, 0xf0],             // umonitor rax
            &[0x65, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0], // mov rax,gs:[0]
            &[0x65, 0xd1, 0x3a],                         // sar dword gs:[rdx],1
            &[0x65, 0xa4],                               // movs [rdi],gs:[rsi]
            &[0x65, 0xd7],                               // xlat
            &[0x65, 0x66, 0x0f, 0xf7, 0xc1],             // maskmovdqu xmm0,xmm1
        ];
        let unused: [&[u8]; 9] = [
            &[0x65, 0xc5, 0xf9, 0x6f, 0xc1],             // vmovdqa xmm0,xmm1
            &[0x65, 0x62, 0xf1, 0x7d, 0x48, 0x6f, 0xc1], // vmovdqa32 zmm0,zmm1
            &[0x65, 0x0f, 0xb6, 0xc1],                   // movzx eax,cl
            &[0x65, 0xc3],                               // ret
            &[0x65, 0xd1, 0xfa],                         // sar edx,1
            &[0x65, 0x35, 1, 2, 3, 4],                   // xor eax,0x4030201
            &[0x65, 0x48, 0x8b, 0xc1],                   // mov rax,rcx
            &[0x65, 0x75, 0x10],                         // jne
            &[0x64, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0], // mov rax,fs:[0]
        ];
        assert!(used.iter().all(|code| X86_64::uses_own(code)));
        assert!(!unused.iter().any(|code| X86_64::uses_own(code)));
    }

    #[test]
    fn indirect_jumps_tell_slots_from_computed_addresses() {
        assert_eq!(
            insn(&[0xff, 0x25, 0, 0, 0, 0]).flow,
            Flow::IndirectJump { computed: false }
        );
        assert_eq!(
            insn(&[0xff, 0xe0]).flow,
            Flow::IndirectJump { computed: true }
        );
        assert_eq!(
            insn(&[0x3e, 0xff, 0xe0]).flow,
            Flow::IndirectJump { computed: true }
        );
        assert_eq!(
            insn(&[0xff, 0x24, 0xc5, 0, 0x20, 0x40, 0]).flow,
            Flow::IndirectJump { computed: true }
        );
        assert_eq!(insn(&[0xff, 0xd0]).flow, Flow::IndirectCall);
    }

    #[test]
    fn nops_of_every_shape_do_nothing_and_pause_and_xchg_do_something() {
        for nop in [
            &[0x90][..],
            &[0x66, 0x90],
            &[0x0f, 0x1f, 0],
            &[0x0f, 0x1f, 0x40, 0],
            &[0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0],
        ] {
            assert_eq!(insn(nop).flow, Flow::Nothing, "{nop:x?}");
            assert!(X86_64::is_padding(nop));
        }
        for other in [
            &[0xf3, 0x90][..],
            &[0x49, 0x90],
            &[0x41, 0x90],
            &[0xf3, 0x0f, 0x1e, 0xfa],
        ] {
            assert_ne!(insn(other).flow, Flow::Nothing, "{other:x?}");
            assert!(!X86_64::is_padding(other));
        }
        assert!(X86_64::is_padding(&[0xcc, 0xcc, 0x90, 0xcc]));
    }

    #[test]
    fn absolute_immediates_of_four_and_eight_bytes_are_found() {
        // mov $0x401020, %edi; movabs $0x401020, %rax; movq $0x401020, 8(%rax); cmp $1, %al
        assert_eq!(
            X86_64::absolute_field(&[0xbf, 0x20, 0x10, 0x40, 0]).map(|f| (f.at, f.len, f.target)),
            Some((1, 4, 0x40_1020))
        );
        assert_eq!(
            X86_64::absolute_field(&[0x48, 0xb8, 0x20, 0x10, 0x40, 0, 0, 0, 0, 0])
                .map(|f| (f.at, f.len, f.target)),
            Some((2, 8, 0x40_1020))
        );
        assert_eq!(
            X86_64::absolute_field(&[0x48, 0xc7, 0x40, 8, 0x20, 0x10, 0x40, 0])
                .map(|f| (f.at, f.len, f.target)),
            Some((4, 4, 0x40_1020))
        );
        assert_eq!(X86_64::absolute_field(&[0x3c, 1]), None);
    }

    #[test]
    fn adding_to_a_formed_label_is_noticed() {
        let lea = [0x48, 0x8d, 0x05, 0, 0, 0, 0];
        // add %rax, %rcx; then jmp *%rcx
        assert!(X86_64::calculates_with_formed(
            &lea,
            &[0x48, 0x01, 0xc1, 0xff, 0xe1]
        ));
        // mov %rax, (%rdi); ret
        assert!(!X86_64::calculates_with_formed(
            &lea,
            &[0x48, 0x89, 0x07, 0xc3]
        ));
    }

    #[test]
    fn the_program_counter_is_not_taken_for_the_register_of_a_formed_label() {
        // lea rsi,[rip]; jmp rax
        let rest = [0x48, 0x8d, 0x35, 0, 0, 0, 0, 0xff, 0xe0];
        assert!(!X86_64::calculates_with_formed(
            &[0x48, 0x8d, 0x05, 0, 0, 0, 0],
            &rest
        ));
    }

    #[test]
    fn arbitrary_bytes_never_panic_and_lengths_stay_inside() {
        arbtest::arbtest(|u| {
            let bytes: Vec<u8> = u.arbitrary()?;
            if let Some(i) = X86_64::decode(&bytes, 0xffff_ffff_ffff_fff0) {
                assert!(usize::from(i.len) <= bytes.len() && i.len >= 1);
                if let Some(f) = i.field {
                    assert!(f.at + f.len <= i.len);
                }
            }
            let _ = X86_64::padding_len(&bytes);
            let _ = X86_64::entry_jump(&bytes, u64::MAX - 3);
            let _ = X86_64::absolute_field(&bytes);
            let _ = X86_64::calculates_with_formed(&bytes, &bytes);
            Ok(())
        });
    }

    #[test]
    fn mask_instructions_that_the_decoder_lacks_are_known() {
        // kmovd eax,k0; kmovq k1,rdx; kortestd k0,k1; kunpckbw k0,k1,k2; kshiftrq k1,k0,3; kmovq k1,[rip+0x10]
        let cases: [(&[u8], u8); 6] = [
            (&[0xc5, 0xfb, 0x93, 0xc0], 4),
            (&[0xc4, 0xe1, 0xfb, 0x92, 0xca], 5),
            (&[0xc4, 0xe1, 0xf9, 0x98, 0xc1], 5),
            (&[0xc5, 0xf5, 0x4b, 0xc2], 4),
            (&[0xc4, 0xe3, 0xf9, 0x31, 0xc8, 3], 6),
            (&[0xc4, 0xe1, 0xf8, 0x90, 0x0d, 0x10, 0, 0, 0], 9),
        ];
        for (bytes, len) in cases {
            let insn = X86_64::decode(bytes, 0x1000).unwrap();
            assert_eq!((insn.len, insn.flow), (len, Flow::Next), "{bytes:x?}");
        }
        let field = X86_64::decode(cases[5].0, 0x1000).unwrap().field.unwrap();
        assert_eq!((field.at, field.len, field.target), (5, 4, 0x1019));
        assert!(X86_64::decode(&[0xc5, 0xfb, 0x93], 0).is_none());
        assert!(
            X86_64::decode(&[0xc5, 0xfb, 0x93, 0x00], 0).is_none(),
            "no memory form"
        );
    }
}
