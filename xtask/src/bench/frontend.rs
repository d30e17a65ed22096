//! `cargo xtask bench frontend`: what layouts cost a processor's front end, counted so that it repeats exactly.
//!
//! Each program is instrumented and run; it is optimised from that profile by postlink in several ways and by
//! llvm-bolt, and every copy runs the same work under two models, which were written independently:
//!
//! | model | counts |
//! |---|---|
//! | valgrind's cachegrind, `--I1=32768,8,64 --LL=1048576,16,64` | misses of the instruction cache, and misses of code in the second cache, which data shares |
//! | `bench/qemu/frontend.c`, a plugin for qemu | the same misses, the second cache for code alone; misses of the translation buffer (64 entries of 4 KiB); lines and pages of code that were executed; taken branches; where misses lie |
//!
//! The plugin's instruction cache is there 16 times more, with the hot code 4 lines later in each: where new code
//! begins decides with which lines of libraries it shares sets, and no layout knows that. The mean is what a layout
//! is worth, the figures of one start are its luck as well.
//!
//! With `--brief` only the default and llvm-bolt's layout are made of each program.
//!
//! Figures are of whole processes, libraries and the loader included. Hardware fetches ahead and runs other
//! things besides; a model shows what a layout asks for, not how long it takes.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::cachegrind::{self, Misses};
use super::programs::{self, Program};
use super::report::ToolRun;
use super::tools::Tools;
use super::{aarch64, fdata};
use crate::packages;
use crate::text::grouped;

/// What is measured when nothing is named: what does the same work in every run, and by whose figures orders, padding
/// and their constants were chosen.
const DEFAULT: &[&str] = &["sqlite", "lua", "exc", "cppcheck"];
/// Used for choosing, too: of these only the layouts [`BRIEF`] are made, since their work takes long to simulate.
const CHOSEN_BY: &[&str] = &["rg", "gawk", "bash", "perl", "vim"];
/// What is measured besides, and was never used for choosing. They were named before their figures were first seen; who
/// changes layouts by their figures has to name others.
const HELD_OUT: &[&str] = &["tclsh", "tcc"];
/// Programs of which only the layouts [`BRIEF`] are made.
fn is_brief(name: &str) -> bool {
    HELD_OUT.contains(&name) || CHOSEN_BY.contains(&name)
}
/// Layouts of such programs.
const BRIEF: &[&str] = &["default"];
/// N for workloads whose usual one is too long for so many simulated runs.
const SHORTER: &[(&str, &str)] = &[
    ("sqlite", "4000"),
    ("lua", "0.1"),
    ("exc", "20000"),
    ("cppcheck", "lmem"),
    ("gawk", "20000"),
    ("bash", "60"),
    ("perl", "3000"),
    ("vim", "50"),
    ("tclsh", "20000"),
];
/// postlink's layouts: a name, and its options. The first is the default.
const LAYOUTS: &[(&str, &[&str])] = &[
    ("default", &[]),
    ("search", &["--search=30"]),
    (
        "cdsort",
        &["--reorder-functions=cdsort", "--align-functions=16"],
    ),
    ("fast", &["--preset=fast"]),
    ("size", &["--preset=size"]),
    ("max", &["--preset=max"]),
];
/// What the emulator's processor does not have, of what the C library looks for.
const AS_EMULATED: &str = "glibc.cpu.hwcaps=-AVX,-AVX2,-AVX2_Usable,-AVX512F,-AVX512VL,-AVX512BW,\
                           -AVX_Fast_Unaligned_Load,-ERMS,-FSRM";
/// Layouts by which the model of `optimize --search` is judged: `--search-take` of four orders, each with four
/// paddings.
const RANKED: &[u32] = &[6, 7, 8, 9, 11, 12, 13, 14, 16, 17, 18, 19, 26, 27, 28, 29];
/// llvm-bolt's options.
const BOLT: &[&str] = &[
    "-reorder-blocks=ext-tsp",
    "-reorder-functions=cdsort",
    "-split-functions",
    "-split-all-cold",
    "-split-eh",
];

/// One copy of a program under both models.
struct Row {
    name: &'static str,
    /// Bytes of hot code; `None` where the tool does not say.
    hot: Option<u64>,
    cachegrind: Misses,
    /// Figures of the plugin by name.
    model: BTreeMap<String, u64>,
    /// Misses by range of addresses.
    ranges: Vec<(String, u64)>,
}

