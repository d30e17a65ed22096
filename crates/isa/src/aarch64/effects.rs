//! What an instruction reads and what it overwrites, for liveness: which registers a counter may destroy.
//!
//! Every error here is a program that computes something else, so all doubt goes to "read" and "not killed":
//!
//! * A write of a general register is a write of all of it (32 bits are zero-extended), so it kills; `movk`
//!   and `bfm` keep a part and read it.
//! * Flags are killed only by instructions that write all four.
//! * What is not recognised reads everything and kills nothing: scalable vectors and matrices, memory
//!   tagging, memory copies, pairs of atomics, and whatever comes.
//! * What may be a `nop` on some processors (pointer authentication) kills nothing.
//! * What leaves the function (call, return, indirect jump) reads every general register but `x16` and `x17`; see
//!   [`super`]. Calls kill those two, the link register and the flags. A system call reads everything.
//! * Traps read everything, as a signal handler may look.
//!
//! The order of the code is that of the architecture's encoding tables: bits 28..25 first.

use super::{GENERAL, NZCV, SCRATCH};
use crate::{Effects, Flow, Insn, Memory, RegSet};

/// See [`crate::Decode::memory`]. From the table of loads and stores in the Arm architecture reference manual (C4.1).
pub fn touches(bytes: &[u8]) -> Memory {
    let Some(word) = bytes.first_chunk::<4>().map(|b| u32::from_le_bytes(*b)) else {
        return Memory::default();
    };
    let bit = |n: u32| word >> n & 1 != 0;
    let field = |high: u32, low: u32| word >> low & ((1 << (high - low + 1)) - 1);
    // op0 = x1x0: loads and stores.
    if !bit(27) || bit(25) {
        return Memory::default();
    }
    let one = |loads: bool| Memory {
        loads,
        stores: !loads,
    };
    match field(29, 28) {
        // Structures of vectors (V set), exclusive and ordered ones; compare-and-swap does both.
        0 if !bit(26) => {
            if bit(23) && bit(21) || !bit(23) && bit(21) && !bit(31) {
                Memory {
                    loads: true,
                    stores: true,
                }
            } else {
                one(bit(22))
            }
        }
        0 => one(bit(22)),
        // Literals; `opc` 3 only prefetches. Unscaled ones with order (`ldapur`, `stlur`) share the class.
        1 if !bit(24) => Memory {
            loads: bit(26) || field(31, 30) != 3,
            stores: false,
        },
        1 => one(field(23, 22) != 0),
        // Pairs.
        2 => one(bit(22)),
        // One register.
        _ => {
            let (opc, vector) = (field(23, 22), bit(26));
            if !bit(24) && bit(21) && field(11, 10) == 0 && !vector {
                // Atomic operations, but for `ldapr`.
                let ordered_load = field(15, 12) == 0xc;
                return Memory {
                    loads: true,
                    stores: !ordered_load,
                };
            }
            match (vector, field(31, 30), opc) {
                (false, 3, 2) => Memory::default(), // prfm
                (true, _, opc) => one(opc & 1 != 0),
                (false, _, opc) => one(opc != 0),
            }
        }
    }
}

/// Reads all, kills nothing.
pub(super) const EVERYTHING: Effects = Effects {
    reads: RegSet::ALL,
    kills: RegSet::EMPTY,
};
const NOTHING: Effects = Effects {
    reads: RegSet::EMPTY,
    kills: RegSet::EMPTY,
};
const LINK: RegSet = RegSet(1 << 30);

/// What an instruction reads and overwrites; `bytes` begin with it. See [`crate::Decode::effects`].
pub fn effects(bytes: &[u8], insn: &Insn) -> Effects {
    let Some(word) = bytes.first_chunk().map(|word| u32::from_le_bytes(*word)) else {
        return EVERYTHING;
    };
    let outside = RegSet(GENERAL.0 & !SCRATCH.0);
    match insn.flow {
        Flow::Next => {}
        Flow::Jump { .. } => return NOTHING,
        Flow::CondJump { .. } => {
            let reads = if word >> 24 == 0x54 {
                condition(word & 15)
            } else {
                zero(word)
            };
            return Effects {
                reads,
                kills: RegSet::EMPTY,
            };
        }
        Flow::ShortCond { .. } => return EVERYTHING,
        // Not the link register's old value: it is overwritten.
        Flow::Call { .. } => {
            return Effects {
                reads: outside.minus(LINK),
                kills: NZCV.or(SCRATCH).or(LINK),
            };
        }
        Flow::IndirectCall => {
            // Pointer authentication by two registers has its modifier in the lowest bits.
            let reads = outside.minus(LINK).or(zero(word >> 5)).or(with_sp(word));
            return Effects {
                reads,
                kills: NZCV.or(SCRATCH.or(LINK).minus(zero(word >> 5))),
            };
        }
        Flow::IndirectJump | Flow::Return => {
            return Effects {
                reads: outside.or(zero(word >> 5)).or(with_sp(word)),
                kills: RegSet::EMPTY,
            };
        }
        Flow::Stop | Flow::Trap => return EVERYTHING,
    }
    match word >> 25 & 15 {
        0b1000 | 0b1001 => immediate(word),
        0b1010 | 0b1011 => system(word),
        0b0100 | 0b0110 | 0b1100 | 0b1110 => memory(word),
        0b0101 | 0b1101 => registers(word),
        0b0111 | 0b1111 => vectors(word),
        _ => EVERYTHING,
    }
}

