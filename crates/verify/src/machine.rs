//! A small symbolic machine: what a few instructions of new code do to registers, flags and memory.
//!
//! Instrumented code has instructions that the old code has not: the instrumentation. Nothing is known of them
//! beforehand. They are decoded and run on values that are only names ([`Value`]): "what `rax` held at the
//! beginning, plus 1", "all flags as they were", "anything". At every fork both ways are taken. What comes
//! out is which registers and flags hold something else than before, and that no access of memory was one
//! that the program could notice ([`Places`]). Nothing is concluded from a comparison but one thing
//! ([`State::known`]), so whatever the counters hold, what is shown holds.
//!
//! An instruction set turns an instruction into a [`Step`]: some [`Op`]s, one after the other, the flags that
//! it destroys, and where control goes. What it cannot express is no step, and code with it is not proved.
//!
//! | place | may be read | may be written |
//! |---|---|---|
//! | counters: new writable memory without bytes in the file | yes | whole aligned words, to one more, or a constant |
//! | the same at the thread's own base | yes, from a page below it | likewise |
//! | the table that a routine gets as its argument, 64 bytes | yes | aligned words |
//! | stack, below what belongs to the program and not below the stack pointer | yes | yes |
//! | stack, above | yes | no |
//! | first word at the thread pointer | yes | no |
//! | the memory operand of the call or jump that is recorded | yes | no |

use crate::arch::step::{Caller, Mem, Next, Op, Segment, Step, flag, stack};
use crate::arch::{Arch, Flow};
use crate::files::claim::Range;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// Where something is in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    Counter(u64),
    /// Offset from the thread's base of counters.
    Own(i64),
    /// Offset in the table that is the argument.
    Table(i64),
    /// Offset from where the stack pointer was at the beginning.
    Stack(i64),
    Thread,
    Operand,
}

/// What a register holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// What this register held at the beginning.
    Register(u8),
    Number,
    /// A link-time address; where the program is loaded is not known.
    Address,
    /// What is at the recorded instruction's operand.
    Operand,
    /// What is here.
    Word(Place),
    /// The four bytes that are here; above them nothing.
    Half(Place),
    /// All flags as they were.
    Flags,
    /// Flags but overflow as they were, in bits 8 to 15; and whether overflow is in the low byte.
    Status(bool),
    Unknown,
}

/// Origin, and what was added. `less`: minus the word at this address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    pub origin: Origin,
    pub add: i64,
    pub less: Option<u64>,
}

impl Value {
    const UNKNOWN: Value = Value {
        origin: Origin::Unknown,
        add: 0,
        less: None,
    };
    pub(crate) fn of(origin: Origin) -> Value {
        Value {
            origin,
            add: 0,
            less: None,
        }
    }
    fn plus(self, add: i64) -> Value {
        match self.origin {
            Origin::Unknown | Origin::Flags | Origin::Status(_) if add != 0 => Value::UNKNOWN,
            _ => Value {
                add: self.add.wrapping_add(add),
                ..self
            },
        }
    }
}

/// Where counters are and what may be touched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places<'a> {
    /// New writable memory.
    pub areas: &'a [Range],
    /// Length of what is at a thread's base.
    pub own: u64,
    /// Bytes below the stack pointer that belong to the program.
    pub zone: i64,
    /// The register that points to a table at the beginning.
    pub table: Option<u8>,
    /// The operand of the call or jump that is recorded.
    pub operand: Option<Mem>,
    /// How far below the place where that was the stack pointer is.
    pub pushed: i64,
}

/// What was noted as where a call came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Noted {
    /// A word on the stack: where it is from the stack pointer at the beginning.
    Word(i64),
    /// What a register held at the beginning.
    Register(u8),
    Anything,
}

/// What code touches beyond its own function. All functions' are joined, and judged when all are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Footprint {
    /// First and last byte of counters that are written.
    pub written: Option<(u64, u64)>,
    /// Words that are taken not to change.
    pub constants: SmallVec<[u64; 2]>,
    /// Routines that are called and trusted.
    pub trusted: SmallVec<[u64; 1]>,
    /// All routines that are called, and the registers that they may destroy, one bit each.
    pub routines: SmallVec<[(u64, u32); 1]>,
    /// The thread's base of counters is used.
    pub own: bool,
    /// Of counters of calls: those whose first calls are noted, words that one is added to, and words that are asked.
    pub noted: SmallVec<[u64; 1]>,
    pub called: SmallVec<[u64; 1]>,
    pub asked: SmallVec<[u64; 2]>,
    /// Bits that calls are sampled by.
    pub masks: SmallVec<[u64; 1]>,
    /// What was noted as where a call came from.
    pub callers: SmallVec<[Noted; 1]>,
}

