//! Faults for the checker to find.
//!
//! A checker that finds nothing wrong is worth what it finds when something is. [`Faults`] takes a pair of files that
//! is proved, and breaks the output in one place: one fault of one [`Kind`], in code or tables that the proof reaches,
//! so that no fault is without consequence. The tests demand that [`crate::verify`] finds each of them.
//!
//! No command calls this, so the linker leaves it out of the program, which a test looks at (`tests/tools.rs` of
//! `postlink`). It is no feature of the crate: with one, tests would need the checker and all that depends on it
//! compiled once more.
//!
//! | faults in | module |
//! |---|---|
//! | instructions | [`code`], [`code_a64`] |
//! | what counts | [`counting`] |
//! | what counts calls, in functions that are re-emitted | [`calls`] |
//! | debug information, build-id | [`debug`] |
//! | stubs at entries | [`entries`] |
//! | unwind rows, search table, call sites, actions, types | [`unwinding`] |
//! | headers, pointers, tables, symbols, claim | [`file`] |
//! | outputs without kept relocations | [`bare`] |
//! | jump tables of new code's own there | [`own_tables`], [`labels`] |
//! | changed instructions | [`changes`], [`branches`] |
//! | what the program may see of a code address | [`visible`] |

mod bare;
mod branches;
mod calls;
mod changes;
mod claim;
mod code;
mod code_a64;
mod counting;
mod debug;
mod displaced;
mod entries;
mod file;
mod labels;
mod own_tables;
mod unwinding;
mod visible;

