//! The start-up routine of an instrumented program, for Linux.
//!
//! The counters of an instrumented program are in its own memory. The start-up routine lays the profile file over
//! them with a shared mapping, and that is all there is to a run-time library: whatever ends the program, the
//! counts are in the file. The routine runs once, before anything else of the program or shared library, and is
//! assembled here: it needs no libc, no relocation, no data of its own that can be written.
//!
//! # Steps
//!
//! 1. Save every general register and the flags; no vector register is touched.
//! 2. The load bias (own address minus link-time address) goes to its word, where the recorders of indirect calls
//!    ([`site`](super::site)) find it.
//! 3. Find `POSTLINK_PROFILE` in the environment: a program on the initial stack; a library, which no one
//!    tells where that is (libcs differ in what they pass to initialisers), in `/proc/self/environ`. Unset or
//!    empty, the built-in pattern stands. A program that runs with more rights than its caller (`AT_SECURE`)
//!    stops here: the caller must not choose a file for it to write.
//! 4. Expand `%p`, `%b`, `%h`, `%m`, `%%`; any other `%` stands for itself.
//! 5. Open the file, create it if need be.
//! 6. Bring an empty file to its size. Any other size than that is someone else's file.
//! 7. Map the first page. Write the header if it has none, else compare.
//! 8. Add what has been counted so far to the file.
//! 9. Map the file over the counters.
//! 10. Unmap and close what is left, restore, and continue.
//!
//! A failure is one line on the standard error output, and the program continues with the private counters that it has.
//!
//! # Several processes, one file
//!
//! * *Size.* A file is brought to its size by `fallocate`, which unlike `ftruncate` never makes it shorter under the
//!   feet of a process that has it mapped, and which reserves the blocks: a write into a mapped hole on a full disk
//!   is a signal that kills the program. File systems that cannot do it get their last byte written, a zero: at worst
//!   it falls on the highest byte of a counter in use, which is zero below 2^56.
//! * *Header.* All but the first 8 bytes (the magic) are written first and the magic last, by a locked
//!   instruction. A reader sees a whole header or a magic of zero. In a file whose magic is zero, another
//!   process may be about to write the same header, or was killed doing so; so all bytes that are compared
//!   must be zero or as they will be. Two *different* programs that create the same file at the same instant,
//!   with headers of equal size, may take each other's for theirs; the comparison after the write makes this
//!   window a few instructions wide.
//! * *Counters.* Steps 8 and 9 use locked additions, so nothing that others count meanwhile is lost. What is
//!   counted in this process between 8 and 9 would be; but initialisers run on one thread, and nothing of
//!   this program or library runs before its start-up except resolvers of indirect functions and functions
//!   that replace another library's, which are over by then.
//! * *Site tables.* In a program that is not position-independent the bias is 0, so the recorders are right
//!   before it has been stored, and targets may have been recorded. They are merged entry by entry with the
//!   rule of the recorders: take the entry that has the target, or claim the first empty one, or else count
//!   as overflow. In a moved program every target seen so early is outside the link-time range and has been
//!   counted as external.
//!
//! # Per-thread counters
//!
//! Then these steps give the first thread its area of the file, and a second routine gives one to each thread
//! and forked child that comes after it: `shards`. The frame is not on the stack but in private memory.
//!
//! # Biased counters
//!
//! Then a process has two areas of the file: one that it shares with others, and one of the thread that runs these
//! steps: `biased`.
//!
//! # The frame
//!
//! | from `rbp` | what |
//! |---|---|
//! | +128 | what `rsp` pointed to: the argument count or the return address |
//! | 0 ..= +120 | saved registers and flags |
//! | `NAME` | file name, 4096 bytes |
//! | `VALUE` | value of the variable, if read from `/proc`, 4096 bytes |
//! | `BUFFER` | whatever a system call fills: 4096 bytes |
//! | `DIGITS` | a number in decimal, 16 bytes |
//! | `CURSOR`, `AREA` | of biased counters: the next area to look at, and where the last one is in the file |
//!
//! | register | what |
//! |---|---|
//! | `rbx` | load bias; in an error line without a number, what follows the name |
//! | `r12` | template of the name; later how the error line begins (0: none) |
//! | `r13` | file descriptor (-1: none) |
//! | `r14` | mapped header (0: none) |
//! | `r15` | mapped counters (0: none) |
//!
//! System calls destroy `rax`, `rcx`, `r11`.
//!
//! # Files
//!
//! `environment` has steps 3 and 4, `file` 5 to 9, `message` the ends, `shards` what is different with
//! per-thread counters, `biased` with biased ones; the rest is here.

