//! Sample profiles in LLVM's extensible binary form.
//!
//! Numbers are ULEB128 where nothing else is said.
//!
//! | part | content |
//! |---|---|
//! | head | magic number (`SPROF42` and 4, see [`MAGIC`]), version 103 |
//! | table | u64 number of sections; for each u64 kind, flags, offset in the file, length |
//! | summary (1) | sum, largest count, most entries, number of counts, of functions, of shares; for each share: millionths, smallest count, number of counts |
//! | names (2) | number; then each followed by a zero byte, or as a u64 hash |
//! | chains (6) | number; for each: number of steps, for each step: name, offset, discriminator |
//! | functions (32) | entries, name or chain, then a body |
//! | a body | sum; number of counts, for each: offset, discriminator, count, number of calls, for each: name, count; number of functions inlined, for each: offset, discriminator, name, body |
//! | and if flag 32 of the summary says so | number of locations at which virtual tables were read, for each: offset, discriminator, number of tables, for each: name, count |
//! | symbols (3) | names of all functions of the program, a zero byte after each |
//! | places (4) | number; for each function: name or chain, offset in (32) |
//! | marks (5) | for each function: name or chain, hash, attributes; of profiles without chains the number of functions inlined, for each: offset, discriminator, marks |
//!
//! The table lists the sections in the order 1, 2, 6, 4, 32, 3, 5; in the file they are in the order above.

use std::io::{self, Write};

use rustc_hash::FxHashMap;

use super::summary::Summary;
use super::text::{self, ordered_targets};
use super::{Context, Function, Location, Names, Profile, Step};
use crate::guid::Guid;
use crate::probe::cursor::Cursor;
use crate::{ErrorKind, FormatError};

/// `SPROF42` and the number of the form.
pub const MAGIC: u64 = 0x5350_524f_4634_3204;
pub(super) const VERSION: u64 = 103;

const SUMMARY: u64 = 1;
const NAMES: u64 = 2;
const SYMBOLS: u64 = 3;
const PLACES: u64 = 4;
const MARKS: u64 = 5;
const CHAINS: u64 = 6;
const FUNCTIONS: u64 = 32;

/// Flag of the summary: bodies have the virtual tables that were read.
const VTABLES: u64 = 32;
/// Flag of any section: compressed with zlib.
const COMPRESSED: u64 = 1;
/// Deepest inlining that is read.
const DEPTH_LIMIT: usize = 500;

/// How a profile is written.
#[derive(Clone, Debug, Default)]
pub struct Options<'a> {
    /// Hashes in place of names.
    pub hashes: bool,
    /// Names of all functions of the program.
    pub symbols: Option<&'a [&'a [u8]]>,
    /// Virtual tables that were read; compilers before LLVM 22 cannot read a file that has them.
    pub vtables: bool,
}

pub(super) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Writes a profile.
pub fn write(profile: &Profile, options: &Options<'_>, out: &mut impl Write) -> io::Result<()> {
    let mut writer = Writer::new(profile, options);
    let summary = summary_section(&Summary::of(profile));
    let names = writer.names_section();
    let chains = writer.chains_section();
    let functions = writer.functions_section();
    let places = writer.places_section();
    let marks = writer.marks_section();
    let mut symbols = Vec::new();
    for name in options.symbols.unwrap_or_default() {
        symbols.extend_from_slice(name);
        symbols.push(0);
    }
    let flags = |bits: &[(bool, u64)]| {
        bits.iter()
            .filter(|bit| bit.0)
            .fold(0, |sum, bit| sum | bit.1 << 32)
    };
    let unique = writer
        .order
        .iter()
        .any(|name| name.windows(8).any(|part| part == b".__uniq."));
    let summary_flags = flags(&[
        (profile.context_sensitive, 2),
        (profile.flow_sensitive, 4),
        (profile.preinlined, 16),
        (options.vtables, VTABLES),
    ]);
    let name_flags = flags(&[(options.hashes, 3), (unique && !options.hashes, 4)]);
    let mark_flags = flags(&[(profile.probe_based, 1), (writer.attributes, 2)]);
    let place_flags = flags(&[(profile.context_sensitive, 1)]);
    // In the order of the file.
    let bodies = [
        (SUMMARY, summary_flags, summary),
        (NAMES, name_flags, names),
        (CHAINS, 0, chains),
        (FUNCTIONS, 0, functions),
        (SYMBOLS, 0, symbols),
        (PLACES, place_flags, places),
        (MARKS, mark_flags, marks),
    ];
    let mut head = Vec::new();
    put(&mut head, MAGIC);
    put(&mut head, VERSION);
    head.extend((bodies.len() as u64).to_le_bytes());
    let mut offset = (head.len() + bodies.len() * 32) as u64;
    let mut entries = FxHashMap::default();
    for (kind, flags, body) in &bodies {
        entries.insert(*kind, [*kind, *flags, offset, body.len() as u64]);
        offset += body.len() as u64;
    }
    for kind in [SUMMARY, NAMES, CHAINS, PLACES, FUNCTIONS, SYMBOLS, MARKS] {
        for word in entries.get(&kind).into_iter().flatten() {
            head.extend(word.to_le_bytes());
        }
    }
    out.write_all(&head)?;
    bodies
        .iter()
        .try_for_each(|(_, _, body)| out.write_all(body))
}

