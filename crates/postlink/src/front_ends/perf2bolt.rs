//! `perf2bolt`: from samples to fdata or YAML.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, anyhow, bail};
use postlink_aggregate::{self as aggregate, Aggregated, Binary, Quality};
use postlink_isa::Machine;
use postlink_profile::samples::Options;
use postlink_profile::{Weighted, any, bolt_yaml, fdata};

use super::Arguments;
use super::options::{Tool, ignored, ignored_value, refused, switch, value};
use crate::input::Input;
use crate::ui::Ui;

const READS: &str = "recordings are read without perf";

/// Its command line.
pub const TOOL: Tool = Tool {
    name: "perf2bolt",
    overview: "perf2bolt - BOLT data aggregator\n\nEXAMPLE: perf2bolt -p=perf.data executable -o data.fdata",
    usage: "perf2bolt [options] <executable>",
    options: &[
        value("perfdata", "<data file>; may be given several times"),
        value("o", "<output file>"),
        value("w", "also save the profile as YAML to a file"),
        value("profile-format", "format of the output: fdata or yaml"),
        switch(
            "pa",
            "the data file is pre-aggregated (also recognised by its contents)",
        ),
        switch("nl", "aggregate basic events (without brstack info)"),
        switch(
            "ignore-build-id",
            "continue even if build-ids in input binary and perf.data mismatch",
        ),
        switch("filter-mem-profile", "leave out accesses to stack and heap"),
        switch(
            "use-event-pc",
            "take the sampled instruction for the end of the newest run",
        ),
        value("pid", "only use samples from process with specified PID"),
        ignored(
            "ignore-interrupt-lbr",
            "branches from and to the kernel are always left out",
        ),
        ignored("time-aggr", "postlink aggregate --time prints times"),
        ignored("time-opts", "postlink aggregate --time prints times"),
        ignored("time-rewrite", "postlink aggregate --time prints times"),
        ignored_value("itrace", READS),
        ignored_value("max-samples", "all samples are read"),
        ignored("aggregate-only", "nothing is optimised here"),
        ignored(
            "parse-mem-profile",
            "accesses to memory are taken if the recording has them",
        ),
        ignored(
            "impute-trace-fall-through",
            "runs of code are taken from what was recorded only",
        ),
        ignored(
            "show-density",
            "how much was sampled of what ran is always said",
        ),
        ignored("bolt-info", "profiles have no such section"),
        refused(
            "autofdo",
            "text for AutoFDO is not written; `postlink profgen` makes sample profiles",
        ),
        ignored("spe", "samples of Arm SPE are recognised in the recording"),
        ignored_value("v", "there are no levels of talk"),
        ignored("strict", "functions are looked at one by one"),
        ignored("lite", "only sampled functions are looked at"),
        ignored(
            "profile-use-dfs",
            "blocks are numbered in the order of the code",
        ),
        ignored_value(
            "thread-count",
            "RAYON_NUM_THREADS sets the number of threads",
        ),
        ignored("no-threads", "RAYON_NUM_THREADS sets the number of threads"),
        ignored(
            "allow-stripped",
            "functions of stripped files are found by unwind entries",
        ),
        ignored_value("reorder-blocks", "nothing is optimised here"),
    ],
    aliases: &[("p", "perfdata"), ("ba", "nl"), ("basic-events", "nl")],
};

/// Runs with arguments (without the program's name).
pub fn main(arguments: Arguments<'_>) -> ExitCode {
    super::exit_code("PERF2BOLT", run(arguments))
}

