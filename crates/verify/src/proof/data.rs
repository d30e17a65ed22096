//! Loaded data, byte by byte: what differs must be a pointer to moved code.
//!
//! A difference is explained by the first of these that fits its place:
//!
//! 1. a word that the dynamic loader relocates relative to the load address (RELR, RELATIVE): an 8-byte pointer;
//! 2. in a program at a fixed address, an aligned 8- or 4-byte absolute pointer; if the input kept its relocations,
//!    one of them must say so, but for sections that the linker makes (`.got`…);
//! 3. the first word of a list of unwind entries that must not be registered any more: zero;
//! 4. an entry of a jump table with 4-byte or 8-byte offsets from its start, see [`crate::proof::tables`].
//!
//! A position-independent file has no 8-byte pointers without a relocation, so a difference elsewhere is never
//! taken for one. A pointer becomes an obligation of the lock step; a difference that nothing explains is a failure.

use crate::addr::{InputAddr, OutputAddr};
use crate::arch::Arch;
use crate::context::{Context, Findings, FuncId};
use crate::files::bytes::u64_in;
use crate::files::claim::Range;
use crate::files::elf::Elf;
use crate::report::{Check, Failure};
use std::sync::OnceLock;

/// Bytes that one task compares.
const CHUNK: usize = 1 << 20;

/// Relocations that the linker kept, asked for one place at a time.
pub(crate) struct KeptRelocs<'a> {
    sections: Vec<KeptSection<'a>>,
}

/// One relocation section.
struct KeptSection<'a> {
    /// The section that its entries are for.
    target: Range,
    bytes: &'a [u8],
    /// Made when first asked.
    places: OnceLock<Places>,
}

/// Which entries of a relocation section are for which part of its target.
struct Places {
    /// By part: where its entries begin.
    first: Vec<usize>,
    /// Numbers of entries by part, in the order of the section. `None`: entries ascend, as linkers mostly keep them, so
    /// that it is their own order.
    order: Option<Vec<usize>>,
}

/// Bytes of a part, as a power of two.
const PART: u32 = 8;
/// Bytes of an entry.
const ENTRY: usize = 24;

/// Place and type of an entry.
fn place_and_kind(entry: &[u8]) -> Option<(u64, u32)> {
    Some((u64_in(entry, 0)?, u64_in(entry, 8)? as u32))
}

impl KeptSection<'_> {
    fn entries(&self) -> impl Iterator<Item = &[u8]> {
        self.bytes.chunks_exact(ENTRY)
    }

    /// The part that an address is in; `None`: it is outside of the section.
    fn part(&self, place: u64) -> Option<usize> {
        let inside = self.target.contains(place);
        inside.then(|| ((place - self.target.start) >> PART) as usize)
    }

    fn places(&self) -> Places {
        let parts = (self.target.len() >> PART) as usize + 1;
        // How many entries each part has, and then where they begin.
        let mut first = vec![0; parts + 1];
        let (mut last, mut ascend) = (0, true);
        for entry in self.entries() {
            let place = u64_in(entry, 0).unwrap_or_default();
            match self.part(place) {
                Some(part) => first[part] += 1,
                None => ascend = false,
            }
            ascend &= last <= place;
            last = place;
        }
        let mut sum = 0;
        for count in &mut first {
            sum += std::mem::replace(count, sum);
        }
        if ascend {
            return Places { first, order: None };
        }
        let mut next = first.clone();
        let mut order = vec![0; sum];
        for (number, entry) in self.entries().enumerate() {
            let place = u64_in(entry, 0).unwrap_or_default();
            if let Some(part) = self.part(place) {
                order[next[part]] = number;
                next[part] += 1;
            }
        }
        Places {
            first,
            order: Some(order),
        }
    }

    /// Type of the last entry for a place in the section that has one.
    fn kind(&self, addr: u64) -> Option<u32> {
        let Places { first, order } = self.places.get_or_init(|| self.places());
        let part = self.part(addr)?;
        let &[from, to] = first.get(part..)?.first_chunk()?;
        let entry = |i: usize| {
            let number = order.as_ref().map_or(i, |order| order[i]);
            place_and_kind(self.bytes.get(number * ENTRY..)?)
        };
        let mut entries = (from..to).rev().filter_map(entry);
        let found = entries.find(|e| e.0 == addr && e.1 != 0);
        found.map(|e| e.1)
    }
}

