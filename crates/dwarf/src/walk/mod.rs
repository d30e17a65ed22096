//! One unit: what has to change in it.
//!
//! All entries of a unit are visited. What changes by itself (an address, a length) becomes a [`Patch`] of as
//! many bytes. New range and location lists are collected; where they will be is not known yet, so fields
//! that name them, like all offsets into sections that grow, are patches whose numbers follow later. Scopes
//! of several intervals are noted as [`Conversion`]s: their abbreviations can be numbered only when those of
//! all units with the same table are known. Indexes into address pools are noted as users, and decided for
//! all units of a pool at once, or [here](own_pool) if one unit alone names it.
//!
//! Nothing here depends on other units, so units are walked in parallel, and large ones in [parts].

mod own_pool;
mod parts;
mod places;
mod scopes;

use std::ops::Range;

use crate::Error;
use crate::abbrev::{self, Demand, Table};
use crate::ascending::Ascending;
use crate::by_index::{ByIndex, Indexes};
use crate::contribution::{self, Contribution};
use crate::expression::{self, OperandKind};
use crate::forms;
use crate::lists::{List, Location};
use crate::map::{AddressMap, Stays};
use crate::names::{at, form, tag};
use crate::pool::{Extents, Pool, User, UserKind};
use crate::report::{Loss, Report};
use crate::sections::{Reading, Section, Sections};
use crate::split;
use crate::unit::{Attribute, Entries, Entry, Root, Unit, Values};
pub(crate) use own_pool::{OwnPool, without_addresses};

/// A number that a field will hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Number {
    /// It is known.
    Known(u64),
    /// An offset into the old section.
    Offset(Section, u64),
    /// An offset into the unit's new range lists.
    Ranges(u64),
    /// An offset into the unit's new location lists.
    Locations(u64),
    /// An offset into the unit's new location lists, where views are; from where those count ([`Root::views_base`]).
    NewViews(u64),
    /// An offset into the old section, where views are; from where those count now.
    OldViews(Section, u64),
    /// The index that the unit's n-th pool user gets.
    Index(u32),
}

/// A field that changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patch {
    /// Offset in the unit.
    pub at: u32,
    /// Its bytes.
    pub size: u8,
    /// In ULEB128.
    pub uleb: bool,
    pub number: Number,
}

/// An entry that gets another abbreviation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conversion {
    /// Offset of the entry in the unit.
    pub at: u32,
    pub demand: Demand,
    /// Where its list begins among the unit's new range lists.
    pub list: u64,
    /// Its new entry address, as far as it has a field for it that is not an index.
    pub entry: u64,
    /// If its recipe needs one, the number of the new slot among the unit's.
    pub slot: Option<u32>,
    /// Length of its first interval, for the case that nothing fits.
    pub first_len: u64,
}

/// A scope whose address is an index: what it would need if that index is given to others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IndexedScope {
    /// The user.
    pub user: u32,
    /// Offset of the entry in the unit.
    pub at: u32,
    /// The conversion that it is part of, or else its one interval.
    pub is: Indexed,
}

/// See [`IndexedScope`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Indexed {
    Conversion(u32),
    Interval { start: u64, end: u64 },
}

/// New lists of a unit in one section.
#[derive(Clone, Debug, Default)]
pub(crate) struct NewLists {
    pub bytes: Vec<u8>,
    /// Offsets by index that change: index and place in `bytes`.
    pub slots: ByIndex<u32>,
    /// Offsets that are added.
    pub new_slots: Vec<u64>,
    /// The contribution that the unit's lists are in.
    pub home: Option<usize>,
    /// Indexes of addresses in `bytes`, 5 bytes each, that follow later: where, and the pool user.
    pub indexes: Vec<(usize, u32)>,
    /// Lists that were written: by old offset and what else they depend on. `None`: it stays.
    known: Ascending<(u64, u64), Option<(u64, u64)>>,
}

/// A list's place among the new ones of a unit, as it is kept by index.
fn place_of_slot(at: u64) -> Result<u32, String> {
    u32::try_from(at).map_err(|_| {
        format!("a list that would be at {at:#x} of the unit's new ones; 2^32 bytes are possible")
    })
}

/// What has to change in a unit.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    pub patches: Vec<Patch>,
    pub conversions: Vec<Conversion>,
    pub users: Vec<User>,
    /// What becomes of the unit's pool, if that is decided already: then there are no users.
    pub pool: Option<OwnPool>,
    pub indexed: Vec<IndexedScope>,
    pub ranges: NewLists,
    pub locations: NewLists,
    /// Old intervals of the whole unit.
    pub covers: Vec<Range<u64>>,
    pub report: Report,
}