use crate::arch::aarch64::AArch64;
use crate::arch::x86_64::X86_64;
use crate::arch::{Arch, Insn};
use crate::files::claim::Claim;
use crate::files::elf::Elf;
use crate::report::{Options, Report};

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What is broken.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Kind { $($(#[$doc])* $name,)* }

        impl Kind {
            /// All kinds.
            pub const ALL: &'static [Kind] = &[$(Kind::$name,)*];
        }
    };
}

kinds! {
    /// A conditional branch has the opposite condition.
    InvertedCondition,
    /// A branch goes one byte too far.
    BranchOffByOne,
    /// A branch goes to another block of its function.
    BranchToWrongBlock,
    /// A call goes to another function.
    CallToWrongFunction,
    /// A PC-relative operand is one byte off.
    OperandOffByOne,
    /// A PC-relative operand is eight bytes off.
    OperandOffByEight,
    /// `lock`, `rep`, a segment override or `notrack` is gone.
    DroppedPrefix,
    /// Another operation.
    ChangedOpcode,
    /// Another constant.
    ChangedImmediate,
    /// Another register.
    ChangedRegister,
    /// An instruction is replaced by nops.
    DroppedInstruction,
    /// A return is replaced by a nop: execution runs on.
    DroppedReturn,
    /// An instruction of code that stays is changed.
    ChangedOldCode,
    /// A call in code that stays goes to another function.
    StayingCallToWrongFunction,
    /// The jump at an old entry goes to another function.
    EntryJumpToWrongFunction,
    /// New code jumps back to its function's old entry, where a jump leads to the new code: it never ends.
    BackToOldEntry,
    /// A row begins one byte late.
    RowBeginsLate,
    /// The CFA is elsewhere.
    WrongCfaOffset,
    /// A register is said to be saved that is another one.
    WrongRegisterRule,
    /// All pointers to a function lead to its new entry, which has fewer zero bits at its end than the old one.
    FewerZeroBits,
    /// All pointers to a function lead to its new entry, and at the old one is something in front that can be
    /// read through them.
    DataInFrontLost,
    /// A pointer to the inside of a moved function is what it was.
    LabelLeftBehind,
    /// Another size of pushed arguments before a landing pad.
    WrongArgsSize,
    /// An FDE ends before its code does.
    FdeTooShort,
    /// An FDE continues after its code.
    FdeTooLong,
    /// An FDE has no LSDA, or another one.
    WrongLsda,
    /// Two entries of the search table are exchanged.
    SearchTableUnsorted,
    /// An entry of the search table points to its neighbour's FDE.
    SearchEntryWrong,
    /// The search table lacks its last entry.
    SearchEntryMissing,
    /// A landing pad is one byte off.
    WrongLandingPad,
    /// A call site has no landing pad any more.
    LandingPadDropped,
    /// A call site ends before the call does.
    CallSiteTooShort,
    /// A call site continues over an instruction that is no call and had none, in a language whose exceptions come from
    /// instructions that fault.
    CallSiteStretched,
    /// There, a call site ends before its last instruction, which is no call.
    CallSiteLosesFault,
    /// An instruction at an entry, for which there is a landing pad, is done in a stub, for which there is none.
    StubWithoutLandingPad,
    /// A counter in a stub does not save the flags any more that its function begins by reading.
    EntryFlagsLost,
    /// A call site has another action.
    ChangedAction,
    /// An action has another filter.
    ChangedFilter,
    /// A type table entry names another type.
    WrongType,
    /// Two entries of a jump table are exchanged.
    JumpTableSwapped,
    /// An entry of a jump table is one byte off.
    JumpTableOff,
    /// A RELATIVE relocation makes an address one byte off.
    RelocAddendOff,
    /// A relocation has another place.
    RelocPlaceOff,
    /// A pointer relocated in place (RELR, or a fixed address) is one byte off.
    PointerOff,
    /// A pointer leads to another moved function.
    PointerToWrongFunction,
    /// The entry point is elsewhere.
    EntryPoint,
    /// DT_INIT is elsewhere.
    DtInit,
    /// Another dynamic tag's value is changed.
    DynamicTag,
    /// A dynamic symbol has another value.
    DynamicSymbol,
    /// A static symbol of a moved function has another value.
    StaticSymbol,
    /// Two claimed ranges overlap.
    OverlappingClaim,
    /// The claim begins a function's new code one byte late.
    ClaimedEntryOff,
    /// A segment of code is writable.
    WritableCode,
    /// A segment of data is executable.
    ExecutableData,
    /// RELRO ends early.
    RelroShort,
    /// A byte of constants or data is changed.
    ChangedData,
    /// A word of `.got` is changed.
    GotSlot,
    /// Two initialisers are exchanged.
    InitOrder,
    /// The interpreter's name is changed.
    Interpreter,
    /// AArch64: `tbz` tests another bit.
    TestedBit,
    /// AArch64: `cbz` or `tbz` tests another register.
    TestedRegister,
    /// AArch64: `cbz` tests 32 bits in the place of 64, or the other way round.
    TestedWidth,
    /// AArch64: `adrp` forms the next page.
    PageOff,
    /// AArch64: another offset in the page.
    PageOffsetOff,
    /// AArch64: a landing pad of indirect branches is gone.
    GuardLost,
    /// AArch64: a row does not say any more that the return address is signed, or not.
    SignStateLost,
    /// AArch64: an entry of a jump table is read in another width or scaled by another power.
    TableScale,
    /// AArch64: a jump table, or the base of its entries, is elsewhere.
    TableBaseOff,
    /// AArch64: a jump that took the place of a label's first instruction in an old body goes to another block.
    LabelJumpToWrongBlock,
    /// AArch64: an exclusive load or store orders memory in another way.
    ExclusiveLost,
    /// AArch64: moved start-up code registers another place than the new unwind table, or the old one.
    Registration,
    /// No program header tells of the new unwind table, where the program had none for the old one.
    UnwindHeaderLost,
    /// A counter is in the program's own memory.
    CounterElsewhere,
    /// A counter is not aligned to its size.
    CounterMisaligned,
    /// What was read from one counter is stored to the next.
    CounterTorn,
    /// A counter is read and stored as it was.
    IncrementLost,
    /// Two are added to a counter.
    IncrementTwice,
    /// A counter uses a register that the instruction after it reads.
    LiveRegister,
    /// A counter destroys flags that are read after it.
    LiveFlags,
    /// A counter keeps a register above the stack pointer, where the program's data are.
    SpillOverStack,
    /// AArch64: a register that a counter uses is restored but was not saved.
    SpillLost,
    /// Another register is restored than was saved.
    RestoreWrong,
    /// A register that was saved is not restored.
    RestoreLost,
    /// A counter leaves the stack pointer elsewhere.
    StackMoved,
    /// AArch64: a counter is between an exclusive load and its store.
    CounterBetweenExclusives,
    /// A recorder goes elsewhere than the call would.
    RecorderLeaves,
    /// x86-64: a biased counter reads the thread's identity from another place in its control block.
    OwnerElsewhere,
    /// x86-64: a biased counter compares the identity in a register that is read after it.
    OwnerRegisterLive,
    /// x86-64: a biased counter does not restore flags that are read after it.
    OwnerFlagsLost,
    /// A row that says where the stack pointer is in a counter is not there.
    StackRowLost,
    /// Such a row begins an instruction, or a byte, late.
    StackRowLate,
    /// Such a row says eight bytes more or less, or sixteen.
    StackRowOff,
    /// A row of a recorder, or of a routine that inserted code calls, is not there.
    RoutineRowLost,
    /// Such a row begins an instruction, or a byte, late.
    RoutineRowLate,
    /// Such a row says that the frame, or a register, is eight bytes from there, or sixteen.
    RoutineRowOff,
    /// The search table has no entry for a recorder or a routine.
    RoutineFdeMissing,
    /// The unwind entry of recorders or a routine ends in front of the last instruction's end.
    RoutineFdeShort,
    /// A counter of calls adds nothing.
    CallNotCounted,
    /// A function's counter of calls is jumped over.
    CallCounterLost,
    /// x86-64: a counter of calls takes one more back than overflowed.
    CallSaturationOff,
    /// x86-64: what overflows is taken back from another counter.
    CallTakenElsewhere,
    /// A call is added to another counter than the one whose first call is noted.
    CallCountedElsewhere,
    /// What is asked, whether it is the first call, is another counter.
    CallAskedElsewhere,
    /// The first call of another counter is noted.
    CallNotedElsewhere,
    /// A function counts its calls in another function's counter.
    CallCounterShared,
    /// x86-64: a function counts its calls in the program's own memory.
    CallCounterInData,
    /// A counter of calls goes into the middle of the routine that notes first calls.
    CallRoutineOff,
    /// x86-64: a counter of calls does not keep flags that are read after it.
    CallFlagsLost,
    /// x86-64: a counter of calls writes where something may be below the stack pointer.
    CallOverRedZone,
    /// A counter of calls leaves something else in a register.
    CallRegisterLost,
    /// x86-64: a counter of calls leaves the stack pointer elsewhere.
    CallStackMoved,
    /// What is noted as where calls come from is the word beside the return address; on AArch64, where the routine
    /// itself returns to.
    CallerWordOff,
    /// Where calls come from is noted twice as often as it counts for.
    CallerSampledOften,
    /// It is noted where no call leads to, or where the function itself comes as well.
    CallerOfPart,
    /// AArch64: it is noted when the return address has been signed.
    CallerSigned,
    /// The output says that a call is another one of the input.
    CallerLied,
    /// The output says that a call is elsewhere.
    CallerElsewhere,
    /// The output does not say which calls of the input its calls are.
    CallersUnsaid,
    /// The claim says something else of what the rewriter used to find references to code.
    BasisLied,
    /// The claim says something else of the jump at an old entry.
    LevelLied,
    /// The claim does not tell of a jump that continues in old code.
    FallBackUnclaimed,
    /// An instruction forms the new entry of a function, in a file without kept relocations.
    FormedFollows,
    /// A conditional branch in new code continues after the first byte of a jump over an old entry.
    IntoEntryJump,
    /// Claim and displacement of a load say that a jump table of its own begins one entry later.
    OwnTableMoved,
    /// They say that it is where the program writes, with the same entries there.
    OwnTableWritable,
    /// They say that it is the table of another jump.
    OwnTableShared,
    /// Two of its entries are exchanged.
    OwnEntrySwapped,
    /// An entry of it is one byte off.
    OwnEntryOff,
    /// An entry of it leads to another function.
    OwnEntryToOtherFunction,
    /// A load of its entries has another displacement.
    DisplacementOff,
    /// The claim says that it has one entry fewer.
    OwnTableShort,
    /// The claim says that entries of the old table count from elsewhere.
    OwnBaseOff,
    /// Code in front of a jump table's target forms another address than the target's.
    RestoredTargetOff,
    /// It forms it in another register.
    RestoredTargetRegister,
    /// It gives another distance.
    RestoredDistanceOff,
    /// It gives it to another register.
    RestoredDistanceRegister,
    /// It jumps to another instruction.
    RestoredElsewhere,
    /// What loads an entry loads one of another width.
    OwnEntryWidth,
    /// It takes another register for the index.
    OwnIndexRegister,
    /// It takes more or fewer bits of the index.
    OwnIndexExtended,
    /// It does not scale the index.
    OwnIndexNotScaled,
    /// The entry is in a register that the program has something else in.
    OwnEntryRegister,
    /// The address that the entry is added to is another.
    OwnSumOff,
    /// The jump is to another register.
    OwnJumpElsewhere,
    /// Two entries of a table of labels of new code's own are exchanged.
    LabelEntrySwapped,
    /// An entry of it is one instruction off.
    LabelEntryOff,
    /// An entry of it leads to another function.
    LabelEntryToOtherFunction,
    /// An entry that leads to the fallback leads to the function's entry.
    LabelFallbackElsewhere,
    /// The fallback loads another entry of the old table.
    LabelFallbackEntry,
    /// It forms another address.
    LabelFallbackBase,
    /// It jumps to another register.
    LabelFallbackJump,
    /// It does not begin with a landing pad.
    LabelFallbackPad,
    /// Claims, and what forms its address, say that it begins a page later.
    LabelTableMoved,
    /// They say that it is where the program writes.
    LabelTableWritable,
    /// The claims say that it has one entry fewer.
    LabelTableShort,
    /// An instruction that has to do with it is not claimed.
    LabelTableUnclaimed,
    /// The load of a label forms another page.
    LabelPageOff,
    /// It takes another register for the index.
    LabelIndexRegister,
    /// It takes more or fewer bits of the index.
    LabelIndexExtended,
    /// It does not scale the index.
    LabelIndexNotScaled,
    /// It loads a word without its sign.
    LabelWordUnsigned,
    /// The word is multiplied before it is added.
    LabelSumOff,
    /// It is added to another register.
    LabelSumElsewhere,
    /// The sum is in another register.
    LabelRegister,
    /// An addition that writes flags is in the place of `lea`.
    LabelSumByAddition,
    /// The address of a table is formed in a register that holds something.
    LabelScratchRegister,
    /// A guard of a table's address lets everything pass.
    LabelGuardLost,
    /// It looks at another register.
    LabelGuardRegister,
    /// It compares with another address.
    LabelGuardTable,
    /// It leads elsewhere.
    LabelGuardTarget,
    /// The claim does not name it.
    LabelGuardUnclaimed,
    /// A table's address is the old one's again, where loads of labels read it.
    LabelBaseLost,
    /// It is another page's.
    LabelBaseOff,
    /// It is in another register.
    LabelBaseRegister,
    /// The guard of an index lets pass one more.
    GuardBoundUp,
    /// It compares as if numbers had a sign.
    GuardSigned,
    /// It compares 32 bits alone.
    GuardNarrow,
    /// It compares another register.
    GuardOtherRegister,
    /// It leads elsewhere than to the old load.
    GuardTargetOff,
    /// It is not there.
    IndexGuardLost,
    /// A call goes through another slot of the procedure linkage table than its stub does.
    WrongSlot,
    /// A call through a slot is a jump, or a jump a call.
    SlotCallTurned,
    /// A number that took the place of a load is another one.
    WrongConstant,
    /// Such a number is put into another register.
    ConstantElsewhere,
    /// What asks for huge pages when the program starts gives other advice: that memory is not needed.
    OtherAdvice,
    /// It asks for memory at another place.
    AdviceElsewhere,
    /// It continues elsewhere than the program began.
    StartsElsewhere,
    /// AArch64: a call through a slot does not leave the slot's address in x16, which the loader relies on.
    SlotAddressLost,
    /// A promoted call compares its operand with another number than that of the function which it calls.
    PromotedNumber,
    /// A promoted call compares another register.
    PromotedRegister,
    /// A promoted call is made if the operand is another one.
    PromotionTurned,
    /// A promoted call puts the number into a register in which the call may pass something.
    PromotionLiveRegister,
    /// What is left of a promoted call whose operand was read calls something else.
    PromotedCallElsewhere,
    /// A conditional tail call goes to another function.
    TailCallToWrongFunction,
    /// A scope's one interval is longer or shorter by a byte.
    ScopeEndOff,
    /// Two scopes have each other's addresses.
    ScopesExchanged,
    /// A scope of a moved function is where it was.
    ScopeLeftOld,
    /// The address at which a scope is entered is off by one.
    EntryPcOff,
    /// A call's return address is off by one.
    ReturnAddressOff,
    /// A call's return address is what it was.
    CallSiteLeftOld,
    /// The base of a unit's lists is another one.
    BaseOff,
    /// An entry has the index of another address.
    IndexOther,
    /// Pairs of views do not end where their list begins.
    ViewsElsewhere,
    /// An address in an expression is what it was.
    ExpressionAddressOld,
    /// Padding ends early: what follows is read from a wrong place.
    PaddingShort,
    /// A unit has another unit's line program.
    StmtListOfNeighbour,
    /// A unit has another unit's addresses.
    AddrBaseOfNeighbour,
    /// A unit has another unit's abbreviations.
    AbbreviationsOfNeighbour,
    /// Two attributes of an abbreviation are exchanged.
    AttributesExchanged,
    /// An interval of a list of ranges is longer or shorter by a byte.
    RangeEndOff,
    /// A list of ranges ends before its last interval.
    RangeDropped,
    /// The first interval of a list of ranges is not the one with the entry.
    RangesExchanged,
    /// A variable's place holds for a byte more or less.
    LocationEndOff,
    /// A variable's place holds for the code of the next one, too.
    LocationsMerged,
    /// A byte of an expression in a list is another one.
    ExpressionByte,
    /// An address in `.debug_addr` is off by one.
    AddressOff,
    /// A row is a statement that was none, or none that was one.
    StatementTurned,
    /// A row does not say any more that a prologue ends, but that a block begins.
    RowFlagLost,
    /// Not this row says that a prologue ends, but the next.
    PrologueEndsLater,
    /// A row has another discriminator.
    DiscriminatorOther,
    /// A row has another line.
    RowLineOff,
    /// A row has another column.
    RowColumnOther,
    /// A sequence of rows begins elsewhere.
    RowAddressOff,
    /// The jump at an old entry has no row.
    EntryJumpRowLost,
    /// A sequence of rows ends elsewhere.
    SequenceTooLong,
    /// An interval of `.debug_aranges` is longer or shorter by a byte.
    ArangesShort,
    /// An interval of `.gdb_index` belongs to another unit.
    GdbIndexUnit,
    /// The output has another build-id than its note says.
    BuildIdOff,
}

impl Kind {
    /// Kinds that only instructions of AArch64 have.
    pub const AARCH64: &'static [Kind] = &[
        Kind::TestedBit,
        Kind::TestedRegister,
        Kind::TestedWidth,
        Kind::PageOff,
        Kind::PageOffsetOff,
        Kind::GuardLost,
        Kind::SignStateLost,
        Kind::TableScale,
        Kind::TableBaseOff,
        Kind::LabelJumpToWrongBlock,
        Kind::ExclusiveLost,
    ];

    /// Kinds that only static programs have whose start-up code registers their unwind table.
    pub const REGISTERED: &'static [Kind] = &[Kind::Registration];

    /// Kinds that only static programs have to which a program header for their unwind table was added.
    pub const HEADER_ADDED: &'static [Kind] = &[Kind::UnwindHeaderLost];

    /// Kinds that only programs have whose instructions raise exceptions when they fault: Ada's.
    pub const FAULTS_RAISE: &'static [Kind] = &[Kind::CallSiteStretched, Kind::CallSiteLosesFault];

    /// Kinds that only those of them have that count at entries.
    pub const FAULTS_RAISE_AT_ENTRIES: &'static [Kind] = &[Kind::StubWithoutLandingPad];

    /// Kinds that only programs have that count at entries of functions which read flags there.
    pub const FLAGS_AT_ENTRIES: &'static [Kind] = &[Kind::EntryFlagsLost];

    /// Kinds that only programs have in which pointers to moved functions keep their values.
    pub const POINTERS_STAY: &'static [Kind] = &[Kind::FewerZeroBits, Kind::DataInFrontLost];

    /// Kinds that only programs have whose pointers to labels follow.
    pub const LABELS_FOLLOW: &'static [Kind] = &[Kind::LabelLeftBehind];

    /// Kinds that only outputs have for which no kept relocations were used.
    pub const WITHOUT_RELOCATIONS: &'static [Kind] = &[
        Kind::BasisLied,
        Kind::LevelLied,
        Kind::FallBackUnclaimed,
        Kind::FormedFollows,
        Kind::IntoEntryJump,
    ];

    /// Kinds that only those of them for AArch64 have with jump tables of new code's own.
    pub const OWN_TABLES_AARCH64: &'static [Kind] = &[
        Kind::OwnTableMoved,
        Kind::OwnTableWritable,
        Kind::OwnTableShared,
        Kind::OwnEntrySwapped,
        Kind::OwnEntryOff,
        Kind::OwnEntryToOtherFunction,
        Kind::DisplacementOff,
        Kind::OwnTableShort,
        Kind::OwnBaseOff,
        Kind::OwnEntryWidth,
        Kind::OwnIndexRegister,
        Kind::OwnIndexExtended,
        Kind::OwnIndexNotScaled,
        Kind::OwnEntryRegister,
        Kind::OwnSumOff,
        Kind::OwnJumpElsewhere,
    ];

    /// Kinds that only those of them for AArch64 have with tables of labels of new code's own, in programs that are not
    /// at a fixed address.
    pub const LABEL_TABLES: &'static [Kind] = &[
        Kind::LabelEntrySwapped,
        Kind::LabelEntryOff,
        Kind::LabelEntryToOtherFunction,
        Kind::LabelFallbackElsewhere,
        Kind::LabelFallbackEntry,
        Kind::LabelFallbackBase,
        Kind::LabelFallbackJump,
        Kind::LabelFallbackPad,
        Kind::LabelTableMoved,
        Kind::LabelTableWritable,
        Kind::LabelTableShort,
        Kind::LabelTableUnclaimed,
        Kind::LabelPageOff,
        Kind::LabelIndexRegister,
        Kind::LabelIndexExtended,
        Kind::LabelIndexNotScaled,
        Kind::LabelWordUnsigned,
        Kind::LabelSumOff,
        Kind::LabelSumElsewhere,
        Kind::LabelRegister,
        Kind::LabelScratchRegister,
        Kind::LabelGuardLost,
        Kind::LabelGuardRegister,
        Kind::LabelGuardTable,
        Kind::LabelGuardTarget,
        Kind::LabelGuardUnclaimed,
        Kind::LabelBaseLost,
        Kind::LabelBaseOff,
        Kind::LabelBaseRegister,
    ];

    /// Those of them for x86-64, in programs that are not at a fixed address.
    pub const LABEL_TABLES_X86_64: &'static [Kind] = &[
        Kind::LabelEntrySwapped,
        Kind::LabelEntryOff,
        Kind::LabelEntryToOtherFunction,
        Kind::LabelFallbackElsewhere,
        Kind::LabelFallbackEntry,
        Kind::LabelFallbackJump,
        Kind::LabelFallbackPad,
        Kind::LabelTableMoved,
        Kind::LabelTableWritable,
        Kind::LabelTableShort,
        Kind::LabelTableUnclaimed,
        Kind::LabelPageOff,
        Kind::LabelIndexRegister,
        Kind::LabelIndexNotScaled,
        Kind::LabelWordUnsigned,
        Kind::LabelSumOff,
        Kind::LabelSumElsewhere,
        Kind::LabelSumByAddition,
        Kind::LabelRegister,
    ];

    /// The same for x86-64, where some have guards.
    pub const OWN_TABLES: &'static [Kind] = &[
        Kind::OwnTableMoved,
        Kind::OwnTableWritable,
        Kind::OwnTableShared,
        Kind::OwnEntrySwapped,
        Kind::OwnEntryOff,
        Kind::OwnEntryToOtherFunction,
        Kind::DisplacementOff,
        Kind::OwnTableShort,
        Kind::GuardBoundUp,
        Kind::GuardSigned,
        Kind::GuardNarrow,
        Kind::GuardOtherRegister,
        Kind::GuardTargetOff,
        Kind::IndexGuardLost,
    ];

    /// Kinds that only outputs have where code restores registers in front of a jump table's targets.
    pub const RESTORED: &'static [Kind] = &[
        Kind::RestoredTargetOff,
        Kind::RestoredTargetRegister,
        Kind::RestoredDistanceOff,
        Kind::RestoredDistanceRegister,
        Kind::RestoredElsewhere,
    ];

    /// Kinds that only outputs have whose instructions were changed.
    pub const CHANGES: &'static [Kind] = &[
        Kind::WrongSlot,
        Kind::SlotCallTurned,
        Kind::SlotAddressLost,
        Kind::PromotedNumber,
        Kind::PromotedRegister,
        Kind::PromotionTurned,
        Kind::PromotionLiveRegister,
        Kind::PromotedCallElsewhere,
        Kind::TailCallToWrongFunction,
    ];

    /// Kinds that only programs have that ask for huge pages when they start.
    pub const START_UP: &'static [Kind] = &[
        Kind::OtherAdvice,
        Kind::AdviceElsewhere,
        Kind::StartsElsewhere,
    ];

    /// Those of [`Kind::CHANGES`] that only instructions of AArch64 have.
    pub const CHANGES_AARCH64: &'static [Kind] = &[Kind::SlotAddressLost];

    /// Kinds that only programs have with debug information.
    pub const DEBUG: &'static [Kind] = &[
        Kind::ScopeEndOff,
        Kind::ScopesExchanged,
        Kind::ScopeLeftOld,
        Kind::EntryPcOff,
        Kind::ReturnAddressOff,
        Kind::CallSiteLeftOld,
        Kind::BaseOff,
        Kind::IndexOther,
        Kind::ViewsElsewhere,
        Kind::ExpressionAddressOld,
        Kind::PaddingShort,
        Kind::StmtListOfNeighbour,
        Kind::AddrBaseOfNeighbour,
        Kind::AbbreviationsOfNeighbour,
        Kind::AttributesExchanged,
        Kind::RangeEndOff,
        Kind::RangeDropped,
        Kind::RangesExchanged,
        Kind::LocationEndOff,
        Kind::LocationsMerged,
        Kind::ExpressionByte,
        Kind::AddressOff,
        Kind::StatementTurned,
        Kind::RowFlagLost,
        Kind::PrologueEndsLater,
        Kind::DiscriminatorOther,
        Kind::RowLineOff,
        Kind::RowColumnOther,
        Kind::RowAddressOff,
        Kind::EntryJumpRowLost,
        Kind::SequenceTooLong,
        Kind::ArangesShort,
        Kind::GdbIndexUnit,
        Kind::BuildIdOff,
    ];

    /// Kinds that only programs have that count at edges.
    pub const COUNTING: &'static [Kind] = &[
        Kind::CounterElsewhere,
        Kind::CounterMisaligned,
        Kind::CounterTorn,
        Kind::IncrementLost,
        Kind::IncrementTwice,
        Kind::LiveRegister,
        Kind::LiveFlags,
        Kind::SpillOverStack,
        Kind::SpillLost,
        Kind::RestoreWrong,
        Kind::RestoreLost,
        Kind::StackMoved,
        Kind::CounterBetweenExclusives,
        Kind::RecorderLeaves,
        Kind::OwnerElsewhere,
        Kind::OwnerRegisterLive,
        Kind::OwnerFlagsLost,
        Kind::StackRowLost,
        Kind::StackRowLate,
        Kind::StackRowOff,
    ];

    /// Kinds that only programs have whose inserted code calls routines, or that record indirect calls.
    pub const ROUTINES: &'static [Kind] = &[
        Kind::RoutineRowLost,
        Kind::RoutineRowLate,
        Kind::RoutineRowOff,
        Kind::RoutineFdeMissing,
        Kind::RoutineFdeShort,
    ];

    /// Kinds that only programs have that count calls in functions which are re-emitted.
    pub const CALLS: &'static [Kind] = &[
        Kind::CallNotCounted,
        Kind::CallCounterLost,
        Kind::CallSaturationOff,
        Kind::CallTakenElsewhere,
        Kind::CallCountedElsewhere,
        Kind::CallAskedElsewhere,
        Kind::CallNotedElsewhere,
        Kind::CallCounterShared,
        Kind::CallCounterInData,
        Kind::CallRoutineOff,
        Kind::CallFlagsLost,
        Kind::CallOverRedZone,
        Kind::CallRegisterLost,
        Kind::CallStackMoved,
    ];

    /// Kinds that only such programs have that also note where calls come from.
    pub const CALLERS: &'static [Kind] = &[
        Kind::CallerWordOff,
        Kind::CallerSampledOften,
        Kind::CallerOfPart,
        Kind::CallerLied,
        Kind::CallerElsewhere,
        Kind::CallersUnsaid,
    ];

    /// Kinds that only those of them have that sign return addresses.
    pub const CALLERS_SIGNED: &'static [Kind] = &[Kind::CallerSigned];

    /// Those of [`Kind::CALLS`] that only instructions of x86-64 have.
    pub const CALLS_X86_64: &'static [Kind] = &[
        Kind::CallSaturationOff,
        Kind::CallTakenElsewhere,
        Kind::CallCounterInData,
        Kind::CallFlagsLost,
        Kind::CallOverRedZone,
        Kind::CallStackMoved,
    ];

    /// Those of [`Kind::COUNTING`] that only instructions of x86-64 have.
    pub const COUNTING_X86_64: &'static [Kind] = &[
        Kind::OwnerElsewhere,
        Kind::OwnerRegisterLive,
        Kind::OwnerFlagsLost,
    ];

    /// Those of [`Kind::COUNTING`] that only instructions of AArch64 have.
    pub const COUNTING_AARCH64: &'static [Kind] =
        &[Kind::SpillLost, Kind::CounterBetweenExclusives];
}

