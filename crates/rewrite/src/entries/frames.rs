//! Unwinding through counters at entries ([`crate::entries`]), without a table of unwind entries that grows.
//!
//! A search table (`.eh_frame_hdr`) has no space for another entry, and a new one would cost eight bytes for
//! each function of the program. So entries that are there are made to say more:
//!
//! * A function with a counter in the padding in front of it begins earlier: first address, length and the
//!   first advance of its unwind entry change by the store's length, in place, and the address in the search
//!   table. That needs an entry without exception table (whose call sites count from the first address) and a
//!   first advance with space for the sum.
//! * The last entry of the search table is replaced by one that continues to the end of the stubs after the old
//!   code: the same rows for its function, then nothing to unwind to for what is between, then the rows of
//!   the stubs, in one place or two, and of the routines that note first calls. Only one word of the search table
//!   changes. If its function has an exception table, the new entry has one which says the same of that, and that
//!   exceptions pass what is behind.
//!
//! A program that has no search table, as its start-up code registers its entries, or that has no entries at all, gets
//! one for stubs and routines alone, and the program header that tells of it ([`OwnTable`]): who looks for an address
//! that registered entries say nothing of goes on to look there.
//!
//! Rows of stubs: at a stub's first instruction that of a function's entry, at its counter that row for where the stack
//! pointer is; at an instruction that was overwritten those that it had. Nothing to unwind to if it had none, or one
//! with another return address register or another kind of signature than the last entry, as some functions in assembly
//! have.

use postlink_elf::OutputAddr;
use postlink_elf::raw::PF_X;
use postlink_elf::unwind::eh_frame::{Cie, EhFrame, Fde, NewFde, merged_sizes, write_merged};
use postlink_elf::unwind::lsda::{CallSite, Numbers};
use postlink_elf::unwind::rows::{self, Lowered, RegRule, Row, lowered};
use postlink_isa::coverage::Covers;
use postlink_isa::{RegSet, StackMove};
use smallvec::SmallVec;

use super::stubs::Stubs;
use crate::discover::{Piece, Program, lsda_of, personality};
use crate::error::Error;
use crate::link::{RoutineAt, RoutineCie};

/// A search table that can be changed in place.
pub struct Search {
    addr: u64,
    /// (first address, address of the word for it, unwind entry), ascending.
    table: Vec<(u64, u64, u64)>,
    /// Index in [`EhFrame::fdes`] of what the last entry names.
    last: usize,
}

/// Stubs that are to be described.
#[derive(Clone, Copy, Debug)]
pub struct Described<'a> {
    /// Where they are. The second place is after the first.
    pub places: Stubs,
    /// Bytes of all of them, at least one.
    pub len: u64,
    /// The routines that their counters call.
    pub routines: Option<&'a RoutineAt>,
}

/// A stretch that is described.
enum Stretch<'a> {
    /// Stubs, from one offset to another.
    Stubs(u64, u64),
    Routines(&'a RoutineAt),
}

/// The stub of a function, and the function's instructions in it. Offsets count from the first stub.
pub struct StubOf {
    /// The function.
    pub function: u32,
    /// First byte of the stub.
    pub from: u64,
    /// Where its counter has the stack pointer. Offsets count from the stub.
    pub stack: Vec<StackMove>,
    /// Place in the stub, and the place in the function whose row holds there.
    pub moved: Vec<(u64, u64)>,
    /// One past the stub.
    pub to: u64,
}

