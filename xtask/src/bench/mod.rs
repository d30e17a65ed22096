//! `cargo xtask bench`: postlink on real programs, side by side with Debian's llvm-bolt 22 where that is installed.
//!
//! For each program: instrument it with both tools, run the workload with the original and both copies in
//! turn; optimise it with both tools from one and the same profile (postlink's, handed to llvm-bolt as
//! fdata), run the workload in turn again; simulate caches and branch prediction. Every run's output must be
//! the same, byte for byte. What is compared are medians of alternating runs, as processor time, since other
//! load disturbs that least.
//!
//! | file | subject |
//! |---|---|
//! | [`programs`] | the corpus: what there is, building it, its workloads |
//! | [`tools`] | running postlink and llvm-bolt |
//! | [`fdata`] | a profile of postlink in llvm-bolt's format |
//! | [`cachegrind`] | simulation |
//! | [`fleet`] | `cargo xtask bench fleet`: many shards of profiles |
//! | [`frontend`] | `cargo xtask bench frontend`: caches of code under two models, beside llvm-bolt |
//! | [`mip_cc`] | another job: the cost of machine profiles made at compile time |
//! | [`aarch64`] | programs for AArch64, emulated: a job of its own |
//! | [`mip`] | machine profiles: `cargo xtask bench mip` |
//! | [`report`] | tables |
//! | [`pointers`] | `cargo xtask bench pointers`: calls through pointers that follow, and that stay |
//! | [`probes`] | `cargo xtask bench probes`: sample profiles, side by side with llvm-profgen |
//! | [`profiles`] | `cargo xtask bench profiles`: reading, aggregating and merging profiles |
//! | [`debug`] | `cargo xtask bench debug`: what updating debug information costs, and what is left of it |
//! | [`refused`] | `cargo xtask bench refused`: a function that the checker refuses |
//! | [`samples`] | `cargo xtask bench samples`: samples and profiles of the release before |
//! | [`bat`] | address translation tables: `cargo xtask bench bat` |
//! | [`bat_sizes`], [`bat_loop`] | parts of it: sizes beside llvm-bolt's, optimising again and again |

mod aarch64;
mod aarch64_mip;
mod bat;
mod bat_loop;
mod bat_sizes;
mod cachegrind;
mod debug;
mod fdata;
mod fleet;
mod frontend;
mod mip;
mod mip_cc;
mod placement;
mod pointers;
mod probes;
mod profiles;
pub mod programs;
mod refused;
mod report;
mod samples;
pub mod tools;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::packages;
use crate::process::{Run, median};
use programs::Program;
use report::{Figures, Ratio, ToolRun};
use tools::Tools;

/// What the command line says.
struct Wishes {
    names: Vec<String>,
    bolt: bool,
    simulate: bool,
    runs: usize,
    output: PathBuf,
}

impl Wishes {
    fn parse(arguments: &[String]) -> Result<Wishes> {
        let root = root()?;
        let mut wishes = Wishes {
            names: vec![],
            bolt: true,
            simulate: true,
            runs: 5,
            output: root.join("bench/results.md"),
        };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let mut value = || {
                rest.next()
                    .with_context(|| format!("{argument} needs a value"))
            };
            match argument.as_str() {
                "--no-bolt" => wishes.bolt = false,
                "--no-simulation" => wishes.simulate = false,
                "--runs" => wishes.runs = value()?.parse().context("--runs needs a number")?,
                "--output" => wishes.output = value()?.into(),
                option if option.starts_with('-') => {
                    bail!("cargo xtask bench has no option '{option}'")
                }
                name => wishes.names.push(name.to_owned()),
            }
        }
        if wishes.names.is_empty() {
            wishes.names = programs::DEFAULT
                .iter()
                .map(|name| (*name).to_owned())
                .collect();
        }
        Ok(wishes)
    }
}

/// The repository.
pub fn root() -> Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    root.canonicalize()
        .with_context(|| root.display().to_string())
}

