//! Where old code is now, for comparing debug information.

use std::ops::Range;

/// Old bytes and the new bytes that correspond to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MovedRun {
    /// First old byte and number of old bytes.
    pub old: (u64, u64),
    /// First new byte and number of new bytes. If the numbers differ, it is one instruction that was re-encoded.
    pub new: (u64, u64),
    /// Bytes after it that were added, and are described like its last byte.
    pub tail: u64,
}

/// New code that follows the entry of a moved function without a branch: addresses of instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryBlock {
    /// The entry.
    pub start: u64,
    /// The first that calls or branches.
    pub sure: u64,
    /// The first that branches.
    pub last: u64,
}

/// What a [`CodeMap`] is made of.
#[derive(Clone, Debug, Default)]
pub struct CodeMapParts {
    /// Pieces of moved functions; disjoint.
    pub bodies: Vec<Range<u64>>,
    /// What corresponds to their bytes; disjoint in old code.
    pub runs: Vec<MovedRun>,
    /// Old bytes that were given to other code.
    pub reused: Vec<Range<u64>>,
    /// Jumps at old entries.
    pub entry_jumps: Vec<Range<u64>>,
    /// Where moved functions are entered.
    pub entry_blocks: Vec<EntryBlock>,
    /// Pointers to code that changed.
    pub pointers: Vec<(u64, u64)>,
    /// Old and new entries of functions whose pointers may or may not have changed.
    pub either: Vec<(u64, u64)>,
    /// Executable bytes of the input.
    pub executable: Vec<Range<u64>>,
}

/// Where old code is now.
#[derive(Clone, Debug, Default)]
pub struct CodeMap(CodeMapParts);

/// Asks a [`CodeMap`] for one address after another. What is asked for is nearly always next to what was asked for
/// before, so it is looked for there first.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'m> {
    map: &'m CodeMapParts,
    /// The first body, and the first run, that end behind the last address.
    body: usize,
    run: usize,
}

/// The number of stretches of a sorted list that end at an address or in front of it. `last` is the last answer.
fn ended<T>(sorted: &[T], at: u64, last: &mut usize, end: impl Fn(&T) -> u64) -> usize {
    let is_it = |i: usize| {
        let before = i.checked_sub(1).and_then(|i| sorted.get(i));
        before.is_none_or(|x| end(x) <= at) && sorted.get(i).is_none_or(|x| at < end(x))
    };
    if *last > sorted.len() || !is_it(*last) {
        let next = *last + 1;
        *last = if next <= sorted.len() && is_it(next) {
            next
        } else {
            sorted.partition_point(|x| end(x) <= at)
        };
    }
    *last
}

impl<'m> Cursor<'m> {
    /// The number of the first body that ends behind an address.
    fn body_after(&mut self, at: u64) -> usize {
        ended(&self.map.bodies, at, &mut self.body, |b| b.end)
    }

    /// The number of the first run that ends behind an address.
    fn run_after(&mut self, at: u64) -> usize {
        ended(&self.map.runs, at, &mut self.run, |r| r.old.0 + r.old.1)
    }

