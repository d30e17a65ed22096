//! Instruction sets: everything that knows what an instruction means.
//!
//! The rewriter treats code as bytes and asks this crate only for what depends on position: where an
//! instruction ends, where it may go next, which field of it holds an address, how that field is patched, and
//! how a branch, a counter or a start-up routine is encoded. An instruction that does not depend on its own
//! address is never re-encoded.
//!
//! One folder an instruction set, with the same file names in each: `decode`, `branch`, `effects`, `counter`,
//! `site`, `runtime`. [`Isa`] is the seam; the rewriter is generic over it. It has four parts, each of which
//! rests on the one before: [`Decode`], [`Encode`], [`Counters`], [`Runtime`].

pub mod aarch64;
pub mod coverage;
pub mod digits;
pub mod frames;
mod machine;
pub mod x86_64;

pub use machine::Machine;

use smallvec::SmallVec;

/// Where control goes after an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// To the next instruction.
    Next,
    /// Always to `target` (address in the same address space as the instruction's).
    Jump {
        /// Where to.
        target: u64,
    },
    /// To `target` when `cond` holds, else to the next instruction. The condition can be inverted.
    CondJump {
        /// When.
        cond: Cond,
        /// Where to.
        target: u64,
    },
    /// Conditional, but with only a short form and no inverse (x86 `loop`, `jrcxz`).
    ShortCond {
        /// Where to.
        target: u64,
    },
    /// A direct call; comes back to the next instruction unless the callee does not return.
    Call {
        /// The callee.
        target: u64,
    },
    /// A call through a register or memory.
    IndirectCall,
    /// A jump through a register or memory: jump table, computed goto or tail call.
    IndirectJump,
    /// Return to the caller.
    Return,
    /// Control never continues: `ud2`, `hlt`, `brk`, `udf`.
    Stop,
    /// To the next instruction, once a debugger or a signal handler lets the program go on (`int3`). At a function's
    /// end nothing is expected to.
    Trap,
}

/// A condition as the instruction set encodes it. On x86-64: 0..=15, the low bit inverts. On AArch64: the
/// branch instruction with its displacement cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cond(pub u32);

/// A field of an instruction that holds an address relative to the instruction (or its page).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PcField {
    /// Offset of the field from the start of the instruction, in bytes (0 on AArch64: the whole word).
    pub at: u8,
    /// How the field is read and written.
    pub kind: FixupKind,
    /// The address that it designates.
    pub target: u64,
}

/// How an address is put into a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FixupKind {
    /// x86: signed 8-bit, relative to the end of the instruction.
    Rel8 {
        /// Bytes of the instruction after the field.
        trail: u8,
    },
    /// x86: signed 32-bit, relative to the end of the instruction.
    Rel32 {
        /// Bytes of the instruction after the field.
        trail: u8,
    },
    /// Absolute, 32 bits, zero-extended.
    Abs32,
    /// Absolute, 32 bits, sign-extended.
    Abs32S,
    /// Absolute, 64 bits.
    Abs64,
    /// AArch64: `b`, `bl`.
    Branch26,
    /// AArch64: `b.cond`, `cbz`, `cbnz`, loads of literals.
    Imm19,
    /// AArch64: `tbz`, `tbnz`.
    Branch14,
    /// AArch64: `adr`.
    Adr,
    /// AArch64: `adrp`; of the address the page counts.
    Page,
    /// AArch64: the lowest 12 bits of the address, shifted right, in an addition, load or store.
    Low12 {
        /// By how much.
        scale: u8,
    },
    /// AArch64: in an addition, bits 11 to 8 of the address and then 1.
    Low12Odd,
    /// AArch64: in an `adr`, the address with 1 in the place of its lowest byte.
    AdrOdd,
    /// AArch64: in a store of a byte, how far the address is from that.
    FromOdd,
}

/// Facts about an instruction that are neither its flow nor its operand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traits {
    /// Does nothing: any `nop`, also as padding between functions (`int3` is not one).
    pub nop: bool,
    /// A landing pad for indirect branches (`endbr64`, `bti`): stays first at an entry.
    pub landing_pad: bool,
    /// A branch carries a prefix that must be kept (`notrack`, `bnd`, branch hints, `data16` in TLS sequences).
    pub prefixed: bool,
    /// The address field is used to *form* an address (`lea`, `adr`), not to read or write memory.
    pub forms_address: bool,
    /// AArch64: marks memory for an exclusive store, which succeeds only if nothing else wrote there. Nothing
    /// may be inserted between the two.
    pub exclusive_load: bool,
    /// AArch64: that store, or what ends the watch otherwise.
    pub exclusive_store: bool,
    /// Calls the system, which may end the thread or come back twice.
    pub system_call: bool,
}

/// One decoded instruction: what the rewriter needs of it and nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Insn {
    /// Its address.
    pub addr: u64,
    /// Its length in bytes.
    pub len: u8,
    /// Where control goes next.
    pub flow: Flow,
    /// The position-dependent field: a direct branch's displacement or a PC-relative operand. An indirect call or
    /// jump through PC-relative memory (`call *x(%rip)`) has its memory operand here.
    pub field: Option<PcField>,
    /// The rest.
    pub traits: Traits,
}

impl Insn {
    /// Address of the next instruction (0 after one that ends at the top of the address space).
    #[inline]
    pub fn end(&self) -> u64 {
        self.addr.wrapping_add(u64::from(self.len))
    }

    /// The word that an indirect call or jump takes its target from, if the instruction says which.
    #[inline]
    pub fn slot(&self) -> Option<u64> {
        match self.flow {
            Flow::IndirectCall | Flow::IndirectJump => self.field.map(|f| f.target),
            _ => None,
        }
    }
}

/// A set of general registers and flags. Bits 0..=31: general registers by their number in the encoding;
/// bits 32..: flags, see the instruction set's module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegSet(pub u64);

impl RegSet {
    /// No register.
    pub const EMPTY: RegSet = RegSet(0);
    /// Every register and flag.
    pub const ALL: RegSet = RegSet(u64::MAX);
    /// Union.
    #[inline]
    pub fn or(self, other: RegSet) -> RegSet {
        RegSet(self.0 | other.0)
    }
    /// What is in `self` and not in `other`.
    #[inline]
    pub fn minus(self, other: RegSet) -> RegSet {
        RegSet(self.0 & !other.0)
    }
    /// Whether they share a member.
    #[inline]
    pub fn meets(self, other: RegSet) -> bool {
        self.0 & other.0 != 0
    }
}

