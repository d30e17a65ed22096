//! Data flow over a function: what loads read, how large their indices may be, and what jumps go through.

use postlink_isa::{Flow, Isa, RegSet, Sets, TableJump, TableLoad};
use rustc_hash::{FxHashMap, FxHashSet};

use super::super::values::{State, What};
use super::{Edge, Form, OwnTable, Search};

/// How often what changes at a place is taken in before it is given up.
const OFTEN: u32 = 24;

/// What data flow says of a load.
#[derive(Clone, Copy)]
pub(super) struct Seen {
    pub(super) base: Option<u64>,
    pub(super) most: u64,
}

/// The loads of what a jump goes to, and the base that was added.
#[derive(Clone, Copy)]
pub(super) struct Through {
    pub(super) load: u32,
    /// There are two loads of labels that lead to it.
    pub(super) other: Option<u32>,
    pub(super) base: u64,
}

impl Through {
    pub(super) fn loads(self) -> impl Iterator<Item = u32> {
        [Some(self.load), self.other].into_iter().flatten()
    }
}

/// What data flow says of registers that hold the addresses of other tables ([`own_bases`]).
#[derive(Default)]
pub(in crate::cfg) struct Bases {
    /// Additions that form them: instruction, register, the old table.
    pub formed: Vec<(usize, u8, u64)>,
    /// By instruction, loads that read them: whether they do on all ways.
    pub read: FxHashMap<usize, bool>,
    /// Registers of which something else reads what they hold.
    pub spoilt: u32,
    /// Additions right in front of something that reads what they form.
    pub read_otherwise: FxHashSet<usize>,
}

/// What data flow says.
#[derive(Default)]
pub(super) struct Facts {
    /// By load.
    pub(super) seen: FxHashMap<u32, Seen>,
    /// By instruction: what a jump goes through, if that is a table.
    pub(super) jumps: FxHashMap<usize, Option<Through>>,
    /// Loads whose results, or the sums made of them, something else reads.
    pub(super) spoilt: Vec<u32>,
    pub(super) bases: Bases,
}

impl Search<'_, '_> {
    /// What data flow says of the registers of [`Search::based`], with these tables.
    pub fn bases<I: Isa>(&mut self, tables: &[OwnTable]) -> Bases {
        self.edges = self.edges_of(tables);
        self.flow::<I>(&self.edges).bases
    }

    /// Data flow with these edges beside those of direct jumps.
    pub(super) fn flow<I: Isa>(&self, edges: &FxHashMap<usize, Vec<Edge>>) -> Facts {
        let mut states: FxHashMap<usize, (State, u32)> = FxHashMap::default();
        let mut work: Vec<usize> = Vec::new();
        for k in &self.entered {
            states.insert(*k, (State::ENTERED, 0));
            work.push(*k);
        }
        while let Some(from) = work.pop() {
            let mut out: Vec<(usize, State)> = Vec::new();
            let state = states[&from].0.clone();
            self.block::<I>(
                from,
                state,
                edges,
                &mut |k, state| out.push((k, state)),
                None,
            );
            for (k, state) in out {
                match states.get_mut(&k) {
                    None => {
                        states.insert(k, (state, 0));
                        work.push(k);
                    }
                    Some((known, visits)) => {
                        if known.join(&state, *visits > OFTEN) {
                            *visits += 1;
                            work.push(k);
                        }
                    }
                }
            }
        }
        let mut facts = Facts::default();
        for (k, (state, _)) in states {
            self.block::<I>(k, state, edges, &mut |_, _| {}, Some(&mut facts));
        }
        facts
    }

    /// From a leader to the end of straight code. Gives what is known where control goes.
    pub(super) fn block<I: Isa>(
        &self,
        from: usize,
        mut state: State,
        edges: &FxHashMap<usize, Vec<Edge>>,
        goes: &mut dyn FnMut(usize, State),
        mut facts: Option<&mut Facts>,
    ) {
        let insns = self.code.insns;
        let mut k = from;
        loop {
            let insn = &insns[k];
            let next = (k + 1 < insns.len() && insns[k + 1].addr == insn.end()).then_some(k + 1);
            if let Some(facts) = facts.as_deref_mut() {
                self.note::<I>(k, &state, facts);
            }
            if let Some((shape, jump)) = self.whole_jump(k) {
                state.forget(shape.writes);
                for edge in edges.get(&jump).into_iter().flatten() {
                    goes(edge.to, state.clone());
                }
                return;
            }
            match insn.flow {
                Flow::Next => self.plain::<I>(k, &mut state),
                Flow::Call { .. } | Flow::IndirectCall => {
                    if self.is_end[k] {
                        return;
                    }
                    state.forget(!(I::KEPT_BY_CALLS.0 as u32));
                    state.forget_flags();
                }
                Flow::Jump { target } => {
                    if let Some(to) = self.index.get(&target) {
                        goes(*to, state);
                    }
                    return;
                }
                Flow::CondJump { cond, target } => {
                    if let Some(to) = self.index.get(&target) {
                        goes(*to, state.bounded(|c| I::bounds(cond, true, c)));
                    }
                    state = state.bounded(|c| I::bounds(cond, false, c));
                }
                Flow::ShortCond { target } => {
                    state.forget(self.values[k].writes);
                    if let Some(to) = self.index.get(&target) {
                        goes(*to, state.clone());
                    }
                }
                Flow::IndirectJump => {
                    self.plain::<I>(k, &mut state);
                    for edge in edges.get(&k).into_iter().flatten() {
                        let mut state = state.clone();
                        state.forget(edge.restored);
                        goes(edge.to, state);
                    }
                    return;
                }
                Flow::Trap => state.forget(u32::MAX),
                Flow::Return | Flow::Stop => return,
            }
            let Some(next) = next else {
                return;
            };
            if self.is_leader[next] {
                goes(next, state);
                return;
            }
            k = next;
        }
    }

