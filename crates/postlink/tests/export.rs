//! `postlink export`: coverage is that of gcov and llvm-cov, and the tools that files are for read them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

mod support;
use support::folder::Folder;
use support::is_installed;

/// No line but one has code that is entered from several places, so that all tools mean the same by its count.
const SOURCE: &str = r#"#include <stdio.h>
#include <stdlib.h>
static int twice(int x) {
  return x * 2;
}
int never_called(int x) {
  if (x > 3)
    x -= 3;
  return x;
}
int classify(int x) {
  switch (x % 5) {
  case 0:
    return 11;
  case 1:
    x += 3;
    break;
  case 7:
    x = 9;
    break;
  default:
    x = twice(x);
  }
  return x;
}
int main(int argc, char **argv) {
  int sum = 0;
  int n = argc > 1 ? atoi(argv[1]) : 100;
  for (int i = 0; i < n; i++) {
    if (i % 3 == 0 && i > 10) {
      sum += classify(i);
    } else {
      sum ^= i;
    }
    while (sum > 1000)
      sum -= 777;
  }
  if (sum < 0)
    abort();
  printf("%d\n", sum);
  return 0;
}
"#;

/// `app`, which is not optimised by its compiler, and its profile.
impl Folder {
    fn made() -> Folder {
        let made = Folder::new();
        fs::write(made.path("app.c"), SOURCE).expect("the folder is ours");
        made.run("gcc", &["-g", "-O0", "-Wl,-q", "app.c", "-o", "app"]);
        made.count_run("app", "run.plraw", &[]);
        made
    }

    fn export(&self, format: &str, file: &str, options: &[&str]) {
        let arguments = [
            "export",
            "app",
            "-p",
            "run.plraw",
            "--to",
            format,
            "-o",
            file,
        ];
        self.postlink(&[&arguments[..], options].concat());
    }
}

/// Lines of `app.c` with their counts, from a tracefile.
fn lines(tracefile: &str) -> BTreeMap<u32, u64> {
    let mut of = BTreeMap::new();
    let mut is_ours = false;
    for line in tracefile.lines() {
        if let Some(file) = line.strip_prefix("SF:") {
            is_ours = Path::new(file)
                .file_name()
                .is_some_and(|name| name == "app.c");
        }
        if let Some((number, count)) = line.strip_prefix("DA:").and_then(|l| l.split_once(','))
            && is_ours
        {
            of.insert(
                number.parse().expect("a line"),
                count.parse().expect("a count"),
            );
        }
    }
    of
}

#[test]
fn lines_and_functions_ran_as_often_as_gcov_says() {
    let made = Folder::made();
    made.export("lcov", "app.info", &[]);
    let ours = lines(&made.text("app.info"));
    made.run("gcc", &["-O0", "--coverage", "app.c", "-o", "cov"]);
    made.run("./cov", &[]);
    let said = made.run("gcov", &["--stdout", "cov-app.gcda"]);
    let mut gcov = BTreeMap::new();
    for line in said.lines() {
        let mut fields = line.splitn(3, ':').map(str::trim);
        let (Some(count), Some(number)) = (fields.next(), fields.next()) else {
            continue;
        };
        let count = match count {
            "-" => continue,
            "#####" => 0,
            count => count.trim_end_matches('*').parse().expect("a count"),
        };
        gcov.insert(number.parse::<u32>().expect("a line"), count);
    }
    assert!(gcov.len() > 25, "{said}");
    let both = |a: &BTreeMap<u32, u64>, b: &BTreeMap<u32, u64>| {
        let lines = a.iter().filter(|(line, _)| b.contains_key(line));
        lines
            .map(|(line, count)| (*line, *count))
            .collect::<Vec<_>>()
    };
    assert_eq!(both(&ours, &gcov), both(&gcov, &ours));
    // The end of a function has instructions, but gcov does not count it; a label has none, but gcov counts it.
    let text: Vec<&str> = SOURCE.lines().map(str::trim).collect();
    for line in ours.keys().filter(|line| !gcov.contains_key(line)) {
        assert_eq!(text[*line as usize - 1], "}", "line {line}");
    }
    for line in gcov.keys().filter(|line| !ours.contains_key(line)) {
        assert!(text[*line as usize - 1].ends_with(':'), "line {line}");
    }
    let info = made.text("app.info");
    for function in [
        "FN:26,main",
        "FNDA:1,main",
        "FNDA:0,never_called",
        "FNDA:30,classify",
    ] {
        assert!(
            info.lines().any(|line| line == function),
            "{function}: {info}"
        );
    }
}

