//! From pieces and references to functions: which pieces belong together, where they are entered, and which
//! of them must stay.
//!
//! The steps of [`Program::discover`]:
//!
//! | step | gives |
//! |---|---|
//! | [`Named::read`], [`Pieces::new`] | ranges of code with names or unwind entries, and disjoint pieces of them |
//! | [`sweep`] | what crosses from piece to piece |
//! | [`Discovery::follow_events`], [`Discovery::follow_pointers`] | pieces that are one function; entries, labels, functions whose address is taken |
//! | [`Discovery::follow_tables`] | parts that only jump tables lead to; self-relative pointers |
//! | [`Discovery::follow_code_between`] | what code that is no function's knows of functions, where no relocations were kept |
//! | `Discovery::pin_…` | reasons to stay that pieces have by themselves |
//! | [`functions`] | functions with their entries, labels and reasons |
//! | [`Visible::judge`], [`exceptions::personalities`] | what rests on all functions being known |

use std::ops::Range;

use postlink_elf::FormatError;
use postlink_elf::elf::{Elf, SymbolTable};
use postlink_elf::probes;
use postlink_elf::unwind::eh_frame::EhFrame;
use postlink_elf::unwind::rows::{self, Row};
use postlink_isa::{FixupKind, Isa};
use rayon::prelude::*;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::bounds::Bounds;
use super::entry_proof::EntryProof;
use super::file::is_guarded;
use super::pieces::{Named, Pieces, Sets, is_special};
use super::program::{Function, Piece, Program, table_entries};
use super::refs::{Pointer, Refs};
use super::sweep::{Event, Events, Noted, reaching_unsafe, sweep};
use super::visible::{Stays, Visible, is_padding};
use super::{data_in_code, exceptions, libc, library};
use crate::pin::Pin;

impl<'d> Program<'d> {
    /// Finds functions and references.
    pub fn discover<I: Isa>(elf: &'d Elf<'d>) -> Result<Program<'d>, FormatError> {
        Self::discover_with::<I>(elf, Noted::Nothing)
    }

    /// The same; what the number of functions' counters follows from is noted as well.
    pub(crate) fn discover_for_counters<I: Isa>(
        elf: &'d Elf<'d>,
    ) -> Result<Program<'d>, FormatError> {
        Self::discover_with::<I>(elf, Noted::Shapes)
    }

    /// The same; what decides on counters per thread is noted as well.
    pub(crate) fn discover_for_threads<I: Isa>(
        elf: &'d Elf<'d>,
    ) -> Result<Program<'d>, FormatError> {
        Self::discover_with::<I>(elf, Noted::Survey)
    }

    fn discover_with<I: Isa>(elf: &'d Elf<'d>, noted: Noted) -> Result<Program<'d>, FormatError> {
        let (refs, eh) = postlink_parallel::join(|| Refs::collect(elf), || EhFrame::parse(elf));
        let (mut refs, eh) = (refs?, eh?);
        let named = Named::read(elf, &eh);
        let mut pieces = Pieces::new(elf, &named, &eh);
        let imports = imports::<I>(elf, &refs);
        let can_unwind = libc::can_unwind(elf, &eh);
        let library = if can_unwind {
            library::safe::<I>(elf, &refs)
        } else {
            FxHashSet::default()
        };
        let safe = can_unwind.then(|| safe_calls(elf, &imports, &library));
        let (events, shapes, survey) = sweep::<I>(elf, &refs, &pieces, safe.as_ref(), noted);

        let initial_rows: Vec<_> = eh.cies.iter().map(|c| rows::initial_row(c).ok()).collect();
        let mut discovery =
            Discovery::new::<I>(elf, &refs, &eh, (&pieces, &initial_rows), &named.cold);
        discovery.take_exported();
        let imported = elf.symbols(SymbolTable::Dynamic);
        let never_returns = |callee: u64| {
            let symbol = imports.get(&callee).and_then(|i| imported.get(*i as usize));
            symbol.is_some_and(|s| libc::never_returns(libc::base_name(s.name)))
        };
        let reaches = || can_unwind.then(|| reaching_unsafe(&events, &pieces));
        let follow = || discovery.follow_events(&events, &never_returns);
        let (crossings, unsafe_pieces) = postlink_parallel::join(follow, reaches);
        let unsafe_pieces = unsafe_pieces.unwrap_or_default();
        discovery.pin_returned_flags(&crossings);
        drop(events);
        discovery.follow_pointers();
        let table_bases = discovery.follow_tables(crossings.tables);
        if !refs.kept {
            discovery.follow_code_between(data_in_code::formed_between::<I>(elf, &pieces));
        }
        discovery.pin_known_ends::<I>();
        discovery.pin_patched();
        let bounds = Bounds::of(elf);
        discovery.pin_pieces::<I>(&named.data, &bounds);
        let distant = std::mem::take(&mut discovery.distant);
        let found = discovery.found;
        refs.distant.extend(distant);
        refs.distant.sort_unstable();
        refs.distant.dedup();
        let functions = functions(found, &mut pieces, &named.cold, refs.kept);

        let pieces = pieces.list;
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
            initial_rows,
            personalities: Vec::new(),
            can_unwind,
            unsafe_pieces,
            no_return: crossings.no_return,
            forms_code: crossings.forms_code,
            symbols: named.symbols,
            exported: named.exported,
            guarded: is_guarded(elf),
            new_end,
            visible: Visible::of_file(elf, bounds),
            entry_proof: EntryProof::default(),
            shapes,
            survey,
            folded: FxHashSet::default(),
        };
        let mut visible = std::mem::take(&mut program.visible);
        if !program.refs.kept {
            visible.stays = Some(Stays::NoRelocations);
        }
        visible.judge::<I>(&program);
        program.visible = visible;
        program.personalities = exceptions::personalities(&program);
        if !program.refs.kept {
            program.entry_proof = EntryProof::new::<I>(&program)?;
        }
        Ok(program)
    }
}

