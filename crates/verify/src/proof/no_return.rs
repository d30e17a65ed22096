//! Functions of libraries that are declared not to return, as far as `.dynsym` names them: imported ones by the slot of
//! which the loader is told the name, and exported ones. What follows from that is in [`crate::walk`].

use rustc_hash::FxHashSet;

use super::image::rela_tables;
use crate::arch::Arch;
use crate::files::bytes::u64_in;
use crate::files::claim::Claim;
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

/// [`places`] of an input of which no kept relocations were used; else they are not asked for.
pub(crate) fn of_bare<A: Arch>(input: &Elf<'_>, claim: &Claim<'_>) -> FxHashSet<u64> {
    let places = claim.basis.map(|_| places::<A>(input));
    places.unwrap_or_default()
}

/// The slots of such functions that are imported, and the addresses of those that are exported.
fn places<A: Arch>(elf: &Elf<'_>) -> FxHashSet<u64> {
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
