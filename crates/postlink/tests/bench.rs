//! `postlink bench` on programs whose differences are known: verdicts, exit codes, files, servers, interrupts.
//!
//! Differences are far larger than what other load on a machine makes; smaller ones are tried on a model of a
//! machine (`crates/measure/tests/calibration.rs`).

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

mod support;
use support::done;
use support::folder::Folder;

/// `app WORK`: does so much. `app serve PORT WORK`: does it for each connection. `app ask PORT N`: connects so often.
const SOURCE: &str = r#"
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#ifndef FACTOR
#define FACTOR 1
#endif
__attribute__((noipa)) static unsigned step(unsigned x) { return x & 1 ? 3 * x + 1 : x / 2 + 7; }
static unsigned work(long n) { unsigned x = 27; for (long i = 0; i < n * 1000 * FACTOR; i++) x = step(x); return x; }
static struct sockaddr_in at(const char *port) {
  struct sockaddr_in a; memset(&a, 0, sizeof a);
  a.sin_family = AF_INET; a.sin_port = htons(atoi(port)); a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return a;
}
int main(int argc, char **argv) {
  if (argc == 4 && !strcmp(argv[1], "serve")) {
    struct sockaddr_in a = at(argv[2]);
    int on = 1, s = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(s, (void *)&a, sizeof a) || listen(s, 9)) { perror("bind"); return 3; }
    puts("listening"); fflush(stdout);
    for (;;) { int c = accept(s, 0, 0); char b; if (read(c, &b, 1) == 1) { b = work(atol(argv[3])); if (write(c, &b, 1) != 1) return 4; } close(c); }
  }
  if (argc == 4 && !strcmp(argv[1], "ask")) {
    for (int i = atoi(argv[3]); i > 0; i--) {
      struct sockaddr_in a = at(argv[2]); int s = socket(AF_INET, SOCK_STREAM, 0); char b = 1;
      if (connect(s, (void *)&a, sizeof a)) { perror("connect"); return 5; }
      if (write(s, &b, 1) != 1 || read(s, &b, 1) != 1) return 6;
      close(s);
    }
    return 0;
  }
  printf("%u\n", work(argc > 1 ? atol(argv[1]) : 1));
  return argc > 2 ? atoi(argv[2]) : 0;
}
"#;

impl Folder {
    /// With `app`, and `slow`, which does half as much again.
    fn with_programs() -> Folder {
        let folder = Folder::new();
        folder.compile("app", SOURCE, &["-Wl,-q", "-DFACTOR=2"]);
        folder.compile("slow", SOURCE, &["-Wl,-q", "-DFACTOR=3"]);
        folder
    }

    /// Runs postlink, which must end with this code, and gives what it writes to both streams.
    fn ends(&self, code: i32, arguments: &[&str]) -> (String, String) {
        let output = self.attempt(arguments);
        let (said, warned) = texts(&output);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{arguments:?}: {said}{warned}"
        );
        assert!(!warned.contains("panicked"), "{warned}");
        (said, warned)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).expect("it was written")
    }
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

fn last_line(text: &str) -> &str {
    text.lines().last().unwrap_or_default()
}

/// Few runs, for differences that cannot be missed.
const FEW: [&str; 4] = ["--min-runs", "6", "--max-runs", "9"];

#[test]
fn a_program_that_spins_longer_is_slower_and_the_other_way_round_faster() {
    let folder = Folder::with_programs();
    let files = [
        "--export",
        "json=r.json",
        "--export",
        "csv=r.csv",
        "--export",
        "markdown=r.md",
    ];
    let run = ["--", "{}", "7000"];
    let arguments = [&["bench", "app", "slow"][..], &FEW, &files, &run].concat();
    let (said, _) = folder.ends(0, &arguments);
    assert!(last_line(&said).starts_with("slow is slower: "), "{said}");
    assert!(
        said.contains("processor time") && said.contains("page faults"),
        "{said}"
    );

    let json: Value = serde_json::from_str(&folder.read("r.json")).expect("JSON");
    assert_eq!(json["verdict"], "slower");
    let ratio = &json["workloads"][0]["ratios"]["processor_time"];
    let estimate = ratio["estimate"].as_f64().expect("a ratio");
    assert!((1.2..1.9).contains(&estimate), "{estimate}");
    assert!(ratio["low"].as_f64() > Some(1.0));
    let pairs = json["workloads"][0]["pairs"].as_u64().expect("a number") as usize;
    assert!((6..=9).contains(&pairs));
    let runs = json["workloads"][0]["runs"].as_array().expect("runs");
    assert_eq!(runs.len(), 2 * pairs);
    assert!(
        runs.iter()
            .all(|run| run["wall_time"].as_f64() > Some(0.001))
    );
    assert_eq!(folder.read("r.csv").lines().count(), 1 + 2 * pairs);
    assert!(
        folder
            .read("r.csv")
            .starts_with("workload,round,program,processor_time,wall_time,")
    );
    assert!(folder.read("r.md").contains("| processor time |"));

    let swapped = [
        &["bench", "slow", "app"][..],
        &FEW,
        &["--fail-unless-faster"],
        &run,
    ]
    .concat();
    let (said, _) = folder.ends(0, &swapped);
    assert!(last_line(&said).starts_with("app is faster: "), "{said}");
    for fail in ["--fail-if-slower", "--fail-unless-faster"] {
        let arguments = [&["bench", "app", "slow"][..], &FEW, &[fail], &run].concat();
        folder.ends(1, &arguments);
    }
}

