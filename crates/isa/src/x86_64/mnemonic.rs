//! What instructions are called, for hashes that survive another build.
//!
//! The name is AT&T syntax's mnemonic with its size suffix, as LLVM's printer encodes it, for LLVM's tools
//! hash exactly this text: what the printer's template has before the first operand, without blanks.
//!
//! | instruction | name | why |
//! |---|---|---|
//! | `jmp *%rax`, `call *8(%rax)` | `jmpq*`, `callq*` | the star is in the template |
//! | `shl %cl, %eax` | `shll%cl,` | so is the count register |
//! | `cmovne …`, `sete …` | `cmov`, `set` | the condition is an operand |
//! | `lock cmpxchg …` | `lock cmpxchgl` | the prefix is an instruction of its own; a blank is between |
//! | `rep stos %rax, …` | `stosq%rax,` | this prefix is a flag, and the register in the template |
//!
//! In sqlite's 13,225 blocks that ran, the sets of names hash as LLVM's do in all but some tens.

use super::text::{Printer, Syntax};
use crate::Insn;

/// Decodes one instruction after the other, up to what is none, and says what each is called.
pub fn sweep(bytes: &[u8], addr: u64, mut visit: impl FnMut(&Insn, &str)) {
    let mut printer = Printer::new(Syntax::Att);
    let (mut text, mut name) = (String::new(), String::new());
    super::decode::sweep(bytes, addr, |insn| {
        name.clear();
        let at = insn.addr.wrapping_sub(addr) as usize;
        let mut own = bytes
            .get(at..at + usize::from(insn.len))
            .unwrap_or_default();
        let mut place = insn.addr;
        while !own.is_empty() {
            text.clear();
            let Some(length) = printer.print(own, place, &mut text) else {
                break;
            };
            name_of(&text, &mut name);
            own = own.get(length..).unwrap_or_default();
            place = place.wrapping_add(length as u64);
        }
        visit(insn, &name);
        true
    });
}

/// Appends the name in a printed instruction.
fn name_of(text: &str, name: &mut String) {
    // Prefixes are fields of their own, each followed by an empty one.
    let mut fields = text.split('\t').skip(1).peekable();
    while let Some(field) = fields.next() {
        let prefix = fields.next_if_eq(&"").is_some();
        if prefix && field != "lock" {
            continue;
        }
        if !name.is_empty() {
            name.push(' ');
        }
        if field.starts_with("cmov") {
            name.push_str("cmov");
        } else if field.starts_with("set") {
            name.push_str("set");
        } else {
            name.push_str(field);
        }
        if !prefix {
            break;
        }
    }
    let operands = fields.next().unwrap_or_default();
    if operands.starts_with('%')
        && ["cvtsi2s", "vcvtsi2s"]
            .iter()
            .any(|start| name.starts_with(start))
    {
        // The size is known from the register.
        name.truncate(name.trim_end_matches(['l', 'q']).len());
    }
    if operands.starts_with('*') {
        name.push('*');
    } else if operands.starts_with("%cl, ") && is_shift(name) {
        name.push_str("%cl,");
    } else if name.starts_with("stos")
        && let Some((register, _)) = operands.split_once(", ")
    {
        name.push_str(register);
        name.push(',');
    }
}

fn is_shift(name: &str) -> bool {
    ["sh", "sa", "ro", "rc"]
        .iter()
        .any(|start| name.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_llvm_hashes() {
        let cases: [(&[u8], &str); 11] = [
            (&[0x89, 0xf8], "movl"),
            (&[0xff, 0xe0], "jmpq*"),
            (&[0xff, 0x15, 0, 0, 0, 0], "callq*"),
            (&[0xf3, 0x48, 0xab], "stosq%rax,"),
            (&[0x0f, 0x95, 0xc3], "set"),
            (&[0x0f, 0x44, 0xc1], "cmov"),
            (&[0xf2, 0x0f, 0x2a, 0xc0], "cvtsi2sd"),
            (&[0xf0, 0x0f, 0xb1, 0x13], "lock cmpxchgl"),
            (&[0xd3, 0xe0], "shll%cl,"),
            (&[0xc3], "retq"),
            (&[0x75, 0x15], "jne"),
        ];
        for (bytes, name) in cases {
            let mut seen = Vec::new();
            sweep(bytes, 0x1000, |insn, name| {
                seen.push((insn.len, name.to_owned()))
            });
            assert_eq!(seen, [(bytes.len() as u8, name.to_owned())]);
        }
    }

    #[test]
    fn names_end_where_the_code_does() {
        let mut count = 0;
        sweep(&[0x90, 0x90, 0xe8, 1], 0, |_, _| count += 1);
        assert_eq!(count, 2);
    }
}