#[test]
fn branches_went_where_gcov_says() {
    let made = Folder::made();
    made.export("lcov", "app.info", &[]);
    // By line: how often ways of branches were gone, in any order.
    let mut ours: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    for line in made.text("app.info").lines() {
        if let Some(branch) = line.strip_prefix("BRDA:") {
            let fields: Vec<&str> = branch.split(',').collect();
            let count = if fields[3] == "-" { "0" } else { fields[3] };
            ours.entry(fields[0].parse().expect("a line"))
                .or_default()
                .push(count.parse().expect("a count"));
        }
    }
    made.run("gcc", &["-O0", "--coverage", "app.c", "-o", "cov"]);
    made.run("./cov", &[]);
    let mut gcov: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    let mut number = 0;
    for line in made
        .run("gcov", &["--stdout", "-b", "-c", "cov-app.gcda"])
        .lines()
    {
        if let Some(branch) = line.strip_prefix("branch ") {
            let fields: Vec<&str> = branch.split_whitespace().collect();
            let count = if fields[1] == "never" { "0" } else { fields[2] };
            gcov.entry(number)
                .or_default()
                .push(count.parse().expect("a count"));
        } else if let Some(n) = line.split(':').nth(1).and_then(|n| n.trim().parse().ok()) {
            number = n;
        }
    }
    // A switch is one branch of many ways to gcov, and comparisons one after the other in the program.
    let switch = 12;
    assert!(ours.remove(&switch).is_some() && gcov.remove(&switch).is_some());
    for of in ours.values_mut().chain(gcov.values_mut()) {
        of.sort_unstable();
    }
    assert!(gcov.len() >= 6, "{gcov:?}");
    assert_eq!(ours, gcov);
}

#[test]
fn lines_ran_as_often_as_llvm_cov_says() {
    let tools = ["clang-19", "llvm-profdata-19", "llvm-cov-19"];
    if !tools.iter().all(|tool| is_installed(tool)) {
        return;
    }
    let made = Folder::made();
    made.export("lcov", "app.info", &[]);
    let ours = lines(&made.text("app.info"));
    let flags = [
        "-O0",
        "-fprofile-instr-generate=cov.raw",
        "-fcoverage-mapping",
        "app.c",
        "-o",
        "cov",
    ];
    made.run("clang-19", &flags);
    made.run("./cov", &[]);
    made.run(
        "llvm-profdata-19",
        &["merge", "cov.raw", "-o", "cov.profdata"],
    );
    let export = [
        "export",
        "--format=lcov",
        "--instr-profile=cov.profdata",
        "./cov",
    ];
    let theirs = lines(&made.run("llvm-cov-19", &export));
    // llvm-cov counts regions of text: every line of a region is in it, code or not, and the line on which a region
    // ends has the count of the region's beginning.
    let differ: BTreeSet<u32> = ours
        .iter()
        .filter(|(line, count)| theirs.get(line) != Some(count))
        .map(|(line, _)| *line)
        .collect();
    assert_eq!(differ, BTreeSet::new(), "{ours:?} {theirs:?}");
}

