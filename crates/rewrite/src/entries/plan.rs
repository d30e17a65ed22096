//! Counters at the entries of functions that stay where they are.
//!
//! Re-emitting a function for the sake of one store at its entry costs its whole size again. Here nothing
//! moves: calls of a function are routed through its counter. Of three ways the first that is possible is taken:
//!
//! | way | the counter | costs | for |
//! |---|---|---|---|
//! | front | in the padding in front of the function, into which it runs | nothing | coverage on x86-64, with seven or eight bytes of padding |
//! | stub | in a stub that jumps to the function | 12 or 16 bytes with coverage | all references to the function are known |
//! | jump | in a stub that a jump at the entry leads to, with the instructions that the jump overwrote and a jump back | about 20 bytes, and what unwinding needs | all others |
//!
//! With the first two the references are changed in place: displacements of calls and jumps, and all pointers,
//! so that they still compare equal. So all must be known: every relocation that the linker kept
//! about the function belongs to an instruction or a pointer that was found and can be changed, no branch of
//! one byte comes from elsewhere, nothing says where it is relative to something else, and it is no entry
//! point. A function in the dynamic symbol table begins earlier in there too, if the counter is in front; a
//! stub is the last resort, since a look-up of the function at an address inside it (`dladdr`) does not find
//! it; the dynamic symbol names the stub then. With the third every entry is counted. Where there are
//! pointers, their values stay multiples of eight: programs use the lowest bits, and C++ does in pointers to
//! members.
//!
//! Where instructions have one length ([`Covers::WHOLE_ENTRIES`], AArch64) there is no counter in front, and
//! references are led to a stub only if they are direct calls and jumps: then pointers do not change at all.
//! A jump takes the place of one whole instruction, or of two if the first is a landing pad that does more,
//! so it can represent the other functions with 20 bytes, also if they are not understood.
//!
//! The third is slow for control that enters through the jump. Calls that are known go straight to the stub;
//! pointers do not, so that they still compare equal.
//!
//! Return addresses stay the input's, but for a call among the overwritten instructions. Bodies need not be
//! understood for the first two, so more functions can be instrumented than moved.
//!
//! What follows for unwinding is in [`super::frames`].

use postlink_elf::{InputAddr, OutputAddr};
use postlink_isa::coverage::Covers;
use postlink_isa::{Code, Fixup, FixupKind, Insn, Isa, Reach, RegSet};
use rayon::prelude::*;
use regex::bytes::Regex;
use rustc_hash::{FxHashMap, FxHashSet};

use super::displaced::{
    code_at, displaced, falls_through, live_from_outside, relocate_insn, whole_entry,
};
use super::frames::{Search, Shift, StubOf};
use super::references::{References, references};
use super::stubs::Stubs;
use crate::analyse::counters::live_at;
use crate::analyse::{Scratch, Target, prepare};
use crate::discover::{NonlocalExits, Program, Stored, Visible, is_special, runs_on};
use crate::error::Error;
use crate::pin::Pin;

/// Bytes of the store in front of a function where there are pointers to it.
const ALIGNED_STORE: u64 = 8;

/// What the address of the first stub must be a multiple of: the most that pointers to functions are known to be.
pub const STUBS: u64 = 16;

/// Puts a counter: what must survive it, and whether the return address is at `rsp` and nothing below.
pub type Put<'a> = &'a (dyn Fn(&mut Code<Target>, RegSet, bool) + Sync);

/// How the calls of a function are routed through its counter.
enum EntryHook {
    /// In the padding in front; how far, and what changes in the unwind table.
    Padding(u64, Shift),
    /// A stub, aligned for pointers or not.
    Stub { aligned: bool },
    /// A jump, at this address, and the instructions in its place.
    Patch { at: u64, displaced: Vec<Insn> },
}

/// An instrumented function.
struct Entry {
    function: u32,
    way: EntryHook,
    /// What must survive a counter at the entry.
    live: RegSet,
    /// Nothing within the function comes to its first block again.
    alone: bool,
    cfg_signature: u32,
}

