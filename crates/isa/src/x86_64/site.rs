//! Recorders of indirect calls: which functions does this `call *%rax` call, and how often?
//!
//! Each recorded call site is replaced by a direct call of its own recorder, an indirect tail jump by a direct jump
//! to it. The recorder computes the target as the original instruction would have done, counts it in the site's
//! table, and jumps there. So the callee finds registers and stack as the original call leaves them, and returns
//! straight to the program.
//!
//! # The table of a site
//!
//! Eight 64-bit words in the counter pages, aligned to 64 bytes, so that one cache line is touched:
//!
//! | word | name | what |
//! |---|---|---|
//! | 0 | `t0` | the first target seen, as a link-time address (run-time address minus load bias); 0: none yet |
//! | 1 | `c0` | how often |
//! | 2, 3 | `t1`, `c1` | the second |
//! | 4, 5 | `t2`, `c2` | the third |
//! | 6 | `external` | calls to addresses outside the program's image: shared libraries, JIT code |
//! | 7 | `overflow` | calls to any other target inside it |
//!
//! Addresses are link-time addresses because processes with different load addresses share the table through the
//! profile file. Most sites have one target, so that one gets a fast path, inline in the recorder:
//!
//! ```text
//!         mov  r11, TARGET            the operand of the original instruction
//!         sub  r11, [bias]
//!         cmp  r11, [t0]
//!         jne  miss
//!         inc  qword [c0]             lock inc if atomic
//!         add  r11, [bias]
//!         jmp  *%r11                  or jmp *REG, without the add, if that was the operand
//! miss:   push r11
//!         lea  r11, [t0]
//!         call slow
//!         pop  r11
//!         add  r11, [bias]
//!         jmp  *%r11
//! ```
//!
//! # The slow path
//!
//! [`put_site_slow`] is a routine of its own convention: the table in `r11`, the target on the stack above
//! its return address, everything but `r11` and flags preserved. It looks for the target in entries 0, 1, 2;
//! at the first empty one on its way it claims that with `lock cmpxchg`, plain mode or not. No target is in
//! two entries: an entry, once claimed, never changes, and everyone goes through them in the same order; who
//! claims entry *j* has seen another target in each entry before it. A claim can be lost to another thread,
//! never a count.
//!
//! # Per-thread tables
//!
//! With [`CounterMode::PerThread`] the table is relative to the GS base: `cmp r11, gs:[t0]`,
//! `inc qword gs:[c0]`, and the slow path gets the table's offset (`mov r11d, t0`). Nothing but signal
//! handlers of the same thread writes to it, so no instruction is locked.
//!
//! # Biased tables
//!
//! With [`CounterMode::Biased`] the recorder asks first whether the thread is the owner
//! ([`counter`](super::counter)), and is there twice from then on: for the owner with a table of its own and `inc`, for
//! others with the shared table and `lock inc`. Where the operand needs `r11`, which the question destroys, all threads
//! use the shared table. The slow path is there twice as well: the zero flag says which table it gets, set for the
//! owner's, clear for the shared one, as it is where a recorder has missed.
//!
//! # What a recorder destroys
//!
//! `r11` and the arithmetic flags, which no calling convention on this processor carries through an ordinary
//! call: `r11` is scratch for procedure linkage. (LLVM's `preserve_none` passes an eleventh integer argument
//! in it.) On the fast path no stack is used. On a miss 48 bytes are used under the stack pointer of the
//! call; there is no red zone at a call, and none at a tail jump either, where the frame has been given up.
//! The canonical frame address is `rsp + 8` in the whole fast path: what its unwind information says.
//!
//! # Branch tracking
//!
//! Shadow stacks see matching calls and returns. The last jump is an indirect jump where the original was an indirect
//! call or jump, so the target has its landing pad, or the original said `notrack`, and so does the recorder; a `bnd`
//! prefix is kept likewise.
//!
//! # What is not recorded
//!
//! Far calls and jumps, and operands of 16 bits (with an operand-size prefix that no `REX.W` overrides). An
//! operand in segments `fs` and `gs` is loaded from there. One based on `rsp` is loaded from 8 above in a
//! recorder that is called, as the call has pushed a return address, and `call *%rsp` goes to `rsp + 8`.

use super::branch::put_field;
use super::counter::{GS, lead, put_inc, put_is_owner, put_jne};
use crate::{Code, CounterMode, FixupKind, Flow, Insn, SiteRef};

/// Words of a site's table.
pub const WORDS: u32 = 8;
/// The word of a table that counts targets outside the image.
pub const EXTERNAL: u32 = 6;
/// The word of a table that counts targets that found no entry.
pub const OVERFLOW: u32 = 7;
/// Entries of a table: pairs of a target and its count.
pub const ENTRIES: u32 = 3;

