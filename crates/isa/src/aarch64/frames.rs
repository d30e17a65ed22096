//! What instructions of routines do to the stack: [`crate::frames`].

use smallvec::smallvec;

use super::effects;
use crate::frames::{StackOp, StackOps};
use crate::{Flow, Insn, RegSet};

/// `.eh_frame`: CIE, version 1, `zR`; code by 4, data by -8, return address 30; addresses in four bytes relative to
/// themselves. `def_cfa sp, 0`.
pub(super) const CIE: [u8; 20] = [
    16, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', 0, 4, 0x78, 30, 1, 0x1b, 0x0c, 31, 0,
];

/// Registers, by the bits of [`RegSet`].
const GENERAL: RegSet = RegSet(u32::MAX as u64);
const LINK: RegSet = RegSet(1 << 30);

/// See [`crate::Counters::stack_ops`].
pub(super) fn stack_ops(bytes: &[u8], insn: &Insn) -> Option<StackOps> {
    let word = bytes.first_chunk().map(|word| u32::from_le_bytes(*word))?;
    if matches!(insn.flow, Flow::Call { .. } | Flow::IndirectCall) {
        return Some(smallvec![StackOp::Spoil(LINK)]);
    }
    if let Some(ops) = pair(word).or_else(|| single(word)).or_else(|| moved(word)) {
        return Some(ops);
    }
    let kills = effects::effects(bytes, insn).kills.0 & GENERAL.0;
    Some(smallvec![StackOp::Spoil(RegSet(kills))])
}

fn field(word: u32, at: u32) -> u8 {
    (word >> at & 31) as u8
}

/// Stores or loads registers at a register with a distance, which is added to that in front of it or after it.
fn access(load: bool, registers: &[u8], base: u8, disp: i64, moves: Moves) -> StackOps {
    let by = StackOp::Move {
        to: base,
        from: base,
        add: disp,
    };
    let mut ops = StackOps::new();
    let first = match moves {
        Moves::Not => disp,
        Moves::Before | Moves::After => 0,
    };
    if moves == Moves::Before {
        ops.push(by);
    }
    for (register, disp) in registers.iter().copied().zip((first..).step_by(8)) {
        ops.push(if load {
            StackOp::Load {
                register,
                base,
                disp,
            }
        } else {
            StackOp::Store {
                register,
                base,
                disp,
            }
        });
    }
    if moves == Moves::After {
        ops.push(by);
    }
    ops
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Moves {
    Not,
    Before,
    After,
}

/// `stp` and `ldp` of registers of eight bytes.
fn pair(word: u32) -> Option<StackOps> {
    let moves = match word >> 23 & 0x1ff {
        0x151 => Moves::After,
        0x152 => Moves::Not,
        0x153 => Moves::Before,
        _ => return None,
    };
    let disp = i64::from((word << 10) as i32 >> 25) * 8;
    let registers = [field(word, 0), field(word, 10)];
    Some(access(
        word >> 22 & 1 != 0,
        &registers,
        field(word, 5),
        disp,
        moves,
    ))
}

/// `str` and `ldr` of a register of eight bytes.
fn single(word: u32) -> Option<StackOps> {
    let (load, registers, base) = (word >> 22 & 1 != 0, [field(word, 0)], field(word, 5));
    if word & 0xff80_0000 == 0xf900_0000 {
        let disp = i64::from(word >> 10 & 0xfff) * 8;
        return Some(access(load, &registers, base, disp, Moves::Not));
    }
    let moves = match word & 0xffa0_0c00 {
        0xf800_0400 => Moves::After,
        0xf800_0c00 => Moves::Before,
        _ => return None,
    };
    let disp = i64::from((word << 11) as i32 >> 23);
    Some(access(load, &registers, base, disp, moves))
}

/// Additions of constants to registers of eight bytes, and copies of those.
fn moved(word: u32) -> Option<StackOps> {
    let (to, from) = (field(word, 0), field(word, 5));
    if word & 0xffe0_ffe0 == 0xaa00_03e0 {
        // There the last register is zero.
        let from = field(word, 16);
        return match (to, from) {
            (31, _) => Some(StackOps::new()),
            (_, 31) => Some(smallvec![StackOp::Spoil(RegSet(1 << to))]),
            _ => Some(smallvec![StackOp::Move { to, from, add: 0 }]),
        };
    }
    let sign = match word & 0xff80_0000 {
        0x9100_0000 => 1,
        0xd100_0000 => -1,
        _ => return None,
    };
    let add = i64::from(word >> 10 & 0xfff) << (12 * (word >> 22 & 1));
    Some(smallvec![StackOp::Move {
        to,
        from,
        add: sign * add
    }])
}
