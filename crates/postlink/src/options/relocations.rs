//! Which relocations are used: an option of every command that finds functions in a program.

use clap::{Args, ValueEnum};

/// Which relocations tell of references to code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Relocations {
    /// Those that the linker kept (-Wl,-q), if it did; else those for the loader alone
    #[default]
    Auto,
    /// Those that the linker kept; an error if it kept none
    Kept,
    /// Those for the loader alone, whatever the linker kept
    None,
}

/// The option.
#[derive(Args, Clone, Copy, Debug)]
pub struct Reading {
    /// Which relocations tell of references to code
    ///
    /// A profile of counters belongs to the program and to this choice.
    #[arg(long, value_name = "WHICH", default_value = "auto")]
    pub relocations: Relocations,
}