impl Plan {
    /// Forgets everything, but keeps the memory for it.
    fn clear(&mut self) {
        self.patches.clear();
        self.conversions.clear();
        self.users.clear();
        self.pool = None;
        self.indexed.clear();
        self.covers.clear();
        self.report = Report::default();
        for lists in [&mut self.ranges, &mut self.locations] {
            lists.bytes.clear();
            lists.slots.clear();
            lists.new_slots.clear();
            lists.home = None;
            lists.indexes.clear();
            lists.known.clear();
        }
    }

    /// Whether anything names an entry of its pool.
    pub fn uses_pool(&self) -> bool {
        !self.users.is_empty() || self.pool.is_some()
    }

    /// Gives back memory: plans of all units are there together.
    fn shrink(&mut self) {
        self.patches.shrink_to_fit();
        self.conversions.shrink_to_fit();
        self.users.shrink_to_fit();
        self.indexed.shrink_to_fit();
        for lists in [&mut self.ranges, &mut self.locations] {
            lists.known = Ascending::default(); // it is of use to the walk alone
            lists.bytes.shrink_to_fit();
            lists.slots.shrink_to_fit();
        }
    }
}

/// What walks of units in the same set of sections share.
pub(crate) struct Shared<'a, 'd> {
    /// Those of the unit's file; addresses, and range lists of DWARF 4, are in the program alone.
    pub sections: Sections<'d>,
    pub map: &'a AddressMap,
    pub rnglists: Vec<Contribution>,
    pub loclists: Vec<Contribution>,
    /// Address pools with headers; those of the program alone.
    pub pools: Extents,
    /// Bytes of a part of a unit that is walked by itself; `None`: units are not cut.
    pub part: Option<usize>,
}

impl<'a, 'd> Shared<'a, 'd> {
    /// Reads where lists of DWARF 5 are.
    pub fn new(sections: Sections<'d>, map: &'a AddressMap) -> Result<Self, Error> {
        let read = |s: Section| contribution::read_all(sections.get(s), s.name());
        Ok(Shared {
            sections,
            map,
            rnglists: read(Section::Rnglists)?,
            loclists: read(Section::Loclists)?,
            pools: Extents::default(),
            part: None,
        })
    }
}

/// Visits all entries of a unit.
pub(crate) fn walk(
    shared: &Shared<'_, '_>,
    unit: &Unit,
    table: &Table<'_>,
    root: &Root,
    reading: &Reading<'_>,
) -> Result<Plan, Error> {
    let mut walk = Walk::new(shared, unit, table, root);
    if let Some((at, old)) = root.split_id {
        walk.plan.patches.push(Patch {
            at: walk.relative(at),
            size: 8,
            uleb: false,
            number: Number::Known(split::new_id(old, shared.map)),
        });
    }
    let parts = parts::cut(&walk);
    parts::walk(&mut walk, &parts, reading)?;
    walk.decide_own_pool()?;
    let mut plan = walk.plan;
    plan.report.units = 1;
    plan.shrink();
    Ok(plan)
}

struct Walk<'a, 'd> {
    shared: &'a Shared<'a, 'd>,
    unit: &'a Unit,
    table: &'a Table<'a>,
    root: &'a Root,
    values: Values<'d>,
    plan: Plan,
    /// Pool entries that something needs as they are.
    kept: Indexes,
    /// The contribution of the unit's location lists, if each of them has one index.
    lists_by_index: Option<&'a Contribution>,
    /// New entry addresses of the scopes with moved code that surround the entry in hand, with their depths.
    outer: Vec<(u32, u64)>,
    /// What was asked of the map last.
    stays: Stays,
    /// Memory for location lists: the old one in hand, intervals of one of its entries, the new one.
    list: List<Location<'d>>,
    pieces: Vec<Range<u64>>,
    new_list: Vec<Location<'d>>,
}

impl<'a, 'd> Walk<'a, 'd> {
    fn new(
        shared: &'a Shared<'a, 'd>,
        unit: &'a Unit,
        table: &'a Table<'a>,
        root: &'a Root,
    ) -> Self {
        let addresses = if root.is_split && root.addr_base.is_none() {
            &[]
        } else {
            shared.sections.get(Section::Addr)
        };
        let mut walk = Walk {
            shared,
            unit,
            table,
            root,
            values: Values {
                data: shared.sections.get(unit.section),
                section: unit.section.name(),
                pool: Pool {
                    section: addresses,
                    base: root.addr_base,
                },
            },
            plan: Plan::default(),
            kept: Indexes::default(),
            lists_by_index: None,
            outer: Vec::new(),
            stays: Stays::default(),
            list: List::default(),
            pieces: Vec::new(),
            new_list: Vec::new(),
        };
        walk.start_again();
        walk
    }

