//! What describes the new code: unwind and exception tables, symbols, the note that claims what moved where.

use postlink_image::elf::SymbolTable;
use postlink_image::note::{MovedFunction, Note};
use postlink_image::unwind::eh_frame::{self, NewFde};
use postlink_image::unwind::lsda::CallSite;
use postlink_image::write::{InSection, NewId, NewKind, NewSection, NewSymbol, SymbolEdit, Writer};
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use super::{LinkOptions, Placement, Ready};
use crate::Error;
use crate::discover::Program;
use crate::unwind::{FragmentUnwind, FunctionUnwind};

impl Placement {
    /// Writes unwind tables for all fragments: new exception tables, then a merged `.eh_frame` with its search table.
    pub fn unwind(
        &self,
        program: &Program<'_>,
        ready: &[Ready],
        writer: &mut Writer<'_>,
    ) -> Result<(), Error> {
        if program.eh.fdes.is_empty() {
            return Ok(());
        }
        // What has an unwind entry: index of the function, address, length, information.
        let parts: Vec<(usize, u64, u64, &FragmentUnwind)> = (0..ready.len())
            .flat_map(|i| {
                (0..2).flat_map(move |f| self.stretches(ready, i, f).map(move |s| (i, s)))
            })
            .filter_map(|(i, (start, len, unwind))| Some((i, start, len, unwind?)))
            .collect();
        // Exception tables first: unwind entries point to them.
        let with: Vec<usize> = (0..parts.len())
            .filter(|p| parts[*p].3.call_sites.is_some())
            .collect();
        let mut lsda_at: FxHashMap<usize, u64> = FxHashMap::default();
        if !with.is_empty() {
            let near = self
                .sections
                .iter()
                .flatten()
                .flatten()
                .map(|s| s.addr)
                .max()
                .unwrap_or(0)
                & !0xfff;
            let encode = |p: usize, at: u64| -> Result<Vec<u8>, Error> {
                let (i, start, _, info) = parts[p];
                let unwind = FunctionUnwind::read(program, ready[i].function as usize)
                    .ok()
                    .flatten();
                let Some((table, pad_base)) = unwind.as_ref().and_then(|u| u.table()) else {
                    return Ok(Vec::new());
                };
                let sites: Vec<CallSite> = info
                    .call_sites
                    .iter()
                    .flatten()
                    .map(|c| CallSite {
                        start: start + u64::from(c.start),
                        len: u64::from(c.len),
                        landing_pad: c.landing_pad.map(|b| self.block(ready, i, b)),
                        action: c.action,
                    })
                    .collect();
                Ok(table.encode_with(&sites, start, at, pad_base, info.numbers)?)
            };
            // Sizes depend on the place only modulo eight.
            let sizes: Vec<u64> = with
                .par_iter()
                .map(|x| encode(*x, near).map(|b| b.len() as u64))
                .collect::<Result<_, Error>>()?;
            let mut offsets = Vec::with_capacity(sizes.len());
            let mut at = 0u64;
            for s in &sizes {
                offsets.push(at);
                at = (at + s).next_multiple_of(8);
            }
            let placed = writer.append_anywhere(NewSection {
                name: ".gcc_except_table.hot".to_owned(),
                kind: NewKind::ReadOnly,
                align: 8,
                size: at,
            });
            let encoded: Vec<Vec<u8>> = with
                .par_iter()
                .zip(&offsets)
                .map(|(x, o)| encode(*x, placed.addr + o))
                .collect::<Result<_, Error>>()?;
            let out = writer.contents(placed.id);
            for ((x, o), e) in with.iter().zip(&offsets).zip(&encoded) {
                let place = out
                    .get_mut(*o as usize..*o as usize + e.len())
                    .ok_or_else(|| Error::internal("exception table changed size"))?;
                place.copy_from_slice(e);
                lsda_at.insert(*x, placed.addr + o);
            }
        }
        let mut new: Vec<NewFde> = Vec::new();
        for (p, (_, start, len, info)) in parts.iter().enumerate() {
            new.push(NewFde {
                cie: info.cie,
                start: *start,
                len: *len,
                lsda: lsda_at.get(&p).copied(),
                instructions: info.instructions.clone(),
            });
        }
        // Recorders are entered like functions: the state that every such unwind entry begins with.
        let cie = program
            .eh
            .cies
            .iter()
            .position(|c| !c.signal_frame && c.lsda_encoding == 0xff);
        for (p, cie) in self.recorders.iter().flatten().zip(cie.into_iter().cycle()) {
            let len = writer.contents(p.id).len() as u64;
            new.push(NewFde {
                cie,
                start: p.addr,
                len,
                lsda: None,
                instructions: Vec::new(),
            });
        }
        // What lay where other code lies now has no entry any more.
        let mut without = None;
        if !self.buried.is_empty() {
            let gone = |fde: &eh_frame::Fde<'_>| self.buried.binary_search(&fde.start).is_ok();
            let mut eh = program.eh.clone();
            eh.fdes.retain(|fde| !gone(fde));
            without = Some(eh);
        }
        let old = without.as_ref().unwrap_or(&program.eh);
        let (frame_size, hdr_size) = eh_frame::merged_sizes(old, &new);
        // What is registered at the start needs no table for searching.
        let hdr = (!program.refs.registration_follows()).then(|| {
            writer.append_anywhere(NewSection {
                name: ".eh_frame_hdr".into(),
                kind: NewKind::ReadOnly,
                align: 4,
                size: hdr_size,
            })
        });
        let frame = writer.append_anywhere(NewSection {
            name: ".eh_frame".into(),
            kind: NewKind::ReadOnly,
            align: 8,
            size: frame_size,
        });
        let mut hdr_bytes = vec![0; hdr_size as usize];
        let mut frame_bytes = vec![0; frame_size as usize];
        eh_frame::write_merged(
            old,
            &new,
            frame.addr,
            &mut frame_bytes,
            hdr.map_or(frame.addr, |hdr| hdr.addr),
            &mut hdr_bytes,
        )?;
        if let Some(hdr) = hdr {
            writer.contents(hdr.id).copy_from_slice(&hdr_bytes);
        }
        writer.contents(frame.id).copy_from_slice(&frame_bytes);
        writer.replace_unwind(frame.id, hdr.map(|hdr| hdr.id));
        let _ = self.frames.1.set(frame.addr); // The first time.
        Ok(())
    }