pub(super) fn summary_section(summary: &Summary) -> Vec<u8> {
    let mut out = Vec::new();
    let head = [
        summary.total,
        summary.max,
        summary.max_head,
        summary.counts,
        summary.functions,
    ];
    head.into_iter().for_each(|number| put(&mut out, number));
    put(&mut out, summary.entries.len() as u64);
    for entry in &summary.entries {
        put(&mut out, u64::from(entry.cutoff));
        put(&mut out, entry.min_count);
        put(&mut out, entry.counts);
    }
    out
}

pub(super) struct Writer<'a> {
    profile: &'a Profile,
    functions: Vec<(&'a Context, &'a Function)>,
    hashes: bool,
    /// Names that occur, in the order of the table.
    order: Vec<&'a [u8]>,
    numbers: FxHashMap<&'a [u8], u64>,
    /// Chains in the order of the table.
    chains: Vec<&'a Context>,
    chain_numbers: FxHashMap<&'a Context, u64>,
    places: Vec<u64>,
    attributes: bool,
    vtables: bool,
}

impl<'a> Writer<'a> {
    pub(super) fn new(profile: &'a Profile, options: &Options<'_>) -> Self {
        let functions = profile.ordered();
        let mut order = Vec::new();
        let mut attributes = false;
        for (context, function) in &functions {
            order.extend(context.iter().map(|step| profile.names.get(step.name)));
            mentioned(&profile.names, function, &mut order, &mut attributes);
            if options.vtables {
                mentioned_tables(&profile.names, function, &mut order);
            }
        }
        order.sort_unstable();
        order.dedup();
        let numbers = order
            .iter()
            .zip(0..)
            .map(|(name, number)| (*name, number))
            .collect();
        let mut chains: Vec<&Context> = Vec::new();
        if profile.context_sensitive {
            chains = functions.iter().map(|entry| entry.0).collect();
            chains.sort_by(|a, b| profile.compare(a, b));
        }
        let chain_numbers = chains
            .iter()
            .zip(0..)
            .map(|(chain, number)| (*chain, number))
            .collect();
        let hashes = options.hashes;
        Writer {
            profile,
            functions,
            hashes,
            order,
            numbers,
            chains,
            chain_numbers,
            places: Vec::new(),
            attributes,
            vtables: options.vtables,
        }
    }

    fn name(&self, out: &mut Vec<u8>, name: &[u8]) {
        put(out, self.numbers.get(name).copied().unwrap_or(0));
    }

    fn key(&self, out: &mut Vec<u8>, context: &Context) {
        match context.last() {
            _ if self.profile.context_sensitive => {
                put(out, self.chain_numbers.get(context).copied().unwrap_or(0))
            }
            Some(leaf) => self.name(out, self.profile.names.get(leaf.name)),
            None => put(out, 0),
        }
    }

    pub(super) fn names_section(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put(&mut out, self.order.len() as u64);
        for name in &self.order {
            if self.hashes {
                out.extend(Guid::of(name).0.to_le_bytes());
            } else {
                out.extend_from_slice(name);
                out.push(0);
            }
        }
        out
    }

