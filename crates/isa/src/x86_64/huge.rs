//! The start-up routine that asks for huge pages; see [`crate::Runtime::huge_pages`].
//!
//! | step | instructions |
//! |---|---|
//! | may be called indirectly | `endbr64` |
//! | keep what the system call destroys or takes | `push rdi, rsi, rdx, rax, rcx, r11` |
//! | ask for huge pages at once | `lea rdi, [start]; mov esi, len; mov edx, MADV_COLLAPSE; mov eax, madvise; syscall` |
//! | done if that worked | `test eax, eax; je` |
//! | else whenever the system comes to it | `mov edx, MADV_HUGEPAGE; mov eax, madvise; syscall` |
//! | restore | `pop r11, rcx, rax, rdx, rsi, rdi` |
//! | continue | `jmp next`, or `ret` |
//!
//! Flags hold nothing where a program or a function begins.

use crate::{FixupKind, HugePages, OutOfRange, RuntimeEntry};

use super::branch::write_field;

const KEEP: [u8; 11] = [
    0xf3, 0x0f, 0x1e, 0xfa, 0x57, 0x56, 0x52, 0x50, 0x51, 0x41, 0x53,
];
/// From the length's immediate on.
const ASK: [u8; 30] = [
    0xba, 25, 0, 0, 0, 0xb8, 28, 0, 0, 0, 0x0f, 0x05, 0x85, 0xc0, 0x74, 12, 0xba, 14, 0, 0, 0,
    0xb8, 28, 0, 0, 0, 0x0f, 0x05, 0x41, 0x5b,
];
const RESTORE: [u8; 5] = [0x59, 0x58, 0x5a, 0x5e, 0x5f];

/// The routine.
pub fn routine(config: &HugePages) -> Result<Vec<u8>, OutOfRange> {
    let mut out = KEEP.to_vec();
    let put = |out: &mut Vec<u8>, before: &[u8], target: u64| {
        out.extend_from_slice(before);
        let at = out.len();
        out.extend_from_slice(&[0; 4]);
        let place = config.at + at as u64;
        write_field(FixupKind::Rel32 { trail: 0 }, &mut out[at..], place, target)
    };
    put(&mut out, &[0x48, 0x8d, 0x3d], config.start)?;
    out.push(0xbe);
    out.extend_from_slice(&config.len.to_le_bytes());
    out.extend_from_slice(&ASK);
    out.extend_from_slice(&RESTORE);
    match config.entry {
        RuntimeEntry::Program { next } | RuntimeEntry::Library { next: Some(next) } => {
            put(&mut out, &[0xe9], next)?;
        }
        RuntimeEntry::Library { next: None } => out.push(0xc3),
    }
    Ok(out)
}
