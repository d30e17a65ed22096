//! Steps 5 to 9: the file opened, brought to its size, agreed on, added to, and laid over the counters.

use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::super::site;
use super::{AREA, BUFFER, NAME, O_CLOEXEC, PAGE, Routine, call, emit, labels};

/// `O_RDWR`, `O_CREAT`, `O_NOCTTY`.
const O_PROFILE: u32 = 0o2 | 0o100 | 0o400 | O_CLOEXEC;
const MODE: u32 = 0o666;
pub(super) const PROT_READ_WRITE: u32 = 3;
const MAP_SHARED: u32 = 1;
pub(super) const MAP_FIXED: u32 = 0x10;
/// Offsets in `struct stat`.
const ST_MODE: i32 = 24;
const ST_SIZE: i32 = 48;
const S_IFMT: i32 = 0o170000;
const S_IFREG: i32 = 0o100000;

/// The limit on the size of a file.
const RLIMIT_FSIZE: u32 = 1;
const EFBIG: i32 = 27;
/// Errors that say that there is no space; the others are EIO, ENOSPC, EDQUOT.
const NO_ROOM: [i32; 4] = [5, EFBIG, 28, 122];

const F_OFD_SETLK: u32 = 37;
const EAGAIN: i32 = 11;
const EACCES: i32 = 13;
const FALLOC_FL_KEEP_SIZE: u32 = 1;
/// Locks of the open file description: shared and exclusive.
pub(super) const F_RDLCK: i32 = 0;
pub(super) const F_WRLCK: i32 = 1;

/// How an area of the file is claimed.
#[derive(Clone, Copy)]
pub(super) struct Claim {
    /// [`F_RDLCK`] or [`F_WRLCK`].
    pub(super) lock: i32,
    /// From `rbp`: the number of the next area to look at.
    pub(super) cursor: i32,
    /// From `rbp`: where the offset goes.
    pub(super) area: i32,
    /// Where control goes, with a negative error number in `rax`, if locks cannot be had,
    pub(super) no_lock: CodeLabel,
    /// and if the file cannot be made longer. The beginning of an error line is in `r12` then.
    pub(super) no_room: CodeLabel,
}