/// What an instruction reads and what it overwrites for certain (a partial or conditional write kills nothing).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// Registers and flags whose old value matters to it.
    pub reads: RegSet,
    /// Registers and flags that hold nothing of their old value afterwards.
    pub kills: RegSet,
}

/// What a place in bytes could be, if an instruction or the field of one were there; see [`Decode::places`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The displacement of a direct branch or call that reaches far.
    Branch,
    /// A branch that reaches nearby.
    ShortBranch,
    /// An operand relative to the program counter.
    Operand,
    /// An address that is formed, if what forms addresses is told from what reads there.
    Formed,
}

/// What an instruction leaves in registers, as far as it bounds the index of a jump table or is a table's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Values {
    /// General registers, one bit each, that may hold something else afterwards.
    pub writes: u32,
    /// What one of them holds, if that is known.
    pub sets: Option<Sets>,
    /// What the flags say afterwards, if that is known.
    pub compares: Option<Compares>,
    /// The flags are what they were.
    pub keeps_flags: bool,
    /// What is written may also stay as it was, by what the instruction reads or on some processors.
    pub may_not_write: bool,
    /// General registers whose low 8 bits are overwritten without being read; the rest of them stays.
    pub low: u32,
    /// General registers of which more than the low 8 bits may be read.
    pub wide: u32,
}

impl Values {
    /// Of an instruction of which nothing is known.
    pub const UNKNOWN: Values = Values {
        writes: u32::MAX,
        sets: None,
        compares: None,
        keeps_flags: false,
        may_not_write: true,
        low: 0,
        wide: u32::MAX,
    };
}

/// What a register `to` holds after an instruction. Bits are counted from the lowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sets {
    /// An address of the file.
    Address {
        /// Register.
        to: u8,
        /// The link-time address.
        value: u64,
    },
    /// A number.
    Number {
        /// Register.
        to: u8,
        /// All 64 bits.
        value: u64,
    },
    /// The low bits of another, and zeros.
    Copy {
        /// Register.
        to: u8,
        /// The other register.
        from: u8,
        /// How many: 8, 16, 32 or 64.
        bits: u8,
    },
    /// The low bits of another, and copies of the highest of those.
    Extend {
        /// Register.
        to: u8,
        /// The other register.
        from: u8,
        /// How many: 8, 16 or 32.
        bits: u8,
    },
    /// Those of its own low bits that are in a number as well, and zeros.
    And {
        /// Register.
        to: u8,
        /// How many: 32 or 64.
        bits: u8,
        /// The number.
        most: u64,
    },
    /// Its own low bits shifted to the right, and zeros.
    Shift {
        /// Register.
        to: u8,
        /// How many: 32 or 64.
        bits: u8,
        /// By how many.
        by: u8,
    },
    /// Another register and a number, if that is an address or a number.
    Sum {
        /// Register.
        to: u8,
        /// The other register.
        from: u8,
        /// The number.
        by: u64,
    },
    /// A number that is not above another (unsigned).
    Below {
        /// Register.
        to: u8,
        /// The other.
        most: u64,
    },
}

impl Sets {
    /// The register.
    pub fn to(self) -> u8 {
        match self {
            Sets::Address { to, .. }
            | Sets::Number { to, .. }
            | Sets::Copy { to, .. }
            | Sets::Extend { to, .. }
            | Sets::And { to, .. }
            | Sets::Shift { to, .. }
            | Sets::Sum { to, .. }
            | Sets::Below { to, .. } => to,
        }
    }
}

/// What a conditional branch asks, as far as that is a hint of what it mostly does; see [`Decode::question`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Question {
    /// When it is taken.
    pub relation: Relation,
    /// What is compared with.
    pub with: Compared,
    /// 64 bits are compared, as of pointers.
    pub wide: bool,
    /// It is a word of memory that is compared, not of a register.
    pub memory: bool,
}

/// How two values relate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Relation {
    /// They are equal.
    Equal,
    /// They are not.
    NotEqual,
    /// With signs; or the sign alone is set.
    Less,
    /// With signs.
    LessOrEqual,
    /// With signs.
    Greater,
    /// With signs; or the sign alone is clear.
    GreaterOrEqual,
    /// Without signs.
    Below,
    /// Without signs.
    BelowOrEqual,
    /// Without signs.
    Above,
    /// Without signs.
    AboveOrEqual,
    /// Anything else: overflow, parity.
    #[default]
    Other,
}

/// What a value is compared with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compared {
    /// Zero.
    Zero,
    /// Minus one.
    MinusOne,
    /// Another number.
    Number,
    /// A register or memory.
    Variable,
    /// Some of its bits with zero.
    Bits,
    /// Floating-point numbers are compared.
    Float,
    /// Nothing that is known.
    #[default]
    Unknown,
}

/// A comparison of the low bits of a register with a number, whose outcome is in the flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compares {
    /// The register.
    pub register: u8,
    /// How many bits: 8, 16, 32 or 64.
    pub bits: u8,
    /// The number, in so many bits.
    pub number: u64,
}

/// What a table of labels of new code's own is aligned to, in bytes: one instruction forms such an address.
pub const LABEL_TABLE: u64 = 4096;

/// A load of what could be an entry of a jump table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableLoad {
    /// The register that it is loaded into; `None`: it is jumped to.
    pub to: Option<u8>,
    /// The register with an address, if there is one.
    pub base: Option<u8>,
    /// The register with the index.
    pub index: u8,
    /// How many low bits of it count: 32 or 64.
    pub bits: u8,
    /// Bytes of an entry: 4, extended with their sign, or 8.
    pub width: u8,
    /// What is added to the address.
    pub disp: u64,
    /// Bytes of the instruction in front of the displacement; nothing is after it.
    pub lead: u8,
}

