//! Units: headers, roots, and a walk over their entries.
//!
//! | bytes | field, up to DWARF 4 | DWARF 5 |
//! |---|---|---|
//! | 4 or 12 | length | length |
//! | 2 | version | version |
//! | | offset of abbreviations | kind of unit, size of addresses |
//! | | size of addresses | offset of abbreviations |
//! | | (in `.debug_types`) signature, offset of the type | (by kind) signature and offset of the type, or identity of the split unit |

use std::ops::Range;

use smallvec::SmallVec;

use crate::Error;
use crate::abbrev::{Declaration, Step, Table};
use crate::forms::{self, Encoding};
use crate::names::{at, form};
use crate::pool::Pool;
use crate::read::{Reader, number};
use crate::sections::{Section, Sections};
use crate::walk::Shared;

/// Kinds of units (`DW_UT_…`).
mod unit_type {
    pub const COMPILE: u8 = 1;
    pub const TYPE: u8 = 2;
    pub const PARTIAL: u8 = 3;
    pub const SKELETON: u8 = 4;
    pub const SPLIT_COMPILE: u8 = 5;
    pub const SPLIT_TYPE: u8 = 6;
}

/// What tells a unit from others in several files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Identity {
    /// Nothing: it is found by its offset.
    None,
    /// A skeleton and the unit in another file that belongs to it have the same number; where it is, and it. In
    /// DWARF 4 it is an attribute of the root.
    Split(usize, u64),
    /// The signature of a type unit.
    Type(u64),
}

/// A unit's header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unit {
    /// Number of the set of sections that it is in: 0 for those of the program ([`crate::split`]).
    pub set: usize,
    /// `.debug_info` or `.debug_types`.
    pub section: Section,
    /// Its first byte.
    pub start: usize,
    /// Its root entry.
    pub root: usize,
    /// One past its last byte.
    pub end: usize,
    pub encoding: Encoding,
    /// Where the offset of its abbreviations is.
    pub abbrev_field: usize,
    /// The offset of its abbreviations.
    pub abbrev: u64,
    /// What its header says of its identity.
    pub identity: Identity,
}

impl Unit {
    /// Reads the headers of all units of a section. What is none is passed over by its length, with the reason; if
    /// that cannot be read, and in `.debug_types`, where units are found by no other way than one after another,
    /// nothing is read after it.
    pub fn read_all(data: &[u8], section: Section) -> (Vec<Unit>, Vec<Stale>) {
        let (mut out, mut passed) = (Vec::new(), Vec::new());
        let mut at = 0;
        while at < data.len() {
            match Unit::read(data, at, section) {
                Ok(unit) => {
                    at = unit.end;
                    out.push(unit);
                }
                Err(error) => {
                    let next = Reader::new(data, at as u64, section.name()).and_then(|mut r| {
                        r.unit_length()?;
                        Ok(r.end)
                    });
                    let end = match next {
                        Ok(end) if section == Section::Info => end,
                        _ => data.len(),
                    };
                    passed.push(Stale {
                        set: 0,
                        section,
                        range: at as u64..end as u64,
                        why: error,
                    });
                    at = end;
                }
            }
        }
        (out, passed)
    }

    fn read(data: &[u8], start: usize, section: Section) -> Result<Unit, Error> {
        let mut r = Reader::new(data, start as u64, section.name())?;
        let offset_size = r.unit_length()?;
        let version = r.u16()?;
        if !(2..=5).contains(&version) {
            return Err(r.error(format!("a unit of version {version}; 2 to 5 are known")));
        }
        let kind = match (version, section) {
            (5, _) => r.u8()?,
            (_, Section::Types) => unit_type::TYPE,
            _ => unit_type::COMPILE,
        };
        let mut address_size = if version == 5 { r.u8()? } else { 0 };
        let abbrev_field = r.at;
        let abbrev = r.number(offset_size)?;
        if version < 5 {
            address_size = r.u8()?;
        }
        if address_size != forms::ADDRESS_SIZE {
            return Err(r.error(format!("addresses of {address_size} bytes; 8 are possible")));
        }
        let identity = match kind {
            unit_type::COMPILE | unit_type::PARTIAL => Identity::None,
            unit_type::TYPE | unit_type::SPLIT_TYPE => {
                let signature = r.number(8)?;
                r.number(offset_size)?;
                Identity::Type(signature)
            }
            unit_type::SKELETON | unit_type::SPLIT_COMPILE => Identity::Split(r.at, r.number(8)?),
            _ => return Err(r.error(format!("the unknown kind {kind:#x} of unit"))),
        };
        // Fields of changes within a unit are counted in 32 bits.
        if u32::try_from(r.end - start).is_err() {
            return Err(r.error("a unit of more than 4 GiB"));
        }
        Ok(Unit {
            set: 0,
            section,
            start,
            root: r.at,
            end: r.end,
            encoding: Encoding {
                version,
                offset_size,
            },
            abbrev_field,
            abbrev,
            identity,
        })
    }
}

