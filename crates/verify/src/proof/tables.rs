//! Jump tables that are patched in place.
//!
//! On x86-64 entries are relative to the table's start. They have four bytes, or eight (gcc's large code
//! model) where a kept relocation says at the first of them that the linker wrote a distance of eight bytes.
//! The same bytes cannot be read as a table of the other width: the upper half of a distance is 0 or -1, and
//! neither that nor what two short entries make together leads to code from a table in data.
//!
//! Nothing in a file says where such a table begins, and the same bytes mean other targets for another start. A base
//! is an address that some instruction forms, whose first word, added to the base, gives an address in code. Each
//! base owns the entries up to the next base, but none that reaches into it; a changed entry is judged by its nearest
//! base alone.
//!
//! In programs with a fixed address, numbers that are loaded into registers may be addresses, and numbers of
//! large programs fall into tables by accident. One that does is no base if an entry that changed would lead
//! into the middle of an instruction, and all that changed up to the next base lead to where one starts when
//! they are counted from the base before ([`Numbers`]). Tables are aligned, so other numbers are none.
//!
//! An entry that changed must have been a label of a moved function and be that function's paired new label.
//! An entry that did not change leads into an old body, which is noted: it matters only where the entry jump
//! overwrote something that the body needs. But where new code of the function is at that very address (cold
//! code in the space of old bodies may), the entry leads to new code like one that changed. The table ends at
//! the first entry that does not lead to code.
//!
//! On AArch64 the code before a jump says all of it: table, base, width, scale, number of entries
//! ([`Dispatch`]). The same rules hold for the entries.

use crate::addr::{InputAddr, OutputAddr, Pair};
use crate::arch::{Arch, Dispatch};
use crate::context::{Context, Findings, FuncId};
use crate::files::elf::Elf;
use crate::proof::data::KeptRelocs;
use crate::report::{Check, Failure};
use rustc_hash::{FxHashMap, FxHashSet};

/// Places that one thread looks at, or some more.
const PART: usize = 1 << 10;

/// Explains the four-byte differences in `found.words` by the bases in `found.bases`; what is left becomes failures.
pub(crate) fn explain<A: Arch>(cx: &Context<'_>, kept: &KeptRelocs<'_>, found: &mut Findings) {
    found.words.sort_unstable();
    found.bases.sort_unstable();
    found.bases.dedup();
    let bases = std::mem::take(&mut found.bases);
    let words = std::mem::take(&mut found.words);
    // One bit for each byte.
    let mut explained = vec![0u8; words.len()];
    let dispatches = std::mem::take(&mut found.dispatches);
    let mut read: Vec<u64> = dispatches.iter().map(|(d, _)| d.table).collect();
    read.sort_unstable();
    for (d, owner) in dispatches {
        if owner.is_some() && !words.is_empty() {
            dispatch(cx, &d, &words, &mut explained, found);
        }
    }
    // Each place once: what names it, and whether by numbers alone.
    let mut places: Vec<(u64, bool, bool)> = Vec::new();
    for &(base, owner, number) in &bases {
        match places.last_mut() {
            Some(last) if last.0 == base => {
                last.1 |= owner.is_some();
                last.2 &= number;
            }
            _ => places.push((base, owner.is_some(), number)),
        }
    }
    // A place that is not known by numbers alone is where a table begins, whatever is in front of it.
    let begins = |i: &usize| places.get(*i).is_none_or(|place| !place.2);
    let cuts = (0..places.len()).step_by(PART);
    let cuts = cuts.filter_map(|cut| (cut..=places.len()).find(|i| cut == 0 || begins(i)));
    let mut cuts: Vec<usize> = cuts.chain([places.len()]).collect();
    cuts.dedup();
    let parts = postlink_parallel::map_range(cuts.len().saturating_sub(1), |part| {
        let end = cuts.get(part + 1).copied().unwrap_or(0);
        let mut numbers = Numbers::<A>::default();
        let mut part_found = (Findings::default(), Vec::new());
        let mut i = cuts.get(part).copied().unwrap_or(end);
        while i < end
            && let Some(&(base, owned, _)) = places.get(i)
        {
            let after = |j: usize| places.get(j).map_or(u64::MAX, |b| b.0);
            i += 1;
            if !owned || read.binary_search(&base).is_ok() {
                continue;
            }
            let width = match kept.kind_at(base) {
                Some(Some(kind)) if kind == A::DISTANCE_8 => 8,
                _ => 4,
            };
            let table = Table { base, width };
            while let Some(&(number, _, true)) = places.get(i)
                && numbers.is_none(cx, table, number, after(i + 1), &words)
            {
                i += 1;
            }
            let (found, explains) = &mut part_found;
            table.explain(cx, after(i), &words, explains, found);
        }
        part_found
    });
    for (part, explains) in parts {
        found.append(part);
        for index in explains {
            if let Some(done) = explained.get_mut(index) {
                *done = 0xf;
            }
        }
    }
    for (&(at, old, new), _) in words
        .iter()
        .zip(&explained)
        .filter(|(w, done)| !is_explained(w.1 ^ w.2, **done))
    {
        let failure = Failure::new(
            Check::Data,
            "data changed, and not as a pointer to moved code may",
        )
        .at_kept(at)
        .values(old, new);
        found.file.push(failure);
    }
}