    fn chains_section(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put(&mut out, self.chains.len() as u64);
        for chain in &self.chains {
            put(&mut out, chain.len() as u64);
            for step in *chain {
                self.name(&mut out, self.profile.names.get(step.name));
                put(&mut out, u64::from(step.at.offset));
                put(&mut out, u64::from(step.at.discriminator));
            }
        }
        out
    }

    pub(super) fn functions_section(&mut self) -> Vec<u8> {
        let (mut out, mut places) = (Vec::new(), Vec::new());
        for (context, function) in &self.functions {
            places.push(out.len() as u64);
            put(&mut out, function.head);
            self.key(&mut out, context);
            self.body(&mut out, function);
        }
        self.places = places;
        out
    }

    fn body(&self, out: &mut Vec<u8>, function: &Function) {
        let names = &self.profile.names;
        put(out, function.total);
        put(out, function.body.len() as u64);
        for (at, record) in &function.body {
            put(out, u64::from(at.offset));
            put(out, u64::from(at.discriminator));
            put(out, record.count);
            put(out, record.targets.len() as u64);
            for (target, count) in ordered_targets(names, record) {
                self.name(out, target);
                put(out, count);
            }
        }
        put(
            out,
            function
                .inlinees
                .values()
                .map(|functions| functions.len() as u64)
                .sum(),
        );
        for (at, name, inlinee) in inlinees(names, function) {
            put(out, u64::from(at.offset));
            put(out, u64::from(at.discriminator));
            self.name(out, name);
            self.body(out, inlinee);
        }
        if self.vtables {
            put(out, function.vtables.len() as u64);
        }
        for (at, tables) in function.vtables.iter().filter(|_| self.vtables) {
            put(out, u64::from(at.offset));
            put(out, u64::from(at.discriminator));
            put(out, tables.len() as u64);
            for (table, count) in text::ordered_tables(names, tables) {
                self.name(out, table);
                put(out, count);
            }
        }
    }

    fn places_section(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut rows: Vec<_> = self.functions.iter().zip(&self.places).collect();
        if self.profile.context_sensitive {
            rows.sort_by(|a, b| self.profile.compare(a.0.0, b.0.0));
        }
        put(&mut out, rows.len() as u64);
        for ((context, _), place) in rows {
            self.key(&mut out, context);
            put(&mut out, *place);
        }
        out
    }

    fn marks_section(&self) -> Vec<u8> {
        let mut out = Vec::new();
        if !self.profile.probe_based && !self.attributes {
            return out;
        }
        for (context, function) in &self.functions {
            self.key(&mut out, context);
            self.marks(&mut out, function);
        }
        out
    }

    fn marks(&self, out: &mut Vec<u8>, function: &Function) {
        if self.profile.probe_based {
            put(out, function.hash);
        }
        if self.attributes {
            put(out, u64::from(function.attributes));
        }
        if self.profile.context_sensitive {
            return;
        }
        put(
            out,
            function
                .inlinees
                .values()
                .map(|functions| functions.len() as u64)
                .sum(),
        );
        for (at, name, inlinee) in inlinees(&self.profile.names, function) {
            put(out, u64::from(at.offset));
            put(out, u64::from(at.discriminator));
            self.name(out, name);
            self.marks(out, inlinee);
        }
    }
}

/// Functions inlined into one, by location and name.
fn inlinees<'a>(
    names: &'a Names,
    function: &'a Function,
) -> Vec<(Location, &'a [u8], &'a Function)> {
    let mut all = Vec::new();
    for (&at, functions) in &function.inlinees {
        all.extend(
            functions
                .iter()
                .map(|(&name, inlinee)| (at, names.get(name), inlinee)),
        );
    }
    all.sort_by_key(|entry| (entry.0, entry.1));
    all
}

/// Collects the names that a function mentions.
fn mentioned<'a>(
    names: &'a Names,
    function: &'a Function,
    order: &mut Vec<&'a [u8]>,
    attributes: &mut bool,
) {
    *attributes |= function.attributes != 0;
    let targets = function
        .body
        .values()
        .flat_map(|record| record.targets.keys());
    order.extend(targets.map(|&name| names.get(name)));
    for (&name, inlinee) in function.inlinees.values().flatten() {
        order.push(names.get(name));
        mentioned(names, inlinee, order, attributes);
    }
}

