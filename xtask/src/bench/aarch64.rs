//! `cargo xtask bench aarch64`: the corpus' programs for AArch64, cross-compiled and run by qemu, in every state.
//!
//! Time under an emulator says little, so instructions are counted instead, by a plugin of our own (`bench/qemu/trace.c`), which also knows
//! how often every instruction ran and every branch was taken. So the profile is not compared with another estimate, but
//! with the truth: every block's and every taken edge's count must be equal to it.
//!
//! | figure | from |
//! |---|---|
//! | instructions plain, instrumented, optimised, split | the plugin, libraries included |
//! | counts equal | `show --json` of the instrumented run against the trace of the plain run |
//! | functions that ran and can move | symbols that the trace enters, `inspect --json` |
//! | taken branches | `optimize --dyno-stats`, before and after; and the traces' taken branches |
//! | tool time, memory | per MB of code |

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::programs::{self, Program};
use super::tools::Tools;
use crate::packages;
use crate::process::Run;

/// What one run did.
struct Trace {
    instructions: u64,
    /// Executions by link-time address.
    executed: HashMap<u64, u64>,
    /// Taken branches by link-time addresses of the branch and where it led.
    jumps: HashMap<(u64, u64), u64>,
}

impl Trace {
    /// Reads what the plugin wrote; `code` is the link-time address of the program's first executable segment.
    fn read(path: &Path, code: u64) -> Result<Trace> {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let mut trace = Trace {
            instructions: 0,
            executed: HashMap::new(),
            jumps: HashMap::new(),
        };
        let mut bias = 0u64;
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let kind = words.next().unwrap_or_default();
            let numbers = words
                .map(|word| u64::from_str_radix(word, 16))
                .collect::<Result<Vec<_>, _>>()
                .with_context(|| format!("{}: '{line}'", path.display()))?;
            match (kind, &numbers[..]) {
                ("insns", &[n]) => trace.instructions = n,
                ("start", &[at]) => bias = at.wrapping_sub(code),
                ("run", &[at, n, count]) => {
                    for i in 0..n {
                        let at = at.wrapping_sub(bias) + 4 * i;
                        *trace.executed.entry(at).or_default() += count;
                    }
                }
                ("jump", &[from, to, count]) => {
                    let edge = (from.wrapping_sub(bias), to.wrapping_sub(bias));
                    *trace.jumps.entry(edge).or_default() += count;
                }
                _ => bail!("{}: '{line}' is not understood", path.display()),
            }
        }
        Ok(trace)
    }

    fn taken(&self) -> u64 {
        self.jumps.values().sum()
    }
}

/// Everything that was found out about a program.
struct Figures {
    name: &'static str,
    /// Bytes of code.
    text: u64,
    /// Instructions plain, instrumented, optimised, split.
    instructions: [u64; 4],
    /// Taken branches that the traces saw, in the same order.
    taken: [u64; 4],
    /// Counts that were compared, and those that differ.
    compared: (u64, u64),
    /// Functions that ran, and those of them that can be moved.
    ran: (u64, u64),
    /// Taken branches before and after by dyno-stats.
    dyno: [u64; 2],
    /// Moved functions, all of them proved.
    proved: u64,
    instrument: Run,
    optimize: Run,
    verify: Run,
    wrong: Vec<String>,
}

/// Hexadecimal words of `readelf`'s output by line.
fn readelf(options: &str, file: &Path) -> Result<String> {
    let output = Command::new("readelf")
        .arg(options)
        .arg(file)
        .output()
        .context("readelf")?;
    if !output.status.success() {
        bail!("readelf {options} {}: {}", file.display(), output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Link-time address of the first executable segment.
fn code_start(file: &Path) -> Result<u64> {
    let headers = readelf("-lW", file)?;
    let mut starts = headers.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let executable =
            words.first() == Some(&"LOAD") && words[6..].iter().take(2).any(|w| w.contains('E'));
        u64::from_str_radix(words.get(2)?.strip_prefix("0x")?, 16)
            .ok()
            .filter(|_| executable)
    });
    starts
        .next()
        .with_context(|| format!("{} has no code", file.display()))
}

/// Entries of functions in the symbol table.
fn functions(file: &Path) -> Result<BTreeSet<u64>> {
    let symbols = readelf("-sW", file)?;
    let entry = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, value, size, "FUNC", _, _, section, ..] = words[..] else {
            return None;
        };
        u64::from_str_radix(value, 16)
            .ok()
            .filter(|_| section != "UND" && size != "0")
    };
    Ok(symbols.lines().filter_map(entry).collect())
}

