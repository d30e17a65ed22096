//! What the dynamic loader, or the program itself, writes into code and tables that a rewriter copies.
//!
//! A program may change its code where it is writable, through a pointer, which leads to the old code.
//!
//! A program that is linked with `-z notext` may have dynamic relocations in its code and in its exception
//! tables. Their places stay what they were, so that a copy of such bytes keeps what is in the file, mostly
//! zeros: a call of address 0, or a type that catches everything. Such functions stay where they are.
//!
//! The real rewriter moves none of them. So that the checker is seen to refuse an output in which one has moved, the
//! relocations are taken away before the program is rewritten, and put back into both files.

mod support;

use std::process::Command;

use postlink_elf::elf::Elf;
use postlink_verify::{Options, Report};
use support::folder::Folder;
use support::{done, is_installed};

/// A function whose two absolute addresses the loader fills in: of another library, and of its own data.
const CODE: &str = r#"
.text
.globl k
.type k, @function
k: .cfi_startproc
 pushq %rbx
 .cfi_adjust_cfa_offset 8
 movabsq $imported, %rax
 call *%rax
 popq %rbx
 .cfi_adjust_cfa_offset -8
 movabsq $variable, %rcx
 addl (%rcx), %eax
 ret
 .cfi_endproc
.size k, .-k
.data
variable: .long 77
.section .note.GNU-stack, "", @progbits
"#;

const MAIN: &str = r#"
#include <stdio.h>
int k(int);
__attribute__((noinline, noipa)) int other(int x) { return x > 20 ? x / 2 : x * 3 + 1; }
int main(void) {
  int sum = 0;
  for (int i = 0; i < 50; i++) sum += k(other(i));
  printf("%d\n", sum);
  return 0;
}
"#;

const THROWS: &str = r#"
#include <new>
#include <stdexcept>
int raise(int i) {
  if (i % 3 == 0) throw std::invalid_argument("a");
  if (i % 3 == 1) throw std::bad_alloc();
  return i;
}
"#;

const CATCHES: &str = r#"
#include <cstdio>
#include <new>
#include <stdexcept>
int raise(int i);
__attribute__((noinline)) int caught(int i) {
  try {
    return raise(i);
  } catch (const std::bad_alloc &) {
    return 1;
  } catch (const std::invalid_argument &) {
    return 2;
  } catch (...) {
    return -1000;
  }
}
int main() {
  int sum = 0;
  for (int i = 0; i < 50; i++) sum = sum * 3 + caught(i);
  std::printf("%d\n", sum);
}
"#;

/// Runs a compiler in the folder.
fn compile(folder: &Folder, compiler: &str, arguments: &[&str]) {
    done(
        Command::new(compiler)
            .args(arguments)
            .current_dir(folder.dir()),
    );
}

/// Builds a program whose code has dynamic relocations.
fn build_code(folder: &Folder) {
    let write = |name: &str, text: &str| std::fs::write(folder.path(name), text).expect("ours");
    write("k.s", CODE);
    write("main.c", MAIN);
    write("imported.c", "int imported(int x) { return x / 3; }\n");
    compile(
        folder,
        "gcc",
        &[
            "-O2",
            "-fPIC",
            "-shared",
            "-o",
            "libimported.so",
            "imported.c",
        ],
    );
    compile(
        folder,
        "gcc",
        &[
            "-O2",
            "-fpie",
            "-pie",
            "-Wl,-z,notext,-q,-rpath,$ORIGIN",
            "main.c",
            "k.s",
            "-o",
            "app",
            "-L.",
            "-limported",
        ],
    );
}

/// Builds a program whose exception tables name types by dynamic relocations. Compilers make such tables for
/// large programs at fixed addresses; here they are made of small ones.
fn build_tables(folder: &Folder) {
    let write = |name: &str, text: &str| std::fs::write(folder.path(name), text).expect("ours");
    write("throws.cpp", THROWS);
    write("catches.cpp", CATCHES);
    compile(
        folder,
        "g++",
        &[
            "-O2",
            "-fPIC",
            "-shared",
            "-o",
            "libthrows.so",
            "throws.cpp",
        ],
    );
    compile(
        folder,
        "g++",
        &[
            "-O2",
            "-fno-pic",
            "-no-pie",
            "-S",
            "catches.cpp",
            "-o",
            "small.s",
        ],
    );
    let small = std::fs::read_to_string(folder.path("small.s")).expect("written above");
    let mut large = small
        .replace(
            "\t.byte\t0x3\n\t.uleb128 .LLSDATT",
            "\t.byte\t0\n\t.uleb128 .LLSDATT",
        )
        .replace("\t.long\t_ZTI", "\t.quad\t_ZTI");
    // The entry for everything, in front of the first type.
    for space in ["\n", "\n\n"] {
        let entry = format!("\t.long\t0{space}\t.quad\t_ZTI");
        large = large.replace(&entry, "\t.quad\t0\n\t.quad\t_ZTI");
    }
    assert!(large != small, "an unknown form of tables:\n{small}");
    write("large.s", &large);
    compile(
        folder,
        "g++",
        &[
            "-no-pie",
            "-Wl,-z,notext,-z,nocopyreloc,-q,-rpath,$ORIGIN",
            "large.s",
            "-o",
            "app",
            "-L.",
            "-lthrows",
        ],
    );
}

