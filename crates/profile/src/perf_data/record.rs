//! The records: mappings and processes in the first pass, samples in the second.
//!
//! | type | record | contents |
//! |---|---|---|
//! | 1 | mapping | process, thread (4 each), address, length, file offset, path |
//! | 2 | lost | id, how many |
//! | 3 | name | process, thread, name; bit 13 of misc: by exec |
//! | 7 | fork | process, parent, thread, parent's thread; bit 13 of misc: made up by perf for a process it found |
//! | 9 | sample | see [`super::attr`] |
//! | 10 | mapping | as 1; then device (4+4), inode, generation, or (bit 14 of misc) length of build-id (1), 3 bytes, build-id (20); then protection, flags (4 each), path |
//! | 11 | trace written | offset, size, flags; bit 0: some of it was lost |
//! | 12 | thread begins | process, thread (4 each) |
//! | 13 | lost samples | how many |
//! | 15 | switch | process, thread (4 each); bit 13 of misc: away, to these |
//! | 64 | attribute | the attribute, then ids (pipe mode) |
//! | 66 | tracing data | size (4); so many bytes follow the record |
//! | 67 | build-id | see [`super::header`] |
//! | 70, 71, 79 | trace | see [`super::auxtrace`]; of 71, size (8), and so many bytes follow the record |
//! | 80 | feature | number (8), contents (pipe mode) |
//! | 81 | compressed | a part of other records, by zstd: see [`super::compressed`] |
//! | 83 | compressed | size (8), then as 81, then padding |
//!
//! Numbers are 8 bytes where nothing else is said. All but the sample end with an identification if the event
//! has it switched on.

use std::borrow::Cow;
use std::ops::Range;

use rustc_hash::FxHashMap;

use super::Wrong;
use super::attr::Attribute;
use super::auxtrace::{Buffer, Clock, Kind, Threads, Undecoded};
use super::compressed;
use super::cursor::{Cursor, size_of_record, string};
use super::header::Header;
use super::spe::{self, Operation};
use crate::samples::{BranchEntry, Sample};
use crate::source::{PIECE, Pages};
use crate::spaces::{Mapping, SpaceEvent};

const MMAP: u32 = 1;
const LOST: u32 = 2;
const COMM: u32 = 3;
const FORK: u32 = 7;
const SAMPLE: u32 = 9;
const MMAP2: u32 = 10;
const AUX: u32 = 11;
const ITRACE_START: u32 = 12;
const LOST_SAMPLES: u32 = 13;
const SWITCH_CPU_WIDE: u32 = 15;
const HEADER_ATTR: u32 = 64;
const TRACING_DATA: u32 = 66;
const BUILD_ID: u32 = 67;
const AUXTRACE_INFO: u32 = 70;
const AUXTRACE: u32 = 71;
const TIME_CONV: u32 = 79;
const FEATURE: u32 = 80;
const COMPRESSED: u32 = 81;
const COMPRESSED2: u32 = 83;

/// Bit of misc: a name changed by exec; a fork that perf made up; a switch away.
const BIT_13: u16 = 1 << 13;
/// Bit of misc: the mapping has a build-id.
const HAS_BUILD_ID: u16 = 1 << 14;

/// A file after the first pass.
#[derive(Debug)]
pub(super) struct Recording<'a> {
    /// The file, and the records that were compressed in it.
    segments: [Cow<'a, [u8]>; 2],
    pages: Pages<'a>,
    pub(super) attributes: Vec<Attribute>,
    ids: FxHashMap<u64, usize>,
    pub(super) build_ids: FxHashMap<Vec<u8>, Vec<u8>>,
    /// Time, process, event.
    pub(super) space_events: Vec<(u64, i32, SpaceEvent)>,
    /// Records lost.
    pub(super) lost: u64,
    /// All samples.
    pub(super) pieces: Vec<Piece>,
    /// Trace data, and what they are.
    pub(super) buffers: Vec<Buffer>,
    pub(super) kind: Option<Kind>,
    /// What of the trace data could not be decoded.
    pub(super) undecoded: Undecoded,
    clock: Option<Clock>,
    threads: Threads,
}

