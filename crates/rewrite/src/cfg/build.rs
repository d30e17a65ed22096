//! Control flow of one function, built from one sweep over its bytes.

use postlink_isa::{FixupKind, Flow, Forks, Insn, Isa, JumpShape};
use rustc_hash::FxHashMap;

use super::targets::{absolute_table, along_branch, anchored};
use super::{Block, BlockId, Callee, Cfg, Field, Site, TableEntry, Term, Use, Watch};
use crate::discover::{Program, table_entries};
use crate::leaks::Leaks;
use crate::pin::Pin;

/// Reusable room for building.
#[derive(Default)]
pub struct Scratch {
    insns: Vec<Insn>,
    pieces: Vec<(usize, usize)>,
    leaders: Vec<u64>,
    index: FxHashMap<u64, BlockId>,
}

/// Builds a function's control flow, or says why it cannot be.
pub fn build<I: Isa>(
    program: &Program<'_>,
    leaks: &Leaks,
    function: usize,
    scratch: &mut Scratch,
) -> Result<Cfg, Pin> {
    let f = &program.functions[function];
    if let Some(pin) = f.pin {
        return Err(pin);
    }
    let Scratch {
        insns,
        pieces,
        leaders,
        index,
    } = scratch;
    insns.clear();
    pieces.clear();
    leaders.clear();
    index.clear();
    let ranges: Vec<(u64, u64)> = f
        .pieces
        .iter()
        .map(|p| &program.pieces[*p as usize])
        .map(|p| (p.start, p.end))
        .collect();
    for &(start, end) in &ranges {
        let bytes = program
            .elf
            .bytes_at(start, end - start)
            .ok_or(Pin::NotInstructions)?;
        let from = insns.len();
        if I::sweep(bytes, start, |i| {
            insns.push(*i);
            true
        })
        .is_some()
        {
            return Err(Pin::NotInstructions);
        }
        if insns.len() == from {
            return Err(Pin::NotInstructions);
        }
        pieces.push((from, insns.len()));
    }
    let inside = |a: u64| ranges.iter().any(|r| a >= r.0 && a < r.1);
    let code = |i: &Insn| {
        program
            .elf
            .bytes_at(i.addr, u64::from(i.len))
            .unwrap_or(&[])
    };

    let site = |insn: &Insn, block: BlockId, tail: bool| Site {
        at: insn.addr,
        len: insn.len,
        block,
        tail,
        callee: Callee::of(program, insn),
    };

    // Leaders: whatever control can reach other than from the instruction before.
    leaders.extend(ranges.iter().map(|r| r.0));
    leaders.extend(f.entries.iter().copied());
    leaders.extend(f.labels.iter().copied());
    let landing_pads = landing_pads(program, function)?;
    leaders.extend(landing_pads.iter().copied());
    let mut ends = 0usize; // how many instructions end a block, whatever follows
    let mut with_field = 0usize;
    for i in insns.iter() {
        ends += usize::from(!matches!(
            i.flow,
            Flow::Next | Flow::Call { .. } | Flow::IndirectCall
        ));
        with_field += usize::from(i.field.is_some());
        match i.flow {
            Flow::Jump { target } | Flow::CondJump { target, .. } | Flow::ShortCond { target }
                if inside(target) =>
            {
                leaders.push(target)
            }
            _ => {}
        }
    }
    // Relative tables whose address this function forms.
    let mut tables: Vec<(u64, Vec<(u64, u64)>)> = Vec::new();
    let together = ranges
        .iter()
        .flat_map(|r| program.refs.formed_in(r.0, r.1))
        .map(|f| f.1);
    let alone = insns
        .iter()
        .filter(|i| i.traits.forms_address)
        .filter_map(|i| i.field.map(|f| f.target));
    for target in alone.chain(together) {
        if program.refs.relative_width(target).is_some() && !tables.iter().any(|t| t.0 == target) {
            let mut entries = Vec::new();
            for (place, target) in
                table_entries(program.elf, &program.refs, &program.table_bases, target)
            {
                if inside(target) {
                    entries.push((place, target));
                } else if !ranges.iter().any(|r| r.1 == target) {
                    break;
                }
            }
            if !entries.is_empty() {
                leaders.extend(entries.iter().map(|e| e.1));
                tables.push((target, entries));
            }
        }
    }
    leaders.sort_unstable();
    leaders.dedup();
    // Places in the code that `adr` forms: each must be what a table's entries count from.
    let mut anchors: Vec<(u64, bool)> = insns
        .iter()
        .filter_map(|i| {
            i.field
                .filter(|f| f.kind == FixupKind::Adr && inside(f.target) && f.target != ranges[0].0)
        })
        .map(|f| (f.target, false))
        .collect();
    let formed = if anchors.is_empty() {
        Vec::new()
    } else {
        I::formed(insns, code)
    };
    let mut arrivals: Vec<u64> = Vec::new();

    // Indirect jumps, each with its targets.
    let mut dispatches: Vec<Vec<u64>> = Vec::new();
    let mut claimed = vec![false; tables.len()];
    let mut jumps: FxHashMap<u64, (Option<u32>, bool)> = FxHashMap::default(); // address -> (dispatch, leaves)
    for &(from, to) in pieces.iter() {
        for k in from..to {
            let insn = insns[k];
            if insn.flow != Flow::IndirectJump {
                continue;
            }
            let imported = insn
                .field
                .is_some_and(|x| program.imports.contains_key(&x.target));
            if imported || tables.is_empty() && f.labels.is_empty() && anchors.is_empty() {
                jumps.insert(insn.addr, (None, true));
                continue;
            }
            // Straight-line code before it, back to where control may come in.
            let mut first = k;
            while first > from
                && k - first < 24
                && leaders.binary_search(&insns[first].addr).is_err()
                && matches!(
                    insns[first - 1].flow,
                    Flow::Next | Flow::CondJump { .. } | Flow::ShortCond { .. }
                )
            {
                first -= 1;
            }
            let shape = match I::jump_shape(&insns[first..=k], code) {
                JumpShape::Anchored(a) if a.count.is_none() => {
                    let alone = |at: u64| {
                        !f.entries.contains(&at)
                            && !f.labels.contains(&at)
                            && !landing_pads.contains(&at)
                    };
                    let path = along_branch(insns, from, first, k, leaders, alone);
                    path.map_or(JumpShape::Anchored(a), |path| I::jump_shape(&path, code))
                }
                shape => shape,
            };
            let (targets, leaves) = match shape {
                JumpShape::Relative {
                    table: Some(t),
                    width,
                } => {
                    let known = |x: &(u64, _)| {
                        x.0 == t && program.refs.relative_width(t) == Some(u64::from(width))
                    };
                    match tables.iter().position(known) {
                        Some(x) => {
                            claimed[x] = true;
                            (tables[x].1.iter().map(|e| e.1).collect(), false)
                        }
                        None => return Err(Pin::UnknownIndirectJump),
                    }
                }
                JumpShape::Relative { table: None, .. } if tables.is_empty() => {
                    return Err(Pin::UnknownIndirectJump);
                }
                JumpShape::Relative { table: None, .. } => {
                    claimed.fill(true);
                    (
                        tables
                            .iter()
                            .flat_map(|t| t.1.iter().map(|e| e.1))
                            .collect(),
                        false,
                    )
                }
                JumpShape::Absolute { table: Some(t) } => {
                    let list = absolute_table(program, t, &ranges);
                    if list.is_empty() {
                        (Vec::new(), true)
                    } else {
                        (list, false)
                    }
                }
                JumpShape::Absolute { table: None } => (f.labels.clone(), f.labels.is_empty()),
                JumpShape::Anchored(a) => {
                    anchors
                        .iter_mut()
                        .filter(|x| x.0 == a.anchor)
                        .for_each(|x| x.1 = true);
                    let targets = anchored(program, &a, &formed, &ranges);
                    if targets.is_empty() {
                        return Err(Pin::UnknownIndirectJump);
                    }
                    arrivals.extend_from_slice(&targets);
                    (targets, false)
                }
                JumpShape::Unknown => {
                    let mut all = f.labels.clone();
                    all.extend(tables.iter().flat_map(|t| t.1.iter().map(|e| e.1)));
                    (all, true)
                }
            };
            let mut targets: Vec<u64> = targets;
            targets.sort_unstable();
            targets.dedup();
            if targets.is_empty() {
                jumps.insert(insn.addr, (None, true));
            } else {
                let d = match dispatches.iter().position(|d| *d == targets) {
                    Some(d) => d,
                    None => {
                        dispatches.push(targets);
                        dispatches.len() - 1
                    }
                };
                jumps.insert(insn.addr, (Some(d as u32), leaves));
            }
        }
    }
    // A table that no jump is seen to use may be read relative to something else.
    if claimed.contains(&false) {
        return Err(Pin::UnknownIndirectJump);
    }
    if anchors.iter().any(|a| !a.1) {
        return Err(Pin::AddressOfItsInsideTaken);
    }
    leaders.extend_from_slice(&arrivals);
    leaders.sort_unstable();
    leaders.dedup();
    arrivals.sort_unstable();
    arrivals.dedup();
    // A pointer to the inside must be explained by an indirect jump that can follow it.
    if !f.labels.is_empty()
        && !f
            .labels
            .iter()
            .all(|l| dispatches.iter().any(|d| d.binary_search(l).is_ok()))
    {
        return Err(Pin::PointerToItsInside);
    }

    // Blocks.
    let mut cfg = Cfg::default();
    let about = leaders.len() + ends;
    cfg.blocks.reserve(about);
    cfg.field_index.reserve(about + 1);
    cfg.fields.reserve(with_field);
    let mut out_targets: Vec<[u64; 2]> = Vec::with_capacity(about); // per block: successor addresses (0: none)
    let mut found_leaders = 0usize;
    for (pi, &(from, to)) in pieces.iter().enumerate() {
        let piece_end = ranges[pi].1;
        // Within a piece addresses only rise, and so does the place in the sorted list.
        let mut ahead = &leaders[leaders.partition_point(|l| *l < ranges[pi].0)..];
        let mut is_leader = |a: u64| {
            while let [l, rest @ ..] = ahead
                && *l < a
            {
                ahead = rest;
            }
            ahead.first() == Some(&a)
        };
        let mut k = from;
        let mut twice = false;
        while k < to {
            let first = insns[k];
            let id = cfg.blocks.len() as BlockId;
            index.insert(first.addr, id);
            found_leaders += usize::from(is_leader(first.addr));
            cfg.field_index.push(cfg.fields.len() as u32);
            let mut block = Block {
                start: first.addr,
                end: 0,
                term_at: 0,
                term: Term::Fall,
                succ: 0,
                nsucc: 0,
                entry: false,
                landing_pad: false,
                leaks: false,
                returns_twice: std::mem::take(&mut twice),
                unlikely: pi > 0,
                watch: Watch::default(),
                piece: pi as u16,
            };
            let mut targets;
            loop {
                let insn = insns[k];
                let next = insn.end();
                k += 1;
                let last = next >= piece_end || k >= to;
                let falls = if last { 0 } else { next };
                let mut done = true;
                let mut body = true; // the instruction is copied, not synthesised
                block.term_at = next;
                targets = [0; 2];
                match insn.flow {
                    Flow::Next => {
                        // The thread may end here (glibc's threads do, in a loop around it), or two go on.
                        twice = insn.traits.system_call && !last;
                        done = last || twice || is_leader(next);
                        targets[0] = falls;
                        if last {
                            block.term = Term::Stop;
                        }
                    }
                    Flow::Jump { target } => {
                        if insn.traits.prefixed {
                            return Err(Pin::PrefixedBranch);
                        }
                        body = false;
                        if inside(target) {
                            block.term = Term::Jump;
                            targets[0] = target;
                        } else {
                            block.term = Term::JumpOut { target };
                        }
                    }
                    Flow::CondJump { cond, target } => {
                        body = false;
                        if insn.traits.prefixed {
                            return Err(Pin::PrefixedBranch);
                        }
                        if last {
                            return Err(Pin::FallsOffItsEnd);
                        }
                        if inside(target) {
                            block.term = Term::Cond { cond };
                            targets = [target, falls];
                        } else {
                            block.term = Term::CondOut { cond, target };
                            targets[0] = falls;
                        }
                    }
                    Flow::ShortCond { target } => {
                        body = false;
                        if last {
                            return Err(Pin::FallsOffItsEnd);
                        }
                        if inside(target) {
                            block.term = Term::ShortCond;
                            targets = [target, falls];
                        } else {
                            block.term = Term::ShortCondOut { target };
                            targets[0] = falls;
                        }
                    }
                    Flow::Call { .. } | Flow::IndirectCall => {
                        if insn.flow == Flow::IndirectCall {
                            cfg.sites.push(site(&insn, id, false));
                        }
                        // Even a call that is known not to return keeps the edge to what follows it: the proof knows no names.
                        let call = leaks.call(program, &insn);
                        if call.forks != Forks::Never {
                            cfg.forks.push((id, next));
                        }
                        block.leaks = call.leaks;
                        block.unlikely |= call.no_return;
                        if last {
                            block.term = Term::Stop;
                        } else {
                            targets[0] = falls;
                            twice = call.returns_twice;
                            done = call.leaks || call.returns_twice || is_leader(next);
                        }
                    }
                    Flow::IndirectJump => match jumps.get(&insn.addr) {
                        Some(&(Some(dispatch), leaves)) => {
                            block.term = Term::Dispatch { dispatch, leaves }
                        }
                        _ => {
                            block.term = Term::IndirectOut;
                            cfg.sites.push(site(&insn, id, true));
                        }
                    },
                    Flow::Return => block.term = Term::Return,
                    Flow::Stop => {
                        block.term = Term::Stop;
                        block.unlikely = true;
                    }
                }
                if body {
                    let anchor = insn.field.is_some_and(|f| {
                        f.kind == FixupKind::Adr && inside(f.target) && f.target != ranges[0].0
                    });
                    push_fields::<I>(program, &insn, anchor, &mut cfg.fields);
                } else {
                    block.term_at = insn.addr;
                }
                block.end = next;
                if done {
                    break;
                }
            }
            cfg.blocks.push(block);
            out_targets.push(targets);
        }
    }
    cfg.field_index.push(cfg.fields.len() as u32);
    if found_leaders != leaders.len() {
        return Err(Pin::BranchIntoInstruction);
    }

    // Edges.
    cfg.succs.reserve(2 * cfg.blocks.len());
    for d in &dispatches {
        let mut list: Vec<BlockId> = d.iter().filter_map(|t| index.get(t).copied()).collect();
        list.sort_unstable();
        cfg.dispatches.push(list);
    }
    for (b, targets) in out_targets.iter().enumerate() {
        let from = cfg.succs.len() as u32;
        if let Term::Dispatch { dispatch, .. } = cfg.blocks[b].term {
            cfg.succs
                .extend_from_slice(&cfg.dispatches[dispatch as usize]);
        } else {
            for t in targets.iter().filter(|t| **t != 0) {
                cfg.succs
                    .push(*index.get(t).ok_or(Pin::BranchIntoInstruction)?);
            }
        }
        cfg.blocks[b].succ = from;
        cfg.blocks[b].nsucc = cfg.succs.len() as u32 - from;
    }
    for (_, entries) in &tables {
        let base = tables
            .iter()
            .find(|t| std::ptr::eq(&t.1, entries))
            .map(|t| t.0);
        for (place, target) in entries {
            if let Some(b) = index.get(target) {
                cfg.table_entries.push(TableEntry {
                    place: *place,
                    base,
                    width: base
                        .and_then(|base| program.refs.relative_width(base))
                        .unwrap_or(4),
                    block: *b,
                });
            }
        }
    }
    cfg.arrivals.extend(
        arrivals
            .iter()
            .filter_map(|a| index.get(a).map(|b| (*a, *b))),
    );
    cfg.blocks[0].entry = true;
    for a in f.entries.iter().chain(&f.labels) {
        if let Some(b) = index.get(a) {
            cfg.marks.push((*a, *b));
        }
    }
    cfg.marks.sort_unstable();
    cfg.marks.dedup();
    for a in &f.entries {
        if let Some(b) = index.get(a) {
            cfg.blocks[*b as usize].entry = true;
        }
    }
    for a in &landing_pads {
        if let Some(b) = index.get(a) {
            let block = &mut cfg.blocks[*b as usize];
            block.landing_pad = true;
            block.unlikely = true;
        }
    }
    mark_unlikely(&mut cfg);
    if insns.iter().any(|i| i.traits.exclusive_load) {
        watch(&mut cfg, insns);
    }
    cfg.shrink();
    Ok(cfg)
}

