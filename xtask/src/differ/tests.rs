//! The comparison on made-up streams, which needs no emulator, and the whole job on small programs, which does.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use postlink_elf::elf::Elf;
use postlink_elf::note::Note;

use super::compare::{Comparison, Limits};
use super::machine::Machine;
use super::outcome::Outcome;
use super::places::tests::module;
use super::places::{Module, Section, Size};
use super::values::Class;
use super::{Done, Options, differ, emulator};
use clap::Parser;

// ---- made-up streams ----

const BASE: u64 = 0x10_0000;
const STACK: u64 = 0x7000_0000;

/// Records of a run; addresses of the module are link-time addresses here.
#[derive(Default)]
struct Stream(Vec<u64>);

impl Stream {
    fn new() -> Stream {
        let mut stream = Stream::default();
        stream.record(1, 0, &[STACK, 1, 2, 1, 3, 0, 0, 0, 0]);
        stream.record(2, 0, &[BASE + 0x1000]);
        stream
    }

    fn record(&mut self, kind: u64, value: u64, words: &[u64]) -> &mut Stream {
        self.0.push(kind | (words.len() as u64) << 8 | value << 32);
        self.0.extend(words);
        self
    }

    /// Call, return or jump, with a value in rdi.
    fn event(&mut self, kind: u64, last: u64, to: u64, rdi: u64) -> &mut Stream {
        let mut words = vec![BASE + last, BASE + last + 5, BASE + to];
        let mut registers = [0; 16];
        (registers[4], registers[7]) = (STACK, rdi);
        words.extend(registers);
        self.record(3, kind, &words)
    }

    fn store(&mut self, pc: u64, address: u64, value: u64) -> &mut Stream {
        self.record(4, 8, &[BASE + pc, address, value])
    }

    fn load(&mut self, pc: u64, address: u64, value: u64) -> &mut Stream {
        self.record(9, 8, &[BASE + pc, address, value])
    }

    fn bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|word| word.to_le_bytes()).collect()
    }
}

fn compare(old: &Stream, new: &Stream, instrumented: bool) -> Outcome {
    compare_module(old, new, module(instrumented))
}

fn compare_module(old: &Stream, new: &Stream, module: Module) -> Outcome {
    let limits = Limits {
        events: u64::MAX,
        examples: 3,
    };
    let (old, new) = (old.bytes(), new.bytes());
    Comparison::new(&old[..], &new[..], module, Machine::X86, limits)
        .run()
        .unwrap()
}

const CALL: u64 = 1;
const RETURN: u64 = 2;
const JUMP: u64 = 3;
const OTHER: u64 = 4;

/// Both runs enter f.
fn begun() -> (Stream, Stream) {
    let (mut old, mut new) = (Stream::new(), Stream::new());
    old.event(OTHER, 0, 0x1000, 0);
    new.event(OTHER, 0, 0x3000, 0);
    (old, new)
}

#[test]
fn a_return_address_is_known_when_the_call_is_seen() {
    let (mut old, mut new) = begun();
    // The store is the call's own, and comes before the event.
    old.store(0x1010, STACK - 8, BASE + 0x1015)
        .event(CALL, 0x1010, 0x1100, 7)
        .event(RETURN, 0x1110, 0x1015, 7);
    new.store(0x3008, STACK - 8, BASE + 0x300d)
        .event(CALL, 0x3008, 0x1100, 7)
        .event(RETURN, 0x1110, 0x300d, 7);
    let outcome = compare(&old, &new, false);
    assert!(outcome.is_good(), "{outcome:?}");
    assert_eq!((outcome.events, outcome.stores), (3, 1));
    assert_eq!(outcome.classes[&Class::Return].count, 1);
}

#[test]
fn a_value_that_differs_is_not_explained() {
    let (mut old, mut new) = begun();
    old.store(0x1010, STACK - 64, 5)
        .event(CALL, 0x1014, 0x1100, 0);
    new.store(0x3010, STACK - 64, 6)
        .event(CALL, 0x3014, 0x1100, 0);
    let outcome = compare(&old, &new, false);
    assert_eq!(outcome.classes[&Class::Unknown].count, 1, "{outcome:?}");
    assert!(!outcome.is_good());
}

#[test]
fn a_pointer_to_the_new_entry_is_seen_in_a_register() {
    let (mut old, mut new) = begun();
    old.event(CALL, 0x1010, 0x1100, BASE + 0x1000);
    new.event(CALL, 0x3010, 0x1100, BASE + 0x3000);
    let outcome = compare(&old, &new, false);
    let class = Class::Entry {
        low_bits_kept: true,
    };
    assert_eq!(outcome.classes[&class].count, 1);
    assert!(outcome.is_good());
    let example = &outcome.classes[&class].examples[0];
    assert!(
        example.contains("rdi at Call to g") && example.contains("(f) is"),
        "{example}"
    );
}

#[test]
fn runs_that_call_different_functions_part() {
    let (mut old, mut new) = begun();
    old.event(CALL, 0x1010, 0x1100, 0);
    new.event(CALL, 0x3010, 0x1000, 0);
    let parted = compare(&old, &new, false).parted.unwrap();
    assert!(
        parted.contains("(new)") && parted.contains("to g"),
        "{parted}"
    );
}

#[test]
fn a_store_too_many_is_a_counter_below_the_stack_or_an_error() {
    let (mut old, mut new) = begun();
    old.store(0x1010, STACK - 64, 5)
        .event(CALL, 0x1014, 0x1100, 0);
    new.store(0x3010, BASE + 0x4000, 1)
        .store(0x3014, STACK - 64, 0x246)
        .store(0x3018, STACK - 64, 5)
        .event(CALL, 0x3020, 0x1100, 0);
    let outcome = compare(&old, &new, true);
    assert!(outcome.is_good(), "{outcome:?}");
    assert_eq!(outcome.classes[&Class::Counter].count, 1);
    assert_eq!(outcome.classes[&Class::BelowStack].count, 1);
    // Where nothing is counted, nothing may be stored.
    assert!(compare(&old, &new, false).parted.is_some());

    let (mut old, mut new) = begun();
    old.event(CALL, 0x1014, 0x1100, 0);
    new.store(0x3010, BASE + 0x2000, 1)
        .event(CALL, 0x3020, 0x1100, 0);
    let outcome = compare(&old, &new, true);
    assert_eq!(outcome.classes[&Class::Intruder].count, 1, "{outcome:?}");
}

#[test]
fn reading_code_where_it_moved_to_is_reported() {
    let (mut old, mut new) = begun();
    old.load(0x1010, BASE + 0x1000, 0x90)
        .event(CALL, 0x1014, 0x1100, 0);
    new.load(0x3010, BASE + 0x3000, 0x90)
        .event(CALL, 0x3014, 0x1100, 0);
    let outcome = compare(&old, &new, false);
    let same = Class::ReadsCode { same: true };
    assert_eq!(outcome.classes[&same].count, 1, "{outcome:?}");
    assert!(outcome.is_good());

    let (mut old, mut new) = begun();
    old.load(0x1010, BASE + 0x1000, 0x90)
        .event(CALL, 0x1014, 0x1100, 0);
    new.load(0x3010, BASE + 0x3000, 0x91)
        .event(CALL, 0x3014, 0x1100, 0);
    assert!(!compare(&old, &new, false).is_good());
}

