//! The sweep over all code, which keeps only what crosses from piece to piece.

use postlink_elf::elf::Elf;
use postlink_isa::{FixupKind, Flow, Insn, Isa, Place};
use rayon::prelude::*;
use rustc_hash::FxHashSet;

use super::pieces::Pieces;
use super::program::Piece;
use super::refs::Refs;
use super::shapes::{Outline, Shapes};
use super::survey::Survey;
use crate::phases;

/// What the sweep has found: the piece that it was found in, and what it is. In no particular order.
pub(super) type Events = Vec<Vec<(u32, Event)>>;

/// Something that one piece does to another, or to its own inside. There are millions: what is rare and large is kept
/// elsewhere.
pub(super) enum Event {
    Jump {
        target: u64,
    },
    Call {
        target: u64,
    },
    Address {
        target: u64,
    },
    Table {
        base: u64,
    },
    /// Branches on flags first thing after a call: they are results of the callee.
    FlagsOf {
        callee: u64,
    },
    Undecodable,
    FallsOff,
    /// Calls or jumps to a known start.
    Reaches {
        target: u64,
    },
    /// Calls something unknown.
    Unsafe,
    /// Has no return, and no jump to other code.
    NoReturn,
    /// An instruction forms an address where code is.
    FormsCode,
    /// Forms the address of a place inside of it that nothing else leads to, unless a call of the second address
    /// returns.
    FurtherEntry(Box<(u64, Option<u64>)>),
}

/// What is noted on the way, for who needs it later.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Noted {
    /// Nothing.
    Nothing,
    /// What the number of functions' counters follows from.
    Shapes,
    /// What decides on counters per thread.
    Survey,
}

/// Sweeps over all pieces. `calls`: imports and functions of a library that are safe to call, if calls matter at all.
pub(super) fn sweep<I: Isa>(
    elf: &Elf<'_>,
    refs: &Refs,
    pieces: &Pieces,
    calls: Option<&FxHashSet<u64>>,
    noted: Noted,
) -> (Events, Option<Shapes>, Option<Survey>) {
    let sweep = Sweep {
        elf,
        refs,
        pieces,
        hull: hull(elf),
        calls,
    };
    phases::expect(pieces.list.len());
    let parts = postlink_parallel::map_parts(pieces.list.len(), PART, |range| {
        let mut out = Vec::new();
        let mut outline = (noted == Noted::Shapes).then(Outline::default);
        let mut survey = (noted == Noted::Survey).then(Survey::default);
        for i in range {
            phases::did();
            let notes = (outline.as_mut(), survey.as_mut());
            sweep.piece::<I>(i as u32, &pieces.list[i], &mut out, notes);
        }
        (out, outline.map(Outline::finish), survey)
    });
    let (mut events, mut shapes, mut surveys) = (Events::new(), Vec::new(), Vec::new());
    for (part, shape, survey) in parts {
        events.push(part);
        shapes.extend(shape);
        surveys.extend(survey);
    }
    (
        events,
        (noted == Noted::Shapes).then(|| Shapes::new(PART, shapes)),
        (noted == Noted::Survey).then(|| Survey::of_all(surveys)),
    )
}

/// First address of all code, and one past its last: there may be other things in between.
fn hull(elf: &Elf<'_>) -> (u64, u64) {
    let code = elf.sections.iter().filter(|s| s.is_code());
    code.fold((u64::MAX, 0), |hull, s| {
        (hull.0.min(s.addr), hull.1.max(s.end()))
    })
}

/// Pieces that one thread takes at a time.
const PART: usize = 64;

/// What the sweep over all code needs to know.
struct Sweep<'a, 'd> {
    elf: &'a Elf<'d>,
    refs: &'a Refs,
    pieces: &'a Pieces,
    /// First address of all code, and one past its last.
    hull: (u64, u64),
    /// Imports and functions of a library that are safe to call, if calls matter at all.
    calls: Option<&'a FxHashSet<u64>>,
}

