//! What instructions leave in registers, as far as it bounds the index of a jump table or is a table's address; and
//! jumps through tables, read and encoded again.
//!
//! | instruction | leaves |
//! |---|---|
//! | `adr`, `adrp`; `add r,r,#n` to an address | the address |
//! | `mov r,#n` | the number |
//! | `mov` between registers, `uxtb`, `uxth`; `and r,r,#ones` | a copy of the low bits |
//! | `sxtb`, `sxth`, `sxtw` | low bits with their sign |
//! | `ubfx`, `lsr`; `and r,r,#ones`; `ldrb`, `ldrh`, `ldr w`; any write of 32 bits | at most as much as fits |
//! | `cmp r,#n` | flags of a comparison |
//! | anything else | something in all registers that it may write |
//!
//! The straight code of a jump through a table is one of these, with T the table, I the index, and A a place in the
//! code; `adrp T`, `add T,T`, or `adr T`, may be in front of it:
//!
//! | compilers write | encoded again, with N the new table |
//! |---|---|
//! | `ldrb E,[T,I]`, `adr B,A`, `add D,B,E,sxtb #2`, `br D` (gcc; half-words and words alike) | `adrp S,N`, `add S,S,N`, `ldrsw L,[S,I,#2]`, `add D,S,L`, `br D` |
//! | `adr B,A`, `ldrb E,[T,I]`, `add D,B,E,lsl #2`, `br D` (clang; half-words alike, words without a shift) | the same |
//! | `ldrsw E,[T,I,lsl #2]`, `add D,T,E`, `br D` | the same |
//!
//! The new table's entries are words and count from itself, so it reaches everything, and nothing has to be near. S and
//! L are two of the registers that the old instructions overwrite, S not the index: no other register is written. What
//! is in front of the instructions goes on to form the old table's address, and may, as other code may read it.
//!
//! A label is loaded by one instruction, `ldr D,[T,I,lsl #3]`, and jumped to by another, with anything between. For a
//! table N of new code's own, which begins a page, the load becomes one of these. Entries are labels where the program
//! is at a fixed address, and else words, which count from what is in T's register:
//!
//! | T holds | labels | words |
//! |---|---|---|
//! | the old table | `adrp D,N`, `ldr D,[D,I,lsl #3]` | `adrp D,N`, `ldrsw D,[D,I,lsl #2]`, `add D,T,D` |
//! | anything; S is another register, which is dead | `adrp S,N`, `ldr D,[S,I,lsl #3]` | `adrp S,N`, `ldrsw D,[S,I,lsl #2]`, `add D,S,D` |
//! | N: what formed the old table's address, an addition or `adr`, is `adrp T,N` | `ldr D,[T,I,lsl #3]` | `ldrsw D,[T,I,lsl #2]`, `add D,T,D` |
//!
//! Where index number i is of no label, that entry of N leads to `adrp D,old+8*i`, `ldr D,[D,old+8*i]`, `br D`, which
//! go on in old code; where T holds N, the old table's address is formed in it first. Where it is not known that T
//! holds the old table's address, `adrp S,old`, `add S,S,old`, `sub S,T,S`, `cbz S` over `b` to the old load are in
//! front of a load by S.

use super::branch::{put, put_fixup};
use super::decode::adr_immediate;
use super::effects::effects;
use super::{NZCV, encode};
use crate::{
    Code, Compares, Cond, FixupKind, Insn, LabelLoad, RegSet, Sets, TableJump, TableLoad, Values,
};

fn word_of(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|word| u32::from_le_bytes(*word))
}

/// All ones in so many bits.
fn mask(bits: u32) -> u64 {
    match bits {
        0 => 0,
        bits => u64::MAX >> (64 - bits.min(64)),
    }
}

/// See [`crate::Decode::values`].
pub fn values(bytes: &[u8], insn: &Insn) -> Values {
    let Some(word) = word_of(bytes) else {
        return Values::UNKNOWN;
    };
    let e = effects(bytes, insn);
    if e.reads == RegSet::ALL {
        return Values::UNKNOWN;
    }
    let bit = |low: u32| 1u32 << (word >> low & 31);
    let mut writes = e.kills.0 as u32;
    writes |= match word >> 25 & 15 {
        // What keeps a part of its destination; of conditional compares the lowest bits are flags.
        0b1000 | 0b1001 => bit(0),
        0b0101 | 0b1101 if word & 0x1fe0_0000 != 0x1a40_0000 => bit(0),
        // Bases that are written back; exclusives and their like.
        0b0100 | 0b0110 | 0b1100 | 0b1110 => match word >> 28 & 3 {
            0 => bit(0) | bit(5) | bit(10) | bit(16),
            2 if word >> 23 & 1 == 1 => bit(5),
            3 if word >> 24 & 1 == 0 && word >> 10 & 1 == 1 => bit(5),
            _ => 0,
        },
        // Hints may sign what is in these.
        0b1010 | 0b1011 => 1 << 16 | 1 << 17 | 1 << 30,
        _ => 0,
    };
    // 31 is the stack pointer or zero: nothing is known of it.
    writes &= 0x7fff_ffff;
    Values {
        writes,
        sets: sets(word, insn, e.kills).filter(|s| writes >> s.to() & 1 != 0),
        compares: compares(word),
        keeps_flags: !e.kills.meets(NZCV) && keeps_flags(word),
        may_not_write: false,
        low: 0,
        wide: 0,
    }
}

