//! The tables of this module against a second decoder, which was written from Arm's manual by others.
//!
//! On AArch64 the checker decodes with tables of its own, which are part of what a proof rests on. So each of them is
//! compared with what crate `fARM64` says of the same word: over every operation (bits 31 to 10 in full, with
//! registers that change from word to word) and over random words. A table may know less than the other decoder as
//! long as it errs on the safe side, and only there:
//!
//! | what | must be |
//! |---|---|
//! | flow, target, field that holds an address | the same |
//! | registers and flags that are read, or may be written | at least those |
//! | registers that are overwritten for certain | at most those |
//! | memory that is written | at least that, at the same address |
//! | what an instruction does in inserted code ([`steps`]) | the same |
//!
//! Where the two differ and this crate is right, the mnemonic is in a list here with the reason.

use std::collections::BTreeMap;

use farm64::{
    Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpAccess, Operand, Register,
    instruction_info,
};

use super::*;
use crate::arch::step::{Mem, Next, Op};
use crate::differences::{Differences, aarch64_words};

const AT: u64 = 0x40_0000;

/// What the other decoder says of a word.
struct Other {
    insn: Instruction,
    name: String,
    reads: u32,
    writes: u32,
    /// Overwritten whole, without having been read.
    kills: u32,
    /// Whether the stack pointer is written.
    stack: bool,
    flags_written: bool,
}

impl Other {
    /// `None`: not an instruction.
    fn of(word: u32) -> Option<Other> {
        let insn = Decoder::new(&word.to_le_bytes(), AT, DecoderOptions::default()).decode();
        if insn.is_invalid() {
            return None;
        }
        let info = instruction_info(&insn);
        let mut this = Other {
            name: format!("{:?}", insn.mnemonic()),
            insn,
            reads: 0,
            writes: 0,
            kills: 0,
            stack: false,
            flags_written: info.flags_written(),
        };
        for used in info.used_registers() {
            let (read, written) = match used.access {
                OpAccess::None => (false, false),
                OpAccess::Read => (true, false),
                OpAccess::Write => (false, true),
                _ => (true, true),
            };
            let Some(number) = general(used.register) else {
                this.stack |= used.register == Register::Sp && written;
                continue;
            };
            this.reads |= u32::from(read) << number;
            this.writes |= u32::from(written) << number;
            this.kills |= u32::from(written && !read) << number;
        }
        this.correct(word);
        Some(this)
    }

    /// Mends what the other decoder has wrong.
    fn correct(&mut self, word: u32) {
        let register = |low: u32| 1u32 << (word >> low & 31) & 0x7fff_ffff;
        let (code, mut wrong) = (format!("{:?}", self.insn.code()), 0);
        // Structures of vectors whose base advances by a register: it takes that for one that is loaded.
        if word & 0xbe80_0000 == 0x0c80_0000 {
            wrong = register(16) & !register(5);
        }
        // Stores of pairs without privilege: it takes them for loads.
        if (code.starts_with("Sttp") || code.starts_with("Sttnp")) && word >> 26 & 1 == 0 {
            let back = if word >> 23 & 1 == 1 { register(5) } else { 0 };
            wrong = (register(0) | register(10)) & !back;
            self.reads |= register(0) | register(10);
        }
        // A prefetch of a range: its operation is no register.
        if code.starts_with("Rprfm") {
            wrong = self.writes;
        }
        self.writes &= !wrong;
        self.kills &= !wrong;
    }

    fn flow(&self) -> FlowControl {
        instruction_info(&self.insn).flow_control()
    }

    fn operands(&self) -> impl Iterator<Item = Operand> {
        (0..self.insn.op_count()).map(|n| self.insn.op(n))
    }

    /// The address that the word holds relative to its own.
    fn label(&self) -> Option<u64> {
        self.operands().find_map(|op| match op {
            Operand::Label(target) => Some(target),
            _ => None,
        })
    }

    /// How memory is accessed: whether it may be written, base register and displacement of the access.
    fn memory(&self) -> Option<(bool, u8, i64)> {
        let info = instruction_info(&self.insn);
        let used = info.used_memory().first()?;
        let post = self.operands().any(|op| {
            use farm64::MemIndexMode::{PostImm, PostReg};
            matches!(
                op,
                Operand::MemImm {
                    mode: PostImm | PostReg,
                    ..
                }
            )
        });
        let written = info
            .used_memory()
            .iter()
            .any(|m| m.access != OpAccess::Read);
        Some((
            written,
            used.base.number(),
            if post { 0 } else { used.offset },
        ))
    }
}

