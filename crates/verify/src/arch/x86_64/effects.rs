//! What an instruction reads and what it overwrites: for what is dead in old code ([`crate::liveness`]).
//!
//! All doubt goes to "read" and "not overwritten". Operands that are written in the instruction are read, but
//! for the first of those that only write it ([`writes_first`]). Registers that are not written there are in
//! a table ([`implicit`]). Of flags the few instructions that read them are listed; those that overwrite them
//! are, each flag by itself, and a flag that the manual calls undefined counts as kept.

use super::super::Effects;
use super::{decode_raw, decode_vex, decode_without_operands, quick};
use crate::arch::step::flag::{ALL, CARRY, OVERFLOW, PARITY, SIGN, STATUS, ZERO};
use yaxpeax_x86::long_mode::{
    ConditionCode, Instruction, Opcode, Operand, RegSpec, register_class,
};

const EVERYTHING: Effects = Effects {
    reads: u32::MAX,
    kills: 0,
    flag_reads: ALL,
    flag_kills: 0,
};
const RAX: u32 = 1;
const RCX: u32 = 1 << 1;
const RDX: u32 = 1 << 2;
const RBX: u32 = 1 << 3;
const RSP: u32 = 1 << 4;
const RBP: u32 = 1 << 5;
const RSI: u32 = 1 << 6;
const RDI: u32 = 1 << 7;

/// A general register's bit, and whether writing to it leaves nothing of it.
pub(super) fn general(reg: RegSpec) -> Option<(u32, bool)> {
    let class = reg.class();
    let whole = class == register_class::Q || class == register_class::D;
    if whole || class == register_class::W || class == register_class::RB {
        Some((1 << (reg.num() & 15), whole))
    } else if class == register_class::B {
        // 4 to 7 are ah, ch, dh, bh.
        Some((1 << (reg.num() & 3), false))
    } else {
        None
    }
}

fn bit(reg: RegSpec) -> u32 {
    general(reg).map_or(0, |r| r.0)
}

/// Registers that an operand needs, be it written or read: those of its address.
pub(super) fn address(operand: &Operand) -> u32 {
    match *operand {
        Operand::MemDeref { base }
        | Operand::Disp { base, .. }
        | Operand::MemDerefMasked { base, .. }
        | Operand::DispMasked { base, .. } => bit(base),
        Operand::MemIndexScale { index, .. }
        | Operand::MemIndexScaleDisp { index, .. }
        | Operand::MemIndexScaleMasked { index, .. }
        | Operand::MemIndexScaleDispMasked { index, .. } => bit(index),
        Operand::MemBaseIndexScale { base, index, .. }
        | Operand::MemBaseIndexScaleDisp { base, index, .. }
        | Operand::MemBaseIndexScaleMasked { base, index, .. }
        | Operand::MemBaseIndexScaleDispMasked { base, index, .. } => bit(base) | bit(index),
        _ => 0,
    }
}

/// Instructions that overwrite their first operand without reading it.
pub(super) fn writes_first(insn: &Instruction) -> bool {
    use Opcode::*;
    match insn.opcode() {
        MOV | MOVZX | MOVSX | MOVSXD | LEA | POP | MOVD | MOVQ | VMOVD | VMOVQ | MOVMSKPS
        | MOVMSKPD | VMOVMSKPS | VMOVMSKPD | PMOVMSKB | VPMOVMSKB | CVTTSD2SI | CVTSD2SI
        | CVTTSS2SI | CVTSS2SI | VCVTTSD2SI | VCVTSD2SI | VCVTTSS2SI | VCVTSS2SI | VCVTTSD2USI
        | VCVTSD2USI | VCVTTSS2USI | VCVTSS2USI | PEXTRB | PEXTRW | PEXTRD | PEXTRQ | VPEXTRB
        | VPEXTRW | VPEXTRD | VPEXTRQ | EXTRACTPS | VEXTRACTPS | POPCNT | ANDN | BLSI | BLSR
        | BLSMSK | BEXTR | BZHI | SHLX | SHRX | SARX | RORX | PDEP | PEXT | MOVBE | RDRAND
        | RDSEED | SETO | SETNO | SETB | SETAE | SETZ | SETNZ | SETBE | SETA | SETS | SETNS
        | SETP | SETNP | SETL | SETGE | SETLE | SETG | KMOVB | KMOVW | KMOVD | KMOVQ | MULX
        | FNSTSW | RDFSBASE | RDGSBASE | RDPID | IN => true,
        IMUL => insn.operand_count() == 3,
        // The old value may stay, and is not read either.
        op => may_keep_first(op),
    }
}

