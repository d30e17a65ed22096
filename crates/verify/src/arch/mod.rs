//! The seam between the proof and an instruction set.
//!
//! The lock step ([`crate::walk`]) knows six kinds of things about an instruction: how long it is, where control goes
//! next, whether it does nothing, which bytes of it hold an address, what that address is, and whether the address is
//! formed or accessed. All of it comes from an [`Arch`]. One module per instruction set implements it; nothing else in
//! the crate names a decoder.
//!
//! Where an address takes two instructions (`adrp` and `add` on AArch64), the first has a field of the kind
//! [`FieldKind::Page`], and the seam has a few more questions: which instructions use the page, and what
//! instructions do to registers.

pub(crate) mod aarch64;
pub(crate) mod graph;
pub(crate) mod step;
pub(crate) mod x86_64;

use crate::addr::InputAddr;
use graph::Graph;
use smallvec::SmallVec;
use step::{Mem, Step};

/// Where control goes after an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// To the next instruction.
    Next,
    /// To the next instruction, and nothing else happens: padding.
    Nothing,
    /// To the target, and nothing else happens.
    Jump(u64),
    /// To the target if the condition holds, else to the next instruction.
    Branch {
        /// The condition: same number, same condition.
        cond: u16,
        /// The number of the opposite condition, if it can be had by another encoding.
        inverse: Option<u16>,
        target: u64,
    },
    /// Calls the target.
    Call(u64),
    /// Calls what a register or memory holds.
    IndirectCall,
    /// Jumps to what a register or memory holds.
    IndirectJump {
        /// The address comes out of a register or a computed place, not out of one fixed slot.
        computed: bool,
    },
    /// Leaves the function; the next instruction is not reached.
    Stop,
    /// Asks the operating system or traps; usually continues with the next instruction, but need not.
    Trap,
}

/// How an address is written in an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FieldKind {
    /// Displacement of a direct branch.
    Branch,
    /// PC-relative address that the instruction forms (`lea`).
    Forms,
    /// PC-relative address of memory that the instruction accesses.
    Accesses,
    /// Absolute address as an immediate.
    Absolute,
    /// PC-relative address of a page, which other instructions add to (`adrp`).
    Page,
}

/// What bytes of code are if an instruction begins where it would have to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MaybeField {
    /// The field of a direct branch to this address.
    Branch(InputAddr),
    /// That of an operand relative to the program counter: this address, or one a few bytes behind it if an immediate
    /// follows the field ([`MaybeField::FOLLOWING`]). Unless `forms`, the instruction does not form the address; one
    /// that does so has no immediate.
    Operand { target: InputAddr, forms: bool },
    /// A number that is loaded ([`Arch::loaded_number`]).
    Loaded(u64),
    /// The opcode of an indirect jump.
    IndirectJump,
    /// The prefix of an instruction that uses the segment of per-thread counters ([`Arch::uses_own`]).
    OwnSegment,
}

impl MaybeField {
    /// Bytes of the longest immediate, and some more.
    pub(crate) const FOLLOWING: u64 = 8;
}

/// The bytes of an instruction that hold an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    /// Offset in the instruction.
    pub at: u8,
    /// Length in bytes.
    pub len: u8,
    /// What it is.
    pub kind: FieldKind,
    /// The address.
    pub target: u64,
    /// How many bytes are read from there, if they may as well be read from a copy (a literal); else 0.
    pub literal: u8,
}

/// A decoded instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Insn {
    /// Length in bytes, at least 1.
    pub len: u8,
    pub flow: Flow,
    /// Position-dependent field; direct jumps and branches have theirs here too.
    pub field: Option<Field>,
    /// Bytes before a direct jump's or branch's opcode.
    pub prefixes: u8,
    /// A landing pad of indirect branches (`endbr64`).
    pub landing_pad: bool,
}

/// An instruction that adds a number to a register which holds the address of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageUse {
    /// The register with the page.
    pub base: u8,
    /// The register that receives the address; `None` if the address is accessed.
    pub dest: Option<u8>,
    /// The number.
    pub offset: u64,
}