/// Adds what is not there yet.
fn add<T: PartialEq, const N: usize>(list: &mut SmallVec<[T; N]>, at: T)
where
    [T; N]: smallvec::Array<Item = T>,
{
    if !list.contains(&at) {
        list.push(at);
    }
}

impl Footprint {
    pub(crate) fn join(&mut self, other: &Footprint) {
        self.join_shared(other);
        other.noted.iter().for_each(|at| add(&mut self.noted, *at));
        other
            .called
            .iter()
            .for_each(|at| add(&mut self.called, *at));
        other.asked.iter().for_each(|at| add(&mut self.asked, *at));
        other.masks.iter().for_each(|m| add(&mut self.masks, *m));
        let callers = other.callers.iter();
        callers.for_each(|at| add(&mut self.callers, *at));
    }

    /// The same without what each function has of its own: counters of calls.
    pub(crate) fn join_shared(&mut self, other: &Footprint) {
        if let Some((start, end)) = other.written {
            self.write(start, end);
        }
        other.constants.iter().for_each(|at| self.constant(*at));
        other
            .trusted
            .iter()
            .for_each(|at| add(&mut self.trusted, *at));
        let routines = other.routines.iter();
        routines.for_each(|of| add(&mut self.routines, *of));
        self.own |= other.own;
    }
    fn write(&mut self, start: u64, end: u64) {
        let (a, b) = self.written.unwrap_or((start, end));
        self.written = Some((a.min(start), b.max(end)));
    }
    fn constant(&mut self, at: u64) {
        add(&mut self.constants, at);
    }
}

/// Registers, flags and the stack at one moment; registers that are not listed hold what they did at the beginning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    // On the heap, since most states have none and are moved about; so is what follows that is large.
    regs: Vec<(u8, Value)>,
    lost: u8,
    slots: Vec<(i64, Value)>,
    /// Something was counted.
    counted: bool,
    compared: Option<Box<(Value, Value)>>,
    /// A word of a counter that was found to be equal to a value. Words of tables do not change once they
    /// hold a target.
    known: Option<Box<(Place, Value)>>,
}

impl State {
    fn get(&self, reg: u8) -> Value {
        let known = self.regs.iter().find(|r| r.0 == reg);
        known.map_or(Value::of(Origin::Register(reg)), |r| r.1)
    }
    fn set(&mut self, reg: u8, value: Value) {
        self.regs.retain(|r| r.0 != reg);
        if value != Value::of(Origin::Register(reg)) {
            let at = self.regs.partition_point(|r| r.0 < reg);
            self.regs.insert(at, (reg, value));
        }
    }
    /// Registers that hold something else than at the beginning.
    fn changed(&self) -> u32 {
        self.regs.iter().fold(0, |set, r| set | 1 << (r.0 & 31))
    }
    /// Whether something that was lost is still held somewhere, so that it can come back.
    fn can_restore(&self) -> bool {
        let held = |value: &Value| match value.origin {
            Origin::Flags | Origin::Status(_) => self.lost != 0,
            Origin::Register(reg) => self.changed() >> (reg & 31) & 1 != 0,
            _ => false,
        };
        self.regs.iter().any(|r| held(&r.1)) || self.slots.iter().any(|s| held(&s.1))
    }
}

/// An instruction that was run, and what holds in front of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moment {
    pub at: u64,
    pub len: u8,
    /// How far the stack pointer is from where it was at the beginning.
    pub depth: i64,
    /// Registers that hold something else than at the beginning.
    pub changed: u32,
    /// It is a call; and the register that has the return address meanwhile, where calls overwrite that, if one has.
    pub call: Option<Option<u8>>,
}

/// The machine, with its rules.
pub(crate) struct Machine<'a, 'f> {
    pub places: Places<'a>,
    pub footprint: &'f mut Footprint,
    /// The table is used as one in common memory, and as one at the thread's base.
    pub tables: (bool, bool),
    /// Each instruction that [`follow`] runs, as often as it does, where it is known where the stack pointer is.
    pub moments: Vec<Moment>,
    /// It ran others.
    pub unplaced: bool,
}

impl Machine<'_, '_> {
    /// How far the stack pointer is from where it was; `None` if that is not known.
    fn depth<A: Arch>(&self, state: &State) -> Option<i64> {
        let sp = state.get(A::STACK);
        (sp.origin == Origin::Register(A::STACK) && sp.less.is_none()).then_some(sp.add)
    }

