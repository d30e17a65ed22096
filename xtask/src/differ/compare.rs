//! Two runs in lock step.
//!
//! Both streams are read together. Events must be of the same kind and lead to the same place; a pair that
//! does not ends the comparison: from there on the runs do different things. Between two events the stores of
//! both runs must be the same ones in the same order, as a rewritten program executes the same instructions
//! that write. Of an instrumented program, stores may come in between: to counters, and below the stack
//! pointer.
//!
//! A store's value may be a return address that the call after it makes known. So pairs of values that differ
//! are kept until the event that follows, and judged then.
//!
//! A pair in a register is judged and counted when it is first seen there, and not again until something else
//! is in that register. So what code outside the module (libc, the unwinder) leaves in a scratch register is
//! explained where control comes back, and by that alone.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::io::Read;

use anyhow::Result;

use super::accesses::is_awaited;
use super::machine::{Call, Machine};
use super::outcome::{Outcome, describe};
use super::places::{Image, Meaning, Module, Size};
use super::record::{Access, Event, Kind, Opens, System};
use super::regions::{Outside, Scribbled, Stored, What};
use super::side::{Item, Side, Start};
use super::values::{Class, Values};

/// How much is compared and shown.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// End after so many events.
    pub events: u64,
    /// Examples of each class.
    pub examples: usize,
}

/// Values of stores that wait for the next event, at most.
const WAITING: usize = 1 << 16;

/// A store that both runs made with different values.
pub(super) struct Waiting {
    pub(super) old: Access,
    pub(super) new: Access,
    /// A load of what code outside has left on the stack.
    pub(super) left: bool,
    /// A part of one load, of which an earlier part has a byte of zero in both runs.
    pub(super) behind_string: bool,
    /// A store of what other threads decide: of what a system call gave last, or of what was loaded since the last
    /// event from memory that they may write.
    pub(super) of_others: bool,
}

/// A load of more than eight bytes, which comes in parts: by which instruction, where the next part would be in both
/// runs, and whether both had a byte of zero in those before and the same up to there.
#[derive(Clone, Copy, Debug, Default)]
struct Parts {
    pc: u64,
    next: (u64, u64),
    ended: bool,
}

impl Parts {
    /// Whether these are the next part.
    fn are(&self, old: &Access, new: &Access) -> bool {
        (self.pc, self.next) == (old.pc, (old.address, new.address))
    }

    /// Takes the next part, or another load. Whether its bytes that differ are behind a byte of zero.
    fn take(&mut self, old: &Access, new: &Access) -> bool {
        let ended = self.are(old, new) && self.ended;
        let byte = |value: u64, i: u32| (value >> (8 * i)) as u8;
        let zero = (0..u32::from(old.size.min(8))).find(|i| byte(old.value, *i) == 0);
        let same = |to: u32| (0..=to).all(|i| byte(old.value, i) == byte(new.value, i));
        let ends = zero.is_some_and(same);
        *self = Parts {
            pc: old.pc,
            next: (
                old.address.wrapping_add(u64::from(old.size)),
                new.address.wrapping_add(u64::from(old.size)),
            ),
            ended: ended || ends,
        };
        ended || ends
    }
}

/// What `memset` stores to a block that has another alignment in the output, so that it is other stores: each byte
/// other than 0, by its distance from the beginning.
#[derive(Debug, Default)]
struct Filling {
    starts: [u64; 2],
    bytes: [BTreeMap<u64, u8>; 2],
}

impl Filling {
    fn store(&mut self, store: &Access, second: bool) {
        let run = usize::from(second);
        let bytes = store.value.to_le_bytes();
        for (i, byte) in bytes.into_iter().take(store.size.into()).enumerate() {
            let at = store.address.wrapping_add(i as u64);
            let at = at.wrapping_sub(self.starts[run]);
            // What is cleared at once the emulator does not tell.
            match byte {
                0 => self.bytes[run].remove(&at),
                byte => self.bytes[run].insert(at, byte),
            };
        }
    }
}

/// System calls of one run.
#[derive(Debug, Default)]
pub(super) struct Lane {
    length: u64,
    mapped: VecDeque<(u64, u64)>,
    processes: VecDeque<u64>,
    breaks: VecDeque<u64>,
    /// The call that came back last, and its result.
    last: Option<(u32, u64)>,
}

