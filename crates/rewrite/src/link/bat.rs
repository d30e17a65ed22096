//! Address translation for what was moved: the tables of `.note.bolt_bat` ([`postlink_elf::bat`]).
//!
//! The reader that matters finds the function of an address by the symbols of the output, then looks for a
//! table that begins where that function does. Its functions are what symbols give: a part that the compiler
//! split off (`f.cold`) is a function of its own, with offsets of its own. Ours are all parts together, in
//! one hot and one cold fragment. So:
//!
//! | table | at | for |
//! |---|---|---|
//! | hot | the new entry | the function's first part, as far as it is at the beginning of the hot fragment |
//! | hot | the old place of every other part, whose symbol stays there | that part: where it is, blocks are where they were |
//! | cold | every other *stretch* of a fragment | a run of blocks of one part; the parent is that part's hot table |
//! | cold | the old entry | the old body of the first part, in which every offset stands for itself |
//!
//! A fragment has one stretch but for functions whose split-off part runs, so the further stretches, which
//! need a symbol of their own to be found, are rare. A stretch begins where the part changes. It gets an
//! unwind entry of its own too ([`splits`]), since the reader takes the range of one for a function's.
//!
//! Block entries are for BOLT's blocks ([`crate::analyse::bolt_blocks`]), with its numbers and our hashes, so
//! that a profile that went through the tables has the edges that llvm-bolt knows. Of our finer blocks, one
//! that does not follow the one before in the output gets an entry for the whole block's beginning: a branch
//! there would be none in the input. Branch entries are for calls, for whatever ends a block, and for a
//! block's last instruction, which a jump that was added translates to.

use fixedbitset::FixedBitSet;
use postlink_elf::bat::{self, Bat, Entry, EntryKind};
use postlink_elf::write::{NewKind, Writer};
use postlink_elf::{InputAddr, OutputAddr};
use postlink_isa::{Flow, Isa};
use rayon::prelude::*;

use super::ready::Split;
use crate::analyse::bolt_blocks::BoltBlocks;
use crate::analyse::{FunctionUnwind, hashes};
use crate::cfg::{BlockId, Cfg, Term};
use crate::discover::Program;
use crate::emit::{Emitted, Fragment, FragmentUnwind, Span, Stack};
use crate::error::Error;
use crate::pin::Pin;

/// A function that moved.
#[derive(Clone, Copy)]
pub struct Moved<'a, 'd> {
    /// Its index.
    pub function: u32,
    /// Its control flow in the input.
    pub cfg: &'a Cfg,
    /// Its unwind tables in the input.
    pub unwind: Option<&'a FunctionUnwind<'d>>,
    /// Its new code.
    pub code: &'a Emitted,
    /// The order of its blocks in the hot and in the cold fragment.
    pub order: &'a [Vec<BlockId>; 2],
}

/// A run of blocks of one part in a fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stretch {
    /// Offset in the fragment.
    start: u32,
    /// End of it.
    end: u32,
    /// The part.
    piece: u16,
    /// The blocks, by their place in the order.
    blocks: std::ops::Range<usize>,
}

impl Moved<'_, '_> {
    fn stretches(&self, fragment: usize) -> Vec<Stretch> {
        let mut out: Vec<Stretch> = Vec::new();
        for (i, b) in self.order[fragment].iter().enumerate() {
            let (piece, start) = (
                self.cfg.blocks[*b as usize].piece,
                self.code.blocks[*b as usize].1,
            );
            match out.last_mut() {
                Some(last) if last.piece == piece => last.blocks.end = i + 1,
                last => {
                    if let Some(last) = last {
                        last.end = start;
                    }
                    out.push(Stretch {
                        start,
                        end: start,
                        piece,
                        blocks: i..i + 1,
                    });
                }
            }
        }
        if let Some(last) = out.last_mut() {
            last.end = self.code.fragments[fragment].code.bytes.len() as u32;
        }
        // What has no code cannot be run, nor found by a symbol.
        out.retain(|s| s.end > s.start);
        out
    }
}

