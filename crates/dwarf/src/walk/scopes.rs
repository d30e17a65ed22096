//! Scopes: entries with an interval or a list of intervals.

use std::ops::Range;

use smallvec::SmallVec;

use super::{Conversion, Indexed, IndexedScope, Number, Walk, place_of_slot};
use crate::Error;
use crate::abbrev::Demand;
use crate::contribution;
use crate::lists::{self, Indexes, Source};
use crate::names::{at, form};
use crate::pool::UserKind;
use crate::read::{fits, uleb_len};
use crate::report::Loss;
use crate::sections::Section;
use crate::unit::{Attribute, Entry};

/// Old intervals of a scope: nearly always one.
type Intervals = SmallVec<[Range<u64>; 1]>;

impl Walk<'_, '_> {
    /// The intervals of an entry, and the indexes of the pool that its list uses.
    fn old_intervals(&self, entry: &Entry<'_>) -> Result<(Intervals, Indexes), Error> {
        if let Some(a) = entry.get(at::RANGES) {
            let Some(offset) = self.list_offset(a, self.root.rnglists_base, form::RNGLISTX) else {
                return Ok((Intervals::new(), Indexes::new()));
            };
            let list = lists::read_ranges(&self.ranges_source(), offset?)?;
            return Ok((list.entries.into(), list.indexes));
        }
        let (Some(low), Some(high)) = (entry.get(at::LOW_PC), entry.get(at::HIGH_PC)) else {
            return Ok((Intervals::new(), Indexes::new()));
        };
        if !low.is_address() {
            return Ok((Intervals::new(), Indexes::new()));
        }
        let implicit = entry.declaration.implicit_high as u64;
        let interval = self.values.interval(low, high, implicit)?;
        Ok((Intervals::from_iter([interval]), Indexes::new()))
    }

