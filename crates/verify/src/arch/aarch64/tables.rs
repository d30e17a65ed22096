//! What instructions leave in registers, as far as it bounds the index of a jump table or is an address; and jumps
//! through tables as compilers write them, and as new code has them for tables of its own.
//!
//! What is not in this table leaves anything in each register that it may write.
//!
//! | instruction | leaves |
//! |---|---|
//! | `adr`, `adrp` | an address |
//! | `add x, x, #number` | what is in the other register, and the number |
//! | `movz`; `mov` of the zero register | a number |
//! | `mov` of a register; `ubfm` and `and` that keep the low 8, 16 or 32 bits | those |
//! | `sbfm` that extends 8, 16 or 32 bits to 64 | those, with their sign |
//! | other `ubfm` to the right and `and` of the lowest bits; loads of fewer than 64 bits without a sign | at most what fits |
//! | other calculations of 32 bits | at most what fits |
//!
//! Both kinds of jumps are read from their first instruction on. In the input, T being the table's register, I the
//! index, E the entry, B the base and D the target:
//!
//! ```text
//! [adrp T, page; add T, T, #low]     or     [adr T, table]
//! ldr{b,h,sb,sh,,sw} E, [T, I]; adr B, base     or     adr B, base; ldr… E, [T, I]     or     ldr… E, [T, I] (B is T)
//! add D, B, E {, extension #shift}
//! br D
//! ```
//!
//! Labels are loaded by `ldr D, [T, I, #3]` alone; in the output, for a table that begins a page, by
//!
//! ```text
//! adrp D, page; ldr D, [D, I, #3]
//! adrp D, page; ldrsw D, [D, I, #2]; add D, T, D
//! ldrsw D, [T, I, #2]; add D, T, D
//! adrp S, page; ldr D, [S, I, #3]
//! adrp S, page; ldrsw D, [S, I, #2]; add D, S, D
//! ```
//!
//! An entry that is no label leads to `[adrp T, page; add T, T, #low;] adrp D, page; ldr D, [D, #low]; br D`, and a
//! guard of a table's address is `adrp S, page; add S, S, #low; sub S, T, S; cbz S, over the next; b old`.
//!
//! Jumps through tables of distances are in the output `adrp S, page; add S, S, #low; ldrsw L, [S, I, #2]; add D, S, L;
//! br D`, for a table of words that count from it.

use super::{AArch64, registers, target, word};
use crate::arch::{
    Arch, BaseGuard, LabelFallback, LabelLoad, Leaves, Left, OwnTableJump, TableJump, TableLoad,
};

fn ones(bits: u32) -> u64 {
    if bits >= 64 {
        u64::MAX
    } else {
        (1 << bits) - 1
    }
}

/// `width` bits from `low`.
fn field(w: u32, low: u32, width: u32) -> u32 {
    w >> low & ((1 << width) - 1)
}

/// See [`Arch::leaves`].
pub(super) fn leaves(bytes: &[u8], addr: u64) -> Leaves {
    let Some(w) = word(bytes) else {
        return Leaves::UNKNOWN;
    };
    let Some(touched) = registers::touched(w) else {
        return Leaves::UNKNOWN;
    };
    let left = left(w, addr, touched.kills);
    Leaves {
        writes: touched.writes,
        left: left.filter(|(to, _)| touched.kills >> to & 1 != 0),
        compares: compares(w),
        keeps_flags: !may_write_flags(w),
        low: 0,
        wide: u32::MAX,
    }
}

/// Whether an instruction may write a flag. Whatever is not known not to may.
fn may_write_flags(w: u32) -> bool {
    let s = field(w, 29, 1) == 1;
    match field(w, 25, 4) {
        // Immediate operands: adds, subs; ands.
        0b1000 | 0b1001 => match field(w, 23, 3) {
            2 => s,
            4 => field(w, 29, 2) == 3,
            _ => false,
        },
        // Registers: ands, bics; all others with the bit S, conditional compares and `rmif` among them.
        0b0101 | 0b1101 => {
            let logical = field(w, 24, 5) == 0b01010;
            if logical { field(w, 29, 2) == 3 } else { s }
        }
        // Loads and stores, but for copies of memory.
        0b0100 | 0b0110 | 0b1100 | 0b1110 => w & 0x3b00_0c00 == 0x1900_0400,
        // Comparisons of floating-point numbers.
        0b0111 | 0b1111 => {
            let scalar = w & 0x5f20_0000 == 0x1e20_0000;
            scalar && (field(w, 10, 6) == 0b00_1000 || field(w, 10, 2) == 0b01)
        }
        // Branches, hints and barriers; not what reads system registers: a random number says by flags if it is one.
        0b1010 | 0b1011 => {
            let branch = field(w, 26, 5) == 5 || w >> 24 == 0x54 || w & 0x7c00_0000 == 0x3400_0000;
            let hint = w & 0xffff_f01f == 0xd503_201f;
            let barrier = w & 0xffff_f01f == 0xd503_301f;
            !branch && !hint && !barrier
        }
        _ => true,
    }
}