    /// The jump that is encoded again from an instruction on, and its number, if control comes to all of it from there.
    pub(super) fn whole_jump(&self, k: usize) -> Option<(TableJump, usize)> {
        let load = *self.load_at.get(&k)?;
        let Form::Jump(shape) = self.loads[load as usize].1 else {
            return None;
        };
        let end = k + usize::from(shape.count);
        let entered = self.is_leader[k + 1..end].contains(&true);
        (!entered).then_some((shape, end - 1))
    }

    /// After an instruction that calls nothing and does not branch.
    pub(super) fn plain<I: Isa>(&self, k: usize, state: &mut State) {
        let insn = &self.code.insns[k];
        if insn.traits.system_call {
            state.forget(u32::MAX);
            state.forget_flags();
            return;
        }
        let sum = self.sum::<I>(k, state);
        state.step(&self.values[k]);
        if let Some((to, table)) = self.formed(k, state) {
            state.put(to, What::Base(table));
        }
        if let Some(load) = self.load_at.get(&k)
            && let Form::Load(TableLoad { to: Some(to), .. }) = self.loads[*load as usize].1
        {
            state.put(to, What::Entry(*load));
        }
        if let Some((to, load, base)) = sum {
            state.put(to, What::Target(load, base));
        }
    }

    /// The register in which instruction `k` has left the address of a table, after it, if that is to be another's.
    pub(super) fn formed(&self, k: usize, state: &State) -> Option<(u8, u64)> {
        if self.based.is_empty() || self.forms_old.contains(&k) {
            return None;
        }
        match self.values[k].sets {
            Some(Sets::Sum { to, .. } | Sets::Address { to, .. }) => match state.get(to).what {
                What::Address(a) => self.based.contains(&(to, a)).then_some((to, a)),
                _ => None,
            },
            _ => None,
        }
    }

    /// An addition of an entry and an address: the register with the sum, the load, the address.
    pub(super) fn sum<I: Isa>(&self, k: usize, state: &State) -> Option<(u8, u32, u64)> {
        let insn = &self.code.insns[k];
        // Additions are of few bytes.
        let (to, from) = (insn.len <= 3)
            .then(|| I::adds(self.code.bytes(insn), insn))
            .flatten()?;
        match (state.get(to).what, state.get(from).what) {
            (What::Entry(load), base) | (base, What::Entry(load)) => {
                Some((to, load, self.address(base)?))
            }
            _ => None,
        }
    }

    /// A link-time address that a register holds.
    pub(super) fn address(&self, what: What) -> Option<u64> {
        match what {
            What::Address(a) | What::Base(a) => Some(a),
            What::Number(a) if self.code.program.refs.fixed => Some(a),
            _ => None,
        }
    }

    /// Notes what is known before an instruction.
    pub(super) fn note<I: Isa>(&self, k: usize, state: &State, facts: &mut Facts) {
        let insn = &self.code.insns[k];
        if let Some((shape, jump)) = self.whole_jump(k) {
            let held = || self.address(state.get(shape.register).what);
            let base = shape.table.or_else(held);
            let most = state.get(shape.index).most_of(shape.bits);
            let load = self.load_at[&k];
            facts.seen.insert(load, Seen { base, most });
            let through = base.map(|table| Through {
                load,
                other: None,
                base: shape.anchor.unwrap_or(table),
            });
            facts.jumps.insert(jump, through);
        } else if let Some(load) = self.load_at.get(&k)
            && let Form::Load(shape) = self.loads[*load as usize].1
        {
            let base = match shape.base {
                Some(register) => self.address(state.get(register).what),
                None if self.code.program.refs.fixed => Some(0),
                None => None,
            };
            let most = state.get(shape.index).most_of(shape.bits);
            facts.seen.insert(*load, Seen { base, most });
            if shape.to.is_none() {
                let (load, other, base) = (*load, None, 0);
                facts.jumps.insert(k, Some(Through { load, other, base }));
            }
        } else if insn.flow == Flow::IndirectJump {
            let register = I::jump_register(self.code.bytes(insn), insn);
            let of_addresses = |load: u32| self.loads[load as usize].1.width() == 8;
            let through = match register.map(|r| state.get(r).what) {
                Some(What::Target(load, base)) => Some((load, None, base)),
                Some(What::Entry(load)) if of_addresses(load) => Some((load, None, 0)),
                Some(What::Either(a, b)) if of_addresses(a) && of_addresses(b) => {
                    Some((a, Some(b), 0))
                }
                _ => None,
            };
            let through = through.map(|(load, other, base)| Through { load, other, base });
            facts.jumps.insert(k, through);
        }
        self.note_reads::<I>(k, state, facts);
        if !self.based.is_empty() {
            self.note_bases::<I>(k, state, &mut facts.bases);
        }
    }

