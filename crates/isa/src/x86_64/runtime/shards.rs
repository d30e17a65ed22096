//! Per-thread counters: an area ("shard") of the profile file for each thread.
//!
//! The GS base of a thread points to its shard: the first counter of a shared mapping of a part of the file,
//! with a private page in front of it that says whose it is. Entry checks
//! ([`threads`](super::super::threads)) call `enter` for a thread that comes in without one.
//!
//! # Memory
//!
//! In front of the first thread's counters, which have their place in the program itself:
//!
//! | from `rbp` | what | in a forked child |
//! |---|---|---|
//! | `BIAS` | load bias | kept |
//! | `STARTED` | the start-up routine has run | kept |
//! | `RECORDING` | something of this process is being recorded | kept |
//! | `FD`, `DEVICE`, `INODE` | descriptor of the file plus 1 (0: none), and which file that is | kept |
//! | `AREA`, `NEW` | the area, and the shard, that are being set up | kept |
//! | `TEMPLATE` | name of the file before expansion, 4096 bytes (a program may overwrite its environment) | kept |
//! | -16384 ..= -1 | what the start-up routine has on its stack elsewhere: name, buffer, digits | kept |
//! | `READY` | 0 before start-up, 1, or 2 if threads without a GS base may exist | zero |
//! | `LOCK` | another thread is at work here | zero |
//! | `HEAD` | the first shard of the list | zero |
//! | `CURSOR` | the next area to look at | zero |
//! | `FIRST - 4096` | private page of the first shard | kept |
//! | `FIRST` | first shard | kept |
//!
//! A child is noticed by the page that the kernel wipes for it (`MADV_WIPEONFORK`). A `vfork`ed one shares
//! its parent's memory, which waits: there is nothing to notice.
//!
//! In the private page: `OWNER`, the thread's identity (the address of its control block, which no other
//! living thread has), `NEXT`, the next shard of the process.
//!
//! # Whose is an area?
//!
//! Several processes may count in one file at once. The one that has the lock on an area's first byte counts
//! there; when no thread holds it, its holder is dead, and another thread continues counting in it. The lock is one
//! of the open file description (`F_OFD_SETLK`): mappings keep that alive, so it holds exactly as long as something
//! is mapped, even if the program closes descriptors that it does not know; a forked child, which inherits
//! it, opens the file again. Within a process each area is looked at once.
//!
//! Only the holder of the lock makes the file longer. Space is reserved first and the length set after that by the
//! area's last byte, so it is always that of whole areas, and never shrinks.
//!
//! # enter
//!
//! With all signals blocked and the lock held: before start-up, the program's own place becomes the thread's
//! shard. In a child, its memory is set up and the file opened again: with `%p` in its name another one. Then,
//! a shard whose owner has the thread's identity is its own: it had it before, or its former thread is dead.
//! Else it gets a new one. If that fails, a line says so, and its shard is private memory.
//!
//! Stacks of threads and signals may be small: `enter` uses less than 300 bytes of them.
//!
//! # What is not noticed
//!
//! That a thread has ended, if no later one has its identity: its area is taken over by another process only.
//! (Thread libraries use the memory of control blocks again, so a process has about as many areas as it ever
//! had threads at once.) A child that returns to the program out of a library's function that is not known to
//! fork, before it enters the program again. Threads of libraries' initialisers that run functions of the
//! program before its start-up: they count in the first thread's shard. Continuations that a library moves to
//! a thread which has never been in the program.

use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::super::threads::OWNER;
use super::file::{Claim, F_WRLCK, MAP_FIXED, PROT_READ_WRITE};
use super::{
    BUFFER, NAME, NAME_LEN, O_CLOEXEC, PAGE, PUSHED, Routine, SAVED, VALUE, call, emit, labels,
};
use crate::PerThreadMemory;

/// The private memory.
pub const PER_THREAD: PerThreadMemory = PerThreadMemory {
    len: 0x8000,
    ready: STATE,
};

/// Offset of the page that is wiped: what `rbp` points to.
const STATE: u64 = 0x6000;

const BIAS: i32 = -(STATE as i32);
const STARTED: i32 = BIAS + 8;
const FD: i32 = BIAS + 16;
const DEVICE: i32 = BIAS + 24;
const INODE: i32 = BIAS + 32;
const RECORDING: i32 = BIAS + 40;
const AREA: i32 = BIAS + 48;
const NEW: i32 = BIAS + 56;
const TEMPLATE: i32 = BIAS + 4096;
const READY: i32 = 0;
const LOCK: i32 = 8;
const HEAD: i32 = 16;
const CURSOR: i32 = 24;
const FIRST: i32 = (PER_THREAD.len - STATE) as i32;