const RSP: u8 = 4;
const R11: u8 = 11;
const REL32: FixupKind = FixupKind::Rel32 { trail: 0 };

/// Appends a recorder; see [`crate::Counters::put_site`].
pub fn put_site<T: Copy>(
    out: &mut Code<T>,
    mode: CounterMode,
    original: &[u8],
    insn: &Insn,
    refer: impl Fn(SiteRef) -> T,
) -> bool {
    let Some(operand) = Operand::parse(original, insn) else {
        return false;
    };
    if mode == CounterMode::Biased && !operand.reads(R11) {
        put_is_owner(out, R11, refer(SiteRef::Owner));
        let branch = put_jne(out);
        put_recorder(out, CounterMode::Plain, true, &operand, &|r| match r {
            SiteRef::Table(word) => refer(SiteRef::OwnersTable(word)),
            other => refer(other),
        });
        // Two instructions that load, seven of at most 7 bytes, two calls or jumps: less than 127 bytes.
        lead(out, branch);
    }
    put_recorder(out, mode, false, &operand, &refer);
    true
}

/// Appends what records in one table, which may be the owner's, and goes on.
fn put_recorder<T: Copy>(
    out: &mut Code<T>,
    mode: CounterMode,
    owners: bool,
    operand: &Operand<'_>,
    refer: &impl Fn(SiteRef) -> T,
) {
    operand.put_load(out, refer);
    put_rip(out, &[0x4c, 0x2b, 0x1d], refer(SiteRef::Bias)); // sub r11,[bias]
    let own = mode == CounterMode::PerThread;
    if own {
        out.bytes.extend_from_slice(&[GS, 0x4c, 0x3b, 0x1c, 0x25]); // cmp r11,gs:[t0]
        put_field(out, FixupKind::Abs32S, refer(SiteRef::Table(0)));
    } else {
        put_rip(out, &[0x4c, 0x3b, 0x1d], refer(SiteRef::Table(0))); // cmp r11,[t0]
    }
    out.bytes.extend_from_slice(&[0x75, 0]); // jne miss
    let branch = out.bytes.len();
    put_inc(out, mode, refer(SiteRef::Table(1)));
    match operand.register {
        // The return address has moved rsp away from the target.
        Some(register) if register != R11 && !(register == RSP && operand.called) => {
            operand.put_jump(out, register)
        }
        _ => {
            put_rip(out, &[0x4c, 0x03, 0x1d], refer(SiteRef::Bias)); // add r11,[bias]
            operand.put_jump(out, R11);
        }
    }
    // At most 9 + 7 + 4 bytes are between.
    out.bytes[branch - 1] = (out.bytes.len() - branch) as u8;
    out.bytes.extend_from_slice(&[0x41, 0x53]); // push r11
    if own {
        out.bytes.extend_from_slice(&[0x41, 0xbb]); // mov r11d,t0
        put_field(out, FixupKind::Abs32, refer(SiteRef::Table(0)));
    } else {
        put_rip(out, &[0x4c, 0x8d, 0x1d], refer(SiteRef::Table(0))); // lea r11,[t0]
    }
    if owners {
        out.bytes.extend_from_slice(&[0x4d, 0x39, 0xdb]); // cmp r11,r11
    }
    put_rip(out, &[0xe8], refer(SiteRef::Slow)); // call slow
    out.bytes.extend_from_slice(&[0x41, 0x5b]); // pop r11
    put_rip(out, &[0x4c, 0x03, 0x1d], refer(SiteRef::Bias)); // add r11,[bias]
    operand.put_jump(out, R11);
}

/// An opcode whose last field is a 32-bit displacement from its end.
fn put_rip<T>(out: &mut Code<T>, opcode: &[u8], target: T) {
    out.bytes.extend_from_slice(opcode);
    put_field(out, REL32, target);
}

/// The operand of an indirect near call or jump, taken apart.
pub(super) struct Operand<'a> {
    /// A call rather than a jump.
    pub(super) called: bool,
    /// The register that holds the target, if it is not in memory.
    pub(super) register: Option<u8>,
    /// Prefixes that belong to the memory operand: segment and address size.
    pub(super) of_memory: smallvec::SmallVec<[u8; 4]>,
    /// Prefixes that belong to the branch: `notrack` and `bnd`.
    pub(super) of_branch: smallvec::SmallVec<[u8; 4]>,
    /// X and B of the REX prefix.
    pub(super) rex: u8,
    /// ModRM byte and what follows.
    pub(super) modrm: &'a [u8],
    /// The address in memory relative to `rip`, if that is what it is.
    pub(super) relative: Option<u64>,
    /// For memory based on `rsp`: the displacement that finds it after the call of the recorder.
    above: Option<i32>,
}