impl Search {
    /// Reads the table; `None` if it is not of the form that all linkers write, or its last entry is not understood.
    pub fn read<I: Covers>(program: &Program<'_>) -> Option<Search> {
        use postlink_elf::raw::PT_GNU_EH_FRAME;
        let elf = program.elf;
        let segment = elf.segments.iter().find(|s| s.kind == PT_GNU_EH_FRAME)?;
        let head = elf.bytes_at(segment.addr, 12)?;
        // Version 1; encodings of the table's address, of the number of entries and of these.
        if head[..4] != [1, 0x1b, 0x03, 0x3b] {
            return None;
        }
        let count = u64::from(u32::from_le_bytes(head[8..12].try_into().ok()?));
        if count == 0 || count > segment.file_size / 8 {
            return None;
        }
        let words = elf.bytes_at(segment.addr + 12, count * 8)?;
        let table: Vec<(u64, u64, u64)> = words
            .chunks_exact(8)
            .zip((segment.addr + 12..).step_by(8))
            .map(|(entry, place)| {
                let word = |at: usize| {
                    i32::from_le_bytes([entry[at], entry[at + 1], entry[at + 2], entry[at + 3]])
                };
                let from = |value: i32| segment.addr.wrapping_add_signed(i64::from(value));
                (from(word(0)), place, from(word(4)))
            })
            .collect();
        if !table.is_sorted_by_key(|e| e.0) {
            return None;
        }
        let &(start, _, entry) = table.last()?;
        let last = program
            .eh
            .fdes
            .iter()
            .position(|f| f.addr == entry && f.start == start && f.len > 0)?;
        let fde = &program.eh.fdes[last];
        let cie = &program.eh.cies[fde.cie];
        if cie.signal_frame
            || program
                .eh
                .fdes
                .iter()
                .any(|f| f.start > fde.start && f.len > 0)
        {
            return None;
        }
        // Run-times know such code only where there is no entry. What is described is after all code.
        if returns_from_signals::<I>(program, fde.start + fde.len) {
            return None;
        }
        let (initial, rows) = (rows::initial_row(cie).ok()?, rows::rows(cie, fde).ok()?);
        // Where the return address is in a register at first, no register has a rule.
        let says_something = initial.cfa != Row::default().cfa;
        (says_something && !rows.is_empty()).then_some(Search {
            addr: segment.addr,
            table,
            last,
        })
    }

    /// Whether an exception may pass through a stub with instructions from `at`: not where the entry that describes
    /// stubs has an exception table, which says nothing of them, or cannot say what the entry at `at` says.
    pub fn exceptions_pass(&self, program: &Program<'_>, at: u64) -> bool {
        let own = program.piece_at(at).and_then(|p| p.fde);
        let own = own.map(|f| &program.eh.fdes[f as usize]);
        program.eh.fdes[self.last].lsda.is_none_or(|l| l == 0)
            && own.is_none_or(|f| self.can_describe(&program.eh.cies[f.cie], program))
    }

    /// Whether rows under `own` mean the same in the last entry.
    fn can_describe(&self, own: &Cie<'_>, program: &Program<'_>) -> bool {
        let last = &program.eh.fdes[self.last];
        mean_the_same(own, &program.eh.cies[last.cie])
    }

    /// Length of the CIE, and the new entry with it, at `addr`.
    fn entry<I: Covers>(
        &self,
        program: &Program<'_>,
        stubs: Described<'_>,
        of: &[StubOf],
        addr: u64,
    ) -> Result<(u64, Vec<u8>), Error> {
        let fde = &program.eh.fdes[self.last];
        let cie = &program.eh.cies[fde.cie];
        let initial = rows::initial_row(cie)?;
        let nowhere = without_caller(cie, &initial);
        let mut list = RowList::default();
        for (at, row) in rows::rows(cie, fde)? {
            list.push(at, row);
        }
        list.push(fde.len, nowhere.clone());
        let mut end = fde.len;
        let called = RoutineCie::of::<I>(&program.eh)?;
        let rows = StubRows {
            initial: &initial,
            at_call: self
                .can_describe(called.cie(), program)
                .then_some(called.initial()),
            nowhere: &nowhere,
        };
        for (start, len, stretch) in stretches(stubs) {
            let base = start
                .get()
                .checked_sub(fde.start)
                .filter(|base| *base >= end);
            let base = base.ok_or_else(|| {
                Error::internal(
                    "what is added has its place in front of the program's last function",
                )
            })?;
            match stretch {
                Stretch::Stubs(from, to) => {
                    let at = |offset: u64| base + (offset - from);
                    list.push(base, initial.clone());
                    let first = of.partition_point(|o| o.from < from);
                    let last = of.partition_point(|o| o.from < to);
                    let of = of.get(first..last).unwrap_or_default();
                    stub_rows::<I>(program, cie, of, at, &rows, &mut list)?;
                }
                Stretch::Routines(r) if self.can_describe(called.cie(), program) => {
                    for (at, row) in called.rows::<I>(&r.frames) {
                        list.push(base + at, row);
                    }
                }
                Stretch::Routines(_) => {}
            }
            end = base + len;
            list.push(end, nowhere.clone());
        }
        let mut new = NewFde {
            cie: 0,
            start: fde.start,
            len: end,
            lsda: fde.lsda.filter(|l| *l != 0),
            // Nothing is after the last stub.
            instructions: list.encode(cie, &initial, end)?,
        };
        let only = EhFrame {
            addr: program.eh.addr,
            bases: program.eh.bases,
            cies: vec![cie.clone()],
            fdes: Vec::new(),
        };
        let (size, header) = merged_sizes(&only, std::slice::from_ref(&new));
        // An exception table of its own is behind it.
        let padding = size.next_multiple_of(8) - size;
        let table = self.exception_table(program, end, addr + size + padding)?;
        if table.is_some() {
            new.lsda = Some(addr + size + padding);
        }
        let (mut bytes, mut unused) = (vec![0; size as usize], vec![0; header as usize]);
        write_merged(
            &only,
            std::slice::from_ref(&new),
            addr,
            &mut bytes,
            addr + size,
            &mut unused,
        )?;
        if let Some(table) = table {
            bytes.resize((size + padding) as usize, 0);
            bytes.extend(table);
        }
        Ok((cie.bytes.len() as u64, bytes))
    }