/// Tables that are made anew are read where they are.
#[test]
fn a_load_from_a_section_that_was_moved_is_compared() {
    let loads = |value| {
        let (mut old, mut new) = begun();
        old.load(0x1008, BASE + 0x2010, 7)
            .event(CALL, 0x1010, 0x1100, 0);
        new.load(0x1008, BASE + 0x5030, value)
            .event(CALL, 0x1010, 0x1100, 0);
        let mut module = module(false);
        module.old.sections[1].name = ".eh_frame".to_owned();
        let mut moved = module.old.sections[1].clone();
        (moved.start, moved.end) = (0x5000, 0x5100);
        module.new.sections.push(moved);
        module.new.high = 0x5100;
        compare_module(&old, &new, module)
    };
    assert!(loads(7).is_good());
    assert!(!loads(8).is_good());
}

/// A check in front of a function calls a routine: the return address is where the function stores next.
#[test]
fn a_store_is_compared_with_the_one_that_comes_behind_what_inserted_code_stores() {
    let stores = |second: u64| {
        let (mut old, mut new) = begun();
        old.store(0x1100, STACK - 8, 5)
            .store(0x1104, STACK - 8, 7)
            .event(CALL, 0x1110, 0x1100, 0);
        new.store(0x3004, STACK - 8, BASE + 0x3009)
            .store(0x1100, STACK - 8, second)
            .store(0x1104, STACK - 8, 7)
            .event(CALL, 0x1110, 0x1100, 0);
        compare(&old, &new, true)
    };
    assert!(stores(5).is_good(), "{:?}", stores(5));
    assert!(!stores(6).is_good());
}

#[test]
fn the_program_is_compared_up_to_where_it_opens_its_own_file() {
    const OPEN: u64 = 257;
    let opens = |file: u64| {
        let (mut old, mut new) = begun();
        for (stream, value) in [(&mut old, 5), (&mut new, 6)] {
            stream
                .record(5, OPEN, &[BASE + 0x1108, 0, 0, 0, 0, 0, 0, file])
                .record(6, OPEN, &[3])
                .event(CALL, 0x1110, 0x1100, value);
        }
        compare(&old, &new, false)
    };
    let own = opens(2);
    assert!(own.is_good() && own.opens_itself, "{own:?}");
    assert!(!opens(0).is_good());
}

/// A function stores a register to have the stack pointer aligned.
#[test]
fn a_scratch_register_is_stored_as_code_outside_has_left_it() {
    let stores = |pc, stored| {
        let (mut old, mut new) = begun();
        for (stream, left) in [(&mut old, 5), (&mut new, 6)] {
            // From outside, so that what is left there is explained.
            stream.event(OTHER, 0x9_0000, 0x1100, left);
        }
        old.store(pc, STACK - 8, stored)
            .event(CALL, 0x1180, 0x1100, 0)
            .load(0x1190, STACK - 8, stored)
            .event(RETURN, 0x1190, 0x9_0000, 0);
        new.store(pc, STACK - 8, stored + 1)
            .event(CALL, 0x1180, 0x1100, 0)
            .load(0x1190, STACK - 8, stored + 1)
            .event(RETURN, 0x1190, 0x9_0000, 0);
        compare(&old, &new, false)
    };
    let good = stores(0x1100, 5);
    assert!(good.is_good(), "{good:?}");
    // Not what was there; not at its beginning.
    assert!(!stores(0x1100, 8).is_good());
    assert!(!stores(0x1190, 5).is_good());
}

#[test]
fn a_counter_of_threads_depends_on_the_others() {
    let counts = |flags: u64, threads: bool| {
        let (mut old, mut new) = begun();
        for (stream, value) in [(&mut old, 5), (&mut new, 6)] {
            if threads {
                stream.record(7, 0, &[]);
            }
            stream
                .record(4, 8 | flags, &[BASE + 0x1108, BASE + 0x2010, value])
                .event(CALL, 0x1110, 0x1100, 0);
        }
        compare(&old, &new, false).is_good()
    };
    const ATOMIC: u64 = 1024;
    assert!(counts(ATOMIC, true));
    assert!(!counts(ATOMIC, false) && !counts(0, true));
}

/// Where threads part, the two runs do different things already, and their last stores are none of each other.
#[test]
fn what_each_run_stores_where_threads_part_is_not_compared() {
    let parts = |threads: bool, before: u64| {
        let (mut old, mut new) = begun();
        for (stream, value) in [(&mut old, 5), (&mut new, before)] {
            if threads {
                stream.record(7, 0, &[]);
            }
            stream
                .store(0x1104, BASE + 0x2010, value)
                .event(CALL, 0x1108, 0x1100, 0);
        }
        old.event(CALL, 0x1110, 0x1000, 0);
        new.store(0x110c, BASE + 0x2018, 7)
            .event(CALL, 0x1114, 0x1100, 0);
        compare(&old, &new, true)
    };
    let parted = parts(true, 5);
    assert!(parted.parts_by_threads(), "{parted:?}");
    // What was stored by both before counts, and so does everything if there is one thread.
    assert!(!parts(true, 6).parts_by_threads());
    let alone = parts(false, 5);
    assert!(alone.classes.contains_key(&Class::Intruder), "{alone:?}");
    assert!(!alone.parts_by_threads() && !alone.is_good());
}

/// One finds the other still running and waits for it, by another call of the same function.
#[test]
fn threads_part_where_the_same_function_is_called_from_another_place() {
    let calls = |threads: bool| {
        let (mut old, mut new) = begun();
        for (stream, at, last) in [(&mut old, 0x1108, 0x1120), (&mut new, 0x1108, 0x1140)] {
            if threads {
                stream.record(7, 0, &[]);
            }
            stream
                .event(CALL, at, 0x1100, 0)
                .event(CALL, last, 0x1100, 0);
        }
        // The same place of the output is after another call then.
        old.event(CALL, 0x1140, 0x1100, 0);
        new.event(CALL, 0x1140, 0x1100, 0);
        compare(&old, &new, false)
    };
    let parted = calls(true);
    assert!(parted.parts_by_threads(), "{parted:?}");
    let alone = calls(false);
    assert!(alone.classes.contains_key(&Class::Contradiction) && !alone.parts_by_threads());
}

/// A system call says that another thread was faster; a function stores the register with that.
#[test]
fn a_number_of_threads_is_stored() {
    let stores = |threads: bool, stored: u64| {
        let (mut old, mut new) = begun();
        for (stream, number, stored) in [(&mut old, 0, 0), (&mut new, 0xb, stored)] {
            if threads {
                stream.record(7, 0, &[]);
            }
            stream
                .event(CALL, 0x1108, 0x1100, number)
                .store(0x1110, STACK - 0x40, stored)
                .event(CALL, 0x1118, 0x1100, 0);
        }
        compare(&old, &new, false).is_good()
    };
    assert!(stores(true, 0xb));
    assert!(!stores(false, 0xb) && !stores(true, 0xc));
}

