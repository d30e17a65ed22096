//! Dependencies that a crate names and does not use: they cost time to compile, and mislead who reads the manifest.
//!
//! `cargo metadata` says under which name each dependency of a package is seen by its code. A dependency is
//! used if that name is a word of a source file outside of comments: of `src` for those of the product, of
//! any for those of tests. A word elsewhere (in a string, as a variable) hides an unused dependency; nothing
//! that is used is reported.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Prints each dependency that is not used. `Ok(false)` if there is one.
pub fn check(root: &Path) -> Result<bool> {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()))
        .args(["metadata", "--format-version", "1", "--locked"])
        .current_dir(root)
        .output()
        .context("cargo metadata")?;
    if !output.status.success() {
        bail!(
            "cargo metadata: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let metadata: Value = serde_json::from_slice(&output.stdout).context("cargo metadata")?;
    let mut unused = vec![];
    for member in list(&metadata["workspace_members"]) {
        let package = list(&metadata["packages"]).find(|p| p["id"] == *member);
        let node = list(&metadata["resolve"]["nodes"]).find(|n| n["id"] == *member);
        let (Some(package), Some(node)) = (package, node) else {
            bail!("cargo metadata does not describe {member}");
        };
        let manifest = Path::new(package["manifest_path"].as_str().unwrap_or_default());
        unused.extend(of_package(package, node, manifest)?);
    }
    for line in &unused {
        println!("{line}");
    }
    Ok(unused.is_empty())
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// A line for each dependency of a package that its code does not name.
fn of_package(package: &Value, node: &Value, manifest: &Path) -> Result<Vec<String>> {
    let folder = manifest.parent().context("a manifest without a folder")?;
    let product = words(folder, &["src", "build.rs"])?;
    let tests = words(folder, &["tests", "examples", "benches"])?;
    let mut unused = vec![];
    for dependency in list(&node["deps"]) {
        let name = dependency["name"].as_str().unwrap_or_default();
        let of_product = list(&dependency["dep_kinds"]).any(|kind| kind["kind"] != "dev");
        // Its own library, which its tests use with other features.
        if name.is_empty() || dependency["pkg"] == package["id"] || product.contains(name) {
            continue;
        }
        let why = match (of_product, tests.contains(name)) {
            (false, true) => continue,
            (true, true) => "is used by tests alone: it belongs to [dev-dependencies]",
            (_, false) => "is not used",
        };
        unused.push(format!("{}: {name} {why}", manifest.display()));
    }
    Ok(unused)
}

/// Words of the Rust sources below some folders.
struct Words(std::collections::HashSet<String>);

impl Words {
    fn contains(&self, word: &str) -> bool {
        self.0.contains(word)
    }

    fn add(&mut self, text: &str) {
        let code = text
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"));
        for line in code {
            let words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
            self.0
                .extend(words.filter(|w| !w.is_empty()).map(str::to_owned));
        }
    }
}

fn words(folder: &Path, parts: &[&str]) -> Result<Words> {
    let mut all = Words(Default::default());
    let mut left: Vec<_> = parts.iter().map(|part| folder.join(part)).collect();
    while let Some(path) = left.pop() {
        if path.is_dir() {
            for entry in fs::read_dir(&path).with_context(|| path.display().to_string())? {
                left.push(entry?.path());
            }
        } else if path.extension().is_some_and(|e| e == "rs") && path.is_file() {
            all.add(&fs::read_to_string(&path).with_context(|| path.display().to_string())?);
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_named_in_a_comment_alone_is_not_used() {
        let dir = std::env::temp_dir().join(format!("postlink-words-{}", std::process::id()));
        for part in ["src", "tests"] {
            fs::create_dir_all(dir.join(part)).unwrap();
        }
        fs::write(dir.join("src/lib.rs"), "// see named\nuse used::Thing;\n").unwrap();
        fs::write(dir.join("tests/a.rs"), "fn f() { tested::go(); }\n").unwrap();
        let kind = |kind: Value| json!([{ "kind": kind }]);
        let node = json!({ "deps": [
            { "name": "used", "pkg": "1", "dep_kinds": kind(Value::Null) },
            { "name": "named", "pkg": "2", "dep_kinds": kind(Value::Null) },
            { "name": "tested", "pkg": "3", "dep_kinds": kind(Value::Null) },
            { "name": "other", "pkg": "4", "dep_kinds": kind("dev".into()) },
        ] });
        let lines = of_package(&json!({ "id": "0" }), &node, &dir.join("Cargo.toml")).unwrap();
        fs::remove_dir_all(&dir).unwrap();
        let found: Vec<&str> = lines.iter().filter_map(|l| l.split(": ").nth(1)).collect();
        assert_eq!(
            found,
            [
                "named is not used",
                "tested is used by tests alone",
                "other is not used"
            ]
        );
    }
}
