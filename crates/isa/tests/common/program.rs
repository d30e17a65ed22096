//! Small programs, written by hand as ELF files, that begin with a start-up routine.
//!
//! | address in the program | what |
//! |---|---|
//! | 0 | file and program headers |
//! | [`ENTRY`] | first instruction: code of the test, which continues to the routine |
//! | [`ROUTINE`] | the routine under test |
//! | [`BODY`] | where it continues: code of the test |
//! | [`DYNAMIC`] | dynamic section of a shared library, writable |
//! | [`SCRATCH`] | zeros, writable; the first word receives the load bias |
//! | [`COUNTERS`] | zeros, writable: the counters |
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use iced_x86::IcedError;
use iced_x86::code_asm::*;
use postlink_isa::x86_64::X86_64;
use postlink_isa::{Runtime, RuntimeConfig, RuntimeEntry};

pub const ENTRY: u64 = 0x1000;
pub const ROUTINE: u64 = 0x2000;
pub const BODY: u64 = 0x4000;
pub const DYNAMIC: u64 = 0x6000;
pub const SCRATCH: u64 = 0x7000;
pub const COUNTERS: u64 = 0x8000;

pub const HEADER: &[u8] = b"MAGIC!\r\nand what follows it must agree, and this need not";
pub const CHECK: usize = 39;
pub const BUILD_ID: &str = "0123abcd";

/// What kind of file it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Linked at a fixed address.
    Fixed,
    /// Position-independent executable.
    Moved,
    /// Shared library, with the routine as DT_INIT.
    Library,
}

type Assemble<'a> = &'a dyn Fn(&mut CodeAssembler) -> Result<(), IcedError>;

/// A program to be written.
pub struct Program<'a> {
    pub kind: Kind,
    pub pattern: &'a str,
    pub header: &'a [u8],
    pub counters_len: u64,
    pub sites_offset: u64,
    /// The routine as an initialiser that is called, rather than what the program starts with.
    pub called: bool,
    /// Where it continues, from the start of the program; [`None`]: it returns.
    pub next: Option<u64>,
    pub entry: Assemble<'a>,
    pub body: Assemble<'a>,
    /// More code, at given addresses.
    pub more: Vec<(u64, Vec<u8>)>,
}

impl Default for Program<'_> {
    fn default() -> Self {
        Program {
            kind: Kind::Fixed,
            pattern: "default.%p",
            header: HEADER,
            counters_len: 0x2000,
            sites_offset: 0x1000,
            called: false,
            next: Some(BODY),
            entry: &|a| go_to(a, ROUTINE),
            body: &|a| exit(a, 0),
            more: Vec::new(),
        }
    }
}

