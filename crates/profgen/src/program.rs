//! The code of a program as samples need it: where instructions start, which of them transfer control, where
//! functions are.
//!
//! Every question asked is "what is at this address", some sixty times a sample. So there is one byte for
//! each byte of code: 0 where no instruction starts, else the instruction's length, what it does to control,
//! and whether a stack frame is set up there.
//!
//! | bits | content |
//! |---|---|
//! | 4–7 | length in bytes; 0: no instruction starts here |
//! | 3 | frame not set up: the first two instructions of a function, a return, the instruction before a return |
//! | 0–2 | 0 nothing, 1 call, 2 return, 3 direct jump, 4 any other branch |
//!
//! Code is read symbol by symbol from front to back, as in a listing: what is before the first symbol of a
//! section is not code.

use postlink_elf::elf::{Elf, SymbolTable};
use postlink_elf::raw;
use postlink_isa::Flow;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::dwarf::{Lines, Range};
use crate::machine::{Decoder, Machine};
use crate::names;

/// The place of code that is not in the file. No instruction is there.
pub const EXTERNAL: u64 = 1;

const PAGE: u64 = 0x1000;

const KIND: u8 = 7;
const CALL: u8 = 1;
const RETURN: u8 = 2;
const JUMP: u8 = 3;
const BRANCH: u8 = 4;
const UNFRAMED: u8 = 8;

/// A section with code.
#[derive(Debug)]
struct Code<'d> {
    start: u64,
    bytes: &'d [u8],
    /// See the table above; as long as `bytes`.
    facts: Vec<u8>,
}

