//! `cargo xtask test`: everything that can say whether postlink works, with one summary at the end.
//!
//! All tests, the directory of cases among them, run under one `cargo test --workspace`. Its output is passed on as it
//! comes and read at the same time; what each part passed, failed and skipped, and why, stands together at the end.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::packages;

/// One test program's outcome.
#[derive(Debug, Default, PartialEq, Eq)]
struct Part {
    name: String,
    passed: u64,
    failed: u64,
    skipped: u64,
    failures: Vec<String>,
    reasons: BTreeMap<String, u64>,
    ended: bool,
}

/// Reads the lines of `cargo test` and its test programs.
#[derive(Debug, Default)]
struct Reader {
    parts: Vec<Part>,
    /// Lines of cargo itself that say that something did not build.
    errors: Vec<String>,
}

impl Reader {
    fn part(&mut self) -> &mut Part {
        if self.parts.is_empty() {
            self.parts.push(Part {
                name: "tests".into(),
                ..Part::default()
            });
        }
        self.parts.last_mut().expect("one was just pushed")
    }

    fn line(&mut self, line: &str) {
        let trimmed = line.trim();
        if let Some(rest) = trimmed
            .strip_prefix("Running ")
            .filter(|rest| rest.ends_with(')'))
        {
            self.parts.push(Part {
                name: part_name(rest),
                ..Part::default()
            });
        } else if let Some(rest) = trimmed.strip_prefix("Doc-tests ") {
            self.parts.push(Part {
                name: format!("{} (examples in docs)", rest.replace('_', "-")),
                ..Part::default()
            });
        } else if let Some(rest) = line.strip_prefix("test result: ") {
            let part = self.part();
            for item in rest.split([';', '.']) {
                let mut words = item.split_whitespace();
                if let (Some(Ok(count)), Some(what)) =
                    (words.next().map(str::parse::<u64>), words.next())
                {
                    match what {
                        "passed" => part.passed = count,
                        "failed" => part.failed = count,
                        "ignored" => part.skipped = count,
                        _ => {}
                    }
                }
            }
            part.ended = true;
        } else if let Some(rest) = line.strip_prefix("test ") {
            if let Some((name, outcome)) = rest.rsplit_once(" ... ") {
                if let Some(reason) = outcome.strip_prefix("ignored") {
                    let reason = reason.trim_start_matches([',', ' ']);
                    let reason = reason
                        .strip_prefix('(')
                        .and_then(|r| r.strip_suffix(')'))
                        .unwrap_or(reason);
                    let reason = if reason.is_empty() {
                        "no reason given"
                    } else {
                        reason
                    };
                    *self.part().reasons.entry(reason.to_owned()).or_default() += 1;
                } else if outcome.starts_with("FAILED") {
                    self.part().failures.push(name.trim().to_owned());
                }
            }
        } else if trimmed.starts_with("error: could not compile") {
            self.errors.push(trimmed.to_owned());
        }
    }

    /// Whether all that was begun has ended well.
    fn is_good(&self) -> bool {
        self.errors.is_empty() && self.parts.iter().all(|part| part.ended && part.failed == 0)
    }

    fn summary(&self) -> String {
        let mut text = String::from("\n==== test summary ====\n");
        text += &format!(
            "{:<46} {:>7} {:>7} {:>7}\n",
            "part", "passed", "failed", "skipped"
        );
        let (mut passed, mut failed, mut skipped) = (0, 0, 0);
        for part in self
            .parts
            .iter()
            .filter(|p| !p.ended || p.passed + p.failed + p.skipped > 0)
        {
            let note = if part.ended {
                ""
            } else {
                "  did not end: crashed, or was killed"
            };
            text += &format!(
                "{:<46} {:>7} {:>7} {:>7}{note}\n",
                part.name, part.passed, part.failed, part.skipped
            );
            passed += part.passed;
            failed += part.failed + u64::from(!part.ended);
            skipped += part.skipped;
        }
        text += &format!("{:<46} {passed:>7} {failed:>7} {skipped:>7}\n", "all");
        for part in &self.parts {
            for (reason, count) in &part.reasons {
                text += &format!("skipped {count} in {}: {reason}\n", part.name);
            }
        }
        for part in &self.parts {
            for name in &part.failures {
                text += &format!("FAILED in {}: {name}\n", part.name);
            }
        }
        for error in &self.errors {
            text += &format!("{error}\n");
        }
        text
    }
}

/// `unittests src/lib.rs (…/postlink_flow-0123abcd)` is `postlink-flow`, `tests/cases/main.rs (…/cases-…)` is `cases`.
fn part_name(rest: &str) -> String {
    let (what, path) = rest.rsplit_once(" (").unwrap_or((rest, rest));
    let file = path
        .trim_end_matches(')')
        .rsplit('/')
        .next()
        .unwrap_or(path);
    let name = file
        .rsplit_once('-')
        .map_or(file, |(name, _)| name)
        .replace('_', "-");
    if what.contains("main.rs") && what.contains("unittests") {
        format!("{name} (program)")
    } else {
        name
    }
}

