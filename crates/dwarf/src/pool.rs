//! Address pools (`.debug_addr`): addresses that units name by index.
//!
//! # Problem
//!
//! From DWARF 5 on, and before with split DWARF, an address is often an index into a table that a unit or
//! several units share. Linkers and compilers use one entry for several purposes: the base of a unit's lists
//! and the entry of its first function are the same address as long as nothing moves, and so are one entry.
//! When functions move, users of an entry may want different values.
//!
//! # Rules
//!
//! All users of a pool are collected, with the value that each wants. For each entry:
//!
//! 1. A user that needs the old value (a list that stays as it is, the base of a unit, a thread-local
//!    variable) decides.
//! 2. Else a field that cannot be expressed otherwise (a return address, a label, an entry) decides, the first of them.
//! 3. Else the first scope with a length decides.
//!
//! Scopes that wanted another value get an abbreviation without an address ([`crate::abbrev`]). Other fields
//! get the index of an entry that is appended, if it takes no more bytes than the old one, or else of one that nothing
//! names any more: lists that are written anew name entries that are appended for them. What is left is counted as a
//! loss.
//!
//! Pools of DWARF 5 have headers. Those of split DWARF 4 have none: each ends where the next one begins that a unit
//! names ([`Extents`]).

use std::collections::BTreeMap;
use std::ops::Range;

use rustc_hash::FxHashMap;

use crate::Error;
use crate::by_index::ByIndex;
use crate::lists::INDEX;
use crate::read::{Reader, fits, number, put_number, uleb_len};
use crate::sections::Section;
use crate::splice::Splices;

/// Bytes of an entry.
const ENTRY: u64 = 8;

/// A unit's view of the section.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pool<'d> {
    pub section: &'d [u8],
    /// Where index 0 is.
    pub base: Option<u64>,
}

impl Pool<'_> {
    /// The address at an index.
    pub fn get(&self, index: u64) -> Result<u64, Error> {
        let base = self.base.unwrap_or(0);
        let known = Some(index).filter(|index| *index < u64::from(u32::MAX));
        let at = known.and_then(|index| index.checked_mul(ENTRY)?.checked_add(base));
        let error = || {
            let name = Section::Addr.name();
            Error::new(
                name,
                base,
                format!(
                    "no address has index {index:#x}; the section has {:#x} bytes",
                    self.section.len()
                ),
            )
        };
        let at = at
            .and_then(|at| usize::try_from(at).ok())
            .ok_or_else(error)?;
        let bytes = at
            .checked_add(ENTRY as usize)
            .and_then(|end| self.section.get(at..end));
        bytes.map(number).ok_or_else(error)
    }
}

/// Something that names an entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct User {
    /// The value that it wants.
    pub want: u64,
    /// The entry's index.
    index: u32,
    pub kind: UserKind,
}

impl User {
    /// Of an entry that [`Pool::get`] knows.
    pub fn new(index: u64, want: u64, kind: UserKind) -> User {
        let index = u32::try_from(index).unwrap_or(u32::MAX); // others were refused
        User { want, index, kind }
    }

    /// The entry's index.
    pub fn index(&self) -> u64 {
        self.index.into()
    }
}

/// How free a user is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UserKind {
    /// The entry must keep its value.
    Keep,
    /// A field of so many bytes, in ULEB128 or not, that can have another index.
    Field { size: u8, uleb: bool },
    /// A scope that can do without.
    Scope,
    /// No entry of the input: any that has the value, with an index of [`crate::lists::INDEX`] bytes.
    Any,
}

/// Whose value counts if users of an entry want different ones: the lowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Keep,
    Field,
    Scope,
}

/// What becomes of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Its entry has the value that it wants.
    Same,
    /// It has another index. What a unit names by a higher one cannot be read.
    Index(u32),
    /// It must do without an address.
    Without,
    /// It names a wrong value.
    Lost,
}

/// A pool's new contents.
#[derive(Clone, Debug, Default)]
pub(crate) struct Resolved {
    /// Entries that change, by index, ascending.
    changed: Vec<(u64, u64)>,
    /// Entries that are appended.
    appended: Vec<u64>,
}

impl Resolved {
    /// Whether any entry changes.
    pub fn changes(&self) -> bool {
        !self.changed.is_empty()
    }
}

/// A contribution: one header and the entries after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Contribution {
    start: u64,
    base: u64,
    end: u64,
    /// 0: it has no header.
    offset_size: u8,
}

/// Where pools are.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extents {
    /// First entries of those without headers, ascending.
    without: Vec<u64>,
    /// Those with headers, ascending; none if there are others.
    with: Vec<Contribution>,
}

