//! What instructions leave in registers, as far as it bounds the index of a jump table or is a table's address; and
//! loads of such tables' entries, read and encoded again.
//!
//! | instruction | leaves |
//! |---|---|
//! | `lea r,[rip+a]` | the address |
//! | `mov r,n`; `xor r,r` | the number |
//! | `mov`, `movzx` between registers | a copy of the low bits |
//! | `movsxd`, `movsx`, `cdqe` | low bits with their sign |
//! | `and r,n`; `shr r,n` | at most so much |
//! | `movzx r,[m]`; any write of 32 bits | at most as much as fits |
//! | `cmp r,n`; `sub r,n` | flags of a comparison |
//! | anything else | something in all registers that it may write |
//!
//! A load gets another displacement by being encoded with one of four bytes; nothing else in it changes. The guard in
//! front of it compares the index with the last entry and continues in old code where it is above (unsigned, 64
//! bits).

use iced_x86::{
    Code as Op, Instruction, InstructionInfoFactory, InstructionInfoOptions, Mnemonic, OpAccess,
    OpKind, Register,
};

use super::decode::decode_iced;
use crate::{Code, Compares, Cond, Fixup, FixupKind, Insn, Reach, Sets, TableLoad, Values};

/// A general register of 64, 32, 16 or 8 bits (not the second byte of one): its number and bits.
fn general(register: Register) -> Option<(u8, u8)> {
    let high = matches!(
        register,
        Register::AH | Register::BH | Register::CH | Register::DH
    );
    (register.is_gpr() && !high).then(|| {
        let number = register.full_register().number() as u8;
        (number, 8 * register.size() as u8)
    })
}

/// The register of an operand.
fn operand(i: &Instruction, k: u32) -> Option<(u8, u8)> {
    (i.op_count() > k && i.op_kind(k) == OpKind::Register)
        .then(|| general(i.op_register(k)))
        .flatten()
}

/// The immediate operand, as it is extended to 64 bits.
fn number(i: &Instruction, k: u32) -> Option<u64> {
    (i.op_count() > k && is_immediate(i.op_kind(k))).then(|| i.immediate(k))
}

/// Whether an operand of this kind is a constant in the instruction that is not an address.
pub(super) fn is_immediate(kind: OpKind) -> bool {
    use OpKind::*;
    matches!(
        kind,
        Immediate8
            | Immediate16
            | Immediate32
            | Immediate64
            | Immediate8to16
            | Immediate8to32
            | Immediate8to64
            | Immediate32to64
    )
}

/// All ones in so many bits.
fn mask(bits: u8) -> u64 {
    u64::MAX >> (64 - u32::from(bits))
}

/// See [`crate::Decode::values`].
pub fn values(bytes: &[u8], insn: &Insn) -> Values {
    let Some(i) = decode_iced(bytes, insn.addr) else {
        return Values::UNKNOWN;
    };
    let mut writes = 0u32;
    // `tzcnt` and `lzcnt` are `bsf` and `bsr` on old processors, which write nothing where there is no bit.
    let mut may_not_write = matches!(
        i.mnemonic(),
        Mnemonic::Tzcnt
            | Mnemonic::Lzcnt
            | Mnemonic::Bsf
            | Mnemonic::Bsr
            | Mnemonic::Rdsspd
            | Mnemonic::Rdsspq
    );
    let info = &mut InstructionInfoFactory::new();
    let info = info.info_options(&i, InstructionInfoOptions::NO_MEMORY_USAGE);
    let (mut reads, mut low, mut wide) = (0u32, 0u32, 0u32);
    for used in info
        .used_registers()
        .iter()
        .filter(|u| u.register().is_gpr())
    {
        use OpAccess::*;
        let bit = 1 << used.register().full_register().number();
        let is_low = general(used.register()).is_some_and(|(_, bits)| bits == 8);
        if matches!(used.access(), Read | CondRead | ReadWrite | ReadCondWrite) {
            reads |= bit;
            wide |= if is_low { 0 } else { bit };
        }
        match used.access() {
            Write | ReadWrite => writes |= bit,
            CondWrite | ReadCondWrite => {
                writes |= bit;
                may_not_write = true;
            }
            Read | CondRead | None | NoMemAccess => {}
        }
        if used.access() == Write && is_low {
            low |= bit;
        }
    }
    Values {
        writes,
        sets: sets(&i).filter(|sets| writes >> sets.to() & 1 != 0),
        compares: compares(&i),
        keeps_flags: i.rflags_modified() == 0,
        may_not_write,
        low: low & !reads,
        wide,
    }
}

