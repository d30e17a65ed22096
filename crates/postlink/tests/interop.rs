//! Profiles beside LLVM 22's own tools: the same text as perf2bolt from the same samples, and files that
//! llvm-bolt optimises from.
//!
//! Samples are made up: branches and runs between random instructions of a program, sensible or not, so that
//! every rule about what is believed and what is not has its say. Without the tools these tests say so and
//! pass.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn tool(name: &str) -> Option<PathBuf> {
    let path = Path::new("/usr/lib/llvm-22/bin").join(name);
    let there = path.exists();
    if !there {
        eprintln!("SKIPPED: {name} is not installed (Debian package bolt-22)");
    }
    there.then_some(path)
}

/// Loops, a jump table, static functions of one name, recursion, tail calls, exceptions with landing pads and
/// cold parts; jumps through pointers and to labels, functions with other entries, pointers into code.
const PROGRAM: &str = r#"
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
__attribute__((noinline)) static int hash(int x) { return x * 31 + 7; }
__attribute__((noinline)) int classify(int x) {
    switch (x % 9) { case 0: return hash(x); case 1: return x + 4; case 2: x ^= 3; case 3: return x - 1; case 4: puts("four"); return 1;
        case 5: return x / 3; case 6: return hash(x + 1); case 7: return 11; default: return x << 2; }
}
__attribute__((noinline)) int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
__attribute__((noinline)) int thrower(int x) { if (x % 5 == 4) throw std::runtime_error("x"); return x; }
__attribute__((noinline)) int catcher(int x) {
    try { return thrower(x) + hash(x); } catch (std::exception &e) { if (x % 7 == 0) abort(); return -1; }
}
struct Base { virtual int f(int x) { return x; } virtual ~Base() {} };
struct Derived : Base { int f(int x) override { return catcher(x) + classify(x); } };
__attribute__((noinline)) int work(Base *b, int n) {
    int s = 0;
    for (int i = 0; i < n; i++) { for (int j = 0; j < i % 4; j++) s += classify(i + j); s += b->f(i); if (s > 1000000) s -= fib(i % 10); }
    return s;
}
__attribute__((noinline)) int through(int (*f)(int), int x) { if (x > 3) return f(x); return x + 1; }
__attribute__((noinline)) int labels(int x) {
    static void *const to[] = {&&a, &&b, &&c};
    int n = 0;
    goto *to[x % 3];
a: n++;
b: n += 2; if (n < 10) goto *to[n % 3];
c: return n;
}
asm(R"(
    .text
    .type entered, @function
entered: push %rbx
    cmp $3, %edi
    jle 2f
    add $2, %edi
    call fib_of_one
    .type inner, @function
inner: add $3, %edi
1:  add $5, %edi
2:  mov %edi, %eax
    pop %rbx
    ret
    .size entered, .-entered
    .type fib_of_one, @function
fib_of_one: mov $1, %eax
    ret
    .size fib_of_one, .-fib_of_one
    .section .data.rel.ro, "aw"
    .quad 1b
    .text
)");
int main(int argc, char **) {
    Derived d; Base b; printf("%d\n", work(argc > 1 ? &d : &b, 1000 * argc) + through(hash, argc) + labels(argc)); return 0;
}
"#;
const OTHER: &str = r#"
static int hash(int x) { return x * 17 + 3; }
__attribute__((noinline)) static int helper(int *a, int n) { int s = 0; for (int i = 0; i < n; i++) if (a[i] > s) s = hash(a[i]) - s; return s; }
int exported(int *a, int n) { return n > 100 ? helper(a, 100) : helper(a, n); }
"#;

struct Built {
    dir: tempfile::TempDir,
    /// Addresses of instructions, and of those that return.
    code: Vec<u64>,
    returns: Vec<u64>,
}

