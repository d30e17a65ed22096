//! Coverage of lines, functions and branches: lcov's tracefile and Cobertura's XML.
//!
//! Counts are exact if the profile's are. A line ran as often as the most executed of its instructions within a
//! function, added up over the functions that have it. A branch is a conditional branch instruction, with two ways: to
//! jump and to continue. Lines and functions without counters are left out: they are not known to have never run.
//!
//! Sources: geninfo(1), section FILES; Cobertura's `coverage-04.dtd`.

use std::fmt::Write;

use postlink_lines::{FileCoverage, has_counts};
use rustc_hash::FxHashMap;

use crate::{Error, Export, Subject};

/// A function in a source file.
struct Named<'a> {
    name: &'a str,
    line: u32,
    entries: u64,
}

/// Functions by the number of their file, in order of lines.
fn functions<'a>(
    subject: &Subject<'a, '_>,
    format: &'static str,
) -> Result<FxHashMap<u32, Vec<Named<'a>>>, Error> {
    let lines = subject.lines(format)?;
    let mut of: FxHashMap<u32, Vec<Named<'a>>> = FxHashMap::default();
    for (f, function) in subject.facts.functions.iter().enumerate() {
        let place = lines.at(f, function.start());
        let Some((file, line)) = place.filter(|_| has_counts(function)) else {
            continue;
        };
        of.entry(file).or_default().push(Named {
            name: &function.name,
            line,
            entries: function.ran.as_ref().map_or(0, |ran| ran.entries),
        });
    }
    of.values_mut()
        .for_each(|named| named.sort_by_key(|named| (named.line, named.name)));
    Ok(of)
}

/// Files in the order of their names.
fn files(
    subject: &Subject<'_, '_>,
    format: &'static str,
) -> Result<Vec<(String, FileCoverage)>, Error> {
    let lines = subject.lines(format)?;
    let coverage = lines.coverage(subject.facts, false);
    let mut files: Vec<(String, FileCoverage)> = coverage
        .into_iter()
        .map(|of| (lines.files[of.file as usize].clone(), of))
        .collect();
    files.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(files)
}

/// A name on a line of its own: nothing may break it.
fn one_line(name: &str) -> String {
    name.replace(['\n', '\r'], "?")
}

/// lcov's tracefile.
pub fn lcov(subject: &Subject<'_, '_>) -> Result<Export, Error> {
    let functions = functions(subject, "lcov")?;
    let mut text = String::new();
    for (name, of) in files(subject, "lcov")? {
        let _ = writeln!(text, "TN:\nSF:{}", one_line(&name));
        let named = functions.get(&of.file).map_or(&[][..], Vec::as_slice);
        for function in named {
            let _ = writeln!(text, "FN:{},{}", function.line, one_line(function.name));
        }
        for function in named {
            let _ = writeln!(
                text,
                "FNDA:{},{}",
                function.entries,
                one_line(function.name)
            );
        }
        let hit = named.iter().filter(|function| function.entries > 0).count();
        let _ = writeln!(text, "FNF:{}\nFNH:{hit}", named.len());
        let (mut ways, mut taken) = (0, 0);
        for line in &of.lines {
            for (block, branch) in line.branches.iter().enumerate() {
                for (way, count) in [branch.ways.0, branch.ways.1].into_iter().enumerate() {
                    ways += 1;
                    taken += usize::from(count > 0);
                    let _ = match branch.ran {
                        0 => writeln!(text, "BRDA:{},{block},{way},-", line.line),
                        _ => writeln!(text, "BRDA:{},{block},{way},{count}", line.line),
                    };
                }
            }
        }
        let _ = writeln!(text, "BRF:{ways}\nBRH:{taken}");
        for line in &of.lines {
            let _ = writeln!(text, "DA:{},{}", line.line, line.count);
        }
        let hit = of.lines.iter().filter(|line| line.count > 0).count();
        let _ = writeln!(text, "LF:{}\nLH:{hit}\nend_of_record", of.lines.len());
    }
    Ok(Export {
        bytes: text.into_bytes(),
        missing: subject.missing(),
    })
}

/// Text in an attribute. Control characters, which XML does not have, become question marks.
pub(crate) fn attribute(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() => out.push('?'),
            c => out.push(c),
        }
    }
    out
}

