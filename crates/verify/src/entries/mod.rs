//! Counters at entries: proves that in a file whose note claims no moved function nothing changed except that
//! functions are entered through a counter.
//!
//! Nothing of the output says where counters are: every byte of the old image that differs must have one of
//! these reasons. *N leads to E* means that the code at N does nothing but increment a counter, and then is at E: it
//! runs into E, or ends with a jump there.
//!
//! | what differs | what must hold |
//! |---|---|
//! | displacement or address in an instruction | it was E and is N, which leads to E |
//! | displacement of a call or jump | the same, or it was the start of a function and is its stub, with the instructions that a jump there overwrites |
//! | word in data or in a relocation, symbol with its size | the same |
//! | padding | it is the counter in front of a function, and all of it was padding |
//! | the first bytes of a function | a jump to a counter, after which are the instructions that the jump overwrote, and a jump to what follows them; nothing branches to them, and no exception of theirs is caught in the function |
//! | unwind entry | it begins with the counter in front, and its first advance is longer by as much |
//! | last entry of the search table | it names an entry in a new segment |
//! | entry point, or one initialiser | it is in a new segment |
//!
//! A function has one address: what forms a pointer to it, in code, in what a stub does in place of
//! overwritten instructions, in data, relocations and dynamic symbols, leads to one N only.
//!
//! What counts is a store or an addition to the new writable segment, which has no bytes in the file; with
//! call counts also the call of a routine in the new code, the same for all counters (with call edges there
//! are two).
//!
//! On AArch64 no counter is in padding, and no pointer changes. Which sequences count is said by each
//! instruction set's module below this one.
//!
//! # What is assumed
//!
//! * A14: the start-up routine and the routines that note first calls write to no memory of the program. That they keep
//!   registers, flags and the stack is shown ([`crate::routines`]).
//! * A13: flags mean nothing at the entry of a function that does not read one in its first instructions, up to a
//!   branch, before it writes it. On AArch64 neither do x16 and x17, in functions that have an unwind entry, do not
//!   begin by reading them, and do not reach their entry again. Counted are counters that do not keep them.
//! * A1: nothing depends on the number of a return address. Counted are calls that are in stubs.
//! * What is assumed for moved code as well, see the crate.

mod aarch64;
mod frames;
mod pointers;
mod x86_64;

use crate::addr::{InputAddr, OutputAddr};
use std::cell::{Cell, RefCell};

use rustc_hash::FxHashSet;

use crate::arch::{Arch, Field, FieldKind, Flow, Insn};
use crate::files::bytes::{u32_in, u64_in};
use crate::files::claim::Range;
use crate::files::elf::{self, Elf, Segment};
use crate::files::lsda::{Lsda, Outcome};
use crate::files::personality::Asked;
use crate::files::unwind::Table;
use crate::maps::Maps;
use crate::proof::visible::Visible;
use crate::report::{
    Assumption, Basis, Check, Digest, Failure, FunctionReport, Options, Report, Verdict,
};
use crate::routines;
use crate::{context, image, text};
use frames::{Checked, Framed};

const SYMBOL: u64 = elf::SYM_SIZE as u64;

/// Counters at entries, as an instruction set has them.
pub(crate) trait Entries: Arch {
    /// Whether a counter may be in the padding in front of a function, and pointers to a function lead to one.
    const MOVES_POINTERS: bool;

    /// Code that returns from a signal handler, as run-times look for it where there is no unwind entry.
    const SIGNAL_RETURN: &[u8];

    /// Counters that keep nothing destroy flags alone.
    const FLAGS_ALONE: bool;

    /// Length of what counts at the start of `bytes`, which are at `at`; 0 if nothing does. And whether it
    /// keeps what a function that is not compiled, or comes to its entry again, may have in registers.
    fn counter(bytes: &[u8], at: u64, memory: &Memory<'_>) -> (u64, bool);

    /// The jump that replaces the beginning `old` of a function, if `new` is one: length and target.
    fn jump(old: &[u8], new: &[u8], at: u64) -> Option<(u64, u64)>;

    /// Whether a function that begins with `bytes` may have something in what counters use and do not keep.
    fn relies_on_scratch(bytes: &[u8]) -> bool;
}

/// New memory: code, and counters.
pub(crate) struct Memory<'a> {
    output: &'a Elf<'a>,
    code: Vec<Segment>,
    /// Segments that are only read.
    tables: Vec<Segment>,
    counters: Vec<Segment>,
    /// The routines that counters of calls go to, without edges and with: one each.
    slow: [Cell<Option<u64>>; 2],
}

