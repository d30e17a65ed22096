//! Decoding: where control goes, and which field holds an address.
//!
//! Instructions are words of 32 bits at multiples of four, and few kinds of them depend on their place:
//!
//! | instruction | [`Flow`] | field |
//! |---|---|---|
//! | `b`, `bl` | `Jump`, `Call` | [`Branch26`](FixupKind::Branch26) |
//! | `b.cond`, `bc.cond`, `cbz`, `cbnz` | `CondJump` | [`Imm19`](FixupKind::Imm19) |
//! | `tbz`, `tbnz` | `CondJump` | [`Branch14`](FixupKind::Branch14) |
//! | `b.al`, `b.nv` | `Jump`, and "prefixed": they have no inverse, and compilers do not emit them | `Imm19` |
//! | `br`, `braa` … | `IndirectJump` | |
//! | `blr`, `blraa` … | `IndirectCall` | |
//! | `ret`, `retaa`, `retab`, `eret`, `drps` | `Return` | |
//! | `udf`, `brk`, `hlt` | `Stop` | |
//! | `svc` and the other exceptions | `Next`: they come back | |
//! | `adr` | `Next`, forms an address | [`Adr`](FixupKind::Adr) |
//! | `adrp` | `Next` | [`Page`](FixupKind::Page), the target is a page |
//! | `ldr`, `ldrsw`, `prfm` of a literal | `Next` | `Imm19` |
//!
//! What an `adrp` forms is only a part of an address, so it is not said to form one; where the whole is
//! needed, relocations or the instructions around it tell it ([`super::table`]).
//!
//! # What is refused
//!
//! * Encodings that are unallocated at the architecture's highest level, and words at odd places.
//! * `cb<cc>` (compare and branch), whose nine bits of displacement would want a spelling of their own.
//! * Pointer authentication that takes the program counter for a modifier (`paciasppc`, `retaasppc` …): its
//!   results differ from place to place.
//!
//! Everything else is copied, whether it is known here or not.

use crate::{Cond, FixupKind, Flow, Insn, PcField, Traits};

/// Decodes one instruction; see [`crate::Decode::decode`].
pub fn decode(bytes: &[u8], addr: u64) -> Option<Insn> {
    classify(u32::from_le_bytes(*bytes.first_chunk()?), addr)
}

/// Decodes one instruction after the other; see [`crate::Decode::sweep`].
pub fn sweep(bytes: &[u8], addr: u64, mut visit: impl FnMut(&Insn) -> bool) -> Option<u64> {
    let mut here = addr;
    let words = bytes.chunks_exact(4);
    let rest = words.remainder();
    for word in words {
        // The chunk has four bytes.
        let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        match classify(word, here) {
            None => return Some(here),
            Some(insn) if !visit(&insn) => return None,
            Some(_) => here = here.wrapping_add(4),
        }
    }
    (!rest.is_empty()).then_some(here)
}

/// A field of `width` bits at `low`, as a signed number.
pub(super) fn signed(word: u32, low: u32, width: u32) -> i64 {
    i64::from((word << (32 - low - width)) as i32 >> (32 - width))
}

/// The displacement of `adr`, or of `adrp` in pages.
pub(super) fn adr_immediate(word: u32) -> i64 {
    signed(word, 5, 19) << 2 | i64::from(word >> 29 & 3)
}

/// `b.cond` and `bc.cond`.
pub(super) fn is_b_cond(word: u32) -> bool {
    word & 0xff00_0000 == 0x5400_0000
}

/// `cbz` and `cbnz`.
pub(super) fn is_cbz(word: u32) -> bool {
    word & 0x7e00_0000 == 0x3400_0000
}

/// `tbz` and `tbnz`.
pub(super) fn is_tbz(word: u32) -> bool {
    word & 0x7e00_0000 == 0x3600_0000
}

/// Loads of a literal, and `prfm`.
pub(super) fn is_literal(word: u32) -> bool {
    word & 0x3b00_0000 == 0x1800_0000
}

/// `adr` and `adrp`.
pub(super) fn is_adr(word: u32) -> bool {
    word & 0x1f00_0000 == 0x1000_0000
}

fn classify(word: u32, addr: u64) -> Option<Insn> {
    if !addr.is_multiple_of(4) {
        return None;
    }
    let mut insn = Insn {
        addr,
        len: 4,
        flow: Flow::Next,
        field: None,
        traits: Traits::default(),
    };
    match word >> 25 & 15 {
        0b0000 => {
            if word >> 16 == 0 {
                insn.flow = Flow::Stop; // udf
            } else if word >> 31 == 0 {
                return None;
            } // else matrix extension
        }
        0b0001 | 0b0011 => return None,
        0b1000 | 0b1001 => immediate(word, addr, &mut insn)?,
        0b1010 | 0b1011 => branch_or_system(word, addr, &mut insn)?,
        0b0100 | 0b0110 | 0b1100 | 0b1110 => memory(word, addr, &mut insn),
        0b0101 | 0b1101
            // Pointer authentication, one source: with the highest bit of the opcode the program counter comes in.
            if word & 0x5fff_8000 == 0x5ac1_8000 => {
                return None;
            }
        // Scalable vectors; data processing of registers; vectors and floating point.
        _ => {}
    }
    Some(insn)
}

