//! The increment of a counter.
//!
//! A counter sits on an edge or in a block of the program's code, so it must preserve what that code still needs.
//! [`Decode::effects`](crate::Decode::effects) tells the rewriter what that is; the cheapest form that respects it is
//! chosen.
//! `c` is the counter, `r` a dead general register.
//!
//! | mode | dead | code | bytes |
//! |---|---|---|---|
//! | plain | PF AF ZF SF OF | `inc qword [c]` | 7 |
//! | plain | `r` | `mov r,[c]`, `lea r,[r+1]`, `mov [c],r` | 18 |
//! | plain | nothing | the same with `rax`, saved on the stack | 33 |
//! | atomic | PF AF ZF SF OF | `lock inc qword [c]` | 8 |
//! | atomic | `rax` | `lahf`, `seto al`, `lock inc qword [c]`, `add al,127`, `sahf` | 15 |
//! | atomic | `r` | the same with `rax` kept in `r` | 21 |
//! | atomic | nothing | the same with `rax` saved on the stack | 30 |
//! | per thread | as for atomic | the same with `inc qword gs:[c]` | 1 more each |
//! | biased | CF PF AF ZF SF OF, `r` | see below | 35 |
//! | biased | `rax`, `r` | the same between `lahf` (`seto al`) and (`add al,127`) `sahf` | up to 42 |
//! | biased | two registers | the same with `rax` kept in one of them | up to 48 |
//! | biased | less | the same between saves and restores on the stack of `rax`, `rcx` or both | up to 59 |
//!
//! Per thread, `c` is an offset from the GS base, where each thread has an area of its own
//! ([`runtime`](super::runtime)). No lock is needed, but what reads, adds and writes is still one
//! instruction: a signal handler of the same thread may count at the same counter.
//!
//! # Biased counters
//!
//! A locked instruction costs as much as ten others even where no other thread counts. So one thread, the owner, counts
//! without locks in counters of its own, `o`, and all others with locks in counters that they share, `c` (the idea of
//! biased locking, and of biased reference counting: Choi, Shull, Torrellas, PACT 2018). A thread is known by the
//! address of its control block, which is at `fs:[0]`; `owner` is that of the owner, or 0:
//!
//! ```text
//!         mov  r, fs:[0]
//!         cmp  r, [owner]
//!         jne  L
//!         inc  qword [o]
//!         jne  E                      always: no count comes to 2^64, which is zero
//! L:      lock inc qword [c]
//! E:
//! ```
//!
//! Unlike per-thread counters these need no checks elsewhere: a new thread has a control block of its own, whoever
//! made it, and `owner` is in a page that the kernel wipes for a forked child, where all threads use locks from then
//! on.
//!
//! # What is kept
//!
//! `inc` leaves CF alone, so CF may live in every form. `lahf` and `sahf` carry all flags but OF; that one is
//! kept in `al` and comes back as the overflow of `al + 127`. Where OF is dead, `seto` and `add` are left
//! out. `pushfq` and `popfq` would do it all in two bytes, but `popfq` takes some 20 cycles.
//!
//! The stack is used below the red zone: a leaf function may keep data in the 128 bytes under `rsp`, and a signal
//! handler may overwrite what is below those, so `rsp` is moved (by `lea`, which keeps the flags) before the push.
//! Nothing but `rsp`, `rax` and `rcx` is touched; vector registers never are. Where `rsp` is meanwhile is noted
//! ([`Code::stack_is`]), as the unwind table has to say it: a signal may come between any two instructions, and whoever
//! unwinds from its handler, or from where a thread is cancelled asynchronously, finds frames from there.

use super::branch::put_field;
use super::{AF, CF, OF, PF, SF, ZF};
use crate::{Code, CounterMode, CounterPlace, FixupKind, RegSet};

/// The flags that `inc` writes.
const BY_INC: RegSet = RegSet(PF.0 | AF.0 | ZF.0 | SF.0 | OF.0);

/// The flags that `cmp` writes.
const BY_CMP: RegSet = RegSet(BY_INC.0 | CF.0);

const RAX: u8 = 0;
const RCX: u8 = 1;

/// The prefix for memory relative to the GS base.
pub(super) const GS: u8 = 0x65;

/// Registers in the order in which they are taken when dead: those first that a call destroys. Never `rsp`.
const PREFERRED: [u8; 15] = [RAX, 1, 2, 8, 9, 10, 11, 6, 7, 3, 5, 12, 13, 14, 15];

