//! What the bytes of a file are for.

use std::collections::BTreeMap;

use postlink_elf::elf::{Elf, Section};
use postlink_elf::raw;

use crate::model::Sizes;

/// A part's name. Sections that only the output has are told one by one.
fn part(section: &Section<'_>, only_after: bool) -> String {
    let name = section.name;
    if only_after {
        return format!("new: {name}");
    }
    let words = if section.is_code() {
        "code"
    } else if name.starts_with(".debug") || name.starts_with(".zdebug") || name == ".gdb_index" {
        "debug information"
    } else if name.starts_with(".eh_frame") || name.starts_with(".gcc_except_table") {
        "unwinding and exceptions"
    } else if matches!(section.kind, raw::SHT_RELA | raw::SHT_REL | raw::SHT_CREL)
        && !section.is_alloc()
    {
        "relocations kept by the linker"
    } else if matches!(name, ".symtab" | ".strtab" | ".shstrtab") {
        "symbols"
    } else if name.starts_with(".dyn")
        || name.starts_with(".rela.")
        || name.starts_with(".gnu")
        || name.starts_with(".relr")
        || name == ".interp"
    {
        "dynamic linking"
    } else if name.starts_with(".note") || name == ".comment" {
        "notes"
    } else if section.is_alloc() && section.flags & raw::SHF_WRITE == 0 {
        "constants"
    } else if section.is_alloc() {
        "data"
    } else {
        "other"
    };
    words.to_owned()
}

fn parts(elf: &Elf<'_>, other: Option<&Elf<'_>>) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    let mut known = 0u64;
    for section in elf
        .sections
        .iter()
        .filter(|s| s.has_contents() && s.size > 0)
    {
        let only_after = other.is_some_and(|other| other.section(section.name).is_none());
        *sums.entry(part(section, only_after)).or_default() += section.size;
        known = known.saturating_add(section.size);
    }
    let rest = (elf.data.len() as u64).saturating_sub(known);
    sums.insert("headers and padding".to_owned(), rest);
    sums
}

/// Sizes of the parts of an input, and of an output made of it.
pub fn sizes(input: &Elf<'_>, output: Option<&Elf<'_>>) -> Sizes {
    let before = parts(input, None);
    let after = output.map(|output| parts(output, Some(input)));
    let mut names: Vec<&String> = before
        .keys()
        .chain(after.iter().flat_map(|a| a.keys()))
        .collect();
    names.sort();
    names.dedup();
    let get = |parts: &BTreeMap<String, u64>, name: &String| parts.get(name).copied().unwrap_or(0);
    let mut rows: Vec<(String, u64, u64)> = names
        .into_iter()
        .map(|name| {
            let was = get(&before, name);
            (
                name.clone(),
                was,
                after.as_ref().map_or(was, |after| get(after, name)),
            )
        })
        .collect();
    // What is new comes last, and large parts first.
    let key = |row: &(String, u64, u64)| (row.1 == 0, std::cmp::Reverse(row.1.max(row.2)));
    rows.sort_by(|a, b| key(a).cmp(&key(b)).then(a.0.cmp(&b.0)));
    Sizes {
        before: input.data.len() as u64,
        after: output.map(|output| output.data.len() as u64),
        parts: rows,
    }
}
