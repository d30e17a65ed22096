//! Running programs and measuring them.

use std::fs::File;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// What one run cost.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// By the clock on the wall.
    pub wall: Duration,
    /// Time of processors, user and system, with all descendants that were waited for.
    pub cpu: Duration,
    /// Largest memory of one process among them, in bytes.
    pub peak: u64,
    /// How it ended.
    pub status: ExitStatus,
}

/// Runs a command, its standard output and error into files.
pub fn run(command: &mut Command, stdout: &Path, stderr: &Path) -> Result<Run> {
    let named = |path: &Path| format!("{}", path.display());
    command.stdin(Stdio::null());
    command.stdout(File::create(stdout).with_context(|| named(stdout))?);
    command.stderr(File::create(stderr).with_context(|| named(stderr))?);
    let start = Instant::now();
    let child = command.spawn().with_context(|| format!("{command:?}"))?;
    let mut status = 0;
    // SAFETY: all-zero is a valid rusage.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: the child is ours and nobody else waits for it; both pointers are valid.
        let waited = unsafe { libc::wait4(child.id() as libc::pid_t, &mut status, 0, &mut usage) };
        if waited > 0 {
            break;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error).with_context(|| format!("{command:?}"));
        }
    }
    let time = |t: libc::timeval| {
        Duration::from_secs(t.tv_sec as u64) + Duration::from_micros(t.tv_usec as u64)
    };
    Ok(Run {
        wall: start.elapsed(),
        cpu: time(usage.ru_utime) + time(usage.ru_stime),
        peak: usage.ru_maxrss as u64 * 1024,
        status: ExitStatus::from_raw(status),
    })
}

/// The median; of two middle values the lower.
pub fn median<T: Copy + PartialOrd>(values: &[T]) -> Option<T> {
    let mut sorted = values.to_vec();
    sorted.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
    sorted.get(sorted.len().saturating_sub(1) / 2).copied()
}
