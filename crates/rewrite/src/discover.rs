//! Which functions there are, and what refers to their insides.
//!
//! A *piece* is a contiguous range of code that symbols or unwind entries give. Overlapping ranges are one piece with
//! several entries. Pieces that branch into each other's middle are one *function*: compilers split cold parts off
//! (`f.cold`), which jump back into the middle of `f`. All code is swept once, in parallel, and only what crosses
//! from piece to piece is kept; the body of a function is decoded again when it is worked on.
//!
//! Invariants: pieces are sorted and disjoint; every piece belongs to exactly one function; a function's pieces are ascending
//! but for the first, which is the one that is called.

use postlink_image::FormatError;
use postlink_image::elf::{Elf, SymbolTable};
use postlink_image::unwind::eh_frame::EhFrame;
use postlink_image::unwind::lsda::PadBase;
use postlink_image::unwind::rows;
use postlink_isa::{FixupKind, Flow, Isa};
use rayon::prelude::*;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use crate::leaks::{Leaks, base_name};
use crate::library;
use crate::pin::Pin;
use crate::refs::Refs;
use crate::visible::Visible;

const STT_NOTYPE: u8 = 0;
const STT_FUNC: u8 = 2;
const STT_GNU_IFUNC: u8 = 10;

/// A contiguous range of code.
#[derive(Clone, Debug)]
pub struct Piece {
    /// First address.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// Index of its section.
    pub section: u32,
    /// The function that it is a part of.
    pub function: u32,
    /// Index of its unwind entry in [`EhFrame::fdes`].
    pub fde: Option<u32>,
}

/// A function: one or more pieces.
#[derive(Clone, Debug, Default)]
pub struct Function {
    /// Indexes of its pieces; the first holds the entry.
    pub pieces: SmallVec<[u32; 1]>,
    /// Addresses inside that are called or exported, other than the first piece's start; ascending.
    pub entries: SmallVec<[u64; 1]>,
    /// Addresses inside that pointers in data or instructions refer to; ascending.
    pub labels: Vec<u64>,
    /// A pointer to its entry exists: in data, in an instruction, or in the dynamic symbol table.
    pub address_taken: bool,
    /// Why it stays.
    pub pin: Option<Pin>,
}

/// What is known of a file's code before any function is worked on.
pub struct Program<'d> {
    /// The file.
    pub elf: &'d Elf<'d>,
    /// References.
    pub refs: Refs,
    /// Unwind entries.
    pub eh: EhFrame<'d>,
    /// Sorted by start.
    pub pieces: Vec<Piece>,
    /// Sorted by start of the first piece.
    pub functions: Vec<Function>,
    /// Starts of position-independent jump tables: places of self-relative values whose address some code forms; ascending.
    pub table_bases: Vec<u64>,
    /// Functions of a C library that is linked in, and stubs to them, calls of which come back (only filled in if the program can unwind).
    pub library: FxHashSet<u64>,
    /// Procedure linkage table stubs and import slots by address: the dynamic symbol's index.
    pub imports: FxHashMap<u64, u32>,
    /// By CIE: what the reader of its exception tables can do.
    pub pad_bases: Vec<Option<PadBase>>,
    /// The program has some means of leaving frames other than returning.
    pub can_unwind: bool,
    /// By piece: it may reach something that unwinds or calls back (only filled in if the program can unwind).
    pub unsafe_pieces: Vec<bool>,
    /// Starts of pieces that nothing comes back from, ascending.
    pub no_return: Vec<u64>,
    /// Function symbols by value: (value, index in `.symtab`), ascending.
    pub symbols: Vec<(u64, u32)>,
    /// Where new code ends at the latest.
    pub new_end: u64,
    /// Which pointers may follow functions that move.
    pub visible: Visible,
}

/// Something that one piece does to another, or to its own inside.
#[derive(Clone, Copy)]
enum Event {
    Jump {
        target: u64,
    },
    Call {
        target: u64,
    },
    Address {
        target: u64,
    },
    Table {
        base: u64,
    },
    /// Branches on flags first thing after a call: they are results of the callee.
    FlagsOf {
        callee: u64,
    },
    Undecodable,
    FallsOff,
    /// Calls or jumps to a known start.
    Reaches {
        target: u64,
    },
    /// Calls something unknown.
    Unsafe,
    /// Has no return, and no jump to other code.
    NoReturn,
}