    fn ranges_source(&self) -> Source<'_> {
        let section = self.ranges_section();
        Source {
            section: self.shared.sections.get(section),
            name: section.name(),
            encoding: self.unit.encoding,
            base: self.root.base,
            pool: self.values.pool,
            is_split: self.root.is_split,
        }
    }

    /// Where a list is that an attribute names by offset or index; `None` if it names none.
    pub(super) fn list_offset(
        &self,
        a: &Attribute,
        base: Option<u64>,
        by_index: u16,
    ) -> Option<Result<u64, Error>> {
        let value = self.values.number(a);
        if a.form != by_index {
            let base = match by_index {
                form::RNGLISTX if self.root.is_split && self.unit.encoding.version < 5 => {
                    self.root.ranges_base
                }
                _ => 0,
            };
            let is_offset = self.unit.encoding.is_offset(a.form);
            return is_offset.then_some(Ok(value.wrapping_add(base)));
        }
        let section = match by_index {
            form::RNGLISTX => self.ranges_section(),
            _ => self.locations_section(),
        };
        let size = u64::from(self.unit.encoding.offset_size);
        let slot = || {
            let base = base?;
            let at = usize::try_from(base.checked_add(value.checked_mul(size)?)?).ok()?;
            let slot = self
                .shared
                .sections
                .get(section)
                .get(at..at.checked_add(size as usize)?)?;
            base.checked_add(crate::read::number(slot))
        };
        let what = || {
            Error::new(
                section.name(),
                base.unwrap_or(0),
                format!("no list has index {value}"),
            )
        };
        Some(slot().ok_or_else(what))
    }

    /// A unit keeps its old bodies, whose bytes are still there, and gains its new code.
    pub(super) fn root_ranges(&mut self, entry: &Entry<'_>) -> Result<(), Error> {
        let map = self.shared.map;
        if let Some(low) = entry.get(at::LOW_PC).filter(|a| a.is_address())
            && let (_, Some(index)) = self.values.address(low)?
        {
            // Lists are relative to it.
            self.keep(index)?;
        }
        let (old, indexes) = self.old_intervals(entry)?;
        self.plan.covers = old.to_vec();
        let touched = old.iter().any(|r| map.touches(r));
        if let Some(a) = entry.get(at::RANGES) {
            let new = touched.then(|| map.with_old_bodies(&old));
            return self.name_ranges(a, &old, new, &indexes, u64::MAX);
        }
        if touched
            && let (Some(low), Some(high)) = (entry.get(at::LOW_PC), entry.get(at::HIGH_PC))
            && let Some(first) = old.first()
        {
            let new = map.with_old_bodies(&old);
            let list = self.put_ranges(&new);
            self.convert(entry, low, high, list, first.start, first.end - first.start);
        }
        Ok(())
    }

    /// Any other scope. Returns its new entry.
    pub(super) fn scope(&mut self, entry: &Entry<'_>) -> Result<Option<u64>, Error> {
        let map = self.shared.map;
        let (old, indexes) = self.old_intervals(entry)?;
        let Some(first) = old.first() else {
            if let Some(a) = entry.get(at::ENTRY_PC).filter(|a| a.is_address()) {
                self.single(entry, a)?;
            }
            return Ok(None);
        };
        let entry_field = entry.get(at::ENTRY_PC).filter(|a| a.is_address());
        let old_entry = match entry_field {
            Some(a) => self.values.address(a)?.0,
            None => first.start,
        };
        let touched = old.iter().any(|r| map.touches_near(r, &mut self.stays));
        // A scope without a byte (compilers tell such apart by views) goes with the instruction at which it is.
        let nowhere = old.iter().all(|r| r.start >= r.end)
            && map.is_code(old_entry)
            && map.is_moved(old_entry);
        let around = self.around();
        let (new, new_entry) = match touched {
            true => map.scope(&old, old_entry),
            false if nowhere => (Vec::new(), map.address(old_entry).or(around)),
            false => (Vec::new(), Some(old_entry)),
        };
        let touched = touched || nowhere && new_entry.is_some() && entry.get(at::RANGES).is_none();
        if let Some(a) = entry_field {
            self.address(a, new_entry.unwrap_or(old_entry))?;
        } else if let (true, Some(a)) = (touched, entry.get(at::ENTRY_PC)) {
            // An offset from the scope's start, which is the entry now.
            self.patch(a, Number::Known(0));
        }
        if let Some(a) = entry.get(at::RANGES) {
            self.name_ranges(a, &old, touched.then_some(new), &indexes, old_entry)?;
        } else if let (Some(low), Some(high)) = (entry.get(at::LOW_PC), entry.get(at::HIGH_PC)) {
            let new = touched.then_some(new);
            self.interval(entry, (low, high), first.end, new, new_entry)?;
        }
        Ok(new_entry.filter(|_| touched))
    }

    /// A scope with `low_pc` and `high_pc` that ended at `old_end`; without new intervals it stays as it is.
    fn interval(
        &mut self,
        entry: &Entry<'_>,
        (low, high): (&Attribute, &Attribute),
        old_end: u64,
        new: Option<Vec<Range<u64>>>,
        new_entry: Option<u64>,
    ) -> Result<(), Error> {
        let (old, index) = self.values.address(low)?;
        let Some(new) = new else {
            if let Some(index) = index {
                let (start, end) = (old, old_end);
                self.indexed(entry, index, old, Indexed::Interval { start, end });
                if high.is_address() {
                    self.address(high, self.values.address(high)?.0)?;
                }
            }
            return Ok(());
        };
        // A scope whose bytes are all gone is empty, and is where the one around it begins.
        let around = self.around();
        let gone = new_entry.or(around).unwrap_or(old);
        let only = match &new[..] {
            [] => Some(gone..gone),
            [only] if Some(only.start) == new_entry => Some(only.clone()),
            _ => None,
        };
        if let Some(only) = only
            && low.form != form::LLVM_ADDRX_OFFSET
            && self.holds_length(high, only.end - only.start)
        {
            self.length(high, &only)?;
            match index {
                None => self.address(low, only.start)?,
                Some(index) => {
                    let (start, end) = (only.start, only.end);
                    self.indexed(entry, index, start, Indexed::Interval { start, end });
                }
            }
            return Ok(());
        }
        let entry_address = new_entry.unwrap_or(gone);
        let list = self.put_ranges(&new);
        let first_len = new.first().map_or(0, |r| r.end - r.start);
        let conversion = self.convert(entry, low, high, list, entry_address, first_len);
        if let Some(index) = index {
            self.indexed(entry, index, entry_address, Indexed::Conversion(conversion));
        }
        Ok(())
    }

    fn indexed(&mut self, entry: &Entry<'_>, index: u64, want: u64, is: Indexed) {
        let user = self.user(index, want, UserKind::Scope);
        let at = self.relative(entry.start);
        self.plan.indexed.push(IndexedScope { user, at, is });
    }

    /// Whether a field can hold a length.
    fn holds_length(&self, high: &Attribute, len: u64) -> bool {
        match high.form {
            form::UDATA => uleb_len(len) <= high.size,
            form::SDATA | form::IMPLICIT_CONST => false,
            _ if high.is_address() => true,
            _ => fits(len, high.size as u8),
        }
    }

    /// Sets the end of an interval.
    fn length(&mut self, high: &Attribute, only: &Range<u64>) -> Result<(), Error> {
        if high.is_address() {
            self.address(high, only.end)
        } else {
            self.patch(high, Number::Known(only.end - only.start));
            Ok(())
        }
    }

    /// Notes that an entry gets another abbreviation. Returns the conversion's number.
    fn convert(
        &mut self,
        entry: &Entry<'_>,
        low: &Attribute,
        high: &Attribute,
        list: u64,
        address: u64,
        first_len: u64,
    ) -> u32 {
        let demand = self.demand(entry, low, high);
        self.plan.conversions.push(Conversion {
            at: self.relative(entry.start),
            demand,
            list,
            entry: address,
            slot: None,
            first_len,
        });
        self.plan.conversions.len() as u32 - 1
    }

    fn demand(&self, entry: &Entry<'_>, low: &Attribute, high: &Attribute) -> Demand {
        let home = self
            .plan
            .ranges
            .home
            .and_then(|i| self.shared.rnglists.get(i));
        Demand {
            not_root: entry.start != self.unit.root,
            code: entry.declaration.code,
            low: low.size as u8,
            high: high.size as u8,
            without_address: low.form == form::LLVM_ADDRX_OFFSET,
            // A table of offsets without any could not be told from the lists after it once it has grown.
            by_index: self.root.rnglists_base.is_some() && home.is_some_and(|c| c.lists > c.base),
            only_by_index: self.root.is_split && self.unit.encoding.version == 5,
        }
    }

    /// Writes a range list. Returns where it is among the unit's.
    pub(super) fn put_ranges(&mut self, ranges: &[Range<u64>]) -> u64 {
        let at = self.plan.ranges.bytes.len() as u64;
        let encoding = self.unit.encoding;
        lists::put_ranges(
            &mut self.plan.ranges.bytes,
            encoding,
            self.root.base,
            ranges,
        );
        self.plan.report.range_lists += 1;
        at
    }

    /// Gives an attribute that names a list its new one, or none if the old one stays.
    fn name_ranges(
        &mut self,
        a: &Attribute,
        old: &[Range<u64>],
        new: Option<Vec<Range<u64>>>,
        indexes: &[u64],
        entry: u64,
    ) -> Result<(), Error> {
        let Some(offset) = self.list_offset(a, self.root.rnglists_base, form::RNGLISTX) else {
            return Ok(());
        };
        let (offset, section) = (offset?, self.ranges_section());
        if self.plan.ranges.home.is_none() && section == Section::Rnglists {
            self.plan.ranges.home = contribution::holding(&self.shared.rnglists, offset);
        }
        let Some(new) = new else {
            for index in indexes {
                self.keep(*index)?;
            }
            if a.form != form::RNGLISTX && !section.keeps_offsets() {
                self.patch(a, Number::Offset(section, offset));
            }
            return Ok(());
        };
        let at = self.ranges_at(offset, entry, &new);
        if a.form != form::RNGLISTX {
            self.patch(a, Number::Ranges(at));
            return Ok(());
        }
        let index = self.values.number(a);
        match self.plan.ranges.slots.get(index) {
            None => {
                self.set_slot(index, at)?;
                return Ok(());
            }
            Some(known) if u64::from(known) == at => return Ok(()),
            Some(_) => {}
        }
        // Another scope with the same intervals and another entry has it. Those whose entry is not where the first
        // interval begins say so by `entry_pc`, and can do with the order that the list had.
        let of_unit = self.plan.ranges.known.get(&(offset, u64::MAX)).is_some();
        match old.first().filter(|_| self.root.is_split && !of_unit) {
            Some(first) => {
                let (new, _) = self.shared.map.scope(old, first.start);
                let at = self.ranges_at(offset, first.start, &new);
                self.set_slot(index, at)?;
            }
            None => self.plan.report.lose(Loss::NoRoomForRanges),
        }
        Ok(())
    }

    /// Gives an index of range lists a new list.
    fn set_slot(&mut self, index: u64, at: u64) -> Result<(), Error> {
        let section = self.ranges_section().name();
        let at = place_of_slot(at).map_err(|what| Error::new(section, 0, what))?;
        self.plan.ranges.slots.insert(index, at);
        Ok(())
    }

    /// Where the new list is among the unit's that takes the place of the one at an offset, for scopes with an entry.
    fn ranges_at(&mut self, offset: u64, entry: u64, new: &[Range<u64>]) -> u64 {
        let key = (offset, entry);
        if let Some((at, _)) = self.plan.ranges.known.get(&key).flatten() {
            return at;
        }
        let at = self.put_ranges(new);
        self.plan.ranges.known.insert(key, Some((at, 0)));
        at
    }
}