impl Row {
    fn model(&self, figure: &str) -> u64 {
        self.model.get(figure).copied().unwrap_or(0)
    }

    /// Misses of the instruction cache with the hot code at other places, ascending.
    fn moved(&self) -> Vec<u64> {
        let moved = (self.model.iter()).filter(|(name, _)| name.starts_with("moved-misses-"));
        let mut moved: Vec<u64> = moved.map(|(_, misses)| *misses).collect();
        moved.sort_unstable();
        moved
    }

    /// Their mean.
    fn moved_mean(&self) -> f64 {
        let moved = self.moved();
        moved.iter().sum::<u64>() as f64 / moved.len().max(1) as f64
    }
}

/// What is needed to measure.
struct Bench {
    tools: Tools,
    corpus: PathBuf,
    folder: PathBuf,
    plugin: PathBuf,
}

/// Executable sections: start less that of the first executable segment, which may be negative, length, name.
fn code_sections(file: &Path) -> Result<Vec<(u64, u64, String)>> {
    let base = aarch64::code(file)?
        .first()
        .with_context(|| format!("{} has no code", file.display()))?
        .0;
    let text = aarch64::readelf("-SW", file)?;
    let section = |line: &str| {
        let words: Vec<&str> = line.split_once(']')?.1.split_whitespace().collect();
        let [name, _, address, _, size, _, flags, ..] = words[..] else {
            return None;
        };
        let number = |word: &str| u64::from_str_radix(word, 16).ok();
        let executable = flags.contains('X');
        let start = number(address)?.wrapping_sub(base);
        executable.then_some((start, number(size)?, name.to_owned()))
    };
    Ok(text.lines().filter_map(section).collect())
}

impl Bench {
    fn at(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The program's output under the plugin, and what it counted.
    /// `moves`: with the hot code at other places, too.
    fn model(&self, program: &Program, path: &Path, moves: bool) -> Result<(Vec<u8>, String)> {
        let (ranges, figures) = (self.at("ranges"), self.at("figures"));
        let mut text = String::new();
        let sections = code_sections(path)?;
        let moved = [".text.hot", ".text"].into_iter().filter(|_| moves);
        let moved = moved.filter(|name| sections.iter().any(|s| s.2 == *name));
        let moved: Vec<String> = moved.take(1).map(|name| format!(",moved={name}")).collect();
        for (start, size, name) in sections {
            let _ = writeln!(text, "{start:x} {:x} {name}", start.wrapping_add(size));
        }
        fs::write(&ranges, text).with_context(|| ranges.display().to_string())?;
        let runner = format!(
            "qemu-x86_64 -plugin {},out={},ranges={}{}",
            self.plugin.display(),
            figures.display(),
            ranges.display(),
            moved.concat()
        );
        let n = program.simulated.context("not a program to simulate")?;
        let mut command = programs::command(program, path, &self.corpus, n)?;
        let output = command.env("RUNNER", runner).output();
        let output = output.context("the workload cannot be started")?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            bail!("{}: {}: {said}", path.display(), output.status);
        }
        let text = fs::read_to_string(&figures).with_context(|| figures.display().to_string())?;
        Ok((output.stdout, text))
    }

    fn row(
        &self,
        program: &Program,
        name: &'static str,
        path: &Path,
        hot: Option<u64>,
        expected: &mut Option<Vec<u8>>,
    ) -> Result<Row> {
        let (output, text) = self.model(program, path, true)?;
        if *expected.get_or_insert_with(|| output.clone()) != output {
            bail!("{name}: the workload printed something else");
        }
        let (model, ranges) = parse(&text);
        let folder = &self.folder;
        let cachegrind = cachegrind::simulate(program, path, &self.corpus, folder)
            .with_context(|| format!("cachegrind with {name}"))?;
        Ok(Row {
            name,
            hot,
            cachegrind,
            model,
            ranges,
        })
    }

