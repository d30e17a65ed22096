//! The rows of a program's sequences, in memory together: a program of one large unit has hundreds of thousands.
//!
//! Nearly all have small numbers, and addresses below 4 GiB, and take twelve bytes. Others are kept as they are beside
//! them.

use std::ops::Range;

use super::rows::Registers;
use super::{Row, flag};
use crate::map::stretch;

/// A row with small numbers: flags in the lowest four bits of the rest, then discriminator, column and file. If the
/// highest bit is set, it is another row, and its number among those is in the place of its line.
#[derive(Clone, Copy, Debug)]
struct Packed {
    address: u32,
    line: u32,
    rest: u32,
}

/// Bits of the numbers in the rest.
const DISCRIMINATOR: u32 = 4;
const COLUMN: u32 = 10;
const FILE: u32 = 13;
const OTHER: u32 = 1 << 31;

const COLUMN_AT: u32 = 4 + DISCRIMINATOR;
const FILE_AT: u32 = COLUMN_AT + COLUMN;
const _: () = assert!(FILE_AT + FILE == 31);

impl Packed {
    /// `None` if a number is too large.
    fn new(row: &Row) -> Option<Packed> {
        let fits = |number: u32, bits: u32| number >> bits == 0;
        let all_fit = fits(row.discriminator, DISCRIMINATOR)
            && fits(row.column, COLUMN)
            && fits(row.file, FILE)
            && row.isa == 0;
        let flags = [
            (row.is_stmt, flag::IS_STMT),
            (row.basic_block, flag::BASIC_BLOCK),
            (row.prologue_end, flag::PROLOGUE_END),
            (row.epilogue_begin, flag::EPILOGUE_BEGIN),
        ];
        let flags = flags.iter().filter(|(set, _)| *set);
        let flags = flags.fold(0, |bits, (_, flag)| bits | u32::from(*flag));
        let address = u32::try_from(row.address).ok().filter(|_| all_fit)?;
        Some(Packed {
            address,
            line: row.line,
            rest: flags | row.discriminator << 4 | row.column << COLUMN_AT | row.file << FILE_AT,
        })
    }

    fn row(&self) -> Row {
        let number = |at: u32, bits: u32| self.rest >> at & ((1 << bits) - 1);
        let is_set = |flag: u8| self.rest & u32::from(flag) != 0;
        Row {
            address: self.address.into(),
            file: number(FILE_AT, FILE),
            line: self.line,
            column: number(COLUMN_AT, COLUMN),
            isa: 0,
            discriminator: number(4, DISCRIMINATOR),
            is_stmt: is_set(flag::IS_STMT),
            basic_block: is_set(flag::BASIC_BLOCK),
            prologue_end: is_set(flag::PROLOGUE_END),
            epilogue_begin: is_set(flag::EPILOGUE_BEGIN),
        }
    }
}

/// Rows in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    packed: Vec<Packed>,
    others: Vec<Row>,
}

impl Table {
    /// Appends a row that these registers make, if their numbers are small.
    #[inline]
    pub fn push_small(&mut self, r: &Registers) -> bool {
        let large = (r.address | r.line) >> 32
            | r.discriminator >> DISCRIMINATOR
            | r.column >> COLUMN
            | r.file >> FILE
            | r.isa;
        if large == 0 {
            let numbers = r.discriminator << 4 | r.column << COLUMN_AT | r.file << FILE_AT;
            self.packed.push(Packed {
                address: r.address as u32,
                line: r.line as u32,
                rest: numbers as u32 | u32::from(r.flags),
            });
        }
        large == 0
    }

    /// Appends a row.
    pub fn push(&mut self, row: Row) {
        let packed = Packed::new(&row).unwrap_or_else(|| {
            self.others.push(row);
            Packed {
                address: 0,
                // Who gives numbers to rows refuses more than 2^32.
                line: (self.others.len() - 1) as u32,
                rest: OTHER,
            }
        });
        self.packed.push(packed);
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.packed.len()
    }

    /// Forgets the rows from a number on.
    pub fn truncate(&mut self, len: usize) {
        let forgotten = self.packed.get(len..).unwrap_or_default();
        let others = forgotten.iter().filter(|p| p.rest & OTHER != 0).count();
        self.others.truncate(self.others.len() - others);
        self.packed.truncate(len);
    }

    /// Some of the rows; none if they are not all there.
    pub fn part(&self, numbers: Range<usize>) -> Rows<'_> {
        Rows {
            packed: self.packed.get(numbers).unwrap_or_default(),
            others: &self.others,
        }
    }
}

/// Some rows of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows<'t> {
    packed: &'t [Packed],
    /// Of the whole table.
    others: &'t [Row],
}

