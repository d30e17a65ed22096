//! Which bytes correspond to which: the claim in `.note.postlink.moves`, compared with the pairs of the lock step.
//!
//! The lock step pairs instructions that do something. It follows jumps and padding silently, and does not
//! come to code that nothing reaches, so what those correspond to is left open by it: of two jumps in a row the
//! one or the other may be the old one. The note (owner `postlink`, type 2) says so:
//!
//! | field | encoding |
//! |---|---|
//! | version, 1 or 2 | u32 |
//! | number of runs, ascending and disjoint in the input | uleb |
//! | per run: old address − end of the run before it | uleb |
//! | 2 × number of old bytes, + 1 if the number of new bytes is another one | uleb |
//! | that number, if it is another one | uleb |
//! | new address − new end of the run before it | sleb |
//! | version 2: number of jumps at old entries; per jump: address − end of the one before it, bytes | uleb |
//! | version 2: number of functions whose pointers follow; per function: old entry − the one before it (uleb), new − old (sleb) | uleb |
//!
//! What version 2 adds is for updating debug information in another file. The checker finds both in the code, and
//! compares ([`super::program`]).
//!
//! What is shown of it:
//!
//! * A run's old bytes are in one old range of a function, its new ones in one new range of the same
//!   function; new bytes are of one run at most.
//! * Each pair is in a run, at the place that it has there.
//! * A jump in a run corresponds to a jump, padding for padding, and both lead to the same instruction as the old ones.
//! * Code in a run that nothing reaches is the same instructions.
//!
//! So a run says nothing of code that does something that the lock step did not find. New bytes after a run
//! that are in no other are its *tail*.

use crate::addr::{InputAddr, OutputAddr};
use crate::arch::{Arch, Flow};
use crate::context::{Context, FuncId};
use crate::files::bytes::Reader;
use crate::files::claim::{Moved, Range};
use crate::walk::Walked;
use crate::walk::changes::goes_through_slot;

use super::map::MovedRun;

/// What the note claims.
#[derive(Debug, Default)]
pub(crate) struct Claimed {
    /// Runs, without their tails.
    pub runs: Vec<MovedRun>,
    /// Version 2: jumps at old entries, and functions whose pointers follow (old entry, new entry).
    pub more: Option<(Vec<std::ops::Range<u64>>, Vec<(u64, u64)>)>,
}

/// Reads the note's description.
pub(crate) fn parse(desc: &[u8]) -> Option<Claimed> {
    let mut r = Reader::new(desc);
    let version = r.u32()?;
    if !(1..=2).contains(&version) {
        return None;
    }
    let mut claimed = Claimed {
        runs: runs(&mut r)?,
        more: None,
    };
    if version == 2 {
        let (mut jumps, mut pointers) = (Vec::new(), Vec::new());
        let mut end = 0u64;
        for _ in 0..r.uleb()? {
            let start = end.checked_add(r.uleb()?)?;
            end = start.checked_add(r.uleb()?)?;
            jumps.push(start..end);
        }
        let mut old = 0u64;
        for _ in 0..r.uleb()? {
            old = old.checked_add(r.uleb()?)?;
            pointers.push((old, old.checked_add_signed(r.sleb()?)?));
        }
        claimed.more = Some((jumps, pointers));
    }
    r.is_empty().then_some(claimed)
}

fn runs(r: &mut Reader<'_>) -> Option<Vec<MovedRun>> {
    let count = r.uleb()?;
    let mut out = Vec::new();
    let (mut old, mut new) = (0u64, 0u64);
    for _ in 0..count {
        let start = old.checked_add(r.uleb()?)?;
        let twice = r.uleb()?;
        let len = twice / 2;
        let new_len = if twice % 2 == 1 { r.uleb()? } else { len };
        let new_start = new.checked_add_signed(r.sleb()?)?;
        (old, new) = (start.checked_add(len)?, new_start.checked_add(new_len)?);
        if len == 0 {
            return None;
        }
        out.push(MovedRun {
            old: (start, len),
            new: (new_start, new_len),
            tail: 0,
        });
    }
    Some(out)
}

/// A function whose runs are compared.
struct Function<'a, A> {
    cx: &'a Context<'a>,
    f: &'a Moved,
    /// By new address.
    runs: Vec<MovedRun>,
    arch: std::marker::PhantomData<A>,
}