impl<'d> Program<'d> {
    /// Finds functions and references.
    pub fn discover<I: Isa>(elf: &'d Elf<'d>) -> Result<Program<'d>, FormatError> {
        let (refs, eh) = rayon::join(|| Refs::collect(elf), || EhFrame::parse(elf));
        let (mut refs, eh) = (refs?, eh?);
        let mut symbols: Vec<(u64, u32)> = Vec::new();
        let mut found: Vec<(u64, u64)> = Vec::new(); // (start, end); end == start: size unknown
        let mut cold: FxHashSet<u64> = FxHashSet::default();
        let mut data: Vec<u64> = Vec::new();
        for table in [SymbolTable::Static, SymbolTable::Dynamic] {
            for (i, s) in elf.symbols(table).iter().enumerate() {
                if !matches!(s.kind, STT_FUNC | STT_GNU_IFUNC | STT_NOTYPE) || s.section == 0 {
                    continue;
                }
                let Some(section) = elf.sections.get(s.section as usize) else {
                    continue;
                };
                if !section.is_code() || s.value < section.addr || s.value >= section.end() {
                    continue;
                }
                // Mapping symbols: where data lies among instructions.
                if s.kind == STT_NOTYPE && (s.name == b"$d" || s.name.starts_with(b"$d.")) {
                    data.push(s.value);
                }
                if s.kind == STT_NOTYPE && (s.size == 0 || s.binding == 0) {
                    continue;
                }
                if table == SymbolTable::Static {
                    symbols.push((s.value, i as u32));
                    if is_cold_name(s.name) {
                        cold.insert(s.value);
                    }
                }
                found.push((s.value, s.value.saturating_add(s.size).min(section.end())));
            }
        }
        symbols.par_sort_unstable();
        data.sort_unstable();
        for f in &eh.fdes {
            if f.len > 0 && elf.section_at(f.start).is_some_and(|(_, s)| s.is_code()) {
                found.push((f.start, f.start.saturating_add(f.len)));
            }
        }
        found.par_sort_unstable();
        let (mut pieces, entries, unsized_) = merge_ranges(elf, &found);
        for p in &mut pieces {
            // An empty function in front of another one (`__builtin_unreachable()`) has an entry for the same start, and no code.
            let first = eh.fdes.partition_point(|f| f.start < p.start);
            p.fde = eh.fdes[first..]
                .iter()
                .take_while(|f| f.start == p.start)
                .position(|f| f.len > 0)
                .map(|i| (first + i) as u32);
        }
        let starts: Vec<u64> = pieces.iter().map(|p| p.start).collect();
        let piece_at = |a: u64| -> Option<usize> {
            let i = starts.partition_point(|s| *s <= a).checked_sub(1)?;
            (a < pieces[i].end).then_some(i)
        };

        let imports = imports::<I>(elf, &refs);
        let can_unwind = Leaks::can_unwind(elf);
        let library = if can_unwind {
            library::safe::<I>(elf, &refs)
        } else {
            FxHashSet::default()
        };
        let safe_imports: FxHashSet<u64> = if can_unwind {
            let names = elf.symbols(SymbolTable::Dynamic);
            imports
                .iter()
                .filter(|(_, i)| {
                    names
                        .get(**i as usize)
                        .is_some_and(|s| Leaks::import_is_safe(s.name))
                })
                .map(|(a, _)| *a)
                .chain(library.iter().copied())
                .collect()
        } else {
            FxHashSet::default()
        };
        let sweep = Sweep {
            elf,
            refs: &refs,
            starts: &starts,
            calls: can_unwind.then_some(&safe_imports),
        };
        // One sweep over all code.
        let events: Vec<Vec<(u32, Event)>> = (0..pieces.len())
            .into_par_iter()
            .fold(Vec::new, |mut out, i| {
                sweep.piece::<I>(i as u32, &pieces[i], &mut out);
                out
            })
            .collect();