/// A table of distances from its own start.
#[derive(Clone, Copy)]
struct Table {
    base: u64,
    /// Bytes of an entry: 4 or 8.
    width: u64,
}

/// Tells numbers that are no bases.
struct Numbers<A> {
    /// Where instructions start in functions, in those that were asked for.
    starts: FxHashMap<FuncId, FxHashSet<u64>>,
    arch: std::marker::PhantomData<A>,
}

impl<A> Default for Numbers<A> {
    fn default() -> Self {
        Self {
            starts: FxHashMap::default(),
            arch: std::marker::PhantomData,
        }
    }
}

impl<A: Arch> Numbers<A> {
    /// Whether `number` is not the base of what is there, up to `next`, but `base`, which is below it.
    fn is_none(
        &mut self,
        cx: &Context<'_>,
        table: Table,
        number: u64,
        next: u64,
        words: &[(u64, u32, u32)],
    ) -> bool {
        let target = |from: u64, word: u32| from.wrapping_add_signed(i64::from(word as i32));
        let first = words.partition_point(|w| w.0 < number);
        let changed = words.get(first..).unwrap_or(&[]).iter();
        let mut misled = false;
        for &(at, old, _) in changed.take_while(|w| w.0 < next) {
            let entry = at - at.wrapping_sub(table.base) % table.width;
            let Some((from, to)) = table.targets(cx, entry) else {
                return false;
            };
            // The upper half of a long entry says nothing of its own.
            misled =
                misled || entry == at && !self.is_start(cx, InputAddr::new(target(number, old)));
            if !self.is_start(cx, from) || cx.pair_owner(from, to).is_none() {
                return false;
            }
        }
        misled
    }

    fn is_start(&mut self, cx: &Context<'_>, at: InputAddr) -> bool {
        let Some((id, f)) = cx.old.owner(at).and_then(|id| Some((id, cx.function(id)?))) else {
            return false;
        };
        let starts = self.starts.entry(id).or_insert_with(|| {
            let mut starts = FxHashSet::default();
            for r in &f.old {
                let mut at = r.start;
                while at < r.end {
                    let insn = cx
                        .input
                        .bytes(at.get(), r.end - at)
                        .and_then(|b| A::decode(b, at.get()));
                    let Some(insn) = insn else { break };
                    starts.insert(at.get());
                    at = at.saturating_add(u64::from(insn.len));
                }
            }
            starts
        });
        starts.contains(&at.get())
    }
}

/// Whether every byte that differs is explained.
fn is_explained(difference: u32, done: u8) -> bool {
    difference
        .to_le_bytes()
        .iter()
        .enumerate()
        .all(|(i, &byte)| byte == 0 || done >> i & 1 != 0)
}

/// Entries beyond this many are not looked at where nothing bounds a table.
const UNBOUNDED: u64 = 4096;

