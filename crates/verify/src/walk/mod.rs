//! The lock step: old and new code of one function, walked together.
//!
//! The claim to be proved is that the new code simulates the old one: whenever the old program is before the
//! instruction at `p` and the new one at `q`, and (p, q) is a pair, both do the same and are at a pair again. Registers
//! and memory hold the same values, but for code addresses, which are related as the pairs say.
//!
//! Steps that do nothing but move the program counter are *silent*: padding and direct jumps. The old side is followed
//! over silent steps to its *state*: an instruction that does something, the way out of the function, or an endless
//! loop. The new side is followed over its silent steps and must arrive at the same state. So blocks may be in
//! any order and jumps come and go without any list of allowed changes.
//!
//! | old state | new side arrives at | required |
//! |---|---|---|
//! | plain instruction | the same bytes | continue after both |
//! | instruction with an address field | the same bytes around the field | addresses related, continue |
//! | conditional branch | the same condition, or its opposite with the ways exchanged | both ways related |
//! | way out to X | way out to X, or to the new entry or label of X's function | |
//! | any state | way out to the old address of the state itself | the old code takes over; it is still there |
//! | endless silent loop | endless silent loop | |
//!
//! Invariants: a byte of new code belongs to one instruction at most, and an instruction of new code to one
//! old state ([`Walk::map`]); every new address reached is in the new ranges claimed for the function. Since
//! a return goes to the instruction after a call, and that pair is walked too, returns and indirect jumps
//! need nothing but equal bytes: the values they jump to are related.
//!
//! What may be another instruction than the old one, and why, is in [`changes`]: one rule a kind of change, which is
//! counted.
//!
//! Where no kept relocations were used, loads of new code may read jump tables of its own ([`own_tables`], [`labels`]).
//!
//! At each pair the unwind rows are compared, and at each call what the personality routine would decide; at every
//! instruction, if the routine is not known to be one that is asked about calls alone.
//!
//! Two things take more than one instruction to judge, both on machines with instructions of fixed length:
//!
//! * An address made in two steps, page and offset ([`pages`]): while a register holds another page than in
//!   the old program, nothing may read it but instructions that make a related address of it.
//! * A jump through a table of numbers ([`tables`]): where table, base or width changed, the jump is read on
//!   both sides as a whole and every entry is compared by where it leads.

pub(crate) mod changes;
mod counting;
mod few;
mod labels;
mod marks;
mod no_return;
mod own_tables;
mod pages;
mod relations;
mod sites;
mod stub_registers;
mod tables;
mod values;

use crate::addr::{InputAddr, OutputAddr, Pair};
use crate::arch::{Arch, Dispatch, Field, FieldKind, Flow, Insn, Operand};
use crate::consulted::Consulted;
use crate::context::{Context, FuncId};
use crate::files::bytes::same_insn;
use crate::files::claim::{Moved, Range};
use crate::files::lsda::Lsda;
use crate::files::unwind::{Interner, RowMap, Runner};
use crate::liveness::Recent;
use crate::machine::{Footprint, Moment, Routine};
use crate::passages::Passages;
use crate::report::{Check, Failure, TableReport};
use counting::Fresh;
use few::Few;
use marks::{Mark, Marks};
use own_tables::OwnTables;
use pages::{Page, Pending};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::{SmallVec, smallvec};
use std::cell::Cell;
use std::sync::LazyLock;

/// Pairs of a walked function, compact: for questions from other functions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pairs {
    /// Where the distance between old and new changes: (offset in the new ranges, old id).
    runs: Box<[(u32, u32)]>,
    /// One bit per byte of new code: an instruction starts here and was reached.
    starts: Box<[u64]>,
}

/// What came out of walking one function.
#[derive(Clone, Debug, Default)]
pub(crate) struct Walked {
    pub failure: Option<Box<Failure>>,
    pub pairs: Pairs,
    /// Pairs that other functions must have.
    pub cross: Few<Pair>,
    pub addresses: Few<(FuncId, bool)>,
    pub entrances: Few<FuncId>,
    /// Labels whose new addresses the code forms: function and old address.
    pub labels: Few<(FuncId, InputAddr)>,
    /// Functions whose ends' addresses the code forms, and those.
    pub inside: Few<(FuncId, InputAddr)>,
    pub instructions: u64,
    pub assumed_no_return: u64,
    pub unreached: Few<(OutputAddr, u64)>,
    /// Where instructions of new code do nothing but move the program counter, by their places in the new
    /// ranges, ascending. Kept if debug information is to be compared, as is the next.
    pub silent: Few<u32>,
    /// Stretches of new code that nothing reaches, padding as well: places in the new ranges.
    pub free: Few<std::ops::Range<u32>>,
    /// What counting touches, if that is more than memory at the thread's own base.
    pub footprint: Option<Box<Footprint>>,
    /// It touches that.
    pub touches_own: bool,
    /// Why what is noted as where a call came from may be something else.
    pub no_caller: Option<Box<str>>,
    /// Inserted code changes flags or registers that are dead only by calling conventions.
    pub by_convention: bool,
    /// Indirect calls and jumps that are recorded.
    pub recorded: u64,
    /// Where their recorders begin.
    pub recorders: Few<OutputAddr>,
    /// Instructions of inserted code that have moved the stack pointer, and whose unwind rows say so: how many.
    pub moved_stack_rows: u64,
    /// Indirect jumps that continue in old code, by old address.
    pub falls_back: Few<InputAddr>,
    /// Jumps through tables of new code's own.
    pub tables: Few<TableReport>,
    /// Instructions that register the new unwind table in place of the old one.
    pub registers: u64,
    /// That rests on what calls leave alone.
    pub kept_by_calls: bool,
    /// Such a jump leaves behind what is not looked at any further.
    pub behind_tables: bool,
    /// That such jumps are through their tables rests on calls that do not return.
    pub without_return: bool,
    /// It has an exception table, and who reads that has no name that is known.
    pub unnamed_reader: bool,
    /// How many changed instructions there are, by kind.
    pub changes: changes::Counts,
    /// What was looked at beside the function itself, if it was noted.
    pub consulted: Consulted,
}

impl Walked {
    /// What counting touches beside memory at the thread's own base.
    pub(crate) fn footprint(&self) -> &Footprint {
        static NOTHING: LazyLock<Footprint> = LazyLock::new(Footprint::default);
        self.footprint.as_deref().unwrap_or_else(|| &NOTHING)
    }

