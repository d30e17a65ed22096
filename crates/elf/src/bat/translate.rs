//! The four look-ups: from an output place to an input place, from a part to its function, from a trace to
//! the edges that it ran through, and from an input offset to block and entry point.
//!
//! Made for tens of millions of calls. Offsets of all entries are in one array, apart from everything else,
//! so that a binary search touches few cache lines; a coarse index by address leads to the table.

use std::ops::Range;

use super::parents::Parents;
use super::{Bat, Entry, EntryKind};

/// A table: a whole function, its hot part, or another part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FragmentId(u32);

/// A block of an input function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Block {
    /// Offset of its beginning in the input function.
    pub input: u32,
    /// Its number.
    pub index: u32,
    /// Hash of its contents.
    pub hash: u64,
}

/// Answers about a program with address translation.
#[derive(Clone, Debug, Default)]
pub struct Translator {
    /// Starts of all tables, ascending.
    starts: Vec<u64>,
    /// For each stretch of `1 << shift` bytes from the first start on: how many tables begin before it.
    index: Vec<u32>,
    shift: u32,
    tables: Vec<Table>,
    /// Output offsets of all entries, table by table.
    outputs: Vec<u32>,
    /// Input offset of each, and whether it is a branch, as in the section.
    values: Vec<u32>,
    functions: Vec<Function>,
    /// Blocks of all functions, each function's by ascending input offset.
    blocks: Vec<Block>,
    secondary: Vec<u32>,
}

#[derive(Clone, Debug)]
struct Table {
    entries: Range<u32>,
    /// Number among the functions; `None` for a part without a parent.
    function: Option<u32>,
    cold: bool,
}

#[derive(Clone, Debug, Default)]
struct Function {
    start: u64,
    hash: u64,
    blocks: u64,
    list: Range<u32>,
    secondary: Range<u32>,
}

impl Translator {
    /// For a section and the parents of its cold parts. Where several tables begin at one address the first
    /// counts, hot before cold.
    pub fn new(bat: &Bat, parents: &Parents) -> Translator {
        let mut order: Vec<(u64, bool, u32)> = (0u32..)
            .zip(&bat.hot)
            .map(|(i, h)| (h.start, false, i))
            .chain((0u32..).zip(&bat.cold).map(|(i, c)| (c.start, true, i)))
            .collect();
        order.sort_unstable();
        order.dedup_by_key(|x| x.0);
        let mut this = Translator {
            outputs: Vec::with_capacity(bat.len()),
            values: Vec::with_capacity(bat.len()),
            ..Translator::default()
        };
        // Parts of each function, for the lists of blocks.
        let mut parts: Vec<(u32, &[Entry])> = Vec::with_capacity(order.len());
        for &(start, cold, number) in &order {
            let (entries, function) = if cold {
                let entries = bat.cold_entries(&bat.cold[number as usize]); // numbers are from there
                (entries, parents.of(number as usize))
            } else {
                (bat.hot_entries(&bat.hot[number as usize]), Some(number))
            };
            let from = this.outputs.len() as u32; // entries are numbered with 32 bits
            this.outputs.extend(entries.iter().map(|e| e.output));
            this.values.extend(entries.iter().map(Entry::value));
            this.starts.push(start);
            this.tables.push(Table {
                entries: from..this.outputs.len() as u32,
                function,
                cold,
            });
            if let Some(function) = function {
                parts.push((function, entries));
            }
        }
        this.secondary.clone_from(&bat.secondary);
        this.functions = bat
            .hot
            .iter()
            .map(|h| Function {
                start: h.start,
                hash: h.hash,
                blocks: h.blocks,
                list: 0..0,
                secondary: h.secondary.clone(),
            })
            .collect();
        // Of several blocks at an offset the first counts, in the order in which a section is read: hot table first.
        parts.sort_by_key(|p| {
            (
                p.0,
                !std::ptr::eq(p.1, bat.hot_entries(&bat.hot[p.0 as usize])),
            )
        });
        for parts in parts.chunk_by(|a, b| a.0 == b.0) {
            let from = this.blocks.len();
            for e in parts.iter().flat_map(|p| p.1) {
                if let EntryKind::Block { index, hash } = e.kind {
                    this.blocks.push(Block {
                        input: e.input,
                        index,
                        hash,
                    });
                }
            }
            this.blocks[from..].sort_by_key(|b| b.input);
            let mut kept = from;
            for i in from..this.blocks.len() {
                if i == from || this.blocks[i].input != this.blocks[kept - 1].input {
                    this.blocks[kept] = this.blocks[i];
                    kept += 1;
                }
            }
            this.blocks.truncate(kept);
            this.functions[parts[0].0 as usize].list = from as u32..kept as u32;
        }
        this.index_starts();
        this
    }