/// Whether an instruction that is no branch writes no flag; what is not known to does.
fn keeps_flags(word: u32) -> bool {
    let sets = word >> 29 & 1 == 1;
    match word >> 25 & 15 {
        0b1000 | 0b1001 => match word >> 23 & 7 {
            2 => !sets,
            4 => word >> 29 & 3 != 3,
            _ => true,
        },
        0b0101 | 0b1101 => match (word >> 28 & 1, word >> 24 & 1) {
            (0, 0) => word >> 29 & 3 != 3,
            _ => !sets,
        },
        // Memory copies set flags.
        0b0100 | 0b0110 | 0b1100 | 0b1110 => {
            word & 0x3b00_0000 != 0x1900_0000 || word >> 10 & 3 != 1
        }
        0b0111 | 0b1111 => {
            let compares = word >> 10 & 63 == 8 || word >> 10 & 3 == 1;
            word & 0x5f20_0000 != 0x1e20_0000 || !compares
        }
        // Hints and barriers.
        0b1010 | 0b1011 => word & 0xffff_f01f == 0xd503_201f || word & 0xffff_f000 == 0xd503_3000,
        _ => false,
    }
}

fn sets(word: u32, insn: &Insn, kills: RegSet) -> Option<Sets> {
    let (to, n, m) = (
        (word & 31) as u8,
        (word >> 5 & 31) as u8,
        (word >> 16 & 31) as u8,
    );
    if to == 31 {
        return None;
    }
    let wide = word >> 31 == 1;
    let bits: u32 = if wide { 64 } else { 32 };
    let below = |bits: u32| Sets::Below {
        to,
        most: mask(bits),
    };
    let low = |of: u32| match of {
        8 | 16 | 32 if n != 31 => Sets::Copy {
            to,
            from: n,
            bits: of as u8,
        },
        of => below(of),
    };
    let is_address = matches!(
        insn.field.map(|f| f.kind),
        Some(FixupKind::Adr | FixupKind::Page)
    );
    if is_address && word & 0x1f00_0000 == 0x1000_0000 {
        let value = insn.field.map(|f| f.target)?;
        return Some(Sets::Address { to, value });
    }
    if word & 0xff80_0000 == 0x9100_0000 {
        let by = u64::from(word >> 10 & 0xfff) << (12 * (word >> 22 & 1));
        return (n != 31).then_some(Sets::Sum { to, from: n, by });
    }
    if word & 0x7fe0_ffe0 == 0x2a00_03e0 {
        return Some(match m {
            31 => Sets::Number { to, value: 0 },
            from => Sets::Copy {
                to,
                from,
                bits: bits as u8,
            },
        });
    }
    if word & 0x7f80_0000 == 0x5280_0000 {
        let value = u64::from(word >> 5 & 0xffff) << (16 * (word >> 21 & 3));
        return Some(Sets::Number {
            to,
            value: value & mask(bits),
        });
    }
    let (right, left) = (word >> 16 & 63, word >> 10 & 63);
    // and of the lowest bits
    if word & 0x7f80_0000 == 0x1200_0000 {
        let whole = if wide {
            word >> 22 & 1 == 1
        } else {
            word >> 22 & 1 == 0 && left < 32
        };
        if whole && right == 0 {
            return Some(low(left + 1));
        }
        return (!wide).then(|| below(32));
    }
    // ubfm: the bits from `right` to `left`, or a shift to the left
    if word & 0x7f80_0000 == 0x5300_0000 {
        return match (right, left) {
            (0, left) => Some(low(left + 1)),
            (right, left) if left >= right => Some(below(left - right + 1)),
            _ => (!wide).then(|| below(32)),
        };
    }
    // sxtb, sxth, sxtw into 64 bits
    if word & 0xffff_0000 == 0x9340_0000 && matches!(left, 7 | 15 | 31) && n != 31 {
        return Some(Sets::Extend {
            to,
            from: n,
            bits: (left + 1) as u8,
        });
    }
    // Loads of one register: with zeros above, or with a sign up to 32 bits.
    if word & 0x3e00_0000 == 0x3800_0000 {
        let by_register = word >> 24 & 1 == 0 && word >> 21 & 1 == 1;
        if by_register && word >> 10 & 3 != 2 {
            return None;
        }
        return match (word >> 22 & 3, word >> 30) {
            (1, size @ 0..=2) => Some(below(8 << size)),
            (3, 0 | 1) => Some(below(32)),
            _ => None,
        };
    }
    // What is calculated in 32 bits has zeros above.
    let calculates = matches!(word >> 25 & 15, 0b1000 | 0b1001 | 0b0101 | 0b1101);
    (calculates && !is_address && !wide && kills.0 >> to & 1 != 0).then(|| below(32))
}