    /// Gives up what its lists could grow by: those of all functions are in memory at once.
    fn shrink(&mut self) {
        self.cross.shrink();
        self.addresses.shrink();
        self.entrances.shrink();
        self.silent.shrink();
        self.free.shrink();
        self.recorders.shrink();
    }
}

/// Where a side is after its silent steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State<Addr> {
    /// At an instruction that does something.
    At(Addr, Insn),
    /// Outside the function.
    Exit(Addr),
    /// In an endless silent loop; its lowest address.
    Spin(Addr),
}

/// Where the old side is.
type OldState = State<InputAddr>;

/// Where the new side is.
type NewState = State<OutputAddr>;

impl<Addr: Copy> State<Addr> {
    fn addr(&self) -> Addr {
        match *self {
            State::At(a, _) | State::Exit(a) | State::Spin(a) => a,
        }
    }

    /// For a message; `bytes` are those of code from an address on.
    fn shown<'b>(self, bytes: impl Fn(Addr) -> Option<&'b [u8]>) -> String
    where
        Addr: std::fmt::LowerHex,
    {
        match self {
            State::At(at, insn) => {
                let own = bytes(at).and_then(|b| b.get(..usize::from(insn.len)));
                crate::report::hex(own.unwrap_or(b""))
            }
            State::Exit(to) => format!("to {to:#x}"),
            State::Spin(at) => format!("endless loop at {at:#x}"),
        }
    }
}