        // Parts of one function. A jump to the start of a part that the compiler split off joins too: such a part does
        // not begin with the state of a function's entry.
        let mut sets = Sets::new(pieces.len());
        let mut pins: Vec<Option<Pin>> = vec![None; pieces.len()];
        let mut extra: Vec<(u64, Role)> = entries.iter().map(|a| (*a, Role::Entry)).collect();
        let mut taken = vec![false; pieces.len()];
        for s in elf
            .symbols(SymbolTable::Dynamic)
            .iter()
            .filter(|s| s.section != 0)
        {
            if let Some(to) = piece_at(s.value) {
                taken[to] = true;
            }
        }
        if let Some(to) = piece_at(elf.entry) {
            taken[to] = true;
        }
        let mut ends: Vec<u64> = Vec::new();
        let mut table_bases: Vec<(u64, usize)> = Vec::new();
        let mut no_return: Vec<u64> = Vec::new();
        let mut flags_of: Vec<u64> = Vec::new();
        let initial: Vec<_> = eh.cies.iter().map(|c| rows::initial_row(c).ok()).collect();
        let midway: Vec<bool> = pieces
            .par_iter()
            .map(|p| {
                let fde = p.fde.map(|f| &eh.fdes[f as usize]);
                cold.contains(&p.start)
                    || fde.is_some_and(|fde| {
                        let cie = &eh.cies[fde.cie];
                        let row = initial[fde.cie].as_ref();
                        row.is_some_and(|row| rows::begins_otherwise(cie, row, fde))
                    })
            })
            .collect();
        let starts_midway = |i: usize| midway[i];
        for (from, event) in events.iter().flatten() {
            let from = *from as usize;
            match *event {
                Event::Jump { target } => {
                    // A jump to a stub of the procedure linkage table is a tail call.
                    if let Some(to) = piece_at(target)
                        && to != from
                        && !is_special(elf.sections[pieces[to].section as usize].name)
                        && (target != pieces[to].start || starts_midway(to))
                    {
                        sets.join(from, to);
                    }
                }
                Event::Call { target } => {
                    if let Some(to) = piece_at(target) {
                        if to == from {
                            set_pin(&mut pins[to], Pin::CallsItsMiddle);
                        } else {
                            extra.push((target, Role::Entry));
                        }
                    }
                }
                Event::Address { target } => {
                    // What code adds distances to is the address of its own entry, or it is not known which address that is.
                    let own = target == pieces[from].start;
                    if !own && refs.has_distance_in(pieces[from].start, pieces[from].end) {
                        set_pin(&mut pins[from], Pin::PositionArithmetic);
                    }
                    if let Some(to) = piece_at(target) {
                        if target == pieces[to].start {
                            taken[to] = true;
                        } else {
                            extra.push((
                                target,
                                Role::Label {
                                    from_code: Some(from as u32),
                                },
                            ));
                        }
                    } else {
                        ends.push(target);
                    }
                }
                Event::Table { base } => table_bases.push((base, from)),
                Event::FlagsOf { callee } => flags_of.push(callee),
                Event::Undecodable => set_pin(&mut pins[from], Pin::NotInstructions),
                Event::FallsOff => set_pin(&mut pins[from], Pin::FallsOffItsEnd),
                Event::NoReturn => no_return.push(pieces[from].start),
                Event::Reaches { .. } | Event::Unsafe => {}
            }
        }
        no_return.sort_unstable();
        for callee in flags_of {
            // Behind a call that never comes back stands code that somebody else jumps to.
            if let Some(to) = piece_at(callee)
                && no_return.binary_search(&pieces[to].start).is_err()
            {
                set_pin(&mut pins[to], Pin::ReturnsFlags);
            }
        }
        let unsafe_pieces = if can_unwind {
            reaching_unsafe(&events, &starts)
        } else {
            Vec::new()
        };
        drop(events);
        // A part at a time: there are millions.
        for part in refs.pointers.chunks(1 << 16) {
            let into_code: Vec<(usize, u64)> = part
                .par_iter()
                .filter_map(|p| Some((piece_at(p.target)?, p.target)))
                .collect();
            let outside = part.iter().filter(|p| piece_at(p.target).is_none());
            ends.extend(
                outside
                    .filter(|p| !in_a_table(&refs, p, &piece_at))
                    .map(|p| p.target),
            );
            for (to, target) in into_code {
                // Where a part begins that the compiler split off there is a label, which a table of the function may hold, and no function.
                if target == pieces[to].start && !cold.contains(&target) {
                    taken[to] = true;
                } else {
                    extra.push((target, Role::Label { from_code: None }));
                }
            }
        }
        let mut unexplained: Vec<u32> = Vec::new();
        table_bases.par_sort_unstable();
        let bases: Vec<u64> = {
            let mut v: Vec<u64> = table_bases.iter().map(|t| t.0).collect();
            v.dedup();
            v
        };
        // Of these, jump tables are those whose first entry leads back to the code that forms the table's address.
        let jump_tables: Vec<u64> = {
            let leads_back = |base: u64, from: usize| {
                let first = table_entries(elf, &refs, &bases, base).next().map(|e| e.1);
                first.is_some_and(|t| {
                    t > pieces[from].start && t <= pieces[from].end
                        || piece_at(t).is_some_and(&starts_midway)
                })
            };
            let mut v: Vec<u64> = table_bases
                .par_iter()
                .filter(|(b, f)| leads_back(*b, *f))
                .map(|t| t.0)
                .collect();
            v.dedup();
            v
        };
        // Entries of a table may lead to split-off parts that nothing else refers to.
        for &(base, from) in &table_bases {
            for (_, target) in table_entries(elf, &refs, &bases, base) {
                match piece_at(target) {
                    Some(to) if to == from => {}
                    Some(to) if starts_midway(to) => sets.join(from, to),
                    _ if target == pieces[from].end => {}
                    _ => break,
                }
            }
        }
        // Self-relative values that belong to no table are pointers to what they say.
        let mut run = (0u64, 0u64, 0usize); // (base, end, piece) of the table at hand
        for (place, width) in refs.relative() {
            if jump_tables.binary_search(&place).is_ok() {
                let from = table_bases.partition_point(|t| t.0 < place);
                run = (place, place, table_bases[from].1);
            }
            let value = Refs::relative_value(elf, place, width);
            if place == run.1 && run.0 != 0 {
                let target = run.0.wrapping_add(value.unwrap_or(0));
                let from = &pieces[run.2];
                if target >= from.start && target <= from.end
                    || piece_at(target).is_some_and(&starts_midway)
                {
                    run.1 += width;
                    continue;
                }
            }
            let Some(target) = value.map(|value| place.wrapping_add(value)) else {
                continue;
            };
            if let Some(to) = piece_at(target) {
                if target == pieces[to].start {
                    taken[to] = true;
                } else {
                    unexplained.push(to as u32);
                }
            }
        }
        let table_bases = bases;
        unexplained.sort_unstable();
        ends.sort_unstable();
        let bounded = sections_with_bounds(elf);
        // Who knows where a function ends may compare program counters with that.
        for (i, p) in pieces.iter().enumerate() {
            if starts.binary_search(&p.end).is_ok() || ends.binary_search(&p.end).is_err() {
                continue;
            }
            let limit = elf.sections[p.section as usize].end();
            // What follows the section begins there as well.
            if p.end == limit {
                continue;
            }
            let next = starts.get(i + 1).copied().unwrap_or(limit).min(limit);
            let gap = elf.bytes_at(p.end, next.saturating_sub(p.end));
            if gap.is_some_and(|gap| crate::visible::is_padding::<I>(gap, p.end)) {
                set_pin(&mut pins[i], Pin::PointerToItsEnd);
            }
        }
        for target in patched_at_run_time(elf, &refs) {
            // Instructions in front of an entry are patched as well; a function of unknown size seems to go on up to there.
            let next = starts.partition_point(|s| *s < target);
            let near = |i: &usize| {
                starts
                    .get(*i)
                    .is_some_and(|s| s - target <= PATCHED_IN_FRONT)
            };
            let sized = piece_at(target).filter(|i| !unsized_.contains(&pieces[*i].start));
            if let Some(to) = sized.or(Some(next).filter(near)) {
                set_pin(&mut pins[to], Pin::PatchedAtRunTime);
            }
        }
        for (i, p) in pieces.iter().enumerate() {
            if is_special(elf.sections[p.section as usize].name) {
                pins[i] = Some(Pin::SpecialSection);
            } else if unsized_.contains(&p.start) {
                set_pin(&mut pins[i], Pin::NoSize);
            }
            if p.fde
                .is_some_and(|f| eh.cies[eh.fdes[f as usize].cie].signal_frame)
            {
                set_pin(&mut pins[i], Pin::SignalTrampoline);
            }
            if unexplained.binary_search(&(i as u32)).is_ok() {
                set_pin(&mut pins[i], Pin::PointerToItsInside);
            }
            let first_data = data.partition_point(|d| *d < p.start);
            if data.get(first_data).is_some_and(|d| *d < p.end) {
                set_pin(&mut pins[i], Pin::NotInstructions);
            }
            if refs.has_distance_in(p.start, p.end) {
                if I::ADDS_DISTANCES {
                    // The address of its entry stays what it was, also where the function itself forms it.
                    refs.distant.push(p.start);
                } else {
                    set_pin(&mut pins[i], Pin::PositionArithmetic);
                }
            }
            if bounded.binary_search(&p.section).is_ok() {
                set_pin(&mut pins[i], Pin::SectionWithBounds);
            }
        }

