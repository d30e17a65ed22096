//! Commands on AArch64 programs, on any host: `tune` by way of an emulator, `inspect --json`, where
//! `instrument --blocks` says that blocks are.

use std::path::Path;
use std::process::{Command, Output};

use postlink_elf::elf::{Elf, SymbolTable};
use serde_json::Value;

mod support;
use support::done;

const POSTLINK: &str = env!("CARGO_BIN_EXE_postlink");

/// A program with a hot function that has a table, and one that stays for its data.
const SOURCE: &str = r#"
#include <stdio.h>
__attribute__((noinline, noipa)) int work(int k, int x) {
  switch (k) {
  case 0: return x + 5; case 1: return x * 7 % 999; case 2: return x - 9; case 3: return x ^ 0x55;
  case 4: return x << 1 & 1023; case 5: return x | 3; case 6: return x / 3; case 7: return x % 11; default: return x;
  }
}
__attribute__((noinline, noipa)) int stays(int x) {
  __asm__ volatile("b 1f\n .word 0xffffffff\n1:");
  return x;
}
int main(int argc, char **argv) {
  int s = argc;
  for (int i = 0; i < 3000; i++) s = work(i % 11, s + i);
  printf("%d\n", stays(s));
  return 0;
}
"#;

fn postlink(dir: &Path, arguments: &[&str]) -> Output {
    done(Command::new(POSTLINK).args(arguments).current_dir(dir))
}

/// Builds the program into a fresh directory; nothing, with a word about it, where that cannot be done.
fn build() -> Option<tempfile::TempDir> {
    build_with(&[])
}

