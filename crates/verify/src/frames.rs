//! Unwinding out of code that belongs to no function: recorders, and the routines that inserted code calls.
//!
//! A signal may come at each of their instructions, and its handler may unwind the stack. So from each of them, on
//! every path ([`Routine`]), one frame after the other is left by the row that the output has there, as an unwinder
//! does it, with the values that registers and the stack hold ([`Value`]). In the end the stack pointer must be that of
//! the caller, the return address the caller's, and each register must hold what it held at the beginning, but for
//! those that the routine may destroy: then the caller's own row finds what it would have found without the routine.
//!
//! In a subroutine the return address is the place after its call, and the next row is that of the call. A routine that
//! is shown to keep what it must is not followed again from each of its callers: what holds at the call is unwound with
//! the registers lost that it may destroy.

use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::hash_map::Entry;

use crate::arch::Arch;
use crate::consulted;
use crate::files::unwind::{Interner, Row, RowId, RowMap, Rule, Runner, Table};
use crate::routines::{MOST, REGISTERS, Routine, State, Value, Way, plus};

/// Rows of a file, by address.
pub(crate) struct Rows<'t, 'd> {
    table: &'t Table<'d>,
    runner: Runner,
    interner: Interner,
    map: RowMap,
    /// Rows that were asked for, by number: to look for one by its number takes long.
    found: Vec<(RowId, Row)>,
    /// The code of the entry that the rows are of.
    of: Option<(u64, u64)>,
    /// An entry may have an exception table.
    tables: bool,
}

impl<'t, 'd> Rows<'t, 'd> {
    pub(crate) fn new(table: &'t Table<'d>) -> Self {
        Rows {
            table,
            runner: Runner::default(),
            interner: Interner::default(),
            map: RowMap::default(),
            found: Vec::new(),
            of: None,
            tables: false,
        }
    }

    /// The same of an entry that is a function's as well, with its exception table. What that says of routines is shown
    /// elsewhere; backtraces do not ask.
    pub(crate) fn beside_function(self) -> Self {
        Rows {
            tables: true,
            ..self
        }
    }

    /// The row of `len` bytes of code.
    fn at<A: Arch>(&mut self, addr: u64, len: u64) -> Result<&Row, String> {
        let none = || format!("no unwind entry says anything of {addr:#x}");
        // One routine is mostly looked at from end to end.
        let is_at_hand = |(from, to): (u64, u64)| from <= addr && addr < to;
        if !self.of.is_some_and(is_at_hand) {
            self.of = None;
            let fde = self.table.find(addr).ok_or_else(none)?;
            // Whatever rests on these rows is to be shown again where the entry says another thing.
            consulted::read(fde.start, fde.end.saturating_sub(fde.start));
            self.interner.clear();
            self.found.clear();
            let spans = self.map.clear();
            self.runner
                .rows::<A>(self.table, fde, &mut self.interner, spans)?;
            self.of = Some((fde.start, fde.end));
        }
        let span = self.map.at(addr).ok_or_else(none)?;
        if span.signal_frame || span.lsda != 0 && !self.tables {
            return Err(format!(
                "the unwind entry of {addr:#x} is that of a signal's frame, or has an exception table"
            ));
        }
        let (id, covers) = self.map.row(addr, len);
        if !covers {
            return Err(format!(
                "the unwind row changes in the middle of the instruction at {addr:#x}"
            ));
        }
        let known = self.found.iter().position(|found| found.0 == id);
        let place = match known {
            Some(place) => place,
            None => {
                let row = self.interner.row(id).ok_or_else(none)?;
                self.found.push((id, row.clone()));
                self.found.len() - 1
            }
        };
        self.found.get(place).map(|f| &f.1).ok_or_else(none)
    }
}

/// Where a routine returns to.
enum Back {
    To(Value),
    /// There is no caller.
    Nowhere,
}

type Registers = [Value; REGISTERS];