/// The job.
pub fn run(arguments: &[String]) -> Result<bool> {
    if let Some((first, rest)) = arguments.split_first() {
        match first.as_str() {
            "probes" => return probes::run(rest),
            "profiles" => return profiles::run(rest),
            "pointers" => return pointers::run(rest),
            "debug" => return debug::run(rest),
            "refused" => return refused::run(rest),
            "samples" => return samples::run(rest),
            "bat" => return bat::run(rest),
            "fleet" => return fleet::run(rest),
            "frontend" => return frontend::run(rest),
            "aarch64" => {
                let only_mip = rest.iter().any(|a| a == "--machine-profiles");
                let rest: Vec<String> = rest
                    .iter()
                    .filter(|a| *a != "--machine-profiles")
                    .cloned()
                    .collect();
                let wishes = Wishes::parse(&rest)?;
                let own = rest.iter().any(|a| a == "--output");
                let output = if own {
                    wishes.output
                } else {
                    wishes.output.with_file_name("aarch64.md")
                };
                return aarch64::run(&output, only_mip);
            }
            "mip" => return mip::run(rest),
            "mip-cc" => return mip_cc::run(rest),
            _ => {}
        }
    }
    let wishes = Wishes::parse(arguments)?;
    let chosen = programs::choose(&wishes.names)?;
    packages::install(packages::FOR_BENCH, true);
    let corpus = programs::corpus()?;
    let tools = Tools::find(wishes.bolt)?;
    let mut all = vec![];
    let mut good = true;
    for program in chosen {
        eprintln!("== {}", program.name);
        match programs::build(program, &corpus)
            .and_then(|()| measure(program, &corpus, &tools, &wishes))
        {
            Ok(figures) => {
                good &= figures.differences.is_empty();
                print!("{}", report::program(&figures));
                all.push(figures);
            }
            Err(error) => {
                good = false;
                eprintln!("{}: {error:#}", program.name);
                let mut figures = Figures::new(program.name);
                figures.differences.push(format!("{error:#}"));
                all.push(figures);
            }
        }
    }
    let text = report::all(&all, &tools, wishes.runs);
    println!("\n{text}");
    if let Some(folder) = wishes.output.parent() {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    fs::write(&wishes.output, &text).with_context(|| wishes.output.display().to_string())?;
    eprintln!("written to {}", wishes.output.display());
    Ok(good)
}

/// A program under test, with a name for messages.
struct Candidate {
    name: &'static str,
    path: PathBuf,
    times: Vec<Duration>,
}

impl Candidate {
    fn new(name: &'static str, path: &Path) -> Candidate {
        Candidate {
            name,
            path: path.to_owned(),
            times: vec![],
        }
    }
}

/// Runs the workload with all candidates in turn, the first of which is the original. Differences in output are noted.
fn alternate(
    program: &Program,
    corpus: &Path,
    folder: &Path,
    runs: usize,
    candidates: &mut [Candidate],
    figures: &mut Figures,
) -> Result<()> {
    let mut expected: Option<Vec<u8>> = None;
    for round in 0..runs {
        let count = candidates.len();
        for k in 0..count {
            let candidate = &mut candidates[(k + round) % count];
            let run = programs::workload(program, &candidate.path, corpus, folder, candidate.name)?;
            if !run.status.success() {
                figures.differences.push(format!(
                    "{}: the workload ended with {}",
                    candidate.name, run.status
                ));
            } else if *expected.get_or_insert_with(|| run.output.clone()) != run.output {
                figures.differences.push(format!(
                    "{}: the workload printed something else",
                    candidate.name
                ));
            }
            candidate.times.push(run.cpu);
        }
    }
    Ok(())
}

/// Time of a candidate relative to the first.
fn ratio(candidates: &[Candidate], name: &str) -> Option<Ratio> {
    let of = |c: &Candidate| median(&c.times).map(|t| t.as_secs_f64());
    let plain = of(candidates.first()?)?;
    let other = of(candidates.iter().find(|c| c.name == name)?)?;
    Some(Ratio { plain, other })
}

/// The middle one of several runs of a tool, by the clock: the first finds neither its input in memory nor
/// space for its output. One that takes longer than [`LONG`], or fails, runs once.
fn middle<T>(
    runs: usize,
    wall: impl Fn(&T) -> Option<Duration>,
    mut once: impl FnMut() -> Result<T>,
) -> Result<T> {
    let mut all = vec![once()?];
    while all.len() < runs && wall(&all[0]).is_some_and(|wall| wall < LONG) {
        all.push(once()?);
    }
    all.sort_by_key(&wall);
    Ok(all.swap_remove(all.len() / 2))
}

/// A tool that takes longer is not run again.
const LONG: Duration = Duration::from_secs(40);

/// Has both tools optimise once more, with tables that say where each block went, and compares the layouts.
fn judge(
    tools: &Tools,
    original: &Path,
    profile: &Path,
    bolt: bool,
    folder: &Path,
) -> Result<Value> {
    const WITH_TABLES: &[&str] = &["--enable-bat"];
    let (ours, theirs) = (folder.join("judged.postlink"), folder.join("judged.bolt"));
    tools.postlink_optimize(original, profile, &ours, folder, WITH_TABLES)?;
    let mut outputs: Vec<&Path> = vec![&ours];
    if bolt {
        let data = folder.join("profile.fdata");
        match tools
            .bolt_optimize(original, &data, &theirs, folder, WITH_TABLES)
            .0
        {
            ToolRun::Ok { .. } => outputs.push(&theirs),
            ToolRun::Failed(why) => bail!("llvm-bolt with --enable-bat: {why}"),
        }
    }
    let judgement = tools.judge(original, profile, &outputs, folder);
    for file in [&ours, &theirs] {
        let _ = fs::remove_file(file); // as large as the program, and of no further use
    }
    judgement
}

fn measure(program: &Program, corpus: &Path, tools: &Tools, wishes: &Wishes) -> Result<Figures> {
    let original = corpus.join("bin").join(program.file);
    let folder = corpus.join("bench").join(program.name);
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let at = |name: &str| folder.join(name);
    let mut figures = Figures::new(program.name);
    figures.input_size = fs::metadata(&original)
        .with_context(|| original.display().to_string())?
        .len();

    // Instrumented.
    let (ours, theirs) = (at("postlink.inst"), at("bolt.inst"));
    let of_run = |run: &Run| Some(run.wall);
    let instrument = || tools.postlink_instrument(&original, &ours, &folder);
    figures.instrument.postlink = ToolRun::ok(middle(wishes.runs, of_run, instrument)?, &ours);
    figures.instrument.bolt = middle(wishes.runs, ToolRun::wall, || {
        Ok(tools.bolt_instrument(program, &original, &theirs, &folder))
    })?;
    let mut candidates = vec![
        Candidate::new("plain", &original),
        Candidate::new("postlink.inst", &ours),
    ];
    if figures.instrument.bolt.is_ok() {
        candidates.push(Candidate::new("bolt.inst", &theirs));
    }
    let profile = at("postlink.inst.plraw");
    let _ = fs::remove_file(&profile);
    alternate(
        program,
        corpus,
        &folder,
        wishes.runs,
        &mut candidates,
        &mut figures,
    )?;
    figures.instrumented.postlink = ratio(&candidates, "postlink.inst");
    figures.instrumented.bolt = ratio(&candidates, "bolt.inst");

    // Optimised, both from the same profile.
    let (ours, theirs, split) = (at("postlink.opt"), at("bolt.opt"), at("postlink.fast"));
    let (run, _) = middle(
        wishes.runs,
        |(run, _)| of_run(run),
        || tools.postlink_optimize(&original, &profile, &ours, &folder, &[]),
    )?;
    figures.optimize.postlink = ToolRun::ok(run, &ours);
    tools.postlink_optimize(&original, &profile, &split, &folder, &["--preset=fast"])?;
    let verify = || tools.postlink_verify(&original, &ours, &folder);
    figures.verify = Some(middle(wishes.runs, of_run, verify)?);
    tools.postlink_verify(&original, &split, &folder)?;
    if tools.bolt.is_some() {
        let counts = tools.postlink_counts(&original, &profile, &folder)?;
        let data = at("profile.fdata");
        fs::write(
            &data,
            fdata::from_counts(&counts, &fdata::names(&original)?)?,
        )
        .with_context(|| data.display().to_string())?;
        let optimize = || {
            Ok(tools
                .bolt_optimize(&original, &data, &theirs, &folder, &[])
                .0)
        };
        figures.optimize.bolt = middle(wishes.runs, ToolRun::wall, optimize)?;
    }
    figures.judgement = judge(
        tools,
        &original,
        &profile,
        figures.optimize.bolt.is_ok(),
        &folder,
    )?;
    let mut candidates = vec![
        Candidate::new("plain", &original),
        Candidate::new("postlink.opt", &ours),
        Candidate::new("postlink.fast", &split),
    ];
    if figures.optimize.bolt.is_ok() {
        candidates.push(Candidate::new("bolt.opt", &theirs));
    }
    alternate(
        program,
        corpus,
        &folder,
        wishes.runs,
        &mut candidates,
        &mut figures,
    )?;
    figures.optimized.postlink = ratio(&candidates, "postlink.opt");
    figures.optimized.bolt = ratio(&candidates, "bolt.opt");
    figures.fast = ratio(&candidates, "postlink.fast");

    if wishes.simulate
        && program.simulated.is_some()
        && packages::find_program("valgrind").is_some()
    {
        for candidate in candidates.iter().filter(|c| c.name != "postlink.fast") {
            let misses = cachegrind::simulate(program, &candidate.path, corpus, &folder)
                .with_context(|| format!("cachegrind with {}", candidate.name))?;
            figures.simulated.push((candidate.name, misses));
        }
    }
    Ok(figures)
}
