//! A large unit, walked in parts by several threads.
//!
//! A program that is one translation unit has one unit of debug information, and link-time optimisation makes few large
//! ones: with a thread for each unit the others wait. What the entries of a function become depends on entries in front
//! of it in two ways alone: offsets and numbers count what was found before, and a list that was written before is not
//! written again. So a unit is cut in front of entries right below its root; parts are walked by themselves, and put
//! together in their order, where all that counts is raised by what is in front. A part that wrote a list that is there
//! already is walked again, behind what is in front of it. Compilers share lists within a function, so that is rare.
//!
//! The result is that of one walk over all entries, wherever the cuts are.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use rustc_hash::FxHashSet;

use super::{Indexed, NewLists, Number, Plan, Walk, place_of_slot};
use crate::Error;
use crate::sections::Reading;
use crate::unit::Entries;

/// Parts of a unit, in order; one if it is not cut.
pub(super) fn cut(walk: &Walk<'_, '_>) -> Vec<Range<usize>> {
    let unit = walk.unit;
    let whole = unit.root..unit.end;
    let apart = walk.shared.part.filter(|part| whole.len() / 2 >= *part);
    // Whether scopes may name range lists by index depends on where the first list is that an entry names, if the base
    // does not say it.
    let is_known = walk.plan.ranges.home.is_some() || walk.root.rnglists_base.is_none();
    let Some(apart) = apart.filter(|_| is_known) else {
        return vec![whole];
    };
    let entries = Entries::of(unit, walk.table, walk.values.data);
    // What is wrong is said by a walk over all entries, which may find something else in front of it.
    let cuts = entries.cuts(apart).unwrap_or_default();
    let starts = std::iter::once(whole.start).chain(cuts.iter().copied());
    let ends = cuts.iter().copied().chain([whole.end]);
    starts.zip(ends).map(|(start, end)| start..end).collect()
}

/// Walks over all parts of a unit.
pub(super) fn walk(
    whole: &mut Walk<'_, '_>,
    parts: &[Range<usize>],
    reading: &Reading<'_>,
) -> Result<(), Error> {
    if let [only] = parts {
        return whole.entries(only, 0, reading);
    }
    let (shared, unit, table, root) = (whole.shared, whole.unit, whole.table, whole.root);
    let next = AtomicUsize::new(0);
    let together = Mutex::new(Together {
        whole,
        parts,
        reading,
        waiting: BTreeMap::new(),
        spare: Vec::new(),
        count: 0,
        failed: None,
    });
    // In their order: what was found in a part is in memory a second time until it is behind what is in front of it.
    let work = || {
        let mut walk = Walk::new(shared, unit, table, root);
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(part) = parts.get(number) else {
                return;
            };
            walk.start_again();
            let done = walk.entries(part, depth(number), reading);
            let found = done.map(|()| std::mem::take(&mut walk.plan));
            let mut together = together.lock().unwrap_or_else(PoisonError::into_inner);
            together.waiting.insert(number, found);
            together.put();
            if together.failed.is_some() {
                return;
            }
            walk.plan = together.spare.pop().unwrap_or_default();
        }
    };
    rayon::scope(|scope| {
        for _ in 1..rayon::current_num_threads().min(parts.len()) {
            scope.spawn(|_| work());
        }
        work();
    });
    let together = together.into_inner();
    let failed = together.unwrap_or_else(PoisonError::into_inner).failed;
    failed.map_or(Ok(()), Err)
}

/// How many entries are around the first one of a part.
fn depth(part: usize) -> u32 {
    u32::from(part > 0)
}

/// What was found in the first parts of a unit.
struct Together<'w, 'a, 'd> {
    whole: &'w mut Walk<'a, 'd>,
    parts: &'w [Range<usize>],
    reading: &'w Reading<'w>,
    /// What was found in others, by their numbers.
    waiting: BTreeMap<usize, Result<Plan, Error>>,
    /// Memory of those that are together, for parts that are still to be walked.
    spare: Vec<Plan>,
    /// How many parts are together.
    count: usize,
    /// What is wrong with the first part that cannot be walked.
    failed: Option<Error>,
}

