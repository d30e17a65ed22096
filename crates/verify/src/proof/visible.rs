//! What a program may see of a code address, and which pointers may change.
//!
//! A program that holds a pointer to a function can do more than call it. What it can find out, and what
//! becomes of that:
//!
//! | what can be seen | what is demanded here |
//! |---|---|
//! | equality of two pointers | a function has one address: all pointers to it are the old one, or all the new one |
//! | low bits (member pointers of the C++ ABI, descriptors of Ada) | a pointer that changes has at least the old one's zero bits at its end, up to four |
//! | bytes in front of the entry (type hashes, info tables) | pointers change only where padding is there, and before it code that ends |
//! | tables of a run-time that give frames, safe points or stack maps by program counter | a file that holds such a run-time is refused, if its tables are not relocated; and a pointer, or a distance ([`super::described`]), to the inside of a moved function that stays as it was fails that function |
//! | bounds: the end of a function, sections with `__start_` and `__stop_` symbols, symbols of a linker script ([`super::bounds`]) | a function to whose end a pointer leads, or that is in such a section or between two such symbols, may not move; pointers into a section with such a symbol stay |
//! | order, distance, hashes of pointers | assumption A8, counted; nothing to assume where pointers keep their values |
//! | addresses of labels | only of functions with an indirect jump; assumption A9, counted |
//! | return addresses and program counters | assumption A1, counted |
//! | bytes of code, read through a pointer | assumption A4, counted; accesses with addresses relative to the program counter are checked |
//!
//! Which compiler made a file is read from `.comment`: a pointer changes only where every line there is known.

use super::bounds::Bounds;
use crate::arch::{Arch, Flow};
use crate::files::claim::Range;
use crate::files::elf::{Elf, SHT_DYNSYM, SHT_SYMTAB, Symbol};
use crate::files::unwind::Table;
use rayon::slice::ParallelSliceMut;
use rustc_hash::FxHashMap;

/// How many zero bits at the end of an address are kept.
const LOW_BITS: u32 = 4;

/// Run-times that find their own compiled code in tables that no relocation names: their sections, symbols,
/// and the owners of their notes.
const REFUSED: &[(&str, &[&[u8]], &[&[u8]], &[&[u8]])] = &[
    (
        "Go",
        &[b".gopclntab", b".data.rel.ro.gopclntab", b".go.buildinfo"],
        &[b"runtime.pclntab", b"runtime.firstmoduledata"],
        &[b"Go"],
    ),
    (
        "GraalVM native image",
        &[b".svm_heap"],
        &[b"__svm_code_section"],
        &[],
    ),
    (
        ".NET Native AOT",
        &[b"__managedcode"],
        &[b"__managedcode_a"],
        &[],
    ),
    ("Mono", &[], &[b"mono_aot_file_info"], &[]),
    (
        "Dart",
        &[],
        &[
            b"_kDartIsolateSnapshotInstructions",
            b"_kDartVmSnapshotInstructions",
        ],
        &[],
    ),
    (
        "V8",
        &[],
        &[
            b"v8_Default_embedded_blob_code_",
            b"v8_Default_embedded_blob_code_size_",
        ],
        &[],
    ),
    (
        "LLVM stack maps",
        &[b".llvm_stackmaps", b".llvm_faultmaps"],
        &[],
        &[],
    ),
];

/// Run-times that calculate with code addresses, recognised by symbols, sections, and libraries' names.
const CALCULATING: &[(&str, &[&[u8]])] = &[
    ("GHC", &[b"stg_upd_frame_info", b"hs_init_ghc"]),
    (
        "OCaml",
        &[
            b"caml_frametable",
            b"caml_system__frametable",
            b"caml_code_segments",
        ],
    ),
];

/// Facts about the input.
pub(crate) struct Visible {
    /// The run-time for whose sake nothing may change.
    pub refused: Option<&'static str>,
    /// Why no pointer may change.
    pub fixed: Option<String>,
    /// Whether a run-time looks up addresses inside of functions, so that none of them is a label.
    pub describes_insides: bool,
    /// Ranges of code that the program knows.
    pub bounds: Bounds,
}

impl Visible {
    pub(crate) fn of(input: &Elf<'_>) -> Visible {
        let mut names: FxHashMap<&[u8], bool> = FxHashMap::default();
        let refused = REFUSED.iter().flat_map(|r| r.2);
        for name in refused.chain(CALCULATING.iter().flat_map(|r| r.1)) {
            names.insert(name, false);
        }
        let longest = names.keys().map(|n| n.len()).max().unwrap_or(0);
        let symbols = input.symbols(SHT_SYMTAB).chain(input.symbols(SHT_DYNSYM));
        for s in symbols.filter(|s| s.section != 0 && s.name.len() <= longest) {
            if let Some(there) = names.get_mut(s.name) {
                *there = true;
            }
        }
        let named = |list: &[&[u8]]| list.iter().any(|n| names.get(n) == Some(&true));
        let refused = REFUSED.iter().find(|(_, sections, symbols, notes)| {
            sections.iter().any(|s| input.section(s).is_some())
                || named(symbols)
                || notes.iter().any(|owner| input.has_note_of(owner))
        });
        let calculating = CALCULATING.iter().find(|r| named(r.1)).map(|r| r.0);
        let haskell = input.section(b".debug-ghc-link-info").is_some();
        let runtime = calculating.or(haskell.then_some("GHC"));
        let bounds = Bounds::of(input);
        let fixed = match runtime {
            Some(name) => Some(format!("the file holds the run-time of {name}")),
            None if bounds.end_of_code => {
                Some("the program forms the address of the end of its code".to_owned())
            }
            None if bounds.checks_calls => {
                Some("indirect calls are checked by distances in a table of jumps".to_owned())
            }
            None => strange_compiler(input),
        };
        Visible {
            refused: refused.map(|r| r.0),
            fixed,
            describes_insides: runtime.is_some(),
            bounds,
        }
    }
}

