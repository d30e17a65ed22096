//! Debug information of moved code: the map of addresses, made from what was emitted and where it was placed.
//!
//! The map ([`postlink_dwarf::AddressMap`]) says which new bytes stand for which old ones. Emitted code is a
//! list of [`Span`](crate::emit::Span)s, so a run of the map is a span with an address:
//!
//! | span | run |
//! |---|---|
//! | copied | as many old bytes as new ones |
//! | a branch or an address that was re-encoded ([`of`](crate::emit::Span::of)) | one old instruction, whatever its length |
//! | added: jumps, padding, what long branches go by way of | none; it is described like what is in front of it |
//!
//! The same runs go to the output as a note ([`postlink_elf::moves`]), with which the checker begins.
//!
//! Whatever is wrong with debug information is no reason not to optimise a program: then it is kept as it is,
//! and the report says why.

mod in_file;
mod probes;
mod sections;
mod split;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use postlink_dwarf::{AddressMap, EntryBlock, MapError, MapParts, Run};
use postlink_elf::elf::{Elf, SymbolTable};
use postlink_elf::moves::{self, Move};
use postlink_elf::raw;
use postlink_elf::write::{InSection, NewBytes, NewKind, NewSymbol, Replacement, Writer};
use postlink_elf::{InputAddr, OutputAddr};
use postlink_isa::{Code, Flow, Isa};
use serde::Serialize;

use super::place::Placement;
use super::ready::{Ready, moving};
use super::references::jump_at_entry;
use crate::analyse::EntryPatch;
use crate::discover::Program;
use crate::emit::{CodeRun, Fragment};
use crate::error::Error;

pub use in_file::{DebugFile, DebugFileError, update as update_debug_file};
pub use sections::CompressDebug;
pub(crate) use sections::has_debug_info;
use sections::{Changed, Give, NotUpdated};
pub use split::{Contents as SplitContents, SplitData, package_ids, skeletons};

/// What symbols of jumps at old entries have after the function's name. Demangled it is `f(int) [clone .cold] [clone
/// .entry]`: without `.cold` gdb puts a breakpoint on a function of C++ on the jump as well.
const AT_OLD_ENTRY: &str = ".cold.entry";

/// What becomes of debug information.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DebugInfo {
    /// It describes code where it is now.
    #[default]
    Update,
    /// It stays as it is: it describes old bodies, and new code has no lines.
    Keep,
    /// The output has none.
    Drop,
}

/// What was done with debug information.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DebugReport {
    /// What was done.
    pub what: DebugInfo,
    /// Why it was kept although it was to be updated.
    pub kept_because: Option<String>,
    /// Units.
    pub units: u64,
    /// Entries of all units.
    pub entries: u64,
    /// Range and location lists that were written.
    pub lists: u64,
    /// Rows of line programs for new code.
    pub rows: u64,
    /// What is described less well than before, and how often.
    pub losses: Vec<(String, u64)>,
    /// Units that stay as they were and describe old code: where, and why.
    pub stale_units: Vec<String>,
    /// Static probes (`.note.stapsdt`) whose notes name new code.
    pub probes: u64,
    /// Static probes in old bodies, which control no longer reaches.
    pub probes_left: u64,
    /// Files of split units that were read.
    pub split_files: u64,
    /// Bytes of the package that the output has for them; 0: it has none.
    pub package_bytes: u64,
    /// Bytes of debug information before.
    pub input_bytes: u64,
    /// After.
    pub output_bytes: u64,
}

