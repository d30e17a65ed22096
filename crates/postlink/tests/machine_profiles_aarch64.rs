//! Machine profiles of AArch64 programs, instrumented after linking and run by an emulator.

mod counted;
use counted::{
    CPP_MAIN, CPP_OTHER, Folder, PROGRAM, compare, frames_of_stubs, have, many_functions,
    named_callers, sampled,
};

const MODES: [&str; 4] = [
    "function-coverage",
    "block-coverage",
    "call-graph",
    "call-edges",
];

fn can(compiler: &str) -> bool {
    have(compiler, "AArch64") && have("qemu-aarch64", "AArch64")
}

#[test]
fn programs_in_cpp_with_exceptions_are_counted_exactly() {
    let files = "-Wl,-q -o p main.cc other.cc";
    let clang = "clang++-19 --target=aarch64-linux-gnu";
    let lld = "-fuse-ld=/usr/bin/ld.lld-19";
    for (command, needs) in [
        (
            format!("aarch64-linux-gnu-g++ -O2 {files}"),
            "aarch64-linux-gnu-g++",
        ),
        (
            format!(
                "aarch64-linux-gnu-g++ -O1 -mbranch-protection=standard -ffunction-sections -Wl,--gc-sections {files}"
            ),
            "aarch64-linux-gnu-g++",
        ),
        (
            format!("aarch64-linux-gnu-g++ -O2 -static {files}"),
            "aarch64-linux-gnu-g++",
        ),
        (
            format!("{clang} -O2 {lld} -ffunction-sections -Wl,--gc-sections {files}"),
            "clang++-19",
        ),
        (format!("{clang} -O2 {lld} -static {files}"), "clang++-19"),
        // As distributions link.
        (
            "aarch64-linux-gnu-g++ -O2 -o p main.cc other.cc".to_owned(),
            "aarch64-linux-gnu-g++",
        ),
        (
            format!("{clang} -O2 {lld} -o p main.cc other.cc"),
            "clang++-19",
        ),
    ] {
        if !can(needs) || command.contains("lld") && !have("/usr/bin/ld.lld-19", &command) {
            continue;
        }
        let folder = Folder::built(&[("main.cc", CPP_MAIN), ("other.cc", CPP_OTHER)], &command);
        for names in compare(&folder, &[], &command) {
            assert!(names.contains("main"), "{command}: {names:?}");
        }
    }
}

#[test]
fn coverage_and_calls_are_those_of_exact_counts() {
    if !can("aarch64-linux-gnu-gcc") {
        return;
    }
    for options in [
        "",
        "-no-pie ",
        "-static ",
        "-static-pie ",
        "-mbranch-protection=standard ",
    ] {
        let command = format!("aarch64-linux-gnu-gcc -O2 {options}-Wl,-q -o p p.c");
        let folder = Folder::built(&[("p.c", PROGRAM)], &command);
        for arguments in [&[][..], &["x", "y"]] {
            let compared = compare(&folder, arguments, &command);
            assert!(compared.iter().all(|names| names.len() > 4));
        }
    }
}

/// Exclusive pairs by hand, one of which begins its function and one of which is in several blocks; a routine
/// that gets something in `x16`; a literal that is loaded first.
const BY_HAND: &str = r#"
#include <stdio.h>
#include <string.h>
long total, highest;
__attribute__((noinline)) long add(long *p, long n) { long o, t; int s;
  __asm__ volatile("1: ldaxr %0,[%3]\n add %1,%0,%4\n stlxr %w2,%1,[%3]\n cbnz %w2,1b" : "=&r"(o), "=&r"(t), "=&r"(s) : "r"(p), "r"(n) : "memory"); return o; }
__attribute__((noinline)) long maximum(long *p, long n) { long o; int s;
  __asm__ volatile("1: ldaxr %0,[%2]\n cmp %0,%3\n b.ge 2f\n stlxr %w1,%3,[%2]\n cbnz %w1,1b\n2:" : "=&r"(o), "=&r"(s) : "r"(p), "r"(n) : "memory", "cc"); return o; }
