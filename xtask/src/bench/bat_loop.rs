//! Optimising again from a profile of the optimised program, on programs of the corpus.
//!
//! ```text
//! original ── sampled ──► profile ──► first ── sampled, translated ──► profile ──► second (of the original again)
//! ```
//!
//! Branch records come from an emulator with a plugin (`tests/tools/lbrsim.c`), which also counts every taken
//! branch of the run, libraries included: that tells what the layouts are worth. Every run must do the same
//! work for that: Lua makes the seed of its hash tables of the clock and of addresses on its stack, and how
//! many names collide is worth 1.3 % of its taken branches, more than what is looked for. So the clock is
//! still, and all programs are run under the same name. Which samples are taken is chance as well; so
//! everything is done with several sampling periods, and their means are compared.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::bat::call;
use super::programs::{self, Program};
use super::root;

/// Programs and the length of their workload.
const PROGRAMS: &[(&str, &str)] = &[
    ("sqlite", "20000"),
    ("sqlite-clang", "20000"),
    ("lua", "1"),
    ("lua-clang", "1"),
];
/// Taken branches between two samples, in the mean.
const PERIODS: &[u32] = &[6007, 8009, 10007];
/// How much worse the second result may be.
const LIMIT: f64 = 1.01;

/// Segments with code: offset in the file, address, size in memory.
fn code(program: &Path) -> Result<Vec<(u64, u64, u64)>> {
    let headers = call(Command::new("readelf").arg("-lW").arg(program))?;
    let number = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok();
    let segments: Vec<_> = headers
        .lines()
        .filter(|line| line.trim_start().starts_with("LOAD") && line.contains(" R E "))
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            Some((number(words[1])?, number(words[2])?, number(words.get(5)?)?))
        })
        .collect();
    if segments.is_empty() {
        bail!("{}: no segment with code", program.display());
    }
    Ok(segments)
}

/// What the loop needs.
struct Round<'a> {
    program: &'a Program,
    corpus: &'a Path,
    postlink: &'a Path,
    plugin: &'a Path,
    /// A library whose time is still.
    clock: &'a Path,
    dir: &'a Path,
    work: &'a str,
}

impl Round<'_> {
    fn at(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Runs a program on its workload in the emulator; the branches it took. Records go to `samples`.
    fn emulate(&self, program: &Path, period: u32, samples: &Path) -> Result<f64> {
        let raw = self.at("raw");
        let same_name = self.at("program");
        fs::copy(program, &same_name).with_context(|| program.display().to_string())?;
        let mut command =
            programs::command(self.program, &same_name, self.corpus, Some(self.work))?;
        let runner = format!(
            "qemu-x86_64 -E LD_PRELOAD={} -plugin {},out={},period={period},depth=32,stack=0,max=100000000",
            self.clock.display(),
            self.plugin.display(),
            raw.display()
        );
        let output = command
            .env("RUNNER", runner)
            .output()
            .context("the emulated workload")?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if !output.status.success() {
            bail!("{}: {}: {said}", program.display(), output.status);
        }
        let taken = said
            .split("lbrsim: ")
            .nth(1)
            .and_then(|rest| rest.split(' ').next()?.parse().ok())
            .with_context(|| format!("the plugin said {said:?}"))?;
        // The plugin tells of one mapping, and not where it is in the file; but that it is the first one of code.
        let mut lines = BufReader::new(File::open(&raw)?);
        let mut event = String::new();
        lines.read_line(&mut event)?;
        let start = event
            .split(['[', '('])
            .nth(1)
            .and_then(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok())
            .with_context(|| format!("the plugin wrote {event:?}"))?;
        let segments = code(program)?;
        let page = |n: u64| n & 0xfff;
        let bias = start.wrapping_sub(segments[0].1 - page(segments[0].1));
        let path = program.canonicalize()?;
        let mut out = BufWriter::new(File::create(samples)?);
        for (offset, address, size) in segments {
            let off = page(address);
            writeln!(
                out,
                "app 1/1 1.000000: PERF_RECORD_MMAP2 1/1: [{:#x}({:#x}) @ {:#x} 00:00 0 0]: r-xp {}",
                bias.wrapping_add(address - off),
                (size + off).next_multiple_of(0x1000),
                offset - off,
                path.display()
            )?;
        }
        std::io::copy(&mut lines, &mut out)?;
        out.flush()?;
        fs::remove_file(&raw)?;
        Ok(taken)
    }

    /// Optimises the original with a profile of a program. Shares that dyno-stats leave of taken branches and
    /// of instructions.
    fn optimise(&self, sampled: &Path, samples: &Path, output: &Path) -> Result<[f64; 2]> {
        let profile = self.at("profile.fdata");
        call(
            Command::new(self.postlink)
                .args(["aggregate", "-p"])
                .args([samples, sampled])
                .arg("-o")
                .arg(&profile),
        )?;
        let account = call(
            Command::new(self.postlink)
                .args(["optimize", "--enable-bat", "--dyno-stats", "--json"])
                .arg(self.corpus.join("bin").join(self.program.file))
                .arg("-p")
                .arg(&profile)
                .arg("-o")
                .arg(output),
        )?;
        let account: Value = serde_json::from_str(&account).context("what optimize printed")?;
        let count = |at: usize, name: &str| {
            account["optimize"]["dyno_stats"][at][name]
                .as_f64()
                .with_context(|| format!("no {name} in the dyno-stats"))
        };
        let taken = |at: usize| -> Result<f64> {
            Ok(count(at, "taken_forward_branches")?
                + count(at, "taken_backward_branches")?
                + count(at, "executed_unconditional_branches")?)
        };
        let instructions = |at: usize| count(at, "executed_instructions");
        Ok([taken(1)? / taken(0)?, instructions(1)? / instructions(0)?])
    }

    /// Taken branches of the original, the first and the second result; what dyno-stats say of both.
    fn go(&self, period: u32) -> Result<([f64; 3], [[f64; 2]; 2])> {
        let original = self.corpus.join("bin").join(self.program.file);
        let [samples, first, second] = ["samples", "first", "second"].map(|name| self.at(name));
        let plain = self.emulate(&original, period, &samples)?;
        let estimate = self.optimise(&original, &samples, &first)?;
        let once = self.emulate(&first, period, &samples)?;
        let again = self.optimise(&first, &samples, &second)?;
        let twice = self.emulate(&second, period, &samples)?;
        Ok(([plain, once, twice], [estimate, again]))
    }
}