#[test]
fn cobertura_is_well_formed_and_has_the_same_lines() {
    let made = Folder::made();
    made.export("lcov", "app.info", &[]);
    made.export("cobertura", "app.xml", &[]);
    let xml = made.text("app.xml");
    let body = xml.split("</methods>").nth(1).expect("a class");
    let mut found = BTreeMap::new();
    for line in body.lines().filter(|line| line.starts_with("<line ")) {
        let value = |name: &str| {
            let (_, rest) = line
                .split_once(&format!("{name}=\""))
                .expect("the attribute");
            rest.split_once('"')
                .expect("its end")
                .0
                .parse::<u64>()
                .expect("a number")
        };
        found.insert(value("number") as u32, value("hits"));
    }
    assert_eq!(found, lines(&made.text("app.info")));
    assert!(
        xml.contains("condition-coverage=\"75% (3/4)\"") || xml.contains("(4/4)"),
        "{xml}"
    );
    if is_installed("python3") {
        let check = "import sys, xml.etree.ElementTree as t; r = t.parse('app.xml').getroot(); \
                     print(r.tag, len(r.findall('.//method')), r.get('lines-valid'))";
        let said = made.run("python3", &["-c", check]);
        assert_eq!(said.trim(), format!("coverage 4 {}", found.len()));
    }
}

#[test]
fn genhtml_reads_the_tracefile() {
    if !is_installed("genhtml") {
        return;
    }
    let made = Folder::made();
    made.export("lcov", "app.info", &[]);
    let said = made.run("genhtml", &["--branch-coverage", "-o", "html", "app.info"]);
    assert!(made.path("html/index.html").exists());
    // What it has read of the file is what is in it.
    let lines = lines(&made.text("app.info"));
    let ran = lines.values().filter(|count| **count > 0).count();
    assert!(ran > 10 && ran < lines.len(), "{lines:?}");
    let part = format!("({ran} of {} lines)", lines.len());
    assert!(said.contains(&part), "{part} is not in {said}");
}

/// What was executed in each function, as the report's data has it.
fn own(made: &Folder) -> BTreeMap<String, u64> {
    made.postlink(&[
        "report",
        "app",
        "-p",
        "run.plraw",
        "--json",
        "-o",
        "report.json",
    ]);
    let report: serde_json::Value = serde_json::from_str(&made.text("report.json")).expect("JSON");
    let column = |name: &str| report["ran"][name].as_array().expect("a column").clone();
    let instructions = column("instructions")
        .into_iter()
        .map(|n| n.as_u64().expect("a count"));
    let names = column("name")
        .into_iter()
        .map(|n| n.as_str().expect("a name").to_owned());
    names
        .zip(instructions)
        .filter(|(_, own)| *own > 0)
        .collect()
}

#[test]
fn folded_stacks_add_up_to_what_each_function_executed() {
    let made = Folder::made();
    made.export("folded", "app.folded", &[]);
    let text = made.text("app.folded");
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for line in text.lines() {
        let (stack, count) = line.rsplit_once(' ').expect("a count");
        let leaf = stack.rsplit(';').next().expect("a function");
        *sums.entry(leaf.to_owned()).or_default() += count.parse::<u64>().expect("a count");
    }
    assert_eq!(sums, own(&made));
    assert!(
        text.lines()
            .any(|line| line.contains("main;classify;twice ")),
        "{text}"
    );
    assert!(!text.contains("never_called"));
}

#[test]
fn inferno_reads_folded_stacks() {
    let made = Folder::made();
    made.export("folded", "app.folded", &[]);
    let mut options = inferno::flamegraph::Options::default();
    options.count_name = "instructions".to_owned();
    let file = made.dir().join("app.folded");
    let mut svg = vec![];
    inferno::flamegraph::from_files(&mut options, &[file], &mut svg).expect("it is read");
    let svg = String::from_utf8(svg).expect("text");
    let sum: u64 = own(&made).values().sum();
    let drawn: String = svg.replace(',', "");
    assert!(
        drawn.contains(&format!("all ({sum} instructions 100%)")),
        "{sum}: {svg}"
    );
    for name in own(&made).keys() {
        assert!(svg.contains(&format!("<title>{name} (")), "{name}: {svg}");
    }
}

