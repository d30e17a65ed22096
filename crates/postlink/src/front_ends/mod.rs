//! The program under the names of LLVM's tools: their options, their messages, our work.
//!
//! A link to the program with one of these names, with or without a version after it (`perf2bolt-19`), makes
//! it that tool; so does the name as the first argument (`postlink perf2bolt …`). `postlink links DIR` makes
//! the links.
//!
//! To add one: a module with `main`, and a line in [`ALL`]. What LLVM's command lines have in common is in [`options`].

pub mod llvm_bat_dump;
pub mod llvm_bolt;
pub mod llvm_mipdata;
pub mod llvm_profgen;
pub mod merge_fdata;
pub mod mip_cc;
pub mod options;
pub mod perf2bolt;

use std::path::Path;
use std::process::ExitCode;

/// The arguments of a tool, without its name.
pub type Arguments<'a> = &'a mut dyn Iterator<Item = String>;

/// A tool that the program can be.
#[derive(Clone, Copy, Debug)]
pub struct FrontEnd {
    /// Its name.
    pub name: &'static str,
    /// Runs it.
    pub main: fn(Arguments<'_>) -> ExitCode,
    /// What it does, for `postlink links`.
    pub about: &'static str,
}

/// Tells of an error as BOLT's tools do.
fn exit_code(tool: &str, result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{tool}-ERROR: {}", crate::errors::line(&error));
            ExitCode::FAILURE
        }
    }
}

/// All of them.
pub const ALL: &[FrontEnd] = &[
    FrontEnd {
        name: "llvm-bolt",
        main: llvm_bolt::main,
        about: "instruments a program, or lays it out for a profile",
    },
    FrontEnd {
        name: "perf2bolt",
        main: perf2bolt::main,
        about: "from samples to a profile by functions",
    },
    FrontEnd {
        name: "merge-fdata",
        main: merge_fdata::main,
        about: "adds profiles up",
    },
    FrontEnd {
        name: llvm_bat_dump::NAME,
        main: llvm_bat_dump::main,
        about: "shows address translation tables",
    },
    FrontEnd {
        name: "llvm-profgen",
        main: llvm_profgen::main,
        about: "from samples to a profile for a compiler",
    },
    FrontEnd {
        name: llvm_mipdata::NAME,
        main: llvm_mipdata::main,
        about: "machine IR profiles: merges, shows, orders functions",
    },
];

/// The tool that a program's path makes it: its name, and maybe a version after it.
pub fn called(program: &Path) -> Option<&'static FrontEnd> {
    let name = program.file_name()?.to_str()?;
    ALL.iter().find(|front_end| {
        name.strip_prefix(front_end.name)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('-') || rest.starts_with('.'))
    })
}

/// The tool that the first argument names.
pub fn named(argument: &str) -> Option<&'static FrontEnd> {
    ALL.iter().find(|front_end| front_end.name == argument)
}

#[cfg(test)]
mod known;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_are_known_by_name_with_or_without_version() {
        let name = |path: &str| called(Path::new(path)).map(|front_end| front_end.name);
        assert_eq!(name("/usr/bin/perf2bolt"), Some("perf2bolt"));
        assert_eq!(name("perf2bolt-19"), Some("perf2bolt"));
        assert_eq!(name("merge-fdata"), Some("merge-fdata"));
        assert_eq!(name("postlink"), None);
        assert_eq!(name("perf2boltx"), None);
        assert!(named("perf2bolt").is_some());
        assert!(named("perf2bolt-19").is_none());
    }
}
