//! Loads of constants that become immediates.
//!
//! What is loaded from memory that nothing ever writes is known now: the load can be an instruction that has the number
//! in it, which takes no place in the data cache. Memory is taken for constant if it is in the file, in a
//! segment that is not writable at any time (so not in what the loader makes read-only after it has relocated it),
//! and no dynamic relocation is in it. New code is never longer on x86-64, and at most one instruction longer on
//! AArch64, for a literal.
//!
//! Which instructions that can be done with is given by the instruction set ([`Encode::fold_constants`]); the
//! checker's rule is in `verify/walk/changes/constants.rs`.
//!
//! [`Encode::fold_constants`]: postlink_isa::Encode::fold_constants

use postlink_elf::elf::Section;
use postlink_elf::raw;
use postlink_isa::Isa;

use super::{Change, Found};
use crate::attach::Counted;
use crate::cfg::BlockId;
use crate::discover::Program;

/// Where a file's memory never changes.
pub(super) struct Constants<'a, 'd> {
    program: &'a Program<'d>,
    /// Dynamic relocations in memory that is not writable, ascending.
    relocated: Vec<u64>,
}

/// The most bytes that a dynamic relocation writes.
const RELOCATED: u64 = 16;

impl<'a, 'd> Constants<'a, 'd> {
    pub(super) fn new(program: &'a Program<'d>) -> Self {
        let all = program.elf.dyn_relocs().unwrap_or_default();
        let written = all.iter().map(|r| r.addr);
        let mut relocated: Vec<u64> = written.filter(|at| !is_writable(program, *at)).collect();
        relocated.sort_unstable();
        Constants { program, relocated }
    }

    /// Bytes at an address, if they are the same at any time.
    fn bytes(&self, at: u64, len: u64) -> Option<&'d [u8]> {
        let from = at.checked_sub(RELOCATED - 1)?;
        let next = self.relocated.partition_point(|r| *r < from);
        let is_relocated = self
            .relocated
            .get(next)
            .is_some_and(|r| *r < at.saturating_add(len));
        let bytes = self.program.elf.bytes_at(at, len)?;
        let is_fixed = !is_relocated
            && !is_writable(self.program, at)
            && !may_change(self.program, at, at.saturating_add(len));
        is_fixed.then_some(bytes)
    }
}

/// Whether bytes in `[from, to)` may be others in the output: pointers to functions, and what describes the file or
/// its code.
fn may_change(program: &Program<'_>, from: u64, to: u64) -> bool {
    let is_plain = |s: &Section<'_>| {
        let describes = s.name.starts_with(".eh_frame") || s.name.starts_with(".gcc_except_table");
        s.is_alloc() && s.kind == raw::SHT_PROGBITS && !describes && s.addr <= from && to <= s.end()
    };
    let pointers = &program.refs.pointers;
    let first = pointers.partition_point(|p| p.place.saturating_add(8) <= from);
    let is_pointer = pointers.get(first).is_some_and(|p| p.place < to);
    is_pointer || !program.elf.sections.iter().any(is_plain)
}

/// Whether an address is in memory that can be written to, or that the loader writes to.
fn is_writable(program: &Program<'_>, at: u64) -> bool {
    let elf = program.elf;
    let segment = elf.load_at(at);
    let mut relro = elf.segments.iter().filter(|s| s.kind == raw::PT_GNU_RELRO);
    segment.is_none_or(|s| s.flags & raw::PF_W != 0)
        || relro.any(|s| at >= s.addr && at - s.addr < s.mem_size)
}

/// The loads of constants in blocks that ran.
pub(super) fn find<I: Isa>(
    program: &Program<'_>,
    constants: &Constants<'_, '_>,
    c: &Counted<'_>,
) -> Found {
    let mut found = Found::default();
    let cfg = &c.analysed.cfg;
    for (b, block) in cfg.blocks.iter().enumerate() {
        let len = block.term_at - block.start;
        let Some(bytes) = program.elf.bytes_at(block.start, len) else {
            continue;
        };
        let constant = |at, len| constants.bytes(at, len);
        I::fold_constants(bytes, block.start, constant, |insn, code| {
            found.sites += 1;
            if let Some(code) = code
                && c.counts.blocks[b] > 0
            {
                found.changes.push(Change {
                    block: b as BlockId,
                    at: insn.addr,
                    len: insn.len,
                    code,
                });
            }
        });
    }
    found
}
