//! Abbreviation tables (`.debug_abbrev`), and alternates for functions in several ranges.
//!
//! # Problem
//!
//! An entry says with its abbreviation code which attributes it has and in which forms. A scope that was one
//! interval (`low_pc`, `high_pc`) and is now several needs `ranges`. Changing the abbreviation itself would
//! change all entries that use it, and a longer entry would move every entry after it, with all references to
//! them.
//!
//! # Idea
//!
//! Another abbreviation of the same tag, with the same attributes but for these two, whose values take **the
//! same number of bytes**. The budget is `size(low_pc) + size(high_pc)` plus the difference in length between
//! old and new code. The first recipe that fits is used:
//!
//! | recipe | needs | in place of `low_pc` | in place of `high_pc` |
//! |---|---|---|---|
//! | [`Recipe::EntryAndRanges`] | space for an address and an offset; no `entry_pc` yet | `entry_pc`, same form | `ranges` as an offset, padding |
//! | [`Recipe::Ranges`] | space for an offset | – | `ranges` as an offset, padding |
//! | [`Recipe::RangesByIndex`] | DWARF 5 and a base of range lists; in units of files of their own the only one | – | `ranges` as an index |
//!
//! Roots keep `low_pc`, to which lists of their unit are relative ([`Recipe::LowAndRanges`]), unless there are
//! none (assemblers' units, whose `high_pc` takes two bytes), and as a last
//! resort their declaration is replaced, which costs no code ([`Additions::redefined`]).
//!
//! # Invariants
//!
//! * Codes are written in the shortest way, in table and entry: LLVM and LLDB disagree about longer ones.
//! * New codes follow the highest old one without gaps: readers then find them by index.
//! * New declarations are in front of the table's end, so tables stay shared among units.
//! * The same demands give the same table.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::Error;
use crate::forms::{self, Encoding};
use crate::names::{at, form};
use crate::read::{Reader, put_sleb, put_uleb, uleb_len};
use crate::splice::Splices;

/// Name of the section, for messages.
const SECTION: &str = ".debug_abbrev";

/// An attribute of a declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spec {
    /// The attribute.
    pub name: u16,
    /// Its form.
    pub form: u16,
    /// Its value, if the form is `implicit_const`.
    pub implicit: i64,
}

/// A part of an entry: bytes to be skipped, and then an attribute.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    /// Bytes in front of the attribute.
    pub skip: u32,
    /// The attribute, or 0 if only its length matters.
    pub name: u16,
    /// Its form.
    pub form: u16,
    /// Bytes of its value; `None` if that says how many it has.
    pub size: Option<u8>,
}

/// What an abbreviation code stands for. A large program has hundreds of thousands of them, as compilers make a table
/// for each unit: what few are asked for is [read again](Table::specs).
#[derive(Clone, Debug)]
pub(crate) struct Declaration {
    pub code: u64,
    pub tag: u16,
    pub children: bool,
    /// Whether an attribute may matter.
    pub matters: bool,
    /// Whether one says where its code is.
    pub may_be_scope: bool,
    has_entry_pc: bool,
    /// Whether an attribute may be a list of ranges or places.
    may_have_lists: bool,
    /// The value of `high_pc`, if that is `implicit_const`.
    pub implicit_high: i64,
    /// Bytes after the last step.
    pub rest: u32,
    /// Which of the table's steps lead over an entry.
    steps: Range<u32>,
    /// Where its attributes are in the section, code, tag and end excluded.
    place: Range<usize>,
}

/// A table, read for units of one encoding.
#[derive(Clone, Debug)]
pub(crate) struct Table<'d> {
    section: &'d [u8],
    /// Where it begins in the section.
    pub start: u64,
    /// Where the zero byte is that ends it.
    pub end: u64,
    declarations: Vec<Declaration>,
    /// Of all declarations.
    steps: Vec<Step>,
    /// Index by code, for tables whose codes are not 1, 2 ….
    by_code: rustc_hash::FxHashMap<u64, u32>,
    /// The highest code.
    highest: u64,
}