/// Imports, and functions of a library that is linked in, calls of which neither unwind nor call back.
fn safe_calls(
    elf: &Elf<'_>,
    imports: &FxHashMap<u64, u32>,
    library: &FxHashSet<u64>,
) -> FxHashSet<u64> {
    let names = elf.symbols(SymbolTable::Dynamic);
    let is_safe = |i: u32| names.get(i as usize).is_some_and(|s| libc::is_safe(s.name));
    let imports = imports.iter().filter(|(_, i)| is_safe(**i));
    imports
        .map(|(a, _)| *a)
        .chain(library.iter().copied())
        .collect()
}

/// What the sweep found that is worked on together with other things.
#[derive(Default)]
struct Crossings {
    /// Position-independent tables: first address, and the piece that forms it.
    tables: Vec<(u64, usize)>,
    /// Starts of pieces that nothing comes back from, ascending.
    no_return: Vec<u64>,
    /// Pieces in which an instruction forms an address where code is, ascending.
    forms_code: Vec<u32>,
    /// Functions after calls of which flags are looked at.
    flags_of: Vec<u64>,
}

/// So many self-relative values are a part of the work at least.
const VALUES_PART: usize = 1 << 12;

/// Where a self-relative pointer leads.
enum Relative {
    /// To the start of this piece.
    Function(u32),
    /// Into it.
    Inside(u32),
    /// To an address outside of pieces.
    Outside(u64),
}

/// What is found out about pieces.
struct Found {
    /// Pieces that are one function.
    sets: Sets,
    /// By piece: why it stays.
    pins: Vec<Option<Pin>>,
    /// By piece: it does not begin with the state of a function's entry, so it is a part of another function.
    midway: Vec<bool>,
    /// By piece: its address is taken.
    taken: Vec<bool>,
    /// By piece: the loader knows it.
    exported: Vec<bool>,
    /// Addresses inside of pieces that are called or named.
    entries: Vec<u64>,
    /// Addresses inside of pieces that something points to, with the piece whose code does.
    labels: Vec<(u64, Option<u32>)>,
}

/// What all steps look at, and what they find.
struct Discovery<'a, 'd> {
    elf: &'d Elf<'d>,
    refs: &'a Refs,
    eh: &'a EhFrame<'d>,
    pieces: &'a Pieces,
    cold: &'a FxHashSet<u64>,
    /// Addresses outside of pieces that something points to.
    ends: Vec<u64>,
    /// Pieces with a self-relative pointer to their inside.
    unexplained: Vec<u32>,
    /// Starts of pieces that the program knows by distances in data, which stay what they were: pointers must
    /// lead there too.
    distant: Vec<u64>,
    found: Found,
}