/// The same with more options of the compiler.
fn build_with(options: &[&str]) -> Option<tempfile::TempDir> {
    let tools = ["aarch64-linux-gnu-gcc", "qemu-aarch64"];
    for tool in tools {
        if Command::new(tool).arg("--version").output().is_err() {
            eprintln!("SKIPPED: {tool} is not installed");
            return None;
        }
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(dir.path().join("app.c"), SOURCE).expect("the directory is ours");
    let mut compiler = Command::new("aarch64-linux-gnu-gcc");
    done(
        compiler
            .args(["-O2", "-Wl,-q", "-o", "app", "app.c"])
            .args(options)
            .current_dir(dir.path()),
    );
    Some(dir)
}

#[test]
fn tune_runs_the_workload_in_an_emulator_and_gives_a_proved_program() {
    let Some(dir) = build() else { return };
    let runner = "qemu-aarch64 -L /usr/aarch64-linux-gnu";
    let emulated = |name: &str| {
        let mut command = Command::new("qemu-aarch64");
        command.args(["-L", "/usr/aarch64-linux-gnu"]);
        done(command.arg(dir.path().join(name))).stdout
    };
    let expected = emulated("app");
    let arguments = [
        "tune", "app", "-o", "app.opt", "--runner", runner, "--", "{}",
    ];
    postlink(dir.path(), &arguments);
    assert_eq!(emulated("app.opt"), expected);
    let said = postlink(dir.path(), &["verify", "app", "app.opt", "--json"]);
    let certificate: Value = serde_json::from_slice(&said.stdout).expect("JSON");
    assert_eq!(certificate["machine"], "aarch64", "{certificate}");
    let functions = certificate["functions"].as_array().expect("functions");
    let verdict = functions.iter().find(|f| f["name"] == "work");
    assert_eq!(verdict.expect("work has moved")["verdict"], "proved");
}

/// On this machine, which is not the program's.
#[cfg(not(target_arch = "aarch64"))]
#[test]
fn tune_without_a_runner_says_what_runs_a_program_of_another_machine() {
    let fails = |dir: &Path, arguments: &[&str]| {
        let output = Command::new(POSTLINK)
            .args(["tune", "app", "-o", "app.opt"])
            .args(arguments)
            .current_dir(dir)
            .output()
            .expect("postlink runs");
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(!dir.join("app.opt").exists());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let Some(dynamic) = build() else { return };
    let Some(alone) = build_with(&["-static"]) else {
        return;
    };
    // Started at once, from a shell, and where nobody notices that it did not run.
    let ways: [&[&str]; 3] = [
        &["--", "{}"],
        &["--", "sh", "-c", "{}"],
        &["--", "sh", "-c", "{} || true"],
    ];
    for way in ways {
        let said = fails(dynamic.path(), way);
        for part in [
            "app is AArch64, this machine is",
            "--runner 'qemu-aarch64 -L ",
            "ld-linux-aarch64.so.1",
        ] {
            assert!(said.contains(part), "{way:?}: {said}");
        }
        let said = fails(alone.path(), way);
        assert!(said.contains("--runner qemu-aarch64)"), "{way:?}: {said}");
    }
    let said = fails(dynamic.path(), &["--runner", "qemu-aarch64", "--", "{}"]);
    assert!(said.contains("--runner 'qemu-aarch64 -L "), "{said}");
}

#[test]
fn inspect_tells_what_stays_and_why() {
    let Some(dir) = build() else { return };
    let said = postlink(dir.path(), &["inspect", "app", "--json"]);
    let inspection: Value = serde_json::from_slice(&said.stdout).expect("JSON");
    assert!(inspection["text"].as_u64().is_some_and(|bytes| bytes > 0));
    let pinned = inspection["pinned_functions"].as_array().expect("a list");
    let find = |name: &str| pinned.iter().find(|f| f["name"] == name);
    assert!(find("work").is_none(), "{pinned:?}");
    let stays = find("stays").expect("data among instructions");
    assert_eq!(stays["reason"], "not-instructions", "{stays}");
}

#[test]
fn blocks_are_where_instrument_says() {
    let Some(dir) = build() else { return };
    let arguments = [
        "instrument",
        "app",
        "-o",
        "app.inst",
        "--blocks",
        "app.blocks",
    ];
    postlink(dir.path(), &arguments);
    let text = std::fs::read_to_string(dir.path().join("app.blocks")).expect("it was written");
    let blocks: Vec<(u64, u64)> = text
        .lines()
        .map(|line| {
            let (from, to) = line.split_once(' ').expect("two addresses");
            let number = |word| u64::from_str_radix(word, 16).expect("hexadecimal");
            (number(from), number(to))
        })
        .collect();
    assert!(blocks.is_sorted() && blocks.len() > 10, "{text}");
    // The symbols of the copy know where functions begin.
    let entry = |file: &str| {
        let mut nm = Command::new("aarch64-linux-gnu-nm");
        let said = done(nm.arg(dir.path().join(file))).stdout;
        let said = String::from_utf8(said).expect("text");
        let line = said.lines().find(|l| l.ends_with(" T work"));
        let address = line.and_then(|l| l.split(' ').next()).expect("work");
        u64::from_str_radix(address, 16).expect("hexadecimal")
    };
    assert!(
        blocks.contains(&(entry("app"), entry("app.inst"))),
        "{text}"
    );
}

/// Its start-up code looks for its program headers by way of the ELF header, at the address where the linker put that.
#[test]
fn a_static_program_runs_stripped() {
    let Some(dir) = build_with(&["-static"]) else {
        return;
    };
    let emulated = |name: &str| {
        let mut command = Command::new("qemu-aarch64");
        done(command.arg(name).current_dir(dir.path())).stdout
    };
    let expected = emulated("app");
    postlink(
        dir.path(),
        &[
            "instrument",
            "app",
            "-o",
            "app.inst",
            "--profile",
            "app.plraw",
        ],
    );
    assert_eq!(emulated("app.inst"), expected);
    postlink(
        dir.path(),
        &["optimize", "app", "-p", "app.plraw", "-o", "app.opt"],
    );
    for name in ["app.inst", "app.opt"] {
        for tool in ["strip", "objcopy"] {
            let mut command = Command::new(format!("aarch64-linux-gnu-{tool}"));
            command.current_dir(dir.path());
            match tool {
                "strip" => command.args(["-o", "slim", name]),
                _ => command.args([name, "slim"]),
            };
            let said = done(&mut command);
            assert!(said.stderr.is_empty(), "{tool} {name}: {said:?}");
            assert_eq!(emulated("slim"), expected, "{tool} {name}");
        }
        postlink(dir.path(), &["verify", "app", name]);
    }
}

/// Start-up code of gcc registers unwind entries of static programs, and what is registered is searched
/// first. Where there is a search table as well, that would be in vain for new code.
#[test]
fn unwinding_new_code_does_not_search_registered_entries_in_vain() {
    let tool = "aarch64-linux-gnu-g++";
    if Command::new(tool).arg("--version").output().is_err() {
        eprintln!("SKIPPED: {tool} is not installed");
        return;
    }
    let Some(dir) = build() else { return };
    let at = |name: &str| dir.path().join(name);
    let source = "#include <cstdio>
__attribute__((noinline)) int thrower(int i) { if (i % 3) throw i; return i; }
int main() { int s = 0; for (int i = 0; i < 50; i++) try { s += thrower(i); } catch (int x) { s += 2 * x; } std::printf(\"%d\\n\", s); }\n";
    std::fs::write(at("e.cpp"), source).expect("the directory is ours");
    let options = [
        "-O2",
        "-static",
        "-Wl,-q,--eh-frame-hdr",
        "-o",
        "e",
        "e.cpp",
    ];
    done(Command::new(tool).args(options).current_dir(dir.path()));
    let emulated = |name: &str| {
        done(
            Command::new("qemu-aarch64")
                .arg(at(name))
                .current_dir(dir.path()),
        )
        .stdout
    };
    let expected = emulated("e");
    postlink(
        dir.path(),
        &["instrument", "e", "-o", "e.inst", "--profile", "e.plraw"],
    );
    assert_eq!(emulated("e.inst"), expected);
    postlink(
        dir.path(),
        &["optimize", "e", "-p", "e.plraw", "-o", "e.opt"],
    );
    assert_eq!(emulated("e.opt"), expected);
    postlink(dir.path(), &["verify", "e", "e.opt"]);
    let input = std::fs::read(at("e")).expect("the program");
    let elf = Elf::parse(&input).expect("ELF");
    // The only addresses in the table that code forms, by kept relocations of section symbols.
    let (section, _) = elf.section(".eh_frame").expect("unwind entries");
    let symbols = elf.symbols(SymbolTable::Static);
    let kept = elf.section(".rela.text").expect("kept relocations").1;
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    let mut lists = elf.section_data(kept).chunks_exact(24).filter_map(|e| {
        let symbol = symbols.get((number(&e[8..16]) >> 32) as usize)?;
        (symbol.section as usize == section).then(|| symbol.value + number(&e[16..24]))
    });
    let list = lists.next().expect("gcc's start-up code registers a list");
    assert_ne!(elf.bytes_at(list, 4), Some(&[0; 4][..]));
    for name in ["e.inst", "e.opt"] {
        let mut output = std::fs::read(at(name)).expect("the copy");
        let elf = Elf::parse(&output).expect("ELF");
        assert_eq!(elf.bytes_at(list, 4), Some(&[0; 4][..]), "{name}");
        // Nothing but the end of a list may be put there.
        let load = elf
            .segments
            .iter()
            .find(|s| s.kind == 1 && s.addr <= list && list - s.addr < s.file_size);
        let load = load.expect("it is loaded");
        let offset = (list - load.addr + load.offset) as usize;
        output[offset] = 8;
        std::fs::write(at("spoilt"), output).expect("the directory is ours");
        let verdict = Command::new(POSTLINK)
            .args(["verify", "e", "spoilt"])
            .current_dir(dir.path())
            .output()
            .expect("postlink runs");
        assert_eq!(verdict.status.code(), Some(1), "{name}");
    }
}

/// After a call that never comes back is code that others jump to, which may well begin with a conditional branch.
#[test]
fn functions_that_do_not_return_do_not_return_flags() {
    let Some(dir) = build() else { return };
    let source = r#"
#include <stdio.h>
#include <stdlib.h>
__attribute__((noipa, noreturn)) void fails(void) { puts("fails"); exit(3); }
int chooses(int);
__asm__(".text\n.globl chooses\n.type chooses, %function\nchooses: stp x29, x30, [sp, #-16]!\n"
        "cmp w0, #5\ntbz w0, #31, 2f\nbl fails\n2: b.eq 3f\nmov w0, #1\nldp x29, x30, [sp], #16\nret\n"
        "3: mov w0, #2\nldp x29, x30, [sp], #16\nret\n.size chooses, .-chooses\n");
int main(int argc, char **argv) { return printf("%d %d\n", chooses(5), chooses(argc)) < 0; }
"#;
    std::fs::write(dir.path().join("f.c"), source).expect("the directory is ours");
    let options = ["-O2", "-Wl,-q", "-o", "f", "f.c"];
    let mut compiler = Command::new("aarch64-linux-gnu-gcc");
    done(compiler.args(options).current_dir(dir.path()));
    let said = postlink(dir.path(), &["inspect", "f", "--json"]);
    let inspection: Value = serde_json::from_slice(&said.stdout).expect("JSON");
    let pinned = inspection["pinned_functions"].as_array().expect("a list");
    let of = |name: &str| pinned.iter().find(|f| f["name"] == name);
    assert!(
        of("fails").is_none() && of("chooses").is_none(),
        "{pinned:?}"
    );
}
