//! Blocks of sorted rows, as temporary files have them and as they travel from executors to who merges them.
//!
//! ```text
//! size    32 bits   little-endian; bytes of the rows
//! rows              compressed by zstd
//! ```
//!
//! Of each row, the numbers as LEB128:
//!
//! ```text
//! shared          bytes of the key that are those of the key before; 0 of the first row of a block
//! length          bytes of the key that follow
//! count
//! mispredictions
//! the bytes
//! ```
//!
//! Keys that follow each other differ in their ends, and most counts are small: a row has about a dozen bytes, and
//! three or four when they are compressed.

use std::io::Read;

use anyhow::{Context, Result, bail};
use zstd::bulk::{Compressor, Decompressor};

/// Bytes of rows after which a block ends. Of each file that is merged one is in memory.
const SIZE: usize = 1 << 16;
/// No block is longer: one row more than [`SIZE`], and names of functions have kilobytes at most.
const LONGEST: usize = 1 << 30;
/// Of zstd: blocks are read once, soon after they were written.
const LEVEL: i32 = 1;

/// Makes blocks of rows.
pub struct Packer {
    rows: Vec<u8>,
    /// The key of the last row.
    before: Vec<u8>,
    compressor: Compressor<'static>,
}

impl Packer {
    /// Without rows.
    pub fn new() -> Result<Packer> {
        Ok(Packer {
            rows: Vec::new(),
            before: Vec::new(),
            compressor: Compressor::new(LEVEL).context("zstd")?,
        })
    }

    /// Appends a row, whose key is greater than that of the last one.
    pub fn add(&mut self, key: &[u8], count: u64, mispredictions: u64) {
        let same = self.before.iter().zip(key).take_while(|(a, b)| a == b);
        let shared = same.count();
        let rest = key.get(shared..).unwrap_or_default();
        for number in [shared as u64, rest.len() as u64, count, mispredictions] {
            put(&mut self.rows, number);
        }
        self.rows.extend_from_slice(rest);
        self.before.truncate(shared);
        self.before.extend_from_slice(rest);
    }

    /// Whether a block is complete.
    pub fn is_full(&self) -> bool {
        self.rows.len() >= SIZE
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The block of all rows so far.
    pub fn take(&mut self) -> Result<Vec<u8>> {
        let size = self.rows.len();
        let size = u32::try_from(size).with_context(|| format!("a block of {size} bytes"))?;
        let rows = self.compressor.compress(&self.rows).context("zstd")?;
        let block = [&size.to_le_bytes()[..], &rows].concat();
        self.rows.clear();
        self.before.clear();
        Ok(block)
    }
}

/// Reads blocks.
pub struct Unpacker {
    decompressor: Decompressor<'static>,
    packed: Vec<u8>,
}

impl Unpacker {
    /// Of any files.
    pub fn new() -> Result<Unpacker> {
        Ok(Unpacker {
            decompressor: Decompressor::new().context("zstd")?,
            packed: Vec::new(),
        })
    }

    /// Reads the next block of a file, with its length in front, and gives its rows over to `block`.
    pub fn read(&mut self, file: &mut impl Read, block: &mut Vec<u8>) -> Result<()> {
        let failed = "cannot read a temporary file";
        let mut numbers = [[0; 4]; 2];
        for number in &mut numbers {
            file.read_exact(number).context(failed)?;
        }
        let [length, size] = numbers.map(|number| u32::from_le_bytes(number) as usize);
        if !(4..=LONGEST).contains(&length) || size > LONGEST {
            bail!("a temporary file is damaged: a block of {length} bytes for {size}");
        }
        self.packed.resize(length - 4, 0);
        file.read_exact(&mut self.packed).context(failed)?;
        block.clear();
        block.reserve(size);
        let found = self.decompressor.decompress_to_buffer(&self.packed, block);
        let found = found.context("a temporary file is damaged")?;
        if found != size {
            bail!("a temporary file is damaged: a block of {found} bytes that must have {size}");
        }
        Ok(())
    }

