//! From an input to an output that is in place only when it is complete and proved.
//!
//! The rewriter writes to a temporary file beside the target. The checker reads that file; functions that it cannot prove are kept
//! where they are and the file is written again, at most [`ROUNDS`] times. Only then is it renamed to its target,
//! so neither an error nor a kill leaves half a file or destroys an older one.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use postlink_rewrite::attach::Source;
use postlink_rewrite::coverage::{
    CoverageOptions, CoverageReport, instrument_coverage as instrument_coverage_to,
};
use postlink_rewrite::instrument::Counters;
use postlink_rewrite::{
    InstrumentOptions, InstrumentReport, OptimizeOptions, OptimizeReport, Phases,
};
use postlink_verify::{Check, Report};
use rustc_hash::FxHashSet;
use tempfile::TempPath;

use crate::input::Input;

/// How often a file is written at most until the checker is content.
const ROUNDS: usize = 4;

/// A name for the output until it is complete, in the target's directory, so that renaming works.
fn beside(target: &Path) -> Result<TempPath> {
    let directory = match target.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    if target.is_dir() {
        bail!("{}: is a directory: name a file", target.display());
    }
    let name = target
        .file_name()
        .with_context(|| format!("{}: names no file", target.display()))?;
    let mut prefix = std::ffi::OsString::from(".");
    prefix.push(name);
    prefix.push(".");
    let file = tempfile::Builder::new()
        .prefix(&prefix)
        .tempfile_in(directory)
        .with_context(|| {
            format!(
                "{}: cannot write to the directory {}",
                target.display(),
                directory.display()
            )
        })?;
    Ok(file.into_temp_path())
}

fn put_in_place(file: TempPath, target: &Path) -> Result<()> {
    file.persist(target)
        .map_err(|e| e.error)
        .with_context(|| target.display().to_string())
}

/// What instrumenting did, and what the checker says of it.
pub struct Instrumented {
    /// The rewriter's account.
    pub report: InstrumentReport,
    /// The certificate, if it was checked.
    pub certificate: Option<Report>,
    /// Functions that do not count because they could not be proved.
    pub reverted: Vec<String>,
}

/// Writes an instrumented program, proved if `prove` is true.
pub fn instrument(
    input: &Input,
    options: &InstrumentOptions,
    target: &Path,
    prove: bool,
    phases: &mut Phases,
) -> Result<Instrumented> {
    input.must_differ_from(target)?;
    let elf = input.elf()?;
    let file = beside(target)?;
    let mut options = options.clone();
    let mut reverted = vec![];
    for _ in 0..ROUNDS {
        let report = postlink_rewrite::instrument(&elf, &options, &file, input.mode, phases)
            .with_context(|| input.path.display().to_string())?;
        // Without a function that counts there is nothing that could be different.
        let certificate = match prove && report.instrumented > 0 {
            true => Some(prove_written(input, &elf, &file, phases)?),
            false => None,
        };
        let Some(unproved) = certificate.as_ref().filter(|c| !c.is_proved()) else {
            put_in_place(file, target)?;
            return Ok(Instrumented {
                report,
                certificate,
                reverted,
            });
        };
        let of_file = &unproved.file_failures;
        let counting = |f: &&postlink_verify::Failure| f.check == Check::Counting;
        if let Some(why) = of_file.first().filter(counting)
            && report.counting == Counters::PerThread
            && options.not_per_thread.is_none()
        {
            // Others ask less of the program.
            options.not_per_thread = Some(why.reason.clone());
            continue;
        }
        put_back(unproved, target, &mut options.keep, &mut reverted)?;
    }
    bail!("{}", given_up(target, &reverted))
}

/// Has the checker read what was just written.
fn prove_written(
    input: &Input,
    elf: &postlink_image::elf::Elf<'_>,
    file: &Path,
    phases: &mut Phases,
) -> Result<Report> {
    phases.begin("verify");
    elf.release();
    release_memory();
    let certificate = check(input, file, &postlink_verify::Options::default())?;
    phases.end();
    Ok(certificate)
}

/// Notes the functions that must stay. An error if that would not help.
fn put_back(
    certificate: &Report,
    target: &Path,
    keep: &mut FxHashSet<u64>,
    reverted: &mut Vec<String>,
) -> Result<()> {
    let before = keep.len();
    for (function, _) in certificate.failures() {
        if keep.insert(function.old) {
            reverted.push(function.name.clone());
        }
    }
    if keep.len() > before {
        return Ok(());
    }
    // Not a function's fault: nothing can be put back.
    let first = certificate
        .file_failures
        .first()
        .map(ToString::to_string)
        .unwrap_or_default();
    bail!(
        "{}: not written, since it could not be proved: {first} ({} differences in all; this is a fault of postlink, please report it)",
        target.display(),
        certificate.file_failure_count
    );
}

fn given_up(target: &Path, reverted: &[String]) -> String {
    format!(
        "{}: not written: after {ROUNDS} rounds and {} functions put back it still could not be proved (this is a fault of postlink, please report it)",
        target.display(),
        reverted.len()
    )
}

