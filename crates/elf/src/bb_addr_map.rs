//! `.llvm_bb_addr_map`: which addresses the basic blocks of LLVM's code generator have, by their numbers.
//!
//! Clang writes it with `-fbasic-block-address-map`. Propeller's profiles name blocks by these numbers. One entry for
//! each function, one after the other in each section of type `SHT_LLVM_BB_ADDR_MAP`; numbers are ULEB128 unless said
//! otherwise:
//!
//! | | |
//! |---|---|
//! | version | 1 byte: 2 to 5 |
//! | features | 1 byte; from version 5 on 2 |
//! | number of ranges | with feature 8; else there is one range |
//! | ranges | address (8 bytes), number of blocks, blocks (none with feature 0x10) |
//! | analysis | with features 1, 2, 4: entries of the function; for each block its frequency, its successors and their probabilities |
//!
//! A block: its number, the distance from the end of the block before (or the start of the range); with feature 0x20
//! the number of calls, and the end of each from the one before; its size, from the end of its last call if they are
//! there; flags; with feature 0x40 a hash of 8 bytes.
//!
//! Source: LLVM, `docs/Extensions.rst`, and what clang 22 writes.

use postlink_bytes::leb128::LONGEST;
use postlink_bytes::{Broken, Bytes};

use crate::FormatError;
use crate::elf::Elf;

/// Type of the sections.
pub const SHT_LLVM_BB_ADDR_MAP: u32 = 0x6fff_4c0a;

/// Features of an entry.
mod feature {
    pub const ENTRY_COUNT: u64 = 1;
    pub const FREQUENCY: u64 = 2;
    pub const PROBABILITIES: u64 = 4;
    pub const RANGES: u64 = 8;
    pub const NO_BLOCKS: u64 = 0x10;
    pub const CALLS: u64 = 0x20;
    pub const HASH: u64 = 0x40;
    pub const KNOWN: u64 = 0x7f;
}

/// A flag of blocks: it is where exceptions land.
const LANDING_PAD: u64 = 4;

/// A basic block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its number in the function.
    pub id: u32,
    /// First address.
    pub start: u64,
    /// One past its last address.
    pub end: u64,
    /// Exceptions land in it.
    pub landing_pad: bool,
}

/// A function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Function {
    /// Its blocks in the order of the map: the entry of the function is the first one of the first range.
    pub blocks: Vec<Block>,
}

/// The functions of a file; empty if it has no map.
///
/// # Errors
/// A map that is cut short, or of a version or with features that are not known.
pub fn functions(elf: &Elf<'_>) -> Result<Vec<Function>, FormatError> {
    let mut out = Vec::new();
    for section in &elf.sections {
        if section.kind == SHT_LLVM_BB_ADDR_MAP {
            parse(elf.section_data(section), &mut out)?;
        }
    }
    Ok(out)
}

/// Reads the entries of a section.
///
/// # Errors
/// As [`functions`].
pub fn parse(section: &[u8], out: &mut Vec<Function>) -> Result<(), FormatError> {
    let mut reader = Reader {
        bytes: Bytes::new(section),
    };
    while !reader.bytes.is_empty() {
        out.push(reader.function()?);
    }
    Ok(())
}

struct Reader<'d> {
    bytes: Bytes<'d>,
}

impl<'d> Reader<'d> {
    fn wrong(&self, what: impl std::fmt::Display) -> FormatError {
        FormatError::new(format!(
            ".llvm_bb_addr_map, offset {:#x}: {what}",
            self.bytes.at()
        ))
    }