impl Extents {
    /// Takes the first entries of all pools that units of the program name. With headers among them there are no
    /// pools without: how far those reach would not be known.
    pub fn new(section: &[u8], bases: impl Iterator<Item = (u16, u64)>) -> Self {
        let (mut out, mut headers) = (Vec::new(), false);
        for (version, base) in bases {
            headers |= version >= 5;
            out.push(base);
        }
        out.sort_unstable();
        out.dedup();
        let len = section.len() as u64;
        let is_whole = |(a, b): (&u64, &u64)| a < b && (b - a).is_multiple_of(ENTRY);
        let whole = out
            .iter()
            .zip(out.iter().skip(1).chain([&len]))
            .all(is_whole);
        if headers || !whole {
            out.clear();
        }
        let with = if out.is_empty() {
            contributions(section)
        } else {
            Vec::new()
        };
        Extents { without: out, with }
    }

    /// Pools with headers alone: all, if a unit of DWARF 5 is among those of the program.
    pub fn with_headers(section: &[u8]) -> Self {
        Extents {
            without: Vec::new(),
            with: contributions(section),
        }
    }

    /// What is known of the pool whose first entry is at `base`.
    pub fn of(&self, section: &[u8], base: u64) -> Option<Contribution> {
        let Ok(i) = self.without.binary_search(&base) else {
            let i = self.with.binary_search_by_key(&base, |c| c.base).ok()?;
            return self.with.get(i).copied();
        };
        Some(Contribution {
            start: base,
            base,
            end: self
                .without
                .get(i + 1)
                .copied()
                .unwrap_or(section.len() as u64),
            offset_size: 0,
        })
    }
}

/// The bytes that users of a pool reach.
#[derive(Clone, Debug)]
pub(crate) struct Reach {
    /// With the header.
    pub range: Range<u64>,
    /// The pool's contribution, if it holds all entries that are used: else none can be appended to it.
    pub own: Option<Contribution>,
}

impl Reach {
    /// Of a pool of which `own` is known, by its users.
    pub fn new(section: &[u8], base: u64, own: Option<Contribution>, users: &[User]) -> Self {
        let pool = Pool {
            section,
            base: Some(base),
        };
        let used = users.iter().filter(|user| user.kind != UserKind::Any);
        // What is not in the section is no entry.
        let used = used.map(User::index);
        let used = used.filter(|index| pool.get(*index).is_ok());
        let last = used.map(|index| base + ENTRY * index + ENTRY).max();
        let end = last.unwrap_or(base);
        let own = own.filter(|c| end <= c.end && (c.end - c.base).is_multiple_of(ENTRY));
        let range = own.map_or(base..end, |c| c.start..c.end);
        Reach { range, own }
    }
}

/// The contributions that a section begins with.
fn contributions(section: &[u8]) -> Vec<Contribution> {
    let mut out = Vec::new();
    while let Some(c) = contribution(section, out.last().map_or(0, |c: &Contribution| c.end)) {
        out.push(c);
    }
    out
}

/// The contribution at an offset.
fn contribution(section: &[u8], at: u64) -> Option<Contribution> {
    let mut r = Reader::new(section, at, Section::Addr.name()).ok()?;
    let offset_size = r.unit_length().ok()?;
    let fields = (r.u16().ok()?, r.u8().ok()?, r.u8().ok()?);
    (fields == (5, 8, 0)).then_some(Contribution {
        start: at,
        base: r.at as u64,
        end: r.end as u64,
        offset_size,
    })
}

