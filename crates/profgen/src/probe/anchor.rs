//! Where records start: symbols by the key of their name.
//!
//! Names of local functions are not unique. Every symbol of a name is kept, and [`Anchors::choose`] picks one
//! for a record: linkers keep the order of probe records parallel to the order of the text they describe, so
//! the right symbol is one that no earlier record has taken, that the record's addresses fit into, and that
//! is nearest to where the record before it was.

use rayon::prelude::*;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::guid::Guid;

/// A symbol that a record can start at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// Its address.
    pub address: u64,
    /// Its size in bytes; 0 if unknown.
    pub size: u64,
}

/// Symbols by the key of their name.
#[derive(Clone, Debug, Default)]
pub struct Anchors {
    /// Of each key: first and number in `places`.
    keys: FxHashMap<Guid, (u32, u32)>,
    /// Different addresses of a key, the last one in the symbol table last.
    places: Vec<Anchor>,
}

impl Anchors {
    /// From names and places, in the order of the symbol table. Address 0 counts as undefined. Symbols beyond
    /// 2³² are ignored.
    pub fn new(symbols: &[(&[u8], Anchor)]) -> Anchors {
        let mut keyed: Vec<(Guid, Anchor)> =
            postlink_parallel::filter_map(symbols, |&(name, anchor)| {
                let counts = !name.is_empty() && anchor.address != 0;
                counts.then(|| (Guid::of(name), anchor))
            });
        keyed.truncate(u32::MAX as usize);
        keyed.par_sort_by_key(|entry| entry.0);
        let mut anchors = Anchors::default();
        for group in keyed.chunk_by(|a, b| a.0 == b.0) {
            let [(key, _), ..] = group else { continue };
            let first = anchors.places.len();
            let mut seen = FxHashSet::default();
            // Backwards, so that of several symbols at one address the last one's place in the order counts.
            for (_, anchor) in group.iter().rev() {
                if seen.insert(anchor.address) {
                    anchors.places.push(*anchor);
                }
            }
            if let Some(own) = anchors.places.get_mut(first..) {
                own.reverse();
            }
            let count = anchors.places.len() - first;
            anchors.keys.insert(*key, (first as u32, count as u32));
        }
        anchors
    }

    /// All places of a key.
    pub fn all(&self, key: Guid) -> &[Anchor] {
        match self.keys.get(&key) {
            Some(&(first, count)) => {
                let own = first as usize..first as usize + count as usize;
                self.places.get(own).unwrap_or_default()
            }
            None => &[],
        }
    }

    /// The place of a key; the last one in the symbol table if there are several.
    pub fn last(&self, key: Guid) -> Option<u64> {
        self.all(key).last().map(|anchor| anchor.address)
    }

    /// Chooses among several places of a key. `span` holds the lowest and highest distance of the record's
    /// probes from its start, `near` an address that the record's code probably is close to.
    pub fn choose(
        &self,
        key: Guid,
        span: (i64, i64),
        near: Option<u64>,
        taken: &mut FxHashSet<u64>,
    ) -> Option<u64> {
        let chosen = self.all(key).iter().min_by_key(|anchor| {
            let (low, high) = span;
            let fits = low >= 0
                && (anchor.size == 0 || u64::try_from(high).is_ok_and(|h| h <= anchor.size));
            let far = near.map_or(anchor.address, |near| near.abs_diff(anchor.address));
            (taken.contains(&anchor.address), !fits, far)
        })?;
        taken.insert(chosen.address);
        Some(chosen.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_same_named_symbols_the_nearest_free_one_that_fits_is_chosen() {
        let at = |address, size| Anchor { address, size };
        let symbols: [(&[u8], Anchor); 4] = [
            (b"loc", at(0x100, 0x10)),
            (b"loc", at(0x200, 0x20)),
            (b"loc", at(0x300, 0x20)),
            (b"other", at(0x400, 0)),
        ];
        let anchors = Anchors::new(&symbols);
        let loc = Guid::of(b"loc");
        assert_eq!(anchors.last(loc), Some(0x300));
        assert_eq!(anchors.last(Guid::of(b"none")), None);
        let mut taken = FxHashSet::default();
        let mut choose = |span, near| anchors.choose(loc, span, near, &mut taken);
        assert_eq!(
            choose((0, 0x18), Some(0x110)),
            Some(0x200),
            "the first is too small"
        );
        assert_eq!(
            choose((0, 4), Some(0x210)),
            Some(0x300),
            "equally far: 0x300 is nearer"
        );
        assert_eq!(
            choose((0, 4), Some(0x310)),
            Some(0x100),
            "the only one that is free"
        );
        assert_eq!(choose((0, 4), Some(0x310)), Some(0x300), "none is free");
    }
}