/// The number of a general register that is neither the stack pointer nor zero.
fn general(register: Register) -> Option<u8> {
    let x = register.as_x();
    let is_general = x.name().starts_with('x') && x != Register::Xzr;
    is_general.then(|| x.number())
}

/// Adds a difference.
fn note(found: &mut Differences, what: &str, word: u32, other: &Other, ours: impl std::fmt::Debug) {
    found.note(what, &other.name, || {
        let (reads, writes, kills) = (other.reads, other.writes, other.kills);
        format!(
            "{word:08x}: {ours:x?}; the other decoder: {:?}, reads {reads:x}, writes {writes:x}, kills {kills:x}",
            other.insn.code()
        )
    });
}

/// Instructions whose meaning depends on their place in a way of its own: they are refused.
fn is_refused(other: &Other) -> bool {
    let name = &other.name;
    // Signed or authenticated with the program counter, compare and branch of Armv9.6; what two vendors have in places
    // that the architecture leaves alone.
    matches!(name.as_str(), "Genter" | "Gexit" | "Tenter" | "Texit")
        || name.contains("sppc")
        || name.starts_with("Pacnb")
        || name.starts_with("Cb")
            && other.flow() == FlowControl::ConditionalBranch
            && !matches!(other.insn.mnemonic(), Mnemonic::Cbz | Mnemonic::Cbnz)
}

#[test]
fn flow_and_addresses_are_those_of_the_other_decoder() {
    let (mut compared, mut found) = (0, Differences::default());
    aarch64_words(|word| {
        let Some(other) = Other::of(word) else { return };
        compared += 1;
        let ours = AArch64::decode(&word.to_le_bytes(), AT);
        let Some(insn) = ours else {
            if !is_refused(&other) {
                note(&mut found, "refused", word, &other, ());
            }
            return;
        };
        let label = other.label();
        let same = match (insn.flow, other.flow()) {
            (Flow::Next, FlowControl::Next) => true,
            (Flow::Nothing, FlowControl::Next) => other.insn.mnemonic() == Mnemonic::Nop,
            (Flow::Jump(to), FlowControl::UnconditionalBranch)
            | (Flow::Call(to), FlowControl::Call) => Some(to) == label,
            (Flow::Branch { target, .. }, FlowControl::ConditionalBranch) => Some(target) == label,
            (Flow::IndirectJump { computed: true }, FlowControl::IndirectBranch)
            | (Flow::IndirectCall, FlowControl::IndirectCall)
            | (Flow::Stop, FlowControl::Return) => true,
            (Flow::Stop, FlowControl::Next) => other.insn.mnemonic() == Mnemonic::Udf,
            (Flow::Trap, FlowControl::Exception) => matches!(
                other.insn.mnemonic(),
                Mnemonic::Svc | Mnemonic::Hvc | Mnemonic::Smc
            ),
            (Flow::Stop, FlowControl::Exception) => !matches!(
                other.insn.mnemonic(),
                Mnemonic::Svc | Mnemonic::Hvc | Mnemonic::Smc
            ),
            _ => false,
        };
        if !same {
            note(&mut found, "flow", word, &other, insn.flow);
        }
        if insn.field.map(|f| f.target) != label {
            note(&mut found, "field", word, &other, insn.field);
        }
        if let Some(field) = insn.field {
            let kind = match other.insn.mnemonic() {
                Mnemonic::Adr => FieldKind::Forms,
                Mnemonic::Adrp => FieldKind::Page,
                Mnemonic::Ldr | Mnemonic::Ldrsw | Mnemonic::Prfm => FieldKind::Accesses,
                _ => FieldKind::Branch,
            };
            if field.kind != kind {
                note(&mut found, "kind of field", word, &other, field.kind);
            }
            // A literal has as many bytes as the register, but for words with a sign; a prefetch has none.
            if kind == FieldKind::Accesses {
                let len = match other.insn.mnemonic() {
                    Mnemonic::Ldrsw => 4,
                    Mnemonic::Prfm => 0,
                    _ => other.insn.op_register(0).width_bits() / 8,
                };
                if u16::from(field.literal) != len {
                    note(
                        &mut found,
                        "length of a literal",
                        word,
                        &other,
                        field.literal,
                    );
                }
            }
        }
    });
    assert!(compared > 2_000_000, "{compared}");
    found.assert_none();
}

