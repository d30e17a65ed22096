//! pprof's file: messages of `profile.proto`, compressed by gzip.
//!
//! A function that ran is a location at its first address, in the one mapping that is the program; a chain of callers
//! is a sample, the innermost function first. Values are executed instructions, and calls of the innermost function by
//! this chain (estimated).
//!
//! Source: <https://github.com/google/pprof/blob/main/proto/profile.proto>; the messages below have its names and
//! numbers, and only fields that are filled.

use std::collections::BTreeMap;
use std::io::Write;

use flate2::{Compression, GzBuilder};
use postlink_elf::raw::PF_X;
use prost::Message;

use crate::folded::missing;
use crate::stacks::{chain, stacks};
use crate::{Error, Export, Subject};

#[derive(Clone, PartialEq, Message)]
struct Profile {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "3")]
    mapping: Vec<Mapping>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, repeated, tag = "13")]
    comment: Vec<i64>,
    #[prost(int64, tag = "14")]
    default_sample_type: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    r#type: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Mapping {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    memory_start: u64,
    #[prost(uint64, tag = "3")]
    memory_limit: u64,
    #[prost(uint64, tag = "4")]
    file_offset: u64,
    #[prost(int64, tag = "5")]
    filename: i64,
    #[prost(bool, tag = "7")]
    has_functions: bool,
    #[prost(bool, tag = "8")]
    has_filenames: bool,
    #[prost(bool, tag = "9")]
    has_line_numbers: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    mapping_id: u64,
    #[prost(uint64, tag = "3")]
    address: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
    #[prost(int64, tag = "2")]
    line: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "3")]
    system_name: i64,
    #[prost(int64, tag = "4")]
    filename: i64,
    #[prost(int64, tag = "5")]
    start_line: i64,
}

/// Strings by their numbers; the first one is empty.
struct Strings {
    all: Vec<String>,
    of: BTreeMap<String, i64>,
}

impl Strings {
    fn new() -> Strings {
        Strings {
            all: vec![String::new()],
            of: BTreeMap::from([(String::new(), 0)]),
        }
    }

    fn number(&mut self, text: &str) -> i64 {
        if let Some(known) = self.of.get(text) {
            return *known;
        }
        let number = self.all.len() as i64;
        self.all.push(text.to_owned());
        self.of.insert(text.to_owned(), number);
        number
    }
}

/// The file.
pub fn pprof(subject: &Subject<'_, '_>) -> Result<Export, Error> {
    let nodes = stacks(subject.facts);
    let mut strings = Strings::new();
    let instructions = strings.number("instructions");
    let sample_type = ["calls", "instructions"]
        .map(|name| ValueType {
            r#type: strings.number(name),
            unit: strings.number("count"),
        })
        .to_vec();
    let mut used: Vec<u32> = vec![];
    let mut sample = vec![];
    for (at, node) in nodes.iter().enumerate().filter(|(_, node)| node.own > 0) {
        let functions = chain(&nodes, at);
        used.extend(&functions);
        sample.push(Sample {
            // Numbers begin with 1.
            location_id: functions.iter().rev().map(|f| u64::from(*f) + 1).collect(),
            value: vec![node.calls.round() as i64, signed(node.own)],
        });
    }
    used.sort_unstable();
    used.dedup();
    let (location, function) = used
        .iter()
        .map(|f| described(subject, *f, &mut strings))
        .unzip();
    let mapping = mapping(subject, &mut strings);
    let comment = subject
        .missing()
        .iter()
        .map(|text| strings.number(text))
        .collect();
    let profile = Profile {
        sample_type,
        sample,
        mapping: vec![mapping],
        location,
        function,
        comment,
        default_sample_type: instructions,
        string_table: strings.all,
    };
    let failed = |error: std::io::Error| Error::Writing {
        format: "pprof",
        why: error.to_string(),
    };
    // No time in the header: the same profile gives the same bytes.
    let mut gzip = GzBuilder::new()
        .mtime(0)
        .write(vec![], Compression::default());
    gzip.write_all(&profile.encode_to_vec()).map_err(failed)?;
    Ok(Export {
        bytes: gzip.finish().map_err(failed)?,
        missing: missing(subject),
    })
}

/// Counts are of 64 bits, pprof's of 63.
fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn described(subject: &Subject<'_, '_>, f: u32, strings: &mut Strings) -> (Location, Function) {
    let function = &subject.facts.functions[f as usize];
    let id = u64::from(f) + 1;
    let source = subject.lines.ok().and_then(|lines| {
        let (file, line) = lines.at(f as usize, function.start())?;
        Some((lines.files.get(file as usize)?.as_str(), i64::from(line)))
    });
    let (file, line) = source.unwrap_or_default();
    let location = Location {
        id,
        mapping_id: 1,
        address: function.start(),
        line: vec![Line {
            function_id: id,
            line,
        }],
    };
    let function = Function {
        id,
        name: strings.number(&(subject.demangle)(&function.name)),
        system_name: strings.number(&function.name),
        filename: strings.number(file),
        start_line: line,
    };
    (location, function)
}

/// The program's code, at its addresses in the file.
fn mapping(subject: &Subject<'_, '_>, strings: &mut Strings) -> Mapping {
    let code = subject
        .elf
        .loads()
        .filter(|segment| segment.flags & PF_X != 0);
    let (mut start, mut limit, mut offset) = (u64::MAX, 0, 0);
    for segment in code {
        if segment.addr < start {
            (start, offset) = (segment.addr, segment.offset);
        }
        limit = limit.max(segment.addr.saturating_add(segment.mem_size));
    }
    Mapping {
        id: 1,
        memory_start: start.min(limit),
        memory_limit: limit,
        file_offset: offset,
        filename: strings.number(subject.path),
        has_functions: true,
        has_filenames: subject.lines.is_ok(),
        has_line_numbers: subject.lines.is_ok(),
    }
}
