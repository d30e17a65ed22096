//! Where indirect jumps lead, in the order of their tables.
//!
//! In the order of addresses, which edges have, nothing tells the operations of an interpreter apart once the compiler
//! has placed them anew. In the order of the table each keeps its place, as the values do that choose it: entry 7 is
//! operation 7 in every build. Entries of a table that lead to the same block are listed each, as they are part of what
//! comes after them.

use rayon::prelude::*;

use super::bolt_blocks::BoltBlocks;
use crate::cfg::{BlockId, Cfg, Term};
use crate::discover::Program;

/// Longer tables have the order of addresses.
const LONGEST: usize = 4096;

/// Pointers in data to code, by what they point to.
pub struct TableOrder {
    /// (target, place), sorted.
    pointers: Vec<(u64, u64)>,
}

impl TableOrder {
    /// Of a program.
    pub fn new(program: &Program<'_>) -> TableOrder {
        let each = program.refs.pointers.iter();
        let mut pointers: Vec<(u64, u64)> = each.map(|p| (p.target, p.place)).collect();
        pointers.par_sort_unstable();
        TableOrder { pointers }
    }

    /// The tables of a function, each as what its entries lead to. `pieces` are its addresses.
    fn tables(&self, cfg: &Cfg, pieces: &[(u64, u64)]) -> Vec<Vec<BlockId>> {
        let mut entries: Vec<(u64, u64, BlockId)> = cfg
            .table_entries
            .iter()
            .map(|entry| (entry.place, entry.width, entry.block))
            .collect();
        let mut starts: Vec<(u64, BlockId)> = (0..)
            .zip(&cfg.blocks)
            .map(|(b, block)| (block.start, b))
            .collect();
        starts.sort_unstable();
        for (start, end) in pieces {
            let from = self.pointers.partition_point(|p| p.0 < *start);
            for (target, place) in &self.pointers[from..] {
                if target >= end {
                    break;
                }
                if let Ok(at) = starts.binary_search_by_key(target, |s| s.0) {
                    entries.push((*place, 8, starts[at].1));
                }
            }
        }
        entries.sort_unstable();
        entries.dedup_by_key(|entry| entry.0);
        let together = entries.chunk_by(|a, b| a.0 + a.1 == b.0);
        together
            .map(|table| table.iter().map(|entry| entry.2).collect())
            .collect()
    }

    /// What follows the blocks of a part that end in indirect jumps, in the order of their tables: (block, what follows
    /// it), counted from the part's first. A block of which not every edge is in a table is left out.
    pub fn of_part(
        &self,
        program: &Program<'_>,
        function: usize,
        cfg: &Cfg,
        blocks: &BoltBlocks,
        part: usize,
    ) -> Vec<(u32, Vec<u32>)> {
        let range = blocks.part(part);
        let last = |b: u32| &cfg.blocks[blocks.blocks[b as usize].last as usize];
        let dispatches = |b: &u32| matches!(last(*b).term, Term::Dispatch { .. });
        let jumps: Vec<u32> = range.clone().filter(dispatches).collect();
        if jumps.is_empty() {
            return Vec::new();
        }
        let pieces: Vec<(u64, u64)> = program.functions[function]
            .pieces
            .iter()
            .map(|p| &program.pieces[*p as usize])
            .map(|piece| (piece.start, piece.end))
            .collect();
        let tables = self.tables(cfg, &pieces);
        let mut out = Vec::new();
        for b in jumps {
            let own = |to: u32| range.contains(&to).then(|| to - range.start);
            let mut edges: Vec<u32> = blocks.edges(cfg, b).filter_map(|e| own(e.2)).collect();
            edges.sort_unstable();
            edges.dedup();
            let mut order = Vec::new();
            for table in &tables {
                let list: Vec<u32> = table
                    .iter()
                    .filter_map(|to| own(blocks.of[*to as usize]))
                    .collect();
                let is_own = |to: &u32| edges.binary_search(to).is_ok();
                if list.len() == table.len() && list.iter().all(is_own) {
                    order.extend(list);
                }
            }
            let mut covered = order.clone();
            covered.sort_unstable();
            covered.dedup();
            if covered == edges && order.len() <= LONGEST {
                out.push((b - range.start, order));
            }
        }
        out
    }
}
