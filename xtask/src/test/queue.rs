//! Test programs, two at the same time.
//!
//! `cargo test` runs one test program after the other, each with as many threads as the machine has cores. Most have
//! fewer tests than that, or one that takes longest, so that a core idles for much of the time. Here cargo only builds
//! them and says where they are; they are then taken from a queue. What one prints is passed on as a whole when it
//! has ended, and read by a [`Reader`] of its own, so that the summary is the same in whatever order they end.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::{Reader, cargo, part_name, pass_on};

/// How many run at the same time: each has threads of its own.
const TOGETHER: usize = 2;

/// What takes longest, and so begins first.
const FIRST: &str = "tests/cases/main.rs";

/// How often is said what still runs, while nothing ends.
const SILENCE: Duration = Duration::from_mins(1);

/// A command whose output is that of tests.
pub struct Job {
    /// As cargo names a test program that it runs: `unittests src/lib.rs (…)`, `tests/a.rs (…)`.
    pub name: String,
    /// What cargo says by itself is part of the output.
    pub names_itself: bool,
    pub command: Command,
}

/// What came of a job.
pub struct Done {
    pub reader: Reader,
    pub status: ExitStatus,
}

/// Builds the tests of the workspace: a job for each of its test programs.
pub fn programs(targets: &[&str], arguments: &[&str]) -> Result<Vec<Job>> {
    let mut command = cargo();
    command
        .args(["test", "--release", "--workspace", "--no-run"])
        .arg("--message-format=json-render-diagnostics")
        .args(targets)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut child = command.spawn().context("cargo test --no-run")?;
    let messages = child.stdout.take().expect("it is piped");
    let mut jobs = Vec::new();
    for line in BufReader::new(messages).lines() {
        jobs.extend(job(&line.context("cargo's messages")?, arguments));
    }
    let status = child.wait().context("cargo test --no-run")?;
    if !status.success() {
        bail!("the tests could not be built: cargo test --no-run: {status}");
    }
    jobs.sort_by_key(|job| !job.name.starts_with(FIRST));
    Ok(jobs)
}

/// The job of a test program, if this message of cargo's tells of one.
fn job(message: &str, arguments: &[&str]) -> Option<Job> {
    let message: Value = serde_json::from_str(message).ok()?;
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let executable = PathBuf::from(message["executable"].as_str()?);
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
    let source = Path::new(message["target"]["src_path"].as_str()?);
    let source = source.strip_prefix(folder).unwrap_or(source);
    let is_test = message["target"]["kind"][0] == "test";
    let unit = if is_test { "" } else { "unittests " };
    let mut command = Command::new(&executable);
    command
        .args(arguments)
        .current_dir(folder)
        // As cargo sets it; what is inherited is that of this program.
        .env("CARGO_MANIFEST_DIR", folder);
    // Packages that tests compile are not ours to lint.
    crate::lint::without_driver(&mut command);
    Some(Job {
        name: format!("{unit}{} ({})", source.display(), executable.display()),
        names_itself: false,
        command,
    })
}

