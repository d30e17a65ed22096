//! Debug information of a program: what became of it, and the comparison by the lock step's pairs.

use crate::addr::{InputAddr, Pair};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::map::{CodeMap, CodeMapParts, EntryBlock, MovedRun};
use super::moves::Claimed;
use super::{DebugReport, moves, probes};
use crate::arch::{Arch, Flow};
use crate::context::{Context, Findings, FuncId};
use crate::files::claim::Moved;
use crate::files::elf::{self, Elf};
use crate::proof::image;
use crate::report::{Check, DebugState, DebugSummary, Failure};
use crate::walk::Walked;

/// The type of the note that says which bytes correspond to which.
const MOVES: u32 = 2;

/// Sections of debug information, unpacked, by the names that they have then.
type Sections<'d> = BTreeMap<Vec<u8>, Cow<'d, [u8]>>;

/// Whether there is debug information, and the output says which bytes correspond to which.
pub(crate) fn is_described(described: &Elf<'_>, output: &Elf<'_>) -> bool {
    let is_there = sections(described).next().is_some() || probes::is_there(described);
    is_there && output.note(b"postlink", MOVES).is_some()
}

/// The files whose debug information is compared.
fn described<'c>(cx: &Context<'c>) -> (&'c Elf<'c>, &'c Elf<'c>) {
    cx.debug_files.unwrap_or((cx.input, cx.output))
}

/// What must hold of files with debug information alone: debuggers find them by the build-ids of the programs,
/// and symbols are where the code is.
fn compare_files(cx: &Context<'_>, found: &mut Findings) -> Result<(), String> {
    let Some((old, new)) = cx.debug_files else {
        return Ok(());
    };
    for (debug, program, which) in [(old, cx.input, "input"), (new, cx.output, "output")] {
        let id = |elf: &Elf<'_>| elf.note(b"GNU", elf::NT_GNU_BUILD_ID).map(<[u8]>::to_vec);
        if id(debug) != id(program) {
            return Err(format!(
                "the file with debug information of the {which} has another build-id"
            ));
        }
    }
    let is_there = |elf: &Elf<'_>| elf.sections.iter().any(|s| s.kind == elf::SHT_SYMTAB);
    if is_there(old) && !is_there(new) {
        return Err("the file with debug information of the output has no symbols".to_owned());
    }
    // Functions have been walked; what is left to show is that symbols are where those begin.
    let walked = std::mem::take(&mut found.pairs);
    image::static_symbols(cx, (old, new), found);
    let pairs = std::mem::replace(&mut found.pairs, walked);
    let begins = |&(old, new): &Pair| {
        let function = cx.entry_of(old).and_then(|id| cx.function(id));
        function.is_some_and(|f| f.old_entry == old && f.new_entry() == new)
    };
    match pairs.iter().find(|pair| !begins(pair)) {
        Some((old, new)) => Err(format!(
            "the symbol of the function at {old:#x} has the value {new:#x}, where that does not begin"
        )),
        None => Ok(()),
    }
}

fn is_debug(name: &[u8]) -> bool {
    name.starts_with(b".debug_") || name.starts_with(b".zdebug_") || name == b".gdb_index"
}

fn sections<'d>(elf: &Elf<'d>) -> impl Iterator<Item = elf::Section<'d>> {
    let all = elf.sections.iter().copied();
    all.filter(|s| !s.is_alloc() && is_debug(s.name))
}

fn load<'d>(elf: &Elf<'d>, which: &str) -> Result<Sections<'d>, String> {
    let mut out = Sections::new();
    let all: Vec<elf::Section<'d>> = sections(elf).collect();
    let unpacked = postlink_parallel::map(&all, |s| elf.unpacked_section_data(s));
    let unpacked: Vec<Cow<'d, [u8]>> = unpacked
        .into_iter()
        .collect::<Result<_, String>>()
        .map_err(|what| format!("debug information of the {which}: {what}"))?;
    for (s, data) in all.iter().zip(unpacked) {
        let name = match s.name.strip_prefix(b".z") {
            Some(rest) => [b".", rest].concat(),
            None => s.name.to_vec(),
        };
        out.entry(name).or_insert(data);
    }
    Ok(out)
}

/// Says what became of debug information, and shows that it is right. `None` if the input has none. Called
/// once functions are proved.
pub(crate) fn prove<A: Arch>(
    cx: &Context<'_>,
    walked: &[Walked],
    found: &mut Findings,
) -> Option<DebugSummary> {
    let (input, output) = described(cx);
    let has_debug_info = sections(input).next().is_some();
    if !has_debug_info && !probes::is_there(input) {
        return None;
    }
    let mut report = DebugReport::default();
    let compared = compare_files(cx, found).and_then(|()| {
        let map = claimed_map::<A>(cx, walked, found)?;
        probes::compare(input, output, map.as_ref())?;
        compare(cx, map.as_ref(), &mut report)
    });
    let state = match compared {
        Ok(state) => state,
        Err(what) => {
            report.failed += 1;
            report.failures.push(what);
            DebugState::Updated
        }
    };
    let failures = report.failures.into_iter();
    found
        .file
        .extend(failures.map(|what| Failure::new(Check::DebugInfo, what)));
    has_debug_info.then_some(DebugSummary {
        state,
        entries: report.entries,
        scopes: report.scopes,
        places: report.places,
        addresses: report.addresses,
        rows: report.rows,
        stale_units: report.stale.len() as u64,
    })
}

