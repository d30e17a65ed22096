//! AutoFDO's form beside those who read it: `llvm-profdata` reads what is written for clang as it is read here, and
//! GCC takes what is written for it. Without the tools these tests say so and pass.

#![allow(clippy::indexing_slicing, reason = "a test that fails may panic")]

use std::path::Path;
use std::process::Command;

use postlink_profgen::sample::gcov::{self, Version};
use postlink_profgen::sample::{Profile, text};

/// Whether a tool can be run; says so if not.
fn have(tool: &str) -> bool {
    let found = Command::new(tool).arg("--version").output().is_ok();
    if !found {
        eprintln!("SKIPPED: {tool} is not installed: nothing is compared with it");
    }
    found
}

const PROFILE: &str = "main:440658:7
 2.1: 15
 4: 534 _Z3fooi:500 bar:34
 65535.3: 4
 5: foo:440105
  1: 15707
  2: bar:424398
   1: 424398
_ZN5space4nameEv:18446744073709551615:2
 1: 18446744073709551615
work:9000:1000
 1: 5000
 2: 4000
";

fn write(path: &Path, version: Version) -> Vec<u8> {
    let mut bytes = Vec::new();
    gcov::write(
        &text::read(PROFILE.as_bytes()).unwrap(),
        version,
        &mut bytes,
    )
    .unwrap();
    std::fs::write(path, &bytes).unwrap();
    bytes
}

fn as_text(profile: &Profile) -> String {
    let mut out = Vec::new();
    text::write(profile, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn llvm_profdata_reads_what_is_read_here() {
    let tools = ["llvm-profdata-22", "llvm-profdata-19"];
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("clang.afdo");
    let bytes = write(&path, Version::Llvm);
    let ours = as_text(&gcov::read(&bytes).unwrap());
    for tool in tools {
        if !have(tool) {
            continue;
        }
        let shown = Command::new(tool)
            .args(["merge", "--sample", "--text"])
            .arg(&path)
            .output();
        let shown = shown.unwrap();
        let said = String::from_utf8_lossy(&shown.stderr);
        assert!(shown.status.success(), "{said}");
        assert_eq!(String::from_utf8(shown.stdout).unwrap(), ours);
    }
    // Sums are what bodies add up to, and saturate.
    assert!(ours.contains("work:9000:1000\n"), "{ours}");
    assert!(ours.contains("main:440658:7\n"), "{ours}");
    assert!(
        ours.starts_with("_ZN5space4nameEv:18446744073709551615:2\n"),
        "{ours}"
    );
}

#[test]
fn gcc_takes_the_version_that_is_for_it_alone() {
    if !have("gcc") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("a.c");
    std::fs::write(
        &source,
        "__attribute__((noinline)) int work(int n) {\n  int s = 0;\n  for (int i = 0; i < n; i++) s += i * 3;\n  return s;\n}\nint main(int c, char **v) {\n  return work(c);\n}\n",
    )
    .unwrap();
    let compile = |version: Version| {
        let path = dir.path().join("gcc.afdo");
        write(&path, version);
        let done = Command::new("gcc")
            .args(["-O2", "-g", "-c", "-o"])
            .arg(dir.path().join("a.o"))
            .arg(format!("-fauto-profile={}", path.display()))
            .arg(&source)
            .output()
            .unwrap();
        (
            done.status.success(),
            String::from_utf8_lossy(&done.stderr).into_owned(),
        )
    };
    let taken = [Version::Gcc1, Version::Gcc2, Version::Gcc3, Version::Llvm].map(compile);
    // Each GCC reads one version and names both where it refuses one.
    let number = taken.iter().filter(|(taken, _)| *taken).count();
    assert_eq!(number, 1, "{taken:#?}");
    assert!(!taken[3].0, "{taken:#?}");
    let refused = taken.iter().filter(|(taken, _)| !taken);
    for (_, said) in refused {
        assert!(said.contains("AutoFDO profile version"), "{said}");
    }
}