        refs.distant.sort_unstable();
        refs.distant.dedup();
        let mut functions = sets.functions(&mut pieces, &starts_of(&cold));
        for f in &mut functions {
            f.pin = f.pieces.iter().filter_map(|p| pins[*p as usize]).min();
            f.address_taken = f.pieces.iter().any(|p| taken[*p as usize]);
        }
        let starts_in = |a: u64| starts.partition_point(|s| *s <= a).checked_sub(1);
        let mut formed: Vec<(usize, u64, bool)> = Vec::new();
        for (address, role) in extra {
            let Some(to) = starts_in(address) else {
                continue;
            };
            let f = pieces[to].function as usize;
            match role {
                Role::Entry => functions[f].entries.push(address),
                Role::Label { from_code: None } => functions[f].labels.push(address),
                Role::Label {
                    from_code: Some(from),
                } => {
                    let own = pieces[from as usize].function as usize == f;
                    formed.push((f, address, own));
                }
            }
        }
        for f in &mut functions {
            for p in &f.pieces[1..] {
                let p = &pieces[*p as usize];
                if !cold.contains(&p.start) {
                    f.entries.push(p.start);
                }
            }
        }
        functions.par_iter_mut().for_each(|f| {
            f.entries.sort_unstable();
            f.entries.dedup();
            f.labels.sort_unstable();
            f.labels.dedup();
        });
        // What code does with an address inside of a function is not known: it may add a table's entry to it. One that the function's own
        // tables of labels hold as well is a label that is jumped to.
        for (f, address, own) in formed {
            if !own || functions[f].labels.binary_search(&address).is_err() {
                set_pin(&mut functions[f].pin, Pin::AddressOfItsInsideTaken);
            }
        }
        let code: u64 = pieces.iter().map(|p| p.end - p.start).sum();
        let new_end = elf.extent().1.saturating_add(code).saturating_add(code / 2);
        let mut program = Program {
            elf,
            refs,
            eh,
            pieces,
            functions,
            table_bases,
            library,
            imports,
            pad_bases: Vec::new(),
            can_unwind,
            unsafe_pieces,
            no_return,
            symbols,
            new_end,
            visible: Visible::of_file(elf),
        };
        let mut visible = std::mem::take(&mut program.visible);
        visible.judge::<I>(&program);
        program.visible = visible;
        program.pad_bases = crate::unwind::pad_bases(&program);
        Ok(program)
    }

    /// Whether new code may be out of reach of a direct jump at an address of the old.
    pub fn is_far<I: Isa>(&self, addr: u64) -> bool {
        self.new_end.saturating_sub(addr) >= I::BRANCH_REACH
    }

    /// Whether pointers to the function that begins at an address may follow it when it moves: nothing can tell by what it sees ([`crate::visible`]), and no code
    /// knows the address by a distance.
    pub fn may_follow(&self, start: u64) -> bool {
        self.visible.may_follow(start) && self.refs.may_follow(start)
    }

    /// The piece that covers an address.
    pub fn piece_at(&self, addr: u64) -> Option<&Piece> {
        let i = self
            .pieces
            .partition_point(|p| p.start <= addr)
            .checked_sub(1)?;
        (addr < self.pieces[i].end).then(|| &self.pieces[i])
    }

    /// Start of a function's first piece.
    pub fn start(&self, function: usize) -> u64 {
        self.pieces[self.functions[function].pieces[0] as usize].start
    }

    /// Bytes of code in a function.
    pub fn size(&self, function: usize) -> u64 {
        self.functions[function]
            .pieces
            .iter()
            .map(|p| self.pieces[*p as usize].end - self.pieces[*p as usize].start)
            .sum()
    }

    /// Name of a function: the first global symbol at its start, else the first of any kind, else its address.
    pub fn name(&self, function: usize) -> String {
        self.name_at(self.start(function))
    }

    /// Name of the symbol at an address: of several one with a size, then a global one, then the first. A stub to an imported
    /// function is named after it, `NAME@plt`.
    pub fn name_at(&self, start: u64) -> String {
        let table = self.elf.symbols(SymbolTable::Static);
        let from = self.symbols.partition_point(|s| s.0 < start);
        let mut best: Option<postlink_image::elf::Symbol<'_>> = None;
        for (_, i) in self.symbols[from..].iter().take_while(|s| s.0 == start) {
            let rank = |s: &postlink_image::elf::Symbol<'_>| (s.size > 0, s.binding != 0);
            if let Some(s) = table.get(*i as usize)
                && best.is_none_or(|b| rank(&b) < rank(&s))
            {
                best = Some(s);
            }
        }
        match best {
            Some(s) => String::from_utf8_lossy(s.name).into_owned(),
            None => match self.import_name(start) {
                Some(import) => format!("{}@plt", String::from_utf8_lossy(import)),
                None => format!("fun_{start:x}"),
            },
        }
    }

    /// The first imported symbol whose name, without its version, is wanted.
    pub fn imported(&self, wanted: impl Fn(&[u8]) -> bool) -> Option<&'d [u8]> {
        let table = self.elf.symbols(SymbolTable::Dynamic);
        let mut names = table
            .iter()
            .filter(|s| s.section == 0)
            .map(|s| base_name(s.name));
        names.find(|name| wanted(name))
    }

    /// Whether a slot leads out of the file, whatever the loader finds.
    pub fn leaves(&self, slot: u64) -> bool {
        let symbol = |i: u32| self.elf.symbols(SymbolTable::Dynamic).get(i as usize);
        self.refs
            .import_at(slot)
            .and_then(symbol)
            .is_some_and(|s| s.section == 0)
    }

    /// Name of an imported function by its stub's or slot's address.
    pub fn import_name(&self, addr: u64) -> Option<&'d [u8]> {
        let i = *self.imports.get(&addr)?;
        self.elf
            .symbols(SymbolTable::Dynamic)
            .get(i as usize)
            .map(|s| s.name)
    }
}

