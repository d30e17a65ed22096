//! Words and numbers of programs at a fixed address that may be addresses inside of functions: the functions stay
//! before anything is emitted, and those alone, so that the checker has nothing to refuse.

mod support;

use std::process::Command;

use serde_json::Value;
use support::folder::{Folder, OPTIMIZE_ALL};
use support::{done, is_installed};

/// The fourth instruction of each function has an address that something else has, or may have.
const SOURCE: &str = r#"
#include <stdio.h>
#define FUNCTION(name, body) __asm__(".text\n.p2align 4\n.skip 16,0xcc\n.globl " name "\n.type " name ",@function\n" name \
  ":\n.cfi_startproc\n" body ".cfi_endproc\n.size " name ",.-" name "\n")
#define CALCULATES " mov %edi,%eax\n add $7,%eax\n imull $9,%eax,%eax\n add $11,%eax\n ret\n"
#define DATA(words) __asm__(".data\n.balign 8\n" words ".text\n")
FUNCTION("worded", CALCULATES);
DATA(".quad worded+8\n");
FUNCTION("odd", CALCULATES);
DATA(".long 0\n.quad odd+8\n.long 0\n");
FUNCTION("begun", CALCULATES);
DATA(".quad begun\n");
FUNCTION("named", CALCULATES);
FUNCTION("displaced", CALCULATES);
FUNCTION("followed", CALCULATES);
FUNCTION("longed", CALCULATES);
FUNCTION("names", " cmp $named+8,%edi\n sete %al\n movzbl %al,%eax\n test %edi,%edi\n jns 1f\n mov displaced+8(%rdi),%ecx\n"
  " cmpb $1,followed+8(%rdi)\n movabs $longed+8,%rcx\n1: ret\n");
/* Its table is read by its own jump alone: that explains the words of the table, and no others. */
#define TABLE(name) " cmp $3,%edi\n ja 1f\n mov %edi,%eax\n jmp *.Lt" name "(,%rax,8)\n" \
  ".La" name ": mov $1,%eax\n ret\n.Lb" name ": mov $20,%eax\n ret\n.Lc" name ": mov $300,%eax\n ret\n" \
  ".Ld" name ": mov $4000,%eax\n ret\n1: xor %eax,%eax\n ret\n"
#define ENTRIES(name) __asm__(".section .rodata\n.balign 8\n.Lt" name ": .quad .La" name ",.Lb" name ",.Lc" name ",.Ld" name "\n.text\n")
FUNCTION("switched", TABLE("switched"));
ENTRIES("switched");
FUNCTION("twice", TABLE("twice"));
ENTRIES("twice");
DATA(".quad .Lbtwice\n");
/* A label in memory: its jump may continue in old code. */
FUNCTION("labelled", " mov %edi,%eax\n jmp *.Lslot(%rip)\n ud2\n.Lon: add $7,%eax\n imull $9,%eax,%eax\n ret\n");
DATA(".Lslot: .quad .Lon\n");
int worded(int), odd(int), begun(int), named(int), displaced(int), followed(int), names(int), switched(int), twice(int);
int labelled(int), longed(int);
__attribute__((noinline)) int drive(int n) {
  int sum = 0;
  for (int i = 0; i < n; i++) {
    sum += worded(i) ^ odd(i) ^ begun(i) ^ named(i) ^ displaced(i) ^ followed(i) ^ longed(i);
    sum += names(i) + switched(i & 7) + twice(i & 7) + labelled(i);
  }
  return sum;
}
int main(int argc, char **argv) { printf("%d\n", drive(200 * argc)); return 0; }
"#;

/// Functions that stay for such a number.
fn stay(inspection: &Value) -> Vec<&str> {
    let pinned = inspection["pinned_functions"].as_array().expect("a list");
    let pinned = pinned
        .iter()
        .filter(|f| f["reason"] == "number-may-be-its-inside");
    let mut names: Vec<&str> = pinned
        .map(|f| f["name"].as_str().expect("a name"))
        .collect();
    names.sort_unstable();
    names
}

/// Functions that a certificate says have moved.
fn moved(certificate: &Value) -> Vec<String> {
    let functions = certificate["functions"].as_array().expect("functions");
    let names = functions
        .iter()
        .map(|f| f["name"].as_str().expect("a name"));
    names.map(str::to_owned).collect()
}

fn json(folder: &Folder, arguments: &[&str]) -> Value {
    serde_json::from_str(&folder.postlink(&[arguments, &["--json"]].concat())).expect("JSON")
}

#[test]
fn functions_of_which_a_number_may_be_an_address_inside_stay_and_no_others() {
    if !is_installed("gcc") {
        return;
    }
    let folder = Folder::new();
    let app = folder.compile("app", SOURCE, &["-no-pie", "-fno-pie"]);
    let plain = folder.run(&app, &[]);
    let inspection = json(&folder, &["inspect", "app"]);
    let staying = ["displaced", "longed", "named", "twice", "worded"];
    assert_eq!(stay(&inspection), staying);
    let counting = json(&folder, &["instrument", "app", "-o", "counting"]);
    assert_eq!(counting["reverted"], Value::Array(vec![]));
    folder.counting_prints(&plain);
    let optimized = json(&folder, &OPTIMIZE_ALL);
    assert_eq!(optimized["reverted"], Value::Array(vec![]));
    assert_eq!(folder.run(folder.path("opt"), &[]), plain);
    for output in ["counting", "opt"] {
        let moved = moved(&json(&folder, &["verify", "app", output]));
        for name in ["odd", "begun", "followed", "switched", "labelled", "names"] {
            assert!(
                moved.iter().any(|m| m == name),
                "{name} of {output}: {moved:?}"
            );
        }
        let stays = |name: &&str| moved.iter().all(|m| m != name);
        assert!(staying.iter().all(stays), "{output}: {moved:?}");
    }
}

