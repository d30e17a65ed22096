//! Pre-aggregated text: branches and runs that were counted before BOLT sees them (`perf2bolt -pa`).
//!
//! One record a line, fields separated by a space:
//!
//! | record | fields | BOLT reads it since | |
//! |---|---|---|---|
//! | `B` | from to count mispredictions | 19 | taken branch |
//! | `F` | start end count | 19 | run between two taken branches |
//! | `f` | start end count | 19 | the same; the first branch came from outside |
//! | `E` | name | 20 | the sampled event |
//! | `S` | address count | 20 | basic sample |
//! | `T` | from start end count | 20 | branch and the run after it |
//! | `R` | as `T` | 21 | the same; the branch is a return |
//! | `r` | start end count | 21 | `f` after a return from outside |
//!
//! An address is hexadecimal without prefix: of the binary as linked. `BUILDID:ADDRESS` is in another module,
//! `X:ADDRESS` is outside of all. In `T` and `R` an address of all ones says that the part is not there: no
//! run, or as the branch no known one (…ffff), one from outside (…fffe), a return from outside (…fffd).
//!
//! Here `T` and `R` may tell of mispredictions after the count, which BOLT 22 takes for an error: those that a `T` or
//! `R` has are written as a `B` of no count.
//!
//! BOLT ignores build-ids and takes every address for one of the binary at hand. Here they are kept, as
//! [`Module::build_id`]; the caller decides which modules are his.

use std::io::Write;
use std::path::Path;

use rayon::prelude::*;
use rustc_hash::FxHashMap;

use crate::Error;
use crate::address::{
    AddressKind, AddressProfile, Collector, Counts, Module, ModuleId, Origin, Place, Trace,
};
use crate::source::{self, Bad, Source, quote};

/// No run, or no known branch.
const NONE: u64 = u64::MAX;
/// A branch from outside.
const EXTERNAL: u64 = u64::MAX - 1;
/// A return from outside.
const EXTERNAL_RETURN: u64 = u64::MAX - 2;

/// Reads a file.
pub fn read(path: &Path) -> Result<AddressProfile, Error> {
    let source = Source::open(path)?;
    parse(&source).map_err(|bad| bad.locate(path, &source))
}

/// Reads a text; `name` is what errors call it.
pub fn read_bytes(name: &Path, text: &[u8]) -> Result<AddressProfile, Error> {
    parse(text).map_err(|bad| bad.locate(name, text))
}

fn parse(text: &[u8]) -> Result<AddressProfile, Bad> {
    source::split_lines(text, source::piece_count())
        .into_par_iter()
        .map(|(at, piece)| parse_piece(piece).map_err(|bad| bad.shift(at)))
        .try_reduce(AddressProfile::default, |a, b| Ok(a.merge(b)))
}

/// What the parser knows so far.
#[derive(Default)]
struct Parser<'a> {
    modules: Vec<Module>,
    numbers: FxHashMap<&'a [u8], ModuleId>,
}

fn parse_piece(text: &[u8]) -> Result<AddressProfile, Bad> {
    // The binary itself is module 0.
    let mut parser = Parser {
        modules: vec![Module::default()],
        ..Parser::default()
    };
    let mut out = Collector::default();
    for (at, line) in source::lines(text) {
        if line.is_empty() {
            continue;
        }
        out.statistics.records += 1;
        parser.line(line, &mut out).map_err(|what| {
            let hint = if line.ends_with(b"\r") {
                " (lines must end with \\n, not \\r\\n)"
            } else {
                ""
            };
            Bad::new(at, format!("{what}{hint}: {}", quote(line)))
        })?;
    }
    Ok(out.finish(&parser.modules))
}