/// Whether another thread has ended when it is waited for, the system call says; its function stores that before it
/// calls another.
#[test]
fn what_a_system_call_gave_is_stored_in_a_program_with_threads() {
    const FUTEX: u32 = 202;
    const AGAIN: u64 = -11_i64 as u64;
    let stores = |threads: bool, call: u32, size: u64, stored: u64| {
        let (mut old, mut new) = begun();
        for (stream, call, result, stored) in
            [(&mut old, FUTEX, 0, 0), (&mut new, call, AGAIN, stored)]
        {
            if threads {
                stream.record(7, 0, &[]);
            }
            // A call earlier gives something else.
            for (call, result) in [(FUTEX, 7), (call, result)] {
                stream
                    .record(5, call.into(), &[BASE + 0x1108, 0, 0, 0, 0, 0, 0, 0])
                    .record(6, call.into(), &[result]);
            }
            stream
                .record(4, size, &[BASE + 0x1110, STACK - 0x40, stored])
                .event(CALL, 0x1118, 0x1100, 0);
        }
        compare(&old, &new, false).is_good()
    };
    let low = AGAIN & 0xffff_ffff;
    assert!(stores(true, FUTEX, 8, AGAIN) && stores(true, FUTEX, 4, low));
    // One thread; another call; not its result; not all of it.
    assert!(!stores(false, FUTEX, 8, AGAIN));
    assert!(!stores(true, FUTEX + 1, 8, AGAIN));
    assert!(!stores(true, FUTEX, 8, AGAIN - 1) && !stores(true, FUTEX, 8, low));
}

/// In what order threads ask for memory is their own affair.
#[test]
fn memory_of_threads_may_be_elsewhere() {
    let stores = |second: u64, threads: bool| {
        let (mut old, mut new) = begun();
        for (stream, value) in [(&mut old, 0x4000_0100), (&mut new, second)] {
            // brk, twice: where the heap is, which may also grow when there are threads.
            stream
                .record(5, 12, &[BASE + 0x1108, 0, 0, 0, 0, 0, 0, 0])
                .record(6, 12, &[0x4000_0000]);
            if threads {
                stream.record(7, 0, &[]);
            }
            stream
                .record(5, 12, &[BASE + 0x1108, 0, 0, 0, 0, 0, 0, 0])
                .record(6, 12, &[0x4000_2000])
                .store(0x1108, BASE + 0x2010, value)
                .event(CALL, 0x1110, 0x1100, 0);
        }
        compare(&old, &new, false).is_good()
    };
    assert!(stores(0x4000_0200, true));
    assert!(!stores(0x4000_0200, false) && !stores(0x5000_0200, true));
}

/// What comes from a channel first depends on the threads that send: it is loaded from memory that they have written.
#[test]
fn what_other_threads_have_sent_is_stored() {
    let place = STACK - 0x40;
    let stores = |threads: bool, from: u64, between: bool, loaded: [u64; 2], stored: u64| {
        let (mut old, mut new) = begun();
        for (stream, i, stored) in [(&mut old, 0, loaded[0]), (&mut new, 1, stored)] {
            if threads {
                stream.record(7, 0, &[]);
            }
            stream.load(0x1108, from, loaded[i]);
            if between {
                stream.event(CALL, 0x110c, 0x1100, 0);
            }
            stream
                .store(0x1110, place, stored)
                .event(CALL, 0x1118, 0x1100, 0);
        }
        compare(&old, &new, false).is_good()
    };
    const HEAP: u64 = 0x4000_0000;
    assert!(stores(true, HEAP, false, [2, 1], 1));
    // One thread; from the stack; before the last event; not what was loaded; an address of the module.
    assert!(!stores(false, HEAP, false, [2, 1], 1));
    assert!(!stores(true, place - 8, false, [2, 1], 1));
    assert!(!stores(true, HEAP, true, [2, 1], 1));
    assert!(!stores(true, HEAP, false, [2, 1], 3));
    let code = [BASE + 0x1010, BASE + 0x1020];
    assert!(!stores(true, HEAP, false, code, code[1]));
}

/// glibc's allocator mixes pointers to free blocks with the number of the page where it stores them.
#[test]
fn protected_pointers_to_memory_of_threads_may_be_others() {
    const HEAP: u64 = 0x4000_0000;
    const AT: u64 = HEAP + 0x610;
    let stores = |threads: bool, page: u64, block: u64| {
        let (mut old, mut new) = begun();
        for (stream, page, block) in [(&mut old, AT >> 12, 0x100), (&mut new, page, block)] {
            for end in [HEAP, HEAP + 0x2000] {
                stream
                    .record(5, 12, &[BASE + 0x1108, 0, 0, 0, 0, 0, 0, 0])
                    .record(6, 12, &[end]);
            }
            if threads {
                stream.record(7, 0, &[]);
            }
            stream
                .store(0x1108, AT, (HEAP + block) ^ page)
                .event(CALL, 0x1110, 0x1100, 0);
        }
        compare(&old, &new, false).is_good()
    };
    assert!(stores(true, AT >> 12, 0x200));
    // One thread; not a block; mixed with another number.
    assert!(!stores(false, AT >> 12, 0x200) && !stores(true, AT >> 12, 0x2000));
    assert!(!stores(true, AT >> 12 ^ 1 << 20, 0x200));
}

/// Loads are not compared where there are threads, but those from the stack say what is garbage: `std::rt::cleanup`
/// stores a structure with seven bytes of it.
#[test]
fn what_inserted_code_left_on_the_stack_is_stored_in_a_program_with_threads() {
    let place = STACK - 0x40;
    let stores = |inserted: u64, loaded: [u64; 2], stored: [u64; 2]| {
        let (mut old, mut new) = begun();
        old.record(7, 0, &[]);
        new.record(7, 0, &[])
            .store(0x3004, inserted, 0)
            .event(CALL, 0x3008, 0x1100, 0);
        old.event(CALL, 0x1008, 0x1100, 0);
        for (stream, i) in [(&mut old, 0), (&mut new, 1)] {
            stream
                .load(0x1108, place, loaded[i])
                .store(0x110c, BASE + 0x2010, stored[i])
                .event(CALL, 0x1110, 0x1100, 0);
        }
        compare(&old, &new, true)
    };
    let (garbage, other) = ([0x7700, 0], [0x7700, 8]);
    let outcome = stores(place, garbage, garbage);
    assert!(outcome.is_good(), "{outcome:?}");
    assert_eq!(outcome.classes[&Class::Uninitialised].count, 2);
    // Inserted code used other memory; another value is stored than was loaded.
    assert!(!stores(place - 8, garbage, garbage).is_good());
    assert!(!stores(place, garbage, other).is_good());
}

/// A function that code outside calls goes through the program headers, and leaves what it has calculated.
#[test]
fn what_was_calculated_of_headers_is_left_in_scratch_registers() {
    let comes_back = |headers: bool, to: u64| {
        let (mut old, mut new) = begun();
        for (stream, number, value) in [(&mut old, 11, 5), (&mut new, 12, 6)] {
            // The number of headers is in the header of the file.
            let at = BASE + if headers { 0x1038 } else { 0x2010 };
            let number = if headers { number } else { 11 };
            stream.record(9, 2, &[BASE + 0x1108, at, number]);
            stream.event(RETURN, 0x1110, to, value);
        }
        compare(&old, &new, false)
    };
    let outcome = comes_back(true, 0x9000_0000);
    assert!(outcome.is_good(), "{outcome:?}");
    assert_eq!(outcome.classes[&Class::Headers].count, 2);
    // Nobody has looked at headers; it comes back to the module.
    assert!(!comes_back(false, 0x9000_0000).is_good());
    assert!(!comes_back(true, 0x1100).is_good());
}

