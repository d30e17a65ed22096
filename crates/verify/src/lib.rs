//! An independent checker: proves that in a rewritten file only the placement of code changed.
//!
//! [`verify`] takes the bytes of the input and of the output. It shares no code with the rewriter: the ELF
//! reader, the unwind table reader and the language-specific data reader are its own, instructions are decoded by
//! tables and a crate that the rewriter does not use (see below), and unwind rows are computed by `gimli` and by a
//! small interpreter that is compared with it. What the output claims of itself (`.note.postlink`) says where to look;
//! it is never taken as true.
//!
//! # The argument
//!
//! The old image keeps its addresses and bytes; new code is after it. So old code that stays does what it did, as
//! long as everything it uses stays. Each difference must have a reason:
//!
//! | part | what is shown | where |
//! |---|---|---|
//! | headers, dynamic section, relocations, symbols | the same meaning on both sides, modulo moved functions | [`image`] |
//! | data | every changed word is a pointer or table entry that follows its label | [`data`], [`tables`] |
//! | old code | only entry jumps and retargeted references changed | [`text`] |
//! | new code | it simulates the old, instruction by instruction | [`walk`] |
//! | unwind rows, landing pads | the same at each pair of instructions | [`unwind`], [`files::lsda`] |
//! | debug information | it says of new code what it said of old | [`debug`] |
//! | counters in new code | what was inserted changes nothing that the old code reads, and writes only counters | [`machine`], [`liveness`], [`counting`] |
//! | counters at entries, where nothing moved | every difference leads past a counter to where it led | [`entries`] |
//!
//! A reason for a difference always has the form "old address X may become new address Y", and the pair (X,
//! Y) becomes a root of the lock step in the function that owns Y.
//!
//! # What is assumed
//!
//! * Code addresses are used as code addresses: jumped to, called, compared, passed on; not calculated with. (The
//!   one calculation that compilers write, base plus table entry, is checked.)
//! * What is between functions is code where the program comes to it by a branch, an address or a pointer
//!   ([`gaps`]), and nowhere else.
//! * A call at the very end of a function, or of a part of it with an unwind entry of its own, does not return
//!   ([`FunctionReport::assumed_no_return`] counts them), unless the new code continues after it as the old one does.
//! * Entries of a relative jump table are added to the base that precedes it.
//! * What a table jump leaves in the register of its target is not used (A1); nor, after calls and returns, what it
//!   leaves in the registers in which it formed its table's address and its base. Until then that is checked.
//! * A veneer may use the registers that the procedure call standard leaves to veneers (x16 on AArch64).
//! * The start-up code of an instrumented program, and the routines that give a thread its counters or note first
//!   calls, write to no memory of the program (A14). That they keep registers, flags and the stack is shown
//!   ([`routines`]). A thread's base of counters is valid after a check.
//! * Nothing reads its own code, but for accesses with addresses relative to the program counter, which are checked.
//!
//! # What decoding rests on
//!
//! A wrong entry in a decoder's table can make a wrong output pass: an instruction taken for shorter than it is, a
//! field taken for a part of the opcode, a register that is read and not said to be. So these tables are in the trusted
//! base, like the compiler. None of them is the rewriter's, so that an error there does not hide itself here; and each
//! is compared in full with a decoder that others wrote, in tests that continuous integration runs:
//!
//! | table | what it says | compared with |
//! |---|---|---|
//! | crate `yaxpeax-x86` | lengths, operands, reads and writes on x86-64 | `iced-x86`: all opcodes of three VEX and EVEX maps |
//! | `arch/x86_64/quick.rs` | the same of the most common instructions | `yaxpeax-x86`: every opcode, ModRM byte and prefix |
//! | `arch/x86_64/fields.rs` | which bytes may be fields, wherever instructions begin | what is decoded: every opcode, ModRM byte and prefix |
//! | `arch/x86_64`: what that crate lacks | lengths of some VEX and EVEX instructions | `iced-x86`, as above |
//! | `arch/aarch64` | everything on AArch64 | `fARM64`: every operation with registers that vary, and random words |
//!
//! What a table does not know ends the proof of the function that has it, so knowing too little costs a function, and
//! never a wrong verdict.
//!
//! # Cost
//!
//! Functions are walked in parallel. Of each pair of equal instructions only the old side is decoded. Old code that
//! stays is decoded only where its bytes may be a field that leads to a place of interest ([`text`]). Rows
//! are computed once per FDE of a moved function, and inserted code that is the same in all functions is followed
//! once ([`passages`]). Memory is a map of four bytes per byte of new code for the function being walked, and a few
//! bits per byte for those that are done. The report does not depend on the number of threads.

mod addr;
mod again;
mod arch;
mod consulted;
mod context;
pub mod debug;
mod differences;
mod entries;
mod files;
mod frames;
mod liveness;
mod machine;
mod maps;
pub mod mutate;
mod passages;
mod progress;
mod proof;
mod report;
mod routines;
pub mod testing;
mod walk;

pub use progress::walked;
pub use report::{
    Accepted, Assumption, Basis, ChangeKind, Changed, Check, DebugState, DebugSummary, Digest,
    EntryLevel, EntryReport, Failure, FunctionReport, Options, Report, TableBound, TableReport,
    Verdict, assumption_ids,
};

use crate::addr::{InputAddr, OutputAddr, Pair};
use again::{Again, Found, Kept, Named, Roots, Sweep};
use arch::Arch;
use arch::aarch64::AArch64;
use arch::x86_64::X86_64;
use context::{Context, Findings, FuncId, Index, PairsByFunction};
use files::claim::{Claim, Moved, Range};
use files::elf::{self, Elf};
use files::personality::Asked;
use files::pointer::Pointer;
use files::unwind::Table;
use files::veneers::Veneers;
use files::{claim, unwind};
use maps::Maps;
use proof::visible::{self, Extents, Visible};
use proof::{
    bare, counting, data, described, distances, erratum, gaps, headers, identity, image, inside,
    no_return, tables, text, writes,
};
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use rayon::slice::ParallelSliceMut;
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::{Arc, OnceLock};
use walk::{Scratch, Walked};

/// Why two files cannot be checked at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A file is not one that this checker can read.
    #[error("the {which} file cannot be read: {what}")]
    Unreadable {
        /// `input` or `output`
        which: &'static str,
        /// A sentence.
        what: String,
    },
    /// The note is damaged or contradicts itself.
    #[error("the claim in .note.postlink cannot be used: {what}")]
    Claim {
        /// A sentence.
        what: String,
    },
    /// The output is not one of ours.
    #[error("the output has no .note.postlink, so there is nothing to check")]
    NoClaim,
    /// An instruction set without a module here.
    #[error(
        "files of machine {machine} are not checked; this checker knows x86-64 (62) and AArch64 (183)"
    )]
    Machine {
        /// `e_machine`
        machine: u16,
    },
    /// Input and output are for different processors.
    #[error(
        "the input is for machine {input}, the output for machine {output} (62 is x86-64, 183 AArch64)"
    )]
    Machines {
        /// `e_machine` of the input.
        input: u16,
        /// `e_machine` of the output.
        output: u16,
    },
}

/// Proves that `output` is `input` with code at other places, or says where not.
///
/// # Errors
///
/// A file that cannot be read at all, a note that is missing or damaged, an instrumented output. Everything
/// else that is wrong is in the report: see [`Report::is_proved`].
pub fn verify(input: &[u8], output: &[u8], options: &Options) -> Result<Report, Error> {
    verify_files(input, output, None, options)
}

/// When a check keeps what it found out for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// In any case.
    Always,
    /// If something is not proved: then another output is to be expected.
    IfRefused,
}

/// What a check found out that may hold for another output of the same input. It needs the output no more.
#[derive(Clone)]
pub struct Remembered<'a>(Option<Box<Kept<'a>>>);

