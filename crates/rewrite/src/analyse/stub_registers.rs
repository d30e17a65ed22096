//! Calls and jumps through registers and memory that pass something in a register of linkers' stubs: the eleventh
//! argument of clang's `preserve_none` is in `r11`, and assembly may do as it likes.
//!
//! What is put in front of such a call (a recorder, a comparison of a promoted call) uses those registers. Which
//! call passes something in them, nothing in the file says; but a compiler writes no register that nobody reads. So
//! where the straight-line code in front of the call writes one of them and does not read it again, the call's callee
//! does, and the call is left as it is. What was written further away is not found: that no call passes it on is
//! assumption A11. The checker's rule is in `verify/walk/stub_registers.rs`.

use postlink_isa::{Flow, Isa, RegSet};

use crate::cfg::{Cfg, Site};
use crate::discover::Program;

/// How far in front of a call code is looked at, in bytes; the checker looks no further.
const FAR: u64 = 128;

/// Whether a call or jump passes something in a register of linkers' stubs.
pub fn are_passed_on<I: Isa>(program: &Program<'_>, cfg: &Cfg, site: &Site) -> bool {
    let mut first = site.block as usize;
    let Some(mut start) = cfg.blocks.get(first).map(|block| block.start) else {
        return false;
    };
    // Blocks that others jump to are a part of straight-line code as well.
    while site.at.saturating_sub(start) < FAR
        && let Some(before) = first.checked_sub(1).and_then(|i| cfg.blocks.get(i))
        && before.end == start
    {
        (first, start) = (first - 1, before.start);
    }
    let length = (site.at + u64::from(site.len)).saturating_sub(start);
    let bytes = program.elf.bytes_at(start, length).unwrap_or_default();
    // Written, and not read since.
    let mut held = RegSet::EMPTY;
    I::sweep(bytes, start, |insn| {
        let own = bytes.get((insn.addr - start) as usize..).unwrap_or(&[]);
        if insn.addr >= site.at {
            held = held.minus(I::operand_registers(own, insn));
            return false;
        }
        held = match insn.flow {
            Flow::Next => {
                let effects = I::effects(own, insn);
                let written = RegSet(effects.kills.0 & I::STUB_SCRATCH.0);
                held.minus(effects.reads).or(written)
            }
            _ => RegSet::EMPTY,
        };
        true
    });
    held != RegSet::EMPTY
}
