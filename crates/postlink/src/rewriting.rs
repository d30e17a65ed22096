//! From an input to an output that is in place only when it is complete and proved.
//!
//! The rewriter writes to a temporary file beside the target. The checker reads that file; functions that it
//! cannot prove are taken back, what depends on them is done again ([`Rewriting`]) and the file is changed
//! where it differs, at most [`ROUNDS`] times in all. Only then is it renamed to its target, so neither an error nor a
//! kill leaves half a file or destroys an older one.

use std::fs;
use std::io::Write;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use postlink_elf::elf::{Elf, Symbol, SymbolTable};
use postlink_elf::raw::{STT_FUNC, STT_GNU_IFUNC};
use postlink_elf::write::begin_to_write_out;
use postlink_rewrite::attach::Source;
use postlink_rewrite::coverage::{CoverageOptions, CoverageReport, prepare_coverage};
use postlink_rewrite::{
    Answer, DebugInfo, Fitted, InstrumentOptions, InstrumentReport, Onto, OptimizeOptions,
    OptimizeReport, OutputFile, Phases, Refusal, Rewriting, SplitData, fit, prepare_instrumented,
};
use postlink_verify::{
    Check, Failure, Files, Keep, Remembered, Report, SplitUnits, Verdict, verify_files_again,
    verify_mapped,
};
use tempfile::TempPath;

use crate::input::{Input, Parsed};
use crate::installed;
use crate::refused::{self, Refused};
use crate::split_files::{self, Stale};
use crate::ui::Ui;

/// How often a file is written at most until the checker is content.
const ROUNDS: usize = 4;

/// How an output is checked.
#[derive(Clone, Copy, Debug)]
pub struct Proof<'a> {
    /// Whether the user wants it.
    pub wanted: bool,
    /// For tests: a function that is refused while it moves, by name.
    pub refuse: Option<&'a str>,
}

impl Proof<'_> {
    /// As it should be.
    pub const YES: Proof<'static> = Proof {
        wanted: true,
        refuse: None,
    };
}

/// What was done, and what the checker says of it.
pub struct Done<R> {
    /// The rewriter's account.
    pub report: R,
    /// The certificate, if it was checked.
    pub certificate: Option<Report>,
    /// Functions that stay as they were because they could not be proved.
    pub reverted: Vec<Refused>,
    /// How often it was written until the checker was content.
    pub rounds: usize,
    /// What the system around the file will say of the output: checksums, rights.
    pub cautions: Vec<String>,
    /// The package of split debug information that belongs beside the output, until it is in place.
    package: Option<TempPath>,
}

impl<R> Done<R> {
    /// Warns of what the system around the file will say.
    pub fn warn(&self, ui: &Ui) {
        for caution in &self.cautions {
            ui.warn(caution);
        }
    }
}

/// What instrumenting did.
pub type Instrumented = Done<InstrumentReport>;
/// What instrumenting for machine profiles did.
pub type Covered = Done<CoverageReport>;
/// What optimising did.
pub type Optimized = Done<OptimizeReport>;

/// A name for the output until it is complete, in the target's directory, so that renaming works.
pub fn beside(target: &Path) -> Result<TempPath> {
    beside_for(target, OWNER_ONLY)
}

/// Permissions of a file that gets others when it is complete.
const OWNER_ONLY: u32 = 0o600;
/// Permissions of a file that is for all to read, less the umask.
const FOR_ALL: u32 = 0o666;

/// The same for a file that is made with these permissions.
fn beside_for(target: &Path, mode: u32) -> Result<TempPath> {
    if target.is_dir() {
        bail!("{}: is a directory: name a file", target.display());
    }
    if target.file_name().is_none() {
        bail!("{}: names no file", target.display());
    }
    let file = postlink_profile::temporary_for(target, mode).with_context(|| {
        let directory = match target.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        format!(
            "{}: cannot write to the directory {}",
            target.display(),
            directory.display()
        )
    })?;
    Ok(file.into_temp_path())
}

/// Renames a complete file to its target, or writes it into a device or pipe.
pub fn put_in_place(file: TempPath, target: &Path) -> Result<()> {
    postlink_profile::put_in_place(file, target).with_context(|| target.display().to_string())
}

/// Writes an instrumented program, proved if that is wanted.
pub fn instrument(
    input: &Parsed<'_>,
    options: &InstrumentOptions,
    target: &Path,
    proof: Proof<'_>,
    phases: &mut Phases,
) -> Result<Instrumented> {
    let named = || input.path.display().to_string();
    // As in [`optimize_fitted`].
    let job = prepare_instrumented(&input.elf, options, phases).with_context(named)?;
    let mut job = ManuallyDrop::new(job);
    let (file, done) = until_proved((input, &[]), &mut **job, target, proof, phases)?;
    put_in_place(file, target)?;
    Ok(done)
}