impl<'d> Table<'d> {
    /// Reads the table at an offset.
    pub fn read(section: &'d [u8], offset: u64, encoding: Encoding) -> Result<Self, Error> {
        let mut r = Reader::new(section, offset, SECTION)?;
        let mut table = Table {
            section,
            start: offset,
            end: 0,
            declarations: Vec::new(),
            steps: Vec::new(),
            by_code: Default::default(),
            highest: 0,
        };
        loop {
            let at = r.at as u64;
            let code = r.uleb()?;
            if code == 0 {
                table.end = at;
                table.declarations.shrink_to_fit();
                table.steps.shrink_to_fit();
                return Ok(table);
            }
            let declaration = Declaration::read(&mut r, code, encoding, &mut table.steps)?;
            // Readers take the first or the last one, or none.
            if table.get(code).is_some() {
                r.at = at as usize;
                return Err(r.error(format!("a second declaration of the code {code:#x}")));
            }
            table.highest = table.highest.max(code);
            let index = table.declarations.len();
            if code != index as u64 + 1 {
                table.by_code.insert(code, index as u32);
            }
            table.declarations.push(declaration);
        }
    }

    /// The declaration of a code.
    #[inline]
    pub fn get(&self, code: u64) -> Option<&Declaration> {
        let index = usize::try_from(code.wrapping_sub(1)).ok()?;
        match self.declarations.get(index).filter(|d| d.code == code) {
            Some(d) => Some(d),
            None => self.declarations.get(*self.by_code.get(&code)? as usize),
        }
    }
}

impl Table<'_> {
    /// How to walk over an entry of a declaration of this table.
    #[inline]
    pub fn steps(&self, of: &Declaration) -> &[Step] {
        let steps = self
            .steps
            .get(of.steps.start as usize..of.steps.end as usize);
        steps.unwrap_or_default() // they were put there
    }

    /// The attributes of a declaration of this table.
    pub fn specs(&self, of: &Declaration) -> impl Iterator<Item = Spec> {
        let mut r = Reader {
            data: self.section,
            at: of.place.start,
            end: of.place.end,
            section: SECTION,
        };
        // They were read before.
        std::iter::from_fn(move || Spec::read(&mut r).ok().flatten())
    }
}

/// Whether a name, tag or form is one: none has more bits, and 0 says that there is none.
fn small(number: u64) -> Option<u16> {
    u16::try_from(number).ok().filter(|n| *n != 0)
}

impl Spec {
    /// Reads the next one; `None` behind the last.
    fn read(r: &mut Reader<'_>) -> Result<Option<Spec>, Error> {
        let (name, f) = (r.uleb()?, r.uleb()?);
        if (name, f) == (0, 0) {
            return Ok(None);
        }
        let (Some(name), Some(f)) = (small(name), small(f)) else {
            return Err(r.error(format!("the attribute {name:#x} of the form {f:#x}")));
        };
        let implicit = if f == form::IMPLICIT_CONST {
            r.sleb()?
        } else {
            0
        };
        Ok(Some(Spec {
            name,
            form: f,
            implicit,
        }))
    }

    /// Whether it may be a list of ranges or places.
    fn may_be_list(&self) -> bool {
        self.name == at::RANGES || is_list_attribute(self.name) && self.form != form::EXPRLOC
    }
}

