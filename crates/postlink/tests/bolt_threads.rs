//! Faults that users of llvm-bolt reported, rebuilt from their descriptions: each program comes out right here, and
//! each wrong output is one that the checker refuses.
//!
//! | test | thread of llvm/llvm-project |
//! |---|---|
//! | slots keep the number of their relocation | 207222, 106515 |
//! | relocations stay in the table that they are in | 206612 |
//! | addresses through the global offset table stay | 63730 |
//! | addresses with addends keep them | 97937 |
//! | what is weak and not there is at address 0 | 69136 |
//! | types that the loader fills in | 220298, in `code_that_is_written.rs` |

mod support;

use std::process::Command;

use postlink_elf::elf::Elf;
use postlink_verify::Options;
use support::folder::Folder;
use support::{done, is_installed};

/// Compiles the file `NAME` with this text.
fn compile(folder: &Folder, compiler: &str, name: &str, text: &str, flags: &[&str]) {
    std::fs::write(folder.path(name), text).expect("the folder is ours");
    done(
        Command::new(compiler)
            .arg("-O2")
            .arg(name)
            .args(flags)
            .current_dir(folder.dir()),
    );
}

/// Checks `opt` after a change.
fn refused(folder: &Folder, change: impl FnOnce(&mut Vec<u8>)) {
    let read = |name: &str| std::fs::read(folder.path(name)).expect("written before");
    let (input, mut output) = (read("app"), read("opt"));
    let proved = |output: &[u8]| {
        postlink_verify::verify(&input, output, &Options::default())
            .expect("both can be read")
            .is_proved()
    };
    assert!(proved(&output));
    change(&mut output);
    assert!(!proved(&output), "a wrong output was proved");
}

/// Where a section's bytes are in the file.
fn bytes_of(file: &[u8], section: &str) -> std::ops::Range<usize> {
    let elf = Elf::parse(file).expect("written by us");
    let (_, section) = elf.section(section).expect("it is there");
    section.offset as usize..(section.offset + section.size) as usize
}

fn is_wanted(tool: &str) -> bool {
    cfg!(target_arch = "x86_64") && is_installed(tool)
}

#[test]
fn slots_of_the_procedure_linkage_table_keep_the_number_of_their_relocation() {
    if !is_wanted("gcc") {
        return;
    }
    let folder = Folder::new();
    let library = "int long_name(int x) { return x / 3; }\nint other(int x) { return x * 5; }\n";
    compile(
        &folder,
        "gcc",
        "l.c",
        library,
        &["-fPIC", "-shared", "-o", "libl.so"],
    );
    // A resolver's slot is among those of imported functions.
    let program = r#"
#include <stdio.h>
int long_name(int);
int other(int);
__attribute__((target_clones("default,avx2"))) int cloned(int x) {
  int s = 0;
  for (int i = 0; i < x; i++) s += i ^ x;
  return s;
}
int main(void) {
  int s = 0;
  for (int i = 0; i < 100; i++) {
    s += cloned(i) + long_name(s);
    if (i % 7 == 0) s ^= other(i);
  }
  printf("%d\n", s);
  return 0;
}
"#;
    let flags = [
        "-fno-pie",
        "-no-pie",
        "-Wl,-z,lazy,-q,-rpath,$ORIGIN",
        "-o",
        "app",
        "-L.",
        "-ll",
    ];
    compile(&folder, "gcc", "app.c", program, &flags);
    folder.comes_out_right(None);
    let relocations = |file: &[u8]| bytes_of(file, ".rela.plt");
    refused(&folder, |output| {
        let at = relocations(output);
        assert!(at.len() >= 96, "four relocations of 24 bytes");
        let table = &mut output[at];
        let last = table.len() - 24;
        for i in 0..24 {
            table.swap(i, last + i);
        }
    });
}

#[test]
fn relocations_stay_in_the_table_that_they_are_in() {
    if !is_wanted("gcc") {
        return;
    }
    let folder = Folder::new();
    // Pointers at odd addresses need whole relocations; others, also between aligned words, are packed.
    let program = r#"
#include <stdio.h>
#define F(i) __attribute__((noinline)) int f##i(int x) { return x > i * 7 ? x * (i + 3) : x - i; }
F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7)
typedef int (*function)(int);
function plain[8] = { f0, f1, f2, f3, f4, f5, f6, f7 };
struct __attribute__((packed)) odd { char c; function f; };
struct odd odd[8] = { {1, f7}, {2, f6}, {3, f5}, {4, f4}, {5, f3}, {6, f2}, {7, f1}, {8, f0} };
int main(void) {
  int s = 0;
  for (int i = 0; i < 200; i++) s = s * 3 + plain[i & 7](i) + odd[(i >> 1) & 7].f(i) + odd[i & 7].c;
  printf("%d\n", s);
  return 0;
}
"#;
    let flags = [
        "-fpie",
        "-pie",
        "-Wl,-q,-z,pack-relative-relocs",
        "-o",
        "app",
    ];
    compile(&folder, "gcc", "app.c", program, &flags);
    let app = std::fs::read(folder.path("app")).expect("written above");
    let relocations = Elf::parse(&app).and_then(|elf| elf.dyn_relocs());
    let relocations = relocations.expect("a linker made them");
    let relative = relocations.iter().filter(|r| r.symbol == 0);
    assert!(
        relative
            .clone()
            .any(|r| r.addr % 2 == 1 && r.addend_at.is_some())
    );
    assert!(
        relative
            .clone()
            .any(|r| r.addr % 8 == 2 && r.addend_at.is_none())
    );
    folder.comes_out_right(None);
    refused(&folder, |output| {
        let at = bytes_of(output, ".relr.dyn");
        // The last bitmap loses a bit.
        let last = &mut output[at.end - 8];
        assert!(*last & 1 != 0, "a bitmap");
        *last ^= 0x10;
    });
    refused(&folder, |output| {
        let at = bytes_of(output, ".rela.dyn");
        output[at.start + 16] ^= 1;
    });
}