#[test]
fn registers_flags_and_memory_are_at_least_those_of_the_other_decoder() {
    let (mut compared, mut found) = (0, Differences::default());
    aarch64_words(|word| {
        let Some(other) = Other::of(word).filter(|other| !is_refused(other)) else {
            return;
        };
        let bytes = word.to_le_bytes();
        compared += 1;
        if let Some(touched) = registers::touched(word) {
            if other.reads & !touched.reads != 0 {
                note(&mut found, "touched: not read", word, &other, touched);
            }
            if other.writes & !touched.writes != 0 {
                note(&mut found, "touched: not written", word, &other, touched);
            }
            if touched.kills & !(touched.reads & other.writes | other.kills) != 0 {
                note(&mut found, "touched: killed", word, &other, touched);
            }
        }
        let effects = AArch64::effects(&bytes);
        if other.reads & !effects.reads != 0 {
            note(&mut found, "effects: not read", word, &other, effects);
        }
        if effects.kills & !(effects.reads & other.writes | other.kills) != 0 {
            note(&mut found, "effects: killed", word, &other, effects);
        }
        if other.memory().is_some() && !AArch64::may_read_memory(&bytes) {
            note(&mut found, "may not read memory", word, &other, effects);
        }
        let Some(plain) = AArch64::plain(&bytes, AT) else {
            return;
        };
        // Calls and returns are not asked about, and the system call's result is not in the instruction.
        if matches!(
            other.flow(),
            FlowControl::Next | FlowControl::ConditionalBranch
        ) {
            if other.writes & !plain.writes != 0 {
                note(&mut found, "plain: not written", word, &other, plain);
            }
            if plain.keeps_flags && other.flags_written {
                note(&mut found, "plain: flags", word, &other, plain);
            }
            if other.stack && plain.stack.is_none() {
                note(&mut found, "plain: stack", word, &other, plain);
            }
            match (other.memory(), plain.memory) {
                (Some((true, ..)), None) => note(&mut found, "plain: memory", word, &other, plain),
                (Some((true, base, offset)), Some(mem)) => {
                    let by_index = mem.index.is_some();
                    if mem.base != Some(base) || mem.disp != offset && !by_index {
                        note(&mut found, "plain: place in memory", word, &other, plain);
                    }
                    if stored(&other).is_some_and(|bytes| bytes != mem.size) {
                        note(&mut found, "plain: size", word, &other, plain);
                    }
                }
                _ => {}
            }
        }
    });
    assert!(compared > 2_000_000, "{compared}");
    found.assert_none();
}

/// Bytes that a plain store writes.
fn stored(other: &Other) -> Option<u8> {
    let name = other.name.as_str();
    let register = (other.insn.op_register(0).width_bits() / 8) as u8;
    match name {
        "Str" | "Stur" | "Sttr" => Some(register),
        "Strb" | "Sturb" | "Sttrb" => Some(1),
        "Strh" | "Sturh" | "Sttrh" => Some(2),
        "Stp" | "Stnp" => Some(2 * register),
        _ => None,
    }
}