/// Decides about one pool. Returns an outcome per user. Entries that nothing names are given to others if all that
/// names any is known.
pub(crate) fn resolve(
    section: &[u8],
    base: u64,
    own: Option<Contribution>,
    users: &[User],
    all_known: bool,
) -> (Resolved, Vec<Outcome>) {
    let mut values: ByIndex<(Rank, u64)> = ByIndex::for_values(users.len());
    for user in users {
        let rank = match user.kind {
            UserKind::Keep => Rank::Keep,
            UserKind::Field { .. } => Rank::Field,
            UserKind::Scope => Rank::Scope,
            UserKind::Any => continue,
        };
        if values.get(user.index()).is_none_or(|first| rank < first.0) {
            values.insert(user.index(), (rank, user.want));
        }
    }
    let pool = Pool {
        section,
        base: Some(base),
    };
    let mut resolved = Resolved::default();
    let changes = |(index, (_, value)): (u64, (Rank, u64))| {
        let changes = pool.get(index).is_ok_and(|old| old != value);
        changes.then_some((index, value))
    };
    resolved.changed = values.iter().filter_map(changes).collect();
    resolved.changed.sort_unstable();
    let count = own.map(|c| (c.end - c.base) / ENTRY);
    let mut appended: FxHashMap<u64, u64> = FxHashMap::default();
    // Fields of one byte have no room for what is appended to a pool of more than 128 entries.
    let unused = 0..count.filter(|_| all_known).unwrap_or(0);
    let is_unused = |i: &u64| values.get(*i).is_none();
    let mut unused = unused.filter(is_unused).peekable();
    let mut reused: FxHashMap<u64, u64> = FxHashMap::default();
    let outcome = |user: &User| {
        let is_any = user.kind == UserKind::Any;
        if !is_any && values.get(user.index()).is_some_and(|v| v.1 == user.want) {
            return Outcome::Same;
        }
        let (size, uleb) = match user.kind {
            UserKind::Field { size, uleb } => (size, uleb),
            UserKind::Any => (INDEX as u8, true),
            UserKind::Scope => return Outcome::Without,
            UserKind::Keep => return Outcome::Lost,
        };
        let Some(count) = count else {
            return Outcome::Lost;
        };
        let known = appended.get(&user.want).copied();
        let index = known.unwrap_or(count + resolved.appended.len() as u64);
        let named = |index: u64| u32::try_from(index).map_or(Outcome::Lost, Outcome::Index);
        let fits = |index: u64| {
            let by_len = uleb && uleb_len(index) <= usize::from(size);
            by_len || !uleb && fits(index, size)
        };
        if !fits(index) {
            let again = reused.get(&user.want).copied().filter(|i| fits(*i));
            if let Some(index) = again.or_else(|| unused.next_if(|i| fits(*i))) {
                reused.insert(user.want, index);
                if again.is_none() {
                    resolved.changed.push((index, user.want));
                }
                return named(index);
            }
            return Outcome::Lost;
        }
        if known.is_none() {
            appended.insert(user.want, index);
            resolved.appended.push(user.want);
        }
        named(index)
    };
    let outcomes = users.iter().map(outcome).collect();
    resolved.changed.sort_unstable();
    resolved.changed.shrink_to_fit();
    (resolved, outcomes)
}

