//! Promotion of indirect calls: the operand is compared with functions that are then called directly.
//!
//! | operand | program at a fixed address | position-independent |
//! |---|---|---|
//! | register | – | – |
//! | memory | `mov r11, OPERAND` | `mov r11, OPERAND; mov [rsp-8], r11` |
//!
//! | for each function | program at a fixed address | position-independent |
//! |---|---|---|
//! | compare | `cmp REG, F`, or `cmp r11, F` | `lea r11, [F]; cmp REG, r11`, or `cmp [rsp-8], r11` |
//! | then | `jne next; call F; jmp end` | the same |
//!
//! After the last one is the call that was there, or `call r11` or `call [rsp-8]` if its operand was read. The word
//! under the stack pointer is that of the return address, which every call overwrites; nothing below the stack pointer
//! holds anything then. `r11` passes nothing at calls (see [`super::site`]), nor do the flags.

use super::branch::{put_call, put_field};
use super::site::Operand;
use crate::{Code, FixupKind, Insn};

const R11: u8 = 11;
const RSP: u8 = 4;
/// `jmp` with a displacement of one byte.
const SHORT_JUMP: [u8; 2] = [0xeb, 0];

/// Appends the code; see [`crate::Encode::put_promoted_call`].
pub fn put_promoted_call<T: Copy>(
    out: &mut Code<T>,
    original: &[u8],
    insn: &Insn,
    fixed: bool,
    functions: &[(T, T)],
    slot: impl Fn(u64) -> T,
) -> bool {
    let Some(operand) = Operand::parse(original, insn).filter(|o| o.called) else {
        return false;
    };
    let compared = match operand.register {
        Some(R11 | RSP) => return false,
        Some(register) => Some(register),
        None => {
            operand.put_read(out, &slot);
            if !fixed {
                out.bytes.extend_from_slice(&[0x4c, 0x89, 0x5c, 0x24, 0xf8]); // mov [rsp-8],r11
            }
            fixed.then_some(R11)
        }
    };
    let mut to_end = Vec::new();
    for (value, callee) in functions {
        match (fixed, compared) {
            (true, Some(register)) => {
                out.bytes
                    .extend_from_slice(&[0x48 | register >> 3, 0x81, 0xf8 | register & 7]); // cmp REG,F
                put_field(out, FixupKind::Abs32S, *value);
            }
            _ => {
                out.bytes.extend_from_slice(&[0x4c, 0x8d, 0x1d]); // lea r11,[F]
                put_field(out, FixupKind::Rel32 { trail: 0 }, *value);
                match compared {
                    Some(register) => {
                        let rex = 0x4c | register >> 3;
                        out.bytes
                            .extend_from_slice(&[rex, 0x39, 0xd8 | register & 7]); // cmp REG,r11
                    }
                    None => out.bytes.extend_from_slice(&[0x4c, 0x39, 0x5c, 0x24, 0xf8]), // cmp [rsp-8],r11
                }
            }
        }
        out.bytes
            .extend_from_slice(&[0x75, 5 + SHORT_JUMP.len() as u8]); // jne
        put_call(out, *callee);
        out.bytes.extend_from_slice(&SHORT_JUMP);
        to_end.push(out.bytes.len());
    }
    operand.put_call_again(out, compared, original);
    // As many functions as reach: more are not asked for.
    let end = out.bytes.len();
    to_end.iter().all(|from| {
        let distance = i8::try_from(end - from);
        out.bytes[from - 1] = distance.unwrap_or(0) as u8;
        distance.is_ok()
    })
}