#[test]
fn speedscope_has_the_same_stacks_in_its_shape() {
    let made = Folder::made();
    made.export("speedscope", "app.json", &[]);
    let file: serde_json::Value = serde_json::from_str(&made.text("app.json")).expect("JSON");
    assert_eq!(
        file["$schema"],
        "https://www.speedscope.app/file-format-schema.json"
    );
    let (frames, profile) = (&file["shared"]["frames"], &file["profiles"][0]);
    let (samples, weights) = (&profile["samples"], &profile["weights"]);
    assert_eq!(
        (&profile["type"], &profile["unit"]),
        (&"sampled".into(), &"none".into())
    );
    let (samples, weights) = (
        samples.as_array().expect("samples"),
        weights.as_array().expect("weights"),
    );
    assert_eq!(samples.len(), weights.len());
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for (sample, weight) in samples.iter().zip(weights) {
        let leaf = sample
            .as_array()
            .and_then(|s| s.last()?.as_u64())
            .expect("a frame");
        let name = frames[leaf as usize]["name"].as_str().expect("a name");
        *sums.entry(name.to_owned()).or_default() += weight.as_u64().expect("a weight");
    }
    assert_eq!(sums, own(&made));
    assert_eq!(profile["endValue"].as_u64(), Some(sums.values().sum()));
}

#[test]
fn callgrind_annotate_reads_what_each_function_executed() {
    if !is_installed("callgrind_annotate") {
        return;
    }
    let made = Folder::made();
    made.export("callgrind", "callgrind.out", &[]);
    assert!(made.text("callgrind.out").contains("calls=30 "));
    let number = |text: &str| text.replace(',', "").parse::<u64>().ok();
    let found = |options: &[&str]| -> BTreeMap<String, u64> {
        let said = made.run(
            "callgrind_annotate",
            &[options, &["callgrind.out"]].concat(),
        );
        let rows = said.lines().filter_map(|line| {
            let (_, name) = line.rsplit_once(':')?;
            let count = number(line.split_whitespace().next()?)?;
            Some((name.split(" [").next()?.trim().to_owned(), count))
        });
        rows.collect()
    };
    let alone = found(&["--threshold=100"]);
    let own = own(&made);
    for (name, count) in &own {
        assert_eq!(alone.get(name), Some(count), "{name}: {alone:?}");
    }
    // With all that it calls main has what is executed in the functions of the source.
    let with_callees = found(&["--threshold=100", "--inclusive=yes"]);
    let sum = own["main"] + own["classify"] + own["twice"];
    assert!(
        with_callees["main"].abs_diff(sum) <= sum / 50,
        "{with_callees:?} {sum}"
    );
}

#[test]
fn pprof_reads_what_each_function_executed() {
    if !is_installed("go") {
        return;
    }
    let made = Folder::made();
    made.export("pprof", "app.pb.gz", &[]);
    let top = |options: &[&str]| {
        made.run(
            "go",
            &[&["tool", "pprof"], options, &["app.pb.gz"]].concat(),
        )
    };
    let said = top(&["-top", "-unit=count", "-nodefraction=0", "-nodecount=1000"]);
    // flat, flat%, sum%, cum, cum%, name
    let rows = said.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [flat, _, sum, cumulative, _, name] = fields[..] else {
            return None;
        };
        sum.ends_with('%').then_some(())?;
        Some((
            name.to_owned(),
            (flat.parse::<u64>().ok()?, cumulative.parse::<u64>().ok()?),
        ))
    });
    let rows: BTreeMap<String, (u64, u64)> = rows.collect();
    let own = own(&made);
    for (name, count) in &own {
        assert_eq!(
            rows.get(name).map(|row| row.0),
            Some(*count),
            "{name}: {said}"
        );
    }
    let sum = own["main"] + own["classify"] + own["twice"];
    assert!(rows["main"].1.abs_diff(sum) <= sum / 50, "{said}");
    // Addresses, lines and the mapping are there for who asks.
    let raw = top(&["-raw"]);
    assert!(
        raw.contains("instructions/count[dflt]") && raw.contains("app.c:"),
        "{raw}"
    );
    assert!(
        raw.lines()
            .any(|line| line.starts_with("1: 0x") && line.contains("/app")),
        "{raw}"
    );
    // The same bytes each time: no time is in them.
    made.export("pprof", "again.pb.gz", &[]);
    let read = |name: &str| fs::read(made.path(name)).expect("it was written");
    assert_eq!(read("app.pb.gz"), read("again.pb.gz"));
}

