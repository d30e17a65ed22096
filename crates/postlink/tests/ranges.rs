//! Ranges of code that a program knows by symbols, and tables of jumps with whose entries it calculates: the
//! checker finds them by itself.
//!
//! The rewriter must not see what the checker has to find. So programs are built in which nothing is to be
//! seen, rewritten, and then the symbols of both files are changed to what a linker script, or clang's checks
//! of indirect calls, make of them. The output is right no more, and must be refused for that reason.

mod support;

use postlink_elf::elf::{Elf, SymbolTable};
use postlink_verify::{Options, Report, Verdict};
use support::folder::Folder;

/// Four functions between symbols, and pointers to three of them that are called.
const RANGE: &str = r#"
#include <stdio.h>
#define RANGED __attribute__((noinline, noipa, section(".text.ranged")))
__asm__(".pushsection .text.ranged,\"ax\",@progbits\n.globl range_start\n.type range_start, @function\nrange_start:\n.popsection");
RANGED int one(int x) { return x * 3 + 1; }
RANGED int two(int x) { for (int i = 0; i < (x & 7); i++) x += i * x; return x; }
RANGED int four(int x) { for (int i = 0; i < (x & 3); i++) x += 9 - i * x; return x; }
RANGED int three(int x) { return x & 1 ? two(x) : one(x); }
__asm__(".pushsection .text.ranged,\"ax\",@progbits\n.globl range_end\n.type range_end, @function\nrange_end:\n.popsection");
RANGED int last(int x) { return x ^ 77; }
__attribute__((noinline, noipa)) int other(int x) { return x ^ 85; }
extern char range_start[], range_end[];
int (*const table[])(int) = {one, two, three, other};
int main(int argc, char **argv) {
  int sum = 0;
  for (int i = 0; i < 4000; i++) sum = sum * 5 + table[i & 3](i) + ((long)range_start == (long)one) + last(i) + four(i);
  if (argc > 5) printf("%p", (void *)range_end);
  printf("%d\n", sum);
  return 0;
}
"#;

/// A table of jumps as clang's checks of indirect calls have it.
const JUMPS: &str = r#"
#include <stdio.h>
__attribute__((noinline, noipa, used)) int one_cfi(int x) { return x * 3 + 1; }
__attribute__((noinline, noipa, used)) int two_cfi(int x) { return x ^ 85; }
int one(int), two(int);
__asm__(".pushsection .text.jumps,\"ax\",@progbits\n.balign 8\n"
        ".type one, @function\none: jmp one_cfi\n.balign 8, 0xcc\n.size one, 8\n"
        ".type two, @function\ntwo: jmp two_cfi\n.balign 8, 0xcc\n.size two, 8\n.popsection");
int (*const table[])(int) = {one, two};
int main(int argc, char **argv) {
  int sum = 0;
  for (int i = 0; i < 4000; i++) sum = sum * 5 + table[i & 1](i);
  printf("%d\n", sum);
  return 0;
}
"#;

/// Changes symbols' entries, of 24 bytes: type in the fifth byte, size in the last eight.
fn change_symbols(file: &mut [u8], change: impl Fn(&[u8], &mut [u8])) {
    let places: Vec<(Vec<u8>, usize)> = {
        let elf = Elf::parse(file).expect("an ELF file");
        let table = elf.sections.iter().find(|s| s.name == ".symtab");
        let start = table.expect("a symbol table").offset as usize;
        let symbols = elf.symbols(SymbolTable::Static);
        let names = symbols.iter().map(|s| s.name.to_vec());
        names.zip((start..).step_by(24)).collect()
    };
    for (name, at) in places {
        change(&name, &mut file[at..at + 24]);
    }
}

/// What the checker says of functions, as `name: reason`.
fn refused(report: &Report) -> Vec<String> {
    let reason = |f: &postlink_verify::FunctionReport| match &f.verdict {
        Verdict::Failed(failure) => Some(format!("{}: {}", f.shown_name(), failure.reason)),
        Verdict::Proved => None,
    };
    report.functions.iter().filter_map(reason).collect()
}

/// Reads both files, changes their symbols, and has the output checked.
fn checked(folder: &Folder, output: &str, change: impl Fn(&[u8], &mut [u8])) -> Vec<String> {
    let mut input = std::fs::read(folder.path("app")).expect("the input");
    let mut output = std::fs::read(folder.path(output)).expect("the output");
    let report = postlink_verify::verify(&input, &output, &Options::default()).expect("readable");
    assert_eq!(refused(&report), Vec::<String>::new());
    change_symbols(&mut input, &change);
    change_symbols(&mut output, &change);
    let report = postlink_verify::verify(&input, &output, &Options::default()).expect("readable");
    refused(&report)
}

#[test]
fn code_between_bounds_that_have_symbols_may_not_move_nor_pointers_to_it_follow() {
    let folder = Folder::new();
    let flags = ["-fno-toplevel-reorder", "-fPIE", "-pie", "-Wl,-q"];
    folder.compile("app", RANGE, &flags);
    folder.postlink(&["instrument", "app", "-o", "counting"]);
    let mut counting = folder.command(folder.path("counting"), &[]);
    support::done(counting.env("POSTLINK_PROFILE", folder.path("app.plraw")));
    folder.postlink(&["optimize", "app", "-p", "app.plraw", "-o", "app.opt"]);
    let untype = |names: &'static [&'static str]| {
        move |name: &[u8], symbol: &mut [u8]| {
            if names.iter().any(|n| n.as_bytes() == name) {
                symbol[4] &= 0xf0;
            }
        }
    };
    // One bound: pointers to the section's functions are what they were.
    let one = checked(&folder, "app.opt", untype(&["range_start"]));
    for name in ["one", "two"] {
        let reason = "the program knows bounds of its section by symbols";
        let is_it =
            |said: &&String| said.starts_with(&format!("{name}: ")) && said.contains(reason);
        assert!(one.iter().any(|said| is_it(&said)), "{name}: {one:?}");
    }
    assert!(
        one.iter().all(|said| !said.contains("is between")),
        "{one:?}"
    );
    // Two: what is between them has not moved.
    let both = checked(&folder, "app.opt", untype(&["range_start", "range_end"]));
    // Of a function is said what was found first: of those with pointers something else.
    let is_it = |said: &String| said.starts_with("four: the function is between");
    assert!(both.iter().any(is_it), "{both:?}");
}

#[test]
fn pointers_into_a_table_of_jumps_may_not_lead_to_counters() {
    let folder = Folder::new();
    folder.compile("app", JUMPS, &["-fPIE", "-pie", "-Wl,-q"]);
    let arguments = [
        "instrument",
        "app",
        "--mode",
        "function-coverage",
        "-o",
        "counting",
    ];
    folder.postlink(&arguments);
    let longer = |name: &[u8], symbol: &mut [u8]| {
        if matches!(name, b"one" | b"two") {
            symbol[16] = 16;
        }
    };
    let said = checked(&folder, "counting", longer);
    let reason = "its symbol and another function's overlap, as in a table of jumps";
    // Reports on instrumented code name functions by their addresses.
    let overlapping = said.iter().filter(|said| said.contains(reason));
    assert_eq!(overlapping.count(), 2, "{said:?}");
}
