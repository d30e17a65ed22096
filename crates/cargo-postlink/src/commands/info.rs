//! `cargo postlink info`: what would be used, and what is known.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;

use crate::session::Session;
use crate::strip;

/// Prints it.
pub fn run(session: &Session) -> Result<ExitCode> {
    let line = |name: &str, value: &str| println!("{name:<16} {value}");
    let or = |words: &[String], none: &str| match words {
        [] => none.to_owned(),
        words => words.join(" "),
    };
    line("postlink", env!("CARGO_PKG_VERSION"));
    line(
        "compiler",
        &format!(
            "{}, LLVM {}",
            session.compiler.version, session.compiler.llvm
        ),
    );
    line("target", &session.triple);
    line("profile", &session.profile);
    line(
        "your rustflags",
        &or(&session.flags, "none; those of postlink come after"),
    );
    line("your runner", &or(&session.runner, "none"));
    let missing = session.missing_target();
    if !missing.is_empty() {
        line("", missing.trim());
    }
    let stripper = strip::finder(
        &session.compiler.sysroot,
        &session.compiler.host,
        &session.triple,
    );
    let strips = match (session.strips, stripper) {
        (false, _) => "no".to_owned(),
        (true, Some((program, _))) => {
            format!("yes; the result is stripped by {}", program.display())
        }
        (true, None) => "yes, but nothing is there to strip the result with".to_owned(),
    };
    line("strips symbols", &strips);
    let pgo = match session.compiler.profdata() {
        Ok(path) => path.display().to_string(),
        Err(error) => format!("not possible: {error}"),
    };
    line("--pgo", &pgo);
    line("folder", &session.root.display().to_string());
    for (place, name, runs) in counted(session)? {
        line("counted", &format!("{} of {place}: {runs}", name.display()));
    }
    Ok(ExitCode::SUCCESS)
}

/// Programs with counts: target and profile, name, how many files.
fn counted(session: &Session) -> Result<Vec<(String, PathBuf, String)>> {
    let root = session.root.join("profiles");
    let mut found = std::collections::BTreeMap::<PathBuf, usize>::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten() {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "plraw")
                && !path
                    .file_name()
                    .is_some_and(|n| n.to_string_lossy().starts_with("failed-"))
                && let Some(program) = folder.parent()
            {
                *found.entry(program.to_owned()).or_default() += 1;
            }
        }
    }
    Ok(found
        .into_iter()
        .filter_map(|(program, runs)| {
            let relative = program.strip_prefix(&root).ok()?;
            let mut parts = relative.components();
            let place: PathBuf = parts.by_ref().take(2).collect();
            let files = if runs == 1 {
                "1 file".to_owned()
            } else {
                format!("{runs} files")
            };
            Some((
                place.display().to_string(),
                parts.as_path().to_owned(),
                files,
            ))
        })
        .collect())
}
