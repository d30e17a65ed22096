//! Runs a compiler so that what it makes is instrumented: compiler, inserter, assembler, linker.
//!
//! ```text
//!            compiler -S          instrument             compiler -c               compiler
//!  main.c ──────────────► main.s ───────────► main.s ──────────────► main.o ──┬──────────────► program ──► sealed
//!                                                          other objects, run-time ──┘
//! ```
//!
//! The command line stays as it is wherever possible: each source is compiled with all of the options, the
//! linker gets all inputs in their order. What has no code in it (`-E`, `-M`, `--version`, precompiled
//! headers, …) and assembly is the compiler's alone. Its messages and its exit code are passed on.
//!
//! # At link time
//!
//! The run-time goes last. GNU ld, gold and mold take the map's distances as they are; lld takes them too,
//! but warns about each, since the section has no address: these warnings are filtered out.
//!
//! # With a profile
//!
//! With `-fmachine-profile-use=FILE` nothing is counted: between compiler and assembler, functions get
//! sections by what the profile says ([`placement`](crate::placement)), and the linker an order file if it is
//! one that takes it.
//!
//! # What is refused
//!
//! Link-time optimisation: there the compiler's output is no machine code, and what the linker makes of it
//! never passes through here.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use crate::aside::{self, Aside};
use crate::command::{self, CommandLine, FlagError, Flags, Source, Stage};
use postlink_mip::mip;
use tempfile::TempPath;

use crate::insert::{self, Instrumented};
use crate::options::{Mode, Options};
use crate::placement::Placement;
use crate::report::Report;
use crate::runtime;
use crate::seal::{self, Sealed};
use crate::target::{Format, Target};

/// What can go wrong besides what the compiler itself says.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A flag of ours.
    #[error("{0}")]
    Flag(#[from] FlagError),
    /// A program cannot be run.
    #[error("{program}: {cause}")]
    Run {
        /// Its name.
        program: String,
        /// What the system says.
        cause: io::Error,
    },
    /// A file cannot be read or written.
    #[error("{path}: {cause}")]
    File {
        /// The file.
        path: String,
        /// What the system says.
        cause: io::Error,
    },
    /// Link-time optimisation.
    #[error(
        "-flto: with link-time optimisation there is no assembly before linking; compile with -fno-lto, or link as usual and instrument the linked program with `postlink instrument`"
    )]
    Lto,
    /// The run-time.
    #[error("run-time of machine profiles: {0}")]
    Runtime(io::Error),
    /// The profile to use.
    #[error("{0}")]
    Profile(#[from] postlink_mip::Error),
    /// Sealing.
    #[error("{0}")]
    Seal(#[from] seal::Error),
}

/// How a run ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The compiler's exit code.
    pub code: u8,
    /// What was instrumented, over all sources.
    pub report: Report,
    /// Functions that were placed by a profile in which they ran…
    pub warm: usize,
    /// …and in which they did not.
    pub cold: usize,
    /// What a person should know.
    pub notes: Vec<String>,
}

/// Runs `compiler` with its arguments, instrumenting.
pub fn run(compiler: &OsStr, arguments: &[OsString], flags: Flags) -> Result<Outcome, Error> {
    let line = CommandLine::parse(arguments, flags)?;
    let options = line.flags.options(line.output.as_deref())?;
    let mut driver = Driver {
        compiler,
        line: &line,
        options,
        target: None,
        is_clang: is_clang(compiler),
        placement: None,
        outcome: Outcome::default(),
    };
    if !(line.flags.generate || line.flags.profile.is_some()) || line.stage == Stage::Other {
        return driver.alone();
    }
    if line.lto {
        return Err(Error::Lto);
    }
    match driver.find_target()? {
        Some(target) => driver.target = Some(target),
        None => return driver.alone(),
    }
    let is_mach_o = driver
        .target
        .is_some_and(|target| target.format == Format::MachO);
    if is_mach_o && driver.options.buffer > 0 && line.flags.profile.is_none() {
        return Err(FlagError::Together(
            "-fmachine-profile-runtime-buffer: callers are sampled in ELF programs only, and this is Mach-O",
        )
        .into());
    }
    if let Some(path) = &line.flags.profile {
        let placement = Placement::of(&mip::open(path)?);
        if placement.is_empty() {
            let note = "no function ran in this profile: nothing is placed by it";
            driver
                .outcome
                .notes
                .push(format!("{}: {note}", path.display()));
            return driver.alone();
        }
        driver.placement = Some(placement);
    }
    driver.build()?;
    Ok(driver.outcome)
}

