//! `.mip`: the indexed profile, everything about any number of runs in one file.
//!
//! After the [`header`](crate::header):
//!
//! | size | field |
//! |---|---|
//! | 8 | number of functions |
//! | | records, packed |
//! | 8 | number of distinct names |
//! | | names, each ended by a zero byte, sorted bytewise |
//!
//! A record:
//!
//! | size | field |
//! |---|---|
//! | 8 | signature: hash of the mangled name |
//! | 8 | where its counters are in the raw file (4 in the older layout) |
//! | 8 | address, less that of the raw section (4 in the older layout) |
//! | 4, 4 | size, signature of the control flow graph |
//! | 4, 4 | N, number of other blocks than the entry; number of runs in which it ran |
//! | 8, 8 | calls; sum of its places in the order of first calls |
//! | 5 N | for each block: offset (4), whether it ran (1) |
//! | 4 | E, number of places it was called from |
//!
//! Names go to all records with their signature. The state of an entry block follows from the counts.
//!
//! # Version 9
//!
//! After E come E edges of 16 bytes, return address less that of the raw section (8, signed) and number of
//! calls (8); then the blocks without counters as in a [map](crate::map) (their number is always there).
//! After the names: the number of traces (8); for each its key (8), weight (8), length (4), and that many
//! indexes of functions (4 each).
//!
//! With [`Types::MOVED_CALLERS`] the return addresses of a [map](crate::map) are last. Edges have those of the input
//! already; the list is there for runs that are yet to be merged.
//!
//! In version 8, edges were reserved (4 and 4 bytes) and E always zero.

#![warn(clippy::indexing_slicing)]

use std::path::Path;

use postlink_profile::Error;
use rustc_hash::FxHashMap;

use crate::hash::md5_64;
use crate::header::{Header, Kind, Types, VERSION, VERSION_MAX};
use crate::map::{inferred_blocks, moved_callers, put_inferred_blocks, put_moved_callers};
use crate::model::{Block, Edge, Function, MAX_TRACE_LENGTH, Profile, Trace, keep_traces};
use crate::reader::Reader;

/// Smallest record, in the older layout.
const RECORD: u64 = 52;

/// Reads a profile from its bytes.
pub fn read(path: &Path, bytes: &[u8]) -> Result<Profile, Error> {
    let header = Header::read_kind(path, bytes, bytes.len() as u64, Kind::Profile)?;
    let mut profile = Profile::of(&header);
    if header.version > VERSION {
        profile.identity = header.word;
    }
    let mut reader = Reader::new(path, bytes, header.size);
    let count = reader.count(true, RECORD, "the number of functions")?;
    profile.functions.reserve(count);
    for _ in 0..count {
        profile.functions.push(record(&mut reader, &header)?);
    }
    names(&mut reader, &mut profile.functions)?;
    if header.version > VERSION {
        profile.traces = traces(&mut reader, count)?;
        if header.types.has(Types::MOVED_CALLERS) {
            profile.callers = moved_callers(&mut reader)?;
        }
    }
    if reader.left() > 0 {
        let at = reader.at();
        return Err(reader.bad(
            at,
            format!("{} bytes more than the profile has", reader.left()),
        ));
    }
    Ok(profile)
}

fn record(reader: &mut Reader<'_>, header: &Header) -> Result<Function, Error> {
    const WHAT: &str = "a function's record";
    let signature = reader.u64(WHAT)?;
    let (raw_offset, address) = if header.is_old() {
        (reader.u32(WHAT)?.into(), reader.signed(false, WHAT)?)
    } else {
        (reader.u64(WHAT)?, reader.signed(true, WHAT)?)
    };
    let (size, cfg_signature) = (reader.u32(WHAT)?, reader.u32(WHAT)?);
    let block_count = {
        let at = reader.at();
        let count = reader.u32(WHAT)?;
        // The rest of the fixed part comes between the count and the blocks.
        if u64::from(count) * 5 + 24 > reader.left() as u64 {
            return Err(reader.bad(
                at,
                format!(
                    "{count} blocks of 5 bytes, and the file has {} bytes more",
                    reader.left()
                ),
            ));
        }
        count as usize
    };
    let raw_count = reader.u32(WHAT)?;
    let (call_count, order_sum) = (reader.u64(WHAT)?, reader.u64(WHAT)?);
    let mut blocks = Vec::with_capacity(block_count);
    for _ in 0..block_count {
        let offset = reader.u32("a block")?;
        let at = reader.at();
        let covered = match reader.u8("a block")? {
            0 => false,
            1 => true,
            other => {
                return Err(reader.bad(
                    at,
                    format!("whether a block is covered is {other}, expected 0 or 1"),
                ));
            }
        };
        blocks.push(Block { offset, covered });
    }
    let at = reader.at();
    let (edges, inferred) = if header.version > VERSION {
        let count = reader.count(false, 16, "the number of call edges")?;
        let mut edges = Vec::with_capacity(count);
        for _ in 0..count {
            edges.push(Edge {
                source: reader.signed(true, "a call edge")?,
                weight: reader.u64("a call edge")?,
            });
        }
        if !edges.is_sorted_by(|a, b| a.source < b.source) {
            return Err(reader.bad(at, "call edges are not in the order of their addresses"));
        }
        (edges, inferred_blocks(reader, blocks.len())?)
    } else {
        let count = reader.u32("the number of call edges")?;
        if count != 0 {
            return Err(reader.bad(
                at,
                format!(
                    "{count} call edges, and version {} has none",
                    header.version
                ),
            ));
        }
        (Vec::new(), Vec::new())
    };
    Ok(Function {
        name: Vec::new(),
        signature,
        raw_offset,
        address,
        size,
        cfg_signature,
        raw_count,
        call_count,
        order_sum,
        blocks,
        inferred,
        edges,
    })
}