/// The next shard of the process, from a shard.
const NEXT: i32 = OWNER + 8;

const ARCH_SET_GS: u32 = 0x1001;
const ARCH_GET_GS: u32 = 0x1004;
pub(super) const MADV_WIPEONFORK: u32 = 18;
const F_DUPFD_CLOEXEC: u32 = 1030;
const MAP_PRIVATE_ANONYMOUS: u32 = 0x4022; // and without reserving memory
const RLIMIT_NOFILE: u32 = 7;
const ST_NLINK: i32 = 16;
const O_RDWR: u32 = 2;
/// Where descriptors of programs seldom are.
const HIGH_DESCRIPTOR: i32 = 1000;

/// Subroutines. With the system calls' `rax`, `rcx` and `r11`, all destroy any register but `rbx`, `rbp`,
/// `r12` (the line for failures), `r13`.
#[derive(Clone, Copy)]
pub(super) struct Shards {
    pub(super) enter: CodeLabel,
    /// Opens the file and keeps its descriptor. After a failure `FD` is 0; of this and all below.
    set_up: CodeLabel,
    /// Moves descriptor `r13` up and notes it.
    keep: CodeLabel,
    /// Finds out whether `r13` is the file: zero flag.
    compare: CodeLabel,
    /// Claims an area, whose offset goes to `AREA`.
    claim: CodeLabel,
    /// Claims an area and lays it over the shard `NEW`.
    share: CodeLabel,
    /// Sets the GS base to `rsi`.
    set_base: CodeLabel,
}

impl Shards {
    pub(super) fn new(a: &mut CodeAssembler) -> Shards {
        let [enter, set_up, keep, compare, claim, share, set_base] = labels(a);
        Shards {
            enter,
            set_up,
            keep,
            compare,
            claim,
            share,
            set_base,
        }
    }
}

