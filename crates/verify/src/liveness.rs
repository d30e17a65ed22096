//! What is dead in old code: what may be overwritten there without the program noticing.
//!
//! A register or flag is dead at an address if on every way from there it is overwritten before it is read.
//! The ways are followed forwards through the input's code, into other functions by jumps as well, until
//! nothing is left in question. What is not known reads everything.
//!
//! What calling conventions say is used where the rewriter relies on it too, and nowhere else. It is assumption
//! A13, which is counted for functions whose proof needs it ([`Known::by_convention`]):
//!
//! * No flag that is computed ([`crate::arch::step::flag`]) goes into a call or comes out of it: neither
//!   calls nor returns nor jumps to functions through pointers read one. So the flags are dead before a
//!   return, and before an instruction that does nothing but fault.
//! * Every other register is read by calls, and by whatever leaves the function; callers compiled together
//!   with their callees rely on more than conventions say. Excepted are those that belong to linkers' stubs
//!   ([`Arch::STUB_SCRATCH`]): when a function is entered from outside they hold nothing, and on machines
//!   whose compilers agree ([`Arch::STUBS_AT_CALLS`]) they are dead before calls and returns of functions
//!   that have unwind entries. Where a jump may continue in old code, or leaves the function without kept relocations,
//!   what it leads to need not be known to be a part of the function: they are dead there only if no instruction of the
//!   function has anything to do with them.
//! * Where instructions that fault raise exceptions, landing pads read the registers that calls keep, and no other.
//! * Code that a signal handler, a debugger or a tracer looks at is not code that looks at registers.

use crate::addr::InputAddr;
use crate::arch::{Arch, Effects, FlagStep, Flow, Insn};
use crate::context::Context;
use crate::files::claim::Range;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::cell::Cell;

/// How many instructions are looked at for one question, and how many more for all questions of a function
/// together, before the answer is no.
const BUDGET: usize = 4000;
pub(crate) const RESERVE: usize = 1 << 22;

/// Registers and flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Set {
    pub regs: u32,
    pub flags: u8,
}

impl Set {
    pub(crate) fn is_empty(self) -> bool {
        self == Set::default()
    }
    fn within(self, other: Set) -> bool {
        self.regs & !other.regs == 0 && self.flags & !other.flags == 0
    }
}

/// What was read of old code lately, by address: the same few instructions are asked for again and again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recent<'a> {
    entries: Vec<Entry>,
    /// Code that was read last: its range, and all bytes from its start on.
    code: Range,
    bytes: &'a [u8],
    /// Where the last question came by, and what was open there.
    seen: FxHashMap<u64, Set>,
}

/// An instruction, and what it reads and overwrites if that was asked.
#[derive(Clone, Copy, Debug)]
struct Entry {
    at: u64,
    insn: Insn,
    effects: Option<Effects>,
}

/// Instructions that are remembered; a power of two.
const REMEMBERED: usize = 1 << 10;

/// Places that memory is kept for from one question to the next.
const KEPT: usize = 1 << 8;

impl<'a> Recent<'a> {
    #[inline]
    fn entry(&mut self, at: u64) -> Option<&mut Entry> {
        self.entries.get_mut(at as usize & (REMEMBERED - 1))
    }

    /// The instruction at `at`, whose bytes these are.
    #[inline]
    pub(crate) fn insn<A: Arch>(&mut self, bytes: &[u8], at: u64) -> Option<Insn> {
        if let Some(entry) = self.entry(at)
            && entry.at == at
            && usize::from(entry.insn.len) <= bytes.len()
        {
            return Some(entry.insn);
        }
        self.read::<A>(bytes, at)
    }

    fn read<A: Arch>(&mut self, bytes: &[u8], at: u64) -> Option<Insn> {
        let insn = A::decode(bytes, at)?;
        let entry = Entry {
            at,
            insn,
            effects: None,
        };
        if self.entries.is_empty() {
            // Nothing is at the highest address.
            let none = Entry {
                at: u64::MAX,
                ..entry
            };
            self.entries.resize(REMEMBERED, none);
        }
        if let Some(slot) = self.entry(at) {
            *slot = entry;
        }
        Some(insn)
    }

    /// What the instruction at `at`, whose bytes these are, reads and overwrites.
    #[inline]
    fn effects<A: Arch>(&mut self, bytes: &[u8], at: u64) -> Effects {
        match self.entry(at) {
            Some(entry) if entry.at == at => {
                *entry.effects.get_or_insert_with(|| A::effects(bytes))
            }
            _ => A::effects(bytes),
        }
    }

