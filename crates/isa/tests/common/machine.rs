//! Runs code for real: loads every general register and the flags, runs a snippet, and stores them all.
//!
//! One anonymous mapping, readable, writable and executable:
//!
//! | offset | what |
//! |---|---|
//! | 0 | state before: 16 registers by number, flags |
//! | 0x200 | state after |
//! | 0x400 | stack pointer of the caller |
//! | [`DATA`] | free for the test |
//! | [`STACK`] | 64 KiB in the middle of which `rsp` starts, filled with a pattern |
//! | [`CODE`] | prologue, snippet, epilogue |
//! | [`MORE`] | more code, put there by the test |
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

use postlink_isa::x86_64::X86_64;
use postlink_isa::{Code, Encode, FixupKind};

pub const DATA: u64 = 0x1000;
pub const STACK: u64 = 0x1_0000;
pub const STACK_LEN: u64 = 0x1_0000;
pub const CODE: u64 = 0x2_0000;
pub const MORE: u64 = 0x4_0000;
const LEN: usize = 0x10_0000;

/// CF PF AF ZF SF OF DF in the flags register.
pub const FLAGS: u64 = 0x1 | 0x4 | 0x10 | 0x40 | 0x80 | 0x800 | 0x400;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// By number in the encoding; 4 is `rsp`.
    pub regs: [u64; 16],
    /// Those of [`FLAGS`].
    pub flags: u64,
}

pub struct Machine {
    pub base: u64,
}

impl Machine {
    pub fn new() -> Machine {
        // SAFETY: an anonymous mapping at a place of the kernel's choice touches nothing that exists.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                LEN,
                libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(base, libc::MAP_FAILED);
        Machine { base: base as u64 }
    }

