//! One of the two runs as a stream of what is to be compared.
//!
//! Taken out here:
//!
//! * What inserted code does that has nothing in the input that it comes from (start-up routine, recorders,
//!   veneers): its own calls, jumps and system calls. A call of a recorder that jumps on to the callee
//!   becomes a call of the callee. What such code writes is handed on, marked.
//! * In a program that holds its own unwinder (a static one): all that happens in the unwinder, which reads
//!   tables that are meant to differ. It begins when one of its functions is called and ends when the stack
//!   pointer is back where it was. Where it leaves to is compared.
//! * The stubs of the procedure linkage table and linkers' veneers, in both runs: a pass may have calls go where the
//!   stub goes (`--plt`), and new code may reach without a veneer. A call of a stub becomes a call of what the stub
//!   jumps to; loads from the table of addresses are left out, as that says what was loaded.
//! * What routines that are not looked into leave on the stack is remembered: who reads it later reads garbage.

use std::collections::{HashSet, VecDeque};
use std::io::Read;

use anyhow::Result;

use super::machine::{Call, Machine};
use super::places::{Module, Place};
use super::record::{Access, Event, Kind, Opens, Record, Records, System};

/// What is not looked into uses less than so many bytes of stack.
const STACK: u64 = 1 << 20;

/// What a run does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// See [`Event`].
    Event(Box<Event>),
    /// By code of the program.
    Access(Access),
    /// By inserted routines (where nothing moved, they also do for a function what the jump at its entry has
    /// replaced), and the stack pointer when control came to them or to who called them.
    Routine(Access, u64),
    /// See [`System`].
    System(System),
    /// Number and result.
    Result(u32, u64),
    /// A second thread began.
    Thread,
    /// `true` if the process ended in an orderly way.
    End(bool),
}

/// The state of a process at its first instruction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// The stack pointer.
    pub sp: u64,
    /// Random bytes.
    pub random: [u64; 2],
    /// The auxiliary vector: types and values.
    pub auxiliary: Vec<(u64, u64)>,
}

impl Start {
    /// From what the plugin wrote: argc, argv, 0, environment, 0, auxiliary vector, two zeroes.
    fn new(sp: u64, random: [u64; 2], stack: &[u64]) -> Start {
        let arguments = stack.first().copied().unwrap_or(0) as usize;
        let after = stack.get(arguments.saturating_add(2)..).unwrap_or_default();
        let end = after.iter().position(|word| *word == 0);
        let auxiliary = end.map_or(&[][..], |end| &after[end + 1..]);
        Start {
            sp,
            random,
            auxiliary: auxiliary
                .chunks_exact(2)
                .map(|pair| (pair[0], pair[1]))
                .take_while(|pair| pair.0 != 0)
                .collect(),
        }
    }

    /// A value of the auxiliary vector.
    pub fn auxiliary(&self, kind: u64) -> Option<u64> {
        self.auxiliary.iter().find(|a| a.0 == kind).map(|a| a.1)
    }
}

/// Memory that a process has got.
#[derive(Debug, Default)]
pub struct Mappings {
    /// Addresses and lengths.
    pub all: Vec<(u64, u64)>,
    /// What calls of `brk` gave.
    pub breaks: Vec<u64>,
    /// Numbers by which the system knows the process.
    pub processes: Vec<u64>,
}

/// A run.
pub struct Side<R> {
    records: Records<R>,
    second: bool,
    machine: Machine,
    /// Run-time minus link-time addresses of the module.
    pub base: Option<u64>,
    /// How the process began.
    pub start: Start,
    /// Parts of the module, link-time addresses, that are not looked into.
    skipped: Vec<(u64, u64)>,
    /// In them: the stack pointer when they were entered, and the call.
    skipping: Option<(u64, Box<Event>)>,
    /// An event that led into an inserted routine.
    pending: Option<Box<Event>>,
    /// Memory that inserted routines mapped.
    own: Vec<(u64, u64)>,
    /// The length that an inserted routine's call of mmap asked for; `None` in that for other calls.
    own_call: Option<Option<u64>>,
    item: Option<Item>,
    last_was_exit: bool,
    /// At the last event, of whichever code.
    sp: u64,
    threads: bool,
    /// In a stub: the event that led there, which has been told.
    in_stub: Option<Box<Event>>,
    /// A call in a stub, of the program's or of a routine: where it leads to will say so.
    calling: Option<Box<Event>>,
    /// What has been read since.
    held: VecDeque<Item>,
    /// What has been read and is not told yet.
    ready: VecDeque<Item>,
    /// A call of a stub of the procedure linkage table.
    linking: Option<Box<Event>>,
    /// The first word of its table by which control went on, or goes on, since the last step: link-time address.
    slot: u64,
    /// Program headers were read since the last event.
    headers: bool,
    /// What was loaded since from memory that other threads may write: values and sizes.
    pub loaded: HashSet<(u64, u8)>,
    /// Where the heap ended when that was asked last, if by parts that are not looked into.
    pub heap_end: Option<u64>,
    /// Stack that parts which are not looked into have used, and nobody any more: from an address to another.
    pub garbage: Vec<(u64, u64)>,
    /// The highest stack pointer since the last event, where it was above that of both.
    pub highest: u64,
}

