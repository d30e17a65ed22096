//! How many counters a function has, and whether it can be moved at all, as far as the sweep over all code shows that
//! without decoding the function again.
//!
//! That is so for functions of one [plain piece](crate::discover): what [`prepare::analyse_flow`](super::prepare) would
//! look at besides is looked at here, in the same order. It says nothing of all others.

use postlink_isa::Isa;

use super::entry::{JumpAt, jump_at};
use super::prepare::FunctionCounters;
use super::unwind::FunctionUnwind;
use crate::discover::{NonlocalExits, Program, linker_veneers};
use crate::pin::Pin;

/// The counters of a function, if it is plain.
pub(crate) fn of_plain<I: Isa>(
    program: &Program<'_>,
    nonlocal_exits: &NonlocalExits,
    function: usize,
) -> Option<FunctionCounters> {
    let shapes = program.shapes.as_ref()?;
    let f = &program.functions[function];
    let start = program.start(function);
    if linker_veneers::behind(program, start).is_some() {
        return Some(FunctionCounters::none(Pin::Veneer));
    }
    if let Some(pin) = f.pin {
        return Some(FunctionCounters::none(pin));
    }
    let &[index] = &f.pieces[..] else {
        return None;
    };
    let (shape, callees) = shapes.plain(index as usize)?;
    let piece = &program.pieces[index as usize];
    let numbers = || program.entry_proof.numbers_inside(piece.start, piece.end);
    if !f.entries.is_empty() || !f.labels.is_empty() || !program.refs.kept && !numbers().is_empty()
    {
        return None;
    }
    match FunctionUnwind::check_plain(program, piece) {
        Some(Ok(())) => {}
        Some(Err(pin)) => return Some(FunctionCounters::none(pin)),
        None => return None,
    }
    // Without relocations pointers stay, and control that enters through one runs the old body.
    if f.address_taken && program.refs.kept {
        match jump_at::<I>(program, start, u64::from(shape.second_block)) {
            JumpAt::Fits => {}
            JumpAt::DoesNot => return Some(FunctionCounters::none(Pin::NoRoomAtEntry)),
            JumpAt::OverBlocks => return None,
        }
    }
    let mut counters = 1 + shape.conditional;
    for callee in callees {
        let call = nonlocal_exits.known(callee);
        if call.returns_twice {
            return None;
        }
        counters += u32::from(call.nonlocal_exits);
    }
    Some(FunctionCounters {
        counters,
        sites: shape.sites,
        pin: None,
    })
}