mod biased;
mod environment;
mod file;
mod message;
mod shards;

use iced_x86::code_asm::*;
use iced_x86::{BlockEncoderOptions, Code as Op, IcedError, Instruction};

use crate::coverage::MipRuntime;
use crate::{FixupKind, RuntimeConfig, RuntimeEntry, RuntimeError};

pub use biased::BIASED;
pub use environment::{MIP_VARIABLE, VARIABLE};
pub(crate) use message::error_texts;
pub use shards::PER_THREAD;
use shards::Shards;

/// The unit of the file: one for the header, the rest for the counters.
const PAGE: u64 = 4096;
/// Longest file name, with the zero byte at its end (`PATH_MAX`).
const NAME_LEN: i32 = 4096;
/// Bytes of [`BUFFER`].
const BUFFER_LEN: i32 = 4096;

/// Offsets from `rbp`; see the table above.
const NAME: i32 = -NAME_LEN;
const VALUE: i32 = NAME - NAME_LEN;
const BUFFER: i32 = VALUE - BUFFER_LEN;
const DIGITS: i32 = BUFFER - 16;
const CURSOR: i32 = DIGITS - 8;
const AREA: i32 = CURSOR - 8;
/// After the saved registers and flags.
const SAVED: i32 = 16 * 8;

/// System call numbers.
mod call {
    pub const READ: u32 = 0;
    pub const WRITE: u32 = 1;
    pub const OPEN: u32 = 2;
    pub const CLOSE: u32 = 3;
    pub const STAT: u32 = 4;
    pub const FSTAT: u32 = 5;
    pub const MMAP: u32 = 9;
    pub const MUNMAP: u32 = 11;
    pub const SIGPROCMASK: u32 = 14;
    pub const PWRITE: u32 = 18;
    pub const WRITEV: u32 = 20;
    pub const SCHED_YIELD: u32 = 24;
    pub const MADVISE: u32 = 28;
    pub const GETPID: u32 = 39;
    pub const UNAME: u32 = 63;
    pub const FCNTL: u32 = 72;
    pub const UNLINK: u32 = 87;
    pub const GETRLIMIT: u32 = 97;
    pub const ARCH_PRCTL: u32 = 158;
    pub const EXIT_GROUP: u32 = 231;
    pub const FALLOCATE: u32 = 285;
}

const O_CLOEXEC: u32 = 0o2000000;

/// The general registers but `rsp`, in the order in which they are pushed.
const PUSHED: [AsmRegister64; 15] = [
    rax, rcx, rdx, rbx, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15,
];

/// Assembles one instruction a line.
macro_rules! emit {
    ($a:ident; $($op:ident($($argument:expr),*);)*) => { $($a.$op($($argument),*)?;)* };
}
use emit;

/// The routine while it is being put together.
struct Routine<'a> {
    a: CodeAssembler,
    config: &'a RuntimeConfig<'a>,
    mip: Option<MipRuntime<'a>>,
    /// With per-thread counters.
    shards: Option<Shards>,
    /// With biased counters.
    biased: bool,
    start: CodeLabel,
    subroutines: Subroutines,
    failures: Failures,
    /// What goes after the code: bytes, and the label that represents their address.
    data: Vec<(CodeLabel, Vec<u8>)>,
}

