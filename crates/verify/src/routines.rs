//! Routines that postlink adds to an instrumented program: what starts it up, what gives a thread its counters, what
//! notes first calls. Proves that they keep the registers, the flags and the stack that they must, on every path.
//!
//! They are long, make system calls and loop over tables, so this alone is shown of what they do: a small
//! abstract interpreter follows every path from the first instruction and knows of each register and each word of the
//! stack one of a few things ([`Value`]): it is what a register was at the beginning, an address on the stack, a
//! number, or anything. Where paths meet, what differs is anything. Calls are followed into what is called, each by
//! itself, by the return address that it leaves. Wherever control leaves the routine, it is told what registers
//! hold ([`Exit`]); the caller demands what must be.
//!
//! An instruction of which it is not known which registers it may write ([`Arch::plain`]), an indirect jump to anything
//! but a number, or a return to anything but a return address is an error: then nothing is shown. So is a write to a
//! place on the stack that is the caller's.
//!
//! Where return addresses are in a register, it is also followed from which registers what is written to memory that is
//! not on the stack may come ([`State::origins`]): what a routine notes of its call shows what it takes for the return
//! address.
//!
//! What is assumed (A14): a write through an address that is not on the stack (of counters, of the mapped file, of what
//! the kernel fills) does not change the saved registers, and no other memory of the program.

use rustc_hash::FxHashMap;

use crate::arch::step::{Caller, Mem, Next, Op, Segment, Step, flag};
use crate::arch::{Arch, Flow, StackChange};

/// What a register or a word of the stack holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// What this register held at the beginning.
    Initial(u8),
    /// The page of the address that it held.
    Page(u8),
    /// The flags as they were at the beginning.
    Flags,
    /// Where the routine returns to, if that is on the stack.
    Caller,
    /// An address on the stack: distance from the stack pointer at the beginning, or from where that was aligned.
    Stack {
        aligned: bool,
        at: i64,
    },
    /// A number, or an address.
    Number(u64),
    Anything,
}

/// How control leaves a routine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exit {
    /// Where to; `None`: back to the caller.
    pub to: Option<u64>,
    /// Registers that may hold something else than at the beginning, one bit each; of the stack pointer, than it must.
    pub changed: u32,
    /// Flags may be others.
    pub flags_changed: bool,
    /// The register whose value at the beginning is in the link register, if there is one.
    pub link: Option<u8>,
    /// Registers that hold the page of the address that they held, one bit each.
    pub pages: u32,
    /// Something was written to the caller's part of the stack.
    pub wrote_above: bool,
    /// The lowest and the highest of the caller's words on the stack that were read, from the stack pointer at the
    /// beginning.
    pub read_above: Option<(i64, i64)>,
    /// Registers from whose values at the beginning something may come that was written to memory which is not on the
    /// stack, or where that is, one bit each.
    pub told: u32,
}

pub(crate) const REGISTERS: usize = 32;
/// Instructions that are looked at before a routine is given up.
pub(crate) const MOST: usize = 200_000;
/// Calls within calls.
pub(crate) const DEEPEST: usize = 8;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct State {
    regs: [Value; REGISTERS],
    /// Words on the stack: whether its place is aligned, where, what. Ascending.
    slots: Vec<((bool, i64), Value)>,
    /// The flags are as they were.
    flags: bool,
    /// Where the stack pointer was when it was aligned.
    bound: i64,
    /// The caller's part of the stack was written to.
    wrote_above: bool,
    /// See [`Exit::read_above`].
    read_above: Option<(i64, i64)>,
    /// By register: from which registers, as they were at the beginning, its value may come, one bit each. Where return
    /// addresses are on the stack that is not asked.
    origins: [u32; REGISTERS],
    /// See [`Exit::told`].
    told: u32,
    /// A program begins here: nothing has called it.
    outermost: bool,
}

