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
//! | `adr x21, table` | `adrp x21, own` |
//! | `ldr x2, [x21, x0, lsl #3]` | the same; or `ldrsw x2, [x21, x0, lsl #2]`; `add x2, x21, x2` |
//!
//! Which addresses these are is found by the data flow of [`super::own_tables`]: all instructions that leave a table's
//! address in a register from which a label is loaded are assumed to form the other one's. Where anything else may
//! read that, the one in the straight code in front of it stays what it was (CPython puts the address onto the stack
//! once), or else all of the register, and so on until nothing is spoilt. Registers of a
//! function whose exceptions it handles itself are not changed, nor any that could be seen by a callee, a caller,
//! or old code: where an entry leads to old code, the old table's address is formed first.
//!
//! A fallback leaves an entry in one register, so loads into different ones need different tables. Then the register
//! holds the one of the loads to which most branches lead, and the others read theirs by a register of linkers' stubs
//! ([`LabelLoad::Scratch`]).

use postlink_isa::{Flow, Insn, Isa, LabelLoad};
use rustc_hash::{FxHashMap, FxHashSet};

use super::build::FunctionCode;
use super::own_tables::{Form, OwnTable, Search};

/// An instruction that forms the address of a function's own table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnBase {
    /// Its address.
    pub at: u64,
    /// The table, by number.
    pub table: u32,
}

/// A load of a label by a register that may hold another table's address.
struct Reader {
    /// Its instruction.
    load: usize,
    /// Its table, by number.
    table: usize,
    /// The register, and the old table.
    base: (u8, u64),
    /// It reads that other table: else one of its own, without that register.
    reads: bool,
}

/// Finds the instructions, and says of each table of labels how it is read.
pub(super) fn find<I: Isa>(
    code: &FunctionCode<'_, '_>,
    loads: &[(usize, Form)],
    tables: &mut [OwnTable],
) -> Vec<OwnBase> {
    let mut left = candidates(code, loads, tables);
    let mut forms_old: FxHashSet<usize> = FxHashSet::default();
    while !left.is_empty() {
        let mut search = Search::new::<I>(code, loads.to_vec());
        search.based = left.iter().map(|r| r.base).collect();
        search.readers = left.iter().map(|r| r.load).collect();
        let of_load = |load: u64| left.iter().find(|r| code.insns[r.load].addr == load);
        let leaving = tables
            .iter()
            .filter(|t| t.entries.iter().any(|e| !e.inside));
        for t in leaving {
            let register = of_load(t.load).map_or(0, |r| 1 << r.base.0);
            if let Some(jump) = code.index_of(t.jump) {
                // Two loads may lead there.
                *search.leaving.entry(jump).or_insert(u32::MAX) &= register;
            }
        }
        let guarded = tables.iter().filter(|t| t.guarded);
        search.guarded = guarded.filter_map(|t| code.index_of(t.load)).collect();
        search.forms_old.clone_from(&forms_old);
        let bases = search.bases::<I>(tables);
        if !bases.read_otherwise.is_empty() {
            forms_old.extend(bases.read_otherwise);
            continue;
        }
        let spoilt = |r: &Reader| {
            bases.spoilt >> r.base.0 & 1 != 0 || bases.read.get(&r.load) != Some(&true)
        };
        let gone: FxHashSet<(u8, u64)> =
            left.iter().filter(|r| spoilt(r)).map(|r| r.base).collect();
        if !gone.is_empty() {
            left.retain(|r| !gone.contains(&r.base));
            continue;
        }
        let mut first: FxHashMap<(u8, u64), u32> = FxHashMap::default();
        for r in &left {
            let table = &mut tables[r.table];
            if r.reads {
                table.labels = Some(LabelLoad::Based);
                first.entry(r.base).or_insert(r.table as u32);
            } else {
                table.labels = table.scratch.map(LabelLoad::Scratch);
            }
            if let Some(fallback) = &mut table.fallback {
                // What is loaded over the base needs none.
                fallback.base = Some(r.base.0).filter(|base| *base != fallback.to);
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

/// Loads of labels that may read a register with another address, in the order of their tables. What one register and
/// old table cannot be is left out.
fn candidates(
    code: &FunctionCode<'_, '_>,
    loads: &[(usize, Form)],
    tables: &[OwnTable],
) -> Vec<Reader> {
    if !code.landing_pads.is_empty() {
        return Vec::new();
    }
    let of_load: FxHashMap<u64, &(usize, Form)> =
        loads.iter().map(|l| (code.insns[l.0].addr, l)).collect();
    let branches = branches(code);
    let mut readers: Vec<Reader> = Vec::new();
    // By base: the kinds of tables that loads could read by it, each by its first, and how many branches lead to them.
    let mut kinds: FxHashMap<(u8, u64), Vec<(usize, usize)>> = FxHashMap::default();
    for (n, table) in tables.iter().enumerate() {
        let Some((k, Form::Load(shape))) = of_load.get(&table.load) else {
            continue;
        };
        let Some(register) = shape.base else { continue };
        if !table.is_formed() || table.guarded {
            continue;
        }
        let base = (register, table.table);
        // The sum of an entry and the base takes both.
        let reads = table.width == 8 || shape.to != shape.base;
        readers.push(Reader {
            load: *k,
            table: n,
            base,
            reads,
        });
        if reads {
            let leading = leading(code, &branches, *k);
            let all = kinds.entry(base).or_default();
            match all.iter_mut().find(|kind| is_alike(&tables[kind.0], table)) {
                Some(kind) => kind.1 += leading,
                None => all.push((n, leading)),
            }
        }
    }
    let held = |base: &(u8, u64)| {
        let all = kinds.get(base)?.iter().rev();
        Some(all.max_by_key(|kind| kind.1)?.0)
    };
    let mut lost: FxHashSet<(u8, u64)> = FxHashSet::default();
    for r in &mut readers {
        let held = held(&r.base);
        r.reads &= held.is_some_and(|n| is_alike(&tables[n], &tables[r.table]));
        if held.is_none() || !r.reads && tables[r.table].scratch.is_none() {
            lost.insert(r.base);
        }
    }
    readers.retain(|r| !lost.contains(&r.base));
    readers
}

/// Whether two loads may read the same table by a register: what their entries lead to is the same.
fn is_alike(a: &OwnTable, b: &OwnTable) -> bool {
    let to = |t: &OwnTable| t.fallback.map(|f| f.to);
    (a.table, a.width, to(a)) == (b.table, b.width, to(b)) && a.entries == b.entries
}

/// Where direct branches lead, ascending.
fn branches(code: &FunctionCode<'_, '_>) -> Vec<u64> {
    let target = |i: &Insn| match i.flow {
        Flow::Jump { target } | Flow::CondJump { target, .. } | Flow::ShortCond { target } => {
            Some(target)
        }
        _ => None,
    };
    let mut all: Vec<u64> = code.insns.iter().filter_map(target).collect();
    all.sort_unstable();
    all
}

/// How many of those lead to the straight code in front of an instruction, or to it.
fn leading(code: &FunctionCode<'_, '_>, branches: &[u64], k: usize) -> usize {
    let plain = |i: &Insn| matches!(i.flow, Flow::Next | Flow::CondJump { .. });
    let before = code.insns[..k].iter().rev().take_while(|i| plain(i));
    let begin = before.last().unwrap_or(&code.insns[k]).addr;
    let upto = |at: u64| branches.partition_point(|to| *to < at);
    upto(code.insns[k].end()) - upto(begin)
}