/// Instructions that fill up a general register with zeros, whatever part of it the decoder names.
fn extracts(op: Opcode) -> bool {
    use Opcode::*;
    matches!(
        op,
        PEXTRB | PEXTRW | PEXTRD | PEXTRQ | VPEXTRB | VPEXTRW | VPEXTRD | VPEXTRQ
    )
}

/// It may leave its first operand alone: by a condition, where no bit is set, or on a processor that does not know it.
fn may_keep_first(op: Opcode) -> bool {
    use Opcode::*;
    matches!(
        op,
        BSF | BSR
            | TZCNT
            | LZCNT
            | CMOVA
            | CMOVB
            | CMOVG
            | CMOVGE
            | CMOVL
            | CMOVLE
            | CMOVNA
            | CMOVNB
            | CMOVNO
            | CMOVNP
            | CMOVNS
            | CMOVNZ
            | CMOVO
            | CMOVP
            | CMOVS
            | CMOVZ
    )
}

/// The register that a repeat prefix counts in.
fn repeats(insn: &Instruction) -> u32 {
    let prefixes = insn.prefixes;
    if prefixes.rep() || prefixes.repnz() {
        RCX
    } else {
        0
    }
}

/// The size of the only operand, in bytes; 0 if it is not known.
pub(super) fn width(insn: &Instruction) -> u8 {
    match insn.operand(0) {
        Operand::Register { reg } => match reg.class() {
            register_class::Q => 8,
            register_class::D => 4,
            register_class::W => 2,
            register_class::B | register_class::RB => 1,
            _ => 0,
        },
        _ => insn.mem_size().and_then(|m| m.bytes_size()).unwrap_or(0),
    }
}

/// Registers that are read, and that are overwritten, without being written in the instruction. `None`:
/// unknown, or all.
pub(super) fn implicit(insn: &Instruction) -> Option<(u32, u32)> {
    use Opcode::*;
    Some(match insn.opcode() {
        // The product of bytes is in `ax`, that of words in parts of `dx` and `ax`.
        MUL | IMUL if insn.operand_count() == 1 => match width(insn) {
            4 | 8 => (RAX, RAX | RDX),
            _ => (RAX, 0),
        },
        DIV | IDIV if width(insn) == 1 => (RAX, 0),
        DIV | IDIV => (RAX | RDX, 0),
        MULX => (RDX, 0),
        CBW | CWDE | CDQE | CWD => (RAX, 0),
        CDQ | CQO => (RAX, RDX),
        CMPXCHG | SAHF | SALC | CLZERO => (RAX, 0),
        CMPXCHG8B | CMPXCHG16B => (RAX | RBX | RCX | RDX, 0),
        XLAT => (RAX | RBX, 0),
        LOOP | LOOPZ | LOOPNZ | JRCXZ | JECXZ => (RCX, 0),
        MOVS | CMPS => (repeats(insn) | RSI | RDI, 0),
        SCAS | STOS => (RAX | repeats(insn) | RDI, 0),
        LODS => (RAX | repeats(insn) | RSI, 0),
        INS | OUTS => (RCX | RDX | RSI | RDI, 0),
        PUSH | POP | PUSHF | POPF | CALL | RETURN => (RSP, 0),
        ENTER | LEAVE => (RSP | RBP, 0),
        CPUID => (RAX | RCX, RAX | RBX | RCX | RDX),
        RDTSC => (0, RAX | RDX),
        RDTSCP => (0, RAX | RDX | RCX),
        XGETBV | RDPKRU | RDPMC | RDMSR => (RCX, RAX | RDX),
        OUT | WRMSR | XSETBV | XSAVE | XSAVEC | XSAVES | XSAVEOPT | XSAVEC64 | XSAVES64
        | XRSTOR | XRSTORS | XRSTORS64 | WRPKRU | RDPRU | MONITOR | MWAIT | MONITORX | MWAITX
        | TPAUSE | UMWAIT | UMONITOR => (RAX | RCX | RDX, 0),
        MASKMOVQ | MASKMOVDQU | VMASKMOVDQU => (RDI, 0),
        PCMPESTRI | VPCMPESTRI => (RAX | RDX, RCX),
        PCMPESTRM | VPCMPESTRM => (RAX | RDX, 0),
        PCMPISTRI | VPCMPISTRI => (0, RCX),
        // It gives back the flags as they were.
        SYSCALL => (0xffff, 0),
        SYSENTER | SYSRET | SYSEXIT | INT | INTO | IRET | IRETD | IRETQ | HLT | UD0 | UD1 | UD2
        | XBEGIN | ENCLS | ENCLU | ENCLV | VMCALL | VMLAUNCH | VMRESUME | VMXOFF | VMFUNC
        | VMRUN | VMMCALL | VMLOAD | VMSAVE | SKINIT | INVLPGA | INVLPGB | PCONFIG | GETSEC
        | RSM | UIRET | SENDUIPI | TDCALL | SEAMRET | SEAMOPS | SEAMCALL | PSMASH | PVALIDATE
        | RMPADJUST | RMPUPDATE | LOADIWKEY | ENCODEKEY128 | ENCODEKEY256 | HRESET | SWAPGS
        | JMPE => return None,
        _ => (0, 0),
    })
}