impl Declaration {
    /// Reads one, and how to walk over its entries: runs of bytes that need not be looked at become one skip.
    fn read(
        r: &mut Reader<'_>,
        code: u64,
        encoding: Encoding,
        steps: &mut Vec<Step>,
    ) -> Result<Self, Error> {
        let tag = r.uleb()?;
        let children = r.u8()?;
        let (Some(tag), 0..=1) = (small(tag), children) else {
            return Err(r.error(format!("the tag {tag:#x}, with children: {children}")));
        };
        let first = steps.len() as u32;
        let mut out = Declaration {
            code,
            tag,
            children: children == 1,
            matters: false,
            may_be_scope: false,
            has_entry_pc: false,
            may_have_lists: false,
            implicit_high: 0,
            rest: 0,
            steps: first..first,
            place: r.at..r.at,
        };
        let mut has_high = false;
        while let Some(spec) = Spec::read(r)? {
            out.place.end = r.at;
            out.has_entry_pc |= spec.name == at::ENTRY_PC;
            out.may_have_lists |= spec.may_be_list();
            out.may_be_scope |= matches!(
                spec.name,
                at::LOW_PC | at::HIGH_PC | at::RANGES | at::ENTRY_PC
            );
            if spec.name == at::HIGH_PC && !has_high {
                (has_high, out.implicit_high) = (true, spec.implicit);
            }
            let size = forms::fixed_size(spec.form, encoding);
            let wanted = is_wanted(spec.name, spec.form, encoding);
            if let (Some(size), false) = (size, wanted) {
                out.rest = out.rest.saturating_add(size.into());
                continue;
            }
            out.matters |= wanted;
            steps.push(Step {
                skip: std::mem::take(&mut out.rest),
                name: if wanted { spec.name } else { 0 },
                form: spec.form,
                size,
            });
        }
        // A table has as many steps as bytes at most, and no file has 2^32 of them in one.
        out.steps.end = u32::try_from(steps.len())
            .map_err(|_| r.error("a table of more than 2^32 attributes"))?;
        Ok(out)
    }
}

/// Whether an attribute may hold an address, an expression, or an offset into a section that changes.
fn is_wanted(name: u16, f: u16, encoding: Encoding) -> bool {
    let by_form = f == form::ADDR
        || f == form::EXPRLOC
        || f == form::INDIRECT
        || f == form::LOCLISTX
        || f == form::RNGLISTX
        || f == form::SEC_OFFSET
        || forms::is_address_index(f);
    let scope = matches!(name, at::HIGH_PC | at::ENTRY_PC);
    let list = is_list_attribute(name) && (encoding.version >= 4 || !may_be_number(name));
    let offset = encoding.is_offset(f) && (list || is_root_offset(name));
    let expression = forms::is_block(f) && is_list_attribute(name);
    let split = matches!(name, at::DWO_NAME | at::GNU_DWO_NAME | at::GNU_DWO_ID);
    by_form || scope || offset || expression || split
}

/// Whether an attribute may be a location list or, in DWARF 2 and 3, an expression in a block.
pub(crate) fn is_list_attribute(name: u16) -> bool {
    matches!(
        name,
        at::LOCATION
            | at::STRING_LENGTH
            | at::RETURN_ADDR
            | at::DATA_MEMBER_LOCATION
            | at::FRAME_BASE
            | at::SEGMENT
            | at::STATIC_LINK
            | at::USE_LOCATION
            | at::VTABLE_ELEM_LOCATION
            | at::DATA_LOCATION
            | at::ALLOCATED
            | at::ASSOCIATED
            | at::LOWER_BOUND
            | at::UPPER_BOUND
            | at::COUNT
            | at::BYTE_STRIDE
            | at::BIT_STRIDE
            | at::RANK
    )
}

/// Whether an attribute with the form of a number is one in DWARF 2 and 3, where location lists have the same form.
fn may_be_number(name: u16) -> bool {
    !matches!(
        name,
        at::LOCATION
            | at::STRING_LENGTH
            | at::RETURN_ADDR
            | at::FRAME_BASE
            | at::STATIC_LINK
            | at::USE_LOCATION
            | at::VTABLE_ELEM_LOCATION
    )
}

/// Whether an attribute is an offset into another section that is no location list.
pub(crate) fn is_root_offset(name: u16) -> bool {
    matches!(
        name,
        at::STMT_LIST
            | at::RANGES
            | at::START_SCOPE
            | at::MACRO_INFO
            | at::MACROS
            | at::GNU_MACROS
            | at::GNU_LOCVIEWS
            | at::STR_OFFSETS_BASE
            | at::ADDR_BASE
            | at::RNGLISTS_BASE
            | at::LOCLISTS_BASE
            | at::GNU_RANGES_BASE
            | at::GNU_ADDR_BASE
    )
}

/// What an entry needs another abbreviation for. The order is that of the new codes: roots first, as shorter
/// codes help them most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Demand {
    /// `false` sorts first.
    pub not_root: bool,
    /// Code of the old declaration.
    pub code: u64,
    /// Bytes of `low_pc`.
    pub low: u8,
    /// Bytes of `high_pc`.
    pub high: u8,
    /// No field is to hold the entry's address: its index in the pool has another value.
    pub without_address: bool,
    /// The unit has a base of range lists and is of version 5.
    pub by_index: bool,
    /// Range lists can be named by index alone: the unit is in a file of its own and of version 5.
    pub only_by_index: bool,
}

