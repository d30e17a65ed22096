//! What cargo starts programs through while they are counted.
//!
//! `cargo run`, `test` and `bench` know much about how to start a program: its folder, its environment, its arguments,
//! which tests there are. All of that stays theirs: this program is set as the target's *runner*, gets the path of the
//! program and its arguments, and starts the instrumented copy in its place, through the runner that the user has, if
//! there is one.
//!
//! Tests and benches start the package's programs themselves, by paths that were compiled into them
//! (`CARGO_BIN_EXE_…`). So these files become the instrumented copies before a test starts. Cargo puts its own back
//! with every build.
//!
//! Some look for a runner in the environment and start programs through it (assert_cmd does). They must find the user's
//! there: this one knows what to do only for what cargo starts. So the environment that cargo got is put back first.

use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::store::Store;

/// The name that makes this program the runner.
pub const NAME: &str = "cargo-postlink-runner";

/// The environment variable with the path of the [`Plan`].
pub const PLAN: &str = "CARGO_POSTLINK_PLAN";

/// What the runner has to know.
#[derive(Debug, Serialize, Deserialize)]
pub struct Plan {
    /// The folder of the programs.
    pub store: Store,
    /// The user's runner, first its path.
    pub runner: Vec<String>,
    /// Programs and what to put in their places before one is started.
    pub in_place: Vec<(PathBuf, PathBuf)>,
    /// Environment variables and what the user has set them to, for the program in the place of what was for cargo.
    pub environment: Vec<(String, Option<String>)>,
    /// Gets a line for each program that was started instrumented.
    pub started: PathBuf,
}

/// Starts a program's instrumented copy. Comes back only with an error.
pub fn run(arguments: &[OsString]) -> Result<ExitCode> {
    let path = std::env::var_os(PLAN).with_context(|| format!("{PLAN} is not set"))?;
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let plan: Plan = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
    let (program, arguments) = arguments.split_first().context("no program to run")?;
    for (place, copy) in &plan.in_place {
        put(copy, place)?;
    }
    let program = Path::new(program);
    let instrumented = match plan.store.entry(program)? {
        Some(entry) => {
            use std::io::Write as _;
            let copy = entry.instrument(plan.store.relocations)?;
            let mut started = fs::OpenOptions::new()
                .append(true)
                .create(true)
                .open(&plan.started)
                .with_context(|| plan.started.display().to_string())?;
            writeln!(started, "{}", entry.label.display())?;
            copy
        }
        // A documentation test, which rustdoc has compiled elsewhere.
        None => program.to_owned(),
    };
    let mut command = match plan.runner.split_first() {
        Some((runner, words)) => {
            let mut command = Command::new(runner);
            command.args(words).arg(&instrumented);
            command
        }
        None => {
            let mut command = Command::new(&instrumented);
            command.arg0(program);
            command
        }
    };
    command
        .args(arguments)
        .env_remove(PLAN)
        .env_remove("POSTLINK_PROFILE");
    for (name, value) in &plan.environment {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    Err(command.exec()).with_context(|| {
        format!(
            "{} cannot be started",
            command.get_program().to_string_lossy()
        )
    })
}

/// Makes a file another one's copy by a rename, so that a program that is started meanwhile is never half a file.
fn put(from: &Path, to: &Path) -> Result<()> {
    let size = |path: &Path| fs::metadata(path).map(|found| found.len());
    if size(from).ok() == size(to).ok() && fs::read(from).ok() == fs::read(to).ok() {
        return Ok(());
    }
    let mut new = to.as_os_str().to_owned();
    new.push(format!(".{}", std::process::id()));
    fs::copy(from, &new)
        .and_then(|_| fs::rename(&new, to))
        .with_context(|| to.display().to_string())
}