fn asked_by(condition: ConditionCode) -> u8 {
    use ConditionCode::*;
    match condition {
        O | NO => OVERFLOW,
        B | AE => CARRY,
        Z | NZ => ZERO,
        A | BE => CARRY | ZERO,
        S | NS => SIGN,
        P | NP => PARITY,
        L | GE => SIGN | OVERFLOW,
        G | LE => ZERO | SIGN | OVERFLOW,
    }
}

fn flags_read(insn: &Instruction) -> u8 {
    use Opcode::*;
    match insn.opcode() {
        ADC | SBB | ADCX | RCL | RCR | CMC | SALC => CARRY,
        ADOX => OVERFLOW,
        LAHF => STATUS,
        PUSHF => ALL,
        LOOPZ | LOOPNZ => ZERO,
        FCMOVB | FCMOVNB => CARRY,
        FCMOVE | FCMOVNE => ZERO,
        FCMOVBE | FCMOVNBE => CARRY | ZERO,
        FCMOVU | FCMOVNU => PARITY,
        op => op.condition().map_or(0, asked_by),
    }
}

/// The count of a shift by a constant, as far as the processor looks at it.
fn count(insn: &Instruction) -> u8 {
    let last = insn.operand_count().saturating_sub(1);
    let wide = matches!(insn.operand(0), Operand::Register { reg } if reg.class() == register_class::Q)
        || insn.mem_size().and_then(|m| m.bytes_size()) == Some(8);
    match insn.operand(last) {
        Operand::ImmediateI8 { imm } => imm as u8 & if wide { 63 } else { 31 },
        Operand::ImmediateU8 { imm } => imm & if wide { 63 } else { 31 },
        _ => 0,
    }
}

fn flags_killed(insn: &Instruction, bytes: &[u8]) -> u8 {
    use Opcode::*;
    let repeated = bytes.iter().take(4).any(|b| matches!(b, 0xf2 | 0xf3));
    let logical = CARRY | PARITY | ZERO | SIGN | OVERFLOW;
    match insn.opcode() {
        ADD | SUB | CMP | NEG | FCOMI | FCOMIP | FUCOMI | FUCOMIP | XADD | XTEST | CMPXCHG
        | ADC | SBB | POPF | COMISS | COMISD | UCOMISS | UCOMISD | VCOMISS | VCOMISD | VUCOMISS
        | VUCOMISD | PTEST | VPTEST | VTESTPS | VTESTPD | POPCNT | RDRAND | RDSEED | KORTESTB
        | KORTESTW | KORTESTD | KORTESTQ | KTESTB | KTESTW | KTESTD | KTESTQ | PCMPISTRI
        | PCMPISTRM | PCMPESTRI | PCMPESTRM | VPCMPISTRI | VPCMPISTRM | VPCMPESTRI | VPCMPESTRM => {
            ALL
        }
        CMPS | SCAS if !repeated => ALL,
        AND | OR | XOR | TEST => logical,
        INC | DEC => ALL & !CARRY,
        SHL | SAL | SHR | SAR => match count(insn) {
            0 => 0,
            1 => logical,
            _ => logical & !OVERFLOW,
        },
        SHLD | SHRD => match count(insn) {
            0 => 0,
            _ if matches!(insn.operand(0), Operand::Register { reg } if reg.class() == register_class::W) => {
                0
            }
            _ => logical & !OVERFLOW,
        },
        ROL | ROR => match count(insn) {
            0 => 0,
            1 => CARRY | OVERFLOW,
            _ => CARRY,
        },
        MUL | IMUL => CARRY | OVERFLOW,
        BT | BTS | BTR | BTC | CLC | STC | CMC | ADCX => CARRY,
        ADOX => OVERFLOW,
        BSF | BSR | CMPXCHG8B | CMPXCHG16B => ZERO,
        ANDN | BLSI | BLSR | BLSMSK | BZHI => SIGN | ZERO | OVERFLOW | CARRY,
        BEXTR => ZERO | OVERFLOW | CARRY,
        SAHF => STATUS,
        _ => 0,
    }
}