impl State {
    pub(crate) fn new<A: Arch>() -> State {
        let mut regs = [Value::Anything; REGISTERS];
        for (i, value) in regs.iter_mut().enumerate() {
            *value = Value::Initial(i as u8);
        }
        let mut state = State {
            regs,
            slots: Vec::new(),
            flags: true,
            bound: i64::MIN,
            wrote_above: false,
            read_above: None,
            origins: std::array::from_fn(|reg| 1 << reg),
            told: 0,
            outermost: false,
        };
        state.came(A::STACK, 0);
        let sp = Value::Stack {
            aligned: false,
            at: 0,
        };
        state.set(A::STACK, sp);
        if A::CALL_PUSHES != 0 {
            state.slots.push(((false, 0), Value::Caller));
        }
        state
    }

    /// The same at the beginning of a program, if it is that.
    pub(crate) fn begins(mut self, outermost: bool) -> State {
        self.outermost = outermost;
        self
    }

    pub(crate) fn is_outermost(&self) -> bool {
        self.outermost
    }

    pub(crate) fn registers(&self) -> &[Value; REGISTERS] {
        &self.regs
    }

    /// The word at an address.
    pub(crate) fn word(&self, at: Value) -> Value {
        let Value::Stack { aligned, at } = at else {
            return Value::Anything;
        };
        let slot = self.slots.iter().find(|s| s.0 == (aligned, at));
        slot.map_or(Value::Anything, |s| s.1)
    }

    /// Whether that is where the routine returns to.
    pub(crate) fn is_caller<A: Arch>(&self, value: Value) -> bool {
        match A::LINK.first() {
            Some(link) => value == Value::Initial(*link),
            None => value == Value::Caller,
        }
    }

    /// How many bytes the stack pointer is below where it was at the beginning.
    pub(crate) fn down<A: Arch>(&self) -> Option<i64> {
        match self.get(A::STACK) {
            Value::Stack { aligned: false, at } => Some(at.wrapping_neg()),
            _ => None,
        }
    }

    /// Another register that has what the register of return addresses had, where calls overwrite that.
    pub(crate) fn holder_of_link<A: Arch>(&self) -> Option<u8> {
        let link = *A::LINK.first()?;
        let mut others = (0..REGISTERS as u8).filter(|reg| *reg != link);
        others.find(|reg| self.get(*reg) == Value::Initial(link))
    }

    /// A call, whose return address has its place, has come back, and has destroyed these registers.
    pub(crate) fn has_called<A: Arch>(&mut self, destroys: u32) {
        if A::LINK.is_empty() {
            let sp = plus(self.get(A::STACK), A::CALL_PUSHES.abs());
            move_to::<A>(self, A::STACK, sp);
        }
        for reg in (0..REGISTERS as u8).filter(|r| destroys >> r & 1 != 0 || A::LINK.contains(r)) {
            self.set(reg, Value::Anything);
        }
        self.flags = false;
    }

    /// A routine that notes calls has been called and has come back; this is what was in front of the call.
    pub(crate) fn has_noted<A: Arch>(&mut self) {
        let notes = A::NOTES;
        let link = notes.link.map(|reg| self.get(reg));
        for reg in (0..REGISTERS as u8).filter(|reg| notes.destroys >> reg & 1 != 0) {
            self.set(reg, Value::Anything);
        }
        for (reg, value) in A::LINK.iter().zip(link) {
            self.set(*reg, value);
        }
        self.flags = false;
    }

    fn get(&self, reg: u8) -> Value {
        self.regs
            .get(usize::from(reg))
            .copied()
            .unwrap_or(Value::Anything)
    }

    fn set(&mut self, reg: u8, value: Value) {
        if let Some(slot) = self.regs.get_mut(usize::from(reg)) {
            *slot = value;
        }
    }

    /// What a register holds comes from others.
    fn came(&mut self, reg: u8, from: u32) {
        if let Some(origin) = self.origins.get_mut(usize::from(reg)) {
            *origin = from;
        }
    }

    /// From where what these registers hold may come.
    fn sources(&self, regs: u32) -> u32 {
        let of = self.origins.iter().enumerate();
        of.filter(|(reg, _)| regs >> reg & 1 != 0)
            .fold(0, |all, (_, from)| all | from)
    }

    /// From where a word that is loaded may come, if what is read by the instruction comes from `read`.
    fn loaded_from(&self, mem: &Mem, read: u32) -> u32 {
        if self.place(mem).is_none() {
            return read;
        }
        match self.load(mem) {
            Value::Initial(reg) | Value::Page(reg) => 1 << reg,
            Value::Flags | Value::Caller | Value::Stack { .. } | Value::Number(_) => 0,
            // What is not known on the stack may be any of what was saved there.
            Value::Anything => u32::MAX,
        }
    }