#[test]
fn addresses_through_the_global_offset_table_stay() {
    if !is_wanted("g++") {
        return;
    }
    let folder = Folder::new();
    let program = r#"
#include <cstdio>
struct A { virtual ~A(); virtual int f(int); };
struct B : A { int f(int) override; };
A::~A() {}
int A::f(int x) { return x + 1; }
int B::f(int x) { return x * 2; }
__attribute__((noipa)) A *make(int i) { return i % 3 ? new A : new B; }
__attribute__((noinline)) int look(A *a, int i) {
  if (B *b = dynamic_cast<B *>(a)) return b->f(i) * 3;
  return a->f(i);
}
int main() {
  int s = 0;
  for (int i = 0; i < 100; i++) {
    A *a = make(i);
    s = s * 5 + look(a, i);
    delete a;
  }
  std::printf("%d\n", s);
}
"#;
    let flags = ["-fPIC", "-pie", "-Wl,-q,--no-relax", "-o", "app"];
    compile(&folder, "g++", "app.cpp", program, &flags);
    folder.comes_out_right(None);
    // `mov slot(%rip), %rdx` in new code: the distance is such that the address is 0, as in the thread.
    refused(&folder, |output| {
        let (code, address) = {
            let elf = Elf::parse(output).expect("written by us");
            let (_, got) = elf.section(".got").expect("there is one");
            let (from, to) = (got.addr, got.end());
            let segment = elf.segments.iter().rfind(|s| s.flags & 1 != 0);
            let segment = segment.expect("new code");
            let bytes = &output[segment.offset as usize..][..segment.file_size as usize];
            let slot = |at: usize| {
                let d = i32::from_le_bytes(bytes[at + 3..at + 7].try_into().expect("four bytes"));
                (segment.addr + at as u64 + 7).wrapping_add_signed(d.into())
            };
            let at = (0..bytes.len() - 7).find(|&at| {
                bytes[at..].starts_with(&[0x48, 0x8b, 0x15]) && (from..to).contains(&slot(at))
            });
            let at = at.expect("the address of a type");
            (segment.offset as usize + at, segment.addr + at as u64)
        };
        let distance = -(address as i64 + 7) as i32;
        output[code + 3..code + 7].copy_from_slice(&distance.to_le_bytes());
    });
}

#[test]
fn addresses_with_addends_keep_them() {
    if !is_wanted("gcc") {
        return;
    }
    let folder = Folder::new();
    // The symbol is in no section, and the addend leads beyond what it names.
    let program = r#"
#include <stdio.h>
extern char start_of_metadata[];
__attribute__((noipa)) unsigned long at(unsigned long i) {
  return (unsigned long)(start_of_metadata + 0x12345) ^ i;
}
int main(void) {
  unsigned long s = 0;
  for (unsigned long i = 0; i < 100; i++) s = s * 3 + at(i);
  printf("%lu\n", s);
  return 0;
}
"#;
    let flags = [
        "-fno-pie",
        "-no-pie",
        "-Wl,-q,--defsym=start_of_metadata=0x5000000",
        "-o",
        "app",
    ];
    compile(&folder, "gcc", "app.c", program, &flags);
    folder.comes_out_right(None);
    refused(&folder, |output| {
        let with = 0x5012345_u32.to_le_bytes();
        let at = output.windows(4).rposition(|w| w == with);
        let at = at.expect("the number is in the code");
        output[at..at + 4].copy_from_slice(&0x5000000_u32.to_le_bytes());
    });
}

#[test]
fn what_is_weak_and_not_there_is_at_address_zero() {
    if !is_wanted("gcc") {
        return;
    }
    let folder = Folder::new();
    let program = r#"
#include <stdio.h>
__attribute__((weak)) int maybe(int);
__attribute__((noipa)) int asked(int i) { return maybe ? maybe(i) : i * 3; }
int main(void) {
  int s = 0;
  for (int i = 0; i < 100; i++) s = s * 3 + asked(i);
  printf("%d\n", s);
  return 0;
}
"#;
    for flags in [
        &["-fpie", "-pie", "-Wl,-q", "-o", "app"][..],
        &["-fno-pie", "-no-pie", "-Wl,-q", "-o", "app"],
        &["-static", "-Wl,-q", "-o", "app"],
    ] {
        compile(&folder, "gcc", "app.c", program, flags);
        folder.comes_out_right(None);
    }
}