/// Leaves a frame by its row: registers hold what they do in the caller then.
fn leave<A: Arch>(row: &Row, registers: &mut Registers, state: &State) -> Result<Back, String> {
    let number = |register: u16| {
        let of = A::of_unwind_register(register);
        (of != 0).then(|| of.trailing_zeros() as usize)
    };
    // Rules are about what registers held before.
    let before = *registers;
    let held = |register: u16| {
        let value = number(register).and_then(|number| before.get(number));
        value.copied().unwrap_or(Value::Anything)
    };
    let Rule::RegisterOffset(register, offset) = row.cfa else {
        return Err(format!("the frame is found by {:?}", row.cfa));
    };
    let frame = plus(held(register), offset);
    if !matches!(frame, Value::Stack { .. }) {
        return Err(format!(
            "the frame is found by register {register}, which holds {frame:?} where it should be an address on the stack"
        ));
    }
    // Where it is in a register, it is there until a rule says otherwise.
    let link = A::LINK.first().map(|link| before[usize::from(*link)]);
    if let Some(stack) = registers.get_mut(usize::from(A::STACK)) {
        *stack = frame;
    }
    let mut back = link.map(Back::To);
    for (register, rule) in &row.registers {
        let value = match *rule {
            Rule::Offset(at) => state.word(plus(frame, at)),
            Rule::Register(other) => held(other),
            Rule::ValOffset(at) => plus(frame, at),
            Rule::Undefined => Value::Anything,
            _ => return Err(format!("register {register} is found by {rule:?}")),
        };
        if u64::from(*register) == row.ra_register {
            back = Some(match rule {
                Rule::Undefined => Back::Nowhere,
                _ => Back::To(value),
            });
        }
        if let Some(register) = number(*register).and_then(|number| registers.get_mut(number)) {
            *register = value;
        }
    }
    back.ok_or_else(|| "the row has no return address".into())
}

/// Unwinds from the instruction at `at` to the caller of a routine. `calls`: where calls within the routine return to.
fn unwind<A: Arch>(
    rows: &mut Rows<'_, '_>,
    calls: &[u64],
    (at, len): (u64, u64),
    state: &State,
    lost: u32,
) -> Result<(), String> {
    let wrong = |what: String| format!("unwinding from {at:#x}: {what}");
    let mut registers = *state.registers();
    let mut place = (at, len);
    let mut backs = calls.iter().rev();
    loop {
        let row = rows.at::<A>(place.0, place.1).map_err(wrong)?;
        let back = leave::<A>(row, &mut registers, state).map_err(wrong)?;
        match (backs.next(), back) {
            (Some(expected), Back::To(Value::Number(to))) if to == *expected => {
                place = (to.wrapping_sub(1), 1);
            }
            (None, Back::To(value)) if state.is_caller::<A>(value) => break,
            (None, Back::Nowhere) if state.is_outermost() => return Ok(()),
            (Some(expected), Back::To(value)) => {
                return Err(wrong(format!(
                    "the return address is {value:?} where it should be {expected:#x}"
                )));
            }
            (_, Back::To(value)) => {
                return Err(wrong(format!(
                    "the return address is {value:?}, and not that of the caller"
                )));
            }
            (_, Back::Nowhere) => return Err(wrong("there is no caller".into())),
        }
    }
    for register in 0..A::REGISTERS.min(REGISTERS as u8) {
        let expected = if register == A::STACK {
            Value::Stack {
                aligned: false,
                at: A::CALL_PUSHES,
            }
        } else {
            Value::Initial(register)
        };
        let is = registers.get(usize::from(register)).copied();
        let may_differ = lost >> register & 1 != 0 || A::LINK.contains(&register);
        if is != Some(expected) && !may_differ {
            return Err(wrong(format!(
                "register {register} holds {is:?} in the end, where its caller has {expected:?}"
            )));
        }
    }
    Ok(())
}

