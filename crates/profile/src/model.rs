//! The merged profile of one binary: how often every counter counted, and what every indirect call site called.
//!
//! Counts are unsigned and saturate at 2⁶⁴ − 1. Saturating addition of numbers that are never negative is
//! min(sum, 2⁶⁴ − 1), hence associative and commutative; so is the union of call-site tables, because their
//! lists are unbounded and sorted (a list that kept the top few only would depend on the order of the
//! merges). [`Profile::new`] is the identity.
//!
//! Most counters of a large program are zero. The counters are in one zeroed allocation that the operating
//! system fills in only where a count is stored; call sites without counts are not stored at all.

use std::collections::BTreeMap;
use std::path::Path;

use crate::error::Mismatch;
use crate::{Error, Subject};

/// What an indirect call site called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Site {
    /// Link-time address of a target in the input binary, and how often it was called; sorted by address, no
    /// address twice, no count zero.
    targets: Vec<(u64, u64)>,
    /// Calls to addresses outside the binary.
    pub external: u64,
    /// Calls that found the table full: to some target not in it.
    pub overflow: u64,
}

impl Site {
    /// From targets in any order, even repeated ones; address 0 and count 0 are left out.
    pub fn new(
        targets: impl IntoIterator<Item = (u64, u64)>,
        external: u64,
        overflow: u64,
    ) -> Site {
        let mut targets: Vec<(u64, u64)> = targets
            .into_iter()
            .filter(|&(target, count)| target != 0 && count != 0)
            .collect();
        targets.sort_unstable_by_key(|&(target, _)| target);
        targets.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            if same {
                kept.1 = kept.1.saturating_add(next.1);
            }
            same
        });
        Site {
            targets,
            external,
            overflow,
        }
    }

    /// Targets (link-time address) and their counts, by address.
    pub fn targets(&self) -> &[(u64, u64)] {
        &self.targets
    }

    /// Whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        self.targets.is_empty() && self.external == 0 && self.overflow == 0
    }

    /// All calls.
    pub fn total(&self) -> u64 {
        self.targets.iter().map(|&(_, count)| count).fold(
            self.external.saturating_add(self.overflow),
            u64::saturating_add,
        )
    }

    /// Adds the counts of `other`, each `weight` times.
    pub fn add(&mut self, other: &Site, weight: u64) {
        self.external = self
            .external
            .saturating_add(other.external.saturating_mul(weight));
        self.overflow = self
            .overflow
            .saturating_add(other.overflow.saturating_mul(weight));
        if other.targets.is_empty() || weight == 0 {
            return;
        }
        // The common case: both saw the same targets.
        if self.targets.len() == other.targets.len()
            && self
                .targets
                .iter()
                .zip(&other.targets)
                .all(|(a, b)| a.0 == b.0)
        {
            for (mine, theirs) in self.targets.iter_mut().zip(&other.targets) {
                mine.1 = mine.1.saturating_add(theirs.1.saturating_mul(weight));
            }
            return;
        }
        let mine = std::mem::take(&mut self.targets);
        let theirs = other
            .targets
            .iter()
            .map(|&(target, count)| (target, count.saturating_mul(weight)));
        self.targets = Site::new(mine.into_iter().chain(theirs), 0, 0).targets;
    }
}

/// A merged profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    subject: Subject,
    counters: Vec<u64>,
    /// Only sites that counted something.
    sites: BTreeMap<u64, Site>,
}

impl Profile {
    /// The profile of no run at all: every count zero. Fails when the memory is not to be had.
    pub fn new(subject: Subject) -> Result<Profile, OutOfMemory> {
        Ok(Profile {
            subject,
            counters: zeroed(subject.counters)?,
            sites: BTreeMap::new(),
        })
    }

    /// From parts. `None` if `counters` is not as long as the subject says, or a site's index is not below
    /// their number.
    pub fn from_parts(
        subject: Subject,
        counters: Vec<u64>,
        mut sites: BTreeMap<u64, Site>,
    ) -> Option<Profile> {
        sites.retain(|_, site| !site.is_empty());
        let fits = counters.len() as u64 == subject.counters
            && sites.keys().all(|&index| index < subject.sites);
        fits.then_some(Profile {
            subject,
            counters,
            sites,
        })
    }