/// The register with the number in the lowest five bits, where 31 is the zero register.
fn zero(number: u32) -> RegSet {
    match number & 31 {
        31 => RegSet::EMPTY,
        number => RegSet(1 << number),
    }
}

/// See [`crate::Decode::operand_registers`].
pub fn operand_registers(bytes: &[u8], insn: &Insn) -> RegSet {
    match (insn.flow, bytes.first_chunk()) {
        // Pointer authentication by two registers has its modifier in the lowest bits.
        (Flow::IndirectCall | Flow::IndirectJump, Some(word)) => {
            let word = u32::from_le_bytes(*word);
            zero(word >> 5).or(with_sp(word))
        }
        _ => RegSet::EMPTY,
    }
}

/// The same where 31 is the stack pointer.
fn with_sp(number: u32) -> RegSet {
    RegSet(1 << (number & 31))
}

/// The flags that a condition looks at.
fn condition(cond: u32) -> RegSet {
    use super::{C, N, V, Z};
    match cond >> 1 & 7 {
        0 => Z,
        1 => C,
        2 => N,
        3 => V,
        4 => C.or(Z),
        5 => N.or(V),
        6 => N.or(V).or(Z),
        _ => RegSet::EMPTY,
    }
}

fn with(reads: RegSet, kills: RegSet) -> Effects {
    Effects { reads, kills }
}

fn immediate(word: u32) -> Effects {
    let (d, n) = (word, word >> 5);
    let sets_flags = word >> 29 & 1 == 1;
    match word >> 23 & 7 {
        0 | 1 => with(RegSet::EMPTY, zero(d)), // adr, adrp
        2 if sets_flags => with(with_sp(n), zero(d).or(NZCV)),
        2 => with(with_sp(n), with_sp(d)),
        4 if word >> 29 & 3 == 3 => with(zero(n), zero(d).or(NZCV)), // ands
        4 => with(zero(n), with_sp(d)),
        5 => match word >> 29 & 3 {
            0 | 2 => with(RegSet::EMPTY, zero(d)),
            3 => with(zero(d), RegSet::EMPTY), // movk
            _ => EVERYTHING,
        },
        6 => match word >> 29 & 3 {
            0 | 2 => with(zero(n), zero(d)),
            1 => with(zero(n).or(zero(d)), RegSet::EMPTY), // bfm
            _ => EVERYTHING,
        },
        7 if word >> 29 & 3 == 0 && word >> 21 & 1 == 0 => {
            with(zero(n).or(zero(word >> 16)), zero(d))
        } // extr
        _ => EVERYTHING,
    }
}

fn system(word: u32) -> Effects {
    if word >> 24 == 0xd4 {
        return EVERYTHING; // svc, hvc, smc
    }
    if word >> 22 != 0x354 {
        return EVERYTHING; // pairs of system registers
    }
    let (read, group) = (word >> 21 & 1 == 1, word >> 19 & 3);
    match (read, group) {
        (false, 0) => match word >> 12 & 0x7f {
            // Hints. `paciasp` and its like and `xpaclri` use the link register and the stack pointer; `pac…1716`,
            // `aut…1716` and `chkfeat` x16 and x17; they may be nops, so nothing is killed.
            0x32 => match word >> 5 & 0x7f {
                0..=6 | 16..=20 | 32 | 34 | 36 | 38 => NOTHING,
                7 | 24..=31 => with(LINK.or(RegSet(1 << 31)), RegSet::EMPTY),
                _ => with(
                    SCRATCH.or(LINK).or(RegSet(1 << 31)).or(RegSet(1 << 15)),
                    RegSet::EMPTY,
                ),
            },
            0x33 => NOTHING,                         // barriers, clrex
            0x31 => with(zero(word), RegSet::EMPTY), // wfet, wfit
            _ if word >> 12 & 15 == 4 => with(NZCV, RegSet::EMPTY), // fields of the processor state: cfinv, axflag …
            _ => EVERYTHING,
        },
        (false, 1) => with(zero(word), RegSet::EMPTY), // sys
        (true, 1) => with(RegSet::EMPTY, zero(word)),  // sysl
        (false, _) if word >> 5 & 0x7fff == 0x5a10 => with(zero(word), NZCV), // msr nzcv
        (false, _) => with(zero(word), RegSet::EMPTY),
        (true, 2 | 3) if word >> 5 & 0x7fff == 0x5a10 => with(NZCV, zero(word)),
        (true, 2 | 3) => with(RegSet::EMPTY, zero(word)),
        _ => EVERYTHING,
    }
}

