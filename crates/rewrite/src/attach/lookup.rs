//! Functions of a program by the names that a profile has for them.

use rustc_hash::FxHashMap;

use postlink_bolt_symbols::names;
use postlink_elf::elf::SymbolTable;
use postlink_profile::symbolic::lto_common_name;

use crate::discover::Program;

/// Number of a name in a profile.
pub trait Key: Copy {
    /// As an index.
    fn index(self) -> usize;
}

/// A position in a list of names.
#[derive(Clone, Copy)]
pub struct Index(pub usize);

impl Key for Index {
    fn index(self) -> usize {
        self.0
    }
}

/// Addresses of a profile's names.
pub struct Lookup {
    addresses: Vec<Option<u64>>,
    unknown_flags: Vec<bool>,
    /// Names that no symbol of the program has.
    pub unknown: Vec<Vec<u8>>,
    /// Of these, found by a part of the name.
    pub similar: u64,
}

/// The function that covers an address.
pub fn function_at(program: &Program<'_>, address: u64) -> Option<u32> {
    program.piece_at(address).map(|p| p.function)
}

/// Names that are no functions of the program: of other programs, and of its stubs.
pub fn is_foreign(name: &[u8]) -> bool {
    name.starts_with(b"[") || name.starts_with(b"__BOLT_PSEUDO_") || name.ends_with(b"@PLT")
}

/// A name without what another build may change: numbers, files, marks of link-time optimisation and of
/// partial inlining.
pub fn stem(name: &[u8]) -> &[u8] {
    let plain = names::plain(name);
    match lto_common_name(plain) {
        Some(common) => common,
        None => plain,
    }
}

impl Lookup {
    /// Looks up names.
    pub fn of_names<'n, K: Key>(
        program: &Program<'_>,
        list: impl Iterator<Item = (K, &'n [u8])>,
    ) -> Lookup {
        let mut wanted: FxHashMap<&[u8], usize> = FxHashMap::default();
        let mut addresses: Vec<Option<u64>> = Vec::new();
        for (key, name) in list {
            let i = key.index();
            if addresses.len() <= i {
                addresses.resize(i + 1, None);
            }
            if is_foreign(name) {
                continue;
            }
            match names::of_unwind_entry(name) {
                Some(address) => addresses[i] = Some(address),
                None => {
                    wanted.insert(postlink_profile::symbolic::without_alias_mark(name), i);
                }
            }
        }
        let code = |address: u64| program.piece_at(address).is_some();
        // The last of several alternatives wins, as with BOLT; a symbol in code before one elsewhere.
        let mut note = |name: &[u8], address: u64| {
            if let Some(i) = wanted.get(name)
                && (code(address) || addresses[*i].is_none())
            {
                addresses[*i] = Some(address);
            }
        };
        let table = program.elf.symbols(SymbolTable::Static);
        let mut text = Vec::new();
        names::each(program.elf, &table, |named| {
            for name in [named.name, named.by_file].iter().flatten() {
                text.clear();
                name.write(&mut text);
                note(&text, named.symbol.value);
            }
        });
        // What a stripped file still tells.
        for s in program.elf.symbols(SymbolTable::Dynamic).iter() {
            if s.section != 0
                && let Some(i) = wanted.get(s.name)
                && addresses[*i].is_none()
            {
                addresses[*i] = Some(s.value);
            }
        }
        // The rest by what is left of a name: only where it says one function, and that function has no other
        // name in the profile.
        let mut stems: FxHashMap<&[u8], Option<u64>> = FxHashMap::default();
        for (name, i) in &wanted {
            if addresses[*i].is_none() {
                stems.entry(stem(name)).or_insert(None);
            }
        }
        let mut similar = 0;
        if !stems.is_empty() {
            let taken: std::collections::HashSet<u64> =
                addresses.iter().flatten().copied().collect();
            let mut twice: Vec<&[u8]> = Vec::new();
            names::each(program.elf, &table, |named| {
                let value = named.symbol.value;
                let Some(name) = named
                    .name
                    .filter(|_| !taken.contains(&value) && code(value))
                else {
                    return;
                };
                text.clear();
                name.write(&mut text);
                if let Some((key, slot)) = stems.get_key_value(stem(&text)) {
                    match slot {
                        Some(address) if *address != value => twice.push(key),
                        _ => {
                            let key = *key;
                            stems.insert(key, Some(value));
                        }
                    }
                }
            });
            for key in twice {
                stems.insert(key, None);
            }
            let mut askers: FxHashMap<&[u8], u32> = FxHashMap::default();
            for (name, i) in &wanted {
                if addresses[*i].is_none() {
                    *askers.entry(stem(name)).or_default() += 1;
                }
            }
            for (name, i) in &wanted {
                let stem = stem(name);
                if addresses[*i].is_none()
                    && askers.get(stem) == Some(&1)
                    && let Some(Some(address)) = stems.get(stem)
                {
                    addresses[*i] = Some(*address);
                    similar += 1;
                }
            }
        }
        let mut unknown: Vec<Vec<u8>> = Vec::new();
        let mut unknown_flags = vec![false; addresses.len()];
        for (name, i) in &wanted {
            if addresses[*i].is_none() {
                unknown.push(name.to_vec());
                unknown_flags[*i] = true;
            }
        }
        unknown.sort_unstable();
        Lookup {
            addresses,
            unknown_flags,
            unknown,
            similar,
        }
    }

    /// Where a name is.
    pub fn address(&self, key: impl Key) -> Option<u64> {
        self.addresses.get(key.index()).copied().flatten()
    }

    /// Whether the program should have a function of this name and has not.
    pub fn is_unknown(&self, key: impl Key) -> bool {
        self.unknown_flags
            .get(key.index())
            .copied()
            .unwrap_or(false)
    }

    /// A few of the names that were not found.
    pub fn examples(&self) -> Vec<String> {
        self.unknown
            .iter()
            .take(5)
            .map(|n| String::from_utf8_lossy(n).into_owned())
            .collect()
    }
}
