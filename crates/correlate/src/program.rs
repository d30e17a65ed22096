//! The code of a program as samples need it: where instructions start, which of them transfer control, where functions are.
//!
//! Three bits an instruction would do; what is kept is a sorted array of addresses and a byte of flags beside each, because every question
//! asked is "what is at this address" or "what comes before it". Code is read symbol by symbol from front to back, as in a
//! listing: what stands between the end of a section and its first symbol is not code.

use std::ops::Range as Span;

use postlink_image::elf::{Elf, SymbolTable};
use postlink_image::raw;
use postlink_isa::x86_64::X86_64;
use postlink_isa::x86_64::text::{Printer, Syntax};
use postlink_isa::{Flow, Isa};
use rayon::prelude::*;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::dwarf::{Lines, Range};
use crate::names;

/// The place of code that is not in the file. No instruction is there.
pub const EXTERNAL: u64 = 1;

const PAGE: u64 = 0x1000;

const CALL: u8 = 1;
const RETURN: u8 = 2;
/// Control never goes on to the next instruction, or not before it comes back.
const TRANSFER: u8 = 4;

/// Code of a program.
#[derive(Debug, Default)]
pub struct Program<'d> {
    /// Where instructions start, ascending.
    addresses: Vec<u64>,
    /// Facts about each, and its length in bytes in the upper half.
    flags: Vec<u8>,
    /// Segments with code: page-aligned address, page-aligned offset in the file, length in memory from there.
    pub segments: Vec<Segment>,
    /// First address of the first loadable segment, page-aligned.
    pub first_loadable: u64,
    /// Pieces of functions by their first address.
    ranges: Vec<Range<'d>>,
    /// Starts of the ranges that are entries of their function.
    entries: FxHashSet<u64>,
    /// Places where a stack frame is not set up: starts of functions, returns.
    unframed: FxHashSet<u64>,
    /// Ranges that start where another does.
    pub same_start: usize,
}

/// A segment with code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Page-aligned address.
    pub address: u64,
    /// Page-aligned offset in the file.
    pub offset: u64,
    /// Length in memory.
    pub len: u64,
}

