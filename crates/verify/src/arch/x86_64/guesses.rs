//! What bytes could be at any position, without trust in any decoder.
//!
//! The fields are what is looked for: at each place where a displacement could be, the byte in front of it (or
//! the two) says of what. A displacement of four bytes counts from after itself in a branch, and in a memory
//! operand from after the immediate operand that may follow it.

use crate::arch::Guess;

/// Visits all that could be in `bytes`, which are at `addr`, with the address that it would name.
pub(super) fn visit(bytes: &[u8], addr: u64, visit: &mut dyn FnMut(Guess, u64)) {
    let mut second = 0u8;
    for (at, pair) in bytes.windows(2).enumerate() {
        let [first, field] = *pair else { continue };
        let place = addr.wrapping_add(at as u64).wrapping_add(1);
        let wide = matches!(first, 0xe8 | 0xe9) || second == 0x0f && first >> 4 == 8;
        let narrow = first == 0xeb || first >> 4 == 7 || first & 0xfc == 0xe0;
        let relative = first >> 6 == 0 && first & 7 == 5;
        if narrow {
            let distance = i64::from(field as i8) + 1;
            visit(Guess::Narrow, place.wrapping_add_signed(distance));
        }
        if (wide || relative)
            && let Some(field) = bytes.get(at + 1..).and_then(|rest| rest.first_chunk::<4>())
        {
            let target = place.wrapping_add_signed(i64::from(i32::from_le_bytes(*field)) + 4);
            if wide {
                visit(Guess::Wide, target);
            }
            if relative {
                for immediate in [0, 1, 2, 4] {
                    visit(Guess::Relative, target.wrapping_add(immediate));
                }
            }
        }
        second = first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(bytes: &[u8]) -> Vec<(Guess, u64)> {
        let mut list = Vec::new();
        visit(bytes, 0x2000, &mut |guess, target| {
            list.push((guess, target))
        });
        list
    }

    #[test]
    fn a_branch_inside_of_another_instruction_is_seen() {
        assert!(all(&[0xb8, 0xe9, 3, 0, 0, 0]).contains(&(Guess::Wide, 0x2009)));
        assert!(all(&[0x90, 0x0f, 0x8f, 3, 0, 0, 0]).contains(&(Guess::Wide, 0x200a)));
        assert_eq!(all(&[0x75, 0xfd]), [(Guess::Narrow, 0x1fff)]);
        assert_eq!(all(&[0xe3, 2]), [(Guess::Narrow, 0x2004)]);
        assert_eq!(all(&[0xe4, 2]), []);
    }

    #[test]
    fn an_operand_counts_from_after_any_immediate() {
        let found = all(&[0x80, 0x3d, 9, 0, 0, 0, 1]);
        for immediate in [0, 1, 2, 4] {
            assert!(
                found.contains(&(Guess::Relative, 0x200f + immediate)),
                "{immediate}"
            );
        }
    }
}
