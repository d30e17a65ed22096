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
    /// One line for people, to stand behind a name or a number of functions.
    pub fn explain(self) -> &'static str {
        match self {
            Pin::SpecialSection => {
                "in a section that the linker assembles from pieces (.init, .fini, .plt)"
            }
            Pin::NoSize => "neither size nor unwind entry: where the code ends is not known",
            Pin::NotInstructions => "bytes that are not instructions",
            Pin::ChangedByLoader => {
                "dynamic relocations in the code or its exception table, where the dynamic loader writes"
            }
            Pin::Writable => {
                "in memory that the program may write to, so that it may change the code"
            }
            Pin::BranchIntoInstruction => "a branch into the middle of an instruction",
            Pin::FallsOffItsEnd => "control runs past the end into what follows",
            Pin::CallsItsMiddle => "a call of an address inside the same function",
            Pin::PointerToItsInside => "a pointer to the inside that no indirect jump explains",
            Pin::NumberMayBeItsInside => {
                "a word or number of the program may be an address inside: a table may describe the code by address"
            }
            Pin::PointerToItsEnd => {
                "a pointer to the end, with which the program may compare program counters"
            }
            Pin::AddressOfItsInsideTaken => {
                "an address inside is formed by code, which may calculate with it"
            }
            Pin::UnknownIndirectJump => "an indirect jump whose targets are not known",
            Pin::PositionArithmetic => {
                "code adds distances to an address of its own (large code model)"
            }
            Pin::PrefixedBranch => "a direct branch with a prefix",
            Pin::ReturnsFlags => {
                "callers branch on the flags that it returns, as those of hand-written code alone do"
            }
            Pin::PatchedAtRunTime => {
                "listed for patching while the program runs, or for comparing the program counter with"
            }
            Pin::SectionWithBounds => {
                "in a range whose bounds have symbols (a section whose name is a C identifier, or a linker script's): the program knows where its code is"
            }
            Pin::Veneer => "a linker's veneer: new code branches to its target directly",
            Pin::SignalTrampoline => "a signal trampoline that unwinders recognise by its bytes",
            Pin::UnwindTable => "an unwind table that cannot be carried over",
            Pin::ExceptionTable => "an exception table that cannot be carried over",
            Pin::PartlyUnwindable => "parts with and parts without unwind information",
            Pin::MixedUnwinding => "parts with different unwinding conventions",
            Pin::NoRoomAtEntry => "no space at the entry for a jump to the new place",
            Pin::OutOfReach => "an address field that cannot reach its target from the new place",
            Pin::NoPlaceToCount => {
                "a block in which no counter can be placed, between an exclusive load and its store"
            }
            Pin::Uncountable => {
                "edges that cannot carry a counter, and whose counts do not follow from others"
            }
            Pin::EnteredByOldEntry => {
                "entered by pointers or from other files more often than a new layout would save branches: each time costs a jump from the old entry"
            }
            Pin::Excluded => "left out on request",
            Pin::NotProved => "not proved after moving",
        }
    }
}