impl<'d> Program<'d> {
    /// Reads the code of a file. `lines` say where its functions are.
    pub fn new(elf: &Elf<'d>, lines: &Lines<'d>) -> Program<'d> {
        let loads: Vec<_> = elf.loads().collect();
        let code = loads.iter().filter(|load| load.flags & raw::PF_X != 0);
        let segments: Vec<Segment> = code
            .map(|load| Segment {
                address: load.addr & !(PAGE - 1),
                offset: load.offset & !(PAGE - 1),
                len: load.mem_size.saturating_add(load.addr & (PAGE - 1)),
            })
            .collect();
        let mut program = Program {
            first_loadable: loads.first().map_or(0, |load| load.addr & !(PAGE - 1)),
            segments,
            ..Program::default()
        };
        program.sweep(elf);
        program.functions(elf, lines);
        program
    }

    /// The address that raw profiles count from, and that mappings are compared with: that of the first segment with code.
    pub fn base(&self) -> u64 {
        self.segments
            .first()
            .map_or(self.first_loadable, |segment| segment.address)
    }

    /// Whether an instruction starts at an address.
    pub fn is_code(&self, address: u64) -> bool {
        self.addresses.binary_search(&address).is_ok()
    }

    /// Whether there is a call.
    pub fn is_call(&self, address: u64) -> bool {
        self.flag(address, CALL)
    }

    /// Whether there is a return.
    pub fn is_return(&self, address: u64) -> bool {
        self.flag(address, RETURN)
    }

    /// The instruction before the one at an address.
    pub fn previous(&self, address: u64) -> Option<u64> {
        let at = self.addresses.partition_point(|&start| start < address);
        self.addresses.get(at.checked_sub(1)?).copied()
    }

    /// The call that returns to an address.
    pub fn call_before(&self, address: u64) -> Option<u64> {
        self.previous(address)
            .filter(|&call| self.is_code(address) && self.is_call(call))
    }

    /// The instructions from one address to another, both included.
    pub fn between(&self, first: u64, last: u64) -> &[u64] {
        let from = self.addresses.partition_point(|&start| start < first);
        let to = self.addresses.partition_point(|&start| start <= last);
        self.addresses.get(from..to).unwrap_or_default()
    }

    /// Length of the instruction at an address in bytes; 0 if there is none.
    pub fn len_at(&self, address: u64) -> u64 {
        let found = self.addresses.binary_search(&address);
        found.map_or(0, |at| u64::from(self.flags[at] >> 4))
    }

    /// Whether control can go from the first instruction to the last without a branch: no call, return or jump in between.
    pub fn falls_through(&self, first: u64, last: u64) -> bool {
        if first > last {
            return false;
        }
        let from = self.addresses.partition_point(|&start| start < first);
        let to = self.addresses.partition_point(|&start| start < last);
        self.flags
            .get(from..to)
            .is_some_and(|flags| flags.iter().all(|flag| flag & TRANSFER == 0))
    }

    /// The piece of a function that an address lies in.
    pub fn range_of(&self, address: u64) -> Option<&Range<'d>> {
        let at = self.ranges.partition_point(|range| range.start <= address);
        self.ranges
            .get(at.checked_sub(1)?)
            .filter(|range| address < range.end)
    }

    /// The function whose entry an address is.
    pub fn entry_at(&self, address: u64) -> Option<&'d [u8]> {
        let range = self.range_of(address)?;
        (range.start == address && self.entries.contains(&address)).then_some(range.name)
    }

    /// All pieces of functions, by address.
    pub fn ranges(&self) -> &[Range<'d>] {
        &self.ranges
    }

    /// Whether an address is in a prologue or epilogue, where call chains are unreliable.
    pub fn is_unframed(&self, address: u64) -> bool {
        self.unframed.contains(&address)
    }

    fn flag(&self, address: u64, flag: u8) -> bool {
        let found = self.addresses.binary_search(&address);
        found.is_ok_and(|at| self.flags[at] & flag != 0)
    }

    /// Finds the instructions.
    fn sweep(&mut self, elf: &Elf<'d>) {
        let mut starts: FxHashMap<u32, Vec<u64>> = FxHashMap::default();
        for symbol in elf.symbols(SymbolTable::Static).iter() {
            starts.entry(symbol.section).or_default().push(symbol.value);
        }
        let mut pieces: Vec<(Span<u64>, &[u8])> = Vec::new();
        for (index, section) in elf.sections.iter().enumerate() {
            let skip = section.flags & raw::SHF_EXECINSTR == 0
                || section.name == ".plt"
                || !section.has_contents();
            let Some(mut here) = starts.remove(&(index as u32)).filter(|_| !skip) else {
                continue;
            };
            here.sort_unstable();
            here.dedup();
            let code = elf.section_data(section);
            let ends = here
                .iter()
                .skip(1)
                .copied()
                .chain([section.addr.saturating_add(section.size)]);
            for (&start, end) in here.iter().zip(ends) {
                let offset =
                    |address: u64| usize::try_from(address.checked_sub(section.addr)?).ok();
                if let Some(bytes) = offset(start)
                    .zip(offset(end))
                    .and_then(|(from, to)| code.get(from..to))
                {
                    pieces.push((start..end, bytes));
                }
            }
        }
        pieces.sort_by_key(|piece| piece.0.start);
        let parts: Vec<(Vec<u64>, Vec<u8>)> = pieces
            .par_chunks(256)
            .map(|pieces| {
                let (mut addresses, mut flags) = (Vec::new(), Vec::new());
                let mut printer = Printer::new(Syntax::Att);
                let mut text = String::new();
                for (span, bytes) in pieces {
                    instructions(
                        span.start,
                        bytes,
                        &mut printer,
                        &mut text,
                        |address, flag| {
                            addresses.push(address);
                            flags.push(flag);
                        },
                    );
                }
                (addresses, flags)
            })
            .collect();
        for (addresses, flags) in parts {
            self.addresses.extend(addresses);
            self.flags.extend(flags);
        }
    }

    /// Finds functions, their entries, and where frames are not set up.
    fn functions(&mut self, elf: &Elf<'d>, lines: &Lines<'d>) {
        let base = self.base();
        let mut pieces: FxHashMap<&[u8], usize> = FxHashMap::default();
        for range in lines.ranges().iter().filter(|range| range.start >= base) {
            *pieces.entry(range.name).or_default() += 1;
            match self.ranges.last() {
                Some(last) if last.start == range.start => self.same_start += 1,
                _ => self.ranges.push(*range),
            }
        }
        let mut symbols: FxHashMap<u64, Vec<&[u8]>> = FxHashMap::default();
        for symbol in elf.symbols(SymbolTable::Static).iter() {
            // Sections and files are no functions.
            if !matches!(symbol.kind, 3 | 4) && symbol.section != 0 {
                symbols
                    .entry(symbol.value)
                    .or_default()
                    .push(names::canonical(symbol.name));
            }
        }
        for range in &self.ranges {
            let named = symbols
                .get(&range.start)
                .is_some_and(|names| names.contains(&names::canonical(range.name)));
            if pieces.get(range.name) == Some(&1) || named {
                self.entries.insert(range.start);
            }
            let at = self.addresses.partition_point(|&start| start < range.start);
            self.unframed.extend(self.addresses.iter().skip(at).take(2));
        }
        for (at, flags) in self.flags.iter().enumerate() {
            if flags & RETURN != 0 {
                self.unframed.insert(self.addresses[at]);
                self.unframed
                    .extend(at.checked_sub(1).map(|before| self.addresses[before]));
            }
        }
    }
}

/// Calls `each` with every instruction and what it does. Where the decoder of the rewriter is stricter than the listing's, the
/// latter says how long an instruction is.
fn instructions(
    start: u64,
    bytes: &[u8],
    printer: &mut Printer,
    text: &mut String,
    mut each: impl FnMut(u64, u8),
) {
    let mut at = 0;
    while let Some(rest) = bytes.get(at..)
        && !rest.is_empty()
    {
        let address = start.wrapping_add(at as u64);
        if rest[0] == 0xf0 {
            // Listed as an instruction of its own.
            each(address, 1 << 4);
            at += 1;
            continue;
        }
        let (len, flag) = match X86_64::decode(rest, address) {
            Some(insn) => {
                let flag = match insn.flow {
                    Flow::Call { .. } | Flow::IndirectCall => CALL | TRANSFER,
                    Flow::Return => RETURN | TRANSFER,
                    Flow::Jump { .. } | Flow::IndirectJump => TRANSFER,
                    _ => 0,
                };
                (usize::from(insn.len), Some(flag))
            }
            None => {
                text.clear();
                match printer.print(rest, address, text) {
                    Some(len) => (len, Some(0)),
                    None => (1, None),
                }
            }
        };
        if let Some(flag) = flag {
            // At most 15 bytes.
            each(address, flag | (len as u8) << 4);
        }
        at += len.max(1);
    }
}
