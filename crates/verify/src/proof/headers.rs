//! That the run-time finds new unwind entries of a program without a program header for its unwind table.
//!
//! Start-up code of static programs of the GNU tools hands a list of entries to the unwinder. It is searched first; of
//! an address that it says nothing about, program headers are asked. So either of two things must hold:
//!
//! | what | where |
//! |---|---|
//! | the output has the header, and there is code that looks for it | the number of its type is in the input's code, whether compared or put together from two halves. A program in which no entry names a personality routine throws and catches nothing, and needs no such code |
//! | code registers the new table in place of the old one | in new code and in code that stays, as kept relocations say |
//!
//! Without kept relocations registration stays as it is, and the first must hold. Only of programs at a fixed address
//! that are linked with nothing else: in others nobody is known who has entries without a header. What is registered is
//! the old table still, which says of the old image what the new one does, and nothing of new code, whose addresses the
//! old image does not have.

use crate::context::{Context, Findings};
use crate::files::elf::{Elf, PT_GNU_EH_FRAME};
use crate::report::{Check, Failure};

const AARCH64: u16 = 183;
/// Instructions between the two that put the number together, and one of them.
const NEAR: usize = 8;

/// Checks that what moved is found.
pub(crate) fn check(cx: &Context<'_>, found: &mut Findings) {
    let table = &cx.old_unwind;
    if cx.input.segment(PT_GNU_EH_FRAME).is_some()
        || table.fdes.is_empty()
        || cx.functions.is_empty()
        || cx.new_unwind.addr == table.addr
    {
        return;
    }
    let mut fail = |text: &str| found.file.push(Failure::new(Check::Unwind, text));
    let throws = table.cies.iter().any(|cie| cie.personality.addr != 0);
    if cx.bare && !cx.is_static() {
        fail("no program header tells of the input's unwind table, and the input is not static");
    } else if cx.bare && throws && !asks(cx.input) {
        fail(
            "no program header tells of the input's unwind table, and no code of it looks for one, so new entries are not found",
        );
    } else if !cx.new_unwind.searchable && (cx.bare || found.registers == 0) {
        fail("neither does a program header tell of the new unwind table, nor is it registered");
    }
}

/// Whether the number of the header's type is in code.
fn asks(input: &Elf<'_>) -> bool {
    let number = PT_GNU_EH_FRAME.to_le_bytes();
    let code = |s: &&crate::files::elf::Section<'_>| s.is_code();
    let mut sections = input.sections.iter().filter(code);
    sections.any(|s| {
        let bytes = input.section_data(s);
        if input.machine == AARCH64 {
            let words = bytes.chunks_exact(4);
            let words: Vec<u32> = words
                .map(|w| w.try_into().map_or(0, u32::from_le_bytes))
                .collect();
            words.contains(&PT_GNU_EH_FRAME)
                || words.windows(NEAR).any(put_together)
                || put_together(&words)
        } else {
            bytes.windows(4).any(|w| w == number)
        }
    })
}

/// Whether the first of some instructions of AArch64 is `mov` of one half of the number, and one of the others `movk`
/// of the other half to the same register.
fn put_together(words: &[u32]) -> bool {
    let halves = [(PT_GNU_EH_FRAME & 0xffff, 0u32), (PT_GNU_EH_FRAME >> 16, 1)];
    let [low, high] = halves.map(|(value, half)| half << 21 | value << 5);
    let Some((first, others)) = words.split_first() else {
        return false;
    };
    let register = first & 31;
    let others = others.iter().take(NEAR);
    let wanted = match first & !31 {
        w if w == 0x5280_0000 | low => high,
        w if w == 0x5280_0000 | high => low,
        _ => return false,
    };
    let mut others = others.copied();
    others.any(|w| w == 0x7280_0000 | wanted | register)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_put_together_from_its_halves_in_either_order() {
        // mov w5, #0xe550; nop; movk w5, #0x6474, lsl #16, and the other way round.
        let low_first = [0x529c_aa05, 0xd503_201f, 0x72ac_8e85];
        let high_first = [0x52ac_8e85, 0x729c_aa05];
        assert!(put_together(&low_first) && put_together(&high_first));
        // Another register, another number, no second half.
        assert!(!put_together(&[0x529c_aa05, 0x72ac_8e84]));
        assert!(!put_together(&[0x529c_aa25, 0x72ac_8e85]));
        assert!(!put_together(&[0x529c_aa05]));
    }
}
