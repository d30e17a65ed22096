//! What counts, in the lock step.
//!
//! In an instrumented program there are instructions in the new code that correspond to nothing in the old.
//! Nothing says where. Wherever the new side does not continue with the instruction that the old one has, what
//! it has instead is run on the symbolic machine ([`crate::machine`]) until it does. If that is possible, and
//! every register and flag that holds something else then is dead in the old code there
//! ([`crate::liveness`]), the instructions are a *silent step*, like a nop: the old program could not tell.
//! They count as one instruction that is entered at its start alone.
//!
//! Which instructions that are is found, not proved: whatever is taken for a silent step has been shown to be
//! one. An instruction that the program has as well and that inserted code may begin with
//! ([`Arch::is_ambiguous`]) is one of the program's unless what begins with it counts, and then comes to the
//! program's.
//!
//! Where the old code calls or jumps through a register or memory, the new may call or jump directly to a
//! *recorder* instead: code that belongs to no function, which must come to a jump to the very value that the
//! old instruction would have gone to, with the stack as it would have been and all registers but those of
//! linkers' stubs ([`Arch::STUB_SCRATCH`]), and flags (assumption A11, but for what can be seen:
//! [`super::stub_registers`]). The routine that recorders call for rare targets is proved as a function: it preserves
//! all but its argument, and writes to the table that it is given.
//! What counts calls may call a routine that notes the first ones: of that is shown what it leaves as it was
//! ([`crate::routines`]), and assumed that it writes to no memory of the program (A14). Where one function does that,
//! all count their calls, each in a counter of its own ([`crate::proof::counting`]). If it reads a word of its caller's
//! on the stack, or writes something that may come from the register with the return address, that must be the return
//! address of the function ([`Walk::note_caller`]).
//!
//! A page of the red zone below the stack pointer belongs to the program, but where a call has just come back
//! or the function was just entered: the call itself used that memory. What is allowed for this reason must
//! not be jumped to ([`Walk::closed`]).
//!
//! Unwind rows: an instruction of an inserted stretch has the row of the old instruction, with what the stack pointer
//! has moved added wherever the row reads that ([`lowered`](crate::files::unwind::Interner::lowered)); all other
//! registers by which the row finds something hold what they did in front of the stretch. So a signal may come there,
//! and who unwinds from its handler finds the same frames. At a call that overwrites the register with the return
//! address the row says in which register that is meanwhile. Routines that inserted code calls, and recorders, have
//! rows of their own ([`crate::frames`]).

use super::{OldState, State, Step, Walk, fail, pages};
use crate::addr::{InputAddr, OutputAddr, Pair};
use crate::arch::step::flag;
use crate::arch::{Arch, FieldKind, Flow, Insn, Operand};
use crate::context::PAGE;
use crate::files::unwind::RowId;
use crate::liveness::{Known, Recent, Set, dead};
use crate::machine::{
    self, End, Footprint, Machine, Meeting, Moment, Noted, Origin, Places, Routine, Value,
};
use crate::report::{Check, Failure};
use crate::routines;
use pages::Pending;
use smallvec::SmallVec;
use std::cell::Cell;

/// New code after a call that has just come back, or where the function was just entered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fresh {
    pub at: OutputAddr,
    /// From outside: registers of linkers' stubs hold nothing.
    pub entered: bool,
}

