//! Files that say in which order functions should be: lists of symbols, and LLVM's temporal profiles.
//!
//! A list has a symbol a line, as lld's `--symbol-ordering-file` reads it and `llvm-profdata order` and postlink write
//! it. `#` begins a comment at the start of a line or behind a blank.
//!
//! A temporal profile has *traces*: functions in the order of their first calls in a run. `llvm-profdata merge --text`
//! writes it; of that text, these lines are read, and comments and empty ones left out:
//!
//! | line | |
//! |---|---|
//! | `:ir`, `:fe`, … | what the profile is of; not needed |
//! | `:temporal_prof_traces` | the traces follow |
//! | number | of traces |
//! | number | of runs that traces were taken of; some may have been left out |
//! | for each trace: number, then names with commas | weight, functions |
//!
//! What comes after, counts of functions, is not an order. The binary form (`.profdata`) names functions by hashes and
//! is refused with the command that makes it a text.
//!
//! Source: LLVM's command guide on `llvm-profdata`, and what version 22 writes.

use std::path::Path;

use crate::Error;
use crate::source::{self, Bad, Source, quote};

/// Functions in the order of their first calls in a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// For how many runs it stands.
    pub weight: u64,
    /// Functions, by number.
    pub functions: Vec<u32>,
}

/// What a file says of the order of functions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Orders {
    /// An order: names of symbols.
    List(Vec<String>),
    /// Runs that an order can be made of.
    Traces {
        /// Names of functions.
        names: Vec<String>,
        /// The runs.
        traces: Vec<Trace>,
    },
}

/// Reads a file.
pub fn read(path: &Path) -> Result<Orders, Error> {
    read_bytes(path, &Source::open(path)?)
}

/// Reads the contents of a file; `name` is what errors call it.
pub fn read_bytes(name: &Path, bytes: &[u8]) -> Result<Orders, Error> {
    if bytes.starts_with(b"\xfflprofi\x81") || bytes.starts_with(b"\x81iforpl\xff") {
        return Err(Error::at_byte(
            name,
            0,
            format!(
                "a profile in LLVM's binary form: llvm-profdata merge --text {} makes a text of it, with names and traces",
                name.display()
            ),
        ));
    }
    parse(bytes).map_err(|bad| bad.locate(name, bytes))
}

/// What is left of a line.
fn content(line: &[u8]) -> &[u8] {
    let comment = (0..line.len())
        .find(|&at| line[at] == b'#' && (at == 0 || line[at - 1].is_ascii_whitespace()));
    line[..comment.unwrap_or(line.len())].trim_ascii()
}

fn text(at: usize, bytes: &[u8]) -> Result<String, Bad> {
    let text = String::from_utf8(bytes.to_vec());
    text.map_err(|_| Bad::new(at, format!("{} is not UTF-8", quote(bytes))))
}

fn parse(bytes: &[u8]) -> Result<Orders, Bad> {
    let mut lines = source::lines(bytes)
        .map(|(at, line)| (at, content(line)))
        .filter(|(_, line)| !line.is_empty())
        .peekable();
    // Names of symbols do not begin with a colon.
    let mut is_profile = false;
    while let Some((_, header)) = lines.next_if(|(_, line)| line.starts_with(b":")) {
        is_profile = true;
        if header == b":temporal_prof_traces" {
            return traces(&mut lines, bytes.len());
        }
    }
    if is_profile {
        return Err(Bad::new(
            0,
            "a profile of LLVM without temporal traces says nothing of an order: -mllvm -pgo-temporal-instrumentation records them",
        ));
    }
    let list = lines.map(|(at, line)| text(at, line));
    Ok(Orders::List(list.collect::<Result<_, _>>()?))
}

