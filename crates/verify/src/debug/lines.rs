//! Rows of line programs.
//!
//! Both programs are run, and what their rows say is compared as two sorted lists: which place of the source covers
//! which bytes, and where statements begin. A program has hundreds of thousands of rows, so a row names its place by a
//! number, the same for both programs.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Range;

use gimli::{ColumnType, DebugLine, DebugLineOffset, Dwarf, EndianSlice, LittleEndian};
use rustc_hash::FxHashMap;

use super::order::sort_by_address;
use super::sequences::{self, Code, LeftOut, Machine};
use super::{Both, CodeMap, DebugReport, EntryBlock, Slice};

/// A place in the source: file, line, column, instruction set, discriminator.
type Place = (u64, u64, u64, u64, u64);

/// The places of rows, each with a number.
#[derive(Default)]
struct Places {
    list: Vec<Place>,
    numbers: FxHashMap<Place, u32>,
    /// There are more than there are numbers.
    full: bool,
}

impl Places {
    fn number(&mut self, place: Place) -> u32 {
        if let Some(number) = self.numbers.get(&place) {
            return *number;
        }
        let Ok(number) = u32::try_from(self.list.len()) else {
            self.full = true;
            return 0;
        };
        self.list.push(place);
        self.numbers.insert(place, number);
        number
    }

    fn of(&self, number: u32) -> Place {
        self.list[number as usize]
    }
}

/// What a row says besides of a place: whether a statement begins, and the flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Marks(u8);

impl Marks {
    const PROLOGUE_END: Marks = Marks(4);

    fn new(all: [bool; 4]) -> Self {
        let bits = all.iter().rev();
        Marks(bits.fold(0, |bits, set| bits << 1 | u8::from(*set)))
    }

    fn all(self) -> [bool; 4] {
        [0, 1, 2, 3].map(|bit| self.0 >> bit & 1 == 1)
    }

    fn any(self) -> bool {
        self.0 != 0
    }

    fn end_prologue(self) -> bool {
        self.0 & Self::PROLOGUE_END.0 != 0
    }
}

/// A row with what it covers.
#[derive(Clone, Copy, Debug)]
struct Row {
    start: u64,
    end: u64,
    place: u32,
    marks: Marks,
}

impl Row {
    fn covers(&self) -> Range<u64> {
        self.start..self.end
    }
}

/// The rows of a program.
#[derive(Default)]
struct Rows {
    rows: Vec<Row>,
    /// One past the last row of each sequence.
    ends: Vec<usize>,
}

impl Rows {
    fn sequences(&self) -> impl Iterator<Item = &[Row]> {
        let starts = std::iter::once(&0).chain(&self.ends);
        let both = starts.zip(&self.ends);
        both.map(|(start, end)| &self.rows[*start..*end])
    }
}

/// A program as it is written.
struct Program<'d> {
    /// Everything between the length and the code: files, directories, opcodes.
    files: &'d [u8],
    code: &'d [u8],
    /// Bytes of the length.
    length: usize,
    /// `None` if the length of an extended opcode is wrong.
    sequences: Option<Vec<Code<'d>>>,
}

/// Offsets of the programs of both files, in pairs: in order, or, if new ones follow all of the old section, as units
/// lead to them.
pub(super) fn pair(
    [old, new]: [&[u8]; 2],
    of_units: impl FnOnce() -> Vec<(u64, u64)>,
) -> Result<Vec<(u64, u64)>, String> {
    let end = old.len() as u64;
    let is_behind = new.len() > old.len() && new.starts_with(old);
    let (old, new) = (offsets(old), offsets(new));
    if is_behind {
        let pairs = of_units();
        for at in new.iter().filter(|at| **at >= end) {
            let of: Vec<u64> = pairs.iter().filter(|p| p.1 == *at).map(|p| p.0).collect();
            if of.len() != 1 || !old.contains(&of[0]) {
                return Err(format!(
                    "the line program at {at:#x} corresponds to those at {of:x?}; it must correspond to one"
                ));
            }
        }
        return Ok(pairs);
    }
    if old.len() != new.len() {
        return Err(format!(
            ".debug_line has {} programs and had {}",
            new.len(),
            old.len()
        ));
    }
    Ok(old.into_iter().zip(new).collect())
}

