//! Sample profiles in the form of GCC's coverage files: AutoFDO's `.afdo`, which GCC reads with `-fauto-profile`, and
//! clang with `-fprofile-sample-use`.
//!
//! Everything is words of four bytes, little-endian; a count is two, the lower half first.
//!
//! | part | content |
//! |---|---|
//! | head | `gcda`, version, a word that is not used |
//! | summary (version 3) | tag 0xa8000000, six counts, then for each share of the last: word, count, count |
//! | names | tag 0xaa000000, length, number of names, names; the first one is empty |
//! | functions | tag 0xac000000, length, number of functions, functions |
//! | groups of modules, working sets | tags 0xae000000 and 0xaf000000; not read |
//!
//! | version | name | read by |
//! |---|---|---|
//! | 4.07 (`407*`) | length in words, bytes, zeros to the next word | clang |
//! | 1 | the same | GCC up to 11 |
//! | 2 | length in bytes with the zero at the end, bytes, zero | GCC from 12 on |
//! | 3 | as in 2, and the number of its source file, whose names come before; a function has a time of first use | GCC from 16 on |
//!
//! A function is its entries (a count), the number of its name, and its body. A body is the numbers of locations and
//! of inlined functions, and both. A location: place, number of targets, count, targets (a word 7, the number of the
//! name as a count, a count). An inlined function: place, name, body. A place is the offset in the upper half of a
//! word, the discriminator in the lower one. There is no place for chains of callers, hashes or probes. The sum of a
//! function is not stored: it is what its body and what was inlined add up to.
//!
//! Source: <https://github.com/google/autofdo>, `gcov.cc` and `profile_writer.cc`.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::{Function, Location, NameId, Names, Profile, Record};
use crate::FormatError;
use crate::probe::cursor::Cursor;

const MAGIC: u32 = u32::from_be_bytes(*b"gcda");
const NAMES: u32 = 0xaa00_0000;
const FUNCTIONS: u32 = 0xac00_0000;
const SUMMARY: u32 = 0xa800_0000;
/// The kind of value profile that targets are: the most frequent ones of an indirect call.
const TARGETS: u32 = 7;
/// Deepest inlining that is read.
const DEPTH_LIMIT: u32 = 500;
/// Cold end of version 3's number of a source file: none.
const NO_FILE: u32 = u32::MAX;

/// A version of the form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// 4.07: what `create_gcov` writes unless it is told otherwise, and the only one that LLVM reads.
    Llvm,
    /// 1: GCC up to 11.
    Gcc1,
    /// 2: GCC from 12 on.
    Gcc2,
    /// 3: with source files.
    Gcc3,
}

impl Version {
    fn word(self) -> u32 {
        match self {
            Version::Llvm => u32::from_be_bytes(*b"407*"),
            Version::Gcc1 => 1,
            Version::Gcc2 => 2,
            Version::Gcc3 => 3,
        }
    }

    fn of(word: u32) -> Option<Version> {
        [Version::Llvm, Version::Gcc1, Version::Gcc2, Version::Gcc3]
            .into_iter()
            .find(|version| version.word() == word)
    }

    fn is_in_bytes(self) -> bool {
        matches!(self, Version::Gcc2 | Version::Gcc3)
    }
}

fn put(out: &mut Vec<u8>, word: u32) {
    out.extend(word.to_le_bytes());
}

fn put_count(out: &mut Vec<u8>, count: u64) {
    out.extend(count.to_le_bytes());
}

/// A number of elements; a profile in memory has no 2³² of anything.
fn number(of: usize) -> u32 {
    u32::try_from(of).unwrap_or(u32::MAX)
}

fn place(at: Location) -> u32 {
    // Offsets are modulo 2¹⁶. A discriminator that does not fit has no place here: GCC's and LLVM's writers cut it too.
    at.offset << 16 | at.discriminator & 0xffff
}

fn put_name(out: &mut Vec<u8>, name: &[u8], version: Version) {
    if version.is_in_bytes() {
        put(out, number(name.len() + 1));
        out.extend(name);
        out.push(0);
    } else {
        let words = name.len() / 4 + 1;
        put(out, number(words));
        out.extend(name);
        out.resize(out.len() + 4 * words - name.len(), 0);
    }
}

/// The numbers that names get: those that are used, sorted, after an empty one.
struct Table<'p> {
    names: &'p Names,
    of: BTreeMap<&'p [u8], u32>,
}

