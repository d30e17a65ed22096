//! What a program may see of a code address: outputs in which everything leads to the right code, and a
//! program that looks at an address finds another one than it did. Each kind must be refused, and its twin
//! without that one thing proved.

mod support;

use postlink_verify::{Check, Options, Report};
use support::{compile, rewrite};

// Functions are in the order of the source.
const PIE: &[&str] = &["-pie", "-fPIE", "-Wl,-q", "-fno-toplevel-reorder"];
/// The compiler's order.
const PIE_ONLY: &[&str] = &["-pie", "-fPIE", "-Wl,-q"];
const FIXED: &[&str] = &["-no-pie", "-fno-pie", "-Wl,-q", "-fno-toplevel-reorder"];

/// Functions that pointers lead to, in tables and formed by code.
const POINTED: &str = r#"
#include <stdio.h>
typedef int (*op)(int);
/* In front of the next one lies a function with a size, not start-up code without. */
int apart(int x) { return x * x; }
int one(int x) { if (x > 100) return x / 2; return x + 1; }
int two(int x) { for (int i = 0; i < x % 7; i++) x += i * (x & 3); return x; }
int three(int x) { return x > 4 ? one(x) * 2 : two(x) - 3; }
static op const table[] = {one, two, three, one};
__attribute__((noinline)) op pick(int i) { return i & 1 ? one : table[i % 4]; }
int main(int argc, char **argv) {
    int s = 0;
    for (int i = 0; i < 20; i++) s = s * 31 + pick(i)(i * 37 % 23 + argc);
    printf("%d %d\n", s, pick(1) == one);
    return s & 31;
}
"#;

fn verify(input: &[u8], output: &[u8]) -> Report {
    postlink_verify::verify(input, output, &Options::default()).expect("both can be read")
}

/// Every failure, with what it is of.
fn failures(report: &Report) -> Vec<(Check, String)> {
    let of_functions = report.failures().map(|(_, f)| (f.check, f.to_string()));
    let of_file = report.file_failures.iter();
    of_functions
        .chain(of_file.map(|f| (f.check, f.to_string())))
        .collect()
}

/// Moves all functions of a program, with pointers or without. `None` without the compiler.
fn moved(
    source: &str,
    compiler: &str,
    flags: &[&str],
    pointers: bool,
    shift: u64,
) -> Option<Report> {
    let Some(input) = compile("program", source, compiler, flags) else {
        eprintln!("SKIPPED: {compiler} is not installed");
        return None;
    };
    let options = support::Options {
        pointers,
        entry_jumps: true,
        any_front: true,
        shift,
        bare: false,
    };
    let rewritten = rewrite(&input, &[], options);
    Some(verify(&input, &rewritten.image))
}

#[track_caller]
fn assert_proved(report: Option<Report>) {
    if let Some(report) = report {
        assert!(report.is_proved(), "{:#?}", failures(&report));
    }
}

/// Something about what can be seen is wrong, and a sentence about it has these words.
#[track_caller]
fn assert_refused(report: Option<Report>, words: &str) {
    let Some(report) = report else { return };
    let all = failures(&report);
    let found = all
        .iter()
        .any(|(check, text)| *check == Check::Visible && text.contains(words));
    assert!(found, "{words}: {all:#?}");
}

#[test]
fn pointers_that_lose_zero_bits_at_their_end_are_found() {
    assert_proved(moved(POINTED, "gcc", PIE, true, 0));
    for shift in [1, 2, 4, 8] {
        assert_refused(moved(POINTED, "gcc", PIE, true, shift), "fewer zero bits");
        // What is only called may be anywhere.
        assert_proved(moved(POINTED, "gcc", PIE, false, shift));
    }
    for shift in [4, 8] {
        let report = moved(POINTED, "aarch64-linux-gnu-gcc", PIE, true, shift);
        assert_refused(report, "fewer zero bits");
    }
}

