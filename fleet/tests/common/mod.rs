//! What tests of the program share: runs of it, profiles, and what must come of them.

// Each test program uses some of it.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Output};

use postlink_profile::{Digest, Identity, Profile, Site, Subject, Weighted, merge, plprof};

/// Runs the program; it must end with success.
pub fn fleet(arguments: &[&str]) -> Output {
    let output = run(arguments);
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

pub fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_postlink-fleet"))
        .args(arguments)
        .output()
        .unwrap()
}

/// The message of a run that must fail.
pub fn refused(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(!output.status.success(), "{arguments:?} did not fail");
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(!message.contains("panicked"), "{message}");
    message
}

pub fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

pub const ID: &str = "deadbeef01";

pub fn subject(digest: u64) -> Subject {
    Subject {
        identity: Identity::from_build_id(&[0xde, 0xad, 0xbe, 0xef, 1]).unwrap(),
        digest: Digest(digest),
        counters: 500,
        sites: 20,
    }
}

/// A profile of counters that has as much of everything as `seed` says.
pub fn counters(seed: u64, digest: u64) -> Profile {
    let number = |at: u64| {
        let mixed = (at + 1).wrapping_mul(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        match mixed >> 61 {
            0..4 => 0,
            4 => u64::MAX - (mixed & 0xff),
            _ => mixed >> 40,
        }
    };
    let values = (0..500).map(number).collect();
    let sites: BTreeMap<u64, Site> = (0..20)
        .map(|at| {
            let targets = (0..at % 4).map(|t| (0x1000 + 16 * t, number(1000 + 8 * at + t)));
            let site = Site::new(targets, number(2000 + at) >> 8, number(3000 + at) >> 9);
            (at, site)
        })
        .collect();
    Profile::from_parts(subject(digest), values, sites).unwrap()
}

pub struct Folder(tempfile::TempDir);

impl Folder {
    pub fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn name(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    pub fn file(&self, name: &str, contents: &str) -> String {
        std::fs::write(self.path(name), contents).unwrap();
        self.name(name)
    }

    pub fn counters(&self, name: &str, profile: &Profile) -> String {
        plprof::write(&self.path(name), profile).unwrap();
        self.name(name)
    }

    /// The files of shards in a folder.
    pub fn shards(&self, name: &str) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.path(name)).unwrap();
        let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }

    pub fn bytes(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }
}

pub fn weighted(path: &str, weight: u64) -> Weighted {
    Weighted {
        path: path.into(),
        weight,
    }
}

/// Four profiles of one build with their weights, added to the folder `shards`; gives what `postlink merge` makes.
pub fn four(folder: &Folder) -> Vec<u8> {
    let mut inputs = Vec::new();
    for seed in 1..=4 {
        let path = folder.counters(&format!("{seed}.plprof"), &counters(seed, 0xabc));
        inputs.push(weighted(&path, seed));
    }
    let mut arguments = vec!["add".to_owned(), "-o".into(), folder.name("shards")];
    let named = inputs
        .iter()
        .map(|input| format!("{}:{}", input.path.display(), input.weight));
    arguments.extend(named);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    fleet(&arguments);
    let mut out = Vec::new();
    plprof::write_to(&mut out, &merge(&inputs).unwrap().profile).unwrap();
    out
}

pub fn profile(folder: &Folder, places: &[&str], output: &str, more: &[&str]) -> Vec<u8> {
    let (mut arguments, out) = (vec!["profile", "--build-id", ID, "-o"], folder.name(output));
    arguments.push(&out);
    arguments.extend(places);
    arguments.extend(more);
    fleet(&arguments);
    folder.bytes(output)
}

/// Two builds of one program, of which the second has another function in front and one that was changed.
pub fn builds(folder: &Folder) -> Option<(String, String)> {
    let source = |extra: &str, step: u32| {
        let work = |name: &str, step: u32| {
            format!(
                "__attribute__((noinline)) int {name}(int n) {{ int s = 0; for (int i = 0; i < n; i++) {{ if (i % 3) s += i * {step}; else s ^= n; }} return s; }}\n"
            )
        };
        format!(
            "#include <stdlib.h>\n{extra}{}{}int main(int c, char **v) {{ return same(c) + changed(atoi(v[0])); }}\n",
            work("same", 5),
            work("changed", step)
        )
    };
    let build = |name: &str, source: String| {
        let (c, out) = (
            folder.file(&format!("{name}.c"), &source),
            folder.name(name),
        );
        let output = Command::new("gcc")
            .args(["-O1", "-fno-inline", "-Wl,--build-id", "-o", &out, &c])
            .output()
            .ok()?;
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        Some(out)
    };
    let extra = "__attribute__((noinline)) int extra(int n) { volatile int a[9]; for (int i = 0; i < 9; i++) a[i] = n * i; return a[n]; }\n";
    Some((
        build("old", source("", 3))?,
        build("new", source(extra, 70_000))?,
    ))
}

/// Address and size of a function by `nm`.
pub fn symbol(binary: &str, name: &str) -> (u64, u64) {
    let output = Command::new("nm").args(["-S", binary]).output().unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    let line = lines
        .lines()
        .find(|line| line.ends_with(&format!(" {name}")));
    let fields: Vec<u64> = line
        .unwrap()
        .split(' ')
        .filter_map(|field| u64::from_str_radix(field, 16).ok())
        .collect();
    (fields[0], fields[1])
}
