//! What decides on counters per thread, noted while all code is swept: what may be an obstacle to them, and what pieces
//! jump to, as a function that leaves by a jump to one that forks does so itself. Then code need not be decoded once
//! more, but for the few pieces of which that says that they are to be looked at.

use postlink_isa::{Flow, Insn, Isa};

use super::refs::Refs;

/// What is known of some pieces, in their order.
#[derive(Debug, Default)]
pub struct Survey {
    /// Pieces with an instruction that may be an obstacle, each once.
    pub suspects: Vec<u32>,
    /// Pieces, and what they jump to other than their insides; nothing where that is not known.
    pub jumps: Vec<(u32, Option<u64>)>,
}

impl Survey {
    /// The next instruction of a piece that begins at `start`; `bytes` begin with the instruction.
    #[inline]
    pub(super) fn instruction<I: Isa>(
        &mut self,
        refs: &Refs,
        (piece, start, end): (u32, u64, u64),
        insn: &Insn,
        bytes: &[u8],
    ) {
        let to = match insn.flow {
            Flow::Next => {
                let suspect = I::may_be_per_thread_obstacle(bytes);
                if suspect && self.suspects.last() != Some(&piece) {
                    self.suspects.push(piece);
                }
                return;
            }
            Flow::Jump { target } => Some(target),
            Flow::IndirectJump => {
                let slot = insn.slot();
                slot.map(|slot| refs.constant_slot(slot).unwrap_or(slot))
            }
            _ => return,
        };
        if to.is_none_or(|to| to <= start || to >= end) {
            self.jumps.push((piece, to));
        }
    }

    /// What is known of all pieces, by what is known of parts of them.
    pub(super) fn of_all(parts: Vec<Survey>) -> Survey {
        let mut all = Survey::default();
        for part in parts {
            all.suspects.extend(part.suspects);
            all.jumps.extend(part.jumps);
        }
        all
    }
}