impl<'a, 'd> Discovery<'a, 'd> {
    fn new<I: Isa>(
        elf: &'d Elf<'d>,
        refs: &'a Refs,
        eh: &'a EhFrame<'d>,
        (pieces, initial_rows): (&'a Pieces, &[Option<Row<'d>>]),
        cold: &'a FxHashSet<u64>,
    ) -> Self {
        let begins_otherwise = |p: &Piece| {
            let fde = p.fde.map(|f| &eh.fdes[f as usize]);
            fde.is_some_and(|fde| {
                let row = initial_rows[fde.cie].as_ref();
                let behind = leading_nops::<I>(elf, p);
                row.is_some_and(|row| rows::begins_otherwise(&eh.cies[fde.cie], row, fde, behind))
            })
        };
        let midway = postlink_parallel::map(&pieces.list, |p| {
            cold.contains(&p.start) || begins_otherwise(p)
        });
        let count = pieces.list.len();
        Discovery {
            elf,
            refs,
            eh,
            pieces,
            cold,
            ends: Vec::new(),
            unexplained: Vec::new(),
            distant: Vec::new(),
            found: Found {
                sets: Sets::new(count),
                pins: vec![None; count],
                midway,
                taken: vec![false; count],
                exported: vec![false; count],
                entries: pieces.entries.clone(),
                labels: Vec::new(),
            },
        }
    }

    fn pin(&mut self, piece: usize, pin: Pin) {
        set_pin(&mut self.found.pins[piece], pin);
    }

    /// What the loader knows by address: exported symbols and the entry point.
    fn take_exported(&mut self) {
        let symbols = self.elf.symbols(SymbolTable::Dynamic);
        let exported = symbols.iter().filter(|s| s.section != 0).map(|s| s.value);
        for addr in exported.chain([self.elf.entry]) {
            if let Some(to) = self.pieces.at(addr) {
                self.found.exported[to] = true;
            }
        }
    }

    /// Goes through what the sweep found. Pieces that jump into each other's middle are parts of one
    /// function. A jump to the start of a part that the compiler split off joins too: such a part does not
    /// begin with the state of a function's entry.
    /// `never_returns`: of stubs of imported functions.
    fn follow_events(
        &mut self,
        events: &Events,
        never_returns: &(dyn Fn(u64) -> bool + Sync),
    ) -> Crossings {
        let pieces = self.pieces;
        let mut crossings = Crossings::default();
        let mut further: Vec<(u64, Option<u64>)> = Vec::new();
        for (from, event) in events.iter().flatten() {
            let from = *from as usize;
            match *event {
                Event::Jump { target } => {
                    // A jump to a stub of the procedure linkage table is a tail call.
                    if let Some(to) = pieces.at(target)
                        && to != from
                        && !is_special(self.elf.sections[pieces.list[to].section as usize].name)
                        && (target != pieces.starts[to] || self.found.midway[to])
                        && self.may_be_one(from, to)
                    {
                        self.found.sets.join(from, to);
                    }
                }
                Event::Call { target } => match pieces.at(target) {
                    Some(to) if to == from => self.pin(to, Pin::CallsItsMiddle),
                    Some(_) => self.found.entries.push(target),
                    None => {}
                },
                Event::Address { target } => self.formed(from, target),
                Event::Table { base } => crossings.tables.push((base, from)),
                Event::FlagsOf { callee } => crossings.flags_of.push(callee),
                Event::Undecodable => self.pin(from, Pin::NotInstructions),
                Event::FallsOff => self.pin(from, Pin::FallsOffItsEnd),
                Event::NoReturn => crossings.no_return.push(pieces.starts[from]),
                Event::FormsCode => crossings.forms_code.push(from as u32),
                Event::FurtherEntry(ref entry) => further.push(**entry),
                Event::Reaches { .. } | Event::Unsafe => {}
            }
        }
        crossings.no_return.sort_unstable();
        crossings.forms_code.sort_unstable();
        let ends = |callee: u64| {
            crossings.no_return.binary_search(&callee).is_ok() || never_returns(callee)
        };
        let begins = further.into_iter().filter(|f| f.1.is_none_or(ends));
        self.found.entries.extend(begins.map(|f| f.0));
        crossings
    }

    /// Whether pieces of which one jumps into the other are parts of one function. Where the linker kept no
    /// relocations a function is whatever is moved together, and other code may go on to jump into its old
    /// body: so not what runs up to the next name.
    fn may_be_one(&self, from: usize, to: usize) -> bool {
        let has_size = |piece: usize| {
            let start = self.pieces.starts[piece];
            !self.pieces.without_size.contains(&start)
        };
        self.refs.kept || has_size(from) && has_size(to)
    }

    /// Code of a piece forms an address.
    fn formed(&mut self, from: usize, target: u64) {
        // What code adds distances to is the address of its own entry, or it is not known which address that is.
        let (start, end) = (self.pieces.list[from].start, self.pieces.list[from].end);
        if target != start && self.refs.has_distance_in(start, end) {
            self.pin(from, Pin::PositionArithmetic);
        }
        match self.pieces.at(target) {
            Some(to) if target == self.pieces.starts[to] => self.found.taken[to] = true,
            Some(_) => self.found.labels.push((target, Some(from as u32))),
            None => self.ends.push(target),
        }
    }

    /// Code that is in no piece forms addresses.
    fn follow_code_between(&mut self, formed: Vec<u64>) {
        for target in formed {
            match self.pieces.at(target) {
                Some(to) if target == self.pieces.starts[to] => self.found.taken[to] = true,
                Some(to) => self.pin(to, Pin::AddressOfItsInsideTaken),
                None => self.ends.push(target),
            }
        }
    }

    /// Functions that give results in flags.
    fn pin_returned_flags(&mut self, crossings: &Crossings) {
        for callee in &crossings.flags_of {
            // After a call that never returns there is code that something else jumps to.
            let returns = |to: &usize| {
                let start = self.pieces.starts[*to];
                crossings.no_return.binary_search(&start).is_err()
            };
            if let Some(to) = self.pieces.at(*callee).filter(returns) {
                self.pin(to, Pin::ReturnsFlags);
            }
        }
    }

    /// Pointers in data.
    fn follow_pointers(&mut self) {
        let (refs, pieces) = (self.refs, self.pieces);
        let of = |p: &Pointer| match pieces.at(p.target) {
            Some(to) => Some((Some(to), p.target)),
            None if in_a_table(refs, p, pieces) => None,
            None => Some((None, p.target)),
        };
        // A part at a time: there are millions.
        for part in refs.pointers.chunks(1 << 16) {
            for (to, target) in postlink_parallel::filter_map(part, of) {
                match to {
                    None => self.ends.push(target),
                    // Where a part begins that the compiler split off there is a label, which a table of the
                    // function may hold, and no function.
                    Some(to) if target == pieces.starts[to] && !self.cold.contains(&target) => {
                        self.found.taken[to] = true;
                    }
                    Some(_) => self.found.labels.push((target, None)),
                }
            }
        }
    }

    /// Follows position-independent tables, and gives the first address of each, ascending.
    fn follow_tables(&mut self, mut tables: Vec<(u64, usize)>) -> Vec<u64> {
        tables.par_sort_unstable();
        let mut bases: Vec<u64> = tables.iter().map(|t| t.0).collect();
        bases.dedup();
        self.join_parts_of_tables(&tables, &bases);
        self.follow_relative_pointers(&tables, &bases);
        bases
    }

    /// Entries of a table may lead to split-off parts that nothing else refers to.
    fn join_parts_of_tables(&mut self, tables: &[(u64, usize)], bases: &[u64]) {
        let parts = |&(base, from): &(u64, usize)| {
            let mut parts: SmallVec<[(usize, usize); 1]> = SmallVec::new();
            for (_, target) in table_entries(self.elf, self.refs, bases, base) {
                match self.pieces.at(target) {
                    Some(to) if to == from => {}
                    Some(to) if self.found.midway[to] => parts.push((from, to)),
                    _ if target == self.pieces.list[from].end => {}
                    _ => break,
                }
            }
            parts
        };
        for (from, to) in postlink_parallel::flat_map(tables, parts) {
            self.found.sets.join(from, to);
        }
    }

    /// Whether an address is a place that a jump table of a piece may lead to. Entries that cannot be reached
    /// lead to the piece's end.
    fn may_dispatch_to(&self, from: usize, target: u64) -> bool {
        let piece = &self.pieces.list[from];
        piece.start <= target && target <= piece.end
            || self
                .pieces
                .at(target)
                .is_some_and(|to| self.found.midway[to])
    }

    /// Jump tables among the tables: those whose first entry leads back to the code that forms the table's
    /// address. Ascending.
    fn jump_tables(&self, tables: &[(u64, usize)], bases: &[u64]) -> Vec<u64> {
        let leads_back = |base: u64, from: usize| {
            let mut entries = table_entries(self.elf, self.refs, bases, base);
            let first = entries.next().map(|e| e.1);
            first.is_some_and(|t| {
                if t == self.pieces.starts[from] {
                    self.found.midway[from]
                } else {
                    self.may_dispatch_to(from, t)
                }
            })
        };
        let mut list: Vec<u64> = postlink_parallel::filter_map(tables, |(base, from)| {
            leads_back(*base, *from).then_some(*base)
        });
        list.dedup();
        list
    }

    /// Self-relative values that belong to no jump table are pointers to what they say. They keep their
    /// values, so pointers to the same function do.
    ///
    /// Where code forms the address of a table, it may also add that to the values (C++ with relative virtual tables).
    fn follow_relative_pointers(&mut self, tables: &[(u64, usize)], bases: &[u64]) {
        let jump_tables = self.jump_tables(tables, bases);
        let counted = self.follow_tables_of_functions(&jump_tables, bases);
        let values = self.refs.relative_count();
        let begins_table = |i: &usize| {
            let (place, _) = self.refs.relative_value_at(*i);
            jump_tables.binary_search(&place).is_ok()
        };
        // Where a jump table begins nothing depends on what is in front of it: from there to the next such place that
        // is far enough away is a part.
        let begins = postlink_parallel::map_parts(values, VALUES_PART, |mut part| {
            part.find(|i| *i == 0 || begins_table(i))
        });
        let begins: Vec<usize> = begins.into_iter().flatten().collect();
        let lead = postlink_parallel::map_range(begins.len(), |part| {
            let end = begins.get(part + 1).copied().unwrap_or(values);
            self.relative_pointers(begins[part]..end, (tables, &jump_tables), &counted)
        });
        for to in lead.into_iter().flatten() {
            match to {
                Relative::Function(piece) => self.known_by_distance(piece as usize),
                Relative::Inside(piece) => self.unexplained.push(piece),
                Relative::Outside(target) => self.ends.push(target),
            }
        }
    }

    /// Where those of the self-relative values with these numbers lead that belong to no jump table, and are not
    /// `counted` from the start of another one.
    fn relative_pointers(
        &self,
        values: Range<usize>,
        (tables, jump_tables): (&[(u64, usize)], &[u64]),
        counted: &[u64],
    ) -> Vec<Relative> {
        let mut found = Vec::new();
        let mut run = (0u64, 0u64, 0usize); // (base, end, piece) of the table at hand
        for (place, width) in values.map(|i| self.refs.relative_value_at(i)) {
            if jump_tables.binary_search(&place).is_ok() {
                let from = tables.partition_point(|t| t.0 < place);
                run = (place, place, tables[from].1);
            }
            let value = Refs::relative_value(self.elf, place, width);
            if place == run.1 && run.0 != 0 {
                let target = run.0.wrapping_add(value.unwrap_or(0));
                if self.may_dispatch_to(run.2, target) {
                    run.1 += width;
                    continue;
                }
            }
            let Some(target) = value.map(|value| place.wrapping_add(value)) else {
                continue;
            };
            if counted.binary_search(&place).is_ok() {
                continue;
            }
            found.push(match self.pieces.at(target) {
                Some(to) if target == self.pieces.starts[to] => Relative::Function(to as u32),
                Some(to) => Relative::Inside(to as u32),
                None => Relative::Outside(target),
            });
        }
        found
    }

    /// Tables whose address code forms, and whose values, counted from there, lead to functions: as far as
    /// all do, they are no distances from their own places. Gives these places, ascending.
    fn follow_tables_of_functions(&mut self, jump_tables: &[u64], bases: &[u64]) -> Vec<u64> {
        let mut counted = Vec::new();
        // In a program at a fixed address a number may be the address.
        let refs = self.refs;
        let number = |(place, kind): &(u64, FixupKind)| {
            let width = match kind {
                FixupKind::Abs64 => 8,
                _ => 4,
            };
            let value = Refs::relative_value(self.elf, *place, width)?;
            refs.relative_width(value).map(|_| value)
        };
        let numbers = postlink_parallel::filter_map(&refs.absolute_fields, number);
        let mut starts: Vec<u64> = bases.iter().copied().chain(numbers).collect();
        starts.sort_unstable();
        starts.dedup();
        starts.retain(|b| jump_tables.binary_search(b).is_err());
        let functions = |base: &u64| {
            let entries = table_entries(self.elf, self.refs, bases, *base);
            let function = |(place, target): (u64, u64)| {
                let to = self.pieces.at(target)?;
                (target == self.pieces.starts[to]).then_some((place, to))
            };
            entries.map_while(function).collect::<SmallVec<[_; 1]>>()
        };
        for (place, to) in postlink_parallel::flat_map(&starts, functions) {
            self.known_by_distance(to);
            counted.push(place);
        }
        counted.sort_unstable();
        counted
    }

    /// The address of a piece is known to the program, by a value that stays what it was.
    fn known_by_distance(&mut self, piece: usize) {
        self.found.taken[piece] = true;
        self.distant.push(self.pieces.starts[piece]);
    }

    /// Who knows where a function ends may compare program counters with that.
    fn pin_known_ends<I: Isa>(&mut self) {
        self.ends.sort_unstable();
        let (starts, list) = (&self.pieces.starts, &self.pieces.list);
        let is_known = |i: usize| {
            let p = &list[i];
            if starts.get(i + 1) == Some(&p.end) || self.ends.binary_search(&p.end).is_err() {
                return None;
            }
            let limit = self.elf.sections[p.section as usize].end();
            // What follows the section begins there as well.
            if p.end == limit {
                return None;
            }
            let next = starts.get(i + 1).copied().unwrap_or(limit).min(limit);
            let gap = self.elf.bytes_at(p.end, next.saturating_sub(p.end));
            gap.is_some_and(|gap| is_padding::<I>(gap, p.end))
                .then_some(i)
        };
        for i in postlink_parallel::flat_map_range(list.len(), is_known) {
            self.pin(i, Pin::PointerToItsEnd);
        }
    }

    /// Functions whose instructions are overwritten while the program runs.
    fn pin_patched(&mut self) {
        let pieces = self.pieces;
        // Probes in a section that is loaded: the program may know them. Others follow their code.
        let is_loaded = probes::section(self.elf).is_some_and(|(_, s)| s.is_alloc());
        let all = probes::probes(self.elf).into_iter();
        let loaded = all.filter(|_| is_loaded).map(|probe| probe.at);
        for target in patched_at_run_time(self.elf, self.refs).chain(loaded) {
            // Instructions in front of an entry are patched as well; a function of unknown size seems to go
            // on up to there.
            let next = pieces.starts.partition_point(|s| *s < target);
            let near = |i: &usize| {
                let start = pieces.starts.get(*i);
                start.is_some_and(|s| s - target <= PATCHED_IN_FRONT)
            };
            let has_size = |i: &usize| !pieces.without_size.contains(&pieces.starts[*i]);
            let sized = pieces.at(target).filter(has_size);
            if let Some(to) = sized.or(Some(next).filter(near)) {
                self.pin(to, Pin::PatchedAtRunTime);
            }
        }
    }

    /// Reasons to stay that are in the piece itself. `data`: where data is in code, ascending.
    fn pin_pieces<I: Isa>(&mut self, data: &[u64], bounds: &Bounds) {
        self.unexplained.sort_unstable();
        let bounded = sections_with_bounds(self.elf);
        // Their reasons to stay, and whether the address of their entry stays what it was.
        let judged = postlink_parallel::map_range(self.pieces.list.len(), |i| {
            let p = &self.pieces.list[i];
            let mut pin = self.found.pins[i];
            if is_special(self.elf.sections[p.section as usize].name) {
                pin = Some(Pin::SpecialSection);
            } else if self.pieces.without_size.contains(&p.start) {
                set_pin(&mut pin, Pin::NoSize);
            }
            let cie = p.fde.map(|f| &self.eh.cies[self.eh.fdes[f as usize].cie]);
            if cie.is_some_and(|cie| cie.signal_frame) {
                set_pin(&mut pin, Pin::SignalTrampoline);
            }
            if self.unexplained.binary_search(&(i as u32)).is_ok() {
                set_pin(&mut pin, Pin::PointerToItsInside);
            }
            let first_data = data.partition_point(|d| *d < p.start);
            if data.get(first_data).is_some_and(|d| *d < p.end) {
                set_pin(&mut pin, Pin::NotInstructions);
            }
            if self.refs.is_writable(p.start, p.end) {
                set_pin(&mut pin, Pin::Writable);
            }
            if self.refs.loaded_in(p.start, p.end).is_some() {
                set_pin(&mut pin, Pin::ChangedByLoader);
            }
            let has_distance = self.refs.has_distance_in(p.start, p.end);
            if has_distance && !I::ADDS_DISTANCES {
                set_pin(&mut pin, Pin::PositionArithmetic);
            }
            if bounded.binary_search(&p.section).is_ok() || bounds.holds(p.start, p.end) {
                set_pin(&mut pin, Pin::SectionWithBounds);
            }
            // The address of its entry stays, also where the function itself forms it.
            (pin, has_distance && I::ADDS_DISTANCES)
        });
        for (i, (pin, stays)) in judged.into_iter().enumerate() {
            self.found.pins[i] = pin;
            if stays {
                self.distant.push(self.pieces.starts[i]);
            }
        }
    }
}

