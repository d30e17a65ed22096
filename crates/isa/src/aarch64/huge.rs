//! The start-up routine that asks for huge pages; see [`crate::Runtime::huge_pages`].
//!
//! | step | instructions |
//! |---|---|
//! | may be called indirectly | `bti c` |
//! | keep what is used | `stp x0, x1, [sp, #-32]!; stp x2, x8, [sp, #16]` |
//! | ask for huge pages at once | `adrp x0, start; movz x1; movk x1 (len); movz x2, MADV_COLLAPSE; movz x8, madvise; svc` |
//! | done if that worked | `cbz x0` |
//! | else whenever the system comes to it | `adrp x0, start; movz x2, MADV_HUGEPAGE; svc` |
//! | restore | `ldp x2, x8, [sp, #16]; ldp x0, x1, [sp], #32` |
//! | continue | `b next`, or `ret` |
//!
//! A system call preserves all registers but `x0`. The start is at the beginning of a page.

use crate::{FixupKind, HugePages, OutOfRange, RuntimeEntry};

use super::branch::write_field;
use super::encode::{self, SP};

/// The routine.
pub fn routine(config: &HugePages) -> Result<Vec<u8>, OutOfRange> {
    let (low, high) = (config.len as u16, (config.len >> 16) as u16);
    let mut words = vec![
        encode::BTI_C,
        encode::stp_pre(0, 1, SP, -32),
        encode::stp(2, 8, SP, 16),
        encode::adrp(0),
        encode::movz(1, low, 0),
        encode::movk(1, high, 1),
        encode::movz(2, 25, 0),
        encode::movz(8, 233, 0),
        encode::SVC,
        encode::cbz(0, 4),
        encode::adrp(0),
        encode::movz(2, 14, 0),
        encode::SVC,
        encode::ldp(2, 8, SP, 16),
        encode::ldp_post(0, 1, SP, 32),
    ];
    let next = match config.entry {
        RuntimeEntry::Program { next } | RuntimeEntry::Library { next: Some(next) } => Some(next),
        RuntimeEntry::Library { next: None } => None,
    };
    words.push(next.map_or(encode::RET, |_| encode::B));
    let mut out: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    let fields = [
        (3, FixupKind::Page, Some(config.start)),
        (10, FixupKind::Page, Some(config.start)),
        (15, FixupKind::Branch26, next),
    ];
    for (i, kind, target) in fields {
        if let Some(target) = target {
            write_field(kind, &mut out[4 * i..], config.at + 4 * i as u64, target)?;
        }
    }
    Ok(out)
}