/// A unit that stays as it is, and goes on describing old code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stale {
    /// Number of the file with split units that it is in, from 1 on; 0: the program.
    pub set: usize,
    /// The section that it is in.
    pub section: Section,
    /// Where in it.
    pub range: Range<u64>,
    /// What is wrong with it.
    pub why: Error,
}

impl Unit {
    /// Its bytes.
    pub fn len(&self) -> u64 {
        (self.end - self.start) as u64
    }

    /// The unit as one that stays.
    pub fn stale(&self, why: Error) -> Stale {
        Stale {
            set: self.set,
            section: self.section,
            range: self.start as u64..self.end as u64,
            why,
        }
    }
}

/// An attribute of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attribute {
    pub name: u16,
    /// Its form; never `indirect`.
    pub form: u16,
    /// Where its value is in the section.
    pub at: usize,
    /// Bytes of its value.
    pub size: usize,
}

impl Attribute {
    /// Whether the value is an address, or the index of one.
    pub fn is_address(&self) -> bool {
        self.form == form::ADDR || forms::is_address_index(self.form)
    }

    /// Whether its number is written in ULEB128.
    pub fn is_uleb(&self) -> bool {
        matches!(
            self.form,
            form::UDATA | form::ADDRX | form::GNU_ADDR_INDEX | form::LOCLISTX | form::RNGLISTX
        )
    }
}

/// Attributes of an entry that may matter.
pub(crate) type Attributes = SmallVec<[Attribute; 8]>;

/// An entry.
pub(crate) struct Entry<'t> {
    /// Its code.
    pub start: usize,
    /// Its first attribute.
    pub values: usize,
    /// One past its last attribute.
    pub end: usize,
    /// Number of entries that it is inside of.
    pub depth: u32,
    /// The least such number of it and of the entries that were passed over in front of it: entries that were visited
    /// before and are as deep or deeper are not around it.
    pub lowest: u32,
    pub declaration: &'t Declaration,
    pub attributes: Attributes,
}

/// An entry without its attributes.
struct Head<'t> {
    start: usize,
    values: usize,
    end: usize,
    depth: u32,
    lowest: u32,
    declaration: &'t Declaration,
}

impl<'t> Entry<'t> {
    fn new(head: Head<'t>, attributes: Attributes) -> Self {
        Entry {
            start: head.start,
            values: head.values,
            end: head.end,
            depth: head.depth,
            lowest: head.lowest,
            declaration: head.declaration,
            attributes,
        }
    }

    /// Becomes another one, whose attributes it has already.
    fn set(&mut self, head: Head<'t>) {
        self.start = head.start;
        self.values = head.values;
        self.end = head.end;
        self.depth = head.depth;
        self.lowest = head.lowest;
        self.declaration = head.declaration;
    }

    /// The attribute of a name.
    pub fn get(&self, name: u16) -> Option<&Attribute> {
        self.attributes.iter().find(|a| a.name == name)
    }
}

/// Reads entries one after another.
pub(crate) struct Entries<'a, 'd> {
    table: &'a Table<'a>,
    reader: Reader<'d>,
    encoding: Encoding,
    depth: u32,
    /// How many were read or passed over.
    count: u64,
}

impl<'a, 'd> Entries<'a, 'd> {
    /// Entries of a unit.
    pub fn of(unit: &Unit, table: &'a Table<'a>, data: &'d [u8]) -> Self {
        Self::at(unit, table, data, unit.root)
    }

    /// Entries of a unit from one on; depths are counted from there.
    pub fn at(unit: &Unit, table: &'a Table<'a>, data: &'d [u8], at: usize) -> Self {
        Self::part(unit, table, data, &(at..unit.end), 0)
    }

    /// Entries of a part of a unit; the first is inside of so many others.
    pub fn part(
        unit: &Unit,
        table: &'a Table<'a>,
        data: &'d [u8],
        part: &Range<usize>,
        depth: u32,
    ) -> Self {
        Entries {
            table,
            reader: Reader {
                data,
                at: part.start,
                end: part.end,
                section: unit.section.name(),
            },
            encoding: unit.encoding,
            depth,
            count: 0,
        }
    }

    /// Where entries right below the root begin that are at least so many bytes apart from each other and from the
    /// root.
    pub fn cuts(mut self, apart: usize) -> Result<Vec<usize>, Error> {
        let mut out = Vec::new();
        let mut last = self.reader.at;
        let root = self.reader.at;
        while let Some((start, depth, declaration)) = self.declaration()? {
            // In damaged data the root may end before the unit: what is right below another entry is inside of that.
            if depth == 0 && start != root {
                break;
            }
            if depth == 1 && start - last >= apart {
                out.push(start);
                last = start;
            }
            for step in self.table.steps(declaration) {
                self.reader.skip(step.skip.into())?;
                self.skip_value(step)?;
            }
            self.reader.skip(declaration.rest.into())?;
        }
        Ok(out)
    }

