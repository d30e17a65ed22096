//! The names of symbols.
//!
//! A global symbol is called by its name. Local symbols of one name are told apart by numbers, as BOLT does
//! it, and every tool that writes or reads its profiles with it:
//!
//! | name | of |
//! |---|---|
//! | `f` | a global symbol |
//! | `f/3` | the third local symbol `f`, in the order of addresses, whatever the symbols are of |
//! | `f/dir.c/2` | the same by its file: the second local function `f` after a FILE symbol `dir.c` |
//! | `.text.x/1` | the symbol of a section |
//! | `PG.Lx/1` | a symbol that begins with the private prefix `.L` |
//! | `ANONYMOUS.4` | a symbol without a name |
//! | `puts@PLT` | a stub of the procedure linkage table |
//! | `__BOLT_FDE_FUNCat401020` | code that only an unwind entry tells of |
//!
//! Order is that of values; at one value mapping symbols come first, then functions, and symbols of sections
//! last, else the table's order counts. A symbol of type `STT_GNU_IFUNC` is no function here: it has no name
//! by its file, and a function symbol at its address comes before it. FILE symbols called `ld-temp.o` do not
//! count: link-time optimisation makes them or not.
//!
//! A program may have half a million symbols, and no profile speaks of most: names refer to the symbol table,
//! and text is made of those that are asked for.

use std::borrow::Cow;

use std::io::Write;

use postlink_elf::elf::{Elf, Section, Symbol, SymbolTable, Symbols};
use postlink_elf::raw;
use rayon::prelude::*;
use rustc_hash::FxHashMap;

/// In front of the address of code that only an unwind entry tells of.
const UNWIND: &str = "__BOLT_FDE_FUNCat";

/// A name, in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name<'d> {
    /// As the symbol table has it.
    Global(&'d [u8]),
    /// `name/N`
    Local(&'d [u8], u32),
    /// `name/file/N`
    InFile(&'d [u8], &'d [u8], u32),
    /// `name@PLT`
    Stub(&'d [u8]),
    /// `ANONYMOUS.N`
    Anonymous(u32),
    /// `__BOLT_FDE_FUNCat…`
    Unwind(u64),
    /// `__BOLT_PSEUDO_…`: the head of a section of stubs.
    Head(&'d str),
}

impl<'d> Name<'d> {
    /// The whole name.
    pub fn text(&self) -> Cow<'d, [u8]> {
        match *self {
            Name::Global(base) if !is_private(base) => Cow::Borrowed(base),
            _ => {
                let mut text = Vec::new();
                self.write(&mut text);
                Cow::Owned(text)
            }
        }
    }

    /// Appends the whole name to `out`.
    pub fn write(&self, out: &mut Vec<u8>) {
        let symbol = |out: &mut Vec<u8>, base: &[u8]| {
            if is_private(base) {
                out.extend_from_slice(b"PG");
            }
            out.extend_from_slice(base);
        };
        let number = |out: &mut Vec<u8>, text: std::fmt::Arguments<'_>| {
            let _ = out.write_fmt(text); // writing to memory does not fail
        };
        match *self {
            Name::Global(base) => symbol(out, base),
            Name::Local(base, n) => {
                symbol(out, base);
                number(out, format_args!("/{n}"));
            }
            Name::InFile(base, file, n) => {
                symbol(out, base);
                out.push(b'/');
                out.extend_from_slice(file);
                number(out, format_args!("/{n}"));
            }
            Name::Stub(base) => {
                out.extend_from_slice(base);
                out.extend_from_slice(b"@PLT");
            }
            Name::Anonymous(n) => number(out, format_args!("ANONYMOUS.{n}")),
            Name::Unwind(at) => number(out, format_args!("{UNWIND}{at:x}")),
            Name::Head(section) => number(out, format_args!("__BOLT_PSEUDO_{section}")),
        }
    }

    /// The name of the symbol, without number and file.
    pub fn base(&self) -> &'d [u8] {
        match *self {
            Name::Global(base)
            | Name::Local(base, _)
            | Name::InFile(base, ..)
            | Name::Stub(base) => base,
            Name::Anonymous(_) | Name::Unwind(_) => b"",
            Name::Head(section) => section.as_bytes(),
        }
    }
}