/// Where a function is entered.
#[derive(Clone, Copy, Debug)]
pub enum Entered {
    /// So many bytes in front of it.
    Earlier(u64),
    /// At the stub with this address.
    Stub(OutputAddr),
}

/// Which functions are instrumented, and how.
pub struct Plan {
    entries: Vec<Entry>,
    /// By function: why it does not count.
    pub pins: Vec<Option<Pin>>,
    references: References,
    search: Option<Search>,
    /// All stubs, one after the other.
    code: Code<(u32, Target)>,
    /// By entry: where its stub begins in `code`.
    offsets: Vec<u32>,
    /// For unwinding: whose stubs these are, and what is in them.
    stubs_of: Vec<StubOf>,
}

/// Where things are that stubs refer to.
pub struct Places<'a> {
    /// Where the stubs are.
    pub stubs: Stubs,
    /// Address of an entry's n-th word of counters.
    pub counter: &'a dyn Fn(usize, u32) -> OutputAddr,
    /// The slow way.
    pub slow: OutputAddr,
    /// The slow way with edges.
    pub slow_with_edges: OutputAddr,
}

/// Decides how each function counts. `None`: this file's unwind tables cannot be extended in place.
///
/// With `front`, the counter is a store of [`Covers::FRONT`] bytes, which may be in padding. With `anyway`, there is no
/// better way if unwind tables cannot be extended: then no exception may pass through a stub.
pub fn plan<I: Covers>(
    program: &Program<'_>,
    nonlocal_exits: &NonlocalExits,
    functions: Option<&Regex>,
    keep: &FxHashSet<u64>,
    front: bool,
    anyway: bool,
    put: Put<'_>,
) -> Option<Plan> {
    let search = Search::read::<I>(program);
    // Without rows for stubs, only what interrupts the program in them cannot be unwound. Where whole
    // instructions are replaced that is better than to re-emit everything, unless that is an exception.
    let unwinds = !program.eh.fdes.is_empty() && (!I::WHOLE_ENTRIES || program.faults());
    if search.is_none() && unwinds && !anyway {
        return None;
    }
    let store = I::FRONT.filter(|_| front);
    let references = references::<I>(program);
    let mut pointed: Vec<u64> = program.refs.pointers.iter().map(|p| p.target).collect();
    pointed.par_sort_unstable();
    let choose = |scratch: &mut Scratch, f: usize| -> Result<Entry, Pin> {
        if functions.is_some_and(|r| !r.is_match(program.name(f).as_bytes())) {
            return Err(Pin::Excluded);
        }
        if keep.contains(&program.start(f)) {
            return Err(Pin::NotProved);
        }
        let function = &program.functions[f];
        let piece = &program.pieces[function.pieces[0] as usize];
        if is_special(program.elf.sections[piece.section as usize].name) {
            return Err(Pin::SpecialSection);
        }
        let own = references.of(f as u32);
        let analysed = prepare::analyse::<I>(program, nonlocal_exits, f, scratch);
        let known = references.unknown.binary_search(&(f as u32)).is_err()
            && own
                .iter()
                .all(|r| !matches!(r.kind, FixupKind::Rel8 { .. }))
            && !is_run_into(program, function.pieces[0] as usize);
        let cfg = analysed.as_ref().ok().map(|a| &a.cfg);
        let alone = cfg.is_some_and(|cfg| !cfg.succs.contains(&0));
        let live = match cfg {
            _ if I::WHOLE_ENTRIES => live_from_outside::<I>(program, piece),
            Some(cfg) => live_at::<I>(program, cfg, 0, piece.start),
            None => RegSet::ALL,
        };
        let cfg_signature = cfg.map_or(0, |cfg| {
            postlink_mip::hash::cfg_signature((0..cfg.blocks.len() as u32).map(|b| cfg.succs(b)))
        });
        let entry = |way| Entry {
            function: f as u32,
            // What the function's own loop brings along.
            live: match way {
                EntryHook::Patch { .. } if I::WHOLE_ENTRIES && !alone => RegSet::ALL,
                _ => live,
            },
            way,
            alone,
            cfg_signature,
        };
        let exported = references.exported.binary_search(&(f as u32)).is_ok();
        let aligned =
            exported || own.iter().any(|r| r.pointer) || !references.in_data(f as u32).is_empty();
        // An address for which no instruction was found that takes it is taken in a way that cannot be followed.
        let can_lead = if I::CHANGES_POINTERS {
            aligned || !function.address_taken
        } else {
            !aligned && !function.address_taken
        };
        // Pointers to it change with the first two ways.
        let may_change = !aligned || program.may_follow(piece.start);
        if known && can_lead && may_change {
            let by = if aligned {
                ALIGNED_STORE
            } else {
                store.unwrap_or(ALIGNED_STORE)
            };
            // A pointer that leads to the counter keeps the zero bits at its end.
            let keeps = (piece.start - by).is_multiple_of(Visible::alignment(piece.start));
            let room = store.is_some()
                && (!aligned || keeps)
                && has_room::<I>(program, function.pieces[0] as usize, by, &pointed);
            if let Some(shift) = room
                .then(|| Shift::of(program, search.as_ref(), piece, by))
                .flatten()
            {
                return Ok(entry(EntryHook::Padding(by, shift)));
            }
            if !exported {
                return Ok(entry(EntryHook::Stub { aligned }));
            }
        }
        let jump = || -> Result<EntryHook, Pin> {
            let at = match &analysed {
                Ok(a) => a.entry_patch.ok_or(Pin::NoRoomAtEntry)?.at.get(),
                Err(pin) => whole_entry::<I>(program, piece, *pin)?,
            };
            let exceptions = match &search {
                Some(s) => s.exceptions_pass(program, at),
                None => program.eh.fdes.is_empty(),
            };
            let displaced = displaced::<I>(program, at, exceptions).ok_or(Pin::NoRoomAtEntry)?;
            Ok(EntryHook::Patch { at, displaced })
        };
        match jump() {
            Ok(way) => Ok(entry(way)),
            // Better than not to count.
            Err(_) if known && exported && may_change && I::CHANGES_POINTERS => {
                Ok(entry(EntryHook::Stub { aligned }))
            }
            Err(pin) => Err(pin),
        }
    };
    let chosen: Vec<Result<Entry, Pin>> =
        postlink_parallel::map_range_with(program.functions.len(), Scratch::default, choose);
    let mut plan = Plan {
        entries: Vec::new(),
        pins: Vec::with_capacity(chosen.len()),
        references,
        search,
        code: Code::default(),
        offsets: Vec::new(),
        stubs_of: Vec::new(),
    };
    for one in chosen {
        plan.pins.push(one.as_ref().err().copied());
        plan.entries.extend(one);
    }
    plan.stubs::<I>(program, put);
    Some(plan)
}