/// Why what `.comment` says is not enough to know what the code does with addresses.
fn strange_compiler(input: &Elf<'_>) -> Option<String> {
    let section = input.section(b".comment");
    let bytes = section.map_or(&b""[..], |s| input.section_data(s));
    let mut known = 0;
    for line in bytes.split(|b| *b == 0).filter(|line| !line.is_empty()) {
        let begins = [
            &b"GCC: ("[..],
            b"rustc version ",
            b"Linker: ",
            b"LLD ",
            b"mold ",
        ];
        let clang = line.windows(14).any(|w| w == b"clang version ");
        if !clang && !begins.iter().any(|b| line.starts_with(b)) {
            let line = String::from_utf8_lossy(line);
            return Some(format!("a part of the file was made by '{line}'"));
        }
        known += 1;
    }
    (known == 0)
        .then(|| "the file does not say which compiler made it (no section .comment)".to_owned())
}

/// Whether a changed pointer keeps the zero bits at the end of the old one.
pub(crate) fn keeps_low_bits(old: u64, new: u64) -> bool {
    new == 0 || new.trailing_zeros() >= old.trailing_zeros().min(LOW_BITS)
}

/// Whether linkers make symbols for the bounds of a section of this name.
pub(crate) fn has_bounds(name: &[u8]) -> bool {
    !name.is_empty()
        && !name.first().is_some_and(u8::is_ascii_digit)
        && name.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'_')
}

/// Functions of the input by address: where each begins, and where it ends if that is known.
pub(crate) struct Extents<'a> {
    starts: &'a [u64],
    code: &'a [Range],
    /// Function symbols' values, the ends that their sizes give, and whether they are parts that a compiler split off;
    /// ascending.
    named: Vec<(u64, u64, bool)>,
    /// Starts and ends that unwind entries give, ascending.
    unwound: Vec<(u64, u64)>,
}

/// Where functions with symbols that have sizes begin and end, and whether a compiler split them off; ascending.
pub(crate) fn named(input: &Elf<'_>) -> Vec<(u64, u64, bool)> {
    let wanted = |s: &Symbol<'_>| s.is_function() && s.section != 0 && s.size > 0;
    let [symbols, dynamic] = [SHT_SYMTAB, SHT_DYNSYM].map(|t| input.symbols_if(t, wanted));
    let all = symbols.chain(dynamic).map(|s| {
        // Few names have a point, which is quickly seen.
        let is_part = s.name.contains(&b'.') && s.name.windows(5).any(|w| w == b".cold");
        (s.value, s.value.saturating_add(s.size), is_part)
    });
    let mut named: Vec<(u64, u64, bool)> = all.collect();
    named.par_sort_unstable();
    named
}

impl<'a> Extents<'a> {
    /// Gives `named` back.
    pub(crate) fn into_named(self) -> Vec<(u64, u64, bool)> {
        self.named
    }

    /// `named`: what [`named`] gives of the input.
    pub(crate) fn new(
        named: Vec<(u64, u64, bool)>,
        unwind: &Table<'_>,
        starts: &'a [u64],
        code: &'a [Range],
    ) -> Self {
        let unwound = unwind.fdes.iter().filter(|f| f.end > f.start);
        let mut unwound: Vec<(u64, u64)> = unwound.map(|f| (f.start, f.end)).collect();
        if !unwound.is_sorted() {
            unwound.sort_unstable();
        }
        Extents {
            starts,
            code,
            named,
            unwound,
        }
    }

    /// The end that a symbol's size or an unwind entry gives to what begins at an address.
    fn end_of(&self, start: u64) -> Option<u64> {
        let unwound = self.unwound.partition_point(|f| f.0 < start);
        let unwound = self.unwound.get(unwound..).unwrap_or(&[]).iter();
        let unwound = unwound.take_while(|f| f.0 == start).map(|f| f.1);
        self.symbols_at(start).map(|s| s.1).chain(unwound).max()
    }

    /// Symbols with an address.
    fn symbols_at(&self, addr: u64) -> impl Iterator<Item = &(u64, u64, bool)> {
        let first = self.named.partition_point(|s| s.0 < addr);
        let from = self.named.get(first..).unwrap_or(&[]).iter();
        from.take_while(move |s| s.0 == addr)
    }

