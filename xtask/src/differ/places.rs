//! What is where in the module, in the input and in the output, and which address of the one is which of the other.
//!
//! Three sources say where an address of new code comes from:
//!
//! | source | exact for |
//! |---|---|
//! | `.note.postlink` | entries of moved functions, and labels that are reached by address |
//! | the two runs: what both call, return to and jump to at the same event | return addresses, targets of jump tables, landing pads |
//! | `.note.postlink`, ranges | which function it is in, and no more |
//!
//! The second is believed when a pair is seen first, if both are in the same function, and must agree ever
//! after; that the pair is right is what the checker proves, and what the rest of the run would contradict.
//! One new address can have two meanings: where a call that does not return ends, another block begins. So
//! the meaning is part of the key.
//!
//! All addresses here are link-time addresses.

use std::collections::{HashMap, HashSet};

use anyhow::{Context, Result};
use postlink_elf::elf::{Elf, SymbolTable};
use postlink_elf::note::{MovedFunction, Note};

use super::machine::Machine;

/// What an address of moved code stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Meaning {
    /// The entry of a function.
    Entry,
    /// The address after a call.
    Return,
    /// A place reached by an indirect jump or by unwinding.
    Label,
}

/// A part of a file that is loaded.
#[derive(Clone, Debug)]
pub struct Section {
    /// Where it begins.
    pub start: u64,
    /// One past its last address.
    pub end: u64,
    /// Its name.
    pub name: String,
    /// Whether it holds instructions.
    pub code: bool,
}

/// What one file has where.
#[derive(Clone, Debug, Default)]
pub struct Image {
    /// Sections, ascending.
    pub sections: Vec<Section>,
    /// Functions: start, size, name; ascending.
    pub functions: Vec<(u64, u64, String)>,
    /// Words that the dynamic loader fills in with where a function of another file is, and its name.
    pub imports: HashMap<u64, String>,
    /// Where unwind entries begin, by their search table: functions without a symbol are there too.
    pub starts: HashSet<u64>,
    /// First address of the first segment, rounded down to a page.
    pub low: u64,
    /// One past the last address of the last segment.
    pub high: u64,
    /// The table of program headers, where it is loaded: start, bytes.
    pub table: (u64, u64),
    /// Types of the program headers.
    pub headers: Vec<u32>,
    /// Where the segments are that they describe, of whichever type, and their ends; 0 is not among them.
    pub segments: Vec<u64>,
    /// Sections of code: start and bytes.
    pub code: Vec<(u64, Vec<u8>)>,
    /// The same of other sections that cannot be written.
    pub constants: Vec<(u64, Vec<u8>)>,
}

impl Image {
    /// Of a parsed file.
    pub fn new(elf: &Elf<'_>) -> Image {
        const WRITE: u64 = 1;
        const ALLOC: u64 = 2;
        const HEADER: u64 = 56;
        let loads = || elf.segments.iter().filter(|s| s.kind == 1);
        let mut sections: Vec<Section> = elf
            .sections
            .iter()
            .filter(|s| s.is_alloc() && s.size > 0 && !s.is_tbss())
            .map(|s| Section {
                start: s.addr,
                end: s.end(),
                name: s.name.to_owned(),
                code: s.is_code(),
            })
            .collect();
        sections.sort_by_key(|s| s.start);
        let table = match elf.symbols(SymbolTable::Static) {
            table if table.is_empty() => elf.symbols(SymbolTable::Dynamic),
            table => table,
        };
        let is_function = |kind: u8| kind == 2 || kind == 10;
        let mut functions: Vec<(u64, u64, String)> = table
            .iter()
            .filter(|s| is_function(s.kind) && s.section != 0)
            .map(|s| {
                (
                    s.value,
                    s.size,
                    String::from_utf8_lossy(s.name).into_owned(),
                )
            })
            .collect();
        functions.sort();
        functions.dedup_by_key(|f| f.0);
        let search_table = elf.sections.iter().find(|s| s.name == ".eh_frame_hdr");
        Image {
            sections,
            functions,
            imports: imports(elf),
            starts: search_table
                .filter(|s| s.has_contents())
                .map(|s| unwind_entries(s.addr, elf.section_data(s)))
                .unwrap_or_default(),
            low: loads().map(|s| s.addr & !0xfff).min().unwrap_or(0),
            high: loads()
                .map(|s| s.addr.saturating_add(s.mem_size))
                .max()
                .unwrap_or(0),
            table: loads()
                .find(|s| elf.phoff.wrapping_sub(s.offset) < s.file_size)
                .map(|s| {
                    let start = s.addr.wrapping_add(elf.phoff - s.offset);
                    (start, elf.segments.len() as u64 * HEADER)
                })
                .unwrap_or_default(),
            headers: elf.segments.iter().map(|s| s.kind).collect(),
            segments: elf
                .segments
                .iter()
                .flat_map(|s| [s.addr, s.addr.wrapping_add(s.mem_size)])
                .filter(|a| *a != 0)
                .collect(),
            code: elf
                .sections
                .iter()
                .filter(|s| s.is_code() && s.has_contents())
                .map(|s| (s.addr, elf.section_data(s).to_vec()))
                .collect(),
            constants: elf
                .sections
                .iter()
                .filter(|s| s.flags & (WRITE | ALLOC) == ALLOC && !s.is_code() && s.has_contents())
                .map(|s| (s.addr, elf.section_data(s).to_vec()))
                .collect(),
        }
    }

