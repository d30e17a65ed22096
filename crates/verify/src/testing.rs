//! For tests of other crates that compare the checker's tables of instructions with the rewriter's: not part
//! of the interface.

use crate::arch::aarch64::AArch64;
use crate::arch::x86_64::X86_64;
use crate::arch::{Arch, Flow};
pub use crate::differences::{Differences, aarch64_words};

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

/// Whether the checker takes an x86-64 instruction for one that has nothing to do with the stack.
pub fn x86_64_leaves_stack(bytes: &[u8]) -> bool {
    X86_64::leaves_stack(bytes)
}

/// Whether for the checker an x86-64 instruction leaves something in a register that bounds an index, or is a table's
/// address: something that is known of it.
pub fn x86_64_bounds(bytes: &[u8], register: u8) -> bool {
    let leaves = X86_64::leaves(bytes, 0x1000);
    leaves.left.is_some_and(|left| left.0 == register)
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
