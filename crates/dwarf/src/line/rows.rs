//! Running a line program: its sequences, one after another.

use std::ops::Range;

use super::{Header, Row, SECTION, extended, standard};
use crate::Error;
use crate::read::{Reader, number, part};

/// One sequence of rows.
#[derive(Clone, Debug)]
pub(crate) struct Sequence {
    /// Where its code is in the section.
    pub code: Range<usize>,
    /// Its rows, in order, without the one that ends it.
    pub rows: Vec<Row>,
    /// One past the last address.
    pub end: u64,
}

impl Sequence {
    /// What it covers; empty if it has no rows.
    pub fn covers(&self) -> Range<u64> {
        self.rows.first().map_or(self.end, |r| r.address)..self.end
    }

    /// Checks that addresses do not descend.
    pub fn check_order(&self) -> Result<(), Error> {
        let last = self.rows.last().map_or(0, |r| r.address);
        if !self.rows.is_sorted_by_key(|r| r.address) || last > self.end {
            return Err(Error::new(
                SECTION,
                self.code.start as u64,
                "the addresses of a sequence descend",
            ));
        }
        Ok(())
    }
}

/// Runs programs sequence by sequence.
pub(crate) struct Runner<'a> {
    header: &'a Header,
    reader: Reader<'a>,
    /// Operations that add entries to the file table, as they was.
    pub defined_files: Vec<u8>,
}

impl<'a> Runner<'a> {
    pub fn new(data: &'a [u8], header: &'a Header) -> Self {
        let reader = Reader {
            data,
            at: header.code,
            end: header.end,
            section: SECTION,
        };
        Runner {
            header,
            reader,
            defined_files: Vec::new(),
        }
    }

    /// The next sequence; `None` at the end. Code after the last end of a sequence that makes no row is passed over.
    pub fn next(&mut self) -> Result<Option<Sequence>, Error> {
        let (h, start) = (self.header, self.reader.at);
        let mut row = Row::initial(h);
        let mut rows = Vec::new();
        while !self.reader.is_empty() {
            let opcode = self.reader.u8()?;
            if opcode >= h.opcode_base {
                let adjusted = opcode - h.opcode_base;
                self.advance(&mut row, u64::from(adjusted / h.line_range));
                let lines = i64::from(h.line_base) + i64::from(adjusted % h.line_range);
                row.line = row.line.wrapping_add_signed(lines);
                emit(&mut row, &mut rows);
            } else if opcode == 0 {
                if self.extended(&mut row)? {
                    return Ok(Some(Sequence {
                        code: start..self.reader.at,
                        rows,
                        end: row.address,
                    }));
                }
            } else {
                self.standard(opcode, &mut row, &mut rows)?;
            }
        }
        if rows.is_empty() {
            Ok(None)
        } else {
            Err(self.reader.error("a sequence without an end"))
        }
    }

    fn advance(&self, row: &mut Row, units: u64) {
        let bytes = units.wrapping_mul(u64::from(self.header.min_inst_len));
        row.address = row.address.wrapping_add(bytes);
    }

    fn standard(&mut self, opcode: u8, row: &mut Row, rows: &mut Vec<Row>) -> Result<(), Error> {
        let h = self.header;
        // A header may give a known opcode another number of arguments: then it is another opcode.
        const ARGUMENTS: [u8; 12] = [0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1];
        let number = usize::from(opcode).wrapping_sub(1);
        let Some(&arguments) = h.lengths.get(number) else {
            let what = format!("the opcode {opcode:#x}, which the header does not describe");
            return Err(self.reader.error(what));
        };
        let known = ARGUMENTS.get(number) == Some(&arguments);
        match opcode {
            _ if !known => {
                for _ in 0..arguments {
                    self.reader.uleb()?;
                }
            }
            standard::COPY => emit(row, rows),
            standard::ADVANCE_PC => {
                let units = self.reader.uleb()?;
                self.advance(row, units);
            }
            standard::ADVANCE_LINE => row.line = row.line.wrapping_add_signed(self.reader.sleb()?),
            standard::SET_FILE => row.file = self.reader.uleb()?,
            standard::SET_COLUMN => row.column = self.reader.uleb()?,
            standard::NEGATE_STMT => row.is_stmt = !row.is_stmt,
            standard::SET_BASIC_BLOCK => row.basic_block = true,
            standard::CONST_ADD_PC => {
                self.advance(row, u64::from((255 - h.opcode_base) / h.line_range));
            }
            standard::FIXED_ADVANCE_PC => {
                row.address = row.address.wrapping_add(u64::from(self.reader.u16()?));
            }
            standard::SET_PROLOGUE_END => row.prologue_end = true,
            standard::SET_EPILOGUE_BEGIN => row.epilogue_begin = true,
            _ => row.isa = self.reader.uleb()?, // SET_ISA: all others are unknown
        }
        Ok(())
    }

    /// Whether the sequence ends.
    fn extended(&mut self, row: &mut Row) -> Result<bool, Error> {
        let start = self.reader.at - 1;
        let len = self.reader.uleb()?;
        let body = self.reader.bytes(len)?;
        let Some((opcode, arguments)) = body.split_first() else {
            return Err(self.reader.error("an extended opcode of no bytes"));
        };
        match *opcode {
            extended::END_SEQUENCE => return Ok(true),
            extended::SET_ADDRESS if arguments.len() == 8 => row.address = number(arguments),
            extended::SET_ADDRESS => {
                return Err(self.reader.error(format!(
                    "an address of {} bytes; 8 are possible",
                    arguments.len()
                )));
            }
            extended::DEFINE_FILE => {
                let whole = start as u64..self.reader.at as u64;
                let whole = part(self.reader.data, whole, SECTION)?;
                self.defined_files.extend_from_slice(whole);
            }
            extended::SET_DISCRIMINATOR => {
                let mut r = Reader::new(arguments, 0, SECTION)?;
                row.discriminator = r.uleb()?;
            }
            other => {
                return Err(self
                    .reader
                    .error(format!("the unknown extended opcode {other:#x}")));
            }
        }
        Ok(false)
    }
}

fn emit(row: &mut Row, rows: &mut Vec<Row>) {
    rows.push(*row);
    row.discriminator = 0;
    row.basic_block = false;
    row.prologue_end = false;
    row.epilogue_begin = false;
}

// SET_ISA is the last standard opcode that is known.
const _: () = assert!(standard::SET_ISA == 12);
