//! Command lines of llvm-bolt as projects use them, on a program that is built with their flags.

mod support;

use std::process::Command;

use postlink_elf::elf::{Elf, SymbolTable};
use support::folder::Folder;
use support::{done, is_installed};

/// An interpreter with threaded code, as CPython's loop, and the functions that it calls.
const PROGRAM: &str = r#"
#include <stdio.h>
__attribute__((noinline)) static long scale(long x) { return x > 1000003 ? x % 1000003 : x * 7; }
__attribute__((noinline)) static long never(long x) { return printf("never %ld\n", x); }
__attribute__((noinline)) long evaluate(const unsigned char *pc, long n) {
  static const void *const labels[] = {&&add, &&mul, &&dec, &&jnz, &&halt};
  const unsigned char *start = pc;
  long a = 1;
#define NEXT goto *labels[*pc++]
  NEXT;
add: a += n; NEXT;
mul: a = scale(a); NEXT;
dec: n--; NEXT;
jnz: if (n) pc = start; NEXT;
halt: return a < 0 ? never(a) : a;
}
int main(void) {
  static const unsigned char code[] = {0, 1, 0, 2, 3, 4};
  printf("%ld\n", evaluate(code, 20000));
  return 0;
}
"#;

/// What CPython's configure script passes when it instruments and when it optimises.
const COMMON: [&str; 2] = [
    "-update-debug-sections",
    "-skip-funcs=evaluate,_PyEval_EvalFrameDefault,sre_ucs1_match/1,sre_ucs2_match/1,sre_ucs1_match.lto_priv.0/1",
];
const APPLY: [&str; 14] = [
    "-reorder-blocks=ext-tsp",
    "-reorder-functions=cdsort",
    "-split-functions",
    "-icf=1",
    "-inline-all",
    "-split-eh",
    "-reorder-functions-use-hot-size",
    "-peepholes=none",
    "-jump-tables=aggressive",
    "-inline-ap",
    "-indirect-call-promotion=all",
    "-dyno-stats",
    "-use-gnu-stack",
    "-frame-opt=hot",
];

/// Address of a function by its name.
fn address(file: &[u8], name: &str) -> u64 {
    let elf = Elf::parse(file).expect("a program");
    let symbols = elf.symbols(SymbolTable::Static);
    let found = symbols.iter().find(|s| s.name == name.as_bytes());
    found.expect("the symbol is there").value
}

#[test]
fn the_recipe_of_cpython_gives_a_proved_program() {
    if !(cfg!(target_arch = "x86_64") && is_installed("gcc")) {
        return;
    }
    let folder = Folder::new();
    let flags = [
        "-g",
        "-O3",
        "-fPIC",
        "-flto",
        "-fno-semantic-interposition",
        "-fno-reorder-blocks-and-partition",
        "-Wl,--emit-relocs",
    ];
    let app = folder.compile("app", PROGRAM, &flags);
    let plain = folder.run(&app, &[]);
    folder.postlink(&["links", "bin"]);
    let bolt = |arguments: &[&str]| {
        let mut command = Command::new(folder.path("bin/llvm-bolt"));
        command.args(arguments).args(COMMON);
        let output = done(command.current_dir(folder.dir()));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let counters = format!(
        "-instrumentation-file={}",
        folder.path("app.bolt").display()
    );
    bolt(&[
        "./app",
        "-instrument",
        "-instrumentation-file-append-pid",
        &counters,
        "-o",
        "app.bolt_inst",
    ]);
    for _ in 0..2 {
        assert_eq!(folder.run(folder.path("app.bolt_inst"), &[]), plain);
    }
    // As the Makefile does: merge-fdata app.*.fdata > app.fdata
    let profiles: Vec<_> = std::fs::read_dir(folder.dir())
        .expect("the folder is ours")
        .map(|entry| entry.expect("it can be read").path())
        .filter(|path| path.extension().is_some_and(|e| e == "fdata"))
        .collect();
    assert_eq!(profiles.len(), 2, "one file of counters for each process");
    let mut merge = Command::new(folder.path("bin/merge-fdata"));
    let merged = done(merge.args(&profiles));
    std::fs::write(folder.path("app.fdata"), merged.stdout).expect("the folder is ours");

    let arguments: Vec<&str> = ["./app", "-o", "app.out", "-data=app.fdata"]
        .into_iter()
        .chain(APPLY)
        .collect();
    let said = bolt(&arguments);
    assert!(said.contains("BOLT-INFO: proved: "), "{said}");
    assert!(said.contains("executed forward branches"), "{said}");
    assert_eq!(folder.run(folder.path("app.out"), &[]), plain);
    let read = |name: &str| std::fs::read(folder.path(name)).expect("it was written");
    let (input, output) = (read("app"), read("app.out"));
    assert_eq!(address(&input, "evaluate"), address(&output, "evaluate"));
    assert_ne!(address(&input, "main"), address(&output, "main"));
}