/// Buffers that are used again for the next function.
#[derive(Default)]
pub(crate) struct Scratch<'a> {
    marks: Marks,
    /// Those of [`Pairs`].
    runs: Vec<(u32, u32)>,
    work: Vec<(InputAddr, OutputAddr, Option<Box<[Page]>>)>,
    interner: Interner,
    runner: Runner,
    old_rows: RowMap,
    new_rows: RowMap,
    old_lsdas: Vec<(u64, u64, Option<Lsda<'a>>)>,
    new_lsdas: Vec<(u64, u64, Option<Lsda<'a>>)>,
    chains: Vec<[u64; 4]>,
    /// Routines that recorders call, and what they were found to do.
    routines: FxHashMap<OutputAddr, Option<Routine>>,
    /// Old instructions that were read lately.
    recent: Recent<'a>,
    /// The instructions of inserted code that was last followed.
    moments: Vec<Moment>,
    /// Inserted code that was followed, for where the same is once more.
    passages: Passages,
}

/// One function being walked.
struct Walk<'a, 's, A: Arch> {
    cx: &'a Context<'a>,
    id: FuncId,
    f: &'a Moved,
    /// Range, its bytes, and those with some that are behind it: what is decoded is told sooner where more follows.
    old: SmallVec<[(Range<InputAddr>, &'a [u8], &'a [u8]); 2]>,
    /// Range, its bytes, and the offset of its first byte in `map`.
    new: SmallVec<[(Range<OutputAddr>, &'a [u8], usize); 2]>,
    s: &'s mut Scratch<'a>,
    out: Walked,
    /// What counting touches.
    footprint: Footprint,
    lsdas: bool,
    /// The personality routine may be asked about any instruction.
    faults: bool,
    base: u64,
    /// Jumps through tables of the old code, and which of them an old instruction takes part in.
    dispatches: Vec<Dispatch>,
    parts: FxHashMap<InputAddr, usize>,
    /// Parts that differ, and what corresponds to them in the new code; they wait for their jump.
    deferred: FxHashMap<InputAddr, OutputAddr>,
    /// Table jumps that were reached, old and new, by the old one's number.
    jumps: Vec<(usize, InputAddr, OutputAddr)>,
    /// Those that were compared, and with what.
    compared: FxHashMap<InputAddr, (u64, u64)>,
    /// Jump tables of new code's own.
    own: OwnTables,
    /// New addresses that something jumps to; kept only where addresses take several instructions.
    joined: Vec<OutputAddr>,
    /// Instructions of new code that must not be jumped to.
    closed: Vec<OutputAddr>,
    /// Where code at the entry begins that notes where a call came from.
    notes_callers: Vec<OutputAddr>,
    /// Where the function itself comes near its entry, but for calls.
    comes_again: SmallVec<[OutputAddr; 2]>,
    /// A call's target is being related.
    calling: bool,
    /// New code that continues with an operand that was read before it ([`changes`]).
    after_read: FxHashSet<OutputAddr>,
    /// Registers that hold other pages than in the old program where new code is reached, if any do.
    states: FxHashMap<OutputAddr, Pending>,
    /// What is true of registers where the next pairs come from.
    carry: Pending,
    /// Registers that hold other pages at some indirect jump.
    at_indirect_jumps: u32,
    /// Old addresses that are reached in ways that are not followed, by pointers and tables.
    indirect: Vec<InputAddr>,
    /// Those in this function, whatever the instruction set.
    targets: Vec<InputAddr>,
    /// Registers of linkers' stubs that the old code has nothing to do with but at calls, where no kept relocations
    /// were used.
    untouched: u32,
    /// There are exclusive stores in it.
    exclusive: bool,
    /// Calls through registers and memory, old and new, that may change registers of linkers' stubs.
    changing_stub_registers: Vec<Pair>,
    /// Where the stack below the stack pointer holds nothing.
    fresh: Option<Fresh>,
    /// Instructions that may still be looked at where a question of liveness takes long.
    reserve: Cell<usize>,
    /// The new instruction that was read last.
    last: Cell<Option<(OutputAddr, Insn)>>,
    arch: std::marker::PhantomData<A>,
}

/// Bytes behind a range that are at hand where its last instructions are decoded.
const BEHIND: u64 = 32;

/// Walks a function from its entry, its labels and the other roots.
pub(crate) fn walk<'a, A: Arch>(
    cx: &'a Context<'a>,
    id: FuncId,
    roots: &[Pair],
    scratch: &mut Scratch<'a>,
) -> Walked {
    let Some(f) = cx.function(id) else {
        return Walked::default();
    };
    let mut walk = Walk::<A> {
        cx,
        id,
        f,
        old: SmallVec::new(),
        new: SmallVec::new(),
        s: scratch,
        out: Walked::default(),
        footprint: Footprint::default(),
        lsdas: false,
        faults: false,
        base: cx.input.extent().0,
        dispatches: Vec::new(),
        parts: FxHashMap::default(),
        deferred: FxHashMap::default(),
        jumps: Vec::new(),
        compared: FxHashMap::default(),
        own: OwnTables::default(),
        joined: Vec::new(),
        closed: Vec::new(),
        notes_callers: Vec::new(),
        comes_again: SmallVec::new(),
        calling: false,
        after_read: FxHashSet::default(),
        states: FxHashMap::default(),
        carry: SmallVec::new(),
        at_indirect_jumps: 0,
        indirect: Vec::new(),
        targets: Vec::new(),
        untouched: 0,
        exclusive: false,
        changing_stub_registers: Vec::new(),
        fresh: None,
        reserve: Cell::new(crate::liveness::RESERVE),
        last: Cell::new(None),
        arch: std::marker::PhantomData,
    };
    if let Err(failure) = walk.run(roots) {
        walk.out.failure = Some(failure);
    }
    walk.finish();
    walk.out
}

type Step = Result<(), Box<Failure>>;

/// A failure of the walk.
fn fail<T>(failure: Failure) -> Result<T, Box<Failure>> {
    Err(Box::new(failure))
}

impl<'a, A: Arch> Walk<'a, '_, A> {
    fn run(&mut self, roots: &[Pair]) -> Step {
        let cx = self.cx;
        let mut total = 0usize;
        self.s.marks.reset(0);
        self.s.work.clear();
        for &r in &self.f.old {
            let Some(bytes) = cx.input.bytes(r.start.get(), r.len()) else {
                return fail(Failure::new(
                    Check::Claim,
                    format!(
                        "the old range {:#x}..{:#x} is not in the input",
                        r.start, r.end
                    ),
                ));
            };
            let more = cx
                .input
                .bytes_near(r.start.get(), r.len().saturating_add(BEHIND));
            self.old.push((r, bytes, more.unwrap_or(bytes)));
        }
        for &r in &self.f.new {
            let Some(bytes) = cx.output.bytes(r.start.get(), r.len()) else {
                return fail(Failure::new(
                    Check::Claim,
                    format!(
                        "the new range {:#x}..{:#x} is not in the output",
                        r.start, r.end
                    ),
                ));
            };
            self.new.push((r, bytes, total));
            total += bytes.len();
        }
        self.s.marks.reset(total);
        self.prepare_unwind()?;
        self.find_dispatches();
        let entry = (self.f.old_entry, self.f.new_entry());
        self.relate_indirect(entry.0, entry.1)?;
        self.joined.clear();
        self.comes_again.clear();
        if cx.counts.is_some() {
            let labels = self.f.labels.iter().chain(roots).map(|l| l.0);
            self.targets
                .extend(labels.filter(|old| self.f.in_old(*old) && *old != entry.0));
            self.targets.sort_unstable();
            self.targets.dedup();
            if cx.bare {
                self.untouched = self.untouched_by_old();
            }
            self.exclusive = A::STEP > 1
                && self
                    .old
                    .iter()
                    .any(|(_, bytes, _)| bytes.chunks_exact(A::STEP).any(A::is_exclusive_store));
        }
        for &(old, new) in self.f.labels.iter().chain(roots) {
            if (old, new) != entry {
                self.relate_indirect(old, new)?;
            }
        }
        // Table jumps are compared when everything else is known; what they lead to may know more.
        loop {
            while let Some((old, new, pages)) = self.s.work.pop() {
                self.follow(
                    old,
                    new,
                    pages.map_or_else(SmallVec::new, |pages| pages.iter().copied().collect()),
                )?;
            }
            if !self.compare_dispatches()? {
                break;
            }
        }
        self.settled()?;
        self.judge_own_tables()?;
        self.judge_stub_registers()?;
        self.count_folded();
        Ok(())
    }

    /// The registers of linkers' stubs that no instruction of the old code but calls reads or may write.
    fn untouched_by_old(&self) -> u32 {
        if A::STEP == 1 {
            return 0;
        }
        let mut touched = 0;
        for (r, bytes, _) in &self.old {
            for (word, at) in bytes
                .chunks_exact(A::STEP)
                .zip((r.start.get()..).step_by(A::STEP))
            {
                let flow = A::decode(word, at).map(|insn| insn.flow);
                touched |= match (flow, A::touched(word)) {
                    (Some(Flow::Call(_)), _) => 0,
                    (Some(Flow::Stop), _) => A::return_register(word).map_or(0, |reg| 1 << reg),
                    // All that a call or a jump itself reads is its operand.
                    (Some(Flow::IndirectCall | Flow::IndirectJump { .. }), _) => {
                        A::operand(word, at).map_or(u32::MAX, |operand| match operand.0 {
                            Operand::Register(reg) => 1 << reg,
                            Operand::Memory(_) => u32::MAX,
                        })
                    }
                    // What overwrites nothing for certain reads what it writes, or writes none.
                    (Some(_), Some(t)) => match A::effects(word) {
                        effects if effects.kills | t.kills == 0 => effects.reads,
                        // Not what is merely named alike: `s17` of a conversion is not `x17`.
                        effects => effects.reads | t.writes,
                    },
                    _ => u32::MAX,
                };
            }
        }
        A::STUB_SCRATCH & !touched
    }

    /// Bytes of old code from an address to the end of its range.
    #[inline]
    fn old_bytes(&self, p: InputAddr) -> Option<&'a [u8]> {
        let (r, bytes, _) = self.old.iter().find(|old| old.0.contains(p))?;
        bytes.get((p - r.start) as usize..)
    }

    /// The same, and those with some that are behind the range.
    #[inline]
    fn old_bytes_and_more(&self, p: InputAddr) -> Option<(&'a [u8], &'a [u8])> {
        let (r, bytes, more) = self.old.iter().find(|old| old.0.contains(p))?;
        let skip = (p - r.start) as usize;
        Some((bytes.get(skip..)?, more.get(skip..)?))
    }

    /// The old instruction at `p`, whose bytes these are, with some that are behind its range.
    #[inline]
    fn old_insn(&mut self, (old, more): (&[u8], &[u8]), p: InputAddr) -> Option<Insn> {
        let insn = self.s.recent.insn::<A>(more, p.get());
        match insn {
            Some(insn) if usize::from(insn.len) <= old.len() => Some(insn),
            // What is cut off by the range's end is none.
            _ => A::decode(old, p.get()),
        }
    }

    /// Bytes of new code from an address to the end of its range, and the place of the first in the map.
    #[inline]
    fn new_bytes(&self, q: OutputAddr) -> Option<(&'a [u8], usize)> {
        let (r, bytes, slot) = self.new.iter().find(|(r, _, _)| r.contains(q))?;
        let skip = (q - r.start) as usize;
        Some((bytes.get(skip..)?, slot + skip))
    }

    /// Number of an old address in the map.
    fn id(&self, old: InputAddr) -> Option<u32> {
        let id = old.get().checked_sub(self.base)?.checked_add(1)?;
        u32::try_from(id).ok()
    }

    /// Follows the old side's silent steps from `p`; `chain` receives every address on the way, `p` first.
    fn state(
        &mut self,
        p: InputAddr,
        chain: &mut SmallVec<[InputAddr; 4]>,
    ) -> Result<OldState, Box<Failure>> {
        let mut at = p;
        loop {
            if let Some(start) = chain.iter().position(|&c| c == at) {
                let lowest = chain.iter().skip(start).min().copied().unwrap_or(at);
                return Ok(State::Spin(lowest));
            }
            if chain.len() > 4096 {
                return fail(Failure::new(
                    Check::Code,
                    format!("more than 4096 jumps and nops follow the old address {p:#x}"),
                ));
            }
            let Some((bytes, more)) = self.old_bytes_and_more(at) else {
                return Ok(State::Exit(at));
            };
            chain.push(at);
            let Some(insn) = self.old_insn((bytes, more), at) else {
                let shown = bytes.get(..bytes.len().min(15)).unwrap_or(b"");
                return fail(
                    Failure::new(
                        Check::Code,
                        format!("the old instruction at {at:#x} is not understood"),
                    )
                    .at_kept(at.get())
                    .bytes(shown, b""),
                );
            };
            match insn.flow {
                Flow::Nothing => at = at.saturating_add(u64::from(insn.len)),
                Flow::Jump(target) => at = InputAddr::new(target),
                _ => return Ok(State::At(at, insn)),
            }
        }
    }

    /// The new instruction at `at`, whose bytes these are.
    #[inline]
    fn new_insn(&self, bytes: &[u8], at: OutputAddr) -> Option<Insn> {
        if let Some((a, insn)) = self.last.get()
            && a == at
        {
            return Some(insn);
        }
        let insn = A::decode(bytes, at.get())?;
        self.last.set(Some((at, insn)));
        Some(insn)
    }

    /// Marks an instruction of new code as paired. False if it was already (with the same old state).
    fn mark(
        &mut self,
        q: OutputAddr,
        slot: usize,
        len: usize,
        old: InputAddr,
    ) -> Result<bool, Box<Failure>> {
        let id = self.id(old);
        if let Some(id) = id
            && self.s.marks.begin(slot, slot + len, id)
        {
            self.out.instructions += 1;
            return Ok(true);
        }
        self.marked(q, slot, len, (old, id))
    }

    /// The same where some of its places are taken, or not there.
    fn marked(
        &self,
        q: OutputAddr,
        slot: usize,
        len: usize,
        (old, id): (InputAddr, Option<u32>),
    ) -> Result<bool, Box<Failure>> {
        let Some(id) = id else {
            return fail(
                Failure::new(
                    Check::Code,
                    format!("the old address {old:#x} is outside the file"),
                )
                .at(old, q),
            );
        };
        let base = self.base;
        if !self.s.marks.has(slot, slot + len) {
            return fail(
                Failure::new(
                    Check::Code,
                    format!("the new instruction at {q:#x} leaves its range"),
                )
                .at(old, q),
            );
        }
        match self.s.marks.at(slot) {
            Some(Mark::Free) => {}
            Some(Mark::Begins(have)) if have == id && self.after_read.contains(&q) => {
                return fail(changes::needs_operand(old, q));
            }
            Some(Mark::Begins(have)) if have == id => return Ok(false),
            Some(Mark::Inside) => {
                return fail(
                    Failure::new(
                        Check::Code,
                        format!("new code is entered at {q:#x}, in the middle of an instruction"),
                    )
                    .at(old, q),
                );
            }
            have => {
                let have = match have {
                    Some(Mark::Begins(have)) => base + u64::from(have) - 1,
                    _ => 0,
                };
                let text = format!(
                    "the new instruction at {q:#x} would correspond to two old ones, {have:#x} and {old:#x}"
                );
                return fail(Failure::new(Check::Code, text).at(old, q).values(have, old));
            }
        }
        fail(
            Failure::new(
                Check::Code,
                format!("the new instruction at {q:#x} overlaps another one"),
            )
            .at(old, q),
        )
    }

    /// Walks on from a pair until both sides end or reach known pairs.
    fn follow(&mut self, mut p: InputAddr, mut q: OutputAddr, mut pending: Pending) -> Step {
        let mut chain: SmallVec<[InputAddr; 4]> = SmallVec::new();
        loop {
            if pending.is_empty() {
                let paired = self.pair_straight(p, q);
                (p, q) = (p + paired, q + paired);
            }
            let Some((new, slot)) = self.new_bytes(q) else {
                return fail(
                    Failure::new(
                        Check::Code,
                        format!("new code runs out of its ranges at {q:#x}"),
                    )
                    .at(p, q),
                );
            };
            // Most of the rest are the same bytes in both places as well, or the same but for an address.
            if pending.is_empty()
                && let Some((old, more)) = self.old_bytes_and_more(p)
                && let Some(insn) = self.old_insn((old, more), p)
            {
                if let Some(end) = self.counter_in_front((p, old, &insn), q, new) {
                    if !self.mark(q, slot, (end - q) as usize, p)? {
                        return self.meet(p, q, &pending);
                    }
                    self.check_inserted_rows(&[p], q, end)?;
                    q = end;
                    continue;
                }
                if self.is_same_plain(old, &insn, new) {
                    match self.pair_plain(p, &insn, q, slot)? {
                        Some(next) => (p, q) = next,
                        None => return self.meet(p, q, &pending),
                    }
                    continue;
                }
                if let Some(like) = self.alike(old, &insn, q, new) {
                    match self.same(p, &insn, q, &like, &mut pending)? {
                        Some(next) => (p, q) = next,
                        None => return Ok(()),
                    }
                    continue;
                }
            }
            chain.clear();
            let state = self.state(p, &mut chain)?;
            if let State::At(at, insn) = state
                && pending.is_empty()
                && let Some(old) = self.old_bytes(at)
                && self.is_same_plain(old, &insn, new)
            {
                match self.pair_plain(at, &insn, q, slot)? {
                    Some(next) => (p, q) = next,
                    None => return self.meet(at, q, &pending),
                }
                continue;
            }
            let Some(end) = self.silent(q, &state, &chain, &pending)? else {
                return Ok(());
            };
            // The same behind what is silent. No rule is for it where the function has no tables of its own.
            if A::STEP == 1
                && let (State::At(at, insn), State::At(here, _)) = (state, end)
                && pending.is_empty()
                && self.f.tables.is_empty()
                && let (Some(old), Some((new, slot))) = (self.old_bytes(at), self.new_bytes(here))
                && self.is_same_plain(old, &insn, new)
            {
                match self.pair_plain(at, &insn, here, slot)? {
                    Some(next) => (p, q) = next,
                    None => return self.meet(at, here, &pending),
                }
                continue;
            }
            let changed = match end {
                State::At(here, insn) => self.changed(&state, &chain, here, &insn, &mut pending)?,
                _ => None,
            };
            if let Some(next) = changed {
                match next {
                    Some((old, new)) => (p, q) = (old, new),
                    None => return Ok(()),
                }
                continue;
            }
            let next = match (state, end) {
                (State::Spin(_), State::Spin(_)) => None,
                (State::Exit(x), State::Exit(y)) => {
                    self.relate_outside(x, y, q)?;
                    None
                }
                (_, State::Exit(y)) if chain.contains(&y.of_old_image()) => {
                    let y = y.of_old_image();
                    // A silent jump back to the address it was copied from is a loop: a jump to new code stands there.
                    if (self.cx.bare || y == p) && self.cx.patches.owner(y).is_some() {
                        let text = "new code continues in old code that a jump overwrote";
                        return fail(Failure::new(Check::Code, text).at(y, q));
                    }
                    self.enter_old(y);
                    None
                }
                (State::At(at, old), State::At(here, insn)) if self.is_recorded(&old, &insn) => {
                    self.recorded_call(at, &old, here, &insn, &mut pending)?
                }
                (State::At(at, old), State::At(here, insn)) => {
                    self.same(at, &old, here, &insn, &mut pending)?
                }
                (State::At(at, old), State::Exit(y))
                    if self.cx.counts.is_some()
                        && matches!(old.flow, Flow::IndirectJump { .. }) =>
                {
                    self.recorder(at, &old, q, y)?;
                    None
                }
                (state, end) => {
                    let mut failure =
                        Failure::new(Check::Code, "old and new code do different things")
                            .at(state.addr(), end.addr());
                    failure.old_value = state.shown(|at| self.old_bytes(at));
                    failure.new_value = end.shown(|at| Some(self.new_bytes(at)?.0));
                    return fail(failure);
                }
            };
            match next {
                Some((old, new)) => (p, q) = (old, new),
                None => return Ok(()),
            }
        }
    }

    /// Pairs the instructions of straight code that are the same from here on, as [`Walk::pair_plain`] does it one by
    /// one: most code is such. Gives how many bytes they are; 0 where anything else has to be looked at.
    fn pair_straight(&mut self, p: InputAddr, q: OutputAddr) -> u64 {
        if self.lsdas && (self.faults || self.cx.options.non_call_exceptions) {
            return 0;
        }
        let (Some((old, more)), Some((new, slot)), Some(first)) =
            (self.old_bytes_and_more(p), self.new_bytes(q), self.id(p))
        else {
            return 0;
        };
        let Some((old_left, new_left)) = self.rows_are_equal(p, q) else {
            return 0;
        };
        let counts = self.cx.counts.is_some();
        let new_left = new_left.min(old.len());
        let mut at = 0usize;
        let mut paired = 0;
        while at < old_left
            && let (Some(a), Some(b)) = (more.get(at..), new.get(at..))
            && let Some((len, false)) = A::straight(a, p.get() + at as u64)
        {
            let len = usize::from(len);
            let end = at + len;
            let same = end <= new_left && same_insn(b, a, len) && !(counts && A::is_ambiguous(b));
            let number = u32::try_from(at).ok().and_then(|at| first.checked_add(at));
            let Some(number) = number.filter(|_| same) else {
                break;
            };
            if !self.s.marks.begin(slot + at, slot + end, number) {
                break;
            }
            paired += 1;
            at = end;
        }
        self.out.instructions += paired;
        at as u64
    }

    /// The end of a counter at `q`, if it is all that is inserted there, and new code continues behind it as old code
    /// does at `p`: what [`Walk::silent`] finds then, sooner.
    fn counter_in_front(
        &mut self,
        (p, old, insn): (InputAddr, &[u8], &Insn),
        q: OutputAddr,
        new: &[u8],
    ) -> Option<OutputAddr> {
        if self.cx.counts.is_none() || !self.f.tables.is_empty() {
            return None;
        }
        let counter = A::own_counter(new)?;
        if A::own_counter(old).is_some() {
            return None;
        }
        let end = q + u64::from(counter.len);
        let behind = new
            .get(usize::from(counter.len)..)
            .filter(|b| !b.is_empty())?;
        if !self.is_same_plain(old, insn, behind) {
            self.alike(old, insn, end, behind)?;
        }
        self.counter_alone(&State::At(p, *insn), &[p], q, new)
    }

    /// Whether new code begins with the bytes of an old instruction that has no address in it, continues with the next,
    /// and is the program's for certain.
    #[inline]
    fn is_same_plain(&self, old: &[u8], insn: &Insn, new: &[u8]) -> bool {
        insn.field.is_none()
            && insn.flow == Flow::Next
            && same_insn(new, old, usize::from(insn.len))
            && !(self.cx.counts.is_some() && A::is_ambiguous(new))
    }

    /// The new instruction at `q`, if it is one of those that are compared with the old one as they stand: nothing is
    /// silent in front of either, and no rule is for what they do.
    fn alike(&self, old: &[u8], insn: &Insn, q: OutputAddr, bytes: &[u8]) -> Option<Insn> {
        let compared = |flow| matches!(flow, Flow::Next | Flow::Branch { .. } | Flow::Call(_));
        if A::STEP > 1 || !self.f.tables.is_empty() || insn.field.is_none() || !compared(insn.flow)
        {
            return None;
        }
        let new = self.new_insn(bytes, q)?;
        let same_kind = std::mem::discriminant(&insn.flow) == std::mem::discriminant(&new.flow);
        let is_counted = self.cx.counts.is_some();
        let alike = same_kind
            && new.field.is_some()
            && !(is_counted && A::is_ambiguous(bytes))
            && (!is_counted || self.may_be_same((old, insn), (bytes, &new)));
        alike.then_some(new)
    }

    /// Pairs two such instructions. Gives the pair after them, or `None` if they were paired before.
    #[inline]
    fn pair_plain(
        &mut self,
        p: InputAddr,
        insn: &Insn,
        q: OutputAddr,
        slot: usize,
    ) -> Result<Option<Pair>, Box<Failure>> {
        let len = u64::from(insn.len);
        if !self.mark(q, slot, usize::from(insn.len), p)? {
            return Ok(None);
        }
        self.check_rows(&[p], q, len)?;
        if self.lsdas {
            self.check_other_site(p, q)?;
        }
        Ok(Some((p + len, q + len)))
    }

    /// Follows the new side's silent steps from `q`, marking them as standing for `state`. `None`: arrived at
    /// new code that already corresponds to it.
    fn silent(
        &mut self,
        q: OutputAddr,
        state: &OldState,
        chain: &[InputAddr],
        pending: &Pending,
    ) -> Result<Option<NewState>, Box<Failure>> {
        let mut at = q;
        let mut here: SmallVec<[OutputAddr; 4]> = smallvec![];
        // What is outside of the file (a weak symbol's 0) is known by the jump that goes there.
        let key = match self.id(state.addr()) {
            Some(_) => state.addr(),
            None => chain.last().copied().unwrap_or_else(|| state.addr()),
        };
        loop {
            let Some((bytes, slot)) = self.new_bytes(at) else {
                return Ok(Some(State::Exit(at)));
            };
            if here.contains(&at) {
                return Ok(Some(State::Spin(at)));
            }
            let guard = self.guard_of_load(state, at);
            if guard.is_none()
                && let State::At(p, insn) = *state
                && let Some(old) = self.old_bytes(p)
                && self.is_same_plain(old, &insn, bytes)
            {
                return Ok(Some(State::At(at, insn)));
            }
            let inserted = match guard {
                None => self.inserted(state, chain, at),
                guard => guard,
            };
            if let Some(end) = inserted {
                // Asked for where tables are judged, and most functions have none.
                if guard.is_none() && !self.f.tables.is_empty() {
                    self.own.inserted.insert(at, end);
                }
                if !self.mark(at, slot, (end - at) as usize, key)? {
                    self.meet(state.addr(), at, pending)?;
                    return Ok(None);
                }
                self.arrive(at, pending);
                match guard {
                    None => self.check_inserted_rows(chain, at, end)?,
                    Some(_) => self.check_rows(chain, at, end - at)?,
                }
                here.push(at);
                at = end;
                if self.new_bytes(at).is_none() {
                    return fail(
                        Failure::new(
                            Check::Code,
                            format!("new code runs out of its ranges at {at:#x}"),
                        )
                        .at(state.addr(), at),
                    );
                }
                continue;
            }
            let Some(insn) = self.new_insn(bytes, at) else {
                let shown = bytes.get(..bytes.len().min(15)).unwrap_or(b"");
                let text = format!("the new instruction at {at:#x} is not understood");
                return fail(
                    Failure::new(Check::Code, text)
                        .at(state.addr(), at)
                        .bytes(b"", shown),
                );
            };
            let next = match insn.flow {
                Flow::Nothing => at + u64::from(insn.len),
                Flow::Jump(target) => OutputAddr::new(target),
                _ => match self.own_veneer(bytes, at, state) {
                    Some((target, len)) => {
                        return self.through_own_veneer(at, slot, len, target, state, chain);
                    }
                    None => return Ok(Some(State::At(at, insn))),
                },
            };
            if let Flow::Jump(target) = insn.flow
                && (A::STEP > 1 || self.cx.counts.is_some())
            {
                self.joined.push(OutputAddr::new(target));
                self.come_again(OutputAddr::new(target));
            }
            if !self.mark(at, slot, usize::from(insn.len), key)? {
                self.meet(state.addr(), at, pending)?;
                return Ok(None);
            }
            self.note_silent(slot);
            self.arrive(at, pending);
            self.check_rows(chain, at, u64::from(insn.len))?;
            here.push(at);
            at = next;
            // Falling out of the range is not a jump.
            if insn.flow == Flow::Nothing && self.new_bytes(at).is_none() {
                return fail(
                    Failure::new(
                        Check::Code,
                        format!("new code runs out of its ranges at {at:#x}"),
                    )
                    .at(state.addr(), at),
                );
            }
        }
    }

    /// Notes that an instruction of new code does nothing but move the program counter.
    fn note_silent(&mut self, slot: usize) {
        if self.cx.has_debug_info
            && let Ok(slot) = u32::try_from(slot)
        {
            self.out.silent.push(slot);
        }
    }

    /// Compares two instructions that do something. Returns the pair after them, if control can come there.
    fn same(
        &mut self,
        p: InputAddr,
        old: &Insn,
        q: OutputAddr,
        new: &Insn,
        pending: &mut Pending,
    ) -> Result<Option<Pair>, Box<Failure>> {
        let old_bytes = self
            .old_bytes(p)
            .and_then(|b| b.get(..usize::from(old.len)))
            .unwrap_or(b"");
        let (new_all, slot) = self.new_bytes(q).unwrap_or((b"", 0));
        let new_bytes = new_all.get(..usize::from(new.len)).unwrap_or(b"");
        let different = |what: &str| {
            fail(
                Failure::new(Check::Code, what)
                    .at(p, q)
                    .bytes(old_bytes, new_bytes),
            )
        };
        if !self.mark(q, slot, new_bytes.len(), p)? {
            self.meet(p, q, pending)?;
            return Ok(None);
        }
        self.arrive(q, pending);
        self.check_rows(&[p], q, u64::from(new.len))?;
        if A::STEP > 1
            && let Some(next) = self.of_several(p, old, q, new, pending)?
        {
            return Ok(Some(next));
        }
        let old_next = p + u64::from(old.len);
        let new_next = q + u64::from(new.len);

        if let (
            Flow::Branch {
                cond,
                inverse,
                target: old_target,
            },
            Flow::Branch {
                cond: new_cond,
                target: new_target,
                ..
            },
        ) = (old.flow, new.flow)
        {
            let prefixes = |bytes: &'a [u8], insn: &Insn| bytes.get(..usize::from(insn.prefixes));
            if prefixes(old_bytes, old) != prefixes(new_bytes, new) {
                return different("the branch's prefixes changed");
            }
            if !(pending.is_empty() && self.carry.is_empty()) {
                self.carry.clone_from(pending);
            }
            let old_target = InputAddr::new(old_target);
            let new_target = OutputAddr::new(new_target);
            if new_cond == cond {
                self.conditional_tail_call(p, old_target, q, new_target)?;
                self.relate(old_target, new_target)?;
                self.carry.clear();
                return Ok(Some((old_next, new_next)));
            }
            if Some(new_cond) == inverse {
                self.conditional_tail_call(p, old_next, q, new_target)?;
                self.relate(old_next, new_target)?;
                self.carry.clear();
                return Ok(Some((old_target, new_next)));
            }
            return different("the branch's condition changed");
        }

        if old.len != new.len {
            return different("the instruction changed");
        }
        let field = match (old.field, new.field) {
            (None, None) => None,
            (Some(a), Some(b)) if (a.at, a.len, a.kind) == (b.at, b.len, b.kind) => Some((a, b)),
            _ => return different("the instruction changed"),
        };
        if field.is_none() && old_bytes != new_bytes && !self.cx.fixed() {
            return different("the instruction changed");
        }
        // An address as a number; an instruction may have both: `movq $function, pointer(%rip)`.
        let around = field.is_some_and(|(a, _)| A::equal_around(old_bytes, new_bytes, &a));
        let number = if around || old_bytes == new_bytes {
            None
        } else {
            match self.numbers(old_bytes, new_bytes, field.map(|f| f.0)) {
                None => return different("the instruction changed"),
                numbers => numbers,
            }
        };
        for (a, b) in field.into_iter().chain(number) {
            if a.kind == FieldKind::Page {
                self.relate_page(p, &a, q, &b, pending)?;
            } else {
                self.calling = matches!(old.flow, Flow::Call(_));
                let related = self.relate_field(p, old_bytes, &a, q, &b);
                self.calling = false;
                related?;
            }
        }

        if let Flow::Call(target) = old.flow
            && target == old_next.get()
            && self.f.in_old(old_next)
        {
            return different("the code takes its own address by a call");
        }
        self.behind(p, old, q, new, pending)
    }

    /// The numbers of two instructions that may be addresses, if nothing else differs but what is in `field`.
    pub(super) fn numbers(
        &self,
        old: &[u8],
        new: &[u8],
        field: Option<Field>,
    ) -> Option<(Field, Field)> {
        if !self.cx.fixed() {
            return None;
        }
        let (a, b) = (A::absolute_field(old)?, A::absolute_field(new)?);
        let within = |f: &Field, i: usize| (f.at..f.at + f.len).contains(&(i as u8));
        let may_differ = |i| within(&a, i) || field.as_ref().is_some_and(|f| within(f, i));
        let mut bytes = old.iter().zip(new).enumerate();
        let alike = (a.at, a.len, old.len()) == (b.at, b.len, new.len())
            && bytes.all(|(i, (old, new))| old == new || may_differ(i));
        alike.then_some((a, b))
    }

    /// What is after two instructions that do the same: the pair, if control can come there.
    fn behind(
        &mut self,
        p: InputAddr,
        old: &Insn,
        q: OutputAddr,
        new: &Insn,
        pending: &Pending,
    ) -> Result<Option<Pair>, Box<Failure>> {
        let (old_next, new_next) = (p + u64::from(old.len), q + u64::from(new.len));
        // An exception takes the registers along that calls keep.
        self.carry = pages::kept_by_calls::<A>(pending);
        let returns = matches!(old.flow, Flow::Call(_) | Flow::IndirectCall | Flow::Trap);
        if self.lsdas {
            if matches!(old.flow, Flow::Call(_) | Flow::IndirectCall) {
                self.check_call_site(p, old_next - 1, q, new_next - 1)?;
            } else {
                self.check_other_site(p, q)?;
            }
        }
        self.carry.clear();
        if matches!(old.flow, Flow::Call(_) | Flow::IndirectCall) {
            self.fresh = Some(Fresh {
                at: new_next,
                entered: false,
            });
        }
        if self.cx.falls_back(old) {
            self.out.falls_back.push(p);
        }
        let next = match old.flow {
            Flow::Stop | Flow::IndirectJump { .. } => None,
            Flow::Trap if self.ends_with_trap(p, old_next, new_next) => {
                self.out.assumed_no_return += 1;
                None
            }
            _ if returns && self.ends_part(p, old_next) => {
                let goes_on = if self.f.in_old(old_next) {
                    self.goes_on_alike(new_next, old_next)?
                } else {
                    self.goes_on_at(new_next, old_next)
                };
                self.out.assumed_no_return += u64::from(!goes_on);
                // Both may be the last instruction, in front of the same function.
                (goes_on && self.f.in_new(new_next)).then_some((old_next, new_next))
            }
            _ => Some((old_next, new_next)),
        };
        if returns && !self.f.tables.is_empty() {
            // Of what stands for a call of a stub the call is the last instruction.
            let call = if A::STEP > 1 {
                new_next - A::STEP as u64
            } else {
                q
            };
            self.own.comes_back(call, next.is_some());
        }
        Ok(next)
    }

    /// Whether the old instruction at `p`, after which is `next`, is the last of the function, or of a part
    /// of it that has an unwind entry of its own.
    fn ends_part(&self, p: InputAddr, next: InputAddr) -> bool {
        let end = || match self.s.old_rows.at(p.get()) {
            Some(row) => Some(row.function_end),
            None => self.cx.old_unwind.find(p.get()).map(|f| f.end),
        };
        !self.f.in_old(next) || end() == Some(next.get())
    }

    /// Whether after a trap at `p` there are instructions alone that do nothing, up to the end of the function or part,
    /// and in new code the same ones: who handles the trap may look at them (HWASan says there which access it was).
    fn ends_with_trap(&self, p: InputAddr, next: InputAddr, new_next: OutputAddr) -> bool {
        let mut end = next;
        while self.f.in_old(end)
            && let Some(insn) = self.old_bytes(end).and_then(|b| A::decode(b, end.get()))
            && insn.flow == Flow::Nothing
        {
            end += u64::from(insn.len);
        }
        let Some(len) = end.get().checked_sub(next.get()).filter(|len| *len > 0) else {
            return false;
        };
        let old = self.cx.input.bytes(next.get(), len);
        let new = self.new_bytes(new_next);
        let same = new.and_then(|(new, _)| new.get(..len as usize));
        self.ends_part(p, end) && old.is_some() && old == same
    }

    /// Whether new code at `q` begins as the function's old code at `p`, where another part of it begins.
    /// Otherwise the call in front of `p` does not return, or the code is wrong: as at a function's end, that
    /// is assumed.
    fn goes_on_alike(&mut self, q: OutputAddr, p: InputAddr) -> Result<bool, Box<Failure>> {
        let mut chain = SmallVec::new();
        let State::At(mut at, mut old) = self.state(p, &mut chain)? else {
            return Ok(false);
        };
        let mut old_bytes = self.old_bytes(at).unwrap_or(b"");
        let mut here = q;
        for _ in 0..16 {
            let Some((bytes, _)) = self.new_bytes(here) else {
                return Ok(chain.contains(&here.of_old_image()));
            };
            let Some(new) = A::decode(bytes, here.get()) else {
                return Ok(false);
            };
            match new.flow {
                // By its bytes it may be the same code, or lead there, and by its unwind row it is another part.
                Flow::Nothing | Flow::Jump(_) if !self.has_row_of(&chain, here) => {
                    return Ok(false);
                }
                Flow::Nothing => here += u64::from(new.len),
                Flow::Jump(target) => here = OutputAddr::new(target),
                // A counter, which no part of the old code has.
                Flow::Next
                    if new.field.is_some_and(|f| self.cx.is_counter(f.target))
                        || A::own_counter(bytes).is_some()
                            && A::own_counter(old_bytes).is_none() =>
                {
                    here += u64::from(new.len);
                }
                // Every entry and every place where an exception is caught begins with one.
                Flow::Next
                    if old.landing_pad
                        && new.landing_pad
                        && same_insn(bytes, old_bytes, usize::from(old.len)) =>
                {
                    (at, here) = (at + u64::from(old.len), here + u64::from(new.len));
                    old_bytes = self.old_bytes(at).unwrap_or(b"");
                    let Some(next) = A::decode(old_bytes, at.get()) else {
                        return Ok(true);
                    };
                    old = next;
                }
                Flow::Next if old.field.is_some() != new.field.is_some() => return Ok(false),
                _ if !self.has_row_of(&[at], here) => return Ok(false),
                _ if old.field.is_none() && new.field.is_none() => {
                    return Ok(same_insn(bytes, old_bytes, usize::from(old.len)));
                }
                _ => {
                    return Ok(
                        std::mem::discriminant(&old.flow) == std::mem::discriminant(&new.flow)
                    );
                }
            }
        }
        Ok(false)
    }

    /// Whether new code at `q` does nothing but go to the old address `x` outside the function.
    fn goes_on_at(&self, q: OutputAddr, x: InputAddr) -> bool {
        let mut at = q;
        for _ in 0..16 {
            let Some((bytes, _)) = self.new_bytes(at) else {
                return at == x.kept()
                    || self
                        .cx
                        .entry_of(x)
                        .and_then(|g| self.cx.function(g))
                        .is_some_and(|g| g.new_entry() == at);
            };
            match A::decode(bytes, at.get()).map(|i| (i.flow, i.len)) {
                Some((Flow::Nothing, len)) => at += u64::from(len),
                Some((Flow::Jump(target), _)) => at = OutputAddr::new(target),
                _ => return false,
            }
        }
        false
    }

    /// Lists what was not reached, and packs the pairs.
    fn finish(&mut self) {
        let marks = &self.s.marks;
        // What another function's new code has beyond this one is said of that function.
        let own = if self.f.folded.is_some() {
            &[]
        } else {
            &self.new[..]
        };
        for &(range, bytes, slot) in own {
            let end = slot + bytes.len();
            let mut start = marks.free_from(slot, end);
            while start < end {
                let to = marks.taken_from(start, end);
                if self.cx.has_debug_info
                    && let (Ok(from), Ok(to)) = (u32::try_from(start), u32::try_from(to))
                {
                    self.out.free.push(from..to);
                }
                let (from, len) = (start - slot, to - start);
                if !A::is_padding(bytes.get(from..from + len).unwrap_or(b"")) {
                    self.out
                        .unreached
                        .push((range.start + from as u64, len as u64));
                }
                start = marks.free_from(to, end);
            }
        }
        // Of all functions they are in memory at once, so they have no room to grow.
        let starts = marks.beginnings().into();
        let runs = &mut self.s.runs;
        marks.runs(runs);
        let runs = runs.as_slice().into();
        self.out.pairs = Pairs { runs, starts };
        // Of nearly all functions it is a few bytes.
        self.out.touches_own = std::mem::take(&mut self.footprint.own);
        let more = self.footprint != Footprint::default();
        self.out.footprint = more.then(|| Box::new(std::mem::take(&mut self.footprint)));
        self.out.silent.sort_unstable();
        self.out.entrances.sort_unstable();
        self.out.entrances.dedup();
        self.out.addresses.sort_unstable();
        self.out.addresses.dedup();
        self.out.shrink();
        assert!(self.cx.function(self.id).is_some());
    }
}

