//! A walk through AArch64 code: at each branch one of its ways is taken by chance.

use super::Picked;

/// A pseudo-random sequence (xorshift), the same in every run.
pub struct Chance(pub u64);

impl Chance {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// Code to walk through.
pub struct Code<'a> {
    pub start: u64,
    pub bytes: &'a [u8],
}

enum Step {
    Next,
    /// Target; whether the next instruction may follow instead; whether it is a call.
    Branch(u64, bool, bool),
    Return,
    /// Where to is not in the code.
    Unknown,
}

impl Code<'_> {
    fn word(&self, pc: u64) -> Option<u32> {
        let at = usize::try_from(pc.checked_sub(self.start)?).ok()?;
        Some(u32::from_le_bytes(
            self.bytes.get(at..at + 4)?.try_into().ok()?,
        ))
    }

    fn step(&self, pc: u64) -> Option<Step> {
        let word = self.word(pc)?;
        let target = |bits: u32, low: u32| {
            let field = i64::from(word) >> low & ((1 << bits) - 1);
            let signed = field << (64 - bits) >> (64 - bits);
            pc.wrapping_add_signed(4 * signed)
        };
        Some(match word >> 24 {
            0x14..=0x17 => Step::Branch(target(26, 0), false, false),
            0x94..=0x97 => Step::Branch(target(26, 0), false, true),
            0x54 => Step::Branch(target(19, 5), true, false),
            0x34 | 0x35 | 0xb4 | 0xb5 => Step::Branch(target(19, 5), true, false),
            0x36 | 0x37 | 0xb6 | 0xb7 => Step::Branch(target(14, 5), true, false),
            0xd6 if word & 0xffff_fc1f == 0xd65f_0000 => Step::Return,
            0xd6 | 0xd4 => Step::Unknown,
            _ => Step::Next,
        })
    }

    /// Every branch of walks that begin at `entries`, until there are `count`; each with the target before it.
    pub fn branches(&self, entries: &[u64], count: usize, chance: &mut Chance) -> Vec<Picked> {
        let mut out: Vec<Picked> = Vec::new();
        while out.len() < count {
            let mut pc = entries[chance.below(entries.len() as u64) as usize];
            let (mut calls, mut previous) = (Vec::new(), None);
            for _ in 0..4000 {
                let Some(step) = self.step(pc) else { break };
                let (target, not_taken) = match step {
                    Step::Next => {
                        pc += 4;
                        continue;
                    }
                    Step::Unknown => break,
                    Step::Return => match calls.pop() {
                        Some(target) => (target, false),
                        None => break,
                    },
                    Step::Branch(_, true, _) if chance.below(3) == 0 => (pc + 4, true),
                    Step::Branch(target, _, call) => {
                        if call && self.word(target).is_some() {
                            calls.push(pc + 4);
                        }
                        (target, false)
                    }
                };
                out.push(Picked {
                    pc,
                    branch: true,
                    target: Some(target),
                    previous,
                    not_taken,
                    mispredicted: chance.below(8) == 0,
                    ..Picked::default()
                });
                if !not_taken {
                    previous = Some(target);
                }
                pc = target;
            }
        }
        out.truncate(count);
        out
    }
}
