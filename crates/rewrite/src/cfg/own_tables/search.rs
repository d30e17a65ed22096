//! What the tables are, under the assumption that those found so far are some.

use postlink_isa::{Code, Flow, Isa, RegSet, Sets};
use rustc_hash::{FxHashMap, FxHashSet};

use super::super::build::FunctionCode;
use super::{ENTRIES, Edge, Form, OwnEntry, OwnTable, Restored, Search, has_label_loads};

impl<'a, 'd> Search<'a, 'd> {
    pub fn new<I: Isa>(code: &'a FunctionCode<'a, 'd>, loads: Vec<(usize, Form)>) -> Self {
        let insns = code.insns;
        let index: FxHashMap<u64, usize> = (0..insns.len()).map(|k| (insns[k].addr, k)).collect();
        let mut is_leader = vec![false; insns.len()];
        let mut lead = |addr: u64| {
            if let Some(k) = index.get(&addr) {
                is_leader[*k] = true;
            }
        };
        let mut entered: Vec<u64> = vec![code.ranges[0].0];
        entered.extend_from_slice(&code.function.entries);
        entered.extend_from_slice(&code.landing_pads);
        entered.extend_from_slice(&code.from_old);
        entered.iter().for_each(|a| lead(*a));
        for i in insns {
            if let Flow::Jump { target }
            | Flow::CondJump { target, .. }
            | Flow::ShortCond { target } = i.flow
            {
                lead(target);
                lead(i.end());
            }
        }
        Search {
            load_at: loads.iter().zip(0..).map(|(l, n)| (l.0, n)).collect(),
            loads,
            values: insns.iter().map(|i| I::values(code.bytes(i), i)).collect(),
            is_end: insns
                .iter()
                .map(|i| code.program.calls_no_return::<I>(i))
                .collect(),
            entered: entered
                .iter()
                .filter_map(|a| index.get(a).copied())
                .collect(),
            forms_old: FxHashSet::default(),
            edges: FxHashMap::default(),
            based: FxHashSet::default(),
            readers: FxHashSet::default(),
            leaving: FxHashMap::default(),
            guarded: FxHashSet::default(),
            index,
            is_leader,
            code,
        }
    }

    /// Where jumps through tables lead.
    pub(super) fn edges_of(&mut self, assumed: &[OwnTable]) -> FxHashMap<usize, Vec<Edge>> {
        let mut edges: FxHashMap<usize, Vec<Edge>> = FxHashMap::default();
        for table in assumed {
            let registers = table.restored.map_or(0, Restored::registers);
            let edge = |e: &OwnEntry| {
                Some(Edge {
                    to: self.index.get(&e.target).copied()?,
                    restored: if e.restores { registers } else { 0 },
                })
            };
            let inside = table.entries.iter().filter(|e| e.inside);
            let mut to: Vec<Edge> = inside.filter_map(edge).collect();
            to.sort_unstable();
            to.dedup();
            to.iter().for_each(|edge| self.is_leader[edge.to] = true);
            edges.insert(self.index[&table.jump], to);
        }
        edges
    }

