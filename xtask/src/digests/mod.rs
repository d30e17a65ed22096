//! `cargo xtask digests`: whether a change of the code changes what postlink writes.
//!
//! # What it is for
//!
//! A change that only moves or renames code must leave every output as it was, byte for byte. The tests
//! cannot show that: they run programs, and two different outputs may both be right. So this job writes one
//! line for every output, and compares such a list with one from before the change:
//!
//! ```text
//! cargo xtask digests --record before.txt        # on the state before
//! cargo xtask digests --compare before.txt       # after the change
//! ```
//!
//! # What is compared
//!
//! Programs: the cases of `tests/cases`, each in one kind of this machine and one of AArch64, which change
//! from case to case (`--all`: in all kinds that the tests have). Of each program the states of [`states`]:
//! instrumented in every mode, optimised in every preset, laid out at random, and what `inspect`, `show` and
//! `convert` print. The outputs are not proved: the checker puts functions back that it cannot prove, and
//! this is about the rewriter alone.
//!
//! # The list
//!
//! | line | meaning |
//! |---|---|
//! | `PROGRAM input DIGEST` | the program that went in |
//! | `PROGRAM profile DIGEST` | the profile that its instrumented run has left; not for a program whose run leaves none |
//! | `PROGRAM STATE DIGEST` | all files that the command has written, or what it has printed; XXH3, 128 bits |
//! | `PROGRAM STATE error: TEXT` | the command's error |
//!
//! Inputs and profiles are made once, in `target/digests`, and kept ([`inputs`]): compilers may write other
//! bytes tomorrow, and counts of a program with threads change from run to run. A list is compared only with
//! outputs of the same inputs; where an input is another one, or gone, the job says so and fails.

#[allow(
    dead_code,
    unused_imports,
    reason = "the tests use all of it, this job a part"
)]
pub mod cases;
pub mod inputs;
mod states;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;

/// The job's options.
#[derive(Args, Debug)]
pub struct Options {
    /// Write the digests of all outputs to this file
    #[arg(long, value_name = "FILE", required_unless_present = "compare")]
    record: Option<PathBuf>,
    /// Compare with the digests in this file
    #[arg(long, value_name = "FILE", conflicts_with = "record")]
    compare: Option<PathBuf>,
    /// Every case in every kind that the tests build it in
    #[arg(long)]
    all: bool,
    /// Every sixth program only
    #[arg(long, conflicts_with = "all")]
    quick: bool,
    /// Use this postlink [default: built for development]
    #[arg(long, value_name = "PROGRAM")]
    postlink: Option<PathBuf>,
    /// Where inputs and their profiles are kept [default: target/digests]
    #[arg(long, value_name = "DIR")]
    inputs: Option<PathBuf>,
    /// Only programs whose name holds this
    filter: Option<String>,
}

/// `PROGRAM STATE` to what is after them on the line.
type List = BTreeMap<String, String>;

/// The job. `Ok(false)` when an output has changed.
pub fn run(options: &Options) -> Result<bool> {
    let folder = match &options.inputs {
        Some(folder) => folder.clone(),
        None => target_folder()?.join("digests"),
    };
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let folder = folder
        .canonicalize()
        .with_context(|| folder.display().to_string())?;
    let postlink = postlink(options, &folder)?;
    let before = match &options.compare {
        Some(path) => Some(read(path)?),
        None => None,
    };
    let wanted = inputs::select(options.all, options.quick, options.filter.as_deref())?;
    let (mut list, mut changed, mut compared) = (List::new(), 0, 0);
    let count = wanted.len();
    for (number, wanted) in wanted.iter().enumerate() {
        eprintln!("[{}/{count}] {}", number + 1, wanted.name);
        let input = match inputs::provide(wanted, &folder, &postlink) {
            Ok(input) => input,
            Err(error) => bail!("{}: {error:#}", wanted.name),
        };
        let lines = states::digests(&input, &postlink)?;
        if let Some(before) = &before {
            // What the list has of this program; it may have been made of fewer programs.
            let known = of_program(before, &wanted.name);
            if known.is_empty() {
                println!("{}: not in the list", wanted.name);
            } else {
                compared += lines.len();
                changed += differences(&known, &lines);
            }
        }
        list.extend(lines);
    }
    if let Some(path) = &options.record {
        let text = list.iter().fold(String::new(), |mut text, (key, value)| {
            let _ = writeln!(text, "{key} {value}");
            text
        });
        fs::write(path, text).with_context(|| path.display().to_string())?;
        println!("{} digests in {}", list.len(), path.display());
    } else {
        println!("{compared} digests compared, {changed} differ");
        if compared == 0 {
            bail!("the list has none of these programs");
        }
    }
    Ok(changed == 0)
}

