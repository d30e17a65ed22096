//! `cargo xtask bench refused`: what a function costs that the checker refuses.
//!
//! Such a function is taken back, and what depends on it is linked, written and checked again. A large library is
//! instrumented as it is, and with one function refused (`--refuse`, an option for tests), in alternating runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use postlink_measure::ratio::percent;
use postlink_measure::{Measure, Paired, Ratio, Run, compare};

use super::tools::Tools;

/// The library, Debian's package with it, and a function of it.
const LIBRARY: (&str, &str, &str) = (
    "/usr/lib/x86_64-linux-gnu/libclang-22.so.22",
    "libclang1-22",
    "clang_getCursor",
);

/// What the command line says.
struct Wishes {
    pairs: u32,
    output: PathBuf,
    postlink: Option<PathBuf>,
    file: PathBuf,
    function: String,
}

impl Wishes {
    fn parse(arguments: &[String]) -> Result<Wishes> {
        let mut wishes = Wishes {
            pairs: 15,
            output: super::root()?.join("bench/refused.md"),
            postlink: None,
            file: LIBRARY.0.into(),
            function: LIBRARY.2.to_owned(),
        };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let value = rest
                .next()
                .with_context(|| format!("{argument} needs a value"))?;
            match argument.as_str() {
                "--runs" => wishes.pairs = value.parse().context("--runs needs a number")?,
                "--output" => wishes.output = value.into(),
                "--postlink" => wishes.postlink = Some(value.into()),
                "--file" => wishes.file = value.into(),
                "--refuse" => wishes.function.clone_from(value),
                other => bail!("cargo xtask bench refused has no option '{other}'"),
            }
        }
        if !wishes.file.exists() {
            bail!(
                "{}: there is no such file; {} is in Debian's package {}, and --file FILE --refuse FUNCTION name another",
                wishes.file.display(),
                LIBRARY.0,
                LIBRARY.1
            );
        }
        Ok(wishes)
    }
}

/// Instrumenting the file, perhaps with a function refused.
fn job(postlink: &Path, file: &Path, out: &Path, refuse: Option<&str>) -> Command {
    let mut command = Command::new(postlink);
    command.arg("instrument").arg(file).arg("-o").arg(out);
    if let Some(name) = refuse {
        command.args(["--refuse", name]);
    }
    command
}

/// The function must be one that moves: else it is not refused, and nothing is done again.
fn is_refused(mut job: Command, function: &str) -> Result<()> {
    let output = job.output().with_context(|| format!("{job:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    // Names of C++ and Rust are demangled there.
    let expected = "1 function could not be proved and stays: ";
    if output.status.success() && said.contains(expected) {
        Ok(())
    } else {
        bail!(
            "{job:?}: {}; '{expected}{function}' was expected:\n{said}",
            output.status
        )
    }
}

/// A row of the table.
fn row(paired: &Paired, what: &str, by: Measure, show: impl Fn(f64) -> String) -> Result<String> {
    let side = |side: fn(&(Run, Run)) -> &Run| {
        let mut values: Vec<f64> = paired.pairs.iter().filter_map(|p| by.of(side(p))).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    };
    let (whole, refused) = (side(|p| &p.0), side(|p| &p.1));
    let (whole, refused) = whole
        .zip(refused)
        .with_context(|| format!("{what} was not measured"))?;
    let ratio: Ratio = paired
        .ratio(by)
        .with_context(|| format!("{what} was not measured"))?;
    Ok(format!(
        "| {what} | {} | {} | {} | {} |\n",
        show(whole),
        show(refused),
        percent(ratio.estimate),
        ratio.interval_words()
    ))
}

/// The job.
pub fn run(arguments: &[String]) -> Result<bool> {
    let wishes = Wishes::parse(arguments)?;
    let postlink = match &wishes.postlink {
        Some(postlink) => postlink.clone(),
        None => Tools::find(false)?.program().to_owned(),
    };
    let folder = tempfile::tempdir().context("a folder for the outputs")?;
    let out = folder.path().join("out");
    let (file, function) = (&wishes.file, wishes.function.as_str());
    let command = |refuse: Option<&str>| job(&postlink, file, &out, refuse);
    is_refused(command(Some(function)), function)?;
    let silent = |refuse: Option<&str>| {
        let mut command = command(refuse);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    let (whole, refused) = (|| silent(None), || silent(Some(function)));
    let commands: [&dyn Fn() -> Command; 2] = [&whole, &refused];
    let paired: Paired = compare(wishes.pairs, commands, |run| {
        if run.status.success() {
            Ok(())
        } else {
            Err(anyhow::anyhow!("{}: {}", file.display(), run.status))
        }
    })?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let size = fs::metadata(file).map_or(0, |m| m.len());
    let mut text = format!(
        "# A refused function

Written by `cargo xtask bench refused`: `postlink instrument {}` ({:.1} MB), as it is and with `{function}` refused by the checker, which is
taken back then; what depends on it is linked, written and checked again. Medians of {} alternating pairs of runs, and the refused one's more with its 95 %
interval; {cores} processors.

| | all proved | one refused | more | interval of the ratio |
|---|--:|--:|--:|---|
",
        file.display(),
        size as f64 / 1e6,
        wishes.pairs,
    );
    let seconds = |s: f64| format!("{s:.2} s");
    let megabytes = |b: f64| format!("{:.0} MB", b / 1e6);
    text += &row(&paired, "processor time", Measure::ProcessorTime, seconds)?;
    text += &row(&paired, "wall time", Measure::WallTime, seconds)?;
    text += &row(&paired, "most memory", Measure::PeakMemory, megabytes)?;
    println!("{text}");
    fs::write(&wishes.output, &text).with_context(|| wishes.output.display().to_string())?;
    Ok(true)
}
