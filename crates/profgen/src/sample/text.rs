//! Sample profiles as text.
//!
//! | line | content |
//! |---|---|
//! | `name:total:head`, or `[a:3 @ b:2.1 @ name]:total:head` | a function starts |
//! | ` 3: 15 bar:10 baz:5` | location, count, calls |
//! | ` 4: bar:100` | location, function inlined there, its sum; its lines follow with one blank more |
//! | ` 3: vtables _ZTV1A:6 _ZTV1B:4` | location, virtual tables read there and how often |
//! | ` !CFGChecksum: 1` | hash of the graph |
//! | ` !Attributes: 1` | flags |
//!
//! A location is `offset` or `offset.discriminator`. Blanks at the start of a line say how deep it is. Names
//! may contain colons: the head of a function is parsed from its end.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::{Context, Function, Location, NameId, Names, Profile, Step};
use crate::FormatError;

/// Deepest inlining that is read.
const DEPTH_LIMIT: usize = 10_000;

/// Writes a profile.
pub fn write(profile: &Profile, out: &mut impl Write) -> io::Result<()> {
    for (context, function) in profile.ordered() {
        let Some((leaf, callers)) = context.split_last() else {
            continue;
        };
        if profile.context_sensitive {
            write!(out, "[")?;
            for step in callers {
                out.write_all(profile.names.get(step.name))?;
                write!(out, ":")?;
                put_location(out, step.at)?;
                write!(out, " @ ")?;
            }
        }
        out.write_all(profile.names.get(leaf.name))?;
        if profile.context_sensitive {
            write!(out, "]")?;
        }
        writeln!(out, ":{}:{}", function.total, function.head)?;
        put_function(profile, function, 1, out)?;
    }
    Ok(())
}

fn put_location(out: &mut impl Write, at: Location) -> io::Result<()> {
    match at.discriminator {
        0 => write!(out, "{}", at.offset),
        discriminator => write!(out, "{}.{discriminator}", at.offset),
    }
}

fn put_function(
    profile: &Profile,
    function: &Function,
    depth: usize,
    out: &mut impl Write,
) -> io::Result<()> {
    let names = &profile.names;
    for (&at, record) in &function.body {
        write!(out, "{:depth$}", "")?;
        put_location(out, at)?;
        write!(out, ": {}", record.count)?;
        for (target, count) in ordered_targets(names, record) {
            write!(out, " ")?;
            out.write_all(target)?;
            write!(out, ":{count}")?;
        }
        writeln!(out)?;
        put_vtables(names, function, at, depth, out)?;
    }
    for (&at, functions) in &function.inlinees {
        let mut functions: Vec<_> = functions.iter().collect();
        functions.sort_by_key(|entry| names.get(*entry.0));
        for (name, inlinee) in functions {
            write!(out, "{:depth$}", "")?;
            put_location(out, at)?;
            write!(out, ": ")?;
            out.write_all(names.get(*name))?;
            writeln!(out, ":{}", inlinee.total)?;
            put_function(profile, inlinee, depth + 1, out)?;
        }
        put_vtables(names, function, at, depth, out)?;
    }
    if profile.probe_based {
        writeln!(out, "{:depth$}!CFGChecksum: {}", "", function.hash)?;
    }
    if function.attributes != 0 {
        writeln!(out, "{:depth$}!Attributes: {}", "", function.attributes)?;
    }
    Ok(())
}

/// The virtual tables that were read at a location.
fn put_vtables(
    names: &Names,
    function: &Function,
    at: Location,
    depth: usize,
    out: &mut impl Write,
) -> io::Result<()> {
    let Some(tables) = function.vtables.get(&at) else {
        return Ok(());
    };
    write!(out, "{:depth$}", "")?;
    put_location(out, at)?;
    write!(out, ": vtables ")?;
    for (table, count) in ordered_tables(names, tables) {
        out.write_all(table)?;
        write!(out, ":{count} ")?;
    }
    writeln!(out)
}

/// Virtual tables with their counts, by name.
pub(super) fn ordered_tables<'n>(
    names: &'n Names,
    tables: &BTreeMap<NameId, u64>,
) -> Vec<(&'n [u8], u64)> {
    let tables = tables.iter();
    let mut tables: Vec<_> = tables
        .map(|(name, count)| (names.get(*name), *count))
        .collect();
    tables.sort_unstable();
    tables
}

/// Calls, the most frequent first, then by name.
pub(super) fn ordered_targets<'n>(
    names: &'n Names,
    record: &super::Record,
) -> Vec<(&'n [u8], u64)> {
    let mut targets: Vec<_> = record
        .targets
        .iter()
        .map(|(name, count)| (names.get(*name), *count))
        .collect();
    targets.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    targets
}