/// Writes a program that makes machine profiles, and its map; proved if that is wanted.
pub fn instrument_coverage(
    input: &Parsed<'_>,
    options: &CoverageOptions,
    target: &Path,
    map: &Path,
    proof: Proof<'_>,
    phases: &mut Phases,
) -> Result<Covered> {
    input.must_differ_from(map)?;
    let named = || input.path.display().to_string();
    let mut job = prepare_coverage(&input.elf, options, phases).with_context(named)?;
    let (file, done) = until_proved((input, &[]), &mut *job, target, proof, phases)?;
    // The map first: a program without its map is of no use.
    postlink_profile::write_atomically(map, |out| out.write_all(&done.report.map))?;
    put_in_place(file, target)?;
    Ok(done)
}

/// Writes an optimised program, proved if that is wanted.
pub fn optimize<'p>(
    input: &Parsed<'_>,
    profile: impl Into<Source<'p>>,
    options: &OptimizeOptions,
    target: &Path,
    proof: Proof<'_>,
    phases: &mut Phases,
) -> Result<Optimized> {
    optimize_and_save(input, profile, options, target, proof, phases, |_| Ok(()))
}

/// The same; and the counts that the program is laid out for go to `save` before.
pub fn optimize_and_save<'p>(
    input: &Parsed<'_>,
    profile: impl Into<Source<'p>>,
    options: &OptimizeOptions,
    target: &Path,
    proof: Proof<'_>,
    phases: &mut Phases,
    save: impl FnOnce(&dyn Fitted<'_>) -> Result<()>,
) -> Result<Optimized> {
    let fit = fit_and_save(input, profile, options, phases, save)?;
    optimize_fitted(input, fit, target, proof, phases)
}

/// A program with the counts that it will be laid out for. The profile is needed no more.
pub struct Fit<'d> {
    fitted: Box<dyn Fitted<'d> + 'd>,
    options: OptimizeOptions,
}

/// Finds a program's counts in a profile, which go to `save` as well.
pub fn fit_and_save<'d, 'p>(
    input: &'d Parsed<'_>,
    profile: impl Into<Source<'p>>,
    options: &OptimizeOptions,
    phases: &mut Phases,
    save: impl FnOnce(&dyn Fitted<'_>) -> Result<()>,
) -> Result<Fit<'d>> {
    let named = || input.path.display().to_string();
    let mut options = options.clone();
    if options.debug_info == DebugInfo::Update {
        options.split_files = split_files::find(&input.path, &input.elf);
    }
    let fitted = fit(&input.elf, profile, &options, phases).with_context(named)?;
    save(&*fitted)?;
    Ok(Fit { fitted, options })
}

/// Writes a program laid out for its counts, proved if that is wanted.
pub fn optimize_fitted(
    input: &Parsed<'_>,
    Fit { fitted, options }: Fit<'_>,
    target: &Path,
    proof: Proof<'_>,
    phases: &mut Phases,
) -> Result<Optimized> {
    let named = || input.path.display().to_string();
    // The process has done its work then, or nearly: freeing what tens of thousands of functions consist of, piece by
    // piece, takes longer than what is left to do.
    let mut job = ManuallyDrop::new(fitted.lay_out(phases).with_context(named)?);
    let split = &options.split_files[..];
    let (file, mut done) = until_proved((input, split), &mut **job, target, proof, phases)?;
    // The package first: a debugger that sees the program finds it.
    let Some(package) = done.package.take() else {
        let stale = split_files::stale(target, &file);
        put_in_place(file, target)?;
        done.cautions.extend(stale.and_then(without_stale));
        return Ok(done);
    };
    let path = split_files::package_of(target);
    input.must_differ_from(&path)?;
    put_in_place(package, &path)?;
    put_in_place(file, target)?;
    Ok(done)
}

/// Removes the package of the output that was replaced. Says so if a package stays that is not of the output.
fn without_stale(stale: Stale) -> Option<String> {
    let path = stale.path.display();
    if !stale.is_ours {
        return Some(format!(
            "{path} is not of this output, but debuggers take what is called so for its debug information: remove or rename it"
        ));
    }
    let removed = fs::remove_file(&stale.path);
    let failed = removed.err()?;
    Some(format!(
        "{path} is of the output that was there before and cannot be removed: {failed}"
    ))
}

