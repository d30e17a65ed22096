//! Address translation end to end: our tables read by perf2bolt, llvm-bolt's read by us, tables that outlive
//! strip, and optimising again from a profile of the optimised program.
//!
//! perf2bolt and llvm-bolt 22 are needed for the comparisons, qemu-user for branch records; a test says
//! loudly what it skips without them.

mod aarch64;
mod folding;
mod passes;
mod perf2bolt;
mod profgen;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const LLVM: &str = "/usr/lib/llvm-22/bin";

/// Loops, a switch, virtual calls, exceptions whose handlers the compiler splits off, static functions of the
/// same name.
const SOURCE: &str = r#"
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>
struct Shape { virtual int area(int x) = 0; virtual ~Shape() {} };
struct Square : Shape { int area(int x) override { return x * x; } };
struct Line : Shape { int area(int x) override { if (x % 1000 == 999) throw std::runtime_error("line " + std::to_string(x)); return x; } };
__attribute__((noinline)) static int pick(int x) {
  switch (x % 9) { case 0: return x + 1; case 1: return x * 7; case 2: return x / 3; case 3: return x ^ 0x55; case 4: return -x;
    case 5: if (x == 123456789) abort(); return x << 2; case 6: return x & 0xff; case 7: return x | 3; default: return 11; } }
__attribute__((noinline)) static long sum(const std::vector<int> &v) { long s = 0; for (int x : v) { if (x & 1) s += pick(x); else if (x % 3 == 0) s -= x; else s ^= x; } return s; }
__attribute__((noinline)) int guarded(Shape &s, int x) {
  try { return s.area(x) + (x & 4 ? pick(x) : 0); } catch (const std::exception &e) { return int(std::string(e.what()).size()); } }
int main(int argc, char **argv) {
  int n = argc > 1 ? atoi(argv[1]) : 2000; Square q; Line l; Shape *shapes[] = { &q, &l, &l };
  std::vector<int> v; for (int i = 0; i < 300; i++) v.push_back(i * 37 % 101);
  long s = 0; for (int i = 0; i < n; i++) { s += guarded(*shapes[i % 3], i); if (i % 16 == 0) s += sum(v); }
  printf("%ld\n", s); return 0; }
"#;

/// Whoever wrote this guessed wrong at every turn, so the compiler has laid it out badly. Cold parts are
/// split off and jump back.
const MISTAKEN: &str = r#"
#include <cstdio>
#include <cstdlib>
#define OFTEN(x) __builtin_expect(!!(x), 1)
__attribute__((noinline, cold)) static long rare(long x) { return x * 3 + (x >> 7); }
__attribute__((noinline)) static long digest(const unsigned char *p, int n, long s) {
  for (int i = 0; i < n; i++) {
    if (OFTEN(p[i] == 255)) { s = rare(s ^ i); if (s & 64) s += i; else s -= p[i]; }
    else if (OFTEN(p[i] < 3)) { s ^= s << 5; if (OFTEN(s < 0)) s = -s; s = rare(s); }
    else if (OFTEN(p[i] > 250)) { s += rare(p[i]); }
    else { s = s * 31 + p[i]; if (OFTEN((s & 1023) == 5)) s = rare(s + 1); }
  }
  return s;
}
__attribute__((noinline)) static int choose(int x) {
  if (OFTEN(x % 61 == 0)) return rare(x) & 7;
  switch (x % 7) { case 0: return 1; case 1: return x & 3; case 2: if (OFTEN(x % 35 == 2)) return rare(x) & 1; return 2; case 3: return 5; case 4: return 4; case 5: return 3; default: return 6; }
}
__attribute__((noinline)) static long turn(int op, long s, unsigned char *p, int n) {
  if (OFTEN(op == 7)) { for (int i = 0; i < n; i++) p[i] ^= i; return rare(s); }
  if (OFTEN(op == 0)) { p[s & 255] += 1; return s + 1; }
  if (OFTEN(s == 12345)) abort();
  return op < 4 ? digest(p, 16 * op, s) : digest(p, 8, s) ^ op;
}
int main(int argc, char **argv) {
  int n = argc > 1 ? atoi(argv[1]) : 2000; static unsigned char p[256]; unsigned r = 1; long s = 7;
  for (int i = 0; i < 256; i++) { r = r * 1103515245 + 12345; p[i] = r >> 16; }
  for (int i = 0; i < n; i++) { r = r * 1103515245 + 12345; s = turn(choose((r >> 16) & 0x7fff), s, p, 256); }
  printf("%ld\n", s); return 0;
}
"#;

