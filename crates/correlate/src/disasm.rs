//! Code as text, with the probes and source locations of every instruction.
//!
//! The layout is that of `llvm-profgen --show-disassembly-only`, so that scripts written for it keep working:
//!
//! ```text
//! Disassembly of FILE:
//!
//! Disassembly of section .text [0x201570, 0x2016cc]:
//!
//! <mid>:
//!  [Probe]:⇥FUNC: mid Index: 1  Type: Block··
//!   201662:⇥leal⇥1(%rax), %edi
//! ```
//!
//! All sections with code, in the order of the file; in a section all symbols by address, then name, whatever their kind. A symbol's
//! text reaches to the next symbol or the section's end. Procedure linkage tables have a header and nothing else. Probes
//! stand above the instruction at exactly their address.

use std::fmt::Write as _;
use std::io::{self, Write};

use postlink_image::elf::{Elf, SymbolTable};
use postlink_image::raw;
use postlink_isa::x86_64::text::{Printer, Syntax};
use rayon::prelude::*;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::dwarf::{Frame, Lines};
use crate::guid::Guid;
use crate::names;
use crate::probe::{Loaded, NodeId, Probe, inline_text};

/// Instruction text is padded to this width where a source location follows.
const TEXT_WIDTH: usize = 40;
/// Symbols that are printed before anything is written, to bound memory.
const BATCH: usize = 4096;

/// What to print.
pub struct Listing<'a, 'd> {
    /// The file.
    pub elf: &'a Elf<'d>,
    /// What to call it.
    pub name: &'a str,
    /// Its probes, to be shown.
    pub probes: Option<&'a Loaded<'d>>,
    /// Its debug information, to be shown.
    pub lines: Option<&'a Lines<'d>>,
    /// How to spell instructions.
    pub syntax: Syntax,
    /// Take off what optimisers have appended to names.
    pub canonical: bool,
    /// Only these symbols, by the name that is displayed; all if `None`.
    pub only: Option<&'a FxHashSet<Vec<u8>>>,
}

/// A symbol of a section.
struct Named<'d> {
    address: u64,
    name: &'d [u8],
}

impl<'d> Listing<'_, 'd> {
    /// Writes the functions that have probes, in the order of their keys.
    pub fn write_descriptors(&self, out: &mut impl Write) -> io::Result<()> {
        let Some(loaded) = self.probes else {
            return Ok(());
        };
        writeln!(out, "Pseudo Probe Desc:")?;
        for descriptor in loaded.descriptors.iter() {
            write!(out, "GUID: {} Name: ", descriptor.guid)?;
            out.write_all(descriptor.name)?;
            writeln!(out, "\nHash: {}", descriptor.hash)?;
        }
        Ok(())
    }

    /// Writes all of it.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        self.write_descriptors(out)?;
        writeln!(out, "\nDisassembly of {}:", self.name)?;
        let mut symbols = self.symbols();
        for (index, section) in self.elf.sections.iter().enumerate() {
            if section.flags & raw::SHF_EXECINSTR == 0 || section.size == 0 {
                continue;
            }
            let here = symbols.remove(&(index as u32)).unwrap_or_default();
            let end = section.addr.wrapping_add(section.size);
            writeln!(
                out,
                "\nDisassembly of section {} [0x{:x}, 0x{end:x}]:\n",
                section.name, section.addr
            )?;
            if section.name == ".plt" || !section.has_contents() {
                continue;
            }
            let code = self.elf.section_data(section);
            let starts = here
                .iter()
                .skip(1)
                .map(|symbol| symbol.address)
                .chain([end]);
            let blocks: Vec<(&Named<'_>, u64)> = here.iter().zip(starts).collect();
            for batch in blocks.chunks(BATCH) {
                let texts: Vec<Vec<u8>> = batch
                    .par_chunks(64)
                    .map(|blocks| {
                        let mut writer = Writer::new(self);
                        for &(symbol, end) in blocks {
                            writer.block(symbol, section.addr, end, code);
                        }
                        writer.out
                    })
                    .collect();
                texts.iter().try_for_each(|text| out.write_all(text))?;
            }
        }
        Ok(())
    }

    /// The symbols of each section, by address and name.
    fn symbols(&self) -> FxHashMap<u32, Vec<Named<'d>>> {
        let mut by_section: FxHashMap<u32, Vec<Named<'d>>> = FxHashMap::default();
        for symbol in self.elf.symbols(SymbolTable::Static).iter() {
            let Some(section) = self.elf.sections.get(symbol.section as usize) else {
                continue;
            };
            if section.flags & raw::SHF_EXECINSTR == 0 {
                continue;
            }
            let here = by_section.entry(symbol.section).or_default();
            let object = self.elf.etype == 1;
            here.push(Named {
                address: symbol
                    .value
                    .wrapping_add(if object { section.addr } else { 0 }),
                name: match symbol.kind {
                    3 if symbol.name.is_empty() => section.name.as_bytes(),
                    _ => symbol.name,
                },
            });
        }
        for symbols in by_section.values_mut() {
            symbols.sort_by_key(|symbol| (symbol.address, symbol.name));
        }
        by_section
    }
}

