//! What a proof assumes, attacked: for each assumption a program that breaks it. The certificate counts the assumption,
//! the output does something else than the program, and `verify --strict-assumptions` refuses it. So each of these
//! tests would fail if the assumption were not counted, and would be needless if the checker looked itself.
//!
//! `docs/what-a-program-may-see.md` names the test of each.

mod support;

use std::process::Command;
use support::folder::{Folder, OPTIMIZE_ALL};
use support::{done, is_installed};

/// A program that breaks an assumption.
struct Attack<'a> {
    assumption: &'a str,
    source: &'a str,
    /// For instrumenting and optimising.
    both: &'a [&'a str],
    /// For optimising. `None`: instrumenting alone is the attack.
    optimize: Option<&'a [&'a str]>,
    instrument: &'a [&'a str],
    /// Source of a library that the program is linked with.
    library: Option<&'a str>,
    /// For linking, if not as `both` asks for.
    flags: Option<&'a [&'a str]>,
}

const KEPT: &[&str] = &["-fPIE", "-pie", "-fno-toplevel-reorder", "-Wl,-q"];
const BARE: &[&str] = &["-fPIE", "-pie", "-fno-toplevel-reorder"];

impl Attack<'_> {
    fn of<'a>(assumption: &'a str, source: &'a str) -> Attack<'a> {
        Attack {
            assumption,
            source,
            both: &[],
            optimize: Some(&[]),
            instrument: &[],
            library: None,
            flags: None,
        }
    }

    /// Counting and optimising succeed, the proof holds, and yet the output does something else. `None`: there is no
    /// compiler.
    fn succeeds(&self) -> Option<Folder> {
        if !is_installed("gcc") {
            return None;
        }
        let folder = Folder::new();
        let flags = if self.both.is_empty() { KEPT } else { BARE };
        let mut flags = self.flags.unwrap_or(flags).to_vec();
        let path = folder.dir().display().to_string();
        let linked = [format!("-L{path}"), format!("-Wl,-rpath,{path}")];
        if let Some(library) = self.library {
            folder.compile("libbeside.so", library, &["-shared", "-fPIC"]);
            flags.extend(["-lbeside", &linked[0], &linked[1]]);
        }
        let app = folder.compile("app", self.source, &flags);
        let plain = folder.run(&app, &[]);
        let arguments = ["instrument", "app", "-o", "counting"];
        folder.postlink(&[&arguments[..], self.both, self.instrument].concat());
        let mut counting = folder.command(folder.path("counting"), &[]);
        // It may crash: what it counts is not needed then.
        let counted = counting
            .env("POSTLINK_PROFILE", folder.path("run.plraw"))
            .output()
            .expect("it was made");
        let Some(options) = self.optimize else {
            assert_ne!(String::from_utf8_lossy(&counted.stdout), plain);
            is_counted(&folder, "counting", self.assumption);
            return Some(folder);
        };
        folder.postlink(&[&OPTIMIZE_ALL[..], self.both, options].concat());
        let optimised = folder.start(folder.path("opt"), &[]);
        assert_ne!(
            String::from_utf8_lossy(&optimised.stdout),
            plain,
            "{}: nothing came of it",
            self.assumption
        );
        is_counted(&folder, "opt", self.assumption);
        Some(folder)
    }
}

