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

impl CodeMap {
    /// Sorts the parts.
    pub fn new(mut parts: CodeMapParts) -> Self {
        parts.bodies.sort_by_key(|b| b.start);
        parts.runs.sort_by_key(|r| r.old);
        parts.entry_jumps.sort_by_key(|j| j.start);
        parts.entry_blocks.sort_by_key(|b| b.start);
        parts.executable.sort_by_key(|e| e.start);
        parts.pointers.sort_unstable();
        parts.either.sort_unstable();
        CodeMap(parts)
    }

    fn body(&self, at: u64) -> Option<&Range<u64>> {
        let behind = self.0.bodies.partition_point(|b| b.start <= at);
        self.0.bodies[..behind].last().filter(|b| b.contains(&at))
    }

    /// The run of an old byte.
    fn run(&self, at: u64) -> Option<&MovedRun> {
        let behind = self.0.runs.partition_point(|r| r.old.0 <= at);
        self.0.runs[..behind]
            .last()
            .filter(|r| at - r.old.0 < r.old.1)
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
        let next = self.0.bodies.partition_point(|b| b.end <= old.start);
        let meets = self.0.bodies.get(next).is_some_and(|b| b.start < old.end);
        !old.is_empty() && meets && self.is_code(old.start)
    }

    /// The image of an interval.
    pub fn image(&self, old: &Range<u64>) -> Vec<Range<u64>> {
        if !self.touches(old) {
            return if old.is_empty() {
                Vec::new()
            } else {
                vec![old.clone()]
            };
        }
        let mut out = Vec::new();
        let mut at = old.start;
        while at < old.end {
            if let Some(body) = self.body(at) {
                let end = body.end.min(old.end);
                self.image_in_body(at..end, old.end, &mut out);
                at = end;
            } else {
                let next = self.0.bodies.partition_point(|b| b.start <= at);
                let end = self
                    .0
                    .bodies
                    .get(next)
                    .map_or(old.end, |b| b.start.min(old.end));
                out.push(at..end);
                at = end;
            }
        }
        union(out)
    }

    fn image_in_body(&self, part: Range<u64>, end: u64, out: &mut Vec<Range<u64>>) {
        let from = self
            .0
            .runs
            .partition_point(|r| r.old.0 + r.old.1 <= part.start);
        for run in self.0.runs[from..]
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
    pub fn instruction(&self, old: u64) -> Option<u64> {
        if !self.moved(old) {
            return Some(old);
        }
        let run = self.run(old)?;
        let offset = old - run.old.0;
        (offset == 0 || run.old.1 == run.new.1).then_some(run.new.0 + offset)
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

    /// Intervals of a unit: what it had, without what other code was given, and the image.
    pub fn unit(&self, old: &[Range<u64>]) -> Vec<Range<u64>> {
        let mut out = Vec::new();
        for range in old {
            let mut rest = vec![range.clone()];
            for hole in self.0.reused.iter().filter(|_| self.is_code(range.start)) {
                rest = rest
                    .into_iter()
                    .flat_map(|r| [r.start..r.end.min(hole.start), r.start.max(hole.end)..r.end])
                    .filter(|r| !r.is_empty())
                    .collect();
            }
            out.extend(rest);
            if self.touches(range) {
                out.extend(self.image(range));
            }
        }
        union(out)
    }

    /// Where the first byte of an interval is that other code was given.
    pub fn first_reused(&self, old: &Range<u64>) -> Option<u64> {
        let holes = self
            .0
            .reused
            .iter()
            .filter(|h| h.start < old.end && h.end > old.start);
        holes.map(|h| h.start.max(old.start)).min()
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
    list.retain(|r| !r.is_empty());
    list.sort_by_key(|r| r.start);
    let mut out: Vec<Range<u64>> = Vec::new();
    for r in list {
        match out.last_mut().filter(|last| last.end >= r.start) {
            Some(last) => last.end = last.end.max(r.end),
            None => out.push(r),
        }
    }
    out
}
