//! Where the blocks of a function went: found in the output's code.
//!
//! The note in an output says which ranges a function has now, and where its entries and the targets of its
//! tables are. Where each block is follows from walking both sides at once: bodies of blocks are copied byte
//! for byte, so the branch at the end of a block is as far from its start as it was, or is gone, or is
//! another one. What the branch does on both sides says where the next blocks are. Targets of indirect jumps
//! are where the output's tables say.
//!
//! This is for a picture, not a proof. What is reached neither by branches nor by the note's labels (landing
//! pads of exceptions) has no place; the page says how much of what ran that is.

use postlink_elf::elf::Elf;
use postlink_elf::note::MovedFunction;
use postlink_isa::{Flow, Insn, Isa};
use postlink_rewrite::facts::{Block, Ending, Ran};

/// A block's place in the output: start and end, with the branches that are after it now.
pub type Place = (u64, u64);

struct Walk<'a, I> {
    old: &'a Elf<'a>,
    new: &'a Elf<'a>,
    ranges: &'a [(u64, u64)],
    blocks: &'a [Block],
    places: Vec<Option<Place>>,
    /// Blocks to look at, and where.
    todo: Vec<(u32, u64)>,
    isa: std::marker::PhantomData<I>,
}

/// Blocks are not aligned to more.
const MOST_PADDING: u64 = 64;
/// Longest instruction.
const LONGEST: u64 = 15;

fn decode<I: Isa>(elf: &Elf<'_>, at: u64) -> Option<Insn> {
    (1..=LONGEST)
        .rev()
        .find_map(|len| elf.bytes_at(at, len))
        .and_then(|bytes| I::decode(bytes, at))
}

/// The places of a moved function's blocks.
pub fn places<I: Isa>(
    old: &Elf<'_>,
    new: &Elf<'_>,
    moved: &MovedFunction,
    ran: &Ran,
) -> Vec<Option<Place>> {
    let blocks = &ran.blocks[..];
    let mut walk = Walk::<I> {
        old,
        new,
        ranges: &moved.new,
        blocks,
        places: vec![None; blocks.len()],
        todo: Vec::new(),
        isa: std::marker::PhantomData,
    };
    let entry = moved.new.first().map(|range| (moved.entry, range.0));
    for (from, to) in entry.into_iter().chain(moved.labels.iter().copied()) {
        // By position, as parts may be in any order.
        if let Some(b) = blocks.iter().position(|block| block.start == from) {
            walk.todo.push((b as u32, to));
        }
    }
    for entry in &ran.tables {
        let word = new.bytes_at(entry.place, entry.width);
        let distance = match word.unwrap_or_default() {
            &[a, b, c, d] => Some(i64::from(i32::from_le_bytes([a, b, c, d]))),
            bytes => <[u8; 8]>::try_from(bytes).ok().map(i64::from_le_bytes),
        };
        if let Some(distance) = distance {
            let to = entry.base.wrapping_add_signed(distance);
            walk.todo.push((entry.block, to));
        }
    }
    for (at, block) in &ran.anchored_targets {
        if let Some((_, to)) = walk.jump_at(*at) {
            walk.todo.push((*block, to));
        }
    }
    while let Some((b, at)) = walk.todo.pop() {
        walk.look(b, at);
    }
    walk.places
}

impl<I: Isa> Walk<'_, I> {
    fn is_inside(&self, at: u64) -> bool {
        self.ranges
            .iter()
            .any(|(start, len)| at >= *start && at - start < *len)
    }

    fn jump_at(&self, at: u64) -> Option<(u64, u64)> {
        match decode::<I>(self.new, at) {
            Some(insn) => match insn.flow {
                Flow::Jump { target } if self.is_inside(target) => Some((insn.end(), target)),
                _ => None,
            },
            None => None,
        }
    }

    /// Whether a block is nothing but a jump to another.
    fn is_jump(&self, b: u32) -> bool {
        let block = self.blocks.get(b as usize);
        block.is_some_and(|b| b.ending == Ending::Jumps && b.branch == b.start)
    }

    /// A block is at `at`, or there is a jump that was put in and leads to it.
    ///
    /// Where the block is a jump itself the one that is there may be either. It was put in if it leads to
    /// another jump and the block does not.
    fn goes_on(&mut self, to: u32, at: u64) -> u64 {
        let put_in = self.jump_at(at).filter(|(_, target)| {
            let behind = self.blocks.get(to as usize).and_then(|b| b.edges.first());
            !self.is_jump(to)
                || (self.jump_at(*target).is_some()
                    && !behind.is_some_and(|edge| self.is_jump(edge.to)))
        });
        match put_in {
            Some((end, target)) => {
                self.todo.push((to, target));
                end
            }
            None => {
                self.todo.push((to, self.behind_padding(to, at)));
                at
            }
        }
    }

    /// Whether a block may begin at `at`: its first instruction is as long there and does the same to
    /// control. Branches that are re-encoded say nothing.
    fn may_begin(&self, block: &Block, at: u64) -> bool {
        if block.branch == block.start {
            return true;
        }
        let insn = |elf, at| decode::<I>(elf, at).map(|i| (i.len, std::mem::discriminant(&i.flow)));
        insn(self.old, block.start) == insn(self.new, at)
    }

    /// Past padding that was put in front of a block, which does not begin with any itself.
    fn behind_padding(&self, to: u32, at: u64) -> u64 {
        let is_nop = |elf, at| decode::<I>(elf, at).filter(|insn| insn.traits.nop);
        let old = self.blocks.get(to as usize).map_or(at, |b| b.start);
        let (mut here, limit) = (at, at.saturating_add(MOST_PADDING));
        if is_nop(self.old, old).is_none() {
            while let Some(nop) = is_nop(self.new, here).filter(|_| here < limit) {
                here = nop.end();
            }
        }
        here
    }

    fn look(&mut self, b: u32, at: u64) {
        let Some(block) = self.blocks.get(b as usize) else {
            return;
        };
        let is_known = self.places[b as usize].is_some();
        if is_known || !self.is_inside(at) || !self.may_begin(block, at) {
            return;
        }
        let body = at.saturating_add(block.branch - block.start);
        let ways: Vec<u32> = block.edges.iter().map(|e| e.to).collect();
        let end = match (block.ending, &ways[..]) {
            (Ending::Falls | Ending::Jumps, [to, ..]) => {
                let to = *to;
                self.places[b as usize] = Some((at, body));
                self.goes_on(to, body)
            }
            (Ending::Branches, [_, ..]) => {
                let was = decode::<I>(self.old, block.branch).map(|insn| insn.flow);
                let is = decode::<I>(self.new, body);
                let Some(insn) = is else { return };
                let (target, turned) = match (was, insn.flow) {
                    (Some(Flow::CondJump { cond: was, .. }), Flow::CondJump { cond, target }) => {
                        (target, was != cond)
                    }
                    (_, Flow::ShortCond { target }) => (target, false),
                    _ => return,
                };
                self.places[b as usize] = Some((at, insn.end()));
                match (&ways[..], turned) {
                    ([taken, on], _) => {
                        let (there, here) = if turned { (*on, *taken) } else { (*taken, *on) };
                        self.goes_on(there, target);
                        self.goes_on(here, insn.end())
                    }
                    ([on], true) => {
                        self.goes_on(*on, target);
                        insn.end()
                    }
                    ([on], false) => self.goes_on(*on, insn.end()),
                    _ => insn.end(),
                }
            }
            _ => at.saturating_add(block.end - block.start),
        };
        self.places[b as usize] = Some((at, end));
    }
}
