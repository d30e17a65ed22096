//! Addresses that code names, looked for without knowing how control goes: where no relocations tell.
//!
//! Instructions are words at multiples of four, so each of them is looked at as if it were one, whether it is code or
//! data. Two words together name an address where `adrp` forms its page: from there straight code is followed until
//! something overwrites the register. Where control may go elsewhere before that, or the register is copied, any
//! instruction of the range that adds to the same register may use the page.

use super::decode::{adr_immediate, decode, is_literal};
use super::effects::{EVERYTHING, effects};
use crate::{Flow, Place, RegSet};

/// All words of `bytes` that are at multiples of four, with their addresses.
fn words(bytes: &[u8], addr: u64) -> impl Iterator<Item = (u64, u32)> + '_ {
    let skip = (addr.wrapping_neg() & 3) as usize;
    let aligned = bytes.get(skip..).unwrap_or(&[]);
    let all = aligned.chunks_exact(4).enumerate();
    all.map(move |(i, word)| {
        // The chunk has four bytes.
        let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        (addr.wrapping_add((skip + 4 * i) as u64), word)
    })
}

/// See [`crate::Decode::places`].
pub fn places(bytes: &[u8], addr: u64, found: &mut impl FnMut(Place, u64)) {
    for (at, word) in words(bytes, addr) {
        let insn = decode(&word.to_le_bytes(), at);
        let Some((insn, field)) = insn.and_then(|insn| Some((insn, insn.field?))) else {
            continue;
        };
        let place = match insn.flow {
            Flow::Jump { .. } | Flow::Call { .. } => Place::Branch,
            Flow::CondJump { .. } => Place::ShortBranch,
            _ if is_literal(word) => Place::Operand,
            _ if insn.traits.forms_address => Place::Formed,
            // A page; see below.
            _ => continue,
        };
        found(place, field.target);
    }
}

/// An instruction that adds to a register: the register, what is added, and whether the sum is formed or accessed.
fn added(word: u32) -> Option<(u32, u64, Place)> {
    let (base, number) = (word >> 5 & 31, u64::from(word >> 10 & 0xfff));
    if word & 0xff80_0000 == 0x9100_0000 {
        let shift = if word >> 22 & 1 == 0 { 0 } else { 12 };
        return Some((base, number << shift, Place::Formed));
    }
    // Loads and stores with an offset in units of what they access.
    if word & 0x3b00_0000 == 0x3900_0000 {
        let vector = word >> 26 & 1 == 1 && word >> 23 & 1 == 1;
        let scale = if vector { 4 } else { word >> 30 };
        return Some((base, number << scale, Place::Operand));
    }
    None
}

/// See [`crate::Decode::in_parts`].
pub fn in_parts(
    bytes: &[u8],
    addr: u64,
    wanted: &dyn Fn(u64) -> bool,
    found: &mut dyn FnMut(Place, u64),
) {
    // Registers are looked at together at the end: which pages they may hold anywhere.
    let mut anywhere: Vec<(u32, u64)> = Vec::new();
    for (at, word) in words(bytes, addr) {
        if word & 0x9f00_0000 != 0x9000_0000 {
            continue;
        }
        let page = (at & !0xfff).wrapping_add_signed(adr_immediate(word) << 12);
        if wanted(page) {
            let behind = bytes.get((at - addr) as usize + 4..).unwrap_or(&[]);
            if !straight(behind, at.wrapping_add(4), (word & 31, page), found) {
                anywhere.push((word & 31, page));
            }
        }
    }
    if anywhere.is_empty() {
        return;
    }
    anywhere.sort_unstable();
    anywhere.dedup();
    for (_, word) in words(bytes, addr) {
        let Some((base, number, place)) = added(word) else {
            continue;
        };
        let from = anywhere.partition_point(|a| a.0 < base);
        for (_, page) in anywhere[from..].iter().take_while(|a| a.0 == base) {
            found(place, page.wrapping_add(number));
        }
    }
}

/// Follows a page in a register through straight code. False: it may be in use after that, or in another register.
fn straight(
    bytes: &[u8],
    addr: u64,
    (register, page): (u32, u64),
    found: &mut dyn FnMut(Place, u64),
) -> bool {
    /// x18 to x29.
    const KEPT_BY_CALLS: u32 = 0x3ffc_0000;
    let own = RegSet(1 << register);
    for (at, word) in words(bytes, addr) {
        let Some(insn) = decode(&word.to_le_bytes(), at) else {
            return false;
        };
        match insn.flow {
            Flow::Next => {}
            Flow::Call { .. } | Flow::IndirectCall if KEPT_BY_CALLS & 1 << register != 0 => {
                continue;
            }
            // The page itself is passed on, or gone.
            Flow::Call { .. } | Flow::IndirectCall => {
                found(Place::Formed, page);
                return true;
            }
            // An outlined part of a function may leave it to its caller.
            Flow::Return => {
                found(Place::Formed, page);
                return false;
            }
            _ => return false,
        }
        let effects = effects(&word.to_le_bytes(), &insn);
        let used = added(word).filter(|u| u.0 == register);
        if let Some((_, number, place)) = used {
            found(place, page.wrapping_add(number));
        }
        // What is stored, copied or calculated with is known by another name.
        let stored = used.is_some_and(|u| u.2 == Place::Operand)
            && word & 31 == register
            && !effects.kills.meets(own);
        if effects == EVERYTHING || stored || used.is_none() && effects.reads.meets(own) {
            return false;
        }
        if effects.kills.meets(own) {
            return true;
        }
    }
    false
}

