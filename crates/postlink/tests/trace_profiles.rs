//! Traces as profiles: branches of windows of a run, of programs that are started and of such as run already.

#![cfg(target_arch = "x86_64")]

mod support;

use std::collections::BTreeMap;
use std::process::{Child, Stdio};

use support::folder::Folder;

/// A loop with a rare side, a switch, a call through a pointer and one of the C library; which way each goes follows
/// from the round alone. Runs for half a second of processor time.
const BRANCHES: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
static volatile unsigned long x;
__attribute__((noinline, noipa)) void rare(void) { x += 3; }
__attribute__((noinline, noipa)) void even(void) { x ^= x << 7; }
__attribute__((noinline, noipa)) void odd(void) { x += x >> 3; }
__attribute__((noinline, noipa)) void never(void) { x = 1; }
static void (*volatile ways[2])(void) = {even, odd};
__attribute__((noinline, noipa)) int kind(unsigned n) {
  switch (n % 8) {
    case 0: return 11; case 1: return 7; case 2: return 13; case 3: return 29; case 4: return 2; case 5: return 41; case 6: return 5;
    default: return 3;
  }
}
__attribute__((noinline, noipa)) void round_of(unsigned n) {
  if (n % 16 == 5) rare(); else x += n;
  if (n > 4000000000u) never();
  ways[n & 1]();
  x += kind(n);
  if (n % 4 == 0) x += strlen((const char *)"some text" + n % 5);
}
int main(void) {
  unsigned n = 0;
  while (clock() < CLOCKS_PER_SEC / 2) for (int i = 0; i < 1000; i++) round_of(n++);
  puts("done");
  return 0;
}
"#;

/// Counts of the branches of an fdata profile by function of their source, offset, function and offset of their target.
fn branches(text: &str) -> BTreeMap<String, f64> {
    let mut all = BTreeMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [kinds, places @ .., _, count] = words.as_slice() else {
            continue;
        };
        let count: f64 = count.parse().expect(line);
        *all.entry(format!("{kinds} {}", places.join(" ")))
            .or_default() += count;
    }
    all
}

/// What two profiles have in common, each being one in all: 1 if they are the same but for a factor.
fn overlap(one: &BTreeMap<String, f64>, other: &BTreeMap<String, f64>) -> f64 {
    let sum = |all: &BTreeMap<String, f64>| all.values().sum::<f64>();
    let (a, b) = (sum(one), sum(other));
    let common = one
        .iter()
        .filter_map(|(key, n)| Some((n / a).min(other.get(key)? / b)));
    common.sum()
}

/// The records of a profile that are about `round_of` and what it calls.
fn of_rounds(text: &str) -> BTreeMap<String, f64> {
    let mut all = branches(text);
    all.retain(|key, _| key.contains("round_of") || key.contains("kind"));
    all
}

const SHORT: [&str; 6] = ["--for", "profile", "--windows", "700", "--steps", "200"];

