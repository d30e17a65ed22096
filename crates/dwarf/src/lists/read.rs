//! Reading lists.

use std::ops::Range;

use super::{Indexes, List, Location, Source, Views, kind};
use crate::Error;
use crate::read::Reader;

/// A base that was set, or an entry.
enum Item {
    End,
    Base(u64),
    Range(Range<u64>),
    Default,
    Views(Views),
}

/// Reads the range list at an offset of the section.
pub(crate) fn read_ranges(source: &Source<'_>, offset: u64) -> Result<List<Range<u64>>, Error> {
    let mut r = Reader::new(source.section, offset, source.name)?;
    let mut list = List::default();
    let mut base = source.base;
    loop {
        let item = match source.encoding.version {
            5 => item_5(&mut r, source, base, false, &mut list.indexes)?,
            _ => item_4(&mut r, base)?,
        };
        match item {
            Item::End => return Ok(list),
            Item::Base(b) => base = b,
            Item::Range(range) => list.entries.push(range),
            Item::Default | Item::Views(_) => {}
        }
    }
}

/// Reads the location list at an offset of the section into one that is empty. `views` is where pairs for its entries
/// are, if they are in front of it.
pub(crate) fn read_locations<'d>(
    source: &Source<'d>,
    offset: u64,
    views: Option<u64>,
    list: &mut List<Location<'d>>,
) -> Result<(), Error> {
    let List { entries, indexes } = list;
    each_location(
        source,
        offset,
        views,
        indexes,
        |range, expression, views| {
            entries.push(Location {
                range,
                expression: expression.into(),
                views,
            });
            true
        },
    )
}

/// Visits the entries of the location list at an offset of the section, as long as `visit` wants more: where one holds,
/// its expression, and its views.
pub(crate) fn each_location<'d>(
    source: &Source<'d>,
    offset: u64,
    views: Option<u64>,
    indexes: &mut Indexes,
    mut visit: impl FnMut(Option<Range<u64>>, &'d [u8], Views) -> bool,
) -> Result<(), Error> {
    let mut r = Reader::new(source.section, offset, source.name)?;
    let mut pairs = match views {
        Some(at) => Some(Reader::new(source.section, at, source.name)?),
        None => None,
    };
    let mut base = source.base;
    let mut inline = (0, 0);
    loop {
        let item = match source.encoding.version {
            5 => item_5(&mut r, source, base, true, indexes)?,
            _ if source.is_split => split_item_4(&mut r, source, indexes)?,
            _ => item_4(&mut r, base)?,
        };
        let range = match item {
            Item::End => return Ok(()),
            Item::Base(b) => {
                base = b;
                continue;
            }
            Item::Views(views) => {
                inline = views;
                continue;
            }
            Item::Range(range) => Some(range),
            Item::Default => None,
        };
        let len = match source.encoding.version {
            5 => r.uleb()?,
            _ => u64::from(r.u16()?),
        };
        let expression = r.bytes(len)?;
        let views = match &mut pairs {
            Some(pairs) if range.is_some() => (pairs.uleb()?, pairs.uleb()?),
            _ => std::mem::take(&mut inline),
        };
        if !visit(range, expression, views) {
            return Ok(());
        }
    }
}

/// An entry of DWARF 2 to 4.
fn item_4(r: &mut Reader<'_>, base: u64) -> Result<Item, Error> {
    let (a, b) = (r.number(8)?, r.number(8)?);
    Ok(match (a, b) {
        (0, 0) => Item::End,
        (u64::MAX, b) => Item::Base(b),
        // Of discarded functions sums may exceed 64 bits; they are no code.
        _ => Item::Range(a.wrapping_add(base)..b.wrapping_add(base)),
    })
}

/// An entry of a location list of DWARF 4 in a file of split units (`DW_LLE_GNU_…`): as in DWARF 5, but lengths have
/// four bytes.
fn split_item_4(
    r: &mut Reader<'_>,
    source: &Source<'_>,
    indexes: &mut Indexes,
) -> Result<Item, Error> {
    let mut by_index = |index: u64| {
        indexes.push(index);
        source.pool.get(index)
    };
    let at = r.at;
    Ok(match r.u8()? {
        kind::END_OF_LIST => Item::End,
        kind::BASE_ADDRESSX => Item::Base(by_index(r.uleb()?)?),
        kind::STARTX_ENDX => Item::Range(by_index(r.uleb()?)?..by_index(r.uleb()?)?),
        kind::STARTX_LENGTH => {
            let start = by_index(r.uleb()?)?;
            // GCC ends the last entry of some lists in front of its start: that holds nowhere, and not for 4 GiB.
            let len = r.number(4)? as u32 as i32;
            Item::Range(start..start.wrapping_add_signed(len.into()))
        }
        code => {
            r.at = at;
            return Err(r.error(format!("the unknown kind {code:#x} of a list's entry")));
        }
    })
}

/// An entry of DWARF 5.
fn item_5(
    r: &mut Reader<'_>,
    source: &Source<'_>,
    base: u64,
    locations: bool,
    indexes: &mut Indexes,
) -> Result<Item, Error> {
    let mut by_index = |index: u64| {
        indexes.push(index);
        source.pool.get(index)
    };
    let at = r.at;
    let code = r.u8()?;
    Ok(match (code, locations) {
        (kind::END_OF_LIST, _) => Item::End,
        (kind::BASE_ADDRESSX, _) => Item::Base(by_index(r.uleb()?)?),
        (kind::STARTX_ENDX, _) => Item::Range(by_index(r.uleb()?)?..by_index(r.uleb()?)?),
        (kind::STARTX_LENGTH, _) => {
            let start = by_index(r.uleb()?)?;
            Item::Range(start..start.wrapping_add(r.uleb()?))
        }
        (kind::OFFSET_PAIR, _) => {
            Item::Range(base.wrapping_add(r.uleb()?)..base.wrapping_add(r.uleb()?))
        }
        (kind::DEFAULT_LOCATION, true) => Item::Default,
        (kind::LOC_BASE_ADDRESS, true) | (kind::RNG_BASE_ADDRESS, false) => {
            Item::Base(r.number(8)?)
        }
        (kind::LOC_START_END, true) | (kind::RNG_START_END, false) => {
            Item::Range(r.number(8)?..r.number(8)?)
        }
        (kind::LOC_START_LENGTH, true) | (kind::RNG_START_LENGTH, false) => {
            let start = r.number(8)?;
            Item::Range(start..start.wrapping_add(r.uleb()?))
        }
        (kind::GNU_VIEW_PAIR, true) => Item::Views((r.uleb()?, r.uleb()?)),
        _ => {
            r.at = at;
            return Err(r.error(format!("the unknown kind {code:#x} of a list's entry")));
        }
    })
}