    fn place<A: Arch>(&mut self, state: &State, mem: &Mem) -> Option<Place> {
        if let Some(operand) = &self.places.operand
            && self.is_operand::<A>(state, mem, operand)
        {
            return Some(Place::Operand);
        }
        let base = match (mem.base, mem.address) {
            (Some(reg), _) => state.get(reg),
            (None, Some(address)) => Value {
                add: address as i64,
                ..Value::of(Origin::Address)
            },
            (None, None) => Value::of(Origin::Number),
        }
        .plus(mem.disp);
        if mem.index.is_some() || base.less.is_some() {
            return None;
        }
        Some(match (mem.segment, base.origin) {
            (Segment::Common, Origin::Address) => Place::Counter(base.add as u64),
            (Segment::Common, Origin::Register(r)) if r == A::STACK => Place::Stack(base.add),
            (Segment::Own, Origin::Number) => Place::Own(base.add),
            (Segment::Thread, Origin::Number) if base.add == 0 => Place::Thread,
            (Segment::Common, Origin::Register(r)) if self.places.table == Some(r) => {
                self.tables.0 = true;
                Place::Table(base.add)
            }
            (Segment::Own, Origin::Register(r)) if self.places.table == Some(r) => {
                self.tables.1 = true;
                Place::Table(base.add)
            }
            _ => return None,
        })
    }

    /// Whether a memory operand is that of the recorded instruction, with everything in it as it was there.
    fn is_operand<A: Arch>(&self, state: &State, mem: &Mem, operand: &Mem) -> bool {
        let as_it_was = |reg: u8| state.get(reg) == Value::of(Origin::Register(reg));
        let fits = |reg: u8| reg == A::STACK || as_it_was(reg);
        let moved = match operand.base {
            Some(reg) if reg == A::STACK => match self.depth::<A>(state) {
                Some(depth) => self.places.pushed - depth,
                None => return false,
            },
            _ => 0,
        };
        (mem.segment, mem.base, mem.index, mem.address, mem.size)
            == (
                operand.segment,
                operand.base,
                operand.index,
                operand.address,
                operand.size,
            )
            && mem.disp == operand.disp.wrapping_add(moved)
            && mem.base.is_none_or(fits)
            && mem.index.is_none_or(|i| as_it_was(i.0))
    }

    fn in_areas(&self, at: u64, size: u8) -> bool {
        let end = at.checked_add(u64::from(size));
        let fits = |r: &Range| r.start <= at && end.is_some_and(|end| end <= r.end);
        self.places.areas.iter().any(fits)
    }

    /// Whether memory may be read; notes it.
    fn may_read<A: Arch>(&mut self, state: &State, place: Place, size: u8) -> bool {
        match place {
            Place::Counter(at) => self.in_areas(at, size),
            Place::Own(at) => {
                self.footprint.own = true;
                at >= -4096 && at + i64::from(size) <= self.places.own as i64
            }
            Place::Table(at) => (0..=64 - i64::from(size)).contains(&at),
            Place::Stack(at) => self
                .depth::<A>(state)
                .is_some_and(|depth| at >= depth && at <= 256),
            Place::Thread | Place::Operand => true,
        }
    }

    /// Writes a value of so many bytes; `None`: it may not be there. Additions come without a value.
    fn write<A: Arch>(
        &mut self,
        state: &mut State,
        mem: &Mem,
        value: Option<Value>,
        constant: bool,
    ) -> Option<()> {
        let place = self.place::<A>(state, mem)?;
        let size = i64::from(mem.size);
        let more = |value: Option<Value>| match value {
            None => true,
            // The lowest byte of an address does not depend on where the program is loaded.
            Some(v) if mem.size == 1 => {
                constant || v.origin == Origin::Address && v.less.is_none() && v.add as u8 != 0
            }
            Some(v) => {
                let here = match mem.size {
                    8 => Origin::Word(place),
                    4 => Origin::Half(place),
                    _ => return constant,
                };
                constant || v == Value::of(here).plus(1)
            }
        };
        match place {
            Place::Counter(at) => {
                let fits = self.in_areas(at, mem.size) && at % u64::from(mem.size.max(1)) == 0;
                if !fits || !more(value) {
                    return None;
                }
                self.footprint.write(at, at + u64::from(mem.size));
                if mem.size == 4 {
                    add(&mut self.footprint.called, at);
                }
            }
            Place::Own(at) => {
                self.footprint.own = true;
                if at < 0 || at + size > self.places.own as i64 || at % size != 0 || !more(value) {
                    return None;
                }
            }
            Place::Table(at) => {
                if !(0..=64 - size).contains(&at) || at % size != 0 || size != 8 {
                    return None;
                }
            }
            Place::Stack(at) => {
                let depth = self.depth::<A>(state)?;
                if at < depth || at + size > -self.places.zone || size != 8 {
                    return None;
                }
                state.slots.retain(|s| (s.0 - at).abs() >= 8);
                let slot = state.slots.partition_point(|s| s.0 < at);
                state
                    .slots
                    .insert(slot, (at, value.unwrap_or(Value::UNKNOWN)));
                return Some(());
            }
            Place::Thread | Place::Operand => return None,
        }
        state.counted = true;
        let is_known = state.known.as_ref().is_some_and(|known| known.0 == place);
        if is_known && matches!(place, Place::Counter(_)) {
            state.known = None;
        }
        Some(())
    }