fn compares(word: u32) -> Option<Compares> {
    // subs zr, r, #number
    let register = (word >> 5 & 31) as u8;
    if word & 0x7f80_001f != 0x7100_001f || register == 31 {
        return None;
    }
    Some(Compares {
        register,
        bits: if word >> 31 == 1 { 64 } else { 32 },
        number: u64::from(word >> 10 & 0xfff) << (12 * (word >> 22 & 1)),
    })
}

/// See [`crate::Decode::bounds`].
pub fn bounds(cond: Cond, taken: bool, compares: &Compares) -> Option<u64> {
    if cond.0 >> 24 != 0x54 {
        return None;
    }
    match (cond.0 & 15, taken) {
        // hi and ls; hs and lo; eq and ne
        (8, false) | (9, true) | (0, true) | (1, false) => Some(compares.number),
        (2, false) | (3, true) => compares.number.checked_sub(1),
        _ => None,
    }
}

/// See [`crate::Decode::jump_register`].
pub fn jump_register(bytes: &[u8]) -> Option<u8> {
    let word = word_of(bytes)?;
    let register = (word >> 5 & 31) as u8;
    (word & 0xffff_fc1f == 0xd61f_0000 && register != 31).then_some(register)
}

/// The registers of `ldr t,[base,index,…]`, whose index is scaled by 8, and how that is extended: (t, base, index,
/// extension).
fn label_load(word: u32) -> Option<(u32, u32, u32, u32)> {
    let (to, base, index) = (word & 31, word >> 5 & 31, word >> 16 & 31);
    let extension = word >> 13 & 7;
    let loads = word & 0xffe0_1c00 == 0xf860_1800 && matches!(extension, 2 | 3);
    (loads && ![to, base, index].contains(&31)).then_some((to, base, index, extension))
}

/// See [`crate::Decode::table_load`].
pub fn table_load(bytes: &[u8]) -> Option<TableLoad> {
    let (to, base, index, extension) = label_load(word_of(bytes)?)?;
    Some(TableLoad {
        to: Some(to as u8),
        base: Some(base as u8),
        index: index as u8,
        bits: if extension == 2 { 32 } else { 64 },
        width: 8,
        disp: 0,
        lead: 0,
    })
}

/// See [`crate::Encode::put_label_load`].
pub fn put_label_load<T>(
    out: &mut Code<T>,
    original: &[u8],
    how: LabelLoad,
    wide: bool,
    table: T,
) -> bool {
    let Some(word) = word_of(original) else {
        return false;
    };
    let Some((to, base, index, _)) = label_load(word) else {
        return false;
    };
    let (from, formed) = match how {
        LabelLoad::Based => (base, false),
        LabelLoad::Formed => (to, true),
        LabelLoad::Scratch(register) => (register.into(), true),
        LabelLoad::Displaced => return false,
    };
    let scratch = matches!(how, LabelLoad::Scratch(_));
    let lost = formed && from == index || scratch && from == to;
    // The sum takes both.
    if lost || from == 31 || !wide && !scratch && to == base {
        return false;
    }
    if formed {
        put_fixup(out, encode::adrp(from), FixupKind::Page, table);
    }
    let load = word & !(31 << 5) | from << 5;
    if wide {
        put(out, load);
    } else {
        // ldrsw
        put(out, load & 0x001f_ffff | 0xb8a0_0000);
        put(out, encode::add(to, if scratch { from } else { base }, to));
    }
    true
}

