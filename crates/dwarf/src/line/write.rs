//! Encoding rows as code of a line program.
//!
//! For each row what differs from the one before it is set, in a fixed order, and then the shortest of: a
//! special opcode, `DW_LNS_const_add_pc` and a special opcode, `DW_LNS_advance_pc` and a special opcode,
//! `DW_LNS_copy`. The same rows give the same bytes.

use super::{Header, Row, SECTION, extended, standard};
use crate::Error;
use crate::read::{put_sleb, put_uleb, uleb_len};

/// Appends a sequence that ends at `end`. Rows must ascend; no rows, no sequence.
pub(crate) fn sequence(
    out: &mut Vec<u8>,
    header: &Header,
    rows: &[Row],
    end: u64,
) -> Result<(), Error> {
    let mut encoder = Encoder::new(header);
    encoder.rows(out, rows.iter().copied())?;
    encoder.end(out, end)
}

/// Encodes a sequence part by part.
pub(crate) struct Encoder<'h> {
    header: &'h Header,
    /// The registers behind the rows so far; `None` in front of the first row.
    state: Option<Row>,
}

impl<'h> Encoder<'h> {
    pub fn new(header: &'h Header) -> Self {
        Encoder {
            header,
            state: None,
        }
    }

    /// Appends the next rows.
    pub fn rows(
        &mut self,
        out: &mut Vec<u8>,
        rows: impl IntoIterator<Item = Row>,
    ) -> Result<(), Error> {
        let header = self.header;
        let mut begun = self.state;
        for row in rows {
            let state = match &mut begun {
                Some(state) => state,
                None => begun.insert(begin(out, header, &row)),
            };
            registers(out, header, state, &row)?;
            let units = units(header, state.address, row.address)?;
            let mut lines = i64::from(row.line) - i64::from(state.line);
            if !by_special(header, lines) {
                put_opcode(out, header, standard::ADVANCE_LINE)?;
                put_sleb(out, lines);
                lines = 0;
            }
            append_row(out, header, lines, units)?;
            (state.address, state.line) = (row.address, row.line);
        }
        self.state = begun;
        Ok(())
    }

    /// Ends the sequence, if it has a row.
    pub fn end(self, out: &mut Vec<u8>, end: u64) -> Result<(), Error> {
        let Some(state) = self.state else {
            return Ok(());
        };
        let last = units(self.header, state.address, end)?;
        if last > 0 {
            put_opcode(out, self.header, standard::ADVANCE_PC)?;
            put_uleb(out, last);
        }
        extended_opcode(out, extended::END_SEQUENCE, &[]);
        Ok(())
    }
}

/// Begins a sequence at the address of its first row. Gives the registers, in which the file is not that of the row:
/// which file a sequence begins with is not what every reader takes the standard to say (binutils 2.40 begins version 5
/// with file 0), so it is set.
fn begin(out: &mut Vec<u8>, header: &Header, first: &Row) -> Row {
    extended_opcode(out, extended::SET_ADDRESS, &first.address.to_le_bytes());
    Row {
        address: first.address,
        file: !first.file,
        line: 1,
        column: 0,
        isa: 0,
        discriminator: 0,
        is_stmt: header.default_is_stmt,
        basic_block: false,
        prologue_end: false,
        epilogue_begin: false,
    }
}

/// Distance in units of instruction lengths.
#[inline]
fn units(header: &Header, from: u64, to: u64) -> Result<u64, Error> {
    let unit = u64::from(header.min_inst_len);
    match to.checked_sub(from) {
        Some(bytes) if unit == 1 => Ok(bytes),
        Some(bytes) if bytes % unit == 0 => Ok(bytes / unit),
        _ => Err(Error::new(
            SECTION,
            header.start as u64,
            format!("rows at {from:#x} and {to:#x} are not a multiple of {unit} bytes apart"),
        )),
    }
}

