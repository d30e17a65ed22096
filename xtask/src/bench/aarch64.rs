//! `cargo xtask bench aarch64`: the corpus' programs for AArch64, cross-compiled and run by qemu, in every state.
//!
//! Time under an emulator says little, so instructions are counted instead, by a plugin of our own
//! (`bench/qemu/trace.c`), which also knows how often every instruction ran and every branch was taken. So
//! the profile is not compared with another estimate, but with the truth: every block's and every taken
//! edge's count must be equal to it. It is the run that made the profile whose trace is compared
//! ([`placement`]).
//!
//! | figure | from |
//! |---|---|
//! | instructions plain, instrumented, optimised, split | the plugin, libraries included |
//! | counts equal | `show --json` of the instrumented run against its trace, translated by `instrument --blocks` |
//! | functions that ran and can move | symbols that the trace enters, `inspect --json` |
//! | taken branches | `optimize --dyno-stats`, before and after; and the traces' taken branches |
//! | machine profiles made after linking | [`aarch64_mip`] |
//! | tool time, memory | per MB of code, beside the same program for x86-64 |

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::aarch64_mip;
use super::placement::{self, Placement};
use super::programs::{self, Program};
use super::tools::Tools;
use crate::packages;
use crate::process::Run;

/// What one run did.
pub struct Trace {
    /// How many instructions it executed.
    pub instructions: u64,
    /// Executions by link-time address.
    executed: HashMap<u64, u64>,
    /// Taken branches by link-time addresses of the branch and where it led.
    pub jumps: placement::Jumps,
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
                    let (from, to) = (from.wrapping_sub(bias), to.wrapping_sub(bias));
                    let led = trace.jumps.entry(from).or_default();
                    match led.iter_mut().find(|l| l.0 == to) {
                        Some(known) => known.1 += count,
                        None => led.push((to, count)),
                    }
                }
                _ => bail!("{}: '{line}' is not understood", path.display()),
            }
        }
        Ok(trace)
    }

    fn taken(&self) -> u64 {
        self.jumps.values().flatten().map(|j| j.1).sum()
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
    /// Instrumenting, optimising, verifying.
    tool: [Cost; 3],
    /// The same for the program's build for x86-64, and its bytes of code.
    host: Option<([Cost; 3], u64)>,
    wrong: Vec<String>,
}

/// What one command needed.
#[derive(Clone, Copy, Default)]
struct Cost {
    /// Processor time, seconds.
    seconds: f64,
    /// Bytes of memory.
    peak: u64,
}

/// Runs of each command whose median counts.
const RUNS: usize = 3;

impl Cost {
    fn median(runs: &[Run]) -> Cost {
        let mut seconds: Vec<f64> = runs.iter().map(|r| r.cpu.as_secs_f64()).collect();
        let mut peaks: Vec<u64> = runs.iter().map(|r| r.peak).collect();
        seconds.sort_by(f64::total_cmp);
        peaks.sort_unstable();
        let middle = runs.len() / 2;
        Cost {
            seconds: seconds.get(middle).copied().unwrap_or(0.0),
            peak: peaks.get(middle).copied().unwrap_or(0),
        }
    }
}

/// The program of the corpus for x86-64 that is built from the same source in the same way, and is cheap to build.
fn counterpart(name: &str) -> Option<&'static str> {
    match name {
        "sqlite-pie" => Some("sqlite"),
        "lua" => Some("lua"),
        _ => None,
    }
}

/// Hexadecimal words of `readelf`'s output by line.
pub fn readelf(options: &str, file: &Path) -> Result<String> {
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

/// Executable segments: link-time address, offset in the file, bytes there.
pub fn code(file: &Path) -> Result<Vec<(u64, u64, u64)>> {
    let headers = readelf("-lW", file)?;
    let segment = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let executable =
            words.first() == Some(&"LOAD") && words[6..].iter().take(2).any(|w| w.contains('E'));
        let number = |i: usize| {
            words
                .get(i)
                .and_then(|w| u64::from_str_radix(w.strip_prefix("0x")?, 16).ok())
        };
        executable
            .then(|| Some((number(2)?, number(1)?, number(4)?)))
            .flatten()
    };
    Ok(headers.lines().filter_map(segment).collect())
}