/// An output with one fault.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// The file.
    pub image: Vec<u8>,
    /// What was done, for people.
    pub what: String,
}

/// A place in the output: file offset and the bytes to put there.
struct Edit {
    what: String,
    changes: Vec<(usize, Vec<u8>)>,
}

impl Edit {
    fn new(what: impl Into<String>, at: usize, bytes: &[u8]) -> Self {
        Edit {
            what: what.into(),
            changes: vec![(at, bytes.to_vec())],
        }
    }
}

/// An instruction of new code that is reached.
#[derive(Clone, Copy, Debug)]
struct Site {
    addr: u64,
    at: usize,
    insn: Insn,
}

/// A proved pair of files, ready to be spoiled.
pub struct Faults<'a> {
    input: Elf<'a>,
    output: Elf<'a>,
    claim: Claim<'a>,
    sites: Vec<Site>,
    arm: bool,
}

impl<'a> Faults<'a> {
    /// Takes a pair that is proved. The report comes back as an error if it is not.
    ///
    /// # Errors
    ///
    /// The report of a pair that is not proved, or the reason why it cannot be checked, as text.
    pub fn new(input: &'a [u8], output: &'a [u8]) -> Result<Self, String> {
        let report =
            crate::verify(input, output, &Options::default()).map_err(|e| e.to_string())?;
        if !report.is_proved() {
            return Err(first_failure(&report));
        }
        let (input, output) = (
            Elf::parse(input, "input").map_err(|e| e.to_string())?,
            Elf::parse(output, "output").map_err(|e| e.to_string())?,
        );
        let desc = output.note(b"postlink", 1).ok_or("the note is gone")?;
        let claim = Claim::parse(desc).map_err(|e| e.to_string())?;
        let arm = input.machine == AArch64::MACHINE;
        let mut faults = Faults {
            input,
            output,
            claim,
            sites: Vec::new(),
            arm,
        };
        faults.sites = faults.reached(&report);
        Ok(faults)
    }

