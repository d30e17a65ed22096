//! Profiles of every kind, also LLVM's and those of older builds, through `postlink optimize`: what they say
//! of a program comes out alike, and the programs do what they did.

mod support;

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use postlink_verify::mutate::{Faults, Kind};
use postlink_verify::{InputCode, Keep, Options, Report, verify, verify_again};
use serde_json::Value;
use support::folder::Folder;

impl Folder {
    fn build(&self, name: &str, source: &str) {
        self.compile(name, source, &["-Wl,-q"]);
    }

    /// A tool of LLVM's; says so and gives none if it is not there.
    fn llvm(&self, name: &str) -> Option<PathBuf> {
        let path = Path::new("/usr/lib/llvm-22/bin").join(name);
        if path.exists() {
            return Some(path);
        }
        eprintln!("SKIPPED: {} is not there (package bolt-22)", path.display());
        None
    }

    /// Counts a program's run exactly: `name.plraw`.
    fn count(&self, name: &str) {
        let (inst, profile) = (format!("{name}.inst"), format!("{name}.plraw"));
        self.postlink(&["instrument", name, "-o", &inst, "--profile", &profile]);
        self.run(self.path(&inst), &[]);
    }

    /// Optimises by a profile: what `--json` says. The result must be proved and print what the original prints.
    fn optimize(&self, name: &str, profile: &str, more: &[&str]) -> Value {
        let mut arguments = vec![
            "optimize",
            name,
            "-p",
            profile,
            "-o",
            "out",
            "--json",
            "--dyno-stats",
        ];
        arguments.extend(more);
        let account: Value = serde_json::from_str(&self.postlink(&arguments)).expect("JSON");
        let plain = self.run(self.path(name), &[]);
        assert_eq!(self.run(self.path("out"), &[]), plain, "{profile}");
        assert_eq!(account["reverted"], Value::Array(vec![]), "{profile}");
        assert!(account["proved"].as_u64() > Some(0), "{profile}: {account}");
        account
    }

    /// How alike two profiles by names are, in percent.
    fn overlap(&self, a: &str, b: &str) -> f64 {
        let account: Value =
            serde_json::from_str(&self.postlink(&["diff", a, b, "--json"])).expect("JSON");
        account["overlap"].as_f64().expect("a number")
    }
}

/// Taken branches after layout by layout before: what the layout gained, whatever the scale of the counts.
fn gain(account: &Value) -> f64 {
    let before = account["optimize"]["score_before"]
        .as_f64()
        .expect("a number");
    let after = account["optimize"]["score_after"]
        .as_f64()
        .expect("a number");
    after / before
}

