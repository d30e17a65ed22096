//! `.mipraw`: the counters of one run, as they were in memory.
//!
//! After the [`header`](crate::header) are the counters of all functions, in link order; where those of a
//! function begin, only the map knows (offsets count from the start of the file). For each function:
//!
//! | mode | entry | each other block with a counter | never ran |
//! |---|---|---|---|
//! | function coverage | 1 byte | 1 byte | all ones; with [`ZERO_FILLED`](crate::Types::ZERO_FILLED) zero |
//! | call graph | call count (4), place in the order of first calls from 1 (4); aligned to 4 | 1 byte | the same |
//!
//! A byte of what ran is zero; with `ZERO_FILLED` it is anything else. With
//! [`COUNTS_DOWN`](crate::Types::COUNTS_DOWN) the call count is stored as its negative.
//!
//! # Version 9
//!
//! A raw whose header says a number of *slots* ends with so many slots of 16 bytes, which hold sampled return
//! addresses:
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 4 | where the called function's counters begin (its raw offset) |
//! | 4 | 4 | return address less the address of the raw section, signed |
//! | 8 | 8 | how many calls it represents; 0: the slot is empty |
//!
//! # `.mipret`
//!
//! The same samples in a file of their own. In version 8 a slot has the first two fields only and represents one call;
//! all zeros or all ones is an empty slot.

#![warn(clippy::indexing_slicing)]

use std::path::Path;

use postlink_profile::Error;

use crate::header::{Header, Kind, SIZE, Types, VERSION, Width};
use crate::model::Profile;
use crate::reader::bad;

/// Size of a slot.
pub const SLOT: usize = 16;
const OLD_SLOT: usize = 8;

/// A raw file or file of samples, its header and size checked.
#[derive(Clone, Copy, Debug)]
pub struct Raw<'a> {
    path: &'a Path,
    /// Its header.
    pub header: Header,
    /// The whole file but for the slots: counters are found from its start.
    pub counters: &'a [u8],
    /// Its slots.
    slots: &'a [u8],
}

/// What a function's entry counter says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// It was never called.
    Never,
    /// It was called.
    Called {
        /// How often; 1 with function coverage.
        count: u32,
        /// Its place in the order of first calls, from 1; 0 with function coverage.
        time: u32,
    },
}

/// A sampled call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Raw offset of the called function.
    pub callee: u32,
    /// Return address less that of the raw section.
    pub source: i32,
    /// Number of calls that it represents.
    pub weight: u64,
}

