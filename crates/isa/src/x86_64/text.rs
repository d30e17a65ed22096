//! Instructions as text, in AT&T or Intel syntax, as LLVM's disassembler encodes them.
//!
//! The text begins with a tab, as assembly does: tab, mnemonic, tab, operands. Targets of branches are
//! absolute and hexadecimal; other numbers are decimal. Displacements, 8-bit and sign-extended immediates are
//! signed; 16-bit and 32-bit immediates of operations of that width are not, nor are those of vector
//! instructions. A leading `lock` is an instruction of its own.
//!
//! In a static program of 145,000 lines 32 differ from LLVM's.
//!
//! Formatting takes ten times as long as decoding, and most instructions of a program have occurred before,
//! byte for byte. [`Memo`] keeps their texts: a table with one place per hash, whose key is the instruction's
//! bytes. That is all a text depends on, but for the target of a relative branch, which is left out of the
//! key and put after the text that is kept.
//!
//! iced's formatter does the work; where its spelling differs from LLVM's, the difference is evened out here
//! as far as it is common in compiled code. Known to remain: `addr32` in front of a branch is dropped, `fxch`
//! has no operand, `rdrand` and `rdseed` no suffix, `cvtsi2sd` has one, the operands of `xchg` are the other
//! way round, and what only one of the two decodes.

use crate::digits;
use iced_x86::{
    Code, ConditionCode, Decoder, DecoderOptions, Formatter, FormatterOutput, FormatterTextKind,
    GasFormatter, Instruction, IntelFormatter, MemorySizeOptions, Mnemonic, NumberBase, NumberKind,
    OpKind, Register,
};

/// A way of writing x86 assembly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Syntax {
    /// `movl %edi, %eax`
    #[default]
    Att,
    /// `mov eax, edi`
    Intel,
}

/// Writes instructions.
pub struct Printer {
    formatter: Box<dyn Formatter>,
    syntax: Syntax,
    text: Text,
}

impl Printer {
    /// For a syntax.
    pub fn new(syntax: Syntax) -> Printer {
        let mut formatter: Box<dyn Formatter> = match syntax {
            Syntax::Att => Box::new(GasFormatter::new()),
            Syntax::Intel => Box::new(IntelFormatter::new()),
        };
        let options = formatter.options_mut();
        options.set_gas_show_mnemonic_size_suffix(true);
        options.set_space_after_operand_separator(true);
        options.set_space_between_memory_add_operators(syntax == Syntax::Intel);
        options.set_scale_before_index(syntax == Syntax::Intel);
        options.set_number_base(NumberBase::Decimal);
        options.set_signed_memory_displacements(true);
        options.set_rip_relative_addresses(true);
        options.set_show_branch_size(false);
        options.set_memory_size_options(match syntax {
            Syntax::Att => MemorySizeOptions::Default,
            Syntax::Intel => MemorySizeOptions::Always,
        });
        Printer {
            formatter,
            syntax,
            text: Text::default(),
        }
    }

    /// Appends the instruction at the start of `bytes`, which is at `addr`, and returns its length. `None`,
    /// and nothing appended, if the bytes are no instruction.
    pub fn print(&mut self, bytes: &[u8], addr: u64, out: &mut String) -> Option<usize> {
        // LLVM takes this prefix for an instruction of its own.
        if let [0xf0, _, ..] = bytes {
            out.push_str("\tlock");
            return Some(1);
        }
        let mut decoder = Decoder::with_ip(64, bytes, addr, DecoderOptions::NONE);
        if !decoder.can_decode() {
            return None;
        }
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            return None;
        }
        self.spell(&instruction, out);
        Some(instruction.len())
    }

    /// Appends an instruction.
    fn spell(&mut self, instruction: &Instruction, out: &mut String) {
        self.text.prefixes.clear();
        self.text.mnemonic.clear();
        self.text.operands.clear();
        self.formatter.format(instruction, &mut self.text);
        self.text.finish(instruction, self.syntax, out);
    }
}

/// Bytes of a text that [`Memo`] keeps.
const KEPT: usize = 47;
/// Places of [`Memo`], a power of two: half a megabyte, which fits a processor's second cache.
const PLACES: usize = 1 << 13;