/// A program of many functions that call each other, with branches, loops, tables, recursion and function
/// pointers. Later versions have some functions changed, one more and one under another name.
fn program(version: u32) -> String {
    const FUNCTIONS: u32 = 48;
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below) as u32
    };
    let name = |f: u32| match f {
        8 if version > 1 => "renamed".to_owned(),
        _ => format!("f{f}"),
    };
    let mut text = String::from("#include <stdio.h>\ntypedef unsigned u;\nstatic u seen;\n");
    for f in 0..FUNCTIONS {
        let _ = writeln!(text, "u {}(u x, int depth);", name(f));
    }
    let _ = writeln!(
        text,
        "static u (*const table[])(u, int) = {{ f1, f2, f3, f5 }};"
    );
    for f in 0..FUNCTIONS {
        let _ = writeln!(
            text,
            "__attribute__((noinline, noclone)) u {}(u x, int depth) {{\n  u a = x;",
            name(f)
        );
        if version > 1 && f % 6 == 1 {
            text.push_str("  if ((x & 0xffff) == 0xfffe) { seen++; printf(\"seen\\n\"); }\n");
        }
        for _ in 0..3 + random(6) {
            let (k, s, callee) = (random(97) + 3, random(7) + 1, random(u64::from(FUNCTIONS)));
            let _ = match random(6) {
                0 => writeln!(text, "  if (a & {k}) a += x * {k}; else a ^= x >> {s};"),
                1 => writeln!(
                    text,
                    "  for (u i = 0; i < (a & 7); i++) {{ a = a * {k} + i; if (a & 16) a ^= {k}; }}"
                ),
                2 => writeln!(
                    text,
                    "  switch (a % 7) {{ case 0: a += {k}; break; case 1: a ^= x; break; case 2: a -= {s}; break; case 3: a *= 3; break; case 4: a = a << 3 | a >> 29; break; case 5: seen++; break; default: a = ~a; }}"
                ),
                3 | 4 => writeln!(
                    text,
                    "  if (depth > 0) a += {}(a + {k}, depth - 1);",
                    name(callee)
                ),
                _ => writeln!(
                    text,
                    "  if (depth > 0 && (a & 3)) a ^= table[a & 3](a, depth - 1);"
                ),
            };
            if version > 1 && f % 6 == 3 && k % 3 == 0 {
                let _ = writeln!(text, "  a ^= a >> {s}; if (a == {k}) seen += 2;");
            }
        }
        text.push_str("  return a;\n}\n");
    }
    text.push_str("int main(void) {\n  u sum = 0;\n  for (u i = 0; i < 60; i++) {\n");
    for f in 0..FUNCTIONS {
        let _ = writeln!(
            text,
            "    sum = sum * 31 + {}(sum ^ i * 2654435761u, 3);",
            name(f)
        );
    }
    text.push_str("  }\n  printf(\"%u %u\\n\", sum, seen);\n  return 0;\n}\n");
    text
}

#[test]
fn one_run_gives_the_same_layout_through_every_format() {
    let folder = Folder::new();
    folder.build("app", &program(1));
    folder.count("app");
    let exact = folder.optimize("app", "app.plraw", &[]);
    assert_eq!(exact["optimize"]["profile"], Value::Null);
    for format in ["app.fdata", "app.yaml"] {
        folder.postlink(&["convert", "app.plraw", "-o", format, "--binary", "app"]);
        let other = folder.optimize("app", format, &["--save-profile", "fitted.fdata"]);
        for figure in ["profiled", "moved"] {
            assert_eq!(
                other["optimize"][figure], exact["optimize"][figure],
                "{format}"
            );
        }
        let found = &other["optimize"]["profile"];
        for figure in ["stale", "unknown_names", "bad_records", "lost_counts"] {
            assert_eq!(found[figure], 0, "{format}: {figure} in {found}");
        }
        // Exact counts conserve flow, so balancing leaves them as they are; only the counts of single calls
        // may be shared out in another way.
        let (a, b) = (
            &other["optimize"]["dyno_stats"],
            &exact["optimize"]["dyno_stats"],
        );
        assert_eq!(a, b, "{format}");
        folder.postlink(&[
            "convert",
            "app.plraw",
            "-o",
            "exact.fdata",
            "--binary",
            "app",
        ]);
        let overlap = folder.overlap("fitted.fdata", "exact.fdata");
        assert!(overlap > 99.9, "{format}: {overlap} %");
    }
}

#[test]
fn a_profile_of_an_older_build_is_recovered_for_the_most_part() {
    let folder = Folder::new();
    for (name, version) in [("old", 1), ("new", 2)] {
        folder.build(name, &program(version));
        folder.count(name);
    }
    folder.postlink(&["convert", "old.plraw", "-o", "old.yaml", "--binary", "old"]);
    folder.postlink(&[
        "convert",
        "new.plraw",
        "-o",
        "truth.fdata",
        "--binary",
        "new",
    ]);
    let exact = folder.optimize("new", "new.plraw", &[]);
    let stale = folder.optimize("new", "old.yaml", &["--save-profile", "fitted.fdata"]);
    let found = &stale["optimize"]["profile"];
    let figure = |name: &str| found[name].as_f64().expect("a number");
    assert!(figure("stale") >= 8.0, "{found}");
    assert_eq!(found["dropped"], 0, "{found}");
    assert_eq!(
        found["renamed"], 1,
        "the hash of its code finds f8: {found}"
    );
    assert!(
        figure("matched_blocks") > 0.8 * figure("stale_blocks"),
        "{found}"
    );
    assert!(
        figure("matched_counts") > 0.8 * figure("stale_counts"),
        "{found}"
    );
    let overlap = folder.overlap("fitted.fdata", "truth.fdata");
    assert!(overlap > 85.0, "{overlap} %: {found}");
    assert!(
        gain(&stale) > 0.9 * gain(&exact),
        "{} {}",
        gain(&stale),
        gain(&exact)
    );
}

