//! Instructions as text, in AT&T or Intel syntax, as LLVM's disassembler spells them.
//!
//! The text begins with a tab, as assembly does: tab, mnemonic, tab, operands. Targets of branches are absolute and hexadecimal;
//! other numbers are decimal. Displacements, 8-bit and sign-extended immediates are signed; 16-bit and 32-bit immediates of
//! operations of that width are not, nor are those of vector instructions. A leading `lock` is an instruction of its own.
//!
//! In a static program of 145,000 lines 32 differ from LLVM's.
//!
//! iced's formatter does the work; where its spelling differs from LLVM's, the difference is evened out here as far as it is common
//! in compiled code. Known to remain: `addr32` in front of a branch is dropped, `fxch` has no
//! operand, `rdrand` and `rdseed` no suffix, `cvtsi2sd` has one, the operands of `xchg` are the other way round, and what only one of
//! the two decodes.

use iced_x86::{
    Code, ConditionCode, Decoder, DecoderOptions, Formatter, FormatterOutput, FormatterTextKind, GasFormatter,
    Instruction, IntelFormatter, MemorySizeOptions, Mnemonic, NumberBase, NumberKind, OpKind, Register,
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
        Printer { formatter, syntax }
    }

    /// Appends the instruction at the start of `bytes`, which lies at `addr`, and returns its length. `None`, and nothing appended,
    /// if the bytes are no instruction.
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
        let mut text = Text { mnemonic: String::new(), operands: String::new(), prefixes: Vec::new() };
        self.formatter.format(&instruction, &mut text);
        text.finish(&instruction, self.syntax, out);
        Some(instruction.len())
    }
}

/// Parts of an instruction's text.
struct Text {
    prefixes: Vec<String>,
    mnemonic: String,
    operands: String,
}