impl Sweep<'_, '_> {
    fn piece<I: Isa>(
        &self,
        index: u32,
        piece: &Piece,
        out: &mut Vec<(u32, Event)>,
        (mut outline, mut survey): (Option<&mut Outline>, Option<&mut Survey>),
    ) {
        if let Some(outline) = &mut outline {
            outline.begin(piece);
        }
        let Some(bytes) = self.elf.bytes_at(piece.start, piece.end - piece.start) else {
            out.push((index, Event::Undecodable));
            if let Some(outline) = outline {
                outline.end(false);
            }
            return;
        };
        let mut state = PieceSweep {
            sweep: self,
            index,
            piece,
            out,
            last: Flow::Next,
            called: None,
            is_unsafe: false,
            has_table: false,
            jumps_indirectly: false,
            leaves: false,
            forms_code: false,
        };
        let stopped = I::sweep(bytes, piece.start, |insn| {
            state.flags::<I>(insn, bytes);
            state.flow(insn);
            if let Some(outline) = &mut outline {
                outline.instruction(self.elf, self.refs, insn);
            }
            if let Some(survey) = &mut survey {
                let at = (insn.addr - piece.start) as usize;
                let of_piece = (index, piece.start, piece.end);
                let bytes = &bytes[at..at + usize::from(insn.len)];
                survey.instruction::<I>(self.refs, of_piece, insn, bytes);
            }
            if let Some(f) = insn.field
                && insn.traits.forms_address
            {
                state.forms_code |= f.target >= self.hull.0 && f.target < self.hull.1;
                state.address(f.target, f.kind == FixupKind::Adr);
            }
            // Padding inside a sized function does not count as its end.
            if !insn.traits.nop {
                state.last = insn.flow;
            }
            true
        });
        for &(_, target) in self.refs.formed_in(piece.start, piece.end) {
            state.address(target, false);
        }
        state.absolute_fields::<I>();
        if let Some(outline) = outline {
            if state.has_table {
                outline.is_not_plain();
            }
            outline.end(stopped.is_none());
        }
        if !self.refs.kept {
            state.further_entries::<I>(bytes);
        }
        state.finish(stopped.is_none());
    }

    fn is_start(&self, addr: u64) -> bool {
        self.pieces.starting_at(addr).is_some()
    }

    fn is_code(&self, addr: u64) -> bool {
        self.elf.section_at(addr).is_some_and(|(_, s)| s.is_code())
    }
}

/// The sweep over one piece.
struct PieceSweep<'a, 'd> {
    sweep: &'a Sweep<'a, 'd>,
    index: u32,
    piece: &'a Piece,
    out: &'a mut Vec<(u32, Event)>,
    /// How the last instruction goes on that is no padding.
    last: Flow,
    /// What the instruction before calls.
    called: Option<u64>,
    /// It calls something that is not known to be safe.
    is_unsafe: bool,
    /// It forms the address of a jump table, or of what one may count from.
    has_table: bool,
    jumps_indirectly: bool,
    /// It returns, or jumps to other code.
    leaves: bool,
    /// An instruction forms an address where code is.
    forms_code: bool,
}

impl PieceSweep<'_, '_> {
    fn event(&mut self, event: Event) {
        self.out.push((self.index, event));
    }

    /// Flags that are looked at first thing after a call.
    fn flags<I: Isa>(&mut self, insn: &Insn, bytes: &[u8]) {
        if let (Some(callee), Flow::CondJump { .. }) = (self.called, insn.flow) {
            let at = (insn.addr - self.piece.start) as usize;
            if I::effects(&bytes[at..], insn).reads.meets(I::FLAGS) {
                self.event(Event::FlagsOf { callee });
            }
        }
        self.called = match insn.flow {
            Flow::Call { target } => Some(target),
            _ => None,
        };
    }

    /// Where an instruction goes.
    fn flow(&mut self, insn: &Insn) {
        match insn.flow {
            Flow::Jump { target } | Flow::CondJump { target, .. } | Flow::ShortCond { target }
                if target < self.piece.start || target >= self.piece.end =>
            {
                self.leaves = true;
                self.event(Event::Jump { target });
                if let Some(safe) = self.sweep.calls
                    && !safe.contains(&target)
                {
                    self.is_unsafe |= !self.sweep.is_start(target);
                    self.event(Event::Reaches { target });
                }
            }
            Flow::Call { target } => {
                let known = self.sweep.is_start(target);
                // A call to its own start is recursion; one to the instruction after it or elsewhere inside is not.
                if self.is_inside(target) || !known {
                    self.event(Event::Call { target });
                }
                if let Some(safe) = self.sweep.calls
                    && !safe.contains(&target)
                {
                    self.is_unsafe |= !known;
                    if known {
                        self.event(Event::Reaches { target });
                    }
                }
            }
            Flow::IndirectCall => self.indirect_call(insn),
            Flow::IndirectJump => self.jumps_indirectly = true,
            Flow::Return => self.leaves = true,
            _ => {}
        }
    }

    fn indirect_call(&mut self, insn: &Insn) {
        let sweep = self.sweep;
        let Some(safe) = sweep.calls else {
            return;
        };
        let Some(slot) = insn.slot() else {
            self.is_unsafe = true;
            return;
        };
        match sweep.refs.constant_slot(slot) {
            Some(target) if safe.contains(&target) => {}
            Some(target) if sweep.is_start(target) => self.event(Event::Reaches { target }),
            _ => self.is_unsafe |= !safe.contains(&slot),
        }
    }

    fn is_inside(&self, addr: u64) -> bool {
        addr > self.piece.start && addr < self.piece.end
    }

