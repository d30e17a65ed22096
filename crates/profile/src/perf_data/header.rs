//! The start of the file, and its optional features.
//!
//! | offset | size | |
//! |---|---|---|
//! | 0 | 8 | `PERFILE2` |
//! | 8 | 8 | size of the header: 104, or 16 in pipe mode |
//! | 16 | 8 | size of an entry of the attributes: attribute, then offset and size of its list of ids |
//! | 24 | 16 | offset and size of the attributes |
//! | 40 | 16 | offset and size of the records; size 0 if perf was killed: then they go to the end of the file |
//! | 56 | 16 | not used any more |
//! | 72 | 32 | which features there are, a bit each |
//!
//! After the records come offset and size (8 bytes each) of every feature that is there, in the order of their numbers.
//!
//! | number | feature | |
//! |---|---|---|
//! | 2 | build-ids | records: header, process (4), build-id (20), its length (1; 20 if bit 15 of misc is not set), 3 bytes, path |
//! | 12 | event names | count (4), size of an attribute (4); for each: attribute, number of ids (4), length (4) and bytes of the name, ids |

use std::ops::Range;

use rustc_hash::FxHashMap;

use super::Wrong;
use super::attr::Attribute;
use super::cursor::{Cursor, size_of_record, string};

const MAGIC: &[u8; 8] = b"PERFILE2";
const MAGIC_BIG_ENDIAN: &[u8; 8] = b"2ELIFREP";
const PIPE_HEADER: u64 = 16;
const FILE_HEADER: usize = 104;

/// Number of the feature with build-ids.
pub(super) const BUILD_IDS: u64 = 2;
/// Number of the feature with event names.
pub(super) const EVENT_NAMES: u64 = 12;

/// What the start of the file says.
#[derive(Debug, Default)]
pub(super) struct Header {
    /// The events.
    pub(super) attributes: Vec<Attribute>,
    /// Which event an id is of.
    pub(super) ids: FxHashMap<u64, usize>,
    /// Build-ids by path.
    pub(super) build_ids: FxHashMap<Vec<u8>, Vec<u8>>,
    /// Where the records are.
    pub(super) records: Range<usize>,
}

impl Header {
    pub(super) fn parse(bytes: &[u8]) -> Result<Header, Wrong> {
        let magic = bytes.get(..8).unwrap_or(bytes);
        if magic == MAGIC_BIG_ENDIAN {
            return Err(Wrong::new(
                0,
                "a recording from a big-endian machine, only little-endian ones can be read",
            ));
        }
        if magic != MAGIC {
            let what = format!(
                "not a perf.data file: it starts with \"{}\", must be \"PERFILE2\"",
                magic.escape_ascii()
            );
            return Err(Wrong::new(0, what));
        }
        let word = |at: usize| {
            bytes
                .get(at..)
                .and_then(|rest| rest.first_chunk())
                .map(|word| u64::from_le_bytes(*word))
        };
        let cut = || {
            Wrong::new(
                bytes.len(),
                format!("the file ends after {} bytes, in its header", bytes.len()),
            )
        };
        let size = word(8).ok_or_else(cut)?;
        if size == PIPE_HEADER {
            return Ok(Header {
                records: PIPE_HEADER as usize..bytes.len(),
                ..Header::default()
            });
        }
        if size < FILE_HEADER as u64 {
            return Err(Wrong::new(
                8,
                format!(
                    "header of {size} bytes, must be {FILE_HEADER} (or {PIPE_HEADER} for a pipe)"
                ),
            ));
        }
        if bytes.len() < FILE_HEADER {
            return Err(cut());
        }
        let section = |at: usize, what: &str| -> Result<Range<usize>, Wrong> {
            let (start, len) = (word(at).ok_or_else(cut)?, word(at + 8).ok_or_else(cut)?);
            let end = start
                .checked_add(len)
                .filter(|&end| end <= bytes.len() as u64);
            match end {
                Some(end) => Ok(start as usize..end as usize),
                None => Err(Wrong::new(
                    at,
                    format!(
                        "{what} at {start:#x} of {len:#x} bytes, the file has {:#x}",
                        bytes.len()
                    ),
                )),
            }
        };
        let mut header = Header::default();
        let entry = word(16).ok_or_else(cut)?;
        let attributes = section(24, "attributes")?;
        if !(64 + 16..=1 << 16).contains(&entry) {
            return Err(Wrong::new(
                16,
                format!("entries of {entry} bytes for attributes, must be 80 or more"),
            ));
        }
        let entries = bytes.get(attributes.clone()).ok_or_else(cut)?;
        for (i, bytes_of) in entries.chunks_exact(entry as usize).enumerate() {
            let at = attributes.start + i * entry as usize;
            let (attribute, ids) = bytes_of.split_at(bytes_of.len() - 16);
            let attribute =
                Attribute::parse(attribute).ok_or_else(|| Wrong::new(at, "attribute cut short"))?;
            let mut cursor = Cursor::new(ids);
            let list = match (cursor.u64(), cursor.u64()) {
                (Some(start), Some(len)) => {
                    let range = usize::try_from(start).ok().zip(start.checked_add(len));
                    let range = range.and_then(|(start, end)| Some(start..end.try_into().ok()?));
                    let ids = range.and_then(|range| bytes.get(range));
                    ids.ok_or_else(|| Wrong::new(at, format!("ids of an event at {start:#x} of {len:#x} bytes, the file has {:#x}", bytes.len())))?
                }
                _ => &[][..],
            };
            header.add(attribute, list);
        }
        header.records = match word(48) {
            Some(0) => {
                let start = usize::try_from(word(40).unwrap_or(0))
                    .unwrap_or(usize::MAX)
                    .min(bytes.len());
                start..bytes.len()
            }
            _ => section(40, "records")?,
        };
        let mut table = header.records.end;
        for number in 0..256u64 {
            let there = bytes
                .get(72 + (number / 8) as usize)
                .is_some_and(|byte| byte >> (number % 8) & 1 != 0);
            // A recording that was cut off has no features: nothing depends on them.
            if !there || table + 16 > bytes.len() {
                continue;
            }
            if matches!(number, BUILD_IDS | EVENT_NAMES) {
                let section = section(table, "a feature")?;
                header.feature(number, bytes.get(section).unwrap_or_default());
            }
            table += 16;
        }
        Ok(header)
    }