/// See [`super::super::Arch::effects`].
pub(super) fn effects(bytes: &[u8]) -> Effects {
    quick::effects(bytes).unwrap_or_else(|| effects_slowly(bytes))
}

/// The same by the decoder alone.
pub(super) fn effects_slowly(bytes: &[u8]) -> Effects {
    let Some((insn, len)) = decode_raw(bytes) else {
        return without_operands(bytes).unwrap_or_else(|| vex(bytes));
    };
    let bytes = bytes.get(..len).unwrap_or(bytes);
    // To this decoder `rdssp` is one, too: what it may write to its register, or leave there, it does not read.
    if insn.opcode() == Opcode::NOP {
        return Effects::default();
    }
    let Some((mut reads, mut kills)) = implicit(&insn) else {
        return EVERYTHING;
    };
    let count = insn.operand_count().min(4);
    // Nothing is read of a register that is set to zero in this way.
    let zeroed = count == 2
        && matches!(insn.opcode(), Opcode::XOR | Opcode::SUB)
        && matches!((insn.operand(0), insn.operand(1)), (Operand::Register { reg: a }, Operand::Register { reg: b }) if a == b);
    for i in 0..count {
        let operand = insn.operand(i);
        reads |= address(&operand);
        let (Operand::Register { reg } | Operand::RegisterMaskMerge { reg, .. }) = operand else {
            continue;
        };
        let Some((mut bit, mut whole)) = general(reg) else {
            continue;
        };
        if i == 0 && extracts(insn.opcode()) {
            (bit, whole) = (1 << (reg.num() & 15), true);
        }
        let written = i == 0 && writes_first(&insn) || i == 1 && insn.opcode() == Opcode::MULX;
        if zeroed && whole || written && whole && !may_keep_first(insn.opcode()) {
            kills |= bit;
        } else if !written {
            reads |= bit;
        }
    }
    // What is written may be part of what is read.
    Effects {
        reads,
        kills,
        flag_reads: flags_read(&insn),
        flag_kills: flags_killed(&insn, bytes),
    }
}

/// `serialize`, and the instructions of VIA's PadLock, see [`decode_without_operands`]: data is at `rsi` and `rdi`,
/// `rcx` counts its blocks, the key is at `rbx`, the control word at `rdx`, and at `rax` an initialisation vector or
/// the number of bytes done so far. `xstore` takes a divisor in `rdx` and leaves a status in `eax`. None uses flags.
fn without_operands(bytes: &[u8]) -> Option<Effects> {
    decode_without_operands(bytes)?;
    let repeated = usize::from(*bytes.first()? == 0xf3);
    let (reads, kills) = match *bytes.get(repeated + 1..)?.first_chunk::<2>()? {
        [0x01, _] => (0, 0),
        [0xa7, 0xc0] if repeated == 0 => (RDX | RDI, RAX),
        [0xa7, 0xc0] => (RCX | RDX | RDI, RAX),
        // xcryptecb has no initialisation vector.
        [0xa7, 0xc8] => (RCX | RDX | RBX | RSI | RDI, 0),
        [0xa7, _] => (RAX | RCX | RDX | RBX | RSI | RDI, 0),
        // xsha512 takes whole blocks.
        [_, 0xe0] => (RCX | RSI | RDI, 0),
        _ => (RAX | RCX | RSI | RDI, 0),
    };
    Some(Effects {
        reads,
        kills,
        ..Effects::default()
    })
}