    /// Forgets what is not the same in both. `true` if something was forgotten.
    pub(crate) fn join(&mut self, other: &State) -> bool {
        let before = self.clone();
        for (mine, its) in self.regs.iter_mut().zip(&other.regs) {
            if mine != its {
                *mine = Value::Anything;
            }
        }
        self.slots.retain(|slot| other.slots.contains(slot));
        self.flags &= other.flags;
        self.wrote_above |= other.wrote_above;
        for (mine, its) in self.origins.iter_mut().zip(&other.origins) {
            *mine |= its;
        }
        self.told |= other.told;
        if let Some((low, high)) = other.read_above {
            self.note_read(low);
            self.note_read(high);
        }
        if self.bound != other.bound {
            self.slots.retain(|slot| !slot.0.0);
            self.bound = self.bound.max(other.bound);
        }
        *self != before
    }

    /// Where a memory operand is on the stack; whether that is exact.
    fn place(&self, mem: &Mem) -> Option<((bool, i64), bool)> {
        match (mem.segment, mem.base.map(|base| self.get(base))) {
            (Segment::Common, Some(Value::Stack { aligned, at })) => {
                Some(((aligned, at.wrapping_add(mem.disp)), mem.index.is_none()))
            }
            _ => None,
        }
    }

    fn note_read(&mut self, at: i64) {
        let (low, high) = self.read_above.unwrap_or((at, at));
        self.read_above = Some((low.min(at), high.max(at)));
    }

    /// Notes that memory is read, if it is the caller's.
    fn reads<A: Arch>(&mut self, mem: &Mem) {
        if let Some(((false, at), _)) = self.place(mem)
            && at >= A::CALL_PUSHES.abs()
        {
            self.note_read(at);
        }
    }

    fn load(&self, mem: &Mem) -> Value {
        let place = self.place(mem).filter(|p| p.1 && mem.size == 8);
        let slot = place.and_then(|place| self.slots.iter().find(|s| s.0 == place.0));
        slot.map_or(Value::Anything, |s| s.1)
    }

    fn store(&mut self, mem: &Mem, value: Value) {
        let Some(((aligned, at), exact)) = self.place(mem) else {
            return;
        };
        let end = at.saturating_add(i64::from(mem.size.max(1)));
        self.wrote_above |= !aligned && end > 0;
        // What is below the aligned place is below all that was saved before, and nothing else is known of it.
        let apart = if aligned { end <= 0 } else { at >= self.bound };
        self.slots.retain(|((other, start), _)| {
            if *other == aligned {
                *start >= end || start.saturating_add(8) <= at
            } else {
                apart
            }
        });
        if exact && mem.size == 8 && value != Value::Anything {
            let slot = self.slots.partition_point(|s| s.0 < (aligned, at));
            self.slots.insert(slot, ((aligned, at), value));
        }
    }
}

pub(crate) fn plus(value: Value, add: i64) -> Value {
    match value {
        Value::Stack { aligned, at } => Value::Stack {
            aligned,
            at: at.wrapping_add(add),
        },
        Value::Number(number) => Value::Number(number.wrapping_add_signed(add)),
        value if add == 0 => value,
        _ => Value::Anything,
    }
}

fn word<A: Arch>() -> Mem {
    crate::arch::step::stack::<A>(0)
}

/// Notes from where what one thing puts somewhere may come; `read`: from where what the instruction reads of registers
/// may.
fn trace(state: &mut State, op: &Op, read: u32) {
    match *op {
        Op::Load { to, mem } => {
            let from = state.loaded_from(&mem, read);
            state.came(to, from);
        }
        Op::Move { to, .. }
        | Op::Number { to, .. }
        | Op::Address { to, .. }
        | Op::Spoil { to }
        | Op::AddHalf { to, .. }
        | Op::Bits { to, .. }
        | Op::Difference { to, .. }
        | Op::Sum { to, .. }
        | Op::Minus { to, .. }
        | Op::Plus { to, .. } => state.came(to, read),
        Op::Store { mem, .. } | Op::StoreNumber { mem } | Op::Change { mem }
            if state.place(&mem).is_none() =>
        {
            state.told |= read;
        }
        _ => {}
    }
}