/// A text that is kept.
#[derive(Clone)]
#[repr(align(64))]
struct Place {
    /// The instruction's bytes, without those of a branch's target; in the highest byte its length.
    key: u128,
    /// Length of the text.
    len: u8,
    text: [u8; KEPT],
}

/// Writes instructions, and remembers the texts of those that it has written.
pub struct Memo {
    printer: Printer,
    places: Box<[Place]>,
    text: String,
}

impl Memo {
    /// For a syntax.
    pub fn new(syntax: Syntax) -> Memo {
        // No instruction has the key 0: its length would be 0.
        let empty = Place {
            key: 0,
            len: 0,
            text: [0; KEPT],
        };
        Memo {
            printer: Printer::new(syntax),
            places: vec![empty; PLACES].into(),
            text: String::new(),
        }
    }

    /// As [`Printer::print`], with the same text.
    pub fn print(&mut self, bytes: &[u8], addr: u64, out: &mut Vec<u8>) -> Option<usize> {
        if let [0xf0, _, ..] = bytes {
            out.extend_from_slice(b"\tlock");
            return Some(1);
        }
        let mut decoder = Decoder::with_ip(64, bytes, addr, DecoderOptions::NONE);
        if !decoder.can_decode() {
            return None;
        }
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            return None;
        }
        let len = instruction.len();
        let branch = matches!(
            instruction.op0_kind(),
            OpKind::NearBranch64 | OpKind::NearBranch32 | OpKind::NearBranch16
        );
        let own = if branch {
            decoder
                .get_constant_offsets(&instruction)
                .immediate_offset()
        } else {
            len
        };
        let mut padded = [0; 16];
        padded[..own].copy_from_slice(bytes.get(..own)?);
        padded[15] = len as u8;
        let key = u128::from_le_bytes(padded);
        let mixed =
            (key as u64 ^ ((key >> 64) as u64).rotate_left(29)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let place = &mut self.places[(mixed >> 32) as usize % PLACES];
        if place.key != key {
            self.text.clear();
            self.printer.spell(&instruction, &mut self.text);
            if branch {
                // The target is the last operand: what is before it is kept.
                self.text
                    .truncate(self.text.rfind("0x").unwrap_or(self.text.len()));
            }
            if let Some(kept) = place.text.get_mut(..self.text.len()) {
                kept.copy_from_slice(self.text.as_bytes());
                (place.key, place.len) = (key, self.text.len() as u8);
            } else {
                out.extend_from_slice(self.text.as_bytes());
                if branch {
                    put_address(out, instruction.near_branch_target());
                }
                return Some(len);
            }
        }
        out.extend_from_slice(place.text.get(..usize::from(place.len)).unwrap_or_default());
        if branch {
            put_address(out, instruction.near_branch_target());
        }
        Some(len)
    }
}

fn put_address(out: &mut Vec<u8>, address: u64) {
    out.extend_from_slice(b"0x");
    digits::hex(out, address);
}

/// Parts of an instruction's text.
#[derive(Default)]
struct Text {
    prefixes: Vec<String>,
    mnemonic: String,
    operands: String,
}