/// Places of dynamic relocations in sections of this name.
fn loaded_places(file: &[u8], section: &str) -> Vec<u64> {
    let elf = Elf::parse(file).expect("a linker made it");
    let (_, section) = elf.section(section).expect("it is there");
    let relocations = elf.dyn_relocs().expect("a linker made them");
    let places = relocations.iter().map(|r| r.addr);
    places
        .filter(|a| *a >= section.addr && *a < section.end())
        .collect()
}

/// Makes dynamic relocations at these places relocations of nothing; says where their types are in the file, and what
/// they were.
fn take_away(file: &mut [u8], places: &[u64]) -> Vec<(usize, u32)> {
    let at: Vec<usize> = {
        let elf = Elf::parse(file).expect("a linker made it");
        let relocations = elf.dyn_relocs().expect("a linker made them");
        let of = relocations.iter().filter(|r| places.contains(&r.addr));
        of.map(|r| {
            let addend = r.addend_at.expect("a relocation with an addend");
            let section = elf
                .sections
                .iter()
                .find(|s| s.is_alloc() && s.addr <= addend && addend < s.end());
            let section = section.expect("relocations are in a section");
            (section.offset + (addend - 8 - section.addr)) as usize
        })
        .collect()
    };
    at.into_iter()
        .map(|at| {
            let kind = u32::from_le_bytes(file[at..at + 4].try_into().expect("four bytes"));
            file[at..at + 4].fill(0);
            (at, kind)
        })
        .collect()
}

/// Rewrites the program as if it had no such relocations, and checks the output with them.
fn refused(folder: &Folder, section: &str, message: &str) {
    let read = |name: &str| std::fs::read(folder.path(name)).expect("written before");
    let with = read("app");
    let mut without = with.clone();
    let taken = take_away(&mut without, &loaded_places(&with, section));
    assert!(!taken.is_empty(), "no dynamic relocations in {section}");
    std::fs::write(folder.path("without"), &without).expect("ours");
    folder.postlink(&["instrument", "without", "-o", "counting"]);
    let output = read("counting");
    let mut with_again = output.clone();
    for &(at, kind) in &taken {
        assert_eq!(
            output[at..at + 4],
            [0; 4],
            "the table is elsewhere in the output"
        );
        with_again[at..at + 4].copy_from_slice(&kind.to_le_bytes());
    }
    let check = |input: &[u8], output: &[u8]| -> Report {
        postlink_verify::verify(input, output, &Options::default()).expect("both can be read")
    };
    assert!(
        check(&without, &output).is_proved(),
        "{:?}",
        check(&without, &output)
    );
    let report = check(&with, &with_again);
    let text = format!("{report:?}");
    assert!(!report.is_proved() && text.contains(message), "{text}");
}

#[test]
fn functions_into_which_the_loader_writes_stay() {
    if !cfg!(target_arch = "x86_64") || !is_installed("gcc") {
        return;
    }
    let folder = Folder::new();
    build_code(&folder);
    folder.comes_out_right(Some("the dynamic loader"));
    refused(&folder, ".text", "the dynamic loader writes");
}

#[test]
fn functions_whose_types_the_loader_fills_in_stay() {
    if !cfg!(target_arch = "x86_64") || !is_installed("g++") {
        return;
    }
    let folder = Folder::new();
    build_tables(&folder);
    folder.comes_out_right(Some("the dynamic loader"));
    refused(
        &folder,
        ".gcc_except_table",
        "the dynamic loader changes it",
    );
}

