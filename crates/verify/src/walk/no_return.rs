//! Calls of functions that do not return.
//!
//! Nothing in a program says that what follows a call is never reached: compilers leave out of a function what would
//! come after `call abort`, and what stands there is another block, in which registers hold something else. Where data
//! flow over new code ([`super::own_tables`]) succeeds only if such a call ends a path, the function rests on
//! assumption A16.
//!
//! | which functions | how they are known |
//! |---|---|
//! | of libraries, declared not to return | by their names ([`crate::proof::no_return`]) |
//! | of the program, with neither a return nor a jump out of them | by the code that their unwind entry covers. Control may leave it at its end behind a call, which then is one that does not return |

use rustc_hash::FxHashSet;

use crate::addr::InputAddr;
use crate::arch::{Arch, Flow};
use crate::context::Context;

/// Whether the code that an unwind entry covers from an address on has no way to return.
fn has_no_return<A: Arch>(cx: &Context<'_>, start: u64) -> bool {
    let fde = cx.old_unwind.find(start).filter(|fde| fde.start == start);
    let Some(code) = fde.and_then(|fde| cx.input.bytes(start, fde.end.checked_sub(start)?)) else {
        return false;
    };
    let end = start + code.len() as u64;
    if !cx.is_code(start) || cx.may_be_written(start, end) {
        return false;
    }
    let (mut starts, mut targets) = (FxHashSet::default(), Vec::new());
    let (mut at, mut falls_off) = (0, true);
    while let Some(bytes) = code.get(at..).filter(|bytes| !bytes.is_empty()) {
        let addr = start + at as u64;
        let Some(insn) = A::decode(bytes, addr).filter(|insn| insn.len > 0) else {
            return false;
        };
        starts.insert(addr);
        match insn.flow {
            Flow::Jump(target) | Flow::Branch { target, .. } => targets.push(target),
            Flow::IndirectJump { .. } => return false,
            Flow::Stop if !A::only_faults(bytes) => return false,
            _ => {}
        }
        // Padding is behind the end.
        if insn.flow != Flow::Nothing {
            falls_off = matches!(insn.flow, Flow::Next | Flow::Branch { .. } | Flow::Trap);
        }
        at += usize::from(insn.len);
    }
    !falls_off && at == code.len() && targets.iter().all(|target| starts.contains(target))
}

/// Whether the old instruction at `p`, which begins with these bytes, calls one of them.
pub(crate) fn is_called<A: Arch>(cx: &Context<'_>, p: InputAddr, bytes: &[u8]) -> bool {
    let place = match A::decode(bytes, p.get()).map(|insn| insn.flow) {
        Some(Flow::Call(target)) if cx.without_return.contains(&target) => Some(target),
        Some(Flow::Call(target)) if has_no_return::<A>(cx, target) => return true,
        Some(Flow::Call(stub)) => {
            let code = cx.input.bytes_from(stub).filter(|_| cx.is_code(stub));
            code.and_then(|code| A::stub_slot(code, stub))
        }
        Some(Flow::IndirectCall) => A::through_slot(bytes, p.get())
            .filter(|through| through.call)
            .map(|through| through.slot),
        _ => None,
    };
    place.is_some_and(|place| cx.without_return.contains(&place))
}