/// Code of a program.
#[derive(Debug, Default)]
pub struct Program<'d> {
    machine: Machine,
    /// By address; they do not overlap.
    code: Vec<Code<'d>>,
    /// Segments with code: page-aligned address, page-aligned offset in the file, length in memory from there.
    pub segments: Vec<Segment>,
    /// First address of the first loadable segment, page-aligned.
    pub first_loadable: u64,
    /// Pieces of functions by their first address.
    ranges: Vec<Range<'d>>,
    /// The function of each range: pieces of one name are one function.
    functions: Vec<u32>,
    /// Starts of the ranges that are entries of their function.
    entries: FxHashSet<u64>,
    /// Ranges that start where another does.
    pub same_start: usize,
    /// Functions of which no piece is an entry.
    pub without_entry: usize,
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
            machine: Machine::of(elf).unwrap_or_default(),
            first_loadable: loads.first().map_or(0, |load| load.addr & !(PAGE - 1)),
            segments,
            ..Program::default()
        };
        program.sweep(elf);
        program.functions(elf, lines);
        program
    }

    /// The address that raw profiles count from, and that mappings are compared with: that of the first
    /// segment with code.
    pub fn base(&self) -> u64 {
        self.segments
            .first()
            .map_or(self.first_loadable, |segment| segment.address)
    }

    /// What is known of an address; 0 if no instruction starts there.
    #[inline]
    fn fact(&self, address: u64) -> u8 {
        for code in &self.code {
            let at = usize::try_from(address.wrapping_sub(code.start));
            if let Some(&fact) = at.ok().and_then(|at| code.facts.get(at)) {
                return fact;
            }
        }
        0
    }

    /// Whether an instruction starts at an address.
    #[inline]
    pub fn is_code(&self, address: u64) -> bool {
        self.fact(address) != 0
    }

    /// Whether there is a call.
    pub fn is_call(&self, address: u64) -> bool {
        self.fact(address) & KIND == CALL
    }

    /// Whether there is a return.
    pub fn is_return(&self, address: u64) -> bool {
        self.fact(address) & KIND == RETURN
    }

    /// Whether there is a call, a return, a jump or a conditional branch.
    pub fn is_transfer(&self, address: u64) -> bool {
        self.fact(address) & KIND != 0
    }

    /// The instruction before the one at an address, or before an address without one.
    pub fn previous(&self, address: u64) -> Option<u64> {
        self.code.iter().rev().find_map(|code| {
            let end = address.checked_sub(code.start)?;
            let end = usize::try_from(end)
                .unwrap_or(usize::MAX)
                .min(code.facts.len());
            let at = code.facts.get(..end)?.iter().rposition(|&fact| fact != 0)?;
            Some(code.start + at as u64)
        })
    }

    /// The call that returns to an address.
    pub fn call_before(&self, address: u64) -> Option<u64> {
        self.previous(address)
            .filter(|&call| self.is_code(address) && self.is_call(call))
    }

    /// The instructions from one address to another, both included.
    pub fn between(&self, first: u64, last: u64) -> impl Iterator<Item = u64> {
        self.code.iter().flat_map(move |code| {
            let len = code.facts.len() as u64;
            let from = first.saturating_sub(code.start).min(len);
            let to = match last.checked_sub(code.start) {
                Some(to) => to.saturating_add(1).min(len),
                None => 0,
            };
            let facts = code
                .facts
                .get(from as usize..to as usize)
                .unwrap_or_default();
            let start = code.start + from;
            facts
                .iter()
                .zip(start..)
                .filter(|fact| *fact.0 != 0)
                .map(|fact| fact.1)
        })
    }

    /// Length of the instruction at an address in bytes; 0 if there is none.
    pub fn len_at(&self, address: u64) -> u64 {
        u64::from(self.fact(address) >> 4)
    }

    /// Whether control can go from the first instruction to the last without a branch: no call, return or
    /// direct jump in between. (An indirect jump does not count, as in LLVM's tools.)
    pub fn falls_through(&self, first: u64, last: u64) -> bool {
        if first > last {
            return false;
        }
        for code in &self.code {
            let len = code.facts.len() as u64;
            let from = first.saturating_sub(code.start).min(len);
            let to = last.saturating_sub(code.start).min(len);
            let mut at = from as usize;
            let before = code.facts.get(..to as usize).unwrap_or_default();
            while let Some(&fact) = before.get(at) {
                if matches!(fact & KIND, CALL..=JUMP) {
                    return false;
                }
                at += usize::from(fact >> 4).max(1);
            }
        }
        true
    }

    /// What the instruction at an address does; `None` if there is none.
    pub fn flow(&self, address: u64) -> Option<Flow> {
        let (fact, bytes) = self.code.iter().find_map(|code| {
            let at = usize::try_from(address.checked_sub(code.start)?).ok()?;
            Some((*code.facts.get(at)?, code.bytes.get(at..)?))
        })?;
        if fact == 0 {
            return None;
        }
        Decoder::new(self.machine).step(bytes, address).1
    }

    /// The piece of a function that an address is in, and its number.
    fn range_at(&self, address: u64) -> Option<(usize, &Range<'d>)> {
        let after = self.ranges.partition_point(|range| range.start <= address);
        let at = after.checked_sub(1)?;
        let range = self.ranges.get(at).filter(|range| address < range.end)?;
        Some((at, range))
    }

    /// The piece of a function that an address is in.
    pub fn range_of(&self, address: u64) -> Option<&Range<'d>> {
        self.range_at(address).map(|(_, range)| range)
    }

    /// The function that an address is in, by number.
    pub fn function_of(&self, address: u64) -> Option<u32> {
        let (at, _) = self.range_at(address)?;
        self.functions.get(at).copied()
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

    /// All pieces of functions, by address, with the number of the function.
    pub fn ranges_with_functions(&self) -> impl Iterator<Item = (&Range<'d>, u32)> {
        self.ranges.iter().zip(self.functions.iter().copied())
    }

    /// Whether an address is in a prologue or epilogue, where call chains are unreliable.
    pub fn is_unframed(&self, address: u64) -> bool {
        self.fact(address) & UNFRAMED != 0
    }

    /// Finds the instructions.
    fn sweep(&mut self, elf: &Elf<'d>) {
        let mut starts: FxHashMap<u32, Vec<u64>> = FxHashMap::default();
        for symbol in elf.symbols(SymbolTable::Static).iter() {
            starts.entry(symbol.section).or_default().push(symbol.value);
        }
        for (index, section) in elf.sections.iter().enumerate() {
            let skip = section.flags & raw::SHF_EXECINSTR == 0
                || section.name == ".plt"
                || !section.has_contents();
            let Some(here) = starts.remove(&(index as u32)).filter(|_| !skip) else {
                continue;
            };
            let bytes = elf.section_data(section);
            let facts = facts(self.machine, section.addr, bytes, here);
            self.code.push(Code {
                start: section.addr,
                bytes,
                facts,
            });
        }
        self.code.sort_by_key(|code| code.start);
        // Sections of a damaged file may overlap: the first one counts.
        let mut end = 0;
        self.code.retain(|code| {
            let fits = code.start >= end;
            if fits {
                end = code.start.saturating_add(code.facts.len() as u64);
            }
            fits
        });
    }

    fn mark(&mut self, address: u64, flag: u8) {
        for code in &mut self.code {
            let at = usize::try_from(address.wrapping_sub(code.start));
            if let Some(fact) = at.ok().and_then(|at| code.facts.get_mut(at)) {
                *fact |= flag;
            }
        }
    }

    /// Finds functions, their entries, and where frames are not set up.
    fn functions(&mut self, elf: &Elf<'d>, lines: &Lines<'d>) {
        let base = self.base();
        let mut numbers: FxHashMap<&[u8], u32> = FxHashMap::default();
        // Of each function: pieces, and whether one is an entry.
        let mut known: Vec<(u32, bool)> = Vec::new();
        for range in lines.ranges().iter().filter(|range| range.start >= base) {
            let number = *numbers.entry(range.name).or_insert_with(|| {
                known.push((0, false));
                known.len() as u32 - 1
            });
            if let Some(known) = known.get_mut(number as usize) {
                known.0 += 1;
            }
            match self.ranges.last() {
                Some(last) if last.start == range.start => self.same_start += 1,
                _ => {
                    self.ranges.push(*range);
                    self.functions.push(number);
                }
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
        let mut unframed = Vec::new();
        for (range, &number) in self.ranges.iter().zip(&self.functions) {
            let Some(known) = known.get_mut(number as usize) else {
                continue;
            };
            let named = symbols
                .get(&range.start)
                .is_some_and(|names| names.contains(&names::canonical(range.name)));
            if known.0 == 1 || named {
                self.entries.insert(range.start);
                known.1 = true;
            }
            let first = self.between(range.start, u64::MAX - 1);
            unframed.extend(first.take(2));
        }
        self.without_entry = known.iter().filter(|known| !known.1).count();
        for address in unframed {
            self.mark(address, UNFRAMED);
        }
        for code in &mut self.code {
            let mut before: Option<&mut u8> = None;
            for fact in code.facts.iter_mut().filter(|fact| **fact != 0) {
                if *fact & KIND == RETURN {
                    *fact |= UNFRAMED;
                    if let Some(before) = before {
                        *before |= UNFRAMED;
                    }
                }
                before = Some(fact);
            }
        }
    }
}

/// The facts about a section with symbols at `starts`.
fn facts(machine: Machine, base: u64, bytes: &[u8], starts: Vec<u64>) -> Vec<u8> {
    let mut facts = vec![0; bytes.len()];
    let mut starts: Vec<usize> = starts
        .into_iter()
        .filter_map(|start| usize::try_from(start.checked_sub(base)?).ok())
        .filter(|&start| start < bytes.len())
        .collect();
    starts.sort_unstable();
    starts.dedup();
    let mut pieces = Vec::with_capacity(starts.len());
    let mut rest = &mut facts[..];
    let mut done = 0;
    for (number, &start) in starts.iter().enumerate() {
        let end = starts.get(number + 1).copied().unwrap_or(bytes.len());
        let (_, after) = rest.split_at_mut(start - done);
        let (piece, after) = after.split_at_mut(end - start);
        pieces.push((start, piece));
        rest = after;
        done = end;
    }
    let parts: Vec<_> = pieces.chunks_mut(256).collect();
    postlink_parallel::map_owned(parts, |pieces| {
        let mut decoder = Decoder::new(machine);
        for (start, facts) in pieces {
            let mut at = 0;
            while let (Some(fact), Some(rest)) = (facts.get_mut(at), bytes.get(*start + at..)) {
                let place = base.wrapping_add((*start + at) as u64);
                let (len, flow) = decoder.step(rest, place);
                if let Some(flow) = flow {
                    let kind = match flow {
                        Flow::Call { .. } | Flow::IndirectCall => CALL,
                        Flow::Return => RETURN,
                        Flow::Jump { .. } => JUMP,
                        Flow::IndirectJump | Flow::CondJump { .. } | Flow::ShortCond { .. } => {
                            BRANCH
                        }
                        Flow::Next | Flow::Stop | Flow::Trap => 0,
                    };
                    *fact = kind | len << 4;
                }
                at += usize::from(len);
            }
        }
    });
    facts
}
