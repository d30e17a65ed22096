//! One unit's new bytes, once it is known where everything is.
//!
//! Patches write numbers into fields; entries that get another abbreviation are written as a whole, with
//! their other attributes moved within them. Either takes exactly the bytes that were there.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::Error;
use crate::abbrev::{self, Additions, Alternate, Demand, Recipe, Table};
use crate::map::stretch;
use crate::names::at;
use crate::pool::Outcome;
use crate::read::{fits, part, put_at, put_number, put_uleb_padded, uleb_len};
use crate::report::{Loss, Report};
use crate::sections::{Changes, Section, Sections};
use crate::splice::Pieces;
use crate::unit::{Attribute, Entries, Entry, Unit};
use crate::walk::{Conversion, Number, Patch, Plan};

/// Where things are in the new sections.
pub(crate) struct Places<'a> {
    /// Changes of the sections that other sections refer to.
    pub changes: &'a Changes,
    /// Those of the program's sections, to which some offsets of units in other files lead.
    pub of_program: &'a Changes,
    /// What offsets of range lists are relative to.
    pub ranges_base: u64,
    /// Where the unit's new range lists begin.
    pub ranges: u64,
    /// Where its new location lists begin.
    pub locations: u64,
    /// What offsets of views are relative to.
    pub views_base: u64,
    /// The index of its first new slot of range lists.
    pub first_slot: u64,
    /// By pool user.
    pub outcomes: &'a [Outcome],
}

impl Places<'_> {
    /// Where an old offset into a section leads now.
    fn shift(&self, section: Section, old: u64) -> Option<u64> {
        let changes = match section {
            // New lists are behind the old ones, and an offset to the end of the section (that of a program without
            // lists) does not lead behind them.
            Section::Ranges => return Some(old),
            Section::Addr | Section::Line => self.of_program,
            _ => self.changes,
        };
        changes.get(section).shift(old)
    }
}

/// Writes what changes in a unit.
pub(crate) fn unit(
    sections: &Sections<'_>,
    unit: &Unit,
    table: &Table<'_>,
    additions: &Additions,
    plan: &mut Plan,
    places: &Places<'_>,
) -> Result<Pieces, Error> {
    let data = sections.get(unit.section);
    plan.patches.sort_by_key(|p| p.at);
    plan.conversions.sort_by_key(|c| c.at);
    let mut finish = Finish {
        data,
        unit,
        places,
        patches: &plan.patches,
        report: &mut plan.report,
    };
    let mut out = Pieces::default();
    let abbrev = places
        .changes
        .get(crate::Section::Abbrev)
        .shift(unit.abbrev);
    let abbrev =
        abbrev.ok_or_else(|| finish.error(unit.abbrev_field, "its abbreviations are gone"))?;
    if abbrev != unit.abbrev {
        let mut bytes = Vec::new();
        put_number(&mut bytes, abbrev, unit.encoding.offset_size);
        let start = unit.abbrev_field as u64;
        out.push(start..start + bytes.len() as u64, &bytes);
    }
    // The header may have a number that changes, after this field.
    let mut at = unit.abbrev_field + usize::from(unit.encoding.offset_size);
    for conversion in &plan.conversions {
        let start = unit.start + conversion.at as usize;
        finish.fields(at..start, &mut out)?;
        let Some(entry) = Entries::at(unit, table, data, start).next()? else {
            return Err(finish.error(start, "an entry that was there is gone"));
        };
        let alternate = additions.alternates.get(&conversion.demand);
        let bytes = finish.conversion(&entry, conversion, alternate)?;
        out.push(start as u64..entry.end as u64, &bytes);
        at = entry.end;
    }
    finish.fields(at..unit.end, &mut out)?;
    Ok(out)
}

struct Finish<'a> {
    data: &'a [u8],
    unit: &'a Unit,
    places: &'a Places<'a>,
    patches: &'a [Patch],
    report: &'a mut Report,
}

impl<'a> Finish<'a> {
    fn error(&self, at: usize, what: impl Into<String>) -> Error {
        Error::new(self.unit.section.name(), at as u64, what)
    }