/// How new code reads a table of labels of its own, where more changes than the load's displacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LabelLoad {
    /// In the place of the load the table's address is formed, in the register that is loaded.
    Formed,
    /// The register with the base holds the address of the table of new code's own.
    Based,
    /// In the place of the load the table's address is formed in this other register, which nothing reads behind it.
    Scratch(u8),
    /// The load has a displacement that counts from the old table, whose address is added to the word (x86-64).
    Displaced,
}

/// Straight code that ends with a jump through a table of distances, and that may be encoded again as one through a
/// table of words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableJump {
    /// Number of its instructions, the jump among them.
    pub count: u8,
    /// The table, if its own instructions form that address.
    pub table: Option<u64>,
    /// The register that holds that address where the entry is loaded.
    pub register: u8,
    /// The register with the index.
    pub index: u8,
    /// How many low bits of it count: 32 or 64.
    pub bits: u8,
    /// Bytes of an entry: 1, 2 or 4.
    pub width: u8,
    /// Entries have a sign.
    pub signed: bool,
    /// Entries are shifted left by this.
    pub shift: u8,
    /// The place in the code that they count from; `None`: the table.
    pub anchor: Option<u64>,
    /// General registers that it overwrites, one bit each.
    pub writes: u32,
}

/// What an instruction does with memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Reads it.
    pub loads: bool,
    /// Writes it.
    pub stores: bool,
}

/// How a counter is incremented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterMode {
    /// Read, add, write: exact in a single thread.
    Plain,
    /// One atomic addition: exact with threads.
    Atomic,
    /// The same in one instruction that not every processor has (AArch64: `stadd`). On x86-64 no different.
    AtomicOne,
    /// Every thread in an area of its own (x86-64: relative to the GS base): exact with threads, and as fast
    /// as plain. Needs entry checks ([`Runtime::put_entry_check`]) and [`Runtime::per_thread_runtime`]; addresses of
    /// counters are offsets in the area. Elsewhere as `Atomic`.
    PerThread,
    /// Biased to one thread, the owner: it counts without locks in counters of its own, all others atomically in
    /// those that they share. Exact with threads; nearly as fast as plain in the owner. See [`CounterPlace`] and
    /// [`Runtime::biased_runtime`]. Only where [`Runtime::BIASED`] says that the machine has it.
    Biased,
}

/// Where a counter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterPlace<T> {
    /// The counter: with [`CounterMode::Biased`] that of all threads but the owner.
    pub counter: T,
    /// With [`CounterMode::Biased`] the owner's.
    pub owners: T,
    /// With [`CounterMode::Biased`] the word that says who the owner is.
    pub owner: T,
}

impl<T: Copy> CounterPlace<T> {
    /// Of any mode but [`CounterMode::Biased`].
    pub fn one(counter: T) -> CounterPlace<T> {
        CounterPlace {
            counter,
            owners: counter,
            owner: counter,
        }
    }
}

/// Code being emitted: bytes, and the places in them that wait for an address.
/// `T` says what a place refers to; the rewriter chooses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code<T> {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Where addresses are missing, in ascending `at`.
    pub fixups: Vec<Fixup<T>>,
    /// Where the stack pointer is elsewhere than in the program that this is added to, in ascending `at`: what unwind
    /// tables have to know.
    pub stack: Vec<StackMove>,
}

impl<T> Default for Code<T> {
    fn default() -> Self {
        Code {
            bytes: Vec::new(),
            fixups: Vec::new(),
            stack: Vec::new(),
        }
    }
}

impl<T> Code<T> {
    /// Notes that from here on the stack pointer is `down` bytes below the program's own, and these registers are saved
    /// there.
    pub fn stack_is(&mut self, down: u32, saved: RegSet) {
        let (at, link) = (self.bytes.len() as u32, None);
        self.stack.push(StackMove {
            at,
            down,
            saved,
            link,
        });
    }

    /// Notes that of the next instruction the same holds as before, and that it is a call which overwrites the register
    /// with the program's return address: that is in another one, from where the routine that is called restores it.
    pub fn link_is(&mut self, register: u8) {
        let at = self.bytes.len() as u32;
        let before = self.stack.last().copied();
        let before = before.unwrap_or_default();
        self.stack.push(StackMove {
            at,
            link: Some(register),
            ..before
        });
    }

    /// Notes that the return address is in its register again.
    pub fn link_is_back(&mut self) {
        let at = self.bytes.len() as u32;
        let before = self.stack.last().copied().unwrap_or_default();
        self.stack.push(StackMove {
            at,
            link: None,
            ..before
        });
    }
}

/// Where the stack pointer is in code that is added to a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackMove {
    /// Offset in [`Code::bytes`] of the first instruction of which it holds.
    pub at: u32,
    /// How many bytes it is below where it is in the program.
    pub down: u32,
    /// Registers of the program that are on the stack meanwhile, and hold something else.
    pub saved: RegSet,
    /// The register that holds the program's return address meanwhile, if that is not the one which calls write it to.
    pub link: Option<u8>,
}

/// A place that waits for an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fixup<T> {
    /// Offset of the field in [`Code::bytes`].
    pub at: u32,
    /// How the address is put there.
    pub kind: FixupKind,
    /// What it is the address of.
    pub target: T,
}

/// An address that does not fit its field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind:?} at {place:#x} cannot reach {target:#x}")]
pub struct OutOfRange {
    /// The kind of field.
    pub kind: FixupKind,
    /// Address of the field.
    pub place: u64,
    /// The address that was to be put there.
    pub target: u64,
}

/// Length of a branch: the short form where there is one, or the form that reaches everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// x86: 8-bit displacement. AArch64: the branch itself.
    Short,
    /// x86: 32-bit displacement. AArch64: what a `b` reaches.
    Long,
}

/// What a recorder of indirect calls refers to; see [`Counters::put_site`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SiteRef {
    /// A word of the site's table in the counter pages, by its index.
    Table(u32),
    /// With [`CounterMode::Biased`]: a word of the owner's table of the site.
    OwnersTable(u32),
    /// With [`CounterMode::Biased`]: the word that says who the owner is.
    Owner,
    /// The word that holds the load bias ([`RuntimeConfig::bias_slot`]).
    Bias,
    /// The shared slow path ([`Counters::put_site_slow`]).
    Slow,
    /// An address of the original program, which the original instruction's operand designates.
    Original(u64),
}

