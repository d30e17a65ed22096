//! Running a command and taking what it costs.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use crate::counters::{Counters, EVENTS, Event, Values};
use crate::interrupt;

/// What one run cost.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// By the clock on the wall.
    pub wall: Duration,
    /// Time of processors, user and system, children that were waited for included.
    pub cpu: Duration,
    /// Largest resident set of any of its processes, in bytes. `None` if it is not larger than that of the measuring
    /// process: a process begins as a copy of the one that starts it, and the kernel does not forget that.
    pub peak_memory: Option<u64>,
    /// Page faults, with and without reading from a disk.
    pub page_faults: u64,
    /// Hardware counters, where there are some.
    pub events: Values,
    /// How it ended.
    pub status: ExitStatus,
}

/// One of the things that a run costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Time of processors.
    ProcessorTime,
    /// Time by the clock on the wall.
    WallTime,
    /// Largest resident set.
    PeakMemory,
    /// Page faults.
    PageFaults,
    /// A hardware counter.
    Hardware(Event),
}

/// What a number is a number of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Seconds.
    Seconds,
    /// Bytes.
    Bytes,
    /// Of what the measure's name says.
    Number,
}

impl Measure {
    /// All of them, the most telling first.
    pub fn all() -> impl Iterator<Item = Measure> {
        let always = [
            Measure::ProcessorTime,
            Measure::WallTime,
            Measure::PeakMemory,
            Measure::PageFaults,
        ];
        always
            .into_iter()
            .chain(EVENTS.into_iter().map(Measure::Hardware))
    }

    /// As people read it.
    pub fn name(self) -> &'static str {
        match self {
            Measure::ProcessorTime => "processor time",
            Measure::WallTime => "wall time",
            Measure::PeakMemory => "peak memory",
            Measure::PageFaults => "page faults",
            Measure::Hardware(event) => event.name(),
        }
    }

    /// What it is counted in.
    pub fn unit(self) -> Unit {
        match self {
            Measure::ProcessorTime | Measure::WallTime => Unit::Seconds,
            Measure::PeakMemory => Unit::Bytes,
            Measure::PageFaults | Measure::Hardware(_) => Unit::Number,
        }
    }

    /// Its value, in its unit. `None` if it was not taken.
    pub fn of(self, run: &Run) -> Option<f64> {
        match self {
            Measure::ProcessorTime => Some(run.cpu.as_secs_f64()),
            Measure::WallTime => Some(run.wall.as_secs_f64()),
            Measure::PeakMemory => run.peak_memory.map(|bytes| bytes as f64),
            Measure::PageFaults => Some(run.page_faults as f64),
            Measure::Hardware(event) => {
                let at = EVENTS.iter().position(|e| *e == event)?;
                run.events[at].map(|n| n as f64)
            }
        }
    }
}

/// Runs a command to its end, without hardware counters.
pub fn run(command: &mut Command) -> io::Result<Run> {
    run_with(command, None)
}

/// Runs a command to its end. After an interrupt ([`interrupt::catch`]) it is asked to end.
pub fn run_with(command: &mut Command, counters: Option<&Counters>) -> io::Result<Run> {
    let started = counters.map(Counters::start);
    let start = Instant::now();
    let child = command.spawn()?;
    let (status, usage) = wait(&child)?;
    let wall = start.elapsed();
    let events = match (counters, &started) {
        (Some(counters), Some(started)) => counters.since(started),
        _ => Values::default(),
    };
    let peak = kilobytes(usage.ru_maxrss);
    Ok(Run {
        wall,
        cpu: duration(usage.ru_utime) + duration(usage.ru_stime),
        peak_memory: Some(peak).filter(|peak| *peak > own_peak()),
        page_faults: positive(usage.ru_minflt).saturating_add(positive(usage.ru_majflt)),
        events,
        status,
    })
}

/// Waits for a child that was not waited for, and gives what it used.
fn wait(child: &Child) -> io::Result<(ExitStatus, libc::rusage)> {
    let pid = child.id() as libc::pid_t;
    let mut status = 0;
    // SAFETY: all-zero is a valid rusage, which the call fills in.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: the child is ours and has not been waited for (`child` is never asked); both pointers are valid.
        let waited = unsafe { libc::wait4(pid, &mut status, 0, &mut usage) };
        if waited == pid {
            return Ok((ExitStatus::from_raw(status), usage));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
        if interrupt::was_asked() {
            // SAFETY: the child has not been waited for, so its number is still its own.
            unsafe { libc::kill(pid, libc::SIGTERM) };
        }
    }
}

fn duration(t: libc::timeval) -> Duration {
    Duration::new(
        t.tv_sec.max(0) as u64,
        (t.tv_usec.clamp(0, 999_999) as u32) * 1000,
    )
}

fn positive(n: libc::c_long) -> u64 {
    n.max(0) as u64
}

/// `ru_maxrss` in bytes.
fn kilobytes(n: libc::c_long) -> u64 {
    positive(n).saturating_mul(1024)
}

/// Largest resident set of this process, in bytes.
fn own_peak() -> u64 {
    // SAFETY: all-zero is a valid rusage, which the call fills in.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is valid.
    let done = unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
    if done == 0 {
        kilobytes(usage.ru_maxrss)
    } else {
        u64::MAX
    }
}

/// The median; of two middle values the lower.
pub fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times
        .get(times.len().saturating_sub(1) / 2)
        .copied()
        .unwrap_or_default()
}

/// How a process ended, in words.
pub fn ending(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with exit code {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => "ended in an unknown way".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_is_the_lower_of_the_middle_two() {
        let ms = Duration::from_millis;
        assert_eq!(median(&mut [ms(9), ms(1), ms(5)]), ms(5));
        assert_eq!(median(&mut [ms(9), ms(1), ms(5), ms(2)]), ms(2));
        assert_eq!(median(&mut []), Duration::ZERO);
    }

    #[test]
    fn a_run_is_timed_and_its_end_is_seen() {
        let run = run(Command::new("sh").args(["-c", "sleep 0.05; exit 3"])).unwrap();
        assert_eq!(run.status.code(), Some(3));
        assert!(run.wall >= Duration::from_millis(50));
        assert_eq!(ending(run.status), "ended with exit code 3");
    }

    #[test]
    fn memory_and_page_faults_are_those_of_the_program() {
        let dd = |size: &str| {
            let arguments = ["if=/dev/zero", "of=/dev/null", "count=1", "status=none"];
            run(Command::new("dd").args(arguments).arg(format!("bs={size}"))).unwrap()
        };
        let large = dd("200M");
        let peak = large
            .peak_memory
            .expect("200 MB are more than this test has");
        assert!((200 << 20..260 << 20).contains(&peak), "{peak}");
        // What is not larger than the test itself cannot be told.
        let small = dd("1k");
        assert!(small.peak_memory.is_none_or(|small| small < peak));
        assert!(small.page_faults > 0);
    }
}