impl Together<'_, '_, '_> {
    /// Puts parts behind those that are together, as long as the next one is there.
    fn put(&mut self) {
        while self.failed.is_none()
            && let Some(found) = self.waiting.remove(&self.count)
        {
            let put = found.and_then(|plan| self.put_one(plan));
            self.failed = put.err();
            self.count += 1;
        }
    }

    fn put_one(&mut self, mut found: Plan) -> Result<(), Error> {
        let whole = &mut *self.whole;
        let clash = whole
            .plan
            .shares_lists(&found, whole.lists_by_index.is_some());
        if !clash && whole.plan.has_place_for(&found) {
            whole.plan.append(&mut found);
            self.spare.push(found);
            return Ok(());
        }
        let Some(part) = self.parts.get(self.count) else {
            return Ok(());
        };
        whole.outer.clear();
        whole.entries(part, depth(self.count), self.reading)
    }
}

impl NewLists {
    /// Whether the next part wrote a list that is there already. `by_index`: one that is known by its index may be
    /// named by its offset as well.
    fn shares(&self, next: &NewLists, by_index: bool) -> bool {
        let offsets = |lists: &NewLists| !lists.known.is_empty();
        let indexes = |lists: &NewLists| !lists.slots.is_empty();
        by_index && (offsets(self) && indexes(next) || indexes(self) && offsets(next))
            || next.slots.iter().any(|(i, _)| self.slots.get(i).is_some())
            || self.holds_offset_of(next)
    }

    /// Old offsets of lists that were written.
    fn old_offsets(&self) -> impl Iterator<Item = u64> {
        self.known.keys().map(|(at, _)| at)
    }

    /// Whether it has a list at the old offset of one of the next part.
    fn holds_offset_of(&self, next: &NewLists) -> bool {
        // Lists are in the order in which entries name them, but for few.
        let least = next.old_offsets().min();
        if least.is_none_or(|least| self.known.is_below(&(least, 0))) {
            return false;
        }
        let wanted: FxHashSet<u64> = next.old_offsets().collect();
        self.old_offsets().any(|at| wanted.contains(&at))
    }

    /// Whether all places of the next part's lists can be kept by index.
    fn has_place_for(&self, next: &NewLists) -> bool {
        let base = self.bytes.len() as u64;
        let mut slots = next.slots.iter();
        slots.all(|(_, at)| place_of_slot(base + u64::from(at)).is_ok())
    }

    /// Appends the lists of the next part. Returns by how much their places are raised.
    fn append(&mut self, next: &NewLists, users: u32) -> u64 {
        let base = self.bytes.len() as u64;
        self.bytes.extend_from_slice(&next.bytes);
        for (index, at) in next.slots.iter() {
            // It has a place: see above.
            self.slots.insert(index, at + base as u32);
        }
        let slots = next.new_slots.iter().map(|at| at + base);
        self.new_slots.extend(slots);
        let indexes = next.indexes.iter();
        let raised = indexes.map(|(at, user)| (at + base as usize, user + users));
        self.indexes.extend(raised);
        for (key, lists) in next.known.iter() {
            let raised = lists.map(|(at, views)| (at + base, views + base));
            self.known.insert(key, raised);
        }
        self.home = self.home.or(next.home);
        base
    }
}

impl Plan {
    fn shares_lists(&self, next: &Plan, by_index: bool) -> bool {
        // Each range list that was written is known by its offset.
        self.ranges.shares(&next.ranges, false) || self.locations.shares(&next.locations, by_index)
    }

    fn has_place_for(&self, next: &Plan) -> bool {
        self.ranges.has_place_for(&next.ranges) && self.locations.has_place_for(&next.locations)
    }