fn sets(i: &Instruction) -> Option<Sets> {
    let (to, bits) = operand(i, 0).or_else(|| {
        let cdqe = i.code() == Op::Cdqe;
        cdqe.then_some((0, 64))
    })?;
    // What is smaller leaves a part of the register.
    if bits < 32 {
        return None;
    }
    let below = |bits: u8| Sets::Below {
        to,
        most: mask(bits),
    };
    let any = (bits == 32).then(|| below(32));
    let from = operand(i, 1);
    Some(match i.mnemonic() {
        Mnemonic::Lea if i.is_ip_rel_memory_operand() && bits == 64 => Sets::Address {
            to,
            value: i.ip_rel_memory_address(),
        },
        Mnemonic::Xor if from == Some((to, bits)) => Sets::Number { to, value: 0 },
        Mnemonic::Mov => match (from, number(i, 1)) {
            (Some((from, _)), _) => Sets::Copy { to, from, bits },
            (_, Some(value)) => Sets::Number {
                to,
                value: value & mask(bits),
            },
            _ => return any,
        },
        Mnemonic::Movzx => match from {
            Some((from, bits)) => Sets::Copy { to, from, bits },
            None if i.op_kind(1) == OpKind::Memory => below(8 * i.memory_size().size() as u8),
            None => below(8),
        },
        Mnemonic::Movsxd | Mnemonic::Movsx => match from {
            Some((from, of)) if bits == 64 => Sets::Extend { to, from, bits: of },
            _ if i.mnemonic() == Mnemonic::Movsxd => return None,
            _ => return any,
        },
        Mnemonic::Cdqe => Sets::Extend {
            to,
            from: 0,
            bits: 32,
        },
        Mnemonic::And => match number(i, 1) {
            Some(n) => Sets::And {
                to,
                bits,
                most: n & mask(bits),
            },
            None => return any,
        },
        Mnemonic::Shr => match number(i, 1) {
            Some(by) => Sets::Shift {
                to,
                bits,
                by: (by as u8) & (bits - 1),
            },
            None => return any,
        },
        // They may leave it alone, or write half of it, on old processors.
        Mnemonic::Tzcnt | Mnemonic::Lzcnt | Mnemonic::Bsf | Mnemonic::Bsr => return None,
        Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push | Mnemonic::Bt => return None,
        Mnemonic::Cmpxchg | Mnemonic::Rdsspd => return None,
        // With one operand they write `rax` and `rdx`.
        Mnemonic::Mul | Mnemonic::Div | Mnemonic::Idiv => return None,
        Mnemonic::Imul if i.op_count() == 1 => return None,
        // Not how compilers make the index of a table.
        Mnemonic::Rdfsbase | Mnemonic::Rdgsbase | Mnemonic::Xchg => return None,
        Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc => return None,
        Mnemonic::Pextrb | Mnemonic::Pextrw | Mnemonic::Pextrd | Mnemonic::Extractps => {
            return None;
        }
        _ => return any,
    })
}

fn compares(i: &Instruction) -> Option<Compares> {
    let (register, bits) = operand(i, 0)?;
    let number = number(i, 1)?;
    let compares = i.mnemonic() == Mnemonic::Cmp;
    compares.then(|| Compares {
        register,
        bits,
        number: number & mask(bits),
    })
}

/// See [`crate::Decode::bounds`].
pub fn bounds(cond: Cond, taken: bool, compares: &Compares) -> Option<u64> {
    // The lowest bit of a condition turns it round.
    match (cond.0 & !1, taken ^ (cond.0 & 1 == 1)) {
        // below
        (2, true) => compares.number.checked_sub(1),
        // equal, below or equal
        (4 | 6, true) => Some(compares.number),
        _ => None,
    }
}