impl Memory<'_> {
    fn is_new_code(&self, addr: u64) -> bool {
        self.code
            .iter()
            .any(|s| s.addr <= addr && addr < s.file_end())
    }

    /// Whether a counter may call `target`: as all others do, if the routine begins by saving registers as
    /// `begins` says.
    fn is_slow(&self, edges: bool, target: u64, begins: &[u8]) -> bool {
        let known = &self.slow[usize::from(edges)];
        if known.get().is_none()
            && self.is_new_code(target)
            && self
                .output
                .bytes_from(target)
                .is_some_and(|code| code.starts_with(begins))
        {
            known.set(Some(target));
        }
        known.get() == Some(target)
    }

    fn counts(&self, at: u64, size: u64) -> bool {
        self.counters
            .iter()
            .any(|s| s.addr <= at && at.saturating_add(size) <= s.end())
    }
}

struct Proof<'a, A> {
    input: &'a Elf<'a>,
    output: &'a Elf<'a>,
    memory: Memory<'a>,
    unwind: Table<'a>,
    /// By CIE of the input: its personality routine may be asked about any instruction.
    asked: Vec<Asked>,
    starts: Vec<u64>,
    failures: Vec<Failure>,
    count: u64,
    /// Overwritten bytes after an entry's first.
    interiors: Vec<Range>,
    /// Where branches and pointers of the input lead.
    targets: Vec<u64>,
    /// Starts of functions that are pointed to, and where the pointer leads now.
    pointed: Vec<(u64, u64)>,
    /// Numbers in instructions that stay as they are, where they are and their values, which may be addresses
    /// of functions.
    numbers: Vec<(u64, u64)>,
    /// Functions with two addresses.
    functions: Vec<FunctionReport>,
    /// Functions that begin earlier in their unwind entries.
    hooks: u64,
    retargeted: u64,
    pointers: u64,
    /// Entries of functions with a counter that is shown to keep what the function does.
    proved: RefCell<FxHashSet<u64>>,
    /// What is in stubs instead of where it was.
    framed: RefCell<FxHashSet<Framed>>,
    /// What was compared of their rows.
    checked: Checked,
    /// Counters that do not keep flags, or registers that stubs may use, where these mean nothing.
    loses: RefCell<FxHashSet<u64>>,
    arch: std::marker::PhantomData<A>,
}