    /// The last entry's exception table at `addr` for one that ends at the offset `end`: exceptions pass what is behind
    /// its function, where without a call site they would end the program. `None`: it has none, or not all is known of
    /// it, as of the routine that reads it.
    fn exception_table(
        &self,
        program: &Program<'_>,
        end: u64,
        addr: u64,
    ) -> Result<Option<Vec<u8>>, Error> {
        let fde = &program.eh.fdes[self.last];
        let piece = program.piece_index_at(fde.start);
        let piece = piece.filter(|p| program.pieces[*p].fde == Some(self.last as u32));
        let known =
            piece.and_then(|p| Some((lsda_of(program, p).ok()??, personality(program, p)?)));
        let Some((table, routine)) = known else {
            return Ok(None);
        };
        let behind = CallSite {
            start: fde.start + fde.len,
            len: end - fde.len,
            landing_pad: None,
            action: 0,
        };
        let sites = [table.call_sites.as_slice(), &[behind]].concat();
        let (base, numbers) = (routine.pad_base, Numbers::Shortest);
        Ok(table
            .encode_with(&sites, fde.start, addr, base, numbers)
            .ok())
    }

    /// Bytes of the new entry, with its CIE.
    pub fn size<I: Covers>(
        &self,
        program: &Program<'_>,
        stubs: Described<'_>,
        of: &[StubOf],
    ) -> Result<u64, Error> {
        // What an exception table takes depends on where it is in eight bytes.
        let about = stubs.places.at(stubs.len - 1).get() & !7;
        Ok(self.entry::<I>(program, stubs, of, about)?.1.len() as u64)
    }

    /// The new entry at `addr`, and the change in the search table that makes it the last one.
    pub fn extend<I: Covers>(
        &self,
        program: &Program<'_>,
        stubs: Described<'_>,
        of: &[StubOf],
        addr: u64,
    ) -> Result<(Vec<u8>, (u64, [u8; 4])), Error> {
        let (cie, bytes) = self.entry::<I>(program, stubs, of, addr)?;
        let distance = i32::try_from((addr + cie).wrapping_sub(self.addr) as i64)
            .map_err(|_| Error::internal("the unwind entry of stubs is out of reach"))?;
        let place = self.table.last().map_or(0, |e| e.1 + 4);
        Ok((bytes, (place, distance.to_le_bytes())))
    }
}

