//! The address map: where the bytes of moved functions are now.
//!
//! # Problem
//!
//! Debug information speaks of code by address: single addresses (a label, a return address), and half-open
//! intervals (a scope, the part of a function in which a variable is in a register). After blocks were
//! reordered and functions split, an interval may have become several, and an address may be gone.
//!
//! # Parts
//!
//! | part | meaning |
//! |---|---|
//! | body | a stretch of old code all of which was given up: one piece of a moved function |
//! | run | bytes of a body and the bytes that took their place: copied as they were, or one instruction re-encoded |
//! | tail | bytes after a run that stand for nothing old (an added jump, alignment). They are described as the run's last byte |
//! | added | other bytes that stand for nothing old, described as the old byte that they lead to |
//! | entry jump | what is left at a moved function's old entry: a jump to the new one |
//! | entry block | the new code that each entry into a moved function runs through |
//!
//! Bytes of a body in no run (a jump that is no longer needed, padding) have no new place. All other code stays.
//!
//! # The three questions
//!
//! * [`AddressMap::interval`] maps an interval to a set of intervals. Inside a run, borders are mapped **by
//!   their distance from the run's end**: compilers end the location of a register that a call overwrites one
//!   byte *in front of* the return address, so that a caller's frame, which is looked up at that byte, does
//!   not see it. For copied bytes this is the same as the distance from the start.
//! * [`AddressMap::address`]: where an instruction is now, if it still exists.
//! * [`AddressMap::after_call`]: return addresses. The return address and the next instruction part company
//!   when another block follows the call's.
//!
//! # Invariants
//!
//! Within a run borders are mapped by one monotonic function, and old bytes belong to one run at most. So the map of
//! intervals respects inclusion and disjointness: inner scopes stay in outer ones, and siblings stay apart.

use std::ops::Range;

use crate::order::{arrange, by_address};

/// Old bytes and the new bytes that stand for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Address of the first old byte.
    pub old: u64,
    /// Number of old bytes, at least 1.
    pub old_len: u32,
    /// Address of the first new byte.
    pub new: u64,
    /// Number of new bytes. If it differs from `old_len`, the run is one instruction that was re-encoded.
    pub new_len: u32,
    /// Number of new bytes after them that stand for nothing old.
    pub tail: u32,
}

impl Run {
    /// One past the last old byte.
    pub fn old_end(&self) -> u64 {
        self.old + u64::from(self.old_len)
    }
    /// One past the last new byte that stands for an old one.
    pub fn new_end(&self) -> u64 {
        self.new + u64::from(self.new_len)
    }
    /// One past the tail.
    pub fn tail_end(&self) -> u64 {
        self.new_end() + u64::from(self.tail)
    }
    /// Where a border between old bytes is now: by its distance from the end, but never in front of the start.
    pub(crate) fn border(&self, old: u64) -> u64 {
        if old <= self.old {
            return self.new;
        }
        let from_end = self.old_end().saturating_sub(old);
        self.new + u64::from(self.new_len).saturating_sub(from_end)
    }
}

/// New bytes that stand for nothing old and do not follow a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Added {
    /// Address of the first.
    pub new: u64,
    /// Their number.
    pub len: u32,
    /// The old byte as which they are described.
    pub like: u64,
}

/// New code that follows the entry of a moved function without a branch, by new addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryBlock {
    /// The entry.
    pub start: u64,
    /// The first instruction that calls or branches. Every entry comes to it; from a call control may not return.
    pub sure: u64,
    /// The first instruction that branches or returns.
    pub last: u64,
}

/// What an [`AddressMap`] is made of. Lists may be in any order.
#[derive(Clone, Debug, Default)]
pub struct MapParts {
    /// Pieces of moved functions.
    pub bodies: Vec<Range<u64>>,
    /// What became of their bytes.
    pub runs: Vec<Run>,
    /// New bytes without old ones.
    pub added: Vec<Added>,
    /// The bytes of each entry jump.
    pub entry_jumps: Vec<Range<u64>>,
    /// Where moved functions are entered.
    pub entry_blocks: Vec<EntryBlock>,
    /// Parts of old bodies that hold other code now.
    pub reused: Vec<Range<u64>>,
    /// Values of pointers to code that changed: the old value and the new one.
    pub pointers: Vec<(u64, u64)>,
    /// Executable bytes of the input. Intervals that begin elsewhere (linkers set the addresses of discarded
    /// functions to 0, 1 or the highest ones) are not code.
    pub executable: Vec<Range<u64>>,
}

