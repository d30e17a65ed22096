//! `postlink trace`: what is stepped through does what it does otherwise, and what is recorded is what ran.

#![cfg(target_arch = "x86_64")]

mod support;

use postlink_profile::windows::{Step, Windows};
use support::folder::Folder;

/// Spins in one function until so many milliseconds of processor time are gone.
const SPIN: &str = r#"
#include <stdio.h>
#include <time.h>
static volatile long x;
__attribute__((noinline, noipa)) void hot(void) { for (int i = 0; i < 1000; i++) x += i ^ x >> 3; }
__attribute__((noinline, noipa)) void never(void) { x = 7; }
int main(int argc, char **argv) {
  if (argc > 1) never();
  while (clock() < CLOCKS_PER_SEC / 20) hot();
  puts("done");
  return 0;
}
"#;

fn symbol(folder: &Folder, program: &str, name: &str) -> (u64, u64) {
    let text = folder.run("nm", &["-S", program]);
    let line = text
        .lines()
        .find(|line| line.ends_with(&format!(" {name}")));
    let words: Vec<&str> = line.expect(name).split_whitespace().collect();
    let number = |word: &str| u64::from_str_radix(word, 16).expect(word);
    (number(words[0]), number(words[0]) + number(words[1]))
}

#[test]
fn most_steps_of_a_program_that_spins_are_in_what_spins() {
    let folder = Folder::new();
    for flags in [&["-pie"][..], &["-no-pie"], &["-static"]] {
        folder.compile("app", SPIN, &[&["-Wl,-q"], flags].concat());
        if !folder.may_trace() {
            return;
        }
        let options = ["--windows", "8", "--steps", "3000", "--", "{}"];
        let said =
            folder.postlink(&[&["trace", "app", "-o", "app.pltrace"][..], &options].concat());
        assert!(said.contains("done"), "its output is passed on: {said}");
        let trace = Windows::read(&folder.path("app.pltrace")).expect("it is read");
        assert_eq!(trace.windows.len(), 8, "{flags:?}");
        let (hot, never) = (
            symbol(&folder, "app", "hot"),
            symbol(&folder, "app", "never"),
        );
        let within = |range: (u64, u64)| {
            let all = trace.windows.iter().flat_map(|window| window.steps());
            all.filter(|s| matches!(s, Step::Inside(at) if (range.0..range.1).contains(at)))
                .count()
        };
        assert_eq!(within(never), 0, "{flags:?}");
        let share = within(hot) as f64 / trace.steps() as f64;
        assert!(share > 0.6, "{flags:?}: {share}");
    }
}

/// Threads, children, a program that is started, a timer's signals, long jumps out of a handler; with an argument
/// breakpoints that it handles itself.
const BUSY: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
static volatile sig_atomic_t ticks, traps;
static sigjmp_buf back;
static void tick(int s) { (void)s; ticks++; }
static void trap(int s) { (void)s; traps++; }
static void segv(int s) { (void)s; siglongjmp(back, 1); }
static long work(long n) { volatile long x = n; for (long i = 0; i < n; i++) x = x * 31 + (x >> 7); return x; }
static void *thread(void *p) { return (void *)work(1000000 + (long)p); }
int main(int argc, char **argv) {
  if (argc > 1 && !strcmp(argv[1], "child")) { printf("child %ld\n", work(2000000)); return 3; }
  int breakpoints = argc > 1;
  signal(SIGALRM, tick), signal(SIGSEGV, segv);
  if (breakpoints) signal(SIGTRAP, trap);
  struct itimerval timer = {{0, 1000}, {0, 1000}};
  setitimer(ITIMER_REAL, &timer, 0);
  pthread_t t[3];
  for (long i = 0; i < 3; i++) pthread_create(&t[i], 0, thread, (void *)i);
  int jumped = 0;
  for (int i = 0; i < 200; i++) {
    if (breakpoints) __asm__ volatile("int3");
    if (sigsetjmp(back, 1)) jumped++; else *(volatile int *)8 = 1;
    work(3000);
  }
  long sum = 0;
  for (int i = 0; i < 3; i++) { void *r; pthread_join(t[i], &r); sum += (long)r; }
  memset(&timer, 0, sizeof timer);
  setitimer(ITIMER_REAL, &timer, 0);
  if (breakpoints) raise(SIGTRAP);
  fflush(stdout);
  int status, codes = 0;
  for (int i = 0; i < 3; i++) {
    pid_t child = fork();
    if (!child) { execl(argv[0], argv[0], "child", (char *)0); _exit(9); }
    waitpid(child, &status, 0);
    codes += WEXITSTATUS(status);
  }
  printf("%ld %d %d %d %d\n", sum, jumped, (int)traps, codes, ticks > 0);
  return 5;
}
"#;