/// What is decoded at a time.
#[derive(Clone, Debug)]
pub(super) enum Piece {
    /// Whole records: number of the segment, range in it.
    Records(usize, Range<usize>),
    /// A buffer of Arm SPE, by number.
    Trace(usize),
}

/// One record.
#[derive(Clone, Copy)]
struct Record<'a> {
    kind: u32,
    misc: u16,
    /// With its header.
    whole: &'a [u8],
    body: &'a [u8],
}

/// The record at `at`, and where the next one is.
#[inline]
fn record_at(bytes: &[u8], at: usize, end: usize) -> Result<(Record<'_>, usize), Wrong> {
    let rest = bytes.get(at..end).unwrap_or_default();
    let Some(&[k0, k1, k2, k3, m0, m1, s0, s1]) = rest.first_chunk() else {
        return Err(Wrong::new(
            at,
            format!("{} bytes left, too few for a record", rest.len()),
        ));
    };
    let kind = u32::from_le_bytes([k0, k1, k2, k3]);
    let misc = u16::from_le_bytes([m0, m1]);
    let size = usize::from(u16::from_le_bytes([s0, s1]));
    let whole = rest.get(..size).unwrap_or_default();
    let Some(body) = whole.get(8..) else {
        return Err(Wrong::new(
            at,
            format!(
                "record of type {kind} and {size} bytes, must be 8 to the {} that are left",
                rest.len()
            ),
        ));
    };
    let mut next = at + size;
    let extra = match kind {
        AUXTRACE => Cursor::new(body).u64().unwrap_or(0),
        TRACING_DATA => Cursor::new(body)
            .u32()
            .map_or(0, |size| u64::from(size).next_multiple_of(8)),
        _ => 0,
    };
    if extra > 0 {
        let left = end - next;
        next += usize::try_from(extra)
            .ok()
            .filter(|&extra| extra <= left)
            .ok_or_else(|| {
                Wrong::new(
                    at,
                    format!("{extra} bytes of trace follow the record, only {left} are left"),
                )
            })?;
    }
    let record = Record {
        kind,
        misc,
        whole,
        body,
    };
    Ok((record, next))
}

/// What the first pass finds.
#[derive(Default)]
struct Walk<'a> {
    pieces: Vec<Piece>,
    lost: u64,
    /// Mappings wait until all attributes are known: their times depend on them.
    waiting: Vec<(usize, Record<'a>)>,
    /// Contents of compressed records.
    compressed: Vec<&'a [u8]>,
    buffers: Vec<Buffer>,
    kind: Option<Kind>,
    clock: Option<Clock>,
}