/// Link-time address of the first executable segment.
fn code_start(file: &Path) -> Result<u64> {
    let first = code(file)?.first().map(|segment| segment.0);
    first.with_context(|| format!("{} has no code", file.display()))
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

/// What all measurements need.
pub struct Bench<'a> {
    /// The programs under test.
    pub tools: &'a Tools,
    /// Where the programs are.
    pub corpus: &'a Path,
    plugin: PathBuf,
    /// Where files go.
    pub folder: PathBuf,
}

impl Bench<'_> {
    /// Runs the workload with one copy of the program: its output, and what it did.
    fn run(
        &self,
        program: &Program,
        path: &Path,
        profile: Option<&Path>,
    ) -> Result<(Vec<u8>, Trace)> {
        self.run_for(program, path, profile, program.simulated.flatten())
    }

    /// The same with so much work.
    pub fn run_for(
        &self,
        program: &Program,
        path: &Path,
        profile: Option<&Path>,
        n: Option<&str>,
    ) -> Result<(Vec<u8>, Trace)> {
        let trace = self.folder.join("trace");
        let runner = format!(
            "qemu-aarch64 -L /usr/aarch64-linux-gnu -plugin {},out={}",
            self.plugin.display(),
            trace.display()
        );
        let _ = fs::remove_file(&trace);
        let mut command = programs::command(program, path, self.corpus, n)?;
        // Everybody gets the same environment, so that instructions of start-up code compare.
        let profile = profile.map_or_else(
            || self.folder.join(format!("{}.plraw", program.name)),
            Path::to_owned,
        );
        command
            .env("RUNNER", runner)
            .env("POSTLINK_PROFILE", &profile)
            .env("LLVM_MIP_PROFILE_FILENAME", &profile);
        let output = command.output().context("the workload cannot be started")?;
        if !output.status.success() {
            bail!(
                "{}: {}: {}",
                path.display(),
                output.status,
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Ok((output.stdout, Trace::read(&trace, code_start(path)?)?))
    }

    /// Optimises, with the checker: what it cannot prove stays. What `--json` tells.
    fn optimize(
        &self,
        original: &Path,
        profile: &Path,
        output: &Path,
        options: &[&str],
    ) -> Result<Value> {
        let mut arguments: Vec<&Path> = vec![
            "optimize".as_ref(),
            original,
            "-p".as_ref(),
            profile,
            "-o".as_ref(),
            output,
        ];
        arguments.extend(
            ["--dyno-stats", "--json"]
                .iter()
                .chain(options)
                .map(Path::new),
        );
        let (_, said) = self.tools.postlink(&self.folder, &arguments)?;
        serde_json::from_slice(&said).context("postlink optimize --json")
    }

    /// What instrumenting, optimising without the checker and the checker need. `proved` is an output.
    fn costs(&self, original: &Path, profile: &Path, proved: &Path) -> Result<[Cost; 3]> {
        let scratch = self.folder.join("scratch");
        let mut runs: [Vec<Run>; 3] = Default::default();
        for _ in 0..RUNS {
            runs[0].push(
                self.tools
                    .postlink_instrument(original, &scratch, &self.folder)?,
            );
            let none = &["--split-functions=none"];
            runs[1].push(
                self.tools
                    .postlink_optimize(original, profile, &scratch, &self.folder, none)?
                    .0,
            );
            runs[2].push(self.tools.postlink_verify(original, proved, &self.folder)?);
        }
        let _ = fs::remove_file(&scratch);
        Ok(runs.map(|runs| Cost::median(&runs)))
    }

    /// The same for a program of this machine, and its bytes of code.
    fn on_host(&self, name: &str, n: Option<&str>) -> Result<([Cost; 3], u64)> {
        let chosen = programs::choose(&[name.to_owned()])?;
        let program = *chosen.first().context("a program by that name")?;
        programs::build(program, self.corpus)?;
        let original = self.corpus.join("bin").join(program.file);
        let at = |end: &str| self.folder.join(format!("host-{name}.{end}"));
        let (instrumented, profile, optimized) = (at("inst"), at("plraw"), at("opt"));
        let _ = fs::remove_file(&profile);
        self.tools
            .postlink_instrument(&original, &instrumented, &self.folder)?;
        let mut command = programs::command(program, &instrumented, self.corpus, n)?;
        let output = command
            .env("POSTLINK_PROFILE", &profile)
            .output()
            .context("the workload cannot be started")?;
        if !output.status.success() {
            bail!("{}: {}", instrumented.display(), output.status);
        }
        self.optimize(&original, &profile, &optimized, &["--split-functions=none"])?;
        let costs = self.costs(&original, &profile, &optimized)?;
        let text = self.tools.postlink_inspect(&original, &self.folder)?["text"]
            .as_u64()
            .unwrap_or(0);
        Ok((costs, text))
    }

    fn measure(&self, program: &'static Program) -> Result<Figures> {
        let original = self.corpus.join("bin").join(program.file);
        let at = |name: &str| self.folder.join(format!("{}.{name}", program.name));
        let (instrumented, profile, blocks) = (at("inst"), at("plraw"), at("blocks"));
        let _ = fs::remove_file(&profile);
        let mut wrong = vec![];
        let (expected, plain) = self.run(program, &original, None)?;
        let arguments: &[&Path] = &[
            "instrument".as_ref(),
            &original,
            "-o".as_ref(),
            &instrumented,
            "--blocks".as_ref(),
            &blocks,
        ];
        self.tools.postlink(&self.folder, arguments)?;
        let placement = Placement::read(&blocks, &instrumented, &code(&instrumented)?)?;
        let mut traces = vec![plain];
        let mut check = |name: &str, path: &Path, profile: Option<&Path>| -> Result<()> {
            match self.run(program, path, profile) {
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
        self.optimize(&original, &profile, &optimized, &["--split-functions=none"])?;
        let account = self.optimize(
            &original,
            &profile,
            &split,
            &["--split-functions", "--preset=fast"],
        )?;
        check("optimised", &optimized, None)?;
        check("split", &split, None)?;
        for output in [&instrumented, &optimized, &split] {
            self.tools
                .postlink_verify(&original, output, &self.folder)?;
        }
        let tool = self.costs(&original, &profile, &optimized)?;
        let host = match counterpart(program.name) {
            Some(name) => Some(self.on_host(name, program.simulated.flatten())?),
            None => None,
        };

        let counts = self
            .tools
            .postlink_counts(&original, &profile, &self.folder)?;
        let trace = traces.get(1).context("a trace of the instrumented run")?;
        let compared = compare(&counts, trace, &placement, &mut wrong)?;
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
            tool,
            host,
            wrong,
        })
    }
}

/// Compares a profile's counts with what was executed: how many, and how many differ. What the profile calls
/// an estimate is left out.
fn compare(
    counts: &Value,
    truth: &Trace,
    placement: &Placement,
    wrong: &mut Vec<String>,
) -> Result<(u64, u64)> {
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
            let place = placement.place(address);
            let is = place.and_then(|at| truth.executed.get(&at).copied());
            let is = is.unwrap_or(0);
            let taken = placement.taken(address, &truth.jumps);
            check(
                format!("{name}: block {address:#x}"),
                number(&block["count"])?,
                is,
            );
            for edge in block["edges"].as_array().context("a block's edges")? {
                let to = number(&edge["to"])?;
                let is_so = |what: &str| edge[what].as_bool().unwrap_or(false);
                if to == last + 4 || is_so("joins") || is_so("estimated") {
                    continue;
                }
                let is = taken.get(&to).copied().unwrap_or(0);
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
///
/// With `only_mip` only machine profiles are measured: for trying things out.
pub fn run(output: &Path, only_mip: bool) -> Result<bool> {
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
    let mut rows = vec![];
    let mut remarks = String::new();
    for program in programs::AARCH64 {
        eprintln!("== {}", program.name);
        let built = programs::build(program, &corpus);
        let mut wrong = vec![];
        match built
            .as_ref()
            .map(|()| aarch64_mip::measure(&bench, program, &mut wrong))
        {
            Ok(Ok(found)) => rows.extend(found),
            Ok(Err(error)) => wrong.push(format!("{error:#}")),
            Err(_) => {}
        }
        for what in wrong {
            eprintln!("{}: {what}", program.name);
            writeln!(remarks, "* {}: **wrong**: {what}", program.name)?;
        }
        if only_mip {
            continue;
        }
        match built.and_then(|()| bench.measure(program)) {
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
    let versions = tools
        .versions()
        .into_iter()
        .chain(["aarch64-linux-gnu-gcc", "clang-19", "qemu-aarch64"].map(version))
        .collect::<Vec<_>>();
    let text = report(&all, &aarch64_mip::report(&rows)?, &remarks, &versions)?;
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
pub fn change(before: u64, after: u64) -> String {
    if before == 0 {
        "–".into()
    } else {
        format!("{:+.1} %", 100.0 * (after as f64 / before as f64 - 1.0))
    }
}

/// Geometric mean of ratios, as a change in per cent.
pub fn mean(ratios: impl Iterator<Item = (u64, u64)>) -> String {
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

/// The first line of what a program says of its version.
fn version(program: &str) -> String {
    let output = Command::new(program).arg("--version").output();
    let said = output
        .map(|o| String::from_utf8_lossy(&o.stdout).into_owned())
        .unwrap_or_default();
    said.lines().next().unwrap_or("not installed").to_owned()
}

fn report(figures: &[Figures], mip: &str, remarks: &str, versions: &[String]) -> Result<String> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut text = format!(
        "# AArch64\n\nWritten by `cargo xtask bench aarch64` on {cores} cores ({}): programs built with `-O2 -Wl,-q` by Debian's cross compilers (gcc, GNU ld) \
         or clang and lld (sqlite-clang with signed return addresses and landing pads), run by qemu-user. The checker proved every function of every \
         instrumented and optimised copy. Instructions are counted by a plugin, those of libraries included; outputs were the same in all states, or it is \
         said below.\n\n\
         ## Instructions executed (millions)\n\n\
         | program | plain | instrumented | | optimised | | split | |\n|---|--:|--:|--:|--:|--:|--:|--:|\n",
        versions.join("; ")
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
        "\nGeometric means: instrumented {} (target: at most +35 %), optimised {}, split {}.",
        column(1),
        column(2),
        column(3)
    )?;
    text += "\n## Exactness and reach\n\nTargets: no count differs; at least 95 % can move.\n\n| program | counts compared with the trace of the same run | different | functions that ran | can move | | moved and proved |\n\
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
        "\nGeometric mean by dyno-stats: {} (target: at least 25 % fewer).",
        mean(figures.iter().map(|f| (f.dyno[0], f.dyno[1])))
    )?;
    writeln!(
        text,
        "\n## The tool\n\nProcessor time and memory, medians of {RUNS} runs, per MB of code; the same source built for x86-64 beside it. The checker's time is that \
         of `verify`. Target: as on x86-64.\n\n\
         | program | for | MB of code | instrument: ms/MB | MB/MB | optimise: ms/MB | MB/MB | verify: ms/MB | MB/MB |\n\
         |---|---|--:|--:|--:|--:|--:|--:|--:|"
    )?;
    for f in figures {
        let own = ("AArch64", f.tool, f.text);
        for (machine, costs, bytes) in
            std::iter::once(own).chain(f.host.map(|(costs, bytes)| ("x86-64", costs, bytes)))
        {
            let mb = (bytes as f64 / 1e6).max(1e-3);
            write!(text, "| {} | {machine} | {mb:.2} |", f.name)?;
            for cost in costs {
                write!(
                    text,
                    " {:.0} | {:.0} |",
                    cost.seconds * 1e3 / mb,
                    cost.peak as f64 / 1e6 / mb
                )?;
            }
            text.push('\n');
        }
    }
    text += mip;
    if !remarks.is_empty() {
        write!(text, "\n## Remarks\n\n{remarks}")?;
    }
    Ok(text)
}
