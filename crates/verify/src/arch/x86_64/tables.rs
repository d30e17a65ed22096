//! Jump tables of new code's own, on x86-64: what instructions leave in registers as far as it bounds an index or is
//! an address, the loads of entries, the additions of bases, and the guard of an index that nothing bounds.
//!
//! What is not listed leaves something unknown in every register that it may write, and in every register if what it
//! may write is not known.

use super::super::{IndexGuard, LabelFallback, LabelLoad, Leaves, Left, TableLoad};
use super::effects::{address, effects, general, implicit, width, writes_first};
use super::steps::{immediate, memory, plain, whole};
use super::{Flow, X86_64, decode_raw, prefix_len};
use crate::arch::Arch;
use crate::arch::step::Segment;
use yaxpeax_x86::long_mode::{Instruction, Opcode, Operand, RegSpec, register_class};

/// A general register that an operand is, and its bits; not `ah` to `bh`.
fn register(operand: &Operand) -> Option<(u8, u8)> {
    let Operand::Register { reg } = operand else {
        return None;
    };
    let class = reg.class();
    let bits = if class == register_class::Q {
        64
    } else if class == register_class::D {
        32
    } else if class == register_class::W {
        16
    } else if class == register_class::RB || class == register_class::B && reg.num() < 4 {
        8
    } else {
        return None;
    };
    Some((reg.num() & 15, bits))
}

/// A register of 8 bits, also the second byte of one.
fn is_byte(operand: &Operand) -> bool {
    let Operand::Register { reg } = operand else {
        return false;
    };
    [register_class::RB, register_class::B].contains(&reg.class())
}

/// So many ones.
fn ones(bits: u8) -> u64 {
    u64::MAX >> (64 - u32::from(bits.clamp(1, 64)))
}

/// General registers that one instruction may write.
fn writes(insn: &Instruction) -> u32 {
    use Opcode::*;
    let Some((read, overwritten)) = implicit(insn) else {
        return u32::MAX;
    };
    // The decoder says `rax` of an operand that there is not.
    let named = |i: u8| match insn.operand(i) {
        _ if i >= insn.operand_count() => 0,
        Operand::Register { reg } | Operand::RegisterMaskMerge { reg, .. } => {
            general(reg).map_or(0, |r| r.0)
        }
        _ => 0,
    };
    let operands = match insn.opcode() {
        CMP | TEST | PUSH | BT => 0,
        XCHG | XADD | MULX => named(0) | named(1),
        _ => named(0),
    };
    // `implicit` tells those that are overwritten as a whole, and those that are read.
    let parts = match insn.opcode() {
        LAHF => 1,
        CWD => 1 << 2,
        MUL | IMUL if insn.operand_count() == 1 && width(insn) != 1 => 1 | 1 << 2,
        _ => 0,
    };
    operands | read | overwritten | parts
}

/// See [`Arch::leaves`].
pub(super) fn leaves(bytes: &[u8], addr: u64) -> Leaves {
    let Some((insn, len)) = decode_raw(bytes) else {
        return Leaves::UNKNOWN;
    };
    let bytes = bytes.get(..len).unwrap_or(bytes);
    let writes = writes(&insn);
    Leaves {
        writes,
        left: left(&insn, bytes, addr).filter(|left| writes >> left.0 & 1 != 0),
        compares: compares(&insn),
        keeps_flags: keeps_flags(&insn, bytes, addr),
        low: low(&insn, bytes),
        wide: wide(&insn),
    }
}