/// The proof of `output` holds and rests on the assumption: all others do not suffice.
fn is_counted(folder: &Folder, output: &str, assumption: &str) {
    let said = folder.postlink(&["verify", "app", output, "--json"]);
    let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let counted: Vec<String> = said["assumptions"]
        .as_array()
        .expect("a list of assumptions")
        .iter()
        .filter(|a| a["functions"].as_u64().is_some_and(|n| n > 0))
        .map(|a| a["id"].as_str().expect("an id").to_owned())
        .collect();
    assert!(
        counted.iter().any(|id| id == assumption),
        "{output}: {assumption} is not among {counted:?}"
    );
    let strict = |accepted: &[String]| {
        let accepted = accepted.join(",");
        folder.attempt(&["verify", "app", output, "--strict-assumptions", &accepted])
    };
    let all = strict(&counted);
    assert!(all.status.success(), "{output}: {counted:?} do not suffice");
    let others: Vec<String> = counted.into_iter().filter(|id| id != assumption).collect();
    let refused = strict(&others);
    let text = [refused.stdout, refused.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert_eq!(refused.status.code(), Some(1), "{output}: {text}");
    let why = format!("on assumption {assumption}, which is not accepted");
    assert!(text.contains(&why), "{output}: {text}");
}

const A1: &str = r#"
#include <stdio.h>
extern char etext[];
/* Whether the caller's code lies behind the end of the text segment. */
__attribute__((noinline)) int caller_is_behind(void) { return (char *)__builtin_return_address(0) > (char *)etext; }
__attribute__((noinline)) int caller(int n) { int behind = 0; for (int i = 0; i < n; i++) behind += caller_is_behind(); return behind; }
int main(void) { printf("%d\n", caller(1000)); return 0; }
"#;

#[test]
fn a_return_address_is_compared_with_the_end_of_the_text_segment() {
    Attack::of("A1", A1).succeeds();
}

/// Takes the place of what start-up code hands its list of unwind entries to, and looks up the caller there.
const A1_LIST: &str = r#"
#include <stdio.h>
#include <string.h>
static const char *list;
void __register_frame_info(const void *begin, void *object) { list = begin; }
void *__deregister_frame_info(const void *begin) { return 0; }
__attribute__((noinline)) int is_described(void) {
  unsigned long pc = (unsigned long)__builtin_return_address(0);
  int length, id, start, size;
  for (const char *at = list; memcpy(&length, at, 4), length; at += 4 + length) {
    memcpy(&id, at + 4, 4); memcpy(&start, at + 8, 4); memcpy(&size, at + 12, 4);
    if (id && pc - ((unsigned long)at + 8 + start) < (unsigned)size) return 1;
  }
  return 0;
}
__attribute__((noinline)) int caller(int n) { int all = 0; for (int i = 0; i < n; i++) all += is_described(); return all; }
int main(void) { printf("%d\n", caller(1000)); return 0; }
"#;

/// Of a static program whose unwind table no program header tells of. Others than its own unwinder ask for the header
/// that is added.
#[test]
fn a_registered_list_of_unwind_entries_is_searched_alone() {
    let linked = ["-static", "-no-pie", "-fno-pie", "-Wl,-z,muldefs"];
    Attack {
        flags: Some(&linked),
        ..Attack::of("A1", A1_LIST)
    }
    .succeeds();
}

/// The first instruction of a function that control also runs into from the one before: the jump to its counter
/// overwrites a call, which is in the stub.
const A1_ENTRY: &str = r#"
#include <stdio.h>
int before(void);
__asm__(".text\n.p2align 4\n.globl asks\n.type asks,@function\nasks:\n.cfi_startproc\n lea etext(%rip),%rcx\n xor %eax,%eax\n cmp %rcx,(%rsp)\n seta %al\n ret\n.cfi_endproc\n.size asks,.-asks\n"
 ".p2align 4\n.globl before\n.type before,@function\nbefore:\n.cfi_startproc\n nop\n.cfi_endproc\n.size before,.-before\n"
 ".globl entered\n.type entered,@function\nentered:\n.cfi_startproc\n call asks\n ret\n.cfi_endproc\n.size entered,.-entered\n");
int main(void) { printf("%d\n", before()); return 0; }
"#;

#[test]
fn a_return_address_in_a_stub_is_compared_with_the_end_of_the_text_segment() {
    for mode in ["function-coverage", "call-graph", "call-edges"] {
        Attack {
            instrument: &["--mode", mode],
            optimize: None,
            ..Attack::of("A1", A1_ENTRY)
        }
        .succeeds();
    }
}

const A1_TABLE: &str = r#"
#include <stdio.h>
long chosen(long); long left(long);
__asm__(".section .rodata\n.p2align 2\ntable: .long .LE0-table,.LE1-table,.LE2-table,.LE3-table\n.text\n.p2align 4\n.globl chosen\n.type chosen,@function\nchosen:\n.cfi_startproc\n"
" cmp $3,%rdi\n ja .Lno\n lea table(%rip),%rdx\n movslq (%rdx,%rdi,4),%rax\n add %rdx,%rax\n jmp *%rax\n"
".LE0: mov %rax,%rcx\n mov $10,%eax\n ret\n.LE1: mov $20,%eax\n add $1,%eax\n ret\n.LE2: mov $30,%eax\n ret\n.LE3: mov $40,%eax\n ret\n.Lno: xor %eax,%eax\n ret\n.cfi_endproc\n.size chosen,.-chosen\n.globl left\n.type left,@function\nleft:\n.cfi_startproc\n call chosen\n mov %rcx,%rax\n ret\n.cfi_endproc\n.size left,.-left\n");
extern char __executable_start[];
int main(void) { long s = 0; for (int i = 0; i < 1000; i++) s += chosen(3); printf("%ld %lx\n", s, left(0) - (long)__executable_start); return 0; }
"#;

#[test]
fn the_target_of_a_table_jump_is_left_in_a_register() {
    Attack::of("A1", A1_TABLE).succeeds();
}

const A2: &str = r#"
#include <stdio.h>
int victim(int); extern char hidden[];
__asm__(".text\n.p2align 4\n.globl victim\n.type victim,@function\nvictim:\n.cfi_startproc\n movl %edi,%eax\n.Linside: addl $3,%eax\n imull $5,%eax,%eax\n ret\n.cfi_endproc\n.size victim,.-victim\n"
 ".globl host\n.type host,@function\nhost:\n.cfi_startproc\n .byte 0x48,0xb8\n.Lhidden: jmp .Linside\n .byte 0,0,0,0,0,0\n ret\n.cfi_endproc\n.size host,.-host\n");
long host(void);
/* The immediate of host's first instruction is a branch to the second instruction of victim. */
__attribute__((noinline)) int by_host(int x) { volatile long two = 2; char *at = (char *)host + two; int got; __asm__ volatile("call *%1" : "=a"(got) : "r"(at), "a"(x) : "cc", "memory"); return got; }
int main(void) { long s = host() & 1; for (int i = 0; i < 1000; i++) s += victim(i) + by_host(i + 1); printf("%ld\n", s); return 0; }
"#;

#[test]
fn a_hidden_branch_leads_into_an_old_entry() {
    Attack {
        both: &["--relocations", "none"],
        ..Attack::of("A2", A2)
    }
    .succeeds();
}

const A3: &str = r#"
#include <stdio.h>
int victim(int);
__asm__(".text\n.p2align 4\n.globl victim\n.type victim,@function\nvictim:\n.cfi_startproc\n movl %edi,%eax\n addl $3,%eax\n imull $5,%eax,%eax\n ret\n.cfi_endproc\n.size victim,.-victim\n");
/* The second instruction of victim: its value comes to eax with the call. */
__attribute__((noinline)) int second(int x) { volatile long two = 2; char *at = (char *)victim + two; int got; __asm__ volatile("call *%1" : "=a"(got) : "r"(at), "a"(x) : "cc", "memory"); return got; }
int main(void) { long s = 0; for (int i = 0; i < 1000; i++) s += victim(i) + second(i + 1); printf("%ld\n", s); return 0; }
"#;

#[test]
fn a_calculated_call_leads_behind_the_first_byte_of_an_old_entry() {
    Attack {
        both: &["--relocations", "none"],
        ..Attack::of("A3", A3)
    }
    .succeeds();
}

const A4: &str = r#"
#include <stdio.h>
#include <stdint.h>
#include <sys/mman.h>
int victim(int);
__asm__(".text\n.p2align 4\n.globl victim\n.type victim,@function\nvictim:\n.cfi_startproc\n leal 3(%rdi),%eax\n nopl 8(%rax)\n imull $5,%eax,%eax\n ret\n.cfi_endproc\n.size victim,.-victim\n");
__attribute__((noinline)) long all(void) { long s = 0; for (int i = 0; i < 1000; i++) s += victim(i); return s; }
int main(void) {
  long before = all();
  /* The factor of imul. */
  volatile long at = 9;
  unsigned char *byte = (unsigned char *)victim + at;
  uintptr_t page = (uintptr_t)byte & ~4095ul;
  if (mprotect((void *)page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC)) return 1;
  *byte = 9;
  printf("%ld %ld\n", before, all());
  return 0;
}
"#;

#[test]
fn code_that_moved_is_written() {
    Attack {
        both: &["--relocations", "none"],
        ..Attack::of("A4", A4)
    }
    .succeeds();
}

const A7: &str = r#"
#include <stdio.h>
int falls(int);
int helper(int x) { return x + 1; }
__asm__(".text\n.p2align 4\n.globl falls\n.type falls,@function\nfalls:\n.cfi_startproc\n"
 "push %rbx\n.cfi_def_cfa_offset 16\n mov %edi,%ebx\n call helper\n.cfi_endproc\n.size falls,.-falls\n"
 ".type rest,@function\nrest:\n.cfi_startproc\n.cfi_def_cfa_offset 16\n add %ebx,%eax\n pop %rbx\n.cfi_def_cfa_offset 8\n ret\n.cfi_endproc\n.size rest,.-rest\n");
int main(void) { long sum = 0; for (int i = 0; i < 1000; i++) sum += falls(i); printf("%ld\n", sum); return 0; }
"#;

#[test]
fn a_call_at_the_end_of_a_function_returns() {
    Attack::of("A7", A7).succeeds();
}

const A8: &str = r#"
#include <stdio.h>
__attribute__((noinline)) int first(int x) { return x * 7 + 3; }
__attribute__((noinline)) int often(int x) { return x * 5 + 2; }
__attribute__((noinline)) int rare(int x) { return x * 3 + 1; }
int (*volatile table[])(int) = {rare, often, first};
int main(int argc, char **argv) {
  long sum = 0;
  for (int i = 0; i < 1000; i++) sum += table[1](i);
  if (argc > 5) sum += table[0](argc) + table[2](argc);
  printf("%ld %d\n", sum, (char *)table[1] < (char *)table[0]);
  return 0;
}
"#;

#[test]
fn pointers_to_functions_are_ordered() {
    Attack::of("A8", A8).succeeds();
}

const A9: &str = r#"
#include <stdio.h>
int sink;
__attribute__((noinline)) long run(const char *p) {
  static void *const labels[] = {&&end, &&add, &&rare, &&twice};
  long sum = 0;
  goto *labels[(int)*p++];
add: sum += 3; goto *labels[(int)*p++];
rare: sink = sum * 7 + 1; sum ^= sink; __asm__ volatile(".skip 64, 0x90"); goto *labels[(int)*p++];
twice: sum *= 2; goto *labels[(int)*p++];
end: { void *const volatile *seen = (void *const volatile *)labels; return sum * 100000 + ((char *)seen[3] - (char *)seen[1]); }
}
int main(void) { long s = 0; for (int i = 0; i < 500; i++) s = run("\3\1\3\1\3\3\1\0"); printf("%ld\n", s); return 0; }
"#;

#[test]
fn the_distance_of_two_labels_is_taken() {
    Attack::of("A9", A9).succeeds();
}

const A10: &str = r#"
#include <stdio.h>
#include <sys/mman.h>
extern const long rate;
__asm__(".section .rodata\n.balign 4096\n.globl rate\n.type rate,@object\n.size rate,8\nrate: .quad 7\n.balign 4096\n.text\n");
__attribute__((noinline)) long priced(long n) { long s = 0; while (n > 0) { s += rate * n; n -= 3; } return s; }
int main(void) {
  long before = 0, after = 0;
  for (int i = 0; i < 1000; i++) before += priced(i);
  if (mprotect((void *)&rate, 4096, PROT_READ | PROT_WRITE)) return 1;
  *(volatile long *)&rate = 9;
  for (int i = 0; i < 1000; i++) after += priced(i);
  printf("%ld %ld\n", before, after);
  return 0;
}
"#;

#[test]
fn a_constant_is_made_writable_and_written() {
    Attack {
        optimize: Some(&["--simplify-rodata-loads"]),
        ..Attack::of("A10", A10)
    }
    .succeeds();
}

/// The value is written in front of a branch: right in front of the call it would be seen (`stub_registers.rs`).
const A11: &str = r#"
#include <stdio.h>
long by_r11(long); long pass(long (*)(long), long);
__asm__(".text\n.p2align 4\n.globl by_r11\n.type by_r11,@function\nby_r11:\n.cfi_startproc\n lea (%rdi,%r11),%rax\n ret\n.cfi_endproc\n.size by_r11,.-by_r11\n"
 ".p2align 4\n.globl pass\n.type pass,@function\npass:\n.cfi_startproc\n sub $8,%rsp\n.cfi_def_cfa_offset 16\n mov %rdi,%rax\n mov %rsi,%rdi\n mov $42,%r11d\n test %edi,%edi\n js 1f\n1: call *%rax\n add $1,%rax\n add $8,%rsp\n.cfi_def_cfa_offset 8\n ret\n.cfi_endproc\n.size pass,.-pass\n");
long (*volatile what)(long) = by_r11;
int main(void) { long s = 0; for (int i = 0; i < 1000; i++) s += pass(what, i); printf("%ld\n", s); return 0; }
"#;

#[test]
fn an_indirect_call_passes_a_value_in_r11() {
    Attack {
        optimize: Some(&["--indirect-call-promotion=calls", "--icp-top-callsites=0"]),
        ..Attack::of("A11", A11)
    }
    .succeeds();
    // Counting records where such calls lead.
    Attack {
        optimize: None,
        ..Attack::of("A11", A11)
    }
    .succeeds();
}

const A12: &str = r#"
#include <stdio.h>
long tiny(long); long looks(long);
__asm__(".text\n.p2align 4\n.globl tiny\n.type tiny,@function\ntiny:\n.cfi_startproc\n lea 3(%rdi),%rax\n ret\n.cfi_endproc\n.size tiny,.-tiny\n"
 ".p2align 4\n.globl looks\n.type looks,@function\nlooks:\n.cfi_startproc\n movq $0,-8(%rsp)\n call tiny\n cmpq $0,-8(%rsp)\n sete %cl\n movzbl %cl,%ecx\n add %rcx,%rax\n ret\n.cfi_endproc\n.size looks,.-looks\n");
int main(void) { long s = 0; for (int i = 0; i < 1000; i++) s += looks(i); printf("%ld\n", s); return 0; }
"#;

#[test]
fn the_word_below_the_stack_pointer_is_read_after_a_call() {
    Attack {
        optimize: Some(&["--inline-small-functions"]),
        ..Attack::of("A12", A12)
    }
    .succeeds();
}

const A15: &str = r#"
#include <stdio.h>
static void *seen[2];
__attribute__((noipa)) void note(int i) { seen[i] = __builtin_return_address(0); }
__attribute__((noipa)) int first(int i) { note(i); return i * 3 + 1; }
__attribute__((noipa)) int second(int i) { note(i); return i * 3 + 1; }
int main(void) {
  int all = 0;
  for (int i = 0; i < 1000; i++) all += first(0) + second(1);
  printf("%d %d\n", all, seen[0] != seen[1]);
  return 0;
}
"#;

#[test]
fn return_addresses_in_two_functions_are_compared() {
    Attack {
        optimize: Some(&["--icf=all"]),
        ..Attack::of("A15", A15)
    }
    .succeeds();
}

const A13: &str = r#"
#include <stdio.h>
long flags(long);
__asm__(".text\n.p2align 4\n.globl reads\n.type reads,@function\nreads:\n.cfi_startproc\n setc %al\n movzbl %al,%eax\n ret\n.cfi_endproc\n.size reads,.-reads\n"
 ".p2align 4\n.globl on\n.type on,@function\non:\n.cfi_startproc\n mov %rdi,%rsi\n jmp reads\n.cfi_endproc\n.size on,.-on\n"
 ".p2align 4\n.globl flags\n.type flags,@function\nflags:\n.cfi_startproc\n cmp $500,%rdi\n jmp on\n.cfi_endproc\n.size flags,.-flags\n");
int main(void) { long s = 0; for (int i = 0; i < 1000; i++) s += flags(i); printf("%ld\n", s); return 0; }
"#;

#[test]
fn flags_are_handed_to_another_function() {
    for mode in ["call-graph", "call-edges"] {
        Attack {
            instrument: &["--mode", mode],
            optimize: None,
            ..Attack::of("A13", A13)
        }
        .succeeds();
    }
}

/// In moved code as well: the callee reads flags, which a counter on each way to the call changes.
const A13_CALL: &str = r#"
#include <stdio.h>
long flags(long);
long reads(long);
__asm__(".text\n.p2align 4\n.globl reads\n.type reads,@function\nreads:\n.cfi_startproc\n setle %al\n movzbl %al,%eax\n ret\n.cfi_endproc\n.size reads,.-reads\n"
 ".p2align 4\n.globl flags\n.type flags,@function\nflags:\n.cfi_startproc\n push %rbx\n.cfi_def_cfa_offset 16\n.cfi_offset %rbx,-16\n xor %ebx,%ebx\n test %rdi,%rdi\n js 1f\n cmp $500,%rdi\n jl 1f\n mov $0,%eax\n1: call reads\n pop %rbx\n.cfi_def_cfa_offset 8\n ret\n.cfi_endproc\n.size flags,.-flags\n");
int main(void) { long s = 0; for (int i = -500; i < 1000; i++) s += flags(i); printf("%ld\n", s); return 0; }
"#;

#[test]
fn flags_are_handed_to_another_function_in_moved_code() {
    for counters in ["plain", "atomic", "per-thread"] {
        Attack {
            instrument: &["--counters", counters],
            optimize: None,
            ..Attack::of("A13", A13_CALL)
        }
        .succeeds();
    }
}

/// A routine of the start-up code writes to what another register points to: the length of a name to a place that far
/// from address 0.
#[test]
fn a_routine_that_counting_adds_writes_elsewhere() {
    if !is_installed("gcc") {
        return;
    }
    let folder = Folder::new();
    let app = folder.compile("app", A8, KEPT);
    let plain = folder.run(&app, &[]);
    folder.postlink(&["instrument", "app", "-o", "counting"]);
    let counting = folder.path("counting");
    let mut image = std::fs::read(&counting).expect("it was made");
    // mov %rcx,8(%rdi)
    let code = [0x48, 0x89, 0x4f, 0x08];
    let places: Vec<usize> = (0..image.len())
        .filter(|at| image[*at..].starts_with(&code))
        .collect();
    let [at] = places[..] else {
        panic!("the routine that measures a name is not where it was: {places:?}");
    };
    // mov %rcx,8(%rcx)
    image[at + 2] = 0x49;
    std::fs::write(&counting, image).expect("the folder is ours");
    // The name is for a message: that this is not its profile.
    std::fs::write(folder.path("run.plraw"), [b'x'; 4096]).expect("the folder is ours");
    let mut run = folder.command(&counting, &[]);
    let run = run.env("POSTLINK_PROFILE", folder.path("run.plraw"));
    let run = run.output().expect("it can be executed");
    assert_ne!(String::from_utf8_lossy(&run.stdout), plain);
    is_counted(&folder, "counting", "A14");
}

/// The table in the documentation has every assumption, and names a test of this file for each.
#[test]
fn every_assumption_has_a_test_that_the_documentation_names() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let path = root.join("docs/what-a-program-may-see.md");
    let text = std::fs::read_to_string(&path).expect("the repository has it");
    let mut listed = Vec::new();
    let list = done(Command::new(std::env::current_exe().expect("this one")).arg("--list"));
    let tests = String::from_utf8(list.stdout).expect("names");
    for row in text.lines().filter(|l| l.starts_with("| A")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [id, _, named] = cells[..] else {
            panic!("not a row of three cells: {row}");
        };
        listed.push(id);
        for name in named.split(',') {
            let name = name.trim().trim_matches('`');
            let is_there = tests.lines().any(|l| l == format!("{name}: test"));
            assert!(is_there, "{id}: no test {name}");
        }
    }
    assert_eq!(listed, postlink_verify::assumption_ids());
}

