//! Loads of constants as moves of immediates.
//!
//! | loads | becomes | if |
//! |---|---|---|
//! | `ldr x, literal`, `ldr w, literal`, `ldrsw x, literal` | `movz` or `movn`, and a `movk` if need be | at most two |
//! | `adrp b, page`, … `ldr x, [b, #n]` and its kin of 8, 16 and 32 bits | one `movz` or `movn` | one is enough |
//!
//! The `adrp` stays: other instructions may use its page. Between it and the load is straight code that does not write
//! the base.

use crate::{Code, Decode, Flow, Insn};

use super::AArch64;
use super::decode::{adr_immediate, is_adr, is_literal};
use super::encode;

/// A load: its register, the bytes that are loaded, whether they have a sign, and whether the register is of 64 bits.
#[derive(Clone, Copy)]
struct Load {
    register: u32,
    len: u64,
    signed: bool,
    wide: bool,
}

/// `ldr`, `ldrb`, `ldrh`, `ldrsb`, `ldrsh`, `ldrsw` of a general register, base and offset.
fn read(word: u32) -> Option<(Load, u32, u64)> {
    if word & 0x3f00_0000 != 0x3900_0000 {
        return None;
    }
    let (scale, opc) = (word >> 30, word >> 22 & 3);
    let (signed, wide) = match (scale, opc) {
        (_, 0) | (3, 2 | 3) | (2, 3) => return None, // stores, prefetches, unallocated
        (_, 1) => (false, scale == 3),
        (_, 2) => (true, true),
        _ => (true, false),
    };
    let load = Load {
        register: word & 31,
        len: 1 << scale,
        signed,
        wide,
    };
    let offset = u64::from(word >> 10 & 0xfff) << scale;
    (load.register != 31).then_some((load, word >> 5 & 31, offset))
}

/// A load of a literal.
fn literal(word: u32) -> Option<Load> {
    let (len, signed, wide) = match word >> 30 {
        0 => (4, false, false),
        1 => (8, false, true),
        2 => (4, true, true),
        _ => return None,
    };
    let is_general = is_literal(word) && word >> 26 & 1 == 0 && word & 31 != 31;
    is_general.then_some(Load {
        register: word & 31,
        len,
        signed,
        wide,
    })
}

impl Load {
    /// What the register holds after it.
    fn value(&self, memory: &[u8]) -> Option<u64> {
        let mut all = [0u8; 8];
        all.get_mut(..self.len as usize)?.copy_from_slice(memory);
        let unused = 64 - 8 * self.len as u32;
        let value = u64::from_le_bytes(all) << unused;
        let value = if self.signed {
            (value as i64 >> unused) as u64
        } else {
            value >> unused
        };
        Some(if self.wide {
            value
        } else {
            value & 0xffff_ffff
        })
    }

    /// At most `most` instructions that put a number into the register.
    fn with<T>(&self, value: u64, most: usize) -> Option<Code<T>> {
        let part = |number: u64, i: u32| (number >> (16 * i)) as u16;
        let bits = if self.wide { u64::MAX } else { 0xffff_ffff };
        let narrow = |word: u32| if self.wide { word } else { word & !(1 << 31) };
        let d = self.register;
        let parts = |number: u64| (0..4).filter(move |i| part(number, *i) != 0);
        let opposite = !value & bits;
        let words: Vec<u32> = if parts(opposite).count() <= 1 && parts(value).count() > 1 {
            let i = parts(opposite).next().unwrap_or(0);
            vec![narrow(encode::movn(d, part(opposite, i)) | i << 21)]
        } else {
            let first = parts(value).next().unwrap_or(0);
            let rest = parts(value).filter(|i| *i != first);
            let first = narrow(encode::movz(d, part(value, first), first));
            let rest = rest.map(|i| narrow(encode::movk(d, part(value, i), i)));
            std::iter::once(first).chain(rest).collect()
        };
        (words.len() <= most).then(|| Code {
            bytes: words.iter().flat_map(|w| w.to_le_bytes()).collect(),
            fixups: Vec::new(),
            stack: Vec::new(),
        })
    }
}

/// Finds the loads of constants in straight code; see [`crate::Encode::fold_constants`].
pub fn fold<'c, T>(
    bytes: &[u8],
    addr: u64,
    constant: impl Fn(u64, u64) -> Option<&'c [u8]>,
    mut found: impl FnMut(&Insn, Option<Code<T>>),
) {
    let mut pages: [Option<u64>; 32] = [None; 32];
    AArch64::sweep(bytes, addr, |insn| {
        let from = (insn.addr - addr) as usize;
        let Some(word) = bytes.get(from..).and_then(|b| b.first_chunk()) else {
            return true;
        };
        let word = u32::from_le_bytes(*word);
        let load = match (literal(word), insn.field) {
            (Some(load), Some(field)) => Some((load, field.target, 2)),
            _ => read(word).and_then(|(load, base, offset)| {
                let page = pages[base as usize]?;
                Some((load, page.wrapping_add(offset), 1))
            }),
        };
        if let Some((load, at, most)) = load
            && let Some(memory) = constant(at, load.len)
        {
            found(insn, load.value(memory).and_then(|v| load.with(v, most)));
        }
        if insn.flow != Flow::Next {
            pages = [None; 32];
        }
        let kills = AArch64::effects(&bytes[from..], insn).kills.0;
        for (register, page) in pages.iter_mut().enumerate() {
            if kills >> register & 1 != 0 {
                *page = None;
            }
        }
        if is_adr(word) && word >> 31 == 1 {
            let page = (insn.addr & !0xfff).wrapping_add_signed(adr_immediate(word) << 12);
            pages[(word & 31) as usize] = Some(page);
        }
        true
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folded(words: &[u32], memory: &[u8]) -> Vec<Option<Vec<u8>>> {
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let mut out = Vec::new();
        let constant = |at: u64, len: u64| (at == 0x3010).then(|| &memory[..len as usize]);
        fold::<()>(&bytes, 0x1000, constant, |_, new| {
            out.push(new.map(|c| c.bytes))
        });
        out
    }

    #[test]
    fn loads_from_a_page_become_one_move() {
        // adrp x1, +2 pages; ldr w2, [x1, #16]
        let code = [0xd000_0001, 0xb940_1022];
        let five = [5, 0, 0, 0];
        assert_eq!(
            folded(&code, &five),
            [Some(0x5280_00a2u32.to_le_bytes().to_vec())]
        );
        assert_eq!(folded(&code, &[5, 0, 1, 0]), [None]);
        // -2 as movn
        assert_eq!(
            folded(&code, &[0xfe, 255, 255, 255]),
            [Some(0x1280_0022u32.to_le_bytes().to_vec())]
        );
        // The base is written in between: add x1, x1, #16
        assert_eq!(folded(&[code[0], 0x9100_4021, code[1]], &five), []);
    }
}
