//! `cargo xtask bench bat`: address translation tables, read, written and asked; and profiles made through
//! them, side by side with perf2bolt.
//!
//! Programs of the corpus are instrumented, run and optimised by postlink with `--enable-bat`. The tables'
//! own costs are measured by an example of the crate `image`; profiles are made of a million generated
//! branches and as many runs between instructions of moved functions. Sizes beside llvm-bolt's are in
//! [`super::bat_sizes`], optimising again from translated profiles in [`super::bat_loop`]; both end the job
//! as failed if something is not as it must be. With `--clang` the tables of clang are among those that are
//! written again.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::{bat_loop, bat_sizes, programs, root};
use crate::packages;
use crate::process::{self, Run};

/// Programs that are measured when nothing is named.
const DEFAULT: &[&str] = &["sqlite", "redis", "rg"];
const TRANSLATIONS: usize = 10_000_000;
const RECORDS: usize = 1_000_000;
const PERF2BOLT: &str = "/usr/lib/llvm-22/bin/perf2bolt";

/// The job.
pub fn run(arguments: &[String]) -> Result<bool> {
    // llvm-bolt takes a minute and 5 GB for it.
    let with_clang = arguments.iter().any(|argument| argument == "--clang");
    let arguments: Vec<String> = arguments
        .iter()
        .filter(|argument| *argument != "--clang")
        .cloned()
        .collect();
    let arguments = &arguments[..];
    let names: Vec<String> = match arguments {
        [] => DEFAULT.iter().map(|name| (*name).to_owned()).collect(),
        names => names.to_vec(),
    };
    packages::install(packages::FOR_BENCH, true);
    let corpus = programs::corpus()?;
    build(&["build", "--release", "-p", "postlink"])?;
    build(&[
        "build",
        "--release",
        "-p",
        "postlink-elf",
        "--example",
        "bat_time",
        "--example",
        "bat_size",
    ])?;
    let release = release()?;
    let postlink = release.join("postlink");
    let mut table = String::from(
        "| program | tables | entries | read | written | prepared | 10 million translations | 2 million records: postlink | perf2bolt | memory |\n|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for program in programs::choose(&names)? {
        let folder = corpus.join("bench").join(program.name);
        let output = folder.join("bat.opt");
        bat_sizes::optimised(&postlink, program, &corpus)?;
        let figures = call(
            Command::new(release.join("examples/bat_time"))
                .arg(&output)
                .arg(TRANSLATIONS.to_string()),
        )?;
        let numbers: Vec<f64> = figures
            .split_whitespace()
            .filter_map(|n| n.parse().ok())
            .collect();
        let [bytes, entries, read, written, made, translated] = numbers[..] else {
            bail!("{}: bat_time printed {figures:?}", program.name);
        };
        let samples = folder.join("bat.samples");
        fs::write(&samples, records(&output)?).with_context(|| samples.display().to_string())?;
        let timed = |command: &mut Command, name: &str| -> Result<Run> {
            let run = process::run(
                command,
                &folder.join(format!("{name}.out")),
                &folder.join(format!("{name}.err")),
            )?;
            if run.status.success() {
                Ok(run)
            } else {
                bail!("{command:?} ended with {}", run.status)
            }
        };
        let ours = timed(
            Command::new(&postlink)
                .args(["aggregate", "-p"])
                .arg(&samples)
                .arg(&output)
                .arg("-o")
                .arg(folder.join("bat.ours.fdata")),
            "bat.ours",
        )?;
        let theirs = if Path::new(PERF2BOLT).exists() {
            Some(timed(
                Command::new(PERF2BOLT)
                    .arg(&output)
                    .args(["-pa", "-p"])
                    .arg(&samples)
                    .arg("-o")
                    .arg(folder.join("bat.theirs.fdata")),
                "bat.theirs",
            )?)
        } else {
            None
        };
        let (seconds, share) = match &theirs {
            Some(t) => (
                format!(
                    "{:.2} s ({:.1}×)",
                    t.wall.as_secs_f64(),
                    t.wall.as_secs_f64() / ours.wall.as_secs_f64().max(1e-9)
                ),
                format!(
                    "{:.0} of {:.0} MB",
                    ours.peak as f64 / 1e6,
                    t.peak as f64 / 1e6
                ),
            ),
            None => (
                "not installed".to_owned(),
                format!("{:.0} MB", ours.peak as f64 / 1e6),
            ),
        };
        writeln!(
            table,
            "| {} | {:.0} kB | {entries:.0} | {:.0} MB/s | {:.0} MB/s | {:.2} ms | {:.2} s ({:.0} ns each) | {:.2} s | {seconds} | {share} |",
            program.name,
            bytes / 1e3,
            bytes * 1e3 / read,
            bytes * 1e3 / written,
            made / 1e6,
            translated / 1e9,
            translated / TRANSLATIONS as f64,
            ours.wall.as_secs_f64(),
        )
        .context("out of memory")?;
    }
    let mut names: Vec<String> = match arguments {
        [] => bat_sizes::DEFAULT
            .iter()
            .map(|name| (*name).to_owned())
            .collect(),
        names => names.to_vec(),
    };
    if with_clang {
        names.push("clang".to_owned());
    }
    let (sizes, same) = bat_sizes::table(&release, &corpus, &names)?;
    let (rounds, good) = bat_loop::table(&release, &corpus)?;
    let text = format!(
        "# Address translation tables\n\nMade by `cargo xtask bench bat`. The 2 million records are all different, which those of programs are not: the profile made of \
         them has a million lines in 76 MB, and postlink sorts and writes for the most part. Recordings of 10 million branches as programs take them are in \
         `profiles.md`.\n\n{table}\n\
         ## Sizes\n\nFrom the same counts. Our encoder writes llvm-bolt's tables again from their decoded form; it must give the same bytes, so for the same \
         layout ours are as large as llvm-bolt's.\n\n{sizes}\n\
         ## Optimising again\n\nThe original is sampled and optimised with tables (first); that is sampled, its profile translated, and the original optimised with \
         it (second). Taken branches are counted in an emulator, libraries included; by dyno-stats are shares of the original's. Means of several sampling \
         periods. The second may be 1 % worse than the first.\n\n{rounds}"
    );
    println!("{text}");
    let output = root()?.join("bench/bat.md");
    fs::write(&output, text).with_context(|| output.display().to_string())?;
    eprintln!("written to {}", output.display());
    Ok(same && good)
}

