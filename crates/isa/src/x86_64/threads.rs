//! Per-thread counters: what new code looks like around them.
//!
//! Programs for Linux leave the GS base alone, so it can point to counters of the thread's own. Its areas are
//! made and found by a routine ("enter", in [`runtime`](super::runtime)); this file encodes the checks that
//! call it, and finds code with which that cannot work.
//!
//! # Entry checks
//!
//! A new thread inherits its parent's GS base, so it must be noticed before it counts. Pointers to functions
//! stay the old entries in an instrumented program, so control that comes in from outside (a thread's first
//! function, a callback, a signal handler, a resolver) comes through an old entry; that one's jump goes to
//! the check, which is in front of the new body. Direct calls between moved functions go past it.
//!
//! ```text
//!         cmp  byte [ready], 1
//!         jne  L
//!         mov  r11, fs:[0]            the thread's identity: every thread's control block holds its own address there
//!         cmp  r11, gs:[owner]
//!         je   body
//! L:      call enter
//! body:
//! ```
//!
//! `ready` is 0 before the start-up routine has run and in a forked child (its page is wiped), 2 if threads may exist
//! that have no GS base at all. Only if it is 1 may memory relative to it be read. `enter` preserves every register
//! and all flags. At the entry of a compiled function `r11` and flags hold nothing; where that is not certain, they
//! are saved, below the red zone; flags in `rax`, by `lahf` and `seto`, as around counters
//! ([`counter`](super::counter)): `popfq` takes longer than all the rest, and in programs without kept relocations,
//! where nothing is certain, each call through a pointer comes to a check.
//!
//! # Fork checks
//!
//! A forked child has its parent's GS base, and the file mapped there. After each call that may return in a child is
//! `cmp byte [ready],0`, `jne +5`, `call enter`, so that it has an area of its own before it counts.
//!
//! # Obstacles
//!
//! | instruction | why |
//! |---|---|
//! | memory in segment `gs`; `mov`, `push`, `pop`, `lgs`, `swapgs`, `rdgsbase`, `wrgsbase` with it | the base is in use |
//! | `syscall`, unless a constant that is none of clone, fork, clone3, arch_prctl was just loaded into `eax` | a thread with its parent's control block, another base |
//! | `int 0x80`, `sysenter` | likewise |

use iced_x86::{
    Code as Op, Decoder, DecoderOptions, InstructionInfoFactory, OpAccess, Register, UsedMemory,
};

use super::branch::{put_call, put_field};
use super::counter::GS;
use crate::{Code, Decode, FixupKind, Flow, Forks, Insn, RegSet};

/// Where in front of its counters a thread's identity is.
pub const OWNER: i32 = -64;

const A: RegSet = RegSet(1);
const R11: RegSet = RegSet(1 << 11);

/// Appends an entry check; see [`crate::Runtime::put_entry_check`].
pub fn put_entry_check<T>(out: &mut Code<T>, save: bool, ready: T, enter: T) {
    if save {
        out.bytes.extend_from_slice(&[0x48, 0x8d, 0x64, 0x24, 0x80]); // lea rsp,[rsp-128]
        out.stack_is(128, RegSet::EMPTY);
        out.bytes.push(0x50); // push rax
        out.stack_is(136, A);
        out.bytes.extend_from_slice(&[0x41, 0x53]); // push r11
        out.stack_is(144, A.or(R11));
        out.bytes.extend_from_slice(&[0x9f, 0x0f, 0x90, 0xc0]); // lahf; seto al
    }
    out.bytes.extend_from_slice(&[0x80, 0x3d]); // cmp byte [ready],1
    put_field(out, FixupKind::Rel32 { trail: 1 }, ready);
    out.bytes.extend_from_slice(&[1, 0x75, 20]); // jne L
    out.bytes
        .extend_from_slice(&[0x64, 0x4c, 0x8b, 0x1c, 0x25, 0, 0, 0, 0]); // mov r11,fs:[0]
    out.bytes.extend_from_slice(&[GS, 0x4c, 0x3b, 0x1c, 0x25]); // cmp r11,gs:[owner]
    out.bytes.extend_from_slice(&OWNER.to_le_bytes());
    out.bytes.extend_from_slice(&[0x74, 5]); // je body
    put_call(out, enter); // L:
    if save {
        out.bytes.extend_from_slice(&[0x04, 0x7f, 0x9e]); // add al,127; sahf
        out.bytes.extend_from_slice(&[0x41, 0x5b]); // pop r11
        out.stack_is(136, A);
        out.bytes.push(0x58); // pop rax
        out.stack_is(128, RegSet::EMPTY);
        out.bytes
            .extend_from_slice(&[0x48, 0x8d, 0xa4, 0x24, 0x80, 0, 0, 0]); // lea rsp,[rsp+128]
        out.stack_is(0, RegSet::EMPTY);
    }
}