/// A table whose entries are distances from a place in the code; see [`JumpShape::Anchored`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// Address of the table, if it is formed in sight of the jump.
    pub table: Option<u64>,
    /// The register that holds it.
    pub register: u8,
    /// The place in the code.
    pub anchor: u64,
    /// Bytes of an entry: 1, 2 or 4.
    pub bytes: u8,
    /// Entries have a sign.
    pub signed: bool,
    /// Entries are shifted left by this.
    pub shift: u8,
    /// Number of entries, if a bound check is in sight.
    pub count: Option<u32>,
}

/// A table whose entries are distances from the table itself, or addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableInPlace {
    /// Its address, if it is formed in sight of the jump.
    pub table: Option<u64>,
    /// The register that holds it.
    pub register: u8,
    /// Bytes of an entry: 4 of a distance with its sign, 8 of an address.
    pub bytes: u8,
    /// Number of entries, if a bound check is in sight.
    pub count: Option<u32>,
}

/// The parts of a start-up routine that the tool decides; see [`Runtime::runtime`].
#[derive(Clone, Debug)]
pub struct RuntimeConfig<'a> {
    /// Where the routine will be (link-time address).
    pub at: u64,
    /// First byte of the counter pages (page-aligned, link-time address).
    pub counters: u64,
    /// Their length in bytes (a multiple of the page size).
    pub counters_len: u64,
    /// Where in the counter pages the tables of indirect call sites begin, which reach to their end (a multiple of 64;
    /// `counters_len` if there are none). Everything before are plain counters.
    pub sites_offset: u64,
    /// A private, writable, zero-filled 8-byte word that receives the load bias (run-time minus link-time address).
    pub bias_slot: u64,
    /// First page of the profile file as it must be; at most 4096 bytes, the rest is zero. The counters
    /// follow at [`Counters::COUNTER_UNIT`].
    pub header: &'a [u8],
    /// How many bytes of `header` an existing file must agree with.
    pub header_check: usize,
    /// File name when the environment names none; `%p` process id, `%b` build-id, `%h` host name, `%m`
    /// nothing (merged), `%%`.
    pub pattern: &'a str,
    /// The build-id in hexadecimal, for `%b`.
    pub build_id: &'a str,
    /// What runs first and where it continues.
    pub entry: RuntimeEntry,
}

impl RuntimeConfig<'_> {
    /// Whether there are tables of indirect call sites.
    pub(crate) fn has_sites(&self) -> bool {
        self.sites_offset < self.counters_len
    }
}

/// Code for which a start-up routine asks for huge pages; see [`Runtime::huge_pages`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HugePages {
    /// Where the routine will be (link-time address).
    pub at: u64,
    /// The code, at a multiple of [`HUGE_PAGE`].
    pub start: u64,
    /// Its length in bytes, a multiple of that.
    pub len: u32,
    /// What runs first and where it continues.
    pub entry: RuntimeEntry,
}

/// Bytes of a huge page, of both machines if their pages have 4 KiB.
pub const HUGE_PAGE: u64 = 2 << 20;

/// How the start-up routine is entered, and what follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuntimeEntry {
    /// The program's ELF entry: stack holds argc, argv, envp; continues at `next` with every register as it was.
    Program {
        /// The original entry (link-time address).
        next: u64,
    },
    /// Called as an initialiser (DT_INIT or a slot of DT_INIT_ARRAY); continues at `next` if any, else returns.
    Library {
        /// The original initialiser (link-time address).
        next: Option<u64>,
    },
}