#[test]
fn several_workloads_have_a_mean_and_each_run_its_setup_and_cleanup() {
    let folder = Folder::with_programs();
    let (said, _) = folder.ends(
        0,
        &[
            "bench",
            "app",
            "slow",
            "--min-runs",
            "6",
            "--max-runs",
            "6",
            "--warmup",
            "0",
            "--workload",
            "short={} 3000 > out",
            "--workload",
            "long={} 9000 > out",
            "--setup",
            "echo setup {} >> log; rm -f out",
            "--cleanup",
            "cat out >> log",
            "--export",
            "json",
        ],
    );
    assert!(said.contains("geometric mean"), "{said}");
    let last = last_line(&said);
    assert!(
        last.starts_with("slow is slower: ") && last.contains("2 workloads"),
        "{said}"
    );
    let log = folder.read("log");
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(lines.len(), 2 * 2 * 2 * 6);
    for pair in lines.chunks(2) {
        assert!(pair[0].starts_with("setup /"), "{pair:?}");
        assert!(pair[1].parse::<u32>().is_ok(), "{pair:?}");
    }
    // The first program, the second, and the other way round in the next round.
    let programs: Vec<bool> = lines
        .iter()
        .step_by(2)
        .map(|line| line.ends_with("app"))
        .collect();
    assert_eq!(
        programs[..8],
        [true, false, true, false, false, true, false, true]
    );
}

#[test]
fn a_server_is_measured_under_load() {
    let folder = Folder::with_programs();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener
        .local_addr()
        .expect("it is bound")
        .port()
        .to_string();
    drop(listener);
    let load = format!("./app ask {port} 20");
    for ready in [
        "text:listening".to_owned(),
        format!("./app ask {port} 1 2> /dev/null"),
    ] {
        let options = [
            "--until-ready",
            &ready,
            "--load",
            &load,
            "--export",
            "json=r.json",
        ];
        let server = ["--", "{}", "serve", &port, "400"];
        let arguments = [&["bench", "app", "slow"][..], &FEW, &options, &server].concat();
        let (said, _) = folder.ends(0, &arguments);
        assert!(last_line(&said).starts_with("slow is slower: "), "{said}");
        let json: Value = serde_json::from_str(&folder.read("r.json")).expect("JSON");
        let run = &json["workloads"][0]["runs"][0];
        assert!(run["peak_memory"].as_f64() > Some(1e5), "{run}");
    }
    let options = [
        "--until-ready",
        "text:never",
        "--load",
        &load,
        "--ready-within",
        "0.3",
    ];
    let server = ["--", "{}", "serve", &port, "1"];
    let arguments = [&["bench", "app", "slow"][..], &FEW, &options, &server].concat();
    let (_, warned) = folder.ends(1, &arguments);
    assert!(warned.contains("it has not written 'never'"), "{warned}");
}

#[test]
fn an_interrupt_shows_and_exports_what_was_measured() {
    let folder = Folder::with_programs();
    let mut child = folder
        .command(
            Path::new(env!("CARGO_BIN_EXE_postlink")),
            &[
                "bench",
                "app",
                "slow",
                "--max-runs",
                "500",
                "--precision",
                "0.01",
            ],
        )
        .args([
            "--warmup",
            "0",
            "--cleanup",
            "echo ran >&2",
            "--export",
            "csv=r.csv",
        ])
        .args(["--", "{}", "2000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("postlink is there");
    let errors = BufReader::new(child.stderr.take().expect("it is piped"));
    let mut errors = errors.lines().map_while(Result::ok);
    let ran = errors
        .by_ref()
        .filter(|line| line == "ran")
        .take(15)
        .count();
    assert_eq!(ran, 15);
    // SAFETY: it takes no pointers; the child is ours and was not waited for.
    assert_eq!(
        unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGINT) },
        0
    );
    let rest: Vec<String> = errors.collect();
    let output = child.wait_with_output().expect("it ends");
    let (said, _) = texts(&output);
    assert_eq!(output.status.code(), Some(130), "{said}{rest:?}");
    assert!(
        rest.iter().any(|line| line.contains("interrupted")),
        "{rest:?}"
    );
    assert!(
        said.contains("interrupted)") && said.contains("processor time"),
        "{said}"
    );
    let rows = folder.read("r.csv").lines().count() - 1;
    assert!(rows >= 14, "{rows}");
}