    /// The section that holds an address.
    pub fn section(&self, address: u64) -> Option<&Section> {
        let after = self.sections.partition_point(|s| s.start <= address);
        // Few sections overlap, and those that do are neighbours.
        let near = after.saturating_sub(3)..after;
        self.sections[near]
            .iter()
            .rev()
            .find(|s| (s.start..s.end).contains(&address))
    }

    /// What the file has in constants at an address: so many bytes, at most 8. They may reach over the end of
    /// a section, and are 0 there.
    pub fn constant(&self, address: u64, size: u8) -> Option<u64> {
        let mut bytes = [0; 8];
        let mut found = false;
        for (i, byte) in bytes.iter_mut().take(size.into()).enumerate() {
            let at = address.wrapping_add(i as u64);
            let inside =
                |(start, data): &&(u64, Vec<u8>)| at.wrapping_sub(*start) < data.len() as u64;
            if let Some((start, data)) = self.constants.iter().find(inside) {
                *byte = data[(at - start) as usize];
                found = true;
            }
        }
        found.then(|| u64::from_le_bytes(bytes))
    }

    /// Whether the instruction before an address is a call, going by its bytes.
    pub fn is_behind_call(&self, address: u64, aarch64: bool) -> bool {
        let before = |bytes: u64| -> Option<&[u8]> {
            let start = address.checked_sub(bytes)?;
            let (at, code) = self
                .code
                .iter()
                .find(|(at, code)| start.wrapping_sub(*at) < code.len() as u64)?;
            let start = (start - at) as usize;
            code.get(start..start + bytes as usize)
        };
        if aarch64 {
            return before(4).is_some_and(|b| {
                let word = u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
                word >> 26 == 0x25 || word & 0xfe9f_f000 == 0xd61f_0000 && word >> 21 & 3 == 1
            });
        }
        // call rel32, or call through a register or memory: ff /2 with up to five bytes of address.
        before(5).is_some_and(|b| b[0] == 0xe8)
            || (2..=7).any(|n| before(n).is_some_and(|b| b[0] == 0xff && b[1] >> 3 & 7 == 2))
    }

    /// Whether the instruction before an address calls a routine that notes first calls. On x86-64 alone the stack says
    /// where a call comes back to.
    pub fn is_behind_note(&self, address: u64) -> bool {
        let target = || {
            let field = address.checked_sub(4)?;
            let holds = |(at, code): &&(u64, Vec<u8>)| field.wrapping_sub(*at) < code.len() as u64;
            let (at, code) = self.code.iter().find(holds)?;
            let field = (field - at) as usize;
            let distance = code.get(field..field + 4)?.try_into().ok()?;
            let opcode = code.get(field.checked_sub(1)?)?;
            let target = address.wrapping_add_signed(i32::from_le_bytes(distance).into());
            (*opcode == 0xe8).then_some(target)
        };
        let section = target().and_then(|target| self.section(target));
        section.is_some_and(|section| section.name == ".text.slow")
    }

    /// Whether an instruction of x86-64 is among those by which a function with variable arguments stores vector
    /// registers: behind `test %al,%al` and a jump over them, near its beginning.
    pub fn saves_arguments(&self, address: u64) -> bool {
        const TEST_AND_JUMP: [u8; 3] = [0x84, 0xc0, 0x74];
        const LONG: u64 = 0x80;
        let bytes = || {
            let (start, _) = self.function(address)?;
            let size = address.checked_sub(start).filter(|size| *size < LONG)?;
            let holds = |(at, code): &&(u64, Vec<u8>)| start.wrapping_sub(*at) < code.len() as u64;
            let (at, code) = self.code.iter().find(holds)?;
            let from = (start - at) as usize;
            code.get(from..from + size as usize)
        };
        let Some(bytes) = bytes() else { return false };
        bytes.windows(4).enumerate().any(|(at, window)| {
            let over = usize::from(window[3]);
            window.starts_with(&TEST_AND_JUMP) && over < 0x80 && bytes.len() < at + 4 + over
        })
    }

