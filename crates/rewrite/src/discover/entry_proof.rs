//! Where a jump may overwrite an old entry, in a file whose linker kept no relocations.
//!
//! The jump takes the place of some instructions. Control that reached one of them after the first byte, in
//! whatever way, would find half an instruction; who read them would find others. Where relocations were kept,
//! all ways are known. Here it is shown of each place that nothing in the file leads there:
//!
//! | what | where it is looked for |
//! |---|---|
//! | direct branches and calls with four bytes of displacement | at every position of every section of code, so that no decoder is trusted |
//! | short branches | where instructions begin, in code that an unwind entry or a dynamic symbol with a size covers; elsewhere at every position |
//! | addresses relative to the program counter, formed or read | likewise |
//! | pointers that the loader makes, symbols, tags of the dynamic section, the entry point | in their tables |
//! | landing pads | in exception tables |
//! | at a fixed address, numbers that could be the address | words of data; immediate operands and displacements of instructions; elsewhere in code every position |
//!
//! On AArch64 the jump is one instruction in most places, and then nothing can come after its first byte; instructions
//! begin at multiples of four, so every word is looked at as one. Addresses that take two instructions are looked for
//! in each range of code ([`postlink_isa::Decode::in_parts`]), of pages that have code or sections which could make
//! way. Old targets of jump tables are overwritten as well, where nothing reads them.
//!
//! On x86-64 instruction starts are those of a linear decode from the start of what is covered, and of a decode from
//! the target of a branch that is none of them: code that jumps over a prefix has some that overlap. What jump tables
//! of the function itself hold is looked at with the function ([`crate::analyse`]). That no jump through a table of
//! another function leads there is assumed, and counted by the checker, which has an analysis of its own.
//!
//! The same pass finds out whether code knows the address of a section that could make way for the program
//! headers, and, at a fixed address, which numbers may be addresses inside of functions: a table may describe code by
//! them. Those are words of data at multiples of eight, and what ends an instruction: other positions would keep many
//! functions in place that nothing describes.

use postlink_elf::FormatError;
use postlink_elf::elf::{Elf, Section, SymbolTable};
use postlink_isa::{FixupKind, Flow, Insn, Isa, Place};
use rayon::prelude::*;
use rustc_hash::FxHashSet;

use super::exceptions::lsda_of;
use super::program::Program;

/// More bytes than this no jump at an entry has, with a landing pad in front of it.
const LONGEST: u64 = 16;
/// Bytes of a page that one instruction forms.
const PAGE: u64 = 4096;
/// Bytes of code that one task looks at.
const CHUNK: usize = 1 << 18;

/// A number of a program at a fixed address that may be the address of a place inside of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NumberInside {
    /// The place.
    pub target: u64,
    /// Where the number is, if it is a word of data; else it is in code.
    pub word: Option<u64>,
}

/// What may lead to, or read, bytes near the beginnings of functions.
#[derive(Clone, Debug, Default)]
pub struct EntryProof {
    /// Addresses near entries that something may lead to or form, ascending.
    led_to: Vec<u64>,
    /// Addresses in code from which on something may read, ascending.
    read: Vec<u64>,
    /// Numbers that may be addresses inside of functions, ascending.
    inside: Vec<NumberInside>,
    /// Code may know the address of a section that could make way for the program headers.
    pub needs_headers: bool,
    /// More bytes than this are not read from one place.
    widest: u64,
}

impl EntryProof {
    /// Looks through the whole file.
    ///
    /// # Errors
    ///
    /// Dynamic relocations that cannot be read.
    pub fn new<I: Isa>(program: &Program<'_>) -> Result<EntryProof, FormatError> {
        let near = Near::new(program);
        let search = Search {
            elf: program.elf,
            near: &near,
            headers: headers(program.elf),
            fixed: program.refs.fixed,
            insides: program.refs.fixed.then(|| Insides::new(program)),
        };
        let covered = covered(program);
        let mut found = Found::default();
        let code = program.elf.sections.iter().filter(|s| s.is_code());
        for section in code {
            found.join(search.branches::<I>(section));
        }
        for part in postlink_parallel::map(&covered, |r| search.decoded::<I>(*r)) {
            found.join(part);
        }
        for range in gaps(program.elf, &covered) {
            found.join(search.undecoded::<I>(range));
        }
        search.tables(program, &mut found)?;
        if search.fixed {
            found.join(search.words());
        }
        found.led_to.par_sort_unstable();
        found.led_to.dedup();
        found.read.par_sort_unstable();
        found.read.dedup();
        found.inside.par_sort_unstable();
        found.inside.dedup();
        Ok(EntryProof {
            led_to: found.led_to,
            read: found.read,
            inside: found.inside,
            needs_headers: found.headers,
            widest: I::WIDEST,
        })
    }

