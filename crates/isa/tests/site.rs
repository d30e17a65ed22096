//! Recorders run for real: the callee finds what the original instruction would have shown it, and the table
//! has the counts.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod common;

use common::hex;
use common::machine::{DATA, MORE, Machine, Noise, State, link};
use iced_x86::{Code as Op, Encoder, Instruction, MemoryOperand, Register};
use postlink_isa::x86_64::{X86_64, site};
use postlink_isa::{Code, CounterMode, Counters, Decode, Encode, Fixup, Flow, SiteRef};

/// Where things are in the mapping, beside the harness.
const TABLE: u64 = DATA + 0x40;
const BIAS: u64 = DATA + 0x80;
/// Who the owner is, and its table.
const OWNER: u64 = DATA + 0x88;
const OWNERS_TABLE: u64 = DATA + 0xc0;
/// Written by a target: its number, its `rsp`, its return address.
const TRACE: u64 = DATA + 0x100;
/// The memory that an operand designates.
const SLOT: u64 = DATA + 0x200;
const SLOW: u64 = MORE;
const RECORDER: u64 = MORE + 0x1000;
const TARGETS: u64 = MORE + 0x2000;
const OUTSIDE: u64 = MORE + 0x8000;
/// Original instruction, or what is in its place, of a tail jump.
const TAIL: u64 = MORE + 0x9000;

/// The link-time address of the mapping.
const LINK: u64 = 0x40_0000;

struct Site {
    machine: Machine,
    bias: u64,
}

impl Site {
    /// Targets 0..8 inside the image and 8 outside, the slow path, an empty table.
    fn new(mode: CounterMode) -> Site {
        let machine = Machine::new();
        let bias = machine.base - LINK;
        for number in 0..9 {
            let at = if number == 8 {
                OUTSIDE
            } else {
                TARGETS + number * 0x40
            };
            let mut code = Code {
                bytes: Vec::new(),
                fixups: Vec::new(),
                stack: Vec::new(),
            };
            let mut put = |opcode: &[u8], offset: u64, immediate: &[u8]| {
                code.bytes.extend_from_slice(opcode);
                let kind = postlink_isa::FixupKind::Rel32 {
                    trail: immediate.len() as u8,
                };
                let target = machine.base + offset;
                code.fixups.push(Fixup {
                    at: code.bytes.len() as u32,
                    kind,
                    target,
                });
                code.bytes.extend_from_slice(&[0; 4]);
                code.bytes.extend_from_slice(immediate);
            };
            put(
                &[0x48, 0xc7, 0x05],
                TRACE,
                &(number as u32 + 1).to_le_bytes(),
            ); // mov qword [trace],number+1
            put(&[0x48, 0x89, 0x25], TRACE + 8, &[]); // mov [trace+8],rsp
            put(&[0xff, 0x34, 0x24, 0x8f, 0x05], TRACE + 16, &[]); // push [rsp]; pop [trace+16]
            code.bytes.push(0xc3);
            machine.put_code(at, &code);
        }
        let mut slow = Code::default();
        // From the link-time address of the mapping up to, not with, the outside target.
        X86_64::put_site_slow::<u64>(&mut slow, mode, (LINK, LINK + OUTSIDE));
        machine.put_code(SLOW, &slow);
        machine.put_word(BIAS, bias);
        Site { machine, bias }
    }

    fn target(&self, number: u64) -> u64 {
        self.machine.base
            + if number == 8 {
                OUTSIDE
            } else {
                TARGETS + number * 0x40
            }
    }

    fn table(&self) -> [u64; 8] {
        std::array::from_fn(|word| self.machine.word(TABLE + word as u64 * 8))
    }