    /// All bytes of the input from an address on, if it is one of code.
    #[inline]
    fn code(&mut self, cx: &Context<'a>, at: u64) -> Option<&'a [u8]> {
        if self.code.contains(at) {
            return self.bytes.get((at - self.code.start) as usize..);
        }
        self.other_code(cx, at)
    }

    /// Another question begins. Nearly all are short, and some are very long.
    fn forget_places(&mut self) {
        if self.seen.capacity() > KEPT {
            self.seen = FxHashMap::default();
        } else if !self.seen.is_empty() {
            self.seen.clear();
        }
    }

    fn other_code(&mut self, cx: &Context<'a>, at: u64) -> Option<&'a [u8]> {
        let range = cx.code_at(at)?;
        let bytes = cx.input.bytes_from(range.start).unwrap_or(b"");
        // It is at hand from now on if it is in one segment.
        if bytes.len() as u64 >= range.len() {
            (self.code, self.bytes) = (range, bytes);
        }
        cx.input.bytes_from(at)
    }
}

/// What is known of the function for whose sake is asked.
pub(crate) struct Known<'a> {
    /// Old addresses in it that its indirect jumps may go to.
    pub targets: &'a [InputAddr],
    /// Where its code is.
    pub own: &'a [Range<InputAddr>],
    /// Registers that calls, returns and jumps out of it to other functions do not read.
    pub unread: u32,
    /// Asked for where the function was just entered: those registers and the flags hold nothing, so it does
    /// not matter what reads them when the program is stopped.
    pub entered: bool,
    /// Of these registers none is read or written by the function's own code but by calls, so nothing is in them where
    /// one of its jumps continues in old code or leaves it.
    pub untouched: u32,
    /// Instructions of it that fault may go to landing pads, which read the registers that calls keep.
    pub faults: bool,
    /// Set where the answer is yes only because calling conventions say so (assumption A13).
    pub by_convention: &'a Cell<bool>,
    /// What is left of [`RESERVE`].
    pub reserve: &'a Cell<usize>,
}

impl Known<'_> {
    /// What is still in question of registers and flags behind a direct branch.
    fn left_by(&self, at: u64, target: u64, open: Set) -> Set {
        let is_own = |at: u64| self.own.iter().any(|r| r.contains(InputAddr::new(at)));
        let nothing = open.regs & self.untouched;
        if nothing == 0 || !is_own(at) || is_own(target) {
            return open;
        }
        self.by_convention.set(true);
        Set {
            regs: open.regs & !nothing,
            ..open
        }
    }
}

/// Instructions, and ways that wait, for a question of flags that is answered at once.
const FEW: usize = 32;
const WAYS: usize = 8;

/// Whether flags are dead at `from`, if a few instructions say that, which nearly all questions need; what [`dead`]
/// finds then.
fn flags_are_dead<'a, A: Arch>(
    cx: &Context<'a>,
    recent: &mut Recent<'a>,
    known: &Known<'_>,
    from: u64,
    flags: u8,
) -> Option<bool> {
    let mut ways = [(0u64, 0u8); WAYS];
    let mut waiting = 0;
    let mut by_convention = false;
    let (mut at, mut open) = (from, flags);
    let mut bytes = recent.code(cx, at)?;
    let mut left = FEW;
    while left > 0 {
        let straight = A::flags_over(bytes, open, left);
        left -= straight.count;
        open = match straight.open {
            Some(open) => open,
            None => return Some(false),
        };
        at = at.checked_add(straight.len as u64)?;
        bytes = bytes.get(straight.len..)?;
        let mut to = None;
        if open != 0 {
            left = left.checked_sub(1)?;
            match A::flag_step(bytes, at)? {
                FlagStep::Next { len, reads, kills } => {
                    if open & reads != 0 {
                        return Some(false);
                    }
                    open &= !kills;
                    at = at.checked_add(u64::from(len))?;
                    bytes = bytes.get(usize::from(len)..)?;
                }
                FlagStep::Branch { len, reads, target } => {
                    if open & reads != 0 {
                        return Some(false);
                    }
                    *ways.get_mut(waiting)? = (target, open);
                    waiting += 1;
                    at = at.checked_add(u64::from(len))?;
                    bytes = bytes.get(usize::from(len)..)?;
                }
                FlagStep::Jump(target) => to = Some(target),
                FlagStep::Leaves => {
                    by_convention = true;
                    open = 0;
                }
            }
        }
        if open == 0 {
            let Some(next) = waiting.checked_sub(1) else {
                if by_convention {
                    known.by_convention.set(true);
                }
                return Some(true);
            };
            waiting = next;
            let way = *ways.get(next)?;
            (to, open) = (Some(way.0), way.1);
        }
        if let Some(to) = to {
            at = to;
            bytes = recent.code(cx, at)?;
        }
    }
    None
}

