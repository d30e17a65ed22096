//! What an instruction reads and what it overwrites, for liveness: which registers and flags a counter may destroy.
//!
//! Every error here is a program that computes something else, so all doubt goes to "read" and "not killed":
//!
//! * A write of 32 or 64 bits kills the register (32 bits are zero-extended); one of 8 or 16 bits leaves a part of it.
//! * A conditional write kills nothing: `cmov`, `cmpxchg`, string instructions with a repeat prefix and a count of 0.
//! * A flag that the manual calls *undefined* after an instruction is not killed: it may keep its value. This costs
//!   nothing, since no program reads such a flag on purpose, and liveness comes from readers.
//! * Shifts and rotations by `cl` kill no flag, as a count of 0 leaves all of them; neither do compares with a repeat
//!   prefix.
//! * `rdssp` does nothing where shadow stacks are off, and code relies on that. `tzcnt` and `lzcnt` are `bsf`
//!   and `bsr` to an old processor, which leave the register alone when there is no bit. None of them kills
//!   anything.
//! * `xor r,r` and `sub r,r` read nothing.
//! * What leaves the function (call, return, indirect jump, system call) reads every register. Calls and
//!   returns take no flag but DF with them: no calling convention has one carry an argument or result.
//!   Hand-written assembly that does so anyway shows it where it reads a flag first thing after a call or at
//!   an entry.
//! * Traps read everything, as a signal handler may look, and so do transactions, which restore what was there at
//!   `xbegin`.

use std::cell::RefCell;

use iced_x86::{
    Code as Op, FlowControl, Instruction, InstructionInfoFactory, InstructionInfoOptions, Mnemonic,
    OpAccess, OpKind, Register, RflagsBits,
};

use super::{AF, CF, DF, OF, PF, SF, X86_64, ZF, common, decode};
use crate::{Decode, Effects, Flow, Insn, Memory, RegSet};

thread_local! {
    /// Keeps its vectors from one instruction to the next.
    static FACTORY: RefCell<InstructionInfoFactory> = RefCell::new(InstructionInfoFactory::new());
}

/// All sixteen general registers.
const GENERAL: RegSet = RegSet(0xffff);

/// What calls do, as far as anybody may rely on it.
const CALL: Effects = Effects {
    reads: RegSet(GENERAL.0 | DF.0),
    kills: X86_64::FLAGS,
};

/// What an instruction reads and overwrites; `bytes` begin with it. See [`crate::Decode::effects`].
/// Bytes that do not decode read everything.
pub fn effects(bytes: &[u8], insn: &Insn) -> Effects {
    let quick = match insn.flow {
        Flow::Next => common::effects(bytes),
        Flow::Jump { .. } => Some(Effects::default()),
        Flow::CondJump { cond, .. } => Some(Effects {
            reads: common::condition(cond.0 as u8),
            kills: RegSet::EMPTY,
        }),
        Flow::Call { .. } => Some(CALL),
        Flow::IndirectCall if is_near_call(bytes) => Some(CALL),
        Flow::IndirectJump | Flow::Return => Some(Effects {
            reads: X86_64::LIVE_AT_EXIT,
            kills: RegSet::EMPTY,
        }),
        _ => None,
    };
    quick.unwrap_or_else(|| effects_fully(bytes, insn))
}

/// Whether bytes are an indirect call without prefixes other than REX, within the segment.
fn is_near_call(bytes: &[u8]) -> bool {
    match *bytes {
        [0xff, modrm, ..] | [0x40..=0x4f, 0xff, modrm, ..] => modrm >> 3 & 7 == 2,
        _ => false,
    }
}

/// The same by the full decoder alone.
pub(super) fn effects_fully(bytes: &[u8], insn: &Insn) -> Effects {
    let everything = Effects {
        reads: RegSet::ALL,
        kills: RegSet::EMPTY,
    };
    let Some(instruction) = decode::decode_iced(bytes, insn.addr) else {
        return everything;
    };
    match insn.flow {
        Flow::Next => {}
        Flow::Jump { .. } => return Effects::default(),
        Flow::CondJump { .. } => {
            return Effects {
                reads: flags(instruction.rflags_read()),
                kills: RegSet::EMPTY,
            };
        }
        Flow::ShortCond { .. } => {
            let rcx = RegSet(1 << 1);
            return Effects {
                reads: rcx.or(flags(instruction.rflags_read())),
                kills: RegSet::EMPTY,
            };
        }
        // A far call may go through a gate to anything.
        Flow::IndirectCall if instruction.code() != Op::Call_rm64 => return everything,
        Flow::Call { .. } | Flow::IndirectCall => {
            return CALL;
        }
        Flow::IndirectJump | Flow::Return => {
            return Effects {
                reads: X86_64::LIVE_AT_EXIT,
                kills: RegSet::EMPTY,
            };
        }
        Flow::Stop | Flow::Trap => return everything,
    }
    match (instruction.code(), instruction.flow_control()) {
        (_, FlowControl::Next) => plain(&instruction),
        // The processor itself puts the return address and the flags there.
        (Op::Syscall, _) => Effects {
            reads: GENERAL.or(DF),
            kills: RegSet(1 << 1 | 1 << 11),
        },
        _ => everything,
    }
}

/// See [`crate::Decode::operand_registers`].
pub fn operand_registers(bytes: &[u8], insn: &Insn) -> RegSet {
    match (insn.flow, decode::decode_iced(bytes, insn.addr)) {
        (Flow::IndirectCall | Flow::IndirectJump, Some(instruction)) => plain(&instruction).reads,
        _ => RegSet::EMPTY,
    }
}