fn is_private(name: &[u8]) -> bool {
    name.starts_with(b".L")
}

/// What a symbol is of, in the order in which symbols of one address come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// It marks code or data (mapping symbols of AArch64).
    Marker,
    /// A function.
    Function,
    /// Anything else.
    Other,
    /// A section.
    Section,
}

/// A symbol and what it is called.
#[derive(Clone, Copy, Debug)]
pub struct Named<'d> {
    /// The symbol; one of a section has the section's name.
    pub symbol: Symbol<'d>,
    /// What it is of.
    pub class: Class,
    /// Its name. Markers have none, nor have sections of stubs.
    pub name: Option<Name<'d>>,
    /// The name of a local function by its file.
    pub by_file: Option<Name<'d>>,
}

/// Tells every symbol of a table that is an address in memory, in the order above.
pub fn each<'d>(elf: &Elf<'d>, table: &Symbols<'d>, mut visit: impl FnMut(&Named<'d>)) {
    visit_each(elf, table, &mut visit);
}

/// Not generic, so that it is compiled once and not for every use.
fn visit_each<'d>(elf: &Elf<'d>, table: &Symbols<'d>, visit: &mut dyn FnMut(&Named<'d>)) {
    let markers = elf.machine == raw::EM_AARCH64;
    // Value, class, index.
    let mut sorted: Vec<(u64, Class, u32)> = Vec::with_capacity(table.len());
    // Index and name of FILE symbols, ascending.
    let mut files: Vec<(u32, &'d [u8])> = Vec::new();
    for (index, symbol) in table.iter().enumerate() {
        let index = index as u32;
        if symbol.section == raw::SHN_UNDEF {
            continue;
        }
        if symbol.kind == raw::STT_FILE {
            if symbol.name != b"ld-temp.o" {
                files.push((index, symbol.name));
            }
            continue;
        }
        let in_memory = match symbol.section {
            raw::SHN_COMMON => false,
            raw::SHN_ABS => true,
            section => elf
                .sections
                .get(section as usize)
                .is_some_and(Section::is_alloc),
        };
        if in_memory && symbol.value != 0 {
            let class = match symbol.kind {
                _ if markers && is_marker(symbol.name) => Class::Marker,
                raw::STT_FUNC => Class::Function,
                raw::STT_SECTION => Class::Section,
                _ => Class::Other,
            };
            sorted.push((symbol.value, class, index));
        }
    }
    sorted.par_sort_unstable();
    let mut seen: FxHashMap<&'d [u8], u32> = FxHashMap::default();
    let mut seen_in_file: FxHashMap<(&'d [u8], &'d [u8]), u32> = FxHashMap::default();
    let mut anonymous = 0;
    for (_, class, index) in sorted {
        let Some(mut symbol) = table.get(index as usize) else {
            continue;
        };
        let section = elf.sections.get(symbol.section as usize);
        if class == Class::Section && symbol.name.is_empty() {
            symbol.name = section.map_or(b"".as_slice(), |s| s.name.as_bytes());
        }
        if matches!(symbol.name, b"__hot_start" | b"__hot_end") {
            continue;
        }
        let of_stubs = class == Class::Section && section.is_some_and(|s| stub_size(s).is_some());
        let mut by_file = None;
        let name = if class == Class::Marker || of_stubs {
            None
        } else if symbol.name.is_empty() {
            anonymous += 1;
            Some(Name::Anonymous(anonymous - 1))
        } else if symbol.binding != raw::STB_LOCAL {
            Some(Name::Global(symbol.name))
        } else {
            let file = files.partition_point(|file| file.0 < index);
            let file = file.checked_sub(1).map_or(b"".as_slice(), |at| files[at].1);
            if class == Class::Function && !file.is_empty() {
                let count = seen_in_file.entry((symbol.name, file)).or_default();
                *count += 1;
                by_file = Some(Name::InFile(symbol.name, file, *count));
            }
            let count = seen.entry(symbol.name).or_default();
            *count += 1;
            Some(Name::Local(symbol.name, *count))
        };
        visit(&Named {
            symbol,
            class,
            name,
            by_file,
        });
    }
}

/// First names of the functions at some addresses.
pub fn at(elf: &Elf<'_>, addresses: impl IntoIterator<Item = u64>) -> FxHashMap<u64, Vec<u8>> {
    let mut found: FxHashMap<u64, Vec<u8>> =
        addresses.into_iter().map(|a| (a, Vec::new())).collect();
    each(elf, &elf.symbols(SymbolTable::Static), |named| {
        if named.symbol.section == raw::SHN_ABS {
            return;
        }
        if let Some(slot) = found.get_mut(&named.symbol.value)
            && slot.is_empty()
            && let Some(name) = &named.name
        {
            name.write(slot);
        }
    });
    for (&address, name) in &mut found {
        if name.is_empty() {
            Name::Unwind(address).write(name);
        }
    }
    found
}

/// The address in the name of a function that only an unwind entry tells of.
pub fn of_unwind_entry(name: &[u8]) -> Option<u64> {
    let digits = name.strip_prefix(UNWIND.as_bytes())?;
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// A name without what only tells it apart from others: `f` of `f/3` and of `f/dir.c/2`.
pub fn plain(name: &[u8]) -> &[u8] {
    name.split(|b| *b == b'/').next().unwrap_or(name)
}

/// A mapping symbol of AArch64: `$x`, `$d`, also with a suffix.
fn is_marker(name: &[u8]) -> bool {
    matches!(name, [b'$', b'x' | b'd'] | [b'$', b'x' | b'd', b'.', ..])
}

/// Bytes of a stub in a section of the procedure linkage table, before a look into it.
pub(crate) fn stub_size(section: &Section<'_>) -> Option<u64> {
    match section.name {
        ".plt" => Some(16),
        ".plt.got" | ".plt.sec" => Some(8),
        _ => None,
    }
}

/// The name of the function that a part was split off, if a name is that of a part.
pub fn fragment_of(name: &[u8]) -> Option<&[u8]> {
    let digits = name.iter().rev().take_while(|b| b.is_ascii_digit()).count();
    let stem = &name[..name.len() - digits];
    let stem = match (digits, stem) {
        (0, stem) => stem,
        (_, [stem @ .., b'.']) => stem,
        _ => return None,
    };
    [b".cold".as_slice(), b".warm"]
        .iter()
        .find_map(|suffix| stem.strip_suffix(*suffix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_spelt_like_bolt_does() {
        let text = |name: Name<'static>| String::from_utf8(name.text().into_owned()).unwrap();
        assert_eq!(text(Name::Global(b"main")), "main");
        assert_eq!(text(Name::Global(b".Lx")), "PG.Lx");
        assert_eq!(text(Name::Local(b"f", 2)), "f/2");
        assert_eq!(text(Name::InFile(b"f", b"a.c", 1)), "f/a.c/1");
        assert_eq!(text(Name::Stub(b"puts")), "puts@PLT");
        assert_eq!(text(Name::Anonymous(0)), "ANONYMOUS.0");
        assert_eq!(text(Name::Unwind(0x1a0)), "__BOLT_FDE_FUNCat1a0");
    }

    #[test]
    fn fragments_are_known_by_their_suffix() {
        for (name, of) in [
            ("f.cold", Some("f")),
            ("f.cold.12", Some("f")),
            ("f.part.0.warm", Some("f.part.0")),
            ("f.colder", None),
            ("f.cold3", None),
            ("f.0", None),
            ("cold", None),
        ] {
            assert_eq!(
                fragment_of(name.as_bytes()),
                of.map(str::as_bytes),
                "{name}"
            );
        }
    }
}