impl Remembered<'_> {
    /// How many functions' verdicts that check took over from one before it.
    pub fn taken_over(&self) -> usize {
        self.0.as_ref().map_or(0, |kept| kept.taken_over)
    }
}

/// The same as [`verify`], for an output that is to replace one that was checked `before`. Verdicts of that check are
/// used where the checker sees that nothing differs of what they rest on, so the report is what it would be
/// without them.
///
/// # Errors
///
/// As for [`verify`].
pub fn verify_again<'a>(
    (input, input_code): (&'a [u8], &'a InputCode),
    output: &[u8],
    before: Option<Remembered<'a>>,
    keep: Keep,
    options: &Options,
) -> Result<(Report, Remembered<'a>), Error> {
    let files = Files {
        input,
        input_code,
        output,
        split: SplitUnits::default(),
        release: &|| (),
        freed: &|| (),
    };
    verify_files_again(files, before, keep, options)
}

/// The code of an input that is read otherwise than it is in the file: without veneers for an erratum of a processor.
/// It is made by the first check.
#[derive(Debug, Default)]
pub struct InputCode(OnceLock<Veneers>);

/// Reads both files, their code without veneers. `output_code`: where the output's is kept, if it is another.
fn read<'a, 'o>(
    (input, input_code): (&'a [u8], &'a InputCode),
    (output, output_code): (&'o [u8], &'o mut Option<Vec<u8>>),
) -> Result<(Elf<'a>, Elf<'o>), Error> {
    let mut old = Elf::parse(input, "input")?;
    let mut new = Elf::parse(output, "output")?;
    let veneers = input_code.0.get_or_init(|| Veneers::of(&old));
    *output_code = veneers.of_output(&old, &new);
    old.read_code_from(veneers.code());
    new.read_code_from(output_code.as_deref());
    Ok((old, new))
}

/// Two files to be compared, and what else is said of them.
#[derive(Clone, Copy)]
pub struct Files<'a, 'o> {
    /// The input's bytes.
    pub input: &'a [u8],
    /// What was made of them before, or will be.
    pub input_code: &'a InputCode,
    /// The output's.
    pub output: &'o [u8],
    /// Their debug information that is in files of its own.
    pub split: SplitUnits<'o>,
    /// Gives back the memory of the pages of both files that were read so far, if they are maps of files: what is
    /// needed again is read again. It is called between the steps of a check and within those that read much, by any
    /// thread.
    pub release: &'o (dyn Fn() + Sync),
    /// Gives memory that was freed back to the system, where the allocator keeps it. It is called between the largest
    /// steps of a check.
    pub freed: &'o (dyn Fn() + Sync),
}

/// The same for files that are maps, and for programs whose debug information is partly in files of its own (split
/// DWARF).
///
/// # Errors
///
/// As for [`verify`].
pub fn verify_files_again<'a>(
    files: Files<'a, '_>,
    before: Option<Remembered<'a>>,
    keep: Keep,
    options: &Options,
) -> Result<(Report, Remembered<'a>), Error> {
    let mut code = None;
    let input = (files.input, files.input_code);
    let (old, mut new) = read(input, (files.output, &mut code))?;
    new.is_noted = true;
    let before = before.and_then(|b| b.0);
    let described = (None, files.split);
    let maps = Maps::of(files.release, files.freed);
    let (report, kept) = verify_parsed(&old, &new, described, (before, keep), (options, &maps))?;
    Ok((report, Remembered(kept)))
}

/// Files with units that programs have only skeletons of (split DWARF).
#[derive(Clone, Copy, Debug, Default)]
pub struct SplitUnits<'a> {
    /// The input's: `.dwo` files, or a package (`.dwp`).
    pub old: &'a [&'a [u8]],
    /// The output's package, if it has one.
    pub new: Option<&'a [u8]>,
}

/// The same as [`verify`] for files that are maps, and for programs whose debug information is partly in files of its
/// own (split DWARF). Nothing is noted for another check.
///
/// # Errors
///
/// As for [`verify`].
pub fn verify_mapped(files: Files<'_, '_>, options: &Options) -> Result<Report, Error> {
    let mut code = None;
    let input = (files.input, files.input_code);
    let (old, new) = read(input, (files.output, &mut code))?;
    let before = (None, Keep::IfRefused);
    let maps = Maps::of(files.release, files.freed);
    Ok(verify_parsed(&old, &new, (None, files.split), before, (options, &maps))?.0)
}

/// The same with debug information in files of their own: proves that `new_debug` says of the output what
/// `old_debug` says of the input.
///
/// # Errors
///
/// As for [`verify`].
pub fn verify_debug_file(
    input: &[u8],
    output: &[u8],
    old_debug: &[u8],
    new_debug: &[u8],
    options: &Options,
) -> Result<Report, Error> {
    let old = Elf::parse_debug_file(old_debug, "debug information of the input")?;
    let new = Elf::parse_debug_file(new_debug, "debug information of the output")?;
    verify_files(input, output, Some((&old, &new)), options)
}

fn verify_files(
    input: &[u8],
    output: &[u8],
    debug_files: Option<(&Elf<'_>, &Elf<'_>)>,
    options: &Options,
) -> Result<Report, Error> {
    let (input_code, mut code) = (InputCode::default(), None);
    let (old, new) = read((input, &input_code), (output, &mut code))?;
    let described = (debug_files, SplitUnits::default());
    let maps = Maps::of(&|| (), &|| ());
    let before = (None, Keep::IfRefused);
    Ok(verify_parsed(&old, &new, described, before, (options, &maps))?.0)
}

/// What was kept of the check before, and when this one is to keep something.
type Before<'a> = (Option<Box<Kept<'a>>>, Keep);

/// Files with debug information beside the programs: separate ones, and those of split units.
type Described<'a> = (Option<(&'a Elf<'a>, &'a Elf<'a>)>, SplitUnits<'a>);

/// What a check gives: its report, and what it keeps for the next if that is noted.
type Checked<'a> = (Report, Option<Box<Kept<'a>>>);

fn verify_parsed<'a>(
    old: &Elf<'a>,
    new: &Elf<'_>,
    described: Described<'_>,
    before: Before<'a>,
    (options, maps): (&Options, &Maps<'_>),
) -> Result<Checked<'a>, Error> {
    let prove = match old.machine {
        X86_64::MACHINE => prove::<X86_64>,
        AArch64::MACHINE => prove::<AArch64>,
        machine => return Err(Error::Machine { machine }),
    };
    if old.machine != new.machine {
        return Err(Error::Machines {
            input: old.machine,
            output: new.machine,
        });
    }
    let desc = new.note(b"postlink", 1).ok_or(Error::NoClaim)?;
    let claim = Claim::parse(desc)?;
    match claim.kind {
        // Counters at entries move nothing, and need no claim.
        0 if claim.functions.is_empty() => {
            let report = match old.machine {
                X86_64::MACHINE => entries::prove::<X86_64>(old, new, (options, maps)),
                _ => entries::prove::<AArch64>(old, new, (options, maps)),
            };
            return Ok((report, None));
        }
        0 | 1 => {}
        kind => {
            return Err(Error::Claim {
                what: format!("its kind is {kind}; known are 0 (instrumented) and 1 (optimised)"),
            });
        }
    }
    // Old addresses are kept in 32 bits; and nothing below loops over an address range that is not in a file.
    for (elf, which, ranges) in [
        (
            old,
            "input",
            &(|f: &claim::Moved| f.old.iter().map(Range::numbers).collect())
                as &dyn Fn(&claim::Moved) -> Vec<Range>,
        ),
        (new, "output", &|f| {
            f.new.iter().map(Range::numbers).collect()
        }),
    ] {
        let (start, end) = elf.extent();
        if end - start >= u64::from(u32::MAX) {
            return Err(Error::Unreadable {
                which,
                what: format!("it spans {start:#x}..{end:#x}, more than 4 GiB"),
            });
        }
        if let Some(r) = claim
            .functions
            .iter()
            .flat_map(ranges)
            .find(|r: &Range| r.start < start || r.end > end)
        {
            return Err(Error::Claim {
                what: format!(
                    "the range {:#x}..{:#x} is outside the {which}'s {start:#x}..{end:#x}",
                    r.start, r.end
                ),
            });
        }
    }
    let how = (options, maps);
    let (report, mut kept) = prove(old, new, described, &claim, before, how);
    // They are much, and nobody needs them here any more.
    if let Some(kept) = &mut kept {
        kept.functions = claim.functions;
    }
    Ok((report, kept))
}