/// Reading instructions: what they do, where they go, and what in them depends on their position.
pub trait Decode: Copy + Send + Sync + 'static {
    /// The instruction set's name as users write it.
    const NAME: &'static str;

    /// Flags as members of a [`RegSet`].
    const FLAGS: RegSet;

    /// What may be read after a return or a tail call leaves the function, flags excepted. Every general register:
    /// callers compiled with inter-procedural register allocation rely on registers that the callee does not write.
    const LIVE_AT_EXIT: RegSet;

    /// Registers that calls and returns of compiled functions leave to stubs. Part of the effects of calls
    /// and returns, but not to be relied on in a function that may be hand-written (one without unwind
    /// information).
    const CALL_SCRATCH: RegSet;

    /// Registers that calls leave alone, so that landing pads of exceptions may read them.
    const KEPT_BY_CALLS: RegSet;

    /// Registers that linkers' stubs may use between a call and its callee, so that recorders and comparisons of
    /// promoted calls use them.
    const STUB_SCRATCH: RegSet;

    /// What a counter would like to find dead: as long as that is undecided, looking further is worth it.
    const SOUGHT: RegSet;

    /// How many instructions to look at for that.
    const LOOK_AHEAD: usize;

    /// Decodes one instruction. `None` when the bytes are not a whole, valid instruction, or one whose dependence on
    /// its position cannot be kept (see the instruction set's `decode` module).
    fn decode(bytes: &[u8], addr: u64) -> Option<Insn>;

    /// Whether these bytes are in a part of the encoding space in which no version of the architecture has an
    /// instruction, whether [`Self::decode`] knows all of them or not.
    fn is_unallocated(_bytes: &[u8]) -> bool {
        false
    }

    /// Decodes one instruction after the other from `addr` until `visit` says false or `bytes` end.
    /// Returns the address where it stopped because of an invalid or incomplete instruction, if it did.
    fn sweep(bytes: &[u8], addr: u64, visit: impl FnMut(&Insn) -> bool) -> Option<u64>;

    /// The same to the end of `bytes`, and appends the instructions to a list.
    fn list(
        bytes: &[u8],
        addr: u64,
        list: &mut Vec<Insn>,
        mut visit: impl FnMut(&Insn),
    ) -> Option<u64> {
        Self::sweep(bytes, addr, |insn| {
            visit(insn);
            list.push(*insn);
            true
        })
    }

    /// What the instruction reads and overwrites. Calls read every general register and kill the flags.
    fn effects(bytes: &[u8], insn: &Insn) -> Effects;

    /// The general registers that an indirect call or jump itself needs to know where it goes.
    fn operand_registers(bytes: &[u8], insn: &Insn) -> RegSet;

    /// Whether an instruction reads and writes memory; `bytes` begin with it. The stack slots that calls and
    /// returns use by themselves do not count, as in LLVM's descriptions of instructions; those of pushes and
    /// pops do.
    fn memory(bytes: &[u8], insn: &Insn) -> Memory;

    /// Decodes one instruction after the other, as [`Decode::sweep`] does, and says what each is called: what
    /// hashes of code are made of, so it must not change from release to release. Without anything better it
    /// is the byte that holds most of the operation code.
    fn mnemonics(bytes: &[u8], addr: u64, mut visit: impl FnMut(&Insn, &str)) {
        let mut name = String::new();
        Self::sweep(bytes, addr, |insn| {
            let end = insn.end().wrapping_sub(addr) as usize;
            let last = bytes[..end.min(bytes.len())].last().copied().unwrap_or(0);
            name.clear();
            for digit in [last >> 4, last & 15] {
                name.push(char::from_digit(u32::from(digit), 16).unwrap_or('0'));
            }
            visit(insn, &name);
            true
        });
    }

    /// Whether a condition is the one that LLVM's BOLT takes for the straight one of the two that exclude
    /// each other. Its depth-first order of blocks visits the two ways of a branch accordingly.
    fn is_canonical(_cond: Cond) -> bool {
        true
    }

    /// Reads the address in the field at the beginning of `bytes`, which is at `place`. `None` if `bytes` are too few.
    fn read_field(kind: FixupKind, bytes: &[u8], place: u64) -> Option<u64>;

    /// Where a linker's veneer at `addr` leads, if `bytes` begin with one.
    fn veneer_target(bytes: &[u8], addr: u64) -> Option<u64> {
        let _ = (bytes, addr);
        None
    }

    /// Whether an instruction's field reaches only what is nearby, so that a copy elsewhere may need another spelling.
    fn is_near(insn: &Insn) -> bool;

    /// What code does with distances that the linker computed is to add them to an address that one
    /// instruction has formed.
    const ADDS_DISTANCES: bool;

    /// What kind of table the indirect jump at the end of `path` goes through. `path` is straight-line code:
    /// nothing jumps into its middle; `code` gives an instruction's bytes.
    fn jump_shape<'c>(path: &[Insn], code: impl Fn(&Insn) -> &'c [u8]) -> JumpShape;

    /// The table of the indirect jump at the end of `path`, where it can stay as it is and a jump to new code be
    /// written at each old target, and its entries do not count from a place in the code ([`JumpShape::Anchored`]).
    fn table_in_place<'c>(
        _path: &[Insn],
        _code: impl Fn(&Insn) -> &'c [u8],
    ) -> Option<TableInPlace> {
        None
    }

    /// The word in memory that the indirect jump at the end of `path` loads its target from, if its address
    /// is fixed and in sight.
    fn jump_slot<'c>(path: &[Insn], code: impl Fn(&Insn) -> &'c [u8]) -> Option<u64>;

    /// Addresses that instructions form in registers, as (register, address), where one instruction does not
    /// show it; control flow is ignored, so these are guesses.
    fn formed<'c>(insns: &[Insn], code: impl Fn(&Insn) -> &'c [u8]) -> Vec<(u8, u64)>;

    /// Tells of every position in `bytes` where an instruction or the field of one may begin what could be there, and
    /// the address that it would designate.
    fn places(bytes: &[u8], addr: u64, found: &mut impl FnMut(Place, u64));

    /// Tells of the addresses that several instructions of one range of code form or access together (`adrp` with
    /// `add`, loads and stores), for pages that are `wanted`. Where the page may be in its register beyond straight
    /// code, of all that use this register.
    fn in_parts(
        _bytes: &[u8],
        _addr: u64,
        _wanted: &dyn Fn(u64) -> bool,
        _found: &mut dyn FnMut(Place, u64),
    ) {
    }

    /// Tells of the numbers that several instructions make, or load from among them, in code at a fixed address.
    fn numbers(_bytes: &[u8], _addr: u64, _found: &mut dyn FnMut(u64)) {}

    /// The number of four or eight bytes at an instruction's end: an immediate operand, or a displacement behind which
    /// no immediate is; not where a branch leads, nor a distance from the program counter. `bytes` are the instruction.
    fn last_number(_bytes: &[u8], _insn: &Insn) -> Option<u64> {
        None
    }

    /// More bytes than this no instruction reads from one place that it names itself.
    const WIDEST: u64;

    /// What instructions are aligned to, in bytes.
    const INSTRUCTION_ALIGNMENT: u64;

    /// Entries of jump tables that are added to an address: bytes, and by how much they are shifted left.
    const TABLE_ENTRIES: &'static [(u64, u32)];

    /// What the instruction leaves in registers; `bytes` begin with it.
    fn values(_bytes: &[u8], _insn: &Insn) -> Values {
        Values::UNKNOWN
    }

    /// What a conditional branch asks; `bytes` are the straight code that ends with it, and begin at `addr`.
    fn question(_bytes: &[u8], _addr: u64, _cond: Cond) -> Question {
        Question::default()
    }

    /// The largest value of the low bits of the register of `compares`, where a branch on `cond` after that comparison
    /// was taken, or was not.
    fn bounds(_cond: Cond, _taken: bool, _compares: &Compares) -> Option<u64> {
        None
    }

    /// The instruction as a load of an entry of a jump table, or a jump through one, that may be encoded again
    /// with another displacement.
    fn table_load(_bytes: &[u8], _insn: &Insn) -> Option<TableLoad> {
        None
    }

    /// A load of a label reads another table by other code ([`Encode::put_label_load`]) in all programs, as no load has
    /// a displacement beside an index. Else that is so where the program is not at a fixed address.
    const HAS_LABEL_LOADS: bool = false;

    /// What the end of straight code is, if that is a jump through a table which may be encoded again. `forms`: what
    /// forms the table's address right in front of it belongs to it.
    fn table_jump<'c>(
        _path: &[Insn],
        _code: impl Fn(&Insn) -> &'c [u8],
        _forms: bool,
    ) -> Option<TableJump> {
        None
    }

    /// The instruction as an addition of a whole register (the second) to another.
    fn adds(_bytes: &[u8], _insn: &Insn) -> Option<(u8, u8)> {
        None
    }

    /// The register that an indirect jump goes to.
    fn jump_register(_bytes: &[u8], _insn: &Insn) -> Option<u8> {
        None
    }

    /// The slot of a procedure linkage table's stub at `addr`, if `bytes` begin with one that does nothing but jump to
    /// what the slot holds.
    fn stub_slot(bytes: &[u8], addr: u64) -> Option<u64>;

    /// What such stubs are aligned to, in bytes.
    const STUB_ALIGNMENT: usize;

    /// Whether an instruction may be the call of a TLS descriptor as compilers have it: `before` ends where its bytes
    /// begin, and is empty where a function does.
    fn may_call_descriptor(before: &[u8], bytes: &[u8]) -> bool;
}

