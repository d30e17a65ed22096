//! What conditional branches ask: the branch itself (`cbz`, `tbz`), or the last instruction before that set the flags.

use super::{AArch64, effects};
use crate::{Compared, Cond, Decode, Question, Relation};

/// The instruction at the beginning of `bytes`.
fn word(bytes: &[u8]) -> Option<u32> {
    let word: [u8; 4] = bytes.get(..4)?.try_into().ok()?;
    Some(u32::from_le_bytes(word))
}

/// See [`crate::Decode::question`].
pub fn question(bytes: &[u8], addr: u64, cond: Cond) -> Question {
    let branch = cond.0;
    let equal = if branch & 1 << 24 == 0 {
        Relation::Equal
    } else {
        Relation::NotEqual
    };
    match branch & 0x7e00_0000 {
        // cbz, cbnz
        0x3400_0000 => {
            return Question {
                relation: equal,
                with: Compared::Zero,
                wide: branch >> 31 == 1,
                memory: false,
            };
        }
        // tbz, tbnz
        0x3600_0000 => {
            return Question {
                relation: equal,
                with: Compared::Bits,
                ..Question::default()
            };
        }
        _ => {}
    }
    let relation = match branch & 15 {
        0 => Relation::Equal,
        1 => Relation::NotEqual,
        2 => Relation::AboveOrEqual,
        3 => Relation::Below,
        4 | 11 => Relation::Less,
        5 | 10 => Relation::GreaterOrEqual,
        8 => Relation::Above,
        9 => Relation::BelowOrEqual,
        12 => Relation::Greater,
        13 => Relation::LessOrEqual,
        _ => Relation::Other,
    };
    let mut setter = None;
    AArch64::sweep(bytes, addr, |insn| {
        let own = bytes.get(insn.addr.wrapping_sub(addr) as usize..);
        let own = own.unwrap_or_default();
        if effects::effects(own, insn).kills.meets(AArch64::FLAGS) {
            setter = word(own);
        }
        true
    });
    let setter = setter.unwrap_or(0);
    Question {
        relation,
        with: compared(setter),
        wide: setter >> 31 == 1,
        memory: false,
    }
}

fn compared(setter: u32) -> Compared {
    let immediate = setter >> 10 & 0xfff;
    match setter & 0x7f00_0000 {
        // subs, adds with a number
        0x7100_0000 if immediate == 0 => Compared::Zero,
        0x3100_0000 if immediate == 1 => Compared::MinusOne,
        0x7100_0000 | 0x3100_0000 => Compared::Number,
        // subs with a register
        0x6b00_0000 => Compared::Variable,
        // ands, with a number or a register
        0x7200_0000 | 0x6a00_0000 => Compared::Bits,
        0x1e00_0000 => Compared::Float,
        _ => Compared::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(words: &[u32], branch: u32) -> Question {
        let words = words.iter().chain([&branch]);
        let bytes: Vec<u8> = words.flat_map(|w| w.to_le_bytes()).collect();
        question(&bytes, 0x1000, Cond(branch))
    }

    #[test]
    fn branches_ask_of_what_they_test_themselves() {
        let cbnz_x0 = asked(&[], 0xb500_0000);
        let zero = (Relation::NotEqual, Compared::Zero, true);
        assert_eq!((cbnz_x0.relation, cbnz_x0.with, cbnz_x0.wide), zero);
        let tbz = asked(&[], 0x3600_0000);
        assert_eq!((tbz.relation, tbz.with), (Relation::Equal, Compared::Bits));
    }

    #[test]
    fn branches_on_flags_ask_of_the_last_comparison() {
        // cmp w0, #0; mov x1, x2; b.le
        let q = asked(&[0x7100_001f, 0xaa02_03e1], 0x5400_000d);
        let wanted = (Relation::LessOrEqual, Compared::Zero, false);
        assert_eq!((q.relation, q.with, q.wide), wanted);
        // cmp x0, x1; b.hi
        let q = asked(&[0xeb01_001f], 0x5400_0008);
        let wanted = (Relation::Above, Compared::Variable, true);
        assert_eq!((q.relation, q.with, q.wide), wanted);
    }
}