/// Why parts make no map.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// Two stretches of the same kind share bytes.
    #[error("{what} at {first:#x} and at {second:#x} overlap")]
    Overlap {
        /// What they are.
        what: &'static str,
        /// Where the first begins.
        first: u64,
        /// Where the second begins.
        second: u64,
    },
    /// A run is empty, or is in no body, or an address plus a length exceeds 64 bits.
    #[error("the run of {len} bytes at {old:#x} is not in one old body")]
    Outside {
        /// Its old address.
        old: u64,
        /// Its old length.
        len: u32,
    },
}

/// Where old code is now.
#[derive(Clone, Debug, Default)]
pub struct AddressMap {
    bodies: Vec<Range<u64>>,
    runs: Vec<Run>,
    added: Vec<Added>,
    entry_jumps: Vec<Range<u64>>,
    entry_blocks: Vec<EntryBlock>,
    reused: Vec<Range<u64>>,
    pointers: Vec<(u64, u64)>,
    executable: Vec<Range<u64>>,
    /// Of bodies, and of runs.
    found: (Index, Index),
    /// All bodies are in executable bytes, and nothing was added that is not behind a run.
    plain: bool,
    /// Tells maps apart.
    digest: u64,
}

/// Old code around the last address in which nothing moved. What is asked for next is nearly always in the same
/// function.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stays(Range<u64>);

