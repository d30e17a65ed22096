//! Running a program with a time limit, and comparing what it did.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::directives::End;

/// No case runs longer than this, instrumented or not.
const LIMIT: Duration = Duration::from_secs(120);

/// What can be seen of a run from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub stdout: Vec<u8>,
    pub end: End,
}

/// Bytes for a message.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Where a program is on PATH.
pub fn find_program(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|dir| dir.join(name))
        .find(|path| path.is_file())
}

/// How a process ended.
pub fn end_of(status: ExitStatus) -> End {
    match (status.code(), status.signal()) {
        (Some(code), _) => End::Exit(code),
        (None, signal) => End::Signal(signal.unwrap_or(0)),
    }
}

/// Runs to its end or the time limit; output goes to `NAME.stdout` and `NAME.stderr` in `dir`.
pub fn run(mut command: Command, dir: &Path, name: &str) -> Result<Seen, String> {
    let shown = format!("{command:?}");
    let failed = |e: io::Error| format!("{shown}: {e}");
    let (stdout, stderr) = (
        dir.join(format!("{name}.stdout")),
        dir.join(format!("{name}.stderr")),
    );
    command.stdin(Stdio::null());
    command
        .stdout(File::create(&stdout).map_err(failed)?)
        .stderr(File::create(&stderr).map_err(failed)?);
    let mut child = command.spawn().map_err(failed)?;
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            break status;
        }
        if start.elapsed() > LIMIT {
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!(
                "{shown}: still running after {} s",
                LIMIT.as_secs()
            ));
        }
        thread::sleep(Duration::from_millis(2));
    };
    Ok(Seen {
        stdout: fs::read(&stdout).map_err(failed)?,
        end: end_of(status),
    })
}

/// Runs a tool that must succeed and gives its standard output.
pub fn tool(command: Command, dir: &Path, name: &str) -> Result<Vec<u8>, String> {
    let shown = format!("{command:?}");
    let seen = run(command, dir, name)?;
    if seen.end == End::Exit(0) {
        return Ok(seen.stdout);
    }
    let stderr = fs::read(dir.join(format!("{name}.stderr"))).unwrap_or_default();
    Err(format!(
        "{shown}\n{:?}\n{}{}",
        seen.end,
        text(&seen.stdout),
        text(&stderr)
    ))
}