/// Whether a pointer to the end of a function lies beside one to its inside: in a table of absolute addresses, where compilers let entries that cannot be
/// reached lead to the end.
fn in_a_table(
    refs: &Refs,
    pointer: &crate::refs::Pointer,
    piece_at: &(impl Fn(u64) -> Option<usize> + Sync),
) -> bool {
    let of = pointer.target.checked_sub(1).and_then(piece_at);
    let beside = [pointer.place.wrapping_sub(8), pointer.place.wrapping_add(8)];
    of.is_some()
        && beside.into_iter().any(|place| {
            let at = refs.pointers.binary_search_by_key(&place, |p| p.place);
            at.is_ok_and(|at| piece_at(refs.pointers[at].target) == of)
        })
}

/// How far in front of a function its instructions for patching may begin.
const PATCHED_IN_FRONT: u64 = 256;

/// Places in code whose instructions somebody overwrites, or compares the program counter with, while the program runs: what compilers list in
/// sections of their own for tracers, live patching and restartable sequences.
fn patched_at_run_time<'a>(elf: &Elf<'_>, refs: &'a Refs) -> impl Iterator<Item = u64> + use<'a> {
    const LISTS: [&str; 6] = [
        "__patchable_function_entries",
        "xray_instr_map",
        "__mcount_loc",
        "__rseq_cs",
        "__rseq_cs_ptr_array",
        "__jump_table",
    ];
    let lists = elf.sections.iter().filter(|s| LISTS.contains(&s.name));
    let ranges: Vec<(u64, u64)> = lists.map(|s| (s.addr, s.end())).collect();
    let listed = move |place: u64| ranges.iter().any(|r| r.0 <= place && place < r.1);
    let in_list = move |p: &&crate::refs::Pointer| listed(p.place);
    refs.pointers.iter().filter(in_list).map(|p| p.target)
}