impl Lane {
    /// Whether so many bytes are what a system call gave last; by which.
    fn gave(&self, value: u64, size: u8) -> Option<u32> {
        let bits = 64_u32.saturating_sub(8 * u32::from(size));
        let (number, result) = self.last?;
        ((result ^ value).checked_shl(bits) == Some(0)).then_some(number)
    }
}

/// Compares.
pub struct Comparison<A, B> {
    pub(super) old: Side<A>,
    pub(super) new: Side<B>,
    pub(super) values: Values,
    pub(super) machine: Machine,
    pub(super) limits: Limits,
    pub(super) outcome: Outcome,
    pub(super) waiting: Vec<Waiting>,
    /// Stores of the second run alone, since the last event.
    pub(super) extra: Vec<Access>,
    /// What stubs have done, since the last event, that the input has done too.
    pub(super) by_stub: Vec<Access>,
    /// What of the second run's stack inserted code has written, and the program not since.
    pub(super) scribbled: Scribbled,
    /// What of the second run's stack is code's outside.
    pub(super) outside: Outside,
    /// Bytes of the second run's memory that differ, as is explained.
    pub(super) stored: Stored,
    /// What was loaded since the last event of words that are explained.
    pub(super) loaded_parts: HashSet<(u64, u64)>,
    /// The load that is read.
    parts: Parts,
    /// Since the last event, if that is such a call.
    filling: Option<Filling>,
    /// Pairs of values that were there.
    pub(super) garbage: HashSet<(u64, u64)>,
    /// What of that functions have stored to have the stack pointer aligned: address in the second run, and the pair.
    pub(super) pushed: HashSet<(u64, u64, u64)>,
    /// Numbers that depend on other threads, as registers have shown.
    pub(super) of_threads: HashSet<(u64, u64)>,
    /// The pair that differs in each register, judged already.
    pub(super) shown: [Option<(u64, u64)>; 32],
    /// Which of them hold a part of what is explained.
    pub(super) of_parts: [bool; 32],
    /// The stack pointer of the second run at the last event.
    pub(super) sp: u64,
    pub(super) call: Option<System>,
    /// Open files from which the list of mappings is read.
    pub(super) lists: HashSet<u64>,
    pub(super) lanes: [Lane; 2],
    /// The function that is not looked into and was entered last. It may leave by a jump to another.
    pub(super) left_out: u64,
    /// What the allocator was asked for.
    pub(super) allocating: Option<u64>,
    /// The last events, for who looks for how it came: kind, from, to, to in the second run.
    pub(super) recent: VecDeque<(Kind, u64, u64, u64)>,
}

impl<A: Read, B: Read> Comparison<A, B> {
    /// Of the two plugins' streams.
    pub fn new(
        old: A,
        new: B,
        module: Module,
        machine: Machine,
        limits: Limits,
    ) -> Comparison<A, B> {
        let mut values = Values::default();
        values.aarch64 = machine == Machine::Aarch64;
        let (old, new) = (
            Side::new(old, false, machine, &module),
            Side::new(new, true, machine, &module),
        );
        values.module = module;
        Comparison {
            old,
            new,
            values,
            machine,
            limits,
            outcome: Outcome {
                wanted: limits.examples,
                ..Outcome::default()
            },
            waiting: Vec::new(),
            extra: Vec::new(),
            by_stub: Vec::new(),
            scribbled: Scribbled::default(),
            outside: Outside::default(),
            stored: Stored::default(),
            loaded_parts: HashSet::new(),
            parts: Parts::default(),
            filling: None,
            garbage: HashSet::new(),
            pushed: HashSet::new(),
            of_threads: HashSet::new(),
            shown: [None; 32],
            of_parts: [false; 32],
            sp: 0,
            call: None,
            lists: HashSet::new(),
            lanes: Default::default(),
            left_out: 0,
            allocating: None,
            recent: VecDeque::new(),
        }
    }