    fn read<T>(
        &mut self,
        what: &str,
        read: impl FnOnce(&mut Bytes<'d>) -> Result<T, Broken>,
    ) -> Result<T, FormatError> {
        read(&mut self.bytes).map_err(|broken| match broken {
            Broken::Short { needed, left } => self.wrong(format_args!(
                "{what} takes {needed} bytes, and {left} are left"
            )),
            Broken::Wide => self.wrong(format_args!("{what} has more than 64 bits")),
        })
    }

    fn number(&mut self, what: &str) -> Result<u64, FormatError> {
        self.read(what, |bytes| bytes.unsigned(LONGEST))
    }

    /// A number of things that take `size` bytes each at least.
    fn elements(&mut self, size: u64, what: &str) -> Result<u64, FormatError> {
        let number = self.number(what)?;
        let left = self.bytes.left() as u64;
        if number <= left / size {
            Ok(number)
        } else {
            Err(self.wrong(format_args!(
                "{what} is {number}, and {left} bytes are left"
            )))
        }
    }

    fn function(&mut self) -> Result<Function, FormatError> {
        let version = self.read("the version", Bytes::u8)?;
        if !(2..=5).contains(&version) {
            return Err(self.wrong(format_args!("version {version}, and 2 to 5 are known")));
        }
        let features = match version {
            5 => self.read("features", Bytes::u16)?.into(),
            _ => u64::from(self.read("features", Bytes::u8)?),
        };
        if features & !feature::KNOWN != 0 {
            return Err(self.wrong(format_args!(
                "features {features:#x}, and {:#x} are known",
                feature::KNOWN
            )));
        }
        let ranges = match features & feature::RANGES {
            0 => 1,
            _ => self.elements(9, "the number of ranges")?,
        };
        let mut function = Function::default();
        let mut blocks = 0;
        for _ in 0..ranges {
            blocks += self.range(features, &mut function)?;
        }
        self.analysis(features, blocks)?;
        Ok(function)
    }

    /// Reads a range; returns the number of its blocks.
    fn range(&mut self, features: u64, function: &mut Function) -> Result<u64, FormatError> {
        let mut at = self.read("an address", Bytes::u64)?;
        if features & feature::NO_BLOCKS != 0 {
            return self.number("the number of blocks");
        }
        let blocks = self.elements(4, "the number of blocks")?;
        for _ in 0..blocks {
            let id = self.number("the number of a block")?;
            let id = u32::try_from(id)
                .map_err(|_| self.wrong(format_args!("a block has the number {id}")))?;
            let gap = self.number("the distance of a block")?;
            let mut size = 0u64;
            if features & feature::CALLS != 0 {
                for _ in 0..self.elements(1, "the number of calls")? {
                    size = size.saturating_add(self.number("the end of a call")?);
                }
            }
            size = size.saturating_add(self.number("the size of a block")?);
            let flags = self.number("flags")?;
            if features & feature::HASH != 0 {
                self.read("the hash of a block", Bytes::u64)?;
            }
            let start = at.checked_add(gap);
            let Some((start, end)) =
                start.and_then(|start| Some((start, start.checked_add(size)?)))
            else {
                return Err(self.wrong(format_args!(
                    "block {id} is {gap:#x} bytes from {at:#x} and has {size:#x}: it ends outside of the address space"
                )));
            };
            function.blocks.push(Block {
                id,
                start,
                end,
                landing_pad: flags & LANDING_PAD != 0,
            });
            at = end;
        }
        Ok(blocks)
    }

    /// Skips what the compiler thought of counts.
    fn analysis(&mut self, features: u64, blocks: u64) -> Result<(), FormatError> {
        if features & feature::ENTRY_COUNT != 0 {
            self.number("the entries of a function")?;
        }
        let (frequencies, probabilities) = (
            features & feature::FREQUENCY != 0,
            features & feature::PROBABILITIES != 0,
        );
        if !frequencies && !probabilities {
            return Ok(());
        }
        // Each takes a byte, so a wrong number ends with the section.
        for _ in 0..blocks {
            if frequencies {
                self.number("the frequency of a block")?;
            }
            if probabilities {
                for _ in 0..self.elements(2, "the number of successors")? {
                    self.number("a successor")?;
                    self.number("a probability")?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What clang 22 writes for a function of three blocks, of which the second ends with a call; at 0x1000.
    const CLANG_22: &[u8] = &[
        5, 0x20, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 8, 8, 1, 0, 1, 0x10, 0, 8, 2, 2, 0, 5, 1,
    ];

    #[test]
    fn the_map_of_clang_22_is_read_and_cut_ones_are_refused() {
        let mut out = Vec::new();
        parse(CLANG_22, &mut out).unwrap();
        let block = |id, start, end| Block {
            id,
            start,
            end,
            landing_pad: false,
        };
        assert_eq!(
            out,
            [Function {
                blocks: vec![
                    block(0, 0x1000, 0x1008),
                    block(1, 0x1008, 0x1018),
                    block(2, 0x101a, 0x101f),
                ]
            }]
        );
        for len in 1..CLANG_22.len() {
            assert!(
                parse(&CLANG_22[..len], &mut Vec::new()).is_err(),
                "cut at {len}"
            );
        }
    }

    #[test]
    fn every_feature_has_its_bytes() {
        // Version 4 (one byte of features): ranges, hashes, entries, frequencies, probabilities.
        let mut bytes = vec![4, 0x4f, 2];
        for (address, id) in [(0x2000u64, 0u8), (0x9000, 7)] {
            bytes.extend(address.to_le_bytes());
            bytes.extend([1, id, 0, 16, 4]);
            bytes.extend([0xaa; 8]);
        }
        bytes.extend([0xff, 1]);
        bytes.extend([3, 1, 7, 9, 2, 0]);
        bytes.extend(CLANG_22);
        let mut out = Vec::new();
        parse(&bytes, &mut out).unwrap();
        assert_eq!(out.len(), 2);
        assert_eq!(
            out[0].blocks,
            [(0, 0x2000, 0x2010), (7, 0x9000, 0x9010)].map(|(id, start, end)| Block {
                id,
                start,
                end,
                landing_pad: true
            })
        );
    }

    #[test]
    fn what_overflows_is_an_error_with_both_values() {
        let mut bytes = vec![2, 0];
        bytes.extend(u64::MAX.to_le_bytes());
        bytes.extend([1, 0, 0, 2, 0]);
        let said = parse(&bytes, &mut Vec::new()).unwrap_err().what;
        assert!(said.contains("0 bytes from 0xffffffffffffffff"), "{said}");
        bytes[10] = 100;
        let said = parse(&bytes, &mut Vec::new()).unwrap_err().what;
        assert!(
            said.contains("the number of blocks is 100, and 4 bytes are left"),
            "{said}"
        );
        bytes[0] = 6;
        let said = parse(&bytes, &mut Vec::new()).unwrap_err().what;
        assert!(said.contains("version 6"), "{said}");
    }
}
