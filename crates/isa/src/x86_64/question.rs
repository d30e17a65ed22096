//! What conditional branches ask: the condition's code, and what the last instruction before that set the flags did.

use iced_x86::{Instruction, Mnemonic, OpKind};

use super::{X86_64, decode, effects, values};
use crate::{Compared, Cond, Decode, Question, Relation};

/// See [`crate::Decode::question`].
pub fn question(bytes: &[u8], addr: u64, cond: Cond) -> Question {
    let relation = match cond.0 & 15 {
        2 => Relation::Below,
        3 => Relation::AboveOrEqual,
        4 => Relation::Equal,
        5 => Relation::NotEqual,
        6 => Relation::BelowOrEqual,
        7 => Relation::Above,
        8 | 12 => Relation::Less,
        9 | 13 => Relation::GreaterOrEqual,
        14 => Relation::LessOrEqual,
        15 => Relation::Greater,
        _ => Relation::Other,
    };
    let mut last = None;
    X86_64::sweep(bytes, addr, |insn| {
        let own = bytes.get(insn.addr.wrapping_sub(addr) as usize..);
        let own = own.unwrap_or_default();
        if effects::effects(own, insn).kills.meets(X86_64::FLAGS) {
            last = Some(insn.addr);
        }
        true
    });
    let setter =
        last.and_then(|at| decode::decode_iced(bytes.get(at.wrapping_sub(addr) as usize..)?, at));
    let Some(setter) = setter else {
        return Question {
            relation,
            ..Question::default()
        };
    };
    let memory = (0..setter.op_count().min(2)).any(|k| setter.op_kind(k) == OpKind::Memory);
    let size = match setter.op0_kind() {
        OpKind::Register => setter.op0_register().size(),
        _ => setter.memory_size().size(),
    };
    Question {
        relation,
        with: compared(&setter),
        wide: size == 8,
        memory,
    }
}

fn compared(setter: &Instruction) -> Compared {
    let number = (1..setter.op_count())
        .find(|k| values::is_immediate(setter.op_kind(*k)))
        .map(|k| setter.immediate(k));
    match setter.mnemonic() {
        Mnemonic::Cmp => match number {
            Some(0) => Compared::Zero,
            Some(u64::MAX) => Compared::MinusOne,
            Some(n) if n == 0xffff_ffff && setter.op0_register().size() == 4 => Compared::MinusOne,
            Some(_) => Compared::Number,
            None => Compared::Variable,
        },
        Mnemonic::Test if number.is_none() && setter.op0_register() == setter.op1_register() => {
            Compared::Zero
        }
        Mnemonic::Test | Mnemonic::Bt => Compared::Bits,
        Mnemonic::And | Mnemonic::Or | Mnemonic::Add | Mnemonic::Sub | Mnemonic::Dec => {
            Compared::Zero
        }
        Mnemonic::Ucomisd | Mnemonic::Ucomiss | Mnemonic::Comisd | Mnemonic::Comiss => {
            Compared::Float
        }
        _ => Compared::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(bytes: &[u8], cond: u32) -> (Relation, Compared, bool, bool) {
        let q = question(bytes, 0x1000, Cond(cond));
        (q.relation, q.with, q.wide, q.memory)
    }

    #[test]
    fn branches_ask_of_the_last_comparison() {
        // test rax, rax; je
        let test = [0x48, 0x85, 0xc0, 0x74, 0];
        let wanted = (Relation::Equal, Compared::Zero, true, false);
        assert_eq!(asked(&test, 4), wanted);
        // cmp eax, -1; mov edx, ecx; jne
        let cmp = [0x83, 0xf8, 0xff, 0x89, 0xca, 0x75, 0];
        let wanted = (Relation::NotEqual, Compared::MinusOne, false, false);
        assert_eq!(asked(&cmp, 5), wanted);
        // cmp dword [rdi], 7; jg
        let memory = [0x83, 0x3f, 7, 0x7f, 0];
        let wanted = (Relation::Greater, Compared::Number, false, true);
        assert_eq!(asked(&memory, 15), wanted);
        // test byte [rdi], 8; jne
        let bits = [0xf6, 0x07, 8, 0x75, 0];
        let wanted = (Relation::NotEqual, Compared::Bits, false, true);
        assert_eq!(asked(&bits, 5), wanted);
    }

    #[test]
    fn without_a_comparison_in_sight_nothing_is_known_but_the_relation() {
        let wanted = (Relation::Below, Compared::Unknown, false, false);
        assert_eq!(asked(&[0x72, 0], 2), wanted);
    }
}