/// In a position-independent program only the loader makes addresses.
#[test]
fn numbers_of_position_independent_programs_are_no_addresses() {
    if !is_installed("gcc") {
        return;
    }
    let folder = Folder::new();
    let source = r#"
__attribute__((noinline)) int work(int x) { return x * 3 + 1; }
long number = 0x1139, others[64] = {0x1020, 0x1128, 0x1130, 0x1138, 0x1140, 0x1148, 0x1150};
int main(int argc, char **argv) { return work(argc) + number == 7; }
"#;
    folder.compile("app", source, &["-pie", "-fPIE"]);
    assert!(stay(&json(&folder, &["inspect", "app"])).is_empty());
}

/// In a whole C library too, what the checker would refuse stays before.
#[test]
fn nothing_of_a_static_program_at_a_fixed_address_is_taken_back() {
    if !is_installed("gcc") {
        return;
    }
    let folder = Folder::new();
    let source = r#"
#include <stdio.h>
#include <stdlib.h>
static int order(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }
int main(int argc, char **argv) {
  int list[64];
  for (int i = 0; i < 64; i++) list[i] = i * 37 % 64;
  qsort(list, 64, sizeof *list, order);
  printf("%d %.3f %s\n", list[argc], list[5] / 7.0, argv[argc] ? argv[argc] : "none");
  return 0;
}
"#;
    folder.compile("app", source, &["-static", "-no-pie"]);
    let counting = json(&folder, &["instrument", "app", "-o", "counting"]);
    let of_program = |refused: &&Value| {
        let reason = refused["reason"].as_str().expect("a reason");
        reason.contains("a word or number of the program")
    };
    let refused = counting["refused"].as_array().expect("a list");
    let refused: Vec<&Value> = refused.iter().filter(of_program).collect();
    assert!(refused.is_empty(), "{refused:?}");
}

/// On AArch64 several instructions may make the number, and a literal may be one.
#[test]
fn numbers_of_aarch64_programs_are_found_before_anything_is_emitted() {
    let gcc = "aarch64-linux-gnu-gcc";
    if ![gcc, "qemu-aarch64"].into_iter().all(is_installed) {
        return;
    }
    let folder = Folder::new();
    let source = r#"
#define FUNCTION(name, body) __asm__(".text\n.p2align 4\n.globl " name "\n.type " name ",%function\n" name \
  ":\n.cfi_startproc\n" body ".cfi_endproc\n.size " name ",.-" name "\n")
#define CALCULATES " add w0, w0, #7\n add w0, w0, w0, lsl #3\n add w0, w0, #11\n ret\n"
FUNCTION("worded", CALCULATES);
FUNCTION("begun", CALCULATES);
FUNCTION("made", CALCULATES);
__asm__(".data\n.balign 8\n.quad worded+8, begun\n.text\n");
FUNCTION("makes", " movz x1, #:abs_g0_nc:made+8\n movk x1, #:abs_g1:made+8\n cmp x0, x1\n cset w0, eq\n ret\n");
int worded(int), begun(int), made(int), makes(long);
__attribute__((noinline)) int drive(int n) {
  int sum = 0;
  for (int i = 0; i < n; i++) sum += worded(i) + begun(i) * made(i) + makes(i);
  return sum & 127;
}
/* Nothing but this file: code of the C library has other reasons to stay. */
FUNCTION("_start", " mov x29, #0\n mov w0, #90\n bl drive\n mov x8, #93\n svc #0\n");
"#;
    std::fs::write(folder.path("app.c"), source).expect("written");
    let mut compile = Command::new(gcc);
    compile.args(["-O2", "-static", "-fno-pie", "-no-pie", "-nostdlib"]);
    compile.args(["-Wl,--eh-frame-hdr", "-o", "app", "app.c"]);
    done(compile.current_dir(folder.dir()));
    let run = |program: &str| {
        let mut command = folder.command("qemu-aarch64", &[program]);
        command.env("POSTLINK_PROFILE", folder.path("run.plraw"));
        command.status().expect("it runs").code()
    };
    let inspection = json(&folder, &["inspect", "app"]);
    let staying = stay(&inspection);
    for (name, stays) in [
        ("worded", true),
        ("made", true),
        ("begun", false),
        ("makes", false),
    ] {
        assert_eq!(staying.contains(&name), stays, "{name}: {staying:?}");
    }
    let counting = json(&folder, &["instrument", "app", "-o", "counting"]);
    assert_eq!(counting["reverted"], Value::Array(vec![]));
    assert_eq!(run("counting"), run("app"));
    let moved = moved(&json(&folder, &["verify", "app", "counting"]));
    assert!(moved.iter().any(|m| m == "begun"), "{moved:?}");
}
