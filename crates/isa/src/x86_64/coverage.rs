//! Counters of machine profiles: a flag for what ran, and calls with the order of first calls.
//!
//! | what | code | bytes | destroys |
//! |---|---|---|---|
//! | coverage | `mov byte [c],1` | 7 | nothing |
//! | calls | `add dword [c],1`, `sbb dword [c],0`, `cmp dword [t],0`, `jne`, `push r11`, `lea r11,[c]`, `call slow`, `pop r11` | 39 | flags |
//! | calls and edges | `test byte [c],63`, `jnz`, the slow way, `add`, `sbb` | 39 | flags |
//! | the same in a block | and `lea rsp,[rsp-136]`, `lea rsp,[rsp+136]` around the slow way | 55 | flags |
//! | the same where flags are live | all between `lea rsp,[rsp-128]`, `pushfq` and `popfq`, `lea rsp,[rsp+128]` | 54 | nothing |
//!
//! `sbb` takes back what overflowed, so the count saturates. The slow way, one for the program, gives the
//! first call its place in the order: it takes the next number from a clock by a locked addition. No register
//! is destroyed, dead or not: compilers know which registers a local function leaves alone, and its callers
//! keep values in them. Flags that are live (they never are at an ordinary entry) are kept on the stack. At
//! the entry of a function nothing is below `rsp`; in a block that is also reached from within the function, or may be
//! a part that a compiler split off, the red zone is stepped over: where flags are dead, on the slow way alone (13
//! bytes).
//!
//! # Edges
//!
//! At the entry of a function the word at `rsp` is the return address. The slow way finds it above the registers that
//! were pushed. In a block, the red zone and the flags are below it as well, or as much space: a program has one slow
//! way for counters in blocks, or for those that are not ([`SlowConfig::zone`]). The table of edges is described in
//! [`crate::coverage`].

use iced_x86::code_asm::*;
use iced_x86::{Code as Op, IcedError, Instruction, Register};

use super::branch::put_field;
use super::{AF, CF, OF, PF, SF, ZF};
use crate::coverage::{CallCounter, CallPlace, PERIOD, PLACES, SlowConfig};
use crate::{Code, FixupKind, RegSet};

/// Length of [`put_covered`]'s store.
pub const STORE: u64 = 7;

/// Appends a store to the flag `covered`.
pub fn put_covered<T>(out: &mut Code<T>, covered: T) {
    out.bytes.extend_from_slice(&[0xc6, 0x05]);
    put_field(out, FixupKind::Rel32 { trail: 1 }, covered);
    out.bytes.push(1);
}

/// `lea rsp,[rsp-128]`, `lea rsp,[rsp+128]`: over the red zone and back, without flags.
const OVER_ZONE: [u8; 5] = [0x48, 0x8d, 0x64, 0x24, 0x80];
const BACK: [u8; 8] = [0x48, 0x8d, 0xa4, 0x24, 0x80, 0, 0, 0];
/// The same by eight bytes more, the flags' place.
const OVER_ZONE_AND_FLAGS: [u8; 8] = [0x48, 0x8d, 0xa4, 0x24, 0x78, 0xff, 0xff, 0xff];
const BACK_AND_FLAGS: [u8; 8] = [0x48, 0x8d, 0xa4, 0x24, 0x88, 0, 0, 0];