    /// The tables, if those that are given are.
    pub(super) fn tables<I: Isa>(&mut self, assumed: &[OwnTable]) -> Vec<OwnTable> {
        let edges = self.edges_of(assumed);
        let facts = self.flow::<I>(&edges);
        self.edges = edges;
        let mut users: FxHashMap<u32, u32> = FxHashMap::default();
        let jumps = || facts.jumps.iter().filter_map(|(k, j)| Some((*k, (*j)?)));
        for (_, through) in jumps() {
            for load in through.loads() {
                *users.entry(load).or_default() += 1;
            }
        }
        let mut found: Vec<(usize, u32, u64, u64)> = Vec::new();
        let mut unknown: Vec<(usize, u32, u64)> = Vec::new();
        for (jump, through) in jumps() {
            let free = |load| users.get(&load) == Some(&1) && !facts.spoilt.contains(&load);
            let Some(seen) = facts
                .seen
                .get(&through.load)
                .filter(|_| through.loads().all(free))
            else {
                continue;
            };
            let alike = |load: u32| {
                let other = facts.seen.get(&load);
                let labels =
                    self.loads[load as usize].1.width() == 8 && has_label_loads::<I>(self.code);
                labels && other.is_some_and(|o| (o.base, o.most) == (seen.base, seen.most))
            };
            if !through.other.is_none_or(alike) {
                continue;
            }
            for load in through.loads() {
                let disp = match self.loads[load as usize].1 {
                    Form::Load(load) => load.disp,
                    Form::Jump(_) => 0,
                };
                match seen.base {
                    Some(seen) => found.push((jump, load, through.base, seen.wrapping_add(disp))),
                    None if through.other.is_none() => unknown.push((jump, load, seen.most)),
                    None => {}
                }
            }
        }
        found.sort_unstable();
        let starts: Vec<u64> = found.iter().map(|f| f.3).collect();
        let tables = found.iter().filter_map(|&(jump, load, base, table)| {
            self.table::<I>(
                jump,
                load,
                base,
                table,
                facts.seen.get(&load)?.most,
                &starts,
            )
        });
        let mut tables: Vec<OwnTable> = tables.collect();
        // Both loads that lead to a jump have a table, or none.
        let pairs = jumps().filter(|j| j.1.other.is_some());
        let pairs: Vec<u64> = pairs.map(|j| self.code.insns[j.0].addr).collect();
        let both = |jump: u64| tables.iter().filter(|t| t.jump == jump).count() == 2;
        let alone: Vec<u64> = pairs.into_iter().filter(|jump| !both(*jump)).collect();
        tables.retain(|t| !alone.contains(&t.jump));
        unknown.sort_unstable();
        tables.extend(self.guarded_tables::<I>(&unknown, &tables));
        tables.sort_by_key(|t| t.jump);
        tables
    }

    /// The registers of [`Self::changed_by`] whose values can be told from an entry.
    fn restored_by<I: Isa>(&self, jump: usize, load: u32) -> Option<Restored> {
        let insn = &self.code.insns[jump];
        let target = I::jump_register(self.code.bytes(insn), insn)?;
        let Form::Load(shape) = self.loads[load as usize].1 else {
            return None;
        };
        let distance = shape.to.filter(|to| *to != target);
        let mut unused: Code<()> = Code::default();
        let told = (distance.is_none() || shape.width == 4)
            && I::put_restored(&mut unused, (target, ()), distance.map(|to| (to, 0)));
        told.then_some(Restored { target, distance })
    }

    /// Registers and flags that a jump through a table of its own leaves otherwise than through the old one: what is
    /// loaded, the sum, and what the addition says.
    pub(super) fn changed_by<I: Isa>(&self, jump: usize, load: u32) -> RegSet {
        let register = |r: u8| RegSet(1 << r);
        let insn = &self.code.insns[jump];
        let to = I::jump_register(self.code.bytes(insn), insn);
        let shape = match self.loads[load as usize].1 {
            Form::Load(shape) => shape,
            Form::Jump(jump) => return RegSet(jump.writes.into()),
        };
        let both = [to, shape.to].into_iter().flatten().map(register);
        let set = both.fold(RegSet::EMPTY, RegSet::or);
        match shape.width {
            4 => set.or(I::FLAGS),
            _ => set,
        }
    }

    /// Whether code at an instruction reads what a jump that leads there has changed, up to what leaves.
    /// Loops that jump again to what they have loaded once do, results of 8 bits, and what only looks like an entry.
    pub(super) fn may_read<I: Isa>(&self, from: usize, changed: RegSet) -> bool {
        self.may_use::<I>(from, changed, false)
    }

