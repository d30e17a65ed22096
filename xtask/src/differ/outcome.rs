//! What a comparison has found, collected and put into words.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::machine::Machine;
use super::side::Item;
use super::values::{Class, Values};

/// What is found of a class.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// How many pairs of values.
    pub count: u64,
    /// The first of them, in words; of each pair of values one.
    pub examples: Vec<String>,
    seen: Vec<(u64, u64)>,
}

/// The result.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Events compared.
    pub events: u64,
    /// Stores compared.
    pub stores: u64,
    /// Loads compared.
    pub loads: u64,
    /// System calls compared.
    pub systems: u64,
    /// Differences by class.
    pub classes: BTreeMap<Class, Found>,
    /// Where the runs part, with both contexts.
    pub parted: Option<String>,
    /// There were more threads than one.
    pub threads: bool,
    /// The comparison was ended where the program opens its own file.
    pub opens_itself: bool,
    /// The comparison was ended by the limit.
    pub limited: bool,
    /// Examples of each class that are kept.
    pub wanted: usize,
    /// A difference that is not explained was found while there was one thread.
    pub bad_alone: bool,
    /// Those that are not explained since the last event that both runs had.
    pub since_event: Vec<Class>,
}

impl Outcome {
    /// Whether every difference is one that is meant to be.
    pub fn is_good(&self) -> bool {
        self.events > 0 && self.parted.is_none() && self.is_explained()
    }

    /// Whether all values that differ are meant to.
    pub fn is_explained(&self) -> bool {
        self.classes.keys().all(|class| class.is_explained())
    }

    /// Whether the runs part as the order of threads decides what they do, and every difference before is explained.
    pub fn parts_by_threads(&self) -> bool {
        self.threads && self.parted.is_some() && !self.bad_alone && self.is_explained()
    }

    /// Both runs had an event, and its registers are judged.
    pub fn agree(&mut self) {
        self.since_event.clear();
    }

    /// At the end: where a program with threads parts, each run has done its own since the last event that both had.
    /// What was found there is no difference between two things that are the same.
    pub fn forget_parting(&mut self) {
        if !self.threads || self.parted.is_none() {
            return;
        }
        for class in std::mem::take(&mut self.since_event) {
            if let Some(found) = self.classes.get_mut(&class) {
                found.count -= 1;
                found.examples.truncate(found.count as usize);
                if found.count == 0 {
                    self.classes.remove(&class);
                }
            }
        }
    }

    /// Counts a pair of values; `place` says where it was, if it becomes an example.
    pub fn find(
        &mut self,
        values: &Values,
        class: Class,
        pair: (u64, u64),
        place: impl FnOnce() -> String,
    ) {
        if !class.is_explained() {
            self.bad_alone |= !self.threads;
            self.since_event.push(class);
        }
        let wanted = self.wanted;
        let found = self.classes.entry(class).or_default();
        found.count += 1;
        if found.examples.len() >= wanted || found.seen.contains(&pair) {
            return;
        }
        found.seen.push(pair);
        let (a, b) = pair;
        let place = place();
        let only_one = matches!(
            class,
            Class::Counter | Class::Routine | Class::BelowStack | Class::Intruder
        );
        found.examples.push(if only_one {
            format!("{place}: {b:#x}")
        } else {
            format!(
                "{place}: {a:#x} ({}) is {b:#x} ({})",
                values.describe(a, false),
                values.describe(b, true)
            )
        });
    }

    /// In words, without how the programs ended.
    pub fn report(&self) -> String {
        let mut text = String::new();
        if self.events == 0 {
            text += "NOTHING WAS COMPARED: the module was not entered, or not from the folder of the run\n";
        }
        if self.threads {
            text += "the program has several threads: of those only the first one was compared, without loads and system calls. Where what it\n\
                     does depends on the others, the runs differ by themselves\n";
        }
        if self.limited {
            text += "ended by --limit\n";
        }
        if self.opens_itself {
            text += "compared up to where the program opens its own file: both runs have that under one name\n";
        }
        for (class, found) in &self.classes {
            let mark = match (class.is_explained(), class.is_visible()) {
                (false, _) => "BUG    ",
                (true, true) => "visible",
                (true, false) => "       ",
            };
            let _ = writeln!(text, "{:>12}  {mark}  {class}", found.count);
            for example in &found.examples {
                let _ = writeln!(text, "                 {example}");
            }
        }
        if let Some(parted) = &self.parted {
            let _ = writeln!(text, "THE RUNS PART: {parted}");
        }
        text
    }
}

/// What a run does next, in words.
pub fn describe(item: &Item, values: &Values, machine: Machine, second: bool) -> String {
    let name = |address| values.describe(address, second);
    match item {
        Item::Event(event) => {
            let mut text = format!(
                "{:?} from {} ({:#x}) to {} ({:#x})",
                event.kind,
                name(event.last),
                event.last,
                name(event.to),
                event.to
            );
            for i in 0..machine.registers() {
                let line = if i % 4 == 0 { "\n     " } else { "" };
                let _ = write!(
                    text,
                    "{line} {}={:#x}",
                    machine.register(i),
                    event.registers[i]
                );
            }
            text
        }
        Item::Access(access) | Item::Routine(access, _) => format!(
            "{} of {} bytes at {:#x} ({}) by {} ({:#x}): {:#x} ({})",
            if access.load { "load" } else { "store" },
            access.size,
            access.address,
            name(access.address),
            name(access.pc),
            access.pc,
            access.value,
            name(access.value)
        ),
        Item::System(call) => format!("system call {} {:x?}", call.number, call.arguments),
        Item::Result(number, result) => format!("result of system call {number}: {result:#x}"),
        Item::Thread => "a second thread".to_owned(),
        Item::End(true) => "the end".to_owned(),
        Item::End(false) => "killed".to_owned(),
    }
}