impl Routine<'_, '_> {
    /// Unwinds from each instruction that the routine at `start` comes to; how many there are. `lost`: registers that
    /// it may destroy. `known`: of a routine that is not followed, those that it may.
    pub(crate) fn unwinds<A: Arch>(
        &self,
        start: u64,
        outermost: bool,
        lost: u32,
        known: &dyn Fn(u64) -> Option<u32>,
        rows: &mut Rows<'_, '_>,
    ) -> Result<u64, String> {
        if let Some(count) = self.unwinds_on_the_way::<A>(start, outermost, lost, known, rows) {
            return Ok(count);
        }
        let mut left = 2 * MOST;
        let begin = State::new::<A>().begins(outermost);
        let mut states: FxHashMap<(Vec<u64>, u64), State> = FxHashMap::default();
        let mut work = vec![(Vec::new(), start, begin)];
        while let Some((calls, at, mut state)) = work.pop() {
            if calls.is_empty() && at != start && (self.goes_on)(at) {
                continue;
            }
            match states.get_mut(&(calls.clone(), at)) {
                Some(there) => {
                    if !there.join(&state) {
                        continue;
                    }
                    state = there.clone();
                }
                None => {
                    states.insert((calls.clone(), at), state.clone());
                }
            }
            let way = self.run::<A>(at, &mut state, &mut left, &mut |_, _, _| Ok(()))?;
            self.continue_with::<A>(way, calls, state, known, &mut work)?;
        }
        // What holds at the beginning of each stretch of straight code is known now, whatever leads there.
        let mut seen = FxHashSet::default();
        for ((calls, at), state) in &states {
            let mut state = state.clone();
            let way = self.run::<A>(*at, &mut state, &mut left, &mut |at, len, state| {
                seen.insert(at);
                unwind::<A>(rows, calls, (at, len), state, lost)
            })?;
            if let Way::Call(target, back) = way
                && let Some(destroys) = known(target)
            {
                state.has_called::<A>(destroys);
                unwind::<A>(rows, calls, (back.wrapping_sub(1), 1), &state, lost)?;
            }
        }
        Ok(seen.len() as u64)
    }

    /// The same in one pass: wherever less is known of a place than was before, it is run again, so the last time that
    /// it is run is with what holds on all paths. Before that it is unwound from with what holds on some of them, which
    /// is more. `None`: it takes both passes to say whether and why not.
    fn unwinds_on_the_way<A: Arch>(
        &self,
        start: u64,
        outermost: bool,
        lost: u32,
        known: &dyn Fn(u64) -> Option<u32>,
        rows: &mut Rows<'_, '_>,
    ) -> Option<u64> {
        // The second pass runs no more than the first.
        let mut left = MOST;
        let begin = State::new::<A>().begins(outermost);
        let mut states: FxHashMap<(Vec<u64>, u64), State> = FxHashMap::default();
        let mut seen = FxHashSet::default();
        let mut work = vec![(Vec::new(), start, begin)];
        while let Some((calls, at, mut state)) = work.pop() {
            if calls.is_empty() && at != start && (self.goes_on)(at) {
                continue;
            }
            match states.entry((calls.clone(), at)) {
                Entry::Occupied(mut there) => {
                    if !there.get_mut().join(&state) {
                        continue;
                    }
                    state.clone_from(there.get());
                }
                Entry::Vacant(none) => {
                    none.insert(state.clone());
                }
            }
            let mut visit = |at: u64, len: u64, state: &State| {
                seen.insert(at);
                unwind::<A>(rows, &calls, (at, len), state, lost)
            };
            let way = self.run::<A>(at, &mut state, &mut left, &mut visit).ok()?;
            if let Way::Call(target, back) = way
                && let Some(destroys) = known(target)
            {
                state.has_called::<A>(destroys);
                unwind::<A>(rows, &calls, (back.wrapping_sub(1), 1), &state, lost).ok()?;
                work.push((calls, back, state));
                continue;
            }
            let next = self.continue_with::<A>(way, calls, state, known, &mut work);
            next.ok()?;
        }
        Some(seen.len() as u64)
    }

