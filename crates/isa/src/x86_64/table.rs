//! What kind of table an indirect jump goes through, read off the instructions before it.
//!
//! | compilers write | shape |
//! |---|---|
//! | `lea r2,[rip+T]`, `movsxd r1,[r2+i*4]`, `add r1,r2`, `jmp r1` (also `add r2,r1`, `jmp r2`) | relative, table T |
//! | `lea r2,[rip+T]`, `add r2,[r2+i*8]`, `jmp r2`; `mov r1,[r2+i*8]`, `add r1,r2`, `jmp r1` (large code model) | relative with 8-byte entries, table T |
//! | the same with the `lea` out of sight (hoisted out of a loop) | relative, table unknown |
//! | `jmp [T+i*8]`, `mov r1,[T+i*8]`, `jmp r1` | absolute, table T |
//! | `lea r2,[rip+T]`, `jmp [r2+i*8]`, or with a `mov` between | absolute, table T |
//! | `jmp [r2+i*8]` with `r2` out of sight | absolute, table unknown |
//! | anything else | unknown |
//!
//! The caller gives straight-line code only: nothing jumps in between.

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

use crate::{Insn, JumpShape};

/// See [`crate::Decode::jump_shape`].
pub fn jump_shape<'c>(path: &[Insn], code: impl Fn(&Insn) -> &'c [u8]) -> JumpShape {
    let decoded: Vec<Instruction> = path
        .iter()
        .map(|i| Decoder::with_ip(64, code(i), i.addr, DecoderOptions::NONE).decode())
        .collect();
    let Some((jump, before)) = decoded.split_last() else {
        return JumpShape::Unknown;
    };
    match jump.op0_kind() {
        OpKind::Memory => memory(jump, before),
        OpKind::Register => register(jump.op0_register(), before),
        _ => JumpShape::Unknown,
    }
}

fn memory(i: &Instruction, before: &[Instruction]) -> JumpShape {
    if i.memory_index() == Register::None || i.memory_index_scale() != 8 {
        return JumpShape::Unknown;
    }
    match i.memory_base() {
        Register::None => JumpShape::Absolute {
            table: Some(i.memory_displacement64()),
        },
        base => {
            let table = address_in(base, before).map(|t| t.wrapping_add(i.memory_displacement64()));
            JumpShape::Absolute { table }
        }
    }
}

/// The last instruction that writes a general register, with what goes before it.
fn definition(
    register: Register,
    before: &[Instruction],
) -> Option<(&Instruction, &[Instruction])> {
    let full = register.full_register();
    let k = before.iter().rposition(|i| writes(i, full))?;
    Some((&before[k], &before[..k]))
}

/// Whether an instruction writes a register: by its first operand, or in ways that are not looked into.
fn writes(i: &Instruction, full: Register) -> bool {
    let reads_only = matches!(
        i.mnemonic(),
        Mnemonic::Cmp
            | Mnemonic::Test
            | Mnemonic::Push
            | Mnemonic::Bt
            | Mnemonic::Nop
            | Mnemonic::Jmp
    );
    let first =
        i.op0_kind() == OpKind::Register && i.op0_register().full_register() == full && !reads_only;
    let second = i.mnemonic() == Mnemonic::Xchg
        && i.op1_kind() == OpKind::Register
        && i.op1_register().full_register() == full;
    let implied = matches!(
        i.mnemonic(),
        Mnemonic::Mul
            | Mnemonic::Imul
            | Mnemonic::Div
            | Mnemonic::Idiv
            | Mnemonic::Cdq
            | Mnemonic::Cqo
            | Mnemonic::Cpuid
            | Mnemonic::Rdtsc
            | Mnemonic::Syscall
            | Mnemonic::Cmpxchg
    ) && matches!(
        full,
        Register::RAX | Register::RDX | Register::RCX | Register::RBX | Register::R11
    );
    first || second || implied
}

