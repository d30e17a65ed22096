//! Code without the veneers for erratum 843419 of Cortex-A53.
//!
//! The processor may get an address wrong that `adrp` forms in one of the last two words of a page, and that a load or
//! store with an offset uses one or two instructions behind the next. Linkers know (`--fix-cortex-a53-843419`, which
//! distributions' compilers for AArch64 ask for) and move the load or store into a veneer:
//!
//! | place | before | after |
//! |---|---|---|
//! | P, 8 or 12 bytes behind the `adrp` | `ldr x1, [x0, #n]` | `b V` |
//! | V, between functions | | `ldr x1, [x0, #n]` |
//! | V + 4 | | `b P + 4` |
//!
//! A stripped file has neither a symbol nor an unwind entry for V: `b V` seems to leave the function, and V + 4 to
//! enter it in the middle. So code is read as it was before ([`Elf::with_code`]); what is written stays what it is in
//! the file. New code, with the load or store in its place, is placed so that it needs no veneer.

use super::Elf;
use crate::raw;

/// The words of a page behind which an `adrp` may go wrong begin there.
const LAST_WORDS: u64 = 0xff8;

impl<'d> Elf<'d> {
    /// The file with every load and store in its place that the linker has moved into such a veneer; `None` if there is
    /// none.
    pub fn without_erratum_veneers(&self) -> Option<Vec<u8>> {
        if self.machine != raw::EM_AARCH64 {
            return None;
        }
        let mut code: Option<Vec<u8>> = None;
        for section in self.sections.iter().filter(|s| s.is_code()) {
            let pages = section.addr >> 12..=section.end() >> 12;
            let last = pages.flat_map(|page| [0, 4].map(|word| (page << 12) + LAST_WORDS + word));
            let places = last.flat_map(|adrp| [8, 12].map(|by| (adrp, adrp + by)));
            for (adrp, place) in places.filter(|p| p.1 < section.end()) {
                let moved = self.moved_by_erratum(adrp, place);
                if let Some((word, at)) = moved.zip(self.offset_of(place)) {
                    let code = code.get_or_insert_with(|| self.data.to_vec());
                    if let Some(old) = code.get_mut(at as usize..at as usize + 4) {
                        old.copy_from_slice(&word.to_le_bytes());
                    }
                }
            }
        }
        code
    }

    /// The instruction of the veneer that the branch at `place` goes to.
    fn moved_by_erratum(&self, adrp: u64, place: u64) -> Option<u32> {
        let page = self.word_at(adrp)?;
        let veneer = branch(self.word_at(place)?, place)?;
        let back = branch(self.word_at(veneer.checked_add(4)?)?, veneer + 4)?;
        let word = self.word_at(veneer)?;
        let uses = uses_page(word) == Some(page & 31);
        (is_adrp(page) && back == place + 4 && uses).then_some(word)
    }

    fn word_at(&self, addr: u64) -> Option<u32> {
        raw::u32_at(self.bytes_at(addr, 4)?, 0)
    }

    /// The same file, whose code is read from `code`, which has everything else in the same places.
    pub fn with_code(mut self, code: &'d [u8]) -> Elf<'d> {
        self.code = code;
        self
    }
}

fn is_adrp(word: u32) -> bool {
    word & 0x9f00_0000 == 0x9000_0000
}

/// Where a direct branch goes.
fn branch(word: u32, at: u64) -> Option<u64> {
    let distance = i64::from((word << 6) as i32 >> 4);
    (word >> 26 == 5).then(|| at.wrapping_add_signed(distance))
}

/// The base register of a load or store with an unsigned offset.
fn uses_page(word: u32) -> Option<u32> {
    (word & 0x3b00_0000 == 0x3900_0000).then_some(word >> 5 & 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn branches_and_uses_of_pages_are_read() {
        assert_eq!(branch(0x1400_0002, 0x1000), Some(0x1008));
        assert_eq!(branch(0x17ff_ffff, 0x1000), Some(0xffc));
        assert_eq!(branch(0x9400_0002, 0x1000), None);
        // ldr x1, [x0]; str q1, [x19, #32]; ldr x1, [x0], #8; ldur x1, [x0, #8]
        assert_eq!(uses_page(0xf940_0001), Some(0));
        assert_eq!(uses_page(0x3d80_0a61), Some(19));
        assert_eq!(uses_page(0xf840_8401), None);
        assert_eq!(uses_page(0xf840_8001), None);
        assert!(is_adrp(0xb0ff_d0c0) && !is_adrp(0x1000_0080));
    }
}
