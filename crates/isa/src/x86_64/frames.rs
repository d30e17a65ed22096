//! What instructions of routines do to the stack: [`crate::frames`].

use iced_x86::{Code as Op, Instruction, InstructionInfoFactory, OpAccess, OpKind, Register};
use smallvec::smallvec;

use super::decode;
use crate::frames::{StackOp, StackOps};
use crate::{Insn, RegSet};

const RSP: u8 = 4;

/// `.eh_frame`: CIE, version 1, `zR`; code by 1, data by -8, return address 16; addresses in four bytes relative to
/// themselves. `def_cfa rsp, 8`, `offset rip, -8`.
pub(super) const CIE: [u8; 24] = [
    20, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b, 0x0c, 7, 8, 0x90, 1, 0, 0,
];

/// See [`crate::Counters::stack_ops`].
pub(super) fn stack_ops(bytes: &[u8], insn: &Insn) -> Option<StackOps> {
    let instruction = decode::decode_iced(bytes, insn.addr)?;
    let by = |add: i64| StackOp::Move {
        to: RSP,
        from: RSP,
        add,
    };
    let (register, base, disp) = (number(instruction.op0_register()).unwrap_or(RSP), RSP, 0);
    Some(match instruction.code() {
        Op::Push_r64 => smallvec![
            by(-8),
            StackOp::Store {
                register,
                base,
                disp
            }
        ],
        Op::Pop_r64 => smallvec![
            StackOp::Load {
                register,
                base,
                disp
            },
            by(8)
        ],
        Op::Pushfq => smallvec![by(-8)],
        Op::Popfq => smallvec![by(8)],
        _ => match moved(&instruction) {
            Some((to, from, add)) => smallvec![StackOp::Move { to, from, add }],
            None => smallvec![StackOp::Spoil(written(&instruction))],
        },
    })
}

/// A register of eight bytes that another one and a distance is put into.
fn moved(i: &Instruction) -> Option<(u8, u8, i64)> {
    let to = number(i.op0_register()).filter(|_| i.op0_kind() == OpKind::Register)?;
    match i.code() {
        Op::Mov_r64_rm64 | Op::Mov_rm64_r64 if i.op1_kind() == OpKind::Register => {
            Some((to, number(i.op1_register())?, 0))
        }
        Op::Lea_r64_m if i.memory_index() == Register::None => {
            let from = number(i.memory_base())?;
            Some((to, from, i.memory_displacement64() as i64))
        }
        Op::Add_rm64_imm8 | Op::Add_rm64_imm32 | Op::Add_RAX_imm32 => {
            Some((to, to, i.immediate(1) as i64))
        }
        Op::Sub_rm64_imm8 | Op::Sub_rm64_imm32 | Op::Sub_RAX_imm32 => {
            Some((to, to, (i.immediate(1) as i64).wrapping_neg()))
        }
        _ => None,
    }
}

/// General registers that an instruction may write.
fn written(instruction: &Instruction) -> RegSet {
    let mut factory = InstructionInfoFactory::new();
    let used = factory.info(instruction).used_registers();
    let writes = used.iter().filter(|used| {
        !matches!(
            used.access(),
            OpAccess::None | OpAccess::NoMemAccess | OpAccess::Read | OpAccess::CondRead
        )
    });
    let numbers = writes.filter_map(|used| number(used.register().full_register()));
    // A call moves the stack pointer, and a return moves it back.
    let is_call = instruction.is_call_near() || instruction.is_call_near_indirect();
    let all = numbers.fold(0, |set, register| set | 1 << register);
    RegSet(if is_call { all & !(1 << RSP) } else { all })
}

/// The number of a general register of eight bytes.
fn number(register: Register) -> Option<u8> {
    register.is_gpr64().then(|| register.number() as u8)
}
