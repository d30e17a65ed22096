//! An instrumented program that was written, without some of its functions.
//!
//! A function that the checker refused stays where it was, and its place in new code stays empty: so nothing else
//! moves. Of a large program nearly every byte is then what it was, and the file is changed where it is, instead of
//! being linked once more:
//!
//! | what | becomes |
//! |---|---|
//! | the function's fragments and recorders | padding |
//! | fields of other new code that lead to it | the address of its old entry |
//! | the jump at its old entry, entries of its tables | what the input has there |
//! | its unwind entries | padding of those in front of them |
//! | its symbols, its place in the note | they are the input's; it is gone |
//!
//! All else is the same by construction: addresses depend on sizes, which stay. Linked once more, the program would be
//! the same file but for the unwind table, which would have no such padding. A function with something that is not
//! in this list, or a program with veneers, is linked once more. So is a file that has other code by now: all of it is
//! compared by digests, as when functions are unpacked.

use std::path::Path;

use postlink_elf::note::Note;
use postlink_elf::unwind::without::{entries_as_padding, search_table_without};
use postlink_elf::write::{Changes, NewId, WriteSummary, Written};
use postlink_elf::{InputAddr, OutputAddr};
use postlink_isa::{Code, Isa};
use rustc_hash::FxHashSet;

use super::packed::Packed;
use super::place::Placement;
use super::ready::ReadyFunction;
use super::references::jump_at_entry;
use crate::analyse::{EntryPatch, Target};
use crate::discover::Program;
use crate::error::Error;

/// A program that was linked and written.
pub struct Linked<'d> {
    written: Written<'d>,
    note: NewId,
    /// The unwind table and its search table: address and bytes.
    unwind: [(OutputAddr, u64); 2],
    /// By position: addresses of fragments and of recorders, and the bytes of each.
    places: Vec<[(OutputAddr, u32); 3]>,
    /// Functions that it does not have, by their entries.
    without: FxHashSet<u64>,
}

/// A function that is taken out.
pub struct TakenOut {
    /// Its number.
    pub function: u32,
    /// Sites that had a recorder.
    pub sites: u64,
    /// Its places in new code: address and bytes.
    pub places: [(OutputAddr, u32); 3],
}

impl TakenOut {
    /// Whether an address was in its new code.
    pub fn had(&self, addr: u64) -> bool {
        let mut places = self.places.iter();
        places.any(|(at, len)| addr.wrapping_sub(at.get()) < u64::from(*len))
    }
}

/// What is found of a function that is looked at.
enum Found {
    /// Bytes of a function's new code are others: its position, and their address.
    Field(usize, OutputAddr, Vec<u8>),
    /// A function that is taken out, by its position, and entries of its tables: address and bytes.
    Gone(usize, TakenOut, Vec<(u64, u64)>),
    /// One that has something that there is no other way for than to link once more.
    Unfit,
    /// A field does not reach.
    Failed(Error),
}

impl<'d> Linked<'d> {
    /// `without`: functions that were taken back before. `None`: the program must be linked once more if something is
    /// to change.
    pub fn new<I: Isa>(
        program: &Program<'_>,
        written: Written<'d>,
        (note, placed): (NewId, &Placement),
        without: &FxHashSet<u64>,
    ) -> Option<Self> {
        let near = program.new_end.saturating_sub(program.elf.extent().0) < I::BRANCH_REACH;
        let registers = program.refs.registered_frames.is_some();
        let in_old_bodies = !placed.reused_bodies.is_empty() || !placed.folded.is_empty();
        let Some([Some(frames), Some(search)]) = written.unwind() else {
            return None;
        };
        if !near || registers || in_old_bodies {
            return None;
        }
        let sizes = placed.sizes.iter().zip(&placed.fragments);
        let places = sizes.zip(&placed.recorder_at);
        let places = places.map(|(([hot, cold, recorders], at), recorder_at)| {
            [(at[0], *hot), (at[1], *cold), (*recorder_at, *recorders)]
        });
        Some(Linked {
            written,
            note,
            unwind: [frames, search],
            places: places.collect(),
            without: without.clone(),
        })
    }

