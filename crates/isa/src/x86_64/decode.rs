//! Decoding: how long an instruction is, where it goes, and which field of it holds an address.
//!
//! Nine of ten instructions are read by the tables of [`super::common`]. iced-x86 decodes the others; this file reduces
//! its 40-byte answer to an [`Insn`]. Almost every instruction is plain: not a branch, no operand relative to `rip`,
//! one of a handful of opcodes that are named here. So the common path is one table look-up (`flow_control`) and two
//! comparisons, and only the rest is looked at closely.
//!
//! # What the classes are
//!
//! | instruction | [`Flow`] | remark |
//! |---|---|---|
//! | `jmp rel`, `jcc rel`, `call rel` | `Jump`, `CondJump`, `Call` | `field` is the displacement |
//! | `loop*`, `jrcxz`, `jecxz` | `ShortCond` | only a rel8 form exists |
//! | `call r/m`, far calls | `IndirectCall` | `field` when the operand is relative to `rip` |
//! | `jmp r/m`, far jumps | `IndirectJump` | likewise |
//! | `ret`, `retf`, `iret`, `sysret`, `sysexit`, `uiret`, `eret*`, `rsm` | `Return` | |
//! | `ud0`, `ud1`, `ud2`, `hlt`, `int 0x29` | `Stop` | `int 0x29` is how Windows-style code fails fast |
//! | `int3` | `Trap` | it comes back where a debugger or a signal handler lets the program go on |
//! | `syscall`, `sysenter`, `int n`, `int1`, `vm*` | `Next` | they come back |
//! | `xbegin rel32` | `Next` | `field` is the address of the abort handler, which is thereby a second successor: it is marked as forming an address, so that the handler counts as an entry whose address is taken |
//!
//! # What is refused
//!
//! [`decode`] also says `None` to valid instructions that depend on their position in a way that cannot be kept:
//!
//! * near branches and calls with an operand-size prefix that no `REX.W` overrides: Intel ignores the prefix, AMD
//!   truncates `rip` to 16 bits and reads a 16-bit displacement, so not even their length is known;
//! * `xbegin rel16`;
//! * memory relative to `eip` whose address has wrapped round at 4 GiB.

use std::sync::LazyLock;

use iced_x86::{Code as Op, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic};

use super::common;
use crate::{Cond, FixupKind, Flow, Insn, PcField, Traits};

const OPTIONS: u32 = DecoderOptions::MPX;

/// Longest instruction, in bytes.
pub const MAX_LEN: usize = 15;

/// Decodes one instruction; see [`crate::Decode::decode`].
pub fn decode(bytes: &[u8], addr: u64) -> Option<Insn> {
    let mut insn = NOTHING;
    decode_into(bytes, addr, &mut insn).map(|()| insn)
}

/// The same, to where the instruction stays: a copy of it would be made by wide loads, each of which waits until the
/// narrow stores are through that wrote the instruction just before.
#[inline(never)]
fn decode_into(bytes: &[u8], addr: u64, insn: &mut Insn) -> Option<()> {
    match common::decode_into(bytes, addr, insn) {
        Some(()) => Some(()),
        None => decode_fully_into(bytes, addr, insn),
    }
}

/// The same by the full decoder alone.
#[cfg(test)]
pub(super) fn decode_fully(bytes: &[u8], addr: u64) -> Option<Insn> {
    let mut insn = NOTHING;
    decode_fully_into(bytes, addr, &mut insn).map(|()| insn)
}

#[inline(never)]
fn decode_fully_into(bytes: &[u8], addr: u64, insn: &mut Insn) -> Option<()> {
    let bytes = &bytes[..bytes.len().min(MAX_LEN)];
    let mut decoder = Decoder::with_ip(64, bytes, addr, OPTIONS);
    let instruction = decoder.decode();
    let bytes = bytes.get(..instruction.len())?;
    classify(&SPECIAL, &decoder, &instruction, bytes, addr, insn)
}

/// Decodes one instruction after the other; see [`crate::Decode::sweep`].
pub fn sweep(bytes: &[u8], addr: u64, mut visit: impl FnMut(&Insn) -> bool) -> Option<u64> {
    let mut insn = NOTHING;
    let mut at = 0;
    while at < bytes.len() {
        let here = addr.wrapping_add(at as u64);
        if decode_into(&bytes[at..], here, &mut insn).is_none() {
            return Some(here);
        }
        at += usize::from(insn.len);
        if !visit(&insn) {
            return None;
        }
    }
    None
}

/// Decodes one instruction after the other into a list; see [`crate::Decode::list`].
pub fn list(
    bytes: &[u8],
    addr: u64,
    list: &mut Vec<Insn>,
    mut visit: impl FnMut(&Insn),
) -> Option<u64> {
    let mut at = 0;
    while at < bytes.len() {
        let here = addr.wrapping_add(at as u64);
        list.push(NOTHING);
        let insn = list.last_mut()?; // It is there.
        if decode_into(&bytes[at..], here, insn).is_none() {
            list.pop();
            return Some(here);
        }
        at += usize::from(insn.len);
        visit(insn);
    }
    None
}