    /// Where control goes from straight code.
    fn continue_with<A: Arch>(
        &self,
        way: Way,
        mut calls: Vec<u64>,
        mut state: State,
        known: &dyn Fn(u64) -> Option<u32>,
        work: &mut Vec<(Vec<u64>, u64, State)>,
    ) -> Result<(), String> {
        match way {
            Way::Ends => {}
            Way::On(next) => work.push((calls, next, state)),
            Way::Branch(a, b) => {
                work.push((calls.clone(), a, state.clone()));
                work.push((calls, b, state));
            }
            Way::Call(target, back) => match known(target) {
                Some(destroys) => {
                    state.has_called::<A>(destroys);
                    work.push((calls, back, state));
                }
                None => {
                    calls.push(back);
                    if calls.len() > crate::routines::DEEPEST {
                        return Err(format!("calls are too deep at {target:#x}"));
                    }
                    work.push((calls, target, state));
                }
            },
            Way::To(Value::Number(back)) if calls.last() == Some(&back) => {
                calls.pop();
                work.push((calls, back, state));
            }
            // It is left. Where to is shown elsewhere.
            Way::To(_) => {}
        }
        Ok(())
    }
}

/// An instruction of inserted code: where the stack pointer is in front of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stand {
    pub at: u64,
    pub len: u64,
    /// How many bytes the stack pointer is below where it was.
    pub down: i64,
    /// It is a call, and the register that has the return address meanwhile, if one has.
    pub call: Option<Option<u8>>,
}

/// What holds at each instruction of a counter from `start` to `end`, which calls routines that note calls
/// ([`Arch::NOTES`]) and no others.
pub(crate) fn stands<'c, A: Arch>(
    code: &dyn Fn(u64) -> Option<&'c [u8]>,
    (start, end): (u64, u64),
) -> Result<Vec<Stand>, String> {
    let routine = Routine {
        code,
        goes_on: &|_| false,
    };
    let mut left = MOST;
    let mut states: FxHashMap<u64, State> = FxHashMap::default();
    let mut work = vec![(start, State::new::<A>())];
    let mut stands: FxHashMap<u64, Stand> = FxHashMap::default();
    while let Some((at, mut state)) = work.pop() {
        if at >= end {
            continue;
        }
        match states.get_mut(&at) {
            Some(there) => {
                if !there.join(&state) {
                    continue;
                }
                state = there.clone();
            }
            None => {
                states.insert(at, state.clone());
            }
        }
        let mut last = None;
        let mut before = None;
        let way = routine.run::<A>(at, &mut state, &mut left, &mut |at, len, state| {
            if at >= end {
                return Err(String::new());
            }
            let down = state.down::<A>();
            let down =
                down.ok_or_else(|| format!("it is not known where the stack is at {at:#x}"))?;
            let call = None;
            stands.insert(
                at,
                Stand {
                    at,
                    len,
                    down,
                    call,
                },
            );
            last = Some(at);
            before = Some(state.clone());
            Ok(())
        });
        let way = match way {
            Err(text) if text.is_empty() => continue,
            way => way?,
        };
        match way {
            Way::On(next) => work.push((next, state)),
            Way::Branch(a, b) => work.extend([(a, state.clone()), (b, state)]),
            Way::Call(_, back) => {
                if let (Some(stand), Some(before)) =
                    (last.and_then(|at| stands.get_mut(&at)), before)
                {
                    stand.call = Some(before.holder_of_link::<A>());
                    state = before;
                }
                state.has_noted::<A>();
                work.push((back, state));
            }
            Way::Ends | Way::To(_) => {}
        }
    }
    let mut stands: Vec<Stand> = stands.into_values().collect();
    stands.sort_by_key(|stand| stand.at);
    Ok(stands)
}
