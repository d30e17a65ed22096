//! `merge-fdata`: many fdata or YAML profiles into one, or many files of counters that instrumented binaries wrote.
//!
//! Counters have no names of functions and blocks, which only the program's file gives: their sum is a file of
//! counters, which `llvm-bolt -data` takes as it takes fdata.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use postlink_profile::any::{self, Any, Model};
use postlink_profile::samples::Options;
use postlink_profile::symbolic::SymbolicProfile;
use postlink_profile::{Weighted, bolt_yaml, fdata, plprof};

use super::Arguments;
use super::options::{Tool, switch, value};
use crate::ui::Ui;

/// Its command line.
pub const TOOL: Tool = Tool {
    name: "merge-fdata",
    overview: "merge multiple fdata into a single file",
    usage: "merge-fdata [options] <fdata1> [<fdata2>]...",
    options: &[
        value("o", "Write output to <file>"),
        value(
            "print",
            "print the list of objects with count to stderr: none, exec, branches",
        ),
        switch("q", "do not print merged data to stdout"),
    ],
    aliases: &[],
};

/// Runs with arguments (without the program's name).
pub fn main(arguments: Arguments<'_>) -> ExitCode {
    match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("merge-fdata: {}", crate::errors::line(&error));
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments<'_>) -> Result<()> {
    let given = TOOL.parse(arguments)?;
    if given.positional.is_empty() {
        bail!(
            "Not enough positional command line arguments specified!\nMust specify at least 1 positional argument: See: merge-fdata --help"
        );
    }
    let print = given.value("print").unwrap_or("none");
    if !matches!(print, "none" | "exec" | "branches") {
        bail!("for the --print option: Cannot find option named '{print}'!");
    }
    let mut files = Vec::new();
    for argument in &given.positional {
        collect(Path::new(argument), &mut files)?;
    }
    let inputs: Vec<Weighted> = files
        .into_iter()
        .map(|path| Weighted { path, weight: 1 })
        .collect();
    // An empty file counts as one without records.
    let inputs: Vec<Weighted> = inputs
        .into_iter()
        .filter(|input| std::fs::metadata(&input.path).map_or(true, |data| data.len() > 0))
        .collect();
    let models = any::models(&inputs)?;
    if let Some(at) = models
        .iter()
        .position(|m| !matches!(m, Model::Symbols | Model::Blocks | Model::Counters))
    {
        bail!(
            "{}: holds {}: fdata, YAML or counters of an instrumented binary are needed",
            inputs[at].path.display(),
            models[at]
        );
    }
    eprintln!("Using {} profiles.", inputs.len());
    let output = given.value("o").map(Path::new);
    let to_screen = output.is_none() && !given.switch("q", false)?;
    let mut watched = Ui::new(false, false).phases("merge");
    watched.phases.begin("read");
    let merged = any::merge(&inputs, &Options::default())?;
    watched.finish();
    match merged {
        Any::Blocks(profile) => {
            if let Some(output) = output {
                bolt_yaml::write(output, &profile)?;
            } else if to_screen {
                std::io::stdout()
                    .lock()
                    .write_all(&bolt_yaml::to_bytes(&profile))?;
            }
        }
        Any::Symbols(profile) => {
            if let Some(output) = output {
                fdata::write(output, &profile)?;
            } else if to_screen {
                let mut out = BufWriter::new(std::io::stdout().lock());
                fdata::write_to(&mut out, &profile)?;
                out.flush()?;
            }
            list(&profile, print);
        }
        Any::Counters(profile) => {
            if print != "none" {
                bail!(
                    "--print={print}: counters of instrumented binaries name no functions; postlink show lists them"
                );
            }
            if let Some(output) = output {
                plprof::write(output, &profile)?;
            } else if to_screen {
                let mut out = BufWriter::new(std::io::stdout().lock());
                plprof::write_to(&mut out, &profile)?;
                out.flush()?;
            }
        }
        Any::Addresses(_) => {}
    }
    Ok(())
}

/// A file, or all files below a directory.
fn collect(path: &Path, out: &mut Vec<PathBuf>) -> Result<()> {
    let named = || path.display().to_string();
    if !std::fs::metadata(path).with_context(named)?.is_dir() {
        out.push(path.to_owned());
        return Ok(());
    }
    let mut inside: Vec<PathBuf> = std::fs::read_dir(path)
        .with_context(named)?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    inside.sort();
    inside.iter().try_for_each(|path| collect(path, out))
}

/// Prints functions by how often they were entered, or by branches in them.
fn list(profile: &SymbolicProfile, print: &str) {
    let mut functions: Vec<(u64, &[u8])> = match print {
        "exec" => {
            let counts = profile.execution_counts();
            let names = profile.names().iter();
            names
                .map(|(id, name)| (counts.get(id.0 as usize).copied().unwrap_or(0), name))
                .filter(|function| function.0 > 0)
                .collect()
        }
        "branches" => profile
            .functions()
            .map(|(name, branches)| {
                let sum = branches
                    .iter()
                    .filter(|branch| branch.from.in_symbol)
                    .fold(0u64, |sum, branch| sum.saturating_add(branch.count));
                (sum, profile.names().get(name))
            })
            .filter(|function| function.0 > 0)
            .collect(),
        _ => return,
    };
    functions.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(b.1)));
    let what = if print == "exec" {
        "execution count"
    } else {
        "total branch count"
    };
    eprintln!("Functions sorted by {what}:");
    for (count, name) in functions {
        eprintln!("{} : {count}", String::from_utf8_lossy(name));
    }
}