/// Appends the counting of a call. `live` holds what must survive.
pub fn put_call<T: Copy>(out: &mut Code<T>, live: RegSet, counter: CallCounter<T>) {
    let flags = RegSet(CF.0 | PF.0 | AF.0 | ZF.0 | SF.0 | OF.0);
    let keep_flags = live.meets(flags) || counter.place == CallPlace::EntryAgain;
    // Something may be below the stack pointer: when flags are kept there, or else when the slow way is called.
    let zone = counter.place != CallPlace::Entry;
    let mut down = 0;
    if zone && keep_flags {
        out.bytes.extend_from_slice(&OVER_ZONE);
        down = 128;
        out.stack_is(down, RegSet::EMPTY);
    }
    if keep_flags {
        out.bytes.push(0x9c); // pushfq
        down += 8;
        out.stack_is(down, RegSet::EMPTY);
    }
    // Where the return address is not where the slow way looks for it, there are no edges.
    let edges = counter.edges.filter(|_| match counter.place {
        CallPlace::Entry => !keep_flags,
        CallPlace::EntryAgain => false,
        CallPlace::Block => true,
    });
    let over: (&[u8], &[u8], u32) = match (zone && !keep_flags, edges) {
        (false, _) => (&[], &[], 0),
        (true, None) => (&OVER_ZONE, &BACK, 128),
        (true, Some(_)) => (&OVER_ZONE_AND_FLAGS, &BACK_AND_FLAGS, 136),
    };
    if let Some(slow) = edges {
        out.bytes.extend_from_slice(&[0xf6, 0x05]); // test byte [c],63
        put_field(out, FixupKind::Rel32 { trail: 1 }, counter.count);
        out.bytes.push(PERIOD as u8 - 1);
        put_slow(out, counter.count, slow, over, down);
    }
    out.bytes.extend_from_slice(&[0x83, 0x05]); // add dword [c],1
    put_field(out, FixupKind::Rel32 { trail: 1 }, counter.count);
    out.bytes.push(1);
    out.bytes.extend_from_slice(&[0x83, 0x1d]); // sbb dword [c],0
    put_field(out, FixupKind::Rel32 { trail: 1 }, counter.count);
    out.bytes.push(0);
    if edges.is_none() {
        out.bytes.extend_from_slice(&[0x83, 0x3d]); // cmp dword [t],0
        put_field(out, FixupKind::Rel32 { trail: 1 }, counter.time);
        out.bytes.push(0);
        put_slow(out, counter.count, counter.slow, over, down);
    }
    if keep_flags {
        out.bytes.push(0x9d); // popfq
        out.stack_is(down - 8, RegSet::EMPTY);
    }
    if zone && keep_flags {
        out.bytes.extend_from_slice(&BACK);
        out.stack_is(0, RegSet::EMPTY);
    }
}

/// `jne` over the slow way, and the slow way, between instructions that move the stack pointer, and by how much. It is
/// `at` bytes below the program's.
fn put_slow<T: Copy>(
    out: &mut Code<T>,
    count: T,
    slow: T,
    (lower, back, zone): (&[u8], &[u8], u32),
    at: u32,
) {
    const LEN: usize = 16;
    out.bytes
        .extend_from_slice(&[0x75, (LEN + lower.len() + back.len()) as u8]);
    out.bytes.extend_from_slice(lower);
    if zone > 0 {
        out.stack_is(at + zone, RegSet::EMPTY);
    }
    out.bytes.extend_from_slice(&[0x41, 0x53]); // push r11
    out.stack_is(at + zone + 8, RegSet(1 << 11));
    out.bytes.extend_from_slice(&[0x4c, 0x8d, 0x1d]); // lea r11,[c]
    put_field(out, FixupKind::Rel32 { trail: 0 }, count);
    out.bytes.push(0xe8); // call
    put_field(out, FixupKind::Rel32 { trail: 0 }, slow);
    out.bytes.extend_from_slice(&[0x41, 0x5b]); // pop r11
    out.stack_is(at + zone, RegSet::EMPTY);
    out.bytes.extend_from_slice(back);
    if zone > 0 {
        out.stack_is(at, RegSet::EMPTY);
    }
}

/// The slow way: entered by a call with the counter's address in `r11`. Destroys flags.
pub fn slow(config: SlowConfig) -> Result<Vec<u8>, IcedError> {
    let mut a = CodeAssembler::new(64)?;
    let [mut start, mut timed] = std::array::from_fn(|_| a.create_label());
    a.set_label(&mut start)?;
    a.push(rax)?;
    a.push(rcx)?;
    a.push(rdx)?;
    // rcx: the load bias.
    a.lea(rcx, ptr(start))?;
    put_number(&mut a, Register::RAX, config.at)?;
    a.sub(rcx, rax)?;
    a.cmp(dword_ptr(r11 + 4), 0)?;
    a.jne(timed)?;
    put_number(&mut a, Register::RDX, config.clock)?;
    a.mov(eax, 1)?;
    a.lock().xadd(dword_ptr(rdx + rcx), eax)?;
    a.inc(eax)?;
    a.mov(dword_ptr(r11 + 4), eax)?;
    a.set_label(&mut timed)?;
    if config.entries > 0 {
        put_edge(&mut a, config)?;
    }
    a.pop(rdx)?;
    a.pop(rcx)?;
    a.pop(rax)?;
    a.ret()?;
    a.assemble(config.at)
}

