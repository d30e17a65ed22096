//! The figures of a benchmark, and the tables made of them.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::cachegrind::Misses;
use super::tools::Tools;
use crate::process::Run;

/// What a tool's run cost, or why there is nothing to tell.
#[derive(Clone, Debug)]
pub enum ToolRun {
    /// It worked.
    Ok {
        wall: Duration,
        peak: u64,
        /// Size of its output in bytes.
        size: u64,
    },
    /// It did not, and why.
    Failed(String),
}

impl ToolRun {
    /// Of a run that wrote `output`.
    pub fn ok(run: Run, output: &Path) -> ToolRun {
        let size = fs::metadata(output).map_or(0, |metadata| metadata.len());
        ToolRun::Ok {
            wall: run.wall,
            peak: run.peak,
            size,
        }
    }
    /// How long it took, if it worked.
    pub fn wall(&self) -> Option<Duration> {
        match self {
            ToolRun::Ok { wall, .. } => Some(*wall),
            ToolRun::Failed(_) => None,
        }
    }
    /// Whether there is an output.
    pub fn is_ok(&self) -> bool {
        matches!(self, ToolRun::Ok { .. })
    }
}

/// Processor times of a workload in seconds.
#[derive(Clone, Copy, Debug)]
pub struct Ratio {
    pub plain: f64,
    pub other: f64,
}

impl Ratio {
    fn value(self) -> f64 {
        self.other / self.plain
    }
}

/// Something measured for both tools.
#[derive(Clone, Debug)]
pub struct Both<T> {
    pub postlink: T,
    pub bolt: T,
}

/// Everything about one program.
pub struct Figures {
    pub name: &'static str,
    pub input_size: u64,
    pub instrument: Both<ToolRun>,
    pub instrumented: Both<Option<Ratio>>,
    pub optimize: Both<ToolRun>,
    pub optimized: Both<Option<Ratio>>,
    /// postlink's `--preset fast`.
    pub fast: Option<Ratio>,
    pub verify: Option<Run>,
    /// What layouts are worth: the original's, postlink's and llvm-bolt's.
    pub judgement: Value,
    pub simulated: Vec<(&'static str, Misses)>,
    /// Runs that did not do what the original did.
    pub differences: Vec<String>,
}

impl Figures {
    pub fn new(name: &'static str) -> Figures {
        let none = || Both {
            postlink: ToolRun::Failed("not run".into()),
            bolt: ToolRun::Failed("not run".into()),
        };
        Figures {
            name,
            input_size: 0,
            instrument: none(),
            instrumented: Both {
                postlink: None,
                bolt: None,
            },
            optimize: none(),
            optimized: Both {
                postlink: None,
                bolt: None,
            },
            fast: None,
            verify: None,
            judgement: Value::Null,
            simulated: vec![],
            differences: vec![],
        }
    }

    /// How far a value rose or fell in the layout of postlink (1) or llvm-bolt (2).
    fn change(&self, layout: usize, value: impl Fn(&Value) -> Option<f64>) -> Option<f64> {
        let worth = &self.judgement["worth"];
        Some(value(&worth[layout])? / value(&worth[0])? - 1.0)
    }
}

/// Branches that are taken, conditional or not.
fn taken_branches(worth: &Value) -> Option<f64> {
    let stats = &worth["dyno_stats"];
    let kinds = [
        "taken_forward_branches",
        "taken_backward_branches",
        "executed_unconditional_branches",
    ];
    kinds.iter().map(|kind| stats[kind].as_f64()).sum()
}

fn instructions(worth: &Value) -> Option<f64> {
    worth["dyno_stats"]["executed_instructions"].as_f64()
}

fn score(worth: &Value) -> Option<f64> {
    worth["score"].as_f64()
}

fn signed(change: Option<f64>) -> String {
    change.map_or("–".into(), |c| format!("{:+.1} %", c * 100.0))
}

fn ratio(ratio: Option<Ratio>) -> String {
    ratio.map_or("–".into(), |r| format!("{:.3}", r.value()))
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / 1e6)
}

fn cost(run: &ToolRun, input: u64) -> String {
    match run {
        ToolRun::Failed(_) => "– | – | –".into(),
        ToolRun::Ok { wall, peak, size } => {
            let growth = (*size as f64 / input.max(1) as f64 - 1.0) * 100.0;
            format!(
                "{:.2} | {} | {growth:+.1} %",
                wall.as_secs_f64(),
                megabytes(*peak)
            )
        }
    }
}

/// A few lines about one program, as soon as it has been measured.
pub fn program(f: &Figures) -> String {
    let mut text = format!(
        "{}: instrumented {} (llvm-bolt {}), optimised {} (llvm-bolt {}), fast {}\n",
        f.name,
        ratio(f.instrumented.postlink),
        ratio(f.instrumented.bolt),
        ratio(f.optimized.postlink),
        ratio(f.optimized.bolt),
        ratio(f.fast),
    );
    for difference in &f.differences {
        text += &format!("{}: WRONG: {difference}\n", f.name);
    }
    text
}