/// Runs the busy program plain and traced: what it says, which must be the same, and the number of windows.
fn busy(folder: &Folder, arguments: &[&str]) -> Option<(String, usize)> {
    folder.compile("app", BUSY, &["-pthread"]);
    let plain = folder.command(folder.path("app"), arguments).output();
    let plain = plain.expect("it runs");
    assert_eq!(plain.status.code(), Some(5));
    let plain = String::from_utf8(plain.stdout).expect("text");
    let options = ["--windows", "60", "--steps", "1500", "--every", "0.4"];
    let command = ["trace", "app", "-o", "app.pltrace", "--allow-failure"];
    let workload = [&["--", "{}"], arguments].concat();
    let traced = folder.attempt(&[&command[..], &options, &workload].concat());
    let said = String::from_utf8_lossy(&traced.stderr).into_owned();
    if said.contains("cannot be traced") {
        eprintln!("SKIPPED: {said}");
        return None;
    }
    assert!(said.contains("exit code 5"), "{said}");
    assert!(!said.contains("by signal"), "{said}");
    let printed = String::from_utf8_lossy(&traced.stdout).into_owned();
    assert!(
        printed.starts_with(&plain),
        "{printed}, without tracing {plain}: {said}"
    );
    let trace = Windows::read(&folder.path("app.pltrace"));
    Some((plain, trace.map_or(0, |trace| trace.windows.len())))
}

#[test]
fn threads_children_and_signals_do_what_they_do_untraced() {
    if let Some((plain, windows)) = busy(&Folder::new(), &[]) {
        assert!(plain.contains(" 200 0 9 1"), "{plain}");
        assert!(windows >= 20, "{windows}");
    }
}

#[test]
fn a_program_that_handles_sigtrap_keeps_its_handler() {
    if let Some((plain, _)) = busy(&Folder::new(), &["breakpoints"]) {
        assert!(plain.contains(" 200 201 9 1"), "{plain}");
    }
}

#[test]
fn a_library_is_told_from_the_program_that_loads_it() {
    let folder = Folder::new();
    let library = "static volatile long x; void hot(void) { for (int i = 0; i < 1000; i++) x += i ^ x >> 3; }\n";
    folder.compile("libhot.so", library, &["-shared", "-fPIC", "-Wl,-q"]);
    let found = format!("-L{}", folder.dir().display());
    let program = "#include <time.h>\nvoid hot(void); int main(void) { while (clock() < CLOCKS_PER_SEC / 20) hot(); return 0; }\n";
    folder.compile("app", program, &[&found, "-lhot", "-Wl,-rpath,$ORIGIN"]);
    if !folder.may_trace() {
        return;
    }
    folder.postlink(&[
        "trace",
        "libhot.so",
        "-o",
        "lib.pltrace",
        "--windows",
        "4",
        "--steps",
        "2000",
        "--",
        "env",
        "LIB={}",
        "./app",
    ]);
    let trace = Windows::read(&folder.path("lib.pltrace")).expect("it is read");
    let hot = symbol(&folder, "libhot.so", "hot");
    let inside = |s: &Step| matches!(s, Step::Inside(at) if (hot.0..hot.1).contains(at));
    let within = trace
        .windows
        .iter()
        .flat_map(|w| w.steps())
        .filter(inside)
        .count();
    assert!(within * 2 > trace.steps(), "{within} of {}", trace.steps());
}

#[test]
fn a_layout_is_chosen_by_the_trace_of_this_very_file() {
    let folder = Folder::new();
    folder.compile("app", SPIN, &["-Wl,-q"]);
    if !folder.may_trace() {
        return;
    }
    folder.instrument("app", "run.plraw");
    folder.count_run("app", "run.plraw", &[]);
    folder.postlink(&[
        "trace",
        "app",
        "-o",
        "app.pltrace",
        "--windows",
        "2",
        "--steps",
        "5000",
        "--",
        "{}",
    ]);
    let search = |output: &str, trace: &[&str]| {
        let arguments = [
            "optimize",
            "app",
            "-p",
            "run.plraw",
            "-o",
            output,
            "--search",
            "12",
            "--json",
        ];
        let said = folder.postlink(&[&arguments, trace].concat());
        let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        said["optimize"]["search"]["by_trace"]
            .as_bool()
            .expect("it says which")
    };
    assert!(search("by-trace", &["--search-trace", "app.pltrace"]));
    assert!(search("again", &["--search-trace", "app.pltrace"]));
    assert!(!search("by-counts", &[]));
    let bytes = |name: &str| std::fs::read(folder.path(name)).expect(name);
    assert!(
        bytes("by-trace") == bytes("again"),
        "the same trace, another output"
    );
    assert_eq!(folder.run(folder.path("by-trace"), &[]), "done\n");

    // A trace of another build is refused, and so is a damaged one.
    folder.compile("other", &SPIN.replace("1000", "1001"), &["-Wl,-q"]);
    folder.postlink(&[
        "trace",
        "other",
        "-o",
        "other.pltrace",
        "--windows",
        "8",
        "--steps",
        "2000",
        "--",
        "{}",
    ]);
    let with = |trace: &str| {
        folder.refused(&[
            "optimize",
            "app",
            "-p",
            "run.plraw",
            "-o",
            "x",
            "--search",
            "3",
            "--search-trace",
            trace,
        ])
    };
    let said = with("other.pltrace");
    assert!(
        said.contains("the trace is of") && said.contains("record it with this file"),
        "{said}"
    );
    let whole = bytes("app.pltrace");
    std::fs::write(folder.path("cut.pltrace"), &whole[..whole.len() / 2]).expect("written");
    let said = with("cut.pltrace");
    assert!(
        said.contains("cut.pltrace at offset") && said.contains("damaged or cut short"),
        "{said}"
    );
    assert!(!folder.path("x").exists());
}

