//! Calls through the procedure linkage table that take the slot at once.
//!
//! A call of an imported function goes to a stub of the table, which jumps to what a slot holds. The call can go
//! through the slot itself: one jump less, and the stub's line of the instruction cache is not needed. What the slot
//! holds before the loader has bound it is an address in the stub, which pushes the number of the function and goes
//! to the loader; all of that is on the stack and in registers as it was, so lazy binding continues working.
//!
//! | | old | new |
//! |---|---|---|
//! | x86-64 | `call stub`, `jmp stub` | `call [slot]`, `jmp [slot]` |
//! | AArch64 | `bl stub` | `adrp x16; ldr x17; add x16; blr x17`: the stub's own instructions |
//!
//! The checker's rule is in `verify/walk/changes/plt.rs`. On AArch64 it takes 12 bytes more a call, so nothing is
//! done there in blocks that never ran, whatever was asked for.

use postlink_elf::elf::Section;
use postlink_isa::{Code, Flow, Isa};
use rustc_hash::FxHashMap;

use super::{Change, Found};
use crate::analyse::Target;
use crate::attach::Counted;
use crate::cfg::{BlockId, Term};
use crate::discover::Program;

/// Which calls go through their slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Plt {
    /// None.
    #[default]
    None,
    /// Those in blocks that ran.
    Hot,
    /// All in functions that move.
    All,
}

/// Stubs that do nothing but jump to what a slot holds, with the slot.
pub(super) struct Stubs(FxHashMap<u64, u64>);

impl Stubs {
    pub(super) fn new<I: Isa>(program: &Program<'_>) -> Self {
        let mut stubs = FxHashMap::default();
        let sections = program.elf.sections.iter();
        let is_fixed = |s: &Section<'_>| !program.refs.is_writable(s.addr, s.end());
        for s in sections.filter(|s| s.is_code() && s.name.contains("plt") && is_fixed(s)) {
            let data = program.elf.section_data(s);
            let step = I::STUB_ALIGNMENT;
            for (at, addr) in (0..data.len()).zip(s.addr..).step_by(step) {
                if let Some(slot) = I::stub_slot(&data[at..], addr) {
                    stubs.insert(addr, slot);
                }
            }
        }
        Stubs(stubs)
    }
}

/// The calls and tail calls of a function that go through stubs.
pub(super) fn find<I: Isa>(
    program: &Program<'_>,
    stubs: &Stubs,
    c: &Counted<'_>,
    which: Plt,
) -> Found {
    let mut found = Found::default();
    let cfg = &c.analysed.cfg;
    if stubs.0.is_empty() {
        return found;
    }
    for (b, block) in cfg.blocks.iter().enumerate() {
        let is_wanted = c.counts.blocks[b] > 0 || which == Plt::All && I::SLOT_CALLS_ARE_SHORT;
        let Some(bytes) = program.elf.bytes_at(block.start, block.end - block.start) else {
            continue;
        };
        I::sweep(bytes, block.start, |insn| {
            let (target, jump) = match insn.flow {
                Flow::Call { target } => (target, false),
                Flow::Jump { target } if matches!(block.term, Term::JumpOut { .. }) => {
                    (target, true)
                }
                _ => return true,
            };
            let Some(slot) = stubs.0.get(&target).filter(|_| !insn.traits.prefixed) else {
                return true;
            };
            let mut code = Code::default();
            if I::put_through_slot(&mut code, jump, Target::Same(*slot)) {
                found.sites += 1;
                if is_wanted {
                    found.changes.push(Change {
                        block: b as BlockId,
                        at: insn.addr,
                        len: insn.len,
                        code,
                    });
                }
            }
            true
        });
    }
    found
}