impl<'a> Parser<'a> {
    fn line(&mut self, line: &'a [u8], out: &mut Collector) -> Result<(), String> {
        let mut fields = line
            .split(|&byte| byte == b' ')
            .filter(|field| !field.is_empty());
        let kind = fields.next().unwrap_or_default();
        match kind {
            b"B" => {
                let (from, to) = (self.place(fields.next())?, self.place(fields.next())?);
                let counts = Counts {
                    count: number(fields.next(), "count")?,
                    mispredictions: number(fields.next(), "misprediction count")?,
                };
                out.trace(
                    Trace {
                        origin: Origin::Branch(from),
                        start: to,
                        end: None,
                    },
                    counts,
                );
            }
            b"F" | b"f" | b"r" => {
                let (start, end) = (self.place(fields.next())?, self.place(fields.next())?);
                let count = number(fields.next(), "count")?;
                let origin = match kind {
                    b"F" => Origin::Unknown,
                    b"f" => Origin::External,
                    _ => Origin::ExternalReturn,
                };
                self.run(
                    origin,
                    start,
                    Some(end),
                    Counts {
                        count,
                        mispredictions: 0,
                    },
                    out,
                );
            }
            b"T" | b"R" => {
                let (from, start, end) = (
                    self.place(fields.next())?,
                    self.place(fields.next())?,
                    self.place(fields.next())?,
                );
                let count = number(fields.next(), "count")?;
                let mispredictions = match fields.next() {
                    Some(field) => number(Some(field), "misprediction count")?,
                    None => 0,
                };
                let origin = match from.address {
                    NONE => Origin::Unknown,
                    EXTERNAL => Origin::External,
                    EXTERNAL_RETURN => Origin::ExternalReturn,
                    _ if kind == b"R" => Origin::Return(from),
                    _ => Origin::Branch(from),
                };
                let end = (end.address != NONE).then_some(end);
                self.run(
                    origin,
                    start,
                    end,
                    Counts {
                        count,
                        mispredictions,
                    },
                    out,
                );
            }
            b"S" => {
                let place = self.place(fields.next())?;
                let count = number(fields.next(), "count")?;
                out.sample(place, count);
                out.statistics.samples = out.statistics.samples.saturating_add(count);
            }
            b"E" => {
                let name = fields
                    .next()
                    .ok_or("expected the name of an event, found the end of the line")?;
                out.events.insert(name.to_vec());
            }
            _ => {
                return Err(format!(
                    "expected a record B, E, F, f, R, r, S or T, found {}",
                    quote(kind)
                ));
            }
        }
        match fields.next() {
            None => Ok(()),
            Some(extra) => Err(format!("{} after the end of the record", quote(extra))),
        }
    }

    /// A run that may turn out to be none.
    fn run(
        &mut self,
        origin: Origin,
        start: Place,
        end: Option<Place>,
        counts: Counts,
        out: &mut Collector,
    ) {
        let valid = end.filter(|end| end.module == start.module && end.address >= start.address);
        if let Some(end) = end.filter(|_| valid.is_none()) {
            out.statistics.mismatched = out.statistics.mismatched.saturating_add(counts.count);
            if end.module == start.module && !start.is_outside() {
                out.backward(start, end.address, counts.count);
            }
            if !matches!(origin, Origin::Branch(_) | Origin::Return(_)) {
                return;
            }
        }
        out.trace(
            Trace {
                origin,
                start,
                end: valid.map(|end| end.address),
            },
            counts,
        );
    }

    fn place(&mut self, field: Option<&'a [u8]>) -> Result<Place, String> {
        let wrong = || match field {
            None => "expected an address, found the end of the line".to_owned(),
            Some(field) => format!(
                "expected an address (hexadecimal without 0x, with BUILDID: or X: before it or not), found {}",
                quote(field)
            ),
        };
        let field = field.ok_or_else(wrong)?;
        let (module, address) = match field.iter().position(|&byte| byte == b':') {
            None => (ModuleId(0), field),
            Some(at) => {
                let address = &field[at + 1..];
                match &field[..at] {
                    b"X" => (ModuleId::NONE, address),
                    b"" => (ModuleId(0), address),
                    id => (self.module(id).ok_or_else(wrong)?, address),
                }
            }
        };
        let address = source::hex(address).ok_or_else(wrong)?;
        Ok(if module == ModuleId::NONE {
            Place::OUTSIDE
        } else {
            Place { module, address }
        })
    }