/// What is in the place of `low_pc` and `high_pc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recipe {
    /// `low_pc` as it was, `ranges` and so many bytes of padding.
    LowAndRanges(u8),
    /// `entry_pc`, `ranges` and padding.
    EntryAndRanges(u8),
    /// `ranges` and padding.
    Ranges(u8),
    /// `ranges` as an index in ULEB128 of so many bytes.
    RangesByIndex(u8),
}

/// An abbreviation that an entry gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Alternate {
    /// Its code; for a root's replaced declaration the old code.
    pub code: u64,
    /// What its bytes mean.
    pub recipe: Recipe,
}

/// A table's additions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Additions {
    /// By demand; what is missing cannot be met.
    pub alternates: BTreeMap<Demand, Alternate>,
    /// Declarations that are replaced: all entries that have the code must have the new attributes. By code.
    pub redefined: BTreeMap<u64, Demand>,
    /// New declarations: code, old declaration's code, recipe.
    list: Vec<(u64, u64, Recipe)>,
}

/// The recipe for an entry whose new code is `grown` bytes longer.
fn recipe(
    demand: &Demand,
    declaration: &Declaration,
    encoding: Encoding,
    grown: usize,
    has_lists: bool,
) -> Option<Recipe> {
    let (low, offset) = (demand.low, encoding.offset_size);
    let budget = (low + demand.high).checked_sub(u8::try_from(grown).ok()?)?;
    if demand.only_by_index {
        return (budget > 0).then_some(Recipe::RangesByIndex(budget));
    }
    let with_low = budget.checked_sub(low + offset);
    if !demand.not_root {
        // New lists of DWARF 5 have bases of their own, so that a unit without old ones needs none.
        let without_low = if encoding.version >= 5 && !has_lists {
            budget.checked_sub(offset).map(Recipe::Ranges)
        } else {
            None
        };
        return with_low.map(Recipe::LowAndRanges).or(without_low);
    }
    if let Some(pad) = with_low
        && !demand.without_address
        && !declaration.has_entry_pc
    {
        return Some(Recipe::EntryAndRanges(pad));
    }
    if let Some(pad) = budget.checked_sub(offset) {
        return Some(Recipe::Ranges(pad));
    }
    (demand.by_index && budget > 0).then_some(Recipe::RangesByIndex(budget))
}

/// Whether two recipes are the same attributes: paddings of several lengths are one attribute, or two, or none.
fn same_attributes(a: Recipe, b: Recipe) -> bool {
    use Recipe::{EntryAndRanges, LowAndRanges, Ranges, RangesByIndex};
    match (a, b) {
        (LowAndRanges(a), LowAndRanges(b))
        | (EntryAndRanges(a), EntryAndRanges(b))
        | (Ranges(a), Ranges(b)) => paddings(a) == paddings(b),
        (RangesByIndex(_), RangesByIndex(_)) => true,
        _ => false,
    }
}

/// How many attributes take up so many bytes: one number in ULEB128 has at most 9 that say nothing.
fn paddings(bytes: u8) -> u8 {
    bytes.div_ceil(9)
}

/// Appends values of padding attributes.
pub(crate) fn put_padding(out: &mut Vec<u8>, mut bytes: u8) {
    while bytes > 0 {
        let one = bytes.min(9);
        crate::read::put_uleb_padded(out, 0, usize::from(one));
        bytes -= one;
    }
}