/// Reads names and gives them to functions.
fn names(reader: &mut Reader<'_>, functions: &mut [Function]) -> Result<(), Error> {
    let count = reader.count(true, 1, "the number of names")?;
    let start = reader.at();
    let rest = reader.take(reader.left() as u64, "names")?;
    let mut by_signature: FxHashMap<u64, &[u8]> = FxHashMap::default();
    let mut at = 0;
    for _ in 0..count {
        let name = rest.get(at..).unwrap_or_default();
        let end = name.iter().position(|&byte| byte == 0);
        let Some((len, name)) = end.and_then(|len| Some((len, name.get(..len)?))) else {
            return Err(reader.bad(
                start + at,
                format!(
                    "the name here has no end; {count} names were announced, {} are complete",
                    by_signature.len()
                ),
            ));
        };
        by_signature.insert(md5_64(name), name);
        at += len + 1;
    }
    for function in functions {
        if let Some(name) = by_signature.get(&function.signature) {
            function.name = name.to_vec();
        }
    }
    reader.rewind(start + at);
    Ok(())
}

fn traces(reader: &mut Reader<'_>, functions: usize) -> Result<Vec<Trace>, Error> {
    let count = reader.count(true, 20, "the number of traces")?;
    let mut traces = Vec::with_capacity(count);
    for _ in 0..count {
        let (key, weight) = (reader.u64("a trace")?, reader.u64("a trace")?);
        let at = reader.at();
        let len = reader.count(false, 4, "the length of a trace")?;
        if len > MAX_TRACE_LENGTH {
            return Err(reader.bad(
                at,
                format!("a trace of {len} functions; they have at most {MAX_TRACE_LENGTH}"),
            ));
        }
        let mut indexes = Vec::with_capacity(len);
        for _ in 0..len {
            let at = reader.at();
            let index = reader.u32("a trace")?;
            if index as usize >= functions {
                return Err(reader.bad(
                    at,
                    format!("a trace names function {index}, and there are {functions}"),
                ));
            }
            indexes.push(index);
        }
        traces.push(Trace {
            key,
            functions: indexes,
            weight,
        });
    }
    // As postlink writes them; other tools may use any order.
    keep_traces(&mut traces);
    Ok(traces)
}

/// The bytes of a profile.
pub fn to_bytes(profile: &Profile) -> Vec<u8> {
    let mut header = Header::new(Kind::Profile, None, profile.types, profile.module_hash);
    let newer = profile.needs_version_9();
    header.version = if newer { VERSION_MAX } else { VERSION };
    header.word = profile.identity;
    let blocks: usize = profile.functions.iter().map(|f| f.blocks.len()).sum();
    let names: usize = profile.functions.iter().map(|f| f.name.len() + 1).sum();
    let mut out = Vec::with_capacity(64 + profile.functions.len() * 68 + blocks * 5 + names);
    out.extend(header.to_bytes());
    out.extend((profile.functions.len() as u64).to_le_bytes());
    for function in &profile.functions {
        out.extend(function.signature.to_le_bytes());
        out.extend(function.raw_offset.to_le_bytes());
        out.extend(function.address.to_le_bytes());
        out.extend(function.size.to_le_bytes());
        out.extend(function.cfg_signature.to_le_bytes());
        out.extend((function.blocks.len() as u32).to_le_bytes());
        out.extend(function.raw_count.to_le_bytes());
        out.extend(function.call_count.to_le_bytes());
        out.extend(function.order_sum.to_le_bytes());
        for block in &function.blocks {
            out.extend(block.offset.to_le_bytes());
            out.push(block.covered.into());
        }
        out.extend((function.edges.len() as u32).to_le_bytes());
        for edge in &function.edges {
            out.extend(edge.source.to_le_bytes());
            out.extend(edge.weight.to_le_bytes());
        }
        if newer {
            put_inferred_blocks(&mut out, &function.inferred);
        }
    }
    let mut names: Vec<&[u8]> = profile
        .functions
        .iter()
        .filter(|function| !function.name.is_empty())
        .map(|function| function.name.as_slice())
        .collect();
    names.sort_unstable();
    names.dedup();
    out.extend((names.len() as u64).to_le_bytes());
    for name in names {
        out.extend(name);
        out.push(0);
    }
    if newer {
        out.extend((profile.traces.len() as u64).to_le_bytes());
        for trace in &profile.traces {
            out.extend(trace.key.to_le_bytes());
            out.extend(trace.weight.to_le_bytes());
            out.extend((trace.functions.len() as u32).to_le_bytes());
            for index in &trace.functions {
                out.extend(index.to_le_bytes());
            }
        }
        if profile.types.has(Types::MOVED_CALLERS) {
            put_moved_callers(&mut out, &profile.callers);
        }
    }
    out
}

/// Reads a profile.
pub fn open(path: &Path) -> Result<Profile, Error> {
    read(path, &read_file(path)?)
}

/// Writes a profile; a file that was there is replaced when the new one is complete.
pub fn save(path: &Path, profile: &Profile) -> Result<(), Error> {
    use std::io::Write;
    let bytes = to_bytes(profile);
    postlink_profile::write_atomically(path, |out| out.write_all(&bytes))
}

/// The whole of a file.
pub(crate) fn read_file(path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|source| Error::Io {
        path: path.to_owned(),
        doing: "read".to_owned(),
        source,
    })
}