#[test]
fn as_many_zero_bits_as_the_old_address_had_are_enough() {
    let flags = [PIE, &["-falign-functions=4", "-fno-reorder-functions"]].concat();
    let Some(input) = compile("program", POINTED, "gcc", &flags) else {
        return;
    };
    let least = support::functions(&input)
        .iter()
        .filter(|f| ["one", "two", "three", "main"].contains(&f.0.as_str()))
        .map(|f| f.1.trailing_zeros())
        .max();
    let shift = 1 << least.unwrap_or(4).min(4);
    assert_proved(moved(POINTED, "gcc", &flags, true, shift % 16));
}

/// A function with something in front of it, to which pointers lead.
fn tagged(front: &str) -> String {
    let assembly = format!(
        r#"asm(".text\n.p2align 4\n.globl before\n.type before,@function\nbefore:\n.cfi_startproc\nleal 3(%rdi),%eax\nret\n.cfi_endproc\n.size before,.-before\n"
    ".p2align 4\n{front}\n.globl tagged\n.type tagged,@function\ntagged:\n.cfi_startproc\nleal 1(%rdi),%eax\nret\n.cfi_endproc\n.size tagged,.-tagged\n");"#
    );
    format!(
        r#"
#include <stdio.h>
{assembly}
extern int tagged(int), before(int);
int (*volatile way)(int) = tagged;
int main(int argc, char **argv) {{ printf("%d %d\n", way(argc), before(argc)); return 0; }}
"#
    )
}

#[test]
fn data_in_front_of_a_function_that_pointers_follow_are_found() {
    assert_proved(moved(&tagged(""), "gcc", PIE, true, 0));
    assert_proved(moved(&tagged(".p2align 5"), "gcc", PIE, true, 0));
    let data = tagged(r".quad 0x1122334455667788\n.quad 15");
    assert_refused(moved(&data, "gcc", PIE, true, 0), "before the old entry");
    assert_proved(moved(&data, "gcc", PIE, false, 0));
    // A word that looks like the end of a function.
    let disguised = tagged(r".long 0\n.byte 0x90, 0x90, 0x90, 0xc3");
    assert_refused(
        moved(&disguised, "gcc", PIE, true, 0),
        "before the old entry",
    );
}

#[test]
fn code_in_front_that_runs_on_is_found() {
    let hash = r".type __cfi_tagged,@function\n__cfi_tagged: movl $0x12345678,%eax\n.size __cfi_tagged,.-__cfi_tagged";
    assert_refused(
        moved(&tagged(hash), "gcc", PIE, true, 0),
        "before the old entry",
    );
}

