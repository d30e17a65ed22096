//! Hardware counters of a run, where the system gives them (perf_event_open, Linux).
//!
//! Events are opened on the measuring thread and inherited by what it starts, so a run's value is how much they grew
//! from its start until it was waited for. What the thread itself does between is in it too: to start a process and
//! to sleep. Counting is of user mode only, which `perf_event_paranoid` 2 still allows. Where there are more events
//! than counters the kernel shares them out by time; values are scaled up by the share.
//!
//! Many machines have none: virtual ones without a virtual PMU, containers whose system calls are filtered.
//! [`Counters::open`] says why.
//!
//! Source: perf_event_open(2).

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::FromRawFd;

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Cycles of processors.
    Cycles,
    /// Instructions completed.
    Instructions,
    /// Branches that were predicted wrongly.
    BranchMisses,
    /// Accesses that the last-level cache missed.
    CacheMisses,
    /// Fetches of instructions that the first-level cache missed.
    FetchMisses,
    /// Fetches of instructions whose page the address translation cache missed.
    TranslationMisses,
}

/// All events.
pub const EVENTS: [Event; 6] = [
    Event::Cycles,
    Event::Instructions,
    Event::BranchMisses,
    Event::CacheMisses,
    Event::FetchMisses,
    Event::TranslationMisses,
];

const HARDWARE: u32 = 0;
const HARDWARE_CACHE: u32 = 3;

impl Event {
    /// As people read it.
    pub fn name(self) -> &'static str {
        match self {
            Event::Cycles => "cycles",
            Event::Instructions => "instructions",
            Event::BranchMisses => "branch misses",
            Event::CacheMisses => "cache misses",
            Event::FetchMisses => "instruction cache misses",
            Event::TranslationMisses => "instruction TLB misses",
        }
    }

    /// Its type and number in `perf_event_attr`.
    fn code(self) -> (u32, u64) {
        // A cache's number, an operation (0 is reading) and an outcome (1 is missing).
        let cache_miss = |cache: u64| cache | 1 << 16;
        match self {
            Event::Cycles => (HARDWARE, 0),
            Event::Instructions => (HARDWARE, 1),
            Event::CacheMisses => (HARDWARE, 3),
            Event::BranchMisses => (HARDWARE, 5),
            Event::FetchMisses => (HARDWARE_CACHE, cache_miss(1)),
            Event::TranslationMisses => (HARDWARE_CACHE, cache_miss(4)),
        }
    }
}

/// Values of the events of one run, in the order of [`EVENTS`]; what the machine does not count is missing.
pub type Values = [Option<u64>; EVENTS.len()];

/// The first version of `perf_event_attr`, which all kernels take: 64 bytes.
///
/// | offset | field | here |
/// |---|---|---|
/// | 0 | type, size | 4 bytes each |
/// | 8 | config | |
/// | 32 | read_format | times enabled and running |
/// | 40 | flags | inherited, without kernel and hypervisor |
fn attributes(kind: u32, config: u64) -> [u8; 64] {
    const TIMES: u64 = 1 | 2;
    const INHERIT: u64 = 1 << 1;
    const NO_KERNEL: u64 = 1 << 5;
    const NO_HYPERVISOR: u64 = 1 << 6;
    let mut attributes = [0; 64];
    attributes[0..4].copy_from_slice(&kind.to_ne_bytes());
    attributes[4..8].copy_from_slice(&64u32.to_ne_bytes());
    attributes[8..16].copy_from_slice(&config.to_ne_bytes());
    attributes[32..40].copy_from_slice(&TIMES.to_ne_bytes());
    let flags = INHERIT | NO_KERNEL | NO_HYPERVISOR;
    attributes[40..48].copy_from_slice(&flags.to_ne_bytes());
    attributes
}

/// Opens an event of the calling thread and what it will start.
#[cfg(target_os = "linux")]
fn open(kind: u32, config: u64) -> io::Result<File> {
    const CLOSE_ON_EXEC: libc::c_ulong = 8;
    let attributes = attributes(kind, config);
    // SAFETY: the attributes are as long as their size field says and outlive the call; 0 and -1 are this thread
    // on any processor, -1 no group.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            attributes.as_ptr(),
            0 as libc::pid_t,
            -1 as libc::c_int,
            -1 as libc::c_int,
            CLOSE_ON_EXEC,
        )
    };
    match libc::c_int::try_from(fd) {
        // SAFETY: the descriptor is new and not used elsewhere.
        Ok(fd @ 0..) => Ok(unsafe { File::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(not(target_os = "linux"))]
fn open(_: u32, _: u64) -> io::Result<File> {
    Err(io::Error::from(io::ErrorKind::Unsupported))
}

/// Value, time enabled, time running.
type Reading = [u64; 3];

fn read(mut file: &File) -> Option<Reading> {
    let mut bytes = [0; 24];
    file.read_exact(&mut bytes).ok()?;
    let word = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[at..at + 8]);
        u64::from_ne_bytes(word)
    };
    Some([word(0), word(8), word(16)])
}

