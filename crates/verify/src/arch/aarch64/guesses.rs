//! What words of code could name, whatever is there: instructions are at multiples of four, so it is enough to look at
//! each word as one.

use super::{AArch64, target, word};
use crate::arch::{Arch, FieldKind, Flow, Guess};

/// Visits the addresses that single words could name. (Those that take two are made of pages: see
/// [`crate::proof::inside`].)
pub(super) fn visit(bytes: &[u8], addr: u64, visit: &mut dyn FnMut(Guess, u64)) {
    let skip = (addr.wrapping_neg() % 4) as usize;
    let aligned = bytes.get(skip..).unwrap_or(b"");
    for (bytes, at) in aligned.chunks_exact(4).zip((skip as u64..).step_by(4)) {
        let at = addr.wrapping_add(at);
        let Some(w) = word(bytes) else { continue };
        let to = target(w, at);
        // What the decoder refuses may be data or something newer; branches of any kind are told by their words.
        if w & 0x7c00_0000 == 0x1400_0000 {
            visit(Guess::Wide, to);
        } else if w >> 24 == 0x54 || w & 0x7c00_0000 == 0x3400_0000 {
            visit(Guess::Narrow, to);
        } else if w & 0x9f00_0000 == 0x1000_0000 {
            visit(Guess::Formed, to);
        } else if w & 0x3b00_0000 == 0x1800_0000 {
            visit(Guess::Relative, to);
        } else if let Some(insn) = AArch64::decode(bytes, at)
            && let Some(field) = insn.field.filter(|f| f.kind != FieldKind::Page)
        {
            let wide = matches!(insn.flow, Flow::Jump(_) | Flow::Call(_));
            visit(
                if wide { Guess::Wide } else { Guess::Relative },
                field.target,
            );
        }
    }
}

/// Visits what `movz`, `movn` and `movk` leave in a register, one after the other, and all words and pairs of words.
pub(super) fn numbers(bytes: &[u8], visit: &mut dyn FnMut(usize, u64)) {
    let mut made = [0u64; 32];
    for at in (0..bytes.len()).step_by(4) {
        let Some(w) = bytes.get(at..).and_then(word) else {
            return;
        };
        visit(at, u64::from(w));
        if let Some(next) = bytes.get(at + 4..).and_then(word) {
            visit(at, u64::from(next) << 32 | u64::from(w));
        }
        let Some(value) = made.get_mut((w & 31) as usize) else {
            continue;
        };
        let (low, part) = (w >> 21 & 3, u64::from(w >> 5 & 0xffff));
        let here = part << (16 * low);
        // In 32 bits there are two parts.
        let limit = if w >> 31 == 1 { u64::MAX } else { 0xffff_ffff };
        *value = limit
            & match w & 0x7f80_0000 {
                0x1280_0000 => !here,
                0x5280_0000 => here,
                0x7280_0000 => *value & !(0xffff << (16 * low)) | here,
                _ => continue,
            };
        visit(at, *value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|w| w.to_le_bytes()).collect()
    }

    #[test]
    fn every_word_at_a_multiple_of_four_is_looked_at() {
        // bl, tbnz w1, adr x3, ldr q0 of a literal, b.ne; all to 0x2020.
        let words = [
            0x9400_0008,
            0x3700_00e1,
            0x1000_00c3,
            0x9c00_00a0,
            0x5400_0081,
        ];
        let kinds = [
            Guess::Wide,
            Guess::Narrow,
            Guess::Formed,
            Guess::Relative,
            Guess::Narrow,
        ];
        let mut list = Vec::new();
        visit(&bytes(&words), 0x2000, &mut |guess, to| {
            list.push((guess, to))
        });
        assert_eq!(list, kinds.map(|kind| (kind, 0x2020)));
        // Two bytes before them: the first word that counts begins there, too.
        let shifted = [&[0, 0][..], &bytes(&words)].concat();
        let mut again = Vec::new();
        visit(&shifted, 0x1ffe, &mut |guess, to| again.push((guess, to)));
        assert_eq!(again, list);
    }

    #[test]
    fn numbers_are_made_of_several_parts_or_lie_between() {
        let mut list = Vec::new();
        // movk x7, #0x40, lsl #16 after movz x7, #0x2468; a literal.
        let code = bytes(&[0xd284_8d07, 0xd503_201f, 0xf2a0_0807, 0x0041_3570, 0]);
        numbers(&code, &mut |at, number| list.push((at, number)));
        assert!(list.contains(&(8, 0x40_2468)), "{list:x?}");
        assert!(list.contains(&(12, 0x41_3570)), "{list:x?}");
    }
}
