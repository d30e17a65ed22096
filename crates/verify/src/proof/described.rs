//! Code that data describe by distances.
//!
//! Some tables hold no addresses but distances: of functions (relative virtual tables of C++, metadata of
//! Swift), of return addresses and safe points (frame tables of run-times), of places to patch (XRay, lists
//! of alternatives). No such word changes, so the program continues making the old address of it. The
//! relocations that the linker kept tell of them:
//!
//! | a word of data, relative to its own place or to the start of its table, leads to | then |
//! |---|---|
//! | the entry of a moved function | the program knows the function by its old address |
//! | the inside of a moved function | a table may describe the function's code: it fails |
//! | the end of a moved function | the same as for a pointer there |
//!
//! A relocation with the name of a function counts as a word that leads there, from wherever it is counted.
//!
//! Where code forms the address of a table, and all words from there on lead to starts of functions when they
//! are counted from it, they are counted from it.
//!
//! Entries of jump tables are such words, too, and are counted from the table's start. A run of words is a
//! jump table if code forms its address and its first entry leads back into the same function; it ends with
//! the first word that leads elsewhere than into the function or to its end. Entries of jump tables are what
//! [`crate::proof::tables`] compares.

use crate::addr::InputAddr;
use crate::arch::Arch;
use crate::context::{Context, Findings};
use crate::files::bytes::{u32_in, u64_in};
use crate::files::elf::{Elf, SHF_EXECINSTR, SHT_SYMTAB};
use crate::proof::visible::Extents;
use rayon::prelude::*;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// A word whose value is a distance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Word {
    place: u64,
    /// Bytes: 4 or 8.
    width: u8,
    /// Index of the relocation's symbol.
    symbol: u32,
}

impl Word {
    /// What it is added to an address for; `None` outside of the file.
    fn value(self, elf: &Elf<'_>) -> Option<u64> {
        match self.width {
            8 => elf.u64_at(self.place),
            _ => elf.u32_at(self.place).map(|w| w as i32 as u64),
        }
    }
}

/// Whether relocations for this section are for loaded data. Unwind tables are compared by meaning.
fn is_data(input: &Elf<'_>, info: u32) -> bool {
    let about = input.sections.get(info as usize).filter(|_| info != 0);
    about.is_some_and(|s| {
        s.is_alloc()
            && s.flags & SHF_EXECINSTR == 0
            && s.name != b".eh_frame"
            && !s.name.starts_with(b".gcc_except_table")
    })
}

/// The word that a relocation is for, if the linker computed it relative to a place.
fn word<A: Arch>(relocation: &[u8]) -> Option<Word> {
    let width = match u32_in(relocation, 8)? {
        kind if kind == A::DISTANCE_4 => 4,
        kind if kind == A::DISTANCE_8 => 8,
        _ => return None,
    };
    Some(Word {
        place: u64_in(relocation, 0)?,
        width,
        symbol: u32_in(relocation, 12)?,
    })
}

/// Whether there are any [`words`].
pub(crate) fn has_words<A: Arch>(input: &Elf<'_>) -> bool {
    let sections = input.sections.iter();
    let mut kept = sections.filter(|s| s.is_kept_relocations() && is_data(input, s.info));
    kept.any(|s| {
        let mut records = input.relocation_records(s).chunks_exact(24);
        records.any(|record| word::<A>(record).is_some())
    })
}

/// All words of loaded data that the linker computed relative to a place, ascending.
pub(crate) fn words<A: Arch>(input: &Elf<'_>) -> Vec<Word> {
    let is_data = |info: u32| is_data(input, info);
    let sections = input.sections.iter();
    let mut words: Vec<Word> = sections
        .filter(|s| s.is_kept_relocations() && is_data(s.info))
        .flat_map(|s| {
            postlink_parallel::flat_map_chunks(input.relocation_records(s), 24 << 12, |part| {
                part.chunks_exact(24).filter_map(word::<A>)
            })
        })
        .collect();
    words.par_sort_unstable();
    words.dedup_by_key(|w| w.place);
    words
}

/// Values of functions' symbols, 0 for others, in the order of the table.
fn named(input: &Elf<'_>) -> Vec<u64> {
    let symbols = input.nameless_symbols(SHT_SYMTAB);
    symbols
        .map(|s| if s.is_function() { s.value } else { 0 })
        .collect()
}

/// Addresses that words of data which did not change lead to when they are counted from their own places, and
/// functions by whose names they were made.
pub(crate) fn unchanged<A: Arch>(input: &Elf<'_>, output: &Elf<'_>) -> Vec<u64> {
    let words = words::<A>(input);
    let symbols = if words.is_empty() {
        Vec::new()
    } else {
        named(input)
    };
    let stays = |word: &&Word| word.value(input) == word.value(output);
    let targets = words.iter().filter(stays).flat_map(|word| {
        let target = word.value(input).map(|v| word.place.wrapping_add(v));
        [target, symbols.get(word.symbol as usize).copied()]
    });
    targets.flatten().collect()
}

/// Where tables may begin, and the instructions that form their addresses.
fn tables(found: &Findings) -> FxHashMap<u64, Vec<u64>> {
    let jumps = found.dispatches.iter();
    let jumps = jumps.filter_map(|(d, _)| Some((d.table, *d.parts.last()?)));
    let mut tables: FxHashMap<u64, Vec<u64>> = FxHashMap::default();
    for (base, by) in found.formed.iter().copied().chain(jumps) {
        tables.entry(base).or_default().push(by);
    }
    tables
}