/// See [`crate::Decode::table_load`].
pub fn table_load(bytes: &[u8], insn: &Insn) -> Option<TableLoad> {
    let i = decode_iced(bytes, insn.addr)?;
    let (to, memory) = match i.code() {
        Op::Movsxd_r64_rm32 | Op::Mov_r64_rm64 => (Some(operand(&i, 0)?.0), 1),
        Op::Jmp_rm64 => (None, 0),
        _ => return None,
    };
    let width = if i.code() == Op::Movsxd_r64_rm32 {
        4
    } else {
        8
    };
    let whole = |r: Register| general(r).filter(|r| r.1 == 64).map(|r| r.0);
    let plain = i.op_kind(memory) == OpKind::Memory
        // `notrack` is written as one, too.
        && matches!(i.segment_prefix(), Register::None | Register::DS);
    if !plain || i.memory_index_scale() != u32::from(width) {
        return None;
    }
    let index = whole(i.memory_index())?;
    let base = match i.memory_base() {
        Register::None => None,
        register => Some(whole(register)?),
    };
    Some(TableLoad {
        to,
        base,
        index,
        bits: 64,
        width,
        disp: i.memory_displacement64(),
        lead: insn.len.checked_sub(match i.memory_displ_size() {
            short @ (0 | 1) => short as u8,
            _ => 4,
        })?,
    })
}

/// See [`crate::Decode::adds`].
pub fn adds(bytes: &[u8], insn: &Insn) -> Option<(u8, u8)> {
    let i = decode_iced(bytes, insn.addr)?;
    let adds = matches!(i.code(), Op::Add_r64_rm64 | Op::Add_rm64_r64);
    let (to, from) = (operand(&i, 0)?, operand(&i, 1)?);
    adds.then_some((to.0, from.0))
}

/// See [`crate::Decode::jump_register`].
pub fn jump_register(bytes: &[u8], insn: &Insn) -> Option<u8> {
    let i = decode_iced(bytes, insn.addr)?;
    let jumps = i.code() == Op::Jmp_rm64;
    operand(&i, 0).filter(|_| jumps).map(|r| r.0)
}

/// See [`crate::Encode::put_table_load`].
pub fn put_table_load<T>(out: &mut Code<T>, original: &[u8], displacement: T) -> bool {
    let prefixes = original.iter().take_while(|b| matches!(b, 0x3e)).count();
    let rex = original
        .get(prefixes)
        .is_some_and(|b| (0x40..=0x4f).contains(b));
    let opcode = prefixes + usize::from(rex);
    let [op, modrm, sib, ..] = *original.get(opcode..).unwrap_or_default() else {
        return false;
    };
    // Base and index are in the byte after ModRM.
    if !matches!(op, 0x63 | 0x8b | 0xff) || modrm & 7 != 4 || modrm >> 6 == 3 {
        return false;
    }
    let baseless = modrm >> 6 == 0 && sib & 7 == 5;
    out.bytes.extend_from_slice(&original[..=opcode]);
    out.bytes
        .push(if baseless { modrm } else { modrm & 0x3f | 0x80 });
    out.bytes.push(sib);
    out.fixups.push(Fixup {
        at: out.bytes.len() as u32,
        kind: FixupKind::Abs32S,
        target: displacement,
    });
    out.bytes.extend_from_slice(&[0; 4]);
    true
}

/// See [`crate::Encode::put_label_load`]: `mov D,[B+I*8]` becomes `movsxd D,[B+I*4+displacement]` and `lea D,[B+D]`,
/// which write no flag. `D` is not `B`; it may be `I`.
pub fn put_label_load<T>(out: &mut Code<T>, original: &[u8], displacement: T) -> bool {
    let [rex @ 0x48..=0x4f, 0x8b, modrm, sib, ref disp @ ..] = *original else {
        return false;
    };
    let high = |bit: u8| (rex >> bit & 1) << 3;
    let to = high(2) | modrm >> 3 & 7;
    let index = high(1) | sib >> 3 & 7;
    let base = high(0) | sib & 7;
    let size = match modrm >> 6 {
        0 if sib & 7 != 5 => 0,
        1 => 1,
        2 => 4,
        _ => return false,
    };
    let plain = disp.len() == size && disp.iter().all(|byte| *byte == 0);
    // The stack pointer is no index.
    if modrm & 7 != 4 || sib >> 6 != 3 || !plain || to == base || to == 4 || index == 4 {
        return false;
    }
    let (low, high) = (to & 7, to >> 3);
    out.bytes
        .extend_from_slice(&[rex, 0x63, 0x84 | low << 3, 0x80 | sib & 0x3f]);
    out.fixups.push(Fixup {
        at: out.bytes.len() as u32,
        kind: FixupKind::Abs32S,
        target: displacement,
    });
    out.bytes.extend_from_slice(&[0; 4]);
    let sum = [0x48 | high << 2 | high << 1 | base >> 3, 0x8d];
    out.bytes.extend_from_slice(&sum);
    // `rbp` and `r13` are no base without a displacement.
    if base & 7 == 5 {
        out.bytes
            .extend_from_slice(&[0x44 | low << 3, low << 3 | base & 7, 0]);
    } else {
        out.bytes
            .extend_from_slice(&[0x04 | low << 3, low << 3 | base & 7]);
    }
    true
}

