//! `postlink watch`: snapshots of a live profile, taken from outside the process.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use postlink_profile::{Error, raw};

use crate::errors::Usage;
use crate::ui::Ui;

/// Copy a live profile every so many seconds
///
/// The counters of an instrumented program are its profile file, at any moment: a snapshot is a copy of it. The
/// program need not know and is not disturbed. Each snapshot holds everything since the program's start.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  postlink watch run.plraw --snapshot-every 10 -o 'snap.%n.plraw'
  postlink watch run.plraw --snapshot-every 60 -o latest.plraw --pid 4711   # until that process has ended")]
pub struct Watch {
    /// The profile of the running program; waits for it if it is not there yet
    #[arg(value_name = "PROFILE")]
    pub profile: PathBuf,
    /// Seconds from one snapshot to the next
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub snapshot_every: Duration,
    /// Name of the snapshots; %n is their number, without it each replaces the one before
    #[arg(long, short, value_name = "PATTERN")]
    pub output: String,
    /// End after this many snapshots
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    /// End, with a last snapshot, when this process has ended
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pub pid: Option<i32>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|e| format!("{e}"))?;
    if !(0.001..=1e7).contains(&seconds) {
        return Err("from 0.001 to 10000000 seconds are possible".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Whether a process is there and has not ended.
fn is_alive(pid: i32) -> bool {
    // A zombie has ended, though its number is not free yet.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map(|(_, rest)| rest.chars().next());
    matches!(state, Some(Some(letter)) if !matches!(letter, 'Z' | 'X'))
}

impl Watch {
    pub fn run(self, ui: &Ui) -> Result<ExitCode> {
        if self.output.contains('%') && !self.output.contains("%n") {
            return Err(Usage(format!(
                "the pattern '{}' has a '%' but no '%n'",
                self.output
            ))
            .into());
        }
        let mut next = Instant::now() + self.snapshot_every;
        let mut number = 0;
        let mut waiting = false;
        loop {
            let mut ended = false;
            while Instant::now() < next && !ended {
                std::thread::sleep(
                    Duration::from_millis(100).min(next.saturating_duration_since(Instant::now())),
                );
                ended = self.pid.is_some_and(|pid| !is_alive(pid));
            }
            next += self.snapshot_every;
            let to = PathBuf::from(self.output.replace("%n", &(number + 1).to_string()));
            match snapshot(&self.profile, &to)? {
                true => {
                    number += 1;
                    ui.say(format_args!(
                        "{}: snapshot {number} of {}",
                        to.display(),
                        self.profile.display()
                    ));
                }
                false if !waiting => {
                    waiting = true;
                    ui.say(format_args!(
                        "{}: nothing recorded yet, waiting",
                        self.profile.display()
                    ));
                }
                false => {}
            }
            if ended || self.count.is_some_and(|count| number >= count) {
                return Ok(if number > 0 {
                    ExitCode::SUCCESS
                } else {
                    ExitCode::FAILURE
                });
            }
        }
    }
}

/// Takes one. `false`: there is nothing to copy yet.
fn snapshot(live: &Path, to: &Path) -> Result<bool> {
    match raw::snapshot(live, to) {
        Ok(_) => Ok(true),
        Err(Error::NothingRecorded { .. }) => Ok(false),
        Err(Error::Io { source, .. })
            if source.kind() == std::io::ErrorKind::NotFound && !live.exists() =>
        {
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}
