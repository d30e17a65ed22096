//! Instructions of inserted code, taken apart for the symbolic machine ([`crate::machine`]).
//!
//! Only what counters need: moves, additions and comparisons of whole registers and memory, the stack, flags.
//! The decoder says what an instruction is; which form of it a counter has is not looked at.

use super::super::{Compared, Counter, Operand as Recorded, Plain, StackChange};
use super::effects::general;
use super::{X86_64, decode_raw, displacement_len, prefix_len};
use crate::arch::step::{Mem, Next, Op, Segment, Step, flag, stack};
use crate::arch::{Arch, Flow};
use smallvec::{SmallVec, smallvec};
use yaxpeax_x86::long_mode::{
    ConditionCode, Instruction, Opcode, Operand, RegSpec, register_class,
};

const RSP: u8 = 4;

/// A whole register.
pub(super) fn whole(operand: &Operand) -> Option<u8> {
    match operand {
        Operand::Register { reg } if reg.class() == register_class::Q => Some(reg.num() & 15),
        _ => None,
    }
}

pub(super) fn immediate(operand: &Operand) -> Option<i64> {
    Some(match *operand {
        Operand::ImmediateI8 { imm } => i64::from(imm),
        Operand::ImmediateU8 { imm } => i64::from(imm),
        Operand::ImmediateI32 { imm } => i64::from(imm),
        Operand::ImmediateU32 { imm } => i64::from(imm),
        Operand::ImmediateI64 { imm } => imm,
        Operand::ImmediateU64 { imm } => imm as i64,
        _ => return None,
    })
}

/// A memory operand.
pub(super) fn memory(insn: &Instruction, i: u8, bytes: &[u8], addr: u64, size: u8) -> Option<Mem> {
    let lead = bytes.get(..prefix_len(bytes))?;
    let segment = match lead.iter().rev().find(|b| matches!(b, 0x64 | 0x65)) {
        Some(0x64) => Segment::Thread,
        Some(_) => Segment::Own,
        None => Segment::Common,
    };
    // Addresses of 32 bits.
    if lead.contains(&0x67) {
        return None;
    }
    let general = |reg: RegSpec| (reg.class() == register_class::Q).then_some(reg.num() & 15);
    let mem = Mem {
        segment,
        base: None,
        index: None,
        disp: 0,
        address: None,
        size,
    };
    let relative = |disp: i32| {
        let end = addr.wrapping_add(bytes.len() as u64);
        Mem {
            address: Some(end.wrapping_add_signed(i64::from(disp))),
            ..mem
        }
    };
    Some(match insn.operand(i) {
        Operand::MemDeref { base } if base == RegSpec::rip() => relative(0),
        Operand::Disp { base, disp } if base == RegSpec::rip() => relative(disp),
        Operand::AbsoluteU32 { addr } => Mem {
            disp: i64::from(addr as i32),
            ..mem
        },
        Operand::AbsoluteU64 { addr } => Mem {
            disp: addr as i64,
            ..mem
        },
        Operand::MemDeref { base } => Mem {
            base: Some(general(base)?),
            ..mem
        },
        Operand::Disp { base, disp } => Mem {
            base: Some(general(base)?),
            disp: i64::from(disp),
            ..mem
        },
        Operand::MemIndexScale { index, scale } => Mem {
            index: Some((general(index)?, scale)),
            ..mem
        },
        Operand::MemIndexScaleDisp { index, scale, disp } => Mem {
            index: Some((general(index)?, scale)),
            disp: i64::from(disp),
            ..mem
        },
        Operand::MemBaseIndexScale { base, index, scale } => Mem {
            base: Some(general(base)?),
            index: Some((general(index)?, scale)),
            ..mem
        },
        Operand::MemBaseIndexScaleDisp {
            base,
            index,
            scale,
            disp,
        } => Mem {
            base: Some(general(base)?),
            index: Some((general(index)?, scale)),
            disp: i64::from(disp),
            ..mem
        },
        _ => return None,
    })
}

/// The form that nearly all counters have: `inc qword [disp32]` at the thread's own base.
pub(super) fn counter(bytes: &[u8]) -> Option<Counter> {
    let [0x65, 0x48, 0xff, 0x04, 0x25, a, b, c, d, ..] = *bytes else {
        return None;
    };
    Some(Counter {
        len: 9,
        offset: i64::from(i32::from_le_bytes([a, b, c, d])),
        lost: flag::ALL & !flag::CARRY,
    })
}

/// The same as a step.
fn quick(bytes: &[u8]) -> Option<Step> {
    let counter = counter(bytes)?;
    let mem = Mem {
        segment: Segment::Own,
        base: None,
        index: None,
        disp: counter.offset,
        address: None,
        size: 8,
    };
    Some(Step {
        len: counter.len,
        ops: smallvec![Op::Change { mem }],
        lost: counter.lost,
        next: Next::On,
    })
}