    /// Goes on as if nothing had been visited, with nothing found.
    fn start_again(&mut self) {
        self.plan.clear();
        self.kept.clear();
        self.outer.clear();
        if self.unit.encoding.version == 5 {
            let home = |all: &[Contribution], base: Option<u64>| {
                contribution::holding(all, base?.checked_sub(1)?)
            };
            let (shared, root) = (self.shared, self.root);
            self.plan.ranges.home = home(&shared.rnglists, root.rnglists_base);
            self.plan.locations.home = home(&shared.loclists, root.loclists_base);
            let home = self
                .plan
                .locations
                .home
                .and_then(|i| shared.loclists.get(i));
            self.lists_by_index = home.filter(|c| c.ascends && root.loclists_base == Some(c.base));
        }
    }

    /// Visits the entries of a part of the unit; the first is inside of so many others.
    fn entries(
        &mut self,
        part: &Range<usize>,
        depth: u32,
        reading: &Reading<'_>,
    ) -> Result<(), Error> {
        let entries = Entries::part(self.unit, self.table, self.values.data, part, depth);
        // What entries lead to is read as well: memory is given back within a large unit.
        let mut done = part.start;
        let count = entries.for_each(|entry| {
            const PART: usize = 64 << 10;
            if entry.end - done >= PART {
                reading.done((entry.end - done) as u64);
                done = entry.end;
            }
            self.entry(entry)
        })?;
        reading.done((part.end - done) as u64);
        self.plan.report.entries += count;
        Ok(())
    }
}