/// Mixes a number into a digest (the finalizer of splitmix64).
fn mix(digest: u64, number: u64) -> u64 {
    let z = (digest ^ number).wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl AddressMap {
    /// Sorts and checks the parts, and joins runs that continue each other.
    pub fn new(mut parts: MapParts) -> Result<Self, MapError> {
        parts.bodies.retain(|r| !r.is_empty());
        parts.bodies.sort_unstable_by_key(|r| r.start);
        disjoint("old bodies", &parts.bodies)?;
        // There are hundreds of thousands: sorted and joined where they are.
        let order = by_address(&parts.runs, |r| r.old, |a, b| a.new.cmp(&b.new));
        arrange(&mut parts.runs, order);
        let runs = || parts.runs.iter();
        let mut bodies = Ascending::new(&parts.bodies);
        for run in runs() {
            let error = || MapError::Outside {
                old: run.old,
                len: run.old_len,
            };
            let end = run.old.checked_add(u64::from(run.old_len));
            let new_end = run
                .new
                .checked_add(u64::from(run.new_len) + u64::from(run.tail));
            let body = bodies.holder(run.old).ok_or_else(error)?;
            if run.old_len == 0 || new_end.is_none() || end.is_none_or(|end| end > body.end) {
                return Err(error());
            }
        }
        for (first, second) in runs().zip(runs().skip(1)) {
            if first.old_end() > second.old {
                return Err(MapError::Overlap {
                    what: "runs",
                    first: first.old,
                    second: second.old,
                });
            }
        }
        parts
            .added
            .retain(|a| a.len > 0 && a.new.checked_add(a.len.into()).is_some());
        parts.added.sort_unstable_by_key(|a| (a.like, a.new));
        parts.entry_jumps.sort_unstable_by_key(|r| r.start);
        parts.entry_blocks.sort_unstable_by_key(|b| b.start);
        parts.pointers.sort_unstable();
        parts.pointers.dedup_by_key(|p| p.0);
        let digest = runs().fold(1, |digest, run| {
            let lengths = u64::from(run.old_len) << 32 | u64::from(run.new_len);
            mix(mix(mix(digest, run.old), run.new), lengths)
        });
        let runs = joined(parts.runs, &parts.bodies);
        let bodies = parts.bodies;
        let executable = normal(parts.executable);
        let is_code =
            |body: &Range<u64>| holder(&executable, body.start).is_some_and(|e| body.end <= e.end);
        let start = |first: Option<u64>| first.unwrap_or(0);
        let found = (
            Index::new(
                start(bodies.first().map(|b| b.start)),
                bodies.iter().map(|b| b.end),
            ),
            Index::new(
                start(runs.first().map(|r| r.old)),
                runs.iter().map(Run::old_end),
            ),
        );
        Ok(AddressMap {
            digest,
            found,
            plain: parts.added.is_empty() && bodies.iter().all(is_code),
            runs,
            bodies,
            added: parts.added,
            entry_jumps: parts.entry_jumps,
            entry_blocks: parts.entry_blocks,
            reused: normal(parts.reused),
            pointers: parts.pointers,
            executable,
        })
    }

    /// Where the first byte of an interval is that was given to other code.
    pub(crate) fn reused_in(&self, old: &Range<u64>) -> Option<u64> {
        let next = self.reused.partition_point(|r| r.end <= old.start);
        let first = self.reused.get(next).filter(|r| r.start < old.end)?;
        Some(first.start.max(old.start))
    }

    /// A number that another map makes another one of.
    pub(crate) fn renamed(&self, id: u64) -> u64 {
        mix(self.digest, id)
    }

    /// Old bodies, ascending.
    pub fn bodies(&self) -> &[Range<u64>] {
        &self.bodies
    }

    /// Runs, by old address; neighbours that continue each other are joined.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Jumps at old entries, ascending.
    pub fn entry_jumps(&self) -> &[Range<u64>] {
        &self.entry_jumps
    }

    /// Whether old bodies hold other code.
    pub fn reuses(&self) -> bool {
        !self.reused.is_empty()
    }

    /// Values of pointers to code that changed: the old value, ascending, and the new one.
    pub fn pointers(&self) -> &[(u64, u64)] {
        &self.pointers
    }

    /// Runs that have an old byte in the interval.
    pub fn runs_in(&self, old: &Range<u64>) -> &[Run] {
        self.numbered_runs_in(old).1
    }

    /// The same, and the number of the first.
    pub(crate) fn numbered_runs_in(&self, old: &Range<u64>) -> (usize, &[Run]) {
        let from = self.found.1.ended(&self.runs, old.start, Run::old_end);
        (from, stretch(&self.runs, from, |r| r.old < old.end))
    }

    /// Added bytes that are described as a byte of the interval.
    pub fn added_in(&self, old: &Range<u64>) -> &[Added] {
        let from = self.added.partition_point(|a| a.like < old.start);
        stretch(&self.added, from, |a| a.like < old.end)
    }

    /// Entry jumps that begin in the interval.
    pub fn entry_jumps_in(&self, old: &Range<u64>) -> &[Range<u64>] {
        let from = self.entry_jumps.partition_point(|j| j.start < old.start);
        stretch(&self.entry_jumps, from, |j| j.start < old.end)
    }

    /// Entry blocks that begin in an interval of new code.
    pub fn entry_blocks_in(&self, new: &Range<u64>) -> &[EntryBlock] {
        let from = self.entry_blocks.partition_point(|b| b.start < new.start);
        stretch(&self.entry_blocks, from, |b| b.start < new.end)
    }

    /// Bodies that share bytes with the interval.
    pub fn bodies_in(&self, old: &Range<u64>) -> &[Range<u64>] {
        let from = self.body_after(old.start);
        stretch(&self.bodies, from, |b| b.start < old.end)
    }

    /// The first body that ends behind an address.
    fn body_after(&self, old: u64) -> usize {
        self.found.0.ended(&self.bodies, old, |b| b.end)
    }

    /// Whether the interval is code, and some of it moved.
    pub fn touches(&self, old: &Range<u64>) -> bool {
        old.start < old.end && self.is_code(old.start) && {
            let body = self.bodies.get(self.body_after(old.start));
            body.is_some_and(|b| b.start < old.end)
        }
    }

    /// The same, of intervals that are near to each other.
    pub(crate) fn touches_near(&self, old: &Range<u64>, last: &mut Stays) -> bool {
        if last.0.start <= old.start && old.end <= last.0.end {
            return false;
        }
        let next = self.body_after(old.start);
        let before = next.checked_sub(1).and_then(|i| self.bodies.get(i));
        let next = self.bodies.get(next);
        last.0 = before.map_or(0, |b| b.end)..next.map_or(u64::MAX, |b| b.start);
        let meets = next.is_some_and(|b| b.start < old.end);
        meets && old.start < old.end && self.is_code(old.start)
    }

    /// Whether the address was in a function that moved.
    pub fn is_moved(&self, old: u64) -> bool {
        let body = self.bodies.get(self.body_after(old));
        body.is_some_and(|b| b.start <= old)
    }

    /// Whether the address is in executable bytes of the input.
    pub fn is_code(&self, old: u64) -> bool {
        holder(&self.executable, old).is_some()
    }

    /// The old interval in new code: ascending, disjoint, neighbours joined. What is not code, and code that
    /// stays, maps to itself.
    pub fn interval(&self, old: &Range<u64>) -> Vec<Range<u64>> {
        let mut out = Vec::new();
        self.put_interval(old, &mut out);
        out
    }

    /// An interval all of whose bytes are of one run, in new code: most of those of variables are.
    fn in_one_run(&self, old: &Range<u64>) -> Option<Range<u64>> {
        let run = self.run_at(old.start)?;
        let is_inside = old.start < old.end && old.end <= run.old_end() && self.plain;
        is_inside.then(|| {
            let end = if old.end == run.old_end() {
                run.tail_end()
            } else {
                run.border(old.end)
            };
            run.border(old.start)..end
        })
    }

    /// The same, into a list that is empty.
    pub(crate) fn put_interval(&self, old: &Range<u64>, out: &mut Vec<Range<u64>>) {
        if let Some(new) = self.in_one_run(old) {
            if !new.is_empty() {
                out.push(new);
            }
            return;
        }
        let bodies = self.bodies_in(old);
        if bodies.is_empty() || old.start >= old.end || !self.is_code(old.start) {
            if old.start < old.end {
                out.push(old.clone());
            }
            return;
        }
        let mut at = old.start;
        for body in bodies {
            if at < body.start {
                out.push(at..body.start);
            }
            at = body.end;
        }
        if at < old.end {
            out.push(at..old.end);
        }
        for run in self.runs_in(old) {
            let start = run.border(old.start);
            let end = if old.end >= run.old_end() {
                run.tail_end()
            } else {
                run.border(old.end)
            };
            // Most blocks are followed by the same one as before.
            match out.last_mut() {
                Some(last) if last.end == start => last.end = end.max(start),
                _ => out.push(start..end),
            }
        }
        let added = if self.added.is_empty() {
            &[]
        } else {
            self.added_in(old)
        };
        for added in added {
            out.push(added.new..added.new + u64::from(added.len));
        }
        normalise(out);
    }

    /// The union of the intervals, in new code.
    pub fn intervals(&self, old: &[Range<u64>]) -> Vec<Range<u64>> {
        match old {
            [one] => self.interval(one),
            _ => normal(old.iter().flat_map(|r| self.interval(r)).collect()),
        }
    }

    /// Where a unit's code is: its old intervals, whose bytes are still there, without what other code took,
    /// and its new ones.
    pub fn with_old_bodies(&self, old: &[Range<u64>]) -> Vec<Range<u64>> {
        let mut all = Vec::new();
        for range in old {
            let mut at = range.start;
            let reused = if self.is_code(range.start) {
                let next = self.reused.partition_point(|r| r.end <= range.start);
                stretch(&self.reused, next, |r| r.start < range.end)
            } else {
                &[]
            };
            for hole in reused {
                if at < hole.start {
                    all.push(at..hole.start);
                }
                at = at.max(hole.end);
            }
            if at < range.end {
                all.push(at..range.end);
            }
            if self.touches(range) {
                all.extend(self.interval(range));
            }
        }
        normal(all)
    }

    /// Where the instruction at an address is now; `None` if it is gone. Code that stays, and what is not
    /// code, keeps its address.
    pub fn address(&self, old: u64) -> Option<u64> {
        if !self.is_moved(old) {
            return Some(old);
        }
        let run = self.run_at(old)?;
        if old == run.old || run.old_len == run.new_len {
            Some(run.border(old))
        } else {
            None
        }
    }

    /// New address of the first byte of the interval that was kept.
    pub fn first(&self, old: &Range<u64>) -> Option<u64> {
        if old.start >= old.end {
            return None;
        }
        if !self.touches(old) {
            return Some(old.start);
        }
        let stays = match self.bodies_in(old).first() {
            Some(body) if body.start <= old.start => None,
            _ => Some(old.start),
        };
        if stays.is_some() {
            return stays;
        }
        let run = self.runs_in(old).first();
        // The first byte after the bodies that the interval begins with.
        let mut behind = old.start;
        for body in self
            .bodies_in(old)
            .iter()
            .take_while(|b| b.start <= old.end)
        {
            if body.start > behind {
                break;
            }
            behind = body.end;
        }
        match run {
            Some(run) if run.old < behind => Some(run.border(old.start)),
            _ if behind < old.end => Some(behind),
            run => run.map(|r| r.border(old.start)),
        }
    }

    /// Where a call returns to whose return address was `old`: after the byte that was in front of it.
    pub fn after_call(&self, old: u64) -> Option<u64> {
        let before = old.checked_sub(1)?;
        if !self.is_moved(before) {
            return Some(old);
        }
        self.run_at(before).map(|run| run.border(old))
    }

    /// Where an interval that ended at `old` ends now: after its last byte and what was added there.
    pub fn end(&self, old: u64) -> Option<u64> {
        let last = old.checked_sub(1)?;
        if !self.is_moved(last) {
            return Some(old);
        }
        self.run_at(last).map(|run| {
            if run.old_end() == old {
                run.tail_end()
            } else {
                run.border(old)
            }
        })
    }

    /// The intervals of a scope in new code, and its entry. The interval that begins with the entry is first,
    /// as debuggers take the first one's start for the entry; the others ascend. `entry` is the scope's old
    /// entry.
    pub fn scope(&self, old: &[Range<u64>], entry: u64) -> (Vec<Range<u64>>, Option<u64>) {
        let all = self.intervals(old);
        let from_entry = old
            .iter()
            .find(|r| r.contains(&entry))
            .map(|r| entry..r.end);
        let first = from_entry.iter().chain(old).find_map(|r| self.first(r));
        let first = first
            .filter(|e| all.iter().any(|r| r.contains(e)))
            .or(all.first().map(|r| r.start));
        let Some(entry) = first else {
            return (all, None);
        };
        let mut out = Vec::with_capacity(all.len() + 1);
        let holds = |r: &&Range<u64>| r.contains(&entry);
        out.extend(all.iter().find(holds).map(|r| entry..r.end));
        for r in all {
            let end = if r.contains(&entry) { entry } else { r.end };
            if r.start < end {
                out.push(r.start..end);
            }
        }
        (out, Some(entry))
    }

    /// What a pointer to code with this value is now.
    pub fn pointer(&self, old: u64) -> u64 {
        let found = self.pointers.binary_search_by_key(&old, |p| p.0).ok();
        found
            .and_then(|i| self.pointers.get(i))
            .map_or(old, |p| p.1)
    }

    /// The run that holds an old byte.
    pub fn run_at(&self, old: u64) -> Option<&Run> {
        let i = self.found.1.ended(&self.runs, old, Run::old_end);
        self.runs.get(i).filter(|r| r.old <= old)
    }
}

/// Elements of a sorted list from one on, as long as `inside` holds.
pub(crate) fn stretch<T>(sorted: &[T], from: usize, inside: impl Fn(&T) -> bool) -> &[T] {
    let rest = sorted.get(from..).unwrap_or_default();
    // Nearly always they are few, in lists of a million.
    const FEW: usize = 4;
    let few = rest.iter().take(FEW).take_while(|x| inside(x)).count();
    if few < FEW {
        return rest.get(..few).unwrap_or_default();
    }
    // The last one is looked for among twice as many each time.
    let mut near = FEW;
    while near < rest.len() && rest.get(near).is_some_and(&inside) {
        near *= 2;
    }
    let near = rest.get(..near).unwrap_or(rest);
    let len = near.partition_point(inside);
    near.get(..len).unwrap_or_default()
}

/// Finds stretches of a sorted list by address without a search of all of it: how many end in front of each of about
/// twice as many places, all of them as far apart.
#[derive(Clone, Debug, Default)]
struct Index {
    start: u64,
    /// Logarithm of the distance.
    shift: u32,
    before: Vec<u32>,
}

impl Index {
    /// Of a list by the ends of its stretches, which ascend; `start` is that of the first.
    fn new(start: u64, ends: impl ExactSizeIterator<Item = u64> + Clone) -> Index {
        let count = ends.len() as u64;
        let Some(last) = ends.clone().last().filter(|_| u32::try_from(count).is_ok()) else {
            return Index::default();
        };
        let distance = last.saturating_sub(start) / (2 * count) + 1;
        let shift = (u64::BITS - distance.leading_zeros()).min(u64::BITS - 1);
        let places = (last.saturating_sub(start) >> shift) + 2;
        let mut before = Vec::with_capacity(places as usize);
        for (number, end) in (0..).zip(ends) {
            // The first places whose stretches with smaller ends are all known.
            let place = end.saturating_sub(start).div_ceil(1 << shift);
            while (before.len() as u64) < place {
                before.push(number);
            }
        }
        before.push(count as u32);
        Index {
            start,
            shift,
            before,
        }
    }

    /// The number of stretches that end at an address or in front of it.
    fn ended<T>(&self, list: &[T], at: u64, end: impl Fn(&T) -> u64) -> usize {
        let Some(distance) = at.checked_sub(self.start) else {
            return 0;
        };
        let place = usize::try_from(distance >> self.shift).unwrap_or(usize::MAX);
        let known = |place: usize| self.before.get(place).map(|n| *n as usize);
        let from = known(place).unwrap_or(if self.before.is_empty() {
            0
        } else {
            list.len()
        });
        let to = known(place.saturating_add(1)).unwrap_or(list.len());
        let part = list.get(from..to).unwrap_or_default();
        from + part.partition_point(|x| end(x) <= at)
    }
}

/// The range that holds an address, of disjoint ascending ones.
fn holder(sorted: &[Range<u64>], at: u64) -> Option<&Range<u64>> {
    let i = sorted.partition_point(|r| r.end <= at);
    sorted.get(i).filter(|r| r.start <= at)
}

fn disjoint(what: &'static str, sorted: &[Range<u64>]) -> Result<(), MapError> {
    for (first, second) in sorted.iter().zip(sorted.iter().skip(1)) {
        if first.end > second.start {
            return Err(MapError::Overlap {
                what,
                first: first.start,
                second: second.start,
            });
        }
    }
    Ok(())
}

/// Ascending, disjoint intervals of the same bytes, as few as possible.
pub fn normal(mut list: Vec<Range<u64>>) -> Vec<Range<u64>> {
    normalise(&mut list);
    list
}

fn normalise(list: &mut Vec<Range<u64>>) {
    list.retain(|r| r.start < r.end);
    if list.is_sorted_by(|a, b| a.end < b.start) {
        return;
    }
    list.sort_unstable_by_key(|r| (r.start, r.end));
    list.dedup_by(|next, last| {
        let joins = next.start <= last.end;
        if joins {
            last.end = last.end.max(next.end);
        }
        joins
    });
}

/// Finds which of disjoint ascending ranges hold addresses that ascend as well.
struct Ascending<'r> {
    /// From the one on that may hold the next address.
    rest: &'r [Range<u64>],
}

