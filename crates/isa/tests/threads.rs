//! Checks for threads and forked children, run for real: they call `enter` when they must, and destroy only
//! what may be destroyed.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod common;

use common::machine::{DATA, MORE, Machine, Noise, STACK, STACK_LEN};
use postlink_isa::x86_64::X86_64;
use postlink_isa::x86_64::threads::OWNER;
use postlink_isa::{Code, Fixup, FixupKind, Runtime};

const READY: u64 = DATA + 0x100;
const SEEN: u64 = DATA + 0x108;
/// Where the GS base points.
const SHARD: u64 = DATA + 0x400;

/// This thread's identity, as the checks read it.
fn identity() -> u64 {
    let identity: u64;
    // SAFETY: the x86-64 ABI has the address of the thread's control block there.
    unsafe { std::arch::asm!("mov {}, fs:[0]", out(reg) identity) };
    identity
}

/// A machine whose `enter` notes that it was called, with the GS base at [`SHARD`].
fn machine() -> Machine {
    let machine = Machine::new();
    let mut enter = Code {
        bytes: vec![0x48, 0xc7, 0x05, 0, 0, 0, 0, 1, 0, 0, 0, 0xc3],
        fixups: Vec::new(),
        stack: Vec::new(),
    }; // mov qword [seen],1; ret
    enter.fixups.push(Fixup {
        at: 3,
        kind: FixupKind::Rel32 { trail: 4 },
        target: machine.base + SEEN,
    });
    machine.put_code(MORE, &enter);
    // SAFETY: nothing else in this process uses the GS base.
    let result = unsafe { libc::syscall(libc::SYS_arch_prctl, 0x1001, machine.base + SHARD) };
    assert_eq!(result, 0);
    machine
}

/// Runs a check; returns whether `enter` was called.
fn run(
    machine: &Machine,
    noise: &mut Noise,
    code: &Code<u64>,
    ready: u64,
    owner: u64,
    destroyed: u16,
    flags: bool,
) -> bool {
    machine.put_word(READY, ready);
    machine.put_word(SEEN, 0);
    machine.put_word(SHARD.wrapping_add_signed(i64::from(OWNER)), owner);
    machine.paint_stack();
    let before = noise.state(machine);
    let after = machine.run(code, &before);
    for register in (0..16).filter(|register| destroyed >> register & 1 == 0) {
        assert_eq!(
            after.regs[register], before.regs[register],
            "register {register}"
        );
    }
    let keep = if flags { 0x400 } else { u64::MAX };
    assert_eq!(after.flags & keep, before.flags & keep);
    if !flags {
        // What saves keeps the red zone as well.
        let kept = STACK + STACK_LEN / 2 - 128;
        let paint: Vec<u8> = (kept - STACK..STACK_LEN)
            .map(|at| (at * 7 + 13) as u8)
            .collect();
        assert_eq!(machine.get(kept, paint.len()), paint);
    }
    machine.word(SEEN) == 1
}

#[test]
fn an_entry_check_lets_the_owner_pass_and_nobody_else() {
    let (machine, mut noise) = (machine(), Noise(11));
    for save in [false, true] {
        let mut code = Code::default();
        X86_64::put_entry_check(&mut code, save, machine.base + READY, machine.base + MORE);
        let destroyed = if save { 0 } else { 1 << 11 };
        for _ in 0..50 {
            let mut check =
                |ready, owner| run(&machine, &mut noise, &code, ready, owner, destroyed, !save);
            assert!(!check(1, identity()));
            assert!(check(1, identity() + 64));
            assert!(check(1, 0));
            assert!(check(0, identity()));
            assert!(check(2, identity()));
        }
    }
}

#[test]
fn before_all_is_ready_an_entry_check_reads_nothing_of_the_thread() {
    let (machine, mut noise) = (machine(), Noise(12));
    // An address that may not be read.
    // SAFETY: nothing else in this process uses the GS base.
    assert_eq!(
        unsafe { libc::syscall(libc::SYS_arch_prctl, 0x1001, 0x10u64) },
        0
    );
    let mut code = Code::default();
    X86_64::put_entry_check(&mut code, false, machine.base + READY, machine.base + MORE);
    for ready in [0, 2] {
        assert!(run(
            &machine,
            &mut noise,
            &code,
            ready,
            identity(),
            1 << 11,
            true
        ));
    }
}

#[test]
fn a_fork_check_finds_the_wiped_byte_and_destroys_flags_only() {
    let (machine, mut noise) = (machine(), Noise(13));
    let mut code = Code::default();
    X86_64::put_fork_check(&mut code, machine.base + READY, machine.base + MORE);
    for _ in 0..50 {
        assert!(run(&machine, &mut noise, &code, 0, identity(), 0, true));
        assert!(!run(&machine, &mut noise, &code, 1, 0, 0, true));
        assert!(!run(&machine, &mut noise, &code, 2, 0, 0, true));
    }
}
