//! Biased counters: libraries and programs of which one thread counts without locks. Counts are exact with threads,
//! forks, `longjmp`, signals, kills and other processes in the same file.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

use std::path::Path;

use postlink_profile::raw::RawFile;

mod support;
use support::folder::Folder;
use support::is_installed;

const LIBRARY: &str = r#"
#include <setjmp.h>
#define APART __attribute__((noinline, noipa))
APART unsigned stride(unsigned x) { return x & 1 ? x + 1 : x ^ 1; }
APART long walk(long n) { unsigned x = 1; for (long i = 0; i < n; i++) x = stride(x); return x; }
APART long call_back(long (*f)(long), long x, long n) {
  long r = f(x);
  walk(n);
  return r;
}
APART void jump(jmp_buf to, long n) { walk(n); if (n) longjmp(to, 1); }
APART unsigned both(unsigned (*f)(unsigned), unsigned x) { return f(x) + 1; }
"#;

const HOST: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
static long (*walk)(long);
static unsigned (*stride)(unsigned);
static long (*call_back)(long (*)(long), long, long);
static void (*jump)(jmp_buf, long);
static unsigned (*both)(unsigned (*)(unsigned), unsigned);
static void *load(void) {
  void *l = dlopen("./libstride.inst", RTLD_NOW);
  if (!l) { fprintf(stderr, "%s\n", dlerror()); exit(2); }
  walk = dlsym(l, "walk"); stride = dlsym(l, "stride"); call_back = dlsym(l, "call_back");
  jump = dlsym(l, "jump"); both = dlsym(l, "both");
  return l;
}
static pthread_barrier_t together;
static void *worker(void *n) {
  pthread_barrier_wait(&together);
  walk((long)n);
  return 0;
}
static void threads(int n, long steps) {
  pthread_t t[64];
  pthread_barrier_init(&together, 0, n + 1);
  for (int i = 0; i < n; i++) pthread_create(&t[i], 0, worker, (void *)steps);
  pthread_barrier_wait(&together);
  walk(steps);
  for (int i = 0; i < n; i++) pthread_join(t[i], 0);
}
static long forks(long x) { return fork(); }
static volatile long handled;
static void handler(int s) { stride(1); handled++; }
static void *loads(void *n) { load(); walk((long)n); return 0; }
int main(int argc, char **argv) {
  const char *what = argc > 1 ? argv[1] : "";
  long extra = 0;
  if (!strcmp(what, "elsewhere")) {
    pthread_t t;
    pthread_create(&t, 0, loads, (void *)1000L);
    pthread_join(t, 0);
    threads(3, 1000);
    extra = 5000;
  } else {
    void *l = load();
    if (!strcmp(what, "threads")) { threads(4, 100000); extra = 500000; }
    // The child comes back into a function of the library, and counts there together with its parent.
    if (!strcmp(what, "fork")) {
      long child = 0;
      for (int i = 0; i < 4 && !child; i++) child = call_back(forks, 0, 200000) == 0;
      if (child) { _exit(0); }
      while (wait(0) > 0) {}
      extra = 8 * 200000;
    }
    if (!strcmp(what, "jump")) {
      jmp_buf to;
      volatile int i = 0;
      setjmp(to);
      if (i++ < 10) jump(to, 100);
      extra = 1000;
    }
    if (!strcmp(what, "signals")) {
      struct sigaction a = { .sa_handler = handler };
      struct itimerval every = { { 0, 100 }, { 0, 100 } }, off = { { 0, 0 }, { 0, 0 } };
      sigaction(SIGALRM, &a, 0);
      setitimer(ITIMER_REAL, &every, 0);
      for (int i = 0; handled < 200 || i < 20; i++) { walk(100000); extra += 100000; }
      setitimer(ITIMER_REAL, &off, 0);
      extra += handled;
    }
    if (!strcmp(what, "kill")) { walk(12345); printf("12345\n"); fflush(stdout); raise(SIGKILL); }
    if (!strcmp(what, "again"))
      for (int i = 0; i < 5; i++) { walk(100); dlclose(l); l = load(); extra += 100; }
    if (!strcmp(what, "pointers"))
      for (int i = 0; i < 1000; i++) { both(stride, i); extra++; }
    walk(10);
    extra += 10;
  }
  printf("%ld\n", extra);
  return 0;
}
"#;

