//! The lock step: old and new code of one function, walked together.
//!
//! The claim to be proved is that the new code simulates the old one: whenever the old program stands before the
//! instruction at `p` and the new one at `q`, and (p, q) is a pair, both do the same and stand at a pair again. Registers
//! and memory hold the same values, but for code addresses, which are related as the pairs say.
//!
//! Steps that do nothing but move the program counter are *silent*: padding and direct jumps. The old side is followed
//! over silent steps to its *state*: an instruction that does something, the way out of the function, or an endless
//! loop. The new side is followed over its silent steps and must arrive at the same state. So blocks may be in
//! any order and jumps come and go without any list of allowed changes.
//!
//! | old state | new side arrives at | required |
//! |---|---|---|
//! | plain instruction | the same bytes | continue behind both |
//! | instruction with an address field | the same bytes around the field | addresses related, continue |
//! | conditional branch | the same condition, or its opposite with the ways exchanged | both ways related |
//! | way out to X | way out to X, or to the new entry or label of X's function | |
//! | any state | way out to the old address of the state itself | the old code takes over; it is still there |
//! | endless silent loop | endless silent loop | |
//!
//! Invariants: a byte of new code belongs to one instruction at most, and an instruction of new code to one old state
//! ([`Walk::map`]); every new address reached lies in the new ranges claimed for the function. Since a return goes to the instruction
//! behind a call, and that pair is walked too, returns and indirect jumps need nothing but equal bytes: the values they
//! jump to are related.
//!
//! At each pair the unwind rows are compared, and at each call what the personality routine would decide.
//!
//! Two things take more than one instruction to judge, both on machines with instructions of fixed length:
//!
//! * An address made in two steps, page and offset ([`pages`]): while a register holds another page than in the old program, nothing may
//!   read it but instructions that make a related address of it.
//! * A jump through a table of numbers ([`tables`]): where table, base or width changed, the jump is read on both sides as a whole
//!   and every entry is compared by where it leads.

mod counting;
mod pages;
mod tables;

use crate::arch::{Arch, Dispatch, Field, FieldKind, Flow, Insn};
use crate::bytes::same_insn;
use crate::claim::{Moved, Range};
use crate::context::{Context, FuncId};
use crate::liveness::Recent;
use crate::lsda::{Lsda, Outcome};
use crate::machine::{Footprint, Routine};
use crate::report::{Check, Failure};
use crate::unwind::{Interner, RowMap, Runner};
use counting::Fresh;
use pages::{Page, Pending};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::{SmallVec, smallvec};
use std::cell::Cell;

/// Mark of a byte inside an instruction.
const INSIDE: u32 = u32::MAX;

/// Pairs of a walked function, compact: for questions from other functions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pairs {
    /// Where the distance between old and new changes: (offset in the new ranges, old id).
    runs: Vec<(u32, u32)>,
    /// One bit per byte of new code: an instruction starts here and was reached.
    starts: Vec<u64>,
}

/// What came out of walking one function.
#[derive(Debug, Default)]
pub(crate) struct Walked {
    pub failure: Option<Failure>,
    pub pairs: Pairs,
    /// Pairs that other functions must have.
    pub cross: Vec<(u64, u64)>,
    pub addresses: Vec<(FuncId, bool)>,
    pub entrances: Vec<FuncId>,
    pub instructions: u64,
    pub assumed_no_return: u64,
    pub unreached: Vec<(u64, u64)>,
    /// What counting touches.
    pub footprint: Footprint,
}

/// Where the old side stands after its silent steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// At an instruction that does something.
    At(u64, Insn),
    /// Outside the function.
    Exit(u64),
    /// In an endless silent loop; its lowest address.
    Spin(u64),
}

impl State {
    fn addr(&self) -> u64 {
        match *self {
            State::At(a, _) | State::Exit(a) | State::Spin(a) => a,
        }
    }
}