    /// Compares to the end.
    pub fn run(mut self) -> Result<Outcome> {
        self.begin()?;
        while self.step()? {
            if self.outcome.events >= self.limits.events {
                self.outcome.limited = true;
                break;
            }
        }
        self.settle(None);
        self.outcome.forget_parting();
        Ok(self.outcome)
    }

    /// What comes before the module is entered: the loader's work, which is not compared, but says where things are.
    fn begin(&mut self) -> Result<()> {
        let old = self.old.mappings(&self.values.module)?;
        let new = self.new.mappings(&self.values.module)?;
        if let (Some(a), Some(b)) = (self.old.base, self.new.base) {
            self.values.bases = Some((a, b));
        }
        let (from, to) = (self.old.start.clone(), self.new.start.clone());
        let regions = &mut self.values.regions;
        regions.add_stack(from.sp, to.sp);
        // AT_BASE
        if let (Some(a), Some(b)) = (from.auxiliary(7), to.auxiliary(7))
            && a != 0
        {
            regions.add(What::Interpreter, a, b, 0x4_0000);
        }
        // AT_PHDR, AT_PHNUM
        let table = |start: &Start| {
            let (at, count) = (start.auxiliary(3)?, start.auxiliary(5)?);
            Some(((at, at.saturating_add(count.saturating_mul(56))), count))
        };
        if let (Some((old, a)), Some((new, b))) = (table(&from), table(&to)) {
            self.values.tables = (old, new);
            self.values.headers.insert((a, b));
        }
        // Who looks for a header in the table holds the type of another one when it has found it. Small
        // numbers say nothing.
        let types = |image: &Image| {
            image
                .headers
                .iter()
                .map(|h| u64::from(*h))
                .filter(|h| *h > 255)
                .collect()
        };
        let (old_types, new_types): (Vec<u64>, Vec<u64>) = (
            types(&self.values.module.old),
            types(&self.values.module.new),
        );
        for a in old_types {
            self.values
                .headers
                .extend(new_types.iter().map(|b| (a, *b)));
        }
        // The module itself may have segments in the output that the input has no spare header for.
        let (low, high) = {
            let module = &self.values.module;
            (module.old.low, module.old.high.max(module.new.high))
        };
        let of_others = |all: Vec<(u64, u64)>, base: Option<u64>| -> Vec<(u64, u64)> {
            let is_module =
                |at: u64| base.is_some_and(|base| (low..high).contains(&at.wrapping_sub(base)));
            all.into_iter().filter(|m| !is_module(m.0)).collect()
        };
        let (mapped, mapped_new) = (
            of_others(old.all, self.old.base),
            of_others(new.all, self.new.base),
        );
        let regions = &mut self.values.regions;
        for ((a, length), (b, _)) in mapped.into_iter().zip(mapped_new) {
            regions.add_mapping(a, b, length);
        }
        let processes = old.processes.into_iter().zip(new.processes);
        self.values
            .numbers
            .extend(processes.filter(|(a, b)| a != b));
        for (a, b) in old.breaks.into_iter().zip(new.breaks) {
            regions.add_break(a, b);
        }
        if let Some((a, b)) = self.values.bases {
            let image = &self.values.module.old;
            regions.add(
                What::Module,
                a.wrapping_add(image.low),
                b.wrapping_add(image.low),
                image.high - image.low,
            );
        }
        self.values.guards = (from.random[1], to.random[1]);
        self.sp = to.sp;
        Ok(())
    }