/// Subroutines of `message` and `file`.
#[derive(Clone, Copy)]
struct Subroutines {
    /// `eax` in decimal, as a string at `rsi`; destroys `rax`, `rcx`, `rdx`.
    decimal: CodeLabel,
    /// Appends the string at `rsi` to the vector at `rdi`; destroys `rcx`.
    piece: CodeLabel,
    /// Adds `r9` to the count of target `r8` in the site table at `rdi`; destroys `rax`.
    record: CodeLabel,
}

/// The ways into the end, with the beginning of the error line in `r12`. All of them may be jumped to from anywhere.
#[derive(Clone, Copy)]
struct Failures {
    /// `eax` is a negative error number.
    errno: CodeLabel,
    /// `rbx` is what follows the name.
    text: CodeLabel,
}

/// The start-up routine; see [`crate::Runtime::runtime`].
pub fn runtime(config: &RuntimeConfig<'_>) -> Result<Vec<u8>, RuntimeError> {
    check(config, PAGE)?;
    check_reach(config)?;
    assemble(config, None, false).map_err(|error| RuntimeError::Assemble {
        why: error.to_string(),
    })
}

/// The start-up routine of a program with biased counters; see [`crate::Runtime::biased_runtime`].
pub fn biased_runtime(config: &RuntimeConfig<'_>) -> Result<Vec<u8>, RuntimeError> {
    check(config, PAGE)?;
    check_reach(config)?;
    let (at, len) = (config.counters, config.counters_len);
    if at < BIASED.before
        || len
            .checked_mul(2)
            .and_then(|all| at.checked_add(all))
            .is_none()
    {
        return Err(RuntimeError::Counters {
            at,
            len,
            sites: config.sites_offset,
            why: "biased ones need a page in front of them and as many bytes behind",
        });
    }
    assemble(config, None, true).map_err(|error| RuntimeError::Assemble {
        why: error.to_string(),
    })
}

/// The start-up routine of a program that writes a raw machine profile.
pub fn mip_runtime(
    config: &RuntimeConfig<'_>,
    mip: MipRuntime<'_>,
) -> Result<Vec<u8>, RuntimeError> {
    check(config, PAGE)?;
    check_reach(config)?;
    assemble(config, Some(mip), false).map_err(|error| RuntimeError::Assemble {
        why: error.to_string(),
    })
}

/// What a routine relies on, on any machine; `unit` is what the counters are aligned to.
pub(crate) fn check(config: &RuntimeConfig<'_>, unit: u64) -> Result<(), RuntimeError> {
    let pattern = |why: String| {
        Err(RuntimeError::Pattern {
            pattern: config.pattern.to_string(),
            why,
        })
    };
    if config.pattern.is_empty() || config.pattern.len() >= NAME_LEN as usize {
        return pattern(format!(
            "it has {} bytes, must have 1 to {}",
            config.pattern.len(),
            NAME_LEN - 1
        ));
    }
    if config.pattern.contains('\0') {
        return pattern("it has a zero byte".to_string());
    }
    let mut rest = config.pattern.chars();
    while let Some(character) = rest.next() {
        if character == '%' {
            match rest.next() {
                Some('p' | 'b' | 'h' | 'm' | '%') => {}
                Some(other) => return pattern(format!("%{other} is none of %p, %b, %h, %m, %%")),
                None => return pattern("it ends in a single %".to_string()),
            }
        }
    }
    if let Some(other) = config
        .build_id
        .chars()
        .find(|character| !character.is_ascii_hexdigit())
    {
        return pattern(format!(
            "%b is replaced by {:?}, where {other:?} is no hexadecimal digit",
            config.build_id
        ));
    }
    let header = |why| {
        Err(RuntimeError::Header {
            len: config.header.len(),
            check: config.header_check,
            why,
        })
    };
    match config.header.first_chunk::<8>() {
        None => return header("it has no magic of 8 bytes"),
        Some([0, 0, 0, 0, 0, 0, 0, 0]) => return header("its magic of 8 bytes is zero"),
        Some(_) if config.header.len() as u64 > PAGE => return header("its page has 4096 bytes"),
        Some(_) if !(8..=config.header.len()).contains(&config.header_check) => {
            return header("the magic must be compared, and no more than there is");
        }
        Some(_) => {}
    }
    let (at, len, sites) = (config.counters, config.counters_len, config.sites_offset);
    let counters = |why| {
        Err(RuntimeError::Counters {
            at,
            len,
            sites,
            why,
        })
    };
    if at % unit != 0 || len % unit != 0 || len == 0 {
        return counters(
            "they must be whole pages (4096 bytes on x86-64, 65536 on AArch64), at least one",
        );
    }
    if len > i64::MAX as u64 - unit || at.checked_add(len).is_none() {
        return counters("they end outside the address space");
    }
    if sites % 64 != 0 || sites > len {
        return counters("the sites must begin at a multiple of 64 within");
    }
    Ok(())
}

