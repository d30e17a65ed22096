//! What was done and what was left alone, with its reason.

use std::collections::BTreeMap;
use std::fmt;

/// Why something was not instrumented.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// A directive that changes the meaning of text: the whole file is left alone.
    Directive(&'static str),
    /// The file has 4 GiB or more.
    TooLarge,
    /// The function is defined in inline assembly.
    InlineAssembly,
    /// A function's label in the middle of another function.
    SecondEntry,
    /// Nothing says where the function ends.
    NoEnd,
    /// There is no instruction in it.
    Empty,
    /// Outlined by the compiler, or a thunk with a calling convention of its own.
    Thunk,
    /// The cold part of a function.
    Fragment,
    /// Fewer instructions than asked for.
    Small,
    /// Of another function group than the selected one.
    OtherGroup,
    /// Blocks: inline assembly with labels, conditional assembly, repetitions, a table of branches.
    OpaqueBlocks,
    /// Blocks: a table of distances in one or two bytes, or short branches in a long function; nothing may
    /// grow in between.
    NarrowBlocks,
    /// Blocks: no register is free in the function.
    NoRegister,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Directive(name) => write!(f, "{name} in the assembly"),
            Reason::TooLarge => f.write_str("the assembly has 4 GiB or more"),
            Reason::InlineAssembly => f.write_str("defined in inline assembly"),
            Reason::SecondEntry => f.write_str("an entry in the middle of another function"),
            Reason::NoEnd => f.write_str("nothing says where it ends"),
            Reason::Empty => f.write_str("no instructions"),
            Reason::Thunk => f.write_str("outlined code or thunk"),
            Reason::Fragment => f.write_str("the cold part of a function"),
            Reason::Small => f.write_str("fewer instructions than the minimum"),
            Reason::OtherGroup => f.write_str("in another function group"),
            Reason::OpaqueBlocks => f.write_str(
                "blocks: inline assembly with labels, conditional assembly, or a table of branches",
            ),
            Reason::NarrowBlocks => f.write_str("blocks: short distances that must not grow"),
            Reason::NoRegister => f.write_str("blocks: no free register"),
        }
    }
}

impl Reason {
    /// Whether it was asked for, so that it needs no note.
    pub fn was_asked_for(self) -> bool {
        matches!(
            self,
            Reason::Small | Reason::OtherGroup | Reason::Thunk | Reason::Fragment | Reason::Empty
        )
    }
}

/// What was done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Functions with counters.
    pub functions: usize,
    /// Blocks with counters of their own, other than entries.
    pub blocks: usize,
    /// Blocks without, since they follow from others.
    pub inferred: usize,
    /// What was left alone, how often.
    pub left_alone: BTreeMap<Reason, usize>,
}

impl Report {
    pub(crate) fn leave(&mut self, reason: Reason) {
        *self.left_alone.entry(reason).or_default() += 1;
    }

    /// Adds what was done to another file.
    pub fn add(&mut self, other: &Report) {
        self.functions += other.functions;
        self.blocks += other.blocks;
        self.inferred += other.inferred;
        for (reason, count) in &other.left_alone {
            *self.left_alone.entry(*reason).or_default() += count;
        }
    }
}