impl<R: Read> Side<R> {
    /// Begins to read; `second` is the run of the output.
    pub fn new(from: R, second: bool, machine: Machine, module: &Module) -> Side<R> {
        Side {
            records: Records::new(from),
            second,
            machine,
            base: None,
            start: Start::default(),
            skipped: module.skipped_ranges(second),
            skipping: None,
            pending: None,
            own: Vec::new(),
            own_call: None,
            item: None,
            last_was_exit: false,
            sp: 0,
            threads: false,
            in_stub: None,
            calling: None,
            held: VecDeque::new(),
            ready: VecDeque::new(),
            linking: None,
            slot: 0,
            headers: false,
            loaded: HashSet::new(),
            heap_end: None,
            garbage: Vec::new(),
            highest: 0,
        }
    }

    /// Whether a run-time address is in memory that inserted routines mapped for themselves.
    pub fn is_own(&self, address: u64) -> bool {
        self.own.iter().any(|(a, z)| (*a..*z).contains(&address))
    }

    fn is_inserted(&self, module: &Module, address: u64) -> bool {
        self.second
            && self
                .base
                .is_some_and(|base| module.place(address.wrapping_sub(base)) == Place::Inserted)
    }

    /// In the program headers, of the program or of the module, of which the runs have different numbers: who goes
    /// through them reads more of them.
    fn is_headers(&self, module: &Module, address: u64) -> bool {
        let image = if self.second {
            &module.new
        } else {
            &module.old
        };
        let of_module = |base: u64| {
            let (start, bytes) = image.table;
            address.wrapping_sub(base).wrapping_sub(start) < bytes
        };
        if self.base.is_some_and(of_module) {
            return true;
        }
        match (self.start.auxiliary(3), self.start.auxiliary(5)) {
            (Some(at), Some(count)) => address.wrapping_sub(at) < count.saturating_mul(56),
            _ => false,
        }
    }

    /// A load from memory that other threads may write.
    fn is_of_threads(&self, load: &Access) -> bool {
        self.threads && self.start.sp.wrapping_sub(load.address) > STACK
    }

    /// Loads that are not compared: those of inserted code, of the program headers, and, as others may write
    /// meanwhile, of a program with threads, but from its stack. What an indirect call loads, a recorder loads for it;
    /// the event says what it was.
    fn is_of_no_interest(&self, module: &Module, load: &Access) -> bool {
        self.is_of_threads(load)
            || self.is_headers(module, load.address)
            || self.is_inserted(module, load.pc) && !module.functions.is_empty()
            || module.instrumented && load.target
            || self.is_linkage(module, load)
    }

    /// Loads by stubs of the procedure linkage table, and in their place.
    fn is_linkage(&self, module: &Module, load: &Access) -> bool {
        self.base.is_some_and(|base| {
            module.is_linkage_stub(load.pc.wrapping_sub(base))
                || module.is_linkage_slot(load.address.wrapping_sub(base))
        })
    }

    /// A load by which a call or a jump goes on to another file.
    fn goes_on(&mut self, module: &Module, load: &Access) {
        let Some(base) = self.base else { return };
        let slot = load.address.wrapping_sub(base);
        let is_it = load.target || module.is_linkage_stub(load.pc.wrapping_sub(base));
        if is_it && self.slot == 0 && module.is_linkage_slot(slot) {
            self.slot = slot;
        }
    }

