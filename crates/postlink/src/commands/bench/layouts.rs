//! The programs: those that are given, one that is made from a profile, and layouts that only luck tells apart.
//!
//! A layout of A for `--layouts` is A as it is, with every function that ran moved in the order that it has, its
//! blocks as they are and nothing split off, and distances between functions by chance (`optimize --layout-seed`). All
//! are proved, as every output is. Programs are made by a process of their own, so that this one stays
//! small: the peak memory of a run cannot be told below that of the process that starts it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::Bench;
use super::lab::Program;
use crate::rewriting;
use crate::ui::Ui;
use crate::workload::runnable;

/// How many of the programs are compared; the others are layouts.
pub const COMPARED: usize = 2;

/// All programs: A, B, layouts of A. `folder` has what is made, and goes with the command.
pub fn programs(bench: &Bench, folder: &Path, ui: &Ui) -> Result<Vec<Program>> {
    let first = rewriting::runnable(&bench.first)?;
    let second = match &bench.second {
        Some(second) => rewriting::runnable(second)?,
        None => make(bench, folder, "optimized", &[], ui)?,
    };
    let mut paths = vec![first, second];
    for seed in 1..=bench.layouts.unwrap_or(0) {
        let seed = format!("--layout-seed={seed}");
        let as_it_is = [
            "--reorder-blocks=none",
            "--reorder-functions=none",
            "--split-functions=none",
            &seed,
        ];
        let name = format!("layout{}", paths.len() + 1 - COMPARED);
        paths.push(make(bench, folder, &name, &as_it_is, ui)?);
    }
    let mut programs = vec![];
    for (n, path) in paths.into_iter().enumerate() {
        if !path.is_file() {
            bail!("{}: no such file", path.display());
        }
        let script = format!("program{n}");
        programs.push(Program {
            label: label(bench, n, &path),
            runnable: runnable(&path, bench.runner.as_deref(), folder, &script)?,
            path,
        });
    }
    Ok(programs)
}

/// The file's name; with its folder, and if need be a number, where both programs have one name.
fn label(bench: &Bench, number: usize, path: &Path) -> String {
    let name = |path: &Path| {
        let name = path.file_name().unwrap_or(path.as_os_str());
        name.to_string_lossy().into_owned()
    };
    match &bench.second {
        Some(second) if number < COMPARED && *second == bench.first => {
            format!("{} ({})", name(path), number + 1)
        }
        Some(second) if number < COMPARED && name(second) == name(&bench.first) => {
            let given = [&bench.first, second][number];
            given.display().to_string()
        }
        _ => name(path),
    }
}

/// Has a program made from A and the profile.
fn make(bench: &Bench, folder: &Path, name: &str, options: &[&str], ui: &Ui) -> Result<PathBuf> {
    let output = folder.join(name);
    let progress = ui.progress("bench");
    progress.set(|| format!("making {name}"));
    let this = std::env::current_exe().context("the path of the running program")?;
    let mut command = Command::new(this);
    command.args(["--quiet", "optimize"]).arg(&bench.first);
    for profile in &bench.profile {
        command.arg("--profile").arg(profile);
    }
    let done = command
        .args(options)
        .arg("-o")
        .arg(&output)
        .env("NO_COLOR", "1")
        .output()
        .context("postlink optimize")?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        let said = said.trim();
        bail!("{}", said.strip_prefix("error: ").unwrap_or(said));
    }
    Ok(output)
}
