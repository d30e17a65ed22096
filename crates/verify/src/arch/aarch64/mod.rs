//! AArch64, decoded by a table of this module's own: instructions are words of 32 bits, and the few that
//! depend on their place are told by their high bits.
//!
//! | instruction | mask | value | field |
//! |---|---|---|---|
//! | `b`, `bl` | `7c000000` | `14000000` | 26 bits at 0, in words |
//! | `b.cond`, `bc.cond` | `ff000000` | `54000000` | 19 bits at 5, in words |
//! | `cbz`, `cbnz` | `7e000000` | `34000000` | 19 bits at 5, in words |
//! | `tbz`, `tbnz` | `7e000000` | `36000000` | 14 bits at 5, in words |
//! | `adr` | `9f000000` | `10000000` | 19 bits at 5 and 2 at 29, in bytes |
//! | `adrp` | `9f000000` | `90000000` | the same, in pages of 4096 bytes |
//! | `ldr`, `ldrsw`, `prfm` (literal) | `3b000000` | `18000000` | 19 bits at 5, in words |
//!
//! Every other valid word means the same in every place, so nothing more is asked of it than that it is the
//! same word; which registers it touches is given by [`registers`] where that matters. Refused: words that the
//! architecture leaves unallocated in its main table, return addresses that are signed with the program
//! counter, and compare-and-branch of Armv9.6, whose fields are others.
//!
//! What takes the place of one instruction for reasons of reach:
//!
//! | old | new |
//! |---|---|
//! | `adr x, T` | `adrp x, T; add x, x, :lo12:T` |
//! | `ldr x, literal` | `adrp x, A; ldr x, [x, :lo12:A]`, for general registers |
//! | `b.cond`, `cbz`, `tbz` | the opposite over a `b` (the lock step sees this as it is) |
//! | `b`, `bl` to another function | the same to a veneer: `adrp x16; add x16, x16; br x16` |

mod constants;
pub(crate) mod dispatch;
mod guesses;
mod huge;
pub(crate) mod registers;
mod steps;
mod tables;

use crate::arch::graph::Graph;
use crate::arch::step::Step;

use super::{
    Arch, AsksForHugePages, BaseGuard, Dispatch, Effects, Field, FieldKind, Flow, Guess, Insn,
    LabelFallback, LabelLoad, Leaves, Loaded, Longer, Notes, Operand, OwnTableJump, PageUse, Plain,
    TableJump, TableLoad, Takes, ThroughSlot, Touched,
};

/// The instruction set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AArch64;

const NOP: u32 = 0xd503_201f;

/// Numbers of conditions: `b.cond` has 0…15, `bc.cond` 16…31; the others hold the register and the bit that they test.
const COND_CONSISTENT: u16 = 0x10;
const COND_ZERO: u16 = 0x100;
const COND_BIT: u16 = 0x1000;

/// The word at the start of `bytes`.
pub(crate) fn word(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?))
}

/// `width` bits from `low`, sign-extended.
fn signed(word: u32, low: u32, width: u32) -> i64 {
    i64::from((word << (32 - low - width)) as i32 >> (32 - width))
}

/// The bits of a position-dependent instruction that hold its address, 0 for all others.
fn field_bits(word: u32) -> u32 {
    if word & 0x7c00_0000 == 0x1400_0000 {
        0x03ff_ffff
    } else if word & 0xff00_0000 == 0x5400_0000
        || word & 0x7e00_0000 == 0x3400_0000
        || word & 0x3b00_0000 == 0x1800_0000
    {
        0x00ff_ffe0
    } else if word & 0x7e00_0000 == 0x3600_0000 {
        0x0007_ffe0
    } else if word & 0x1f00_0000 == 0x1000_0000 {
        0x60ff_ffe0
    } else {
        0
    }
}

/// The address that the field designates.
fn target(word: u32, addr: u64) -> u64 {
    let words = |low, width| addr.wrapping_add_signed(4 * signed(word, low, width));
    match field_bits(word) {
        0x03ff_ffff => words(0, 26),
        0x0007_ffe0 => words(5, 14),
        0x60ff_ffe0 => {
            let value = signed(word, 5, 19) << 2 | i64::from(word >> 29 & 3);
            if word >> 31 == 0 {
                addr.wrapping_add_signed(value)
            } else {
                (addr & !0xfff).wrapping_add_signed(value << 12)
            }
        }
        _ => words(5, 19),
    }
}