    /// Whether a jump may overwrite the bytes from `at` up to `end`.
    pub fn allows(&self, at: u64, end: u64) -> bool {
        let led = next(&self.led_to, at + 1).is_some_and(|a| a < end);
        !led && !self.may_be_read(at, end)
    }

    /// Numbers that may be addresses in `[start, end)`, but for where a function begins.
    pub fn numbers_inside(&self, start: u64, end: u64) -> &[NumberInside] {
        let from = self.inside.partition_point(|n| n.target < start);
        let len = self.inside[from..].partition_point(|n| n.target < end);
        &self.inside[from..from + len]
    }

    /// Whether instructions may read a byte from `at` up to `end` as data.
    pub fn may_be_read(&self, at: u64, end: u64) -> bool {
        // What is read from below may reach it.
        let from = (at + 1).saturating_sub(self.widest);
        next(&self.read, from).is_some_and(|a| a < end)
    }
}

/// The first of ascending addresses that is not below another.
fn next(list: &[u64], from: u64) -> Option<u64> {
    let i = list.partition_point(|a| *a < from);
    list.get(i).copied()
}

/// What was found.
#[derive(Default)]
struct Found {
    led_to: Vec<u64>,
    read: Vec<u64>,
    inside: Vec<NumberInside>,
    headers: bool,
}

impl Found {
    fn join(&mut self, mut other: Found) {
        self.led_to.append(&mut other.led_to);
        self.read.append(&mut other.read);
        self.inside.append(&mut other.inside);
        self.headers |= other.headers;
    }
}

/// The bytes from each place where a function may be entered, a label among them, up to the end of the longest jump:
/// one bit a byte.
struct Near {
    base: u64,
    bits: Vec<u64>,
}

impl Near {
    fn new(program: &Program<'_>) -> Near {
        let starts = || {
            let pieces = program.pieces.iter().map(|p| p.start);
            let functions = program.functions.iter();
            let entries = functions.flat_map(|f| f.entries.iter().chain(&f.labels));
            pieces.chain(entries.copied())
        };
        let base = starts().min().unwrap_or(0);
        let last = starts().max().unwrap_or(base);
        let words = (last - base + LONGEST) / 64 + 1;
        let mut near = Near {
            base,
            // All code is in the file.
            bits: vec![0; words.min(program.elf.data.len() as u64) as usize],
        };
        for start in starts() {
            for at in start - base..start - base + LONGEST {
                if let Some(word) = near.bits.get_mut((at / 64) as usize) {
                    *word |= 1 << (at % 64);
                }
            }
        }
        near
    }

    fn holds(&self, addr: u64) -> bool {
        let at = addr.wrapping_sub(self.base);
        let word = usize::try_from(at / 64).ok().and_then(|i| self.bits.get(i));
        word.is_some_and(|word| word >> (at % 64) & 1 != 0)
    }
}

/// A range of addresses.
pub type Range = (u64, u64);

/// Which addresses are inside of functions.
struct Insides<'a, 'd> {
    program: &'a Program<'d>,
    /// Where functions begin, by whatever says so; ascending.
    begins: Vec<u64>,
    /// From the first piece to the end of the last.
    all: Range,
}

