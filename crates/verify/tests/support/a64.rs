//! AArch64 for the tests' small rewriter: what instructions are, and how they are written anew.
//!
//! To have something to prove, everything is written in its longest form: `tbz` as its opposite over a `b`,
//! `adr` and literal loads as pairs with `adrp`, calls to code that stays through a veneer, and tables of
//! bytes and half-words as tables of words.

use super::{I, offset, u32_at};
use std::collections::BTreeMap;

/// One instruction.
#[derive(Clone, Copy, Debug)]
pub struct Word {
    pub ip: u64,
    pub w: u32,
}

fn field(w: u32, low: u32, width: u32) -> i64 {
    i64::from((w << (32 - low - width)) as i32 >> (32 - width))
}

impl Word {
    pub fn is_nop(self) -> bool {
        self.w == 0xd503_201f
    }
    pub fn is_tbz(self) -> bool {
        self.w & 0x7e00_0000 == 0x3600_0000
    }
    pub fn is_cond(self) -> bool {
        self.is_tbz() || self.w & 0x7e00_0000 == 0x3400_0000 || self.w & 0xff00_0010 == 0x5400_0000
    }
    pub fn is_jump(self) -> bool {
        self.w >> 26 == 5
    }
    pub fn is_call(self) -> bool {
        self.w >> 26 == 0x25
    }
    pub fn is_adr(self) -> bool {
        self.w & 0x9f00_0000 == 0x1000_0000
    }
    pub fn is_adrp(self) -> bool {
        self.w & 0x9f00_0000 == 0x9000_0000
    }
    pub fn is_literal(self) -> bool {
        self.w & 0x3f00_0000 == 0x1800_0000
    }
    /// br, ret, brk, udf and their like.
    pub fn ends(self) -> bool {
        self.is_jump()
            || self.w & 0xfe00_0000 == 0xd600_0000 && self.w >> 21 & 3 != 1
            || self.w & 0xffe0_001f == 0xd420_0000
            || self.w >> 16 == 0
    }
    pub fn target(self) -> u64 {
        let words = |low, width| self.ip.wrapping_add_signed(4 * field(self.w, low, width));
        if self.is_jump() || self.is_call() {
            words(0, 26)
        } else if self.is_tbz() {
            words(5, 14)
        } else if self.is_adr() || self.is_adrp() {
            let v = field(self.w, 5, 19) << 2 | i64::from(self.w >> 29 & 3);
            if self.is_adr() {
                self.ip.wrapping_add_signed(v)
            } else {
                (self.ip & !0xfff).wrapping_add_signed(v << 12)
            }
        } else {
            words(5, 19)
        }
    }
    /// Bytes of what is written in its place.
    pub fn new_len(self) -> u64 {
        match () {
            _ if self.is_nop() => 0,
            _ if self.is_tbz() || self.is_adr() || self.is_literal() => 8,
            _ => 4,
        }
    }
}

pub fn b(at: u64, to: u64) -> u32 {
    0x1400_0000 | ((to.wrapping_sub(at) as i64 >> 2) as u32 & 0x03ff_ffff)
}
pub fn bl(at: u64, to: u64) -> u32 {
    b(at, to) | 0x8000_0000
}
pub fn adrp(reg: u32, at: u64, to: u64) -> u32 {
    let pages = (to >> 12).wrapping_sub(at >> 12) as u32;
    0x9000_0000 | (pages & 3) << 29 | (pages >> 2 & 0x7_ffff) << 5 | reg
}
pub fn add(reg: u32, base: u32, to: u64) -> u32 {
    0x9100_0000 | (to as u32 & 0xfff) << 10 | base << 5 | reg
}
/// Another target for b.cond or cbz.
fn cond_to(w: u32, at: u64, to: u64) -> u32 {
    w & !0x00ff_ffe0 | ((to.wrapping_sub(at) as i64 >> 2) as u32 & 0x7_ffff) << 5
}
/// The opposite condition.
fn inverted(w: u32) -> u32 {
    if w >> 24 == 0x54 { w ^ 1 } else { w ^ 1 << 24 }
}

/// A conditional branch to `to`, inverted first if asked.
pub fn cond(i: Word, invert: bool, at: u64, to: u64) -> Vec<u32> {
    let w = if invert { inverted(i.w) } else { i.w };
    if !i.is_tbz() {
        return vec![cond_to(w, at, to)];
    }
    vec![inverted(w) & !0x0007_ffe0 | 2 << 5, b(at + 4, to)]
}

/// A veneer to `to`.
pub fn veneer(at: u64, to: u64) -> [u32; 3] {
    [adrp(16, at, to), add(16, 16, to), 0xd61f_0200]
}

/// A jump through a table as gcc writes it, in six instructions that follow each other.
#[derive(Clone, Debug)]
pub struct Table {
    /// Address of the first instruction: adrp, add, load, adr, add, br.
    pub at: u64,
    pub labels: Vec<u64>,
}

/// Reads all table jumps of a function.
pub fn tables(d: &[u8], insns: &[I]) -> Vec<Table> {
    let words: Vec<Word> = insns.iter().filter_map(I::a64).collect();
    let mut out = Vec::new();
    for (n, six) in words.windows(6).enumerate() {
        let [page, low, load, base, sum, jump] = six else {
            continue;
        };
        let width = 1u64 << (load.w >> 30);
        let shape = page.is_adrp()
            && low.w & 0xffc0_0000 == 0x9100_0000
            && load.w & 0x3fe0_ec00 == 0x3860_4800
            && base.is_adr()
            && sum.w & 0xffe0_1c00 == 0x8b20_0800
            && jump.w & 0xffff_fc1f == 0xd61f_0000;
        if !shape {
            continue;
        }
        let index = load.w >> 16 & 31;
        let compare = words[..n]
            .iter()
            .rev()
            .find(|c| c.w & 0xff80_001f == 0x7100_001f && c.w >> 5 & 31 == index);
        let count = u64::from(compare.expect("gcc compares the index").w >> 10 & 0xfff) + 1;
        let table = page.target() + u64::from(low.w >> 10 & 0xfff);
        let labels = (0..count)
            .map(|i| {
                let mut raw = [0u8; 4];
                let o = offset(d, table + i * width);
                raw[..width as usize].copy_from_slice(&d[o..o + width as usize]);
                let unused = 32 - 8 * width as u32;
                let entry = (u32_at(&raw, 0) << unused) as i32 >> unused;
                base.target().wrapping_add_signed(4 * i64::from(entry))
            })
            .collect();
        out.push(Table {
            at: page.ip,
            labels,
        });
    }
    out
}

/// The six instructions for a table of words at `table`, whose entries are added to `base`: instruction by old address.
pub fn table_jump(
    insns: &BTreeMap<u64, Word>,
    t: &Table,
    table: u64,
    base: u64,
    at: impl Fn(u64) -> u64,
) -> BTreeMap<u64, Vec<u32>> {
    let word = |i: u64| insns[&(t.at + 4 * i)].w;
    let (page, low, load, adr, sum) = (word(0), word(1), word(2), word(3), word(4));
    let here = at(t.at + 12);
    let reg = adr & 31;
    BTreeMap::from([
        (t.at, vec![adrp(page & 31, at(t.at), table)]),
        (t.at + 4, vec![add(low & 31, low >> 5 & 31, table)]),
        (t.at + 8, vec![load & 0x3fff_ffff | 0x8000_1000]),
        (t.at + 12, vec![adrp(reg, here, base), add(reg, reg, base)]),
        (t.at + 16, vec![sum & !0xe000 | 0xc000]),
    ])
}
