//! Unwind and exception tables of the new code.
//!
//! Exception tables come first, since unwind entries point to them. Then all entries of the file are written
//! anew, old and new ones, with a table for searching: a merged `.eh_frame`.

use postlink_elf::unwind::eh_frame::{self, NewFde};
use postlink_elf::unwind::lsda::CallSite;
use postlink_elf::write::{NewKind, NewSection, Placed, Writer};
use postlink_elf::{InputAddr, OutputAddr};
use postlink_isa::Isa;
use rustc_hash::FxHashMap;

use super::place::Placement;
use super::ready::Ready;
use super::routines::{KnownRecorders, RoutineAt, RoutineCie};
use crate::analyse::{FunctionUnwind, Rows};
use crate::discover::Program;
use crate::emit::FragmentUnwind;
use crate::error::Error;

/// A stretch of new code that has an unwind entry.
struct Part<'r> {
    /// Position of its function in the list of ready functions.
    position: usize,
    /// Address.
    start: OutputAddr,
    /// Bytes.
    len: u64,
    info: &'r FragmentUnwind,
    /// The function was taken back: there is space for the entry, and nothing else.
    taken_back: bool,
}

/// Adds a read-only section, anywhere.
pub fn read_only(writer: &mut Writer<'_>, name: &str, size: u64, align: u64) -> Placed {
    writer.append_anywhere(NewSection {
        name: name.into(),
        kind: NewKind::ReadOnly,
        align,
        size,
    })
}