/// Buffers that are used again for the next function.
#[derive(Default)]
pub(crate) struct Scratch<'a> {
    map: Vec<u32>,
    work: Vec<(u64, u64, Option<Box<[Page]>>)>,
    interner: Interner,
    runner: Runner,
    old_rows: RowMap,
    new_rows: RowMap,
    old_lsdas: Vec<(u64, u64, Option<Lsda<'a>>)>,
    new_lsdas: Vec<(u64, u64, Option<Lsda<'a>>)>,
    chains: Vec<[u64; 4]>,
    /// Routines that recorders call, and what they were found to do.
    routines: FxHashMap<u64, Option<Routine>>,
    /// Old instructions that were read lately.
    recent: Recent,
}

/// One function being walked.
struct Walk<'a, 's, A: Arch> {
    cx: &'a Context<'a>,
    id: FuncId,
    f: &'a Moved,
    old: SmallVec<[(Range, &'a [u8]); 2]>,
    /// Range, its bytes, and the offset of its first byte in `map`.
    new: SmallVec<[(Range, &'a [u8], usize); 2]>,
    s: &'s mut Scratch<'a>,
    out: Walked,
    lsdas: bool,
    base: u64,
    /// Jumps through tables of the old code, and which of them an old instruction takes part in.
    dispatches: Vec<Dispatch>,
    parts: FxHashMap<u64, usize>,
    /// Parts that differ, and what stands for them in the new code; they wait for their jump.
    deferred: FxHashMap<u64, u64>,
    /// Table jumps that were reached, old and new, by the old one's number.
    jumps: Vec<(usize, u64, u64)>,
    /// Those that were compared, and with what.
    compared: FxHashMap<u64, (u64, u64)>,
    /// New addresses that something jumps to; kept only where addresses take several instructions.
    joined: FxHashSet<u64>,
    /// Instructions of new code that must not be jumped to.
    closed: Vec<u64>,
    /// Registers that hold other pages than in the old program where new code is reached, if any do.
    states: FxHashMap<u64, Pending>,
    /// What is true of registers where the next pairs come from.
    carry: Pending,
    /// Registers that hold other pages at some indirect jump.
    at_indirect_jumps: u32,
    /// Old addresses that are reached in ways that are not followed, by pointers and tables.
    indirect: Vec<u64>,
    /// Those in this function, whatever the instruction set.
    targets: Vec<u64>,
    /// There are exclusive stores in it.
    exclusive: bool,
    /// Where the stack below the stack pointer holds nothing.
    fresh: Option<Fresh>,
    /// Instructions that may still be looked at where a question of liveness takes long.
    reserve: Cell<usize>,
    /// The new instruction that was read last.
    last: Cell<Option<(u64, Insn)>>,
    arch: std::marker::PhantomData<A>,
}

/// Walks a function from its entry, its labels and the other roots.
pub(crate) fn walk<'a, A: Arch>(
    cx: &'a Context<'a>,
    id: FuncId,
    roots: &[(u64, u64)],
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
        lsdas: false,
        base: cx.input.extent().0,
        dispatches: Vec::new(),
        parts: FxHashMap::default(),
        deferred: FxHashMap::default(),
        jumps: Vec::new(),
        compared: FxHashMap::default(),
        joined: FxHashSet::default(),
        closed: Vec::new(),
        states: FxHashMap::default(),
        carry: SmallVec::new(),
        at_indirect_jumps: 0,
        indirect: Vec::new(),
        targets: Vec::new(),
        exclusive: false,
        fresh: None,
        reserve: Cell::new(crate::liveness::RESERVE),
        last: Cell::new(None),
        arch: std::marker::PhantomData,
    };
    if let Err(failure) = walk.run(roots) {
        walk.out.failure = Some(*failure);
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
    fn run(&mut self, roots: &[(u64, u64)]) -> Step {
        let cx = self.cx;
        let mut total = 0usize;
        self.s.map.clear();
        self.s.work.clear();
        for &r in &self.f.old {
            let Some(bytes) = cx.input.bytes(r.start, r.len()) else {
                return fail(Failure::new(
                    Check::Claim,
                    format!(
                        "the old range {:#x}..{:#x} is not in the input",
                        r.start, r.end
                    ),
                ));
            };
            self.old.push((r, bytes));
        }
        for &r in &self.f.new {
            let Some(bytes) = cx.output.bytes(r.start, r.len()) else {
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
        self.s.map.resize(total, 0);
        self.prepare_unwind()?;
        self.find_dispatches();
        let entry = (self.f.old_entry, self.f.new_entry());
        self.relate_indirect(entry.0, entry.1)?;
        self.joined.clear();
        if cx.counts.is_some() {
            let labels = self.f.labels.iter().chain(roots).map(|l| l.0);
            self.targets
                .extend(labels.filter(|old| self.f.in_old(*old) && *old != entry.0));
            self.targets.sort_unstable();
            self.targets.dedup();
            self.exclusive = A::STEP > 1
                && self
                    .old
                    .iter()
                    .any(|(_, bytes)| bytes.chunks_exact(A::STEP).any(A::is_exclusive_store));
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
        self.settled()
    }

    fn prepare_unwind(&mut self) -> Step {
        let sentence = |what: String| Box::new(Failure::new(Check::Unwind, what));
        self.s.interner.clear();
        self.s.old_lsdas.clear();
        self.s.new_lsdas.clear();
        self.s.chains.clear();
        for (which, table) in [(false, &self.cx.old_unwind), (true, &self.cx.new_unwind)] {
            let ranges = if which { &self.f.new } else { &self.f.old };
            let map = if which {
                &mut self.s.new_rows
            } else {
                &mut self.s.old_rows
            };
            let spans = map.clear();
            for r in ranges {
                for fde in table.overlapping(r.start, r.end) {
                    self.s
                        .runner
                        .rows::<A>(table, fde, &mut self.s.interner, spans)
                        .map_err(sentence)?;
                }
            }
            map.sort();
            self.lsdas |= map.has_lsda();
        }
        Ok(())
    }

    /// Bytes of old code from an address to the end of its range.
    #[inline]
    fn old_bytes(&self, p: u64) -> Option<&'a [u8]> {
        let (r, bytes) = self.old.iter().find(|(r, _)| r.contains(p))?;
        bytes.get((p - r.start) as usize..)
    }

    /// Bytes of new code from an address to the end of its range, and the place of the first in the map.
    #[inline]
    fn new_bytes(&self, q: u64) -> Option<(&'a [u8], usize)> {
        let (r, bytes, slot) = self.new.iter().find(|(r, _, _)| r.contains(q))?;
        let skip = (q - r.start) as usize;
        Some((bytes.get(skip..)?, slot + skip))
    }

    /// Number of an old address in the map.
    fn id(&self, old: u64) -> Option<u32> {
        let id = old.checked_sub(self.base)?.checked_add(1)?;
        u32::try_from(id).ok().filter(|&i| i != INSIDE)
    }

    /// Follows the old side's silent steps from `p`; `chain` receives every address on the way, `p` first.
    fn state(&mut self, p: u64, chain: &mut SmallVec<[u64; 4]>) -> Result<State, Box<Failure>> {
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
            let Some(bytes) = self.old_bytes(at) else {
                return Ok(State::Exit(at));
            };
            chain.push(at);
            let Some(insn) = self.s.recent.insn::<A>(bytes, at) else {
                let shown = bytes.get(..bytes.len().min(15)).unwrap_or(b"");
                return fail(
                    Failure::new(
                        Check::Code,
                        format!("the old instruction at {at:#x} is not understood"),
                    )
                    .at(at, at)
                    .bytes(shown, b""),
                );
            };
            match insn.flow {
                Flow::Nothing => at = at.saturating_add(u64::from(insn.len)),
                Flow::Jump(target) => at = target,
                _ => return Ok(State::At(at, insn)),
            }
        }
    }

    /// The new instruction at `at`, whose bytes these are.
    fn new_insn(&self, bytes: &[u8], at: u64) -> Option<Insn> {
        if let Some((a, insn)) = self.last.get()
            && a == at
        {
            return Some(insn);
        }
        let insn = A::decode(bytes, at)?;
        self.last.set(Some((at, insn)));
        Some(insn)
    }

    /// Marks an instruction of new code as paired. False if it was already (with the same old state).
    fn mark(&mut self, q: u64, slot: usize, len: usize, old: u64) -> Result<bool, Box<Failure>> {
        let Some(id) = self.id(old) else {
            return fail(
                Failure::new(
                    Check::Code,
                    format!("the old address {old:#x} is outside the file"),
                )
                .at(old, q),
            );
        };
        let base = self.base;
        let Some(slots) = self.s.map.get_mut(slot..slot + len) else {
            return fail(
                Failure::new(
                    Check::Code,
                    format!("the new instruction at {q:#x} leaves its range"),
                )
                .at(old, q),
            );
        };
        match slots.first() {
            Some(0) => {}
            Some(&have) if have == id => return Ok(false),
            Some(&INSIDE) => {
                return fail(
                    Failure::new(
                        Check::Code,
                        format!("new code is entered at {q:#x}, in the middle of an instruction"),
                    )
                    .at(old, q),
                );
            }
            have => {
                let have = have.map_or(0, |h| base + u64::from(*h) - 1);
                let text = format!(
                    "the new instruction at {q:#x} would stand for two old ones, {have:#x} and {old:#x}"
                );
                return fail(Failure::new(Check::Code, text).at(old, q).values(have, old));
            }
        }
        if slots.iter().any(|&s| s != 0) {
            return fail(
                Failure::new(
                    Check::Code,
                    format!("the new instruction at {q:#x} overlaps another one"),
                )
                .at(old, q),
            );
        }
        slots.fill(INSIDE);
        if let Some(first) = slots.first_mut() {
            *first = id;
        }
        self.out.instructions += 1;
        Ok(true)
    }

    /// Walks on from a pair until both sides end or come to known pairs.
    fn follow(&mut self, mut p: u64, mut q: u64, mut pending: Pending) -> Step {
        let mut chain: SmallVec<[u64; 4]> = SmallVec::new();
        loop {
            let Some((new, slot)) = self.new_bytes(q) else {
                return fail(
                    Failure::new(
                        Check::Code,
                        format!("new code runs out of its ranges at {q:#x}"),
                    )
                    .at(p, q),
                );
            };
            chain.clear();
            let state = self.state(p, &mut chain)?;
            // Most instructions are the same bytes in both places, without an address in them.
            if let State::At(at, insn) = state
                && insn.field.is_none()
                && insn.flow == Flow::Next
                && pending.is_empty()
                && !(self.cx.counts.is_some() && A::is_ambiguous(new))
                && let len = usize::from(insn.len)
                && let Some(old) = self.old_bytes(at)
                && same_insn(new, old, len)
            {
                if !self.mark(q, slot, len, at)? {
                    return self.meet(at, q, &pending);
                }
                self.check_rows(&[at], q, len as u64)?;
                if self.lsdas && self.cx.options.non_call_exceptions {
                    self.check_other_site(at, q)?;
                }
                p = at + len as u64;
                q += len as u64;
                continue;
            }
            let Some(end) = self.silent(q, &state, &chain, &pending)? else {
                return Ok(());
            };
            let next = match (state, end) {
                (State::Spin(_), State::Spin(_)) => None,
                (State::Exit(x), State::Exit(y)) => {
                    self.relate_outside(x, y, q)?;
                    None
                }
                (_, State::Exit(y)) if chain.contains(&y) => {
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
                    let show = |s: State, new: bool| match s {
                        State::At(a, i) => {
                            let bytes = if new {
                                self.new_bytes(a).map(|b| b.0)
                            } else {
                                self.old_bytes(a)
                            };
                            crate::report::hex(
                                bytes
                                    .and_then(|b| b.get(..usize::from(i.len)))
                                    .unwrap_or(b""),
                            )
                        }
                        State::Exit(x) => format!("to {x:#x}"),
                        State::Spin(x) => format!("endless loop at {x:#x}"),
                    };
                    let mut failure =
                        Failure::new(Check::Code, "old and new code do different things")
                            .at(state.addr(), end.addr());
                    (failure.old_value, failure.new_value) = (show(state, false), show(end, true));
                    return fail(failure);
                }
            };
            match next {
                Some((old, new)) => (p, q) = (old, new),
                None => return Ok(()),
            }
        }
    }

    /// Follows the new side's silent steps from `q`, marking them as standing for `state`. `None`: arrived at new code that
    /// already stands for it.
    fn silent(
        &mut self,
        q: u64,
        state: &State,
        chain: &[u64],
        pending: &Pending,
    ) -> Result<Option<State>, Box<Failure>> {
        let mut at = q;
        let mut here: SmallVec<[u64; 4]> = smallvec![];
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
            if let Some(end) = self.inserted(state, chain, at) {
                if !self.mark(at, slot, (end - at) as usize, key)? {
                    self.meet(state.addr(), at, pending)?;
                    return Ok(None);
                }
                self.arrive(at, pending);
                self.check_rows(chain, at, end - at)?;
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
                Flow::Jump(target) => target,
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
                self.joined.insert(target);
            }
            if !self.mark(at, slot, usize::from(insn.len), key)? {
                self.meet(state.addr(), at, pending)?;
                return Ok(None);
            }
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

    /// Compares two instructions that do something. Returns the pair behind them, if control can come there.
    fn same(
        &mut self,
        p: u64,
        old: &Insn,
        q: u64,
        new: &Insn,
        pending: &mut Pending,
    ) -> Result<Option<(u64, u64)>, Box<Failure>> {
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
            self.carry.clone_from(pending);
            if new_cond == cond {
                self.relate(old_target, new_target)?;
                self.carry.clear();
                return Ok(Some((old_next, new_next)));
            }
            if Some(new_cond) == inverse {
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
        let field = match field {
            None if old_bytes != new_bytes && self.cx.fixed() => {
                match (A::absolute_field(old_bytes), A::absolute_field(new_bytes)) {
                    (Some(a), Some(b)) if (a.at, a.len) == (b.at, b.len) => Some((a, b)),
                    _ => return different("the instruction changed"),
                }
            }
            None if old_bytes != new_bytes && old.field.is_none() => {
                return different("the instruction changed");
            }
            field => field,
        };
        if let Some((a, b)) = field {
            if !A::equal_around(old_bytes, new_bytes, &a) {
                return different("the instruction changed");
            }
            if a.kind == FieldKind::Page {
                self.relate_page(p, &a, q, &b, pending)?;
            } else {
                self.relate_field(p, old_bytes, &a, q, &b)?;
            }
        }

        if let Flow::Call(target) = old.flow
            && target == old_next
            && self.f.in_old(target)
        {
            return different("the code takes its own address by a call");
        }
        self.behind(p, old, q, new, pending)
    }

    /// What is behind two instructions that do the same: the pair, if control can come there.
    fn behind(
        &mut self,
        p: u64,
        old: &Insn,
        q: u64,
        new: &Insn,
        pending: &Pending,
    ) -> Result<Option<(u64, u64)>, Box<Failure>> {
        let (old_next, new_next) = (p + u64::from(old.len), q + u64::from(new.len));
        // An exception takes the registers along that calls keep.
        self.carry = pages::kept_by_calls(pending);
        let returns = matches!(old.flow, Flow::Call(_) | Flow::IndirectCall | Flow::Trap);
        if self.lsdas {
            if matches!(old.flow, Flow::Call(_) | Flow::IndirectCall) {
                self.check_call_site(p, old_next - 1, q, new_next - 1)?;
            } else if self.cx.options.non_call_exceptions {
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
        match old.flow {
            Flow::Stop | Flow::IndirectJump { .. } => Ok(None),
            _ if returns && !self.f.in_old(old_next) => {
                let goes_on = self.goes_on_at(new_next, old_next);
                self.out.assumed_no_return += u64::from(!goes_on);
                // Both may be the last instruction, in front of the same function.
                Ok((goes_on && self.f.in_new(new_next)).then_some((old_next, new_next)))
            }
            _ => Ok(Some((old_next, new_next))),
        }
    }

    /// Whether new code at `q` does nothing but go to the old address `x` outside the function.
    fn goes_on_at(&self, q: u64, x: u64) -> bool {
        let mut at = q;
        for _ in 0..16 {
            let Some((bytes, _)) = self.new_bytes(at) else {
                return at == x
                    || self
                        .cx
                        .entry_of(x)
                        .and_then(|g| self.cx.function(g))
                        .is_some_and(|g| g.new_entry() == at);
            };
            match A::decode(bytes, at).map(|i| (i.flow, i.len)) {
                Some((Flow::Nothing, len)) => at += u64::from(len),
                Some((Flow::Jump(target), _)) => at = target,
                _ => return false,
            }
        }
        false
    }

    /// Two instructions are equal but for these fields: are the addresses related as they must be?
    fn relate_field(&mut self, p: u64, bytes: &[u8], a: &Field, q: u64, b: &Field) -> Step {
        let (old, new) = (a.target, b.target);
        let wrong = |what: &str| fail(Failure::new(Check::Code, what).at(p, q).values(old, new));
        match a.kind {
            FieldKind::Branch => self.relate(old, new),
            FieldKind::Page => wrong("the instruction forms another page"),
            FieldKind::Accesses => {
                if old != new && !self.same_literal(a, b) {
                    return wrong("the instruction accesses another address");
                }
                if let Some(id) = self.cx.overwritten(old) {
                    let at = self.cx.function(id).map_or(0, |f| f.old_entry);
                    return wrong(&format!(
                        "the instruction reads code at {at:#x} that was overwritten by a jump"
                    ));
                }
                if self.cx.is_abandoned(old) {
                    return wrong("the instruction accesses a section that was moved");
                }
                Ok(())
            }
            FieldKind::Forms | FieldKind::Absolute => {
                if self.cx.is_abandoned(old) && a.kind == FieldKind::Forms {
                    return wrong("the instruction forms the address of a section that was moved");
                }
                if a.kind == FieldKind::Forms && self.cx.is_registered(old) {
                    return match self.cx.registers_anew(old, new) {
                        true => Ok(()),
                        false => wrong(
                            "the instruction forms the address of an unwind table that was replaced",
                        ),
                    };
                }
                let entry = self.cx.entry_of(old);
                if old == new {
                    match entry {
                        Some(id) if a.kind == FieldKind::Forms => {
                            self.out.addresses.push((id, false))
                        }
                        Some(_) => {}
                        None => self.enter_old(old),
                    }
                    return Ok(());
                }
                if let Some(id) = entry
                    && self.cx.pair_owner(old, new) == Some(id)
                {
                    self.out.addresses.push((id, true));
                    return self.relate_indirect(old, new);
                }
                if self.cx.pair_owner(old, new).is_none() {
                    return wrong("the instruction forms another address");
                }
                let rest = self
                    .old_bytes(p)
                    .and_then(|b| b.get(bytes.len()..))
                    .unwrap_or(b"");
                if A::calculates_with_formed(bytes, rest) {
                    return wrong("a label's address that takes part in a calculation was changed");
                }
                self.relate_indirect(old, new)
            }
        }
    }

    /// Old code at `addr` may run from now on.
    fn enter_old(&mut self, addr: u64) {
        if let Some(id) = self.cx.inside_of(addr) {
            self.out.entrances.push(id);
        }
    }

    /// Control that went to `old` goes to `new` now.
    fn relate(&mut self, old: u64, new: u64) -> Step {
        if self.f.in_new(new) {
            if A::STEP > 1 || self.cx.counts.is_some() {
                self.joined.insert(new);
            }
            let pages = (!self.carry.is_empty()).then(|| self.carry.as_slice().into());
            self.s.work.push((old, new, pages));
            return Ok(());
        }
        if old == new {
            self.enter_old(old);
            return Ok(());
        }
        if self.f.in_old(old) {
            // A jump in old code may have been skipped.
            let mut chain = SmallVec::new();
            let state = self.state(old, &mut chain)?;
            if chain.contains(&new) {
                self.enter_old(new);
                return Ok(());
            }
            if let State::Exit(x) = state {
                return self.relate_outside(x, new, new);
            }
        }
        self.relate_outside(old, new, new)
    }

    /// Control that left the function to `old` leaves it to `new` now.
    fn relate_outside(&mut self, old: u64, new: u64, q: u64) -> Step {
        if old == new {
            self.enter_old(old);
            return Ok(());
        }
        match self.cx.pair_owner(old, new) {
            Some(id) => {
                if self
                    .cx
                    .function(id)
                    .is_none_or(|g| (g.old_entry, g.new_entry()) != (old, new))
                {
                    self.out.cross.push((old, new));
                }
                Ok(())
            }
            None => match self.through_veneers::<A>(old, new) {
                Some((old, new)) => self.relate_outside(old, new, q),
                None => fail(
                    Failure::new(Check::Code, "control goes to another place")
                        .at(old, q)
                        .values(old, new),
                ),
            },
        }
    }

    /// Old and new targets with the veneers before them taken away; `None` if there are none.
    fn through_veneers<B: Arch>(&self, old: u64, new: u64) -> Option<(u64, u64)> {
        // A function that was moved is entered where it is, not taken for a veneer.
        let from = if self.cx.old.owner(old).is_some() {
            old
        } else {
            self.cx.behind_veneer::<B>(self.cx.input, old)
        };
        let to = if self.cx.new.owner(new).is_some() {
            new
        } else {
            self.cx.behind_veneer::<B>(self.cx.output, new)
        };
        ((from, to) != (old, new)).then_some((from, to))
    }

    /// The same for places that are jumped to indirectly: what must stand first there still does.
    fn relate_indirect(&mut self, old: u64, new: u64) -> Step {
        if A::STEP > 1 && self.f.in_old(old) {
            self.indirect.push(old);
        }
        self.relate_pad(old, new)
    }

    /// The same for a landing pad of exceptions, where it is known who comes.
    fn relate_pad(&mut self, old: u64, new: u64) -> Step {
        let pad = |bytes: Option<&[u8]>, at| {
            bytes
                .and_then(|b| A::decode(b, at))
                .is_some_and(|i| i.landing_pad)
        };
        if self.cx.guarded
            && self.f.in_new(new)
            && pad(self.old_bytes(old), old)
            && !pad(self.new_bytes(new).map(|b| b.0), new)
        {
            return fail(
                Failure::new(
                    Check::Code,
                    "the landing pad of indirect branches is missing",
                )
                .at(old, new),
            );
        }
        self.relate(old, new)
    }

    /// The new instruction at `q` must have the unwind row of one of the old addresses.
    #[inline]
    fn check_rows(&mut self, old: &[u64], q: u64, len: u64) -> Step {
        let (row, covers) = self.s.new_rows.row(q, len);
        if covers && old.iter().any(|&p| self.s.old_rows.row(p, 1).0 == row) {
            return Ok(());
        }
        // A state outside the function has no row of its own that this function's tables could tell.
        if old.is_empty() && covers {
            return Ok(());
        }
        let p = old.first().copied().unwrap_or(0);
        let mut failure = Failure::new(Check::Unwind, "the unwind row differs").at(p, q);
        if !covers {
            failure.reason = "the unwind row changes in the middle of an instruction".into();
        }
        failure.old_value = self.s.interner.describe(self.s.old_rows.row(p, 1).0);
        failure.new_value = self.s.interner.describe(row);
        fail(failure)
    }

    /// The same for an instruction that is not a call. One that no call site covers cannot throw, says the compiler that was asked for
    /// exceptions from such instructions; then nothing depends on what covers it.
    fn check_other_site(&mut self, p: u64, q: u64) -> Step {
        match self.outcome(false, p) {
            Some((Outcome::Terminate, _)) => Ok(()),
            _ => self.check_call_site(p, p, q, q),
        }
    }

    /// What the personality routine decides for the call at `p`, seen at `p_ip`, it must decide for the one at `q`.
    fn check_call_site(&mut self, p: u64, p_ip: u64, q: u64, q_ip: u64) -> Step {
        let old = self.outcome(false, p_ip);
        let new = self.outcome(true, q_ip);
        let (Some((old, old_lsda)), Some((new, new_lsda))) = (old, new) else {
            return fail(
                Failure::new(
                    Check::LandingPads,
                    "the language-specific data is not understood",
                )
                .at(p, q),
            );
        };
        let differ = |what: &str| {
            let mut failure = Failure::new(Check::LandingPads, what).at(p, q);
            (failure.old_value, failure.new_value) = (format!("{old:x?}"), format!("{new:x?}"));
            fail(failure)
        };
        match (old, new) {
            (Outcome::Continue, Outcome::Continue) | (Outcome::Terminate, Outcome::Terminate) => {
                Ok(())
            }
            (
                Outcome::Pad {
                    pad: old_pad,
                    action: a,
                },
                Outcome::Pad {
                    pad: new_pad,
                    action: b,
                },
            ) => {
                let pushed = |rows: &RowMap, ip| rows.at(ip).map_or(0, |s| s.args_size);
                let (x, y) = (
                    pushed(&self.s.old_rows, p_ip),
                    pushed(&self.s.new_rows, q_ip),
                );
                if x != y {
                    let what = "the size of pushed arguments differs, which the run-time takes off before a landing pad";
                    let mut failure = Failure::new(Check::LandingPads, what).at(p, q);
                    (failure.old_value, failure.new_value) =
                        (format!("{x} bytes"), format!("{y} bytes"));
                    return fail(failure);
                }
                let key = [old_lsda as u64, a, new_lsda as u64, b];
                if !self.s.chains.contains(&key) {
                    let chain = |list: &[(u64, u64, Option<Lsda<'a>>)], index: usize, action| {
                        list.get(index)?.2.as_ref()?.chain(action)
                    };
                    let (x, y) = (
                        chain(&self.s.old_lsdas, old_lsda, a),
                        chain(&self.s.new_lsdas, new_lsda, b),
                    );
                    if x.is_none() || x != y {
                        let mut failure =
                            Failure::new(Check::LandingPads, "the actions of a landing pad differ")
                                .at(p, q);
                        (failure.old_value, failure.new_value) =
                            (format!("{x:x?}"), format!("{y:x?}"));
                        return fail(failure);
                    }
                    self.s.chains.push(key);
                }
                if self.f.in_new(new_pad)
                    || old_pad == new_pad
                    || self.cx.pair_owner(old_pad, new_pad).is_some()
                {
                    self.relate_pad(old_pad, new_pad)
                } else {
                    differ("the landing pad is at another place")
                }
            }
            _ => differ("an exception at this call ends elsewhere"),
        }
    }

    /// The outcome at an address, and which area decided it. `None`: an area that cannot be read.
    fn outcome(&mut self, new: bool, ip: u64) -> Option<(Outcome, usize)> {
        let rows = if new {
            &self.s.new_rows
        } else {
            &self.s.old_rows
        };
        let Some(span) = rows.at(ip).filter(|s| s.lsda != 0).copied() else {
            return Some((Outcome::Continue, usize::MAX));
        };
        let (list, elf) = if new {
            (&mut self.s.new_lsdas, self.cx.output)
        } else {
            (&mut self.s.old_lsdas, self.cx.input)
        };
        let index = match list
            .iter()
            .position(|l| (l.0, l.1) == (span.lsda, span.function))
        {
            Some(index) => index,
            None => {
                list.push((
                    span.lsda,
                    span.function,
                    Lsda::parse(elf, span.lsda, span.function),
                ));
                list.len() - 1
            }
        };
        Some((list.get(index)?.2.as_ref()?.outcome(ip), index))
    }

    /// Lists what was not reached, and packs the pairs.
    fn finish(&mut self) {
        let map = &self.s.map;
        for &(range, bytes, slot) in &self.new {
            let mut at = 0usize;
            while at < bytes.len() {
                let free = |i: usize| map.get(slot + i) == Some(&0);
                if !free(at) {
                    at += 1;
                    continue;
                }
                let start = at;
                while at < bytes.len() && free(at) {
                    at += 1;
                }
                if !A::is_padding(bytes.get(start..at).unwrap_or(b"")) {
                    self.out
                        .unreached
                        .push((range.start + start as u64, (at - start) as u64));
                }
            }
        }
        let mut starts = vec![0u64; map.len().div_ceil(64)];
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for (slot, &id) in map
            .iter()
            .enumerate()
            .filter(|(_, id)| !matches!(**id, 0 | INSIDE))
        {
            if let Some(word) = starts.get_mut(slot / 64) {
                *word |= 1 << (slot % 64);
            }
            let Ok(slot) = u32::try_from(slot) else { break };
            let same_run = runs
                .last()
                .is_some_and(|r| id.wrapping_sub(r.1) == slot.wrapping_sub(r.0));
            if !same_run {
                runs.push((slot, id));
            }
        }
        self.out.pairs = Pairs { runs, starts };
        self.out.entrances.sort_unstable();
        self.out.entrances.dedup();
        self.out.addresses.sort_unstable();
        self.out.addresses.dedup();
        debug_assert!(self.cx.function(self.id).is_some());
    }
}

impl Pairs {
    /// Whether the walk found exactly this pair.
    pub(crate) fn holds(&self, f: &Moved, base: u64, old: u64, new: u64) -> bool {
        let mut slot = 0u64;
        for r in &f.new {
            if r.contains(new) {
                return self.holds_at(slot + (new - r.start), base, old);
            }
            slot += r.len();
        }
        false
    }

    fn holds_at(&self, slot: u64, base: u64, old: u64) -> bool {
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
                == old
        })
    }
}