    fn step(&mut self) -> Result<bool> {
        for (from, to) in self.new.garbage.drain(..) {
            self.scribbled.add_range(from, to);
        }
        if let (Some(a), Some(b)) = (self.old.heap_end, self.new.heap_end) {
            self.values.regions.add_break(a, b);
            (self.old.heap_end, self.new.heap_end) = (None, None);
        }
        let module = &self.values.module;
        let (a, b) = (self.old.peek(module)?, self.new.peek(module)?);
        match (a, b) {
            // A stub does what the jump at an entry has replaced.
            (Item::Access(from), Item::Routine(to, _))
                if (from.size, from.load) == (to.size, to.load)
                    && self.values.same_place(from.address, to.address)
                    && (from.value == to.value || self.values.is_known(from.value, to.value)) =>
            {
                self.by_stub.push(*to);
            }
            // By a call that a stub makes in place of what the jump at an entry has replaced.
            (Item::Access(from), Item::Routine(to, _))
                if !from.load
                    && !to.load
                    && from.size == to.size
                    && self.values.same_place(from.address, to.address)
                    && self.values.is_return_to_stub(from.value, to.value) =>
            {
                let pair = (from.value, to.value);
                self.values.stub_returns.insert(pair);
                let pair_class = self.values.explain(pair.0, pair.1, 8);
                self.outcome.find(&self.values, pair_class, pair, || {
                    "call in a stub in front of a function".to_owned()
                });
            }
            (_, Item::Routine(write, _)) if write.load => {
                self.new.take(&self.values.module)?;
                return Ok(true);
            }
            (_, Item::Routine(write, sp)) => {
                let (write, sp) = (*write, *sp);
                self.new.take(&self.values.module)?;
                self.routine(write, sp);
                return Ok(true);
            }
            (Item::Thread, _) => {
                self.outcome.threads = true;
                self.old.take(&self.values.module)?;
                return Ok(true);
            }
            (_, Item::Thread) => {
                self.outcome.threads = true;
                self.new.take(&self.values.module)?;
                return Ok(true);
            }
            // Of a program with threads either run may come to it first.
            (Item::System(call), other) | (other, Item::System(call))
                if call.opens == Opens::Module
                    && (self.outcome.threads || matches!(other, Item::System(_))) =>
            {
                self.outcome.opens_itself = true;
                return Ok(false);
            }
            // Who waits for whom is different each time.
            (Item::System(_) | Item::Result(..), _) if self.outcome.threads => {
                let item = self.old.take(&self.values.module)?;
                self.alone(&item, false);
                return Ok(true);
            }
            (_, Item::System(_) | Item::Result(..)) if self.outcome.threads => {
                let item = self.new.take(&self.values.module)?;
                self.alone(&item, true);
                return Ok(true);
            }
            (Item::Access(store), _) if !store.load && self.filling.is_some() => {
                let store = *store;
                self.old.take(&self.values.module)?;
                self.fill(&store, false);
                return Ok(true);
            }
            (_, Item::Access(store)) if !store.load && self.filling.is_some() => {
                let store = *store;
                self.new.take(&self.values.module)?;
                if self.is_of_inserted(store.address) {
                    self.extra(store);
                } else {
                    self.fill(&store, true);
                }
                return Ok(true);
            }
            // The input has stored it before, where inserted code had used the same memory: see `extra`.
            (Item::Access(from), Item::Access(to))
                if self.values.module.instrumented
                    && !to.load
                    && from.value != to.value
                    && is_awaited(&self.waiting, to) =>
            {
                let write = *to;
                self.new.take(&self.values.module)?;
                self.extra(write);
                return Ok(true);
            }
            (Item::Access(from), Item::Access(to))
                if (from.size, from.load) == (to.size, to.load)
                    && (self.values.same_place(from.address, to.address)
                        || from.load
                            && (self.parts.are(from, to)
                                || self.values.is_code(from.address, to.address)
                                || self.values.is_moved_section(from.address, to.address))) =>
            {
                let (from, to) = (*from, *to);
                if from.load {
                    self.outcome.loads += u64::from(!self.outcome.threads);
                } else {
                    self.outcome.stores += 1;
                    self.scribbled.clear(to.address, to.size);
                    self.stored.clear(to.address, to.size);
                    if self.is_stack(to.address) {
                        self.outside.store(to.address, to.size);
                    }
                }
                if from.load && self.values.is_code(from.address, to.address) {
                    let same = from.value == to.value;
                    self.outcome.find(
                        &self.values,
                        Class::ReadsCode { same },
                        (from.address, to.address),
                        || format!("load by {}", self.values.describe(from.pc, false)),
                    );
                }
                let behind_string = from.load && self.parts.take(&from, &to);
                if from.value != to.value {
                    let left = from.load
                        && self.is_stack(to.address)
                        && self.outside.has(to.address, to.size);
                    let [a, b] = &self.lanes;
                    let call = a.gave(from.value, from.size);
                    let gave = call.is_some() && call == b.gave(to.value, to.size);
                    let loaded = self.old.loaded.contains(&(from.value, from.size))
                        && self.new.loaded.contains(&(to.value, to.size));
                    self.waiting.push(Waiting {
                        old: from,
                        new: to,
                        left,
                        behind_string,
                        of_others: self.outcome.threads && !from.load && (gave || loaded),
                    });
                    if self.waiting.len() > WAITING {
                        self.settle(None);
                    }
                }
            }
            (_, Item::Access(write)) => {
                let write = *write;
                if !self.values.module.instrumented {
                    self.part(
                        "the output reads or writes memory and the input does not, or elsewhere",
                    );
                    return Ok(false);
                }
                self.new.take(&self.values.module)?;
                self.extra(write);
                return Ok(true);
            }
            (Item::Event(from), Item::Event(to)) => {
                let (from, to) = (from.clone(), to.clone());
                if !self.event(&from, &to) {
                    return Ok(false);
                }
            }
            (Item::System(from), Item::System(to)) if from.number == to.number => {
                let (from, to) = (*from, *to);
                self.outcome.systems += 1;
                self.call = Some(from);
                let process = matches!(
                    self.machine.system(from.number),
                    Call::Process | Call::Break
                );
                for (i, (a, b)) in from.arguments.into_iter().zip(to.arguments).enumerate() {
                    // What a call does not take, registers hold all the same.
                    if a != b && i < 3 && !process {
                        let class = match self.values.explain(a, b, 8) {
                            Class::Unknown if i > 0 => Class::LeftOutside,
                            class => class,
                        };
                        self.outcome.find(&self.values, class, (a, b), || {
                            format!("argument {i} of system call {}", from.number)
                        });
                    }
                }
            }
            (Item::Result(number, a), Item::Result(other, b)) if number == other => {
                let (number, a, b) = (*number, *a, *b);
                self.result(number, a, b);
            }
            // Killed or not is compared with the status.
            (Item::End(_), Item::End(_)) => return Ok(false),
            _ => {
                self.part("the runs do different things");
                return Ok(false);
            }
        }
        self.old.take(&self.values.module)?;
        self.new.take(&self.values.module)?;
        Ok(true)
    }

