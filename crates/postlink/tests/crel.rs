//! Relocations that lld keeps in the compact encoding CREL: such a program is rewritten exactly as one whose
//! relocations are kept as records of `SHT_RELA`.

mod support;

use std::process::Command;

use postlink_elf::elf::Elf;
use postlink_elf::raw;
use support::folder::Folder;
use support::{done, is_installed};

const PRESETS: [&str; 4] = ["safe", "fast", "size", "max"];

/// Pointers in data, a jump table, an exception-free loop: relocations of code, constants and data.
const PROGRAM: &str = r#"
#include <stdio.h>
static __attribute__((noinline)) int f(int x) { return x * 3 + 1; }
static __attribute__((noinline)) int g(int x) { return x ^ 5; }
static int (*const volatile table[])(int) = {f, g};
int (*changed[])(int) = {g, f};
__attribute__((noinline)) long step(long s, int i) {
  switch (i % 7) {
  case 0: return s + 1;
  case 1: return s ^ i;
  case 2: return s + i * 2l;
  case 3: return s - 3;
  case 4: return s * 9;
  case 5: return s ^ 77;
  }
  return s / 2;
}
int main(void) {
  long s = 0;
  for (int i = 0; i < 1000; i++) s = step(s, i) + table[i & 1](i) + changed[i % 3 == 0](i);
  printf("%ld\n", s);
  return 0;
}
"#;

/// Builds `NAME` with clang and lld, with relocations in one encoding.
fn build(folder: &Folder, name: &str, encoding: &[&str], flags: &[&str]) -> Vec<u8> {
    let file = folder.path("app.c");
    std::fs::write(&file, PROGRAM).expect("the folder is ours");
    done(
        Command::new("clang-22")
            .args(["-O1", "-fuse-ld=lld", "-Wl,-q,--build-id=none", "-o", name])
            .args(encoding)
            .args(flags)
            .arg("app.c")
            .current_dir(folder.dir()),
    );
    std::fs::read(folder.path(name)).expect("it was linked")
}

const CREL: [&str; 2] = ["-Wa,--crel", "-Wa,--allow-experimental-crel"];

/// The contents of all loadable segments.
fn loaded(file: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let elf = Elf::parse(file).expect("written by us");
    let loads = elf.segments.iter().filter(|s| s.kind == raw::PT_LOAD);
    loads
        .map(|s| {
            let bytes = elf.bytes_at(s.addr, s.file_size);
            (s.addr, bytes.expect("it is in the file").to_vec())
        })
        .collect()
}

/// Runs a program, on an emulator if there is one, and gives what it says.
fn run(folder: &Folder, emulator: &[&str], program: &str, profile: &str) -> String {
    let program = folder.path(program);
    let mut command = match emulator {
        [] => folder.command(&program, &[]),
        [emulator, arguments @ ..] => {
            let mut command = folder.command(std::path::Path::new(emulator), arguments);
            command.arg(program);
            command
        }
    };
    let output = done(command.env("POSTLINK_PROFILE", folder.path(profile)));
    String::from_utf8(output.stdout).expect("output is UTF-8")
}

fn same_as_records(flags: &[&str], emulator: &[&str]) {
    let folder = Folder::new();
    let compact = build(&folder, "compact", &CREL, flags);
    let records = build(&folder, "records", &[], flags);
    let (compact, records) = (
        Elf::parse(&compact).expect("linked by lld"),
        Elf::parse(&records).expect("linked by lld"),
    );
    let encoded = |s: &postlink_elf::elf::Section<'_>| s.kind == raw::SHT_CREL;
    assert!(compact.sections.iter().any(encoded), "nothing was encoded");
    assert!(!records.sections.iter().any(encoded));
    let all = compact.kept_relocs().expect("both encodings can be read");
    assert!(all.len() > 20, "{} relocations", all.len());
    let mut of_records = records.kept_relocs().expect("both encodings can be read");
    // lld has the sections in another order.
    let mut all = all;
    all.sort_unstable_by_key(|r| (r.addr, r.kind, r.addend));
    of_records.sort_unstable_by_key(|r| (r.addr, r.kind, r.addend));
    assert_eq!(all, of_records);

    let plain = run(&folder, emulator, "records", "none");
    for name in ["compact", "records"] {
        let counting = format!("{name}.counting");
        folder.postlink(&["instrument", name, "-o", &counting]);
        let profile = format!("{name}.plraw");
        assert_eq!(run(&folder, emulator, &counting, &profile), plain);
    }
    for preset in PRESETS {
        let optimized = |name: &str| {
            let (profile, output) = (format!("{name}.plraw"), format!("{name}.opt"));
            let said = folder.attempt(&[
                "optimize", name, "-p", &profile, "-o", &output, "--preset", preset,
            ]);
            let said = String::from_utf8_lossy(&said.stderr).into_owned();
            assert!(said.contains("proved: "), "{said}");
            assert!(!said.contains("could not be proved"), "{said}");
            assert_eq!(run(&folder, emulator, &output, "none"), plain, "{preset}");
            std::fs::read(folder.path(&output)).expect("it was written")
        };
        assert_eq!(
            loaded(&optimized("compact")),
            loaded(&optimized("records")),
            "{preset}"
        );
    }
}

#[test]
fn programs_with_compact_relocations_come_out_as_those_with_records() {
    if cfg!(target_arch = "x86_64") && is_installed("clang-22") && is_installed("ld.lld-22") {
        same_as_records(&[], &[]);
        same_as_records(&["-no-pie"], &[]);
    }
}

#[test]
fn programs_for_aarch64_with_compact_relocations_come_out_as_those_with_records() {
    let tools = [
        "clang-22",
        "ld.lld-22",
        "qemu-aarch64",
        "aarch64-linux-gnu-gcc",
    ];
    if tools.iter().all(|tool| is_installed(tool)) {
        same_as_records(
            &["--target=aarch64-linux-gnu"],
            &["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"],
        );
    }
}

#[test]
fn damaged_compact_relocations_are_an_error() {
    if !(cfg!(target_arch = "x86_64") && is_installed("clang-22") && is_installed("ld.lld-22")) {
        return;
    }
    let folder = Folder::new();
    let file = build(&folder, "app", &CREL, &[]);
    let at = {
        let elf = Elf::parse(&file).expect("linked by lld");
        let (_, section) = elf.section(".crel.text").expect("relocations of code");
        section.offset as usize
    };
    let mut damaged = file.clone();
    // The number of relocations, in seven bits of each byte.
    damaged[at..at + 4].copy_from_slice(&[0xff, 0xff, 0xff, 0x7f]);
    std::fs::write(folder.path("damaged"), &damaged).expect("the folder is ours");
    let said = folder.attempt(&["instrument", "damaged", "-o", "out"]);
    let text = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(!said.status.success());
    assert!(
        text.contains(".crel.text") && text.contains("33554431 relocations"),
        "{text}"
    );
    let verified = postlink_verify::verify(&file, &damaged, &Default::default());
    let error = verified.expect_err("it cannot be read").to_string();
    assert!(error.contains(".crel.text"), "{error}");
}
