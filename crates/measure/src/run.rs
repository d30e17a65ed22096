//! Running a command and taking its time.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

/// What one run cost.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// By the clock on the wall.
    pub wall: Duration,
    /// Time of processors, user and system, children that were waited for included.
    pub cpu: Duration,
    /// How it ended.
    pub status: ExitStatus,
}

/// Runs a command to its end.
pub fn run(command: &mut Command) -> io::Result<Run> {
    let start = Instant::now();
    let child = command.spawn()?;
    let pid = child.id() as libc::pid_t;
    let mut status = 0;
    // SAFETY: all-zero is a valid rusage, which the call fills in.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: the child is ours and has not been waited for (`child` is never asked); both pointers are valid.
        let waited = unsafe { libc::wait4(pid, &mut status, 0, &mut usage) };
        if waited == pid {
            break;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    let time = |t: libc::timeval| {
        Duration::new(
            t.tv_sec.max(0) as u64,
            (t.tv_usec.clamp(0, 999_999) as u32) * 1000,
        )
    };
    Ok(Run {
        wall: start.elapsed(),
        cpu: time(usage.ru_utime) + time(usage.ru_stime),
        status: ExitStatus::from_raw(status),
    })
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
}