impl Text {
    fn finish(&self, instruction: &Instruction, syntax: Syntax, out: &mut String) {
        for prefix in self
            .prefixes
            .iter()
            .filter(|prefix| *prefix != "notrack" && *prefix != "bnd")
        {
            out.push('\t');
            out.push_str(prefix);
            out.push('\t');
        }
        let mut mnemonic = self.mnemonic.as_str();
        let mut operands = self.operands.trim_start();
        // Shifts by one that encode no count.
        if instruction.op_count() == 2 && is_shift_by_one(instruction) {
            operands = match syntax {
                Syntax::Att => operands.strip_prefix("$1, "),
                Syntax::Intel => operands.strip_suffix(", 1"),
            }
            .unwrap_or(operands);
        }
        // Segments that make no difference in 64-bit code: long padding has them.
        let segment = match instruction.segment_prefix() {
            Register::CS => "cs",
            Register::DS => "ds",
            Register::ES => "es",
            Register::SS => "ss",
            _ => "",
        };
        let (segmented, spelt);
        if !segment.is_empty()
            && instruction.mnemonic() == Mnemonic::Nop
            && instruction.op_count() == 1
        {
            segmented = match syntax {
                Syntax::Att => format!("%{segment}:{operands}"),
                Syntax::Intel => operands.replacen('[', &format!("{segment}:["), 1),
            };
            operands = &segmented;
        }
        if matches!(instruction.code(), Code::Nopw | Code::Nopd | Code::Nopq) {
            (mnemonic, operands) = ("nop", "");
        }
        if syntax == Syntax::Att {
            mnemonic = att_mnemonic(mnemonic, instruction);
            if instruction.mnemonic() == Mnemonic::Imul
                && instruction.op_count() == 3
                && operands.split(", ").count() == 2
            {
                // Multiplication in place, where one register represents two.
                let twice = operands
                    .split_once(", ")
                    .map_or("", |(_, register)| register);
                spelt = format!("{operands}, {twice}");
                operands = &spelt;
            } else if instruction.is_string_instruction()
                && instruction.op_kinds().any(writes_through_rdi)
            {
                spelt = operands.replace("(%rdi)", "%es:(%rdi)");
                operands = &spelt;
            } else if operands.contains("{%k") {
                spelt = operands.replace("{%k", " {%k").replace("}{z}", "} {z}");
                operands = &spelt;
            }
        }
        out.push('\t');
        out.push_str(mnemonic);
        if !operands.is_empty() {
            out.push('\t');
            out.push_str(operands);
        }
    }
}

/// Whether an operand of a string instruction is in the segment that cannot be overridden.
fn writes_through_rdi(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::MemoryESRDI | OpKind::MemoryESEDI | OpKind::MemoryESDI
    )
}

/// Whether an instruction is a shift or rotation whose opcode represents a count of one.
fn is_shift_by_one(instruction: &Instruction) -> bool {
    use Code::*;
    matches!(
        instruction.code(),
        Rol_rm8_1
            | Rol_rm16_1
            | Rol_rm32_1
            | Rol_rm64_1
            | Ror_rm8_1
            | Ror_rm16_1
            | Ror_rm32_1
            | Ror_rm64_1
            | Rcl_rm8_1
            | Rcl_rm16_1
            | Rcl_rm32_1
            | Rcl_rm64_1
            | Rcr_rm8_1
            | Rcr_rm16_1
            | Rcr_rm32_1
            | Rcr_rm64_1
            | Shl_rm8_1
            | Shl_rm16_1
            | Shl_rm32_1
            | Shl_rm64_1
            | Shr_rm8_1
            | Shr_rm16_1
            | Shr_rm32_1
            | Shr_rm64_1
            | Sal_rm8_1
            | Sal_rm16_1
            | Sal_rm32_1
            | Sal_rm64_1
            | Sar_rm8_1
            | Sar_rm16_1
            | Sar_rm32_1
            | Sar_rm64_1
    )
}

/// LLVM's name for what binutils calls by another.
fn att_mnemonic<'m>(mnemonic: &'m str, instruction: &Instruction) -> &'m str {
    let direct = matches!(
        instruction.op0_kind(),
        OpKind::NearBranch64 | OpKind::NearBranch32 | OpKind::NearBranch16
    );
    let condition =
        if instruction.condition_code() != ConditionCode::None && mnemonic.starts_with("set") {
            mnemonic.strip_suffix('b').filter(|rest| *rest != "set")
        } else {
            None
        };
    // `setb` is a condition of one letter, `setbb` the same with its size.
    let condition =
        condition.filter(|_| instruction.mnemonic() != Mnemonic::Setb || mnemonic == "setbb");
    match mnemonic {
        "call" => "callq",
        "ret" => "retq",
        "leaveq" => "leave",
        "fwait" => "wait",
        "fucomip" => "fucompi",
        "fcomip" => "fcompi",
        "fnstcww" => "fnstcw",
        "fnstenvl" => "fnstenv",
        "fldenvl" => "fldenv",
        // A size after a condition says nothing: it is always a byte.
        _ if condition.is_some() => condition.unwrap_or(mnemonic),
        "jmpq" if direct => "jmp",
        "jmp" if !direct => "jmpq",
        other => other,
    }
}