    fn body(&mut self, at: u64) -> Option<&'m Range<u64>> {
        let body = self.body_after(at);
        self.map.bodies.get(body).filter(|b| b.start <= at)
    }

    /// The run of an old byte.
    fn run(&mut self, at: u64) -> Option<&'m MovedRun> {
        let run = self.run_after(at);
        self.map.runs.get(run).filter(|r| r.old.0 <= at)
    }

    /// Whether the byte was part of a function that moved.
    pub fn moved(&mut self, at: u64) -> bool {
        self.body(at).is_some()
    }

    /// Whether an interval is code and some of it moved.
    pub fn touches(&mut self, old: &Range<u64>) -> bool {
        if old.is_empty() {
            return false;
        }
        let body = self.body_after(old.start);
        let meets = self.map.bodies.get(body).is_some_and(|b| b.start < old.end);
        meets && self.map.executable.iter().any(|e| e.contains(&old.start))
    }

    /// Puts the image of an interval into a list, in the place of what is there.
    pub fn put_image(&mut self, old: &Range<u64>, out: &mut Vec<Range<u64>>) {
        out.clear();
        if !self.touches(old) {
            if !old.is_empty() {
                out.push(old.clone());
            }
            return;
        }
        let map = self.map;
        let mut body = self.body_after(old.start);
        let mut at = old.start;
        while at < old.end {
            let next = map.bodies.get(body);
            if let Some(inside) = next.filter(|b| b.start <= at) {
                let end = inside.end.min(old.end);
                self.put_image_in_body(at..end, old.end, out);
                at = end;
                body += 1;
            } else {
                let end = next.map_or(old.end, |b| b.start.min(old.end));
                out.push(at..end);
                at = end;
            }
        }
        unite(out);
    }

    fn put_image_in_body(&mut self, part: Range<u64>, end: u64, out: &mut Vec<Range<u64>>) {
        let from = self.run_after(part.start);
        for run in self.map.runs[from..]
            .iter()
            .take_while(|r| r.old.0 < part.end)
        {
            let old_end = run.old.0 + run.old.1;
            // The last bytes of a run correspond: what is cut off after is cut off there.
            let cut = |behind: u64| run.new.1.saturating_sub(behind);
            let start = if part.start <= run.old.0 {
                0
            } else {
                cut(old_end - part.start)
            };
            let stop = if end >= old_end {
                run.new.1 + run.tail
            } else {
                cut(old_end - end)
            };
            if start < stop {
                out.push(run.new.0 + start..run.new.0 + stop);
            }
        }
    }

    /// Where the instruction at an address is now.
    pub fn instruction(&mut self, old: u64) -> Option<u64> {
        if !self.moved(old) {
            return Some(old);
        }
        let run = self.run(old)?;
        let offset = old - run.old.0;
        (offset == 0 || run.old.1 == run.new.1).then_some(run.new.0 + offset)
    }
}

impl CodeMap {
    /// Sorts the parts.
    pub fn new(mut parts: CodeMapParts) -> Self {
        parts.bodies.sort_by_key(|b| b.start);
        parts.runs.sort_by_key(|r| r.old);
        parts.reused = union(parts.reused);
        parts.entry_jumps.sort_by_key(|j| j.start);
        parts.entry_blocks.sort_by_key(|b| b.start);
        parts.executable.sort_by_key(|e| e.start);
        parts.pointers.sort_unstable();
        parts.either.sort_unstable();
        CodeMap(parts)
    }