impl<'a> KeptRelocs<'a> {
    /// Those of a file; none if the output claims that none were used.
    pub(crate) fn new(elf: &'a Elf<'_>, bare: bool) -> Self {
        let sections = elf
            .sections
            .iter()
            .filter(|s| s.is_kept_relocations() && !bare)
            .filter_map(|s| {
                let target = elf.sections.get(s.info as usize).filter(|t| t.is_alloc())?;
                Some(KeptSection {
                    target: Range {
                        start: target.addr,
                        end: target.end(),
                    },
                    bytes: elf.relocation_records(s),
                    places: OnceLock::new(),
                })
            })
            .collect();
        KeptRelocs { sections }
    }

    /// Type of the kept relocation at exactly this place. `None`: no relocations were kept for its section.
    /// `Some(None)`: some were, but not here.
    pub(crate) fn kind_at(&self, addr: u64) -> Option<Option<u32>> {
        let section = self.sections.iter().find(|s| s.target.contains(addr))?;
        Some(section.kind(addr))
    }

    /// Places in sections of code that have a relocation of one of these types, ascending.
    pub(crate) fn places_in_code(&self, cx: &Context<'_>, kinds: &[u32]) -> Vec<u64> {
        let mut places: Vec<u64> = self
            .sections
            .iter()
            .filter(|s| cx.is_code(s.target.start))
            .flat_map(|s| s.bytes.chunks_exact(24).filter_map(place_and_kind))
            .filter(|e| kinds.contains(&e.1))
            .map(|e| e.0)
            .collect();
        places.sort_unstable();
        places.dedup();
        places
    }
}

/// Whether a kept relocation allows an absolute pointer of this kind at a place.
pub(crate) fn may_be_pointer(
    cx: &Context<'_>,
    kept: &KeptRelocs<'_>,
    addr: u64,
    kinds: &[u32],
) -> bool {
    match kept.kind_at(addr) {
        Some(Some(kind)) => kinds.contains(&kind),
        // The linker's own tables have no relocations to keep.
        Some(None) => cx
            .input
            .section_at(addr)
            .is_some_and(|s| s.name.starts_with(b".got")),
        None => !cx.bare,
    }
}

/// Compares all loaded bytes of the input outside `skip` (sorted) and outside code.
/// `relative` are the places of RELATIVE and RELR relocations, sorted; `same` are pieces that are known to be equal.
/// Gives all that are.
pub(crate) fn compare<A: Arch>(
    cx: &Context<'_>,
    kept: &KeptRelocs<'_>,
    skip: &[Range],
    relative: &[u64],
    same: &[Range],
) -> (Findings, Vec<Range>) {
    let mut pieces = Vec::new();
    for load in cx.input.loads() {
        let mut at = load.addr;
        while at < load.file_end() {
            // What is skipped and what is code both end a piece.
            if let Some(r) = skip.iter().chain(&cx.code).find(|r| r.contains(at)) {
                at = r.end;
                continue;
            }
            let next = skip
                .iter()
                .chain(&cx.code)
                .map(|r| r.start)
                .filter(|&s| s > at)
                .min()
                .unwrap_or(u64::MAX);
            let end = load
                .file_end()
                .min(next)
                .min(at.saturating_add(CHUNK as u64) & !(CHUNK as u64 - 1));
            pieces.push(Range { start: at, end });
            at = end;
        }
    }
    let (mut all, mut equal) = (Findings::default(), Vec::new());
    let compared = postlink_parallel::map(&pieces, |piece| {
        if same.binary_search(piece).is_ok() {
            return None;
        }
        cx.maps.read(2 * piece.len() as usize);
        compare_piece::<A>(cx, kept, *piece, relative)
    });
    for (piece, one) in pieces.into_iter().zip(compared) {
        match one {
            Some(one) => all.append(one),
            None => equal.push(piece),
        }
    }
    (all, equal)
}

