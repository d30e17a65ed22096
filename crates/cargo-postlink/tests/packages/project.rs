//! A cargo package of a few lines in a temporary folder, and commands in it.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// A program that does different things for different arguments: `TIMES WHAT`. `die` ends it by a signal, `fail` with
/// an exit code, `wait` never.
pub const PROGRAM: &str = r#"
#[inline(never)]
fn words(n: u64) -> usize {
    let mut text = String::new();
    let mut numbers: Vec<u64> = (0..n).map(|i| i.wrapping_mul(2654435761) % 1000).collect();
    numbers.sort();
    for number in numbers {
        match number % 7 {
            0 => text.push('a'),
            1 => text += "bb",
            2 => text += "ccc",
            3 => text.push('d'),
            4 => text += &number.to_string(),
            5 => text += "eeeee",
            _ => text.clear(),
        }
    }
    text.len()
}

#[inline(never)]
fn never(n: u64) -> usize {
    println!("{n}");
    n as usize
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let times: u64 = arguments.get(1).map_or(100, |word| word.parse().unwrap());
    let length = if times == 77777 { never(times) } else { words(times) };
    println!("{} {length}", env!("CARGO_BIN_NAME_OR_CRATE"));
    match arguments.get(2).map(String::as_str) {
        Some("die") => std::process::abort(),
        Some("fail") => std::process::exit(3),
        Some("wait") => loop { std::thread::sleep(std::time::Duration::from_millis(20)) },
        _ => {}
    }
}
"#;

/// The program with its name in it.
pub fn program(name: &str) -> String {
    PROGRAM.replace("env!(\"CARGO_BIN_NAME_OR_CRATE\")", &format!("{name:?}"))
}

/// The folder.
pub struct Project(TempDir);

impl Project {
    /// With these files.
    pub fn new(files: &[(&str, &str)]) -> Project {
        Project::within("", files)
    }

    /// In a folder with this in its name.
    pub fn within(name: &str, files: &[(&str, &str)]) -> Project {
        let prefix = format!("cargo-postlink-test{name}.");
        let project = Project(tempfile::Builder::new().prefix(&prefix).tempdir().unwrap());
        for (path, text) in files {
            project.write(path, text);
        }
        project
    }

    /// A package with one program, `app`; `more` is added to its Cargo.toml.
    pub fn simple(more: &str) -> Project {
        Project::new(&[
            ("Cargo.toml", &manifest("app", more)),
            ("src/main.rs", &program("app")),
        ])
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn write(&self, path: &str, text: &str) {
        let path = self.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// Where results lie.
    pub fn result(&self, name: &str) -> PathBuf {
        self.postlink_folder()
            .join(host())
            .join("release")
            .join(name)
    }

    /// What cargo made.
    pub fn built(&self, name: &str) -> PathBuf {
        let cargo = self.postlink_folder().join("cargo");
        cargo.join(host()).join("release").join(name)
    }

    pub fn postlink_folder(&self) -> PathBuf {
        self.path().join("target/postlink")
    }

    /// `cargo postlink …` as cargo starts it.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.clean(env!("CARGO_BIN_EXE_cargo-postlink"));
        command.arg("postlink").args(arguments);
        command
    }

    /// A command in the folder, without what the tests' own cargo has put into the environment.
    pub fn clean(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.path()).stdin(Stdio::null());
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            let is_kept = ["CARGO", "CARGO_HOME", "CARGO_BIN_EXE_cargo-postlink"].contains(&&*text);
            if (text.starts_with("CARGO") && !is_kept)
                || text.starts_with("RUSTFLAGS")
                || text == "POSTLINK_PROFILE"
            {
                command.env_remove(name);
            }
        }
        command
            .env("CARGO_NET_OFFLINE", "true")
            .env("NO_COLOR", "1");
        command
    }

    /// A command that must end well: standard output and standard error.
    pub fn done(&self, arguments: &[&str]) -> (String, String) {
        done(&mut self.command(arguments))
    }

    /// A command that must fail: its exit code and what it said.
    pub fn fails(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let output = self.command(arguments).output().unwrap();
        let said = text(&output.stderr);
        assert!(
            !output.status.success(),
            "{arguments:?} did not fail:\n{said}"
        );
        (output.status.code(), said)
    }

    /// postlink itself, which the program is under another name.
    pub fn postlink(&self, arguments: &[&str]) -> Output {
        let mut command = self.clean(env!("CARGO_BIN_EXE_cargo-postlink"));
        command.arg0("postlink").args(arguments).output().unwrap()
    }

    /// Counts of programs: paths below `profiles`, without digests.
    pub fn counts(&self) -> Vec<String> {
        let root = self.postlink_folder().join("profiles");
        let mut found = vec![];
        let mut folders = vec![root.clone()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).into_iter().flatten() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|e| e == "plraw") {
                    let program = path.parent().unwrap().parent().unwrap();
                    let program = program.strip_prefix(&root).unwrap();
                    let name: PathBuf = program.components().skip(1).collect();
                    let file = path.file_name().unwrap().to_string_lossy();
                    found.push(format!("{} {file}", name.display()));
                }
            }
        }
        found.sort();
        found
    }
}

/// Runs a command that must end well.
pub fn done(command: &mut Command) -> (String, String) {
    let output = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let (said, printed) = (text(&output.stderr), text(&output.stdout));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{printed}\n{said}",
        output.status
    );
    (printed, said)
}

/// The manifest of a package.
pub fn manifest(name: &str, more: &str) -> String {
    format!("[package]\nname = {name:?}\nversion = \"0.1.0\"\nedition = \"2024\"\n{more}\n")
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// This machine's triple.
pub fn host() -> String {
    let said = Command::new("rustc").arg("-vV").output().unwrap();
    let said = text(&said.stdout);
    let host = said.lines().find_map(|line| line.strip_prefix("host: "));
    host.unwrap().to_owned()
}

/// Names of a file's sections.
pub fn sections(path: &Path) -> Vec<String> {
    use object::{Object, ObjectSection};
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let file = object::File::parse(&*bytes).unwrap();
    file.sections()
        .map(|s| s.name().unwrap().to_owned())
        .collect()
}