    /// llvm-bolt's output from the same profile, or why there is none.
    fn bolt(&self, original: &Path, profile: &Path) -> Result<Result<PathBuf, String>> {
        let counts = self
            .tools
            .postlink_counts(original, profile, &self.folder)?;
        let data = self.at("profile.fdata");
        let text = fdata::from_counts(&counts, &fdata::names(original)?)?;
        fs::write(&data, text).with_context(|| data.display().to_string())?;
        let output = self.at("bolt");
        let data = format!("-data={}", data.display());
        let mut arguments = vec![original, Path::new(&data)];
        arguments.extend(BOLT.iter().map(Path::new));
        Ok(match self.tools.bolt(&self.folder, &output, &arguments).0 {
            ToolRun::Ok { .. } => Ok(output),
            ToolRun::Failed(why) => Err(why),
        })
    }

    /// How well the model of `optimize --search` ranks layouts, with a trace and by counts.
    fn ranking(
        &self,
        program: &Program,
        original: &Path,
        profile: &Path,
        trace: &str,
    ) -> Result<Ranking> {
        let output = self.at("ranked");
        let (mut modelled, mut simulated) = ([Vec::new(), Vec::new()], Vec::new());
        for number in RANKED {
            let take = format!("--search-take={number}");
            for (modelled, trace) in modelled.iter_mut().zip([Some(trace), None]) {
                let mut options = vec!["--search=30", &take];
                options.extend(trace);
                let folder = &self.folder;
                let (_, said) = self
                    .tools
                    .postlink_optimize(original, profile, &output, folder, &options)?;
                let search = &said["optimize"]["search"];
                let taken = search["chosen"].as_u64().context("which layout")? as usize;
                let cost = search["layouts"][taken]["cost"].as_f64();
                modelled.push(cost.context("what the model says")?);
            }
            let (_, text) = self.model(program, &output, false)?;
            let misses = parse(&text).0.get("icache-misses").copied();
            simulated.push(misses.context("the plugin counted nothing")? as f64);
        }
        Ok(Ranking {
            modelled,
            simulated,
        })
    }

    /// A trace of the workload that is measured. The C library takes other functions on a processor with AVX than under
    /// the emulator, and they are in other sets of the cache: it is told to take the same.
    fn trace(&self, program: &Program, original: &Path) -> Result<PathBuf> {
        let trace = self.at("run.pltrace");
        let n = program.simulated.context("not a program to simulate")?;
        let mut run = programs::command(program, Path::new("{}"), &self.corpus, n)?;
        run.env("GLIBC_TUNABLES", AS_EMULATED);
        self.tools.postlink_trace(original, &trace, &run)?;
        Ok(trace)
    }

    /// All copies of a program; how the model of `--search` ranks its layouts, unless `brief`; a remark.
    fn measure(&self, program: &Program, brief: bool) -> Result<Measured> {
        let original = self.corpus.join("bin").join(program.file);
        let (counting, profile) = (self.at("counting"), self.at("profile.plraw"));
        let _ = fs::remove_file(&profile); // A run adds to it.
        self.tools
            .postlink_instrument(&original, &counting, &self.folder)?;
        let n = program.simulated.context("not a program to simulate")?;
        let mut command = programs::command(program, &counting, &self.corpus, n)?;
        let trained = command.env("POSTLINK_PROFILE", &profile).output();
        let trained = trained.context("the workload cannot be started")?;
        if !trained.status.success() {
            bail!("{}: {}", counting.display(), trained.status);
        }
        let mut expected = Some(trained.stdout);
        let mut rows = vec![self.row(program, "plain", &original, None, &mut expected)?];
        let trace = match brief {
            true => String::new(),
            false => format!(
                "--search-trace={}",
                self.trace(program, &original)?.display()
            ),
        };
        let wanted = |name: &str| !brief || BRIEF.contains(&name);
        for (name, options) in LAYOUTS.iter().filter(|layout| wanted(layout.0)) {
            let output = self.at(name);
            let mut options = options.to_vec();
            if *name == "search" {
                options.push(&trace);
            }
            let (_, said) = self.tools.postlink_optimize(
                &original,
                &profile,
                &output,
                &self.folder,
                &options,
            )?;
            self.tools
                .postlink_verify(&original, &output, &self.folder)?;
            let hot = said["optimize"]["hot_bytes"].as_u64();
            rows.push(self.row(program, name, &output, hot, &mut expected)?);
        }
        let mut remark = None;
        match self.bolt(&original, &profile)? {
            Ok(output) => {
                let hot = code_sections(&output)?;
                let hot = hot.iter().find(|s| s.2 == ".text").map(|s| s.1);
                match self.row(program, "llvm-bolt", &output, hot, &mut expected) {
                    Ok(row) => rows.push(row),
                    Err(error) => remark = Some(format!("llvm-bolt's output: {error:#}")),
                }
            }
            Err(why) => remark = Some(format!("llvm-bolt did not optimise: {why}")),
        }
        let ranking = match brief {
            true => None,
            false => Some(self.ranking(program, &original, &profile, &trace)?),
        };
        Ok(Measured {
            rows,
            ranking,
            remark,
        })
    }
}