/// A number as eight bytes, whatever it is: the routine's instructions are where they are before addresses are known.
fn put_number(a: &mut CodeAssembler, register: Register, value: u64) -> Result<(), IcedError> {
    a.add_instruction(Instruction::with2(Op::Mov_r64_imm64, register, value)?)
}

/// Records where the function was called from. The bias is in `rcx`; destroys `rax`, `rcx`, `rdx`.
fn put_edge(a: &mut CodeAssembler, config: SlowConfig) -> Result<(), IcedError> {
    let [mut near, mut weighed, mut probe, mut next, mut fewest] =
        std::array::from_fn(|_| a.create_label());
    let [mut more, mut found] = std::array::from_fn(|_| a.create_label());
    for register in [rsi, rdi, r8, r9] {
        a.push(register)?;
    }
    // Eight registers and our own return address are below the function's.
    let zone = if config.zone { 136 } else { 0 };
    a.mov(rax, qword_ptr(rsp + 72 + zone))?;
    a.sub(rax, rcx)?;
    // From outside the program, or too far away to be written down: no place.
    a.movsxd(rdx, eax)?;
    a.cmp(rdx, rax)?;
    a.je(near)?;
    a.xor(eax, eax)?;
    a.set_label(&mut near)?;
    // rdi: what the entry must say; rsi: the table.
    put_number(a, Register::RDI, config.counters - 4096)?;
    a.add(rdi, rcx)?;
    put_number(a, Register::RSI, config.table)?;
    a.add(rsi, rcx)?;
    a.mov(rcx, r11)?;
    a.sub(rcx, rdi)?;
    a.mov(edi, ecx)?;
    a.mov(eax, eax)?;
    a.shl(rax, 32)?;
    a.or(rdi, rax)?;
    a.mov(rax, 0x9e37_79b9_7f4a_7c15u64)?;
    a.imul_2(rax, rdi)?;
    a.shr(rax, 32)?;
    // The first call stands for itself, the others for a period.
    a.mov(r9d, PERIOD)?;
    a.cmp(dword_ptr(r11), 0)?;
    a.jne(weighed)?;
    a.mov(r9d, 1)?;
    a.set_label(&mut weighed)?;
    a.xor(r8d, r8d)?; // the entry with the fewest calls
    a.mov(ecx, PLACES as i32)?;
    a.set_label(&mut probe)?;
    a.and(eax, config.entries as i32 - 1)?;
    a.mov(edx, eax)?;
    a.shl(rdx, 4)?;
    a.add(rdx, rsi)?;
    a.cmp(qword_ptr(rdx), rdi)?;
    a.je(found)?;
    a.cmp(qword_ptr(rdx), 0)?;
    a.jne(next)?;
    // Claims the empty entry, unless another thread has.
    a.push(rax)?;
    a.xor(eax, eax)?;
    a.lock().cmpxchg(qword_ptr(rdx), rdi)?;
    a.pop(rax)?;
    a.je(found)?;
    a.cmp(qword_ptr(rdx), rdi)?;
    a.je(found)?;
    a.set_label(&mut next)?;
    a.test(r8, r8)?;
    a.je(fewest)?;
    a.push(rax)?;
    a.mov(rax, qword_ptr(rdx + 8))?;
    a.cmp(rax, qword_ptr(r8 + 8))?;
    a.pop(rax)?;
    a.jae(more)?;
    a.set_label(&mut fewest)?;
    a.mov(r8, rdx)?;
    a.set_label(&mut more)?;
    a.inc(eax)?;
    a.dec(ecx)?;
    a.jne(probe)?;
    a.mov(rdx, r8)?;
    a.mov(qword_ptr(rdx + 8), 0)?;
    a.mov(qword_ptr(rdx), rdi)?;
    a.set_label(&mut found)?;
    a.lock().add(qword_ptr(rdx + 8), r9)?;
    for register in [r9, r8, rdi, rsi] {
        a.pop(register)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::X86_64;
    use super::*;
    use crate::coverage::calls;
    use iced_x86::{Decoder, DecoderOptions, Mnemonic};

    fn mnemonics(code: &[u8]) -> Vec<Mnemonic> {
        Decoder::new(64, code, DecoderOptions::NONE)
            .iter()
            .map(|i| i.mnemonic())
            .collect()
    }

    #[test]
    fn coverage_is_one_store_of_seven_bytes() {
        let mut out = Code::default();
        put_covered(&mut out, 0u8);
        assert_eq!(out.bytes.len(), 7);
        assert_eq!(mnemonics(&out.bytes), [Mnemonic::Mov]);
        assert_eq!(out.fixups[0].kind, FixupKind::Rel32 { trail: 1 });
    }

    #[test]
    fn a_call_is_counted_with_saturation_and_the_first_goes_the_slow_way() {
        use Mnemonic::{Add, Call, Cmp, Jne, Lea, Pop, Popfq, Push, Pushfq, Sbb, Test};
        let plain = calls::<X86_64>(RegSet::EMPTY, false, CallPlace::Entry);
        assert_eq!(plain.bytes.len(), 39);
        assert_eq!(
            mnemonics(&plain.bytes),
            [Add, Sbb, Cmp, Jne, Push, Lea, Call, Pop]
        );
        let edges = calls::<X86_64>(RegSet::EMPTY, true, CallPlace::Entry);
        assert_eq!(edges.bytes.len(), 39);
        assert_eq!(
            mnemonics(&edges.bytes),
            [Test, Jne, Push, Lea, Call, Pop, Add, Sbb]
        );
        assert_eq!(edges.fixups[2].target, 3, "the slow way with edges");
        for (live, edges, place) in [
            (RegSet::EMPTY, true, CallPlace::EntryAgain),
            (RegSet::ALL, false, CallPlace::Block),
        ] {
            let kept = calls::<X86_64>(live, edges, place);
            assert_eq!(
                mnemonics(&kept.bytes),
                [
                    Lea, Pushfq, Add, Sbb, Cmp, Jne, Push, Lea, Call, Pop, Popfq, Lea
                ]
            );
        }
        let dead = calls::<X86_64>(RegSet::EMPTY, false, CallPlace::Block);
        assert_eq!(
            mnemonics(&dead.bytes),
            [Add, Sbb, Cmp, Jne, Lea, Push, Lea, Call, Pop, Lea]
        );
        let edges = calls::<X86_64>(RegSet::EMPTY, true, CallPlace::Block);
        assert_eq!(edges.bytes.len(), 55);
        assert_eq!(
            mnemonics(&edges.bytes),
            [Test, Jne, Lea, Push, Lea, Call, Pop, Lea, Add, Sbb]
        );
        let kept = calls::<X86_64>(RegSet::ALL, true, CallPlace::Block);
        assert_eq!(kept.bytes.len(), 54);
        assert_eq!(
            mnemonics(&kept.bytes),
            [
                Lea, Pushfq, Test, Jne, Push, Lea, Call, Pop, Add, Sbb, Popfq, Lea
            ]
        );
    }

    #[test]
    fn the_jump_over_the_slow_way_lands_behind_it() {
        for (edges, place, last) in [
            (false, CallPlace::Entry, Mnemonic::Pop),
            (true, CallPlace::Entry, Mnemonic::Pop),
            (false, CallPlace::Block, Mnemonic::Lea),
            (true, CallPlace::Block, Mnemonic::Lea),
        ] {
            let code = calls::<X86_64>(RegSet::EMPTY, edges, place);
            let decoded: Vec<_> = Decoder::new(64, &code.bytes, DecoderOptions::NONE)
                .iter()
                .collect();
            let jump = decoded.iter().find(|i| i.mnemonic() == Mnemonic::Jne);
            let end = decoded.iter().rfind(|i| i.mnemonic() == last);
            let (Some(jump), Some(end)) = (jump, end) else {
                panic!("no jump or no slow way");
            };
            assert_eq!(jump.near_branch_target(), end.next_ip());
        }
    }
}