    /// What the counts belong to.
    pub fn subject(&self) -> &Subject {
        &self.subject
    }

    /// All counters, in the order of the counter map.
    pub fn counters(&self) -> &[u64] {
        &self.counters
    }

    /// What the call site with number `index` called; `None` if it never called anything.
    pub fn site(&self, index: u64) -> Option<&Site> {
        self.sites.get(&index)
    }

    /// The call sites that called something, by number.
    pub fn sites(&self) -> impl Iterator<Item = (u64, &Site)> {
        self.sites.iter().map(|(&index, site)| (index, site))
    }

    /// Whether nothing was counted: the identity of [`Profile::merge`].
    pub fn is_empty(&self) -> bool {
        self.sites.is_empty() && self.counters.iter().all(|&count| count == 0)
    }

    /// Sum of all counters.
    pub fn total(&self) -> u64 {
        self.counters
            .iter()
            .fold(0, |sum: u64, &count| sum.saturating_add(count))
    }

    /// Adds the counts of `other`, each `weight` times. `names` are the two files for the error that is
    /// returned, with this profile as it was, when they belong to different binaries or counter maps.
    pub fn merge(
        &mut self,
        other: &Profile,
        weight: u64,
        names: (&Path, &Path),
    ) -> Result<(), Error> {
        same_subject(&self.subject, &other.subject, names)?;
        add_counters(&mut self.counters, &other.counters, weight);
        for (&index, site) in &other.sites {
            add_site(&mut self.sites, index, site, weight);
        }
        Ok(())
    }
}

/// The error for profiles that do not belong together.
pub(crate) fn same_subject(a: &Subject, b: &Subject, names: (&Path, &Path)) -> Result<(), Error> {
    match a.difference(b) {
        None => Ok(()),
        Some((what, a_value, b_value)) => Err(Error::Mismatch(Box::new(Mismatch {
            first: names.0.to_owned(),
            second: names.1.to_owned(),
            what,
            a: a_value,
            b: b_value,
            hint: if a.identity == b.identity {
                " (the binary was instrumented with different options)"
            } else {
                " (they are profiles of different binaries)"
            },
        }))),
    }
}

/// `sum[i] += add[i] * weight`, saturating.
pub(crate) fn add_counters(sum: &mut [u64], add: &[u64], weight: u64) {
    for (sum, &count) in sum.iter_mut().zip(add) {
        // Writing only where there is something keeps untouched pages untouched.
        if count != 0 {
            *sum = sum.saturating_add(count.saturating_mul(weight));
        }
    }
}

/// Adds a site to those that counted something, unless it adds nothing.
pub(crate) fn add_site(sites: &mut BTreeMap<u64, Site>, index: u64, site: &Site, weight: u64) {
    if weight != 0 && !site.is_empty() {
        sites.entry(index).or_default().add(site, weight);
    }
}

/// The memory for a profile could not be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not enough memory for {counters} counters")]
pub struct OutOfMemory {
    /// Number of counters wanted.
    pub counters: u64,
}