#[test]
fn instructions_of_inserted_code_do_what_the_other_decoder_says() {
    let (mut compared, mut found) = (BTreeMap::new(), Differences::default());
    aarch64_words(|word| {
        let Some(step) = AArch64::step(&word.to_le_bytes(), AT) else {
            return;
        };
        let Some(other) = Other::of(word) else {
            panic!("{word:08x} is no instruction, but {step:?}");
        };
        *compared.entry(other.name.clone()).or_insert(0) += 1;
        let (mut reads, mut writes, mut stack) = (0u32, 0u32, false);
        // What is read after it was written by the same instruction is not read from before.
        let mut read = |reg: u8, writes: u32| reads |= 1 << reg & !writes;
        let (mut stores, mut amount) = (false, false);
        for op in &step.ops {
            let mut mem = |mem: &Mem, writes: u32| {
                mem.base.into_iter().for_each(|reg| read(reg, writes));
                mem.index.into_iter().for_each(|(reg, _)| read(reg, writes));
            };
            match op {
                Op::Address { to, .. } | Op::Number { to, .. } => writes |= 1 << to,
                Op::Spoil { to } => writes |= 1 << to,
                Op::Move { to, from, .. } | Op::AddHalf { to, from, .. } => {
                    read(*from, writes);
                    writes |= 1 << to;
                }
                Op::Bits { to, from, mask } => {
                    read(*from, writes);
                    writes |= 1 << to;
                    let same = |op| op == Operand::ImmLogical(*mask);
                    if !other.operands().any(same) {
                        note(&mut found, "mask", word, &other, &step);
                    }
                }
                Op::Load { to, mem: m } => {
                    mem(m, writes);
                    writes |= 1 << to;
                }
                Op::Store { from, mem: m } => {
                    mem(m, writes);
                    read(*from, writes);
                    stores = true;
                }
                Op::Compare { a, b } => {
                    read(*a, writes);
                    read(*b, writes);
                }
                Op::Sum { to, a, b } | Op::Difference { to, a, b } => {
                    read(*a, writes);
                    read(*b, writes);
                    writes |= 1 << to;
                }
                Op::Change { mem: m } => {
                    mem(m, writes);
                    // The register with what is added is not modelled: nothing depends on it.
                    amount = true;
                    stores = true;
                }
                other => panic!("{word:08x}: no AArch64 instruction is {other:?}"),
            }
        }
        stack |= writes >> 31 != 0;
        // The link register of a call; the registers of branches and returns, which ops say nothing of.
        let next = match step.next {
            Next::Call(_) => {
                writes |= 1 << 30;
                other.flow() == FlowControl::Call
            }
            Next::Leave(n) => {
                reads |= 1 << n;
                other.flow() == FlowControl::IndirectBranch
            }
            Next::Return => {
                reads |= 1 << 30;
                other.flow() == FlowControl::Return
            }
            Next::Branch { target, .. } => {
                reads |= other.reads;
                other.flow() == FlowControl::ConditionalBranch && Some(target) == other.label()
            }
            Next::On => other.flow() == FlowControl::Next,
        };
        if !next {
            note(&mut found, "next", word, &other, &step);
        }
        // What only loses its value (`movk`, a store's outcome) is said to be written, not read.
        let spoils = step.ops.iter().any(|op| matches!(op, Op::Spoil { .. }));
        if amount {
            reads |= other.reads;
        }
        if reads & 0x7fff_ffff != other.reads && !spoils || writes & 0x7fff_ffff != other.writes {
            note(
                &mut found,
                "registers",
                word,
                &other,
                (&step, reads, writes),
            );
        }
        if stack != other.stack {
            note(&mut found, "stack pointer", word, &other, &step);
        }
        if stores != other.memory().is_some_and(|(written, ..)| written) {
            note(&mut found, "memory", word, &other, &step);
        }
        if other.flags_written && step.lost & crate::arch::step::flag::ALL == 0 {
            note(&mut found, "flags", word, &other, &step);
        }
    });
    assert!(compared.len() > 15, "{compared:?}");
    found.assert_none();
}

#[test]
fn additions_to_a_page_are_those_of_the_other_decoder() {
    let (mut compared, mut found) = (0, Differences::default());
    aarch64_words(|word| {
        let Some(used) = AArch64::page_use(&word.to_le_bytes()) else {
            return;
        };
        let Some(other) = Other::of(word) else { return };
        compared += 1;
        let same = match used.dest {
            Some(dest) => {
                let by = other.operands().find_map(|op| match op {
                    Operand::ImmShiftedMove { imm, lsl } => Some(u64::from(imm) << lsl),
                    _ => None,
                });
                let registers = (
                    other.insn.op_register(0).number(),
                    other.insn.op_register(1).number(),
                );
                // Another name for an addition of nothing.
                let by = by.or((other.insn.mnemonic() == Mnemonic::Mov).then_some(0));
                registers == (dest, used.base) && by == Some(used.offset)
            }
            None => {
                other.insn.memory_base().number() == used.base
                    && other.insn.memory_displacement64() as u64 == used.offset
            }
        };
        if !same {
            note(&mut found, "page use", word, &other, used);
        }
    });
    assert!(compared > 10_000, "{compared}");
    found.assert_none();
}
