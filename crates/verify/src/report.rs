//! What a check found: a certificate that can be written as JSON.

use crate::addr::{InputAddr, OutputAddr};
use crate::maps::Maps;
use serde::Serialize;

/// What is to be checked beyond the minimum, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Every address at which a function is known to the program (formed in code, stored in data, exported) must be
    /// the same one, old or new, so that comparing function pointers gives the same answers. Default: yes.
    pub unique_addresses: bool,
    /// Instructions other than calls may throw (C++ with `-fnon-call-exceptions`): their call sites are compared
    /// too. For personality routines other than those of C++, C and Rust they always are. Default: no.
    pub non_call_exceptions: bool,
    /// How many failures of the whole file are kept; the count continues. Default: 100.
    pub max_failures: usize,
    /// On which assumptions proofs may rest. Default: all.
    pub accepted: Accepted,
    /// Functions whose instructions were changed are refused, whatever rule there is: code may only be placed.
    /// Default: no.
    pub placement_only: bool,
}

/// Assumptions, by their numbers in `docs/what-a-program-may-see.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted(u32);

impl Default for Accepted {
    fn default() -> Self {
        Accepted(u32::MAX)
    }
}

impl Accepted {
    /// Those with these ids (`A1`, `A2` …); `None` if one is not known.
    pub fn parse(ids: &[&str]) -> Option<Accepted> {
        ids.iter().try_fold(Accepted(0), |all, id| {
            let at = ASSUMPTIONS.iter().position(|a| a.0 == *id)?;
            Some(Accepted(all.0 | 1 << at))
        })
    }

    /// Whether a proof may rest on one.
    pub(crate) fn holds(self, id: &str) -> bool {
        let at = ASSUMPTIONS.iter().position(|a| a.0 == id);
        at.is_some_and(|at| self.0 >> at & 1 != 0)
    }
}

impl Default for Options {
    fn default() -> Self {
        Options {
            unique_addresses: true,
            non_call_exceptions: false,
            max_failures: 100,
            accepted: Accepted::default(),
            placement_only: false,
        }
    }
}

/// Which part of the proof did not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// ELF header, program headers, sections that made way.
    Headers,
    /// Dynamic section.
    Dynamic,
    /// Dynamic relocations.
    Relocations,
    /// Dynamic or static symbols.
    Symbols,
    /// Loaded data.
    Data,
    /// Code that stays.
    OldCode,
    /// The jump at an old entry, and what still leads into the bytes that it overwrote.
    EntryJump,
    /// The claim in the note.
    Claim,
    /// Instructions of old and new code in lock step.
    Code,
    /// Jump tables.
    JumpTable,
    /// Unwind rows and tables.
    Unwind,
    /// Call sites, landing pads, actions.
    LandingPads,
    /// A function has two addresses.
    Identity,
    /// What the program can see of the address of code that moved.
    Visible,
    /// A word or number of the program may be an address inside of code that moved. That is a property of the program:
    /// nothing shows that the output is wrong.
    Inside,
    /// Memory and routines that count.
    Counting,
    /// Debug information of code that moved.
    DebugInfo,
    /// The proof rests on an assumption that is not accepted.
    Assumptions,
    /// Instructions were changed, though code may only be placed.
    Changes,
}

/// A kind of change of instructions for which there is a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// Calls and jumps to stubs of the procedure linkage table that go through the slot.
    SlotCall,
    /// Loads from memory that is never written, of which the number is in the instruction.
    Constant,
    /// Direct calls in the place of indirect ones whose operand was compared with the function.
    PromotedCall,
    /// Conditional branches out of a function in the place of those to a jump out of it.
    ConditionalTailCall,
    /// Bodies of functions in the place of calls of them.
    InlinedCall,
    /// Functions for which the new code of another stands that does the same.
    FoldedFunction,
}

impl ChangeKind {
    /// All kinds, in their order.
    pub const ALL: [ChangeKind; 6] = [
        ChangeKind::SlotCall,
        ChangeKind::Constant,
        ChangeKind::PromotedCall,
        ChangeKind::ConditionalTailCall,
        ChangeKind::InlinedCall,
        ChangeKind::FoldedFunction,
    ];

