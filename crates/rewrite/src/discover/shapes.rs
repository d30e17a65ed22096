//! What the number of a function's counters follows from, noted while all code is swept: then functions that did not
//! run need not be decoded again when a profile is read.
//!
//! A function has *edges − nodes + components* counters, of its [flow graph](crate::analyse), which has a node for
//! the outside and two for each block. A function whose control flow is plain, with one entry and without indirect
//! jumps, landing pads and the like, has one entry edge; each block has an edge of its own and one for each way out:
//! two if it ends in a conditional jump, else one (a return is a way to the outside). Where a call may leave in another
//! way than by returning, its block ends and has a second way out, to the outside. So a block takes two nodes and gives
//! two edges, or three: in a connected graph of *B* blocks, *C* conditional jumps and *N* such calls there are
//!
//! *(1 + B + B + C + N) − (1 + 2 B) + 1 = 1 + C + N*
//!
//! counters. Where blocks begin does not matter, and which calls may leave is known later. It is left to see that
//! every jump leads to an instruction, or the function stays, and that the graph is connected: dead code that runs for
//! ever is not. Code is a sequence of *runs*, which end where control does not go on to the next instruction: the first
//! one is connected with the outside, a run that leaves is as well, and runs are connected by what jumps from one to
//! another. Where a part is left, the piece is not plain, though a call may yet leave it.

use postlink_elf::elf::{Elf, SymbolTable};
use postlink_isa::{FixupKind, Flow, Insn};

use super::program::Piece;
use super::refs::Refs;

/// What is known of a plain piece.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Conditional jumps.
    pub conditional: u32,
    /// Indirect calls whose targets have to be recorded.
    pub sites: u32,
    /// How many of its instructions' ends before the piece's are calls.
    calls: u32,
    /// Number of the first of them, among those of its part.
    first_call: u32,
    /// How far from the entry the second block begins at the least; 255 for that and more.
    pub second_block: u8,
    /// Whether it is plain: else nothing else here means anything.
    plain: bool,
}

/// What is known of all pieces.
#[derive(Debug, Default)]
pub struct Shapes {
    /// So many pieces are in a part, but for the last.
    size: usize,
    parts: Vec<Part>,
}

/// What is known of some pieces, in their order.
#[derive(Debug, Default)]
pub(super) struct Part {
    shapes: Vec<Shape>,
    /// By call: the function, stub or slot that is called; 0 if that is not known.
    callees: Vec<u32>,
}

impl Shapes {
    pub(super) fn new(size: usize, parts: Vec<Part>) -> Shapes {
        Shapes { size, parts }
    }

    /// A piece that is plain, and what its calls lead to that are not at its end: a function, a stub, or a slot that
    /// something else fills; nothing where that is not known.
    pub fn plain(&self, piece: usize) -> Option<(Shape, impl Iterator<Item = Option<u64>>)> {
        let part = self.parts.get(piece.checked_div(self.size)?)?;
        let shape = *part.shapes.get(piece % self.size)?;
        let first = shape.first_call as usize;
        let callees = part.callees.get(first..first + shape.calls as usize)?;
        let callees = callees.iter().map(|c| (*c != 0).then_some(u64::from(*c)));
        shape.plain.then_some((shape, callees))
    }
}

/// A jump, or an end of a piece's code.
#[derive(Clone, Copy)]
struct Way {
    /// The number of the run that it is in.
    run: u32,
    /// Where it leads, in bytes from the piece's first; [`OUTSIDE`] if it leaves.
    to: u32,
}

/// Out of the piece.
const OUTSIDE: u32 = u32::MAX;

/// Looks at pieces one after the other.
#[derive(Default)]
pub(super) struct Outline {
    part: Part,
    piece: Shape,
    start: u64,
    len: u64,
    /// By byte of the piece, a bit: an instruction begins there.
    begins: Vec<u64>,
    ways: Vec<Way>,
    /// By run that an instruction ends: one past its last byte, from the piece's first.
    runs: Vec<u32>,
    /// Some run but the first ends in a jump inside.
    jumps_on: bool,
    /// For [`Outline::is_connected`].
    parents: Vec<u32>,
}

impl Outline {
    /// The part of the pieces that were looked at.
    pub fn finish(mut self) -> Part {
        self.part.shapes.shrink_to_fit();
        self.part.callees.shrink_to_fit();
        self.part
    }

    /// Begins with a piece.
    pub fn begin(&mut self, piece: &Piece) {
        (self.start, self.len) = (piece.start, piece.end - piece.start);
        self.piece = Shape {
            first_call: self.part.callees.len() as u32,
            second_block: u8::MAX,
            plain: self.len < u64::from(OUTSIDE),
            ..Shape::default()
        };
        self.ways.clear();
        self.runs.clear();
        self.jumps_on = false;
        self.begins.clear();
        if self.piece.plain {
            self.begins.resize(self.len.div_ceil(64) as usize, 0);
        }
    }

    /// The piece is not plain.
    pub fn is_not_plain(&mut self) {
        self.piece.plain = false;
    }