impl Pairs {
    /// All pairs: the place in the new ranges, and the old address.
    pub(crate) fn each(&self, base: u64) -> impl Iterator<Item = (u32, u64)> {
        let mut runs = self.runs.iter().peekable();
        let mut run = (0u32, 0u32);
        let words = self.starts.iter().zip(0u32..);
        let slots = words.flat_map(|(word, at)| {
            let bits = (0..64).filter(move |bit| word >> bit & 1 == 1);
            bits.map(move |bit| at * 64 + bit)
        });
        slots.map(move |slot| {
            while let Some(next) = runs.next_if(|r| r.0 <= slot) {
                run = *next;
            }
            let id = u64::from(run.1) + u64::from(slot - run.0);
            (slot, base.wrapping_add(id).wrapping_sub(1))
        })
    }

    /// Whether the walk found exactly this pair.
    pub(crate) fn holds(&self, f: &Moved, base: u64, old: InputAddr, new: OutputAddr) -> bool {
        let mut slot = 0u64;
        for r in &f.new {
            if r.contains(new) {
                return self.holds_at(slot + (new - r.start), base, old);
            }
            slot += r.len();
        }
        false
    }

    fn holds_at(&self, slot: u64, base: u64, old: InputAddr) -> bool {
        let Some(word) = self.starts.get((slot / 64) as usize) else {
            return false;
        };
        if word >> (slot % 64) & 1 == 0 {
            return false;
        }
        let next = self.runs.partition_point(|r| u64::from(r.0) <= slot);
        let run = next.checked_sub(1).and_then(|i| self.runs.get(i));
        run.is_some_and(|&(start, id)| {
            base.wrapping_add(u64::from(id) - 1)
                .wrapping_add(slot - u64::from(start))
                == old.get()
        })
    }
}