#[test]
fn firefox_has_the_same_stacks_in_its_tables() {
    let made = Folder::made();
    made.export("firefox", "app.json", &[]);
    let file: serde_json::Value = serde_json::from_str(&made.text("app.json")).expect("JSON");
    assert!(file["meta"]["preprocessedProfileVersion"].as_u64() > Some(40));
    let thread = &file["threads"][0];
    let number = |value: &serde_json::Value| value.as_u64().expect("a number") as usize;
    let strings = thread
        .get("stringArray")
        .unwrap_or(&file["shared"]["stringArray"]);
    let tables = |name: &str| thread.get(name).unwrap_or(&file["shared"][name]);
    let samples = &thread["samples"];
    assert_eq!(samples["weightType"], "samples");
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    let weights = samples["weight"].as_array().expect("weights");
    for (stack, weight) in samples["stack"]
        .as_array()
        .expect("stacks")
        .iter()
        .zip(weights)
    {
        let frame = number(&tables("stackTable")["frame"][number(stack)]);
        let function = number(&tables("frameTable")["func"][frame]);
        let name = &strings[number(&tables("funcTable")["name"][function])];
        let name = name.as_str().expect("a name");
        *sums.entry(name.to_owned()).or_default() += weight.as_u64().expect("a weight");
    }
    assert_eq!(sums, own(&made));
}

#[test]
fn a_flame_graph_is_well_formed_and_has_every_function_that_ran() {
    let made = Folder::made();
    made.export("svg", "app.svg", &[]);
    let svg = made.text("app.svg");
    let own = own(&made);
    let all: u64 = own.values().sum();
    let grouped = |n: u64| {
        let digits = n.to_string();
        let cut = digits.len() % 3;
        let (first, rest) = digits.split_at(cut);
        let rest = rest
            .as_bytes()
            .chunks(3)
            .map(|c| String::from_utf8_lossy(c).into_owned());
        let parts = std::iter::once(first.to_owned()).chain(rest);
        parts
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join(",")
    };
    assert!(
        svg.contains(&format!("all ({} instructions, 100%)", grouped(all))),
        "{svg}"
    );
    for name in own.keys() {
        assert!(svg.contains(&format!("<title>{name} (")), "{name}: {svg}");
    }
    if is_installed("python3") {
        let check =
            "import sys, xml.etree.ElementTree as t; print(t.parse('app.svg').getroot().tag)";
        assert_eq!(
            made.run("python3", &["-c", check]).trim(),
            "{http://www.w3.org/2000/svg}svg"
        );
    }
    made.export("svg", "again.svg", &[]);
    assert_eq!(svg, made.text("again.svg"), "colours by chance");
}