impl Placement {
    /// Symbols for what is left of moved functions ([`AT_OLD_ENTRY`]). Code that stays calls through the jump
    /// there, and without a symbol of its own it would be named after whatever is in front of it. After the
    /// jump is the old body, unless that holds other code now.
    pub fn entry_symbols(
        &self,
        program: &Program<'_>,
        (entry_jumps, reuses): (&[Range<u64>], bool),
        writer: &mut Writer<'_>,
    ) {
        let symtab = program.elf.symbols(SymbolTable::Static);
        for jump in entry_jumps {
            let start = jump.start;
            let Some(piece) = program.piece_at(start) else {
                continue;
            };
            let k = program.symbols.partition_point(|s| s.0 < start);
            let of = program.symbols.get(k).filter(|s| s.0 == start).map(|s| s.1);
            let symbol = of.and_then(|x| symtab.get(x as usize));
            // Symbols of further entries stay there.
            if let (Some(symbol), true) =
                (symbol, self.entries.contains_key(&InputAddr::new(start)))
            {
                let end = if reuses { jump.end } else { piece.end };
                writer.add_symbol(NewSymbol {
                    name: [symbol.name, AT_OLD_ENTRY.as_bytes()].concat(),
                    value: start,
                    size: end.saturating_sub(start),
                    kind: 2,
                    after: of,
                    section: InSection::Old(piece.section),
                });
            }
        }
    }

    /// What a map of addresses is made of.
    pub fn map_parts<I: Isa>(
        &self,
        program: &Program<'_>,
        ready: &[Ready],
        entry_patches: &[EntryPatch],
    ) -> MapParts {
        let mut parts = MapParts {
            executable: executable(program.elf),
            ..MapParts::default()
        };
        // There are hundreds of thousands: one list of just that size.
        let fragments =
            || moving(ready).flat_map(|(i, r)| r.code.fragments.iter().zip(self.fragments[i]));
        let spans = fragments().map(|(fragment, _)| fragment.most_runs());
        parts.runs.reserve_exact(spans.sum());
        for (fragment, base) in fragments() {
            runs_of(fragment, base.get(), &mut parts.runs);
        }
        for (i, r) in moving(ready) {
            let function = &program.functions[r.function as usize];
            let pieces = function.pieces.iter().map(|p| &program.pieces[*p as usize]);
            parts.bodies.extend(pieces.map(|p| p.start..p.end));
            let placed = self.fragments[i].map(OutputAddr::get);
            for (fragment, base) in r.code.fragments.iter().zip(placed) {
                let len = fragment.code.bytes.len() as u64;
                // Only old bodies have space below the end of the old image.
                if len > 0 && program.piece_at(base).is_some() {
                    parts.reused.push(base..base + len);
                }
            }
            let start = program.start(r.function as usize);
            if let Some(entry) = self.entries.get(&InputAddr::new(start)) {
                let code = &r.code.fragments[0].code.bytes;
                let code = code.get(entry.get().wrapping_sub(placed[0]) as usize..);
                parts
                    .entry_blocks
                    .extend(code.and_then(|code| entry_block::<I>(code, entry.get())));
            }
            let new = self
                .followed(program, InputAddr::new(start))
                .map(OutputAddr::get);
            parts.pointers.extend(new.map(|new| (start, new)));
        }
        let second = moving(ready).flat_map(|(_, r)| &r.secondary_entries);
        let second = second.map(|s| s.patch);
        for EntryPatch { entry: from, at } in entry_patches.iter().copied().chain(second) {
            let (entry, at) = (from.get(), at.get());
            if self.entries.contains_key(&from) || self.external_entries.contains_key(&from) {
                let mut jump: Code<OutputAddr> = Code::default();
                jump_at_entry::<I>(program, &mut jump, entry, at, from.kept());
                parts.entry_jumps.push(entry..at + jump.bytes.len() as u64);
            }
        }
        parts
    }
}

/// The code at an entry that runs without a branch; `None` if there is none.
fn entry_block<I: Isa>(code: &[u8], entry: u64) -> Option<EntryBlock> {
    let mut rest = code;
    let (mut at, mut last, mut sure) = (entry, None, None);
    while let Some(insn) = I::decode(rest, at) {
        last = Some(at);
        let is_call = matches!(insn.flow, Flow::Call { .. } | Flow::IndirectCall);
        if insn.flow != Flow::Next {
            sure = sure.or(last);
        }
        if insn.flow != Flow::Next && !is_call {
            break;
        }
        rest = rest.get(usize::from(insn.len)..)?;
        at = insn.end();
    }
    Some(EntryBlock {
        start: entry,
        sure: sure.or(last)?,
        last: last?,
    })
}

