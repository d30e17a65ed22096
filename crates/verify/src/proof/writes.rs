//! Who writes into bytes that were copied, while the program runs: the dynamic loader, and the program itself.
//!
//! A dynamic relocation changes the bytes at its place, and the places in the output are those in the input
//! ([`super::image`] compares them). A program may change code in a writable segment through a pointer, which still
//! leads to the old code. Where the output has a copy elsewhere only the original is changed: the copy holds what is in
//! the file. So there may be
//!
//! | what | what would happen |
//! |---|---|
//! | no dynamic relocation in the old code of a moved function | its instructions have other operands; the jump at its entry may be overwritten |
//! | none in the exception table of a moved function | a type that is zero catches everything; asked when a table is read ([`crate::walk`]) |
//! | none in the unwind table | personality routines and functions have other addresses |
//! | no moved function in a writable segment | the program continues with code as it was before it changed it |
//!
//! Programs that are linked with `-z notext` have such relocations; `-N`, and sections of code with the flag `w`, make
//! code writable. That a program does not make code writable by itself is assumption A4.

use super::image::{rela_tables, relr_places};
use crate::addr::InputAddr;
use crate::arch::Arch;
use crate::context::{Context, Findings};
use crate::files::bytes::u64_in;
use crate::files::claim::{Claim, OwnTable};
use crate::files::elf::{ET_EXEC, Elf};
use crate::report::{Check, Failure};
use rustc_hash::FxHashMap;

/// Places of all dynamic relocations of a file, ascending.
pub(crate) fn places(elf: &Elf<'_>) -> Vec<u64> {
    let mut places = Vec::new();
    for table in rela_tables(elf) {
        let bytes = elf.bytes(table.start, table.len()).unwrap_or_default();
        let entries = bytes.chunks_exact(24);
        // Type 0 is for nothing on all machines.
        let real = entries.filter(|e| u64_in(e, 8).is_some_and(|info| info as u32 != 0));
        places.extend(real.filter_map(|e| u64_in(e, 0)));
    }
    if let (Some(at), Some(size)) = (elf.dynamic_value(36), elf.dynamic_value(35)) {
        places.extend(relr_places(elf.bytes(at, size).unwrap_or_default()));
    }
    places.sort_unstable();
    places
}

/// By place: the addresses that the loader makes, to which it adds nothing but the load bias. Asked for where new code
/// has tables of labels of its own, and the file is not at a fixed address; else there is none.
pub(crate) fn words<A: Arch>(elf: &Elf<'_>, claim: &Claim<'_>) -> FxHashMap<u64, u64> {
    let mut words = FxHashMap::default();
    let mut tables = claim.functions.iter().flat_map(|f| &f.tables);
    let of_labels = |t: &OwnTable| !t.wide && t.base == 0;
    if elf.etype == ET_EXEC || !tables.any(of_labels) {
        return words;
    }
    for table in rela_tables(elf) {
        let bytes = elf.bytes(table.start, table.len()).unwrap_or_default();
        words.extend(bytes.chunks_exact(24).filter_map(|entry| {
            let relative = u64_in(entry, 8)? == u64::from(A::RELATIVE[0]);
            Some((u64_in(entry, 0)?, u64_in(entry, 16)?)).filter(|_| relative)
        }));
    }
    if let (Some(at), Some(size)) = (elf.dynamic_value(36), elf.dynamic_value(35)) {
        let places = relr_places(elf.bytes(at, size).unwrap_or_default());
        words.extend(
            places
                .into_iter()
                .filter_map(|at| Some((at, elf.u64_at(at)?))),
        );
    }
    words
}

/// Compares code and the unwind table with writable segments and the places of [`Context::loaded`].
pub(crate) fn compare(cx: &Context<'_>, found: &mut Findings) {
    for (range, id) in cx.old.ranges() {
        let segments = cx.input.loads().iter();
        let mut writable = segments.filter(|s| s.is_writable());
        if writable.any(|s| s.addr < range.end.get() && range.start < InputAddr::new(s.end())) {
            let text = "code that the program may write to was copied";
            let failure = Failure::new(Check::OldCode, text).at_kept(range.start.get());
            found.functions.push((id, failure));
        }
    }
    let old = cx.old.ranges().map(|(r, id)| (r.numbers(), id));
    let new = cx.new.ranges().map(|(r, id)| (r.numbers(), id));
    for (range, id) in old.chain(new) {
        if let Some(place) = cx.loads_into(range.start, range.end) {
            let text = format!(
                "the dynamic loader writes at {place:#x}, in code of which there is a copy"
            );
            let failure = Failure::new(Check::Relocations, text).at_kept(place);
            found.functions.push((id, failure));
        }
    }
    let table = &cx.old_unwind;
    if table.addr == cx.new_unwind.addr {
        return;
    }
    let section = cx.input.sections.iter();
    let mut section =
        section.filter(|s| s.is_alloc() && s.addr <= table.addr && table.addr < s.end());
    let end = match section.next() {
        Some(section) => section.end(),
        None => table.addr.saturating_add(table.bytes.len() as u64),
    };
    if let Some(place) = cx.loads_into(table.addr, end) {
        let text = format!(
            "the dynamic loader writes at {place:#x}, in the unwind table, of which there is a copy"
        );
        let failure = Failure::new(Check::Relocations, text).at_kept(place);
        found.file.push(failure);
    }
}