    /// A step of the index for about each table.
    fn index_starts(&mut self) {
        let (Some(first), Some(last)) = (self.starts.first(), self.starts.last()) else {
            return;
        };
        let span = last - first;
        self.shift = (0..64)
            .find(|shift| span >> shift <= 2 * self.starts.len() as u64)
            .unwrap_or(63);
        let steps = (span >> self.shift) + 2;
        let mut table = 0;
        self.index = (0..steps)
            .map(|step| {
                let limit = step
                    .checked_mul(1 << self.shift)
                    .and_then(|x| first.checked_add(x));
                while table < self.starts.len()
                    && limit.is_none_or(|limit| self.starts[table] < limit)
                {
                    table += 1;
                }
                table as u32
            })
            .collect();
    }

    /// Number of tables.
    pub fn len(&self) -> usize {
        self.tables.len()
    }
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// The last table that begins at or before an address. Tables do not say where they end: what follows the
    /// last instruction of a part is still taken for it, as its symbol's neighbours are not known here.
    pub fn fragment_before(&self, address: u64) -> Option<FragmentId> {
        let first = *self.starts.first()?;
        let step = usize::try_from(address.checked_sub(first)? >> self.shift).ok()?;
        let (from, to) = match (self.index.get(step), self.index.get(step + 1)) {
            (Some(from), Some(to)) => (*from as usize, *to as usize),
            _ => (self.starts.len() - 1, self.starts.len()),
        };
        let before = from + self.starts[from..to].partition_point(|s| *s <= address);
        before.checked_sub(1).map(|i| FragmentId(i as u32))
    }

    /// The table that begins at an address.
    pub fn fragment_at(&self, start: u64) -> Option<FragmentId> {
        self.fragment_before(start)
            .filter(|f| self.start(*f) == start)
    }

    /// Where a table's code begins.
    pub fn start(&self, fragment: FragmentId) -> u64 {
        self.starts[fragment.0 as usize] // identifiers are only made here
    }

    /// Where the function begins that a table belongs to: itself, or a cold part's parent. `None` for a part
    /// without one.
    pub fn function(&self, fragment: FragmentId) -> Option<u64> {
        let function = self.tables[fragment.0 as usize].function?;
        Some(self.functions[function as usize].start)
    }

    /// Whether a table is that of a cold part.
    pub fn is_cold(&self, fragment: FragmentId) -> bool {
        self.tables[fragment.0 as usize].cold
    }

    /// The start of the function of which a cold part begins at this address.
    pub fn parent(&self, start: u64) -> Option<u64> {
        let fragment = self.fragment_at(start)?;
        if self.is_cold(fragment) {
            self.function(fragment)
        } else {
            None
        }
    }

    /// From an offset in an output function or part, which begins at `start`, to one in the input function.
    /// The source of a branch translates to the nearest entry at or before it; anything else keeps its
    /// distance from that. What has no table, and what is before the first entry, is where it was.
    pub fn translate(&self, start: u64, offset: u64, is_branch_source: bool) -> u64 {
        match self.fragment_at(start) {
            Some(fragment) => self.translate_in(fragment, offset, is_branch_source),
            None => offset,
        }
    }