/// Fills in what is watched.
fn watch(cfg: &mut Cfg, insns: &[Insn]) {
    let exclusive: Vec<&Insn> = insns
        .iter()
        .filter(|i| i.traits.exclusive_load || i.traits.exclusive_store)
        .collect();
    let inside = |b: &Block| {
        let (start, end) = (b.start, b.end);
        exclusive
            .iter()
            .filter(move |i| i.addr >= start && i.addr < end)
    };
    // (first is a store, last is a load, has a store) of those that have any.
    let facts: Vec<Option<(bool, bool, bool)>> = cfg
        .blocks
        .iter()
        .map(|b| {
            let first = inside(b).next()?;
            let last = inside(b).next_back()?;
            let has_store = inside(b).any(|i| i.traits.exclusive_store);
            Some((
                first.traits.exclusive_store,
                last.traits.exclusive_load,
                has_store,
            ))
        })
        .collect();
    let n = cfg.blocks.len();
    let mut changed = true;
    while changed {
        changed = false;
        for b in 0..n {
            let stores_out = cfg
                .succs(b as BlockId)
                .iter()
                .any(|s| cfg.blocks[*s as usize].watch.stores_in);
            let stores_in = facts[b].map_or(stores_out, |f| f.0);
            let loaded_out = facts[b].map_or(cfg.blocks[b].watch.loaded_in, |f| f.1);
            let watch = &mut cfg.blocks[b].watch;
            changed |= (watch.stores_in, watch.loaded_out) != (stores_in, loaded_out);
            (watch.stores_in, watch.loaded_out) = (stores_in, loaded_out);
            if loaded_out {
                for k in 0..cfg.succs(b as BlockId).len() {
                    let s = cfg.succs(b as BlockId)[k] as usize;
                    changed |= !std::mem::replace(&mut cfg.blocks[s].watch.loaded_in, true);
                }
            }
        }
    }
    for b in 0..n {
        let watch = &mut cfg.blocks[b].watch;
        watch.inside = facts[b].is_some();
        watch.whole = watch.loaded_in && watch.stores_in && !facts[b].is_some_and(|f| f.2);
    }
}

