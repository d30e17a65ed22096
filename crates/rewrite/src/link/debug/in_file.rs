//! Debug information in a file of its own, updated after the program has been written.
//!
//! Distributions split debug information off their programs: the program is small and stripped, and whoever
//! debugs it installs a second file. That file is updated by what the output says of itself:
//!
//! ```text
//! input, output ─► .note.postlink: bodies, new ranges ─┐
//!                  .note.postlink.moves: runs, jumps, pointers ─► AddressMap ─► sections::update ─┐
//! debug file of the input ────────────────────────────────────────────────────────────────────────┴► debug file
//! ```
//!
//! No profile is needed, and who has the three files can do it at any time. The checker compares the result
//! with the code of both programs, as it does where debug information is in the program.

use postlink_dwarf::{AddressMap, MapParts, Run};
use postlink_elf::debug_file::{AddedSymbol, Contents, DebugFile as Image, MovedSymbol, Parts};
use postlink_elf::elf::{Elf, Section, SymbolTable};
use postlink_elf::moves::{self, Moves};
use postlink_elf::names::build_id_text;
use postlink_elf::note::{Note, NoteKind};
use postlink_isa::{Machine, with_isa};

use super::{
    AT_OLD_ENTRY, CompressDebug, DebugInfo, DebugReport, How, entry_block, executable,
    has_debug_info, sections,
};
use postlink_elf::FormatError;

/// Updated debug information in a file of its own.
#[derive(Debug)]
pub struct DebugFile<'d> {
    /// The file.
    pub image: Image<'d>,
    /// What was done.
    pub report: DebugReport,
    /// Symbols that moved.
    pub moved_symbols: u64,
}

/// Which of the files is wrong, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DebugFileError {
    /// The output.
    #[error("{0}")]
    OfOutput(String),
    /// The debug file of the input.
    #[error("{0}")]
    OfDebugFile(String),
}

use DebugFileError::{OfDebugFile, OfOutput};

/// The files must belong together.
fn belong(input: &Elf<'_>, debug: &Elf<'_>, note: &Note) -> Result<(), DebugFileError> {
    let (of_input, of_debug) = (
        input.build_id.unwrap_or_default(),
        debug.build_id.unwrap_or_default(),
    );
    if note.kind != NoteKind::Optimised {
        return Err(OfOutput(
            "it is an instrumented program; debug information of optimised ones can be updated"
                .into(),
        ));
    }
    if note.input_id != of_input {
        return Err(OfOutput(format!(
            "it was made from a program with build-id {}, but the input's is {}",
            build_id_text(&note.input_id),
            build_id_text(of_input)
        )));
    }
    if of_input != of_debug {
        return Err(OfDebugFile(format!(
            "its build-id is {}, but the input's is {}: it describes another program",
            build_id_text(of_debug),
            build_id_text(of_input)
        )));
    }
    if !has_debug_info(debug) {
        return Err(OfDebugFile(
            "it has no debug information (.debug_* sections)".into(),
        ));
    }
    // Without build-ids, and to be sure: the same code at the same addresses.
    let code = |elf: &Elf<'_>| -> Vec<(u64, u64)> {
        let all = elf.sections.iter().filter(|s| s.is_code());
        all.map(|s: &Section<'_>| (s.addr, s.size)).collect()
    };
    if code(input) != code(debug) {
        return Err(OfDebugFile(format!(
            "its {} sections of code are at other addresses, or of other sizes, than the input's {}",
            code(debug).len(),
            code(input).len()
        )));
    }
    Ok(())
}

