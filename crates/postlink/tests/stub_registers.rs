//! Indirect calls that pass something in `r11`, which linkers' stubs may use and so recorders and promoted calls do.
//! Where the value is written right in front of the call it is seen, and the call is left as it is; where it is not,
//! that is assumption A11 (`assumptions.rs`).

mod support;

use support::folder::{Folder, OPTIMIZE_ALL};
use support::is_installed;

const FLAGS: &[&str] = &["-O2", "-fPIE", "-pie", "-Wl,-q"];

/// Counts a run of `app` by `counting`.
fn count(folder: &Folder) {
    let profile = ["--profile", "run.plraw"];
    folder.postlink(&[&["instrument", "app", "-o", "counting"][..], &profile].concat());
    folder.run(folder.path("counting"), &[]);
}

/// Optimises `app` by that run, with all its indirect calls promoted.
fn promote(folder: &Folder) {
    let promotion = ["--indirect-call-promotion=calls", "--icp-top-callsites=0"];
    folder.postlink(&[&OPTIMIZE_ALL[..], &promotion].concat());
}

/// Eleven arguments in registers, the last of them in `r11`.
const PRESERVE_NONE: &str = r#"
#include <stdio.h>
#define NONE __attribute__((preserve_none))
typedef long (*F)(long, long, long, long, long, long, long, long, long, long, long) NONE;
__attribute__((noinline)) NONE long sum(long a, long b, long c, long d, long e, long f, long g, long h, long i, long j, long k) {
  return a + b * 2 + c * 3 + d * 4 + e * 5 + f * 6 + g * 7 + h * 8 + i * 9 + j * 10 + k * 11;
}
F volatile what = sum;
__attribute__((noinline)) long call(long x, long y) { return what(1, 2, 3, x, 5, 6, 7, 8, 9, y, x + y) + 1; }
/* A tail call: a jump. */
__attribute__((noinline)) NONE long pass(long a, long b, long c, long d, long e, long f, long g, long h, long i, long j, long k) {
  return what(a, b, c, d, e, f, g, h, i, j, k + 1);
}
int main(void) {
  long s = 0;
  for (int i = 0; i < 1000; i++) s += call(i, 2 * i) + pass(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, i);
  printf("%ld\n", s);
  return 0;
}
"#;

#[test]
fn an_eleventh_argument_in_r11_comes_through_counting_and_promotion() {
    let compilers = ["clang-22", "clang-21", "clang-20", "clang-19"];
    let Some(clang) = compilers.into_iter().find(|name| is_installed(name)) else {
        return;
    };
    let folder = Folder::new();
    std::fs::write(folder.path("app.c"), PRESERVE_NONE).unwrap();
    let built = std::process::Command::new(clang)
        .args(FLAGS)
        .arg("-o")
        .args([folder.path("app"), folder.path("app.c")])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{said}");
    let plain = folder.run(folder.path("app"), &[]);
    count(&folder);
    assert_eq!(folder.run(folder.path("counting"), &[]), plain);
    promote(&folder);
    assert_eq!(folder.run(folder.path("opt"), &[]), plain);
}

/// `r11` is read again in front of the call.
const READ: &str = r#"
#include <stdio.h>
long twice(long x) { return 2 * x; }
long pass(long (*)(long), long);
__asm__(".text\n.p2align 4\n.globl pass\n.type pass,@function\npass:\n.cfi_startproc\n sub $8,%rsp\n.cfi_def_cfa_offset 16\n mov %rdi,%rax\n mov %rsi,%rdi\n mov $0x2a5a5a2a,%r11d\n mov %r11,%rcx\n call *%rax\n add $1,%rax\n add $8,%rsp\n.cfi_def_cfa_offset 8\n ret\n.cfi_endproc\n.size pass,.-pass\n");
long (*volatile what)(long) = twice;
int main(void) { long s = 0; for (int i = 0; i < 1000; i++) s += pass(what, i); printf("%ld\n", s); return 0; }
"#;

/// `mov $0x2a5a5a2a,%r11d; mov %r11,%rcx`, and the same with `mov %rax,%rcx`.
const READS: [u8; 9] = [0x41, 0xbb, 0x2a, 0x5a, 0x5a, 0x2a, 0x4c, 0x89, 0xd9];
const READS_NOT: [u8; 9] = [0x41, 0xbb, 0x2a, 0x5a, 0x5a, 0x2a, 0x48, 0x89, 0xc1];

/// A file in which nothing reads `r11` in front of the call.
fn without_the_read(folder: &Folder, name: &str, to: &str) {
    let mut bytes = std::fs::read(folder.path(name)).unwrap();
    let places: Vec<usize> = (0..bytes.len() - READS.len())
        .filter(|at| bytes[*at..].starts_with(&READS))
        .collect();
    assert!(!places.is_empty(), "{name}");
    for at in places {
        bytes[at..at + READS.len()].copy_from_slice(&READS_NOT);
    }
    std::fs::write(folder.path(to), bytes).unwrap();
}

/// So the checker does not rest on the rewriter's rule.
#[test]
fn the_checker_refuses_a_recorder_and_a_promotion_where_a_call_passes_a_value_in_r11() {
    if !is_installed("gcc") {
        return;
    }
    let folder = Folder::new();
    folder.compile("app", READ, FLAGS);
    count(&folder);
    promote(&folder);
    without_the_read(&folder, "app", "other");
    for output in ["counting", "opt"] {
        let proved = folder.attempt(&["verify", "app", output]);
        assert!(proved.status.success(), "{output}");
        without_the_read(&folder, output, "changed");
        let refused = folder.attempt(&["verify", "other", "changed"]);
        let text = [refused.stdout, refused.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        assert_eq!(refused.status.code(), Some(1), "{output}: {text}");
        let reason = "the old code writes register 11 at";
        assert!(text.contains(reason), "{output}: {text}");
    }
    // Nothing but the register decides: where the call is left as it is the proof holds.
    folder.postlink(&["instrument", "other", "-o", "counting"]);
    folder.postlink(&["verify", "other", "counting"]);
}