/// Writing branches, jumps, calls and fields that hold addresses.
pub trait Encode: Decode {
    /// Whether a conditional branch out of its fragment should go to a jump at the fragment's end, because a
    /// longer form costs the fall-through path a jump.
    const FAR_CONDITIONS_BY_STUB: bool;

    /// Offsets in code of instructions that may not be in the last words of a page ([`Self::is_near_end_of_page`]), as
    /// some processors then get what follows wrong.
    fn not_near_end_of_page(_code: &[u8]) -> Vec<u32> {
        Vec::new()
    }

    /// Whether an address is in those words of a page of 4 KiB.
    fn is_near_end_of_page(_addr: u64) -> bool {
        false
    }

    /// Writes an address into the field at the beginning of `bytes`, which is at `place`. On error `bytes`
    /// are as before; too few of them are an error too.
    fn write_field(
        kind: FixupKind,
        bytes: &mut [u8],
        place: u64,
        target: u64,
    ) -> Result<(), OutOfRange>;

    /// The inverse condition.
    fn invert(cond: Cond) -> Cond;

    /// Length of an unconditional jump.
    fn jump_len(reach: Reach) -> usize;

    /// Length of a conditional jump.
    fn cond_jump_len(reach: Reach) -> usize;

    /// Length of the replacement for a [`Flow::ShortCond`] instruction.
    fn short_cond_len(original: &[u8]) -> usize;

    /// Whether a branch that ends `distance` bytes before its target can be short: a conditional one, or a plain jump.
    fn reaches_short(cond: Option<Cond>, distance: i64) -> bool;

    /// Appends an unconditional jump, and its fixup.
    fn put_jump<T>(out: &mut Code<T>, reach: Reach, target: T);

    /// Appends a conditional jump, and its fixup.
    fn put_cond_jump<T>(out: &mut Code<T>, cond: Cond, reach: Reach, target: T);

    /// Appends what does the work of a [`Flow::ShortCond`] instruction (`original` are its bytes) with a
    /// target anywhere: the original jumping over a short jump to a long one.
    fn put_short_cond<T>(out: &mut Code<T>, original: &[u8], target: T);

    /// Appends a direct call, and its fixup.
    fn put_call<T>(out: &mut Code<T>, target: T);

    /// Appends what takes the place of an old entry: a jump, after a landing pad if the instruction there was
    /// one besides something else. `original` begins with the first instruction that is overwritten.
    fn put_entry<T>(out: &mut Code<T>, original: &[u8], target: T);

    /// How far direct jumps and calls reach in either direction, in bytes.
    const BRANCH_REACH: u64 = 1 << 31;

    /// Appends a veneer: a jump to anywhere, through a register that is not used between a call and its callee.
    fn put_veneer<T: Copy>(out: &mut Code<T>, target: T) {
        Self::put_jump(out, Reach::Long, target);
    }

    /// [`Encode::put_entry`] where the target may be anywhere.
    fn put_far_entry<T: Copy>(out: &mut Code<T>, original: &[u8], target: T) {
        Self::put_entry(out, original, target);
    }

    /// Appends what does the same as an instruction that [is near](Decode::is_near), with a target anywhere, and
    /// returns true; or appends nothing and returns false if that cannot be encoded.
    fn put_far<T: Copy>(out: &mut Code<T>, original: &[u8], target: T) -> bool;

    /// Appends a call, or a jump, to what the word `slot` holds, in the registers of a stub of the procedure linkage
    /// table, and returns true; or appends nothing and returns false if there is no such form.
    fn put_through_slot<T: Copy>(out: &mut Code<T>, jump: bool, slot: T) -> bool;

    /// Whether [such a call](Encode::put_through_slot) is about as long as a direct one.
    const SLOT_CALLS_ARE_SHORT: bool;