/// Proves it, or says where not.
pub(crate) fn prove<A: Entries>(
    input: &Elf<'_>,
    output: &Elf<'_>,
    (options, maps): (&Options, &Maps<'_>),
) -> Report {
    let mut failures = Vec::new();
    let layout = image::layout_of(input, output, true, &mut failures);
    let unwind = Table::read(input).unwrap_or_else(|what| {
        failures.push(Failure::new(Check::Unwind, format!("input: {what}")));
        Table::default()
    });
    let code = context::code_ranges(input);
    let starts = text::starts(&text::symbols(input), &unwind, &code, std::iter::empty());
    let is_room = |s: &&Segment| s.is_writable() && !s.is_exec() && s.file_size == 0;
    let memory = Memory {
        output,
        code: layout
            .added
            .iter()
            .filter(|s| s.is_exec() && !s.is_writable())
            .copied()
            .collect(),
        tables: layout
            .added
            .iter()
            .filter(|s| !s.is_exec() && !s.is_writable())
            .copied()
            .collect(),
        counters: layout.added.iter().filter(is_room).copied().collect(),
        slow: Default::default(),
    };
    let mut proof = Proof::<A> {
        input,
        output,
        memory,
        asked: crate::asked::<A>(input, &unwind),
        unwind,
        starts,
        count: 0,
        failures: Vec::new(),
        interiors: Vec::new(),
        targets: Vec::new(),
        pointed: Vec::new(),
        numbers: Vec::new(),
        functions: Vec::new(),
        hooks: 0,
        retargeted: 0,
        pointers: 0,
        proved: RefCell::default(),
        framed: RefCell::default(),
        checked: Checked::default(),
        loses: RefCell::default(),
        arch: std::marker::PhantomData,
    };
    for failure in failures {
        proof.fail(failure, options);
    }
    if input.entry != output.entry {
        proof.hook(input.entry, output.entry, options);
    }
    let mut skip = layout.by_meaning.clone();
    proof.unwinding(&mut skip, options);
    proof.symbols(&layout, &mut skip, options);
    proof.sweep(&code, options);
    skip.extend(code.iter().copied());
    skip.sort_unstable();
    proof.data(&skip, &layout, options);
    proof.branches();
    proof.what_stays(&skip);
    let visible = Visible::of(input);
    proof.frames(options);
    proof.slow_ways(options);
    proof.identity();
    proof.seen(&visible, &code);
    if let Some(name) = visible.refused.filter(|_| proof.proved() > 0) {
        let text = format!(
            "counters are in a file with the run-time of {name}, whose tables describe code by address"
        );
        proof.fail(Failure::new(Check::Visible, text), options);
    }
    let identical = proof.starts.len() as u64;
    let following = proof.pointed.chunk_by(|a, b| a.0 == b.0);
    let following = following
        .filter(|f| f.iter().any(|(from, to)| from != to))
        .count();
    let proved = proof.proved();
    let assumptions = Assumption::list(&[
        ("A1", proof.calls_in_stubs()),
        ("A4", proved),
        ("A8", following as u64),
        ("A13", proof.loses.borrow().len() as u64),
        ("A14", proved),
    ]);
    for Assumption { id, functions, .. } in &assumptions {
        if !options.accepted.holds(id) {
            let text = format!(
                "the proofs of {functions} functions rest on assumption {id}, which is not accepted"
            );
            proof.fail(Failure::new(Check::Assumptions, text), options);
        }
    }
    Report {
        checker: concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION")),
        machine: A::NAME,
        basis: Basis::Kept,
        input: Digest::of(input.data, maps),
        output: Digest::of(output.data, maps),
        proved,
        failed: proof.functions.len() as u64,
        identical: identical.saturating_sub(proved),
        retargeted: proof.retargeted,
        pointers: proof.pointers,
        assumptions,
        changes: Vec::new(),
        moved_stack_rows: proof.checked.moved,
        routine_rows: proof.checked.routines,
        asks_for_huge_pages: false,
        file_failure_count: proof.count,
        file_failures: proof.failures,
        debug: None,
        functions: proof.functions,
    }
}

/// The report on a function that may not count as it does.
fn unproved(old: u64, new: u64, failure: Failure) -> FunctionReport {
    FunctionReport {
        name: format!("the function at {old:#x}"),
        old,
        new,
        verdict: Verdict::Failed(failure),
        instructions: 0,
        assumed_no_return: 0,
        unreached: Vec::new(),
        entry: None,
        tables: Vec::new(),
        falls_back: Vec::new(),
    }
}

/// The range that holds an address, of those by ascending start.
fn judged(ranges: &[Range], addr: u64) -> Option<&Range> {
    let before = ranges.partition_point(|r| r.start <= addr);
    // Ranges may overlap: the nearest ones that begin before.
    let nearest = ranges.get(before.saturating_sub(8)..before);
    nearest
        .unwrap_or_default()
        .iter()
        .rev()
        .find(|r| r.contains(addr))
}

impl<A: Entries> Proof<'_, A> {
    fn fail(&mut self, failure: Failure, options: &Options) {
        self.count += 1;
        if self.failures.len() < options.max_failures {
            self.failures.push(failure);
        }
    }

    /// Something that is run at the start, and may only be one.
    fn hook(&mut self, from: u64, to: u64, options: &Options) {
        self.hooks += 1;
        if self.hooks > 1 || !self.is_new(to) {
            self.fail(
                Failure::new(
                    Check::Dynamic,
                    "the start of the program goes to another place",
                )
                .at(InputAddr::new(from), OutputAddr::new(to)),
                options,
            );
            return;
        }
        let code = |at: u64| self.output.bytes_from(at).filter(|_| self.is_new(at));
        let goes_on = |at: u64| self.leads(from, at);
        // A new entry of the dynamic section has no initialiser in its place. (Where the headers are loaded with the
        // code, address 0 is executable.)
        let is_code = from != 0 && self.input.load_at(from).is_some_and(|s| s.is_exec());
        let next: Option<&dyn Fn(u64) -> bool> = if is_code { Some(&goes_on) } else { None };
        if let Err(why) = routines::starts_up::<A>(&code, next, to) {
            let text = format!(
                "the start-up routine is not shown to leave registers, flags and stack as they were: {why}"
            );
            let failure = Failure::new(Check::Dynamic, text);
            self.fail(
                failure.at(InputAddr::new(from), OutputAddr::new(to)),
                options,
            );
        }
    }

    /// The routines that note first calls keep what their callers rely on.
    fn slow_ways(&mut self, options: &Options) {
        let targets = self.memory.slow.each_ref().map(Cell::get);
        for to in targets.into_iter().flatten() {
            let code = |at: u64| self.output.bytes_from(at).filter(|_| self.is_new(at));
            if let Err(why) = routines::notes::<A>(&code, to) {
                let text = format!(
                    "the routine that notes first calls is not shown to keep registers and stack: {why}"
                );
                let failure = Failure::new(Check::Counting, text);
                self.fail(failure.at(InputAddr::new(0), OutputAddr::new(to)), options);
            }
        }
    }

    fn is_new(&self, addr: u64) -> bool {
        self.memory.is_new_code(addr)
    }

    /// Whether a new unwind entry may be at `addr`: in what is new and not written to.
    fn is_table(&self, addr: u64) -> bool {
        let mut tables = self.memory.tables.iter();
        self.is_new(addr) || tables.any(|s| s.addr <= addr && addr < s.file_end())
    }

    /// Length of what counts at `at`; 0 if nothing does.
    fn counter(&self, at: u64) -> u64 {
        let bytes = self.output.bytes_from(at);
        bytes.map_or(0, |bytes| A::counter(bytes, at, &self.memory).0)
    }

    /// Whether the counter at `at` destroys nothing that control entering the function at `entry` may need.
    /// `again`: what in the function itself goes to the entry, or up to this address, comes there, too.
    fn keeps(&self, at: u64, entry: u64, again: Option<u64>) -> bool {
        let bytes = self.output.bytes_from(at);
        if bytes.is_some_and(|bytes| A::counter(bytes, at, &self.memory).1) {
            return true;
        }
        let compiled = self.unwind.find(entry).is_some();
        let relies = self
            .input
            .bytes_from(entry)
            .is_none_or(A::relies_on_scratch);
        let again = || again.is_some_and(|at| self.comes_again(entry, at));
        let free = !relies && (A::FLAGS_ALONE || compiled && !again());
        if free {
            self.loses.borrow_mut().insert(at);
        }
        free
    }

    /// Whether code of a function goes to its first instructions.
    fn comes_again(&self, entry: u64, last: u64) -> bool {
        let next = self.starts.partition_point(|s| *s <= entry);
        let Some(code) = self.input.bytes_from(entry) else {
            return true;
        };
        // The last function ends with the segment at the latest.
        let end = self.starts.get(next).copied().unwrap_or(u64::MAX);
        let len = usize::try_from(end - entry).unwrap_or(usize::MAX);
        let code = code.get(..len).unwrap_or(code);
        let step = A::STEP.max(1);
        let mut at = 0;
        while let Some(rest) = code.get(at..).filter(|rest| !rest.is_empty()) {
            let insn = A::decode(rest, entry + at as u64);
            if let Some(Flow::Jump(target) | Flow::Branch { target, .. }) = insn.map(|i| i.flow)
                && (entry..=last).contains(&target)
            {
                return true;
            }
            at += insn.map_or(step, |i| usize::from(i.len));
        }
        false
    }

    /// Whether control that goes to `to` passes a counter, and is at `from` then.
    fn leads(&self, from: u64, to: u64) -> bool {
        if from == to {
            return true;
        }
        let len = self.counter(to);
        if len == 0 || !(self.is_new(to) || self.in_front(from, to)) {
            return false;
        }
        let mut at = to + len;
        if A::MOVES_POINTERS && self.output.bytes(at, 1) == Some(&[0x90]) && at != from {
            at += 1;
        }
        if !self.keeps(to, from, None) {
            return false;
        }
        let goes_on = at == from
            || self
                .output
                .bytes_from(at)
                .and_then(|b| A::decode(b, at))
                .is_some_and(|i| i.flow == Flow::Jump(from));
        if goes_on {
            self.proved.borrow_mut().insert(from);
            self.is_framed(Framed::counter(from, to, len));
        }
        goes_on
    }

    /// Whether `to` is in padding in front of the start `from`, all of which was padding.
    fn in_front(&self, from: u64, to: u64) -> bool {
        if !A::MOVES_POINTERS
            || self.starts.binary_search(&from).is_err()
            || !matches!(from.wrapping_sub(to), 7 | 8)
            || self.unwind.find(to).is_some()
        {
            return false;
        }
        // An instruction of padding may begin before it.
        (0..16).any(|back| {
            let at = to.saturating_sub(back);
            self.input.bytes(at, from - at).is_some_and(A::is_padding)
        })
    }

    /// How many functions are instrumented.
    fn proved(&self) -> u64 {
        self.proved.borrow().len() as u64
    }

    /// Whether an exception at an instruction would not pass through its function: in a stub it would.
    fn is_caught(&self, at: u64, insn: &Insn) -> bool {
        let Some(fde) = self.unwind.find(at).filter(|fde| fde.lsda != 0) else {
            return false;
        };
        let outcome = |ip| Lsda::parse(self.input, fde.lsda, fde.start).map(|l| l.outcome(ip));
        match insn.flow {
            Flow::Call(_) | Flow::IndirectCall => {
                outcome(at + u64::from(insn.len) - 1) != Some(Outcome::Continue)
            }
            _ if self
                .asked
                .get(fde.cie as usize)
                .is_some_and(|asked| asked.of_all) =>
            {
                matches!(outcome(at), None | Some(Outcome::Pad { .. }))
            }
            _ => false,
        }
    }

    /// Whether the stub at `stub` does what the code at `at` did up to where it goes back to: all that a jump
    /// of `len` bytes overwrites. Pointers that it forms are added to `pointed`.
    fn displaced(&self, at: u64, len: u64, stub: u64, pointed: &mut Vec<(u64, u64)>) -> bool {
        let counter = self.counter(stub);
        if counter == 0 || !self.is_new(stub) {
            return false;
        }
        let mut framed = vec![Framed::counter(at, stub, counter)];
        let is_same = self.is_done(at, at + len, stub + counter, pointed, &mut framed);
        if is_same {
            framed.into_iter().for_each(|f| self.is_framed(f));
        }
        is_same
    }

    /// Whether the instructions from `p` to `end` are at `q`, and a jump back behind them.
    fn is_done(
        &self,
        mut p: u64,
        end: u64,
        mut q: u64,
        pointed: &mut Vec<(u64, u64)>,
        framed: &mut Vec<Framed>,
    ) -> bool {
        while p < end {
            let (Some(a), Some(b)) = (self.input.bytes_from(p), self.output.bytes_from(q)) else {
                return false;
            };
            let (Some(old), Some(new)) = (A::decode(a, p), A::decode(b, q)) else {
                return false;
            };
            if self.is_caught(p, &old) {
                return false;
            }
            framed.push(Framed::of(p, q, &old, &new));
            match (old.flow, new.flow) {
                (Flow::Jump(t), Flow::Jump(u)) => return self.leads(t, u),
                // The opposite, over a jump.
                (
                    Flow::Branch {
                        inverse: Some(inverse),
                        target: t,
                        ..
                    },
                    Flow::Branch {
                        cond: other,
                        target: over,
                        ..
                    },
                ) if inverse == other => {
                    let jump = q + u64::from(new.len);
                    let then = self
                        .output
                        .bytes_from(jump)
                        .and_then(|b| A::decode(b, jump));
                    match then {
                        Some(then)
                            if over == jump + u64::from(then.len)
                                && matches!(then.flow, Flow::Jump(u) if self.leads(t, u)) =>
                        {
                            (p, q) = (p + u64::from(old.len), over);
                            continue;
                        }
                        _ => return false,
                    }
                }
                (
                    Flow::Branch {
                        cond, target: t, ..
                    },
                    Flow::Branch {
                        cond: other,
                        target: u,
                        ..
                    },
                ) => {
                    if cond != other || !self.leads(t, u) {
                        return false;
                    }
                }
                _ => {
                    if let Some(longer) = A::longer(a, p, b, q)
                        .filter(|l| l.old_len == old.len && l.old.target == l.new.target)
                    {
                        (p, q) = (p + u64::from(old.len), q + u64::from(longer.new_len));
                        continue;
                    }
                    let (Some(a), Some(b)) =
                        (a.get(..usize::from(old.len)), b.get(..usize::from(new.len)))
                    else {
                        return false;
                    };
                    if !self.same_but_for_pointers((&old, a), (&new, b), pointed) {
                        return false;
                    }
                    if matches!(old.flow, Flow::Stop | Flow::IndirectJump { .. }) {
                        return true;
                    }
                }
            }
            (p, q) = (p + u64::from(old.len), q + u64::from(new.len));
        }
        self.output
            .bytes_from(q)
            .and_then(|b| A::decode(b, q))
            .is_some_and(|i| i.flow == Flow::Jump(p))
    }

    /// Code that stays.
    fn sweep(&mut self, code: &[Range], options: &Options) {
        for i in 0..self.starts.len() {
            let start = self.starts.get(i).copied().unwrap_or_default();
            let Some(range) = code.iter().find(|r| r.contains(start)) else {
                continue;
            };
            let end = self
                .starts
                .get(i + 1)
                .copied()
                .unwrap_or(u64::MAX)
                .min(range.end);
            let (Some(old), Some(new)) = (
                self.input.bytes(start, end - start),
                self.output.bytes(start, end - start),
            ) else {
                self.fail(
                    Failure::new(
                        Check::OldCode,
                        format!("code at {start:#x} is not loaded from the output"),
                    ),
                    options,
                );
                continue;
            };
            let mut at = 0usize;
            let mut landing_pad = true;
            while let Some(rest) = old.get(at..).filter(|r| !r.is_empty()) {
                let addr = start + at as u64;
                let Some(insn) = A::decode(rest, addr) else {
                    if old.get(at) != new.get(at) {
                        at = self.front(start, at, old, new, options);
                    } else {
                        at += A::STEP.max(1);
                    }
                    continue;
                };
                let len = usize::from(insn.len);
                if let Some(field) = insn
                    .field
                    .filter(|f| matches!(f.kind, FieldKind::Branch | FieldKind::Forms))
                {
                    self.targets.push(field.target);
                }
                let (a, b) = (
                    rest.get(..len).unwrap_or(b""),
                    new.get(at..at + len).unwrap_or(b""),
                );
                if a == b {
                    self.points_still(addr, &insn, a);
                    landing_pad &= insn.landing_pad;
                    at += len;
                    continue;
                }
                let mut pointed = Vec::new();
                if let Some((length, to)) = A::jump(rest, new.get(at..).unwrap_or(b""), addr)
                    && landing_pad
                    && self.displaced(addr, length, to, &mut pointed)
                    && self.keeps(to, start, Some(addr))
                {
                    for (from, to) in pointed {
                        self.points(from, to);
                    }
                    self.proved.borrow_mut().insert(start);
                    // In front of the second instruction nothing has been overwritten that is not done as well.
                    let inside = match A::STEP {
                        4 => 4,
                        _ => 1,
                    };
                    self.interiors.push(Range {
                        start: addr + inside,
                        end: addr + length,
                    });
                    landing_pad = false;
                    // What is after the jump must be as it was, also the rest of the instruction that the jump ends in.
                    let jump = at + length as usize;
                    at = self.behind(start, at, jump, old);
                    if old.get(jump..at) != new.get(jump..at) {
                        at = self.front(start, jump, old, new, options);
                    }
                    continue;
                }
                landing_pad = false;
                if let Some((field, now)) = self.field(addr, &insn, a, b) {
                    if field.kind != FieldKind::Branch {
                        self.points(field.target, now);
                    }
                    self.retargeted += 1;
                    at += len;
                } else {
                    at = self.front(start, at, old, new, options);
                }
            }
        }
    }

    /// Where the first instruction begins that a jump up to `end` left alone. What those before it lead to is noted.
    fn behind(&mut self, start: u64, mut at: usize, end: usize, old: &[u8]) -> usize {
        while at < end {
            let Some(insn) = old.get(at..).and_then(|b| A::decode(b, start + at as u64)) else {
                return end;
            };
            if let Some(field) = insn
                .field
                .filter(|f| matches!(f.kind, FieldKind::Branch | FieldKind::Forms))
            {
                self.targets.push(field.target);
            }
            at += usize::from(insn.len);
        }
        at
    }

    /// An instruction in which an address changed: what it was, and where it leads now.
    fn field(&self, addr: u64, insn: &Insn, old: &[u8], new: &[u8]) -> Option<(Field, u64)> {
        self.fields(insn, old)
            .into_iter()
            .flatten()
            .find_map(|f: Field| {
                let now = if f.kind == FieldKind::Absolute {
                    A::absolute_field(new)
                } else {
                    A::decode(new, addr).and_then(|i| i.field)
                };
                let (from, to) = (usize::from(f.at), usize::from(f.at) + usize::from(f.len));
                let elsewhere = old
                    .iter()
                    .zip(new)
                    .enumerate()
                    .any(|(i, (a, b))| a != b && !(from..to).contains(&i));
                let fits = |n: &Field| {
                    (n.at, n.len) == (f.at, f.len)
                        && (self.leads(f.target, n.target)
                            || f.kind == FieldKind::Branch && self.passes(f.target, n.target))
                };
                let possible = f.kind != FieldKind::Accesses && !elsewhere;
                let now = now.filter(|n| possible && fits(n))?;
                Some((f, now.target))
            })
    }

    /// Whether the stub at `to` counts and does what the function at `from` begins with. That it is at
    /// another address is seen by comparisons of pointers, not by calls.
    fn passes(&self, from: u64, to: u64) -> bool {
        let Some(bytes) = self.input.bytes_from(from) else {
            return false;
        };
        let pad = A::decode(bytes, from).filter(|i| i.landing_pad && !A::keeps_state(bytes));
        let at = pad.map_or(from, |insn| from + u64::from(insn.len));
        // What a jump at the entry would overwrite; what a stub goes back after is the same.
        let Some(len) = self.overwrites(at) else {
            return false;
        };
        let passes = self.starts.binary_search(&from).is_ok()
            && self.displaced(at, len, to, &mut Vec::new())
            && self.keeps(to, from, None);
        if passes {
            self.proved.borrow_mut().insert(from);
        }
        passes
    }

    /// Length of the jump at an entry.
    fn overwrites(&self, at: u64) -> Option<u64> {
        let (old, new) = (self.input.bytes_from(at)?, self.output.bytes_from(at)?);
        A::jump(old, new, at).map(|jump| jump.0)
    }

    /// A counter in padding, or nothing that can be explained. Gives where to continue.
    fn front(&mut self, start: u64, at: usize, old: &[u8], new: &[u8], options: &Options) -> usize {
        let differs = |i: &usize| old.get(*i) != new.get(*i);
        let first = (at..old.len()).find(differs).unwrap_or(at);
        let place = start + first as u64;
        let end = start + old.len() as u64;
        if self.counter(place) == 7 && self.leads(end, place) && self.in_front(end, place) {
            self.proved.borrow_mut().insert(end);
            return old.len();
        }
        let value = |bytes: &[u8]| {
            bytes
                .get(first..(first + 8).min(bytes.len()))
                .unwrap_or(b"")
                .to_vec()
        };
        let text = format!("the code at {place:#x}, which stays, changed");
        self.fail(
            Failure::new(Check::OldCode, text).bytes(&value(old), &value(new)),
            options,
        );
        old.len()
    }

    /// Nothing may lead to what entry jumps overwrote. What looks like a branch there may be data between
    /// functions: the function whose entry it is is left alone then.
    fn branches(&mut self) {
        self.targets.sort_unstable();
        for r in std::mem::take(&mut self.interiors) {
            let next = self.targets.partition_point(|t| *t < r.start);
            if let Some(&target) = self.targets.get(next).filter(|t| **t < r.end) {
                let text = format!("something goes to {target:#x}, which an entry jump overwrote");
                let start = self.starts.partition_point(|s| *s < r.start).checked_sub(1);
                let start = start.and_then(|i| self.starts.get(i)).copied();
                let failure = Failure::new(Check::EntryJump, text);
                self.functions
                    .push(unproved(start.unwrap_or(r.start), target, failure));
            }
        }
    }

    /// Dynamic symbols.
    fn symbols(&mut self, layout: &image::Layout, skip: &mut Vec<Range>, options: &Options) {
        let Some(s) = self
            .input
            .sections
            .iter()
            .find(|s| s.kind == elf::SHT_DYNSYM)
            .copied()
        else {
            return;
        };
        for at in (s.addr..s.end()).step_by(elf::SYM_SIZE) {
            let (Some(a), Some(b)) = (
                self.input.bytes(at, SYMBOL),
                self.output.bytes(layout.place(at), SYMBOL),
            ) else {
                continue;
            };
            let number = |bytes: &[u8], o| u64_in(bytes, o).unwrap_or(0);
            let (old, new) = (number(a, 8), number(b, 8));
            // A lookup by name gives that.
            self.points(old, new);
            if a == b {
                continue;
            }
            let (size, now) = (number(a, 16), number(b, 16));
            let grown = size == 0 && now == 0
                || now.wrapping_sub(size) == old.wrapping_sub(new)
                || size == now && self.is_new(new);
            // Sections have other numbers; their names are the same.
            let index = |bytes: &[u8]| {
                usize::from(u16::from_le_bytes([
                    bytes.get(6).copied().unwrap_or(0),
                    bytes.get(7).copied().unwrap_or(0),
                ]))
            };
            let (from, to) = (
                self.input.sections.get(index(a)),
                self.output.sections.get(index(b)),
            );
            // A stub is in a section of its own.
            let section = index(a) == index(b)
                || to.is_some_and(|to| {
                    self.is_new(new) && to.is_alloc() && (to.addr..to.end()).contains(&new)
                })
                || from
                    .zip(to)
                    .is_some_and(|(x, y)| index(a) != 0 && index(b) != 0 && x.name == y.name);
            if old == new && size == now && section && a.get(..6) == b.get(..6) {
                continue;
            }
            if !A::MOVES_POINTERS
                || a.get(..6) != b.get(..6)
                || !section
                || !grown
                || !self.leads(old, new)
            {
                let text = format!("the dynamic symbol at {at:#x} changed");
                self.fail(Failure::new(Check::Symbols, text).bytes(a, b), options);
            }
            self.pointers += 1;
        }
        skip.push(Range {
            start: s.addr,
            end: s.end(),
        });
    }

    /// Everything else that is loaded.
    fn data(&mut self, skip: &[Range], layout: &image::Layout, options: &Options) {
        let loads: Vec<Segment> = self.input.loads().to_vec();
        let dynamic = self.input.segment(elf::PT_DYNAMIC).copied();
        for s in loads {
            let (Some(old), Some(new)) = (
                self.input.bytes(s.addr, s.file_size),
                self.output.bytes(s.addr, s.file_size),
            ) else {
                self.fail(
                    Failure::new(
                        Check::Data,
                        format!("the segment at {:#x} is not loaded from the output", s.addr),
                    ),
                    options,
                );
                continue;
            };
            let mut at = 0usize;
            while at < old.len() {
                // Quickly over what is equal.
                let chunk = at..(at + 4096).min(old.len());
                if old.get(chunk.clone()) == new.get(chunk.clone()) {
                    at = chunk.end;
                    continue;
                }
                if old.get(at) == new.get(at) {
                    at += 1;
                    continue;
                }
                let addr = s.addr + at as u64;
                if let Some(r) = judged(skip, addr) {
                    at = (r.end - s.addr) as usize;
                    continue;
                }
                // A table that made space for program headers.
                let aligned = at - (addr % 8) as usize;
                if let Some((a, b)) = u64_in(old, aligned).zip(u64_in(new, aligned))
                    && dynamic.is_some_and(|d| d.addr <= addr && addr < d.end())
                    && a != b
                    && layout.place(a) == b
                {
                    self.pointers += 1;
                    at = aligned + 8;
                    continue;
                }
                at = self.word(s.addr, at, old, new, dynamic, options);
            }
        }
    }

    /// A word that differs; gives where to continue.
    fn word(
        &mut self,
        base: u64,
        at: usize,
        old: &[u8],
        new: &[u8],
        dynamic: Option<Segment>,
        options: &Options,
    ) -> usize {
        let words = |from: usize| Some((u64_in(old, from)?, u64_in(new, from)?));
        for from in (at.saturating_sub(7)..=at).rev() {
            if A::MOVES_POINTERS
                && let Some((a, b)) = words(from)
                && self.starts.binary_search(&a).is_ok()
                && self.leads(a, b)
            {
                self.points(a, b);
                self.pointers += 1;
                return from + 8;
            }
            let halves = u32_in(old, from)
                .zip(u32_in(new, from))
                .map(|(a, b)| (u64::from(a), u64::from(b)));
            if A::MOVES_POINTERS
                && from + 4 > at
                && self.input.etype == elf::ET_EXEC
                && let Some((a, b)) = halves
                && self.starts.binary_search(&a).is_ok()
                && self.leads(a, b)
            {
                self.points(a, b);
                self.pointers += 1;
                return from + 4;
            }
        }
        // An initialiser, or a new one in the dynamic section.
        let addr = base + at as u64;
        let aligned = at - (addr % 8) as usize;
        if let Some((a, b)) = words(aligned)
            && (self.is_new(b)
                || dynamic.is_some_and(|d| d.addr <= addr && addr < d.end() && b == 12))
        {
            if b != 12 {
                self.hook(a, b, options);
            }
            return aligned + 8;
        }
        let value = |bytes: &[u8]| {
            bytes
                .get(aligned..(aligned + 8).min(bytes.len()))
                .unwrap_or(b"")
                .to_vec()
        };
        let text = format!("the data at {addr:#x} changed");
        self.fail(
            Failure::new(Check::Data, text).bytes(&value(old), &value(new)),
            options,
        );
        aligned + 8
    }
}