fn memory(word: u32) -> Effects {
    let (t, n, t2, s) = (
        zero(word),
        with_sp(word >> 5),
        zero(word >> 10),
        zero(word >> 16),
    );
    let vector = word >> 26 & 1 == 1;
    let load = word >> 22 & 1 == 1;
    match (word >> 28 & 3, vector, word >> 24 & 1 == 1) {
        (0, false, false) => exclusive(word),
        // Structures: the register after the index, if there is one.
        (0, true, _) => with(if word >> 23 & 1 == 1 { n.or(s) } else { n }, RegSet::EMPTY),
        (1, _, false) if !vector && word >> 30 != 3 => with(RegSet::EMPTY, t), // literal
        (1, _, false) => NOTHING,
        // With release and acquire, unscaled.
        (1, false, true) if word & 0x0020_0c00 == 0 => match word >> 22 & 3 {
            0 => with(n.or(t), RegSet::EMPTY),
            2 if word >> 30 == 3 => with(n, RegSet::EMPTY),
            _ => with(n, t),
        },
        (2, true, _) => with(n, RegSet::EMPTY),
        (2, false, _) if load => with(
            n,
            t.or(t2).minus(written_back(word, word >> 23 & 1 == 1, n)),
        ),
        (2, false, _) => with(n.or(t).or(t2), RegSet::EMPTY),
        (3, _, true) => one(word, n),
        (3, _, false) => match (word >> 21 & 1, word >> 10 & 3) {
            (0, _) => one(word, n),
            (1, 2) => one(word, n.or(s)),
            // Atomic; of the second half only `swp` and `ldapr` are simple.
            (1, 0) if !vector && (word >> 15 & 1 == 0 || matches!(word >> 12 & 7, 0 | 4)) => {
                with(n.or(s), t)
            }
            (1, 1 | 3) if !vector && word >> 30 == 3 => with(n, t), // ldraa, ldrab
            _ => EVERYTHING,
        },
        _ => EVERYTHING,
    }
}

/// The base register if it is written as well: then the order of two writes to one register decides, which is
/// unspecified.
fn written_back(_: u32, writes: bool, n: RegSet) -> RegSet {
    if writes { n } else { RegSet::EMPTY }
}

/// A load or store of one register, by its size and operation; `address` are the registers of the address.
fn one(word: u32, address: RegSet) -> Effects {
    let t = zero(word);
    if word >> 26 & 1 == 1 {
        return with(address, RegSet::EMPTY);
    }
    match (word >> 30, word >> 22 & 3) {
        (_, 0) => with(address.or(t), RegSet::EMPTY),
        (3, 2) => with(address, RegSet::EMPTY), // prfm
        (3, 3) | (2, 3) => EVERYTHING,
        _ => with(address, t),
    }
}

/// Exclusive, ordered, and compare-and-swap.
fn exclusive(word: u32) -> Effects {
    let (t, n, t2, s) = (
        zero(word),
        with_sp(word >> 5),
        zero(word >> 10),
        zero(word >> 16),
    );
    let load = word >> 22 & 1 == 1;
    match (word >> 23 & 1, word >> 21 & 1) {
        (0, 0) if load => with(n, t),
        (0, 0) => with(n.or(t), s),
        (0, _) if word >> 31 == 1 && load => with(n, t.or(t2)),
        (0, _) if word >> 31 == 1 => with(n.or(t).or(t2), s),
        (0, _) => {
            // casp: pairs of registers, the first of which is even.
            let pair = |number: u32| RegSet(3 << (number & 30));
            with(pair(word).or(pair(word >> 16)).or(n), RegSet::EMPTY)
        }
        (_, 0) if load => with(n, t),
        (_, 0) => with(n.or(t), RegSet::EMPTY),
        _ => with(n.or(t).or(s), RegSet::EMPTY), // cas
    }
}