fn run(arguments: Arguments<'_>) -> Result<()> {
    let given = TOOL.parse(arguments)?;
    let binary = given.executable()?;
    let files = given.values("perfdata");
    if files.is_empty() {
        bail!("missing -perfdata option.");
    }
    let output = given
        .value("o")
        .ok_or_else(|| anyhow!("missing required -o option."))?;
    let yaml = match given.value("profile-format") {
        None => false,
        Some("fdata") => false,
        Some("yaml") => true,
        Some(other) => {
            bail!("for the --profile-format option: Cannot find option named '{other}'!")
        }
    };
    given.say_ignored("perf2bolt");
    let path = PathBuf::from(binary);
    let input = Input::open(&path)?;
    input.must_differ_from(Path::new(output))?;
    let elf = input.elf()?;
    println!(
        "PERF2BOLT: Starting data aggregation job for {}",
        files.join(" ")
    );
    let binary = Binary::new(&path, &elf)?;
    let basic = given.switch("nl", false)?;
    let options = Options {
        pids: given.number("pid")?.into_iter().collect(),
        basic,
        event_ip: given.switch("use-event-pc", false)?,
        without_newest: binary.translate.is_some() && binary.machine == Machine::X86_64,
        ..Options::default()
    };
    let inputs: Vec<Weighted> = files
        .iter()
        .map(|file| Weighted {
            path: file.into(),
            weight: 1,
        })
        .collect();
    let preaggregated = inputs.iter().all(|input| {
        any::format_of(&input.path).is_ok_and(|f| f == postlink_profile::Format::PreAggregated)
    });
    if given.switch("pa", false)? && !preaggregated {
        bail!(
            "{}: not a pre-aggregated profile, as -pa expects",
            files.join(" ")
        );
    }
    println!(
        "PERF2BOLT: {}",
        match (preaggregated, basic) {
            (true, _) => "parsing pre-aggregated profile...",
            (_, true) => "parsing basic events (without brstack)...",
            _ => "parse branch events...",
        }
    );
    // Shown on terminals alone.
    let mut watched = Ui::new(false, false).phases("aggregate");
    watched.phases.begin("samples");
    let samples = any::merge_addresses(&inputs, &options)?;
    watched.phases.begin("aggregate");
    let options = aggregate::Options {
        ignore_build_id: given.switch("ignore-build-id", false)?,
        all_memory: !given.switch("filter-mem-profile", true)?,
        only_explained: true,
    };
    let Aggregated { profile, quality } = aggregate::aggregate(&binary, &samples, options)?;
    watched.finish();
    say(
        &quality,
        preaggregated,
        profile.collection.is_some_and(|c| !c.branches),
    );
    if yaml {
        let yaml = crate::profiles::to_yaml(&binary, &profile)?;
        bolt_yaml::write(Path::new(output), &yaml)?;
    } else {
        fdata::write(Path::new(output), &profile)?;
    }
    println!(
        "PERF2BOLT: wrote {} objects and {} memory objects to {output}",
        profile.branches().len() + profile.samples().len(),
        profile.memory().len()
    );
    if let Some(path) = given.value("w") {
        bolt_yaml::write(
            Path::new(path),
            &crate::profiles::to_yaml(&binary, &profile)?,
        )?;
    }
    let all = binary.functions.list().len();
    println!(
        "BOLT-INFO: {} out of {all} functions in the binary ({:.1}%) have non-empty execution profile",
        quality.functions,
        quality.functions as f64 * 100.0 / all.max(1) as f64
    );
    Ok(())
}

const MISMATCH: &str = "\n !! WARNING !! This high mismatch ratio indicates the input binary is probably not the same binary used during profiling collection. The generated data may be ineffective for improving performance.\n";

/// A share in per cent, computed and rounded as LLVM does; nothing of nothing.
fn share(part: u64, all: u64) -> String {
    if all == 0 {
        return String::new();
    }
    format!(" ({:.1}%)", part as f32 * 100.0 / all as f32)
}

fn is_more_than(percent: u64, part: u64, all: u64) -> bool {
    u128::from(part) * 100 > u128::from(all) * u128::from(percent)
}

/// What perf2bolt says of the samples.
fn say(quality: &Quality, preaggregated: bool, basic: bool) {
    let ours = quality.of_binary;
    if preaggregated {
        println!(
            "PERF2BOLT: read {} aggregated brstack entries",
            quality.read.records
        );
    }
    if basic {
        if !preaggregated {
            println!("PERF2BOLT: read {} basic samples", ours.samples);
        }
        println!("PERF2BOLT: processing basic events (without brstack)...");
        let inside = quality.basic.saturating_sub(quality.basic_outside);
        let outside = ours.samples.saturating_sub(inside);
        println!(
            "PERF2BOLT: out of range samples recorded in unknown regions: {outside}{}",
            share(outside, ours.samples)
        );
        if is_more_than(80, outside, ours.samples) {
            println!("{MISMATCH}");
        }
        return;
    }
    if !preaggregated {
        println!(
            "PERF2BOLT: read {} samples and {} brstack entries",
            ours.samples, ours.entries
        );
        if ours.samples > 0 && ours.with_branches == 0 {
            eprintln!(
                "PERF2BOLT-WARNING: all recorded samples for this binary lack brstack. Record profile with perf record -j any or run perf2bolt in non-brstack mode with -ba (the performance improvement in -ba mode may be limited)"
            );
        } else if quality.read.samples > 0 {
            let (ignored, all) = (quality.ignored(), quality.read.samples);
            println!(
                "PERF2BOLT: ignored samples: {ignored}{}",
                share(ignored, all)
            );
            if is_more_than(50, ignored, all) {
                eprintln!(
                    "PERF2BOLT-WARNING: less than 50% of all recorded samples were attributed to the input binary"
                );
            }
        }
    }
    println!("PERF2BOLT: processing branch events...");
    let (wrong, outside, all) = (quality.wrong(), quality.outside(), quality.all_runs());
    println!(
        "PERF2BOLT: traces mismatching disassembled function contents: {wrong}{}",
        share(wrong, all)
    );
    if is_more_than(10, wrong, all) {
        println!("{MISMATCH}");
    }
    println!(
        "PERF2BOLT: out of range traces involving unknown regions: {outside}{}",
        share(outside, all)
    );
}