/// Starts a command in a process group of its own, waits until the word was written to standard error so many
/// times, and sends SIGINT to the group, as a terminal does: the workload gets it as well.
fn interrupted(command: &mut Command, times: usize) -> (Option<i32>, String, Vec<String>) {
    use std::os::unix::process::CommandExt;
    let mut child = command
        .process_group(0)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("postlink is there");
    let errors = BufReader::new(child.stderr.take().expect("it is piped"));
    let mut errors = errors.lines().map_while(Result::ok);
    let ran = errors
        .by_ref()
        .filter(|line| line == "ran")
        .take(times)
        .count();
    // SAFETY: it takes no pointers; the group is that of our child, which was not waited for.
    let sent = unsafe { libc::kill(-(child.id() as libc::pid_t), libc::SIGINT) };
    let rest: Vec<String> = errors.collect();
    let output = child.wait_with_output().expect("it ends");
    let (said, _) = texts(&output);
    assert_eq!((ran, sent), (times, 0), "{said}{rest:?}");
    (output.status.code(), said, rest)
}

#[test]
fn an_interrupt_from_a_terminal_loses_nothing_either() {
    let folder = Folder::with_programs();
    let options = ["--max-runs", "500", "--precision", "0.01", "--warmup", "0"];
    let mut command = folder.command(
        Path::new(env!("CARGO_BIN_EXE_postlink")),
        &["bench", "app", "slow"],
    );
    command.args(options).args([
        "--cleanup",
        "echo ran >&2",
        "--export",
        "csv=r.csv",
        "--",
        "{}",
        "2000",
    ]);
    let (code, said, rest) = interrupted(&mut command, 15);
    assert_eq!(code, Some(130), "{said}{rest:?}");
    assert!(
        said.contains("interrupted)") && said.contains("processor time"),
        "{said}"
    );
    assert!(folder.read("r.csv").lines().count() > 14, "{said}");
}

#[test]
fn an_interrupt_while_servers_are_measured_loses_nothing_and_stops_the_server() {
    let folder = Folder::with_programs();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener
        .local_addr()
        .expect("it is bound")
        .port()
        .to_string();
    drop(listener);
    let load = format!("./app ask {port} 20 && echo ran >&2");
    let options = [
        "--max-runs",
        "500",
        "--precision",
        "0.01",
        "--warmup",
        "0",
        "--until-ready",
        "text:listening",
    ];
    let mut command = folder.command(
        Path::new(env!("CARGO_BIN_EXE_postlink")),
        &["bench", "app", "slow"],
    );
    command.args(options).args([
        "--load",
        &load,
        "--export",
        "csv=r.csv",
        "--",
        "{}",
        "serve",
        &port,
        "400",
    ]);
    let (code, said, rest) = interrupted(&mut command, 8);
    assert_eq!(code, Some(130), "{said}{rest:?}");
    assert!(
        said.contains("interrupted)") && said.contains("processor time"),
        "{said}"
    );
    let rows = folder.read("r.csv").lines().count() - 1;
    assert!(rows >= 7, "{rows}");
    assert!(
        std::net::TcpStream::connect(format!("127.0.0.1:{port}")).is_err(),
        "a server is left"
    );
}

#[test]
fn an_interrupt_while_tune_measures_keeps_the_result_and_says_what_was_measured() {
    let folder = Folder::with_programs();
    let mut command = folder.command(
        Path::new(env!("CARGO_BIN_EXE_postlink")),
        &["tune", "app", "-o", "app.opt", "--measure", "500"],
    );
    command.args(["--", "sh", "-c", "{} 2000 && echo ran >&2"]);
    // The first is that of the instrumented program.
    let (code, said, rest) = interrupted(&mut command, 15);
    assert_eq!(code, Some(130), "{said}{rest:?}");
    assert!(
        rest.iter().any(|line| line.contains("processor time")),
        "{rest:?}"
    );
    assert!(folder.path("app.opt").exists());
}