impl<'a> Raw<'a> {
    /// Reads and checks the header of a raw file or a file of samples.
    pub fn parse(path: &'a Path, bytes: &'a [u8]) -> Result<Raw<'a>, Error> {
        let header = Header::read(path, bytes, bytes.len() as u64)?;
        let slots = match header.kind {
            Kind::Raw if header.version > VERSION => {
                // 2³² slots of 16 bytes fit into 64 bits.
                let len = u64::from(header.slots) * SLOT as u64;
                if len > (bytes.len() - header.size) as u64 {
                    return Err(bad(
                        path,
                        24,
                        format!(
                            "{} sample slots take {len} bytes, the file has {} after its header",
                            header.slots,
                            bytes.len() - header.size
                        ),
                    ));
                }
                len as usize
            }
            Kind::Raw => 0,
            Kind::Samples => bytes.len() - header.size,
            kind => {
                return Err(bad(
                    path,
                    6,
                    format!("this is a {kind} file, expected {}", Kind::Raw),
                ));
            }
        };
        let (counters, slots) = bytes.split_at(bytes.len() - slots);
        let raw = Raw {
            path,
            header,
            counters,
            slots,
        };
        let rest = slots.len() % raw.slot_size();
        if rest != 0 {
            return Err(bad(
                path,
                (bytes.len() - rest) as u64,
                format!(
                    "the last sample has {rest} bytes, and they are {}",
                    raw.slot_size()
                ),
            ));
        }
        Ok(raw)
    }

    fn slot_size(&self) -> usize {
        if self.header.version > VERSION {
            SLOT
        } else {
            OLD_SLOT
        }
    }

    /// Where the file came from.
    pub fn path(&self) -> &'a Path {
        self.path
    }

    /// Whether a counter byte says that its block ran.
    pub fn covered(&self, byte: u8) -> bool {
        (byte == 0) != self.header.types.has(Types::ZERO_FILLED)
    }

    /// The entry counter of a function.
    pub fn entry(&self, offset: u64) -> Result<Entry, Error> {
        let bytes = self.bytes(offset, self.header.types.entry_bytes())?;
        if let [byte] = bytes {
            return Ok(if self.covered(*byte) {
                Entry::Called { count: 1, time: 0 }
            } else {
                Entry::Never
            });
        }
        // Call count and time, 8 bytes.
        let number = |at: usize| le_u32(bytes, at);
        let (count, time) = (number(0), number(4));
        let never = if self.header.types.has(Types::ZERO_FILLED) {
            0
        } else {
            u32::MAX
        };
        match (count == never, time == never) {
            (true, true) => Ok(Entry::Never),
            (false, false) => Ok(Entry::Called {
                count: if self.header.types.has(Types::COUNTS_DOWN) {
                    count.wrapping_neg()
                } else {
                    count
                },
                time,
            }),
            _ => Err(self.half_set(offset, count, time)),
        }
    }

    /// The error of a function with only one of its two counters set.
    pub(crate) fn half_set(&self, offset: u64, count: u32, time: u32) -> Error {
        bad(
            self.path,
            offset,
            format!(
                "the call count is {count:#x} and the time of the first call {time:#x}: either both or none must be set"
            ),
        )
    }

    /// The bytes of blocks, or of an entry.
    pub fn bytes(&self, offset: u64, len: u64) -> Result<&'a [u8], Error> {
        let start = usize::try_from(offset).ok();
        let end = offset
            .checked_add(len)
            .and_then(|end| usize::try_from(end).ok());
        start
            .zip(end)
            .and_then(|(start, end)| self.counters.get(start..end))
            .ok_or_else(|| Error::CutShort {
                path: self.path.to_owned(),
                what: format!("the counters of a function at offset {offset:#x}"),
                expected: offset.saturating_add(len),
                found: self.counters.len() as u64,
            })
    }

    /// The samples in it.
    pub fn samples(&self) -> impl Iterator<Item = Sample> + use<'a> {
        let number = le_u32;
        self.slots
            .chunks_exact(self.slot_size())
            .filter_map(move |slot| {
                let (callee, source) = (number(slot, 0), number(slot, 4));
                let weight = if slot.len() == SLOT {
                    u64::from(number(slot, 8)) | u64::from(number(slot, 12)) << 32
                } else {
                    let empty = callee == source && (callee == 0 || callee == u32::MAX);
                    u64::from(!empty)
                };
                (weight > 0).then_some(Sample {
                    callee,
                    source: source as i32,
                    weight,
                })
            })
    }
}

/// The bytes of a raw file in which nothing has run, for a map. `slots` are added at its end.
pub fn empty(profile: &Profile, width: Width, slots: u32) -> Vec<u8> {
    let mut header = Header::new(Kind::Raw, Some(width), profile.types, profile.module_hash);
    header.word = profile.identity;
    header.slots = slots;
    if slots > 0 || profile.identity != 0 {
        header.version = crate::header::VERSION_MAX;
    }
    header.types = header.types.without(Types::INFERRED_BLOCKS);
    let fill = if profile.types.has(Types::ZERO_FILLED) {
        0
    } else {
        0xFF
    };
    let mut out = header.to_bytes().to_vec();
    out.resize((profile.raw_len() as usize).max(SIZE), fill);
    out.resize(out.len() + slots as usize * SLOT, 0);
    out
}

/// The number of four bytes at an offset; 0 where there are fewer.
pub(crate) fn le_u32(bytes: &[u8], at: usize) -> u32 {
    let four = bytes.get(at..).and_then(<[u8]>::first_chunk::<4>);
    four.map_or(0, |four| u32::from_le_bytes(*four))
}
