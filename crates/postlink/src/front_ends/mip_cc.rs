//! `postlink mip cc`: a compiler whose output is instrumented.
//!
//! As a command (`postlink mip cc -- clang -O2 -c main.c`), as a launcher for build systems
//! (`CC="postlink mip cc -- gcc"`), and, where a build system wants one word, under the name of the compiler:
//! a link to postlink named `mip-gcc` is `postlink mip cc -- gcc`.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use postlink_mip_asm::Flags;
use postlink_mip_asm::driver::{self, Error, Outcome};

use crate::errors::{self, Usage};
use crate::ui::Ui;

/// More flags, separated by blanks, for where a command line cannot be changed.
const VARIABLE: &str = "POSTLINK_MIP_FLAGS";

/// Compile and link with counters for a machine IR profile
///
/// Lets gcc, g++, clang or clang++ emit assembly, puts counters in, assembles, and links with a run-time of
/// one and a half kilobytes. The program writes its profile to LLVM_MIP_PROFILE_FILENAME (%h: hash of the
/// program, %p: process), or default.mipraw, while it runs: nothing is lost, however it ends.
///
/// Flags, among those of the compiler or in front of --: -fmachine-profile-function-coverage which functions
/// ran: one byte each -fmachine-profile-call-graph how often they were called, and in which order for the
/// first time (the default) -fmachine-profile-block-coverage which blocks ran, too
/// -fmachine-profile-all-blocks a counter for blocks that follow from others as well
/// -fmachine-profile-runtime-buffer=BYTES sample callers and callees into a buffer of that size
/// -fmachine-profile-function-group-count=N, -fmachine-profile-selected-function-group=I only one of N groups
/// of functions -fmachine-profile-min-instruction-count=N only functions with so many instructions
/// -fmachine-profile-link-unit-name=NAME what the program will be called -fno-machine-profile-dump write a
/// profile only when the program calls __llvm_dump_mip_profile -fno-machine-profile-generate off
/// -fmachine-profile-use=FILE no counters: functions are placed by a profile (.mip)
///
/// POSTLINK_MIP_FLAGS in the environment has more of them.
#[derive(Args, Debug)]
#[command(
    verbatim_doc_comment,
    after_long_help = "\
Examples:
  postlink mip cc -- clang -O2 main.c -o app
  llvm-objcopy --dump-section=__llvm_mipmap=app.mipmap app /dev/null
  strip app -R __llvm_mipmap -o app.stripped
  ./app.stripped
  postlink mip create -p app.mip app.mipmap
  postlink mip merge -p app.mip default.mipraw
  postlink mip show -p app.mip

  postlink mip cc -fmachine-profile-use=app.mip -- clang -O2 -fuse-ld=lld main.c -o app

  make CC='postlink mip cc -fmachine-profile-function-coverage -- gcc'
  cmake -DCMAKE_C_COMPILER_LAUNCHER='postlink;mip;cc;--' -DCMAKE_C_LINKER_LAUNCHER='postlink;mip;cc;--' …
  ln -s $(command -v postlink) mip-gcc; CC=$PWD/mip-gcc cargo build"
)]
pub struct Cc {
    /// Say how many functions and blocks were instrumented
    #[arg(long)]
    summary: bool,
    /// The compiler and its arguments, after --
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required = true,
        value_name = "COMMAND"
    )]
    command: Vec<OsString>,
}

impl Cc {
    pub fn run(mut self, ui: &Ui) -> Result<ExitCode> {
        let mut flags = flags_of_environment()?;
        let given = std::mem::take(&mut self.command);
        let mut command = given.as_slice();
        // Flags in front of `--`.
        while let Some((first, rest)) = command.split_first() {
            if first == "--" {
                command = rest;
                break;
            }
            if !first.as_encoded_bytes().starts_with(b"-") {
                break;
            }
            if first == "--summary" {
                self.summary = true;
                command = rest;
                continue;
            }
            if !flags
                .take(first)
                .map_err(|error| Usage(error.to_string()))?
            {
                bail!(Usage(format!(
                    "'{}' is no flag of machine profiles; the compiler comes first",
                    first.to_string_lossy()
                )));
            }
            command = rest;
        }
        let Some((compiler, arguments)) = command.split_first() else {
            bail!(Usage("no compiler is given".to_owned()));
        };
        let outcome = compile(compiler, arguments, flags)?;
        for note in &outcome.notes {
            ui.warn(note);
        }
        if self.summary {
            let report = &outcome.report;
            if outcome.warm + outcome.cold > 0 {
                ui.say(format_args!(
                    "{} functions are placed in the order of the profile, {} that never ran apart",
                    outcome.warm, outcome.cold
                ));
                return Ok(ExitCode::from(outcome.code));
            }
            if report.functions == 0 && report.left_alone.is_empty() {
                // Only linked, or preprocessed, or asked for its version.
                return Ok(ExitCode::from(outcome.code));
            }
            ui.say(format_args!(
                "{} functions and {} blocks have counters; {} blocks follow from others",
                report.functions, report.blocks, report.inferred
            ));
            for (reason, count) in &report.left_alone {
                ui.say(format_args!("left alone: {count} × {reason}"));
            }
        }
        Ok(ExitCode::from(outcome.code))
    }
}

fn flags_of_environment() -> Result<Flags> {
    let mut flags = Flags::default();
    for flag in std::env::var(VARIABLE)
        .unwrap_or_default()
        .split_whitespace()
    {
        let known = flags
            .take(OsStr::new(flag))
            .map_err(|error| Usage(format!("{VARIABLE}: {error}")))?;
        if !known {
            bail!(Usage(format!(
                "{VARIABLE}: '{flag}' is no flag of machine profiles"
            )));
        }
    }
    Ok(flags)
}

fn compile(compiler: &OsStr, arguments: &[OsString], flags: Flags) -> Result<Outcome> {
    driver::run(compiler, arguments, flags).map_err(|error| match error {
        Error::Flag(error) => Usage(error.to_string()).into(),
        other => other.into(),
    })
}

/// The compiler that we are called as, if we are: `mip-gcc` is gcc.
pub fn called_as(program: &OsStr) -> Option<OsString> {
    let name = Path::new(program).file_name()?.to_str()?;
    let compiler = name.strip_prefix("mip-")?;
    (!compiler.is_empty()).then(|| compiler.into())
}

/// What a link named after a compiler does.
pub fn main(compiler: &OsStr) -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let outcome = flags_of_environment().and_then(|flags| compile(compiler, &arguments, flags));
    match outcome {
        Ok(outcome) => {
            for note in &outcome.notes {
                anstream::eprintln!("warning: {note}");
            }
            ExitCode::from(outcome.code)
        }
        Err(error) if error.downcast_ref::<Usage>().is_some() => {
            // `--help` is the compiler's own here.
            anstream::eprintln!(
                "error: {error}\n\nFor more information, try 'postlink mip cc --help'."
            );
            ExitCode::from(2)
        }
        Err(error) => errors::report(&error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_named_after_its_compiler() {
        assert_eq!(
            called_as(OsStr::new("/usr/bin/mip-gcc")),
            Some("gcc".into())
        );
        assert_eq!(
            called_as(OsStr::new("mip-clang++-19")),
            Some("clang++-19".into())
        );
        assert_eq!(called_as(OsStr::new("postlink")), None);
        assert_eq!(called_as(OsStr::new("mip-")), None);
    }
}