/// The runs of a fragment at an address.
fn runs_of(fragment: &Fragment, base: u64, runs: &mut Vec<Run>) {
    let of_code = |run: &CodeRun| Run {
        old: run.old,
        old_len: run.old_len,
        new: base + u64::from(run.out),
        new_len: run.len,
        tail: run.tail,
    };
    runs.extend(fragment.runs().iter().map(of_code));
}

/// Executable bytes of a file.
fn executable(elf: &Elf<'_>) -> Vec<Range<u64>> {
    let code = elf.sections.iter().filter(|s| s.is_code());
    let sections: Vec<Range<u64>> = code.map(|s| s.addr..s.end()).collect();
    if !sections.is_empty() {
        return sections;
    }
    let loads = elf.loads().filter(|p| p.flags & raw::PF_X != 0);
    loads.map(|p| p.addr..p.addr + p.file_size).collect()
}

/// What is to be done with debug information.
#[derive(Clone, Copy)]
pub(crate) struct How<'a> {
    pub what: DebugInfo,
    pub compress: CompressDebug,
    /// Files of units that the program has only skeletons of.
    pub split: &'a [SplitData],
    /// Where their package goes. There is one if there are such files.
    pub package: Option<&'a Path>,
}

/// Which new bytes stand for which old ones.
pub(crate) struct Mapped {
    entry_jumps: Vec<Range<u64>>,
    /// Old bodies hold other code.
    reuses: bool,
    map: Result<AddressMap, MapError>,
}

/// Says so, if anything of the output needs it: debug information, or who finds it elsewhere, or static probes.
pub(crate) fn map<I: Isa>(
    program: &Program<'_>,
    placed: &Placement,
    ready: &[Ready],
    entry_patches: &[EntryPatch],
    what: DebugInfo,
) -> Option<Mapped> {
    let elf = program.elf;
    let has_probes = || postlink_elf::probes::section(elf).is_some();
    let is_linked = || elf.build_id.is_some() || elf.section(LINK).is_some();
    let needed = match what {
        DebugInfo::Keep => false,
        DebugInfo::Drop => has_debug_info(elf) && has_probes(),
        DebugInfo::Update => has_debug_info(elf) || is_linked() || has_probes(),
    };
    needed.then(|| {
        let parts = placed.map_parts::<I>(program, ready, entry_patches);
        Mapped {
            entry_jumps: parts.entry_jumps.clone(),
            reuses: !parts.reused.is_empty(),
            map: AddressMap::new(parts),
        }
    })
}