/// What bytes could be, if an instruction were there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guess {
    /// A direct branch or call with a wide displacement.
    Wide,
    /// A direct branch with a narrow one.
    Narrow,
    /// An operand relative to the program counter.
    Relative,
    /// An address relative to it that is formed, where that is told from one that is accessed.
    Formed,
}

/// What an instruction does to general registers, one bit each: all that it may read, what it overwrites for
/// certain, and all that may have another value afterwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Touched {
    pub reads: u32,
    pub kills: u32,
    pub writes: u32,
}

/// What an instruction reads and overwrites for certain: general registers, one bit each, and flags
/// ([`crate::arch::step::flag`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Effects {
    pub reads: u32,
    pub kills: u32,
    pub flag_reads: u8,
    pub flag_kills: u8,
}

/// Straight code, and what it does to flags that are in question in front of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FlagsOver {
    /// Bytes, and how many instructions they are.
    pub len: usize,
    pub count: usize,
    /// Which of the flags are still in question behind it; `None`: one is read.
    pub open: Option<u8>,
}

/// What an instruction does to flags, and where control goes from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlagStep {
    /// It continues with the next. Flags that it reads, and that it overwrites for certain ([`step::flag`]).
    Next { len: u8, reads: u8, kills: u8 },
    /// To the target, or to the next.
    Branch { len: u8, reads: u8, target: u64 },
    /// To the target, and nothing else happens.
    Jump(u64),
    /// A call, or a return.
    Leaves,
}

/// Where an indirect call or jump finds its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operand {
    Register(u8),
    Memory(Mem),
}

/// A side of a comparison of whole words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compared {
    Register(u8),
    Memory(Mem),
    Number(i64),
}

/// One instruction that is done by several in another place, for reasons of reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Longer {
    /// Bytes of the old and of the new instructions.
    pub old_len: u8,
    pub new_len: u8,
    /// The address in both.
    pub old: Field,
    pub new: Field,
}

/// What an instruction does with a number: put it into a register, or calculate with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Takes {
    /// The same number, the same operation.
    pub operation: u16,
    /// The register that it is put into, or calculated with.
    pub register: u8,
    /// Of 64 bits, not of 32.
    pub wide: bool,
}

impl Takes {
    /// As many bits of a number as are taken.
    pub(crate) fn cut(&self, number: u64) -> u64 {
        if self.wide {
            number
        } else {
            number & 0xffff_ffff
        }
    }
}

/// Where such a number is loaded from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loaded {
    /// The address, if the instruction says it.
    pub at: u64,
    /// The register with a page to which a number is added, else.
    pub base: Option<(u8, u64)>,
    /// Bytes, at most 8.
    pub len: u8,
    /// Extended with its sign.
    pub signed: bool,
}

/// How an instruction that only calculates changes the stack pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StackChange {
    /// Adds a number.
    By(i64),
    /// Takes it down to a multiple of a power of two.
    Aligned,
}

/// All that an instruction may write, where no more has to be known of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plain {
    /// General registers that may hold something else afterwards, one bit each.
    pub writes: u32,
    pub keeps_flags: bool,
    /// Memory that is written to.
    pub memory: Option<Mem>,
    pub stack: Option<StackChange>,
}

/// What a routine that notes first calls is given, and what it leaves otherwise than it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Notes {
    /// The register with the counter's address.
    pub counter: u8,
    /// That register holds the page of that address afterwards.
    pub leaves_page: bool,
    /// General registers that may hold anything afterwards, one bit each.
    pub destroys: u32,
    /// The register whose value is in the register of return addresses afterwards.
    pub link: Option<u8>,
    /// Flags that may be others afterwards ([`step::flag`]): all of those that programs calculate with, or none.
    pub lost: u8,
}

/// An instruction that adds one to a word of 8 bytes at the thread's own base of counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counter {
    /// Bytes of the instruction.
    pub len: u8,
    /// Where the word is, from that base.
    pub offset: i64,
    /// Flags that hold something else afterwards ([`step::flag`]).
    pub lost: u8,
}

