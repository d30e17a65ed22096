//! What one instruction of inserted code does, as plain data: made by an instruction set, run by the symbolic
//! machine ([`crate::machine`]).
//!
//! A [`Step`] is some [`Op`]s, one after the other, the flags that they destroy, and where control goes
//! ([`Next`]). Registers have the numbers that the instruction set gives them; flags are those of x86-64
//! ([`flag`]), and other sets use the bits that fit.

use super::Arch;
use smallvec::SmallVec;

/// Whose segment a memory operand is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    Common,
    /// The thread's (`fs`).
    Thread,
    /// That of per-thread counters (`gs`).
    Own,
}

/// A memory operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mem {
    pub segment: Segment,
    pub base: Option<u8>,
    /// Register and factor.
    pub index: Option<(u8, u8)>,
    pub disp: i64,
    /// The address, if it is relative to the program counter.
    pub address: Option<u64>,
    /// Bytes.
    pub size: u8,
}

/// One thing that an instruction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Move {
        to: u8,
        from: u8,
        add: i64,
    },
    /// Adds to the lower four bytes, and leaves nothing above them.
    AddHalf {
        to: u8,
        from: u8,
        add: i64,
    },
    Number {
        to: u8,
        value: u64,
    },
    Address {
        to: u8,
        value: u64,
    },
    /// Puts something into a register.
    Spoil {
        to: u8,
    },
    Load {
        to: u8,
        mem: Mem,
    },
    Store {
        from: u8,
        mem: Mem,
    },
    /// Stores a constant.
    StoreNumber {
        mem: Mem,
    },
    /// Adds a constant to a word in memory, or exchanges it under a condition.
    Change {
        mem: Mem,
    },
    /// Reads memory, for flags alone.
    Read {
        mem: Mem,
    },
    /// Asks whether any of these bits in memory is set, for flags alone.
    Test {
        mem: Mem,
        mask: u64,
    },
    /// `to = from & mask`, which a branch may ask about, whether it is zero.
    Bits {
        to: u8,
        from: u8,
        mask: u64,
    },
    /// `to -= [mem]`
    Minus {
        to: u8,
        mem: Mem,
    },
    /// `to += [mem]`
    Plus {
        to: u8,
        mem: Mem,
    },
    /// `to = a - b`
    Difference {
        to: u8,
        a: u8,
        b: u8,
    },
    /// `to = a + b`
    Sum {
        to: u8,
        a: u8,
        b: u8,
    },
    /// Compares two registers; a branch may ask whether they are equal.
    Compare {
        a: u8,
        b: u8,
    },
    PushFlags,
    PopFlags,
    /// Sign, zero, auxiliary, parity and carry flag to bits 8 to 15 of register 0 (`lahf`).
    SaveStatus,
    /// Overflow flag to the low byte of register 0 (`seto al`).
    SaveOverflow,
    /// Adds 127 to the low byte of register 0: overflows if that was 1.
    RestoreOverflow,
    /// The other way (`sahf`).
    RestoreStatus,
}

/// Where control continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    On,
    /// `equal`: whether it branches if what was compared is equal (true) or is not (false); `None` if it asks
    /// something else.
    Branch {
        target: u64,
        equal: Option<bool>,
    },
    Call(u64),
    Return,
    /// To the address in a register.
    Leave(u8),
}

/// What a routine takes for the return address of the function whose call it notes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    /// A word of its caller's on the stack: where it is from the stack pointer at its first instruction.
    Word(i64),
    /// What a register held there.
    Register(u8),
}

/// An instruction, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub len: u8,
    pub ops: SmallVec<[Op; 3]>,
    /// Flags that hold something else afterwards.
    pub lost: u8,
    pub next: Next,
}

/// Flags that `lahf` saves; overflow is the other.
pub(crate) mod flag {
    pub(crate) const CARRY: u8 = 1;
    pub(crate) const PARITY: u8 = 2;
    pub(crate) const AUXILIARY: u8 = 4;
    pub(crate) const ZERO: u8 = 8;
    pub(crate) const SIGN: u8 = 16;
    pub(crate) const OVERFLOW: u8 = 32;
    pub(crate) const STATUS: u8 = CARRY | PARITY | AUXILIARY | ZERO | SIGN;
    pub(crate) const ALL: u8 = STATUS | OVERFLOW;
}

/// The word at the stack pointer.
pub(crate) fn stack<A: Arch>(disp: i64) -> Mem {
    Mem {
        segment: Segment::Common,
        base: Some(A::STACK),
        index: None,
        disp,
        address: None,
        size: 8,
    }
}