    /// Moves symbols with their functions and names cold parts.
    pub fn symbols(
        &self,
        program: &Program<'_>,
        ready: &[Ready],
        options: &LinkOptions<'_>,
        writer: &mut Writer<'_>,
    ) {
        let by_function: FxHashMap<u32, usize> = ready
            .iter()
            .enumerate()
            .map(|(i, r)| (r.function, i))
            .collect();
        let section = |addr: u64| -> Option<NewId> {
            self.sections
                .iter()
                .flatten()
                .flatten()
                .filter(|s| s.addr <= addr)
                .max_by_key(|s| s.addr)
                .map(|s| s.id)
        };
        let tables: &[SymbolTable] = if options.move_pointers {
            &[SymbolTable::Static, SymbolTable::Dynamic]
        } else {
            &[SymbolTable::Static]
        };
        for table in tables {
            let symbols = program.elf.symbols(*table);
            let edit = |index: usize| -> Option<(u32, SymbolEdit)> {
                let s = symbols.get(index)?;
                if !matches!(s.kind, 0 | 2 | 10) || s.section == 0 {
                    return None;
                }
                // The dynamic symbol is what the program sees, the other what tools do.
                let new = match table {
                    SymbolTable::Dynamic => self.followed(program, s.value)?,
                    SymbolTable::Static => *self.entries.get(&s.value)?,
                };
                let piece = program.piece_at(s.value)?;
                let i = *by_function.get(&piece.function)?;
                let first = ready[i].code.blocks.first();
                let entered = first.map_or(0, |b| usize::from(b.0));
                let section = match self.in_room[i].get(entered) {
                    Some(true) => InSection::Old(program.piece_at(new)?.section),
                    _ => InSection::New(section(new)?),
                };
                let hot = self.stretches(ready, i, 0).next().map_or(0, |s| s.1);
                let size = match s.size {
                    0 => 0,
                    _ => (self.fragments[i][0] + hot).saturating_sub(new),
                };
                let edit = SymbolEdit {
                    value: new,
                    size,
                    section,
                };
                Some((index as u32, edit))
            };
            let edits: Vec<_> = (0..symbols.len())
                .into_par_iter()
                .filter_map(edit)
                .collect();
            for (index, edit) in edits {
                writer.edit_symbol(*table, index, edit);
            }
        }
        let symtab = program.elf.symbols(SymbolTable::Static);
        for (i, r) in ready.iter().enumerate() {
            let start = program.start(r.function as usize);
            let k = program.symbols.partition_point(|s| s.0 < start);
            let of = program.symbols.get(k).filter(|s| s.0 == start).map(|s| s.1);
            let hot = self.stretches(ready, i, 0).skip(1).map(|s| (0, s));
            let parts = hot.chain(self.stretches(ready, i, 1).map(|s| (1, s)));
            for (number, (fragment, (value, size, _))) in parts.enumerate() {
                let placed = self.sections[usize::from(self.districts[i])][fragment];
                let section = match (self.in_room[i][fragment], placed) {
                    (true, _) => match program.piece_at(value) {
                        Some(piece) => InSection::Old(piece.section),
                        None => continue,
                    },
                    (false, Some(section)) => InSection::New(section.id),
                    (false, None) => continue,
                };
                // What is called `x.cold` must have an `x`.
                let name = match of.and_then(|x| symtab.get(x as usize)) {
                    Some(s) => [s.name, format!(".cold.{number}").as_bytes()].concat(),
                    None => format!("fun_{start:x}_cold_{number}").into_bytes(),
                };
                writer.add_symbol(NewSymbol {
                    name,
                    value,
                    size,
                    kind: 2,
                    after: of,
                    section,
                });
            }
        }
    }

