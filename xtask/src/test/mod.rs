//! `cargo xtask test`: everything that can say whether postlink works, with one summary at the end.
//!
//! cargo builds the tests of the workspace, the directory of cases among them; [`queue`] runs them, then the examples
//! in docs, and the tests of the workspace in `fleet`. Their output is passed on and read; what each part passed,
//! failed and skipped, and why, is together at the end.
//!
//! **What is tested is what is released**: crates are compiled by the profile `release`, which looks for overflow.
//! Where the program has been built before (the demo does it), so have most of them been. Test programs themselves are
//! not optimised, which is a fifth of the work: cargo's profiles cannot say so, but a script that it calls in
//! place of the compiler can (`.ci/compiler`).
//!
//! **What is not installed makes no test red.** Tests skip themselves in two ways: as ignored, with the
//! reason beside them, or by a line `SKIPPED: …`, which the test harness would hide for a test that passes;
//! `--show-output` brings it out. A test that does neither fails when it starts a tool that is not there, and
//! nothing in its output need say so. So each test that failed while a [`Need`] is not met runs again, alone,
//! with a stand-in for every missing tool on PATH; if it called one, or its output names a missing file, it
//! is counted as skipped, with the Debian package's name. A test that fails for any other reason stays
//! failed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::lint;
use crate::packages::{self, Need};

mod queue;
mod silence;

/// One test program's outcome.
#[derive(Debug, Default, PartialEq, Eq)]
struct Part {
    name: String,
    passed: u64,
    failed: u64,
    skipped: u64,
    /// How long its tests took, in tenths of a second.
    tenths: u64,
    failures: Vec<String>,
    /// What was skipped, by its reason.
    reasons: BTreeMap<String, u64>,
    /// Tests that passed, and said that they had skipped something.
    partly: BTreeMap<String, BTreeSet<String>>,
    ended: bool,
    /// How cargo is told to run this part alone.
    selection: Vec<String>,
    /// The output of tests that passed is being read: of which test.
    showing: Option<String>,
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

    /// Whether the line belongs to the output of a test that passed, which is read but not passed on.
    fn is_hidden(&self) -> bool {
        self.parts.last().is_some_and(|part| part.showing.is_some())
    }