    /// Appends what was found in the next part of the unit, which shares no list with those in front of it.
    fn append(&mut self, next: &mut Plan) {
        let (users, conversions) = (self.users.len() as u32, self.conversions.len() as u32);
        let ranges = self.ranges.append(&next.ranges, users);
        let locations = self.locations.append(&next.locations, users);
        let patches = next.patches.drain(..).map(|mut patch| {
            match &mut patch.number {
                Number::Known(_) | Number::Offset(..) | Number::OldViews(..) => {}
                Number::Ranges(at) => *at += ranges,
                Number::Locations(at) | Number::NewViews(at) => *at += locations,
                Number::Index(user) => *user += users,
            }
            patch
        });
        self.patches.extend(patches);
        let raised = next.conversions.drain(..).map(|mut conversion| {
            conversion.list += ranges;
            conversion
        });
        self.conversions.extend(raised);
        self.users.append(&mut next.users);
        let indexed = next.indexed.drain(..).map(|mut scope| {
            scope.user += users;
            if let Indexed::Conversion(number) = &mut scope.is {
                *number += conversions;
            }
            scope
        });
        self.indexed.extend(indexed);
        if self.covers.is_empty() {
            self.covers = std::mem::take(&mut next.covers); // the root's
        }
        self.report.add(&next.report);
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use crate::{AddressMap, MapParts, Run, Section, Sections, update, update_in_parts};

    /// Functions of 16 bytes from 0x1000 on, the halves of which change places; in each a variable whose places are a
    /// list at an offset.
    fn updated(offsets: &[u32], part: Option<usize>) -> (crate::Changes, u64) {
        let abbrev = [
            &[1, 0x11, 1, 0x11, 0x01, 0, 0][..],
            &[2, 0x2e, 1, 0x11, 0x01, 0x12, 0x06, 0, 0],
            &[3, 0x34, 0, 0x02, 0x17, 0, 0, 0],
        ];
        let abbrev = abbrev.concat();
        let mut info = vec![4, 0, 0, 0, 0, 0, 8, 1];
        info.extend([0; 8]);
        let mut parts = MapParts {
            executable: vec![0x1000..0x2000],
            ..MapParts::default()
        };
        for (i, offset) in (0u64..).zip(offsets) {
            let start = 0x1000 + 16 * i;
            info.push(2);
            info.extend(start.to_le_bytes());
            info.extend(16u32.to_le_bytes());
            info.push(3);
            info.extend(offset.to_le_bytes());
            info.push(0);
            parts.bodies.push(start..start + 16);
            for half in [0, 1] {
                parts.runs.push(Run {
                    old: start + 8 * half,
                    old_len: 8,
                    new: 0x5000 + 32 * i - 16 * half,
                    new_len: 8,
                    tail: 0,
                });
            }
        }
        info.push(0);
        let unit = [&(info.len() as u32).to_le_bytes(), &info[..]].concat();
        // A register for the function's middle, for each of them.
        let mut loc = Vec::new();
        for i in 0..offsets.len() as u64 {
            loc.extend((0x1004 + 16 * i).to_le_bytes());
            loc.extend((0x100c + 16 * i).to_le_bytes());
            loc.extend([1, 0, 0x50 + i as u8]);
            loc.extend([0; 16]);
        }
        let mut sections = Sections::default();
        sections.set(Section::Info, &unit);
        sections.set(Section::Abbrev, &abbrev);
        sections.set(Section::Loc, &loc);
        let map = AddressMap::new(parts).unwrap();
        let done = match part {
            Some(part) => update_in_parts(&sections, &[], &map, Some(part)),
            None => update(&sections, &map),
        };
        let done = done.unwrap();
        assert!(done.stale.is_empty(), "{:?}", done.stale);
        (done.changes, done.report.location_lists)
    }

    #[test]
    fn a_list_that_entries_of_two_parts_name_is_written_once() {
        const LIST: u32 = 35;
        let cases = [
            ([0, LIST, 2 * LIST, 3 * LIST], 4),
            ([0, LIST, 0, 2 * LIST], 3),
            ([3 * LIST, LIST, LIST, 3 * LIST], 2),
            ([2 * LIST, LIST, 0, LIST], 3),
        ];
        for (offsets, lists) in cases {
            let whole = updated(&offsets, None);
            assert_eq!(whole.1, lists, "{offsets:?}");
            for part in [1, 20, 50] {
                assert_eq!(updated(&offsets, Some(part)), whole, "{offsets:?} {part}");
            }
        }
    }
}
