//! Which cases there are, and in which kinds each is built.
//!
//! Shared by the tests and by `cargo xtask digests`, which takes the same programs and looks at the bytes of
//! the outputs alone.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::build::{self, Kind, Target, Toolchain};
use super::directives::Case;
use super::run;

/// The directory of cases.
pub fn cases_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .map(|dir| dir.join("tests/cases"))
        .find(|dir| dir.join("README.md").is_file())
        .expect("the repository has it")
}

/// Reads all cases; a case that cannot be read becomes a failing test rather than none.
pub fn read_cases() -> (Vec<Case>, Vec<String>) {
    let mut files: Vec<PathBuf> = fs::read_dir(cases_dir())
        .expect("the directory was just resolved")
        .filter_map(|entry| entry.ok().map(|e| e.path()))
        .filter(|path| {
            path.extension()
                .is_some_and(|e| ["c", "cpp", "rs", "S"].iter().any(|x| e == *x))
        })
        .collect();
    files.sort();
    let (mut cases, mut wrong, mut beside) = (vec![], vec![], vec![]);
    for file in &files {
        // Parts of other cases have no directives of their own.
        let own = fs::read_to_string(file).is_ok_and(|text| text.starts_with("//#"));
        if !own {
            beside.push(file.clone());
            continue;
        }
        match Case::read(file) {
            Ok(case) => cases.push(case),
            Err(what) => wrong.push(what),
        }
    }
    for file in beside {
        if !cases
            .iter()
            .any(|case| case.with.contains(&file) || case.lib.as_ref() == Some(&file))
        {
            wrong.push(format!(
                "{}: no case uses this file, and it has no directives",
                file.display()
            ));
        }
    }
    (cases, wrong)
}

/// Why a case is not built in a kind, if it is not.
pub fn skip_reason(case: &Case, kind: Kind, found: &mut HashMap<String, bool>) -> Option<String> {
    if let Some((_, reason)) = case.not.iter().find(|(word, _)| kind.answers_to(word)) {
        return Some(reason.clone());
    }
    let rust = matches!(kind.toolchain, Toolchain::Rust | Toolchain::RustLld);
    if rust && kind.target == Target::Aarch64 {
        let there = found
            .entry(build::RUST_AARCH64.to_owned())
            .or_insert_with(build::has_rust_aarch64);
        if !*there {
            return Some(format!(
                "Rust's standard library for AArch64 is not there: rustup target add {}",
                build::RUST_AARCH64
            ));
        }
    }
    let tools = build::needs(case, kind)
        .into_iter()
        .map(str::to_owned)
        .chain(case.needs.iter().cloned());
    for tool in tools {
        if !*found
            .entry(tool.clone())
            .or_insert_with(|| run::find_program(&tool).is_some())
        {
            return Some(format!("{tool} is not installed"));
        }
    }
    None
}

/// All link kinds of a case's language.
pub fn kinds_of_language(case: &Case) -> &'static [Kind] {
    if case.source.extension().is_some_and(|e| e == "rs") {
        build::RUST
    } else {
        build::NATIVE
    }
}

/// The kinds that a case is built in, by its directives and its number.
pub fn kinds(case: &Case, number: usize) -> Vec<Kind> {
    let mut kinds = build::kinds_of(case, number);
    if let Some(names) = &case.kinds {
        kinds.retain(|kind| names.iter().any(|name| kind.answers_to(name)));
    }
    kinds
}
