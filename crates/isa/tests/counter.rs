//! Counters run for real: each adds one and leaves everything alone that lives.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod common;

use common::machine::{DATA, FLAGS, Machine, Noise, STACK, STACK_LEN};
use postlink_isa::x86_64::{CF, OF, X86_64, ZF};
use postlink_isa::{Code, CounterMode, CounterPlace, Counters, RegSet};

const MODES: [CounterMode; 4] = [
    CounterMode::Plain,
    CounterMode::Atomic,
    CounterMode::PerThread,
    CounterMode::Biased,
];

/// The flags register's bits of the flags in a set.
fn flag_bits(set: RegSet) -> u64 {
    [
        (32, 0),
        (33, 2),
        (34, 4),
        (35, 6),
        (36, 7),
        (37, 11),
        (38, 10),
    ]
    .iter()
    .filter(|(member, _)| set.0 >> member & 1 != 0)
    .fold(0, |bits, (_, bit)| bits | 1 << bit)
}

fn emit(mode: CounterMode, live: RegSet, counter: u64) -> Code<u64> {
    emit_at(mode, live, CounterPlace::one(counter))
}

fn emit_at(mode: CounterMode, live: RegSet, place: CounterPlace<u64>) -> Code<u64> {
    let mut code = Code::default();
    X86_64::put_counter(&mut code, mode, live, place);
    code
}

/// The identity of this thread.
fn identity() -> u64 {
    let word: u64;
    // SAFETY: every thread's control block holds its own address there.
    unsafe { std::arch::asm!("mov {}, fs:[0]", out(reg) word, options(nostack, readonly)) };
    word
}

/// Runs a counter a few times from random states.
fn check(machine: &Machine, noise: &mut Noise, mode: CounterMode, live: RegSet) {
    let counter = match mode {
        CounterMode::PerThread => machine.own(DATA + 8),
        _ => machine.base + DATA + 8,
    };
    let mut place = CounterPlace::one(counter);
    if mode == CounterMode::Biased {
        // Whether this thread is the owner; the other counter must stay as it is.
        let other = machine.base + DATA + 24;
        (place.owner, place.owners) = (machine.base + DATA + 32, other);
        let owner = noise.next() & 1 == 0;
        if owner {
            (place.counter, place.owners) = (other, counter);
        }
        machine.put_word(DATA + 24, 77);
        machine.put_word(DATA + 32, if owner { identity() } else { identity() ^ 64 });
    }
    let code = emit_at(mode, live, place);
    assert_eq!(
        code.bytes.len(),
        X86_64::counter_len(mode, live),
        "{mode:?} {live:x?}"
    );
    for start in [0, 0xffff_ffff, u64::MAX, noise.next()] {
        machine.paint_stack();
        machine.put(DATA, &[0x55; 24]);
        machine.put_word(DATA + 8, start);
        let before = noise.state(machine);
        let after = machine.run(&code, &before);
        assert_eq!(
            machine.word(DATA + 8),
            start.wrapping_add(1),
            "{mode:?} {live:x?}"
        );
        // A count that comes to 2^64, as none does, may be counted once more.
        if mode == CounterMode::Biased && start != u64::MAX {
            assert_eq!(machine.word(DATA + 24), 77, "{live:x?}");
        }
        machine.put_word(DATA + 24, 77);
        assert_eq!(
            (machine.word(DATA), machine.word(DATA + 16)),
            (0x5555_5555_5555_5555, 0x5555_5555_5555_5555)
        );
        for register in 0..16 {
            if live.0 >> register & 1 != 0 || register == 4 {
                assert_eq!(
                    after.regs[register], before.regs[register],
                    "{mode:?} {live:x?}: register {register}"
                );
            }
        }
        let keep = flag_bits(live) | 0x400;
        assert_eq!(
            after.flags & keep,
            before.flags & keep,
            "{mode:?} {live:x?}"
        );
        // What is above rsp, and the red zone under it.
        let kept = STACK + STACK_LEN / 2 - 128;
        let paint: Vec<u8> = (kept - STACK..STACK_LEN)
            .map(|at| (at * 7 + 13) as u8)
            .collect();
        assert_eq!(machine.get(kept, paint.len()), paint, "{mode:?} {live:x?}");
    }
}

#[test]
fn a_counter_adds_one_and_leaves_alone_what_lives() {
    let (machine, mut noise) = (Machine::new(), Noise(1));
    assert_eq!(flag_bits(RegSet::ALL), FLAGS);
    for mode in MODES {
        check(&machine, &mut noise, mode, RegSet::ALL);
        check(&machine, &mut noise, mode, RegSet::EMPTY);
        for register in 0..16 {
            // Only this register is dead; flags live, or all but one, or only one.
            let registers = RegSet(0xffff & !(1 << register));
            check(&machine, &mut noise, mode, registers);
            for flag in 32..39 {
                check(&machine, &mut noise, mode, registers.or(RegSet(1 << flag)));
                check(
                    &machine,
                    &mut noise,
                    mode,
                    RegSet::ALL.minus(RegSet(1 << flag | 1 << register)),
                );
            }
        }
        for _ in 0..2000 {
            let live = RegSet(noise.next() & noise.next());
            check(&machine, &mut noise, mode, live);
        }
    }
}