/// One function for each set of pieces, with its entries, labels and reason to stay.
///
/// Where the linker kept no relocations (`kept`), an address of its own that a function forms is a label: code
/// goes on to form the old one.
fn functions(
    found: Found,
    pieces: &mut Pieces,
    cold: &FxHashSet<u64>,
    kept: bool,
) -> Vec<Function> {
    let rank = rank_of_pieces(&found, &pieces.starts, cold);
    let mut functions = found.sets.functions(&mut pieces.list, |p| rank[p as usize]);
    for f in &mut functions {
        f.pin = f
            .pieces
            .iter()
            .filter_map(|p| found.pins[*p as usize])
            .min();
        f.pointed_at = f.pieces.iter().any(|p| found.taken[*p as usize]);
        f.address_taken = f.pointed_at || f.pieces.iter().any(|p| found.exported[*p as usize]);
    }
    let of = |address: u64| {
        let i = pieces.starts.partition_point(|s| *s <= address);
        Some(pieces.list[i.checked_sub(1)?].function as usize)
    };
    for address in found.entries {
        if let Some(f) = of(address) {
            functions[f].entries.push(address);
        }
    }
    // (function, address, whether its own code forms it)
    let mut formed: Vec<(usize, u64, bool)> = Vec::new();
    for (address, from) in found.labels {
        match (of(address), from) {
            (Some(f), None) => functions[f].labels.push(address),
            (Some(f), Some(from)) => {
                let own = pieces.list[from as usize].function as usize == f;
                if own && !kept {
                    functions[f].labels.push(address)
                } else {
                    formed.push((f, address, own))
                }
            }
            (None, _) => {}
        }
    }
    postlink_parallel::map_mut(&mut functions, |_, f| {
        for p in &f.pieces[1..] {
            let start = pieces.list[*p as usize].start;
            if !cold.contains(&start) {
                f.entries.push(start);
            }
        }
        f.entries.sort_unstable();
        f.entries.dedup();
        f.labels.sort_unstable();
        f.labels.dedup();
    });
    // What code does with an address inside of a function is not known: it may add a table's entry to it. One
    // that the function's own tables of labels hold as well is a label that is jumped to.
    for (f, address, own) in formed {
        if !own || functions[f].labels.binary_search(&address).is_err() {
            set_pin(&mut functions[f].pin, Pin::AddressOfItsInsideTaken);
        }
    }
    functions
}

