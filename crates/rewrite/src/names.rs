//! The names under which profiles know places in a program.
//!
//! A global symbol is called by its name. Local symbols of one name are told apart by numbers, as BOLT does it, and every
//! tool that writes or reads its profiles with it:
//!
//! | name | of |
//! |---|---|
//! | `f` | a global symbol |
//! | `f/3` | the third local symbol `f`, in the order of addresses |
//! | `f/dir.c/2` | the same by its file: the second local function `f` behind a FILE symbol `dir.c` |
//! | `PG.Lx/1` | a symbol that begins with the private prefix `.L` |
//! | `ANONYMOUS.4` | a symbol without a name |
//! | `__BOLT_FDE_FUNCat401020` | code that only an unwind entry tells of |
//!
//! Order is that of values; at one value functions come first, else the table's order counts. FILE symbols
//! called `ld-temp.o` do not count: link-time optimisation makes them or not.
//!
//! A program may have half a million symbols, and no profile speaks of most: names are made up one after the other in a buffer, and
//! whoever looks for some keeps those ([`each`]).

use postlink_image::elf::{Elf, Symbol, SymbolTable};
use rayon::prelude::*;
use rustc_hash::FxHashMap;

const STT_SECTION: u8 = 3;
const STT_FUNC: u8 = 2;
const STT_FILE: u8 = 4;
const SHN_ABS: u32 = 0xfff1;
const SHN_COMMON: u32 = 0xfff2;

/// Tells every symbol of the static table in the order above, with its name and, for local functions, the name by its file.
pub fn each<'d>(elf: &Elf<'d>, mut visit: impl FnMut(&Symbol<'d>, &[u8], Option<&[u8]>)) {
    let table = elf.symbols(SymbolTable::Static);
    let mut order: Vec<(u64, u8, u32)> = Vec::with_capacity(table.len());
    let mut files: Vec<u32> = Vec::new(); // FILE symbols, ascending
    for (i, s) in table.iter().enumerate() {
        let i = i as u32;
        if s.kind == STT_SECTION {
            continue;
        }
        if s.kind == STT_FILE {
            if s.name != b"ld-temp.o" {
                files.push(i);
            }
            continue;
        }
        let in_memory = match s.section {
            0 | SHN_COMMON => false,
            SHN_ABS => true,
            n => elf.sections.get(n as usize).is_some_and(|x| x.is_alloc()),
        };
        if in_memory {
            order.push((s.value, u8::from(s.kind != STT_FUNC), i));
        }
    }
    order.par_sort_unstable();
    let mut locals: FxHashMap<&[u8], u32> = FxHashMap::default();
    let mut in_files: FxHashMap<(&[u8], &[u8]), u32> = FxHashMap::default();
    let mut anonymous = 0u32;
    let (mut name, mut by_file) = (Vec::new(), Vec::new());
    for (value, _, i) in order {
        let Some(s) = table.get(i as usize) else {
            continue;
        };
        if value == 0 || s.name == b"__hot_start" || s.name == b"__hot_end" {
            continue;
        }
        name.clear();
        by_file.clear();
        let private = s.name.starts_with(b".L");
        if s.name.is_empty() {
            name.extend_from_slice(format!("ANONYMOUS.{anonymous}").as_bytes());
            anonymous += 1;
        } else {
            if private {
                name.extend_from_slice(b"PG");
            }
            name.extend_from_slice(s.name);
            if s.binding == 0 {
                let file = files[..files.partition_point(|f| *f < i)].last();
                let file = file.and_then(|f| table.get(*f as usize)).map(|f| f.name);
                if let Some(file) = file.filter(|f| !f.is_empty() && s.kind == STT_FUNC) {
                    let n = in_files.entry((s.name, file)).or_default();
                    *n += 1;
                    by_file.extend_from_slice(&name);
                    by_file.push(b'/');
                    by_file.extend_from_slice(file);
                    by_file.extend_from_slice(format!("/{n}").as_bytes());
                }
                let n = locals.entry(s.name).or_default();
                *n += 1;
                name.extend_from_slice(format!("/{n}").as_bytes());
            }
        }
        visit(&s, &name, (!by_file.is_empty()).then_some(&by_file));
    }
}

/// First names of the functions at some addresses.
pub fn at(elf: &Elf<'_>, addresses: impl IntoIterator<Item = u64>) -> FxHashMap<u64, Vec<u8>> {
    let mut found: FxHashMap<u64, Vec<u8>> =
        addresses.into_iter().map(|a| (a, Vec::new())).collect();
    each(elf, |symbol, name, _| {
        if symbol.section == SHN_ABS {
            return;
        }
        if let Some(slot) = found.get_mut(&symbol.value)
            && slot.is_empty()
        {
            slot.extend_from_slice(name);
        }
    });
    for (address, name) in &mut found {
        if name.is_empty() {
            name.extend_from_slice(format!("__BOLT_FDE_FUNCat{address:x}").as_bytes());
        }
    }
    found
}

/// The address in the name of a function that only an unwind entry tells of.
pub fn of_unwind_entry(name: &[u8]) -> Option<u64> {
    let digits = name.strip_prefix(b"__BOLT_FDE_FUNCat")?;
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// A name without what only tells it apart from others: `f` of `f/3` and of `f/dir.c/2`.
pub fn plain(name: &[u8]) -> &[u8] {
    name.split(|b| *b == b'/').next().unwrap_or(name)
}