    /// Where a direct jump at an address leads.
    fn jump(&self, from: u64, aarch64: bool) -> Option<u64> {
        let holds = |(start, code): &&(u64, Vec<u8>)| from.wrapping_sub(*start) < code.len() as u64;
        let (start, code) = self.code.iter().find(holds)?;
        let bytes = code.get((from - start) as usize..)?;
        let word = |at: usize| bytes.get(at..at + 4).and_then(|b| b.try_into().ok());
        let (length, distance) = match bytes.first()? {
            _ if aarch64 => {
                let word = u32::from_le_bytes(word(0)?);
                (
                    0,
                    (word >> 26 == 5).then_some(i64::from((word << 6) as i32 >> 4))?,
                )
            }
            0xeb => (2, i64::from(*bytes.get(1)? as i8)),
            0xe9 => (5, i64::from(i32::from_le_bytes(word(1)?))),
            _ => return None,
        };
        Some(from.wrapping_add(length).wrapping_add_signed(distance))
    }

    /// Where control goes from an address by direct jumps alone; the address itself if there is none.
    fn after_jumps(&self, address: u64, aarch64: bool) -> u64 {
        // Two are rare; a loop of nothing but jumps must end here too.
        const MOST: usize = 4;
        let follow = |at: u64, _| self.jump(at, aarch64).unwrap_or(at);
        (0..MOST).fold(address, follow)
    }

    /// The function that holds an address: start, name.
    pub fn function(&self, address: u64) -> Option<(u64, &str)> {
        let after = self.functions.partition_point(|f| f.0 <= address);
        let (start, size, name) = self.functions.get(after.checked_sub(1)?)?;
        (*size == 0 || address - start < *size).then_some((*start, name.as_str()))
    }

    /// Whether the file has the function by which start-up code registers its unwind table.
    fn registers_frames(&self) -> bool {
        let mut functions = self.functions.iter();
        functions.any(|f| f.2.starts_with("__register_frame_info"))
    }

    /// Whether a function of known size holds an address.
    pub fn is_covered(&self, address: u64) -> bool {
        let after = self.functions.partition_point(|f| f.0 <= address);
        let before = self.functions[..after].last();
        before.is_some_and(|(start, size, _)| address - start < *size)
    }

    /// `f+0x12`, or the section with an offset.
    pub fn name(&self, address: u64) -> String {
        let place = |name: &str, start: u64| match address - start {
            0 => name.to_owned(),
            offset => format!("{name}+{offset:#x}"),
        };
        match (self.function(address), self.section(address)) {
            (Some((start, name)), _) => place(name, start),
            (None, Some(section)) => place(&section.name, section.start),
            (None, None) => format!("{address:#x}"),
        }
    }
}

/// Words that lead to functions of other files, by the relocations that fill them in, and names.
fn imports(elf: &Elf<'_>) -> HashMap<u64, String> {
    let symbols = elf.symbols(SymbolTable::Dynamic);
    let relocations = elf.dyn_relocs().unwrap_or_default();
    let of_symbols = relocations.iter().filter(|r| r.symbol != 0);
    of_symbols
        .filter_map(|r| {
            let symbol = symbols.get(r.symbol as usize).filter(|s| s.section == 0)?;
            Some((r.addr, String::from_utf8_lossy(symbol.name).into_owned()))
        })
        .collect()
}

/// Where unwind entries begin, from the search table at an address, if it has the form that all linkers write.
fn unwind_entries(address: u64, table: &[u8]) -> HashSet<u64> {
    // Version; distance to the entries, number and pairs of distances to the table's start, of four bytes each.
    const FORM: [u8; 4] = [1, 0x1b, 0x03, 0x3b];
    const HEADER: usize = 12;
    let pairs = table.get(HEADER..).filter(|_| table.starts_with(&FORM));
    let start = |pair: &[u8]| {
        let distance = i32::from_le_bytes([pair[0], pair[1], pair[2], pair[3]]);
        address.wrapping_add_signed(distance.into())
    };
    pairs
        .map(|pairs| pairs.chunks_exact(8).map(start).collect())
        .unwrap_or_default()
}

/// What an address of the output is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the old image, as in the input.
    Old,
    /// In new code of this function.
    Moved(usize),
    /// Code that has nothing in the input that it comes from.
    Inserted,
    /// Other bytes that the input has not: moved tables, headers, counters.
    Added,
    /// Not in the module.
    Outside,
}