/// See [`crate::Encode::put_label_fallback`].
pub fn put_label_fallback<T: Copy>(
    out: &mut Code<T>,
    to: u8,
    entry: T,
    base: Option<(u8, T)>,
) -> bool {
    let to = u32::from(to);
    let bases = base.map(|b| u32::from(b.0));
    if to >= 31 || bases.is_some_and(|base| base >= 31 || base == to) {
        return false;
    }
    put(out, encode::BTI_J);
    if let Some((base, table)) = base {
        put_address(out, base.into(), table);
    }
    put_fixup(out, encode::adrp(to), FixupKind::Page, entry);
    let low = FixupKind::Low12 { scale: 3 };
    put_fixup(out, encode::ldr(to, to, 0), low, entry);
    put(out, encode::br(to));
    true
}

/// See [`crate::Encode::put_base_guard`].
pub fn put_base_guard<T: Copy>(out: &mut Code<T>, base: u8, scratch: u8, table: T, old: T) -> bool {
    let (base, scratch) = (u32::from(base), u32::from(scratch));
    if base >= 31 || scratch >= 31 || base == scratch {
        return false;
    }
    put_address(out, scratch, table);
    put(out, encode::sub(scratch, base, scratch));
    put(out, encode::cbz(scratch, 2));
    put_fixup(out, encode::B, FixupKind::Branch26, old);
    true
}

/// `adrp`, `add`: an address.
fn put_address<T: Copy>(out: &mut Code<T>, register: u32, address: T) {
    put_fixup(out, encode::adrp(register), FixupKind::Page, address);
    let low = FixupKind::Low12 { scale: 0 };
    put_fixup(out, encode::add_imm(register, register, 0), low, address);
}

/// See [`crate::Encode::put_table_base`].
pub fn put_table_base<T>(out: &mut Code<T>, original: &[u8], table: T) -> bool {
    let Some(word) = word_of(original) else {
        return false;
    };
    let adds = word & 0xff80_0000 == 0x9100_0000;
    let forms = (adds || word & 0x1f00_0000 == 0x1000_0000) && word & 31 != 31;
    if forms {
        put_fixup(out, encode::adrp(word & 31), FixupKind::Page, table);
    }
    forms
}

/// A load of an entry: `ldr{b,h,sb,sh,sw} t,[base,index,…]`, whose index is scaled by the entry's width.
struct Load {
    to: u32,
    base: u32,
    index: u32,
    /// As the instruction has it: 2 (32 bits, with zeros above) or 3 (64 bits).
    extension: u32,
    /// Power of two.
    width: u32,
    /// As the instruction has it: 1 zeros above, 2 a sign up to 64 bits, 3 a sign up to 32 bits.
    operation: u32,
}

impl Load {
    fn of(word: u32) -> Option<Load> {
        if word & 0x3f20_0c00 != 0x3820_0800 {
            return None;
        }
        let (width, operation, extension) = (word >> 30, word >> 22 & 3, word >> 13 & 7);
        let scaled = word >> 12 & 1 == 1 || width == 0;
        let known = matches!((width, operation), (0 | 1, 1..=3) | (2, 1 | 2));
        let load = Load {
            to: word & 31,
            base: word >> 5 & 31,
            index: word >> 16 & 31,
            extension,
            width,
            operation,
        };
        let named = load.to != 31 && load.base != 31 && load.index != 31;
        (known && scaled && named && matches!(extension, 2 | 3)).then_some(load)
    }

    /// Whether an addition with an extension takes the entry with its sign; `None`: it takes something else of it.
    fn signed(&self, extension: Option<u32>) -> Option<bool> {
        let of_load = self.operation != 1;
        match extension {
            None | Some(3 | 7) => (self.operation != 3).then_some(of_load),
            Some(code) if code & 3 == self.width => Some(code >= 4),
            // More bits than the entry has: zeros, or its sign.
            Some(code) if code & 3 > self.width => (code >= 4 || !of_load).then_some(of_load),
            Some(_) => None,
        }
    }
}

/// Registers of a jump that is encoded again.
struct Registers {
    /// What receives the new table's address.
    table: u32,
    /// What receives the entry.
    entry: u32,
    /// What is jumped to.
    target: u32,
    index: u32,
    extension: u32,
}