/// `count` zeros in memory that is not touched, or the error instead of the abort that `vec!` would be.
pub(crate) fn zeroed(count: u64) -> Result<Vec<u64>, OutOfMemory> {
    let error = OutOfMemory { counters: count };
    let len = usize::try_from(count).map_err(|_| error)?;
    if len == 0 {
        return Ok(Vec::new());
    }
    let layout = std::alloc::Layout::array::<u64>(len).map_err(|_| error)?;
    // SAFETY: the layout is not empty; the pointer has the layout of a `Vec<u64>` of capacity and length
    // `len`, comes from the global allocator, and all its elements are initialised (zero is a valid u64).
    unsafe {
        let start = std::alloc::alloc_zeroed(layout).cast::<u64>();
        if start.is_null() {
            return Err(error);
        }
        Ok(Vec::from_raw_parts(start, len, len))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{Digest, Identity};
    use arbtest::arbitrary::{Result, Unstructured};

    /// Any profile of one small subject, with counts near zero and near the limit.
    pub(crate) fn arbitrary_profile(u: &mut Unstructured<'_>) -> Result<Profile> {
        let subject = Subject {
            identity: Identity::from_build_id(b"binary").unwrap(),
            digest: Digest(7),
            counters: 40,
            sites: 5,
        };
        fn count(u: &mut Unstructured<'_>) -> Result<u64> {
            Ok(match u.int_in_range(0..=4)? {
                0 | 1 => 0,
                2 => u.int_in_range(1..=300)?,
                3 => u64::MAX - u.int_in_range(0..=300)?,
                _ => u.arbitrary()?,
            })
        }
        let counters = (0..40).map(|_| count(u)).collect::<Result<Vec<u64>>>()?;
        let mut sites = BTreeMap::new();
        for index in 0..5 {
            let mut targets = Vec::new();
            for _ in 0..u.int_in_range(0..=6)? {
                targets.push((u.int_in_range(0..=5)?, count(u)?));
            }
            sites.insert(index, Site::new(targets, count(u)?, count(u)?));
        }
        Ok(Profile::from_parts(subject, counters, sites).unwrap())
    }

    fn plus(a: &Profile, b: &Profile) -> Profile {
        let mut sum = a.clone();
        sum.merge(b, 1, (Path::new("a"), Path::new("b"))).unwrap();
        sum
    }

    #[test]
    fn merge_is_a_commutative_monoid() {
        arbtest::arbtest(|u| {
            let (a, b, c) = (
                arbitrary_profile(u)?,
                arbitrary_profile(u)?,
                arbitrary_profile(u)?,
            );
            assert_eq!(plus(&a, &b), plus(&b, &a));
            assert_eq!(plus(&plus(&a, &b), &c), plus(&a, &plus(&b, &c)));
            let zero = Profile::new(*a.subject()).unwrap();
            assert_eq!(plus(&a, &zero), a);
            assert_eq!(plus(&zero, &a), a);
            Ok(())
        });
    }

    #[test]
    fn a_weight_is_so_many_merges() {
        arbtest::arbtest(|u| {
            let (a, b) = (arbitrary_profile(u)?, arbitrary_profile(u)?);
            let weight = u.int_in_range(0..=4)?;
            let mut weighted = a.clone();
            weighted
                .merge(&b, weight, (Path::new("a"), Path::new("b")))
                .unwrap();
            let repeated = (0..weight).fold(a, |sum, _| plus(&sum, &b));
            assert_eq!(weighted, repeated);
            Ok(())
        });
    }

    #[test]
    fn different_binaries_are_refused_with_both_names_and_values() {
        let subject = Subject {
            identity: Identity::from_build_id(&[1]).unwrap(),
            digest: Digest(1),
            counters: 1,
            sites: 0,
        };
        let other = Subject {
            identity: Identity::from_build_id(&[2]).unwrap(),
            ..subject
        };
        let mut a = Profile::new(subject).unwrap();
        let error = a
            .merge(
                &Profile::new(other).unwrap(),
                1,
                (Path::new("x"), Path::new("y")),
            )
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "x and y cannot be merged: the profiled binary is 01 in the first, 02 in the second (they are profiles of different binaries)"
        );
        let other = Subject {
            digest: Digest(0xab),
            ..subject
        };
        let error = a
            .merge(
                &Profile::new(other).unwrap(),
                1,
                (Path::new("x"), Path::new("y")),
            )
            .unwrap_err();
        assert!(
            error
                .to_string()
                .contains("0000000000000001 in the first, 00000000000000ab in the second"),
            "{error}"
        );
    }

    #[test]
    fn too_much_memory_is_an_error() {
        assert!(zeroed(u64::MAX).is_err());
        assert!(zeroed(u64::MAX / 64).is_err());
    }
}