/// Where further stretches of a function's fragments begin, with what they need to be functions of their own
/// for tools that read symbols and unwind entries. `unwind` is the fragments' unwind information, which is cut
/// to the first stretches. None for a function all of whose unwind information must be in one entry: there
/// what follows the first stretch is taken for a part of it.
pub fn splits<'d>(
    program: &Program<'d>,
    m: &Moved<'_, 'd>,
    unwind: &mut Option<[FragmentUnwind; 2]>,
    stack: Stack,
) -> Result<Vec<Split>, Pin> {
    let mut out = Vec::new();
    if m.unwind.is_some_and(FunctionUnwind::one_fragment) {
        return Ok(out);
    }
    let rows = m.unwind.map(|unwind| unwind.known_rows(program));
    let rows = rows.transpose()?.unwrap_or_default();
    for fragment in 0..2 {
        let spans = &m.code.fragments[fragment].spans;
        let stretches = m.stretches(fragment);
        if stretches.len() < 2 {
            continue;
        }
        for (i, stretch) in stretches.iter().enumerate() {
            let own = spans
                .iter()
                .filter(|s| s.out >= stretch.start && s.out < stretch.end)
                .map(|s| Span {
                    out: s.out - stretch.start,
                    ..*s
                });
            let part = Fragment {
                spans: own.collect(),
                ..Fragment::default()
            };
            let carried = match m.unwind {
                Some(unwind) => Some(unwind.carry(program, (m.cfg, &rows), &part, stack)?),
                None => None,
            };
            if i > 0 {
                out.push(Split {
                    fragment,
                    start: stretch.start,
                    unwind: carried,
                });
            } else if let (Some(unwind), Some(carried)) = (unwind.as_mut(), carried) {
                unwind[fragment] = carried;
            }
        }
    }
    Ok(out)
}

/// A table in the making.
struct Part {
    start: OutputAddr,
    kind: PartKind,
    entries: Vec<Entry>,
}

enum PartKind {
    Hot {
        hash: u64,
        blocks: u64,
        secondary: Vec<u32>,
    },
    /// Of the function whose hot table begins there.
    Cold { parent: OutputAddr },
}

/// Makes the tables. `moved` are the functions, `at` the addresses of their fragments.
pub fn tables<'d, I: Isa>(
    program: &Program<'d>,
    moved: &[Moved<'_, 'd>],
    at: &[[OutputAddr; 2]],
) -> Result<Bat, Error> {
    let mut parts: Vec<Part> = postlink_parallel::flat_map_range(moved.len(), |i| {
        Maker::<I>::new(program, &moved[i], &at[i]).parts()
    });
    parts.par_sort_by_key(|p| (matches!(p.kind, PartKind::Cold { .. }), p.start));
    let mut bat = Bat::default();
    for p in parts {
        match p.kind {
            PartKind::Hot {
                hash,
                blocks,
                secondary,
            } => bat.push_hot(p.start.get(), hash, blocks, p.entries, &secondary)?,
            PartKind::Cold { parent } => {
                let number = bat
                    .hot()
                    .binary_search_by_key(&parent.get(), |h| h.start)
                    .map_err(|_| Error::internal("a part without its function's table"))?;
                bat.push_cold(p.start.get(), number as u32, p.entries)?;
            }
        }
    }
    Ok(bat)
}

/// Puts the section into a file. Returns its size in bytes.
pub fn write(bat: &Bat, writer: &mut Writer<'_>) -> Result<u64, Error> {
    let bytes = bat.encode()?;
    writer.append_filled(bat::SECTION, NewKind::Note, bat::ALIGN, &bytes);
    Ok(bytes.len() as u64)
}

/// Makes the tables of one function.
struct Maker<'a, 'd, I> {
    program: &'a Program<'d>,
    m: &'a Moved<'a, 'd>,
    at: &'a [OutputAddr; 2],
    blocks: BoltBlocks,
    /// By part: where it begins in the input, and its hashes.
    pieces: Vec<(InputAddr, hashes::PartHashes)>,
    _isa: std::marker::PhantomData<I>,
}

