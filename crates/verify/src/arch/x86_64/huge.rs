//! The start-up routine that asks for huge pages, read.

use crate::arch::AsksForHugePages;

/// endbr64; push rdi, rsi, rdx, rax, rcx, r11
const KEEPS: [u8; 11] = [
    0xf3, 0x0f, 0x1e, 0xfa, 0x57, 0x56, 0x52, 0x50, 0x51, 0x41, 0x53,
];
/// mov edx, 25 (MADV_COLLAPSE); mov eax, 28 (madvise); syscall; test eax, eax; je over the next three;
/// mov edx, 14 (MADV_HUGEPAGE); mov eax, 28; syscall
const ASKS: [u8; 28] = [
    0xba, 25, 0, 0, 0, 0xb8, 28, 0, 0, 0, 0x0f, 0x05, 0x85, 0xc0, 0x74, 12, 0xba, 14, 0, 0, 0,
    0xb8, 28, 0, 0, 0, 0x0f, 0x05,
];
/// pop r11, rcx, rax, rdx, rsi, rdi
const RESTORES: [u8; 7] = [0x41, 0x5b, 0x59, 0x58, 0x5a, 0x5e, 0x5f];

/// See [`crate::arch::Arch::asks_for_huge_pages`]. A system call destroys `rax`, `rcx` and `r11` alone.
pub(super) fn read(bytes: &[u8], addr: u64) -> Option<AsksForHugePages> {
    let number = |at: usize| {
        let bytes = bytes.get(at..at + 4)?;
        Some(i32::from_le_bytes(bytes.try_into().ok()?))
    };
    let relative = |at: usize| {
        let end = addr.checked_add(at as u64 + 4)?;
        Some(end.wrapping_add_signed(number(at)?.into()))
    };
    let is = |at: usize, what: &[u8]| bytes.get(at..at + what.len()) == Some(what);
    // lea rdi, [start]; mov esi, len
    let asks = KEEPS.len() + 12;
    let restores = asks + ASKS.len();
    let end = restores + RESTORES.len();
    let whole = is(0, &KEEPS)
        && is(KEEPS.len(), &[0x48, 0x8d, 0x3d])
        && is(KEEPS.len() + 7, &[0xbe])
        && is(asks, &ASKS)
        && is(restores, &RESTORES);
    let next = match bytes.get(end) {
        Some(0xc3) => None,
        Some(0xe9) => Some(relative(end + 1)?),
        _ => return None,
    };
    whole.then_some(AsksForHugePages {
        start: relative(KEEPS.len() + 3)?,
        len: u64::from(number(KEEPS.len() + 8)? as u32),
        next,
    })
}