/// Cargo's target folder, in which this program is.
fn target_folder() -> Result<PathBuf> {
    let program = std::env::current_exe().context("the path of xtask")?;
    let folder = program.ancestors().nth(2).map(Path::to_owned);
    folder.with_context(|| format!("{} is in no target folder", program.display()))
}

/// A copy of postlink, so that a build at the same time does not change it half-way.
fn postlink(options: &Options, folder: &Path) -> Result<PathBuf> {
    let program = match &options.postlink {
        Some(program) => program.clone(),
        None => {
            let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
            cargo.args(["build", "--quiet", "--package", "postlink"]);
            if !cargo.status().context("cargo build")?.success() {
                bail!("postlink cannot be built");
            }
            target_folder()?.join("debug/postlink")
        }
    };
    let copy = folder.join(format!("postlink.{}", std::process::id()));
    fs::copy(&program, &copy).with_context(|| program.display().to_string())?;
    Ok(copy)
}

/// A list as `--record` has written it.
fn read(path: &Path) -> Result<List> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let mut list = List::new();
    for (number, line) in text.lines().enumerate() {
        let mut words = line.splitn(3, ' ');
        let (Some(program), Some(state), Some(value)) = (words.next(), words.next(), words.next())
        else {
            bail!(
                "{}:{}: three words are needed, not '{line}'",
                path.display(),
                number + 1
            );
        };
        list.insert(format!("{program} {state}"), value.to_owned());
    }
    Ok(list)
}

/// The lines of one program.
fn of_program(list: &List, program: &str) -> List {
    let start = format!("{program} ");
    list.range(start.clone()..)
        .take_while(|(key, _)| key.starts_with(&start))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// Prints what is not as it was, and gives how many lines that are. Of a program whose input is another one
/// nothing else is worth a line.
fn differences(before: &List, now: &List) -> usize {
    let show = |value: Option<&String>| value.map_or("nothing", String::as_str).to_owned();
    let mut changed: Vec<&String> = before
        .keys()
        .chain(now.keys())
        .filter(|key| before.get(*key) != now.get(*key))
        .collect();
    changed.sort();
    changed.dedup();
    if let Some(input) = changed
        .iter()
        .find(|key| key.ends_with(" input") || key.ends_with(" profile"))
    {
        println!(
            "{input}: not the file that the list was made with: {} there, {} here",
            show(before.get(*input)),
            show(now.get(*input))
        );
        return changed.len();
    }
    for key in &changed {
        println!(
            "{key}: was {}, is {}",
            show(before.get(*key)),
            show(now.get(*key))
        );
    }
    changed.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(lines: &[(&str, &str)]) -> List {
        lines
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn changed_added_and_missing_lines_all_count() {
        let before = list(&[("a.x input", "1"), ("a.x safe", "2"), ("a.x size", "3")]);
        let now = list(&[("a.x input", "1"), ("a.x safe", "9"), ("a.x fast", "4")]);
        assert_eq!(differences(&before, &before), 0);
        assert_eq!(differences(&before, &now), 3);
    }

    #[test]
    fn a_program_has_its_own_lines_only() {
        let all = list(&[("a safe", "1"), ("a.x safe", "2"), ("a.xy safe", "3")]);
        assert_eq!(of_program(&all, "a.x"), list(&[("a.x safe", "2")]));
    }
}
