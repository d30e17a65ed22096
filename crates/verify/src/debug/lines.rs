//! Rows of line programs.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use gimli::{ColumnType, DebugLineOffset, Dwarf};

use super::{Both, DebugReport, EntryBlock, Slice};
use crate::files::bytes::Reader;

/// A place in the source: file, line, column, instruction set, discriminator.
type Place = (u64, u64, u64, u64, u64);

/// Which of a row's marks says that a prologue ends.
const PROLOGUE_END: usize = 2;

/// A row with what it covers.
#[derive(Clone, Debug)]
struct Row {
    covers: Range<u64>,
    place: Place,
    /// Whether a statement begins, and the flags.
    marks: [bool; 4],
}

impl Row {
    fn is_marked(&self) -> bool {
        self.marks.contains(&true)
    }
}

/// Sequences of a program.
struct Program {
    sequences: Vec<Vec<Row>>,
    files: Vec<u8>,
    /// `None` if the length of an extended opcode is wrong. See [`sequences`].
    code: Option<Vec<Code>>,
}

/// A sequence as it is written.
struct Code {
    bytes: Vec<u8>,
    /// Whether its first row names its file.
    sets_file: bool,
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

fn read(dwarf: &Dwarf<Slice<'_>>, at: u64) -> gimli::Result<Program> {
    let program = dwarf
        .debug_line
        .program(DebugLineOffset(at as usize), 8, None, None)?;
    let header = program.header().clone();
    let code = header.raw_program_buf();
    let sequences_of_code = sequences(
        code.slice(),
        header.standard_opcode_lengths().slice(),
        header.opcode_base(),
        header.address_size(),
    );
    let all = dwarf
        .debug_line
        .program(DebugLineOffset(at as usize), 8, None, None)?;
    let whole = all.header().unit_length();
    let field = if header.format() == gimli::Format::Dwarf64 {
        12
    } else {
        4
    };
    // Everything between the length and the code: files, directories, opcodes.
    let before = whole - code.len();
    let section = &dwarf.debug_line;
    let files = bytes_of(section, at as usize + field, before);
    let mut rows = program.rows();
    let mut sequences = Vec::new();
    let mut open: Vec<Row> = Vec::new();
    while let Some((_, row)) = rows.next_row()? {
        let address = row.address();
        if let Some(last) = open.last_mut() {
            last.covers.end = address;
        }
        if row.end_sequence() {
            sequences.push(std::mem::take(&mut open));
            continue;
        }
        let column = match row.column() {
            ColumnType::LeftEdge => 0,
            ColumnType::Column(n) => n.get(),
        };
        let line = row.line().map_or(0, |n| n.get());
        open.push(Row {
            covers: address..address,
            place: (
                row.file_index(),
                line,
                column,
                row.isa(),
                row.discriminator(),
            ),
            marks: [
                row.is_stmt(),
                row.basic_block(),
                row.prologue_end(),
                row.epilogue_begin(),
            ],
        });
    }
    Ok(Program {
        sequences,
        files,
        code: sequences_of_code,
    })
}

/// Sequences as they are written. `None` if the program ends within an opcode or if an extended opcode is not as long
/// as what it holds: readers differ in what they do about others.
fn sequences(code: &[u8], lengths: &[u8], opcode_base: u8, address: u8) -> Option<Vec<Code>> {
    let mut r = Reader::new(code);
    let mut out = Vec::new();
    // Where the sequence begins, whether its file is set, and whether it was when the first row was appended.
    let (mut begin, mut file, mut at_row) = (0, false, None);
    while !r.is_empty() {
        match r.u8()? {
            0 => {
                let length = r.uleb()?;
                let start = r.pos();
                let opcode = r.u8()?;
                match opcode {
                    1 => {}
                    2 => drop(r.take(address.into())?),
                    3 => {
                        while r.u8()? != 0 {}
                        for _ in 0..3 {
                            r.uleb()?;
                        }
                    }
                    4 => drop(r.uleb()?),
                    _ => drop(r.take(length.checked_sub(1)?.try_into().ok()?)?),
                }
                if (r.pos() - start) as u64 != length {
                    return None;
                }
                if opcode == 1 {
                    out.push(Code {
                        bytes: code[begin..r.pos()].to_vec(),
                        sets_file: at_row.unwrap_or(true),
                    });
                    (begin, file, at_row) = (r.pos(), false, None);
                }
            }
            special if special >= opcode_base => _ = at_row.get_or_insert(file),
            // The one standard opcode with an operand of a fixed size.
            9 => drop(r.take(2)?),
            opcode => {
                match opcode {
                    1 => _ = at_row.get_or_insert(file),
                    4 => file = true,
                    _ => {}
                }
                for _ in 0..*lengths.get(usize::from(opcode) - 1)? {
                    r.uleb()?;
                }
            }
        }
    }
    Some(out)
}

fn bytes_of(section: &gimli::DebugLine<Slice<'_>>, at: usize, len: usize) -> Vec<u8> {
    use gimli::Section;
    let all = section.reader().slice();
    all.get(at..)
        .and_then(|rest| rest.get(..len))
        .unwrap_or_default()
        .to_vec()
}

/// Compares a program of each file.
pub(super) fn program(both: &Both<'_>, (a, b): (u64, u64)) -> DebugReport {
    let mut report = DebugReport::default();
    let Ok(old) = read(&both.old, a) else {
        return report;
    };
    let new = match read(&both.new, b) {
        Ok(new) => new,
        Err(e) => {
            report.fail(format!("the line program at {b:#x} cannot be read: {e}"));
            return report;
        }
    };
    report.rows += old.sequences.iter().map(|s| s.len() as u64).sum::<u64>();
    if old.files != new.files {
        report.fail(format!("the header of the line program at {b:#x} changed"));
    }
    match (&old.code, &new.code) {
        (Some(_), None) => report.fail(format!(
            "an extended opcode of the line program at {b:#x} is not as long as what it holds"
        )),
        (Some(old), Some(new)) => {
            // Readers differ in which file a sequence begins with (binutils 2.40: 0 in version 5), so those that were
            // written anew say it.
            let old: HashSet<&[u8]> = old.iter().map(|s| &s.bytes[..]).collect();
            let mut without = new.iter().filter(|s| !s.sets_file);
            if without.any(|s| !old.contains(&s.bytes[..])) {
                report.fail(format!(
                    "a sequence of the line program at {b:#x} does not set the file of its first row"
                ));
            }
        }
        (None, _) => {}
    }
    let (cover, marks) = expected(both, &old);
    let rows_of_old = old.sequences.iter().flatten();
    let places: HashSet<Place> = rows_of_old.map(|row| row.place).collect();
    let cover = normal(cover);
    let says_prologues = old
        .sequences
        .iter()
        .flatten()
        .any(|r| r.marks[PROLOGUE_END]);
    // Programs that never say so do not begin to.
    let blocks = both.map.entry_blocks().iter().filter(|_| says_prologues);
    let ends: BTreeMap<u64, Place> = blocks
        .filter_map(|block| prologue_end(&cover, &marks, block))
        .collect();
    let mut found: Vec<(Range<u64>, Place)> = Vec::new();
    let mut found_marks = Vec::new();
    for row in new.sequences.iter().flatten() {
        if row.covers.is_empty() && !places.contains(&row.place) {
            report.fail(format!(
                "the line program at {b:#x} has a row {:x?} at {:#x}, as none of the old rows",
                row.place, row.covers.start
            ));
        }
        found.push((row.covers.clone(), row.place));
        if row.is_marked() && !row.covers.is_empty()
            || row.is_marked() && marks.contains_key(&row.covers.start)
        {
            found_marks.push((row.covers.start, row.place, row.marks));
        }
    }
    compare_cover(cover, normal(found), b, &mut report);
    compare_marks((marks, &ends), found_marks, b, &mut report);
    report
}

/// Marked rows by address, in order.
type Marks = BTreeMap<u64, Vec<(Place, [bool; 4])>>;

/// What the new program should say: places by interval, and marked rows.
fn expected(both: &Both<'_>, old: &Program) -> (Vec<(Range<u64>, Place)>, Marks) {
    let map = both.map;
    let (mut cover, mut marks) = (Vec::new(), Marks::new());
    for sequence in &old.sequences {
        let (Some(first), Some(last)) = (sequence.first(), sequence.last()) else {
            continue;
        };
        let all = first.covers.start..last.covers.end;
        let touched = map.touches(&all);
        for row in sequence {
            if touched {
                cover.extend(map.image(&row.covers).into_iter().map(|r| (r, row.place)))
            } else {
                cover.push((row.covers.clone(), row.place))
            }
            let start = row.covers.start;
            let at = if touched {
                map.instruction(start)
            } else {
                Some(start)
            };
            if let Some(at) = at.filter(|_| row.is_marked() && start < all.end) {
                marks.entry(at).or_default().push((row.place, row.marks));
            }
        }
        for jump in map.entry_jumps(&all).filter(|_| touched) {
            let in_effect = sequence.iter().rev().find(|r| r.covers.start <= jump.start);
            cover.extend(in_effect.map(|r| (jump.clone(), r.place)));
        }
    }
    (cover, marks)
}

/// Joins neighbours that say the same.
fn normal(mut cover: Vec<(Range<u64>, Place)>) -> Vec<(Range<u64>, Place)> {
    cover.retain(|c| !c.0.is_empty());
    cover.sort_by_key(|c| (c.0.start, c.0.end, c.1));
    let mut out: Vec<(Range<u64>, Place)> = Vec::with_capacity(cover.len());
    for (range, place) in cover {
        match out.last_mut() {
            Some(last) if last.0.end == range.start && last.1 == place => last.0.end = range.end,
            _ => out.push((range, place)),
        }
    }
    out
}

fn compare_cover(
    expected: Vec<(Range<u64>, Place)>,
    found: Vec<(Range<u64>, Place)>,
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
    let (should, is) = (expected.get(i), found.get(i));
    report.fail(format!(
        "the line program at {at:#x} says {is:x?}, where {should:x?} is right"
    ));
}

/// Where one more row may say that a prologue ends, and the place that is in effect there: debuggers put breakpoints
/// on functions at such rows, and those of the input may be in blocks that do not follow the entry any more. It is
/// where the source changes first in code that each entry runs through, else at the last instruction of that. `None`:
/// a row there says so.
fn prologue_end(
    cover: &[(Range<u64>, Place)],
    marks: &Marks,
    block: &EntryBlock,
) -> Option<(u64, Place)> {
    let line = |place: &Place| place.1;
    let begin = cover.partition_point(|c| c.0.end <= block.start);
    let after_start = cover.get(begin..)?.split_first();
    let (entry, after) = after_start.filter(|(entry, _)| entry.0.contains(&block.start))?;
    let until = |end: u64| after.iter().take_while(move |c| c.0.start <= end);
    let is_marked = |(_, marks): &(Place, [bool; 4])| marks[PROLOGUE_END];
    if marks
        .range(block.start..=block.last)
        .any(|(_, rows)| rows.iter().any(is_marked))
    {
        return None;
    }
    if let Some((range, place)) = until(block.sure).find(|c| line(&c.1) != 0) {
        return Some((range.start, *place));
    }
    let (_, last) = until(block.sure).last().unwrap_or(entry);
    let (at, place) = if line(last) == 0 {
        (block.start, entry.1)
    } else {
        (block.sure, *last)
    };
    (line(&place) != 0).then_some((at, place))
}

/// Whether rows at an address differ in one more that says that a prologue ends, or in one that says so besides.
fn ends_prologue(
    expected: &[(Place, [bool; 4])],
    found: &[(Place, [bool; 4])],
    place: Place,
) -> bool {
    let Some(((of, marks), before)) = found.split_last() else {
        return false;
    };
    let mut without = *marks;
    without[PROLOGUE_END] = false;
    let is_one_more = without == [false; 4] && before == expected;
    let says_so_besides = expected.split_last() == Some((&(place, without), before));
    *of == place && marks[PROLOGUE_END] && (is_one_more || says_so_besides)
}

fn compare_marks(
    (expected, ends): (Marks, &BTreeMap<u64, Place>),
    found: Vec<(u64, Place, [bool; 4])>,
    at: u64,
    report: &mut DebugReport,
) {
    let mut by_address = Marks::new();
    for (address, place, marks) in found {
        by_address.entry(address).or_default().push((place, marks));
    }
    if expected == by_address {
        return;
    }
    let rows = |of: &Marks, at: &u64| of.get(at).cloned().unwrap_or_default();
    let is_right = |at: &u64| {
        let (should, is) = (rows(&expected, at), rows(&by_address, at));
        should == is
            || ends
                .get(at)
                .is_some_and(|place| ends_prologue(&should, &is, *place))
    };
    let all = expected.keys().chain(by_address.keys());
    let differs = all.filter(|at| !is_right(at)).min();
    if let Some(address) = differs {
        let (should, is) = (expected.get(address), by_address.get(address));
        report.fail(format!(
            "the line program at {at:#x} has statements and flags {is:x?} at {address:#x}, where {should:x?} is right"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes behind an address were passed over with what they say.
    #[test]
    fn an_address_that_is_longer_than_addresses_is_found() {
        const LENGTHS: [u8; 12] = [0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1];
        let right = |code: &[u8]| sequences(code, &LENGTHS, 13, 8).is_some();
        let address = |length| right(&[0, length, 2, 1, 0, 0, 0, 0, 0, 0, 0, 4, 1, 0x30]);
        assert!(address(9));
        assert!(!address(11));
        assert!(!address(5));
        // A discriminator of two bytes, the end, an advance by a number of fixed size, a file.
        assert!(right(&[0, 3, 4, 0x80, 1, 0, 1, 1]));
        assert!(!right(&[0, 4, 4, 0x80, 1, 0, 1, 1]));
        assert!(!right(&[0, 2, 1, 1]));
        assert!(right(&[9, 0, 0, 2, 0x80, 1, 0, 6, 3, b'a', 0, 1, 2, 3]));
        // It ends within an opcode.
        assert!(!right(&[9, 0]));
        assert!(!right(&[0, 9, 2, 1]));
        // What nobody knows is as long as it says.
        assert!(right(&[0, 4, 0x90, 1, 2, 3, 1]));
        assert!(!right(&[0, 9, 0x90, 1, 2, 3, 1]));
    }

    /// One sequence said its file and another did not, which only some readers took for the same.
    #[test]
    fn sequences_that_do_not_set_the_file_of_their_first_row_are_told() {
        const LENGTHS: [u8; 12] = [0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1];
        let sets = |code: &[u8]| -> Vec<bool> {
            let all = sequences(code, &LENGTHS, 13, 8).unwrap();
            all.iter().map(|s| s.sets_file).collect()
        };
        let (file, column, row, copy, end) = ([4, 1], [5, 1], [0x30], [1], [0, 1, 1]);
        let code = |parts: &[&[u8]]| parts.concat();
        assert_eq!(sets(&code(&[&file, &column, &row, &end])), [true]);
        assert_eq!(sets(&code(&[&column, &row, &file, &row, &end])), [false]);
        assert_eq!(sets(&code(&[&copy, &file, &end])), [false]);
        // Each sequence by itself; without rows it says nothing.
        let both = code(&[&file, &row, &end, &row, &end, &end]);
        assert_eq!(sets(&both), [true, false, true]);
    }
}
