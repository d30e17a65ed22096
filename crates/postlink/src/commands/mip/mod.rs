//! `postlink mip`: machine IR profiles.
//!
//! One file for each group of subcommands; the same work under the original tool's spellings is in
//! [`crate::front_ends::llvm_mipdata`].

pub(super) mod create;
mod order;
mod outline;
pub(crate) mod show;
pub(crate) mod yaml;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use postlink_mip::Symbolizer;
use regex::bytes::Regex;

use crate::ui::Ui;

/// Work with machine IR profiles: what ran, how often, in which order
///
/// An instrumented program writes nothing but its counters (.mipraw). The map (.mipmap, or the section
/// __llvm_mipmap of the program that was not stripped) says what they mean. `create` makes an empty profile
/// (.mip) from a map, `merge` adds runs to it, and the others make something of it.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  postlink mip create -p app.mip ./app.unstripped
  postlink mip merge -p app.mip default.mipraw
  postlink mip show -p app.mip --debug ./app.unstripped
  postlink mip order -p app.mip --by start-up -o app.order
  clang … -Wl,--symbol-ordering-file=app.order")]
pub struct Mip {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Cc(crate::front_ends::mip_cc::Cc),
    Create(create::Create),
    Merge(create::Merge),
    Show(show::Show),
    Covered(show::Covered),
    Info(show::Info),
    Order(order::Order),
    OutlineReport(outline::OutlineReport),
    ToYaml(yaml::ToYaml),
    FromYaml(yaml::FromYaml),
}

impl Mip {
    pub fn run(self, ui: &Ui) -> Result<ExitCode> {
        match self.what {
            What::Cc(command) => command.run(ui),
            What::Create(command) => command.run(ui),
            What::Merge(command) => command.run(ui),
            What::Show(command) => command.run(ui),
            What::Covered(command) => command.run(ui),
            What::Info(command) => command.run(),
            What::Order(command) => command.run(ui),
            What::OutlineReport(command) => command.run(ui),
            What::ToYaml(command) => command.run(ui),
            What::FromYaml(command) => command.run(ui),
        }
    }
}

/// The profile that a command is about.
#[derive(Args, Debug)]
struct Of {
    /// The profile
    #[arg(long, short, value_name = "FILE.mip")]
    profile: PathBuf,
}

/// Which functions, and where to look up lines.
#[derive(Args, Debug)]
struct Selection {
    /// Only functions whose mangled name matches
    #[arg(long, short, value_name = "REGEX")]
    regex: Option<Regex>,
    /// A copy of the program with debug information (ELF, Mach-O, .dSYM), for source lines
    #[arg(long, value_name = "FILE")]
    debug: Option<PathBuf>,
    /// Which part of a universal Mach-O file: name or number [default: arm64]
    #[arg(long, value_name = "NAME", requires = "debug")]
    arch: Option<String>,
}

impl Selection {
    fn matches(&self, name: &[u8]) -> bool {
        self.regex.as_ref().is_none_or(|regex| regex.is_match(name))
    }

    fn symbolizer(&self) -> Result<Option<Symbolizer>> {
        let open = |path| Symbolizer::open(path, self.arch.as_deref());
        Ok(self.debug.as_deref().map(open).transpose()?)
    }
}

/// Writes to a file, in one piece when all is there, or to standard output for none and `-`.
pub(crate) fn put(output: Option<&Path>, bytes: &[u8]) -> Result<()> {
    match output.filter(|path| *path != "-") {
        Some(path) => Ok(postlink_profile::write_atomically(path, |out| {
            out.write_all(bytes)
        })?),
        None => std::io::stdout()
            .lock()
            .write_all(bytes)
            .context("standard output"),
    }
}