/// Where old code is now, if the output says so: what it claims, compared with what was found.
fn claimed_map<A: Arch>(
    cx: &Context<'_>,
    walked: &[Walked],
    found: &Findings,
) -> Result<Option<CodeMap>, String> {
    let Some(claimed) = cx
        .output
        .note(b"postlink", MOVES)
        .filter(|_| cx.has_debug_info)
    else {
        return Ok(None);
    };
    let claimed =
        moves::parse(claimed).ok_or("the note of what moved where cannot be read".to_owned())?;
    let parts = parts::<A>(cx, walked, found, &claimed)?;
    Ok(Some(CodeMap::new(parts)))
}

fn compare(
    cx: &Context<'_>,
    map: Option<&CodeMap>,
    report: &mut DebugReport,
) -> Result<DebugState, String> {
    let (input, output) = described(cx);
    if sections(output).next().is_none() {
        return Ok(DebugState::Dropped);
    }
    let raw = |elf: &Elf<'_>| -> BTreeMap<Vec<u8>, Vec<(u64, u64)>> {
        let mut out: BTreeMap<Vec<u8>, Vec<(u64, u64)>> = BTreeMap::new();
        for s in sections(elf) {
            let digest = xxhash_rust::xxh3::xxh3_64(elf.section_data(&s));
            out.entry(s.name.to_vec())
                .or_default()
                .push((s.size, digest));
        }
        out
    };
    let Some(map) = map else {
        return if raw(input) == raw(output) {
            Ok(DebugState::Kept)
        } else {
            Err(
                "debug information changed, and nothing says which new code corresponds to which old code".into(),
            )
        };
    };
    let (old, new) = (load(input, "input")?, load(output, "output")?);
    let parsed = split_files(cx)?;
    let files = [
        split_sections(&parsed[0], false)?,
        split_sections(&parsed[1], true)?,
    ];
    let joined = files
        .each_ref()
        .map(|f| f.iter().map(super::joined).collect::<Vec<_>>());
    let (old_of, new_of) = (|n: &str| by_name(&old, n), |n: &str| by_name(&new, n));
    *report = super::check_mapped(old_of, new_of, map, [&joined[0], &joined[1]], cx.maps);
    // Sections without a meaning here must not change, and none may be lost.
    for (name, data) in &old {
        let known = super::is_compared(name);
        if !known && new.get(name) != Some(data) {
            let name = String::from_utf8_lossy(name);
            return Err(format!("{name} changed, of which nothing is known"));
        }
    }
    Ok(DebugState::Updated)
}

/// The files of split units: the input's, as far as they can be read, and the output's package.
fn split_files<'a>(cx: &Context<'a>) -> Result<[Vec<Elf<'a>>; 2], String> {
    let parse = |data: &'a [u8], which| Elf::parse_debug_file(data, which);
    let old = cx
        .split
        .old
        .iter()
        .filter_map(|data| parse(data, "split units of the input").ok());
    let new = cx
        .split
        .new
        .map(|data| parse(data, "package of the output").map_err(|e| e.to_string()));
    Ok([old.collect(), new.into_iter().collect::<Result<_, _>>()?])
}

/// Their sections, unpacked. What cannot be read of the input's counts as missing.
fn split_sections<'a>(
    files: &[Elf<'a>],
    must: bool,
) -> Result<Vec<super::FileSections<'a>>, String> {
    let read = |elf: &Elf<'a>| -> Result<super::FileSections<'a>, String> {
        let all = elf.sections.iter().filter(|s| is_debug(s.name));
        all.map(|s| Ok((s.name.to_vec(), elf.unpacked_section_data(s)?)))
            .collect()
    };
    let mut out = Vec::new();
    for elf in files {
        match read(elf) {
            Ok(sections) => out.push(sections),
            Err(what) if must => return Err(format!("the package of split units: {what}")),
            Err(_) => {}
        }
    }
    Ok(out)
}

fn by_name<'s>(sections: &'s Sections<'_>, name: &str) -> &'s [u8] {
    sections
        .get(name.as_bytes())
        .map(|data| &data[..])
        .unwrap_or_default()
}