fn offsets(section: &[u8]) -> Vec<u64> {
    let mut out = Vec::new();
    let mut at = 0usize;
    while let Some(field) = section.get(at..).and_then(|rest| rest.get(..4)) {
        out.push(at as u64);
        let short = u32::from_le_bytes([field[0], field[1], field[2], field[3]]);
        let (len, header) = match short {
            u32::MAX => match section.get(at + 4..at + 12).map(<[u8; 8]>::try_from) {
                Some(Ok(long)) => (u64::from_le_bytes(long), 12),
                _ => break,
            },
            short => (u64::from(short), 4),
        };
        let next = usize::try_from(len)
            .ok()
            .and_then(|len| at.checked_add(header)?.checked_add(len));
        match next {
            Some(next) if next <= section.len() => at = next,
            _ => break,
        }
    }
    out
}

impl<'d> Program<'d> {
    fn read(dwarf: &Dwarf<Slice<'d>>, at: u64) -> gimli::Result<Program<'d>> {
        let at = DebugLineOffset(at as usize);
        let program = dwarf.debug_line.program(at, 8, None, None)?;
        let header = program.header();
        let code = header.raw_program_buf().slice();
        let length = match header.format() {
            gimli::Format::Dwarf64 => 12,
            gimli::Format::Dwarf32 => 4,
        };
        let before = header.unit_length() - code.len();
        Ok(Program {
            files: bytes_of(&dwarf.debug_line, at.0 + length, before),
            code,
            length,
            sequences: sequences::sequences(code, &Machine::new(header)),
        })
    }

    /// Its rows, but for those of some sequences.
    fn rows(&self, without: &[bool], places: &mut Places) -> gimli::Result<Rows> {
        // As the reader gets it: the length, the header, and the sequences that are left.
        let all = self.sequences.as_deref().unwrap_or_default();
        let kept = all.iter().enumerate();
        let kept = kept.filter(|(i, _)| without.get(*i) != Some(&true));
        let kept = kept.map(|(_, sequence)| sequence);
        let count = kept.clone().map(|s| s.rows as usize).sum();
        let left: Vec<&[u8]> = if without.contains(&true) && self.sequences.is_some() {
            kept.map(|sequence| sequence.bytes).collect()
        } else {
            vec![self.code]
        };
        let len = self.files.len() + left.iter().map(|part| part.len()).sum::<usize>();
        let mut bytes = Vec::with_capacity(self.length + len);
        if self.length == 12 {
            bytes.extend([0xff; 4]);
        }
        bytes.extend(len.to_le_bytes());
        bytes.truncate(self.length);
        bytes.extend_from_slice(self.files);
        left.iter().for_each(|part| bytes.extend_from_slice(part));
        read_rows(&bytes, count, places)
    }
}

/// Runs the program that is all of a section, and has as many rows if its sequences were counted.
fn read_rows(section: &[u8], count: usize, places: &mut Places) -> gimli::Result<Rows> {
    let bytes_there = section.len();
    let section = DebugLine::from(EndianSlice::new(section, LittleEndian));
    let program = section.program(DebugLineOffset(0), 8, None, None)?;
    let mut rows = program.rows();
    let mut out = Rows::default();
    // Each takes a byte at least.
    out.rows.reserve_exact(count.min(bytes_there));
    while let Some((_, row)) = rows.next_row()? {
        let first = out.ends.last().copied().unwrap_or(0);
        let address = row.address();
        if let Some(last) = out.rows[first..].last_mut() {
            last.end = address;
        }
        if row.end_sequence() {
            out.ends.push(out.rows.len());
            continue;
        }
        let column = match row.column() {
            ColumnType::LeftEdge => 0,
            ColumnType::Column(n) => n.get(),
        };
        let line = row.line().map_or(0, |n| n.get());
        let place = (
            row.file_index(),
            line,
            column,
            row.isa(),
            row.discriminator(),
        );
        out.rows.push(Row {
            start: address,
            end: address,
            place: places.number(place),
            marks: Marks::new([
                row.is_stmt(),
                row.basic_block(),
                row.prologue_end(),
                row.epilogue_begin(),
            ]),
        });
    }
    // Rows without an end are of no sequence.
    out.rows.truncate(out.ends.last().copied().unwrap_or(0));
    Ok(out)
}

fn bytes_of<'d>(section: &DebugLine<Slice<'d>>, at: usize, len: usize) -> &'d [u8] {
    use gimli::Section;
    let all = section.reader().slice();
    let bytes = all.get(at..).and_then(|rest| rest.get(..len));
    bytes.unwrap_or_default()
}