struct Bench<'a> {
    tools: &'a Tools,
    corpus: &'a Path,
    plugin: PathBuf,
    folder: PathBuf,
}

impl Bench<'_> {
    /// Runs the workload with one copy of the program: its output, and what it did.
    fn run(
        &self,
        program: &Program,
        path: &Path,
        code: u64,
        profile: Option<&Path>,
    ) -> Result<(Vec<u8>, Trace)> {
        let trace = self.folder.join("trace");
        let runner = format!(
            "qemu-aarch64 -L /usr/aarch64-linux-gnu -plugin {},out={}",
            self.plugin.display(),
            trace.display()
        );
        let _ = fs::remove_file(&trace);
        let mut command =
            programs::command(program, path, self.corpus, program.simulated.flatten())?;
        command.env("RUNNER", runner).env_remove("POSTLINK_PROFILE");
        if let Some(profile) = profile {
            command.env("POSTLINK_PROFILE", profile);
        }
        let output = command.output().context("the workload cannot be started")?;
        if !output.status.success() {
            bail!(
                "{}: {}: {}",
                path.display(),
                output.status,
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Ok((output.stdout, Trace::read(&trace, code)?))
    }

    fn measure(&self, program: &'static Program) -> Result<Figures> {
        let original = self.corpus.join("bin").join(program.file);
        let code = code_start(&original)?;
        let at = |name: &str| self.folder.join(format!("{}.{name}", program.name));
        let (instrumented, profile) = (at("inst"), at("plraw"));
        let _ = fs::remove_file(&profile);
        let mut wrong = vec![];
        let (expected, plain) = self.run(program, &original, code, None)?;
        let instrument = self
            .tools
            .postlink_instrument(&original, &instrumented, &self.folder)?;
        let mut traces = vec![plain];
        let mut check = |name: &str, path: &Path, profile: Option<&Path>| -> Result<()> {
            match self.run(program, path, code, profile) {
                Ok((output, trace)) => {
                    if output != expected {
                        wrong.push(format!("{name}: the output differs"));
                    }
                    traces.push(trace);
                    Ok(())
                }
                Err(error) => Err(error.context(name.to_owned())),
            }
        };
        check("instrumented", &instrumented, Some(&profile))?;
        let (optimized, split) = (at("opt"), at("split"));
        let none = &["--split-functions=none"];
        let (optimize, _) =
            self.tools
                .postlink_optimize(&original, &profile, &optimized, &self.folder, none)?;
        let (_, account) = self.tools.postlink_optimize(
            &original,
            &profile,
            &split,
            &self.folder,
            &["--split-functions", "--preset=fast"],
        )?;
        check("optimised", &optimized, None)?;
        check("split", &split, None)?;
        let verify = self
            .tools
            .postlink_verify(&original, &optimized, &self.folder)?;
        self.tools
            .postlink_verify(&original, &split, &self.folder)?;

        let counts = self
            .tools
            .postlink_counts(&original, &profile, &self.folder)?;
        let compared = compare(&counts, &traces[0], &mut wrong)?;
        let inspection = self.tools.postlink_inspect(&original, &self.folder)?;
        let pinned: BTreeSet<u64> = inspection["pinned_functions"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|f| f["address"].as_u64())
            .collect();
        let entered: Vec<u64> = functions(&original)?
            .into_iter()
            .filter(|f| traces[0].executed.contains_key(f))
            .collect();
        let movable = entered.iter().filter(|f| !pinned.contains(f)).count() as u64;
        let dyno = &account["optimize"]["dyno_stats"];
        let taken = |side: usize| {
            [
                "taken_forward_branches",
                "taken_backward_branches",
                "executed_unconditional_branches",
            ]
            .iter()
            .filter_map(|name| dyno[side][name].as_u64())
            .sum()
        };
        let four = |of: &dyn Fn(&Trace) -> u64| [0, 1, 2, 3].map(|i| traces.get(i).map_or(0, of));
        Ok(Figures {
            name: program.name,
            text: inspection["text"].as_u64().unwrap_or(0),
            instructions: four(&|t| t.instructions),
            taken: four(&Trace::taken),
            compared,
            ran: (entered.len() as u64, movable),
            dyno: [taken(0), taken(1)],
            proved: account["optimize"]["moved"].as_u64().unwrap_or(0),
            instrument,
            optimize,
            verify,
            wrong,
        })
    }
}

/// Compares a profile's counts with what was executed: how many, and how many differ.
fn compare(counts: &Value, truth: &Trace, wrong: &mut Vec<String>) -> Result<(u64, u64)> {
    let (mut all, mut different) = (0, 0);
    let mut check = |what: String, said: u64, is: u64| {
        all += 1;
        if said != is {
            different += 1;
            if different <= 3 {
                wrong.push(format!("{what}: the profile says {said}, the trace {is}"));
            }
        }
    };
    let number = |value: &Value| value.as_u64().context("a number in the counts");
    for f in counts["functions"]
        .as_array()
        .context("the counts' functions")?
    {
        let name = f["name"].as_str().unwrap_or_default();
        for block in f["blocks"].as_array().context("a function's blocks")? {
            let (address, last) = (number(&block["address"])?, number(&block["last"])?);
            let is = truth.executed.get(&address).copied().unwrap_or(0);
            check(
                format!("{name}: block {address:#x}"),
                number(&block["count"])?,
                is,
            );
            for edge in block["edges"].as_array().context("a block's edges")? {
                let to = number(&edge["to"])?;
                if to == last + 4 || edge["joins"].as_bool().unwrap_or(false) {
                    continue;
                }
                let is = truth.jumps.get(&(last, to)).copied().unwrap_or(0);
                check(
                    format!("{name}: branch {last:#x} to {to:#x}"),
                    number(&edge["count"])?,
                    is,
                );
            }
        }
    }
    Ok((all, different))
}

/// The job.
pub fn run(output: &Path) -> Result<bool> {
    packages::install(packages::FOR_AARCH64, true);
    let corpus = programs::corpus()?;
    let tools = Tools::find(false)?;
    let folder = corpus.join("bench").join("aarch64");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let plugin = folder.join("trace.so");
    let source = super::root()?.join("bench/qemu/trace.c");
    let made = Command::new("gcc")
        .args(["-O2", "-shared", "-fPIC", "-o"])
        .arg(&plugin)
        .arg(source)
        .status();
    if !made.context("gcc")?.success() {
        bail!("the plugin for qemu does not compile");
    }
    let bench = Bench {
        tools: &tools,
        corpus: &corpus,
        plugin,
        folder,
    };
    let mut all = vec![];
    let mut remarks = String::new();
    for program in programs::AARCH64 {
        eprintln!("== {}", program.name);
        match programs::build(program, &corpus).and_then(|()| bench.measure(program)) {
            Ok(figures) => {
                for what in &figures.wrong {
                    eprintln!("{}: {what}", program.name);
                    writeln!(remarks, "* {}: **wrong**: {what}", program.name)?;
                }
                all.push(figures);
            }
            Err(error) => {
                eprintln!("{}: {error:#}", program.name);
                writeln!(remarks, "* {}: **failed**: {error:#}", program.name)?;
            }
        }
    }
    let text = report(&all, &remarks)?;
    println!("{text}");
    fs::write(output, &text).with_context(|| output.display().to_string())?;
    eprintln!("written to {}", output.display());
    Ok(remarks.is_empty())
}

fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        "–".into()
    } else {
        format!("{:.1} %", 100.0 * part as f64 / whole as f64)
    }
}

