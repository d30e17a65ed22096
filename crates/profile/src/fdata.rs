//! `.fdata`: BOLT's text form of a [`SymbolicProfile`].
//!
//! One record a line, fields separated by a space (more are tolerated), line ends `\n`.
//!
//! | line | |
//! |---|---|
//! | `no_lbr EVENT…` | header: basic samples, not branches; names of the events |
//! | `boltedcollection` | header: taken on an optimised binary, translated to the input |
//! | `K NAME OFFSET  K NAME OFFSET  MISPREDICTIONS COUNT` | branch from, to |
//! | `K NAME OFFSET  COUNT` | sample (after `no_lbr`) |
//! | `K NAME OFFSET  K NAME OFFSET  COUNT` | memory access: instruction, address; kinds are higher by 3 |
//!
//! K is 0 outside of all symbols (the name is `[unknown]` or a shared object's, the offset 0 or the address),
//! 1 in a global symbol, 2 in a local one (read as 1). Offsets are hexadecimal without prefix, counts
//! decimal. In names a backslash is before each space and each backslash.
//!
//! What LLVM's reader passes over in silence is an error here: it stops at the first line that is no record,
//! and a profile with an empty line or a comment in it loses its end.
//!
//! The writer gives one text for each profile: the headers in the order that LLVM's reader accepts, then the
//! records in the order of the model. Counts above 2⁶³ − 1, which LLVM cannot read, are written as that.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;

use postlink_bytes::decimal;
use rustc_hash::FxHashMap;

use crate::fdata_sum::Head;
use crate::source::{self, Bad, Source, quote};
use crate::symbolic::{
    BasicSample, Branch, Collection, Location, MemoryAccess, NameId, Names, Records,
    SymbolicProfile,
};
use crate::{Error, output};

/// Largest count that LLVM reads.
const MAX_COUNT: u64 = i64::MAX as u64;

/// Reads a file.
pub fn read(path: &Path) -> Result<SymbolicProfile, Error> {
    let source = Source::open(path)?;
    parse(&source).map_err(|bad| bad.locate(path, &source))
}

/// Reads a text; `name` is what errors call it.
pub fn read_bytes(name: &Path, text: &[u8]) -> Result<SymbolicProfile, Error> {
    parse(text).map_err(|bad| bad.locate(name, text))
}

/// Reads and adds up files, each with its weight, in parallel. The order does not matter to the result.
///
/// Errors: a file that cannot be read; files with branches and files with samples, or of optimised and of
/// original binaries, together.
pub fn merge(inputs: &[crate::Weighted]) -> Result<SymbolicProfile, Error> {
    crate::fdata_sum::merge(inputs)
}

/// What one piece of the text holds.
#[derive(Default)]
struct Part<'a> {
    /// Names as they are written, in the order of their numbers.
    names: Vec<&'a [u8]>,
    numbers: FxHashMap<&'a [u8], u32>,
    records: Records,
}

impl<'a> Part<'a> {
    fn number(&mut self, name: &'a [u8], recent: Option<NameId>) -> NameId {
        // Most records stay in one function, and follow others of it.
        if let Some(id) = recent
            && self.names.get(id.0 as usize) == Some(&name)
        {
            return id;
        }
        let next = self.names.len() as u32;
        let number = *self.numbers.entry(name).or_insert(next);
        if number == next {
            self.names.push(name);
        }
        NameId(number)
    }
}

/// What the header lines say, and where they end.
pub(crate) fn head(text: &[u8]) -> Head {
    let mut collection = Collection {
        branches: true,
        bolted: false,
    };
    let mut events = BTreeSet::new();
    let mut body = 0;
    for (at, line) in source::lines(text) {
        let mut fields = Fields { line, at: 0 };
        match fields.next() {
            Some(b"no_lbr") if collection.branches => {
                collection.branches = false;
                while let Some(event) = fields.next() {
                    events.insert(event.to_vec());
                }
            }
            Some(b"boltedcollection") if !collection.bolted && fields.next().is_none() => {
                collection.bolted = true
            }
            _ => break,
        }
        body = (at + line.len() + 1).min(text.len());
    }
    Head {
        // A text without anything says nothing about how it was taken.
        collection: (!text.is_empty()).then_some(collection),
        events,
        body,
    }
}

/// Whether a line is a record.
pub(crate) fn check_line(line: &[u8], branches: bool) -> Result<(), Bad> {
    if line.is_empty() {
        return Err(Bad::new(
            0,
            "expected a kind of location (0 to 5), found the end of the line (the line is empty)",
        ));
    }
    parse_part(line, branches).map(|_| ())
}

