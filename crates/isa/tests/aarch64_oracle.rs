//! AArch64 decoding against a second decoder (`fARM64`), word by word: over every operation (bits 31 to 10 in full,
//! with registers that change from word to word) and over random words.
//!
//! What this crate says of an instruction may be coarser than what the other decoder says, but only on the safe side:
//! the same flow and address, at least its reads, at most its certain writes, at least its accesses of memory.

use farm64::{
    Condition, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpAccess, Operand,
    Register, instruction_info,
};
use postlink_isa::aarch64::{AArch64, C, N, NZCV, V, Z};
use postlink_isa::{Decode, FixupKind, Flow, RegSet};
use postlink_verify::testing::{Differences, aarch64_words};

const AT: u64 = 0x40_0000;

/// What the other decoder says of a word; `None`: it is no instruction.
fn other(word: u32) -> Option<Instruction> {
    let insn = Decoder::new(&word.to_le_bytes(), AT, DecoderOptions::default()).decode();
    (!insn.is_invalid()).then_some(insn)
}

/// The general register, with the stack pointer as number 31; `None` for zero and for others.
fn general(register: Register) -> Option<u8> {
    let x = register.as_x();
    match x {
        Register::Sp => Some(31),
        Register::Xzr => None,
        _ => x.name().starts_with('x').then(|| x.number()),
    }
}

/// Flags that a condition asks for.
fn asked(condition: Condition) -> RegSet {
    match condition {
        Condition::Eq | Condition::Ne => Z,
        Condition::Cs | Condition::Cc => C,
        Condition::Mi | Condition::Pl => N,
        Condition::Vs | Condition::Vc => V,
        Condition::Hi | Condition::Ls => C.or(Z),
        Condition::Ge | Condition::Lt => N.or(V),
        Condition::Gt | Condition::Le => N.or(V).or(Z),
        _ => RegSet::EMPTY,
    }
}

/// General registers and flags: those that are read, and those that are overwritten without having been read.
fn reads_and_kills(insn: &Instruction) -> (RegSet, RegSet) {
    let info = instruction_info(insn);
    let (mut reads, mut kills) = (RegSet::EMPTY, RegSet::EMPTY);
    for used in info.used_registers() {
        let Some(number) = general(used.register) else {
            continue;
        };
        let set = RegSet(1 << number);
        match used.access {
            OpAccess::None => {}
            OpAccess::Read => reads = reads.or(set),
            OpAccess::Write => kills = kills.or(set),
            _ => reads = reads.or(set),
        }
    }
    if info.flags_read() {
        reads = reads.or(insn.condition().map_or(RegSet::EMPTY, asked));
    }
    if info.flags_written() {
        kills = kills.or(NZCV);
    }
    (reads, kills.minus(reads))
}

/// Adds a difference.
fn note(
    found: &mut Differences,
    what: &str,
    word: u32,
    other: &Instruction,
    ours: impl std::fmt::Debug,
) {
    found.note(what, &format!("{:?}", other.mnemonic()), || {
        let (reads, kills) = reads_and_kills(other);
        format!(
            "{word:08x}: {ours:x?}; the other decoder: {:?}, reads {:x}, kills {:x}",
            other.code(),
            reads.0,
            kills.0
        )
    });
}

/// Instructions that are refused on purpose: signed or authenticated with the program counter, and compare and branch
/// of Armv9.6.
fn is_refused(insn: &Instruction) -> bool {
    let name = format!("{:?}", insn.mnemonic());
    // What a vendor has in a place that the architecture leaves alone.
    name == "Genter"
        || name.contains("sppc")
        || name.starts_with("Pacnb")
        || name == "Pacm"
        || name.starts_with("Cb")
            && !matches!(insn.mnemonic(), Mnemonic::Cbz | Mnemonic::Cbnz)
            && insn.flow_control() == FlowControl::ConditionalBranch
}

/// Classes of which [`Decode::memory`] does not say what they do: hashes of code are made of it, which go by what LLVM
/// says of an instruction, and must not change.
fn describes_otherwise(word: u32) -> bool {
    let is = |mask: u32, value: u32| word & mask == value;
    let by_register = is(0x3b20_0000, 0x3820_0000);
    // Scalable vectors and matrices.
    matches!(word >> 25 & 15, 0b0000 | 0b0010)
        // Ordered ones with an offset, memory copies, memory tags, pairs of atomics.
        || is(0x3b00_0000, 0x1900_0000)
        // Without privilege: exclusive ones, compare and swap, pairs.
        || is(0x3f00_0000, 0x0900_0000)
        || is(0xfa00_0000, 0xe800_0000)
        // Atomics of floating point; loads with authentication; a prefetch of a range.
        || by_register && is(0x0400_0c00, 0x0400_0000)
        || by_register && is(0xc400_0400, 0xc000_0400)
        || is(0xffe0_0c18, 0xf8a0_0818)
}