    /// The code forms an address; `adr`: by an instruction that forms what tables count from.
    fn address(&mut self, target: u64, adr: bool) {
        if self.sweep.refs.relative_width(target).is_some() {
            self.has_table = true;
            self.event(Event::Table { base: target });
        } else if adr && self.is_inside(target) {
            // The anchor of a jump table, or else the function's control flow will say.
            self.has_table = true;
        } else if self.sweep.is_code(target) {
            self.event(Event::Address { target });
        }
    }

    /// Places inside of the piece whose addresses it forms by several instructions, and that it does not come to in
    /// another way: functions of their own, which an unwind entry covers together with it. `_start` of a static program
    /// of glibc hands one on that is behind it (`__wrap_main`). In a function with an indirect jump such a place may be
    /// a label.
    fn further_entries<I: Isa>(&mut self, bytes: &[u8]) {
        /// Bytes of a page.
        const PAGE: u64 = 4096;
        let (start, end) = (self.piece.start, self.piece.end);
        if self.jumps_indirectly {
            return;
        }
        let mut formed: Vec<u64> = Vec::new();
        let wanted = |page: u64| page < end && page.saturating_add(PAGE) > start;
        I::in_parts(bytes, start, &wanted, &mut |place, to| {
            if place == Place::Formed && start < to && to < end {
                formed.push(to);
            }
        });
        if formed.is_empty() {
            return;
        }
        formed.sort_unstable();
        formed.dedup();
        let mut found: Vec<(u64, Option<u64>)> = Vec::new();
        let mut led_to: Vec<u64> = Vec::new();
        let mut before = Flow::Next;
        I::sweep(bytes, start, |insn| {
            if formed.binary_search(&insn.addr).is_ok() {
                match before {
                    Flow::Call { target } => found.push((insn.addr, Some(target))),
                    Flow::Jump { .. } | Flow::Return | Flow::Stop => found.push((insn.addr, None)),
                    _ => {}
                }
            }
            if let Flow::Jump { target }
            | Flow::CondJump { target, .. }
            | Flow::ShortCond { target }
            | Flow::Call { target } = insn.flow
            {
                led_to.push(target);
            }
            before = insn.flow;
            true
        });
        found.retain(|f| !led_to.contains(&f.0));
        for entry in found {
            self.event(Event::FurtherEntry(Box::new(entry)));
        }
    }

    /// Absolute addresses in instructions.
    fn absolute_fields<I: Isa>(&mut self) {
        let sweep = self.sweep;
        let fields = sweep
            .refs
            .absolute_fields_in(self.piece.start, self.piece.end);
        for &(at, kind) in fields {
            let width = if kind == FixupKind::Abs64 { 8 } else { 4 };
            let bytes = sweep.elf.bytes_at(at, width);
            let target = bytes.and_then(|b| I::read_field(kind, b, at));
            if let Some(target) = target.filter(|target| sweep.is_code(*target)) {
                self.event(Event::Address { target });
            }
        }
    }

    /// What is known when all instructions were seen.
    fn finish(&mut self, decoded: bool) {
        let falls_off = matches!(
            self.last,
            Flow::Next | Flow::CondJump { .. } | Flow::ShortCond { .. }
        );
        if !decoded {
            self.event(Event::Undecodable);
            self.is_unsafe = true;
        } else if falls_off {
            self.event(Event::FallsOff);
            self.is_unsafe = true;
        } else if !self.leaves && !self.jumps_indirectly {
            self.event(Event::NoReturn);
        }
        if self.forms_code {
            self.event(Event::FormsCode);
        }
        // Without a table it may be a tail call to anything.
        self.is_unsafe |= self.jumps_indirectly && !self.has_table;
        if self.is_unsafe && self.sweep.calls.is_some() {
            self.event(Event::Unsafe);
        }
    }
}

/// Pieces that reach something unsafe through calls and jumps.
pub(super) fn reaching_unsafe(events: &[Vec<(u32, Event)>], pieces: &Pieces) -> Vec<bool> {
    let mut bad = vec![false; pieces.starts.len()];
    let mut work = Vec::new();
    for (from, e) in events.iter().flatten() {
        if matches!(e, Event::Unsafe) && !std::mem::replace(&mut bad[*from as usize], true) {
            work.push(*from);
        }
    }
    let caller = |(from, e): &(u32, Event)| match e {
        Event::Reaches { target } => {
            let to = pieces.starting_at(*target)?;
            Some((to as u32, *from))
        }
        _ => None,
    };
    // (callee, caller)
    let mut callers: Vec<(u32, u32)> = postlink_parallel::flat_map(events, |list| {
        list.iter().filter_map(caller).collect::<Vec<_>>()
    });
    callers.par_sort_unstable();
    while let Some(callee) = work.pop() {
        let first = callers.partition_point(|c| c.0 < callee);
        for (_, caller) in callers[first..].iter().take_while(|c| c.0 == callee) {
            if !std::mem::replace(&mut bad[*caller as usize], true) {
                work.push(*caller);
            }
        }
    }
    bad
}
