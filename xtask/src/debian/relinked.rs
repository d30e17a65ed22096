//! The same program optimised with and without the relocations that the linker kept.
//!
//! What it costs to know no references: jumps through tables continue in old code, and pointers go by old entries.
//! Programs of the corpus are built once, from the distribution's sources, with kept relocations; each is instrumented,
//! run and optimised as it is, and again with `--relocations none`, which treats it as if it had none. Plain and both
//! outputs run in rounds.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use postlink_measure::series::{Job, Limits, Runner, measure};
use postlink_measure::{Measure, Ratio, Run};

use crate::bench::programs::{self, Program};
use crate::bench::tools::Tools;

/// Programs of the corpus, and the size of their workloads.
const CHOSEN: &[(&str, &str)] = &[("lua", "1"), ("sqlite", "60000"), ("gawk", "60000")];

/// By how much the output without relocations may be slower than that with them.
const POINTS: f64 = 0.02;

struct Relinked<'a> {
    program: &'static Program,
    corpus: &'a Path,
    size: &'static str,
    files: [PathBuf; 3],
    start: Instant,
}

impl Relinked<'_> {
    fn output(&self, file: &Path, profile: Option<&Path>) -> Result<Vec<u8>> {
        let mut command = programs::command(self.program, file, self.corpus, Some(self.size))?;
        if let Some(profile) = profile {
            command.env("POSTLINK_PROFILE", profile);
        }
        let output = command.stdin(Stdio::null()).output()?;
        if !output.status.success() {
            bail!("{}: {}", file.display(), output.status);
        }
        Ok(output.stdout)
    }
}

impl Runner for Relinked<'_> {
    type Error = anyhow::Error;

    fn run(&mut self, job: Job) -> Result<Run> {
        let file = &self.files[job.program];
        let mut command = programs::command(self.program, file, self.corpus, Some(self.size))?;
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let run = postlink_measure::run(&mut command)?;
        if run.status.success() {
            Ok(run)
        } else {
            bail!("{}: {}", file.display(), run.status)
        }
    }

    fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }
}

fn ratio(ratio: Option<Ratio>) -> String {
    ratio.map_or("–".into(), |r| {
        format!("{:.3} ({})", r.estimate, r.interval_words())
    })
}

/// Optimises a program by its own counts, with the relocations that are named. Gives the output.
fn optimize(tools: &Tools, of: &Relinked<'_>, relocations: &str, folder: &Path) -> Result<PathBuf> {
    let input = &of.files[0];
    let at = |name: &str| folder.join(format!("{}.{relocations}.{name}", of.program.name));
    let (counting, profile, output) = (at("counting"), at("plraw"), at("fast"));
    for old in [&counting, &profile, &output] {
        let _ = fs::remove_file(old); // It may not be there.
    }
    let which = ["--relocations".as_ref(), Path::new(relocations)];
    let instrument = [
        "instrument".as_ref(),
        input.as_path(),
        "-o".as_ref(),
        &counting,
    ];
    tools.postlink(folder, &[&instrument[..], &which].concat())?;
    let plain = of.output(input, None)?;
    if of.output(&counting, Some(&profile))? != plain {
        bail!("with --relocations {relocations} the instrumented program's output differs");
    }
    let optimize = [
        "optimize".as_ref(),
        input.as_path(),
        "-p".as_ref(),
        &profile,
    ];
    let rest = [
        "-o".as_ref(),
        output.as_path(),
        "--preset".as_ref(),
        "fast".as_ref(),
    ];
    tools.postlink(folder, &[&optimize[..], &rest, &which].concat())?;
    if of.output(&output, None)? != plain {
        bail!("with --relocations {relocations} the optimised program's output differs");
    }
    Ok(output)
}

/// Measures all of them. Gives a section of the report.
pub fn run(tools: &Tools, folder: &Path, runs: u32) -> Result<String> {
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let corpus = programs::corpus()?;
    let mut text = format!(
        "## The same source with kept relocations\n\nPrograms linked with `-Wl,-q`, optimised as they are, and with `--relocations none`, as if they had none (preset fast, {runs} rounds). \
         Below 1 is faster; the last column is what it costs not to have them, which may be {:.0} points.\n\n\
         | program | plain to kept | plain to none | kept to none | |\n|---|--:|--:|--:|---|\n",
        POINTS * 100.0
    );
    for (name, size) in CHOSEN {
        eprintln!("== {name}, with and without kept relocations");
        let chosen = programs::choose(&[(*name).to_owned()])?;
        let program = *chosen.first().context("no such program in the corpus")?;
        programs::build(program, &corpus)?;
        let input = corpus.join("bin").join(program.file);
        let mut of = Relinked {
            program,
            corpus: &corpus,
            size,
            files: [input, PathBuf::new(), PathBuf::new()],
            start: Instant::now(),
        };
        of.files[1] = optimize(tools, &of, "kept", folder).with_context(|| (*name).to_owned())?;
        of.files[2] = optimize(tools, &of, "none", folder).with_context(|| (*name).to_owned())?;
        let (series, result) = measure(1, 3, &Limits::rounds(runs), &mut of);
        result?;
        let of_two = |a, b| series.first()?.ratio(a, b, Measure::ProcessorTime);
        let between = of_two(1, 2);
        let row = format!(
            "| {name} | {} | {} | {} | {} |",
            ratio(of_two(0, 1)),
            ratio(of_two(0, 2)),
            ratio(between),
            verdict(between),
        );
        println!("{row}");
        let _ = writeln!(text, "{row}");
    }
    Ok(text + "\n")
}

/// Whether two points are kept, as far as the runs tell.
fn verdict(between: Option<Ratio>) -> &'static str {
    match between {
        Some(r) if r.interval.1 <= 1.0 + POINTS => "within it",
        Some(r) if r.interval.0 > 1.0 + POINTS => "**more**",
        Some(r) if r.is_bounded() => "the interval holds both",
        _ => "too few rounds to say",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_points_are_judged_by_the_interval() {
        let of = |estimate: f64, interval: (f64, f64)| {
            verdict(Some(Ratio {
                estimate,
                interval,
                pairs: 6,
            }))
        };
        assert_eq!(of(1.0, (0.98, 1.015)), "within it");
        assert_eq!(of(1.04, (1.03, 1.06)), "**more**");
        assert_eq!(of(1.02, (1.00, 1.05)), "the interval holds both");
        assert_eq!(of(1.02, (0.0, f64::INFINITY)), "too few rounds to say");
    }
}
