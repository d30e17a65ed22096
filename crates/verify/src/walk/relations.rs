//! What refers to what: a place that the old code names, and the one that the new code names in its stead.

use super::{State, Step, Walk, fail};
use crate::addr::{InputAddr, OutputAddr, Pair};
use crate::arch::{Arch, Field, FieldKind};
use crate::report::{Check, Failure};
use smallvec::SmallVec;

impl<'a, A: Arch> Walk<'a, '_, A> {
    /// Two instructions are equal but for these fields: are the addresses related as they must be?
    pub(super) fn relate_field(
        &mut self,
        p: InputAddr,
        bytes: &[u8],
        a: &Field,
        q: OutputAddr,
        b: &Field,
    ) -> Step {
        let (old, new) = (InputAddr::new(a.target), OutputAddr::new(b.target));
        let wrong = |what: &str| fail(Failure::new(Check::Code, what).at(p, q).values(old, new));
        match a.kind {
            FieldKind::Branch => self.relate(old, new),
            FieldKind::Page => wrong("the instruction forms another page"),
            FieldKind::Accesses => {
                if old.kept() != new && !self.same_literal(a, b) {
                    return wrong("the instruction accesses another address");
                }
                if let Some(id) = self.cx.overwritten(old) {
                    let at = self
                        .cx
                        .function(id)
                        .map_or(InputAddr::new(0), |f| f.old_entry);
                    return wrong(&format!(
                        "the instruction reads code at {at:#x} that was overwritten by a jump"
                    ));
                }
                if self.cx.is_abandoned(old.get()) {
                    return wrong("the instruction accesses a section that was moved");
                }
                Ok(())
            }
            FieldKind::Forms | FieldKind::Absolute => {
                if self.cx.is_abandoned(old.get()) && a.kind == FieldKind::Forms {
                    return wrong("the instruction forms the address of a section that was moved");
                }
                if a.kind == FieldKind::Forms && self.cx.is_registered(old.get()) {
                    return if self.cx.registers_anew(old, new) {
                        self.out.registers += 1;
                        Ok(())
                    } else {
                        wrong(
                            "the instruction forms the address of an unwind table that was replaced",
                        )
                    };
                }
                let entry = self.cx.entry_of(old);
                if old.kept() == new {
                    match entry {
                        Some(id) if a.kind == FieldKind::Forms => {
                            self.out.addresses.push((id, false))
                        }
                        Some(_) => {}
                        None => self.enter_old(old),
                    }
                    if a.kind == FieldKind::Forms
                        && let Some(id) = self.cx.end_of(old)
                    {
                        self.out.inside.push((id, old));
                    }
                    return Ok(());
                }
                if self.cx.bare {
                    return wrong(
                        "the instruction forms another address, in a file without kept relocations",
                    );
                }
                if self.cx.calculating.contains(&self.id) {
                    return wrong(
                        "the instruction forms another address, in a function that adds distances to addresses",
                    );
                }
                if let Some(id) = entry
                    && self.cx.pair_owner(old, new) == Some(id)
                {
                    self.out.addresses.push((id, true));
                    return self.relate_indirect(old, new);
                }
                let Some(id) = self.cx.pair_owner(old, new) else {
                    return wrong("the instruction forms another address");
                };
                self.out.labels.push((id, old));
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
    pub(super) fn enter_old(&mut self, addr: InputAddr) {
        if let Some(id) = self.cx.inside_of(addr) {
            self.out.entrances.push(id);
        }
    }

    /// Notes that the function goes to a place in its own new code, if that is at the entry or behind its landing pad.
    pub(super) fn come_again(&mut self, at: OutputAddr) {
        if at.get().wrapping_sub(self.f.new_entry().get()) <= 8 {
            self.comes_again.push(at);
        }
    }

    /// Control that went to `old` goes to `new` now.
    pub(super) fn relate(&mut self, old: InputAddr, new: OutputAddr) -> Step {
        // The entry of a function that shares this one's new code. That pair is shown where that function is walked. No
        // other has new code where this one has, and all that share it have one new entry.
        let is_own = self.f.in_new(new);
        if (!is_own || new == self.f.new_entry())
            && (self.cx.entered_at(old, new)).is_some_and(|id| id != self.id)
        {
            return Ok(());
        }
        if is_own {
            if A::STEP > 1 || self.cx.counts.is_some() {
                self.joined.push(new);
                if !self.calling {
                    self.come_again(new);
                }
            }
            let pages = (!self.carry.is_empty()).then(|| self.carry.as_slice().into());
            self.s.work.push((old, new, pages));
            return Ok(());
        }
        if old.kept() == new {
            self.enter_old(old);
            return Ok(());
        }
        if self.f.in_old(old) {
            // A jump in old code may have been skipped.
            let mut chain = SmallVec::new();
            let state = self.state(old, &mut chain)?;
            if chain.contains(&new.of_old_image()) {
                self.enter_old(new.of_old_image());
                return Ok(());
            }
            if let State::Exit(x) = state {
                return self.relate_outside(x, new, new);
            }
        }
        self.relate_outside(old, new, new)
    }

    /// Control that left the function to `old` leaves it to `new` now.
    pub(super) fn relate_outside(
        &mut self,
        old: InputAddr,
        new: OutputAddr,
        q: OutputAddr,
    ) -> Step {
        if old.kept() == new {
            self.enter_old(old);
            return Ok(());
        }
        if self.cx.entered_at(old, new).is_some() {
            return Ok(());
        }
        match self.cx.pair_owner(old, new) {
            Some(_) => {
                self.out.cross.push((old, new));
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
    pub(super) fn through_veneers<B: Arch>(&self, old: InputAddr, new: OutputAddr) -> Option<Pair> {
        // A function that was moved is entered where it is, not taken for a veneer.
        let from = if self.cx.old.owner(old).is_some() {
            old
        } else {
            InputAddr::new(self.cx.behind_veneer::<B>(self.cx.input, old.get()))
        };
        let to = if self.cx.new.owner(new).is_some() {
            new
        } else {
            OutputAddr::new(self.cx.behind_veneer::<B>(self.cx.output, new.get()))
        };
        ((from, to) != (old, new)).then_some((from, to))
    }

    /// The same for places that are jumped to indirectly: what must be first there still does.
    pub(super) fn relate_indirect(&mut self, old: InputAddr, new: OutputAddr) -> Step {
        if A::STEP > 1 && self.f.in_old(old) {
            self.indirect.push(old);
        }
        self.relate_pad(old, new)
    }

    /// The same for a landing pad of exceptions, where it is known from where control comes.
    pub(super) fn relate_pad(&mut self, old: InputAddr, new: OutputAddr) -> Step {
        if self.f.in_new(new) {
            self.own.entered.push(new);
        }
        let pad = |bytes: Option<&[u8]>, at: u64| {
            bytes
                .and_then(|b| A::decode(b, at))
                .is_some_and(|i| i.landing_pad)
        };
        if self.cx.guarded
            && self.f.in_new(new)
            && pad(self.old_bytes(old), old.get())
            && !pad(self.new_bytes(new).map(|b| b.0), new.get())
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
}
