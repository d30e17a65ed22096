//! `cargo xtask bench probes`: sample profiles and pseudo probes, side by side with llvm-profgen 22.
//!
//! Inputs are made up (`crates/profgen/examples/made_up.rs`): perf scripts of samples of a C++ program built
//! here with clang-19, with and without call chains, and a program with many megabytes of probes. Both tools
//! make the same profile or listing of the same input, and the outputs must be the same to the byte. Runs
//! alternate between the tools; figures are medians. No row starts another round when the time for it
//! ([`BUDGET`], shared by the rows that are left) is up. Outputs go to memory (`/dev/shm`) where there is
//! such a file system: a listing is hundreds of megabytes, and the disk is not what is measured.
//!
//! Recursion in the program is twelve deep. With 200 (chains hundreds of frames long, and hundreds of
//! thousands of contexts) a gigabyte takes either tool many minutes.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::tools::Tools;
use crate::packages::find_program;
use crate::process::{self, Run};

const SOURCE: &str = r#"
#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <vector>
template <int N> struct Step { __attribute__((noinline)) static int run(int x) { if (x & N) return x * N + Step<N - 1>::run(x >> 1); for (int i = 0; i < (x & 7); i++) x ^= i * N; return Step<N - 1>::run(x + 1); } };
template <> struct Step<0> { static int run(int x) { return x ? x * 3 : 1; } };
std::map<std::string, int> counts;
int main(int argc, char **argv) {
  std::vector<int> v; int total = 0;
  for (int i = 0; i < 100000; i++) { v.push_back(Step<12>::run(i)); total += v.back(); }
  std::sort(v.begin(), v.end());
  for (int i = 0; i < 1000; i++) counts[std::to_string(i % 100)] += v[i];
  printf("%d %zu\n", total, counts.size());
}
"#;

/// For all runs of both tools, without the making of inputs.
const BUDGET: Duration = Duration::from_secs(270);
/// What is wanted: faster by, and memory of the LLVM tool's.
const TARGET: (f64, f64) = (10.0, 1.0 / 3.0);

/// One row of the report.
struct Row {
    what: String,
    input: u64,
    output: u64,
    postlink: Vec<Run>,
    llvm: Vec<Run>,
    same: bool,
}

/// Where things are.
struct Bench {
    folder: PathBuf,
    postlink: PathBuf,
    llvm: PathBuf,
    made_up: PathBuf,
    /// Where outputs go.
    outputs: PathBuf,
    runs: usize,
}

/// The job.
pub fn run(arguments: &[String]) -> Result<bool> {
    let (mut megabytes, mut probes, mut runs) = (1024u64, 24u64, 3usize);
    let mut output = super::root()?.join("bench/probes.md");
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let value = rest
            .next()
            .with_context(|| format!("{argument} needs a value"))?;
        match argument.as_str() {
            "--script-megabytes" => megabytes = value.parse()?,
            "--probe-megabytes" => probes = value.parse()?,
            "--runs" => runs = value.parse()?,
            "--output" => output = value.into(),
            other => bail!("cargo xtask bench probes has no option '{other}'"),
        }
    }
    let llvm = find_program("llvm-profgen-22").context("llvm-profgen-22 is not installed")?;
    let folder = tempfile::tempdir().context("a temporary directory")?;
    let memory = Path::new("/dev/shm");
    let outputs = if memory.is_dir() {
        tempfile::tempdir_in(memory)
    } else {
        tempfile::tempdir()
    }
    .context("a temporary directory")?;
    let tools = Tools::find(false)?;
    let bench = Bench {
        folder: folder.path().to_owned(),
        postlink: bench_name(folder.path(), tools.program())?,
        llvm,
        made_up: build_example()?,
        outputs: outputs.path().to_owned(),
        runs,
    };
    let rows = bench.all(megabytes, probes)?;
    let text = report(&rows, &bench)?;
    println!("{text}");
    fs::write(&output, &text).with_context(|| output.display().to_string())?;
    Ok(rows.iter().all(|row| row.same))
}

/// postlink under the name by which it behaves as `llvm-profgen`.
fn bench_name(folder: &Path, postlink: &Path) -> Result<PathBuf> {
    let name = folder.join("llvm-profgen");
    std::os::unix::fs::symlink(postlink, &name).context("a symbolic link")?;
    Ok(name)
}

fn build_example() -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "--release", "--package", "postlink-profgen"]);
    build.args(["--example", "made_up", "--message-format=json"]);
    let output = build
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("cargo build")?;
    if !output.status.success() {
        bail!("the example does not build");
    }
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["name"] == "made_up")
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .context("cargo did not say where the example is")
}