impl<'p> Table<'p> {
    fn new(profile: &'p Profile) -> Table<'p> {
        let mut table = Table {
            names: &profile.names,
            of: BTreeMap::from([(&b""[..], 0)]),
        };
        for (context, function) in &profile.functions {
            if let Some(leaf) = context.last() {
                table.see(leaf.name, function);
            }
        }
        for (number, known) in (0u32..).zip(table.of.values_mut()) {
            *known = number;
        }
        table
    }

    fn see(&mut self, name: NameId, function: &Function) {
        self.of.insert(self.names.get(name), 0);
        for record in function.body.values() {
            for &target in record.targets.keys() {
                self.of.insert(self.names.get(target), 0);
            }
        }
        for inlinees in function.inlinees.values() {
            for (&name, function) in inlinees {
                self.see(name, function);
            }
        }
    }

    fn number(&self, name: NameId) -> u32 {
        self.of.get(self.names.get(name)).copied().unwrap_or(0)
    }

    fn body(&self, out: &mut Vec<u8>, function: &Function) {
        let inlined: usize = function.inlinees.values().map(BTreeMap::len).sum();
        put(out, number(function.body.len()));
        put(out, number(inlined));
        for (&at, record) in &function.body {
            put(out, place(at));
            put(out, number(record.targets.len()));
            put_count(out, record.count);
            for (&target, &count) in &record.targets {
                put(out, TARGETS);
                put_count(out, self.number(target).into());
                put_count(out, count);
            }
        }
        for (&at, inlinees) in &function.inlinees {
            for (&name, function) in inlinees {
                put(out, place(at));
                put(out, self.number(name));
                self.body(out, function);
            }
        }
    }
}

/// Writes a flat profile by lines. The caller refuses others, which have no place in this form.
pub fn write(profile: &Profile, version: Version, out: &mut impl Write) -> io::Result<()> {
    let table = Table::new(profile);
    let mut names = Vec::new();
    if version == Version::Gcc3 {
        put(&mut names, 0);
    }
    put(&mut names, number(table.of.len()));
    for name in table.of.keys() {
        put_name(&mut names, name, version);
        if version == Version::Gcc3 {
            put(&mut names, NO_FILE);
        }
    }
    let mut functions = Vec::new();
    put(&mut functions, number(profile.functions.len()));
    for (context, function) in profile.ordered() {
        let Some(leaf) = context.last() else { continue };
        put_count(&mut functions, function.head);
        if version == Version::Gcc3 {
            put_count(&mut functions, 0);
        }
        put(&mut functions, table.number(leaf.name));
        table.body(&mut functions, function);
    }
    let mut bytes = Vec::new();
    for word in [MAGIC, version.word(), 0] {
        put(&mut bytes, word);
    }
    if version == Version::Gcc3 {
        put_summary(&mut bytes, profile);
    }
    for (tag, section) in [(NAMES, names), (FUNCTIONS, functions)] {
        put(&mut bytes, tag);
        put(&mut bytes, number(section.len().div_ceil(4)));
        bytes.extend(section);
    }
    out.write_all(&bytes)
}

fn put_summary(out: &mut Vec<u8>, profile: &Profile) {
    let summary = super::summary::Summary::of(profile);
    put(out, SUMMARY);
    for count in [
        summary.total,
        summary.max,
        summary.max_head,
        summary.counts,
        summary.functions,
        summary.entries.len() as u64,
    ] {
        put_count(out, count);
    }
    for entry in &summary.entries {
        put(out, entry.cutoff);
        put_count(out, entry.min_count);
        put_count(out, entry.counts);
    }
}

/// Whether bytes look like this form.
pub fn recognise(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC.to_le_bytes())
}

fn word(cursor: &mut Cursor<'_>, what: &str) -> Result<u32, FormatError> {
    let at = cursor.offset();
    let bytes = cursor.take(4, what)?;
    let bytes: [u8; 4] = bytes
        .try_into()
        .map_err(|_| cursor.error(at, format_args!("{what} is cut short")))?;
    Ok(u32::from_le_bytes(bytes))
}