impl Walk<'_, '_> {
    fn entry(&mut self, entry: &Entry<'_>) -> Result<(), Error> {
        let is_behind = |(depth, _): &mut (u32, u64)| *depth >= entry.lowest;
        while self.outer.pop_if(is_behind).is_some() {}
        let is_root = entry.start == self.unit.root;
        if is_root {
            self.root_ranges(entry)?;
        } else if entry.declaration.may_be_scope
            && let Some(new) = self.scope(entry)?
        {
            self.outer.push((entry.depth, new));
        }
        let is_scope = entry.declaration.may_be_scope && entry.get(at::HIGH_PC).is_some();
        for a in &entry.attributes {
            match a.name {
                at::LOW_PC if is_root || is_scope => {}
                at::HIGH_PC | at::ENTRY_PC | at::RANGES | at::GNU_LOCVIEWS => {}
                // These are without addresses in files of split units.
                at::STMT_LIST | at::MACROS | at::GNU_MACROS if self.root.is_split => {}
                at::GNU_RANGES_BASE => self.offset(a, Section::Ranges),
                at::STMT_LIST => self.offset(a, Section::Line),
                at::ADDR_BASE | at::GNU_ADDR_BASE => self.offset(a, Section::Addr),
                at::RNGLISTS_BASE => self.offset(a, Section::Rnglists),
                at::LOCLISTS_BASE => self.offset(a, Section::Loclists),
                _ if a.is_address() => self.single(entry, a)?,
                _ if a.form == form::LOCLISTX || self.is_location_list(a) => {
                    self.location_list(entry, a)?
                }
                _ if forms::is_block(a.form) => self.expression(a)?,
                at::START_SCOPE if self.unit.encoding.is_offset(a.form) => {
                    let section = self.ranges_section();
                    self.offset(a, section);
                }
                _ if a.form == form::SEC_OFFSET && !abbrev::is_root_offset(a.name) => {
                    self.plan.report.lose(Loss::UnknownOffset);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn is_location_list(&self, a: &Attribute) -> bool {
        self.unit.encoding.is_offset(a.form) && abbrev::is_list_attribute(a.name)
    }

    fn ranges_section(&self) -> Section {
        match self.unit.encoding.version {
            5 => Section::Rnglists,
            _ => Section::Ranges,
        }
    }

    fn locations_section(&self) -> Section {
        match self.unit.encoding.version {
            5 => Section::Loclists,
            _ => Section::Loc,
        }
    }

    /// The new entry address of the scope around the entry in hand.
    fn around(&self) -> Option<u64> {
        self.outer.last().map(|(_, entry)| *entry)
    }

    fn relative(&self, at: usize) -> u32 {
        (at - self.unit.start) as u32 // units of more than 4 GiB were refused
    }

    fn patch(&mut self, a: &Attribute, number: Number) {
        self.plan.patches.push(Patch {
            at: self.relative(a.at),
            // A number has few bytes; a block in its place may have many, and is refused when it is written.
            size: u8::try_from(a.size).unwrap_or(u8::MAX),
            uleb: a.is_uleb(),
            number,
        });
    }

    /// An offset into a section that may grow.
    fn offset(&mut self, a: &Attribute, section: Section) {
        let old = self.values.number(a);
        self.patch(a, Number::Offset(section, old));
    }

    /// Gives a field an address.
    fn address(&mut self, a: &Attribute, new: u64) -> Result<(), Error> {
        let (old, index) = self.values.address(a)?;
        let Some(index) = index else {
            if old != new {
                self.patch(a, Number::Known(new));
            }
            return Ok(());
        };
        if a.form == form::LLVM_ADDRX_OFFSET {
            if old != new {
                self.plan.report.lose(Loss::IndexWithOffset);
            }
            self.keep(index)?;
            return Ok(());
        }
        let kind = UserKind::Field {
            size: a.size as u8,
            uleb: a.is_uleb(),
        };
        let user = self.user(index, new, kind);
        self.patch(a, Number::Index(user));
        Ok(())
    }

    fn user(&mut self, index: u64, want: u64, kind: UserKind) -> u32 {
        self.plan.users.push(User::new(index, want, kind));
        self.plan.users.len() as u32 - 1
    }

    /// An entry of the pool that has a value, whatever its index.
    fn any_index(&mut self, want: u64) -> u32 {
        self.user(0, want, UserKind::Any)
    }

    /// Something needs a pool entry as it is.
    fn keep(&mut self, index: u64) -> Result<(), Error> {
        let want = self.values.pool.get(index)?;
        // Many lists begin with the same address.
        if self.kept.insert(index) {
            self.user(index, want, UserKind::Keep);
        }
        Ok(())
    }

    /// An address that is not part of a scope.
    fn single(&mut self, entry: &Entry<'_>, a: &Attribute) -> Result<(), Error> {
        let map = self.shared.map;
        let (old, _) = self.values.address(a)?;
        let is_return = a.name == at::CALL_RETURN_PC
            || a.name == at::LOW_PC && entry.declaration.tag == tag::GNU_CALL_SITE;
        let new = match a.name {
            _ if !(map.is_moved(old) || is_return && map.is_moved(old.wrapping_sub(1))) => {
                Some(old)
            }
            _ if is_return => map.after_call(old),
            at::LOW_PC | at::CALL_PC => map.address(old).or_else(|| self.rest_of_body(old)),
            _ => Some(map.pointer(old)),
        };
        match new {
            Some(new) => self.address(a, new),
            None => {
                self.plan.report.lose(Loss::AddressGone);
                self.address(a, old)
            }
        }
    }

    /// The first byte that was kept from an address to the end of its body.
    fn rest_of_body(&self, old: u64) -> Option<u64> {
        let map = self.shared.map;
        let body = map.bodies_in(&(old..old.checked_add(1)?)).first()?;
        map.first(&(old..body.end))
    }

    /// An expression in the entry itself.
    fn expression(&mut self, a: &Attribute) -> Result<(), Error> {
        let data = self.values.data;
        let mut r = crate::read::Reader::new(data, a.at as u64, self.values.section)?;
        r.end = a.at + a.size;
        let bytes = forms::block(&mut r, a.form)?;
        if !expression::may_name(bytes) {
            return Ok(());
        }
        let start = r.at - bytes.len();
        // Blocks of DWARF 2 and 3 may be constants: what is no expression is left alone.
        let found = match expression::operands(bytes, self.unit.encoding) {
            Err(_) if a.form != form::EXPRLOC => return Ok(()),
            found => found
                .map_err(|e| Error::new(self.values.section, start as u64 + e.offset, e.what))?,
        };
        let Some(found) = found else {
            self.plan.report.lose(Loss::UnknownOperation);
            return Ok(());
        };
        for operand in found {
            let field = Attribute {
                name: a.name,
                form: match operand.kind {
                    OperandKind::Address(_) => form::ADDR,
                    _ => form::ADDRX,
                },
                at: start + operand.at + 1,
                size: usize::from(operand.size),
            };
            match operand.kind {
                OperandKind::Constant(index) => self.keep(index)?,
                _ => {
                    let (old, _) = self.values.address(&field)?;
                    self.address(&field, self.shared.map.pointer(old))?;
                }
            }
        }
        Ok(())
    }
}
