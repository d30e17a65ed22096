//! A line program for code that has moved; see the [module](super).

use std::num::NonZero;
use std::ops::Range;

use super::rows::{Runner, Sequence};
use super::table::{Rows, Table};
use super::write::Encoder;
use super::{Header, Row, SECTION, prologue, write};
use crate::Error;
use crate::map::AddressMap;
use crate::order::by_address;
use crate::read::{put_at, put_number};
use crate::splice::Pieces;

/// What became of a program.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// Where it was in the section, header and all.
    pub old: Range<u64>,
    /// What changes in it; `None` if nothing does.
    pub new: Option<Pieces>,
    /// Rows for new code.
    pub rows: u64,
}

/// A stretch of new code, and which old rows describe it. A large program has tens of thousands.
struct Stretch {
    new: u64,
    len: u32,
    /// Numbers of the first row and of the one behind the last.
    rows: (u32, u32),
    /// The number of the run whose old bytes these were. If they stand for nothing old, they are described by the first
    /// row alone.
    run: Option<NonZero<u32>>,
}

/// The lowest bit of [`Stretch::run`]: the first row begins in front of it. The new one is synthetic, and not needed
/// where the row in front of it says the same.
const SYNTHETIC: u32 = 1;

impl Stretch {
    /// Of new bytes whose old ones were those of a run by its number.
    fn new(
        new: Range<u64>,
        rows: Range<usize>,
        run: Option<usize>,
        synthetic: bool,
    ) -> Option<Stretch> {
        let run = match run {
            Some(number) => {
                let number = u32::try_from(number).ok()?.checked_add(1)?.checked_mul(2)?;
                NonZero::new(number | if synthetic { SYNTHETIC } else { 0 })
            }
            None => None,
        };
        Some(Stretch {
            new: new.start,
            len: u32::try_from(new.end - new.start).ok()?,
            rows: (
                u32::try_from(rows.start).ok()?,
                u32::try_from(rows.end).ok()?,
            ),
            run,
        })
    }

    fn end(&self) -> u64 {
        self.new + u64::from(self.len)
    }

    /// Appends its new rows, made from those of the program.
    fn put(&self, old: &Table, map: &AddressMap, out: &mut Vec<Row>) {
        let mut rows = old.part(self.rows.0 as usize..self.rows.1 as usize);
        let synthetic = self.run.is_none_or(|run| run.get() & SYNTHETIC != 0);
        if let (true, Some((first, rest))) = (synthetic, rows.split_first()) {
            if !out.last().is_some_and(|last| last.same_place(&first)) {
                out.push(first.synthetic(self.new));
            }
            rows = rest;
        }
        let number = self.run.map(|run| (run.get() / 2 - 1) as usize);
        let Some(run) = number.and_then(|number| map.runs().get(number)) else {
            return;
        };
        out.extend(rows.iter().map(|row| {
            let address = run.border(row.address);
            // In the middle of an instruction that was re-encoded no statement begins.
            if run.old_len == run.new_len || row.address == run.old {
                Row { address, ..row }
            } else {
                row.synthetic(address)
            }
        }));
    }
}

/// Makes the program at an offset describe moved code.
pub(crate) fn update(section: &[u8], at: u64, map: &AddressMap) -> Result<Program, Error> {
    update_by(section, at, map, AT_A_TIME)
}