impl<'a, A: Arch> Walk<'a, '_, A> {
    /// Whether the new side is at what may be the old side's instruction. Only to choose; the comparison comes later.
    pub(super) fn may_match(&self, state: &OldState, at: OutputAddr) -> bool {
        let Some((bytes, _)) = self.new_bytes(at) else {
            return true;
        };
        let Some(new) = self.new_insn(bytes, at) else {
            return false;
        };
        let State::At(p, old) = *state else {
            return matches!(new.flow, Flow::Jump(_));
        };
        if self.is_own_load(p, at) {
            return true;
        }
        let Some(old_bytes) = self.old_bytes(p) else {
            return false;
        };
        match (old.flow, new.flow) {
            (Flow::IndirectCall, Flow::Call(target))
            | (Flow::IndirectJump { .. }, Flow::Jump(target)) => {
                return self.cx.unowned(OutputAddr::new(target)).is_some();
            }
            _ => {}
        }
        let is_branch = |insn: &Insn| matches!(insn.flow, Flow::Branch { .. });
        let branches = is_branch(&old) && is_branch(&new);
        !branches && A::longer(old_bytes, p.get(), bytes, at.get()).is_some()
            || self.may_be_same((old_bytes, &old), (bytes, &new))
    }

    /// The same for two instructions of which both do something, and neither was made for the other.
    pub(super) fn may_be_same(
        &self,
        (old_bytes, old): (&[u8], &Insn),
        (bytes, new): (&[u8], &Insn),
    ) -> bool {
        if let (Flow::Branch { cond, inverse, .. }, Flow::Branch { cond: new_cond, .. }) =
            (old.flow, new.flow)
        {
            return new_cond == cond || Some(new_cond) == inverse;
        }
        let (Some(a), Some(b)) = (
            old_bytes.get(..usize::from(old.len)),
            bytes.get(..usize::from(new.len)),
        ) else {
            return false;
        };
        match (old.field, new.field) {
            (Some(f), Some(g)) => {
                // The program may form the address of its own end, where counters begin.
                let counts = match g.kind {
                    FieldKind::Accesses => true,
                    FieldKind::Forms => f.target != g.target,
                    _ => false,
                };
                (f.at, f.len) == (g.at, g.len)
                    && (A::equal_around(a, b, &f) || self.numbers(a, b, Some(f)).is_some())
                    && !(counts && self.cx.is_counter(g.target))
            }
            (None, None) => {
                a == b || A::equal_but_offset(a, b) || self.numbers(a, b, None).is_some()
            }
            _ => false,
        }
    }

    /// The end of inserted code at `at`, if there is some and it is a silent step where the old side is at `state`.
    pub(super) fn inserted(
        &mut self,
        state: &OldState,
        chain: &[InputAddr],
        at: OutputAddr,
    ) -> Option<OutputAddr> {
        let counts = self.cx.counts.as_ref()?;
        let (bytes, _) = self.new_bytes(at)?;
        // A counter of the usual form is only what the program has there if that has one as well.
        let is_counter = |bytes| A::own_counter(bytes).is_some();
        let counts_itself = match *state {
            State::At(p, _) => self.old_bytes(p).is_some_and(is_counter),
            _ => false,
        };
        let only_counts = is_counter(bytes) && !counts_itself && self.f.tables.is_empty();
        let matches = !only_counts && self.may_match(state, at);
        if matches && (!A::is_ambiguous(bytes) || self.forms_same_page(state, at, bytes)) {
            return None;
        }
        if A::own_counter(bytes).is_none() {
            // On machines whose instructions are decoded slowly, what quickly says no is asked first.
            let goes = |insn: Insn| matches!(insn.flow, Flow::Jump(_) | Flow::Nothing);
            if A::STEP == 1 && self.new_insn(bytes, at).is_none_or(goes) {
                return None;
            }
            A::step(bytes, at.get())?;
        }
        if only_counts && let Some(end) = self.counter_alone(state, chain, at, bytes) {
            return Some(end);
        }
        let fresh = self.fresh_at(chain, at);
        let entered = fresh.is_some_and(|f| f.entered);
        let places = Places {
            areas: &counts.areas,
            own: counts.own,
            zone: A::RED_ZONE,
            table: None,
            operand: None,
            pushed: 0,
        };
        let mut footprint = Footprint::default();
        let mut end = self.silent_until(state, at, matches, false, places, &mut footprint);
        if !matches && let Some((early, false)) = end {
            let further = self.counts_further(state, at, early, places);
            if let Some((later, other)) = further {
                (end, footprint) = (Some((later, true)), other);
            }
        }
        let mut end = end.map(|end| end.0);
        let relies = end.is_none();
        if end.is_none() && fresh.is_some() {
            let places = Places { zone: 0, ..places };
            footprint = Footprint::default();
            let found = self.silent_until(state, at, matches, entered, places, &mut footprint);
            end = found.map(|end| end.0);
        }
        // What is looked at behind it is not part of it.
        let moments = std::mem::take(&mut self.s.moments);
        let end = end.filter(|end| !matches || self.comes_to(state, *end, places));
        self.s.moments = moments;
        let end = end?;
        self.footprint.join(&footprint);
        if !footprint.callers.is_empty() {
            let from = chain.first().copied().unwrap_or_else(|| state.addr());
            self.note_caller(from, at, &footprint.callers);
        }
        if let Some(fresh) = fresh {
            self.fresh = Some(Fresh { at: end, ..fresh });
            if relies {
                self.closed.push(at);
            }
        }
        Some(end)
    }

    /// Whether old code at `state` forms the same page as new code at `at`, and it is one without counters.
    fn forms_same_page(&self, state: &OldState, at: OutputAddr, bytes: &[u8]) -> bool {
        let State::At(_, old) = *state else {
            return false;
        };
        let page = |insn: &Insn| insn.field.filter(|f| f.kind == FieldKind::Page);
        let new = self.new_insn(bytes, at);
        let (Some(old), Some(new)) = (page(&old), new.as_ref().and_then(page)) else {
            return false;
        };
        old.target == new.target && !self.cx.has_counters(new.target, PAGE)
    }

    /// Whether new code at `at` is fresh ([`Fresh`]).
    fn fresh_at(&mut self, chain: &[InputAddr], at: OutputAddr) -> Option<Fresh> {
        // Without relocations it is not known which parts a compiler split off, where anything may be held.
        if !self.cx.bare && at == self.f.new_entry() && chain.contains(&self.f.old_entry) {
            self.fresh = Some(Fresh { at, entered: true });
        }
        self.fresh.filter(|f| f.at == at)
    }

    /// The end of the counter at `at`, if it is one of the usual form and all that is inserted.
    pub(super) fn counter_alone(
        &mut self,
        state: &OldState,
        chain: &[InputAddr],
        at: OutputAddr,
        bytes: &[u8],
    ) -> Option<OutputAddr> {
        let own = self.cx.counts.as_ref()?.own;
        let fresh = self.fresh_at(chain, at);
        let end = self.counts_alone(state, at, (bytes, own))?;
        if let Some(fresh) = fresh {
            self.fresh = Some(Fresh { at: end, ..fresh });
        }
        Some(end)
    }

    /// What is noted as where a call came from must be the return address: at the entry, where a call has just come by
    /// what the unwind table says, what the call left. That is the word at the stack pointer, or is in a register: then
    /// no other inserted code may have been before, and no landing pad that signs it.
    fn note_caller(&mut self, from: InputAddr, at: OutputAddr, noted: &[Noted]) {
        let (old, new) = (self.f.old_entry, self.f.new_entry());
        let pad = |bytes: Option<&[u8]>, at: u64| {
            let insn = bytes
                .filter(|bytes| !A::keeps_state(bytes))
                .and_then(|bytes| A::decode(bytes, at));
            insn.filter(|insn| insn.landing_pad)
                .map_or(0, |insn| u64::from(insn.len))
        };
        let new_pad = pad(self.new_bytes(new).map(|b| b.0), new.get());
        let pad = pad(self.old_bytes(old), old.get());
        let (right, first) = match A::LINK.first() {
            None => (Noted::Word(0), true),
            Some(link) => (Noted::Register(*link), at == new || at == new + new_pad),
        };
        let why = if from != old && from != old + pad || !first {
            Some("it is not at the function's entry".to_owned())
        } else if let Some(other) = noted.iter().find(|noted| **noted != right) {
            Some(match other {
                Noted::Word(word) => format!(
                    "the word is {word} bytes from the stack pointer, where the return address is not"
                ),
                Noted::Register(register) => {
                    format!("it was in register {register}, where the return address is not")
                }
                Noted::Anything => "it is not known to be the return address".to_owned(),
            })
        } else if !self
            .s
            .interner
            .is_called::<A>(self.s.old_rows.row(old.get(), 1).0)
        {
            Some("the unwind table does not say that a call leads to the entry".to_owned())
        } else {
            None
        };
        if let Some(why) = why {
            let text =
                format!("the code at {at:#x} notes something as where a call came from: {why}");
            self.out.no_caller = Some(text.into());
        }
        self.notes_callers.extend([at, new]);
    }

    /// Each instruction of inserted code must have the unwind row of one of the old addresses, for where the stack
    /// pointer is there.
    pub(super) fn check_inserted_rows(
        &mut self,
        old: &[InputAddr],
        from: OutputAddr,
        end: OutputAddr,
    ) -> Step {
        let mut moments = std::mem::take(&mut self.s.moments);
        moments.retain(|m| from.get() <= m.at && m.at < end.get());
        let (still, kept) = moments.iter().fold((true, true), |(still, kept), m| {
            let is_call = m.call.is_some() && !A::LINK.is_empty();
            (still && m.depth == 0, kept && m.changed == 0 && !is_call)
        });
        let checked = if still && kept {
            self.check_rows(old, from, end - from)
        } else {
            let first = self.s.new_rows.row(from.get(), 1).0;
            moments
                .iter()
                .try_for_each(|m| self.check_moment(old, first, m))
        };
        self.s.moments = moments;
        checked
    }

    /// The same for one instruction. A state outside the function has no row of its own that this function's tables
    /// could tell: there the row must be that of the first instruction of the stretch.
    fn check_moment(&mut self, old: &[InputAddr], first: RowId, moment: &Moment) -> Step {
        let q = OutputAddr::new(moment.at);
        let (row, covers) = self.s.new_rows.row(moment.at, moment.len.into());
        let down = moment.depth.saturating_neg();
        let outside = old.is_empty().then(|| (InputAddr::default(), first));
        let rows = |p: &InputAddr| (*p, self.s.old_rows.row(p.get(), 1).0);
        let rows: SmallVec<[_; 4]> = old.iter().map(rows).chain(outside).collect();
        for (p, before) in rows {
            let mut expected = self.s.interner.lowered::<A>(before, down);
            if let (Some(id), Some(link)) = (expected, moment.call) {
                expected = self.s.interner.at_call::<A>(id, link);
            }
            if covers && expected == Some(row) {
                let reads = self.s.interner.reads::<A>(before);
                let lost = reads & moment.changed & !(1 << A::STACK);
                if lost != 0 {
                    let what = format!(
                        "register {}, by which the unwind row finds something, holds something else",
                        lost.trailing_zeros()
                    );
                    return fail(Failure::new(Check::Unwind, what).at(p, q));
                }
                if down != 0 && row != 0 {
                    self.out.moved_stack_rows += 1;
                }
                return Ok(());
            }
        }
        let p = old.first().copied().unwrap_or_default();
        let what = if covers {
            format!(
                "the unwind row of inserted code does not account for the stack pointer, which is {down} bytes lower"
            )
        } else {
            "the unwind row changes in the middle of an inserted instruction".into()
        };
        let mut failure = Failure::new(Check::Unwind, what).at(p, q);
        failure.old_value = self.s.interner.describe(self.s.old_rows.row(p.get(), 1).0);
        failure.new_value = self.s.interner.describe(row);
        fail(failure)
    }

    /// Whether new code from `at` on comes to what may be the old side's instruction, by silent steps alone.
    fn comes_to(&mut self, state: &OldState, mut at: OutputAddr, places: Places<'_>) -> bool {
        for _ in 0..8 {
            let Some((bytes, _)) = self.new_bytes(at) else {
                return false;
            };
            let Some(insn) = self.new_insn(bytes, at) else {
                return false;
            };
            at = match insn.flow {
                Flow::Jump(target) => OutputAddr::new(target),
                Flow::Nothing => at.saturating_add(u64::from(insn.len)),
                _ if self.may_match(state, at) => return true,
                _ => {
                    let mut footprint = Footprint::default();
                    match self.silent_until(state, at, false, false, places, &mut footprint) {
                        Some((end, _)) => end,
                        None => return false,
                    }
                }
            };
        }
        false
    }

    /// Where inserted code ends that has only formed a counter's address when it comes to what may be the program's
    /// instruction, at `early`: compilers and counters have the same `mov x20, #1`. If what counts goes on with that
    /// instruction, and comes to the program's behind it, all of that was inserted.
    fn counts_further(
        &mut self,
        state: &OldState,
        at: OutputAddr,
        early: OutputAddr,
        places: Places<'_>,
    ) -> Option<(OutputAddr, Footprint)> {
        if A::STEP == 1 {
            return None;
        }
        let before = std::mem::take(&mut self.s.moments);
        let mut footprint = Footprint::default();
        let end = self.silent_until(state, at, true, false, places, &mut footprint);
        let moments = std::mem::take(&mut self.s.moments);
        let end = end.filter(|end| end.0 > early && self.comes_to(state, end.0, places));
        self.s.moments = if end.is_some() { moments } else { before };
        end.map(|end| (end.0, footprint))
    }

    /// What is known where it is asked what is dead in front of a state, and registers that hold nothing where the
    /// function is left.
    fn known<'k>(
        &'k self,
        state: &OldState,
        entered: bool,
        by_convention: &'k Cell<bool>,
    ) -> (Known<'k>, u32) {
        let find = |at: u64| A::STUBS_AT_CALLS && self.cx.old_unwind.find(at).is_some();
        let conventions = find(state.addr().get());
        let of_function = find(self.f.old_entry.get());
        // What is in front of a jump out of the function is asked about where that leads.
        let left = match state {
            State::Exit(_) if of_function => self.untouched,
            _ => 0,
        };
        let unread = if conventions || entered {
            A::STUB_SCRATCH
        } else {
            0
        };
        let known = Known {
            targets: &self.targets,
            own: &self.f.old,
            unread,
            entered,
            untouched: if of_function { self.untouched } else { 0 },
            faults: self.faults && self.lsdas,
            by_convention,
            reserve: &self.reserve,
        };
        (known, left)
    }

    /// Whether what is different where inserted code may end is dead in the old code there.
    fn is_dead(
        &self,
        recent: &mut Recent<'a>,
        state: &OldState,
        (known, left): (&Known<'_>, u32),
        m: &Meeting,
    ) -> bool {
        // Without an exclusive store the mark of an exclusive load has no effect.
        let asked = if self.exclusive { u8::MAX } else { flag::ALL };
        let changed = Set {
            regs: m.regs & !left,
            flags: m.flags & asked,
        };
        known.by_convention.set(m.regs & left != 0);
        let from = state.addr().get();
        changed.is_empty() || dead::<A>(self.cx, recent, known, from, changed)
    }

    /// The end of the counter at `at`, if it is one of the usual form and all that is inserted: what
    /// [`Walk::silent_until`] finds then, at once.
    fn counts_alone(
        &mut self,
        state: &OldState,
        at: OutputAddr,
        (bytes, own): (&[u8], u64),
    ) -> Option<OutputAddr> {
        let counter = A::own_counter(bytes).filter(|counter| counter.is_in(own))?;
        let end = at + u64::from(counter.len);
        let code = |a: u64| self.new_bytes(OutputAddr::new(a)).map(|b| b.0);
        if machine::repeats::<A>(&code, at.get(), end.get()) {
            return None;
        }
        let mut recent = std::mem::take(&mut self.s.recent);
        let by_convention = Cell::new(false);
        let reserve = self.reserve.get();
        let meeting = Meeting {
            at: end.get(),
            flags: counter.lost,
            counted: true,
            ..Meeting::default()
        };
        let (known, left) = self.known(state, false, &by_convention);
        let is_dead = self.is_dead(&mut recent, state, (&known, left), &meeting);
        self.s.recent = recent;
        if !is_dead {
            // It is asked once more.
            self.reserve.set(reserve);
            return None;
        }
        self.out.by_convention |= by_convention.get();
        self.footprint.own = true;
        self.s.moments.clear();
        self.s.moments.push(Moment {
            at: at.get(),
            len: counter.len,
            ..Moment::default()
        });
        Some(end)
    }

    fn silent_until(
        &mut self,
        state: &OldState,
        at: OutputAddr,
        must_count: bool,
        entered: bool,
        places: Places<'_>,
        footprint: &mut Footprint,
    ) -> Option<(OutputAddr, bool)> {
        let mut routines = std::mem::take(&mut self.s.routines);
        let mut recent = std::mem::take(&mut self.s.recent);
        let mut moments = std::mem::take(&mut self.s.moments);
        let mut passages = std::mem::take(&mut self.s.passages);
        let by_convention = Cell::new(false);
        let counted = Cell::new(false);
        let end = {
            let walk = &*self;
            let (known, left) = walk.known(state, entered, &by_convention);
            // How often, and of what last.
            let asked = Cell::new((0, Meeting::default()));
            let mut judge = |m: &Meeting| {
                asked.set((asked.get().0 + 1, *m));
                counted.set(m.counted);
                // What is quickly said first: it ends here at most a few times.
                if must_count && !m.counted {
                    return false;
                }
                let ends = |(bytes, _)| A::step(bytes, m.at).is_none();
                if m.counting
                    && !walk.may_match(state, OutputAddr::new(m.at))
                    && !walk.new_bytes(OutputAddr::new(m.at)).is_none_or(ends)
                {
                    return false;
                }
                walk.is_dead(&mut recent, state, (&known, left), m)
            };
            let code = |a: u64| walk.new_bytes(OutputAddr::new(a)).map(|b| b.0);
            let reserve = walk.reserve.get();
            let same = passages
                .find::<A>(&code, at.get(), places.zone)
                .filter(|same| judge(&same.meeting(at.get())));
            match same {
                Some(same) => {
                    footprint.clone_from(same.footprint());
                    moments.clear();
                    moments.extend(same.moments(at.get()));
                    Some(same.meeting(at.get()).at)
                }
                None => {
                    walk.reserve.set(reserve);
                    let mut machine = Machine {
                        places,
                        footprint,
                        tables: (false, false),
                        moments: std::mem::take(&mut moments),
                        unplaced: false,
                    };
                    machine.moments.clear();
                    asked.set((0, Meeting::default()));
                    let end = machine::follow::<A>(
                        &mut machine,
                        &code,
                        at.get(),
                        End::Meet(&mut judge),
                        &mut |target| walk.routine(&mut routines, OutputAddr::new(target)),
                    );
                    let noted = !machine.unplaced;
                    moments = machine.moments;
                    let (times, meeting) = asked.get();
                    if noted && times == 1 && end == Some(meeting.at) && !meeting.counted {
                        let of = (at.get(), places.zone);
                        passages.note::<A>(&code, of, meeting, (footprint, &moments));
                    }
                    end
                }
            }
        };
        self.s.moments = moments;
        self.s.passages = passages;
        self.s.routines = routines;
        self.s.recent = recent;
        self.out.by_convention |= end.is_some() && by_convention.get();
        end.map(|end| (OutputAddr::new(end), counted.get()))
    }

    /// What is known of a routine in new code that belongs to no function.
    fn routine(
        &self,
        routines: &mut rustc_hash::FxHashMap<OutputAddr, Option<Routine>>,
        target: OutputAddr,
    ) -> Option<Routine> {
        if let Some(known) = routines.get(&target) {
            return *known;
        }
        let cx = self.cx;
        let counts = cx.counts.as_ref()?;
        cx.unowned(target)?;
        let mut footprint = Footprint::default();
        let mut machine = Machine {
            places: Places {
                areas: &counts.areas,
                own: counts.own,
                zone: 0,
                table: Some(A::TABLE),
                operand: None,
                pushed: 0,
            },
            footprint: &mut footprint,
            tables: (false, false),
            moments: Vec::new(),
            unplaced: false,
        };
        let proved = machine::follow::<A>(
            &mut machine,
            &|a| cx.unowned(OutputAddr::new(a)),
            target.get(),
            End::Return,
            &mut |_| None,
        );
        let known = match (proved, machine.tables) {
            (Some(_), (false, own)) => Some(Routine::Records { own }),
            (Some(_), (true, false)) => Some(Routine::Records { own: false }),
            _ => {
                let saves = machine::saves_all::<A>(
                    &mut machine,
                    &|a| cx.unowned(OutputAddr::new(a)),
                    target.get(),
                );
                if saves {
                    Some(Routine::Trusted)
                } else {
                    let code = |a: u64| cx.unowned(OutputAddr::new(a));
                    let notes = routines::notes::<A>(&code, target.get());
                    notes.ok().map(|caller| Routine::Notes { caller })
                }
            }
        };
        routines.insert(target, known);
        known
    }

    /// Whether a call that the old code makes through a register or memory is recorded in the new.
    pub(super) fn is_recorded(&self, old: &Insn, new: &Insn) -> bool {
        match (old.flow, new.flow) {
            (Flow::IndirectCall, Flow::Call(target)) => {
                self.cx.unowned(OutputAddr::new(target)).is_some()
            }
            _ => false,
        }
    }

    /// A call of a recorder.
    pub(super) fn recorded_call(
        &mut self,
        p: InputAddr,
        old: &Insn,
        q: OutputAddr,
        new: &Insn,
        pending: &mut Pending,
    ) -> Result<Option<Pair>, Box<Failure>> {
        let Flow::Call(target) = new.flow else {
            return Ok(None);
        };
        let slot = self.new_bytes(q).map_or(0, |b| b.1);
        if !self.mark(q, slot, usize::from(new.len), p)? {
            self.meet(p, q, pending)?;
            return Ok(None);
        }
        self.arrive(q, pending);
        self.check_rows(&[p], q, u64::from(new.len))?;
        self.recorder(p, old, q, OutputAddr::new(target))?;
        self.behind(p, old, q, new, pending)
    }

    /// New code at `target` must go where the indirect call or jump at `p` would.
    pub(super) fn recorder(
        &mut self,
        p: InputAddr,
        old: &Insn,
        q: OutputAddr,
        target: OutputAddr,
    ) -> Step {
        let cx = self.cx;
        let bytes = self
            .old_bytes(p)
            .and_then(|b| b.get(..usize::from(old.len)))
            .unwrap_or(b"");
        let failure = |what: &str| fail(Failure::new(Check::Code, what).at(p, target));
        let (Some(counts), Some((operand, marks)), Some(_)) = (
            cx.counts.as_ref(),
            A::operand(bytes, p.get()),
            cx.unowned(target),
        ) else {
            return failure("an indirect call or jump became a direct one");
        };
        if cx.falls_back(old) {
            return failure("a jump that may continue in old code is recorded");
        }
        if let Some(field) = old.field {
            self.relate_field(p, bytes, &field, q, &field)?;
        }
        let pushed = match old.flow {
            Flow::IndirectCall => A::CALL_PUSHES,
            _ => 0,
        };
        let (value, operand) = match operand {
            Operand::Register(reg) => {
                let value = Value::of(Origin::Register(reg));
                let add = if reg == A::STACK { pushed } else { 0 };
                (Value { add, ..value }, None)
            }
            Operand::Memory(mem) => (Value::of(Origin::Operand), Some(mem)),
        };
        let mut footprint = Footprint::default();
        let mut routines = std::mem::take(&mut self.s.routines);
        let mut machine = Machine {
            places: Places {
                areas: &counts.areas,
                own: counts.own,
                zone: 0,
                table: None,
                operand,
                pushed,
            },
            footprint: &mut footprint,
            tables: (false, false),
            moments: Vec::new(),
            unplaced: false,
        };
        let through = if cx.guarded {
            A::STUB_SCRATCH
        } else {
            u32::MAX
        };
        let done = machine::follow::<A>(
            &mut machine,
            &|a| cx.unowned(OutputAddr::new(a)),
            target.get(),
            End::Leave {
                target: value,
                may_change: A::STUB_SCRATCH,
                through,
                marks,
            },
            &mut |to| {
                let known = self.routine(&mut routines, OutputAddr::new(to))?;
                matches!(known, Routine::Records { .. }).then_some(known)
            },
        );
        self.s.routines = routines;
        if done.is_none() {
            return failure(
                "the recorder of an indirect call does not go where that would, or changes something else",
            );
        }
        self.footprint.join(&footprint);
        self.out.recorded += 1;
        self.out.recorders.push(target);
        self.changing_stub_registers.push((p, q));
        Ok(())
    }
}