fn immediate(word: u32, addr: u64, insn: &mut Insn) -> Option<()> {
    if is_adr(word) {
        let (kind, target) = if word >> 31 == 0 {
            insn.traits.forms_address = true;
            (
                FixupKind::Adr,
                addr.wrapping_add_signed(adr_immediate(word)),
            )
        } else {
            (
                FixupKind::Page,
                (addr & !0xfff).wrapping_add_signed(adr_immediate(word) << 12),
            )
        };
        insn.field = Some(PcField {
            at: 0,
            kind,
            target,
        });
    }
    // `autiasppc` and `autibsppc`.
    if word & 0xff80_0000 == 0xf380_0000 && word & 0x1f == 0x1f {
        return None;
    }
    Some(())
}

fn memory(word: u32, addr: u64, insn: &mut Insn) {
    if is_literal(word) {
        let target = addr.wrapping_add_signed(signed(word, 5, 19) << 2);
        insn.field = Some(PcField {
            at: 0,
            kind: FixupKind::Imm19,
            target,
        });
    }
    // Load and store exclusive: `o2` is clear, and so is the sign of `casp`.
    if word & 0x3f80_0000 == 0x0800_0000 && (word & 0x0020_0000 == 0 || word >> 31 == 1)
        || word & 0x3f80_0000 == 0x0900_0000
    {
        let load = word & 0x0040_0000 != 0;
        insn.traits.exclusive_load = load;
        insn.traits.exclusive_store = !load;
    }
}

fn branch_or_system(word: u32, addr: u64, insn: &mut Insn) -> Option<()> {
    let near = |kind, width, low| PcField {
        at: 0,
        kind,
        target: addr.wrapping_add_signed(signed(word, low, width) << 2),
    };
    if word & 0x7c00_0000 == 0x1400_0000 {
        let field = near(FixupKind::Branch26, 26, 0);
        insn.field = Some(field);
        let target = field.target;
        insn.flow = if word >> 31 == 0 {
            Flow::Jump { target }
        } else {
            Flow::Call { target }
        };
    } else if is_b_cond(word) {
        let field = near(FixupKind::Imm19, 19, 5);
        insn.field = Some(field);
        if word & 0xe == 0xe {
            insn.flow = Flow::Jump {
                target: field.target,
            };
            insn.traits.prefixed = true;
        } else {
            insn.flow = Flow::CondJump {
                cond: Cond(word & !(0x7_ffff << 5)),
                target: field.target,
            };
        }
    } else if is_cbz(word) {
        let field = near(FixupKind::Imm19, 19, 5);
        insn.field = Some(field);
        insn.flow = Flow::CondJump {
            cond: Cond(word & !(0x7_ffff << 5)),
            target: field.target,
        };
    } else if is_tbz(word) {
        let field = near(FixupKind::Branch14, 14, 5);
        insn.field = Some(field);
        insn.flow = Flow::CondJump {
            cond: Cond(word & !(0x3fff << 5)),
            target: field.target,
        };
    } else if word >> 24 == 0xd4 {
        // brk and hlt; svc, hvc, smc and dcps come back.
        if matches!(word & 0x00e0_001f, 0x0020_0000 | 0x0040_0000) {
            insn.flow = Flow::Stop;
        }
        insn.traits.system_call = word & 0x00e0_001f == 1; // svc
    } else if word >> 24 == 0xd5 {
        // Hints.
        if word & 0xffff_f01f == 0xd503_201f {
            match word >> 5 & 0x7f {
                0 => insn.traits.nop = true,
                32 | 34 | 36 | 38 => insn.traits.landing_pad = true,
                // `pacm`, and the hints that represent `paciasppc` and its like.
                39 => return None,
                _ => {}
            }
        } else if word & 0xffff_f0ff == 0xd503_305f {
            insn.traits.exclusive_store = true; // clrex
        }
    } else if word >> 25 == 0x6b {
        // Through a register. Bits 24..21 are the operation, with 8 added for pointer authentication by two registers.
        match word >> 21 & 0xf {
            0b0000 | 0b1000 => insn.flow = Flow::IndirectJump,
            0b0001 | 0b1001 => insn.flow = Flow::IndirectCall,
            // `retaasppcr` and `retabsppcr` take a register besides.
            0b0010 if word & 0x1f == 0 || word & 0x1f == 0x1f && word & 0x3e0 == 0x3e0 => {
                insn.flow = Flow::Return
            }
            0b0100 | 0b0101 => insn.flow = Flow::Return,
            _ => return None,
        }
    } else {
        // `cb<cc>`, `retaasppc`, and what is not allocated.
        return None;
    }
    Some(())
}
