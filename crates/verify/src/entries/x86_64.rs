//! Counters at entries of x86-64 programs: stores and additions that destroy no register, and flags only
//! where they mean nothing.

use super::{Entries, Memory};
use crate::arch::x86_64::X86_64;
use crate::arch::{Arch, Flow};
use crate::files::bytes::u32_in;

/// Bytes of a jump at an entry.
const JUMP: u64 = 5;
/// The routine that notes first calls begins with `push rax`, `push rcx`, `push rdx`.
const SAVES: [u8; 3] = [0x50, 0x51, 0x52];

impl Entries for X86_64 {
    const MOVES_POINTERS: bool = true;

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
        (o as u64, true)
    }

    fn jump(_: &[u8], new: &[u8], at: u64) -> Option<(u64, u64)> {
        match Self::decode(new, at)?.flow {
            Flow::Jump(to) if new.first() == Some(&0xe9) => Some((JUMP, to)),
            _ => None,
        }
    }

    fn relies_on_scratch(_: &[u8]) -> bool {
        false
    }
}
