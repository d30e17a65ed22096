//! Language run-times that describe code by address.
//!
//! A linker updates every address that a relocation names. Some run-times keep descriptions of code that no
//! relocation names: offsets from the start of the text section, sizes, data placed directly in front of an
//! entry. They look such a description up with a program counter, a return address or a pointer to a
//! function. Code that moves is then not found, or is taken for something else.
//!
//! Each run-time is recognised by sections, notes, symbols, libraries or the compiler's line in `.comment`;
//! several marks each, since `strip` removes symbols and `objcopy` may remove sections. What follows from it
//! is one of two things:
//!
//! | effect | for |
//! |---|---|
//! | the file is refused | run-times that find frames, stack maps or safe points of *their own compiled code* by program counter: any of it that moved would be unknown |
//! | pointers keep their values | run-times whose tables are named by relocations, so that what they describe is pinned already, but that calculate with code addresses |
//!
//! The checker has a list of its own.

use postlink_elf::elf::{Elf, SymbolTable};
use rustc_hash::FxHashMap;

/// Something by which a run-time is recognised.
enum Mark {
    /// A section of this name.
    Section(&'static str),
    /// A note with this owner.
    Note(&'static [u8]),
    /// A symbol of this name, defined in the file.
    Symbol(&'static [u8]),
    /// A library that the file needs, by the beginning of its name.
    Needs(&'static [u8]),
    /// A line of `.comment`, by its beginning.
    Comment(&'static str),
}

/// What a file that holds the run-time can have done to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    Refused,
    /// Functions may move; pointers to them keep their values.
    ValuesStay,
}

/// A run-time that describes code by address.
pub struct Runtime {
    /// Whose it is.
    pub name: &'static str,
    /// What it describes, as the end of a sentence.
    pub describes: &'static str,
    /// What follows.
    pub effect: Effect,
    marks: &'static [Mark],
}

const KNOWN: &[Runtime] = &[
    Runtime {
        name: "Go",
        describes: "its tables (.gopclntab, findfunctab) give frames, stack maps and safe points by offsets from the start of its text",
        effect: Effect::Refused,
        marks: &[
            Mark::Section(".gopclntab"),
            Mark::Section(".data.rel.ro.gopclntab"),
            Mark::Section(".go.buildinfo"),
            Mark::Note(b"Go"),
            Mark::Symbol(b"runtime.pclntab"),
            Mark::Symbol(b"runtime.firstmoduledata"),
        ],
    },
    Runtime {
        name: "GraalVM native image",
        describes: "its image heap gives frames and deoptimisation entries by program counter",
        effect: Effect::Refused,
        marks: &[
            Mark::Section(".svm_heap"),
            Mark::Symbol(b"__svm_code_section"),
        ],
    },
    Runtime {
        name: ".NET Native AOT",
        describes: "its tables give unwinding and garbage-collection information by offsets into its code",
        effect: Effect::Refused,
        marks: &[
            Mark::Section("__managedcode"),
            Mark::Symbol(b"__managedcode_a"),
        ],
    },
    Runtime {
        name: "Mono (ahead-of-time compiled)",
        describes: "its tables give methods and safe points by offsets into its code",
        effect: Effect::Refused,
        marks: &[Mark::Symbol(b"mono_aot_file_info")],
    },
    Runtime {
        name: "Dart (ahead-of-time compiled)",
        describes: "its snapshot gives stack maps by offsets into its instructions",
        effect: Effect::Refused,
        marks: &[
            Mark::Symbol(b"_kDartIsolateSnapshotInstructions"),
            Mark::Symbol(b"_kDartVmSnapshotInstructions"),
        ],
    },
    Runtime {
        name: "V8 with embedded builtins",
        describes: "its blob of builtins gives safe points by offsets into itself",
        effect: Effect::Refused,
        marks: &[
            Mark::Symbol(b"v8_Default_embedded_blob_code_"),
            Mark::Symbol(b"v8_Default_embedded_blob_code_size_"),
        ],
    },
    Runtime {
        name: "LLVM stack maps",
        describes: "they give live values by offsets from the functions' starts",
        effect: Effect::Refused,
        marks: &[
            Mark::Section(".llvm_stackmaps"),
            Mark::Section(".llvm_faultmaps"),
        ],
    },
    Runtime {
        name: "GHC (Haskell)",
        describes: "data of the run-time are directly before the entries of its code",
        effect: Effect::ValuesStay,
        marks: &[
            Mark::Comment("GHC "),
            Mark::Section(".debug-ghc-link-info"),
            Mark::Symbol(b"stg_upd_frame_info"),
            Mark::Symbol(b"hs_init_ghc"),
            Mark::Needs(b"libHSrts"),
        ],
    },
    Runtime {
        name: "OCaml",
        describes: "its frame tables are looked up by return address, and its code is between symbols that mark its bounds",
        effect: Effect::ValuesStay,
        marks: &[
            Mark::Symbol(b"caml_frametable"),
            Mark::Symbol(b"caml_system__frametable"),
            Mark::Symbol(b"caml_code_segments"),
        ],
    },
];

impl Mark {
    fn is_in(&self, elf: &Elf<'_>, symbols: &FxHashMap<&[u8], bool>) -> bool {
        match self {
            Mark::Section(name) => elf.section(name).is_some(),
            Mark::Note(owner) => elf.notes().any(|note| note.name == *owner),
            Mark::Symbol(name) => symbols.get(name) == Some(&true),
            Mark::Needs(name) => elf.needed().any(|library| library.starts_with(name)),
            Mark::Comment(line) => comments(elf).any(|c| c.starts_with(line.as_bytes())),
        }
    }
}

/// The lines of `.comment`: what compilers and linkers say of themselves.
pub fn comments<'d>(elf: &Elf<'d>) -> impl Iterator<Item = &'d [u8]> + use<'d> {
    let bytes = elf.section(".comment").map(|(_, s)| elf.section_data(s));
    let lines = bytes.unwrap_or_default().split(|b| *b == 0);
    lines.filter(|line| !line.is_empty())
}

/// The run-times of this kind that a file holds.
pub fn found(elf: &Elf<'_>) -> Vec<&'static Runtime> {
    // Each name once through the symbols, of which there may be millions.
    let mut symbols: FxHashMap<&[u8], bool> = FxHashMap::default();
    for mark in KNOWN.iter().flat_map(|r| r.marks) {
        if let Mark::Symbol(name) = mark {
            symbols.insert(name, false);
        }
    }
    let longest = symbols.keys().map(|name| name.len()).max().unwrap_or(0);
    for table in [SymbolTable::Static, SymbolTable::Dynamic] {
        let table = elf.symbols(table);
        let known = |i| {
            let s = table.get(i)?;
            let may_be = s.section != 0 && s.name.len() <= longest;
            (may_be && symbols.contains_key(s.name)).then_some(s.name)
        };
        for name in postlink_parallel::flat_map_range(table.len(), known) {
            symbols.insert(name, true);
        }
    }
    let held = |r: &&Runtime| r.marks.iter().any(|mark| mark.is_in(elf, &symbols));
    KNOWN.iter().filter(held).collect()
}

/// Why a file cannot be rewritten at all, if one of its run-times says so.
pub fn refusal(elf: &Elf<'_>) -> Option<String> {
    let refused = |r: &&&Runtime| r.effect == Effect::Refused;
    let all = found(elf);
    let r = all.iter().find(refused)?;
    Some(format!(
        "the file holds the run-time of {}: {}. Code that moved would not be found there, so nothing in this file is changed",
        r.name, r.describes
    ))
}
