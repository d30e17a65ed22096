//! What was found, as Markdown.

use std::fmt::Write as _;

use postlink_measure::Ratio;
use serde_json::Value;

use super::states::{BOLT_OPTIONS, Figures, State};
use crate::text::grouped;

fn number(value: &Value) -> String {
    value.as_u64().map_or("–".into(), grouped)
}

fn growth(state: Option<&State>, size: u64) -> String {
    state.map_or("–".into(), |s| {
        format!(
            "{:+.1} %",
            (s.size as f64 / size.max(1) as f64 - 1.0) * 100.0
        )
    })
}

fn ratio(ratio: Option<&Ratio>) -> String {
    match ratio {
        None => "–".into(),
        Some(r) if r.is_bounded() => format!(
            "{:.3} ({:.3}–{:.3})",
            r.estimate, r.interval.0, r.interval.1
        ),
        Some(r) => format!("{:.3}", r.estimate),
    }
}

/// What a file rests on, in words.
fn basis(figures: &Figures) -> &'static str {
    match figures.inspect["basis"].as_str() {
        Some("dynamic") => "for the loader",
        Some("none") => "none",
        Some("kept") => "kept",
        _ => "–",
    }
}

fn kind(figures: &Figures) -> &'static str {
    match figures.inspect["kind"].as_str() {
        Some(kind) if kind.contains("independent") => "PIE",
        Some(kind) if kind.contains("shared") => "library",
        Some(kind) if kind.contains("executable") => "fixed",
        _ => "–",
    }
}

/// One line to follow the work by.
pub fn line(f: &Figures) -> String {
    let safe = f.state("safe");
    let moved = safe.map_or(&Value::Null, |s| &s.said["optimize"]["moved"]);
    let ran = safe.map_or(&Value::Null, |s| &s.said["optimize"]["profiled"]);
    let time = |name: &str| ratio(f.state(name).and_then(|s| s.time.as_ref()));
    let mut text = format!(
        "{}: {} ran, {} moved, {}; times: counting {}, safe {}, fast {}, llvm-bolt {}",
        f.entry.name,
        number(ran),
        number(moved),
        growth(safe, f.size),
        time("counting"),
        time("safe"),
        time("fast"),
        time("llvm-bolt"),
    );
    for fault in f.faults() {
        let _ = write!(text, "\n{}: WRONG: {fault}", f.entry.name);
    }
    text
}

/// Everything.
pub struct Report<'a> {
    pub figures: &'a [Figures],
    /// Programs that could not be tried: name, why.
    pub failed: &'a [(&'static str, String)],
    pub runs: u32,
    pub versions: &'a [String],
    /// Load of the machine at the beginning and now.
    pub load: [String; 2],
    /// A section on programs linked with kept relocations, if that was measured.
    pub relinked: Option<String>,
}

