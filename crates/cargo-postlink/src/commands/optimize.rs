//! `cargo postlink optimize`: merged, optimised, proved, stripped if the user's profile strips, and where it is.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use super::count::{self, Work, quoted};
use super::{RELEASE, selected};
use crate::cargo;
use crate::options::Optimize;
use crate::say;
use crate::session::Session;
use crate::store::{Entry, Known, Store};
use crate::strip;
use crate::tool::{self, done};

/// Does it, for all programs of which something is known.
pub fn run(options: &Optimize) -> Result<ExitCode> {
    let session = Session::open(&options.building, RELEASE)?;
    let has_workload = !options.arguments.is_empty() || options.running.workload.is_some();
    if options.measure && !has_workload {
        bail!("--measure needs a workload: arguments after --, or --workload");
    }
    if has_workload {
        let work = Work {
            command: "run",
            selection: options.programs.arguments(),
            filter: None,
            arguments: &options.arguments,
            running: &options.running,
        };
        let code = count::run(&session, &work)?;
        if code != ExitCode::SUCCESS {
            return Ok(code);
        }
    }
    let _lock = session.lock()?;
    let flavour = count::known_flavour(&session)?;
    let store = session.store(&flavour);
    store.settle(false)?;
    let selection = selected(options.programs.arguments(), &options.others);
    let built = cargo::build(&session, &flavour, "build", &selection)?;
    if built.is_empty() {
        bail!("{}", cargo::NOTHING);
    }
    let mut results = vec![];
    for built in &built {
        let entry = store.entry(&built.path)?;
        let entry =
            entry.with_context(|| format!("{}: not in cargo's folder", built.path.display()))?;
        if let Some(profile) = profile(&entry, &store)? {
            optimize(&session, &store, &entry, &profile, options)?;
            results.push((entry, profile));
        } else {
            say::warn(format_args!(
                "{}: was never run instrumented, and is left out",
                built.name
            ));
        }
    }
    if results.is_empty() {
        bail!(
            "nothing is known of where these programs go: `cargo postlink run`, `test` or `bench` first, or arguments for the program after --"
        );
    }
    after(&session, &store, &results, options)
}

/// One profile of all that was counted; `None` if nothing was.
fn profile(entry: &Entry, store: &Store) -> Result<Option<PathBuf>> {
    let (files, older) = match entry.known()? {
        Known::Nothing => return Ok(None),
        Known::Exact(files) => (files, None),
        Known::Older(files, program) => (files, Some(program)),
    };
    let merged = entry.beside_counts("merged.plprof");
    if let Some(folder) = merged.parent() {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    let mut command = tool::postlink("merge");
    command.arg("--quiet").args(&files).arg("-o").arg(&merged);
    done(&mut command, "postlink merge")?;
    let Some(program) = older else {
        return Ok(Some(merged));
    };
    say::warn(format_args!(
        "{} was rebuilt since it was profiled (other sources, features or flags): functions and blocks are matched by their code, and new code is taken as never run",
        entry.label.display()
    ));
    let blocks = entry.beside_counts("older.yaml");
    let mut command = tool::postlink("convert");
    command
        .arg("--quiet")
        .arg(&merged)
        .arg("--binary")
        .arg(&program)
        .arg("-o")
        .arg(&blocks)
        .args(store.relocations.options());
    done(&mut command, "postlink convert")?;
    Ok(Some(blocks))
}

fn optimize(
    session: &Session,
    store: &Store,
    entry: &Entry,
    profile: &Path,
    options: &Optimize,
) -> Result<()> {
    if let Some(folder) = entry.result.parent() {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    say::step("Optimizing", entry.label.display());
    let mut command = tool::postlink("optimize");
    command
        .arg(&entry.program)
        .arg("--profile")
        .arg(profile)
        .arg("-o")
        .arg(&entry.result)
        .args(store.relocations.options())
        .args(&options.option);
    done(&mut command, "postlink optimize")?;
    if session.strips {
        strip_result(session, entry)?;
    }
    say::step("Optimized", entry.result.display());
    Ok(())
}

/// Strips the result as the user's profile would have, and has what is left proved. If that is not possible the result
/// stays as it is, and it is said.
fn strip_result(session: &Session, entry: &Entry) -> Result<()> {
    let found = strip::finder(
        &session.compiler.sysroot,
        &session.compiler.host,
        &session.triple,
    );
    let Some(with) = found else {
        say::warn(format_args!(
            "the profile {} strips symbols, and no program is there that strips the result: it has its symbols",
            session.profile
        ));
        return Ok(());
    };
    let mut name = entry.result.clone().into_os_string();
    name.push(".stripped");
    let stripped = PathBuf::from(name);
    let proved = strip::strip(&with, &entry.result, &stripped).and_then(|()| {
        let mut command = tool::postlink("verify");
        tool::output(command.arg("--quiet").arg(&entry.program).arg(&stripped))
    });
    match proved {
        Ok(_) => {
            fs::rename(&stripped, &entry.result).with_context(|| stripped.display().to_string())?;
            say::step(
                "Stripped",
                format_args!("by {}, and proved again", with.0.display()),
            );
        }
        Err(error) => {
            let _ = fs::remove_file(&stripped);
            say::warn(format_args!(
                "the result has its symbols: stripped it is not proved: {error:#}"
            ));
        }
    }
    Ok(())
}

/// What is wanted beside results: a report, a comparison. Both are of one program.
fn after(
    session: &Session,
    store: &Store,
    results: &[(Entry, PathBuf)],
    options: &Optimize,
) -> Result<ExitCode> {
    if options.report.is_none() && !options.measure {
        return Ok(ExitCode::SUCCESS);
    }
    let [(entry, profile)] = results else {
        bail!("--report and --measure are for one program: choose with --bin or --example");
    };
    if let Some(report) = &options.report {
        let mut command = tool::postlink("report");
        command
            .arg(&entry.program)
            .arg("--profile")
            .arg(profile)
            .arg("--optimized")
            .arg(&entry.result)
            .arg("-o")
            .arg(report)
            .args(store.relocations.options());
        done(&mut command, "postlink report")?;
    }
    if options.measure {
        let mut command = tool::postlink("bench");
        command.arg(&entry.program).arg(&entry.result);
        if !session.runner.is_empty() {
            let words: Vec<String> = session.runner.iter().map(|word| quoted(word)).collect();
            command.args(["--runner", &words.join(" ")]);
        }
        match &options.running.workload {
            Some(line) => command.arg("--workload").arg(format!("workload={line}")),
            None => command.args(["--", "{}"]).args(&options.arguments),
        };
        done(&mut command, "postlink bench")?;
    }
    Ok(ExitCode::SUCCESS)
}
