//! Instructions that have nothing to do with the stack ([`crate::arch::Arch::leaves_stack`]): a closed list.

use super::decode_raw;
use yaxpeax_x86::long_mode::{Opcode, Operand, RegSpec, register_class};

/// Whether a register is the stack pointer, or a part of it.
fn is_stack(reg: RegSpec) -> bool {
    let classes = [
        register_class::Q,
        register_class::D,
        register_class::W,
        // Not `B`, in which `ah` has the same number.
        register_class::RB,
    ];
    reg.num() == 4 && classes.contains(&reg.class())
}

/// Whether an operand names the stack pointer, or is of a kind that is not known.
fn names_stack(operand: &Operand) -> bool {
    match *operand {
        Operand::ImmediateI8 { .. }
        | Operand::ImmediateU8 { .. }
        | Operand::ImmediateI16 { .. }
        | Operand::ImmediateU16 { .. }
        | Operand::ImmediateI32 { .. }
        | Operand::ImmediateU32 { .. }
        | Operand::ImmediateI64 { .. }
        | Operand::ImmediateU64 { .. }
        | Operand::AbsoluteU32 { .. }
        | Operand::AbsoluteU64 { .. }
        | Operand::Nothing => false,
        Operand::Register { reg } => is_stack(reg),
        Operand::MemDeref { base } | Operand::Disp { base, .. } => is_stack(base),
        Operand::MemIndexScale { index, .. } | Operand::MemIndexScaleDisp { index, .. } => {
            is_stack(index)
        }
        Operand::MemBaseIndexScale { base, index, .. }
        | Operand::MemBaseIndexScaleDisp { base, index, .. } => is_stack(base) || is_stack(index),
        _ => true,
    }
}

/// Operations that do nothing but what their operands say.
fn is_plain(opcode: Opcode) -> bool {
    use Opcode::*;
    matches!(
        opcode,
        MOV | MOVZX
            | MOVSX
            | MOVSXD
            | LEA
            | ADD
            | ADC
            | SUB
            | SBB
            | AND
            | OR
            | XOR
            | NOT
            | NEG
            | INC
            | DEC
            | CMP
            | TEST
            | IMUL
            | SHL
            | SHR
            | SAR
            | SETO
            | SETNO
            | SETB
            | SETAE
            | SETZ
            | SETNZ
            | SETBE
            | SETA
            | SETS
            | SETNS
            | SETP
            | SETNP
            | SETL
            | SETGE
            | SETLE
            | SETG
            | CMOVO
            | CMOVNO
            | CMOVB
            | CMOVNB
            | CMOVZ
            | CMOVNZ
            | CMOVNA
            | CMOVA
            | CMOVS
            | CMOVNS
            | CMOVP
            | CMOVNP
            | CMOVL
            | CMOVGE
            | CMOVLE
            | CMOVG
            | MOVSS
            | MOVSD
            | MOVAPS
            | MOVAPD
            | MOVUPS
            | MOVUPD
            | MOVDQA
            | MOVDQU
            | MOVD
            | MOVQ
            | XORPS
            | XORPD
            | PXOR
            | ADDSS
            | ADDSD
            | SUBSS
            | SUBSD
            | MULSS
            | MULSD
    )
}

pub(super) fn leaves_stack(bytes: &[u8]) -> bool {
    let Some((insn, len)) = decode_raw(bytes) else {
        return false;
    };
    if insn.opcode() == Opcode::RETURN {
        // c3; f3 c3: nothing is taken off, and no prefix has a meaning.
        return matches!(bytes.get(..len), Some([0xc3] | [0xf3, 0xc3]));
    }
    is_plain(insn.opcode()) && (0..insn.operand_count()).all(|i| !names_stack(&insn.operand(i)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_names_the_stack_pointer_or_uses_it_is_not_among_them() {
        for bytes in [
            &[0x48, 0x8b, 0x47, 0x08][..],            // mov rax,[rdi+8]
            &[0x8b, 0x05, 1, 0, 0, 0],                // mov eax,[rip+1]
            &[0xf3, 0x0f, 0x10, 0x07],                // movss xmm0,[rdi]
            &[0x48, 0x8d, 0x04, 0x3e],                // lea rax,[rsi+rdi]
            &[0x64, 0x48, 0x8b, 4, 0x25, 0, 0, 0, 0], // mov rax,fs:[0]
            &[0x0f, 0xb6, 0xc4],                      // movzx eax,ah
            &[0xc3],
            &[0xf3, 0xc3],
        ] {
            assert!(leaves_stack(bytes), "{bytes:x?}");
        }
        for bytes in [
            &[0x48, 0x8b, 0x44, 0x24, 0x08][..], // mov rax,[rsp+8]
            &[0x48, 0x89, 0xe0],                 // mov rax,rsp
            &[0x40, 0x88, 0xc4],                 // mov spl,al
            &[0x40, 0x0f, 0xb6, 0xc4],           // movzx eax,spl
            &[0x89, 0xc4],                       // mov esp,eax
            &[0x48, 0x83, 0xc4, 0x08],           // add rsp,8
            &[0x50],                             // push rax
            &[0x58],                             // pop rax
            &[0xc9],                             // leave
            &[0xc2, 8, 0],                       // ret 8
            &[0xf2, 0xc3],                       // bnd ret
            &[0x0f, 0x05],                       // syscall
            &[0xcc],
        ] {
            assert!(!leaves_stack(bytes), "{bytes:x?}");
        }
    }
}
