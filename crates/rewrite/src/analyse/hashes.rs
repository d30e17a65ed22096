//! Hashes of functions and blocks that tell whether code is still what it was, or nearly.
//!
//! A profile of an older build is still good for most of a program. To find out for which part, a profile by
//! blocks carries a hash of every block, made of five pieces that each survive another kind of change
//! (Ayupov, Panchenko, Pupyrev: "Stale Profile Matching", CC 2024). The word is laid out as BOLT's:
//!
//! | bits | piece | survives |
//! |---|---|---|
//! | 0–15 | offset from the function's start, low bits | nothing: it decides between equals |
//! | 16–31 | *loose*: the set of names of instructions | other registers, constants, order |
//! | 32–47 | *strict*: instructions in order with their operands | moving the function, other lengths of branches |
//! | 48–55 | the loose hashes of the blocks before | changes in the block itself |
//! | 56–63 | the loose hashes of the blocks after | likewise |
//!
//! Every piece is cut from an XXH3 of a text:
//!
//! * loose text: mnemonics as [`mnemonics`](postlink_isa::Decode::mnemonics) says them, sorted, each once, run
//!   together. A conditional jump is `JMP`; no-ops and plain jumps are left out. This is LLVM's text too, where
//!   both call an instruction the same, so profiles that BOLT wrote match as well.
//! * strict text: of each instruction but plain jumps its bytes, where what depends on addresses is cut out:
//!   fields relative to the instruction and absolute addresses. A branch or a direct call is its mnemonic.
//!   LLVM hashes its own numbers of operations and registers here, which no other tool can know: the pieces of
//!   the two are never equal but by chance.
//! * the hash of a function: strict text without operands, that is the mnemonics in order.
//!
//! Blocks are BOLT's ([`crate::analyse::bolt_blocks`]).

use postlink_isa::{Flow, Insn, Isa};
use xxhash_rust::xxh3::xxh3_64;

use super::bolt_blocks::BoltBlocks;
use crate::cfg::{Cfg, Term};
use crate::discover::Program;

/// The pieces of a block's hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockHash {
    /// Offset from the start of the function.
    pub offset: u16,
    /// Names of instructions.
    pub loose: u16,
    /// Instructions with operands.
    pub strict: u16,
    /// Blocks before.
    pub before: u8,
    /// Following blocks.
    pub behind: u8,
}

impl BlockHash {
    /// As one word.
    pub fn word(self) -> u64 {
        u64::from(self.offset)
            | u64::from(self.loose) << 16
            | u64::from(self.strict) << 32
            | u64::from(self.before) << 48
            | u64::from(self.behind) << 56
    }

    /// From one word.
    pub fn from_word(word: u64) -> BlockHash {
        BlockHash {
            offset: word as u16,
            loose: (word >> 16) as u16,
            strict: (word >> 32) as u16,
            before: (word >> 48) as u8,
            behind: (word >> 56) as u8,
        }
    }

    /// How unlike two blocks of the same loose hash are: neighbours first, then operands, then offsets.
    pub fn distance(self, other: BlockHash) -> u64 {
        let neighbours =
            u64::from(self.behind != other.behind) + u64::from(self.before != other.before);
        let strict = u64::from(self.strict != other.strict);
        let offset = u64::from(self.offset.abs_diff(other.offset));
        neighbours << 32 | strict << 16 | offset
    }
}

/// Hashes of one part of a function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartHashes {
    /// The whole part's.
    pub function: u64,
    /// By block of the part.
    pub blocks: Vec<BlockHash>,
    /// Instructions by block, prefixes that LLVM takes for instructions included.
    pub lengths: Vec<u32>,
}