fn parse(text: &[u8]) -> Result<SymbolicProfile, Bad> {
    let Head {
        collection,
        events,
        body: start,
    } = head(text);
    let body = &text[start..];
    let branches = collection.is_none_or(|c| c.branches);
    let parts: Vec<Result<Part<'_>, Bad>> = postlink_parallel::map_owned(
        source::split_lines(body, source::piece_count()),
        |(at, piece)| parse_part(piece, branches).map_err(|bad| bad.shift(start + at)),
    );
    joined(collection, events, parts)
}

/// A profile from texts without headers, of about so many records. `more` puts the next one in an empty
/// buffer, until there is none.
pub(crate) fn assemble(
    collection: Option<Collection>,
    events: BTreeSet<Vec<u8>>,
    records: usize,
    mut more: impl FnMut(&mut Vec<u8>),
) -> Result<SymbolicProfile, Bad> {
    let branches = collection.is_none_or(|c| c.branches);
    let mut all = Joined::default();
    // All in one list as a rule; what is not used of it costs nothing.
    if branches {
        all.records.branches.reserve(records)
    } else {
        all.records.samples.reserve(records)
    }
    let mut text = Vec::new();
    loop {
        text.clear();
        more(&mut text);
        if text.is_empty() {
            return Ok(all.profile(collection, events));
        }
        all.add(parse_part(&text, branches)?);
    }
}

fn joined(
    collection: Option<Collection>,
    events: BTreeSet<Vec<u8>>,
    parts: Vec<Result<Part<'_>, Bad>>,
) -> Result<SymbolicProfile, Bad> {
    let mut all = Joined::default();
    for part in parts {
        all.add(part?);
    }
    Ok(all.profile(collection, events))
}

/// Parts put together.
#[derive(Default)]
struct Joined {
    /// Names in the order of their numbers.
    names: Vec<Vec<u8>>,
    /// Numbers by the name as it is written.
    numbers: FxHashMap<Box<[u8]>, u32>,
    records: Records,
}

impl Joined {
    fn add(&mut self, mut part: Part<'_>) {
        let ids: Vec<NameId> = part
            .names
            .iter()
            .map(|&name| match self.numbers.get(name) {
                Some(&number) => NameId(number),
                None => {
                    let number = self.names.len() as u32;
                    self.names.push(unescape(name).into_owned());
                    self.numbers.insert(name.into(), number);
                    NameId(number)
                }
            })
            .collect();
        part.records.renumber(&ids);
        self.records.branches.append(&mut part.records.branches);
        self.records.samples.append(&mut part.records.samples);
        self.records.memory.append(&mut part.records.memory);
    }

    fn profile(self, collection: Option<Collection>, events: BTreeSet<Vec<u8>>) -> SymbolicProfile {
        drop(self.numbers);
        SymbolicProfile::new(collection, events, &self.names, self.records)
    }
}

fn parse_part(piece: &[u8], branches: bool) -> Result<Part<'_>, Bad> {
    let mut part = Part::default();
    let mut from = None;
    let mut to = None;
    for (at, line) in source::lines(piece) {
        let mut fields = Fields { line, at: 0 };
        (|| {
            let kind = fields.kind()?;
            if kind.memory {
                let place = fields.location(&mut part, &mut from, kind)?;
                let kind = fields.kind()?;
                if !kind.memory {
                    return Err(
                        "an address of kind 0, 1 or 2 in a memory record, must be 3, 4 or 5"
                            .to_owned(),
                    );
                }
                let address = fields.location(&mut part, &mut to, kind)?;
                let count = fields.count("count")?;
                part.records.memory.push(MemoryAccess {
                    at: place,
                    address,
                    count,
                });
            } else if branches {
                let from = fields.location(&mut part, &mut from, kind)?;
                let kind = fields.kind()?;
                if kind.memory {
                    return Err(
                        "a target of kind 3, 4 or 5 in a branch record, must be 0, 1 or 2"
                            .to_owned(),
                    );
                }
                let to = fields.location(&mut part, &mut to, kind)?;
                let mispredictions = fields.count("misprediction count")?;
                let count = fields.count("count")?;
                part.records.branches.push(Branch {
                    from,
                    to,
                    mispredictions,
                    count,
                });
            } else {
                let place = fields.location(&mut part, &mut from, kind)?;
                let count = fields.count("sample count")?;
                part.records.samples.push(BasicSample { at: place, count });
            }
            match fields.next() {
                None => Ok(()),
                Some(b"\r") => Err("the line ends with \\r\\n, must end with \\n alone".to_owned()),
                Some(extra) => Err(format!("{} after the end of the record", quote(extra))),
            }
        })()
        .map_err(|what| {
            let hint = match line {
                [] => " (the line is empty)",
                [.., b'\r'] => " (lines must end with \\n, not \\r\\n)",
                _ if line.starts_with(b"no_lbr") || line.starts_with(b"boltedcollection") => {
                    " (headers come first, and once)"
                }
                _ => "",
            };
            Bad::new(at, format!("{what}{hint}: {}", quote(line)))
        })?;
    }
    Ok(part)
}

