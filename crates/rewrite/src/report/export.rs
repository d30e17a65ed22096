//! Counts of a program as profiles that speak of names: BOLT's fdata and YAML.
//!
//! Exact counts and balanced ones are written alike. Of each function that ran:
//!
//! | count | in fdata | in YAML |
//! |---|---|---|
//! | an edge between blocks | from the last instruction of one to the start of the other | `succ` of the block |
//! | a call or tail call | from its instruction to the callee's entry | `calls` of the block |
//! | entries that no call of the program explains | from `[unknown]` to the entry | part of `exec` |
//!
//! Blocks are BOLT's ([`crate::analyse::bolt_blocks`]); hashes are ours ([`crate::analyse::hashes`]), and the
//! YAML's header says by its origin [`ORIGIN`] that they are.

use std::collections::BTreeSet;

use postlink_bolt_symbols::names;
use postlink_elf::elf::Elf;
use postlink_isa::{Isa, with_isa};
use postlink_profile::bolt_yaml::{self, BoltYaml, HashFunction, Header};
use postlink_profile::symbolic::{Branch, Collection, Location, NameId, Records, SymbolicProfile};
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use crate::analyse::bolt_blocks::BoltBlocks;
use crate::analyse::hashes::{self, ORIGIN};
use crate::analyse::table_order::TableOrder;
use crate::attach::{self, Call, Counted, Source, pseudo_probes};
use crate::cfg::BlockId;
use crate::discover::{NonlocalExits, Program, check_input};
use crate::error::Error;

/// Counts of a program as BOLT's records of branches: of exact counters the solved counts, of any other
/// profile the balanced ones, fitted to this program.
///
/// Errors: a file that cannot be read; a profile of another file, or one without counts.
pub fn symbolic<'p>(
    elf: &Elf<'_>,
    profile: impl Into<Source<'p>>,
) -> Result<SymbolicProfile, Error> {
    symbolic_by_source(elf, profile.into())
}

/// The same by block, with hashes. `binary` is the file's name for the header.
///
/// Errors: a file that cannot be read; a profile of another file, or one without counts.
pub fn yaml<'p>(
    elf: &Elf<'_>,
    profile: impl Into<Source<'p>>,
    binary: &[u8],
) -> Result<BoltYaml, Error> {
    yaml_by_source(elf, profile.into(), binary)
}

/// Not generic: compiled here once.
fn symbolic_by_source(elf: &Elf<'_>, source: Source<'_>) -> Result<SymbolicProfile, Error> {
    with_isa!(check_input(elf)?, I => symbolic_with::<I>(elf, source))
}

/// Not generic: compiled here once.
fn yaml_by_source(elf: &Elf<'_>, source: Source<'_>, binary: &[u8]) -> Result<BoltYaml, Error> {
    with_isa!(check_input(elf)?, I => yaml_with::<I>(elf, source, binary))
}

fn symbolic_with<I: Isa>(elf: &Elf<'_>, source: Source<'_>) -> Result<SymbolicProfile, Error> {
    let program = Program::discover::<I>(elf)?;
    let nonlocal_exits = NonlocalExits::new(&program);
    let (attached, _) = attach::attach_any::<I>(&program, &nonlocal_exits, source)?;
    Ok(symbolic_of::<I>(
        &program,
        &attached.counted,
        &attached.calls,
    ))
}

fn yaml_with<I: Isa>(elf: &Elf<'_>, source: Source<'_>, binary: &[u8]) -> Result<BoltYaml, Error> {
    let program = Program::discover::<I>(elf)?;
    let nonlocal_exits = NonlocalExits::new(&program);
    let (attached, _) = attach::attach_any::<I>(&program, &nonlocal_exits, source)?;
    Ok(yaml_of::<I>(
        &program,
        &attached.counted,
        &attached.calls,
        binary,
    ))
}