impl Plan {
    /// The instrumented functions: index, signature of the flow graph.
    pub fn functions(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        self.entries
            .iter()
            .map(|e| (e.function as usize, e.cfg_signature))
    }

    /// Bytes of all stubs.
    pub fn size(&self) -> u64 {
        self.code.bytes.len() as u64
    }

    /// How many bytes of stubs go where there is space for so many, and the others elsewhere: whole stubs.
    pub fn fitting(&self, room: u64) -> u64 {
        let size = self.size();
        if size <= room {
            return size;
        }
        let starts = self.offsets.iter().map(|o| u64::from(*o));
        let cuts = starts.filter(|o| *o <= room && o.is_multiple_of(STUBS));
        cuts.max().unwrap_or(0)
    }

    /// Leaves functions as they were, by the addresses of their entries. How the others are instrumented stays.
    pub fn take_back<I: Covers>(
        &mut self,
        program: &Program<'_>,
        functions: &FxHashSet<u64>,
        put: Put<'_>,
    ) {
        let pins = &mut self.pins;
        self.entries.retain(|e| {
            let refused = functions.contains(&program.start(e.function as usize));
            if refused {
                pins[e.function as usize] = Some(Pin::NotProved);
            }
            !refused
        });
        self.stubs::<I>(program, put);
    }