    /// Notes what forms and reads the addresses of other tables. Nothing may but loads of labels: no call, return or
    /// jump out of the function finds them in a register that it may look at.
    pub(super) fn note_bases<I: Isa>(&self, k: usize, state: &State, bases: &mut Bases) {
        let insn = &self.code.insns[k];
        let load = self.load_at.get(&k).filter(|_| self.readers.contains(&k));
        let base = match load.map(|load| self.loads[*load as usize].1) {
            Some(Form::Load(shape)) => shape.base,
            _ => None,
        };
        let mut allowed = 0;
        if let Some(register) = base {
            let based = matches!(state.get(register).what, What::Base(_));
            bases.read.insert(k, based);
            allowed = u32::from(based) << register;
        }
        if insn.flow == Flow::Next {
            let mut after = state.clone();
            after.step(&self.values[k]);
            if let Some((to, table)) = self.formed(k, &after) {
                bases.formed.push((k, to, table));
            }
        }
        if state.based == 0 {
            return;
        }
        let bytes = self.code.bytes(insn);
        let reads = || I::effects(bytes, insn).reads.0 as u32;
        let lost = !(I::KEPT_BY_CALLS.0 as u32);
        let inside = |target: u64| self.index.contains_key(&target);
        let goes_on = || {
            self.code
                .insns
                .get(k + 1)
                .is_some_and(|n| n.addr == insn.end())
        };
        let looked_at = match insn.flow {
            Flow::Next if insn.traits.system_call || self.guarded.contains(&k) => u32::MAX,
            Flow::Next if goes_on() => reads() & !allowed,
            Flow::CondJump { target, .. } | Flow::ShortCond { target }
                if inside(target) && goes_on() =>
            {
                reads()
            }
            Flow::Jump { target } if inside(target) => 0,
            Flow::Call { .. } | Flow::IndirectCall => {
                lost | I::operand_registers(bytes, insn).0 as u32
            }
            Flow::IndirectJump if self.edges.contains_key(&k) => {
                self.leaving.get(&k).map_or(0, |kept| !kept)
            }
            _ => u32::MAX,
        };
        for register in (0..32u8).filter(|r| (state.based & looked_at) >> r & 1 != 0) {
            match self.formed_before(k, register) {
                Some(addition) => {
                    bases.read_otherwise.insert(addition);
                }
                None => bases.spoilt |= 1 << register,
            }
        }
    }

    /// The instruction in the straight code in front of instruction `k` that forms what a register holds there.
    pub(super) fn formed_before(&self, k: usize, register: u8) -> Option<usize> {
        let insns = self.code.insns;
        let straight = |i: &usize| {
            let (insn, next) = (&insns[*i], &insns[*i + 1]);
            insn.flow == Flow::Next && next.addr == insn.end() && !self.is_leader[*i + 1]
        };
        let mut before = (0..k).rev().take_while(straight);
        let last = before.find(|i| self.values[*i].writes >> register & 1 != 0)?;
        let sets = self.values[last].sets.filter(|s| s.to() == register);
        sets.filter(|s| matches!(s, Sets::Sum { .. } | Sets::Address { .. }))
            .map(|_| last)
    }

    /// Notes loads whose results another instruction reads than the addition and the jump.
    pub(super) fn note_reads<I: Isa>(&self, k: usize, state: &State, facts: &mut Facts) {
        let insn = &self.code.insns[k];
        let of = |register: u8| match state.get(register).what {
            What::Entry(load) | What::Target(load, _) => [Some(load), None],
            What::Either(a, b) => [Some(a), Some(b)],
            _ => [None; 2],
        };
        if (0..32).all(|r| of(r) == [None; 2])
            || insn.flow != Flow::Next
            || self.sum::<I>(k, state).is_some()
        {
            return;
        }
        let RegSet(reads) = I::effects(self.code.bytes(insn), insn).reads;
        for register in 0..32u8 {
            if reads >> register & 1 != 0 {
                facts.spoilt.extend(of(register).into_iter().flatten());
            }
        }
    }
}