    /// A jump at an old entry that goes by a register, as it goes far.
    fn is_entry_jump(&self, module: &Module, event: &Event) -> bool {
        // A landing pad, two instructions for the address, and the jump.
        const LONGEST: u64 = 16;
        let link = |address: u64| self.base.map(|base| address.wrapping_sub(base));
        let (Some(from), Some(to)) = (link(event.last), link(event.to)) else {
            return false;
        };
        match module.place(to) {
            Place::Moved(function) if self.second && event.kind == Kind::Jump => {
                let f = &module.functions[function];
                let is_entry = f.new.first().is_some_and(|new| new.0 == to);
                is_entry && from.wrapping_sub(f.entry) < LONGEST && module.place(from) == Place::Old
            }
            _ => false,
        }
    }

    /// A call of a stub of the procedure linkage table together with the stub's jump; `None` in between.
    fn through_linkage(&mut self, module: &Module, event: Box<Event>) -> Option<Box<Event>> {
        let Some(base) = self.base else {
            return Some(event);
        };
        let is_stub = |address: u64| module.is_linkage_stub(address.wrapping_sub(base));
        let slot = std::mem::take(&mut self.slot);
        let event = match self.linking.take() {
            // A stub that is not bound yet goes on by two further words.
            Some(call) if is_stub(event.last) => Box::new(Event {
                kind: call.kind,
                last: call.last,
                end: call.end,
                slot: if call.slot == 0 { slot } else { call.slot },
                ..*event
            }),
            _ => Box::new(Event { slot, ..*event }),
        };
        // From a veneer, where the output has none, or by a tail call: what counts is where the stub jumps to.
        if event.kind == Kind::Jump && is_stub(event.to) {
            return None;
        }
        // Before it is bound, a stub jumps to its own second part, and that to the loader.
        if event.kind == Kind::Call && is_stub(event.to) && !is_stub(event.last) {
            self.linking = Some(event);
            return None;
        }
        Some(event)
    }

    /// The function whose first instructions a stub has done before it goes on at an address.
    fn entered_behind(&self, module: &Module, address: u64) -> u64 {
        // What a jump at an entry overwrites ends sooner.
        const LONGEST: u64 = 32;
        let base = self.base.unwrap_or(0);
        let link = address.wrapping_sub(base);
        match module.old.function(link) {
            Some((start, _)) if link - start < LONGEST => base.wrapping_add(start),
            _ => address,
        }
    }

    fn is_skipped(&self, address: u64) -> bool {
        let Some(base) = self.base else { return false };
        let link = address.wrapping_sub(base);
        let after = self.skipped.partition_point(|s| s.0 <= link);
        after > 0 && link < self.skipped[after - 1].1
    }

    /// The next item, which stays there.
    pub fn peek(&mut self, module: &Module) -> Result<&Item> {
        let item = match self.item.take() {
            Some(item) => item,
            None => self.read(module)?,
        };
        Ok(self.item.insert(item))
    }

    /// The next item.
    pub fn take(&mut self, module: &Module) -> Result<Item> {
        match self.item.take() {
            Some(item) => Ok(item),
            None => self.read(module),
        }
    }

    /// What is mapped before the module is entered.
    pub fn mappings(&mut self, module: &Module) -> Result<Mappings> {
        let (mut found, mut length) = (Mappings::default(), 0);
        loop {
            let machine = self.machine;
            match self.peek(module)? {
                Item::System(call) => length = call.arguments[1],
                Item::Result(number, result) => match machine.system(*number) {
                    Call::Map => found.all.push((*result, length)),
                    Call::Break => found.breaks.push(*result),
                    Call::Process => found.processes.push(*result),
                    _ => (),
                },
                Item::Thread => (),
                Item::Event(_) | Item::Access(_) | Item::Routine(..) | Item::End(_) => {
                    return Ok(found);
                }
            }
            self.take(module)?;
        }
    }

    fn read(&mut self, module: &Module) -> Result<Item> {
        loop {
            if let Some(item) = self.ready.pop_front() {
                return Ok(item);
            }
            let item = self.read_next(module)?;
            if matches!(item, Item::End(_)) {
                self.calling = None;
                self.ready.append(&mut self.held);
            }
            let waits = self.calling.is_some();
            let queue = if waits {
                &mut self.held
            } else {
                &mut self.ready
            };
            queue.push_back(item);
        }
    }