fn apply<A: Arch>(state: &mut State, op: &Op) {
    match *op {
        Op::Move { to, from, add } => {
            let value = plus(state.get(from), add);
            move_to::<A>(state, to, value);
        }
        Op::Number { to, value } | Op::Address { to, value } => {
            state.set(to, Value::Number(value));
        }
        Op::Load { to, mem } => {
            state.reads::<A>(&mem);
            let value = state.load(&mem);
            state.set(to, value);
        }
        Op::Store { from, mem } => {
            let value = state.get(from);
            state.store(&mem, value);
        }
        Op::StoreNumber { mem } | Op::Change { mem } => state.store(&mem, Value::Anything),
        Op::Read { mem } | Op::Test { mem, .. } => state.reads::<A>(&mem),
        Op::Compare { .. } => {}
        Op::Minus { to, mem } | Op::Plus { to, mem } => {
            state.reads::<A>(&mem);
            state.set(to, Value::Anything);
        }
        Op::Spoil { to }
        | Op::AddHalf { to, .. }
        | Op::Bits { to, .. }
        | Op::Difference { to, .. }
        | Op::Sum { to, .. } => state.set(to, Value::Anything),
        Op::PushFlags => {
            let sp = plus(state.get(A::STACK), -8);
            move_to::<A>(state, A::STACK, sp);
            let value = if state.flags {
                Value::Flags
            } else {
                Value::Anything
            };
            state.store(&word::<A>(), value);
        }
        Op::PopFlags => {
            state.flags = state.load(&word::<A>()) == Value::Flags;
            let sp = plus(state.get(A::STACK), 8);
            move_to::<A>(state, A::STACK, sp);
        }
        Op::SaveStatus | Op::SaveOverflow | Op::RestoreOverflow => state.set(0, Value::Anything),
        Op::RestoreStatus => state.flags = false,
    }
}

/// Puts something into a register. What is below the stack pointer then is gone: a signal handler may overwrite it.
fn move_to<A: Arch>(state: &mut State, to: u8, value: Value) {
    state.set(to, value);
    if let (true, Value::Stack { aligned, at }) = (to == A::STACK, value) {
        let is_above = |slot: &((bool, i64), Value)| slot.0.0 != aligned || slot.0.1 >= at;
        state.slots.retain(is_above);
    }
}

/// Where control continues.
pub(crate) enum Way {
    On(u64),
    Branch(u64, u64),
    Call(u64, u64),
    /// To a value.
    To(Value),
    /// Nowhere: the program ends.
    Ends,
}

/// A routine, and what leads out of it.
pub(crate) struct Routine<'r, 'c> {
    /// The code that is looked into: bytes from an address.
    pub code: &'r dyn Fn(u64) -> Option<&'c [u8]>,
    /// Whether the program continues at an address.
    pub goes_on: &'r dyn Fn(u64) -> bool,
}

impl Routine<'_, '_> {
    /// Follows every path from `start`. An error says where that is not possible.
    pub(crate) fn exits<A: Arch>(&self, start: u64) -> Result<Vec<Exit>, String> {
        let mut known: FxHashMap<(Vec<u64>, u64), State> = FxHashMap::default();
        let mut work = vec![(Vec::new(), start, State::new::<A>())];
        let mut exits: Vec<Exit> = Vec::new();
        let mut left = MOST;
        while let Some((calls, at, mut state)) = work.pop() {
            if calls.is_empty() && at != start && (self.goes_on)(at) {
                note(&mut exits, exit::<A>(&state, Some(at)));
                continue;
            }
            match known.get_mut(&(calls.clone(), at)) {
                Some(there) => {
                    if !there.join(&state) {
                        continue;
                    }
                    state = there.clone();
                }
                None => {
                    known.insert((calls.clone(), at), state.clone());
                }
            }
            match self.run::<A>(at, &mut state, &mut left, &mut |_, _, _| Ok(()))? {
                Way::Ends => {}
                Way::On(next) => work.push((calls, next, state)),
                Way::Branch(a, b) => {
                    work.push((calls.clone(), a, state.clone()));
                    work.push((calls, b, state));
                }
                Way::Call(target, back) => {
                    let mut deeper = calls;
                    deeper.push(back);
                    if deeper.len() > DEEPEST {
                        return Err(format!("calls are too deep at {target:#x}"));
                    }
                    work.push((deeper, target, state));
                }
                Way::To(Value::Number(back)) => {
                    let mut calls = calls;
                    if calls.last() == Some(&back) {
                        calls.pop();
                    } else if !calls.is_empty() {
                        return Err(format!("a call ends at {back:#x}"));
                    }
                    work.push((calls, back, state));
                }
                Way::To(value) => {
                    let is_caller = match A::LINK.first() {
                        Some(link) => value == Value::Initial(*link),
                        None => value == Value::Caller,
                    };
                    if !is_caller {
                        return Err(format!(
                            "it is not known where control goes from the code at {at:#x}"
                        ));
                    }
                    note(&mut exits, exit::<A>(&state, None));
                }
            }
        }
        Ok(exits)
    }