#[test]
fn a_trace_has_the_branches_that_counters_have() {
    for flags in [&["-pie"][..], &["-no-pie"], &["-pie", "-Wl,-q"]] {
        let folder = Folder::new();
        folder.compile("app", BRANCHES, flags);
        if !folder.may_trace() {
            return;
        }
        let trace = ["trace", "app", "-o", "app.pltrace", "--every", "0.5"];
        folder.postlink(&[&trace[..], &SHORT, &["--", "{}"]].concat());
        folder.count_run("app", "run.plraw", &[]);
        for (profile, output) in [("app.pltrace", "trace.fdata"), ("run.plraw", "exact.fdata")] {
            folder.postlink(&["convert", profile, "--binary", "app", "-o", output]);
        }
        // Entries of functions and calls of the library are told in other ways by counters.
        let edges = |name: &str| {
            let mut all = of_rounds(&folder.text(name));
            all.retain(|key, _| {
                let words: Vec<&str> = key.split(' ').collect();
                words.len() == 6 && words[1] == words[4]
            });
            all
        };
        let (found, exact) = (edges("trace.fdata"), edges("exact.fdata"));
        let same = overlap(&found, &exact);
        assert!(same > 0.9, "{flags:?}: {same}: {found:?} for {exact:?}");

        // It is a profile wherever profiles are.
        folder.postlink(&[
            "aggregate",
            "-p",
            "app.pltrace:2",
            "app",
            "-o",
            "twice.fdata",
        ]);
        let (once, twice) = (
            branches(&folder.text("trace.fdata")),
            branches(&folder.text("twice.fdata")),
        );
        assert!(
            once.iter()
                .all(|(key, n)| twice.get(key) == Some(&(2.0 * n))),
            "{flags:?}"
        );
        folder.postlink(&[
            "convert",
            "app.pltrace",
            "--binary",
            "app",
            "-o",
            "app.preagg",
        ]);
        folder.postlink(&["aggregate", "-p", "app.preagg", "app", "-o", "again.fdata"]);
        assert_eq!(
            folder.text("trace.fdata"),
            folder.text("again.fdata"),
            "{flags:?}"
        );
        folder.postlink(&[
            "merge",
            "app.pltrace",
            "run.plraw",
            "--binary",
            "app",
            "-o",
            "sum.fdata",
        ]);
        let shown = folder.postlink(&["show", "app.pltrace", "--binary", "app"]);
        assert!(shown.contains("round_of"), "{shown}");
        let optimize = ["optimize", "app", "-p", "app.pltrace", "-o", "app.opt"];
        let said = folder.postlink(&[&optimize[..], &["--json"]].concat());
        let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        let of = |name: &str| said["optimize"][name].as_f64().expect(name);
        assert!(of("profiled") >= 4.0, "{said}");
        assert!(of("score_after") > of("score_before"), "{said}");
        assert_eq!(
            folder.run(folder.path("app.opt"), &[]),
            "done\n",
            "{flags:?}"
        );
    }
}

#[test]
fn a_trace_of_an_optimised_program_becomes_a_profile_of_the_one_that_went_in() {
    let folder = Folder::new();
    folder.compile("app", BRANCHES, &["-Wl,-q"]);
    if !folder.may_trace() {
        return;
    }
    folder.count_run("app", "run.plraw", &[]);
    let optimize = [
        "optimize",
        "app",
        "-p",
        "run.plraw",
        "-o",
        "opt",
        "--enable-bat",
    ];
    folder.postlink(&optimize);
    let trace = ["trace", "opt", "-o", "opt.pltrace", "--every", "0.5"];
    folder.postlink(&[&trace[..], &SHORT, &["--", "{}"]].concat());
    folder.postlink(&["aggregate", "-p", "opt.pltrace", "opt", "-o", "opt.fdata"]);
    folder.postlink(&[
        "convert",
        "run.plraw",
        "--binary",
        "app",
        "-o",
        "exact.fdata",
    ]);
    // Tables translate to the blocks that branches are in, so of a branch its target says which it is.
    let within = |text: &str| {
        let mut all = BTreeMap::new();
        for (key, n) in of_rounds(text) {
            let words: Vec<&str> = key.split(' ').collect();
            if words[1] == "round_of" && words[4] == "round_of" {
                *all.entry(words[5].to_owned()).or_default() += n;
            }
        }
        all
    };
    let same = overlap(
        &within(&folder.text("opt.fdata")),
        &within(&folder.text("exact.fdata")),
    );
    assert!(same > 0.9, "{same}");
    folder.postlink(&["optimize", "app", "-p", "opt.fdata", "-o", "again"]);
    assert_eq!(folder.run(folder.path("again"), &[]), "done\n");
}