/// Compares the runs of a function (those of its old ranges) with its pairs. Returns them with their tails,
/// or why they are wrong.
pub(crate) fn compare<A: Arch>(
    cx: &Context<'_>,
    id: FuncId,
    runs: &[MovedRun],
    walked: &Walked,
) -> Result<Vec<MovedRun>, String> {
    // New code that stands for several functions is described by that which it is the code of.
    let Some(f) = cx.function(id).filter(|f| f.folded.is_none()) else {
        return Ok(Vec::new());
    };
    let mut function = Function::<A> {
        cx,
        f,
        runs: Vec::new(),
        arch: std::marker::PhantomData,
    };
    for range in &f.old {
        let from = runs.partition_point(|r| r.old.0 < range.start.get());
        let to = runs.partition_point(|r| r.old.0 < range.end.get());
        let own = runs.get(from..to).unwrap_or_default();
        if let Some(run) = own.last().filter(|r| r.old.0 + r.old.1 > range.end.get()) {
            return Err(wrong(run, "leaves its function"));
        }
        function.runs.extend_from_slice(own);
    }
    function.runs.sort_by_key(|r| r.new);
    function.tails()?;
    function.pairs(walked)?;
    function.silent(walked)?;
    function.unreached(walked)?;
    Ok(function.runs)
}

fn wrong(run: &MovedRun, what: &str) -> String {
    format!(
        "the run of {:#x} bytes at {:#x}, now {:#x}, {what}",
        run.old.1, run.old.0, run.new.0
    )
}