/// Whether all of `set` is dead at `from`.
pub(crate) fn dead<'a, A: Arch>(
    cx: &Context<'a>,
    recent: &mut Recent<'a>,
    known: &Known<'_>,
    from: u64,
    set: Set,
) -> bool {
    if set.regs == 0
        && let Some(dead) = flags_are_dead::<A>(cx, recent, known, from, set.flags)
    {
        return dead;
    }
    let mut work: SmallVec<[(u64, Set); 8]> = SmallVec::new();
    work.push((from, set));
    recent.forget_places();
    let mut budget = BUDGET;
    // Instructions that were looked at.
    let mut straight = 0;
    while let Some((mut at, mut open)) = work.pop() {
        while !open.is_empty() {
            // Among the first few instructions no place is seen twice, or it does not matter.
            straight += 1;
            if straight > 8 {
                let before = recent.seen.entry(at).or_default();
                if open.within(*before) {
                    break;
                }
                *before = Set {
                    regs: before.regs | open.regs,
                    flags: before.flags | open.flags,
                };
            }
            if budget > 0 {
                budget -= 1;
            } else if let Some(left) = known.reserve.get().checked_sub(1) {
                known.reserve.set(left);
            } else {
                return false;
            }
            // Without relocations a compiler's part of a function may begin there, which is given anything.
            if !cx.bare
                && open.regs & known.unread != 0
                && !known.own.iter().any(|r| r.contains(InputAddr::new(at)))
                && cx.old_unwind.find(at).is_some_and(|f| f.start == at)
            {
                known.by_convention.set(true);
                open.regs &= !known.unread;
                continue;
            }
            // Where there is no memory (what weak symbols that are not defined call), the program ends.
            let Some(bytes) = recent.code(cx, at) else {
                if at >= 4096 || cx.is_code(at) {
                    return false;
                }
                break;
            };
            let Some(insn) = recent.insn::<A>(bytes, at) else {
                return false;
            };
            let next = at.saturating_add(u64::from(insn.len));
            match insn.flow {
                Flow::Nothing => at = next,
                Flow::Jump(target) => {
                    open = known.left_by(at, target, open);
                    at = target;
                }
                Flow::Call(_) | Flow::IndirectCall => {
                    let effects = recent.effects::<A>(bytes, at);
                    let operand = match insn.flow {
                        Flow::IndirectCall => effects.reads,
                        _ => 0,
                    };
                    if open.regs & (operand | !known.unread) != 0 {
                        return false;
                    }
                    known.by_convention.set(true);
                    break;
                }
                // Old code continues there, with whatever it needs.
                Flow::IndirectJump { .. } if cx.falls_back(&insn) => {
                    let own = known.own.iter().any(|r| r.contains(InputAddr::new(at)));
                    if !own || open.flags != 0 || open.regs & !known.untouched != 0 {
                        return false;
                    }
                    known.by_convention.set(true);
                    break;
                }
                Flow::IndirectJump { computed } => {
                    if open.regs & (recent.effects::<A>(bytes, at).reads | !known.unread) != 0 {
                        return false;
                    }
                    if known.entered {
                        // What continues at once may hand on what it was given.
                        if computed && straight <= 3 {
                            return false;
                        }
                    } else if computed {
                        work.extend(known.targets.iter().map(|t| (t.get(), open)));
                        break;
                    }
                    known.by_convention.set(true);
                    break;
                }
                Flow::Stop => {
                    // Linkers let jumps to weak functions that are not defined run into what is after: there
                    // the program ends. Who handles a fault does not look at flags that were computed.
                    let returns = A::is_return(bytes) || known.entered || A::is_undefined(bytes);
                    let faults = || open.regs == 0 && A::only_faults(bytes);
                    if !(returns || faults()) || open.regs & !known.unread != 0 {
                        return false;
                    }
                    known
                        .by_convention
                        .set(!A::is_undefined(bytes) || known.by_convention.get());
                    break;
                }
                // A handler that continues after it restores the flags.
                Flow::Trap if open.regs == 0 && !known.entered && !A::is_system_call(bytes) => {
                    at = next;
                }
                Flow::Next if known.faults && open.regs & A::KEPT_BY_CALLS != 0 => return false,
                Flow::Next | Flow::Trap | Flow::Branch { .. } => {
                    let effects = recent.effects::<A>(bytes, at);
                    let stops = insn.flow == Flow::Trap && !A::is_system_call(bytes);
                    if stops && known.entered {
                        break;
                    }
                    if stops
                        || open.regs & effects.reads != 0
                        || open.flags & effects.flag_reads != 0
                    {
                        return false;
                    }
                    open.regs &= !effects.kills;
                    open.flags &= !effects.flag_kills;
                    if let Flow::Branch { target, .. } = insn.flow {
                        let open = known.left_by(at, target, open);
                        if !open.is_empty() {
                            work.push((target, open));
                        }
                    }
                    at = next;
                }
            }
        }
    }
    true
}