const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// See [`crate::Encode::put_label_fallback`]: `endbr64`, `mov D,[rip+entry]` and `notrack jmp D`, as old labels need
/// not begin with `endbr64`.
pub fn put_label_fallback<T>(out: &mut Code<T>, to: u8, entry: T) -> bool {
    if to == 4 {
        return false;
    }
    let (low, high) = (to & 7, to >> 3);
    out.bytes.extend_from_slice(&ENDBR64);
    out.bytes
        .extend_from_slice(&[0x48 | high << 2, 0x8b, 0x05 | low << 3]);
    out.fixups.push(Fixup {
        at: out.bytes.len() as u32,
        kind: FixupKind::Rel32 { trail: 0 },
        target: entry,
    });
    out.bytes.extend_from_slice(&[0; 4]);
    out.bytes.push(0x3e);
    if high != 0 {
        out.bytes.push(0x41);
    }
    out.bytes.extend_from_slice(&[0xff, 0xe0 | low]);
    true
}

/// See [`crate::Encode::put_restored`]: `mov D,distance` and `lea T,[rip+target]`.
pub fn put_restored<T>(
    out: &mut Code<T>,
    (to, target): (u8, T),
    distance: Option<(u8, i32)>,
) -> bool {
    // The stack pointer is no target.
    if to == 4 || distance.is_some_and(|d| d.0 == 4 || d.0 == to) {
        return false;
    }
    if let Some((to, distance)) = distance {
        out.bytes
            .extend_from_slice(&[0x48 | to >> 3, 0xc7, 0xc0 | to & 7]);
        out.bytes.extend_from_slice(&distance.to_le_bytes());
    }
    out.bytes
        .extend_from_slice(&[0x48 | to >> 3 << 2, 0x8d, 0x05 | (to & 7) << 3]);
    out.fixups.push(Fixup {
        at: out.bytes.len() as u32,
        kind: FixupKind::Rel32 { trail: 0 },
        target,
    });
    out.bytes.extend_from_slice(&[0; 4]);
    true
}