impl<'a, 'd> Insides<'a, 'd> {
    fn new(program: &'a Program<'d>) -> Self {
        let tables = [SymbolTable::Static, SymbolTable::Dynamic];
        let symbols = tables.iter().flat_map(|t| program.elf.symbols(*t).iter());
        let named = symbols.filter(|s| s.section != 0 && matches!(s.kind, 2 | 10));
        let mut begins: Vec<u64> = named.map(|s| s.value).collect();
        begins.extend(program.eh.fdes.iter().map(|f| f.start));
        begins.extend(program.pieces.iter().map(|p| p.start));
        begins.sort_unstable();
        begins.dedup();
        let first = program.pieces.first().map_or(0, |p| p.start);
        let last = program.pieces.last().map_or(0, |p| p.end);
        Insides {
            program,
            begins,
            all: (first, last),
        }
    }

    fn hold(&self, addr: u64) -> bool {
        self.all.0 <= addr
            && addr < self.all.1
            && self.program.piece_at(addr).is_some()
            && self.begins.binary_search(&addr).is_err()
    }
}

/// Code whose instruction starts are taken to be those of a linear decode from its start: ascending.
pub fn covered(program: &Program<'_>) -> Vec<Range> {
    let elf = program.elf;
    let unwound = program.eh.fdes.iter().map(|f| (f.start, f.len));
    let symbols = elf.symbols(SymbolTable::Dynamic);
    let named = symbols
        .iter()
        .filter(|s| s.section != 0 && matches!(s.kind, 2 | 10))
        .map(|s| (s.value, s.size));
    let mut all: Vec<Range> = unwound
        .chain(named)
        .filter_map(|(start, len)| {
            let (_, section) = elf.section_at(start).filter(|(_, s)| s.is_code())?;
            Some((start, start.checked_add(len)?.min(section.end())))
        })
        .filter(|r| r.0 < r.1)
        .collect();
    all.sort_unstable();
    // Of two that overlap the second begins another decode, from which on it goes its own way.
    all.dedup();
    all
}

/// What is in sections of code outside of covered ranges, which are ascending: ascending, disjoint.
pub fn gaps(elf: &Elf<'_>, covered: &[Range]) -> Vec<Range> {
    let mut gaps = Vec::new();
    for section in elf.sections.iter().filter(|s| s.is_code()) {
        let mut at = section.addr;
        let first = covered.partition_point(|r| r.0 < section.addr);
        for &(start, end) in covered[first..].iter().take_while(|r| r.0 < section.end()) {
            if start > at {
                gaps.push((at, start));
            }
            at = at.max(end);
        }
        if at < section.end() {
            gaps.push((at, section.end()));
        }
    }
    gaps
}

/// Sections that the loader finds by headers and tags, and that could make way.
fn headers(elf: &Elf<'_>) -> Vec<Range> {
    use postlink_elf::raw::{SHF_EXECINSTR, SHF_WRITE, SHT_PROGBITS};
    let may_move = |s: &&Section<'_>| {
        let constant = s.flags & (SHF_WRITE | SHF_EXECINSTR) == 0;
        constant && s.is_alloc() && (s.kind != SHT_PROGBITS || s.name == ".interp")
    };
    let sections = elf.sections.iter().filter(may_move);
    sections.map(|s| (s.addr, s.end())).collect()
}

/// What all parts of the search need.
struct Search<'a, 'd> {
    elf: &'a Elf<'d>,
    near: &'a Near,
    headers: Vec<Range>,
    insides: Option<Insides<'a, 'd>>,
    /// Numbers may be addresses.
    fixed: bool,
}

impl Search<'_, '_> {
    /// Something may lead to an address, or form it.
    fn leads(&self, addr: u64, found: &mut Found) {
        if self.near.holds(addr) {
            found.led_to.push(addr);
        }
    }

    /// Something may be at an address as data.
    fn reads<I: Isa>(&self, addr: u64, found: &mut Found) {
        let ends = [addr, addr.saturating_add(I::WIDEST - 1)];
        let touches = |a: u64| self.elf.section_at(a).is_some_and(|(_, s)| s.is_code());
        if ends.into_iter().any(touches) {
            found.read.push(addr);
        }
    }

    fn knows(&self, addr: u64, found: &mut Found) {
        found.headers |= self.headers.iter().any(|r| r.0 <= addr && addr < r.1);
    }