    /// Runs straight code from `at` to where control goes somewhere else. `visit` is called in front of each
    /// instruction, with its address and length.
    pub(crate) fn run<A: Arch>(
        &self,
        mut at: u64,
        state: &mut State,
        left: &mut usize,
        visit: &mut dyn FnMut(u64, u64, &State) -> Result<(), String>,
    ) -> Result<Way, String> {
        loop {
            *left = left.checked_sub(1).ok_or("it is too long")?;
            let unknown = || format!("the instruction at {at:#x} is not understood");
            let bytes = (self.code)(at).ok_or_else(|| format!("control goes to {at:#x}"))?;
            if A::is_privileged(bytes) || A::is_undefined(bytes) {
                return Ok(Way::Ends);
            }
            let insn = A::decode(bytes, at).ok_or_else(unknown)?;
            let bytes = bytes.get(..usize::from(insn.len)).ok_or_else(unknown)?;
            visit(at, insn.len.into(), state)?;
            let next = at.wrapping_add(u64::from(insn.len));
            if insn.landing_pad || insn.flow == Flow::Nothing {
                at = next;
                continue;
            }
            if let Some((to, from)) = A::page_of(bytes) {
                let value = match state.get(from) {
                    Value::Initial(reg) => Value::Page(reg),
                    _ => Value::Anything,
                };
                state.set(to, value);
                let origin = state.sources(1 << (from & 31));
                state.came(to, origin);
                at = next;
                continue;
            }
            if let Some((reg, saves)) = A::flags_word(bytes) {
                if saves {
                    state.set(
                        reg,
                        if state.flags {
                            Value::Flags
                        } else {
                            Value::Anything
                        },
                    );
                    state.came(reg, 0);
                } else {
                    state.flags = state.get(reg) == Value::Flags
                }
                at = next;
                continue;
            }
            match A::step(bytes, at) {
                _ if insn.flow == Flow::Stop && A::is_return(bytes) => {}
                Some(step) => perform::<A>(state, &step, bytes),
                None => plain::<A>(state, bytes, at).ok_or_else(unknown)?,
            }
            match insn.flow {
                Flow::Next | Flow::Trap | Flow::Nothing => at = next,
                Flow::Jump(target) => return Ok(Way::On(target)),
                Flow::Branch { target, .. } => return Ok(Way::Branch(target, next)),
                Flow::Call(target) => {
                    match A::LINK.first() {
                        Some(link) => {
                            state.set(*link, Value::Number(next));
                            state.came(*link, 0);
                        }
                        None => {
                            let sp = plus(state.get(A::STACK), -A::CALL_PUSHES.abs());
                            move_to::<A>(state, A::STACK, sp);
                            state.store(&word::<A>(), Value::Number(next));
                        }
                    }
                    return Ok(Way::Call(target, next));
                }
                Flow::IndirectJump { .. } => match A::step(bytes, at).map(|s| s.next) {
                    Some(Next::Leave(reg)) => return Ok(Way::To(state.get(reg))),
                    _ => return Err(unknown()),
                },
                Flow::Stop if A::is_return(bytes) => {
                    let value = match A::return_register(bytes) {
                        Some(reg) => state.get(reg),
                        None => {
                            let value = state.load(&word::<A>());
                            let sp = plus(state.get(A::STACK), A::CALL_PUSHES.abs());
                            move_to::<A>(state, A::STACK, sp);
                            value
                        }
                    };
                    return Ok(Way::To(value));
                }
                Flow::Stop | Flow::IndirectCall => return Err(unknown()),
            }
        }
    }
}