/// Part of a whole, as Cobertura has it: from 0 to 1.
fn rate((part, whole): (usize, usize)) -> f64 {
    if whole == 0 {
        1.0
    } else {
        part as f64 / whole as f64
    }
}

/// Lines that ran of all lines, ways taken of all ways.
fn totals<'f>(files: impl Iterator<Item = &'f FileCoverage>) -> [(usize, usize); 2] {
    let (mut lines, mut ways) = ((0, 0), (0, 0));
    for line in files.flat_map(|of| &of.lines) {
        lines.0 += usize::from(line.count > 0);
        lines.1 += 1;
        for branch in &line.branches {
            ways.0 += usize::from(branch.ways.0 > 0) + usize::from(branch.ways.1 > 0);
            ways.1 += 2;
        }
    }
    [lines, ways]
}

/// Cobertura's XML: one package, a class for each source file.
pub fn cobertura(subject: &Subject<'_, '_>) -> Result<Export, Error> {
    let functions = functions(subject, "cobertura")?;
    let files = files(subject, "cobertura")?;
    let [lines, ways] = totals(files.iter().map(|(_, of)| of));
    let mut text = String::from(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE coverage SYSTEM \"http://cobertura.sourceforge.net/xml/coverage-04.dtd\">\n",
    );
    let rates = |[lines, ways]: [(usize, usize); 2]| {
        format!(
            "line-rate=\"{:.4}\" branch-rate=\"{:.4}\"",
            rate(lines),
            rate(ways)
        )
    };
    let _ = writeln!(
        text,
        "<coverage {} lines-covered=\"{}\" lines-valid=\"{}\" branches-covered=\"{}\" branches-valid=\"{}\" complexity=\"0\" version=\"postlink {}\" timestamp=\"0\">\n<sources><source>/</source></sources>\n<packages><package name=\"{}\" {} complexity=\"0\"><classes>",
        rates([lines, ways]),
        lines.0,
        lines.1,
        ways.0,
        ways.1,
        env!("CARGO_PKG_VERSION"),
        attribute(subject.path),
        rates([lines, ways]),
    );
    for (name, of) in &files {
        let own = totals(std::iter::once(of));
        let shown = attribute(name);
        let _ = writeln!(
            text,
            "<class name=\"{shown}\" filename=\"{shown}\" {} complexity=\"0\"><methods>",
            rates(own)
        );
        for function in functions.get(&of.file).into_iter().flatten() {
            let ran = rate((usize::from(function.entries > 0), 1));
            let _ = writeln!(
                text,
                "<method name=\"{}\" signature=\"\" line-rate=\"{ran:.4}\" branch-rate=\"{ran:.4}\" complexity=\"0\"><lines><line number=\"{}\" hits=\"{}\"/></lines></method>",
                attribute(function.name),
                function.line,
                function.entries
            );
        }
        text += "</methods><lines>\n";
        for line in &of.lines {
            let _ = write!(
                text,
                "<line number=\"{}\" hits=\"{}\"",
                line.line, line.count
            );
            if line.branches.is_empty() {
                text += " branch=\"false\"/>\n";
                continue;
            }
            let taken =
                |b: &postlink_lines::Branch| usize::from(b.ways.0 > 0) + usize::from(b.ways.1 > 0);
            let (taken, all) = (
                line.branches.iter().map(taken).sum::<usize>(),
                2 * line.branches.len(),
            );
            let _ = writeln!(
                text,
                " branch=\"true\" condition-coverage=\"{}% ({taken}/{all})\"/>",
                taken * 100 / all
            );
        }
        text += "</lines></class>\n";
    }
    text += "</classes></package></packages>\n</coverage>\n";
    Ok(Export {
        bytes: text.into_bytes(),
        missing: subject.missing(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_break_xml() {
        assert_eq!(
            attribute("a<b>&\"c\"\u{1}"),
            "a&lt;b&gt;&amp;&quot;c&quot;?"
        );
        assert_eq!(one_line("a\nend_of_record"), "a?end_of_record");
    }

    #[test]
    fn nothing_to_cover_is_covered() {
        assert_eq!(rate((0, 0)), 1.0);
        assert_eq!(rate((1, 4)), 0.25);
    }
}
