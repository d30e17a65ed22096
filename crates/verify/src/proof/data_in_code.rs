//! Words between functions that look like instructions and are data.
//!
//! Hand-written code keeps its tables beside it, and in a stripped file neither an unwind entry nor a symbol tells of
//! them. OpenSSL's multiples of a curve's point are 150 KiB of numbers, of which more than a hundred look like an `adr`
//! that forms an address inside of another function.
//!
//! Such a word is no instruction if on every way from there control would come to a word that no processor has an
//! instruction for, or to where the file has no code: a program that does that ends. A way that goes on elsewhere,
//! comes back, or is longer than is looked at, says nothing.

use crate::arch::{Arch, Flow};
use crate::context::Context;

/// More instructions are not looked at.
const MOST: usize = 64;

/// Whether what is at an address of the input cannot be an instruction that runs. Only where all instructions have the
/// same size: elsewhere it is not known where one begins.
pub(crate) fn is_data<A: Arch>(cx: &Context<'_>, at: u64) -> bool {
    let is_code = |at| cx.is_code(at);
    let bytes = |at| cx.input.bytes(at, A::STEP as u64);
    A::STEP > 1 && never_runs::<A>(at, is_code, bytes)
}

/// The same, of code that `bytes` gives an instruction's bytes of.
fn never_runs<'c, A: Arch>(
    at: u64,
    is_code: impl Fn(u64) -> bool,
    bytes: impl Fn(u64) -> Option<&'c [u8]>,
) -> bool {
    let (mut ways, mut seen) = (vec![at], Vec::new());
    while let Some(at) = ways.pop() {
        if !is_code(at) {
            continue;
        }
        if seen.contains(&at) || seen.len() == MOST {
            return false;
        }
        seen.push(at);
        let Some(bytes) = bytes(at) else {
            return false;
        };
        if A::is_unallocated(bytes) {
            continue;
        }
        let Some(insn) = A::decode(bytes, at) else {
            return false;
        };
        let next = at.wrapping_add(A::STEP as u64);
        match insn.flow {
            Flow::Next | Flow::Nothing => ways.push(next),
            Flow::Jump(target) => ways.push(target),
            Flow::Branch { target, .. } => ways.extend([target, next]),
            Flow::Call(target) if !is_code(target) => {}
            Flow::Call(_)
            | Flow::IndirectCall
            | Flow::IndirectJump { .. }
            | Flow::Stop
            | Flow::Trap => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::{aarch64::AArch64, x86_64::X86_64};

    const FORMS: u32 = 0x1000_0080; // adr x0, . + 16
    const NOP: u32 = 0xd503_201f;
    const NONE: u32 = 0x0200_0000;

    fn is_data(words: &[u32]) -> bool {
        let code: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let end = 0x1000 + code.len() as u64;
        never_runs::<AArch64>(
            0x1000,
            |at| (0x1000..end).contains(&at),
            |at| code.get((at - 0x1000) as usize..)?.get(..4),
        )
    }

    #[test]
    fn words_that_lead_to_no_instruction_on_every_way_are_data() {
        assert!(is_data(&[FORMS, NONE]));
        assert!(is_data(&[FORMS, NOP, NOP, 0x0600_0000]));
        assert!(is_data(&[FORMS, 0x0000_1234]), "permanently undefined");
        assert!(is_data(&[FORMS, 0xd4c5_848c]), "no exception");
        assert!(is_data(&[FORMS, NOP]), "the end of the code");
        // b and bl to where no code is.
        assert!(is_data(&[FORMS, 0x1400_1000]));
        assert!(is_data(&[FORMS, 0x9400_1000, 0xd65f_03c0]));
        // cbz x0, . + 8, to one of two, both of which are none.
        assert!(is_data(&[FORMS, 0xb400_0040, NONE, NONE]));
    }

    #[test]
    fn what_may_run_is_no_data() {
        let ret = 0xd65f_03c0;
        assert!(!is_data(&[FORMS, ret]));
        assert!(!is_data(&[FORMS, ret, NONE]));
        // One of two ways goes on.
        assert!(!is_data(&[FORMS, 0xb400_0040, NONE, ret]));
        assert!(!is_data(&[FORMS, 0xb400_0040, ret, NONE]));
        // A call that may not return, or not come back here; a system call; a breakpoint; br x0.
        for other in [
            0x9400_0000,
            0xd63f_0000,
            0xd400_0001,
            0xd420_0000,
            0xd61f_0000,
        ] {
            assert!(!is_data(&[FORMS, other, NONE]), "{other:#x}");
        }
        // b . - 4: a loop.
        assert!(!is_data(&[FORMS, NOP, 0x17ff_ffff]));
        // A newer branch, which the decoder refuses.
        assert!(!is_data(&[FORMS, 0x7400_0000, NONE]));
        // Further than is looked at.
        let far: Vec<u32> = std::iter::once(FORMS)
            .chain([NOP; 100])
            .chain([NONE])
            .collect();
        assert!(!is_data(&far));
    }

    #[test]
    fn where_instructions_begin_anywhere_nothing_is_unallocated() {
        assert!(!X86_64::is_unallocated(&[0x0f, 0x0b]));
    }
}