__attribute__((noinline)) long parts(long *p, long n) { long o, t; int s;
  __asm__ volatile("1: ldaxr %0,[%3]\n tbz %4,#0,3f\n add %1,%0,#3\n b 4f\n3: add %1,%0,#5\n4: stlxr %w2,%1,[%3]\n cbnz %w2,1b" : "=&r"(o), "=&r"(t), "=&r"(s) : "r"(p), "r"(n) : "memory"); return o; }
long first(long *p);
__asm__(".text\n.type first,%function\n.globl first\nfirst:\n.cfi_startproc\n ldaxr x1,[x0]\n add x1,x1,#1\n stlxr w2,x1,[x0]\n cbnz w2,first\n mov x0,x1\n ret\n.cfi_endproc\n.size first,.-first\n");
long sixteen(long);
__asm__(".type sixteen,%function\nsixteen:\n mov x16,x0\n mov x17,x30\n bl inner\n mov x30,x17\n ret\n.size sixteen,.-sixteen\n.type inner,%function\ninner:\n add x0,x16,#7\n ret\n.size inner,.-inner\n");
long literal(long);
__asm__(".type literal,%function\nliteral:\n.cfi_startproc\n ldr x1,1f\n add x0,x0,x1\n ret\n.cfi_endproc\n.size literal,.-literal\n.balign 8\n1: .quad 0x123456\n");
const char *names[] = {"a", "bc"};
__attribute__((noinline)) const char *name(int i) { return names[i & 1]; }
int main(int c, char **v) {
  for (long i = 0; i < 400; i++) {
    add(&total, i); maximum(&highest, i * 7 % 301); parts(&total, i);
    if (i % 5 == 0) first(&total);
    total += strlen(name((int)i));
  }
  printf("%ld %ld %ld %ld\n", total, highest, sixteen(35), literal(c));
  return 0;
}
"#;

#[test]
fn exclusive_pairs_and_routines_with_conventions_of_their_own_go_on_working() {
    if !can("aarch64-linux-gnu-gcc") {
        return;
    }
    for options in ["", "-mbranch-protection=standard ", "-O0 "] {
        let command =
            format!("aarch64-linux-gnu-gcc -O2 -mno-outline-atomics {options}-Wl,-q -o p p.c");
        let folder = Folder::built(&[("p.c", BY_HAND)], &command);
        let compared = compare(&folder, &[], &command);
        for (mode, names) in compared.iter().enumerate() {
            // In one function the blocks of a pair cannot be told apart without a counter between its halves.
            for name in ["add", "maximum", "first", "inner", "literal", "name"] {
                assert!(
                    names.contains(name),
                    "{command}: mode {mode}: {name}: {names:?}"
                );
            }
        }
    }
}