fn traces<'a>(
    lines: &mut impl Iterator<Item = (usize, &'a [u8])>,
    end: usize,
) -> Result<Orders, Bad> {
    let mut next = |what: &str| {
        lines
            .next()
            .ok_or_else(|| Bad::new(end, format!("expected {what}, found the end of the file")))
    };
    let number = |(at, line): (usize, &[u8]), what: &str| {
        source::decimal(line)
            .ok_or_else(|| Bad::new(at, format!("expected {what}, found {}", quote(line))))
    };
    let many = number(next("the number of traces")?, "the number of traces")?;
    number(next("the number of runs")?, "the number of runs")?;
    let mut names: Vec<String> = Vec::new();
    let mut numbers = rustc_hash::FxHashMap::default();
    let mut traces = Vec::new();
    for _ in 0..many {
        let weight = number(next("the weight of a trace")?, "the weight of a trace")?;
        let (at, line) = next("the functions of a trace")?;
        let mut functions = Vec::new();
        for name in line.split(|&byte| byte == b',') {
            let name = name.trim_ascii();
            if name.is_empty() {
                continue;
            }
            let number = match numbers.get(name) {
                Some(&known) => known,
                None => {
                    // A file has fewer than 2³² names.
                    let new = names.len() as u32;
                    names.push(text(at, name)?);
                    numbers.insert(name, new);
                    new
                }
            };
            functions.push(number);
        }
        traces.push(Trace { weight, functions });
    }
    Ok(Orders::Traces { names, traces })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Orders, String> {
        read_bytes(Path::new("order"), text.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_list_is_read_as_lld_reads_it() {
        let text = "# Ordered 3 functions\nmain\n\n  _ZN1aC2Ev \nf/1(*2)  # twice\n#g\r\nh#i\n";
        let names = ["main", "_ZN1aC2Ev", "f/1(*2)", "h#i"];
        assert_eq!(
            read(text),
            Ok(Orders::List(names.map(str::to_owned).to_vec()))
        );
        assert_eq!(read(""), Ok(Orders::List(vec![])));
    }

    const TRACES: &str = "# IR level Instrumentation Flag\n:ir\n:temporal_prof_traces\n# Num Temporal Profile Traces:\n2\n# Temporal Profile Trace Stream Size:\n3\n# Weight:\n1\na,b,c,\n# Weight:\n2\nc,d,a\n\na\n# Func Hash:\n4660\n";

    #[test]
    fn traces_are_read_and_what_follows_is_not_needed() {
        let trace = |weight, functions: &[u32]| Trace {
            weight,
            functions: functions.to_vec(),
        };
        let expected = Orders::Traces {
            names: ["a", "b", "c", "d"].map(str::to_owned).to_vec(),
            traces: vec![trace(1, &[0, 1, 2]), trace(2, &[2, 3, 0])],
        };
        assert_eq!(read(TRACES), Ok(expected));
    }

    #[test]
    fn errors_name_the_line_and_what_is_there() {
        let said = read(&TRACES.replace("\n2\nc,d,a", "\ntwo\nc,d,a")).unwrap_err();
        assert_eq!(
            said,
            "order:12: expected the weight of a trace, found \"two\""
        );
        let said =
            read(&TRACES.replace("Traces:\n2\n", "Traces:\n99999999999999999999\n")).unwrap_err();
        assert!(
            said.starts_with("order:5: expected the number of traces"),
            "{said}"
        );
        let said = read(":temporal_prof_traces\n7\n7\n1\na\n").unwrap_err();
        assert_eq!(
            said,
            "order:6: expected the weight of a trace, found the end of the file"
        );
        let said = read(":ir\nmain\n").unwrap_err();
        assert!(said.contains("without temporal traces"), "{said}");
        let said = read_bytes(Path::new("x"), b"\xfflprofi\x81\x0d")
            .unwrap_err()
            .to_string();
        assert!(said.contains("llvm-profdata merge --text x"), "{said}");
        let said = read_bytes(Path::new("x"), b"a\n\xff\n")
            .unwrap_err()
            .to_string();
        assert_eq!(said, "x:2: \"\\xff\" is not UTF-8");
    }
}