/// The base of a table is in `rbx`, which a function that is called changes: in the old code the table that it then
/// reads holds the same distances, in the new code what is there is another.
const A5: &str = r#"
#include <stdio.h>
int run(int op, int x);
__asm__(".text\n.skip 512,0xcc\n"
 ".p2align 4\n.globl changes\n.type changes,@function\nchanges:\n.cfi_startproc\n lea .Lother(%rip),%rbx\n ret\n.cfi_endproc\n.size changes,.-changes\n"
 ".p2align 4\n.globl run\n.type run,@function\nrun:\n.cfi_startproc\n push %rbx\n.cfi_adjust_cfa_offset 8\n lea .Ltable(%rip),%rbx\n lea .Ltable(%rip),%rcx\n push %rcx\n.cfi_adjust_cfa_offset 8\n sub $8,%rsp\n.cfi_adjust_cfa_offset 8\n call changes\n add $8,%rsp\n.cfi_adjust_cfa_offset -8\n pop %rcx\n.cfi_adjust_cfa_offset -8\n lea .Ltable(%rip),%rcx\n"
 " cmp $2,%edi\n ja 9f\n mov %edi,%edi\n movslq (%rbx,%rdi,4),%rax\n add %rcx,%rax\n jmp *%rax\n"
 "0: mov $1,%eax\n jmp 8f\n1: mov $2,%eax\n jmp 8f\n2: mov $3,%eax\n jmp 8f\n9: xor %eax,%eax\n8: pop %rbx\n.cfi_adjust_cfa_offset -8\n ret\n.cfi_endproc\n.size run,.-run\n"
 ".section .rodata\n.p2align 2\n.Ltable: .long 0b-.Ltable,1b-.Ltable,2b-.Ltable\n.Lother: .long 2b-.Ltable,1b-.Ltable,0b-.Ltable\n.text\n");
