//! Whether what follows a function is padding.
//!
//! A function reaches to the next symbol or unwind entry. Code in between that nothing names (an optimiser moved the
//! function that was there) is not the function's. perf2bolt says what padding is: nothing but breakpoints; or nops,
//! zeros, jumps ahead within it, and on AArch64 the linker's veneers.

use postlink_bolt_symbols::Function;
use postlink_elf::elf::Elf;
use postlink_isa::{Flow, Isa};

use postlink_elf::raw::EM_AARCH64;

/// Whether all that a function reaches beyond its size is padding.
pub(crate) fn is_padded<I: Isa>(elf: &Elf<'_>, function: &Function) -> bool {
    let start = function.start.saturating_add(function.size);
    let Some(len) = function
        .reach
        .checked_sub(function.size)
        .filter(|len| *len > 0)
    else {
        return true;
    };
    let (Some(bytes), Some(end)) = (elf.bytes_at(start, len), start.checked_add(len)) else {
        return true;
    };
    let is_aarch64 = elf.machine == EM_AARCH64;
    if is_breakpoints(bytes, is_aarch64) {
        return true;
    }
    let mut at = 0;
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        let zeros = rest.iter().take_while(|byte| **byte == 0).count();
        let address = start + at as u64;
        let known = I::decode(rest, address).filter(|insn| {
            let own = rest.get(..insn.len.into()).unwrap_or_default();
            let after = address + u64::from(insn.len);
            let ahead = match insn.flow {
                Flow::Jump { target }
                | Flow::CondJump { target, .. }
                | Flow::ShortCond { target }
                | Flow::Call { target } => (after..=end).contains(&target),
                _ => false,
            };
            ahead || is_nop(own, is_aarch64)
        });
        at += match known {
            Some(insn) => usize::from(insn.len),
            None if is_aarch64 && is_veneer(rest) => VENEER,
            None if zeros > 0 => zeros,
            None => return false,
        };
    }
    true
}

fn is_breakpoints(bytes: &[u8], is_aarch64: bool) -> bool {
    if !is_aarch64 {
        return bytes.iter().all(|byte| *byte == 0xcc);
    }
    let (words, rest) = bytes.as_chunks::<4>();
    let is_brk = |word: &[u8; 4]| u32::from_le_bytes(*word) & 0xffe0_001f == 0xd420_0000;
    rest.is_empty() && words.iter().all(is_brk)
}

fn is_nop(insn: &[u8], is_aarch64: bool) -> bool {
    if is_aarch64 {
        return insn == [0x1f, 0x20, 0x03, 0xd5];
    }
    // Operand sizes and segments do not change it; `f3 90` is `pause`.
    let prefixes = insn
        .iter()
        .take_while(|byte| matches!(byte, 0x66 | 0x2e | 0x3e));
    let rest = insn.get(prefixes.count()..).unwrap_or_default();
    matches!(rest, [0x90] | [0x0f, 0x1f, ..] | [0x48, 0x0f, 0x1f, ..])
}

/// Bytes of `adrp x16`, `add x16, x16`, `br x16`.
const VENEER: usize = 12;

fn is_veneer(bytes: &[u8]) -> bool {
    let (words, _) = bytes.as_chunks::<4>();
    let [adrp, add, br, ..] = words else {
        return false;
    };
    let [adrp, add, br] = [adrp, add, br].map(|word| u32::from_le_bytes(*word));
    adrp & 0x9f00_001f == 0x9000_0010 && add & 0xffc0_03ff == 0x9100_0210 && br == 0xd61f_0200
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nops_of_any_length_are_padding_and_other_instructions_are_not() {
        for nop in [
            &[0x90][..],
            &[0x66, 0x90],
            &[0x0f, 0x1f, 0x00],
            &[0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0],
        ] {
            assert!(is_nop(nop, false), "{nop:x?}");
        }
        for other in [
            &[0xf3, 0x90][..],
            &[0xc3],
            &[0xcc],
            &[0xf3, 0x0f, 0x1e, 0xfa],
        ] {
            assert!(!is_nop(other, false), "{other:x?}");
        }
        assert!(is_nop(&0xd503_201fu32.to_le_bytes(), true));
        assert!(!is_nop(&0xd503_241fu32.to_le_bytes(), true), "bti");
    }

    #[test]
    fn breakpoints_and_veneers_are_known() {
        assert!(is_breakpoints(&[0xcc; 5], false));
        assert!(!is_breakpoints(&[0xcc, 0x90], false));
        assert!(is_breakpoints(&0xd420_0020u32.to_le_bytes(), true));
        assert!(!is_breakpoints(&[0xcc; 4], true));
        let words = [0x9000_0010u32, 0x9100_4210, 0xd61f_0200];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert!(is_veneer(&bytes));
        assert!(!is_veneer(&bytes[..8]));
    }
}