fn compares(w: u32) -> Option<(u8, u8, u64)> {
    let register = field(w, 5, 5) as u8;
    if w & 0x7f80_001f != 0x7100_001f || register == AArch64::STACK {
        return None;
    }
    let number = u64::from(field(w, 10, 12)) << (12 * field(w, 22, 1));
    Some((register, if w >> 31 == 1 { 64 } else { 32 }, number))
}

fn left(w: u32, addr: u64, kills: u32) -> Option<(u8, Left)> {
    let (to, from) = (field(w, 0, 5) as u8, field(w, 5, 5) as u8);
    if to == AArch64::STACK {
        return None;
    }
    let half = w >> 31 == 0;
    let fits = |bits: u32| Some((to, Left::AtMost(ones(bits))));
    let kept = |bits: u32| match bits {
        8 | 16 | 32 if from != AArch64::STACK => Some((
            to,
            Left::Low {
                from,
                bits: bits as u8,
            },
        )),
        bits => fits(bits),
    };
    if w & 0x1f00_0000 == 0x1000_0000 {
        return Some((to, Left::Address(target(w, addr))));
    }
    if w & 0xff80_0000 == 0x9100_0000 {
        let number = u64::from(field(w, 10, 12)) << (12 * field(w, 22, 1));
        return (from != AArch64::STACK).then_some((to, Left::Plus { from, number }));
    }
    // mov
    if w & 0x7fe0_ffe0 == 0x2a00_03e0 {
        let from = field(w, 16, 5) as u8;
        return Some(if from == AArch64::STACK {
            (to, Left::Number(0))
        } else {
            let bits = if half { 32 } else { 64 };
            (to, Left::Low { from, bits })
        });
    }
    // movz
    if w & 0x7f80_0000 == 0x5280_0000 {
        let number = u64::from(field(w, 5, 16)) << (16 * field(w, 21, 2));
        return Some((to, Left::Number(number & ones(if half { 32 } else { 64 }))));
    }
    let (r, s) = (field(w, 16, 6), field(w, 10, 6));
    match w & 0x7f80_0000 {
        // and: one run of ones from the lowest bit on, in an element of all bits
        0x1200_0000 => {
            let whole = field(w, 22, 1) == u32::from(!half) && (!half || s < 32);
            return match (whole, r, half) {
                (true, 0, _) => kept(s + 1),
                (_, _, true) => fits(32),
                _ => None,
            };
        }
        // ubfm
        0x5300_0000 => {
            return match (r, half) {
                (0, _) => kept(s + 1),
                (r, _) if r <= s => fits(s - r + 1),
                (_, true) => fits(32),
                _ => None,
            };
        }
        _ => {}
    }
    // sbfm
    if w & 0xffff_0000 == 0x9340_0000 && matches!(s, 7 | 15 | 31) && from != AArch64::STACK {
        let bits = (s + 1) as u8;
        return Some((to, Left::Signed { from, bits }));
    }
    // One register, loaded.
    if w & 0x3e00_0000 == 0x3800_0000 {
        // By an index, if not with an offset; the others of that class are atomic.
        let indexed = field(w, 24, 1) == 0 && field(w, 21, 1) == 1;
        return match (field(w, 30, 2), field(w, 22, 2)) {
            _ if indexed && field(w, 10, 2) != 2 => None,
            (size @ 0..=2, 1) => fits(8 << size),
            (0 | 1, 3) => fits(32),
            _ => None,
        };
    }
    let calculates = matches!(field(w, 25, 4), 0b1000 | 0b1001 | 0b0101 | 0b1101);
    if calculates && half && kills >> to & 1 != 0 {
        return fits(32);
    }
    None
}

