//! Tiny functions in place of calls of them: those of a few straight instructions that do not look at the stack.
//!
//! `call F` becomes what F does up to its return. That takes away the call and the return, and is made where it costs
//! little space: the body has at most as many bytes as [`Inlining`] allows. The checker's rule, and what is assumed of
//! the word below the stack pointer, are in `verify/walk/changes/inlining.rs`. Only on machines whose calls put the
//! return address on the stack: elsewhere the register would have to be known to hold nothing.
//!
//! F moves itself, for all other callers: the checker takes nothing else for a body. Where the linker kept no
//! relocations it may be cheaper where it is ([`crate::drivers`], `entered.rs`); what its inlined calls save counts
//! there, and if it stays all the same, its calls do, too. A profile by samples of such a program does not count
//! F for the calls that are inlined: its instructions there are the caller's.

use postlink_isa::{Code, Fixup, Flow, Insn, Isa};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{Change, Folds, Found};
use crate::analyse::Target;
use crate::attach::Counted;
use crate::cfg::{BlockId, Use};
use crate::discover::Program;

/// Which calls are inlined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inlining {
    /// The largest body in bytes (`--inline-small-functions-bytes`); 0: no call is inlined.
    pub bytes: u32,
}

impl Inlining {
    /// What `--inline-small-functions` means without a number, as in llvm-bolt.
    pub const DEFAULT_BYTES: u32 = 4;
    /// The most that the checker accepts.
    pub const MOST_BYTES: u32 = 24;
}

/// The most instructions that the checker accepts.
const INSTRUCTIONS: usize = 8;

/// Bodies of functions that can be inlined, by address of the entry.
#[derive(Default)]
pub struct Bodies(FxHashMap<u64, Code<Target>>);

impl Bodies {
    /// Of all functions that the hot code of `counted` calls and that move themselves: what keeps a function in its
    /// place (it is patched while the program runs, or writable) holds for its copies, too.
    pub(super) fn new<I: Isa>(
        program: &Program<'_>,
        counted: &[Counted<'_>],
        folds: &Folds,
        options: Inlining,
    ) -> Bodies {
        let mut bodies = FxHashMap::default();
        if !I::CALLS_PUSH {
            return Bodies(bodies);
        }
        let largest = options.bytes.min(Inlining::MOST_BYTES);
        let mut callees: Vec<u64> = Vec::new();
        for c in counted {
            let fields = c.analysed.cfg.fields.iter();
            callees.extend(fields.filter(|f| f.role == Use::Call).map(|f| f.target));
        }
        callees.sort_unstable();
        callees.dedup();
        // What stands for a function is its copy.
        let folded = folds.list.iter().map(|f| f.function);
        let moving = counted.iter().map(|c| c.function).chain(folded);
        let moving: FxHashSet<u32> = moving.collect();
        for entry in callees {
            let function = program.piece_at(entry).map(|piece| piece.function);
            if !function.is_some_and(|f| moving.contains(&f)) {
                continue;
            }
            if let Some(code) = body::<I>(program, entry, largest) {
                bodies.insert(entry, code);
            }
        }
        Bodies(bodies)
    }

    /// Forgets those of functions that are in one of some sets of entries.
    pub fn leave_out(&mut self, sets: &[&FxHashSet<u64>]) {
        self.0
            .retain(|entry, _| !sets.iter().any(|set| set.contains(entry)));
    }

    /// By entry: how often calls of it run.
    pub fn executions(&self, counted: &[Counted<'_>]) -> FxHashMap<u64, u64> {
        let mut executions = FxHashMap::default();
        if self.0.is_empty() {
            return executions;
        }
        for c in counted {
            for b in 0..c.analysed.cfg.blocks.len() as BlockId {
                let fields = c.analysed.cfg.fields(b).iter();
                for call in fields.filter(|f| f.role == Use::Call && self.0.contains_key(&f.target))
                {
                    let sum: &mut u64 = executions.entry(call.target).or_default();
                    *sum = sum.saturating_add(c.counts.blocks[b as usize]);
                }
            }
        }
        executions
    }
}

/// The body of the function at an address, without its return.
fn body<I: Isa>(program: &Program<'_>, entry: u64, largest: u32) -> Option<Code<Target>> {
    let piece = program.piece_at(entry)?;
    if program.start(piece.function as usize) != entry {
        return None;
    }
    let bytes = program.elf.bytes_at(entry, piece.end - entry)?;
    let mut code: Code<Target> = Code::default();
    let (mut count, mut returns) = (0, false);
    I::sweep(bytes, entry, |insn| {
        let at = (insn.addr - entry) as usize;
        let own = &bytes[at..at + usize::from(insn.len)];
        if (insn.traits.nop || insn.traits.landing_pad) && count == 0 {
            return true;
        }
        if insn.flow == Flow::Return {
            returns = I::leaves_stack(own, insn);
            return false;
        }
        count += 1;
        insn.flow == Flow::Next
            && count <= INSTRUCTIONS
            && code.bytes.len() + own.len() <= largest as usize
            && I::leaves_stack(own, insn)
            && put(program, &mut code, own, insn)
    });
    (returns && count > 0).then_some(code)
}

/// Appends an instruction of a body. False if it forms an address.
fn put(program: &Program<'_>, code: &mut Code<Target>, own: &[u8], insn: &Insn) -> bool {
    let absolute = program.refs.absolute_fields_in(insn.addr, insn.end());
    // In a program at a fixed address the last four bytes may be one, whether the linker says so or not.
    let last = own
        .last_chunk::<4>()
        .map(|n| u64::from(u32::from_le_bytes(*n)));
    let is_fixed = program.elf.etype == postlink_elf::raw::ET_EXEC;
    if insn.traits.forms_address && insn.field.is_some()
        || program.refs.formed_at(insn.addr).is_some()
        || !absolute.is_empty()
        || is_fixed && last.is_some_and(|at| program.piece_at(at).is_some())
    {
        return false;
    }
    if let Some(field) = insn.field {
        code.fixups.push(Fixup {
            at: code.bytes.len() as u32 + u32::from(field.at),
            kind: field.kind,
            target: Target::Same(field.target),
        });
    }
    code.bytes.extend_from_slice(own);
    true
}

/// The calls of a function that are inlined.
pub(super) fn find<I: Isa>(program: &Program<'_>, bodies: &Bodies, c: &Counted<'_>) -> Found {
    let mut found = Found::default();
    let cfg = &c.analysed.cfg;
    if bodies.0.is_empty() || cfg.faults {
        return found;
    }
    for b in 0..cfg.blocks.len() as BlockId {
        let block = &cfg.blocks[b as usize];
        let mut calls = cfg.fields(b).iter().filter(|f| f.role == Use::Call);
        if c.counts.blocks[b as usize] == 0 || !calls.any(|f| bodies.0.contains_key(&f.target)) {
            continue;
        }
        let Some(bytes) = program.elf.bytes_at(block.start, block.end - block.start) else {
            continue;
        };
        let end = program.piece_at(block.start).map_or(0, |p| p.end);
        I::sweep(bytes, block.start, |insn| {
            let Flow::Call { target } = insn.flow else {
                return true;
            };
            let own = program.piece_at(target).map(|p| p.function);
            // What is called at the very end does not return.
            let Some(code) = (bodies.0.get(&target))
                .filter(|_| !insn.traits.prefixed && insn.end() < end && own != Some(c.function))
            else {
                return true;
            };
            found.sites += 1;
            found.changes.push(Change {
                block: b,
                at: insn.addr,
                len: insn.len,
                code: code.clone(),
            });
            true
        });
    }
    found
}