/// Bytes of instructions that do nothing with which a piece begins. A cold part may have one in front of a landing pad,
/// whose distance from the start would otherwise be 0, which says that there is none.
fn leading_nops<I: Isa>(elf: &Elf<'_>, piece: &Piece) -> u64 {
    const FEW: u64 = 16;
    let len = (piece.end - piece.start).min(FEW);
    let bytes = elf.bytes_at(piece.start, len).unwrap_or_default();
    let mut behind = piece.start;
    I::sweep(bytes, piece.start, |insn| {
        let is_nop = insn.traits.nop && insn.flow == postlink_isa::Flow::Next;
        behind = if is_nop { insn.end() } else { behind };
        is_nop
    });
    behind - piece.start
}

/// How likely a piece is to be the one with its function's entry: the lowest rank is the likeliest. Parts that the
/// compiler split off often come first in a file, and a stripped file does not name them: control enters a
/// function where it is called, or where something points to.
fn rank_of_pieces(found: &Found, starts: &[u64], cold: &FxHashSet<u64>) -> Vec<u8> {
    let known = found.taken.iter().zip(&found.exported);
    let mut entered: Vec<bool> = known.map(|(taken, exported)| *taken || *exported).collect();
    for entry in &found.entries {
        if let Ok(piece) = starts.binary_search(entry) {
            entered[piece] = true;
        }
    }
    let rank = |(i, start)| match (cold.contains(start), found.midway[i], entered[i]) {
        (true, _, _) => 3,
        (false, true, _) => 2,
        (false, false, false) => 1,
        (false, false, true) => 0,
    };
    starts.iter().enumerate().map(rank).collect()
}