    fn read<A: Arch>(&mut self, state: &State, mem: &Mem) -> Option<Value> {
        let place = self.place::<A>(state, mem)?;
        if !self.may_read::<A>(state, place, mem.size) {
            return None;
        }
        if let (Place::Counter(at), 4) = (place, mem.size) {
            add(&mut self.footprint.asked, at);
        }
        Some(match place {
            Place::Operand => Value::of(Origin::Operand),
            Place::Stack(at) if mem.size == 8 => state
                .slots
                .iter()
                .find(|s| s.0 == at)
                .map_or(Value::UNKNOWN, |s| s.1),
            Place::Stack(_) | Place::Thread => Value::UNKNOWN,
            _ if mem.size == 4 => Value::of(Origin::Half(place)),
            _ if mem.size != 8 => Value::UNKNOWN,
            _ => match &state.known {
                Some(known) if known.0 == place => known.1,
                _ => Value::of(Origin::Word(place)),
            },
        })
    }

    /// `a - b`, or `a + b`, where one is a word that does not change.
    fn combined(&mut self, a: Value, b: Value, minus: bool) -> Value {
        match (a, b) {
            (
                a,
                Value {
                    origin: Origin::Word(Place::Counter(at)),
                    add: 0,
                    less: None,
                },
            ) if minus && a.less.is_none() => {
                self.footprint.constant(at);
                Value {
                    less: Some(at),
                    ..a
                }
            }
            (
                a,
                Value {
                    origin: Origin::Word(Place::Counter(at)),
                    add: 0,
                    less: None,
                },
            )
            | (
                Value {
                    origin: Origin::Word(Place::Counter(at)),
                    add: 0,
                    less: None,
                },
                a,
            ) if !minus && a.less == Some(at) => Value { less: None, ..a },
            _ => Value::UNKNOWN,
        }
    }

    /// Moves the stack pointer, and forgets what is below it: signal handlers may overwrite it.
    fn move_stack<A: Arch>(&self, state: &mut State) -> Option<i64> {
        let depth = self.depth::<A>(state)?;
        state.slots.retain(|s| s.0 >= depth);
        Some(depth)
    }