/// Sets the registers that differ, but for address and line. A row clears discriminator and flags but one.
#[inline]
fn registers(out: &mut Vec<u8>, header: &Header, state: &mut Row, row: &Row) -> Result<(), Error> {
    let mut set = |opcode: u8, old: &mut u32, new: u32| -> Result<(), Error> {
        if *old != new {
            put_opcode(out, header, opcode)?;
            put_uleb(out, new.into());
            *old = new;
        }
        Ok(())
    };
    set(standard::SET_FILE, &mut state.file, row.file)?;
    set(standard::SET_COLUMN, &mut state.column, row.column)?;
    set(standard::SET_ISA, &mut state.isa, row.isa)?;
    if state.is_stmt != row.is_stmt {
        put_opcode(out, header, standard::NEGATE_STMT)?;
        state.is_stmt = row.is_stmt;
    }
    if row.basic_block || row.prologue_end || row.epilogue_begin {
        for (opcode, set) in [
            (standard::SET_BASIC_BLOCK, row.basic_block),
            (standard::SET_PROLOGUE_END, row.prologue_end),
            (standard::SET_EPILOGUE_BEGIN, row.epilogue_begin),
        ] {
            if set {
                put_opcode(out, header, opcode)?;
            }
        }
    }
    if row.discriminator != 0 {
        let discriminator = u64::from(row.discriminator);
        let len = 1 + uleb_len(discriminator);
        out.extend([0, len as u8, extended::SET_DISCRIMINATOR]);
        put_uleb(out, discriminator);
    }
    Ok(())
}

/// Advances and appends a row; `lines` is 0 or in the range of special opcodes.
#[inline]
fn append_row(out: &mut Vec<u8>, header: &Header, lines: i64, units: u64) -> Result<(), Error> {
    if let Some(opcode) = special(header, lines, units) {
        out.push(opcode);
        return Ok(());
    }
    let rest = units.checked_sub(header.constant_advance());
    let by_constant = rest.and_then(|rest| special(header, lines, rest));
    if let Some(opcode) = by_constant.filter(|_| header.knows(standard::CONST_ADD_PC)) {
        out.extend([standard::CONST_ADD_PC, opcode]);
        return Ok(());
    }
    if units > 0 {
        put_opcode(out, header, standard::ADVANCE_PC)?;
        put_uleb(out, units);
    }
    match special(header, lines, 0) {
        Some(opcode) => out.push(opcode),
        None => put_opcode(out, header, standard::COPY)?,
    }
    Ok(())
}

/// Whether a special opcode advances the line by so much.
#[inline]
fn by_special(header: &Header, lines: i64) -> bool {
    special(header, lines, 0).is_some()
}

/// The special opcode that advances by so much, if there is one.
#[inline]
fn special(header: &Header, lines: i64, units: u64) -> Option<u8> {
    let by_line = u64::try_from(lines - i64::from(header.line_base)).ok()?;
    if by_line >= u64::from(header.line_range) || units > 255 {
        return None;
    }
    let opcode = units * u64::from(header.line_range) + by_line + u64::from(header.opcode_base);
    u8::try_from(opcode).ok()
}

#[inline]
fn put_opcode(out: &mut Vec<u8>, header: &Header, opcode: u8) -> Result<(), Error> {
    if !header.knows(opcode) {
        return Err(missing(header, opcode));
    }
    out.push(opcode);
    Ok(())
}

#[cold]
fn missing(header: &Header, opcode: u8) -> Error {
    let what = format!("the header has no standard opcode {opcode}, which a row needs");
    Error::new(SECTION, header.start as u64, what)
}

fn extended_opcode(out: &mut Vec<u8>, opcode: u8, arguments: &[u8]) {
    out.push(0);
    put_uleb(out, 1 + arguments.len() as u64);
    out.push(opcode);
    out.extend_from_slice(arguments);
    assert!(uleb_len(1 + arguments.len() as u64) == 1);
}