/// What is known of a program.
struct Measured {
    rows: Vec<Row>,
    ranking: Option<Ranking>,
    remark: Option<String>,
}

impl Measured {
    /// The line of the summary: means of 16 starts.
    fn summary(&self, program: &str) -> String {
        let mean = |name: &str| {
            let row = self.rows.iter().find(|row| row.name == name);
            row.map(Row::moved_mean)
        };
        let shown = |mean: Option<f64>| mean.map_or("–".to_owned(), |m| grouped(m.round() as u64));
        let (own, theirs) = (mean("default"), mean("llvm-bolt"));
        let ratio = own.zip(theirs).map(|(own, theirs)| own / theirs.max(1.0));
        format!(
            "| {program} | {} | {} | {} | {} |\n",
            if HELD_OUT.contains(&program) {
                "no"
            } else {
                "yes"
            },
            shown(own),
            shown(theirs),
            ratio.map_or("–".to_owned(), |ratio| format!("{ratio:.3}")),
        )
    }
}

/// What layouts cost by the model of `optimize --search`, and misses of the instruction cache by the plugin.
struct Ranking {
    /// With a trace, and by counts.
    modelled: [Vec<f64>; 2],
    simulated: Vec<f64>,
}

/// Ranks of numbers, from 1; equal ones have the mean of theirs.
fn ranks(numbers: &[f64]) -> Vec<f64> {
    let rank = |n: &f64| {
        let less = numbers.iter().filter(|m| *m < n).count() as f64;
        let equal = numbers.iter().filter(|m| *m == n).count() as f64;
        less + (equal + 1.0) / 2.0
    };
    numbers.iter().map(rank).collect()
}

/// Spearman's rank correlation; `None` if all of one list are equal.
fn spearman(a: &[f64], b: &[f64]) -> Option<f64> {
    let (a, b) = (ranks(a), ranks(b));
    let mean = (a.len() as f64 + 1.0) / 2.0;
    let products = |x: &[f64], y: &[f64]| -> f64 {
        x.iter().zip(y).map(|(x, y)| (x - mean) * (y - mean)).sum()
    };
    let spread = (products(&a, &a) * products(&b, &b)).sqrt();
    (spread > 0.0).then(|| products(&a, &b) / spread)
}

impl Ranking {
    fn sentence(&self) -> String {
        let ([traced, counted], simulated) = (&self.modelled, &self.simulated);
        let by = |list: &[f64]| (0..list.len()).min_by(|i, j| list[*i].total_cmp(&list[*j]));
        let shown = |i: Option<usize>| i.map_or(0.0, |i| simulated[i]);
        let most = simulated.iter().copied().fold(0.0, f64::max);
        let correlation = |modelled: &[f64]| {
            spearman(modelled, simulated).map_or("none".into(), |r| format!("{r:.2}"))
        };
        format!(
            "{} layouts ranked by the model of `--search` and by the plugin: Spearman's correlation {} with a trace, {} by counts. \
             Misses by the plugin: {} with the model's best by the trace, {} by counts; {} with the best, {} with the worst, {} in the \
             middle.\n\n",
            simulated.len(),
            correlation(traced),
            correlation(counted),
            grouped(shown(by(traced)) as u64),
            grouped(shown(by(counted)) as u64),
            grouped(shown(by(simulated)) as u64),
            grouped(most as u64),
            grouped(middle(simulated) as u64),
        )
    }
}

