//! Comparison with the tools of LLVM 19, where they are installed. Without them these tests say so and pass.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use postlink_profile::{Weighted, fdata};

/// Finds a tool by its Debian name or in LLVM's own directory.
fn tool(name: &str) -> Option<PathBuf> {
    let candidates = [
        PathBuf::from(format!("/usr/lib/llvm-19/bin/{name}")),
        PathBuf::from(format!("/usr/bin/{name}-19")),
    ];
    let found = candidates.into_iter().find(|path| path.exists());
    if found.is_none() {
        eprintln!("skipped: {name} of LLVM 19 is not installed");
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
            // Mispredictions are 0: where they differ merge-fdata 19 keeps the records apart.
            text += &format!(
                "1 _ZN{from}fn/{} {:x} {} g\\ {to} {:x} 0 {}\n",
                from % 3,
                random.below(64),
                random.below(2),
                random.below(16),
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