    /// The next instruction of the piece.
    #[inline]
    pub fn instruction(&mut self, elf: &Elf<'_>, refs: &Refs, insn: &Insn) {
        if !self.piece.plain {
            return;
        }
        let at = (insn.addr - self.start) as usize;
        self.begins[at / 64] |= 1 << (at % 64);
        let anchors = insn.field.is_some_and(|f| f.kind == FixupKind::Adr);
        if insn.traits.exclusive_load || insn.traits.system_call || anchors {
            self.piece.plain = false;
        } else if insn.flow != Flow::Next {
            self.flow(elf, refs, insn);
        }
    }

    fn flow(&mut self, elf: &Elf<'_>, refs: &Refs, insn: &Insn) {
        let end = insn.end() - self.start;
        let last = end >= self.len;
        // A block may begin behind the instruction.
        self.block_at(end);
        match insn.flow {
            Flow::Next => {}
            Flow::Jump { target } => {
                self.piece.plain &= !insn.traits.prefixed;
                let to = self.way(target);
                self.jumps_on |= to != OUTSIDE && !self.runs.is_empty();
                self.runs.push(end as u32);
            }
            Flow::CondJump { target, .. } | Flow::ShortCond { target } => {
                let prefixed = insn.traits.prefixed && !matches!(insn.flow, Flow::ShortCond { .. });
                self.piece.plain &= !prefixed && !last;
                self.piece.conditional += 1;
                self.way(target);
            }
            Flow::Call { target } => self.call(Some(target), last),
            Flow::IndirectCall => {
                let slot = insn.slot();
                let constant = slot.and_then(|slot| refs.constant_slot(slot));
                let known = slot.is_some_and(|slot| constant.is_some() || leaves(elf, refs, slot));
                self.piece.sites += u32::from(!known);
                self.call(constant.or(slot), last);
            }
            Flow::IndirectJump | Flow::Trap => self.piece.plain = false,
            Flow::Return | Flow::Stop => {
                self.ways.push(Way {
                    run: self.runs.len() as u32,
                    to: OUTSIDE,
                });
                self.runs.push(end as u32);
            }
        }
    }

    /// A call, which ends the piece or does not.
    fn call(&mut self, callee: Option<u64>, last: bool) {
        if last {
            // What it returns to is not there.
            return;
        }
        let written = match callee {
            None => Some(0),
            Some(callee) => u32::try_from(callee).ok().filter(|c| *c != 0),
        };
        match written {
            Some(callee) => {
                self.part.callees.push(callee);
                self.piece.calls += 1;
            }
            None => self.piece.plain = false,
        }
    }

    /// Notes a jump, and says where it leads.
    fn way(&mut self, target: u64) -> u32 {
        let inside = target.checked_sub(self.start).filter(|at| *at < self.len);
        let to = inside.map_or(OUTSIDE, |at| at as u32);
        if let Some(at) = inside {
            self.block_at(at);
        }
        self.ways.push(Way {
            run: self.runs.len() as u32,
            to,
        });
        to
    }

    fn block_at(&mut self, at: u64) {
        if at > 0 && at < self.len.min(self.piece.second_block.into()) {
            self.piece.second_block = at as u8;
        }
    }

    /// All instructions of the piece were seen, if they could be decoded.
    pub fn end(&mut self, decoded: bool) {
        let begins = &self.begins;
        let leads_well = |way: &Way| {
            let at = way.to as usize;
            way.to == OUTSIDE || begins[at / 64] >> (at % 64) & 1 != 0
        };
        let mut plain = self.piece.plain && decoded && self.len > 0;
        plain = plain && self.ways.iter().all(leads_well);
        plain = plain && (!self.jumps_on || self.is_connected());
        if !plain {
            self.part.callees.truncate(self.piece.first_call as usize);
            self.piece = Shape::default();
        }
        self.part.shapes.push(self.piece);
    }

    /// Whether all runs are connected with the outside. The first one is, and so is one at the end that no instruction
    /// ends.
    fn is_connected(&mut self) -> bool {
        fn root(parents: &mut [u32], mut run: u32) -> u32 {
            while parents[run as usize] != run {
                parents[run as usize] = parents[parents[run as usize] as usize];
                run = parents[run as usize];
            }
            run
        }
        let Outline {
            ways,
            runs,
            parents,
            ..
        } = self;
        let last = runs.len() as u32;
        parents.clear();
        parents.extend(0..=last);
        parents[last as usize] = 0;
        for way in ways {
            // The first run stands for the outside as well.
            let to = match way.to {
                OUTSIDE => 0,
                // Most jumps stay in their run or go on to the next.
                to => match runs.get(way.run as usize) {
                    Some(end) if to < *end => {
                        runs[..way.run as usize].partition_point(|e| *e <= to)
                    }
                    _ => runs.partition_point(|e| *e <= to),
                },
            };
            let (a, b) = (root(parents, way.run), root(parents, to as u32));
            parents[a.max(b) as usize] = a.min(b);
        }
        (0..last).all(|run| root(parents, run) == 0)
    }
}

/// Whether a slot leads out of the file, whatever the loader finds.
pub(super) fn leaves(elf: &Elf<'_>, refs: &Refs, slot: u64) -> bool {
    let symbol = |i: u32| elf.symbols(SymbolTable::Dynamic).get(i as usize);
    refs.lasting_import_at(slot)
        .and_then(symbol)
        .is_some_and(|s| s.section == 0)
}
