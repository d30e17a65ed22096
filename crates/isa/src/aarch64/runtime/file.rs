//! The file opened, brought to its size, agreed on, added to, and laid over the counters.

use super::super::AArch64;
use super::super::encode::{self, cond};
use super::assembler::Label;
use super::{BUFFER, COUNTERS, EXTENDED, FILE, HEADER, LINE, NAME, O_CLOEXEC, Routine, ZR, call};
use crate::Counters;
use crate::x86_64::site;

/// `O_RDWR`, `O_CREAT`, `O_NOCTTY`.
const O_PROFILE: u32 = 0o2 | 0o100 | 0o400 | O_CLOEXEC;
const MODE: u16 = 0o666;
const PROT_READ_WRITE: u16 = 3;
const MAP_SHARED: u16 = 1;
const MAP_FIXED: u16 = 0x10;
/// Offsets in `struct stat`.
const ST_MODE: u32 = 16;
const ST_SIZE: u32 = 48;
const S_IFMT: u16 = 0o170000;
const S_IFREG: u32 = 0o100000;

/// The limit on the size of a file.
const RLIMIT_FSIZE: u16 = 1;
const EFBIG: u32 = 27;
/// Errors that say that there is no space: EIO, EFBIG, ENOSPC, EDQUOT.
const NO_ROOM: [u32; 4] = [5, EFBIG, 28, 122];

/// Bytes of the header that are mapped; the system rounds them up to its page.
const HEADER_LEN: u16 = 4096;

