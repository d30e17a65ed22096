//! Faults in instrumented code: each that is injected into a proved binary must be found.
//!
//! The programs have what counters can do harm to: loads and stores of exclusive pairs, flags that are read
//! after them, places where no register is dead.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use postlink_verify::Options;
use postlink_verify::mutate::{Faults, Kind};

mod support;
use support::done;
use support::folder::Folder;
use support::is_installed;

const POSTLINK: &str = env!("CARGO_BIN_EXE_postlink");

/// Places tried for each kind in each copy.
const TRIES: u64 = 10;

const SOURCE: &str = r#"
#include <stdio.h>
#include <string.h>
long crowded(long a, long b);
long flags(long a, long b);
static long total;
__attribute__((noinline, noipa)) int leaf(int x) { return x ^ 5; }
__attribute__((noinline, noipa)) int other(int x) { return x * 3 % 101; }
int (*volatile table[2])(int) = {leaf, other};
__attribute__((noinline, noipa)) long counts(long n) {
  while (n-- > 0) if (n % 3) __atomic_fetch_add(&total, n, __ATOMIC_SEQ_CST);
  return __atomic_load_n(&total, __ATOMIC_SEQ_CST);
}
__attribute__((noinline, noipa)) int work(int k, int x) {
  switch (k) {
  case 0: return x + 5; case 1: return table[x & 1](x); case 2: return x - 9; case 3: return x ^ 0x55;
  case 4: return x << 1 & 1023; case 5: return table[x & 1](x + 1) + 1; case 6: return x / 3; default: return x;
  }
}
int main(int argc, char **argv) {
  long s = argc + strlen(argv[0] ? "x" : "");
  for (int i = 0; i < 300; i++) s = work(i % 9, s + i) % 1000 + crowded(i % 2, i) % 7 + flags(i % 3, i) % 5;
  printf("%ld %ld\n", s, counts(100));
  return 0;
}
"#;

const AARCH64_FLAGS: &str = "
flags:
  .cfi_startproc
  cmp x0, #1
  cbz x1, 1f
  add x1, x1, #1
1: b.eq 2f
  add x1, x1, #2
2: cset x0, lt
  add x0, x0, x1
  ret
  .cfi_endproc
  .size flags, .-flags
";

const X86_64_FLAGS: &str = "
flags:
  .cfi_startproc
  cmp rdi, 1
  jl 1f
  cmovg rsi, rdi
1: je 2f
  cmovle rsi, rdi
2: lea rsi, [rsi + 4]
  js 3f
  cmovne rsi, rdi
3: mov rax, rsi
  cmovl rax, rdi
  mov ecx, 3
  mov edx, 3
  ret
  .cfi_endproc
  .size flags, .-flags
";

/// Every instruction of its own, each with one of the registers.
fn each(instruction: &str, registers: &[&str]) -> String {
    let line = |r: &&str| format!("  {}\n", instruction.replace('R', r));
    registers.iter().map(line).collect()
}

fn names(prefix: &str, numbers: impl Iterator<Item = u32>) -> Vec<String> {
    numbers.map(|n| format!("{prefix}{n}")).collect()
}

/// `crowded`, where no register is dead when it counts, and `flags`, where flags are live.
fn assembly(arm: bool) -> String {
    let head = ".text\n.globl crowded, flags\n.type crowded, %function\n.type flags, %function\n";
    let tail = "  ret\n  .cfi_endproc\n  .size crowded, .-crowded\n";
    let stack = ".section .note.GNU-stack, \"\", %progbits\n";
    if arm {
        let all = names("x", (2..18).chain(19..29));
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let kept: Vec<&str> = all[16..].to_vec();
        let reversed: Vec<&str> = kept.iter().rev().copied().collect();
        return [
            head,
            "crowded:\n  .cfi_startproc\n",
            &each("str R, [sp, #-16]!\n  .cfi_adjust_cfa_offset 16", &kept),
            &each("mov R, #3", &all),
            "  cbz x0, 1f\n  add x16, x16, x17\n",
            "1: add x0, x16, x17\n  cbz x1, 2f\n  add x0, x16, x9\n",
            "2: add x0, x16, x17\n  add x0, x0, x1\n",
            &each("add x0, x0, R", &all),
            &each("ldr R, [sp], #16\n  .cfi_adjust_cfa_offset -16", &reversed),
            tail,
            AARCH64_FLAGS,
            stack,
        ]
        .concat();
    }
    let kept = ["rbx", "rbp", "r12", "r13", "r14", "r15"];
    let mut all = vec!["rcx", "rdx", "r8", "r9", "r10", "r11"];
    all.extend(kept);
    let reversed: Vec<&str> = kept.iter().rev().copied().collect();
    [
        ".intel_syntax noprefix\n",
        &head.replace('%', "@"),
        "crowded:\n  .cfi_startproc\n",
        &each("push R\n  .cfi_adjust_cfa_offset 8", &kept),
        &each("mov R, 3", &all),
        "  mov eax, 3\n  test rdi, rdi\n  je 1f\n  lea rax, [rax + rdi]\n",
        "1: cmovz rax, rcx\n  js 2f\n  lea rax, [rax + rdi]\n",
        "2: cmovz rax, rdx\n  add rax, rdi\n  add rax, rsi\n",
        &each("add rax, R", &all),
        &each("pop R\n  .cfi_adjust_cfa_offset -8", &reversed),
        tail,
        X86_64_FLAGS,
        &stack.replace('%', "@"),
    ]
    .concat()
}

