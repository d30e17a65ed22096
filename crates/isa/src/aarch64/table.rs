//! What kind of table an indirect jump goes through, read off the instructions before it.
//!
//! | compilers write | shape |
//! |---|---|
//! | `ldrb w1,[xT,w0,uxtw]`, `adr x2,A`, `add x1,x2,w1,sxtb #2`, `br x1` (gcc; half-words and words alike) | anchored at A, table T |
//! | `adr x10,A`, `ldrb w11,[xT,x8]`, `add x10,x10,x11,lsl #2`, `br x10` (clang; half-words alike) | anchored at A, table T |
//! | `ldrsw x11,[xT,x8,lsl #2]`, `add x9,xT,x11`, `br x9` (clang) | relative to T |
//! | `ldr w11,[xT,x8,lsl #2]`, `add x9,xT,w11,sxtw`, `br x9` | relative to T, where no kept relocations are needed for it |
//! | `ldr x1,[xT,x0,lsl #3]`, `br x1` | absolute, table T |
//! | anything else | unknown |
//!
//! T is known where `adrp` and `add`, or `adr`, form it in sight. gcc hoists that out of loops; then the
//! shape names the register, and the caller looks for the instruction that forms an address in it anywhere in the
//! function ([`formed`]).
//!
//! The number of entries is read off the bound check, `cmp w0,#N` and `b.hi` before the jump, if that is in
//! sight and about the same register.

use super::decode::adr_immediate;
use super::effects::effects;
use crate::{Anchor, Effects, Flow, Insn, JumpShape, RegSet, TableInPlace};

/// An instruction with its word.
#[derive(Clone, Copy)]
struct Line {
    insn: Insn,
    word: u32,
}

fn lines<'c>(path: &[Insn], code: impl Fn(&Insn) -> &'c [u8]) -> Vec<Line> {
    let word = |i: &Insn| {
        code(i)
            .first_chunk()
            .map_or(0, |word| u32::from_le_bytes(*word))
    };
    path.iter()
        .map(|i| Line {
            insn: *i,
            word: word(i),
        })
        .collect()
}

/// See [`crate::Decode::jump_shape`].
pub fn jump_shape<'c>(path: &[Insn], code: impl Fn(&Insn) -> &'c [u8]) -> JumpShape {
    let lines = lines(path, code);
    let Some((jump, before)) = lines.split_last() else {
        return JumpShape::Unknown;
    };
    if jump.word & 0xffff_fc1f != 0xd61f_0000 {
        return JumpShape::Unknown;
    }
    let Some((at, d)) = definition(jump.word >> 5 & 31, before) else {
        return JumpShape::Unknown;
    };
    let earlier = &before[..at];
    if let Some(load) = Load::of(d.word)
        && (load.bytes, load.shift) == (8, 3)
    {
        return JumpShape::Absolute {
            table: address_in(load.base, earlier),
        };
    }
    let (n, m) = (d.word >> 5 & 31, d.word >> 16 & 31);
    // add xd, xn, wm, {s,u}xt{b,h,w,x} #s, or add xd, xn, xm, lsl #s
    let (extension, shift) = if d.word & 0xffe0_0000 == 0x8b20_0000 {
        (Some(d.word >> 13 & 7), d.word >> 10 & 7)
    } else if d.word & 0xffe0_0000 == 0x8b00_0000 {
        (None, d.word >> 10 & 63)
    } else {
        return JumpShape::Unknown;
    };
    // Which of the two is the entry; only without extension and shift may it be the first.
    let orders: &[(u32, u32)] = if shift == 0 && extension.is_none() {
        &[(n, m), (m, n)]
    } else {
        &[(n, m)]
    };
    for &(base, entry) in orders {
        let Some((load_at, load_line)) = definition(entry, earlier) else {
            continue;
        };
        let Some(load) = Load::of(load_line.word) else {
            continue;
        };
        let table = address_in(load.base, &earlier[..load_at]);
        let added = formed_by_adr(base, earlier);
        let signed = load.signed || matches!(extension, Some(4..));
        let width_agrees = match extension {
            None | Some(3 | 7) => true,
            Some(code) => 1 << (code & 3) == load.bytes,
        };
        if let (Some(anchor), true, true) = (
            added,
            width_agrees,
            load.shift == load.bytes.trailing_zeros(),
        ) {
            let count = bound(load.index, &earlier[..load_at]);
            let (bytes, shift) = (load.bytes as u8, shift as u8);
            return JumpShape::Anchored(Anchor {
                table,
                register: load.base as u8,
                anchor,
                bytes,
                signed,
                shift,
                count,
            });
        }
        let whole = load.bytes == 4 && load.shift == 2 && signed && shift == 0;
        let same = base == load.base || table.is_some() && address_in(base, earlier) == table;
        if whole && same {
            return JumpShape::Relative { table, width: 4 };
        }
    }
    JumpShape::Unknown
}

