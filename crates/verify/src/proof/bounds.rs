//! Ranges of code whose bounds the program knows by symbols.
//!
//! A symbol without a type that is where a function, or a section of code, begins or ends, and whose address a
//! kept relocation has the program form, is a bound that a linker script has made: the program looks pointers
//! and program counters up between two of them. Demanded is:
//!
//! | where | what |
//! |---|---|
//! | a section of code with a bound in it or at its end | pointers to its functions are what they were |
//! | between the first and the last bound of a section | nothing moved |
//! | anywhere, if the bound has a name of the end of all code (`etext`) | pointers to functions are what they were |
//!
//! Likewise for functions whose symbols overlap: clang's checks of indirect calls (`-fsanitize=cfi-icall`)
//! have pointers lead into a table of jumps, each with a function's symbol as long as the table, and
//! calculate with distances in it.

use std::cell::OnceCell;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::files::bytes::{u32_in, u64_in};
use crate::files::elf::{Elf, SHT_SYMTAB, Symbol};

/// `EM_AARCH64`
const AARCH64: u16 = 183;

/// What bounds there are.
#[derive(Debug, Default)]
pub(crate) struct Bounds {
    /// By section of code: its start and end, the first and the last bound.
    sections: Vec<[u64; 4]>,
    /// Starts of functions that overlap others.
    overlapping: FxHashSet<u64>,
    /// The end of all code is known.
    pub end_of_code: bool,
    /// A function is called as another is, with `.cfi` after it.
    pub checks_calls: bool,
}

impl Bounds {
    pub(crate) fn of(input: &Elf<'_>) -> Bounds {
        let wanted = |s: &Symbol<'_>| s.is_function() && s.section != 0 && s.size > 0;
        let (mut extents, mut checks_calls) = (Vec::new(), false);
        for s in input.symbols_if(SHT_SYMTAB, wanted) {
            extents.push((s.value, s.value.saturating_add(s.size)));
            checks_calls |= s.name.ends_with(b".cfi");
        }
        extents.sort_unstable();
        let code = || {
            let all = input.sections.iter();
            all.filter(|s| s.is_code())
        };
        // Of a large program they are many, and asked for about few symbols if at all.
        let edges = OnceCell::new();
        let all_edges = || {
            let mut all: FxHashSet<u64> = code().flat_map(|s| [s.addr, s.end()]).collect();
            all.extend(extents.iter().flat_map(|e| [e.0, e.1]));
            all
        };
        let is_edge = |at: &u64| edges.get_or_init(all_edges).contains(at);
        let mut candidates: FxHashMap<u32, (u64, bool)> = FxHashMap::default();
        let numbers = (0u32..).zip(input.nameless_symbols(SHT_SYMTAB));
        let numbers = numbers.filter(|(_, s)| s.kind() == 0 && s.section != 0);
        let others = input.symbols_if(SHT_SYMTAB, |s| s.kind() == 0 && s.section != 0);
        for ((i, _), s) in numbers.zip(others) {
            let named = !s.name.is_empty() && !s.name.starts_with(b"$");
            let near = || code().any(|c| c.addr <= s.value && s.value <= c.end());
            if named && near() && is_edge(&s.value) {
                let is_end = matches!(s.name, b"etext" | b"_etext" | b"__etext");
                candidates.insert(i, (s.value, is_end));
            }
        }
        let formed = formed(input, &candidates);
        let sections = code().filter_map(|s| {
            let own = formed.iter().map(|f| f.0);
            let own = own.filter(|at| s.addr <= *at && *at <= s.end());
            let (first, last) = (own.clone().min()?, own.max()?);
            Some([s.addr, s.end(), first, last])
        });
        Bounds {
            sections: sections.collect(),
            overlapping: overlapping(&extents),
            end_of_code: formed.iter().any(|f| f.1),
            checks_calls,
        }
    }

    /// Why pointers to the function at an address may not change.
    pub(crate) fn why_not(&self, old: u64) -> Option<&'static str> {
        if self.sections.iter().any(|s| s[0] <= old && old < s[1]) {
            return Some("the program knows bounds of its section by symbols");
        }
        let overlaps = self.overlapping.contains(&old);
        overlaps.then_some("its symbol and another function's overlap, as in a table of jumps")
    }

    /// The bounds between which code in `[start, end)` is.
    pub(crate) fn around(&self, start: u64, end: u64) -> Option<(u64, u64)> {
        let mut ranges = self.sections.iter().map(|s| (s[2], s[3]));
        ranges.find(|r| start < r.1 && r.0 < end)
    }
}

/// Those of some symbols that a relocation names which is not of a branch: value, and whether it is the end of
/// all code.
fn formed(input: &Elf<'_>, candidates: &FxHashMap<u32, (u64, bool)>) -> FxHashSet<(u64, bool)> {
    let mut found = FxHashSet::default();
    if candidates.is_empty() {
        return found;
    }
    for s in input.sections.iter().filter(|s| s.is_kept_relocations()) {
        let about = input.sections.get(s.info as usize);
        if about.is_none_or(|about| !about.is_alloc() || about.name == b".eh_frame") {
            continue;
        }
        for record in input.relocation_records(s).chunks_exact(24) {
            let named = u32_in(record, 12).and_then(|i| candidates.get(&i));
            if let (Some(named), Some(at), Some(kind)) =
                (named, u64_in(record, 0), u32_in(record, 8))
                && !is_branch(input, at, kind)
            {
                found.insert(*named);
            }
        }
    }
    found
}

/// Whether the field of a relocation says where a branch or call goes.
fn is_branch(input: &Elf<'_>, at: u64, kind: u32) -> bool {
    if input.machine == AARCH64 {
        // Branches of 14, 19 and 26 bits.
        return matches!(kind, 279 | 280 | 282 | 283);
    }
    // PLT32, and PC32 behind the opcode of `call`, `jmp` or `jcc`, which no ModRM byte of an address relative to the
    // program counter is.
    let opcode = || input.bytes(at.checked_sub(1)?, 1)?.first().copied();
    kind == 4 || kind == 2 && matches!(opcode(), Some(0xe8 | 0xe9 | 0x80..=0x8f))
}

/// Starts of extents, which ascend, that reach over another's start, or over whose start another reaches.
fn overlapping(extents: &[(u64, u64)]) -> FxHashSet<u64> {
    let mut found = FxHashSet::default();
    let Some(&(mut first, mut reach)) = extents.first() else {
        return found;
    };
    for &(start, end) in extents {
        if start >= reach {
            (first, reach) = (start, end);
        } else if start != first {
            found.extend([first, start]);
        }
        reach = reach.max(end);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_whose_symbols_overlap_are_found_with_the_first_of_them() {
        let table = [(0x10, 0x18), (0x20, 0x38), (0x28, 0x38), (0x30, 0x38)];
        let expected: FxHashSet<u64> = [0x20, 0x28, 0x30].into_iter().collect();
        assert_eq!(overlapping(&table), expected);
        // Two names, two sizes; neighbours.
        let usual = [(0x10, 0x18), (0x10, 0x20), (0x20, 0x28), (0x28, 0x30)];
        assert!(overlapping(&usual).is_empty());
    }
}