    /// What is changed, for people.
    pub fn text(self) -> &'static str {
        match self {
            ChangeKind::SlotCall => "calls through the procedure linkage table that take the slot",
            ChangeKind::Constant => "loads of constants that became immediates",
            ChangeKind::PromotedCall => {
                "indirect calls that were compared with a function and call it directly"
            }
            ChangeKind::ConditionalTailCall => {
                "conditional branches that leave the function, past a jump that did"
            }
            ChangeKind::InlinedCall => "calls in whose place the function's body is",
            ChangeKind::FoldedFunction => {
                "functions for which the new code of an identical one stands"
            }
        }
    }
}

/// How many instructions of a kind were changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Changed {
    /// The kind.
    pub kind: ChangeKind,
    /// In how many places of the new code.
    pub sites: u64,
}

/// A difference that is not a placement of code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// Which check.
    pub check: Check,
    /// One sentence.
    pub reason: String,
    /// Address in the input.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old: Option<u64>,
    /// Address in the output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new: Option<u64>,
    /// Bytes (hexadecimal) or value in the input.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub old_value: String,
    /// Bytes (hexadecimal) or value in the output.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub new_value: String,
}

impl Failure {
    pub(crate) fn new(check: Check, reason: impl Into<String>) -> Self {
        Failure {
            check,
            reason: reason.into(),
            old: None,
            new: None,
            old_value: String::new(),
            new_value: String::new(),
        }
    }
    /// A place of the old image, which has one address in both files.
    pub(crate) fn at_kept(self, place: u64) -> Self {
        self.at(InputAddr::new(place), OutputAddr::new(place))
    }
    pub(crate) fn at(mut self, old: InputAddr, new: OutputAddr) -> Self {
        (self.old, self.new) = (Some(old.get()), Some(new.get()));
        self
    }
    pub(crate) fn values(
        mut self,
        old: impl std::fmt::LowerHex,
        new: impl std::fmt::LowerHex,
    ) -> Self {
        (self.old_value, self.new_value) = (format!("{old:#x}"), format!("{new:#x}"));
        self
    }
    pub(crate) fn bytes(mut self, old: &[u8], new: &[u8]) -> Self {
        (self.old_value, self.new_value) = (hex(old), hex(new));
        self
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.reason)?;
        if let (Some(old), Some(new)) = (self.old, self.new) {
            write!(f, " (old {old:#x}, new {new:#x})")?;
        }
        if !self.old_value.is_empty() || !self.new_value.is_empty() {
            write!(f, ": {} became {}", self.old_value, self.new_value)?;
        }
        Ok(())
    }
}

/// What is not listed if there is none.
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut s, b| {
        let _ = write!(s, "{b:02x}");
        s
    })
}

/// The verdict on a function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Moved, and the new code does what the old did.
    Proved,
    /// Moved, and this is not proved.
    Failed(Failure),
}

/// A moved function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FunctionReport {
    /// Its first name in the input's symbol table, if it has one.
    pub name: String,
    /// Old entry.
    pub old: u64,
    /// New entry.
    pub new: u64,
    /// The verdict.
    pub verdict: Verdict,
    /// Instructions of the new code that were paired.
    pub instructions: u64,
    /// Calls, and system calls, after which the old function ends: taken not to return.
    pub assumed_no_return: u64,
    /// New code that nothing reaches and that is not padding: (address, length).
    pub unreached: Vec<(u64, u64)>,
    /// What is at the old entry, where no kept relocations were used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entry: Option<EntryReport>,
    /// Indirect jumps that continue in old code, by address in the input; likewise.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub falls_back: Vec<u64>,
    /// Indirect jumps through tables of new code's own; likewise.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tables: Vec<TableReport>,
}

/// A jump of new code that goes through a table of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TableReport {
    /// The jump, by address in the input.
    pub jump: u64,
    /// The table that it goes through in the input.
    pub table: u64,
    /// Number of entries of its own table.
    pub entries: u64,
    /// How the index is known to be below that.
    pub bound: TableBound,
}

/// How the index of a jump table is known to be in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TableBound {
    /// By what the program compares.
    Proved,
    /// It is compared in front of the load; where it is above, the old load goes on.
    Guarded,
}

