//! Workloads: programs run while they are counted, and what becomes of their counts.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};

use anyhow::{Context, Result, bail};
use postlink_measure::{ending, interrupt};
use xxhash_rust::xxh3::xxh3_128;

use crate::cargo::{self, Built, Kind};
use crate::options::Running;
use crate::pgo;
use crate::runner::{self, Plan};
use crate::say;
use crate::session::{Flavour, Session};
use crate::store::Store;

/// Exit code after Ctrl-C, as shells have it.
const INTERRUPTED: u8 = 130;

/// What is run.
pub struct Work<'a> {
    /// `run`, `test` or `bench`
    pub command: &'static str,
    /// Options of cargo's that select programs.
    pub selection: Vec<OsString>,
    /// Which tests.
    pub filter: Option<&'a String>,
    /// For the program, or the tests' harness.
    pub arguments: &'a [OsString],
    /// How.
    pub running: &'a Running,
}

/// How the workload ended.
enum Outcome {
    Well,
    /// By Ctrl-C, as servers do: what was counted is as good.
    Interrupted,
    Failed(ExitStatus),
}

impl Outcome {
    fn of(status: ExitStatus) -> Outcome {
        match status {
            _ if interrupt::was_asked() => Outcome::Interrupted,
            status if status.success() => Outcome::Well,
            status => Outcome::Failed(status),
        }
    }
}

/// Builds, instruments, runs. With `--pgo` all of that twice: once for the compiler's profile, once with it.
pub fn run(session: &Session, work: &Work<'_>) -> Result<ExitCode> {
    check(work)?;
    let _lock = session.lock()?;
    interrupt::catch();
    let flavour = if session.building.pgo {
        match compilers_profile(session, work)? {
            Some(flavour) => flavour,
            None => return Ok(ExitCode::from(INTERRUPTED)),
        }
    } else {
        Flavour::Plain
    };
    let store = session.store(&flavour);
    if work.running.fresh {
        store.forget()?;
    }
    // Programs that the person has run were no part of this workload: their counts stay, whatever comes.
    store.settle(false)?;
    let built = build(session, &flavour, work)?;
    let scratch = tempfile::Builder::new()
        .prefix("cargo-postlink.")
        .tempdir()
        .context("a temporary folder")?;
    let started = scratch.path().join("started");
    let status = match &work.running.workload {
        Some(line) => {
            let entry = store.entry(&only(&built)?.path)?;
            let entry = entry.context("the program is not in cargo's target folder")?;
            let copy = entry.instrument(store.relocations)?;
            fs::write(&started, b"the workload")?;
            shell(session, line, &copy)?
        }
        None => {
            let mut command = cargo_runs(session, &flavour, work);
            counted(session, &store, &built, work, scratch.path(), &mut command)?;
            command
                .status()
                .with_context(|| format!("cargo {} cannot be started", work.command))?
        }
    };
    let outcome = Outcome::of(status);
    let failed = matches!(outcome, Outcome::Failed(_)) && !work.running.allow_failure;
    store.settle(failed)?;
    if !started.exists() {
        bail!(
            "cargo {} {}, and has not started any program{}",
            work.command,
            ending(status),
            if status.success() {
                ": there is nothing to run"
            } else {
                ""
            }
        );
    }
    end(&outcome, work)
}