/// Whether a range has bytes in one of these segments, as code.
fn is_code(segments: &[elf::Segment], range: Range) -> bool {
    let mut code = segments.iter().filter(|l| l.is_exec());
    code.any(|l| l.addr <= range.start && range.end <= l.file_end())
}

/// Checks that claimed ranges are where code may be. Returns those in the space of old bodies, and whose those were.
fn check_claim(
    cx: &Context<'_>,
    layout: &image::Layout,
    claim: &Claim<'_>,
    found: &mut Findings,
) -> Vec<(Range<OutputAddr>, FuncId)> {
    let mut reused = Vec::new();
    let build_id = cx.input.note(b"GNU", 3).unwrap_or(b"");
    if build_id != claim.build_id {
        let failure = Failure::new(
            Check::Claim,
            "the output was made from an input with another build-id",
        );
        found.file.push(failure.bytes(build_id, claim.build_id));
    }
    for (id, f) in cx.functions.iter().enumerate() {
        let id = id as FuncId;
        for r in &f.old {
            if !is_code(cx.input.loads(), r.numbers()) {
                let text = format!(
                    "the old range {:#x}..{:#x} is not code of the input",
                    r.start, r.end
                );
                found.functions.push((id, Failure::new(Check::Claim, text)));
            }
        }
        // Those of a folded function are another's.
        let own = if f.folded.is_some() { &[] } else { &f.new[..] };
        for r in own {
            if is_code(&layout.added, r.numbers()) {
                continue;
            }
            let whose = cx.old.owner(r.start.of_old_image());
            let body = whose.and_then(|id| {
                cx.function(id)?
                    .old
                    .iter()
                    .find(|b| b.start <= r.start.of_old_image() && r.end <= b.end.kept())
            });
            match whose.filter(|_| body.is_some()) {
                Some(body) => reused.push((*r, body)),
                None => {
                    let text = format!(
                        "the new range {:#x}..{:#x} is neither in a new executable segment nor in the old body of a moved function",
                        r.start, r.end
                    );
                    found.functions.push((id, Failure::new(Check::Claim, text)));
                }
            }
        }
    }
    reused
}

/// Compares the unwind tables of code that stays, and checks that new FDEs cover new code alone.
fn compare_unwind(cx: &Context<'_>, found: &mut Findings) {
    let (old, new) = (&cx.old_unwind, &cx.new_unwind);
    if old.searchable && !new.searchable {
        found.file.push(Failure::new(
            Check::Unwind,
            "the output has no unwind search table",
        ));
    }
    if new.searchable && new.linear_fdes != new.fdes.len() && old.linear_fdes == old.fdes.len() {
        let text = format!(
            "the unwind search table has {} entries for {} FDEs",
            new.fdes.len(),
            new.linear_fdes
        );
        found.file.push(Failure::new(Check::Unwind, text));
    }
    let mut others = new.fdes.iter().peekable();
    let mut extra = Vec::new();
    for fde in &old.fdes {
        while let Some(other) = others.next_if(|o| o.start < fde.start) {
            extra.push(other);
        }
        match others.next_if(|o| o.start == fde.start) {
            Some(other) if old.same_meaning(fde, new, other) => {}
            // What was there is gone; what is there now has its own entries.
            other
                if cx
                    .old
                    .owner(InputAddr::new(fde.start))
                    .is_some_and(|id| cx.is_buried(id)) =>
            {
                extra.extend(other)
            }
            other => {
                let what = if other.is_some() {
                    "changed"
                } else {
                    "is missing"
                };
                found.file.push(Failure::new(
                    Check::Unwind,
                    format!("the FDE of the old code at {:#x} {what}", fde.start),
                ));
            }
        }
    }
    extra.extend(others);
    for fde in extra {
        let inside = cx
            .new
            .owner(OutputAddr::new(fde.start))
            .and_then(|id| Some((id, cx.function(id)?)));
        match inside {
            Some((_, f))
                if f.new
                    .iter()
                    .any(|r| r.start <= OutputAddr::new(fde.start) && fde.end <= r.end.get()) => {}
            Some((id, _)) => {
                let text = format!(
                    "the FDE of {:#x}..{:#x} reaches beyond the function's new range",
                    fde.start, fde.end
                );
                found
                    .functions
                    .push((id, Failure::new(Check::Unwind, text)));
            }
            // An FDE of length 0 is never found.
            None if fde.start == fde.end => {}
            // Nothing throws in recorders, and no call returns there.
            None if cx.unowned(OutputAddr::new(fde.start)).is_some()
                && cx
                    .new
                    .is_free(OutputAddr::new(fde.start), OutputAddr::new(fde.end)) => {}
            None => {
                let text = format!(
                    "the FDE of {:#x}..{:#x} is for no new code that was claimed",
                    fde.start, fde.end
                );
                found.file.push(Failure::new(Check::Unwind, text));
            }
        }
    }
}

/// Walks all functions but those whose walks `again` has, and again those of which others demand more, until no new
/// pair is demanded. Gives the roots as well.
fn walk_all<A: Arch>(
    cx: &Context<'_>,
    pairs: &mut Vec<Pair>,
    again: Option<&mut Again<'_>>,
) -> (Vec<Walked>, Roots) {
    let base = cx.input.extent().0;
    let mut roots = Roots {
        first: PairsByFunction::new(cx, pairs),
        ..Roots::default()
    };
    progress::expect(cx.functions.len());
    // One buffer for each piece of the work, not for each function.
    let run = |ids: &[FuncId], roots: &Roots| -> Vec<Walked> {
        postlink_parallel::map_with(ids, Scratch::default, |scratch, id| {
            progress::did();
            cx.maps.read(cx.function(*id).map_or(0, Moved::size));
            let walk = || walk::walk::<A>(cx, *id, &roots.of(*id), scratch);
            let (mut walked, consulted) = consulted::noting(cx.output.is_noted, walk);
            walked.consulted = consulted;
            walked
        })
    };
    let put = |walked: &mut Vec<Walked>, ids: &[FuncId], new: Vec<Walked>| {
        for (id, w) in ids.iter().zip(new) {
            if let Some(slot) = walked.get_mut(*id as usize) {
                *slot = w;
            }
        }
    };
    let all = 0..cx.functions.len() as FuncId;
    let mut last: Vec<FuncId> = all.collect();
    // Functions that were walked now, where the others' walks are those of the check before.
    let mut few: Option<Few> = None;
    let mut walked = match again {
        None => run(&last, &roots),
        Some(again) => {
            let (mut walked, ids) = again.walked(cx, &mut roots);
            if walked.len() == last.len() {
                let new = run(&ids, &roots);
                put(&mut walked, &ids, new);
                few = Some(Few::new(cx, &ids));
            } else {
                walked = run(&last, &roots);
            }
            walked
        }
    };
    loop {
        let few = few.take();
        // What one function of the check before demands of another of them was granted there.
        let is_open = |id: FuncId, pair: &Pair| few.as_ref().is_none_or(|few| few.has(id, *pair));
        let mut cross: Vec<Pair> = postlink_parallel::flat_map(&last, |id| {
            let walked = walked.get(*id as usize);
            let all = walked.into_iter().flat_map(|w| w.cross.iter().copied());
            all.filter(|pair| is_open(*id, pair))
        });
        cross.par_sort_unstable();
        cross.dedup();
        let demanded = |(old, new): &Pair| {
            let id = cx.new.owner(*new)?;
            let (w, f) = (walked.get(id as usize)?, cx.function(id)?);
            // Data flow over its new code has to know where control comes in.
            let by_pair = f.tables.is_empty() && w.pairs.holds(f, base, *old, *new);
            let known = w.failure.is_some() || roots.holds(id, (*old, *new)) || by_pair;
            (!known).then_some((id, (*old, *new)))
        };
        let demanded = postlink_parallel::filter_map(&cross, demanded);
        let mut again: Vec<FuncId> = Vec::new();
        for (id, pair) in demanded {
            roots.more.entry(id).or_default().push(pair);
            again.push(id);
        }
        again.sort_unstable();
        again.dedup();
        if again.is_empty() {
            return (walked, roots);
        }
        let new = run(&again, &roots);
        put(&mut walked, &again, new);
        last = again;
    }
}