    fn read_next(&mut self, module: &Module) -> Result<Item> {
        loop {
            let Some(record) = self.records.next()? else {
                return Ok(Item::End(self.last_was_exit));
            };
            match record {
                Record::Start {
                    sp, random, stack, ..
                } => self.start = Start::new(sp, random, &stack),
                Record::Module(low) => {
                    let image = if self.second {
                        &module.new
                    } else {
                        &module.old
                    };
                    self.base = Some(low.wrapping_sub(image.low));
                }
                Record::Event(event) => {
                    if let Some(mut event) = self.event(module, event) {
                        event.headers = std::mem::take(&mut self.headers);
                        self.loaded.clear();
                        return Ok(Item::Event(event));
                    }
                }
                Record::Access(access) if self.skipping.is_some() => {
                    // Of what such a part calls.
                    let entered = self.skipping.as_ref().map_or(0, |skipping| skipping.0);
                    let is_below = entered.wrapping_sub(access.address) <= STACK;
                    if self.second && !access.load && is_below {
                        let end = access.address.saturating_add(u64::from(access.size));
                        self.garbage.push((access.address, end));
                    }
                }
                Record::Left(low, high) => {
                    if self.second {
                        self.garbage
                            .push((low.max(high.saturating_sub(STACK)), high));
                    }
                }
                Record::Access(access)
                    if access.load && self.is_of_no_interest(module, &access) =>
                {
                    self.headers |= self.is_headers(module, access.address);
                    if self.is_of_threads(&access) && !self.is_inserted(module, access.pc) {
                        self.loaded.insert((access.value, access.size));
                    }
                    self.goes_on(module, &access);
                }
                Record::Access(write) if self.is_inserted(module, write.pc) => {
                    return Ok(Item::Routine(write, self.sp));
                }
                Record::Access(write) => return Ok(Item::Access(write)),
                Record::System(call) => {
                    let kind = self.machine.system(call.number);
                    self.last_was_exit = kind == Call::Exit;
                    if self.is_inserted(module, call.pc.wrapping_sub(1)) {
                        self.own_call = Some((kind == Call::Map).then_some(call.arguments[1]));
                        continue;
                    }
                    // What is not looked into may call back.
                    if self.skipping.is_none() || call.opens == Opens::Module {
                        return Ok(Item::System(call));
                    }
                }
                Record::Result(number, result) => {
                    if let Some(length) = self.own_call.take() {
                        if let Some(length) = length {
                            self.own.push((result, result.saturating_add(length)));
                        }
                        continue;
                    }
                    if self.skipping.is_none() {
                        return Ok(Item::Result(number, result));
                    }
                    if self.machine.system(number) == Call::Break {
                        self.heap_end = Some(result);
                    }
                }
                Record::Stack(sp) => self.sp = sp,
                Record::Highest(sp) => self.highest = self.highest.max(sp),
                Record::Thread => {
                    self.threads = true;
                    return Ok(Item::Thread);
                }
                Record::End => return Ok(Item::End(true)),
            }
        }
    }