#[test]
fn a_trace_of_another_build_is_no_profile() {
    let folder = Folder::new();
    folder.compile("app", BRANCHES, &[]);
    folder.compile(
        "other",
        &BRANCHES.replace("4000000000u", "4100000000u"),
        &[],
    );
    if !folder.may_trace() {
        return;
    }
    let trace = [
        "trace",
        "other",
        "-o",
        "other.pltrace",
        "--windows",
        "20",
        "--steps",
        "500",
    ];
    folder.postlink(&[&trace[..], &["--", "{}"]].concat());
    for arguments in [
        &["optimize", "app", "-p", "other.pltrace", "-o", "x"][..],
        &["aggregate", "-p", "other.pltrace", "app", "-o", "x"],
        &[
            "convert",
            "other.pltrace",
            "--binary",
            "app",
            "-o",
            "x.fdata",
        ],
    ] {
        let said = folder.refused(arguments);
        assert!(
            said.contains("other.pltrace: the trace is of")
                && said.contains("another version of the file"),
            "{said}"
        );
    }
    let said = folder.attempt(&["convert", "other.pltrace", "-o", "x.fdata"]);
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("needs --binary"), "{said}");
    assert!(!folder.path("x").exists() && !folder.path("x.fdata").exists());
    folder.postlink(&[
        "aggregate",
        "-p",
        "other.pltrace",
        "app",
        "-o",
        "x",
        "--ignore-build-id",
    ]);
}

/// Runs until its input ends, and long enough for some children and signals: a thread that computes, one that waits in
/// system calls, a timer's signals, and children, of which each computes and ends. What it prints is wrong if a thread
/// lost its way.
const SERVICE: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
static volatile sig_atomic_t ticks;
static volatile int over;
static void tick(int s) { (void)s; ticks++; }
__attribute__((noinline, noipa)) unsigned long compute(unsigned long n) {
  unsigned long x = 1;
  for (unsigned long i = 0; i < n; i++) x = i % 3 ? x * 31 + i : x ^ i << 7;
  return x;
}
static void *computes(void *right) {
  while (!over) if (compute(5000) != (unsigned long)right) return "wrong";
  return 0;
}
static void *waits(void *none) {
  (void)none;
  struct pollfd none_at_all = {-1, 0, 0};
  while (!over) if (poll(&none_at_all, 1, 7) < 0 && errno != EINTR) return "poll";
  return 0;
}
static int told(void) {
  struct pollfd input = {0, POLLIN, 0};
  return poll(&input, 1, 0) > 0;
}
int main(int argc, char **argv) {
  unsigned long right = compute(5000);
  signal(SIGALRM, tick);
  struct itimerval timer = {{0, 2000}, {0, 2000}};
  setitimer(ITIMER_REAL, &timer, 0);
  pthread_t a, b;
  pthread_create(&a, 0, computes, (void *)right);
  pthread_create(&b, 0, waits, 0);
  puts("ready"), fflush(stdout);
  int wrong = 0, children = 0;
  while (children <= 20 || ticks <= 100 || !told()) {
    pid_t child = fork();
    if (!child) _exit(compute(5000) == right ? 3 : 4);
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) ;
    wrong += !WIFEXITED(status) || WEXITSTATUS(status) != 3;
    children++;
    usleep(3000);
  }
  over = 1;
  void *said;
  pthread_join(a, &said); if (said) puts(said);
  pthread_join(b, &said); if (said) puts(said);
  printf("%d wrong\n", wrong);
  return 0;
}
"#;