/// Reads a jump through a table backwards from the end of `words`, which are at the addresses that `at` gives. `forms`:
/// what forms the table's address in front of it belongs to it.
fn read(words: &[u32], at: impl Fn(usize) -> u64, forms: bool) -> Option<(TableJump, Registers)> {
    let [before @ .., sum, jump] = words else {
        return None;
    };
    let target = jump >> 5 & 31;
    if jump & 0xffff_fc1f != 0xd61f_0000 || target == 31 || sum & 31 != target {
        return None;
    }
    // add x, base, entry {, extension #shift}
    let (extension, shift) = match sum & 0xffe0_0000 {
        0x8b20_0000 => (Some(sum >> 13 & 7), sum >> 10 & 7),
        0x8b00_0000 => (None, sum >> 10 & 63),
        _ => return None,
    };
    let (n, m) = (sum >> 5 & 31, sum >> 16 & 31);
    if shift > 4 || n == 31 || m == 31 {
        return None;
    }
    let anchor = |k: usize| {
        let word = *before.get(k)?;
        let formed = at(k).wrapping_add_signed(adr_immediate(word));
        (word & 0x9f00_0000 == 0x1000_0000 && word & 31 != 31).then_some((word & 31, formed))
    };
    let last = before.len().checked_sub(1)?;
    let second = last.checked_sub(1);
    let adr_last = anchor(last);
    let adr_first = second.and_then(anchor);
    // Where it begins, the load, and the base that is formed here.
    let (first, load, formed) = match (adr_last, adr_first) {
        (Some(adr), _) => (second?, Load::of(before[second?])?, Some(adr)),
        (None, Some(adr)) if adr.0 == n || adr.0 == m => {
            let load = Load::of(before[last])?;
            match (load.base == adr.0, load.index == adr.0) {
                (false, false) => (second?, load, Some(adr)),
                // It forms the table's address, which entries count from.
                (true, false) => (last, load, None),
                // Its own register must not be the base by then.
                _ => return None,
            }
        }
        (None, _) => (last, Load::of(before[last])?, None),
    };
    let base = formed.map_or(load.base, |f| f.0);
    let plain = extension.is_none() && shift == 0;
    let in_order = (n, m) == (base, load.to) || plain && (m, n) == (base, load.to);
    if !in_order || base == load.to {
        return None;
    }
    let signed = load.signed(extension)?;
    let in_front = || {
        let add_at = first.checked_sub(1).filter(|_| load.index != load.base)?;
        if let Some((register, address)) = anchor(add_at) {
            return (register == load.base).then_some((1, address));
        }
        let page_at = first.checked_sub(2)?;
        let (page, add) = (before[page_at], before[add_at]);
        let own = page & 0x9f00_001f == 0x9000_0000 | load.base
            && add & 0xffc0_03ff == 0x9100_0000 | load.base << 5 | load.base;
        let page = (at(page_at) & !0xfff).wrapping_add_signed(adr_immediate(page) << 12);
        own.then(|| (2, page.wrapping_add(u64::from(add >> 10 & 0xfff))))
    };
    let front = forms.then(in_front).flatten();
    let table = front.map(|f| f.1);
    let first = first - front.map_or(0, |f| f.0);
    let mut writes = 1u32 << target | 1 << load.to;
    if let Some((base, _)) = formed {
        writes |= 1 << base;
    }
    if table.is_some() {
        writes |= 1 << load.base;
    }
    let among = |but: u32| (0..31).find(|r| writes >> r & 1 != 0 && *r != but);
    let new_table = among(load.index)?;
    let entry = among(new_table)?;
    Some((
        TableJump {
            count: (words.len() - first) as u8,
            table,
            register: load.base as u8,
            index: load.index as u8,
            bits: if load.extension == 2 { 32 } else { 64 },
            width: 1 << load.width,
            signed,
            shift: shift as u8,
            anchor: formed.map(|f| f.1),
            writes,
        },
        Registers {
            table: new_table,
            entry,
            target,
            index: load.index,
            extension: load.extension,
        },
    ))
}

/// See [`crate::Decode::table_jump`].
pub fn table_jump<'c>(
    path: &[Insn],
    code: impl Fn(&Insn) -> &'c [u8],
    forms: bool,
) -> Option<TableJump> {
    let words: Vec<u32> = path.iter().map(|i| word_of(code(i)).unwrap_or(0)).collect();
    Some(read(&words, |k| path[k].addr, forms)?.0)
}