impl FunctionReport {
    /// Its name; of one without a name what it is called everywhere, `fun_` and its old address.
    pub fn shown_name(&self) -> String {
        match self.name.as_str() {
            "" => format!("fun_{:x}", self.old),
            name => name.to_owned(),
        }
    }
}

/// What is at an old entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EntryReport {
    /// Whether anything is.
    pub level: EntryLevel,
    /// Where the jump is, after a landing pad if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<u64>,
    /// Assumptions that this rests on.
    pub relies_on: Vec<&'static str>,
}

/// What is at an old entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryLevel {
    /// The input's bytes: control that enters here runs the old body.
    Led,
    /// A jump that reaches everything.
    Long,
}

/// What the rewriter used to find references to code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// Relocations that the linker kept.
    Kept,
    /// Relocations for the dynamic loader.
    Dynamic,
    /// None.
    None,
}

/// Something that the proof takes for granted, and on how many functions it does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Assumption {
    /// Its number in `docs/what-a-program-may-see.md`.
    pub id: &'static str,
    /// What is assumed.
    pub text: &'static str,
    /// How many functions' proofs rest on it.
    pub functions: u64,
}

/// What may be assumed: numbers and sentences.
const ASSUMPTIONS: [(&str, &str); 18] = [
    (
        "A1",
        "nothing depends on the number of a return address or program counter in code that moved, nor on what a jump through a table leaves in registers, beyond what is looked for",
    ),
    (
        "A2",
        "where an unwind entry or a dynamic symbol covers code, control reaches only instruction starts of a linear decode from its first byte, or of a decode from the target of a direct branch; likewise, with per-thread counters, in other code to which direct branches and calls of such code lead",
    ),
    (
        "A3",
        "no jump through a table or pointer leads to bytes after the first of a jump over an old entry, other than those that are looked at",
    ),
    (
        "A4",
        "the bytes of code that moved are not written, nor, where a jump was written over them, read through a pointer",
    ),
    (
        "A5",
        "calls leave the registers alone that the procedure call standard says",
    ),
    (
        "A6",
        "what a jump through a table of new code's own loads and adds, and flags that change there, are not read behind the next call, return or other indirect jump, nor by who handles a breakpoint instruction",
    ),
    (
        "A7",
        "a call at the very end of a function, or of a part with an unwind entry of its own, does not return",
    ),
    (
        "A8",
        "pointers to functions that lead to new code are called, compared for equality and passed on; not ordered, subtracted or hashed",
    ),
    (
        "A9",
        "addresses of labels that lead to new code are only jumped to",
    ),
    (
        "A10",
        "the program does not make segments writable that are not",
    ),
    (
        "A11",
        "calls and jumps to other functions through registers and memory pass nothing in flags, nor in the registers that the procedure call standard leaves to linkers' stubs (r11; on AArch64 x16 and x17)",
    ),
    (
        "A12",
        "the return address that a call leaves below the stack pointer is not read after the call has returned",
    ),
    (
        "A13",
        "flags, and the registers that linkers' stubs may use, hold nothing that is read where a function whose own code shows no such use is entered, calls another, or returns",
    ),
    (
        "A14",
        "the routines that instrumentation adds (start-up, a thread's counters, first calls) write, through addresses that they calculate, only to memory of their own",
    ),
    (
        "A15",
        "nothing depends on which of several functions with the same code a return address or program counter is in, beyond unwinding: backtraces and profiles name one for the other",
    ),
    (
        "A16",
        "library functions that are declared not to return (abort, __stack_chk_fail, __cxa_throw and others, by their names in .dynsym), and functions that have neither a return nor a jump to other code, do not return",
    ),
    (
        "A17",
        "a personality routine without a name that is known reads exception tables as those of C, C++, Rust and Ada do",
    ),
    (
        "A18",
        "the program does not run on a Cortex-A53 with erratum 843419, which gets sequences wrong that new code has and the input has not",
    ),
];

/// The numbers of all assumptions, in the order of the documentation.
pub fn assumption_ids() -> Vec<&'static str> {
    ASSUMPTIONS.iter().map(|a| a.0).collect()
}

