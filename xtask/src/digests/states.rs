//! What is made of a program, and the digest of it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use xxhash_rust::xxh3::Xxh3;

use super::inputs::Input;

/// What a command line is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Makes {
    /// `postlink instrument`: a program, and with machine profiles a map of it.
    Instrumented,
    /// `postlink optimize` with the profile.
    Optimized,
    /// Something that is printed of the program.
    Printed,
    /// Something that is printed of the profile.
    PrintedOfProfile,
    /// The profile in another format.
    Converted,
}

/// A state of a program: its name in lists, and the options that make it.
struct State {
    name: &'static str,
    makes: Makes,
    options: &'static [&'static str],
}

const fn state(name: &'static str, makes: Makes, options: &'static [&'static str]) -> State {
    State {
        name,
        makes,
        options,
    }
}

/// All states.
const STATES: &[State] = &[
    state("inspect", Makes::Printed, &["inspect", "--json"]),
    state("edges", Makes::Instrumented, &[]),
    state(
        "edges-atomic",
        Makes::Instrumented,
        &["--counters", "atomic"],
    ),
    state(
        "edges-plain",
        Makes::Instrumented,
        &["--counters", "plain", "--no-calls"],
    ),
    state(
        "function-coverage",
        Makes::Instrumented,
        &["--mode", "function-coverage"],
    ),
    state(
        "block-coverage",
        Makes::Instrumented,
        &["--mode", "block-coverage"],
    ),
    state("call-graph", Makes::Instrumented, &["--mode", "call-graph"]),
    state("call-edges", Makes::Instrumented, &["--mode", "call-edges"]),
    state("show", Makes::PrintedOfProfile, &["show", "--json"]),
    state("fdata", Makes::Converted, &["--to", "fdata"]),
    state("yaml", Makes::Converted, &["--to", "yaml"]),
    state("safe", Makes::Optimized, &["--split-functions=none"]),
    state(
        "fast",
        Makes::Optimized,
        &["--preset", "fast", "--enable-bat"],
    ),
    state("size", Makes::Optimized, &["--preset", "size"]),
    state(
        "max",
        Makes::Optimized,
        &["--preset", "max", "--enable-bat"],
    ),
    state(
        "unordered",
        Makes::Optimized,
        &[
            "--reorder-functions=none",
            "--reorder-blocks=none",
            "--pointers",
            "stay",
        ],
    ),
    state(
        "hfsort",
        Makes::Optimized,
        &[
            "--reorder-functions=hfsort",
            "--preset",
            "size",
            "--pointers",
            "stay",
            "--enable-bat",
        ],
    ),
    state("stress", Makes::Optimized, &["--stress", "7"]),
];

/// The lines of one program: `PROGRAM STATE` and the digest.
pub fn digests(input: &Input, postlink: &Path) -> Result<BTreeMap<String, String>> {
    let mut lines = BTreeMap::new();
    let mut add = |state: &str, value: String| {
        lines.insert(format!("{} {state}", input.name), value);
    };
    add("input", digest(&[read(&input.subject)?]));
    if let Some(profile) = &input.profile {
        add("profile", digest(&[read(profile)?]));
    }
    let folder = tempfile::tempdir().context("a folder for outputs")?;
    for state in STATES {
        let of_profile = !matches!(state.makes, Makes::Printed | Makes::Instrumented);
        if of_profile && input.profile.is_none() {
            continue;
        }
        add(state.name, one(state, input, postlink, folder.path())?);
    }
    Ok(lines)
}

/// Makes one state and gives its digest, or the error that the command ends with.
fn one(state: &State, input: &Input, postlink: &Path, folder: &Path) -> Result<String> {
    let _ = fs::remove_dir_all(folder);
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let output = folder.join("output");
    let mut command = Command::new(postlink);
    command.args(["--threads", "1"]);
    match (state.makes, &input.profile) {
        (Makes::Instrumented, _) => {
            command
                .args(["instrument", "--no-verify"])
                .arg(&input.subject);
            // The case's own options are about counters, which the mode or the state has others for.
            if state.options.is_empty() {
                command.args(&input.instrument);
            }
            command.args(state.options).arg("-o").arg(&output);
        }
        (Makes::Optimized, Some(profile)) => {
            command
                .args(["optimize", "--no-verify"])
                .arg(&input.subject);
            command.arg("-p").arg(profile).arg("-o").arg(&output);
            command.args(state.options).args(&input.optimize);
        }
        (Makes::Printed, _) => {
            command.args(state.options).arg(&input.subject);
        }
        (Makes::PrintedOfProfile, Some(profile)) => {
            command.args(state.options).arg(profile);
            command.arg("--binary").arg(&input.subject);
        }
        (Makes::Converted, Some(profile)) => {
            command
                .arg("convert")
                .arg(profile)
                .arg("-b")
                .arg(&input.subject);
            command.args(state.options).arg("-o").arg(&output);
        }
        (_, None) => bail!("{}: {} needs a profile", input.name, state.name),
    }
    let ended = command.output().with_context(|| format!("{command:?}"))?;
    if !ended.status.success() {
        let said = String::from_utf8_lossy(&ended.stderr).replace('\n', " ");
        let said = said.replace(&folder.display().to_string(), "");
        return Ok(format!("error: {}", said.trim()));
    }
    let mut parts = vec![];
    if matches!(state.makes, Makes::Printed | Makes::PrintedOfProfile) {
        parts.push(ended.stdout);
    }
    let mut files: Vec<_> = fs::read_dir(folder)
        .and_then(|entries| entries.map(|entry| entry.map(|e| e.path())).collect())
        .with_context(|| folder.display().to_string())?;
    files.sort();
    for file in files {
        parts.push(read(&file)?);
    }
    if parts.is_empty() {
        bail!("{command:?} has written nothing");
    }
    Ok(digest(&parts))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| path.display().to_string())
}

/// Of several files; where one ends counts.
fn digest(parts: &[Vec<u8>]) -> String {
    let mut hash = Xxh3::new();
    for part in parts {
        hash.update(&(part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    format!("{:032x}", hash.digest128())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_border_between_files_counts() {
        let of = |parts: &[&[u8]]| digest(&parts.iter().map(|p| p.to_vec()).collect::<Vec<_>>());
        assert_ne!(of(&[b"ab", b"c"]), of(&[b"a", b"bc"]));
        assert_eq!(of(&[b"ab", b"c"]), of(&[b"ab", b"c"]));
    }

    #[test]
    fn states_have_names_of_their_own() {
        let mut names: Vec<&str> = STATES.iter().map(|state| state.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), STATES.len());
    }
}
