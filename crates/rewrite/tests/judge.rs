//! Layouts that are judged by what outputs' address translation tables say, beside what those who made them know.

mod support;

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use postlink_elf::elf::Elf;
use postlink_rewrite::judge::{Judgement, judge};
use postlink_rewrite::stats::DynoStats;
use postlink_rewrite::{InstrumentOptions, OptimizeOptions, Phases, instrument, optimize};

/// Whoever wrote this guessed wrong at every turn, so the compiler has laid it out badly: with parts that are
/// split off and run all the same.
const SOURCE: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#define OFTEN(x) __builtin_expect(!!(x), 1)
__attribute__((noinline, cold)) static long rare(long x) { return x * 3 + (x >> 7); }
__attribute__((noinline)) static long digest(const unsigned char *p, int n, long s) {
  for (int i = 0; i < n; i++) {
    if (OFTEN(p[i] == 255)) { s = rare(s ^ i); if (s & 64) s += i; else s -= p[i]; }
    else if (OFTEN(p[i] < 3)) { s ^= s << 5; if (OFTEN(s < 0)) s = -s; s = rare(s); }
    else { s = s * 31 + p[i]; if (OFTEN((s & 1023) == 5)) s = rare(s + 1); }
  }
  return s;
}
__attribute__((noinline)) static int choose(int x) {
  if (OFTEN(x % 61 == 0)) return rare(x) & 7;
  switch (x % 7) { case 0: return 1; case 1: return x & 3; case 2: if (OFTEN(x % 35 == 2)) return rare(x) & 1; return 2;
    case 3: return 5; case 4: return 4; case 5: return 3; default: return 6; }
}
__attribute__((noinline)) static long turn(int op, long s, unsigned char *p, int n) {
  if (OFTEN(op == 7)) { for (int i = 0; i < n; i++) p[i] ^= i; return rare(s); }
  if (OFTEN(op == 0)) { p[s & 255] += 1; return s + 1; }
  if (OFTEN(s == 12345)) abort();
  return op < 4 ? digest(p, 16 * op, s) : digest(p, 8, s) ^ op;
}
int main(void) {
  static unsigned char p[256]; unsigned r = 1; long s = 7;
  for (int i = 0; i < 256; i++) { r = r * 1103515245 + 12345; p[i] = r >> 16; }
  for (int i = 0; i < 2000; i++) { r = r * 1103515245 + 12345; s = turn(choose((r >> 16) & 0x7fff), s, p, 256); }
  printf("%ld\n", s); return 0;
}
"#;

/// What a layout is worth by the judge, and by the optimiser's own account: before, and after.
struct Told {
    judged: Judgement,
    own: (DynoStats, DynoStats),
    score: (f64, f64),
}

fn told(with_tables: bool) -> Option<Told> {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| -> PathBuf { directory.path().join(name) };
    fs::write(path("app.c"), SOURCE).unwrap();
    let built = Command::new("gcc")
        .args(["-O2", "-Wl,-q", "-o"])
        .args([path("app"), path("app.c")])
        .status();
    if !cfg!(target_arch = "x86_64") || !built.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: gcc for x86-64 is missing");
        return None;
    }
    let data = fs::read(path("app")).unwrap();
    let elf = Elf::parse(&data).unwrap();
    let mut phases = Phases::default();
    let options = InstrumentOptions::default();
    instrument(&elf, &options, &path("inst"), 0o755, &mut phases).unwrap();
    let mut counting = Command::new(path("inst"));
    let run = support::run(counting.env("POSTLINK_PROFILE", path("run")));
    assert!(run.status.success());
    let profile = postlink_profile::open(&path("run")).unwrap();
    let profile = profile.read().unwrap();
    let options = OptimizeOptions {
        dyno_stats: true,
        bat: with_tables,
        ..OptimizeOptions::default()
    };
    let report = optimize(&elf, &profile, &options, &path("opt"), 0o755, &mut phases).unwrap();
    let output = fs::read(path("opt")).unwrap();
    let outputs = [Elf::parse(&output).unwrap()];
    Some(Told {
        judged: judge(&elf, &profile, &outputs).unwrap(),
        own: report.dyno_stats.unwrap(),
        score: (report.score_before, report.score_after),
    })
}

#[test]
fn our_own_layout_is_worth_what_the_optimiser_says() {
    let Some(t) = told(true) else {
        return;
    };
    assert!(t.judged.left_out.is_empty(), "{:?}", t.judged.left_out);
    assert!(t.judged.functions.len() >= 5);
    let [before, after] = t.judged.worth[..] else {
        panic!("{} layouts", t.judged.worth.len());
    };
    assert_eq!(before.dyno_stats, t.own.0);
    assert_eq!(
        after.dyno_stats.taken_branches(),
        t.own.1.taken_branches(),
        "{after:?} {:?}",
        t.own.1
    );
    assert!(after.dyno_stats.taken_branches() < before.dyno_stats.taken_branches());
    // Parts that are far from each other are one row for the optimiser, which splits them afterwards.
    let near = |a: f64, b: f64| (a / b - 1.0).abs() < 0.02;
    assert!(
        near(before.score, t.score.0),
        "{} {}",
        before.score,
        t.score.0
    );
    assert!(
        near(after.score, t.score.1),
        "{} {}",
        after.score,
        t.score.1
    );
}

#[test]
fn without_tables_a_layout_is_worth_what_the_original_is() {
    let Some(t) = told(false) else {
        return;
    };
    let [before, after] = t.judged.worth[..] else {
        panic!("{} layouts", t.judged.worth.len());
    };
    assert_eq!(before.dyno_stats, after.dyno_stats);
    assert_eq!(before.score, after.score);
    assert_eq!(t.judged.moved, [0]);
}