fn compare_piece<A: Arch>(
    cx: &Context<'_>,
    kept: &KeptRelocs<'_>,
    piece: Range,
    relative: &[u64],
) -> Option<Findings> {
    let mut found = Findings::default();
    let (Some(old), Some(new)) = (
        cx.input.bytes(piece.start, piece.len()),
        cx.output.bytes(piece.start, piece.len()),
    ) else {
        found.file.push(Failure::new(
            Check::Data,
            format!(
                "{:#x}..{:#x} is not loaded from the output",
                piece.start, piece.end
            ),
        ));
        return Some(found);
    };
    if old == new {
        return None;
    }
    let mut at = 0usize;
    while let Some(skip) = first_difference(old.get(at..), new.get(at..)) {
        at += skip;
        let addr = piece.start + at as u64;
        let explained = explain::<A>(cx, kept, relative, addr, &mut found);
        at = usize::try_from(explained.saturating_sub(piece.start))
            .unwrap_or(usize::MAX)
            .max(at + 1);
    }
    Some(found)
}

/// Offset of the first byte that differs.
pub(crate) fn first_difference(old: Option<&[u8]>, new: Option<&[u8]>) -> Option<usize> {
    let (old, new) = (old?, new?);
    let mut base = 0usize;
    for (a, b) in old.chunks(256).zip(new.chunks(256)) {
        if a != b {
            return a.iter().zip(b).position(|(x, y)| x != y).map(|i| base + i);
        }
        base += a.len();
    }
    None
}

/// Explains the difference at `addr`; returns the address where to look on.
pub(crate) fn explain<A: Arch>(
    cx: &Context<'_>,
    kept: &KeptRelocs<'_>,
    relative: &[u64],
    addr: u64,
    found: &mut Findings,
) -> u64 {
    let words = |at: u64| Some((cx.input.u64_at(at)?, cx.output.u64_at(at)?));
    let next = relative.partition_point(|&r| r <= addr);
    let place = next
        .checked_sub(1)
        .and_then(|i| relative.get(i))
        .copied()
        .filter(|p| addr - p < 8);
    if let Some(place) = place {
        if let Some((old, new)) = words(place) {
            found.pointers += 1;
            if !found.first_initialiser(cx, place, InputAddr::new(old), OutputAddr::new(new))
                && !found.pointer(cx, InputAddr::new(old), OutputAddr::new(new), true)
            {
                let failure = Failure::new(Check::Data, "a pointer changed to something else")
                    .at_kept(place)
                    .values(old, new);
                found.charge(cx, InputAddr::new(old), OutputAddr::new(new), failure);
            }
        }
        return place + 8;
    }
    if let Some((old, new)) = words(addr & !7)
        && found.first_initialiser(cx, addr & !7, InputAddr::new(old), OutputAddr::new(new))
    {
        return (addr & !7) + 8;
    }
    if cx.fixed() {
        let aligned = addr & !7;
        if let Some((old, new)) = words(aligned)
            && cx
                .pair_owner(InputAddr::new(old), OutputAddr::new(new))
                .is_some()
            && may_be_pointer(cx, kept, aligned, A::ABS_8)
        {
            found.pointers += 1;
            found.pointer(cx, InputAddr::new(old), OutputAddr::new(new), true);
            return aligned + 8;
        }
        let aligned = addr & !3;
        if let (Some(old), Some(new)) = (cx.input.u32_at(aligned), cx.output.u32_at(aligned))
            && cx
                .pair_owner(
                    InputAddr::new(u64::from(old)),
                    OutputAddr::new(u64::from(new)),
                )
                .is_some()
            && may_be_pointer(cx, kept, aligned, A::ABS_4)
        {
            found.pointers += 1;
            found.pointer(
                cx,
                InputAddr::new(u64::from(old)),
                OutputAddr::new(u64::from(new)),
                true,
            );
            return aligned + 4;
        }
    }
    let aligned = addr & !3;
    match (cx.input.u32_at(aligned), cx.output.u32_at(aligned)) {
        (Some(_), Some(0)) if cx.may_be_empty_list(aligned) => {}
        (Some(old), Some(new)) => found.words.push((aligned, old, new)),
        _ => {
            let value = |elf: &Elf<'_>| {
                elf.bytes(addr, 1)
                    .and_then(|b| b.first())
                    .copied()
                    .unwrap_or(0)
            };
            let failure = Failure::new(Check::Data, "a byte of data changed")
                .at_kept(addr)
                .values(value(cx.input), value(cx.output));
            found.file.push(failure);
        }
    }
    aligned + 4
}