/// The address that a register holds, if an instruction in sight forms it.
fn address_in(register: Register, before: &[Instruction]) -> Option<u64> {
    let (d, earlier) = definition(register, before)?;
    match d.code() {
        Code::Lea_r64_m if d.is_ip_rel_memory_operand() => Some(d.ip_rel_memory_address()),
        Code::Mov_r32_imm32 | Code::Mov_r64_imm64 | Code::Mov_rm64_imm32 => Some(d.immediate(1)),
        Code::Mov_r64_rm64 | Code::Mov_rm64_r64 if d.op1_kind() == OpKind::Register => {
            address_in(d.op1_register(), earlier)
        }
        _ => None,
    }
}

fn register(target: Register, before: &[Instruction]) -> JumpShape {
    let Some((d, earlier)) = definition(target, before) else {
        return JumpShape::Unknown;
    };
    if d.mnemonic() == Mnemonic::Mov && d.op1_kind() == OpKind::Memory {
        return memory(d, earlier);
    }
    if d.code() == Code::Add_r64_rm64 && d.op1_kind() == OpKind::Memory {
        return added_in_memory(d, earlier);
    }
    if d.mnemonic() != Mnemonic::Add || d.op1_kind() != OpKind::Register {
        return JumpShape::Unknown;
    }
    // One of the two summands is an entry of the table, the other its address.
    for (entry, base) in [
        (d.op0_register(), d.op1_register()),
        (d.op1_register(), d.op0_register()),
    ] {
        let Some((load, earliest, width)) = entry_load(entry, earlier) else {
            continue;
        };
        if load.memory_displacement64() != 0 {
            return JumpShape::Unknown;
        }
        // What is added must be what the entry was loaded relative to: the same register, or the same address in two.
        let added = address_in(base, earlier);
        let parts = [load.memory_base(), load.memory_index()];
        if load.memory_index_scale() == u32::from(width)
            && base.full_register() == load.memory_base().full_register()
        {
            return JumpShape::Relative {
                table: address_in(load.memory_base(), earliest).or(added),
                width,
            };
        }
        // Without optimisation the index is scaled before, and either part may be the table.
        let same = |r: &Register| {
            *r != Register::None && added.is_some() && address_in(*r, earliest) == added
        };
        if parts.iter().any(same) {
            return JumpShape::Relative {
                table: added,
                width,
            };
        }
        return JumpShape::Unknown;
    }
    JumpShape::Unknown
}

/// An entry of 8 bytes that is added to the table's address where it is: `add r2,[r2+i*8]`, or `mov r1,r2`
/// and `add r1,[r2+i*8]`.
fn added_in_memory(add: &Instruction, before: &[Instruction]) -> JumpShape {
    let (sum, base) = (add.op0_register(), add.memory_base());
    if add.memory_index_scale() != 8
        || add.memory_index() == Register::None
        || add.memory_displacement64() != 0
        || base == Register::None
    {
        return JumpShape::Unknown;
    }
    let table = address_in(base, before);
    let copied = || {
        let (copy, _) = definition(sum, before)?;
        let from_base = matches!(copy.code(), Code::Mov_r64_rm64 | Code::Mov_rm64_r64)
            && copy.op1_kind() == OpKind::Register
            && copy.op1_register() == base;
        let since = before.iter().rposition(|i| writes(i, base));
        let at = before.iter().rposition(|i| writes(i, sum))?;
        Some(from_base && since.is_none_or(|since| since < at))
    };
    if sum == base || table.is_some() && address_in(sum, before) == table || copied() == Some(true)
    {
        return JumpShape::Relative { table, width: 8 };
    }
    JumpShape::Unknown
}