impl<'t> Rows<'t> {
    fn row(self, packed: &Packed) -> Row {
        let other = self.others.get(packed.line as usize);
        match other.filter(|_| packed.rest & OTHER != 0) {
            Some(other) => *other,
            None => packed.row(),
        }
    }

    fn address(self, packed: &Packed) -> u64 {
        if packed.rest & OTHER == 0 {
            packed.address.into()
        } else {
            self.row(packed).address
        }
    }

    /// A row by its number.
    pub fn get(self, number: usize) -> Option<Row> {
        Some(self.row(self.packed.get(number)?))
    }

    /// All of them.
    pub fn iter(self) -> impl Iterator<Item = Row> + use<'t> {
        self.packed.iter().map(move |packed| self.row(packed))
    }

    /// Some of them; none if they are not all there.
    pub fn part(self, numbers: Range<usize>) -> Rows<'t> {
        Rows {
            packed: self.packed.get(numbers).unwrap_or_default(),
            ..self
        }
    }

    /// The first, and the others.
    pub fn split_first(self) -> Option<(Row, Rows<'t>)> {
        let (first, packed) = self.packed.split_first()?;
        Some((self.row(first), Rows { packed, ..self }))
    }

    /// Whether their addresses ascend, and none is behind the end.
    pub fn ascend_to(self, end: u64) -> bool {
        let last = self.packed.last().map_or(0, |last| self.address(last));
        self.packed.is_sorted_by_key(|p| self.address(p)) && last <= end
    }

    /// How many begin at an address or in front of it, where they ascend.
    pub fn up_to(self, address: u64) -> usize {
        self.packed.partition_point(|p| self.address(p) <= address)
    }

    /// The number of the first that begins at an address or behind it, where they ascend and no row in front of number
    /// `from` does.
    pub fn at(self, address: u64, from: usize) -> usize {
        from + stretch(self.packed, from, |p| self.address(p) < address).len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_what_they_were_however_large_their_numbers() {
        arbtest::arbtest(|u| {
            let (mut table, mut all) = (Table::default(), Vec::new());
            for _ in 0..u.int_in_range(0..=12)? {
                let mut number = || -> arbitrary::Result<u32> {
                    let bits = *u.choose(&[0, 1, 4, 5, 10, 11, 13, 14, 32])?;
                    Ok(u.arbitrary::<u32>()? >> (31 - bits.min(31)) >> u32::from(bits < 32))
                };
                let (file, line, column) = (number()?, number()?, number()?);
                let (isa, discriminator, high) = (number()?, number()?, number()?);
                let isa = if u.ratio(1, 4)? { isa } else { 0 };
                let high = if u.ratio(1, 4)? { high } else { 0 };
                let row = Row {
                    address: u64::from(high) << 32 | u64::from(u.arbitrary::<u32>()?),
                    file,
                    line,
                    column,
                    isa,
                    discriminator,
                    is_stmt: u.arbitrary()?,
                    basic_block: u.arbitrary()?,
                    prologue_end: u.arbitrary()?,
                    epilogue_begin: u.arbitrary()?,
                };
                table.push(row);
                all.push(row);
                if u.ratio(1, 8)? {
                    let len = u.int_in_range(0..=all.len())?;
                    table.truncate(len);
                    all.truncate(len);
                }
            }
            let rows = table.part(0..table.len());
            assert_eq!(rows.iter().collect::<Vec<_>>(), all);
            let others = all.iter().filter(|row| Packed::new(row).is_none());
            assert_eq!(table.others.len(), others.count());
            let at = u.int_in_range(0..=all.len() + 1)?;
            assert_eq!(rows.get(at), all.get(at).copied());
            assert_eq!(rows.part(at..all.len() + 1).iter().count(), 0);
            let split = rows
                .split_first()
                .map(|(first, rest)| (first, rest.iter().count()));
            assert_eq!(split, all.first().map(|first| (*first, all.len() - 1)));

            let end = u.arbitrary()?;
            let is_sorted = all.is_sorted_by_key(|r| r.address);
            let last = all.last().map_or(0, |r| r.address);
            assert_eq!(rows.ascend_to(end), is_sorted && last <= end);
            all.sort_by_key(|r| r.address);
            let mut sorted = Table::default();
            all.iter().for_each(|row| sorted.push(*row));
            let sorted = sorted.part(0..all.len());
            assert_eq!(
                sorted.up_to(end),
                all.iter().filter(|r| r.address <= end).count()
            );
            let before = all.iter().filter(|r| r.address < end).count();
            let from = u.int_in_range(0..=before)?;
            assert_eq!(sorted.at(end, from), before);
            Ok(())
        });
    }
}
