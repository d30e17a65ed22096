//! `.mipmap`: what each counter means. Taken out of the program (section `__llvm_mipmap`), or written beside it.
//!
//! After the [`header`](crate::header) come records until the file ends, each aligned to the width of an
//! address from the start of the file; the padding of the last may be missing.
//!
//! | offset (64/32 bit) | size | field |
//! |---|---|---|
//! | 0 / 0 | 8 / 4 | `p`: address of the counters less that of this record |
//! | 8 / 4 | 8 / 4 | `q`: address of the function less that of this record |
//! | 16 / 8 | 4 | size of the function |
//! | 20 / 12 | 4 | signature of its control flow graph |
//! | 24 / 16 | 4 | N, number of its blocks with counters, other than the entry |
//! | 28 / 20 | 4 N | their offsets from the start of the function |
//! | | 4 | length of the name |
//! | | | mangled name |
//!
//! All that a linker can compute for a section that has no address is the distance between places. With the
//! header's `H`, the distance from the map's start to the raw section's, and the place `c` of a record in the
//! file, the counters are `p - (H - c)` from the start of the raw section, and so is the function by `q`.
//!
//! A map that was sealed when its program was linked has its length in the header, and the module hash is
//! that of its contents ([`contents_hash`]): so one that was cut short or damaged is known. Others are read
//! as far as they go.
//!
//! Records of the older layout have four-byte fields throughout, with one more in front, the distance to the
//! raw section, and are always aligned to 8.
//!
//! # Version 9
//!
//! With [`Types::INFERRED_BLOCKS`], the name is padded with zeros to a multiple of 4 from the start of the
//! file, and then come
//!
//! | size | field |
//! |---|---|
//! | 4 | number of blocks without counters |
//! | | for each: offset (4), how many (4) and which (4 each) counters it follows from; 0 is the entry's |
//!
//! With [`Types::MOVED_CALLERS`] a list of return addresses is between the header and the first record, which is
//! aligned as the others are. Numbers are LEB128:
//!
//! | size | field |
//! |---|---|
//! | 4 | their number, ascending in the program that ran; of each: |
//! | unsigned | return address in the program that ran, less the one before it (0 at first); not 0 |
//! | signed | return address in the input, less the one before it (0 at first) |
//!
//! Return addresses are less that of the raw section, as functions' addresses are in a profile.
//!
//! With function coverage, the first may be the entry itself, at offset 0: then its own counter, which is
//! there all the same, is never written, and no other block follows from it.

use std::path::Path;

use postlink_bytes::leb128;
use postlink_profile::Error;

use crate::hash::{md5_64, module_hash};
use crate::header::{Header, Kind, Types, VERSION, Width};
use crate::model::{Block, Function, InferredBlock, MovedCaller, Profile};
use crate::reader::Reader;

/// A map as it was read.
#[derive(Clone, Debug)]
pub struct Map {
    /// Its header.
    pub header: Header,
    /// What it describes.
    pub profile: Profile,
}

/// Reads a map: an empty profile.
pub fn read(path: &Path, bytes: &[u8]) -> Result<Map, Error> {
    let header = Header::read_kind(path, bytes, bytes.len() as u64, Kind::Map)?;
    check_seal(path, bytes, &header)?;
    let mut profile = Profile::of(&header);
    let records = Records::of(path, &header)?;
    let mut reader = Reader::new(path, bytes, header.size);
    if header.types.has(Types::MOVED_CALLERS) {
        profile.callers = moved_callers(&mut reader)?;
        reader.align(records.align);
    }
    while reader.left() > 0 {
        profile.functions.push(records.read(&mut reader)?);
        reader.align(records.align);
    }
    Ok(Map { header, profile })
}

/// The module hash of a sealed map: of all of its bytes, with zero where the hash goes.
pub fn contents_hash(bytes: &[u8]) -> u32 {
    let mut bytes = bytes.to_vec();
    if let Some(hash) = bytes.get_mut(12..16) {
        hash.fill(0);
    }
    module_hash(&bytes)
}