/// The median; 0 of nothing.
fn middle(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

/// What the plugin wrote: figures by name, and misses by range.
fn parse(text: &str) -> (BTreeMap<String, u64>, Vec<(String, u64)>) {
    let (mut figures, mut ranges) = (BTreeMap::new(), Vec::new());
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |word: &str| word.parse::<u64>().unwrap_or(0);
        match words[..] {
            ["range", name, misses, _, _] => ranges.push((name.to_owned(), number(misses))),
            [name, value] => {
                figures.insert(name.to_owned(), number(value));
            }
            _ => {}
        }
    }
    (figures, ranges)
}

fn table(program: &str, rows: &[Row], remark: Option<&str>) -> String {
    let mut text = format!(
        "## {program}\n\n| layout | hot code, bytes | I1 misses (cachegrind) | to llvm-bolt | LLi misses (cachegrind) | \
         I1 misses (plugin) | mean of 16 starts | mean to llvm-bolt's | least–most | \
         code in 1 MiB | code in 2 MiB | translation misses: 64 | 1,536 | lines | pages | \
         taken branches, thousands |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n"
    );
    let theirs = rows.iter().find(|r| r.name == "llvm-bolt");
    for row in rows {
        let to_bolt = theirs.map_or("–".to_owned(), |theirs| {
            let misses = |r: &Row| r.cachegrind.instruction_cache as f64;
            format!("{:.3}", misses(row) / misses(theirs).max(1.0))
        });
        let mean_to_bolt = theirs.map_or("–".to_owned(), |theirs| {
            format!("{:.3}", row.moved_mean() / theirs.moved_mean().max(1.0))
        });
        let moved = row.moved();
        let range = match (moved.first(), moved.last()) {
            (Some(least), Some(most)) => format!("{}–{}", grouped(*least), grouped(*most)),
            _ => "–".to_owned(),
        };
        let figure = |name: &str| grouped(row.model(name));
        let _ = writeln!(
            text,
            "| {} | {} | {} | {to_bolt} | {} | {} | {} | {mean_to_bolt} | {range} | {} | {} | {} | {} | {} | {} | {} |",
            row.name,
            row.hot.map_or("–".to_owned(), grouped),
            grouped(row.cachegrind.instruction_cache),
            grouped(row.cachegrind.second_level),
            figure("icache-misses"),
            grouped(row.moved_mean().round() as u64),
            figure("l2-1m-misses"),
            figure("l2-2m-misses"),
            figure("itlb-misses"),
            figure("stlb-misses"),
            figure("lines"),
            figure("pages"),
            grouped(row.model("taken") / 1000),
        );
    }
    text += "\nWhere the plugin's misses are:";
    for row in rows {
        let _ = write!(text, " {}:", row.name);
        for (name, misses) in row.ranges.iter().filter(|r| r.1 > 0) {
            let _ = write!(text, " {name} {}", grouped(*misses));
        }
        text += ";";
    }
    text.pop();
    text += ".\n\n";
    if let Some(remark) = remark {
        let _ = writeln!(text, "{remark}\n");
    }
    text
}

fn head(tools: &Tools) -> String {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    format!(
        "# The front end\n\nWritten by `cargo xtask bench frontend` on {processors} cores ({}); the figures do not depend on the \
         machine's load, and repeat exactly, but for those of a search, whose trace (`postlink trace`) is of windows \
         that are chosen by time. For it the C library took the functions that it takes under the emulator (`GLIBC_TUNABLES`). What is counted, and how, `xtask/src/bench/frontend.rs` says.\n\n\
         All layouts are made from one profile, of the run that is measured: `postlink instrument`, a run, then `postlink \
         optimize` with {}; and `llvm-bolt PROGRAM -data=… {}`. Every output of postlink was checked, and all print the same. \
         cachegrind runs with `{}`. Workloads are shortened: {}.\n\n",
        tools.versions().join("; "),
        LAYOUTS
            .iter()
            .map(|(name, options)| if options.is_empty() {
                format!("nothing else ({name})")
            } else {
                format!("`{}` ({name})", options.join(" "))
            })
            .collect::<Vec<_>>()
            .join(", "),
        BOLT.join(" "),
        cachegrind::CACHES.join(" "),
        SHORTER
            .iter()
            .map(|(name, n)| format!("{name} N={n}"))
            .collect::<Vec<_>>()
            .join(", "),
    )
}