impl<'a, 'd, I: Isa> Maker<'a, 'd, I> {
    fn new(program: &'a Program<'d>, m: &'a Moved<'a, 'd>, at: &'a [OutputAddr; 2]) -> Self {
        let blocks = BoltBlocks::new(m.cfg);
        let pieces = program.functions[m.function as usize]
            .pieces
            .iter()
            .enumerate()
            .map(|(i, p)| {
                (
                    InputAddr::new(program.pieces[*p as usize].start),
                    hashes::of_part::<I>(program, m.cfg, &blocks, i),
                )
            })
            .collect();
        Maker {
            program,
            m,
            at,
            blocks,
            pieces,
            _isa: std::marker::PhantomData,
        }
    }

    fn parts(&self) -> Vec<Part> {
        let mut out = Vec::new();
        let mut used = vec![false; self.pieces.len()];
        let mut placed = FixedBitSet::with_capacity(self.blocks.blocks.len());
        let mut main = None;
        for fragment in 0..2 {
            let whole = self.m.unwind.is_some_and(FunctionUnwind::one_fragment);
            let limit = if whole { 1 } else { usize::MAX };
            for (i, stretch) in self.m.stretches(fragment).iter().enumerate().take(limit) {
                let start = self.at[fragment] + u64::from(stretch.start);
                let entries = self.entries(fragment, stretch, &mut placed);
                let piece = usize::from(stretch.piece);
                used[piece] = true;
                if fragment == 0 && i == 0 {
                    main = Some((start, stretch.end, entries));
                } else {
                    let parent = if piece == 0 {
                        self.at[0]
                    } else {
                        self.pieces[piece].0.kept()
                    };
                    out.push(Part {
                        start,
                        kind: PartKind::Cold { parent },
                        entries,
                    });
                }
            }
        }
        if let Some((start, end, mut entries)) = main {
            // Blocks of the first part that are nowhere, or have no code left.
            let gone = self
                .blocks
                .part(0)
                .filter(|b| !placed.contains(*b as usize));
            entries.extend(gone.filter_map(|b| self.block(end, b)));
            out.push(self.hot(start, 0, entries));
            // The first entry does for the whole old body: what is after it keeps its distance.
            out.push(Part {
                start: self.pieces[0].0.kept(),
                kind: PartKind::Cold { parent: start },
                entries: self.in_place(0).into_iter().take(1).collect(),
            });
        }
        for (piece, _) in used.iter().enumerate().skip(1).filter(|u| *u.1) {
            out.push(self.hot(self.pieces[piece].0.kept(), piece, self.in_place(piece)));
        }
        out
    }

    fn hot(&self, start: OutputAddr, piece: usize, entries: Vec<Entry>) -> Part {
        let (from, hashes) = &self.pieces[piece];
        let f = &self.program.functions[self.m.function as usize];
        let end = self.program.pieces[f.pieces[piece] as usize].end;
        let secondary = f
            .entries
            .iter()
            .filter(|a| **a > from.get() && **a < end)
            .filter_map(|a| self.offset(piece, *a))
            .collect();
        Part {
            start,
            kind: PartKind::Hot {
                hash: hashes.function,
                blocks: hashes.blocks.len() as u64,
                secondary,
            },
            entries,
        }
    }

    /// Offset of an input address in a part; `None` where the format ends.
    fn offset(&self, piece: usize, address: u64) -> Option<u32> {
        let offset = address.checked_sub(self.pieces.get(piece)?.0.get())?;
        u32::try_from(offset).ok().filter(|o| *o < 1 << 31)
    }

    /// The entry for a block of BOLT's.
    fn block(&self, output: u32, block: u32) -> Option<Entry> {
        let first = &self.m.cfg.blocks[self.blocks.blocks[block as usize].first as usize];
        let piece = usize::from(first.piece);
        let index = block - self.blocks.part(piece).start;
        let hash = self.pieces[piece].1.blocks.get(index as usize)?.word();
        Some(Entry {
            output,
            input: self.offset(piece, first.start)?,
            kind: EntryKind::Block { index, hash },
        })
    }