/// The same, with some rows of new code at a time.
fn update_by(
    section: &[u8],
    at: u64,
    map: &AddressMap,
    at_a_time: usize,
) -> Result<Program, Error> {
    let header = Header::read(section, at)?;
    let mut runner = Runner::new(section, &header);
    // The length comes first, and is known last.
    let mut new = Pieces::default();
    let (size, is_long) = (u64::from(header.offset_size), header.offset_size == 8);
    let field = header.start as u64 + if is_long { 4 } else { 0 };
    put_number(&mut new.bytes, 0, header.offset_size);
    new.end(field..field + size, 0);
    // What takes the place of sequences of moved code, in front of what is said of new code.
    let mut replaced = 0;
    let mut stretches = Vec::new();
    let mut end = header.code;
    while let Some(sequence) = runner.next()? {
        end = sequence.code.end;
        if !map.touches(&sequence.covers) {
            runner.drop_rows(&sequence);
            continue;
        }
        let rows = runner.rows.part(sequence.rows.clone());
        sequence.check(rows)?;
        let from = new.bytes.len();
        put_staying(&mut new.bytes, &header, (&sequence, rows), map)?;
        moved(&mut stretches, (&sequence, rows), map)?;
        for jump in map.entry_jumps_in(&sequence.covers) {
            if let Some(row) = covering(rows, jump.start) {
                let row = row.synthetic(jump.start);
                write::sequence(&mut new.bytes, &header, &[row], jump.end)?;
            }
        }
        replaced += (sequence.code.end - sequence.code.start) as u64;
        new.end(sequence.code.start as u64..sequence.code.end as u64, from);
    }
    let old = header.start as u64..header.end as u64;
    if new.size().0 == 1 {
        return Ok(Program {
            old,
            new: None,
            rows: 0,
        });
    }
    let from = new.bytes.len();
    let rows = new_code(
        &mut new.bytes,
        &header,
        (&runner, stretches),
        map,
        at_a_time,
    )?;
    let rest = end as u64..header.end as u64;
    replaced += rest.end - rest.start;
    new.end(rest.clone(), from);
    let files = &runner.defined_files;
    if !files.is_empty() {
        new.insert(1, header.code as u64, files);
    }
    let len = rest.end - (field + size) - replaced + (new.bytes.len() as u64 - size);
    // Longer ones need DWARF 64, and nobody has them.
    const LONGEST: u64 = 0xffff_ffef;
    let mut bytes = Vec::with_capacity(8);
    put_number(&mut bytes, len, header.offset_size);
    if len.max(rest.end - field) > LONGEST || !put_at(&mut new.bytes, 0, &bytes) {
        let what = format!("the line program would have {len:#x} bytes; {LONGEST:#x} are possible");
        return Err(Error::new(SECTION, header.start as u64, what));
    }
    new.bytes.shrink_to_fit();
    Ok(Program {
        old,
        new: Some(new),
        rows,
    })
}

/// The row in effect at an address: the last one that starts there or in front of it.
fn covering(rows: Rows<'_>, address: u64) -> Option<Row> {
    rows.get(rows.up_to(address).checked_sub(1)?)
}

/// Numbers of the rows of an interval of old code, and whether the first of them begins in front of it. Intervals
/// ascend: no row in front of number `at` begins in this one.
fn rows_of(rows: Rows<'_>, at: usize, old: &Range<u64>) -> (Range<usize>, bool) {
    let from = rows.at(old.start, at);
    let to = rows.at(old.end, from);
    let begins = from < to && rows.get(from).is_some_and(|r| r.address == old.start);
    match from.checked_sub(1) {
        Some(before) if !begins => (before..to, true),
        _ => (from..to, false),
    }
}