/// A function that looks for its caller in the program headers comes back to it.
#[test]
fn what_was_calculated_of_headers_is_left_when_a_function_of_the_module_has_read_them() {
    const RAX: usize = 0;
    const RCX: usize = 1;
    let comes_back = |read: u64, between: bool, register: usize| {
        let mut module = module(false);
        (module.old.table, module.new.table) = ((0x1040, 0x70), (0x1040, 0xa8));
        let (mut old, mut new) = begun();
        for (stream, value) in [(&mut old, 5), (&mut new, 6)] {
            stream.load(0x1108, BASE + read, 7);
            if between {
                stream.event(CALL, 0x110c, 0x1100, 0);
            }
            let mut words = vec![BASE + 0x1110, BASE + 0x1111, BASE + 0x1100];
            let mut registers = [0; 16];
            registers[4] = STACK;
            registers[register] = value;
            words.extend(registers);
            stream.record(3, RETURN, &words);
        }
        compare_module(&old, &new, module)
    };
    let outcome = comes_back(0x1048, false, RCX);
    assert!(outcome.is_good(), "{outcome:?}");
    assert_eq!(outcome.classes[&Class::Headers].count, 1);
    // No headers; another function has read them; a result.
    assert!(!comes_back(0x1148, false, RCX).is_good());
    assert!(!comes_back(0x1048, true, RCX).is_good());
    assert!(!comes_back(0x1048, false, RAX).is_good());
}

/// A function goes through the program headers and opens a file then: `open` has two arguments, unless it may make one.
#[test]
fn what_was_calculated_of_headers_is_left_where_a_file_is_opened() {
    const RCX: usize = 1;
    const RSI: usize = 6;
    const CREATE: u64 = 0o100;
    let opens = |name: &str, read: u64, register: usize, flags: u64| {
        let mut module = module(false);
        (module.old.table, module.new.table) = ((0x1040, 0x70), (0x1040, 0xa8));
        module.old.sections[0].end = 0x1180;
        let mut section = |start, end, name: &str, code| {
            let name = name.to_owned();
            let section = Section {
                start,
                end,
                name,
                code,
            };
            module.old.sections.insert(1, section);
        };
        section(0x1180, 0x1200, ".plt", true);
        module.old.sections[2].name = ".got.plt".to_owned();
        module.old.imports.insert(0x2010, name.to_owned());
        let (mut old, mut new) = (Stream::new(), Stream::new());
        for (stream, entry, value) in [(&mut old, 0x1000, 5), (&mut new, 0x3000, 6)] {
            stream
                .event(OTHER, 0, entry, 0)
                .load(0x1108, BASE + read, value);
            let mut registers = [0; 16];
            registers[4] = STACK;
            registers[RSI] = flags;
            registers[register] |= value << 32;
            let call = |last: u64, to: u64| {
                let mut words = vec![last, last + 5, to];
                words.extend(registers);
                words
            };
            stream.record(3, CALL, &call(BASE + 0x1110, BASE + 0x1190));
            stream.load(0x1190, BASE + 0x2010, 0x9000_0000);
            stream.record(3, JUMP, &call(BASE + 0x1190, 0x9000_0000));
        }
        compare_module(&old, &new, module)
    };
    let outcome = opens("open", 0x1048, RCX, 0);
    assert!(outcome.is_good(), "{outcome:?}");
    assert_eq!(outcome.classes[&Class::Headers].count, 1);
    // Another function, no headers, an argument, and where it has a third argument.
    assert!(!opens("openat", 0x1048, RCX, 0).is_good());
    assert!(!opens("open", 0x1148, RCX, 0).is_good());
    assert!(!opens("open", 0x1048, RSI, 0).is_good());
    assert!(!opens("open", 0x1048, RCX, CREATE).is_good());
}

/// A structure is copied in pieces that overlap, with the lowest byte of a return address in its padding.
#[test]
fn a_part_of_a_word_that_is_explained_is_loaded() {
    let at = BASE + 0x2010;
    let loads = |stored_since: bool, loaded: [u64; 2]| {
        let (mut old, mut new) = begun();
        for (stream, i, label) in [(&mut old, 0, 0x1040), (&mut new, 1, 0x3020)] {
            stream
                .store(0x1108, at, BASE + label)
                .event(CALL, 0x110c, 0x1100, 0);
            if stored_since {
                stream.store(0x1110, at, 5);
            }
            stream
                .load(0x1118, at - 7, loaded[i])
                .store(0x1119, at - 0x10, loaded[i])
                .event(CALL, 0x111c, 0x1100, 0);
        }
        compare(&old, &new, false)
    };
    let first = |byte: u64| byte << 56 | 0x1234;
    let outcome = loads(false, [first(0x40), first(0x20)]);
    assert!(outcome.is_good(), "{outcome:?}");
    assert_eq!(outcome.classes[&Class::Remains].count, 2);
    // Another byte, another one beside it, and a word that was stored to since.
    assert!(!loads(false, [first(0x40), first(0x21)]).is_good());
    assert!(!loads(false, [first(0x40), first(0x20) + 1]).is_good());
    assert!(!loads(true, [first(0x40), first(0x20)]).is_good());
}

/// A structure is copied with a byte of a return address in its padding, which is in a register then.
#[test]
fn a_part_of_a_word_that_is_explained_is_in_a_register() {
    let at = BASE + 0x2010;
    let holds = |loaded: [u64; 2], between: bool, held: [u64; 2]| {
        let (mut old, mut new) = begun();
        for (stream, i, label) in [(&mut old, 0, 0x1040), (&mut new, 1, 0x3020)] {
            stream
                .store(0x1108, at, BASE + label)
                .event(CALL, 0x110c, 0x1100, 0)
                .record(9, 1, &[BASE + 0x1118, at, loaded[i]]);
            if between {
                stream.event(CALL, 0x111a, 0x1100, 0);
            }
            stream.event(CALL, 0x111c, 0x1100, held[i]);
        }
        compare(&old, &new, false)
    };
    let (part, other) = ([0x40, 0x20], [0x40, 0x21]);
    let outcome = holds(part, false, part);
    assert!(outcome.is_good(), "{outcome:?}");
    assert_eq!(outcome.classes[&Class::Remains].count, 2);
    // Another byte than was stored, another than was loaded, and one that was loaded before the last event.
    assert!(!holds(other, false, other).is_good());
    assert!(!holds(part, false, other).is_good());
    assert!(!holds(part, true, part).is_good());
}