/// Head of the summary.
const SUMMARY: &str = "\
## Summary\n\nMisses of the instruction cache, the mean of 16 starts: of postlink's default and of llvm-bolt. By figures of \
programs with \"yes\" orders, padding and their constants were chosen; those with \"no\" were named before their \
figures were first seen, and nothing was chosen by them.\n\n\
| program | used for choosing | default | llvm-bolt | default to llvm-bolt |\n|---|---|--:|--:|--:|\n";

/// The job.
pub fn run(arguments: &[String]) -> Result<bool> {
    let (mut names, mut output) = (Vec::new(), super::root()?.join("bench/frontend.md"));
    let (mut rest, mut brief) = (arguments.iter(), false);
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--brief" => brief = true,
            "--output" => output = rest.next().context("--output needs a value")?.into(),
            option if option.starts_with('-') => {
                bail!("cargo xtask bench frontend has no option '{option}'")
            }
            name => names.push(name.to_owned()),
        }
    }
    if names.is_empty() {
        let all = DEFAULT.iter().chain(CHOSEN_BY).chain(HELD_OUT);
        names = all.map(|name| (*name).to_owned()).collect();
    }
    let chosen = programs::choose(&names)?;
    packages::install(packages::FOR_FRONTEND, true);
    let corpus = programs::corpus()?;
    let mut tools = Tools::without_judge()?;
    tools.bolt = packages::find_program("llvm-bolt-22");
    let folder = corpus.join("bench").join("frontend");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let plugin = folder.join("frontend.so");
    let made = Command::new("gcc")
        .args(["-O2", "-shared", "-fPIC", "-o"])
        .arg(&plugin)
        .arg(super::root()?.join("bench/qemu/frontend.c"))
        .status();
    if !made.context("gcc")?.success() {
        bail!("the plugin for qemu does not compile");
    }
    let bench = Bench {
        tools,
        corpus,
        folder,
        plugin,
    };
    let (mut text, mut good) = (head(&bench.tools), true);
    let mut summary = SUMMARY.to_owned();
    for program in chosen {
        eprintln!("== {}", program.name);
        let built = programs::build(program, &bench.corpus);
        let shorter = SHORTER.iter().find(|s| s.0 == program.name);
        let shorter = shorter.map(|s| program.with_simulated(s.1));
        let program = shorter.as_ref().unwrap_or(program);
        match built.and_then(|()| bench.measure(program, brief || is_brief(program.name))) {
            Ok(measured) => {
                let mut table = table(program.name, &measured.rows, measured.remark.as_deref());
                if let Some(ranking) = &measured.ranking {
                    table += &ranking.sentence();
                }
                print!("{table}");
                text += &table;
                summary += &measured.summary(program.name);
            }
            Err(error) => {
                good = false;
                eprintln!("{}: {error:#}", program.name);
                let _ = writeln!(text, "## {}\n\n**wrong**: {error:#}\n", program.name);
            }
        }
        // After each program: they take minutes.
        fs::write(&output, format!("{text}{summary}"))
            .with_context(|| output.display().to_string())?;
    }
    eprintln!("written to {}", output.display());
    Ok(good)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_thousands() {
        let shown = [0, 12, 999, 1000, 1_234_567].map(grouped);
        assert_eq!(shown, ["0", "12", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn rank_correlation_is_by_order_alone() {
        let a = [1.0, 2.0, 3.0, 4.0];
        assert_eq!(spearman(&a, &[10.0, 20.0, 21.0, 900.0]), Some(1.0));
        assert_eq!(spearman(&a, &[9.0, 8.0, 7.0, 0.0]), Some(-1.0));
        // Ranks 2, 1, 4, 3: 1 - 6 * 4 / (4 * 15).
        let r = spearman(&a, &[2.0, 1.0, 4.0, 3.0]).unwrap_or_default();
        assert!((r - 0.6).abs() < 1e-12, "{r}");
        assert_eq!(spearman(&a, &[5.0; 4]), None);
        assert_eq!(ranks(&[5.0, 5.0, 7.0]), [1.5, 1.5, 3.0]);
    }

    #[test]
    fn figures_and_ranges_are_read() {
        let (figures, ranges) = parse("taken 17\nrange .text.hot 5 2 1\nbroken\n");
        assert_eq!(figures.get("taken"), Some(&17));
        assert_eq!(ranges, [(".text.hot".to_owned(), 5)]);
    }
}
