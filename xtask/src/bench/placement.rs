//! Where the blocks of an instrumented program for AArch64 are, and what its branches mean in the program
//! that it was made from.
//!
//! A profile must agree with what the very run that made it did: another run, even of the same program on the
//! same input, sees other addresses and other program headers, and takes other ways there. So the
//! instrumented program is what is traced, and its addresses are translated: block for block by what
//! `instrument --blocks` writes, and branches by reading the instructions.
//!
//! A branch of new code may arrive at its block in detours, all of which are followed: through the counter of
//! its edge, through a `b` that replaces a conditional branch without enough reach, through the old
//! code, where jump tables lead and a `b` leads on.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// What an instruction does with control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    On,
    /// `b.cond`, `cbz`, `cbnz`, `tbz`, `tbnz`.
    Conditional,
    Jump(u64),
    IndirectJump,
    Return,
    Call,
}

fn flow(word: u32, at: u64) -> Flow {
    match word {
        w if w & 0xfc00_0000 == 0x1400_0000 => {
            Flow::Jump(at.wrapping_add_signed(i64::from((w << 6).cast_signed() >> 6) * 4))
        }
        w if w & 0xfc00_0000 == 0x9400_0000 => Flow::Call,
        w if w & 0xff00_0000 == 0x5400_0000 || w & 0x7c00_0000 == 0x3400_0000 => Flow::Conditional,
        // br, blr, ret; the forms that authenticate have bit 11, those with a modifier bit 24.
        w if w & 0xfeff_f000 == 0xd61f_0000 => Flow::IndirectJump,
        w if w & 0xfeff_f000 == 0xd63f_0000 => Flow::Call,
        w if w & 0xfeff_f000 == 0xd65f_0000 => Flow::Return,
        _ => Flow::On,
    }
}

/// Taken branches by link-time addresses, by the branch: where it led and how often.
pub type Jumps = HashMap<u64, Vec<(u64, u64)>>;

/// An instrumented program.
pub struct Placement {
    /// New place of a block, by its address in the input.
    places: HashMap<u64, u64>,
    /// The other way round.
    blocks: HashMap<u64, u64>,
    /// Link-time address and contents of its segments.
    segments: Vec<(u64, Vec<u8>)>,
}

impl Placement {
    /// Reads what `instrument --blocks` wrote; `segments` are (link-time address, offset in the file, bytes there).
    pub fn read(blocks: &Path, program: &Path, segments: &[(u64, u64, u64)]) -> Result<Placement> {
        let text = fs::read_to_string(blocks).with_context(|| blocks.display().to_string())?;
        let mut placement = Placement {
            places: HashMap::new(),
            blocks: HashMap::new(),
            segments: vec![],
        };
        for line in text.lines() {
            let wrong = || format!("{}: '{line}' is not understood", blocks.display());
            let (input, output) = line.split_once(' ').with_context(wrong)?;
            let number = |word| u64::from_str_radix(word, 16).with_context(wrong);
            let (input, output) = (number(input)?, number(output)?);
            placement.places.insert(input, output);
            placement.blocks.insert(output, input);
        }
        let file = fs::read(program).with_context(|| program.display().to_string())?;
        for &(address, offset, size) in segments {
            let range = offset as usize..(offset as usize).saturating_add(size as usize);
            let bytes = file
                .get(range)
                .with_context(|| format!("{}: a segment is after its end", program.display()))?;
            placement.segments.push((address, bytes.to_vec()));
        }
        Ok(placement)
    }

    /// Where a block of the input is now.
    pub fn place(&self, block: u64) -> Option<u64> {
        self.places.get(&block).copied()
    }

    fn flow(&self, at: u64) -> Option<Flow> {
        let word = self.segments.iter().find_map(|(start, bytes)| {
            let from = usize::try_from(at.checked_sub(*start)?).ok()?;
            let word = bytes.get(from..from.checked_add(4)?)?;
            Some(u32::from_le_bytes(word.try_into().ok()?))
        })?;
        Some(flow(word, at))
    }

    /// The block of the input at which one arrives who is at `at` now.
    fn arrival(&self, mut at: u64, jumps: &Jumps) -> Option<u64> {
        for _ in 0..64 {
            if let Some(block) = self.blocks.get(&at) {
                return Some(*block);
            }
            at = match self.flow(at)? {
                Flow::On => at + 4,
                Flow::Jump(to) => to,
                // The end of a veneer, if it leads to one place only.
                Flow::IndirectJump => match jumps.get(&at)?[..] {
                    [(to, _)] => to,
                    _ => return None,
                },
                Flow::Conditional | Flow::Return | Flow::Call => return None,
            };
        }
        None
    }

    /// Where the branches at the end of a block led, by blocks of the input, and how often.
    pub fn taken(&self, block: u64, jumps: &Jumps) -> HashMap<u64, u64> {
        let mut found = HashMap::new();
        let Some(start) = self.place(block) else {
            return found;
        };
        let mut at = start;
        while at == start || !self.blocks.contains_key(&at) {
            let flow = self.flow(at);
            if matches!(
                flow,
                Some(Flow::Conditional | Flow::Jump(_) | Flow::IndirectJump)
            ) {
                for (to, count) in jumps.get(&at).into_iter().flatten() {
                    if let Some(block) = self.arrival(*to, jumps) {
                        *found.entry(block).or_default() += count;
                    }
                }
            }
            if !matches!(flow, Some(Flow::On | Flow::Call | Flow::Conditional)) {
                break;
            }
            at += 4;
        }
        found
    }
}