/// Appends an increment of `counter` that keeps what is in `live`; see [`crate::Counters::put_counter`].
pub fn put_counter<T: Copy>(
    out: &mut Code<T>,
    mode: CounterMode,
    live: RegSet,
    place: CounterPlace<T>,
) {
    let counter = place.counter;
    if mode == CounterMode::Biased {
        return Biased::new(live).put(out, place);
    }
    let dead = PREFERRED
        .into_iter()
        .find(|&register| !live.meets(RegSet(1 << register)));
    let keep_overflow = live.meets(OF);
    match (mode, dead) {
        _ if !live.meets(BY_INC) => put_inc(out, mode, counter),
        (CounterMode::Plain, Some(register)) => put_load_add_store(out, register, counter),
        (CounterMode::Plain, None) => {
            on_stack(out, &[RAX], |out| put_load_add_store(out, RAX, counter))
        }
        (_, Some(RAX)) => put_inc_keeping_flags(out, mode, keep_overflow, counter),
        (_, Some(register)) => {
            let (rex, low) = (0x48 | register >> 3, register & 7);
            out.bytes.extend_from_slice(&[rex, 0x89, 0xc0 | low]); // mov r,rax
            put_inc_keeping_flags(out, mode, keep_overflow, counter);
            out.bytes
                .extend_from_slice(&[0x48 | register >> 3 << 2, 0x89, 0xc0 | low << 3]); // mov rax,r
        }
        (_, None) => on_stack(out, &[RAX], |out| {
            put_inc_keeping_flags(out, mode, keep_overflow, counter)
        }),
    }
}

/// Length of what [`put_counter`] appends; the table above.
pub fn counter_len(mode: CounterMode, live: RegSet) -> usize {
    if mode == CounterMode::Biased {
        return Biased::new(live).len();
    }
    let dead = PREFERRED
        .into_iter()
        .find(|&register| !live.meets(RegSet(1 << register)));
    let overflow = if live.meets(OF) { 5 } else { 0 };
    let segment = usize::from(mode == CounterMode::PerThread);
    match (mode, dead) {
        (CounterMode::Plain, _) if !live.meets(BY_INC) => 7,
        _ if !live.meets(BY_INC) => 8 + segment,
        (CounterMode::Plain, Some(register)) => 18 + usize::from(register == 12),
        (CounterMode::Plain, None) => 33,
        (_, Some(RAX)) => 10 + overflow + segment,
        (_, Some(_)) => 16 + overflow + segment,
        (_, None) => 25 + overflow + segment,
    }
}

/// A biased counter's registers.
struct Biased {
    /// Flags live, and so they are in `rax` meanwhile; whether OF is among them.
    flags: Option<bool>,
    /// Keeps `rax` meanwhile, if that lives and is needed for flags.
    keeper: Option<u8>,
    /// Is compared with the owner.
    register: u8,
    /// Those that live and are saved on the stack, as too few are dead.
    saved: &'static [u8],
}

impl Biased {
    fn new(live: RegSet) -> Biased {
        let mut dead = PREFERRED
            .into_iter()
            .filter(|&register| !live.meets(RegSet(1 << register)));
        let (first, second) = (dead.next(), dead.next());
        let flags = live.meets(BY_CMP).then(|| live.meets(OF));
        let (keeper, register, saved): (_, _, &[u8]) = match (flags, first, second) {
            (None, Some(register), _) => (None, register, &[]),
            (None, None, _) => (None, RAX, &[RAX]),
            (Some(_), Some(RAX), Some(register)) => (None, register, &[]),
            (Some(_), Some(keeper), Some(register)) => (Some(keeper), register, &[]),
            (Some(_), Some(RAX), None) => (None, RCX, &[RCX]),
            (Some(_), Some(register), None) => (None, register, &[RAX]),
            (Some(_), None, _) => (None, RCX, &[RAX, RCX]),
        };
        Biased {
            flags,
            keeper,
            register,
            saved,
        }
    }

    fn put<T: Copy>(&self, out: &mut Code<T>, place: CounterPlace<T>) {
        if self.saved.is_empty() {
            self.put_in_dead(out, place);
        } else {
            on_stack(out, self.saved, |out| self.put_in_dead(out, place));
        }
    }

    /// The same where the registers may be destroyed.
    fn put_in_dead<T: Copy>(&self, out: &mut Code<T>, place: CounterPlace<T>) {
        if let Some(keeper) = self.keeper {
            let (rex, low) = (0x48 | keeper >> 3, keeper & 7);
            out.bytes.extend_from_slice(&[rex, 0x89, 0xc0 | low]); // mov r,rax
        }
        match self.flags {
            None => {}
            Some(false) => out.bytes.push(0x9f), // lahf
            Some(true) => out.bytes.extend_from_slice(&[0x9f, 0x0f, 0x90, 0xc0]), // and seto al
        }
        put_is_owner(out, self.register, place.owner);
        let branch = put_jne(out);
        put_inc(out, CounterMode::Plain, place.owners);
        out.bytes.extend_from_slice(&[0x75, 8]); // jne E
        lead(out, branch); // L:
        put_inc(out, CounterMode::Atomic, place.counter);
        // E:
        match self.flags {
            None => {}
            Some(false) => out.bytes.push(0x9e), // sahf
            Some(true) => out.bytes.extend_from_slice(&[0x04, 0x7f, 0x9e]), // add al,127; sahf
        }
        if let Some(keeper) = self.keeper {
            let (rex, low) = (0x48 | keeper >> 3 << 2, keeper & 7);
            out.bytes.extend_from_slice(&[rex, 0x89, 0xc0 | low << 3]); // mov rax,r
        }
    }

