//! Instructions that take a number from memory, and those that have it in them.

use super::decode_raw;
use crate::arch::{Arch, FieldKind, Flow, Loaded, Takes};
use yaxpeax_x86::long_mode::{Instruction, Opcode, Operand, register_class};

use super::X86_64;

/// Moves have one number, whatever extends what they load: what is extended is given by [`Loaded`].
fn operation(opcode: Opcode) -> Option<u16> {
    Some(match opcode {
        Opcode::MOV | Opcode::MOVZX | Opcode::MOVSX | Opcode::MOVSXD => 0,
        Opcode::ADD => 1,
        Opcode::OR => 2,
        Opcode::ADC => 3,
        Opcode::SBB => 4,
        Opcode::AND => 5,
        Opcode::SUB => 6,
        Opcode::XOR => 7,
        Opcode::CMP => 8,
        _ => return None,
    })
}

/// The operation and its first operand, a register of 32 or 64 bits. No prefix but REX: others change segments,
/// sizes, or how memory is accessed.
fn takes(bytes: &[u8]) -> Option<(Instruction, usize, Takes)> {
    if matches!(
        bytes.first()?,
        0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3
    ) {
        return None;
    }
    let (insn, len) = decode_raw(bytes)?;
    let Operand::Register { reg } = insn.operand(0) else {
        return None;
    };
    let wide = match reg.class() {
        class if class == register_class::Q => true,
        class if class == register_class::D => false,
        _ => return None,
    };
    let takes = Takes {
        operation: operation(insn.opcode())?,
        register: reg.num(),
        wide,
    };
    (insn.operand_count() == 2).then_some((insn, len, takes))
}

/// See [`Arch::takes_loaded`].
pub(super) fn loaded(bytes: &[u8], addr: u64) -> Option<(Takes, Loaded)> {
    let (insn, len, takes) = takes(bytes)?;
    let decoded = X86_64::decode(bytes, addr)?;
    let field = decoded.field.filter(|f| f.kind == FieldKind::Accesses)?;
    // Of the two operands the second is memory, or the register would not be the first.
    if len != bytes.len()
        || decoded.flow != Flow::Next
        || matches!(insn.operand(1), Operand::Register { .. })
    {
        return None;
    }
    let from = insn.mem_size()?.bytes_size()?;
    let signed = match insn.opcode() {
        Opcode::MOVSX | Opcode::MOVSXD => true,
        Opcode::MOVZX => false,
        // All others take as much as the register holds.
        _ if from != if takes.wide { 8 } else { 4 } => return None,
        _ => false,
    };
    let loaded = Loaded {
        at: field.target,
        base: None,
        len: from,
        signed,
    };
    (from <= 8).then_some((takes, loaded))
}

/// See [`Arch::takes_number`].
pub(super) fn number(bytes: &[u8], wanted: &Takes, number: u64) -> Option<u8> {
    let (insn, len, takes) = takes(bytes)?;
    let moves = insn.opcode() == Opcode::MOV;
    let value = match insn.operand(1) {
        Operand::ImmediateI8 { imm } => imm as u64,
        Operand::ImmediateI32 { imm } => imm as u64,
        Operand::ImmediateI64 { imm } => imm as u64,
        Operand::ImmediateU32 { imm } => u64::from(imm),
        Operand::ImmediateU64 { imm } => imm,
        _ => return None,
    };
    // What is put into 32 bits of a register clears the others.
    let as_wide = moves && !takes.wide && wanted.wide && number >> 32 == 0;
    let alike = takes == *wanted
        || as_wide && (takes.operation, takes.register) == (wanted.operation, wanted.register);
    (alike && takes.cut(value) == number).then_some(u8::try_from(len).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> (Takes, Loaded) {
        loaded(bytes, 0x1000).unwrap_or_else(|| panic!("{bytes:02x?}"))
    }

    #[test]
    fn loads_and_numbers_of_the_same_effect_agree() {
        // mov rax, [rip]; mov eax, 5; mov rax, 5; mov eax, 6; mov ecx, 5
        let (takes, from) = read(&[0x48, 0x8b, 0x05, 0, 0, 0, 0]);
        assert_eq!((from.at, from.len, from.signed), (0x1007, 8, false));
        let takes_five = |bytes: &[u8]| number(bytes, &takes, 5);
        assert_eq!(takes_five(&[0xb8, 5, 0, 0, 0]), Some(5));
        assert_eq!(takes_five(&[0x48, 0xc7, 0xc0, 5, 0, 0, 0]), Some(7));
        assert_eq!(takes_five(&[0xb8, 6, 0, 0, 0]), None);
        assert_eq!(takes_five(&[0xb9, 5, 0, 0, 0]), None);
        // A number with its sign is another one in 32 bits.
        let minus = u64::MAX;
        assert_eq!(number(&[0xb8, 255, 255, 255, 255], &takes, minus), None);
        assert_eq!(
            number(&[0x48, 0xc7, 0xc0, 255, 255, 255, 255], &takes, minus),
            Some(7)
        );
    }

    #[test]
    fn operations_are_told_apart() {
        // cmp ecx, [rip]; cmp ecx, 7; sub ecx, 7; cmp rcx, 7
        let (takes, _) = read(&[0x3b, 0x0d, 0, 0, 0, 0]);
        assert_eq!(number(&[0x83, 0xf9, 7], &takes, 7), Some(3));
        assert_eq!(number(&[0x83, 0xe9, 7], &takes, 7), None);
        assert_eq!(number(&[0x48, 0x83, 0xf9, 7], &takes, 7), None);
        // cmp [rip], ecx: memory comes first. mov ax, [rip]; mov eax, fs:[rip].
        for bytes in [
            &[0x39, 0x0d, 0, 0, 0, 0][..],
            &[0x66, 0x8b, 0x05, 0, 0, 0, 0],
            &[0x64, 0x8b, 0x05, 0, 0, 0, 0],
        ] {
            assert!(loaded(bytes, 0x1000).is_none(), "{bytes:02x?}");
        }
    }

    #[test]
    fn what_is_loaded_is_extended_as_the_instruction_says() {
        let of = |bytes: &[u8]| {
            let (takes, from) = read(bytes);
            (takes.wide, from.len, from.signed)
        };
        assert_eq!(of(&[0x0f, 0xb6, 0x05, 0, 0, 0, 0]), (false, 1, false));
        assert_eq!(of(&[0x0f, 0xbf, 0x05, 0, 0, 0, 0]), (false, 2, true));
        assert_eq!(of(&[0x48, 0x63, 0x05, 0, 0, 0, 0]), (true, 4, true));
    }
}
