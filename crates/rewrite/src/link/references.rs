//! What refers to moved functions from outside of new code: old entries, jump tables, pointers, code that stays.

use postlink_elf::write::Writer;
use postlink_elf::{InputAddr, OutputAddr};
use postlink_isa::{Code, FixupKind, Isa, Reach};
use rustc_hash::FxHashSet;

use super::place::{Placement, fill};
use super::ready::{Ready, by_function, moving, moving_with};
use crate::analyse::{EntryPatch, put_entry};
use crate::discover::{Pointer, Program, Stored};
use crate::error::Error;

/// What is at `at` for the old entry `entry` of a function whose new one is `new`.
pub(super) fn jump_at_entry<I: Isa>(
    program: &Program<'_>,
    code: &mut Code<OutputAddr>,
    entry: u64,
    at: u64,
    new: OutputAddr,
) {
    let original = program.elf.bytes_at(at, 4).unwrap_or_default();
    put_entry::<I, OutputAddr>(program, code, entry, original, new);
}

impl Placement {
    /// Updates what refers to moved code from the old image.
    pub fn references<I: Isa>(
        &self,
        program: &Program<'_>,
        ready: &[Ready],
        entry_patches: &[EntryPatch],
        move_pointers: bool,
        writer: &mut Writer<'_>,
    ) -> Result<(), Error> {
        self.old_entries::<I>(program, ready, entry_patches, writer)?;
        self.anchored_targets::<I>(program, ready, writer)?;
        // A list of unwind entries that is registered beside the new table: it ends before it begins.
        if let (Some(list), Some(_)) = (program.refs.doubled_frames, self.frames.1.get()) {
            writer.patch(InputAddr::new(list), &[0; 4])?;
        }
        self.registered_frames::<I>(program, ready, writer)?;
        self.table_entries(ready, writer)?;
        self.fill_own_tables(ready, writer)?;
        if program.refs.kept {
            self.pointers(program, ready, move_pointers, writer)?;
        }
        if move_pointers {
            self.absolute_fields::<I>(program, ready, writer)?;
            self.file_addresses(program, writer)?;
        }
        Ok(())
    }

    /// Jumps from old entries.
    fn old_entries<I: Isa>(
        &self,
        program: &Program<'_>,
        ready: &[Ready],
        entry_patches: &[EntryPatch],
        writer: &mut Writer<'_>,
    ) -> Result<(), Error> {
        let second = moving_with(ready, |r| !r.secondary_entries.is_empty());
        let second = second.iter().flat_map(|i| &ready[*i].secondary_entries);
        let second = second.map(|s| s.patch);
        let folded = self.folded.iter().filter_map(|(f, _)| f.patch);
        let all: Vec<EntryPatch> = entry_patches
            .iter()
            .copied()
            .chain(second)
            .chain(folded)
            .collect();
        let made = postlink_parallel::filter_map(&all, |EntryPatch { entry, at }| {
            let known = [&self.external_entries, &self.entries, &self.folded_entries];
            let new = known.into_iter().find_map(|list| list.get(entry))?;
            let mut code: Code<OutputAddr> = Code::default();
            jump_at_entry::<I>(program, &mut code, entry.get(), at.get(), *new);
            let filled = fill::<I>(program, &mut code, at.kept(), *entry);
            Some(filled.map(|()| (*at, code.bytes)))
        });
        for jump in made {
            let (at, bytes) = jump?;
            writer.patch(at, &bytes)?;
        }
        Ok(())
    }

    /// Jumps from where tables that count from the old code lead.
    fn anchored_targets<I: Isa>(
        &self,
        program: &Program<'_>,
        ready: &[Ready],
        writer: &mut Writer<'_>,
    ) -> Result<(), Error> {
        for i in moving_with(ready, |r| !r.anchored_targets.is_empty()) {
            let r = &ready[i];
            let start = program.start(r.function as usize);
            for (k, (place, block)) in r.anchored_targets.iter().enumerate() {
                let next = r.anchored_targets.get(k + 1).map(|a| a.0.get());
                // The old entry has its jump.
                let place = Some(place.get()).filter(|place| *place != start);
                let at = place.and_then(|place| anchored_target::<I>(program, place, next));
                let Some(at) = at else {
                    continue;
                };
                let mut code: Code<OutputAddr> = Code::default();
                I::put_jump(&mut code, Reach::Long, self.block(ready, i, *block));
                let place = InputAddr::new(at).kept();
                fill::<I>(program, &mut code, place, InputAddr::new(start))?;
                writer.patch(InputAddr::new(at), &code.bytes)?;
            }
        }
        Ok(())
    }