/// See [`crate::Encode::put_table_jump`].
pub fn put_table_jump<T: Copy>(out: &mut Code<T>, original: &[u8], table: T) -> bool {
    let mut words: Vec<u32> = original
        .chunks_exact(4)
        .map(|word| word_of(word).unwrap_or(0))
        .collect();
    let Some(sum) = words.last().copied() else {
        return false;
    };
    words.push(encode::br(sum & 31));
    let all = words.len();
    // Whether the table's address is formed here is told by how many there are.
    let whole = |forms: bool| {
        let (jump, registers) = read(&words, |_| 0, forms)?;
        (usize::from(jump.count) == all).then_some(registers)
    };
    let Some(r) = whole(false).or_else(|| whole(true)) else {
        return false;
    };
    put_address(out, r.table, table);
    // ldrsw entry, [table, index, extension #2]
    let load = 0xb8a0_1800 | r.index << 16 | r.extension << 13 | r.table << 5 | r.entry;
    put(out, load);
    put(out, encode::add(r.target, r.table, r.entry));
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Decode, aarch64::AArch64};

    const ADRP_X2: u32 = 0x9000_0002;
    const ADD_X2: u32 = 0x9104_0042; // add x2, x2, #0x100
    const BR_X0: u32 = 0xd61f_0000;

    fn code(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|w| w.to_le_bytes()).collect()
    }

    fn insns(bytes: &[u8]) -> Vec<Insn> {
        let mut all = Vec::new();
        AArch64::sweep(bytes, 0x1000, |i| {
            all.push(*i);
            true
        });
        all
    }

    fn jump(words: &[u32], forms: bool) -> Option<TableJump> {
        let bytes = code(words);
        let all = insns(&bytes);
        table_jump(&all, |i| &bytes[(i.addr - 0x1000) as usize..][..4], forms)
    }

    /// ldrb w0, [x2, w0, uxtw]; adr x2, .+0x40; add x0, x2, w0, sxtb #2; br x0
    const GCC: [u32; 4] = [0x3860_4840, 0x1000_0202, 0x8b20_8840, BR_X0];
    /// adr x10, .+0x40; ldrb w11, [x9, x8]; add x10, x10, x11, lsl #2; br x10
    const CLANG: [u32; 4] = [0x1000_020a, 0x3868_692b, 0x8b0b_094a, 0xd61f_0140];
    /// ldrsw x11, [x9, x8, lsl #2]; add x9, x9, x11; br x9
    const WORDS: [u32; 3] = [0xb8a8_792b, 0x8b0b_0129, 0xd61f_0120];

    #[test]
    fn what_gcc_and_clang_write_is_read() {
        let j = jump(&GCC, true).expect("gcc's");
        assert_eq!((j.count, j.table, j.register, j.index), (4, None, 2, 0));
        assert_eq!((j.bits, j.width, j.signed, j.shift), (32, 1, true, 2));
        assert_eq!((j.anchor, j.writes), (Some(0x1044), 0b101));
        let j = jump(&CLANG, true).expect("clang's");
        assert_eq!((j.count, j.register, j.index, j.bits), (4, 9, 8, 64));
        assert_eq!((j.signed, j.anchor), (false, Some(0x1040)));
        assert_eq!(j.writes, 1 << 10 | 1 << 11);
        let j = jump(&WORDS, true).expect("words");
        assert_eq!((j.count, j.anchor, j.width), (3, None, 4));
        assert!(j.signed);
    }

    #[test]
    fn what_forms_the_tables_address_in_front_belongs_to_it() {
        let words = [&[ADRP_X2, ADD_X2][..], &GCC].concat();
        let j = jump(&words, true).expect("with it");
        assert_eq!((j.count, j.table), (6, Some(0x1100)));
        let j = jump(&words, false).expect("without");
        assert_eq!((j.count, j.table), (4, None));
        // One `adr`, which words count from: adr x9, .+0x100; ldrsw x11, [x9, x8, lsl #2]; add x9, x9, x11; br x9
        let words = [&[0x1000_0809][..], &WORDS].concat();
        let j = jump(&words, true).expect("with it");
        assert_eq!((j.count, j.table, j.anchor), (4, Some(0x1100), None));
        let j = jump(&words, false).expect("without");
        assert_eq!((j.count, j.table, j.register), (3, None, 9));
        // adr x9, .+0x100 in front of clang's, whose entries count from a place in the code
        let words = [&[0x1000_0809][..], &CLANG].concat();
        let j = jump(&words, true).expect("with it");
        assert_eq!(
            (j.count, j.table, j.anchor),
            (5, Some(0x1100), Some(0x1044))
        );
        // Another register: not the table's.
        let words = [&[0x9000_0003, 0x9104_0063][..], &GCC].concat();
        assert_eq!(jump(&words, true).map(|j| j.table), Some(None));
    }

    #[test]
    fn what_is_loaded_by_a_register_that_was_overwritten_is_not_taken() {
        // The base is formed in the index's register in front of the load.
        let words = [0x1000_0208, 0x3868_692b, 0x8b0b_0908, 0xd61f_0100];
        assert_eq!(jump(&words, true), None);
        // The sum takes half of what was loaded: uxtb of a half-word.
        let words = [0x7860_5840, 0x1000_0202, 0x8b20_0840, BR_X0];
        assert_eq!(jump(&words, true), None);
        // ldrsb w into 32 bits, added with 64.
        let words = [0x1000_020a, 0x38e8_692b, 0x8b0b_094a, 0xd61f_0140];
        assert_eq!(jump(&words, true), None);
    }

    #[test]
    fn a_jump_is_encoded_again_with_registers_that_it_overwrites() {
        for (words, index) in [(&GCC[..], 0), (&CLANG, 8), (&WORDS, 8)] {
            let bytes = code(&words[..words.len() - 1]);
            let mut out: Code<()> = Code::default();
            assert!(put_table_jump(&mut out, &bytes, ()));
            let new: Vec<u32> = out.bytes.chunks_exact(4).filter_map(word_of).collect();
            let [page, add, load, sum] = new[..] else {
                panic!("{new:x?}")
            };
            let table = page & 31;
            assert_eq!(page, 0x9000_0000 | table);
            assert_eq!(add, 0x9100_0000 | table << 5 | table);
            assert_eq!(load >> 16 & 31, index);
            assert_eq!(load >> 5 & 31, table);
            assert_ne!(table, index);
            let writes = jump(words, false).expect("read").writes;
            for register in [table, load & 31, sum & 31] {
                assert!(writes >> register & 1 != 0, "{words:x?}: x{register}");
            }
        }
    }

    #[test]
    fn loads_of_labels_are_read_and_written() {
        // ldr x2, [x21, x0, lsl #3]; ldr x8, [x26, w10, uxtw #3]; ldr x0, [x28, x0, lsl #3]
        let (gcc, clang, over) = (0xf860_7aa2u32, 0xf86a_5b48u32, 0xf860_7b80u32);
        let read = |word: u32| {
            table_load(&word.to_le_bytes()).map(|l| (l.to, l.base, l.index, l.bits, l.width))
        };
        assert_eq!(read(gcc), Some((Some(2), Some(21), 0, 64, 8)));
        assert_eq!(read(clang), Some((Some(8), Some(26), 10, 32, 8)));
        assert_eq!(read(over), Some((Some(0), Some(28), 0, 64, 8)));
        // Not scaled; with a sign; of a word; stored; from the stack.
        for word in [
            0xf860_6aa2u32,
            0xf860_daa2,
            0xb860_7aa2,
            0xf820_7aa2,
            0xf860_7be2,
        ] {
            assert_eq!(read(word), None, "{word:x}");
        }
        let written = |word: u32, how, wide| {
            let mut out: Code<()> = Code::default();
            let fits = put_label_load(&mut out, &word.to_le_bytes(), how, wide, ());
            let words: Vec<u32> = out.bytes.chunks_exact(4).filter_map(word_of).collect();
            fits.then_some(words)
        };
        let words = |list: &[u32]| Some(list.to_vec());
        let (formed, based) = (LabelLoad::Formed, LabelLoad::Based);
        assert_eq!(
            written(gcc, formed, true),
            words(&[0x9000_0002, 0xf860_7842])
        );
        // adrp x2; ldrsw x2, [x2, x0, lsl #2]; add x2, x21, x2
        let narrow = [0x9000_0002, 0xb8a0_7842, 0x8b02_02a2];
        assert_eq!(written(gcc, formed, false), words(&narrow));
        assert_eq!(written(gcc, based, true), words(&[gcc]));
        assert_eq!(
            written(clang, based, false),
            words(&[0xb8aa_5b48, 0x8b08_0348])
        );
        assert_eq!(written(over, formed, true), None);
        assert_eq!(
            written(over, based, false),
            words(&[0xb8a0_7b80, 0x8b00_0380])
        );
        // ldr x3, [x3, x2, lsl #3] has nothing left to add to.
        assert_eq!(written(0xf862_7863, based, false), None);
        // Another register forms the table's address: adrp x16; then the entry counts from that.
        let scratch = LabelLoad::Scratch(16);
        assert_eq!(
            written(over, scratch, true),
            words(&[0x9000_0010, 0xf860_7a00])
        );
        let narrow = [0x9000_0010, 0xb8a0_7a00, 0x8b00_0200];
        assert_eq!(written(over, scratch, false), words(&narrow));
        assert!(written(0xf862_7863, scratch, false).is_some());
        // The index, or the label, is in it.
        assert_eq!(written(0xf870_7aa2, scratch, true), None);
        assert_eq!(written(0xf862_7870, scratch, true), None);
    }

    #[test]
    fn addresses_of_other_tables_are_formed_by_one_instruction() {
        // add x0, x19, #0x20; adr x26, .+4
        for (word, register) in [(0x9100_8260u32, 0), (0x1000_003a, 26)] {
            let mut out: Code<()> = Code::default();
            assert!(put_table_base(&mut out, &word.to_le_bytes(), ()));
            assert_eq!(out.bytes, (0x9000_0000u32 | register).to_le_bytes());
        }
        let mut out: Code<()> = Code::default();
        assert!(!put_table_base(&mut out, &0xf860_7aa2u32.to_le_bytes(), ()));
    }

    #[test]
    fn fallbacks_and_guards_of_bases_are_written() {
        let new = |out: &Code<()>| -> Vec<u32> {
            out.bytes.chunks_exact(4).filter_map(word_of).collect()
        };
        let mut out: Code<()> = Code::default();
        assert!(put_label_fallback(&mut out, 2, (), Some((21, ()))));
        // bti j; adrp x21; add x21, x21; adrp x2; ldr x2, [x2]; br x2
        let all = [
            0xd503_249f,
            0x9000_0015,
            0x9100_02b5,
            0x9000_0002,
            0xf940_0042,
            0xd61f_0040,
        ];
        assert_eq!(new(&out), all);
        assert_eq!(out.fixups.len(), 4);
        let mut out: Code<()> = Code::default();
        assert!(!put_label_fallback(&mut out, 2, (), Some((2, ()))));
        assert!(put_base_guard(&mut out, 0, 16, (), ()));
        // adrp x16; add x16, x16; sub x16, x0, x16; cbz x16, .+8; b
        let all = [
            0x9000_0010,
            0x9100_0210,
            0xcb10_0010,
            0xb400_0050,
            0x1400_0000,
        ];
        assert_eq!(new(&out), all);
        assert!(!put_base_guard(&mut out, 16, 16, (), ()));
    }

    #[test]
    fn values_are_those_of_the_manual() {
        let of = |word: u32| {
            let bytes = word.to_le_bytes();
            let insn = AArch64::decode(&bytes, 0x1000).expect("an instruction");
            values(&bytes, &insn)
        };
        let number = |number, register, bits| {
            Some(Compares {
                register,
                bits,
                number,
            })
        };
        // cmp w2, #0x13; cmp x0, #0x27; cmp w1, #1, lsl #12
        assert_eq!(of(0x7100_4c5f).compares, number(0x13, 2, 32));
        assert_eq!(of(0xf100_9c1f).compares, number(0x27, 0, 64));
        assert_eq!(of(0x7140_043f).compares, number(0x1000, 1, 32));
        // add x2, x2, #0x100; mov w8, w0; and w8, w0, #0xf; ubfx x1, x0, #3, #5; ldrb w1, [x2]
        let sum = Sets::Sum {
            to: 2,
            from: 2,
            by: 0x100,
        };
        assert_eq!(of(ADD_X2).sets, Some(sum));
        let copy = Sets::Copy {
            to: 8,
            from: 0,
            bits: 32,
        };
        assert_eq!(of(0x2a00_03e8).sets, Some(copy));
        let below = |to, most| Some(Sets::Below { to, most });
        assert_eq!(of(0x1200_0c08).sets, below(8, 15));
        assert_eq!(of(0xd343_1c01).sets, below(1, 31));
        assert_eq!(of(0x3940_0041).sets, below(1, 0xff));
        // ldrsb x1, [x2] has a sign; madd x1 says nothing; sub w1, w2, #1 fits 32 bits.
        assert_eq!(of(0x3980_0041).sets, None);
        assert_eq!(of(0x9b02_0c21).sets, None);
        assert_eq!(of(0x5100_0441).sets, below(1, 0xffff_ffff));
        // Flags: subs, ands, ccmp, fcmp write them; add, ldr, and csel do not.
        for word in [
            0x7100_0441,
            0xf240_0c01,
            0xfa42_0020,
            0x1e62_2020,
            0xd51b_4200,
        ] {
            assert!(!of(word).keeps_flags, "{word:#x}");
        }
        for word in [ADD_X2, 0x3940_0041, 0x9a82_0020, 0xd503_201f] {
            assert!(of(word).keeps_flags, "{word:#x}");
        }
        // ldr x0, [x1], #8 writes both; movk keeps a part; stp x0, x1, [sp, #-16]! writes neither.
        assert_eq!(of(0xf840_8420).writes, 0b11);
        assert_eq!(of(0xf2a0_0020).writes, 1);
        assert_eq!(of(0xa9bf_07e0).writes, 0);
    }

    #[test]
    fn branches_bound_what_was_compared() {
        let compares = Compares {
            register: 0,
            bits: 32,
            number: 8,
        };
        let of = |cond: u32, taken| bounds(Cond(0x5400_0000 | cond), taken, &compares);
        assert_eq!([of(8, false), of(9, true)], [Some(8); 2]);
        assert_eq!([of(2, false), of(3, true)], [Some(7); 2]);
        assert_eq!([of(8, true), of(12, false), of(11, true)], [None; 3]);
        // cbz looks at no flag.
        assert_eq!(bounds(Cond(0x3400_0000), false, &compares), None);
    }
}