    /// Adds an event; `ids` are its numbers, 8 bytes each.
    pub(super) fn add(&mut self, attribute: Attribute, ids: &[u8]) {
        let index = self.attributes.len();
        self.attributes.push(attribute);
        let (ids, _) = ids.as_chunks();
        self.ids
            .extend(ids.iter().map(|id| (u64::from_le_bytes(*id), index)));
    }

    /// Takes up a feature. What is damaged in it is left out: it only adds names.
    pub(super) fn feature(&mut self, number: u64, bytes: &[u8]) {
        match number {
            BUILD_IDS => {
                let mut rest = bytes;
                while let Some((record, more)) =
                    size_of_record(rest).and_then(|size| rest.split_at_checked(size))
                    && record.len() > 36
                {
                    self.build_id(record);
                    rest = more;
                }
            }
            EVENT_NAMES => {
                let _ = self.event_names(bytes);
            }
            _ => {}
        }
    }

    /// A build-id record, with its header.
    pub(super) fn build_id(&mut self, record: &[u8]) {
        let mut cursor = Cursor::new(record);
        let parts = (
            cursor.take(4),
            cursor.array::<2>(),
            cursor.take(6),
            cursor.take(20),
            cursor.array::<4>(),
        );
        let (Some(_), Some(misc), Some(_), Some(id), Some([size, ..])) = parts else {
            return;
        };
        let has_size = u16::from_le_bytes(misc) & 1 << 15 != 0;
        let size = if has_size {
            usize::from(size)
        } else {
            id.len()
        };
        let id = id.get(..size).unwrap_or(id);
        self.build_ids
            .insert(string(cursor.rest()).to_vec(), id.to_vec());
    }

    fn event_names(&mut self, bytes: &[u8]) -> Option<()> {
        let mut cursor = Cursor::new(bytes);
        let count = cursor.u32()?;
        let size = usize::try_from(cursor.u32()?).ok()?;
        for index in 0..count as usize {
            cursor.take(size)?;
            let ids = usize::try_from(cursor.u32()?).ok()?;
            let len = usize::try_from(cursor.u32()?).ok()?;
            let name = string(cursor.take(len)?);
            let list = cursor.take(ids.checked_mul(8)?)?;
            // By id where there are ids; a single event may have none.
            let first = list.first_chunk().map(|id| u64::from_le_bytes(*id));
            let index = first
                .and_then(|id| self.ids.get(&id).copied())
                .unwrap_or(index);
            if let Some(attribute) = self.attributes.get_mut(index) {
                attribute.name = name.to_vec();
            }
        }
        Some(())
    }
}
