//! Progress on a terminal: what is left of reading profiles. The terminal is one that `script` (util-linux) makes.
//!
//! One file is added up so many times that it takes some seconds; how many that is the test finds out first.

#[path = "support/mod.rs"]
mod support;

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use support::folder::Folder;

/// Runs a command that adds up a file of fdata so many times, by one thread; what it printed, and the seconds.
fn merged(folder: &Folder, times: usize, terminal: bool) -> (String, f64) {
    let files = vec!["a.fdata"; times];
    let program = env!("CARGO_BIN_EXE_postlink");
    let mut command = if terminal {
        let line = format!(
            "stty cols 150; '{program}' merge {} -o sum.fdata",
            files.join(" ")
        );
        fs::write(folder.path("line.sh"), line).expect("the folder is ours");
        let mut script = Command::new("script");
        script.args(["-qec", "sh line.sh", "/dev/null"]);
        script
    } else {
        let mut merge = Command::new(program);
        merge.arg("merge").args(&files).args(["-o", "sum.fdata"]);
        merge
    };
    let begun = Instant::now();
    let output = command
        .current_dir(folder.dir())
        .env("RAYON_NUM_THREADS", "1")
        .env("TERM", "xterm")
        .output()
        .expect("it starts");
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(output.status.success(), "{text}");
    (text, begun.elapsed().as_secs_f64())
}

#[test]
fn a_terminal_is_told_what_is_left_calmly_and_a_pipe_nothing() {
    let folder = Folder::new();
    let line = |k: usize| {
        format!(
            "1 main {:x} 1 work {:x} 0 {}\n",
            k % 4096,
            k % 512,
            k % 9 + 1
        )
    };
    let text: String = (0..40_000).map(line).collect();
    fs::write(folder.path("a.fdata"), text).expect("the folder is ours");
    let mut times = 8;
    // Four seconds: what is left is only told of what takes some.
    let piped = loop {
        let (text, seconds) = merged(&folder, times, false);
        if seconds >= 3.0 || times >= 8000 {
            break text;
        }
        times = (times as f64 * (4.0 / seconds).clamp(1.5, 20.0)) as usize;
    };
    for part in ["step", " left", "\x1b"] {
        assert!(!piped.contains(part), "{piped:?}");
    }
    // The machine may have had other work until now.
    let (text, seconds) = loop {
        let (text, seconds) = merged(&folder, times, true);
        if seconds >= 3.5 || times >= 8000 {
            break (text, seconds);
        }
        times = (times * 2).min(8000);
    };
    let shown: Vec<&str> = text
        .split('\r')
        .filter(|part| part.contains("read, step 1 of 2"))
        .collect();
    let left = |part: &&&str| part.contains(" %, about ") && part.contains(" left");
    assert!(shown.iter().filter(left).count() >= 2, "{text:?}");
    // How much is done grows.
    let done: Vec<u32> = shown
        .iter()
        .filter(left)
        .filter_map(|part| part.split(" %").next()?.rsplit(' ').next()?.parse().ok())
        .collect();
    assert!(done.is_sorted() && done.first() < done.last(), "{done:?}");
    // Some updates a second.
    let most = 5.0 * (seconds + 1.0);
    assert!(
        (shown.len() as f64) < most,
        "{} in {seconds} s",
        shown.len()
    );
}

/// What a command shows on a terminal, in the order in which it is shown, and how long it took. Of so many parts of
/// the time it runs in one, and is stopped in the others: as on a machine that is as much slower.
fn shown_at(folder: &Folder, command: &str, slower: u32) -> (Vec<String>, Duration) {
    let program = env!("CARGO_BIN_EXE_postlink");
    let mut line = format!("stty cols 150; '{program}' {command}");
    if slower > 1 {
        let stopped = 0.02 * f64::from(slower - 1);
        // What has ended and was not waited for yet can still be stopped, but has no program any more.
        line += &format!(
            " & id=$!; while [ -e /proc/$id/exe ]; do kill -STOP $id; sleep {stopped}; kill -CONT $id; sleep 0.02; done; wait $id"
        );
    }
    fs::write(folder.path("line.sh"), line).expect("the folder is ours");
    let begun = Instant::now();
    let output = Command::new("script")
        .args(["-qec", "sh line.sh", "/dev/null"])
        .current_dir(folder.dir())
        .env("RAYON_NUM_THREADS", "1")
        .env("TERM", "xterm")
        .output()
        .expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}");
    let shown = text.split('\r').map(str::to_owned).collect();
    (shown, begun.elapsed())
}

/// What a command shows on a terminal.
fn shown(folder: &Folder, command: &str) -> Vec<String> {
    shown_at(folder, command, 1).0
}

/// They were silent about it: a library of 150 MB took nine seconds of `counts, step 1 of 3`.
#[test]
fn inspect_export_and_report_say_what_is_left_of_the_functions() {
    let folder = Folder::new();
    let program = env!("CARGO_BIN_EXE_postlink");
    let calls = "0 [unknown] 0 1 main 0 0 5\n";
    fs::write(folder.path("self.fdata"), calls).expect("the folder is ours");
    for (name, command, step) in [
        (
            "inspect",
            format!("inspect '{program}'"),
            "functions, step 2 of 2",
        ),
        (
            "export",
            format!("export '{program}' -p self.fdata --to drcov -o self.drcov"),
            "functions, step 5 of 7",
        ),
        (
            "report",
            format!("report '{program}' -p self.fdata -o self.html"),
            "functions, step 5 of 8",
        ),
        // What it prints goes elsewhere than to the terminal.
        (
            "disasm",
            format!("disasm '{program}' > /dev/null"),
            "print, step 3 of 3",
        ),
    ] {
        // Nothing is shown of what takes less than two seconds, and a fast machine takes less for all of it.
        let mut slower = 1;
        loop {
            let (shown, took) = shown_at(&folder, &command, slower);
            let of_step: Vec<&String> = shown
                .iter()
                .filter(|part| part.contains(&format!("{name}: {step}")))
                .collect();
            let done: Vec<u32> = of_step
                .iter()
                .filter(|part| part.contains(" left"))
                .filter_map(|part| part.split(" %").next()?.rsplit(' ').next()?.parse().ok())
                .collect();
            assert!(done.is_sorted(), "{done:?}");
            if done.first() < done.last() {
                break;
            }
            assert!(took.as_secs() < 30, "{name}: {shown:?}");
            slower *= 1 + (10.0 / took.as_secs_f64()).max(1.0) as u32;
        }
    }
}

/// It said nothing for as long as it measured.
#[test]
fn tune_says_what_is_left_of_measuring() {
    let folder = Folder::new();
    let source = "int main(int n, char **a) { int s = 0; for (int i = 0; i < 9000; i++) s ^= i * n; return s == 1; }";
    folder.compile("app", source, &["-Wl,-q"]);
    let workload = "sh -c 'sleep 0.2; {}'";
    let command = format!("tune app -o app.opt --measure 12 -- {workload}");
    let shown = shown(&folder, &command);
    let of_measuring: Vec<&String> = shown
        .iter()
        .filter(|part| part.contains("measure: ") && part.contains(" runs each, interval "))
        .collect();
    assert!(of_measuring.len() > 1, "{shown:?}");
    assert!(
        of_measuring
            .iter()
            .any(|part| part.contains(", about ") && part.contains(" s left")),
        "{of_measuring:?}"
    );
}