/// See [`Arch::step`].
pub(super) fn step(bytes: &[u8], addr: u64) -> Option<Step> {
    // A step is large: it is made where it is returned.
    let quick = quick(bytes);
    if quick.is_none() {
        return step_slowly(bytes, addr);
    }
    quick
}

fn step_slowly(bytes: &[u8], addr: u64) -> Option<Step> {
    let (insn, len) = decode_raw(bytes)?;
    let (bytes, behind) = bytes.split_at_checked(len)?;
    let lead = bytes.get(..prefix_len(bytes))?;
    if lead.iter().any(|b| matches!(b, 0x66 | 0xf2 | 0xf3)) {
        return None;
    }
    let size = insn.mem_size().and_then(|m| m.bytes_size()).unwrap_or(0);
    let is_memory = |i: u8| {
        i < insn.operand_count()
            && !matches!(insn.operand(i), Operand::Register { .. })
            && immediate(&insn.operand(i)).is_none()
    };
    let mem = |i: u8| memory(&insn, i, bytes, addr, size);
    let reg = |i: u8| whole(&insn.operand(i));
    let number = |i: u8| immediate(&insn.operand(i));
    let of = |ops: SmallVec<[Op; 3]>, lost: u8| {
        Some(Step {
            len: len as u8,
            ops,
            lost,
            next: Next::On,
        })
    };
    let goes = |next: Next| {
        Some(Step {
            len: len as u8,
            ops: SmallVec::new(),
            lost: 0,
            next,
        })
    };
    let move_stack = |by: i64| Op::Move {
        to: RSP,
        from: RSP,
        add: by,
    };
    let word = stack::<X86_64>(0);
    match insn.opcode() {
        Opcode::INC if is_memory(0) => of(
            smallvec![Op::Change { mem: mem(0)? }],
            flag::ALL & !flag::CARRY,
        ),
        Opcode::ADD if is_memory(0) => {
            let place = mem(0)?;
            let behind = taken_back(behind, addr.wrapping_add(len as u64), &place);
            (number(1)? == 1).then_some(Step {
                len: (len + behind) as u8,
                ops: smallvec![Op::Change { mem: place }],
                lost: flag::ALL,
                next: Next::On,
            })
        }
        Opcode::ADD
            if insn.operand(0) == Operand::Register { reg: RegSpec::al() }
                && number(1) == Some(127) =>
        {
            of(smallvec![Op::RestoreOverflow], flag::ALL)
        }
        Opcode::ADD if is_memory(1) => of(
            smallvec![Op::Plus {
                to: reg(0)?,
                mem: mem(1)?,
            }],
            flag::ALL,
        ),
        Opcode::SUB if is_memory(1) => of(
            smallvec![Op::Minus {
                to: reg(0)?,
                mem: mem(1)?,
            }],
            flag::ALL,
        ),
        Opcode::CMPXCHG if is_memory(0) && size == 8 => {
            reg(1)?;
            of(
                smallvec![Op::Change { mem: mem(0)? }, Op::Spoil { to: 0 }],
                flag::ALL,
            )
        }
        Opcode::CMP | Opcode::TEST => {
            let read = (0..2).find(|i| is_memory(*i));
            let ops = match read {
                Some(i) if insn.opcode() == Opcode::TEST && number(1 - i).is_some() => {
                    let mask = number(1 - i)? as u64;
                    smallvec![Op::Test { mem: mem(i)?, mask }]
                }
                Some(i) => smallvec![Op::Read { mem: mem(i)? }],
                None => SmallVec::new(),
            };
            of(ops, flag::ALL)
        }
        Opcode::MOV => match (is_memory(0), is_memory(1)) {
            (false, true) => of(
                smallvec![Op::Load {
                    to: reg(0)?,
                    mem: mem(1)?,
                }],
                0,
            ),
            (true, false) => match number(1) {
                Some(_) => of(smallvec![Op::StoreNumber { mem: mem(0)? }], 0),
                None => of(
                    smallvec![Op::Store {
                        from: reg(1)?,
                        mem: mem(0)?,
                    }],
                    0,
                ),
            },
            _ => match (insn.operand(0), number(1)) {
                (Operand::Register { reg }, Some(value)) if reg.class() == register_class::D => of(
                    smallvec![Op::Number {
                        to: reg.num() & 15,
                        value: u64::from(value as u32),
                    }],
                    0,
                ),
                (_, Some(value)) => of(
                    smallvec![Op::Number {
                        to: reg(0)?,
                        value: value as u64,
                    }],
                    0,
                ),
                _ => of(
                    smallvec![Op::Move {
                        to: reg(0)?,
                        from: reg(1)?,
                        add: 0,
                    }],
                    0,
                ),
            },
        },
        Opcode::LEA => {
            let mem = mem(1)?;
            let to = reg(0)?;
            match (mem.address, mem.base, mem.index) {
                (Some(value), ..) => of(smallvec![Op::Address { to, value }], 0),
                (None, Some(from), None) => of(
                    smallvec![Op::Move {
                        to,
                        from,
                        add: mem.disp,
                    }],
                    0,
                ),
                _ => None,
            }
        }
        Opcode::PUSH => of(
            smallvec![
                move_stack(-8),
                Op::Store {
                    from: reg(0).filter(|r| *r != RSP)?,
                    mem: word,
                },
            ],
            0,
        ),
        Opcode::POP => of(
            smallvec![
                Op::Load {
                    to: reg(0).filter(|r| *r != RSP)?,
                    mem: word,
                },
                move_stack(8),
            ],
            0,
        ),
        Opcode::PUSHF => of(smallvec![Op::PushFlags], 0),
        Opcode::POPF => of(smallvec![Op::PopFlags], flag::ALL),
        Opcode::LAHF => of(smallvec![Op::SaveStatus], 0),
        Opcode::SAHF => of(smallvec![Op::RestoreStatus], flag::STATUS),
        Opcode::SETO if insn.operand(0) == Operand::Register { reg: RegSpec::al() } => {
            of(smallvec![Op::SaveOverflow], 0)
        }
        Opcode::RETURN if insn.operand_count() == 0 => goes(Next::Return),
        Opcode::CALL if displacement_len(&insn.operand(0)).is_some() => {
            match X86_64::decode(bytes, addr)?.flow {
                Flow::Call(target) => goes(Next::Call(target)),
                _ => None,
            }
        }
        Opcode::JMP => goes(Next::Leave(reg(0)?)),
        op => match X86_64::decode(bytes, addr)?.flow {
            Flow::Branch { target, .. } => goes(Next::Branch {
                target,
                equal: match op.condition()? {
                    ConditionCode::Z => Some(true),
                    ConditionCode::NZ => Some(false),
                    _ => None,
                },
            }),
            _ => None,
        },
    }
}