/// Sections of code, by index, of which symbols `__start_NAME` and `__stop_NAME` tell where they begin and end: linkers make those for names that
/// are identifiers of C. A program compares program counters with them.
fn sections_with_bounds(elf: &Elf<'_>) -> Vec<u32> {
    let is_identifier = |name: &str| {
        !name.is_empty()
            && !name.starts_with(|c: char| c.is_ascii_digit())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let sections = (0u32..).zip(&elf.sections);
    sections
        .filter(|(_, s)| s.is_code() && is_identifier(s.name))
        .map(|(i, _)| i)
        .collect()
}

enum Role {
    Entry,
    Label { from_code: Option<u32> },
}

fn set_pin(pin: &mut Option<Pin>, new: Pin) {
    *pin = Some(pin.map_or(new, |old| old.min(new)));
}

/// `f.cold`, `f.cold.3`: parts that GCC and LLVM split off.
fn is_cold_name(name: &[u8]) -> bool {
    match name.windows(5).rposition(|w| w == b".cold") {
        Some(i) => {
            let rest = &name[i + 5..];
            rest.is_empty() || rest[0] == b'.' && rest[1..].iter().all(u8::is_ascii_digit)
        }
        None => false,
    }
}

/// Sections whose contents are not functions.
pub fn is_special(name: &str) -> bool {
    name == ".init" || name == ".fini" || name.starts_with(".plt") || name.starts_with(".iplt")
}

fn starts_of(cold: &FxHashSet<u64>) -> impl Fn(u64) -> bool + '_ {
    move |a| cold.contains(&a)
}

/// Turns sorted (start, end) ranges into disjoint pieces; returns also starts inside of pieces, and pieces without known size.
fn merge_ranges(elf: &Elf<'_>, found: &[(u64, u64)]) -> (Vec<Piece>, Vec<u64>, FxHashSet<u64>) {
    let mut pieces: Vec<Piece> = Vec::new();
    let mut entries = Vec::new();
    let mut unsized_ = FxHashSet::default();
    for (i, &(start, end)) in found.iter().enumerate() {
        if let Some(last) = pieces.last_mut() {
            if start < last.end {
                if start != last.start {
                    entries.push(start);
                }
                last.end = last.end.max(end);
                continue;
            }
            if start == last.start {
                // The one before had no size.
                if end > start {
                    unsized_.remove(&start);
                    last.end = end;
                }
                continue;
            }
        }
        let Some((section, s)) = elf.section_at(start) else {
            continue;
        };
        let known = end > start
            || found[i + 1..]
                .iter()
                .take_while(|f| f.0 == start)
                .any(|f| f.1 > start);
        if !known {
            unsized_.insert(start);
            let next = found[i + 1..]
                .iter()
                .map(|f| f.0)
                .find(|a| *a > start)
                .unwrap_or(u64::MAX);
            pieces.push(Piece {
                start,
                end: next.min(s.end()),
                section: section as u32,
                function: 0,
                fde: None,
            });
        } else {
            pieces.push(Piece {
                start,
                end: end.min(s.end()),
                section: section as u32,
                function: 0,
                fde: None,
            });
        }
    }
    pieces.retain(|p| p.end > p.start);
    (pieces, entries, unsized_)
}