    /// Instructions of new code that the proof reached, ascending. At most a few thousand functions are looked at.
    fn reached(&self, report: &Report) -> Vec<Site> {
        let mut sites = Vec::new();
        for (f, r) in self
            .claim
            .functions
            .iter()
            .zip(&report.functions)
            .take(4000)
        {
            for range in &f.new {
                let mut addr = range.start;
                while addr < range.end {
                    if let Some(&(_, len)) = r.unreached.iter().find(|u| u.0 == addr.get()) {
                        addr += len;
                        continue;
                    }
                    let Some(bytes) = self.output.bytes(addr.get(), range.end - addr) else {
                        break;
                    };
                    let padding = if self.arm {
                        AArch64::padding_len(bytes)
                    } else {
                        X86_64::padding_len(bytes)
                    };
                    if padding > 0 {
                        addr += padding as u64;
                        continue;
                    }
                    let (Some(insn), Some(at)) =
                        (self.decode(bytes, addr.get()), self.offset(addr.get()))
                    else {
                        break;
                    };
                    sites.push(Site {
                        addr: addr.get(),
                        at,
                        insn,
                    });
                    addr += u64::from(insn.len);
                }
            }
        }
        sites.sort_by_key(|s| s.addr);
        sites
    }

    /// The output with one fault of a kind; `seed` chooses the place. `None` if these files have no place for it.
    pub fn inject(&self, kind: Kind, seed: u64) -> Option<Mutant> {
        self.mutant(&format!("{kind:?}"), self.edits(kind), seed)
    }