    /// Patches of an interval of the section.
    fn patches(&self, range: Range<usize>) -> &'a [Patch] {
        let at = |p: &Patch| self.unit.start + p.at as usize;
        let from = self.patches.partition_point(|p| at(p) < range.start);
        stretch(self.patches, from, |p| at(p) < range.end)
    }

    /// Where an old offset leads now.
    fn shifted(&self, section: Section, old: u64, patch: &Patch) -> Result<u64, Error> {
        let what = || {
            let what = format!(
                "an offset {old:#x} into the middle of something of {}",
                section.name()
            );
            self.error(self.unit.start + patch.at as usize, what)
        };
        self.places.shift(section, old).ok_or_else(what)
    }

    /// The number for a field; `None` if the field keeps what it has.
    fn number(&mut self, patch: &Patch) -> Result<Option<u64>, Error> {
        let places = self.places;
        Ok(Some(match patch.number {
            Number::Known(n) => n,
            Number::Ranges(at) => (places.ranges + at).wrapping_sub(places.ranges_base),
            Number::Locations(at) => places.locations + at,
            Number::NewViews(at) => (places.locations + at).wrapping_sub(places.views_base),
            Number::OldViews(section, old) => {
                let new = self.shifted(section, old, patch)?;
                new.wrapping_sub(places.views_base)
            }
            Number::Offset(section, old) => match self.shifted(section, old, patch)? {
                new if new == old && places.ranges_base == 0 => return Ok(None),
                new if section == Section::Ranges => new.wrapping_sub(places.ranges_base),
                new => new,
            },
            Number::Index(user) => match places.outcomes.get(user as usize) {
                Some(Outcome::Index(index)) => u64::from(*index),
                Some(Outcome::Lost) => {
                    self.report.lose(Loss::SharedIndex);
                    return Ok(None);
                }
                _ => return Ok(None),
            },
        }))
    }

    /// Appends the bytes of a field.
    fn field(&self, patch: &Patch, number: u64, out: &mut Vec<u8>) -> Result<(), Error> {
        if !has_room(number, patch.uleb, usize::from(patch.size)) {
            let what = format!("{number:#x} does not fit a field of {} bytes", patch.size);
            return Err(self.error(self.unit.start + patch.at as usize, what));
        }
        if patch.uleb {
            put_uleb_padded(out, number, usize::from(patch.size))
        } else {
            put_number(out, number, patch.size)
        }
        Ok(())
    }

    /// Writes the fields that change in an interval.
    fn fields(&mut self, range: Range<usize>, out: &mut Pieces) -> Result<(), Error> {
        for patch in self.patches(range) {
            if let Some(number) = self.number(patch)? {
                let start = (self.unit.start + patch.at as usize) as u64;
                let from = out.bytes.len();
                self.field(patch, number, &mut out.bytes)?;
                out.end(start..start + u64::from(patch.size), from);
            }
        }
        Ok(())
    }

    /// Copies old bytes with their patches.
    fn copy(&mut self, range: Range<usize>, out: &mut Vec<u8>) -> Result<(), Error> {
        let base = out.len();
        let bytes = range.start as u64..range.end as u64;
        out.extend_from_slice(part(self.data, bytes, self.unit.section.name())?);
        let mut pieces = Pieces::default();
        self.fields(range.clone(), &mut pieces)?;
        for (place, bytes) in pieces.iter() {
            let from = base + place.start as usize - range.start;
            if !put_at(out, from, bytes) {
                let what = "a field that goes past the end of what is copied";
                return Err(self.error(place.start as usize, what));
            }
        }
        Ok(())
    }

    /// An entry with its alternate abbreviation.
    fn conversion(
        &mut self,
        entry: &Entry<'_>,
        c: &Conversion,
        alternate: Option<&Alternate>,
    ) -> Result<Vec<u8>, Error> {
        let (Some(low), Some(high)) = (entry.get(at::LOW_PC), entry.get(at::HIGH_PC)) else {
            return Err(self.error(
                entry.start,
                "an entry without an interval was to be given several",
            ));
        };
        let slot = c.slot.map(|slot| self.places.first_slot + u64::from(slot));
        let fits_slot = |bytes: u8| slot.is_some_and(|s| uleb_len(s) <= usize::from(bytes));
        let alternate = alternate.filter(|a| match a.recipe {
            Recipe::RangesByIndex(bytes) => fits_slot(bytes),
            _ => true,
        });
        let Some(alternate) = alternate else {
            return self.first_interval(entry, c, low, high);
        };
        self.report.alternates += 1;
        let mut out = Vec::with_capacity(entry.end - entry.start);
        put_uleb_padded(&mut out, alternate.code, 0);
        let mut parts = [(low, true), (high, false)];
        parts.sort_by_key(|p| p.0.at);
        let mut at = entry.values;
        for (field, is_low) in parts {
            self.copy(at..field.at, &mut out)?;
            if is_low {
                self.low(field, c, alternate.recipe, &mut out)
            } else {
                self.high(c, alternate.recipe, slot, &mut out)?
            }
            at = field.at + field.size;
        }
        self.copy(at..entry.end, &mut out)?;
        if out.len() != entry.end - entry.start {
            let what = format!(
                "an entry of {} bytes would have {}",
                entry.end - entry.start,
                out.len()
            );
            return Err(self.error(entry.start, what));
        }
        Ok(out)
    }

    /// What is in the place of `low_pc`.
    fn low(&self, low: &Attribute, c: &Conversion, recipe: Recipe, out: &mut Vec<u8>) {
        match recipe {
            Recipe::EntryAndRanges(_) if low.form == crate::names::form::ADDR => {
                out.extend(c.entry.to_le_bytes())
            }
            // An index of an entry that has the new value, or a root's old value.
            Recipe::EntryAndRanges(_) | Recipe::LowAndRanges(_) => {
                let field = self.data.get(low.at..low.at + low.size);
                out.extend_from_slice(field.unwrap_or_default()); // was read before
            }
            Recipe::Ranges(_) | Recipe::RangesByIndex(_) => {}
        }
    }

    /// What is in the place of `high_pc`.
    fn high(
        &self,
        c: &Conversion,
        recipe: Recipe,
        slot: Option<u64>,
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let pad = match recipe {
            Recipe::LowAndRanges(pad) | Recipe::EntryAndRanges(pad) | Recipe::Ranges(pad) => pad,
            Recipe::RangesByIndex(bytes) => {
                put_uleb_padded(out, slot.unwrap_or(0), usize::from(bytes));
                return Ok(());
            }
        };
        let list = (self.places.ranges + c.list).wrapping_sub(self.places.ranges_base);
        let size = self.unit.encoding.offset_size;
        if !fits(list, size) {
            let what = format!("a list at {list:#x} is out of reach of an offset of {size} bytes");
            return Err(self.error(self.unit.start + c.at as usize, what));
        }
        put_number(out, list, size);
        abbrev::put_padding(out, pad);
        Ok(())
    }

    /// An entry that cannot have a list: its first interval.
    fn first_interval(
        &mut self,
        entry: &Entry<'_>,
        c: &Conversion,
        low: &Attribute,
        high: &Attribute,
    ) -> Result<Vec<u8>, Error> {
        self.report.lose(Loss::NoRoomForRanges);
        let mut out = Vec::with_capacity(entry.end - entry.start);
        self.copy(entry.start..entry.end, &mut out)?;
        let mut set = |a: &Attribute, value: u64| {
            let room = has_room(value, a.is_uleb(), a.size);
            if room && a.size > 0 {
                let mut bytes = Vec::new();
                if a.is_uleb() {
                    put_uleb_padded(&mut bytes, value, a.size)
                } else {
                    put_number(&mut bytes, value, a.size as u8)
                }
                return put_at(&mut out, a.at - entry.start, &bytes);
            }
            room
        };
        let addr = crate::names::form::ADDR;
        let by_index = high.is_address() && high.form != addr;
        if c.demand.not_root && !by_index {
            // An index that others need for another address says nothing of this scope: it has no byte then.
            let known = if low.form == addr {
                set(low, c.entry)
            } else {
                !c.demand.without_address
            };
            let end = if high.is_address() {
                c.entry + c.first_len
            } else {
                c.first_len
            };
            if !known || !set(high, end) {
                set(high, 0);
            }
        }
        Ok(out)
    }
}