#[test]
fn drcov_has_each_block_that_ran() {
    let made = Folder::made();
    made.export("drcov", "app.drcov", &[]);
    let file = fs::read(made.path("app.drcov")).expect("it was written");
    let marker = b" bbs\n";
    let at = file
        .windows(marker.len())
        .position(|w| w == marker)
        .expect("a table")
        + marker.len();
    let text = String::from_utf8_lossy(&file[..at]);
    assert!(
        text.starts_with(
            "DRCOV VERSION: 2\nDRCOV FLAVOR: postlink\nModule Table: version 2, count 1\nColumns: "
        ),
        "{text}"
    );
    let said: usize = text
        .rsplit_once("BB Table: ")
        .and_then(|(_, rest)| rest.split(' ').next()?.parse().ok())
        .expect("a number of blocks");
    let blocks: Vec<(u32, u16, u16)> = file[at..]
        .chunks_exact(8)
        .map(|b| {
            (
                u32::from_le_bytes([b[0], b[1], b[2], b[3]]),
                u16::from_le_bytes([b[4], b[5]]),
                u16::from_le_bytes([b[6], b[7]]),
            )
        })
        .collect();
    assert_eq!((blocks.len(), (file.len() - at) % 8), (said, 0));
    let address = |name: &str| {
        let symbols = made.run("nm", &["app"]);
        let line = symbols
            .lines()
            .find(|line| line.ends_with(&format!(" {name}")));
        u32::from_str_radix(&line.expect("a symbol")[..16], 16).expect("an address")
    };
    let covers = |at: u32| {
        blocks
            .iter()
            .any(|b| b.0 <= at && at < b.0 + u32::from(b.1) && b.2 == 0)
    };
    assert!(covers(address("main")) && covers(address("classify")));
    assert!(!covers(address("never_called")));
}

#[test]
fn a_graph_is_read_by_graphviz() {
    let made = Folder::made();
    made.export("dot", "main.dot", &["--function", "main"]);
    let dot = made.text("main.dot");
    assert!(
        dot.starts_with("digraph \"main\" {") && dot.contains(" -> "),
        "{dot}"
    );
    assert!(dot.contains("app.c:"), "{dot}");
    let export = [
        "export",
        "app",
        "-p",
        "run.plraw",
        "--to",
        "dot",
        "-o",
        "x.dot",
    ];
    assert!(made.refused(&export).contains("--function"));
    let named = |name| made.refused(&[&export[..], &["--function", name]].concat());
    assert!(named("nobody").contains("no function is named 'nobody'"));
    assert!(named("never_called").contains("did not run"));
    if is_installed("dot") {
        let svg = made.run("dot", &["-Tsvg", "main.dot"]);
        assert!(svg.contains("<svg"), "{svg}");
    }
}

#[test]
fn without_debug_information_coverage_says_what_is_missing() {
    let made = Folder::made();
    made.run("gcc", &["-O0", "-Wl,-q", "app.c", "-o", "app"]);
    made.postlink(&[
        "instrument",
        "app",
        "-o",
        "app.inst",
        "--profile",
        "bare.plraw",
    ]);
    made.run("./app.inst", &[]);
    for format in ["lcov", "cobertura"] {
        let export = [
            "export",
            "app",
            "-p",
            "bare.plraw",
            "--to",
            format,
            "-o",
            "x",
        ];
        let said = made.refused(&export);
        assert!(
            said.contains("needs source lines") && said.contains("-g"),
            "{said}"
        );
        assert!(!made.path("x").exists());
    }
}

/// The description of a format in `tests/formats`.
fn format(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats");
    folder.join(name).to_string_lossy().into_owned()
}

/// Whether xmllint finds that the file has the elements and attributes that Cobertura's have.
fn is_coberturas(made: &Folder, file: &str) -> bool {
    let output = Command::new("xmllint")
        .args(["--noout", "--nonet", "--dtdvalid", &format("cobertura.dtd")])
        .arg(file)
        .current_dir(made.dir())
        .output()
        .expect("xmllint is there");
    let said = String::from_utf8_lossy(&output.stderr);
    let is_invalid = said.contains("does not validate");
    assert_ne!(output.status.success(), is_invalid, "{said}");
    !is_invalid
}