impl Counter {
    /// Whether its word is in memory of so many bytes at the base.
    pub(crate) fn is_in(&self, bytes: u64) -> bool {
        let end = self.offset.saturating_add(8);
        self.offset >= 0 && end <= bytes as i64 && self.offset % 8 == 0
    }
}

/// A start-up routine that asks for huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AsksForHugePages {
    /// For this memory: address and bytes.
    pub start: u64,
    pub len: u64,
    /// Where it continues; `None`: it returns.
    pub next: Option<u64>,
}

/// Code that calls, or jumps to, what a word at a fixed place holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThroughSlot {
    /// Where the word is.
    pub slot: u64,
    /// Bytes of all its instructions.
    pub len: u8,
    /// A call, not a jump.
    pub call: bool,
}

/// What an instruction leaves in general registers, as far as it bounds the index of a jump table or is an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leaves {
    /// All that it may write, one bit each.
    pub writes: u32,
    /// What it leaves in one of them.
    pub left: Option<(u8, Left)>,
    /// A comparison, whose outcome is in the flags: of the low bits, so many, of a register with a number.
    pub compares: Option<(u8, u8, u64)>,
    /// It writes no flag for certain.
    pub keeps_flags: bool,
    /// The low 8 bits of these registers are overwritten, and what was in them is not read.
    pub low: u32,
    /// These registers are read beyond their low 8 bits.
    pub wide: u32,
}

impl Leaves {
    /// Of an instruction that is not known: it may write every register and the flags, and read every register whole.
    pub(crate) const UNKNOWN: Leaves = Leaves {
        writes: u32::MAX,
        left: None,
        compares: None,
        keeps_flags: false,
        low: 0,
        wide: u32::MAX,
    };
}

/// What an instruction leaves in a register, whole. Numbers are unsigned, bits are counted from the lowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    Address(u64),
    Number(u64),
    /// The low bits of another register, above them zeros.
    Low {
        from: u8,
        bits: u8,
    },
    /// The low bits of another register, above them their sign.
    Signed {
        from: u8,
        bits: u8,
    },
    /// What its own low bits have in common with a number, above them zeros.
    And {
        bits: u8,
        number: u64,
    },
    /// Its own low bits shifted to the right, above them zeros.
    Right {
        bits: u8,
        by: u8,
    },
    /// What another register holds, and a number.
    Plus {
        from: u8,
        number: u64,
    },
    /// Anything up to a number.
    AtMost(u64),
}

/// A load of an entry of a jump table, or a jump through one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableLoad {
    /// The register that it is loaded into; `None`: it is jumped to.
    pub to: Option<u8>,
    pub base: Option<u8>,
    pub index: u8,
    /// How many low bits of it count.
    pub bits: u8,
    /// Entries are of 8 bytes, not of 4 that are extended with their sign.
    pub wide: bool,
    pub disp: u64,
    /// Prefixes beside those that belong to the registers' numbers; on AArch64 how the index is extended.
    pub marks: u8,
}

/// What new code has in the place of a load of a label, where that has no displacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LabelLoad {
    /// Bytes of all its instructions.
    pub len: u64,
    /// The table, if they form its address; else it is in `base`.
    pub table: Option<u64>,
    /// How far the table is from the address in `base`, if they say that. Then words count from that address.
    pub distance: Option<u64>,
    /// The register whose address is added to what was loaded, if one is.
    pub base: Option<u8>,
    /// The register with the index, and how the load extends it.
    pub index: (u8, u8),
    /// The register that the label is in afterwards. No other is written but `scratch`, and no flag.
    pub to: u8,
    /// The register that the table's address is formed in, if that is another. Then words count from the table.
    pub scratch: Option<u8>,
    /// Entries are addresses of 8 bytes, not words.
    pub wide: bool,
}

/// What new code has in the place of a label that it has none for: an entry of a table is loaded, and jumped to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LabelFallback {
    /// Bytes of all its instructions, the jump among them.
    pub len: u64,
    /// Where the entry is.
    pub entry: u64,
    /// The register that it is loaded into.
    pub to: u8,
    /// Another register, and the address that is formed in it before.
    pub base: Option<(u8, u64)>,
}