fn dispatch(
    cx: &Context<'_>,
    d: &Dispatch,
    words: &[(u64, u32, u32)],
    explained: &mut [u8],
    found: &mut Findings,
) {
    let width = u64::from(d.width);
    let entry = |bytes: &[u8]| {
        bytes
            .iter()
            .rev()
            .fold(0u64, |value, &b| value << 8 | u64::from(b))
    };
    for i in 0..d.count.unwrap_or(UNBOUNDED) {
        let Some(at) = d.table.checked_add(i * width) else {
            return;
        };
        let (Some(old), Some(new)) = (cx.input.bytes(at, width), cx.output.bytes(at, width)) else {
            return;
        };
        let from = InputAddr::new(d.target(entry(old)));
        let to = OutputAddr::new(d.target(entry(new)));
        if old == new {
            if cx.lies_in_itself(from) {
                found.pairs.push((from, to));
                continue;
            }
            match cx.inside_of(from) {
                Some(id) => found.entrances.push(id),
                None if d.count.is_none() => return,
                None => {}
            }
            continue;
        }
        if !explain_entry(cx, d.table, at, (from, to), found) {
            return;
        }
        for byte in at..at + width {
            if let Ok(word) = words.binary_search_by_key(&(byte & !3), |w| w.0)
                && let Some(done) = explained.get_mut(word)
            {
                *done |= 1 << (byte & 3);
            }
        }
    }
}

/// An entry that changed, at `at` in a jump table: it leads to the code that corresponds to what it led to, or that is
/// a failure of the function. `false` where it led to no function: then it is not an entry of this table.
fn explain_entry(
    cx: &Context<'_>,
    table: u64,
    at: u64,
    (from, to): Pair,
    found: &mut Findings,
) -> bool {
    let Some(id) = cx.old.owner(from) else {
        return false;
    };
    if cx.pair_owner(from, to).is_some() {
        found.pairs.push((from, to));
        found.pointers += 1;
    } else {
        let text = format!("an entry of the jump table at {table:#x} leads elsewhere");
        let failure = Failure::new(Check::JumpTable, text).at_kept(at);
        let values = failure.values(from.get(), to.get());
        found.functions.push((id, values));
    }
    true
}

impl Table {
    /// Where an entry leads, in the input and in the output.
    fn targets(self, cx: &Context<'_>, at: u64) -> Option<Pair> {
        let target = |elf: &Elf<'_>| {
            let value = match self.width {
                8 => elf.u64_at(at)?,
                _ => elf.u32_at(at)? as i32 as u64,
            };
            Some(self.base.wrapping_add(value))
        };
        let from = InputAddr::new(target(cx.input)?);
        Some((from, OutputAddr::new(target(cx.output)?)))
    }

    /// Explains what changed in the table, which ends before `next`: `explains` are indices of `words`.
    fn explain(
        self,
        cx: &Context<'_>,
        next: u64,
        words: &[(u64, u32, u32)],
        explains: &mut Vec<usize>,
        found: &mut Findings,
    ) {
        let Table { base, width } = self;
        let mut at = base;
        // Words ascend, and so do entries.
        let mut seen = words.partition_point(|w| w.0 < base);
        while at < next {
            let Some((from, to)) = self.targets(cx, at) else {
                return;
            };
            let same = to == from.kept();
            if same && cx.lies_in_itself(from) {
                found.pairs.push((from, to));
            } else if same {
                // Unreachable cases lead to the end of their function, which may be the end of the section.
                let number = from.get();
                if !cx.is_code(number) && !cx.is_code(number.wrapping_sub(1)) {
                    return;
                }
                if let Some(id) = cx.inside_of(from) {
                    found.entrances.push(id);
                }
            } else {
                // What reaches into the entries of the next base is no entry: a string in front of a table ends so.
                if width > next - at || !explain_entry(cx, base, at, (from, to), found) {
                    return;
                }
                while words.get(seen).is_some_and(|w| w.0 < at) {
                    seen += 1;
                }
                for word in (at..at + width).step_by(4) {
                    if words.get(seen).is_some_and(|w| w.0 == word) {
                        explains.push(seen);
                        seen += 1;
                    }
                }
            }
            at += width;
        }
    }
}