    /// Reads one line.
    fn line(&mut self, line: &str) {
        let trimmed = line.trim();
        // What a test printed may look like anything.
        let printed = self.is_hidden();
        if let Some(rest) = trimmed
            .strip_prefix("Running ")
            .filter(|rest| rest.ends_with(')') && !printed)
        {
            self.parts.push(Part {
                name: part_name(rest),
                selection: selection(rest),
                ..Part::default()
            });
        } else if let Some(rest) = trimmed.strip_prefix("Doc-tests ") {
            self.parts.push(Part {
                name: format!("{} (examples in docs)", rest.replace('_', "-")),
                selection: vec!["--doc".into()],
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
            part.tenths = tenths(rest).unwrap_or(0);
            part.ended = true;
            part.showing = None;
        } else if let Some(rest) = line.strip_prefix("test ").filter(|_| !printed) {
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
        } else if trimmed == "successes:" {
            self.part().showing = Some(String::new());
        } else if trimmed == "failures:" {
            self.part().showing = None;
        } else if let Some(name) = shown_test(line) {
            if let Some(showing) = &mut self.part().showing {
                name.clone_into(showing);
            }
        } else if let Some((_, reason)) = trimmed.split_once("SKIPPED: ") {
            let part = self.part();
            if let Some(test) = part.showing.clone() {
                part.partly
                    .entry(reason.to_owned())
                    .or_default()
                    .insert(test);
            }
        } else if trimmed.starts_with("error: could not compile") {
            self.errors.push(trimmed.to_owned());
        }
    }

    /// Tests printed nothing for too long, and were stopped.
    fn hung(&mut self, why: &str) {
        self.part().ended = false;
        self.errors.extend(why.lines().map(str::to_owned));
    }

    /// Adds what another has read.
    fn take(&mut self, other: Reader) {
        self.parts.extend(other.parts);
        self.errors.extend(other.errors);
    }

    /// Whether there was no test at all.
    fn is_empty(&self) -> bool {
        let tests = |part: &Part| part.passed + part.failed + part.skipped;
        self.errors.is_empty() && self.parts.iter().all(|part| part.ended && tests(part) == 0)
    }

    /// Whether all that was begun has ended well.
    fn is_good(&self) -> bool {
        self.errors.is_empty() && self.parts.iter().all(|part| part.ended && part.failed == 0)
    }

    /// The parts that took longest: where time can be saved.
    fn slowest(&self, seconds: &impl Fn(u64) -> String) -> String {
        let mut parts: Vec<&Part> = self.parts.iter().filter(|p| p.tenths >= 10).collect();
        parts.sort_by_key(|part| std::cmp::Reverse(part.tenths));
        let named = parts.iter().take(10);
        let named = named.map(|part| format!("{} {} s", part.name, seconds(part.tenths)));
        let list: Vec<String> = named.collect();
        if list.is_empty() {
            String::new()
        } else {
            format!("slowest: {}\n", list.join(", "))
        }
    }

    fn summary(&self) -> String {
        let mut text = String::from("\n==== test summary ====\n");
        text += &format!(
            "{:<46} {:>7} {:>7} {:>7} {:>8}\n",
            "part", "passed", "failed", "skipped", "seconds"
        );
        let (mut passed, mut failed, mut skipped, mut all) = (0, 0, 0, 0);
        let seconds = |tenths: u64| format!("{}.{}", tenths / 10, tenths % 10);
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
                "{:<46} {:>7} {:>7} {:>7} {:>8}{note}\n",
                part.name,
                part.passed,
                part.failed,
                part.skipped,
                seconds(part.tenths)
            );
            all += part.tenths;
            passed += part.passed;
            failed += part.failed + u64::from(!part.ended);
            skipped += part.skipped;
        }
        text += &format!(
            "{:<46} {passed:>7} {failed:>7} {skipped:>7} {:>8}\n",
            "all",
            seconds(all)
        );
        text += &self.slowest(&seconds);
        for part in &self.parts {
            for (reason, count) in &part.reasons {
                text += &format!(
                    "skipped {count} in {}: {}\n",
                    part.name,
                    packages::with_package(reason)
                );
            }
            for (reason, tests) in &part.partly {
                text += &format!(
                    "skipped in {} of {}'s tests that passed, in whole or in part: {}\n",
                    tests.len(),
                    part.name,
                    packages::with_package(reason)
                );
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

/// The time at the end of a part's result: `…; finished in 12.45s`.
fn tenths(result: &str) -> Option<u64> {
    let (_, time) = result.rsplit_once("finished in ")?;
    let (whole, part) = time.trim_end().trim_end_matches('s').split_once('.')?;
    let tenth = part.get(..1)?.parse::<u64>().ok()?;
    Some(whole.parse::<u64>().ok()? * 10 + tenth)
}

/// The arguments of `cargo test` that select a part: `unittests src/lib.rs (…)` or `tests/cases/main.rs (…)`.
fn selection(rest: &str) -> Vec<String> {
    let what = rest.rsplit_once(" (").map_or(rest, |(what, _)| what);
    match what.strip_prefix("unittests ") {
        Some(source) if source.ends_with("lib.rs") => vec!["--lib".into()],
        Some(_) => vec!["--bins".into()],
        None => {
            let name = what.trim_end_matches("/main.rs").trim_end_matches(".rs");
            let name = name.rsplit('/').next().unwrap_or(name);
            vec!["--test".into(), name.into()]
        }
    }
}

/// The test whose output begins here: `---- tests::a stdout ----`.
fn shown_test(line: &str) -> Option<&str> {
    line.strip_prefix("---- ")?.strip_suffix(" stdout ----")
}

fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    if let Some(script) = lint::script_of_tests() {
        command.env("RUSTC_WRAPPER", script);
    }
    command
}

/// Stand-ins for tools that are not there: each writes down that it was called.
struct StandIns {
    folder: tempfile::TempDir,
}

impl StandIns {
    fn new(missing: &[&Need]) -> Result<StandIns> {
        let folder = tempfile::tempdir().context("a folder for stand-ins")?;
        for need in missing.iter().filter(|need| !need.probe.starts_with('/')) {
            let file = folder.path().join(need.probe);
            let text = format!(
                "#!/bin/sh\necho {0} >> \"$POSTLINK_MISSING_TOOLS\"\necho '{0} is not installed' >&2\nexit 127\n",
                need.probe
            );
            fs::write(&file, text).with_context(|| file.display().to_string())?;
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?;
        }
        Ok(StandIns { folder })
    }

    /// Runs one test again, and says which of the missing things it asked for.
    fn needed<'n>(
        &self,
        selection: &[String],
        test: &str,
        missing: &[&'n Need],
    ) -> Result<Option<&'n Need>> {
        let called = self.folder.path().join("called");
        fs::write(&called, "")?;
        let mut path = self.folder.path().as_os_str().to_owned();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        let output = cargo()
            .args(["test", "--release", "--quiet", "--workspace"])
            .args(selection)
            .args(["--", "--exact", test])
            .env("PATH", path)
            .env("POSTLINK_MISSING_TOOLS", &called)
            .stdin(Stdio::null())
            .output()
            .context("cargo test")?;
        if output.status.success() {
            // It passes alone: whatever failed was no missing tool.
            return Ok(None);
        }
        let called = fs::read_to_string(&called)?;
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        Ok(missing.iter().copied().find(|need| {
            called.lines().any(|line| line == need.probe) || names_file(&said, need.probe)
        }))
    }
}

/// Whether a message names a missing file, by its path or, as compilers do with headers, by its name.
fn names_file(said: &str, probe: &str) -> bool {
    Path::new(probe)
        .file_name()
        .filter(|_| probe.starts_with('/'))
        .is_some_and(|name| said.contains(&*name.to_string_lossy()))
}

/// Counts tests that failed for want of something that is not installed as skipped.
fn excuse(reader: &mut Reader, missing: &[&Need]) -> Result<()> {
    if missing.is_empty() || reader.parts.iter().all(|part| part.failures.is_empty()) {
        return Ok(());
    }
    let stand_ins = StandIns::new(missing)?;
    for part in &mut reader.parts {
        for test in std::mem::take(&mut part.failures) {
            match stand_ins.needed(&part.selection, &test, missing)? {
                Some(need) => {
                    part.failed = part.failed.saturating_sub(1);
                    part.skipped += 1;
                    *part.reasons.entry(not_installed(need)).or_default() += 1;
                }
                None => part.failures.push(test),
            }
        }
    }
    Ok(())
}

fn not_installed(need: &Need) -> String {
    format!(
        "{} is not installed (Debian package {})",
        need.probe, need.package
    )
}

/// Set in the environment of tests that run when all of the workspace has been built.
pub const HAS_BUILT_ALL: &str = "POSTLINK_TESTS_OF_ALL";

/// Runs a `cargo test`, reads its output and passes it on.
fn pass_on(
    mut command: Command,
    reader: &mut Reader,
    stdout: &mut impl Write,
) -> Result<std::process::ExitStatus> {
    let (output, input) = std::io::pipe().context("a pipe for the tests' output")?;
    command
        .env(HAS_BUILT_ALL, "1")
        .stdin(Stdio::null())
        .stdout(input.try_clone()?)
        .stderr(input);
    let watch = silence::Watch::new(&output, silence::LIMIT)?;
    let mut child = command.spawn().context("cargo test")?;
    // Its copies of the pipe's writing end live in the command: without this the reading would never end.
    drop(command);
    let mut lines = BufReader::new(output);
    let mut line = Vec::new();
    let stopped = watch.during(|heard| {
        while lines.read_until(b'\n', &mut line)? > 0 {
            heard();
            let hidden = reader.is_hidden();
            reader.line(String::from_utf8_lossy(&line).trim_end_matches('\n'));
            if !(hidden || reader.is_hidden()) || line.starts_with(b"test result: ") {
                stdout.write_all(&line)?;
            }
            line.clear();
        }
        anyhow::Ok(())
    })?;
    let status = child.wait()?;
    if !stopped.is_empty() {
        reader.hung(&stopped);
        stdout.write_all(stopped.as_bytes())?;
    }
    Ok(status)
}

/// Tests that cargo runs by itself.
fn by_cargo(name: &str, arguments: &[&str], filter: Option<&str>) -> queue::Job {
    let mut command = cargo();
    command
        .args(["test", "--no-fail-fast"])
        .args(arguments)
        .args(filter)
        .args(["--", "--show-output"]);
    queue::Job {
        name: name.into(),
        names_itself: true,
        command,
    }
}

/// The job. `Ok(false)` when a test failed.
pub fn run(install: bool, filter: Option<&str>) -> Result<bool> {
    packages::install(packages::for_linking(), install);
    let mut stdout = std::io::stdout();
    let arguments: Vec<&str> = filter.into_iter().chain(["--show-output"]).collect();
    // The tests start tools, but are built without them: apt waits for the network and the disk meanwhile.
    let (missing, jobs) = std::thread::scope(|scope| {
        let installing = scope.spawn(|| packages::install(packages::FOR_TESTS, install));
        // Examples have no tests: that they compile is lint's business. Without this choice cargo would build them
        // all.
        let mut targets = vec!["--lib", "--bins", "--tests"];
        if lint::by_driver() {
            targets.push("--examples");
        }
        let jobs = queue::programs(&targets, &arguments);
        (installing.join().expect("it does not panic"), jobs)
    });
    let mut jobs = jobs?;
    jobs.push(by_cargo(
        "examples in docs",
        &["--release", "--workspace", "--doc"],
        filter,
    ));
    // Its dependencies take longer to compile than all of ours: at the end, so that what fails sooner is seen sooner.
    let fleet = [
        "--locked",
        "--manifest-path",
        "fleet/Cargo.toml",
        "--target-dir",
        "target",
    ];
    jobs.push(by_cargo("tests of fleet", &fleet, filter));
    let mut done = queue::run(jobs, &mut stdout)?;
    let of_fleet = done.pop().context("the tests of fleet have not run")?;
    let mut reader = Reader::default();
    let mut failures = vec![];
    for one in done {
        reader.take(one.reader);
        failures.extend(Some(one.status).filter(|status| !status.success()));
    }
    let failed = !reader.is_good();
    excuse(&mut reader, &missing)?;
    let fleet_is_good = of_fleet.status.success();
    failures.extend(Some(of_fleet.status).filter(|status| !status.success()));
    reader.take(of_fleet.reader);
    stdout.write_all(reader.summary().as_bytes())?;
    for need in &missing {
        writeln!(
            stdout,
            "NOT INSTALLED: {}, for {}",
            not_installed(need),
            need.purpose
        )?;
    }
    if let Some(filter) = filter.filter(|_| reader.is_empty()) {
        writeln!(stdout, "no test's name contains {filter:?}")?;
        return Ok(false);
    }
    // A status of failure is explained if a test failed and was excused.
    let good = reader.is_good() && (failures.is_empty() || failed) && fleet_is_good;
    if !good && reader.is_good() {
        for status in failures {
            writeln!(stdout, "a test program ended with {status}")?;
        }
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
            "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 72.46s",
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
        assert_eq!((flow.tenths, reader.parts[2].tenths), (0, 724));
        let summary = reader.summary();
        let slowest = "slowest: postlink-flow (examples in docs) 72.4 s\n";
        assert!(summary.contains(slowest), "{summary}");
        assert!(summary.contains("did not end"), "{summary}");
        assert!(
            summary.contains("FAILED in postlink-flow: tests::c"),
            "{summary}"
        );
    }

    #[test]
    fn what_a_passing_test_says_it_skipped_is_counted_and_not_passed_on() {
        let mut reader = Reader::default();
        let lines = [
            (
                "     Running tests/tools.rs (target/debug/deps/tools-0123456789abcdef)",
                false,
            ),
            ("test a ... ok", false),
            ("successes:", true),
            ("---- a stdout ----", true),
            ("SKIPPED: gdb is not installed", true),
            ("successes:", true),
            ("    a", true),
            (
                "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
                false,
            ),
        ];
        for (line, hidden) in lines {
            reader.line(line);
            assert_eq!(reader.is_hidden(), hidden, "{line}");
        }
        assert!(reader.is_good());
        assert!(
            reader.summary().contains("skipped in 1 of tools's tests that passed, in whole or in part: gdb is not installed (Debian package gdb)"),
            "{}",
            reader.summary()
        );
    }

    #[test]
    fn a_part_is_run_alone_by_its_kind_and_name() {
        assert_eq!(
            selection("unittests src/lib.rs (target/debug/deps/x-01)"),
            ["--lib"]
        );
        assert_eq!(
            selection("unittests src/main.rs (target/debug/deps/x-01)"),
            ["--bins"]
        );
        assert_eq!(
            selection("tests/cases/main.rs (target/debug/deps/cases-01)"),
            ["--test", "cases"]
        );
        assert_eq!(
            selection("tests/native.rs (target/debug/deps/native-01)"),
            ["--test", "native"]
        );
    }

    #[test]
    fn a_missing_library_is_found_in_a_linkers_message() {
        let probe = "/usr/lib/x/libclang_rt.profile-x86_64.a";
        assert!(names_file(
            "ld: cannot find /other/libclang_rt.profile-x86_64.a: No such file",
            probe
        ));
        assert!(!names_file("ld: cannot find -lm", probe));
        assert!(!names_file("gdb: a failure", "gdb"));
    }

    #[test]
    fn a_filter_that_matches_nothing_is_told_from_tests_that_pass() {
        let mut reader = Reader::default();
        let running = "     Running unittests src/lib.rs (target/debug/deps/postlink_flow-01)";
        reader.line(running);
        assert!(!reader.is_empty(), "it has not ended");
        reader.line("test result: ok. 0 passed; 0 failed; 0 ignored; finished in 0.00s");
        assert!(reader.is_empty());
        reader.line(running);
        reader.line("test result: ok. 0 passed; 0 failed; 1 ignored; finished in 0.00s");
        assert!(!reader.is_empty());
    }

    #[test]
    fn a_crate_that_does_not_compile_is_a_failure() {
        let mut reader = Reader::default();
        reader.line("error: could not compile `postlink-isa` (lib) due to 1 previous error");
        assert!(!reader.is_good());
    }
}