impl Routine<'_> {
    pub(super) fn open(&mut self) -> Result<(), IcedError> {
        let line = self.string("postlink: cannot open profile ");
        let a = &mut self.a;
        emit! { a;
            lea(r12, ptr(line));
            lea(rdi, ptr(rbp + NAME));
            mov(esi, O_PROFILE);
            mov(edx, MODE);
        }
        if self.mip.is_some_and(|mip| mip.fresh) {
            // A process that has the old file mapped keeps it; whether there was one does not matter.
            self.system_call(call::UNLINK)?;
        }
        self.system_call(call::OPEN)?;
        let (a, failures) = (&mut self.a, self.failures);
        emit! { a;
            test(rax, rax);
            js(failures.errno);
            mov(r13, rax);
        }
        Ok(())
    }

    pub(super) fn bring_to_size(&mut self) -> Result<(), IcedError> {
        let line = self.string("postlink: cannot get the size of profile ");
        let cannot_extend = self.string("postlink: cannot extend profile ");
        let profile = self.string("postlink: profile ");
        let not_regular = self.string(" is not a regular file");
        let zero = self.string("");
        let has_areas = self.has_areas();
        let size = PAGE + self.config.counters_len; // Cannot overflow: checked.
        let [mut again, mut regular, mut unlimited, mut unlike, mut sized] = labels(&mut self.a);
        let a = &mut self.a;
        emit! { a;
            xor(r9d, r9d); // Whether it has been extended.
            set_label(&mut again);
            lea(r12, ptr(line));
            mov(edi, r13d);
            lea(rsi, ptr(rbp + BUFFER));
        }
        self.system_call(call::FSTAT)?;
        let (a, failures) = (&mut self.a, self.failures);
        emit! { a;
            test(rax, rax);
            js(failures.errno);
            mov(eax, dword_ptr(rbp + (BUFFER + ST_MODE)));
            and(eax, S_IFMT);
            cmp(eax, S_IFREG);
            je(regular);
            lea(r12, ptr(profile));
            lea(rbx, ptr(not_regular));
            jmp(failures.text);
            set_label(&mut regular);
            mov(rax, qword_ptr(rbp + (BUFFER + ST_SIZE)));
            mov(r10, size);
            cmp(rax, r10);
            je(sized);
        }
        if has_areas {
            // Any number of areas.
            let [mut smaller] = labels(a);
            emit! { a;
                jb(smaller);
                sub(rax, PAGE as i32);
                xor(edx, edx);
                mov(rsi, self.config.counters_len);
                div(rsi);
                test(rdx, rdx);
                je(sized);
                jmp(unlike);
                set_label(&mut smaller);
                nop();
            }
        }
        emit! { a;
            or(rax, r9);
            jne(unlike);
            inc(r9d);
            lea(r12, ptr(cannot_extend));
            // Beyond this limit the kernel sends a signal that kills.
            mov(edi, RLIMIT_FSIZE);
            lea(rsi, ptr(rbp + BUFFER));
        }
        self.system_call(call::GETRLIMIT)?;
        let a = &mut self.a;
        emit! { a;
            test(rax, rax);
            jne(unlimited);
            mov(rax, -i64::from(EFBIG));
            cmp(qword_ptr(rsi), r10);
            jb(failures.errno);
            set_label(&mut unlimited);
            mov(edi, r13d);
            xor(esi, esi);
            xor(edx, edx);
        }
        self.system_call(call::FALLOCATE)?;
        let a = &mut self.a;
        emit! { a;
            test(rax, rax);
            je(again);
        }
        for error in NO_ROOM {
            a.cmp(rax, -error)?;
            a.je(failures.errno)?;
        }
        // The file system cannot do it, or it is forbidden.
        emit! { a;
            mov(edi, r13d);
            lea(rsi, ptr(zero));
            mov(edx, 1);
            dec(r10);
        }
        self.system_call(call::PWRITE)?;
        let a = &mut self.a;
        emit! { a;
            test(rax, rax);
            js(failures.errno);
            jmp(again);
            set_label(&mut unlike);
        }
        self.fail_unlike()?;
        self.a.set_label(&mut sized)?;
        self.a.nop()
    }

    fn fail_unlike(&mut self) -> Result<(), IcedError> {
        let line = self.string("postlink: profile ");
        let text =
            self.string(" belongs to another program or build (%b in its name keeps them apart)");
        let (a, failures) = (&mut self.a, self.failures);
        emit! { a;
            lea(r12, ptr(line));
            lea(rbx, ptr(text));
            jmp(failures.text);
        }
        Ok(())
    }

    pub(super) fn agree_on_header(&mut self) -> Result<(), IcedError> {
        let header = self.bytes(self.config.header);
        let (len, check) = (
            self.config.header.len() as i32,
            self.config.header_check as i32,
        );
        let line = self.string("postlink: cannot map profile ");
        let [mut byte, mut like, mut unlike, mut compare, mut agreed] = labels(&mut self.a);
        let a = &mut self.a;
        emit! { a;
            lea(r12, ptr(line));
            xor(edi, edi);
            mov(esi, PAGE as u32);
            xor(r9d, r9d);
            mov(r10d, MAP_SHARED);
        }
        self.map()?;
        let a = &mut self.a;
        emit! { a;
            mov(r14, rax);
            lea(rdx, ptr(header));
            cmp(qword_ptr(r14), 0);
            jne(compare);
            // New, or being written by another process, or left so by one that was killed.
            mov(ecx, check - 1);
            set_label(&mut byte);
            mov(al, byte_ptr(r14 + rcx));
            test(al, al);
            je(like);
            cmp(al, byte_ptr(rdx + rcx));
            jne(unlike);
            set_label(&mut like);
            dec(ecx);
            jns(byte);
            lea(rsi, ptr(rdx + 8));
            lea(rdi, ptr(r14 + 8));
            mov(ecx, len - 8);
        }
        a.rep().movsb()?;
        emit! { a;
            mov(rcx, qword_ptr(rdx));
            xor(eax, eax);
        }
        a.lock().cmpxchg(qword_ptr(r14), rcx)?;
        emit! { a;
            set_label(&mut compare);
            mov(rsi, rdx);
            mov(rdi, r14);
            mov(ecx, check);
        }
        a.repe().cmpsb()?;
        emit! { a;
            je(agreed);
            set_label(&mut unlike);
        }
        self.fail_unlike()?;
        self.a.set_label(&mut agreed)?;
        self.a.nop()
    }

    /// Adds the private counters to the file.
    pub(super) fn merge(&mut self) -> Result<(), IcedError> {
        let config = self.config;
        let line = self.string("postlink: cannot map profile ");
        let a = &mut self.a;
        emit! { a;
            lea(r12, ptr(line));
            xor(edi, edi);
            mov(rsi, config.counters_len);
            mov(r10d, MAP_SHARED);
        }
        self.offset()?;
        self.map()?;
        let (a, subroutines) = (&mut self.a, self.subroutines);
        let [mut word, mut zero, mut table, mut end] = labels(a);
        emit! { a;
            mov(r15, rax);
            mov(rdi, rax);
            mov(rsi, config.counters);
            add(rsi, rbx);
            mov(rdx, config.sites_offset);
            add(rdx, rsi);
            mov(r10, config.counters_len);
            add(r10, rsi);
            set_label(&mut word);
            cmp(rsi, rdx);
        }
        if config.has_sites() {
            a.je(table)?
        } else {
            a.je(end)?
        }
        emit! { a;
            mov(rax, qword_ptr(rsi));
            test(rax, rax);
            je(zero);
        }
        if self.mip.is_some() {
            a.lock().or(qword_ptr(rdi), rax)?;
        } else {
            a.lock().add(qword_ptr(rdi), rax)?;
        }
        emit! { a;
            set_label(&mut zero);
            add(rsi, 8);
            add(rdi, 8);
            jmp(word);
        }
        if !config.has_sites() {
            emit! { a;
                set_label(&mut end);
                nop();
            }
            return Ok(());
        }
        emit! { a;
            set_label(&mut table);
            cmp(rsi, r10);
            je(end);
        }
        for entry in 0..site::ENTRIES as i32 {
            let [mut empty] = labels(a);
            emit! { a;
                mov(r8, qword_ptr(rsi + entry * 16));
                test(r8, r8);
                je(empty);
                mov(r9, qword_ptr(rsi + (entry * 16 + 8)));
                call(subroutines.record);
                set_label(&mut empty);
            }
        }
        for index in [site::EXTERNAL as i32, site::OVERFLOW as i32] {
            let [mut zero] = labels(a);
            emit! { a;
                mov(rax, qword_ptr(rsi + index * 8));
                test(rax, rax);
                je(zero);
            }
            a.lock().add(qword_ptr(rdi + index * 8), rax)?;
            a.set_label(&mut zero)?;
        }
        emit! { a;
            add(rsi, 64);
            add(rdi, 64);
            jmp(table);
            set_label(&mut end);
        }
        a.nop()
    }

    /// The subroutine `record`: the rule of the recorders' slow path.
    pub(super) fn put_record(&mut self) -> Result<(), IcedError> {
        let a = &mut self.a;
        a.set_label(&mut self.subroutines.record)?;
        for entry in 0..site::ENTRIES as i32 {
            let [mut found, mut next] = labels(a);
            emit! { a;
                mov(rax, qword_ptr(rdi + entry * 16));
                cmp(rax, r8);
                je(found);
                test(rax, rax);
                jne(next);
            }
            a.lock().cmpxchg(qword_ptr(rdi + entry * 16), r8)?;
            emit! { a;
                je(found);
                cmp(rax, r8);
                jne(next);
                set_label(&mut found);
            }
            a.lock().add(qword_ptr(rdi + (entry * 16 + 8)), r9)?;
            emit! { a;
                ret();
                set_label(&mut next);
            }
        }
        a.lock()
            .add(qword_ptr(rdi + site::OVERFLOW as i32 * 8), r9)?;
        a.ret()
    }

    pub(super) fn lay_over(&mut self) -> Result<(), IcedError> {
        let config = self.config;
        let line = self.string("postlink: cannot map over the counters profile ");
        let a = &mut self.a;
        emit! { a;
            lea(r12, ptr(line));
            mov(rdi, config.counters);
            add(rdi, rbx);
            mov(rsi, config.counters_len);
            mov(r10d, MAP_SHARED | MAP_FIXED);
        }
        self.offset()?;
        self.map()
    }

    /// Where in the file the counters are, into `r9`.
    fn offset(&mut self) -> Result<(), IcedError> {
        match self.shards {
            None if self.biased => self.a.mov(r9, qword_ptr(rbp + AREA)),
            None => self.a.mov(r9d, PAGE as u32),
            Some(_) => self.load_area(),
        }
    }

    /// Whether the file may have several areas.
    fn has_areas(&self) -> bool {
        self.shards.is_some() || self.biased
    }

    /// Locks the first byte of the first area from number `[cursor]` on on which that is possible, and makes the file
    /// long enough for it. Its offset goes to `[area]`. Destroys what system calls do and `r8` to `r10`.
    pub(super) fn claim_area(&mut self, claim: Claim) -> Result<(), IcedError> {
        let (cannot_lock, cannot_extend) = (
            self.string("postlink: cannot lock a part of profile "),
            self.string("postlink: cannot extend profile "),
        );
        let zero = self.string("");
        let len = self.config.counters_len;
        let a = &mut self.a;
        let [mut again, mut got, mut unlimited, mut end] = labels(a);
        emit! { a;
            lea(r12, ptr(cannot_lock));
            set_label(&mut again);
            mov(rax, qword_ptr(rbp + claim.cursor));
            inc(qword_ptr(rbp + claim.cursor));
            mov(r8, len);
            mul(r8);
            add(rax, PAGE as i32);
            mov(qword_ptr(rbp + claim.area), rax);
            lea(rdx, ptr(rbp + BUFFER));
            mov(qword_ptr(rdx), claim.lock); // and from the beginning of the file
            mov(qword_ptr(rdx + 8), rax);
            mov(qword_ptr(rdx + 16), 1);
            mov(qword_ptr(rdx + 24), 0);
            mov(edi, r13d);
            mov(esi, F_OFD_SETLK);
            mov(eax, call::FCNTL);
            syscall();
            test(rax, rax);
            je(got);
            cmp(rax, -EAGAIN);
            je(again);
            cmp(rax, -EACCES);
            je(again);
            jmp(claim.no_lock);

            set_label(&mut got);
            lea(r12, ptr(cannot_extend));
            mov(edi, RLIMIT_FSIZE);
            lea(rsi, ptr(rbp + BUFFER));
            mov(eax, call::GETRLIMIT);
            syscall();
            mov(r10, len);
            add(r10, qword_ptr(rbp + claim.area));
            test(rax, rax);
            jne(unlimited);
            mov(rax, -i64::from(EFBIG));
            cmp(qword_ptr(rbp + BUFFER), r10);
            jb(claim.no_room);
            set_label(&mut unlimited);
            mov(edi, r13d);
            mov(esi, FALLOC_FL_KEEP_SIZE);
            mov(rdx, qword_ptr(rbp + claim.area));
            mov(r10, len);
            mov(eax, call::FALLOCATE);
            syscall();
        }
        for error in NO_ROOM {
            a.cmp(rax, -error)?;
            a.je(claim.no_room)?;
        }
        emit! { a;
            mov(edi, r13d);
            lea(rsi, ptr(rbp + BUFFER));
            mov(eax, call::FSTAT);
            syscall();
            test(rax, rax);
            js(claim.no_room);
            mov(r10, len);
            add(r10, qword_ptr(rbp + claim.area));
            cmp(qword_ptr(rbp + (BUFFER + ST_SIZE)), r10);
            jae(end);
            mov(edi, r13d);
            lea(rsi, ptr(zero));
            mov(edx, 1);
            dec(r10);
            mov(eax, call::PWRITE);
            syscall();
            test(rax, rax);
            js(claim.no_room);
            set_label(&mut end);
            nop();
        }
        Ok(())
    }

    /// Lays the area that was claimed last over the memory at `rdi`. What the system call says is in `rax`.
    pub(super) fn lay_area(&mut self, failed: CodeLabel) -> Result<(), IcedError> {
        let len = self.config.counters_len;
        let a = &mut self.a;
        emit! { a;
            mov(rsi, len);
            mov(edx, PROT_READ_WRITE);
            mov(r10d, MAP_SHARED | MAP_FIXED);
            mov(r8d, r13d);
        }
        self.offset()?;
        let a = &mut self.a;
        emit! { a;
            mov(eax, call::MMAP);
            syscall();
            test(rax, rax);
            js(failed);
        }
        Ok(())
    }

    /// Maps `rsi` bytes of the file from `r9` on, with the flags in `r10`; the address is in `rax`.
    fn map(&mut self) -> Result<(), IcedError> {
        let a = &mut self.a;
        emit! { a;
            mov(edx, PROT_READ_WRITE);
            mov(r8d, r13d);
        }
        self.system_call(call::MMAP)?;
        let (a, failures) = (&mut self.a, self.failures);
        emit! { a;
            test(rax, rax);
            js(failures.errno);
        }
        Ok(())
    }
}