/// Refuses a sealed map that was changed since.
fn check_seal(path: &Path, bytes: &[u8], header: &Header) -> Result<(), Error> {
    let length = u64::from(header.slots);
    let len = bytes.len() as u64;
    if length == 0 {
        return Ok(());
    }
    if length != len {
        let what = if len < length { "cut short" } else { "damaged" };
        return Err(crate::reader::bad(
            path,
            24,
            format!("the map has {length} bytes, the file has {len}: {what}"),
        ));
    }
    let hash = contents_hash(bytes);
    if hash != header.module_hash {
        return Err(crate::reader::bad(
            path,
            12,
            format!(
                "the module hash is {:#010X}, that of the contents is {hash:#010X}: the map is damaged",
                header.module_hash
            ),
        ));
    }
    Ok(())
}

/// How records of one file are read.
struct Records {
    wide: bool,
    align: usize,
    old: bool,
    /// Distance from the map's start to the raw section.
    raw_section: i64,
    inferred: bool,
    entry_bytes: u64,
    header_size: i64,
}

impl Records {
    fn of(path: &Path, header: &Header) -> Result<Records, Error> {
        if !header.is_old() && header.width.is_none() {
            return Err(crate::reader::bad(
                path,
                6,
                "the kind of file says neither 64 bit nor 32 bit, which a map must",
            ));
        }
        let wide = header.width == Some(Width::Wide);
        Ok(Records {
            wide,
            align: if header.is_old() || wide { 8 } else { 4 },
            old: header.is_old(),
            raw_section: if wide {
                header.word as i64
            } else {
                i64::from(header.word as u32 as i32)
            },
            inferred: header.types.has(Types::INFERRED_BLOCKS),
            entry_bytes: header.types.entry_bytes(),
            header_size: header.size as i64,
        })
    }

    fn read(&self, reader: &mut Reader<'_>) -> Result<Function, Error> {
        let start = reader.at();
        // Distance from this record to the raw section.
        let base = if self.old {
            reader.signed(false, "a map record")?
        } else {
            self.raw_section.wrapping_sub(start as i64)
        };
        let counters = reader.signed(self.wide, "a map record")?;
        let address = reader.signed(self.wide, "a map record")?;
        // On a 32-bit target distances are modulo 2³².
        let relative = |value: i64| {
            let distance = value.wrapping_sub(base);
            if self.wide {
                distance
            } else {
                i64::from(distance as i32)
            }
        };
        let raw_offset = relative(counters);
        if raw_offset < self.header_size {
            return Err(reader.bad(
                start,
                format!(
                    "the counters of the record are at {raw_offset:#x} of the raw section, before its data at {:#x}: is this the section's contents from its start, from a linked program?",
                    self.header_size
                ),
            ));
        }
        let size = reader.u32("a map record")?;
        let cfg_signature = reader.u32("a map record")?;
        let at = reader.at();
        let block_count = reader.count(false, 4, "the number of blocks")?;
        let counters_end = (raw_offset as u64)
            .checked_add(self.entry_bytes)
            .and_then(|end| end.checked_add(block_count as u64));
        if counters_end.is_none() {
            return Err(reader.bad(at, format!("{block_count} blocks end beyond all addresses")));
        }
        let mut blocks = Vec::with_capacity(block_count);
        for _ in 0..block_count {
            blocks.push(Block {
                offset: reader.u32("block offsets")?,
                covered: false,
            });
        }
        let length = reader.u32("the length of a name")?;
        let at = reader.at();
        let name = reader.take(length.into(), "a name")?;
        if let Some(nul) = name.iter().position(|&byte| byte == 0) {
            return Err(reader.bad(at + nul, "a zero byte in a function's name"));
        }
        let inferred = if self.inferred {
            reader.align(4);
            inferred_blocks(reader, blocks.len())?
        } else {
            Vec::new()
        };
        Ok(Function {
            name: name.to_vec(),
            signature: md5_64(name),
            raw_offset: raw_offset as u64,
            address: relative(address),
            size,
            cfg_signature,
            blocks,
            inferred,
            ..Function::default()
        })
    }
}