    /// Puts the recorder of an instruction, which is at `at` in the original program.
    fn put_recorder(&self, mode: CounterMode, original: &[u8], at: u64) -> bool {
        let insn = X86_64::decode(original, at).unwrap();
        let base = self.machine.base;
        let mut code = Code::default();
        let own = self.machine.own(TABLE);
        let done = X86_64::put_site(&mut code, mode, false, original, &insn, |what| match what {
            SiteRef::Table(word) if mode == CounterMode::PerThread => own + u64::from(word) * 8,
            SiteRef::Table(word) => base + TABLE + u64::from(word) * 8,
            SiteRef::OwnersTable(word) => base + OWNERS_TABLE + u64::from(word) * 8,
            SiteRef::Owner => base + OWNER,
            SiteRef::Bias => base + BIAS,
            SiteRef::Slow => base + SLOW,
            SiteRef::Original(address) => address,
        });
        if !done {
            assert_eq!(code, Code::default());
            return false;
        }
        self.machine.put_code(RECORDER, &code);
        true
    }

    fn traced(&self) -> (u64, u64, u64) {
        let traced = (
            self.machine.word(TRACE),
            self.machine.word(TRACE + 8),
            self.machine.word(TRACE + 16),
        );
        self.machine.put(TRACE, &[0; 24]);
        traced
    }

    /// Runs the original instruction and its recorder from one state, and compares all that may be compared.
    /// The original instruction must go to target `number`.
    fn compare(&self, mode: CounterMode, original: &[u8], before: &State, number: u64) {
        self.machine.put(TABLE, &[0; 64]);
        // The instruction as it would be in the place where it is run; a jump is run after a call.
        let jump = matches!(
            X86_64::decode(original, 0).unwrap().flow,
            Flow::IndirectJump
        );
        let mut direct = Code::default();
        if jump {
            self.machine.put(TAIL, original);
            X86_64::put_call(&mut direct, self.machine.base + TAIL);
        } else {
            direct.bytes.extend_from_slice(original);
        }
        let first = self.machine.run(&direct, before);
        let original_trace = self.traced();
        assert_eq!(
            original_trace.0,
            number + 1,
            "{original:02x?}: the test itself is wrong"
        );
        assert!(
            self.put_recorder(mode, original, self.original_at(jump)),
            "{original:02x?} is refused"
        );
        let mut through = Code::default();
        if jump {
            let mut code = Code::default();
            X86_64::put_jump(
                &mut code,
                postlink_isa::Reach::Long,
                self.machine.base + RECORDER,
            );
            self.machine.put_code(TAIL, &code);
            X86_64::put_call(&mut through, self.machine.base + TAIL);
        } else {
            X86_64::put_call(&mut through, self.machine.base + RECORDER);
        }
        // Once by the slow path, once by the fast one.
        for round in 1..3 {
            let mut second = self.machine.run(&through, before);
            let trace = self.traced();
            assert_eq!(
                (trace.0, trace.1),
                (original_trace.0, original_trace.1),
                "{original:02x?}"
            );
            second.regs[11] = first.regs[11];
            // The arithmetic flags are free; DF is not.
            second.flags = second.flags & 0x400 | first.flags & !0x400;
            assert_eq!(second, first, "{original:02x?}");
            let link = self.target(number) - self.bias;
            assert_eq!(
                self.table(),
                [link, round, 0, 0, 0, 0, 0, 0],
                "{original:02x?}"
            );
        }
    }

    /// Where `compare` runs the original instruction, so that its memory relative to `rip` is what it designates.
    fn original_at(&self, jump: bool) -> u64 {
        // Prologue of the harness: 10 bytes, one 7-byte, one 6-byte, one 1-byte and sixteen 7-byte instructions.
        self.machine.base
            + if jump {
                TAIL
            } else {
                common::machine::CODE + 136
            }
    }
}

const REGISTERS: [Register; 16] = [
    Register::RAX,
    Register::RCX,
    Register::RDX,
    Register::RBX,
    Register::RSP,
    Register::RBP,
    Register::RSI,
    Register::RDI,
    Register::R8,
    Register::R9,
    Register::R10,
    Register::R11,
    Register::R12,
    Register::R13,
    Register::R14,
    Register::R15,
];