/// Writes the changes of pools, by the places of their first entries.
pub(crate) fn splice(pools: BTreeMap<u64, (Option<Contribution>, Resolved)>, out: &mut Splices) {
    // Pools of a large program have millions of entries that change: each list is freed when it was written.
    let changed = pools.values().map(|(_, r)| r.changed.len()).sum::<usize>();
    let appended = pools.values().map(|(_, r)| r.appended.len()).sum::<usize>();
    let grown = pools
        .values()
        .filter(|(_, r)| !r.appended.is_empty())
        .count();
    out.reserve(
        changed + 2 * grown,
        ENTRY as usize * (changed + appended + grown),
    );
    let mut bytes = Vec::new();
    for (base, (own, resolved)) in pools {
        let grown = own.filter(|_| !resolved.appended.is_empty());
        let first = out.len();
        if let Some(c) = grown.filter(|c| c.offset_size > 0) {
            // The length is in the last bytes of the length field.
            let field = c.start + if c.offset_size == 8 { 4 } else { 0 };
            let len_end = field + u64::from(c.offset_size);
            let len = c.end - len_end + ENTRY * resolved.appended.len() as u64;
            bytes.clear();
            put_number(&mut bytes, len, c.offset_size);
            out.push(field..len_end, &bytes);
        }
        for (index, value) in &resolved.changed {
            let at = base + ENTRY * index;
            out.push(at..at + ENTRY, &value.to_le_bytes());
        }
        if let Some(c) = grown {
            bytes.clear();
            resolved
                .appended
                .iter()
                .for_each(|v| bytes.extend(v.to_le_bytes()));
            out.push(c.end..c.end, &bytes);
        }
        if let Some(c) = own {
            out.end_part(c.start..c.end, first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A contribution of addresses 0x1000, 0x2000, ….
    fn section(count: u64) -> Vec<u8> {
        let mut out = Vec::new();
        put_number(&mut out, 4 + 8 * count, 4);
        out.extend([5, 0, 8, 0]);
        for i in 1..=count {
            put_number(&mut out, 0x1000 * i, 8);
        }
        out
    }

    fn user(index: u64, want: u64, kind: UserKind) -> User {
        User::new(index, want, kind)
    }

    const FIELD: UserKind = UserKind::Field {
        size: 1,
        uleb: true,
    };

    #[test]
    fn who_needs_the_old_value_decides_and_others_get_another_entry_or_none() {
        let section = section(3);
        let users = [
            user(0, 0x7000, UserKind::Scope),
            user(0, 0x1000, UserKind::Keep),
            user(0, 0x8000, FIELD),
            user(0, 0x8000, FIELD),
            user(1, 0x9000, UserKind::Scope),
            user(1, 0x9000, UserKind::Scope),
            user(2, 0x3000, UserKind::Scope),
            user(2, 0xa000, FIELD),
        ];
        let own = contribution(&section, 0);
        let (resolved, outcomes) = resolve(&section, 8, own, &users, true);
        use Outcome::{Index, Same, Without};
        assert_eq!(
            outcomes,
            [Without, Same, Index(3), Index(3), Same, Same, Without, Same]
        );
        let mut out = Splices::default();
        splice(BTreeMap::from([(8, (own, resolved))]), &mut out);
        let new = out.apply(&section);
        let pool = Pool {
            section: &new,
            base: Some(8),
        };
        let values: Vec<u64> = (0..4).map(|i| pool.get(i).unwrap()).collect();
        assert_eq!(values, [0x1000, 0x9000, 0xa000, 0x8000]);
        assert_eq!(number(&new[..4]), new.len() as u64 - 4);
        assert_eq!(
            pool.get(4).unwrap_err().to_string(),
            ".debug_addr at 0x8: no address has index 0x4; the section has 0x28 bytes"
        );
    }

    #[test]
    fn a_contribution_that_does_not_hold_all_that_is_used_does_not_grow() {
        let mut section = section(3);
        let own = contribution(&section, 0);
        let reach =
            |section: &[u8], own, index| Reach::new(section, 8, own, &[user(index, 0, FIELD)]);
        let whole = reach(&section, own, 2);
        assert!(whole.own == own && whole.range == (0..32));
        // What is not in the section does not count.
        assert!(reach(&section, own, 3).own == own);
        for (length, index, end) in [(12, 2, 32), (5, 0, 16)] {
            section[0] = length;
            let own = contribution(&section, 0);
            assert!(own.is_some());
            let reach = reach(&section, own, index);
            assert!(reach.own.is_none() && reach.range == (8..end));
        }
    }

    #[test]
    fn a_field_too_short_for_the_new_index_is_a_loss() {
        let section = section(200);
        let users = [user(0, 0x1000, UserKind::Keep), user(0, 0x5, FIELD)];
        assert_eq!(
            resolve(&section, 8, contribution(&section, 0), &users, false).1,
            [Outcome::Same, Outcome::Lost]
        );
    }

    /// A call's return address is where another function begins, which did not move.
    #[test]
    fn a_field_too_short_for_a_new_index_gets_that_of_an_entry_without_users() {
        let section = section(200);
        let mut users: Vec<User> = (0..200)
            .filter(|i| ![7, 9, 150].contains(i))
            .map(|i| user(i, 0x1000 * (i + 1), UserKind::Keep))
            .collect();
        let first = users.len();
        users.extend([0x5, 0x6, 0x5, 0x8].map(|want| user(0, want, FIELD)));
        let own = contribution(&section, 0);
        let (resolved, outcomes) = resolve(&section, 8, own, &users, true);
        use Outcome::{Index, Lost};
        // The third such entry has an index of two bytes.
        assert_eq!(outcomes[first..], [Index(7), Index(9), Index(7), Lost]);
        assert_eq!(resolved.changed, [(7, 0x5), (9, 0x6)]);
        assert_eq!(resolved.appended, [0; 0]);
        let (_, outcomes) = resolve(&section, 8, own, &users, false);
        assert_eq!(outcomes[first..], [Lost; 4]);
    }

    #[test]
    fn a_pool_without_a_header_grows_in_front_of_the_next() {
        let section: Vec<u8> = (1..=3u64)
            .flat_map(|i| (0x1000 * i).to_le_bytes())
            .collect();
        let extents = Extents::new(&section, [(4, 16), (4, 0), (4, 0)].into_iter());
        let own = extents.of(&section, 0);
        let users = [
            user(0, 0x7000, UserKind::Any),
            user(0, 0x1000, UserKind::Keep),
            user(0, 0x8000, UserKind::Any),
            user(0, 0x7000, UserKind::Any),
        ];
        let (resolved, outcomes) = resolve(&section, 0, own, &users, true);
        use Outcome::{Index, Same};
        assert_eq!(outcomes, [Index(2), Same, Index(3), Index(2)]);
        let mut out = Splices::default();
        splice(BTreeMap::from([(0, (own, resolved))]), &mut out);
        let new = out.apply(&section);
        let values: Vec<u64> = new.chunks(8).map(number).collect();
        assert_eq!(values, [0x1000, 0x2000, 0x7000, 0x8000, 0x3000]);
        assert_eq!(out.shift(16), Some(32));
        // A unit of DWARF 5 among them: nothing is known of where those without a header end.
        assert!(
            Extents::new(&section, [(4, 16), (5, 0)].into_iter())
                .of(&section, 0)
                .is_none()
        );
    }
}