/// Notes the moved functions that words of data lead to.
pub(crate) fn known<A: Arch>(cx: &Context<'_>, extents: &Extents<'_>, found: &mut Findings) {
    let words = words::<A>(cx.input);
    if words.is_empty() || cx.functions.is_empty() {
        return;
    }
    let symbols = named(cx.input);
    let tables = tables(found);
    // Whether an entry of a table that this instruction reads may lead there.
    let leads_back = |by: u64, target: u64, first: bool| {
        let of = |addr| cx.old.owner(addr);
        // Where compilers write what no index has; another function may begin there.
        let end = !first && extents.start_of(target.wrapping_sub(1)) == extents.start_of(by);
        if end {
            return true;
        }
        if let (Some(a), Some(b)) = (of(InputAddr::new(by)), of(InputAddr::new(target))) {
            return a == b && (!first || cx.entry_of(InputAddr::new(target)).is_none());
        }
        let start = extents.start_of(target);
        let same = start == extents.start_of(by) && !(first && start == Some(target));
        let part = start.is_some_and(|s| !extents.is_function(s));
        same || part
    };
    // What a word is in depends on those in front of it, but where a table begins, or they are not near.
    let begins = |i: &usize| {
        let Some(word) = words.get(*i) else {
            return true;
        };
        let before = i.checked_sub(1).and_then(|i| words.get(i));
        let is_table = || {
            let values = [word.value(cx.input), word.value(cx.output)];
            tables.contains_key(&word.place) && values.iter().all(Option::is_some)
        };
        before.is_none_or(|before| word.place - before.place > 8) || is_table()
    };
    let cuts = (0..words.len()).step_by(STRETCH);
    let cuts = cuts.filter_map(|cut| (cut..words.len()).find(begins));
    let mut cuts: Vec<usize> = cuts.chain([words.len()]).collect();
    cuts.dedup();
    let stretches = cuts.len().saturating_sub(1);
    let parts = postlink_parallel::map_range(stretches, |i| {
        let range = cuts.get(i).copied().unwrap_or(0)..cuts.get(i + 1).copied().unwrap_or(0);
        let mut part = Findings::default();
        let words = words.get(range).unwrap_or(&[]);
        noted(
            cx,
            extents,
            words,
            (&symbols, &tables, &leads_back),
            &mut part,
        );
        part
    });
    parts.into_iter().for_each(|part| found.append(part));
}

/// Words that one task looks at, or some more.
const STRETCH: usize = 1 << 12;

/// Notes the moved functions that some words lead to, which do not depend on those in front of them.
fn noted(
    cx: &Context<'_>,
    extents: &Extents<'_>,
    words: &[Word],
    (symbols, tables, leads_back): (
        &[u64],
        &FxHashMap<u64, Vec<u64>>,
        &dyn Fn(u64, u64, bool) -> bool,
    ),
    found: &mut Findings,
) {
    // The table at hand: its start, where its next word is, and what reads it.
    let mut table: Option<(u64, u64, &[u64], bool)> = None;
    // Between which starts of functions the instructions are that read it.
    let mut near: SmallVec<[(u64, u64); 2]> = SmallVec::new();
    // Whether its words so far all lead to functions.
    let mut functions = false;
    for word in words {
        let (Some(value), Some(now)) = (word.value(cx.input), word.value(cx.output)) else {
            continue;
        };
        if let Some(by) = tables.get(&word.place) {
            let target = word.place.wrapping_add(value);
            let jumps = by.iter().any(|by| leads_back(*by, target, true));
            table = Some((word.place, word.place, by, jumps));
            near = by.iter().map(|by| extents.around(*by)).collect();
            functions = true;
        }
        table = table.filter(|t| t.1 == word.place);
        let mut counted = None;
        if let Some((base, next, by, jumps)) = &mut table {
            let target = base.wrapping_add(value);
            // Nearly all entries lead into the function, which is quickly seen.
            let last = target.wrapping_sub(1);
            let first = *base == word.place;
            let is_near = || near.iter().any(|n| n.0 <= last && last < n.1);
            let leads = || by.iter().any(|by| leads_back(*by, target, first));
            *jumps = *jumps && (!first && is_near() || leads());
            *next += u64::from(word.width);
            if *jumps {
                continue;
            }
            functions &= extents.begins(target);
            counted = Some(target);
        }
        // What changed is not described by this word, or is wrong for another reason.
        if value != now {
            continue;
        }
        let target = word.place.wrapping_add(value);
        let symbol = symbols.get(word.symbol as usize).copied();
        for addr in [Some(target), counted, symbol].into_iter().flatten() {
            if let Some(id) = cx.entry_of(InputAddr::new(addr)) {
                found.addresses.push((id, false));
            }
        }
        if functions && counted.is_some() {
            continue;
        }
        let whose = cx
            .inside_of(InputAddr::new(target))
            .or_else(|| cx.end_of(InputAddr::new(target)));
        found
            .inside
            .extend(whose.map(|id| (id, InputAddr::new(target))));
    }
}