/// Some of the functions.
struct Set {
    /// By function: whether it is one of them.
    is: Vec<bool>,
    count: u64,
}

impl Set {
    fn new(cx: &Context<'_>, ids: impl Iterator<Item = FuncId>) -> Self {
        let (mut is, mut count) = (vec![false; cx.functions.len()], 0);
        for id in ids {
            if let Some(is) = is.get_mut(id as usize) {
                count += u64::from(!std::mem::replace(is, true));
            }
        }
        Set { is, count }
    }

    fn has(&self, id: FuncId) -> bool {
        self.is.get(id as usize) == Some(&true)
    }
}

/// Some functions, and where their new code is.
struct Few {
    functions: Set,
    /// Ascending.
    new: Vec<Range<OutputAddr>>,
}

impl Few {
    fn new(cx: &Context<'_>, ids: &[FuncId]) -> Self {
        let functions = ids.iter().filter_map(|id| cx.function(*id));
        let mut new: Vec<_> = functions.flat_map(|f| f.new.iter().copied()).collect();
        new.sort_unstable();
        Few {
            functions: Set::new(cx, ids.iter().copied()),
            new,
        }
    }

    /// Whether a pair that a function demands is of one of them, or leads to one.
    fn has(&self, by: FuncId, (_, new): Pair) -> bool {
        let next = self.new.partition_point(|range| range.end <= new);
        self.functions.has(by) || self.new.get(next).is_some_and(|range| range.contains(new))
    }
}

/// By CIE: what its personality routine may be asked about.
fn asked<A: Arch>(input: &Elf<'_>, unwind: &Table<'_>) -> Vec<Asked> {
    let relocations = image::rela_tables(input);
    let mut known: FxHashMap<Pointer, Asked> = FxHashMap::default();
    let routines = unwind.cies.iter().map(|cie| cie.personality);
    routines
        .map(|routine| {
            let asked = || Asked::new::<A>(input, &relocations, routine);
            *known.entry(routine).or_insert_with(asked)
        })
        .collect()
}

/// Notes which old bodies have new code in them.
fn note_reused(cx: &mut Context<'_>, reused: Vec<(Range<OutputAddr>, FuncId)>) {
    for &(_, id) in &reused {
        if let Some(buried) = cx.buried.get_mut(id as usize) {
            *buried = true;
        }
    }
    cx.reused = Index::new(reused);
}

/// Where something may begin in the input's code. `symbols`: where its functions begin.
fn starts(cx: &Context<'_>, claim: &Claim<'_>, symbols: &[u64]) -> Vec<u64> {
    let moved = claim.functions.iter();
    let moved = moved.flat_map(|f| f.old.iter().map(|r| r.start).chain([f.old_entry]));
    let moved = moved.map(InputAddr::get);
    text::starts(symbols, &cx.old_unwind, &cx.code, moved)
}

/// Compares the unwind tables, and finds where something may begin meanwhile.
///
/// `symbols`: where functions of the input begin, if it is known; they are given back.
fn unwind_and_starts(
    cx: &Context<'_>,
    claim: &Claim<'_>,
    symbols: Option<Vec<u64>>,
    found: &mut Findings,
) -> (Vec<u64>, Vec<u64>) {
    let starts = || {
        let symbols = symbols.unwrap_or_else(|| text::symbols(cx.input));
        (starts(cx, claim, &symbols), symbols)
    };
    postlink_parallel::join(|| compare_unwind(cx, found), starts).1
}

/// Which function's old code an address is, and which one's new code.
fn owners(claim: &Claim<'_>) -> (Index<InputAddr>, Index<OutputAddr>) {
    let functions = || (0..).zip(&claim.functions);
    postlink_parallel::join(
        || {
            let of = functions().flat_map(|(id, f)| f.old.iter().map(move |r| (*r, id)));
            Index::new(of.collect())
        },
        || {
            let with_own = functions().filter(|(_, f)| f.folded.is_none());
            let of = with_own.flat_map(|(id, f)| f.new.iter().map(move |r| (*r, id)));
            Index::new(of.collect())
        },
    )
}