/// Length of the instruction at the start of `bytes` that takes the carry of an addition to a place back from it, so
/// that the sum stays the highest number; 0 if it is another. The two are one addition: alone it could count down.
fn taken_back(bytes: &[u8], addr: u64, place: &Mem) -> usize {
    let takes = |(insn, len): (Instruction, usize)| {
        let own = bytes.get(..len)?;
        let plain = prefix_len(own) == 0 && insn.opcode() == Opcode::SBB;
        let same = memory(&insn, 0, own, addr, place.size)? == *place;
        let size = insn.mem_size().and_then(|m| m.bytes_size());
        let alike = plain && same && size == Some(place.size);
        (alike && immediate(&insn.operand(1)) == Some(0)).then_some(len)
    };
    decode_raw(bytes).and_then(takes).unwrap_or(0)
}

/// See [`Arch::plain`]: a closed list of operations. All others are not known.
pub(super) fn plain(bytes: &[u8], addr: u64) -> Option<Plain> {
    use Opcode::*;
    const RAX: u32 = 1;
    const RCX: u32 = 1 << 1;
    const RDX: u32 = 1 << 2;
    const RSI: u32 = 1 << 6;
    const RDI: u32 = 1 << 7;
    const R11: u32 = 1 << 11;
    let (insn, len) = decode_raw(bytes)?;
    let bytes = bytes.get(..len)?;
    let first = |i: u8| -> Option<u32> {
        match insn.operand(i) {
            Operand::Register { reg } => Some(general(reg)?.0),
            _ => Some(0),
        }
    };
    // Written operands, and registers that are written without being named.
    let (operands, implicit, keeps_flags) = match insn.opcode() {
        MOV | MOVZX | MOVSX | MOVSXD | LEA | NOT | BSWAP => (1, 0, true),
        SETO | SETNO | SETB | SETAE | SETZ | SETNZ | SETBE | SETA | SETS | SETNS | SETP | SETNP
        | SETL | SETGE | SETLE | SETG => (1, 0, true),
        ADD | ADC | SUB | SBB | AND | OR | XOR | INC | DEC | NEG | SHL | SHR | SAR | ROL | ROR
        | BTS | BTR | BTC => (1, 0, false),
        IMUL if insn.operand_count() > 1 => (1, 0, false),
        MUL | IMUL | DIV | IDIV => (0, RAX | RDX, false),
        CMP | TEST | BT | CLD => (0, 0, false),
        NOP | MFENCE => (0, 0, true),
        XCHG | XADD => (2, 0, false),
        CMPXCHG => (1, RAX, false),
        SYSCALL => (0, RAX | RCX | R11, false),
        LODS => (0, RAX | RCX | RSI, true),
        STOS => (0, RCX | RDI, true),
        MOVS => (0, RCX | RSI | RDI, true),
        SCAS => (0, RCX | RDI, false),
        CMPS => (0, RCX | RSI | RDI, false),
        JMP | JRCXZ => (0, 0, true),
        op if op.condition().is_some() => match insn.operand_count() {
            1 => (0, 0, true),
            _ => (1, 0, true),
        },
        _ => return None,
    };
    let mut writes = implicit;
    for i in 0..operands {
        writes |= first(i)?;
    }
    let is_register = matches!(insn.operand(0), Operand::Register { .. });
    let size = insn.mem_size().and_then(|m| m.bytes_size()).unwrap_or(0);
    let memory = match insn.opcode() {
        STOS | MOVS => Some(Mem {
            segment: Segment::Common,
            base: Some(7),
            index: Some((1, 1)),
            disp: 0,
            address: None,
            size: 1,
        }),
        _ if operands > 0 && !is_register => Some(memory(&insn, 0, bytes, addr, size)?),
        // `xchg` may have its memory in either place.
        XCHG if !matches!(insn.operand(1), Operand::Register { .. }) => {
            Some(memory(&insn, 1, bytes, addr, size)?)
        }
        _ => None,
    };
    let stack = match writes >> RSP & 1 {
        0 => None,
        _ => {
            whole(&insn.operand(0)).filter(|reg| *reg == RSP)?;
            let number = immediate(&insn.operand(1))?;
            Some(match insn.opcode() {
                ADD => StackChange::By(number),
                SUB => StackChange::By(number.checked_neg()?),
                AND if number < 0 && number.unsigned_abs().is_power_of_two() => {
                    StackChange::Aligned
                }
                _ => return None,
            })
        }
    };
    Some(Plain {
        writes: writes & !(1 << RSP),
        keeps_flags,
        memory,
        stack,
    })
}