impl Routine<'_> {
    fn line(&mut self, text: &str) {
        let label = self.a.string(text);
        self.a.adr(LINE, label);
    }

    pub(super) fn open(&mut self) {
        self.line("postlink: cannot open profile ");
        if self.mip.is_some_and(|mip| mip.fresh) {
            // A process that has the old file mapped keeps it; whether there was one does not matter.
            self.buffer(1, NAME);
            self.a.put(&[encode::movn(0, 99), encode::mov(2, ZR)]); // AT_FDCWD
            self.system_call(call::UNLINKAT);
        }
        self.buffer(1, NAME);
        self.a.put(&[
            encode::movn(0, 99), // AT_FDCWD
            encode::movz(2, O_PROFILE as u16, 0),
            encode::movk(2, (O_PROFILE >> 16) as u16, 1),
        ]);
        self.a.small(3, MODE);
        self.system_call(call::OPENAT);
        self.a.b_negative(0, self.errno);
        self.a.put(&[encode::mov(FILE, 0)]);
    }

    pub(super) fn bring_to_size(&mut self) {
        let size = AArch64::COUNTER_UNIT + self.config.counters_len; // Cannot overflow: checked.
        let [again, regular, unlimited, unlike, sized] = self.a.labels();
        self.a.put(&[encode::mov(EXTENDED, ZR)]);
        self.a.bind(again);
        self.line("postlink: cannot get the size of profile ");
        self.a.put(&[encode::mov(0, FILE)]);
        self.buffer(1, BUFFER);
        self.system_call(call::FSTAT);
        let a = &mut self.a;
        a.b_negative(0, self.errno);
        a.put(&[encode::ldr32(0, 1, ST_MODE)]);
        a.small(2, S_IFMT);
        a.put(&[
            encode::and(0, 0, 2),
            encode::lsr(0, 0, 12),
            encode::cmp_imm(0, S_IFREG >> 12),
        ]);
        a.b_cond(cond::EQ, regular);
        self.fail("postlink: profile ", " is not a regular file");
        let a = &mut self.a;
        a.bind(regular);
        a.put(&[encode::ldr(0, 1, ST_SIZE)]);
        a.constant(9, size);
        a.put(&[encode::cmp(0, 9)]);
        a.b_cond(cond::EQ, sized);
        a.put(&[encode::orr(0, 0, EXTENDED)]);
        a.cbnz(0, unlike);
        a.small(EXTENDED, 1);
        self.line("postlink: cannot extend profile ");
        // Beyond this limit the kernel sends a signal that kills.
        self.a.small(0, RLIMIT_FSIZE);
        self.system_call(call::GETRLIMIT);
        let a = &mut self.a;
        a.cbnz(0, unlimited);
        a.put(&[
            encode::ldr(2, 1, 0),
            encode::cmp(2, 9),
            encode::movn(0, EFBIG as u16 - 1),
        ]);
        a.b_cond(cond::LO, self.errno);
        a.bind(unlimited);
        a.put(&[
            encode::mov(0, FILE),
            encode::mov(1, ZR),
            encode::mov(2, ZR),
            encode::mov(3, 9),
        ]);
        self.system_call(call::FALLOCATE);
        let a = &mut self.a;
        a.cbz(0, again);
        for error in NO_ROOM {
            a.put(&[encode::cmn_imm(0, error)]);
            a.b_cond(cond::EQ, self.errno);
        }
        // The file system cannot do it, or it is forbidden.
        let zero = a.string("");
        a.put(&[encode::mov(0, FILE)]);
        a.adr(1, zero);
        a.small(2, 1);
        a.put(&[encode::sub_imm(3, 9, 1)]);
        self.system_call(call::PWRITE64);
        let a = &mut self.a;
        a.b_negative(0, self.errno);
        a.b(again);
        a.bind(unlike);
        self.fail_unlike();
        self.a.bind(sized);
    }

    fn fail_unlike(&mut self) {
        self.fail(
            "postlink: profile ",
            " belongs to another program or build (%b in its name keeps them apart)",
        );
    }

    pub(super) fn agree_on_header(&mut self) {
        let header = self.a.data(self.config.header);
        // At most 4096, and at least 8 of them are compared: checked.
        let (len, check) = (
            self.config.header.len() as u16,
            self.config.header_check as u16,
        );
        let [
            byte,
            like,
            unlike,
            copy,
            copied,
            magic,
            compare,
            same,
            agreed,
        ] = self.a.labels();
        self.line("postlink: cannot map profile ");
        self.a.put(&[encode::mov(0, ZR), encode::mov(5, ZR)]);
        self.a.small(1, HEADER_LEN);
        self.a.small(3, MAP_SHARED);
        self.map();
        let a = &mut self.a;
        a.put(&[encode::mov(HEADER, 0)]);
        a.adr(2, header);
        a.put(&[encode::ldr(3, HEADER, 0)]);
        a.cbnz(3, compare);
        // New, or being written by another process, or left so by one that was killed.
        a.small(3, check);
        a.bind(byte);
        a.put(&[encode::sub_imm(3, 3, 1), encode::ldrb_reg(4, HEADER, 3)]);
        a.cbz(4, like);
        a.put(&[encode::ldrb_reg(5, 2, 3), encode::cmp(4, 5)]);
        a.b_cond(cond::NE, unlike);
        a.bind(like);
        a.cbnz(3, byte);
        a.small(3, len);
        a.bind(copy);
        a.put(&[encode::cmp_imm(3, 8)]);
        a.b_cond(cond::EQ, copied);
        a.put(&[
            encode::sub_imm(3, 3, 1),
            encode::ldrb_reg(4, 2, 3),
            encode::strb_reg(4, HEADER, 3),
        ]);
        a.b(copy);
        a.bind(copied);
        // The header's data need not be aligned; this machine loads words from anywhere.
        a.put(&[encode::ldr(3, 2, 0)]);
        a.bind(magic);
        a.put(&[encode::ldaxr(4, HEADER)]);
        a.cbnz(4, compare);
        a.put(&[encode::stlxr(5, 3, HEADER)]);
        a.cbnz(5, magic);
        a.bind(compare);
        a.small(3, check);
        a.bind(same);
        a.cbz(3, agreed);
        a.put(&[
            encode::sub_imm(3, 3, 1),
            encode::ldrb_reg(4, 2, 3),
            encode::ldrb_reg(5, HEADER, 3),
            encode::cmp(4, 5),
        ]);
        a.b_cond(cond::EQ, same);
        a.bind(unlike);
        self.fail_unlike();
        self.a.bind(agreed);
    }

    /// Adds a register to the word that another points to; destroys `x14`, `x15`.
    fn add_to(&mut self, address: u32, value: u32) {
        self.a.put(&[
            encode::ldxr(14, address),
            encode::add(14, 14, value),
            encode::stxr(15, 14, address),
            encode::cbnz32(15, -3),
        ]);
    }

    /// Joins a register and the word that another points to; destroys `x14`, `x15`.
    fn join(&mut self, address: u32, value: u32) {
        self.a.put(&[
            encode::ldxr(14, address),
            encode::orr(14, 14, value),
            encode::stxr(15, 14, address),
            encode::cbnz32(15, -3),
        ]);
    }

    /// Adds the private counters to the file.
    pub(super) fn merge(&mut self) {
        let config = self.config;
        let [word, zero, table, end] = self.a.labels();
        self.line("postlink: cannot map profile ");
        self.a.put(&[encode::mov(0, ZR)]);
        self.a.constant(1, config.counters_len);
        self.a.small(3, MAP_SHARED);
        self.a.constant(5, AArch64::COUNTER_UNIT);
        self.map();
        let a = &mut self.a;
        // x10: in the file; x11: in the image, up to x12 counters, up to x13 site tables.
        a.put(&[encode::mov(COUNTERS, 0), encode::mov(10, 0)]);
        a.number(11, config.counters);
        a.put(&[encode::add(11, 11, super::BIAS)]);
        a.constant(12, config.sites_offset);
        a.put(&[encode::add(12, 12, 11)]);
        let has_sites = config.has_sites();
        if has_sites {
            a.constant(13, config.counters_len);
            a.put(&[encode::add(13, 13, 11)]);
        }
        a.bind(word);
        a.put(&[encode::cmp(11, 12)]);
        a.b_cond(cond::EQ, if has_sites { table } else { end });
        a.put(&[encode::ldr_post(0, 11, 8)]);
        a.cbz(0, zero);
        match self.mip {
            Some(_) => self.join(10, 0),
            None => self.add_to(10, 0),
        }
        let a = &mut self.a;
        a.bind(zero);
        a.put(&[encode::add_imm(10, 10, 8)]);
        a.b(word);
        if has_sites {
            self.merge_sites(table, end);
        }
        self.a.bind(end);
    }

    /// Adds site tables: from `x11` on, up to `x13`, to those at `x10`.
    fn merge_sites(&mut self, table: Label, end: Label) {
        let a = &mut self.a;
        a.bind(table);
        a.put(&[encode::cmp(11, 13)]);
        a.b_cond(cond::EQ, end);
        for entry in 0..site::ENTRIES {
            let a = &mut self.a;
            let empty = a.label();
            a.put(&[encode::ldp(6, 7, 11, entry as i32 * 16)]);
            a.cbz(6, empty);
            a.bl(self.record);
            a.bind(empty);
        }
        for index in [site::EXTERNAL, site::OVERFLOW] {
            let zero = self.a.label();
            self.a.put(&[
                encode::ldr(0, 11, index * 8),
                encode::add_imm(1, 10, index * 8),
            ]);
            self.a.cbz(0, zero);
            self.add_to(1, 0);
            self.a.bind(zero);
        }
        let a = &mut self.a;
        a.put(&[encode::add_imm(11, 11, 64), encode::add_imm(10, 10, 64)]);
        a.b(table);
    }

    /// The subroutine `record`: the rule of the recorders' slow path.
    pub(super) fn put_record(&mut self) {
        if !self.config.has_sites() {
            return;
        }
        self.a.bind(self.record);
        for entry in 0..site::ENTRIES {
            let [again, found, next] = self.a.labels();
            let a = &mut self.a;
            a.put(&[encode::add_imm(1, 10, entry * 16)]);
            a.bind(again);
            a.put(&[encode::ldaxr(0, 1), encode::cmp(0, 6)]);
            a.b_cond(cond::EQ, found);
            a.cbnz(0, next);
            a.put(&[encode::stlxr(15, 6, 1)]);
            a.cbnz(15, again);
            a.bind(found);
            a.put(&[encode::add_imm(1, 1, 8)]);
            self.add_to(1, 7);
            self.a.put(&[encode::RET]);
            self.a.bind(next);
        }
        self.a.put(&[encode::add_imm(1, 10, site::OVERFLOW * 8)]);
        self.add_to(1, 7);
        self.a.put(&[encode::RET]);
    }

    pub(super) fn lay_over(&mut self) {
        let config = self.config;
        self.line("postlink: cannot map over the counters profile ");
        self.a.number(0, config.counters);
        self.a.put(&[encode::add(0, 0, super::BIAS)]);
        self.a.constant(1, config.counters_len);
        self.a.small(3, MAP_SHARED | MAP_FIXED);
        self.a.constant(5, AArch64::COUNTER_UNIT);
        self.map();
    }

    /// Maps `x1` bytes of the file from `x5` on at `x0`, with the flags in `x3`; the address is in `x0`.
    fn map(&mut self) {
        self.a.small(2, PROT_READ_WRITE);
        self.a.put(&[encode::mov(4, FILE)]);
        self.system_call(call::MMAP);
        self.a.b_negative(0, self.errno);
    }
}