/// Sampled instructions: in the loops of some functions, several in one block.
fn sampled(folder: &Folder, name: &str) -> String {
    let listing = folder.run(
        Path::new("objdump"),
        &["-d", "--no-show-raw-insn", "-j", ".text", name],
    );
    let mut text = "E cycles\n".to_owned();
    let mut wanted = false;
    for (number, line) in listing.lines().enumerate() {
        if line.ends_with(">:") {
            wanted = line.contains("<f1");
        } else if let (true, Some((address, _))) = (wanted, line.trim().split_once(":\t")) {
            let _ = writeln!(text, "S {address} {}", 1 + number % 7);
        }
    }
    text
}

#[test]
fn a_summary_counts_functions_that_have_samples_alone() {
    let folder = Folder::new();
    folder.build("app", &program(1));
    fs::write(folder.path("s.preagg"), sampled(&folder, "app")).expect("the folder is ours");
    folder.postlink(&["aggregate", "-p", "s.preagg", "app", "-o", "s.fdata"]);
    let shown = folder.postlink(&["show", "s.fdata"]);
    let functions = fs::read_to_string(folder.path("s.fdata")).expect("written above");
    let functions: std::collections::BTreeSet<&str> = functions
        .lines()
        .skip(1)
        .filter_map(|line| line.split(' ').nth(1))
        .collect();
    assert!(functions.len() > 5, "{shown}");
    let first = format!("s.fdata: {} functions, 0 branches", functions.len());
    assert!(shown.starts_with(&first), "{shown}");
}

#[test]
fn sampled_instructions_and_the_blocks_they_are_in_are_alike_with_the_binary() {
    let folder = Folder::new();
    folder.build("app", &program(1));
    fs::write(folder.path("s.preagg"), sampled(&folder, "app")).expect("the folder is ours");
    for output in ["s.fdata", "s.yaml"] {
        folder.postlink(&["aggregate", "-p", "s.preagg", "app", "-o", output]);
    }
    let account = folder.postlink(&["diff", "s.fdata", "s.yaml", "--binary", "app", "--json"]);
    let account: Value = serde_json::from_str(&account).expect("JSON");
    assert!(account["overlap"].as_f64() > Some(99.9), "{account}");
    assert!(account["edges_a"].as_u64() > Some(20), "{account}");
}

#[test]
fn call_chains_of_perf_script_alone_are_refused_with_what_to_do() {
    let folder = Folder::new();
    folder.build("app", &program(1));
    let app = folder.path("app");
    let text = format!(
        "app 7 1.0: PERF_RECORD_MMAP2 7/7: [0x555555554000(0x9000) @ 0 08:01 1 1]: r-xp {}\n\
         app  7 2.000001:     250000 cpu-clock: \n\t            11a2 f1+0x2 (/app)\n\n",
        app.display()
    );
    fs::write(folder.path("chains.txt"), text).expect("the folder is ours");
    let postlink = Path::new(env!("CARGO_BIN_EXE_postlink"));
    let output = folder.start(
        postlink,
        &["aggregate", "-p", "chains.txt", "app", "-o", "x.fdata"],
    );
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(
        message.contains("aggregate the perf.data itself"),
        "{message}"
    );
}

