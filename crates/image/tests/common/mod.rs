//! Building, running and inspecting small programs with the tools of the machine.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Whether tools are there. Where one is missing, the test that needs it says so and passes over it, but not in CI.
pub fn have(tools: &[&str]) -> bool {
    for tool in tools {
        let found = std::env::var_os("PATH")
            .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(tool).is_file()));
        if !found {
            assert!(
                std::env::var_os("CI").is_none(),
                "{tool} is missing; CI has to install it"
            );
            eprintln!("passed over: {tool} is not installed");
            return false;
        }
    }
    cfg!(all(target_os = "linux", target_arch = "x86_64"))
}

/// Path of a test program's source.
pub fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/programs")
        .join(name)
}

/// Runs a command that must start; whatever it says is returned.
pub fn run(command: &mut Command) -> Output {
    let output = command.output();
    output.unwrap_or_else(|e| panic!("{command:?}: {e}"))
}

/// Runs a command that must succeed; returns what it prints.
pub fn succeed(command: &mut Command) -> String {
    let output = run(command);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{text}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

/// Compilers with the linkers that they are tested with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Toolchain {
    /// gcc with GNU ld.
    Gnu,
    /// clang with lld.
    Llvm,
}

impl Toolchain {
    pub fn is_there(self) -> bool {
        match self {
            Toolchain::Gnu => have(&["gcc", "ld"]),
            Toolchain::Llvm => have(&["clang-19", "ld.lld-19"]),
        }
    }
    fn command(self) -> Command {
        match self {
            Toolchain::Gnu => Command::new("gcc"),
            Toolchain::Llvm => {
                let mut clang = Command::new("clang-19");
                clang.args(["-fuse-ld=lld", "-B/usr/lib/llvm-19/bin"]);
                clang
            }
        }
    }
    /// Compiles and links.
    pub fn build(self, sources: &[&str], flags: &[&str], to: &Path) {
        let mut command = self.command();
        command.args(["-O1", "-g", "-w", "-fcf-protection=none"]);
        command
            .args(sources.iter().map(|s| source(s)))
            .args(flags)
            .arg("-o")
            .arg(to);
        succeed(&mut command);
    }
}

/// What a tool complains about, without the numbers, so that an input's and an output's can be compared.
pub fn complaints(command: &mut Command, is_one: impl Fn(&str) -> bool) -> Vec<String> {
    let output = run(command);
    let text = [output.stdout, output.stderr].concat();
    let mut lines: Vec<String> = String::from_utf8_lossy(&text)
        .lines()
        .filter(|line| is_one(line))
        .map(|line| line.chars().filter(|c| !c.is_ascii_hexdigit()).collect())
        .collect();
    lines.sort();
    lines.dedup();
    lines
}

/// A directory for a test's files; kept for a look at them if the variable KEEP is set.
pub fn scratch() -> tempfile::TempDir {
    let mut dir = tempfile::tempdir().expect("a directory for temporary files can be made");
    if std::env::var_os("KEEP").is_some() {
        eprintln!("files are kept in {}", dir.path().display());
        dir.disable_cleanup(true);
    }
    dir
}