    /// A store by one run, of a function that fills a block.
    fn fill(&mut self, store: &Access, second: bool) {
        if second {
            self.scribbled.clear(store.address, store.size);
            self.stored.clear(store.address, store.size);
        } else {
            self.outcome.stores += 1;
        }
        if let Some(filling) = &mut self.filling {
            filling.store(store, second);
        }
    }

    /// Whether a call fills a block of the allocator that has another alignment in the output.
    fn begins_to_fill(&self, from: &Event, to: &Event) -> Option<Filling> {
        // `memset` for AArch64 clears as much at once as the processor says (`dc zva`), and that is not more.
        const LINE: u64 = 2048;
        let first = self.machine.argument(0);
        let (a, b) = (from.registers[first], to.registers[first]);
        let link = from.to.wrapping_sub(self.old.base?);
        let (start, name) = self.values.module.old.function(link)?;
        let is_it = from.kind == Kind::Call
            && start == link
            && name.trim_start_matches('_').starts_with("memset")
            && a % LINE != b % LINE
            && self.values.regions.same(a, b) == Some(What::Heap);
        is_it.then(|| Filling {
            starts: [a, b],
            ..Filling::default()
        })
    }

    /// A system call of one run of a program with threads. What the first thread maps is still the same in
    /// the same order, and so is its heap.
    fn alone(&mut self, item: &Item, second: bool) {
        let lane = &mut self.lanes[usize::from(second)];
        match item {
            Item::System(call) => lane.length = call.arguments[1],
            Item::Result(number, result) => {
                lane.last = Some((*number, *result));
                match self.machine.system(*number) {
                    Call::Map => lane.mapped.push_back((*result, lane.length)),
                    Call::Process => lane.processes.push_back(*result),
                    Call::Break => lane.breaks.push_back(*result),
                    _ => (),
                }
            }
            _ => (),
        }
        let [old, new] = &mut self.lanes;
        if let (Some(a), Some(b)) = (old.processes.front(), new.processes.front()) {
            self.values.numbers.insert((*a, *b));
            old.processes.pop_front();
            new.processes.pop_front();
        }
        if let (Some(a), Some(b)) = (old.breaks.front(), new.breaks.front()) {
            self.values.regions.add_break(*a, *b);
            old.breaks.pop_front();
            new.breaks.pop_front();
        }
        if let (Some((a, length)), Some((b, _))) = (old.mapped.front(), new.mapped.front()) {
            self.values.regions.add_mapping(*a, *b, *length);
            old.mapped.pop_front();
            new.mapped.pop_front();
        }
    }