    /// Reads the next entry's code: where it is, how many entries it is inside of, and what it declares. Ends of lists
    /// of children are passed over.
    #[inline(always)]
    fn declaration(&mut self) -> Result<Option<(usize, u32, &'a Declaration)>, Error> {
        while !self.reader.is_empty() {
            let start = self.reader.at;
            let code = self.reader.uleb()?;
            if code == 0 {
                self.depth = self.depth.saturating_sub(1);
                continue;
            }
            let Some(declaration) = self.table.get(code) else {
                return Err(self.unknown(start, code));
            };
            let depth = self.depth;
            self.depth += u32::from(declaration.children);
            return Ok(Some((start, depth, declaration)));
        }
        Ok(None)
    }

    /// Reads over the value of an attribute. Gives its form, which is never `indirect`, and where the value is.
    #[inline(always)]
    fn skip_value(&mut self, step: &Step) -> Result<(u16, usize), Error> {
        let (mut f, mut from) = (step.form, self.reader.at);
        match step.size {
            Some(size) => self.reader.skip(size.into())?,
            None => {
                while f == form::INDIRECT {
                    f = u16::try_from(self.reader.uleb()?).unwrap_or(0);
                    from = self.reader.at;
                }
                forms::skip(&mut self.reader, f, self.encoding)?;
            }
        }
        Ok((f, from))
    }

    /// The next entry; `None` at the unit's end. Ends of lists of children are passed over.
    pub fn next(&mut self) -> Result<Option<Entry<'a>>, Error> {
        let mut attributes = Attributes::new();
        let head = self.head(&mut attributes, |_| true)?;
        Ok(head.map(|head| Entry::new(head, attributes)))
    }

    /// Visits the next entry, and of the others those with an attribute that may matter. Gives the number of all.
    ///
    /// There are tens of millions of them, and one with its attributes is some two hundred bytes, so all are read into
    /// the same place.
    pub fn for_each(
        mut self,
        mut visit: impl FnMut(&Entry<'a>) -> Result<(), Error>,
    ) -> Result<u64, Error> {
        let Some(mut entry) = self.next()? else {
            return Ok(self.count);
        };
        loop {
            visit(&entry)?;
            entry.attributes.clear();
            let Some(head) = self.head(&mut entry.attributes, |d| d.matters)? else {
                return Ok(self.count);
            };
            entry.set(head);
        }
    }

    /// Reads the next entry that is wanted, its attributes into a list that is empty.
    #[inline]
    fn head(
        &mut self,
        attributes: &mut Attributes,
        wanted: impl Fn(&Declaration) -> bool,
    ) -> Result<Option<Head<'a>>, Error> {
        let mut lowest = self.depth;
        while let Some((start, depth, declaration)) = self.declaration()? {
            let values = self.reader.at;
            lowest = lowest.min(depth);
            self.count += 1;
            for step in self.table.steps(declaration) {
                self.reader.skip(step.skip.into())?;
                let (f, from) = self.skip_value(step)?;
                if step.name != 0 {
                    attributes.push(Attribute {
                        name: step.name,
                        form: f,
                        at: from,
                        size: self.reader.at - from,
                    });
                }
            }
            self.reader.skip(declaration.rest.into())?;
            if wanted(declaration) {
                return Ok(Some(Head {
                    start,
                    values,
                    end: self.reader.at,
                    depth,
                    lowest,
                    declaration,
                }));
            }
        }
        Ok(None)
    }

    #[cold]
    fn unknown(&mut self, start: usize, code: u64) -> Error {
        self.reader.at = start;
        let what = format!(
            "the abbreviation code {code:#x}, which the table at {:#x} does not have",
            self.table.start
        );
        self.reader.error(what)
    }
}

/// What the rest of a unit depends on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Root {
    /// The code of its abbreviation.
    pub code: u64,
    /// What lists are relative to.
    pub base: u64,
    /// Where index 0 of the address pool is.
    pub addr_base: Option<u64>,
    /// No other unit names that pool.
    pub has_own_pool: bool,
    pub rnglists_base: Option<u64>,
    pub loclists_base: Option<u64>,
    /// The line program.
    pub stmt_list: Option<u64>,
    /// The macro unit.
    pub macros: Option<u64>,
    /// Its entries are in another file.
    pub is_skeleton: bool,
    /// What it has in common with the unit in the other file.
    pub split_id: Option<(usize, u64)>,
    /// What offsets of range lists in the other file are relative to (DWARF 4).
    pub ranges_base: u64,
    /// It is in the other file.
    pub is_split: bool,
}

