//! Per-thread counters where the cases cannot look: names with `%p`, areas taken over, descriptors closed,
//! places that run full, and programs that cannot have them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use postlink_profile::raw::RawFile;

mod support;
use support::done;

const POSTLINK: &str = env!("CARGO_BIN_EXE_postlink");

const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

__attribute__((noinline, noipa)) static unsigned step(unsigned x) { return x & 1 ? x + 1 : x ^ 1; }
static pthread_barrier_t together;
static void *worker(void *n) {
  unsigned x = 1;
  pthread_barrier_wait(&together);
  for (long i = 0; i < (long)n; i++) x = step(x);
  pthread_barrier_wait(&together);
  return 0;
}
static void threads(int n, long steps) {
  pthread_t t[64];
  pthread_barrier_init(&together, 0, n);
  for (int i = 0; i < n; i++) pthread_create(&t[i], 0, worker, (void *)steps);
  for (int i = 0; i < n; i++) pthread_join(t[i], 0);
}
int main(int argc, char **argv) {
  const char *what = argc > 1 ? argv[1] : "";
  if (!strcmp(what, "fork"))
    for (int i = 0; i < 5; i++)
      if (fork() == 0) { threads(2, 100); _exit(0); }
  if (!strcmp(what, "close")) closefrom(3);
  if (!strcmp(what, "reuse")) { closefrom(3); if (!freopen("other", "w", stdin)) return 1; for (int i = 0; i < 2000; i++) dup(0); }
  threads(4, 1000);
  while (wait(0) > 0) {}
  puts("done");
  return 0;
}
"#;

struct Built {
    dir: tempfile::TempDir,
    plain: PathBuf,
    instrumented: PathBuf,
}

fn gcc() -> bool {
    let found = Command::new("gcc")
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success());
    let here = found && cfg!(target_arch = "x86_64");
    if !here {
        eprintln!("SKIPPED: per-thread counters need gcc on x86-64");
    }
    here
}

fn build(source: &str, flags: &[&str]) -> (Built, serde_json::Value) {
    build_with(source, flags, &[])
}

/// The same; `options` are those of `postlink instrument`.
fn build_with(source: &str, flags: &[&str], options: &[&str]) -> (Built, serde_json::Value) {
    let dir = tempfile::tempdir().unwrap();
    let (plain, instrumented, code) = (
        dir.path().join("app"),
        dir.path().join("app.inst"),
        dir.path().join("app.c"),
    );
    std::fs::write(&code, source).unwrap();
    done(
        Command::new("gcc")
            .args(["-O1", "-w", "-pthread", "-Wl,-q"])
            .args(flags)
            .arg(&code)
            .arg("-o")
            .arg(&plain),
    );
    let report = done(
        Command::new(POSTLINK)
            .args(["instrument", "--json", "-q"])
            .args(options)
            .arg(&plain)
            .arg("-o")
            .arg(&instrumented),
    );
    let report = serde_json::from_slice(&report.stdout).unwrap();
    (
        Built {
            dir,
            plain,
            instrumented,
        },
        report,
    )
}

impl Built {
    fn run(&self, what: &str, profile: &str) -> Output {
        let output = done(
            Command::new(&self.instrumented)
                .arg(what)
                .env("POSTLINK_PROFILE", profile)
                .current_dir(self.dir.path()),
        );
        assert_eq!(output.stdout, b"done\n");
        output
    }

    /// How often `step` was entered, by a profile.
    fn steps(&self, profile: &Path) -> u64 {
        let shown = done(
            Command::new(POSTLINK)
                .args(["show", "-q", "--json", "--binary"])
                .arg(&self.plain)
                .arg(profile),
        );
        let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
        let functions = shown["functions"].as_array().unwrap();
        functions
            .iter()
            .find(|f| f["name"] == "step")
            .map_or(0, |f| f["entries"].as_u64().unwrap())
    }

    fn areas(&self, profile: &Path) -> u64 {
        RawFile::open(profile).unwrap().areas()
    }
}