__attribute__((noinline)) int drive(int n) { int s = 0; for (int i = 0; i < 30 * n; i++) s = s * 3 % 1000 + run(i % 4, i); printf("%d\n", s); return 0; }
int main(int argc, char **argv) { return drive(argc); }
"#;

const NO_RELOCATIONS: &[&str] = &["--relocations", "none"];

#[test]
fn a_call_changes_the_register_with_the_base_of_a_table() {
    Attack {
        both: NO_RELOCATIONS,
        optimize: None,
        ..Attack::of("A5", A5)
    }
    .succeeds();
}

/// What is in `rax` after the jump is an argument of a function, which prints how far it is from the table.
const A6: &str = r#"
#include <stdio.h>
long run(int op, int x);
long far(void);
__asm__(".text\n.skip 512,0xcc\n"
 ".p2align 4\n.globl far\n.type far,@function\nfar:\n.cfi_startproc\n lea .Lt(%rip),%rcx\n sub %rcx,%rax\n ret\n.cfi_endproc\n.size far,.-far\n"
 ".p2align 4\n.globl run\n.type run,@function\nrun:\n.cfi_startproc\n cmp $2,%edi\n ja 9f\n lea .Lt(%rip),%rdx\n mov %edi,%edi\n movslq (%rdx,%rdi,4),%rax\n add %rdx,%rax\n jmp *%rax\n"
 "0: call far\n ret\n1: call far\n ret\n2: call far\n ret\n9: xor %eax,%eax\n ret\n.cfi_endproc\n.size run,.-run\n"
 ".section .rodata\n.p2align 2\n.Lt: .long 0b-.Lt,1b-.Lt,2b-.Lt\n.text\n");
