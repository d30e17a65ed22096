//! Addresses of tables of labels that new code forms for tables of its own.
//!
//! A load of a label that reads another table takes two or three instructions in the place of one, if the register
//! with the table's address goes on to hold the old one's. An interpreter loads a label for everything that it does,
//! and forms the table's address once, in front of its loop, or right where it loads. If nothing but such loads reads
//! that address, new code forms its own table's in the same register, by one instruction in the place of one, and the
//! load stays what it was; where entries are words, an addition follows it.
//!
//! | old code | new code |
//! |---|---|
//! | `adrp x21, page`; `add x21, x21, :lo12:table` | `adrp x21, page`; `adrp x21, own` |
//! | `ldr x2, [x21, x0, lsl #3]` | the same; or `ldrsw x2, [x21, x0, lsl #2]`; `add x2, x21, x2` |
//!
//! Which addresses these are is found by the data flow of [`super::own_tables`]: all additions that leave a table's
//! address in a register from which a label is loaded are assumed to form the other one's. Where anything else may
//! read that, the register's additions stay what they were, and so on until nothing is spoilt. Registers of a
//! function whose exceptions it handles itself are not changed, nor any that could be seen by a callee, a caller,
//! or old code: where an entry leads to old code, the old table's address is formed first.

use postlink_isa::{Isa, LabelLoad};
use rustc_hash::{FxHashMap, FxHashSet};

use super::build::FunctionCode;
use super::own_tables::{Form, OwnTable, Search};

/// An addition that forms the address of a function's own table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnBase {
    /// Its address.
    pub at: u64,
    /// The table, by number.
    pub table: u32,
}

/// Finds the additions, and says of each table of labels how it is read.
pub(super) fn find<I: Isa>(
    code: &FunctionCode<'_, '_>,
    loads: &[(usize, Form)],
    tables: &mut [OwnTable],
) -> Vec<OwnBase> {
    let mut left = candidates(code, loads, tables);
    while !left.is_empty() {
        let mut search = Search::new::<I>(code, loads.to_vec());
        search.based = left.values().copied().collect();
        search.readers = left.keys().copied().collect();
        let leaving = tables
            .iter()
            .filter(|t| t.entries.iter().any(|e| !e.inside));
        let jumps = leaving.filter_map(|t| {
            let base = left.get(&code.index_of(t.load)?);
            Some((code.index_of(t.jump)?, base.map_or(0, |base| 1 << base.0)))
        });
        search.leaving = jumps.collect();
        let bases = search.bases::<I>(tables);
        let spoilt = |base: &(u8, u64)| bases.spoilt >> base.0 & 1 != 0;
        let gone: FxHashSet<(u8, u64)> = left
            .iter()
            .filter(|(k, base)| spoilt(base) || bases.read.get(*k) != Some(&true))
            .map(|(_, base)| *base)
            .collect();
        if !gone.is_empty() {
            left.retain(|_, base| !gone.contains(base));
            continue;
        }
        let mut first: FxHashMap<(u8, u64), u32> = FxHashMap::default();
        for (table, n) in tables.iter_mut().zip(0u32..) {
            let based = code.index_of(table.load).and_then(|k| left.get(&k));
            if let Some(base) = based {
                table.labels = Some(LabelLoad::Based);
                first.entry(*base).or_insert(n);
            }
        }
        let mut formed: Vec<OwnBase> = bases
            .formed
            .iter()
            .filter_map(|&(k, register, table)| {
                Some(OwnBase {
                    at: code.insns[k].addr,
                    table: *first.get(&(register, table))?,
                })
            })
            .collect();
        formed.sort_unstable_by_key(|b| b.at);
        formed.dedup();
        return formed;
    }
    Vec::new()
}

/// By instruction: loads of labels that may read a register with another address, with that register and the old table.
fn candidates(
    code: &FunctionCode<'_, '_>,
    loads: &[(usize, Form)],
    tables: &[OwnTable],
) -> FxHashMap<usize, (u8, u64)> {
    let mut found: FxHashMap<usize, (u8, u64)> = FxHashMap::default();
    if !code.landing_pads.is_empty() {
        return found;
    }
    let mut entries: FxHashMap<u64, &OwnTable> = FxHashMap::default();
    let mut differ: FxHashSet<u64> = FxHashSet::default();
    for table in tables.iter().filter(|t| t.labels.is_some()) {
        let first = *entries.entry(table.table).or_insert(table);
        if !first.is_same(table) {
            differ.insert(table.table);
        }
        let load = loads.iter().find(|l| code.insns[l.0].addr == table.load);
        if let Some((k, Form::Load(shape))) = load
            && let Some(register) = shape.base
            && (table.width == 8 || shape.to != shape.base)
        {
            found.insert(*k, (register, table.table));
        }
    }
    found.retain(|_, base| !differ.contains(&base.1));
    found
}
