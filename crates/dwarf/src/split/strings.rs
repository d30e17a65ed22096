//! The strings that files of split units have in common in a package.
//!
//! Strings of `.dwo` files are merged, those of a package are taken whole. They stay where they are in memory until the
//! package is written: of a large program they are a hundred megabytes.

use std::borrow::Cow;

use rustc_hash::FxHashMap;

use super::SplitFile;
use crate::Error;
use crate::read::{Reader, number, put_number};

/// Strings of all files, with the zero bytes at their ends.
#[derive(Default)]
pub(super) struct Strings<'p> {
    list: Vec<&'p [u8]>,
    /// Their length.
    len: u64,
    /// Where strings of `.dwo` files are.
    known: FxHashMap<&'p [u8], u32>,
    /// Where the strings of packages begin, by where they are in memory.
    packages: FxHashMap<(usize, usize), u32>,
}

impl<'p> Strings<'p> {
    /// Bytes of all of them.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// All of them in their order.
    pub fn into_list(self) -> Vec<&'p [u8]> {
        self.list
    }

    /// A file's offsets of strings, as they are in the package.
    pub fn of_file(&mut self, file: &'p SplitFile<'p>) -> Result<Cow<'p, [u8]>, Error> {
        let name = ".debug_str_offsets.dwo";
        let old = file.str_offsets;
        // A header in front, from DWARF 5 on.
        let mut r = Reader::new(old, 0, name)?;
        let is_headed = file.version() == 5 && !old.is_empty();
        if is_headed {
            let offset_size = r.unit_length()?;
            if offset_size != 4 {
                return Err(r.error("offsets of strings of 8 bytes; 4 are possible in a package"));
            }
            r.bytes(4)?;
        }
        let from_start = r.at;
        let whole = file.packed.then(|| self.whole(file.strings));
        let shared = whole.transpose()?;
        if shared == Some(0) {
            return Ok(Cow::Borrowed(old));
        }
        let mut out = Vec::with_capacity(old.len());
        out.extend_from_slice(old.get(..from_start).unwrap_or_default());
        for field in old.get(from_start..).unwrap_or_default().chunks(4) {
            let offset = number(field);
            let new = match shared {
                Some(base) => offset + u64::from(base),
                None => self.one(file.strings, offset)?.into(),
            };
            put_number(&mut out, new, field.len() as u8);
        }
        Ok(Cow::Owned(out))
    }

    /// Takes all strings of a package. Returns where they begin.
    fn whole(&mut self, strings: &'p [u8]) -> Result<u32, Error> {
        let key = (strings.as_ptr().addr(), strings.len());
        if let Some(at) = self.packages.get(&key) {
            return Ok(*at);
        }
        let at = self.place(strings)?;
        self.packages.insert(key, at);
        Ok(at)
    }

    /// Takes one string of a file.
    fn one(&mut self, strings: &'p [u8], offset: u64) -> Result<u32, Error> {
        let mut reader = Reader::new(strings, offset, ".debug_str.dwo")?;
        let start = reader.at;
        reader.string()?;
        let string = strings.get(start..reader.at).unwrap_or_default();
        if let Some(at) = self.known.get(string) {
            return Ok(*at);
        }
        let at = self.place(string)?;
        self.known.insert(string, at);
        Ok(at)
    }

    /// Puts a string behind the others. Returns where it begins.
    fn place(&mut self, string: &'p [u8]) -> Result<u32, Error> {
        let at = self.len;
        let end = at + string.len() as u64;
        let too_long = |_| Error::new(".debug_str.dwo", at, "strings of more than 4 GiB");
        u32::try_from(end).map_err(too_long)?;
        self.len = end;
        self.list.push(string);
        Ok(at as u32)
    }
}
