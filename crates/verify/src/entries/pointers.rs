//! A function has one address: pointers to it are compared, so all of them lead to the same place, in code,
//! in copies of overwritten instructions, in data and in dynamic symbols.

use rustc_hash::{FxHashMap, FxHashSet};

use super::{Entries, Proof, judged, unproved};
use crate::arch::{Field, FieldKind, Flow, Insn};
use crate::files::bytes::{u32_in, u64_in};
use crate::files::claim::Range;
use crate::files::elf;
use crate::proof::described;
use crate::proof::visible::{self, Extents, Visible};
use crate::report::{Check, Failure};

impl<A: Entries> Proof<'_, A> {
    /// Notes that what pointed to `from` points to `to` now.
    pub(super) fn points(&mut self, from: u64, to: u64) {
        if A::MOVES_POINTERS && (from != to || self.starts.binary_search(&from).is_ok()) {
            self.pointed.push((from, to));
        }
    }

    /// Adds words of data and numbers in code that still hold the address of a function with another one.
    /// (Words of four bytes are not looked for: too many are numbers.)
    pub(super) fn what_stays(&mut self, skip: &[Range]) {
        let moved: FxHashSet<u64> = self
            .pointed
            .iter()
            .filter(|(from, to)| from != to)
            .map(|(from, _)| *from)
            .collect();
        if moved.is_empty() {
            return;
        }
        let input = self.input;
        for s in input.loads().iter().filter(|s| !s.is_exec()) {
            let (old, new) = (
                input.bytes(s.addr, s.file_size).unwrap_or(b""),
                self.output.bytes(s.addr, s.file_size).unwrap_or(b""),
            );
            let first = (s.addr.next_multiple_of(8) - s.addr) as usize;
            for at in (first..old.len()).step_by(8) {
                let (Some(a), Some(b)) = (u64_in(old, at), u64_in(new, at)) else {
                    break;
                };
                let addr = s.addr + at as u64;
                if a == b && moved.contains(&a) && judged(skip, addr).is_none() {
                    // The loader's relocations have none of their own.
                    let mut tables = input.sections.iter().filter(|s| s.is_alloc());
                    if tables.any(|t| t.kind == elf::SHT_RELA && (t.addr..t.end()).contains(&addr))
                    {
                        self.pointed.push((a, a))
                    } else {
                        self.numbers.push((addr, a))
                    }
                }
            }
        }
        self.numbers_that_stay(&moved);
        let distances = described::unchanged::<A>(input, self.output);
        let known = distances.into_iter().filter(|a| moved.contains(a));
        self.pointed.extend(known.map(|a| (a, a)));
    }

    /// Numbers in code and data that are the address of a function with another one: pointers, if the linker
    /// wrote them there, as the relocations that it kept say. Else they only look like one, as masks of bits
    /// do.
    fn numbers_that_stay(&mut self, moved: &FxHashSet<u64>) {
        let places: FxHashMap<u64, u64> = std::mem::take(&mut self.numbers)
            .into_iter()
            .filter(|(_, target)| moved.contains(target))
            .collect();
        if places.is_empty() {
            return;
        }
        let input = self.input;
        let kept = input.sections.iter().filter(|s| s.is_kept_relocations());
        for s in kept {
            let entries = input.relocation_records(s).chunks_exact(24);
            for target in entries.filter_map(|r| places.get(&u64_in(r, 0)?)) {
                self.pointed.push((*target, *target));
            }
        }
    }

    /// Pointers to a function are compared: all have to lead to the same place.
    pub(super) fn identity(&mut self) {
        self.pointed.sort_unstable();
        self.pointed.dedup();
        for pair in self.pointed.chunk_by(|a, b| a.0 == b.0) {
            let [first, .., last] = pair else { continue };
            let reason = format!(
                "pointers to {:#x} lead to {:#x} and to {:#x}",
                first.0, first.1, last.1
            );
            let failure = Failure::new(Check::Identity, reason);
            self.functions.push(unproved(first.0, last.1, failure));
        }
    }

    /// Pointers may lead to a counter only where the program cannot notice; see [`crate::proof::visible`].
    pub(super) fn seen(&mut self, visible: &Visible, code: &[Range]) {
        let extents = Extents::new(visible::named(self.input), &self.unwind, &self.starts, code);
        let input = self.input;
        let failed = postlink_parallel::filter_map(&self.pointed, |&(from, to)| {
            let why = || extents.why_not::<A>(input, visible, from, to);
            let why = (from != to).then(why)??;
            Some(unproved(from, to, Failure::new(Check::Visible, why)))
        });
        self.functions.extend(failed);
    }

    /// Fields of an instruction that hold addresses.
    pub(super) fn fields(&self, insn: &Insn, bytes: &[u8]) -> [Option<Field>; 2] {
        if self.input.etype != elf::ET_EXEC {
            return [insn.field, None];
        }
        // The displacement of a call is the last number in it, too.
        let apart = |absolute: &Field| {
            insn.field
                .is_none_or(|f| f.at + f.len <= absolute.at || absolute.at + absolute.len <= f.at)
        };
        let absolute = A::absolute_field(bytes).filter(apart);
        [insn.field, absolute]
    }

    /// Whether a copy of an instruction differs in where its pointers lead only, and that to the same
    /// functions. Those are added to `pointed`.
    pub(super) fn same_but_for_pointers(
        &self,
        (old, a): (&Insn, &[u8]),
        (new, b): (&Insn, &[u8]),
        pointed: &mut Vec<(u64, u64)>,
    ) -> bool {
        let (before, after) = (self.fields(old, a), self.fields(new, b));
        let calls = matches!(old.flow, Flow::Call(_));
        for pair in before.iter().zip(&after) {
            let (f, g) = match pair {
                (Some(f), Some(g)) if (f.at, f.len, f.kind) == (g.at, g.len, g.kind) => (f, g),
                (None, None) => continue,
                _ => return false,
            };
            let forms = matches!(f.kind, FieldKind::Forms | FieldKind::Absolute);
            if forms {
                pointed.push((f.target, g.target));
            }
            let leads = calls || forms && A::MOVES_POINTERS;
            if f.target != g.target && !(leads && self.leads(f.target, g.target)) {
                return false;
            }
        }
        match before {
            // On some machines a field is a part of a byte.
            [Some(field), None] => A::equal_around(a, b, &field),
            _ => {
                let within = |i: usize| {
                    let mut fields = before.iter().flatten();
                    fields.any(|f| (usize::from(f.at)..usize::from(f.at + f.len)).contains(&i))
                };
                a.len() == b.len() && (0..a.len()).all(|i| within(i) || a.get(i) == b.get(i))
            }
        }
    }

    /// Whether the last bytes of an instruction, where an absolute address is, are the start of a function.
    fn ends_in_start(&self, bytes: &[u8]) -> bool {
        let (Some(&first), Some(&last)) = (self.starts.first(), self.starts.last()) else {
            return false;
        };
        let four = bytes.len().checked_sub(4).and_then(|at| u32_in(bytes, at));
        let eight = bytes.len().checked_sub(8).and_then(|at| u64_in(bytes, at));
        [four.map(u64::from), eight]
            .into_iter()
            .flatten()
            .any(|a| (first..=last).contains(&a) && self.starts.binary_search(&a).is_ok())
    }

    /// An instruction that is as it was, and what it points to.
    pub(super) fn points_still(&mut self, addr: u64, insn: &Insn, bytes: &[u8]) {
        let forms = |f: Field| f.kind == FieldKind::Forms;
        // Most instructions do neither, and another look at each would take as long as all the rest.
        if !A::MOVES_POINTERS || !insn.field.is_some_and(forms) && !self.ends_in_start(bytes) {
            return;
        }
        for field in self.fields(insn, bytes).into_iter().flatten() {
            match field.kind {
                FieldKind::Forms => self.points(field.target, field.target),
                FieldKind::Absolute => self
                    .numbers
                    .push((addr + u64::from(field.at), field.target)),
                _ => {}
            }
        }
    }
}
