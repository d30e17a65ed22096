//! Finding both sections in a file, and the symbols that records start at.
//!
//! In a linked file there is one section of each name. In an object file there is one `.pseudo_probe` for
//! each section of code, which its link field names, and code has no addresses yet: sections of code are laid
//! out one after the other, in the order of the file and from [`OBJECT_BASE`], and probes get addresses in
//! this layout ([`Loaded::layout`]). Full addresses in old object files are relocations against those
//! sections, which are applied here.

use std::borrow::Cow;

use postlink_elf::elf::{Elf, Section, SymbolTable};
use postlink_elf::raw;

use super::anchor::{Anchor, Anchors};
use super::{Descriptors, Probes, decode, descriptors};
use crate::FormatError;

/// Where the code of an object file is laid out. Not 0, which means "undefined" for symbols.
pub const OBJECT_BASE: u64 = 0x1000;

/// `e_type` of an object file.
const ET_REL: u16 = 1;

/// The probes of a file.
#[derive(Debug)]
pub struct Loaded<'d> {
    /// The functions.
    pub descriptors: Descriptors<'d>,
    /// The probes.
    pub probes: Probes,
    /// Of an object file: sections of code by their index, and the addresses that they were given. Empty for
    /// a linked file.
    pub layout: Vec<(usize, u64)>,
}

/// Reads the probes of a file; `None` if it does not have both sections.
pub fn load<'d>(elf: &Elf<'d>) -> Result<Option<Loaded<'d>>, FormatError> {
    let named = |name: &'static str| {
        let sections = elf.sections.iter().enumerate();
        sections.filter(move |(_, section)| section.name == name && section.has_contents())
    };
    let described: Vec<&[u8]> = named(descriptors::SECTION)
        .map(|(_, section)| elf.section_data(section))
        .collect();
    let probe_sections: Vec<(usize, &Section<'d>)> = named(decode::SECTION).collect();
    if described.is_empty() || probe_sections.is_empty() {
        return Ok(None);
    }
    let descriptors = Descriptors::parse(&described)?;
    let layout = layout(elf);
    let mut probes = Probes::default();
    let base = |index: usize| {
        let found = layout.binary_search_by_key(&index, |entry| entry.0);
        Some(layout.get(found.ok()?)?.1)
    };
    let symbols: Vec<(&[u8], Anchor, u32)> = elf
        .symbols(SymbolTable::Static)
        .iter()
        .map(|symbol| {
            let base = base(symbol.section as usize).unwrap_or(0);
            let address = symbol.value.wrapping_add(base);
            (
                symbol.name,
                Anchor {
                    address,
                    size: symbol.size,
                },
                symbol.section,
            )
        })
        .collect();
    if elf.etype != ET_REL {
        let all: Vec<_> = symbols
            .iter()
            .map(|&(name, anchor, _)| (name, anchor))
            .collect();
        let anchors = Anchors::new(&all);
        drop((symbols, all));
        for (_, section) in probe_sections {
            let decoded = decode::decode(elf.section_data(section), &anchors)?;
            if probes.is_empty() {
                probes = decoded
            } else {
                probes.append(decoded)?
            }
        }
        return Ok(Some(Loaded {
            descriptors,
            probes,
            layout,
        }));
    }
    for (index, section) in probe_sections {
        let code = section.link;
        let here: Vec<_> = symbols
            .iter()
            .filter(|symbol| symbol.2 == code)
            .map(|&(name, anchor, _)| (name, anchor))
            .collect();
        let bytes = relocated(elf, index, section, &base);
        probes.append(decode::decode(&bytes, &Anchors::new(&here))?)?;
    }
    Ok(Some(Loaded {
        descriptors,
        probes,
        layout,
    }))
}

/// Addresses for the code of an object file.
fn layout(elf: &Elf<'_>) -> Vec<(usize, u64)> {
    let mut layout = Vec::new();
    if elf.etype != ET_REL {
        return layout;
    }
    let mut next = OBJECT_BASE;
    for (index, section) in elf.sections.iter().enumerate() {
        if section.is_code() {
            next = next
                .checked_next_multiple_of(section.align.clamp(1, 1 << 21))
                .unwrap_or(next);
            layout.push((index, next));
            next = next.saturating_add(section.size);
        }
    }
    layout
}

/// The bytes of a section with its 8-byte absolute relocations against code applied.
fn relocated<'d>(
    elf: &Elf<'d>,
    index: usize,
    section: &Section<'d>,
    base: &impl Fn(usize) -> Option<u64>,
) -> Cow<'d, [u8]> {
    let mut bytes = Cow::Borrowed(elf.section_data(section));
    let symbols = elf.symbols(SymbolTable::Static);
    let tables = elf.sections.iter();
    let of_relocations = |s: &&Section<'_>| matches!(s.kind, raw::SHT_RELA | raw::SHT_CREL);
    for table in tables
        .filter(of_relocations)
        .filter(|s| s.info as usize == index)
    {
        for record in raw::relas(elf.relocation_records(table)) {
            let wide = matches!(
                (elf.machine, record.r_type),
                (raw::EM_X86_64, raw::R_X86_64_64) | (raw::EM_AARCH64, raw::R_AARCH64_ABS64)
            );
            if !wide {
                continue;
            }
            let Some(symbol) = symbols.get(record.r_sym as usize) else {
                continue;
            };
            let Some(base) = base(symbol.section as usize) else {
                continue;
            };
            let value = base
                .wrapping_add(symbol.value)
                .wrapping_add_signed(record.r_addend);
            let field = usize::try_from(record.r_offset)
                .ok()
                .and_then(|at| Some(at..at.checked_add(8)?));
            if let Some(field) = field.and_then(|range| bytes.to_mut().get_mut(range)) {
                field.copy_from_slice(&value.to_le_bytes());
            }
        }
    }
    bytes
}
