//! Functions that do not return.
//!
//! Nothing in a program says that what follows a call is never reached: compilers leave out of a function what would come
//! after `call abort`, and what stands there is another block, in which registers hold something else. Where data flow
//! over new code ([`crate::walk`]) succeeds only if such a call ends a path, the function rests on assumption A16.
//!
//! | which functions | how they are known |
//! |---|---|
//! | of libraries, declared not to return | by names in `.dynsym`: of imported functions, by the slot of which the loader is told the name, and of exported ones |
//! | of the program, with neither a return nor a jump out of them | by the code that their unwind entry covers. Control may leave it at its end behind a call, which then is one that does not return |

use rustc_hash::FxHashSet;

use super::image::rela_tables;
use crate::addr::InputAddr;
use crate::arch::{Arch, Flow};
use crate::context::Context;
use crate::files::bytes::u64_in;
use crate::files::elf::{Elf, SHT_DYNSYM};

/// Functions of the C library, of unwinders and of the run-times of C++ and Rust.
const NAMES: [&[u8]; 28] = [
    b"abort",
    b"exit",
    b"_exit",
    b"_Exit",
    b"quick_exit",
    b"pthread_exit",
    b"__assert_fail",
    b"__assert_perror_fail",
    b"__stack_chk_fail",
    b"__chk_fail",
    b"__fortify_fail",
    b"longjmp",
    b"_longjmp",
    b"siglongjmp",
    b"__longjmp_chk",
    b"__cxa_throw",
    b"__cxa_rethrow",
    b"__cxa_bad_cast",
    b"__cxa_bad_typeid",
    b"__cxa_throw_bad_array_new_length",
    b"__cxa_call_unexpected",
    b"__cxa_pure_virtual",
    b"__cxa_call_terminate",
    b"_Unwind_Resume",
    b"_ZSt9terminatev",
    b"__clang_call_terminate",
    b"rust_panic",
    b"rust_begin_unwind",
];

/// Whether a function of that name is declared not to return.
fn is_declared(name: &[u8]) -> bool {
    // A version may follow.
    let name = name.split(|c| *c == b'@').next().unwrap_or(name);
    // `std::__throw_out_of_range` and others, which do nothing but throw.
    let throws = || {
        let rest = name.strip_prefix(b"_ZSt")?;
        let digits = rest.iter().take_while(|c| c.is_ascii_digit()).count();
        let rest = rest.get(digits..).filter(|_| digits > 0)?;
        Some(rest.starts_with(b"__throw_"))
    };
    NAMES.contains(&name) || throws().unwrap_or(false)
}

/// The slots of such functions that are imported, and the addresses of those that are exported.
pub(crate) fn places<A: Arch>(elf: &Elf<'_>) -> FxHashSet<u64> {
    let symbols: Vec<(bool, u64)> = elf
        .symbols(SHT_DYNSYM)
        .map(|s| {
            (
                is_declared(s.name),
                if s.is_function() { s.value } else { 0 },
            )
        })
        .collect();
    let exported = symbols.iter().filter(|s| s.0 && s.1 != 0).map(|s| s.1);
    let mut places: FxHashSet<u64> = exported.collect();
    for table in rela_tables(elf) {
        let bytes = elf.bytes(table.start, table.len()).unwrap_or_default();
        for entry in bytes.chunks_exact(24) {
            let (Some(place), Some(info)) = (u64_in(entry, 0), u64_in(entry, 8)) else {
                continue;
            };
            let symbol = symbols.get((info >> 32) as usize);
            if A::IMPORTS.contains(&(info as u32)) && symbol.is_some_and(|s| s.0) {
                places.insert(place);
            }
        }
    }
    places
}

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

#[cfg(test)]
mod tests {
    use super::is_declared;

    #[test]
    fn names_are_taken_with_versions_and_not_in_parts() {
        for name in [
            "abort",
            "exit@GLIBC_2.2.5",
            "__stack_chk_fail@@GLIBC_2.4",
            "_ZSt20__throw_length_errorPKc",
        ] {
            assert!(is_declared(name.as_bytes()), "{name}");
        }
        for name in ["aborted", "at_exit", "_ZSt__throw_x", "_ZSt4swap", "", "@"] {
            assert!(!is_declared(name.as_bytes()), "{name}");
        }
    }
}
