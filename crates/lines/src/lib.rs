//! Source lines of code, and which of them ran.
//!
//! A line's count is the most often that one of its instructions ran, within a function; of a line that is in
//! several functions (templates, inlining) the counts add up. A conditional branch belongs to the line of its
//! instruction.

#![deny(clippy::indexing_slicing)]

use std::collections::BTreeMap;

use addr2line::Context;
use gimli::{Dwarf, EndianSlice, LittleEndian, SectionId};
use postlink_elf::compressed;
use postlink_elf::elf::Elf;
use postlink_rewrite::facts::{Block, Ending, Facts, Function};
use rustc_hash::FxHashMap;

/// Code of one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// First address.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// Number of the file.
    pub file: u32,
    /// Line.
    pub line: u32,
}

/// Source lines of a program.
#[derive(Debug, Default)]
pub struct Lines {
    /// Names of files.
    pub files: Vec<String>,
    /// By function: its lines, by address.
    pub of: Vec<Vec<Stretch>>,
}

impl Lines {
    /// Reads a file's debug information. `Err`: why there is none, in a sentence.
    pub fn load(elf: &Elf<'_>, facts: &Facts) -> Result<Lines, String> {
        let mut unpacked = BTreeMap::new();
        for name in compressed::DEBUG_SECTIONS {
            let of = compressed::by_name(elf, name);
            let of =
                of.map_err(|error| format!("The debug information cannot be read: {error}."))?;
            unpacked.insert(name, of.unwrap_or_default());
        }
        if unpacked
            .get(".debug_line")
            .is_none_or(|line| line.is_empty())
        {
            return Err("The program has no debug information, so there are no source lines (compile with -g).".into());
        }
        let section = |id: SectionId| {
            let bytes = unpacked.get(id.name()).map_or(&[][..], |bytes| bytes);
            Ok::<_, gimli::Error>(EndianSlice::new(bytes, LittleEndian))
        };
        let context = Dwarf::load(section)
            .and_then(Context::from_dwarf)
            .map_err(|error| format!("The debug information cannot be read: {error}."))?;
        let mut lines = Lines::default();
        let mut numbers: FxHashMap<String, u32> = FxHashMap::default();
        postlink_rewrite::expect(facts.functions.len());
        for function in &facts.functions {
            postlink_rewrite::did();
            let mut own: Vec<Stretch> = Vec::new();
            for (start, end) in &function.parts {
                // A unit that cannot be read has no lines; the others have theirs.
                let Ok(found) = context.find_location_range(*start, *end) else {
                    continue;
                };
                for (at, len, location) in found {
                    let (Some(file), Some(line @ 1..)) = (location.file, location.line) else {
                        continue;
                    };
                    let number = match numbers.get(file) {
                        Some(number) => *number,
                        None => {
                            let number = lines.files.len() as u32;
                            lines.files.push(file.to_owned());
                            numbers.insert(file.to_owned(), number);
                            number
                        }
                    };
                    let (from, to) = (at.max(*start), at.saturating_add(len).min(*end));
                    if from < to {
                        own.push(Stretch {
                            start: from,
                            end: to,
                            file: number,
                            line,
                        });
                    }
                }
            }
            own.sort_unstable_by_key(|s| (s.start, s.end));
            lines.of.push(own);
        }
        if lines.files.is_empty() {
            return Err(
                "The debug information has no lines of the functions of this program.".into(),
            );
        }
        Ok(lines)
    }

    /// The file and line of an address of a function.
    pub fn at(&self, function: usize, address: u64) -> Option<(u32, u32)> {
        let own = self.of.get(function)?;
        let k = own.partition_point(|s| s.start <= address).checked_sub(1)?;
        let stretch = own.get(k).filter(|stretch| address < stretch.end)?;
        Some((stretch.file, stretch.line))
    }

