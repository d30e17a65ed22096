//! Event attributes: what a sample of the event holds.
//!
//! Of `struct perf_event_attr` (see `perf_event_open(2)`) these are used:
//!
//! | offset | size | |
//! |---|---|---|
//! | 0 | 4 | type of event |
//! | 4 | 4 | size of the structure, 64 at least |
//! | 8 | 8 | which event of the type |
//! | 24 | 8 | which fields a sample has |
//! | 32 | 8 | which fields its counter values have |
//! | 40 | 8 | flags; bit 5 not in the kernel, bit 18 identification at the end of other records |
//! | 72 | 8 | which fields its branch stack has |
//!
//! The fields of a sample come in the order of the reader below; a bit of the third row says which are there.

use super::cursor::Cursor;
use crate::samples::{BranchEntry, Sample};

pub(super) const IP: u64 = 1;
pub(super) const TID: u64 = 1 << 1;
pub(super) const TIME: u64 = 1 << 2;
pub(super) const ADDR: u64 = 1 << 3;
pub(super) const READ: u64 = 1 << 4;
pub(super) const CALLCHAIN: u64 = 1 << 5;
pub(super) const ID: u64 = 1 << 6;
pub(super) const CPU: u64 = 1 << 7;
pub(super) const PERIOD: u64 = 1 << 8;
pub(super) const STREAM_ID: u64 = 1 << 9;
pub(super) const RAW: u64 = 1 << 10;
pub(super) const BRANCH_STACK: u64 = 1 << 11;
pub(super) const IDENTIFIER: u64 = 1 << 16;

/// Where two bits of a branch's flags are that say whether it was on the path that was taken in the end, and
/// their value if it was not.
const SPECULATION: u32 = 24;
const WRONG_PATH: u64 = 1;
/// Bit of the branch fields: the stack begins with an index.
const HW_INDEX: u64 = 1 << 17;
/// Flag: not in the kernel.
const EXCLUDE_KERNEL: u64 = 1 << 5;
/// Flag: records that are no samples end with an identification.
const SAMPLE_ID_ALL: u64 = 1 << 18;
/// Call chain entries from here on are marks between kernel and user part.
const FIRST_MARK: u64 = u64::MAX - 4094;

/// An event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attribute {
    /// Its name.
    pub name: Vec<u8>,
    kind: u32,
    config: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    branch_type: u64,
}

impl Attribute {
    /// From a `perf_event_attr`. `None` if it is cut short.
    pub(super) fn parse(bytes: &[u8]) -> Option<Attribute> {
        let word = |at: usize| {
            bytes
                .get(at..)?
                .first_chunk()
                .map(|word| u64::from_le_bytes(*word))
        };
        let mut attribute = Attribute {
            name: Vec::new(),
            kind: word(0)? as u32,
            config: word(8)?,
            sample_type: word(24)?,
            read_format: word(32)?,
            flags: word(40)?,
            branch_type: word(72).unwrap_or(0),
        };
        attribute.name = attribute.default_name();
        Some(attribute)
    }

    /// Size of a `perf_event_attr` as it says itself.
    pub(super) fn size(bytes: &[u8]) -> Option<usize> {
        let size = bytes
            .get(4..)?
            .first_chunk()
            .map(|word| u32::from_le_bytes(*word))?;
        usize::try_from(size).ok()
    }

    /// A name for an event of which the file gives none.
    fn default_name(&self) -> Vec<u8> {
        const HARDWARE: [&str; 10] = [
            "cycles",
            "instructions",
            "cache-references",
            "cache-misses",
            "branches",
            "branch-misses",
            "bus-cycles",
            "stalled-cycles-frontend",
            "stalled-cycles-backend",
            "ref-cycles",
        ];
        const SOFTWARE: [&str; 10] = [
            "cpu-clock",
            "task-clock",
            "page-faults",
            "context-switches",
            "cpu-migrations",
            "minor-faults",
            "major-faults",
            "alignment-faults",
            "emulation-faults",
            "dummy",
        ];
        let table = match self.kind {
            0 => &HARDWARE[..],
            1 => &SOFTWARE[..],
            _ => &[],
        };
        let known = usize::try_from(self.config)
            .ok()
            .and_then(|index| table.get(index));
        let mut name = known.map_or_else(
            || format!("type{}:{:#x}", self.kind, self.config),
            |name| (*name).to_owned(),
        );
        if self.flags & EXCLUDE_KERNEL != 0 {
            name += ":u";
        }
        name.into_bytes()
    }

    /// Whether samples have a time.
    pub(super) fn has_time(&self) -> bool {
        self.sample_type & TIME != 0
    }

    /// Whether samples have branch stacks.
    pub fn has_branches(&self) -> bool {
        self.sample_type & BRANCH_STACK != 0
    }

    /// Whether samples have call chains.
    pub fn has_callchains(&self) -> bool {
        self.sample_type & CALLCHAIN != 0
    }