impl Report<'_> {
    fn head(&self) -> String {
        let cores = std::thread::available_parallelism().map_or(0, |n| n.get());
        let times = match self.runs {
            0 => "Run times were not measured.".to_owned(),
            runs => format!(
                "Times are processor times of the whole workload as ratios to the plain program, below 1 is faster: estimate and 95 % interval of {runs} rounds in which every \
                 state runs once (an interval takes six). Where the machine had other work the intervals say so."
            ),
        };
        format!(
            "# Programs as the distribution ships them\n\n\
             Written by `cargo xtask debian`: packages are fetched and unpacked, each program runs a workload of its own plain, counting, optimised with what was counted \
             (presets safe and fast), and as llvm-bolt writes it from the same counts. What it prints and its exit status are compared with the plain program's.\n\n\
             {times} {cores} processors; load average at the beginning {}, at the end {}. Versions: {}.\n\n",
            self.load[0],
            self.load[1],
            self.versions.join("; ")
        )
    }

    fn table(&self) -> String {
        let mut text = String::from(
            "## What moved\n\n\
             | program | version | kind | relocations | functions | ran | moved | entries led | jumps that may continue in old code | tail calls by pointers | size: counting | safe | fast |\n\
             |---|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
        );
        for f in self.figures {
            let said = f
                .state("safe")
                .map_or(&Value::Null, |s| &s.said["optimize"]);
            let jumps = match &f.inspect["falls_back"] {
                Value::Array(both) if both.len() == 2 => {
                    format!("{} in {}", number(&both[1]), number(&both[0]))
                }
                _ => "–".into(),
            };
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
                f.entry.name,
                f.version,
                kind(f),
                basis(f),
                number(&f.inspect["functions"]),
                number(&said["profiled"]),
                number(&said["moved"]),
                number(&f.inspect["led"]),
                jumps,
                number(&f.inspect["tail_calls"]),
                growth(f.state("counting"), f.size),
                growth(f.state("safe"), f.size),
                growth(f.state("fast"), f.size),
            );
        }
        text += "\n*Relocations*: what the file has of them, for the loader or none. *Entries led*: old entries that have no room for a jump; new code calls the new \
                 function, other callers the old one. *Jumps that may continue in old code*: of all functions that can move, in how many of them; what they go through is not known, or not bounded. \
                 *Tail calls by pointers* are indirect jumps in the caller's frame that read no table: they enter a function by its old entry. Preset size takes kept relocations, and refuses all of these files.\n\n";
        text
    }

    fn times(&self) -> String {
        if self.runs == 0 {
            return String::new();
        }
        let mut text = String::from(
            "## Run time\n\n| program | work | plain s | counting | safe | fast | llvm-bolt |\n|---|---|--:|--:|--:|--:|--:|\n",
        );
        for f in self.figures.iter().filter(|f| f.seconds.is_some()) {
            let time = |name: &str| ratio(f.state(name).and_then(|s| s.time.as_ref()));
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} | {} | {} |",
                f.entry.name,
                f.entry.what,
                f.seconds.map_or("–".into(), |s| format!("{s:.2}")),
                time("counting"),
                time("safe"),
                time("fast"),
                time("llvm-bolt"),
            );
        }
        text += &self.mean(&["safe", "fast"]);
        text += &self.mean(&["safe", "fast", "llvm-bolt"]);
        text + "\n"
    }

    /// Geometric means over the programs that have all of these states.
    fn mean(&self, states: &[&str]) -> String {
        let mut sums = vec![0.0; states.len()];
        let mut programs = 0;
        for f in self.figures {
            let times = states
                .iter()
                .map(|name| Some(f.state(name)?.time?.estimate.ln()));
            let Some(times) = times.collect::<Option<Vec<f64>>>() else {
                continue;
            };
            programs += 1;
            sums.iter_mut()
                .zip(times)
                .for_each(|(sum, time)| *sum += time);
        }
        if programs == 0 {
            return String::new();
        }
        let means = states.iter().zip(&sums).map(|(name, sum)| {
            let mean = (sum / f64::from(programs)).exp();
            format!("{name} {mean:.3}")
        });
        let means: Vec<String> = means.collect();
        format!(
            "\nGeometric means of the {programs} programs that {} has: {}.\n",
            states[states.len() - 1],
            means.join(", ")
        )
    }

    fn bolt(&self) -> String {
        let mut text = format!(
            "## llvm-bolt on the same files\n\n`llvm-bolt FILE -data=… {}`. Without `--allow-stripped` it refuses each of them, and with `-reorder-functions` as well: without kept \
             relocations a function is written back into its own place where it fits, and none moves.\n\n\
             | program | functions with counts | overwritten, of all | size | output |\n|---|--:|--:|--:|---|\n",
            BOLT_OPTIONS.join(" ")
        );
        for f in self.figures {
            let (said, output) = match (f.state("llvm-bolt"), f.refusal("llvm-bolt")) {
                (Some(state), _) => (
                    state.said.clone(),
                    match &state.difference {
                        None => "as the original's".to_owned(),
                        Some(difference) => {
                            format!("**wrong**: {}", difference.replace('|', "\\|"))
                        }
                    },
                ),
                (None, Some(why)) => (Value::Null, format!("none: {}", why.replace('|', "\\|"))),
                (None, None) => continue,
            };
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {output} |",
                f.entry.name,
                number(&said["profiled"]),
                number(&said["overwritten"]),
                growth(f.state("llvm-bolt"), f.size),
            );
        }
        text + "\n"
    }

    /// The report, in Markdown.
    pub fn text(&self) -> String {
        let mut text = self.head() + &self.table() + &self.times() + &self.bolt();
        let refused = self.figures.iter().filter(|f| f.entry.refused.is_some());
        for f in refused {
            if let Some(why) = f.refusal("counting") {
                // Without the path of the file, which is another on each machine.
                let why = why.split_once(": ").map_or(why, |parts| parts.1);
                let _ = writeln!(text, "{} is refused, as it must be: {why}\n", f.entry.name);
            }
        }
        if let Some(relinked) = &self.relinked {
            text += relinked;
        }
        let faults = self.figures.iter().flat_map(|f| {
            let name = f.entry.name;
            f.faults().into_iter().map(move |fault| (name, fault))
        });
        let failed = self.failed.iter().map(|(name, why)| (*name, why.clone()));
        let wrong: Vec<(&str, String)> = faults.chain(failed).collect();
        text += "## Wrong\n\n";
        if wrong.is_empty() {
            text += "Nothing: every state of postlink's printed what the plain program printed, and ended as it did.\n";
        }
        for (name, why) in wrong {
            let _ = writeln!(text, "* {name}: {why}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_have_intervals_only_from_six_pairs_on() {
        let of = |pairs: usize| Ratio::of(std::iter::repeat_n((2.0, 1.0), pairs)).unwrap();
        assert_eq!(ratio(Some(&of(2))), "0.500");
        assert_eq!(ratio(Some(&of(6))), "0.500 (0.500–0.500)");
        assert_eq!(ratio(None), "–");
    }
}