/// The first name of every part that has counts or calls.
fn part_names(
    program: &Program<'_>,
    counted: &[Counted<'_>],
    calls: &[Call],
) -> FxHashMap<u64, Vec<u8>> {
    let own = counted
        .iter()
        .flat_map(|c| &program.functions[c.function as usize].pieces)
        .map(|p| program.pieces[*p as usize].start);
    let called = calls
        .iter()
        .filter_map(|c| program.piece_at(c.target))
        .map(|p| p.start);
    names::at(program.elf, own.chain(called))
}

/// Starts of the instructions of a function at which calls were counted, by block and address of the call.
fn call_places<I: Isa>(
    program: &Program<'_>,
    c: &Counted<'_>,
    calls: &[Call],
) -> FxHashMap<(BlockId, u64), u64> {
    let mut out = FxHashMap::default();
    for group in calls.chunk_by(|a, b| a.block == b.block) {
        let Some(block) = group
            .first()
            .and_then(|call| c.analysed.cfg.blocks.get(call.block as usize))
        else {
            continue;
        };
        let bytes = program
            .elf
            .bytes_at(block.start, block.end - block.start)
            .unwrap_or_default();
        let mut starts: Vec<u64> = Vec::new();
        I::sweep(bytes, block.start, |insn| {
            starts.push(insn.addr);
            true
        });
        for call in group {
            let i = starts.partition_point(|s| *s <= call.at);
            if let Some(start) = i.checked_sub(1).and_then(|i| starts.get(i)) {
                out.insert((call.block, call.at), *start);
            }
        }
    }
    out
}

/// Calls by function, each function's in the order of blocks.
fn calls_of<'c>(calls: &'c mut [Call], counted: &[Counted<'_>]) -> Vec<&'c [Call]> {
    calls.par_sort_unstable_by_key(|c| (c.caller, c.block, c.at, c.target));
    let calls: &[Call] = calls;
    counted
        .iter()
        .map(|c| {
            let from = calls.partition_point(|x| x.caller < c.function);
            let to = calls.partition_point(|x| x.caller <= c.function);
            &calls[from..to]
        })
        .collect()
}

/// How often each entry was called by what the program's own counts say.
fn explained(calls: &[Call]) -> FxHashMap<u64, u64> {
    let mut sums: FxHashMap<u64, u64> = FxHashMap::default();
    for c in calls {
        let sum = sums.entry(c.target).or_default();
        *sum = sum.saturating_add(c.count);
    }
    sums
}

/// Records of branches from counts.
pub fn symbolic_of<I: Isa>(
    program: &Program<'_>,
    counted: &[Counted<'_>],
    calls: &[Call],
) -> SymbolicProfile {
    let name_of = part_names(program, counted, calls);
    let mut order: Vec<u64> = name_of.keys().copied().collect();
    order.sort_unstable();
    let mut list: Vec<&[u8]> = order.iter().map(|a| name_of[a].as_slice()).collect();
    let unknown = Location {
        in_symbol: false,
        name: NameId(list.len() as u32),
        offset: 0,
    };
    list.push(b"[unknown]");
    let locate = |address: u64| -> Location {
        let part = program
            .piece_at(address)
            .and_then(|p| Some((p.start, order.binary_search(&p.start).ok()?)));
        match part {
            Some((start, i)) => Location {
                in_symbol: true,
                name: NameId(i as u32),
                offset: address - start,
            },
            None => unknown,
        }
    };
    let explained = explained(calls);
    let mut calls = calls.to_vec();
    let groups = calls_of(&mut calls, counted);
    let branches: Vec<Branch> = postlink_parallel::flat_map_range(counted.len(), |i| {
        let (c, calls) = (&counted[i], groups[i]);
        let cfg = &c.analysed.cfg;
        let blocks = BoltBlocks::new(cfg);
        let mut out = Vec::new();
        let mut push = |from: Location, to: Location, count: u64| {
            if count > 0 {
                out.push(Branch {
                    from,
                    to,
                    mispredictions: 0,
                    count,
                });
            }
        };
        for b in 0..blocks.blocks.len() as u32 {
            for (source, k, to) in blocks.edges(cfg, b) {
                let block = &cfg.blocks[source as usize];
                let count = c.counts.succs[block.succ as usize + k];
                if count == 0 {
                    continue;
                }
                let to = cfg.blocks[blocks.blocks[to as usize].first as usize].start;
                let from = last_instruction::<I>(program, block.start, block.end);
                push(locate(from), locate(to), count);
            }
        }
        let places = call_places::<I>(program, c, calls);
        for call in calls {
            if let Some(at) = places.get(&(call.block, call.at)) {
                push(locate(*at), locate(call.target), call.count);
            }
        }
        for (b, block) in cfg.blocks.iter().enumerate().filter(|(_, b)| b.entry) {
            let all = attach::entered(&c.analysed, &c.counts, b as BlockId);
            let known = explained.get(&block.start).copied().unwrap_or(0);
            push(unknown, locate(block.start), all.saturating_sub(known));
        }
        out
    });
    let collection = Collection {
        branches: true,
        bolted: false,
    };
    let records = Records {
        branches,
        ..Records::default()
    };
    SymbolicProfile::new(Some(collection), BTreeSet::new(), &list, records)
}

/// Start of the last instruction in a range.
fn last_instruction<I: Isa>(program: &Program<'_>, start: u64, end: u64) -> u64 {
    let mut last = start;
    if let Some(bytes) = program.elf.bytes_at(start, end - start) {
        I::sweep(bytes, start, |insn| {
            last = insn.addr;
            true
        });
    }
    last
}

/// A profile by blocks from counts. `binary` is the file's name for the header.
pub fn yaml_of<I: Isa>(
    program: &Program<'_>,
    counted: &[Counted<'_>],
    calls: &[Call],
    binary: &[u8],
) -> BoltYaml {
    let name_of = part_names(program, counted, calls);
    // Parts that ran, numbered from 1 in the order of addresses.
    let mut number: FxHashMap<u64, u32> = FxHashMap::default();
    let mut parts: Vec<(u64, usize, usize)> = Vec::new();
    for (i, c) in counted.iter().enumerate() {
        for (k, piece) in program.functions[c.function as usize]
            .pieces
            .iter()
            .enumerate()
        {
            let start = program.pieces[*piece as usize].start;
            let ran = c.analysed.cfg.blocks.iter().zip(&c.counts.blocks);
            if ran
                .filter(|(b, _)| usize::from(b.piece) == k)
                .any(|(_, n)| *n > 0)
            {
                parts.push((start, i, k));
            }
        }
    }
    parts.sort_unstable();
    for (n, (start, ..)) in parts.iter().enumerate() {
        number.insert(*start, n as u32 + 1);
    }
    let explained = explained(calls);
    let mut calls = calls.to_vec();
    let groups = calls_of(&mut calls, counted);
    let tables = TableOrder::new(program);
    let functions: Vec<bolt_yaml::Function> =
        postlink_parallel::map(&parts, |&(start, i, part)| {
            let c = &counted[i];
            let cfg = &c.analysed.cfg;
            let blocks = BoltBlocks::new(cfg);
            let hashes = hashes::of_part::<I>(program, cfg, &blocks, part);
            let places = call_places::<I>(program, c, groups[i]);
            let range = blocks.part(part);
            let first = range.start;
            let orders = tables.of_part(program, c.function as usize, cfg, &blocks, part);
            let orders: FxHashMap<u32, Vec<u32>> = orders.into_iter().collect();
            let mut out = bolt_yaml::Function {
                name: name_of.get(&start).cloned().unwrap_or_default(),
                fid: number.get(&start).copied().unwrap_or(0),
                hash: hashes.function,
                nblocks: range.len() as u32,
                ..bolt_yaml::Function::default()
            };
            for b in range.clone() {
                let block = blocks.blocks[b as usize];
                let address = cfg.blocks[block.first as usize].start;
                let count = c.counts.blocks[block.first as usize];
                let index = (b - first) as usize;
                if cfg.blocks[block.first as usize].entry && b == first {
                    out.exec = attach::entered(&c.analysed, &c.counts, block.first);
                    let known = explained.get(&start).copied().unwrap_or(0);
                    out.external = 0;
                    out.exec = out.exec.max(known);
                }
                let mut entry = bolt_yaml::Block {
                    bid: b - first,
                    insns: hashes.lengths[index],
                    hash: hashes.blocks[index].word(),
                    exec: count,
                    ..bolt_yaml::Block::default()
                };
                for (source, k, to) in blocks.edges(cfg, b) {
                    if !range.contains(&to) {
                        continue;
                    }
                    let at = cfg.blocks[source as usize].succ as usize + k;
                    entry.successors.push(bolt_yaml::Successor {
                        bid: to - first,
                        count: c.counts.succs[at],
                        mispredictions: 0,
                    });
                }
                if let Some(order) = orders.get(&(b - first)) {
                    in_order(&mut entry.successors, order);
                }
                for call in groups[i]
                    .iter()
                    .filter(|x| (block.first..=block.last).contains(&x.block))
                {
                    let Some(at) = places.get(&(call.block, call.at)) else {
                        continue;
                    };
                    let callee = program.piece_at(call.target);
                    entry.calls.push(bolt_yaml::Call {
                        offset: (at - address) as u32,
                        fid: callee
                            .and_then(|p| number.get(&p.start))
                            .copied()
                            .unwrap_or(0),
                        discriminator: callee
                            .map_or(0, |p| entry_number(program, p.start, call.target)),
                        count: call.count,
                        ..bolt_yaml::Call::default()
                    });
                }
                // Blocks that did not run as well: code that has changed is found again by what is around it, and
                // what did not run before hardly does now.
                out.blocks.push(entry);
            }
            out
        });
    let build_id = program.elf.build_id.map_or_else(
        || b"<unknown>".to_vec(),
        |id| postlink_elf::hex(id).into_bytes(),
    );
    let mut profile = BoltYaml {
        header: Header {
            binary_name: binary.to_vec(),
            build_id,
            lbr: true,
            origin: ORIGIN.into(),
            dfs_order: false,
            hash_function: HashFunction::Xxh3,
            ..Header::default()
        },
        functions,
        extra: Vec::new(),
    };
    if let Some(probes) = pseudo_probes::OfProgram::new(program.elf) {
        let mut writer = pseudo_probes::Writer::new(&probes);
        for (function, &(_, i, part)) in profile.functions.iter_mut().zip(&parts) {
            let cfg = &counted[i].analysed.cfg;
            let blocks = BoltBlocks::new(cfg);
            let ends = |b: u32| {
                let run = blocks.run(b);
                let start = cfg.blocks[*run.start() as usize].start;
                (start, cfg.blocks[*run.end() as usize].end)
            };
            let places: Vec<(u64, u64)> = blocks.part(part).map(ends).collect();
            writer.write(function, &places);
        }
        let functions = std::mem::take(&mut writer.functions);
        profile.set_source_functions(&functions);
    }
    profile
}

/// Puts edges into the order of a table, in which one may occur several times: its count is at the first of them.
fn in_order(edges: &mut Vec<bolt_yaml::Successor>, order: &[u32]) {
    let mut counts: FxHashMap<u32, u64> = FxHashMap::default();
    for edge in edges.iter() {
        let sum = counts.entry(edge.bid).or_default();
        *sum = sum.saturating_add(edge.count);
    }
    let each = order.iter().map(|bid| bolt_yaml::Successor {
        bid: *bid,
        count: counts.remove(bid).unwrap_or(0),
        mispredictions: 0,
    });
    *edges = each.collect();
}

/// Which entry of a part an address is: 0 for its start, then by address.
fn entry_number(program: &Program<'_>, start: u64, address: u64) -> u32 {
    if address == start {
        return 0;
    }
    let Some(piece) = program.piece_at(address) else {
        return 0;
    };
    let entries = &program.functions[piece.function as usize].entries;
    let before = entries
        .iter()
        .filter(|e| **e > piece.start && **e <= address)
        .count();
    before as u32
}