#[test]
fn cobertura_is_valid_by_its_document_type() {
    if !is_installed("xmllint") {
        eprintln!("SKIPPED: xmllint is not installed (Debian package libxml2-utils)");
        return;
    }
    let made = Folder::made();
    made.export("cobertura", "app.xml", &[]);
    assert!(is_coberturas(&made, "app.xml"));
    let xml = made.text("app.xml");
    for (part, other) in [(" hits=\"", " times=\""), ("methods>", "functions>")] {
        let broken = xml.replace(part, other);
        assert_ne!(broken, xml);
        fs::write(made.path("broken.xml"), broken).expect("the folder is ours");
        assert!(!is_coberturas(&made, "broken.xml"), "{part} is needed");
    }
}

/// What Python's jsonschema finds wrong in a file, a line each: path and message. `without` is a path of a member that
/// is left out first, so that a test shows that its schema can fail.
fn schema_errors(made: &Folder, file: &str, schema: &str, without: &[&str]) -> String {
    let check = "import json, sys, jsonschema\n\
        file, schema = (json.load(open(path)) for path in sys.argv[1:3])\n\
        at, path = file, sys.argv[3:]\n\
        for name in path[:-1]: at = at[int(name) if isinstance(at, list) else name]\n\
        if path: del at[path[-1]]\n\
        jsonschema.Draft7Validator.check_schema(schema)\n\
        for e in jsonschema.Draft7Validator(schema).iter_errors(file): print(list(e.path), e.message[:200])";
    let schema = format(schema);
    let arguments = ["-c", check, file, schema.as_str()];
    made.run("python3", &[&arguments[..], without].concat())
}

/// Whether Python has jsonschema; says so if not.
fn has_jsonschema() -> bool {
    let found = Command::new("python3")
        .args(["-c", "import jsonschema"])
        .output()
        .is_ok_and(|output| output.status.success());
    if !found {
        eprintln!(
            "SKIPPED: Python's jsonschema is not installed (Debian package python3-jsonschema)"
        );
    }
    found
}

#[test]
fn speedscope_and_firefox_files_are_valid_by_the_schemas_of_their_formats() {
    if !has_jsonschema() {
        return;
    }
    let made = Folder::made();
    for (to, schema, needed) in [
        (
            "speedscope",
            "speedscope.schema.json",
            &[
                &["shared"][..],
                &["shared", "frames", "0", "name"],
                &["profiles", "0", "weights"],
            ][..],
        ),
        (
            "firefox",
            "firefox.schema.json",
            &[
                &["libs"],
                &["meta", "preprocessedProfileVersion"],
                &["threads", "0", "stackTable", "prefix"],
                &["threads", "0", "samples", "timeDeltas"],
            ],
        ),
    ] {
        made.export(to, "app.json", &[]);
        assert_eq!(schema_errors(&made, "app.json", schema, &[]), "", "{to}");
        for path in needed {
            let errors = schema_errors(&made, "app.json", schema, path);
            assert!(!errors.is_empty(), "{to} needs {path:?}");
        }
    }
}