/// Collects the names of virtual tables that a function has read.
fn mentioned_tables<'a>(names: &'a Names, function: &'a Function, order: &mut Vec<&'a [u8]>) {
    let tables = function.vtables.values().flat_map(|tables| tables.keys());
    order.extend(tables.map(|&name| names.get(name)));
    for inlinee in function
        .inlinees
        .values()
        .flat_map(|inlined| inlined.values())
    {
        mentioned_tables(names, inlinee, order);
    }
}

/// What the sections of a file say that is needed to read others.
#[derive(Default)]
pub(super) struct Reader {
    names: Vec<super::NameId>,
    chains: Vec<Context>,
    vtables: bool,
    pub(super) profile: Profile,
}

/// Whether bytes look like this form.
pub fn recognise(bytes: &[u8]) -> bool {
    Cursor::new("head", bytes, 0).uleb("magic number") == Ok(MAGIC)
}

/// Reads a profile.
///
/// # Errors
/// Anything cut off or out of range, compressed sections, other versions.
pub fn read(bytes: &[u8]) -> Result<Profile, FormatError> {
    let mut head = Cursor::new("head", bytes, 0);
    let magic = head.uleb("magic number")?;
    if magic != MAGIC {
        return Err(
            FormatError::new(format!("magic number is {magic:#x}, not {MAGIC:#x}"))
                .at_offset(0)
                .values(magic, MAGIC),
        );
    }
    let version = head.uleb("version")?;
    if version != VERSION {
        return Err(
            FormatError::new(format!("version is {version}, not {VERSION}"))
                .of(ErrorKind::Unsupported)
                .values(version, VERSION),
        );
    }
    let count = head.u64("number of sections")?;
    if count > head.left() as u64 / 32 {
        return Err(FormatError::new(format!(
            "the table has {count} sections, but {} bytes are left for it",
            head.left()
        ))
        .of(ErrorKind::Truncated)
        .at_offset(head.offset() as u64)
        .values(head.left(), count));
    }
    let mut sections: FxHashMap<u64, (u64, &[u8])> = FxHashMap::default();
    for _ in 0..count {
        let mut word = || head.u64("a section's entry");
        let (kind, flags, offset, len) = (word()?, word()?, word()?, word()?);
        let range = usize::try_from(offset)
            .ok()
            .zip(usize::try_from(offset.saturating_add(len)).ok());
        let Some(body) = range.and_then(|(from, to)| bytes.get(from..to)) else {
            return Err(FormatError::new(format!(
                "section of kind {kind}, at {offset:#x} and {len:#x} bytes long, reaches beyond the file's {:#x} bytes",
                bytes.len()
            ))
            .of(ErrorKind::Truncated)
            .at_offset(offset)
            .values(bytes.len(), offset.saturating_add(len)));
        };
        if flags & COMPRESSED != 0 && len > 0 {
            return Err(FormatError::new(format!(
                "section of kind {kind} is compressed, which is not supported"
            ))
            .of(ErrorKind::Unsupported)
            .at_offset(offset));
        }
        sections.insert(kind, (flags >> 32, body));
    }
    let section = |kind: u64| sections.get(&kind).copied().unwrap_or((0, &[]));
    let mut reader = Reader::default();
    let summary = section(SUMMARY);
    reader.profile.context_sensitive = summary.0 & 2 != 0;
    reader.profile.flow_sensitive = summary.0 & 4 != 0;
    reader.profile.preinlined = summary.0 & 16 != 0;
    reader.vtables = summary.0 & VTABLES != 0;
    let (flags, body) = section(NAMES);
    reader.read_names(flags, body)?;
    reader.read_chains(section(CHAINS).1)?;
    reader.read_functions(Cursor::new("functions", section(FUNCTIONS).1, 0))?;
    let (flags, body) = section(MARKS);
    reader.profile.probe_based = flags & 1 != 0;
    let mut cursor = Cursor::new("marks", body, 0);
    while cursor.left() > 0 {
        let context = reader.key(&mut cursor)?;
        let mut function = reader
            .profile
            .functions
            .remove(&context)
            .unwrap_or_default();
        reader.marks(&mut cursor, flags, &mut function, 0)?;
        reader.profile.functions.insert(context, function);
    }
    Ok(reader.profile)
}