/// Whether a compiler is clang, by its name: they differ in what they warn about.
fn is_clang(compiler: &OsStr) -> bool {
    let name = Path::new(compiler)
        .file_name()
        .unwrap_or(compiler)
        .to_string_lossy()
        .into_owned();
    if name.contains("clang") {
        return true;
    }
    if name.contains("gcc") || name.contains("g++") {
        return false;
    }
    // cc, c++: it says so itself.
    Command::new(compiler)
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .is_ok_and(|out| String::from_utf8_lossy(&out.stdout).contains("clang"))
}

fn code(status: ExitStatus) -> u8 {
    match status.code() {
        Some(code) => u8::try_from(code & 0xFF).unwrap_or(1),
        // As shells do.
        None => status
            .signal()
            .and_then(|signal| u8::try_from(128 + signal).ok())
            .unwrap_or(1),
    }
}

struct Driver<'a> {
    compiler: &'a OsStr,
    line: &'a CommandLine,
    options: Options,
    target: Option<Target>,
    is_clang: bool,
    /// With a profile to use, nothing is instrumented.
    placement: Option<Placement>,
    outcome: Outcome,
}

impl Driver<'_> {
    fn command(&self, arguments: impl IntoIterator<Item = OsString>) -> Command {
        let mut command = Command::new(self.compiler);
        command.args(arguments);
        command
    }

    fn status(&self, mut command: Command) -> Result<u8, Error> {
        let status = command.status().map_err(|cause| self.cannot_run(cause))?;
        Ok(code(status))
    }

    fn cannot_run(&self, cause: io::Error) -> Error {
        Error::Run {
            program: self.compiler.to_string_lossy().into_owned(),
            cause,
        }
    }

    /// The compiler does it alone, without our flags.
    fn alone(mut self) -> Result<Outcome, Error> {
        let scratch = tempfile::tempdir().map_err(file_error(Path::new("temporary directory")))?;
        let arguments = self.shortened(self.line.arguments.clone(), scratch.path())?;
        self.outcome.code = self.status(self.command(arguments))?;
        Ok(self.outcome)
    }

    /// What the compiler makes code for; `None` if it cannot be instrumented.
    fn find_target(&mut self) -> Result<Option<Target>, Error> {
        let flags = &self.line.target_flags;
        if flags.iter().any(|flag| {
            ["-m32", "-m16", "-mx32", "-mabi=ilp32", "-mbig-endian"]
                .iter()
                .any(|other| flag == other)
        }) {
            self.outcome
                .notes
                .push("left alone: code for a processor that cannot be instrumented".to_owned());
            return Ok(None);
        }
        let mut command = Command::new(self.compiler);
        command.args(flags).arg("-dumpmachine");
        let out = command
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()
            .map_err(|cause| self.cannot_run(cause))?;
        let triple = String::from_utf8_lossy(&out.stdout);
        let target = Target::of_triple(&triple);
        if target.is_none() {
            self.outcome.notes.push(match triple.trim() {
                "" => format!(
                    "left alone: {} does not say what machine it compiles for (-dumpmachine): the compiler comes first, and what launches it goes in front of postlink",
                    self.compiler.to_string_lossy()
                ),
                triple => format!("left alone: code for {triple} cannot be instrumented"),
            });
        }
        Ok(target)
    }

    fn build(&mut self) -> Result<(), Error> {
        let scratch = tempfile::tempdir().map_err(file_error(Path::new("temporary directory")))?;
        let mut objects = vec![];
        for (number, source) in self.line.sources.iter().enumerate() {
            let code = match self.line.stage {
                Stage::Assembly => {
                    let to = self.output_of(source, "s");
                    self.assembly(source, &to, scratch.path(), number)?
                }
                Stage::Object => {
                    let to = self.output_of(source, "o");
                    self.object(source, &to, scratch.path(), number)?
                }
                Stage::Linked | Stage::Other => {
                    // Each in a folder of its own, so that it has the name that the linker's messages should have.
                    let folder = scratch.path().join(number.to_string());
                    fs::create_dir(&folder).map_err(file_error(&folder))?;
                    let to = folder.join(CommandLine::default_output(&source.path, "o"));
                    let code = self.object(source, &to, scratch.path(), number)?;
                    objects.push((source.index, to));
                    code
                }
            };
            if code != 0 {
                // gcc compiles the others all the same, for their messages.
                self.outcome.code = code;
            }
        }
        if self.line.stage == Stage::Linked && self.outcome.code == 0 {
            self.link(&objects, scratch.path())?;
        }
        self.note_what_was_left();
        Ok(())
    }

    fn note_what_was_left(&mut self) {
        // In what many compilers say at the same time, one must know which.
        let of = match self.line.sources.as_slice() {
            [source] => format!("{}: ", source.path.display()),
            _ => String::new(),
        };
        let report = &self.outcome.report;
        for (reason, count) in &report.left_alone {
            if !reason.was_asked_for() {
                self.outcome
                    .notes
                    .push(format!("{of}left alone: {count} × {reason}"));
            }
        }
    }

    fn output_of(&self, source: &Source, extension: &str) -> PathBuf {
        match &self.line.output {
            Some(output) => output.into(),
            None => CommandLine::default_output(&source.path, extension),
        }
    }

    /// Names that a file of dependencies has, and has in it: by default both are made from the output's name,
    /// which is not the one that was asked for.
    fn dependencies(&self, source: &Source, aside: &Aside) -> Vec<OsString> {
        let line = self.line;
        // gcc's preprocessor makes the name from that of the source.
        let of_preprocessor = line.wants_dependencies_of_preprocessor && self.is_clang;
        if !(line.wants_dependencies || of_preprocessor) {
            return vec![];
        }
        let mut arguments = vec![];
        let target = match &line.output {
            Some(output) => output.into(),
            None => CommandLine::default_output(&source.path, "o"),
        };
        if line.wants_dependencies && !line.names_dependency_file {
            let file = if line.output.is_some() || self.is_clang {
                target.with_extension("d")
            } else {
                aside.path("d")
            };
            arguments.extend(["-MF".into(), file.into()]);
        }
        if !line.names_dependency_target {
            arguments.extend(["-MQ".into(), target.into()]);
        }
        arguments
    }

    /// Compiles a source to assembly and instruments it. Gives the compiler's exit code.
    fn assembly(
        &mut self,
        source: &Source,
        to: &Path,
        scratch: &Path,
        number: usize,
    ) -> Result<u8, Error> {
        let aside = Aside::of(self.line, source, self.is_clang);
        // What clang writes beside its output is named after it.
        let beside = if self.is_clang && aside::clang_writes_aside(self.line) {
            temporary_beside(&aside)
        } else {
            None
        };
        let plain = match &beside {
            Some(path) => path.to_path_buf(),
            None => scratch.join(format!("{number}.plain.s")),
        };
        let mut arguments: Vec<OsString> = self
            .line
            .for_source(source)
            .into_iter()
            .map(OsStr::to_owned)
            .collect();
        arguments.push("-S".into());
        arguments.push("-o".into());
        arguments.push(plain.clone().into());
        if !self.is_clang {
            arguments.extend(aside.for_gcc(self.line, source));
        } else if aside::splits_debug_information(self.line) {
            // The name that is in the program; what it would write now is empty.
            let nothing = scratch.join(format!("{number}.dwo")).into_os_string();
            for argument in [
                "-split-dwarf-file".into(),
                aside.path("dwo").into_os_string(),
                "-split-dwarf-output".into(),
                nothing,
            ] {
                arguments.extend(["-Xclang".into(), argument]);
            }
        }
        arguments.extend(self.dependencies(source, &aside));
        if self.placement.is_some() {
            arguments.push("-ffunction-sections".into());
        }
        if self.is_clang {
            // Options for steps that are not taken now.
            arguments.push("-Qunused-arguments".into());
        } else if self.options.mode == Mode::CallGraph && self.placement.is_none() {
            // Callers must not rely on what a callee seems to leave as it is.
            arguments.push("-fno-ipa-ra".into());
        }
        let arguments = self.shortened(arguments, scratch)?;
        let code = self.status(self.command(arguments))?;
        if code != 0 {
            return Ok(code);
        }
        let text = fs::read(&plain).map_err(file_error(&plain))?;
        let Some(target) = self.target else {
            return Ok(code);
        };
        let done = match &self.placement {
            Some(placement) => {
                let placed = placement.place(&text, target);
                self.outcome.warm += placed.warm;
                self.outcome.cold += placed.cold;
                Instrumented {
                    text: placed.text,
                    report: Report::default(),
                }
            }
            None => insert::instrument(&text, target, &self.options),
        };
        drop(text);
        let _ = fs::remove_file(&plain); // it is in a temporary directory anyway
        self.outcome.report.add(&done.report);
        if to == Path::new("-") {
            let mut out = io::stdout().lock();
            out.write_all(&done.text)
                .and_then(|()| out.flush())
                .map_err(file_error(to))?;
        } else {
            fs::write(to, &done.text).map_err(file_error(to))?;
        }
        Ok(code)
    }

    /// Compiles a source to an object.
    fn object(
        &mut self,
        source: &Source,
        to: &Path,
        scratch: &Path,
        number: usize,
    ) -> Result<u8, Error> {
        let text = scratch.join(format!("{number}.s"));
        let code = self.assembly(source, &text, scratch, number)?;
        if code != 0 {
            return Ok(code);
        }
        let mut command = Command::new(self.compiler);
        command.args(&self.line.target_flags);
        if self.is_clang {
            command.arg("-Qunused-arguments");
        }
        let splits = aside::splits_debug_information(self.line);
        if splits {
            command.arg("-gsplit-dwarf");
        }
        command
            .args(["-x", "assembler", "-c"])
            .arg(&text)
            .arg("-o")
            .arg(to);
        let code = self.status(command)?;
        if splits && code == 0 && self.line.stage == Stage::Linked {
            // It is beside the object, which goes.
            let from = to.with_extension("dwo");
            let to = Aside::of(self.line, source, self.is_clang).path("dwo");
            if from.is_file() {
                fs::copy(&from, &to).map_err(file_error(&to))?;
            }
        }
        Ok(code)
    }

    /// Links, with the run-time, and seals.
    fn link(&mut self, objects: &[(usize, PathBuf)], scratch: &Path) -> Result<(), Error> {
        let mut arguments = vec![];
        for (index, argument) in self.line.arguments.iter().enumerate() {
            match objects.iter().find(|(source, _)| *source == index) {
                Some((_, object)) => {
                    // What was a language of sources is none of objects.
                    arguments.extend(["-x", "none"].map(OsString::from));
                    arguments.push(object.into());
                }
                None => arguments.push(argument.clone()),
            }
        }
        let Some(target) = self.target else {
            return Ok(());
        };
        if let Some(placement) = &self.placement
            && !self.line.relocatable
            && target.format == Format::Elf
        {
            arguments.extend(order_for_linker(placement, &self.line.arguments, scratch)?);
        }
        let with_runtime = !self.line.relocatable && self.placement.is_none();
        if with_runtime {
            let runtime = runtime::build(
                self.compiler,
                &self.line.target_flags,
                target,
                &self.options,
                !self.line.flags.dump,
                self.is_clang,
            )
            .map_err(Error::Runtime)?;
            if self.line.language_at_end {
                arguments.extend(["-x", "none"].map(OsString::from));
            }
            arguments.push(runtime.core.into());
            arguments.push(runtime.archive.into());
        }
        if with_runtime && drops_sections_by_gold(&self.line.arguments) {
            // It drops members of groups one by one, and complains about records of functions that it has dropped.
            arguments.push("-Wl,--no-gc-sections".into());
            self.outcome.notes.push(
                "gold cannot drop functions together with their records: linked without --gc-sections"
                    .to_owned(),
            );
        }
        let arguments = self.shortened(arguments, scratch)?;
        self.outcome.code = self.linked(self.command(arguments))?;
        if self.outcome.code == 0 && with_runtime && target.format == Format::Elf {
            let output = self.line.output.as_deref().unwrap_or(OsStr::new("a.out"));
            if let Sealed::NotDone(why) = seal::seal(Path::new(output), target.page().into())? {
                self.outcome.notes.push(why);
            }
        }
        Ok(())
    }

    /// Runs the linker without those warnings of lld that are about distances in the map.
    fn linked(&self, mut command: Command) -> Result<u8, Error> {
        let mut child = command
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|cause| self.cannot_run(cause))?;
        if let Some(stderr) = child.stderr.take() {
            let mut reader = BufReader::new(stderr);
            let mut text = Vec::new();
            let mut ours = io::stderr();
            while reader.read_until(b'\n', &mut text).is_ok_and(|n| n > 0) {
                if !is_warning_about_map(&text) {
                    // Nothing can be said if that fails.
                    let _ = ours.write_all(&text);
                }
                text.clear();
            }
        }
        let status = child.wait().map_err(|cause| self.cannot_run(cause))?;
        Ok(code(status))
    }

    /// Arguments as they were, or in a response file where there are too many of them for the system.
    fn shortened(&self, arguments: Vec<OsString>, scratch: &Path) -> Result<Vec<OsString>, Error> {
        let length: usize = arguments.iter().map(|argument| argument.len() + 9).sum();
        if length < 64 << 10 || !self.line.had_response_file {
            return Ok(arguments);
        }
        let path = scratch.join("arguments");
        fs::write(&path, command::join(&arguments)).map_err(file_error(&path))?;
        let mut argument = OsString::from("@");
        argument.push(path);
        Ok(vec![argument])
    }
}