/// Far behind the function's beginning, it is stored after a jump by a table, and copied from there with others.
#[test]
fn a_part_of_a_word_that_is_explained_is_stored_from_a_register() {
    let (from, to) = (BASE + 0x2010, BASE + 0x2031);
    let copies = |stored: [u64; 2], clears: bool, loaded: [u64; 2]| {
        let (mut old, mut new) = begun();
        for (stream, i, label) in [(&mut old, 0, 0x1040), (&mut new, 1, 0x3020)] {
            let part = (BASE + label) & 0xff;
            stream
                .store(0x1108, from, BASE + label)
                .event(CALL, 0x110c, 0x1100, 0)
                .record(9, 1, &[BASE + 0x1118, from, part])
                .event(CALL, 0x111c, 0x1100, part)
                .record(4, 1, &[BASE + 0x1190, to, stored[i]]);
            if clears {
                stream
                    .event(CALL, 0x1192, 0x1100, part)
                    .record(4, 2, &[BASE + 0x1194, to - 1, 0]);
            }
            stream
                .load(0x1198, to - 1, loaded[i])
                .event(CALL, 0x119c, 0x1100, 0);
        }
        compare(&old, &new, false)
    };
    let (part, word) = ([0x40, 0x20], [0x77_4000, 0x77_2000]);
    let outcome = copies(part, false, word);
    assert!(outcome.is_good(), "{outcome:?}");
    assert_eq!(outcome.classes[&Class::Remains].count, 4, "{outcome:?}");
    // Another byte than the register has; others beside it; what was stored to since.
    assert!(!copies([0x40, 0x21], false, word).is_good());
    assert!(!copies(part, false, [0x77_4000, 0x78_2000]).is_good());
    assert!(!copies(part, true, word).is_good());
}

/// Padding of a structure is what code outside had there; what the function has stored is compared.
#[test]
fn what_code_outside_left_on_the_stack_is_loaded() {
    let place = STACK - 0x40;
    let loads = |stored: bool, loaded: [u64; 2]| {
        let (mut old, mut new) = begun();
        for (stream, i) in [(&mut old, 0), (&mut new, 1)] {
            stream.event(CALL, 0x1108, 0x9000_0000, 0);
            stream.event(RETURN, 0x9000_0010, 0x110d, 0);
            if stored {
                stream.store(0x1110, place, 5);
            }
            stream
                .load(0x1114, place, loaded[i])
                .event(CALL, 0x1118, 0x1100, 0);
        }
        compare(&old, &new, false)
    };
    let outcome = loads(false, [6, 7]);
    assert!(outcome.is_good(), "{outcome:?}");
    assert_eq!(outcome.classes[&Class::Uninitialised].count, 1);
    assert!(!loads(true, [6, 7]).is_good());
    assert!(loads(true, [6, 6]).is_good());
}

/// Calls that are not bound yet all go to the loader. One run finds that the others are done, and the other waits.
#[test]
fn runs_that_call_different_functions_by_way_of_the_loader_part() {
    let calls = |threads: bool, slot: u64| {
        let mut module = module(false);
        module.old.sections[1].name = ".got".to_owned();
        let names = [(0x2010, "usleep"), (0x2018, "printf"), (0x2020, "usleep")];
        let names = names.map(|(slot, name)| (slot, name.to_owned()));
        module.old.imports.extend(names);
        let (mut old, mut new) = begun();
        for (stream, slot) in [(&mut old, 0x2010), (&mut new, slot)] {
            if threads {
                stream.record(7, 0, &[]);
            }
            stream
                .record(9, 8 | 512, &[BASE + 0x1108, BASE + slot, 0x9000_0000])
                .store(0x1108, STACK - 8, slot)
                .event(CALL, 0x1108, 0x9000_0000, 0);
        }
        compare_module(&old, &new, module)
    };
    let parted = calls(true, 0x2018);
    assert!(parted.parts_by_threads(), "{parted:?}");
    let alone = calls(false, 0x2018);
    assert!(!alone.is_good() && !alone.parts_by_threads());
    assert!(
        alone
            .parted
            .is_some_and(|what| what.starts_with("usleep is called"))
    );
    // The same function by another word.
    assert!(calls(true, 0x2020).parted.is_none());
}

/// `malloc` of another file is called while a register still holds a pointer to the stack.
#[test]
fn the_allocator_is_given_no_memory_of_the_stack() {
    const TARGET: u64 = 512;
    let calls = |name: &str, flags: u64| {
        let mut module = module(false);
        module.old.sections[1].name = ".got".to_owned();
        module.old.imports.insert(0x2010, name.to_owned());
        let (mut old, mut new) = begun();
        for (stream, value) in [(&mut old, 6), (&mut new, 7)] {
            // What leaves something on the stack, and then in a frame that holds the place.
            stream.event(CALL, 0x1104, 0x9000_0000, 0);
            stream.event(RETURN, 0x9000_0010, 0x1109, 0);
            stream.record(9, 8 | flags, &[BASE + 0x1108, BASE + 0x2010, 0x9000_0000]);
            let mut words = vec![BASE + 0x1108, BASE + 0x110d, 0x9000_0000];
            let mut registers = [0; 16];
            (registers[4], registers[7]) = (STACK - 0x100, STACK - 0x80);
            words.extend(registers);
            stream.record(3, CALL, &words);
            stream
                .event(RETURN, 0x9000_0010, 0x110d, 0)
                .load(0x1114, STACK - 0x40, value)
                .event(CALL, 0x1118, 0x1100, 0);
        }
        compare_module(&old, &new, module)
    };
    let outcome = calls("malloc", TARGET);
    assert!(outcome.is_good(), "{outcome:?}");
    assert_eq!(outcome.classes[&Class::Uninitialised].count, 1);
    // Another function; the pointer to malloc is loaded, and another function called.
    assert!(!calls("read", TARGET).is_good());
    assert!(!calls("malloc", 0).is_good());
}

/// What `_Unwind_FindEnclosingFunction` says of an address in the cold part; Rust's `Backtrace` keeps it.
#[test]
fn code_outside_says_where_a_part_of_a_function_begins() {
    const COLD: u64 = BASE + 0x3100;
    let says = |returns: bool, new: u64| {
        let (mut old_run, mut new_run) = begun();
        for (stream, value) in [(&mut old_run, BASE + 0x1000), (&mut new_run, new)] {
            stream.event(CALL, 0x1108, 0x9000_0000, 0);
            let mut words = vec![0x9000_0010, 0x9000_0011, BASE + 0x110d];
            let mut registers = [0; 16];
            registers[4] = STACK;
            registers[0] = if returns { value } else { 0 };
            words.extend(registers);
            stream
                .record(3, RETURN, &words)
                .store(0x1110, STACK - 0x40, value)
                .event(CALL, 0x1118, 0x1100, 0);
        }
        compare(&old_run, &new_run, false)
    };
    let outcome = says(true, COLD);
    assert!(outcome.is_good(), "{outcome:?}");
    assert_eq!(outcome.classes[&Class::Bounds].count, 2);
    // Nobody has said so; it begins elsewhere.
    assert!(!says(false, COLD).is_good());
    assert!(!says(true, COLD + 4).is_good());
}

/// An earlier call of the unwinder may have left the same in a register, where that alone explains it.
#[test]
fn bounds_that_were_left_in_a_scratch_register_before_are_known_when_they_are_stored() {
    const OLD: u64 = BASE + 0x1000;
    const NEW: u64 = BASE + 0x3100;
    let says = |returned: u64| {
        let (mut old_run, mut new_run) = begun();
        for (stream, value, returned) in [(&mut old_run, OLD, OLD), (&mut new_run, NEW, returned)] {
            // rcx, then rax.
            for (register, value) in [(1, value), (0, returned)] {
                stream.event(CALL, 0x1108, 0x9000_0000, 0);
                let mut words = vec![0x9000_0010, 0x9000_0011, BASE + 0x110d];
                let mut registers = [0; 16];
                registers[4] = STACK;
                registers[register] = value;
                words.extend(registers);
                stream.record(3, RETURN, &words);
            }
            stream
                .store(0x1110, STACK - 0x40, returned)
                .event(CALL, 0x1118, 0x1100, 0);
        }
        compare(&old_run, &new_run, false)
    };
    let outcome = says(NEW);
    assert!(outcome.is_good(), "{outcome:?}");
    assert_eq!(outcome.classes[&Class::Bounds].count, 2);
    assert!(!says(NEW + 4).is_good());
}