impl Reader {
    fn read_names(&mut self, flags: u64, body: &[u8]) -> Result<(), FormatError> {
        if body.is_empty() {
            return Ok(());
        }
        self.read_names_at(flags, &mut Cursor::new("names", body, 0))
    }

    /// Reads names where a cursor is.
    pub(super) fn read_names_at(
        &mut self,
        flags: u64,
        cursor: &mut Cursor<'_>,
    ) -> Result<(), FormatError> {
        let count = cursor.count(1, "number of names")?;
        for _ in 0..count {
            let id = if flags & 2 != 0 {
                let hash = cursor.u64("a hash")?;
                self.profile.names.intern(hash.to_string().as_bytes())
            } else if flags & 1 != 0 {
                let hash = cursor.uleb("a hash")?;
                self.profile.names.intern(hash.to_string().as_bytes())
            } else {
                let Some(len) = cursor.rest().iter().position(|&byte| byte == 0) else {
                    return Err(cursor
                        .error(cursor.offset(), "a name has no end")
                        .of(ErrorKind::Truncated));
                };
                let name = cursor.take(len + 1, "a name")?;
                self.profile
                    .names
                    .intern(name.get(..len).unwrap_or_default())
            };
            self.names.push(id);
        }
        Ok(())
    }

    /// Reads functions until the bytes end.
    pub(super) fn read_functions(&mut self, mut cursor: Cursor<'_>) -> Result<(), FormatError> {
        while cursor.left() > 0 {
            let head = cursor.uleb("number of entries")?;
            let context = self.key(&mut cursor)?;
            let mut function = self.body(&mut cursor, 0)?;
            function.head = head;
            Function::merge_into(self.profile.functions.entry(context), &function);
        }
        Ok(())
    }

    fn read_chains(&mut self, body: &[u8]) -> Result<(), FormatError> {
        let mut cursor = Cursor::new("chains", body, 0);
        if cursor.left() == 0 {
            return Ok(());
        }
        let count = cursor.count(4, "number of chains")?;
        for _ in 0..count {
            let steps = cursor.count(3, "number of steps")?;
            let mut chain = Vec::with_capacity(steps);
            for _ in 0..steps {
                let name = self.name(&mut cursor)?;
                chain.push(Step {
                    name,
                    at: location(&mut cursor)?,
                });
            }
            self.chains.push(chain);
        }
        Ok(())
    }

    fn name(&self, cursor: &mut Cursor<'_>) -> Result<super::NameId, FormatError> {
        Ok(*element(cursor, &self.names, ["a name's number", "name"])?)
    }

    fn key(&self, cursor: &mut Cursor<'_>) -> Result<Context, FormatError> {
        if !self.profile.context_sensitive {
            return Ok(vec![Step {
                name: self.name(cursor)?,
                at: Location::default(),
            }]);
        }
        Ok(element(cursor, &self.chains, ["a chain's number", "chain"])?.clone())
    }

    fn body(&self, cursor: &mut Cursor<'_>, depth: usize) -> Result<Function, FormatError> {
        if depth > DEPTH_LIMIT {
            return Err(cursor
                .error(
                    cursor.offset(),
                    format_args!("inlining is deeper than {DEPTH_LIMIT}"),
                )
                .of(ErrorKind::TooLarge)
                .values(depth, DEPTH_LIMIT));
        }
        let mut function = Function {
            total: cursor.uleb("a sum")?,
            ..Function::default()
        };
        for _ in 0..cursor.count(4, "number of counts")? {
            let at = location(cursor)?;
            function.add_body(at, cursor.uleb("a count")?);
            for _ in 0..cursor.count(2, "number of calls")? {
                let target = self.name(cursor)?;
                function.add_target(at, target, cursor.uleb("a call's count")?);
            }
        }
        for _ in 0..cursor.count(6, "number of functions inlined")? {
            let at = location(cursor)?;
            let name = self.name(cursor)?;
            let inlinee = self.body(cursor, depth + 1)?;
            function.inlinee(at, name).merge(&inlinee);
        }
        let locations = if self.vtables {
            cursor.count(3, "number of locations")?
        } else {
            0
        };
        for _ in 0..locations {
            let at = location(cursor)?;
            for _ in 0..cursor.count(2, "number of virtual tables")? {
                let table = self.name(cursor)?;
                function.add_vtable(at, table, cursor.uleb("a table's count")?);
            }
        }
        Ok(function)
    }