/// Compares a program of each file.
pub(super) fn program(both: &Both<'_>, (a, b): (u64, u64)) -> DebugReport {
    let mut report = DebugReport::default();
    if let Err(what) = compare(both, (a, b), &mut report) {
        report.fail(format!("the line program at {b:#x} {what}"));
    }
    report
}

fn compare(both: &Both<'_>, (a, b): (u64, u64), report: &mut DebugReport) -> Result<(), String> {
    let Ok(old) = Program::read(&both.old, a) else {
        return Ok(());
    };
    let new = Program::read(&both.new, b);
    let mut places = Places::default();
    let of_old = old.sequences.as_deref();
    let of_new = new.as_ref().ok().and_then(|new| {
        let same = new.files == old.files;
        new.sequences.as_deref().filter(|_| same)
    });
    // The same opcodes say the same where the headers do.
    let equal = match (of_old, of_new) {
        (Some(old), Some(new)) => sequences::equal(both.map, old, new),
        _ => Default::default(),
    };
    let Ok(old_rows) = old.rows(&equal[0], &mut places) else {
        return Ok(());
    };
    let places_of_old = places.list.len();
    // Before the rows of the new program are read: those of both are a large part of the memory.
    let (cover, marks) = expected(both.map, &old_rows);
    let mut says_prologues = old_rows.rows.iter().any(|r| r.marks.end_prologue());
    let count = old_rows.rows.len() as u64;
    drop(old_rows);
    let cover = normal(cover);
    let cannot = |e: gimli::Error| format!("cannot be read: {e}");
    let new = new.map_err(cannot)?;
    let new_rows = new.rows(&equal[1], &mut places).map_err(cannot)?;
    if places.full {
        return Err("has rows of more than 2^32 places".to_owned());
    }
    let left_out = LeftOut::new(of_old.unwrap_or_default(), &equal[0]);
    report.rows += left_out.rows + count;
    says_prologues |= left_out.ends_prologue;
    if old.files != new.files {
        report.fail(format!("the header of the line program at {b:#x} changed"));
    }
    let both_sequences = (of_old, new.sequences.as_deref());
    sequences::compare(both_sequences, &equal[1], b, report);
    // Programs that never say so do not begin to.
    let blocks = both.map.entry_blocks();
    let blocks = blocks_in(&cover, if says_prologues { blocks } else { &[] });
    let ends = blocks.filter_map(|block| prologue_end((&cover, &marks), &places, block));
    let ends: BTreeMap<u64, u32> = ends.collect();
    let mut found: Vec<Cover> = Vec::with_capacity(new_rows.rows.len());
    let mut found_marks = Vec::with_capacity(new_rows.rows.len());
    for row in &new_rows.rows {
        let covers = row.covers();
        if covers.is_empty() && row.place as usize >= places_of_old {
            report.fail(format!(
                "the line program at {b:#x} has a row {:x?} at {:#x}, as none of the old rows",
                places.of(row.place),
                row.start
            ));
        }
        let counts = || is_marked(&marks, row.start) || left_out.covers(row.start);
        if row.marks.any() && (!covers.is_empty() || counts()) {
            found_marks.push(Marked::new(row.start, row));
        }
        found.push((row.start, row.end, row.place));
    }
    drop(new_rows);
    sort_by_address(&mut found_marks, |m| m.at, |_, _| Ordering::Equal);
    compare_cover(&places, cover, normal(found), b, report);
    compare_marks(&places, (&marks, &ends), &found_marks, b, report);
    Ok(())
}

/// What covers an interval: start, end, place.
type Cover = (u64, u64, u32);

/// A row that begins a statement or has a flag, and where it is or should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Marked {
    at: u64,
    place: u32,
    marks: Marks,
}