    /// Asks for addresses that are near to each other.
    pub(super) fn cursor(&self) -> Cursor<'_> {
        Cursor {
            map: &self.0,
            body: 0,
            run: 0,
        }
    }

    fn body(&self, at: u64) -> Option<&Range<u64>> {
        let body = self.0.bodies.partition_point(|b| b.end <= at);
        self.0.bodies.get(body).filter(|b| b.start <= at)
    }

    /// The run of an old byte.
    fn run(&self, at: u64) -> Option<&MovedRun> {
        let run = self.0.runs.partition_point(|r| r.old.0 + r.old.1 <= at);
        self.0.runs.get(run).filter(|r| r.old.0 <= at)
    }

    /// Whether the byte was part of a function that moved.
    pub fn moved(&self, at: u64) -> bool {
        self.body(at).is_some()
    }

    fn is_code(&self, at: u64) -> bool {
        self.0.executable.iter().any(|e| e.contains(&at))
    }

    /// Whether an interval is code and some of it moved.
    pub fn touches(&self, old: &Range<u64>) -> bool {
        self.cursor().touches(old)
    }

    /// The image of an interval.
    pub fn image(&self, old: &Range<u64>) -> Vec<Range<u64>> {
        let mut out = Vec::new();
        self.cursor().put_image(old, &mut out);
        out
    }

    /// Where the instruction at an address is now.
    pub fn instruction(&self, old: u64) -> Option<u64> {
        self.cursor().instruction(old)
    }

    /// Where what was in front of an address ends now, with (`tail`) or without what was added there.
    pub fn behind(&self, old: u64, tail: bool) -> Option<u64> {
        let last = old.checked_sub(1)?;
        if !self.moved(last) {
            return Some(old);
        }
        let run = self.run(last)?;
        let left = run.old.0 + run.old.1 - old;
        let added = if tail && left == 0 { run.tail } else { 0 };
        Some(run.new.0 + run.new.1.saturating_sub(left) + added)
    }

    /// The first byte of an interval that was kept.
    pub fn first(&self, old: &Range<u64>) -> Option<u64> {
        if !self.touches(old) {
            return (!old.is_empty()).then_some(old.start);
        }
        let mut at = old.start;
        while at < old.end {
            let Some(body) = self.body(at) else {
                return Some(at);
            };
            if let Some(run) = self.run(at) {
                let left = run.old.0 + run.old.1 - at;
                let skipped = if at == run.old.0 {
                    0
                } else {
                    run.new.1.saturating_sub(left)
                };
                return Some(run.new.0 + skipped);
            }
            let next = self.0.runs.partition_point(|r| r.old.0 <= at);
            at = self
                .0
                .runs
                .get(next)
                .map_or(body.end, |r| r.old.0.min(body.end));
        }
        None
    }

    /// The value of a pointer now.
    pub fn pointer(&self, old: u64) -> u64 {
        let found = self.0.pointers.binary_search_by_key(&old, |p| p.0);
        found.map_or(old, |i| self.0.pointers[i].1)
    }

    /// One spelling of a pointer of which it is not known whether it changed.
    pub fn settled(&self, pointer: u64) -> u64 {
        let found = self.0.either.binary_search_by_key(&pointer, |p| p.0);
        found.map_or(pointer, |i| self.0.either[i].1)
    }

    /// The end of the body that holds an address.
    pub fn body_end(&self, at: u64) -> Option<u64> {
        self.body(at).map(|b| b.end)
    }

    /// Old bytes of an interval that were given to other code.
    fn reused_in(&self, old: &Range<u64>) -> impl Iterator<Item = &Range<u64>> {
        let from = self.0.reused.partition_point(|h| h.end <= old.start);
        let end = old.end;
        self.0.reused[from..]
            .iter()
            .take_while(move |h| h.start < end)
    }

    /// Intervals of a unit: what it had, without what other code was given, and the image.
    pub fn unit(&self, old: &[Range<u64>]) -> Vec<Range<u64>> {
        let (mut out, mut image) = (Vec::new(), Vec::new());
        let mut near = self.cursor();
        for range in old {
            let mut at = range.start;
            if self.is_code(range.start) {
                for hole in self.reused_in(range) {
                    out.push(at..at.max(hole.start));
                    at = at.max(hole.end);
                }
            }
            out.push(at..at.max(range.end));
            if near.touches(range) {
                near.put_image(range, &mut image);
                out.append(&mut image);
            }
        }
        union(out)
    }

    /// Where the first byte of an interval is that other code was given.
    pub fn first_reused(&self, old: &Range<u64>) -> Option<u64> {
        let first = self.reused_in(old).next()?;
        Some(first.start.max(old.start))
    }

    /// Where moved functions are entered.
    pub fn entry_blocks(&self) -> &[EntryBlock] {
        &self.0.entry_blocks
    }

    /// Entry jumps in an interval.
    pub fn entry_jumps(&self, old: &Range<u64>) -> impl Iterator<Item = &Range<u64>> {
        let from = self.0.entry_jumps.partition_point(|j| j.start < old.start);
        self.0.entry_jumps[from..]
            .iter()
            .take_while(|j| j.start < old.end)
    }
}

/// The same bytes in as few intervals as possible.
pub(crate) fn union(mut list: Vec<Range<u64>>) -> Vec<Range<u64>> {
    unite(&mut list);
    list
}