/// Makes the map of the lock step's pairs and what is claimed beyond them.
fn parts<A: Arch>(
    cx: &Context<'_>,
    walked: &[Walked],
    found: &Findings,
    claimed: &Claimed,
) -> Result<CodeMapParts, String> {
    if let Some(run) = claimed.runs.iter().find(|r| {
        let whose = cx.old.owner(InputAddr::new(r.old.0));
        whose
            .and_then(|id| cx.function(id))
            .is_none_or(|f| f.folded.is_some())
    }) {
        return Err(format!(
            "the run at {:#x} is of no function that moved",
            run.old.0
        ));
    }
    let runs = postlink_parallel::map_range(walked.len(), |id| {
        moves::compare::<A>(cx, id as FuncId, &claimed.runs, &walked[id])
    });
    let runs: Vec<Vec<MovedRun>> = runs.into_iter().collect::<Result<_, String>>()?;
    let range = |r: &crate::files::claim::Range| r.start..r.end;
    let mut entry_jumps = Vec::new();
    // What describes a function that was folded into another goes on describing its old code.
    let own = |f: &&Moved| f.folded.is_none();
    for (jump, id) in cx.patches.ranges() {
        let Some(f) = cx.function(id).filter(own) else {
            continue;
        };
        // A landing pad in front of the jump belongs to it.
        let jump = jump.numbers();
        let labels = f.labels.iter().map(|l| l.0).chain([f.old_entry]);
        let entry = labels
            .map(InputAddr::get)
            .filter(|a| *a <= jump.start && jump.start - a <= 4)
            .max();
        entry_jumps.push(entry.unwrap_or(jump.start)..jump.end);
    }
    // What the program knows of a function's address is seen where it is formed; elsewhere either will do.
    let mut follows: BTreeMap<FuncId, bool> = BTreeMap::new();
    for &(id, new) in &found.addresses {
        *follows.entry(id).or_default() |= new;
    }
    let (mut pointers, mut either) = (Vec::new(), Vec::new());
    for (id, f) in cx.functions.iter().enumerate().filter(|(_, f)| own(f)) {
        let both = (f.old_entry.get(), f.new_entry().get());
        match follows.get(&(id as FuncId)) {
            Some(true) => pointers.push(both),
            Some(false) => {}
            None => either.push(both),
        }
    }
    if let Some(more) = &claimed.more {
        compare_claims(more, &entry_jumps, &pointers, &either)?;
    }
    Ok(CodeMapParts {
        bodies: cx
            .functions
            .iter()
            .filter(own)
            .flat_map(|f| f.old.iter().map(|r| range(&r.numbers())))
            .collect(),
        runs: runs.concat(),
        reused: cx.reused.ranges().map(|r| range(&r.0.numbers())).collect(),
        entry_jumps,
        entry_blocks: cx
            .functions
            .iter()
            .filter(own)
            .filter_map(|f| entry_block::<A>(cx, f))
            .collect(),
        pointers,
        either,
        executable: cx.code.iter().map(range).collect(),
    })
}

/// The code at a function's new entry that runs without a branch.
fn entry_block<A: Arch>(cx: &Context<'_>, f: &Moved) -> Option<EntryBlock> {
    let range = f.new.first()?.numbers();
    let (mut at, mut last, mut sure) = (range.start, None, None);
    while at < range.end {
        let Some(insn) = A::decode(cx.output.bytes_from(at)?, at) else {
            break;
        };
        last = Some(at);
        match insn.flow {
            Flow::Next | Flow::Nothing | Flow::Trap => {}
            Flow::Call(_) | Flow::IndirectCall => sure = sure.or(last),
            _ => break,
        }
        at = at.checked_add(u64::from(insn.len))?;
    }
    Some(EntryBlock {
        start: range.start,
        sure: sure.or(last)?,
        last: last?,
    })
}

/// Compares what is claimed of jumps at old entries and of pointers with what was found.
fn compare_claims(
    claimed: &(Vec<Range<u64>>, Vec<(u64, u64)>),
    jumps: &[Range<u64>],
    pointers: &[(u64, u64)],
    either: &[(u64, u64)],
) -> Result<(), String> {
    let mut found: Vec<(u64, u64)> = jumps.iter().map(|j| (j.start, j.end)).collect();
    found.sort_unstable();
    let said: Vec<(u64, u64)> = claimed.0.iter().map(|j| (j.start, j.end)).collect();
    if said != found {
        let other = said.iter().find(|j| !found.contains(j));
        let (start, end) = other.or(found.first()).copied().unwrap_or_default();
        return Err(format!(
            "the note says that {} jumps are at old entries, and there are {}; {start:#x}..{end:#x} is not in both",
            said.len(),
            found.len()
        ));
    }
    let may: BTreeSet<&(u64, u64)> = pointers.iter().chain(either).collect();
    if let Some((old, new)) = claimed.1.iter().find(|pair| !may.contains(pair)) {
        return Err(format!(
            "the note says that pointers to {old:#x} became {new:#x}, which none did"
        ));
    }
    let said: BTreeSet<&(u64, u64)> = claimed.1.iter().collect();
    match pointers.iter().find(|pair| !said.contains(pair)) {
        Some((old, new)) => Err(format!(
            "pointers to {old:#x} became {new:#x}, and the note does not say so"
        )),
        None => Ok(()),
    }
}