impl<'a> Walk<'a> {
    /// Walks over the records of a segment.
    fn records(
        &mut self,
        segment: usize,
        pages: Pages<'a>,
        range: Range<usize>,
        header: &mut Header,
    ) -> Result<(), Wrong> {
        let bytes = pages.bytes();
        let Range { start, end } = range;
        let (mut at, mut piece) = (start, start);
        while at < end {
            let (record, next) = match record_at(bytes, at, end) {
                Ok(found) => found,
                // perf was killed, or is at it: what is there can be used.
                Err(_) if next_is_cut(bytes, at, end) => break,
                Err(wrong) => return Err(wrong),
            };
            match record.kind {
                MMAP | MMAP2 | COMM | FORK | ITRACE_START | SWITCH_CPU_WIDE => {
                    self.waiting.push((at, record));
                }
                AUXTRACE_INFO => self.kind = Kind::of(record.body).or(self.kind),
                TIME_CONV => self.clock = Clock::of(record.body).or(self.clock),
                AUXTRACE => {
                    let data = at + record.whole.len()..next;
                    let buffer = Buffer::new(segment, at, record.body, data);
                    self.buffers.push(buffer);
                }
                AUX => {
                    let flags = record.body.get(16..).and_then(|rest| rest.first().copied());
                    self.lost = self.lost.saturating_add(u64::from(flags.unwrap_or(0) & 1));
                }
                LOST => {
                    let body = record.body.get(8..).unwrap_or_default();
                    let more = Cursor::new(body).u64().unwrap_or(0);
                    self.lost = self.lost.saturating_add(more);
                }
                LOST_SAMPLES => {
                    let more = Cursor::new(record.body).u64().unwrap_or(0);
                    self.lost = self.lost.saturating_add(more);
                }
                HEADER_ATTR => {
                    let size = Attribute::size(record.body).filter(|&size| size >= 64);
                    let parsed = size.and_then(|size| {
                        let (attribute, ids) = record.body.split_at_checked(size)?;
                        Some((Attribute::parse(attribute)?, ids))
                    });
                    let (attribute, ids) =
                        parsed.ok_or_else(|| Wrong::new(at, "attribute cut short"))?;
                    header.add(attribute, ids);
                }
                BUILD_ID => header.build_id(record.whole),
                FEATURE => {
                    if let Some((number, contents)) = record.body.split_first_chunk() {
                        header.feature(u64::from_le_bytes(*number), contents);
                    }
                }
                COMPRESSED => self.compressed.push(record.body),
                COMPRESSED2 => {
                    let mut cursor = Cursor::new(record.body);
                    let size = cursor.u64().and_then(|size| usize::try_from(size).ok());
                    let contents = size.and_then(|size| cursor.take(size));
                    self.compressed.push(contents.ok_or_else(|| {
                        Wrong::new(at, "compressed record cut short: it says that it holds more bytes than it has")
                    })?);
                }
                _ => {}
            }
            at = next;
            if at - piece >= PIECE {
                self.pieces.push(Piece::Records(segment, piece..at));
                pages.release(piece..at);
                piece = at;
            }
        }
        if piece < at {
            self.pieces.push(Piece::Records(segment, piece..at));
        }
        Ok(())
    }
}