    fn result(&mut self, number: u32, a: u64, b: u64) {
        let call = self.call.take().filter(|call| call.number == number);
        let length = call.map_or(0, |call| call.arguments[1]);
        let of_list = call.is_some_and(|call| self.lists.contains(&call.arguments[0]));
        let is_error = |value: u64| value > u64::MAX - 4096;
        match self.machine.system(number) {
            Call::Map if !is_error(a) && !is_error(b) => {
                self.values.regions.add_mapping(a, b, length);
            }
            Call::Break => self.values.regions.add_break(a, b),
            Call::Process if a != b => {
                self.values.numbers.insert((a, b));
                self.outcome.find(&self.values, Class::Process, (a, b), || {
                    format!("result of system call {number}")
                });
            }
            Call::Close => {
                if let Some(call) = call {
                    self.lists.remove(&call.arguments[0]);
                }
            }
            Call::Other
                if a == b
                    && !is_error(a)
                    && call.is_some_and(|call| call.opens == Opens::Mappings) =>
            {
                self.lists.insert(a);
            }
            kind if a != b => {
                let class = match kind {
                    Call::Read if of_list => {
                        self.values.lengths.insert((a, b));
                        Class::Mappings
                    }
                    _ => self.values.explain(a, b, 8),
                };
                self.outcome.find(&self.values, class, (a, b), || {
                    format!("result of system call {number}")
                });
            }
            _ => (),
        }
    }

    fn event(&mut self, from: &Event, to: &Event) -> bool {
        if from.kind != to.kind {
            self.part("control goes on in different ways");
            return false;
        }
        if let Some(filling) = self.filling.take()
            && filling.bytes[0] != filling.bytes[1]
        {
            self.part("a block is filled with different bytes");
            return false;
        }
        self.filling = self.begins_to_fill(from, to);
        if self.values.bases.is_none()
            && let (Some(a), Some(b)) = (self.old.base, self.new.base)
        {
            // A library that was loaded with dlopen.
            self.values.bases = Some((a, b));
            let module = &self.values.module;
            self.values.regions.add(
                What::Module,
                a.wrapping_add(module.old.low),
                b.wrapping_add(module.old.low),
                module.old.high - module.old.low,
            );
        }
        let is_inside = |end: u64| {
            self.values.bases.is_some_and(|(base, _)| {
                self.values
                    .module
                    .old
                    .section(end.wrapping_sub(base))
                    .is_some()
            })
        };
        let (from_inside, to_inside) = (is_inside(from.last), is_inside(from.to));
        if from.kind == Kind::Call
            && from_inside
            && !self.values.stub_returns.contains(&(from.end, to.end))
            && let Some((a, b)) = self.values.link(from.end, to.end)
            && !self.values.module.learn(a, b, Meaning::Return)
        {
            // One of them has gone another way, to another call of the same function.
            if self.outcome.threads {
                self.part("calls are made from different places");
                return false;
            }
            self.outcome.find(
                &self.values,
                Class::Contradiction,
                (from.end, to.end),
                || "the address after a call".to_owned(),
            );
        }
        if to_inside {
            let Some((a, b)) = self.values.link(from.to, to.to) else {
                return false;
            };
            if a != b
                && !self.values.is_stub(from.to, to.to)
                && !self.values.stub_returns.contains(&(from.to, to.to))
            {
                if self.values.module.meaning(a, b).is_none()
                    && !self.values.module.learn(a, b, Meaning::Label)
                {
                    self.part("control goes to different places");
                    return false;
                }
                if from.kind != Kind::Call {
                    self.values.jumped(a, b, from.kind == Kind::Jump);
                }
            }
        } else if from.to != to.to && !self.values.same_place(from.to, to.to) {
            self.part("control goes to different places outside the module");
            return false;
        }
        // What is not bound yet goes to the loader, whichever function it is.
        let imports = &self.values.module.old.imports;
        if let (Some(a), Some(b)) = (imports.get(&from.slot), imports.get(&to.slot))
            && a != b
        {
            self.part(&format!("{a} is called by the input, {b} by the output"));
            return false;
        }
        if to.via != 0 {
            self.values.detours.insert((from.to, to.via));
        }
        self.allocation(from, to);
        self.settle(Some(to));
        if from_inside && !to_inside {
            // The allocator is not given memory of the stack, whatever registers hold.
            let gives = !self.values.module.is_allocator(from.slot);
            let given = self.machine.arguments().iter().map(|i| to.registers[*i]);
            let given = given.filter(|_| gives);
            self.outside.leave(to.registers[self.machine.sp()], given);
        }
        self.outcome.events += 1;
        self.registers(from, to, from_inside && !from.unwound);
        self.outcome.agree();
        if self.recent.len() >= 6 {
            self.recent.pop_front();
        }
        self.recent
            .push_back((from.kind, from.last, from.to, to.to));
        self.sp = to.registers[self.machine.sp()];
        true
    }