#[test]
fn names_that_the_program_does_not_have_are_counted() {
    let folder = Folder::new();
    folder.build("app", &program(1));
    folder.count("app");
    folder.postlink(&["convert", "app.plraw", "-o", "app.fdata", "--binary", "app"]);
    let mut text = fs::read_to_string(folder.path("app.fdata")).expect("written above");
    text.push_str("1 gone_a 0 1 gone_a 10 0 5\n1 gone_b/1 4 1 gone_a 0 0 7\n");
    fs::write(folder.path("more.fdata"), &text).expect("the folder is ours");
    let found = folder.optimize("app", "more.fdata", &[])["optimize"]["profile"].clone();
    assert_eq!(found["unknown_names"], 2, "{found}");
    assert_eq!(found["lost_counts"], 12, "{found}");
    assert_eq!(found["examples"][0], "gone_a", "{found}");
    fs::write(folder.path("none.fdata"), "1 gone_a 0 1 gone_a 10 0 5\n")
        .expect("the folder is ours");
    let postlink = Path::new(env!("CARGO_BIN_EXE_postlink"));
    let output = folder.start(
        postlink,
        &["optimize", "app", "-p", "none.fdata", "-o", "x"],
    );
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(
        message.contains("does not belong to this binary") && message.contains("gone_a"),
        "{message}"
    );
    assert!(!folder.path("x").exists());
}

#[test]
fn profiles_that_llvm_bolt_counted_and_wrote_are_taken() {
    let folder = Folder::new();
    let Some(bolt) = folder.llvm("llvm-bolt") else {
        return;
    };
    folder.build("app", &program(1));
    folder.count("app");
    let exact = folder.optimize("app", "app.plraw", &[]);
    let file = folder.path("bolt.fdata");
    let counters = format!("--instrumentation-file={}", file.display());
    folder.run(
        &bolt,
        &["app", "-instrument", "-o", "app.bolted", &counters],
    );
    folder.run(folder.path("app.bolted"), &[]);
    folder.run(
        &bolt,
        &[
            "app",
            "-data=bolt.fdata",
            "-o",
            "app.other",
            "-w",
            "bolt.yaml",
        ],
    );
    for profile in ["bolt.fdata", "bolt.yaml"] {
        let other = folder.optimize("app", profile, &["--save-profile", "fitted.fdata"]);
        let found = &other["optimize"]["profile"];
        assert_eq!(found["stale"], 0, "{profile}: {found}");
        assert!(
            gain(&other) > 0.98 * gain(&exact),
            "{profile}: {} {}",
            gain(&other),
            gain(&exact)
        );
        folder.postlink(&[
            "convert",
            "app.plraw",
            "-o",
            "exact.fdata",
            "--binary",
            "app",
        ]);
        let overlap = folder.overlap("fitted.fdata", "exact.fdata");
        assert!(overlap > 97.0, "{profile}: {overlap} %");
    }
}

#[test]
fn branches_alone_of_perf2bolt_are_enough() {
    let folder = Folder::new();
    let Some(perf2bolt) = folder.llvm("perf2bolt") else {
        return;
    };
    folder.build("app", &program(1));
    folder.count("app");
    let exact = folder.optimize("app", "app.plraw", &[]);
    folder.postlink(&["convert", "app.plraw", "-o", "app.fdata", "--binary", "app"]);
    // Taken branches by address, as a processor would have recorded one of a hundred; nothing of what runs on.
    let symbols = folder.run(Path::new("nm"), &["app"]);
    let address = |name: &str| {
        let name = name.split('/').next().unwrap_or_default();
        let line = symbols.lines().find(|l| l.split(' ').nth(2) == Some(name));
        line.and_then(|l| u64::from_str_radix(l.split(' ').next()?, 16).ok())
    };
    let mut samples = String::new();
    for line in fs::read_to_string(folder.path("app.fdata"))
        .expect("written above")
        .lines()
    {
        let fields: Vec<&str> = line.split(' ').collect();
        let [kind, from, at, _, to, there, _, count] = fields[..] else {
            panic!("{line}");
        };
        let offset = |text: &str| u64::from_str_radix(text, 16).expect("hexadecimal");
        let count: u64 = count.parse().expect("decimal");
        let (Some(from), Some(to)) = (address(from), address(to)) else {
            continue;
        };
        let (from, to) = (from + offset(at), to + offset(there));
        let runs_on = to > from && to - from < 8;
        if kind == "1" && !runs_on && count >= 100 {
            let _ = writeln!(samples, "B {from:x} {to:x} {} 0", count / 100);
        }
    }
    fs::write(folder.path("samples"), samples).expect("the folder is ours");
    folder.run(
        &perf2bolt,
        &["-pa", "-p", "samples", "app", "-o", "perf.fdata"],
    );
    let by_fdata = folder.optimize("app", "perf.fdata", &[]);
    let by_samples = folder.optimize("app", "samples", &[]);
    for other in [&by_fdata, &by_samples] {
        assert!(
            gain(other) > 0.8 * gain(&exact),
            "{} {}",
            gain(other),
            gain(&exact)
        );
        assert_eq!(other["optimize"]["profile"]["bad_counts"], 0, "{other}");
    }
}