/// Appends a fork check; see [`crate::Runtime::put_fork_check`].
pub fn put_fork_check<T>(out: &mut Code<T>, ready: T, enter: T) {
    out.bytes.extend_from_slice(&[0x80, 0x3d]); // cmp byte [ready],0
    put_field(out, FixupKind::Rel32 { trail: 1 }, ready);
    out.bytes.extend_from_slice(&[0, 0x75, 5]); // jne after
    put_call(out, enter);
}

/// System calls that make threads and processes, or set the base: clone, fork, vfork is harmless, arch_prctl, clone3.
const NOTICED: [u32; 4] = [56, 57, 158, 435];

/// Finds the first obstacle; see [`crate::Runtime::per_thread_obstacle`].
pub fn obstacle(
    bytes: &[u8],
    addr: u64,
    stays: bool,
    forks: impl Fn(&Insn) -> Forks,
) -> Option<(u64, &'static str)> {
    first_obstacle(bytes, addr, |insn, code, before| {
        let fork = || match forks(insn) {
            Forks::Never => false,
            Forks::Maybe => true,
            Forks::ByNumber => !constant(before, Register::RDI).is_some_and(harmless),
        };
        match insn.flow {
            Flow::Next => judge(code, before).err(),
            Flow::Jump { .. } | Flow::IndirectJump if fork() => {
                Some("leaves by a jump to a function that may fork")
            }
            Flow::Call { .. } | Flow::IndirectCall if stays && fork() => {
                Some("may fork, and is not moved")
            }
            _ => None,
        }
    })
}

/// System calls that make threads, or set the base by which they are told apart: clone, arch_prctl, clone3.
const MAKING_THREADS: [u32; 3] = [56, 158, 435];

/// Finds the first obstacle to biased counters; see [`crate::Runtime::biased_obstacle`].
pub fn biased_obstacle(bytes: &[u8], addr: u64) -> Option<(u64, &'static str)> {
    first_obstacle(bytes, addr, |_, code, before| match *code {
        [0x0f, 0x05] => makes_thread(before, |number| !MAKING_THREADS.contains(&number)),
        [0xcd, 0x80] | [0x0f, 0x34] => Some("makes system calls of the 32-bit kind"),
        _ if sets_fs(code) => Some("sets the segment register fs or its base"),
        _ => None,
    })
}

/// The first instruction of some code that `why` has something against. It is given the instruction, its bytes, and
/// those of the straight-line code in front of it, which no branch, call or system call ends.
fn first_obstacle(
    bytes: &[u8],
    addr: u64,
    mut why: impl FnMut(&Insn, &[u8], &[u8]) -> Option<&'static str>,
) -> Option<(u64, &'static str)> {
    let mut found = None;
    let mut run = 0;
    super::X86_64::sweep(bytes, addr, |insn| {
        let at = insn.addr.wrapping_sub(addr) as usize;
        let end = at + usize::from(insn.len);
        let code = bytes.get(at..end).unwrap_or_default();
        let before = bytes.get(run..at).unwrap_or_default();
        found = why(insn, code, before).map(|why| (insn.addr, why));
        if insn.flow != Flow::Next || code.ends_with(&[0x0f, 0x05]) {
            run = end;
        }
        found.is_none()
    });
    found
}

/// Why a system call may make a thread that nobody notices, by the straight-line code in front of it, unless its
/// number is known and `harmless`.
fn makes_thread(before: &[u8], harmless: impl Fn(u32) -> bool) -> Option<&'static str> {
    match constant(before, Register::RAX) {
        Some(number) if harmless(number) => None,
        Some(158) => Some("sets or reads a segment base by itself (arch_prctl)"),
        Some(_) => Some("makes threads or processes by itself"),
        None => Some("makes a system call by itself that may start a thread"),
    }
}

