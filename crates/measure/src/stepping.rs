//! Windows of a run, stepped instruction by instruction.
//!
//! A run as a debugger sees it, for a few short stretches ("windows"): which instructions are executed, in which order.
//! That takes some microseconds an instruction, needs neither hardware nor an emulator, and shows code of libraries
//! too. Between windows the program runs as fast as ever.
//!
//! ```text
//!  command ──► all of its processes and threads are traced (ptrace): they stop when they start, fork, exec or get
//!     │        a signal, which is passed on
//!     └──► from time to time: one running thread of a process that has the object mapped is stopped,
//!          stepped N times, and runs on
//! ```
//!
//! A process that runs already is attached to for some time ([`attach`]) and let go then; those that it starts
//! meanwhile are followed. If the tracer is killed (SIGKILL) while a thread takes a step, the SIGTRAP of that step
//! kills the thread's process: when it ends in any other way, the tracer detaches from threads in a step first.
//!
//! The object is a program or a shared library. Addresses of its instructions are given as its file has them, whatever
//! the place it was loaded to; all others as they are in the process.
//!
//! Only Linux on x86-64 is done; elsewhere [`record`] says so ([`io::ErrorKind::Unsupported`]), as where tracing is
//! forbidden (some containers: [`io::ErrorKind::PermissionDenied`]). What the command leaves running when it ends runs
//! on untraced. A program that traces its own children, as debuggers do, cannot be traced itself.
//!
//! A process that handles SIGTRAP keeps its handler: its windows end before system calls and handlers of signals, which
//! may block it. One that ignores SIGTRAP is followed and not stepped.

use std::io;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::Duration;

/// The file whose instructions are told from others.
#[derive(Clone, Debug)]
pub struct Object {
    /// Device and number of the file.
    pub identity: (u64, u64),
    /// Loadable segments: offset in the file, link-time address.
    pub segments: Vec<(u64, u64)>,
}

/// What is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Most windows.
    pub windows: usize,
    /// Steps of each: instructions, and repetitions of string instructions.
    pub steps: usize,
    /// Time between windows in which the program runs freely. It varies by half of it, so that windows do not follow
    /// a rhythm of the program.
    pub every: Duration,
}

/// Where an instruction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// In the object, at this link-time address.
    Object(u64),
    /// Elsewhere, at this address in the process.
    Elsewhere(u64),
}

impl Object {
    /// How far it is loaded from its link-time addresses, by `/proc/PID/maps`. `None` if it is not mapped.
    ///
    /// Mappings are told by their paths, since the numbers of devices in `maps` are not those of `stat` on all file
    /// systems.
    fn bias(
        &self,
        maps: &str,
        is_object: impl Fn(&Path) -> bool,
    ) -> Option<(u64, Vec<(u64, u64)>)> {
        const PAGE: u64 = 4096;
        let mut bias = None;
        let mut ranges = Vec::new();
        for line in maps.lines() {
            let mut words = line.split_ascii_whitespace();
            let (range, offset) = (words.next()?, words.nth(1)?);
            // What is after the inode's number is the path, which may have blanks in it.
            let Some(start) = line.find('/') else {
                continue;
            };
            if !is_object(Path::new(&line[start..])) {
                continue;
            }
            let hex = |text: &str| u64::from_str_radix(text, 16).ok();
            let (first, end) = range.split_once('-')?;
            let (first, end, offset) = (hex(first)?, hex(end)?, hex(offset)?);
            ranges.push((first, end));
            if bias.is_none() {
                let segment = self.segments.iter().find(|s| s.0 / PAGE * PAGE == offset);
                bias = segment.map(|s| first.wrapping_sub(s.1 / PAGE * PAGE));
            }
        }
        bias.map(|bias| (bias, ranges))
    }
}

/// Runs a command to its end and hands on the windows. The status is the command's.
///
/// # Errors
///
/// The command cannot be started, or its process cannot be traced. The command is not run then, or is ended.
pub fn record(
    command: &mut Command,
    object: &Object,
    plan: &Plan,
    window: impl FnMut(Vec<At>) + Send,
) -> io::Result<ExitStatus> {
    // Tracing belongs to a thread: what is still traced when it ends is let go by the kernel.
    std::thread::scope(|scope| {
        let tracing = scope.spawn(|| system::record(command, object, plan, window));
        tracing
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the tracing thread failed")))
    })
}

/// Attaches to processes that run and hands on their windows, until there are enough, the time is over, all processes
/// have ended, or [`interrupt::was_asked`](crate::interrupt::was_asked). They run on as before.
///
/// # Errors
///
/// A process is not there, may not be traced, or is traced already; none of them has the object mapped
/// ([`io::ErrorKind::InvalidInput`]).
pub fn attach(
    processes: &[u32],
    time: Duration,
    object: &Object,
    plan: &Plan,
    window: impl FnMut(Vec<At>) + Send,
) -> io::Result<()> {
    std::thread::scope(|scope| {
        let tracing = scope.spawn(|| system::attach(processes, time, object, plan, window));
        tracing
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the tracing thread failed")))
    })
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
mod system {
    use super::*;

    pub(super) fn record(
        _: &mut Command,
        _: &Object,
        _: &Plan,
        _: impl FnMut(Vec<At>),
    ) -> io::Result<ExitStatus> {
        Err(unsupported())
    }

    pub(super) fn attach(
        _: &[u32],
        _: Duration,
        _: &Object,
        _: &Plan,
        _: impl FnMut(Vec<At>),
    ) -> io::Result<()> {
        Err(unsupported())
    }

    fn unsupported() -> io::Error {
        let why = "single steps are taken on Linux on x86-64 only";
        io::Error::new(io::ErrorKind::Unsupported, why)
    }
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod system;

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
55d0c0000000-55d0c0010000 r--p 00000000 fe:00 131 /opt/some app
55d0c0010000-55d0c0090000 r-xp 00010000 fe:00 131 /opt/some app
55d0c0091000-55d0c0092000 rw-p 00090000 fe:00 131 /opt/some app
55d0c1000000-55d0c1021000 rw-p 00000000 00:00 0 [heap]
7f0000000000-7f0000028000 r--p 00000000 fe:00 99 /lib/libc.so.6
";

    fn object(segments: &[(u64, u64)]) -> Object {
        Object {
            identity: (0, 0),
            segments: segments.to_vec(),
        }
    }

    #[test]
    fn the_object_is_found_by_its_path_and_a_segment() {
        let is = |name: &'static str| move |path: &Path| path == Path::new(name);
        let pie = object(&[(0, 0), (0x10000, 0x11000), (0x90f00, 0x93f00)]);
        let (bias, ranges) = pie.bias(MAPS, is("/opt/some app")).unwrap();
        assert_eq!(bias, 0x55d0_c000_0000);
        assert_eq!(ranges.len(), 3);
        // Linked for a fixed address, and the first mapping is not that of the first segment.
        let late = object(&[(0x10123, 0x55d0_c001_0123)]);
        assert_eq!(late.bias(MAPS, is("/opt/some app")).unwrap().0, 0);
        assert!(pie.bias(MAPS, is("/opt/other")).is_none());
        assert!(pie.bias("nonsense\n\n", is("/opt/some app")).is_none());
    }
}
