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
//! All sections with code, in the order of the file; in a section all symbols by address, then name, whatever
//! their kind. A symbol's text reaches to the next symbol, at most to the section's end. Procedure linkage
//! tables have a header and nothing else. Probes are above the instruction at exactly their address.
//!
//! A large program has hundreds of megabytes of text, so nothing is allocated for an instruction or a probe:
//! pieces of some kilobytes of code are appended to one buffer a thread, what is before and after the number
//! of a probe is kept for its body, and [`in_order`] writes the buffers.

use std::io::{self, Write};
use std::iter::Peekable;
use std::ops::Range;

use postlink_elf::elf::{Elf, Section, SymbolTable};
use postlink_elf::raw;
use postlink_isa::aarch64;
use postlink_isa::digits;
use postlink_isa::x86_64::text::{Memo, Syntax};
use postlink_profile::progress;
use rayon::prelude::*;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::dwarf::{Frame, Lines};
use crate::guid::Guid;
use crate::in_order;
use crate::machine::Machine;
use crate::names;
use crate::probe::{Kind, Loaded, NodeId, Probe};

/// Instruction text is padded to this width where a source location follows.
const TEXT_WIDTH: usize = 40;
/// A piece of the listing is at least this many bytes of code, so that threads are busy and buffers small.
const PIECE: u64 = 16 << 10;
/// Bytes of texts of bodies that a thread keeps.
const BODIES: usize = 1 << 20;

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
    /// Instruction set of its code.
    pub machine: Machine,
    /// How to spell instructions of x86-64.
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
    pub fn write_descriptors(&self, out: &mut (impl Write + Send)) -> io::Result<()> {
        let Some(loaded) = self.probes else {
            return Ok(());
        };
        let mut text = b"Pseudo Probe Desc:\n".to_vec();
        for descriptor in loaded.descriptors.iter() {
            text.extend_from_slice(b"GUID: ");
            digits::put(&mut text, descriptor.guid.0);
            text.extend_from_slice(b" Name: ");
            text.extend_from_slice(descriptor.name);
            text.extend_from_slice(b"\nHash: ");
            digits::put(&mut text, descriptor.hash);
            text.push(b'\n');
            if text.len() > BODIES {
                out.write_all(&text)?;
                text.clear();
            }
        }
        out.write_all(&text)
    }

    /// Writes all of it.
    pub fn write(&self, out: &mut (impl Write + Send)) -> io::Result<()> {
        self.write_descriptors(out)?;
        let symbols = self.symbols();
        let pieces = self.pieces(&symbols);
        progress::expect(pieces.len());
        in_order::write(
            out,
            pieces.len(),
            || Writer::new(self),
            |writer, number, out| {
                let Some(piece) = pieces.get(number) else {
                    return;
                };
                progress::did(1);
                out.extend_from_slice(piece.head.as_bytes());
                let Some((section, base, here)) = piece.code else {
                    return;
                };
                let code = self.elf.section_data(section);
                let end = base.wrapping_add(section.size);
                // Looked up once for all symbols of the piece, which ascend as probes do.
                let first = here.get(piece.symbols.start).map_or(end, |s| s.address);
                let last = here.get(piece.symbols.end).map_or(end, |s| s.address);
                let probes = self.probes.map(|loaded| loaded.probes.within(first, last));
                let mut probes = probes.into_iter().flatten().peekable();
                for at in piece.symbols.clone() {
                    // A symbol may be beyond its section: `_end` does.
                    let end = here.get(at + 1).map_or(end, |next| next.address.min(end));
                    if let Some(symbol) = here.get(at) {
                        writer.block(symbol, base, end, code, &mut probes, out);
                    }
                }
            },
        )
    }

    /// Where a section is. Code of an object file has no address: it is where its probes were put.
    fn base(&self, index: usize) -> u64 {
        let laid_out = self.probes.and_then(|loaded| {
            let found = loaded.layout.binary_search_by_key(&index, |entry| entry.0);
            Some(loaded.layout.get(found.ok()?)?.1)
        });
        let own = || {
            self.elf
                .sections
                .get(index)
                .map_or(0, |section| section.addr)
        };
        laid_out.unwrap_or_else(own)
    }

    /// The listing in pieces.
    fn pieces<'s>(&'s self, symbols: &'s FxHashMap<u32, Vec<Named<'d>>>) -> Vec<Piece<'s, 'd>> {
        let mut pieces = vec![Piece {
            head: format!("\nDisassembly of {}:\n", self.name),
            code: None,
            symbols: 0..0,
        }];
        for (index, section) in self.elf.sections.iter().enumerate() {
            if section.flags & raw::SHF_EXECINSTR == 0 || section.size == 0 {
                continue;
            }
            let base = self.base(index);
            let end = base.wrapping_add(section.size);
            pieces.push(Piece {
                head: format!(
                    "\nDisassembly of section {} [0x{:x}, 0x{end:x}]:\n\n",
                    section.name, base
                ),
                code: None,
                symbols: 0..0,
            });
            let Some(here) = symbols.get(&(index as u32)) else {
                continue;
            };
            if section.name == ".plt" || !section.has_contents() {
                continue;
            }
            let mut from = 0;
            while let Some(first) = here.get(from) {
                let limit = first.address.saturating_add(PIECE);
                let rest = here.get(from + 1..).unwrap_or_default();
                let to = from + 1 + rest.partition_point(|symbol| symbol.address < limit);
                pieces.push(Piece {
                    head: String::new(),
                    code: Some((section, base, here)),
                    symbols: from..to,
                });
                from = to;
            }
        }
        pieces
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
                address: symbol.value.wrapping_add(if object {
                    self.base(symbol.section as usize)
                } else {
                    0
                }),
                name: match symbol.kind {
                    3 if symbol.name.is_empty() => section.name.as_bytes(),
                    _ => symbol.name,
                },
            });
        }
        for symbols in by_section.values_mut() {
            symbols.par_sort_by_key(|symbol| (symbol.address, symbol.name));
        }
        by_section
    }
}

