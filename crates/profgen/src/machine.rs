//! What an instruction does to control: as much of an instruction set as samples need.
//!
//! Samples ask where an instruction ends, whether it calls, returns or jumps, and where to. On x86-64 the
//! decoder of crate `isa` answers, and where it is stricter than the listing's, the latter says how long an
//! instruction is. On AArch64 every instruction is a word, and the few patterns that transfer control are
//! told apart here:
//!
//! | bits 31–0 | instruction |
//! |---|---|
//! | `000101` imm26 | `b` |
//! | `100101` imm26 | `bl` |
//! | `0101010` x imm19 … | `b.cond`, `bc.cond` |
//! | x`011010` x imm19 Rt, x`011011` x b40 imm14 Rt | `cbz`, `cbnz`, `tbz`, `tbnz` |
//! | `1101011` opc `11111` … | by opc: 0, 8 `br`; 1, 9 `blr`; 2 `ret`; 4 `eret` (8, 9 and some of 2 with pointer authentication) |

use postlink_elf::elf::Elf;
pub use postlink_elf::raw::{EM_AARCH64, EM_X86_64};
use postlink_isa::x86_64::X86_64;
use postlink_isa::x86_64::text::{Printer, Syntax};
use postlink_isa::{Cond, Decode, Flow};

/// An instruction set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Machine {
    /// x86-64.
    #[default]
    X86_64,
    /// AArch64, little-endian.
    AArch64,
}

impl Machine {
    /// That of a file; `None` if it is not known here.
    pub fn of(elf: &Elf<'_>) -> Option<Machine> {
        match elf.machine {
            EM_X86_64 => Some(Machine::X86_64),
            EM_AARCH64 => Some(Machine::AArch64),
            _ => None,
        }
    }
}

/// Decodes instructions one by one.
pub struct Decoder {
    machine: Machine,
    printer: Printer,
    text: String,
}

impl Decoder {
    /// For an instruction set.
    pub fn new(machine: Machine) -> Decoder {
        Decoder {
            machine,
            printer: Printer::new(Syntax::Att),
            text: String::new(),
        }
    }

    /// Length and effect of the instruction at the beginning of `bytes`, which is at `address`; the effect is
    /// `None` if there is no instruction. The length is at least 1 and at most 15.
    pub fn step(&mut self, bytes: &[u8], address: u64) -> (u8, Option<Flow>) {
        match self.machine {
            Machine::X86_64 => self.x86_64(bytes, address),
            Machine::AArch64 => match bytes.first_chunk() {
                Some(word) => (4, Some(aarch64(u32::from_le_bytes(*word), address))),
                None => (1, None),
            },
        }
    }

    fn x86_64(&mut self, bytes: &[u8], address: u64) -> (u8, Option<Flow>) {
        if bytes.first() == Some(&0xf0) {
            // A lock prefix is listed as an instruction of its own.
            return (1, Some(Flow::Next));
        }
        if let Some(insn) = X86_64::decode(bytes, address) {
            return (insn.len.clamp(1, 15), Some(insn.flow));
        }
        self.text.clear();
        match self.printer.print(bytes, address, &mut self.text) {
            Some(len) => (len.clamp(1, 15) as u8, Some(Flow::Next)),
            None => (1, None),
        }
    }
}

/// What a word does.
fn aarch64(word: u32, address: u64) -> Flow {
    // A signed number of words in bits `low`.. of the given width.
    let target = |low: u32, width: u32| {
        let shifted = (word >> low << (32 - width)) as i32 >> (32 - width);
        address.wrapping_add_signed(i64::from(shifted) * 4)
    };
    if word & 0xfc00_0000 == 0x1400_0000 {
        return Flow::Jump {
            target: target(0, 26),
        };
    }
    if word & 0xfc00_0000 == 0x9400_0000 {
        return Flow::Call {
            target: target(0, 26),
        };
    }
    if word & 0xfe00_0000 == 0x5400_0000 {
        return Flow::CondJump {
            cond: Cond(word & 15),
            target: target(5, 19),
        };
    }
    match word & 0x7e00_0000 {
        0x3400_0000 => {
            return Flow::ShortCond {
                target: target(5, 19),
            };
        }
        0x3600_0000 => {
            return Flow::ShortCond {
                target: target(5, 14),
            };
        }
        _ => {}
    }
    if word & 0xfe1f_0000 == 0xd61f_0000 {
        return match word >> 21 & 15 {
            0 | 8 => Flow::IndirectJump,
            1 | 9 => Flow::IndirectCall,
            2 | 4 => Flow::Return,
            _ => Flow::Next,
        };
    }
    Flow::Next
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_transfer_control_are_known() {
        let at = 0x1000;
        for (word, flow) in [
            (0x1400_0002, Flow::Jump { target: 0x1008 }),
            (0x17ff_ffff, Flow::Jump { target: 0xffc }),
            (0x9400_0001, Flow::Call { target: 0x1004 }),
            (
                0x5400_0041,
                Flow::CondJump {
                    cond: Cond(1),
                    target: 0x1008,
                },
            ),
            (0xb400_0040, Flow::ShortCond { target: 0x1008 }),
            (0x3707_ffe0, Flow::ShortCond { target: 0xffc }),
            (0xd61f_0200, Flow::IndirectJump),
            (0xd63f_0100, Flow::IndirectCall),
            (0xd73f_0a11, Flow::IndirectCall),
            (0xd65f_03c0, Flow::Return),
            (0xd65f_0bff, Flow::Return),
            (0xd503_201f, Flow::Next),
            (0xf940_0000, Flow::Next),
        ] {
            assert_eq!(aarch64(word, at), flow, "{word:#x}");
        }
    }

    #[test]
    fn every_decoded_length_is_between_1_and_15() {
        for machine in [Machine::X86_64, Machine::AArch64] {
            let mut decoder = Decoder::new(machine);
            arbtest::arbtest(|u| {
                let bytes: [u8; 17] = u.arbitrary()?;
                let cut = u.int_in_range(1..=17)?;
                let (len, _) = decoder.step(&bytes[..cut], 0x1000);
                assert!((1..=15).contains(&len));
                Ok(())
            })
            .budget_ms(100);
        }
    }
}