impl Marked {
    fn new(at: u64, row: &Row) -> Self {
        Marked {
            at,
            place: row.place,
            marks: row.marks,
        }
    }
}

/// Whether there are marked rows at an address, in a list that is sorted.
fn is_marked(sorted: &[Marked], at: u64) -> bool {
    sorted.binary_search_by_key(&at, |m| m.at).is_ok()
}

/// What the new program should say: places by interval, and marked rows by address, in order.
fn expected(map: &CodeMap, old: &Rows) -> (Vec<Cover>, Vec<Marked>) {
    let mut cover = Vec::with_capacity(old.rows.len());
    let mut marks = Vec::with_capacity(old.rows.len());
    let (mut near, mut image) = (map.cursor(), Vec::new());
    for sequence in old.sequences() {
        let (Some(first), Some(last)) = (sequence.first(), sequence.last()) else {
            continue;
        };
        let all = first.start..last.end;
        let touched = near.touches(&all);
        for row in sequence {
            if touched {
                near.put_image(&row.covers(), &mut image);
                cover.extend(image.drain(..).map(|r| (r.start, r.end, row.place)));
            } else {
                cover.push((row.start, row.end, row.place));
            }
            if !row.marks.any() || row.start >= all.end {
                continue;
            }
            let at = if touched {
                near.instruction(row.start)
            } else {
                Some(row.start)
            };
            marks.extend(at.map(|at| Marked::new(at, row)));
        }
        if !touched {
            continue;
        }
        let ascends = sequence.is_sorted_by_key(|r| r.start);
        for jump in map.entry_jumps(&all) {
            let in_effect = if ascends {
                let behind = sequence.partition_point(|r| r.start <= jump.start);
                sequence[..behind].last()
            } else {
                sequence.iter().rfind(|r| r.start <= jump.start)
            };
            cover.extend(in_effect.map(|r| (jump.start, jump.end, r.place)));
        }
    }
    marks.shrink_to_fit();
    sort_by_address(&mut marks, |m| m.at, |_, _| Ordering::Equal);
    (cover, marks)
}

/// Joins neighbours that say the same.
fn normal(mut cover: Vec<Cover>) -> Vec<Cover> {
    cover.retain(|c| c.0 < c.1);
    sort_by_address(&mut cover, |c| c.0, Cover::cmp);
    cover.dedup_by(|next, last| {
        let joins = last.1 == next.0 && last.2 == next.2;
        if joins {
            last.1 = next.1;
        }
        joins
    });
    cover.shrink_to_fit();
    cover
}

/// The blocks that begin in what is covered. Both ascend.
fn blocks_in<'b>(
    cover: &[Cover],
    mut blocks: &'b [EntryBlock],
) -> impl Iterator<Item = &'b EntryBlock> {
    cover.iter().flat_map(move |(start, end, _)| {
        // A unit has few of all blocks, or most of them.
        if blocks.first().is_some_and(|b| b.start < *start) {
            let mut near = 1;
            while blocks.get(near).is_some_and(|b| b.start < *start) {
                near *= 2;
            }
            let near = &blocks[..near.min(blocks.len())];
            blocks = &blocks[near.partition_point(|b| b.start < *start)..];
        }
        let inside = blocks.iter().take_while(|b| b.start < *end).count();
        let (inside, behind) = blocks.split_at(inside);
        blocks = behind;
        inside
    })
}

fn compare_cover(
    places: &Places,
    expected: Vec<Cover>,
    found: Vec<Cover>,
    at: u64,
    report: &mut DebugReport,
) {
    if expected == found {
        return;
    }
    let i = expected
        .iter()
        .zip(&found)
        .take_while(|(a, b)| a == b)
        .count();
    let shown = |c: Option<&Cover>| c.map(|c| (c.0..c.1, places.of(c.2)));
    let (should, is) = (shown(expected.get(i)), shown(found.get(i)));
    report.fail(format!(
        "the line program at {at:#x} says {is:x?}, where {should:x?} is right"
    ));
}