/// Part of a listing: a header, or some symbols.
struct Piece<'s, 'd> {
    head: String,
    /// The section, where it is, and its symbols.
    code: Option<(&'s Section<'d>, u64, &'s [Named<'d>])>,
    symbols: Range<usize>,
}

/// Writes instructions of an instruction set.
enum Speller {
    X86_64(Box<Memo>),
    AArch64,
}

impl Speller {
    /// Appends the instruction at the start of `bytes`, or `<unknown>`, and returns its length.
    fn spell(&mut self, bytes: &[u8], address: u64, out: &mut Vec<u8>) -> usize {
        let (done, unknown) = match self {
            Speller::X86_64(memo) => (memo.print(bytes, address, out), 1),
            Speller::AArch64 => (aarch64::text::print(bytes, address, out), 4),
        };
        done.unwrap_or_else(|| {
            out.extend_from_slice(b"\t<unknown>");
            unknown
        })
    }
}

/// Text of a body's probes, in [`Writer::texts`]: what is before the index from `start`, what is after the
/// kind from `middle` to `end`.
#[derive(Clone, Copy)]
struct Around {
    start: usize,
    middle: usize,
    end: usize,
}

/// Prints blocks.
struct Writer<'a, 'l, 'd> {
    listing: &'a Listing<'l, 'd>,
    speller: Speller,
    frames: Vec<Frame<'d>>,
    /// Many probes share the text of their body.
    bodies: FxHashMap<NodeId, Around>,
    texts: Vec<u8>,
    context: Vec<NodeId>,
}

impl<'a, 'l, 'd> Writer<'a, 'l, 'd> {
    fn new(listing: &'a Listing<'l, 'd>) -> Self {
        Writer {
            speller: match listing.machine {
                Machine::X86_64 => Speller::X86_64(Box::new(Memo::new(listing.syntax))),
                Machine::AArch64 => Speller::AArch64,
            },
            listing,
            frames: Vec::new(),
            bodies: FxHashMap::default(),
            texts: Vec::new(),
            context: Vec::new(),
        }
    }

    /// Appends the text of a symbol, which reaches to `end`. Of `probes`, those up to there are used up.
    fn block(
        &mut self,
        symbol: &Named<'_>,
        base: u64,
        end: u64,
        code: &[u8],
        probes: &mut Peekable<impl Iterator<Item = Probe>>,
        out: &mut Vec<u8>,
    ) {
        let name = if self.listing.canonical {
            names::canonical(symbol.name)
        } else {
            symbol.name
        };
        if self.listing.only.is_some_and(|only| !only.contains(name)) {
            return;
        }
        out.push(b'<');
        out.extend_from_slice(name);
        out.extend_from_slice(b">:\n");
        let offset = |address: u64| usize::try_from(address.checked_sub(base)?).ok();
        let bytes = offset(symbol.address)
            .zip(offset(end))
            .and_then(|(from, to)| code.get(from..to));
        let mut rest = bytes.unwrap_or_default();
        let mut address = symbol.address;
        let loaded = self.listing.probes;
        while !rest.is_empty() {
            while let Some(probe) = probes.next_if(|probe| probe.address <= address) {
                // A probe in the middle of an instruction is not shown.
                if let Some(loaded) = loaded
                    && probe.address == address
                {
                    self.probe(loaded, &probe, out);
                }
            }
            digits::hex_padded(out, address, 8);
            out.push(b':');
            let start = out.len();
            let len = self.speller.spell(rest, address, out);
            if self.listing.lines.is_some() {
                self.location(address, start, out);
            }
            out.push(b'\n');
            rest = rest.get(len..).unwrap_or_default();
            address = address.wrapping_add(len as u64);
        }
        out.push(b'\n');
    }