/// The decoder's own view of an instruction, for [`super::effects`].
pub(super) fn decode_iced(bytes: &[u8], addr: u64) -> Option<Instruction> {
    let instruction = Decoder::with_ip(64, bytes, addr, OPTIONS).decode();
    (!instruction.is_invalid()).then_some(instruction)
}

/// What an [`Insn`] is before anything is known of it.
pub(super) const NOTHING: Insn = Insn {
    addr: 0,
    len: 0,
    flow: Flow::Next,
    field: None,
    traits: PLAIN,
};
const PLAIN: Traits = Traits {
    nop: false,
    landing_pad: false,
    prefixed: false,
    forms_address: false,
    exclusive_load: false,
    exclusive_store: false,
    system_call: false,
};

/// Whether an operation, by its number, is anything but plain.
static SPECIAL: LazyLock<Vec<bool>> = LazyLock::new(|| {
    Op::values()
        .map(|op| {
            op.flow_control() != FlowControl::Next
                || matches!(op, Op::INVALID | Op::Endbr64 | Op::Hlt)
                || matches!(op.mnemonic(), Mnemonic::Nop)
        })
        .collect()
});

/// Reduces the instruction that `decoder` has just decoded from `bytes`, which are exactly its bytes, to `insn`.
/// `None` if it is refused.
#[inline(always)]
fn classify(
    special: &[bool],
    decoder: &Decoder<'_>,
    instruction: &Instruction,
    bytes: &[u8],
    addr: u64,
    insn: &mut Insn,
) -> Option<()> {
    insn.addr = addr;
    insn.len = bytes.len() as u8;
    insn.flow = Flow::Next;
    insn.field = None;
    insn.traits = PLAIN;
    // The table has an entry for every operation that there is.
    if special
        .get(instruction.code() as usize)
        .is_none_or(|&special| special)
    {
        classify_special(instruction, bytes, insn)?;
    }
    if instruction.is_ip_rel_memory_operand() {
        insn.field = Some(memory_field(decoder, instruction, bytes, addr)?);
        insn.traits.forms_address = instruction.mnemonic() == Mnemonic::Lea;
    }
    Some(())
}

/// The displacement of an operand relative to `rip`. It is followed by the immediate operands, if any.
fn memory_field(
    decoder: &Decoder<'_>,
    instruction: &Instruction,
    bytes: &[u8],
    addr: u64,
) -> Option<PcField> {
    let at = decoder
        .get_constant_offsets(instruction)
        .displacement_offset();
    let disp = i32::from_le_bytes(*bytes.get(at..)?.first_chunk()?);
    let trail = (bytes.len() - at - 4) as u8; // The line above has seen 4 bytes from `at` on.
    let target = addr
        .wrapping_add(bytes.len() as u64)
        .wrapping_add_signed(i64::from(disp));
    // Relative to `eip` the processor keeps 32 bits of the sum; a field that is written later must not rely on that.
    if target != instruction.ip_rel_memory_address() {
        return None;
    }
    Some(PcField {
        at: at as u8,
        kind: FixupKind::Rel32 { trail },
        target,
    })
}

/// The number at an instruction's end; see [`crate::Decode::last_number`].
pub fn last_number(bytes: &[u8], insn: &Insn) -> Option<u64> {
    let is_distance = |f: PcField| usize::from(f.at) + 4 == bytes.len();
    if insn.field.is_some_and(is_distance) {
        return None;
    }
    let mut decoder = Decoder::with_ip(64, bytes, insn.addr, OPTIONS);
    let instruction = decoder.decode();
    let offsets = decoder.get_constant_offsets(&instruction);
    let (at, size) = match (offsets.has_immediate(), offsets.has_immediate2()) {
        // The second is at the end, and short.
        (_, true) => return None,
        (true, false) => (offsets.immediate_offset(), offsets.immediate_size()),
        _ => (offsets.displacement_offset(), offsets.displacement_size()),
    };
    let number = bytes
        .get(at..)
        .filter(|number| at > 0 && number.len() == size)?;
    match size {
        4 => Some(u64::from(u32::from_le_bytes(number.try_into().ok()?))),
        8 => Some(u64::from_le_bytes(number.try_into().ok()?)),
        _ => None,
    }
}