/// Where it continues must be in reach.
fn check_reach(config: &RuntimeConfig<'_>) -> Result<(), RuntimeError> {
    if let Some(next) = next(config) {
        // The jump there is somewhere in the routine; if both ends reach, so does it. The routine has a few KiB beside
        // the pattern, the header and the build-id.
        let len = 0x4000 + config.pattern.len() + config.header.len() + config.build_id.len();
        for place in [config.at, config.at.wrapping_add(len as u64)] {
            super::branch::write_field(FixupKind::Rel32 { trail: 0 }, &mut [0; 4], place, next)?;
        }
    }
    Ok(())
}

/// Where it continues, if it does not return.
fn next(config: &RuntimeConfig<'_>) -> Option<u64> {
    match config.entry {
        RuntimeEntry::Program { next } => Some(next),
        RuntimeEntry::Library { next } => next,
    }
}

/// The start-up routine of a program with per-thread counters, and the address of `enter`; see
/// [`crate::Runtime::per_thread_runtime`].
pub fn per_thread_runtime(config: &RuntimeConfig<'_>) -> Result<(Vec<u8>, u64), RuntimeError> {
    check(config, PAGE)?;
    check_reach(config)?;
    if !matches!(config.entry, RuntimeEntry::Program { .. }) || config.counters < PER_THREAD.len {
        return Err(RuntimeError::Assemble {
            why: "per-thread counters are for programs, with private memory in front of them"
                .into(),
        });
    }
    assemble_per_thread(config).map_err(|error| RuntimeError::Assemble {
        why: error.to_string(),
    })
}

fn assemble_per_thread<'a>(config: &'a RuntimeConfig<'a>) -> Result<(Vec<u8>, u64), IcedError> {
    let mut routine = Routine::new(config, None)?;
    let shards = Shards::new(&mut routine.a);
    routine.shards = Some(shards);
    let enter = routine.put_shards(shards)?;
    routine.put_decimal()?;
    routine.put_piece()?;
    routine.put_record()?;
    routine.put_data()?;
    let assembled = routine.a.assemble_options(
        config.at,
        BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS,
    )?;
    let at = assembled.label_ip(&enter)?;
    Ok((assembled.inner.code_buffer, at))
}

fn assemble<'a>(
    config: &'a RuntimeConfig<'a>,
    mip: Option<MipRuntime<'a>>,
    biased: bool,
) -> Result<Vec<u8>, IcedError> {
    let mut routine = Routine::new(config, mip)?;
    routine.biased = biased;
    routine.enter()?;
    routine.store_bias()?;
    match config.entry {
        RuntimeEntry::Program { .. } => {
            routine.a.lea(r10, ptr(rbp + SAVED))?;
            routine.find_on_stack()?
        }
        RuntimeEntry::Library { .. } => routine.find_in_proc()?,
    }
    routine.expand()?;
    routine.open()?;
    routine.bring_to_size()?;
    routine.agree_on_header()?;
    if biased {
        routine.take_areas()?;
    } else {
        routine.merge()?;
        routine.lay_over()?;
    }
    routine.release()?;
    routine.say_what_failed()?;
    routine.leave()?;
    routine.put_decimal()?;
    routine.put_piece()?;
    if config.has_sites() {
        routine.put_record()?;
    }
    routine.put_data()?;
    routine.a.assemble(config.at)
}