#[test]
fn flow_and_addresses_are_those_of_the_other_decoder() {
    let (mut compared, mut found) = (0, Differences::default());
    aarch64_words(|word| {
        let Some(other) = other(word) else { return };
        compared += 1;
        let Some(insn) = AArch64::decode(&word.to_le_bytes(), AT) else {
            if !is_refused(&other) {
                note(&mut found, "refused", word, &other, ());
            }
            return;
        };
        let label = (0..other.op_count()).find_map(|n| match other.op(n) {
            Operand::Label(target) => Some(target),
            _ => None,
        });
        let always = matches!(other.condition(), Some(Condition::Al | Condition::Nv));
        let comes_back = matches!(
            other.mnemonic(),
            Mnemonic::Svc
                | Mnemonic::Hvc
                | Mnemonic::Smc
                | Mnemonic::Dcps1
                | Mnemonic::Dcps2
                | Mnemonic::Dcps3
        );
        let same = match (insn.flow, other.flow_control()) {
            (Flow::Next, FlowControl::Next) => other.mnemonic() != Mnemonic::Udf,
            (Flow::Stop, FlowControl::Next) => other.mnemonic() == Mnemonic::Udf,
            (Flow::Next, FlowControl::Exception) => comes_back,
            (Flow::Stop, FlowControl::Exception) => !comes_back,
            (Flow::Jump { target }, FlowControl::UnconditionalBranch)
            | (Flow::Call { target }, FlowControl::Call) => Some(target) == label,
            (Flow::Jump { target }, FlowControl::ConditionalBranch) => {
                always && Some(target) == label
            }
            (Flow::CondJump { target, .. }, FlowControl::ConditionalBranch) => {
                !always && Some(target) == label
            }
            (Flow::IndirectJump, FlowControl::IndirectBranch)
            | (Flow::IndirectCall, FlowControl::IndirectCall)
            | (Flow::Return, FlowControl::Return) => true,
            _ => false,
        };
        if !same {
            note(&mut found, "flow", word, &other, insn.flow);
        }
        if insn.field.map(|f| f.target) != label {
            note(&mut found, "field", word, &other, insn.field);
        }
        let kind = insn.field.map(|f| f.kind);
        let expected = match other.mnemonic() {
            Mnemonic::Adr => Some(FixupKind::Adr),
            Mnemonic::Adrp => Some(FixupKind::Page),
            Mnemonic::Tbz | Mnemonic::Tbnz => Some(FixupKind::Branch14),
            Mnemonic::Bl => Some(FixupKind::Branch26),
            Mnemonic::B if other.flow_control() == FlowControl::UnconditionalBranch => {
                Some(FixupKind::Branch26)
            }
            _ => label.map(|_| FixupKind::Imm19),
        };
        if label.is_some() && kind != expected {
            note(&mut found, "kind of field", word, &other, kind);
        }
        let name = format!("{:?}", other.mnemonic());
        let traits = insn.traits;
        if traits.nop != (other.mnemonic() == Mnemonic::Nop) {
            note(&mut found, "nop", word, &other, traits);
        }
        if traits.landing_pad != (other.mnemonic() == Mnemonic::Bti) {
            note(&mut found, "landing pad", word, &other, traits);
        }
        if traits.system_call != (other.mnemonic() == Mnemonic::Svc) {
            note(&mut found, "system call", word, &other, traits);
        }
        let load = ["Ldxr", "Ldaxr", "Ldxp", "Ldaxp", "Ldtxr", "Ldatxr"];
        let store = ["Stxr", "Stlxr", "Stxp", "Stlxp", "Sttxr", "Stltxr", "Clrex"];
        let is = |list: &[&str]| list.iter().any(|begin| name.starts_with(begin));
        // The other decoder takes neighbours of `clrex` for it that are not allocated.
        let is_clrex = name != "Clrex" || word & 0xffff_f0ff == 0xd503_305f;
        let stores = is(&store) && is_clrex;
        if traits.exclusive_load != is(&load) || traits.exclusive_store != stores {
            note(&mut found, "exclusive", word, &other, traits);
        }
    });
    assert!(compared > 2_000_000, "{compared}");
    found.assert_none();
}

#[test]
fn reads_and_accesses_are_at_least_those_of_the_other_decoder_and_kills_at_most() {
    let (mut compared, mut found) = (0, Differences::default());
    aarch64_words(|word| {
        let Some(other) = other(word) else { return };
        let bytes = word.to_le_bytes();
        let Some(insn) = AArch64::decode(&bytes, AT) else {
            return;
        };
        // What leaves the function is said to read what others may.
        if !matches!(insn.flow, Flow::Next | Flow::CondJump { .. }) {
            return;
        }
        compared += 1;
        let effects = AArch64::effects(&bytes, &insn);
        let (reads, kills) = reads_and_kills(&other);
        // The other decoder takes words for `msr` of a register that are not allocated.
        if word >> 20 == 0xd50 && other.mnemonic() == Mnemonic::Msr {
            return;
        }
        if reads.minus(effects.reads) != RegSet::EMPTY {
            note(&mut found, "not read", word, &other, effects);
        }
        if effects.kills.minus(effects.reads).minus(kills) != RegSet::EMPTY {
            note(&mut found, "killed", word, &other, effects);
        }
        let info = instruction_info(&other);
        let (mut loads, mut stores) = (false, false);
        for used in info.used_memory() {
            loads |= used.access != OpAccess::Write;
            stores |= used.access != OpAccess::Read;
        }
        let memory = AArch64::memory(&bytes, &insn);
        if describes_otherwise(word) {
            return;
        }
        let is_prefetch = format!("{:?}", other.mnemonic()).contains("Prf");
        if loads && !memory.loads && !is_prefetch {
            note(&mut found, "loads", word, &other, memory);
        }
        if stores && !memory.stores {
            note(&mut found, "stores", word, &other, memory);
        }
    });
    assert!(compared > 2_000_000, "{compared}");
    found.assert_none();
}