/// Whether a pointer to the end of a function is beside one to its inside: in a table of absolute addresses,
/// where compilers let entries that cannot be reached lead to the end.
fn in_a_table(refs: &Refs, pointer: &Pointer, pieces: &Pieces) -> bool {
    let of = pointer.target.checked_sub(1).and_then(|a| pieces.at(a));
    let beside = [pointer.place.wrapping_sub(8), pointer.place.wrapping_add(8)];
    of.is_some()
        && beside.into_iter().any(|place| {
            let at = refs.pointers.binary_search_by_key(&place, |p| p.place);
            at.is_ok_and(|at| pieces.at(refs.pointers[at].target) == of)
        })
}

/// How far in front of a function its instructions for patching may begin.
const PATCHED_IN_FRONT: u64 = 256;

/// Places in code whose instructions are overwritten, or which the program counter is compared with, while
/// the program runs: what compilers list in sections of their own for tracers, live patching and restartable
/// sequences.
fn patched_at_run_time(elf: &Elf<'_>, refs: &Refs) -> impl Iterator<Item = u64> + use<> {
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
    let words = (!refs.kept).then(|| words_of_lists(elf, &ranges));
    // Of each list the part of what is sorted by place.
    let pointers = |&(start, end): &(u64, u64)| {
        let from = refs.pointers.partition_point(|p| p.place < start);
        let own = refs.pointers[from..].iter();
        own.take_while(move |p| p.place < end).map(|p| p.target)
    };
    let relative = |&(start, end): &(u64, u64)| {
        let own = [(&refs.relative32, 4), (&refs.relative64, 8)].map(|(places, width)| {
            let from = places.partition_point(|p| *p < start);
            let own = places[from..].iter().take_while(move |p| **p < end);
            own.map(move |place| (*place, width))
        });
        own.into_iter().flatten().filter_map(move |(place, width)| {
            let value = Refs::relative_value(elf, place, width)?;
            Some(place.wrapping_add(value))
        })
    };
    let pointers = ranges.iter().flat_map(pointers);
    let known: Vec<u64> = pointers.chain(ranges.iter().flat_map(relative)).collect();
    known.into_iter().chain(words.into_iter().flatten())
}