fn labels<const N: usize>(a: &mut CodeAssembler) -> [CodeLabel; N] {
    std::array::from_fn(|_| a.create_label())
}

impl<'a> Routine<'a> {
    fn new(
        config: &'a RuntimeConfig<'a>,
        mip: Option<MipRuntime<'a>>,
    ) -> Result<Routine<'a>, IcedError> {
        let mut a = CodeAssembler::new(64)?;
        let [start, decimal, piece, record, errno, text] = labels(&mut a);
        let subroutines = Subroutines {
            decimal,
            piece,
            record,
        };
        let failures = Failures { errno, text };
        Ok(Routine {
            a,
            config,
            mip,
            shards: None,
            biased: false,
            start,
            subroutines,
            failures,
            data: Vec::new(),
        })
    }
}

impl Routine<'_> {
    fn enter(&mut self) -> Result<(), IcedError> {
        let a = &mut self.a;
        emit! { a;
            set_label(&mut self.start);
            endbr64(); // The kernel, the dynamic loader or libc jumps here through a pointer.
            pushfq();
        }
        for register in PUSHED {
            a.push(register)?;
        }
        emit! { a;
            mov(rbp, rsp);
            lea(rsp, ptr(rbp + AREA));
            and(rsp, -64);
            cld();
            or(r13, -1);
            xor(r14d, r14d);
            xor(r15d, r15d);
            mov(byte_ptr(rbp + NAME), 0); // For an error line before there is a name.
        }
        Ok(())
    }

    fn store_bias(&mut self) -> Result<(), IcedError> {
        let (a, config) = (&mut self.a, self.config);
        emit! { a;
            lea(rbx, ptr(self.start));
            mov(rax, config.at);
            sub(rbx, rax);
            mov(rax, config.bias_slot);
            mov(qword_ptr(rax + rbx), rbx);
        }
        Ok(())
    }

    fn leave(&mut self) -> Result<(), IcedError> {
        let a = &mut self.a;
        a.mov(rsp, rbp)?;
        for register in PUSHED.into_iter().rev() {
            a.pop(register)?;
        }
        a.popfq()?;
        self.go_on()
    }

    fn go_on(&mut self) -> Result<(), IcedError> {
        let (a, config) = (&mut self.a, self.config);
        match next(config) {
            Some(next) => a.add_instruction(Instruction::with_branch(Op::Jmp_rel32_64, next)?),
            None => a.ret(),
        }
    }

    /// Destroys `rax`, `rcx`, `r11`; the result is in `rax`.
    fn system_call(&mut self, number: u32) -> Result<(), IcedError> {
        let a = &mut self.a;
        emit! { a;
            mov(eax, number);
            syscall();
        }
        Ok(())
    }

    /// Closes `r13`.
    fn close(&mut self) -> Result<(), IcedError> {
        self.a.mov(edi, r13d)?;
        self.system_call(call::CLOSE)?;
        self.a.or(r13, -1)
    }

    /// The label of bytes that are put after the code.
    fn bytes(&mut self, bytes: &[u8]) -> CodeLabel {
        if let Some((label, _)) = self.data.iter().find(|(_, known)| known == bytes) {
            return *label;
        }
        let label = self.a.create_label();
        self.data.push((label, bytes.to_vec()));
        label
    }

    /// The label of a string with a zero byte at its end.
    fn string(&mut self, text: &str) -> CodeLabel {
        self.bytes(&[text.as_bytes(), &[0]].concat())
    }

    fn put_data(&mut self) -> Result<(), IcedError> {
        for (label, bytes) in &mut self.data {
            self.a.set_label(label)?;
            self.a.db(bytes)?;
        }
        Ok(())
    }
}
