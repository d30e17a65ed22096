//! Profiles of programs whose branches and calls were changed by passes: they translate to what the input does.

use std::collections::BTreeMap;

use super::{Bench, emulate, is_there, postlink, run, text};

/// Calls by pointers in registers and memory, conditional tail calls and jumps to jumps.
const SOURCE: &str = r#"
#include <cstdio>
#include <cstdlib>
typedef long (*Operation)(long, long);
__attribute__((noinline)) static long add(long a, long b) { return a + (b ^ 5) - (a >> 3); }
__attribute__((noinline)) static long mix(long a, long b) { for (int i = 0; i < 3; i++) a = a * 31 + b; return a; }
__attribute__((noinline)) static long cut(long a, long b) { return b & 1 ? a - b : a / 3; }
struct Machine { long state; Operation step[4]; };
__attribute__((noinline)) long by_field(Machine *m, long n) {
  for (long i = 0; i < n; i++) m->state = m->step[i % 8 == 7](m->state, i) % 1000003;
  return m->state;
}
__attribute__((noinline)) long by_register(Operation f, long n) {
  long s = 1;
  for (long i = 0; i < n; i++) s = f(s, i) % 1000003;
  return s;
}
extern "C" long left(long a, long b) { return mix(a, b) + 1; }
extern "C" long right(long a, long b) { return cut(a, b) + 2; }
extern "C" long choose(long a, long b);
asm(R"(
    .text
    .p2align 4
    .type choose,@function
    .globl choose
choose:
    .cfi_startproc
    test $7, %sil
    je 1f
    test $1, %sil
    je 3f
    lea 1(%rdi,%rsi), %rax
    ret
1:  jmp left
2:  jmp right
3:  jmp 4f
5:  lea 9(%rdi), %rax
    ret
4:  test $2, %sil
    je 2b
    jmp 5b
    .cfi_endproc
    .size choose,.-choose
)");
int main(int argc, char **argv) {
  long n = argc > 1 ? atol(argv[1]) : 2000, total = 0;
  Machine m = {1, {add, mix, cut, add}};
  for (long k = 0; k < n / 100; k++) {
    total += by_field(&m, 60) + by_register(k % 10 ? add : cut, 60);
    for (long i = 0; i < 60; i++) total += choose(i, k + i);
  }
  printf("%ld\n", total);
}
"#;

/// Optimises with a profile. Gives by pass how many places it changed, and how often those ran by the profile.
fn optimise(bench: &Bench, profile: &str, output: &str) -> BTreeMap<String, (u64, u64)> {
    let account = text(&run(postlink()
        .args(["optimize", "--enable-bat", "--preset=max", "--json"])
        .args([
            "--inline-small-functions=false",
            "--indirect-call-promotion=calls",
        ])
        .args(["--icp-top-callsites=0", "-p"])
        .arg(bench.at(profile))
        .arg(bench.at("p"))
        .arg("-o")
        .arg(bench.at(output))));
    let account: serde_json::Value = serde_json::from_str(&account).expect("JSON");
    let passes = account["optimize"]["passes"].as_array().expect("a list");
    let number = |pass: &serde_json::Value, name: &str| pass[name].as_u64().expect("a number");
    let each = passes.iter().map(|p| {
        let name = p["pass"].as_str().expect("a name").to_owned();
        (name, (number(p, "changed"), number(p, "executions")))
    });
    each.collect()
}

#[test]
fn a_profile_of_changed_branches_is_one_of_the_original() {
    if !is_there(
        "qemu-x86_64",
        "no profile is made of a program with changed branches",
    ) {
        return;
    }
    for link in [&[][..], &["-no-pie"]] {
        let bench = Bench::built(SOURCE, "g++", link);
        let plain = bench.at("p");
        emulate(&bench, &plain, &bench.at("first.script"));
        bench.aggregate(&plain, "first.script", "first.fdata");
        let first = optimise(&bench, "first.fdata", "changed");
        let changed = bench.at("changed");
        emulate(&bench, &changed, &bench.at("second.script"));
        bench.aggregate(&changed, "second.script", "second.fdata");
        // Both profiles have the edges that passes are about, about as often.
        let second = optimise(&bench, "second.fdata", "again");
        let passes = [
            "indirect-call-promotion",
            "simplify-conditional-tail-calls",
            "peepholes=double-jumps",
        ];
        for pass in passes {
            let ((n, runs), (again, runs_again)) = (first[pass], second[pass]);
            assert_eq!(
                (n, again),
                (2, 2),
                "{link:?}, {pass}: {first:?}, {second:?}"
            );
            let close = runs.abs_diff(runs_again) * 5 < runs;
            assert!(close, "{link:?}, {pass}: {runs} and {runs_again}");
        }
        let output = |name| text(&run(std::process::Command::new(bench.at(name)).arg("3000")));
        assert_eq!(output("again"), output("p"));
        assert_eq!(output("changed"), output("p"));
    }
}