/// How an allocator is told the size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// `malloc`
    First,
    /// `realloc`, `memalign`
    Second,
    /// `calloc`
    Product,
}

/// Functions that unwind: what they are called with and come back with is compared, what they do is not.
fn is_unwinder(name: &str) -> bool {
    const PREFIXES: [&str; 4] = [
        "_Unwind_",
        "__register_frame",
        "__deregister_frame",
        "_dl_relocate_static_pie",
    ];
    // Routines that find landing pads in tables that are made anew; they may be called from libraries.
    let is_personality = name == "rust_eh_personality" || name.ends_with("_personality_v0");
    is_personality
        || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || matches!(
            name,
            "dl_iterate_phdr"
                | "__dl_iterate_phdr"
                | "_dl_find_object_init"
                | "backtrace"
                | "__backtrace"
        )
}

/// A jump that a linker has put in, as a branch does not reach: GNU ld's and lld's names for it.
fn is_veneer(name: &str) -> bool {
    const THUNKS: [&str; 2] = ["__AArch64ADRPThunk_", "__AArch64AbsLongThunk_"];
    name.ends_with("_veneer") || THUNKS.iter().any(|start| name.starts_with(start))
}

/// Functions of the allocator, with how they are told the size if they give memory.
fn allocator(name: &str) -> Option<Option<Size>> {
    match name.trim_start_matches("__libc_").trim_start_matches("__") {
        "malloc" => Some(Some(Size::First)),
        "calloc" => Some(Some(Size::Product)),
        "realloc" | "memalign" | "aligned_alloc" => Some(Some(Size::Second)),
        "free" | "cfree" => Some(None),
        _ => None,
    }
}

/// Both files of the module, and what moved.
#[derive(Clone, Debug, Default)]
pub struct Module {
    /// The input.
    pub old: Image,
    /// The output.
    pub new: Image,
    /// What moved, by the note.
    pub functions: Vec<MovedFunction>,
    /// Whether counters were put in.
    pub instrumented: bool,
    /// AArch64, or else x86-64.
    pub aarch64: bool,
    /// Functions of the input that are not looked into, and how they are told a size if they are an allocator.
    pub skipped: Vec<(u64, u64, Option<Size>)>,
    /// start, end, function; ascending, of the output.
    new_ranges: Vec<(u64, u64, usize)>,
    /// The same of the input.
    old_ranges: Vec<(u64, u64, usize)>,
    /// Pages of 4 KiB with entries and labels: of the input, of the output.
    pages: HashSet<(u64, u64)>,
    /// (new address, meaning) to the old address.
    known: HashMap<(u64, Meaning), u64>,
}

fn find(ranges: &[(u64, u64, usize)], address: u64) -> Option<usize> {
    let after = ranges.partition_point(|r| r.0 <= address);
    let (_, end, function) = ranges.get(after.checked_sub(1)?)?;
    (address < *end).then_some(*function)
}

impl Module {
    /// Reads both files.
    pub fn read(input: &[u8], output: &[u8]) -> Result<Module> {
        let old = Elf::parse(input).context("the input")?;
        let new = Elf::parse(output).context("the output")?;
        let note = Note::read(&new)?;
        let (functions, instrumented) = match note {
            Some(note) => (
                note.functions,
                note.kind == postlink_elf::note::NoteKind::Instrumented,
            ),
            // Counters at entries alone move nothing.
            None => (Vec::new(), true),
        };
        let mut module = Module::new(Image::new(&old), Image::new(&new), functions, instrumented);
        // A static program may have its frames sorted when the first exception is thrown. The output has more
        // of them, which takes more memory, and whatever is allocated after that is elsewhere.
        const INTERPRETER: u32 = 3;
        let is_static = old.etype == 2 && old.segments.iter().all(|s| s.kind != INTERPRETER);
        module.aarch64 = Machine::of(old.machine) == Some(Machine::Aarch64);
        // Without a search table frames are registered, and sorted. So they are where the start-up files of a
        // static program do so in spite of a table.
        const SEARCH_TABLE: u32 = 0x6474_e550;
        let has_table = old.segments.iter().any(|s| s.kind == SEARCH_TABLE);
        let registers = module.old.registers_frames();
        module.skip(is_static && (module.aarch64 || !has_table || registers));
        Ok(module)
    }

    /// Finds what is not looked into: the unwinder, where it is part of the program, and perhaps the allocator.
    fn skip(&mut self, with_allocator: bool) {
        for (start, size, name) in &self.old.functions {
            let end = start + (*size).max(1);
            match allocator(name).filter(|_| with_allocator) {
                Some(size) => self.skipped.push((*start, end, size)),
                None if is_unwinder(name) => self.skipped.push((*start, end, None)),
                None => (),
            }
        }
        self.skipped.sort_by_key(|s| s.0);
    }