    /// Direct branches with four bytes of displacement, at every position of a section; all branches where each word
    /// can be looked at as an instruction.
    fn branches<I: Isa>(&self, section: &Section<'_>) -> Found {
        let bytes = self.elf.section_data(section);
        let parts = (0..bytes.len()).step_by(CHUNK).collect::<Vec<_>>();
        let look = |from: &usize| {
            let mut found = Found::default();
            // What begins in a part may end in the next.
            let part = &bytes[*from..bytes.len().min(from + CHUNK + 8)];
            I::places(part, section.addr + *from as u64, &mut |place, target| {
                let short = I::INSTRUCTION_ALIGNMENT > 1 && place == Place::ShortBranch;
                if place == Place::Branch || short {
                    self.leads(target, &mut found);
                }
            });
            found
        };
        let mut all = Found::default();
        for part in postlink_parallel::map(&parts, look) {
            all.join(part);
        }
        all
    }

    /// What instructions lead to, form and read, in a covered range.
    fn decoded<I: Isa>(&self, (start, end): Range) -> Found {
        let mut found = Found::default();
        let Some(bytes) = self.elf.bytes_at(start, end - start) else {
            return found;
        };
        let mut begins: FxHashSet<u64> = FxHashSet::default();
        let mut work = vec![start];
        let mut branches: Vec<u64> = Vec::new();
        while let Some(from) = work.pop() {
            let rest = &bytes[(from - start) as usize..];
            let stopped = I::sweep(rest, from, |insn| {
                if !begins.insert(insn.addr) {
                    return false;
                }
                let at = (insn.addr - start) as usize;
                let own = &bytes[at..at + usize::from(insn.len)];
                self.instruction::<I>(insn, own, &mut found);
                if let Flow::Jump { target }
                | Flow::CondJump { target, .. }
                | Flow::ShortCond { target }
                | Flow::Call { target } = insn.flow
                    && target >= start
                    && target < end
                {
                    branches.push(target);
                }
                true
            });
            // Data, or something newer than the decoder: anything may be there.
            if let Some(stop) = stopped.filter(|stop| !begins.contains(stop)) {
                found.join(self.undecoded::<I>((stop, end)));
            }
            if work.is_empty() {
                branches.retain(|target| !begins.contains(target));
                branches.sort_unstable();
                branches.dedup();
                work.append(&mut branches);
            }
        }
        self.in_parts::<I>(bytes, start, &mut found);
        found
    }

    /// Addresses that take several instructions, and numbers that do.
    fn in_parts<I: Isa>(&self, bytes: &[u8], start: u64, found: &mut Found) {
        let wanted = |page: u64| {
            let end = page.saturating_add(PAGE);
            let mut code = self.elf.sections.iter().filter(|s| s.is_code());
            code.any(|s| s.addr < end && page < s.end())
                || self.headers.iter().any(|r| r.0 < end && page < r.1)
        };
        let mut all = Vec::new();
        I::in_parts(bytes, start, &wanted, &mut |place, target| {
            all.push((place, target))
        });
        for (place, target) in all {
            self.knows(target, found);
            match place {
                Place::Operand => self.reads::<I>(target, found),
                _ => self.leads(target, found),
            }
        }
        if self.fixed {
            I::numbers(bytes, start, &mut |number| {
                self.number(number, found);
                self.inside(number, None, found);
            });
        }
    }

    /// One instruction, whose bytes these are.
    fn instruction<I: Isa>(&self, insn: &Insn, own: &[u8], found: &mut Found) {
        if let Flow::Jump { target }
        | Flow::CondJump { target, .. }
        | Flow::ShortCond { target }
        | Flow::Call { target } = insn.flow
        {
            self.leads(target, found);
        } else if let Some(field) = insn.field.filter(|f| f.kind != FixupKind::Page) {
            self.knows(field.target, found);
            if insn.traits.forms_address {
                self.leads(field.target, found)
            } else {
                self.reads::<I>(field.target, found)
            }
        }
        if self.fixed {
            // An immediate operand is at the end, a displacement there or in front of one, if it is no distance.
            let distance = insn.field.map_or(usize::MAX, |f| usize::from(f.at));
            for trail in [0, 1, 2, 4] {
                let number = own
                    .len()
                    .checked_sub(4 + trail)
                    .filter(|at| *at > 0 && *at != distance)
                    .and_then(|at| own[at..].first_chunk::<4>());
                if let Some(number) = number {
                    self.number(u64::from(u32::from_le_bytes(*number)), found);
                }
            }
            if let Some(number) = own.last_chunk::<8>().filter(|_| own.len() > 8) {
                self.number(u64::from_le_bytes(*number), found);
            }
            let short = own.last_chunk().map(|n| u64::from(u32::from_le_bytes(*n)));
            let long = own.last_chunk().map(|n| u64::from_le_bytes(*n));
            let mut either = short.into_iter().chain(long);
            if either.any(|n| self.is_inside(n))
                && let Some(number) = I::last_number(own, insn)
            {
                self.inside(number, None, found);
            }
        }
    }