/// The same, of a list in its place.
pub(super) fn unite(list: &mut Vec<Range<u64>>) {
    list.retain(|r| !r.is_empty());
    if list.len() < 2 {
        return;
    }
    list.sort_by_key(|r| r.start);
    list.dedup_by(|next, last| {
        let joins = next.start <= last.end;
        if joins {
            last.end = last.end.max(next.end);
        }
        joins
    });
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::*;
    use arbitrary::Unstructured;

    fn random(u: &mut Unstructured<'_>) -> arbitrary::Result<CodeMap> {
        let mut parts = CodeMapParts {
            executable: vec![0x1000..0x3000],
            ..CodeMapParts::default()
        };
        let mut at = 0x1000u64;
        let mut new = 0x9000u64;
        for _ in 0..u.int_in_range(0..=8)? {
            let start = at + u.int_in_range(0..=2)? * 16;
            let end = start + u.int_in_range(1..=64)?;
            parts.bodies.push(start..end);
            let mut from = start + u.int_in_range(0..=3)?;
            while from < end {
                let len = u.int_in_range(1..=16)?.min(end - from);
                let new_len = if u.ratio(1, 4)? { 5 } else { len };
                let tail = u.int_in_range(0..=2)?;
                new += u.int_in_range(0..=1)? * 0x100;
                parts.runs.push(MovedRun {
                    old: (from, len),
                    new: (new, new_len),
                    tail,
                });
                new += new_len + tail;
                from += len + u.int_in_range(0..=1)? * 3;
            }
            if u.ratio(1, 3)? {
                parts.reused.push(start + 1..end);
            }
            at = end;
        }
        Ok(CodeMap::new(parts))
    }

    #[test]
    fn what_was_asked_before_makes_no_difference() {
        arbtest::arbtest(|u| {
            let map = random(u)?;
            let mut near = map.cursor();
            let mut image = Vec::new();
            for _ in 0..u.int_in_range(1..=30)? {
                let start = u.int_in_range(0xff0..=0x1400u64)?;
                let old = start..start + u.int_in_range(0..=90)?;
                assert_eq!(near.touches(&old), map.touches(&old));
                near.put_image(&old, &mut image);
                assert_eq!(image, map.image(&old));
                assert_eq!(near.instruction(start), map.instruction(start));
                assert_eq!(near.moved(start), map.moved(start));
            }
            Ok(())
        });
    }

    /// The image byte by byte.
    #[test]
    fn bytes_of_an_interval_are_those_of_its_parts() {
        let bytes = |list: &[Range<u64>]| -> Vec<u64> { list.iter().cloned().flatten().collect() };
        arbtest::arbtest(|u| {
            let map = random(u)?;
            // What begins in front of all code is no code.
            let start = u.int_in_range(0x1000..=0x1400u64)?;
            let old = start..start + u.int_in_range(1..=90)?;
            let cut = u.int_in_range(old.start..=old.end)?;
            let mut parts = map.image(&(old.start..cut));
            parts.extend(map.image(&(cut..old.end)));
            // An instruction that was re-encoded may be cut into parts that have nothing in common with it.
            let whole = map.0.runs.iter().all(|r| r.old.1 == r.new.1);
            if whole {
                assert_eq!(union(parts), map.image(&old));
            }
            let unit = map.unit(std::slice::from_ref(&old));
            let mut expected: Vec<u64> = bytes(std::slice::from_ref(&old));
            if map.is_code(old.start) {
                let taken = |at: &u64| map.0.reused.iter().any(|h| h.contains(at));
                expected.retain(|at| !taken(at));
                let first = old.clone().find(taken);
                assert_eq!(map.first_reused(&old), first);
            }
            if map.touches(&old) {
                expected.extend(bytes(&map.image(&old)));
            }
            expected.sort_unstable();
            expected.dedup();
            assert_eq!(bytes(&unit), expected);
            Ok(())
        });
    }
}
