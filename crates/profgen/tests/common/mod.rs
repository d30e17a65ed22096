//! Programs that the tests build.

use std::path::{Path, PathBuf};
use std::process::Command;

mod tools;
pub use tools::have;

const MAIN: &str = r#"
#include <algorithm>
#include <cstdio>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>
template <class T> struct Acc {
  T total{};
  void add(const T &t) { if (t > 3) total += t; else total -= t; }
};
static int helper(int x) { if (x & 1) return x * 3; for (int i = 0; i < x; i++) x ^= i; return x; }
__attribute__((noinline)) static int loc(int x) { return x % 7 ? helper(x) : -x; }
int other(int);
static int (*table[])(int) = {helper, loc, other};
std::map<std::string, int> counts;
int main(int argc, char **argv) {
  Acc<int> a; std::vector<int> v;
  for (int i = 0; i < 100000; i++) { v.push_back(loc(i)); a.add(table[i % 3](i)); }
  std::sort(v.begin(), v.end());
  try { counts["x"] += v.at(argc * 10); if (argc > 5) throw std::runtime_error("x"); }
  catch (std::exception &e) { puts(e.what()); }
  printf("%d %d\n", a.total, counts["x"]);
}
"#;
const OTHER: &str = r#"
__attribute__((noinline)) static int loc(int x) { if (x > 50) return x * 5; return x / 3; }
int other(int x) { int s = 0; for (int i = 0; i < 10; i++) s += loc(x + i); return s; }
"#;

/// Builds the program, with debug information and probes.
pub fn build(dir: &Path, flags: &[&str]) -> PathBuf {
    std::fs::write(dir.join("main.cpp"), MAIN).unwrap();
    std::fs::write(dir.join("other.cpp"), OTHER).unwrap();
    let status = Command::new("clang++-19")
        .current_dir(dir)
        .args([
            "-g",
            "-fpseudo-probe-for-profiling",
            "main.cpp",
            "other.cpp",
            "-o",
            "program",
        ])
        .args(flags)
        .status()
        .unwrap();
    assert!(status.success(), "clang++-19 {flags:?}");
    dir.join("program")
}