#[test]
fn a_function_that_is_refused_stays_and_the_rest_is_proved() {
    let folder = Folder::new();
    folder.build("app", &program(1));
    folder.count("app");
    let plain = folder.run(folder.path("app"), &[]);
    let whole = folder.optimize("app", "app.plraw", &[]);
    let optimize = ["optimize", "app", "-p", "app.plraw"];
    let instrument = ["instrument", "app", "--mode", "edges"];
    let coverage = ["instrument", "app", "--mode", "block-coverage"];
    for job in [optimize, instrument, coverage] {
        let more = ["-o", "out", "--refuse", "f5"];
        let said = folder.start(
            Path::new(env!("CARGO_BIN_EXE_postlink")),
            &[&job[..], &more].concat(),
        );
        let said = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(said.contains("1 function could not be proved"), "{said}");
        assert!(said.contains("stay") && said.contains("f5"), "{said}");
        let why = "f5 runs where it is in the input, since the checker refused its new code: refused for a test (old 0x";
        assert!(said.contains(why), "{said}");
        assert!(said.contains("please report this"), "{said}");
        assert_eq!(folder.run(folder.path("out"), &[]), plain);
        let proved = folder.postlink(&["verify", "app", "out", "--json"]);
        let proved: Value = serde_json::from_str(&proved).expect("JSON");
        let moved = proved["functions"].as_array().expect("a list");
        assert!(moved.iter().all(|f| f["name"] != "f5"), "{job:?}");
        assert!(moved.len() > 20, "{job:?}");
    }
    // Functions without a name would all be meant.
    let arguments = [&optimize[..], &["-o", "none", "--refuse", ""]].concat();
    let said = folder.start(Path::new(env!("CARGO_BIN_EXE_postlink")), &arguments);
    assert!(!said.status.success() && !folder.path("none").exists());
    for job in [optimize, instrument, coverage] {
        let more = ["-o", "none", "--refuse", "f55555"];
        let postlink = Path::new(env!("CARGO_BIN_EXE_postlink"));
        let said = folder.start(postlink, &[&job[..], &more].concat());
        assert!(!said.status.success() && !folder.path("none").exists());
        let said = String::from_utf8_lossy(&said.stderr).into_owned();
        let expected = "app: --refuse f55555: there is no function of that name";
        assert!(said.contains(expected), "{said}");
    }
    let moved = |account: &Value| account["optimize"]["moved"].as_u64().expect("a number");
    let arguments = [&optimize[..], &["-o", "out", "--json", "--refuse", "f5"]].concat();
    let refused: Value = serde_json::from_str(&folder.postlink(&arguments)).expect("JSON");
    assert_eq!(moved(&refused) + 1, moved(&whole));
    assert_eq!(refused["reverted"], serde_json::json!(["f5"]));
    assert_eq!(refused["refused"][0]["name"], "f5");
    let reason = refused["refused"][0]["reason"].as_str().expect("a reason");
    assert!(reason.starts_with("refused for a test (old 0x"), "{reason}");
}

