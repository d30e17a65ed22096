//! The start-up routine of an instrumented program, for Linux.
//!
//! What it does, in which order and why is described in [`x86_64::runtime`](crate::x86_64::runtime); this one does
//! the same. What differs:
//!
//! * Pages may have 4, 16 or 64 KiB, and a file is mapped at multiples of them, so the counters are at 64 KiB
//!   in the file and in the image ([`crate::Counters::COUNTER_UNIT`]).
//! * `open` is `openat` here, and the layout of `struct stat` is another.
//! * The magic of a header is written by an exclusive pair with release, which orders it after the rest of
//!   the header; additions are exclusive pairs.
//! * A system call preserves every register but `x0`.
//!
//! # The frame
//!
//! | from `x29` | what |
//! |---|---|
//! | +256 | what `sp` pointed to: the argument count, for a program |
//! | 0 ..= +248 | saved `x0` to `x30`, flags |
//! | -4096 | file name, 4096 bytes |
//! | -8192 | value of the variable, if read from `/proc`, 4096 bytes |
//! | -12288 | whatever a system call fills: 4096 bytes |
//! | -12304 | a number in decimal, 16 bytes |
//!
//! | register | what |
//! |---|---|
//! | `x19` | load bias |
//! | `x20` | template of the name; later how the error line begins (0: none) |
//! | `x21` | file descriptor (-1: none) |
//! | `x22` | mapped header (0: none) |
//! | `x23` | mapped counters (0: none) |
//! | `x24` | in an error line without a number, what follows the name |
//! | `x25` | whether the file has been extended |
//! | `x26` | error number, 0 if there is none |
//!
//! # Files
//!
//! `environment` has the name of the file, `file` the file, `message` the ends; the rest is here.

pub(super) mod assembler;
mod environment;
mod file;
mod message;

use self::assembler::{Assembler, Label};
use super::AArch64;
use super::encode::{self, SP};
use crate::coverage::MipRuntime;
use crate::x86_64::runtime::check;
use crate::{Code, Counters, FixupKind, RuntimeConfig, RuntimeEntry, RuntimeError};

/// The frame's base.
const FP: u32 = 29;
/// Register 31 where it is zero.
const ZR: u32 = 31;
/// After the saved registers.
const SAVED: u32 = 256;
/// Buffers below the base, in units of 4096 bytes.
const NAME: u32 = 1;
const VALUE: u32 = 2;
const BUFFER: u32 = 3;
const BUFFER_LEN: u16 = 4096;

const BIAS: u32 = 19;
const LINE: u32 = 20;
const FILE: u32 = 21;
const HEADER: u32 = 22;
const COUNTERS: u32 = 23;
const TEXT: u32 = 24;
const EXTENDED: u32 = 25;
const ERRNO: u32 = 26;

/// System call numbers.
mod call {
    pub const UNLINKAT: u16 = 35;
    pub const FALLOCATE: u16 = 47;
    pub const OPENAT: u16 = 56;
    pub const CLOSE: u16 = 57;
    pub const READ: u16 = 63;
    pub const WRITEV: u16 = 66;
    pub const PWRITE64: u16 = 68;
    pub const FSTAT: u16 = 80;
    pub const UNAME: u16 = 160;
    pub const GETRLIMIT: u16 = 163;
    pub const GETPID: u16 = 172;
    pub const MUNMAP: u16 = 215;
    pub const MMAP: u16 = 222;
}

/// `O_CLOEXEC`, which `openat` takes in its third argument.
const O_CLOEXEC: u32 = 0o2000000;

/// The routine while it is being put together.
struct Routine<'a> {
    a: Assembler,
    config: &'a RuntimeConfig<'a>,
    /// With a raw machine profile.
    mip: Option<MipRuntime<'a>>,
    start: Label,
    /// `x0` in decimal, as a string at `x1`; destroys `x0`, `x3` to `x5`.
    decimal: Label,
    /// Appends the string at `x1` to the vector at `x2`; destroys `x3`, `x4`.
    piece: Label,
    /// Adds `x7` to the count of target `x6` in the site table at `x10`; destroys `x0`, `x1`, `x14`, `x15`.
    record: Label,
    /// A way into the end, with the beginning of the error line in `x20`: `x0` is a negative error number.
    errno: Label,
    /// The same: `x24` is what follows the name.
    text: Label,
}

/// The start-up routine; see [`crate::Runtime::runtime`].
pub fn runtime(config: &RuntimeConfig<'_>) -> Result<Vec<u8>, RuntimeError> {
    assemble(config, None)
}

/// The start-up routine of a program that writes a raw machine profile.
pub fn mip_runtime(
    config: &RuntimeConfig<'_>,
    mip: MipRuntime<'_>,
) -> Result<Vec<u8>, RuntimeError> {
    assemble(config, Some(mip))
}