/// Everything that is not plain. `None` for what is refused.
fn classify_special(instruction: &Instruction, bytes: &[u8], insn: &mut Insn) -> Option<()> {
    match instruction.code() {
        Op::INVALID => return None,
        Op::Nopw | Op::Nopd | Op::Nopq | Op::Nop_rm16 | Op::Nop_rm32 | Op::Nop_rm64 => {
            insn.traits.nop = true
        }
        Op::Endbr64 => insn.traits.landing_pad = true,
        Op::Hlt => insn.flow = Flow::Stop,
        op if op.is_jcc_short() => {
            let target = direct(bytes, insn, 2, FixupKind::Rel8 { trail: 0 })?;
            insn.flow = Flow::CondJump {
                cond: Cond(u32::from(bytes[bytes.len() - 2] & 15)),
                target,
            };
        }
        op if op.is_jcc_near() => {
            let target = direct(bytes, insn, 6, FixupKind::Rel32 { trail: 0 })?;
            insn.flow = Flow::CondJump {
                cond: Cond(u32::from(bytes[bytes.len() - 5] & 15)),
                target,
            };
        }
        Op::Jmp_rel8_64 => {
            insn.flow = Flow::Jump {
                target: direct(bytes, insn, 2, FixupKind::Rel8 { trail: 0 })?,
            };
        }
        Op::Jmp_rel32_64 => {
            insn.flow = Flow::Jump {
                target: direct(bytes, insn, 5, FixupKind::Rel32 { trail: 0 })?,
            };
        }
        Op::Call_rel32_64 => {
            insn.flow = Flow::Call {
                target: direct(bytes, insn, 5, FixupKind::Rel32 { trail: 0 })?,
            };
        }
        op if op.is_loop() || op.is_loopcc() || op.is_jcx_short() => {
            let target = direct(bytes, insn, 2, FixupKind::Rel8 { trail: 0 })?;
            insn.flow = Flow::ShortCond { target };
            // Its prefixes (the address size chooses the counter) are part of it, and re-encoding keeps them.
            insn.traits.prefixed = false;
        }
        Op::Call_rm64 => {
            insn.flow = Flow::IndirectCall;
            insn.traits.prefixed = indirect_is_prefixed(bytes);
        }
        Op::Jmp_rm64 => {
            insn.flow = Flow::IndirectJump;
            insn.traits.prefixed = indirect_is_prefixed(bytes);
        }
        Op::Call_m1616 | Op::Call_m1632 | Op::Call_m1664 => insn.flow = Flow::IndirectCall,
        Op::Jmp_m1616 | Op::Jmp_m1632 | Op::Jmp_m1664 => insn.flow = Flow::IndirectJump,
        Op::Int3 => insn.flow = Flow::Trap,
        Op::Ud2 => insn.flow = Flow::Stop,
        Op::Ud0_r16_rm16 | Op::Ud0_r32_rm32 | Op::Ud0_r64_rm64 | Op::Ud0 => insn.flow = Flow::Stop,
        Op::Ud1_r16_rm16 | Op::Ud1_r32_rm32 | Op::Ud1_r64_rm64 => insn.flow = Flow::Stop,
        Op::Int_imm8 if instruction.immediate8() == 0x29 => insn.flow = Flow::Stop,
        Op::Xbegin_rel32 => {
            direct(bytes, insn, bytes.len(), FixupKind::Rel32 { trail: 0 })?;
            insn.traits.forms_address = true;
        }
        Op::Syscall => insn.traits.system_call = true,
        op => match op.flow_control() {
            FlowControl::Return => insn.flow = Flow::Return,
            // System calls, virtual machine entries, software interrupts, `xabort` and `xend`.
            FlowControl::Call | FlowControl::Interrupt => {}
            FlowControl::XbeginXabortXend if op != Op::Xbegin_rel16 => {}
            // Near branches with a 16-bit operand, and whatever a later decoder adds.
            _ => return None,
        },
    }
    Some(())
}

/// Fills in the field of a direct branch, which is at its end, and returns the target.
/// `plain` is its length without prefixes.
fn direct(bytes: &[u8], insn: &mut Insn, plain: usize, kind: FixupKind) -> Option<u64> {
    let prefixes = &bytes[..bytes.len().checked_sub(plain)?];
    if !prefixes.is_empty() {
        let wide = prefixes.last().is_some_and(|rex| rex & 0xf8 == 0x48);
        if prefixes.contains(&0x66) && !wide {
            return None;
        }
        insn.traits.prefixed = true;
    }
    let (at, disp) = match kind {
        FixupKind::Rel8 { .. } => (bytes.len() - 1, i64::from(bytes[bytes.len() - 1] as i8)),
        _ => (
            bytes.len() - 4,
            i64::from(i32::from_le_bytes(*bytes.last_chunk()?)),
        ),
    };
    let target = insn
        .addr
        .wrapping_add(bytes.len() as u64)
        .wrapping_add_signed(disp);
    insn.field = Some(PcField {
        at: at as u8,
        kind,
        target,
    });
    Some(target)
}

/// Whether an indirect near branch has more before its opcode than a REX prefix that its operand needs.
fn indirect_is_prefixed(bytes: &[u8]) -> bool {
    match *bytes {
        [0xff, ..] => false,
        // W and R mean nothing here; X and B choose a register, but not relative to `rip`.
        [0x41..=0x43, 0xff, modrm, ..] => modrm & 0xc7 == 0x05,
        _ => true,
    }
}