    /// Does one thing. `None`: it may not be done, or is not understood.
    fn apply<A: Arch>(&mut self, state: &mut State, op: &Op) -> Option<()> {
        match *op {
            Op::Move { to, from, add } => {
                let value = state.get(from).plus(add);
                state.set(to, value);
                if to == A::STACK {
                    self.move_stack::<A>(state)?;
                }
            }
            Op::AddHalf { to, from, add } => {
                let value = match state.get(from) {
                    half @ Value {
                        origin: Origin::Half(_),
                        ..
                    } => half.plus(add),
                    _ => Value::UNKNOWN,
                };
                state.set(to, value);
            }
            Op::Number { to, value } => state.set(
                to,
                Value {
                    add: value as i64,
                    ..Value::of(Origin::Number)
                },
            ),
            Op::Address { to, value } => state.set(
                to,
                Value {
                    add: value as i64,
                    ..Value::of(Origin::Address)
                },
            ),
            Op::Spoil { to } => {
                state.set(to, Value::UNKNOWN);
            }
            Op::Load { to, mem } => {
                let value = self.read::<A>(state, &mem)?;
                state.set(to, value);
            }
            Op::Store { from, mem } => {
                let value = state.get(from);
                self.write::<A>(state, &mem, Some(value), false)?;
            }
            Op::StoreNumber { mem } => {
                self.write::<A>(state, &mem, Some(Value::UNKNOWN), true)?;
            }
            Op::Change { mem } => {
                let place = self.place::<A>(state, &mem)?;
                if matches!(place, Place::Stack(_)) || !self.may_read::<A>(state, place, mem.size) {
                    return None;
                }
                self.write::<A>(state, &mem, None, false)?;
            }
            Op::Read { mem } => {
                self.read::<A>(state, &mem)?;
            }
            Op::Test { mem, mask } => {
                self.read::<A>(state, &mem)?;
                if let Some(Place::Counter(at)) = self.place::<A>(state, &mem) {
                    add(&mut self.footprint.asked, at);
                    add(&mut self.footprint.masks, mask);
                }
            }
            Op::Bits { to, from, mask } => {
                if let Value {
                    origin: Origin::Half(_),
                    add: 0,
                    ..
                } = state.get(from)
                {
                    add(&mut self.footprint.masks, mask);
                }
                state.set(to, Value::UNKNOWN);
            }
            Op::Minus { to, mem } | Op::Plus { to, mem } => {
                let word = self.read::<A>(state, &mem)?;
                let minus = matches!(op, Op::Minus { .. });
                let value = self.combined(state.get(to), word, minus);
                state.set(to, value);
            }
            Op::Difference { to, a, b } | Op::Sum { to, a, b } => {
                let minus = matches!(op, Op::Difference { .. });
                let value = self.combined(state.get(a), state.get(b), minus);
                state.set(to, value);
            }
            Op::Compare { a, b } => state.compared = Some(Box::new((state.get(a), state.get(b)))),
            Op::PushFlags | Op::PopFlags => {
                let push = matches!(op, Op::PushFlags);
                if push {
                    let value = if state.lost == 0 {
                        Value::of(Origin::Flags)
                    } else {
                        Value::UNKNOWN
                    };
                    let sp = state.get(A::STACK).plus(-8);
                    state.set(A::STACK, sp);
                    let mem = stack::<A>(0);
                    self.write::<A>(state, &mem, Some(value), false)?;
                } else {
                    // What else is in the word (direction, trap) is as it was only if all of it was saved here.
                    if self.read::<A>(state, &stack::<A>(0))? != Value::of(Origin::Flags) {
                        return None;
                    }
                    state.lost = 0;
                    let sp = state.get(A::STACK).plus(8);
                    state.set(A::STACK, sp);
                    self.move_stack::<A>(state)?;
                }
            }
            Op::SaveStatus => {
                let value = match state.lost & flag::STATUS {
                    0 => Value::of(Origin::Status(false)),
                    _ => Value::UNKNOWN,
                };
                state.set(0, value);
            }
            Op::SaveOverflow => {
                let value = match state.get(0).origin {
                    Origin::Status(_) => {
                        Value::of(Origin::Status(state.lost & flag::OVERFLOW == 0))
                    }
                    _ => Value::UNKNOWN,
                };
                state.set(0, value);
            }
            Op::RestoreOverflow => {
                state.lost |= flag::ALL;
                let value = match state.get(0).origin {
                    Origin::Status(overflow) => {
                        if overflow {
                            state.lost &= !flag::OVERFLOW;
                        }
                        Value::of(Origin::Status(false))
                    }
                    _ => Value::UNKNOWN,
                };
                state.set(0, value);
            }
            Op::RestoreStatus => match state.get(0).origin {
                Origin::Status(_) => state.lost &= !flag::STATUS,
                _ => state.lost |= flag::STATUS,
            },
        }
        Some(())
    }

    /// Notes that an instruction is run.
    fn note<A: Arch>(&mut self, at: u64, step: &Step, state: &State) {
        if let Some(depth) = self.depth::<A>(state) {
            let (len, changed) = (step.len, state.changed());
            let holder = || {
                let held = Value::of(Origin::Register(*A::LINK.first()?));
                state.regs.iter().find(|r| r.1 == held).map(|r| r.0)
            };
            let call = matches!(step.next, Next::Call(_)).then(holder);
            self.moments.push(Moment {
                at,
                len,
                depth,
                changed,
                call,
            });
        } else {
            self.unplaced = true;
        }
    }

    /// Does a whole instruction, but for where control goes.
    pub(crate) fn perform<A: Arch>(&mut self, state: &mut State, step: &Step) -> Option<()> {
        if step.lost != 0 {
            state.compared = None;
        }
        for op in &step.ops {
            self.apply::<A>(state, op)?;
        }
        // `add al,127` and `sahf` say themselves what they leave.
        let restores =
            |op: &Op| matches!(op, Op::RestoreOverflow | Op::RestoreStatus | Op::PopFlags);
        if !step.ops.iter().any(restores) {
            state.lost |= step.lost;
        }
        self.depth::<A>(state)?;
        Some(())
    }

    /// What is true on either way of a branch that asked whether what was compared is equal.
    fn learn(state: &mut State, equal: bool) {
        if let Some((a, b)) = state.compared.as_deref().copied()
            && equal
        {
            for (word, value) in [(a, b), (b, a)] {
                if let Value {
                    origin: Origin::Word(place @ Place::Counter(_)),
                    add: 0,
                    less: None,
                } = word
                    && value.less.is_some()
                {
                    state.known = Some(Box::new((place, value)));
                }
            }
        }
    }
}

