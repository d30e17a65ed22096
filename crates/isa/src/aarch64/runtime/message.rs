//! The end, good or bad: everything given back, and one line about what failed.

use super::super::encode::{self, cond};
use super::{BUFFER, COUNTERS, ERRNO, FILE, FP, HEADER, LINE, NAME, Routine, TEXT, ZR, call};
use crate::x86_64::runtime::error_texts;

/// The standard error output.
const STDERR: u16 = 2;

impl Routine<'_> {
    /// Unmaps and closes what is left. Success comes from above, failures come to the two labels. After it, `x20` says
    /// whether there is an error line, and `x26` is the error number, 0 if there is none.
    pub(super) fn release(&mut self) {
        let counters_len = self.config.counters_len;
        let [end, no_counters, no_header, no_file] = self.a.labels();
        let a = &mut self.a;
        a.put(&[encode::mov(LINE, ZR)]);
        a.b(end);
        a.bind(self.errno);
        a.put(&[encode::sub(ERRNO, ZR, 0)]);
        a.b(end);
        a.bind(self.text);
        a.put(&[encode::mov(ERRNO, ZR)]);
        a.bind(end);
        a.cbz(COUNTERS, no_counters);
        a.put(&[encode::mov(0, COUNTERS)]);
        a.constant(1, counters_len);
        self.system_call(call::MUNMAP);
        self.a.bind(no_counters);
        self.a.cbz(HEADER, no_header);
        self.a.put(&[encode::mov(0, HEADER)]);
        self.a.small(1, 4096);
        self.system_call(call::MUNMAP);
        self.a.bind(no_header);
        // Before anything is said: a program without standard error may have got the file in its place.
        self.a.b_negative(FILE, no_file);
        self.close();
        self.a.bind(no_file);
    }

    /// One line in one piece, so that lines of several processes do not mix: beginning, name, and the error
    /// or the text.
    pub(super) fn say_what_failed(&mut self) {
        let mut table = Vec::new();
        let (texts, others) = error_texts(self.mip.is_some());
        for (number, text) in texts {
            table.extend_from_slice(&[&[number][..], text.as_bytes(), &[0]].concat());
        }
        table.extend_from_slice(&[&[0], others.as_bytes(), &[0]].concat());
        let errors = self.a.data(&table);
        let (number, open, close) = (
            self.a.string(": errno "),
            self.a.string(" ("),
            self.a.string(")"),
        );
        let rest = self.a.string("; this run is not recorded\n");
        let [find, skip, found, no_number, end, silent] = self.a.labels();
        self.a.cbz(LINE, silent);
        self.buffer(2, BUFFER);
        self.a.put(&[encode::mov(1, LINE)]);
        self.a.bl(self.piece);
        self.buffer(1, NAME);
        let a = &mut self.a;
        a.bl(self.piece);
        a.cbz(ERRNO, no_number);
        a.adr(1, number);
        a.bl(self.piece);
        a.put(&[encode::mov(0, ERRNO)]);
        a.bl(self.decimal);
        a.bl(self.piece);
        a.adr(1, open);
        a.bl(self.piece);
        a.adr(1, errors);
        a.bind(find);
        a.put(&[encode::ldrb_post(0, 1, 1)]);
        a.cbz(0, found);
        a.put(&[encode::cmp(0, ERRNO)]);
        a.b_cond(cond::EQ, found);
        a.bind(skip);
        a.put(&[encode::ldrb_post(0, 1, 1)]);
        a.cbnz(0, skip);
        a.b(find);
        a.bind(found);
        a.bl(self.piece);
        a.adr(1, close);
        a.bl(self.piece);
        a.b(end);
        a.bind(no_number);
        a.put(&[encode::mov(1, TEXT)]);
        a.bl(self.piece);
        a.bind(end);
        a.adr(1, rest);
        a.bl(self.piece);
        self.buffer(1, BUFFER);
        self.a.put(&[encode::sub(2, 2, 1), encode::lsr(2, 2, 4)]);
        self.a.small(0, STDERR);
        self.system_call(call::WRITEV);
        self.a.bind(silent);
    }

    /// The subroutine `decimal`.
    pub(super) fn put_decimal(&mut self) {
        let a = &mut self.a;
        let digit = a.label();
        a.bind(self.decimal);
        // The digits are below the buffer.
        a.put(&[
            encode::sub_imm_high(1, FP, BUFFER),
            encode::strb_pre(ZR, 1, -1),
        ]);
        a.small(5, 10);
        a.bind(digit);
        a.put(&[
            encode::udiv(3, 0, 5),
            encode::msub(4, 3, 5, 0),
            encode::add_imm(4, 4, u32::from(b'0')),
            encode::strb_pre(4, 1, -1),
            encode::mov(0, 3),
        ]);
        a.cbnz(0, digit);
        a.put(&[encode::RET]);
    }

    /// The subroutine `piece`: an element of a vector for `writev`, address and length.
    pub(super) fn put_piece(&mut self) {
        let a = &mut self.a;
        let [byte, end] = a.labels();
        a.bind(self.piece);
        a.put(&[encode::mov(3, ZR)]);
        a.bind(byte);
        a.put(&[encode::ldrb_reg(4, 1, 3)]);
        a.cbz(4, end);
        a.put(&[encode::add_imm(3, 3, 1)]);
        a.b(byte);
        a.bind(end);
        a.put(&[
            encode::stp(1, 3, 2, 0),
            encode::add_imm(2, 2, 16),
            encode::RET,
        ]);
    }
}
