//! A file that is written again when a checker refuses a part of it.
//!
//! What the input and the profile determine is found out once: functions, graphs, counts, the code of every
//! function. It does not depend on which functions move in the end, as code refers to others by name until it
//! is linked. So a function that is refused is taken back from what was made, and only what depends on it is
//! done again: references, tables and the file.
//!
//! Its place in new code is left empty, filled with traps, and tables keep its space. So everything else is at the
//! address where it was, new code differs only where it referred to the function, and the checker takes over its
//! verdicts on all the rest (`postlink_verify::verify_again`). Places are given anew where other code may be in
//! the function's old body (`--preset size`), and where machine profiles count in new code.
//!
//! Of programs with much code the instrumented code is packed while the checker reads the output, for the sake of
//! memory (`rewrite/link/packed.rs`). If a function is refused, the output is changed where it refers to it
//! (`rewrite/link/changed.rs`). Where that cannot be done, the code's bytes are read back from the output, and all is
//! linked once more: the same file, in more time and memory.

use std::path::Path;

use postlink_elf::write::Onto;
use rustc_hash::FxHashSet;

use crate::error::Error;
use crate::phases::Phases;

/// Where an output goes.
#[derive(Clone, Copy, Debug)]
pub struct OutputFile<'a> {
    /// The file.
    pub path: &'a Path,
    /// Its permissions.
    pub mode: u32,
    /// What is there.
    pub onto: Onto,
    /// The file for the package of split debug information, which is written anew if the output has one. `None`: units
    /// in files of their own stay as they are.
    pub package: Option<&'a Path>,
}

impl<'a> OutputFile<'a> {
    /// A new file, without a package.
    pub fn new(path: &'a Path, mode: u32) -> Self {
        OutputFile {
            path,
            mode,
            onto: Onto::Anew,
            package: None,
        }
    }
}

/// A job on a file, as far as it does not depend on what a checker says of the output.
pub trait Rewriting {
    /// The report on an output.
    type Report;

    /// Links what was made, and writes it.
    ///
    /// # Errors
    ///
    /// A file that cannot be written, or code that does not reach what it refers to.
    fn write(&mut self, out: OutputFile<'_>, phases: &mut Phases) -> Result<Self::Report, Error>;

    /// Whether a package of split debug information was written with the last output.
    fn has_package(&self) -> bool {
        false
    }

    /// Whether what was written is for a checker to see; `asked`: whether the user wants it.
    fn is_checked(&self, asked: bool) -> bool {
        asked
    }

    /// Changes what a checker refused. What was made of everything else stays.
    fn answer(&mut self, refusal: &Refusal) -> Answer;
}

/// What a checker has against an output.
#[derive(Clone, Debug, Default)]
pub struct Refusal {
    /// Functions that it cannot prove, by their entries in the input.
    pub functions: FxHashSet<u64>,
    /// What is wrong with how the program counts, if that is.
    pub counting: Option<String>,
    /// What is wrong with debug information, if nothing else is wrong.
    pub debug_info: Option<String>,
    /// Whether functions that cannot be proved must stay where they are: else it is advice.
    pub binding: bool,
    /// Whether the next output is the last.
    pub last: bool,
}

/// What was done about a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// These functions stay where they are from now on.
    TakenBack(FxHashSet<u64>),
    /// Something else is done in another way.
    Changed,
    /// Nothing could be done.
    Nothing,
}

impl Answer {
    /// For functions that stay from now on; those of `known` did so before.
    pub(super) fn taken_back(functions: &FxHashSet<u64>, known: &FxHashSet<u64>) -> Answer {
        let new: FxHashSet<u64> = functions.difference(known).copied().collect();
        if new.is_empty() {
            Answer::Nothing
        } else {
            Answer::TakenBack(new)
        }
    }
}

/// Keeps those elements of a list that are `true` in another.
pub(super) fn retain<T>(list: &mut Vec<T>, keep: &[bool]) {
    let mut keep = keep.iter();
    list.retain(|_| keep.next().copied().unwrap_or(true));
}