/// See [`crate::Decode::numbers`]: what `movz`, `movn` and `movk` make in a register, in the order of addresses, and
/// words and pairs of words, which may be literals.
pub fn numbers(bytes: &[u8], addr: u64, found: &mut dyn FnMut(u64)) {
    let mut held = [0u64; 32];
    let mut before = None;
    for (_, word) in words(bytes, addr) {
        found(u64::from(word));
        if let Some(low) = before.replace(word) {
            found(u64::from(low) | u64::from(word) << 32);
        }
        if word & 0x1f80_0000 != 0x1280_0000 {
            continue;
        }
        let shift = 16 * (word >> 21 & 3);
        let part = u64::from(word >> 5 & 0xffff) << shift;
        let value = &mut held[(word & 31) as usize];
        *value = match word >> 29 & 3 {
            0 => !part,
            2 => part,
            3 => *value & !(0xffff << shift) | part,
            _ => continue,
        };
        if word >> 31 == 0 {
            *value &= 0xffff_ffff;
        }
        found(*value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|w| w.to_le_bytes()).collect()
    }

    fn all(words: &[u32]) -> Vec<(Place, u64)> {
        let mut list = Vec::new();
        places(&bytes(words), 0x1000, &mut |place, target| {
            list.push((place, target))
        });
        in_parts(&bytes(words), 0x1000, &|_| true, &mut |place, target| {
            list.push((place, target))
        });
        list
    }

    const PAGE_X0: u32 = 0x9000_0000; // adrp x0, this page
    const ADD_X0: u32 = 0x9100_4000; // add x0, x0, #16
    const LOAD_X1: u32 = 0xf940_1001; // ldr x1, [x0, #32]
    const NOP: u32 = 0xd503_201f;

    #[test]
    fn each_word_is_looked_at_as_an_instruction() {
        // b, cbz x0, adr x0, ldr x0 of a literal, each of the next word.
        let words = [0x1400_0001, 0xb400_0020, 0x1000_0020, 0x5800_0020];
        assert_eq!(
            all(&words),
            [
                (Place::Branch, 0x1004),
                (Place::ShortBranch, 0x1008),
                (Place::Formed, 0x100c),
                (Place::Operand, 0x1010),
            ]
        );
        // Words at other places are none.
        let mut list = Vec::new();
        places(&bytes(&words[..1]), 0x1002, &mut |_, target| {
            list.push(target)
        });
        assert_eq!(list, []);
    }

    #[test]
    fn a_page_is_used_up_to_where_its_register_is_overwritten() {
        let found = all(&[PAGE_X0, NOP, LOAD_X1, ADD_X0, ADD_X0]);
        assert_eq!(found, [(Place::Operand, 0x1020), (Place::Formed, 0x1010)]);
    }

    #[test]
    fn where_a_page_may_go_elsewhere_all_that_add_to_its_register_use_it() {
        // In front of it, as behind a branch: an access; cbz x1 to it.
        let found = all(&[LOAD_X1, PAGE_X0, 0xb400_0021, ADD_X0]);
        assert!(found.contains(&(Place::Operand, 0x1020)), "{found:?}");
        assert!(found.contains(&(Place::Formed, 0x1010)), "{found:?}");
        // mov x2, x0: not followed.
        let found = all(&[LOAD_X1, PAGE_X0, 0xaa00_03e2, ADD_X0]);
        assert!(found.contains(&(Place::Operand, 0x1020)), "{found:?}");
        // ret: it may be left to the caller.
        let found = all(&[LOAD_X1, PAGE_X0, 0xd65f_03c0]);
        assert!(found.contains(&(Place::Operand, 0x1020)), "{found:?}");
        assert!(found.contains(&(Place::Formed, 0x1000)), "{found:?}");
    }

    #[test]
    fn numbers_are_made_of_parts() {
        let mut list = Vec::new();
        // movz w3, #0x1234; movk w3, #0x40, lsl #16
        let code = bytes(&[0x5282_4683, NOP, 0x72a0_0803]);
        numbers(&code, 0x1000, &mut |number| list.push(number));
        assert!(list.contains(&0x40_1234), "{list:x?}");
        list.clear();
        numbers(&bytes(&[0x40_1238, 0]), 0x1000, &mut |number| {
            list.push(number)
        });
        assert!(list.contains(&0x40_1238), "{list:x?}");
    }
}