/// Copies the input, complete or not at all, with its permissions.
pub fn copy(input: &Input, target: &Path) -> Result<()> {
    input.must_differ_from(target)?;
    let file = beside(target)?;
    std::fs::copy(&input.path, &file)
        .with_context(|| format!("{} to {}", input.path.display(), file.display()))?;
    put_in_place(file, target)
}

/// Writes a file and has it checked until the checker is content. With the input come its files of split units.
fn until_proved<R>(
    (input, split): (&Parsed<'_>, &[SplitData]),
    job: &mut dyn Rewriting<Report = R>,
    target: &Path,
    proof: Proof<'_>,
    phases: &mut Phases,
) -> Result<(TempPath, Done<R>)> {
    input.must_differ_from(target)?;
    if let Some(name) = proof.refuse {
        must_have(input, name)?;
    }
    let file = beside(target)?;
    let package = match split {
        [] => None,
        _ => Some(beside_for(&split_files::package_of(target), FOR_ALL)?),
    };
    let mut reverted = vec![];
    let mut last = None;
    // What a check found out may hold for the next. It needs the output no more, which is written over then.
    let mut remembered: Option<Remembered<'_>> = None;
    for round in 1..=ROUNDS {
        let onto = match round {
            1 => Onto::Empty,
            _ => Onto::Before,
        };
        let to = OutputFile {
            path: &file,
            mode: input.mode & 0o777,
            onto,
            package: package.as_deref(),
        };
        let report = job
            .write(to, phases)
            .with_context(|| input.path.display().to_string())?;
        let has_package = job.has_package();
        let certificate = if job.is_checked(proof.wanted) {
            if target.exists() {
                begin_to_write_out(&file);
            }
            let output = Input::open(&file)?;
            let before = remembered.take();
            let written_package = package.as_deref().filter(|_| has_package);
            let mapped = written_package.and_then(split_files::map);
            let written = (&output, (split, mapped.as_ref()));
            let (certificate, kept) = prove_written(input, written, before, proof, phases)?;
            remembered = Some(kept);
            Some(certificate)
        } else {
            None
        };
        let Some(unproved) = certificate.as_ref().filter(|c| !c.is_proved()) else {
            let mut cautions = installed::checks_of(input);
            cautions.extend(installed::carry_rights(input, &file)?);
            let done = Done {
                report,
                certificate,
                reverted,
                rounds: round,
                cautions,
                package: package.filter(|_| has_package),
            };
            return Ok((file, done));
        };
        match job.answer(&refusal(unproved, &input.elf, proof, round)) {
            Answer::TakenBack(functions) => {
                let taken_back = unproved
                    .failures()
                    .filter(|(function, _)| functions.contains(&function.old));
                reverted.extend(taken_back.map(|(f, failure)| Refused::new(f, failure)));
            }
            Answer::Changed => {}
            Answer::Nothing => {
                let why = refused::whole_file(unproved, &input.elf);
                bail!("{}: {why}", target.display())
            }
        }
        last = certificate;
    }
    let why = refused::after_rounds(ROUNDS, &reverted, last.as_ref());
    bail!("{}: {why}", target.display())
}

/// Has the checker read what was just written, with what it found out about the output `before`.
fn prove_written<'a>(
    input: &Parsed<'a>,
    (output, (split, package)): (&Input, (&[SplitData], Option<&SplitData>)),
    before: Option<Remembered<'a>>,
    proof: Proof<'_>,
    phases: &mut Phases,
) -> Result<(Report, Remembered<'a>)> {
    phases.begin("verify");
    input.release();
    // For the first output all functions were analysed; a further one needs little.
    if before.is_none() {
        postlink_elf::memory::give_back_freed();
    }
    let options = postlink_verify::Options::default();
    let keep = match proof.refuse {
        Some(_) if before.is_none() => Keep::Always,
        _ => Keep::IfRefused,
    };
    let split_contents: Vec<&[u8]> = split.iter().map(SplitData::contents).collect();
    let files = Files {
        input: input.elf.data,
        input_code: input.checked_code(),
        output: output.bytes(),
        split: SplitUnits {
            old: &split_contents,
            new: package.map(SplitData::contents),
        },
        release: &|| {
            input.release();
            output.release();
            split.iter().chain(package).for_each(SplitData::release);
        },
        freed: &postlink_elf::memory::give_back_freed,
    };
    let checked = verify_files_again(files, before, keep, &options);
    let (mut certificate, kept) = checked.with_context(|| against(input, &output.path))?;
    if let Some(name) = proof.refuse {
        refuse(&mut certificate, name);
    }
    phases.end();
    Ok((certificate, kept))
}