    fn module(&mut self, id: &'a [u8]) -> Option<ModuleId> {
        if let Some(&number) = self.numbers.get(id) {
            return Some(number);
        }
        let build_id = id
            .chunks(2)
            .map(|pair| {
                source::hex(pair)
                    .filter(|_| pair.len() == 2)
                    .map(|byte| byte as u8)
            })
            .collect::<Option<_>>()?;
        let number = ModuleId(self.modules.len() as u32);
        self.modules.push(Module {
            path: Vec::new(),
            build_id,
            kind: AddressKind::LinkTime,
        });
        self.numbers.insert(id, number);
        Some(number)
    }
}

fn number(field: Option<&[u8]>, what: &str) -> Result<u64, String> {
    field.and_then(source::decimal).ok_or_else(|| {
        let found = field.map_or_else(|| "the end of the line".to_owned(), quote);
        format!("expected a {what} (decimal, below 2^64), found {found}")
    })
}

/// For which BOLT a text is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// `B`, `F` and `f` alone: every version. Samples cannot be written.
    V19,
    /// All records.
    V22,
}

/// Writes the records of one module and the branches between it and the outside. `translate` gives the
/// link-time address of a place in it, `None` for places that are outside of it.
pub fn write_to(
    out: &mut impl Write,
    profile: &AddressProfile,
    dialect: Dialect,
    translate: impl Fn(Place) -> Option<u64>,
) -> std::io::Result<()> {
    // First all that is outside becomes one place, so that no two lines are of the same record.
    let profile = &profile.of_binary(translate);
    let translate = |place: Place| (!place.is_outside()).then_some(place.address);
    // There is no word for "outside" that every version reads: 0 is in no function.
    if dialect == Dialect::V19 {
        for ((from, to), counts) in profile.branches() {
            let (from, to) = (translate(from), translate(to));
            if from.is_some() || to.is_some() {
                writeln!(
                    out,
                    "B {:x} {:x} {} {}",
                    from.unwrap_or(0),
                    to.unwrap_or(0),
                    counts.count,
                    counts.mispredictions
                )?;
            }
        }
        for ((start, end, external), counts) in profile.fall_throughs() {
            if let (Some(start_at), Some(end_at)) = (
                translate(start),
                translate(Place {
                    address: end,
                    ..start
                }),
            ) {
                writeln!(
                    out,
                    "{} {start_at:x} {end_at:x} {}",
                    if external { 'f' } else { 'F' },
                    counts.count
                )?;
            }
        }
        return Ok(());
    }
    for event in &profile.events {
        out.write_all(b"E ")?;
        out.write_all(event)?;
        out.write_all(b"\n")?;
    }
    for (trace, counts) in profile.traces() {
        let start = translate(trace.start);
        let end = trace.end.and_then(|address| {
            translate(Place {
                address,
                ..trace.start
            })
        });
        let (letter, from) = match trace.origin {
            Origin::Branch(from) => ('T', from),
            Origin::Return(from) => ('R', from),
            Origin::Unknown | Origin::External | Origin::ExternalReturn => {
                if let (Some(start), Some(end)) = (start, end) {
                    let letter = match trace.origin {
                        Origin::External => 'f',
                        Origin::ExternalReturn => 'r',
                        _ => 'F',
                    };
                    writeln!(out, "{letter} {start:x} {end:x} {}", counts.count)?;
                }
                continue;
            }
        };
        let from = translate(from);
        if from.is_none() && start.is_none() {
            continue;
        }
        let (from, start) = (from.unwrap_or(0), start.unwrap_or(0));
        if letter == 'T' && end.is_none() {
            writeln!(
                out,
                "B {from:x} {start:x} {} {}",
                counts.count, counts.mispredictions
            )?;
            continue;
        }
        writeln!(
            out,
            "{letter} {from:x} {start:x} {:x} {}",
            end.unwrap_or(NONE),
            counts.count
        )?;
        if counts.mispredictions > 0 {
            writeln!(out, "B {from:x} {start:x} 0 {}", counts.mispredictions)?;
        }
    }
    for &(place, count) in profile.samples() {
        if let Some(address) = translate(place) {
            writeln!(out, "S {address:x} {count}")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use arbtest::arbitrary::{Result, Unstructured};

    fn parsed(text: &str) -> AddressProfile {
        read_bytes(Path::new("x.preagg"), text.as_bytes()).unwrap()
    }

    fn text(profile: &AddressProfile, dialect: Dialect) -> String {
        let mut out = Vec::new();
        write_to(&mut out, profile, dialect, |place| {
            (!place.is_outside()).then_some(place.address)
        })
        .unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn every_record_is_read() {
        let profile = parsed(
            "E cycles\nB 10 20 3 1\nF 20 30 4\nf 40 50 5\nr 40 58 6\nT 10 20 30 7\nT 10 20 30 1 1\nR 30 60 ffffffffffffffff 8\nT fffffffffffffffe 70 80 9\nS 20 2\nS 20 3\n",
        );
        let place = |address| Place {
            module: ModuleId(0),
            address,
        };
        let counts = |count, mispredictions| Counts {
            count,
            mispredictions,
        };
        let trace = |origin, start, end| Trace {
            origin,
            start: place(start),
            end,
        };
        assert_eq!(
            profile.traces().iter().collect::<Vec<_>>(),
            [
                (trace(Origin::Branch(place(0x10)), 0x20, None), counts(3, 1)),
                (
                    trace(Origin::Branch(place(0x10)), 0x20, Some(0x30)),
                    counts(8, 1)
                ),
                (trace(Origin::Return(place(0x30)), 0x60, None), counts(8, 0)),
                (trace(Origin::Unknown, 0x20, Some(0x30)), counts(4, 0)),
                (trace(Origin::External, 0x40, Some(0x50)), counts(5, 0)),
                (trace(Origin::External, 0x70, Some(0x80)), counts(9, 0)),
                (
                    trace(Origin::ExternalReturn, 0x40, Some(0x58)),
                    counts(6, 0)
                ),
            ]
        );
        assert_eq!(profile.samples(), [(place(0x20), 5)]);
        assert!(profile.events.contains(&b"cycles"[..]));
        assert_eq!(
            text(&profile, Dialect::V19),
            "B 10 20 11 2\nB 30 60 8 0\nF 20 30 12\nf 40 50 5\nf 40 58 6\nf 70 80 9\n"
        );
    }

    #[test]
    fn mispredictions_of_a_branch_with_its_run_are_written_as_perf2bolt_22_reads_them() {
        let profile = parsed("T 10 20 30 8 1\nT 10 40 50 2\n");
        let written = text(&profile, Dialect::V22);
        assert_eq!(written, "T 10 20 30 8\nB 10 20 0 1\nT 10 40 50 2\n");
        let again = parsed(&written);
        assert_eq!(again.branches(), profile.branches());
        assert_eq!(again.fall_throughs(), profile.fall_throughs());
    }

    #[test]
    fn build_ids_and_the_outside_are_kept_apart() {
        let profile =
            parsed("B dead:10 20 3 1\nB X:0 20 1 0\nB X:5 X:6 1 0\nB 20 X:7 2 0\nF :20 30 1\n");
        assert_eq!(profile.modules().len(), 2);
        assert_eq!(profile.modules()[1].build_id, [0xde, 0xad]);
        assert_eq!(profile.branches().len(), 3);
        assert_eq!(profile.branches()[0].0.1, Place::OUTSIDE);
        assert!(
            profile
                .branches()
                .iter()
                .any(|(key, counts)| key.0 == Place::OUTSIDE && counts.count == 1)
        );
    }

    #[test]
    fn records_that_differ_in_places_outside_the_binary_are_one_line() {
        let profile = parsed("B dead:10 20 3 1\nB beef:18 20 4 0\nB X:0 20 1 0\n");
        let mut out = Vec::new();
        write_to(&mut out, &profile, Dialect::V22, |place| {
            (place.module == ModuleId(0)).then_some(place.address)
        })
        .unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "B 0 20 8 1\n");
    }

    #[test]
    fn runs_that_go_backwards_are_counted_and_left_out() {
        let profile = parsed("F 30 20 4\nT 10 30 20 2\n");
        assert_eq!(profile.statistics.mismatched, 6);
        assert_eq!(profile.fall_throughs(), []);
        assert_eq!(profile.branches().len(), 1);
        let start = Place {
            module: ModuleId(0),
            address: 0x30,
        };
        assert_eq!(profile.backward(), [((start, 0x20), 6)]);
        let twice = profile.clone().merge(profile.clone());
        assert_eq!(twice.backward(), [((start, 0x20), 12)]);
        let of_binary = profile
            .of_binary(|place| Some(place.address + 8))
            .backward()
            .to_vec();
        let moved = Place {
            address: 0x38,
            ..start
        };
        assert_eq!(of_binary, [((moved, 0x28), 6)]);
    }

    #[test]
    fn wrong_records_are_errors_with_their_line() {
        let error = |text: &str| {
            read_bytes(Path::new("x"), text.as_bytes())
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            error("F 1 2 3\nQ 1 2\n"),
            "x:2: expected a record B, E, F, f, R, r, S or T, found \"Q\": \"Q 1 2\""
        );
        assert!(error("B 0x1 2 3 4\n").contains("found \"0x1\""));
        assert!(error("B 1 2 3\n").contains(
            "expected a misprediction count (decimal, below 2^64), found the end of the line"
        ));
        assert!(error("F 1 2 3 4\n").contains("\"4\" after the end"));
        assert!(error("F g1:1 2 3\n").contains("found \"g1:1\""));
        assert!(error("F abc:1 2 3\n").contains("found \"abc:1\""));
    }

    fn arbitrary_text(u: &mut Unstructured<'_>) -> Result<String> {
        let mut out = String::new();
        for _ in 0..u.int_in_range(0..=20)? {
            let address = |u: &mut Unstructured<'_>| -> Result<String> {
                let number = u.int_in_range(0..=6u64)? * 0x10;
                Ok(match u.int_in_range(0..=9)? {
                    0 => format!("X:{number:x}"),
                    1 => format!("ab12:{number:x}"),
                    2 => format!("{:x}", u64::MAX - number / 0x10),
                    _ => format!("{number:x}"),
                })
            };
            let (a, b, c) = (address(u)?, address(u)?, address(u)?);
            let count = if u.ratio(1, 5)? {
                u.arbitrary::<u64>()?
            } else {
                u.int_in_range(0..=9)?
            };
            out += &match u.int_in_range(0..=7)? {
                0 => format!("B {a} {b} {count} 1\n"),
                1 => format!("F {a} {b} {count}\n"),
                2 => format!("f {a} {b} {count}\n"),
                3 => format!("r {a} {b} {count}\n"),
                4 => format!("R {a} {b} {c} {count}\n"),
                5 => format!("S {a} {count}\n"),
                6 => format!("E event{count}\n"),
                _ => format!("T {a} {b} {c} {count} 2\n"),
            };
        }
        Ok(out)
    }

    #[test]
    fn merge_is_a_commutative_monoid() {
        arbtest::arbtest(|u| {
            let [a, b, c] = [arbitrary_text(u)?, arbitrary_text(u)?, arbitrary_text(u)?]
                .map(|text| (parsed(&text), text));
            let left = a.0.clone().merge(b.0.clone()).merge(c.0.clone());
            assert_eq!(left, c.0.clone().merge(a.0.clone()).merge(b.0.clone()));
            assert_eq!(left, a.0.clone().merge(b.0.merge(c.0)));
            assert_eq!(left.clone().merge(AddressProfile::default()), left);
            assert_eq!(left, parsed(&(c.1 + &b.1 + &a.1)));
            Ok(())
        });
    }

    #[test]
    fn any_bytes_are_read_or_refused_and_what_is_written_is_read_back() {
        arbtest::arbtest(|u| {
            let mut bytes = arbitrary_text(u)?.into_bytes();
            for _ in 0..u.int_in_range(0..=3)? {
                if !bytes.is_empty() {
                    let at = u.choose_index(bytes.len())?;
                    bytes[at] = u.arbitrary()?;
                }
            }
            if let Ok(profile) = read_bytes(Path::new("x"), &bytes) {
                for dialect in [Dialect::V19, Dialect::V22] {
                    let mut out = Vec::new();
                    let translate = |place: Place| {
                        (place.module == ModuleId(0)).then_some(place.address & 0xffff)
                    };
                    write_to(&mut out, &profile, dialect, translate).unwrap();
                    read_bytes(Path::new("y"), &out).unwrap();
                }
            }
            let any: Vec<u8> = u.arbitrary()?;
            let _ = read_bytes(Path::new("x"), &any);
            Ok(())
        });
    }
}