    /// Takes functions out of the file that were taken back, by their entries, if it has them. `patches` are the jumps
    /// at old entries of functions that move, and of others. `None`: it is to be linked once more, and nothing was
    /// changed.
    ///
    /// # Errors
    ///
    /// A field that does not reach; a file that cannot be read or written.
    pub fn take_out<I: Isa>(
        &mut self,
        program: &Program<'_>,
        packed: &mut Packed,
        patches: [&[EntryPatch]; 2],
        taken_back: &FxHashSet<u64>,
        (path, mode): (&Path, u32),
    ) -> Result<Option<(WriteSummary, Vec<TakenOut>)>, Error> {
        let functions = &(taken_back - &self.without);
        let look = |position, ready: &ReadyFunction, bytes: [&[u8]; 2], found: &mut Vec<Found>| {
            self.look::<I>(program, functions, (position, ready), bytes, found);
        };
        let numbers = functions.iter().filter_map(|entry| {
            let piece = program.piece_at(*entry)?;
            Some((piece.function, *entry))
        });
        let numbers: Vec<(u32, u64)> = numbers.collect();
        let Some(found) = packed.look(&numbers, look) else {
            return Ok(None);
        };
        let mut changes = Changes::default();
        let (mut positions, mut gone) = (Vec::new(), Vec::new());
        for found in found {
            match found {
                Found::Field(position, at, bytes) => {
                    self.written.put(&mut changes, at, bytes);
                    positions.push(position);
                }
                Found::Gone(position, taken_out, entries) => {
                    for (place, len) in entries {
                        self.written
                            .restore(&mut changes, InputAddr::new(place), len)?;
                    }
                    positions.push(position);
                    gone.push(taken_out);
                }
                Found::Unfit => return Ok(None),
                Found::Failed(error) => return Err(error),
            }
        }
        if functions.is_empty()
            || gone.len() != functions.len()
            || !self.old_entries::<I>(program, patches, functions, &mut changes)?
        {
            return Ok(None);
        }
        let places = gone.iter().flat_map(|g| g.places);
        for (at, len) in places.filter(|place| place.1 > 0) {
            self.written
                .put(&mut changes, at, vec![I::PADDING; len as usize]);
        }
        let is_gone = |addr: u64| gone.iter().any(|g| g.had(addr));
        self.unwind(path, is_gone, &mut changes)?;
        let mut note = Note::parse(self.written.filled(self.note))?;
        note.functions.retain(|f| !functions.contains(&f.entry));
        self.written.replace(self.note, note.encode()?);
        self.written.keep_symbols(is_gone);
        let summary = self.written.write(path, mode, &changes)?;
        packed.changed(positions.into_iter());
        self.without.extend(functions);
        Ok(Some((summary, gone)))
    }

    /// What of a function is to be others, as `functions` are taken out.
    fn look<I: Isa>(
        &self,
        program: &Program<'_>,
        functions: &FxHashSet<u64>,
        (position, ready): (usize, &ReadyFunction),
        bytes: [&[u8]; 2],
        found: &mut Vec<Found>,
    ) {
        let start = program.start(ready.function as usize);
        let Some(places) = self.places.get(position) else {
            found.push(Found::Unfit);
            return;
        };
        if functions.contains(&start) {
            found.push(taken_out(position, ready, *places));
            return;
        }
        // Its place is empty.
        if self.without.contains(&start) {
            return;
        }
        let leads = |target: &Target| matches!(target, Target::Code(a) if functions.contains(a));
        if ready.recorders.fixups.iter().any(|f| leads(&f.target)) {
            found.push(Found::Unfit);
            return;
        }
        for ((fragment, bytes), (at, _)) in ready.code.fragments.iter().zip(bytes).zip(places) {
            let fields = fragment.code.fixups.iter().filter(|f| leads(&f.target));
            let mut own = None;
            let mut changed = Vec::new();
            for f in fields {
                let Target::Code(target) = f.target else {
                    continue;
                };
                // Fields may be so near to each other that one is within the longest of the other.
                let own = own.get_or_insert_with(|| bytes.to_vec());
                let place = *at + u64::from(f.at);
                let rest = own.get_mut(f.at as usize..).unwrap_or_default();
                let kept = InputAddr::new(target).kept();
                if let Err(source) = I::write_field(f.kind, rest, place.get(), kept.get()) {
                    let function = program.name(ready.function as usize);
                    found.push(Found::Failed(Error::Reach { function, source }));
                    return;
                }
                changed.push((f.at as usize, place));
            }
            let own = own.unwrap_or_default();
            found.extend(changed.into_iter().filter_map(|(from, place)| {
                let field = own.get(from..own.len().min(from + LONGEST_FIELD))?;
                Some(Found::Field(position, place, field.to_vec()))
            }));
        }
    }