/// The first field of a location.
#[derive(Clone, Copy)]
struct Kind {
    memory: bool,
    in_symbol: bool,
}

/// The fields of a line.
struct Fields<'a> {
    line: &'a [u8],
    at: usize,
}

impl<'a> Fields<'a> {
    fn next(&mut self) -> Option<&'a [u8]> {
        while self.line.get(self.at) == Some(&b' ') {
            self.at += 1;
        }
        let start = self.at;
        let mut end = start;
        while let Some(&byte) = self.line.get(end) {
            match byte {
                b' ' => break,
                b'\\' => end += 2,
                _ => end += 1,
            }
        }
        self.at = end.min(self.line.len());
        (start < self.at).then(|| &self.line[start..self.at])
    }

    fn kind(&mut self) -> Result<Kind, String> {
        match self.next() {
            Some([digit @ b'0'..=b'5']) => {
                let digit = digit - b'0';
                Ok(Kind {
                    memory: digit >= 3,
                    in_symbol: !matches!(digit, 0 | 3),
                })
            }
            other => Err(format!(
                "expected a kind of location (0 to 5), found {}",
                found(other)
            )),
        }
    }

    fn location(
        &mut self,
        part: &mut Part<'a>,
        recent: &mut Option<NameId>,
        kind: Kind,
    ) -> Result<Location, String> {
        let name = self
            .next()
            .ok_or_else(|| format!("expected a name, found {}", found(None)))?;
        let offset = self.next();
        let offset = offset
            .and_then(source::hex)
            .ok_or_else(|| format!("expected an offset in hexadecimal, found {}", found(offset)))?;
        let name = part.number(name, *recent);
        *recent = Some(name);
        Ok(Location {
            in_symbol: kind.in_symbol,
            name,
            offset,
        })
    }

    fn count(&mut self, what: &str) -> Result<u64, String> {
        let field = self.next();
        field.and_then(source::decimal).ok_or_else(|| {
            format!(
                "expected a {what} (decimal, below 2^64), found {}",
                found(field)
            )
        })
    }
}

fn found(field: Option<&[u8]>) -> String {
    field.map_or_else(|| "the end of the line".to_owned(), quote)
}

/// Takes the backslashes away that are before spaces and backslashes.
fn unescape(name: &[u8]) -> Cow<'_, [u8]> {
    if !name.contains(&b'\\') {
        return Cow::Borrowed(name);
    }
    let mut out = Vec::with_capacity(name.len());
    let mut bytes = name.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        match (byte, bytes.peek()) {
            (b'\\', Some(&next @ (b' ' | b'\\'))) => {
                out.push(next);
                bytes.next();
            }
            _ => out.push(byte),
        }
    }
    Cow::Owned(out)
}

/// Appends a name with its escapes.
fn put_name(out: &mut Vec<u8>, name: &[u8]) {
    if !name.contains(&b' ') && !name.contains(&b'\\') {
        return out.extend_from_slice(name);
    }
    for &byte in name {
        if matches!(byte, b' ' | b'\\') {
            out.push(b'\\');
        }
        out.push(byte);
    }
}

/// Writes a file, by way of a temporary beside it.
pub fn write(path: &Path, profile: &SymbolicProfile) -> Result<(), Error> {
    output::write_atomically(path, |out| write_to(out, profile))
}

/// Writes to any stream.
pub fn write_to(out: &mut impl Write, profile: &SymbolicProfile) -> std::io::Result<()> {
    let collection = profile.collection.unwrap_or(Collection {
        branches: true,
        bolted: false,
    });
    if !collection.branches {
        out.write_all(b"no_lbr")?;
        for event in &profile.events {
            out.write_all(b" ")?;
            out.write_all(event)?;
        }
        out.write_all(b"\n")?;
    }
    if collection.bolted {
        out.write_all(b"boltedcollection\n")?;
    }
    let names = profile.names();
    let mut line = Vec::new();
    for branch in profile.branches() {
        line.clear();
        put_location(&mut line, names, branch.from, 0);
        put_location(&mut line, names, branch.to, 0);
        put_decimal(&mut line, branch.mispredictions);
        line.push(b' ');
        put_decimal(&mut line, branch.count);
        line.push(b'\n');
        out.write_all(&line)?;
    }
    for sample in profile.samples() {
        line.clear();
        put_location(&mut line, names, sample.at, 0);
        put_decimal(&mut line, sample.count);
        line.push(b'\n');
        out.write_all(&line)?;
    }
    for access in profile.memory() {
        line.clear();
        put_location(&mut line, names, access.at, 3);
        put_location(&mut line, names, access.address, 3);
        put_decimal(&mut line, access.count);
        line.push(b'\n');
        out.write_all(&line)?;
    }
    Ok(())
}