/// What is described, ascending by address.
fn stretches(stubs: Described<'_>) -> Vec<(OutputAddr, u64, Stretch<'_>)> {
    let cut = stubs.places.first_len.min(stubs.len);
    let of_stubs = [(0, cut), (cut, stubs.len)].into_iter();
    let of_stubs = of_stubs.filter(|(from, to)| from < to).map(|(from, to)| {
        let at = stubs.places.at(from);
        (at, to - from, Stretch::Stubs(from, to))
    });
    let routines = stubs.routines.map(|r| {
        let len = u64::from(r.frames.end);
        (r.start, len, Stretch::Routines(r))
    });
    let mut all: Vec<_> = of_stubs.chain(routines).collect();
    all.sort_by_key(|stretch| stretch.0);
    all
}

/// Rows that stubs have of which no entry says anything.
struct StubRows<'r, 'd> {
    /// Between them: the row that entries begin with.
    initial: &'r Row<'d>,
    /// Where a call has come, if a row can say that.
    at_call: Option<&'r Row<'d>>,
    /// There is no caller.
    nowhere: &'r Row<'d>,
}

/// The rows of stubs; `at` gives their offsets in the new entry.
fn stub_rows<'d, I: Covers>(
    program: &Program<'d>,
    cie: &Cie<'_>,
    of: &[StubOf],
    at: impl Fn(u64) -> u64,
    known: &StubRows<'_, 'd>,
    list: &mut RowList<'d>,
) -> Result<(), Error> {
    let ra = cie.ra_register as u16;
    for o in of {
        let start = program.start(o.function as usize);
        let own = program.piece_at(start).and_then(|p| p.fde);
        let own = own.map(|f| &program.eh.fdes[f as usize]);
        let described = own.filter(|f| mean_the_same(&program.eh.cies[f.cie], cie));
        let rows = described.map(|own| rows::rows(&program.eh.cies[own.cie], own));
        let rows = rows.transpose()?.unwrap_or_default();
        let row_at = |input: u64| {
            let offset = input.wrapping_sub(own?.start);
            let k = rows.partition_point(|r| r.0 <= offset);
            Some(&rows.get(k.checked_sub(1)?)?.1)
        };
        // Not every function begins with the row of its CIE: code in assembly may be reached by a jump. A counter alone
        // in the stub of a function without an entry raises nothing.
        let first = match own {
            Some(_) => row_at(start),
            None => known.at_call.filter(|_| o.moved.is_empty()),
        };
        let at_first = first.unwrap_or(known.nowhere);
        list.push(at(o.from), at_first.clone());
        for m in o.stack.iter().filter(|_| first.is_some()) {
            let saved = (0..32u8).filter(|r| m.saved.meets(RegSet(1 << r)));
            let saved: SmallVec<[u16; 4]> = saved.map(I::unwind_register).collect();
            let row = lowered(at_first, I::UNWIND_STACK, m.down, &saved)?;
            let row = match m.link.map(I::unwind_register) {
                Some(other) => row.with_link(ra, other),
                None => row,
            };
            list.push(at(o.from + u64::from(m.at)), row);
        }
        for &(place, input) in &o.moved {
            if let Some(row) = row_at(input) {
                list.push(at(place), row.clone());
            }
        }
        list.push(at(o.to), known.initial.clone());
    }
    Ok(())
}

/// Whether rows under one common entry mean the same under another, which has a return address register and marks of
/// its own.
fn mean_the_same(own: &Cie<'_>, other: &Cie<'_>) -> bool {
    let meaning = |cie: &Cie<'_>| {
        let mark = |letter| cie.augmentation.contains(&letter);
        (cie.ra_register, cie.signal_frame, mark(b'B'), mark(b'G'))
    };
    meaning(own) == meaning(other)
}

/// A row that says that there is nobody to return to.
fn without_caller<'d>(cie: &Cie<'_>, initial: &Row<'d>) -> Row<'d> {
    let mut nowhere = initial.clone();
    let ra = cie.ra_register as u16;
    match nowhere.registers.iter_mut().find(|r| r.0 == ra) {
        Some(rule) => rule.1 = RegRule::Undefined,
        None => nowhere.registers.push((ra, RegRule::Undefined)),
    }
    nowhere.registers.sort_by_key(|r| r.0);
    nowhere
}