/// Words of the old image that point into old code, unchanged: ways into old bodies. Only asked for functions
/// of which it matters (`wanted`). In programs at fixed addresses every word counts that has such a value,
/// unless the linker kept the relocations of its section and there is none for it: text and numbers have
/// values of all kinds.
pub(crate) fn unchanged_pointers<A: Arch>(
    cx: &Context<'_>,
    kept: &KeptRelocs<'_>,
    wanted: &[bool],
    relative: &[u64],
    found: &mut Findings,
) {
    let leads = |at: u64| {
        let (old, new) = (cx.input.u64_at(at)?, cx.output.u64_at(at)?);
        let stays = old == new && !cx.lies_in_itself(InputAddr::new(old));
        let id = cx.inside_of(InputAddr::new(old)).filter(|_| stays)?;
        (wanted.get(id as usize) == Some(&true)).then_some(id)
    };
    found
        .entrances
        .extend(relative.iter().filter_map(|at| leads(*at)));
    if !cx.fixed() {
        return;
    }
    for load in cx.input.loads() {
        let Some(bytes) = cx.input.bytes(load.addr, load.file_size) else {
            continue;
        };
        let is_inside = |word: u64| cx.old.owner(InputAddr::new(word)).is_some();
        let parts = postlink_parallel::map_parts(bytes.len() / 8, CHUNK / 8, |words| {
            cx.maps.read(8 * words.len());
            let inside = words.filter(|i| u64_in(bytes, 8 * i).is_some_and(is_inside));
            let places = inside.map(|i| load.addr + 8 * i as u64);
            let pointers = places.filter(|at| may_be_pointer(cx, kept, *at, A::ABS_8));
            pointers.filter_map(leads).collect::<Vec<FuncId>>()
        });
        found.entrances.extend(parts.into_iter().flatten());
    }
}

/// Words of data of a program at a fixed address that the linker says are pointers, as they were, and lead
/// into moved functions or to their ends.
pub(crate) fn staying_pointers<A: Arch>(
    cx: &Context<'_>,
    kept: &KeptRelocs<'_>,
    found: &mut Findings,
) {
    if !cx.fixed() {
        return;
    }
    for s in kept.sections.iter().filter(|s| !cx.is_code(s.target.start)) {
        let one = |entry: &[u8]| {
            let (place, kind) = (u64_in(entry, 0)?, u64_in(entry, 8)? as u32);
            let read = |elf: &Elf<'_>| match kind {
                kind if A::ABS_8.contains(&kind) => elf.u64_at(place),
                kind if A::ABS_4.contains(&kind) => elf.u32_at(place).map(u64::from),
                _ => None,
            };
            let (old, new) = (read(cx.input)?, read(cx.output)?);
            // An entry of a table of labels that is not reached may lead to the end.
            let beside = |id: &FuncId| {
                [place.wrapping_sub(8), place.wrapping_add(8)]
                    .into_iter()
                    .any(|at| {
                        cx.input
                            .u64_at(at)
                            .and_then(|w| cx.inside_of(InputAddr::new(w)))
                            == Some(*id)
                    })
            };
            let (old, new) = (InputAddr::new(old), OutputAddr::new(new));
            let end = || cx.end_of(old).filter(|id| !beside(id));
            let whose = cx.inside_of(old).or_else(end);
            let stays = old.kept() == new && !cx.lies_in_itself(old);
            Some((whose.filter(|_| stays)?, old))
        };
        let all = postlink_parallel::flat_map_chunks(s.bytes, 24 << 12, |part| {
            cx.maps.read(part.len());
            part.chunks_exact(24).filter_map(one)
        });
        found.inside.extend(all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_found_across_blocks() {
        let a = vec![7u8; 1000];
        for at in [0, 1, 255, 256, 511, 999] {
            let mut b = a.clone();
            b[at] = 8;
            assert_eq!(first_difference(Some(&a), Some(&b)), Some(at));
        }
        assert_eq!(first_difference(Some(&a), Some(&a)), None);
    }
}