impl Operand<'_> {
    /// Appends `mov r11, OPERAND` for an operand in memory.
    fn put_read<T>(&self, out: &mut Code<T>, slot: &impl Fn(u64) -> T) {
        const REX_WR: u8 = 0x4c;
        out.bytes.extend_from_slice(&self.of_memory);
        out.bytes.extend_from_slice(&[REX_WR | self.rex, 0x8b]);
        // The opcode extension gives way to the number of r11 (its high bit is REX.R).
        out.bytes.push(self.modrm[0] & 0xc7 | (R11 & 7) << 3);
        match self.relative {
            Some(address) => put_field(out, FixupKind::Rel32 { trail: 0 }, slot(address)),
            None => out.bytes.extend_from_slice(&self.modrm[1..]),
        }
    }

    /// Appends the call for whatever was not compared.
    fn put_call_again<T>(&self, out: &mut Code<T>, compared: Option<u8>, original: &[u8]) {
        if self.register.is_some() {
            out.bytes.extend_from_slice(original);
            return;
        }
        out.bytes.extend_from_slice(&self.of_branch);
        match compared {
            Some(_) => out.bytes.extend_from_slice(&[0x41, 0xff, 0xd3]), // call r11
            None => out.bytes.extend_from_slice(&[0xff, 0x54, 0x24, 0xf8]), // call [rsp-8]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Decode;
    use crate::x86_64::X86_64;
    use iced_x86::{Decoder, DecoderOptions, Formatter, IntelFormatter};

    /// The code for a call of bytes at 0x1000 that goes to functions `F1`, `F2` …, as text; addresses are left at 0.
    fn promoted(original: &[u8], fixed: bool, functions: usize) -> Option<Vec<String>> {
        let insn = X86_64::decode(original, 0x1000)?;
        let mut out: Code<u64> = Code::default();
        let list: Vec<(u64, u64)> = (0..functions as u64).map(|i| (i, i)).collect();
        if !put_promoted_call(&mut out, original, &insn, fixed, &list, |at| at) {
            return None;
        }
        let mut formatter = IntelFormatter::new();
        let text = |insn| {
            let mut text = String::new();
            formatter.format(&insn, &mut text);
            text
        };
        let decoder = Decoder::new(64, &out.bytes, DecoderOptions::NONE);
        Some(decoder.into_iter().map(text).collect())
    }

    #[test]
    fn registers_are_compared_with_addresses() {
        let code = promoted(&[0x41, 0xff, 0xd4], false, 1).expect("call r12");
        let [lea, compare, jne, call, jmp, last] = &code[..] else {
            panic!("{code:?}");
        };
        assert!(
            lea.starts_with("lea r11,[") && call.starts_with("call "),
            "{code:?}"
        );
        assert_eq!(compare, "cmp r12,r11");
        assert_eq!(last, "call r12");
        assert!(jne.starts_with("jne short 0000000000000013"), "{jne}");
        assert!(jmp.starts_with("jmp short 0000000000000016"), "{jmp}");
    }

    #[test]
    fn numbers_are_compared_in_programs_at_fixed_addresses() {
        let code = promoted(&[0xff, 0xd0], true, 2).expect("call rax");
        assert_eq!(code[0], "cmp rax,0");
        assert_eq!(code[4], "cmp rax,0");
        assert_eq!(code.last().map(String::as_str), Some("call rax"));
        assert_eq!(code.len(), 9);
    }

    #[test]
    fn an_operand_in_memory_is_read_once() {
        // call [rax+rbx*8+16]
        let original = [0xff, 0x54, 0xd8, 0x10];
        let code = promoted(&original, false, 2).expect("it is a call");
        assert_eq!(code[..2], ["mov r11,[rax+rbx*8+10h]", "mov [rsp-8],r11"]);
        assert_eq!(code[3], "cmp [rsp-8],r11");
        assert_eq!(
            code.last().map(String::as_str),
            Some("call qword ptr [rsp-8]")
        );
        let code = promoted(&original, true, 1).expect("it is a call");
        assert_eq!(code[1], "cmp r11,0");
        assert_eq!(code.last().map(String::as_str), Some("call r11"));
    }

    #[test]
    fn what_holds_the_address_itself_is_not_promoted() {
        assert_eq!(promoted(&[0x41, 0xff, 0xd3], false, 1), None, "call r11");
        assert_eq!(promoted(&[0xff, 0xd4], false, 1), None, "call rsp");
        assert_eq!(promoted(&[0xff, 0xe0], false, 1), None, "jmp rax");
    }
}
