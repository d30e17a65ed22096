//! The seam between the proof and an instruction set.
//!
//! The lock step ([`crate::walk`]) knows six kinds of things about an instruction: how long it is, where control goes
//! next, whether it does nothing, which bytes of it hold an address, what that address is, and whether the address is
//! formed or accessed. All of it comes from an [`Arch`]. One module per instruction set implements it; nothing else in
//! the crate names a decoder.

pub(crate) mod x86_64;

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
    /// Asks the operating system or traps; usually goes on with the next instruction, but need not.
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

/// An instruction set, as the proof sees it.
pub(crate) trait Arch: Sync + Send + 'static {
    /// `e_machine`
    const MACHINE: u16;
    /// Name for the report.
    const NAME: &'static str;
    /// Dynamic relocation types whose addend is a link-time address: RELATIVE, IRELATIVE.
    const RELATIVE: [u32; 2];
    /// Kept relocation types that store an absolute address of 8 and of 4 bytes.
    const ABS_8: &'static [u32];
    const ABS_4: &'static [u32];
    /// DWARF number of the program counter: an unwind expression that reads it depends on the place.
    const PC_REGISTER: u16;

    /// Decodes the instruction at the start of `bytes`, which lies at `addr`. `None`: not a whole, valid instruction,
    /// or one that the proof refuses to reason about.
    fn decode(bytes: &[u8], addr: u64) -> Option<Insn>;

    /// The address that an instruction loads into a register as a plain number (`mov $table,%edx`). Any other number is not taken for
    /// one: in a large program constants of all kinds coincide with addresses inside of tables.
    fn loaded_number(bytes: &[u8]) -> Option<u64>;

    /// The address field of an instruction that holds one as an absolute immediate. `bytes` is exactly one instruction.
    fn absolute_field(bytes: &[u8]) -> Option<Field>;

    /// Whether all of `bytes`, which lie behind a function's code, are padding.
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

    /// Length of the padding instruction at the start of `bytes`, 0 if there is none. Bytes that only end early are padding.
    fn padding_len(bytes: &[u8]) -> usize;

    /// The jump that replaces the start of a moved function: offset from the entry, length, target.
    fn entry_jump(bytes: &[u8], entry: u64) -> Option<(u64, u64, u64)>;

    /// Whether `bytes`, a run of straight code after an instruction that formed a label's address, calculates with
    /// that address (see [`crate::walk`]). `first` is the forming instruction.
    fn calculates_with_formed(first: &[u8], rest: &[u8]) -> bool;
}
