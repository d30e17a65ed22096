//! The variable, and the file name made of it.

use super::super::encode::{self, cond};
use super::assembler::Label;
use super::{BUFFER, BUFFER_LEN, FILE, FP, LINE, NAME, O_CLOEXEC, Routine, SAVED, VALUE, ZR, call};
use crate::x86_64::runtime::{MIP_VARIABLE, VARIABLE};

/// The entry of the auxiliary vector that says whether the program has more rights than its caller.
const AT_SECURE: u32 = 23;
const EACCES: u32 = 13;
/// Offset of the host name in `struct utsname`.
const NODENAME: u32 = 65;

impl Routine<'_> {
    /// The variable that names the file.
    fn variable(&self) -> &'static str {
        match self.mip {
            Some(_) => MIP_VARIABLE,
            None => VARIABLE,
        }
    }

    /// Looks through what the kernel has put on the stack of a new program: argument count, arguments, 0, variables, 0,
    /// auxiliary vector.
    pub(super) fn find_on_stack(&mut self) {
        let len = self.variable().len() as u32;
        let (pattern, name) = {
            let variable = self.variable();
            (self.a.string(self.config.pattern), self.a.string(variable))
        };
        let a = &mut self.a;
        let [variable, compare, end] = a.labels();
        a.adr(LINE, pattern);
        a.adr(2, name);
        a.put(&[
            encode::mov(10, ZR), // The first variable of the name counts, as for getenv.
            encode::ldr(9, FP, SAVED),
            encode::add_lsl(1, FP, 9, 3),
            encode::add_imm(1, 1, SAVED + 16),
        ]);
        a.bind(variable);
        a.put(&[encode::ldr_post(0, 1, 8)]);
        a.cbz(0, end);
        a.cbnz(10, variable);
        a.put(&[encode::mov(3, ZR)]);
        a.bind(compare);
        a.put(&[
            encode::ldrb_reg(4, 0, 3),
            encode::ldrb_reg(5, 2, 3),
            encode::cmp(4, 5),
        ]);
        a.b_cond(cond::NE, variable);
        a.put(&[encode::add_imm(3, 3, 1), encode::cmp_imm(3, len)]);
        a.b_cond(cond::NE, compare);
        a.put(&[encode::movz(10, 1, 0), encode::ldrb_reg(4, 0, 3)]);
        a.cbz(4, variable);
        a.put(&[encode::add(LINE, 0, 3)]);
        a.b(variable);
        a.bind(end);
        self.refuse_more_rights();
    }

    /// Goes through the auxiliary vector at `x1`.
    fn refuse_more_rights(&mut self) {
        let [entry, end] = self.a.labels();
        let a = &mut self.a;
        a.bind(entry);
        a.put(&[encode::ldp_post(0, 2, 1, 16)]);
        a.cbz(0, end);
        a.put(&[encode::cmp_imm(0, AT_SECURE)]);
        a.b_cond(cond::NE, entry);
        a.cbz(2, end);
        self.fail(
            "postlink: no profile is written by a program with more rights than its caller",
            "",
        );
        self.a.bind(end);
    }

    /// Reads auxiliary vector and environment from `/proc`. Where that is not mounted, nothing can be known:
    /// the pattern is. Where it is but may not be read, the process has been made undumpable, as the kernel
    /// does with one that has more rights than its caller.
    pub(super) fn find_in_proc(&mut self) {
        let (pattern, name) = {
            let variable = self.variable();
            (self.a.string(self.config.pattern), self.a.string(variable))
        };
        let (auxv, environ) = (
            self.a.string("/proc/self/auxv"),
            self.a.string("/proc/self/environ"),
        );
        let [no_auxv, allowed, no_environ, read] = self.a.labels();
        self.a.adr(1, auxv);
        self.open_to_read(no_auxv);
        self.a.put(&[encode::mov(0, FILE)]);
        self.buffer(1, BUFFER);
        self.a.small(2, BUFFER_LEN - 16);
        self.system_call(call::READ);
        let a = &mut self.a;
        // However much was read, it ends there.
        a.b_not_negative(0, read);
        a.put(&[encode::mov(0, ZR)]);
        a.bind(read);
        a.put(&[
            encode::lsr(0, 0, 4),
            encode::add_lsl(2, 1, 0, 4),
            encode::str(ZR, 2, 0),
        ]);
        self.close();
        self.buffer(1, BUFFER);
        self.refuse_more_rights();
        let a = &mut self.a;
        a.b(allowed);
        a.bind(no_auxv);
        a.put(&[encode::cmn_imm(0, EACCES)]);
        a.b_cond(cond::NE, allowed);
        self.fail(
            "postlink: no profile is written by a program that may not read its /proc/self",
            "",
        );
        let a = &mut self.a;
        a.bind(allowed);
        a.adr(LINE, pattern);
        a.adr(1, environ);
        self.open_to_read(no_environ);
        self.read_value(name);
        self.close();
        self.buffer(1, VALUE);
        let a = &mut self.a;
        a.put(&[encode::ldrb(0, 1, 0)]);
        a.cbz(0, no_environ);
        a.put(&[encode::mov(LINE, 1)]);
        a.bind(no_environ);
    }

    /// Copies the value of the variable out of the open environment: a string, empty if the variable is unset.
    fn read_value(&mut self, name: Label) {
        let len = self.variable().len() as u32;
        let [refill, byte, other, restart, copy, too_long, done] = self.a.labels();
        // x10: how much of the variable's name has been seen, -1 in another; x9: where the value continues;
        // x11: its last byte.
        self.buffer(9, VALUE);
        self.buffer(11, NAME); // The value ends where the name begins.
        self.a.put(&[
            encode::mov(10, ZR),
            encode::strb(ZR, 9, 0),
            encode::sub_imm(11, 11, 1),
        ]);
        self.a.bind(refill);
        self.a.put(&[encode::mov(0, FILE)]);
        self.buffer(1, BUFFER);
        self.a.small(2, BUFFER_LEN);
        self.system_call(call::READ);
        let a = &mut self.a;
        a.put(&[encode::cmp_imm(0, 0)]);
        a.b_cond(cond::LE, done);
        a.put(&[encode::add(2, 1, 0)]);
        a.bind(byte);
        a.put(&[encode::cmp(1, 2)]);
        a.b_cond(cond::EQ, refill);
        a.put(&[encode::ldrb_post(3, 1, 1), encode::cmp_imm(10, len)]);
        a.b_cond(cond::EQ, copy);
        a.cbz(3, restart);
        a.b_negative(10, byte);
        a.adr(4, name);
        a.put(&[encode::ldrb_reg(4, 4, 10), encode::cmp(3, 4)]);
        a.b_cond(cond::NE, other);
        a.put(&[encode::add_imm(10, 10, 1)]);
        a.b(byte);
        a.bind(other);
        a.put(&[encode::movn(10, 0)]);
        a.b(byte);
        a.bind(restart);
        a.put(&[encode::mov(10, ZR)]);
        a.b(byte);
        a.bind(copy);
        a.cbz(3, done);
        a.put(&[encode::cmp(9, 11)]); // The last byte is kept for the zero.
        a.b_cond(cond::EQ, too_long);
        a.put(&[encode::strb_post(3, 9, 1), encode::strb(ZR, 9, 0)]);
        a.b(byte);
        a.bind(too_long); // Unless most of it is `%m`, which does not occur.
        self.fail_too_long();
        self.a.bind(done);
    }

    /// Opens the file named at `x1`, or goes to `otherwise` with the error in `x0`.
    fn open_to_read(&mut self, otherwise: Label) {
        self.a.put(&[
            encode::movn(0, 99), // AT_FDCWD
            encode::movz(2, (O_CLOEXEC >> 16) as u16, 1),
            encode::mov(3, ZR),
        ]);
        self.system_call(call::OPENAT);
        self.a.b_negative(0, otherwise);
        self.a.put(&[encode::mov(FILE, 0)]);
    }

    /// Expands the template at `x20` into the name.
    pub(super) fn expand(&mut self) {
        let build_id = self.a.string(self.config.build_id);
        let module = self.mip.map(|mip| self.a.string(mip.module));
        let [next, put, end, too_long] = self.a.labels();
        let [process, build, host, insert, inserted] = self.a.labels();
        self.buffer(2, NAME);
        let a = &mut self.a;
        a.put(&[encode::mov(1, LINE), encode::sub_imm(9, FP, 1)]); // The last byte is kept for the zero.
        a.bind(next);
        a.put(&[
            encode::ldrb_post(3, 1, 1),
            encode::cmp_imm(3, u32::from(b'%')),
        ]);
        a.b_cond(cond::NE, put);
        a.put(&[encode::ldrb_post(3, 1, 1)]);
        for (escape, to) in [
            (b'%', put),
            (b'm', next),
            (b'p', process),
            (b'b', build),
            (b'h', host),
        ] {
            a.put(&[encode::cmp_imm(3, u32::from(escape))]);
            a.b_cond(cond::EQ, to);
        }
        a.put(&[encode::sub_imm(1, 1, 1)]); // It stands for itself.
        a.small(3, u16::from(b'%'));
        a.bind(put);
        a.cbz(3, end);
        a.put(&[encode::cmp(2, 9)]);
        a.b_cond(cond::EQ, too_long);
        a.put(&[encode::strb_post(3, 2, 1)]);
        a.b(next);

        a.bind(process);
        a.put(&[encode::mov(10, 1)]);
        self.system_call(call::GETPID);
        let a = &mut self.a;
        a.bl(self.decimal);
        a.b(insert);
        a.bind(build);
        a.put(&[encode::mov(10, 1)]);
        a.adr(1, build_id);
        a.b(insert);
        a.bind(host);
        a.put(&[encode::mov(10, 1)]);
        if let Some(module) = module {
            a.adr(1, module);
            a.b(insert);
        }
        self.buffer(0, BUFFER);
        // Empty, should there be no name.
        self.a
            .put(&[encode::add_imm(1, 0, NODENAME), encode::strb(ZR, 1, 0)]);
        self.system_call(call::UNAME);
        let a = &mut self.a;
        a.bind(insert);
        a.put(&[encode::ldrb_post(3, 1, 1)]);
        a.cbz(3, inserted);
        a.put(&[encode::cmp(2, 9)]);
        a.b_cond(cond::EQ, too_long);
        a.put(&[encode::strb_post(3, 2, 1)]);
        a.b(insert);
        a.bind(inserted);
        a.put(&[encode::mov(1, 10)]);
        a.b(next);
        a.bind(too_long);
        self.fail_too_long();
        self.a.bind(end);
        self.a.put(&[encode::strb(ZR, 2, 0)]);
    }

    fn fail_too_long(&mut self) {
        self.buffer(0, NAME);
        self.a.put(&[encode::strb(ZR, 0, 0)]);
        self.fail(
            "postlink: the name of the profile has 4096 bytes or more",
            "",
        );
    }
}
