//! Names of symbols that are no plain functions, against those that BOLT itself gives.

use std::path::PathBuf;
use std::process::Command;

use postlink_bolt_symbols::{Functions, names};
use postlink_elf::elf::{Elf, SymbolTable};
use postlink_elf::unwind::eh_frame::EhFrame;
use postlink_isa::x86_64::X86_64;

/// `zpick` is a function that chooses an implementation; `aaa`, which ld puts in front of it in the table,
/// and `lonely` are of type `STT_GNU_IFUNC`. In section `bare` there is no symbol but the section's own.
const SOURCE: &str = "
    .file \"a.s\"
    .text
    .globl _start, aaa, zpick
    .type _start, @function
_start:
    call aaa
    call .bare
    ret
    .size _start, .-_start
    .type aaa, @gnu_indirect_function
aaa:
    .type zpick, @function
zpick:
    leaq target(%rip), %rax
    ret
    .size zpick, .-zpick
    .size aaa, .-aaa
    .p2align 4
    .type target, @function
target:
    movl $1, %eax
    ret
    .size target, .-target
    .p2align 4
    .type lonely, @gnu_indirect_function
lonely:
    leaq target(%rip), %rax
    ret
    .size lonely, .-lonely
    .p2align 4
    .globl last
    .type last, @function
last:
    call lonely
    ret
    .size last, .-last
    .section .bare, \"ax\", @progbits
    nop
    ret
";

fn build(dir: &tempfile::TempDir) -> PathBuf {
    let (source, path) = (dir.path().join("a.s"), dir.path().join("app"));
    std::fs::write(&source, SOURCE).expect("the directory is ours");
    let status = Command::new("gcc")
        .args([
            "-nostdlib",
            "-static",
            "-Wl,--emit-relocs",
            "-Wl,--build-id=none",
        ])
        .arg("-o")
        .args([&path, &source])
        .status();
    assert!(status.expect("gcc is needed for this test").success());
    path
}

#[test]
fn indirect_functions_are_no_functions_and_sections_are_symbols() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = build(&dir);
    let bytes = std::fs::read(&path).expect("gcc has just made it");
    let elf = Elf::parse(&bytes).expect("a program");
    let unwind = EhFrame::parse(&elf).expect("no unwind entries");
    let functions = Functions::find::<X86_64>(&elf, &unwind).expect("functions");
    let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
    let found: Vec<(u64, Vec<String>)> = functions
        .list()
        .iter()
        .enumerate()
        .filter(|(_, function)| !function.stub)
        .map(|(number, function)| {
            let names = functions.names_of(number).iter();
            (
                function.start,
                names.map(|name| text(&name.text())).collect(),
            )
        })
        .collect();
    let names: Vec<Vec<&str>> = found
        .iter()
        .map(|(_, names)| names.iter().map(String::as_str).collect())
        .collect();
    // A function symbol comes before an indirect one, which is a label of it and has no name by its file.
    let expected = [
        vec!["_start"],
        vec!["zpick"],
        vec!["target/1", "target/a.s/1"],
        vec!["lonely/1"],
        vec!["last"],
        vec![".bare/1"],
    ];
    assert_eq!(names, expected);

    // Whoever reads a profile finds the same first names.
    let at = names::at(&elf, found.iter().map(|function| function.0));
    for (address, names) in &found {
        assert_eq!(text(&at[address]), names[0], "{address:#x}");
    }
    let mut by_file = Vec::new();
    names::each(&elf, &elf.symbols(SymbolTable::Static), |named| {
        by_file.extend(named.by_file.map(|name| text(&name.text())));
    });
    assert_eq!(by_file, ["target/a.s/1"]);

    let bolt = Command::new("llvm-bolt-22")
        .arg(&path)
        .args(["-o", "/dev/null", "--print-disasm"])
        .output();
    let Ok(bolt) = bolt else {
        eprintln!("SKIPPED: llvm-bolt-22 is not installed: nothing is compared with it");
        return;
    };
    let told = text(&bolt.stdout);
    let theirs: Vec<&str> = told
        .lines()
        .filter_map(|line| line.strip_prefix("Binary Function \"")?.split('"').next())
        .collect();
    let ours: Vec<String> = expected
        .iter()
        .map(|names| match names.len() {
            1 => names[0].to_owned(),
            all => format!("{}(*{all})", names[0]),
        })
        .collect();
    assert_eq!(theirs, ours, "{told}");
}