/// The linker that is asked for, or nothing.
fn linker_of(arguments: &[OsString]) -> &str {
    arguments
        .iter()
        .rev()
        .filter_map(|argument| argument.to_str())
        .find_map(|argument| {
            argument
                .strip_prefix("-fuse-ld=")
                .or_else(|| argument.strip_prefix("--ld-path="))
        })
        .unwrap_or_default()
}

fn drops_sections_by_gold(arguments: &[OsString]) -> bool {
    linker_of(arguments).contains("gold")
        && arguments
            .iter()
            .filter_map(|argument| argument.to_str())
            .flat_map(|argument| argument.split(','))
            .rfind(|word| matches!(*word, "--gc-sections" | "-gc-sections" | "--no-gc-sections"))
            .is_some_and(|word| word != "--no-gc-sections")
}

/// What tells the linker the order, if it wants to be told. GNU ld sorts by the names of sections.
fn order_for_linker(
    placement: &Placement,
    arguments: &[OsString],
    scratch: &Path,
) -> Result<Vec<OsString>, Error> {
    let linker = linker_of(arguments);
    let path = scratch.join("order");
    let (contents, option, more) = if linker.contains("lld") {
        let quiet = Some("-Wl,--no-warn-symbol-ordering");
        (placement.symbols(), "--symbol-ordering-file", quiet)
    } else if linker.contains("gold") {
        (placement.sections(), "--section-ordering-file", None)
    } else {
        return Ok(vec![]);
    };
    fs::write(&path, contents).map_err(file_error(&path))?;
    let mut order = OsString::from(format!("-Wl,{option},"));
    order.push(path);
    Ok([order]
        .into_iter()
        .chain(more.map(OsString::from))
        .collect())
}

fn is_warning_about_map(line: &[u8]) -> bool {
    let has = |text: &[u8]| line.windows(text.len()).any(|part| part == text);
    has(b":(__llvm_mipmap+") && has(b"has non-ABS relocation R_")
}

/// A file for assembly under the name that files beside an output shall have; it goes when it is dropped.
/// `None` where none can be made.
fn temporary_beside(aside: &Aside) -> Option<TempPath> {
    let path = aside.path("");
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let file = tempfile::Builder::new()
        .prefix(path.file_name()?)
        .tempfile_in(folder)
        .ok()?;
    Some(file.into_temp_path())
}

fn file_error(path: &Path) -> impl FnOnce(io::Error) -> Error + use<> {
    let path = path.display().to_string();
    move |cause| Error::File { path, cause }
}
