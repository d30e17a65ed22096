//! Erratum 843419 of Cortex-A53, by which the processor may use a wrong address: an `adrp` in one of the last two words
//! of a page, a load or store, and one or two instructions behind that one with an unsigned offset whose base the
//! `adrp` has written.
//!
//! Linkers can see to it that no program has such a sequence (`--fix-cortex-a53-843419`). Where the input has none and
//! the output has one, it is assumed that the program does not run on that processor (A18).

use crate::addr::OutputAddr;
use crate::arch::Arch;
use crate::arch::aarch64::AArch64;
use crate::context::{Context, Findings, code_ranges};
use crate::files::bytes::u32_in;
use crate::files::claim::Range;
use crate::files::elf::Elf;

/// The last words of a page begin there.
const LAST_WORDS: u64 = 0xff8;

/// Whether such a sequence begins with the first of some instructions.
fn begins(code: &[u8]) -> bool {
    let word = |k: usize| u32_in(code, 4 * k);
    let Some(page) = word(0).filter(|w| w & 0x9f00_0000 == 0x9000_0000) else {
        return false;
    };
    let is_access = |w: u32| w & 0x0a00_0000 == 0x0800_0000;
    let uses = |w: u32| w & 0x3b00_0000 == 0x3900_0000 && w >> 5 & 31 == page & 31;
    word(1).is_some_and(is_access) && (word(2).is_some_and(uses) || word(3).is_some_and(uses))
}

/// Where such sequences begin in a range of code, as the file has it.
fn places(elf: &Elf<'_>, range: Range) -> impl Iterator<Item = u64> {
    let pages = range.start >> 12..=range.end >> 12;
    let last = pages.flat_map(|page| [0, 4].map(|word| (page << 12) + LAST_WORDS + word));
    last.filter(move |at| {
        let here = range.start <= *at && *at < range.end;
        let code = || elf.bytes_as_written(*at, (range.end - at).min(16));
        here && code().is_some_and(begins)
    })
}

/// Looks for such sequences in new code.
pub(crate) fn look<A: Arch>(cx: &Context<'_>, found: &mut Findings) {
    let has_some = |r: &Range| places(cx.input, *r).next().is_some();
    if A::MACHINE != AArch64::MACHINE || cx.code.iter().any(has_some) {
        return;
    }
    for range in code_ranges(cx.output) {
        for at in places(cx.output, range) {
            match cx.new.owner(OutputAddr::new(at)) {
                Some(id) => found.erratum.push(id),
                None => found.erratum_elsewhere = true,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn sequences_are_told_from_others() {
        let begins = |words: &[u32]| {
            let code: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            super::begins(&code)
        };
        let (adrp, nop) = (0xb000_0005, 0xd503_201f);
        // ldr q0, [sp]; str w1, [x5, #4]; str w1, [x6, #4].
        let (access, use_of_page, other) = (0x3dc0_03e0, 0xb900_04a1, 0xb900_04c1);
        assert!(begins(&[adrp, access, use_of_page]));
        assert!(begins(&[adrp, access, nop, use_of_page]));
        assert!(!begins(&[adrp, access, nop, nop, use_of_page]));
        assert!(!begins(&[adrp, nop, use_of_page, use_of_page]));
        assert!(!begins(&[adrp, access, other, other]));
        assert!(!begins(&[nop, access, use_of_page]));
        assert!(!begins(&[adrp, access]));
    }
}