/// Where one more row may say that a prologue ends, and the place that is in effect there: debuggers put breakpoints
/// on functions at such rows, and those of the input may be in blocks that do not follow the entry any more. It is
/// where the source changes first in code that each entry runs through, else at the last instruction of that. `None`:
/// a row there says so.
fn prologue_end(
    (cover, marks): (&[Cover], &[Marked]),
    places: &Places,
    block: &EntryBlock,
) -> Option<(u64, u32)> {
    let line = |c: &Cover| places.of(c.2).1;
    let begin = cover.partition_point(|c| c.1 <= block.start);
    let (entry, after) = cover.get(begin..)?.split_first()?;
    if !(entry.0..entry.1).contains(&block.start) {
        return None;
    }
    let until = |end: u64| after.iter().take_while(move |c| c.0 <= end);
    let in_block = marks.get(marks.partition_point(|m| m.at < block.start)..)?;
    let mut in_block = in_block.iter().take_while(|m| m.at <= block.last);
    if in_block.any(|m| m.marks.end_prologue()) {
        return None;
    }
    if let Some(changes) = until(block.sure).find(|c| line(c) != 0) {
        return Some((changes.0, changes.2));
    }
    let last = until(block.sure).last().unwrap_or(entry);
    let (at, of) = if line(last) == 0 {
        (block.start, entry)
    } else {
        (block.sure, last)
    };
    (line(of) != 0).then_some((at, of.2))
}

/// Whether rows at an address differ in one more that says that a prologue ends, or in one that says so besides.
fn ends_prologue(expected: &[Marked], found: &[Marked], place: u32) -> bool {
    let Some((one, before)) = found.split_last() else {
        return false;
    };
    let without = Marks(one.marks.0 & !Marks::PROLOGUE_END.0);
    let is_one_more = !without.any() && before == expected;
    let marks = without;
    let says_so_besides = expected.split_last() == Some((&Marked { marks, ..*one }, before));
    one.place == place && one.marks.end_prologue() && (is_one_more || says_so_besides)
}

