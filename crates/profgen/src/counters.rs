//! What samples amount to, before anything is looked up: how often control ran from one instruction to
//! another, and how often it branched from one to another.
//!
//! # Raw profiles
//!
//! The counters as text, so that looking up can be done later or elsewhere. Addresses are hexadecimal and
//! relative to a base.
//!
//! | line | content |
//! |---|---|
//! | `[a:1 @ b]` | chain of callers, in context-sensitive files |
//! | `3` | number of runs; then so many lines `first-last:count`, both ends being instructions |
//! | `2` | number of branches; then so many lines `from->to:count` |

use std::collections::BTreeMap;
use std::io::{self, Write};

use rustc_hash::FxHashMap;

use crate::FormatError;

/// Runs and branches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// (first, last instruction) to count.
    pub runs: FxHashMap<(u64, u64), u64>,
    /// (from, to) to count; one of them may be [`EXTERNAL`](crate::program::EXTERNAL).
    pub branches: FxHashMap<(u64, u64), u64>,
}

fn add(counts: &mut FxHashMap<(u64, u64), u64>, key: (u64, u64), count: u64) {
    let sum = counts.entry(key).or_default();
    *sum = sum.saturating_add(count);
}

impl Counters {
    /// Counts a run.
    pub fn run(&mut self, first: u64, last: u64, count: u64) {
        add(&mut self.runs, (first, last), count);
    }

    /// Counts a branch.
    pub fn branch(&mut self, from: u64, to: u64, count: u64) {
        add(&mut self.branches, (from, to), count);
    }

    /// Adds other counters.
    pub fn absorb(&mut self, other: Counters) {
        other
            .runs
            .into_iter()
            .for_each(|(key, count)| add(&mut self.runs, key, count));
        other
            .branches
            .into_iter()
            .for_each(|(key, count)| add(&mut self.branches, key, count));
    }

    /// Runs cut at each other's ends: they no longer overlap, and counts add up. Those that nothing was
    /// counted for are kept.
    pub fn disjoint(&self) -> Vec<((u64, u64), u64)> {
        /// What begins and ends at an address: the counts, and the number of runs.
        #[derive(Default)]
        struct Point {
            begin: (u128, u64),
            end: (u128, u64),
        }
        let mut points: BTreeMap<u64, Point> = BTreeMap::new();
        for (&(first, last), &count) in &self.runs {
            let begin = &mut points.entry(first).or_default().begin;
            *begin = (begin.0 + u128::from(count), begin.1 + 1);
            let end = &mut points.entry(last).or_default().end;
            *end = (end.0 + u128::from(count), end.1 + 1);
        }
        let mut disjoint = Vec::new();
        let (mut count, mut alive) = (0u128, 0u64);
        // Where the piece at hand starts.
        let mut start: Option<u64> = None;
        let clamp = |count: u128| u64::try_from(count).unwrap_or(u64::MAX);
        for (&address, point) in &points {
            if point.begin.1 > 0 {
                if let Some(from) = start
                    && alive > 0
                    && from < address
                {
                    disjoint.push(((from, address - 1), clamp(count)));
                }
                count += point.begin.0;
                alive += point.begin.1;
                start = Some(address);
            }
            if point.end.1 > 0 {
                if let Some(from) = start
                    && alive > 0
                {
                    disjoint.push(((from, address), clamp(count)));
                }
                count = count.saturating_sub(point.end.0);
                alive = alive.saturating_sub(point.end.1);
                start = (alive > 0).then(|| address.saturating_add(1));
            }
        }
        disjoint
    }

    /// Writes a raw profile. `base` is subtracted from addresses.
    pub fn write(&self, base: u64, indent: &str, out: &mut impl Write) -> io::Result<()> {
        let sorted = |counts: &FxHashMap<(u64, u64), u64>| {
            let mut all: Vec<_> = counts.iter().map(|(key, count)| (*key, *count)).collect();
            all.sort_unstable();
            all
        };
        for (counts, between) in [(sorted(&self.runs), "-"), (sorted(&self.branches), "->")] {
            writeln!(out, "{indent}{}", counts.len())?;
            for ((a, b), count) in counts {
                let (a, b) = (a.wrapping_sub(base), b.wrapping_sub(base));
                writeln!(out, "{indent}{a:x}{between}{b:x}:{count}")?;
            }
        }
        Ok(())
    }
}

/// A part of a raw profile: the text of its chain of callers, if the file has chains, and its counters.
pub type RawPart = (Option<Vec<u8>>, Counters);