__attribute__((noinline)) int drive(int n) { long s = 0; for (int i = 0; i < 30 * n; i++) s += run(i % 4, i); printf("%ld\n", s); return 0; }
int main(int argc, char **argv) { return drive(argc); }
"#;

#[test]
fn the_target_of_a_jump_through_an_own_table_is_read_behind_a_call() {
    Attack {
        both: NO_RELOCATIONS,
        ..Attack::of("A6", A6)
    }
    .succeeds();
}

/// Control comes to the load with the address of another table behind a call that is declared not to return.
const A16: &str = r#"
#include <stdio.h>
long run(int op, int other);
__asm__(".text\n.skip 512,0xcc\n"
 ".p2align 4\n.globl run\n.type run,@function\nrun:\n.cfi_startproc\n cmp $2,%edi\n ja 9f\n push %rbx\n.cfi_adjust_cfa_offset 8\n.cfi_offset %rbx,-16\n"
 " push %r12\n.cfi_adjust_cfa_offset 8\n.cfi_offset %r12,-24\n sub $8,%rsp\n.cfi_adjust_cfa_offset 8\n mov %edi,%r12d\n lea .Lt(%rip),%rbx\n test %esi,%esi\n je 5f\n"
 " lea .Lu(%rip),%rbx\n call quick_exit@plt\n5: movslq (%rbx,%r12,4),%rax\n add %rbx,%rax\n jmp *%rax\n"
 "0: mov $1,%eax\n jmp 8f\n1: mov $2,%eax\n jmp 8f\n2: mov $3,%eax\n8: add $8,%rsp\n.cfi_adjust_cfa_offset -8\n pop %r12\n.cfi_adjust_cfa_offset -8\n pop %rbx\n.cfi_adjust_cfa_offset -8\n ret\n"
 "9: xor %eax,%eax\n ret\n.cfi_endproc\n.size run,.-run\n"
 ".section .rodata\n.p2align 2\n.Lt: .long 0b-.Lt,1b-.Lt,2b-.Lt\n.Lu: .long 2b-.Lu,1b-.Lu,0b-.Lu\n.text\n");