impl<'a> Recording<'a> {
    /// The first pass.
    pub(super) fn scan(pages: Pages<'a>, mut header: Header) -> Result<Recording<'a>, Wrong> {
        let mut walk = Walk::default();
        let range = header.records.clone();
        walk.records(0, pages, range, &mut header)?;
        let unpacked = if walk.compressed.is_empty() {
            Vec::new()
        } else {
            compressed::unpack(&walk.compressed)?
        };
        let mut inner = Walk::default();
        inner
            .records(
                1,
                unpacked.as_slice().into(),
                0..unpacked.len(),
                &mut header,
            )
            .map_err(|wrong| wrong.inside("in the compressed records, when unpacked"))?;
        let Header {
            attributes,
            ids,
            build_ids,
            ..
        } = header;
        let mut recording = Recording {
            segments: [Cow::Borrowed(pages.bytes()), Cow::Borrowed(&[])],
            pages,
            attributes,
            ids,
            build_ids,
            space_events: Vec::new(),
            lost: walk.lost.saturating_add(inner.lost),
            pieces: walk.pieces.into_iter().chain(inner.pieces).collect(),
            buffers: walk.buffers.into_iter().chain(inner.buffers).collect(),
            kind: inner.kind.or(walk.kind),
            clock: inner.clock.or(walk.clock),
            threads: Threads::default(),
            undecoded: Undecoded::default(),
        };
        let waiting = || walk.waiting.iter().chain(&inner.waiting);
        recording.space_events = waiting()
            .filter_map(|&(at, record)| {
                let (pid, event) = space_event(record)?;
                Some((recording.time(at, record), pid, event))
            })
            .collect();
        if recording.kind == Some(Kind::ArmSpe) {
            recording.threads = recording.threads_of(waiting());
            let traces = (0..recording.buffers.len()).map(Piece::Trace);
            recording.pieces.extend(traces);
        }
        let [_, second] = &mut recording.segments;
        *second = Cow::Owned(unpacked);
        Ok(recording)
    }

    /// The time of a record that is no sample, in the unit of the samples.
    fn time(&self, at: usize, record: Record<'_>) -> u64 {
        let Some(first) = self.attributes.first() else {
            return at as u64;
        };
        if !first.has_time() {
            return at as u64;
        }
        let body = record.body;
        let id = first.id_offset_from_end().and_then(|from_end| {
            let start = body.len().checked_sub(from_end)?;
            body.get(start..)?
                .first_chunk()
                .map(|id| u64::from_le_bytes(*id))
        });
        let attribute = id
            .and_then(|id| self.ids.get(&id))
            .and_then(|&index| self.attributes.get(index));
        attribute.unwrap_or(first).time_at_end(body).unwrap_or(0)
    }

    /// The processes of threads, and those that processors ran, as these records tell it.
    fn threads_of<'r>(&self, records: impl Iterator<Item = &'r (usize, Record<'a>)>) -> Threads
    where
        'a: 'r,
    {
        let mut threads = Threads::default();
        for &(at, record) in records {
            let mut cursor = Cursor::new(record.body);
            let (Some(process), Some(second)) = (cursor.u32(), cursor.u32()) else {
                continue;
            };
            let (process, time) = (process as i32, self.time(at, record));
            match record.kind {
                MMAP | MMAP2 | COMM | ITRACE_START => {
                    threads.belongs(time, second as i32, process);
                }
                FORK => {
                    if let Some(thread) = cursor.u32() {
                        threads.belongs(time, thread as i32, process);
                    }
                }
                SWITCH_CPU_WIDE if record.misc & BIT_13 != 0 => {
                    let first = self.attributes.first();
                    if let Some(processor) = first.and_then(|first| first.cpu_at_end(record.body)) {
                        threads.runs(time, processor, process);
                    }
                }
                _ => {}
            }
        }
        threads.sort();
        threads
    }

    /// Bytes of a segment that the first pass has walked over.
    fn bytes_of<'b>(
        &'b self,
        segment: usize,
        range: Range<usize>,
        buffer: &'b mut Vec<u8>,
    ) -> &'b [u8] {
        match segment {
            0 => self.pages.load(range, buffer),
            _ => self
                .segments
                .get(segment)
                .and_then(|bytes| bytes.get(range))
                .unwrap_or_default(),
        }
    }

    /// Decodes the samples of a piece one after the other. Of trace data these are the branches, and with
    /// `every` the other operations too.
    pub(super) fn samples(
        &self,
        piece: &Piece,
        every: bool,
        sample: &mut Sample,
        buffer: &mut Vec<u8>,
        each: &mut impl FnMut(&Sample),
    ) -> Result<(), Wrong> {
        let (segment, range) = match piece {
            Piece::Records(segment, range) => (*segment, range.clone()),
            Piece::Trace(number) => {
                if let Some(trace) = self.buffers.get(*number) {
                    self.trace(trace, every, sample, buffer, each);
                }
                return Ok(());
            }
        };
        let bytes = self.bytes_of(segment, range.clone(), buffer);
        let mut next = 0;
        while next < bytes.len() {
            let at = range.start + next;
            let (record, after) = record_at(bytes, next, bytes.len())?;
            next = after;
            if record.kind == SAMPLE {
                let body = record.body;
                let Some(first) = self.attributes.first() else {
                    return Err(Wrong::new(at, "a sample, but the file describes no event"));
                };
                let id = first
                    .id_offset()
                    .and_then(|offset| body.get(offset..)?.first_chunk());
                let index = id.and_then(|id| self.ids.get(&u64::from_le_bytes(*id)));
                let attribute = index
                    .and_then(|&index| self.attributes.get(index))
                    .unwrap_or(first);
                attribute.sample(body, at, sample).ok_or_else(|| {
                    let name = attribute.name.escape_ascii();
                    Wrong::new(at, format!("sample of {name} cut short: its fields need more than the {} bytes it has", body.len()))
                })?;
                each(sample);
            }
        }
        Ok(())
    }
}