/// Whether a register of an instruction is a vector or mask register: its immediate then selects, and has no sign.
fn has_vector(instruction: &Instruction) -> bool {
    (0..instruction.op_count()).any(|operand| {
        let register = instruction.op_register(operand);
        register.is_vector_register() || register.is_k() || register.is_mm()
    })
}

impl FormatterOutput for Text {
    fn write(&mut self, text: &str, kind: FormatterTextKind) {
        match kind {
            FormatterTextKind::Mnemonic => self.mnemonic.push_str(text),
            FormatterTextKind::Prefix => self.prefixes.push(text.to_owned()),
            // Blanks between prefixes and mnemonic are not part of either.
            _ if self.mnemonic.is_empty() => {}
            _ => self.operands.push_str(text),
        }
    }

    fn write_number(
        &mut self,
        instruction: &Instruction,
        _: u32,
        instruction_operand: Option<u32>,
        text: &str,
        value: u64,
        _: NumberKind,
        kind: FormatterTextKind,
    ) {
        let out = &mut self.operands;
        let kind_of = instruction_operand.map(|number| instruction.op_kind(number));
        match kind_of {
            Some(OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64) => {
                put_target(out, value)
            }
            Some(OpKind::Immediate8 | OpKind::Immediate8_2nd) if has_vector(instruction) => {
                digits::put(out, u64::from(value as u8))
            }
            Some(OpKind::Immediate8 | OpKind::Immediate8_2nd) => {
                digits::put_signed(out, i64::from(value as i8))
            }
            Some(OpKind::Immediate16) => digits::put(out, u64::from(value as u16)),
            // An absolute address, or an offset in a segment.
            Some(OpKind::Memory)
                if instruction.memory_base() == Register::None
                    && instruction.memory_index() == Register::None =>
            {
                digits::put_signed(out, instruction.memory_displacement64() as i64)
            }
            Some(OpKind::Immediate32) => digits::put(out, u64::from(value as u32)),
            Some(OpKind::Immediate8to16) => digits::put_signed(out, i64::from(value as i16)),
            Some(OpKind::Immediate8to32) => digits::put_signed(out, i64::from(value as i32)),
            Some(OpKind::Immediate8to64 | OpKind::Immediate32to64 | OpKind::Immediate64) => {
                digits::put_signed(out, value as i64)
            }
            _ if kind == FormatterTextKind::LabelAddress
                || kind == FormatterTextKind::FunctionAddress =>
            {
                put_target(out, value)
            }
            _ => out.push_str(text),
        }
    }
}