/// See [`Arch::most_if`].
pub(super) fn most_if(cond: u16, taken: bool, number: u64) -> Option<u64> {
    // Both kinds of conditional branches that look at flags.
    match (cond, taken) {
        (8 | 24, false) | (9 | 25, true) => Some(number),
        (2 | 18, false) | (3 | 19, true) => number.checked_sub(1),
        (0 | 16, true) | (1 | 17, false) => Some(number),
        _ => None,
    }
}

/// `adrp r, page; add r, r, #low`: the register and the address.
pub(super) fn formed(bytes: &[u8], addr: u64) -> Option<(u32, u64)> {
    let (page, add) = (word(bytes)?, word(bytes.get(4..)?)?);
    let register = page & 31;
    let alike = page & 0x9f00_0000 == 0x9000_0000
        && add & 0xffc0_03ff == 0x9100_0000 | register << 5 | register;
    let low = u64::from(field(add, 10, 12));
    (alike && register != 31).then(|| (register, target(page, addr).wrapping_add(low)))
}

/// A load of one register by a base and an index that is scaled by its width: base, index and its extension, register.
fn indexed(w: u32) -> Option<(u32, (u8, u8), u32)> {
    let (size, scaled) = (field(w, 30, 2), field(w, 12, 1) == 1);
    let extension = field(w, 13, 3) as u8;
    let (base, index, to) = (field(w, 5, 5), field(w, 16, 5), field(w, 0, 5));
    let loads = w & 0x3f20_0c00 == 0x3820_0800 && (scaled || size == 0);
    let named = ![base, index, to].contains(&31) && matches!(extension, 2 | 3);
    (loads && named).then_some((base, (index as u8, extension), to))
}

/// How many low bits of an index count, by its extension.
fn index_bits(extension: u8) -> u8 {
    if extension == 2 { 32 } else { 64 }
}

/// Whether an entry counts with its sign: by how it is loaded, and how it is added.
fn signed(load: u32, sum: u32) -> Option<bool> {
    let width = field(load, 30, 2);
    let by_load = match (field(load, 22, 2), width) {
        (1, 0..=2) => Some(false),
        (2, 0..=2) => Some(true),
        // In 32 bits: what is added has to take those with their sign.
        (3, 0 | 1) => None,
        _ => return None,
    };
    let extension = if field(sum, 21, 1) == 1 {
        field(sum, 13, 3)
    } else {
        3
    };
    let (takes, with_sign) = (extension & 3, extension >= 4);
    if takes == width && takes != 3 {
        return Some(with_sign);
    }
    match (takes, with_sign, by_load) {
        // All 64 bits.
        (3, _, by_load) => by_load,
        (takes, _, _) if takes < width => None,
        // More bits than were loaded, and no more than hold its sign.
        (_, _, Some(false)) => Some(false),
        (_, true, _) => Some(true),
        _ => None,
    }
}

