//! Sample profiles of optimised programs: by source lines they are those of the input.
//!
//! The emulator writes branch records without a gap (each begins with the last branch of the one before, and has no
//! stack, as samples taken in libraries are left out where there is one), so that counts are not estimates: what ran as
//! often must be counted as often, wherever it is.

use std::collections::BTreeMap;
use std::path::Path;

use super::{Bench, MISTAKEN, emulate_with, is_there, postlink, run};

/// Counts by place: functions and line offsets from the outermost function inwards.
fn counts(profile: &Path) -> BTreeMap<String, u64> {
    let text = std::fs::read_to_string(profile).expect("it was just written");
    let mut out = BTreeMap::new();
    let mut around: Vec<String> = Vec::new();
    for line in text
        .lines()
        .filter(|line| !line.trim_start().starts_with('!'))
    {
        let depth = line.len() - line.trim_start().len();
        around.truncate(depth);
        let (place, rest) = line
            .trim_start()
            .split_once(':')
            .expect("a place and a count");
        let first = rest.split_whitespace().next().unwrap_or_default();
        match (depth, first.parse::<u64>()) {
            // A function with its total and its entries.
            (0, _) => around.push(place.to_owned()),
            (_, Ok(count)) => drop(out.insert(format!("{} {place}", around.join(" > ")), count)),
            // An inlined function with its total.
            (_, Err(_)) => {
                let callee = first.split(':').next().unwrap_or_default();
                around.push(format!("{place} {callee}"));
            }
        }
    }
    out
}

fn profile(bench: &Bench, program: &Path, name: &str) -> BTreeMap<String, u64> {
    let (records, output) = (
        bench.at(&format!("{name}.records")),
        bench.at(&format!("{name}.prof")),
    );
    emulate_with(
        bench,
        program,
        &records,
        "period=31,depth=32,jitter=0,stack=0,max=200000",
        "300",
    );
    run(postlink()
        .args(["profgen", "--lines", "--format", "text", "--perfscript"])
        .arg(&records)
        .arg(program)
        .arg("-o")
        .arg(&output));
    counts(&output)
}

/// Samples in moved code had no lines.
#[test]
fn profiles_by_lines_of_outputs_are_those_of_inputs() {
    let missing = "sample profiles of outputs are not compared";
    if !is_there("qemu-x86_64", missing) {
        return;
    }
    for (compiler, version) in [("clang++-19", "-gdwarf-5"), ("g++", "-gdwarf-4")] {
        if !is_there(compiler, missing) {
            continue;
        }
        let mut options = vec![version];
        if compiler.starts_with("clang") {
            options.push("-fdebug-info-for-profiling");
        }
        let bench = Bench::built(MISTAKEN, compiler, &options);
        run(postlink()
            .arg("instrument")
            .arg(bench.at("p"))
            .arg("-o")
            .arg(bench.at("inst")));
        let mut counting = std::process::Command::new(bench.at("inst"));
        run(counting
            .env("POSTLINK_PROFILE", bench.at("p.plraw"))
            .arg("300"));
        let output = bench.optimize("p.plraw", "p.opt");
        let before = profile(&bench, &bench.at("p"), "before");
        let after = profile(&bench, &output, "after");
        let often: Vec<(&String, &u64)> = before.iter().filter(|(_, n)| **n >= 30).collect();
        assert!(often.len() > 15, "{compiler}: {before:#?}");
        let now = |place: &str| after.get(place).copied().unwrap_or(0);
        let same = often.iter().filter(|(place, n)| now(place) == **n).count();
        // Lines of jumps that are gone or were added count less or more. A branch with which one record ends and the
        // next begins is counted twice, one of 31; which ones, depends on how many branches the dynamic linker took.
        // Of counts that come from branches, some N/31 are thus chance in each profile: 4 standard deviations of their
        // difference are about the square root of N.
        let near = |(place, n): &(&String, &u64)| {
            let difference = now(place).abs_diff(**n);
            difference * 20 <= **n || difference * difference <= **n
        };
        assert!(
            same * 100 >= often.len() * 80 && often.iter().all(near),
            "{compiler}: {same} of {} places have their counts: {:#?}",
            often.len(),
            often
                .iter()
                .map(|(place, n)| (place, n, after.get(*place)))
                .collect::<Vec<_>>()
        );
    }
}