/// For tests: a function that is to be refused must be there, under the name that the checker has for it.
fn must_have(input: &Parsed<'_>, name: &str) -> Result<()> {
    let tables = [SymbolTable::Static, SymbolTable::Dynamic];
    let mut symbols = tables.iter().flat_map(|t| input.elf.symbols(*t).iter());
    let is_it = |s: &Symbol<'_>| {
        let function = matches!(s.kind, STT_FUNC | STT_GNU_IFUNC);
        function && s.section != 0 && s.name == name.as_bytes()
    };
    if !symbols.any(|s| is_it(&s)) {
        bail!(
            "{}: --refuse {name}: there is no function of that name",
            input.path.display()
        );
    }
    Ok(())
}

/// For tests: has a function that moved refused.
fn refuse(certificate: &mut Report, name: &str) {
    let mut refused = 0;
    for function in certificate.functions.iter_mut().filter(|f| f.name == name) {
        if function.verdict == Verdict::Proved {
            function.verdict = Verdict::Failed(Failure {
                check: Check::Code,
                reason: "refused for a test".to_owned(),
                old: Some(function.old),
                new: Some(function.new),
                old_value: String::new(),
                new_value: String::new(),
            });
            refused += 1;
        }
    }
    certificate.proved -= refused;
    certificate.failed += refused;
}

/// Writes a certificate to the file that was asked for, if there was one.
pub fn save_certificate(path: Option<&Path>, certificate: Option<&Report>) -> Result<()> {
    let Some((path, certificate)) = path.zip(certificate) else {
        return Ok(());
    };
    fs::write(path, certificate.to_json() + "\n").with_context(|| path.display().to_string())
}

/// The part of a certificate that the rewriter acts on.
fn refusal(certificate: &Report, elf: &Elf<'_>, proof: Proof<'_>, round: usize) -> Refusal {
    let first = certificate.file_failures.first();
    let counting = first.filter(|f| f.check == Check::Counting);
    Refusal {
        functions: certificate.failures().map(|(f, _)| f.old).collect(),
        counting: counting.map(|failure| failure.reason.clone()),
        debug_info: debug_info(certificate, elf),
        binding: proof.wanted,
        last: round + 1 >= ROUNDS,
    }
}

/// What is wrong with debug information, if nothing else is: a program that is right is not refused for what
/// is said of it.
fn debug_info(certificate: &Report, elf: &Elf<'_>) -> Option<String> {
    let of_debug_info = |f: &Failure| f.check == Check::DebugInfo;
    let alone = certificate.failed == 0 && certificate.file_failures.iter().all(of_debug_info);
    alone
        .then(|| refused::debug_information(certificate, elf))
        .flatten()
}

/// Overwrites what nothing should run any more with breakpoints (for tests, see [`postlink_rewrite::stress`]).
pub fn poison(output: &Path, bodies: &[postlink_rewrite::stress::OldBody]) -> Result<()> {
    let written = Input::open(output)?;
    let elf = written.elf()?;
    let breakpoint = if elf.machine == postlink_elf::raw::EM_X86_64 {
        0xcc
    } else {
        0
    };
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

/// Has an output checked against its input.
pub fn check(input: &Input, output: &Path, options: &postlink_verify::Options) -> Result<Report> {
    let written = Input::open(output)?;
    // A package is there if one was made; the rest is the checker's.
    let package = split_files::package(output);
    let files = match &package {
        Some(_) => split_files::find(&input.path, &input.elf()?),
        None => Vec::new(),
    };
    let old: Vec<&[u8]> = files.iter().map(|file| file.contents()).collect();
    let compared = Files {
        input: input.bytes(),
        input_code: input.checked_code(),
        output: written.bytes(),
        split: SplitUnits {
            old: &old,
            new: package.as_ref().map(|file| file.contents()),
        },
        release: &|| {
            input.release();
            written.release();
            files.iter().chain(&package).for_each(SplitData::release);
        },
        freed: &postlink_elf::memory::give_back_freed,
    };
    verify_mapped(compared, options).with_context(|| against(input, output))
}

/// Names two files that are compared.
fn against(input: &Input, output: &Path) -> String {
    format!("{} against {}", output.display(), input.path.display())
}

/// `dir/name` as a path that a shell-less exec finds: never a bare word.
pub fn runnable(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).with_context(|| path.display().to_string())
}