/// Both lists are sorted by address.
fn compare_marks(
    places: &Places,
    (expected, ends): (&[Marked], &BTreeMap<u64, u32>),
    found: &[Marked],
    at: u64,
    report: &mut DebugReport,
) {
    let (mut expected, mut found) = (expected, found);
    let take = |list: &mut &[Marked], at: u64| {
        let (here, behind) = list.split_at(list.iter().take_while(|m| m.at == at).count());
        *list = behind;
        here.to_vec()
    };
    loop {
        // Nearly always all are the same.
        let both = expected.iter().zip(found).take_while(|(a, b)| a == b);
        let same = both.count();
        if same == expected.len() && same == found.len() {
            return;
        }
        // From the first row at the address of those that differ.
        let differ = expected.get(same).into_iter().chain(found.get(same));
        let address = differ.map(|m| m.at).min().unwrap_or(0);
        let before = expected[..same].partition_point(|m| m.at < address);
        (expected, found) = (&expected[before..], &found[before..]);
        let (should, is) = (take(&mut expected, address), take(&mut found, address));
        let may_end = ends.get(&address);
        if !may_end.is_some_and(|place| ends_prologue(&should, &is, *place)) {
            let shown = |rows: &[Marked]| -> Vec<(Place, [bool; 4])> {
                let all = rows.iter().map(|m| (places.of(m.place), m.marks.all()));
                all.collect()
            };
            let (should, is) = (shown(&should), shown(&is));
            report.fail(format!(
                "the line program at {at:#x} has statements and flags {is:x?} at {address:#x}, where {should:x?} is right"
            ));
            return;
        }
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::*;
    use crate::debug::sequences::tests::{LENGTHS, sequence};
    use crate::debug::{CodeMapParts, MovedRun, check};

    /// A program of one file with these sequences.
    fn program(sequences: &[Vec<u8>]) -> Vec<u8> {
        let mut rest = vec![1, 1, 1, (-5i8) as u8, 14, 13];
        rest.extend(LENGTHS);
        rest.extend(b"\0a.c\0\0\0\0\0");
        let header = (rest.len() as u32).to_le_bytes();
        let after_length = [&[4, 0][..], &header, &rest, &sequences.concat()].concat();
        let length = (after_length.len() as u32).to_le_bytes();
        [&length[..], &after_length].concat()
    }

    /// A function of 16 bytes moved.
    fn map() -> CodeMap {
        CodeMap::new(CodeMapParts {
            bodies: vec![0x1100..0x1110],
            runs: vec![MovedRun {
                old: (0x1100, 16),
                new: (0x5000, 16),
                tail: 0,
            }],
            executable: vec![0x1000..0x2000],
            ..CodeMapParts::default()
        })
    }

    fn compared(old: &[Vec<u8>], new: &[Vec<u8>]) -> DebugReport {
        let (old, new, map) = (program(old), program(new), map());
        fn section<'d>(line: &'d [u8], name: &str) -> &'d [u8] {
            if name == ".debug_line" { line } else { &[] }
        }
        check(|name| section(&old, name), |name| section(&new, name), &map)
    }

    #[test]
    fn sequences_of_code_that_stayed_are_left_out_and_others_compared() {
        let (before, moved, behind) = (
            sequence(0x1000, 1),
            sequence(0x1100, 3),
            sequence(0x1200, 5),
        );
        let old = [before.clone(), moved, behind.clone()];
        let new = [before.clone(), behind.clone(), sequence(0x5000, 3)];
        let report = compared(&old, &new);
        assert_eq!((report.failures, report.rows), (Vec::new(), 6));
        // What is left out is what is the same.
        let read = |sequences: &[Vec<u8>]| {
            let section =
                DebugLine::from(EndianSlice::new(program(sequences).leak(), LittleEndian));
            let dwarf = Dwarf {
                debug_line: section,
                ..Dwarf::default()
            };
            Program::read(&dwarf, 0).unwrap().sequences.unwrap()
        };
        let equal = sequences::equal(&map(), &read(&old), &read(&new));
        assert_eq!(equal, [vec![true, false, true], vec![true, true, false]]);

        let fails = |new: &[Vec<u8>], what: &str| {
            let failures = compared(&old, new).failures;
            assert!(failures.iter().any(|f| f.contains(what)), "{failures:?}");
        };
        let (own, new) = (sequence(0x5000, 3), behind.clone());
        // Another line of code that stayed, of code that moved, and one sequence less or more.
        fails(&[before.clone(), sequence(0x1200, 6), own.clone()], "says");
        fails(&[before.clone(), new.clone(), sequence(0x5000, 4)], "says");
        fails(&[before.clone(), own.clone()], "says");
        fails(
            &[before.clone(), new.clone(), own.clone(), new.clone()],
            "says",
        );
        fails(&[before, new, sequence(0x1100, 3), own], "says");
    }

    /// A row that covers nothing was not looked at where the sequence there had been left out.
    #[test]
    fn a_statement_more_in_code_that_stayed_is_found_if_it_covers_nothing() {
        let old = [sequence(0x1000, 1), sequence(0x1100, 3)];
        let mut nothing = vec![0, 9, 2];
        nothing.extend(0x1004u64.to_le_bytes());
        nothing.extend([4, 1, 13 + 5, 0, 1, 1]);
        let moved = sequence(0x5000, 3);
        assert_eq!(compared(&old, &[old[0].clone(), moved.clone()]).failed, 0);
        let failures = compared(&old, &[old[0].clone(), moved, nothing]).failures;
        assert!(
            failures.iter().any(|f| f.contains("statements")),
            "{failures:?}"
        );
    }

    #[test]
    fn blocks_are_found_in_what_is_covered() {
        arbtest::arbtest(|u| {
            let mut at = 0;
            let mut blocks = Vec::new();
            for _ in 0..u.int_in_range(0..=20)? {
                at += u.int_in_range(0..=9)?;
                blocks.push(EntryBlock {
                    start: at,
                    sure: at,
                    last: at,
                });
            }
            let mut cover = Vec::new();
            for _ in 0..u.int_in_range(0..=12)? {
                let start = u.int_in_range(0..=100)?;
                cover.push((start, start + u.int_in_range(1..=30)?, 0));
            }
            let cover = normal(cover);
            let found: Vec<&EntryBlock> = blocks_in(&cover, &blocks).collect();
            let is_inside = |b: &&EntryBlock| cover.iter().any(|c| c.0 <= b.start && b.start < c.1);
            let inside: Vec<&EntryBlock> = blocks.iter().filter(is_inside).collect();
            assert_eq!(found, inside);
            Ok(())
        });
    }
}