impl Assumption {
    /// The assumptions that some function rests on, by the number of functions for each id.
    pub(crate) fn list(counts: &[(&str, u64)]) -> Vec<Assumption> {
        let of = |id: &str| counts.iter().find(|c| c.0 == id).map_or(0, |c| c.1);
        ASSUMPTIONS
            .into_iter()
            .map(|(id, text)| Assumption {
                id,
                text,
                functions: of(id),
            })
            .filter(|a| a.functions > 0)
            .collect()
    }
}

/// Digest of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Digest {
    /// Bytes.
    pub len: u64,
    /// XXH3, 128 bits, hexadecimal.
    pub xxh3: String,
}

impl Digest {
    pub(crate) fn of(data: &[u8], maps: &Maps<'_>) -> Self {
        let mut hash = xxhash_rust::xxh3::Xxh3::new();
        for part in data.chunks(1 << 20) {
            hash.update(part);
            maps.read(part.len());
        }
        Digest {
            len: data.len() as u64,
            xxh3: format!("{:032x}", hash.digest128()),
        }
    }
}

/// The certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Name and version of the checker.
    pub checker: &'static str,
    /// Instruction set.
    pub machine: &'static str,
    /// What the rewriter used to find references to code.
    pub basis: Basis,
    /// The input.
    pub input: Digest,
    /// The output.
    pub output: Digest,
    /// Moved functions that are proved.
    pub proved: u64,
    /// Moved functions that are not.
    pub failed: u64,
    /// Functions of the input that stay where they are.
    pub identical: u64,
    /// References to moved functions that were found changed, and are right or charged to the function: in code.
    pub retargeted: u64,
    /// The same in data, relocations, tables and symbols.
    pub pointers: u64,
    /// What the proof rests on, beside what it shows.
    pub assumptions: Vec<Assumption>,
    /// Instructions that were changed, by a rule; everything else is only placed.
    pub changes: Vec<Changed>,
    /// Instructions of code that counts which have moved the stack pointer, with unwind rows that say so.
    #[serde(skip_serializing_if = "is_zero")]
    pub moved_stack_rows: u64,
    /// Instructions of recorders of indirect calls, and of routines that code which counts calls, from each of which
    /// unwinding by the output's rows leads to the caller with the caller's registers.
    #[serde(skip_serializing_if = "is_zero")]
    pub routine_rows: u64,
    /// A start-up routine asks for huge pages for new code, does nothing else, and continues where the program began.
    pub asks_for_huge_pages: bool,
    /// Differences of the whole file that nothing explains: how many.
    pub file_failure_count: u64,
    /// The first of them.
    pub file_failures: Vec<Failure>,
    /// The verdict on debug information, if the input has some.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub debug: Option<DebugSummary>,
    /// Moved functions in ascending old address.
    pub functions: Vec<FunctionReport>,
}

/// What became of debug information.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DebugState {
    /// It is what it was, byte for byte: it describes old code.
    Kept,
    /// The output has none.
    Dropped,
    /// It describes code where it is now.
    Updated,
}

/// What was compared of debug information.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DebugSummary {
    /// What became of it.
    pub state: DebugState,
    /// Entries of all units.
    pub entries: u64,
    /// Scopes: entries with intervals.
    pub scopes: u64,
    /// Location lists.
    pub places: u64,
    /// Single addresses.
    pub addresses: u64,
    /// Rows of line programs.
    pub rows: u64,
    /// Units that cannot be updated, and describe old code as they did.
    pub stale_units: u64,
}

impl Report {
    /// Whether everything is proved.
    pub fn is_proved(&self) -> bool {
        self.failed == 0 && self.file_failure_count == 0
    }

    /// Functions that are not proved.
    pub fn failures(&self) -> impl Iterator<Item = (&FunctionReport, &Failure)> {
        self.functions.iter().filter_map(|f| match &f.verdict {
            Verdict::Failed(failure) => Some((f, failure)),
            Verdict::Proved => None,
        })
    }

    /// The certificate as JSON.
    pub fn to_json(&self) -> String {
        // Only maps with keys that are not strings, or a failing writer, could make this fail.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}