/// The job. `Ok(false)` when a test failed.
pub fn run(arguments: &[String]) -> Result<bool> {
    let (mut install, mut filter) = (true, None);
    for argument in arguments {
        match argument.as_str() {
            "--no-install" => install = false,
            option if option.starts_with('-') => bail!("cargo xtask test has no option '{option}'"),
            name if filter.is_none() => filter = Some(name),
            name => bail!("one filter at most, '{name}' is a second one"),
        }
    }
    let missing = packages::install(packages::FOR_TESTS, install);
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    command
        .args(["test", "--workspace", "--no-fail-fast"])
        .args(filter);
    let (output, input) = std::io::pipe().context("a pipe for the tests' output")?;
    command
        .stdin(Stdio::null())
        .stdout(input.try_clone()?)
        .stderr(input);
    let mut child = command.spawn().context("cargo test")?;
    // Its copies of the pipe's writing end live in the command: without this the reading would never end.
    drop(command);
    let mut reader = Reader::default();
    let mut stdout = std::io::stdout().lock();
    let mut lines = BufReader::new(output);
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line)? > 0 {
        stdout.write_all(&line)?;
        reader.line(String::from_utf8_lossy(&line).trim_end_matches('\n'));
        line.clear();
    }
    let status = child.wait()?;
    stdout.write_all(reader.summary().as_bytes())?;
    for need in &missing {
        writeln!(
            stdout,
            "could not install {} ({}), for {}",
            need.package, need.probe, need.purpose
        )?;
    }
    let good = status.success() && reader.is_good();
    if !good && reader.is_good() {
        writeln!(stdout, "cargo test: {status}")?;
    }
    writeln!(
        stdout,
        "{}",
        if good {
            "all tests passed"
        } else {
            "TESTS FAILED"
        }
    )?;
    Ok(good)
}

/// `cargo xtask lint`.
pub fn lint() -> Result<bool> {
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let jobs: [(&[&str], &str); 3] = [
        (&["fmt", "--all", "--check"], ""),
        (
            &[
                "clippy",
                "--workspace",
                "--all-targets",
                "--",
                "-D",
                "warnings",
            ],
            "",
        ),
        (&["doc", "--workspace", "--no-deps"], "-D warnings"),
    ];
    let mut good = true;
    for (arguments, rustdoc) in jobs {
        let mut command = Command::new(&cargo);
        command.args(arguments);
        if !rustdoc.is_empty() {
            command.env("RUSTDOCFLAGS", rustdoc);
        }
        let passed = command
            .status()
            .with_context(|| format!("cargo {}", arguments.join(" ")))?
            .success();
        println!(
            "cargo {}: {}",
            arguments.join(" "),
            if passed { "passed" } else { "FAILED" }
        );
        good &= passed;
    }
    Ok(good)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_failures_and_reasons_are_read_from_the_lines_of_cargo_test() {
        let mut reader = Reader::default();
        for line in [
            "   Compiling x v0.1.0",
            "     Running unittests src/lib.rs (target/debug/deps/postlink_flow-0123456789abcdef)",
            "test tests::a ... ok",
            "test tests::b ... ignored, needs a kernel",
            "test tests::c ... FAILED",
            "test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s",
            "     Running tests/cases/main.rs (target/debug/deps/cases-0123456789abcdef)",
            "test switch/gcc-pie ... ok",
            "test tls/gcc-static  ... ignored (needs a shared library)",
            "   Doc-tests postlink_flow",
            "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
        ] {
            reader.line(line);
        }
        assert!(!reader.is_good());
        let flow = &reader.parts[0];
        assert_eq!(
            (flow.name.as_str(), flow.passed, flow.failed, flow.skipped),
            ("postlink-flow", 1, 1, 1)
        );
        assert_eq!(flow.failures, ["tests::c"]);
        assert_eq!(
            flow.reasons.iter().next(),
            Some((&"needs a kernel".to_owned(), &1))
        );
        assert_eq!(
            (reader.parts[1].name.as_str(), reader.parts[1].ended),
            ("cases", false)
        );
        assert_eq!(
            reader.parts[1].reasons.keys().next().map(String::as_str),
            Some("needs a shared library")
        );
        assert_eq!(reader.parts[2].name, "postlink-flow (examples in docs)");
        let summary = reader.summary();
        assert!(summary.contains("did not end"), "{summary}");
        assert!(
            summary.contains("FAILED in postlink-flow: tests::c"),
            "{summary}"
        );
    }

    #[test]
    fn a_crate_that_does_not_compile_is_a_failure() {
        let mut reader = Reader::default();
        reader.line("error: could not compile `postlink-isa` (lib) due to 1 previous error");
        assert!(!reader.is_good());
    }
}
