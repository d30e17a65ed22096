//! Changed instructions, in the lock step: what the new code may have in the place of something else.
//!
//! Two generalisations of the plain lock step carry the rules.
//!
//! *Silent steps.* One side continues alone through instructions that change nothing but the place. The old side
//! goes through direct jumps and padding up to its *state* ([`super::State`]), however many there are; a loop of
//! such steps alone is a state of its own. The new side does the same ([`super::Walk::silent`]) and must come to that
//! state. Both are bounded: the old side by a number of steps, the new side since each instruction of new code is
//! marked once. A rule may let one side take more steps in silence, if nothing but the place, and what is dead,
//! is different after them.
//!
//! *Many to one.* An old instruction may have several that correspond to it, in several places of the new code. Each is
//! a pair of its own, and everything is shown for each: what the instruction does, its unwind row, its call site,
//! and what comes after. Only the other direction is closed: an instruction of new code corresponds to one old state.
//!
//! | rule | old | new | file |
//! |---|---|---|---|
//! | constants | load from memory that is never written | the number | [`constants`] |
//! | slot calls | call or jump to a stub of the procedure linkage table | call or jump through its slot | [`plt`] |
//! | promoted calls | call through a register or memory | comparison with a function, and a direct call of it | [`promotion`] |
//! | conditional tail calls | conditional branch to a jump out of the function | conditional branch out of it | [`tail_calls`] |
//! | inlined calls | call of a few straight instructions | the instructions | [`inlining`] |
//! | folded functions | call of a function, and its entry | call of the new code of an identical one, and a jump there | [`folding`] |
//!
//! A rule looks at both files and at nothing else. What it accepts it counts ([`Counts`]), so that the certificate can
//! say how far an output is from one in which code is only placed; `Options::placement_only` refuses any.

pub(crate) mod constants;
mod folding;
mod inlining;
mod plt;
mod promotion;
mod tail_calls;

use super::pages::Pending;
use super::{OldState, Walk};
use crate::addr::{InputAddr, OutputAddr, Pair};
use crate::arch::{Arch, Insn};
use crate::report::{ChangeKind, Failure};

pub(crate) use plt::goes_through_slot;
pub(super) use promotion::needs_operand;

/// How many changes of each kind there are.
pub(crate) type Counts = [u64; ChangeKind::ALL.len()];

/// What comes after a changed instruction: the next pair, if control can come there.
pub(super) type Next = Option<Pair>;

impl<'a, A: Arch> Walk<'a, '_, A> {
    /// Tries the rules where the new side, at `here`, does not have what the old side has at `state`. `None`: no rule
    /// is for such a pair, and it is compared as it stands.
    pub(super) fn changed(
        &mut self,
        state: &OldState,
        chain: &[InputAddr],
        here: OutputAddr,
        insn: &Insn,
        pending: &mut Pending,
    ) -> Result<Option<Next>, Box<Failure>> {
        if let Some(next) = self.slot_call(state, chain, here, insn, pending)? {
            return Ok(Some(next));
        }
        if let Some(next) = self.own_table(state, here, insn, pending)? {
            return Ok(Some(next));
        }
        if let Some(next) = self.constant(state, here, insn, pending)? {
            return Ok(Some(next));
        }
        if let Some(next) = self.promoted_call(state, here, pending)? {
            return Ok(Some(next));
        }
        self.inlined_call(state, here, insn, pending)
    }

    /// Counts a change that was accepted.
    fn count(&mut self, kind: ChangeKind) {
        if let Some(count) = self.out.changes.get_mut(kind as usize) {
            *count += 1;
        }
    }
}
