//! Loads of constants as instructions with immediates.
//!
//! | loads | becomes | if |
//! |---|---|---|
//! | `mov r32, [m]`, `movzx r, [m8]`, `movzx r, [m16]` | `mov r32, imm32` | |
//! | `mov r64, [m]`, `movsx r, [m]`, `movsxd r64, [m32]` | `mov r32, imm32` | the value has no bit above 31 |
//! | | `mov r64, imm32` | it is a number of 32 bits with its sign |
//! | `add`, `or`, `adc`, `sbb`, `and`, `sub`, `xor`, `cmp` `r, [m]` | the same with `imm8` or `imm32` | likewise |
//!
//! None is longer than what it represents. Only operands relative to the program counter, and no prefix but REX.

use crate::{Code, Decode, Flow, Insn};

use super::X86_64;

/// A load, read from its bytes.
struct Load {
    /// 0x8b for a move, or the operation that takes a register and memory.
    opcode: u8,
    /// The register, 0 to 15.
    register: u8,
    /// Of 64 bits.
    wide: bool,
    /// How many bytes are loaded, and whether they have a sign.
    from: (u64, bool),
}

fn read(bytes: &[u8]) -> Option<Load> {
    let (rex, rest) = match *bytes.first()? {
        rex @ 0x40..=0x4f => (rex, &bytes[1..]),
        _ => (0, bytes),
    };
    let wide = rex & 8 != 0;
    let whole = if wide { 8 } else { 4 };
    let (opcode, from, modrm) = match *rest {
        [
            opcode @ (0x03 | 0x0b | 0x13 | 0x1b | 0x23 | 0x2b | 0x33 | 0x3b | 0x8b),
            modrm,
            ..,
        ] => (opcode, (whole, false), modrm),
        [0x63, modrm, ..] if wide => (0x8b, (4, true), modrm),
        [0x0f, 0xb6, modrm, ..] => (0x8b, (1, false), modrm),
        [0x0f, 0xb7, modrm, ..] => (0x8b, (2, false), modrm),
        [0x0f, 0xbe, modrm, ..] => (0x8b, (1, true), modrm),
        [0x0f, 0xbf, modrm, ..] => (0x8b, (2, true), modrm),
        _ => return None,
    };
    let register = modrm >> 3 & 7 | (rex & 4) << 1;
    (modrm & 0xc7 == 5).then_some(Load {
        opcode,
        register,
        wide,
        from,
    })
}

impl Load {
    /// The number in memory as the instruction takes it, in 64 bits.
    fn value(&self, memory: &[u8]) -> Option<u64> {
        let (len, signed) = self.from;
        let mut all = [0u8; 8];
        all.get_mut(..len as usize)?.copy_from_slice(memory);
        let unsigned = u64::from_le_bytes(all);
        let unused = 64 - 8 * len as u32;
        let value = if signed {
            ((unsigned << unused) as i64 >> unused) as u64
        } else {
            unsigned
        };
        Some(if self.wide {
            value
        } else {
            value & 0xffff_ffff
        })
    }

    /// The same with an immediate.
    fn with(&self, value: u64) -> Option<Vec<u8>> {
        let low = self.register & 7;
        let extended = u8::from(self.register > 7);
        let signed = if self.wide {
            i32::try_from(value as i64).ok()
        } else {
            Some(value as u32 as i32)
        };
        let mut out = Vec::new();
        if self.opcode == 0x8b {
            match (u32::try_from(value), signed) {
                (Ok(number), _) => {
                    out.extend((extended != 0).then_some(0x41));
                    out.push(0xb8 | low);
                    out.extend_from_slice(&number.to_le_bytes());
                }
                (_, Some(number)) => {
                    out.extend_from_slice(&[0x48 | extended, 0xc7, 0xc0 | low]);
                    out.extend_from_slice(&number.to_le_bytes());
                }
                _ => return None,
            }
            return Some(out);
        }
        let rex = u8::from(self.wide) << 3 | extended;
        out.extend((rex != 0).then_some(0x40 | rex));
        let modrm = 0xc0 | self.opcode & 0x38 | low;
        let number = signed?;
        match i8::try_from(number) {
            Ok(short) => out.extend_from_slice(&[0x83, modrm, short as u8]),
            Err(_) => {
                out.extend_from_slice(&[0x81, modrm]);
                out.extend_from_slice(&number.to_le_bytes());
            }
        }
        Some(out)
    }
}

