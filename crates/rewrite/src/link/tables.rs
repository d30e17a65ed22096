//! What describes the new code: symbols, and the note that claims what moved where.

use postlink_elf::elf::SymbolTable;
use postlink_elf::note::{self, EntryLevel, MovedFunction, Note, NoteBasis};
use postlink_elf::write::{InSection, NewId, NewKind, NewSymbol, SymbolEdit, Writer};
use postlink_elf::{InputAddr, OutputAddr};
use rustc_hash::FxHashSet;

use super::place::{LinkOptions, Placement};
use super::ready::{Ready, by_function, moving_with};
use crate::analyse::{EntryPatch, Target};
use crate::cfg::OwnTable;
use crate::discover::{Basis, Program};
use crate::emit::FragmentUnwind;
use crate::error::Error;

impl Placement {
    /// Moves symbols with their functions and names cold parts.
    pub fn symbols(
        &self,
        program: &Program<'_>,
        ready: &[Ready],
        options: &LinkOptions<'_>,
        writer: &mut Writer<'_>,
    ) {
        let by_function = by_function(program, ready);
        let section = |addr: OutputAddr| -> Option<NewId> {
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
                let s = symbols.get_nameless(index)?;
                if !matches!(s.kind, 0 | 2 | 10) || s.section == 0 {
                    return None;
                }
                // The dynamic symbol is what the program sees, the other what tools do.
                let new = match table {
                    SymbolTable::Dynamic => self.followed(program, InputAddr::new(s.value))?,
                    SymbolTable::Static => *self.entries.get(&InputAddr::new(s.value))?,
                };
                let piece = program.piece_at(s.value)?;
                let i = by_function[piece.function as usize]? as usize;
                let first = ready[i].code.blocks.first();
                let entered = first.map_or(0, |b| usize::from(b.0));
                let section = match self.in_old_body[i].get(entered) {
                    Some(true) => InSection::Old(program.piece_at(new.get())?.section),
                    _ => InSection::New(section(new)?),
                };
                let hot = self.stretches(ready, i, 0).next().map_or(0, |s| s.1);
                let size = match s.size {
                    0 => 0,
                    _ => (self.fragments[i][0] + hot).get().saturating_sub(new.get()),
                };
                let edit = SymbolEdit {
                    value: new.get(),
                    size,
                    section,
                };
                Some((index as u32, edit))
            };
            let edits: Vec<_> = postlink_parallel::flat_map_range(symbols.len(), edit);
            for (index, edit) in edits {
                writer.edit_symbol(*table, index, edit);
            }
        }
        let symtab = program.elf.symbols(SymbolTable::Static);
        let has_parts =
            |r: &Ready| !r.splits.is_empty() || !r.code.fragments[1].code.bytes.is_empty();
        for i in moving_with(ready, has_parts) {
            let hot = self.stretches(ready, i, 0).skip(1).map(|s| (0, s));
            let parts = hot.chain(self.stretches(ready, i, 1).map(|s| (1, s)));
            let start = program.start(ready[i].function as usize);
            let k = program.symbols.partition_point(|s| s.0 < start);
            let of = program.symbols.get(k).filter(|s| s.0 == start).map(|s| s.1);
            for (number, (fragment, (value, size, _))) in parts.enumerate() {
                let placed = self.sections[usize::from(self.veneer_groups[i])][fragment];
                let section = match (self.in_old_body[i][fragment], placed) {
                    (true, _) => match program.piece_at(value.get()) {
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
                    value: value.get(),
                    size,
                    kind: 2,
                    after: of,
                    section,
                });
            }
        }
    }

    /// The parts of the i-th ready function's fragment that have a symbol and an unwind entry each: address,
    /// size, unwind information.
    pub(super) fn stretches<'r>(
        &self,
        ready: &'r [Ready],
        i: usize,
        fragment: usize,
    ) -> impl Iterator<Item = (OutputAddr, u64, Option<&'r FragmentUnwind>)> {
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

    /// What the note says of the n-th table of the i-th function, and of one instruction that it is read by.
    fn claimed_table(
        &self,
        table: &OwnTable,
        (i, n): (usize, usize),
        load: (u64, u64),
    ) -> note::OwnTable {
        note::OwnTable {
            load,
            old: table.table,
            base: table.base,
            new: self.own_tables.at(i, n).get(),
            entries: table.entries.len() as u64,
            guarded: table.guarded,
            wide: table.width == 8,
        }
    }

    /// What the note says of a function's own jump tables, by the loads that read them, or by what forms their
    /// addresses.
    fn claimed_tables(&self, r: &Ready, i: usize) -> Vec<note::OwnTable> {
        let fragments = r.code.fragments.iter().zip(self.fragments[i]);
        let fragments: Vec<_> = fragments.collect();
        let fixups = || {
            let all = fragments.iter();
            all.flat_map(|(f, start)| f.code.fixups.iter().map(move |x| (x, *start)))
        };
        let loads = fixups().filter_map(|(x, start)| match x.target {
            Target::OwnTable(n) => Some((n as usize, start + u64::from(x.at))),
            _ => None,
        });
        let mut tables: Vec<(usize, note::OwnTable)> = loads
            .filter_map(|(n, at)| {
                let table = r.own_tables.get(n)?;
                let new = at - u64::from(table.lead);
                Some((
                    n,
                    self.claimed_table(table, (i, n), (table.load, new.get())),
                ))
            })
            .collect();
        // Several instructions may have the table's address; the first of them counts.
        tables.sort_unstable_by_key(|t| (t.0, t.1.load.1));
        tables.dedup_by_key(|t| t.0);
        let formed = fixups().filter_map(|(x, start)| match x.target {
            Target::OwnBase(n) => {
                let base = r.own_bases.get(n as usize)?;
                let n = base.table as usize;
                let table = r.own_tables.get(n)?;
                let at = start + u64::from(x.at);
                Some(self.claimed_table(table, (i, n), (base.at, at.get())))
            }
            _ => None,
        });
        tables.into_iter().map(|t| t.1).chain(formed).collect()
    }

    /// The note that claims what moved where. Returns its section.
    pub fn note(
        &self,
        program: &Program<'_>,
        ready: &[Ready],
        entry_patches: &[EntryPatch],
        options: &LinkOptions<'_>,
        writer: &mut Writer<'_>,
    ) -> Result<NewId, Error> {
        let basis = match program.refs.basis() {
            Basis::Kept => None,
            Basis::Dynamic => Some(NoteBasis::Dynamic),
            Basis::None => Some(NoteBasis::Nothing),
        };
        let patched: FxHashSet<u64> = entry_patches.iter().map(|p| p.entry.get()).collect();
        let mut functions: Vec<MovedFunction> =
            postlink_parallel::flat_map_range(ready.len(), |i| {
                let r = &ready[i];
                (!r.taken_back).then(|| {
                    let old = pieces(program, r.function);
                    let new = (0..2)
                        .filter(|k| !r.code.fragments[*k].code.bytes.is_empty())
                        .map(|k| {
                            (
                                self.fragments[i][k].get(),
                                r.code.fragments[k].code.bytes.len() as u64,
                            )
                        })
                        .collect();
                    let block = |b| self.block(ready, i, b).get();
                    let labels = r.address_taken.iter().map(|(a, b)| (a.get(), block(*b)));
                    let second = r.secondary_entries.iter().map(|s| s.patch.entry);
                    let external_entry = |a| self.external_entries.get(&a);
                    let second = second.filter_map(|a| Some((a.get(), external_entry(a)?.get())));
                    let labels = labels.chain(second).collect();
                    let entry = program.start(r.function as usize);
                    let falls_back = r.falls_back.iter().map(|at| at.get());
                    let mut falls_back: Vec<u64> = falls_back.collect();
                    falls_back.sort_unstable();
                    MovedFunction {
                        entry,
                        old,
                        new,
                        folded_into: 0,
                        labels,
                        level: if patched.contains(&entry) {
                            EntryLevel::Long
                        } else {
                            EntryLevel::Led
                        },
                        tables: self.claimed_tables(r, i),
                        falls_back,
                    }
                })
            });
        functions.extend(self.folded.iter().map(|(f, _)| MovedFunction {
            entry: program.start(f.function as usize),
            old: pieces(program, f.function),
            folded_into: program.start(f.into as usize),
            level: match f.patch {
                Some(_) => EntryLevel::Long,
                None => EntryLevel::Led,
            },
            ..MovedFunction::default()
        }));
        functions.sort_by_key(|f| f.entry);
        let note = Note {
            kind: options.kind,
            input_id: options.input_id.clone(),
            basis,
            functions,
        };
        put_note(&note, writer)
    }
}

/// The pieces of a function: start and length.
fn pieces(program: &Program<'_>, function: u32) -> Vec<(u64, u64)> {
    let pieces = program.functions[function as usize].pieces.iter();
    let pieces = pieces.map(|p| &program.pieces[*p as usize]);
    pieces.map(|p| (p.start, p.end - p.start)).collect()
}

/// Puts the note into a section of its own, which is returned.
pub fn put_note(note: &Note, writer: &mut Writer<'_>) -> Result<NewId, Error> {
    let bytes = note.encode()?;
    let placed = writer.append_filled(".note.postlink", NewKind::Note, 4, &bytes);
    Ok(placed.id)
}