/// `cfree` gives up its frame and jumps to `free`, in front of which a counter saves a register.
#[test]
fn inserted_code_saves_a_register_below_a_frame_that_was_given_up() {
    let saves = |highest: Option<u64>, place: u64| {
        let (mut old, mut new) = begun();
        for stream in [&mut old, &mut new] {
            stream.event(CALL, 0x1108, 0x1100, 0);
        }
        new.store(0x3004, place, 0x77);
        if let Some(sp) = highest {
            new.record(12, 0, &[sp]);
        }
        for stream in [&mut old, &mut new] {
            stream.event(CALL, 0x1110, 0x1100, 0);
        }
        compare(&old, &new, true)
    };
    let (place, above) = (STACK + 0x20, Some(STACK + 0x30));
    let outcome = saves(above, place);
    assert!(outcome.is_good(), "{outcome:?}");
    assert_eq!(outcome.classes[&Class::BelowStack].count, 1);
    // The frame was there; above what was given up; another stack.
    assert!(!saves(None, place).is_good());
    assert!(!saves(above, STACK + 0x30).is_good());
    assert!(!saves(Some(STACK + 0x10_0000), place).is_good());
}

/// An `Option` without a value is copied whole, and the lowest byte of the register is written then.
#[test]
fn a_byte_of_what_inserted_code_left_on_the_stack_is_overwritten_in_a_register() {
    const RBX: usize = 3;
    let place = STACK - 0x40;
    let calls = |register: usize, values: [u64; 2]| {
        let (mut old, mut new) = begun();
        new.store(0x3004, place, 0x6600);
        for (stream, from, loaded) in [
            (&mut old, 0x1008, 0x7711_2233_44aa),
            (&mut new, 0x3008, 0x6611_2233_44aa),
        ] {
            stream
                .event(CALL, from, 0x1100, 0)
                .load(0x1108, place, loaded);
        }
        for (stream, value) in [(&mut old, values[0]), (&mut new, values[1])] {
            let mut words = vec![BASE + 0x1110, BASE + 0x1115, BASE + 0x1100];
            let mut registers = [0; 16];
            (registers[4], registers[register]) = (STACK, value);
            words.extend(registers);
            stream.record(3, CALL, &words);
        }
        compare(&old, &new, true)
    };
    let outcome = calls(0, [0x7711_2233_4400, 0x6611_2233_4400]);
    assert!(outcome.is_good(), "{outcome:?}");
    assert_eq!(outcome.classes[&Class::LeftOutside].count, 1);
    // Other bytes differ; a register that calls keep.
    assert!(!calls(0, [0x7711_2233_4400, 0x6511_2233_4400]).is_good());
    assert!(!calls(0, [5, 6]).is_good());
    assert!(!calls(RBX, [0x7711_2233_4400, 0x6611_2233_4400]).is_good());
}

/// The string ends a block of the allocator, which has others behind it in the output: only the first part of the load
/// is at the same place.
#[test]
fn memory_behind_a_string_at_the_end_of_a_block_is_loaded() {
    let loads = |second: u64, pc: u64| {
        let mut module = module(false);
        // The allocator.
        module.skipped.push((0x1180, 0x1200, Some(Size::First)));
        module.old.functions[1].1 = 0x80;
        module.old.functions[1].2 = "__strlen_avx2".to_owned();
        let (mut old, mut new) = begun();
        for (stream, block, second, last) in [
            (&mut old, 0x4000_0100, 0x4000_0108, 5),
            (&mut new, 0x4000_0300, second, 6),
        ] {
            let mut words = vec![BASE + 0x1190, BASE + 0x1191, BASE + 0x100d];
            let mut registers = [0; 16];
            (registers[0], registers[4]) = (block, STACK);
            words.extend(registers);
            stream
                .event(CALL, 0x1008, 0x1180, 7)
                .record(3, RETURN, &words)
                .load(0x1108, block, 0x63_6261)
                .load(pc, second, last)
                .event(CALL, 0x1110, 0x1100, 0);
        }
        compare_module(&old, &new, module)
    };
    let outcome = loads(0x4000_0308, 0x1108);
    assert!(outcome.is_good(), "{outcome:?}");
    assert_eq!(outcome.classes[&Class::BehindString].count, 1);
    // Elsewhere; another load.
    assert!(!loads(0x4000_0310, 0x1108).is_good());
    assert!(!loads(0x4000_0308, 0x110c).is_good());
}

/// `memset` for AArch64 stores up to an aligned address, and clears much at once then: that depends on where a block
/// is, which the allocator has decided.
#[test]
fn a_block_of_another_alignment_is_filled_by_other_stores() {
    let fills = |name: &str, new_block: u64, stores: &[(u64, u64)]| {
        let mut module = module(false);
        module.skipped.push((0x1180, 0x1200, Some(Size::First)));
        module.old.functions[1].1 = 0x80;
        module.old.functions[1].2 = name.to_owned();
        let (mut old, mut new) = begun();
        let of_old: &[(u64, u64)] = &[(0, 5), (8, 5), (16, 5)];
        for (stream, block, stores) in [
            (&mut old, 0x4000_0100, of_old),
            (&mut new, new_block, stores),
        ] {
            let mut words = vec![BASE + 0x1190, BASE + 0x1191, BASE + 0x100d];
            let mut registers = [0; 16];
            (registers[0], registers[4]) = (block, STACK);
            words.extend(registers);
            stream
                .event(CALL, 0x1008, 0x1180, 24)
                .record(3, RETURN, &words)
                .event(CALL, 0x1010, 0x1100, block);
            for (at, value) in stores {
                stream.store(0x1108, block + at, *value);
            }
            stream.event(RETURN, 0x1110, 0x1015, 0);
        }
        compare_module(&old, &new, module).is_good()
    };
    let (other, same) = (0x4000_0330, 0x4000_0900);
    let overlapping: &[(u64, u64)] = &[(0, 5), (16, 5), (8, 5), (8, 5)];
    assert!(fills("__memset_generic", other, overlapping));
    // Another byte, one too few, one too many, another function, and an alignment that is the same.
    assert!(!fills(
        "__memset_generic",
        other,
        &[(0, 5), (16, 5), (8, 6)]
    ));
    assert!(!fills("__memset_generic", other, &[(0, 5), (16, 5)]));
    assert!(!fills(
        "__memset_generic",
        other,
        &[(0, 5), (16, 5), (8, 5), (24, 5)]
    ));
    assert!(!fills("copy", other, overlapping));
    assert!(!fills("__memset_generic", same, overlapping));
}