    /// Code that registers the unwind table and stays.
    fn registered_frames<I: Isa>(
        &self,
        program: &Program<'_>,
        ready: &[Ready],
        writer: &mut Writer<'_>,
    ) -> Result<(), Error> {
        let stays = |a: u64| {
            program
                .piece_at(a)
                .is_none_or(|p| !moving(ready).any(|(_, r)| r.function == p.function))
        };
        let formed = program.refs.formed.iter();
        for &(at, target) in formed.filter(|f| program.refs.is_registered_frame(f.1)) {
            let new = self.frame_at(InputAddr::new(target));
            let old = program.elf.bytes_at(at, 4);
            let (Some(new), Some(old), true) = (new, old, stays(at)) else {
                continue;
            };
            let field = I::decode(old, at).and_then(|i| i.field);
            let kind = field.map_or(FixupKind::Low12 { scale: 0 }, |f| f.kind);
            let mut bytes = old.to_vec();
            I::write_field(kind, &mut bytes, at, new.get()).map_err(|e| Error::Reach {
                function: program.name_at(at),
                source: e,
            })?;
            writer.patch(InputAddr::new(at), &bytes)?;
        }
        Ok(())
    }

    /// Entries of relative tables.
    fn table_entries(&self, ready: &[Ready], writer: &mut Writer<'_>) -> Result<(), Error> {
        for i in moving_with(ready, |r| !r.table_entries.is_empty()) {
            for t in &ready[i].table_entries {
                let Some(base) = t.base else {
                    continue;
                };
                let distance = self.block(ready, i, t.block).get().wrapping_sub(base);
                if t.width == 8 {
                    writer.patch(InputAddr::new(t.place), &distance.to_le_bytes())?;
                    continue;
                }
                let value = i32::try_from(distance as i64)
                    .map_err(|_| Error::internal("jump table entry out of reach"))?;
                writer.patch(InputAddr::new(t.place), &value.to_le_bytes())?;
            }
        }
        Ok(())
    }