#[test]
fn a_forked_child_opens_a_file_of_its_own_name_and_otherwise_counts_in_the_same() {
    if !gcc() {
        return;
    }
    let (built, report) = build(PROGRAM, &[]);
    assert_eq!(report["counting"], "per-thread");
    built.run("fork", "own.%p.plraw");
    let mut files: Vec<u64> = std::fs::read_dir(built.dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "plraw"))
        .map(|path| built.steps(&path))
        .collect();
    files.sort_unstable();
    assert_eq!(files, [200, 200, 200, 200, 200, 4000]);
    built.run("fork", "one.plraw");
    assert_eq!(built.steps(&built.dir.path().join("one.plraw")), 5000);
}

#[test]
fn areas_of_dead_processes_are_taken_over_and_counted_on_in() {
    if !gcc() {
        return;
    }
    let (built, _) = build(PROGRAM, &["-no-pie"]);
    let profile = built.dir.path().join("run.plraw");
    for run in 1..=4 {
        built.run("", "run.plraw");
        assert_eq!(
            (built.steps(&profile), built.areas(&profile)),
            (4000 * run, 5)
        );
    }
}

#[test]
fn programs_that_close_descriptors_they_do_not_know_lose_no_count() {
    if !gcc() {
        return;
    }
    let (built, _) = build(PROGRAM, &[]);
    for what in ["close", "reuse"] {
        let profile = built.dir.path().join(format!("{what}.plraw"));
        let output = built.run(what, profile.to_str().unwrap());
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
        assert_eq!(built.steps(&profile), 4000, "{what}");
        assert_eq!(
            std::fs::metadata(built.dir.path().join("other")).map_or(0, |data| data.len()),
            0
        );
    }
}

#[test]
fn where_no_area_can_be_made_one_line_says_so_and_the_program_goes_on() {
    if !gcc() {
        return;
    }
    let (built, _) = build(PROGRAM, &[]);
    // Space for two areas: the limit counts in kilobytes here.
    let script = "ulimit -f 12; exec ./app.inst";
    let limited = done(
        Command::new("bash")
            .args(["-c", script])
            .env("POSTLINK_PROFILE", "run.plraw")
            .current_dir(built.dir.path()),
    );
    assert_eq!(limited.stdout, b"done\n");
    let text = String::from_utf8_lossy(&limited.stderr);
    assert_eq!(
        text,
        "postlink: cannot extend profile run.plraw: errno 27 (File too large); threads that this process starts from now on are not recorded\n"
    );
    assert_eq!(built.steps(&built.dir.path().join("run.plraw")), 1000);
    let nowhere = built.run("fork", "/nowhere/run.plraw");
    let text = String::from_utf8_lossy(&nowhere.stderr);
    assert_eq!(
        text,
        "postlink: cannot open profile /nowhere/run.plraw: errno 2 (No such file or directory); this run is not recorded\n"
    );
}