#[test]
fn tune_with_a_search_records_a_trace_and_keeps_it_where_asked() {
    let folder = Folder::new();
    folder.compile("app", SPIN, &["-Wl,-q"]);
    if !folder.may_trace() {
        return;
    }
    let done = folder.attempt(&[
        "tune", "app", "-o", "app.opt", "--search", "6", "--keep", "kept", "--", "{}",
    ]);
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{said}");
    assert!(
        said.contains("tracing") && said.contains("fed with the trace"),
        "{said}"
    );
    let trace = Windows::read(&folder.path("kept/run.pltrace")).expect("it is read");
    assert!(!trace.windows.is_empty());
    assert_eq!(folder.run(folder.path("app.opt"), &[]), "done\n");
}

#[test]
fn tune_by_a_trace_runs_the_program_itself() {
    let folder = Folder::new();
    folder.compile("app", SPIN, &[]);
    if !folder.may_trace() {
        return;
    }
    let tune = ["tune", "app", "-o", "app.opt", "--by-trace"];
    let more = ["--report", "page.html", "--keep", "kept", "--", "{}"];
    let done = folder.attempt(&[&tune[..], &more].concat());
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{said}");
    assert_eq!(String::from_utf8_lossy(&done.stdout), "done\n");
    assert!(
        said.contains("tracing") && said.contains("proved") && !said.contains("instrumented"),
        "{said}"
    );
    let kept = std::fs::read_dir(folder.path("kept")).expect("it is there");
    let kept: Vec<_> = kept.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(kept, ["profile.pltrace"]);
    let trace = Windows::read(&folder.path("kept/profile.pltrace")).expect("it is read");
    assert!(trace.windows.len() > 100, "{}", trace.windows.len());
    assert!(folder.path("page.html").exists());
    assert_eq!(folder.run(folder.path("app.opt"), &[]), "done\n");
    // The same profile gives the same file.
    folder.postlink(&[
        "optimize",
        "app",
        "-p",
        "kept/profile.pltrace",
        "-o",
        "again",
    ]);
    let bytes = |name: &str| std::fs::read(folder.path(name)).expect(name);
    assert!(bytes("app.opt") == bytes("again"));

    let said = folder.refused(&[&tune[..], &["--", "true", "{}"]].concat());
    assert!(
        said.contains("no thread with it mapped was running"),
        "{said}"
    );
    let wrong = folder.attempt(&[&tune[..], &["--", "true"]].concat());
    assert_eq!(wrong.status.code(), Some(2));
    let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(
        said.contains("it must run the program, whose path"),
        "{said}"
    );
}

#[test]
fn a_workload_that_does_not_run_the_program_is_an_error() {
    let folder = Folder::new();
    folder.compile("app", SPIN, &["-Wl,-q"]);
    if !folder.may_trace() {
        return;
    }
    let refused = |workload: &[&str]| {
        let said =
            folder.refused(&[&["trace", "app", "-o", "x.pltrace", "--"][..], workload].concat());
        assert!(!folder.path("x.pltrace").exists());
        said
    };
    let said = refused(&[
        "sh",
        "-c",
        ": {}; i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done",
    ]);
    assert!(
        said.contains("no thread with it mapped was running"),
        "{said}"
    );
    let said = refused(&["sh", "-c", "{} > /dev/null; exit 7"]);
    assert!(
        said.contains("exit code 7") && said.contains("--allow-failure"),
        "{said}"
    );
    let said = refused(&["./{}.absent"]);
    assert!(said.contains("cannot be started"), "{said}");
}