/// What a command prints; an error if it fails.
pub fn call(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn build(arguments: &[&str]) -> Result<()> {
    let status = Command::new("cargo")
        .args(arguments)
        .current_dir(root()?)
        .status()
        .context("cargo")?;
    if status.success() {
        Ok(())
    } else {
        bail!("cargo {} ended with {status}", arguments.join(" "))
    }
}

/// Where cargo puts what it builds for release.
fn release() -> Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    Ok(target
        .map_or(root()?.join("target"), |dir| dir)
        .join("release"))
}

/// Pre-aggregated records between instructions of the functions that moved.
fn records(binary: &Path) -> Result<String> {
    let listing = call(
        Command::new("objdump")
            .args(["-d", "--no-show-raw-insn", "-j", ".text.hot"])
            .arg(binary),
    )?;
    let mut functions: Vec<Vec<u64>> = vec![];
    for line in listing.lines() {
        if line.ends_with(">:") {
            functions.push(vec![]);
        } else if let (Some((address, code)), Some(last)) =
            (line.trim().split_once(":\t"), functions.last_mut())
            // perf2bolt 22 crashes where a branch leads to the padding between functions.
            && !code.starts_with("int3")
            && let Ok(address) = u64::from_str_radix(address, 16)
        {
            last.push(address);
        }
    }
    functions.retain(|f| !f.is_empty());
    if functions.is_empty() {
        bail!("{}: no moved functions", binary.display());
    }
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut below = |limit: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % limit.max(1) as u64) as usize
    };
    let mut lines = BTreeSet::new();
    for _ in 0..RECORDS {
        let f = &functions[below(functions.len())];
        let g = &functions[below(functions.len())];
        let (from, to, start, end) = (
            f[below(f.len())],
            g[below(g.len())],
            f[below(f.len())],
            f[below(f.len())],
        );
        lines.insert(format!("B {from:x} {to:x} {} 0\n", 1 + below(1000)));
        lines.insert(format!(
            "F {:x} {:x} {}\n",
            start.min(end),
            start.max(end),
            1 + below(1000)
        ));
    }
    Ok(lines.into_iter().collect())
}
