//! Builds programs with the driver, runs them, and reads their profiles.

#![allow(dead_code)] // each test file uses its part

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use postlink_mip::merge::{self, Options};
use postlink_mip::{Profile, create};
use postlink_mip_asm::Flags;
use postlink_mip_asm::driver::{self, Outcome};
use postlink_profile::Weighted;
use tempfile::TempDir;

/// The folder of programs.
pub fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs")
}

/// Whether a tool is there; if not, says loudly what is not tested.
pub fn have(tool: &str, what: &str) -> bool {
    let there = postlink_mip_asm::find_program(OsStr::new(tool)).is_some();
    if !there {
        eprintln!("SKIPPED: {tool} is not installed: {what} is not tested");
    }
    there
}

/// A folder to work in.
pub struct Scratch(pub TempDir);

impl Scratch {
    pub fn new() -> Scratch {
        Scratch(tempfile::tempdir().expect("a temporary directory can be made"))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs the driver; `@` at the start of a word represents the folder of programs, `@@` for `@`, `%/` for this one.
    pub fn cc(&self, command: &str) -> Outcome {
        self.try_cc(command)
            .unwrap_or_else(|error| panic!("{command}: {error}"))
    }

    pub fn try_cc(&self, command: &str) -> Result<Outcome, driver::Error> {
        let words: Vec<OsString> = command
            .split_whitespace()
            .map(|word| {
                let word = word.replace("%/", &format!("{}/", self.0.path().display()));
                if let Some(file) = word.strip_prefix("@@") {
                    return OsString::from(format!("@{file}"));
                }
                match word.strip_prefix('@') {
                    Some(name) => programs().join(name).into_os_string(),
                    None => OsString::from(word),
                }
            })
            .collect();
        driver::run(&words[0], &words[1..], Flags::default())
    }

    /// Builds, and wants success.
    pub fn build(&self, command: &str) -> Outcome {
        let outcome = self.cc(command);
        assert_eq!(outcome.code, 0, "{command}");
        outcome
    }

    /// Runs a program of this folder, with the name of the profile's file.
    pub fn run(&self, command: &[&str], raw: &str) -> Output {
        let program =
            if command[0].contains('/') || command.len() > 1 && command[0].starts_with("qemu") {
                PathBuf::from(command[0])
            } else {
                self.path(command[0])
            };
        let mut arguments: Vec<PathBuf> = vec![];
        for argument in &command[1..] {
            arguments.push(match argument.strip_prefix("%/") {
                Some(name) => self.path(name),
                None => PathBuf::from(argument),
            });
        }
        Command::new(program)
            .args(arguments)
            .current_dir(self.0.path())
            .env("LLVM_MIP_PROFILE_FILENAME", self.path(raw))
            .output()
            .expect("the program can be run")
    }

    /// The profile of a program (or map) with one raw file.
    pub fn profile(&self, program: &str, raw: &str) -> Profile {
        let mut profile = create::open(&self.path(program)).expect("the program has a map");
        let file = Weighted {
            path: self.path(raw),
            weight: 1,
        };
        let options = Options {
            strict: true,
            traces: false,
        };
        merge::merge(&mut profile, &[file], options).expect("the raw file is of this program");
        profile
    }
}

/// Runs another tool and gives what it printed.
pub fn tool(name: &str, arguments: &[&OsStr]) -> String {
    let out = Command::new(name)
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(
        out.status.success(),
        "{name}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// Call counts by name. Functions of the same name are counted together.
pub fn counts(profile: &Profile) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for function in &profile.functions {
        *counts
            .entry(String::from_utf8_lossy(&function.name).into_owned())
            .or_default() += function.call_count;
    }
    counts
}

/// What clang's own exact profile says: the count of each function at its entry. `build` is the compiler with
/// its arguments.
pub fn exact_counts(
    scratch: &Scratch,
    compiler: &str,
    arguments: &[&str],
) -> BTreeMap<String, u64> {
    let binary = scratch.path("exact");
    let mut command = Command::new(compiler);
    command.args(["-fprofile-instr-generate", "-fcoverage-mapping"]);
    for argument in arguments {
        match argument.strip_prefix('@') {
            Some(name) => command.arg(programs().join(name)),
            None => command.arg(argument),
        };
    }
    assert!(command.arg("-o").arg(&binary).status().unwrap().success());
    let raw = scratch.path("exact.profraw");
    Command::new(&binary)
        .env("LLVM_PROFILE_FILE", &raw)
        .output()
        .expect("it was just built");
    let data = scratch.path("exact.profdata");
    tool(
        "llvm-profdata-19",
        &["merge".as_ref(), raw.as_ref(), "-o".as_ref(), data.as_ref()],
    );
    let text = tool(
        "llvm-profdata-19",
        &["show".as_ref(), "--all-functions".as_ref(), data.as_ref()],
    );
    let mut counts = BTreeMap::new();
    let mut name = String::new();
    for line in text.lines() {
        if let Some(count) = line.trim().strip_prefix("Function count: ") {
            *counts.entry(name.clone()).or_default() += count.parse::<u64>().unwrap();
        } else if line.starts_with("  ") && !line.starts_with("   ") {
            // Local functions are called FILE:NAME or FILE;NAME.
            let full = line.trim().trim_end_matches(':');
            name = full.rsplit([':', ';']).next().unwrap().to_owned();
        }
    }
    counts
}