/// Whether an instruction writes no flag: what is known to, and what works on vectors and is not known to write any.
fn keeps_flags(insn: &Instruction, bytes: &[u8], addr: u64) -> bool {
    use Opcode::*;
    if let Some(plain) = plain(bytes, addr) {
        return plain.keeps_flags;
    }
    let vector = |reg: RegSpec| {
        let class = reg.class();
        class == register_class::X || class == register_class::Y || class == register_class::Z
    };
    let is_vector = |i: u8| match insn.operand(i) {
        Operand::Register { reg } | Operand::RegisterMaskMerge { reg, .. } => vector(reg),
        _ => false,
    };
    let moves = matches!(
        insn.opcode(),
        LEA | PUSH | POP | LEAVE | CDQE | CDQ | CQO | CWDE | ENDBR64
    );
    let any = (0..insn.operand_count().min(4)).any(is_vector);
    moves || any && effects(bytes).flag_kills == 0
}

/// Registers whose low 8 bits an instruction overwrites without reading them.
fn low(insn: &Instruction, bytes: &[u8]) -> u32 {
    match register(&insn.operand(0)) {
        Some((to, 8)) if writes(insn) >> to & 1 != 0 => (1 << to) & !effects(bytes).reads,
        _ => 0,
    }
}

/// Registers of which an instruction reads more than the low 8 bits: those of addresses, and those that are wider, or
/// not named, be they read or not, but for one that is only written.
fn wide(insn: &Instruction) -> u32 {
    let Some((mut read, _)) = implicit(insn) else {
        return u32::MAX;
    };
    if reads_al(insn) {
        read &= !1;
    }
    let of = |i: u8| {
        let operand = insn.operand(i);
        match (&operand, register(&operand)) {
            (_, Some((_, 8))) => 0,
            (Operand::Register { .. }, _) if i == 0 && writes_first(insn) => 0,
            (Operand::Register { reg } | Operand::RegisterMaskMerge { reg, .. }, _) => {
                general(*reg).map_or(0, |r| r.0)
            }
            _ => address(&operand),
        }
    };
    (0..insn.operand_count().min(4)).fold(read, |set, i| set | of(i))
}

/// Whether all that an instruction reads of `rax` without naming it is `al`.
fn reads_al(insn: &Instruction) -> bool {
    use Opcode::*;
    match insn.opcode() {
        CBW | XLAT => true,
        CMPXCHG | SCAS | STOS => width(insn) == 1,
        MUL | IMUL => insn.operand_count() == 1 && width(insn) == 1,
        _ => false,
    }
}

fn compares(insn: &Instruction) -> Option<(u8, u8, u64)> {
    if insn.opcode() != Opcode::CMP {
        return None;
    }
    let (reg, bits) = register(&insn.operand(0))?;
    let number = match insn.operand(1) {
        Operand::ImmediateI16 { imm } => i64::from(imm),
        Operand::ImmediateU16 { imm } => i64::from(imm),
        other => immediate(&other)?,
    };
    Some((reg, bits, number as u64 & ones(bits)))
}

