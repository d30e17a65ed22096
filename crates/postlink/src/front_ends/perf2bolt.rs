//! `perf2bolt`: from samples to fdata or YAML.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, anyhow, bail};
use postlink_aggregate::{self as aggregate, Aggregated, Binary, Quality};
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
        switch("nl", "aggregate basic samples (without LBR info)"),
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
        without_newest: binary.translate.is_some(),
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
            (_, true) => "parsing basic events (without LBR)...",
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

/// What perf2bolt says of the samples.
fn say(quality: &Quality, preaggregated: bool, basic: bool) {
    if basic {
        println!("PERF2BOLT: processing basic events (without LBR)...");
        println!("PERF2BOLT: read {} samples", quality.basic);
        let share = match quality.basic {
            0 => 0.0,
            all => quality.basic_outside as f64 * 100.0 / all as f64,
        };
        println!(
            "PERF2BOLT: out of range samples recorded in unknown regions: {} ({share:.1}%)",
            quality.basic_outside
        );
        if share > 80.0 {
            println!("{MISMATCH}");
        }
        return;
    }
    // Before the code is looked at, runs within a function count as good.
    let mut wrong = quality.mismatching;
    if preaggregated {
        println!("PERF2BOLT: processing pre-aggregated profile...");
        println!("PERF2BOLT: read {} aggregated LBR entries", quality.records);
        wrong = wrong
            .saturating_add(quality.impossible)
            .saturating_add(quality.read.mismatched);
    } else {
        println!(
            "PERF2BOLT: read {} samples and {} LBR entries",
            quality.of_binary, quality.read.entries
        );
        if quality.read.samples > 0 && quality.read.with_branches == 0 {
            eprintln!(
                "PERF2BOLT-WARNING: all recorded samples for this binary lack LBR. Record profile with perf record -j any or run perf2bolt in no-LBR mode with -nl (the performance improvement in -nl mode may be limited)"
            );
        } else if quality.read.samples > 0 {
            let ignored = quality.ignored();
            let share = ignored as f64 * 100.0 / quality.read.samples as f64;
            println!("PERF2BOLT: {ignored} samples ({share:.1}%) were ignored");
            if share > 50.0 {
                eprintln!(
                    "PERF2BOLT-WARNING: less than 50% of all recorded samples were attributed to the input binary"
                );
            }
        }
    }
    println!(
        "PERF2BOLT: traces mismatching disassembled function contents: {wrong} ({:.1}%)",
        quality.percent(wrong)
    );
    if quality.percent(wrong) > 10.0 {
        println!("{MISMATCH}");
    }
    println!(
        "PERF2BOLT: {}ut of range traces involving unknown regions: {} ({:.1}%)",
        if preaggregated { "O" } else { "o" },
        quality.out_of_range,
        quality.percent(quality.out_of_range)
    );
    if !preaggregated {
        println!("PERF2BOLT: processing branch events...");
    }
    if quality.cold > 0 {
        let share = quality.cold as f64 * 100.0 / quality.read.samples.max(1) as f64;
        println!(
            "PERF2BOLT: {} ({share:.1}%) samples recorded in cold regions of split functions.",
            quality.cold
        );
        if share > 5.0 {
            println!(
                "WARNING: The BOLT-processed binary where samples were collected likely used bad data or your service observed a large shift in profile. You may want to audit this."
            );
        }
    }
}