/// Runs all jobs. Their outcomes are in the order of the jobs.
pub fn run(jobs: Vec<Job>, stdout: &mut (impl Write + Send)) -> Result<Vec<Done>> {
    let names: Vec<String> = jobs.iter().map(|job| job.name.clone()).collect();
    let jobs: Vec<Mutex<Option<Job>>> = jobs.into_iter().map(|job| Mutex::new(Some(job))).collect();
    let next = AtomicUsize::new(0);
    let running: Mutex<BTreeMap<usize, Instant>> = Mutex::default();
    let (sender, receiver) = channel();
    let mut done = BTreeMap::new();
    std::thread::scope(|scope| {
        for _ in 0..TOGETHER {
            let (sender, jobs, next, running) = (sender.clone(), &jobs, &next, &running);
            scope.spawn(move || {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(job) = jobs.get(index) else { return };
                    let job = job.lock().expect("nothing panics").take();
                    let job = job.expect("each is taken once");
                    let mut now = running.lock().expect("nothing panics");
                    now.insert(index, Instant::now());
                    drop(now);
                    let outcome = run_one(job);
                    running.lock().expect("nothing panics").remove(&index);
                    if sender.send((index, outcome)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        loop {
            match receiver.recv_timeout(SILENCE) {
                Ok((index, outcome)) => {
                    let (output, outcome) = outcome?;
                    stdout.write_all(&output)?;
                    stdout.flush()?;
                    done.insert(index, outcome);
                }
                Err(RecvTimeoutError::Timeout) => {
                    let now = running.lock().expect("nothing panics");
                    writeln!(stdout, "{}", still_running(&names, &now))?;
                }
                Err(RecvTimeoutError::Disconnected) => return anyhow::Ok(()),
            }
        }
    })?;
    Ok(done.into_values().collect())
}

fn still_running(names: &[String], now: &BTreeMap<usize, Instant>) -> String {
    let named = now.iter().map(|(&index, since)| {
        format!(
            "{} ({} s)",
            part_name(&names[index]),
            since.elapsed().as_secs()
        )
    });
    let named: Vec<String> = named.collect();
    format!("still running: {}", named.join(", "))
}

/// Runs one job: its output, as it is to be passed on, and what came of it.
fn run_one(job: Job) -> Result<(Vec<u8>, Done)> {
    let mut reader = Reader::default();
    let mut output = Vec::new();
    if !job.names_itself {
        let line = format!("     Running {}", job.name);
        reader.line(&line);
        writeln!(output, "{line}")?;
    }
    let status = pass_on(job.command, &mut reader, &mut output)
        .with_context(|| format!("running {}", job.name))?;
    Ok((output, Done { reader, status }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(name: &str, script: &str) -> Job {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Job {
            name: format!("tests/{name}.rs (deps/{name}-0123)"),
            names_itself: false,
            command,
        }
    }

    #[test]
    fn a_message_about_a_test_program_is_a_job_in_the_folder_of_its_package() {
        let message = r#"{"reason":"compiler-artifact","manifest_path":"/w/crates/a/Cargo.toml",
            "target":{"kind":["test"],"src_path":"/w/crates/a/tests/b.rs"},
            "profile":{"test":true},"executable":"/w/target/debug/deps/b-01"}"#;
        let job = job(message, &["--show-output"]).unwrap();
        assert_eq!(job.name, "tests/b.rs (/w/target/debug/deps/b-01)");
        assert_eq!(
            job.command.get_current_dir(),
            Some(Path::new("/w/crates/a"))
        );
        assert_eq!(
            job.command.get_args().collect::<Vec<_>>(),
            ["--show-output"]
        );
        let library = message
            .replace(r#"["test"]"#, r#"["lib"]"#)
            .replace("tests/b", "src/lib");
        let job = super::job(&library, &[]).unwrap();
        assert_eq!(job.name, "unittests src/lib.rs (/w/target/debug/deps/b-01)");
        // A program that tests start, and what is no program.
        for (from, to) in [
            (r#""test":true"#, r#""test":false"#),
            ("compiler-artifact", "build-script-executed"),
            (r#","executable":"/w/target/debug/deps/b-01""#, ""),
        ] {
            assert!(
                super::job(&message.replace(from, to), &[]).is_none(),
                "{to}"
            );
        }
    }

    /// The first waits for the second: one after the other they would never end.
    #[test]
    fn two_run_at_the_same_time_and_outcomes_keep_their_order() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("second").display().to_string();
        let result = "echo 'test result: ok. 1 passed; 0 failed; 0 ignored; finished in 0.10s'";
        let jobs = vec![
            shell(
                "first",
                &format!("while [ ! -e {file} ]; do sleep 0.01; done; {result}"),
            ),
            shell("second", &format!("touch {file}; {result}")),
            shell("third", "echo 'test a ... FAILED'; exit 101"),
        ];
        let mut output = Vec::new();
        let done = run(jobs, &mut output).unwrap();
        let names: Vec<&str> = done.iter().map(|d| &*d.reader.parts[0].name).collect();
        assert_eq!(names, ["first", "second", "third"]);
        let passed: Vec<u64> = done.iter().map(|d| d.reader.parts[0].passed).collect();
        assert_eq!(passed, [1, 1, 0]);
        assert_eq!(done[2].status.code(), Some(101));
        assert!(!done[2].reader.is_good() && done[2].reader.parts[0].failures == ["a"]);
        // Each one's output is whole, whichever ends first.
        let output = String::from_utf8(output).unwrap();
        for name in ["first.rs", "second.rs"] {
            let mut parts = output.split("Running tests/");
            let part = parts.find(|part| part.starts_with(name)).unwrap();
            assert_eq!(part.matches("test result: ok").count(), 1, "{output}");
        }
        assert_eq!(output.matches("test result: ok").count(), 2);
    }

    #[test]
    fn what_still_runs_is_named_as_in_the_summary() {
        let names = [
            "tests/a.rs (x/a-0)".to_owned(),
            "unittests src/lib.rs (x/postlink_flow-0)".to_owned(),
            "tests of fleet".to_owned(),
        ];
        let now = BTreeMap::from([(1, Instant::now()), (2, Instant::now())]);
        assert_eq!(
            still_running(&names, &now),
            "still running: postlink-flow (0 s), tests of fleet (0 s)"
        );
    }
}