fn encode(instruction: &Instruction, at: u64) -> Vec<u8> {
    let mut encoder = Encoder::new(64);
    encoder.encode(instruction, at).unwrap();
    encoder.take_buffer()
}

const OPS: [Op; 2] = [Op::Call_rm64, Op::Jmp_rm64];
const MODES: [CounterMode; 4] = [
    CounterMode::Plain,
    CounterMode::Atomic,
    CounterMode::PerThread,
    CounterMode::Biased,
];

#[test]
fn a_recorder_does_what_a_branch_through_any_register_does() {
    let mut noise = Noise(3);
    for mode in MODES {
        let site = Site::new(mode);
        for (number, register) in REGISTERS
            .into_iter()
            .enumerate()
            .filter(|(number, _)| *number != 4)
        {
            for op in OPS {
                let bytes = encode(&Instruction::with1(op, register).unwrap(), 0);
                let mut before = noise.state(&site.machine);
                before.regs[number] = site.target(number as u64 % 8);
                site.compare(mode, &bytes, &before, number as u64 % 8);
                for prefix in ["3e", "f2", "2e"] {
                    let prefixed = [hex(prefix), bytes.clone()].concat();
                    site.compare(mode, &prefixed, &before, number as u64 % 8);
                }
            }
        }
    }
}

#[test]
fn a_recorder_reads_any_memory_operand() {
    let (mode, mut noise) = (CounterMode::Plain, Noise(4));
    let site = Site::new(mode);
    let slot = site.machine.base + SLOT;
    let mut forms = 0;
    for op in OPS {
        for (base, base_register) in REGISTERS.into_iter().enumerate() {
            for index in [
                None,
                Some(1),
                Some(5),
                Some(9),
                Some(11),
                Some(12),
                Some(13),
            ] {
                for (disp, size) in [
                    (0, 0),
                    (0x18, 1),
                    (-0x20, 1),
                    (0x7c, 1),
                    (0x1230, 8),
                    (-0x1230, 8),
                ] {
                    if index == Some(base) {
                        continue;
                    }
                    let scale = if index.is_some() { 8 } else { 1 };
                    let index_register = index.map_or(Register::None, |index| REGISTERS[index]);
                    let memory = MemoryOperand::new(
                        base_register,
                        index_register,
                        scale,
                        disp,
                        size,
                        false,
                        Register::None,
                    );
                    let bytes = encode(&Instruction::with1(op, memory).unwrap(), 0);
                    let mut before = noise.state(&site.machine);
                    let number = noise.next() % 8;
                    let mut slot = slot;
                    if let Some(index) = index {
                        before.regs[index] = noise.next() % 16;
                    }
                    let offset = index
                        .map_or(0, |index| before.regs[index] * 8)
                        .wrapping_add_signed(disp);
                    if base == 4 {
                        // A jump is run after a call, which has pushed the return address; leave that alone.
                        slot = before.regs[4].wrapping_add(offset)
                            - if op == Op::Jmp_rm64 { 8 } else { 0 };
                        if op == Op::Jmp_rm64 && slot == before.regs[4] - 8 {
                            continue;
                        }
                        // The stack under the call is not the original's any more when the slow path runs.
                        if slot < before.regs[4] && slot + 0x100 > before.regs[4] {
                            continue;
                        }
                    } else {
                        before.regs[base] = slot.wrapping_sub(offset);
                    }
                    site.machine
                        .put_word(slot - site.machine.base, site.target(number));
                    site.compare(mode, &bytes, &before, number);
                    forms += 1;
                }
            }
        }
    }
    assert!(forms > 900, "{forms}");
}

