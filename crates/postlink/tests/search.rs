//! `optimize --search`: layouts are tried, one is taken, and it is proved, does the same and is the same each time.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

const POSTLINK: &str = env!("CARGO_BIN_EXE_postlink");

/// Forty functions of 90 bytes and more that a loop calls through a table, each with a part that never runs.
fn source() -> String {
    let mut text = String::from("#include <stdio.h>\n#include <stdlib.h>\n");
    for i in 0..40 {
        text += &format!(
            "__attribute__((noinline, noipa)) long f{i}(long x) {{ if (x == -1) abort(); \
             for (int k = 0; k < {}; k++) x = x * {} + (x >> {}); return x; }}\n",
            1 + i % 5,
            3 + 2 * i,
            1 + i % 7
        );
    }
    let names: Vec<String> = (0..40).map(|i| format!("f{i}")).collect();
    text += &format!(
        "static long (*table[])(long) = {{ {} }};\n",
        names.join(", ")
    );
    text + "int main(void) { unsigned long x = 1; for (int i = 0; i < 4000; i++) x = table[(i * i + i / 7) % 40]((long)(x & 0xffff)); \
            printf(\"%lu\\n\", x); return 0; }\n"
}

struct Made {
    folder: TempDir,
}

impl Made {
    fn new() -> Made {
        let folder = tempfile::tempdir().expect("a folder");
        let made = Made { folder };
        fs::write(made.path("app.c"), source()).expect("written");
        let flags = ["-O2", "-Wl,-q", "-o"];
        support::done(
            Command::new("gcc")
                .args(flags)
                .arg(made.path("app"))
                .arg(made.path("app.c")),
        );
        let [app, counting] = ["app", "counting"].map(|name| made.path(name));
        made.postlink(&["instrument".as_ref(), &app, "-o".as_ref(), &counting]);
        let profile = made.path("run.plraw");
        support::done(Command::new(counting).env("POSTLINK_PROFILE", profile));
        made
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn postlink(&self, arguments: &[&Path]) -> Vec<u8> {
        support::done(Command::new(POSTLINK).arg("--quiet").args(arguments)).stdout
    }

    /// Optimises with these options; the output and what was said of it. The output is proved, or none is written.
    fn optimized(&self, options: &[&str]) -> (Vec<u8>, Value) {
        let [app, profile, output] = ["app", "run.plraw", "opt"].map(|name| self.path(name));
        let mut arguments: Vec<&Path> = vec!["optimize".as_ref(), &app, "-p".as_ref(), &profile];
        arguments.extend(["-o".as_ref(), output.as_path(), "--json".as_ref()]);
        arguments.extend(options.iter().map(Path::new));
        let said = self.postlink(&arguments);
        self.postlink(&["verify".as_ref(), &app, &output]);
        let run = |path: &Path| support::done(&mut Command::new(path)).stdout;
        assert_eq!(run(&output), run(&app), "{options:?}");
        let said: Value = serde_json::from_slice(&said).expect("JSON");
        (
            fs::read(output).expect("it was written"),
            said["optimize"].clone(),
        )
    }
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

#[test]
fn a_searched_layout_is_proved_and_the_same_each_time() {
    let made = Made::new();
    let (plain, said) = made.optimized(&[]);
    assert!(said["search"].is_null(), "no search is asked for");
    let (first, said) = made.optimized(&["--search", "30"]);
    let (second, _) = made.optimized(&["--search", "30"]);
    assert!(first == second, "the same input, another output");
    let layouts = said["search"]["layouts"].as_array().expect("layouts");
    assert_eq!(layouts.len(), 30);
    let chosen = said["search"]["chosen"].as_u64().expect("a number") as usize;
    let least = layouts
        .iter()
        .map(|l| number(&l["cost"]))
        .fold(f64::MAX, f64::min);
    assert!(number(&layouts[chosen]["cost"]) <= number(&layouts[0]["cost"]));
    assert!(least > 0.0 && number(&layouts[0]["lines"]) > 10.0);
    // The first is the one without a search.
    let (taken, _) = made.optimized(&["--search", "30", "--search-take", "0"]);
    assert!(taken == plain, "the first layout is not the usual one");
}

#[test]
fn every_layout_of_a_search_can_be_made_and_is_proved() {
    let made = Made::new();
    let mut sizes = Vec::new();
    for number in [1, 4, 7, 11, 16, 22, 29] {
        let take = number.to_string();
        let (_, said) = made.optimized(&["--search", "30", "--search-take", &take]);
        assert_eq!(said["search"]["chosen"], number);
        sizes.push(
            said["search"]["layouts"][number]["bytes"]
                .as_u64()
                .expect("bytes"),
        );
    }
    // Functions close together (11), at multiples of 16 (16), 32 (22) and 64 (29).
    assert!(sizes[3..].is_sorted() && sizes[3] < sizes[6], "{sizes:?}");
}

#[test]
fn padding_at_lines_takes_one_per_cent_at_most() {
    let made = Made::new();
    let bytes = |options: &[&str]| {
        let (_, said) = made.optimized(&[options, &["--search-take", "0"]].concat());
        number(&said["search"]["layouts"][0]["bytes"])
    };
    let usual = bytes(&["--align-functions", "16"]);
    let at_lines = bytes(&[]);
    assert!(at_lines <= usual * 1.01, "{at_lines} {usual}");
    assert!(bytes(&["--align-functions", "64"]) > usual);
}