/// A function that puts the address after a call of its own into a table, as run-times do that find frames by
/// return address.
const FRAMES: &str = r#"
#include <stdio.h>
extern void *frames[];
__attribute__((noinline, noipa)) int callee(int x) { return x * 3; }
__attribute__((noinline, noipa)) int framed(int x) {
    int r;
    asm volatile("subq $128, %%rsp\n call callee\n1: addq $128, %%rsp\n .pushsection .data.rel.ro,\"aw\"\n .quad 1b\n .popsection"
                 : "=a"(r) : "D"(x) : "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "memory", "cc");
    return r + 1;
}
int main(int argc, char **argv) { printf("%d\n", framed(argc)); return 0; }
"#;

#[test]
fn a_frame_table_left_behind_is_found() {
    for flags in [PIE, FIXED] {
        let report = moved(FRAMES, "gcc", flags, true, 0);
        assert_refused(
            report,
            "a table may describe the function's code by address",
        );
    }
}

/// The same with a distance, which no relocation of the loader names.
#[test]
fn a_frame_table_of_distances_left_behind_is_found() {
    let words = "a table may describe the function's code by address";
    let relative = FRAMES.replace(".quad 1b", ".long 1b - .");
    for flags in [PIE, FIXED] {
        assert_refused(moved(&relative, "gcc", flags, true, 0), words);
    }
    let long = FRAMES.replace(".quad 1b", ".quad 1b - .");
    assert_refused(moved(&long, "gcc", PIE, true, 0), words);
    // The other machine.
    let arm = r#"
#include <stdio.h>
__attribute__((noinline, noipa)) int callee(int x) { return x * 3; }
__attribute__((noinline, noipa)) int framed(int x) {
    register int r asm("x0") = x;
    asm volatile("bl callee\n1:\n.pushsection .rodata\n.long 1b - .\n.popsection" : "+r"(r) :
                 : "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15", "x16", "x17", "x30", "memory", "cc");
    return r + 1;
}
int main(int argc, char **argv) { printf("%d\n", framed(argc)); return 0; }
"#;
    let report = moved(arm, "aarch64-linux-gnu-gcc", PIE, true, 0);
    assert_refused(report, words);
}

#[test]
fn jump_tables_whose_relocations_were_kept_describe_nothing() {
    let source = r#"
#include <stdio.h>
__attribute__((noinline)) int choose(int a, int b) {
    switch (a) {
    case 0: return b * 3; case 1: return b - 7; case 2: return printf("two %d\n", b);
    case 3: return b ^ 0x55; case 4: return b + 4; case 5: return b << 3;
    case 6: return printf("six\n"); case 7: return -b; default: return 99;
    }
}
__attribute__((noinline)) int other(int a, int b) {
    switch (a) {
    case 0: return b * 5; case 1: return b - 3; case 2: return printf("two %d\n", b);
    case 3: return b ^ 0x75; case 4: return b + 2; case 5: return b << 1; case 6: return 12; default: return 9;
    }
}
int main(int argc, char **argv) { return choose(argc, argc) + other(argc, argc); }
"#;
    for compiler in ["gcc", "clang-19"] {
        assert_proved(moved(source, compiler, PIE_ONLY, true, 0));
        // One stays, and its table is beside that of the other.
        let Some(input) = compile("program", source, compiler, PIE_ONLY) else {
            continue;
        };
        for name in ["choose", "other"] {
            let options = support::Options {
                pointers: true,
                entry_jumps: true,
                any_front: true,
                shift: 0,
                bare: false,
            };
            let rewritten = rewrite(&input, &[name], options);
            assert_proved(Some(verify(&input, &rewritten.image)));
        }
    }
}

/// A function that the program knows by a distance, which stays what it is, has one address.
#[test]
fn a_function_known_by_a_distance_and_by_its_new_address_is_found() {
    for word in ["one - .", "one - relative - 64"] {
        let source = format!(
            "asm(\".globl one\\n.pushsection .rodata\\nrelative: .long {word}\\n.popsection\");\n{POINTED}"
        );
        assert_proved(moved(&source, "gcc", PIE, false, 0));
        let Some(report) = moved(&source, "gcc", PIE, true, 0) else {
            continue;
        };
        let all = failures(&report);
        let found = |f: &(Check, String)| f.0 == Check::Identity && f.1.contains("new address");
        assert!(all.iter().any(found), "{word}: {all:#?}");
    }
}

/// The same with distances that are counted from the start of their table, as code says that reads it: counted from its
/// own place, only the first word leads to a function.
#[test]
fn a_function_known_by_a_distance_from_its_tables_start_is_found() {
    let reader = r#"
extern const int relative[] __attribute__((visibility("hidden")));
__attribute__((noinline, used)) void *counted(int i) { return (char *)relative + relative[i]; }
"#;
    let table = |words: &str| {
        format!(
            "asm(\".pushsection .rodata\\n.balign 4\\nrelative: .long {words}\\n.popsection\");\n{POINTED}{reader}"
        )
    };
    // The first word is of a function to which no pointer leads.
    let source = table("apart - relative, one - relative, two - relative");
    assert_proved(moved(&source, "gcc", PIE, false, 0));
    let Some(report) = moved(&source, "gcc", PIE, true, 0) else {
        return;
    };
    let all = failures(&report);
    let found = |name: &str| {
        let failed = report.failures();
        let mut identity = failed.filter(|(_, f)| f.check == Check::Identity);
        identity.any(|(f, _)| f.name == name)
    };
    let of_file = all
        .iter()
        .any(|f| f.0 == Check::Identity && f.1.contains("new address"));
    assert!(found("one") && found("two") || of_file, "{all:#?}");
}

#[test]
fn a_pointer_to_the_end_of_a_function_is_found() {
    let source = r#"
#include <stdio.h>
asm(".text\n.p2align 4\n.globl ranged\n.type ranged,@function\nranged:\n.cfi_startproc\nleal 1(%rdi),%eax\nret\n.cfi_endproc\n.size ranged,.-ranged\n.globl ranged_end\nranged_end:\n.p2align 5\n");
extern int ranged(int);
extern char ranged_end[];
char *volatile limit = ranged_end;
int main(int argc, char **argv) { printf("%d %d\n", ranged(argc), (char *)ranged < limit); return 0; }
"#;
    for flags in [PIE, FIXED] {
        assert_refused(
            moved(source, "gcc", flags, false, 0),
            "the end of the function",
        );
    }
}

#[test]
fn a_section_with_bounds_is_found() {
    let source = r#"
#include <stdio.h>
extern char __start_bounded[], __stop_bounded[];
__attribute__((section("bounded"), noinline)) int inside(int x) { return x > 3 ? x * 2 : x - 1; }
int main(int argc, char **argv) { printf("%d %d\n", inside(argc), (int)(__stop_bounded - __start_bounded) > 0); return 0; }
"#;
    assert_refused(moved(source, "gcc", PIE, false, 0), "by symbols");
}

#[test]
fn files_with_run_times_that_describe_code_by_address_are_refused() {
    for (section, name) in [
        (".gopclntab", "Go"),
        (".llvm_stackmaps", "LLVM stack maps"),
        (".svm_heap", "GraalVM"),
    ] {
        let source = format!(
            "{POINTED}\nasm(\".pushsection {section},\\\"a\\\"\\n.quad 1\\n.popsection\");"
        );
        assert_refused(moved(&source, "gcc", PIE, false, 0), name);
    }
    let symbol = format!("{POINTED}\nint mono_aot_file_info;");
    assert_refused(moved(&symbol, "gcc", PIE, false, 0), "Mono");
}

#[test]
fn pointers_of_compilers_that_are_not_known_may_not_change() {
    let source = format!(
        "{POINTED}\nasm(\".pushsection .comment,\\\"MS\\\",@progbits,1\\n.string \\\"Strange 1.0\\\"\\n.popsection\");"
    );
    assert_refused(moved(&source, "gcc", PIE, true, 0), "made by 'Strange 1.0'");
    assert_proved(moved(&source, "gcc", PIE, false, 0));
    let haskell = format!("{POINTED}\nint stg_upd_frame_info;");
    assert_refused(moved(&haskell, "gcc", PIE, true, 0), "the run-time of GHC");
    assert_proved(moved(&haskell, "gcc", PIE, false, 0));
}

#[test]
fn the_certificate_counts_what_it_rests_on() {
    let of = |report: Option<Report>, id: &str| {
        let report = report?;
        let a = report.assumptions.iter().find(|a| a.id == id);
        Some(a.map_or(0, |a| a.functions))
    };
    // one, two, three, and main, whose address the start-up code forms.
    let Some(following) = of(moved(POINTED, "gcc", PIE, true, 0), "A8") else {
        return;
    };
    assert_eq!(following, 4);
    assert_eq!(
        of(self::moved(POINTED, "gcc", PIE, false, 0), "A8"),
        Some(0)
    );
    let report = moved(POINTED, "gcc", PIE, false, 0);
    let moved = report.as_ref().map(|r| r.functions.len() as u64);
    assert_eq!(of(report, "A1"), moved);
}