    /// The same, or (`jumps`) whether an indirect jump there may go to what one of the registers holds.
    fn may_use<I: Isa>(&self, from: usize, changed: RegSet, jumps: bool) -> bool {
        const MOST: usize = 1 << 14;
        let insns = self.code.insns;
        let mut work = vec![(from, changed, RegSet::EMPTY)];
        let (mut steps, mut seen) = (0, FxHashSet::default());
        // `low`: those of which the low 8 bits are what the program has written there.
        while let Some((mut k, mut open, mut low)) = work.pop() {
            while open != RegSet::EMPTY && steps < MOST {
                steps += 1;
                // Every loop passes a leader.
                if self.is_leader[k] && !seen.insert((k, open.0, low.0)) {
                    break;
                }
                let insn = &insns[k];
                let target = match insn.flow {
                    Flow::Next => None,
                    Flow::Jump { target }
                    | Flow::CondJump { target, .. }
                    | Flow::ShortCond { target } => self.index.get(&target).copied(),
                    // A loop may jump again to what was loaded in front of it.
                    Flow::IndirectJump => {
                        if I::operand_registers(self.code.bytes(insn), insn).meets(open) {
                            return true;
                        }
                        let to = self.edges.get(&k).into_iter().flatten();
                        work.extend(to.map(|edge| {
                            let restored = RegSet(edge.restored.into());
                            (edge.to, open.minus(restored), low.minus(restored))
                        }));
                        break;
                    }
                    // Where it goes may be in a table of functions.
                    Flow::IndirectCall
                        if !jumps
                            && I::operand_registers(self.code.bytes(insn), insn).meets(open) =>
                    {
                        return true;
                    }
                    // Calls do not look at what they keep.
                    Flow::Call { .. } | Flow::IndirectCall if !self.is_end[k] => {
                        open = open.minus(open.minus(I::KEPT_BY_CALLS));
                        k += 1;
                        if insns.get(k).is_none_or(|next| next.addr != insn.end()) {
                            break;
                        }
                        continue;
                    }
                    _ => break,
                };
                let effects = I::effects(self.code.bytes(insn), insn);
                let values = &self.values[k];
                let wide = RegSet(u64::from(values.wide));
                let whole = open.minus(low);
                // Compilers copy registers of 32 bits where values of 8 are meant.
                let copied = match values.sets {
                    Some(Sets::Copy { to, from, bits }) if bits >= 32 => {
                        let from = RegSet(1 << from);
                        let is_low = effects.reads == from && from.meets(open.minus(whole));
                        is_low.then_some(RegSet(1 << to))
                    }
                    _ => None,
                };
                let is_read = effects.reads.meets(whole) || wide.meets(open.minus(whole));
                if is_read && copied.is_none() && !jumps {
                    return true;
                }
                open = open.minus(effects.kills);
                if !values.may_not_write {
                    low = low.or(RegSet(u64::from(values.low)));
                }
                low = low.minus(effects.kills);
                if let Some(to) = copied {
                    (open, low) = (open.or(to), low.or(to));
                }
                let next = insns.get(k + 1).filter(|next| next.addr == insn.end());
                let falls = next.map(|_| k + 1);
                let falls = falls.filter(|_| !matches!(insn.flow, Flow::Jump { .. }));
                k = match (target, falls) {
                    (Some(to), Some(next)) => {
                        work.push((to, open, low));
                        next
                    }
                    (Some(to), None) | (None, Some(to)) => to,
                    (None, None) => break,
                };
            }
        }
        false
    }

    /// The next address after a table's that the function forms: probably another table.
    fn next_formed(&self, table: u64) -> Option<u64> {
        let formed = self.code.insns.iter().filter(|i| i.traits.forms_address);
        let formed = formed.filter_map(|i| Some(i.field?.target));
        formed.filter(|to| *to > table).min()
    }