impl Program<'_> {
    pub fn base(&self) -> u64 {
        if self.kind == Kind::Fixed {
            0x40_0000
        } else {
            0
        }
    }

    pub fn routine(&self) -> Vec<u8> {
        let base = self.base();
        let next = self.next.map(|next| base + next);
        let entry = if self.called || self.kind == Kind::Library {
            RuntimeEntry::Library { next }
        } else {
            RuntimeEntry::Program {
                next: next.unwrap(),
            }
        };
        X86_64::runtime(&RuntimeConfig {
            at: base + ROUTINE,
            counters: base + COUNTERS,
            counters_len: self.counters_len,
            sites_offset: self.sites_offset,
            bias_slot: base + SCRATCH,
            header: self.header,
            header_check: CHECK,
            pattern: self.pattern,
            build_id: BUILD_ID,
            entry,
        })
        .unwrap()
    }

    /// Writes the file and makes it executable.
    pub fn write(&self, path: &Path) {
        let base = self.base();
        let end = COUNTERS + self.counters_len;
        let mut file = vec![0u8; end as usize];
        let mut put =
            |at: u64, bytes: &[u8]| file[at as usize..][..bytes.len()].copy_from_slice(bytes);
        for (at, limit, code) in [(ENTRY, ROUTINE, self.entry), (BODY, DYNAMIC, self.body)] {
            let mut a = CodeAssembler::new(64).unwrap();
            code(&mut a).unwrap();
            // Addresses in the code are from the start of the program: all that it refers to moves along.
            let code = a.assemble(at).unwrap();
            assert!(code.len() as u64 <= limit - at);
            put(at, &code);
        }
        let routine = self.routine();
        assert!(routine.len() as u64 <= BODY - ROUTINE, "{}", routine.len());
        put(ROUTINE, &routine);
        for (at, code) in &self.more {
            put(*at, code);
        }
        let words = |list: &[u64]| {
            list.iter()
                .flat_map(|word| word.to_le_bytes())
                .collect::<Vec<u8>>()
        };
        // STRTAB, SYMTAB, STRSZ, SYMENT, HASH, INIT: an empty symbol table with one bucket.
        put(
            DYNAMIC,
            &words(&[
                5, 0x6200, 6, 0x6200, 10, 1, 11, 24, 4, 0x6300, 12, ROUTINE, 0, 0,
            ]),
        );
        put(0x6300, &[1, 0, 0, 0, 1, 0, 0, 0]);
        let kind = if self.kind == Kind::Fixed { 2u16 } else { 3 };
        put(0, b"\x7fELF\x02\x01\x01");
        put(
            16,
            &[kind.to_le_bytes(), 62u16.to_le_bytes(), [1, 0], [0, 0]].concat(),
        );
        let count: u16 = if self.kind == Kind::Library { 4 } else { 3 };
        put(24, &words(&[base + ENTRY, 64, 0]));
        put(52, &[64, 0, 56, 0, count as u8, 0, 64, 0]);
        let segments = [
            (1u64, 5u64, 0, DYNAMIC, 0x1000),
            (1, 6, DYNAMIC, end - DYNAMIC, 0x1000),
            (0x6474_e551, 6, 0, 0, 16),
            (2, 6, DYNAMIC, 14 * 8, 8),
        ];
        for (index, (kind, flags, at, len, align)) in
            segments.into_iter().take(count.into()).enumerate()
        {
            put(
                64 + index as u64 * 56,
                &words(&[
                    kind | flags << 32,
                    at,
                    base + at,
                    base + at,
                    len,
                    len,
                    align,
                ]),
            );
        }
        fs::write(path, file).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

/// A memory operand at an address of the program, relative to `rip`.
pub fn at(
    a: &mut CodeAssembler,
    op: iced_x86::Code,
    register: iced_x86::Register,
    address: u64,
) -> Result<(), IcedError> {
    let memory = iced_x86::MemoryOperand::with_base_displ(iced_x86::Register::RIP, address as i64);
    let instruction = match op {
        iced_x86::Code::Lea_r64_m | iced_x86::Code::Mov_r64_rm64 => {
            iced_x86::Instruction::with2(op, register, memory)?
        }
        _ => iced_x86::Instruction::with2(op, memory, register)?,
    };
    a.add_instruction(instruction)
}

/// `lea register,[address]`
pub fn lea(a: &mut CodeAssembler, register: AsmRegister64, address: u64) -> Result<(), IcedError> {
    at(a, iced_x86::Code::Lea_r64_m, register.into(), address)
}

/// `jmp address`
pub fn go_to(a: &mut CodeAssembler, address: u64) -> Result<(), IcedError> {
    a.add_instruction(iced_x86::Instruction::with_branch(
        iced_x86::Code::Jmp_rel32_64,
        address,
    )?)
}

/// `call address`
pub fn call(a: &mut CodeAssembler, address: u64) -> Result<(), IcedError> {
    a.add_instruction(iced_x86::Instruction::with_branch(
        iced_x86::Code::Call_rel32_64,
        address,
    )?)
}

/// `exit_group(status)`
pub fn exit(a: &mut CodeAssembler, status: u32) -> Result<(), IcedError> {
    a.mov(edi, status)?;
    a.mov(eax, 231)?;
    a.syscall()
}

/// Adds `times` to a counter, one by one.
pub fn count(a: &mut CodeAssembler, counter: u64, times: u32) -> Result<(), IcedError> {
    let mut again = a.create_label();
    lea(a, rbx, COUNTERS + counter * 8)?;
    a.mov(ecx, times)?;
    a.set_label(&mut again)?;
    a.lock().inc(qword_ptr(rbx))?;
    a.dec(ecx)?;
    a.jne(again)
}