/// Whether indirect branches may land here when the page is guarded; `bti` without a letter lets none in.
fn lets_in(word: u32) -> bool {
    // bti c, bti j, bti jc; paciasp, pacibsp.
    matches!(
        word,
        0xd503_245f | 0xd503_249f | 0xd503_24df | 0xd503_233f | 0xd503_237f
    )
}

/// `adrp x, page; add y, x, #lo12` at the start of `bytes`: (x, y, address).
fn page_and_add(bytes: &[u8], addr: u64) -> Option<(u8, u8, u64)> {
    let page = AArch64::page_register(bytes)?;
    let then = AArch64::page_use(bytes.get(4..)?).filter(|u| u.base == page)?;
    Some((
        page,
        then.dest?,
        target(word(bytes)?, addr).wrapping_add(then.offset),
    ))
}

const BR_X17: u32 = 0xd61f_0220;
const BLR_X17: u32 = 0xd63f_0220;

/// `adrp x16, slot; ldr x17, [x16, #lo12]; add x16, x16, #lo12` and then `last`: the slot.
fn slot_in_x17(bytes: &[u8], addr: u64, last: u32) -> Option<u64> {
    let (register, dest, slot) = (
        AArch64::page_register(bytes)?,
        AArch64::page_use(bytes.get(8..)?)?,
        target(word(bytes)?, addr),
    );
    let load = word(bytes.get(4..)?)?;
    let offset = u64::from(load >> 10 & 0xfff) << 3;
    let agrees = (register, dest.base, dest.dest) == (16, 16, Some(16))
        && load & 0xffc0_03ff == 0xf940_0211
        && offset == dest.offset
        && word(bytes.get(12..)?)? == last;
    agrees.then(|| slot.wrapping_add(offset))
}