#[test]
fn a_recorder_reads_memory_relative_to_rip_and_to_segments() {
    let (mode, mut noise) = (CounterMode::Plain, Noise(5));
    let site = Site::new(mode);
    let slot = site.machine.base + SLOT;
    site.machine.put_word(SLOT, site.target(3));
    for op in OPS {
        let at = site.original_at(op == Op::Jmp_rm64);
        let memory = MemoryOperand::with_base_displ(Register::RIP, slot as i64);
        let bytes = encode(&Instruction::with1(op, memory).unwrap(), at);
        site.compare(mode, &bytes, &noise.state(&site.machine), 3);
        // A length that differs from the plain one moves the operand.
        let bytes = [hex("66 48"), bytes].concat();
        let place = at + 4;
        let mut bytes = bytes;
        X86_64::write_field(
            postlink_isa::FixupKind::Rel32 { trail: 0 },
            &mut bytes[4..],
            place,
            slot,
        )
        .unwrap();
        site.compare(mode, &bytes, &noise.state(&site.machine), 3);
    }
    let thread: u64;
    // SAFETY: on x86-64 Linux the word at fs:0 holds the address of itself.
    unsafe { std::arch::asm!("mov {}, fs:0", out(reg) thread) };
    for text in ["64 ff 10", "64 ff 20", "2e ff 10"] {
        let mut before = noise.state(&site.machine);
        before.regs[0] = if text.starts_with("64") {
            slot.wrapping_sub(thread)
        } else {
            slot
        };
        site.compare(mode, &hex(text), &before, 3);
    }
}

#[test]
fn a_recorder_reads_memory_below_4_gib() {
    let (mode, mut noise) = (CounterMode::Plain, Noise(6));
    let site = Site::new(mode);
    // SAFETY: an anonymous mapping at a place of the kernel's choice touches nothing that exists.
    let low = unsafe {
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_32BIT,
        );
        libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0)
    };
    assert_ne!(low, libc::MAP_FAILED);
    // SAFETY: the mapping has just been made.
    unsafe { *low.cast::<u64>() = site.target(5) };
    let low = low as u64;
    let absolute = (low as u32).to_le_bytes();
    for (call, jump) in [("ff 14 25", "ff 24 25"), ("41 ff 14 25", "41 ff 24 25")] {
        for text in [call, jump] {
            let bytes = [&hex(text)[..], &absolute].concat();
            site.compare(mode, &bytes, &noise.state(&site.machine), 5);
        }
    }
    for text in ["67 ff 10", "67 ff 60 40", "67 ff 54 48 40"] {
        let mut before = noise.state(&site.machine);
        before.regs[1] = 0xffff_ffff_0000_0010;
        let offset = match text {
            "67 ff 10" => 0,
            "67 ff 60 40" => 0x40,
            _ => 0x60,
        };
        // The upper half of the address does not count.
        before.regs[0] = (low - offset) | (0xabcd << 48);
        site.compare(mode, &hex(text), &before, 5);
    }
}

#[test]
fn a_call_of_the_stack_pointer_goes_where_it_pointed() {
    let mode = CounterMode::Plain;
    let site = Site::new(mode);
    let mut before = Noise(7).state(&site.machine);
    // `ret` on the stack of the harness, which can be executed.
    site.machine
        .put(before.regs[4] - site.machine.base, &[0xc3]);
    for text in ["ff d4", "3e ff d4"] {
        let direct = site.machine.run(
            &Code {
                bytes: hex(text),
                fixups: Vec::new(),
                stack: Vec::new(),
            },
            &before,
        );
        site.machine.put(TABLE, &[0; 64]);
        assert!(site.put_recorder(mode, &hex(text), 0));
        let mut through = Code::default();
        X86_64::put_call(&mut through, site.machine.base + RECORDER);
        for round in 1..3 {
            let mut after = site.machine.run(&through, &before);
            after.regs[11] = direct.regs[11];
            assert_eq!(after.regs, direct.regs);
            assert_eq!(site.table()[..2], [before.regs[4] - site.bias, round]);
        }
        before.flags ^= 1;
    }
}