    fn marks(
        &self,
        cursor: &mut Cursor<'_>,
        flags: u64,
        function: &mut Function,
        depth: usize,
    ) -> Result<(), FormatError> {
        if depth > DEPTH_LIMIT {
            return Err(cursor
                .error(
                    cursor.offset(),
                    format_args!("inlining is deeper than {DEPTH_LIMIT}"),
                )
                .of(ErrorKind::TooLarge)
                .values(depth, DEPTH_LIMIT));
        }
        if flags & 1 != 0 {
            function.hash = cursor.uleb("a hash")?;
        }
        if flags & 2 != 0 {
            function.attributes = cursor.uleb("attributes")? as u32;
        }
        if self.profile.context_sensitive {
            return Ok(());
        }
        for _ in 0..cursor.count(3, "number of functions inlined")? {
            let at = location(cursor)?;
            let name = self.name(cursor)?;
            self.marks(cursor, flags, function.inlinee(at, name), depth + 1)?;
        }
        Ok(())
    }
}

fn location(cursor: &mut Cursor<'_>) -> Result<Location, FormatError> {
    let at = cursor.offset();
    let (offset, discriminator) = (cursor.uleb("an offset")?, cursor.uleb("a discriminator")?);
    match (u32::try_from(offset), u32::try_from(discriminator)) {
        (Ok(offset), Ok(discriminator)) => Ok(Location {
            offset,
            discriminator,
        }),
        _ => Err(cursor
            .error(
                at,
                format_args!("location {offset}.{discriminator} has more than 32 bits"),
            )
            .of(ErrorKind::TooLarge)),
    }
}

/// Reads a number that counts in a list of names or chains, and gives what has that number.
fn element<'l, T>(
    cursor: &mut Cursor<'_>,
    list: &'l [T],
    [field, what]: [&str; 2],
) -> Result<&'l T, FormatError> {
    let at = cursor.offset();
    let number = cursor.uleb(field)?;
    let found = usize::try_from(number)
        .ok()
        .and_then(|number| list.get(number));
    found.ok_or_else(|| {
        let count = list.len();
        cursor
            .error(
                at,
                format_args!("{what} number {number}, but there are {count}"),
            )
            .of(ErrorKind::OutOfBounds)
            .values(number, count)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NESTED: &str = "main:184019:7\n 2.1: 15\n 4: 534 _Z3fooi:500 bar:34\n 5: foo:424940\n  1: 15707\n  2: bar:7\n   1: 7\n   !CFGChecksum: 3\n  !CFGChecksum: 2\n  !Attributes: 1\n !CFGChecksum: 0\n";
    const TABLES: &str = "main:90:7\n 2.1: 15\n 2.1: vtables _ZTV1A:9 _ZTV1B:14 \n 5: foo:75\n  1: 15707\n  1: vtables _ZTV1A:3 \n";
    const CONTEXTS: &str = "[main:2 @ foo:8.1 @ bar]:28:14\n 1: 14\n 2: 14\n[main]:5:0\n 1: 5\n";

    fn binary(text: &str) -> Vec<u8> {
        let mut out = Vec::new();
        write(
            &text::read(text.as_bytes()).unwrap(),
            &Options {
                vtables: text.contains("vtables"),
                ..Options::default()
            },
            &mut out,
        )
        .unwrap();
        out
    }

    #[test]
    fn what_is_written_is_read_again() {
        for profile in [NESTED, CONTEXTS, TABLES] {
            let mut out = Vec::new();
            text::write(&read(&binary(profile)).unwrap(), &mut out).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), profile);
        }
    }

    #[test]
    fn changed_and_cut_files_are_read_or_refused() {
        for profile in [NESTED, CONTEXTS, TABLES] {
            let bytes = binary(profile);
            for at in 0..bytes.len() {
                assert!(
                    read(&bytes[..at]).is_err(),
                    "cut at {at} of {}",
                    bytes.len()
                );
                for change in [1, 0x7f, 0x80, 0xff] {
                    let mut changed = bytes.clone();
                    changed[at] ^= change;
                    let _ = read(&changed);
                }
            }
        }
    }
}
