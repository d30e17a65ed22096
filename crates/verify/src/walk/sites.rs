//! Unwinding, in the lock step: rows and call sites of the new code against those of the old.

use super::{Step, Walk, fail};
use crate::addr::{InputAddr, OutputAddr};
use crate::arch::Arch;
use crate::files::claim::Range;
use crate::files::lsda::{Lsda, Outcome};
use crate::files::unwind::RowMap;
use crate::report::{Check, Failure};
use smallvec::SmallVec;

impl<'a, A: Arch> Walk<'a, '_, A> {
    pub(super) fn prepare_unwind(&mut self) -> Step {
        let sentence = |what: String| Box::new(Failure::new(Check::Unwind, what));
        self.s.interner.clear();
        self.s.old_lsdas.clear();
        self.s.new_lsdas.clear();
        self.s.chains.clear();
        for (which, table) in [(false, &self.cx.old_unwind), (true, &self.cx.new_unwind)] {
            let numbers = |which| {
                if which {
                    self.f.new.iter().map(Range::numbers).collect()
                } else {
                    self.f.old.iter().map(Range::numbers).collect()
                }
            };
            let ranges: SmallVec<[Range; 2]> = numbers(which);
            let map = if which {
                &mut self.s.new_rows
            } else {
                &mut self.s.old_rows
            };
            let spans = map.clear();
            for r in ranges {
                for fde in table.overlapping(r.start, r.end) {
                    let asked = self.cx.asked.get(fde.cie as usize);
                    let asked = asked.copied().filter(|_| !which).unwrap_or_default();
                    self.faults |= asked.of_all;
                    self.out.unnamed_reader |= asked.unnamed && fde.lsda != 0;
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

    /// Up to where the rows at two addresses hold, if they are equal: bytes of old and of new code.
    pub(super) fn rows_are_equal(&self, p: InputAddr, q: OutputAddr) -> Option<(usize, usize)> {
        let (old, new) = (&self.s.old_rows, &self.s.new_rows);
        if old.is_empty() && new.is_empty() {
            return Some((usize::MAX, usize::MAX));
        }
        let (old, new) = (old.at(p.get())?, new.at(q.get())?);
        let left = |end: u64, at: u64| usize::try_from(end - at).ok();
        (old.row == new.row).then_some((left(old.end, p.get())?, left(new.end, q.get())?))
    }

    /// The new instruction at `q` must have the unwind row of one of the old addresses.
    #[inline]
    pub(super) fn check_rows(&mut self, old: &[InputAddr], q: OutputAddr, len: u64) -> Step {
        let (row, covers) = self.s.new_rows.row(q.get(), len);
        if covers
            && old
                .iter()
                .any(|&p| self.s.old_rows.row(p.get(), 1).0 == row)
        {
            return Ok(());
        }
        // A state outside the function has no row of its own that this function's tables could tell.
        if old.is_empty() && covers {
            return Ok(());
        }
        let p = old.first().copied().unwrap_or_default();
        let mut failure = Failure::new(Check::Unwind, "the unwind row differs").at(p, q);
        if !covers {
            failure.reason = "the unwind row changes in the middle of an instruction".into();
        }
        failure.old_value = self.s.interner.describe(self.s.old_rows.row(p.get(), 1).0);
        failure.new_value = self.s.interner.describe(row);
        fail(failure)
    }

    /// Whether new code at `q` has the unwind row of one of the old addresses, if there are some.
    pub(super) fn has_row_of(&self, old: &[InputAddr], q: OutputAddr) -> bool {
        let row = self.s.new_rows.row(q.get(), 1).0;
        let mut rows = old.iter().map(|p| self.s.old_rows.row(p.get(), 1).0);
        old.is_empty() || rows.any(|old| old == row)
    }

    /// The same for an instruction that is not a call. In C++ one that no call site covers cannot throw, says the
    /// compiler that was asked for exceptions from such instructions; then nothing depends on what covers it. In Ada
    /// it may: a push of the prologue onto a full stack.
    #[inline]
    pub(super) fn check_other_site(&mut self, p: InputAddr, q: OutputAddr) -> Step {
        if self.faults {
            return self.check_call_site(p, p, q, q);
        }
        if !self.cx.options.non_call_exceptions {
            return Ok(());
        }
        match self.outcome(false, p.get()) {
            Some((Outcome::Terminate, _)) => Ok(()),
            _ => self.check_call_site(p, p, q, q),
        }
    }

    /// What the personality routine decides for the call at `p`, seen at `p_ip`, it must decide for the one at `q`.
    pub(super) fn check_call_site(
        &mut self,
        p: InputAddr,
        p_ip: InputAddr,
        q: OutputAddr,
        q_ip: OutputAddr,
    ) -> Step {
        let old = self.outcome(false, p_ip.get());
        let new = self.outcome(true, q_ip.get());
        let (Some((old, old_lsda)), Some((new, new_lsda))) = (old, new) else {
            return fail(
                Failure::new(
                    Check::LandingPads,
                    "the language-specific data is not understood, or the dynamic loader changes it",
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
                    pushed(&self.s.old_rows, p_ip.get()),
                    pushed(&self.s.new_rows, q_ip.get()),
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
                let (old_pad, new_pad) = (InputAddr::new(old_pad), OutputAddr::new(new_pad));
                if self.f.in_new(new_pad)
                    || old_pad.kept() == new_pad
                    || self.cx.pair_owner(old_pad, new_pad).is_some()
                {
                    self.relate_pad(old_pad, new_pad)
                } else {
                    differ("the landing pad is at another place")
                }
            }
            _ => differ("an exception at this instruction ends elsewhere"),
        }
    }

    /// The outcome at an address, and which area decided it. `None`: an area that cannot be read.
    pub(super) fn outcome(&mut self, new: bool, ip: u64) -> Option<(Outcome, usize)> {
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
                // What the dynamic loader writes into a table is not in the file.
                let as_in_file = |l: &Lsda<'_>| {
                    let (from, to) = l.extent();
                    self.cx.loads_into(from, to).is_none()
                };
                // A routine without a name may know no base of landing pads, as that of D does not.
                let may_have_base = !new || !self.out.unnamed_reader;
                let is_read = |l: &Lsda<'_>| as_in_file(l) && (may_have_base || !l.has_base());
                let table = Lsda::parse(elf, span.lsda, span.function).filter(is_read);
                list.push((span.lsda, span.function, table));
                list.len() - 1
            }
        };
        Some((list.get(index)?.2.as_ref()?.outcome(ip), index))
    }
}