/// Builds the program for a machine and injects faults of all kinds into its copies; how often which were
/// applied. Nothing where it cannot be built.
fn spoil(compiler: &str, flags: &[&str], arm: bool) -> Option<BTreeMap<Kind, u64>> {
    if Command::new(compiler).arg("--version").output().is_err() {
        eprintln!("SKIPPED: {compiler} is not installed");
        return None;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = |name: &str| dir.path().join(name);
    let write = |name: &str, text: &str| std::fs::write(file(name), text).expect("it is ours");
    write("app.c", SOURCE);
    write("part.s", &assembly(arm));
    let mut command = Command::new(compiler);
    command
        .args(["-O2", "-Wl,-q", "-o", "app", "app.c", "part.s"])
        .args(flags);
    done(command.current_dir(dir.path()));
    let read = |path: &Path| std::fs::read(path).expect("a program");
    let input = read(&file("app"));
    let (mut applied, mut missed) = (BTreeMap::new(), vec![]);
    let ways = ["plain", "atomic", "biased"];
    for how in ways.into_iter().filter(|how| !arm || *how != "biased") {
        let arguments = ["instrument", "app", "-o", how, "--counters", how];
        done(
            Command::new(POSTLINK)
                .args(arguments)
                .current_dir(dir.path()),
        );
        let output = read(&file(how));
        let faults = Faults::new(&input, &output).unwrap_or_else(|what| panic!("{how}: {what}"));
        for &kind in Kind::COUNTING.iter().chain(Kind::ROUTINES) {
            for seed in 0..TRIES {
                let Some(mutant) = faults.inject(kind, seed) else {
                    break;
                };
                *applied.entry(kind).or_default() += 1;
                let report = postlink_verify::verify(&input, &mutant.image, &Options::default());
                if report.is_ok_and(|r| r.is_proved()) {
                    missed.push(format!("{how}: {}", mutant.what));
                }
            }
        }
    }
    assert!(missed.is_empty(), "not found:\n{}", missed.join("\n"));
    Some(applied)
}

#[test]
fn faults_in_counting_code_of_x86_64_are_found() {
    let Some(applied) = spoil("gcc", &["-fno-plt"], false) else {
        return;
    };
    let asked = |k: &&Kind| !Kind::COUNTING_AARCH64.contains(k);
    let all = Kind::COUNTING.iter().chain(Kind::ROUTINES);
    let never = all.filter(asked);
    let never: Vec<_> = never.filter(|k| !applied.contains_key(k)).collect();
    assert!(never.is_empty(), "never applied: {never:?}");
    assert_eq!(applied.len(), 23);
}

#[test]
fn faults_in_counting_code_of_aarch64_are_found() {
    let flags = ["-mno-outline-atomics"];
    let Some(applied) = spoil("aarch64-linux-gnu-gcc", &flags, true) else {
        return;
    };
    let asked = |k: &&Kind| !Kind::COUNTING_X86_64.contains(k);
    let all = Kind::COUNTING.iter().chain(Kind::ROUTINES);
    let never = all.filter(asked);
    let never: Vec<_> = never.filter(|k| !applied.contains_key(k)).collect();
    assert!(never.is_empty(), "never applied: {never:?}");
    assert_eq!(applied.len(), 22);
}

/// A pointer of the program's own whose first value is the address of an imported function may hold any other later. It
/// was taken for a slot of that function: calls through it were not recorded, and without kept relocations a function
/// that jumps through it was refused.
const POINTERS: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#define APART __attribute__((noinline, noipa))
__asm__(".text\n.skip 512,0xcc\n");
void (*handler)(int) = exit;
int (*closes)(int) = close;
static int seen;
APART void own(int x) { seen += x; }
APART int none(int x) { return x ^ 3; }
APART int work(int x) {
  if (x & 1) { handler(x); seen ^= 1; } else seen += 2;
  return seen;
}
APART int last(int x) { seen += x; return closes(x); }
int main(int argc, char **argv) {
  handler = own; closes = none;
  int sum = 0;
  for (int i = 0; i < 1000 * argc; i++) sum += work(i) + last(i);
  printf("%d %d\n", sum, seen);
  return 0;
}
"#;

#[test]
fn pointers_that_begin_with_imported_functions_may_hold_others_later() {
    for flags in [&["-fPIE", "-pie"][..], &["-fPIE", "-pie", "-Wl,-q"]] {
        let folder = Folder::new();
        let app = folder.compile("app", POINTERS, flags);
        let plain = folder.run(&app, &[]);
        let made = folder.attempt(&["instrument", "app", "-o", "counting"]);
        let said = String::from_utf8_lossy(&made.stderr).into_owned();
        assert!(made.status.success(), "{said}");
        assert!(!said.contains("could not be proved"), "{flags:?}: {said}");
        folder.counting_prints(&plain);
        folder.postlink(&["convert", "run.plraw", "--binary", "app", "-o", "app.fdata"]);
        let records = std::fs::read_to_string(folder.path("app.fdata")).expect("it was written");
        // A jump through a pointer may continue in old code without kept relocations, and is not recorded.
        let calls = [("work", "own", 500), ("last", "none", 1000)];
        for (from, to, count) in &calls[..flags.len() - 1] {
            let is_that = |line: &&str| {
                let words: Vec<&str> = line.split(' ').collect();
                matches!(words[..], ["1", caller, _, "1", callee, "0", _, times]
                    if caller == *from && callee == *to && times == count.to_string())
            };
            let found = records.lines().filter(is_that).count();
            assert_eq!(found, 1, "{flags:?}: {from} to {to} in {records}");
        }
    }
}

/// Compilers' helpers for atomic operations ask what the processor has. In a stripped program they have no names, and
/// were taken for code that relies on the instructions they have for newer ones: counters had those, and the program
/// ended with SIGILL on a Cortex-A53.
#[test]
fn counters_of_a_stripped_program_run_where_its_helpers_for_atomic_operations_do() {
    const THREADS: &str = r#"
#include <pthread.h>
#include <stdio.h>
static long sum;
static void *add(void *by) {
  for (int i = 0; i < 1000; i++) __atomic_fetch_add(&sum, (long)by, __ATOMIC_SEQ_CST);
  return 0;
}
int main(void) {
  pthread_t threads[2];
  for (long i = 0; i < 2; i++) pthread_create(&threads[i], 0, add, (void *)(i + 1));
  for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
  printf("%ld\n", sum);
}
"#;
    let (compiler, emulator) = ("aarch64-linux-gnu-gcc", "qemu-aarch64");
    if !is_installed(compiler) || !is_installed(emulator) {
        return;
    }
    let folder = Folder::new();
    let source = folder.path("threads.c");
    std::fs::write(&source, THREADS).expect("it can be written");
    let app = folder.path("app");
    let made = Command::new(compiler)
        .args(["-O2", "-s", "-pthread", "-o"])
        .args([&app, &source])
        .status();
    assert!(made.expect("a compiler").success());
    let run = |program: &str| {
        let said = Command::new(emulator)
            .args(["-cpu", "cortex-a53", "-L", "/usr/aarch64-linux-gnu"])
            .arg(folder.path(program))
            .env("POSTLINK_PROFILE", folder.path("run.plraw"))
            .output()
            .expect("an emulator");
        (said.status.code(), said.stdout)
    };
    assert_eq!(run("app"), (Some(0), b"3000\n".to_vec()));
    folder.postlink(&["instrument", "app", "-o", "counting"]);
    assert_eq!(run("counting"), (Some(0), b"3000\n".to_vec()));
}