/// Entries of a position-independent jump table: (place, target), up to the next table or the end of what the linker marked.
/// Whether a target makes sense is for the caller to judge.
pub fn table_entries<'a>(
    elf: &'a Elf<'_>,
    refs: &'a Refs,
    bases: &[u64],
    base: u64,
) -> impl Iterator<Item = (u64, u64)> + use<'a> {
    let limit = bases
        .get(bases.partition_point(|b| *b <= base))
        .copied()
        .unwrap_or(u64::MAX);
    let width = refs.relative_width(base).unwrap_or(4);
    let places = match width {
        8 => &refs.relative64,
        _ => &refs.relative32,
    };
    let from = places.partition_point(|p| *p < base);
    places[from..]
        .iter()
        .enumerate()
        .map_while(move |(i, place)| {
            if *place != base + width * i as u64 || *place >= limit {
                return None;
            }
            let value = Refs::relative_value(elf, *place, width)?;
            Some((*place, base.wrapping_add(value)))
        })
}

/// What the sweep over all code needs to know.
struct Sweep<'a, 'd> {
    elf: &'a Elf<'d>,
    refs: &'a Refs,
    starts: &'a [u64],
    /// Imports and functions of a library that are safe to call, if calls matter at all.
    calls: Option<&'a FxHashSet<u64>>,
}

impl Sweep<'_, '_> {
    fn piece<I: Isa>(&self, index: u32, piece: &Piece, out: &mut Vec<(u32, Event)>) {
        let Some(bytes) = self.elf.bytes_at(piece.start, piece.end - piece.start) else {
            out.push((index, Event::Undecodable));
            return;
        };
        let inside = |a: u64| a > piece.start && a < piece.end;
        let is_start = |a: u64| self.starts.binary_search(&a).is_ok();
        let is_code = |a: u64| self.elf.section_at(a).is_some_and(|(_, s)| s.is_code());
        let mut last = Flow::Next;
        let mut unsafe_ = false;
        let (mut has_table, mut jumps_indirectly) = (false, false);
        let mut leaves = false;
        let mut called = None;
        let stopped = I::sweep(bytes, piece.start, |insn| {
            if let (Some(callee), Flow::CondJump { .. }) = (called, insn.flow) {
                let at = (insn.addr - piece.start) as usize;
                if I::effects(&bytes[at..], insn).reads.meets(I::FLAGS) {
                    out.push((index, Event::FlagsOf { callee }));
                }
            }
            called = match insn.flow {
                Flow::Call { target } => Some(target),
                _ => None,
            };
            match insn.flow {
                Flow::Jump { target }
                | Flow::CondJump { target, .. }
                | Flow::ShortCond { target }
                    if target < piece.start || target >= piece.end =>
                {
                    leaves = true;
                    out.push((index, Event::Jump { target }));
                    if let Some(safe) = self.calls {
                        unsafe_ |= !is_start(target) && !safe.contains(&target);
                        if !safe.contains(&target) {
                            out.push((index, Event::Reaches { target }));
                        }
                    }
                }
                Flow::Call { target } => {
                    let known = is_start(target);
                    // A call to its own start is recursion; one to the instruction behind it or elsewhere inside is not.
                    if inside(target) || !known {
                        out.push((index, Event::Call { target }));
                    }
                    if let Some(safe) = self.calls {
                        unsafe_ |= !known && !safe.contains(&target);
                        if known && !safe.contains(&target) {
                            out.push((index, Event::Reaches { target }));
                        }
                    }
                }
                Flow::IndirectCall => {
                    if let Some(safe) = self.calls {
                        match insn
                            .slot()
                            .map(|slot| (slot, self.refs.constant_slot(slot)))
                        {
                            Some((_, Some(target))) if safe.contains(&target) => {}
                            Some((_, Some(target))) if is_start(target) => {
                                out.push((index, Event::Reaches { target }))
                            }
                            slot => unsafe_ |= !slot.is_some_and(|(slot, _)| safe.contains(&slot)),
                        }
                    }
                }
                Flow::IndirectJump => jumps_indirectly = true,
                Flow::Return => leaves = true,
                _ => {}
            }
            if let Some(f) = insn.field
                && insn.traits.forms_address
            {
                if self.refs.relative_width(f.target).is_some() {
                    has_table = true;
                    out.push((index, Event::Table { base: f.target }));
                } else if f.kind == FixupKind::Adr && inside(f.target) {
                    // The anchor of a jump table, or else the function's control flow will say.
                    has_table = true;
                } else if is_code(f.target) {
                    out.push((index, Event::Address { target: f.target }));
                }
            }
            // Padding inside a sized function does not count as its end.
            if !insn.traits.nop {
                last = insn.flow;
            }
            true
        });
        for &(_, target) in self.refs.formed_in(piece.start, piece.end) {
            if self.refs.relative_width(target).is_some() {
                has_table = true;
                out.push((index, Event::Table { base: target }));
            } else if is_code(target) {
                out.push((index, Event::Address { target }));
            }
        }
        for &(at, kind) in self.refs.absolute_fields_in(piece.start, piece.end) {
            let Some(target) = self
                .elf
                .bytes_at(at, if kind == FixupKind::Abs64 { 8 } else { 4 })
                .and_then(|b| I::read_field(kind, b, at))
            else {
                continue;
            };
            if is_code(target) {
                out.push((index, Event::Address { target }));
            }
        }
        if stopped.is_some() {
            out.push((index, Event::Undecodable));
            unsafe_ = true;
        } else if matches!(
            last,
            Flow::Next | Flow::CondJump { .. } | Flow::ShortCond { .. }
        ) {
            out.push((index, Event::FallsOff));
            unsafe_ = true;
        } else if !leaves && !jumps_indirectly {
            out.push((index, Event::NoReturn));
        }
        // Without a table it may be a tail call to anything.
        unsafe_ |= jumps_indirectly && !has_table;
        if unsafe_ && self.calls.is_some() {
            out.push((index, Event::Unsafe));
        }
    }
}