/// How much an event grew, scaled up if it was counted for a part of the time only. `None` if it never was.
fn growth(before: Reading, after: Reading) -> Option<u64> {
    let [value, enabled, running] = [0, 1, 2].map(|k: usize| after[k].saturating_sub(before[k]));
    if running == 0 {
        return None;
    }
    let scaled = u128::from(value) * u128::from(enabled.max(running)) / u128::from(running);
    Some(u64::try_from(scaled).unwrap_or(u64::MAX))
}

/// Open events.
#[derive(Debug)]
pub struct Counters {
    files: [Option<File>; EVENTS.len()],
}

/// What the events were at some time.
pub struct Started([Option<Reading>; EVENTS.len()]);

impl Counters {
    /// Opens what the machine has. `Err`: why there is nothing, in words.
    pub fn open() -> Result<Counters, String> {
        let mut first = None;
        let files = EVENTS.map(|event| {
            let (kind, config) = event.code();
            match open(kind, config) {
                Ok(file) => Some(file),
                Err(error) => {
                    first.get_or_insert(error);
                    None
                }
            }
        });
        match first {
            Some(error) if files.iter().all(Option::is_none) => Err(refusal(&error)),
            _ => Ok(Counters { files }),
        }
    }

    /// Before a run, by the thread that opened them and starts it.
    pub fn start(&self) -> Started {
        Started(self.files.each_ref().map(|file| read(file.as_ref()?)))
    }

    /// After it has been waited for.
    pub fn since(&self, started: &Started) -> Values {
        let mut values = [None; EVENTS.len()];
        for ((value, file), before) in values.iter_mut().zip(&self.files).zip(started.0) {
            if let (Some(file), Some(before)) = (file, before) {
                *value = read(file).and_then(|after| growth(before, after));
            }
        }
        values
    }
}

fn refusal(error: &io::Error) -> String {
    let why = match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP) => {
            "this machine has none that a program may read; virtual machines often have not"
        }
        Some(libc::EACCES | libc::EPERM) => {
            "the system does not allow it; /proc/sys/kernel/perf_event_paranoid may be at most 2"
        }
        _ => "perf_event_open failed",
    };
    format!("no hardware counters: {why} ({error})")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn attributes_have_their_fields_where_the_kernel_reads_them() {
        let attributes = attributes(3, 0x1_0004);
        assert_eq!(attributes[0], 3);
        assert_eq!(attributes[4], 64);
        assert_eq!(attributes[8..12], 0x1_0004u32.to_ne_bytes());
        assert_eq!(attributes[32], 3);
        assert_eq!(attributes[40], 0b0110_0010);
    }

    #[test]
    fn an_event_that_was_counted_half_of_the_time_counts_twice() {
        assert_eq!(growth([10, 100, 100], [60, 200, 200]), Some(50));
        assert_eq!(growth([10, 100, 100], [60, 200, 150]), Some(100));
        assert_eq!(growth([10, 100, 100], [10, 200, 100]), None);
        assert_eq!(growth([0, 0, 0], [u64::MAX, 2, 1]), Some(u64::MAX));
    }

    #[test]
    fn what_a_started_program_does_is_counted() {
        // Page faults are an event that needs no hardware.
        const SOFTWARE: u32 = 1;
        const PAGE_FAULTS: u64 = 2;
        let file = match open(SOFTWARE, PAGE_FAULTS) {
            Ok(file) => file,
            Err(error) => {
                eprintln!("SKIPPED: perf_event_open is not possible here: {error}");
                return;
            }
        };
        let faults = |command: &mut Command| {
            let before = read(&file).expect("an open event can be read");
            assert!(command.status().expect("sh is there").success());
            growth(before, read(&file).expect("an open event can be read")).expect("it ran")
        };
        let one = faults(Command::new("sh").args(["-c", ":"]));
        let four = faults(Command::new("sh").args(["-c", "sh -c :; sh -c :; sh -c :"]));
        assert!(one > 20 && four > 2 * one, "{one} {four}");
    }

    #[test]
    fn why_there_are_none_is_said_in_words() {
        match Counters::open() {
            Ok(counters) => {
                let started = counters.start();
                assert!(counters.since(&started).iter().any(Option::is_some));
            }
            Err(why) => assert!(why.starts_with("no hardware counters: "), "{why}"),
        }
    }
}
