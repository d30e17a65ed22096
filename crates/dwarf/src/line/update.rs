//! A line program for code that has moved; see the [module](super).

use std::ops::Range;

use super::rows::{Runner, Sequence};
use super::{Header, Row, SECTION, prologue, write};
use crate::Error;
use crate::map::{AddressMap, normal};
use crate::read::{part, put_number};

/// What became of a program.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// Where it was in the section, header and all.
    pub old: Range<u64>,
    /// Its new bytes; `None` if nothing changed.
    pub new: Option<Vec<u8>>,
    /// Rows for new code.
    pub rows: u64,
}

/// Rows for a stretch of new code.
struct Stretch {
    new: Range<u64>,
    rows: Vec<Row>,
    /// The first row is synthetic, and not needed where the row in front of it says the same.
    synthetic: bool,
}

/// Makes the program at an offset describe moved code.
pub(crate) fn update(section: &[u8], at: u64, map: &AddressMap) -> Result<Program, Error> {
    let header = Header::read(section, at)?;
    let mut runner = Runner::new(section, &header);
    let mut kept = Vec::new();
    let mut stretches = Vec::new();
    let mut touched = false;
    let mut says_prologues = false;
    while let Some(sequence) = runner.next()? {
        let covers = sequence.covers();
        says_prologues |= sequence.rows.iter().any(|r| r.prologue_end);
        if !map.touches(&covers) {
            let code = sequence.code.start as u64..sequence.code.end as u64;
            kept.extend_from_slice(part(section, code, SECTION)?);
            continue;
        }
        touched = true;
        sequence.check_order()?;
        staying(&mut kept, &header, &sequence, map)?;
        moved(&mut stretches, &sequence, map);
        for jump in map.entry_jumps_in(&covers) {
            if let Some(row) = covering(&sequence.rows, jump.start) {
                write::sequence(&mut kept, &header, &[row.synthetic(jump.start)], jump.end)?;
            }
        }
    }
    let old = header.start as u64..header.end as u64;
    if !touched {
        return Ok(Program {
            old,
            new: None,
            rows: 0,
        });
    }
    let rows = new_code(&mut kept, &header, stretches, (map, says_prologues))?;
    let new = assemble(section, &header, &runner.defined_files, &kept)?;
    Ok(Program {
        old,
        new: Some(new),
        rows,
    })
}

/// Header, definitions of files and code, with the new length.
fn assemble(section: &[u8], header: &Header, files: &[u8], code: &[u8]) -> Result<Vec<u8>, Error> {
    let mut out = Vec::with_capacity(header.code - header.start + files.len() + code.len());
    let length_field = if header.offset_size == 8 { 12 } else { 4 };
    let after_length = (header.start + length_field) as u64..header.code as u64;
    let after_length = part(section, after_length, SECTION)?;
    let len = (after_length.len() + files.len() + code.len()) as u64;
    if header.offset_size == 8 {
        out.extend_from_slice(&[0xff; 4]);
    } else if len >= 0xffff_fff0 {
        let what =
            format!("the line program would have {len:#x} bytes, more than its format allows");
        return Err(Error::new(SECTION, header.start as u64, what));
    }
    put_number(&mut out, len, header.offset_size);
    out.extend_from_slice(after_length);
    out.extend_from_slice(files);
    out.extend_from_slice(code);
    Ok(out)
}

/// The row in effect at an address: the last one that starts there or in front of it.
fn covering(rows: &[Row], address: u64) -> Option<&Row> {
    let after = rows.partition_point(|r| r.address <= address);
    rows.get(after.checked_sub(1)?)
}

/// Rows of an interval of old code that begins at a row's start, or in the middle of one.
fn rows_of<'r>(rows: &'r [Row], old: &Range<u64>) -> (Option<Row>, &'r [Row]) {
    let from = rows.partition_point(|r| r.address < old.start);
    let to = rows.partition_point(|r| r.address < old.end);
    let inside = rows.get(from..to).unwrap_or_default();
    match inside.first() {
        Some(row) if row.address == old.start => (None, inside),
        _ => (
            covering(rows, old.start).map(|r| r.synthetic(old.start)),
            inside,
        ),
    }
}

/// Writes the rows of a sequence for code outside old bodies.
fn staying(
    out: &mut Vec<u8>,
    header: &Header,
    sequence: &Sequence,
    map: &AddressMap,
) -> Result<(), Error> {
    let covers = sequence.covers();
    let mut at = covers.start;
    let ends = map
        .bodies_in(&covers)
        .iter()
        .cloned()
        .chain(std::iter::once(covers.end..covers.end));
    for body in ends {
        if at < body.start {
            let part = at..body.start;
            let (first, rest) = rows_of(&sequence.rows, &part);
            let rows: Vec<Row> = first.into_iter().chain(rest.iter().copied()).collect();
            write::sequence(out, header, &rows, part.end)?;
        }
        at = at.max(body.end);
    }
    Ok(())
}

/// Collects its rows for new code.
fn moved(out: &mut Vec<Stretch>, sequence: &Sequence, map: &AddressMap) {
    let covers = sequence.covers();
    for run in map.runs_in(&covers) {
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
        let (first, rest) = rows_of(&sequence.rows, &old);
        let synthetic = first.is_some();
        let rows = first.into_iter().chain(rest.iter().copied());
        let rows = rows.map(|row| {
            let address = run.border(row.address);
            // In the middle of an instruction that was re-encoded no statement begins.
            if run.old_len == run.new_len || row.address == run.old {
                Row { address, ..row }
            } else {
                row.synthetic(address)
            }
        });
        out.push(Stretch {
            new: start..end,
            rows: rows.collect(),
            synthetic,
        });
    }
    for added in map.added_in(&covers) {
        if let Some(row) = covering(&sequence.rows, added.like) {
            out.push(Stretch {
                new: added.new..added.new + u64::from(added.len),
                rows: vec![row.synthetic(added.new)],
                synthetic: true,
            });
        }
    }
}

/// Writes sequences for new code, one for what touches. Returns the number of rows.
fn new_code(
    out: &mut Vec<u8>,
    header: &Header,
    mut stretches: Vec<Stretch>,
    (map, says_prologues): (&AddressMap, bool),
) -> Result<u64, Error> {
    stretches.sort_by_key(|s| (s.new.start, s.new.end));
    let sequences = normal(stretches.iter().map(|s| s.new.clone()).collect());
    let mut rest = stretches.into_iter().peekable();
    let mut rows: Vec<Row> = Vec::new();
    let mut count = 0;
    for sequence in sequences {
        rows.clear();
        while let Some(stretch) = rest.next_if(|s| s.new.start < sequence.end) {
            let said = |first: &Row| rows.last().is_some_and(|last| last.same_place(first));
            let skip = usize::from(stretch.synthetic && stretch.rows.first().is_some_and(said));
            rows.extend(stretch.rows.iter().skip(skip));
        }
        let blocks = map.entry_blocks_in(&sequence).iter();
        for block in blocks.filter(|b| b.last < sequence.end) {
            prologue::mark(&mut rows, block, says_prologues);
        }
        count += rows.len() as u64;
        write::sequence(out, header, &rows, sequence.end)?;
    }
    Ok(count)
}