fn put_location(out: &mut Vec<u8>, names: &Names, location: Location, shift: u8) {
    out.extend_from_slice(&[b'0' + u8::from(location.in_symbol) + shift, b' ']);
    put_name(out, names.get(location.name));
    out.push(b' ');
    let digits = (64 - (location.offset | 1).leading_zeros()).div_ceil(4);
    for digit in (0..digits).rev() {
        out.push(b"0123456789abcdef"[(location.offset >> (4 * digit) & 15) as usize]);
    }
    out.push(b' ');
}

fn put_decimal(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(decimal(value.min(MAX_COUNT), &mut [0; 20]));
}

#[cfg(test)]
mod tests {
    use super::*;
    use arbtest::arbitrary::{Result, Unstructured};

    fn written(profile: &SymbolicProfile) -> Vec<u8> {
        let mut out = Vec::new();
        write_to(&mut out, profile).unwrap();
        out
    }

    fn text(profile: &SymbolicProfile) -> String {
        String::from_utf8(written(profile)).unwrap()
    }

    fn parsed(text: &str) -> SymbolicProfile {
        read_bytes(Path::new("x.fdata"), text.as_bytes()).unwrap()
    }

    fn error(text: &str) -> String {
        read_bytes(Path::new("x.fdata"), text.as_bytes())
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn branches_are_written_function_by_function_then_entries_then_memory() {
        let profile = parsed(
            "0 [unknown] 0 0 [unknown] 0 0 9\n0 libc.so 0 1 b 0 1 2\n1 b 1f 1 a 0 0 3\n2 a 10 1 a 4 1 5\n4 a 3 3 [unknown] 7fff12 6\n1 a 10 1 a 4 2 5\n",
        );
        assert_eq!(
            text(&profile),
            "1 a 10 1 a 4 3 10\n1 b 1f 1 a 0 0 3\n0 libc.so 0 1 b 0 1 2\n0 [unknown] 0 0 [unknown] 0 0 9\n4 a 3 3 [unknown] 7fff12 6\n"
        );
        let names: Vec<&[u8]> = profile
            .functions()
            .map(|(id, _)| profile.names().get(id))
            .collect();
        assert_eq!(names, [b"a", b"b"]);
        let b = profile.names().find(b"b").unwrap();
        assert_eq!(profile.branches_of(b).len(), 2);
        assert_eq!(profile.execution_counts()[b.0 as usize], 2);
    }

    #[test]
    fn names_with_spaces_and_backslashes_survive() {
        let profile = parsed("1 f\\ o\\\\ 0 1 operator\\ new(x\\ y) a 0 1\n");
        assert!(profile.names().find(b"f o\\").is_some());
        assert!(profile.names().find(b"operator new(x y)").is_some());
        assert_eq!(
            text(&profile),
            "1 f\\ o\\\\ 0 1 operator\\ new(x\\ y) a 0 1\n"
        );
    }

    #[test]
    fn headers_are_read_in_either_order_and_written_as_llvm_reads_them() {
        let one = parsed("boltedcollection\nno_lbr cycles instructions\n1 f 4 7\n");
        let other = parsed("no_lbr instructions cycles\nboltedcollection\n1 f 4 7\n");
        assert_eq!(one, other);
        assert_eq!(
            text(&one),
            "no_lbr cycles instructions\nboltedcollection\n1 f 4 7\n"
        );
        assert_eq!(one.samples_of(one.names().find(b"f").unwrap()).len(), 1);
    }

    #[test]
    fn what_llvm_passes_over_is_an_error_with_its_line() {
        let good = "1 f 0 1 f 4 0 1\n";
        assert_eq!(
            error(&format!("{good}\n{good}")),
            "x.fdata:2: expected a kind of location (0 to 5), found the end of the line (the line is empty): \"\""
        );
        assert_eq!(
            error(&format!("{good}# comment\n")),
            "x.fdata:2: expected a kind of location (0 to 5), found \"#\": \"# comment\""
        );
        assert!(error("1 f 0 1 f 4 0 1\r\n").contains("not \\r\\n"));
        assert!(
            error("1 f 0x0 1 f 4 0 1\n")
                .contains("expected an offset in hexadecimal, found \"0x0\"")
        );
        assert!(
            error("1 f 0 1 f 4 0 -1\n")
                .contains("expected a count (decimal, below 2^64), found \"-1\"")
        );
        assert!(error("1 f 0 1 f 4 0\n").contains("found the end of the line"));
        assert!(error("1 f 0 1 f 4 0 1 1\n").contains("\"1\" after the end of the record"));
        assert!(error("1 f 0 4 f 4 0 1\n").contains("kind 3, 4 or 5"));
        assert!(error(&format!("{good}boltedcollection\n")).contains("headers come first"));
    }

    #[test]
    fn different_collections_do_not_merge() {
        let a = || parsed("1 f 0 1 f 4 0 1\n");
        let names = (Path::new("a"), Path::new("b"));
        let text = a()
            .merge(parsed("no_lbr\n1 f 0 1\n"), names)
            .unwrap_err()
            .to_string();
        assert_eq!(
            text,
            "a and b cannot be merged: records are branches in the first, samples without branches (no_lbr) in the second"
        );
        let text = a()
            .merge(parsed("boltedcollection\n1 f 0 1 f 4 0 1\n"), names)
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("the original binary in the first, an optimised binary"),
            "{text}"
        );
        assert_eq!(a().merge(parsed(""), names).unwrap(), a());
    }