/// `strlen` loads 32 bytes at a time. Behind a string on the heap is what the allocator keeps there.
#[test]
fn what_is_behind_a_string_is_loaded_with_its_end() {
    let at = BASE + 0x2020;
    let loads = |name: &str, first: [u64; 2], pc: u64, second: u64| {
        let mut module = module(false);
        module.old.functions[1].2 = name.to_owned();
        let (mut old, mut new) = begun();
        for (stream, i, last) in [(&mut old, 0, 5), (&mut new, 1, 6)] {
            stream
                .load(0x1108, at, first[i])
                .load(pc, second, last)
                .event(CALL, 0x1110, 0x1100, 0);
        }
        compare_module(&old, &new, module)
    };
    // "abc", with a zero and what is behind it.
    let ends = 0x4433_2211_0063_6261;
    let outcome = loads("__strlen_avx2", [ends; 2], 0x1108, at + 8);
    assert!(outcome.is_good(), "{outcome:?}");
    assert_eq!(outcome.classes[&Class::BehindString].count, 1);
    let behind = loads("__strlen_avx2", [ends, ends ^ 1 << 48], 0x1108, at + 8);
    assert!(behind.is_good(), "{behind:?}");
    // Another function; no end, or not after the same; another instruction; another place.
    assert!(!loads("copy", [ends; 2], 0x1108, at + 8).is_good());
    let no_end = ends | 0x55 << 24;
    assert!(!loads("__strlen_avx2", [no_end; 2], 0x1108, at + 8).is_good());
    assert!(!loads("__strlen_avx2", [ends, ends ^ 1], 0x1108, at + 8).is_good());
    assert!(!loads("__strlen_avx2", [ends; 2], 0x110c, at + 8).is_good());
    assert!(!loads("__strlen_avx2", [ends; 2], 0x1108, at + 16).is_good());
}

#[test]
fn the_list_of_mappings_is_longer_in_the_output() {
    const READ: u64 = 0;
    const OPEN: u64 = 257;
    let reads = |is_list: u64, file: u64| {
        let (mut old, mut new) = begun();
        for (stream, length) in [(&mut old, 50), (&mut new, 60)] {
            stream
                .record(5, OPEN, &[BASE + 0x1108, 0, 0, 0, 0, 0, 0, is_list])
                .record(6, OPEN, &[3])
                .record(5, READ, &[BASE + 0x1108, file, 0, 0, 0, 0, 0, 0])
                .record(6, READ, &[length])
                .event(CALL, 0x1110, 0x1100, 0);
        }
        compare(&old, &new, false)
    };
    let list = reads(1, 3);
    assert!(
        list.is_good() && list.classes.contains_key(&Class::Mappings),
        "{list:?}"
    );
    assert!(!reads(0, 3).is_good() && !reads(1, 4).is_good());
    // The length may be found later where it was.
    let later = |lengths: [u64; 2]| {
        let (mut old, mut new) = begun();
        for (stream, length, found) in [(&mut old, 50, lengths[0]), (&mut new, 60, lengths[1])] {
            stream
                .record(5, OPEN, &[BASE + 0x1108, 0, 0, 0, 0, 0, 0, 1])
                .record(6, OPEN, &[3])
                .record(5, READ, &[BASE + 0x1108, 3, 0, 0, 0, 0, 0, 0])
                .record(6, READ, &[length])
                .load(0x1108, STACK - 64, found)
                .event(CALL, 0x1110, 0x1100, 0);
        }
        compare(&old, &new, false).is_good()
    };
    assert!(later([50, 60]) && !later([51, 61]));
}

/// Where nothing moved, a stub stores a pointer that leads to a stub.
#[test]
fn what_a_stub_stores_in_place_of_a_function_may_be_a_pointer_to_a_stub() {
    let stores = |pointer: u64| {
        let (mut old, mut new) = (Stream::new(), Stream::new());
        old.event(CALL, 0x9_0000, 0x1100, BASE + 0x1100)
            .store(0x1100, STACK - 8, BASE + 0x1100)
            .event(CALL, 0x1110, 0x9_0000, 0);
        new.event(CALL, 0x9_0000, 0x3200, BASE + 0x3200)
            .store(0x3204, STACK - 8, BASE + pointer)
            .event(OTHER, 0x3208, 0x1105, 0)
            .event(CALL, 0x1110, 0x9_0000, 0);
        let mut module = module(true);
        module.functions.clear();
        compare_module(
            &old,
            &new,
            Module::new(module.old, module.new, vec![], true),
        )
    };
    assert!(stores(0x3200).is_good(), "{:?}", stores(0x3200));
    assert!(!stores(0x3210).is_good());
}

#[test]
fn what_stays_in_a_register_is_counted_once() {
    let (mut old, mut new) = begun();
    for _ in 0..3 {
        old.event(CALL, 0x1010, 0x1100, BASE + 0x1000);
        new.event(CALL, 0x3010, 0x1100, BASE + 0x3000);
    }
    let outcome = compare(&old, &new, false);
    assert_eq!(outcome.events, 4);
    assert_eq!(outcome.classes.values().map(|f| f.count).sum::<u64>(), 1);
}

// ---- programs ----

/// Whether the machine's programs can be run; says what is missing where they cannot.
fn can_run(machine: Machine, compiler: &str) -> bool {
    let lack = emulator::lack(machine).or_else(|| {
        crate::packages::find_program(compiler)
            .is_none()
            .then(|| format!("{compiler} is missing (Debian package of the same name)"))
    });
    if let Some(lack) = &lack {
        // Not by the macro, whose output a test that passes does not show.
        let _ = writeln!(std::io::stderr(), "SKIPPED: {lack}");
    }
    lack.is_none()
}

/// postlink as these tests were built. `cargo xtask test` has built it for other tests; built alone, with
/// fewer features of its crates, it would take minutes again.
fn postlink() -> PathBuf {
    let beside = std::env::current_exe()
        .unwrap()
        .with_file_name("../postlink");
    if std::env::var_os(crate::test::HAS_BUILT_ALL).is_some() && beside.is_file() {
        return beside;
    }
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let root = crate::bench::root().unwrap();
    let mut command = Command::new(cargo);
    command
        .current_dir(&root)
        .args(["build", "--quiet", "-p", "postlink"]);
    assert!(command.status().unwrap().success());
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
    target.join("debug/postlink")
}

fn build(compiler: &str, source: &Path, flags: &[&str], program: &Path) {
    let mut command = Command::new(compiler);
    command
        .args(["-O2", "-Wl,-q", "-o"])
        .arg(program)
        .arg(source)
        .args(flags);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
}

fn run(program: &Path, more: &[&str]) -> Done {
    let postlink = postlink();
    let mut arguments = vec!["differ", program.to_str().unwrap()];
    arguments.extend(["--postlink", postlink.to_str().unwrap()]);
    arguments.extend(more);
    differ(&Options::try_parse_from(arguments).unwrap()).unwrap()
}

fn case(name: &str) -> PathBuf {
    crate::bench::root().unwrap().join("tests/cases").join(name)
}

const CASES: [&str; 4] = [
    "switch_dense.c",
    "computed_goto.c",
    "function_pointers.c",
    "eh_cold.cpp",
];

