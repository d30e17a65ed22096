//! Pages of code over time: copies of a live profile, taken at a moment that the program waits at.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use serde_json::json;

use crate::browser::Browser;
use crate::support::folder::Folder;

/// Two functions that are pages apart; between them the program waits for a line.
const SOURCE: &str = r#"
#include <stdio.h>
static volatile int sum;
__attribute__((noipa)) void early(int n) { for (int i = 0; i < n; i++) sum += i; }
__attribute__((noipa, aligned(16384))) void late(int n) { for (int i = 0; i < n; i++) sum ^= i; }
int main(void) {
    char line[8];
    early(1000);
    puts("early");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) return 1;
    late(50000);
    return 0;
}
"#;

#[test]
fn pages_over_time_are_those_of_copies_of_the_live_profile() {
    let folder = Folder::new();
    folder.build("app", "app.c", SOURCE, &[]);
    folder.instrument("app", "run.plraw");
    let mut program = Command::new(folder.path("app.inst"))
        .current_dir(folder.path("."))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut said = String::new();
    BufReader::new(program.stdout.take().expect("a pipe"))
        .read_line(&mut said)
        .expect("it says something");
    assert_eq!(said, "early\n");
    let watch = |to: &str| {
        let arguments = "watch run.plraw --snapshot-every 0.001 --count 1 -o";
        folder.postlink(&[&arguments.split(' ').collect::<Vec<_>>()[..], &[to]].concat());
    };
    // The second one is called so that by name it would be the first.
    watch("snap.9.plraw");
    let mut input = program.stdin.take().expect("a pipe");
    input.write_all(b"go\n").expect("it waits");
    assert!(program.wait().expect("it ends").success());
    watch("snap.10.plraw");
    folder.postlink(&["optimize", "app", "-p", "run.plraw", "-o", "app.opt"]);
    let given = [
        "app",
        "-p",
        "run.plraw",
        "--startup",
        "snap.10.plraw",
        "snap.9.plraw",
    ];
    let startup = folder.json(&given)["startup"].clone();
    let column = |name: &str| -> Vec<u64> {
        let list = startup[name].as_array().expect("a list");
        list.iter().map(|n| n.as_u64().expect("a number")).collect()
    };
    let (instructions, before) = (column("instructions"), column("before"));
    assert_eq!((instructions.len(), before.len()), (2, 2), "{startup}");
    // Some instructions each time round: 1,000 times, then 50,000 times more.
    assert!((3000..20_000).contains(&instructions[0]), "{startup}");
    assert!((150_000..1_000_000).contains(&instructions[1]), "{startup}");
    // `late` is the one function on its page.
    assert_eq!(before[1], before[0] + 1, "{startup}");
    assert_eq!(startup["after"], json!([]));
    let with = [&given[..], &["--optimized", "app.opt"]].concat();
    let after = folder.json(&with)["startup"]["after"].clone();
    // All of the code that ran is side by side, so what comes late is on a page that is there.
    assert_eq!(after[0], after[1], "{after}");
    folder.postlink(&[&["report"], &with[..], &["-o", "report.html"]].concat());
    let Some(mut browser) = Browser::start() else {
        return;
    };
    browser.size(1280, 900);
    browser.open(&folder.path("report.html"));
    browser.evaluate("location.hash = '#sizes'");
    browser.until("[...document.querySelectorAll('h2')].some((h) => h.textContent.startsWith('Start-up')) && document.querySelectorAll('svg.chart path').length === 2");
    let row = browser.evaluate(
        "[...document.querySelectorAll('table')].pop().querySelector('tr:last-child').innerText",
    );
    let row = row.as_str().expect("text");
    assert!(row.contains(&before[1].to_string()), "{row}");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn copies_of_another_program_and_what_is_no_copy_are_refused() {
    let folder = Folder::new();
    folder.build("app", "app.c", super::SOURCE, &[]);
    folder.count_run("app", "run.plraw", &[]);
    folder.build("other", "other.c", "int main(void) { return 0; }", &[]);
    folder.count_run("other", "other.plraw", &[]);
    let given = ["report", "app", "-p", "run.plraw", "-o", "r.html"];
    let refused = |startup: &str| folder.refused(&[&given[..], &["--startup", startup]].concat());
    let message = refused("other.plraw");
    assert!(
        message.contains("other.plraw") && message.contains("does not belong to this binary"),
        "{message}"
    );
    for file in ["app.c", "none.plraw"] {
        let message = refused(file);
        assert!(message.contains(file), "{message}");
    }
    assert!(fs::metadata(folder.path("r.html")).is_err());
}
