//! Counters at entries of x86-64 programs: stores and additions that destroy no register. Additions destroy flags,
//! unless the counter saves them: not where a function begins by reading one.

use super::{Entries, Memory};
use crate::arch::step::flag;
use crate::arch::x86_64::X86_64;
use crate::arch::{Arch, Flow};
use crate::files::bytes::u32_in;

/// Bytes of a jump at an entry.
const JUMP: u64 = 5;
/// The routine that notes first calls begins with `push rax`, `push rcx`, `push rdx`.
const SAVES: [u8; 3] = [0x50, 0x51, 0x52];

impl Entries for X86_64 {
    const MOVES_POINTERS: bool = true;
    /// mov $15, %rax; syscall
    const SIGNAL_RETURN: &[u8] = &[0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05];
    const FLAGS_ALONE: bool = true;

    fn counter(bytes: &[u8], at: u64, memory: &Memory<'_>) -> (u64, bool) {
        let word = |o: usize, trail: u64| {
            let end = at + o as u64 + 4 + trail;
            u32_in(bytes, o).map(|w| end.wrapping_add_signed(i64::from(w as i32)))
        };
        let counts = |o: usize, trail: u64, size: u64| {
            word(o, trail).is_some_and(|c| memory.counts(c, size))
        };
        let is = |o: usize, pattern: &[u8]| bytes.get(o..).is_some_and(|b| b.starts_with(pattern));
        if is(0, &[0xc6, 0x05]) && is(6, &[1]) && counts(2, 1, 1) {
            return (7, true);
        }
        // lea rsp,[rsp-128]; pushfq
        let (down, up): (&[u8], &[u8]) = (
            &[0x48, 0x8d, 0x64, 0x24, 0x80],
            &[0x48, 0x8d, 0xa4, 0x24, 0x80, 0, 0, 0],
        );
        let zone = is(0, down);
        let mut o = if zone { down.len() } else { 0 };
        let flags = is(o, &[0x9c]);
        o += usize::from(flags);
        // jnz over: push r11; lea r11,[c]; call; pop r11
        let slow = |edges: bool, o: usize| {
            is(o, &[0x75, 16, 0x41, 0x53, 0x4c, 0x8d, 0x1d])
                && counts(o + 7, 0, 8)
                && is(o + 11, &[0xe8])
                && is(o + 16, &[0x41, 0x5b])
                && word(o + 12, 0).is_some_and(|t| memory.is_slow(edges, t, &SAVES))
        };
        // test byte [c],63
        if is(o, &[0xf6, 0x05]) && counts(o + 2, 1, 1) && slow(true, o + 7) {
            o += 25;
        }
        // add dword [c],1; sbb dword [c],0
        if !(is(o, &[0x83, 0x05])
            && counts(o + 2, 1, 4)
            && is(o + 6, &[1])
            && is(o + 7, &[0x83, 0x1d])
            && counts(o + 9, 1, 4)
            && is(o + 13, &[0]))
        {
            return (0, false);
        }
        o += 14;
        // cmp dword [t],0
        if is(o, &[0x83, 0x3d]) && counts(o + 2, 1, 4) && is(o + 6, &[0]) && slow(false, o + 7) {
            o += 25;
        }
        for (there, end) in [(flags, &[0x9d][..]), (zone, up)] {
            if there {
                if !is(o, end) {
                    return (0, false);
                }
                o += end.len();
            }
        }
        (o as u64, flags)
    }

    fn jump(_: &[u8], new: &[u8], at: u64) -> Option<(u64, u64)> {
        match Self::decode(new, at)?.flow {
            Flow::Jump(to) if new.first() == Some(&0xe9) => Some((JUMP, to)),
            _ => None,
        }
    }

    /// Whether one of the first instructions, up to a branch, reads a flag that none of them has written.
    fn relies_on_scratch(bytes: &[u8]) -> bool {
        let (mut open, mut at) = (flag::ALL, 0);
        for _ in 0..64 {
            let rest = bytes.get(at..).unwrap_or_default();
            let Some(insn) = Self::decode(rest, 0) else {
                return false;
            };
            at += usize::from(insn.len);
            match insn.flow {
                Flow::Nothing => continue,
                Flow::Next | Flow::Branch { .. } => (),
                _ => return false,
            }
            let effects = Self::effects(rest);
            // What is not known reads everything; compilers begin no function with it.
            if effects.reads == u32::MAX {
                return false;
            }
            if effects.flag_reads & open != 0 {
                return true;
            }
            open &= !effects.flag_kills;
            if open == 0 || insn.flow != Flow::Next {
                return false;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_relies_on_flags_that_it_reads_before_it_writes_them() {
        let relies: [(&[u8], bool); 8] = [
            (&[0x0f, 0x92, 0xc0, 0xc3], true),       // setc al
            (&[0x55, 0x83, 0xd7, 0x00, 0xc3], true), // push; adc edi,0
            (&[0xf3, 0x0f, 0x1e, 0xfa, 0x72, 0x01, 0xc3, 0xc3], true), // endbr64; jc
            (&[0x9c, 0x58, 0xc3], true),             // pushfq
            (&[0x31, 0xc0, 0x0f, 0x92, 0xc0, 0xc3], false), // xor eax,eax; setc
            (&[0x55, 0x48, 0x89, 0xe5, 0xc3], false), // push; mov; ret
            (&[0xe8, 0, 0, 0, 0, 0x72, 0x01], false), // call; jc
            (&[0xf8, 0x72, 0x01, 0xc3], false),      // clc; jc
        ];
        for (bytes, expected) in relies {
            assert_eq!(X86_64::relies_on_scratch(bytes), expected, "{bytes:x?}");
        }
    }
}