#[test]
fn what_a_check_takes_over_from_the_one_before_is_what_it_would_find() {
    let folder = Folder::new();
    folder.build("app", &program(1));
    folder.count("app");
    let jobs: [&[&str]; 4] = [
        &["optimize", "app", "-p", "app.plraw"],
        &["optimize", "app", "-p", "app.plraw", "--preset", "size"],
        &["instrument", "app", "--counters", "plain"],
        &[
            "instrument",
            "app",
            "--counters",
            "atomic",
            "--relocations",
            "none",
        ],
    ];
    let options = Options::default();
    let read = |name: &str| std::fs::read(folder.path(name)).expect("it was written");
    let input = read("app");
    let code = InputCode::default();
    for job in jobs {
        folder.postlink(&[job, &["-o", "whole"]].concat());
        folder.postlink(&[job, &["-o", "less", "--refuse", "f5"]].concat());
        let (whole, less) = (read("whole"), read("less"));
        let (first, before) = verify_again((&input, &code), &whole, None, Keep::Always, &options)
            .expect("it is ours");
        let fresh = verify(&input, &less, &options).expect("it is ours");
        let again = verify_again(
            (&input, &code),
            &less,
            Some(before.clone()),
            Keep::Always,
            &options,
        );
        let (again, kept) = again.expect("it is ours");
        assert!(fresh.is_proved(), "{job:?}");
        assert_eq!(again, fresh, "{job:?}");
        assert_eq!(first.functions.len(), fresh.functions.len() + 1, "{job:?}");
        // With that preset the places of other functions change.
        if !job.contains(&"size") {
            assert!(less.len() <= whole.len(), "{job:?}");
            let taken_over = kept.taken_over();
            assert!(
                taken_over * 4 > fresh.functions.len() * 3,
                "{job:?}: {taken_over}"
            );
        }
        let faults = Faults::new(&input, &less).expect("it is proved");
        let mut applied = 0;
        let kinds = match job[0] {
            "optimize" => Kind::ALL,
            _ => Kind::COUNTING,
        };
        for kind in kinds {
            for mutant in (0..2).map_while(|seed| faults.inject(*kind, seed)) {
                applied += 1;
                let fresh = verify(&input, &mutant.image, &options);
                let again = verify_again(
                    (&input, &code),
                    &mutant.image,
                    Some(before.clone()),
                    Keep::Always,
                    &options,
                );
                assert!(
                    !fresh.as_ref().is_ok_and(Report::is_proved),
                    "{}",
                    mutant.what
                );
                assert_eq!(
                    again.map(|checked| checked.0),
                    fresh,
                    "{job:?}: {}",
                    mutant.what
                );
            }
        }
        assert!(applied > 4, "{job:?}: {applied}");
    }
}

/// The records of a profile by names as samples by address: branches, and runs where the code continues. One of
/// so many.
fn by_address(folder: &Folder, name: &str, fdata: &str, scale: u64) -> String {
    let symbols = folder.run(Path::new("nm"), &[name]);
    let address = |name: &str| {
        let name = name.split('/').next().unwrap_or_default();
        let line = symbols.lines().find(|l| l.split(' ').nth(2) == Some(name));
        line.and_then(|l| u64::from_str_radix(l.split(' ').next()?, 16).ok())
    };
    let listing = folder.run(
        Path::new("objdump"),
        &["-d", "--no-show-raw-insn", "-j", ".text", name],
    );
    let instructions: Vec<u64> = listing
        .lines()
        .filter_map(|line| u64::from_str_radix(line.trim().split_once(":\t")?.0, 16).ok())
        .collect();
    let mut samples = String::new();
    let text = fs::read_to_string(folder.path(fdata)).expect("it was written");
    for line in text.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let [_, from, at, _, to, there, _, count] = fields[..] else {
            continue;
        };
        let offset = |text: &str| u64::from_str_radix(text, 16).expect("hexadecimal");
        let count = count.parse::<u64>().expect("decimal") / scale;
        let (Some(from), Some(to)) = (address(from), address(to)) else {
            continue;
        };
        let (from, to) = (from + offset(at), to + offset(there));
        let next = instructions.partition_point(|i| *i <= from);
        let _ = match instructions.get(next) == Some(&to) {
            _ if count == 0 => Ok(()),
            true => writeln!(samples, "F {from:x} {to:x} {count}"),
            false => writeln!(samples, "B {from:x} {to:x} {count} 0"),
        };
    }
    samples
}