fn prove<'a, A: Arch>(
    input: &Elf<'a>,
    output: &Elf<'_>,
    (debug_files, split): Described<'_>,
    claim: &Claim<'_>,
    (mut before, when): Before<'a>,
    (options, maps): (&Options, &Maps<'_>),
) -> Checked<'a> {
    let mut found = Findings::default();
    let counting = claim.kind == 0;
    let mut layout = image::layout_of(input, output, counting, &mut found.file);
    let (old_unwind, new_unwind) = unwind_tables(input, output, &mut found);
    maps.give_back();
    let (old, new) = owners(claim);
    let mut cx = Context {
        input,
        output,
        functions: &claim.functions,
        options,
        maps,
        old,
        new,
        patches: Index::default(),
        interiors: Index::default(),
        arrivals: Index::default(),
        reused: Index::default(),
        buried: vec![false; claim.functions.len()],
        code: context::code_ranges(input),
        asked: asked::<A>(input, &old_unwind),
        old_unwind,
        new_unwind,
        abandoned: std::mem::take(&mut layout.abandoned),
        guarded: image::is_guarded(output),
        counts: counting.then(|| counting::areas(&layout)),
        debug_files,
        split,
        has_debug_info: !counting
            && debug::is_described(debug_files.map_or(input, |d| d.0), output),
        ends: FxHashMap::default(),
        distances: Vec::new(),
        calculating: FxHashSet::default(),
        described: false,
        bare: claim.basis.is_some(),
        loaded: writes::places(input),
        words: writes::words::<A>(input, claim),
        slots: FxHashSet::default(),
        without_return: no_return::of_bare::<A>(input, claim),
        relocated_constants: image::relocated_constants(input),
        startup: A::asks_for_huge_pages,
    };
    bare::check_basis::<A>(input, claim, &mut found);
    let reused = check_claim(&cx, &layout, claim, &mut found);
    note_reused(&mut cx, reused);
    let (known_extents, known_names, symbols) = known_names(&mut before, input.data);
    let (starts, symbols) = unwind_and_starts(&cx, claim, symbols, &mut found);
    maps.give_back();
    let (named, ()) = postlink_parallel::join(
        || known_extents.unwrap_or_else(|| visible::named(input)),
        || text::entry_jumps::<A>(&mut cx, &starts, &mut found),
    );
    let code = std::mem::take(&mut cx.code);
    let extents = Extents::new(named, &cx.old_unwind, &starts, &code);
    cx.ends = ends_of_moved::<A>(&cx, &extents);
    maps.give_back();
    cx.code.clone_from(&code);
    if cx.bare {
        cx.slots = bare::slots::<A>(&cx, &starts, &code);
    } else {
        cx.distances = distances::relocations::<A>(&cx);
        cx.calculating = distances::calculating(&cx);
        cx.described = described::has_words::<A>(input);
    }
    let cx = cx;
    let mut again = before.and_then(|before| Again::new(&cx, *before));
    let mut keep = Found::default();
    image::dynamic(&cx, &layout, &mut found);
    let relative = image::relocations::<A>(&cx, &mut layout, &mut found);
    writes::compare(&cx, &mut found);
    erratum::look::<A>(&cx, &mut found);
    image::dynamic_symbols(&cx, &mut layout, &mut found);
    compared_by_meaning(&cx, &mut layout, &mut found);
    let kept = data::KeptRelocs::new(input, cx.bare);
    // What one thread must do alone continues beside what all do.
    let mut of_symbols = Findings::default();
    postlink_parallel::join(
        || {
            let kept = (&kept, &layout.by_meaning[..], &relative[..]);
            found.append(compare_image::<A>(
                &cx, &extents, kept, &mut again, &mut keep,
            ));
        },
        || image::static_symbols(&cx, (input, output), &mut of_symbols),
    );
    found.append(of_symbols);
    maps.is_done();

    let known = again.as_ref().map(|a| a.input_digest().clone());
    // All that move now are among those that moved then.
    let known_names = known_names.filter(|_| again.is_some());
    let known_visible = again.as_ref().and_then(Again::visible);
    let (((walked, roots), subject), visible) = postlink_parallel::join(
        || {
            postlink_parallel::join(
                || walk_all::<A>(&cx, &mut found.pairs, again.as_mut()),
                || Subject::of(&cx, (input, &symbols), (known, known_names)),
            )
        },
        || known_visible.unwrap_or_else(|| Arc::new(Visible::of(input))),
    );
    if counting {
        keep.unwound = judge_counting::<A>(&cx, &walked, again.as_ref(), &mut found);
    }
    counting::check_hooks::<A>(&cx, &mut found);
    gather::<A>(&cx, &walked, &mut found);
    what_is_seen::<A>(&cx, &visible, &extents, &mut found);
    overwritten_bodies::<A>(&cx, &kept, &relative, &mut found);
    debug::probes_in_folded(&cx, &mut found);
    if options.unique_addresses {
        unique_addresses(&cx, &mut found);
    }
    // What is said of code can be compared once it is known which code corresponds to which.
    let proved = found.file.is_empty()
        && found.functions.is_empty()
        && walked.iter().all(|w| w.failure.is_none());
    let debug = if proved {
        debug::prove::<A>(&cx, &walked, &mut found)
    } else {
        None
    };
    let mut report = report::<A>(&cx, found, &walked, &subject, options);
    report.debug = debug;
    let wanted = output.is_noted && (when == Keep::Always || !report.is_proved());
    if !wanted {
        // Many small lists, which one thread would take long to give back.
        walked.into_par_iter().for_each(drop);
        return (report, None);
    }
    (keep.walked, keep.roots, keep.visible) = (walked, roots, Some(visible));
    let taken_over = again.map_or(0, |a| a.taken_over);
    let mut kept = Kept::new(&cx, input.data, subject.input, keep, taken_over);
    if let Some(kept) = &mut kept {
        kept.named = Named {
            extents: extents.into_named(),
            names: subject.names,
            starts: symbols,
        };
    }
    (report, kept.map(Box::new))
}

/// What the check before knows of the input's functions, if its input was the very same bytes: their extents, names
/// and starts.
fn known_names<'a>(
    before: &mut Option<Box<Kept<'a>>>,
    input: &[u8],
) -> (
    Option<Vec<(u64, u64, bool)>>,
    Option<FxHashMap<u64, ((bool, bool), &'a [u8])>>,
    Option<Vec<u64>>,
) {
    let known = before.as_mut().filter(|before| before.is_of(input));
    let known = known.map(|before| std::mem::take(&mut before.named));
    let (extents, known) = known.map(|n| (n.extents, (n.names, n.starts))).unzip();
    let (names, starts) = known.unzip();
    (extents, names, starts)
}

/// Notes what is compared by what it means, beside what is known already: the dynamic section, and the build-id unless
/// the output counts.
fn compared_by_meaning(cx: &Context<'_>, layout: &mut image::Layout, found: &mut Findings) {
    if let Some(s) = cx.input.segment(elf::PT_DYNAMIC) {
        layout.by_meaning.push(Range {
            start: s.addr,
            end: s.file_end(),
        });
    }
    if cx.counts.is_none() {
        layout.by_meaning.extend(identity::build_id(cx, found));
    }
    layout.by_meaning.sort_unstable();
}

/// Judges how all functions together count, with what `again` knows.
fn judge_counting<A: Arch>(
    cx: &Context<'_>,
    walked: &[Walked],
    again: Option<&Again<'_>>,
    found: &mut Findings,
) -> counting::Unwound {
    let known = |id: FuncId, at: &[OutputAddr], routines: &[(u64, u32)]| {
        again?.unwound(id, at, routines).cloned()
    };
    counting::judge::<A>(cx, walked, &known, found)
}

/// What walks found out about other functions than their own, and jumps to old code that the claim does not name.
fn gather<A: Arch>(cx: &Context<'_>, walked: &[Walked], found: &mut Findings) {
    for w in walked {
        found.addresses.extend(w.addresses.iter());
        found.entrances.extend(w.entrances.iter());
        found.labels.extend(w.labels.iter());
        found.inside.extend(w.inside.iter());
        found.registers += w.registers;
    }
    headers::check(cx, found);
    if cx.bare {
        let came_by = (0..).zip(cx.functions).zip(walked);
        let unclaimed =
            came_by.filter_map(|((id, f), w)| Some((id, bare::unclaimed(f, &w.falls_back)?)));
        found.functions.extend(unclaimed);
        // What is concluded from tables of labels rests on jumps through them.
        let ids = (0..).zip(cx.functions).zip(walked);
        let unused = ids.filter(|((id, _), w)| w.tables.is_empty() && cx.has_labels::<A>(*id));
        found.functions.extend(unused.map(|((id, f), _)| {
            let text = "the claim names a table of labels, and no jump goes through it";
            let failure = Failure::new(Check::Claim, text);
            (id, failure.at(f.old_entry, f.new_entry()))
        }));
    }
}

/// Compares old code and data, and what refers to moved functions from there.
fn compare_image<A: Arch>(
    cx: &Context<'_>,
    extents: &Extents<'_>,
    (kept, by_meaning, relative): (&data::KeptRelocs<'_>, &[Range], &[u64]),
    again: &mut Option<Again<'_>>,
    keep: &mut Found,
) -> Findings {
    let mut found = Findings::default();
    let same = again.as_ref().map(Again::equal).unwrap_or_default();
    let (compared, equal) = data::compare::<A>(cx, kept, by_meaning, relative, &same);
    keep.equal = equal;
    found.append(compared);
    let starts = extents.starts();
    let known = again.as_mut().and_then(|a| a.swept(starts, relative));
    let parts = text::sweep::<A>(cx, kept, starts, relative, known);
    if cx.output.is_noted {
        parts
            .iter()
            .for_each(|part| found.append(part.found.clone()));
        keep.swept = Some(Sweep {
            starts: starts.to_vec(),
            relative: relative.to_vec(),
            parts,
        });
    } else {
        parts.into_iter().for_each(|part| found.append(part.found));
    }
    text::literals::<A>(cx, kept, &mut found);
    data::staying_pointers::<A>(cx, kept, &mut found);
    if cx.bare {
        // No table may change.
        found.bases.clear();
        found.dispatches.clear();
        bare::check_functions::<A>(cx, &mut found);
        bare::check_tables::<A>(cx, &mut found);
        bare::describing(cx, extents, &mut found);
        let inside = again.as_mut().and_then(Again::inside);
        let inside = inside.unwrap_or_else(|| inside::search::<A>(cx));
        keep.inside = cx.output.is_noted.then(|| inside.clone());
        inside::judge(inside, &mut found);
    } else {
        described::known::<A>(cx, extents, &mut found);
        distances::known::<A>(cx, &mut found);
    }
    tables::explain::<A>(cx, kept, &mut found);
    for (id, addr, target) in gaps::into_jumps::<A>(cx, std::mem::take(&mut found.into_jumps)) {
        let text = format!(
            "the instruction at {addr:#x} goes to {target:#x}, which the entry jump overwrote"
        );
        let failure =
            Failure::new(Check::EntryJump, text).at(InputAddr::new(addr), OutputAddr::new(target));
        found.functions.push((id, failure));
    }
    found
}

fn unwind_table<'a>(elf: &Elf<'a>, which: &str, found: &mut Findings) -> unwind::Table<'a> {
    unwind::Table::read(elf).unwrap_or_else(|what| {
        found
            .file
            .push(Failure::new(Check::Unwind, format!("{which}: {what}")));
        unwind::Table::default()
    })
}

