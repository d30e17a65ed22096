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
        for row in rows {
            let mut state = match self.state {
                Some(state) => state,
                None => begin(out, header, &row),
            };
            registers(out, header, &mut state, &row)?;
            let units = units(header, state.address, row.address)?;
            let mut lines = i64::from(row.line) - i64::from(state.line);
            if special(header, lines, 0).is_none() {
                put_opcode(out, header, standard::ADVANCE_LINE)?;
                put_sleb(out, lines);
                lines = 0;
            }
            append_row(out, header, lines, units)?;
            self.state = Some(Row {
                discriminator: 0,
                basic_block: false,
                prologue_end: false,
                epilogue_begin: false,
                ..row
            });
        }
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
fn units(header: &Header, from: u64, to: u64) -> Result<u64, Error> {
    let unit = u64::from(header.min_inst_len);
    match to.checked_sub(from) {
        Some(bytes) if bytes % unit == 0 => Ok(bytes / unit),
        _ => Err(Error::new(
            SECTION,
            header.start as u64,
            format!("rows at {from:#x} and {to:#x} are not a multiple of {unit} bytes apart"),
        )),
    }
}

/// Sets the registers that differ, but for address and line.
fn registers(out: &mut Vec<u8>, header: &Header, state: &mut Row, row: &Row) -> Result<(), Error> {
    for (opcode, old, new) in [
        (standard::SET_FILE, state.file, row.file),
        (standard::SET_COLUMN, state.column, row.column),
        (standard::SET_ISA, state.isa, row.isa),
    ] {
        if old != new {
            put_opcode(out, header, opcode)?;
            put_uleb(out, new.into());
        }
    }
    for (opcode, set) in [
        (standard::NEGATE_STMT, state.is_stmt != row.is_stmt),
        (standard::SET_BASIC_BLOCK, row.basic_block),
        (standard::SET_PROLOGUE_END, row.prologue_end),
        (standard::SET_EPILOGUE_BEGIN, row.epilogue_begin),
    ] {
        if set {
            put_opcode(out, header, opcode)?;
        }
    }
    if row.discriminator != 0 {
        let mut argument = Vec::with_capacity(2);
        put_uleb(&mut argument, row.discriminator.into());
        extended_opcode(out, extended::SET_DISCRIMINATOR, &argument);
    }
    Ok(())
}

/// Advances and appends a row; `lines` is 0 or in the range of special opcodes.
fn append_row(out: &mut Vec<u8>, header: &Header, lines: i64, units: u64) -> Result<(), Error> {
    let constant = u64::from((255 - header.opcode_base) / header.line_range);
    let by_constant = units
        .checked_sub(constant)
        .and_then(|rest| special(header, lines, rest));
    if let Some(opcode) = special(header, lines, units) {
        out.push(opcode);
    } else if let Some(opcode) = by_constant.filter(|_| has(header, standard::CONST_ADD_PC)) {
        out.extend([standard::CONST_ADD_PC, opcode]);
    } else {
        if units > 0 {
            put_opcode(out, header, standard::ADVANCE_PC)?;
            put_uleb(out, units);
        }
        match special(header, lines, 0) {
            Some(opcode) => out.push(opcode),
            None => put_opcode(out, header, standard::COPY)?,
        }
    }
    Ok(())
}

/// The special opcode that advances by so much, if there is one.
fn special(header: &Header, lines: i64, units: u64) -> Option<u8> {
    let by_line = u64::try_from(lines - i64::from(header.line_base)).ok()?;
    if by_line >= u64::from(header.line_range) {
        return None;
    }
    let by_units = units.checked_mul(u64::from(header.line_range))?;
    let opcode = by_units.checked_add(by_line + u64::from(header.opcode_base))?;
    u8::try_from(opcode).ok()
}

/// Whether the program's header knows a standard opcode, with the arguments that the standard gives it.
fn has(header: &Header, opcode: u8) -> bool {
    let arguments = match opcode {
        standard::COPY
        | standard::NEGATE_STMT
        | standard::SET_BASIC_BLOCK
        | standard::CONST_ADD_PC
        | standard::SET_PROLOGUE_END
        | standard::SET_EPILOGUE_BEGIN => 0,
        _ => 1,
    };
    header.lengths.get(usize::from(opcode) - 1) == Some(&arguments)
}

fn put_opcode(out: &mut Vec<u8>, header: &Header, opcode: u8) -> Result<(), Error> {
    if !has(header, opcode) {
        let what = format!("the header has no standard opcode {opcode}, which a row needs");
        return Err(Error::new(SECTION, header.start as u64, what));
    }
    out.push(opcode);
    Ok(())
}

fn extended_opcode(out: &mut Vec<u8>, opcode: u8, arguments: &[u8]) {
    out.push(0);
    put_uleb(out, 1 + arguments.len() as u64);
    out.push(opcode);
    out.extend_from_slice(arguments);
    assert!(uleb_len(1 + arguments.len() as u64) == 1);
}