    fn probe(&mut self, loaded: &Loaded<'_>, probe: &Probe, out: &mut Vec<u8>) {
        let around = match self.bodies.get(&probe.node) {
            Some(&around) => around,
            None => self.body(loaded, probe.node),
        };
        let text = self.texts.get(around.start..around.middle);
        out.extend_from_slice(text.unwrap_or_default());
        digits::put(out, u64::from(probe.index));
        out.extend_from_slice(b"  ");
        if probe.discriminator != 0 {
            out.extend_from_slice(b"Discriminator: ");
            digits::put(out, u64::from(probe.discriminator));
            out.extend_from_slice(b"  ");
        }
        match probe.kind {
            Kind::Block => out.extend_from_slice(b"Type: Block  "),
            Kind::IndirectCall => out.extend_from_slice(b"Type: IndirectCall  "),
            Kind::DirectCall => out.extend_from_slice(b"Type: DirectCall  "),
            Kind::Unknown(number) => {
                out.extend_from_slice(b"Type: ");
                digits::put(out, u64::from(number));
                out.extend_from_slice(b"  ");
            }
        }
        let text = self.texts.get(around.middle..around.end);
        out.extend_from_slice(text.unwrap_or_default());
    }

    /// Makes the text of a body's probes.
    fn body(&mut self, loaded: &Loaded<'_>, id: NodeId) -> Around {
        if self.texts.len() > BODIES {
            self.texts.clear();
            self.bodies.clear();
        }
        let (probes, texts) = (&loaded.probes, &mut self.texts);
        let start = texts.len();
        texts.extend_from_slice(b" [Probe]:\tFUNC: ");
        put_name(texts, loaded, probes.node(id).guid);
        texts.extend_from_slice(b" Index: ");
        let middle = texts.len();
        self.context.clear();
        let mut at = id;
        while let Some(parent) = probes.parent(at) {
            self.context.push(at);
            at = parent;
        }
        let mut between: &[u8] = b"Inlined: @ ";
        for &inlined in self.context.iter().rev() {
            texts.extend_from_slice(between);
            put_name(texts, loaded, probes.node(at).guid);
            texts.push(b':');
            digits::put(texts, u64::from(probes.node(inlined).site));
            (at, between) = (inlined, b" @ ");
        }
        texts.push(b'\n');
        let around = Around {
            start,
            middle,
            end: texts.len(),
        };
        self.bodies.insert(id, around);
        around
    }

    /// Appends the source location of an address after the text of its instruction, which starts at `start`.
    fn location(&mut self, address: u64, start: usize, out: &mut Vec<u8>) {
        let Some(lines) = self.listing.lines else {
            return;
        };
        if out.len() - start < TEXT_WIDTH {
            out.resize(start + TEXT_WIDTH, b' ');
        }
        lines.frames(address, &mut self.frames);
        let mut between: &[u8] = b"";
        for frame in &self.frames {
            out.extend_from_slice(between);
            out.extend_from_slice(if self.listing.canonical {
                names::canonical(frame.name)
            } else {
                frame.name
            });
            out.push(b':');
            if self.listing.probes.is_some() {
                digits::put(out, u64::from(frame.discriminator.probe_index()));
            } else {
                digits::put(out, u64::from(frame.line_offset));
                if frame.discriminator.0 != 0 {
                    out.push(b'.');
                    digits::put(out, u64::from(frame.discriminator.0));
                }
            }
            between = b" @ ";
        }
    }
}

fn put_name(out: &mut Vec<u8>, loaded: &Loaded<'_>, guid: Guid) {
    match loaded.descriptors.get(guid) {
        Some(descriptor) => out.extend_from_slice(descriptor.name),
        None => digits::put(out, guid.0),
    }
}
