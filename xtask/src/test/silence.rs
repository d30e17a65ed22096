//! Tests that print nothing more: a test that waits for ever, or a process that a test has left behind.
//!
//! What tests print comes through a pipe, and they have ended when no process holds the pipe's other end. Who holds
//! it is therefore who is waited for. If nothing is read for [`LIMIT`], these processes are named, with what each waits
//! for, and stopped, so that the summary comes and says where it hung; otherwise a machine's limit of time would end
//! all of it without a word.

use std::fmt::Write;
use std::fs;
use std::os::fd::AsRawFd;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, Result};

/// More than the longest test, or crate that is compiled, takes on a slow machine.
pub const LIMIT: Duration = Duration::from_mins(15);

/// Watches over the reading of a pipe.
pub struct Watch {
    /// The pipe, as /proc names it.
    pipe: String,
    limit: Duration,
}

impl Watch {
    /// Of a pipe from which is read.
    pub fn new(pipe: &impl AsRawFd, limit: Duration) -> Result<Watch> {
        let link = fs::read_link(format!("/proc/self/fd/{}", pipe.as_raw_fd()));
        let link = link.context("the pipe of the tests' output")?;
        Ok(Watch {
            pipe: link.to_string_lossy().into_owned(),
            limit,
        })
    }

    /// Reads, and says after each line that one was heard. What was stopped because nothing was heard for too long is
    /// told in lines.
    pub fn during<E: Send>(
        &self,
        read: impl FnOnce(&dyn Fn()) -> Result<(), E>,
    ) -> Result<String, E> {
        let (sender, receiver) = channel();
        std::thread::scope(|scope| {
            let stopped = scope.spawn(move || {
                let mut stopped = String::new();
                loop {
                    match receiver.recv_timeout(self.limit) {
                        Ok(()) => {}
                        Err(RecvTimeoutError::Timeout) => stopped += &self.stop(),
                        Err(RecvTimeoutError::Disconnected) => return stopped,
                    }
                }
            });
            let outcome = read(&|| {
                // The other end is there as long as this one is.
                let _ = sender.send(());
            });
            drop(sender);
            let stopped = stopped.join().expect("nothing in it panics");
            outcome.map(|()| stopped)
        })
    }

    /// Stops all other processes that hold the pipe.
    fn stop(&self) -> String {
        let mut text = format!(
            "stopped, after {} s without a line of output:\n",
            self.limit.as_secs()
        );
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        for process in processes {
            let name = process.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else {
                continue;
            };
            if pid.unsigned_abs() == std::process::id() || !self.is_held_by(pid) {
                continue;
            }
            let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let command = String::from_utf8_lossy(&command).replace('\0', " ");
            let _ = writeln!(text, "  {pid} {}", command.trim_end());
            for line in threads(pid) {
                let _ = writeln!(text, "    {line}");
            }
            // SAFETY: it takes no pointers. The process holds the pipe of our tests: one of them started it.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        text
    }

    fn is_held_by(&self, pid: i32) -> bool {
        let files = fs::read_dir(format!("/proc/{pid}/fd"));
        files.into_iter().flatten().flatten().any(|file| {
            fs::read_link(file.path()).is_ok_and(|link| *link.as_os_str() == *self.pipe)
        })
    }
}

/// The threads of a process: the name, whether it runs or sleeps, and the number of the system call in which it is.
fn threads(pid: i32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    let tasks = tasks.into_iter().flatten().flatten().map(|task| {
        let read = |file: &str| fs::read_to_string(task.path().join(file)).unwrap_or_default();
        let status = read("status");
        let state = status
            .lines()
            .find_map(|line| line.strip_prefix("State:"))
            .unwrap_or_default();
        let call = read("syscall");
        let call = call.split_whitespace().next().unwrap_or("unknown");
        format!(
            "thread {}: {}, system call {call}",
            read("comm").trim(),
            state.trim()
        )
    });
    tasks.collect()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::Instant;

    use super::super::Reader;
    use super::*;

    /// It ends as it should, but leaves a process that holds its output.
    #[test]
    fn a_process_that_a_test_left_behind_is_named_and_stopped() {
        let (output, input) = std::io::pipe().unwrap();
        let watch = Watch::new(&output, Duration::from_millis(300)).unwrap();
        let mut child = Command::new("sh")
            .args(["-c", "sleep 1000 & echo 'test result: ok. 1 passed'"])
            .stdin(Stdio::null())
            .stdout(input)
            .spawn()
            .unwrap();
        let start = Instant::now();
        let mut lines = std::io::BufReader::new(output);
        let mut count = 0;
        let stopped = watch.during(|heard| {
            let mut line = String::new();
            while std::io::BufRead::read_line(&mut lines, &mut line)? > 0 {
                heard();
                count += 1;
            }
            anyhow::Ok(())
        });
        let stopped = stopped.unwrap();
        assert!(stopped.contains("sleep 1000"), "{stopped}");
        assert!(stopped.contains("thread sleep: S (sleeping)"), "{stopped}");
        assert!(count == 1 && child.wait().unwrap().success());
        assert!(start.elapsed() < Duration::from_secs(500));
        let mut reader = Reader::default();
        reader.line("test result: ok. 1 passed; 0 failed; 0 ignored; finished in 0.10s");
        assert!(reader.is_good());
        reader.hung(&stopped);
        assert!(!reader.is_good());
        assert!(reader.summary().contains("sleep 1000"));
    }

    #[test]
    fn what_prints_now_and_then_is_left_alone() {
        let (output, input) = std::io::pipe().unwrap();
        let watch = Watch::new(&output, Duration::from_secs(5)).unwrap();
        let mut child = Command::new("sh")
            .args(["-c", "echo a; sleep 0.1; echo b"])
            .stdout(input)
            .spawn()
            .unwrap();
        let stopped = watch.during(|heard| {
            for line in std::io::BufRead::lines(std::io::BufReader::new(output)) {
                line?;
                heard();
            }
            anyhow::Ok(())
        });
        assert_eq!(stopped.unwrap(), "");
        assert!(child.wait().unwrap().success());
    }
}