__attribute__((noinline)) int drive(int n, int other) { long s = 0; for (int i = 0; i < 30 * n; i++) s = 2 * s % 1000003 + run(i % 4, other); printf("%ld\n", s); fflush(stdout); return 0; }
int main(int argc, char **argv) { drive(argc, 0); return drive(argc, RETURNS); }
"#;

#[test]
fn a_library_function_that_is_declared_not_to_return_returns() {
    Attack {
        both: NO_RELOCATIONS,
        library: Some(
            "__asm__(\".globl quick_exit\\n.type quick_exit,@function\\nquick_exit: ret\\n\");",
        ),
        ..Attack::of("A16", &A16.replace("RETURNS", "1"))
    }
    .succeeds();
}

#[test]
fn a_function_without_a_return_runs_into_the_next_and_returns() {
    let without = "\".type ends,@function\\nends:\\n.cfi_startproc\\n call nothing\\n.cfi_endproc\\n.size ends,.-ends\\n\"";
    let next = "\" ret\\n.type nothing,@function\\nnothing:\\n.cfi_startproc\\n ret\\n.cfi_endproc\\n.size nothing,.-nothing\\n\"";
    let source = A16
        .replace("RETURNS", "1")
        .replace("quick_exit@plt", "ends");
    let section = "\".section .rodata";
    let source = source.replace(section, &format!("{without}\n{next}\n{section}"));
    let attack = Attack {
        both: NO_RELOCATIONS,
        ..Attack::of("A16", &source)
    };
    let Some(folder) = attack.succeeds() else {
        return;
    };
    // Where it has a return, the proof does not hold.
    let mut app = std::fs::read(folder.path("app")).expect("it was made");
    let output = std::fs::read(folder.path("opt")).expect("it was made");
    let report = postlink_verify::verify(&app, &output, &postlink_verify::Options::default());
    let report = report.expect("both are read");
    let ends = report.functions.iter().find(|f| f.name == "ends");
    // Code is where it is in the file.
    let at = ends.expect("it moves").old as usize;
    assert_eq!(app[at], 0xe8, "a call");
    app[at] = 0xc3;
    is_refused(&app, &output, "with a return");
}

