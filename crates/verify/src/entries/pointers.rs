//! A function has one address: pointers to it are compared, so all of them lead to the same place, in code, in copies of overwritten instructions, in data and in
//! dynamic symbols.

use rustc_hash::FxHashSet;

use super::{Entries, Proof};
use crate::arch::{Field, FieldKind, Insn};
use crate::bytes::u64_in;
use crate::claim::Range;
use crate::elf::{self, Segment};
use crate::report::{Check, Failure, FunctionReport, Verdict};

impl<A: Entries> Proof<'_, A> {
    /// Notes that what pointed to `from` points to `to` now.
    pub(super) fn points(&mut self, from: u64, to: u64) {
        if A::MOVES_POINTERS && (from != to || self.starts.binary_search(&from).is_ok()) {
            self.pointed.push((from, to));
        }
    }

    /// Words of data that still hold the address of a function with another one. (Those of four bytes are not looked for: too many are numbers.)
    pub(super) fn words_that_stay(&mut self, skip: &[Range]) {
        let moved: FxHashSet<u64> = self
            .pointed
            .iter()
            .filter(|(from, to)| from != to)
            .map(|(from, _)| *from)
            .collect();
        if moved.is_empty() {
            return;
        }
        let loads: Vec<Segment> = self.input.loads().to_vec();
        for s in loads.iter().filter(|s| !s.is_exec()) {
            let (old, new) = (
                self.input.bytes(s.addr, s.file_size).unwrap_or(b""),
                self.output.bytes(s.addr, s.file_size).unwrap_or(b""),
            );
            let first = (s.addr.next_multiple_of(8) - s.addr) as usize;
            for at in (first..old.len()).step_by(8) {
                let (Some(a), Some(b)) = (u64_in(old, at), u64_in(new, at)) else {
                    break;
                };
                let addr = s.addr + at as u64;
                let judged = || {
                    let before = skip.partition_point(|r| r.start <= addr);
                    let nearest = skip.get(before.saturating_sub(8)..before);
                    nearest.unwrap_or_default().iter().any(|r| r.contains(addr))
                };
                if a == b && moved.contains(&a) && !judged() {
                    self.pointed.push((a, a));
                }
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
            self.functions.push(FunctionReport {
                name: String::new(),
                old: first.0,
                new: last.1,
                verdict: Verdict::Failed(Failure::new(Check::Identity, reason)),
                instructions: 0,
                assumed_no_return: 0,
                unreached: Vec::new(),
            });
        }
    }

    /// Fields of an instruction that hold addresses.
    pub(super) fn fields(&self, insn: &Insn, bytes: &[u8]) -> [Option<Field>; 2] {
        let fixed = self.input.etype == elf::ET_EXEC;
        // The displacement of a call is the last number in it, too.
        let apart = |absolute: &Field| {
            insn.field
                .is_none_or(|f| f.at + f.len <= absolute.at || absolute.at + absolute.len <= f.at)
        };
        let absolute = A::absolute_field(bytes).filter(|a| fixed && apart(a));
        [insn.field, absolute]
    }

    /// Whether a copy of an instruction differs in where its pointers lead only, and that to the same functions. Those are added to `pointed`.
    pub(super) fn same_but_for_pointers(
        &self,
        (old, a): (&Insn, &[u8]),
        (new, b): (&Insn, &[u8]),
        calls: bool,
        pointed: &mut Vec<(u64, u64)>,
    ) -> bool {
        let (before, after) = (self.fields(old, a), self.fields(new, b));
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

    /// An instruction that is as it was, and what it points to.
    pub(super) fn points_still(&mut self, insn: &Insn, bytes: &[u8]) {
        for field in self.fields(insn, bytes).into_iter().flatten() {
            if matches!(field.kind, FieldKind::Forms | FieldKind::Absolute) {
                self.points(field.target, field.target);
            }
        }
    }
}