fn note(exits: &mut Vec<Exit>, exit: Exit) {
    if !exits.contains(&exit) {
        exits.push(exit);
    }
}

fn exit<A: Arch>(state: &State, to: Option<u64>) -> Exit {
    // A return takes its address off the stack.
    let at = match to {
        Some(_) => 0,
        None => A::CALL_PUSHES.abs(),
    };
    let (mut changed, mut pages) = (0, 0);
    for reg in 0..A::REGISTERS.min(REGISTERS as u8) {
        let expected = if reg == A::STACK {
            Value::Stack { aligned: false, at }
        } else {
            Value::Initial(reg)
        };
        if state.get(reg) != expected {
            changed |= 1 << reg;
        }
        if state.get(reg) == Value::Page(reg) {
            pages |= 1 << reg;
        }
    }
    let link = A::LINK.first().map(|link| state.get(*link));
    Exit {
        to,
        changed,
        flags_changed: !state.flags,
        link: match link {
            Some(Value::Initial(reg)) => Some(reg),
            _ => None,
        },
        pages,
        wrote_above: state.wrote_above,
        read_above: state.read_above,
        told: state.told,
    }
}

/// From where what an instruction reads of registers may come; `None`: that is not followed.
fn read_from<A: Arch>(state: &State, bytes: &[u8]) -> Option<u32> {
    let follows = !A::LINK.is_empty();
    follows.then(|| state.sources(A::effects(bytes).reads))
}

fn perform<A: Arch>(state: &mut State, step: &Step, bytes: &[u8]) {
    let restores = step.ops.contains(&Op::PopFlags);
    let read = read_from::<A>(state, bytes);
    for op in &step.ops {
        if let Some(read) = read {
            trace(state, op, read);
        }
        apply::<A>(state, op);
    }
    if step.lost & flag::ALL != 0 && !restores {
        state.flags = false;
    }
}

/// An instruction of which nothing is known but what it may write.
fn plain<A: Arch>(state: &mut State, bytes: &[u8], at: u64) -> Option<()> {
    let plain = A::plain(bytes, at)?;
    if let Some(mut read) = read_from::<A>(state, bytes) {
        match &plain.memory {
            Some(mem) if state.place(mem).is_none() => state.told |= read,
            _ if A::is_system_call(bytes) => state.told = u32::MAX,
            // A load, of which it is not known from where.
            _ if A::may_read_memory(bytes) => read = u32::MAX,
            _ => {}
        }
        for reg in (0..REGISTERS as u8).filter(|reg| plain.writes >> reg & 1 != 0) {
            state.came(reg, read);
        }
    }
    if let Some(mem) = &plain.memory {
        state.store(mem, Value::Anything);
    }
    for reg in (0..REGISTERS as u8).filter(|reg| plain.writes >> reg & 1 != 0) {
        state.set(reg, Value::Anything);
    }
    state.flags &= plain.keeps_flags;
    let sp = state.get(A::STACK);
    match plain.stack {
        None => {}
        Some(StackChange::By(by)) => move_to::<A>(state, A::STACK, plus(sp, by)),
        // All that is known of the place is that it is not above.
        Some(StackChange::Aligned) => match sp {
            Value::Stack { aligned: false, at } => {
                let value = Value::Stack {
                    aligned: true,
                    at: 0,
                };
                state.slots.retain(|slot| !slot.0.0 && slot.0.1 >= at);
                state.bound = at;
                state.set(A::STACK, value);
            }
            _ => return None,
        },
    }
    Some(())
}

