//! Progress on a terminal: what is left of reading profiles. The terminal is one that `script` (util-linux) makes.
//!
//! One file is added up so many times that it takes some seconds; how many that is the test finds out first.

#[path = "support/mod.rs"]
mod support;

use std::fs;
use std::process::Command;
use std::time::Instant;

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
    // Four seconds: long enough that a machine with other work does not matter.
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
    let (text, seconds) = merged(&folder, times, true);
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