    /// Reads a table.
    pub(super) fn table<I: Isa>(
        &self,
        jump: usize,
        load: u32,
        base: u64,
        table: u64,
        most: u64,
        starts: &[u64],
    ) -> Option<OwnTable> {
        use postlink_elf::raw::SHF_WRITE;
        let (at, form) = self.loads[load as usize];
        if let Form::Load(shape) = form
            && shape.width == 8
            && has_label_loads::<I>(self.code)
        {
            return self.labels::<I>((jump, at), shape, (table, most), false);
        }
        let elf = self.code.program.elf;
        let (_, section) = elf.section_at(table)?;
        let width = form.width();
        if section.flags & SHF_WRITE != 0 || !section.is_alloc() || section.is_code() {
            return None;
        }
        let room = ENTRIES.min((section.end() - table) / width);
        let entry = |i: u64| {
            let place = table + i * width;
            let bytes = elf.bytes_at(place, width)?.iter().rev();
            let stored = bytes.fold(0u64, |n, byte| n << 8 | u64::from(*byte));
            let target = form.target(base, stored);
            Some(OwnEntry {
                stored,
                target,
                inside: true,
                behind: false,
                restores: false,
                block: None,
            })
        };
        let changed = self.changed_by::<I>(jump, load);
        // Words behind the table are no entries, and what they lead to is not looked at.
        let own = self.next_formed(table);
        let own = own.map_or(room, |next| room.min((next - table) / width));
        let leads = |e: &OwnEntry, i: u64| {
            let to = self.index.get(&e.target).filter(|_| i < own);
            to.is_some_and(|to| !self.may_read::<I>(*to, changed))
        };
        let restored = self.restored_by::<I>(jump, load);
        let known = |i: &u64| entry(*i).is_some_and(|e| self.index.contains_key(&e.target));
        let sure = own.min(most.saturating_add(1));
        let limit = restored.map_or(0, |_| (0..sure).take_while(known).count() as u64);
        let restores = |e: &OwnEntry, i: u64| {
            let to = self.index.get(&e.target).filter(|_| i < limit);
            let to = to.filter(|to| !self.code.insns[**to].traits.landing_pad);
            to.is_some_and(|to| {
                let registers = changed.minus(I::FLAGS);
                !self.may_read::<I>(*to, changed.minus(registers))
                    && !self.may_use::<I>(*to, registers, true)
            })
        };
        // What leads into the function, as it is or as it is restored.
        let inside = |(i, e): (u64, OwnEntry)| {
            let leads = leads(&e, i);
            let restores = !leads && restores(&e, i);
            OwnEntry {
                inside: leads || restores,
                behind: i >= own,
                restores,
                ..e
            }
        };
        // A bound that is the type's, not the table's: what follows the table may lead to what old entries overwrite.
        let is_lost = |(i, e): (u64, OwnEntry)| {
            let program = self.code.program;
            program.may_be_overwritten(e.target) && !inside((i, e)).inside
        };
        let numbered = |i: u64| Some((i, entry(i)?));
        let guarded = most >= room || (0..=most).map_while(numbered).any(is_lost);
        let entries: Vec<OwnEntry> = if guarded {
            // Its flags would be others where an addition does not change them anyhow.
            if width == 8 || matches!(form, Form::Jump(_)) {
                return None;
            }
            let next = starts.iter().filter(|s| **s > table).min();
            let limit = next.map_or(room, |next| room.min((next - table) / width));
            let limit = limit.min(most.saturating_add(1));
            (0..limit)
                .map_while(numbered)
                .map(inside)
                .take_while(|e| e.inside)
                .collect()
        } else {
            // What is not inside goes on in old code.
            (0..=most).map_while(numbered).map(inside).collect()
        };
        let whole = guarded && entries.len() >= 2 || entries.len() as u64 == most.saturating_add(1);
        let insn = &self.code.insns[at];
        let jump = self.code.insns[jump].addr;
        if !whole || !entries.iter().any(|e| e.inside) {
            return None;
        }
        let plain = OwnTable {
            load: insn.addr,
            len: insn.len,
            jump,
            index: 0,
            disp: 0,
            lead: 0,
            table,
            base,
            width: 4,
            relative: false,
            labels: None,
            scratch: None,
            fallback: None,
            restored,
            guarded,
            base_guard: None,
            entries,
        };
        match form {
            Form::Load(shape) => Some(OwnTable {
                index: shape.index,
                disp: shape.disp,
                lead: shape.lead,
                width: shape.width,
                ..plain
            }),
            // What is left in registers would be foreign to old code.
            Form::Jump(_) if !plain.entries.iter().all(|e| e.inside) => None,
            Form::Jump(shape) => Some(OwnTable {
                index: shape.index,
                len: (jump - insn.addr) as u8,
                relative: true,
                ..plain
            }),
        }
    }
}