#[test]
fn what_cannot_be_recorded_is_refused_and_leaves_no_code() {
    let site = Site::new(CounterMode::Plain);
    for text in [
        "ff 18",
        "48 ff 18",
        "ff 28", // far
        "66 ff d0",
        "66 ff 10", // 16 bits or 64, by vendor
        "f3 ff d0",
        "64 3e ff 10",
        "3e f2 ff d0",          // a second segment, a repeat prefix
        "ff 94 24 fc ff ff 7f", // a displacement from rsp that is 8 short of the end
        "e8 00 00 00 00",
        "c3",
        "90",
    ] {
        assert!(
            !site.put_recorder(CounterMode::Plain, &hex(text), 0),
            "{text}"
        );
    }
    // As a jump nothing has been pushed.
    assert!(site.put_recorder(CounterMode::Plain, &hex("ff a4 24 fc ff ff 7f"), 0));
}

/// `fn(target)` that calls the target through the recorder of `call *%rax`.
fn caller(site: &Site, mode: CounterMode) -> extern "C" fn(u64) {
    assert!(site.put_recorder(mode, &hex("ff d0"), 0));
    let mut code = Code::default();
    code.bytes.extend_from_slice(&[0x48, 0x89, 0xf8]); // mov rax,rdi
    X86_64::put_call(&mut code, site.machine.base + RECORDER);
    code.bytes.push(0xc3);
    site.machine
        .put(TAIL, &link(&code, site.machine.base + TAIL));
    // SAFETY: the code follows the C calling convention, and so do the targets.
    unsafe { std::mem::transmute((site.machine.base + TAIL) as *const ()) }
}

#[test]
fn the_owner_of_biased_tables_has_one_of_its_own() {
    let mode = CounterMode::Biased;
    let site = Site::new(mode);
    let call = caller(&site, mode);
    let identity: u64;
    // SAFETY: every thread's control block holds its own address there.
    unsafe { std::arch::asm!("mov {}, fs:[0]", out(reg) identity, options(nostack, readonly)) };
    let numbers = [2, 8, 0, 2, 7, 1, 2, 8, 7, 7, 3, 0];
    let link = |number| site.target(number) - site.bias;
    let expected = [link(2), 3, link(0), 2, link(7), 3, 2, 2];
    for owner in [identity, 0] {
        site.machine.put_word(OWNER, owner);
        site.machine.put(TABLE, &[0; 64]);
        site.machine.put(OWNERS_TABLE, &[0; 64]);
        for number in numbers {
            call(site.target(number));
            assert_eq!(site.traced().0, number + 1);
        }
        let owners: [u64; 8] =
            std::array::from_fn(|word| site.machine.word(OWNERS_TABLE + word as u64 * 8));
        let tables = if owner == 0 {
            (site.table(), owners)
        } else {
            (owners, site.table())
        };
        assert_eq!(tables, (expected, [0; 8]));
    }
}

#[test]
fn targets_take_the_entries_in_order_and_the_rest_overflows() {
    for mode in MODES {
        let site = Site::new(mode);
        let call = caller(&site, mode);
        for number in [2, 8, 0, 2, 7, 1, 2, 8, 7, 7, 3, 0] {
            call(site.target(number));
            assert_eq!(site.traced().0, number + 1);
        }
        let link = |number| site.target(number) - site.bias;
        assert_eq!(
            site.table(),
            [link(2), 3, link(0), 2, link(7), 3, 2, 2],
            "{mode:?}"
        );
    }
}

#[test]
fn the_bounds_of_the_image_decide_what_is_external() {
    let (mode, image) = (
        CounterMode::Plain,
        (LINK + TARGETS + 0x40, LINK + TARGETS + 0xc0),
    );
    let site = Site::new(mode);
    let mut slow = Code::default();
    X86_64::put_site_slow::<u64>(&mut slow, mode, image);
    site.machine.put_code(SLOW, &slow);
    let call = caller(&site, mode);
    (0..5).for_each(|number| call(site.target(number)));
    assert_eq!(site.table(), [image.0, 1, image.0 + 0x40, 1, 0, 0, 3, 0]);
}