impl Arch for AArch64 {
    const MACHINE: u16 = 183;
    const NAME: &'static str = "aarch64";
    /// R_AARCH64_RELATIVE, R_AARCH64_IRELATIVE
    const RELATIVE: [u32; 2] = [1027, 1032];
    const IMPORTS: [u32; 2] = [1025, 1026];
    /// R_AARCH64_ABS64
    const ABS_8: &'static [u32] = &[257];
    /// R_AARCH64_ABS32
    const ABS_4: &'static [u32] = &[258];
    /// R_AARCH64_PREL64
    const DISTANCE_8: u32 = 260;
    /// R_AARCH64_PREL32
    const DISTANCE_4: u32 = 261;
    /// R_AARCH64_PREL64, MOVW_UABS_G0 to G3, MOVW_SABS_G0 to G2, MOVW_PREL_G0 to G3
    const DISTANCES: &'static [u32] = &[
        260, 263, 264, 265, 266, 267, 268, 269, 270, 271, 272, 287, 288, 289, 290, 291, 292, 293,
    ];
    const DISTANCES_OF_DATA: &'static [u32] = &[];
    const PC_REGISTER: u16 = 32;
    const VENDOR: gimli::Vendor = gimli::Vendor::AArch64;
    const STEP: usize = 4;

    const REGISTERS: u8 = 32;
    const STACK: u8 = 31;
    const RED_ZONE: i64 = 0;
    const UNWIND_STACK: u16 = 31;
    const CALL_PUSHES: i64 = 0;
    const LINK: &'static [u8] = &[30];
    const TABLE: u8 = 16;
    const NOTES: Notes = Notes {
        counter: 16,
        leaves_page: true,
        destroys: 1 << 16 | 1 << 17 | 1 << 30,
        link: Some(17),
        lost: steps::MONITOR,
    };
    const STUB_SCRATCH: u32 = 1 << 16 | 1 << 17;
    // x18 to x29.
    const KEPT_BY_CALLS: u32 = 0x3ffc_0000;
    const STUBS_AT_CALLS: bool = true;

    fn of_unwind_register(number: u16) -> u32 {
        if number < 32 { 1 << number } else { 0 }
    }

    fn effects(bytes: &[u8]) -> Effects {
        steps::effects(bytes)
    }

    fn is_return(bytes: &[u8]) -> bool {
        // ret; retaa, retab
        word(bytes)
            .is_some_and(|w| w & 0xffff_fc1f == 0xd65f_0000 || w & 0xffff_fbff == 0xd65f_0bff)
    }

    fn is_system_call(bytes: &[u8]) -> bool {
        word(bytes).is_some_and(|w| w & 0xffe0_001f == 0xd400_0001)
    }

    fn is_undefined(bytes: &[u8]) -> bool {
        word(bytes).is_some_and(|w| w >> 16 == 0)
    }

    fn only_faults(bytes: &[u8]) -> bool {
        // udf, and brk, which is where it was when a handler is done
        word(bytes).is_some_and(|w| w >> 16 == 0 || w & 0xffe0_001f == 0xd420_0000)
    }

    fn is_exclusive_store(bytes: &[u8]) -> bool {
        word(bytes).is_some_and(steps::is_exclusive_store)
    }

    fn plain(bytes: &[u8], _addr: u64) -> Option<Plain> {
        steps::plain(word(bytes)?)
    }

    fn page_of(bytes: &[u8]) -> Option<(u8, u8)> {
        // and xd, xn, #0xfffffffffffff000
        let w = word(bytes).filter(|w| w & 0xffff_fc00 == 0x9274_cc00)?;
        let (to, from) = ((w & 31) as u8, (w >> 5 & 31) as u8);
        (to != Self::STACK && from != Self::STACK).then_some((to, from))
    }

    fn may_read_memory(bytes: &[u8]) -> bool {
        // Only loads and stores touch memory, and the groups of vectors whose length is not known, of tiles and what
        // is not allocated.
        word(bytes).is_none_or(|w| w >> 27 & 1 == 1 && w >> 25 & 1 == 0 || w >> 27 & 3 == 0)
    }

    fn flags_word(bytes: &[u8]) -> Option<(u8, bool)> {
        let w = word(bytes)?;
        let is_nzcv = w & 0xffdf_ffe0 == 0xd51b_4200;
        is_nzcv.then_some(((w & 31) as u8, w >> 21 & 1 == 1))
    }

    fn return_register(bytes: &[u8]) -> Option<u8> {
        let w = word(bytes)?;
        (w & 0xffff_fc1f == 0xd65f_0000).then_some((w >> 5 & 31) as u8)
    }

    fn step(bytes: &[u8], addr: u64) -> Option<Step> {
        steps::step(bytes, addr)
    }

    fn operand(bytes: &[u8], _addr: u64) -> Option<(Operand, u32)> {
        // blr, br
        let w = word(bytes)?;
        let register = (w >> 5 & 31) as u8;
        (w & 0xffdf_fc1f == 0xd61f_0000 && register != 31)
            .then_some((Operand::Register(register), 0))
    }

    fn is_ambiguous(bytes: &[u8]) -> bool {
        // adrp; str and stp that push
        word(bytes).is_some_and(|w| {
            w & 0x9f00_0000 == 0x9000_0000
                || w & 0xffff_ffe0 == 0xf81f_0fe0
                || w & 0xffff_83e0 == 0xa9bf_03e0
        })
    }

    fn decode(bytes: &[u8], addr: u64) -> Option<Insn> {
        let w = word(bytes)?;
        let bits = field_bits(w);
        let to = target(w, addr);
        let plain = Insn {
            len: 4,
            flow: Flow::Next,
            field: None,
            prefixes: 0,
            landing_pad: lets_in(w),
        };
        let field = |kind, literal| {
            Some(Field {
                at: 0,
                len: 4,
                kind,
                target: to,
                literal,
            })
        };
        let branch = |flow| {
            Some(Insn {
                flow,
                field: field(FieldKind::Branch, 0),
                ..plain
            })
        };
        let register = (w & 31) as u16;
        match bits {
            0x03ff_ffff => {
                return branch(if w >> 31 == 0 {
                    Flow::Jump(to)
                } else {
                    Flow::Call(to)
                });
            }
            0x0007_ffe0 => {
                let bit = (w >> 31) as u16 * 32 + (w >> 19 & 31) as u16;
                let cond = COND_BIT | ((w >> 24 & 1) as u16) << 11 | bit << 5 | register;
                return branch(Flow::Branch {
                    cond,
                    inverse: Some(cond ^ 1 << 11),
                    target: to,
                });
            }
            0x60ff_ffe0 => {
                let kind = if w >> 31 == 0 {
                    FieldKind::Forms
                } else {
                    FieldKind::Page
                };
                return Some(Insn {
                    field: field(kind, 0),
                    ..plain
                });
            }
            0 => {}
            _ if w >> 24 == 0x54 => {
                let cond = if w & 16 == 0 {
                    w as u16 & 15
                } else {
                    COND_CONSISTENT | w as u16 & 15
                };
                // "Always" has no opposite.
                let inverse = (cond & 15 < 14).then_some(cond ^ 1);
                return branch(Flow::Branch {
                    cond,
                    inverse,
                    target: to,
                });
            }
            _ if w & 0x7e00_0000 == 0x3400_0000 => {
                let cond =
                    COND_ZERO | ((w >> 31) as u16) << 6 | ((w >> 24 & 1) as u16) << 5 | register;
                return branch(Flow::Branch {
                    cond,
                    inverse: Some(cond ^ 1 << 5),
                    target: to,
                });
            }
            _ => {
                let literal = match (w >> 26 & 1, w >> 30) {
                    (0, 0 | 2) | (1, 0) => 4,
                    (0, 1) | (1, 1) => 8,
                    (1, 2) => 16,
                    // A prefetch.
                    (0, _) => 0,
                    _ => return None,
                };
                return Some(Insn {
                    field: field(FieldKind::Accesses, literal),
                    ..plain
                });
            }
        }
        let flow = match w >> 25 & 15 {
            // Reserved, but for the instruction that is undefined for ever, and SME.
            0 if w >> 16 == 0 => Flow::Stop,
            0 if w >> 31 == 0 => return None,
            1 | 3 => return None,
            _ if w >> 24 == 0xd4 => match (w >> 21 & 7, w & 31) {
                (0, 1..=3) => Flow::Trap,
                (1 | 2, 0) | (5, 1..=3) => Flow::Stop,
                (3, 0) => Flow::Next,
                _ => return None,
            },
            _ if w >> 24 == 0xd5 => match w {
                NOP => Flow::Nothing,
                _ => Flow::Next,
            },
            _ if w & 0xfe00_0000 == 0xd600_0000 => match (w >> 21 & 15, w >> 10 & 63, w & 31) {
                _ if w >> 16 & 31 != 31 => return None,
                (0, 0, 0) | (0, 2 | 3, 31) | (8, 2 | 3, _) => Flow::IndirectJump { computed: true },
                (1, 0, 0) | (1, 2 | 3, 31) | (9, 2 | 3, _) => Flow::IndirectCall,
                (2, 0, 0) | (2, 2 | 3, 31) | (4, 0, 0) | (4, 2 | 3, 31) | (5, 0, 0) => Flow::Stop,
                _ => return None,
            },
            // Compare and branch of Armv9.6.
            _ if w & 0x7e00_0000 == 0x7400_0000 => return None,
            // What else may be among the branches: retaasppc and its like.
            _ if w >> 26 & 7 == 5 => return None,
            // Signed or authenticated with the program counter.
            _ if w & 0xffff_8000 == 0xdac1_8000 || w & 0xff80_001f == 0xf380_001f => return None,
            _ => Flow::Next,
        };
        Some(Insn { flow, ..plain })
    }

    fn loaded_number(_bytes: &[u8]) -> Option<u64> {
        None
    }

    fn absolute_field(_bytes: &[u8]) -> Option<Field> {
        None
    }

    fn padding_len(bytes: &[u8]) -> usize {
        match word(bytes) {
            // nop, udf, brk
            Some(w) if w == NOP || w >> 16 == 0 || w & 0xffe0_001f == 0xd420_0000 => 4,
            Some(_) => 0,
            None => bytes.len().min(3) * usize::from(bytes.iter().all(|&b| b == 0)),
        }
    }

    fn entry_jump(bytes: &[u8], entry: u64) -> Option<(u64, u64, u64)> {
        let skip = if word(bytes).is_some_and(lets_in) {
            4
        } else {
            0
        };
        let at = entry.checked_add(skip)?;
        let rest = bytes.get(skip as usize..)?;
        match Self::decode(rest, at)?.flow {
            Flow::Jump(target) => Some((skip, 4, target)),
            _ => Self::veneer(rest, at).map(|(target, len)| (skip, len, target)),
        }
    }

    fn calculates_with_formed(first: &[u8], rest: &[u8]) -> bool {
        let Some(reg) = word(first).map(|w| w & 31) else {
            return true;
        };
        for bytes in rest.chunks_exact(4).take(24) {
            let (Some(w), Some(insn)) = (word(bytes), Self::decode(bytes, 0)) else {
                return false;
            };
            let adds = (w & 0x1f00_0000 == 0x0b00_0000
                && (w >> 5 & 31 == reg || w >> 16 & 31 == reg))
                || (w & 0x1f00_0000 == 0x1100_0000 && w >> 5 & 31 == reg);
            if adds {
                return true;
            }
            let leaves = !matches!(insn.flow, Flow::Next | Flow::Nothing);
            if leaves || Self::touched(bytes).is_none_or(|t| t.kills >> reg & 1 != 0) {
                return false;
            }
        }
        false
    }

    fn equal_around(a: &[u8], b: &[u8], _field: &Field) -> bool {
        let (Some(a), Some(b)) = (word(a), word(b)) else {
            return false;
        };
        let bits = field_bits(a);
        bits == field_bits(b) && a & !bits == b & !bits
    }

    fn page_register(bytes: &[u8]) -> Option<u8> {
        word(bytes)
            .filter(|w| w & 0x9f00_0000 == 0x9000_0000)
            .map(|w| (w & 31) as u8)
    }

    fn page_use(bytes: &[u8]) -> Option<PageUse> {
        let w = word(bytes)?;
        let (base, number) = ((w >> 5 & 31) as u8, u64::from(w >> 10 & 0xfff));
        if w & 0xff80_0000 == 0x9100_0000 {
            // add x, x, #number {, lsl #12}
            let offset = if w >> 22 & 1 == 0 {
                number
            } else {
                number << 12
            };
            return Some(PageUse {
                base,
                dest: Some((w & 31) as u8),
                offset,
            });
        }
        if w & 0x3b00_0000 == 0x3900_0000 {
            // Loads and stores with a scaled offset; of 16 bytes if it is a vector and the high bit of `opc` is set.
            let wide = w >> 26 & 1 == 1 && w >> 23 & 1 == 1;
            let scale = if wide { 4 } else { w >> 30 };
            return Some(PageUse {
                base,
                dest: None,
                offset: number << scale,
            });
        }
        None
    }

    fn equal_but_offset(a: &[u8], b: &[u8]) -> bool {
        let (Some(a), Some(b)) = (word(a), word(b)) else {
            return false;
        };
        let bits = if a & 0xff80_0000 == 0x9100_0000 {
            0x007f_fc00
        } else {
            0x003f_fc00
        };
        a & !bits == b & !bits
    }

    fn touched(bytes: &[u8]) -> Option<Touched> {
        registers::touched(word(bytes)?)
    }

    fn longer(old: &[u8], p: u64, new: &[u8], q: u64) -> Option<Longer> {
        let (w, v) = (word(old)?, word(new)?);
        let field = |kind, target, literal| Field {
            at: 0,
            len: 4,
            kind,
            target,
            literal,
        };
        let made = |old_len, new_len, kind, from, to, literal| {
            Some(Longer {
                old_len,
                new_len,
                old: field(kind, from, literal),
                new: field(kind, to, literal),
            })
        };
        let is_adr = |w: u32| w & 0x9f00_0000 == 0x1000_0000;
        // A counter may begin with the same register: it stores the lowest byte of the address there, which
        // nothing else does.
        let counts = |at: usize| {
            let store = new.get(at..).and_then(word);
            store.is_some_and(|s| s & 0xffe0_0fff == 0x3800_0000 | (v & 31) << 5 | v & 31)
        };
        if is_adr(w)
            && !counts(8)
            && let Some((page, dest, to)) = page_and_add(new, q)
            && (page, dest) == ((w & 31) as u8, (w & 31) as u8)
        {
            return made(4, 8, FieldKind::Forms, target(w, p), to, 0);
        }
        if is_adr(v)
            && !counts(4)
            && let Some((page, dest, from)) = page_and_add(old, p)
            && (page, dest) == ((v & 31) as u8, (v & 31) as u8)
        {
            return made(8, 4, FieldKind::Forms, from, target(v, q), 0);
        }
        // A literal into a general register (w, x, or a word with its sign), which can hold the page on the way.
        if w & 0x3f00_0000 == 0x1800_0000 && w >> 30 != 3 && w & 31 != 31 {
            let page = Self::page_register(new).filter(|r| u32::from(*r) == w & 31)?;
            let load = word(new.get(4..)?)?;
            let form = match w >> 30 {
                0 => 0xb940_0000,
                1 => 0xf940_0000,
                _ => 0xb980_0000,
            };
            let then =
                Self::page_use(new.get(4..)?).filter(|u| u.base == page && u.dest.is_none())?;
            if load & 0xffc0_0000 == form && load & 31 == w & 31 {
                let literal = if w >> 30 == 1 { 8 } else { 4 };
                return made(
                    4,
                    8,
                    FieldKind::Accesses,
                    target(w, p),
                    target(v, q).wrapping_add(then.offset),
                    literal,
                );
            }
        }
        None
    }

    fn veneer(bytes: &[u8], addr: u64) -> Option<(u64, u64)> {
        let first = word(bytes)?;
        // A veneer may itself be jumped to indirectly.
        let skip = if lets_in(first) { 4 } else { 0 };
        let rest = bytes.get(skip as usize..)?;
        let at = addr.wrapping_add(skip);
        if let (Some((16, 16, target)), Some(0xd61f_0200)) =
            (page_and_add(rest, at), rest.get(8..).and_then(word))
        {
            return Some((target, skip + 12));
        }
        match Self::decode(rest, at)?.flow {
            Flow::Jump(target) => Some((target, skip + 4)),
            _ => None,
        }
    }

    fn stub_slot(bytes: &[u8], addr: u64) -> Option<u64> {
        // bti c; nothing else.
        let pad = 4 * usize::from(word(bytes)? == 0xd503_245f);
        slot_in_x17(bytes.get(pad..)?, addr.checked_add(pad as u64)?, BR_X17)
    }

    fn through_slot(bytes: &[u8], addr: u64) -> Option<ThroughSlot> {
        Some(ThroughSlot {
            slot: slot_in_x17(bytes, addr, BLR_X17)?,
            len: 16,
            call: true,
        })
    }

    fn asks_for_huge_pages(bytes: &[u8], addr: u64) -> Option<AsksForHugePages> {
        huge::read(bytes, addr)
    }

    fn takes_loaded(bytes: &[u8], addr: u64) -> Option<(Takes, Loaded)> {
        constants::loaded(word(bytes)?, addr)
    }

    fn takes_number(bytes: &[u8], takes: &Takes, number: u64) -> Option<u8> {
        constants::number(bytes, takes, number)
    }

    fn is_unallocated(bytes: &[u8]) -> bool {
        // Arm Architecture Reference Manual for A-profile, C4.1: of the groups by bits 28 to 25, two are unallocated,
        // and one is reserved where bit 31 is clear (else it is SME's).
        word(bytes).is_some_and(|w| match w >> 25 & 15 {
            0 => w >> 31 == 0,
            1 | 3 => true,
            // Of those that generate exceptions, by bits 23 to 21: 5 is `dcps`.
            _ => w >> 24 == 0xd4 && matches!(w >> 21 & 7, 4 | 6 | 7),
        })
    }

    fn keeps_state(bytes: &[u8]) -> bool {
        matches!(word(bytes), Some(0xd503_233f | 0xd503_237f))
    }

    fn lets_calls_in(bytes: &[u8]) -> bool {
        // A jump through x16 may land where calls may: everywhere but at `bti j`.
        word(bytes).is_some_and(|w| lets_in(w) && w != 0xd503_249f)
    }

    const WIDEST: u64 = 16;
    const ENTRIES: &'static [(u64, u32)] = &[(1, 2), (2, 2), (4, 2), (4, 0), (8, 0)];

    fn guesses(bytes: &[u8], addr: u64, visit: &mut dyn FnMut(Guess, u64)) {
        guesses::visit(bytes, addr, visit);
    }

    fn numbers(bytes: &[u8], visit: &mut dyn FnMut(usize, u64)) {
        guesses::numbers(bytes, visit);
    }

    fn dispatch(jump: u64, code: &Graph<'_>) -> Option<Dispatch> {
        dispatch::read(jump, code)
    }

    fn leaves(bytes: &[u8], addr: u64) -> Leaves {
        tables::leaves(bytes, addr)
    }

    fn most_if(cond: u16, taken: bool, number: u64) -> Option<u64> {
        tables::most_if(cond, taken, number)
    }

    fn table_jump(bytes: &[u8], addr: u64) -> Option<TableJump> {
        tables::table_jump(bytes, addr)
    }

    fn table_load(bytes: &[u8]) -> Option<TableLoad> {
        tables::table_load(bytes)
    }

    fn label_fallback(bytes: &[u8], addr: u64) -> Option<LabelFallback> {
        tables::label_fallback(bytes, addr)
    }

    fn base_guard(bytes: &[u8], addr: u64) -> Option<BaseGuard> {
        tables::base_guard(bytes, addr)
    }

    fn label_load(bytes: &[u8], addr: u64) -> Option<LabelLoad> {
        tables::label_load(bytes, addr)
    }

    fn own_table_jump(bytes: &[u8], addr: u64) -> Option<OwnTableJump> {
        tables::own_table_jump(bytes, addr)
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod oracle;