/// Starts the service and waits until it runs.
fn serve(folder: &Folder) -> Child {
    use std::io::Read;
    let mut command = folder.command(folder.path("app"), &[]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut ready = [0; 6];
    let out = child.stdout.as_mut().expect("a pipe");
    out.read_exact(&mut ready).expect("it says so");
    assert_eq!(&ready, b"ready\n");
    child
}

#[test]
fn a_process_that_runs_is_traced_and_runs_on() {
    let folder = Folder::new();
    folder.compile("app", SERVICE, &["-pthread"]);
    if !folder.may_trace() {
        return;
    }
    let service = serve(&folder);
    let id = service.id().to_string();
    let mut traces = Vec::new();
    // Until there are windows enough, then twice until the time is over.
    for (name, most, time) in [
        ("a", "40", "10"),
        ("b", "100000", "0.6"),
        ("c", "100000", "0.4"),
    ] {
        let trace = format!("{name}.pltrace");
        let how = [
            "--windows",
            most,
            "--seconds",
            time,
            "--steps",
            "300",
            "--every",
            "1",
        ];
        let command = ["trace", "app", "-o", &trace, "--pid", &id];
        let said = folder.postlink(&[&command[..], &how].concat());
        assert!(said.is_empty(), "{said}");
        traces.push(trace);
    }
    let ended = service.wait_with_output().expect("it ends");
    let printed = String::from_utf8_lossy(&ended.stdout);
    assert_eq!(printed, "0 wrong\n", "{:?}", ended.status);
    assert!(ended.status.success());
    let shown = folder.postlink(
        &[
            &["show", "--binary", "app"][..],
            &traces.iter().map(String::as_str).collect::<Vec<_>>(),
        ]
        .concat(),
    );
    assert!(shown.contains("compute"), "{shown}");
    folder.postlink(&[
        "optimize",
        "app",
        "-p",
        "a.pltrace",
        "-p",
        "b.pltrace",
        "-o",
        "opt",
    ]);
    assert_eq!(folder.run(folder.path("opt"), &[]), "ready\n0 wrong\n");
}

#[test]
fn a_tracer_that_is_interrupted_keeps_its_windows_and_lets_go() {
    let folder = Folder::new();
    folder.compile("app", SERVICE, &["-pthread"]);
    if !folder.may_trace() {
        return;
    }
    let service = serve(&folder);
    let id = service.id().to_string();
    let how = ["--steps", "100000", "--every", "0.01", "--seconds", "100"];
    let command = [&["trace", "app", "-o", "t.pltrace", "--pid", &id][..], &how].concat();
    let tracer = folder
        .command(env!("CARGO_BIN_EXE_postlink"), &command)
        .spawn();
    let mut tracer = tracer.expect("it starts");
    std::thread::sleep(std::time::Duration::from_secs(1));
    folder.run("kill", &["-INT", &tracer.id().to_string()]);
    assert!(tracer.wait().expect("it ends").success());
    let ended = service.wait_with_output().expect("it ends");
    let printed = String::from_utf8_lossy(&ended.stdout);
    assert_eq!(printed, "0 wrong\n", "{:?}", ended.status);
    folder.postlink(&["aggregate", "-p", "t.pltrace", "app", "-o", "t.fdata"]);
}

/// A thread that is asked to stop in the middle of a step stops for that first. The signal that ends the step is then
/// still to come: a thread that was let go before had no tracer to take it, and its process died.
#[test]
fn a_step_has_ended_when_its_thread_is_let_go() {
    let folder = Folder::new();
    folder.compile("app", SERVICE, &["-pthread"]);
    if !folder.may_trace() {
        return;
    }
    let mut service = serve(&folder);
    let id = service.id().to_string();
    let how = ["--steps", "100000", "--every", "0.01", "--seconds", "0.03"];
    let command = [&["trace", "app", "-o", "t.pltrace", "--pid", &id][..], &how].concat();
    for round in 0..200 {
        let done = folder.attempt(&command);
        let said = String::from_utf8_lossy(&done.stderr);
        // So short a time may be over before there is a window.
        let nothing = said.contains("no window was recorded") || said.contains("no instruction");
        assert!(done.status.success() || nothing, "{said}");
        let ended = service.try_wait().expect("it is a child");
        assert_eq!(ended, None, "after {round} traces");
    }
    let ended = service.wait_with_output().expect("it ends");
    let printed = String::from_utf8_lossy(&ended.stdout);
    assert_eq!(printed, "0 wrong\n", "{:?}", ended.status);
}

/// Handles SIGTRAP and raises it now and then, by a breakpoint and by a system call, while a timer's handler blocks all
/// signals and other code blocks and unblocks them. What it prints is wrong if a SIGTRAP was lost or added, or the
/// handler was lost.
const TRAPS: &str = r#"
#define _GNU_SOURCE
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
static volatile sig_atomic_t ticks, traps;
static void tick(int s) { (void)s; for (int i = 0; i < 100; i++) ticks++; }
static void trap(int s) { (void)s; traps++; }
__attribute__((noinline, noipa)) unsigned long compute(unsigned long n) {
  unsigned long x = 1;
  for (unsigned long i = 0; i < n; i++) x = i % 3 ? x * 31 + i : x ^ i << 7;
  return x;
}
static int told(void) {
  struct pollfd input = {0, POLLIN, 0};
  return poll(&input, 1, 0) > 0;
}
int main(void) {
  struct sigaction act;
  memset(&act, 0, sizeof act);
  act.sa_handler = trap;
  sigaction(SIGTRAP, &act, 0);
  act.sa_handler = tick;
  sigfillset(&act.sa_mask);
  sigaction(SIGALRM, &act, 0);
  struct itimerval timer = {{0, 5000}, {0, 5000}};
  setitimer(ITIMER_REAL, &timer, 0);
  puts("ready"), fflush(stdout);
  unsigned long right = compute(300);
  int wrong = 0, raised = 0, rounds = 0;
  sigset_t all, before;
  sigfillset(&all);
  while (ticks < 5000 || rounds % 1000 || !told()) {
    wrong += compute(300) != right;
    sigprocmask(SIG_BLOCK, &all, &before);
    wrong += compute(300) != right;
    sigprocmask(SIG_SETMASK, &before, 0);
    if (++rounds % 1000) continue;
    __asm__ volatile("int3");
    raise(SIGTRAP);
    raised += 2;
  }
  timer.it_value.tv_usec = timer.it_interval.tv_usec = 0;
  setitimer(ITIMER_REAL, &timer, 0);
  sigaction(SIGTRAP, 0, &act);
  printf("%d wrong, %d missed, handler %s\n", wrong, raised - traps, act.sa_handler == trap ? "stays" : "lost");
  return 0;
}
"#;

#[test]
fn a_process_with_a_handler_of_traps_is_traced_and_keeps_it() {
    let folder = Folder::new();
    folder.compile("app", TRAPS, &[]);
    if !folder.may_trace() {
        return;
    }
    let right = "0 wrong, 0 missed, handler stays\n";
    let service = serve(&folder);
    let id = service.id().to_string();
    let how = ["--steps", "2000", "--every", "0.1", "--seconds", "1"];
    folder.postlink(&[&["trace", "app", "-o", "a.pltrace", "--pid", &id][..], &how].concat());
    let ended = service.wait_with_output().expect("it ends");
    let printed = String::from_utf8_lossy(&ended.stdout);
    assert_eq!(printed, right, "{:?}", ended.status);
    let how = ["--windows", "1000", "--steps", "2000", "--every", "0.1"];
    let command = [
        &["trace", "app", "-o", "b.pltrace"][..],
        &how,
        &["--", "{}"],
    ]
    .concat();
    let traced = folder.attempt(&command);
    let printed = String::from_utf8_lossy(&traced.stdout);
    assert_eq!(printed, format!("ready\n{right}"), "{:?}", traced.status);
    for trace in ["a.pltrace", "b.pltrace"] {
        let shown = folder.postlink(&["show", "--binary", "app", trace]);
        assert!(shown.contains("compute"), "{shown}");
    }
}

#[test]
fn processes_that_cannot_be_traced_are_errors() {
    let folder = Folder::new();
    folder.compile("app", BRANCHES, &[]);
    if !folder.may_trace() {
        return;
    }
    let mut other = folder
        .command("sleep", &["100"])
        .spawn()
        .expect("it starts");
    let trace = |id: &str| folder.refused(&["trace", "app", "-o", "t.pltrace", "--pid", id]);
    let said = trace(&other.id().to_string());
    assert!(
        said.contains("app") && said.contains("not mapped by process"),
        "{said}"
    );
    let said = trace("2147483647");
    assert!(said.contains("process 2147483647: No such file"), "{said}");
    other.kill().expect("it is ours");
    other.wait().expect("it ends");
    let both = ["trace", "app", "-o", "t.pltrace", "--pid", "1", "--", "{}"];
    assert_eq!(folder.attempt(&both).status.code(), Some(2));
    assert!(!folder.path("t.pltrace").exists());
}