/// What Firefox Profiler takes for granted and no schema says: columns are as long as their table, indexes lie in the
/// table that they are of, and a stack comes after the one that it extends.
#[test]
fn firefox_tables_are_whole_and_their_indexes_lie_in_them() {
    let made = Folder::made();
    made.export("firefox", "app.json", &[]);
    let file: serde_json::Value = serde_json::from_str(&made.text("app.json")).expect("JSON");
    let thread = file["threads"][0].as_object().expect("a thread");
    let length = |name: &str| match &thread[name] {
        serde_json::Value::Array(strings) => strings.len() as u64,
        table => table["length"].as_u64().expect("a length"),
    };
    for (name, table) in thread {
        let columns = table.as_object().into_iter().flatten();
        for (column, values) in columns.filter_map(|(name, v)| Some((name, v.as_array()?))) {
            assert_eq!(values.len() as u64, length(name), "{name}.{column}");
        }
    }
    for (table, column, of) in [
        ("samples", "stack", "stackTable"),
        ("stackTable", "frame", "frameTable"),
        ("stackTable", "prefix", "stackTable"),
        ("frameTable", "func", "funcTable"),
        ("frameTable", "nativeSymbol", "nativeSymbols"),
        ("funcTable", "name", "stringArray"),
        ("funcTable", "resource", "resourceTable"),
        ("funcTable", "fileName", "stringArray"),
        ("resourceTable", "name", "stringArray"),
    ] {
        let values = thread[table][column].as_array().expect("a column");
        let is_none = |v: &serde_json::Value| v.is_null() || v.as_i64() == Some(-1);
        for (row, value) in values.iter().enumerate().filter(|(_, v)| !is_none(v)) {
            let index = value.as_u64().expect("an index");
            let end = if column == "prefix" {
                row as u64
            } else {
                length(of)
            };
            assert!(index < end, "{table}.{column}[{row}] is {index} of {end}");
        }
    }
    assert!(length("samples") > 0 && length("stackTable") > 0);
}

/// A reader of its own, by Lighthouse's way: columns by their names in the header, and blocks by the module's base. No
/// reader of drcov is a package of Debian's or PyPI's that could be asked instead.
const DRCOV_READER: &str = r#"
import struct, sys
data = open(sys.argv[1], "rb").read()
head, rest = data.split(b"BB Table: ", 1)
lines = head.decode().splitlines()
assert lines[0] == "DRCOV VERSION: 2", lines[0]
version, count = (part.split()[-1] for part in lines[2].removeprefix("Module Table: ").split(","))
names = [name.strip() for name in lines[3].removeprefix("Columns:").split(",")]
modules = []
for line in lines[4:]:
    row = dict(zip(names, (cell.strip() for cell in line.split(",", len(names) - 1)), strict=True))
    modules.append((int(row["id"]), int(row["base"], 16), int(row["end"], 16), row["path"]))
assert len(modules) == int(count), modules
said, body = rest.split(b" bbs\n", 1)
blocks = list(struct.iter_unpack("<IHH", body))
assert len(blocks) == int(said)
for offset, size, module in blocks:
    _, base, end, _ = modules[module]
    assert size > 0 and base + offset + size <= end, (offset, size, end)
print(modules[0][3])
for offset, size, module in blocks:
    print(modules[module][1] + offset, size)
"#;

#[test]
fn drcov_is_read_back_by_a_reader_that_knows_its_columns_by_name() {
    if !is_installed("python3") {
        eprintln!("SKIPPED: python3 is not installed (Debian package python3)");
        return;
    }
    let made = Folder::made();
    made.export("drcov", "app.drcov", &[]);
    let read = made.run("python3", &["-c", DRCOV_READER, "app.drcov"]);
    let (path, blocks) = read.split_once('\n').expect("a path");
    assert!(Path::new(path).ends_with("app"), "{path}");
    // Lines of the blocks, by another reader of the debug information, are those that ran.
    made.export("lcov", "app.info", &[]);
    let addresses: Vec<String> = blocks
        .lines()
        .filter_map(|line| line.split(' ').next()?.parse::<u64>().ok())
        .map(|address| format!("{address:#x}"))
        .collect();
    let arguments = ["-e", "app"].into_iter().map(str::to_owned);
    let arguments: Vec<String> = arguments.chain(addresses).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let counts = lines(&made.text("app.info"));
    let mut found = BTreeSet::new();
    for place in made.run("addr2line", &words).lines() {
        let line = place.rsplit(':').next().unwrap_or_default();
        let line = line.split(' ').next().and_then(|n| n.parse::<u32>().ok());
        found.extend(line.filter(|_| place.contains("app.c")));
    }
    assert!(found.len() > 10, "{found:?}");
    for line in &found {
        assert!(counts.get(line).is_some_and(|n| *n > 0), "line {line}");
    }
}