/// What is known of a routine that inserted code calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Routine {
    /// It gets a table in [`Arch::TABLE`], destroys that register and the flags, and nothing else.
    Records {
        /// The table is relative to the thread's base.
        own: bool,
    },
    /// It notes a first call ([`Arch::NOTES`]), and where a call came from.
    Notes {
        /// What it takes for the return address.
        caller: Option<Caller>,
    },
    /// It is taken to destroy nothing.
    Trusted,
}

impl Routine {
    /// Registers that it may destroy, one bit each; the one with the return address in it is not counted, nor where
    /// that is to be found meanwhile.
    fn destroys<A: Arch>(self) -> u32 {
        let notes = A::NOTES;
        match self {
            Routine::Trusted => 0,
            Routine::Records { .. } => 1 << A::TABLE,
            Routine::Notes { .. } => {
                let kept = notes.link.iter().chain(A::LINK);
                kept.fold(notes.destroys, |all, reg| all & !(1 << reg))
            }
        }
    }
}

/// Runs a call. `None`: it may not be made.
fn call<A: Arch>(
    machine: &mut Machine<'_, '_>,
    state: &mut State,
    target: u64,
    routine: Routine,
) -> Option<()> {
    // The routine writes below the stack pointer, and so does the call on some machines.
    let depth = machine.depth::<A>(state)?;
    if depth > -machine.places.zone {
        return None;
    }
    state.slots.retain(|s| s.0 >= depth);
    add(
        &mut machine.footprint.routines,
        (target, routine.destroys::<A>()),
    );
    match routine {
        Routine::Trusted => {
            if A::CALL_PUSHES == 0 {
                return None;
            }
            add(&mut machine.footprint.trusted, target);
        }
        Routine::Notes { caller } => {
            match caller {
                None => {}
                Some(Caller::Word(at)) => {
                    let at = at.checked_add(depth - A::CALL_PUSHES)?;
                    add(&mut machine.footprint.callers, Noted::Word(at));
                }
                Some(Caller::Register(reg)) => {
                    let value = state.get(reg);
                    let noted = match value.origin {
                        Origin::Register(of) if value == Value::of(value.origin) => {
                            Noted::Register(of)
                        }
                        _ => Noted::Anything,
                    };
                    add(&mut machine.footprint.callers, noted);
                }
            }
            let notes = A::NOTES;
            let counter = state.get(notes.counter);
            let at = counter.add as u64;
            let fits = counter.origin == Origin::Address && machine.in_areas(at, 8);
            if !fits || !at.is_multiple_of(8) || counter.less.is_some() {
                return None;
            }
            machine.footprint.write(at, at + 8);
            add(&mut machine.footprint.noted, at);
            let link = notes.link.map(|reg| state.get(reg));
            for reg in (0..A::REGISTERS).filter(|reg| notes.destroys >> reg & 1 != 0) {
                state.set(reg, Value::UNKNOWN);
            }
            if notes.leaves_page {
                let page = Value {
                    add: (at & !0xfff) as i64,
                    ..counter
                };
                state.set(notes.counter, page);
            }
            for (reg, value) in A::LINK.iter().zip(link) {
                state.set(*reg, value);
            }
            state.lost |= notes.lost;
            state.compared = None;
            state.known = None;
            state.counted = true;
        }
        Routine::Records { own } => {
            let table = state.get(A::TABLE);
            let at = table.add as u64;
            let fits = match (table.origin, own) {
                (Origin::Address, false) => machine.in_areas(at, 64),
                (Origin::Number, true) => {
                    machine.footprint.own = true;
                    table.add >= 0 && at.checked_add(64)? <= machine.places.own
                }
                _ => false,
            };
            if !fits || !at.is_multiple_of(8) || table.less.is_some() {
                return None;
            }
            if !own {
                machine.footprint.write(at, at + 64);
            }
            state.set(A::TABLE, Value::UNKNOWN);
            state.lost = flag::ALL;
            state.compared = None;
            state.known = None;
            state.counted = true;
            for reg in A::LINK {
                state.set(*reg, Value::UNKNOWN);
            }
        }
    }
    Some(())
}

/// Where all ways meet, and what is different there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Meeting {
    pub at: u64,
    /// Registers and flags that may hold something else than at the beginning.
    pub regs: u32,
    pub flags: u8,
    /// Something was counted.
    pub counted: bool,
    /// Not yet, but a register holds something for it: a counter, its address, what is to be restored.
    pub counting: bool,
}