/// The list of blocks without counters, the same in maps and profiles.
pub(crate) fn inferred_blocks(
    reader: &mut Reader<'_>,
    blocks: usize,
) -> Result<Vec<InferredBlock>, Error> {
    let count = reader.count(false, 8, "the number of blocks without counters")?;
    let mut inferred = Vec::with_capacity(count);
    for _ in 0..count {
        let offset = reader.u32("a block without counter")?;
        let many = reader.count(false, 4, "the number of counters that a block follows from")?;
        let mut from = Vec::with_capacity(many);
        for _ in 0..many {
            let at = reader.at();
            let number = reader.u32("a counter's number")?;
            if number as usize > blocks {
                return Err(reader.bad(
                    at,
                    format!("a block follows from counter {number}, and the last is {blocks}"),
                ));
            }
            from.push(number);
        }
        inferred.push(InferredBlock { offset, from });
    }
    Ok(inferred)
}

/// See [`inferred_blocks`].
pub(crate) fn put_inferred_blocks(out: &mut Vec<u8>, inferred: &[InferredBlock]) {
    out.extend((inferred.len() as u32).to_le_bytes());
    for block in inferred {
        out.extend(block.offset.to_le_bytes());
        out.extend((block.from.len() as u32).to_le_bytes());
        for number in &block.from {
            out.extend(number.to_le_bytes());
        }
    }
}

/// The list of calls that are in another place, the same in maps and profiles.
pub(crate) fn moved_callers(reader: &mut Reader<'_>) -> Result<Vec<MovedCaller>, Error> {
    const WHAT: &str = "a call that is in another place";
    let count = reader.count(false, 2, "the number of calls that are in another place")?;
    let mut callers = Vec::with_capacity(count);
    let mut last = MovedCaller::default();
    for _ in 0..count {
        let at = reader.at();
        let further = reader.unsigned(WHAT)?;
        let ran = i64::try_from(further).ok();
        let ran = ran
            .filter(|by| *by > 0)
            .and_then(|by| last.ran.checked_add(by));
        let Some(ran) = ran else {
            return Err(reader.bad(
                at,
                format!(
                    "the return address after {:#x} is {further:#x} bytes further, which does not ascend",
                    last.ran
                ),
            ));
        };
        let source = last.source.wrapping_add(reader.signed_leb128(WHAT)?);
        last = MovedCaller { ran, source };
        callers.push(last);
    }
    Ok(callers)
}

/// See [`moved_callers`]. They ascend.
pub(crate) fn put_moved_callers(out: &mut Vec<u8>, callers: &[MovedCaller]) {
    out.extend((callers.len() as u32).to_le_bytes());
    let mut last = MovedCaller::default();
    for caller in callers {
        leb128::put_unsigned(out, caller.ran.wrapping_sub(last.ran) as u64);
        leb128::put_signed(out, caller.source.wrapping_sub(last.source));
        last = *caller;
    }
}

/// The bytes of a map for a profile's functions. `raw_section` is the address of the raw section, as the map
/// counts them; any will do.
///
/// On 32-bit targets distances are modulo 2³², as they are everywhere there.
pub fn write(profile: &Profile, width: Width, raw_section: u64) -> Vec<u8> {
    let wide = width == Width::Wide;
    let mut header = Header::new(Kind::Map, Some(width), profile.types, profile.module_hash);
    header.word = raw_section;
    let mut out = header.to_bytes().to_vec();
    if header.version > VERSION && header.types.has(Types::MOVED_CALLERS) {
        put_moved_callers(&mut out, &profile.callers);
        out.resize(out.len().next_multiple_of(width.bytes()), 0);
    }
    let with_inferred = header.version > VERSION && header.types.has(Types::INFERRED_BLOCKS);
    for function in &profile.functions {
        let base = (raw_section as i64).wrapping_sub(out.len() as i64);
        let mut distance = |value: i64| {
            let value = value.wrapping_add(base);
            if wide {
                out.extend(value.to_le_bytes());
            } else {
                out.extend((value as i32).to_le_bytes());
            }
        };
        distance(function.raw_offset as i64);
        distance(function.address);
        out.extend(function.size.to_le_bytes());
        out.extend(function.cfg_signature.to_le_bytes());
        out.extend((function.blocks.len() as u32).to_le_bytes());
        for block in &function.blocks {
            out.extend(block.offset.to_le_bytes());
        }
        out.extend((function.name.len() as u32).to_le_bytes());
        out.extend(&function.name);
        if with_inferred {
            out.resize(out.len().next_multiple_of(4), 0);
            put_inferred_blocks(&mut out, &function.inferred);
        }
        out.resize(out.len().next_multiple_of(width.bytes()), 0);
    }
    out
}