/// The register that an instruction leaves something known in, and that.
fn left(insn: &Instruction, bytes: &[u8], addr: u64) -> Option<(u8, Left)> {
    use Opcode::*;
    if insn.opcode() == CDQE {
        return Some((0, Left::Signed { from: 0, bits: 32 }));
    }
    // Writes of 32 bits leave zeros above.
    let (to, bits) = register(&insn.operand(0)).filter(|r| r.1 >= 32)?;
    let any = (bits == 32).then_some((to, Left::AtMost(ones(32))));
    let count = insn.operand_count();
    let second = insn.operand(1);
    let from = register(&second).filter(|_| count > 1);
    let number = immediate(&second).filter(|_| count == 2);
    let left = match insn.opcode() {
        LEA if bits == 64 => {
            let at = memory(insn, 1, bytes, addr, 0).and_then(|m| m.address);
            Left::Address(at?)
        }
        XOR | SUB if from == Some((to, bits)) => Left::Number(0),
        MOV => match (from, number) {
            (Some((from, _)), _) => Left::Low { from, bits },
            (None, Some(n)) => Left::Number(n as u64 & ones(bits)),
            _ => return any,
        },
        MOVZX => match (from, insn.mem_size().and_then(|m| m.bytes_size())) {
            (Some((from, bits)), _) => Left::Low { from, bits },
            (None, Some(size @ (1 | 2))) => Left::AtMost(ones(8 * size)),
            // The second byte of a register.
            (None, _) if is_byte(&insn.operand(1)) => Left::AtMost(ones(8)),
            (None, _) => Left::AtMost(ones(16)),
        },
        MOVSX | MOVSXD => match from {
            Some((from, of)) if bits == 64 && of < 64 => Left::Signed { from, bits: of },
            _ => return any,
        },
        AND => match number {
            Some(n) => Left::And {
                bits,
                number: n as u64 & ones(bits),
            },
            None => return any,
        },
        SHR => match number {
            Some(by) => Left::Right {
                bits,
                by: by as u8 & (bits - 1),
            },
            None => return any,
        },
        // With one operand it writes other registers than that.
        IMUL if count < 2 => return None,
        LEA | ADD | SUB | OR | XOR | NOT | NEG | SHL | SAL | SAR | IMUL | INC | DEC | ADC | SBB
        | ROL | ROR | RCL | RCR | SHLD | SHRD | BTS | BTR | BTC | XCHG | XADD | ADCX | ADOX
        | MOVBE | POPCNT | CRC32 | ANDN | BLSI | BLSR | BLSMSK | BZHI | BEXTR | PEXT | PDEP
        | MULX | RORX | SARX | SHLX | SHRX | MOVD | VMOVD | MOVMSKPS | MOVMSKPD | VMOVMSKPS
        | VMOVMSKPD | PMOVMSKB | VPMOVMSKB | PEXTRB | PEXTRW | PEXTRD | VPEXTRB | VPEXTRW
        | VPEXTRD | EXTRACTPS | VEXTRACTPS | CVTSS2SI | CVTSD2SI | CVTTSS2SI | CVTTSD2SI
        | VCVTSS2SI | VCVTSD2SI | VCVTTSS2SI | VCVTTSD2SI => return any,
        // The decoder calls the register one of 64 bits in any case.
        BSWAP
            if matches!(
                bytes,
                [0x0f, 0xc8..=0xcf] | [0x40..=0x47, 0x0f, 0xc8..=0xcf]
            ) =>
        {
            Left::AtMost(ones(32))
        }
        op if op.condition().is_some() && count == 2 => return any,
        _ => return None,
    };
    Some((to, left))
}

/// See [`Arch::most_if`].
pub(super) fn most_if(cond: u16, taken: bool, number: u64) -> Option<u64> {
    match (cond, taken) {
        // b and not ae
        (2, true) | (3, false) => number.checked_sub(1),
        // e and not ne; be and not a
        (4, true) | (5, false) | (6, true) | (7, false) => Some(number),
        _ => None,
    }
}

/// See [`Arch::table_load`].
pub(super) fn table_load(bytes: &[u8]) -> Option<TableLoad> {
    let (insn, len) = decode_raw(bytes)?;
    let bytes = bytes.get(..len)?;
    let lead = bytes.get(..prefix_len(bytes))?;
    // REX and `notrack` alone.
    let (rex, legacy) = lead
        .split_last()
        .map_or((0, lead), |(last, rest)| match last {
            0x40..=0x4f => (*last, rest),
            _ => (0, lead),
        });
    if !matches!(legacy, [] | [0x3e]) {
        return None;
    }
    let (to, operand, width) = match insn.opcode() {
        Opcode::MOVSXD if rex & 8 != 0 => (Some(whole(&insn.operand(0))?), 1, 4),
        Opcode::MOV => (Some(whole(&insn.operand(0))?), 1, 8),
        Opcode::JMP => (None, 0, 8),
        _ => return None,
    };
    let is_memory = !matches!(insn.operand(operand), Operand::Register { .. })
        && immediate(&insn.operand(operand)).is_none();
    let mem = memory(&insn, operand, bytes, 0, width).filter(|_| is_memory)?;
    let (index, scale) = mem.index?;
    let plain = mem.segment == Segment::Common && mem.address.is_none() && scale == width;
    plain.then_some(TableLoad {
        to,
        base: mem.base,
        index,
        bits: 64,
        wide: width == 8,
        disp: mem.disp as u64,
        marks: legacy.len() as u8,
    })
}

