//! Erratum 843419 of Cortex-A53: where the processor may use a wrong address.
//!
//! An `adrp` in one of the last two words of a page, behind it a load or store, and one or two instructions behind that
//! a load or store with an unsigned offset whose base is the register that the `adrp` has written (Arm, Cortex-A53
//! MPCore Software Developers Errata Notice). Which load or store is first is not looked at: some are harmless.

/// Bytes of one instruction.
const STEP: usize = 4;

/// Where the `adrp` of such sequences are in code.
pub fn places(code: &[u8]) -> Vec<u32> {
    let word = |k: usize| {
        let bytes = code.get(STEP * k..)?.first_chunk()?;
        Some(u32::from_le_bytes(*bytes))
    };
    let uses = |k: usize, page: u32| {
        word(k).is_some_and(|w| w & 0x3b00_0000 == 0x3900_0000 && w >> 5 & 31 == page & 31)
    };
    let begins = |k: &usize| {
        let page = word(*k).filter(|w| w & 0x9f00_0000 == 0x9000_0000);
        let accesses = word(k + 1).is_some_and(|w| w & 0x0a00_0000 == 0x0800_0000);
        accesses && page.is_some_and(|page| uses(k + 2, page) || uses(k + 3, page))
    };
    let all = (0..code.len() / STEP).filter(begins);
    all.map(|k| (STEP * k) as u32).collect()
}

/// Whether an `adrp` there is in one of the last two words of a page.
pub fn is_near_end_of_page(addr: u64) -> bool {
    addr & 0xfff >= 0xff8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_are_found() {
        const ADRP: u32 = 0x9000_0001;
        const NOP: u32 = 0xd503_201f;
        let found = |words: &[u32]| {
            let code: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            places(&code)
        };
        // str xzr, [sp, #-16]!; ldr x2, [x1]; ldp x2, x3, [x1]; ldr x2, [x3].
        let (store, load, pair, other) = (0xf81f_0fff, 0xf940_0022, 0xa940_0c22, 0xf940_0062);
        assert_eq!(found(&[NOP, ADRP, store, load]), [4]);
        assert_eq!(found(&[ADRP, store, NOP, load]), [0]);
        assert_eq!(found(&[ADRP, store, ADRP, store, load]), [8]);
        assert!(found(&[ADRP, NOP, load, load]).is_empty());
        assert!(found(&[ADRP, store, NOP, NOP, load]).is_empty());
        assert!(found(&[ADRP, store, pair, other]).is_empty());
        assert!(found(&[ADRP, store]).is_empty());
        assert!(is_near_end_of_page(0x1ff8) && is_near_end_of_page(0x1ffc));
        assert!(!is_near_end_of_page(0x1ff4) && !is_near_end_of_page(0x2000));
    }
}