    /// The operand of memory at an offset that per-thread code has for it. From here on this thread's GS base says so.
    pub fn own(&self, offset: u64) -> u64 {
        const ARCH_SET_GS: libc::c_long = 0x1001;
        const BELOW: u64 = 0x7000;
        // SAFETY: nothing else in this process uses the GS base.
        let result = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_SET_GS, self.base - BELOW) };
        assert_eq!(result, 0);
        offset + BELOW
    }

    /// Writes bytes at an offset.
    pub fn put(&self, offset: u64, bytes: &[u8]) {
        assert!(offset as usize + bytes.len() <= LEN);
        // SAFETY: within the mapping, as just checked.
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                (self.base + offset) as *mut u8,
                bytes.len(),
            )
        }
    }

    /// The bytes at an offset.
    pub fn get(&self, offset: u64, len: usize) -> Vec<u8> {
        assert!(offset as usize + len <= LEN);
        // SAFETY: within the mapping, as just checked.
        unsafe { std::slice::from_raw_parts((self.base + offset) as *const u8, len).to_vec() }
    }

    pub fn put_word(&self, offset: u64, word: u64) {
        self.put(offset, &word.to_le_bytes());
    }

    pub fn word(&self, offset: u64) -> u64 {
        u64::from_le_bytes(self.get(offset, 8).try_into().unwrap())
    }

    /// Puts code at an offset with its fixups resolved; their targets are addresses.
    pub fn put_code(&self, offset: u64, code: &Code<u64>) {
        self.put(offset, &link(code, self.base + offset));
    }

    /// Where `rsp` is when nothing else is asked for.
    pub fn stack(&self) -> u64 {
        self.base + STACK + STACK_LEN / 2
    }

    /// Fills the stack with a pattern.
    pub fn paint_stack(&self) {
        let paint: Vec<u8> = (0..STACK_LEN).map(|at| (at * 7 + 13) as u8).collect();
        self.put(STACK, &paint);
    }

    /// Runs `code` as from `before`, and returns the state after its last byte.
    pub fn run(&self, code: &Code<u64>, before: &State) -> State {
        self.put(0, &before.regs.map(u64::to_le_bytes).concat());
        self.put_word(16 * 8, before.flags | 0x202);
        let mut text = Vec::new();
        // push rbx, rbp, r12..r15
        text.extend_from_slice(&[0x53, 0x55, 0x41, 0x54, 0x41, 0x55, 0x41, 0x56, 0x41, 0x57]);
        self.memory(&mut text, &[0x48, 0x89, 0x25], 0x400); // mov [saved],rsp
        self.memory(&mut text, &[0xff, 0x35], 16 * 8); // push [flags]
        text.push(0x9d); // popfq
        for register in 0..16 {
            self.memory(&mut text, &mov(0x8b, register), u64::from(register) * 8);
        }
        let at = self.base + CODE + text.len() as u64;
        text.extend_from_slice(&link(code, at));
        for register in 0..16 {
            self.memory(
                &mut text,
                &mov(0x89, register),
                0x200 + u64::from(register) * 8,
            );
        }
        self.memory(&mut text, &[0x48, 0x8b, 0x25], 0x400); // mov rsp,[saved]
        text.push(0x9c); // pushfq
        self.memory(&mut text, &[0x8f, 0x05], 0x200 + 16 * 8); // pop [flags]
        text.push(0xfc); // cld
        text.extend_from_slice(&[
            0x41, 0x5f, 0x41, 0x5e, 0x41, 0x5d, 0x41, 0x5c, 0x5d, 0x5b, 0xc3,
        ]);
        self.put(CODE, &text);
        // SAFETY: the code just written follows the C calling convention. What the snippet does is the test's matter.
        unsafe {
            let run: extern "C" fn() = std::mem::transmute((self.base + CODE) as *const ());
            run();
        }
        let mut after = State {
            regs: [0; 16],
            flags: self.word(0x200 + 16 * 8) & FLAGS,
        };
        for register in 0..16 {
            after.regs[register as usize] = self.word(0x200 + register * 8);
        }
        after
    }

    /// Appends an instruction whose operand is at an offset of the mapping, relative to `rip`.
    fn memory(&self, text: &mut Vec<u8>, opcode: &[u8], offset: u64) {
        text.extend_from_slice(opcode);
        let place = self.base + CODE + text.len() as u64;
        let mut field = [0; 4];
        X86_64::write_field(
            FixupKind::Rel32 { trail: 0 },
            &mut field,
            place,
            self.base + offset,
        )
        .unwrap();
        text.extend_from_slice(&field);
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // SAFETY: the mapping is this machine's own, and nothing refers to it any more.
        unsafe { libc::munmap(self.base as *mut libc::c_void, LEN) };
    }
}

fn mov(opcode: u8, register: u8) -> [u8; 3] {
    [
        0x48 | register >> 3 << 2,
        opcode,
        0x05 | (register & 7) << 3,
    ]
}

/// The code's bytes as they are at `at`.
pub fn link(code: &Code<u64>, at: u64) -> Vec<u8> {
    let mut bytes = code.bytes.clone();
    for fixup in &code.fixups {
        let offset = fixup.at as usize;
        X86_64::write_field(
            fixup.kind,
            &mut bytes[offset..],
            at + offset as u64,
            fixup.target,
        )
        .unwrap();
    }
    bytes
}

/// A small generator of bit patterns, the same in every run.
pub struct Noise(pub u64);

impl Noise {
    pub fn next(&mut self) -> u64 {
        // splitmix64, by Sebastiano Vigna.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    /// Random registers and flags, with `rsp` on the machine's stack.
    pub fn state(&mut self, machine: &Machine) -> State {
        let mut state = State {
            regs: [0; 16],
            flags: self.next() & FLAGS,
        };
        for register in &mut state.regs {
            // Small and special values are as likely as large ones.
            *register = match self.next() % 4 {
                0 => self.next() % 4,
                1 => u64::MAX << (self.next() % 64),
                _ => self.next(),
            };
        }
        state.regs[4] = machine.stack();
        state
    }
}