#[test]
fn layouts_by_chance_are_proved_and_their_luck_is_told() {
    let folder = Folder::with_programs();
    folder.ends(
        0,
        &[
            "instrument",
            "app",
            "-o",
            "app.inst",
            "--profile",
            "run.plraw",
        ],
    );
    done(
        Command::new(folder.path("app.inst"))
            .arg("100")
            .current_dir(folder.dir()),
    );
    let (said, _) = folder.ends(
        0,
        &[
            "bench",
            "app",
            "--profile",
            "run.plraw",
            "--layouts",
            "3",
            "--min-runs",
            "6",
            "--max-runs",
            "6",
            "--export",
            "json=r.json",
            "--",
            "{}",
            "500",
        ],
    );
    assert!(
        said.contains("3 layouts of app that differ in nothing that matters"),
        "{said}"
    );
    let json: Value = serde_json::from_str(&folder.read("r.json")).expect("JSON");
    assert_eq!(json["programs"].as_array().expect("programs").len(), 5);
    assert_eq!(
        json["workloads"][0]["luck"]["layouts"]
            .as_array()
            .expect("layouts")
            .len(),
        3
    );
    // The layouts themselves: of two seeds they differ, of one they do not.
    let made = |name: &str, seed: &str| {
        folder.ends(
            0,
            &[
                "optimize",
                "app",
                "-p",
                "run.plraw",
                "-o",
                name,
                "--layout-seed",
                seed,
            ],
        );
        folder.ends(0, &["verify", "app", name]);
        fs::read(folder.path(name)).expect("it was written")
    };
    assert_ne!(made("one", "1"), made("two", "2"));
    assert_eq!(made("one", "1"), made("again", "1"));
    let run = |name: &str| done(Command::new(folder.path(name)).arg("9")).stdout;
    assert_eq!(run("one"), run("app"));
}

#[test]
fn what_cannot_be_measured_is_an_error_that_names_it() {
    let folder = Folder::with_programs();
    let fail = |code, arguments: &[&str]| folder.ends(code, arguments).1;
    assert!(fail(2, &["bench", "app", "--", "{}"]).contains("--profile"));
    assert!(fail(2, &["bench", "app", "slow", "--", "echo"]).contains("has no {}"));
    assert!(fail(2, &["bench", "app", "slow", "--workload", "x=echo"]).contains("has no {}"));
    assert!(fail(2, &["bench", "app", "slow", "--export", "xml", "--", "{}"]).contains("xml"));
    assert!(fail(2, &["bench", "app", "slow", "--load", "x", "--", "{}"]).contains("until-ready"));
    let gone = fail(1, &["bench", "app", "gone", "--", "{}"]);
    assert!(gone.contains("gone: no such file"), "{gone}");
    let failed = fail(1, &["bench", "app", "slow", "--", "{}", "1", "7"]);
    assert!(
        failed.contains("exit code 7") && failed.contains("app"),
        "{failed}"
    );
    let setup = fail(
        1,
        &["bench", "app", "slow", "--setup", "exit 4", "--", "{}"],
    );
    assert!(
        setup.contains("--setup 'exit 4' ended with exit code 4"),
        "{setup}"
    );
    let arguments = [
        &["bench", "app", "slow"][..],
        &FEW,
        &["--allow-failure", "--", "{}", "1", "7"],
    ];
    folder.ends(0, &arguments.concat());
}

#[test]
fn a_run_that_fails_late_loses_nothing_that_was_measured() {
    let folder = Folder::with_programs();
    // The tenth run fails.
    let workload = "w=echo >> runs; [ $(wc -l < runs) -ne 10 ] && {} 300";
    let arguments = [
        "bench",
        "app",
        "slow",
        "--warmup",
        "0",
        "--export",
        "csv=r.csv",
        "--workload",
        workload,
    ];
    let (said, warned) = folder.ends(1, &arguments);
    assert!(warned.contains("exit code 1"), "{warned}");
    assert!(said.contains("4 runs each; a run failed"), "{said}");
    assert_eq!(folder.read("r.csv").lines().count(), 1 + 9);
}

#[test]
fn tune_says_do_not_ship_where_no_gain_is_shown() {
    let folder = Folder::with_programs();
    let tune = ["tune", "app", "-o", "app.opt", "--measure", "2"];
    let (_, warned) = folder.ends(0, &[&tune[..], &["--", "{}", "10"]].concat());
    assert!(warned.contains("do not ship: no gain shown"), "{warned}");
    let (_, warned) = folder.ends(
        1,
        &[&tune[..], &["--fail-unless-faster", "--", "{}", "10"]].concat(),
    );
    assert!(warned.contains("needs 6 pairs"), "{warned}");
    assert!(Path::new(&folder.path("app.opt")).exists());
}