/// See [`Arch::table_jump`].
pub(super) fn table_jump(bytes: &[u8], addr: u64) -> Option<TableJump> {
    let one = |k: usize| {
        let w = bytes.get(k..).and_then(word);
        let w = w.filter(|w| w & 0x9f00_0000 == 0x1000_0000 && w & 31 != 31)?;
        Some((w & 31, target(w, addr.wrapping_add(k as u64))))
    };
    // One `adr` forms the table's address if a load takes it as that.
    let taken = |k: usize| {
        let loads = |k: usize| bytes.get(k..).and_then(word).and_then(indexed);
        let load = loads(k).or_else(|| one(k).and_then(|_| loads(k + 4)));
        load.map(|load| load.0)
    };
    let by_one = one(0).filter(|(register, _)| taken(4) == Some(*register));
    let front = formed(bytes, addr).or(by_one);
    let skip = match front {
        Some(_) if by_one.is_some() => 4,
        Some(_) => 8,
        None => 0,
    };
    let at = |k: usize| bytes.get(skip + 4 * k..).and_then(word);
    let adr = |k: usize| one(skip + 4 * k);
    let (load, base, behind) = match (adr(0), adr(1)) {
        (Some(base), _) => (at(1)?, Some((base, true)), 2),
        (None, Some(base)) => (at(0)?, Some((base, false)), 2),
        (None, None) => (at(0)?, None, 1),
    };
    let (table, index, entry) = indexed(load)?;
    if let Some(((register, _), first)) = base {
        let lost = first && [table, u32::from(index.0)].contains(&register);
        if lost || register == entry {
            return None;
        }
    }
    let added_to = base.map_or(table, |((register, _), _)| register);
    // Loaded over what it is added to, that would be lost.
    if entry == added_to {
        return None;
    }
    let (sum, jump) = (at(behind)?, at(behind + 1)?);
    let extended = sum & 0xffe0_0000 == 0x8b20_0000;
    let shift = match (extended, sum & 0xffe0_0000) {
        (true, _) => field(sum, 10, 3),
        (false, 0x8b00_0000) => field(sum, 10, 6),
        _ => return None,
    };
    let (dest, n, m) = (field(sum, 0, 5), field(sum, 5, 5), field(sum, 16, 5));
    let either_way = !extended && shift == 0;
    let adds = (n, m) == (added_to, entry) || either_way && (m, n) == (added_to, entry);
    let jumps = jump & 0xffff_fc1f == 0xd61f_0000 && field(jump, 5, 5) == dest && dest != 31;
    if !adds || !jumps || shift > 4 {
        return None;
    }
    let own = match front {
        // Of another register, or one that the index is in: that is no part of it.
        Some((register, formed)) if register == table && register != u32::from(index.0) => {
            Some(formed)
        }
        Some(_) => return None,
        None => None,
    };
    let mut writes = 1u32 << dest | 1 << entry;
    writes |= base.map_or(0, |((register, _), _)| 1 << register);
    writes |= own.map_or(0, |_| 1 << table);
    Some(TableJump {
        len: (skip + 4 * behind + 8) as u64,
        table: own,
        register: table as u8,
        index,
        bits: index_bits(index.1),
        width: 1 << field(load, 30, 2),
        signed: signed(load, sum)?,
        shift: shift as u8,
        base: base.map(|((_, base), _)| base),
        dest: dest as u8,
        writes,
    })
}

/// See [`Arch::own_table_jump`].
pub(super) fn own_table_jump(bytes: &[u8], addr: u64) -> Option<OwnTableJump> {
    let (register, table) = formed(bytes, addr)?;
    let at = |k: usize| bytes.get(4 * k..).and_then(word);
    let (load, sum, jump) = (at(2)?, at(3)?, at(4)?);
    let (base, index, entry) = indexed(load)?;
    // ldrsw; and its table, which the index is not in, is still there for the sum.
    let loads = load & 0xffe0_1c00 == 0xb8a0_1800
        && base == register
        && u32::from(index.0) != register
        && entry != register;
    let dest = field(sum, 0, 5);
    let adds = sum & 0xffff_ffe0 == 0x8b00_0000 | entry << 16 | register << 5;
    let jumps = jump == 0xd61f_0000 | dest << 5 && dest != 31;
    (loads && adds && jumps).then_some(OwnTableJump {
        len: 20,
        table,
        index,
        dest: dest as u8,
        writes: 1 << register | 1 << entry | 1 << dest,
    })
}

/// See [`Arch::table_load`].
pub(super) fn table_load(bytes: &[u8]) -> Option<TableLoad> {
    let load = word(bytes)?;
    let (base, index, to) = indexed(load)?;
    // 64 bits
    (load & 0xffe0_0000 == 0xf860_0000).then_some(TableLoad {
        to: Some(to as u8),
        base: Some(base as u8),
        index: index.0,
        bits: index_bits(index.1),
        wide: true,
        disp: 0,
        marks: index.1,
    })
}

/// See [`Arch::label_load`].
pub(super) fn label_load(bytes: &[u8], addr: u64) -> Option<LabelLoad> {
    let first = word(bytes)?;
    let pages = first & 0x9f00_0000 == 0x9000_0000;
    let page = pages.then(|| (first & 31, target(first, addr)));
    let at = |k: usize| bytes.get(4 * (k + usize::from(pages))..).and_then(word);
    let load = at(0)?;
    let (from, index, to) = indexed(load)?;
    // What holds the page is not the index.
    if page.is_some_and(|(register, _)| register != from || from == u32::from(index.0)) {
        return None;
    }
    let scratch = (pages && from != to).then_some(from);
    let (wide, base) = match load & 0xffe0_0000 {
        0xf860_0000 if pages => (true, None),
        // ldrsw, and its sum with a register that is not the loaded one
        0xb8a0_0000 => {
            let sum = at(1)?;
            let base = field(sum, 5, 5);
            let adds = sum == 0x8b00_0000 | to << 16 | base << 5 | to;
            // Where the load has a register for the page, or the base, that is what is added.
            let other = scratch.or((!pages).then_some(from));
            if !adds || base == to || base == 31 || other.is_some_and(|other| base != other) {
                return None;
            }
            (false, Some(base as u8).filter(|_| scratch.is_none()))
        }
        _ => return None,
    };
    Some(LabelLoad {
        len: 4 * (u64::from(pages) + 1 + u64::from(!wide)),
        table: page.map(|p| p.1),
        distance: None,
        base,
        index,
        to: to as u8,
        scratch: scratch.map(|register| register as u8),
        wide,
    })
}