    fn arbitrary_text(u: &mut Unstructured<'_>) -> Result<String> {
        let mut out = String::new();
        for _ in 0..u.int_in_range(0..=20)? {
            let name = |u: &mut Unstructured<'_>| {
                u.choose(&["a", "b", "main/1", "x\\ y", "\\\\", "[unknown]"])
                    .copied()
            };
            let (k, l) = (u.int_in_range(0..=2)?, u.int_in_range(0..=2)?);
            let (a, b) = (name(u)?, name(u)?);
            let (x, y) = (u.int_in_range(0..=3)?, u.int_in_range(0..=3)?);
            let count = if u.arbitrary()? {
                u.int_in_range(0..=9)?
            } else {
                MAX_COUNT - u.int_in_range(0..=9)?
            };
            let mispredictions: u8 = u.arbitrary()?;
            out += &if u.arbitrary()? {
                format!("{k} {a} {x:x} {l} {b} {y:x} {mispredictions} {count}\n")
            } else {
                format!("{} {a} {x:x} {} {b} {y:x} {count}\n", k + 3, l + 3)
            };
        }
        Ok(out)
    }

    #[test]
    fn merge_is_a_commutative_monoid_and_the_text_is_the_same_in_any_order() {
        arbtest::arbtest(|u| {
            let texts = [arbitrary_text(u)?, arbitrary_text(u)?, arbitrary_text(u)?];
            let [a, b, c] = texts.clone().map(|text| parsed(&text));
            let names = (Path::new("a"), Path::new("b"));
            let plus = |a: &SymbolicProfile, b: &SymbolicProfile| {
                a.clone().merge(b.clone(), names).unwrap()
            };
            let left = plus(&plus(&a, &b), &c);
            let right = plus(&a, &plus(&c, &b));
            assert_eq!(left, right);
            assert_eq!(plus(&a, &SymbolicProfile::default()), a);
            // The concatenation of texts is the merge of profiles, and the text is a fixed point.
            let mut lines: Vec<&str> = texts
                .iter()
                .flat_map(|text| text.split_inclusive('\n'))
                .collect();
            lines.reverse();
            assert_eq!(text(&parsed(&lines.concat())), text(&left));
            assert_eq!(text(&parsed(&text(&left))), text(&left));
            Ok(())
        });
    }

    #[test]
    fn any_bytes_are_read_or_refused() {
        arbtest::arbtest(|u| {
            let mut bytes = arbitrary_text(u)?.into_bytes();
            if u.arbitrary()? {
                bytes.splice(0..0, *b"no_lbr x\n");
            }
            for _ in 0..u.int_in_range(0..=4)? {
                if !bytes.is_empty() {
                    let at = u.choose_index(bytes.len())?;
                    bytes[at] = u.arbitrary()?;
                }
            }
            if let Ok(profile) = read_bytes(Path::new("x"), &bytes) {
                // As bytes: names need not be UTF-8.
                let again = written(&profile);
                let once_more = read_bytes(Path::new("x"), &again).unwrap();
                assert_eq!(again, written(&once_more));
            }
            let any: Vec<u8> = u.arbitrary()?;
            let _ = read_bytes(Path::new("x"), &any);
            Ok(())
        });
    }
}