/// The load of a table's entry that a register holds, and the entry's width: `movsxd r,[…]`, or `mov eax,[…]`
/// and `cdqe`, which sign-extend 4 bytes; `mov r,[…]` of 8.
fn entry_load(
    register: Register,
    before: &[Instruction],
) -> Option<(&Instruction, &[Instruction], u8)> {
    let full = register.full_register();
    if full == Register::RAX
        && let Some(k) = before.iter().rposition(|i| i.mnemonic() == Mnemonic::Cdqe)
        && !before[k + 1..].iter().any(|i| writes(i, full))
    {
        let (load, earlier) = definition(Register::EAX, &before[..k])?;
        let whole = load.code() == Code::Mov_r32_rm32 && load.op1_kind() == OpKind::Memory;
        return whole.then_some((load, earlier, 4));
    }
    let (load, earlier) = definition(register, before)?;
    if load.op1_kind() != OpKind::Memory {
        return None;
    }
    match load.code() {
        _ if load.mnemonic() == Mnemonic::Movsxd => Some((load, earlier, 4)),
        Code::Mov_r64_rm64 => Some((load, earlier, 8)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Decode, x86_64::X86_64};

    /// The shape of the jump at the end of some code.
    fn shape(code: &[u8]) -> JumpShape {
        let mut insns = Vec::new();
        let stopped = X86_64::sweep(code, 0x1000, |i| {
            insns.push(*i);
            true
        });
        assert!(stopped.is_none());
        jump_shape(&insns, |i| {
            let at = (i.addr - 0x1000) as usize;
            &code[at..at + usize::from(i.len)]
        })
    }

    #[test]
    fn tables_of_8_byte_distances_are_told_from_tables_of_addresses() {
        let wide = |table| JumpShape::Relative { table, width: 8 };
        // lea rax,[rip+0x100]; mov rbx,rsi; add rax,[rax+rdi*8]; jmp rax
        let code = b"\x48\x8d\x05\x00\x01\x00\x00\x48\x89\xf3\x48\x03\x04\xf8\xff\xe0";
        assert_eq!(shape(code), wide(Some(0x1107)));
        // The same without the lea.
        assert_eq!(shape(&code[10..]), wide(None));
        // mov rax,r12; add rax,[r12+rdi*8]; jmp rax
        let code = b"\x4c\x89\xe0\x49\x03\x04\xfc\xff\xe0";
        assert_eq!(shape(code), wide(None));
        // mov rax,r12; xor r12d,r12d; add rax,[r12+rdi*8]; jmp rax: the base is another.
        let code = b"\x4c\x89\xe0\x45\x31\xe4\x49\x03\x04\xfc\xff\xe0";
        assert_eq!(shape(code), JumpShape::Unknown);
        // add rax,[r12+rdi*8]; jmp rax: nothing says that rax is the table.
        assert_eq!(shape(b"\x49\x03\x04\xfc\xff\xe0"), JumpShape::Unknown);
        // mov rdx,[rax+rdi*8]; add rdx,rax; jmp rdx
        let code = b"\x48\x8b\x14\xf8\x48\x01\xc2\xff\xe2";
        assert_eq!(shape(code), wide(None));
        // lea rdx,[rip+0x100]; mov rdx,[rcx+rdx]; lea rcx,[rip+0xf5]; add rdx,rcx; jmp rdx, as without optimisation
        let code = b"\x48\x8d\x15\x00\x01\x00\x00\x48\x8b\x14\x11\x48\x8d\x0d\xf5\x00\x00\x00\x48\x01\xca\xff\xe2";
        assert_eq!(shape(code), wide(Some(0x1107)));
        // movsxd rdx,[rax+rdi*4]; add rdx,rax; jmp rdx
        let code = b"\x48\x63\x14\xb8\x48\x01\xc2\xff\xe2";
        assert_eq!(
            shape(code),
            JumpShape::Relative {
                table: None,
                width: 4
            }
        );
        // mov rdx,[rax+rdi*8]; jmp rdx
        let code = b"\x48\x8b\x14\xf8\xff\xe2";
        assert_eq!(shape(code), JumpShape::Absolute { table: None });
    }
}
