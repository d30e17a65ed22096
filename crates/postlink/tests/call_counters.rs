//! Calls counted in functions that are re-emitted, as those of programs without kept relocations are: exact counts
//! where a counter has something to keep, and faults, each of which must be found.

use postlink_verify::mutate::Kind;

mod counted;
mod support;
use counted::{Folder, have};
use support::faults;

/// A function that is given flags, one that is jumped to with something below the stack pointer, leaf functions, and
/// one whose first block is a loop.
const SOURCE: &str = r#"
#include <stdio.h>
#define APART __attribute__((noinline, noipa))
APART int leaf(int x) { return x ^ 5; }
APART int other(int x) { volatile int a[8]; for (int i = 0; i < 8; i++) a[i] = x + i; return a[x & 7]; }
APART int pick(int x) { switch (x % 5) { case 0: return leaf(x); case 1: return other(x); case 2: return x - 9; default: return ~x; } }
int (*volatile pointer)(int) = pick;
long carry(long x);
long below(long x);
int main(void) {
  long sum = 0;
  for (int i = 0; i < 70; i++) sum += carry(i) + below(i);
  for (int i = 0; i < 300; i++) sum += pointer(i);
  printf("%ld\n", sum);
  return 0;
}
"#;

const X86_64: &str = r#"
.intel_syntax noprefix
.text
.globl carry, below
.type carry, @function
carry:
  .cfi_startproc
  cmp rdi, 40
  call carried
  mov rdi, rax
  call carried
  ret
  .cfi_endproc
  .size carry, .-carry
.type carried, @function
carried:
  .cfi_startproc
  adc rdi, 3
  mov rax, rdi
  ret
  .cfi_endproc
  .size carried, .-carried
.type below, @function
below:
  .cfi_startproc
  mov [rsp - 16], rdi
  mov qword ptr [rsp - 64], 17
  lea r11, [rdi + 1]
  jmp part
  .cfi_endproc
  .size below, .-below
.type part, @function
part:
  .cfi_startproc
  mov rax, [rsp - 16]
  add rax, [rsp - 64]
  add rax, r11
  ret
  .cfi_endproc
  .size part, .-part
.section .note.GNU-stack, "", @progbits
"#;

const AARCH64: &str = r#"
.text
.globl carry, below
.type carry, %function
carry:
  .cfi_startproc
  stp x29, x30, [sp, #-16]!
  .cfi_def_cfa_offset 16
  .cfi_offset 29, -16
  .cfi_offset 30, -8
  cmp x0, #40
  bl carried
  bl carried
  ldp x29, x30, [sp], #16
  .cfi_def_cfa_offset 0
  ret
  .cfi_endproc
  .size carry, .-carry
.type carried, %function
carried:
  .cfi_startproc
  adc x0, x0, x0
  ret
  .cfi_endproc
  .size carried, .-carried
.type below, %function
below:
  .cfi_startproc
  mov x16, #17
  add x17, x0, #1
  b part
  .cfi_endproc
  .size below, .-below
.type part, %function
part:
  .cfi_startproc
  add x0, x16, x17
  ret
  .cfi_endproc
  .size part, .-part
.section .note.GNU-stack, "", %progbits
"#;

/// Builds the program, compares its calls with what is known of them, and spoils its counters.
fn check(command: &str, assembly: &str, kinds: &[Kind]) {
    let compiler = command.split(' ').next().unwrap_or_default();
    if !have(compiler, command) || command.contains("aarch64") && !have("qemu-aarch64", command) {
        return;
    }
    let folder = Folder::built(&[("p.c", SOURCE), ("part.s", assembly)], command);
    let profile = folder.profile("call-graph", &[&[]]);
    for (name, calls) in [
        ("main", 1),
        ("carry", 70),
        ("carried", 140),
        ("below", 70),
        ("part", 70),
        ("pick", 300),
        ("leaf", 60),
        ("other", 60),
    ] {
        let mut functions = profile.functions.iter();
        let counted = functions.find(|f| f.name == name.as_bytes());
        let counted = counted.map(|f| f.call_count);
        assert_eq!(counted, Some(calls), "{command}: {name}");
    }
    let read = |name: &str| std::fs::read(folder.path(name)).expect("the folder is ours");
    let applied = faults::spoil(&read("p"), &read("p.call-graph"), kinds);
    for kind in kinds {
        assert!(
            applied.contains_key(kind),
            "{command}: {kind:?} was not applied: {applied:?}"
        );
    }
}

#[test]
fn calls_of_x86_64_are_counted_exactly_and_faults_in_their_counters_are_found() {
    for options in ["", "-no-pie "] {
        let command = format!("gcc -O2 {options}-o p p.c part.s");
        check(&command, X86_64, Kind::CALLS);
    }
}

#[test]
fn calls_of_aarch64_are_counted_exactly_and_faults_in_their_counters_are_found() {
    let both = |k: &&Kind| !Kind::CALLS_X86_64.contains(k);
    let kinds: Vec<Kind> = Kind::CALLS.iter().filter(both).copied().collect();
    for options in ["", "-no-pie "] {
        let command = format!("aarch64-linux-gnu-gcc -O2 {options}-o p p.c part.s");
        check(&command, AARCH64, &kinds);
    }
}