/// See [`crate::Decode::table_in_place`].
pub fn table_in_place<'c>(path: &[Insn], code: impl Fn(&Insn) -> &'c [u8]) -> Option<TableInPlace> {
    let lines = lines(path, code);
    let (jump, before) = lines.split_last()?;
    if jump.word & 0xffff_fc1f != 0xd61f_0000 {
        return None;
    }
    let (at, d) = definition(jump.word >> 5 & 31, before)?;
    let found = |load: Load, earlier: &[Line], bytes: u8| TableInPlace {
        table: address_in(load.base, earlier),
        register: load.base as u8,
        bytes,
        count: bound(load.index, earlier),
    };
    if let Some(load) = Load::of(d.word) {
        let fits = (load.bytes, load.shift) == (8, 3);
        return fits.then(|| found(load, &before[..at], 8));
    }
    // add xd, xn, xm; or add xd, xn, wm, sxtw
    let (n, m) = (d.word >> 5 & 31, d.word >> 16 & 31);
    let (orders, extended): (&[(u32, u32)], bool) = match d.word & 0xffe0_fc00 {
        0x8b00_0000 => (&[(n, m), (m, n)], false),
        0x8b20_c000 => (&[(n, m)], true),
        _ => return None,
    };
    let earlier = &before[..at];
    orders.iter().find_map(|&(base, entry)| {
        let (load_at, line) = definition(entry, earlier)?;
        let load = Load::of(line.word).filter(|l| (l.bytes, l.shift) == (4, 2))?;
        let table = found(load, &earlier[..load_at], 4);
        let same = match table.table {
            Some(table) => address_in(base, earlier) == Some(table),
            // Loaded over its own base, that would not be what is added.
            None => base == load.base && entry != base && !written(base, &earlier[load_at..]),
        };
        ((load.signed || extended) && same).then_some(table)
    })
}

/// Whether one of these instructions may write a register.
fn written(register: u32, lines: &[Line]) -> bool {
    lines.iter().any(|line| writes(line, register))
}

/// See [`crate::Decode::jump_slot`]: `adrp xM`, `ldr xN,[xM,#offset]`, …, `br xN`.
pub fn jump_slot<'c>(path: &[Insn], code: impl Fn(&Insn) -> &'c [u8]) -> Option<u64> {
    let from = path.len().saturating_sub(8);
    let lines = lines(&path[from..], code);
    let (jump, before) = lines.split_last()?;
    if jump.insn.flow != Flow::IndirectJump {
        return None;
    }
    let (at, load) = definition(jump.word >> 5 & 31, before)?;
    if load.word & 0xffc0_0000 != 0xf940_0000 {
        return None;
    }
    let offset = u64::from(load.word >> 10 & 0xfff) << 3;
    let (_, page) = definition(load.word >> 5 & 31, &before[..at])?;
    (page.word & 0x9f00_0000 == 0x9000_0000)
        .then(|| page.insn.field.map(|f| f.target.wrapping_add(offset)))?
}

/// See [`crate::Decode::formed`].
pub fn formed<'c>(insns: &[Insn], code: impl Fn(&Insn) -> &'c [u8]) -> Vec<(u8, u64)> {
    let mut pages = [None; 32];
    let mut out = Vec::new();
    for i in insns {
        let word = code(i)
            .first_chunk()
            .map_or(0, |word| u32::from_le_bytes(*word));
        let d = (word & 31) as usize;
        if word & 0x9f00_0000 == 0x9000_0000 {
            pages[d] = i.field.map(|f| f.target);
        } else if word & 0x9f00_0000 == 0x1000_0000 {
            out.extend(i.field.map(|f| (d as u8, f.target)));
        } else if word & 0xffc0_0000 == 0x9100_0000
            && let Some(page) = pages[(word >> 5 & 31) as usize]
        {
            out.push((
                d as u8,
                u64::wrapping_add(page, u64::from(word >> 10 & 0xfff)),
            ));
        }
    }
    out
}

/// A load from a base and an index.
#[derive(Clone, Copy)]
struct Load {
    base: u32,
    index: u32,
    /// Bytes of an entry.
    bytes: u32,
    /// By how much the index is shifted.
    shift: u32,
    signed: bool,
}