/// See [`crate::Encode::put_index_guard`].
pub fn put_index_guard<T>(out: &mut Code<T>, register: u8, last: u32, old: T) -> bool {
    let (rex, modrm) = (0x48 | register >> 3, 0xf8 | register & 7);
    let Ok(last) = i32::try_from(last) else {
        return false;
    };
    match i8::try_from(last) {
        Ok(short) => out
            .bytes
            .extend_from_slice(&[rex, 0x83, modrm, short as u8]),
        Err(_) => {
            out.bytes.extend_from_slice(&[rex, 0x81, modrm]);
            out.bytes.extend_from_slice(&last.to_le_bytes());
        }
    }
    super::branch::put_cond_jump(out, Cond(7), Reach::Long, old);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Decode, x86_64::X86_64};

    fn insn(code: &[u8]) -> Insn {
        let insn = X86_64::decode(code, 0x1000).expect("an instruction");
        assert_eq!(usize::from(insn.len), code.len());
        insn
    }

    #[test]
    fn what_restores_registers_is_written() {
        let put = |target: u8, distance: Option<(u8, i32)>| {
            let mut code = Code::default();
            put_restored(&mut code, (target, ()), distance).then_some(code)
        };
        let code = put(9, Some((12, -2))).expect("code");
        let both = b"\x49\xc7\xc4\xfe\xff\xff\xff\x4c\x8d\x0d\0\0\0\0";
        assert_eq!(code.bytes, both);
        assert_eq!(code.fixups[0].at, 10);
        let code = put(0, None).expect("code");
        assert_eq!(code.bytes, b"\x48\x8d\x05\0\0\0\0");
        assert_eq!(code.fixups[0].at, 3);
        // The stack pointer, and one register for both.
        assert!(put(4, None).is_none() && put(0, Some((4, 1))).is_none());
        assert!(put(1, Some((1, 1))).is_none());
    }

    #[test]
    fn what_instructions_leave_in_registers_is_known() {
        let cases: [(&[u8], u32, Option<Sets>, &str); 14] = [
            (
                b"\x48\x8d\x15\x00\x01\x00\x00",
                1 << 2,
                Some(Sets::Address {
                    to: 2,
                    value: 0x1107,
                }),
                "lea rdx,[rip+0x100]",
            ),
            (
                b"\x89\xff",
                1 << 7,
                Some(Sets::Copy {
                    to: 7,
                    from: 7,
                    bits: 32,
                }),
                "mov edi,edi",
            ),
            (
                b"\x0f\xb6\xc0",
                1,
                Some(Sets::Copy {
                    to: 0,
                    from: 0,
                    bits: 8,
                }),
                "movzx eax,al",
            ),
            (
                b"\x0f\xb6\xc4",
                1,
                Some(Sets::Below { to: 0, most: 255 }),
                "movzx eax,ah",
            ),
            (
                b"\x0f\xb6\x07",
                1,
                Some(Sets::Below { to: 0, most: 255 }),
                "movzx eax,byte [rdi]",
            ),
            (
                b"\x83\xe0\x07",
                1,
                Some(Sets::And {
                    to: 0,
                    bits: 32,
                    most: 7,
                }),
                "and eax,7",
            ),
            (
                b"\x48\x83\xe0\xf8",
                1,
                Some(Sets::And {
                    to: 0,
                    bits: 64,
                    most: !7,
                }),
                "and rax,-8",
            ),
            (
                b"\x8d\x47\xfb",
                1,
                Some(Sets::Below {
                    to: 0,
                    most: 0xffff_ffff,
                }),
                "lea eax,[rdi-5]",
            ),
            (b"\x88\xc8", 1, None, "mov al,cl"),
            (b"\x48\xf7\xe1", 1 | 1 << 2, None, "mul rcx"),
            (b"\x48\x87\xd8", 1 | 1 << 3, None, "xchg rax,rbx"),
            (b"\x48\x39\xd8", 0, None, "cmp rax,rbx"),
            (b"\xf3\x48\x0f\xbc\xc3", 1, None, "tzcnt rax,rbx"),
            (
                b"\x48\x98",
                1,
                Some(Sets::Extend {
                    to: 0,
                    from: 0,
                    bits: 32,
                }),
                "cdqe",
            ),
        ];
        for (code, may_not_write) in [
            (&b"\xf3\x48\x0f\xbc\xc3"[..], true), // tzcnt rax,rbx
            (b"\x48\x0f\x44\xc3", true),          // cmove rax,rbx
            (b"\x88\xc8", false),                 // mov al,cl
            (b"\x48\x98", false),                 // cdqe
        ] {
            let v = values(code, &insn(code));
            assert_eq!(v.may_not_write, may_not_write, "{code:x?}");
        }
        for (code, low, wide) in [
            (&b"\xb1\x16"[..], 2, 0),    // mov cl,22
            (b"\xb4\x16", 0, 0),         // mov ah,22
            (b"\x66\xb9\x16\x00", 0, 0), // mov cx,22
            (b"\x0f\x94\xc2", 4, 0),     // sete dl
            (b"\x08\xca", 0, 0),         // or dl,cl
            (b"\x89\xc8", 0, 2),         // mov eax,ecx
            (b"\x0f\xb6\xc4", 0, 1),     // movzx eax,ah
            (b"\x0f\xb6\x01", 0, 2),     // movzx eax,byte [rcx]
        ] {
            let v = values(code, &insn(code));
            assert_eq!((v.low, v.wide), (low, wide), "{code:x?}");
        }
        for (code, writes, sets, text) in cases {
            let v = values(code, &insn(code));
            assert_eq!((v.writes & !(1 << 4), v.sets), (writes, sets), "{text}");
        }
        let v = values(b"\x3c\x20", &insn(b"\x3c\x20"));
        let compares = Compares {
            register: 0,
            bits: 8,
            number: 0x20,
        };
        assert_eq!(v.compares, Some(compares), "cmp al,0x20");
        assert!(!v.keeps_flags);
    }

    #[test]
    fn loads_get_displacements_of_four_bytes_and_nothing_else() {
        let cases: [(&[u8], &[u8], (Option<u8>, Option<u8>, u8), &str); 5] = [
            (
                b"\x48\x63\x04\x82",
                b"\x48\x63\x84\x82\0\0\0\0",
                (Some(0), Some(2), 0),
                "movsxd rax,[rdx+rax*4]",
            ),
            (
                b"\x48\x63\x44\x85\x00",
                b"\x48\x63\x84\x85\0\0\0\0",
                (Some(0), Some(5), 0),
                "movsxd rax,[rbp+rax*4]",
            ),
            (
                b"\x4b\x63\x04\x94",
                b"\x4b\x63\x84\x94\0\0\0\0",
                (Some(0), Some(12), 10),
                "movsxd rax,[r12+r10*4]",
            ),
            (
                b"\xff\x24\xc5\x10\x20\x40\x00",
                b"\xff\x24\xc5\0\0\0\0",
                (None, None, 0),
                "jmp [rax*8+0x402010]",
            ),
            (
                b"\x3e\xff\x24\xc8",
                b"\x3e\xff\xa4\xc8\0\0\0\0",
                (None, Some(0), 1),
                "notrack jmp [rax+rcx*8]",
            ),
        ];
        for (old, new, (to, base, index), text) in cases {
            let load = table_load(old, &insn(old)).expect(text);
            assert_eq!(
                (load.to, load.base, load.index),
                (to, base, index),
                "{text}"
            );
            let mut code: Code<()> = Code::default();
            assert!(put_table_load(&mut code, old, ()), "{text}");
            assert_eq!(code.bytes, new, "{text}");
            assert_eq!(code.fixups[0].at as usize, new.len() - 4, "{text}");
            assert_eq!(usize::from(load.lead), new.len() - 4, "{text}");
        }
        // mov rax,[rbx]; movsxd rax,[rdx+rax*8]; mov rax,fs:[rdx+rax*8]
        let others: [&[u8]; 3] = [
            b"\x48\x8b\x03",
            b"\x48\x63\x04\xc2",
            b"\x64\x48\x8b\x04\xc2",
        ];
        for code in others {
            assert_eq!(table_load(code, &insn(code)), None);
        }
    }

    #[test]
    fn labels_are_loaded_by_two_instructions_that_write_one_register() {
        let cases: [(&[u8], &[u8], &str); 4] = [
            (
                b"\x49\x8b\x04\xc6",
                b"\x49\x63\x84\x86\0\0\0\0\x49\x8d\x04\x06",
                "mov rax,[r14+rax*8]",
            ),
            (
                b"\x49\x8b\x54\xc5\x00",
                b"\x49\x63\x94\x85\0\0\0\0\x49\x8d\x54\x15\x00",
                "mov rdx,[r13+rax*8]",
            ),
            (
                b"\x4e\x8b\x14\xd9",
                b"\x4e\x63\x94\x99\0\0\0\0\x4e\x8d\x14\x11",
                "mov r10,[rcx+r11*8]",
            ),
            (
                b"\x4e\x8b\x24\xe1",
                b"\x4e\x63\xa4\xa1\0\0\0\0\x4e\x8d\x24\x21",
                "mov r12,[rcx+r12*8]",
            ),
        ];
        for (old, new, text) in cases {
            let mut code: Code<()> = Code::default();
            assert!(put_label_load(&mut code, old, ()), "{text}");
            assert_eq!(code.bytes, new, "{text}");
            assert_eq!(code.fixups[0].at, 4, "{text}");
        }
        // mov rax,[rax+rdx*8]; mov eax,[rcx+rdx*8]; mov rax,[rcx+rdx*4]; mov rax,[rcx+rdx*8+8]; mov rax,[rdx*8+0]
        let others: [&[u8]; 5] = [
            b"\x48\x8b\x04\xd0",
            b"\x8b\x04\xd1",
            b"\x48\x8b\x04\x91",
            b"\x48\x8b\x44\xd1\x08",
            b"\x48\x8b\x04\xd5\0\0\0\0",
        ];
        for code in others {
            assert!(!put_label_load(&mut Code::default(), code, ()), "{code:x?}");
        }
        let mut code: Code<()> = Code::default();
        assert!(put_label_fallback(&mut code, 9, ()));
        let fallback = b"\xf3\x0f\x1e\xfa\x4c\x8b\x0d\0\0\0\0\x3e\x41\xff\xe1";
        assert_eq!(code.bytes, fallback);
    }

    #[test]
    fn a_guard_compares_the_whole_index() {
        let mut code: Code<()> = Code::default();
        assert!(put_index_guard(&mut code, 9, 5, ()));
        assert_eq!(code.bytes, b"\x49\x83\xf9\x05\x0f\x87\0\0\0\0");
        let mut code: Code<()> = Code::default();
        assert!(put_index_guard(&mut code, 7, 200, ()));
        assert_eq!(code.bytes, b"\x48\x81\xff\xc8\0\0\0\x0f\x87\0\0\0\0");
    }
}
