//! Jump tables of new code's own, in programs without kept relocations: what is proved of them, and that faults in
//! them are found.

mod support;

use postlink_verify::Options;
use postlink_verify::mutate::{Faults, Kind};
use std::collections::BTreeMap;
use support::folder::{Folder, OPTIMIZE_ALL};
use support::is_installed;

/// Places tried for each kind.
const TRIES: u64 = 8;

/// A switch that is compared, one that is not, and one behind a mask with what is no entry after the table.
const SOURCE: &str = r#"
#include <stdio.h>
/* Code of the compiler's start files has no unwind entries: short branches of it could lead to what is near. */
__asm__(".text\n.skip 512,0xcc\n");
static int seen[4] = {1, 2, 3, 4};
__attribute__((noinline, noipa)) int compared(int op, int x) {
  switch (op) {
  case 0: return x + 1; case 1: return x * 3; case 2: return x - 7; case 3: return x << 2;
  case 4: return x ^ 0x2a; case 5: return x / 3; case 6: return -x; default: return x;
  }
}
__attribute__((noinline, noipa)) int unbounded(unsigned long op, int x) {
  switch (op) {
  case 0: return x + 2; case 1: return x * 5; case 2: return x - 1; case 3: return x << 1;
  case 4: return x | 8; case 5: return x % 7; default: __builtin_unreachable();
  }
}
__attribute__((noinline, noipa)) int masked(unsigned op, int x) {
  switch (op & 7) {
  case 0: return x + 3; case 1: return x * 2; case 2: return x - 2; case 3: return x << 3;
  case 4: return x & 12; case 5: return x % 5; case 6: return ~x; case 7: return x >> 1;
  }
  return 0;
}
__attribute__((noinline, noipa)) int drive(int n) {
  int a = 0, b = 0, c = 0;
  for (int i = 0; i < n; i++) {
    a += compared(i % 9, i); b += unbounded(i % 6, i); c ^= masked(i, i) + seen[i & 3]++;
  }
  printf("%d %d %d\n", a, b, c);
  return 0;
}
int main(int argc, char **argv) { return drive(40 * argc); }
"#;

