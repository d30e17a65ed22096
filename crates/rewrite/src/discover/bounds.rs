//! Ranges of code whose bounds the program knows by symbols.
//!
//! Kernels, bare-metal programs and some run-times have their linker script define symbols at the start and the
//! end of a range of functions, and look pointers and program counters up in it. Such a symbol has no type. It is
//! told from an assembler's label, and from a function of one, by what is there: it is where a function with a
//! type begins or ends, or where a section does. Only symbols whose address is formed count, by a
//! relocation that the linker kept (also where relocations are not to be used); those that are branched to do not.
//!
//! | what is found | what follows |
//! |---|---|
//! | a bound in a section | pointers to all functions of the section keep their values |
//! | two bounds in a section | functions between them stay |
//! | `etext`, by any of its names | pointers to all functions of the file keep their values |
//!
//! Symbols `__start_NAME` and `__stop_NAME`, which linkers make, are found by the names of sections; see
//! [`super::functions`].

use postlink_elf::elf::{Elf, Symbol, SymbolTable};
use postlink_elf::raw::{Rela, STT_NOTYPE};
use rustc_hash::{FxHashMap, FxHashSet};

use super::file::EM_AARCH64;
use super::kept::relas;

/// Names of the end of all code.
const ENDS: [&[u8]; 3] = [b"etext", b"_etext", b"__etext"];

/// Ranges; see the module.
#[derive(Clone, Debug, Default)]
pub struct Bounds {
    /// Sections of code in which there is a bound, ascending: start and end.
    sections: Vec<(u64, u64)>,
    /// From the first to the last bound of a section, ascending.
    ranges: Vec<(u64, u64)>,
    /// The program knows the end of all code.
    pub end_of_code: bool,
}

impl Bounds {
    /// Finds them.
    pub fn of(elf: &Elf<'_>) -> Bounds {
        let symbols = elf.symbols(SymbolTable::Static);
        let code = || elf.sections.iter().filter(|s| s.is_code());
        let is_near_code = |at: u64| code().any(|s| (s.addr..=s.end()).contains(&at));
        let may_be =
            symbols.iter_where(|s| s.kind == STT_NOTYPE && s.section != 0 && is_near_code(s.value));
        let is_named = |s: &Symbol<'_>| !s.name.is_empty() && !s.name.starts_with(b"$");
        let may_be: Vec<(usize, Symbol<'_>)> = may_be.filter(|(_, s)| is_named(s)).collect();
        if may_be.is_empty() {
            return Bounds::default();
        }
        // There are few such symbols, and functions without number.
        let values: FxHashSet<u64> = may_be.iter().map(|(_, s)| s.value).collect();
        let mut edges: FxHashSet<u64> = FxHashSet::default();
        let ends = |s: &Symbol<'_>| {
            s.is_sized_function()
                .then(|| [s.value, s.value.saturating_add(s.size)])
        };
        for ends in symbols.without_names(ends) {
            edges.extend(ends.iter().filter(|at| values.contains(at)));
        }
        edges.extend(code().flat_map(|s| [s.addr, s.end()]));
        let candidates = may_be.iter().filter(|(_, s)| edges.contains(&s.value));
        let candidates: FxHashMap<usize, &Symbol<'_>> = candidates.map(|(i, s)| (*i, s)).collect();
        let mut formed: Vec<&Symbol<'_>> = Vec::new();
        for (s, about) in elf.sections_of_relocations() {
            if candidates.is_empty() || about.name == ".eh_frame" || !about.is_alloc() {
                continue;
            }
            let forms = |r: Rela| {
                let symbol = candidates.get(&(r.r_sym as usize))?;
                (!is_branch(elf, r.r_offset, r.r_type)).then_some(*symbol)
            };
            formed.extend(relas(elf.relocation_records(s), forms));
        }
        let mut bounds = Bounds {
            end_of_code: formed.iter().any(|s| ENDS.contains(&s.name)),
            ..Bounds::default()
        };
        for section in code() {
            let mut own: Vec<u64> = formed.iter().map(|s| s.value).collect();
            own.retain(|at| (section.addr..=section.end()).contains(at));
            own.sort_unstable();
            if let (Some(first), Some(last)) = (own.first(), own.last()) {
                bounds.sections.push((section.addr, section.end()));
                bounds.ranges.push((*first, *last));
            }
        }
        bounds.sections.sort_unstable();
        bounds.ranges.sort_unstable();
        bounds
    }

    /// Whether a function at an address is in a section in which there is a bound.
    pub fn is_seen(&self, at: u64) -> bool {
        self.sections.iter().any(|s| (s.0..s.1).contains(&at))
    }

    /// Whether code in `[start, end)` is between two bounds.
    pub fn holds(&self, start: u64, end: u64) -> bool {
        self.ranges.iter().any(|r| start < r.1 && r.0 < end)
    }
}

/// Whether a relocation is of a branch or call.
fn is_branch(elf: &Elf<'_>, place: u64, kind: u32) -> bool {
    /// `R_AARCH64_TSTBR14`, `_CONDBR19`, `_JUMP26`, `_CALL26`
    const A64: [u32; 4] = [279, 280, 282, 283];
    /// `R_X86_64_PC32`: of any field of four bytes.
    const PC32: u32 = 2;
    const PLT32: u32 = 4;
    match (elf.machine == EM_AARCH64, kind) {
        (true, _) => A64.contains(&kind),
        (false, PLT32) => true,
        // The byte in front of the field is the opcode of a branch, or else a ModRM byte with another value.
        (false, PC32) => place
            .checked_sub(1)
            .and_then(|at| elf.bytes_at(at, 1))
            .is_some_and(|b| matches!(b, [0xe8 | 0xe9 | 0x80..=0x8f])),
        (false, _) => false,
    }
}
