//! Addresses that words between functions form.
//!
//! In a stripped file neither an unwind entry nor a symbol tells of hand-written code, or of the tables beside it.
//! Where all instructions have the same size, each word is looked at as one. What may describe a function's code by an
//! address inside of it keeps the function in place ([`super::functions`]); of OpenSSL's multiples of a curve's point
//! alone a hundred words would.
//!
//! A word is data if on every way from there control would come to a word that no processor has an instruction for, or
//! to where the file has no code. The checker has the same rule, and code of its own for it.

use postlink_elf::elf::Elf;
use postlink_isa::{FixupKind, Flow, Isa};

use super::pieces::Pieces;

/// More instructions are not looked at.
const MOST: usize = 64;

/// The addresses of places for instructions that single instructions form which are in no piece, ascending; none where
/// instructions differ in size.
pub(super) fn formed_between<I: Isa>(elf: &Elf<'_>, pieces: &Pieces) -> Vec<u64> {
    let step = I::INSTRUCTION_ALIGNMENT;
    let mut formed = Vec::new();
    if step == 1 {
        return formed;
    }
    for section in elf.sections.iter().filter(|s| s.is_code()) {
        let mut at = section.addr.next_multiple_of(step);
        while at < section.end() {
            if let Some(piece) = pieces.at(at) {
                at = pieces.list[piece].end.max(at + step).next_multiple_of(step);
                continue;
            }
            let insn = elf.bytes_at(at, step).and_then(|b| I::decode(b, at));
            let field = insn.filter(|i| i.traits.forms_address);
            let field = field.and_then(|i| i.field);
            if let Some(field) = field.filter(|f| f.kind == FixupKind::Adr)
                // No instruction, row or entry of a table is elsewhere.
                && field.target.is_multiple_of(step)
                && !is_data::<I>(elf, at)
            {
                formed.push(field.target);
            }
            at += step;
        }
    }
    formed.sort_unstable();
    formed.dedup();
    formed
}

/// Whether what is at an address cannot be an instruction that runs.
fn is_data<I: Isa>(elf: &Elf<'_>, at: u64) -> bool {
    let is_code = |at| elf.section_at(at).is_some_and(|(_, s)| s.is_code());
    let (mut ways, mut seen) = (vec![at], Vec::new());
    while let Some(at) = ways.pop() {
        if !is_code(at) {
            continue;
        }
        if seen.contains(&at) || seen.len() == MOST {
            return false;
        }
        seen.push(at);
        let Some(bytes) = elf.bytes_at(at, I::INSTRUCTION_ALIGNMENT) else {
            return false;
        };
        if I::is_unallocated(bytes) {
            continue;
        }
        let Some(insn) = I::decode(bytes, at) else {
            return false;
        };
        match insn.flow {
            Flow::Next => ways.push(insn.end()),
            Flow::Jump { target } => ways.push(target),
            Flow::CondJump { target, .. } | Flow::ShortCond { target } => {
                ways.extend([target, insn.end()]);
            }
            Flow::Call { target } if !is_code(target) => {}
            Flow::Call { .. }
            | Flow::IndirectCall
            | Flow::IndirectJump
            | Flow::Return
            | Flow::Stop
            | Flow::Trap => return false,
        }
    }
    true
}