/// Prints blocks.
struct Writer<'a, 'l, 'd> {
    listing: &'a Listing<'l, 'd>,
    printer: Printer,
    frames: Vec<Frame<'d>>,
    text: String,
    /// Text of where each body was inlined: many probes share one.
    contexts: FxHashMap<NodeId, String>,
    out: Vec<u8>,
}

impl<'a, 'l, 'd> Writer<'a, 'l, 'd> {
    fn new(listing: &'a Listing<'l, 'd>) -> Self {
        Writer {
            printer: Printer::new(listing.syntax),
            listing,
            frames: Vec::new(),
            text: String::new(),
            contexts: FxHashMap::default(),
            out: Vec::new(),
        }
    }

    /// The text of a symbol, which reaches to `end`.
    fn block(&mut self, symbol: &Named<'_>, base: u64, end: u64, code: &[u8]) {
        let name = match self.listing.canonical {
            true => names::canonical(symbol.name),
            false => symbol.name,
        };
        if self.listing.only.is_some_and(|only| !only.contains(name)) {
            return;
        }
        self.out.push(b'<');
        self.out.extend_from_slice(name);
        self.out.extend_from_slice(b">:\n");
        let offset = |address: u64| usize::try_from(address.checked_sub(base)?).ok();
        let bytes = offset(symbol.address)
            .zip(offset(end))
            .and_then(|(from, to)| code.get(from..to));
        let mut rest = bytes.unwrap_or_default();
        let mut address = symbol.address;
        while !rest.is_empty() {
            let text = &mut self.text;
            text.clear();
            let len = match self.printer.print(rest, address, text) {
                Some(len) => len,
                None => {
                    text.push_str("\t<unknown>");
                    1
                }
            };
            if let Some(loaded) = self.listing.probes {
                for probe in loaded.probes.at(address) {
                    self.probe(loaded, &probe);
                }
            }
            if self.listing.lines.is_some() {
                self.location(address);
            }
            // Writing to a vector does not fail.
            let _ = writeln!(self.out, "{address:8x}:{}", self.text);
            rest = &rest[len.min(rest.len())..];
            address = address.wrapping_add(len as u64);
        }
        self.out.push(b'\n');
    }

    fn probe(&mut self, loaded: &Loaded<'_>, probe: &Probe) {
        let node = loaded.probes.node(probe.node);
        let out = &mut self.out;
        out.extend_from_slice(b" [Probe]:\tFUNC: ");
        put_name(out, loaded, node.guid);
        let _ = write!(out, " Index: {}  ", probe.index);
        if probe.discriminator != 0 {
            let _ = write!(out, "Discriminator: {}  ", probe.discriminator);
        }
        let _ = write!(out, "Type: {}  ", probe.kind);
        if loaded.probes.parent(probe.node).is_some() {
            let context = self
                .contexts
                .entry(probe.node)
                .or_insert_with(|| inline_text(&loaded.probes, &loaded.descriptors, probe.node));
            let _ = write!(out, "Inlined: @ {context}");
        }
        out.push(b'\n');
    }

    /// Appends the source location of an address to the text of its instruction.
    fn location(&mut self, address: u64) {
        let Some(lines) = self.listing.lines else {
            return;
        };
        while self.text.len() < TEXT_WIDTH {
            self.text.push(' ');
        }
        lines.frames(address, &mut self.frames);
        let mut between = "";
        for frame in &self.frames {
            let name = match self.listing.canonical {
                true => names::canonical(frame.name),
                false => frame.name,
            };
            let _ = write!(self.text, "{between}{}:", String::from_utf8_lossy(name));
            if self.listing.probes.is_some() {
                let _ = write!(self.text, "{}", frame.discriminator.probe_index());
            } else {
                let _ = write!(self.text, "{}", frame.line_offset);
                match frame.discriminator.0 {
                    0 => {}
                    number => {
                        let _ = write!(self.text, ".{number}");
                    }
                }
            }
            between = " @ ";
        }
    }
}

fn put_name(out: &mut Vec<u8>, loaded: &Loaded<'_>, guid: Guid) {
    match loaded.descriptors.get(guid) {
        Some(descriptor) => out.extend_from_slice(descriptor.name),
        None => {
            let _ = write!(out, "{guid}");
        }
    }
}
