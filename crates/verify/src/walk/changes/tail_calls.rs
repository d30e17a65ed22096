//! The rule of conditional tail calls.
//!
//! | old | new |
//! |---|---|
//! | `jcc L` … `L: jmp F`, F outside the function | `jcc F'` |
//! | `jcc X; jmp F` | `jncc F'`, and X follows |
//!
//! A direct jump is a silent step, so the branch may go at once to where the jump leads. Within a function that is
//! nothing new: the lock step follows jumps on both sides. Out of it one thing more is asked: who stops at the branch
//! (a debugger, a signal) must see the frame that the tail call is made in. So the unwind row at the branch must be
//! that at the jump, where the old code left the function.

use super::super::{State, Step, Walk, fail};
use crate::addr::{InputAddr, OutputAddr};
use crate::arch::Arch;
use crate::report::{ChangeKind, Check, Failure};
use smallvec::SmallVec;

impl<'a, A: Arch> Walk<'a, '_, A> {
    /// A way of the branch at `p` (new: at `q`) that led to `old` in the function leads to `new`.
    pub(in crate::walk) fn conditional_tail_call(
        &mut self,
        p: InputAddr,
        old: InputAddr,
        q: OutputAddr,
        new: OutputAddr,
    ) -> Step {
        if self.f.in_new(new) || !self.f.in_old(old) || old.kept() == new {
            return Ok(());
        }
        let mut chain = SmallVec::new();
        let (State::Exit(_), Some(&jump)) = (self.state(old, &mut chain)?, chain.last()) else {
            return Ok(());
        };
        // Back into old code, which jumps by itself.
        if chain.contains(&new.of_old_image()) {
            return Ok(());
        }
        let row = |walk: &Self, at: InputAddr| walk.s.old_rows.row(at.get(), 1).0;
        if row(self, p) != row(self, jump) {
            let what =
                "a branch leaves the function in another frame than the jump did to which it led";
            let mut failure = Failure::new(Check::Unwind, what).at(p, q);
            failure.old_value = self.s.interner.describe(row(self, jump));
            failure.new_value = self.s.interner.describe(row(self, p));
            return fail(failure);
        }
        self.count(ChangeKind::ConditionalTailCall);
        Ok(())
    }
}
