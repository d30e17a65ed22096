//! Features of crates: those of the program alone are those that it has in a build of the whole workspace with its
//! tests.
//!
//! Cargo gives each crate the features that all packages of a build ask of it together. Where one build asks for more
//! than another, the crate and all that depend on it are compiled for each: a demo and a test run from nothing would
//! take minutes longer. A feature that is missing belongs to the dependency in the workspace's manifest.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The program's package.
const PROGRAM: &str = "postlink";

/// Prints each crate whose features differ. `Ok(false)` if there is one.
pub fn check(root: &Path) -> Result<bool> {
    let alone = tree(root, &["--package", PROGRAM, "--edges", "normal,build"])?;
    let all = tree(root, &["--workspace", "--edges", "normal,build,dev"])?;
    let wrong = differences(&alone, &all);
    for line in &wrong {
        println!("{line}");
    }
    Ok(wrong.is_empty())
}

/// Sets of features of each crate, by name and version.
type Features = BTreeMap<String, BTreeSet<String>>;

fn tree(root: &Path, selection: &[&str]) -> Result<Features> {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()))
        .args(["tree", "--locked", "--no-dedupe", "--prefix", "none"])
        .args(["--format", "{p}|{f}"])
        .args(selection)
        .current_dir(root)
        .output()
        .context("cargo tree")?;
    if !output.status.success() {
        bail!("cargo tree: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(read(&String::from_utf8_lossy(&output.stdout)))
}

/// Reads lines `name v1.2.3 (where)|features`.
fn read(text: &str) -> Features {
    let mut read = Features::new();
    for (package, features) in text.lines().filter_map(|line| line.split_once('|')) {
        let mut words = package.split(' ');
        let name = [words.next(), words.next()].map(Option::unwrap_or_default);
        let features = features.trim_end_matches(" (*)").to_owned();
        read.entry(name.join(" ")).or_default().insert(features);
    }
    read
}

fn differences(alone: &Features, all: &Features) -> Vec<String> {
    let none = BTreeSet::new();
    let mut wrong = vec![];
    for (name, features) in alone {
        let with_tests = all.get(name).unwrap_or(&none);
        if features.is_subset(with_tests) {
            continue;
        }
        let shown = |sets: &BTreeSet<String>| {
            let sets: Vec<String> = sets.iter().map(|set| format!("[{set}]")).collect();
            sets.join(" or ")
        };
        wrong.push(format!(
            "{name} is compiled twice: the program alone asks for {}, the workspace with its tests for {}",
            shown(features),
            shown(with_tests)
        ));
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feature_that_tests_alone_ask_for_is_told() {
        let alone = read("a v1.0.0 (/w/a)|\nb v2.1.0|std\nb v2.1.0|std (*)\n");
        let same = read("a v1.0.0 (/w/a)|\nb v2.1.0|std\nc v1.0.0|\n");
        assert_eq!(differences(&alone, &same), Vec::<String>::new());
        // As a dependency of a procedural macro it may have others.
        let macros = read("a v1.0.0 (/w/a)|\nb v2.1.0|std\nb v2.1.0|full,std\n");
        assert_eq!(differences(&alone, &macros), Vec::<String>::new());
        let more = read("a v1.0.0 (/w/a)|\nb v2.1.0|alloc,std\n");
        assert_eq!(
            differences(&alone, &more),
            [
                "b v2.1.0 is compiled twice: the program alone asks for [std], the workspace with its tests for [alloc,std]"
            ]
        );
    }
}