/// Conversions whose recipe names a list by index get a slot.
pub(crate) fn give_slots(plan: &mut Plan, additions: &Additions) {
    for c in &mut plan.conversions {
        let recipe = additions.alternates.get(&c.demand).map(|a| a.recipe);
        if matches!(recipe, Some(Recipe::RangesByIndex(_))) {
            c.slot = Some(plan.ranges.new_slots.len() as u32);
            plan.ranges.new_slots.push(c.list);
        }
    }
}

/// Demands of the units of each table, ascending.
pub(crate) fn demands<'p>(
    plans: impl Iterator<Item = (usize, &'p Plan)>,
) -> BTreeMap<usize, Vec<Demand>> {
    let mut out: BTreeMap<usize, Vec<Demand>> = BTreeMap::new();
    for (table, plan) in plans {
        out.entry(table)
            .or_default()
            .extend(plan.conversions.iter().map(|c| c.demand));
    }
    for list in out.values_mut() {
        list.sort_unstable();
        list.dedup();
    }
    out
}

/// Whether a number fits a field of `size` bytes. Other fields than numbers of variable length have at most 8: a
/// block in the place of an address may have more.
fn has_room(number: u64, uleb: bool, size: usize) -> bool {
    if uleb {
        uleb_len(number) <= size
    } else {
        size <= 8 && fits(number, size as u8)
    }
}