/// Blocks from which only unlikely blocks follow are unlikely too.
fn mark_unlikely(cfg: &mut Cfg) {
    for _ in 0..2 {
        for b in (0..cfg.blocks.len() as BlockId).rev() {
            let all = !cfg.succs(b).is_empty()
                && cfg
                    .succs(b)
                    .iter()
                    .all(|s| cfg.blocks[*s as usize].unlikely);
            cfg.blocks[b as usize].unlikely |= all;
        }
    }
}

/// Notes the fields of an instruction; `anchor`: it forms an address that stays what it is, although it lies in this function.
fn push_fields<I: Isa>(program: &Program<'_>, insn: &Insn, anchor: bool, fields: &mut Vec<Field>) {
    if let Some(target) = program.refs.formed_at(insn.addr) {
        let kind = insn.field.map_or(FixupKind::Low12 { scale: 0 }, |f| f.kind);
        fields.push(Field {
            at: insn.addr,
            kind,
            role: Use::Address,
            target,
        });
    } else if let Some(f) = insn.field {
        let role = match insn.flow {
            Flow::Call { .. } => Use::Call,
            _ if insn.traits.forms_address && !anchor => Use::Address,
            _ => Use::Memory,
        };
        fields.push(Field {
            at: insn.addr + u64::from(f.at),
            kind: f.kind,
            role,
            target: f.target,
        });
    }
    for &(at, kind) in program.refs.absolute_fields_in(insn.addr, insn.end()) {
        let width = if kind == FixupKind::Abs64 { 8 } else { 4 };
        let Some(target) = program
            .elf
            .bytes_at(at, width)
            .and_then(|b| I::read_field(kind, b, at))
        else {
            continue;
        };
        if fields.last().is_some_and(|f| f.at == at) {
            continue;
        }
        fields.push(Field {
            at,
            kind,
            role: Use::Address,
            target,
        });
    }
}

/// Landing pads of all pieces.
fn landing_pads(program: &Program<'_>, function: usize) -> Result<Vec<u64>, Pin> {
    let mut list = Vec::new();
    for p in &program.functions[function].pieces {
        if let Some(lsda) = crate::unwind::lsda_of(program, *p as usize)? {
            list.extend(lsda.call_sites.iter().filter_map(|c| c.landing_pad));
        }
    }
    list.sort_unstable();
    list.dedup();
    let inside = |a: u64| {
        program.functions[function].pieces.iter().any(|p| {
            let p = &program.pieces[*p as usize];
            a >= p.start && a < p.end
        })
    };
    if list.iter().all(|a| inside(*a)) {
        Ok(list)
    } else {
        Err(Pin::ExceptionTable)
    }
}