#[test]
fn samples_of_this_file_count_the_same_by_address_and_by_name() {
    let folder = Folder::new();
    folder.build("app", &program(1));
    folder.count("app");
    folder.postlink(&["convert", "app.plraw", "-o", "app.fdata", "--binary", "app"]);
    let samples = by_address(&folder, "app", "app.fdata", 10);
    assert!(samples.contains("\nF ") && samples.contains("\nB "));
    fs::write(folder.path("samples"), samples).expect("the folder is ours");
    folder.postlink(&["aggregate", "-p", "samples", "app", "-o", "named.fdata"]);
    let [by_address, by_name] =
        [("samples", "a.fdata"), ("named.fdata", "n.fdata")].map(|(profile, fitted)| {
            let mut account = folder.optimize("app", profile, &["--save-profile", fitted]);
            let fitted = fs::read_to_string(folder.path(fitted)).expect("written above");
            let out = fs::read(folder.path("out")).expect("written above");
            (account["optimize"].take(), fitted, out)
        });
    assert!(by_address.1.lines().count() > 300);
    assert_eq!(by_address.1, by_name.1);
    assert_eq!(by_address.0, by_name.0);
    assert!(by_address.2 == by_name.2, "other outputs");
    for figure in ["bad_counts", "impossible_runs", "stale", "unknown_names"] {
        assert_eq!(by_address.0["profile"][figure], 0, "{figure}");
    }
}

#[test]
fn llvm_bolts_command_line_does_llvm_bolts_work() {
    let folder = Folder::new();
    folder.build("app", &program(1));
    let link = folder.path("llvm-bolt");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_postlink"), &link).expect("the folder is ours");
    let plain = folder.run(folder.path("app"), &[]);
    let counters = format!(
        "-instrumentation-file={}",
        folder.path("prof.fdata").display()
    );
    folder.run(&link, &["app", "-instrument", "-o", "app.inst", &counters]);
    assert_eq!(folder.run(folder.path("app.inst"), &[]), plain);
    let said = folder.run(
        &link,
        &[
            "app",
            "-o",
            "app.bolt",
            "-data=prof.fdata",
            "-reorder-blocks=cache+",
            "-reorder-functions=hfsort",
            "-split-functions=2",
            "-split-all-cold",
            "-split-eh",
            "-dyno-stats",
        ],
    );
    assert!(
        said.contains("have non-empty execution profile") && said.contains(" : taken branches (-"),
        "{said}"
    );
    assert_eq!(folder.run(folder.path("app.bolt"), &[]), plain);
    // Nothing that the command line does not name.
    let said = folder.run(
        &link,
        &[
            "app",
            "-o",
            "app.same",
            "-data=prof.fdata",
            "-dyno-stats",
            "-skip-funcs=f1.*",
        ],
    );
    assert!(said.contains(" : taken branches (=)"), "{said}");
    let output = folder.start(
        &link,
        &["app", "-o", "x", "-data=prof.fdata", "-no-such-option"],
    );
    assert_eq!(output.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&output.stderr)
            .starts_with("BOLT-ERROR: Unknown command line argument")
    );
}

