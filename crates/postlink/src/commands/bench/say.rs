//! Results in the terminal.

use std::time::Duration;

use postlink_measure::ratio::percent;
use postlink_measure::run::Unit;
use postlink_measure::{Measure, Verdict};

use super::results::{Found, Results};
use crate::ui::{BAD, BOLD, DIM, GOOD, bytes, count, seconds};

/// A value in its unit.
pub fn value(measure: Measure, value: f64) -> String {
    match measure.unit() {
        Unit::Seconds => seconds(Duration::try_from_secs_f64(value).unwrap_or_default()),
        Unit::Bytes => bytes(value as u64),
        Unit::Number => count(value as u64),
    }
}

/// The median of what one program took; of two middle values the lower.
pub fn median(found: &Found<'_>, program: usize, measure: Measure) -> Option<f64> {
    let mut values = found.series.values(program, measure);
    values.sort_by(f64::total_cmp);
    values.get(values.len().checked_sub(1)? / 2).copied()
}

/// Names of two programs for columns: the ends of paths, which tell more than their starts. If these are the same,
/// which program it is.
fn headings(labels: [&str; 2]) -> [String; 2] {
    let [a, b] = labels.map(|label| {
        let length = label.chars().count();
        if length > 14 {
            let end: String = label.chars().skip(length - 13).collect();
            format!("…{end}")
        } else {
            label.to_owned()
        }
    });
    if a == b {
        ["first", "second"].map(str::to_owned)
    } else {
        [a, b]
    }
}

/// Every workload's measures.
pub fn table(results: &Results<'_>) {
    let [a, b] = headings([0, 1].map(|n: usize| {
        let program = results.programs.get(n);
        program.map_or("", |program| program.label.as_str())
    }));
    for found in &results.workloads {
        anstream::println!(
            "{BOLD}{}{BOLD:#} {DIM}({} runs each; {}){DIM:#}",
            found.name,
            found.series.rounds.len(),
            found.series.stop.words()
        );
        anstream::println!(
            "  {BOLD}{:<24} {a:>14} {b:>14} {:>9}  {}{BOLD:#}",
            "medians",
            "change",
            "95 % interval"
        );
        for (measure, ratio) in &found.ratios {
            let [a, b] = [0, 1].map(|n| {
                let middle = median(found, n, *measure);
                middle.map_or(String::new(), |middle| value(*measure, middle))
            });
            anstream::println!(
                "  {:<24} {a:>14} {b:>14} {:>9}  {}",
                measure.name(),
                percent(ratio.estimate),
                ratio.interval_words()
            );
        }
        if let Some(luck) = results.luck_words(found) {
            anstream::println!("  {luck}");
        }
    }
    if let Some(mean) = &results.mean {
        anstream::println!(
            "{BOLD}geometric mean{BOLD:#} of {}: {} (95 % interval {})",
            results.by.name(),
            percent(mean.estimate),
            mean.interval_words()
        );
    }
}

/// The one sentence at the end.
pub fn verdict(results: &Results<'_>, sentence: &str) {
    let style = match results.verdict() {
        Verdict::Faster => GOOD,
        Verdict::NoDifference => BOLD,
        Verdict::Slower => BAD,
    };
    anstream::println!("{style}{sentence}{style:#}");
}

#[cfg(test)]
mod tests {
    use super::headings;

    #[test]
    fn programs_in_one_long_folder_have_different_headings() {
        let of = |a, b| headings([a, b]);
        assert_eq!(of("./app", "./app.opt"), ["./app", "./app.opt"]);
        assert_eq!(
            of("/a/long/folder/name/app", "/a/long/folder/name/app.opt"),
            ["…lder/name/app", "…/name/app.opt"]
        );
        assert_eq!(
            of("target/release/the-program", "target/other/the-program"),
            ["…e/the-program", "…r/the-program"]
        );
        assert_eq!(
            of("/x/target/release/the-long-program", "/y/the-long-program"),
            ["first", "second"]
        );
    }
}
