//! Results as files.
//!
//! | format | what is in it |
//! |---|---|
//! | json | everything: programs, every run, ratios, verdict. Times are in seconds, memory in bytes, ratios B to A |
//! | csv | a line for each run |
//! | markdown | the tables of the terminal, and the sentence |

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result};
use postlink_measure::ratio::{Ratio, percent};
use postlink_measure::{Luck, Measure, Run};
use serde::Serialize;

use super::results::{Found, Results};
use super::say::{median, value};

/// A format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Json,
    Markdown,
    Csv,
}

/// A format, and where it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    format: Format,
    /// Standard output if there is none.
    file: Option<PathBuf>,
}

impl FromStr for Export {
    type Err = String;

    fn from_str(text: &str) -> Result<Export, String> {
        let (format, file) = match text.split_once('=') {
            Some((_, "")) => return Err("a file is needed after '='".to_owned()),
            Some((format, file)) => (format, Some(PathBuf::from(file))),
            None => (text, None),
        };
        let format = match format {
            "json" => Format::Json,
            "markdown" => Format::Markdown,
            "csv" => Format::Csv,
            other => {
                return Err(format!(
                    "'{other}' is no format: json, markdown and csv are"
                ));
            }
        };
        Ok(Export { format, file })
    }
}

impl Export {
    /// Writes the results.
    pub fn write(&self, results: &Results<'_>) -> Result<()> {
        let text = match self.format {
            Format::Json => json(results)?,
            Format::Markdown => markdown(results),
            Format::Csv => csv(results),
        };
        match &self.file {
            Some(file) => {
                postlink_profile::write_atomically(file, |out| out.write_all(text.as_bytes()))?;
            }
            None => std::io::stdout()
                .write_all(text.as_bytes())
                .context("standard output")?,
        }
        Ok(())
    }
}

/// The name of a measure in files.
fn key(measure: Measure) -> String {
    measure.name().to_ascii_lowercase().replace(' ', "_")
}

#[derive(Serialize)]
struct Json<'a> {
    version: u32,
    tool: &'static str,
    by: String,
    precision: f64,
    processors: usize,
    programs: Vec<JsonProgram>,
    workloads: Vec<JsonWorkload<'a>>,
    mean: Option<JsonRatio>,
    no_counters: Option<&'a str>,
    verdict: &'static str,
    sentence: Option<String>,
}

#[derive(Serialize)]
struct JsonProgram {
    name: String,
    path: String,
}

#[derive(Serialize)]
struct JsonWorkload<'a> {
    name: &'a str,
    stop: &'static str,
    pairs: usize,
    ratios: BTreeMap<String, JsonRatio>,
    luck: Option<JsonLuck<'a>>,
    runs: Vec<JsonRun>,
}

#[derive(Serialize)]
struct JsonRatio {
    estimate: f64,
    low: Option<f64>,
    high: Option<f64>,
    pairs: usize,
    verdict: &'static str,
}

impl From<&Ratio> for JsonRatio {
    fn from(ratio: &Ratio) -> JsonRatio {
        let end = |end: f64| ratio.is_bounded().then_some(end);
        JsonRatio {
            estimate: ratio.estimate,
            low: end(ratio.interval.0),
            high: end(ratio.interval.1),
            pairs: ratio.pairs,
            verdict: ratio.verdict().words(),
        }
    }
}

#[derive(Serialize)]
struct JsonLuck<'a> {
    deviation: f64,
    layouts: &'a [f64],
    rounds: usize,
}

impl<'a> From<&'a Luck> for JsonLuck<'a> {
    fn from(luck: &'a Luck) -> JsonLuck<'a> {
        JsonLuck {
            deviation: luck.deviation,
            layouts: &luck.of,
            rounds: luck.rounds,
        }
    }
}

#[derive(Serialize)]
struct JsonRun {
    round: usize,
    program: usize,
    #[serde(flatten)]
    values: BTreeMap<String, f64>,
}

/// Every run of a workload: round, program, run; those of a round that was not finished at the end.
fn runs<'f>(found: &'f Found<'_>) -> impl Iterator<Item = (usize, usize, &'f Run)> {
    let rounds = &found.series.rounds;
    let finished = rounds.iter().enumerate().flat_map(|(round, runs)| {
        let runs = runs.iter().enumerate();
        runs.map(move |(program, run)| (round, program, run))
    });
    let rest = found.series.rest.iter();
    finished.chain(rest.map(|(program, run)| (rounds.len(), *program, run)))
}

