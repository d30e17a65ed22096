//! Trace data of a processor, which perf passes on as it is: which kind, and of whom and when a buffer of it is.
//!
//! | record | contents |
//! |---|---|
//! | 70 | kind (4), 4 bytes, what the kind needs |
//! | 71 | size, offset in the trace, a reference, then number, thread, processor (4 each), 4 bytes; the data follow the record |
//! | 79 | how ticks become nanoseconds: shift, factor, zero; perhaps cycles, mask, whether these two count (1) |
//!
//! Arm SPE is decoded: [`super::spe`]. Its packets may say which thread was running and give a time in ticks.
//! Where they do not, a buffer of one thread says so in its record, and one of a processor is looked up in the
//! records of context switches. A thread belongs to the process that mappings, names and forks name with it.
//!
//! Other kinds need the program's code to be decoded, which perf does: [`Kind::how`] says by which command.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustc_hash::FxHashMap;

use super::cursor::Cursor;
use super::spe::Rest;

/// The kind of trace data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    ArmSpe,
    /// A kind of perf's that is not decoded here, by number.
    Other(u32),
}

impl Kind {
    /// What a record of type 70 says.
    pub(super) fn of(body: &[u8]) -> Option<Kind> {
        Cursor::new(body).u32().map(|kind| match kind {
            4 => Kind::ArmSpe,
            other => Kind::Other(other),
        })
    }

    fn name(self) -> String {
        match self {
            Kind::ArmSpe => "Arm SPE".to_owned(),
            Kind::Other(1) => "Intel PT".to_owned(),
            Kind::Other(2) => "Intel BTS".to_owned(),
            Kind::Other(3) => "CoreSight ETM".to_owned(),
            Kind::Other(5) => "the s390 CPU-measurement sampling facility".to_owned(),
            Kind::Other(6) => "the HiSilicon PCIe trace unit".to_owned(),
            Kind::Other(7) => "the Power dispatch trace log".to_owned(),
            Kind::Other(other) => format!("kind {other}"),
        }
    }

    /// What to do with a trace that is not decoded here.
    fn how(self) -> &'static str {
        match self {
            Kind::Other(1) => {
                "perf decodes it: `perf script --itrace=i1us9il -F pid,ip,brstack --show-mmap-events --show-task-events -i FILE > TEXT` makes a text of branch stacks that is read in its place"
            }
            Kind::Other(2 | 3) => {
                "perf decodes it: `perf script --itrace=i1000il -F pid,ip,brstack --show-mmap-events --show-task-events -i FILE > TEXT` makes a text of branch stacks that is read in its place"
            }
            _ => "it does not say which code of a program ran",
        }
    }

    /// Why a recording of this kind gives nothing.
    pub(super) fn refusal(self, bytes: u64) -> String {
        format!(
            "a trace of {} ({bytes} bytes in the recording), and no sample has branches: such traces are not decoded here; {}",
            self.name(),
            self.how()
        )
    }
}

/// A buffer of trace data.
#[derive(Clone, Debug)]
pub(super) struct Buffer {
    /// Number of the segment that it is in.
    pub(super) segment: usize,
    /// Where its record is.
    pub(super) at: usize,
    /// Where the data are.
    pub(super) data: Range<usize>,
    thread: Option<i32>,
    processor: Option<u32>,
}

impl Buffer {
    /// From a record of type 71 at `at`, whose data are at `data`.
    pub(super) fn new(segment: usize, at: usize, body: &[u8], data: Range<usize>) -> Buffer {
        let mut cursor = Cursor::new(body);
        let mut buffer = Buffer {
            segment,
            at,
            data,
            thread: None,
            processor: None,
        };
        let numbers = cursor.take(24 + 4).and_then(|_| {
            let thread = cursor.u32()?;
            Some((thread as i32, cursor.u32()?))
        });
        if let Some((thread, processor)) = numbers {
            buffer.thread = Some(thread).filter(|&thread| thread >= 0);
            buffer.processor = Some(processor).filter(|&processor| processor != u32::MAX);
        }
        buffer
    }
}

/// Trace data that could not be decoded. Buffers are decoded by several threads at a time.
#[derive(Debug)]
pub(super) struct Undecoded {
    records: AtomicU64,
    bytes: AtomicU64,
    first: AtomicU64,
}

impl Default for Undecoded {
    fn default() -> Undecoded {
        Undecoded {
            records: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            first: AtomicU64::new(u64::MAX),
        }
    }
}

impl Undecoded {
    /// Adds what was left of a buffer of `len` bytes.
    pub(super) fn note(&self, buffer: &Buffer, len: usize, rest: Rest) {
        if rest.cut > 0 {
            self.records.fetch_add(1, Relaxed);
        }
        if let Some(at) = rest.unknown {
            self.bytes.fetch_add((len - at) as u64, Relaxed);
            self.first
                .fetch_min((buffer.data.start + at) as u64, Relaxed);
        }
    }

    /// Records that were cut off, as the buffer was full.
    pub(super) fn records(&self) -> u64 {
        self.records.load(Relaxed)
    }

    /// How many bytes were left out as they are no packets, and the offset of the first of them in the file.
    pub(super) fn bytes(&self) -> Option<(u64, u64)> {
        match self.bytes.load(Relaxed) {
            0 => None,
            bytes => Some((bytes, self.first.load(Relaxed))),
        }
    }
}

/// How ticks of the processor's counter become the times of records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Clock {
    shift: u64,
    factor: u64,
    zero: u64,
    /// Counters of less than 64 bits: a recent value, and the bits that count.
    short: Option<(u64, u64)>,
}