    /// The output with one of these changes.
    fn mutant(&self, name: &str, mut edits: Vec<Edit>, seed: u64) -> Option<Mutant> {
        if edits.is_empty() {
            return None;
        }
        // Any spread over the places will do.
        let index = (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16) % edits.len() as u64;
        let edit = edits.swap_remove(index as usize);
        let mut image = self.output.data.to_vec();
        for (at, bytes) in &edit.changes {
            let end = at + bytes.len();
            if image.len() < end {
                image.resize(end, 0);
            }
            image.get_mut(*at..end)?.copy_from_slice(bytes);
        }
        (image != self.output.data).then_some(Mutant {
            image,
            what: format!("{name}: {}", edit.what),
        })
    }

    fn edits(&self, kind: Kind) -> Vec<Edit> {
        use Kind::*;
        match kind {
            InvertedCondition
            | BranchOffByOne
            | BranchToWrongBlock
            | CallToWrongFunction
            | OperandOffByOne
            | OperandOffByEight
            | DroppedPrefix
            | ChangedOpcode
            | ChangedImmediate
            | ChangedRegister
            | DroppedInstruction
            | DroppedReturn
            | ChangedOldCode
            | StayingCallToWrongFunction
            | EntryJumpToWrongFunction => {
                if self.arm {
                    self.code_edits_a64(kind)
                } else {
                    self.code_edits(kind)
                }
            }
            BackToOldEntry => self.back_to_old_entries(),
            TestedBit
            | TestedRegister
            | TestedWidth
            | PageOff
            | PageOffsetOff
            | GuardLost
            | TableScale
            | TableBaseOff
            | LabelJumpToWrongBlock
            | ExclusiveLost
            | Registration => {
                if self.arm {
                    self.code_edits_a64(kind)
                } else {
                    Vec::new()
                }
            }
            CounterElsewhere
            | CounterMisaligned
            | CounterTorn
            | IncrementLost
            | IncrementTwice
            | LiveRegister
            | LiveFlags
            | SpillOverStack
            | SpillLost
            | RestoreWrong
            | RestoreLost
            | StackMoved
            | CounterBetweenExclusives
            | RecorderLeaves
            | OwnerElsewhere
            | OwnerRegisterLive
            | OwnerFlagsLost => self.counting_edits(kind),
            StackRowLost | StackRowLate | StackRowOff => self.stack_row_edits(kind),
            RoutineRowLost | RoutineRowLate | RoutineRowOff | RoutineFdeMissing
            | RoutineFdeShort => self.routine_edits(kind),
            RowBeginsLate | WrongCfaOffset | WrongRegisterRule | WrongArgsSize | FdeTooShort
            | FdeTooLong | WrongLsda | SearchTableUnsorted | SearchEntryWrong
            | SearchEntryMissing | WrongLandingPad | LandingPadDropped | CallSiteTooShort
            | CallSiteStretched | CallSiteLosesFault | ChangedAction | ChangedFilter
            | WrongType | SignStateLost => self.unwind_edits(kind),
            UnwindHeaderLost => self.lost_header(),
            BasisLied | LevelLied | FallBackUnclaimed | FormedFollows | IntoEntryJump => {
                self.bare_edits(kind)
            }
            _ if [Kind::OWN_TABLES, Kind::OWN_TABLES_AARCH64, Kind::RESTORED]
                .iter()
                .any(|list| list.contains(&kind)) =>
            {
                self.own_table_edits(kind)
            }
            LabelSumByAddition => self.label_edits(kind),
            _ if Kind::LABEL_TABLES.contains(&kind) => self.label_edits(kind),
            _ if [Kind::CALLS, Kind::CALLERS, Kind::CALLERS_SIGNED]
                .iter()
                .any(|list| list.contains(&kind)) =>
            {
                self.call_edits(kind)
            }
            WrongSlot | SlotCallTurned | SlotAddressLost => self.change_edits(kind),
            OtherAdvice | AdviceElsewhere | StartsElsewhere => self.start_up_edits(kind),
            WrongConstant | ConstantElsewhere => self.constant_edits(kind),
            PromotedNumber
            | PromotedRegister
            | PromotionTurned
            | PromotionLiveRegister
            | PromotedCallElsewhere
            | TailCallToWrongFunction => self.branch_edits(kind),
            FewerZeroBits | DataInFrontLost | LabelLeftBehind => self.visible_edits(kind),
            StubWithoutLandingPad | EntryFlagsLost => self.stub_edits(kind),
            _ if Kind::DEBUG.contains(&kind) => self.debug_edits(kind),
            _ => self.file_edits(kind),
        }
    }