impl Routine<'_> {
    /// The start-up routine and all subroutines of its own; returns where `enter` is.
    pub(super) fn put_shards(&mut self, shards: Shards) -> Result<CodeLabel, IcedError> {
        self.start_up(shards)?;
        let enter = self.put_enter(shards)?;
        self.put_set_base(shards)?;
        self.put_set_up(shards)?;
        self.put_compare(shards)?;
        self.put_claim(shards)?;
        self.put_share(shards)?;
        Ok(enter)
    }

    /// All registers saved, `rbp` and `rbx` set.
    fn arrive(&mut self) -> Result<(), IcedError> {
        let a = &mut self.a;
        a.pushfq()?;
        for register in PUSHED {
            a.push(register)?;
        }
        let at = self.config.at;
        let state = self.config.counters - FIRST as u64;
        emit! { a;
            cld();
            lea(rbx, ptr(self.start));
            mov(rax, at);
            sub(rbx, rax);
            mov(rbp, state);
            add(rbp, rbx);
            or(r13, -1);
            xor(r14d, r14d);
            xor(r15d, r15d);
        }
        Ok(())
    }

    fn depart(&mut self) -> Result<(), IcedError> {
        for register in PUSHED.into_iter().rev() {
            self.a.pop(register)?;
        }
        self.a.popfq()
    }

    /// Blocks signals, then takes the lock; 16 bytes of stack.
    fn lock(&mut self) -> Result<(), IcedError> {
        let every = self.bytes(&[0xff; 8]);
        let a = &mut self.a;
        let [mut again, mut got] = labels(a);
        emit! { a;
            sub(rsp, 16);
            xor(edi, edi); // SIG_BLOCK
            lea(rsi, ptr(every));
            mov(rdx, rsp);
            mov(r10d, 8);
            mov(eax, call::SIGPROCMASK);
            syscall();
            set_label(&mut again);
            mov(eax, 1);
            xchg(dword_ptr(rbp + LOCK), eax);
            test(eax, eax);
            je(got);
            mov(eax, call::SCHED_YIELD);
            syscall();
            jmp(again);
            set_label(&mut got);
            nop();
        }
        Ok(())
    }

    fn unlock(&mut self) -> Result<(), IcedError> {
        let a = &mut self.a;
        emit! { a;
            mov(dword_ptr(rbp + LOCK), 0);
            mov(edi, 2); // SIG_SETMASK
            mov(rsi, rsp);
            xor(edx, edx);
            mov(r10d, 8);
            mov(eax, call::SIGPROCMASK);
            syscall();
            add(rsp, 16);
        }
        Ok(())
    }

    fn start_up(&mut self, shards: Shards) -> Result<(), IcedError> {
        let task = self.string("/proc/self/task");
        let a = &mut self.a;
        let [mut prepare, mut end, mut copy, mut copied] = labels(a);
        emit! { a;
            set_label(&mut self.start);
            endbr64();
        }
        self.arrive()?;
        let a = &mut self.a;
        emit! { a;
            mov(qword_ptr(rbp + BIAS), rbx);
            mov(byte_ptr(rbp + NAME), 0);
        }
        self.lock()?;
        let a = &mut self.a;
        emit! { a;
            mov(byte_ptr(rbp + STARTED), 1);
            lea(rsi, ptr(rbp + FIRST));
            xor(eax, eax);
            mov(rax, qword_ptr(rax).fs());
            mov(qword_ptr(rsi + OWNER), rax);
            mov(qword_ptr(rbp + HEAD), rsi);
            call(shards.set_base);
            lea(r10, ptr(rsp + (16 + SAVED)));
            call(prepare);
            // Threads that libraries' initialisers have made may have no GS base; /proc says whether there are any.
            lea(rdi, ptr(task));
            lea(rsi, ptr(rbp + BUFFER));
            mov(eax, call::STAT);
            syscall();
            xor(ecx, ecx);
            cmp(qword_ptr(rbp + (BUFFER + ST_NLINK)), 3); // Two for the directory, one for each thread.
            setne(cl);
            test(rax, rax);
            setne(al);
            or(cl, al);
            inc(cl);
            mov(byte_ptr(rbp + READY), cl);
        }
        self.unlock()?;
        self.depart()?;
        self.go_on()?;
        let a = &mut self.a;
        a.set_label(&mut prepare)?;
        self.find_on_stack()?;
        let a = &mut self.a;
        emit! { a;
            lea(rdi, ptr(rbp + TEMPLATE));
            mov(ecx, NAME_LEN - 1);
            mov(rsi, r12);
            set_label(&mut copy);
            lodsb();
            stosb();
            test(al, al);
            je(copied);
            dec(ecx);
            jne(copy);
            mov(byte_ptr(rdi), 0); // Too long; so is what it expands to.
            set_label(&mut copied);
            call(shards.set_up);
            cmp(dword_ptr(rbp + FD), 0);
            je(end);
            call(shards.claim);
            cmp(dword_ptr(rbp + FD), 0);
            je(end);
        }
        self.merge()?;
        self.lay_over()?;
        let len = self.config.counters_len;
        let a = &mut self.a;
        emit! { a;
            mov(byte_ptr(rbp + RECORDING), 1);
            mov(rdi, r15);
            mov(rsi, len);
            mov(eax, call::MUNMAP);
            syscall();
            set_label(&mut end);
            ret();
        }
        // Failures of everything come here, and return from where they happened.
        self.fail()
    }

    /// Gives back what there is, says what failed, and returns from the subroutine.
    fn fail(&mut self) -> Result<(), IcedError> {
        let [end] = labels(&mut self.a);
        self.clean_up(end)?;
        self.a.mov(dword_ptr(rbp + FD), 0)?;
        self.say_what_failed()?;
        let a = &mut self.a;
        emit! { a;
            mov(rbx, qword_ptr(rbp + BIAS));
            ret();
        }
        Ok(())
    }

    /// What follows the error, into `rsi`.
    pub(super) fn say_what_is_lost(&mut self) -> Result<(), IcedError> {
        let (run, threads) = (
            self.string("; this run is not recorded\n"),
            self.string("; threads that this process starts from now on are not recorded\n"),
        );
        let a = &mut self.a;
        let [mut end] = labels(a);
        emit! { a;
            lea(rsi, ptr(run));
            cmp(byte_ptr(rbp + RECORDING), 0);
            je(end);
            lea(rsi, ptr(threads));
            set_label(&mut end);
            nop();
        }
        Ok(())
    }

    fn put_enter(&mut self, mut shards: Shards) -> Result<CodeLabel, IcedError> {
        let (len, flags) = (self.config.counters_len, MAP_PRIVATE_ANONYMOUS);
        let a = &mut self.a;
        let [
            mut hold,
            mut leave,
            mut thread,
            mut child,
            mut find,
            mut new,
            mut found,
            mut done,
        ] = labels(a);
        let [mut first, mut laid, mut private, mut counted] = labels(a);
        a.set_label(&mut shards.enter)?;
        self.arrive()?;
        let a = &mut self.a;
        emit! { a;
            cmp(byte_ptr(rbp + READY), 2);
            jne(hold);
            // The entry check could not look itself.
            sub(rsp, 16);
            mov(edi, ARCH_GET_GS);
            mov(rsi, rsp);
            mov(eax, call::ARCH_PRCTL);
            syscall();
            mov(rdx, qword_ptr(rsp));
            add(rsp, 16);
            test(rax, rax);
            jne(hold);
            test(rdx, rdx);
            je(hold);
            mov(rax, qword_ptr(rax).fs()); // rax is 0.
            cmp(rax, qword_ptr(rdx + OWNER));
            je(leave);
            set_label(&mut hold);
        }
        self.lock()?;
        let a = &mut self.a;
        emit! { a;
            cmp(byte_ptr(rbp + READY), 0);
            jne(thread);
            cmp(byte_ptr(rbp + STARTED), 0);
            jne(child);
            lea(rsi, ptr(rbp + FIRST));
            call(shards.set_base);
            jmp(done);
            set_label(&mut child);
        }
        self.set_up_child(shards)?;
        let a = &mut self.a;
        emit! { a;
            mov(byte_ptr(rbp + READY), 1);
            set_label(&mut thread);
            xor(eax, eax);
            mov(r8, qword_ptr(rax).fs());
            mov(rsi, qword_ptr(rbp + HEAD));
            set_label(&mut find);
            test(rsi, rsi);
            je(new);
            cmp(qword_ptr(rsi + OWNER), r8);
            je(found);
            mov(rsi, qword_ptr(rsi + NEXT));
            jmp(find);
            // Private memory, over which the file is laid if all is well. The first of a child is where its
            // parent's first did.
            set_label(&mut new);
            mov(rsi, len);
            xor(edi, edi);
            mov(r10d, flags);
            cmp(qword_ptr(rbp + HEAD), 0);
            jne(laid);
            lea(rdi, ptr(rbp + FIRST));
            or(r10d, MAP_FIXED as i32);
            jmp(first);
            set_label(&mut laid);
            add(rsi, PAGE as i32);
            set_label(&mut first);
            mov(edx, PROT_READ_WRITE);
            or(r8, -1);
            xor(r9d, r9d);
            mov(eax, call::MMAP);
            syscall();
            test(rax, rax);
            js(private);
            cmp(qword_ptr(rbp + HEAD), 0);
            je(counted);
            add(rax, PAGE as i32);
            set_label(&mut counted);
            mov(qword_ptr(rbp + NEW), rax);
            call(shards.share);
            mov(rsi, qword_ptr(rbp + NEW));
            xor(eax, eax);
            mov(rax, qword_ptr(rax).fs());
            mov(qword_ptr(rsi + OWNER), rax);
            mov(rax, qword_ptr(rbp + HEAD));
            mov(qword_ptr(rsi + NEXT), rax);
            mov(qword_ptr(rbp + HEAD), rsi);
            jmp(found);
            // No memory for a shard: somewhere it must count.
            set_label(&mut private);
            lea(rsi, ptr(rbp + FIRST));
            set_label(&mut found);
            call(shards.set_base);
            set_label(&mut done);
        }
        self.unlock()?;
        self.a.set_label(&mut leave)?;
        self.depart()?;
        self.a.ret()?;
        Ok(shards.enter)
    }

    /// The process is a child whose parent has been set up: it needs a descriptor of its own, or a file.
    fn set_up_child(&mut self, shards: Shards) -> Result<(), IcedError> {
        let (prefix, other) = (
            self.string("/proc/self/fd/"),
            self.string(" is another file now"),
        );
        let line = self.string("postlink: in a forked process: cannot open profile ");
        let subroutines = self.subroutines;
        let a = &mut self.a;
        let [
            mut begin,
            mut same,
            mut another,
            mut look,
            mut next,
            mut by_name,
            mut opened,
            mut end,
        ] = labels(a);
        let [mut letter, mut digit, mut inherited, mut closed] = labels(a);
        emit! { a;
            jmp(begin);
            // A subroutine, so that failures have something to return from.
            set_label(&mut look);
            mov(byte_ptr(rbp + RECORDING), 0);
            mov(r13d, dword_ptr(rbp + FD));
            mov(dword_ptr(rbp + FD), 0);
            dec(r13d);
            js(end); // Nothing of the parent is recorded.
            movsxd(r13, r13d);
            call(shards.compare);
            je(inherited);
            or(r13, -1); // It has been closed, and may be the program's.
            set_label(&mut inherited);
            lea(rsi, ptr(rbp + TEMPLATE));
            set_label(&mut next);
            lodsb();
            test(al, al);
            je(same);
            cmp(al, i32::from(b'%'));
            jne(next);
            lodsb();
            cmp(al, i32::from(b'p'));
            je(another);
            test(al, al);
            jne(next);
            jmp(same);

            // A file of its own.
            set_label(&mut another);
            test(r13, r13);
            js(closed);
            mov(edi, r13d);
            mov(eax, call::CLOSE);
            syscall();
            or(r13, -1);
            set_label(&mut closed);
            call(shards.set_up);
            ret();

            // The same file; a name may mean another directory by now.
            set_label(&mut same);
            test(r13, r13);
            js(by_name);
            lea(rsi, ptr(prefix));
            lea(rdi, ptr(rbp + VALUE));
            set_label(&mut letter);
            lodsb();
            stosb();
            test(al, al);
            jne(letter);
            dec(rdi);
            mov(eax, r13d);
            mov(r9, rdi);
            call(subroutines.decimal);
            mov(rdi, r9);
            set_label(&mut digit);
            lodsb();
            stosb();
            test(al, al);
            jne(digit);
            lea(rdi, ptr(rbp + VALUE));
            mov(esi, O_RDWR | O_CLOEXEC);
            mov(eax, call::OPEN);
            syscall();
            mov(r9, rax);
            mov(edi, r13d);
            mov(eax, call::CLOSE);
            syscall();
            or(r13, -1);
            mov(rax, r9);
            test(rax, rax);
            jns(opened);
            set_label(&mut by_name);
            lea(r12, ptr(line));
            lea(rdi, ptr(rbp + NAME));
            mov(esi, O_RDWR | O_CLOEXEC);
            mov(eax, call::OPEN);
            syscall();
            test(rax, rax);
            js(self.failures.errno);
            set_label(&mut opened);
            mov(r13, rax);
            call(shards.compare);
            lea(rbx, ptr(other));
            jne(self.failures.text);
            mov(rbx, qword_ptr(rbp + BIAS));
            call(shards.keep);
            set_label(&mut end);
            ret();
            set_label(&mut begin);
            call(look);
        }
        Ok(())
    }

    fn put_set_base(&mut self, mut shards: Shards) -> Result<(), IcedError> {
        let text = b"postlink: the system does not let this program set its GS base; instrument it with --counters atomic\n";
        let line = self.bytes(text);
        let a = &mut self.a;
        let [mut end] = labels(a);
        emit! { a;
            set_label(&mut shards.set_base);
            mov(edi, ARCH_SET_GS);
            mov(eax, call::ARCH_PRCTL);
            syscall();
            test(rax, rax);
            je(end);
            mov(edi, 2);
            lea(rsi, ptr(line));
            mov(edx, text.len() as u32);
            mov(eax, call::WRITE);
            syscall();
            mov(edi, 127);
            mov(eax, call::EXIT_GROUP);
            syscall();
            hlt();
            set_label(&mut end);
            ret();
        }
        Ok(())
    }

    /// `set_up` and `keep`.
    fn put_set_up(&mut self, mut shards: Shards) -> Result<(), IcedError> {
        let line = self.string(
            "postlink: the system does not tell forked processes apart (MADV_WIPEONFORK), profile ",
        );
        let failures = self.failures;
        let a = &mut self.a;
        let [mut low, mut limited] = labels(a);
        emit! { a;
            set_label(&mut shards.set_up);
            lea(r12, ptr(line));
            mov(rdi, rbp);
            mov(esi, PAGE as u32);
            mov(edx, MADV_WIPEONFORK);
            mov(eax, call::MADVISE);
            syscall();
            test(rax, rax);
            js(failures.errno);
            lea(r12, ptr(rbp + TEMPLATE));
        }
        self.expand()?;
        self.open()?;
        self.bring_to_size()?;
        self.agree_on_header()?;
        let a = &mut self.a;
        emit! { a;
            mov(rdi, r14);
            mov(esi, PAGE as u32);
            mov(eax, call::MUNMAP);
            syscall();
            xor(r14d, r14d);
            set_label(&mut shards.keep);
            mov(edi, RLIMIT_NOFILE);
            lea(rsi, ptr(rbp + BUFFER));
            mov(eax, call::GETRLIMIT);
            syscall();
            mov(edx, HIGH_DESCRIPTOR);
            cmp(qword_ptr(rbp + BUFFER), HIGH_DESCRIPTOR + 8);
            jae(limited);
            mov(edx, dword_ptr(rbp + BUFFER));
            sub(edx, 8);
            set_label(&mut limited);
            mov(edi, r13d);
            mov(esi, F_DUPFD_CLOEXEC);
            mov(eax, call::FCNTL);
            syscall();
            test(rax, rax);
            js(low);
            mov(r9, rax);
            mov(edi, r13d);
            mov(eax, call::CLOSE);
            syscall();
            mov(r13, r9);
            set_label(&mut low);
            mov(edi, r13d);
            lea(rsi, ptr(rbp + BUFFER));
            mov(eax, call::FSTAT);
            syscall();
            mov(rax, qword_ptr(rbp + BUFFER));
            mov(qword_ptr(rbp + DEVICE), rax);
            mov(rax, qword_ptr(rbp + (BUFFER + 8)));
            mov(qword_ptr(rbp + INODE), rax);
            lea(eax, ptr(r13 + 1));
            mov(dword_ptr(rbp + FD), eax);
            ret();
        }
        Ok(())
    }

    fn put_compare(&mut self, mut shards: Shards) -> Result<(), IcedError> {
        let a = &mut self.a;
        let [mut end] = labels(a);
        emit! { a;
            set_label(&mut shards.compare);
            mov(edi, r13d);
            lea(rsi, ptr(rbp + BUFFER));
            mov(eax, call::FSTAT);
            syscall();
            test(rax, rax);
            jne(end);
            mov(rax, qword_ptr(rbp + BUFFER));
            cmp(rax, qword_ptr(rbp + DEVICE));
            jne(end);
            mov(rax, qword_ptr(rbp + (BUFFER + 8)));
            cmp(rax, qword_ptr(rbp + INODE));
            set_label(&mut end);
            ret();
        }
        Ok(())
    }

    fn put_claim(&mut self, mut shards: Shards) -> Result<(), IcedError> {
        let errno = self.failures.errno;
        self.a.set_label(&mut shards.claim)?;
        self.claim_area(Claim {
            lock: F_WRLCK,
            cursor: CURSOR,
            area: AREA,
            no_lock: errno,
            no_room: errno,
        })?;
        self.a.ret()
    }

    fn put_share(&mut self, mut shards: Shards) -> Result<(), IcedError> {
        let (line, other) = (
            self.string("postlink: cannot open profile "),
            self.string(" is another file now"),
        );
        let cannot_map = self.string("postlink: cannot map a part of profile ");
        let failures = self.failures;
        let a = &mut self.a;
        let [mut end, mut open] = labels(a);
        emit! { a;
            set_label(&mut shards.share);
            cmp(dword_ptr(rbp + FD), 0);
            je(end);
            mov(r13d, dword_ptr(rbp + FD));
            dec(r13d);
            call(shards.compare);
            je(open);
            // The program has closed it, and may have opened something else since.
            lea(r12, ptr(line));
            or(r13, -1);
            lea(rdi, ptr(rbp + NAME));
            mov(esi, O_RDWR | O_CLOEXEC);
            mov(eax, call::OPEN);
            syscall();
            test(rax, rax);
            js(failures.errno);
            mov(r13, rax);
            call(shards.compare);
            lea(rbx, ptr(other));
            jne(failures.text);
            mov(rbx, qword_ptr(rbp + BIAS));
            call(shards.keep);
            set_label(&mut open);
            call(shards.claim);
            cmp(dword_ptr(rbp + FD), 0);
            je(end);
            lea(r12, ptr(cannot_map));
            mov(rdi, qword_ptr(rbp + NEW));
        }
        self.lay_area(failures.errno)?;
        let a = &mut self.a;
        emit! { a;
            mov(byte_ptr(rbp + RECORDING), 1);
            set_label(&mut end);
            ret();
        }
        Ok(())
    }

    /// The area that is being set up, as an offset in the file, into `r9`.
    pub(super) fn load_area(&mut self) -> Result<(), IcedError> {
        self.a.mov(r9, qword_ptr(rbp + AREA))
    }
}