    fn len(&self) -> usize {
        let flags = self
            .flags
            .map_or(0, |overflow| if overflow { 7 } else { 2 });
        let on_stack = match self.saved.len() {
            0 => 0,
            saved => 13 + 2 * saved,
        };
        35 + flags + if self.keeper.is_some() { 6 } else { 0 } + on_stack
    }
}

/// `mov r, fs:[0]`, `cmp r, [owner]`.
pub(super) fn put_is_owner<T>(out: &mut Code<T>, register: u8, owner: T) {
    let (rex, reg) = (0x48 | register >> 3 << 2, register << 3 & 0x38);
    out.bytes
        .extend_from_slice(&[0x64, rex, 0x8b, 0x04 | reg, 0x25, 0, 0, 0, 0]);
    out.bytes.extend_from_slice(&[rex, 0x3b, 0x05 | reg]);
    put_field(out, FixupKind::Rel32 { trail: 0 }, owner);
}

/// `jne` to where [`lead`] says; gives what that wants.
pub(super) fn put_jne<T>(out: &mut Code<T>) -> usize {
    out.bytes.extend_from_slice(&[0x75, 0]);
    out.bytes.len()
}

/// Leads a `jne` to here, which is at most 127 bytes behind it.
pub(super) fn lead<T>(out: &mut Code<T>, branch: usize) {
    out.bytes[branch - 1] = (out.bytes.len() - branch) as u8;
}

/// `inc qword [c]`, as one bus transaction if atomic, `inc qword gs:[c]` per thread.
pub(super) fn put_inc<T>(out: &mut Code<T>, mode: CounterMode, counter: T) {
    if mode == CounterMode::PerThread {
        out.bytes.extend_from_slice(&[GS, 0x48, 0xff, 0x04, 0x25]);
        return put_field(out, FixupKind::Abs32S, counter);
    }
    if mode != CounterMode::Plain {
        out.bytes.push(0xf0);
    }
    out.bytes.extend_from_slice(&[0x48, 0xff, 0x05]);
    put_field(out, FixupKind::Rel32 { trail: 0 }, counter);
}

fn put_load_add_store<T: Copy>(out: &mut Code<T>, register: u8, counter: T) {
    let (high, low) = (register >> 3, register & 7);
    let relative = 0x05 | low << 3;
    out.bytes
        .extend_from_slice(&[0x48 | high << 2, 0x8b, relative]); // mov r,[c]
    put_field(out, FixupKind::Rel32 { trail: 0 }, counter);
    out.bytes
        .extend_from_slice(&[0x48 | high << 2 | high, 0x8d, 0x40 | low << 3 | low]); // lea r,[r+1]
    if low == 4 {
        out.bytes.push(0x24); // r12 as a base needs an index byte that says "none".
    }
    out.bytes.push(1);
    out.bytes
        .extend_from_slice(&[0x48 | high << 2, 0x89, relative]); // mov [c],r
    put_field(out, FixupKind::Rel32 { trail: 0 }, counter);
}

fn put_inc_keeping_flags<T>(out: &mut Code<T>, mode: CounterMode, keep_overflow: bool, counter: T) {
    out.bytes.push(0x9f); // lahf
    if keep_overflow {
        out.bytes.extend_from_slice(&[0x0f, 0x90, 0xc0]); // seto al
    }
    put_inc(out, mode, counter);
    if keep_overflow {
        out.bytes.extend_from_slice(&[0x04, 0x7f]); // add al,127
    }
    out.bytes.push(0x9e); // sahf
}

/// Puts `body`, which may destroy these registers, none of them above 7, between a save and a restore of them below the
/// red zone.
fn on_stack<T>(out: &mut Code<T>, registers: &[u8], body: impl FnOnce(&mut Code<T>)) {
    out.bytes.extend_from_slice(&[0x48, 0x8d, 0x64, 0x24, 0x80]); // lea rsp,[rsp-128]
    let (mut down, mut saved) = (128, RegSet::EMPTY);
    out.stack_is(down, saved);
    for register in registers {
        out.bytes.push(0x50 | register); // push r
        down += 8;
        saved = saved.or(RegSet(1 << register));
        out.stack_is(down, saved);
    }
    body(out);
    for register in registers.iter().rev() {
        out.bytes.push(0x58 | register); // pop r
        down -= 8;
        saved = saved.minus(RegSet(1 << register));
        out.stack_is(down, saved);
    }
    out.bytes
        .extend_from_slice(&[0x48, 0x8d, 0xa4, 0x24, 0x80, 0, 0, 0]); // lea rsp,[rsp+128]
    out.stack_is(0, RegSet::EMPTY);
}
