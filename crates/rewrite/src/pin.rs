//! Why a function stays where it is. Every reason has a name that `inspect` prints; none is a guess.

use serde::Serialize;

/// A reason not to move a function. Ordered by how much it tells: the first one found for a function is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pin {
    /// In a section whose pieces are glued together by the linker or start-up code (`.init`, `.fini`, `.plt`).
    SpecialSection,
    /// Nothing says where it ends: a symbol without size, and no unwind entry.
    NoSize,
    /// Bytes that are not an instruction.
    NotInstructions,
    /// The dynamic loader writes addresses into its instructions (`-z notext`): a copy would keep what is in the file.
    ChangedByLoader,
    /// In a writable segment: the program may change its code, and would change the old code alone.
    Writable,
    /// A branch to the middle of an instruction.
    BranchIntoInstruction,
    /// Control runs past its end into what follows.
    FallsOffItsEnd,
    /// Calls an address inside itself (position-independent code's trick to find its own place).
    CallsItsMiddle,
    /// A pointer to its inside that no jump of it explains.
    PointerToItsInside,
    /// A word or number of the program at a fixed address that may be the address of a place inside it, and that no
    /// indirect jump explains.
    NumberMayBeItsInside,
    /// A pointer to its end: the program may compare program counters with it.
    PointerToItsEnd,
    /// Code forms an address inside it, which it may use for more than a jump there.
    AddressOfItsInsideTaken,
    /// Its indirect jumps cannot be told apart well enough.
    UnknownIndirectJump,
    /// It adds distances that the linker computed to an address of its own (large code model) other than that
    /// of its entry.
    PositionArithmetic,
    /// A direct branch with a prefix that would be lost.
    PrefixedBranch,
    /// Its callers branch on the flags that it returns, which no calling convention knows: hand-written code.
    ReturnsFlags,
    /// Its instructions are listed for being patched, or for comparing the program counter with, while the
    /// program runs.
    PatchedAtRunTime,
    /// In a section whose bounds have symbols (`__start_NAME`, `__stop_NAME`), so that code tells by its address.
    SectionWithBounds,
    /// A linker's veneer: it is dissolved, not moved.
    Veneer,
    /// A signal trampoline, recognised by its bytes by unwinders and debuggers.
    SignalTrampoline,
    /// Its unwind table uses something that cannot be carried over.
    UnwindTable,
    /// Its exception table uses something that cannot be carried over.
    ExceptionTable,
    /// Some of its parts have unwind information and some have none.
    PartlyUnwindable,
    /// Its parts use different conventions for unwinding.
    MixedUnwinding,
    /// Its entry has no space for a jump to its new place.
    NoRoomAtEntry,
    /// An address field could not be updated.
    OutOfReach,
    /// It has a block that would have to count where nothing may be put in: between an exclusive load and its store.
    NoPlaceToCount,
    /// Edges of its graph that cannot carry a counter form a cycle: their counts would not follow from others.
    Uncountable,
    /// It is entered by its old entry more often than its new layout would save branches.
    EnteredByOldEntry,
    /// Left out by the user.
    Excluded,
    /// The checker could not prove the new code, so the old one stays.
    NotProved,
}

impl Pin {
    /// One line for people.
    pub fn explain(self) -> &'static str {
        match self {
            Pin::SpecialSection => {
                "is in a section that the linker assembles from pieces (.init, .fini, .plt)"
            }
            Pin::NoSize => "has neither a size nor an unwind entry: its end is not known",
            Pin::NotInstructions => "contains bytes that are not instructions",
            Pin::ChangedByLoader => {
                "has dynamic relocations in its code or its exception table, where the dynamic loader writes"
            }
            Pin::Writable => {
                "is in memory that the program may write to, so that it may change its code"
            }
            Pin::BranchIntoInstruction => "has a branch into the middle of an instruction",
            Pin::FallsOffItsEnd => "runs past its end into what follows",
            Pin::CallsItsMiddle => "calls an address inside itself",
            Pin::PointerToItsInside => "has a pointer to its inside that no indirect jump explains",
            Pin::NumberMayBeItsInside => {
                "stays, as a word or number of the program may be an address inside: a table may describe its code by address"
            }
            Pin::PointerToItsEnd => {
                "has a pointer to its end, with which the program may compare program counters"
            }
            Pin::AddressOfItsInsideTaken => {
                "has an address inside it formed by code, which may calculate with it"
            }
            Pin::UnknownIndirectJump => "has an indirect jump whose targets are not known",
            Pin::PositionArithmetic => "adds distances to an address of its own (large code model)",
            Pin::PrefixedBranch => "has a direct branch with a prefix",
            Pin::ReturnsFlags => {
                "returns flags, as only hand-written code does: its callers branch on them"
            }
            Pin::PatchedAtRunTime => {
                "is listed for patching while the program runs, or for comparing the program counter with"
            }
            Pin::SectionWithBounds => {
                "is in a range whose bounds have symbols (a section whose name is a C identifier, or a linker script's): the program knows where its code is"
            }
            Pin::Veneer => "is a linker's veneer: new code branches to its target directly",
            Pin::SignalTrampoline => "is a signal trampoline that unwinders recognise by its bytes",
            Pin::UnwindTable => "has an unwind table that cannot be carried over",
            Pin::ExceptionTable => "has an exception table that cannot be carried over",
            Pin::PartlyUnwindable => "has parts with and parts without unwind information",
            Pin::MixedUnwinding => "has parts with different unwinding conventions",
            Pin::NoRoomAtEntry => "has no space at its entry for a jump to its new place",
            Pin::OutOfReach => {
                "has an address field that cannot reach its target from the new place"
            }
            Pin::NoPlaceToCount => {
                "has a block in which no counter can be placed, between an exclusive load and its store"
            }
            Pin::Uncountable => {
                "has edges that cannot carry a counter, and whose counts do not follow from others"
            }
            Pin::EnteredByOldEntry => {
                "is entered by pointers or from other files more often than a new layout would save branches: each time costs a jump from its old entry"
            }
            Pin::Excluded => "was left out on request",
            Pin::NotProved => "could not be proved after moving, so it stays",
        }
    }
}