/// See [`crate::Runtime::uses_thread_segment`].
pub fn uses_segment(bytes: &[u8]) -> bool {
    let prefixes = bytes.iter().take_while(|byte| is_prefix(**byte));
    if !prefixes.into_iter().any(|byte| *byte == GS) {
        return false;
    }
    let instruction = Decoder::new(64, bytes, DecoderOptions::NONE).decode();
    let mut factory = InstructionInfoFactory::new();
    let mut memory = factory.info(&instruction).used_memory().iter();
    let is_used =
        |m: &UsedMemory| m.segment() == Register::GS && m.access() != OpAccess::NoMemAccess;
    !instruction.is_privileged() && memory.any(is_used)
}

/// See [`crate::Runtime::is_privileged`].
pub fn is_privileged(bytes: &[u8]) -> bool {
    Decoder::new(64, bytes, DecoderOptions::NONE)
        .decode()
        .is_privileged()
}

/// Whether a byte is a prefix that any instruction may have in front of its opcode, but for REX.
#[inline]
fn is_prefix(byte: u8) -> bool {
    matches!(
        byte,
        0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3
    )
}

/// Whether an instruction changes where the thread's control block is found.
fn sets_fs(code: &[u8]) -> bool {
    let prefixes = code.iter().take_while(|byte| matches!(byte, 0x66 | 0xf3));
    let (prefixes, rest) = code.split_at(prefixes.count());
    let rest = match rest {
        [0x40..=0x4f, rest @ ..] => rest,
        _ => rest,
    };
    match *rest {
        // mov fs,r; pop fs; lfs; wrfsbase
        [0x8e, modrm, ..] => modrm >> 3 & 7 == 4,
        [0x0f, 0xa1 | 0xb4, ..] => true,
        [0x0f, 0xae, modrm, ..] => prefixes.contains(&0xf3) && modrm & 0xf8 == 0xd0,
        _ => false,
    }
}

/// System calls that neither make threads or processes nor set the base.
fn harmless(number: u32) -> bool {
    !NOTICED.contains(&number)
}

/// The constant that a register holds after straight-line code, if that put one there.
fn constant(code: &[u8], register: Register) -> Option<u32> {
    let mut value = None;
    let mut factory = InstructionInfoFactory::new();
    for instruction in Decoder::new(64, code, DecoderOptions::NONE) {
        let written = factory
            .info(&instruction)
            .used_registers()
            .iter()
            .any(|used| {
                let writes = !matches!(
                    used.access(),
                    OpAccess::Read | OpAccess::CondRead | OpAccess::None | OpAccess::NoMemAccess
                );
                writes && used.register().full_register() == register
            });
        if written {
            value = match instruction.code() {
                Op::Mov_r32_imm32 => Some(instruction.immediate32()),
                Op::Mov_rm64_imm32 => u32::try_from(instruction.immediate32to64()).ok(),
                Op::Xor_rm32_r32 | Op::Xor_r32_rm32
                    if instruction.op0_register() == instruction.op1_register() =>
                {
                    Some(0)
                }
                _ => None,
            };
        }
    }
    value
}

/// Whether an instruction may be an obstacle: a system call is one here, whatever its number.
#[inline]
pub fn may_be_obstacle(code: &[u8]) -> bool {
    may_begin_obstacle(code) && judge(code, &[]).is_err()
}

/// Most instructions begin with an opcode that no obstacle has, or with a REX prefix and such an opcode.
#[inline]
fn may_begin_obstacle(code: &[u8]) -> bool {
    let first = match *code {
        [0x40..=0x4f, opcode, ..] => opcode,
        [first, ..] => first,
        [] => return false,
    };
    is_prefix(first) || matches!(first, 0x0f | 0x8e | 0xcd)
}

