//! Loads and stores between two events: those that both runs make with different values, and those that the
//! output makes alone.

use std::collections::HashSet;
use std::io::Read;

use super::compare::{Comparison, Waiting};
use super::machine::Machine;
use super::places::Place;
use super::record::{Access, Event};
use super::regions::What;
use super::values::Class;

/// Inserted code uses less than so many bytes of stack.
const STACK: u64 = 1 << 16;

/// Whether the last store at a place, of those that differ, had this value in the first run.
pub(super) fn is_awaited(waiting: &[Waiting], write: &Access) -> bool {
    let same = |w: &&Waiting| w.new.address == write.address && w.new.size == write.size;
    let last = waiting.iter().rev().find(same);
    last.is_some_and(|w| !w.old.load && w.old.value == write.value)
}

/// What a stored word is if it is a pointer of glibc's allocator to the next free block: mixed with the number of the
/// page that it is in.
fn protected(store: &Access) -> u64 {
    store.value ^ store.address >> 12
}

impl<A: Read, B: Read> Comparison<A, B> {
    /// A store by a routine that was put in.
    pub(super) fn routine(&mut self, write: Access, sp: u64) {
        // It runs on the program's stack, wherever that is, below what the program has there.
        let is_below = (sp.saturating_sub(STACK)..sp.saturating_add(8)).contains(&write.address);
        let is_stack = matches!(
            self.values.regions.what(write.address, true),
            Some((What::Stack, _))
        );
        let class = if self.is_of_inserted(write.address) || is_below || is_stack {
            if !self.is_of_inserted(write.address) {
                self.scribbled.add(write.address, write.size);
            }
            Class::Routine
        } else {
            Class::Intruder
        };
        self.outcome
            .find(&self.values, class, (0, write.value), || {
                format!("memory {:#x}", write.address)
            });
    }

    /// A store that the input does not make, by code of a function. What inserted code loads is its own affair.
    pub(super) fn extra(&mut self, write: Access) {
        if write.load {
            return;
        }
        if self.is_of_inserted(write.address) {
            self.outcome
                .find(&self.values, Class::Counter, (0, write.value), || {
                    format!("memory {:#x}", write.address)
                });
            return;
        }
        // The stub had saved a register there that had the same value.
        let same = |by: &Access| {
            (by.address, by.size, by.value) == (write.address, write.size, write.value)
        };
        if let Some(at) = self.by_stub.iter().position(same) {
            self.by_stub.remove(at);
            return;
        }
        // It may be what the input stored, where inserted code had used the same memory before.
        let same = |w: &Waiting| w.new.address == write.address && w.new.size == write.size;
        match self.waiting.iter().rposition(same) {
            Some(at) => {
                let scratch = std::mem::replace(&mut self.waiting[at].new, write);
                if self.waiting[at].old.value == write.value {
                    self.waiting.remove(at);
                }
                self.extra.push(scratch);
            }
            None => self.extra.push(write),
        }
    }

    /// Whether memory belongs to what was put in.
    pub(super) fn is_of_inserted(&self, address: u64) -> bool {
        let Some(base) = self.new.base else {
            return false;
        };
        let link = address.wrapping_sub(base);
        self.new.is_own(address) || self.values.module.place(link) == Place::Added
    }

    /// Whether an instruction is among the first of its function.
    fn is_prologue(&self, pc: u64) -> bool {
        const LONG: u64 = 0x80;
        let link = pc.wrapping_sub(self.old.base.unwrap_or(0));
        let function = self.values.module.old.function(link);
        function.is_some_and(|(start, _)| link - start < LONG)
    }

    /// Whether code is of a function of C's library that looks for the end of a string.
    fn is_of_strings(&self, pc: u64) -> bool {
        let link = pc.wrapping_sub(self.old.base.unwrap_or(0));
        let image = &self.values.module.old;
        image.is_covered(link) && image.name(link).trim_start_matches('_').starts_with("str")
    }

    /// Whether a stored value depends on what other threads do: on how often they have changed a counter, or on what
    /// memory they have asked for.
    fn is_of_threads(&self, old: &Access, new: &Access) -> bool {
        let pair = (old.value, new.value);
        let is_counter = || {
            let values = &self.values;
            let (a, b) = pair;
            old.atomic && !values.is_of_module(a, false) && !values.is_of_module(b, true)
        };
        let is_allocated = |value, second| {
            let what = self.values.regions.what(value, second);
            matches!(what, Some((What::Heap | What::Mapping(_), _)))
        };
        self.outcome.threads
            && !old.load
            && (is_counter()
                || self.of_threads.contains(&pair)
                || is_allocated(pair.0, false) && is_allocated(pair.1, true)
                || is_allocated(protected(old), false) && is_allocated(protected(new), true))
    }

    /// Whether a function stores at its beginning, to have the stack pointer aligned, what a scratch register held
    /// when it was entered and what was judged then.
    fn is_pushed_scratch(&self, old: &Access, new: u64) -> bool {
        let pair = Some((old.value, new));
        let is_it = |i: usize| self.machine.is_scratch(i) && self.shown[i] == pair;
        !old.load && self.is_prologue(old.pc) && (0..self.machine.registers()).any(is_it)
    }

    /// Whether bytes that differ are those that were stored there and are explained: a copy, as of padding, with more
    /// or fewer bytes at a time.
    fn is_part(&self, old: &Access, new: &Access) -> bool {
        (0..u64::from(new.size.min(8))).all(|i| {
            let byte = |value: u64, number: u64| (value >> (8 * number)) as u8;
            let (a, b) = (byte(old.value, i), byte(new.value, i));
            a == b || self.stored.are(new.address.wrapping_add(i), a, b)
        })
    }

