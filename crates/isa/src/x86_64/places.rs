//! What bytes could be, at every position: branches and operands of instructions that may begin anywhere.
//!
//! | bytes | could be |
//! |---|---|
//! | `e8`, `e9`, or `0f 80` to `0f 8f`, then four bytes | a call or branch with a displacement of four bytes |
//! | `eb`, `70` to `7f`, `e0` to `e3`, then one byte | a branch with a displacement of one byte |
//! | a ModRM byte with mod 0 and rm 5, then four bytes | an operand relative to the end of the instruction, after which there may be an immediate operand of 1, 2 or 4 bytes |

use crate::Place;

/// Tells of every position in `bytes`, which are at `addr`, what could be there, and the address that it would
/// designate.
pub fn places(bytes: &[u8], addr: u64, found: &mut impl FnMut(Place, u64)) {
    let displacement = |at: usize| {
        let field = bytes.get(at..at + 4)?;
        let value = i32::from_le_bytes(field.try_into().ok()?);
        let end = addr.wrapping_add(at as u64).wrapping_add(4);
        Some(end.wrapping_add_signed(i64::from(value)))
    };
    for (i, byte) in bytes.iter().enumerate() {
        let (near, short) = match byte {
            0xe8 | 0xe9 => (true, false),
            0x80..=0x8f => (i > 0 && bytes[i - 1] == 0x0f, false),
            0xeb | 0x70..=0x7f | 0xe0..=0xe3 => (false, true),
            _ => (false, false),
        };
        if near && let Some(target) = displacement(i + 1) {
            found(Place::Branch, target);
        }
        if short && let Some(value) = bytes.get(i + 1) {
            let end = addr.wrapping_add(i as u64).wrapping_add(2);
            let target = end.wrapping_add_signed(i64::from(*value as i8));
            found(Place::ShortBranch, target);
        }
        if byte & 0xc7 == 5
            && let Some(target) = displacement(i + 1)
        {
            for immediate in [0, 1, 2, 4] {
                found(Place::Operand, target.wrapping_add(immediate));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(bytes: &[u8]) -> Vec<(Place, u64)> {
        let mut list = Vec::new();
        places(bytes, 0x1000, &mut |place, target| {
            list.push((place, target))
        });
        list
    }

    #[test]
    fn branches_are_found_wherever_they_begin() {
        // In a constant that an instruction loads.
        let hidden = [0xb8, 0xe9, 1, 0, 0, 0, 0x90];
        assert!(all(&hidden).contains(&(Place::Branch, 0x1007)));
        assert!(all(&[0x0f, 0x84, 2, 0, 0, 0]).contains(&(Place::Branch, 0x1008)));
        assert!(
            !all(&[0x84, 2, 0, 0, 0])
                .iter()
                .any(|f| f.0 == Place::Branch)
        );
        assert_eq!(all(&[0xeb, 0xfe]), [(Place::ShortBranch, 0x1000)]);
        assert_eq!(all(&[0x74]), []);
    }

    #[test]
    fn operands_are_found_with_every_immediate_that_may_follow() {
        let targets = [0x1007, 0x1008, 0x1009, 0x100b].map(|t| (Place::Operand, t));
        let bytes = [0x48, 0x8b, 0x0d, 0, 0, 0, 0];
        assert_eq!(all(&bytes)[..4], targets);
    }
}