impl Bench {
    fn at(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn make(&self, output: &Path, arguments: &[&str]) -> Result<u64> {
        let file = File::create(output).with_context(|| output.display().to_string())?;
        let status = Command::new(&self.made_up)
            .args(arguments)
            .stdout(file)
            .status()?;
        if !status.success() {
            bail!("made_up {arguments:?}: {status}");
        }
        Ok(fs::metadata(output)?.len())
    }

    fn once(&self, tool: &Path, arguments: &[String], stdout: &Path) -> Result<Run> {
        let mut command = Command::new(tool);
        command.args(arguments);
        let run = process::run(&mut command, stdout, &self.at("said"))?;
        if !run.status.success() {
            let said = fs::read_to_string(self.at("said")).unwrap_or_default();
            bail!("{}: {}: {said}", tool.display(), run.status);
        }
        Ok(run)
    }

    /// Runs both tools in turn, as often as `time` allows, but once at least.
    fn row(
        &self,
        what: &str,
        input: u64,
        arguments: &[String],
        listing: bool,
        time: Duration,
    ) -> Result<Row> {
        eprintln!("== {what}");
        let (mine, theirs) = (self.outputs.join("mine"), self.outputs.join("theirs"));
        let with = |output: &Path| {
            let mut all = arguments.to_vec();
            let target = if listing {
                Path::new("/dev/null")
            } else {
                output
            };
            all.push(format!("--output={}", target.display()));
            all
        };
        let (out_a, out_b) = if listing {
            (mine.clone(), theirs.clone())
        } else {
            (self.at("out"), self.at("out"))
        };
        let start = Instant::now();
        let (mut postlink, mut llvm) = (Vec::new(), Vec::new());
        for round in 1..=self.runs.max(1) as u32 {
            postlink.push(self.once(&self.postlink, &with(&mine), &out_a)?);
            llvm.push(self.once(&self.llvm, &with(&theirs), &out_b)?);
            if start.elapsed() / round * (round + 1) > time {
                break;
            }
        }
        let same = same(&mine, &theirs)?;
        if !same {
            eprintln!("{what}: the outputs differ");
        }
        let output = fs::metadata(&mine)?.len();
        for file in [mine, theirs] {
            fs::remove_file(file)?;
        }
        Ok(Row {
            what: what.to_owned(),
            input,
            output,
            postlink,
            llvm,
            same,
        })
    }

    fn all(&self, megabytes: u64, probes: u64) -> Result<Vec<Row>> {
        let (source, program) = (self.at("p.cpp"), self.at("p"));
        fs::write(&source, SOURCE)?;
        let status = Command::new("clang++-19")
            .args(["-O2", "-g", "-fpseudo-probe-for-profiling", "-o"])
            .args([&program, &source])
            .status()
            .context("clang++-19")?;
        if !status.success() {
            bail!("clang++-19: {status}");
        }
        let mut rows = Vec::new();
        let (script, size) = (self.at("script"), megabytes.to_string());
        let binary = |path: &Path| format!("--binary={}", path.display());
        for (kind, what) in [("flat", "branches"), ("chains", "call chains and branches")] {
            let path = program.display().to_string();
            let input = self.make(&script, &["script", &path, &size, kind])?;
            let mut arguments = vec![binary(&program)];
            arguments.push(format!("--perfscript={}", script.display()));
            arguments.push("--format=text".to_owned());
            let time = BUDGET / 3;
            rows.push(self.row(
                &format!("profile from {what}"),
                input,
                &arguments,
                false,
                time,
            )?);
            fs::remove_file(&script)?;
        }
        let many = self.at("many");
        let input = self.make(&many, &["program", &probes.to_string()])?;
        let arguments = [
            binary(&many),
            "--show-disassembly-only".to_owned(),
            "--show-pseudo-probe".to_owned(),
        ];
        let what = format!("listing with {probes} MiB of probes");
        rows.push(self.row(&what, input, &arguments, true, BUDGET / 3)?);
        Ok(rows)
    }
}

/// Whether two files are the same, but for the path in the head of a listing.
fn same(a: &Path, b: &Path) -> Result<bool> {
    let read = |path: &Path| fs::read(path).with_context(|| path.display().to_string());
    Ok(read(a)? == read(b)?)
}

/// Median costs: wall and processor time in seconds, memory in bytes.
fn medians(runs: &[Run]) -> Result<(f64, f64, u64)> {
    let of = |value: fn(&Run) -> f64| process::median(&runs.iter().map(value).collect::<Vec<_>>());
    let wall = of(|run| run.wall.as_secs_f64());
    let processor = of(|run| run.cpu.as_secs_f64());
    let peak = of(|run| run.peak as f64);
    match (wall, processor, peak) {
        (Some(wall), Some(processor), Some(peak)) => Ok((wall, processor, peak as u64)),
        _ => bail!("no run"),
    }
}

fn report(rows: &[Row], bench: &Bench) -> Result<String> {
    let version = Command::new(&bench.llvm).arg("--version").output()?;
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    let version = version
        .lines()
        .find(|line| line.contains("version"))
        .unwrap_or("unknown version")
        .trim();
    let (faster, memory) = TARGET;
    let mut text = format!(
        "# Sample profiles and pseudo probes

Written by `cargo xtask bench probes`: postlink {} and llvm-profgen ({version}) on the same made-up input, in turn; medians; {} processors. The scripts
are of samples of a small C++ program with probes. Outputs go to {}. Targets: {faster}× as fast by the clock on the wall, at most {memory:.2} of the memory.

| | input | output | runs | postlink: wall, processor, memory | llvm-profgen: wall, processor, memory | faster by (target {faster}) | memory (target {memory:.2}) | output |
|---|---|---|---|---|---|---|---|---|
",
        env!("CARGO_PKG_VERSION"),
        std::thread::available_parallelism().map_or(1, usize::from),
        if bench.outputs.starts_with("/dev/shm") { "memory" } else { "the disk" },
    );
    for row in rows {
        let (ours, theirs) = (medians(&row.postlink)?, medians(&row.llvm)?);
        let costs = |(wall, processor, peak): (f64, f64, u64)| {
            format!("{wall:.2} s, {processor:.2} s, {} MiB", peak >> 20)
        };
        let (ratio, share) = (
            theirs.0 / ours.0.max(1e-6),
            ours.2 as f64 / theirs.2.max(1) as f64,
        );
        let met = |met: bool| if met { "" } else { " (missed)" };
        text.push_str(&format!(
            "| {} | {} MiB | {} KiB | {} | {} | {} | {ratio:.1}×{} | {share:.2}{} | {} |\n",
            row.what,
            row.input >> 20,
            row.output >> 10,
            row.postlink.len(),
            costs(ours),
            costs(theirs),
            met(ratio >= faster),
            met(share <= memory),
            if row.same { "the same" } else { "**differs**" }
        ));
    }
    Ok(text)
}