/// What instrumenting for machine profiles did, and what the checker says of it.
pub struct Covered {
    /// The rewriter's account.
    pub report: CoverageReport,
    /// The certificate, if it was checked.
    pub certificate: Option<Report>,
    /// Functions that do not count because they could not be proved.
    pub reverted: Vec<String>,
}

/// Writes a program that makes machine profiles, and its map; proved if `prove` is true.
///
/// Where code is to lie in old bodies it is checked in any case: bodies that something may still come to are left alone in the next round.
pub fn instrument_coverage(
    input: &Input,
    options: &CoverageOptions,
    target: &Path,
    map: &Path,
    prove: bool,
    phases: &mut Phases,
) -> Result<Covered> {
    input.must_differ_from(target)?;
    input.must_differ_from(map)?;
    let elf = input.elf()?;
    let file = beside(target)?;
    let mut options = options.clone();
    let mut reverted = vec![];
    for round in 0..ROUNDS {
        let report = instrument_coverage_to(&elf, &options, &file, input.mode, phases)
            .with_context(|| input.path.display().to_string())?;
        let certificate = match (prove || options.reuse) && report.instrumented > 0 {
            true => Some(prove_written(input, &elf, &file, phases)?),
            false => None,
        };
        let unproved = certificate.as_ref().filter(|c| !c.is_proved());
        let Some(unproved) = unproved else {
            // The map first: a program without its map is of no use.
            postlink_profile::output::atomically(map, |out| out.write_all(&report.map))?;
            put_in_place(file, target)?;
            return Ok(Covered {
                report,
                certificate,
                reverted,
            });
        };
        let sealed = options.sealed.len();
        if options.reuse {
            let failed = unproved.failures().map(|(function, _)| function.old);
            options.sealed.extend(failed);
        }
        if options.sealed.len() > sealed && round + 2 < ROUNDS {
            continue;
        }
        // It was not for what lies where, or there is no end to it.
        options.reuse = false;
        if prove {
            put_back(unproved, target, &mut options.keep, &mut reverted)?;
        }
    }
    bail!("{}", given_up(target, &reverted))
}

/// What optimising did, and what the checker says of it.
pub struct Optimized {
    /// The rewriter's account.
    pub report: OptimizeReport,
    /// The certificate, unless checking was switched off.
    pub certificate: Option<Report>,
    /// Functions that were put back because they could not be proved.
    pub reverted: Vec<String>,
}

/// Writes an optimised program, proved unless `prove` is false.
pub fn optimize<'p>(
    input: &Input,
    profile: impl Into<Source<'p>>,
    options: &OptimizeOptions,
    target: &Path,
    prove: bool,
    phases: &mut Phases,
) -> Result<Optimized> {
    input.must_differ_from(target)?;
    let elf = input.elf()?;
    let file = beside(target)?;
    let mut options = options.clone();
    let profile: Source<'_> = profile.into();
    let mut reverted = vec![];
    for _ in 0..ROUNDS {
        let report = postlink_rewrite::optimize(&elf, profile, &options, &file, input.mode, phases)
            .with_context(|| input.path.display().to_string())?;
        let certificate = match prove {
            true => Some(prove_written(input, &elf, &file, phases)?),
            false => None,
        };
        let Some(unproved) = certificate.as_ref().filter(|c| !c.is_proved()) else {
            put_in_place(file, target)?;
            return Ok(Optimized {
                report,
                certificate,
                reverted,
            });
        };
        put_back(unproved, target, &mut options.keep, &mut reverted)?;
    }
    bail!("{}", given_up(target, &reverted))
}

/// Overwrites what nothing should run any more with breakpoints (for tests, see [`postlink_rewrite::stress`]).
pub fn poison(output: &Path, bodies: &[postlink_rewrite::stress::OldBody]) -> Result<()> {
    let written = Input::open(output)?;
    let elf = written.elf()?;
    let breakpoint = if elf.machine == 62 { 0xcc } else { 0 };
    let mut bytes = written.bytes().to_vec();
    for (start, len) in bodies {
        let from = elf
            .offset_of(*start)
            .and_then(|at| usize::try_from(at).ok());
        let body = from.and_then(|at| bytes.get_mut(at..at + usize::try_from(*len).ok()?));
        if let Some(body) = body {
            body.fill(breakpoint);
        }
    }
    drop(written);
    std::fs::write(output, bytes).with_context(|| output.display().to_string())
}

/// Gives memory that was freed back to the system, where the allocator does not do so by itself: checking needs little, and what
/// rewriting needed would stay beside it.
fn release_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes no pointers and may be called at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Has an output checked against its input.
pub fn check(input: &Input, output: &Path, options: &postlink_verify::Options) -> Result<Report> {
    let written = Input::open(output)?;
    postlink_verify::verify(input.bytes(), written.bytes(), options)
        .with_context(|| format!("{} against {}", output.display(), input.path.display()))
}

/// `dir/name` as a path that a shell-less exec finds: never a bare word.
pub fn runnable(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).with_context(|| path.display().to_string())
}