/// Change in per cent.
fn change(before: u64, after: u64) -> String {
    if before == 0 {
        "–".into()
    } else {
        format!("{:+.1} %", 100.0 * (after as f64 / before as f64 - 1.0))
    }
}

/// Geometric mean of ratios, as a change in per cent.
fn mean(ratios: impl Iterator<Item = (u64, u64)>) -> String {
    let logs: Vec<f64> = ratios
        .filter(|r| r.0 > 0 && r.1 > 0)
        .map(|(b, a)| (a as f64 / b as f64).ln())
        .collect();
    if logs.is_empty() {
        return "–".into();
    }
    format!(
        "{:+.1} %",
        100.0 * ((logs.iter().sum::<f64>() / logs.len() as f64).exp() - 1.0)
    )
}

fn report(figures: &[Figures], remarks: &str) -> Result<String> {
    let mut text = String::from(
        "# AArch64\n\nWritten by `cargo xtask bench aarch64`: programs built by Debian's cross compilers (gcc, `-O2`, `-Wl,-q`), run by qemu-user. \
         Instructions are counted by a plugin, those of libraries included; outputs were the same in all states, or it is said below.\n\n\
         ## Instructions executed (millions)\n\n\
         | program | plain | instrumented | | optimised | | split | |\n|---|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    for f in figures {
        let [plain, rest @ ..] = f.instructions;
        write!(text, "| {} | {:.1} |", f.name, plain as f64 / 1e6)?;
        for n in rest {
            write!(text, " {:.1} | {} |", n as f64 / 1e6, change(plain, n))?;
        }
        text.push('\n');
    }
    let column = |i: usize| {
        mean(
            figures
                .iter()
                .map(move |f| (f.instructions[0], f.instructions[i])),
        )
    };
    writeln!(
        text,
        "\nGeometric means: instrumented {}, optimised {}, split {}.",
        column(1),
        column(2),
        column(3)
    )?;
    text += "\n## Exactness and reach\n\n| program | counts compared with the trace | different | functions that ran | can move | | moved and proved |\n\
             |---|--:|--:|--:|--:|--:|--:|\n";
    for f in figures {
        let (ran, movable) = f.ran;
        writeln!(
            text,
            "| {} | {} | {} | {ran} | {movable} | {} | {} |",
            f.name,
            f.compared.0,
            f.compared.1,
            percent(movable, ran),
            f.proved
        )?;
    }
    text += "\n## Taken branches\n\n| program | by dyno-stats, millions: before | after | | by the trace, whole process: before | split | |\n\
             |---|--:|--:|--:|--:|--:|--:|\n";
    let million = |n: u64| format!("{:.2}", n as f64 / 1e6);
    for f in figures {
        let ([before, after], [plain, _, _, split]) = (f.dyno, f.taken);
        writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} |",
            f.name,
            million(before),
            million(after),
            change(before, after),
            million(plain),
            million(split),
            change(plain, split)
        )?;
    }
    writeln!(
        text,
        "\nGeometric mean by dyno-stats: {}.",
        mean(figures.iter().map(|f| (f.dyno[0], f.dyno[1])))
    )?;
    text += "\n## The tool\n\n| program | MB of code | instrument: seconds | MB | optimise: seconds | MB | verify: seconds | MB |\n\
             |---|--:|--:|--:|--:|--:|--:|--:|\n";
    for f in figures {
        write!(text, "| {} | {:.2} |", f.name, f.text as f64 / 1e6)?;
        for run in [f.instrument, f.optimize, f.verify] {
            write!(
                text,
                " {:.3} | {:.0} |",
                run.wall.as_secs_f64(),
                run.peak as f64 / 1e6
            )?;
        }
        text.push('\n');
    }
    if !remarks.is_empty() {
        write!(text, "\n## Remarks\n\n{remarks}")?;
    }
    Ok(text)
}