    /// Whether a word of the linkage table leads to the allocator of another file.
    pub fn is_allocator(&self, slot: u64) -> bool {
        let name = self.old.imports.get(&slot);
        name.is_some_and(|name| allocator(name).is_some())
    }

    /// How the allocator at an address of the input is told the size.
    pub fn allocator(&self, old: u64) -> Option<Size> {
        let at = self.skipped.binary_search_by_key(&old, |s| s.0).ok()?;
        self.skipped[at].2
    }

    /// Ranges of the output, or the input, that are not looked into.
    pub fn skipped_ranges(&self, second: bool) -> Vec<(u64, u64)> {
        let old = self.skipped.iter().map(|s| (s.0, s.1));
        if !second {
            return old.collect();
        }
        let is_skipped = |f: &MovedFunction| {
            let mut old = self.skipped.iter();
            old.any(|s| (s.0..s.1).contains(&f.entry))
        };
        // New code of other functions may be where the body of one was that is not looked into.
        let mut others = Vec::new();
        let mut all: Vec<(u64, u64)> = Vec::new();
        let of_functions = self
            .new_ranges
            .iter()
            .filter(|r| r.2 < self.functions.len());
        for (start, end, function) in of_functions {
            if is_skipped(&self.functions[*function]) {
                all.push((*start, *end))
            } else {
                others.push((*start, *end))
            }
        }
        for (start, end) in old {
            let mut at = self.counter_in_front(start);
            let begin = at;
            for other in others.iter().filter(|o| o.0 < end && o.1 > begin) {
                if at < other.0 {
                    all.push((at, other.0));
                }
                at = other.1;
            }
            if at < end {
                all.push((at, end));
            }
        }
        all.sort_unstable();
        all
    }

    /// Where the counter begins that the output has in the padding in front of a function, which is entered there
    /// then; the function's address if there is none. Only where nothing moved: else the bytes in front may be new
    /// code of another function.
    fn counter_in_front(&self, start: u64) -> u64 {
        const MOST: u64 = 8;
        if !self.functions.is_empty() {
            return start;
        }
        let bytes = |image: &Image| {
            let mut code = image.code.iter();
            code.find_map(|(base, bytes)| {
                let at = usize::try_from(start.checked_sub(MOST)?.checked_sub(*base)?).ok()?;
                bytes.get(at..at + MOST as usize).map(<[u8]>::to_vec)
            })
        };
        let (Some(old), Some(new)) = (bytes(&self.old), bytes(&self.new)) else {
            return start;
        };
        let first = old.iter().zip(&new).position(|(a, b)| a != b);
        first.map_or(start, |i| start - MOST + i as u64)
    }

    /// From its parts.
    pub fn new(
        old: Image,
        new: Image,
        functions: Vec<MovedFunction>,
        instrumented: bool,
    ) -> Module {
        let ranges = |of: fn(&MovedFunction) -> &Vec<(u64, u64)>| {
            let mut all: Vec<(u64, u64, usize)> = functions
                .iter()
                .enumerate()
                .flat_map(|(i, f)| {
                    of(f)
                        .iter()
                        .map(move |(start, length)| (*start, start + length, i))
                })
                .collect();
            all.sort_unstable();
            all
        };
        let (new_ranges, old_ranges) = (ranges(|f| &f.new), ranges(|f| &f.old));
        let mut known = HashMap::new();
        for f in &functions {
            if let Some((start, _)) = f.new.first() {
                known.insert((*start, Meaning::Entry), f.entry);
            }
            for (old, new) in &f.labels {
                known.insert((*new, Meaning::Label), *old);
            }
        }
        Module {
            old,
            new,
            functions,
            instrumented,
            aarch64: false,
            skipped: Vec::new(),
            new_ranges,
            old_ranges,
            pages: known
                .iter()
                .map(|((new, _), old)| (old >> 12, new >> 12))
                .collect(),
            known,
        }
    }

    /// Whether an address, which both files have, is in the procedure linkage table, or in a veneer that the linker
    /// has made.
    pub fn is_linkage_stub(&self, address: u64) -> bool {
        let Some(section) = self.old.section(address).filter(|s| s.code) else {
            return false;
        };
        section.name.starts_with(".plt")
            || section.name == ".iplt"
            || self.old.function(address).is_some_and(|f| is_veneer(f.1))
    }

