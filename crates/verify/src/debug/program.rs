//! Debug information of a program: what became of it, and the comparison by the lock step's pairs.

use std::collections::BTreeMap;

use rayon::prelude::*;

use super::map::{CodeMap, CodeMapParts, MovedRun};
use super::{DebugReport, moves};
use crate::arch::Arch;
use crate::context::{Context, Findings, FuncId};
use crate::files::elf::{self, Elf};
use crate::report::{Check, DebugState, DebugSummary, Failure};
use crate::walk::Walked;

/// The type of the note that says which bytes stand for which.
const MOVES: u32 = 2;

/// Sections of debug information by name, unpacked.
type Sections<'d> = BTreeMap<&'d [u8], &'d [u8]>;

/// Whether the output says which bytes stand for which.
pub(crate) fn is_described(output: &Elf<'_>) -> bool {
    output.note(b"postlink", MOVES).is_some()
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
    for s in sections(elf) {
        if s.flags & elf::SHF_COMPRESSED != 0 || s.name.starts_with(b".z") {
            let name = String::from_utf8_lossy(s.name);
            return Err(format!("{name} of the {which} is compressed"));
        }
        out.entry(s.name).or_insert(elf.section_data(&s));
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
    sections(cx.input).next()?;
    let mut report = DebugReport::default();
    let state = match compare::<A>(cx, walked, found, &mut report) {
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
    Some(DebugSummary {
        state,
        entries: report.entries,
        scopes: report.scopes,
        places: report.places,
        addresses: report.addresses,
        rows: report.rows,
    })
}

fn compare<A: Arch>(
    cx: &Context<'_>,
    walked: &[Walked],
    found: &mut Findings,
    report: &mut DebugReport,
) -> Result<DebugState, String> {
    if sections(cx.output).next().is_none() {
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
    let Some(claimed) = cx.output.note(b"postlink", MOVES) else {
        return match raw(cx.input) == raw(cx.output) {
            true => Ok(DebugState::Kept),
            false => Err(
                "debug information changed, and nothing says which new code corresponds to which old code".into(),
            ),
        };
    };
    let claimed =
        moves::parse(claimed).ok_or("the note of what moved where cannot be read".to_owned())?;
    let (old, new) = (load(cx.input, "input")?, load(cx.output, "output")?);
    let map = CodeMap::new(parts::<A>(cx, walked, found, &claimed)?);
    *report = super::check(|n| by_name(&old, n), |n| by_name(&new, n), &map);
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

fn by_name<'d>(sections: &Sections<'d>, name: &str) -> &'d [u8] {
    sections.get(name.as_bytes()).copied().unwrap_or_default()
}

/// Makes the map of the lock step's pairs and what is claimed beyond them.
fn parts<A: Arch>(
    cx: &Context<'_>,
    walked: &[Walked],
    found: &Findings,
    claimed: &[MovedRun],
) -> Result<CodeMapParts, String> {
    if let Some(run) = claimed.iter().find(|r| cx.old.owner(r.old.0).is_none()) {
        return Err(format!(
            "the run at {:#x} is of no function that moved",
            run.old.0
        ));
    }
    let runs: Vec<Vec<MovedRun>> = walked
        .par_iter()
        .enumerate()
        .map(|(id, w)| moves::compare::<A>(cx, id as FuncId, claimed, w))
        .collect::<Result<_, String>>()?;
    let range = |r: &crate::files::claim::Range| r.start..r.end;
    let mut entry_jumps = Vec::new();
    for (jump, id) in cx.patches.ranges() {
        let Some(f) = cx.function(id) else {
            continue;
        };
        // A landing pad in front of the jump belongs to it.
        let labels = f.labels.iter().map(|l| l.0).chain([f.old_entry]);
        let entry = labels
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
    for (id, f) in cx.functions.iter().enumerate() {
        let both = (f.old_entry, f.new_entry());
        match follows.get(&(id as FuncId)) {
            Some(true) => pointers.push(both),
            Some(false) => {}
            None => either.push(both),
        }
    }
    Ok(CodeMapParts {
        bodies: cx
            .functions
            .iter()
            .flat_map(|f| f.old.iter().map(range))
            .collect(),
        runs: runs.concat(),
        reused: cx.reused.ranges().map(|r| range(&r.0)).collect(),
        entry_jumps,
        pointers,
        either,
        executable: cx.code.iter().map(range).collect(),
    })
}