/// Values of attributes.
#[derive(Clone, Copy)]
pub(crate) struct Values<'d> {
    pub data: &'d [u8],
    pub section: &'static str,
    pub pool: Pool<'d>,
}

impl<'d> Values<'d> {
    /// A number: of fixed length or in ULEB128.
    pub fn number(&self, a: &Attribute) -> u64 {
        // Was read before, so it is there.
        let bytes = self.data.get(a.at..a.at + a.size).unwrap_or_default();
        if a.is_uleb() {
            let mut r = Reader {
                data: bytes,
                at: 0,
                end: bytes.len(),
                section: self.section,
            };
            return r.uleb().unwrap_or(0); // was read before
        }
        number(bytes)
    }

    /// An address, and its index if it has one.
    pub fn address(&self, a: &Attribute) -> Result<(u64, Option<u64>), Error> {
        if a.form == form::ADDR {
            return Ok((self.number(a), None));
        }
        let mut r = Reader::new(self.data, a.at as u64, self.section)?;
        r.end = a.at + a.size;
        if a.form == form::LLVM_ADDRX_OFFSET {
            let (index, offset) = (r.uleb()?, r.number(4)?);
            return Ok((self.pool.get(index)?.wrapping_add(offset), Some(index)));
        }
        let index = self.number(a);
        Ok((self.pool.get(index)?, Some(index)))
    }

    /// The interval of `low_pc` and `high_pc`.
    pub fn interval(
        &self,
        low: &Attribute,
        high: &Attribute,
        implicit: u64,
    ) -> Result<Range<u64>, Error> {
        let start = self.address(low)?.0;
        let end = match high.form {
            _ if high.is_address() => self.address(high)?.0,
            form::IMPLICIT_CONST => start.wrapping_add(implicit),
            form::SDATA => {
                let mut r = Reader::new(self.data, high.at as u64, self.section)?;
                start.wrapping_add_signed(r.sleb()?)
            }
            _ => start.wrapping_add(self.number(high)),
        };
        Ok(start..end)
    }
}

impl Root {
    /// Reads what the rest depends on.
    pub fn read(unit: &Unit, table: &Table<'_>, sections: &Sections<'_>) -> Result<Root, Error> {
        let data = sections.get(unit.section);
        let mut root = Root {
            is_split: unit.set > 0,
            ..Root::default()
        };
        if let Identity::Split(at, id) = unit.identity {
            root.split_id = Some((at, id));
        }
        let Some(entry) = Entries::of(unit, table, data).next()? else {
            return Ok(root);
        };
        root.code = entry.declaration.code;
        let mut values = Values {
            data,
            section: unit.section.name(),
            pool: Pool {
                section: sections.get(Section::Addr),
                base: None,
            },
        };
        for a in &entry.attributes {
            let value = values.number(a);
            match a.name {
                at::ADDR_BASE | at::GNU_ADDR_BASE => root.addr_base = Some(value),
                at::RNGLISTS_BASE => root.rnglists_base = Some(value),
                at::LOCLISTS_BASE => root.loclists_base = Some(value),
                at::STMT_LIST => root.stmt_list = Some(value),
                at::MACROS | at::GNU_MACROS => root.macros = Some(value),
                at::DWO_NAME | at::GNU_DWO_NAME => root.is_skeleton = unit.set == 0,
                at::GNU_DWO_ID if a.size == 8 => root.split_id = Some((a.at, value)),
                at::GNU_RANGES_BASE => root.ranges_base = value,
                _ => {}
            }
        }
        if root.is_split {
            // Those are in a section of the same file, which has no addresses.
            (root.stmt_list, root.macros) = (None, None);
            return Ok(root);
        }
        values.pool.base = root.addr_base;
        if let Some(low) = entry.get(at::LOW_PC).filter(|a| a.is_address()) {
            root.base = values.address(low)?.0;
        }
        Ok(root)
    }

    /// What offsets of views (`DW_AT_GNU_locviews`) are relative to. GCC makes them differences to the label behind the
    /// header of the lists in files of split units of DWARF 5, and offsets into the section everywhere else.
    pub fn views_base(&self, unit: &Unit) -> u64 {
        match (self.is_split, unit.encoding.version) {
            (true, 5) => self.loclists_base.unwrap_or(0),
            _ => 0,
        }
    }

    /// What the skeleton says for the unit in the other file, whose lists of DWARF 5 are in the only
    /// contributions there.
    pub fn take_from(&mut self, skeleton: &Root, shared: &Shared<'_, '_>) {
        self.base = skeleton.base;
        self.addr_base = skeleton.addr_base;
        self.ranges_base = skeleton.ranges_base;
        self.rnglists_base = shared.rnglists.first().map(|c| c.base);
        self.loclists_base = shared.loclists.first().map(|c| c.base);
    }
}