    /// Whether an address, which both files have, is in the table of addresses that the linkage table jumps by.
    pub fn is_linkage_slot(&self, address: u64) -> bool {
        let section = self.old.section(address);
        section.is_some_and(|s| s.name.starts_with(".got"))
    }

    /// What an address of the output is.
    pub fn place(&self, new: u64) -> Place {
        if let Some(function) = find(&self.new_ranges, new) {
            return Place::Moved(function);
        }
        if self.old.section(new).is_some() {
            // A section may have been moved away and others put there; entry jumps and such are in code, which is not.
            return Place::Old;
        }
        match self.new.section(new) {
            Some(section) if section.code => Place::Inserted,
            Some(_) => Place::Added,
            None if (self.new.low..self.new.high).contains(&new) => Place::Added,
            None => Place::Outside,
        }
    }

    /// Parts of the output's code that come from nothing in the input, as distances from its start.
    pub fn inserted(&self) -> Vec<(u64, u64)> {
        let mut parts = Vec::new();
        for section in self.new.sections.iter().filter(|s| s.code) {
            if self.old.section(section.start).is_some() {
                continue;
            }
            // Space between functions is padding, unless there is much of it.
            const PADDING: u64 = 64;
            let mut at = section.start;
            let inside = |r: &&(u64, u64, usize)| r.0 < section.end && r.1 > section.start;
            let ranges: Vec<_> = self.new_ranges.iter().filter(inside).collect();
            let least = if ranges.is_empty() { 1 } else { PADDING };
            for (start, end, _) in ranges {
                if start.saturating_sub(at) >= least {
                    parts.push((at, *start));
                }
                at = at.max(*end);
            }
            if section.end.saturating_sub(at) >= least {
                parts.push((at, section.end));
            }
        }
        parts
            .iter()
            .map(|part| (part.0 - self.new.low, part.1 - self.new.low))
            .collect()
    }

    /// The moved function that an address of the input is in.
    pub fn old_function(&self, old: u64) -> Option<usize> {
        find(&self.old_ranges, old)
    }

    /// What a pair of addresses means, if it is known.
    pub fn meaning(&self, old: u64, new: u64) -> Option<Meaning> {
        [Meaning::Entry, Meaning::Return, Meaning::Label]
            .into_iter()
            .find(|meaning| {
                let known = self.known.get(&(new, *meaning));
                known.is_some_and(|known| self.is_same(*known, old, *meaning))
            })
    }

    /// Whether two addresses of the input are one for the output: a pass leads what leads to a jump to where that
    /// leads (`--peepholes=double-jumps`), landing pads too.
    fn is_same(&self, known: u64, old: u64, meaning: Meaning) -> bool {
        let after = |address| self.old.after_jumps(address, self.aarch64);
        known == old || meaning == Meaning::Label && after(known) == after(old)
    }

    /// Whether both are pages, and an entry or label of the one became one of the other.
    pub fn is_page(&self, old: u64, new: u64) -> bool {
        old & 0xfff == 0 && new & 0xfff == 0 && self.pages.contains(&(old >> 12, new >> 12))
    }

    /// Whether both are in the same moved function. The address after its last call is in it as well.
    pub fn same_function(&self, old: u64, new: u64) -> bool {
        let at = |old, new| match (self.old_function(old), find(&self.new_ranges, new)) {
            (Some(a), Some(b)) => a == b,
            _ => false,
        };
        at(old, new) || at(old.wrapping_sub(1), new.wrapping_sub(1))
    }

    /// Whether both are the first address of a range of one moved function, or the address behind one.
    pub fn are_bounds(&self, old: u64, new: u64) -> bool {
        let bound = |ranges: &[(u64, u64, usize)], address: u64, end: bool| {
            let inside = address.wrapping_sub(u64::from(end));
            let after = ranges.partition_point(|r| r.0 <= inside);
            let range = ranges.get(after.checked_sub(1)?)?;
            let is_bound = address == if end { range.1 } else { range.0 };
            is_bound.then_some(range.2)
        };
        [false, true].into_iter().any(|end| {
            let of_old = bound(&self.old_ranges, old, end);
            of_old.is_some() && of_old == bound(&self.new_ranges, new, end)
        })
    }

    /// Takes note of what both runs have shown to be the same place. `false` if that contradicts what is known.
    pub fn learn(&mut self, old: u64, new: u64, meaning: Meaning) -> bool {
        if old == new {
            return true;
        }
        if let Some(known) = self.known.get(&(new, meaning)) {
            return self.is_same(*known, old, meaning);
        }
        if self.meaning(old, new).is_some() {
            return true;
        }
        let good = self.same_function(old, new);
        if good {
            self.known.insert((new, meaning), old);
        }
        good
    }

