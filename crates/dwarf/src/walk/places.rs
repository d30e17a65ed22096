//! Places: location lists of variables.

use std::borrow::Cow;
use std::cmp::Ordering;

use super::{Number, Walk, place_of_slot};
use crate::Error;
use crate::contribution;
use crate::expression::{self, Operand, OperandKind};
use crate::lists::{self, Location, Source, Views};
use crate::names::{at, form};
use crate::order::by_address;
use crate::report::Loss;
use crate::sections::Section;
use crate::unit::{Attribute, Entry};

impl<'d> Walk<'_, 'd> {
    /// An attribute that names a location list.
    pub(super) fn location_list(&mut self, entry: &Entry<'_>, a: &Attribute) -> Result<(), Error> {
        let Some(offset) = self.list_offset(a, self.root.loclists_base, form::LOCLISTX) else {
            return Ok(());
        };
        let (offset, section) = (offset?, self.locations_section());
        if self.plan.locations.home.is_none() && section == Section::Loclists {
            self.plan.locations.home = contribution::holding(&self.shared.loclists, offset);
        }
        let views = entry
            .get(at::GNU_LOCVIEWS)
            .filter(|_| a.name == at::LOCATION);
        let views_base = self.root.views_base(self.unit);
        let views_offset = views.map(|v| self.values.number(v).wrapping_add(views_base));
        let key = (offset, views_offset.unwrap_or(u64::MAX));
        let index = (a.form == form::LOCLISTX).then(|| self.values.number(a));
        let by_index = self.lists_by_index.filter(|_| views.is_none());
        let own = by_index.and_then(|c| match index {
            Some(index) => Some(index).filter(|index| *index < c.count()),
            None => c.index_of(self.shared.sections.get(section), offset),
        });
        let lists = &self.plan.locations;
        let known = own.and_then(|index| lists.slots.get(index));
        let known = known.map(|at| Some((u64::from(at), u64::from(at))));
        let new = match known.or_else(|| lists.known.get(&key)) {
            Some(known) => known,
            None => {
                let lost = self.plan.report.count(Loss::UnknownOperation);
                let new = self.write_locations(section, offset, views_offset)?;
                // Most lists stay and are named once. Those that are named again are read again, unless that would
                // count a loss twice.
                let is_in_slot = new.is_some() && index.is_some() && own.is_some();
                let counted = self.plan.report.count(Loss::UnknownOperation) > lost;
                if counted || new.is_some() && !is_in_slot {
                    self.plan.locations.known.insert(key, new);
                }
                new
            }
        };
        if let Some(v) = views {
            let old = views_offset.unwrap_or(0);
            match new {
                Some((_, at)) => self.patch(v, Number::NewViews(at)),
                None if section.keeps_offsets() => {}
                None => self.patch(v, Number::OldViews(section, old)),
            }
        }
        match (new, index) {
            (Some((at, _)), None) => self.patch(a, Number::Locations(at)),
            (None, None) if section.keeps_offsets() => {}
            (None, None) => self.patch(a, Number::Offset(section, offset)),
            (Some((at, _)), Some(index)) => {
                let slots = &mut self.plan.locations.slots;
                if slots.get(index).is_none() {
                    let at = place_of_slot(at)
                        .map_err(|what| Error::new(section.name(), offset, what))?;
                    slots.insert(index, at);
                }
            }
            (None, Some(_)) => {}
        }
        Ok(())
    }

    /// Writes a list again if a piece of moved code is in it. Returns where it and its views are among the unit's.
    fn write_locations(
        &mut self,
        section: Section,
        offset: u64,
        views: Option<u64>,
    ) -> Result<Option<(u64, u64)>, Error> {
        let source = Source {
            section: self.shared.sections.get(section),
            name: section.name(),
            encoding: self.unit.encoding,
            base: self.root.base,
            pool: self.values.pool,
            is_split: self.root.is_split,
        };
        let map = self.shared.map;
        let mut list = std::mem::take(&mut self.list);
        list.clear();
        // Most lists stay: those are not kept in memory.
        let mut stays = true;
        let near = &mut self.stays;
        lists::each_location(
            &source,
            offset,
            views,
            &mut list.indexes,
            |range, expression, _| {
                let moves = range.is_some_and(|range| map.touches_near(&range, near));
                stays = !moves && !expression::may_name(expression);
                stays
            },
        )?;
        if stays {
            for index in &list.indexes {
                self.keep(*index)?;
            }
            self.list = list;
            return Ok(None);
        }
        list.clear();
        lists::read_locations(&source, offset, views, &mut list)?;
        let mut ranges = list.entries.iter().flat_map(|l| &l.range);
        let mut touched = ranges.any(|r| map.touches_near(r, &mut self.stays));
        for location in &mut list.entries {
            touched |= self.new_expression(&mut location.expression)?;
        }
        let new = if touched {
            let at = self.put_list(&mut list.entries, views.is_some())?;
            Some(at)
        } else {
            for index in &list.indexes {
                self.keep(*index)?;
            }
            None
        };
        self.list = list;
        Ok(new)
    }

    /// Writes a list in which a piece of moved code is. Returns where it and its views are among the unit's.
    fn put_list(
        &mut self,
        old: &mut Vec<Location<'d>>,
        has_views: bool,
    ) -> Result<(u64, u64), Error> {
        let mut new = std::mem::take(&mut self.new_list);
        self.new_locations(old, &mut new);
        let out = &mut self.plan.locations.bytes;
        let views_at = out.len() as u64;
        if has_views {
            let with_range = new.iter().filter(|l| l.range.is_some());
            with_range.for_each(|l| lists::put_views(out, l.views));
        }
        let at = out.len() as u64;
        let (encoding, base) = (self.unit.encoding, self.root.base);
        if self.root.is_split && encoding.version < 5 {
            self.put_split_locations(&new)?;
        } else {
            lists::put_locations(out, encoding, base, &new, !has_views)?;
        }
        self.plan.report.location_lists += 1;
        new.clear();
        self.new_list = new;
        Ok((at, views_at))
    }

    /// Writes a list of a file of split units of DWARF 4, whose entries can name addresses by index alone.
    fn put_split_locations(&mut self, new: &[Location<'_>]) -> Result<(), Error> {
        for location in new {
            // There is no default location in this version.
            let Some(range) = &location.range else {
                continue;
            };
            let user = self.any_index(range.start);
            let lists = &mut self.plan.locations;
            let at = lists::put_split_location(&mut lists.bytes, range, &location.expression)?;
            lists.indexes.push((at, user));
        }
        self.plan.locations.bytes.push(0);
        Ok(())
    }

    /// Entries in new code, by address; neighbours that say the same are joined. Empty ones are left out.
    fn new_locations(&mut self, old: &mut Vec<Location<'d>>, out: &mut Vec<Location<'d>>) {
        let (map, pieces) = (self.shared.map, &mut self.pieces);
        for location in old.drain(..) {
            let Some(range) = &location.range else {
                out.push(location);
                continue;
            };
            pieces.clear();
            map.put_interval(range, pieces);
            for piece in pieces.drain(..) {
                let (begins, ends) = location.views;
                // Views say something of the borders that they had.
                let views: Views = (
                    if begins != 0 && map.address(range.start) == Some(piece.start) {
                        begins
                    } else {
                        0
                    },
                    if ends != 0 && map.end(range.end) == Some(piece.end) {
                        ends
                    } else {
                        0
                    },
                );
                out.push(Location {
                    range: Some(piece),
                    expression: location.expression.clone(),
                    views,
                });
            }
        }
        sort(out);
        out.dedup_by(|next, last| {
            let (Some(a), Some(b)) = (&mut last.range, &next.range) else {
                return false;
            };
            let joins = a.end == b.start && last.expression == next.expression;
            if joins {
                a.end = b.end;
                last.views.1 = next.views.1;
            }
            joins
        });
    }

    /// Gives addresses in an expression of a list their new values; whether one changed. An index whose
    /// address changes becomes the address itself: lists are rewritten, so lengths are free.
    fn new_expression(&mut self, expression: &mut Cow<'d, [u8]>) -> Result<bool, Error> {
        if !expression::may_name(expression) {
            return Ok(false);
        }
        let Some(found) = expression::operands(expression, self.unit.encoding)? else {
            self.plan.report.lose(Loss::UnknownOperation);
            return Ok(false);
        };
        let mut changes: Vec<(Operand, u64)> = Vec::new();
        for operand in found {
            let (old, index) = match operand.kind {
                OperandKind::Address(old) => (old, None),
                OperandKind::Constant(index) => {
                    self.keep(index)?;
                    continue;
                }
                OperandKind::Index(index) => (self.values.pool.get(index)?, Some(index)),
            };
            let new = self.shared.map.pointer(old);
            match index {
                Some(index) if new != old && operand.inner => {
                    self.plan.report.lose(Loss::SharedIndex);
                    self.keep(index)?;
                }
                _ if new != old => changes.push((operand, new)),
                Some(index) => self.keep(index)?,
                None => {}
            }
        }
        // From the end on, so that places in front stay true.
        for (operand, new) in changes.iter().rev() {
            let end = operand.at + 1 + usize::from(operand.size);
            let bytes = std::iter::once(0x03).chain(new.to_le_bytes());
            expression.to_mut().splice(operand.at..end, bytes);
        }
        Ok(!changes.is_empty())
    }
}

/// Sorts entries by where they begin; those that begin at the same place stay in their order.
fn sort(list: &mut Vec<Location<'_>>) {
    let start = |l: &Location<'_>| l.range.as_ref().map_or(u64::MAX, |r| r.start);
    // Of a short one entries are moved by a place or two.
    const SHORT: usize = 20;
    if list.len() <= SHORT {
        list.sort_by_key(start);
    } else if !list.is_sorted_by_key(start) {
        let order = by_address(list, start, |_, _| Ordering::Equal);
        let sorted = order.iter().filter_map(|number| {
            let location = list.get_mut(*number as usize)?;
            Some(std::mem::take(location))
        });
        *list = sorted.collect();
    }
}