    /// Reads the row at `at`, which moves on, and writes its key over that of the row before; gives its counts.
    pub fn row(&self, block: &[u8], at: &mut usize, key: &mut Vec<u8>) -> Result<(u64, u64)> {
        let mut numbers = [0; 4];
        for number in &mut numbers {
            *number = take(block, at)?;
        }
        let [shared, length, count, mispredictions] = numbers;
        let end = at.saturating_add(length as usize);
        let (before, rest) = (key.get(shared as usize..), block.get(*at..end));
        let Some((before, rest)) = before.zip(rest) else {
            bail!(
                "a block of rows is damaged: at {at} of {}, {length} bytes of a key after {shared} of {}",
                block.len(),
                key.len()
            );
        };
        // Else rows with one key would not meet when runs are merged.
        if rest <= before {
            bail!("a block of rows is damaged: at {at}, a key that is not after the one before");
        }
        key.truncate(shared as usize);
        key.extend_from_slice(rest);
        *at = end;
        Ok((count, mispredictions))
    }
}

fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn take(block: &[u8], at: &mut usize) -> Result<u64> {
    let (mut number, mut shift) = (0u64, 0u32);
    loop {
        let Some(byte) = block.get(*at).filter(|_| shift < 64) else {
            bail!(
                "a block of rows is damaged: no number at {at} of {}",
                block.len()
            );
        };
        *at += 1;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
        shift += 7;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A block as a file has it.
    fn file(block: &[u8]) -> Vec<u8> {
        [&(block.len() as u32).to_le_bytes()[..], block].concat()
    }

    type Rows = Vec<(Vec<u8>, u64, u64)>;

    fn rows_of(file: &[u8]) -> Result<Rows> {
        let (mut unpacker, mut rows) = (Unpacker::new()?, Vec::new());
        let (mut block, mut at, mut key) = (Vec::new(), 0, Vec::new());
        unpacker.read(&mut &file[..], &mut block)?;
        while at < block.len() {
            let (count, mispredictions) = unpacker.row(&block, &mut at, &mut key)?;
            rows.push((key.clone(), count, mispredictions));
        }
        Ok(rows)
    }

    #[test]
    fn rows_come_out_of_a_block_as_they_went_in() {
        let keys = ["a", "a\0", "ab", "abcdefghijk", "b", "ba"];
        let counts = [0, 127, 128, u64::from(u32::MAX), u64::MAX - 1, u64::MAX];
        let rows = keys.iter().zip(counts);
        let rows = rows.map(|(key, count)| (key.as_bytes().to_vec(), count, count / 3));
        let rows: Rows = rows.collect();
        let mut packer = Packer::new().unwrap();
        // The second block must not depend on the first.
        for _ in 0..2 {
            for (key, count, mispredictions) in &rows {
                packer.add(key, *count, *mispredictions);
            }
            assert!(!packer.is_empty() && !packer.is_full());
            assert_eq!(rows_of(&file(&packer.take().unwrap())).unwrap(), rows);
            assert!(packer.is_empty());
        }
    }

    #[test]
    fn blocks_that_are_cut_or_out_of_order_are_errors() {
        let pack = |keys: &[&str]| {
            let mut packer = Packer::new().unwrap();
            for key in keys {
                packer.add(key.as_bytes(), 300, 5);
            }
            file(&packer.take().unwrap())
        };
        let whole = pack(&["a", "b"]);
        assert_eq!(rows_of(&whole).unwrap().len(), 2);
        for length in 0..whole.len() {
            assert!(rows_of(&whole[..length]).is_err(), "{length}");
        }
        for keys in [["b", "a"], ["a", "a"], ["ab", "a"]] {
            let error = rows_of(&pack(&keys)).unwrap_err().to_string();
            assert!(error.contains("not after the one before"), "{error}");
        }
        let mut at = 0;
        let unpacker = Unpacker::new().unwrap();
        let wrong: [&[u8]; 5] = [
            &[1, 1, 0, 0, b'a'],
            &[0, 2, 0, 0, b'a'],
            &[0, 1, 0],
            &[0x80; 12],
            &[0, 0, 0, 0],
        ];
        for rows in wrong {
            at = 0;
            assert!(unpacker.row(rows, &mut at, &mut Vec::new()).is_err());
        }
        assert!(at <= 12);
    }
}