    /// An address of the output as `f+0x12 (new)`.
    pub fn new_name(&self, new: u64) -> String {
        match self.place(new) {
            Place::Moved(function) => {
                let f = &self.functions[function];
                let mut base = 0;
                for (part, (start, length)) in f.new.iter().enumerate() {
                    if (*start..start + length).contains(&new) {
                        let (part, offset) = (if part > 0 { " (cold)" } else { "" }, new - start);
                        base = offset;
                        if offset > 0 || !part.is_empty() {
                            return format!("{}{part}+{offset:#x} (new)", self.old.name(f.entry));
                        }
                    }
                }
                debug_assert_eq!(base, 0);
                format!("{} (new)", self.old.name(f.entry))
            }
            Place::Old => self.old.name(new),
            Place::Inserted | Place::Added | Place::Outside => self.new.name(new),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// `f` at 0x1000 and `g` at 0x1100 of the input; `f` moved to 0x3000 and, its cold part, 0x3100; a
    /// routine was inserted at 0x3200.
    pub fn module(instrumented: bool) -> Module {
        let section = |start, end, name: &str, code: bool| Section {
            start,
            end,
            name: name.to_owned(),
            code,
        };
        let old = Image {
            sections: vec![
                section(0x1000, 0x1200, ".text", true),
                section(0x2000, 0x2100, ".data", false),
            ],
            functions: vec![
                (0x1000, 0x100, "f".to_owned()),
                (0x1100, 0x100, "g".to_owned()),
            ],
            imports: HashMap::new(),
            starts: HashSet::new(),
            low: 0x1000,
            high: 0x2100,
            table: (0, 0),
            headers: vec![],
            segments: vec![],
            code: vec![],
            constants: vec![],
        };
        let mut new = old.clone();
        new.sections
            .push(section(0x3000, 0x3300, ".text.hot", true));
        new.sections
            .push(section(0x4000, 0x5000, ".postlink.counters", false));
        new.high = 0x5000;
        let f = MovedFunction {
            entry: 0x1000,
            old: vec![(0x1000, 0x100)],
            new: vec![(0x3000, 0x80), (0x3100, 0x80)],
            labels: vec![(0x1040, 0x3020)],
            ..MovedFunction::default()
        };
        Module::new(old, new, vec![f], instrumented)
    }

    #[test]
    fn an_address_of_the_output_is_old_moved_inserted_or_added() {
        let module = module(true);
        assert_eq!(module.place(0x1010), Place::Old);
        assert_eq!(module.place(0x3010), Place::Moved(0));
        assert_eq!(module.place(0x3210), Place::Inserted);
        assert_eq!(module.place(0x4010), Place::Added);
        assert_eq!(module.place(0x2800), Place::Added);
        assert_eq!(module.place(0x9000), Place::Outside);
    }

    #[test]
    fn what_is_left_out_begins_with_the_counter_in_front_of_it() {
        let mut module = module(true);
        module.functions.clear();
        module.skipped.push((0x1100, 0x1200, None));
        module.old.code = vec![(0x1000, vec![0x90; 0x200])];
        module.new.code = module.old.code.clone();
        assert_eq!(module.skipped_ranges(true), [(0x1100, 0x1200)]);
        module.new.code[0].1[0xf9..0x100].copy_from_slice(&[0xc6, 5, 1, 2, 3, 4, 1]);
        assert_eq!(module.skipped_ranges(true), [(0x10f9, 0x1200)]);
        assert_eq!(module.skipped_ranges(false), [(0x1100, 0x1200)]);
    }

    #[test]
    fn what_is_left_out_ends_where_new_code_of_others_reuses_its_body() {
        let mut module = module(true);
        module.skipped.push((0x1100, 0x1200, None));
        module.new_ranges.insert(0, (0x1180, 0x11c0, 0));
        assert_eq!(
            module.skipped_ranges(true),
            [(0x1100, 0x1180), (0x11c0, 0x1200)]
        );
        // Where code moved, bytes in front that differ are no counter.
        module.old.code = vec![(0x1000, vec![0x90; 0x200])];
        module.new.code = vec![(0x1000, vec![0xcc; 0x200])];
        assert_eq!(module.skipped_ranges(true)[0], (0x1100, 0x1180));
        assert_eq!(module.skipped_ranges(false), [(0x1100, 0x1200)]);
    }

    #[test]
    fn entries_and_labels_are_known_and_the_rest_is_learned_once() {
        let mut module = module(false);
        assert_eq!(module.meaning(0x1000, 0x3000), Some(Meaning::Entry));
        assert_eq!(module.meaning(0x1040, 0x3020), Some(Meaning::Label));
        assert_eq!(module.meaning(0x1050, 0x3030), None);
        assert!(module.learn(0x1050, 0x3030, Meaning::Return));
        assert_eq!(module.meaning(0x1050, 0x3030), Some(Meaning::Return));
        // The same new address is after another call of the input now.
        assert!(!module.learn(0x1060, 0x3030, Meaning::Return));
        // It may also be a label of another block.
        assert!(module.learn(0x1060, 0x3030, Meaning::Label));
        // Nothing of g is in f.
        assert!(!module.learn(0x1110, 0x3040, Meaning::Return));
        // The address after a last call is in nothing.
        assert!(module.learn(0x1100, 0x3080, Meaning::Return));
    }

    #[test]
    fn bounds_of_a_function_are_where_its_ranges_begin_and_end() {
        let module = module(false);
        // The hot part and the cold one.
        assert!(module.are_bounds(0x1000, 0x3000) && module.are_bounds(0x1000, 0x3100));
        assert!(module.are_bounds(0x1100, 0x3080) && module.are_bounds(0x1100, 0x3180));
        // Not a beginning for an end, not inside, not another function.
        assert!(!module.are_bounds(0x1000, 0x3080) && !module.are_bounds(0x1100, 0x3000));
        assert!(!module.are_bounds(0x1004, 0x3000) && !module.are_bounds(0x1000, 0x3104));
        assert!(!module.are_bounds(0x1200, 0x3080));
    }

    /// A landing pad that only jumps to another label is that label in the output.
    #[test]
    fn labels_that_jump_to_each_other_may_be_one() {
        let mut module = module(false);
        let mut code = vec![0x90; 0x200];
        // 0x1060 jumps to 0x1050, on AArch64 0x1070.
        code[0x60..0x62].copy_from_slice(&[0xeb, 0xee]);
        code[0x70..0x74].copy_from_slice(&0x17ff_fff8u32.to_le_bytes());
        module.old.code = vec![(0x1000, code)];
        for (from, aarch64) in [(0x1060, false), (0x1070, true)] {
            module.aarch64 = aarch64;
            assert_eq!(module.old.after_jumps(from, aarch64), 0x1050);
            assert!(module.learn(0x1050, 0x3030, Meaning::Label));
            assert!(module.learn(from, 0x3030, Meaning::Label));
            assert_eq!(module.meaning(from, 0x3030), Some(Meaning::Label));
            assert!(!module.learn(0x1058, 0x3030, Meaning::Label));
        }
    }

    #[test]
    fn unwind_entries_are_found_by_their_search_table() {
        let mut table = vec![1, 0x1b, 0x03, 0x3b, 0, 0, 0, 0, 1, 0, 0, 0];
        table.extend((-0x1000i32).to_le_bytes());
        table.extend([0; 4]);
        assert_eq!(unwind_entries(0x3000, &table), HashSet::from([0x2000]));
        table[3] = 0x1b;
        assert!(unwind_entries(0x3000, &table).is_empty());
        assert!(unwind_entries(0x3000, &[1, 0x1b]).is_empty());
    }

    #[test]
    fn who_reads_tables_of_unwinding_is_known_by_name() {
        assert!(is_unwinder("rust_eh_personality") && is_unwinder("__gxx_personality_v0"));
        assert!(!is_unwinder("personality") && !is_unwinder("my_personality_v1"));
    }

    #[test]
    fn vector_registers_are_stored_behind_a_test_of_their_number() {
        let mut image = module(false).old;
        // test %al,%al; je over two movaps of five bytes; ret.
        let mut code = vec![0x90; 8];
        code.extend([0x84, 0xc0, 0x74, 10]);
        code.extend([0x0f, 0x29, 0x44, 0x24, 0x50, 0x0f, 0x29, 0x4c, 0x24, 0x60]);
        code.resize(0x100, 0xc3);
        image.code = vec![(0x1000, code)];
        assert!(image.saves_arguments(0x100c) && image.saves_arguments(0x1011));
        assert!(!image.saves_arguments(0x1008) && !image.saves_arguments(0x1016));
        image.code[0].1[9] = 0xc9;
        assert!(!image.saves_arguments(0x100c));
    }

    #[test]
    fn addresses_have_names() {
        let module = module(false);
        assert_eq!(module.old.name(0x1012), "f+0x12");
        assert_eq!(module.old.name(0x2010), ".data+0x10");
        assert_eq!(module.new_name(0x3000), "f (new)");
        assert_eq!(module.new_name(0x3104), "f (cold)+0x4 (new)");
    }
}
