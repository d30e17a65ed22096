//! Places: location lists of variables.

use std::borrow::Cow;

use super::{Number, Walk};
use crate::Error;
use crate::contribution;
use crate::expression::{self, Operand, OperandKind};
use crate::lists::{self, Location, Source, Views};
use crate::names::{at, form};
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
        let new = match self.plan.locations.known.get(&key) {
            Some(known) => *known,
            None => {
                let new = self.write_locations(section, offset, views_offset)?;
                self.plan.locations.known.insert(key, new);
                new
            }
        };
        if let Some(v) = views {
            let old = views_offset.unwrap_or(0);
            let number = new.map_or(Number::OldViews(section, old), |(_, at)| {
                Number::NewViews(at)
            });
            self.patch(v, number);
        }
        match (new, a.form == form::LOCLISTX) {
            (Some((at, _)), false) => self.patch(a, Number::Locations(at)),
            (None, false) => self.patch(a, Number::Offset(section, offset)),
            (Some((at, _)), true) => {
                let index = self.values.number(a);
                self.plan.locations.slots.entry(index).or_insert(at);
            }
            (None, true) => {}
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
        let mut list = lists::read_locations(&source, offset, views)?;
        let map = self.shared.map;
        let mut touched = list
            .entries
            .iter()
            .flat_map(|l| &l.range)
            .any(|r| map.touches(r));
        for location in &mut list.entries {
            touched |= self.new_expression(&mut location.expression)?;
        }
        if !touched {
            for index in list.indexes {
                self.keep(index)?;
            }
            return Ok(None);
        }
        let new = self.new_locations(list.entries);
        let out = &mut self.plan.locations.bytes;
        let views_at = out.len() as u64;
        if views.is_some() {
            let with_range = new.iter().filter(|l| l.range.is_some());
            with_range.for_each(|l| lists::put_views(out, l.views));
        }
        let at = out.len() as u64;
        if self.root.is_split && self.unit.encoding.version < 5 {
            return self
                .put_split_locations(&new)
                .map(|()| Some((at, views_at)));
        }
        lists::put_locations(
            out,
            self.unit.encoding,
            self.root.base,
            &new,
            views.is_none(),
        )?;
        self.plan.report.location_lists += 1;
        Ok(Some((at, views_at)))
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
        self.plan.report.location_lists += 1;
        Ok(())
    }

    /// Entries in new code, by address; neighbours that say the same are joined. Empty ones are left out.
    fn new_locations(&self, old: Vec<Location<'d>>) -> Vec<Location<'d>> {
        let map = self.shared.map;
        let mut out: Vec<Location<'d>> = Vec::with_capacity(old.len());
        for location in old {
            let Some(range) = &location.range else {
                out.push(location);
                continue;
            };
            let begins = map.address(range.start);
            let ends = map.end(range.end);
            for piece in map.interval(range) {
                let view = |view, kept: bool| if kept { view } else { 0 };
                let views: Views = (
                    view(location.views.0, begins == Some(piece.start)),
                    view(location.views.1, ends == Some(piece.end)),
                );
                out.push(Location {
                    range: Some(piece),
                    expression: location.expression.clone(),
                    views,
                });
            }
        }
        out.sort_by_key(|l| l.range.as_ref().map_or(u64::MAX, |r| r.start));
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
        out
    }

    /// Gives addresses in an expression of a list their new values; whether one changed. An index whose
    /// address changes becomes the address itself: lists are rewritten, so lengths are free.
    fn new_expression(&mut self, expression: &mut Cow<'d, [u8]>) -> Result<bool, Error> {
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
