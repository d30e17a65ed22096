//! Simulated caches and branch prediction: exact, repeatable, and free of the machine's noise.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::programs::{self, Program};
use crate::process;

/// The caches that are simulated, the same on every machine: without them cachegrind takes those that it runs on.
pub const CACHES: &[&str] = &["--I1=32768,8,64", "--LL=1048576,16,64"];

/// What valgrind's cachegrind counts.
#[derive(Clone, Copy, Debug)]
pub struct Misses {
    /// Instructions executed.
    pub instructions: u64,
    /// Misses of the first-level instruction cache.
    pub instruction_cache: u64,
    /// Misses of code in the last-level cache, which data shares.
    pub second_level: u64,
    /// Branches predicted wrongly.
    pub branches: u64,
}

/// Simulates the workload with a program.
pub fn simulate(program: &Program, path: &Path, corpus: &Path, folder: &Path) -> Result<Misses> {
    let (stdout, stderr) = (folder.join("cachegrind.out"), folder.join("cachegrind.err"));
    let n = program.simulated.context("not a program to simulate")?;
    let mut command = programs::command(program, path, corpus, n)?;
    let mut runner =
        "valgrind --tool=cachegrind --cache-sim=yes --branch-sim=yes --cachegrind-out-file=/dev/null"
            .to_owned();
    CACHES
        .iter()
        .for_each(|cache| runner += &format!(" {cache}"));
    command.env("RUNNER", runner);
    let run = process::run(&mut command, &stdout, &stderr)?;
    let said = fs::read_to_string(&stderr).with_context(|| stderr.display().to_string())?;
    if !run.status.success() {
        bail!(
            "valgrind: {}: {}",
            run.status,
            said.lines().last().unwrap_or_default()
        );
    }
    let value = |what: &str| {
        let line = said
            .lines()
            .find_map(|line| line.split_once("== ")?.1.strip_prefix(what));
        let digits: String = line?
            .split('(')
            .next()?
            .chars()
            .filter(char::is_ascii_digit)
            .collect();
        digits.parse::<u64>().ok()
    };
    let find =
        |what: &str| value(what).with_context(|| format!("cachegrind did not print '{what}'"));
    Ok(Misses {
        instructions: find("I   refs:").or_else(|_| find("I refs:"))?,
        instruction_cache: find("I1  misses:")?,
        second_level: find("LLi misses:")?,
        branches: find("Mispredicts:")?,
    })
}
