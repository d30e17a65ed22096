//! Layouts for compilers and linkers, end to end: clang takes the clusters and lld the order, and the program that
//! they make has its blocks and functions in that order and does what it did. And the other way round: what AutoFDO's
//! form says of source lines becomes counts of code. Without LLVM 22 these tests say so and pass.

use std::collections::BTreeMap;
use std::fs;

mod support;
use support::folder::Folder;
use support::is_installed;

const SOURCE: &str = r#"#include <stdio.h>
#include <stdlib.h>
static int work(int n, int k) {
  int s = 0;
  for (int i = 0; i < n; i++) {
    if ((i * 7 + k) % 13 == 0)
      s += i;
    else if (i % 5 == 1)
      s ^= i;
    else
      s -= k;
  }
  return s;
}
__attribute__((noinline)) int never(int x) {
  return x * 5 + 1;
}
__attribute__((noinline)) int rare(int x) {
  if (x > 30) {
    printf("x %d\n", x);
    x = never(x);
  }
  return x * 3;
}
__attribute__((noinline)) int leaf(int x) {
  return work(x % 17, x);
}
__attribute__((noinline)) int hot(int x) {
  switch (x % 5) {
  case 0:
    return work(100, x);
  case 1:
    return work(90, x) + 1;
  case 2:
    return rare(x % 4) + 2;
  case 3:
    return leaf(x) ^ 5;
  default:
    return x;
  }
}
int main(int c, char **v) {
  int n = c > 1 ? atoi(v[1]) : 1000;
  int s = 0;
  for (int i = 0; i < n; i++) {
    if (i % 97 == 96)
      s += rare(i % 4);
    s += hot(i * 5 + (i & 1) * 3);
  }
  if (s == 12345678)
    never(s);
  printf("%d\n", s);
  return 0;
}
"#;

impl Folder {
    fn made() -> Option<Folder> {
        let tools = [
            "clang-22",
            "ld.lld-22",
            "llvm-readobj-22",
            "llvm-profdata-22",
        ];
        if !tools.iter().all(|tool| is_installed(tool)) {
            return None;
        }
        let made = Folder::new();
        fs::write(made.path("app.c"), SOURCE).expect("the folder is ours");
        made.build("app", &["-fbasic-block-address-map", "-Wl,-q"]);
        made.count_run("app", "run.plraw", &[]);
        Some(made)
    }

    fn build(&self, output: &str, flags: &[&str]) {
        let common = [
            "-g",
            "-O2",
            "-ffunction-sections",
            "-fuse-ld=lld-22",
            "app.c",
            "-o",
            output,
        ];
        self.run("clang-22", &[&common[..], flags].concat());
    }

    fn export(&self, to: &str, file: &str) -> String {
        self.postlink(&["export", "app", "-p", "run.plraw", "--to", to, "-o", file]);
        self.text(file)
    }

    /// The numbers of the blocks in the first range of each function, by the program's own map.
    fn hot_blocks(&self, program: &str) -> BTreeMap<String, Vec<u32>> {
        let text = self.run("llvm-readobj-22", &["--bb-addr-map", program]);
        let mut functions = BTreeMap::new();
        let (mut name, mut range) = (String::new(), 0);
        for line in text.lines().map(str::trim) {
            if let Some(of) = line.strip_prefix("Name: ") {
                name = of.to_owned();
                range = 0;
            } else if line.starts_with("Base Address") {
                range += 1;
            } else if let Some(id) = line.strip_prefix("ID: ").filter(|_| range == 1) {
                let blocks: &mut Vec<u32> = functions.entry(name.clone()).or_default();
                blocks.push(id.parse().expect("a number"));
            }
        }
        functions
    }
}

/// Function and cluster, in the order of the list.
fn clusters(list: &str, name: &str, cluster: &str) -> Vec<(String, Vec<u32>)> {
    let mut out: Vec<(String, Vec<u32>)> = Vec::new();
    for line in list.lines() {
        if let Some(blocks) = line.strip_prefix(cluster) {
            let of = out.last_mut().expect("a function comes before its cluster");
            of.1 = blocks
                .split(' ')
                .map(|id| id.parse().expect("a number"))
                .collect();
        } else if let Some(of) = line.strip_prefix(name) {
            out.push((of.to_owned(), vec![]));
        }
    }
    out
}

