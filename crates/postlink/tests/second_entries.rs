//! Functions that share a part are one to a rewriter, with several entries; gcc lets unrelated ones share one
//! by accident, where it splits off cold parts without any code. Control that enters through a secondary
//! entry by a pointer must be counted like any other, run the new code, and find its thread's counters.

use std::process::Command;

use serde_json::Value;

mod support;
use support::done;

const POSTLINK: &str = env!("CARGO_BIN_EXE_postlink");

const PROGRAM: &str = r#"
#include <pthread.h>
#include <stdio.h>
extern long first(long), second(long);
long (*volatile table[])(long) = {first, second};
int main(void) {
  long sum = 0, last = 0;
  for (long i = 0; i < 4000; i++) sum = sum * 3 + table[i % 4 != 0](i % 6);
  for (long i = 0; i < 8; i++) {
    pthread_t t;
    void *r;
    pthread_create(&t, 0, (void *(*)(void *))table[1], (void *)(i % 4));
    pthread_join(t, &r);
    last = last * 5 + (long)r;
  }
  printf("%ld %ld\n", sum, last);
  return 0;
}
"#;

/// Both have a table of their own, and one part together, which has the second's name.
const X86_64: &str = r#"
.macro function name, add
  .text
  .p2align 4
  .globl \name
  .type \name, @function
\name:
  .cfi_startproc
  cmpq $3, %rdi
  ja second.cold
  leaq .Ltable_\name(%rip), %rdx
  movslq (%rdx,%rdi,4), %rax
  addq %rdx, %rax
  jmp *%rax
.L0\name: leaq \add(%rdi,%rdi), %rax
  ret
.L1\name: leaq \add+7(%rdi), %rax
  ret
.L2\name: imulq $\add, %rdi, %rax
  ret
.L3\name: movl $\add, %eax
  ret
  .cfi_endproc
  .size \name, .-\name
  .section .rodata
  .p2align 2
.Ltable_\name: .long .L0\name-.Ltable_\name, .L1\name-.Ltable_\name, .L2\name-.Ltable_\name, .L3\name-.Ltable_\name
.endm
function first, 11
function second, 1000
  .section .text.unlikely,"ax",@progbits
  .type second.cold, @function
second.cold:
  .cfi_startproc
  movq $-5, %rax
  ret
  .cfi_endproc
  .size second.cold, .-second.cold
  .section .note.GNU-stack,"",@progbits
"#;

const AARCH64: &str = r#"
.macro function name, add
  .text
  .p2align 4
  .globl \name
  .type \name, %function
\name:
  .cfi_startproc
  cmp x0, #3
  b.hi second.cold
  cbz x0, .L0\name
  add x0, x0, #\add
  ret
.L0\name: mov x0, #\add
  ret
  .cfi_endproc
  .size \name, .-\name
.endm
function first, 11
function second, 1000
  .section .text.unlikely,"ax",%progbits
  .type second.cold, %function
second.cold:
  .cfi_startproc
  mov x0, #-5
  ret
  .cfi_endproc
  .size second.cold, .-second.cold
  .section .note.GNU-stack,"",%progbits
"#;