/// The whole report, in Markdown.
pub fn all(figures: &[Figures], tools: &Tools, runs: usize) -> String {
    let mut text = String::from("# Benchmark\n\nWritten by `cargo xtask bench`. ");
    let cores = std::thread::available_parallelism().map_or(0, |n| n.get());
    let _ = writeln!(
        text,
        "{cores} processors ({}). Tools are run {runs} times (once if that takes over 40 s), and the middle time stands here. Run times are processor times, medians of {runs} alternating runs, as ratios to the\n\
         original; below 1 is faster. Both tools optimise from the same profile. Versions: {}.\n",
        processor(),
        tools.versions().join("; ")
    );
    text += "## Instrumenting\n\n";
    text += "| program | MB | postlink s | MB of memory | growth | llvm-bolt s | MB of memory | growth | run time: postlink | llvm-bolt |\n";
    text += "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n";
    for f in figures {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} |",
            f.name,
            megabytes(f.input_size),
            cost(&f.instrument.postlink, f.input_size),
            cost(&f.instrument.bolt, f.input_size),
            ratio(f.instrumented.postlink),
            ratio(f.instrumented.bolt)
        );
    }
    let _ = writeln!(
        text,
        "\nGeometric mean of run times: {}.\n",
        means(figures, |f| &f.instrumented)
    );
    text += "## Optimising\n\n";
    text += "| program | postlink s | MB of memory | growth | llvm-bolt s | MB of memory | growth | checking s | run time: postlink | `--preset fast` | llvm-bolt |\n";
    text += "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n";
    for f in figures {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} |",
            f.name,
            cost(&f.optimize.postlink, f.input_size),
            cost(&f.optimize.bolt, f.input_size),
            f.verify
                .map_or("–".into(), |run| format!("{:.2}", run.wall.as_secs_f64())),
            ratio(f.optimized.postlink),
            ratio(f.fast),
            ratio(f.optimized.bolt)
        );
    }
    let _ = writeln!(
        text,
        "\nGeometric mean of run times: {}.\n",
        means(figures, |f| &f.optimized)
    );
    text += "## By the profile\n\n";
    text += "Change from the original's layout. Both outputs are judged by one measure: made once more with `--enable-bat`, which says where each block \
             went; how often it ran, where it went on and its size are the same for both. Taken branches and instructions are llvm-bolt's dyno-stats, the score is \
             ext-TSP's, of hot and cold parts each by itself. Functions that a tool left alone count as they were. A function that ran is left out for \
             both if the tables do not say where all of it went. What llvm-bolt prints is better, as it counts only functions that it could optimise.\n\n";
    text += "| program | functions | left out | taken branches: postlink | llvm-bolt | instructions: postlink | llvm-bolt | ext-TSP score: postlink | llvm-bolt |\n";
    text += "|---|--:|--:|--:|--:|--:|--:|--:|--:|\n";
    for f in figures {
        let number = |value: Option<usize>| value.map_or("–".into(), |n: usize| n.to_string());
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            f.name,
            number(f.judgement["functions"].as_u64().map(|n| n as usize)),
            number(f.judgement["left_out"].as_array().map(Vec::len)),
            signed(f.change(1, taken_branches)),
            signed(f.change(2, taken_branches)),
            signed(f.change(1, instructions)),
            signed(f.change(2, instructions)),
            signed(f.change(1, score)),
            signed(f.change(2, score))
        );
    }
    if figures.iter().any(|f| !f.simulated.is_empty()) {
        let _ = write!(
            text,
            "\n## Simulated (cachegrind, millions)\n\nCaches: `{}`.\n\n",
            super::cachegrind::CACHES.join(" ")
        );
        text += "| program | build | instructions | instruction cache misses | branch misses |\n|---|---|--:|--:|--:|\n";
        for f in figures {
            for (name, m) in &f.simulated {
                let million = |n: u64| format!("{:.3}", n as f64 / 1e6);
                let (i, c, b) = (
                    million(m.instructions),
                    million(m.instruction_cache),
                    million(m.branches),
                );
                let _ = writeln!(text, "| {} | {name} | {i} | {c} | {b} |", f.name);
            }
        }
    }
    let mut remarks = String::new();
    for f in figures {
        for (what, run) in [
            ("instrument", &f.instrument.bolt),
            ("optimise", &f.optimize.bolt),
        ] {
            if let ToolRun::Failed(why) = run {
                let _ = writeln!(remarks, "* {}: llvm-bolt did not {what}: {why}", f.name);
            }
        }
        for difference in &f.differences {
            let _ = writeln!(remarks, "* {}: **wrong**: {difference}", f.name);
        }
    }
    if !remarks.is_empty() {
        text += "\n## Remarks\n\n";
        text += &remarks;
    }
    text
}

/// Geometric means over the programs that both tools have a ratio for, and over all of ours.
fn means(figures: &[Figures], of: impl Fn(&Figures) -> &Both<Option<Ratio>>) -> String {
    let mean = |ratios: Vec<f64>| {
        if ratios.is_empty() {
            return "–".to_owned();
        }
        let sum: f64 = ratios.iter().map(|r| r.ln()).sum();
        format!("{:.3}", (sum / ratios.len() as f64).exp())
    };
    let ours = figures
        .iter()
        .filter_map(|f| of(f).postlink)
        .map(Ratio::value)
        .collect();
    let both: Vec<_> = figures
        .iter()
        .filter_map(|f| Some((of(f).postlink?.value(), of(f).bolt?.value())))
        .collect();
    let (shared, bolt) = both.iter().copied().unzip();
    format!(
        "postlink {} (where llvm-bolt has one: {}), llvm-bolt {}",
        mean(ours),
        mean(shared),
        mean(bolt)
    )
}

/// The processor's name.
fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .and_then(|line| line.split_once(':'));
    name.map_or("unknown".into(), |(_, name)| name.trim().to_owned())
}