#[test]
fn a_counter_is_as_short_as_what_lives_allows() {
    let length = |mode, live: RegSet| emit(mode, live, 0).bytes.len();
    let rax = RegSet(1);
    for (live, plain, atomic) in [
        (RegSet::EMPTY, 7, 8),
        (RegSet(0xffff).or(CF), 7, 8),
        (RegSet::ALL.minus(rax), 18, 15),
        (ZF.or(CF), 18, 10),
        (RegSet::ALL.minus(RegSet(1 << 12)), 19, 21),
        (RegSet::ALL.minus(RegSet(1 << 4)), 33, 30),
        (RegSet::ALL, 33, 30),
        (RegSet::ALL.minus(OF), 33, 25),
    ] {
        assert_eq!(
            (
                length(CounterMode::Plain, live),
                length(CounterMode::Atomic, live)
            ),
            (plain, atomic),
            "{live:x?}"
        );
        assert_eq!(
            length(CounterMode::PerThread, live),
            atomic + 1,
            "{live:x?}"
        );
    }
}

#[test]
fn a_biased_counter_saves_registers_where_too_few_are_dead() {
    let length = |live| emit(CounterMode::Biased, live, 0).bytes.len();
    let (all, rax, r9) = (RegSet::ALL, RegSet(1), RegSet(1 << 9));
    for (live, expected) in [
        (RegSet::EMPTY, 35),
        (RegSet(0xffff).minus(r9), 35),
        (RegSet(0xffff), 50),
        (CF.or(ZF), 37),
        (all.minus(rax).minus(r9), 42),
        (all.minus(r9).minus(RegSet(1 << 1)), 48),
        (all.minus(rax), 57),
        (all.minus(r9), 57),
        (all, 59),
    ] {
        assert_eq!(length(live), expected, "{live:x?}");
    }
}

#[test]
fn biased_counters_lose_nothing_between_their_owner_and_other_threads() {
    let machine = Machine::new();
    let place = CounterPlace {
        counter: machine.base + DATA,
        owners: machine.base + DATA + 8,
        owner: machine.base + DATA + 16,
    };
    let live = RegSet::ALL.minus(RegSet(1 << 10 | 1 << 11));
    let mut code = emit_at(CounterMode::Biased, live, place);
    code.bytes.push(0xc3);
    machine.put_code(common::machine::MORE, &code);
    machine.put_word(DATA + 16, identity());
    let entry = machine.base + common::machine::MORE;
    let count = move |times: u64| {
        // SAFETY: the snippet keeps every register but r10 and r11, as functions may, and returns.
        let count: extern "C" fn() = unsafe { std::mem::transmute(entry as *const ()) };
        (0..times).for_each(|_| count());
    };
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(move || count(100_000));
        }
        count(200_000);
    });
    assert_eq!(
        (machine.word(DATA), machine.word(DATA + 8)),
        (300_000, 200_000)
    );
}

#[test]
fn atomic_counters_lose_nothing_between_threads() {
    let machine = Machine::new();
    let counter = machine.base + DATA;
    let mut code = emit(CounterMode::Atomic, RegSet::ALL, counter);
    code.bytes.push(0xc3);
    machine.put_code(common::machine::MORE, &code);
    let entry = machine.base + common::machine::MORE;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(move || {
                // SAFETY: the snippet keeps every register and returns.
                let count: extern "C" fn() = unsafe { std::mem::transmute(entry as *const ()) };
                (0..100_000).for_each(|_| count());
            });
        }
    });
    assert_eq!(machine.word(DATA), 400_000);
}

#[test]
fn a_counter_says_where_the_stack_pointer_is() {
    use iced_x86::{Decoder, DecoderOptions, Mnemonic};
    for mode in MODES {
        for live in [RegSet::ALL, RegSet::ALL.minus(RegSet(1)), RegSet(0xffff)] {
            let code = emit(mode, live, 0);
            let said = |at: u32| {
                code.stack
                    .iter()
                    .rfind(|m| m.at <= at)
                    .map_or(0, |m| m.down)
            };
            let mut down = 0i64;
            for i in &mut Decoder::new(64, &code.bytes, DecoderOptions::NONE) {
                assert_eq!(
                    i64::from(said(i.ip() as u32)),
                    down,
                    "{mode:?} {live:x?} {i}"
                );
                let stack = i.op0_register() == iced_x86::Register::RSP;
                down -= match i.mnemonic() {
                    Mnemonic::Lea if stack => i.memory_displacement64() as i64,
                    Mnemonic::Push | Mnemonic::Pop => i64::from(i.stack_pointer_increment()),
                    _ => 0,
                };
            }
            assert_eq!((down, said(u32::MAX)), (0, 0), "{mode:?} {live:x?}");
        }
    }
}