impl Load {
    fn of(word: u32) -> Option<Load> {
        // Register offset, no vector.
        if word & 0x3f20_0c00 != 0x3820_0800 {
            return None;
        }
        let size = word >> 30;
        let signed = match (size, word >> 22 & 3) {
            (_, 1) => false,
            (0..=2, 2) | (0 | 1, 3) => true,
            _ => return None,
        };
        let shift = if word >> 12 & 1 == 1 { size } else { 0 };
        Some(Load {
            base: word >> 5 & 31,
            index: word >> 16 & 31,
            bytes: 1 << size,
            shift,
            signed,
        })
    }
}

/// Whether an instruction may write a register.
fn writes(line: &Line, register: u32) -> bool {
    let Effects { reads, kills } = effects(&line.word.to_le_bytes(), &line.insn);
    let bit = RegSet(1 << register);
    if kills.meets(bit) || reads == RegSet::ALL {
        return true;
    }
    let word = line.word;
    let named = |low: u32| word >> low & 31 == register;
    match word >> 25 & 15 {
        // What reads its destination as well: movk, bfm, pointer authentication.
        0b1000 | 0b1001 | 0b0101 | 0b1101 => named(0) && word >> 21 & 0x7ff != 0x758,
        // Bases that are written back; exclusives and their like.
        0b0100 | 0b0110 | 0b1100 | 0b1110 => match word >> 28 & 3 {
            0 => named(0) || named(5) || named(10) || named(16),
            1 => false,
            2 => named(5) && word >> 23 & 1 == 1,
            _ => named(5) && word >> 24 & 1 == 0 && word >> 10 & 1 == 1,
        },
        _ => false,
    }
}

/// The last instruction that may write a register, and its index.
fn definition(register: u32, before: &[Line]) -> Option<(usize, &Line)> {
    let at = before.iter().rposition(|line| writes(line, register))?;
    Some((at, &before[at]))
}

/// The address that `adr` puts into a register, if that is what writes it.
fn formed_by_adr(register: u32, before: &[Line]) -> Option<u64> {
    let (_, d) = definition(register, before)?;
    (d.word & 0x9f00_001f == 0x1000_0000 | register)
        .then(|| d.insn.addr.wrapping_add_signed(adr_immediate(d.word)))
}

/// The address that a register holds, if instructions in sight form it.
fn address_in(register: u32, before: &[Line]) -> Option<u64> {
    let (at, d) = definition(register, before)?;
    let n = d.word >> 5 & 31;
    if d.word & 0x9f00_0000 == 0x1000_0000 {
        return formed_by_adr(register, before);
    }
    if d.word & 0xffc0_0000 == 0x9100_0000 {
        let (_, page) = definition(n, &before[..at])?;
        let page = (page.word & 0x9f00_001f == 0x9000_0000 | n)
            .then(|| page.insn.field.map(|f| f.target))??;
        return Some(page.wrapping_add(u64::from(d.word >> 10 & 0xfff)));
    }
    // mov xd, xm
    if d.word & 0xffe0_ffe0 == 0xaa00_03e0 {
        return address_in(d.word >> 16 & 31, &before[..at]);
    }
    None
}

/// How many values an index can have: from `cmp index,#N` and `b.hi` (or `b.hs`), or `b.ls` (`b.lo`) where
/// that is taken.
fn bound(index: u32, before: &[Line]) -> Option<u32> {
    // Where the index comes to its place by a move, the comparison may be about what was moved.
    let mut names = vec![index];
    for (i, line) in before.iter().enumerate().rev() {
        if let Flow::CondJump { cond, target } = line.insn.flow {
            // A path may lead along a branch that is taken.
            let taken = before
                .get(i + 1)
                .is_some_and(|next| next.insn.addr == target && target != line.insn.end());
            let more = match (cond.0, taken) {
                (0x5400_0008, false) => 1, // b.hi
                (0x5400_0002, false) => 0, // b.hs
                (0x5400_0009, true) => 1,  // b.ls
                (0x5400_0003, true) => 0,  // b.lo
                _ => continue,
            };
            let compare = before[..i].iter().rev().find(|l| {
                effects(&l.word.to_le_bytes(), &l.insn)
                    .kills
                    .meets(super::NZCV)
            })?;
            let word = compare.word;
            let is_cmp = word & 0x7fc0_001f == 0x7100_001f;
            let register = word >> 5 & 31;
            return (is_cmp && names.contains(&register)).then_some((word >> 10 & 0xfff) + more);
        }
        let d = line.word & 31;
        if names.contains(&d) {
            // mov wd, wm; uxtb, uxth, and of the same.
            if line.word & 0x7fe0_ffe0 == 0x2a00_03e0 {
                names.push(line.word >> 16 & 31);
            } else if line.word & 0x7f80_0000 == 0x5300_0000
                || line.word & 0x7f80_0000 == 0x1200_0000
            {
                names.push(line.word >> 5 & 31);
            }
        }
    }
    None
}