    /// Whether an address of the second run is on its stack.
    pub(super) fn is_stack(&self, address: u64) -> bool {
        matches!(
            self.values.regions.what(address, true),
            Some((What::Stack, _))
        )
    }

    /// What the allocator gives, where its work is not looked into.
    fn allocation(&mut self, from: &Event, to: &Event) {
        if from.unwound {
            if let (Some(length), Kind::Return) = (self.allocating.take(), from.kind) {
                let (a, b) = (from.registers[0], to.registers[0]);
                self.values.regions.add_allocation(a, b, length);
            }
        } else if from.skipped {
            self.left_out = from.to;
            let link = from.to.wrapping_sub(self.old.base.unwrap_or(0));
            self.allocating = self.values.module.allocator(link).map(|size| {
                let argument = |i: usize| from.registers[self.machine.argument(i)];
                match size {
                    Size::First => argument(0),
                    Size::Second => argument(1),
                    Size::Product => argument(0).saturating_mul(argument(1)),
                }
            });
        }
    }

    /// Whether an address is of what registers unwind tables: start-up code looks at nothing that comes from
    /// there, and a list that was emptied gives something else.
    fn registered(&self, address: u64) -> bool {
        let name = self.values.describe(address, false);
        ["__register_frame", "__deregister_frame"]
            .iter()
            .any(|start| name.starts_with(start))
    }

    /// Whether `open` of C's library is called with two arguments, the name and the flags: it has a third one where it
    /// may make a file.
    fn opens_without_mode(&self, call: &Event) -> bool {
        const CREATE: u64 = 0o100;
        const TEMPORARY: u64 = 0o2000_0000;
        let name = self.values.module.old.imports.get(&call.slot);
        let flags = call.registers[self.machine.argument(1)];
        call.kind == Kind::Call
            && name.is_some_and(|name| name == "open" || name == "open64")
            && flags & (CREATE | TEMPORARY) == 0
    }