fn put_target(out: &mut String, address: u64) {
    out.push_str("0x");
    digits::hex(out, address);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(bytes: &[u8]) -> [String; 2] {
        [Syntax::Att, Syntax::Intel].map(|syntax| {
            let mut text = String::new();
            assert_eq!(
                Printer::new(syntax).print(bytes, 0x201660, &mut text),
                Some(bytes.len())
            );
            text
        })
    }

    #[test]
    fn instructions_are_spelt_as_llvm_spells_them() {
        let cases: [(&[u8], &str, &str); 11] = [
            (&[0x89, 0xf8], "\tmovl\t%edi, %eax", "\tmov\teax, edi"),
            (
                &[0x8d, 0x47, 0x01],
                "\tleal\t1(%rdi), %eax",
                "\tlea\teax, [rdi + 1]",
            ),
            (&[0x75, 0x15], "\tjne\t0x201677", "\tjne\t0x201677"),
            (&[0xe8, 0, 1, 0, 0], "\tcallq\t0x201765", "\tcall\t0x201765"),
            (&[0xc3], "\tretq", "\tret"),
            (&[0xff, 0xd0], "\tcallq\t*%rax", "\tcall\trax"),
            (&[0xff, 0xe0], "\tjmpq\t*%rax", "\tjmp\trax"),
            (&[0x83, 0xe4, 0xf0], "\tandl\t$-16, %esp", "\tand\tesp, -16"),
            (
                &[0x69, 0xc7, 0xab, 0xaa, 0xaa, 0xaa],
                "\timull\t$2863311531, %edi, %eax",
                "\timul\teax, edi, 2863311531",
            ),
            (
                &[0x8b, 0x15, 0x75, 2, 0, 0],
                "\tmovl\t629(%rip), %edx",
                "\tmov\tedx, dword ptr [rip + 629]",
            ),
            (
                &[0x8d, 0x04, 0x39],
                "\tleal\t(%rcx,%rdi), %eax",
                "\tlea\teax, [rcx + rdi]",
            ),
        ];
        for (bytes, att, intel) in cases {
            assert_eq!(both(bytes), [att, intel]);
        }
    }

    #[test]
    fn operands_that_llvm_leaves_out_or_writes_out_are_evened_out() {
        let cases: [(&[u8], &str); 9] = [
            (&[0x48, 0xd1, 0xfe], "\tsarq\t%rsi"),
            (&[0x0f, 0x95, 0xc3], "\tsetne\t%bl"),
            (&[0x0f, 0x92, 0xc1], "\tsetb\t%cl"),
            (&[0x48, 0x6b, 0xc0, 0x64], "\timulq\t$100, %rax, %rax"),
            (&[0xf3, 0x48, 0xab], "\trep\t\tstosq\t%rax, %es:(%rdi)"),
            (&[0x66, 0x90], "\tnop"),
            (
                &[0x2e, 0x66, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0],
                "\tnopw\t%cs:(%rax,%rax)",
            ),
            (
                &[0x66, 0x0f, 0x70, 0xc0, 0xe1],
                "\tpshufd\t$225, %xmm0, %xmm0",
            ),
            (
                &[0x64, 0x48, 0x8b, 0x04, 0x25, 0xc0, 0xff, 0xff, 0xff],
                "\tmovq\t%fs:-64, %rax",
            ),
        ];
        for (bytes, att) in cases {
            assert_eq!(both(bytes)[0], att);
        }
        let mut text = String::new();
        assert_eq!(
            Printer::new(Syntax::Att).print(&[0xf0, 0x0f, 0xb1, 0x13], 0, &mut text),
            Some(1)
        );
        assert_eq!(text, "\tlock");
    }

    #[test]
    fn what_is_no_instruction_is_not_printed() {
        for bytes in [&[][..], &[0x06], &[0x48], &[0xe8, 0, 0]] {
            let mut text = String::new();
            assert_eq!(
                Printer::new(Syntax::Att).print(bytes, 0, &mut text),
                None,
                "{bytes:x?}"
            );
            assert_eq!(text, "");
        }
    }

    #[test]
    fn remembered_texts_are_those_that_would_be_written() {
        let mut memos =
            [Syntax::Att, Syntax::Intel].map(|syntax| (Memo::new(syntax), Printer::new(syntax)));
        // Few different bytes, so that instructions come again, at other addresses.
        let common = [
            0x48, 0x89, 0x8b, 0xe8, 0x74, 0x0f, 0x84, 0x05, 0xc0, 0xff, 0xe0, 0x66, 0x2e, 0x67,
            0xf2, 0xc3,
        ];
        let mut known = 0;
        arbtest::arbtest(|u| {
            let mut bytes = [0; 24];
            for byte in &mut bytes {
                *byte = if u.ratio(9, 10)? {
                    *u.choose(&common)?
                } else {
                    u.arbitrary()?
                };
            }
            let addr: u64 = u.arbitrary()?;
            for (memo, printer) in &mut memos {
                for at in 0..bytes.len() {
                    let (mut plain, mut kept) = (String::new(), Vec::new());
                    let len = printer.print(&bytes[at..], addr, &mut plain);
                    assert_eq!(memo.print(&bytes[at..], addr, &mut kept), len, "{bytes:x?}");
                    assert_eq!(String::from_utf8_lossy(&kept), plain, "{bytes:x?}");
                    known += usize::from(len.is_some());
                }
            }
            Ok(())
        });
        assert!(known > 0);
    }
}