/// Instructions that let a register pass which holds an address, and lead any other value of it to `old`. They write
/// no flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BaseGuard {
    pub register: u8,
    pub address: u64,
    pub old: u64,
    /// The only register that is written.
    pub scratch: u8,
    /// Bytes of all.
    pub len: u8,
}

/// Straight code of the input that ends with a jump through a table of distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableJump {
    /// Bytes of all its instructions, the jump among them.
    pub len: u64,
    /// The table, if its own instructions form that address; else it is in this register.
    pub table: Option<u64>,
    pub register: u8,
    /// The register with the index, and how the load extends it.
    pub index: (u8, u8),
    /// How many low bits of it count.
    pub bits: u8,
    /// Bytes of an entry.
    pub width: u8,
    pub signed: bool,
    /// Power of two with which entries are multiplied.
    pub shift: u8,
    /// What they are added to; `None`: the table's address.
    pub base: Option<u64>,
    /// The register that is jumped to.
    pub dest: u8,
    /// Registers that it overwrites, one bit each. It writes no other and no flag.
    pub writes: u32,
}

impl TableJump {
    /// Where an entry leads that is added to `base`.
    pub(crate) fn target(&self, base: u64, entry: u64) -> u64 {
        let unused = 64 - 8 * u32::from(self.width).clamp(1, 8);
        let value = if self.signed {
            ((entry << unused) as i64 >> unused) as u64
        } else {
            entry
        };
        base.wrapping_add(value.checked_shl(self.shift.into()).unwrap_or(0))
    }
}

/// What new code has in its place: a jump through a table of words that are added to the table's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnTableJump {
    /// Bytes of all its instructions, the jump among them.
    pub len: u64,
    pub table: u64,
    pub index: (u8, u8),
    pub dest: u8,
    /// Registers that it overwrites, one bit each. It writes no other and no flag.
    pub writes: u32,
}

/// Instructions that let an index pass that is not above a number (unsigned, of all bits), and lead any other to `old`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexGuard {
    pub register: u8,
    pub last: u64,
    pub old: u64,
    /// Bytes of all.
    pub len: u8,
}

/// A jump through a table of numbers, read from the code before the jump: the target is `base + scale * table[index]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Dispatch {
    /// Address of the first entry.
    pub table: u64,
    /// What entries are added to.
    pub base: u64,
    /// Bytes of an entry: 1, 2, 4 or 8.
    pub width: u8,
    /// Whether entries are signed.
    pub signed: bool,
    /// Power of two with which entries are multiplied.
    pub shift: u8,
    /// The index as the load uses it: register and extension.
    pub index: (u8, u8),
    /// Number of entries, if a comparison before says it.
    pub count: Option<u64>,
    /// Addresses of the instructions that take part in straight code, the jump last.
    pub parts: SmallVec<[u64; 8]>,
    /// Addresses of instructions farther away that form the address of the table or of the base.
    pub formed: SmallVec<[u64; 8]>,
    /// Registers that hold something else than the program's own values after it: table and base that are
    /// formed in straight code, entry, target.
    pub scratch: u32,
}