impl Table<'_> {
    /// Finds an abbreviation for each demand. `demands` must ascend.
    pub fn meet(&self, demands: &[Demand], encoding: Encoding) -> Additions {
        let mut out = Additions::default();
        let mut next = self.highest + 1;
        let has_lists = self.declarations.iter().any(|d| d.may_have_lists);
        for demand in demands {
            let Some(declaration) = self.get(demand.code) else {
                continue;
            };
            let old_len = uleb_len(demand.code);
            let grown = |code: u64| uleb_len(code).saturating_sub(old_len);
            let for_code = |code| recipe(demand, declaration, encoding, grown(code), has_lists);
            let known = out.list.iter().find_map(|(code, of, made)| {
                let recipe =
                    for_code(*code).filter(|r| *of == demand.code && same_attributes(*r, *made));
                recipe.map(|recipe| Alternate {
                    code: *code,
                    recipe,
                })
            });
            if let Some(alternate) = known {
                out.alternates.insert(*demand, alternate);
            } else if let Some(recipe) = for_code(next) {
                out.list.push((next, demand.code, recipe));
                out.alternates
                    .insert(*demand, Alternate { code: next, recipe });
                next += 1;
            } else if !demand.not_root
                && let Some(recipe) = recipe(demand, declaration, encoding, 0, has_lists)
                && out.redefined.get(&demand.code).is_none_or(|d| d == demand)
            {
                out.redefined.insert(demand.code, *demand);
                let code = demand.code;
                out.alternates.insert(*demand, Alternate { code, recipe });
            }
        }
        out
    }

    /// Writes the additions.
    pub fn splice(&self, additions: &Additions, encoding: Encoding, out: &mut Splices) {
        let first = out.len();
        let mut replaced: Vec<(&Declaration, Recipe)> = Vec::new();
        for (code, demand) in &additions.redefined {
            let alternate = additions.alternates.get(demand);
            if let (Some(declaration), Some(alternate)) = (self.get(*code), alternate) {
                replaced.push((declaration, alternate.recipe));
            }
        }
        replaced.sort_by_key(|(d, _)| d.place.start);
        let mut bytes = Vec::new();
        for (declaration, recipe) in replaced {
            bytes.clear();
            self.put_specs(&mut bytes, declaration, recipe, encoding);
            let place = &declaration.place;
            out.push(place.start as u64..place.end as u64, &bytes);
        }
        bytes.clear();
        for (code, of, recipe) in &additions.list {
            let Some(declaration) = self.get(*of) else {
                continue;
            };
            put_uleb(&mut bytes, *code);
            put_uleb(&mut bytes, declaration.tag.into());
            bytes.push(u8::from(declaration.children));
            self.put_specs(&mut bytes, declaration, *recipe, encoding);
            bytes.extend([0, 0]);
        }
        if !bytes.is_empty() {
            out.push(self.end..self.end, &bytes);
        }
        // The zero that ends it is part of it.
        out.end_part(self.start..self.end + 1, first);
    }

    /// Appends the attributes of a declaration that follows a recipe.
    fn put_specs(
        &self,
        out: &mut Vec<u8>,
        declaration: &Declaration,
        recipe: Recipe,
        encoding: Encoding,
    ) {
        for spec in self.specs(declaration) {
            match spec.name {
                at::LOW_PC => match recipe {
                    Recipe::LowAndRanges(_) => put_spec(out, &spec),
                    Recipe::EntryAndRanges(_) => {
                        let name = at::ENTRY_PC;
                        put_spec(out, &Spec { name, ..spec });
                    }
                    Recipe::Ranges(_) | Recipe::RangesByIndex(_) => {}
                },
                at::HIGH_PC => {
                    let (f, pad) = match recipe {
                        Recipe::LowAndRanges(pad)
                        | Recipe::EntryAndRanges(pad)
                        | Recipe::Ranges(pad) => (encoding.offset_form(), pad),
                        Recipe::RangesByIndex(_) => (form::RNGLISTX, 0),
                    };
                    put_plain(out, at::RANGES, f);
                    for _ in 0..paddings(pad) {
                        put_plain(out, at::PADDING, form::UDATA);
                    }
                }
                _ => put_spec(out, &spec),
            }
        }
    }
}

fn put_plain(out: &mut Vec<u8>, name: u16, f: u16) {
    put_uleb(out, name.into());
    put_uleb(out, f.into());
}

fn put_spec(out: &mut Vec<u8>, spec: &Spec) {
    put_plain(out, spec.name, spec.form);
    if spec.form == form::IMPLICIT_CONST {
        put_sleb(out, spec.implicit);
    }
}