    /// Finds, in straight code at `addr`, the loads of what `constant` (address, length) knows, and calls `found`
    /// with each and with code that has the number in it, if there is such code that is not much longer.
    fn fold_constants<'c, T>(
        bytes: &[u8],
        addr: u64,
        constant: impl Fn(u64, u64) -> Option<&'c [u8]>,
        found: impl FnMut(&Insn, Option<Code<T>>),
    );

    /// Calls put the return address on the stack, not into a register.
    const CALLS_PUSH: bool;

    /// Whether an instruction, which may be a return, has nothing to do with the stack but for the return's own word.
    fn leaves_stack(_bytes: &[u8], _insn: &Insn) -> bool {
        false
    }

    /// Appends what does the same as an indirect call (`original`), and first compares the operand with functions, each
    /// given by its value as a pointer and as the target of a direct call, and calls the one that it is. `fixed`: the
    /// program is at a fixed address. `slot` gives the target for memory at an address. Returns false if
    /// there is no such form; what was appended is of no use then.
    fn put_promoted_call<T: Copy>(
        _out: &mut Code<T>,
        _original: &[u8],
        _insn: &Insn,
        _fixed: bool,
        _functions: &[(T, T)],
        _slot: impl Fn(u64) -> T,
    ) -> bool {
        false
    }

    /// Appends a [`TableLoad`] (`original`) with another displacement. Returns false if there is no such form.
    fn put_table_load<T>(_out: &mut Code<T>, _original: &[u8], _displacement: T) -> bool {
        false
    }

    /// Appends what a [`TableLoad`] of a label does (`original`), through a table of new code's own. `wide`: its
    /// entries are addresses of 8 bytes; else they are words that are added to what is in the register with the base.
    /// No other register is written than by `original`. A table that is [`LabelLoad::Formed`] begins a page
    /// ([`LABEL_TABLE`]); of one that is [`LabelLoad::Displaced`], `table` is its distance from the old one. Returns
    /// false if there is no such form.
    fn put_label_load<T>(
        _out: &mut Code<T>,
        _original: &[u8],
        _how: LabelLoad,
        _wide: bool,
        _table: T,
    ) -> bool {
        false
    }

    /// Appends what goes on in old code where an index is of no label that new code has: a landing pad for jumps, a
    /// load of the old table's entry (`entry`) into a register (`to`), and a jump to it. `base`: a register that holds
    /// another table's address, and gets that of the old one first. Returns false if there is no such form.
    fn put_label_fallback<T: Copy>(
        _out: &mut Code<T>,
        _to: u8,
        _entry: T,
        _base: Option<(u8, T)>,
    ) -> bool {
        false
    }

    /// Appends what gives registers the values that a jump through a table leaves in them: one (`target`) an address,
    /// and another (`distance`) a number that is extended with its sign. It overwrites no flag. Returns false if there
    /// is no such form.
    fn put_restored<T>(_out: &mut Code<T>, _target: (u8, T), _distance: Option<(u8, i32)>) -> bool {
        false
    }

    /// Appends what lets a register pass (`base`) that holds a table's address (`table`), and leads to a load of the
    /// old code (`old`) where it holds another. It overwrites the register `scratch`, and no flag. Returns false if
    /// there is no such form.
    fn put_base_guard<T: Copy>(
        _out: &mut Code<T>,
        _base: u8,
        _scratch: u8,
        _table: T,
        _old: T,
    ) -> bool {
        false
    }

    /// Appends what an instruction does that forms a table's address (`original`), for one of new code's own, which
    /// begins a page ([`LABEL_TABLE`]). Returns false if there is no such form.
    fn put_table_base<T>(_out: &mut Code<T>, _original: &[u8], _table: T) -> bool {
        false
    }

    /// Appends what a [`TableJump`] does in front of its jump (`original`), through a table of words that count from
    /// the table; it overwrites no other register. Returns false if there is no such form.
    fn put_table_jump<T: Copy>(_out: &mut Code<T>, _original: &[u8], _table: T) -> bool {
        false
    }

    /// Appends a comparison of a register with `last`, and a branch to `old` where it is above. Returns false if there
    /// is no such form.
    fn put_index_guard<T>(_out: &mut Code<T>, _register: u8, _last: u32, _old: T) -> bool {
        false
    }

    /// Appends `len` bytes that do nothing, in as few instructions as possible.
    fn put_nops(out: &mut Vec<u8>, len: usize);

    /// Bytes between functions that trap when run into.
    const PADDING: u8;
}

/// Instrumentation: increments of counters, and recorders of indirect calls.
pub trait Counters: Encode {
    /// Unit of the counter pages, and where in the profile file they begin: the largest page size that the
    /// machine's systems use.
    const COUNTER_UNIT: u64;

    /// Number of the stack pointer in unwind tables.
    const UNWIND_STACK: u16;

    /// Number in unwind tables of a general register.
    fn unwind_register(register: u8) -> u16;

    /// The stack pointer, by the machine's number.
    const STACK: u8;

    /// By how much a call moves the stack pointer: by the return address, or not.
    const CALL_PUSHES: i64;

    /// A common information entry (CIE) of `.eh_frame` whose initial row says what holds where a call has just come;
    /// without a personality routine, with addresses of code in four bytes relative to themselves.
    const CIE: &'static [u8];

    /// What an instruction does to registers and the stack, as far as [`frames`] need to know; `bytes` begin with it.
    /// `None` if that is not known.
    fn stack_ops(bytes: &[u8], insn: &Insn) -> Option<frames::StackOps>;

    /// Whether code has instructions that run only on processors which know [`CounterMode::AtomicOne`]; false
    /// where it is no different.
    fn has_atomic_one(bytes: &[u8]) -> bool;

    /// Whether code has an exclusive load, as processors without the instructions of [`CounterMode::AtomicOne`] need.
    fn has_exclusive_load(bytes: &[u8]) -> bool;

    /// Length of what [`Counters::put_counter`] appends for the same arguments.
    fn counter_len(mode: CounterMode, live: RegSet) -> usize;

    /// Appends an increment of an 8-byte counter. `live` holds what must survive: with flags dead it is one
    /// instruction; with flags live and a register dead a load, an addition that keeps flags, and a store; else a
    /// register is saved below the red zone.
    fn put_counter<T: Copy>(
        out: &mut Code<T>,
        mode: CounterMode,
        live: RegSet,
        counter: CounterPlace<T>,
    );

    /// Appends a recorder for an indirect call or tail jump and returns true; or appends nothing and returns
    /// false if that instruction cannot be recorded. `original` are its bytes, `insn` is what they decode to,
    /// at their original address. The recorder is entered by a direct call (or jump) in place of the original
    /// instruction, counts the target in the site's table and jumps to it. `fixed`: the program is at a fixed
    /// address, its load bias is zero, which may make it shorter. `refer` gives the fixup targets. The
    /// instruction set's `site` module has the table's layout, and says which registers a recorder destroys.
    fn put_site<T: Copy>(
        out: &mut Code<T>,
        mode: CounterMode,
        fixed: bool,
        original: &[u8],
        insn: &Insn,
        refer: impl Fn(SiteRef) -> T,
    ) -> bool;

    /// Appends the shared slow path of all recorders. `image` is the range of link-time addresses of the
    /// program: other targets are counted as external.
    fn put_site_slow<T: Copy>(out: &mut Code<T>, mode: CounterMode, image: (u64, u64));
}