impl<'r> Ascending<'r> {
    fn new(sorted: &'r [Range<u64>]) -> Self {
        Ascending { rest: sorted }
    }

    fn holder(&mut self, at: u64) -> Option<&'r Range<u64>> {
        while let Some((first, rest)) = self.rest.split_first() {
            if first.end > at {
                return Some(first).filter(|r| r.start <= at);
            }
            self.rest = rest;
        }
        None
    }
}

/// Runs, in which those of equal displacement are joined that follow each other in old and in new code and in the same
/// body. All are in bodies.
fn joined(mut runs: Vec<Run>, bodies: &[Range<u64>]) -> Vec<Run> {
    let mut bodies = Ascending::new(bodies);
    runs.dedup_by(|run, last| {
        let body = bodies.holder(run.old);
        let follows = last.tail == 0
            && last.old_len == last.new_len
            && run.old_len == run.new_len
            && last.old_end() == run.old
            && last.new_end() == run.new
            && body.is_some_and(|body| body.start <= last.old);
        let longer = last.old_len.checked_add(run.old_len);
        match longer.filter(|_| follows) {
            Some(len) => {
                (last.old_len, last.new_len, last.tail) = (len, len, run.tail);
                true
            }
            None => false,
        }
    });
    runs.shrink_to_fit();
    runs
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::*;
    use arbitrary::Unstructured;

    #[test]
    fn what_was_asked_before_makes_no_difference() {
        arbtest::arbtest(|u| {
            let mut parts = MapParts {
                executable: vec![0x100..0x180],
                ..MapParts::default()
            };
            let mut at = 0xf0;
            for _ in 0..u.int_in_range(0..=6)? {
                let start = at + u.int_in_range(0..=20u64)?;
                at = start + u.int_in_range(1..=20)?;
                parts.bodies.push(start..at);
            }
            let map = AddressMap::new(parts).unwrap();
            let mut last = Stays::default();
            for _ in 0..u.int_in_range(1..=20)? {
                let start = u.int_in_range(0..=0x1a0)?;
                let old = start..u.int_in_range(0..=0x1a0)?;
                assert_eq!(map.touches_near(&old, &mut last), map.touches(&old));
            }
            Ok(())
        });
    }

    #[test]
    fn what_the_index_finds_is_what_a_search_finds() {
        arbtest::arbtest(|u| {
            let mut list = Vec::new();
            let mut at = u.int_in_range(0..=1 << 40)?;
            for _ in 0..u.int_in_range(0..=40)? {
                let (wide, long) = (u.int_in_range(0..=20)?, u.int_in_range(0..=12)?);
                let gap = u.int_in_range(0..=1u64 << wide)?;
                let len = u.int_in_range(1..=1u64 << long)?;
                list.push(at + gap..at + gap + len);
                at += gap + len;
            }
            let start = list.first().map_or(0, |r| r.start);
            let index = Index::new(start, list.iter().map(|r| r.end));
            let near = list
                .iter()
                .flat_map(|r| [r.start, r.end - 1, r.end, r.end + 1]);
            let all: Vec<u64> = near
                .chain([0, 1, start.saturating_sub(1), u64::MAX])
                .collect();
            for at in all {
                let expected = list.partition_point(|r| r.end <= at);
                assert_eq!(
                    index.ended(&list, at, |r| r.end),
                    expected,
                    "{list:x?} {at:#x}"
                );
                let old = at..at.saturating_add(u.int_in_range(0..=5000)?);
                let inside = list.iter().skip(expected).filter(|r| r.start < old.end);
                let found = stretch(&list, expected, |r| r.start < old.end);
                assert_eq!(found.len(), inside.count());
            }
            Ok(())
        });
    }

    fn run(old: u64, old_len: u32, new: u64, new_len: u32, tail: u32) -> Run {
        Run {
            old,
            old_len,
            new,
            new_len,
            tail,
        }
    }

    /// One function at 0x100..0x140: a block, a jump that is gone, a block that went elsewhere with a longer jump.
    fn example() -> AddressMap {
        AddressMap::new(MapParts {
            bodies: vec![0x100..0x140],
            runs: vec![
                run(0x100, 0x10, 0x1000, 0x10, 0),
                run(0x112, 0x1c, 0x2000, 0x1c, 0),
                run(0x12e, 2, 0x201c, 5, 3),
                run(0x130, 0x10, 0x1010, 0x10, 0),
            ],
            executable: vec![0x80..0x200],
            ..MapParts::default()
        })
        .unwrap()
    }

    #[test]
    fn an_interval_over_a_split_function_becomes_its_fragments() {
        let map = example();
        assert_eq!(
            map.interval(&(0x100..0x140)),
            [0x1000..0x1020, 0x2000..0x2024]
        );
        assert_eq!(
            map.interval(&(0xf0..0x150)),
            [0xf0..0x100, 0x140..0x150, 0x1000..0x1020, 0x2000..0x2024]
        );
        assert_eq!(map.interval(&(0x110..0x112)), []);
    }

    #[test]
    fn borders_inside_runs_keep_their_distance_from_the_end() {
        let map = example();
        // One byte in front of the end of the call at the end of the first block.
        assert_eq!(map.interval(&(0x100..0x10f)), [0x1000..0x100f]);
        // Inside the instruction that was re-encoded: one byte in front of its end, then as well, and
        // without its tail.
        assert_eq!(map.interval(&(0x12e..0x12f)), [0x201c..0x2020]);
        assert_eq!(map.interval(&(0x12f..0x130)), [0x2020..0x2024]);
    }

    #[test]
    fn return_addresses_and_next_instructions_part_company() {
        let map = example();
        assert_eq!(map.after_call(0x110), Some(0x1010));
        assert_eq!(map.address(0x112), Some(0x2000));
        assert_eq!(map.after_call(0x112), None);
        assert_eq!(map.address(0x110), None);
        assert_eq!(map.address(0x12e), Some(0x201c));
        assert_eq!(map.address(0x12f), None);
        assert_eq!(
            (map.address(0x90), map.after_call(0x90)),
            (Some(0x90), Some(0x90))
        );
    }

    #[test]
    fn the_first_kept_byte_is_found_behind_what_is_gone() {
        let map = example();
        assert_eq!(map.first(&(0x110..0x140)), Some(0x2000));
        assert_eq!(map.first(&(0x110..0x112)), None);
        assert_eq!(map.first(&(0xf0..0x140)), Some(0xf0));
        assert_eq!(map.first(&(0x13f..0x150)), Some(0x101f));
    }

    #[test]
    fn what_does_not_begin_in_code_is_not_mapped() {
        let map = example();
        assert_eq!(map.interval(&(0..0x2000)), [0..0x2000]);
    }

    #[test]
    fn overlaps_and_runs_outside_bodies_are_errors() {
        let parts = |bodies: Vec<Range<u64>>, runs| MapParts {
            bodies,
            runs,
            ..MapParts::default()
        };
        let error = AddressMap::new(parts(vec![0..8, 4..12], vec![])).unwrap_err();
        assert_eq!(error.to_string(), "old bodies at 0x0 and at 0x4 overlap");
        let body = 0..16u64;
        let twice = vec![run(0, 8, 100, 8, 0), run(4, 4, 200, 4, 0)];
        let error = AddressMap::new(parts(vec![body.clone()], twice)).unwrap_err();
        assert_eq!(error.to_string(), "runs at 0x0 and at 0x4 overlap");
        for bad in [
            run(12, 8, 0, 8, 0),
            run(0, 0, 0, 0, 0),
            run(0, 4, u64::MAX, 4, 0),
        ] {
            assert!(AddressMap::new(parts(vec![body.clone()], vec![bad])).is_err());
        }
    }

    /// A function cut into pieces that are kept, lengthened or dropped, and placed in random order.
    fn random(u: &mut Unstructured<'_>) -> arbitrary::Result<AddressMap> {
        let mut pieces = Vec::new();
        let mut old = 0x100;
        for _ in 0..u.int_in_range(1..=8)? {
            let len = u.int_in_range(1..=9)?;
            let kept = u.ratio(4, 5)?;
            let new_len = if u.ratio(1, 4)? {
                u.int_in_range(1..=6)?
            } else {
                len
            };
            let tail = u.int_in_range(0..=5u32)?.saturating_sub(3);
            pieces.push((old, len, kept, new_len, tail));
            old += u64::from(len);
        }
        let body = 0x100..old;
        let mut kept: Vec<_> = pieces.into_iter().filter(|p| p.2).collect();
        let (mut runs, mut new) = (Vec::new(), 0x1000);
        while !kept.is_empty() {
            let (old, old_len, _, new_len, tail) = kept.remove(u.choose_index(kept.len())?);
            runs.push(run(old, old_len, new, new_len, tail));
            new += u64::from(new_len + tail) + u.int_in_range(0..=2u64)?;
        }
        Ok(AddressMap::new(MapParts {
            bodies: vec![body],
            runs,
            executable: vec![0x80..0x400],
            ..MapParts::default()
        })
        .unwrap())
    }

    fn covers(outer: &[Range<u64>], inner: &[Range<u64>]) -> bool {
        inner
            .iter()
            .all(|i| outer.iter().any(|o| o.start <= i.start && i.end <= o.end))
    }

    #[test]
    fn maps_respect_inclusion_and_disjointness_and_are_monotonic_in_copied_bytes() {
        arbtest::arbtest(|u| {
            let map = random(u)?;
            let a = u.int_in_range(0xf0..=0x150u64)?;
            let b = u.int_in_range(a..=0x160)?;
            let c = u.int_in_range(b..=0x170)?;
            let (left, right, whole) = (
                map.interval(&(a..b)),
                map.interval(&(b..c)),
                map.interval(&(a..c)),
            );
            assert!(covers(&whole, &left) && covers(&whole, &right));
            for l in &left {
                assert!(right.iter().all(|r| l.end <= r.start || r.end <= l.start));
            }
            // What both halves leave out is not in the whole: a border never loses a byte but a tail in front of it.
            let size = |list: &[Range<u64>]| list.iter().map(|r| r.end - r.start).sum::<u64>();
            assert_eq!(size(&left) + size(&right), size(&whole));
            // The byte of a copied run is found by inverting.
            for r in map.runs().iter().filter(|r| r.old_len == r.new_len) {
                for k in 0..u64::from(r.old_len) {
                    let new = r.new + k;
                    let found = whole.iter().any(|w| w.contains(&new));
                    assert_eq!(found, (a..c).contains(&(r.old + k)));
                    assert_eq!(map.address(r.old + k), Some(new));
                    assert_eq!(map.after_call(r.old + k + 1), Some(new + 1));
                }
            }
            if let Some(first) = map.first(&(a..c)) {
                assert!(whole.iter().any(|w| w.contains(&first)) || whole.is_empty());
            }
            Ok(())
        });
    }
}