/// The map of addresses, from what the output says.
fn map(
    [input, output]: [&Elf<'_>; 2],
    note: &Note,
    moves: Moves,
) -> Result<AddressMap, DebugFileError> {
    let mut parts = MapParts {
        executable: executable(input),
        entry_jumps: moves.entry_jumps,
        pointers: moves.pointers,
        ..MapParts::default()
    };
    let end = input.extent().1;
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for f in &note.functions {
        let range = |&(start, len): &(u64, u64)| (start, start.saturating_add(len));
        parts
            .bodies
            .extend(f.old.iter().map(range).map(|(a, b)| a..b));
        ranges.extend(f.new.iter().map(range));
        let entry = f.new.first().and_then(|&(start, len)| {
            let code = output.bytes_at(start, len)?;
            let machine = Machine::of_elf(output.machine)?;
            with_isa!(machine, I => entry_block::<I>(code, start))
        });
        parts.entry_blocks.extend(entry);
    }
    ranges.sort_unstable();
    let in_old = ranges.iter().filter(|(start, _)| *start < end);
    parts.reused.extend(in_old.map(|(a, b)| *a..*b));
    let mut runs = moves.runs;
    runs.sort_unstable_by_key(|run| run.new);
    for (i, run) in runs.iter().enumerate() {
        let run_end = run.new.saturating_add(run.new_len);
        let holder = ranges[..ranges.partition_point(|r| r.0 <= run.new)].last();
        let Some((_, range_end)) = holder.filter(|(_, end)| run_end <= *end) else {
            return Err(OfOutput(format!(
                ".note.postlink.moves has a run at {:#x}, which is in no function's new code",
                run.new
            )));
        };
        let next = runs.get(i + 1).map_or(u64::MAX, |next| next.new);
        let tail = next.min(*range_end).saturating_sub(run_end);
        let narrow = |n: u64| {
            u32::try_from(n).map_err(|_| {
                OfOutput(format!(
                    ".note.postlink.moves has a run of {n:#x} bytes at {:#x}",
                    run.new
                ))
            })
        };
        parts.runs.push(Run {
            old: run.old,
            old_len: narrow(run.old_len)?,
            new: run.new,
            new_len: narrow(run.new_len)?,
            tail: narrow(tail)?,
        });
    }
    AddressMap::new(parts).map_err(|e| OfOutput(format!(".note.postlink.moves: {e}")))
}

/// Symbols of moved code: where they are now, and new ones for cold parts and for jumps at old entries.
fn symbols(
    debug: &Elf<'_>,
    note: &Note,
    map: &AddressMap,
) -> (Vec<(u32, MovedSymbol)>, Vec<AddedSymbol>) {
    let (mut moved, mut added) = (Vec::new(), Vec::new());
    let mut named: Vec<Option<u32>> = vec![None; note.functions.len()];
    let jump_at = |entry: u64| {
        let jumps = map.entry_jumps();
        let at = jumps.binary_search_by_key(&entry, |jump| jump.start);
        at.ok().map(|i| jumps[i].clone())
    };
    let reuses = map.reuses();
    for (index, s) in (0u32..).zip(debug.symbols(SymbolTable::Static).iter()) {
        if !matches!(s.kind, 0 | 2 | 10) || s.section == 0 {
            continue;
        }
        let Ok(f) = note.functions.binary_search_by_key(&s.value, |f| f.entry) else {
            continue;
        };
        let Some(&(value, len)) = note.functions[f].new.first() else {
            continue;
        };
        let size = if s.size == 0 { 0 } else { len };
        moved.push((index, MovedSymbol { value, size }));
        if s.kind != 0 && named[f].is_none() {
            named[f] = Some(index);
            let mut add = |suffix: &str, value, size| {
                added.push(AddedSymbol {
                    after: index,
                    name: [s.name, suffix.as_bytes()].concat(),
                    value,
                    size,
                });
            };
            for (number, &(value, size)) in note.functions[f].new.iter().skip(1).enumerate() {
                add(&format!(".cold.{number}"), value, size);
            }
            if let Some(jump) = jump_at(s.value) {
                let mut bodies = note.functions[f]
                    .old
                    .iter()
                    .map(|(a, len)| *a..a.saturating_add(*len));
                let body = bodies.find(|body| body.contains(&jump.start));
                // Other code may be after the jump.
                let end = match body.filter(|_| !reuses) {
                    Some(body) => body.end,
                    None => jump.end,
                };
                add(AT_OLD_ENTRY, jump.start, end - jump.start);
            }
        }
    }
    (moved, added)
}

/// Updates the debug file of an input for an output that was made from it.
pub fn update<'d>(
    input: &Elf<'d>,
    output: &Elf<'d>,
    debug: &Elf<'d>,
    compress: CompressDebug,
) -> Result<DebugFile<'d>, DebugFileError> {
    let of_output = |e: FormatError| OfOutput(e.to_string());
    let note = Note::read(output).map_err(of_output)?;
    let note = note
        .ok_or_else(|| OfOutput("postlink did not write it (it has no .note.postlink)".into()))?;
    belong(input, debug, &note)?;
    let moves = moves::read(output).map_err(of_output)?;
    let moves = moves.ok_or_else(|| {
        OfOutput(
            "it does not say which instructions moved where (.note.postlink.moves): optimise again with --debug-info update"
                .into(),
        )
    })?;
    let map = map([input, output], &note, moves)?;
    let mut report = DebugReport {
        input_bytes: sections::size(debug),
        ..DebugReport::default()
    };
    let how = How {
        what: DebugInfo::Update,
        compress,
        split: &[],
        package: None,
    };
    let updated = sections::update(debug, &map, how, sections::Give::Whole, &mut report);
    let changed = updated.map_err(|why| OfDebugFile(why.to_string()))?;
    let changed = changed.into_iter().map(|section| section.contents);
    let followed = super::probes::follow(debug, &map);
    if let Some(of) = &followed {
        (report.probes, report.probes_left) = (of.moved, of.gone);
    }
    let followed = followed.map(|of| Contents {
        index: Some(of.index),
        name: postlink_elf::probes::SECTION.to_owned(),
        bytes: of.bytes,
        compressed: false,
        align: of.align,
    });
    let (moved, added) = symbols(debug, &note, &map);
    let moved_symbols = moved.len() as u64;
    let image = Image::new(Parts {
        program: output,
        debug,
        changed: changed.chain(followed).collect(),
        moved: moved.into_iter().collect(),
        added,
    });
    Ok(DebugFile {
        image: image.map_err(|e| OfDebugFile(e.to_string()))?,
        report,
        moved_symbols,
    })
}
