//! System calls need not come back, and may come back twice: threads of a static program end in one, in the
//! middle of glibc's `start_thread`. What counters say of functions with system calls must be what happened
//! all the same.

use std::process::Command;

use serde_json::Value;

mod support;
use support::done;

const POSTLINK: &str = env!("CARGO_BIN_EXE_postlink");

const SOURCE: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
static void *work(void *p) {
  long s = 0;
  for (long i = 0; i < (long)p; i++) s += i;
  return (void *)s;
}
int main(void) {
  long total = 0;
  for (long i = 0; i < 20; i++) {
    pthread_t t;
    void *r;
    pthread_create(&t, 0, work, (void *)i);
    pthread_join(t, &r);
    total += (long)r;
  }
  int status = 0;
  if (fork() == 0) _exit(7);
  wait(&status);
  printf("%ld %d\n", total, WEXITSTATUS(status));
  return 0;
}
"#;

/// The static program for the machine that a compiler is for, counted and optimised.
fn check(compiler: &str, runner: Option<&str>) {
    for tool in [Some(compiler), runner].into_iter().flatten() {
        if Command::new(tool).arg("--version").output().is_err() {
            eprintln!("SKIPPED: {tool} is not installed");
            return;
        }
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(dir.path().join("app.c"), SOURCE).expect("the directory is ours");
    let flags = ["-O2", "-static", "-pthread", "-Wl,-q", "-o", "app", "app.c"];
    done(Command::new(compiler).args(flags).current_dir(dir.path()));
    let run = |name: &str| {
        let program = dir.path().join(name);
        let mut command = match runner {
            Some(runner) => Command::new(runner),
            None => Command::new(&program),
        };
        command.args(runner.map(|_| &program));
        done(command.current_dir(dir.path())).stdout
    };
    let postlink = |arguments: &[&str]| {
        let mut command = Command::new(POSTLINK);
        done(command.args(arguments).current_dir(dir.path()))
    };
    let expected = run("app");
    assert_eq!(expected, b"1140 7\n");
    let arguments = [
        "instrument",
        "app",
        "-o",
        "app.inst",
        "--profile",
        "p.plraw",
    ];
    postlink(&arguments);
    assert_eq!(run("app.inst"), expected);
    let said = postlink(&["optimize", "app", "-p", "p.plraw", "-o", "app.opt"]);
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(!said.contains("contradict"), "{said}");
    assert_eq!(run("app.opt"), expected);

    let shown = postlink(&["show", "p.plraw", "--binary", "app", "--json"]).stdout;
    let shown: Value = serde_json::from_slice(&shown).expect("JSON");
    let functions = shown["functions"].as_array().expect("functions");
    let find = functions.iter().find(|f| f["name"] == "start_thread");
    let blocks = find.expect("threads ran")["blocks"].as_array();
    let blocks = blocks.expect("blocks");
    assert_eq!(blocks[0]["count"], 20);
    // The call in which threads end: all of them come there, and none continues.
    let ends = |block: &Value| {
        let edges = block["edges"].as_array();
        let goes_on = edges.into_iter().flatten().any(|e| e["count"] != 0);
        block["count"] == 20 && !goes_on
    };
    assert_eq!(blocks.iter().filter(|b| ends(b)).count(), 1, "{blocks:?}");
}

#[test]
fn threads_that_end_in_a_system_call_are_counted_on_aarch64() {
    check("aarch64-linux-gnu-gcc", Some("qemu-aarch64"));
}

#[test]
fn threads_that_end_in_a_system_call_are_counted() {
    #[cfg(target_arch = "x86_64")]
    check("gcc", None);
}