/// VEX- and EVEX-encoded instructions that the decoder lacks, see [`decode_vex`]: `kmov` and
/// `vcvtusi2sd` read or write a general register, `kortest` and `ktest` write the flags; of the others, memory has a
/// base and an index.
fn vex(bytes: &[u8]) -> Effects {
    let get = |i: usize| bytes.get(i).copied().unwrap_or(0);
    if decode_vex(bytes, 0).is_none() {
        return EVERYTHING;
    }
    // R, X and B extend register numbers, and are stored inverted.
    let (at, first) = match get(0) {
        0xc5 => (2, get(1) | 0x60),
        0x62 => (4, get(1)),
        _ => (3, get(1)),
    };
    let high = |bit: u8| u8::from(first & bit == 0) << 3;
    let (opcode, modrm) = (get(at), get(at + 1));
    let (reg, low) = (modrm >> 3 & 7 | high(0x80), modrm & 7);
    let mut effects = Effects::default();
    // `vcvtusi2sd` converts a general register.
    if get(0) == 0x62 && opcode == 0x7b && first & 0x0f == 1 && modrm >> 6 == 3 {
        effects.reads = 1 << (low | high(0x20));
        return effects;
    }
    let mask = get(0) == 0xc5 || get(0) == 0xc4 && first & 0x1f == 1;
    match (mask, modrm >> 6) {
        (true, 3) => match opcode {
            0x92 => effects.reads = 1 << (low | high(0x20)),
            0x93 => effects.kills = 1 << reg,
            0x98 | 0x99 => effects.flag_kills = ALL,
            _ => {}
        },
        (_, 3) => {}
        (_, mode) if low == 4 => {
            let sib = get(at + 2);
            let (index, base) = (sib >> 3 & 7 | high(0x40), sib & 7);
            if mode != 0 || base != 5 {
                effects.reads |= 1 << (base | high(0x20));
            }
            // Of those that gather and scatter it is a vector.
            let vector =
                get(0) == 0x62 && first & 0x0f == 2 && matches!(opcode, 0x90..=0x93 | 0xa0..=0xa3);
            if index != 4 && !vector {
                effects.reads |= 1 << index;
            }
        }
        (_, 0) if low == 5 => {}
        _ => effects.reads = 1 << (low | high(0x20)),
    }
    effects
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::step::flag::AUXILIARY;

    #[test]
    fn registers_are_read_and_overwritten_as_the_manual_says() {
        let set = |list: &[u32]| list.iter().fold(0u32, |set, r| set | 1 << r);
        let cases: [(&[u8], &[u32], &[u32], &str); 49] = [
            (
                &[0x62, 0xf2, 0xfd, 0x4b, 0x92, 0x64, 0x00, 0x01],
                &[0],
                &[],
                "vgatherdpd zmm4{k3},[rax+ymm0+8]",
            ),
            (
                &[0x62, 0x32, 0xfd, 0x4b, 0x93, 0x1c, 0xd0],
                &[0],
                &[],
                "vgatherqpd zmm11{k3},[rax+zmm10*8]",
            ),
            (
                &[0x62, 0xd2, 0xfd, 0x49, 0xa3, 0x04, 0x08],
                &[8],
                &[],
                "vscatterqpd [r8+zmm1]{k1},zmm0",
            ),
            (&[0x0f, 0x01, 0xe8], &[], &[], "serialize"),
            (
                &[0x62, 0xf1, 0xff, 0x08, 0x7b, 0xc2],
                &[2],
                &[],
                "vcvtusi2sd xmm0,xmm0,rdx",
            ),
            (
                &[0x62, 0xd1, 0xff, 0x08, 0x7b, 0xc2],
                &[10],
                &[],
                "vcvtusi2sd xmm0,xmm0,r10",
            ),
            (&[0xed], &[2], &[0], "in eax,dx"),
            (&[0xe5, 0x10], &[], &[0], "in eax,16"),
            (&[0xec], &[2], &[], "in al,dx"),
            (&[0x0f, 0x33], &[1], &[0, 2], "rdpmc"),
            (&[0xc6, 0xf8, 0xff], &[], &[], "xabort 255"),
            (
                &[0x66, 0x0f, 0x3a, 0x14, 0xc2, 10],
                &[],
                &[2],
                "pextrb edx,xmm0,10",
            ),
            (
                &[0x66, 0x0f, 0x3a, 0x14, 0xc6, 10],
                &[],
                &[6],
                "pextrb esi,xmm0,10",
            ),
            (
                &[0x66, 0x41, 0x0f, 0x3a, 0x14, 0xc1, 2],
                &[],
                &[9],
                "pextrb r9d,xmm0,2",
            ),
            (
                &[0x66, 0x0f, 0x3a, 0x14, 0x02, 10],
                &[2],
                &[],
                "pextrb [rdx],xmm0,10",
            ),
            (&[0x66, 0x0f, 0xc5, 0xc1, 2], &[], &[0], "pextrw eax,xmm1,2"),
            (
                &[0x66, 0x0f, 0x3a, 0x15, 0xc2, 2],
                &[],
                &[2],
                "pextrw edx,xmm0,2",
            ),
            (
                &[0xc4, 0xe3, 0x79, 0x14, 0xc2, 10],
                &[],
                &[2],
                "vpextrb edx,xmm0,10",
            ),
            (
                &[0x66, 0x0f, 0x3a, 0x16, 0xc0, 2],
                &[],
                &[0],
                "pextrd eax,xmm0,2",
            ),
            (
                &[0x66, 0x48, 0x0f, 0x3a, 0x16, 0xc6, 1],
                &[],
                &[6],
                "pextrq rsi,xmm0,1",
            ),
            (&[0x48, 0x89, 0xd8], &[3], &[0], "mov rax,rbx"),
            (&[0x89, 0xd8], &[3], &[0], "mov eax,ebx"),
            (&[0x66, 0x89, 0xd8], &[3], &[], "mov ax,bx"),
            (&[0x88, 0xe0], &[0], &[], "mov al,ah"),
            (&[0x88, 0xfb], &[3], &[], "mov bl,bh"),
            (&[0x40, 0x88, 0xfb], &[7], &[], "mov bl,dil"),
            (&[0x48, 0x01, 0xd8], &[0, 3], &[], "add rax,rbx"),
            (&[0x31, 0xc0], &[], &[0], "xor eax,eax"),
            (
                &[0x48, 0x8b, 0x44, 0x8b, 8],
                &[1, 3],
                &[0],
                "mov rax,[rbx+rcx*4+8]",
            ),
            (
                &[0x48, 0x89, 0x44, 0x8b, 8],
                &[0, 1, 3],
                &[],
                "mov [rbx+rcx*4+8],rax",
            ),
            (&[0x48, 0x0f, 0x44, 0xc3], &[3], &[], "cmove rax,rbx"),
            (&[0x0f, 0x94, 0xc0], &[], &[], "sete al"),
            (&[0x48, 0xf7, 0xe1], &[0, 1], &[0, 2], "mul rcx"),
            (&[0xf7, 0x6b, 4], &[0, 3], &[0, 2], "imul dword [rbx+4]"),
            (&[0x66, 0xf7, 0xe1], &[0, 1], &[], "mul cx"),
            (&[0xf6, 0xe1], &[0, 1], &[], "mul cl"),
            (&[0x48, 0xf7, 0xf1], &[0, 1, 2], &[], "div rcx"),
            (&[0xf6, 0x3b], &[0, 3], &[], "idiv byte [rbx]"),
            (&[0x48, 0x0f, 0xaf, 0xc3], &[0, 3], &[], "imul rax,rbx"),
            (&[0x48, 0x99], &[0], &[2], "cqo"),
            (&[0x48, 0xd3, 0xe0], &[0, 1], &[], "shl rax,cl"),
            (&[0x48, 0x6b, 0xc3, 5], &[3], &[0], "imul rax,rbx,5"),
            (&[0x5b], &[4], &[3], "pop rbx"),
            (&[0xf3, 0xa4], &[1, 6, 7], &[], "rep movsb"),
            (&[0xa4], &[6, 7], &[], "movsb"),
            (&[0xf3, 0x48, 0x0f, 0xbc, 0xc3], &[3], &[], "tzcnt rax,rbx"),
            (&[0x0f, 0xbd, 0xc3], &[3], &[], "bsr eax,ebx"),
            (&[0xf3, 0x48, 0x0f, 0x1e, 0xc8], &[], &[], "rdsspq rax"),
            (
                &[0x66, 0x0f, 0x3a, 0x63, 0xc1, 2],
                &[],
                &[1],
                "pcmpistri xmm0,xmm1,2",
            ),
        ];
        for (bytes, reads, kills, text) in cases {
            let e = effects(bytes);
            assert_eq!((e.reads, e.kills), (set(reads), set(kills)), "{text}");
        }
    }

    #[test]
    fn flags_are_read_and_overwritten_as_the_manual_says() {
        let logical = ALL & !AUXILIARY;
        let cases: [(&[u8], u8, u8, &str); 16] = [
            (&[0x48, 0x01, 0xd8], 0, ALL, "add rax,rbx"),
            (&[0x48, 0x11, 0xd8], CARRY, ALL, "adc rax,rbx"),
            (&[0x85, 0xc0], 0, logical, "test eax,eax"),
            (&[0x48, 0xff, 0xc0], 0, ALL & !CARRY, "inc rax"),
            (&[0x48, 0xd3, 0xe0], 0, 0, "shl rax,cl"),
            (&[0x48, 0xc1, 0xe0, 3], 0, logical & !OVERFLOW, "shl rax,3"),
            (&[0x48, 0xc1, 0xe0, 0], 0, 0, "shl rax,0"),
            (&[0x48, 0xd1, 0xe0], 0, logical, "shl rax,1"),
            (&[0x9f], STATUS, 0, "lahf"),
            (&[0x9e], 0, STATUS, "sahf"),
            (&[0x9c], ALL, 0, "pushfq"),
            (&[0x0f, 0x97, 0xc0], CARRY | ZERO, 0, "seta al"),
            (&[0x7f, 0], ZERO | SIGN | OVERFLOW, 0, "jg"),
            (&[0xf3, 0xa6], 0, 0, "repe cmpsb"),
            (&[0xa6], 0, ALL, "cmpsb"),
            (&[0x66, 0x0f, 0x2e, 0xc1], 0, ALL, "ucomisd xmm0,xmm1"),
        ];
        for (bytes, reads, kills, text) in cases {
            let e = effects(bytes);
            assert_eq!((e.flag_reads, e.flag_kills), (reads, kills), "{text}");
        }
    }

    #[test]
    fn mask_registers_take_and_give_general_ones() {
        let set = |list: &[u32]| list.iter().fold(0u32, |set, r| set | 1 << r);
        let cases: [(&[u8], &[u32], &[u32], u8, &str); 5] = [
            (&[0xc5, 0xfb, 0x93, 0xc0], &[], &[0], 0, "kmovd eax,k0"),
            (&[0xc5, 0x7b, 0x93, 0xc0], &[], &[8], 0, "kmovd r8d,k0"),
            (
                &[0xc4, 0xe1, 0xfb, 0x92, 0xca],
                &[2],
                &[],
                0,
                "kmovq k1,rdx",
            ),
            (
                &[0xc4, 0xe1, 0xf9, 0x98, 0xc1],
                &[],
                &[],
                ALL,
                "kortestq k0,k1",
            ),
            (
                &[0xc4, 0xc3, 0xe9, 0x6b, 0x48, 8, 0x50],
                &[8],
                &[],
                0,
                "vfmaddsd xmm1,xmm2,xmm5,[r8+8]",
            ),
        ];
        for (bytes, reads, kills, flags, text) in cases {
            let e = effects(bytes);
            assert_eq!(
                (e.reads, e.kills, e.flag_reads, e.flag_kills),
                (set(reads), set(kills), 0, flags),
                "{text}"
            );
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic() {
        arbtest::arbtest(|u| {
            let bytes: Vec<u8> = u.arbitrary()?;
            let _ = effects(&bytes);
            Ok(())
        });
    }

    /// glibc's `pkey_get` and `pkey_set` were refused where a counter used `rax` in front of `rdpkru`.
    #[test]
    fn what_rdpkru_gives_overwrites_two_registers() {
        let read = effects(&[0x0f, 0x01, 0xee]);
        assert_eq!((read.reads, read.kills), (RCX, RAX | RDX));
        assert_eq!((read.flag_reads, read.flag_kills), (0, 0));
        let write = effects(&[0x0f, 0x01, 0xef]);
        assert_eq!((write.reads, write.kills), (RAX | RCX | RDX, 0));
    }
}