const LIBRARY: &str = "
#include <stdexcept>
struct Shape { virtual int area() const = 0; virtual ~Shape() {} };
struct Square : Shape { int a; Square(int a) : a(a) {} int area() const override; };
int Square::area() const { if (a % 9 == 8) throw std::runtime_error(\"nine\"); return a * a; }
extern \"C\" Shape *make(int a) { return new Square(a); }
extern \"C\" __attribute__((noinline)) int apply(int (*f)(int), int x) { return f(x) + 1; }
static __attribute__((noinline)) int local(int x) { return x * 3; }
extern \"C\" int through(int x) { return apply(local, x); }
extern \"C\" int unused(int x) { return local(x); }
extern \"C\" int caught(int n) { int k = 0; for (int i = 0; i < n; i++) try { Shape *s = make(i); k += s->area(); delete s; } catch (std::exception &) { k++; } return k; }
";
const USER: &str = "
#include <stdio.h>
int caught(int); int through(int); int apply(int (*)(int), int);
static int own(int x) { return x ^ 1; }
int main(void) { long s = 0; for (int i = 0; i < 90; i++) s += caught(i) + through(i) + apply(own, i); printf(\"%ld\\n\", s); return 0; }
";

#[test]
fn shared_libraries_are_counted_exactly_and_throw() {
    if !can("aarch64-linux-gnu-g++") {
        return;
    }
    for options in ["", "-mbranch-protection=standard ", "-Wl,-Bsymbolic "] {
        let library = "aarch64-linux-gnu-g++ -O2 -shared -fPIC -Wl,-q";
        let command = format!("{library} {options}-o p q.cc");
        let folder = Folder::built(&[("q.cc", LIBRARY), ("user.c", USER)], &command);
        std::fs::copy(folder.path("p"), folder.path("libq.so")).expect("the folder is ours");
        let build = "aarch64-linux-gnu-gcc -O2 -o user user.c -L. -lq";
        let mut words = build.split(' ');
        let built = std::process::Command::new(words.next().unwrap_or_default())
            .args(words)
            .arg("-Wl,-rpath,$ORIGIN")
            .current_dir(folder.path(""))
            .status();
        assert!(built.is_ok_and(|status| status.success()), "{build}");
        let with = |name: &str| {
            std::fs::copy(folder.path(name), folder.path("libq.so")).expect("the folder is ours");
            let said = folder.run(folder.path("user"), &[]);
            assert!(said.status.success(), "{options}{name}: {said:?}");
            said.stdout
        };
        let plain = with("p");
        folder.postlink(&["instrument", "p", "-o", "p.exact"]);
        assert_eq!(with("p.exact"), plain);
        let (_, calls) = folder.read_exact();
        for mode in MODES {
            let profile = folder.profile_by(mode, 1, &|inst| assert_eq!(with(inst), plain));
            let mut compared = 0;
            for f in &profile.functions {
                let name = f.display_name();
                let Some(exact) = calls.get(&(f.address as u64)) else {
                    continue;
                };
                compared += 1;
                assert_eq!(f.is_covered(), *exact > 0, "{options}{mode} {name}");
                if mode.starts_with("call") {
                    assert_eq!(f.call_count, *exact, "{options}{mode} {name}");
                }
            }
            assert!(compared >= 6, "{options}{mode}: {compared}");
        }
    }
}

#[test]
fn sampled_edges_name_the_callers() {
    if !can("aarch64-linux-gnu-gcc") {
        return;
    }
    for options in ["", "-mbranch-protection=standard ", "-static "] {
        let command = format!("aarch64-linux-gnu-gcc -O2 {options}-Wl,-q -o p p.c");
        let folder = Folder::built(&[("p.c", PROGRAM)], &command);
        let profile = folder.profile("call-edges", &[&[]]);
        named_callers(&profile, &command);
    }
}

/// Memory between code and counters, so that these are farther away than one instruction reaches.
const FAR: &str = "\nchar between[4 << 20]; char *volatile there = between;\n";

/// Every word that is put in or changed, spoilt in several ways.
#[test]
fn what_is_changed_in_counters_at_entries_is_found() {
    if !can("aarch64-linux-gnu-gcc") {
        return;
    }
    const NOP: u32 = 0xd503_201f;
    for options in [
        "",
        "-mbranch-protection=standard ",
        "-fno-asynchronous-unwind-tables ",
    ] {
        let command = format!("aarch64-linux-gnu-gcc -O2 {options}-Wl,-q -o p p.c");
        let far = if options.is_empty() { FAR } else { "" };
        let folder = Folder::built(&[("p.c", &[PROGRAM, far].concat())], &command);
        let input = std::fs::read(folder.path("p")).unwrap();
        let proved = |output: &[u8]| {
            let options = postlink_verify::Options::default();
            postlink_verify::verify(&input, output, &options).is_ok_and(|report| report.is_proved())
        };
        for mode in ["function-coverage", "call-graph", "call-edges"] {
            folder.postlink(&["instrument", "--mode", mode, "p", "-o", "p.inst"]);
            let output = std::fs::read(folder.path("p.inst")).unwrap();
            assert!(proved(&output), "{command}: {mode}");
            let places = |file: &[u8], name: &str| {
                let elf = postlink_elf::elf::Elf::parse(file).unwrap();
                let (_, section) = elf.section(name).unwrap();
                let from = section.offset as usize;
                from..from + (section.end() - section.addr) as usize
            };
            let text = places(&input, ".text");
            let words = text
                .clone()
                .step_by(4)
                .filter(|&i| input[i..i + 4] != output[i..i + 4])
                .chain(places(&output, ".text.entries").step_by(4));
            let (mut tried, mut missed) = (0, vec![]);
            for at in words {
                let word = u32::from_le_bytes(output[at..at + 4].try_into().unwrap());
                // Of a branch the distance, else a register; another operation; nothing.
                for spoilt in [word ^ 1, word ^ 1 << 5, word ^ 1 << 30, word ^ 1 << 29, NOP] {
                    // Which of the counters is written to does not matter for what the program does.
                    let page = word & 0x1f00_0000 == 0x1000_0000
                        && spoilt & 0x9f00_001f == word & 0x9f00_001f;
                    let before = input.get(at..at + 4) == Some(&spoilt.to_le_bytes()[..]);
                    if spoilt == word || word == NOP || page || text.contains(&at) && before {
                        continue;
                    }
                    tried += 1;
                    let mut damaged = output.clone();
                    damaged[at..at + 4].copy_from_slice(&spoilt.to_le_bytes());
                    if proved(&damaged) {
                        missed.push(format!("{at:#x}: {word:08x} became {spoilt:08x}"));
                    }
                }
            }
            assert!(tried > 200, "{command}: {mode}: {tried}");
            assert!(missed.is_empty(), "{command}: {mode}: {missed:#?}");
        }
    }
}

/// In copies whose blocks count, which are emitted anew: each store is to go where counters are, through a
/// register that the program does not need.
#[test]
fn what_is_changed_in_counters_of_blocks_is_found() {
    if !can("aarch64-linux-gnu-gcc") {
        return;
    }
    for (far, least) in [("", 60), (FAR, 100)] {
        spoil_counters_of_blocks(&[PROGRAM, far].concat(), !far.is_empty(), least);
    }
}

fn spoil_counters_of_blocks(program: &str, far: bool, least: usize) {
    let command = "aarch64-linux-gnu-gcc -O2 -Wl,-q -o p p.c";
    let folder = Folder::built(&[("p.c", program)], command);
    let input = std::fs::read(folder.path("p")).unwrap();
    let mode = "block-coverage";
    folder.postlink(&["instrument", "--mode", mode, "p", "-o", "p.inst"]);
    let output = std::fs::read(folder.path("p.inst")).unwrap();
    let proved = |output: &[u8]| {
        let options = postlink_verify::Options::default();
        postlink_verify::verify(&input, output, &options).is_ok_and(|report| report.is_proved())
    };
    assert!(proved(&output));
    let word = |at: usize| u32::from_le_bytes(output[at..at + 4].try_into().unwrap());
    let last = if far { 2 } else { 1 };
    let counters = (0..output.len() - 12).step_by(4).filter(|&at| {
        let (page, add, store) = (word(at), word(at + 4), word(at + 4 * last));
        let a = page & 31;
        let forms = if far {
            page & 0x9f00_0000 == 0x9000_0000 && add & 0xffc0_03ff == 0x9100_0000 | a << 5 | a
        } else {
            page & 0x9f00_0000 == 0x1000_0000
        };
        forms && store & 0xffe0_0fff == 0x3800_0000 | a << 5 | a
    });
    let (mut tried, mut missed) = (0, vec![]);
    for at in counters {
        // Another register; an address that ends in zero, which covers nothing.
        let register = (0..=last).flat_map(|i| [(4 * i, word(at + 4 * i) ^ 1)]);
        let zero = if far {
            (4, word(at + 4) & !(0xff << 10))
        } else {
            (0, word(at) ^ 1 << 29)
        };
        let add = far.then(|| (4, word(at + 4) ^ 1 << 5));
        let elsewhere = [(4 * last, word(at + 4 * last) ^ 1 << 5)];
        for (offset, spoilt) in register.chain([zero]).chain(add).chain(elsewhere) {
            tried += 1;
            let mut damaged = output.clone();
            damaged[at + offset..at + offset + 4].copy_from_slice(&spoilt.to_le_bytes());
            if proved(&damaged) {
                missed.push(format!("{at:#x} + {offset}: became {spoilt:08x}"));
            }
        }
    }
    assert!(tried > least, "{tried}");
    assert!(missed.is_empty(), "{missed:#?}");
}

#[test]
fn counters_are_the_file_with_pages_of_4_16_and_64_kib() {
    if !can("aarch64-linux-gnu-gcc") {
        return;
    }
    for options in ["", "-static "] {
        let command = format!("aarch64-linux-gnu-gcc -O2 {options}-Wl,-q -o p p.c");
        let folder = Folder::built(&[("p.c", PROGRAM)], &command);
        for mode in MODES {
            let mut first: Option<Vec<(String, bool, u64)>> = None;
            for page in ["4096", "16384", "65536"] {
                for raw in std::fs::read_dir(folder.0.path()).unwrap().flatten() {
                    if raw.path().extension().is_some_and(|e| e == "mipraw") {
                        std::fs::remove_file(raw.path()).unwrap();
                    }
                }
                let profile = folder.profile_by(mode, 1, &|inst| {
                    let done = std::process::Command::new("qemu-aarch64")
                        .args(["-p", page, "-L", "/usr/aarch64-linux-gnu"])
                        .arg(folder.path(inst))
                        .env("LLVM_MIP_PROFILE_FILENAME", "run.%h.mipraw")
                        .current_dir(folder.0.path())
                        .output()
                        .unwrap();
                    assert!(done.status.success() && !done.stdout.is_empty(), "{done:?}");
                });
                let of_program =
                    |name: &str| ["main", "work", "pick", "deep", "never"].contains(&name);
                let all = profile.functions.iter();
                let found: Vec<(String, bool, u64)> = all
                    .map(|f| (f.display_name().to_string(), f.is_covered(), f.call_count))
                    .filter(|f| of_program(&f.0))
                    .collect();
                assert!(found.len() >= 4 && found.iter().any(|f| !f.1), "{found:?}");
                let before = first.get_or_insert_with(|| found.clone());
                assert_eq!(*before, found, "{mode}, {options}, pages of {page} bytes");
            }
        }
    }
}

#[test]
fn stubs_are_described_for_unwinding() {
    if !can("aarch64-linux-gnu-gcc") {
        return;
    }
    // Pages of 4 KiB leave little space after code.
    for (page, places) in [("0x10000", 1), ("0x1000", 2)] {
        let command = format!(
            "aarch64-linux-gnu-gcc -O1 -Wl,-q,-z,max-page-size={page},-z,separate-code -o p p.c"
        );
        let folder = Folder::built(&[("p.c", &many_functions(200))], &command);
        let (found, other) = frames_of_stubs(&folder, "call-graph");
        assert_eq!(found, places, "{page}");
        assert!(other > 100, "{other} bytes of overwritten instructions");
        let names = compare(&folder, &[], "many functions");
        assert!(names.iter().all(|n| n.contains("f199")));
    }
}

#[test]
fn code_that_reaches_into_the_page_of_the_next_segment_is_found() {
    if !can("aarch64-linux-gnu-gcc") {
        return;
    }
    let command = "aarch64-linux-gnu-gcc -O2 -static -Wl,-q -o p p.c";
    let folder = Folder::built(&[("p.c", PROGRAM)], command);
    let input = std::fs::read(folder.path("p")).unwrap();
    let mode = "function-coverage";
    folder.postlink(&["instrument", "--mode", mode, "p", "-o", "p.inst"]);
    let output = std::fs::read(folder.path("p.inst")).unwrap();
    // No page of 64 KiB for one program header, and no more for what is in the file.
    assert!(
        output.len() < input.len() + (24 << 10),
        "{} -> {}",
        input.len(),
        output.len()
    );
    let proved = |output: &[u8]| {
        let options = postlink_verify::Options::default();
        postlink_verify::verify(&input, output, &options).is_ok_and(|report| report.is_proved())
    };
    assert!(proved(&output));
    let word = |at: usize| u64::from_le_bytes(output[at..at + 8].try_into().unwrap());
    let (mut grown, headers) = (0, word(32) as usize);
    for at in (0..usize::from(output[56])).map(|i| headers + 56 * i) {
        let (kind, size, memory) = (word(at), word(at + 32), word(at + 40));
        // PT_LOAD of code; of data.
        let more: &[(usize, u64)] = match (kind & 0xffff_ffff, kind >> 32) {
            (1, 5) => &[(32, size + 0x20000), (40, memory + 0x20000)],
            (1, 6) => &[(32, size + 0x1000)],
            _ => continue,
        };
        grown += 1;
        let mut damaged = output.clone();
        for (offset, value) in more {
            damaged[at + offset..at + offset + 8].copy_from_slice(&value.to_le_bytes());
        }
        assert!(!proved(&damaged), "the segment at {:#x}", word(at + 16));
    }
    assert!(grown >= 2);
}

/// Without a library, whose start-up code may have no landing pads: all pages are guarded, and functions are
/// called through pointers.
const GUARDED: &str = "
static long call(long n, long a, long b, long c) {
  register long x8 __asm__(\"x8\") = n, x0 __asm__(\"x0\") = a, x1 __asm__(\"x1\") = b, x2 __asm__(\"x2\") = c;
  __asm__ volatile(\"svc 0\" : \"+r\"(x0) : \"r\"(x8), \"r\"(x1), \"r\"(x2) : \"memory\"); return x0; }
__attribute__((noinline)) int one(int x) { return x * 3; }
__attribute__((noinline)) int two(int x) { return x + 9; }
FIRST
int (*volatile table[2])(int) = {one, two};
__attribute__((noinline)) int direct(int x) { return table[x & 1](x) + table[(x + 1) & 1](x); }
__attribute__((noinline)) int body(int n) { int s = 0; for (int i = 0; i < n; i++) s += direct(i); return s; }
void _start(void) { int s = body(100); char c = '0' + s % 10; call(64, 1, (long)&c, 1); call(94, 0, 0, 0); __builtin_unreachable(); }
";

#[test]
fn landing_pads_stay_first_where_pages_are_guarded() {
    if !can("aarch64-linux-gnu-gcc") {
        return;
    }
    let command = "aarch64-linux-gnu-gcc -O2 -ffreestanding -nostdlib -static -mbranch-protection=standard \
                   -Wl,-z,force-bti -Wl,-q -o p p.c";
    // A function without a landing pad ends the program: the guard is on.
    let bare = "__asm__(\".type bare,%function\\nbare: mov w0,#1\\n ret\\n\"); int bare(int);\n#define one bare";
    let folder = Folder::built(&[("p.c", &GUARDED.replace("FIRST", bare))], command);
    assert!(!folder.run(folder.path("p"), &[]).status.success());
    let folder = Folder::built(&[("p.c", &GUARDED.replace("FIRST", ""))], command);
    assert_eq!(folder.run(folder.path("p"), &[]).stdout.len(), 1);
    for names in compare(&folder, &[], command) {
        for name in ["one", "two", "direct", "body"] {
            assert!(names.contains(name), "{name}: {names:?}");
        }
    }
}

/// Functions that begin with what signs are put back otherwise, as what lets calls in would be behind the counter.
#[test]
fn functions_that_sign_count_behind_a_landing_pad_where_pages_are_guarded() {
    if !can("aarch64-linux-gnu-gcc") {
        return;
    }
    let command = "aarch64-linux-gnu-gcc -O2 -ffreestanding -nostdlib -static -mbranch-protection=standard \
                   -Wl,-z,force-bti -o p p.c";
    let folder = Folder::built(&[("p.c", &GUARDED.replace("FIRST", ""))], command);
    for mode in ["call-graph", "call-edges"] {
        let profile = folder.profile(mode, &[&[]]);
        let of = |name: &str| {
            let found = profile.functions.iter().find(|f| f.name == name.as_bytes());
            found.unwrap_or_else(|| panic!("{mode}: no function {name}"))
        };
        let (direct, body) = (of("direct"), of("body"));
        let elf = std::fs::read(folder.path("p")).expect("the folder is ours");
        let elf = postlink_elf::elf::Elf::parse(&elf).expect("a program");
        let first = elf.bytes_at(direct.address as u64, 4).expect("code");
        // paciasp
        assert_eq!(first, [0x3f, 0x23, 0x03, 0xd5]);
        assert_eq!((direct.call_count, body.call_count), (100, 1), "{mode}");
        if mode == "call-edges" {
            let inside = body.address + 1..=body.address + i64::from(body.size);
            let all = direct.edges.iter().all(|e| inside.contains(&e.source));
            let weight: u64 = direct.edges.iter().map(|e| e.weight).sum();
            assert!(all && weight == sampled(100), "{:?}", direct.edges);
        }
    }
}

/// The functions are emitted anew there, and return addresses are others: callers are those of the input all the same.
#[test]
fn calls_of_programs_with_more_code_than_branches_reach_are_counted() {
    if !can("aarch64-linux-gnu-gcc") {
        return;
    }
    let source = include_str!("../../../tests/cases/aarch64_far_text.c");
    let command = "aarch64-linux-gnu-gcc -O2 -Wl,-q -o p p.c";
    let folder = Folder::built(&[("p.c", source)], command);
    let profile = folder.profile("call-graph", &[&[]]);
    let (_, exact) = folder.exact(&[]);
    let of = |name: &str| {
        let found = profile.functions.iter().find(|f| f.name == name.as_bytes());
        found.unwrap_or_else(|| panic!("no function {name}"))
    };
    for name in [
        "main",
        "near_leaf",
        "near_switch",
        "far_leaf",
        "far_cold",
        "both",
    ] {
        let function = of(name);
        let calls = exact.get(&(function.address as u64)).copied();
        assert_eq!(Some(function.call_count), calls, "{name}");
        assert!(function.call_count > 0, "{name}");
    }
    let [main, both, far_cold] = ["main", "both", "far_cold"].map(|name| of(name).order_sum);
    assert!(main < both && both < far_cold);
    let profile = folder.profile("call-edges", &[&[]]);
    assert!(!profile.callers.is_empty(), "nothing moved");
    let of = |name: &str| {
        let found = profile.functions.iter().find(|f| f.name == name.as_bytes());
        found.unwrap_or_else(|| panic!("no function {name}"))
    };
    for (callee, caller) in [("both", "main"), ("far_cold", "both")] {
        let (callee, caller) = (of(callee), of(caller));
        let inside = caller.address + 1..=caller.address + i64::from(caller.size);
        let all = callee.edges.iter().all(|e| inside.contains(&e.source));
        assert!(all, "{}: {:?}", callee.display_name(), callee.edges);
        let weight: u64 = callee.edges.iter().map(|e| e.weight).sum();
        assert_eq!(weight, sampled(callee.call_count));
    }
}
