//! Functions of a C library that is linked into the program.
//!
//! Of an imported `free` it is known that it neither unwinds nor calls back, by its name ([`libc::is_safe`]).
//! In a static program the same function is one of its own: the call graph would have to say so, but inside
//! of it are calls through pointers and ways to `abort`, so every call of it, and every call of what calls
//! it, would cost a counter. But a name alone says little there: any program may have a function `log` or
//! `open` of its own. What is taken for the library's is:
//!
//! | a global symbol with a safe name | because |
//! |---|---|
//! | that has another name for the same address, `__NAME`, `__libc_NAME` or `_IO_NAME` | libraries call themselves by such names, which no program may define |
//! | that begins with `_` | such names are reserved for libraries |
//! | whose address a resolver chooses when the program starts | variants for processors exist of the library's functions; calls go to a stub, which is listed too |
//!
//! Only calls are judged by this. What happens inside of such functions is counted as it is.

use postlink_elf::elf::{Elf, SymbolTable};
use postlink_elf::raw::{STT_FUNC, STT_GNU_IFUNC};
use postlink_isa::{Flow, Insn, Isa};
use rustc_hash::{FxHashMap, FxHashSet};

use super::libc;
use super::refs::Refs;

/// Calls `found` with each stub of a procedure linkage table and the slot that it jumps through.
pub fn stubs<I: Isa>(elf: &Elf<'_>, mut found: impl FnMut(u64, u64)) {
    for s in elf
        .sections
        .iter()
        .filter(|s| s.is_code() && s.name.contains("plt"))
    {
        let mut start = s.addr;
        let mut stub: Vec<Insn> = Vec::new();
        let code = |i: &Insn| elf.bytes_at(i.addr, u64::from(i.len)).unwrap_or(&[]);
        let _ = I::sweep(elf.section_data(s), s.addr, |insn| {
            if start == insn.addr || stub.len() > 16 {
                stub.clear();
            }
            stub.push(*insn);
            if insn.flow == Flow::IndirectJump
                && let Some(slot) = I::jump_slot(&stub, code)
            {
                found(start, slot);
            }
            // A stub begins after the padding or the last jump of the one before.
            if matches!(insn.flow, Flow::IndirectJump | Flow::Jump { .. }) || insn.traits.nop {
                start = insn.end();
            }
            true
        });
    }
}

/// Addresses of the program's own functions, and stubs to them, that neither unwind nor call back because
/// they are the library's; see above. None in a program that is linked with libraries.
pub fn safe<I: Isa>(elf: &Elf<'_>, refs: &Refs) -> FxHashSet<u64> {
    let mut safe = FxHashSet::default();
    if !libc::is_static(elf) {
        return safe;
    }
    let symbols = elf.symbols(SymbolTable::Static);
    let mut named: FxHashMap<u64, Vec<&[u8]>> = FxHashMap::default();
    let mut resolvers: FxHashSet<u64> = FxHashSet::default();
    for s in symbols.iter().filter(|s| s.section != 0 && s.binding != 0) {
        if !libc::is_safe(s.name) {
            continue;
        }
        match s.kind {
            STT_GNU_IFUNC => {
                resolvers.insert(s.value);
            }
            STT_FUNC if s.name.starts_with(b"_") => {
                safe.insert(s.value);
            }
            STT_FUNC => named.entry(s.value).or_default().push(s.name),
            _ => {}
        }
    }
    for s in symbols.iter().filter(|s| s.kind == STT_FUNC) {
        let Some(names) = named.get(&s.value) else {
            continue;
        };
        let of = |prefix: &[u8]| {
            let rest = s.name.strip_prefix(prefix);
            rest.is_some_and(|rest| names.contains(&rest))
        };
        if [&b"__"[..], b"__libc_", b"_IO_"].into_iter().any(of) {
            safe.insert(s.value);
        }
    }
    stubs::<I>(elf, |stub, slot| {
        let chosen = refs.resolver_of(slot);
        if chosen.is_some_and(|resolver| resolvers.contains(&resolver)) {
            safe.insert(stub);
            safe.insert(slot);
        }
    });
    safe
}