fn run(command: &mut Command) -> Output {
    let output = command
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(
        output.status.success(),
        "{command:?}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

fn postlink() -> Command {
    Command::new(env!("CARGO_BIN_EXE_postlink"))
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What differs between machines.
struct Machine {
    compiler: &'static str,
    objdump: &'static str,
    /// Whether an instruction, as it is listed, transfers control.
    transfers: fn(&str) -> bool,
}

const X86_64: Machine = Machine {
    compiler: "g++",
    objdump: "objdump",
    transfers: |insn| {
        ["j", "call", "ret", "notrack j", "bnd"]
            .iter()
            .any(|m| insn.starts_with(m))
    },
};

/// A built program with a profile.
struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    /// Builds a program with a compiler, linked as `link` says.
    fn built(source: &str, compiler: &str, link: &[&str]) -> Bench {
        let bench = Bench {
            dir: tempfile::tempdir().expect("a temporary directory"),
        };
        std::fs::write(bench.at("p.cpp"), source).expect("the directory is ours");
        run(Command::new(compiler)
            .args(["-O2", "-Wl,-q", "-o"])
            .args([bench.at("p"), bench.at("p.cpp")])
            .args(link));
        bench
    }

    /// Builds the program and profiles it with our counters.
    fn new(link: &[&str]) -> Bench {
        let bench = Bench::built(SOURCE, X86_64.compiler, link);
        run(postlink()
            .arg("instrument")
            .arg(bench.at("p"))
            .arg("-o")
            .arg(bench.at("inst")));
        run(Command::new(bench.at("inst")).env("POSTLINK_PROFILE", bench.at("p.plraw")));
        bench
    }

    /// Aggregates samples of the program, or of an output of it.
    fn aggregate(&self, program: &Path, samples: &str, output: &str) {
        let mut command = postlink();
        command.arg("aggregate").arg("-p").arg(self.at(samples));
        run(command.arg(program).arg("-o").arg(self.at(output)));
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Optimises the original with a profile and tables.
    fn optimize(&self, profile: &str, output: &str) -> PathBuf {
        run(postlink()
            .arg("optimize")
            .arg(self.at("p"))
            .arg("-p")
            .arg(self.at(profile))
            .arg("-o")
            .arg(self.at(output))
            .arg("--enable-bat"));
        self.at(output)
    }

    /// llvm-bolt's output with tables, from a profile of its own.
    fn bolt(&self) -> PathBuf {
        let bolt = format!("{LLVM}/llvm-bolt");
        run(Command::new(&bolt)
            .arg(self.at("p"))
            .args(["-instrument", "-o"])
            .arg(self.at("bolt.inst"))
            .arg(format!(
                "--instrumentation-file={}",
                self.at("bolt.fdata").display()
            )));
        run(&mut Command::new(self.at("bolt.inst")));
        run(Command::new(&bolt)
            .arg(self.at("p"))
            .arg(format!("-data={}", self.at("bolt.fdata").display()))
            .args([
                "-reorder-blocks=ext-tsp",
                "-reorder-functions=cdsort",
                "-split-functions",
            ])
            .args(["-split-all-cold", "-enable-bat", "-o"])
            .arg(self.at("bolt.out")));
        self.at("bolt.out")
    }
}

fn is_there(tool: &str, what: &str) -> bool {
    let path = if tool.starts_with('/') {
        Some(PathBuf::from(tool))
    } else {
        std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
            .map(|dir| dir.join(tool))
            .find(|path| path.exists())
    };
    let there = path.is_some_and(|path| path.exists());
    if !there {
        eprintln!("SKIPPED: {tool} is not there: {what}");
    }
    there
}

/// A generator of numbers that is the same every time.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit.max(1)
    }
}

/// Pre-aggregated records all over the code of a program: branches and runs between instructions of its
/// functions, most of them as they could happen, some to the middle of anything. Not from there: what would be a
/// return if an instruction began in the middle of another is one here, and not for perf2bolt; nor does it see the one
/// of `.init`, which has no mapping symbol in what llvm-bolt makes of AArch64 programs.
fn records(machine: &Machine, binary: &Path) -> String {
    let listing = text(&run(Command::new(machine.objdump)
        .args(["-d", "--no-show-raw-insn"])
        .arg(binary)));
    // Instructions by function; and those that branch or call.
    let mut functions: Vec<(Vec<u64>, Vec<u64>)> = Vec::new();
    let mut is_wanted = true;
    for line in listing.lines() {
        if line.ends_with(">:") {
            is_wanted = !line.ends_with("<.init>:");
            functions.push(Default::default());
            continue;
        }
        if !is_wanted {
            continue;
        }
        let (Some((address, rest)), Some(last)) =
            (line.trim().split_once(":\t"), functions.last_mut())
        else {
            continue;
        };
        let Ok(address) = u64::from_str_radix(address, 16) else {
            continue;
        };
        last.0.push(address);
        if (machine.transfers)(rest) {
            last.1.push(address);
        }
    }
    functions.retain(|f| !f.1.is_empty());
    assert!(functions.len() > 20, "objdump shows the functions");
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut lines = BTreeSet::new();
    for _ in 0..3000 {
        let pick =
            |random: &mut Random, list: &[u64]| list[random.below(list.len() as u64) as usize];
        let f = &functions[random.below(functions.len() as u64) as usize];
        let g = &functions[random.below(functions.len() as u64) as usize];
        let from = pick(&mut random, &f.1);
        let to = match random.below(8) {
            0 | 1 => g.0[0],
            2 => pick(&mut random, &g.0) + random.below(3),
            3 => pick(&mut random, &g.0),
            _ => pick(&mut random, &f.0),
        };
        let count = 1 + random.below(1000);
        lines.insert(format!("B {from:x} {to:x} {count} {}", random.below(count)));
        let (start, end) = (pick(&mut random, &f.0), pick(&mut random, &f.1));
        lines.insert(format!("F {start:x} {end:x} {}", 1 + random.below(1000)));
    }
    lines.into_iter().map(|line| line + "\n").collect()
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
fn perf2bolt_and_postlink_make_the_same_profile_through_tables_of_either_tool() {
    if !is_there(
        &format!("{LLVM}/perf2bolt"),
        "profiles through tables are not compared",
    ) {
        return;
    }
    for link in [&["-no-pie"][..], &[]] {
        let bench = Bench::new(link);
        for binary in [bench.optimize("p.plraw", "ours"), bench.bolt()] {
            let samples = bench.at("samples");
            std::fs::write(&samples, records(&X86_64, &binary)).expect("the directory is ours");
            run(Command::new(format!("{LLVM}/perf2bolt"))
                .arg(&binary)
                .arg("-pa")
                .arg("-p")
                .arg(&samples)
                .arg("-o")
                .arg(bench.at("theirs.fdata")));
            run(postlink()
                .arg("aggregate")
                .arg("-p")
                .arg(&samples)
                .arg(&binary)
                .arg("-o")
                .arg(bench.at("ours.fdata")));
            let read =
                |name: &str| std::fs::read_to_string(bench.at(name)).expect("it has been written");
            let (theirs, ours) = (read("theirs.fdata"), read("ours.fdata"));
            assert!(ours.starts_with("boltedcollection\n"));
            let (theirs, ours) = (sorted(&theirs), sorted(&ours));
            assert!(theirs.len() > 1000, "{} lines", theirs.len());
            let differ: Vec<_> = theirs
                .iter()
                .zip(&ours)
                .filter(|(a, b)| a != b)
                .take(3)
                .collect();
            assert_eq!(theirs.len(), ours.len(), "{}: {differ:?}", binary.display());
            assert!(differ.is_empty(), "{}: {differ:?}", binary.display());
        }
    }
}

/// Mnemonics by address.
fn mnemonics(machine: &Machine, binary: &Path) -> BTreeMap<u64, String> {
    let listing = text(&run(Command::new(machine.objdump)
        .args(["-d", "--no-show-raw-insn"])
        .arg(binary)));
    let line = |line: &str| {
        let (address, rest) = line.trim().split_once(":\t")?;
        let mnemonic = rest.split_whitespace().next()?;
        Some((u64::from_str_radix(address, 16).ok()?, mnemonic.to_owned()))
    };
    listing.lines().filter_map(line).collect()
}

/// Addresses of symbols.
fn symbols(binary: &Path) -> BTreeMap<String, u64> {
    let listing = text(&run(Command::new("nm").arg(binary)));
    let line = |line: &str| {
        let mut words = line.split(' ');
        let address = u64::from_str_radix(words.next()?, 16).ok()?;
        Some((words.nth(1)?.to_owned(), address))
    };
    listing.lines().filter_map(line).collect()
}

#[test]
fn instructions_translate_to_the_ones_they_were() {
    let bench = Bench::new(&["-no-pie"]);
    let binary = bench.optimize("p.plraw", "ours");
    let (before, after) = (
        mnemonics(&X86_64, &bench.at("p")),
        mnemonics(&X86_64, &binary),
    );
    let old = symbols(&bench.at("p"));
    let all = text(&run(postlink()
        .args(["bat", "dump", "--json"])
        .arg(&binary)));
    let all: serde_json::Value = serde_json::from_str(&all).expect("JSON");
    let list = |key: &str| all[key].as_array().expect("a list").clone();
    let number = |value: &serde_json::Value| value.as_u64().expect("a number");
    let names: BTreeMap<u64, String> = list("functions")
        .iter()
        .map(|f| {
            (
                number(&f["address"]),
                f["name"].as_str().expect("a name").to_owned(),
            )
        })
        .collect();
    let (mut branches, mut blocks) = (0, 0);
    let mut seen = BTreeSet::new();
    for table in list("functions").iter().chain(&list("parts")) {
        let start = number(&table["address"]);
        let function = table.get("function").map_or(start, number);
        let input = old[&names[&function]];
        if start == input {
            continue; // an old body stands for itself, but for the jump at its entry
        }
        for e in table["entries"].as_array().expect("a list") {
            let (Some(now), Some(was)) = (
                after.get(&(start + number(&e["output"]))),
                before.get(&(input + number(&e["input"]))),
            ) else {
                assert!(e.get("block").is_some(), "{table}: {e} is no instruction");
                continue;
            };
            // A piece of a block that does not follow the rest of it represents the whole block.
            if e.get("block").is_some() && !seen.insert((function, number(&e["input"]))) {
                continue;
            }
            let jumps = |m: &str| m.starts_with('j');
            if e.get("block").is_none() {
                branches += 1;
                assert!(
                    now == was || jumps(now) && jumps(was),
                    "{e}: {now} was {was}"
                );
            } else if !jumps(was)
                && !was.starts_with("nop")
                && !was.starts_with("xchg")
                && !was.starts_with("data16")
            {
                blocks += 1;
                assert!(now == was || jumps(now), "{e}: {now} was {was}");
            }
        }
    }
    assert!(
        branches > 50 && blocks > 50,
        "{branches} branches, {blocks} blocks"
    );
}

#[test]
fn tables_outlive_strip_and_objcopy_and_translate_without_symbols() {
    let bench = Bench::new(&["-no-pie"]);
    let binary = bench.optimize("p.plraw", "ours");
    let expected = text(&run(&mut Command::new(bench.at("p"))));
    let section = |path: &Path| {
        let all = text(&run(postlink().args(["bat", "dump", "--json"]).arg(path)));
        let all: serde_json::Value = serde_json::from_str(&all).expect("JSON");
        let of = |list: &str, key: &str| -> Vec<serde_json::Value> {
            let list = all[list].as_array().expect("a list");
            list.iter().map(|f| f[key].clone()).collect()
        };
        [
            of("functions", "address"),
            of("functions", "entries"),
            of("parts", "function"),
            of("parts", "entries"),
        ]
    };
    let whole = section(&binary);
    assert!(whole[0].len() > 3 && !whole[2].is_empty());
    for (tool, arguments) in [
        ("strip", &["-o"][..]),
        ("strip", &["--strip-debug", "-o"]),
        ("objcopy", &[]),
        ("objcopy", &["--strip-all"]),
    ] {
        let output = bench.at("stripped");
        let mut command = Command::new(tool);
        match tool {
            "strip" => command.args(arguments).arg(&output).arg(&binary),
            _ => command.args(arguments).arg(&binary).arg(&output),
        };
        run(&mut command);
        assert_eq!(section(&output), whole, "{tool} {arguments:?}");
        assert_eq!(
            text(&run(&mut Command::new(&output))),
            expected,
            "{tool} {arguments:?}"
        );
        let start = whole[0][0].as_u64().expect("an address");
        let answer = text(&run(postlink()
            .args(["bat", "translate"])
            .arg(&output)
            .arg(format!("{start:x}"))));
        assert!(
            answer.starts_with(&format!("{start:#x} ")) && answer.trim_end().ends_with("+0x0"),
            "{answer}"
        );
        // The same from standard input.
        let addresses = bench.at("addresses");
        std::fs::write(&addresses, format!("{start:x}\n{start:#x}\n"))
            .expect("the directory is ours");
        let piped = postlink()
            .args(["bat", "translate"])
            .arg(&output)
            .stdin(std::fs::File::open(&addresses).expect("just written"))
            .output()
            .expect("it starts");
        assert_eq!(text(&piped), answer.repeat(2));
    }
}

#[test]
fn llvm_bat_dump_is_spoken() {
    let bench = Bench::new(&["-no-pie"]);
    let binary = bench.optimize("p.plraw", "ours");
    let symbols = text(&run(Command::new("nm").arg(&binary)));
    let main = symbols
        .lines()
        .find_map(|line| line.strip_suffix(" T main"))
        .expect("main has moved");
    let out = text(&run(postlink()
        .arg("llvm-bat-dump")
        .arg(&binary)
        .args(["--dump-all", &format!("-translate=0x{main}")])));
    assert!(out.starts_with("BOLT-INFO: Parsed "), "{out}");
    let address = u64::from_str_radix(main, 16).expect("nm prints hexadecimal");
    assert!(out.contains(&format!("Function Address: 0x{address:X}, hash: 0x")));
    assert!(out.ends_with(&format!(
        "Translating addresses according to parsed BAT tables:\n0x{address:X} -> main + 0x0\n"
    )));
    assert!(out.contains(" cold mappings:\n"));
    let plain = postlink()
        .arg("llvm-bat-dump")
        .arg(bench.at("p"))
        .output()
        .expect("it starts");
    assert_eq!(
        (plain.status.code(), &plain.stderr[..]),
        (Some(1), &b"error: no BAT table found.\n"[..])
    );
}

/// Events about the mappings of a program whose segments are by `bias` after where they say.
fn mappings(program: &Path, pid: u32, bias: u64) -> String {
    let headers = text(&run(Command::new("readelf").arg("-lW").arg(program)));
    let mut mappings = String::new();
    for line in headers
        .lines()
        .filter(|l| l.trim_start().starts_with("LOAD") && l.contains(" R E "))
    {
        let number = |n: usize| {
            let word = line
                .split_whitespace()
                .nth(n)
                .expect("readelf prints offset, addresses, sizes");
            u64::from_str_radix(word.trim_start_matches("0x"), 16).expect("in hexadecimal")
        };
        let (offset, address, size) = (number(1), number(2), number(4));
        let page = address & 0xfff;
        mappings += &format!(
            "app {pid}/{pid} 1.000000: PERF_RECORD_MMAP2 {pid}/{pid}: [{:#x}({:#x}) @ {:#x} 00:00 0 0]: r-xp {}\n",
            bias + address - page,
            (size + page).next_multiple_of(0x1000),
            offset - page,
            program.display()
        );
    }
    mappings
}

/// The address of a program's first segment of code, its page.
fn first_code(program: &Path) -> u64 {
    let headers = text(&run(Command::new("readelf").arg("-lW").arg(program)));
    let line = headers
        .lines()
        .find(|l| l.trim_start().starts_with("LOAD") && l.contains(" R E "))
        .expect("a program has code");
    let address = line.split_whitespace().nth(2).expect("readelf prints it");
    let address = u64::from_str_radix(address.trim_start_matches("0x"), 16);
    address.expect("in hexadecimal") & !0xfff
}

/// Runs a program in an emulator; gives the number of branches taken in it, libraries included, and writes
/// branch records.
fn emulate(bench: &Bench, program: &Path, records: &Path) -> u64 {
    emulate_with(
        bench,
        program,
        records,
        "period=97,depth=32,max=20000",
        "20000",
    )
}

/// The same, with options of the plugin and an argument of the program.
fn emulate_with(
    bench: &Bench,
    program: &Path,
    records: &Path,
    options: &str,
    argument: &str,
) -> u64 {
    let plugin = bench.at("lbrsim.so");
    if !plugin.exists() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/tools/lbrsim.c");
        run(Command::new("gcc")
            .args(["-O2", "-shared", "-fPIC", "-o"])
            .arg(&plugin)
            .arg(source));
    }
    let options = format!("{},out={},{options}", plugin.display(), records.display());
    let output = run(Command::new("qemu-x86_64")
        .arg("-plugin")
        .arg(options)
        .arg(program)
        .arg(argument));
    // The plugin tells of one mapping, and not where it is in the file; but that it is the first one of code.
    let text_of = std::fs::read_to_string(records).expect("the plugin has written it");
    let (event, samples) = text_of.split_once('\n').expect("a line about the mapping");
    let start = event.split(['[', '(']).nth(1).expect("an address");
    let start = u64::from_str_radix(start.trim_start_matches("0x"), 16).expect("in hexadecimal");
    let bias = start - first_code(program);
    std::fs::write(records, mappings(program, 1, bias) + samples).expect("the directory is ours");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let number = said
        .split("lbrsim: ")
        .nth(1)
        .and_then(|rest| rest.split(' ').next());
    number
        .and_then(|n| n.parse().ok())
        .unwrap_or_else(|| panic!("{said}"))
}

/// What optimising with a profile changes by dyno-stats: taken branches and executed instructions, as shares
/// of what they were.
fn optimise_and_estimate(bench: &Bench, profile: &str, output: &str) -> (PathBuf, [f64; 2]) {
    let account = text(&run(postlink()
        .args(["optimize", "--enable-bat", "--dyno-stats", "--json"])
        .arg(bench.at("p"))
        .arg("-p")
        .arg(bench.at(profile))
        .arg("-o")
        .arg(bench.at(output))));
    let account: serde_json::Value = serde_json::from_str(&account).expect("JSON");
    let [before, after] = [0, 1].map(|at| {
        let count = |name: &str| {
            let count = &account["optimize"]["dyno_stats"][at][name];
            count
                .as_f64()
                .unwrap_or_else(|| panic!("{name}: {account}"))
        };
        let taken = ["taken_forward_branches", "taken_backward_branches"].map(count);
        let jumps = count("executed_unconditional_branches");
        [taken[0] + taken[1] + jumps, count("executed_instructions")]
    });
    let shares = [0, 1].map(|i| after[i] / before[i]);
    (bench.at(output), shares)
}

/// Optimise, profile the result, translate, optimise the original again.
fn goes_round(compiler: &str, link: &[&str]) {
    let bench = Bench::built(MISTAKEN, compiler, link);
    let expected = text(&run(Command::new(bench.at("p")).arg("3000")));
    let plain = emulate(&bench, &bench.at("p"), &bench.at("first.script"));
    bench.aggregate(&bench.at("p"), "first.script", "first.fdata");
    let (first, estimate_first) = optimise_and_estimate(&bench, "first.fdata", "first");
    let taken_first = emulate(&bench, &first, &bench.at("second.script"));
    bench.aggregate(&first, "second.script", "second.fdata");
    let (second, estimate_second) = optimise_and_estimate(&bench, "second.fdata", "second");
    let taken_second = emulate(&bench, &second, &bench.at("third.script"));
    let said = format!(
        "{compiler} {link:?}: taken branches {plain} before, {taken_first} after, {taken_second} after optimising from a profile of that; \
         taken branches and instructions by dyno-stats {estimate_first:?} and {estimate_second:?} of the original's"
    );
    eprintln!("{said}");
    // Both profiles are of the same runs: as they are they name branches here and blocks there, by blocks
    // they are alike.
    let diff = run(postlink()
        .args(["diff", "--json", "--binary"])
        .args(["p", "first.fdata", "second.fdata"].map(|name| bench.at(name))));
    let diff: serde_json::Value = serde_json::from_str(&text(&diff)).expect("JSON");
    let overlap = diff["overlap"].as_f64().expect("a number");
    assert!(overlap > 95.0, "{overlap} %: {said}");
    assert_eq!(text(&run(Command::new(&second).arg("3000"))), expected);
    assert!(taken_first < plain - plain / 20, "{said}");
    assert!(taken_second <= taken_first + taken_first / 100, "{said}");
    assert!(estimate_second[0] < estimate_first[0] + 0.01, "{said}");
    // A loop may be laid out in two ways that are equally good by their taken branches, with a jump more in
    // one of them; which one is chosen is then a matter of which blocks the samples happened to hit. One
    // jump is 4 % of what the innermost loop executes.
    assert!(estimate_second[1] < estimate_first[1] + 0.05, "{said}");
}

#[test]
fn a_profile_of_the_optimised_program_is_worth_one_of_the_original() {
    let missing = "optimising again from a profile of the optimised program is not tried";
    if !is_there("qemu-x86_64", missing) {
        return;
    }
    goes_round("g++", &["-no-pie", "-static-libgcc"]);
    goes_round("g++", &[]);
    let clang = format!("{LLVM}/clang++");
    if is_there(&clang, missing) {
        goes_round(&clang, &[]);
        goes_round(&clang, &["-no-pie"]);
    }
}