impl Clock {
    /// What a record of type 79 says. `None` if it makes no sense.
    pub(super) fn of(body: &[u8]) -> Option<Clock> {
        let mut cursor = Cursor::new(body);
        let (shift, factor, zero) = (cursor.u64()?, cursor.u64()?, cursor.u64()?);
        let mut clock = Clock {
            shift,
            factor,
            zero,
            short: None,
        };
        if let (Some(cycles), Some(mask), Some([_, short])) =
            (cursor.u64(), cursor.u64(), cursor.array::<2>())
            && short != 0
        {
            clock.short = Some((cycles, mask));
        }
        (shift < 64 && factor > 0).then_some(clock)
    }

    /// The time of a tick; wraps, as the kernel's arithmetic does.
    pub(super) fn time(&self, mut ticks: u64) -> u64 {
        if let Some((cycles, mask)) = self.short {
            ticks = cycles.wrapping_add(ticks.wrapping_sub(cycles) & mask);
        }
        let (whole, rest) = (ticks >> self.shift, ticks & ((1 << self.shift) - 1));
        let rest = rest.wrapping_mul(self.factor) >> self.shift;
        self.zero
            .wrapping_add(whole.wrapping_mul(self.factor))
            .wrapping_add(rest)
    }
}

/// Processes by thread, and by processor, as of a time.
#[derive(Debug, Default)]
pub(super) struct Threads {
    of: FxHashMap<i32, Vec<(u64, i32)>>,
    running: FxHashMap<u32, Vec<(u64, i32)>>,
    /// When the first record with a time came.
    first: Option<u64>,
}

impl Threads {
    /// A thread belongs to a process.
    pub(super) fn belongs(&mut self, time: u64, thread: i32, process: i32) {
        self.of.entry(thread).or_default().push((time, process));
        // What perf found before it began has no time.
        if time > 0 {
            self.first = Some(self.first.map_or(time, |first| first.min(time)));
        }
    }

    /// From now on a processor runs a process.
    pub(super) fn runs(&mut self, time: u64, processor: u32, process: i32) {
        self.running
            .entry(processor)
            .or_default()
            .push((time, process));
    }

    /// Must be called before anything is looked up.
    pub(super) fn sort(&mut self) {
        let lists = self.of.values_mut().chain(self.running.values_mut());
        lists.for_each(|list| list.sort_by_key(|item| item.0));
    }

    /// The time of a sample: what its clock says, unless it has none or it is earlier than the recording. Then all
    /// mappings are looked up as they were in the end.
    pub(super) fn time(&self, time: Option<u64>) -> u64 {
        // A clock that begins before the recording counts something else.
        time.filter(|&time| self.first.is_none_or(|first| first <= time))
            .unwrap_or(u64::MAX - 1)
    }

    /// The process of an operation.
    pub(super) fn process(&self, buffer: &Buffer, context: Option<u32>, time: u64) -> Option<i32> {
        let last = |list: &Vec<(u64, i32)>| {
            let after = list.partition_point(|item| item.0 <= time);
            let item = list.get(after.saturating_sub(1))?;
            Some(item.1)
        };
        // In a container the kernel's number of a thread is not the one that perf sees.
        let by_context = context.and_then(|thread| self.of.get(&(thread as i32)));
        let by_thread = || buffer.thread.and_then(|thread| self.of.get(&thread));
        let by_processor = || {
            let list = self.running.get(&buffer.processor?)?;
            last(list)
        };
        by_context
            .or_else(by_thread)
            .and_then(last)
            .or_else(by_processor)
            .or(buffer.thread)
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, reason = "a test that fails may panic")]
mod tests {
    use super::*;

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn ticks_become_nanoseconds_as_the_kernel_says() {
        // 25 MHz: 40 ns a tick, with a shift of 24 bits.
        let clock = Clock::of(&words(&[24, 40 << 24, 7])).unwrap();
        assert_eq!(clock.time(1_000), 40_007);
        let mut body = words(&[24, 40 << 24, 7, 0x1_0000_0000, 0xffff_ffff]);
        body.extend([1, 1, 0, 0, 0, 0, 0, 0]);
        let short = Clock::of(&body).unwrap();
        assert_eq!(short.time(5), 40 * 0x1_0000_0005 + 7);
    }

    #[test]
    fn clocks_that_make_no_sense_are_none() {
        assert_eq!(Clock::of(&words(&[64, 1, 0])), None);
        assert_eq!(Clock::of(&words(&[0, 0, 0])), None);
        assert_eq!(Clock::of(&words(&[0, 1])), None);
        let fast = Clock::of(&words(&[63, u64::MAX, u64::MAX])).unwrap();
        let _ = fast.time(u64::MAX);
    }

    #[test]
    fn a_thread_is_found_by_context_then_buffer_then_processor() {
        let mut threads = Threads::default();
        threads.belongs(20, 7, 70);
        threads.belongs(10, 7, 60);
        threads.belongs(10, 8, 80);
        threads.runs(10, 3, 90);
        threads.sort();
        let mut buffer = Buffer::new(0, 0, &[0; 40], 0..0);
        (buffer.thread, buffer.processor) = (Some(8), Some(3));
        assert_eq!(threads.process(&buffer, Some(7), 15), Some(60));
        assert_eq!(threads.process(&buffer, Some(7), 25), Some(70));
        assert_eq!(threads.process(&buffer, Some(555), 25), Some(80));
        buffer.thread = None;
        assert_eq!(threads.process(&buffer, Some(555), 25), Some(90));
        buffer.processor = None;
        assert_eq!(threads.process(&buffer, None, 25), None);
        assert_eq!(
            [threads.time(Some(9)), threads.time(None)],
            [u64::MAX - 1; 2]
        );
        assert_eq!(threads.time(Some(10)), 10);
    }
}