/// An instruction set, as the proof sees it.
pub(crate) trait Arch: Sync + Send + 'static {
    /// `e_machine`
    const MACHINE: u16;
    /// Name for the report.
    const NAME: &'static str;
    /// Dynamic relocation types whose addend is a link-time address: RELATIVE, IRELATIVE.
    const RELATIVE: [u32; 2];
    /// Dynamic relocation types for slots that receive the address of a symbol: GLOB_DAT, JUMP_SLOT.
    const IMPORTS: [u32; 2];
    /// Bytes of the landing pad after which a jump at an old entry may be.
    const LONGEST_PAD: u64 = 4;
    /// Kept relocation types that store an absolute address of 8 and of 4 bytes.
    const ABS_8: &'static [u32];
    const ABS_4: &'static [u32];
    /// The kept relocation types that store 8 and 4 bytes relative to their own place.
    const DISTANCE_8: u32;
    const DISTANCE_4: u32;
    /// Kept relocation types of code that store a distance, or a part of an address, that code makes an address of.
    const DISTANCES: &'static [u32];
    /// The same of a distance that does not lead to code: of the global offset table.
    const DISTANCES_OF_DATA: &'static [u32];
    /// DWARF number of the program counter: an unwind expression that reads it depends on the place.
    const PC_REGISTER: u16;
    /// Whose call frame instructions there are beyond the common ones.
    const VENDOR: gimli::Vendor;
    /// What instructions are aligned to.
    const STEP: usize;

    /// General registers, the stack pointer among them.
    const REGISTERS: u8;
    /// Number of the stack pointer.
    const STACK: u8;
    /// Bytes below the stack pointer that a function may use.
    const RED_ZONE: i64;
    /// Number of the stack pointer in unwind tables.
    const UNWIND_STACK: u16;
    /// The register that has this number in unwind tables, as a set.
    fn of_unwind_register(number: u16) -> u32;
    /// By how much a call moves the stack pointer.
    const CALL_PUSHES: i64;
    /// Registers that a call overwrites with the return address.
    const LINK: &'static [u8];
    /// Where the routine after recorders gets its table.
    const TABLE: u8;
    /// The routine that notes first calls.
    const NOTES: Notes;
    /// Registers that hold nothing when a function is called and when it returns: linkers' stubs may use them.
    const STUB_SCRATCH: u32;
    /// Registers that calls leave alone, so that a landing pad may read them. (What calls overwrite compilers do not
    /// keep over an exception, whatever raises it.)
    const KEPT_BY_CALLS: u32;
    /// Whether code inside of compiled functions keeps to that as well at calls and returns, so that they are
    /// dead before those.
    const STUBS_AT_CALLS: bool;

    /// What straight code at the start of `bytes` does to flags, as far as that is known at once: until none of them
    /// is in question, or so many instructions were looked at.
    fn flags_over(_bytes: &[u8], open: u8, _most: usize) -> FlagsOver {
        FlagsOver {
            open: Some(open),
            ..FlagsOver::default()
        }
    }

    /// What the instruction at the start of `bytes`, which is at `addr`, does to flags, if that is known at once.
    fn flag_step(_bytes: &[u8], _addr: u64) -> Option<FlagStep> {
        None
    }

    /// What the instruction reads and overwrites. Whatever is not known for certain is read, and not overwritten.
    fn effects(bytes: &[u8]) -> Effects;

    /// Whether an instruction that leaves the function returns to the caller.
    fn is_return(bytes: &[u8]) -> bool;

    /// Whether it asks the operating system, which gives back the flags as they were.
    fn is_system_call(bytes: &[u8]) -> bool;

    /// Whether it is an instruction that is there to be undefined for ever.
    fn is_undefined(_bytes: &[u8]) -> bool {
        false
    }

    /// Whether it does nothing but raise an exception of the processor.
    fn only_faults(bytes: &[u8]) -> bool {
        Self::is_undefined(bytes)
    }

    /// Whether it is the second half of an exclusive pair, between whose halves no memory may be touched.
    fn is_exclusive_store(_bytes: &[u8]) -> bool {
        false
    }

    /// What the instruction at the start of `bytes` leaves in registers.
    fn leaves(_bytes: &[u8], _addr: u64) -> Leaves {
        Leaves::UNKNOWN
    }

    /// The largest value of what was compared with `number`, where a branch on that comparison was taken, or was not.
    fn most_if(_cond: u16, _taken: bool, _number: u64) -> Option<u64> {
        None
    }

    /// The instruction at the start of `bytes` as a load of an entry of a jump table.
    fn table_load(_bytes: &[u8]) -> Option<TableLoad> {
        None
    }

    /// The instruction at the start of `bytes` as an addition of a whole register, the second, to another.
    fn sum(_bytes: &[u8]) -> Option<(u8, u8)> {
        None
    }

    /// The straight code at the start of `bytes` as a jump through a table of distances.
    fn table_jump(_bytes: &[u8], _addr: u64) -> Option<TableJump> {
        None
    }

    /// The same as one through a table of new code's own.
    fn own_table_jump(_bytes: &[u8], _addr: u64) -> Option<OwnTableJump> {
        None
    }

    /// The straight code at the start of `bytes` as a load of a label from a table of new code's own.
    fn label_load(_bytes: &[u8], _addr: u64) -> Option<LabelLoad> {
        None
    }

    /// The straight code at the start of `bytes` as the fallback of a label.
    fn label_fallback(_bytes: &[u8], _addr: u64) -> Option<LabelFallback> {
        None
    }

    /// The guard of a table's address at the start of `bytes`.
    fn base_guard(_bytes: &[u8], _addr: u64) -> Option<BaseGuard> {
        None
    }

    /// The guard of an index at the start of `bytes`.
    fn index_guard(_bytes: &[u8], _addr: u64) -> Option<IndexGuard> {
        None
    }

    /// The instruction as one of inserted code. `None`: such code has none like it.
    fn step(bytes: &[u8], addr: u64) -> Option<Step>;

    /// The same instruction, if it is one that does nothing but add one to a word at the thread's own base of counters:
    /// what nearly all counters are.
    fn own_counter(_bytes: &[u8]) -> Option<Counter> {
        None
    }

    /// The operand of an indirect call or jump, and marks of the branch that its replacement must have as well.
    fn operand(bytes: &[u8], addr: u64) -> Option<(Operand, u32)>;

    /// The register that a promoted call may use, as no call passes anything in it; `None`: no call is promoted.
    const PROMOTION: Option<u8> = None;

    /// The two sides of a comparison of whole words, which does nothing but set the flags.
    fn comparison(_bytes: &[u8], _addr: u64) -> Option<(Compared, Compared)> {
        None
    }

    /// Whether an instruction, which may be a plain return, has nothing to do with the stack: it neither names the
    /// stack pointer nor uses it by itself, but for the return's own word. Whatever is not known does.
    fn leaves_stack(_bytes: &[u8]) -> bool {
        false
    }

    /// Whether inserted code may begin with this instruction although the program has the same.
    fn is_ambiguous(bytes: &[u8]) -> bool;

    /// Whether the instruction uses the segment of per-thread counters.
    fn uses_own(_bytes: &[u8]) -> bool {
        false
    }

    /// Whether what begins with these bytes ends a program that comes to it: it is for the operating system alone.
    fn is_privileged(_bytes: &[u8]) -> bool {
        false
    }

    /// Decodes the instruction at the start of `bytes`, which is at `addr`. `None`: not a whole, valid instruction,
    /// or one that the proof refuses to reason about.
    fn decode(bytes: &[u8], addr: u64) -> Option<Insn>;

    /// Whether these bytes are in a part of the encoding space in which no version of the architecture has an
    /// instruction, whether the decoder knows all of them or not.
    fn is_unallocated(_bytes: &[u8]) -> bool {
        false
    }

    /// The length of the instruction at the start of `bytes`, and whether it has a field, if it is known at once, and
    /// continues with the next: what [`Arch::decode`] says of such an instruction, sooner.
    fn straight(bytes: &[u8], addr: u64) -> Option<(u8, bool)> {
        let insn = Self::decode(bytes, addr)?;
        let straight = insn.flow == Flow::Next && !insn.landing_pad;
        straight.then_some((insn.len, insn.field.is_some()))
    }

    /// The last place of `code` with bytes that, wherever instructions begin, may be an address field of four bytes
    /// that `is_wanted`, or with `all` something else that is: [`Arch::decode`] tells of no such thing in an
    /// instruction that begins behind it. Where all instructions have the same length, decoding them costs no more,
    /// and this is not asked.
    fn may_have(
        code: &[u8],
        _addr: u64,
        _all: bool,
        _is_wanted: impl Fn(MaybeField) -> bool,
    ) -> Option<usize> {
        Some(code.len())
    }

    /// The same of branches with shorter fields that begin at some of these `places`, by where they lead.
    fn may_branch(
        code: &[u8],
        _addr: u64,
        _places: std::ops::Range<usize>,
        _is_wanted: impl Fn(InputAddr) -> bool,
    ) -> Option<usize> {
        Some(code.len())
    }

    /// How far such a branch may lead from where it begins.
    const SHORT_REACH: u64 = 0;

    /// The address that an instruction loads into a register as a plain number (`mov $table,%edx`). Any other
    /// number is not taken for one: in a large program constants of all kinds coincide with addresses inside
    /// of tables.
    fn loaded_number(bytes: &[u8]) -> Option<u64>;

    /// The address field of an instruction that holds one as an absolute immediate. `bytes` is exactly one instruction.
    fn absolute_field(bytes: &[u8]) -> Option<Field>;

    /// The number that the last four or eight bytes of an instruction may be, rather than what says which operation and
    /// operands it has. `bytes` is exactly one instruction.
    fn last_number(_bytes: &[u8]) -> Option<u64> {
        None
    }

    /// Visits what could be at any position of `bytes`, which are at `addr`, with the address that it would name.
    /// Where instructions have one length each of them is one of these positions.
    fn guesses(bytes: &[u8], addr: u64, visit: &mut dyn FnMut(Guess, u64));

    /// Visits the numbers that instructions of a program at a fixed address make in several steps, or may load from
    /// among them.
    fn numbers(_bytes: &[u8], _visit: &mut dyn FnMut(usize, u64)) {}

    /// More bytes than this no instruction reads from one place that it names itself.
    const WIDEST: u64;

    /// Entries of jump tables that are added to an address: bytes, and the power of two that they are multiplied
    /// with.
    const ENTRIES: &'static [(u64, u32)];

    /// Whether all of `bytes`, which are after a function's code, are padding.
    fn is_padding(bytes: &[u8]) -> bool {
        let mut at = 0;
        while let Some(rest) = bytes.get(at..).filter(|r| !r.is_empty()) {
            match Self::padding_len(rest) {
                0 => return false,
                n => at += n,
            }
        }
        true
    }

    /// Length of the padding instruction at the start of `bytes`, 0 if there is none. Bytes that only end
    /// early are padding.
    fn padding_len(bytes: &[u8]) -> usize;

    /// The jump that replaces the start of a moved function: offset from the entry, length, target.
    fn entry_jump(bytes: &[u8], entry: u64) -> Option<(u64, u64, u64)>;

    /// Whether `bytes`, a run of straight code after an instruction that formed a label's address, calculates with
    /// that address (see [`crate::walk`]). `first` is the forming instruction.
    fn calculates_with_formed(first: &[u8], rest: &[u8]) -> bool;

    /// Whether two instructions of the same length agree outside of a field that both have.
    fn equal_around(a: &[u8], b: &[u8], field: &Field) -> bool {
        let (at, end) = (usize::from(field.at), usize::from(field.at + field.len));
        a.len() == b.len() && a.get(..at) == b.get(..at) && a.get(end..) == b.get(end..)
    }

    /// The register that receives a [`FieldKind::Page`].
    fn page_register(_bytes: &[u8]) -> Option<u8> {
        None
    }

    /// The instruction as one that may use a page.
    fn page_use(_bytes: &[u8]) -> Option<PageUse> {
        None
    }

    /// Whether two instructions for which [`Arch::page_use`] answered agree but for the offset.
    fn equal_but_offset(_a: &[u8], _b: &[u8]) -> bool {
        false
    }

    /// All that exactly one instruction, which is no call and no return, may write. `None`: not known for certain.
    fn plain(_bytes: &[u8], _addr: u64) -> Option<Plain>;

    /// The register that an instruction puts the flags into (`true`) or takes them from.
    fn flags_word(_bytes: &[u8]) -> Option<(u8, bool)> {
        None
    }

    /// Whether exactly one instruction may read memory.
    fn may_read_memory(_bytes: &[u8]) -> bool {
        true
    }

    /// The registers of an instruction that puts the page of the address in the second into the first: all bits but
    /// the lowest twelve.
    fn page_of(_bytes: &[u8]) -> Option<(u8, u8)> {
        None
    }

    /// The register by which an instruction returns; `None`: it does not, or by a word on the stack.
    fn return_register(_bytes: &[u8]) -> Option<u8> {
        None
    }

    /// What the instruction does to registers. `None`: unknown.
    fn touched(_bytes: &[u8]) -> Option<Touched> {
        None
    }

    /// New instructions that do what one (or another number of) old ones do. The bytes continue after the instructions.
    fn longer(_old: &[u8], _p: u64, _new: &[u8], _q: u64) -> Option<Longer> {
        None
    }

    /// The slot of a stub at `addr` that does nothing but jump to what a slot holds, as procedure linkage tables have
    /// it.
    fn stub_slot(_bytes: &[u8], _addr: u64) -> Option<u64> {
        None
    }

    /// Reads code at `addr` that goes where such a stub goes, and leaves all registers as that would.
    fn through_slot(_bytes: &[u8], _addr: u64) -> Option<ThroughSlot> {
        None
    }

    /// Reads the start-up routine that asks for huge pages, instruction by instruction: it saves what it uses, makes
    /// the system calls `madvise(start, len, MADV_COLLAPSE)` and, if that failed, `madvise(start, len,
    /// MADV_HUGEPAGE)`, whose outcome nothing depends on, restores, and continues.
    fn asks_for_huge_pages(_bytes: &[u8], _addr: u64) -> Option<AsksForHugePages> {
        None
    }

    /// Reads exactly one instruction as one that does something with a number that it loads.
    fn takes_loaded(_bytes: &[u8], _addr: u64) -> Option<(Takes, Loaded)> {
        None
    }

    /// Whether code begins with instructions that do that with `number`, as it is [cut](Takes::cut), and nothing else;
    /// how many bytes they have.
    fn takes_number(_bytes: &[u8], _takes: &Takes, _number: u64) -> Option<u8> {
        None
    }

    /// A piece of code at `addr` that does nothing but jump to an address anywhere, with registers that calls
    /// may destroy: (target, length).
    fn veneer(_bytes: &[u8], _addr: u64) -> Option<(u64, u64)> {
        None
    }

    /// Whether a landing pad at the start of `bytes` does more than let branches in (`paciasp`).
    fn keeps_state(_bytes: &[u8]) -> bool {
        false
    }

    /// Whether a guarded page lets a veneer's jump land here.
    fn lets_calls_in(_bytes: &[u8]) -> bool {
        true
    }

    /// Reads the table jump that ends at `jump`.
    fn dispatch(_jump: u64, _code: &Graph<'_>) -> Option<Dispatch> {
        None
    }

    /// The addresses that straight code makes of a page: `code` begins with the instruction that forms it.
    /// Offset of the instruction in the code, the address, and whether it is formed or accessed.
    fn page_uses(code: &[u8], page: u64) -> SmallVec<[(usize, u64, FieldKind); 2]> {
        let mut uses = SmallVec::new();
        let (Some(reg), len) = (Self::page_register(code), Self::STEP) else {
            return uses;
        };
        for (i, word) in code.chunks_exact(len).enumerate().skip(1).take(32) {
            let Some(insn) = Self::decode(word, 0) else {
                break;
            };
            if let Some(u) = Self::page_use(word).filter(|u| u.base == reg) {
                let kind = if u.dest.is_some() {
                    FieldKind::Forms
                } else {
                    FieldKind::Accesses
                };
                uses.push((i * len, page.wrapping_add(u.offset), kind));
                if u.dest == Some(reg) {
                    break;
                }
            }
            let leaves = matches!(
                insn.flow,
                Flow::Jump(_) | Flow::Stop | Flow::IndirectJump { .. }
            );
            if leaves || Self::touched(word).is_none_or(|t| t.kills >> reg & 1 != 0) {
                break;
            }
        }
        uses
    }
}