impl Placement {
    /// Writes unwind tables for all fragments, recorders, and these routines: new exception tables, then a merged
    /// `.eh_frame` with its search table.
    pub fn unwind<I: Isa>(
        &self,
        program: &Program<'_>,
        ready: &[Ready],
        routines: &[RoutineAt],
        writer: &mut Writer<'_>,
    ) -> Result<(), Error> {
        if program.eh.fdes.is_empty() {
            return self.unwind_routines::<I>(program, ready, routines, writer);
        }
        let parts: Vec<Part<'_>> = postlink_parallel::flat_map_range(ready.len(), |position| {
            let stretches = (0..2).flat_map(move |f| self.stretches(ready, position, f));
            stretches.filter_map(move |(start, len, info)| {
                Some(Part {
                    position,
                    start,
                    len,
                    info: info?,
                    taken_back: ready[position].taken_back,
                })
            })
        });
        let tables = self.exception_tables(program, ready, &parts, writer)?;
        // Those of functions that were taken back come last: there is space for them, and nothing else.
        let moves = |part: &&(usize, &Part<'_>)| !part.1.taken_back;
        let (moving, empty): (Vec<_>, Vec<_>) = parts.iter().enumerate().partition(|p| moves(&p));
        let entry = |(p, part): &(usize, &Part<'_>)| NewFde {
            cie: part.info.cie,
            start: part.start.get(),
            len: part.len,
            lsda: tables.get(p).map(|at| at.get()),
            instructions: part.info.instructions.clone(),
        };
        let cie = RoutineCie::of::<I>(&program.eh)?;
        let (added, empty_recorders) = self.added_entries::<I>(ready, routines, &cie)?;
        let mut new: Vec<NewFde> = postlink_parallel::map(&moving, entry);
        new.extend(added);
        let moving = new.len();
        new.extend(empty.iter().map(entry));
        new.extend(empty_recorders);
        let with_own = cie.added_to(&program.eh).filter(|_| {
            let mut used = new.iter();
            used.any(|fde| fde.cie >= program.eh.cies.len())
        });
        let old = with_own.as_ref().unwrap_or(&program.eh);
        self.merged_frames(program, old, &new, moving, writer)
    }

    /// Writes unwind tables for recorders and routines alone, where the program has no entries.
    fn unwind_routines<I: Isa>(
        &self,
        program: &Program<'_>,
        ready: &[Ready],
        routines: &[RoutineAt],
        writer: &mut Writer<'_>,
    ) -> Result<(), Error> {
        let mut eh = eh_frame::EhFrame {
            bases: program.eh.bases,
            ..eh_frame::EhFrame::default()
        };
        let cie = RoutineCie::of::<I>(&eh)?;
        eh.cies.push(cie.cie().clone());
        let (mut new, empty) = self.added_entries::<I>(ready, routines, &cie)?;
        let moving = new.len();
        new.extend(empty);
        if new.is_empty() || !writer.has_search_table() {
            return Ok(());
        }
        let (size, searched) = eh_frame::merged_sizes(&eh, &new);
        let search = read_only(writer, ".eh_frame_hdr.entries", searched, 4);
        let entries = read_only(writer, ".eh_frame.entries", size, 8);
        // For the others there is space.
        let new = new.get(..moving).unwrap_or(&new);
        let (len, table_len) = eh_frame::merged_sizes(&eh, new);
        let (mut bytes, mut table) = (vec![0; len as usize], vec![0; table_len as usize]);
        eh_frame::write_merged(
            &eh,
            new,
            entries.addr.get(),
            &mut bytes,
            search.addr.get(),
            &mut table,
        )?;
        bytes.resize(size as usize, 0);
        table.resize(searched as usize, 0);
        writer.contents(entries.id).copy_from_slice(&bytes);
        writer.contents(search.id).copy_from_slice(&table);
        writer.add_search_table(search.id);
        Ok(())
    }

    /// Writes exception tables, and gives their addresses by part.
    fn exception_tables(
        &self,
        program: &Program<'_>,
        ready: &[Ready],
        parts: &[Part<'_>],
        writer: &mut Writer<'_>,
    ) -> Result<FxHashMap<usize, OutputAddr>, Error> {
        let with: Vec<usize> = (0..parts.len())
            .filter(|p| parts[*p].info.call_sites.is_some())
            .collect();
        let mut tables: FxHashMap<usize, OutputAddr> = FxHashMap::default();
        if with.is_empty() {
            return Ok(tables);
        }
        let encode = |p: usize, at: OutputAddr| self.exception_table(program, ready, &parts[p], at);
        // Sizes depend on the place only modulo eight.
        let sections = self.sections.iter().flatten().flatten();
        let near = sections.map(|s| s.addr).max().unwrap_or_default();
        let near = OutputAddr::new(near.get() & !0xfff);
        let sizes: Vec<u64> =
            postlink_parallel::map(&with, |x| encode(*x, near).map(|b| b.len() as u64))
                .into_iter()
                .collect::<Result<_, Error>>()?;
        let mut offsets = Vec::with_capacity(sizes.len());
        let mut at = 0u64;
        for s in &sizes {
            offsets.push(at);
            at = (at + s).next_multiple_of(8);
        }
        let placed = read_only(writer, ".gcc_except_table.hot", at, 8);
        let encoded: Vec<Vec<u8>> =
            postlink_parallel::map_range(with.len(), |i| encode(with[i], placed.addr + offsets[i]))
                .into_iter()
                .collect::<Result<_, Error>>()?;
        let out = writer.contents(placed.id);
        for ((x, o), e) in with.iter().zip(&offsets).zip(&encoded) {
            let place = out
                .get_mut(*o as usize..*o as usize + e.len())
                .ok_or_else(|| Error::internal("exception table changed size"))?;
            place.copy_from_slice(e);
            tables.insert(*x, placed.addr + *o);
        }
        Ok(tables)
    }

    /// The exception table of a part, to be at `at`.
    fn exception_table(
        &self,
        program: &Program<'_>,
        ready: &[Ready],
        part: &Part<'_>,
        at: OutputAddr,
    ) -> Result<Vec<u8>, Error> {
        let function = ready[part.position].function as usize;
        let unwind = FunctionUnwind::read(program, function, Rows::Unread)
            .ok()
            .flatten();
        let Some((table, pad_base)) = unwind.as_ref().and_then(|u| u.table()) else {
            return Ok(Vec::new());
        };
        let sites: Vec<CallSite> = part
            .info
            .call_sites
            .iter()
            .flatten()
            .map(|c| CallSite {
                start: (part.start + u64::from(c.start)).get(),
                len: u64::from(c.len),
                landing_pad: c
                    .landing_pad
                    .map(|b| self.block(ready, part.position, b).get()),
                action: c.action,
            })
            .collect();
        let (start, at) = (part.start.get(), at.get());
        Ok(table.encode_with(&sites, start, at, pad_base, part.info.numbers)?)
    }

    /// Entries of functions' recorders and of routines; and those of recorders of functions that were taken back.
    fn added_entries<I: Isa>(
        &self,
        ready: &[Ready],
        routines: &[RoutineAt],
        cie: &RoutineCie<'_>,
    ) -> Result<(Vec<NewFde>, Vec<NewFde>), Error> {
        let with: Vec<usize> = (0..ready.len()).filter(|i| self.sizes[*i][2] > 0).collect();
        let entries = postlink_parallel::map_with(&with, KnownRecorders::default, |known, i| {
            let frames = known.frames_of::<I>(&ready[*i])?;
            let len = ready[*i].recorders.bytes.len() as u64;
            cie.entry::<I>(self.recorder_at[*i], len, &frames)
        });
        let (mut moving, mut empty) = (Vec::new(), Vec::new());
        for (i, entry) in with.iter().zip(entries) {
            let list = if ready[*i].taken_back {
                &mut empty
            } else {
                &mut moving
            };
            list.push(entry?);
        }
        for routine in routines {
            let len = u64::from(routine.frames.end);
            moving.push(cie.entry::<I>(routine.start, len, &routine.frames)?);
        }
        Ok((moving, empty))
    }

    /// Writes all old unwind entries, and so many of the new ones; for the rest there is space.
    fn merged_frames(
        &self,
        program: &Program<'_>,
        old: &eh_frame::EhFrame<'_>,
        new: &[NewFde],
        moving: usize,
        writer: &mut Writer<'_>,
    ) -> Result<(), Error> {
        // What was where other code is now has no entry any more.
        let mut without = None;
        if !self.reused_bodies.is_empty() {
            let gone = |fde: &eh_frame::Fde<'_>| {
                let start = InputAddr::new(fde.start);
                self.reused_bodies.binary_search(&start).is_ok()
            };
            let mut eh = old.clone();
            eh.fdes.retain(|fde| !gone(fde));
            without = Some(eh);
        }
        let old = without.as_ref().unwrap_or(old);
        let (frame_size, hdr_size) = eh_frame::merged_sizes(old, new);
        // What is registered at the start needs no table for searching.
        let hdr = (!program.refs.registration_follows())
            .then(|| read_only(writer, ".eh_frame_hdr", hdr_size, 4));
        let frame = read_only(writer, ".eh_frame", frame_size, 8);
        let new = new.get(..moving).unwrap_or(new);
        let (frame_len, hdr_len) = eh_frame::merged_sizes(old, new);
        let mut hdr_bytes = vec![0; hdr_len as usize];
        let place = writer.contents(frame.id).get_mut(..frame_len as usize);
        eh_frame::write_merged(
            old,
            new,
            frame.addr.get(),
            place.unwrap_or_default(),
            hdr.map_or(frame.addr, |hdr| hdr.addr).get(),
            &mut hdr_bytes,
        )?;
        hdr_bytes.resize(hdr_size as usize, 0);
        if let Some(hdr) = hdr {
            writer.contents(hdr.id).copy_from_slice(&hdr_bytes);
        }
        writer.replace_unwind(frame.id, hdr.map(|hdr| hdr.id));
        let _ = self.frames.1.set(frame.addr); // The first time.
        Ok(())
    }
}