    /// A number that could be an address.
    fn number(&self, value: u64, found: &mut Found) {
        self.leads(value, found);
        self.knows(value, found);
    }

    fn is_inside(&self, value: u64) -> bool {
        self.insides.as_ref().is_some_and(|i| i.hold(value))
    }

    /// A number that may be an address by which something describes code: where it is, if it is a word of data.
    fn inside(&self, value: u64, word: Option<u64>, found: &mut Found) {
        if self.is_inside(value) {
            found.inside.push(NumberInside {
                target: value,
                word,
            });
        }
    }

    /// What could be in bytes of which it is not known where instructions begin.
    fn undecoded<I: Isa>(&self, (start, end): Range) -> Found {
        let mut found = Found::default();
        let Some(bytes) = self.elf.bytes_at(start, end.saturating_sub(start)) else {
            return found;
        };
        I::places(bytes, start, &mut |place, target| {
            self.leads(target, &mut found);
            if matches!(place, Place::Operand | Place::Formed) {
                self.knows(target, &mut found);
            }
            if place == Place::Operand {
                self.reads::<I>(target, &mut found);
            }
        });
        self.in_parts::<I>(bytes, start, &mut found);
        if self.fixed && I::INSTRUCTION_ALIGNMENT == 1 {
            for number in bytes.windows(4) {
                let number = number.try_into().map_or(0, u32::from_le_bytes);
                self.number(u64::from(number), &mut found);
            }
        }
        found
    }

    /// What tables of the file name.
    fn tables(&self, program: &Program<'_>, found: &mut Found) -> Result<(), FormatError> {
        let elf = self.elf;
        let dynamic = elf.symbols(SymbolTable::Dynamic);
        for table in [SymbolTable::Static, SymbolTable::Dynamic] {
            let symbols = elf.symbols(table);
            for value in symbols.without_names(|s| (s.section != 0).then_some(s.value)) {
                self.leads(value, found);
            }
        }
        for r in elf.dyn_relocs()? {
            let symbol = dynamic.get(r.symbol as usize).map_or(0, |s| s.value);
            self.leads(r.addend as u64, found);
            self.leads(symbol.wrapping_add_signed(r.addend), found);
        }
        for pointer in &program.refs.pointers {
            self.leads(pointer.target, found);
        }
        for (_, value, _) in &elf.dynamic {
            self.leads(*value, found);
        }
        self.leads(elf.entry, found);
        for piece in 0..program.pieces.len() {
            if let Ok(Some(lsda)) = lsda_of(program, piece) {
                for pad in lsda.call_sites.iter().filter_map(|c| c.landing_pad) {
                    self.leads(pad, found);
                }
            }
        }
        Ok(())
    }

    /// Words of data of a program at a fixed address.
    fn words(&self) -> Found {
        let mut found = Found::default();
        for section in self.elf.sections.iter() {
            if !section.is_alloc() || section.is_code() {
                continue;
            }
            let bytes = self.elf.section_data(section);
            for at in (0..bytes.len()).step_by(4) {
                if let Some(word) = bytes[at..].first_chunk::<8>() {
                    let word = u64::from_le_bytes(*word);
                    self.number(word, &mut found);
                    if at.is_multiple_of(8) {
                        self.inside(word, Some(section.addr + at as u64), &mut found);
                    }
                }
            }
        }
        found
    }
}