/// Checks a routine that runs in the place of something else: afterwards all is as it was, and control continues at the
/// address of which `goes_on` says so, or, if there is none, returns.
pub(crate) fn starts_up<'c, A: Arch>(
    code: &dyn Fn(u64) -> Option<&'c [u8]>,
    goes_on: Option<&dyn Fn(u64) -> bool>,
    start: u64,
) -> Result<(), String> {
    let routine = Routine {
        code,
        goes_on: goes_on.unwrap_or(&|_| false),
    };
    // What is jumped to is called, or is where a program begins.
    let free = if A::LINK.is_empty() {
        0
    } else {
        A::STUB_SCRATCH
    };
    let exits = routine.exits::<A>(start)?;
    let is_right = |exit: &Exit| {
        exit.changed & !free == 0
            && !exit.flags_changed
            && !exit.wrote_above
            && exit.to.is_some() == goes_on.is_some()
    };
    judge::<A>(&exits, is_right)
}

/// Checks a routine that is called and must keep all registers and flags.
pub(crate) fn keeps<'c, A: Arch>(
    code: &dyn Fn(u64) -> Option<&'c [u8]>,
    start: u64,
) -> Result<(), String> {
    called::<A>(code, start, &|exit| {
        exit.changed == 0 && !exit.flags_changed
    })
    .map(|_| ())
}

/// Checks a routine that notes first calls: it is called, and leaves all but what [`Arch::NOTES`] says as it was. Gives
/// what it takes for the return address, if it takes something: the one word of its caller's on the stack that it
/// reads, or what it puts into the register of return addresses, if something that it writes may come from there. What
/// it writes may come from no register else but the one with the counter's address.
pub(crate) fn notes<'c, A: Arch>(
    code: &dyn Fn(u64) -> Option<&'c [u8]>,
    start: u64,
) -> Result<Option<Caller>, String> {
    let notes = A::NOTES;
    let exits = called::<A>(code, start, &|exit| {
        exit.changed & !notes.destroys == 0
            && (notes.lost & flag::ALL != 0 || !exit.flags_changed)
            && (notes.link.is_none() || exit.link == notes.link)
            && (!notes.leaves_page || exit.pages >> notes.counter & 1 != 0)
    })?;
    let mut words = exits
        .iter()
        .filter_map(|exit| exit.read_above)
        .flat_map(|(low, high)| [low, high]);
    let Some(word) = words.next() else {
        let told = exits.iter().fold(0, |all, exit| all | exit.told) & !(1 << notes.counter);
        return match notes.link {
            Some(link) if told & !(1 << link) != 0 => Err(format!(
                "what it writes may come from registers (one bit each) {told:#x}, of which the return address is in {:#x}",
                1u32 << link
            )),
            Some(link) if told != 0 => Ok(Some(Caller::Register(link))),
            _ => Ok(None),
        };
    };
    match words.find(|other| *other != word) {
        None => Ok(Some(Caller::Word(word))),
        Some(other) => Err(format!(
            "it reads two words of its caller's on the stack, {word} and {other} bytes from the stack pointer"
        )),
    }
}

/// Checks a routine that is called: it returns, and writes to no word of its caller's on the stack.
fn called<'c, A: Arch>(
    code: &dyn Fn(u64) -> Option<&'c [u8]>,
    start: u64,
    is_right: &dyn Fn(&Exit) -> bool,
) -> Result<Vec<Exit>, String> {
    let routine = Routine {
        code,
        goes_on: &|_| false,
    };
    let exits = routine.exits::<A>(start)?;
    judge::<A>(&exits, |exit| {
        is_right(exit) && !exit.wrote_above && exit.to.is_none()
    })?;
    Ok(exits)
}

fn judge<A: Arch>(exits: &[Exit], is_right: impl Fn(&Exit) -> bool) -> Result<(), String> {
    if exits.is_empty() {
        return Err("it does not end".to_owned());
    }
    match exits.iter().find(|exit| !is_right(exit)) {
        None => Ok(()),
        Some(exit) => Err(format!(
            "where it ends, {}, registers {:#x}{} and {} may be others than they must",
            match exit.to {
                Some(to) => format!("at {to:#x}"),
                None => "by a return".to_owned(),
            },
            exit.changed,
            if exit.wrote_above {
                ", the caller's words on the stack"
            } else {
                ""
            },
            if exit.flags_changed {
                "flags"
            } else {
                "no flags"
            },
        )),
    }
}