/// The table, and whether all programs keep within the limit.
pub fn table(release: &Path, corpus: &Path) -> Result<(String, bool)> {
    let scratch = tempfile::tempdir().context("a temporary directory")?;
    let plugin = scratch.path().join("lbrsim.so");
    call(
        Command::new("gcc")
            .args(["-O2", "-shared", "-fPIC", "-o"])
            .arg(&plugin)
            .arg(root()?.join("tests/tools/lbrsim.c")),
    )?;
    let (source, clock) = (
        scratch.path().join("clock.c"),
        scratch.path().join("clock.so"),
    );
    fs::write(
        &source,
        "long time(long *at) { if (at) *at = 1000000000; return 1000000000; }\n",
    )?;
    call(
        Command::new("gcc")
            .args(["-O2", "-shared", "-fPIC", "-w", "-fno-builtin", "-o"])
            .arg(&clock)
            .arg(&source),
    )?;
    let postlink = release.join("postlink");
    let mut table = String::from(
        "| program | taken branches | first | second | second / first | dyno-stats: taken, first | second | instructions, first | second |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    let mut good = true;
    for &(name, work) in PROGRAMS {
        let program = programs::choose(&[name.to_owned()])?[0];
        programs::build(program, corpus)?;
        eprintln!("optimising {name} again and again");
        let round = Round {
            program,
            corpus,
            postlink: &postlink,
            plugin: &plugin,
            clock: &clock,
            dir: scratch.path(),
            work,
        };
        let (mut taken, mut shares) = ([0.0; 3], [[0.0; 2]; 2]);
        for &period in PERIODS {
            let (counts, estimates) = round.go(period)?;
            for (sum, count) in taken.iter_mut().zip(counts) {
                *sum += count / PERIODS.len() as f64;
            }
            for (sums, estimate) in shares.iter_mut().zip(estimates) {
                for (sum, share) in sums.iter_mut().zip(estimate) {
                    *sum += share / PERIODS.len() as f64;
                }
            }
        }
        let worse = taken[2] / taken[1];
        // Shares of the original: a hundredth of it.
        let within = worse <= LIMIT && (0..2).all(|i| shares[1][i] <= shares[0][i] + (LIMIT - 1.0));
        good &= within;
        let percent = |share: f64| format!("{:.2} %", share * 100.0);
        writeln!(
            table,
            "| {name} | {:.1} M | {:.1} M | {:.1} M | {:.4}{} | {} | {} | {} | {} |",
            taken[0] / 1e6,
            taken[1] / 1e6,
            taken[2] / 1e6,
            worse,
            if within { "" } else { " **more than 1 %**" },
            percent(shares[0][0]),
            percent(shares[1][0]),
            percent(shares[0][1]),
            percent(shares[1][1]),
        )
        .context("out of memory")?;
    }
    Ok((table, good))
}