/// Entries for stubs and the routines that they call, for a table of their own: where the program has none that could
/// be extended.
pub struct OwnTable<'d> {
    eh: EhFrame<'d>,
    new: Vec<NewFde>,
}

impl<'d> OwnTable<'d> {
    /// What they say.
    pub fn of<I: Covers>(
        program: &Program<'d>,
        stubs: Described<'_>,
        of: &[StubOf],
    ) -> Result<OwnTable<'d>, Error> {
        let called = RoutineCie::of::<I>(&program.eh)?;
        let cie = called.cie();
        let initial = rows::initial_row(cie)?;
        let nowhere = without_caller(cie, &initial);
        let of_stubs = StubRows {
            initial: &initial,
            at_call: Some(called.initial()),
            nowhere: &nowhere,
        };
        let mut new = Vec::new();
        for (start, len, stretch) in stretches(stubs) {
            let entry = match stretch {
                Stretch::Routines(r) => called.entry::<I>(start, len, &r.frames)?,
                Stretch::Stubs(from, to) => {
                    let first = of.partition_point(|o| o.from < from);
                    let last = of.partition_point(|o| o.from < to);
                    let of = of.get(first..last).unwrap_or_default();
                    let mut list = RowList::default();
                    list.push(0, initial.clone());
                    let at = |offset: u64| offset - from;
                    stub_rows::<I>(program, cie, of, at, &of_stubs, &mut list)?;
                    NewFde {
                        cie: 0,
                        start: start.get(),
                        len,
                        lsda: None,
                        instructions: list.encode(cie, &initial, len)?,
                    }
                }
            };
            new.push(NewFde { cie: 0, ..entry });
        }
        Ok(OwnTable {
            eh: EhFrame {
                addr: 0,
                bases: program.eh.bases,
                cies: vec![cie.clone()],
                fdes: Vec::new(),
            },
            new,
        })
    }

    /// Sizes of entries and of the search table.
    pub fn sizes(&self) -> (u64, u64) {
        merged_sizes(&self.eh, &self.new)
    }

    /// Both, at their addresses.
    pub fn write(&self, at: OutputAddr, search: OutputAddr) -> Result<(Vec<u8>, Vec<u8>), Error> {
        let (size, searched) = self.sizes();
        let (mut entries, mut table) = (vec![0; size as usize], vec![0; searched as usize]);
        write_merged(
            &self.eh,
            &self.new,
            at.get(),
            &mut entries,
            search.get(),
            &mut table,
        )?;
        Ok((entries, table))
    }
}

/// Whether there is code that returns from a signal handler from `start` on.
fn returns_from_signals<I: Covers>(program: &Program<'_>, start: u64) -> bool {
    let elf = program.elf;
    let code = elf.loads().filter(|s| s.flags & PF_X != 0);
    code.filter_map(|s| {
        let skipped = start.saturating_sub(s.addr).min(s.file_size);
        elf.bytes_at(s.addr + skipped, s.file_size - skipped)
    })
    .any(|bytes| {
        let mut windows = bytes.windows(I::SIGNAL_RETURN.len());
        windows.any(|w| w == I::SIGNAL_RETURN)
    })
}

/// Rows by offset, ascending. Most stubs have the same few rows, so those that came first are kept once.
#[derive(Default)]
struct RowList<'d> {
    distinct: Vec<Lowered<'d>>,
    /// Offsets, and places among these.
    list: Vec<(u64, usize)>,
}

/// Rows that are looked through for one that is the same.
const COMMON: usize = 64;

impl<'d> RowList<'d> {
    /// Appends a row unless it repeats the last one; a row at the same offset replaces it.
    fn push(&mut self, offset: u64, row: impl Into<Lowered<'d>>) {
        let row = row.into();
        self.list.pop_if(|last| last.0 == offset);
        let last = self.list.last().map(|last| last.1);
        if last.is_some_and(|last| self.distinct[last] == row) {
            return;
        }
        let mut common = self.distinct.iter().take(COMMON);
        let place = common.position(|known| *known == row);
        let place = place.unwrap_or(self.distinct.len());
        if place == self.distinct.len() {
            self.distinct.push(row);
        }
        self.list.push((offset, place));
    }