/// See [`crate::Decode::memory`].
pub fn memory(bytes: &[u8], insn: &Insn) -> Memory {
    let Some(instruction) = decode::decode_iced(bytes, insn.addr) else {
        return Memory::default();
    };
    if matches!(insn.flow, Flow::Call { .. } | Flow::Return) || insn.traits.nop {
        return Memory::default();
    }
    if matches!(insn.flow, Flow::IndirectCall | Flow::IndirectJump) {
        return Memory {
            loads: instruction.op0_kind() == OpKind::Memory,
            stores: false,
        };
    }
    FACTORY.with_borrow_mut(|factory| {
        let info = factory.info_options(&instruction, InstructionInfoOptions::NO_REGISTER_USAGE);
        let mut memory = Memory::default();
        for used in info.used_memory() {
            let (loads, stores) = match used.access() {
                OpAccess::None | OpAccess::NoMemAccess => (false, false),
                OpAccess::Read | OpAccess::CondRead => (true, false),
                OpAccess::Write | OpAccess::CondWrite => (false, true),
                OpAccess::ReadWrite | OpAccess::ReadCondWrite => (true, true),
            };
            memory.loads |= loads;
            memory.stores |= stores;
        }
        memory
    })
}

fn plain(instruction: &Instruction) -> Effects {
    let mut effects = Effects {
        reads: flags(instruction.rflags_read()),
        kills: RegSet::EMPTY,
    };
    match instruction.mnemonic() {
        Mnemonic::Pushf | Mnemonic::Pushfd | Mnemonic::Pushfq => {
            effects.reads = X86_64::FLAGS.or(DF)
        }
        // A rotation by all 9 or 17 bits leaves CF and the operand as they were, yet processors then compute
        // OF from CF.
        Mnemonic::Rcl | Mnemonic::Rcr => effects.reads = CF,
        _ if flags_may_stay(instruction) || by_processor(instruction) => {}
        _ => {
            let certain = instruction.rflags_written()
                | instruction.rflags_cleared()
                | instruction.rflags_set();
            effects.kills = flags(certain & !instruction.rflags_undefined());
        }
    }
    let registers_may_stay = by_processor(instruction);
    FACTORY.with_borrow_mut(|factory| {
        let info = factory.info_options(instruction, InstructionInfoOptions::NO_MEMORY_USAGE);
        for used in info.used_registers() {
            let register = used.register();
            let Some(member) = member(register) else {
                continue;
            };
            match used.access() {
                OpAccess::Read | OpAccess::CondRead | OpAccess::ReadCondWrite => {
                    effects.reads = effects.reads.or(member)
                }
                OpAccess::Write if register.size() >= 4 && !registers_may_stay => {
                    effects.kills = effects.kills.or(member)
                }
                OpAccess::ReadWrite => {
                    effects.reads = effects.reads.or(member);
                    if register.size() >= 4 {
                        effects.kills = effects.kills.or(member);
                    }
                }
                OpAccess::None | OpAccess::Write | OpAccess::CondWrite | OpAccess::NoMemAccess => {}
            }
        }
    });
    effects
}

/// Whether the flags may come out as they went in, depending on a register.
fn flags_may_stay(instruction: &Instruction) -> bool {
    match instruction.mnemonic() {
        Mnemonic::Rol
        | Mnemonic::Ror
        | Mnemonic::Shl
        | Mnemonic::Shr
        | Mnemonic::Sal
        | Mnemonic::Sar => by_cl(instruction),
        Mnemonic::Shld | Mnemonic::Shrd => {
            by_cl(instruction) || instruction.op0_register().size() == 2
        }
        Mnemonic::Cmpsb | Mnemonic::Cmpsw | Mnemonic::Cmpsd | Mnemonic::Cmpsq => {
            repeated(instruction)
        }
        Mnemonic::Scasb | Mnemonic::Scasw | Mnemonic::Scasd | Mnemonic::Scasq => {
            repeated(instruction)
        }
        _ => false,
    }
}

/// Whether it does something else, or nothing, on a processor or system that lacks it.
fn by_processor(instruction: &Instruction) -> bool {
    matches!(
        instruction.mnemonic(),
        Mnemonic::Rdsspd | Mnemonic::Rdsspq | Mnemonic::Tzcnt | Mnemonic::Lzcnt
    )
}

fn by_cl(instruction: &Instruction) -> bool {
    (0..instruction.op_count()).any(|index| {
        instruction.op_kind(index) == OpKind::Register
            && instruction.op_register(index) == Register::CL
    })
}

fn repeated(instruction: &Instruction) -> bool {
    instruction.has_rep_prefix() || instruction.has_repne_prefix()
}

/// A general register, or a part of one, as a member of a set.
fn member(register: Register) -> Option<RegSet> {
    // `ah` to `bh` have numbers of their own, so the whole register is asked.
    register
        .is_gpr()
        .then(|| RegSet(1 << register.full_register().number()))
}

/// The decoder's flags as members of a set; those that are not modelled are left out.
fn flags(bits: u32) -> RegSet {
    const MEMBERS: [(u32, RegSet); 7] = [
        (RflagsBits::CF, CF),
        (RflagsBits::PF, PF),
        (RflagsBits::AF, AF),
        (RflagsBits::ZF, ZF),
        (RflagsBits::SF, SF),
        (RflagsBits::OF, OF),
        (RflagsBits::DF, DF),
    ];
    MEMBERS
        .iter()
        .filter(|(bit, _)| bits & bit != 0)
        .fold(RegSet::EMPTY, |set, (_, member)| set.or(*member))
}