/// The start-up routine, and what threads with counters of their own need.
pub trait Runtime: Counters {
    /// The start-up routine, to be put at `config.at`; entered at its first byte. Position-independent at run time.
    fn runtime(config: &RuntimeConfig<'_>) -> Result<Vec<u8>, RuntimeError>;

    /// A start-up routine that asks the system for huge pages (`madvise` with `MADV_COLLAPSE`, and where that is
    /// refused with `MADV_HUGEPAGE`), whatever comes of it. Destroys nothing but flags.
    fn huge_pages(config: &HugePages) -> Result<Vec<u8>, RuntimeError>;

    /// What programs with [`CounterMode::PerThread`] need, if this machine has it.
    const PER_THREAD: Option<PerThreadMemory> = None;

    /// Appends what makes sure that a thread which comes in from outside has an area of its own; runs on into
    /// what follows. `save`: at this entry flags and scratch registers may hold something. `ready` and
    /// `enter` are [`PerThreadMemory::ready`] and the address that [`Runtime::per_thread_runtime`] gives.
    fn put_entry_check<T>(_out: &mut Code<T>, _save: bool, _ready: T, _enter: T) {}

    /// Appends what makes sure of that after a call that may have returned in a forked child.
    fn put_fork_check<T>(_out: &mut Code<T>, _ready: T, _enter: T) {}

    /// What an entry check without `save` destroys.
    const ENTRY_SCRATCH: RegSet = RegSet::EMPTY;

    /// What programs with [`CounterMode::Biased`] need, if this machine has it.
    const BIASED: Option<BiasedMemory> = None;

    /// As [`Runtime::runtime`], and makes the thread that runs it the owner of counters of its own.
    /// [`BiasedMemory`] says what is around `config.counters`, which are those that all other threads share.
    fn biased_runtime(_config: &RuntimeConfig<'_>) -> Result<Vec<u8>, RuntimeError> {
        Err(RuntimeError::Assemble {
            why: format!("{} has no biased counters", Self::NAME),
        })
    }

    /// The first instruction of the code at `addr` that may make a thread which has the identity of another one, so
    /// that both would take themselves for the owner of biased counters. `None` if there is none.
    fn biased_obstacle(_bytes: &[u8], _addr: u64) -> Option<(u64, &'static str)> {
        None
    }

    /// The first instruction of the code at `addr` that keeps its program from per-thread counters: it uses
    /// what they need, or may make a thread or a process without being seen. `None` if there is none. `forks`
    /// says what the function may do that a call or jump leads to. `stays`: the code is not moved, so its
    /// calls of such functions are not followed by checks.
    fn per_thread_obstacle(
        _bytes: &[u8],
        _addr: u64,
        _stays: bool,
        _forks: impl Fn(&Insn) -> Forks,
    ) -> Option<(u64, &'static str)> {
        None
    }

    /// Whether `bytes`, an instruction after which control goes on to the next, may be what
    /// [`per_thread_obstacle`](Runtime::per_thread_obstacle) finds. Quick, and true of more than that.
    fn may_be_per_thread_obstacle(_bytes: &[u8]) -> bool {
        true
    }

    /// Whether `bytes` begin with an instruction that reads or writes memory in the segment of per-thread counters and
    /// that a program may run.
    fn uses_thread_segment(_bytes: &[u8]) -> bool {
        false
    }

    /// Whether `bytes` begin with an instruction that only operating systems may run: a program that comes to it ends.
    fn is_privileged(_bytes: &[u8]) -> bool {
        false
    }

    /// As [`Runtime::runtime`], with the routine that gives threads their areas, and its address ("enter").
    /// `config.counters` are those of the first thread, after [`PerThreadMemory::len`] bytes of private
    /// zeros; the load bias is stored at their beginning.
    fn per_thread_runtime(_config: &RuntimeConfig<'_>) -> Result<(Vec<u8>, u64), RuntimeError> {
        Err(RuntimeError::Assemble {
            why: format!("{} has no per-thread counters", Self::NAME),
        })
    }
}

/// An instruction set: what the rewriter is generic over. See [`with_isa`] for the choice of one.
pub trait Isa: Runtime {}

/// What an indirect jump goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JumpShape {
    /// A table of values relative to the table's own address.
    Relative {
        /// Its address, if it is formed in sight of the jump.
        table: Option<u64>,
        /// Bytes of an entry: 4, or 8 in the large code model.
        width: u8,
    },
    /// A table of addresses.
    Absolute {
        /// Its address, if it is in sight.
        table: Option<u64>,
    },
    /// A table of distances from a place in the code.
    Anchored(Anchor),
    /// Something else.
    Unknown,
}

/// Whether a function may return in a new process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Forks {
    /// It does not.
    #[default]
    Never,
    /// It may: `fork`.
    Maybe,
    /// If its first argument is the number of such a system call: `syscall`.
    ByNumber,
}

/// The private memory in front of the first thread's counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerThreadMemory {
    /// Its length in bytes.
    pub len: u64,
    /// The offset in it of the byte that entry checks look at.
    pub ready: u64,
}

/// The memory of biased counters: a private page that forked children find wiped, at its beginning the identity of the
/// owner, 0 if there is none; the counters that all other threads share; as many bytes of the owner's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BiasedMemory {
    /// Bytes in front of the counters.
    pub before: u64,
}

/// A start-up routine that cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuntimeError {
    /// The file name pattern is too long or has an unknown `%` escape.
    #[error("profile file pattern {pattern:?}: {why}")]
    Pattern {
        /// The pattern as given.
        pattern: String,
        /// What is wrong with it.
        why: String,
    },
    /// An address is out of reach of the routine.
    #[error(transparent)]
    Range(#[from] OutOfRange),
    /// Addresses or lengths of the counter pages that cannot be.
    #[error("counter pages at {at:#x} of {len:#x} bytes, sites from {sites:#x}: {why}")]
    Counters {
        /// Their address.
        at: u64,
        /// Their length in bytes.
        len: u64,
        /// Where the site tables begin in them.
        sites: u64,
        /// What is wrong.
        why: &'static str,
    },
    /// A header that cannot be.
    #[error("profile header of {len} bytes, of which {check} must agree: {why}")]
    Header {
        /// Its length in bytes.
        len: usize,
        /// How many of them are compared.
        check: usize,
        /// What is wrong.
        why: &'static str,
    },
    /// The assembler refuses, which is a mistake of this crate.
    #[error("cannot assemble the start-up routine: {why}")]
    Assemble {
        /// The text.
        why: String,
    },
}

/// Bytes of one instruction that was built here.
pub type Bytes = SmallVec<[u8; 16]>;