    /// Which lines ran, by file and line.
    ///
    /// Lines of functions without counters ([`has_counts`]) are not in it, unless `all` is set: then they did not run.
    pub fn coverage(&self, facts: &Facts, all: bool) -> Vec<FileCoverage> {
        let mut found: BTreeMap<(u32, u32), LineCoverage> = BTreeMap::new();
        for (f, function) in facts.functions.iter().enumerate() {
            if !all && !has_counts(function) {
                continue;
            }
            let mut own: FxHashMap<(u32, u32), u64> = FxHashMap::default();
            for stretch in self.of.get(f).into_iter().flatten() {
                let most = own.entry((stretch.file, stretch.line)).or_default();
                *most = (*most).max(count_of(function, stretch));
            }
            for (at, n) in own {
                let line = found.entry(at).or_default();
                line.line = at.1;
                line.count = line.count.saturating_add(n);
            }
            let blocks = function.ran.iter().flat_map(|ran| &ran.blocks);
            let of: FxHashMap<u64, &Block> = blocks
                .filter(|block| block.ending == Ending::Branches)
                .map(|block| (block.branch, block))
                .collect();
            for at in &function.branches {
                let Some(line) = self.at(f, *at).and_then(|place| found.get_mut(&place)) else {
                    continue;
                };
                let block = of.get(at).copied();
                line.branches.push(Branch {
                    ran: block.map_or(0, |block| block.count),
                    ways: block.map_or((0, 0), ways),
                });
            }
        }
        let mut out: Vec<FileCoverage> = Vec::new();
        for ((file, _), line) in found {
            match out.last_mut().filter(|last| last.file == file) {
                Some(last) => last.lines.push(line),
                None => out.push(FileCoverage {
                    file,
                    lines: vec![line],
                }),
            }
        }
        out
    }
}

/// A source file's lines that have code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileCoverage {
    /// Number of the file.
    pub file: u32,
    /// By number.
    pub lines: Vec<LineCoverage>,
}

/// A line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LineCoverage {
    /// Its number, from 1.
    pub line: u32,
    /// How often it ran.
    pub count: u64,
    /// Its conditional branch instructions, those that never ran included.
    pub branches: Vec<Branch>,
}

/// A conditional branch instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Branch {
    /// How often it ran.
    pub ran: u64,
    /// How often it jumped, and how often it went on.
    pub ways: (u64, u64),
}

/// Whether what a function did is known: it ran, or its counters say that it did not. What cannot be moved has no
/// counters.
pub fn has_counts(function: &Function) -> bool {
    function.ran.is_some() || function.pin.is_none()
}

/// How often the branch at a block's end jumped, and how often it went on.
pub fn ways(block: &Block) -> (u64, u64) {
    match &block.edges[..] {
        [taken, on] => (taken.count, on.count),
        [on] => (block.out, on.count),
        _ => (block.count, 0),
    }
}

/// Whether a conditional branch was taken and was not taken.
pub fn goes_both_ways(block: &Block) -> bool {
    match &block.edges[..] {
        [taken, on] => taken.count > 0 && on.count > 0,
        [on] => on.count > 0 && block.out > 0,
        _ => true,
    }
}

/// The most often that something of a stretch ran.
fn count_of(function: &Function, stretch: &Stretch) -> u64 {
    let Some(ran) = &function.ran else { return 0 };
    let part = function
        .parts
        .iter()
        .find(|p| p.0 <= stretch.start && stretch.start < p.1);
    let Some(part) = part else { return 0 };
    // Blocks ascend within a part.
    let is_own = |b: &&Block| b.start >= part.0 && b.start < part.1;
    let own = ran
        .blocks
        .iter()
        .skip_while(|b| !is_own(b))
        .take_while(is_own);
    let overlapping = own
        .skip_while(|b| b.end <= stretch.start)
        .take_while(|b| b.start < stretch.end);
    overlapping.map(|b| b.count).max().unwrap_or(0)
}