    /// Pointers in data: to labels always, to functions if asked for and where they may.
    fn pointers(
        &self,
        program: &Program<'_>,
        ready: &[Ready],
        move_pointers: bool,
        writer: &mut Writer<'_>,
    ) -> Result<(), Error> {
        let by_function = by_function(program, ready);
        let moved = |p: &Pointer| -> Option<OutputAddr> {
            let target = InputAddr::new(p.target);
            if self.entries.contains_key(&target) {
                return self.followed(program, target).filter(|_| move_pointers);
            }
            let piece = program.piece_at(p.target)?;
            let i = by_function[piece.function as usize]? as usize;
            // What begins there is a function to the program: its address is seen and compared.
            let entries = &program.functions[piece.function as usize].entries;
            if entries.binary_search(&p.target).is_ok() {
                return None;
            }
            let marks = &ready[i].address_taken;
            let k = marks.binary_search_by_key(&target, |m| m.0).ok()?;
            Some(self.block(ready, i, marks[k].1))
        };
        let updates: Vec<(&Pointer, OutputAddr)> =
            postlink_parallel::filter_map(&program.refs.pointers, |p| moved(p).map(|n| (p, n)));
        for (p, new) in updates {
            let new = new.get();
            match p.stored {
                Stored::Word => writer.patch(InputAddr::new(p.place), &new.to_le_bytes())?,
                Stored::Word32 => {
                    let value = u32::try_from(new)
                        .map_err(|_| Error::internal("32-bit pointer out of reach"))?;
                    writer.patch(InputAddr::new(p.place), &value.to_le_bytes())?;
                }
                Stored::Addend(at) => {
                    writer.patch(InputAddr::new(at), &new.to_le_bytes())?;
                    if program.elf.u64_at(p.place) == Some(p.target) {
                        writer.patch(InputAddr::new(p.place), &new.to_le_bytes())?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Functions that headers of the file name.
    fn file_addresses(&self, program: &Program<'_>, writer: &mut Writer<'_>) -> Result<(), Error> {
        use postlink_elf::raw::{DT_FINI, DT_INIT};
        for tag in [DT_INIT, DT_FINI] {
            let old = program.elf.dynamic_value(tag);
            if let Some(new) = old.and_then(|v| self.followed(program, InputAddr::new(v))) {
                writer.set_dynamic(tag, new.get())?;
            }
        }
        if let Some(new) = self.followed(program, InputAddr::new(program.elf.entry)) {
            writer.set_entry(new);
        }
        Ok(())
    }

    /// Addresses of moved functions that code which stays forms: pointers must be the same wherever they come from.
    fn absolute_fields<I: Isa>(
        &self,
        program: &Program<'_>,
        ready: &[Ready],
        writer: &mut Writer<'_>,
    ) -> Result<(), Error> {
        // Nothing comes to old bodies of folded functions either.
        let folded = self.folded.iter().map(|(f, _)| f.function);
        let moved = moving(ready).map(|(_, r)| r.function).chain(folded);
        let moved: FxHashSet<u32> = moved.collect();
        let followed = |target: u64| self.followed(program, InputAddr::new(target));
        let edits: Vec<(InputAddr, FixupKind, OutputAddr)> =
            postlink_parallel::flat_map_range(program.pieces.len(), |index| {
                let p = &program.pieces[index];
                let mut out = Vec::new();
                if !moved.contains(&p.function)
                    && let Some(bytes) = program.elf.bytes_at(p.start, p.end - p.start)
                {
                    // Entries are in code. Most code is not at a place that forms one, and need not be decoded.
                    let index = index as u32;
                    let code = match program.forms_code.binary_search(&index) {
                        Ok(_) => bytes,
                        Err(_) => &[],
                    };
                    I::sweep(code, p.start, |i| {
                        if let Some(f) = i.field
                            && i.traits.forms_address
                            && let Some(new) = followed(f.target)
                        {
                            let at = InputAddr::new(i.addr) + u64::from(f.at);
                            out.push((at, f.kind, new));
                        }
                        true
                    });
                    for &(at, target) in program.refs.formed_in(p.start, p.end) {
                        let whole = program
                            .elf
                            .bytes_at(at, 4)
                            .and_then(|b| I::decode(b, at))
                            .and_then(|i| i.field);
                        let kind = whole.map_or(FixupKind::Low12 { scale: 0 }, |f| f.kind);
                        if let Some(new) = followed(target) {
                            out.push((InputAddr::new(at), kind, new));
                        }
                    }
                    for &(at, kind) in program.refs.absolute_fields_in(p.start, p.end) {
                        let width = if kind == FixupKind::Abs64 { 8 } else { 4 };
                        let target = program
                            .elf
                            .bytes_at(at, width)
                            .and_then(|b| I::read_field(kind, b, at));
                        if let Some(new) = target.and_then(followed) {
                            out.push((InputAddr::new(at), kind, new));
                        }
                    }
                }
                out
            });
        for (at, kind, new) in edits {
            let width = if kind == FixupKind::Abs64 { 8 } else { 4 };
            let Some(old) = program.elf.bytes_at(at.get(), width) else {
                continue;
            };
            let mut bytes = old.to_vec();
            match I::write_field(kind, &mut bytes, at.kept().get(), new.get()) {
                Ok(()) => writer.patch(at, &bytes)?,
                Err(_) => {
                    // Linkers turn a pair of instructions into a nop and one that reaches less: turn it back.
                    let before = at.get().wrapping_sub(width);
                    let nop = program
                        .elf
                        .bytes_at(before, width)
                        .and_then(|b| I::decode(b, before))
                        .is_some_and(|i| i.traits.nop);
                    let mut pair: Code<OutputAddr> = Code::default();
                    if !nop || !I::put_far(&mut pair, old, new) || pair.bytes.len() != 2 * old.len()
                    {
                        // The old address works as well, as an entry. Where others know the new one, the
                        // checker has the function put back.
                        continue;
                    }
                    let place = InputAddr::new(before).kept();
                    fill::<I>(program, &mut pair, place, at)?;
                    writer.patch(InputAddr::new(before), &pair.bytes)?;
                }
            }
        }
        Ok(())
    }
}

/// Where the jump at an arrival goes: after a landing pad, if there is one (unless the next arrival is there).
fn anchored_target<I: Isa>(program: &Program<'_>, place: u64, next: Option<u64>) -> Option<u64> {
    let piece = program.piece_at(place)?;
    let first = I::decode(
        program.elf.bytes_at(place, (piece.end - place).min(16))?,
        place,
    )?;
    if !first.traits.landing_pad {
        return Some(place);
    }
    (next != Some(first.end()) && first.end() < piece.end).then(|| first.end())
}