impl Text {
    fn finish(self, instruction: &Instruction, syntax: Syntax, out: &mut String) {
        for prefix in self.prefixes.iter().filter(|prefix| *prefix != "notrack" && *prefix != "bnd") {
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
        if !segment.is_empty() && instruction.mnemonic() == Mnemonic::Nop && instruction.op_count() == 1 {
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
                // Multiplication in place, where one register stands for two.
                let twice = operands.split_once(", ").map_or("", |(_, register)| register);
                spelt = format!("{operands}, {twice}");
                operands = &spelt;
            } else if instruction.is_string_instruction() && instruction.op_kinds().any(writes_through_rdi) {
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

/// Whether an operand of a string instruction lies in the segment that cannot be overridden.
fn writes_through_rdi(kind: OpKind) -> bool {
    matches!(kind, OpKind::MemoryESRDI | OpKind::MemoryESEDI | OpKind::MemoryESDI)
}

/// Whether an instruction is a shift or rotation whose opcode stands for a count of one.
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
    let direct = matches!(instruction.op0_kind(), OpKind::NearBranch64 | OpKind::NearBranch32 | OpKind::NearBranch16);
    let condition = match instruction.condition_code() != ConditionCode::None && mnemonic.starts_with("set") {
        true => mnemonic.strip_suffix('b').filter(|rest| *rest != "set"),
        false => None,
    };
    // `setb` is a condition of one letter, `setbb` the same with its size.
    let condition = condition.filter(|_| instruction.mnemonic() != Mnemonic::Setb || mnemonic == "setbb");
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
        // A size behind a condition says nothing: it is always a byte.
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
        use std::fmt::Write;
        let kind_of = instruction_operand.map(|number| instruction.op_kind(number));
        // Writing to a string does not fail.
        let _ = match kind_of {
            Some(OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64) => {
                write!(self.operands, "0x{value:x}")
            }
            Some(OpKind::Immediate8 | OpKind::Immediate8_2nd) if has_vector(instruction) => {
                write!(self.operands, "{}", value as u8)
            }
            Some(OpKind::Immediate8 | OpKind::Immediate8_2nd) => write!(self.operands, "{}", value as i8),
            Some(OpKind::Immediate16) => write!(self.operands, "{}", value as u16),
            // An absolute address, or an offset in a segment.
            Some(OpKind::Memory)
                if instruction.memory_base() == Register::None && instruction.memory_index() == Register::None =>
            {
                write!(self.operands, "{}", instruction.memory_displacement64() as i64)
            }
            Some(OpKind::Immediate32) => write!(self.operands, "{}", value as u32),
            Some(OpKind::Immediate8to16) => write!(self.operands, "{}", value as i16),
            Some(OpKind::Immediate8to32) => write!(self.operands, "{}", value as i32),
            Some(OpKind::Immediate8to64 | OpKind::Immediate32to64 | OpKind::Immediate64) => {
                write!(self.operands, "{}", value as i64)
            }
            _ if kind == FormatterTextKind::LabelAddress || kind == FormatterTextKind::FunctionAddress => {
                write!(self.operands, "0x{value:x}")
            }
            _ => write!(self.operands, "{text}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(bytes: &[u8]) -> [String; 2] {
        [Syntax::Att, Syntax::Intel].map(|syntax| {
            let mut text = String::new();
            assert_eq!(Printer::new(syntax).print(bytes, 0x201660, &mut text), Some(bytes.len()));
            text
        })
    }

    #[test]
    fn instructions_are_spelt_as_llvm_spells_them() {
        let cases: [(&[u8], &str, &str); 11] = [
            (&[0x89, 0xf8], "\tmovl\t%edi, %eax", "\tmov\teax, edi"),
            (&[0x8d, 0x47, 0x01], "\tleal\t1(%rdi), %eax", "\tlea\teax, [rdi + 1]"),
            (&[0x75, 0x15], "\tjne\t0x201677", "\tjne\t0x201677"),
            (&[0xe8, 0, 1, 0, 0], "\tcallq\t0x201765", "\tcall\t0x201765"),
            (&[0xc3], "\tretq", "\tret"),
            (&[0xff, 0xd0], "\tcallq\t*%rax", "\tcall\trax"),
            (&[0xff, 0xe0], "\tjmpq\t*%rax", "\tjmp\trax"),
            (&[0x83, 0xe4, 0xf0], "\tandl\t$-16, %esp", "\tand\tesp, -16"),
            (&[0x69, 0xc7, 0xab, 0xaa, 0xaa, 0xaa], "\timull\t$2863311531, %edi, %eax", "\timul\teax, edi, 2863311531"),
            (&[0x8b, 0x15, 0x75, 2, 0, 0], "\tmovl\t629(%rip), %edx", "\tmov\tedx, dword ptr [rip + 629]"),
            (&[0x8d, 0x04, 0x39], "\tleal\t(%rcx,%rdi), %eax", "\tlea\teax, [rcx + rdi]"),
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
            (&[0x2e, 0x66, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0], "\tnopw\t%cs:(%rax,%rax)"),
            (&[0x66, 0x0f, 0x70, 0xc0, 0xe1], "\tpshufd\t$225, %xmm0, %xmm0"),
            (&[0x64, 0x48, 0x8b, 0x04, 0x25, 0xc0, 0xff, 0xff, 0xff], "\tmovq\t%fs:-64, %rax"),
        ];
        for (bytes, att) in cases {
            assert_eq!(both(bytes)[0], att);
        }
        let mut text = String::new();
        assert_eq!(Printer::new(Syntax::Att).print(&[0xf0, 0x0f, 0xb1, 0x13], 0, &mut text), Some(1));
        assert_eq!(text, "\tlock");
    }

    #[test]
    fn what_is_no_instruction_is_not_printed() {
        for bytes in [&[][..], &[0x06], &[0x48], &[0xe8, 0, 0]] {
            let mut text = String::new();
            assert_eq!(Printer::new(Syntax::Att).print(bytes, 0, &mut text), None, "{bytes:x?}");
            assert_eq!(text, "");
        }
    }
}