/// How often `stride` was entered, by a profile.
fn steps(folder: &Folder, binary: &str, profile: &str) -> u64 {
    let shown = folder.run(
        env!("CARGO_BIN_EXE_postlink"),
        &["show", "-q", "--json", "--binary", binary, profile],
    );
    let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    let functions = shown["functions"].as_array().expect("functions");
    let stride = functions.iter().find(|f| f["name"] == "stride");
    stride.map_or(0, |f| f["entries"].as_u64().expect("a number"))
}

fn areas(profile: &Path) -> u64 {
    RawFile::open(profile).expect("a profile").areas()
}

/// The library with biased counters, and a host that has none.
fn library() -> Option<Folder> {
    if !is_installed("gcc") {
        return None;
    }
    let folder = Folder::new();
    folder.compile("libstride", LIBRARY, &["-O1", "-shared", "-fPIC", "-Wl,-q"]);
    folder.compile("host", HOST, &["-w", "-pthread", "-rdynamic", "-ldl"]);
    let report = folder.run(
        env!("CARGO_BIN_EXE_postlink"),
        &[
            "instrument",
            "libstride",
            "-o",
            "libstride.inst",
            "--json",
            "-q",
        ],
    );
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!(report["counting"], "biased", "{report}");
    Some(folder)
}

/// Runs the host, and gives the steps that it says it made, and those of the profile.
fn run(folder: &Folder, what: &str) -> (u64, u64) {
    let profile = format!("{what}.plraw");
    let mut command = folder.command(folder.path("host"), &[what]);
    command.env("POSTLINK_PROFILE", &profile);
    let output = command.output().expect("the host runs");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{what}");
    let said = String::from_utf8_lossy(&output.stdout).trim().parse();
    let said = said.unwrap_or_else(|_| panic!("{what}: {output:?}"));
    (said, steps(folder, "libstride", &profile))
}

#[test]
fn a_library_counts_exactly_in_threads_forks_jumps_signals_and_until_it_is_killed() {
    let Some(folder) = library() else { return };
    for what in [
        "",
        "threads",
        "fork",
        "jump",
        "signals",
        "kill",
        "again",
        "pointers",
        "elsewhere",
    ] {
        let (said, counted) = run(&folder, what);
        assert_eq!(counted, said, "{what}");
        // One that all threads share, one of the owner; whoever loads the library again takes over both.
        assert_eq!(areas(&folder.path(&format!("{what}.plraw"))), 2, "{what}");
    }
}

#[test]
fn processes_at_once_share_an_area_and_each_has_one_of_its_own() {
    let Some(folder) = library() else { return };
    let mut hosts: Vec<_> = (0..6)
        .map(|_| {
            let mut command = folder.command(folder.path("host"), &["threads"]);
            command.env("POSTLINK_PROFILE", "one.plraw");
            command.stdout(std::process::Stdio::null());
            command.spawn().expect("the host runs")
        })
        .collect();
    for host in &mut hosts {
        assert!(host.wait().expect("it ends").success());
    }
    assert_eq!(steps(&folder, "libstride", "one.plraw"), 6 * 500_010);
    let areas = areas(&folder.path("one.plraw"));
    assert!((2..=7).contains(&areas), "{areas}");
}

const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
#define APART __attribute__((noinline, noipa))
APART unsigned stride(unsigned x) { return x & 1 ? x + 1 : x ^ 1; }
APART void *worker(void *n) { unsigned x = 1; for (long i = 0; i < (long)n; i++) x = stride(x); return 0; }
APART int fork_at_the_end(int x) { stride(x); return fork(); }
int main(int argc, char **argv) {
  pthread_t t[3];
  for (int i = 0; i < 3; i++) pthread_create(&t[i], 0, worker, (void *)100000L);
  worker((void *)100000L);
  for (int i = 0; i < 3; i++) pthread_join(t[i], 0);
  int child = fork_at_the_end(1);
  worker((void *)200000L);
  if (child == 0) _exit(0);
  while (wait(0) > 0) {}
  return 0;
}
"#;