#[test]
fn programs_that_cannot_have_per_thread_counters_get_others_and_the_reason_is_told() {
    if !gcc() {
        return;
    }
    let reason = |source: &str, flags: &[&str]| {
        let report = build(source, flags).1;
        (
            report["counting"].as_str().unwrap().to_owned(),
            report["not_per_thread"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
        )
    };
    let (how, why) = reason(PROGRAM, &["-static"]);
    assert_eq!(how, "atomic");
    assert!(why.contains("static"), "{why}");
    let (how, why) = reason("int f(void) { return 1; }", &["-shared", "-fPIC"]);
    assert_eq!(how, "biased");
    assert!(why.contains("library"), "{why}");
    let uses_gs =
        "int main(void) { long x; __asm__ volatile(\"mov %%gs:0, %0\" : \"=r\"(x)); return x; }";
    let (how, why) = reason(uses_gs, &[]);
    assert_eq!(how, "biased");
    assert!(why.contains("main uses the segment gs, at 0x"), "{why}");
    let clones =
        "#define _GNU_SOURCE\n#include <sched.h>\nint main(void) { return clone(0, 0, 0, 0); }";
    let (how, why) = reason(clones, &[]);
    assert_eq!(how, "atomic");
    assert!(why.contains("clone"), "{why}");
    let tail = "#include <unistd.h>\n__attribute__((noinline, noipa)) int f(int x) { return fork(); }\nint (*volatile p)(int) = f;\nint main(void) { return p(1); }";
    let (how, why) = reason(tail, &["-O2"]);
    assert_eq!(how, "biased");
    assert!(
        why.contains("f leaves by a jump to a function that may fork"),
        "{why}"
    );
}

/// How often a program was written, but for what was done because functions could not be proved.
fn rounds_but_for_functions(report: &serde_json::Value) -> u64 {
    let refused = report["reverted"].as_array().unwrap();
    report["rounds"].as_u64().unwrap() - u64::from(!refused.is_empty())
}

/// Hand-written assembly has its name, as text, after its functions, and tables. `e` is the prefix of the
/// segment in which per-thread counters are.
#[test]
fn text_and_tables_in_code_are_not_taken_for_instructions_that_use_the_segment() {
    if !gcc() {
        return;
    }
    let source = |table: &str| {
        format!(
            r#"
#include <stdio.h>
__asm__(".text\n"
        ".globl step\n.type step, @function\n"
        "step: .cfi_startproc\n leaq table(%rip), %rax\n movq (%rax), %rax\n addq %rdi, %rax\n ret\n .cfi_endproc\n"
        ".size step, .-step\n"
        "{table}\n"
        "outb %al, $0x80\n"
        ".asciz \"Montgomery Multiplication for x86_64, the module for those who need it\"\n"
        ".p2align 6\n");
extern long step(long);
int main(int argc, char **argv) {{
  long sum = 0;
  for (long i = 0; i < 1000; i++) sum += step(i);
  puts(sum ? "done" : "no");
  return 0;
}}
"#
        )
    };
    // What comes to the table cannot continue beyond what only operating systems may do.
    let (app, report) = build(&source("table: .quad 0x428a2f98d728ae22"), &[]);
    assert_eq!(report["counting"], "per-thread", "{report}");
    assert_eq!(
        report["not_per_thread"],
        serde_json::Value::Null,
        "{report}"
    );
    assert_eq!(rounds_but_for_functions(&report), 1, "{report}");
    let profile = app.dir.path().join("run.plraw");
    app.run("", &profile.to_string_lossy());
    assert_eq!(app.steps(&profile), 1000);
    // and %ah,%gs:0x6f(%rsi), and its address is formed: it may be code.
    let (app, report) = build(&source("table: .quad 0x900090006f662065"), &[]);
    assert_eq!(report["counting"], "biased", "{report}");
    let why = report["not_per_thread"].as_str().unwrap_or_default();
    assert!(
        why.contains("uses the segment of per-thread counters itself, at 0x"),
        "{why}"
    );
    assert_eq!(rounds_but_for_functions(&report), 1, "{report}");
    let profile = app.dir.path().join("run.plraw");
    app.run("", &profile.to_string_lossy());
    assert_eq!(app.steps(&profile), 1000);
}

/// A program with a function in assembly that neither an unwind entry nor a dynamic symbol covers.
fn with_assembly(code: &str) -> String {
    format!(
        r#"
#include <stdio.h>
__asm__(".text\n.p2align 4\n.globl step\nstep:\n{code}\n.p2align 4\n");
extern long step(long);
int main(int argc, char **argv) {{
  long sum = 0;
  for (long i = 0; i < 1000; i++) sum += step(i);
  puts(sum ? "done" : "no");
  return 0;
}}
"#
    )
}

/// Without kept relocations an instruction may begin at every byte of such a function, but within those that control
/// comes to. Either way the program is written once. The number's bytes are `mov %gs:(%rax,%rbp),%eax`.
#[test]
fn one_round_is_enough_for_assembly_that_may_use_the_segment_of_per_thread_counters() {
    if !gcc() {
        return;
    }
    let cases = [
        (
            "an operand",
            "per-thread",
            "movl $0x28048b65, %ecx; leaq (%rdi,%rcx), %rax; ret",
        ),
        (
            "a branch into the operand",
            "biased",
            "testq %rdi, %rdi; js 1f; .byte 0xb9; 1: .long 0x28048b65; leaq (%rdi,%rcx), %rax; ret",
        ),
        (
            "an operand in front of what is no code",
            "biased",
            "movl $0x28048b65, %ecx; testq %rdi, %rdi; js 1f; leaq (%rdi,%rcx), %rax; ret; 1: .byte 6",
        ),
        (
            "bytes that nothing leads to",
            "biased",
            "leaq 1(%rdi), %rax; ret; .long 0x28048b65",
        ),
        (
            "a use",
            "biased",
            "testq %rdi, %rdi; js 1f; leaq 1(%rdi), %rax; ret; 1: movl %gs:0, %eax; ret",
        ),
    ];
    for (what, how, code) in cases {
        let (app, report) = build_with(&with_assembly(code), &[], &["--relocations", "none"]);
        assert_eq!(report["counting"], how, "{what}: {report}");
        assert_eq!(report["rounds"], 1, "{what}: {report}");
        let why = report["not_per_thread"].as_str().unwrap_or_default();
        assert_eq!(why.is_empty(), how == "per-thread", "{what}: {why}");
        app.run("", "run.plraw");
    }
}

/// What the rewriter says of it counts nothing: the same bytes are put into the program and its output.
#[test]
fn the_checker_finds_uses_of_the_segment_by_itself() {
    if !gcc() {
        return;
    }
    let reached = "movabsq $0x1122334455667788, %rcx; .skip 9, 0x90; leaq 1(%rdi), %rax; ret";
    let not_reached = "leaq 1(%rdi), %rax; ret; .quad 0x1122334455667788; .skip 9, 0x90; ret";
    for code in [reached, not_reached] {
        let (app, report) = build_with(&with_assembly(code), &[], &["--relocations", "none"]);
        assert_eq!(report["counting"], "per-thread", "{report}");
        let verify = |mark: &[u8], bytes: &[u8]| {
            for file in [&app.plain, &app.instrumented] {
                let mut content = std::fs::read(file).unwrap();
                let at = content.windows(8).position(|w| w == mark).unwrap() + 8;
                content[at..at + bytes.len()].copy_from_slice(bytes);
                std::fs::write(file, content).unwrap();
            }
            let mut command = Command::new(POSTLINK);
            let output = command.arg("verify").arg(&app.plain).arg(&app.instrumented);
            let output = output.output().unwrap();
            let said = [output.stdout, output.stderr].concat();
            String::from_utf8_lossy(&said).into_owned()
        };
        let mark = 0x1122_3344_5566_7788u64.to_le_bytes();
        let expected = "uses the segment of per-thread counters itself, at 0x";
        let fs = [0x64, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0];
        let said = verify(&mark, &fs);
        assert!(!said.contains(expected), "{said}");
        let gs = [0x65, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0];
        let said = verify(&mark, &gs);
        assert!(said.contains(expected), "{said}");
    }
}

/// A child comes back to the callers of a function that leaves by a jump to `fork`, and to theirs.
const TAIL_CALLS: &str = r#"
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#define APART __attribute__((noinline, noipa))
APART unsigned step(unsigned x) { return x & 1 ? x + 1 : x ^ 1; }
APART int inner(void) { return fork(); }
APART int outer(int x) { if (x) step(x); return inner(); }
APART int by_number(void) { return syscall(57); }
APART long walk(long n) { unsigned x = 1; for (long i = 0; i < n; i++) x = step(x); return x; }
APART int both(int x) { int child = x ? outer(x) : by_number(); walk(200000); return child; }
int main(int argc, char **argv) {
  for (int i = 0; i < 4; i++) if (both(i) == 0) _exit(0);
  while (wait(0) > 0) {}
  puts("done");
  return 0;
}
"#;

#[test]
fn children_of_tail_calls_of_fork_count_in_areas_of_their_own() {
    if !gcc() {
        return;
    }
    let plain: &[&str] = &["-O2"];
    for flags in [plain, &["-O2", "-no-pie"], &["-O2", "-fno-plt"]] {
        let (built, report) = build(TAIL_CALLS, flags);
        assert_eq!(report["counting"], "per-thread", "{flags:?}: {report}");
        let run = built.run("", "run.plraw");
        assert_eq!(String::from_utf8_lossy(&run.stderr), "", "{flags:?}");
        let profile = built.dir.path().join("run.plraw");
        assert_eq!(built.steps(&profile), 8 * 200_000 + 3, "{flags:?}");
        // One that has ended leaves its area to the next.
        let areas = built.areas(&profile);
        assert!((2..=5).contains(&areas), "{flags:?}: {areas}");
    }
}
