//! `.note.stapsdt`: the static probes of a program (`sys/sdt.h`, DTrace's `provider` macros, Rust's `usdt`).
//!
//! A probe is an instruction that does nothing, in the middle of code. perf, bpftrace, SystemTap and gdb put a
//! breakpoint there. Where it is, and where its arguments are, is in a note of owner `stapsdt` and type 3:
//!
//! | description | |
//! |---|---|
//! | u64 | address of the probe |
//! | u64 | address that the section `.stapsdt.base` had when the program was linked |
//! | u64 | address of its semaphore, a counter of listeners; 0: it has none |
//! | strings | provider, name, arguments (registers and constants), each with a zero byte at its end |
//!
//! If something has moved the whole program after linking, all addresses are off by as much as the base is.
//!
//! Source: SystemTap, `includes/sys/sdt.h` and its wiki page *UserSpaceProbeImplementation*.

use crate::elf::notes::notes;
use crate::elf::{Elf, Section};
use crate::raw;

/// Name of the section.
pub const SECTION: &str = ".note.stapsdt";
/// Whose address is in the notes.
const BASE: &str = ".stapsdt.base";

/// A probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Offset of its address in the section.
    pub field: usize,
    /// Its address.
    pub at: u64,
    /// What is to be added to the field for the address.
    pub moved_by: u64,
}

/// The section with its index, if a file has one.
pub fn section<'e, 'd>(elf: &'e Elf<'d>) -> Option<(usize, &'e Section<'d>)> {
    let found = elf.section(SECTION);
    found.filter(|(_, s)| s.kind == raw::SHT_NOTE && s.size > 0)
}

/// The probes of a file. Ends in front of the first note that does not fit.
pub fn probes(elf: &Elf<'_>) -> Vec<Probe> {
    let Some((_, section)) = section(elf) else {
        return Vec::new();
    };
    let base = elf.section(BASE).map(|(_, s)| s.addr);
    let mut out = Vec::new();
    for note in notes(elf.section_data(section), section.align) {
        if note.name != b"stapsdt" || note.kind != 3 {
            continue;
        }
        if let (Some(at), Some(linked)) = (raw::u64_at(note.desc, 0), raw::u64_at(note.desc, 8)) {
            let moved_by = base.filter(|_| linked != 0).unwrap_or(linked);
            let moved_by = moved_by.wrapping_sub(linked);
            out.push(Probe {
                field: note.desc_at,
                at: at.wrapping_add(moved_by),
                moved_by,
            });
        }
    }
    out
}
