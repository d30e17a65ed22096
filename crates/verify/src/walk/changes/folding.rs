//! The rule for functions that were folded into an identical one (identical code folding).
//!
//! | old | new |
//! |---|---|
//! | `call G`, `jmp G`, the entry of G | `call F'`, `jmp F'`, a jump to F', the new code of another function F |
//!
//! The claim gives G the new code of F, and both are walked against it, each from its own entry: so the pair (entry
//! of G, F') is shown as (entry of F, F') is, with everything that a pair asks for. Instructions are the same,
//! addresses of data are the same (not merely addresses of equal data), unwind rows, landing pads, actions and
//! types are the same at each instruction. What passes changed in F' is judged for G by the rules that it is judged
//! by for F.
//!
//! *Calls of other functions* may differ between F and G: new code calls K', where F calls K and G calls L. That is
//! right if L was folded into K, which is shown where L is walked ([`crate::context::Context::entered_at`]). So each
//! pair of entries rests on others, perhaps in a circle: functions that call each other, or themselves. The circle is
//! sound as for any simulation: each pair is used only after a step that both sides take alike, so by induction over
//! the number of steps no run ever comes to a first difference. If one pair fails, its function is taken back, and then
//! what led to it does not hold any more and is refused in the next check.
//!
//! *Pointers* to G are what they were ([`crate::context::Context::pair_owner`] knows no pair of G's): G's old entry, at
//! which a jump leads to F'. So F and G have different addresses, as before, and no comparison of pointers tells.
//!
//! What is different is who a return address in F' belongs to: assumption A15. Debug information and symbols of F
//! describe F'; those of G describe its old body.

use super::super::Walk;
use crate::arch::Arch;
use crate::report::ChangeKind;

impl<A: Arch> Walk<'_, '_, A> {
    /// Counts the function if another's new code stands for it.
    pub(in crate::walk) fn count_folded(&mut self) {
        if self.f.folded.is_some() {
            self.count(ChangeKind::FoldedFunction);
        }
    }
}