    /// Whether a stored value is the lowest bytes of a register that held a part of what is explained at the last
    /// event.
    fn is_part_of_register(&self, old: &Access, new: &Access) -> bool {
        let bits = 64_u32.saturating_sub(8 * u32::from(new.size));
        let is_it = |held: u64, value: u64| (held ^ value).checked_shl(bits) == Some(0);
        let mut registers = self.shown.iter().zip(&self.of_parts);
        registers.any(|(shown, of_part)| {
            *of_part && shown.is_some_and(|(a, b)| is_it(a, old.value) && is_it(b, new.value))
        })
    }

    /// Judges what was written since the last event.
    pub(super) fn settle(&mut self, event: Option<&Event>) {
        // Parts of words that have been loaded.
        let mut parts: HashSet<(u64, u64, u8)> = HashSet::new();
        self.loaded_parts.clear();
        for waiting in std::mem::take(&mut self.waiting) {
            let Waiting { old, new, left, .. } = waiting;
            let part = (old.value, new.value, new.size);
            let is_part = old.load && self.is_part(&old, &new);
            if is_part {
                parts.insert(part);
                self.loaded_parts.insert((old.value, new.value));
            }
            let mut class = self.values.explain(old.value, new.value, old.size);
            let place = (old.address, new.address);
            if class == Class::Unknown
                && old.load
                && self
                    .values
                    .are_constants(place, old.value, new.value, old.size)
            {
                class = Class::Constants;
            }
            if class == Class::Unknown && old.load && self.values.is_file_header(old.address) {
                class = Class::Headers;
            }
            // A futex is there, or its value has changed; a channel has what one thread sent first, or another.
            if class == Class::Unknown
                && waiting.of_others
                && !self.values.is_of_module(old.value, false)
                && !self.values.is_of_module(new.value, true)
            {
                class = Class::Threads;
            }
            let is_known = class.is_explained();
            let is_scribbled = old.load && self.scribbled.has(new.address, new.size);
            // What others have written is not compared, nor what is called by what they have written.
            if old.load && self.outcome.threads && !is_scribbled {
                continue;
            }
            let is_garbage = is_scribbled || self.garbage.contains(&(old.value, new.value));
            if !is_known && is_garbage || class == Class::Unknown && left {
                self.garbage.insert((old.value, new.value));
                // Who writes a part of a register that it is in leaves the rest.
                self.values.left(old.value, new.value);
                class = Class::Uninitialised;
            }
            if class == Class::Unknown && waiting.behind_string && self.is_of_strings(old.pc) {
                class = Class::BehindString;
            }
            // A function with variable arguments stores all registers that could hold some.
            let saves = || match self.machine {
                Machine::X86 => {
                    let link = old.pc.wrapping_sub(self.old.base.unwrap_or(0));
                    self.values.module.old.saves_arguments(link)
                }
                Machine::Aarch64 => old.vector && self.is_prologue(old.pc),
            };
            if class == Class::Unknown && !old.load && saves() {
                class = Class::LeftOutside;
            }
            if class == Class::Unknown && self.is_of_threads(&old, &new) {
                class = Class::Threads;
            }
            let pushed = (new.address, old.value, new.value);
            if class == Class::Unknown && self.is_pushed_scratch(&old, new.value) {
                self.pushed.insert(pushed);
                class = Class::LeftOutside;
            }
            // At its end it takes that off again.
            if class == Class::Unknown && old.load && self.pushed.contains(&pushed) {
                class = Class::LeftOutside;
            }
            if class == Class::Unknown && (is_part || !old.load && parts.contains(&part)) {
                class = Class::Remains;
            }
            // The lowest bytes of a register that holds such a part.
            if class == Class::Unknown && !old.load && self.is_part_of_register(&old, &new) {
                class = Class::Remains;
            }
            if class.is_explained() && !old.load {
                self.stored.put(new.address, new.size, old.value, new.value);
            }
            self.outcome
                .find(&self.values, class, (old.value, new.value), || {
                    let name = |address| self.values.describe(address, false);
                    format!(
                        "{} of {} bytes at {:#x} ({}) by {}",
                        if old.load { "load" } else { "store" },
                        old.size,
                        old.address,
                        name(old.address),
                        name(old.pc)
                    )
                });
        }
        self.by_stub.clear();
        let sp = event.map_or(self.sp, |event| event.registers[self.machine.sp()]);
        // A function may have given up its frame in between, and gone on to another by a direct jump.
        let between = std::mem::take(&mut self.new.highest);
        let highest = match self.sp.max(sp) {
            known if between.saturating_sub(known) < STACK => known.max(between),
            known => known,
        };
        for write in std::mem::take(&mut self.extra) {
            self.scribbled.add(write.address, write.size);
            let is_stack = matches!(
                self.values.regions.what(write.address, true),
                Some((What::Stack, _))
            );
            // A coroutine or a signal handler has its stack elsewhere.
            let is_below = (sp.saturating_sub(STACK)..highest).contains(&write.address);
            let class = if is_stack && write.address < highest || is_below {
                Class::BelowStack
            } else {
                Class::Intruder
            };
            self.outcome
                .find(&self.values, class, (0, write.value), || {
                    let name = self.values.describe(write.pc, true);
                    format!("{} bytes at {:#x} by {name}", write.size, write.address)
                });
        }
    }
}