fn assemble(
    config: &RuntimeConfig<'_>,
    mip: Option<MipRuntime<'_>>,
) -> Result<Vec<u8>, RuntimeError> {
    check(config, AArch64::COUNTER_UNIT)?;
    let mut a = Assembler::default();
    let [start, decimal, piece, record, errno, text] = a.labels();
    let mut routine = Routine {
        a,
        config,
        mip,
        start,
        decimal,
        piece,
        record,
        errno,
        text,
    };
    routine.enter();
    routine.store_bias();
    match config.entry {
        RuntimeEntry::Program { .. } => routine.find_on_stack(),
        RuntimeEntry::Library { .. } => routine.find_in_proc(),
    }
    routine.expand();
    routine.open();
    routine.bring_to_size();
    routine.agree_on_header();
    routine.merge();
    routine.lay_over();
    routine.release();
    routine.say_what_failed();
    let goes_on = routine.leave();
    routine.put_decimal();
    routine.put_piece();
    routine.put_record();
    let mut bytes = routine.a.finish()?;
    if let Some((at, next)) = goes_on {
        let place = config.at.wrapping_add(at as u64);
        if super::branch::write_field(FixupKind::Branch26, &mut bytes[at..], place, next).is_err() {
            let mut far: Code<u64> = Code::default();
            super::branch::put_veneer(&mut far, next);
            for f in &far.fixups {
                let i = f.at as usize;
                super::branch::write_field(
                    f.kind,
                    &mut far.bytes[i..],
                    place.wrapping_add(i as u64),
                    f.target,
                )?;
            }
            bytes[at..at + far.bytes.len()].copy_from_slice(&far.bytes);
        }
    }
    // Code may follow.
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    Ok(bytes)
}

impl Routine<'_> {
    fn enter(&mut self) {
        let a = &mut self.a;
        a.bind(self.start);
        // The kernel, the dynamic loader or libc comes here through a pointer.
        a.put(&[encode::BTI_C, encode::sub_imm(SP, SP, SAVED)]);
        for pair in 0..15 {
            a.put(&[encode::stp(2 * pair, 2 * pair + 1, SP, 16 * pair as i32)]);
        }
        a.put(&[
            encode::mrs_nzcv(9),
            encode::stp(30, 9, SP, 240),
            encode::add_imm(FP, SP, 0),
            encode::sub_imm_high(SP, FP, BUFFER),
            encode::sub_imm(SP, SP, 16),
            encode::movn(FILE, 0),
            encode::mov(HEADER, ZR),
            encode::mov(COUNTERS, ZR),
        ]);
        self.buffer(9, NAME);
        self.a.put(&[encode::strb(ZR, 9, 0)]); // For an error line before there is a name.
    }

    fn store_bias(&mut self) {
        let (a, config) = (&mut self.a, self.config);
        a.adr(BIAS, self.start);
        a.number(9, config.at);
        a.put(&[encode::sub(BIAS, BIAS, 9)]);
        a.number(9, config.bias_slot);
        a.put(&[encode::str_reg(BIAS, 9, BIAS)]);
    }

    /// Returns where the jump is that continues, and where to.
    fn leave(&mut self) -> Option<(usize, u64)> {
        let next = match self.config.entry {
            RuntimeEntry::Program { next } => Some(next),
            RuntimeEntry::Library { next } => next,
        };
        let a = &mut self.a;
        a.put(&[
            encode::add_imm(SP, FP, 0),
            encode::ldp(30, 9, SP, 240),
            encode::msr_nzcv(9),
        ]);
        for pair in 0..15 {
            a.put(&[encode::ldp(2 * pair, 2 * pair + 1, SP, 16 * pair as i32)]);
        }
        a.put(&[encode::add_imm(SP, SP, SAVED)]);
        let at = a.len();
        // A jump, or a veneer if that does not reach.
        match next {
            Some(_) => a.put(&[encode::B, encode::NOP, encode::NOP]),
            None => a.put(&[encode::RET]),
        }
        next.map(|next| (at, next))
    }

    /// The result is in `x0`; nothing else changes but `x8`.
    fn system_call(&mut self, number: u16) {
        self.a.small(8, number);
        self.a.put(&[encode::SVC]);
    }

    /// The address of a buffer.
    fn buffer(&mut self, register: u32, which: u32) {
        self.a.put(&[encode::sub_imm_high(register, FP, which)]);
    }

    /// Closes the file.
    fn close(&mut self) {
        self.a.put(&[encode::mov(0, FILE)]);
        self.system_call(call::CLOSE);
        self.a.put(&[encode::movn(FILE, 0)]);
    }

    /// Goes to the end with a line of two texts around the name.
    fn fail(&mut self, line: &str, text: &str) {
        let (line, text) = (self.a.string(line), self.a.string(text));
        self.a.adr(LINE, line);
        self.a.adr(TEXT, text);
        self.a.b(self.text);
    }
}