/// A number of elements of at least `size` bytes each.
fn elements(cursor: &mut Cursor<'_>, size: usize, what: &str) -> Result<usize, FormatError> {
    let at = cursor.offset();
    let number = word(cursor, what)? as usize;
    if number <= cursor.left() / size {
        Ok(number)
    } else {
        Err(cursor.error(
            at,
            format_args!("{what} is {number}, and {} bytes are left", cursor.left()),
        ))
    }
}

fn tag(cursor: &mut Cursor<'_>, wanted: u32, what: &str) -> Result<(), FormatError> {
    let at = cursor.offset();
    let found = word(cursor, what)?;
    if found == wanted {
        Ok(())
    } else {
        Err(cursor.error(
            at,
            format_args!("expected the tag of {what}, {wanted:#x}, found {found:#x}"),
        ))
    }
}

fn name<'d>(cursor: &mut Cursor<'d>, version: Version) -> Result<&'d [u8], FormatError> {
    let len = word(cursor, "length of a name")? as usize;
    let len = if version.is_in_bytes() {
        len
    } else {
        len.saturating_mul(4)
    };
    let bytes = cursor.take(len, "a name")?;
    Ok(bytes.split(|&byte| byte == 0).next().unwrap_or_default())
}

/// What is read, and the numbers that the file's names got.
struct Reader {
    profile: Profile,
    names: Vec<NameId>,
}

impl Reader {
    fn name(&self, number: u64, cursor: &Cursor<'_>) -> Result<NameId, FormatError> {
        let known = usize::try_from(number).ok().and_then(|n| self.names.get(n));
        known.copied().ok_or_else(|| {
            cursor.error(
                cursor.offset(),
                format_args!(
                    "name {number} is wanted, and there are {}",
                    self.names.len()
                ),
            )
        })
    }

    /// A body, with its sum.
    fn body(&self, cursor: &mut Cursor<'_>, depth: u32) -> Result<Function, FormatError> {
        if depth > DEPTH_LIMIT {
            return Err(cursor.error(
                cursor.offset(),
                format_args!(
                    "functions are inlined {depth} deep, and at most {DEPTH_LIMIT} is read"
                ),
            ));
        }
        let mut function = Function::default();
        let locations = elements(cursor, 16, "number of locations")?;
        let inlined = elements(cursor, 16, "number of inlined functions")?;
        for _ in 0..locations {
            let at = location(word(cursor, "place of a location")?);
            let targets = elements(cursor, 20, "number of targets")?;
            let record = Record {
                count: cursor.u64("count of a location")?,
                targets: self.targets(cursor, targets)?,
            };
            function.add_total(record.count);
            function.add_body(at, record.count);
            for (target, count) in record.targets {
                function.add_target(at, target, count);
            }
        }
        for _ in 0..inlined {
            let at = location(word(cursor, "place of an inlined function")?);
            let name = self.name(word(cursor, "name of an inlined function")?.into(), cursor)?;
            let inlinee = self.body(cursor, depth + 1)?;
            function.add_total(inlinee.total);
            function.inlinee(at, name).merge(&inlinee);
        }
        Ok(function)
    }

    fn targets(
        &self,
        cursor: &mut Cursor<'_>,
        number: usize,
    ) -> Result<BTreeMap<NameId, u64>, FormatError> {
        let mut targets = BTreeMap::new();
        for _ in 0..number {
            let at = cursor.offset();
            let kind = word(cursor, "kind of a target")?;
            if kind != TARGETS {
                return Err(cursor.error(
                    at,
                    format_args!("expected targets of a call, kind {TARGETS}, found kind {kind}"),
                ));
            }
            let name = self.name(cursor.u64("name of a target")?, cursor)?;
            let count = cursor.u64("count of a target")?;
            let sum: &mut u64 = targets.entry(name).or_default();
            *sum = sum.saturating_add(count);
        }
        Ok(targets)
    }
}

fn location(place: u32) -> Location {
    Location {
        offset: place >> 16,
        discriminator: place & 0xffff,
    }
}