    /// As [`Translator::translate`], in a table that is known already.
    pub fn translate_in(&self, fragment: FragmentId, offset: u64, is_branch_source: bool) -> u64 {
        let Some(i) = self.last_at(fragment, offset) else {
            return offset;
        };
        let input = u64::from(self.values[i] >> 1);
        if is_branch_source {
            input
        } else {
            (offset - u64::from(self.outputs[i])).saturating_add(input)
        }
    }

    /// Index of the last entry at or before an offset.
    fn last_at(&self, fragment: FragmentId, offset: u64) -> Option<usize> {
        let range = &self.tables[fragment.0 as usize].entries;
        let (from, to) = (range.start as usize, range.end as usize);
        let offset = u32::try_from(offset).unwrap_or(u32::MAX);
        let n = self.outputs[from..to].partition_point(|o| *o <= offset);
        n.checked_sub(1).map(|n| from + n)
    }

    /// The block that an offset in a table's code belongs to: its offset in the input function.
    pub fn block_at(&self, fragment: FragmentId, offset: u64) -> Option<u32> {
        let mut at = self.last_at(fragment, offset)?;
        let first = self.tables[fragment.0 as usize].entries.start as usize;
        while self.values[at] & 1 != 0 {
            at = at.checked_sub(1).filter(|&before| before >= first)?;
        }
        Some(self.values[at] >> 1)
    }

    /// Appends to `out` the edges of the input that a run of instructions fell through: pairs of block
    /// offsets in the input function, of source and destination. `from` and `to` are output offsets in the
    /// table: where the run began, and where its last instruction begins. Both have to be in this table's
    /// code. A run that does not advance falls through nothing.
    pub fn fall_throughs(
        &self,
        fragment: FragmentId,
        from: u64,
        to: u64,
        out: &mut Vec<(u32, u32)>,
    ) {
        if from >= to {
            return;
        }
        let (Some(mut source), Some(last)) =
            (self.last_at(fragment, from), self.last_at(fragment, to))
        else {
            return;
        };
        let first = self.tables[fragment.0 as usize].entries.start as usize;
        let is_branch = |i: usize| self.values[i] & 1 != 0;
        while is_branch(source) {
            if source == first {
                return;
            }
            source -= 1;
        }
        if self.outputs[source] >= self.outputs[last] {
            return;
        }
        // Blocks of which no code is left are at the offset of the one after them, in the order in which they were
        // laid out: the run went through each.
        for next in source + 1..=last {
            if !is_branch(next) {
                out.push((self.values[source] >> 1, self.values[next] >> 1));
                source = next;
            }
        }
    }

    fn function_at(&self, start: u64) -> Option<&Function> {
        let table = &self.tables[self.fragment_at(start)?.0 as usize];
        (!table.cold).then_some(())?;
        self.functions.get(table.function? as usize)
    }

    /// Hash and number of blocks of the input function whose hot part begins at this output address.
    pub fn function_hash(&self, start: u64) -> Option<(u64, u64)> {
        self.function_at(start).map(|f| (f.hash, f.blocks))
    }

    /// The blocks of that input function, in all its parts and deleted ones, by ascending offset.
    pub fn blocks(&self, start: u64) -> &[Block] {
        self.function_at(start).map_or(&[], |f| {
            &self.blocks[f.list.start as usize..f.list.end as usize]
        })
    }

    /// The block of that input function that contains an input offset: the last that begins at or before it.
    pub fn block(&self, start: u64, input: u64) -> Option<Block> {
        let blocks = self.blocks(start);
        let n = blocks.partition_point(|b| u64::from(b.input) <= input);
        Some(blocks[n.checked_sub(1)?])
    }

    /// Offsets of that input function's entry points besides its start, ascending.
    pub fn entry_points(&self, start: u64) -> &[u32] {
        self.function_at(start).map_or(&[], |f| {
            &self.secondary[f.secondary.start as usize..f.secondary.end as usize]
        })
    }

    /// The number of an entry point of that input function by its input offset. 0 is the function's start; so
    /// is what is no entry point.
    pub fn entry_point(&self, start: u64, input: u64) -> usize {
        let list = self.entry_points(start);
        let found = list.iter().position(|o| u64::from(*o) == input);
        found.map_or(0, |n| n + 1)
    }
}