    /// Where functions and sections begin, ascending.
    pub(crate) fn starts(&self) -> &'a [u64] {
        self.starts
    }

    /// Whether a symbol calls an address a function, other than a part that the compiler split off.
    pub(crate) fn is_function(&self, addr: u64) -> bool {
        self.symbols_at(addr).any(|s| !s.2)
    }

    /// Where the function begins in which an address is.
    pub(crate) fn start_of(&self, addr: u64) -> Option<u64> {
        let next = self.starts.partition_point(|s| *s <= addr);
        self.starts.get(next.checked_sub(1)?).copied()
    }

    /// Where the function begins in which an address is, or 0, and where the next begins.
    pub(crate) fn around(&self, addr: u64) -> (u64, u64) {
        let next = self.starts.partition_point(|s| *s <= addr);
        let start = next.checked_sub(1).and_then(|i| self.starts.get(i));
        let end = self.starts.get(next);
        (
            start.copied().unwrap_or(0),
            end.copied().unwrap_or(u64::MAX),
        )
    }

    /// Whether a function begins at an address.
    pub(crate) fn begins(&self, addr: u64) -> bool {
        self.starts.binary_search(&addr).is_ok()
    }

    /// Whether nothing but padding is between the end of a function and what follows it, so that its end is
    /// not the address of anything else.
    pub(crate) fn ends_bare<A: Arch>(&self, input: &Elf<'_>, end: u64) -> bool {
        if self.begins(end) {
            return false;
        }
        let next = self.starts.partition_point(|s| *s < end);
        // At the end of a section the next one may begin.
        let Some(section) = self.code.iter().find(|r| r.start < end && end < r.end) else {
            return false;
        };
        let limit = section.end;
        let to = self.starts.get(next).copied().unwrap_or(limit).min(limit);
        let gap = input.bytes(end, to.saturating_sub(end)).unwrap_or(b"");
        is_padding::<A>(gap)
    }

    /// Whether nothing can read anything in front of `start`: there is padding, and before it code that does
    /// not run on.
    pub(crate) fn is_bare_in_front<A: Arch>(&self, input: &Elf<'_>, start: u64) -> bool {
        let Some(section) = self.code.iter().find(|r| r.contains(start)) else {
            return false;
        };
        let before = self
            .starts
            .partition_point(|s| *s < start)
            .checked_sub(1)
            .and_then(|i| self.starts.get(i))
            .copied()
            .filter(|s| section.contains(*s));
        let padding = |from: u64| {
            let gap = input.bytes(from, start.saturating_sub(from));
            gap.is_some_and(is_padding::<A>)
        };
        let Some(before) = before else {
            return padding(section.start);
        };
        // A section's start is one as well, and begins nothing where padding continues to the function.
        let Some(end) = self.end_of(before) else {
            return before == section.start && padding(before);
        };
        let (Some(code), true) = (input.bytes(before, end.min(start) - before), end <= start)
        else {
            return false;
        };
        if !padding(end) {
            return false;
        }
        // The last instruction of the code before.
        let (mut at, mut ended) = (0usize, false);
        while let Some(rest) = code.get(at..).filter(|rest| !rest.is_empty()) {
            let Some(insn) = A::decode(rest, before + at as u64) else {
                ended = false;
                at += A::STEP;
                continue;
            };
            ended = match insn.flow {
                Flow::Nothing => ended,
                Flow::Next | Flow::Branch { .. } => false,
                // A call at the very end does not return.
                Flow::Jump(_)
                | Flow::IndirectJump { .. }
                | Flow::Stop
                | Flow::Trap
                | Flow::Call(_)
                | Flow::IndirectCall => true,
            };
            at += usize::from(insn.len);
        }
        ended && at == code.len()
    }

    /// Why a pointer to the function at `old` may not become one to `new`.
    pub(crate) fn why_not<A: Arch>(
        &self,
        input: &Elf<'_>,
        visible: &Visible,
        old: u64,
        new: u64,
    ) -> Option<String> {
        if !keeps_low_bits(old, new) {
            return Some(format!(
                "pointers to the function at {old:#x} lead to {new:#x}, which has fewer zero bits at its end: programs keep marks there"
            ));
        }
        if let Some(why) = &visible.fixed {
            return Some(format!(
                "pointers to the function at {old:#x} lead to {new:#x}, and what the program does with them is not known: {why}"
            ));
        }
        if let Some(why) = visible.bounds.why_not(old) {
            return Some(format!(
                "pointers to the function at {old:#x} lead to {new:#x}: {why}"
            ));
        }
        (!self.is_bare_in_front::<A>(input, old)).then(|| {
            format!(
                "pointers to the function at {old:#x} lead to {new:#x}, where what is before the old entry is not found"
            )
        })
    }
}

/// Whether bytes are padding instructions, with zeros after them at most.
fn is_padding<A: Arch>(gap: &[u8]) -> bool {
    let mut at = 0;
    while let Some(rest) = gap.get(at..).filter(|rest| !rest.is_empty()) {
        match A::padding_len(rest) {
            0 => return rest.iter().all(|b| *b == 0),
            n => at += n,
        }
    }
    true
}