    /// Old entries have no jumps. `false`: another one is so near that it may be over the same bytes.
    fn old_entries<I: Isa>(
        &self,
        program: &Program<'_>,
        [others, gone]: [&[EntryPatch]; 2],
        functions: &FxHashSet<u64>,
        changes: &mut Changes,
    ) -> Result<bool, Error> {
        let len = |patch: &EntryPatch| {
            let mut jump: Code<OutputAddr> = Code::default();
            let (entry, at) = (patch.entry.get(), patch.at.get());
            jump_at_entry::<I>(program, &mut jump, entry, at, OutputAddr::default());
            jump.bytes.len() as u64
        };
        for patch in gone.iter().filter(|p| functions.contains(&p.entry.get())) {
            let (at, end) = (patch.at.get(), patch.at.get() + len(patch));
            let near = others
                .iter()
                .filter(|p| p.at.get().abs_diff(at) < LONGEST_JUMP);
            let over = |p: &EntryPatch| p.at.get() < end && at < p.at.get() + len(p);
            if near.copied().any(|p| over(&p)) {
                return Ok(false);
            }
            self.written.restore(changes, patch.at, end - at)?;
        }
        Ok(true)
    }

    /// Leaves out entries of the unwind table. The others stay where they are.
    fn unwind(
        &self,
        path: &Path,
        is_gone: impl Fn(u64) -> bool,
        changes: &mut Changes,
    ) -> Result<(), Error> {
        let [(frames, len), (search, search_len)] = self.unwind;
        let table = self.written.read(path, search, search_len)?;
        let (mut changed, gone) = search_table_without(&table, search.get(), is_gone)?;
        if let Some(last) = gone.last() {
            // Up to the length of the last entry that is taken out.
            let end = last.wrapping_sub(frames.get()).saturating_add(4).min(len);
            let bytes = self.written.read(path, frames, end)?;
            changed.extend(entries_as_padding(&bytes, frames.get(), &gone)?);
        }
        for (at, bytes) in changed {
            self.written.put(changes, OutputAddr::new(at), bytes);
        }
        Ok(())
    }
}

/// No field is longer.
const LONGEST_FIELD: usize = 8;

/// No jump at an old entry is longer.
const LONGEST_JUMP: u64 = 32;

/// A function that is taken out.
fn taken_out(position: usize, ready: &ReadyFunction, places: [(OutputAddr, u32); 3]) -> Found {
    let unfit = !ready.secondary_entries.is_empty()
        || !ready.anchored_targets.is_empty()
        || !ready.own_tables.is_empty()
        || !ready.address_taken.is_empty()
        || !ready.splits.is_empty()
        || !ready.code.external_entries.is_empty()
        || !ready.code.fallbacks.is_empty();
    if unfit {
        return Found::Unfit;
    }
    let with_base = ready.table_entries.iter().filter(|t| t.base.is_some());
    let width = |width| if width == 8 { 8 } else { 4 };
    let entries = with_base.map(|t| (t.place, width(t.width))).collect();
    let sites = ready.recorder_offsets.iter().filter(|o| **o != u32::MAX);
    let taken_out = TakenOut {
        function: ready.function,
        sites: sites.count() as u64,
        places,
    };
    Found::Gone(position, taken_out, entries)
}