/// Why an instruction is an obstacle, if it is; `before` is the straight-line code in front of it.
fn judge(code: &[u8], before: &[u8]) -> Result<(), &'static str> {
    if !may_begin_obstacle(code) {
        return Ok(());
    }
    let prefixes = code.iter().take_while(|byte| is_prefix(**byte)).count();
    let (prefixes, rest) = code.split_at(prefixes);
    let rest = match rest {
        [0x40..=0x4f, rest @ ..] => rest,
        _ => rest,
    };
    // Nops may carry it.
    let nop = matches!(rest, [0x90, ..] | [0x0f, 0x1f, ..]);
    if prefixes.contains(&GS) && !nop {
        return Err("uses the segment gs");
    }
    let register = |modrm: u8| modrm >> 3 & 7;
    match *rest {
        [0x8e, modrm, ..] if register(modrm) == 5 => Err("loads the segment register gs"),
        [0x0f, 0xa9 | 0xb5, ..] => Err("loads the segment register gs"),
        [0x0f, 0x01, 0xf8, ..] => Err("swaps the GS base"),
        [0x0f, 0xae, modrm, ..]
            if prefixes.contains(&0xf3) && modrm >> 6 == 3 && matches!(register(modrm), 1 | 3) =>
        {
            Err("reads or writes the GS base")
        }
        [0xcd, 0x80, ..] | [0x0f, 0x34, ..] => Err("makes system calls of the 32-bit kind"),
        [0x0f, 0x05, ..] => makes_thread(before, harmless).map_or(Ok(()), Err),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::{biased_obstacle, may_be_obstacle, obstacle, uses_segment};
    use crate::x86_64::X86_64;
    use crate::{Decode, Flow, Forks};

    #[test]
    fn gs_and_unknown_system_calls_are_obstacles_and_known_ones_are_not() {
        let found =
            |code: &[u8]| obstacle(code, 0x1000, false, |_| Forks::Never).map(|o| o.0 - 0x1000);
        assert_eq!(
            found(&[0x90, 0x65, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0]),
            Some(1)
        ); // mov rax,gs:[0]
        assert_eq!(found(&[0x64, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0]), None); // mov rax,fs:[0]
        assert_eq!(found(&[0xb8, 1, 0, 0, 0, 0x0f, 0x05]), None); // write
        assert_eq!(
            found(&[0xb8, 1, 0, 0, 0, 0x48, 0x89, 0xfe, 0x0f, 0x05]),
            None
        ); // mov rsi,rdi between
        assert_eq!(found(&[0xb8, 56, 0, 0, 0, 0x0f, 0x05]), Some(5)); // clone
        assert_eq!(found(&[0xb8, 0xb3, 1, 0, 0, 0x0f, 0x05]), Some(5)); // clone3
        assert_eq!(found(&[0x0f, 0x05]), Some(0));
        assert_eq!(found(&[0xb8, 1, 0, 0, 0, 0x89, 0xf8, 0x0f, 0x05]), Some(7)); // mov eax,edi
        assert_eq!(found(&[0xb8, 1, 0, 0, 0, 0x0f, 0x05, 0x0f, 0x05]), Some(7)); // eax is the result
        assert_eq!(found(&[0xf3, 0x48, 0x0f, 0xae, 0xd8]), Some(0)); // wrgsbase rax
        assert_eq!(found(&[0xf3, 0x48, 0x0f, 0xae, 0xd0]), None); // wrfsbase rax
        assert_eq!(found(&[0x0f, 0x01, 0xf8]), Some(0)); // swapgs
        assert_eq!(found(&[0x8e, 0xe8]), Some(0)); // mov gs,eax
        assert_eq!(found(&[0xcd, 0x80]), Some(0));
    }

    #[test]
    fn what_is_an_obstacle_may_be_one() {
        let mut found = 0;
        let starts = (0..=255u8).flat_map(|a| (0..=255u8).map(move |b| [a, b]));
        for [a, b] in starts {
            for rest in [[0, 0], [0xf8, 0], [0x01, 0xf8], [0xae, 0xd8], [0x8e, 0xe8]] {
                let code = [a, b, rest[0], rest[1], 0, 0, 0, 0, 0, 0, 0, 0];
                let Some(insn) = X86_64::decode(&code, 0).filter(|i| i.flow == Flow::Next) else {
                    continue;
                };
                let code = &code[..usize::from(insn.len)];
                if obstacle(code, 0, false, |_| Forks::Never).is_some() {
                    assert!(may_be_obstacle(code), "{code:02x?}");
                    found += 1;
                }
            }
        }
        assert!(found > 100, "{found}");
        // That of a number which makes no thread, too.
        assert!(may_be_obstacle(&[0x0f, 0x05]));
        assert!(!may_be_obstacle(&[0x48, 0x89, 0xe5]));
    }

    #[test]
    fn the_segment_is_used_by_what_reads_or_writes_memory_in_it() {
        assert!(uses_segment(&[0x65, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0])); // mov rax,gs:[0]
        assert!(uses_segment(&[0x66, 0x65, 0x0f, 0xf7, 0xc1])); // maskmovdqu xmm0,xmm1
        assert!(uses_segment(&[0x65, 0xc5, 0xf9, 0xf7, 0xc1])); // vmaskmovdqu xmm0,xmm1
        assert!(uses_segment(&[0x65, 0xd7])); // xlat
        assert!(!uses_segment(&[0x64, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0])); // mov rax,fs:[0]
        assert!(!uses_segment(&[0x65, 0x48, 0x8b, 0xc1])); // mov rax,rcx
        assert!(!uses_segment(&[0x65, 0xc5, 0xf9, 0x6f, 0xc1])); // vmovdqa xmm0,xmm1
        assert!(!uses_segment(&[0x65, 0x0f, 0x1f, 0])); // nop
        assert!(!uses_segment(&[0x65, 0x6e])); // outs
        assert!(!uses_segment(&[0x65, 0x48, 0x8d, 0x00])); // lea rax,[rax]
        assert!(!uses_segment(&[0x65, 0x48, 0x8b])); // cut off
    }

    #[test]
    fn what_may_give_two_threads_one_identity_is_an_obstacle_to_biased_counters() {
        let found = |code: &[u8]| biased_obstacle(code, 0x1000).map(|o| o.0 - 0x1000);
        assert_eq!(found(&[0x65, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0]), None); // mov rax,gs:[0]
        assert_eq!(found(&[0xb8, 57, 0, 0, 0, 0x0f, 0x05]), None); // fork
        assert_eq!(found(&[0xb8, 56, 0, 0, 0, 0x0f, 0x05]), Some(5)); // clone
        assert_eq!(found(&[0x0f, 0x05]), Some(0));
        assert_eq!(found(&[0x8e, 0xe0]), Some(0)); // mov fs,eax
        assert_eq!(found(&[0x8e, 0xe8]), None); // mov gs,eax
        assert_eq!(found(&[0x0f, 0xa1]), Some(0)); // pop fs
        assert_eq!(found(&[0xf3, 0x48, 0x0f, 0xae, 0xd0]), Some(0)); // wrfsbase rax
        assert_eq!(found(&[0xf3, 0x48, 0x0f, 0xae, 0xc0]), None); // rdfsbase rax
        assert_eq!(found(&[0xcd, 0x80]), Some(0));
    }

    #[test]
    fn jumps_to_what_forks_are_obstacles_and_calls_where_nothing_moves() {
        let to_fork = [0xe9, 0, 0, 0, 0];
        let forks = |how: Forks| {
            move |insn: &crate::Insn| {
                if insn.flow == Flow::Next {
                    Forks::Never
                } else {
                    how
                }
            }
        };
        assert!(obstacle(&to_fork, 0, false, forks(Forks::Maybe)).is_some());
        assert!(obstacle(&to_fork, 0, false, forks(Forks::Never)).is_none());
        let call = [0xe8, 0, 0, 0, 0];
        assert!(obstacle(&call, 0, false, forks(Forks::Maybe)).is_none());
        assert!(obstacle(&call, 0, true, forks(Forks::Maybe)).is_some());
        let futex = [0xbf, 202, 0, 0, 0, 0x5b, 0x31, 0xc0, 0xe9, 0, 0, 0, 0]; // mov edi,202; pop rbx; xor eax,eax
        assert!(obstacle(&futex, 0, false, forks(Forks::ByNumber)).is_none());
        let clone = [0xbf, 56, 0, 0, 0, 0xe9, 0, 0, 0, 0];
        assert!(obstacle(&clone, 0, false, forks(Forks::ByNumber)).is_some());
        assert!(obstacle(&to_fork, 0, false, forks(Forks::ByNumber)).is_some());
    }
}