impl<'a> Operand<'a> {
    pub(super) fn parse(original: &'a [u8], insn: &Insn) -> Option<Operand<'a>> {
        let called = match insn.flow {
            Flow::IndirectCall => true,
            Flow::IndirectJump => false,
            _ => return None,
        };
        let opcode = original.iter().position(|&byte| byte == 0xff)?;
        let modrm = original.get(opcode + 1..usize::from(insn.len))?;
        let (mode, extension) = (modrm.first()? >> 6, modrm.first()? >> 3 & 7);
        if extension != if called { 2 } else { 4 } {
            return None; // far
        }
        let (mut prefixes, mut rex) = (&original[..opcode], 0);
        if let [rest @ .., last @ 0x40..=0x4f] = prefixes {
            (prefixes, rex) = (rest, *last);
        }
        let (mut of_memory, mut of_branch) = (smallvec::SmallVec::new(), smallvec::SmallVec::new());
        for &prefix in prefixes {
            match prefix {
                0x64 | 0x65 if mode != 3 => of_memory.push(prefix),
                0x67 if mode != 3 => of_memory.push(prefix),
                // `ds`, which says `notrack`. With `fs` or `gs` it would be a second segment: such a jump is
                // not changed.
                0x3e | 0xf2 => of_branch.push(prefix),
                // Ignored where they are, and so is the size with REX.W.
                0x26 | 0x2e | 0x36 | 0x64 | 0x65 | 0x67 => {}
                0x66 if rex & 8 != 0 => {}
                _ => return None,
            }
        }
        let segments = prefixes
            .iter()
            .filter(|prefix| matches!(prefix, 0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65))
            .count();
        if segments > 1 || of_branch.len() > 1 {
            return None;
        }
        Some(Operand {
            called,
            register: (mode == 3).then(|| modrm[0] & 7 | (rex & 1) << 3),
            of_memory,
            of_branch,
            rex: rex & 0b0011,
            modrm,
            relative: insn.field.map(|field| field.target),
            above: if called && mode != 3 && rex & 1 == 0 {
                above(modrm)?
            } else {
                None
            },
        })
    }

    /// Whether the target is in this register, or in memory whose address needs it.
    fn reads(&self, register: u8) -> bool {
        let (low, high) = (register & 7, register >> 3);
        let (b, x) = (self.rex & 1, self.rex >> 1 & 1);
        if let Some(own) = self.register {
            return own == register;
        }
        match *self.modrm {
            _ if self.relative.is_some() => false,
            [modrm, sib, ..] if modrm & 7 == 4 => {
                let no_base = modrm >> 6 == 0 && sib & 7 == 5;
                let no_index = sib >> 3 & 7 == 4 && x == 0;
                !no_base && (sib & 7, b) == (low, high)
                    || !no_index && (sib >> 3 & 7, x) == (low, high)
            }
            [modrm, ..] => (modrm & 7, b) == (low, high),
            [] => true,
        }
    }

    /// Appends `mov r11, target`, with `rsp` as it was before the recorder was called.
    fn put_load<T>(&self, out: &mut Code<T>, refer: &impl Fn(SiteRef) -> T) {
        const REX_WR: u8 = 0x4c;
        if self.called && self.register == Some(RSP) {
            out.bytes.extend_from_slice(&[0x4c, 0x8d, 0x5c, 0x24, 8]); // lea r11,[rsp+8]
            return;
        }
        out.bytes.extend_from_slice(&self.of_memory);
        out.bytes.extend_from_slice(&[REX_WR | self.rex, 0x8b]);
        // The opcode extension gives way to the number of r11 (its high bit is REX.R).
        let modrm = self.modrm[0] & 0xc7 | (R11 & 7) << 3;
        if let Some(address) = self.relative {
            out.bytes.push(modrm);
            put_field(out, REL32, refer(SiteRef::Original(address)));
            return;
        }
        if let (Some(disp), Some(&sib)) = (self.above, self.modrm.get(1)) {
            out.bytes.extend_from_slice(&[modrm & 0x3f | 0x80, sib]);
            out.bytes.extend_from_slice(&disp.to_le_bytes());
            return;
        }
        out.bytes.push(modrm);
        out.bytes.extend_from_slice(&self.modrm[1..]);
    }

    /// Appends an indirect jump through a register.
    fn put_jump<T>(&self, out: &mut Code<T>, register: u8) {
        out.bytes.extend_from_slice(&self.of_branch);
        if register >= 8 {
            out.bytes.push(0x41);
        }
        out.bytes.extend_from_slice(&[0xff, 0xe0 | register & 7]);
    }
}

/// If a memory operand without REX.B is based on `rsp`: its displacement from 8 bytes further down.
/// The outer `None` if that cannot be written.
fn above(modrm: &[u8]) -> Option<Option<i32>> {
    let [first, sib, disp @ ..] = modrm else {
        return Some(None);
    };
    if first & 7 != 4 || sib & 7 != RSP {
        return Some(None);
    }
    let disp = match first >> 6 {
        0 => 0,
        1 => i32::from(*disp.first()? as i8),
        _ => i32::from_le_bytes(*disp.first_chunk()?),
    };
    disp.checked_add(8).map(Some)
}

/// Appends the slow path of all recorders; see [`crate::Counters::put_site_slow`]. `image` is `[low, high)`.
pub fn put_site_slow<T>(out: &mut Code<T>, mode: CounterMode, image: (u64, u64)) {
    let code = &mut out.bytes;
    if mode != CounterMode::Biased {
        return put_slow(code, mode, image);
    }
    code.extend_from_slice(&[0x0f, 0x84, 0, 0, 0, 0]); // je owner's
    let branch = code.len();
    put_slow(code, CounterMode::Atomic, image);
    let len = (code.len() - branch) as u32;
    code[branch - 4..branch].copy_from_slice(&len.to_le_bytes());
    put_slow(code, CounterMode::Plain, image);
}

fn put_slow(code: &mut Vec<u8>, mode: CounterMode, image: (u64, u64)) {
    let own = mode == CounterMode::PerThread;
    let count = |code: &mut Vec<u8>, word: u32| {
        match mode {
            CounterMode::Plain => {}
            CounterMode::PerThread => code.push(GS),
            CounterMode::Atomic | CounterMode::AtomicOne | CounterMode::Biased => code.push(0xf0), // lock
        }
        code.extend_from_slice(&[0x49, 0xff, 0x43, (word * 8) as u8]); // inc qword [r11+8*word]
    };
    // rsp: rcx, rax, return address, target
    code.extend_from_slice(&[0x50, 0x51]); // push rax; push rcx
    code.extend_from_slice(&[0x48, 0x8b, 0x4c, 0x24, 0x18]); // mov rcx,[rsp+24]
    code.extend_from_slice(&[0x48, 0xb8]); // mov rax,low
    code.extend_from_slice(&image.0.to_le_bytes());
    code.extend_from_slice(&[0x48, 0x39, 0xc1, 0x72, 15]); // cmp rcx,rax; jb external
    code.extend_from_slice(&[0x48, 0xb8]); // mov rax,high
    code.extend_from_slice(&image.1.to_le_bytes());
    code.extend_from_slice(&[0x48, 0x39, 0xc1, 0x72, 0]); // cmp rcx,rax; jb inside
    let external = code.len();
    count(code, EXTERNAL);
    code.extend_from_slice(&[0x59, 0x58, 0xc3]); // pop rcx; pop rax; ret
    code[external - 1] = (code.len() - external) as u8; // 7 or 8 bytes
    // inside:
    for entry in 0..ENTRIES {
        let target = (entry * 16) as u8;
        if own {
            code.push(GS);
        }
        code.extend_from_slice(&[0x49, 0x8b, 0x43, target]); // mov rax,[r11+target]
        code.extend_from_slice(&[0x48, 0x39, 0xc8, 0x74, 18]); // cmp rax,rcx; je found
        let from_first = code.len();
        code.extend_from_slice(&[0x48, 0x85, 0xc0, 0x75, 0]); // test rax,rax; jne next
        let from_taken = code.len();
        code.push(if own { GS } else { 0xf0 });
        code.extend_from_slice(&[0x49, 0x0f, 0xb1, 0x4b, target]); // lock cmpxchg [r11+target],rcx
        code.extend_from_slice(&[0x74, 5]); // je found: it was empty, and rax is 0
        let from_claimed = code.len();
        code.extend_from_slice(&[0x48, 0x39, 0xc8, 0x75, 0]); // cmp rax,rcx; jne next
        let from_other = code.len();
        // found:
        let found = code.len();
        assert_eq!((found - from_first, found - from_claimed), (18, 5));
        count(code, entry * 2 + 1);
        code.extend_from_slice(&[0x59, 0x58, 0xc3]); // pop rcx; pop rax; ret
        // next:
        for from in [from_taken, from_other] {
            code[from - 1] = (code.len() - from) as u8; // Within an entry, which has 35 or 36 bytes.
        }
    }
    count(code, OVERFLOW);
    code.extend_from_slice(&[0x59, 0x58, 0xc3]);
}