const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// See [`Arch::label_load`]: `movsxd D, [T + I*4 + distance]` and `lea D, [T + D]`.
pub(super) fn label_load(bytes: &[u8]) -> Option<LabelLoad> {
    let load = table_load(bytes).filter(|load| !load.wide)?;
    let (to, base) = (load.to?, load.base?);
    let (_, first) = decode_raw(bytes)?;
    let rest = bytes.get(first..)?;
    let (sum, second) = decode_raw(rest)?;
    let own = rest.get(..second)?;
    let prefixes = own.get(..prefix_len(own))?;
    let mem = memory(&sum, 1, own, 0, 0).filter(|_| sum.opcode() == Opcode::LEA)?;
    let adds = matches!(prefixes, [0x48..=0x4f])
        && whole(&sum.operand(0)) == Some(to)
        && (mem.base, mem.index) == (Some(base), Some((to, 1)))
        && mem.disp == 0
        && mem.address.is_none()
        && to != base;
    adds.then_some(LabelLoad {
        len: (first + second) as u64,
        table: None,
        distance: Some(load.disp),
        base: Some(base),
        index: (load.index, load.marks),
        to,
        scratch: None,
        wide: false,
    })
}

/// See [`Arch::label_fallback`]: `endbr64`, `mov D, [rip + entry]` and `notrack jmp D`.
pub(super) fn label_fallback(bytes: &[u8], addr: u64) -> Option<LabelFallback> {
    let (bytes, addr) = (bytes.strip_prefix(&ENDBR64)?, addr.wrapping_add(4));
    let (load, first) = decode_raw(bytes).filter(|d| d.0.opcode() == Opcode::MOV)?;
    let own = bytes.get(..first)?;
    let prefixes = own.get(..prefix_len(own))?;
    let to = whole(&load.operand(0)).filter(|_| matches!(prefixes, [0x48..=0x4f]))?;
    if immediate(&load.operand(1)).is_some() || matches!(load.operand(1), Operand::Register { .. })
    {
        return None;
    }
    let entry = memory(&load, 1, own, addr, 8)?.address?;
    let rest = bytes.get(first..)?;
    let (jump, second) = decode_raw(rest).filter(|d| d.0.opcode() == Opcode::JMP)?;
    let own = rest.get(..second)?;
    let prefixes = own.get(..prefix_len(own))?;
    let plain = matches!(prefixes, [0x3e] | [0x3e, 0x40..=0x4f]);
    let jumps =
        matches!(jump.operand(0), Operand::Register { .. }) && whole(&jump.operand(0)) == Some(to);
    (plain && jumps).then_some(LabelFallback {
        len: (ENDBR64.len() + first + second) as u64,
        entry,
        to,
        base: None,
    })
}

/// See [`Arch::sum`].
pub(super) fn sum(bytes: &[u8]) -> Option<(u8, u8)> {
    let (insn, _) = decode_raw(bytes)?;
    let adds = insn.opcode() == Opcode::ADD && insn.operand_count() == 2;
    let (to, from) = (whole(&insn.operand(0))?, whole(&insn.operand(1))?);
    adds.then_some((to, from))
}