/// Reads a profile.
///
/// # Errors
/// A line that is none of the above, with its number.
pub fn read(text: &[u8]) -> Result<Profile, FormatError> {
    let mut profile = Profile::default();
    // The function at hand, and the path to the inlined one at hand.
    let mut open: Option<(Context, Function)> = None;
    let mut path: Vec<(Location, NameId)> = Vec::new();
    let close = |open: &mut Option<(Context, Function)>, profile: &mut Profile| {
        if let Some((context, function)) = open.take() {
            Function::merge_into(profile.functions.entry(context), &function);
        }
    };
    for (number, line) in text.split(|&byte| byte == b'\n').enumerate() {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let content = line.trim_ascii_start();
        if matches!(content.first(), None | Some(b'#')) {
            continue;
        }
        let bad = |what: &str| {
            let shown = crate::beginning(line);
            FormatError::new(format!("line {}: {what}: {shown:?}", number + 1))
                .at_line(number as u64 + 1)
        };
        let depth = line.len() - content.len();
        if depth == 0 {
            close(&mut open, &mut profile);
            path.clear();
            let (rest, head) =
                split_number(line, b':').ok_or_else(|| bad("number of entries is missing"))?;
            let (name, total) = split_number(rest, b':').ok_or_else(|| bad("sum is missing"))?;
            let context = match name
                .strip_prefix(b"[")
                .and_then(|name| name.strip_suffix(b"]"))
            {
                Some(chain) => {
                    profile.context_sensitive = true;
                    context(chain, &mut profile.names)
                        .ok_or_else(|| bad("chain of callers is broken"))?
                }
                None => vec![Step {
                    name: profile.names.intern(name),
                    at: Location::default(),
                }],
            };
            open = Some((
                context,
                Function {
                    total,
                    head,
                    ..Function::default()
                },
            ));
            continue;
        }
        let Some((_, function)) = &mut open else {
            return Err(bad("a function must come first"));
        };
        if depth > path.len() + 1 || depth > DEPTH_LIMIT {
            return Err(bad("deeper than the line before allows"));
        }
        path.truncate(depth - 1);
        let mut here = function;
        for &(at, name) in &path {
            here = here.inlinee(at, name);
        }
        if let Some(meta) = content.strip_prefix(b"!") {
            let (name, value) = split_number(meta, b':').ok_or_else(|| bad("number is missing"))?;
            match name {
                b"CFGChecksum" => {
                    here.hash = value;
                    profile.probe_based = true;
                }
                b"Attributes" => here.attributes = value as u32,
                _ => return Err(bad("unknown mark")),
            }
            continue;
        }
        let colon = content.iter().position(|&byte| byte == b':');
        let (at, rest) = colon
            .and_then(|colon| split_around(content, colon))
            .ok_or_else(|| bad("colon is missing"))?;
        let at = location(at).ok_or_else(|| bad("location is broken"))?;
        let rest = rest.trim_ascii_start();
        if let Some(tables) = rest.strip_prefix(b"vtables ") {
            for table in calls(tables).ok_or_else(|| bad("virtual tables are broken"))? {
                let name = profile.names.intern(table.0);
                here.add_vtable(at, name, table.1);
            }
            continue;
        }
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (digits, after) = rest.split_at(digits);
        match decimal(digits) {
            Some(count) if matches!(after.first(), None | Some(b' ')) => {
                here.add_body(at, count);
                for call in calls(after).ok_or_else(|| bad("calls are broken"))? {
                    let target = profile.names.intern(call.0);
                    here.add_target(at, target, call.1);
                }
            }
            _ => {
                let (name, total) =
                    split_number(rest, b':').ok_or_else(|| bad("sum is missing"))?;
                let name = profile.names.intern(name);
                here.inlinee(at, name).add_total(total);
                path.push((at, name));
            }
        }
    }
    close(&mut open, &mut profile);
    Ok(profile)
}

/// `name:3 name:4`; names may contain blanks and colons, so a call ends where a number follows a colon and a
/// blank follows the number.
fn calls(mut rest: &[u8]) -> Option<Vec<(&[u8], u64)>> {
    let mut calls = Vec::new();
    loop {
        rest = rest.trim_ascii_start();
        if rest.is_empty() {
            return Some(calls);
        }
        let mut at = 0;
        let (end, count) = loop {
            at += rest.get(at..)?.iter().position(|&byte| byte == b':')?;
            let digits = rest
                .iter()
                .skip(at + 1)
                .take_while(|byte| byte.is_ascii_digit())
                .count();
            let end = at + 1 + digits;
            if digits > 0 && rest.get(end).is_none_or(|&byte| byte == b' ') {
                break (end, decimal(rest.get(at + 1..end)?)?);
            }
            at += 1;
        };
        calls.push((rest.get(..at)?, count));
        rest = rest.get(end..)?;
    }
}