fn registers(word: u32) -> Effects {
    let (d, n, m, a) = (
        zero(word),
        zero(word >> 5),
        zero(word >> 16),
        zero(word >> 10),
    );
    let sets_flags = word >> 29 & 1 == 1;
    let flags = if sets_flags { NZCV } else { RegSet::EMPTY };
    if word >> 28 & 1 == 0 {
        return match (word >> 24 & 1, word >> 21 & 1) {
            // Logical; `ands` and `bics` set flags.
            (0, _) => with(
                n.or(m),
                d.or(if word >> 29 & 3 == 3 {
                    NZCV
                } else {
                    RegSet::EMPTY
                }),
            ),
            (1, 0) => with(n.or(m), d.or(flags)),
            // Extended.
            _ => with(
                with_sp(word >> 5).or(m),
                if sets_flags {
                    d.or(flags)
                } else {
                    with_sp(word)
                },
            ),
        };
    }
    match word >> 21 & 15 {
        0 if word >> 10 & 63 == 0 => with(n.or(m).or(super::C), d.or(flags)), // adc, sbc
        0 if matches!(word >> 10 & 31, 1) || word >> 10 & 15 == 2 => {
            with(n.or(NZCV), RegSet::EMPTY)
        } // rmif, setf
        // Conditional compare: of a register or a number.
        2 => with(
            if word >> 11 & 1 == 0 { n.or(m) } else { n }.or(condition(word >> 12)),
            NZCV,
        ),
        4 if word >> 11 & 1 == 0 && !sets_flags => with(n.or(m).or(condition(word >> 12)), d),
        6 if word >> 30 & 1 == 1 && !sets_flags => match word >> 16 & 31 {
            0 if word >> 10 & 63 <= 8 => with(n, d), // rbit … abs
            1 => with(with_sp(word).or(with_sp(word >> 5)), RegSet::EMPTY), // pointer authentication
            _ => EVERYTHING,
        },
        6 if !sets_flags => match word >> 10 & 63 {
            2 | 3 | 8..=11 | 16..=23 | 24..=27 => with(n.or(m), d),
            _ => EVERYTHING, // memory tags, pacga
        },
        8..=15 if matches!(word >> 21 & 7, 0 | 1 | 2 | 5 | 6) => with(n.or(m).or(a), d),
        _ => EVERYTHING,
    }
}

fn vectors(word: u32) -> Effects {
    let (d, n) = (zero(word), zero(word >> 5));
    // Scalar floating point and its conversions.
    if word & 0x5f00_0000 == 0x1e00_0000 {
        if word >> 29 & 1 == 1 {
            return EVERYTHING;
        }
        let (rounding, operation) = (word >> 19 & 3, word >> 16 & 7);
        if word >> 21 & 1 == 0 {
            // Fixed point.
            return match (rounding, operation) {
                (0, 2 | 3) => with(n, RegSet::EMPTY),
                (3, 0 | 1) => with(RegSet::EMPTY, d),
                _ => EVERYTHING,
            };
        }
        return match word >> 10 & 63 {
            0 => match (rounding, operation) {
                (_, 0 | 1) | (0, 4 | 5) => with(RegSet::EMPTY, d),
                (0, 2 | 3) => with(n, RegSet::EMPTY),
                (0 | 1, 6) => with(RegSet::EMPTY, d), // fmov
                (0 | 1, 7) => with(n, RegSet::EMPTY),
                (3, 6) => with(RegSet::EMPTY, d), // fjcvtzs
                _ => EVERYTHING,
            },
            8 => with(RegSet::EMPTY, NZCV), // fcmp
            code if code & 3 == 1 => with(condition(word >> 12), NZCV), // fccmp
            code if code & 3 == 3 => with(condition(word >> 12), RegSet::EMPTY), // fcsel
            _ => NOTHING,
        };
    }
    // Copies between vectors and general registers.
    if word & 0x9fe0_8400 == 0x0e00_0400 {
        return match (word >> 29 & 1, word >> 11 & 15) {
            (0, 1 | 3) => with(n, RegSet::EMPTY),
            (0, 5 | 7) => with(RegSet::EMPTY, d),
            (0, 0) | (1, _) => NOTHING,
            _ => EVERYTHING,
        };
    }
    NOTHING
}