    fn registers(&mut self, from: &Event, to: &Event, from_inside: bool) {
        for i in 0..self.machine.registers() {
            let (a, b) = (from.registers[i], to.registers[i]);
            if a == b {
                self.shown[i] = None;
                continue;
            }
            // What stays in a register is counted once.
            if self.shown[i] == Some((a, b)) {
                continue;
            }
            self.shown[i] = Some((a, b));
            self.of_parts[i] = false;
            let mut class = self.values.explain(a, b, 8);
            // `_Unwind_FindEnclosingFunction` comes back with where the unwind entry begins that holds an address, and
            // where that ends in another register. The same may have been left in a scratch register before, and what
            // is that alone is not known when it is stored.
            let looked_up = from.kind == Kind::Return && !from_inside && self.machine.is_result(i);
            if matches!(class, Class::Unknown | Class::Inside)
                && looked_up
                && self
                    .values
                    .link(a, b)
                    .is_some_and(|(o, n)| self.values.module.are_bounds(o, n))
            {
                self.values.bounds.insert((a, b));
                class = Class::Bounds;
            }
            if !class.is_explained() && self.garbage.contains(&(a, b)) {
                class = Class::Uninitialised;
            }
            // An unwinder's callbacks find rows' addresses in registers that are no arguments.
            if matches!(class, Class::Unknown | Class::Inside) {
                // What string functions read behind a string is anything.
                let reads_on = from.kind == Kind::Return && {
                    let name = self.values.describe(from.last, false);
                    ["__str", "__mem"]
                        .iter()
                        .any(|start| name.starts_with(start))
                };
                let outside = (!from_inside || reads_on)
                    && self.machine.is_scratch(i)
                    && !(from.kind == Kind::Return
                        && self.machine.is_result(i)
                        && !(from.unwound && (i > 0 || self.registered(self.left_out))));
                class = if outside {
                    self.values.left(a, b);
                    Class::LeftOutside
                } else if self.machine.is_scratch(i) && self.values.is_left(a, b) {
                    Class::LeftOutside
                } else if self.machine.is_linkage(i, self.values.module.instrumented) {
                    Class::Scratch
                } else {
                    class
                };
            }
            if matches!(class, Class::Unknown | Class::Inside) && self.values.is_compared(a, b) {
                class = Class::Compared;
            }
            if class == Class::Unknown && self.loaded_parts.contains(&(a, b)) {
                self.of_parts[i] = true;
                class = Class::Remains;
            }
            // In a static program, what system calls gave is in registers, and that may depend on other threads.
            if class == Class::Unknown
                && self.outcome.threads
                && !self.values.is_of_module(a, false)
                && !self.values.is_of_module(b, true)
            {
                self.of_threads.insert((a, b));
                class = Class::Threads;
            }
            // Who has gone through the headers comes with the type of the last one in a register.
            let kinds =
                |image: &Image, kind: u64| image.headers.iter().any(|k| u64::from(*k) == kind);
            if class == Class::Unknown
                && from.skipped
                && kinds(&self.values.module.old, a)
                && kinds(&self.values.module.new, b)
            {
                class = Class::Headers;
            }
            // So does who has done that for code outside (`dl_iterate_phdr`), with what was calculated of them.
            let comes_back = from.kind == Kind::Return
                && from_inside
                && !self.values.is_of_module(from.to, false);
            if class == Class::Unknown
                && comes_back
                && self.machine.is_scratch(i)
                && !self.machine.is_result(i)
                && self.outcome.classes.contains_key(&Class::Headers)
            {
                class = Class::Headers;
            }
            // And so does who comes back to the module, or opens a file, if the headers were read just before.
            let is_free = |i: usize| match from.kind {
                Kind::Return => !self.machine.is_result(i),
                _ => self.opens_without_mode(from) && !self.machine.is_of_two_or_more(i),
            };
            if class == Class::Unknown
                && from_inside
                && from.headers
                && to.headers
                && self.machine.is_scratch(i)
                && is_free(i)
            {
                class = Class::Headers;
            }
            self.outcome.find(&self.values, class, (a, b), || {
                let name = |address| self.values.describe(address, false);
                format!(
                    "{} at {:?} to {} from {}",
                    self.machine.register(i),
                    from.kind,
                    name(from.to),
                    name(from.last)
                )
            });
        }
    }

    /// The runs part here.
    fn part(&mut self, what: &str) {
        let module = &self.values.module;
        let show = |item: Result<&Item>, second: bool| match item {
            Ok(item) => describe(item, &self.values, self.machine, second),
            Err(error) => format!("{error:#}"),
        };
        let old = show(self.old.peek(module), false);
        let new = show(self.new.peek(module), true);
        let recent: String = self
            .recent
            .iter()
            .map(|(kind, last, to, new)| {
                format!(
                    "\n     {kind:?} from {} to {}, {}",
                    self.values.describe(*last, false),
                    self.values.describe(*to, false),
                    self.values.describe(*new, true)
                )
            })
            .collect();
        self.outcome.parted = Some(format!(
            "{what}, after event {}\n  the input:  {old}\n  the output: {new}\n  events before:{recent}",
            self.outcome.events
        ));
    }
}