#[test]
fn llvm_bolts_command_line_without_a_profile_does_what_its_options_ask() {
    let folder = Folder::new();
    folder.build("app", &program(1));
    let link = folder.path("llvm-bolt");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_postlink"), &link).expect("the folder is ours");
    let plain = folder.run(folder.path("app"), &[]);
    let bytes = |name: &str| fs::read(folder.path(name)).expect("written before");

    // Options that go by counts change nothing.
    let layout = [
        "app",
        "-o",
        "copy",
        "-reorder-blocks=ext-tsp",
        "-reorder-functions=cdsort",
        "-split-functions",
        "-split-all-cold",
        "-dyno-stats",
    ];
    let said = folder.run(&link, &layout);
    assert!(
        said.contains("BOLT-INFO: 0 out of ") && said.contains("copy is a copy of app"),
        "{said}"
    );
    assert!(bytes("copy") == bytes("app"), "the file is as it was");
    assert_eq!(folder.run(folder.path("copy"), &[]), plain);

    // An order does not; names that nothing has are told.
    fs::write(folder.path("order"), "f3\nmain\nnobody\nf1\n").expect("the folder is ours");
    let said = folder.run(
        &link,
        &[
            "app",
            "-o",
            "ordered",
            "-reorder-functions=user",
            "-function-order=order",
        ],
    );
    assert!(
        said.contains("BOLT-INFO: 3 functions moved, ")
            && said
                .contains("1 of 4 names in the list of functions are not in the binary (nobody …)")
            && said.contains("BOLT-INFO: proved: 3 moved functions"),
        "{said}"
    );
    assert_eq!(folder.run(folder.path("ordered"), &[]), plain);
    let places = folder.postlink(&["verify", "app", "ordered", "--json"]);
    assert!(places.contains("\"proved\""), "{places}");

    // So do calls through the procedure linkage table.
    let said = folder.run(&link, &["app", "-o", "direct", "-plt=all"]);
    assert!(
        said.contains("BOLT-INFO: --plt: ") || said.contains("BOLT-INFO: -plt: "),
        "{said}"
    );
    assert_eq!(folder.run(folder.path("direct"), &[]), plain);

    // A profile that is not there cannot be saved.
    let output = folder.start(&link, &["app", "-o", "x", "-w", "y.yaml"]);
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        message.starts_with("BOLT-ERROR: -w saves a profile"),
        "{message}"
    );
}

#[test]
fn damaged_profiles_are_fitted_or_refused_and_never_a_panic() {
    let folder = Folder::new();
    folder.build("app", &program(1));
    folder.count("app");
    let plain = folder.run(folder.path("app"), &[]);
    let postlink = Path::new(env!("CARGO_BIN_EXE_postlink"));
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut fitted = 0;
    for format in ["app.fdata", "app.yaml"] {
        folder.postlink(&["convert", "app.plraw", "-o", format, "--binary", "app"]);
        let good = fs::read(folder.path(format)).expect("written above");
        for round in 0..16 {
            let mut bad = good.clone();
            // Digits only, from a few to a quarter of them, and none that says what a record is, so that the
            // reader lets it pass.
            let share = [500, 50, 10, 4][round % 4];
            let body = good
                .windows(10)
                .position(|w| w == b"functions:")
                .unwrap_or(1);
            for at in body..bad.len() - 1 {
                let around = [good[at - 1], good[at + 1]];
                let alone = around[0].is_ascii_whitespace() && around[1].is_ascii_whitespace();
                if good[at].is_ascii_digit() && around[1] != b'x' && !alone && random() % share == 0
                {
                    bad[at] = b'0' + (random() % 10) as u8;
                }
            }
            fs::write(folder.path("bad"), &bad).expect("the folder is ours");
            let output = folder.start(postlink, &["optimize", "app", "-p", "bad", "-o", "out"]);
            let message = String::from_utf8_lossy(&output.stderr).into_owned();
            match output.status.code() {
                Some(0) => {
                    fitted += 1;
                    assert_eq!(folder.run(folder.path("out"), &[]), plain, "{message}");
                }
                Some(1) => assert!(message.contains("error: "), "{message}"),
                code => panic!("{format}, round {round}: exit code {code:?}: {message}"),
            }
        }
    }
    assert!(fitted > 4, "{fitted} of 32 damaged profiles were fitted");
}