const STEPS: u64 = 400_000 + 1 + 400_000;

#[test]
fn programs_count_exactly_also_in_one_file_with_per_thread_counters() {
    if !is_installed("gcc") {
        return;
    }
    let folder = Folder::new();
    for (name, flags) in [("pie", &["-fPIE", "-pie"][..]), ("fixed", &["-no-pie"])] {
        folder.compile(
            name,
            PROGRAM,
            &[&["-w", "-pthread", "-Wl,-q"], flags].concat(),
        );
        let (biased, profile) = (format!("{name}.biased"), format!("{name}.plraw"));
        folder.postlink(&["instrument", name, "-o", &biased, "--counters", "biased"]);
        let run = |program: &str| {
            let mut command = folder.command(folder.path(program), &[]);
            command.env("POSTLINK_PROFILE", &profile);
            command.spawn().expect("it runs")
        };
        assert!(run(&biased).wait().expect("it ends").success());
        assert_eq!(steps(&folder, name, &profile), STEPS);
        assert_eq!(areas(&folder.path(&profile)), 2);
        let made = folder.attempt(&[
            "instrument",
            name,
            "-o",
            "threads",
            "--counters",
            "per-thread",
        ]);
        let said = String::from_utf8_lossy(&made.stderr).into_owned();
        assert!(made.status.success(), "{said}");
        let mut both: Vec<_> = [&biased, "threads", &biased, "threads"].map(run).into();
        for process in &mut both {
            assert!(process.wait().expect("it ends").success());
        }
        assert_eq!(steps(&folder, name, &profile), 5 * STEPS, "{said}");
    }
}

#[test]
fn without_space_for_a_second_area_all_threads_share_the_first() {
    let Some(folder) = library() else { return };
    // One area has one page, and so has the header: the limit counts in kilobytes here.
    let script = "ulimit -f 8; exec ./host threads";
    let mut command = folder.command("bash", &["-c", script]);
    command.env("POSTLINK_PROFILE", "small.plraw");
    let output = command.output().expect("bash runs");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "500010\n");
    assert_eq!(steps(&folder, "libstride", "small.plraw"), 500_010);
    assert_eq!(areas(&folder.path("small.plraw")), 1);
}

#[test]
fn where_threads_may_share_an_identity_counters_are_atomic_and_the_reason_is_told() {
    if !is_installed("gcc") {
        return;
    }
    let folder = Folder::new();
    let reason = |source: &str, flags: &[&str]| {
        folder.compile("app", source, flags);
        let made = folder.attempt(&["instrument", "app", "-o", "out", "--counters", "biased"]);
        let said = String::from_utf8_lossy(&made.stderr).into_owned();
        assert!(made.status.success(), "{said}");
        assert!(said.contains("atomic counters"), "{said}");
        said
    };
    let clones =
        "#define _GNU_SOURCE\n#include <sched.h>\nint main(void) { return clone(0, 0, 0, 0); }";
    let said = reason(clones, &["-w"]);
    assert!(
        said.contains("atomic and not biased counters: it uses the function clone"),
        "{said}"
    );
    let said = reason("int main(void) { return 0; }", &["-static"]);
    assert!(said.contains("a static program"), "{said}");
    let own = "long call(long n) { long r; __asm__ volatile(\"syscall\" : \"=a\"(r) : \"a\"(n) : \"rcx\", \"r11\", \"memory\"); return r; }";
    let said = reason(own, &["-shared", "-fPIC"]);
    assert!(
        said.contains("call makes a system call by itself that may start a thread"),
        "{said}"
    );
    let harmless = "long id(void) { long r; __asm__ volatile(\"mov $39,%%eax; syscall\" : \"=a\"(r) : : \"rcx\", \"r11\", \"memory\"); return r; }";
    folder.compile("app", harmless, &["-shared", "-fPIC"]);
    let made = folder.attempt(&["instrument", "app", "-o", "out", "--counters", "biased"]);
    let said = String::from_utf8_lossy(&made.stderr).into_owned();
    assert!(said.contains("biased counters"), "{said}");
}