/// The program of a compiler, which an emulator may have to run; counted by the options, and optimised.
fn check(compiler: &str, assembly: &str, runner: Option<&str>, options: &[&str]) {
    for tool in [Some(compiler), runner].into_iter().flatten() {
        if Command::new(tool).arg("--version").output().is_err() {
            eprintln!("SKIPPED: {tool} is not installed");
            return;
        }
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(dir.path().join("app.c"), PROGRAM).expect("the directory is ours");
    std::fs::write(dir.path().join("part.S"), assembly).expect("the directory is ours");
    let flags = "-O2 -pthread -Wl,-q -o app app.c part.S".split(' ');
    done(Command::new(compiler).args(flags).current_dir(dir.path()));
    let run = |name: &str| {
        let program = dir.path().join(name);
        let mut command = match runner {
            Some(runner) => Command::new(runner),
            None => Command::new(&program),
        };
        if runner.is_some() {
            command.args(["-L", "/usr/aarch64-linux-gnu"]).arg(&program);
        }
        done(command.current_dir(dir.path())).stdout
    };
    let postlink = |arguments: &[&str]| {
        let mut command = Command::new(POSTLINK);
        done(command.args(arguments).current_dir(dir.path()))
    };
    let expected = run("app");
    let mut arguments = vec![
        "instrument",
        "app",
        "-o",
        "app.inst",
        "--profile",
        "p.plraw",
    ];
    arguments.extend(options);
    let said = String::from_utf8_lossy(&postlink(&arguments).stderr).into_owned();
    if let [_, "per-thread"] = options {
        assert!(said.contains("per-thread counters"), "{said}");
    }
    assert!(!said.contains("could not be proved"), "{said}");
    assert_eq!(run("app.inst"), expected, "{options:?}");
    spoil(dir.path());
    let said = postlink(&["optimize", "app", "-p", "p.plraw", "-o", "app.opt"]);
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(!said.contains("contradict"), "{said}");
    assert_eq!(run("app.opt"), expected, "{options:?}");

    let shown = postlink(&["show", "p.plraw", "--binary", "app", "--json"]).stdout;
    let shown: Value = serde_json::from_slice(&shown).expect("JSON");
    let functions = shown["functions"].as_array().expect("functions");
    let blocks = functions
        .iter()
        .find(|f| f["name"] == "first")
        .expect("it ran")["blocks"]
        .as_array()
        .expect("blocks");
    let listed = done(Command::new("nm").arg("app").current_dir(dir.path())).stdout;
    let at = |name: &str| {
        let listed = String::from_utf8_lossy(&listed).into_owned();
        let line = listed.lines().find(|l| l.ends_with(&format!(" {name}")));
        let address = line.expect("a symbol").split(' ').next();
        let address = u64::from_str_radix(address.unwrap_or_default(), 16).expect("an address");
        let block = blocks.iter().find(|b| b["address"] == address);
        block.map_or(0, |b| b["count"].as_u64().expect("a count"))
    };
    let counts = (at("first"), at("second"), at("second.cold"));
    // The two last of six go to the part: as often through both as the sequence of 4000 has it.
    let cold = (0..4000u64).filter(|i| i % 6 > 3).count() as u64;
    assert_eq!(counts, (1000, 3000 + 8, cold), "{options:?}: {blocks:?}");
}

/// A jump at the second entry that leads elsewhere is found by the checker.
fn spoil(dir: &std::path::Path) {
    let file = |name: &str| std::fs::read(dir.join(name)).expect("it was made");
    let (input, output) = (file("app"), file("app.inst"));
    let elf = postlink_elf::elf::Elf::parse(&input).expect("an ELF file");
    let symbols = elf.symbols(postlink_elf::elf::SymbolTable::Static);
    let place = |name: &[u8]| {
        let symbol = symbols.iter().find(|s| s.name == name).expect("a symbol");
        let at = elf.offset_of(symbol.value).expect("it is loaded") as usize;
        (symbol.value, at)
    };
    let verify = |bytes: &[u8]| {
        std::fs::write(dir.join("app.bad"), bytes).expect("the directory is ours");
        let mut command = Command::new(POSTLINK);
        let command = command.args(["verify", "app", "app.bad"]).current_dir(dir);
        command.output().expect("postlink runs").status.success()
    };
    assert!(verify(&output));
    let ((first, _), (second, at)) = (place(b"first"), place(b"second"));
    let arm = elf.machine == 183;
    // To the middle of something, to the next instruction, and where the first entry's jump goes.
    // A mark for indirect branches stays in front of the jump.
    let marks: [&[u8]; 2] = [&[0xf3, 0x0f, 0x1e, 0xfa], &[0x5f, 0x24, 0x03, 0xd5]];
    let at = at + 4 * usize::from(marks.contains(&&input[at..at + 4]));
    let (field, step) = if arm { (at, 1) } else { (at + 1, 4) };
    let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|k| output[at + k]));
    assert_ne!(
        word(field),
        u32::from_le_bytes([0, 1, 2, 3].map(|k| input[field + k]))
    );
    let other = word(place(b"first").1 + field - place(b"second").1);
    let back = (second - first) as u32 / if arm { 4 } else { 1 };
    for bad in [
        word(field) + 1,
        word(field) + step,
        other.wrapping_sub(back),
    ] {
        let mut spoilt = output.clone();
        spoilt[field..field + 4].copy_from_slice(&bad.to_le_bytes());
        assert!(!verify(&spoilt), "{bad:#x} for {:#x}", word(field));
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn functions_that_share_a_part_are_counted_by_all_their_entries() {
    for counters in ["plain", "atomic", "per-thread"] {
        check("gcc", X86_64, None, &["--counters", counters]);
    }
}

#[test]
fn functions_that_share_a_part_are_counted_by_all_their_entries_on_aarch64() {
    let compiler = "aarch64-linux-gnu-gcc";
    check(compiler, AARCH64, Some("qemu-aarch64"), &[]);
}

#[test]
#[cfg(target_arch = "x86_64")]
fn second_entries_with_end_branch_marks_are_proved_while_they_count() {
    let marked = X86_64.replace("  cmpq $3", "  endbr64\n  cmpq $3");
    for counters in ["plain", "per-thread"] {
        check("gcc", &marked, None, &["--counters", counters]);
    }
}

#[test]
fn second_entries_with_end_branch_marks_are_proved_while_they_count_on_aarch64() {
    let marked = AARCH64.replace("  cmp x0", "  hint #34\n  cmp x0");
    check("aarch64-linux-gnu-gcc", &marked, Some("qemu-aarch64"), &[]);
}
