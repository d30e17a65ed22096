//! Biased counters: an area of the profile file for the thread that loads the program, one for all others.
//!
//! # Memory
//!
//! | from the owner's word | what | in a forked child |
//! |---|---|---|
//! | 0 | identity of the owner: the address of its control block; 0: none | zero |
//! | 4096 | counters that all threads share | kept |
//! | 4096 + their length | the owner's counters | kept |
//!
//! The owner is the thread that runs the start-up routine: of a program the first one, of a shared library that which
//! loads it. When it ends, another thread may get its control block: that one is the owner then, and the only one. A
//! forked child has no owner, because the kernel wipes the page for it (`MADV_WIPEONFORK`): all its threads count in
//! the shared area, with locks. A `vfork`ed one shares its parent's memory and identity, and the parent waits.
//!
//! # Areas
//!
//! Several processes may count in one file at once, also such with per-thread counters (`shards`). Who counts with
//! locks may share an area with others who do, so it takes a shared lock on the area's first byte; the owner, and
//! each thread with counters of its own, an exclusive one. These are locks of the open file description
//! (`F_OFD_SETLK`), which lasts as long as something of it is mapped. Where the file system has no such locks, all
//! processes share the first area, and there is no owner; nor is there one if the file cannot be made long enough for a
//! second area, or if the system does not wipe pages.
//!
//! Before start-up there is no owner: what is counted then is in the shared counters, and added to the file's.
//!
//! # What is not noticed
//!
//! Threads that a program makes by `clone` with its own memory but without a control block of their own, while their
//! parent goes on: both take themselves for the owner.

use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::file::{Claim, F_RDLCK, F_WRLCK};
use super::shards::MADV_WIPEONFORK;
use super::{AREA, CURSOR, PAGE, Routine, call, emit, labels};
use crate::BiasedMemory;

/// What is in front of the counters.
pub const BIASED: BiasedMemory = BiasedMemory { before: PAGE };

impl Routine<'_> {
    /// Steps 8 and 9 with two areas.
    pub(super) fn take_areas(&mut self) -> Result<(), IcedError> {
        let (config, errno) = (self.config, self.failures.errno);
        let a = &mut self.a;
        let [mut no_locks, mut locked, mut end] = labels(a);
        a.mov(qword_ptr(rbp + CURSOR), 0)?;
        let claim = Claim {
            lock: F_RDLCK,
            cursor: CURSOR,
            area: AREA,
            no_lock: no_locks,
            no_room: errno,
        };
        self.claim_area(claim)?;
        let a = &mut self.a;
        emit! { a;
            jmp(locked);
            set_label(&mut no_locks);
            mov(qword_ptr(rbp + CURSOR), 0);
            mov(qword_ptr(rbp + AREA), PAGE as i32);
            set_label(&mut locked);
            nop();
        }
        self.merge()?;
        self.lay_over()?;
        let a = &mut self.a;
        emit! { a;
            cmp(qword_ptr(rbp + CURSOR), 0);
            je(end);
        }
        self.claim_area(Claim {
            lock: F_WRLCK,
            no_lock: end,
            no_room: end,
            ..claim
        })?;
        let a = &mut self.a;
        emit! { a;
            mov(rdi, config.counters - BIASED.before);
            add(rdi, rbx);
            mov(esi, PAGE as u32);
            mov(edx, MADV_WIPEONFORK);
            mov(eax, call::MADVISE);
            syscall();
            test(rax, rax);
            js(end);
            mov(rdi, config.counters + config.counters_len);
            add(rdi, rbx);
        }
        self.lay_area(end)?;
        let a = &mut self.a;
        emit! { a;
            mov(rdi, config.counters - BIASED.before);
            add(rdi, rbx);
            xor(eax, eax);
            mov(rax, qword_ptr(rax).fs());
            mov(qword_ptr(rdi), rax);
            set_label(&mut end);
            nop();
        }
        Ok(())
    }
}