    fn event(&mut self, module: &Module, event: Box<Event>) -> Option<Box<Event>> {
        let led_into_routine = !self.is_inserted(module, event.last);
        if led_into_routine || self.sp == 0 {
            self.sp = event.registers[self.machine.sp()];
        }
        if !self.is_inserted(module, event.to)
            && let Some(call) = self.calling.take()
        {
            // What was called goes on in the program: so it was the program's call.
            self.in_stub = Some(call.clone());
            self.ready.push_back(Item::Event(call));
            self.ready.append(&mut self.held);
        }
        let event = match (
            self.is_inserted(module, event.last),
            self.is_inserted(module, event.to),
        ) {
            (false, false) => event,
            // Where nothing moved this is the function: a counter in front of its first instructions.
            (false, true) if module.functions.is_empty() => {
                self.in_stub = Some(event.clone());
                event
            }
            (false, true) => {
                self.pending = Some(event);
                return None;
            }
            // A stub may call what the replaced instructions have called, and that has a stub as well; or a routine.
            (true, true) => {
                let back = |call: &Event| event.kind == Kind::Return && event.to == call.end;
                if self.calling.as_deref().is_some_and(back) {
                    self.calling = None;
                    self.ready.append(&mut self.held);
                } else if event.kind == Kind::Call
                    && module.functions.is_empty()
                    && self.calling.is_none()
                {
                    self.calling = Some(event);
                }
                return None;
            }
            // Of instructions that the jump at the entry has replaced: a function may be that short.
            (true, false)
                if self.in_stub.is_some() && matches!(event.kind, Kind::Return | Kind::Call) =>
            {
                self.in_stub = None;
                event
            }
            (true, false) if self.in_stub.is_some() => {
                // Only now it is known which function the stub is of.
                let led = self.in_stub.take();
                let led = led.filter(|led| led.kind != Kind::Return && self.is_skipped(event.to));
                if let (Some(led), None) = (led, &self.skipping) {
                    self.skipping = Some((led.registers[self.machine.sp()], led));
                }
                return None;
            }
            (true, false) => match self.pending.take() {
                // The routine came back to who called it.
                Some(call) if event.kind == Kind::Return && event.to == call.end => return None,
                Some(call) => Box::new(Event {
                    kind: call.kind,
                    last: call.last,
                    end: call.end,
                    via: call.to,
                    ..*event
                }),
                // A jump to a function that is not looked into, by way of its stub: the jump itself is no event.
                None if event.kind == Kind::Other
                    && module.functions.is_empty()
                    && self.skipping.is_none()
                    && self.is_skipped(event.to) =>
                {
                    let to = self.entered_behind(module, event.to);
                    Box::new(Event { to, ..*event })
                }
                // A check that found nothing to do.
                None if event.kind == Kind::Other => return None,
                None => event,
            },
        };
        let event = self.through_linkage(module, event)?;
        if self.is_entry_jump(module, &event) {
            return None;
        }
        let sp = event.registers[self.machine.sp()];
        match &self.skipping {
            None if event.kind != Kind::Return && self.is_skipped(event.to) => {
                self.skipping = Some((sp, event.clone()));
                // What it is called with is compared.
                Some(Box::new(Event {
                    skipped: true,
                    ..*event
                }))
            }
            None => Some(event),
            Some((entered, call)) => {
                // On AArch64 a return leaves the stack pointer alone; where to is in x30, also after a jump
                // to the function.
                let expected = match self.machine {
                    Machine::X86 => call.end,
                    Machine::Aarch64 => call.registers[30],
                };
                let back = event.kind == Kind::Return && event.to == expected && sp >= *entered;
                let above = sp > *entered && !self.is_skipped(event.to);
                if !back && !above {
                    return None;
                }
                self.skipping = None;
                Some(Box::new(Event {
                    unwound: true,
                    ..*event
                }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::places::tests::module;
    use super::*;

    fn event(kind: u64, last: u64, to: u64) -> Vec<u64> {
        let mut words = vec![3 | 19 << 8 | kind << 32, last, last + 5, to];
        words.extend([0; 16]);
        words
    }

    fn items(records: &[Vec<u64>]) -> Vec<Item> {
        items_of(&module(true), records)
    }

    fn items_of(module: &Module, records: &[Vec<u64>]) -> Vec<Item> {
        let bytes: Vec<u8> = records
            .concat()
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        let mut side = Side::new(&bytes[..], true, Machine::X86, module);
        let mut items = Vec::new();
        loop {
            let item = side.take(module).unwrap();
            if matches!(item, Item::End(_)) {
                return items;
            }
            items.push(item);
        }
    }

    const MODULE: [u64; 2] = [2 | 1 << 8, 0x1000];

    #[test]
    fn a_call_by_way_of_a_recorder_is_a_call() {
        let items = items(&[
            MODULE.to_vec(),
            event(1, 0x3010, 0x3200),
            event(1, 0x3210, 0x3220),
            event(2, 0x3230, 0x3215),
            event(3, 0x3218, 0x1100),
        ]);
        let [Item::Event(event)] = &items[..] else {
            panic!("{items:?}")
        };
        assert_eq!(
            (event.kind, event.last, event.end, event.to),
            (Kind::Call, 0x3010, 0x3015, 0x1100)
        );
    }

    #[test]
    fn what_is_left_out_is_left_out_behind_a_stub_too() {
        let mut module = module(true);
        module.functions.clear();
        module.skipped.push((0x1100, 0x1200, None));
        let items = items_of(
            &module,
            &[
                MODULE.to_vec(),
                event(1, 0x1010, 0x3200),
                event(3, 0x3210, 0x1100),
                event(1, 0x1150, 0x1010),
                event(2, 0x1020, 0x1155),
                event(2, 0x11f0, 0x1015),
            ],
        );
        let [Item::Event(call), Item::Event(back)] = &items[..] else {
            panic!("{items:?}")
        };
        assert_eq!((call.to, back.to, back.unwound), (0x3200, 0x1015, true));
    }

    /// A jump to a stub within the module is no event, so that what is left out is entered from the stub.
    #[test]
    fn what_is_left_out_is_left_out_where_a_jump_goes_to_its_stub() {
        let mut module = module(true);
        module.functions.clear();
        module.skipped.push((0x1100, 0x1200, None));
        let mut called = event(1, 0x1008, 0x1010);
        // The stack pointer when the function is entered that ends in the jump.
        called[4 + 4] = 0x7000;
        // Behind the first instructions if the stub has done these.
        for (to, entry) in [(0x1100, 0x1100), (0x1104, 0x1100), (0x1180, 0x1180)] {
            let items = items_of(
                &module,
                &[
                    MODULE.to_vec(),
                    called.clone(),
                    event(0, 0x3210, to),
                    event(1, 0x1150, 0x1010),
                    event(2, 0x1020, 0x1155),
                ],
            );
            let [Item::Event(call), Item::Event(entered)] = &items[..] else {
                panic!("{items:?}")
            };
            assert_eq!(
                (call.to, entered.to, entered.skipped),
                (0x1010, entry, true)
            );
        }
    }

    /// Passes let calls go where a stub of the procedure linkage table goes.
    #[test]
    fn a_call_by_way_of_the_linkage_table_is_a_call() {
        let mut module = module(false);
        module.old.sections[0].name = ".plt".to_owned();
        let load = |pc, address| vec![9 | 3 << 8 | (8 | 512) << 32, pc, address, 1];
        let calls = [
            vec![
                event(1, 0x3010, 0x1100),
                load(0x1100, 0x2000),
                event(3, 0x1100, 0x9000),
            ],
            vec![event(1, 0x3010, 0x9000)],
        ];
        module.old.sections[1].name = ".got.plt".to_owned();
        for mut call in calls {
            call.insert(0, MODULE.to_vec());
            call.insert(1, load(0x3010, 0x2008));
            let items = items_of(&module, &call);
            let [Item::Event(event)] = &items[..] else {
                panic!("{items:?}")
            };
            assert_eq!(
                (event.kind, event.last, event.end, event.to),
                (Kind::Call, 0x3010, 0x3015, 0x9000)
            );
        }
    }

    /// Where the input's call does not reach, and the output's does.
    #[test]
    fn a_call_by_way_of_a_veneer_of_either_linker_is_a_call() {
        for (name, is_veneer) in [
            ("__f_veneer", true),
            ("__AArch64ADRPThunk_f", true),
            ("__AArch64AbsLongThunk_f", true),
            ("ADRPThunk", false),
        ] {
            let mut module = module(false);
            module.old.functions[1].2 = name.to_owned();
            let calls = [
                MODULE.to_vec(),
                event(1, 0x3010, 0x1100),
                event(3, 0x1108, 0x9000),
            ];
            let events: Vec<_> = items_of(&module, &calls)
                .into_iter()
                .map(|item| match item {
                    Item::Event(event) => (event.kind, event.last, event.to),
                    other => panic!("{other:?}"),
                })
                .collect();
            let expected = if is_veneer {
                vec![(Kind::Call, 0x3010, 0x9000)]
            } else {
                vec![(Kind::Call, 0x3010, 0x1100), (Kind::Jump, 0x1108, 0x9000)]
            };
            assert_eq!(events, expected, "{name}");
        }
    }

    /// Where new code is far away.
    #[test]
    fn a_jump_at_an_old_entry_is_no_event() {
        let far = items(&[
            MODULE.to_vec(),
            event(1, 0x1150, 0x1000),
            event(3, 0x1008, 0x3000),
        ]);
        let [Item::Event(call)] = &far[..] else {
            panic!("{far:?}")
        };
        assert_eq!((call.kind, call.to), (Kind::Call, 0x1000));
        let other = items(&[MODULE.to_vec(), event(3, 0x1040, 0x3000)]);
        assert_eq!(other.len(), 1);
    }

    #[test]
    fn a_routine_that_comes_back_leaves_its_writes_alone() {
        let write = vec![4 | 3 << 8 | 8 << 32, 0x3204, 0x4000, 1];
        let call = vec![5 | 8 << 8 | 9 << 32, 0x3208, 0, 0x1000, 0, 0, 0, 0, 0];
        let result = vec![6 | 1 << 8 | 9 << 32, 0x7000];
        let items = items(&[
            MODULE.to_vec(),
            event(1, 0x3010, 0x3200),
            write,
            call,
            result,
            event(2, 0x3210, 0x3015),
        ]);
        assert!(matches!(items[..], [Item::Routine(..)]), "{items:?}");
    }

    /// Where nothing moved: the jump at an entry has replaced a call.
    #[test]
    fn a_stub_may_call_a_function_by_its_stub() {
        let mut module = module(true);
        module.functions.clear();
        let write = || vec![4 | 3 << 8 | 8 << 32, 0x3254, 0x4000, 1];
        let call = |then: Vec<u64>| {
            let calls = [MODULE.to_vec(), event(1, 0x3208, 0x3250), write(), then];
            items_of(&module, &calls)
        };
        // What was called goes on behind its entry.
        let items = call(event(0, 0x3258, 0x1105));
        assert!(
            matches!(&items[..], [Item::Event(call), Item::Routine(..)] if call.to == 0x3250),
            "{items:?}"
        );
        // A routine comes back.
        let items = call(event(2, 0x3258, 0x320d));
        assert!(matches!(items[..], [Item::Routine(..)]), "{items:?}");
    }

    /// What is not looked into may call the program back, which writes to its data.
    #[test]
    fn only_stack_is_garbage_behind_what_is_not_looked_into() {
        let mut module = module(false);
        module.skipped.push((0x1100, 0x1200, None));
        let mut called = event(1, 0x1008, 0x1100);
        called[4 + 4] = 0x7000_0000;
        let write = |address| vec![4 | 3 << 8 | 8 << 32, 0x1110, address, 1];
        let left = |low: u64| vec![11 | 2 << 8, low, 0x7000_0000];
        let records = [
            MODULE.to_vec(),
            called,
            write(0x6fff_ff00),
            write(0x2010),
            left(0x6fff_fe00),
            left(0x10),
        ]
        .concat();
        let bytes: Vec<u8> = records.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut side = Side::new(&bytes[..], true, Machine::X86, &module);
        while !matches!(side.take(&module).unwrap(), Item::End(_)) {}
        let expected = [
            (0x6fff_ff00, 0x6fff_ff08),
            (0x6fff_fe00, 0x7000_0000),
            (0x7000_0000 - STACK, 0x7000_0000),
        ];
        assert_eq!(side.garbage, expected);
    }

    /// The table of a shared library is not the one that the process is given.
    #[test]
    fn headers_of_the_module_are_of_no_interest() {
        let mut module = module(false);
        module.new.table = (0x1040, 0x70);
        let load = |address| vec![9 | 3 << 8 | 8 << 32, 0x3010, address, 1];
        let items = items_of(&module, &[MODULE.to_vec(), load(0x1048), load(0x10b0)]);
        assert!(
            matches!(items[..], [Item::Access(load)] if load.address == 0x10b0),
            "{items:?}"
        );
    }

    /// The handler of a signal that arrives within the module is entered by its stub: there is no event, and the
    /// stack may be another (`sigaltstack`).
    #[test]
    fn a_routine_that_a_signal_enters_has_the_stack_pointer_of_the_handler() {
        let mut call = event(1, 0x1150, 0x1000);
        call[4 + 4] = 0x7000;
        let write = vec![4 | 3 << 8 | 8 << 32, 0x3204, 0x9ff8, 1];
        let items = items(&[MODULE.to_vec(), call, vec![10 | 1 << 8, 0xa000], write]);
        assert!(
            matches!(items[..], [Item::Event(_), Item::Routine(write, 0xa000)] if write.address == 0x9ff8),
            "{items:?}"
        );
    }

    #[test]
    fn the_auxiliary_vector_is_behind_arguments_and_environment() {
        let start = Start::new(0, [0; 2], &[2, 10, 11, 0, 20, 0, 3, 0x40, 5, 13, 0, 0]);
        assert_eq!(start.auxiliary(3), Some(0x40));
        assert_eq!(start.auxiliary(5), Some(13));
        assert_eq!(start.auxiliary(7), None);
    }
}