/// The path of a case's source.
fn case(name: &str) -> String {
    format!("{}/../../tests/cases/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// An instrumented and an optimised copy, both of which do what the program does.
fn copies(folder: &Folder, source: &str, flags: &[&str]) -> [serde_json::Value; 2] {
    let app = folder.compile("app", source, flags);
    let plain = folder.run(&app, &[]);
    let none = ["--relocations", "none"];
    folder.postlink(&[&["instrument", "app", "-o", "counting"][..], &none].concat());
    folder.counting_prints(&plain);
    folder.postlink(&[&OPTIMIZE_ALL[..], &none].concat());
    assert_eq!(folder.run(folder.path("opt"), &[]), plain);
    ["counting", "opt"].map(|output| {
        let said = folder.postlink(&["verify", "app", output, "--json"]);
        serde_json::from_str(&said).expect("JSON")
    })
}

/// What the certificate says of the table jumps of a function.
fn bounds(certificate: &serde_json::Value, name: &str) -> Vec<String> {
    let functions = certificate["functions"].as_array().expect("functions");
    let of = |f: &&serde_json::Value| f["name"].as_str() == Some(name);
    let function = functions.iter().find(of);
    let function = function.unwrap_or_else(|| panic!("{name} has not moved"));
    assert!(
        function["falls_back"].is_null(),
        "{name} continues in old code"
    );
    let tables = function["tables"].as_array().map_or(&[][..], Vec::as_slice);
    tables
        .iter()
        .map(|t| t["bound"].as_str().expect("a bound").to_owned())
        .collect()
}

#[test]
fn switches_have_tables_of_their_own_and_faults_in_them_are_found() {
    if !is_installed("gcc") {
        return;
    }
    let mut applied: BTreeMap<Kind, u64> = BTreeMap::new();
    let mut missed = Vec::new();
    for flags in [
        &["-O2", "-fPIE", "-pie"][..],
        &["-O2", "-fno-pie", "-no-pie"],
    ] {
        let folder = Folder::new();
        let certificates = copies(&folder, SOURCE, flags);
        for (certificate, output) in certificates.iter().zip(["counting", "opt"]) {
            assert_eq!(
                bounds(certificate, "compared"),
                ["proved"],
                "{flags:?} {output}"
            );
            assert_eq!(
                bounds(certificate, "masked"),
                ["proved"],
                "{flags:?} {output}"
            );
            // With addresses in the table the flags would be others behind the jump.
            if flags.contains(&"-pie") {
                assert_eq!(bounds(certificate, "unbounded"), ["guarded"], "{output}");
            }
            let input = std::fs::read(folder.path("app")).expect("the program");
            let output = std::fs::read(folder.path(output)).expect("the output");
            let faults = Faults::new(&input, &output).unwrap_or_else(|what| panic!("{what}"));
            for &kind in Kind::OWN_TABLES {
                for seed in 0..TRIES {
                    let Some(mutant) = faults.inject(kind, seed) else {
                        break;
                    };
                    *applied.entry(kind).or_default() += 1;
                    let report =
                        postlink_verify::verify(&input, &mutant.image, &Options::default());
                    if report.is_ok_and(|r| r.is_proved()) {
                        missed.push(mutant.what);
                    }
                }
            }
        }
    }
    let never: Vec<_> = Kind::OWN_TABLES
        .iter()
        .filter(|k| !applied.contains_key(k))
        .collect();
    assert!(never.is_empty(), "never applied: {never:?}");
    assert!(missed.is_empty(), "not found: {missed:#?}");
}

/// Entries that lead to what reads the jump's registers led to old code, where nothing counts and no layout helps.
#[test]
fn what_a_jump_through_a_table_leaves_in_registers_is_restored_and_faults_in_that_are_found() {
    if !is_installed("gcc") {
        return;
    }
    let source = std::fs::read_to_string(case("own_table_restored.c")).expect("a case");
    let mut applied: BTreeMap<Kind, u64> = BTreeMap::new();
    for flags in [["-O1", "-fPIE", "-pie"], ["-O1", "-fno-pie", "-no-pie"]] {
        let folder = Folder::new();
        let certificates = copies(&folder, &source, &flags);
        let input = std::fs::read(folder.path("app")).expect("the program");
        for (said, output) in certificates.iter().zip(["counting", "opt"]) {
            for name in ["spilled", "both", "carried", "again"] {
                let bounds = bounds(said, name);
                assert!(!bounds.is_empty(), "{output}: {name}");
                assert!(bounds.iter().all(|b| b == "proved"), "{output}: {bounds:?}");
            }
            let output = std::fs::read(folder.path(output)).expect("the output");
            for (kind, times) in support::faults::spoil(&input, &output, Kind::RESTORED) {
                *applied.entry(kind).or_default() += times;
            }
        }
        let inspect = ["inspect", "app", "--relocations", "none", "--json"];
        let said: serde_json::Value =
            serde_json::from_str(&folder.postlink(&inspect)).expect("JSON");
        // That with the carry; words behind another table are no entries of it.
        assert_eq!(said["tables_to_old_code"], 1, "{said}");
        assert_eq!(said["falls_back"], serde_json::json!([0, 0]), "{said}");
    }
    let kinds = Kind::RESTORED.iter();
    let never: Vec<_> = kinds.filter(|k| !applied.contains_key(k)).collect();
    assert!(never.is_empty(), "never applied: {never:?}");
}

/// Debug information was refused as a whole: code that is added at tables stood for old instructions of which no row
/// speaks.
#[test]
fn debug_information_follows_where_tables_have_added_code() {
    if !is_installed("gcc") || !is_installed("clang-19") {
        return;
    }
    let cases = [
        ("gcc", "own_table_restored.c"),
        ("clang-19", "own_table_restored.c"),
        ("gcc", "own_labels.c"),
        ("clang-19", "own_labels.c"),
        ("gcc", "labels_in_memory.c"),
    ];
    for (compiler, name) in cases {
        let folder = Folder::new();
        let app = folder.path("app");
        let source = case(name);
        let mut compile = std::process::Command::new(compiler);
        compile.args(["-O1", "-g", "-w", "-fPIE", "-pie", &source, "-o"]);
        assert!(compile.arg(&app).status().expect(compiler).success());
        let plain = folder.run(&app, &[]);
        let none = ["--relocations", "none"];
        folder.postlink(&[&["instrument", "app", "-o", "counting"][..], &none].concat());
        folder.counting_prints(&plain);
        folder.postlink(&[&OPTIMIZE_ALL[..], &none].concat());
        let said = folder.postlink(&["verify", "app", "opt", "--json"]);
        let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        assert_eq!(said["debug"]["state"], "updated", "{compiler} {name}");
    }
}

/// An interpreter that stores labels in the code that it runs went on in old code from its first jump on: it was not
/// counted, and no layout helped.
#[test]
fn labels_that_a_program_has_stored_lead_back_to_new_code() {
    if !is_installed("gcc") {
        return;
    }
    let source = std::fs::read_to_string(case("labels_in_memory.c")).expect("a case");
    let folder = Folder::new();
    let [counting, _] = copies(&folder, &source, &["-O2", "-fPIE", "-pie"]);
    let functions = counting["functions"].as_array().expect("functions");
    let run = functions.iter().find(|f| f["name"] == "run");
    assert!(!run.expect("it has moved")["falls_back"].is_null());
    let inspect = ["inspect", "app", "--relocations", "none", "--json"];
    let said: serde_json::Value = serde_json::from_str(&folder.postlink(&inspect)).expect("JSON");
    let jumps = said["indirect_jumps"].as_array().expect("jumps");
    let outcomes = jumps.iter().filter(|j| j["function"] == "run");
    let outcomes: Vec<_> = outcomes.map(|j| j["outcome"].as_str()).collect();
    assert!(!outcomes.is_empty(), "{said}");
    assert!(
        outcomes.iter().all(|o| *o == Some("through-old-code")),
        "{said}"
    );
    // Three instructions at the least for each of 2,000 additions, 1,000 and 1,003 times round a loop.
    let profile = folder.path("run.plraw");
    let mut counting = folder.command(folder.path("counting"), &[]);
    assert!(
        counting
            .env("POSTLINK_PROFILE", &profile)
            .status()
            .expect("it runs")
            .success()
    );
    let show = [
        "show",
        "run.plraw",
        "--binary",
        "app",
        "--json",
        "--relocations",
        "none",
    ];
    let said: serde_json::Value = serde_json::from_str(&folder.postlink(&show)).expect("JSON");
    let functions = said["functions"].as_array().expect("functions");
    let run = functions.iter().find(|f| f["name"] == "run");
    let instructions = run.and_then(|f| f["instructions"].as_u64());
    assert!(instructions > Some(15_000), "{said}");
    // A label that leads to another block, or nowhere.
    let [input, output] =
        ["app", "counting"].map(|name| std::fs::read(folder.path(name)).expect("a file"));
    let kinds = [Kind::EntryJumpToWrongFunction, Kind::ClaimedEntryOff];
    let spoilt = support::faults::spoil(&input, &output, &kinds);
    assert!(!spoilt.is_empty());
    let spoilt = support::faults::spoil(&input, &output, Kind::WITHOUT_RELOCATIONS);
    assert!(!spoilt.is_empty());
}

/// The checker refused such a function: call sites cover all of the old code, and what restores a register is behind
/// the new code's. A personality routine without a name may ask what any instruction raises.
#[test]
fn what_restores_a_register_needs_no_call_site() {
    if !is_installed("clang++-19") {
        return;
    }
    let path = case("own_table_restored_in_try.cpp");
    let folder = Folder::new();
    let app = folder.path("app");
    let mut compile = std::process::Command::new("clang++-19");
    compile.args(["-O2", "-static", "-s", "-w", &path, "-o"]);
    assert!(compile.arg(&app).status().expect("clang++-19").success());
    let plain = folder.run(&app, &[]);
    let instrument = ["instrument", "app", "-o", "counting", "--json"];
    let said: serde_json::Value =
        serde_json::from_str(&folder.postlink(&instrument)).expect("JSON");
    assert_eq!(said["refused"], serde_json::json!([]), "{said}");
    folder.counting_prints(&plain);
}

/// Tables of labels of position-independent programs: one instruction becomes two there.
#[test]
fn labels_of_position_independent_programs_have_own_tables_and_faults_in_them_are_found() {
    if !is_installed("gcc") {
        return;
    }
    let source = std::fs::read_to_string(case("own_labels.c")).expect("a case");
    let mut applied: BTreeMap<Kind, u64> = BTreeMap::new();
    // The labels' addresses are in relocations, or in the table.
    for relocations in ["nopack-relative-relocs", "pack-relative-relocs"] {
        let folder = Folder::new();
        let flags = ["-fPIE", "-pie", &format!("-Wl,-z,{relocations}")];
        let certificates = copies(&folder, &source, &flags);
        let input = std::fs::read(folder.path("app")).expect("the program");
        for (said, output) in certificates.iter().zip(["counting", "opt"]) {
            for name in ["masked", "beside"] {
                let bounds = bounds(said, name);
                assert!(!bounds.is_empty(), "{output}: {name}");
                assert!(bounds.iter().all(|b| b == "proved"), "{output}: {bounds:?}");
            }
            let output = std::fs::read(folder.path(output)).expect("the output");
            let spoilt = support::faults::spoil(&input, &output, Kind::LABEL_TABLES_X86_64);
            for (kind, times) in spoilt {
                *applied.entry(kind).or_default() += times;
            }
        }
    }
    let kinds = Kind::LABEL_TABLES_X86_64.iter();
    let never: Vec<_> = kinds.filter(|k| !applied.contains_key(k)).collect();
    assert!(never.is_empty(), "never applied: {never:?}");
}

/// A table of labels at the end of a page: what the mask lets through beside them is in the next one.
const AT_THE_END: &str = r#"
#include <stdio.h>
int masked(const unsigned char *code);
#define FETCH "movzbl (%rdi),%edx\ninc %rdi\nand $7,%edx\nmov (%r8,%rdx,8),%rdx\njmp *%rdx\n"
__asm__(".text\n.skip 512,0xcc\n.globl masked\n.type masked,@function\nmasked:\n.cfi_startproc\n"
  "xor %eax,%eax\nlea .Llabels(%rip),%r8\n" FETCH "0: add $1,%eax\n" FETCH "1: add $2,%eax\n" FETCH "2: add $3,%eax\n" FETCH
  "3: add %eax,%eax\n" FETCH "4: sub $4,%eax\n" FETCH "5: ret\n.cfi_endproc\n.size masked,.-masked\n"
  ".section .data.rel.ro,\"aw\",@progbits\n.p2align 12\n.skip 4048\n"
  ".Llabels: .quad 0b,1b,2b,3b,4b,5b\n.skip 8192\n.text\n");
int main(void) { printf("%d\n", masked((const unsigned char *)"\0\1\2\3\4\5")); return 0; }
"#;

/// A fallback loads its entry later than the load that it is of did: it was taken for granted that nothing writes to
/// what is no label in between.
#[test]
fn a_fallback_loads_what_nobody_writes() {
    if !is_installed("gcc") {
        return;
    }
    let folder = Folder::new();
    let flags = ["-fPIE", "-pie"];
    let [counting, _] = copies(&folder, AT_THE_END, &flags);
    assert!(!bounds(&counting, "masked").is_empty());
    // The page behind the labels is protected, or not any more, or not as it is not whole.
    for more in [4096, 0, 8] {
        let mut files =
            ["app", "counting"].map(|name| std::fs::read(folder.path(name)).expect("a file"));
        for file in &mut files {
            protect_to_labels(file, &folder.path("app"), more);
        }
        let [input, output] = &files;
        let report = postlink_verify::verify(input, output, &Options::default());
        let proved = report.is_ok_and(|r| r.is_proved());
        assert_eq!(
            proved,
            more == 4096,
            "{more}: a fallback loads what was written, or not"
        );
        std::fs::write(folder.path("less"), input).expect("the folder is ours");
        let instrument = [
            "instrument",
            "less",
            "-o",
            "anew",
            "--relocations",
            "none",
            "--json",
        ];
        let said: serde_json::Value =
            serde_json::from_str(&folder.postlink(&instrument)).expect("JSON");
        assert_eq!(said["refused"], serde_json::json!([]), "{said}");
        let said = folder.postlink(&["verify", "less", "anew", "--json"]);
        let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        let functions = said["functions"].as_array().expect("functions");
        let masked = functions
            .iter()
            .find(|f| f["name"] == "masked")
            .expect("it has moved");
        assert_eq!(masked["falls_back"].is_null(), more == 4096, "{masked}");
    }
}

/// Lets what is protected once the loader is done end so many bytes behind the page with the labels.
fn protect_to_labels(file: &mut [u8], app: &std::path::Path, more: u64) {
    let said = std::process::Command::new("readelf")
        .args(["-SW"])
        .arg(app)
        .output();
    let said = String::from_utf8(said.expect("readelf").stdout).expect("text");
    let mut words = said
        .split(".data.rel.ro ")
        .nth(1)
        .expect("a section")
        .split_whitespace();
    let start = u64::from_str_radix(words.nth(1).expect("an address"), 16).expect("a number");
    let end =
        start.next_multiple_of(4096) + if start.is_multiple_of(4096) { 4096 } else { 0 } + more;
    let word = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().expect("eight bytes"));
    let (headers, count) = (
        word(32) as usize,
        usize::from(u16::from_le_bytes([file[56], file[57]])),
    );
    let relro = (0..count).map(|i| headers + 56 * i);
    let at = relro
        .clone()
        .find(|at| file[*at..*at + 4] == 0x6474_e552_u32.to_le_bytes());
    let at = at.expect("a protected segment");
    let size = end - word(at + 16);
    file[at + 40..at + 48].copy_from_slice(&size.to_le_bytes());
}

/// An index of a byte has 256 values, and the table three entries. What follows it is no entry, and leads behind the
/// first byte of another function, which its old entry overwrites.
const BYTE: &str = r#"
#include <stdio.h>
__asm__(".text\n.skip 512,0xcc\n");
__attribute__((noinline, noipa)) int other(int x) { return x * 5 + (x >> 3); }
int typed(const unsigned char *op, int x);
int through(const unsigned char *op, int x);
int padded(const unsigned char *op, int x);
int shortest(int x);
int again(const unsigned char *op, int x);
int bits(const unsigned char *op, int x);
signed char part(const unsigned char *op, int x);
__asm__(".text\n.globl typed\n.type typed,@function\ntyped:\n.cfi_startproc\n"
  "movzbl (%rdi),%eax\nlea .Lbytes(%rip),%rcx\nmovslq (%rcx,%rax,4),%rax\nadd %rcx,%rax\njmp *%rax\n"
  ".Lb0: lea 1(%rsi),%eax\nret\n.Lb1: lea (%rsi,%rsi,2),%eax\nret\n.Lb2: lea -7(%rsi),%eax\nret\n"
  ".cfi_endproc\n.size typed,.-typed\n.section .rodata\n.p2align 2\n"
  ".Lbytes: .long .Lb0-.Lbytes, .Lb1-.Lbytes, .Lb2-.Lbytes\n.long other+2-.Lbytes\n.zero 1008\n.text\n");
/* What looks like a fourth entry leads to the padding behind a function, which its old entry's jump needs. */
__asm__(".p2align 4\n.globl shortest\n.type shortest,@function\nshortest:\n.cfi_startproc\nlea 1(%rdi),%eax\nret\n"
  ".cfi_endproc\n.size shortest,.-shortest\n.p2align 4\n"
  ".globl padded\n.type padded,@function\npadded:\n.cfi_startproc\n"
  "movzbl (%rdi),%eax\nlea .Lpadded(%rip),%rcx\nmovslq (%rcx,%rax,4),%rax\nadd %rcx,%rax\njmp *%rax\n"
  ".Lq0: lea 1(%rsi),%eax\nret\n.Lq1: lea (%rsi,%rsi,2),%eax\nret\n.Lq2: lea -7(%rsi),%eax\nret\n"
  ".cfi_endproc\n.size padded,.-padded\n.section .rodata\n.p2align 2\n"
  ".Lpadded: .long .Lq0-.Lpadded, .Lq1-.Lpadded, .Lq2-.Lpadded\n.long shortest+4-.Lpadded\n.zero 1008\n.text\n");
/* It jumps again and again to what it has loaded once. */
__asm__(".globl again\n.type again,@function\nagain:\n.cfi_startproc\n"
  "movzbl (%rdi),%eax\nlea .Lonce(%rip),%rcx\nmovslq (%rcx,%rax,4),%rdx\nadd %rcx,%rdx\nxor %eax,%eax\n"
  ".Lnext: jmp *%rdx\n.Lo0: inc %eax\njmp .Lleft\n.Lo1: lea 3(%rax,%rax),%eax\njmp .Lleft\n.Lo2: xor $5,%eax\n"
  ".Lleft: dec %esi\njg .Lnext\nret\n.cfi_endproc\n.size again,.-again\n.section .rodata\n.p2align 2\n"
  ".Lonce: .long .Lo0-.Lonce, .Lo1-.Lonce, .Lo2-.Lonce\n.zero 1012\n.text\n");
/* A result of 8 bits, in a register above which is what was loaded; and an index that is the second byte of one. */
__asm__(".globl part\n.type part,@function\npart:\n.cfi_startproc\n"
  "mov (%rdi),%ah\nmovzbl %ah,%ecx\nlea .Lparts(%rip),%rdx\nmovslq (%rdx,%rcx,4),%rcx\nadd %rdx,%rcx\njmp *%rcx\n"
  ".Lp0: mov $0x16,%cl\nmov %ecx,%eax\nret\n.Lp1: lea 8(%rsi),%eax\nret\n"
  ".Lp2: lea -7(%rsi),%eax\nret\n.cfi_endproc\n.size part,.-part\n.section .rodata\n.p2align 2\n"
  ".Lparts: .long .Lp0-.Lparts, .Lp1-.Lparts, .Lp2-.Lparts\n.zero 1012\n.text\n");
/* On a processor that does tzcnt as bsf, rcx stays as it was where no bit is set. */
__asm__(".globl bits\n.type bits,@function\nbits:\n.cfi_startproc\n"
  "movzbl (%rdi),%ecx\nlea .Lbits(%rip),%rdx\nmovslq (%rdx,%rcx,4),%rcx\nadd %rdx,%rcx\njmp *%rcx\n"
  ".Lc0: lea 1(%rsi),%eax\nret\n.Lc1: lea 8(%rsi),%rax\ntzcnt %rax,%rcx\nshr %cl,%eax\nret\n"
  ".Lc2: lea -7(%rsi),%eax\nret\n.cfi_endproc\n.size bits,.-bits\n.section .rodata\n.p2align 2\n"
  ".Lbits: .long .Lc0-.Lbits, .Lc1-.Lbits, .Lc2-.Lbits\n.zero 1012\n.text\n");
/* What looks like a fourth entry leads to another table, and one of that to what reads rcx. */
__asm__(".globl through\n.type through,@function\nthrough:\n.cfi_startproc\n"
  "mov %esi,%ecx\ntest %esi,%esi\njs .Lfar\n"
  "movzbl (%rdi),%eax\nlea .Lnear(%rip),%rdx\nmovslq (%rdx,%rax,4),%rcx\nadd %rdx,%rcx\njmp *%rcx\n"
  ".Ln0: lea 1(%rsi),%eax\nret\n.Ln1: lea 8(%rsi),%eax\nret\n.Ln2: lea -7(%rsi),%eax\nret\n"
  ".Lfar: mov %esi,%eax\nand $1,%eax\nlea .Lread(%rip),%r8\nmovslq (%r8,%rax,4),%rdi\nadd %r8,%rdi\njmp *%rdi\n"
  ".Lr0: lea 5(%rcx,%rsi),%eax\nret\n.Lr1: lea 3(%rcx),%eax\nret\n"
  ".cfi_endproc\n.size through,.-through\n.section .rodata\n.p2align 2\n"
  ".Lnear: .long .Ln0-.Lnear, .Ln1-.Lnear, .Ln2-.Lnear, .Lfar-.Lnear\n.zero 1008\n"
  ".Lread: .long .Lr0-.Lread, .Lr1-.Lread\n.text\n");
__attribute__((noinline, noipa)) int drive(int n) {
  int a = 0;
  for (int i = 0; i < n; i++) { unsigned char op = i % 3; a += typed(&op, i) ^ padded(&op, i) + shortest(i) + other(i) + again(&op, i) - bits(&op, i) + 2 * part(&op, i) - through(&op, i % 2 ? i : -i); }
  printf("%d\n", a);
  return 0;
}
int main(int argc, char **argv) { return drive(40 * argc); }
"#;

/// The checker refused these functions: an entry led to what was overwritten, or to code that reads what was loaded.
#[test]
fn what_follows_a_table_whose_index_is_a_byte_is_left_to_the_old_table() {
    if !is_installed("gcc") {
        return;
    }
    let folder = Folder::new();
    let app = folder.compile("app", BYTE, &["-O2", "-fPIE", "-pie"]);
    let plain = folder.run(&app, &[]);
    let none = ["--relocations", "none"];
    let instrument = [
        &["instrument", "app", "-o", "counting", "--json"][..],
        &none,
    ];
    let said: serde_json::Value =
        serde_json::from_str(&folder.postlink(&instrument.concat())).expect("JSON");
    assert_eq!(said["refused"], serde_json::json!([]), "{said}");
    folder.counting_prints(&plain);
    let certificate: serde_json::Value =
        serde_json::from_str(&folder.postlink(&["verify", "app", "counting", "--json"]))
            .expect("JSON");
    assert_eq!(bounds(&certificate, "typed"), ["guarded"]);
}

/// The checker refused this function, where the counters of the edge to `.Lback` are behind the last call: data flow
/// went on from it to them, and the table's address was lost. That such a call does not return is assumed (A7).
#[test]
fn a_call_at_the_end_of_a_function_ends_a_path() {
    if !is_installed("gcc") {
        return;
    }
    const ENDS: &str = r#"
#include <stdio.h>
#include <stdlib.h>
__attribute__((noipa)) void stop(void) { exit(3); }
void (*stopper)(void) = stop;
int steps(const char *codes, int x);
__asm__(".text\n.globl steps\n.type steps,@function\nsteps:\n.cfi_startproc\nsub $8,%rsp\n.cfi_adjust_cfa_offset 8\n"
  "lea .Lsteps(%rip),%rcx\n"
  ".Lnext: movzbl (%rdi),%edx\ninc %rdi\nand $3,%edx\nmovslq (%rcx,%rdx,4),%r8\nadd %rcx,%r8\njmp *%r8\n"
  ".Ls0: inc %esi\njmp .Lback\n.Ls1: add $3,%esi\njmp .Lback\n"
  ".Ls2: test %esi,%esi\njg .Lback\njs .Lend\nmov $7,%esi\n.Lback: lea 1(%rsi,%rsi),%esi\njmp .Lnext\n"
  ".Ls3: mov %esi,%eax\nadd $8,%rsp\n.cfi_adjust_cfa_offset -8\nret\n.cfi_adjust_cfa_offset 8\n"
  ".Lend: call *stopper(%rip)\n.cfi_endproc\n.size steps,.-steps\n.section .rodata\n.p2align 2\n"
  ".Lsteps: .long .Ls0-.Lsteps, .Ls1-.Lsteps, .Ls2-.Lsteps, .Ls3-.Lsteps\n.text\n");
int main(void) { printf("%d %d\n", steps("\0\1\2\0\3", 5), steps("\2\1\3", 0)); return 0; }
"#;
    let folder = Folder::new();
    let app = folder.compile("app", ENDS, &["-O2", "-fPIE", "-pie"]);
    let plain = folder.run(&app, &[]);
    let instrument = ["instrument", "app", "-o", "counting", "--json"];
    let none = ["--relocations", "none"];
    let said = folder.postlink(&[&instrument[..], &none].concat());
    let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(said["refused"], serde_json::json!([]), "{said}");
    folder.counting_prints(&plain);
    let certificate = folder.postlink(&["verify", "app", "counting", "--json"]);
    let certificate = serde_json::from_str(&certificate).expect("JSON");
    assert_eq!(bounds(&certificate, "steps"), ["proved"]);
}

/// All jumps in registers that were not understood were said to continue in old code; most are calls at the end.
#[test]
fn tail_calls_by_pointers_are_told_from_jumps_that_may_continue_in_old_code() {
    if !is_installed("gcc") {
        return;
    }
    const BOTH: &str = r#"
#include <stdio.h>
typedef long op(long);
long twice(long x) { return 2 * x; }
long third(long x) { return x / 3; }
op *volatile ops[] = {twice, third};
struct object { char kind; op *method; };
__attribute__((noinline, noipa)) long by_register(struct object *o, long x) {
  x += ops[1](x);
  op *method = o->method;
  return method ? method(x) : 0;
}
__attribute__((noinline, noipa)) long by_memory(struct object *o, long x) { return o->method(x); }
__attribute__((noinline, noipa, optimize("O0"))) long labels(const char *code, long x) {
  static void *const places[] = {&&add, &&halve, &&stop};
  void *place;
next:
  place = places[(int)*code++];
  goto *place;
add: x += 7; goto next;
halve: x /= 2; goto next;
stop: return x;
}
int main(void) {
  struct object o = {1, twice};
  printf("%ld %ld %ld\n", by_register(&o, 30), by_memory(&o, 31), labels("\0\1\0\2", 90));
}
"#;
    let folder = Folder::new();
    folder.compile("app", BOTH, &[]);
    let said = folder.postlink(&["inspect", "app", "--relocations", "none", "--json"]);
    let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(said["tail_calls"], 2, "{said}");
    assert_eq!(said["falls_back"], serde_json::json!([1, 1]), "{said}");
    let jumps = said["indirect_jumps"].as_array().expect("a list");
    assert_eq!(jumps.len(), 1, "{said}");
    assert_eq!(jumps[0]["function"], "labels", "{said}");
    assert_eq!(jumps[0]["outcome"], "through-old-code", "{said}");
    assert_eq!(jumps[0]["reason"], "no-table", "{said}");
    let listed = folder.postlink(&["inspect", "app", "--relocations", "none", "--jumps"]);
    assert_eq!(listed.lines().count(), 1, "{listed}");
    let address = jumps[0]["address"].as_u64().expect("a number");
    assert!(listed.contains(&format!("{address:#x} labels")), "{listed}");
    let why = "through old code: what it goes to was not loaded from a table";
    assert!(listed.contains(why), "{listed}");
    let said = folder.postlink(&["inspect", "app", "--relocations", "none"]);
    assert!(said.contains(why), "{said}");
}

#[test]
fn the_jump_that_keeps_a_function_is_named_with_its_reason() {
    if !is_installed("gcc") {
        return;
    }
    const ODD: &str = r#"
#include <stdio.h>
__attribute__((noinline, noipa)) long odd(long k, const int *t) {
  static void *const places[] = {&&a, &&b};
  if (k > 5) goto *places[k & 1];
  if (t) {
    __asm__ volatile("movslq (%0,%1,4),%%rax\n add %0,%%rax\n jmp *%%rax" ::"r"(t), "r"(k) : "rax");
    __builtin_unreachable();
  }
a: return k * 3;
b: return k - 7;
}
int main(void) { printf("%ld\n", odd(8, 0) + odd(9, 0) + odd(1, 0)); return 0; }
"#;
    let folder = Folder::new();
    folder.compile("app", ODD, &["-Wl,-q"]);
    let said = folder.postlink(&["inspect", "app", "--json"]);
    let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let jumps = said["indirect_jumps"].as_array().expect("a list");
    let named = jumps.iter().find(|j| j["function"] == "odd");
    let named = named.unwrap_or_else(|| panic!("{said}"));
    assert_eq!(named["outcome"], "function-stays", "{said}");
    assert_eq!(named["reason"], "base-unknown", "{said}");
    let listed = folder.postlink(&["inspect", "app", "--jumps"]);
    assert!(listed.contains("odd"), "{listed}");
    assert!(
        listed.contains("the function stays: the address of its table is not a constant"),
        "{listed}"
    );
}
