//! Functions that have probes: key, hash of the control-flow graph, name. The layout of the section is at the
//! top of [`super`].

use rustc_hash::{FxHashMap, FxHashSet};

use super::cursor::Cursor;
use crate::guid::Guid;
use crate::{ErrorKind, FormatError};

/// Name of the section.
pub const SECTION: &str = ".pseudo_probe_desc";

/// A function that has probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor<'d> {
    /// Its key.
    pub guid: Guid,
    /// Hash of its control-flow graph when the probes were placed. Copied into profiles, so that the compiler can tell
    /// whether the source has changed since.
    pub hash: u64,
    /// Its linkage name.
    pub name: &'d [u8],
}

/// The functions that have probes.
#[derive(Clone, Debug, Default)]
pub struct Descriptors<'d> {
    /// By ascending key; different descriptors of one key in the order of the section.
    all: Vec<Descriptor<'d>>,
    /// Where the first of each key is.
    places: FxHashMap<Guid, u32>,
}

impl<'d> Descriptors<'d> {
    /// Reads sections one after the other.
    pub fn parse(sections: &[&'d [u8]]) -> Result<Descriptors<'d>, FormatError> {
        let mut all = Vec::new();
        for section in sections {
            let mut cursor = Cursor::new(SECTION, section, 0);
            while cursor.left() > 0 {
                let guid = Guid(cursor.u64("a function's GUID")?);
                let hash = cursor.u64("a function's hash")?;
                let len = cursor.count(1, "length of a function's name")?;
                let name = cursor.take(len, "a function's name")?;
                all.push(Descriptor { guid, hash, name });
            }
        }
        // Stable: the first one in the section stays the first.
        all.sort_by_key(|descriptor: &Descriptor| descriptor.guid);
        let mut seen = FxHashSet::default();
        let mut group = None;
        all.retain(|descriptor| {
            if group.replace(descriptor.guid) != Some(descriptor.guid) {
                seen.clear();
            }
            seen.insert((descriptor.hash, descriptor.name))
        });
        if u32::try_from(all.len()).is_err() {
            return Err(FormatError::new(format!(
                "section {SECTION}: {} functions are more than {}",
                all.len(),
                u32::MAX
            ))
            .of(ErrorKind::TooLarge)
            .values(all.len(), u32::MAX));
        }
        let mut places = FxHashMap::default();
        for (at, descriptor) in all.iter().enumerate() {
            places.entry(descriptor.guid).or_insert(at as u32);
        }
        Ok(Descriptors { all, places })
    }

    /// Number of functions.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// A function by its key; the first in the section if several have it.
    pub fn get(&self, guid: Guid) -> Option<&Descriptor<'d>> {
        self.all_of(guid).first()
    }

    /// All descriptors of a key that differ, in the order of the section.
    pub fn all_of(&self, guid: Guid) -> &[Descriptor<'d>] {
        let Some(&at) = self.places.get(&guid) else {
            return &[];
        };
        let rest = self.all.get(at as usize..).unwrap_or_default();
        let count = rest.partition_point(|descriptor| descriptor.guid == guid);
        rest.get(..count).unwrap_or_default()
    }

    /// The functions by ascending key, one descriptor each.
    pub fn iter(&self) -> impl Iterator<Item = &Descriptor<'d>> {
        let mut last = None;
        self.all
            .iter()
            .filter(move |descriptor| last.replace(descriptor.guid) != Some(descriptor.guid))
    }

    /// The name of a function for people; its key in decimal if it has no descriptor.
    pub fn name(&self, guid: Guid) -> std::borrow::Cow<'d, str> {
        match self.get(guid) {
            Some(descriptor) => String::from_utf8_lossy(descriptor.name),
            None => guid.to_string().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(guid: u64, hash: u64, name: &[u8]) -> Vec<u8> {
        let mut bytes = [guid.to_le_bytes(), hash.to_le_bytes()].concat();
        bytes.push(name.len() as u8);
        bytes.extend(name);
        bytes
    }

    #[test]
    fn the_first_descriptor_of_a_key_wins_and_the_others_are_kept() {
        let bytes = [
            record(9, 1, b"nine"),
            record(3, 2, b"three"),
            record(9, 4, b"nine"),
            record(9, 1, b"nine"),
        ]
        .concat();
        let read = Descriptors::parse(&[&bytes]).unwrap();
        assert_eq!(read.len(), 2);
        assert_eq!(
            read.iter().map(|d| (d.guid.0, d.hash)).collect::<Vec<_>>(),
            [(3, 2), (9, 1)]
        );
        assert_eq!(read.get(Guid(9)).unwrap().hash, 1);
        assert_eq!(read.all_of(Guid(9)).len(), 2);
        assert_eq!(read.name(Guid(3)), "three");
        assert_eq!(read.name(Guid(77)), "77");
    }

    #[test]
    fn a_record_that_is_cut_off_is_an_error_with_its_place() {
        let mut bytes = record(1, 2, b"name");
        bytes.pop();
        let error = Descriptors::parse(&[&bytes]).unwrap_err();
        assert_eq!(
            error.what,
            "section .pseudo_probe_desc, offset 0x10 of 0x14: length of a function's name is 4, but 3 bytes are left for them"
        );
    }

    #[test]
    fn arbitrary_bytes_are_read_or_refused() {
        arbtest::arbtest(|u| {
            let bytes: Vec<u8> = u.arbitrary()?;
            if let Ok(read) = Descriptors::parse(&[&bytes]) {
                assert!(read.iter().all(|d| read.get(d.guid) == Some(d)));
                assert!(read.len() * 17 <= bytes.len());
            }
            Ok(())
        });
    }
}