fn decimal(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn split_number(line: &[u8], separator: u8) -> Option<(&[u8], u64)> {
    let at = line.iter().rposition(|&byte| byte == separator)?;
    let (before, number) = split_around(line, at)?;
    Some((before, decimal(number.trim_ascii())?))
}

/// What is in front of the byte at a place, and what is after it.
fn split_around(line: &[u8], at: usize) -> Option<(&[u8], &[u8])> {
    Some((line.get(..at)?, line.get(at + 1..)?))
}

fn location(text: &[u8]) -> Option<Location> {
    let mut parts = text.splitn(2, |&byte| byte == b'.');
    let offset = u32::try_from(decimal(parts.next()?)?).ok()?;
    let discriminator = match parts.next() {
        Some(digits) => u32::try_from(decimal(digits)?).ok()?,
        None => 0,
    };
    Some(Location {
        offset,
        discriminator,
    })
}

/// A chain of callers as it is between brackets.
pub(crate) fn context_text(names: &Names, context: &Context) -> Vec<u8> {
    let mut out = Vec::new();
    if let Some((leaf, callers)) = context.split_last() {
        for step in callers {
            out.extend_from_slice(names.get(step.name));
            out.push(b':');
            // Writing to a vector does not fail.
            let _ = put_location(&mut out, step.at);
            out.extend_from_slice(b" @ ");
        }
        out.extend_from_slice(names.get(leaf.name));
    }
    out
}

/// `a:3 @ b:2.1 @ name`
pub(crate) fn context(mut text: &[u8], names: &mut Names) -> Option<Context> {
    let mut context = Vec::new();
    while let Some(at) = text.windows(3).position(|window| window == b" @ ") {
        let step = text.get(..at)?;
        let colon = step.iter().rposition(|&byte| byte == b':')?;
        let (name, place) = split_around(step, colon)?;
        context.push(Step {
            name: names.intern(name),
            at: location(place)?,
        });
        text = text.get(at + 3..)?;
    }
    context.push(Step {
        name: names.intern(text),
        at: Location::default(),
    });
    Some(context)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NESTED: &str = "main:184019:0\n 2.1: 15\n 4: 534 _Z3fooi:500 ns::bar:34\n 5: foo:424940\n  1: 15707\n  2: bar:7\n   1: 7\n   !CFGChecksum: 3\n  !CFGChecksum: 2\n  !Attributes: 1\n !CFGChecksum: 0\n";
    const TABLES: &str = "main:90:0\n 2.1: 15\n 2.1: vtables _ZTV1A:9 _ZTV1B:14 \n 5: foo:75\n  1: 15707\n  1: vtables _ZTV1A:3 \n 5: vtables _ZTV1C:1 \n";
    const CONTEXTS: &str = "[main:2 @ foo:8.1 @ bar]:28:14\n 1: 14\n 2: 14\n[main]:5:0\n 1: 5\n";

    fn again(text: &str) -> String {
        let mut out = Vec::new();
        write(&read(text.as_bytes()).unwrap(), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn what_is_read_is_written_again() {
        assert_eq!(again(NESTED), NESTED);
        assert_eq!(again(TABLES), TABLES);
        assert_eq!(again(CONTEXTS), CONTEXTS);
        assert_eq!(again(&format!("# comment\n\n{CONTEXTS}")), CONTEXTS);
    }

    #[test]
    fn broken_lines_are_named() {
        for (text, what) in [
            ("main:1\n", "line 1: sum is missing"),
            (" 1: 5\n", "line 1: a function must come first"),
            (
                "main:1:1\n   1: 5\n",
                "line 2: deeper than the line before allows",
            ),
            ("main:1:1\n x: 5\n", "line 2: location is broken"),
            ("main:1:1\n 1: 5 bar\n", "line 2: calls are broken"),
        ] {
            let error = read(text.as_bytes()).unwrap_err();
            assert!(error.what.starts_with(what), "{error}");
        }
    }

    #[test]
    fn arbitrary_text_is_read_or_refused() {
        arbtest::arbtest(|u| {
            let mut text = Vec::new();
            while !u.is_empty() && text.len() < 300 {
                let pieces: [&[u8]; 12] = [
                    b"\n",
                    b" ",
                    b"1",
                    b"2: ",
                    b"main",
                    b":",
                    b".",
                    b"[",
                    b"]",
                    b" @ ",
                    b"!CFGChecksum: ",
                    b"\n  3: f:4\n",
                ];
                text.extend(pieces[u.choose_index(12)?]);
            }
            if let Ok(profile) = read(&text) {
                let mut out = Vec::new();
                write(&profile, &mut out).unwrap();
            }
            Ok(())
        });
    }
}