#[test]
fn unwind_tables_into_which_the_loader_writes_are_refused() {
    if !cfg!(target_arch = "x86_64") || !is_installed("gcc") {
        return;
    }
    let folder = Folder::new();
    std::fs::write(folder.path("k.c"), "int k(int x) { return x / 3; }\n").expect("ours");
    std::fs::write(folder.path("main.c"), MAIN).expect("ours");
    let sources = ["main.c", "k.c"];
    done(
        Command::new("gcc")
            .args(["-O2", "-fpie", "-pie", "-Wl,-q", "-o", "app"])
            .args(sources)
            .current_dir(folder.dir()),
    );
    folder.postlink(&["instrument", "app", "-o", "counting"]);
    let read = |name: &str| std::fs::read(folder.path(name)).expect("written before");
    // Compilers make no such relocations for our machines: one of data gets a place in the unwind table.
    let (at, place) = {
        let app = read("app");
        let elf = Elf::parse(&app).expect("a linker made it");
        let (_, table) = elf.section(".eh_frame").expect("there is one");
        let relocations = elf.dyn_relocs().expect("a linker made them");
        let (_, data) = elf.section(".data").expect("there is one");
        let of_data = relocations
            .iter()
            .find(|r| r.addr >= data.addr && r.addr < data.end());
        let addend = of_data.and_then(|r| r.addend_at).expect("of __dso_handle");
        let (_, list) = elf.section(".rela.dyn").expect("there is one");
        (
            (list.offset + (addend - 16 - list.addr)) as usize,
            table.addr + 0x20,
        )
    };
    let changed = |name: &str| {
        let mut file = read(name);
        file[at..at + 8].copy_from_slice(&place.to_le_bytes());
        file
    };
    let (input, output) = (changed("app"), changed("counting"));
    let report = postlink_verify::verify(&input, &output, &Options::default());
    let report = format!("{:?}", report.expect("both can be read"));
    assert!(
        report.contains("the dynamic loader writes") && report.contains("in the unwind table"),
        "{report}"
    );

    std::fs::write(folder.path("changed"), &input).expect("ours");
    let said = folder.attempt(&["instrument", "changed", "-o", "out"]);
    let message = String::from_utf8_lossy(&said.stderr).into_owned();
    assert_eq!(said.status.code(), Some(1), "{message}");
    assert!(
        message.contains(&format!("a dynamic relocation at {place:#x}"))
            && message.contains(".eh_frame"),
        "{message}"
    );
    assert!(!folder.path("out").exists());
}

/// Changes an operand of a function in writable memory half-way.
const WRITES: &str = r#"
#include <stdio.h>
#include <string.h>
__attribute__((noinline, noclone, section(".writable,\"awx\",@progbits#"))) int changed(int x) {
  return x + 0x11223344;
}
__attribute__((noinline, noipa)) void change(int (*f)(int)) {
  unsigned char *p = (unsigned char *)f;
  int old = 0x11223344, new = 7;
  for (int k = 0; k < 32; k++)
    if (!memcmp(p + k, &old, 4)) { memcpy(p + k, &new, 4); break; }
}
int main(void) {
  int s = 0;
  for (int i = 0; i < 100; i++) {
    if (i == 50) change(changed);
    s += changed(i);
  }
  printf("%d\n", s);
  return 0;
}
"#;

#[test]
fn functions_in_memory_that_the_program_may_write_to_stay() {
    if !cfg!(target_arch = "x86_64") || !is_installed("gcc") {
        return;
    }
    let folder = Folder::new();
    folder.compile("app", WRITES, &["-Wl,-q"]);
    folder.comes_out_right(Some("may write to"));

    // The same of a program whose segments are not writable as far as the rewriter sees.
    let app = std::fs::read(folder.path("app")).expect("written above");
    let at = (0..usize::from(app[56]))
        .map(|i| 64 + 56 * i)
        .find(|at| app[*at..at + 8] == [1, 0, 0, 0, 7, 0, 0, 0])
        .expect("a loaded segment that may be written and executed");
    let with_flags = |file: &[u8], flags: u8| {
        let mut file = file.to_vec();
        file[at + 4] = flags;
        file
    };
    std::fs::write(folder.path("fixed"), with_flags(&app, 5)).expect("ours");
    folder.postlink(&["instrument", "fixed", "-o", "counting"]);
    let output = std::fs::read(folder.path("counting")).expect("written above");
    // Program headers may be at another place in the output.
    let headers = u64::from_le_bytes(output[32..40].try_into().expect("eight bytes")) as usize;
    let mut output_again = output.clone();
    output_again[headers + at - 64 + 4] = 7;
    let report = postlink_verify::verify(&app, &output_again, &Options::default());
    let report = format!("{:?}", report.expect("both can be read"));
    assert!(
        report.contains("the program may write to was copied"),
        "{report}"
    );
}