    /// The parts of the i-th ready function's fragment that have a symbol and an unwind entry each: address, size, unwind information.
    fn stretches<'r>(
        &self,
        ready: &'r [Ready],
        i: usize,
        fragment: usize,
    ) -> impl Iterator<Item = (u64, u64, Option<&'r FragmentUnwind>)> {
        let r = &ready[i];
        let start = self.fragments[i][fragment];
        let splits = || r.splits.iter().filter(move |s| s.fragment == fragment);
        let first = (0, r.unwind.as_ref().map(|u| &u[fragment]));
        let from =
            std::iter::once(first).chain(splits().map(|s| (u64::from(s.start), s.unwind.as_ref())));
        let len = r.code.fragments[fragment].code.bytes.len() as u64;
        let to = splits()
            .map(|s| u64::from(s.start))
            .chain(std::iter::once(len));
        from.zip(to)
            .filter(|((a, _), b)| a < b)
            .map(move |((a, unwind), b)| (start + a, b - a, unwind))
    }

    /// The note that claims what moved where.
    pub fn note(
        &self,
        program: &Program<'_>,
        ready: &[Ready],
        options: &LinkOptions<'_>,
        writer: &mut Writer<'_>,
    ) -> Result<(), Error> {
        let mut functions: Vec<MovedFunction> = ready
            .par_iter()
            .enumerate()
            .map(|(i, r)| {
                let f = &program.functions[r.function as usize];
                let old = f
                    .pieces
                    .iter()
                    .map(|p| &program.pieces[*p as usize])
                    .map(|p| (p.start, p.end - p.start))
                    .collect();
                let new = (0..2)
                    .filter(|k| !r.code.fragments[*k].code.bytes.is_empty())
                    .map(|k| {
                        (
                            self.fragments[i][k],
                            r.code.fragments[k].code.bytes.len() as u64,
                        )
                    })
                    .collect();
                let labels = r.marks.iter().map(|(a, b)| (*a, self.block(ready, i, *b)));
                let second = r.second.iter().map(|s| s.entry);
                let second = second.filter_map(|a| Some((a, *self.doors.get(&a)?)));
                let labels = labels.chain(second).collect();
                MovedFunction {
                    entry: program.start(r.function as usize),
                    old,
                    new,
                    labels,
                }
            })
            .collect();
        functions.sort_by_key(|f| f.entry);
        let note = Note {
            kind: options.kind,
            input_id: options.input_id.clone(),
            functions,
        };
        put_note(&note, writer)
    }
}

/// Puts the note into a section of its own.
pub(crate) fn put_note(note: &Note, writer: &mut Writer<'_>) -> Result<(), Error> {
    let bytes = note.encode()?;
    let placed = writer.append(NewSection {
        name: ".note.postlink".to_owned(),
        kind: NewKind::Note,
        align: 4,
        size: bytes.len() as u64,
    });
    writer.contents(placed.id).copy_from_slice(&bytes);
    Ok(())
}
