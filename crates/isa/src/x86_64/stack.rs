//! Instructions that have nothing to do with the stack: what may be put in the place of a call.

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

use super::values::is_immediate;
use crate::{Flow, Insn};

/// Operations that do nothing but what their operands say; others use the stack by themselves, or are rare.
fn is_plain(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        mnemonic,
        Mov | Movzx
            | Movsx
            | Movsxd
            | Lea
            | Add
            | Adc
            | Sub
            | Sbb
            | And
            | Or
            | Xor
            | Not
            | Neg
            | Inc
            | Dec
            | Cmp
            | Test
            | Imul
            | Shl
            | Shr
            | Sar
            | Seto
            | Setno
            | Setb
            | Setae
            | Sete
            | Setne
            | Setbe
            | Seta
            | Sets
            | Setns
            | Setp
            | Setnp
            | Setl
            | Setge
            | Setle
            | Setg
            | Cmovo
            | Cmovno
            | Cmovb
            | Cmovae
            | Cmove
            | Cmovne
            | Cmovbe
            | Cmova
            | Cmovs
            | Cmovns
            | Cmovp
            | Cmovnp
            | Cmovl
            | Cmovge
            | Cmovle
            | Cmovg
            | Movss
            | Movsd
            | Movaps
            | Movapd
            | Movups
            | Movupd
            | Movdqa
            | Movdqu
            | Movd
            | Movq
            | Xorps
            | Xorpd
            | Pxor
            | Addss
            | Addsd
            | Subss
            | Subsd
            | Mulss
            | Mulsd
    )
}

fn names_stack(insn: &Instruction) -> bool {
    let is_stack = |reg: Register| reg.full_register() == Register::RSP;
    (0..insn.op_count()).any(|i| match insn.op_kind(i) {
        OpKind::Register => {
            let register = insn.op_register(i);
            is_stack(register) || register.is_segment_register()
        }
        OpKind::Memory => is_stack(insn.memory_base()) || is_stack(insn.memory_index()),
        kind => !is_immediate(kind),
    })
}

/// See [`crate::Encode::leaves_stack`].
pub fn leaves_stack(bytes: &[u8], insn: &Insn) -> bool {
    if insn.flow == Flow::Return {
        return matches!(bytes, [0xc3] | [0xf3, 0xc3]);
    }
    let decoded = Decoder::with_ip(64, bytes, insn.addr, DecoderOptions::NONE).decode();
    is_plain(decoded.mnemonic()) && !names_stack(&decoded)
}
