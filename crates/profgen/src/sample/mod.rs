//! Sample profiles: what a compiler reads with `-fprofile-sample-use`.
//!
//! A profile says of each function how much was sampled in it, how often it was entered, what was counted at
//! which location, which functions were called there and which had been inlined there, the latter again with
//! all of this. A location is an offset and a discriminator: lines from the start of the function, or the
//! index of a probe.
//!
//! In a context-sensitive profile a function appears once for each chain of callers; the key is then the
//! chain with the call locations, outermost first. In a flat one the chain is the function alone.
//!
//! Four forms are read and written here: [`text`], [`extbinary`], the older [`binary`], and AutoFDO's [`gcov`];
//! [`read`] tells them apart. All additions saturate.

pub mod binary;
pub mod extbinary;
pub mod gcov;
pub mod summary;
pub mod text;

use std::collections::{BTreeMap, btree_map, hash_map};

use rustc_hash::FxHashMap;

use crate::FormatError;

/// Reads a profile in any form.
///
/// # Errors
/// As the form's own reader has them.
pub fn read(bytes: &[u8]) -> Result<Profile, FormatError> {
    if extbinary::recognise(bytes) {
        extbinary::read(bytes)
    } else if binary::recognise(bytes) {
        binary::read(bytes)
    } else if gcov::recognise(bytes) {
        gcov::read(bytes)
    } else {
        text::read(bytes)
    }
}

/// A function's name, by number: see [`Names`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameId(pub u32);

/// Names of functions, each once.
#[derive(Clone, Debug, Default)]
pub struct Names {
    names: Vec<Box<[u8]>>,
    numbers: FxHashMap<Box<[u8]>, NameId>,
}

impl Names {
    /// The number of a name, which is added if it is new.
    pub fn intern(&mut self, name: &[u8]) -> NameId {
        if let Some(&id) = self.numbers.get(name) {
            return id;
        }
        // 2³² different names would not fit into memory.
        let id = NameId(self.names.len() as u32);
        self.names.push(name.into());
        self.numbers.insert(name.into(), id);
        id
    }

    /// A name by its number; empty if it is not one of these.
    pub fn get(&self, id: NameId) -> &[u8] {
        self.names.get(id.0 as usize).map_or(&[], |name| name)
    }

    /// All numbers.
    pub fn ids(&self) -> impl Iterator<Item = NameId> + use<> {
        (0..self.names.len() as u32).map(NameId)
    }

    /// The number of a name.
    pub fn find(&self, name: &[u8]) -> Option<NameId> {
        self.numbers.get(name).copied()
    }
}

/// A place in a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location {
    /// Lines from the start of the function modulo 2¹⁶, or index of a probe.
    pub offset: u32,
    /// Tells apart parts of a line or copies of a block; 0 if there is one.
    pub discriminator: u32,
}

/// What was counted at a location.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// How often it ran.
    pub count: u64,
    /// What was called from it, and how often.
    pub targets: BTreeMap<NameId, u64>,
}

impl Record {
    /// Sum of the calls.
    pub fn called(&self) -> u64 {
        self.targets
            .values()
            .fold(0, |sum, count| sum.saturating_add(*count))
    }
}

/// Attribute: the code was inlined in the profiled binary.
pub const WAS_INLINED: u32 = 1;
/// Attribute: the pre-inliner wants it inlined.
pub const SHOULD_BE_INLINED: u32 = 2;
/// Attribute: its counts are in the function's own profile too.
pub const DUPLICATED_INTO_BASE: u32 = 4;

/// What was counted in a function, alone or inlined at one place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Function {
    /// Sum of everything counted in it.
    pub total: u64,
    /// How often it was entered.
    pub head: u64,
    /// Hash of the control-flow graph, of probe-based profiles.
    pub hash: u64,
    /// [`WAS_INLINED`], [`SHOULD_BE_INLINED`], [`DUPLICATED_INTO_BASE`].
    pub attributes: u32,
    /// Counts by location.
    pub body: BTreeMap<Location, Record>,
    /// Functions inlined, by location.
    pub inlinees: BTreeMap<Location, BTreeMap<NameId, Function>>,
    /// Virtual tables from which a function to call was read, by location, and how often.
    pub vtables: BTreeMap<Location, BTreeMap<NameId, u64>>,
}

impl Function {
    /// Adds reads of a virtual table at a location.
    pub fn add_vtable(&mut self, at: Location, table: NameId, count: u64) {
        let read = self
            .vtables
            .entry(at)
            .or_default()
            .entry(table)
            .or_default();
        *read = read.saturating_add(count);
    }

    /// Adds to what was counted at a location.
    pub fn add_body(&mut self, at: Location, count: u64) {
        let record = self.body.entry(at).or_default();
        record.count = record.count.saturating_add(count);
    }

    /// Raises what was counted at a location.
    pub fn raise_body(&mut self, at: Location, count: u64) {
        let record = self.body.entry(at).or_default();
        record.count = record.count.max(count);
    }

    /// Adds calls at a location.
    pub fn add_target(&mut self, at: Location, target: NameId, count: u64) {
        let called = self
            .body
            .entry(at)
            .or_default()
            .targets
            .entry(target)
            .or_default();
        *called = called.saturating_add(count);
    }

    /// Adds to the sum.
    pub fn add_total(&mut self, count: u64) {
        self.total = self.total.saturating_add(count);
    }