impl Built {
    fn new(compiler: &str, flags: &[&str]) -> Built {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (first, second) = (dir.path().join("a.cpp"), dir.path().join("b.cpp"));
        fs::write(&first, PROGRAM).expect("the directory is ours");
        fs::write(&second, OTHER).expect("the directory is ours");
        let program = dir.path().join("app");
        let status = Command::new(compiler)
            .arg("-O2")
            .args(flags)
            .arg("-o")
            .arg(&program)
            .args([&first, &second])
            .status();
        assert!(
            status
                .expect("a C++ compiler is needed for this test")
                .success()
        );
        let listing = Command::new("objdump")
            .args(["-d", "--no-show-raw-insn"])
            .arg(&program)
            .output()
            .expect("objdump is needed for this test");
        let listing = String::from_utf8_lossy(&listing.stdout).into_owned();
        let insns = listing.lines().filter_map(|line| {
            let (address, insn) = line.trim_start().split_once(":\t")?;
            Some((u64::from_str_radix(address, 16).ok()?, insn))
        });
        let insns: Vec<(u64, &str)> = insns.collect();
        let returns = insns.iter().filter(|(_, insn)| insn.starts_with("ret"));
        Built {
            dir,
            returns: returns.map(|insn| insn.0).collect(),
            code: insns.iter().map(|insn| insn.0).collect(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Branches and runs between instructions, pre-aggregated, in all records that perf2bolt knows.
    fn samples(&self, seed: u64) -> PathBuf {
        let mut state = seed | 1;
        let mut below = |limit: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % limit as u64) as usize
        };
        let mut text = String::new();
        for _ in 0..4000 {
            let at = below(self.code.len());
            let to = match below(4) {
                0 => below(self.code.len()),
                _ => (at + below(60)).saturating_sub(30).min(self.code.len() - 1),
            };
            let (from, to) = (self.code[at], self.code[to]);
            let count = 1 + below(100);
            let (start, end) = (from.min(to), from.max(to));
            let _ = match below(6) {
                0 => writeln!(text, "B {from:x} {to:x} {count} {}", below(count)),
                1 if below(4) == 0 => writeln!(text, "B 0 {to:x} {count} 0"),
                1 => writeln!(text, "B {from:x} {to:x} {count} 0"),
                2 => writeln!(text, "f {start:x} {end:x} {count}"),
                3 => {
                    let source = self.code[below(self.code.len())];
                    match below(8) {
                        0 => writeln!(text, "R {source:x} {start:x} {end:x} {count}"),
                        1 => writeln!(text, "R 0 {start:x} {end:x} {count}"),
                        2 => writeln!(text, "r {start:x} {end:x} {count}"),
                        3 => writeln!(text, "T 7fff00001234 {start:x} {end:x} {count}"),
                        4 => writeln!(text, "T {source:x} 7fff00001234 7fff00001238 {count}"),
                        _ => writeln!(text, "T {source:x} {start:x} {end:x} {count}"),
                    }
                }
                4 => {
                    let source = self.returns[below(self.returns.len())];
                    writeln!(text, "T {source:x} {start:x} {end:x} {count}")
                }
                _ => writeln!(text, "F {start:x} {end:x} {count}"),
            };
        }
        let path = self.path("samples.preagg");
        fs::write(&path, text).expect("the directory is ours");
        path
    }

    fn postlink(&self, arguments: &[&str]) -> Output {
        let output = Command::new(env!("CARGO_BIN_EXE_postlink"))
            .args(arguments)
            .current_dir(self.dir.path())
            .env("NO_COLOR", "1")
            .output()
            .expect("postlink is built with this test");
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        output
    }
}

fn lines(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).expect("the tool has written it");
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

fn differences(ours: &[String], theirs: &[String]) -> String {
    let (a, b): (BTreeSet<_>, BTreeSet<_>) = (ours.iter().collect(), theirs.iter().collect());
    let mut out = String::new();
    for line in a.difference(&b).take(15) {
        let _ = writeln!(out, "ours alone: {line}");
    }
    for line in b.difference(&a).take(15) {
        let _ = writeln!(out, "theirs alone: {line}");
    }
    out
}

/// The same samples through both; also the lines about their quality.
fn same_as_perf2bolt(compiler: &str, flags: &[&str]) {
    let Some(perf2bolt) = tool("perf2bolt") else {
        return;
    };
    let built = Built::new(compiler, flags);
    for seed in [1u64, 77, 4242] {
        let samples = built.samples(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let arguments = ["-pa", "-p", "samples.preagg", "app", "-o"];
        let theirs = Command::new(&perf2bolt)
            .args(arguments)
            .arg("theirs.fdata")
            .current_dir(built.dir.path())
            .output()
            .expect("it is there");
        assert!(
            theirs.status.success(),
            "{}",
            String::from_utf8_lossy(&theirs.stderr)
        );
        let mut all = vec!["perf2bolt"];
        all.extend(arguments);
        all.push("ours.fdata");
        let ours = built.postlink(&all);
        let (a, b) = (
            lines(&built.path("ours.fdata")),
            lines(&built.path("theirs.fdata")),
        );
        assert!(
            a == b,
            "{compiler} {flags:?}, {}:\n{}",
            samples.display(),
            differences(&a, &b)
        );
        let quality = |output: &Output| -> Vec<String> {
            String::from_utf8_lossy(&output.stdout)
                .lines()
                .filter(|line| line.contains("traces") || line.contains("brstack"))
                .map(str::to_owned)
                .collect()
        };
        assert_eq!(quality(&ours), quality(&theirs));
    }
}

#[test]
fn samples_become_the_text_that_perf2bolt_writes_with_relocations() {
    same_as_perf2bolt("g++", &["-Wl,-q"]);
    same_as_perf2bolt("g++", &["-Wl,-q", "-no-pie"]);
}

#[test]
fn samples_become_the_text_that_perf2bolt_writes_without_relocations() {
    same_as_perf2bolt("g++", &[]);
    same_as_perf2bolt("g++", &["-no-pie", "-fno-jump-tables"]);
}

#[test]
fn llvm_bolt_optimises_from_our_fdata_and_yaml_without_complaint() {
    let Some(bolt) = tool("llvm-bolt") else {
        return;
    };
    let built = Built::new("g++", &["-Wl,-q", "-fno-reorder-blocks-and-partition"]);
    built.samples(0x1234_5678_9abc_def1);
    built.postlink(&[
        "aggregate",
        "-p",
        "samples.preagg",
        "app",
        "-o",
        "app.fdata",
        "--only-explained",
    ]);
    built.postlink(&["convert", "app.fdata", "--binary", "app", "-o", "app.yaml"]);
    // Branches between any two instructions are no edges: what is left after a look at the code is.
    built.postlink(&[
        "convert",
        "app.yaml",
        "--binary",
        "app",
        "-o",
        "clean.fdata",
    ]);
    for data in ["clean.fdata", "app.yaml"] {
        let output = Command::new(&bolt)
            .args([
                "app",
                "-o",
                "app.bolt",
                "--profile-ignore-hash",
                "-reorder-blocks=ext-tsp",
                "-data",
                data,
            ])
            .current_dir(built.dir.path())
            .output()
            .expect("it is there");
        let said = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(output.status.success(), "{data}: {said}");
        for complaint in [
            "invalid (possibly stale)",
            "has no hash",
            "mismatch",
            "unknown function",
        ] {
            assert!(!said.contains(complaint), "{data}: {said}");
        }
        assert!(
            said.contains("have non-empty execution profile"),
            "{data}: {said}"
        );
    }
}

#[test]
fn conversions_come_back_to_where_they_began() {
    let built = Built::new("g++", &["-Wl,-q"]);
    built.samples(99);
    built.postlink(&["aggregate", "-p", "samples.preagg", "app", "-o", "a.fdata"]);
    built.postlink(&["convert", "a.fdata", "--binary", "app", "-o", "a.yaml"]);
    built.postlink(&["convert", "a.yaml", "--binary", "app", "-o", "b.fdata"]);
    built.postlink(&["convert", "b.fdata", "--binary", "app", "-o", "b.yaml"]);
    built.postlink(&["convert", "b.yaml", "--binary", "app", "-o", "c.fdata"]);
    let read = |name: &str| fs::read(built.path(name)).expect("just written");
    assert_eq!(read("b.fdata"), read("c.fdata"));
    let output = built.postlink(&["diff", "b.fdata", "c.fdata", "--json"]);
    let account: serde_json::Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    assert!(
        account["overlap"]
            .as_f64()
            .is_some_and(|overlap| overlap > 99.999),
        "{account}"
    );
}

#[test]
fn blocks_numbered_depth_first_convert_to_the_same_names_and_offsets() {
    let Some(bolt) = tool("llvm-bolt") else {
        return;
    };
    let built = Built::new("g++", &["-Wl,-q"]);
    built.postlink(&["instrument", "app", "-o", "inst", "--profile", "app.plraw"]);
    let counted = Command::new(built.path("inst"))
        .current_dir(built.dir.path())
        .output();
    assert!(counted.expect("it has been built").status.success());
    built.postlink(&["convert", "app.plraw", "--binary", "app", "-o", "a.fdata"]);
    let convert = |name: &str, flag: Option<&str>| {
        let yaml = format!("{name}.yaml");
        let output = Command::new(&bolt)
            .arg(built.path("app"))
            .arg(format!("-data={}", built.path("a.fdata").display()))
            .args(["-o", "/dev/null", "-w"])
            .arg(built.path(&yaml))
            .args(flag)
            .output()
            .expect("it is there");
        assert!(output.status.success(), "{output:?}");
        let text = fs::read_to_string(built.path(&yaml)).expect("just written");
        let expected = format!("dfs-order:       {}", flag.is_some());
        assert!(text.contains(&expected), "{text}");
        let names = format!("{name}.fdata");
        built.postlink(&["convert", &yaml, "--binary", "app", "-o", &names]);
        // Without hashes the edges alone tell the blocks.
        let bare: String = text
            .split_inclusive('\n')
            .filter(|line| !line.starts_with("        hash:"))
            .collect();
        fs::write(built.path("bare.yaml"), bare).expect("the folder is ours");
        built.postlink(&[
            "convert",
            "bare.yaml",
            "--binary",
            "app",
            "-o",
            "bare.fdata",
        ]);
        [lines(&built.path(&names)), lines(&built.path("bare.fdata"))]
    };
    let [plain, plain_bare] = convert("plain", None);
    let [depth_first, depth_first_bare] = convert("dfs", Some("--profile-use-dfs"));
    assert!(plain.len() > 30, "{plain:?}");
    assert_eq!(differences(&depth_first, &plain), "");
    assert_eq!(differences(&plain_bare, &plain), "");
    assert_eq!(differences(&depth_first_bare, &plain), "");
}

#[test]
fn merging_gives_the_same_bytes_in_any_order_and_from_any_mixture() {
    let built = Built::new("g++", &["-Wl,-q"]);
    for (seed, name) in [(5, "a"), (6, "b"), (7, "c")] {
        built.samples(seed);
        fs::rename(
            built.path("samples.preagg"),
            built.path(&format!("{name}.preagg")),
        )
        .expect("ours");
        let (input, output) = (format!("{name}.preagg"), format!("{name}.fdata"));
        built.postlink(&["aggregate", "-p", &input, "app", "-o", &output]);
    }
    built.postlink(&["merge", "a.fdata", "b.fdata:3", "c.fdata", "-o", "x.fdata"]);
    built.postlink(&[
        "merge",
        "c.fdata",
        "a.fdata",
        "b.fdata:3",
        "-o",
        "y.fdata",
        "--threads",
        "1",
    ]);
    built.postlink(&[
        "merge",
        "c.preagg",
        "a.fdata",
        "b.preagg:3",
        "--binary",
        "app",
        "-o",
        "z.fdata",
    ]);
    let read = |name: &str| fs::read(built.path(name)).expect("just written");
    assert_eq!(read("x.fdata"), read("y.fdata"));
    assert_eq!(read("x.fdata"), read("z.fdata"));
    built.postlink(&["merge", "a.preagg", "b.preagg", "-o", "ab.preagg"]);
    built.postlink(&["merge", "b.preagg", "a.preagg", "-o", "ba.preagg"]);
    assert_eq!(read("ab.preagg"), read("ba.preagg"));
}

#[test]
fn front_ends_answer_to_their_names_and_refuse_what_they_do_not_know() {
    let built = Built::new("g++", &["-Wl,-q"]);
    built.samples(3);
    built.postlink(&["links", "bin"]);
    let perf2bolt = Command::new(built.path("bin/perf2bolt"))
        .args([
            "--p=samples.preagg",
            "--pa",
            "-max-samples=7",
            "app",
            "-o=out.fdata",
        ])
        .current_dir(built.dir.path())
        .output()
        .expect("the link was just made");
    let said = String::from_utf8_lossy(&perf2bolt.stderr);
    assert!(perf2bolt.status.success(), "{said}");
    assert!(said.contains("-max-samples=7 has no effect"), "{said}");
    let merge = Command::new(built.path("bin/merge-fdata"))
        .args(["out.fdata", "out.fdata"])
        .current_dir(built.dir.path())
        .output()
        .expect("the link was just made");
    assert!(merge.status.success());
    assert!(merge.stdout.starts_with(b"1 "));
    let unknown = Command::new(built.path("bin/perf2bolt"))
        .args(["-no-such-option", "app"])
        .current_dir(built.dir.path())
        .output()
        .expect("the link was just made");
    assert!(!unknown.status.success());
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("no-such-option"));
}