/// Makes debug information of the output and the note that says what moved where, and writes the package of split
/// units.
/// `None`: there is none, and nothing says that there is a file with it.
pub(crate) fn write<I: Isa>(
    program: &Program<'_>,
    placed: &Placement,
    ready: &[Ready],
    entry_patches: &[EntryPatch],
    (how, mapped): (How<'_>, Option<Mapped>),
    writer: &mut Writer<'_>,
) -> Result<Option<DebugReport>, Error> {
    let elf = program.elf;
    let what = how.what;
    let has_probes = postlink_elf::probes::section(elf).is_some();
    if !has_debug_info(elf) {
        if let Some(Mapped { map: Ok(map), .. }) = &mapped {
            put_moves(map, writer)?;
            leave_out_links(elf, writer)?;
            put_probes(elf, map, writer, &mut DebugReport::default())?;
        }
        return Ok(None);
    }
    let mut report = DebugReport {
        what,
        input_bytes: sections::size(elf),
        ..DebugReport::default()
    };
    match what {
        DebugInfo::Keep => report.output_bytes = report.input_bytes,
        DebugInfo::Drop => {
            for section in sections::of(elf) {
                writer.leave_out(section)?;
            }
            if let Some(Mapped { map: Ok(map), .. }) = &mapped {
                put_moves(map, writer)?;
                put_probes(elf, map, writer, &mut report)?;
            }
        }
        DebugInfo::Update => {
            let Some(Mapped {
                entry_jumps,
                reuses,
                map,
            }) = mapped
            else {
                return Ok(Some(report));
            };
            placed.entry_symbols(program, (&entry_jumps, reuses), writer);
            match updated(elf, map, how, writer, &mut report)? {
                Ok(()) => {}
                Err(why) => {
                    report.what = DebugInfo::Keep;
                    report.kept_because = Some(why);
                    report.output_bytes = report.input_bytes;
                }
            }
        }
    }
    if has_probes && report.what == DebugInfo::Keep {
        let parts = placed.map_parts::<I>(program, ready, entry_patches);
        report.probes_left = probes::left(elf, &parts.bodies);
    }
    Ok(Some(report))
}

/// Makes the notes of static probes name new code.
fn put_probes(
    elf: &Elf<'_>,
    map: &AddressMap,
    writer: &mut Writer<'_>,
    report: &mut DebugReport,
) -> Result<(), Error> {
    let Some(followed) = probes::follow(elf, map) else {
        return Ok(());
    };
    (report.probes, report.probes_left) = (followed.moved, followed.gone);
    let with = Replacement {
        bytes: NewBytes::Whole(followed.bytes),
        compressed: false,
        align: followed.align,
        name: None,
    };
    Ok(writer.replace(followed.index, with)?)
}

/// The name and the checksum of a file with debug information.
const LINK: &str = ".gnu_debuglink";
/// A packed symbol table.
const PACKED_SYMBOLS: &str = ".gnu_debugdata";

/// Leaves out links to debug information of the input: debuggers would follow them.
fn leave_out_links(elf: &Elf<'_>, writer: &mut Writer<'_>) -> Result<(), Error> {
    for name in [LINK, PACKED_SYMBOLS] {
        if let Some((index, _)) = elf.section(name).filter(|(_, s)| !s.is_alloc()) {
            writer.leave_out(index)?;
        }
    }
    Ok(())
}

/// Updates it. The inner error says why it stays as it is.
fn updated(
    elf: &Elf<'_>,
    map: Result<AddressMap, MapError>,
    how: How<'_>,
    writer: &mut Writer<'_>,
    report: &mut DebugReport,
) -> Result<Result<(), String>, Error> {
    let map = match map {
        Ok(map) => map,
        Err(e) => return Ok(Err(e.to_string())),
    };
    let sections = match sections::update(elf, &map, how, Give::Edits, report) {
        Ok(sections) => sections,
        Err(NotUpdated::Because(why)) => return Ok(Err(why)),
        Err(NotUpdated::Unwritten(e)) => return Err(e.into()),
    };
    for section in sections {
        put(section, writer)?;
    }
    put_moves(&map, writer)?;
    put_probes(elf, &map, writer, report)?;
    leave_out_links(elf, writer)?;
    Ok(Ok(()))
}

/// Gives a section its new contents; what the input does not have is appended.
fn put(changed: Changed, writer: &mut Writer<'_>) -> Result<(), Error> {
    let section = changed.contents;
    if let Some(index) = section.index {
        let with = Replacement {
            bytes: match changed.edits {
                Some(edits) => NewBytes::Edited(Arc::new(edits)),
                None => NewBytes::Whole(section.bytes),
            },
            compressed: section.compressed,
            align: section.align,
            name: changed.renamed.then_some(section.name),
        };
        return Ok(writer.replace(index, with)?);
    }
    writer.append_filled(&section.name, NewKind::Unloaded, 1, &section.bytes);
    Ok(())
}

/// Puts the note that says which bytes stand for which.
fn put_moves(map: &AddressMap, writer: &mut Writer<'_>) -> Result<(), Error> {
    let runs = map.runs().iter().map(|run| Move {
        old: run.old,
        old_len: run.old_len.into(),
        new: run.new,
        new_len: run.new_len.into(),
    });
    let bytes = moves::encode(runs, map.entry_jumps(), map.pointers())?;
    writer.append_filled(moves::SECTION, NewKind::Note, moves::ALIGN, &bytes);
    Ok(())
}
