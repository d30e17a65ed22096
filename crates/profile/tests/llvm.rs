//! Comparison with the tools of LLVM 22, where they are installed. Without them these tests say so and pass.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use postlink_profile::{Weighted, bolt_yaml, fdata};

/// Finds a tool by its Debian name or in LLVM's own directory.
fn tool(name: &str) -> Option<PathBuf> {
    let candidates = [
        PathBuf::from(format!("/usr/lib/llvm-22/bin/{name}")),
        PathBuf::from(format!("/usr/bin/{name}-22")),
    ];
    let found = candidates.into_iter().find(|path| path.exists());
    if found.is_none() {
        eprintln!("SKIPPED: {name} is not installed (Debian package bolt-22)");
    }
    found
}

fn weighted(path: &Path) -> Weighted {
    Weighted {
        path: path.to_owned(),
        weight: 1,
    }
}

/// A small random number generator, so that the files are the same every time.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

fn lines(text: &[u8]) -> BTreeSet<String> {
    String::from_utf8_lossy(text)
        .lines()
        .map(str::to_owned)
        .collect()
}

#[test]
fn fdata_merges_like_merge_fdata_where_that_is_right() {
    let Some(merge_fdata) = tool("merge-fdata") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut paths = Vec::new();
    for file in 0..3 {
        let mut text = String::from("boltedcollection\n");
        for _ in 0..5000 {
            let from = random.below(40);
            let to = random.below(40);
            text += &format!(
                "1 _ZN{from}fn/{} {:x} {} g\\ {to} {:x} {} {}\n",
                from % 3,
                random.below(64),
                random.below(2),
                random.below(16),
                random.below(3),
                1 + random.below(1000)
            );
        }
        for _ in 0..200 {
            text += &format!(
                "4 f{} {:x} 3 [unknown] {:x} {}\n",
                random.below(5),
                random.below(9),
                random.below(99),
                random.below(7)
            );
        }
        let path = dir.path().join(format!("{file}.fdata"));
        std::fs::write(&path, text).unwrap();
        paths.push(path);
    }
    let theirs = Command::new(merge_fdata)
        .arg("-q")
        .args(&paths)
        .output()
        .unwrap();
    assert!(
        theirs.status.success(),
        "{}",
        String::from_utf8_lossy(&theirs.stderr)
    );
    let merged =
        fdata::merge(&paths.iter().map(|path| weighted(path)).collect::<Vec<_>>()).unwrap();
    let mut ours = Vec::new();
    fdata::write_to(&mut ours, &merged).unwrap();
    assert_eq!(lines(&ours), lines(&theirs.stdout));
    assert_eq!(
        ours.iter().filter(|&&b| b == b'\n').count(),
        theirs.stdout.iter().filter(|&&b| b == b'\n').count()
    );
    assert!(ours.starts_with(b"boltedcollection\n"));
}

#[test]
fn yaml_is_laid_out_like_merge_fdata_does() {
    let Some(merge_fdata) = tool("merge-fdata") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let mut text = String::from(
        "---\nheader:\n  profile-version: 1\n  binary-name: './a b'\n  binary-build-id: '1234'\n  profile-flags: [ lbr, memevent ]\n  profile-origin: test\n  profile-events: ''\n  dfs-order: true\nfunctions:\n",
    );
    // In the order that merge-fdata keeps for one file: by number.
    for fid in 1..200 {
        text += &format!(
            "  - name: \"f{fid}/{}\"\n    fid: {fid}\n    hash: 0x{:x}\n    exec: {}\n    nblocks: 9\n",
            fid % 3,
            random.below(1 << 60),
            random.below(99)
        );
        text += "    blocks:\n";
        for bid in 0..random.below(4) + 1 {
            text += &format!(
                "      - bid: {bid}\n        insns: {}\n        hash: 0x{:x}\n        exec: {}\n",
                random.below(9),
                random.below(1 << 50),
                random.below(3)
            );
            let calls: Vec<String> = (0..random.below(6))
                .map(|i| {
                    format!(
                        "{{ off: 0x{:X}, fid: {}, disc: {}, cnt: {}, mis: {} }}",
                        i * 16,
                        random.below(200),
                        random.below(2),
                        random.below(1 << 30),
                        random.below(2)
                    )
                })
                .collect();
            let successors: Vec<String> = (0..random.below(7))
                .map(|bid| {
                    format!(
                        "{{ bid: {bid}, cnt: {}, mis: {} }}",
                        random.below(1 << 40),
                        random.below(3)
                    )
                })
                .collect();
            if !calls.is_empty() {
                text += &format!("        calls: [ {} ]\n", calls.join(", "));
            }
            if !successors.is_empty() {
                text += &format!("        succ: [ {} ]\n", successors.join(", "));
            }
        }
    }
    text += "...\n";
    let path = dir.path().join("a.yaml");
    std::fs::write(&path, text).unwrap();
    let merged = dir.path().join("merged.yaml");
    let theirs = Command::new(merge_fdata)
        .arg(&path)
        .arg("-o")
        .arg(&merged)
        .output()
        .unwrap();
    assert!(
        theirs.status.success(),
        "{}",
        String::from_utf8_lossy(&theirs.stderr)
    );
    let profile = bolt_yaml::read(&path).unwrap();
    // Functions come out of a hash table there.
    let split = |text: &[u8]| -> BTreeSet<String> {
        String::from_utf8_lossy(text)
            .trim_end_matches("...\n")
            .split("  - name:")
            .map(str::to_owned)
            .collect()
    };
    assert_eq!(
        split(&bolt_yaml::to_bytes(&profile)),
        split(&std::fs::read(&merged).unwrap())
    );
}