/// See [`Arch::index_guard`]: `cmp r64, n` and `ja old`, in the forms that assemblers write.
pub(super) fn index_guard(bytes: &[u8], addr: u64) -> Option<IndexGuard> {
    let [
        rex @ (0x48 | 0x49),
        opcode @ (0x81 | 0x83),
        modrm @ 0xf8..=0xff,
        ..,
    ] = *bytes
    else {
        return None;
    };
    let register = modrm & 7 | (rex & 1) << 3;
    let (last, len) = match opcode {
        0x83 => (i64::from(*bytes.get(3)? as i8), 4u8),
        _ => {
            let number = bytes.get(3..7)?.try_into().ok()?;
            (i64::from(i32::from_le_bytes(number)), 7)
        }
    };
    let rest = bytes.get(usize::from(len)..)?;
    let at = addr.checked_add(u64::from(len))?;
    let branch = X86_64::decode(rest, at).filter(|b| b.prefixes == 0)?;
    let Flow::Branch {
        cond: 7, target, ..
    } = branch.flow
    else {
        return None;
    };
    Some(IndexGuard {
        register,
        last: u64::try_from(last).ok()?,
        old: target,
        len: len + branch.len,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_in_registers_is_known() {
        let cases: [(&[u8], u32, Option<(u8, Left)>, &str); 18] = [
            (
                b"\x0f\xac\xf0\x04",
                1,
                Some((0, Left::AtMost(0xffff_ffff))),
                "shrd eax,esi,4",
            ),
            (b"\xf7\xeb", 1 | 1 << 2 | 1 << 3, None, "imul ebx"),
            (
                b"\x0f\xaf\xd9",
                1 << 3,
                Some((3, Left::AtMost(0xffff_ffff))),
                "imul ebx,ecx",
            ),
            (
                b"\x0f\xc8",
                1,
                Some((0, Left::AtMost(0xffff_ffff))),
                "bswap eax",
            ),
            (
                b"\x41\x0f\xc9",
                1 << 9,
                Some((9, Left::AtMost(0xffff_ffff))),
                "bswap r9d",
            ),
            (b"\x48\x0f\xc8", 1, None, "bswap rax"),
            (
                b"\x48\x8d\x15\x00\x01\x00\x00",
                1 << 2,
                Some((2, Left::Address(0x1107))),
                "lea rdx,[rip+0x100]",
            ),
            (
                b"\x89\xff",
                1 << 7,
                Some((7, Left::Low { from: 7, bits: 32 })),
                "mov edi,edi",
            ),
            (
                b"\x0f\xb6\xc0",
                1,
                Some((0, Left::Low { from: 0, bits: 8 })),
                "movzx eax,al",
            ),
            (
                b"\x0f\xb6\x07",
                1,
                Some((0, Left::AtMost(255))),
                "movzx eax,byte [rdi]",
            ),
            (
                b"\x0f\xb7\x07",
                1,
                Some((0, Left::AtMost(0xffff))),
                "movzx eax,word [rdi]",
            ),
            (
                b"\x83\xe0\x07",
                1,
                Some((
                    0,
                    Left::And {
                        bits: 32,
                        number: 7,
                    },
                )),
                "and eax,7",
            ),
            (
                b"\x8d\x47\xfb",
                1,
                Some((0, Left::AtMost(0xffff_ffff))),
                "lea eax,[rdi-5]",
            ),
            (b"\x88\xc8", 1, None, "mov al,cl"),
            (b"\x48\x87\xd8", 1 | 1 << 3, None, "xchg rax,rbx"),
            (b"\x48\x39\xd8", 0, None, "cmp rax,rbx"),
            (
                b"\x48\x98",
                1,
                Some((0, Left::Signed { from: 0, bits: 32 })),
                "cdqe",
            ),
            (b"\x0f\xa2", 0xf, None, "cpuid"),
        ];
        for (code, writes, left, text) in cases {
            let leaves = leaves(code, 0x1000);
            assert_eq!((leaves.writes, leaves.left), (writes, left), "{text}");
        }
        assert_eq!(
            leaves(b"\x3c\x20", 0).compares,
            Some((0, 8, 0x20)),
            "cmp al,0x20"
        );
        assert_eq!(leaves(b"\x80\xfc\x20", 0).compares, None, "cmp ah,0x20");
        let compared = leaves(b"\x66\x81\xfa\xcb\x00", 0).compares;
        assert_eq!(compared, Some((2, 16, 0xcb)), "cmp dx,0xcb");
        // sete dl; or dl,cl; or edx,ecx
        assert_eq!(leaves(b"\x0f\x94\xc2", 0).low, 1 << 2);
        assert_eq!(leaves(b"\x08\xca", 0).low, 0);
        assert_eq!(leaves(b"\x08\xca", 0).wide, 0);
        assert_eq!(leaves(b"\x09\xca", 0).wide, 6);
        // movzx eax,al
        assert_eq!(leaves(b"\x0f\xb6\xc0", 0).wide, 0);
        // movzx ecx,ah; movzx ecx,ax
        let second = leaves(b"\x0f\xb6\xcc", 0);
        assert_eq!(second.left, Some((1, Left::AtMost(0xff))));
        assert_eq!(second.wide & 1, 1);
        let word = leaves(b"\x0f\xb7\xc8", 0).left;
        assert_eq!(word, Some((1, Left::Low { from: 0, bits: 16 })));
        // The operand as well, though it is only read.
        assert_eq!(leaves(b"\xf7\xe1", 0).writes, 7, "mul ecx");
        assert_eq!(leaves(b"\x0f\x05", 0).writes, 0xffff, "syscall");
    }

    /// Functions of Firefox were refused for `lock cmpxchg cl` and `mul sil`, which read no more of `rax` than `al`.
    #[test]
    fn instructions_on_bytes_read_al_alone() {
        let cases: [(&[u8], u32, &str); 14] = [
            (b"\xf0\x0f\xb0\x4b\x30", 1 << 3, "lock cmpxchg [rbx+48],cl"),
            (b"\x0f\xb0\xca", 0, "cmpxchg dl,cl"),
            (
                b"\xf0\x0f\xb1\x4b\x30",
                1 | 1 << 1 | 1 << 3,
                "lock cmpxchg [rbx+48],ecx",
            ),
            (b"\x66\x0f\xb1\xca", 1 | 1 << 1 | 1 << 2, "cmpxchg dx,cx"),
            (b"\x40\xf6\xe6", 0, "mul sil"),
            (b"\xf6\x2b", 1 << 3, "imul byte [rbx]"),
            (b"\x66\xf7\xe6", 1 | 1 << 6, "mul si"),
            (b"\x40\xf6\xf6", 1, "div sil"),
            (b"\xae", 1 << 7, "scasb"),
            (b"\xaf", 1 | 1 << 7, "scasd"),
            (b"\xaa", 1 << 7, "stosb"),
            (b"\x66\x98", 0, "cbw"),
            (b"\x98", 1, "cwde"),
            (b"\xd7", 1 << 3, "xlatb"),
        ];
        for (code, wide, text) in cases {
            assert_eq!(leaves(code, 0).wide, wide, "{text}");
        }
    }

    /// A switch with `fabs` between the mask of its index and the load of the entry was refused.
    #[test]
    fn what_has_no_operand_writes_what_it_is_known_to() {
        let cases: [(&[u8], u32, &str); 18] = [
            (b"\xd9\xe1", 0, "fabs"),
            (b"\xd9\xe8", 0, "fld1"),
            (b"\xd9\xc0", 0, "fld st(0)"),
            (b"\xdf\xe0", 1, "fnstsw ax"),
            (b"\x0f\x77", 0, "emms"),
            (b"\xf8", 0, "clc"),
            (b"\x90", 0, "nop"),
            (b"\x0f\x1f\x44\x00\x00", 0, "nop [rax+rax+0]"),
            (b"\xf3\x0f\x1e\xfa", 0, "endbr64"),
            (b"\x9f", 1, "lahf"),
            (b"\x99", 1 | 1 << 2, "cdq"),
            (b"\x66\x99", 1 | 1 << 2, "cwd"),
            (b"\x66\x98", 1, "cbw"),
            (b"\x66\xf7\xe1", 7, "mul cx"),
            (b"\x66\xf7\xe9", 7, "imul cx"),
            (b"\xf6\xe1", 3, "mul cl"),
            (b"\xf3\x48\x0f\x1e\xca", 1 << 2, "rdsspq rdx"),
            (b"\x0f\x01\xf9", 7, "rdtscp"),
        ];
        for (code, writes, text) in cases {
            assert_eq!(leaves(code, 0x1000).writes, writes, "{text}");
        }
    }

    #[test]
    fn flags_are_kept_by_moves_and_vectors_alone() {
        let keeps: [&[u8]; 6] = [
            b"\x89\xf8",             // mov eax,edi
            b"\x48\x8d\x47\x01",     // lea rax,[rdi+1]
            b"\x0f\x28\xc1",         // movaps xmm0,xmm1
            b"\x0f\x11\x07",         // movups [rdi],xmm0
            b"\x50",                 // push rax
            b"\x48\x8d\x64\x24\x08", // lea rsp,[rsp+8]
        ];
        let writes: [&[u8]; 5] = [
            b"\x01\xf8",             // add eax,edi
            b"\x66\x0f\x2e\xc1",     // ucomisd xmm0,xmm1
            b"\xd3\xe0",             // shl eax,cl
            b"\x66\x0f\x38\x17\xc1", // ptest xmm0,xmm1
            b"\x9d",                 // popf
        ];
        let kept = |code: &&[u8]| leaves(code, 0).keeps_flags;
        assert!(keeps.iter().all(kept));
        assert!(!writes.iter().any(kept));
    }

    #[test]
    fn loads_and_guards_are_read_as_they_are_written() {
        let load = table_load(b"\x4b\x63\x84\x94\x10\0\0\0").expect("movsxd rax,[r12+r10*4+16]");
        let same = table_load(b"\x4b\x63\x04\x94").expect("movsxd rax,[r12+r10*4]");
        assert_eq!(
            (load.to, load.base, load.index, load.disp),
            (Some(0), Some(12), 10, 16)
        );
        assert_eq!(TableLoad { disp: 0, ..load }, same);
        let jump = table_load(b"\x3e\xff\x24\xc5\x10\x20\x40\x00").expect("notrack jmp [rax*8+n]");
        assert_eq!(
            (jump.to, jump.base, jump.index, jump.disp),
            (None, None, 0, 0x402010)
        );
        // movsxd eax,[rdx+rax*4]; mov eax,[rdx+rax*8]; mov rax,fs:[rdx+rax*8]; mov [rdx+rax*8],rax
        let others: [&[u8]; 4] = [
            b"\x63\x04\x82",
            b"\x8b\x04\xc2",
            b"\x64\x48\x8b\x04\xc2",
            b"\x48\x89\x04\xc2",
        ];
        for code in others {
            assert_eq!(table_load(code), None, "{code:x?}");
        }
        let guard = index_guard(b"\x49\x83\xf9\x05\x0f\x87\x10\0\0\0", 0x1000).expect("a guard");
        assert_eq!(
            (guard.register, guard.last, guard.old, guard.len),
            (9, 5, 0x101a, 10)
        );
        // Of 32 bits; signed; by a negative number.
        let others: [&[u8]; 3] = [
            b"\x83\xf9\x05\x0f\x87\x10\0\0\0",
            b"\x48\x83\xf9\x05\x0f\x8f\x10\0\0\0",
            b"\x48\x83\xf9\xff\x0f\x87\x10\0\0\0",
        ];
        for code in others {
            assert_eq!(index_guard(code, 0x1000), None, "{code:x?}");
        }
    }
}