impl Recording<'_> {
    /// Decodes a buffer of Arm SPE.
    fn trace(
        &self,
        trace: &Buffer,
        every: bool,
        sample: &mut Sample,
        buffer: &mut Vec<u8>,
        each: &mut impl FnMut(&Sample),
    ) {
        let is_spe = |attribute: &&Attribute| attribute.name.starts_with(b"arm_spe");
        let event = self.attributes.iter().find(is_spe);
        let event = event.map_or(&b"arm_spe"[..], |attribute| &attribute.name);
        let bytes = self.bytes_of(trace.segment, trace.data.clone(), buffer);
        let mut operation = |operation: &Operation| {
            if !operation.branch && !every {
                return;
            }
            sample.clear();
            sample.event.extend_from_slice(event);
            let time = operation.ticks.zip(self.clock);
            sample.time = self
                .threads
                .time(time.map(|(ticks, clock)| clock.time(ticks)));
            sample.pid = self.threads.process(trace, operation.thread, sample.time);
            sample.ip = Some(operation.pc);
            if operation.branch {
                sample.one_branch = true;
                sample.branches.push(BranchEntry {
                    from: operation.pc,
                    to: operation.destination(),
                    mispredicted: operation.mispredicted,
                    wrong_path: false,
                });
                sample
                    .branches
                    .extend(operation.previous.map(|to| BranchEntry {
                        to,
                        ..BranchEntry::default()
                    }));
            }
            each(sample);
        };
        let rest = spe::operations(bytes, &mut operation);
        self.undecoded.note(trace, bytes.len(), rest);
    }
}

/// Whether the rest of the records is the beginning of one, or nothing but zeros.
fn next_is_cut(bytes: &[u8], at: usize, end: usize) -> bool {
    let rest = bytes.get(at..end).unwrap_or_default();
    let size = size_of_record(rest);
    end == bytes.len() && size.is_none_or(|size| size >= 8 && size > rest.len())
        || rest.iter().all(|&byte| byte == 0)
}

/// What a mapping, name or fork record changes. `None` if nothing, or if it is cut short.
fn space_event(record: Record<'_>) -> Option<(i32, SpaceEvent)> {
    let mut cursor = Cursor::new(record.body);
    let pid = cursor.u32()? as i32;
    let second = cursor.u32()? as i32;
    let event = match record.kind {
        MMAP | MMAP2 => {
            if pid == -1 {
                return None; // the kernel
            }
            let (start, len, file_offset) = (cursor.u64()?, cursor.u64()?, cursor.u64()?);
            let mut build_id = Vec::new();
            if record.kind == MMAP2 {
                let file = cursor.take(24)?;
                if record.misc & HAS_BUILD_ID != 0 {
                    let size = file.first().map_or(0, |size| usize::from(*size).min(20));
                    build_id = file.get(4..4 + size).unwrap_or_default().to_vec();
                }
                cursor.take(8)?;
            }
            let path = string(cursor.rest()).to_vec();
            SpaceEvent::Map(Mapping {
                start,
                len,
                file_offset,
                path,
                build_id,
            })
        }
        COMM if record.misc & BIT_13 != 0 => SpaceEvent::Exec,
        // Of a process that it found running perf tells the mappings too.
        FORK if record.misc & BIT_13 != 0 && pid != second => SpaceEvent::Exec,
        FORK => SpaceEvent::Fork(second),
        _ => return None,
    };
    Some((pid, event))
}