    /// Makes the stubs.
    fn stubs<I: Covers>(&mut self, program: &Program<'_>, put: Put<'_>) {
        self.offsets = vec![0; self.entries.len()];
        self.code = Code::default();
        self.stubs_of = Vec::new();
        // Pointers lead to some: those keep the zero bits at the end of the function's address. Those that
        // are aligned most come first: fewer gaps.
        let alignment = |e: &Entry| match e.way {
            EntryHook::Stub { aligned: true } => {
                Visible::alignment(program.start(e.function as usize)).min(STUBS)
            }
            _ => 1,
        };
        let mut order: Vec<usize> = (0..self.entries.len()).collect();
        order.sort_by_key(|&i| std::cmp::Reverse(alignment(&self.entries[i])));
        for i in order {
            let entry = &self.entries[i];
            let start = program.start(entry.function as usize);
            let len = self.code.bytes.len();
            let len = len.next_multiple_of(alignment(entry) as usize);
            self.code.bytes.resize(len, I::PADDING);
            let base = self.code.bytes.len() as u32;
            self.offsets[i] = base;
            let mut code: Code<Target> = Code::default();
            let mut moved = Vec::new();
            match &entry.way {
                EntryHook::Padding(..) => continue,
                EntryHook::Stub { .. } => {
                    put(&mut code, entry.live, true);
                    I::put_jump(&mut code, Reach::Long, Target::Same(start));
                }
                EntryHook::Patch { displaced, .. } => {
                    put(&mut code, entry.live, entry.alone);
                    let mut on = None;
                    for insn in displaced {
                        moved.push((u64::from(base) + code.bytes.len() as u64, insn.addr));
                        on = Some(insn.end()).filter(|_| falls_through(insn.flow));
                        relocate_insn::<I>(program, &mut code, insn, start);
                    }
                    if let Some(on) = on {
                        moved.push((u64::from(base) + code.bytes.len() as u64, on));
                        I::put_jump(&mut code, Reach::Long, Target::Same(on));
                    }
                }
            }
            self.stubs_of.push(StubOf {
                function: entry.function,
                from: u64::from(base),
                stack: code.stack,
                moved,
                to: u64::from(base) + code.bytes.len() as u64,
            });
            self.code.bytes.extend_from_slice(&code.bytes);
            self.code.fixups.extend(code.fixups.iter().map(|f| Fixup {
                at: base + f.at,
                kind: f.kind,
                target: (i as u32, f.target),
            }));
        }
    }

