//! Loads of numbers, and moves that have them in them.

use super::target;
use crate::arch::{Loaded, Takes};

/// See [`crate::arch::Arch::takes_loaded`].
pub(super) fn loaded(w: u32, addr: u64) -> Option<(Takes, Loaded)> {
    let register = (w & 31) as u8;
    let takes = |wide| Takes {
        operation: 0,
        register,
        wide,
    };
    if register == 31 {
        return None;
    }
    // Literals: general registers only.
    if w & 0x3f00_0000 == 0x1800_0000 {
        let (len, signed, wide) = match w >> 30 {
            0 => (4, false, false),
            1 => (8, false, true),
            2 => (4, true, true),
            _ => return None,
        };
        let at = target(w, addr);
        let base = None;
        return Some((
            takes(wide),
            Loaded {
                at,
                base,
                len,
                signed,
            },
        ));
    }
    // A base and an offset without a sign.
    if w & 0x3f00_0000 != 0x3900_0000 {
        return None;
    }
    let scale = w >> 30;
    let (signed, wide) = match w >> 22 & 3 {
        1 => (false, scale == 3),
        2 if scale < 3 => (true, true),
        3 if scale < 2 => (true, false),
        _ => return None,
    };
    let base = ((w >> 5 & 31) as u8, u64::from(w >> 10 & 0xfff) << scale);
    let loaded = Loaded {
        at: 0,
        base: (base.0 != 31).then_some(base),
        len: 1 << scale,
        signed,
    };
    loaded.base.map(|_| (takes(wide), loaded))
}

/// See [`crate::arch::Arch::takes_number`].
pub(super) fn number(bytes: &[u8], takes: &Takes, number: u64) -> Option<u8> {
    let mut value: Option<u64> = None;
    for (i, word) in bytes.chunks_exact(4).take(2).enumerate() {
        let w = u32::from_le_bytes(word.try_into().ok()?);
        let wide = w >> 31 == 1;
        let shift = 16 * (w >> 21 & 3);
        let part = u64::from(w >> 5 & 0xffff) << shift;
        let fits = (w & 31) as u8 == takes.register && wide == takes.wide && (wide || shift < 32);
        value = match (w >> 23 & 0xff, value) {
            _ if !fits => return None,
            // movn, movz; movk
            (0x25, None) => Some(takes.cut(!part)),
            (0xa5, None) => Some(part),
            (0xe5, Some(before)) => Some(before & !(0xffff << shift) | part),
            _ => return None,
        };
        if value == Some(number) {
            return u8::try_from(4 * (i + 1)).ok();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_put_the_numbers_that_they_say() {
        let takes = |wide| Takes {
            operation: 0,
            register: 2,
            wide,
        };
        let bytes = |words: &[u32]| {
            words
                .iter()
                .flat_map(|w| w.to_le_bytes())
                .collect::<Vec<u8>>()
        };
        // movz w2, #5; movn w2, #1; movz x2, #5; movk x2, #1, lsl #16; movz w3, #5
        let five = bytes(&[0x5280_00a2]);
        assert_eq!(number(&five, &takes(false), 5), Some(4));
        assert_eq!(number(&five, &takes(true), 5), None);
        assert_eq!(
            number(&bytes(&[0x1280_0022]), &takes(false), 0xffff_fffe),
            Some(4)
        );
        let two = bytes(&[0xd280_00a2, 0xf2a0_0022]);
        assert_eq!(number(&two, &takes(true), 0x1_0005), Some(8));
        assert_eq!(number(&two, &takes(true), 5), Some(4));
        assert_eq!(number(&two, &takes(true), 0x2_0005), None);
        assert_eq!(number(&bytes(&[0x5280_00a3]), &takes(false), 5), None);
    }

    #[test]
    fn loads_say_what_they_extend() {
        let of = |w| loaded(w, 0x1000).map(|(t, l)| (t.wide, l.len, l.signed, l.base));
        // ldr w2, [x1, #16]; ldrsb x2, [x1]; ldrsw x2, [x1, #4]; ldr x2, [sp]; str w2, [x1]; prfm
        assert_eq!(of(0xb940_1022), Some((false, 4, false, Some((1, 16)))));
        assert_eq!(of(0x3980_0022), Some((true, 1, true, Some((1, 0)))));
        assert_eq!(of(0xb980_0422), Some((true, 4, true, Some((1, 4)))));
        assert_eq!(
            [of(0xf940_03e2), of(0xb900_0022), of(0xf980_0022)],
            [None; 3]
        );
    }
}
