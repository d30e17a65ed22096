//! The blocks of a function, and where control goes from each.
//!
//! A block begins at the function's start, at a label that something can come to ([`Label::begins_block`](crate::reader::Label::begins_block)), and behind a
//! branch. Calls do not end blocks; but whoever is called may not return, so a block with a call in it may be left before its end.
//! The same goes for inline assembly.
//!
//! Where control comes from cannot always be seen: a landing pad is entered by the unwinder, a label may be jumped to from the function's cold
//! part, or through a pointer. Such blocks are *roots*. A jump through a table may go to any label of the function whose address is
//! taken.
//!
//! The same numbering of blocks gives the signature of the graph: successors in the order fall-through, target.

use rustc_hash::FxHashMap;

use crate::flow::{self, Flow};
use crate::lexer::{self, Kind};
use crate::reader::{self, Function, Unit};
use crate::report::Reason;
use crate::target::{Arch, Target};

/// A block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// Where in the text its counter goes.
    pub position: u32,
    /// Blocks that may follow.
    pub successors: Vec<u32>,
    /// Whether it may be left before its end, or to outside of the function.
    pub may_leave: bool,
    /// Whether control may come to it from outside.
    pub is_root: bool,
}

/// What the last instruction of a block does.
#[derive(Clone, Copy)]
enum End<'a> {
    Falls,
    Flow(Flow<'a>),
}

/// The blocks of a function in the order of the text, or why they are left alone.
pub fn blocks(
    unit: &Unit<'_>,
    function: &Function<'_>,
    target: Target,
) -> Result<Vec<Block>, Reason> {
    if function.opaque {
        return Err(Reason::OpaqueBlocks);
    }
    let mut blocks: Vec<Block> = vec![];
    let mut ends: Vec<End<'_>> = vec![];
    let mut at_label: FxHashMap<&[u8], u32> = FxHashMap::default();
    let mut own_branches: FxHashMap<&[u8], u32> = FxHashMap::default();
    let mut waiting: Vec<&[u8]> = vec![];
    // Whether the next instruction begins a block; whether nothing falls into it.
    let (mut begins, mut dead) = (true, false);
    let (mut in_app, mut any_app, mut any_indirect, mut short) = (false, false, false, false);
    let mut instructions = 0usize;
    for index in function.statements().skip(1) {
        let statement = unit.statements[index];
        let text = statement.text(unit.source);
        match statement.kind {
            Kind::Label => {
                let label = unit.labels.get(text).copied().unwrap_or_default();
                if label.narrow {
                    return Err(Reason::NarrowBlocks);
                }
                if !in_app && label.begins_block() {
                    begins = true;
                    dead = false;
                    waiting.push(text);
                }
                continue;
            }
            Kind::Directive => {
                let (directive, _) = lexer::word(text);
                if matches!(
                    directive,
                    b".long" | b".quad" | b".byte" | b".word" | b".hword" | b".short" | b".zero"
                ) {
                    waiting.clear();
                    (begins, dead) = (true, true);
                }
                continue;
            }
            Kind::AppEnd => {
                in_app = false;
                continue;
            }
            Kind::Assignment => continue,
            Kind::AppStart => (in_app, any_app) = (true, true),
            Kind::Instruction => instructions += 1,
        }
        if dead {
            continue;
        }
        if begins {
            let number = blocks.len() as u32; // fewer than bytes of the text
            for label in waiting.drain(..) {
                at_label.insert(label, number);
            }
            let first =
                statement.kind == Kind::Instruction && reader::must_be_first(target.arch, text);
            blocks.push(Block {
                position: if first {
                    statement.end
                } else {
                    statement.start
                },
                ..Block::default()
            });
            ends.push(End::Falls);
            begins = false;
        }
        let (Some(block), Some(end)) = (blocks.last_mut(), ends.last_mut()) else {
            continue;
        };
        if in_app {
            block.may_leave = true;
            continue;
        }
        let flow = flow::flow(target.arch, text);
        if let Some(label) = flow.target() {
            *own_branches.entry(label).or_default() += 1;
            short |= matches!(lexer::word(text).0, b"tbz" | b"tbnz");
        }
        match flow {
            Flow::Next => {}
            Flow::Call(_) => block.may_leave = true,
            _ => {
                *end = End::Flow(flow);
                begins = true;
                dead = flow.ends();
                any_indirect |= flow == Flow::Indirect;
            }
        }
    }
    // Each counter is up to five instructions. 32 KiB is as far as these branches reach.
    let grown = instructions + 5 * blocks.len();
    if target.arch == Arch::AArch64 && short && grown > 8000 {
        return Err(Reason::NarrowBlocks);
    }
    connect(
        unit,
        &mut blocks,
        &ends,
        &at_label,
        &own_branches,
        any_app,
        any_indirect,
    );
    Ok(blocks)
}

fn connect(
    unit: &Unit<'_>,
    blocks: &mut [Block],
    ends: &[End<'_>],
    at_label: &FxHashMap<&[u8], u32>,
    own_branches: &FxHashMap<&[u8], u32>,
    any_app: bool,
    any_indirect: bool,
) {
    let mut indirect: Vec<u32> = vec![];
    for (name, &number) in at_label {
        let label = unit.labels.get(name).copied().unwrap_or_default();
        if label.address_taken {
            indirect.push(number);
        }
        let from_elsewhere = label.branches > own_branches.get(name).copied().unwrap_or(0);
        let by_pointer = label.address_taken && (any_app || !any_indirect);
        if from_elsewhere || by_pointer || label.called || label.is_landing_pad() {
            blocks[number as usize].is_root = true; // numbers of blocks
        }
    }
    indirect.sort_unstable();
    indirect.dedup();
    let count = blocks.len();
    for (index, (block, end)) in blocks.iter_mut().zip(ends).enumerate() {
        let mut falls = false;
        match *end {
            End::Falls => falls = true,
            End::Flow(Flow::Jump(label)) | End::Flow(Flow::Branch(label)) => {
                falls = matches!(end, End::Flow(Flow::Branch(_)));
                match at_label.get(label) {
                    Some(&target) => block.successors.push(target),
                    None => block.may_leave = true,
                }
            }
            End::Flow(Flow::Indirect) => {
                block.successors.clone_from(&indirect);
                block.may_leave |= indirect.is_empty();
            }
            End::Flow(_) => block.may_leave = true,
        }
        if falls {
            if index + 1 < count {
                block.successors.insert(0, index as u32 + 1);
            } else {
                block.may_leave = true;
            }
        }
        let mut seen = vec![];
        block.successors.retain(|successor| {
            let new = !seen.contains(successor);
            if new && seen.len() < 64 {
                seen.push(*successor);
            }
            new
        });
    }
    if let Some(entry) = blocks.first_mut() {
        entry.is_root = true;
    }
}