/// See [`Arch::operand`].
pub(super) fn operand(bytes: &[u8], addr: u64) -> Option<(Recorded, u32)> {
    let (insn, len) = decode_raw(bytes)?;
    let bytes = bytes.get(..len)?;
    if !matches!(insn.opcode(), Opcode::CALL | Opcode::JMP) || insn.operand_count() != 1 {
        return None;
    }
    let lead = bytes.get(..prefix_len(bytes))?;
    let marks = [0x3e, 0xf2]
        .iter()
        .enumerate()
        .filter(|(_, mark)| lead.contains(mark))
        .fold(0, |set, (i, _)| set | 1 << i);
    let recorded = match whole(&insn.operand(0)) {
        Some(reg) => Recorded::Register(reg),
        None => Recorded::Memory(memory(&insn, 0, bytes, addr, 8)?),
    };
    Some((recorded, marks))
}

/// See [`Arch::comparison`].
pub(super) fn comparison(bytes: &[u8], addr: u64) -> Option<(Compared, Compared)> {
    let (insn, len) = decode_raw(bytes)?;
    let bytes = bytes.get(..len)?;
    let lead = bytes.get(..prefix_len(bytes))?;
    if insn.opcode() != Opcode::CMP || lead.iter().any(|b| matches!(b, 0x66 | 0xf0 | 0xf2 | 0xf3)) {
        return None;
    }
    let size = insn.mem_size().and_then(|m| m.bytes_size());
    let side = |i: u8| {
        let operand = insn.operand(i);
        if let Some(reg) = whole(&operand) {
            return Some(Compared::Register(reg));
        }
        match (immediate(&operand), &operand) {
            (Some(number), _) => Some(Compared::Number(number)),
            (None, Operand::Register { .. }) => None,
            (None, _) => Some(Compared::Memory(memory(&insn, i, bytes, addr, 8)?)),
        }
    };
    let (a, b) = (side(0)?, side(1)?);
    let memory = |side| matches!(side, Compared::Memory(_));
    // An immediate is as wide as the other side, which must be a whole word.
    let whole = !(memory(a) || memory(b)) || size == Some(8);
    whole.then_some((a, b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_common_counter_is_what_the_decoder_says() {
        for disp in [0i32, 8, 0x12345678, -64, i32::MIN] {
            let mut bytes = vec![0x65, 0x48, 0xff, 0x04, 0x25];
            bytes.extend(disp.to_le_bytes());
            bytes.push(0x90);
            let step = quick(&bytes).expect("a counter");
            assert_eq!(Some(step), step_slowly(&bytes, 0x1000));
        }
        assert_eq!(quick(&[0x65, 0x48, 0xff, 0x04, 0x25, 1, 2, 3]), None);
        assert_eq!(quick(&[0x65, 0x48, 0xff, 0x0c, 0x25, 1, 2, 3, 4]), None);
    }
}