    /// Adds to the entries.
    pub fn add_head(&mut self, count: u64) {
        self.head = self.head.saturating_add(count);
    }

    /// What was inlined at a location, added if it is new.
    pub fn inlinee(&mut self, at: Location, name: NameId) -> &mut Function {
        self.inlinees
            .entry(at)
            .or_default()
            .entry(name)
            .or_default()
    }

    /// Adds another profile of the same function. If both have a hash and the hashes differ, they are not
    /// about the same code, and nothing is added. Attributes stay as they are.
    pub fn merge(&mut self, other: &Function) {
        if self.hash == 0 {
            self.hash = other.hash;
        } else if self.hash != other.hash {
            return;
        }
        self.add_total(other.total);
        self.add_head(other.head);
        for (&at, record) in &other.body {
            self.add_body(at, record.count);
            for (&target, &count) in &record.targets {
                self.add_target(at, target, count);
            }
        }
        for (&at, tables) in &other.vtables {
            for (&table, &count) in tables {
                self.add_vtable(at, table, count);
            }
        }
        for (&at, functions) in &other.inlinees {
            let here = self.inlinees.entry(at).or_default();
            for (&name, function) in functions {
                match here.entry(name) {
                    btree_map::Entry::Vacant(entry) => {
                        entry.insert(function.clone());
                    }
                    btree_map::Entry::Occupied(mut entry) => entry.get_mut().merge(function),
                }
            }
        }
    }

    /// Adds a profile to the one that may be there; if there is none, it gets the attributes too.
    pub fn merge_into(entry: hash_map::Entry<'_, Context, Function>, other: &Function) {
        match entry {
            hash_map::Entry::Vacant(entry) => {
                entry.insert(other.clone());
            }
            hash_map::Entry::Occupied(mut entry) => entry.get_mut().merge(other),
        }
    }

    /// Takes the calls of a function at a location away, also from what ran there. Returns by how much the latter fell.
    pub fn remove_target(&mut self, at: Location, target: NameId) -> u64 {
        let btree_map::Entry::Occupied(mut entry) = self.body.entry(at) else {
            return 0;
        };
        let record = entry.get_mut();
        let removed = record
            .targets
            .remove(&target)
            .unwrap_or(0)
            .min(record.count);
        record.count -= removed;
        if record.count == 0 {
            entry.remove();
        }
        removed
    }

    /// Raises every count to the sum of the calls made there; functions inlined are left as they are.
    pub fn raise_to_calls(&mut self) {
        for record in self.body.values_mut() {
            record.count = record.count.max(record.called());
        }
    }

    /// Sets the sums to what the bodies hold.
    pub fn recompute_totals(&mut self) {
        let own = self
            .body
            .values()
            .fold(0u64, |sum, record| sum.saturating_add(record.count));
        self.total = own;
        for function in self.inlinees.values_mut().flat_map(BTreeMap::values_mut) {
            function.recompute_totals();
            self.total = self.total.saturating_add(function.total);
        }
    }

    /// Entries as they can be guessed where none were counted: what ran at the lowest location.
    pub fn estimated_head(&self) -> u64 {
        if self.head != 0 {
            return self.head;
        }
        let body = self.body.first_key_value();
        let inlined = self.inlinees.first_key_value();
        let count = match (body, inlined) {
            (Some((at, record)), Some((inlined_at, _))) if at < inlined_at => record.count,
            (_, Some((_, functions))) => functions.values().fold(0, |sum: u64, function| {
                sum.saturating_add(function.estimated_head())
            }),
            (Some((_, record)), None) => record.count,
            (None, None) => 0,
        };
        match self.total {
            0 => count,
            _ => count.max(1),
        }
    }
}

/// A step of a chain of callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Step {
    /// The function.
    pub name: NameId,
    /// Where in it the next function is called; meaningless in the last step.
    pub at: Location,
}

/// A function with its chain of callers, outermost first; the last step is the function itself, at location 0.
pub type Context = Vec<Step>;

/// A profile.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    /// Names of functions.
    pub names: Names,
    /// What was counted.
    pub functions: FxHashMap<Context, Function>,
    /// Locations are probes.
    pub probe_based: bool,
    /// Functions are told apart by their callers.
    pub context_sensitive: bool,
    /// The pre-inliner has decided.
    pub preinlined: bool,
    /// Discriminators are single numbers.
    pub flow_sensitive: bool,
}

impl Profile {
    /// A function without its callers, added if it is new.
    pub fn function(&mut self, name: NameId) -> &mut Function {
        let at = Location::default();
        self.functions.entry(vec![Step { name, at }]).or_default()
    }

    /// The functions in the order in which they are written: much counted first, then by name or chain.
    pub fn ordered(&self) -> Vec<(&Context, &Function)> {
        let mut all: Vec<_> = self.functions.iter().collect();
        all.sort_by(|a, b| {
            let total = b.1.total.cmp(&a.1.total);
            total.then_with(|| self.compare(a.0, b.0))
        });
        all
    }

    /// Order of chains: name, then location, step by step; the shorter one first.
    fn compare(&self, a: &Context, b: &Context) -> std::cmp::Ordering {
        let key = |step: &Step| (self.names.get(step.name), step.at);
        a.iter().map(key).cmp(b.iter().map(key))
    }
}