/// See [`Arch::label_fallback`].
pub(super) fn label_fallback(bytes: &[u8], addr: u64) -> Option<LabelFallback> {
    // bti j
    if word(bytes)? != 0xd503_249f {
        return None;
    }
    let (bytes, addr) = (bytes.get(4..)?, addr.wrapping_add(4));
    let base = formed(bytes, addr);
    let skip = if base.is_some() { 8 } else { 0 };
    let at = |k: usize| bytes.get(skip + 4 * k..).and_then(word);
    let (page, load, jump) = (at(0)?, at(1)?, at(2)?);
    let to = page & 31;
    // ldr of 64 bits with an offset
    let loads = page & 0x9f00_0000 == 0x9000_0000
        && load & 0xffc0_03ff == 0xf940_0000 | to << 5 | to
        && jump == 0xd61f_0000 | to << 5
        && to != 31
        && base.is_none_or(|(register, _)| register != to);
    let page = target(page, addr.wrapping_add(skip as u64));
    loads.then(|| LabelFallback {
        len: skip as u64 + 16,
        entry: page.wrapping_add(8 * u64::from(field(load, 10, 12))),
        to: to as u8,
        base: base.map(|(register, address)| (register as u8, address)),
    })
}

/// See [`Arch::base_guard`].
pub(super) fn base_guard(bytes: &[u8], addr: u64) -> Option<BaseGuard> {
    let (scratch, address) = formed(bytes, addr)?;
    let at = |k: usize| bytes.get(4 * k..).and_then(word);
    let (difference, branch, jump) = (at(2)?, at(3)?, at(4)?);
    let register = field(difference, 5, 5);
    // sub s, r, s; cbz s, over the jump; b
    let compares = difference == 0xcb00_0000 | scratch << 16 | register << 5 | scratch
        && ![31, scratch].contains(&register)
        && branch == 0xb400_0040 | scratch
        && jump >> 26 == 5;
    compares.then(|| BaseGuard {
        register: register as u8,
        address,
        old: target(jump, addr.wrapping_add(16)),
        scratch: scratch as u8,
        len: 20,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|w| w.to_le_bytes()).collect()
    }

    fn jump(words: &[u32]) -> Option<TableJump> {
        table_jump(&code(words), 0x1000)
    }

    #[test]
    fn jumps_of_compilers_are_read() {
        // ldrb w0, [x2, w0, uxtw]; adr x2, .+0x40; add x0, x2, w0, sxtb #2; br x0
        let gcc = [0x3860_4840, 0x1000_0202, 0x8b20_8840, 0xd61f_0000];
        let j = jump(&gcc).expect("gcc's");
        assert_eq!((j.len, j.table, j.register, j.index), (16, None, 2, (0, 2)));
        assert_eq!((j.bits, j.width, j.signed, j.shift), (32, 1, true, 2));
        assert_eq!((j.base, j.dest, j.writes), (Some(0x1044), 0, 0b101));
        assert_eq!(j.target(0x2000, 0xff), 0x1ffc);
        // With the table's address in front: adrp x2, 0x1000; add x2, x2, #0x100
        let front = [&[0x9000_0002, 0x9104_0042][..], &gcc].concat();
        let j = jump(&front).expect("with the address");
        assert_eq!((j.len, j.table, j.base), (24, Some(0x1100), Some(0x104c)));
        // That of another table is no part of it.
        let other = [&[0x9000_0003, 0x9104_0063][..], &gcc].concat();
        assert_eq!(jump(&other), None);
        // adr x10, .+0x40; ldrb w11, [x9, x8]; add x10, x10, x11, lsl #2; br x10
        let clang = [0x1000_020a, 0x3868_692b, 0x8b0b_094a, 0xd61f_0140];
        let j = jump(&clang).expect("clang's");
        assert_eq!((j.register, j.index, j.bits), (9, (8, 3), 64));
        assert_eq!((j.signed, j.base), (false, Some(0x1040)));
        assert_eq!(j.target(0x2000, 0xff), 0x23fc);
        // ldrsw x11, [x9, x8, lsl #2]; add x9, x9, x11; br x9
        let words = [0xb8a8_792b, 0x8b0b_0129, 0xd61f_0120];
        let j = jump(&words).expect("words");
        assert_eq!((j.base, j.width, j.signed, j.len), (None, 4, true, 12));
        assert_eq!(j.target(0x2000, 0xffff_fff0), 0x1ff0);
    }

    #[test]
    fn what_reads_another_register_or_a_part_is_not() {
        let no: &[&[u32]] = &[
            // The base is formed in the index's register in front of the load.
            &[0x1000_0208, 0x3868_692b, 0x8b0b_0908, 0xd61f_0100],
            // The base is loaded over.
            &[0x1000_020b, 0x3868_692b, 0x8b0b_096b, 0xd61f_0160],
            // uxtb of a half-word; a sign up to 32 bits, of which 64 are added.
            &[0x7860_5840, 0x1000_0202, 0x8b20_0840, 0xd61f_0000],
            &[0x1000_020a, 0x38e8_692b, 0x8b0b_094a, 0xd61f_0140],
            // Another register is jumped to; the index of half-words is not scaled.
            &[0x3860_4840, 0x1000_0202, 0x8b20_8840, 0xd61f_0020],
            &[0x7860_4840, 0x1000_0202, 0x8b20_a840, 0xd61f_0000],
        ];
        for words in no {
            assert_eq!(jump(words), None, "{words:x?}");
        }
    }

    #[test]
    fn jumps_of_new_code_are_read_whole() {
        // adrp x2, 0x1000; add x2, x2, #0x100; ldrsw x0, [x2, w0, uxtw #2]; add x0, x2, x0; br x0
        let words = [
            0x9000_0002,
            0x9104_0042,
            0xb8a0_5840,
            0x8b00_0040,
            0xd61f_0000,
        ];
        let read = |words: &[u32]| own_table_jump(&code(words), 0x1000);
        let j = read(&words).expect("it is one");
        assert_eq!(
            (j.table, j.index, j.dest, j.writes),
            (0x1100, (0, 2), 0, 0b101)
        );
        let but = |k: usize, word: u32| {
            let mut words = words;
            words[k] = word;
            read(&words)
        };
        // Another register for the address, its second half in another; a word without its sign, a half-word with it,
        // an index that is not scaled; the index in the table's register; a shifted sum; another jump.
        for (k, word) in [
            (0, 0x9000_0003),
            (1, 0x9104_0062),
            (2, 0xb860_5840),
            (2, 0x78a0_5840),
            (2, 0xb8a0_4840),
            (2, 0xb8a2_5840),
            (2, 0xb8a0_5842),
            (3, 0x8b00_0440),
            (3, 0x8b02_0000),
            (4, 0xd61f_0040),
            (4, 0xd63f_0000),
        ] {
            assert_eq!(but(k, word), None, "{k}: {word:x}");
        }
    }

    #[test]
    fn loads_of_labels_are_read() {
        let old = |w: u32| table_load(&w.to_le_bytes()).map(|l| (l.to, l.base, l.index, l.bits));
        // ldr x2, [x21, x0, lsl #3]; with w0, uxtw; ldr w2; not scaled; sxtw
        assert_eq!(old(0xf860_7aa2), Some((Some(2), Some(21), 0, 64)));
        assert_eq!(old(0xf860_5aa2), Some((Some(2), Some(21), 0, 32)));
        for w in [0xb860_7aa2u32, 0xf860_6aa2, 0xf860_daa2, 0x3860_7aa2] {
            assert_eq!(old(w), None, "{w:x}");
        }
        let new = |words: &[u32]| {
            label_load(&code(words), 0x1000)
                .map(|l| (l.len, l.table, l.base, l.index, l.to, l.wide))
        };
        let (page, ldr, ldrsw, add) = (
            0x9000_0002u32,
            0xf860_7842u32,
            0xb8a0_7842u32,
            0x8b02_02a2u32,
        );
        assert_eq!(
            new(&[page, ldr]),
            Some((8, Some(0x1000), None, (0, 3), 2, true))
        );
        let narrow = Some((12, Some(0x1000), Some(21), (0, 3), 2, false));
        assert_eq!(new(&[page, ldrsw, add]), narrow);
        let based = Some((8, None, Some(21), (0, 3), 2, false));
        assert_eq!(new(&[0xb8a0_7aa2, add]), based);
        let no: &[&[u32]] = &[
            // The page is in another register, or in the index's; the sum is of another, or into another.
            &[0x9000_0003, ldr],
            &[page, 0xf862_7842],
            &[page, ldrsw, 0x8b03_02a2],
            &[page, ldrsw, 0x8b02_02a3],
            &[page, ldrsw, 0x8b02_0042],
            // What is added is not what was loaded from; it is shifted; a word without its sign; no sum.
            &[0xb8a0_7aa2, 0x8b02_0282],
            &[0xb8a0_7aa2, 0x8b02_06a2],
            &[0xb860_7aa2, add],
            &[page, ldrsw],
            &[0xf860_7aa2],
        ];
        for words in no {
            assert_eq!(new(words), None, "{words:x?}");
        }
    }

    #[test]
    fn instructions_leave_what_the_manual_says() {
        let of = |w: u32| leaves(&w.to_le_bytes(), 0x1000);
        assert_eq!(of(0x7100_4c5f).compares, Some((2, 32, 0x13)));
        assert_eq!(of(0xf100_9c1f).compares, Some((0, 64, 0x27)));
        let low = Left::Low { from: 0, bits: 32 };
        assert_eq!(of(0x2a00_03e8).left, Some((8, low)));
        let plus = Left::Plus {
            from: 2,
            number: 0x100,
        };
        assert_eq!(of(0x9104_0042).left, Some((2, plus)));
        assert_eq!(of(0x1200_0c08).left, Some((8, Left::AtMost(15))));
        assert_eq!(of(0xd343_1c01).left, Some((1, Left::AtMost(31))));
        assert_eq!(of(0x3940_0041).left, Some((1, Left::AtMost(255))));
        assert_eq!(of(0x5100_0441).left, Some((1, Left::AtMost(0xffff_ffff))));
        // adrp and adr as the decoder has them.
        for w in [0x9000_0002u32, 0xb000_0003, 0x1000_0202] {
            let field = AArch64::decode(&w.to_le_bytes(), 0x1000).and_then(|i| i.field);
            let formed = field.map(|f| Left::Address(f.target));
            assert_eq!(of(w).left.map(|l| l.1), formed);
        }
        // A load with a sign, what is multiplied in 64 bits, movk, an and with a gap.
        for w in [0x3980_0041, 0x9b02_0c21, 0xf2a0_0020, 0x9200_f041] {
            assert_eq!(of(w).left, None, "{w:#x}");
        }
        for w in [
            0x7100_0441,
            0xf240_0c01,
            0xfa42_0020,
            0x1e62_2020,
            0xd51b_4200,
        ] {
            assert!(!of(w).keeps_flags, "{w:#x}");
        }
        // mrs x0, rndr says by flags whether it succeeded.
        assert!(!of(0xd53b_2400).keeps_flags);
        for w in [
            0x9104_0042,
            0x3940_0041,
            0x9a82_0020,
            0xd503_201f,
            0xd503_3bbf,
        ] {
            assert!(of(w).keeps_flags, "{w:#x}");
        }
    }

    #[test]
    fn branches_bound_what_was_compared() {
        let branch = |w: u32| match AArch64::decode(&w.to_le_bytes(), 0).map(|i| i.flow) {
            Some(crate::arch::Flow::Branch { cond, .. }) => cond,
            other => panic!("{other:?}"),
        };
        // b.hi, b.ls, b.hs, b.lo, b.gt, cbz
        let of = |w: u32, taken| most_if(branch(w), taken, 8);
        assert_eq!(
            [of(0x5400_0048, false), of(0x5400_0049, true)],
            [Some(8); 2]
        );
        assert_eq!(
            [of(0x5400_0042, false), of(0x5400_0043, true)],
            [Some(7); 2]
        );
        assert_eq!([of(0x5400_0048, true), of(0x5400_004c, false)], [None; 2]);
        assert_eq!([of(0xb400_0040, false), of(0xb400_0040, true)], [None; 2]);
        assert_eq!(most_if(3, true, 0), None);
    }
}