    /// Offset in a sample of the number that says which event it is of.
    pub(super) fn id_offset(&self) -> Option<usize> {
        if self.sample_type & IDENTIFIER != 0 {
            Some(0)
        } else if self.sample_type & ID != 0 {
            Some(8 * (self.sample_type & (IP | TID | TIME | ADDR)).count_ones() as usize)
        } else {
            None
        }
    }

    /// Offset from the end of another record of the number that says which event it came with.
    pub(super) fn id_offset_from_end(&self) -> Option<usize> {
        if self.flags & SAMPLE_ID_ALL == 0 {
            None
        } else if self.sample_type & IDENTIFIER != 0 {
            Some(8)
        } else if self.sample_type & ID != 0 {
            Some(8 + 8 * (self.sample_type & (STREAM_ID | CPU)).count_ones() as usize)
        } else {
            None
        }
    }

    /// The time in the identification at the end of a record that is no sample.
    pub(super) fn time_at_end(&self, body: &[u8]) -> Option<u64> {
        if self.flags & SAMPLE_ID_ALL == 0 || !self.has_time() {
            return None;
        }
        let after = self.sample_type & (TIME | ID | STREAM_ID | CPU | IDENTIFIER);
        let start = body.len().checked_sub(8 * after.count_ones() as usize)?;
        body.get(start..)?
            .first_chunk()
            .map(|word| u64::from_le_bytes(*word))
    }

    /// The processor in the identification at the end of a record that is no sample.
    pub(super) fn cpu_at_end(&self, body: &[u8]) -> Option<u32> {
        if self.flags & SAMPLE_ID_ALL == 0 || self.sample_type & CPU == 0 {
            return None;
        }
        let after = self.sample_type & (CPU | IDENTIFIER);
        let start = body.len().checked_sub(8 * after.count_ones() as usize)?;
        body.get(start..)?
            .first_chunk()
            .map(|word| u32::from_le_bytes(*word))
    }

    /// Decodes a sample up to its branch stack. `None` if it is cut short.
    pub(super) fn sample(&self, body: &[u8], offset: usize, sample: &mut Sample) -> Option<()> {
        sample.clear();
        sample.event.extend_from_slice(&self.name);
        sample.time = offset as u64;
        let has = |bit: u64| self.sample_type & bit != 0;
        let mut cursor = Cursor::new(body);
        if has(IDENTIFIER) {
            cursor.u64()?;
        }
        if has(IP) {
            sample.ip = Some(cursor.u64()?);
        }
        if has(TID) {
            sample.pid = Some(cursor.u32()? as i32);
            cursor.u32()?;
        }
        if has(TIME) {
            sample.time = cursor.u64()?;
        }
        if has(ADDR) {
            sample.address = Some(cursor.u64()?).filter(|&address| address != 0);
        }
        for bit in [ID, STREAM_ID, CPU, PERIOD] {
            if has(bit) {
                cursor.u64()?;
            }
        }
        if has(READ) {
            self.skip_counters(&mut cursor)?;
        }
        if has(CALLCHAIN) {
            let count = cursor.count(8)?;
            let chain = cursor.take(8 * count)?;
            let (addresses, _) = chain.as_chunks();
            let addresses = addresses.iter().map(|word| u64::from_le_bytes(*word));
            sample
                .callchain
                .extend(addresses.filter(|&address| address < FIRST_MARK));
        }
        if has(RAW) {
            let size = cursor.u32()?;
            cursor.take(usize::try_from(size).ok()?)?;
        }
        if has(BRANCH_STACK) {
            let count = usize::try_from(cursor.u64()?).ok()?;
            if self.branch_type & HW_INDEX != 0 {
                cursor.u64()?;
            }
            let stack = cursor.take(count.checked_mul(24)?)?;
            let (words, _) = stack.as_chunks::<8>();
            let (entries, _) = words.as_chunks::<3>();
            let branch = |[from, to, flags]: &[[u8; 8]; 3]| BranchEntry {
                from: u64::from_le_bytes(*from),
                to: u64::from_le_bytes(*to),
                mispredicted: u64::from_le_bytes(*flags) & 1 != 0,
                wrong_path: u64::from_le_bytes(*flags) >> SPECULATION & 3 == WRONG_PATH,
            };
            sample.branches.extend(entries.iter().map(branch));
        }
        Some(())
    }

    /// The values of the counters in a sample.
    fn skip_counters(&self, cursor: &mut Cursor<'_>) -> Option<()> {
        const ENABLED: u64 = 1;
        const RUNNING: u64 = 1 << 1;
        const ID: u64 = 1 << 2;
        const GROUP: u64 = 1 << 3;
        const LOST: u64 = 1 << 4;
        let words = |bits: u64| (self.read_format & bits).count_ones() as usize;
        let len = if self.read_format & GROUP != 0 {
            let count = usize::try_from(cursor.u64()?).ok()?;
            words(ENABLED | RUNNING).checked_add(count.checked_mul(1 + words(ID | LOST))?)?
        } else {
            1 + words(ENABLED | RUNNING | ID | LOST)
        };
        cursor.take(len.checked_mul(8)?)?;
        Some(())
    }
}