    fn decode(&self, bytes: &[u8], addr: u64) -> Option<Insn> {
        if self.arm {
            AArch64::decode(bytes, addr)
        } else {
            X86_64::decode(bytes, addr)
        }
    }

    /// File offset of a loaded address of the output.
    fn offset(&self, addr: u64) -> Option<usize> {
        let load = self
            .output
            .loads()
            .iter()
            .find(|l| l.addr <= addr && addr < l.file_end())?;
        usize::try_from(load.offset + (addr - load.addr)).ok()
    }

    /// The reached instruction at an address.
    fn site_at(&self, addr: u64) -> Option<&Site> {
        self.sites
            .binary_search_by_key(&addr, |s| s.addr)
            .ok()
            .and_then(|i| self.sites.get(i))
    }

    /// The file's bytes from an offset.
    fn file(&self, at: usize, len: usize) -> &'a [u8] {
        self.output
            .data
            .get(at..at.saturating_add(len))
            .unwrap_or(b"")
    }

    fn bytes(&self, site: &Site) -> &'a [u8] {
        self.file(site.at, usize::from(site.insn.len))
    }
}

/// The first thing that is wrong in a report.
fn first_failure(report: &Report) -> String {
    match (report.file_failures.first(), report.failures().next()) {
        (Some(failure), _) => format!("the pair is not proved: {failure}"),
        (None, Some((f, failure))) => format!("the pair is not proved: {}: {failure}", f.name),
        (None, None) => "the pair is not proved".into(),
    }
}