/// Writes the rows of a sequence for code outside old bodies.
fn put_staying(
    out: &mut Vec<u8>,
    header: &Header,
    (sequence, rows): (&Sequence, Rows<'_>),
    map: &AddressMap,
) -> Result<(), Error> {
    let covers = &sequence.covers;
    let (mut at, mut behind) = (covers.start, 0);
    let end = covers.end..covers.end;
    for body in map.bodies_in(covers).iter().chain([&end]) {
        if at < body.start {
            let (numbers, synthetic) = rows_of(rows, behind, &(at..body.start));
            behind = numbers.end;
            let mut rest = rows.part(numbers);
            let mut encoder = Encoder::new(header);
            if let (true, Some((first, inside))) = (synthetic, rest.split_first()) {
                encoder.rows(out, [first.synthetic(at)])?;
                rest = inside;
            }
            encoder.rows(out, rest.iter())?;
            encoder.end(out, body.start)?;
        }
        at = at.max(body.end);
    }
    Ok(())
}

/// Collects which of its rows are for which new code.
fn moved(
    out: &mut Vec<Stretch>,
    (sequence, rows): (&Sequence, Rows<'_>),
    map: &AddressMap,
) -> Result<(), Error> {
    let covers = &sequence.covers;
    let mut put = |new: Range<u64>, rows: Range<usize>, run: Option<usize>, synthetic: bool| {
        let first = sequence.rows.start;
        let rows = first + rows.start..first + rows.end;
        let stretch = Stretch::new(new, rows, run, synthetic).ok_or_else(|| {
            let what = "the rows of moved code, its bytes, or its runs are more than 2^31";
            Error::new(SECTION, sequence.code.start as u64, what)
        });
        stretch.map(|stretch| out.push(stretch))
    };
    let mut behind = 0;
    let (first, runs) = map.numbered_runs_in(covers);
    for (number, run) in (first..).zip(runs) {
        let old = run.old.max(covers.start)..run.old_end().min(covers.end);
        let start = run.border(old.start);
        let end = if old.end == run.old_end() {
            run.tail_end()
        } else {
            run.border(old.end)
        };
        if start >= end {
            continue;
        }
        let (numbers, synthetic) = rows_of(rows, behind, &old);
        behind = numbers.end;
        put(start..end, numbers, Some(number), synthetic)?;
    }
    for added in map.added_in(covers) {
        let behind = rows.up_to(added.like);
        if let Some(number) = behind.checked_sub(1) {
            let new = added.new..added.new + u64::from(added.len);
            put(new, number..behind, None, true)?;
        }
    }
    Ok(())
}

/// Rows of new code that are in memory at a time, and a few more.
const AT_A_TIME: usize = 4096;

/// Stretches by their numbers.
fn numbered<'s>(all: &'s [Stretch], numbers: &'s [u32]) -> impl Iterator<Item = &'s Stretch> {
    let numbers = numbers.iter();
    numbers.filter_map(|number| all.get(*number as usize))
}

/// Writes sequences for new code, one for what touches. Returns the number of rows.
fn new_code(
    out: &mut Vec<u8>,
    header: &Header,
    (runner, stretches): (&Runner<'_>, Vec<Stretch>),
    map: &AddressMap,
    at_a_time: usize,
) -> Result<u64, Error> {
    let rest = |s: &Stretch| (s.len, s.rows);
    let order = by_address(&stretches, |s| s.new, |a, b| rest(a).cmp(&rest(b)));
    let mut reached = 0;
    let sequences = order.chunk_by(|before, next| {
        let both = (
            stretches.get(*before as usize),
            stretches.get(*next as usize),
        );
        let (Some(before), Some(next)) = both else {
            return false;
        };
        reached = before.end().max(reached);
        let touches = next.new <= reached;
        if !touches {
            reached = 0;
        }
        touches
    });
    let mut rows: Vec<Row> = Vec::new();
    let mut count = 0;
    for sequence in sequences {
        let start = numbered(&stretches, sequence).next().map_or(0, |s| s.new);
        let end = numbered(&stretches, sequence)
            .map(Stretch::end)
            .max()
            .unwrap_or(start);
        let blocks = map.entry_blocks_in(&(start..end)).iter();
        let mut blocks = blocks.filter(|b| b.last < end).peekable();
        let mut encoder = Encoder::new(header);
        for stretch in numbered(&stretches, sequence) {
            // All rows are there of blocks that end in front of it.
            while let Some(block) = blocks.next_if(|b| b.last < stretch.new) {
                prologue::mark(&mut rows, block, runner.says_prologues);
            }
            if rows.len() >= at_a_time {
                let next = blocks.peek().map_or(u64::MAX, |b| b.start);
                let before = rows.partition_point(|r| r.address < next);
                let whole = rows.get(..before.saturating_sub(1)).unwrap_or_default();
                encoder.rows(out, whole.iter().copied())?;
                let whole = whole.len();
                count += whole as u64;
                rows.drain(..whole);
            }
            stretch.put(&runner.rows, map, &mut rows);
        }
        blocks.for_each(|block| prologue::mark(&mut rows, block, runner.says_prologues));
        count += rows.len() as u64;
        encoder.rows(out, rows.iter().copied())?;
        encoder.end(out, end)?;
        rows.clear();
    }
    Ok(count)
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::*;
    use crate::line::{row, standard};
    use crate::map::{EntryBlock, MapParts, Run};
    use crate::splice::Splices;
    use arbitrary::Unstructured;

    /// A line program of DWARF 4 with one file, and sequences of rows that end at an address.
    fn program(sequences: &[(Vec<Row>, u64)]) -> Vec<u8> {
        let mut after_length = vec![4, 0];
        let mut rest = vec![1, 1, 1, (-5i8) as u8, 14, 13];
        rest.extend([0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 0]);
        rest.extend(b"a.c\0\0\0\0\0");
        after_length.extend((rest.len() as u32).to_le_bytes());
        after_length.extend(rest);
        let whole = |code: &[u8]| {
            let len = (after_length.len() + code.len()) as u32;
            [&len.to_le_bytes(), &after_length[..], code].concat()
        };
        let empty = whole(&[]);
        let header = Header::read(&empty, 0).unwrap();
        let mut code = Vec::new();
        for (rows, end) in sequences {
            write::sequence(&mut code, &header, rows, *end).unwrap();
        }
        whole(&code)
    }

    /// Functions of 64 bytes from 0x1000 on, cut up; the pieces are one after another in a random order.
    fn random(u: &mut Unstructured<'_>) -> arbitrary::Result<(Vec<u8>, AddressMap)> {
        let (mut sequences, mut pieces) = (Vec::new(), Vec::new());
        let mut parts = MapParts {
            executable: vec![0x1000..0x2000],
            ..MapParts::default()
        };
        for function in 0..u.int_in_range(1..=6u64)? {
            let start = 0x1000 + 64 * function;
            let mut rows = Vec::new();
            let mut at = start;
            while at < start + 64 {
                rows.push(Row {
                    is_stmt: u.arbitrary()?,
                    prologue_end: u.ratio(1, 6)?,
                    ..row(at, u.int_in_range(0..=4)?)
                });
                at += 9 - u.int_in_range(0..=9)?;
            }
            sequences.push((rows, start + 64));
            if u.ratio(1, 4)? {
                continue;
            }
            parts.bodies.push(start..start + 64);
            parts.entry_jumps.push(start..start + 5);
            let mut at = start;
            while at < start + 64 {
                let len = u.int_in_range(1..=20)?.min(start + 64 - at);
                pieces.push((at, len as u32));
                at += len;
            }
        }
        let mut new = 0x9000;
        while !pieces.is_empty() {
            let (old, old_len) = pieces.remove(u.choose_index(pieces.len())?);
            let new_len = if u.ratio(1, 5)? { 3 } else { old_len };
            let tail = u.int_in_range(0..=3)?;
            parts.runs.push(Run {
                old,
                old_len,
                new,
                new_len,
                tail,
            });
            let end = new + u64::from(new_len + tail);
            if u.ratio(1, 3)? {
                let sure = u.int_in_range(new..=end + 8)?;
                let last = u.int_in_range(sure..=sure + 20)?;
                let start = new;
                parts.entry_blocks.push(EntryBlock { start, sure, last });
            }
            new = end + if u.ratio(1, 8)? { 16 } else { 0 };
        }
        Ok((program(&sequences), AddressMap::new(parts).unwrap()))
    }

    #[test]
    fn how_many_rows_are_in_memory_at_a_time_makes_no_difference() {
        let mut moved = 0;
        arbtest::arbtest(|u| {
            let (section, map) = random(u)?;
            let made = |at_a_time| {
                let program = update_by(&section, 0, &map, at_a_time).unwrap();
                let mut splices = Splices::default();
                program.new.iter().for_each(|new| splices.take(new));
                (splices.apply(&section), program.rows)
            };
            let whole = made(usize::MAX);
            moved += whole.1;
            for at_a_time in [1, 2, 5, 9] {
                assert_eq!(made(at_a_time), whole);
            }
            // It is a program again.
            let header = Header::read(&whole.0, 0).unwrap();
            assert_eq!(header.end, whole.0.len());
            let mut runner = Runner::new(&whole.0, &header);
            while let Some(sequence) = runner.next().unwrap() {
                let rows = runner.rows.part(sequence.rows.clone());
                sequence.check(rows).unwrap();
            }
            Ok(())
        });
        assert!(moved > 1000, "{moved}");
    }

    #[test]
    fn rows_with_numbers_of_more_than_32_bits_are_refused_where_code_moved() {
        let run = |old, new| Run {
            old,
            old_len: 16,
            new,
            new_len: 16,
            tail: 0,
        };
        let map = AddressMap::new(MapParts {
            bodies: vec![0x1000..0x1010],
            runs: vec![run(0x1000, 0x5000)],
            executable: vec![0x1000..0x3000],
            ..MapParts::default()
        });
        let map = map.unwrap();
        let wide = |start: u64| {
            let mut section = program(&[(vec![row(start, 7)], start + 16)]);
            // A column of 2^32 in front of the row, whose opcodes set the file and advance the line to 7.
            let at = section
                .windows(2)
                .rposition(|w| w == [standard::SET_FILE, 1]);
            let at = at.unwrap();
            let column = [standard::SET_COLUMN, 0x80, 0x80, 0x80, 0x80, 0x10];
            section.splice(at..at, column);
            let len = section.len() as u32 - 4;
            section[..4].copy_from_slice(&len.to_le_bytes());
            section
        };
        assert!(update(&wide(0x2000), 0, &map).unwrap().new.is_none());
        let error = update(&wide(0x1000), 0, &map).unwrap_err().to_string();
        assert!(
            error.starts_with(".debug_line at 0x")
                && error.ends_with(": a row with a number of more than 32 bits"),
            "{error}"
        );
    }
}
