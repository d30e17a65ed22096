//! Running programs and measuring them.
//!
//! A process inherits the high-water mark of memory from whom it was forked. So programs are not started by
//! this process, which may have grown, but by a small one in between: `xtask measure`, which only waits and
//! reports.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

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
    let report = stderr.with_extension("cost");
    // Not by its path: a build that runs meanwhile may have replaced the file.
    let mut helper = Command::new("/proc/self/exe");
    helper
        .arg("measure")
        .arg(&report)
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => helper.env(name, value),
            None => helper.env_remove(name),
        };
    }
    helper.stdin(Stdio::null());
    helper.stdout(File::create(stdout).with_context(|| named(stdout))?);
    helper.stderr(File::create(stderr).with_context(|| named(stderr))?);
    let shown = || format!("{command:?}");
    let status = helper.status().with_context(shown)?;
    if !status.success() {
        let said = fs::read_to_string(stderr).unwrap_or_default();
        bail!(
            "{}: {}",
            shown(),
            said.lines().last().unwrap_or("could not be run")
        );
    }
    let text = fs::read_to_string(&report).with_context(|| named(&report))?;
    let numbers: Vec<u64> = text
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    let [wall, cpu, peak, status] = numbers[..] else {
        bail!("{}: four numbers are needed, not '{text}'", named(&report))
    };
    Ok(Run {
        wall: Duration::from_micros(wall),
        cpu: Duration::from_micros(cpu),
        peak,
        status: ExitStatus::from_raw(status as i32),
    })
}

/// The process in between: `xtask measure REPORT COMMAND…` runs the command with its own output and writes to
/// the report: wall time and processor time in microseconds, largest memory in bytes, status as wait4 gives
/// it.
pub fn measure(arguments: &[String]) -> Result<bool> {
    let [report, program, rest @ ..] = arguments else {
        bail!("measure needs a file and a command")
    };
    let start = Instant::now();
    let child = Command::new(program)
        .args(rest)
        .spawn()
        .with_context(|| program.clone())?;
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
            return Err(error).with_context(|| program.clone());
        }
    }
    let wall = start.elapsed().as_micros();
    let time = |t: libc::timeval| t.tv_sec as u64 * 1_000_000 + t.tv_usec as u64;
    let (cpu, peak) = (
        time(usage.ru_utime) + time(usage.ru_stime),
        usage.ru_maxrss as u64 * 1024,
    );
    fs::write(report, format!("{wall} {cpu} {peak} {status}\n")).with_context(|| report.clone())?;
    Ok(true)
}

/// The median; of two middle values the lower.
pub fn median<T: Copy + PartialOrd>(values: &[T]) -> Option<T> {
    let mut sorted = values.to_vec();
    sorted.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
    sorted.get(sorted.len().saturating_sub(1) / 2).copied()
}