/// Whatever words of lists could mean, where no relocation says which of them are addresses, or distances from
/// their own places.
fn words_of_lists(elf: &Elf<'_>, ranges: &[(u64, u64)]) -> Vec<u64> {
    let mut found = Vec::new();
    for &(start, end) in ranges {
        for place in (start..end).step_by(4) {
            found.extend(elf.u64_at(place));
            for width in [4, 8] {
                let value = Refs::relative_value(elf, place, width);
                found.extend(value.map(|value| place.wrapping_add(value)));
            }
        }
    }
    found
}

/// Sections of code, by index, of which symbols `__start_NAME` and `__stop_NAME` tell where they begin and
/// end: linkers make those for names that are identifiers of C. A program compares program counters with
/// them.
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

fn set_pin(pin: &mut Option<Pin>, new: Pin) {
    *pin = Some(pin.map_or(new, |old| old.min(new)));
}

/// Stubs of the procedure linkage table by address, and the slots they jump through.
fn imports<I: Isa>(elf: &Elf<'_>, refs: &Refs) -> FxHashMap<u64, u32> {
    let slots = refs.import_slots.iter();
    let lasting = slots.filter(|(slot, _)| refs.lasting_import_at(*slot).is_some());
    let mut map: FxHashMap<u64, u32> = lasting.copied().collect();
    library::stubs::<I>(elf, |start, slot| {
        map.extend(refs.lasting_import_at(slot).map(|symbol| (start, symbol)));
    });
    map
}
