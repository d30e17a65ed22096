//! The end, good or bad: everything given back, and one line about what failed.

use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::{BUFFER, DIGITS, NAME, PAGE, Routine, call, emit, labels};

/// Short texts for the errors that files run into.
const ERRORS: [(u8, &str); 21] = [
    (1, "Operation not permitted"),
    (2, "No such file or directory"),
    (4, "Interrupted system call"),
    (5, "Input/output error"),
    (6, "No such device or address"),
    (12, "Cannot allocate memory"),
    (13, "Permission denied"),
    (16, "Device or resource busy"),
    (19, "No such device"),
    (20, "Not a directory"),
    (21, "Is a directory"),
    (22, "Invalid argument"),
    (23, "Too many open files in system"),
    (24, "Too many open files"),
    (26, "Text file busy"),
    (27, "File too large"),
    (28, "No space left on device"),
    (30, "Read-only file system"),
    (36, "File name too long"),
    (40, "Too many levels of symbolic links"),
    (122, "Disk quota exceeded"),
];

/// Those of them that programs with small start-up routines explain: what a profile's path and disk are likely to say.
const FREQUENT: [u8; 6] = [2, 13, 20, 21, 28, 30];

/// Texts, and what represents all other errors. Programs that write machine profiles, which are to stay
/// small, explain a few.
pub(crate) fn error_texts(few: bool) -> (impl Iterator<Item = (u8, &'static str)>, &'static str) {
    let wanted = move |e: &(u8, &str)| !few || FREQUENT.contains(&e.0);
    let others = if few { "see errno(3)" } else { "unknown error" };
    (ERRORS.into_iter().filter(wanted), others)
}

/// The standard error output.
const STDERR: u32 = 2;

impl Routine<'_> {
    /// Ends the start-up: success comes from above. After it, `r12` says whether there is an error line.
    pub(super) fn release(&mut self) -> Result<(), IcedError> {
        let a = &mut self.a;
        let [end] = labels(a);
        emit! { a;
            xor(r12d, r12d);
            jmp(end);
        }
        self.clean_up(end)
    }

    /// Unmaps and closes what is left. Failures come to the two labels, everything else to `end`. After it,
    /// `r8d` is the error number of a failure, 0 if there is none, and nothing is mapped.
    pub(super) fn clean_up(&mut self, mut end: CodeLabel) -> Result<(), IcedError> {
        let counters_len = self.config.counters_len;
        let a = &mut self.a;
        let [mut no_counters, mut no_header, mut no_file] = labels(a);
        emit! { a;
            set_label(&mut self.failures.errno);
            neg(eax);
            mov(r8d, eax);
            jmp(end);
            set_label(&mut self.failures.text);
            xor(r8d, r8d);
            set_label(&mut end);
            test(r15, r15);
            je(no_counters);
            mov(rdi, r15);
            mov(rsi, counters_len);
            mov(eax, call::MUNMAP);
            syscall();
            xor(r15d, r15d);
            set_label(&mut no_counters);
            test(r14, r14);
            je(no_header);
            mov(rdi, r14);
            mov(esi, PAGE as u32);
            mov(eax, call::MUNMAP);
            syscall();
            xor(r14d, r14d);
            set_label(&mut no_header);
            // Before anything is said: a program without standard error may have got the file in its place.
            test(r13, r13);
            js(no_file);
        }
        self.close()?;
        self.a.set_label(&mut no_file)?;
        self.a.nop()
    }

    /// One line in one piece, so that lines of several processes do not mix: beginning, name, and the error
    /// or the text.
    pub(super) fn say_what_failed(&mut self) -> Result<(), IcedError> {
        let mut table = Vec::new();
        let (texts, others) = error_texts(self.mip.is_some());
        for (number, text) in texts {
            table.extend_from_slice(&[&[number][..], text.as_bytes(), &[0]].concat());
        }
        table.extend_from_slice(&[&[0], others.as_bytes(), &[0]].concat());
        let errors = self.bytes(&table);
        let (number, open, close) = (self.string(": errno "), self.string(" ("), self.string(")"));
        let rest = self.string("; this run is not recorded\n");
        let (a, subroutines) = (&mut self.a, self.subroutines);
        let [
            mut find,
            mut skip,
            mut found,
            mut no_number,
            mut end,
            mut silent,
        ] = labels(a);
        emit! { a;
            test(r12, r12);
            je(silent);
            lea(rdi, ptr(rbp + BUFFER));
            mov(rsi, r12);
            call(subroutines.piece);
            lea(rsi, ptr(rbp + NAME));
            call(subroutines.piece);
            test(r8d, r8d);
            je(no_number);
            lea(rsi, ptr(number));
            call(subroutines.piece);
            mov(eax, r8d);
            call(subroutines.decimal);
            call(subroutines.piece);
            lea(rsi, ptr(open));
            call(subroutines.piece);
            lea(rsi, ptr(errors));
            set_label(&mut find);
            movzx(eax, byte_ptr(rsi));
            inc(rsi);
            test(eax, eax);
            je(found);
            cmp(eax, r8d);
            je(found);
            set_label(&mut skip);
            lodsb();
            test(al, al);
            jne(skip);
            jmp(find);
            set_label(&mut found);
            call(subroutines.piece);
            lea(rsi, ptr(close));
            call(subroutines.piece);
            jmp(end);
            set_label(&mut no_number);
            mov(rsi, rbx);
            call(subroutines.piece);
            set_label(&mut end);
            lea(rsi, ptr(rest));
        }
        if self.shards.is_some() {
            self.say_what_is_lost()?;
        }
        let a = &mut self.a;
        emit! { a;
            call(subroutines.piece);
            lea(rsi, ptr(rbp + BUFFER));
            mov(rdx, rdi);
            sub(rdx, rsi);
            shr(edx, 4);
            mov(edi, STDERR);
            mov(eax, call::WRITEV);
            syscall();
            set_label(&mut silent);
        }
        a.nop()
    }

    /// The subroutine `decimal`.
    pub(super) fn put_decimal(&mut self) -> Result<(), IcedError> {
        let a = &mut self.a;
        let [mut digit] = labels(a);
        emit! { a;
            set_label(&mut self.subroutines.decimal);
            lea(rsi, ptr(rbp + (DIGITS + 15)));
            mov(byte_ptr(rsi), 0);
            mov(ecx, 10);
            set_label(&mut digit);
            xor(edx, edx);
            div(ecx);
            add(dl, i32::from(b'0'));
            dec(rsi);
            mov(byte_ptr(rsi), dl);
            test(eax, eax);
            jne(digit);
            ret();
        }
        Ok(())
    }

    /// The subroutine `piece`: an element of a vector for `writev`, address and length.
    pub(super) fn put_piece(&mut self) -> Result<(), IcedError> {
        let a = &mut self.a;
        let [mut byte, mut end] = labels(a);
        emit! { a;
            set_label(&mut self.subroutines.piece);
            mov(qword_ptr(rdi), rsi);
            xor(ecx, ecx);
            set_label(&mut byte);
            cmp(byte_ptr(rsi + rcx), 0);
            je(end);
            inc(rcx);
            jmp(byte);
            set_label(&mut end);
            mov(qword_ptr(rdi + 8), rcx);
            add(rdi, 16);
            ret();
        }
        Ok(())
    }
}