/// Pieces that reach something unsafe through calls and jumps.
fn reaching_unsafe(events: &[Vec<(u32, Event)>], starts: &[u64]) -> Vec<bool> {
    let mut bad = vec![false; starts.len()];
    let mut work = Vec::new();
    for (from, e) in events.iter().flatten() {
        if matches!(e, Event::Unsafe) && !std::mem::replace(&mut bad[*from as usize], true) {
            work.push(*from);
        }
    }
    let caller = |(from, e): &(u32, Event)| match e {
        Event::Reaches { target } => {
            let to = starts.binary_search(target).ok()?;
            Some((to as u32, *from))
        }
        _ => None,
    };
    let lists = events.par_iter().flat_map_iter(|list| list.iter());
    // (callee, caller)
    let mut callers: Vec<(u32, u32)> = lists.filter_map(caller).collect();
    callers.par_sort_unstable();
    while let Some(callee) = work.pop() {
        let first = callers.partition_point(|c| c.0 < callee);
        for (_, caller) in callers[first..].iter().take_while(|c| c.0 == callee) {
            if !std::mem::replace(&mut bad[*caller as usize], true) {
                work.push(*caller);
            }
        }
    }
    bad
}

/// Stubs of the procedure linkage table by address, and the slots they jump through.
fn imports<I: Isa>(elf: &Elf<'_>, refs: &Refs) -> FxHashMap<u64, u32> {
    let mut map: FxHashMap<u64, u32> = refs.import_slots.iter().copied().collect();
    library::stubs::<I>(elf, |start, slot| {
        map.extend(refs.import_at(slot).map(|symbol| (start, symbol)));
    });
    map
}

/// Disjoint sets of pieces.
struct Sets {
    parent: Vec<u32>,
}

impl Sets {
    fn new(n: usize) -> Self {
        Sets {
            parent: (0..n as u32).collect(),
        }
    }
    fn find(&mut self, mut i: usize) -> usize {
        while self.parent[i] as usize != i {
            self.parent[i] = self.parent[self.parent[i] as usize];
            i = self.parent[i] as usize;
        }
        i
    }
    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.find(a), self.find(b));
        let (low, high) = (a.min(b), a.max(b));
        self.parent[high] = low as u32;
    }
    /// One function per set. Its first piece is the lowest that is not a split-off part.
    fn functions(mut self, pieces: &mut [Piece], is_cold: &impl Fn(u64) -> bool) -> Vec<Function> {
        let mut by_root: FxHashMap<usize, SmallVec<[u32; 1]>> = FxHashMap::default();
        for i in 0..pieces.len() {
            let root = self.find(i);
            by_root.entry(root).or_default().push(i as u32);
        }
        let mut functions: Vec<Function> = by_root
            .into_values()
            .map(|mut list| {
                list.sort_unstable();
                let first = list
                    .iter()
                    .position(|p| !is_cold(pieces[*p as usize].start))
                    .unwrap_or(0);
                list[..=first].rotate_right(1);
                Function {
                    pieces: list,
                    ..Function::default()
                }
            })
            .collect();
        functions.sort_unstable_by_key(|f| f.pieces[0]);
        for (i, f) in functions.iter().enumerate() {
            for p in &f.pieces {
                pieces[*p as usize].function = i as u32;
            }
        }
        functions
    }
}