fn json(results: &Results<'_>) -> Result<String> {
    let programs = results.programs.iter().map(|program| JsonProgram {
        name: program.label.clone(),
        path: program.path.display().to_string(),
    });
    let workloads = results.workloads.iter().map(|found| {
        let ratios = found.ratios.iter();
        let runs = runs(found).map(|(round, program, run)| JsonRun {
            round,
            program,
            values: Measure::all()
                .filter_map(|measure| Some((key(measure), measure.of(run)?)))
                .collect(),
        });
        JsonWorkload {
            name: found.name,
            stop: found.series.stop.words(),
            pairs: found.series.rounds.len(),
            ratios: ratios.map(|(m, ratio)| (key(*m), ratio.into())).collect(),
            luck: found.luck.as_ref().map(JsonLuck::from),
            runs: runs.collect(),
        }
    });
    let json = Json {
        version: 1,
        tool: concat!("postlink ", env!("CARGO_PKG_VERSION")),
        by: key(results.by),
        precision: results.limits.precision,
        processors: std::thread::available_parallelism().map_or(1, usize::from),
        programs: programs.collect(),
        workloads: workloads.collect(),
        mean: results.mean.as_ref().map(JsonRatio::from),
        no_counters: results.no_counters.as_deref(),
        verdict: results.verdict().words(),
        sentence: results.sentence(),
    };
    let mut text = serde_json::to_string_pretty(&json)?;
    text.push('\n');
    Ok(text)
}

/// A field, in quotes if it needs them (RFC 4180).
fn field(text: &str) -> String {
    if text.contains(['"', ',', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

fn csv(results: &Results<'_>) -> String {
    let mut text = String::from("workload,round,program");
    for measure in Measure::all() {
        text.push(',');
        text += &key(measure);
    }
    text.push('\n');
    for found in &results.workloads {
        for (round, program, run) in runs(found) {
            let label = results.programs.get(program).map_or("", |p| &p.label);
            let _ = write!(text, "{},{round},{}", field(found.name), field(label));
            for measure in Measure::all() {
                text.push(',');
                if let Some(value) = measure.of(run) {
                    let _ = write!(text, "{value}");
                }
            }
            text.push('\n');
        }
    }
    text
}

/// Text in a cell of a table.
fn cell(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('|', "\\|")
        .replace(['\n', '\r'], " ")
}

fn markdown(results: &Results<'_>) -> String {
    let mut text = String::new();
    let [a, b] = [0, 1].map(|n: usize| {
        let program = results.programs.get(n);
        program.map_or(String::new(), |program| cell(&program.label))
    });
    for found in &results.workloads {
        let _ = writeln!(
            text,
            "**{}** ({} runs each; {})\n",
            cell(found.name),
            found.series.rounds.len(),
            found.series.stop.words()
        );
        let _ = writeln!(
            text,
            "| median | {a} | {b} | change | 95 % interval |\n|---|--:|--:|--:|---|"
        );
        for (measure, ratio) in &found.ratios {
            let [a, b] = [0, 1].map(|n| {
                let middle = median(found, n, *measure);
                middle.map_or(String::new(), |middle| value(*measure, middle))
            });
            let _ = writeln!(
                text,
                "| {} | {a} | {b} | {} | {} |",
                measure.name(),
                percent(ratio.estimate),
                ratio.interval_words()
            );
        }
        text.push('\n');
        if let Some(luck) = results.luck_words(found) {
            let _ = writeln!(text, "{luck}.\n");
        }
    }
    if let Some(sentence) = results.sentence() {
        let _ = writeln!(text, "{sentence}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_and_files_are_told_apart() {
        let parse = |text: &str| text.parse::<Export>();
        assert_eq!(
            parse("json=a=b.json"),
            Ok(Export {
                format: Format::Json,
                file: Some("a=b.json".into())
            })
        );
        assert!(parse("csv").is_ok_and(|export| export.file.is_none()));
        assert!(parse("xml").is_err_and(|why| why.contains("'xml'")));
        assert!(parse("json=").is_err());
    }

    #[test]
    fn names_cannot_break_a_table() {
        assert_eq!(field("a,\"b\""), "\"a,\"\"b\"\"\"");
        assert_eq!(field("plain"), "plain");
        assert_eq!(cell("a|b\\c\nd"), "a\\|b\\\\c d");
    }
}