/// How code that was followed may end.
pub(crate) enum End<'e> {
    /// All ways come to one address, of which this is asked.
    Meet(&'e mut dyn FnMut(&Meeting) -> bool),
    /// Each way returns to the caller.
    Return,
    /// Each way jumps to this value, having changed no other registers than these.
    Leave {
        target: Value,
        may_change: u32,
        /// Registers through which it may be.
        through: u32,
        /// Marks of the jump, see [`Arch::operand`].
        marks: u32,
    },
}

/// Whether code at `start` begins by saving every general register and the flags on its own stack.
pub(crate) fn saves_all<'c, A: Arch>(
    machine: &mut Machine<'_, '_>,
    code: &dyn Fn(u64) -> Option<&'c [u8]>,
    start: u64,
) -> bool {
    let mut state = State::default();
    let mut at = start;
    for _ in 0..64 {
        let held = |origin: Origin| state.slots.iter().any(|s| s.1 == Value::of(origin));
        if held(Origin::Flags)
            && (0..A::REGISTERS).all(|r| r == A::STACK || held(Origin::Register(r)))
        {
            return true;
        }
        let Some(bytes) = code(at) else {
            return false;
        };
        if A::decode(bytes, at).is_some_and(|i| i.landing_pad) {
            at = at.saturating_add(A::STEP.max(4) as u64);
            continue;
        }
        let Some(step) = A::step(bytes, at).filter(|s| s.next == Next::On) else {
            return false;
        };
        if machine.perform::<A>(&mut state, &step).is_none() {
            return false;
        }
        at = at.saturating_add(u64::from(step.len));
    }
    false
}

/// Steps that are looked at before code is given up.
const STEPS: usize = 400;

/// Whether what begins at `start` continues at `at` with a branch back into it: an exclusive store that is tried again.
pub(crate) fn repeats<'c, A: Arch>(
    code: &dyn Fn(u64) -> Option<&'c [u8]>,
    start: u64,
    at: u64,
) -> bool {
    let Some(bytes) = code(at) else {
        return false;
    };
    // Asked wherever inserted code may end. What is no branch back is quickly known.
    if A::straight(bytes, at).is_some() {
        return false;
    }
    let back = |target: &u64| (start..at).contains(target);
    let insn = A::decode(bytes, at);
    if !insn.is_some_and(|i| matches!(i.flow, Flow::Branch { target, .. } if back(&target))) {
        return false;
    }
    let step = A::step(bytes, at).map(|step| step.next);
    matches!(step, Some(Next::Branch { target, .. }) if back(&target))
}

