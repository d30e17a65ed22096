//! Steps 3 and 4: the variable, and the file name made of it.

use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::{BUFFER, BUFFER_LEN, NAME, NAME_LEN, O_CLOEXEC, Routine, VALUE, call, emit, labels};

/// The environment variable that names the profile file, as it is before its value.
pub const VARIABLE: &str = "POSTLINK_PROFILE=";

/// The same for a machine profile.
pub const MIP_VARIABLE: &str = "LLVM_MIP_PROFILE_FILENAME=";

/// The entry of the auxiliary vector that says whether the program has more rights than its caller.
const AT_SECURE: i32 = 23;
const EACCES: i32 = 13;
/// Offset of the host name in `struct utsname`.
const NODENAME: i32 = 65;

impl Routine<'_> {
    /// The variable that names the file.
    fn variable(&self) -> &'static str {
        if self.mip.is_some() {
            MIP_VARIABLE
        } else {
            VARIABLE
        }
    }

    /// Looks through what the kernel has put on the stack of a new program: argument count, arguments, 0, variables, 0,
    /// auxiliary vector. `r10` is where that is; `r12` becomes the template.
    pub(super) fn find_on_stack(&mut self) -> Result<(), IcedError> {
        let variable_name = self.variable();
        let (pattern, name) = (self.string(self.config.pattern), self.string(variable_name));
        let a = &mut self.a;
        let [mut variable, mut compare, mut end] = labels(a);
        emit! { a;
            lea(r12, ptr(pattern));
            lea(rdx, ptr(name));
            xor(r8d, r8d); // The first variable of the name counts, as for getenv.
            mov(rax, qword_ptr(r10));
            lea(rsi, ptr(r10 + rax * 8 + 16));
            set_label(&mut variable);
            mov(rdi, qword_ptr(rsi));
            add(rsi, 8);
            test(rdi, rdi);
            je(end);
            test(r8d, r8d);
            jne(variable);
            xor(ecx, ecx);
            set_label(&mut compare);
            mov(al, byte_ptr(rdi + rcx));
            cmp(al, byte_ptr(rdx + rcx));
            jne(variable);
            inc(ecx);
            cmp(ecx, variable_name.len() as i32);
            jne(compare);
            inc(r8d);
            cmp(byte_ptr(rdi + rcx), 0);
            je(variable);
            lea(r12, ptr(rdi + rcx));
            jmp(variable);
            set_label(&mut end);
            nop(); // A label must have an instruction of its own.
        }
        self.refuse_more_rights()
    }

    /// Goes through the auxiliary vector at `rsi`.
    fn refuse_more_rights(&mut self) -> Result<(), IcedError> {
        let line = self.string(
            "postlink: no profile is written by a program with more rights than its caller",
        );
        let (nothing, failures) = (self.string(""), self.failures);
        let a = &mut self.a;
        let [mut entry, mut end] = labels(a);
        emit! { a;
            set_label(&mut entry);
            mov(rax, qword_ptr(rsi));
            test(rax, rax);
            je(end);
            add(rsi, 16);
            cmp(rax, AT_SECURE);
            jne(entry);
            cmp(qword_ptr(rsi - 8), 0);
            je(end);
            lea(r12, ptr(line));
            lea(rbx, ptr(nothing));
            jmp(failures.text);
            set_label(&mut end);
            nop();
        }
        Ok(())
    }

    /// Reads auxiliary vector and environment from `/proc`. Where that is not mounted, nothing can be known:
    /// the pattern is. Where it is but may not be read, the process has been made undumpable, as the kernel
    /// does with one that has more rights than its caller.
    pub(super) fn find_in_proc(&mut self) -> Result<(), IcedError> {
        let variable = self.variable();
        let (pattern, name) = (self.string(self.config.pattern), self.string(variable));
        let (auxv, environ) = (
            self.string("/proc/self/auxv"),
            self.string("/proc/self/environ"),
        );
        let undumpable = self.string(
            "postlink: no profile is written by a program that may not read its /proc/self",
        );
        let (nothing, failures) = (self.string(""), self.failures);
        let [mut no_auxv, mut allowed, mut no_environ] = labels(&mut self.a);
        self.a.lea(rdi, ptr(auxv))?;
        self.open_to_read(no_auxv)?;
        let a = &mut self.a;
        emit! { a;
            mov(edi, r13d);
            lea(rsi, ptr(rbp + BUFFER));
            mov(edx, BUFFER_LEN - 16);
        }
        self.system_call(call::READ)?;
        let a = &mut self.a;
        emit! { a;
            // However much was read, it ends there.
            xor(edx, edx);
            test(rax, rax);
            cmovs(rax, rdx);
            and(rax, -16);
            mov(qword_ptr(rsi + rax), rdx);
        }
        self.close()?;
        self.refuse_more_rights()?;
        let a = &mut self.a;
        emit! { a;
            set_label(&mut no_auxv);
            cmp(rax, -EACCES); // Of the opening; what comes from above is not negative.
            jne(allowed);
            lea(r12, ptr(undumpable));
            lea(rbx, ptr(nothing));
            jmp(failures.text);
            set_label(&mut allowed);
            lea(r12, ptr(pattern));
            lea(rdi, ptr(environ));
        }
        self.open_to_read(no_environ)?;
        self.read_value(name)?;
        self.close()?;
        let a = &mut self.a;
        emit! { a;
            cmp(byte_ptr(rbp + VALUE), 0);
            je(no_environ);
            lea(r12, ptr(rbp + VALUE));
            set_label(&mut no_environ);
        }
        self.a.nop()
    }

    /// Copies the value of the variable out of the environment in `r13`: a string, empty if the variable is unset.
    fn read_value(&mut self, name: CodeLabel) -> Result<(), IcedError> {
        let variable = self.variable();
        let a = &mut self.a;
        let [
            mut refill,
            mut byte,
            mut other,
            mut restart,
            mut copy,
            mut too_long,
            mut done,
        ] = labels(a);
        emit! { a;
            // r8: how much of the variable's name has been seen, -1 in another; r9: where the value continues.
            xor(r8d, r8d);
            lea(r9, ptr(rbp + VALUE));
            mov(byte_ptr(r9), 0);
            set_label(&mut refill);
            mov(edi, r13d);
            lea(rsi, ptr(rbp + BUFFER));
            mov(edx, BUFFER_LEN);
        }
        self.system_call(call::READ)?;
        let a = &mut self.a;
        emit! { a;
            test(rax, rax);
            jle(done);
            lea(rdi, ptr(rsi + rax));
            set_label(&mut byte);
            cmp(rsi, rdi);
            je(refill);
            lodsb();
            cmp(r8d, variable.len() as i32);
            je(copy);
            test(al, al);
            je(restart);
            test(r8d, r8d);
            js(byte);
            lea(rcx, ptr(name));
            cmp(al, byte_ptr(rcx + r8));
            jne(other);
            inc(r8d);
            jmp(byte);
            set_label(&mut other);
            or(r8d, -1);
            jmp(byte);
            set_label(&mut restart);
            xor(r8d, r8d);
            jmp(byte);
            set_label(&mut copy);
            test(al, al);
            je(done);
            lea(rcx, ptr(rbp + (VALUE + NAME_LEN - 1))); // The last byte is kept for the zero.
            cmp(r9, rcx);
            je(too_long);
            mov(byte_ptr(r9), al);
            inc(r9);
            mov(byte_ptr(r9), 0);
            jmp(byte);
            set_label(&mut too_long); // Unless most of it is `%m`, which does not occur.
        }
        self.fail_too_long()?;
        self.a.set_label(&mut done)?;
        self.a.nop()
    }

    /// Opens the file named at `rdi` as `r13`, or goes to `otherwise` with `r13` as it was.
    fn open_to_read(&mut self, otherwise: CodeLabel) -> Result<(), IcedError> {
        let a = &mut self.a;
        emit! { a;
            mov(esi, O_CLOEXEC);
            xor(edx, edx);
        }
        self.system_call(call::OPEN)?;
        let a = &mut self.a;
        emit! { a;
            test(rax, rax);
            js(otherwise);
            mov(r13, rax);
        }
        Ok(())
    }

    /// Expands the template at `r12` into the name.
    pub(super) fn expand(&mut self) -> Result<(), IcedError> {
        let (build_id, subroutines) = (self.string(self.config.build_id), self.subroutines);
        let module = self.mip.map(|mip| self.string(mip.module));
        let a = &mut self.a;
        let [mut next, mut put, mut end, mut too_long] = labels(a);
        let [mut process, mut build, mut host, mut insert, mut inserted] = labels(a);
        emit! { a;
            mov(rsi, r12);
            lea(rdi, ptr(rbp + NAME));
            lea(r8, ptr(rbp + (NAME + NAME_LEN - 1))); // The last byte is kept for the zero.
            set_label(&mut next);
            lodsb();
            cmp(al, i32::from(b'%'));
            jne(put);
            lodsb();
            cmp(al, i32::from(b'%'));
            je(put);
            cmp(al, i32::from(b'm'));
            je(next);
            cmp(al, i32::from(b'p'));
            je(process);
            cmp(al, i32::from(b'b'));
            je(build);
            cmp(al, i32::from(b'h'));
            je(host);
            dec(rsi); // It stands for itself.
            mov(al, i32::from(b'%'));
            set_label(&mut put);
            test(al, al);
            je(end);
            cmp(rdi, r8);
            je(too_long);
            stosb();
            jmp(next);

            set_label(&mut process);
            mov(r9, rsi);
            mov(eax, call::GETPID);
            syscall();
            call(subroutines.decimal);
            jmp(insert);
            set_label(&mut build);
            mov(r9, rsi);
            lea(rsi, ptr(build_id));
            jmp(insert);
            set_label(&mut host);
            mov(r9, rsi);
        }
        if let Some(module) = module {
            emit! { a;
                lea(rsi, ptr(module));
                jmp(insert);
            }
        }
        emit! { a;
            mov(r10, rdi);
            lea(rdi, ptr(rbp + BUFFER));
            mov(byte_ptr(rdi + NODENAME), 0); // Empty, should there be no name.
            mov(eax, call::UNAME);
            syscall();
            lea(rsi, ptr(rdi + NODENAME));
            mov(rdi, r10);
            set_label(&mut insert);
            lodsb();
            test(al, al);
            je(inserted);
            cmp(rdi, r8);
            je(too_long);
            stosb();
            jmp(insert);
            set_label(&mut inserted);
            mov(rsi, r9);
            jmp(next);
            set_label(&mut too_long);
        }
        self.fail_too_long()?;
        let a = &mut self.a;
        emit! { a;
            set_label(&mut end);
            stosb();
        }
        Ok(())
    }

    fn fail_too_long(&mut self) -> Result<(), IcedError> {
        let line = self.string("postlink: the name of the profile has 4096 bytes or more");
        let (nothing, failures) = (self.string(""), self.failures);
        let a = &mut self.a;
        emit! { a;
            mov(byte_ptr(rbp + NAME), 0);
            lea(r12, ptr(line));
            lea(rbx, ptr(nothing));
            jmp(failures.text);
        }
        Ok(())
    }
}