fn cases_are_clean(machine: Machine, prefix: &str) {
    let folder = tempfile::tempdir().unwrap();
    for name in CASES {
        let compiler = if name.ends_with("cpp") {
            format!("{prefix}g++")
        } else {
            format!("{prefix}gcc")
        };
        if !can_run(machine, &compiler) {
            return;
        }
        let program = folder.path().join(name.replace('.', "_"));
        let text = fs::read_to_string(case(name)).unwrap();
        let library = text
            .lines()
            .find_map(|line| line.strip_prefix("//# lib: "))
            .map(|file| case(file.trim()));
        let library = library.map(|file| file.display().to_string());
        build(
            &compiler,
            &case(name),
            &library.iter().map(String::as_str).collect::<Vec<_>>(),
            &program,
        );
        for options in [
            &["--preset", "safe"][..],
            &["--preset", "fast"],
            &["--mode", "edges"],
        ] {
            let done = run(&program, options);
            assert!(
                done.is_good(),
                "{name} {options:?}\n{}",
                done.outcome.report()
            );
            assert!(done.outcome.events > 20 && done.outcome.classes.contains_key(&Class::Return));
        }
    }
}

#[test]
fn cases_for_x86_64_differ_in_explained_ways_only() {
    cases_are_clean(Machine::X86, "");
}

#[test]
fn cases_for_aarch64_differ_in_explained_ways_only() {
    cases_are_clean(Machine::Aarch64, "aarch64-linux-gnu-");
}

#[test]
fn a_program_does_not_differ_from_itself() {
    if !can_run(Machine::X86, "gcc") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("same");
    build("gcc", &case("computed_goto.c"), &[], &program);
    let done = run(&program, &["--output", program.to_str().unwrap()]);
    assert!(done.is_good(), "{}", done.outcome.report());
    let allowed = |class: &Class| matches!(class, Class::Process);
    assert!(
        done.outcome.classes.keys().all(allowed),
        "{}",
        done.outcome.report()
    );
}

const LIBRARY: &str = "
static int a(int x) { return x + 1; }
static int b(int x) { return x * 3; }
static int (*const table[])(int) = { a, b };
int work(int x) { return table[x % 2](x); }
";

#[test]
fn a_shared_library_is_compared_alone() {
    if !can_run(Machine::X86, "gcc") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    fs::write(file("library.c"), LIBRARY).unwrap();
    fs::write(
        file("main.c"),
        "int work(int); int main(void) { int n = 0; for (int i = 0; i < 50; i++) n += work(i); return n == 1; }",
    )
    .unwrap();
    let shared = ["-shared", "-fPIC", "-Wl,-soname,libwork.so"];
    build("gcc", &file("library.c"), &shared, &file("libwork.so"));
    let library = file("libwork.so");
    let library = library.to_str().unwrap();
    build("gcc", &file("main.c"), &[library], &file("main"));
    let done = run(&file("main"), &["--module", library]);
    assert!(done.is_good(), "{}", done.outcome.report());
    assert!(done.outcome.events >= 150, "{}", done.outcome.events);
}

const PLANTED: &str = "
#include <stdio.h>
__attribute__((noinline)) int scale(int x) { return x ^ 0x12345678; }
int main(int argc, char **argv) {
  unsigned sum = 0;
  for (int i = 0; i < 100; i++) sum += scale(i);
  return sum == 1;
}
";

#[test]
fn a_byte_of_an_immediate_changed_in_new_code_is_found() {
    if !can_run(Machine::X86, "gcc") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (
        folder.path().join("planted.c"),
        folder.path().join("planted"),
    );
    fs::write(&source, PLANTED).unwrap();
    build("gcc", &source, &[], &program);
    let keep = folder.path().join("kept");
    let done = run(&program, &["--keep", keep.to_str().unwrap()]);
    assert!(done.is_good(), "{}", done.outcome.report());

    let mut output = fs::read(keep.join("output")).unwrap();
    let elf = Elf::parse(&output).unwrap();
    let note = Note::read(&elf).unwrap().unwrap();
    let ranges: Vec<(u64, u64)> = note.functions.iter().flat_map(|f| f.new.clone()).collect();
    let offset = |address: u64| -> Option<usize> {
        let load = |s: &&postlink_elf::elf::Segment| {
            s.kind == 1 && address.wrapping_sub(s.addr) < s.file_size
        };
        let segment = elf.segments.iter().find(load)?;
        Some((address - segment.addr + segment.offset) as usize)
    };
    let immediate = 0x1234_5678u32.to_le_bytes();
    let at = ranges
        .iter()
        .find_map(|(start, length)| {
            let from = offset(*start)?;
            let code = output.get(from..from + *length as usize)?;
            let inside = code.windows(4).position(|bytes| bytes == immediate)?;
            Some(from + inside)
        })
        .expect("the immediate is in new code");
    output[at + 2] ^= 1;
    let patched = folder.path().join("patched");
    fs::write(&patched, output).unwrap();
    let done = run(&program, &["--output", patched.to_str().unwrap()]);
    assert!(!done.is_good());
    let unknown = &done.outcome.classes[&Class::Unknown];
    assert!(unknown.count >= 100, "{}", done.outcome.report());
    assert!(
        unknown.examples[0].contains("rax at Return to main"),
        "{}",
        done.outcome.report()
    );
}

const MEMBERS: &str = "
struct S {
  int v;
  virtual int g(int x) { return x + v; }
  __attribute__((noinline)) int f(int x) { return x * 3 + v; }
};
typedef int (S::*P)(int);
P member = &S::f;
int main() {
  S s{};
  int n = 0;
  for (int i = 0; i < 10; i++) n += (s.*member)(i);
  return n == 0;
}
";

/// The pointer of a member is made odd, as it was when a preset put functions at odd addresses: then it means
/// a virtual function.
#[test]
fn a_member_pointer_with_another_lowest_bit_is_found_before_it_is_called() {
    if !can_run(Machine::X86, "g++") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (
        folder.path().join("members.cpp"),
        folder.path().join("members"),
    );
    fs::write(&source, MEMBERS).unwrap();
    build("g++", &source, &["-fPIE", "-pie"], &program);
    let keep = folder.path().join("kept");
    run(&program, &["--keep", keep.to_str().unwrap()]);
    let mut output = fs::read(keep.join("output")).unwrap();
    let elf = Elf::parse(&output).unwrap();
    let member = elf
        .symbols(postlink_elf::elf::SymbolTable::Static)
        .iter()
        .find(|s| s.name == b"member")
        .unwrap()
        .value;
    let relocation = elf
        .dyn_relocs()
        .unwrap()
        .into_iter()
        .find(|r| r.addr == member)
        .unwrap();
    let at = relocation.addend_at.unwrap();
    let segment = elf
        .segments
        .iter()
        .find(|s| s.kind == 1 && at.wrapping_sub(s.addr) < s.file_size)
        .unwrap();
    let at = (at - segment.addr + segment.offset) as usize;
    output[at] ^= 1;
    let odd = folder.path().join("odd");
    fs::write(&odd, output).unwrap();
    let done = run(&program, &["--output", odd.to_str().unwrap()]);
    assert!(!done.is_good());
    let report = done.outcome.report();
    let loads = |class: &Class| {
        let found = done.outcome.classes.get(class);
        found.is_some_and(|f| f.examples.iter().any(|e| e.starts_with("load of 8 bytes")))
    };
    assert!(
        [Class::Unknown, Class::Inside].iter().any(loads),
        "{report}"
    );
}
