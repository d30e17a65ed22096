//! A program and its profile as files for other tools.
//!
//! | module | formats |
//! |---|---|
//! | [`coverage`] | lcov, Cobertura: lines, functions, branches |
//! | [`stacks`] | chains of callers, for what follows |
//! | [`folded`](mod@folded) | folded stacks, speedscope |
//! | [`pprof`] | pprof |
//! | [`firefox`] | Firefox Profiler's JSON |
//! | [`flame_graph`] | flame graph as SVG |
//! | [`callgrind`] | callgrind |
//! | [`drcov`] | drcov: basic blocks that ran |
//! | [`dot`] | Graphviz: the graph of one function |
//! | [`propeller`] | layouts for a compiler and a linker: clusters of blocks, order of functions |
//!
//! What each format holds, and what it cannot, is in `docs/export.md`.

mod callgrind;
mod coverage;
mod dot;
mod drcov;
mod firefox;
mod flame_graph;
mod folded;
mod pprof;
pub mod propeller;
pub mod stacks;

pub use callgrind::callgrind;
pub use coverage::{cobertura, lcov};
pub use dot::dot;
pub use drcov::drcov;
pub use firefox::firefox;
pub use flame_graph::svg as flame_graph;
pub use folded::{folded, speedscope};
pub use pprof::pprof;

use postlink_elf::elf::Elf;
use postlink_lines::{Lines, has_counts};
use postlink_rewrite::facts::Facts;
use thiserror::Error;

/// What files are made of.
pub struct Subject<'a, 'd> {
    /// The program.
    pub elf: &'a Elf<'d>,
    /// Its functions and counts.
    pub facts: &'a Facts,
    /// Its source lines, or why there are none.
    pub lines: Result<&'a Lines, &'a str>,
    /// Path of the program.
    pub path: &'a str,
    /// A symbol's name as its author wrote it.
    pub demangle: &'a (dyn Fn(&str) -> String + Sync),
}

/// A file's bytes, and what is not in it, in sentences.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Export {
    /// What to write.
    pub bytes: Vec<u8>,
    /// What the profile could not fill.
    pub missing: Vec<String>,
}

/// Why a file cannot be made.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Error {
    /// It takes source lines.
    #[error("{format} needs source lines: {why}")]
    NoLines {
        /// Name of the format.
        format: &'static str,
        /// Why there are none, in a sentence.
        why: String,
    },
    /// It is about one function.
    #[error("dot draws one function: name it with --function")]
    NoFunction,
    /// There is none of that name.
    #[error("no function is named '{0}'")]
    UnknownFunction(String),
    /// The library that writes the format has failed.
    #[error("{format}: {why}")]
    Writing {
        /// Name of the format.
        format: &'static str,
        /// What it said.
        why: String,
    },
    /// It did not run, so there are no counts to draw.
    #[error("'{0}' did not run by this profile")]
    NeverRan(String),
}

impl<'a> Subject<'a, '_> {
    fn lines(&self, format: &'static str) -> Result<&'a Lines, Error> {
        self.lines.map_err(|why| Error::NoLines {
            format,
            why: why.to_owned(),
        })
    }

    /// What profiles like this one leave open, for any format.
    fn missing(&self) -> Vec<String> {
        let mut missing = Vec::new();
        if !self.facts.exact {
            missing.push(
                "counts are estimates, not those of counters: what ran rarely may show as never run".to_owned(),
            );
        }
        let functions = self.facts.functions.iter();
        let without = functions.filter(|function| !has_counts(function)).count();
        if without > 0 {
            missing.push(format!(
                "functions that cannot be instrumented have no counts and are left out: {without} of {} (`postlink inspect` names them)",
                self.facts.functions.len()
            ));
        }
        missing
    }
}