    /// Call frame instructions for the rows in front of an offset.
    fn encode(&self, cie: &Cie<'_>, initial: &Row<'_>, end: u64) -> Result<Vec<u8>, Error> {
        let rows: Vec<Row<'_>> = self.distinct.iter().map(Lowered::row).collect();
        let list = self.list.iter().filter(|(offset, _)| *offset < end);
        let list: Vec<(u64, &Row<'_>)> = list.map(|(at, place)| (*at, &rows[*place])).collect();
        Ok(rows::encode(cie, &initial.shared(), &list)?)
    }
}

/// An unwind entry that begins earlier: what changes.
pub struct Shift {
    patches: Vec<(u64, Vec<u8>)>,
}

impl Shift {
    /// What it takes to let a piece's unwind entry begin `by` bytes earlier; nothing if it has none. `None`:
    /// it cannot be.
    pub fn of(
        program: &Program<'_>,
        search: Option<&Search>,
        piece: &Piece,
        by: u64,
    ) -> Option<Shift> {
        let mut patches = Vec::new();
        let Some(index) = piece.fde else {
            return Some(Shift { patches });
        };
        let search = search?;
        let (fde, mut same) = (&program.eh.fdes[index as usize], 0);
        let first = program.eh.fdes.partition_point(|f| f.start < piece.start);
        program.eh.fdes[first..]
            .iter()
            .take_while(|f| f.start == piece.start)
            .for_each(|_| same += 1);
        let cie = &program.eh.cies[fde.cie];
        let simple = fde.start == piece.start
            && same == 1
            && index as usize != search.last
            && fde.lsda.is_none_or(|l| l == 0)
            && cie.fde_encoding == 0x1b
            && cie.code_align == 1
            && !cie.signal_frame
            && is_short(fde);
        let at = search
            .table
            .binary_search_by_key(&piece.start, |e| e.0)
            .ok()?;
        let (_, place, entry) = search.table[at];
        if !simple || entry != fde.addr {
            return None;
        }
        let earlier = |place: u64| {
            let word = i32::from_le_bytes(program.elf.bytes_at(place, 4)?.try_into().ok()?);
            Some((place, word.checked_sub(by as i32)?.to_le_bytes().to_vec()))
        };
        patches.push(earlier(place)?);
        patches.push(earlier(fde.addr + 8)?);
        let len = u32::try_from(fde.len + by).ok()?;
        patches.push((fde.addr + 12, len.to_le_bytes().to_vec()));
        patches.extend(advance(fde, by)?);
        Some(Shift { patches })
    }

    /// Bytes to be written.
    pub fn patches(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.patches.iter().map(|(at, bytes)| (*at, &bytes[..]))
    }
}

/// The 32-bit form, with the fields where they are expected.
fn is_short(fde: &Fde<'_>) -> bool {
    fde.bytes.get(..4).is_some_and(|length| length != [0xff; 4]) && fde.bytes.len() >= 17
}

/// The first advance, made longer by `by`: nothing to do if the entry has no instructions.
fn advance(fde: &Fde<'_>, by: u64) -> Option<Option<(u64, Vec<u8>)>> {
    const NOP: u8 = 0;
    const ADVANCE_LOC: u8 = 0x40;
    const ADVANCE_LOC1: u8 = 0x02;
    let bytes = fde.instructions;
    let Some(first) = bytes.iter().position(|b| *b != NOP) else {
        return Some(None);
    };
    let place = fde.instructions_addr() + first as u64;
    let longer = |old: u8, most: u64| {
        u8::try_from(u64::from(old) + by)
            .ok()
            .filter(|n| u64::from(*n) <= most)
    };
    match bytes[first] {
        op if op & 0xc0 == ADVANCE_LOC => {
            let delta = longer(op & 0x3f, 0x3f)?;
            Some(Some((place, vec![ADVANCE_LOC | delta])))
        }
        ADVANCE_LOC1 => {
            let delta = longer(*bytes.get(first + 1)?, 0xff)?;
            Some(Some((place + 1, vec![delta])))
        }
        _ => None,
    }
}