/// Finds the loads of constants in straight code; see [`crate::Encode::fold_constants`].
pub fn fold<'c, T>(
    bytes: &[u8],
    addr: u64,
    constant: impl Fn(u64, u64) -> Option<&'c [u8]>,
    mut found: impl FnMut(&Insn, Option<Code<T>>),
) {
    X86_64::sweep(bytes, addr, |insn| {
        let from = (insn.addr - addr) as usize;
        if let (Flow::Next, Some(field)) = (insn.flow, insn.field)
            && !insn.traits.forms_address
            && let Some(original) = bytes.get(from..from + usize::from(insn.len))
            && let Some(load) = read(original)
            && let Some(memory) = constant(field.target, load.from.0)
        {
            let short = |new: &Vec<u8>| new.len() <= original.len();
            let new = load.value(memory).and_then(|v| load.with(v)).filter(short);
            found(
                insn,
                new.map(|bytes| Code {
                    bytes,
                    fixups: Vec::new(),
                    stack: Vec::new(),
                }),
            );
        }
        true
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The instruction with an immediate that represents one whose operand is at the end of it.
    fn folded(original: &[u8], memory: &[u8]) -> Option<Vec<u8>> {
        let mut out = None;
        let code = |addr: u64, len: u64| {
            (addr == 0x1000 + original.len() as u64).then(|| &memory[..len as usize])
        };
        fold::<()>(original, 0x1000, code, |_, new| out = new.map(|c| c.bytes));
        out
    }

    #[test]
    fn moves_are_as_short_as_they_can_be() {
        let eight = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
        let cases: [(&[u8], &[u8], Option<&[u8]>); 8] = [
            (
                &[0x8b, 0x05, 0, 0, 0, 0],
                &[1, 2, 3, 4],
                Some(&[0xb8, 1, 2, 3, 4]),
            ),
            (
                &[0x44, 0x8b, 0x0d, 0, 0, 0, 0],
                &[1, 2, 3, 4],
                Some(&[0x41, 0xb9, 1, 2, 3, 4]),
            ),
            (
                &[0x4c, 0x8b, 0x05, 0, 0, 0, 0],
                &eight,
                Some(&[0x49, 0xc7, 0xc0, 255, 255, 255, 255]),
            ),
            (
                &[0x48, 0x8b, 0x05, 0, 0, 0, 0],
                &[0, 0, 0, 0, 1, 0, 0, 0],
                None,
            ),
            (
                &[0x48, 0x8b, 0x05, 0, 0, 0, 0],
                &[0, 0, 0, 0x80, 0, 0, 0, 0],
                Some(&[0xb8, 0, 0, 0, 0x80]),
            ),
            (
                &[0x0f, 0xb7, 0x15, 0, 0, 0, 0],
                &[0xfe, 0xff],
                Some(&[0xba, 0xfe, 0xff, 0, 0]),
            ),
            (
                &[0x0f, 0xbe, 0x15, 0, 0, 0, 0],
                &[0xfe],
                Some(&[0xba, 0xfe, 0xff, 0xff, 0xff]),
            ),
            (
                &[0x48, 0x63, 0x15, 0, 0, 0, 0],
                &[0xfe, 255, 255, 255],
                Some(&[0x48, 0xc7, 0xc2, 0xfe, 255, 255, 255]),
            ),
        ];
        for (original, memory, expected) in cases {
            assert_eq!(
                folded(original, memory).as_deref(),
                expected,
                "{original:02x?}"
            );
        }
    }

    #[test]
    fn calculations_take_immediates() {
        // cmp ecx, [m]; sub r9, [m]; and rax with more bits than fit
        assert_eq!(
            folded(&[0x3b, 0x0d, 0, 0, 0, 0], &[7, 0, 0, 0]),
            Some(vec![0x83, 0xf9, 7])
        );
        let nine = folded(&[0x4c, 0x2b, 0x0d, 0, 0, 0, 0], &[0, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(nine, Some(vec![0x49, 0x81, 0xe9, 0, 1, 0, 0]));
        let wide = [0, 0, 0, 0x80, 0, 0, 0, 0];
        assert_eq!(folded(&[0x48, 0x23, 0x05, 0, 0, 0, 0], &wide), None);
    }

    #[test]
    fn other_operands_and_prefixes_are_left_alone() {
        // a register, a segment, 16 bits
        for original in [
            &[0x8b, 0x00][..],
            &[0x64, 0x8b, 0x05, 0, 0, 0, 0],
            &[0x66, 0x8b, 0x05, 0, 0, 0, 0],
        ] {
            assert_eq!(folded(original, &[1, 2, 3, 4]), None, "{original:02x?}");
        }
    }
}
