//! Files that the system around them knows: checksums beside them, rights.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

mod support;

const POSTLINK: &str = env!("CARGO_BIN_EXE_postlink");

const SOURCE: &str = "#include <stdio.h>\n\
    __attribute__((noinline)) int twice(int x) { return 2 * x; }\n\
    int main(int argc, char **argv) { printf(\"%d\\n\", twice(argc)); return 0; }\n";

fn program(folder: &Path) -> std::path::PathBuf {
    let (source, program) = (folder.join("a.c"), folder.join("app"));
    fs::write(&source, SOURCE).unwrap();
    let mut gcc = Command::new("gcc");
    support::done(gcc.arg("-O1").arg("-o").args([&program, &source]));
    program
}

/// Instruments, runs and optimises; what both commands said.
fn both(folder: &Path, program: &Path) -> String {
    let at = |name: &str| folder.join(name);
    let mut instrument = Command::new(POSTLINK);
    instrument.args([
        "instrument".as_ref(),
        program,
        "-o".as_ref(),
        &at("counting"),
    ]);
    let first = support::done(instrument.arg("--profile").arg(at("profile")));
    support::done(&mut Command::new(at("counting")));
    let mut optimize = Command::new(POSTLINK);
    optimize.args(["optimize".as_ref(), program, "-o".as_ref(), &at("out")]);
    let second = support::done(optimize.arg("-p").arg(at("profile")));
    let said = [first.stderr, second.stderr].map(|said| String::from_utf8(said).unwrap());
    said.concat()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn checksums_beside_the_input_are_warned_of_by_both_commands() {
    let folder = tempfile::tempdir().unwrap();
    let program = program(folder.path());
    assert!(!both(folder.path(), &program).contains("warning"));
    fs::write(folder.path().join(".app.hmac"), "0123").unwrap();
    let said = both(folder.path(), &program);
    assert_eq!(
        said.matches("/.app.hmac has a checksum of this file")
            .count(),
        2,
        "{said}"
    );
}

#[test]
fn set_user_id_is_kept_where_the_owner_is_the_same_and_said() {
    let folder = tempfile::tempdir().unwrap();
    let program = program(folder.path());
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4750)).unwrap();
    let said = both(folder.path(), &program);
    assert_eq!(said.matches("set-user-ID is kept").count(), 2, "{said}");
    assert_eq!(mode(&folder.path().join("counting")), 0o4750);
    assert_eq!(mode(&folder.path().join("out")), 0o4750);
    fs::set_permissions(&program, fs::Permissions::from_mode(0o751)).unwrap();
    assert!(!both(folder.path(), &program).contains("set-"));
    assert_eq!(mode(&folder.path().join("out")), 0o751);
}

/// The segment that lld lets the loader protect ends in padding without contents. Programs of Rust's own releases say
/// that it has as many bytes in the file as in memory: more than the file has there.
#[test]
fn a_protected_segment_may_have_more_bytes_in_the_file_than_are_there() {
    if !support::is_installed("clang-19") {
        return;
    }
    for kept in [&[][..], &["-Wl,-q"]] {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("app");
        let source = folder.path().join("a.c");
        fs::write(&source, SOURCE).unwrap();
        let mut clang = Command::new("clang-19");
        clang.args(["-O1", "-fuse-ld=lld", "-Wl,-z,relro,-z,now"]);
        support::done(clang.args(kept).arg("-o").args([&program, &source]));
        let mut bytes = fs::read(&program).unwrap();
        let elf = postlink_elf::elf::Elf::parse(&bytes).unwrap();
        let at = |s: &postlink_elf::elf::Segment| s.kind == 0x6474_e552;
        let number = elf.segments.iter().position(at).unwrap();
        let protected = &elf.segments[number];
        let load = elf.loads().find(|s| s.addr == protected.addr).unwrap();
        assert!(load.file_size < protected.mem_size, "it ends in padding");
        // Type, flags, offset, two addresses; then the sizes.
        let header = elf.phoff as usize + 56 * number;
        bytes.copy_within(header + 40..header + 48, header + 32);
        fs::write(&program, &bytes).unwrap();
        both(folder.path(), &program);
        let run = |name: &str| support::done(&mut Command::new(folder.path().join(name))).stdout;
        assert_eq!(run("out"), run("app"));
    }
}