#[test]
fn clang_and_lld_lay_out_as_propellers_files_say() {
    let Some(made) = Folder::made() else { return };
    let (v1, v0) = (
        made.export("propeller", "v1"),
        made.export("propeller-v0", "v0"),
    );
    let order = made.export("symbol-order", "order");
    assert!(v1.starts_with("v1\n"), "{v1}");
    let wanted = clusters(&v1, "f ", "c ");
    assert_eq!(wanted, clusters(&v0, "!", "!!"));
    let names: Vec<&str> = order.lines().collect();
    let ours: Vec<&str> = names
        .iter()
        .copied()
        .filter(|name| ["main", "hot", "leaf", "rare"].contains(name))
        .collect();
    assert_eq!(ours.len(), 4, "{order}");
    assert!(!names.contains(&"never"), "{order}");
    let expected = made.run("./app", &[]);
    let before = made.hot_blocks("app");
    for list in ["v1", "v0"] {
        let flag = format!("-fbasic-block-sections=list={list}");
        let map = "-fbasic-block-address-map";
        let linked = "-Wl,--symbol-ordering-file=order,--no-warn-symbol-ordering";
        made.build("again", &[&flag, map, linked]);
        assert_eq!(made.run("./again", &[]), expected);
        let after = made.hot_blocks("again");
        for (function, blocks) in &wanted {
            assert_eq!(after.get(function), Some(blocks), "{function} by {list}");
        }
        // The linker's order is that of the file.
        let symbols = made.run("nm", &["-n", "again"]);
        let placed: Vec<&str> = symbols
            .lines()
            .filter_map(|line| line.rsplit(' ').next())
            .filter(|name| ours.contains(name))
            .collect();
        assert_eq!(placed, ours, "by {list}");
    }
    // It says something: not all functions are as they were, and some blocks are cold.
    let moved = wanted
        .iter()
        .filter(|(function, blocks)| before.get(function) != Some(blocks));
    assert!(moved.count() > 1, "{v1}");
    let blocks = |map: &BTreeMap<String, Vec<u32>>| map["rare"].len() + map["main"].len();
    assert!(
        blocks(&wanted.iter().cloned().collect()) < blocks(&before),
        "{v1}"
    );
}

#[test]
fn a_program_without_a_map_of_basic_blocks_has_no_clusters() {
    let Some(made) = Folder::made() else { return };
    made.build("app", &["-Wl,-q"]);
    fs::remove_file(made.path("run.plraw")).expect("the run has written it");
    made.count_run("app", "run.plraw", &[]);
    let list = ["--to", "propeller", "-o", "list"];
    let said = made.refused(&[&["export", "app", "-p", "run.plraw"], &list[..]].concat());
    assert!(
        said.contains("compile it with -fbasic-block-address-map"),
        "{said}"
    );
    assert!(!made.path("list").exists());
}

#[test]
fn a_sample_profile_in_any_form_is_counts_of_the_code_of_its_lines() {
    let Some(made) = Folder::made() else { return };
    // From exact counts to a profile by lines, as a compiler gets it.
    made.postlink(&[
        "convert",
        "run.plraw",
        "--binary",
        "app",
        "-o",
        "exact.fdata",
    ]);
    let profile = lines_of_exact_counts(&made);
    fs::write(made.path("app.prof"), profile).expect("the folder is ours");
    for (form, flag) in [("ext", "--extbinary"), ("bin", "--binary")] {
        made.run(
            "llvm-profdata-22",
            &["merge", "--sample", flag, "app.prof", "-o", form],
        );
    }
    made.postlink(&[
        "profgen",
        "app",
        "--sample-profile",
        "app.prof",
        "--format",
        "gcov",
        "-o",
        "gcov",
    ]);
    made.postlink(&[
        "profgen",
        "app",
        "--sample-profile",
        "app.prof",
        "--format",
        "afdo",
        "-o",
        "afdo",
    ]);
    let mut all: Vec<String> = vec![];
    for form in ["app.prof", "ext", "bin", "gcov", "afdo"] {
        made.postlink(&["convert", form, "--binary", "app", "-o", "lines.fdata"]);
        let text = made.text("lines.fdata");
        assert!(text.starts_with("no_lbr instructions"), "{form}: {text}");
        all.push(text);
    }
    assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "{all:#?}");
    // What is hot is found, what never ran is not.
    assert!(all[0].contains(" hot "), "{}", all[0]);
    assert!(!all[0].contains(" never "), "{}", all[0]);
    made.postlink(&["optimize", "app", "-p", "gcov", "-o", "app.opt"]);
    assert_eq!(made.run("./app.opt", &[]), made.run("./app", &[]));
    // Twice the profile is twice the counts.
    made.postlink(&[
        "merge",
        "gcov",
        "app.prof",
        "--binary",
        "app",
        "-o",
        "sum.fdata",
    ]);
    made.postlink(&["convert", "gcov:2", "--binary", "app", "-o", "double.fdata"]);
    let read = |name: &str| fs::read_to_string(made.path(name)).expect("a text");
    assert_eq!(read("sum.fdata"), read("double.fdata"));
}

/// A profile by lines: of each line the exact number of its executions, by our export of coverage.
fn lines_of_exact_counts(made: &Folder) -> String {
    let lcov = made.export("lcov", "app.info");
    let counts: BTreeMap<u32, u64> = lcov
        .lines()
        .filter_map(|line| {
            let (number, count) = line.strip_prefix("DA:")?.split_once(',')?;
            Some((number.parse().ok()?, count.parse().ok()?))
        })
        .collect();
    let functions = [("rare", 18), ("leaf", 25), ("hot", 28), ("main", 42)];
    let mut out = String::new();
    for (n, (name, start)) in functions.iter().enumerate() {
        let end = functions.get(n + 1).map_or(u32::MAX, |next| next.1);
        let own: Vec<(&u32, &u64)> = counts
            .range(start..&end)
            .filter(|(_, count)| **count > 0)
            .collect();
        let total: u64 = own.iter().map(|(_, count)| **count).sum();
        let head = own.first().map_or(0, |(_, count)| **count);
        out += &format!("{name}:{total}:{head}\n");
        for (line, count) in own {
            out += &format!(" {}: {count}\n", line - start);
        }
    }
    out
}