/// Those of the input and the output.
fn unwind_tables<'a, 'o>(
    input: &Elf<'a>,
    output: &Elf<'o>,
    found: &mut Findings,
) -> (unwind::Table<'a>, unwind::Table<'o>) {
    let mut of_output = Findings::default();
    let tables = postlink_parallel::join(
        || unwind_table(input, "input", found),
        || unwind_table(output, "output", &mut of_output),
    );
    found.append(of_output);
    tables
}

/// Old bodies that branch into what the entry jump overwrote, and those with other code in them, must not run any more.
fn overwritten_bodies<A: Arch>(
    cx: &Context<'_>,
    kept: &data::KeptRelocs<'_>,
    relative: &[u64],
    found: &mut Findings,
) {
    // Without kept relocations nothing may branch there at all, as is shown elsewhere.
    if cx.bare {
        return;
    }
    found
        .interior_branches
        .extend((0..cx.functions.len() as FuncId).filter(|id| cx.is_buried(*id)));
    found.interior_branches.sort_unstable();
    found.interior_branches.dedup();
    if found.interior_branches.is_empty() {
        return;
    }
    let mut wanted = vec![false; cx.functions.len()];
    for &id in &found.interior_branches {
        if let Some(w) = wanted.get_mut(id as usize) {
            *w = true;
        }
    }
    data::unchanged_pointers::<A>(cx, kept, &wanted, relative, found);
    let mut alive = std::mem::take(&mut found.entrances);
    alive.retain(|id| wanted.get(*id as usize) == Some(&true));
    alive.sort_unstable();
    alive.dedup();
    for id in alive {
        let at = cx.function(id).map(|f| f.old_entry).unwrap_or_default();
        let text = if cx.is_buried(id) {
            format!("the old body of {at:#x} is still entered, but other code is there now")
        } else {
            format!(
                "the old body of {at:#x} is still entered, and branches into what its entry jump overwrote"
            )
        };
        found
            .functions
            .push((id, Failure::new(Check::EntryJump, text)));
    }
}

/// Ends of moved functions after which nothing but padding is.
fn ends_of_moved<A: Arch>(cx: &Context<'_>, extents: &Extents<'_>) -> FxHashMap<InputAddr, FuncId> {
    let owned = |(id, f): (usize, &claim::Moved)| {
        let id = id as FuncId;
        f.old.iter().map(move |r| (r.end, id)).collect::<Vec<_>>()
    };
    let is_bare = |(end, _): &(InputAddr, FuncId)| {
        cx.old.owner(*end).is_none() && extents.ends_bare::<A>(cx.input, (*end).get())
    };
    let ends = postlink_parallel::flat_map_range(cx.functions.len(), |id| {
        owned((id, &cx.functions[id])).into_iter().filter(is_bare)
    });
    ends.into_iter().collect()
}

/// What the program may see of the addresses of moved functions; see [`visible`].
fn what_is_seen<A: Arch>(
    cx: &Context<'_>,
    visible: &Visible,
    extents: &Extents<'_>,
    found: &mut Findings,
) {
    if let Some(name) = visible.refused.filter(|_| !cx.functions.is_empty()) {
        let text = format!(
            "code moved in a file with the run-time of {name}, whose tables describe code by address"
        );
        found.file.push(Failure::new(Check::Visible, text));
    }
    let mut failed: Vec<(FuncId, Failure)> = Vec::new();
    let mut fail = |id: FuncId, old: InputAddr, new: OutputAddr, text: String| {
        failed.push((id, Failure::new(Check::Visible, text).at(old, new)));
    };
    let mut inside: Vec<(FuncId, Failure)> = Vec::new();
    // Pointers that follow.
    let mut follow: Vec<FuncId> = found
        .addresses
        .iter()
        .filter(|a| a.1)
        .map(|a| a.0)
        .collect();
    follow.sort_unstable();
    follow.dedup();
    let why: Vec<(FuncId, InputAddr, OutputAddr, String)> =
        postlink_parallel::filter_map(&follow, |id| {
            let f = cx.function(*id)?;
            let (old, new) = (f.old_entry, f.new_entry());
            let why = extents.why_not::<A>(cx.input, visible, old.get(), new.get())?;
            Some((*id, old, new, why))
        });
    for (id, old, new, text) in why {
        fail(id, old, new, text);
    }
    // Pointers to labels that follow: to a function they would be more, and without an indirect jump they are.
    found.dispatching.sort_unstable();
    found.labels.sort_unstable();
    found.labels.dedup();
    for &(id, old) in &found.labels {
        if extents.is_function(old.get()) {
            let text = format!("a pointer to the further entry {old:#x} leads to new code");
            fail(id, old, old.kept(), text);
        } else if found.dispatching.binary_search(&id).is_err() {
            let text = format!(
                "a pointer to {old:#x}, inside a function without an indirect jump, leads to new code"
            );
            fail(id, old, old.kept(), text);
        }
    }
    // Pointers to insides and ends that stay.
    found.inside.sort_unstable();
    found.inside.dedup();
    // Where all instructions are at multiples of their size, no label, row or entry of a table is elsewhere: what is
    // formed there without kept relocations is made of data in code, or of a page in a register that had another one.
    // Not where run-times keep something else in the low bits of addresses of code.
    let is_no_place = |at: InputAddr| {
        let is_place = at.get().is_multiple_of(A::STEP as u64);
        cx.bare && !is_place && !visible.describes_insides
    };
    for &(id, old) in &found.inside {
        if is_no_place(old) {
            continue;
        }
        if cx.end_of(old).is_some() {
            let text = format!(
                "a pointer leads to {old:#x}, the end of the function: the program may compare program counters with it"
            );
            fail(id, old, old.kept(), text);
        } else if !extents.begins(old.get())
            && !bare::is_further_entry::<A>(cx, id, old)
            && (!cx.has_fall_back(id) && !cx.is_base(id, old) && !cx.has_labels::<A>(id)
                || visible.describes_insides && cx.bare)
        {
            // At a fixed address, without relocations, it need not be a pointer.
            if cx.bare && cx.fixed() {
                let text = format!(
                    "a word or number of the program is {old:#x}, which may be the address of a place inside the function: a table may describe its code by address"
                );
                let failure = Failure::new(Check::Inside, text);
                inside.push((id, failure.at(old, old.kept())));
                continue;
            }
            let text = format!(
                "a pointer to {old:#x}, inside the function, is what it was: a table may describe the function's code by address"
            );
            fail(id, old, old.kept(), text);
        }
    }
    // Sections that tell where code is.
    for s in &cx.input.sections {
        if !cx.is_code(s.addr) || !visible::has_bounds(s.name) {
            continue;
        }
        for (id, f) in cx.functions.iter().enumerate() {
            let mut own = f.old.iter().map(Range::numbers);
            if own.any(|r| r.start < s.end() && s.addr < r.end) {
                let text = format!(
                    "the function is in {}, whose bounds have symbols",
                    String::from_utf8_lossy(s.name)
                );
                fail(id as FuncId, f.old_entry, f.new_entry(), text);
            }
        }
    }
    for (id, f) in cx.functions.iter().enumerate() {
        let mut own = f.old.iter().map(Range::numbers);
        let Some((first, last)) = own.find_map(|r| visible.bounds.around(r.start, r.end)) else {
            continue;
        };
        let text = format!(
            "the function is between {first:#x} and {last:#x}, bounds that the program knows by symbols"
        );
        fail(id as FuncId, f.old_entry, f.new_entry(), text);
    }
    found.following = follow.len() as u64;
    found.functions.append(&mut failed);
    found.functions.append(&mut inside);
}