/// Follows inserted code from `start` on every way to its end. Gives where it ends (for [`End::Meet`]), and
/// the addresses after the last instruction that was looked at.
pub(crate) fn follow<'c, A: Arch>(
    machine: &mut Machine<'_, '_>,
    code: &dyn Fn(u64) -> Option<&'c [u8]>,
    start: u64,
    mut end: End<'_>,
    routine: &mut dyn FnMut(u64) -> Option<Routine>,
) -> Option<u64> {
    let mut work: SmallVec<[(u64, State); 2]> = SmallVec::new();
    work.push((start, State::default()));
    // States at targets of backward branches.
    let mut seen: FxHashMap<u64, Vec<State>> = FxHashMap::default();
    let mut highest = start;
    // Where it may end, and how many registers and flags are different there; how many more instructions may
    // restore some.
    let mut best: Option<(u64, u32)> = None;
    let mut patience = 4;
    let mut writes = false;
    for steps in 0..STEPS {
        // The lowest address first, so that ways meet where they join.
        let Some(lowest) = (0..work.len()).min_by_key(|i| work.get(*i).map(|w| w.0)) else {
            return (!matches!(end, End::Meet(_))).then_some(highest);
        };
        if let End::Meet(judge) = &mut end
            && steps > 0
            && let Some(&(at, _)) = work.first()
            && work.iter().all(|w| w.0 == at)
            && at >= highest
            && !repeats::<A>(code, start, at)
        {
            let mut meeting = Meeting {
                at,
                ..Meeting::default()
            };
            for (_, state) in &work {
                meeting.counted |= state.counted;
                meeting.regs |= state.changed();
                meeting.flags |= state.lost;
                let holds = |r: &(u8, Value)| r.1.origin != Origin::Unknown;
                meeting.counting |= !state.counted && state.regs.iter().any(holds);
            }
            let left = meeting.regs.count_ones() + meeting.flags.count_ones();
            if let Some((end, least)) = best {
                if writes {
                    return Some(end);
                }
                // It may end here as well: with less changed, until nothing is.
                if meeting.regs >> A::STACK & 1 == 0 && left < least && judge(&meeting) {
                    best = Some((at, left));
                }
                patience -= 1;
            } else if meeting.regs >> A::STACK & 1 == 0 && judge(&meeting) {
                best = Some((at, left));
                if !meeting.counted {
                    return Some(at);
                }
            }
            if let Some((end, left)) = best
                && (left == 0
                    || patience == 0
                    || !work.iter().any(|(_, state)| state.can_restore()))
            {
                return Some(end);
            }
            writes = false;
        }
        // States are large: moved as seldom as possible.
        let popped = if lowest + 1 == work.len() {
            work.pop()
        } else {
            Some(work.swap_remove(lowest))
        };
        let (at, mut state) = popped?;
        let after = |end: Option<(u64, u32)>| end.map(|e| e.0);
        let Some(bytes) = code(at) else {
            return after(best);
        };
        let Some(step) = A::step(bytes, at) else {
            return after(best);
        };
        let counted = std::mem::take(&mut state.counted);
        machine.note::<A>(at, &step, &state);
        if machine.perform::<A>(&mut state, &step).is_none() {
            return after(best);
        }
        writes |= state.counted;
        state.counted |= counted;
        if best.is_some() && step.next != Next::On {
            return after(best);
        }
        let next = at.checked_add(u64::from(step.len))?;
        highest = highest.max(next);
        match step.next {
            Next::On => work.push((next, state)),
            Next::Branch { target, equal } => {
                let mut taken = state.clone();
                if let Some(equal) = equal {
                    Machine::learn(&mut taken, equal);
                    Machine::learn(&mut state, !equal);
                }
                if target <= at {
                    let known = seen.entry(target).or_default();
                    if known.contains(&taken) {
                        work.push((next, state));
                        continue;
                    }
                    known.push(taken.clone());
                }
                if target < start && matches!(end, End::Meet(_)) {
                    return None;
                }
                work.push((next, state));
                work.push((target, taken));
            }
            Next::Call(target) => {
                let known = routine(target)?;
                call::<A>(machine, &mut state, target, known)?;
                work.push((next, state));
            }
            Next::Return => {
                if !matches!(end, End::Return) {
                    return None;
                }
                let allowed = 1u32 << A::TABLE;
                if state.changed() & !allowed != 0 {
                    return None;
                }
            }
            Next::Leave(reg) => {
                let End::Leave {
                    target,
                    may_change,
                    through,
                    marks,
                } = &end
                else {
                    return None;
                };
                if state.get(reg) != *target
                    || state.changed() & !may_change != 0
                    || through >> reg & 1 == 0
                    || A::operand(bytes, at).is_none_or(|o| o.1 != *marks)
                {
                    return None;
                }
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::x86_64::X86_64;

    /// The lock step does not run a counter of the usual form that is all of what is inserted. What it takes it for is
    /// what comes out here.
    #[test]
    fn a_counter_alone_does_what_is_said_of_it() {
        let start = 0x1000;
        let offsets = [
            (0i32, true),
            (56, true),
            (64, false),
            (-8, false),
            (4, false),
        ];
        for (offset, fits) in offsets {
            let mut bytes = vec![0x65, 0x48, 0xff, 0x04, 0x25];
            bytes.extend(offset.to_le_bytes());
            bytes.extend([0xc3; 32]);
            let counter = X86_64::own_counter(&bytes).expect("it is a counter");
            assert_eq!(counter.is_in(64), fits);
            let (at, len) = (start + u64::from(counter.len), counter.len);
            let mut footprint = Footprint::default();
            let mut machine = Machine {
                places: Places {
                    areas: &[],
                    own: 64,
                    zone: 128,
                    table: None,
                    operand: None,
                    pushed: 0,
                },
                footprint: &mut footprint,
                tables: (false, false),
                moments: Vec::new(),
                unplaced: false,
            };
            let mut met = Vec::new();
            let mut judge = |m: &Meeting| {
                met.push(*m);
                true
            };
            let code = |at: u64| bytes.get((at - start) as usize..);
            let ends = End::Meet(&mut judge);
            let end = follow::<X86_64>(&mut machine, &code, start, ends, &mut |_| None);
            assert_eq!(end, fits.then_some(at));
            if !fits {
                assert!(met.is_empty());
                continue;
            }
            let meeting = Meeting {
                at,
                flags: counter.lost,
                counted: true,
                ..Meeting::default()
            };
            assert_eq!(met, [meeting]);
            let moment = Moment {
                at: start,
                len,
                ..Moment::default()
            };
            assert_eq!(machine.moments, [moment]);
            let own = Footprint {
                own: true,
                ..Footprint::default()
            };
            assert_eq!(footprint, own);
        }
    }
}