impl<A: Arch> Function<'_, A> {
    /// New address of a place in the new ranges, and the end of its range.
    fn address(&self, slot: u32) -> Option<(u64, Range)> {
        let mut left = u64::from(slot);
        for range in &self.f.new {
            if left < range.len() {
                return Some(((range.start + left).get(), range.numbers()));
            }
            left -= range.len();
        }
        None
    }

    /// The run that holds a new byte.
    fn run(&self, new: u64) -> Option<&MovedRun> {
        let behind = self.runs.partition_point(|r| r.new.0 <= new);
        let run = self.runs.get(behind.checked_sub(1)?)?;
        (new - run.new.0 < run.new.1).then_some(run)
    }

    /// Gives each run the new bytes after it up to the next one.
    fn tails(&mut self) -> Result<(), String> {
        for i in 0..self.runs.len() {
            let run = self.runs[i];
            let end = run.new.0 + run.new.1;
            let inside = |r: &Range| r.start <= run.new.0 && end <= r.end;
            let Some(range) = self.f.new.iter().map(Range::numbers).find(inside) else {
                return Err(wrong(&run, "is in none of its function's new ranges"));
            };
            let next = self.runs.get(i + 1).map_or(range.end, |r| r.new.0);
            if next < end {
                return Err(wrong(&run, "shares new bytes with another"));
            }
            self.runs[i].tail = next.min(range.end) - end;
        }
        Ok(())
    }

    /// Pairs that do something are in runs.
    fn pairs(&self, walked: &Walked) -> Result<(), String> {
        let base = self.cx.input.extent().0;
        let mut silent = walked.silent.iter().copied().peekable();
        for (slot, old) in walked.pairs.each(base) {
            while silent.next_if(|s| *s < slot).is_some() {}
            if silent.peek() == Some(&slot) {
                continue;
            }
            let Some((new, _)) = self.address(slot) else {
                return Err(format!("the pair of {old:#x} is outside of new code"));
            };
            let stands = |run: &&MovedRun| {
                if run.old.1 == run.new.1 {
                    old == run.old.0 + (new - run.new.0)
                } else {
                    old == run.old.0
                }
            };
            if self.run(new).filter(stands).is_none() {
                return Err(format!(
                    "the instruction at {new:#x} corresponds to the one at {old:#x}, and no run says so"
                ));
            }
        }
        Ok(())
    }

    /// Jumps and padding in runs correspond to such.
    fn silent(&self, walked: &Walked) -> Result<(), String> {
        let base = self.cx.input.extent().0;
        let mut silent = walked.silent.iter().copied().peekable();
        for (slot, state) in walked.pairs.each(base) {
            while silent.next_if(|s| *s < slot).is_some() {}
            if silent.next_if_eq(&slot).is_none() {
                continue;
            }
            let Some((new, _)) = self.address(slot) else {
                continue;
            };
            let Some(run) = self.run(new) else {
                continue;
            };
            let copied = run.old.1 == run.new.1;
            if !copied && new > run.new.0 {
                continue; // a part of one instruction that became several, the first of which is a pair
            }
            let old = run.old.0 + (new - run.new.0);
            // A jump through a slot is among silent steps only if it corresponds to one to a stub.
            let is_jump = |flow: Flow| matches!(flow, Flow::Jump(_) | Flow::IndirectJump { .. });
            let kinds = (
                self.decode_old(old).map(is_jump),
                self.decode_new(new).map(is_jump),
            );
            let same = matches!(kinds, (Some(a), Some(b)) if a == b);
            if !same || self.leads_to(old) != Some(state) {
                let what = format!(
                    "has at {new:#x} what leads to {state:#x}, and at {old:#x} what does not"
                );
                return Err(wrong(run, &what));
            }
        }
        Ok(())
    }

    fn decode_old(&self, at: u64) -> Option<Flow> {
        A::decode(self.cx.input.bytes_from(at)?, at).map(|i| i.flow)
    }

    fn decode_new(&self, at: u64) -> Option<Flow> {
        A::decode(self.cx.output.bytes_from(at)?, at).map(|i| i.flow)
    }

    /// Where jumps and padding from an old address lead: what the lock step calls the state.
    fn leads_to(&self, at: u64) -> Option<u64> {
        let mut chain: Vec<u64> = Vec::new();
        let mut at = at;
        loop {
            if let Some(start) = chain.iter().position(|&c| c == at) {
                return chain.get(start..)?.iter().min().copied(); // an endless loop
            }
            if !self.f.in_old(InputAddr::new(at)) {
                // What is outside of the file is known by the jump that goes there.
                let (start, _) = self.cx.input.extent();
                let known = at
                    .checked_sub(start)
                    .is_some_and(|d| d < u64::from(u32::MAX) - 1);
                return if known {
                    Some(at)
                } else {
                    chain.last().copied()
                };
            }
            chain.push(at);
            let insn = A::decode(self.cx.input.bytes_from(at)?, at)?;
            match insn.flow {
                Flow::Nothing => at = at.checked_add(u64::from(insn.len))?,
                Flow::Jump(target) => at = target,
                _ => return Some(at),
            }
            if chain.len() > 4096 {
                return None;
            }
        }
    }

    /// Code that nothing reaches is the same where a run says so.
    fn unreached(&self, walked: &Walked) -> Result<(), String> {
        for part in &walked.free {
            let (Some((start, _)), len) = (self.address(part.start), part.end - part.start) else {
                continue;
            };
            let end = start + u64::from(len);
            let mut at = start;
            while at < end {
                let Some(run) = self.run(at) else {
                    let next = self.runs.partition_point(|r| r.new.0 <= at);
                    at = self.runs.get(next).map_or(end, |r| r.new.0);
                    continue;
                };
                let old = run.old.0 + (at - run.new.0);
                let same = if run.old.1 == run.new.1 {
                    self.same_instruction(old, at)
                } else {
                    self.same_kind(run)
                };
                match same {
                    Some(len) => at += len,
                    None => {
                        let what = format!(
                            "has other instructions at {at:#x} than at {old:#x}, which nothing reaches"
                        );
                        return Err(wrong(run, &what));
                    }
                }
            }
        }
        Ok(())
    }

    /// The length of two instructions that are equal but for addresses. A conditional branch may be the opposite of
    /// what it was: what follows it is elsewhere then.
    fn same_instruction(&self, old: u64, new: u64) -> Option<u64> {
        let (a, b) = (
            self.cx.input.bytes_from(old)?,
            self.cx.output.bytes_from(new)?,
        );
        let (Some(x), Some(y)) = (A::decode(a, old), A::decode(b, new)) else {
            // What is no instruction is data, and the same byte by byte.
            return (a.get(..A::STEP)? == b.get(..A::STEP)?).then_some(A::STEP as u64);
        };
        let len = usize::from(x.len);
        let (a, b) = (a.get(..len)?, b.get(..len)?);
        let equal = a == b
            || x.field
                .zip(y.field)
                .is_some_and(|(f, _)| A::equal_around(a, b, &f));
        let turned = match (x.flow, y.flow) {
            (Flow::Branch { inverse, .. }, Flow::Branch { cond, .. }) => inverse == Some(cond),
            _ => false,
        };
        (x.len == y.len && (equal || turned)).then_some(u64::from(x.len))
    }

    /// The length of a run whose one instruction was re-encoded, and is one of the same kind.
    fn same_kind(&self, run: &MovedRun) -> Option<u64> {
        let (a, b) = (self.decode_old(run.old.0)?, self.decode_new(run.new.0)?);
        if let Flow::Call(target) | Flow::Jump(target) = a
            && let Some(bytes) = self.cx.output.bytes_from(run.new.0)
            && let call = matches!(a, Flow::Call(_))
            && goes_through_slot::<A>(self.cx, target, call, bytes, OutputAddr::new(run.new.0))
                == Some(run.new.1)
        {
            return Some(run.new.1);
        }
        (std::mem::discriminant(&a) == std::mem::discriminant(&b)).then_some(run.new.1)
    }
}