/// Reads a profile.
///
/// # Errors
/// Anything cut off or out of range, other versions.
pub fn read(bytes: &[u8]) -> Result<Profile, FormatError> {
    let mut cursor = Cursor::new("profile", bytes, 0);
    let magic = word(&mut cursor, "magic number")?;
    if magic != MAGIC {
        return Err(cursor.error(
            0,
            format_args!("magic number is {magic:#x}, not {MAGIC:#x}"),
        ));
    }
    let found = word(&mut cursor, "version")?;
    let version = Version::of(found).ok_or_else(|| {
        cursor.error(
            4,
            format_args!(
                "version is {found:#x}, not 1, 2, 3 or {:#x} (4.07)",
                Version::Llvm.word()
            ),
        )
    })?;
    word(&mut cursor, "the third word")?;
    if version == Version::Gcc3 {
        skip_summary(&mut cursor)?;
    }
    let mut reader = Reader {
        profile: Profile::default(),
        names: Vec::new(),
    };
    tag(&mut cursor, NAMES, "names")?;
    word(&mut cursor, "length of the names")?;
    if version == Version::Gcc3 {
        for _ in 0..elements(&mut cursor, 4, "number of source files")? {
            name(&mut cursor, version)?;
        }
    }
    for _ in 0..elements(&mut cursor, 4, "number of names")? {
        let name = name(&mut cursor, version)?;
        reader.names.push(reader.profile.names.intern(name));
        if version == Version::Gcc3 {
            word(&mut cursor, "source file of a name")?;
        }
    }
    tag(&mut cursor, FUNCTIONS, "functions")?;
    word(&mut cursor, "length of the functions")?;
    for _ in 0..elements(&mut cursor, 20, "number of functions")? {
        let head = cursor.u64("entries of a function")?;
        if version == Version::Gcc3 {
            cursor.u64("time of first use")?;
        }
        let name = reader.name(word(&mut cursor, "name of a function")?.into(), &cursor)?;
        let mut function = reader.body(&mut cursor, 0)?;
        function.head = head;
        reader.profile.function(name).merge(&function);
    }
    Ok(reader.profile)
}

fn skip_summary(cursor: &mut Cursor<'_>) -> Result<(), FormatError> {
    tag(cursor, SUMMARY, "the summary")?;
    for _ in 0..5 {
        cursor.u64("a count of the summary")?;
    }
    let at = cursor.offset();
    let shares = cursor.u64("number of shares")?;
    if shares > (cursor.left() / 20) as u64 {
        return Err(cursor.error(
            at,
            format_args!(
                "number of shares is {shares}, and {} bytes are left",
                cursor.left()
            ),
        ));
    }
    for _ in 0..shares {
        cursor.take(20, "a share")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::text;

    const NESTED: &str = "main:440654:7\n 2.1: 15\n 4: 534 _Z3fooi:500 bar:34\n 5: foo:440105\n  1: 15707\n  2: bar:424398\n   1: 424398\nbar:8:2\n 1: 8\n";

    fn versions() -> [Version; 4] {
        [Version::Llvm, Version::Gcc1, Version::Gcc2, Version::Gcc3]
    }

    fn written(text: &str, version: Version) -> Vec<u8> {
        let mut bytes = Vec::new();
        let profile = text::read(text.as_bytes()).unwrap();
        write(&profile, version, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn what_is_written_is_read_again_and_cut_files_are_refused() {
        for version in versions() {
            let bytes = written(NESTED, version);
            assert!(recognise(&bytes));
            let mut out = Vec::new();
            text::write(&read(&bytes).unwrap(), &mut out).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), NESTED, "{version:?}");
            for len in 0..bytes.len() {
                assert!(read(&bytes[..len]).is_err(), "{version:?} cut at {len}");
            }
        }
    }

    #[test]
    fn numbers_that_do_not_fit_name_both_values() {
        let mut bytes = written(NESTED, Version::Llvm);
        bytes[20..24].copy_from_slice(&u32::MAX.to_le_bytes());
        let said = read(&bytes).unwrap_err().to_string();
        assert!(said.contains("number of names is 4294967295"), "{said}");
        bytes[4..8].copy_from_slice(&9u32.to_le_bytes());
        let said = read(&bytes).unwrap_err().to_string();
        assert!(said.contains("version is 0x9"), "{said}");
    }

    #[test]
    fn inlining_without_end_is_refused() {
        let mut bytes = Vec::new();
        for word in [MAGIC, 1, 0, NAMES, 0, 1, 1, 0, FUNCTIONS, 0, 1, 0, 0, 0] {
            put(&mut bytes, word);
        }
        for _ in 0..10_000 {
            for word in [0, 1, 0, 0] {
                put(&mut bytes, word);
            }
        }
        let said = read(&bytes).unwrap_err().to_string();
        assert!(said.contains("inlined 501 deep"), "{said}");
    }
}
