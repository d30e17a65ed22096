//! Programs for another machine: built by Debian's compiler, which has the standard library of arm64 as a package of
//! its own, linked by a cross compiler, run by an emulator.

use std::path::Path;
use std::process::Command;

use crate::project::{Project, done, program, text};

const TARGET: &str = "aarch64-unknown-linux-gnu";
const EMULATOR: &str = "qemu-aarch64";
const LINKER: &str = "aarch64-linux-gnu-gcc";
const ROOT: &str = "/usr/aarch64-linux-gnu";

/// What is not there, and the packages that have it.
fn missing() -> Option<&'static str> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there = |name: &str| std::env::split_paths(&path).any(|folder| folder.join(name).is_file());
    if !Path::new("/usr/lib/rustlib").join(TARGET).is_dir()
        || !Path::new("/usr/bin/cargo").is_file()
    {
        // Installed as packages of the other architecture they would bring a second C library for it, which is found
        // in the place of the cross compiler's: with halves of both, programs with threads hang.
        return Some(
            "Debian's Rust (packages rustc and cargo) with its library for arm64 is not there: unpack \
             libstd-rust-dev:arm64 by `dpkg -x` into /, do not install it",
        );
    }
    if !there(EMULATOR) {
        return Some("no emulator is installed (Debian package qemu-user)");
    }
    (!there(LINKER)).then_some("no linker is installed (Debian package gcc-aarch64-linux-gnu)")
}

/// A program with a test and a bench that start it.
fn project() -> Project {
    let manifest = "[package]\nname = \"app\"\nversion = \"0.1.0\"\nedition = \"2021\"\n\n\
                    [[bench]]\nname = \"timed\"\nharness = false\n";
    let starts = "let runner = std::env::var(\"STARTED_BY\").unwrap();\n\
                  let mut words = runner.split(' ');\n\
                  let mut command = std::process::Command::new(words.next().unwrap());\n\
                  let done = command.args(words).arg(env!(\"CARGO_BIN_EXE_app\")).arg(\"500\").status().unwrap();\n\
                  assert!(done.success());";
    Project::new(&[
        ("Cargo.toml", manifest),
        ("src/main.rs", &program("app")),
        (
            "tests/works.rs",
            &format!("#[test]\nfn works() {{ {starts} }}"),
        ),
        ("benches/timed.rs", &format!("fn main() {{ {starts} }}")),
    ])
}

/// `cargo postlink` with Debian's cargo and compiler.
fn command(project: &Project, arguments: &[&str]) -> Command {
    let (command, more) = arguments.split_first().expect("a command");
    let mut all = vec![*command, "--target", TARGET];
    all.extend(more);
    let mut command = project.command(&all);
    let runner = format!("{EMULATOR} -L {ROOT}");
    command
        .env("CARGO", "/usr/bin/cargo")
        .env("RUSTC", "/usr/bin/rustc")
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER)
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", &runner)
        .env("STARTED_BY", &runner);
    command
}

#[test]
fn a_program_for_another_machine_is_counted_through_the_users_runner() {
    if let Some(why) = missing() {
        eprintln!("SKIPPED: {why}");
        return;
    }
    let project = project();
    let run = |arguments: &[&str]| done(&mut command(&project, arguments));
    let (printed, said) = run(&["info"]);
    let info = printed + &said;
    assert!(info.contains(TARGET) && info.contains(EMULATOR), "{info}");
    run(&["build"]);
    let built = project
        .postlink_folder()
        .join("cargo")
        .join(TARGET)
        .join("release/app");
    assert_eq!(
        std::fs::read(&built).unwrap()[18],
        183,
        "a program of AArch64"
    );
    let (printed, _) = run(&["run", "--", "3000"]);
    assert!(printed.starts_with("app "), "{printed}");
    run(&["test"]);
    run(&["bench"]);
    let counts = project.counts();
    assert!(
        counts.len() >= 2,
        "the run and the test, and the bench for its own profile: {counts:?}"
    );

    let (_, said) = run(&["optimize"]);
    assert!(
        said.contains("proved:") && said.contains("Optimized"),
        "{said}"
    );
    let result = project.postlink_folder().join(TARGET).join("release/app");
    let (after, _) = done(
        Command::new(EMULATOR)
            .args(["-L", ROOT])
            .arg(&result)
            .arg("3000"),
    );
    assert_eq!(after, printed);
    let verified = project.postlink(&["verify", built.to_str().unwrap(), result.to_str().unwrap()]);
    assert!(verified.status.success(), "{}", text(&verified.stderr));
}
