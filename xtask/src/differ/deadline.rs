//! An end for runs that take too long.
//!
//! Reading from a run waits for it, so the limit is kept by a thread beside: it ends both runs, then their streams
//! end, and who reads them finds out that the limit was reached.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use anyhow::{Result, bail};

/// A limit of time for the runs in two groups of processes.
pub struct Deadline {
    seconds: u64,
    reached: Arc<AtomicBool>,
    /// Dropped when the runs have ended: that wakes up the thread.
    running: Option<Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Deadline {
    /// From now on; without seconds there is no limit.
    pub fn new(seconds: Option<u64>, groups: [Option<libc::pid_t>; 2]) -> Deadline {
        let reached = Arc::new(AtomicBool::new(false));
        let (running, ended) = channel::<()>();
        let thread = seconds.map(|seconds| {
            let reached = reached.clone();
            std::thread::spawn(move || {
                let limit = Duration::from_secs(seconds);
                if ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                    reached.store(true, Ordering::Relaxed);
                    for group in groups.into_iter().flatten() {
                        // SAFETY: a signal to a group that one of our children was started in; nobody else gets
                        // its number while a member is left.
                        unsafe { libc::kill(-group, libc::SIGKILL) };
                    }
                }
            })
        });
        Deadline {
            seconds: seconds.unwrap_or(0),
            reached,
            running: Some(running),
            thread,
        }
    }

    /// The runs have ended: an error if that was because of the limit.
    pub fn keep(mut self) -> Result<()> {
        self.finish();
        if self.reached.load(Ordering::Relaxed) {
            bail!(Late {
                seconds: self.seconds
            });
        }
        Ok(())
    }

    fn finish(&mut self) {
        drop(self.running.take());
        if let Some(thread) = self.thread.take() {
            // It has nothing that could fail.
            let _ = thread.join();
        }
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        self.finish();
    }
}

/// The limit was reached.
#[derive(Debug)]
pub struct Late {
    seconds: u64,
}

impl std::fmt::Display for Late {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the runs did not end in {} s", self.seconds)
    }
}

impl std::error::Error for Late {}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Command;
    use std::time::Instant;

    use super::*;

    fn sleeper() -> std::process::Child {
        let mut command = Command::new("sleep");
        command.arg("100").process_group(0).spawn().expect("sleep")
    }

    #[test]
    fn runs_that_take_too_long_are_ended_and_others_are_not() {
        let began = Instant::now();
        let mut late = sleeper();
        let deadline = Deadline::new(Some(1), [Some(late.id() as i32), None]);
        assert!(!late.wait().expect("our child").success());
        let error = deadline.keep().expect_err("it was late");
        assert!(error.is::<Late>(), "{error}");
        assert_eq!(error.to_string(), "the runs did not end in 1 s");
        assert!(began.elapsed() < Duration::from_secs(90));

        let mut other = sleeper();
        let deadline = Deadline::new(Some(90), [Some(other.id() as i32), None]);
        deadline.keep().expect("it was not late");
        assert!(other.try_wait().expect("our child").is_none());
        other.kill().expect("our child");
        other.wait().expect("our child");
    }
}
