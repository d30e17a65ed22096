//! Indirect jumps that keep their function where it is, or may continue in old code, and why.
//!
//! Nothing else rests on this: it is asked for by `inspect`, for the functions that have such jumps. The reasons are
//! those for which [`super::own_tables`] finds no table, and for which [`super::indirect`] finds no targets.

use postlink_isa::Isa;
use serde::Serialize;

use super::build::{self, Scratch};
use super::graph::{Cfg, Term};
use super::own_tables;
use crate::discover::Program;

/// Why an indirect jump is not understood well enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum JumpReason {
    /// What it goes to was not loaded from a table by an index, as far as that can be followed.
    NoTable,
    /// Control comes to it only by jumps that are not understood.
    NotReached,
    /// The address of its table is not a constant.
    BaseUnknown,
    /// Control comes in between the instructions that go through the table.
    EnteredBetween,
    /// Its index is not bounded.
    IndexUnbounded,
    /// The program may write to its table.
    TableWritable,
    /// What is loaded from its table is read by something else, or by several jumps.
    EntryReadElsewhere,
    /// An entry leads to what is no instruction of the function, or to code that reads what the jump leaves in
    /// registers, and there is no way to lead such an entry to old code.
    EntryNotFollowed,
    /// No register is free for the address of a table of its own.
    NoRegister,
    /// Its table is known, but is one of labels, and control comes back from old code by another jump of the function.
    OtherJump,
    /// New code is farther than its table reaches.
    TooFar,
    /// The relocations of its table do not say what it holds.
    TableNotDescribed,
    /// No entry of its table leads into the function.
    NoTarget,
    /// No jump is seen to use this table of the function.
    TableWithoutJump,
}

impl JumpReason {
    /// One line for people.
    pub fn explain(self) -> &'static str {
        match self {
            JumpReason::NoTable => {
                "what it goes to was not loaded from a table by an index, as far as that can be followed"
            }
            JumpReason::NotReached => "control comes to it only by jumps that are not understood",
            JumpReason::BaseUnknown => {
                "the address of its table is not a constant where an entry is loaded (it was on the stack, or differs)"
            }
            JumpReason::EnteredBetween => {
                "control comes in between the instructions that go through its table"
            }
            JumpReason::IndexUnbounded => {
                "nothing bounds the index of its table: no comparison, no mask, no type"
            }
            JumpReason::TableWritable => "its table is in memory that the program may write to",
            JumpReason::EntryReadElsewhere => {
                "what is loaded from its table is read by something else, or by several jumps"
            }
            JumpReason::EntryNotFollowed => {
                "an entry of its table leads out of the function, or to code that reads what the jump leaves in registers"
            }
            JumpReason::NoRegister => "no register is free for the address of a table of its own",
            JumpReason::OtherJump => {
                "control comes back to its labels from old code, by another jump of the function"
            }
            JumpReason::TooFar => "new code is farther from it than a branch or a word reaches",
            JumpReason::TableNotDescribed => {
                "the relocations of its table do not say what it holds"
            }
            JumpReason::NoTarget => "no entry of its table leads into the function",
            JumpReason::TableWithoutJump => "no jump is seen to use this table of the function",
        }
    }
}

/// What comes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum JumpOutcome {
    /// The function stays where it is.
    FunctionStays,
    /// Old code goes on, until it calls a function or returns.
    OldCode,
    /// Old code has jumps to new code at the targets that are known, where they fit: control comes back at once.
    ThroughOldCode,
}

impl JumpOutcome {
    /// A few words for people, to stand behind an address or a number of jumps.
    pub fn explain(self) -> &'static str {
        match self {
            JumpOutcome::FunctionStays => "the function stays",
            JumpOutcome::OldCode => "continuing in old code",
            JumpOutcome::ThroughOldCode => "through old code",
        }
    }
}

/// An indirect jump that is not understood well enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ExplainedJump {
    /// Its address; that of the table, for [`JumpReason::TableWithoutJump`].
    pub address: u64,
    /// What comes of it.
    pub outcome: JumpOutcome,
    /// Why.
    pub reason: JumpReason,
}

/// The jumps of a function that moves which may continue in old code, ascending within a piece.
pub fn fall_backs<I: Isa>(
    program: &Program<'_>,
    function: usize,
    cfg: &Cfg,
    scratch: &mut Scratch,
) -> Vec<ExplainedJump> {
    if program.refs.kept || cfg.falls_back.is_empty() {
        return Vec::new();
    }
    let reasons = build::with_code::<I, _>(program, function, scratch, |code| {
        own_tables::reasons::<I>(code, &cfg.own_tables)
    });
    // It may go to labels, at whose old places are jumps to the new code.
    let to_labels = cfg.is_entered_at(&program.functions[function].labels);
    let jump = |at: &u64| {
        let block = cfg.blocks.iter().find(|b| b.start <= *at && *at < b.end);
        let stays = block.is_none_or(|b| b.term == Term::FallBack) && !to_labels;
        let reason = reasons.iter().flatten().find(|r| r.0 == *at);
        ExplainedJump {
            address: *at,
            outcome: if stays {
                JumpOutcome::OldCode
            } else {
                JumpOutcome::ThroughOldCode
            },
            reason: reason.map_or(JumpReason::NoTable, |r| r.1),
        }
    };
    cfg.falls_back.iter().map(jump).collect()
}

/// The jump that keeps a function where it is, if one does.
pub fn keeps<I: Isa>(
    program: &Program<'_>,
    function: usize,
    scratch: &mut Scratch,
) -> Option<ExplainedJump> {
    let (address, reason) = build::unresolved::<I>(program, function, scratch)?;
    Some(ExplainedJump {
        address,
        outcome: JumpOutcome::FunctionStays,
        reason,
    })
}