    /// Entries for the blocks of a part where they were.
    fn in_place(&self, piece: usize) -> Vec<Entry> {
        let entry = |b| {
            let e = self.block(0, b)?;
            Some(Entry {
                output: e.input,
                ..e
            })
        };
        self.blocks.part(piece).filter_map(entry).collect()
    }

    /// Places in code that replaces an instruction of another length, and what they translate to: its calls are
    /// that instruction, and return to the one after it.
    fn inside(&self, fragment: usize, span: &Span) -> Vec<(u32, u64)> {
        let mut out = Vec::new();
        let Some((at, len)) = span.of.filter(|of| span.len != u32::from(of.1)) else {
            return out;
        };
        let behind = at + u64::from(len);
        let from = span.out as usize;
        let code = &self.m.code.fragments[fragment].code.bytes;
        I::sweep(&code[from..from + span.len as usize], 0, |insn| {
            if matches!(insn.flow, Flow::Call { .. } | Flow::IndirectCall) {
                let place = |offset: u64| span.out + offset as u32; // it is in the span
                out.push((place(insn.addr), at));
                out.push((place(insn.end()), behind));
            }
            true
        });
        out
    }

    /// Entries of a stretch. Notes the blocks that have one.
    fn entries(&self, fragment: usize, stretch: &Stretch, placed: &mut FixedBitSet) -> Vec<Entry> {
        let list = &self.m.order[fragment][stretch.blocks.clone()];
        let spans = &self.m.code.fragments[fragment].spans;
        let mut out: Vec<Entry> = Vec::with_capacity(3 * list.len());
        let mut before: Option<BlockId> = None;
        for (i, b) in list.iter().enumerate() {
            let block = &self.m.cfg.blocks[*b as usize];
            let start = self.m.code.blocks[*b as usize].1;
            let end = match list.get(i + 1) {
                Some(next) => self.m.code.blocks[*next as usize].1,
                None => stretch.end,
            };
            if end <= start {
                continue;
            }
            let whole = self.blocks.of[*b as usize];
            let goes_on =
                before.is_some_and(|p| p + 1 == *b && self.blocks.of[p as usize] == whole);
            before = Some(*b);
            let output = start - stretch.start;
            if !goes_on {
                out.extend(self.block(output, whole));
                placed.insert(whole as usize);
            }
            let mut branch = |at: u32, address: u64| {
                let output = at - stretch.start;
                // One entry at an offset is enough, and that of a block is needed.
                let taken = out.last().is_some_and(|e| e.output == output);
                if !taken && let Some(input) = self.offset(stretch.piece.into(), address) {
                    let kind = EntryKind::Branch;
                    out.push(Entry {
                        output,
                        input,
                        kind,
                    });
                }
            };
            let ends_whole = self.blocks.blocks[whole as usize].last == *b;
            let mut last: Option<(u32, u64)> = None;
            let from = spans.partition_point(|s| s.out < start);
            for span in spans[from..].iter().take_while(|s| s.out < end) {
                if !span.copied {
                    if span.instead {
                        branch(span.out, span.input);
                        for (at, address) in self.inside(fragment, span) {
                            if at < end {
                                branch(at, address);
                            }
                        }
                        last = None;
                    } else if block.term_at < block.end && span.out + span.len == end {
                        branch(span.out, block.term_at);
                        last = None;
                    }
                    continue;
                }
                let Some(bytes) = self.program.elf.bytes_at(span.input, span.len.into()) else {
                    continue;
                };
                I::sweep(bytes, span.input, |insn| {
                    let at = span.out + (insn.addr - span.input) as u32; // it is in the span
                    match insn.flow {
                        Flow::Next | Flow::Stop | Flow::Trap if insn.traits.nop => {}
                        Flow::Next | Flow::Stop | Flow::Trap => last = Some((at, insn.addr)),
                        _ => {
                            branch(at, insn.addr);
                            last = None;
                        }
                    }
                    true
                });
            }
            if let Some((at, address)) = last.filter(|_| ends_whole && block.term != Term::Jump) {
                branch(at, address);
            }
        }
        out
    }
}