/// A function must not be known by two addresses.
fn unique_addresses(cx: &Context<'_>, found: &mut Findings) {
    found.addresses.sort_unstable();
    found.addresses.dedup();
    let both: Vec<FuncId> = found
        .addresses
        .windows(2)
        .filter_map(|w| {
            if let [a, b] = w {
                (a.0 == b.0).then_some(a.0)
            } else {
                None
            }
        })
        .collect();
    for id in both {
        let (old, new) = cx
            .function(id)
            .map(|f| (f.old_entry, f.new_entry()))
            .unwrap_or_default();
        let text = "the program knows the function by its old and by its new address, so comparing pointers to it may fail";
        found
            .functions
            .push((id, Failure::new(Check::Identity, text).at(old, new)));
    }
}

/// What the report says of the files apart from the proof.
struct Subject<'a> {
    input: Digest,
    output: Digest,
    /// By address: of several names of a place the first that has a size, then a global one.
    names: Names<'a>,
    /// Functions of the input that are where they were.
    identical: u64,
}

/// Names of functions that move, by their addresses.
type Names<'a> = FxHashMap<u64, ((bool, bool), &'a [u8])>;

impl<'a> Subject<'a> {
    /// `symbols`: where functions of the input begin. `known`: the input's digest and names, if they are known.
    fn of(
        cx: &Context<'_>,
        (input, symbols): (&Elf<'a>, &[u64]),
        (digest, names): (Option<Digest>, Option<Names<'a>>),
    ) -> Self {
        let names = names.unwrap_or_else(|| Self::names(cx, input));
        let (input, output) = postlink_parallel::join(
            || digest.unwrap_or_else(|| Digest::of(cx.input.data, cx.maps)),
            || Digest::of(cx.output.data, cx.maps),
        );
        let stays = |a: &u64| cx.old.owner(InputAddr::new(*a)).is_none();
        let identical = if symbols.is_empty() {
            let mut starts: Vec<u64> = cx.old_unwind.fdes.iter().map(|f| f.start).collect();
            starts.sort_unstable();
            starts.dedup();
            starts.into_iter().filter(stays).count()
        } else {
            symbols.iter().copied().filter(stays).count()
        };
        Subject {
            input,
            output,
            names,
            identical: identical as u64,
        }
    }

    fn names(cx: &Context<'_>, input: &Elf<'a>) -> Names<'a> {
        let mut names: FxHashMap<u64, ((bool, bool), &[u8])> = FxHashMap::default();
        for table in [elf::SHT_SYMTAB, elf::SHT_DYNSYM] {
            let is_function = |s: &elf::Symbol<'_>| s.is_function() && s.section != 0;
            let moved = |s: &elf::Symbol<'_>| cx.entry_of(InputAddr::new(s.value)).is_some();
            let wanted = |s: &elf::Symbol<'_>| is_function(s) && moved(s);
            for s in input.symbols_if(table, wanted) {
                let rank = (s.size > 0, s.info >> 4 != 0);
                let best = names.entry(s.value).or_insert((rank, s.name));
                if best.0 < rank {
                    *best = (rank, s.name);
                }
            }
        }
        names
    }
}

/// What the rewriter used to find references.
fn basis_of(cx: &Context<'_>) -> Basis {
    match (cx.bare, cx.fixed()) {
        (false, _) => Basis::Kept,
        (true, false) => Basis::Dynamic,
        (true, true) => Basis::None,
    }
}

/// Functions with jumps at old entries over more than one place where an instruction may begin, where no kept
/// relocations were used; ascending.
fn wide_jumps<A: Arch>(cx: &Context<'_>) -> Vec<FuncId> {
    let wide = |r: &Range<InputAddr>| r.start.get() + (A::STEP as u64) < r.end.get();
    let ranges = cx.patches.ranges().filter(|(r, _)| cx.bare && wide(r));
    ascending(ranges.map(|r| r.1))
}

/// Each function once.
fn ascending(functions: impl Iterator<Item = FuncId>) -> Vec<FuncId> {
    let mut all: Vec<FuncId> = functions.collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// What is at a function's old entry; told where no kept relocations were used. `wide`: functions whose jumps
/// overwrote more than one instruction, ascending.
fn entry_report<A: Arch>(cx: &Context<'_>, id: FuncId, wide: &[FuncId]) -> Option<EntryReport> {
    let f = cx.function(id).filter(|_| cx.bare)?;
    let behind = [0, A::LONGEST_PAD].map(|pad| f.old_entry + pad);
    let mut own = behind
        .into_iter()
        .filter(|at| cx.patches.owner(*at) == Some(id));
    let arrivals = f
        .old
        .iter()
        .flat_map(|r| cx.arrivals.within(r.start, r.end));
    let overwritten = own.clone().next().is_some() || arrivals.into_iter().next().is_some();
    Some(EntryReport {
        level: if f.jumps {
            EntryLevel::Long
        } else {
            EntryLevel::Led
        },
        at: own.next().filter(|_| f.jumps).map(InputAddr::get),
        relies_on: match (wide.binary_search(&id).is_ok(), A::STEP) {
            (true, 1) => vec!["A2", "A3", "A4"],
            (true, _) => vec!["A3", "A4"],
            (false, _) if overwritten => vec!["A4"],
            (false, _) => Vec::new(),
        },
    })
}

/// How many functions rest on what walks found out.
#[derive(Default)]
struct Resting {
    kept_by_calls: u64,
    behind_tables: u64,
    constants: u64,
    through_pointers: u64,
    inlining: u64,
    by_convention: u64,
    without_return: u64,
    unnamed_reader: u64,
    /// How many instructions have rows that say where the stack pointer has moved.
    moved_stack_rows: u64,
}

impl Resting {
    /// Counts them, and lists those with changed instructions. Each is looked at once: all of them together are far
    /// more than processors have at hand.
    fn of(walked: &[Walked]) -> (Resting, Vec<(FuncId, &Walked)>) {
        let mut rest = Resting::default();
        let mut changed = Vec::new();
        for (id, w) in (0..).zip(walked) {
            rest.kept_by_calls += u64::from(w.kept_by_calls);
            rest.behind_tables += u64::from(w.behind_tables);
            rest.constants += u64::from(takes_constants(w));
            rest.through_pointers += u64::from(through_pointers(w));
            rest.inlining += u64::from(inlines(w));
            rest.by_convention += u64::from(w.by_convention);
            rest.without_return += u64::from(w.without_return);
            rest.unnamed_reader += u64::from(w.unnamed_reader);
            rest.moved_stack_rows += w.moved_stack_rows;
            if w.changes.iter().any(|count| *count > 0) {
                changed.push((id, w));
            }
        }
        (rest, changed)
    }
}

/// Whether calls through pointers may pass something in registers of linkers' stubs.
fn through_pointers(w: &Walked) -> bool {
    has_changed(w, ChangeKind::PromotedCall) || w.recorded > 0
}

fn inlines(w: &Walked) -> bool {
    has_changed(w, ChangeKind::InlinedCall)
}

fn takes_constants(w: &Walked) -> bool {
    has_changed(w, ChangeKind::Constant)
}

/// A name as text.
fn text_of(name: &[u8]) -> String {
    // Replacing what is no text looks at one byte after the other, and nearly all names are text.
    match std::str::from_utf8(name) {
        Ok(text) => text.to_owned(),
        Err(_) => String::from_utf8_lossy(name).into_owned(),
    }
}

fn report<A: Arch>(
    cx: &Context<'_>,
    mut found: Findings,
    walked: &[Walked],
    subject: &Subject<'_>,
    options: &Options,
) -> Report {
    // The walk's own failure is the most telling one, then the first by address.
    let mut failures: FxHashMap<FuncId, Failure> = FxHashMap::default();
    let rank = |f: &Failure| (f.check, f.old, f.new, f.reason.clone());
    found.functions.sort_by_key(|f| (f.0, rank(&f.1)));
    for (id, failure) in found.functions {
        failures.entry(id).or_insert(failure);
    }
    let overwritten = cx.patches.ranges().chain(cx.arrivals.ranges());
    let jumps = Set::new(cx, overwritten.map(|r| r.1));
    let wide = wide_jumps::<A>(cx);
    let of_labels = Set::new(cx, found.labels.iter().map(|l| l.0));
    let following = found.addresses.iter().filter(|a| a.1);
    let following = Set::new(cx, following.map(|a| a.0));
    let erratum = Set::new(cx, found.erratum.iter().copied());
    let counting = cx.counts.is_some();
    let (rest, changed) = Resting::of(walked);
    let changes = changes(cx, &changed);
    // In one list from the start: a second one would be there together with all that was walked.
    let count = walked.len().min(cx.functions.len());
    let functions = postlink_parallel::map_range(count, |id| {
        let (w, f) = (&walked[id], &cx.functions[id]);
        let takes_constants = takes_constants(w);
        let (through_pointers, inlines) = (through_pointers(w), inlines(w));
        let unreached = if w.failure.is_none() {
            w.unreached.iter().map(|r| (r.0.get(), r.1)).collect()
        } else {
            Vec::new()
        };
        let id = id as FuncId;
        let relied_on = [
            ("A1", true),
            // Where instructions have one length, each place where one may begin is looked at.
            ("A2", A::STEP == 1 && wide.binary_search(&id).is_ok()),
            ("A3", wide.binary_search(&id).is_ok()),
            ("A4", jumps.has(id)),
            ("A5", w.kept_by_calls),
            ("A6", w.behind_tables),
            ("A7", w.assumed_no_return > 0),
            ("A8", following.has(id)),
            ("A9", of_labels.has(id)),
            ("A10", takes_constants),
            ("A11", through_pointers),
            ("A12", inlines),
            ("A13", w.by_convention),
            ("A14", counting),
            ("A15", f.folded.is_some()),
            ("A16", w.without_return),
            ("A17", w.unnamed_reader),
            ("A18", found.erratum_elsewhere || erratum.has(id)),
        ];
        let unwanted = || {
            let relied_on = relied_on.iter().filter(|a| a.1).map(|a| a.0);
            let mut refused = relied_on.filter(|id| !options.accepted.holds(id));
            let id = refused.next()?;
            let text = format!("the proof rests on assumption {id}, which is not accepted");
            Some(Failure::new(Check::Assumptions, text).at(f.old_entry, f.new_entry()))
        };
        let changes: u64 = w.changes.iter().sum();
        let changed = || {
            let text =
                format!("{changes} of its instructions were changed, and code may only be placed");
            let failure = Failure::new(Check::Changes, text).at(f.old_entry, f.new_entry());
            (options.placement_only && changes > 0).then_some(failure)
        };
        let failure = w.failure.as_deref().or_else(|| failures.get(&id)).cloned();
        let failure = failure.or_else(unwanted).or_else(changed);
        FunctionReport {
            name: subject
                .names
                .get(&f.old_entry.get())
                .map(|n| text_of(n.1))
                .unwrap_or_default(),
            old: f.old_entry.get(),
            new: f.new_entry().get(),
            verdict: failure.map_or(Verdict::Proved, Verdict::Failed),
            instructions: w.instructions,
            assumed_no_return: w.assumed_no_return,
            // A walk that was given up says nothing about the rest.
            unreached,
            entry: entry_report::<A>(cx, id, &wide),
            falls_back: f.falls_back.iter().map(|at| at.get()).collect(),
            tables: w.tables.to_vec(),
        }
    });
    let failed = functions
        .iter()
        .filter(|f| f.verdict != Verdict::Proved)
        .count() as u64;
    let by_jumps = wide.len() as u64;
    let folded = cx.functions.iter().filter(|f| f.folded.is_some()).count() as u64;
    let of_erratum = if found.erratum_elsewhere {
        functions.len() as u64
    } else {
        erratum.count
    };
    let no_return = functions.iter().filter(|f| f.assumed_no_return > 0);
    let assumptions = Assumption::list(&[
        ("A1", functions.len() as u64),
        ("A2", if A::STEP == 1 { by_jumps } else { 0 }),
        ("A3", by_jumps),
        ("A4", jumps.count),
        ("A5", rest.kept_by_calls),
        ("A6", rest.behind_tables),
        ("A7", no_return.count() as u64),
        ("A8", found.following),
        ("A9", of_labels.count),
        ("A10", rest.constants),
        ("A11", rest.through_pointers),
        ("A12", rest.inlining),
        ("A13", rest.by_convention),
        ("A14", if counting { functions.len() as u64 } else { 0 }),
        ("A15", folded),
        ("A16", rest.without_return),
        ("A17", rest.unnamed_reader),
        ("A18", of_erratum),
    ]);
    let asks_for_huge_pages = cx.counts.is_none() && !found.hooks.is_empty();
    let file_failure_count = found.file.len() as u64;
    found.file.sort_by_key(rank);
    found.file.truncate(options.max_failures);
    Report {
        checker: concat!("postlink-verify ", env!("CARGO_PKG_VERSION")),
        machine: A::NAME,
        basis: basis_of(cx),
        input: subject.input.clone(),
        output: subject.output.clone(),
        proved: functions.len() as u64 - failed,
        failed,
        identical: subject.identical,
        retargeted: found.retargeted,
        pointers: found.pointers,
        assumptions,
        changes,
        routine_rows: found.routine_rows,
        moved_stack_rows: rest.moved_stack_rows,
        asks_for_huge_pages,
        file_failure_count,
        file_failures: found.file,
        debug: None,
        functions,
    }
}

/// Whether some of a function's instructions were changed in a way.
fn has_changed(walked: &Walked, kind: ChangeKind) -> bool {
    let count = walked.changes.get(kind as usize);
    count.is_some_and(|count| *count > 0)
}

/// How many instructions of functions that have such were changed, by kind; kinds that there are none of are left out.
fn changes(cx: &Context<'_>, changed: &[(FuncId, &Walked)]) -> Vec<Changed> {
    // In new code that stands for several functions each change is there once.
    let folded = |id: FuncId| cx.function(id).is_some_and(|f| f.folded.is_some());
    let of = |kind: ChangeKind| {
        let each = changed.iter();
        let each = each.filter(|(id, _)| kind == ChangeKind::FoldedFunction || !folded(*id));
        let each = each.filter_map(|(_, w)| w.changes.get(kind as usize));
        each.sum::<u64>()
    };
    let all = ChangeKind::ALL.into_iter();
    let counted = all.map(|kind| Changed {
        kind,
        sites: of(kind),
    });
    counted.filter(|c| c.sites > 0).collect()
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