/// Fails unless the checker refuses the table of `run` where the input is another.
fn is_refused(input: &[u8], output: &[u8], why: &str) {
    let report = postlink_verify::verify(input, output, &postlink_verify::Options::default());
    let report = report.expect("both are read");
    let run = report.functions.iter().find(|f| f.name == "run");
    let postlink_verify::Verdict::Failed(failure) = &run.expect("it moves").verdict else {
        panic!("proved {why}");
    };
    let text = "the address of a jump table of new code's own is not known to be that";
    assert_eq!(failure.reason, text, "{why}");
}

/// An output whose proof rests on a function's name is refused where the function has another.
fn is_refused_by_another_name(folder: &Folder, output: &str, name: &str) {
    let named = |file: &str| {
        let mut bytes = std::fs::read(folder.path(file)).expect("it was made");
        let old = [name.as_bytes(), b"\0"].concat();
        let places: Vec<usize> = (0..bytes.len() - old.len())
            .filter(|at| bytes[*at..].starts_with(&old))
            .collect();
        assert!(!places.is_empty(), "{file} has no name {name}");
        places.iter().for_each(|at| bytes[*at] = b'x');
        bytes
    };
    is_refused(&named("app"), &named(output), "by another name");
}

/// What nothing is known of may return, so that the other table's address comes to the load: the jump continues in old
/// code. Where the function is one that does not, new code has a table of its own.
#[test]
fn paths_end_at_calls_of_library_functions_that_do_not_return() {
    if !is_installed("gcc") {
        return;
    }
    for (name, ends) in [
        ("quick_exit", true),
        ("_ZSt24__throw_out_of_range_fmtPKcz", true),
        ("quick_exits", false),
    ] {
        for how in ["@plt", "@GOTPCREL(%rip)"] {
            let folder = Folder::new();
            let library =
                format!("__asm__(\".globl {name}\\n.type {name},@function\\n{name}: ud2\\n\");");
            folder.compile("libbeside.so", &library, &["-shared", "-fPIC"]);
            let path = folder.dir().display().to_string();
            let linked = [format!("-L{path}"), format!("-Wl,-rpath,{path}")];
            let source = A16.replace("RETURNS", "0").replace("quick_exit", name);
            let called = format!("call {}{name}{how}", if how == "@plt" { "" } else { "*" });
            let source = source.replace(&format!("call {name}@plt"), &called);
            let flags = [BARE, &["-lbeside", &linked[0], &linked[1]]].concat();
            let app = folder.compile("app", &source, &flags);
            let plain = folder.run(&app, &[]);
            let postlink = |command: &str| {
                let arguments: Vec<&str> = command.split(' ').collect();
                folder.postlink(&arguments)
            };
            postlink("instrument app -o counting --relocations none");
            folder.counting_prints(&plain);
            postlink("optimize app -p run.plraw -o opt --plt all --relocations none");
            assert_eq!(folder.run(folder.path("opt"), &[]), plain);
            for output in ["counting", "opt"] {
                if ends {
                    is_refused_by_another_name(&folder, output, name);
                }
                let said = folder.postlink(&["verify", "app", output, "--json"]);
                let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
                let functions = said["functions"].as_array().expect("functions");
                let run = functions
                    .iter()
                    .find(|f| f["name"] == "run")
                    .expect("it moves");
                assert_eq!(run["tables"].is_array(), ends, "{name}{how}: {run}");
                assert_eq!(run["falls_back"].is_array(), !ends, "{name}{how}: {run}");
                if ends {
                    is_counted(&folder, output, "A16");
                }
            }
        }
    }
}

/// Throws and catches; the compiler names a personality routine for that.
const A17: &str = r#"
extern "C" int printf(const char *, ...);
extern "C" long seen;
struct Gone { int by; ~Gone(); };
int gone;
__attribute__((noinline)) Gone::~Gone() { gone += by; }
__attribute__((noinline, noipa)) void fails(int k) { if (k & 1) throw k; }
__attribute__((noinline, noipa)) int catches(int k) {
  Gone g{k};
  try { fails(k); } catch (int x) { return x + 1; }
  return k;
}
int main() {
  int sum = 0;
  for (int k = 0; k < 9; k++) sum += catches(k);
  printf("%d %d %ld\n", sum, gone, seen);
}
"#;

/// Reads numbers of exception tables by itself, before it does what that of C++ does.
const READER: &str = r#"
#include <unwind.h>
_Unwind_Reason_Code __gxx_personality_v0(int, _Unwind_Action, _Unwind_Exception_Class, struct _Unwind_Exception *,
                                         struct _Unwind_Context *);