/// Reads a raw profile: chains of callers, and the counters of each. A file without chains has one, which is
/// `None`. `base` is added to addresses.
///
/// # Errors
/// A line that is none of a raw profile's, with its number.
pub fn read_raw_counters(text: &[u8], base: u64) -> Result<Vec<RawPart>, FormatError> {
    let mut lines = text
        .split(|&byte| byte == b'\n')
        .map(<[u8]>::trim_ascii)
        .zip(1..)
        .filter(|(line, _)| line.first().is_some_and(|&byte| byte != b';'))
        .peekable();
    let bad = |number: u64, line: &[u8]| {
        let shown = crate::beginning(line);
        FormatError::new(format!("Invalid raw profile at line {number}: {shown}")).at_line(number)
    };
    let mut all = Vec::new();
    while let Some((line, _)) = lines.peek() {
        let mut chain = None;
        if let Some(inner) = line
            .strip_prefix(b"[")
            .and_then(|line| line.strip_suffix(b"]"))
        {
            chain = Some(inner.to_vec());
            lines.next();
        }
        let mut counters = Counters::default();
        for between in [&b"-"[..], b"->"] {
            let (line, number) = lines
                .next()
                .ok_or_else(|| FormatError::new("Invalid raw profile!"))?;
            let count: u64 = parse(line, 10).ok_or_else(|| bad(number, line))?;
            for _ in 0..count {
                let (line, number) = lines
                    .next()
                    .ok_or_else(|| FormatError::new("Invalid raw profile!"))?;
                let entry = || {
                    let colon = line.iter().rposition(|&byte| byte == b':')?;
                    let at = line
                        .windows(between.len())
                        .position(|window| window == between)?;
                    let a = parse(line.get(..at)?, 16)?;
                    let b = parse(line.get(at + between.len()..colon)?, 16)?;
                    Some((
                        a.wrapping_add(base),
                        b.wrapping_add(base),
                        parse(line.get(colon + 1..)?, 10)?,
                    ))
                };
                let (a, b, n) = entry().ok_or_else(|| bad(number, line))?;
                match between.len() {
                    1 => counters.run(a, b, n),
                    _ => counters.branch(a, b, n),
                }
            }
        }
        all.push((chain, counters));
    }
    Ok(all)
}

pub(crate) fn parse(digits: &[u8], radix: u32) -> Option<u64> {
    let digits = std::str::from_utf8(digits).ok()?;
    if digits.starts_with('+') {
        return None;
    }
    u64::from_str_radix(digits, radix).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::EXTERNAL;

    #[test]
    fn overlapping_runs_are_cut_at_each_others_ends() {
        let mut counters = Counters::default();
        counters.run(10, 20, 5);
        counters.run(15, 30, 2);
        counters.run(40, 40, 1);
        counters.run(10, 40, 0);
        assert_eq!(
            counters.disjoint(),
            [
                ((10, 14), 5),
                ((15, 20), 7),
                ((21, 30), 2),
                ((31, 39), 0),
                ((40, 40), 1)
            ]
        );
    }

    #[test]
    fn raw_profiles_are_read_as_they_were_written() {
        let mut counters = Counters::default();
        counters.run(0x1010, 0x1020, 5);
        counters.branch(0x1020, 0x1010, 3);
        counters.branch(EXTERNAL, 0x1010, 3);
        let mut text = Vec::new();
        counters.write(0x1000, "", &mut text).unwrap();
        assert_eq!(
            read_raw_counters(&text, 0x1000).unwrap(),
            [(None, counters)]
        );
        for cut in [
            "2\n1-2:3\n",
            "1\n1-2\n0\n",
            "1\nx-2:1\n0\n",
            "1\n1-2:1\n1\n1-2:3\n",
            "99999999999999999999\n",
        ] {
            assert!(read_raw_counters(cut.as_bytes(), 0).is_err(), "{cut}");
        }
    }

    #[test]
    fn damaged_raw_profiles_are_read_or_refused_with_a_line() {
        let whole = b"[a @ b]\n1\n10-20:5\n1\n20->10:3\n; note\n0\n0\n";
        assert!(read_raw_counters(whole, 0).is_ok());
        let mut refused = 0;
        for at in 0..whole.len() {
            for byte in [b'\n', b':', b'-', b'[', b']', b'9', 0, 0xff] {
                let mut text = whole.to_vec();
                text[at] = byte;
                refused += usize::from(read_raw_counters(&text, 0).is_err());
                text.truncate(at);
                let _ = read_raw_counters(&text, u64::MAX);
            }
        }
        assert!(refused > 50, "{refused}");
    }
}