    /// Fills the stubs at their place, and says what changes in the old image.
    pub fn fill<I: Covers>(
        &self,
        program: &Program<'_>,
        places: &Places<'_>,
        out: &mut [u8],
        mut patch: impl FnMut(u64, &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let reach = |function: usize| {
            move |source| Error::Reach {
                function: program.name(function),
                source,
            }
        };
        // Where functions are from now on, and where only calls of them go.
        let mut entered: FxHashMap<InputAddr, OutputAddr> = FxHashMap::default();
        let mut called: FxHashMap<InputAddr, OutputAddr> = FxHashMap::default();
        for (entry, offset) in self.entries.iter().zip(&self.offsets) {
            let start = program.start(entry.function as usize);
            let function = InputAddr::new(start);
            match entry.way {
                EntryHook::Padding(by, _) => entered.insert(function, function.kept() - by),
                EntryHook::Stub { .. } => {
                    entered.insert(function, places.stubs.at((*offset).into()))
                }
                EntryHook::Patch { at, .. } if is_passed::<I>(program, start, at) => {
                    called.insert(function, places.stubs.at((*offset).into()))
                }
                EntryHook::Patch { .. } => None,
            };
        }
        let resolve = |i: usize, target: Target| match target {
            Target::Counter(n) => (places.counter)(i, n),
            Target::Slow => places.slow,
            Target::SlowWithEdges => places.slow_with_edges,
            Target::Code(a) => {
                let a = InputAddr::new(a);
                entered.get(&a).copied().unwrap_or(a.kept())
            }
            Target::Same(a) => InputAddr::new(a).kept(),
            // Nothing that stubs are made of.
            Target::Block(_)
            | Target::Unit(_)
            | Target::SiteWord(_)
            | Target::Recorder(_)
            | Target::Bias
            | Target::Ready
            | Target::Enter
            | Target::Owner
            | Target::OwnersCounter(_)
            | Target::OwnersSiteWord(_)
            | Target::OwnTable(_)
            | Target::OwnBase(_) => OutputAddr::default(),
        };
        out.copy_from_slice(&self.code.bytes);
        for fixup in &self.code.fixups {
            let (i, target) = (fixup.target.0 as usize, fixup.target.1);
            let place = places.stubs.at(fixup.at.into());
            I::write_field(
                fixup.kind,
                &mut out[fixup.at as usize..],
                place.get(),
                resolve(i, target).get(),
            )
            .map_err(reach(self.entries[i].function as usize))?;
        }
        // Instructions that jumps take.
        let mut taken: Vec<(u64, u64)> = Vec::new();
        for (i, (entry, offset)) in self.entries.iter().zip(&self.offsets).enumerate() {
            let f = entry.function as usize;
            let start = program.start(f);
            let mut code: Code<OutputAddr> = Code::default();
            let at = match &entry.way {
                EntryHook::Stub { .. } => continue,
                EntryHook::Padding(by, shift) => {
                    I::put_covered(&mut code, RegSet::ALL, false, (places.counter)(i, 0));
                    for (at, bytes) in shift.patches() {
                        patch(at, bytes)?;
                    }
                    let rest = by.saturating_sub(code.bytes.len() as u64);
                    I::put_nops(&mut code.bytes, rest as usize);
                    start - by
                }
                EntryHook::Patch { at, displaced } => {
                    let stub = places.stubs.at((*offset).into());
                    I::put_entry(&mut code, code_at(program, *at), stub);
                    let end = displaced.last().map_or(0, Insn::end);
                    let end = end.max(at + code.bytes.len() as u64);
                    taken.push((*at, end));
                    *at
                }
            };
            for fixup in &code.fixups {
                let place = at + u64::from(fixup.at);
                I::write_field(
                    fixup.kind,
                    &mut code.bytes[fixup.at as usize..],
                    place,
                    fixup.target.get(),
                )
                .map_err(reach(f))?;
            }
            patch(at, &code.bytes)?;
        }
        taken.sort_unstable();
        for r in &self.references.list {
            let start = InputAddr::new(program.start(r.function as usize));
            let calls =
                !r.pointer && matches!(r.kind, FixupKind::Rel32 { .. } | FixupKind::Branch26);
            let straight = called.get(&start).filter(|_| calls);
            let Some(&new) = entered.get(&start).or(straight) else {
                continue;
            };
            let width = if r.kind == FixupKind::Abs64 { 8 } else { 4 };
            // What a jump overwrote is in the stub.
            let before = taken.partition_point(|t| t.0 <= r.place);
            if before > 0 && r.place < taken[before - 1].1
                || taken.get(before).is_some_and(|t| t.0 < r.place + width)
            {
                continue;
            }
            // On some machines a field is a part of its word.
            let mut field = [0; 8];
            if let Some(old) = program.elf.bytes_at(r.place, width) {
                field[..old.len()].copy_from_slice(old);
            }
            I::write_field(r.kind, &mut field, r.place, new.get())
                .map_err(reach(r.function as usize))?;
            patch(r.place, &field[..width as usize])?;
        }
        self.fill_pointers(program, &entered, patch)
    }

    /// Lets pointers in data that may follow a function lead to where it is entered from now on.
    fn fill_pointers(
        &self,
        program: &Program<'_>,
        entered: &FxHashMap<InputAddr, OutputAddr>,
        mut patch: impl FnMut(u64, &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        for &(function, index) in &self.references.data {
            let start = InputAddr::new(program.start(function as usize));
            let (Some(new), p) = (entered.get(&start), &program.refs.pointers[index as usize])
            else {
                continue;
            };
            let new = new.get();
            match p.stored {
                Stored::Word => patch(p.place, &new.to_le_bytes())?,
                Stored::Word32 => {
                    let value = u32::try_from(new)
                        .map_err(|_| Error::internal("32-bit pointer out of reach"))?;
                    patch(p.place, &value.to_le_bytes())?;
                }
                Stored::Addend(at) => {
                    patch(at, &new.to_le_bytes())?;
                    if program.elf.u64_at(p.place) == Some(p.target) {
                        patch(p.place, &new.to_le_bytes())?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Where a lookup of a function by its name leads from now on, if that is another place: by its address.
    pub fn entered(&self, program: &Program<'_>, stubs: &Stubs) -> FxHashMap<InputAddr, Entered> {
        let all = self.entries.iter().zip(&self.offsets);
        let entered = all.filter_map(|(e, offset)| {
            let start = InputAddr::new(program.start(e.function as usize));
            match e.way {
                EntryHook::Padding(by, _) => Some((start, Entered::Earlier(by))),
                EntryHook::Stub { .. } => Some((start, Entered::Stub(stubs.at((*offset).into())))),
                EntryHook::Patch { .. } => None,
            }
        });
        entered.collect()
    }

    /// Whose stubs there are, and what is in them.
    pub fn stubs_of(&self) -> &[StubOf] {
        &self.stubs_of
    }

    /// The unwind entry that describes the stubs: see [`super::frames`].
    pub fn frames(&self) -> Option<(&Search, &[StubOf])> {
        Some((self.search.as_ref()?, &self.stubs_of))
    }
}

/// Whether that many bytes in front of a piece are padding and nothing else.
fn has_room<I: Isa>(program: &Program<'_>, piece: usize, by: u64, pointed: &[u64]) -> bool {
    let p = &program.pieces[piece];
    let section = program.elf.sections[p.section as usize].addr;
    let before = piece
        .checked_sub(1)
        .map_or(0, |k| program.pieces[k].end)
        .max(section);
    let Some(from) = p.start.checked_sub(by).filter(|from| *from >= before) else {
        return false;
    };
    let next = pointed.partition_point(|t| *t < from);
    if pointed.get(next).is_some_and(|t| *t < p.start) || program.eh.fde_at(from).is_some() {
        return false;
    }
    let Some(gap) = program
        .elf
        .bytes_at(before, p.start - before)
        .filter(|gap| gap.len() < 256)
    else {
        return false;
    };
    let mut reach = before;
    I::sweep(gap, before, |i| {
        let padding = i.traits.nop || gap[(i.addr - before) as usize] == 0xcc;
        if padding {
            reach = i.end();
        }
        padding
    });
    reach == p.start
}

/// Whether the code before a piece may run into it.
fn is_run_into(program: &Program<'_>, piece: usize) -> bool {
    let Some(before) = piece.checked_sub(1).map(|k| &program.pieces[k]) else {
        return false;
    };
    before.section == program.pieces[piece].section && runs_on(program, before.function as usize)
}

/// Whether a call of the function at `start` does nothing before it is at `at`.
fn is_passed<I: Isa>(program: &Program<'_>, start: u64, at: u64) -> bool {
    let first = || I::decode(program.elf.bytes_at(start, 4)?, start);
    at == start || first().is_some_and(|i| i.traits.landing_pad && i.end() == at)
}