/// Hashes the blocks of a part of a function.
pub fn of_part<I: Isa>(
    program: &Program<'_>,
    cfg: &Cfg,
    blocks: &BoltBlocks,
    part: usize,
) -> PartHashes {
    let range = blocks.part(part);
    let mut out = PartHashes::default();
    let mut loose_of = Vec::with_capacity(range.len());
    let mut whole: Vec<u8> = Vec::new();
    let mut strict: Vec<u8> = Vec::new();
    let mut names: Vec<String> = Vec::new();
    let start = range.clone().next().map_or(0, |b| {
        cfg.blocks[blocks.blocks[b as usize].first as usize].start
    });
    for b in range.clone() {
        strict.clear();
        names.clear();
        let mut length = 0;
        let block = blocks.blocks[b as usize];
        let from = cfg.blocks[block.first as usize].start;
        let last = &cfg.blocks[block.last as usize];
        let to = last.end;
        let plain_jump = match last.term {
            Term::Jump => last.term_at,
            _ => 0,
        };
        let bytes = program.elf.bytes_at(from, to - from).unwrap_or_default();
        I::mnemonics(bytes, from, |insn, name| {
            length += name.split(' ').count() as u32;
            // A jump out of the function is a call that does not come back, and counts.
            if matches!(insn.flow, Flow::Jump { .. }) && insn.addr == plain_jump {
                return;
            }
            whole.extend_from_slice(name.as_bytes());
            push_strict(program, insn, name, bytes, from, &mut strict);
            if insn.traits.nop {
                return;
            }
            let conditional = matches!(insn.flow, Flow::CondJump { .. } | Flow::ShortCond { .. });
            for name in name.split(' ') {
                let name = if conditional { "JMP" } else { name };
                if !names.iter().any(|n| n == name) {
                    names.push(name.to_owned());
                }
            }
        });
        names.sort_unstable();
        let loose = xxh3_64(names.concat().as_bytes());
        loose_of.push(loose);
        out.lengths.push(length);
        out.blocks.push(BlockHash {
            offset: (from - start) as u16,
            loose: loose as u16,
            strict: xxh3_64(&strict) as u16,
            before: 0,
            behind: 0,
        });
    }
    let own = |b: u32| range.contains(&b).then(|| (b - range.start) as usize);
    let mut before = vec![0u64; range.len()];
    let mut behind = vec![0u64; range.len()];
    // LLVM adds the branches of a function first and then what runs into the next block; that decides the
    // order of the blocks before one.
    for falls in [false, true] {
        for b in range.clone() {
            let Some(i) = own(b) else { continue };
            for (source, k, to) in blocks.edges(cfg, b) {
                let block = &cfg.blocks[source as usize];
                let runs_on = match block.term {
                    Term::Fall | Term::CondOut { .. } | Term::ShortCondOut { .. } => true,
                    Term::Cond { .. } | Term::ShortCond => k == 1,
                    _ => false,
                };
                if runs_on != falls {
                    continue;
                }
                if let Some(j) = own(to) {
                    behind[i] = mix(behind[i], loose_of[j]);
                    before[j] = mix(before[j], loose_of[i]);
                }
            }
        }
    }
    for (i, block) in out.blocks.iter_mut().enumerate() {
        block.before = before[i] as u8;
        block.behind = behind[i] as u8;
    }
    out.function = xxh3_64(&whole);
    out
}

/// Appends an instruction without what depends on addresses.
fn push_strict(
    program: &Program<'_>,
    insn: &Insn,
    name: &str,
    bytes: &[u8],
    from: u64,
    out: &mut Vec<u8>,
) {
    out.extend_from_slice(name.as_bytes());
    match insn.flow {
        Flow::Jump { .. } | Flow::CondJump { .. } | Flow::ShortCond { .. } | Flow::Call { .. } => {}
        _ => {
            let absolute = program.refs.absolute_fields_in(insn.addr, insn.end());
            for address in insn.addr..insn.end() {
                let relative = insn.field.is_some_and(|f| {
                    let at = insn.addr + u64::from(f.at);
                    (at..at + 4).contains(&address)
                });
                let cut = relative || absolute.iter().any(|f| (f.0..f.0 + 4).contains(&address));
                if !cut && let Some(byte) = bytes.get((address - from) as usize) {
                    out.push(*byte);
                }
            }
        }
    }
    out.push(0);
}

/// One step of the fold over a block's neighbours: CityHash's 128-to-64-bit mixing of `low` and `high`.
fn mix(low: u64, high: u64) -> u64 {
    const K: u64 = 0x9ddf_ea08_eb38_2d69;
    let mut a = (low ^ high).wrapping_mul(K);
    a ^= a >> 47;
    let mut b = (high ^ a).wrapping_mul(K);
    b ^= b >> 47;
    b.wrapping_mul(K)
}

/// What the header of a YAML profile says when its hashes are ours.
pub const ORIGIN: &str = "postlink";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pieces_of_a_hash_come_back_from_its_word() {
        let hash = BlockHash {
            offset: 0x1234,
            loose: 0xdda8,
            strict: 0xbeef,
            before: 0x17,
            behind: 0xfe,
        };
        assert_eq!(hash.word(), 0xfe17_beef_dda8_1234);
        assert_eq!(BlockHash::from_word(hash.word()), hash);
    }

    #[test]
    fn neighbours_count_more_than_operands_and_these_more_than_places() {
        let hash = BlockHash::default();
        let far = BlockHash {
            offset: 0xffff,
            ..hash
        };
        let other = BlockHash { strict: 1, ..hash };
        let moved = BlockHash { before: 1, ..hash };
        assert_eq!(hash.distance(hash), 0);
        assert!(hash.distance(far) < hash.distance(other));
        assert!(
            hash.distance(BlockHash {
                offset: 0xffff,
                ..other
            }) < hash.distance(moved)
        );
    }

    #[test]
    fn the_loose_text_is_llvms() {
        // From a profile that llvm-bolt 19 wrote.
        assert_eq!(xxh3_64(b"addqjmpq*leaqmovlmovslq") as u16, 0xdda8);
    }
}