long seen;
_Unwind_Reason_Code mine(int v, _Unwind_Action a, _Unwind_Exception_Class c, struct _Unwind_Exception *e,
                         struct _Unwind_Context *x) {
  const unsigned char *table = (const unsigned char *)_Unwind_GetLanguageSpecificData(x);
  for (int i = 0; table && i < 12; i++) seen = seen * 31 + table[i];
  return __gxx_personality_v0(v, a, c, e, x);
}
"#;

/// Ends the program where landing pads are counted from something else than the function's start, as that of D does.
const STRICT: &str = r#"
#include <stdlib.h>
#include <unwind.h>
_Unwind_Reason_Code __gxx_personality_v0(int, _Unwind_Action, _Unwind_Exception_Class, struct _Unwind_Exception *,
                                         struct _Unwind_Context *);
long seen;
_Unwind_Reason_Code mine(int v, _Unwind_Action a, _Unwind_Exception_Class c, struct _Unwind_Exception *e,
                         struct _Unwind_Context *x) {
  const unsigned char *table = (const unsigned char *)_Unwind_GetLanguageSpecificData(x);
  if (table && table[0] != 0xff) abort();
  return __gxx_personality_v0(v, a, c, e, x);
}
"#;

/// A stripped program whose personality routine is this one, and a profile of it; and what the program prints.
fn counted_with_routine(routine: &str) -> (Folder, String) {
    let folder = Folder::new();
    std::fs::write(folder.path("app.cc"), A17).expect("the folder is ours");
    std::fs::write(folder.path("mine.c"), routine).expect("the folder is ours");
    for command in [
        "g++ -O2 -fPIE -c app.cc",
        "objcopy --redefine-sym __gxx_personality_v0=mine app.o",
        "gcc -O2 -fPIE -c mine.c",
        "g++ -pie -s -o app app.o mine.o",
    ] {
        let mut words = command.split(' ');
        let mut command = Command::new(words.next().expect("a word"));
        done(command.args(words).current_dir(folder.dir()));
    }
    let plain = folder.run(folder.path("app"), &[]);
    folder.postlink(&["instrument", "app", "-o", "counting"]);
    let mut counting = folder.command(folder.path("counting"), &[]);
    done(counting.env("POSTLINK_PROFILE", folder.path("run.plraw")));
    (folder, plain)
}

/// Programs of D that were stripped ended at their first exception.
#[test]
fn a_personality_routine_without_a_name_may_know_no_base_of_landing_pads() {
    if !["gcc", "g++", "objcopy"].into_iter().all(is_installed) {
        return;
    }
    let (folder, plain) = counted_with_routine(STRICT);
    for preset in ["safe", "max"] {
        let optimize = ["optimize", "app", "-p", "run.plraw", "-o", "opt"];
        folder.postlink(&[&optimize[..], &["--move-all", "--preset", preset]].concat());
        assert_eq!(folder.run(folder.path("opt"), &[]), plain);
    }
}

#[test]
fn a_personality_routine_without_a_name_reads_its_tables_otherwise() {
    if !["gcc", "g++", "objcopy"].into_iter().all(is_installed) {
        return;
    }
    let (folder, plain) = counted_with_routine(READER);
    let optimize = ["optimize", "app", "-p", "run.plraw", "-o", "opt"];
    folder.postlink(&[&optimize[..], &["--move-all"]].concat());
    let optimised = folder.run(folder.path("opt"), &[]);
    assert_ne!(optimised, plain, "nothing came of it");
    let both = |said: &str| said.rsplit_once(' ').map(|parts| parts.0.to_owned());
    assert_eq!(both(&optimised), both(&plain), "exceptions are caught");
    is_counted(&folder, "opt", "A17");
}

/// A function that is longer than a page may have a sequence at the end of one that a Cortex-A53 gets wrong, wherever
/// it begins. The processor then loads from another address, as the changed loads do here.
#[test]
fn a_processor_with_the_erratum_runs_code_that_is_longer_than_a_page() {
    const GCC: &str = "aarch64-linux-gnu-gcc";
    if ![GCC, "qemu-aarch64"].into_iter().all(is_installed) {
        return;
    }
    let folder = Folder::new();
    support::sequences::build(&folder, &[("many".to_owned(), 1500)]);
    let plain = folder.emulate("app");
    folder.instrument("app", "run.plraw");
    assert_eq!(folder.emulate("app.inst"), plain);
    let optimize = [
        "optimize",
        "app",
        "-p",
        "run.plraw",
        "-o",
        "opt",
        "--move-all",
    ];
    folder.postlink(&optimize);
    assert_eq!(folder.emulate("opt"), plain);
    is_counted(&folder, "opt", "A18");
    let read = |name: &str| std::fs::read(folder.path(name)).expect("a file");
    let input = support::sequences::at_ends_of_pages(&read("app"));
    assert!(input.is_empty(), "the linker saw to it");
    let mut image = read("opt");
    let places = support::sequences::at_ends_of_pages(&image);
    assert!(!places.is_empty());
    for at in places {
        // The next word: the offset is in units of 8 bytes.
        image[at + 9] |= 4;
    }
    std::fs::write(folder.path("opt"), image).expect("the folder is ours");
    assert_ne!(folder.emulate("opt"), plain);
}