fn end(outcome: &Outcome, work: &Work<'_>) -> Result<ExitCode> {
    match outcome {
        Outcome::Well => {
            say::step("Counted", "`cargo postlink optimize` uses it");
            Ok(ExitCode::SUCCESS)
        }
        Outcome::Interrupted => {
            say::step(
                "Interrupted",
                "what was counted until now is kept for `cargo postlink optimize`",
            );
            Ok(ExitCode::from(INTERRUPTED))
        }
        Outcome::Failed(status) => {
            let what = format!("the workload {}", ending(*status));
            if !work.running.allow_failure {
                bail!("{what}; its counts are not used (--allow-failure uses it)");
            }
            say::warn(format_args!("{what}; what it counted is used"));
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn build(session: &Session, flavour: &Flavour, work: &Work<'_>) -> Result<Vec<Built>> {
    let command = if work.command == "run" {
        "build"
    } else {
        work.command
    };
    let built = cargo::build(session, flavour, command, &work.selection)?;
    if built.is_empty() {
        bail!("{}", cargo::NOTHING);
    }
    Ok(built)
}

/// The one program that a workload in words of the shell is for.
fn only(built: &[Built]) -> Result<&Built> {
    let programs: Vec<&Built> = built
        .iter()
        .filter(|built| built.kind != Kind::Harness)
        .collect();
    match programs.as_slice() {
        [one] => Ok(one),
        [] => bail!("--workload is for a program, and only tests or benches were built"),
        several => {
            let names: Vec<&str> = several.iter().map(|built| built.name.as_str()).collect();
            bail!(
                "--workload is for one program: choose with --bin or --example among {}",
                names.join(", ")
            )
        }
    }
}

/// Looks at the workload before anything is built, run or forgotten for it.
fn check(work: &Work<'_>) -> Result<()> {
    let Some(line) = &work.running.workload else {
        return Ok(());
    };
    if !line.contains("{}") {
        bail!(
            "the workload '{line}' has no {{}}: it must run the program, whose path is put there"
        );
    }
    if !work.arguments.is_empty() {
        bail!(
            "arguments after -- are for the program, which --workload runs in its own way: give one of both"
        );
    }
    Ok(())
}

/// The workload as a line for the shell.
fn shell(session: &Session, line: &str, program: &Path) -> Result<ExitStatus> {
    say::step("Running", line);
    let words = session.runner.iter().map(String::as_str);
    let program = program.to_string_lossy();
    let words: Vec<String> = words.chain([program.as_ref()]).map(quoted).collect();
    Command::new("sh")
        .arg("-c")
        .arg(line.replace("{}", &words.join(" ")))
        .env_remove("POSTLINK_PROFILE")
        .status()
        .context("sh cannot be started")
}

/// A word for the shell.
pub fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,:@%=".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// The command as the person would give it to cargo.
fn cargo_runs(session: &Session, flavour: &Flavour, work: &Work<'_>) -> Command {
    let mut command = session.cargo(work.command, flavour);
    command.args(&work.selection).args(work.filter);
    if work.command == "run" {
        command.arg("--quiet");
    }
    if !work.arguments.is_empty() {
        command.arg("--").args(work.arguments);
    }
    command
}

/// Has cargo start programs through the runner, which starts their instrumented copies.
fn counted(
    session: &Session,
    store: &Store,
    built: &[Built],
    work: &Work<'_>,
    scratch: &Path,
    command: &mut Command,
) -> Result<()> {
    let mut in_place = vec![];
    // Programs are built for tests that start them. A program that is run goes through the runner itself.
    for program in built
        .iter()
        .filter(|built| built.kind == Kind::Program && work.command != "run")
    {
        if let Some(entry) = store.entry(&program.path)? {
            in_place.push((program.path.clone(), entry.instrument(store.relocations)?));
        }
    }
    let plan = Plan {
        store: store.clone(),
        runner: session.runner.clone(),
        in_place,
        environment: session.environment_of_user(),
        started: scratch.join("started"),
    };
    let path = scratch.join("plan.json");
    fs::write(&path, serde_json::to_vec(&plan)?).with_context(|| path.display().to_string())?;
    // Cargo cuts the variable into words, so the path must have no space: that of a temporary folder has none.
    let link = scratch.join(runner::NAME);
    if link.to_string_lossy().contains(char::is_whitespace) {
        bail!(
            "{}: cargo takes no runner with a space in its path; TMPDIR names another folder",
            link.display()
        );
    }
    let this = std::env::current_exe().context("the path of the running program")?;
    std::os::unix::fs::symlink(this, &link).with_context(|| link.display().to_string())?;
    command
        .env(session.runner_variable(), &link)
        .env(runner::PLAN, &path);
    Ok(())
}

/// The folder of the compiler's profiles.
fn compilers_folder(session: &Session) -> PathBuf {
    session
        .root
        .join("pgo")
        .join(&session.triple)
        .join(&session.profile)
}

/// Runs the workload for the compiler's profile, and merges. `None` if it was interrupted.
fn compilers_profile(session: &Session, work: &Work<'_>) -> Result<Option<Flavour>> {
    let profdata = session.compiler.profdata()?;
    let folder = compilers_folder(session);
    let raw = folder.join("raw");
    if work.running.fresh && folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    fs::create_dir_all(&raw).with_context(|| raw.display().to_string())?;
    let before = pgo::raw_profiles(&raw)?;
    let generate = Flavour::Generate(raw.clone());
    let built = build(session, &generate, work)?;
    say::step("Running", "for the compiler's profile");
    let pattern = raw.join(format!("{}-%p-%m.profraw", before.len()));
    let status = match &work.running.workload {
        Some(line) => {
            // SAFETY-free way to hand the variable on: the shell inherits what is exported in the line.
            let line = format!(
                "export LLVM_PROFILE_FILE={}; {line}",
                quoted(&pattern.to_string_lossy())
            );
            shell(session, &line, &only(&built)?.path)?
        }
        None => cargo_runs(session, &generate, work)
            .env("LLVM_PROFILE_FILE", &pattern)
            .status()
            .with_context(|| format!("cargo {} cannot be started", work.command))?,
    };
    match Outcome::of(status) {
        Outcome::Interrupted => {
            say::step("Interrupted", "nothing is made of it");
            return Ok(None);
        }
        Outcome::Failed(status) if !work.running.allow_failure => {
            for new in pgo::raw_profiles(&raw)?
                .iter()
                .filter(|file| !before.contains(file))
            {
                fs::remove_file(new).with_context(|| new.display().to_string())?;
            }
            bail!(
                "the workload {} with the program that the compiler instrumented",
                ending(status)
            );
        }
        _ => {}
    }
    let files = pgo::raw_profiles(&raw)?;
    if files.is_empty() {
        bail!(
            "the workload has written no profile of the compiler's into {}",
            raw.display()
        );
    }
    let merged = folder.join("merged.profdata");
    pgo::merge(&profdata, &files, &merged)?;
    // Cargo builds anew when flags change, not when a file does that they name. So the name changes with the content.
    let bytes = fs::read(&merged).with_context(|| merged.display().to_string())?;
    let named = folder.join(format!("{:032x}.profdata", xxh3_128(&bytes)));
    for old in compilers_profiles(&folder)? {
        fs::remove_file(&old).with_context(|| old.display().to_string())?;
    }
    fs::rename(&merged, &named).with_context(|| named.display().to_string())?;
    Ok(Some(Flavour::Use(named)))
}

fn compilers_profiles(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = vec![];
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.with_context(|| folder.display().to_string())?.path();
        if path.extension().is_some_and(|e| e == "profdata")
            && path.file_stem().is_some_and(|s| s != "merged")
        {
            files.push(path);
        }
    }
    Ok(files)
}

/// With `--pgo`, the profile of the compiler's that an earlier run has made.
pub fn known_flavour(session: &Session) -> Result<Flavour> {
    if !session.building.pgo {
        return Ok(Flavour::Plain);
    }
    let folder = compilers_folder(session);
    match compilers_profiles(&folder)?.pop() {
        Some(file) => Ok(Flavour::Use(file)),
        None => bail!(
            "{}: there is no profile of the compiler's yet: `cargo postlink run --pgo`, `test --pgo` or `bench --pgo` makes one",
            folder.display()
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn a_word_with_quotes_stays_one_word_for_the_shell() {
        for word in ["a 'b' $c", "", "plain", "back\\slash", "new\nline"] {
            let line = format!("printf %s {}", quoted(word));
            let output = Command::new("sh").args(["-c", &line]).output().unwrap();
            assert_eq!(output.stdout, word.as_bytes());
        }
    }

    #[test]
    fn a_signal_is_a_failure() {
        assert!(matches!(
            Outcome::of(ExitStatus::from_raw(11)),
            Outcome::Failed(_)
        ));
        assert!(matches!(
            Outcome::of(ExitStatus::from_raw(0)),
            Outcome::Well
        ));
    }
}
