//! For tests of other crates that compare the checker's tables of instructions with the rewriter's: not part
//! of the interface.

use std::collections::BTreeMap;

use crate::arch::aarch64::AArch64;
use crate::arch::x86_64::X86_64;
use crate::arch::{Arch, Flow};

/// What an instruction does with registers and flags, as sets of bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effects {
    /// General registers that it reads, by number.
    pub reads: u32,
    /// General registers that it overwrites whole.
    pub kills: u32,
    /// Flags that it reads, numbered as by the checker.
    pub flag_reads: u8,
    /// Flags that it overwrites.
    pub flag_kills: u8,
}

fn of<A: Arch>(bytes: &[u8]) -> Option<(usize, Effects)> {
    let insn = A::decode(bytes, 0x1000)?;
    let e = A::effects(bytes);
    Some((
        usize::from(insn.len),
        Effects {
            reads: e.reads,
            kills: e.kills,
            flag_reads: e.flag_reads,
            flag_kills: e.flag_kills,
        },
    ))
}

/// Length and effects of the x86-64 instruction at the start of `bytes`, if the checker knows it.
pub fn x86_64(bytes: &[u8]) -> Option<(usize, Effects)> {
    of::<X86_64>(bytes)
}

/// The same of an AArch64 instruction.
pub fn aarch64(bytes: &[u8]) -> Option<(usize, Effects)> {
    of::<AArch64>(bytes)
}

/// Where control goes after an AArch64 instruction, by a word, and the address in its field; `None`: the checker
/// refuses the instruction.
pub fn aarch64_flow(bytes: &[u8], addr: u64) -> Option<(&'static str, Option<u64>)> {
    let insn = AArch64::decode(bytes, addr)?;
    let flow = match insn.flow {
        Flow::Next | Flow::Nothing => "next",
        Flow::Jump(_) => "jump",
        Flow::Branch { .. } => "branch",
        Flow::Call(_) => "call",
        Flow::IndirectCall => "indirect call",
        Flow::IndirectJump { .. } => "indirect jump",
        Flow::Stop => "stop",
        Flow::Trap => "trap",
    };
    Some((flow, insn.field.map(|f| f.target)))
}

/// Calls for every operation of AArch64 (bits 31 to 10 in full, with registers that change from word to word), and for
/// as many random words: the same ones every time.
pub fn aarch64_words(mut visit: impl FnMut(u32)) {
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 16) as u32
    };
    for operation in 0..1u32 << 22 {
        // Zero and the stack pointer, too.
        let registers = match next() % 8 {
            0 => 0x3ff,
            1 => 31 << 5 | next() & 31,
            2 => next() & 31 << 5 | 31,
            _ => next() & 0x3ff,
        };
        visit(operation << 10 | registers);
    }
    for _ in 0..1 << 22 {
        visit(next());
    }
}

/// What two decoders differ in: by what it is and by instruction, how often, with the first example.
#[derive(Debug, Default)]
pub struct Differences(BTreeMap<String, (usize, String)>);

impl Differences {
    /// Adds one.
    pub fn note(&mut self, what: &str, instruction: &str, example: impl FnOnce() -> String) {
        let entry = self.0.entry(format!("{what}: {instruction}"));
        entry.or_insert_with(|| (0, example())).0 += 1;
    }

    /// Ends the test if there are any.
    pub fn assert_none(&self) {
        let lines: Vec<String> = self
            .0
            .iter()
            .map(|(key, (count, example))| format!("{key} ({count}): {example}"))
            .collect();
        assert!(
            lines.is_empty(),
            "{} differ:\n{}",
            lines.len(),
            lines.join("\n")
        );
    }
}