#[test]
fn before_the_bias_is_known_every_target_of_a_moved_program_is_external() {
    let site = Site::new(CounterMode::Plain);
    site.machine.put_word(BIAS, 0);
    let call = caller(&site, CounterMode::Plain);
    (0..9).for_each(|number| call(site.target(number)));
    assert_eq!(site.table(), [0, 0, 0, 0, 0, 0, 9, 0]);
}

#[test]
fn threads_share_a_table_without_losing_a_count_or_doubling_an_entry() {
    const ROUNDS: u64 = 20_000;
    for first in 0..20 {
        let site = Site::new(CounterMode::Atomic);
        let call = caller(&site, CounterMode::Atomic);
        let barrier = std::sync::Barrier::new(4);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (site, barrier) = (&site, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    for round in 0..ROUNDS {
                        // Each thread begins with another target, so that they race for the entries.
                        call(site.target((first + thread + round) % 9));
                    }
                });
            }
        });
        let table = site.table();
        let counts = [table[1], table[3], table[5], table[6], table[7]];
        assert_eq!(counts.iter().sum::<u64>(), 4 * ROUNDS, "{table:x?}");
        let external: u64 = (0..4)
            .map(|thread| {
                (0..ROUNDS)
                    .filter(|round| (first + thread + round) % 9 == 8)
                    .count() as u64
            })
            .sum();
        assert_eq!(table[6], external);
        assert!(
            table[0] != table[2] && table[2] != table[4] && table[0] != table[4],
            "{table:x?}"
        );
        for entry in 0..site::ENTRIES as usize {
            let number = (table[entry * 2] + site.bias - site.target(0)) / 0x40;
            let expected: u64 = (0..4)
                .map(|thread| {
                    (0..ROUNDS)
                        .filter(|round| (first + thread + round) % 9 == number)
                        .count() as u64
                })
                .sum();
            assert_eq!(table[entry * 2 + 1], expected, "{table:x?}");
        }
    }
}

#[test]
fn two_threads_that_claim_an_entry_at_once_get_one_each() {
    use std::sync::atomic::{AtomicU64, Ordering};
    let site = Site::new(CounterMode::Plain);
    let call = caller(&site, CounterMode::Plain);
    let (begun, done) = (AtomicU64::new(0), AtomicU64::new(0));
    let (a, b) = (site.target(0) - site.bias, site.target(1) - site.bias);
    let wait = |word: &AtomicU64, value| {
        let mut spins = 0;
        while word.load(Ordering::Acquire) < value {
            spins += 1;
            // Spinning is what makes them meet; but the other one may be waiting for this processor.
            if spins > 200 {
                std::thread::yield_now()
            } else {
                std::hint::spin_loop()
            }
        }
    };
    let end = std::time::Instant::now() + std::time::Duration::from_millis(300);
    std::thread::scope(|scope| {
        let other = site.target(1);
        let (begun, done) = (&begun, &done);
        scope.spawn(move || {
            for round in 1.. {
                wait(begun, round);
                if begun.load(Ordering::Acquire) == u64::MAX {
                    break;
                }
                call(other);
                done.store(round, Ordering::Release);
            }
        });
        let mut wrong = None;
        for round in 1.. {
            site.machine.put(TABLE, &[0; 64]);
            begun.store(round, Ordering::Release);
            call(site.target(0));
            wait(done, round);
            let table = site.table();
            if table != [a, 1, b, 1, 0, 0, 0, 0] && table != [b, 1, a, 1, 0, 0, 0, 0] {
                wrong = Some((round, table));
            }
            if wrong.is_some() || std::time::Instant::now() > end {
                println!("{round} rounds");
                break;
            }
        }
        begun.store(u64::MAX, Ordering::Release);
        assert_eq!(wrong, None);
    });
}
