//! `cargo xtask bench mip`: machine profiles.
//!
//! * Merging ten thousand raw files of each mode, the same number of bytes.
//! * What each mode of `postlink instrument` costs a program: size of the stripped file (by `llvm-strip`,
//!   which leaves segments where they are in the file, and by GNU `strip`, which lays them out by their
//!   addresses and so takes what is in a hole out of it), processor time of the workload, in turn with the
//!   plain program. The functions that ran must be the same in all modes.
//! * What an order by first calls does to the pages that a start touches, counted from the order of first
//!   calls (no page cache is involved): pages of 4 KiB that hold the start of a function that is called,
//!   where functions are in the program and where the order puts them. The large program is the corpus's
//!   clang, compiling an empty function.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::programs::{self, Program};
use super::report::Figures;
use super::tools::Tools;
use crate::process;

use super::{Candidate, alternate, ratio, root};

/// Raw files that are merged.
const FILES: usize = 10_000;
/// Bytes of counters in each.
const COUNTERS: usize = 100_000;
const MODES: [&str; 4] = [
    "function-coverage",
    "block-coverage",
    "call-graph",
    "call-edges",
];
/// The large program, if the corpus has it: building it takes an hour.
const LARGE: &str = "clang-no-pie";
/// Programs below this are hardly more than the start-up routine.
const SMALL: u64 = 100_000;

struct Wishes {
    names: Vec<String>,
    runs: usize,
    files: usize,
    output: PathBuf,
}

/// The job.
pub fn run(arguments: &[String]) -> Result<bool> {
    let mut wishes = Wishes {
        names: vec![],
        runs: 3,
        files: FILES,
        output: root()?.join("bench/mip.md"),
    };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let mut value = || {
            rest.next()
                .with_context(|| format!("{argument} needs a value"))
        };
        match argument.as_str() {
            "--runs" => wishes.runs = value()?.parse().context("--runs needs a number")?,
            "--files" => wishes.files = value()?.parse().context("--files needs a number")?,
            "--output" => wishes.output = value()?.into(),
            option if option.starts_with('-') => {
                bail!("cargo xtask bench mip has no option '{option}'")
            }
            name => wishes.names.push(name.to_owned()),
        }
    }
    if wishes.names.is_empty() {
        wishes.names = ["sqlite", "lua", "exc", "redis", "rg"]
            .map(str::to_owned)
            .to_vec();
    }
    let corpus = programs::corpus()?;
    let tools = Tools::find(false)?;
    let mut text = "# Machine profiles\n\nMade by `cargo xtask bench mip`.\n\n".to_owned();
    merging(&tools, wishes.files, &corpus.join("bench/mip"), &mut text)?;
    let mut good = true;
    let mut rows = String::new();
    let mut pages = String::new();
    let mut costs: Vec<Cost> = vec![];
    for program in programs::choose(&wishes.names)? {
        eprintln!("== {}", program.name);
        programs::build(program, &corpus)?;
        good &= second_way(
            program,
            &corpus,
            &tools,
            wishes.runs,
            &mut rows,
            &mut pages,
            &mut costs,
        )?;
    }
    large(&corpus, &tools, &mut rows, &mut pages, &mut costs)?;
    for (least, which) in [(0, "all"), (SMALL, "those of 100 kB or more")] {
        for mode in MODES {
            let of = || costs.iter().filter(|c| c.mode == mode && c.plain >= least);
            let mean = |part: fn(&Cost) -> Option<f64>| {
                let logs: Vec<f64> = of().filter_map(part).map(f64::ln).collect();
                match logs.len() {
                    0 => "-".to_owned(),
                    n => format!(
                        "{} ({n})",
                        more((logs.iter().sum::<f64>() / n as f64).exp())
                    ),
                }
            };
            let _ = writeln!(
                rows,
                "| geometric mean of {which} | {mode} | | | {} | {} | {} |",
                mean(|c| Some(c.size.0)),
                mean(|c| Some(c.size.1)),
                mean(|c| c.time)
            );
        }
    }
    let _ = write!(
        text,
        "## Instrumented after linking\n\nSize of the stripped file and processor time, relative to the plain program; medians of {} runs in turn. Targets: function coverage at most +2 % of size and +1 % of time in the geometric mean, \
         never over +5 % of size. What all programs have to bear is the start-up routine, about 2 kB: in small ones it lies in a hole between segments of the file, if there is one, and `llvm-strip` leaves it there. GNU `strip` \
         lays segments out by their addresses, so behind the others.\n\n\
         | program | mode | functions that count | blocks with a counter | size by llvm-strip | by GNU strip | time |\n|---|---|---|---|---|---|---|\n{rows}\n\
         ## Pages at the start\n\nPages of 4 KiB with functions that the workload calls, by the order of first calls of one run: where they are in the program, and in the order of `postlink mip order --by …`. \
         Target: 20 % fewer on a large program.\n\n\
         | program | functions called | as linked | first-call | start-up |\n|---|---|---|---|---|\n{pages}",
        wishes.runs
    );
    println!("{text}");
    fs::write(&wishes.output, &text).with_context(|| wishes.output.display().to_string())?;
    eprintln!("written to {}", wishes.output.display());
    Ok(good)
}

/// Makes raw files and has them merged.
fn merging(tools: &Tools, files: usize, folder: &Path, text: &mut String) -> Result<()> {
    let _ = write!(
        text,
        "## Merging {files} raw files\n\n| | bytes | time | rate | memory |\n|---|---|---|---|---|\n"
    );
    for kind in KINDS {
        let _ = fs::remove_dir_all(folder);
        fs::create_dir_all(folder.join("raws")).with_context(|| folder.display().to_string())?;
        let (map, profile) = (folder.join("a.mipmap"), folder.join("a.mip"));
        fs::write(&map, map_of(kind))?;
        for n in 0..files {
            let path = folder.join(format!("raws/{n}.mipraw"));
            fs::write(&path, raw_of(kind, n as u64))?;
        }
        let arguments: Vec<PathBuf> = vec![
            "mip".into(),
            "merge".into(),
            "--map".into(),
            map,
            "-p".into(),
            profile,
            folder.join("raws"),
        ];
        let borrowed: Vec<&Path> = arguments.iter().map(PathBuf::as_path).collect();
        let mut best: Option<crate::process::Run> = None;
        for _ in 0..3 {
            let (run, _) = tools.postlink(folder, &borrowed)?;
            if best.is_none_or(|b| run.wall < b.wall) {
                best = Some(run);
            }
        }
        let run = best.context("three runs")?;
        let bytes = files * (32 + kind.functions() * kind.size() + kind.slots * SLOT);
        let _ = writeln!(
            text,
            "| {} | {} | {:.2} s | {:.2} GB/s | {} MB |",
            kind.what,
            bytes,
            run.wall.as_secs_f64(),
            bytes as f64 / 1e9 / run.wall.as_secs_f64(),
            run.peak / 1_000_000
        );
    }
    let _ = fs::remove_dir_all(folder);
    text.push_str("\nThe files are in the page cache; the best of three runs. Target: 1 GB/s.\n\n");
    Ok(())
}

/// What is merged.
struct Kind {
    what: &'static str,
    types: u32,
    /// Blocks of a function that have counters, other than the entry. The entry of one function in three
    /// follows from the first two.
    blocks: usize,
    /// Sampled return addresses in each file.
    slots: usize,
}

const KINDS: &[Kind] = &[
    Kind {
        what: "function coverage",
        types: 0x01,
        blocks: 0,
        slots: 0,
    },
    Kind {
        what: "block coverage",
        types: 0x43,
        blocks: 9,
        slots: 0,
    },
    Kind {
        what: "calls and first calls",
        types: 0x0C,
        blocks: 0,
        slots: 0,
    },
    Kind {
        what: "the same and call edges",
        types: 0x1C,
        blocks: 0,
        slots: COUNTERS / 2 / SLOT,
    },
];

/// Bytes of a sampled return address.
const SLOT: usize = 16;
/// Different call edges of a program.
const EDGES: u64 = 5_000;

impl Kind {
    /// Bytes of a function's counters.
    fn size(&self) -> usize {
        self.blocks + if self.types & 0x0C == 0 { 1 } else { 8 }
    }

    fn functions(&self) -> usize {
        (COUNTERS - self.slots * SLOT) / self.size()
    }

    fn infers_entry(&self, function: usize) -> bool {
        self.blocks > 1 && function.is_multiple_of(3)
    }

    fn header(&self, kind: u16, types: u32) -> Vec<u8> {
        let slots = if kind == 0x11 { self.slots as u32 } else { 0 };
        let version = if slots > 0 || types & 0x40 != 0 { 9 } else { 8 };
        let mut out = vec![0xFB, b'M', b'I', b'P', version, 0];
        out.extend(kind.to_le_bytes());
        out.extend(types.to_le_bytes());
        out.extend(7u32.to_le_bytes());
        out.extend([0; 8]);
        out.extend(slots.to_le_bytes());
        out.extend(32u32.to_le_bytes());
        out
    }
}

/// A map of functions of 64 bytes each; the raw section is as far from the map as the map is long from zero.
fn map_of(kind: &Kind) -> Vec<u8> {
    let mut out = kind.header(0x14, kind.types);
    for n in 0..kind.functions() {
        let base = -(out.len() as i64);
        let name = format!("function_{n}");
        out.extend((base + 32 + (n * kind.size()) as i64).to_le_bytes());
        out.extend((base + 0x10_0000 + n as i64 * 64).to_le_bytes());
        out.extend(64u32.to_le_bytes());
        out.extend([0; 4]);
        out.extend((kind.blocks as u32).to_le_bytes());
        for block in 1..=kind.blocks as u32 {
            out.extend((4 * block).to_le_bytes());
        }
        out.extend((name.len() as u32).to_le_bytes());
        out.extend(name.bytes());
        if kind.types & 0x40 != 0 {
            out.resize(out.len().next_multiple_of(4), 0);
            // Without counters: the entry, which follows from two blocks, or nothing.
            let entry = [1u32, 0, 2, 1, 2];
            let words = if kind.infers_entry(n) {
                &entry[..]
            } else {
                &[0]
            };
            out.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        }
        out.resize(out.len().next_multiple_of(8), 0);
    }
    out
}

/// A run in which about half of the functions and blocks ran.
fn raw_of(kind: &Kind, seed: u64) -> Vec<u8> {
    let mut out = kind.header(0x11, kind.types & !0x40);
    let mut state = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut time = 0u32;
    for n in 0..kind.functions() {
        let state = random();
        let ran = state & 1 == 0;
        if kind.types & 0x0C == 0 {
            out.push(if ran && !kind.infers_entry(n) {
                0
            } else {
                0xFF
            });
            let covered = |block| ran && state >> block & 1 == 0;
            out.extend((1..=kind.blocks).map(|block| if covered(block) { 0 } else { 0xFFu8 }));
        } else if ran {
            time += 1;
            out.extend(((state >> 40) as u32 + 1).to_le_bytes());
            out.extend(time.to_le_bytes());
        } else {
            out.extend([0xFF; 8]);
        }
    }
    for _ in 0..kind.slots {
        let edge = (random() >> 20) % EDGES;
        let callee = 32 + 8 * (edge % kind.functions() as u64) as u32;
        out.extend(callee.to_le_bytes());
        out.extend((0x1000 + 16 * edge as i32).to_le_bytes());
        out.extend((1 + (random() >> 50)).to_le_bytes());
    }
    out
}

/// Measures a program in all modes; false if an output differed.
fn second_way(
    program: &Program,
    corpus: &Path,
    tools: &Tools,
    runs: usize,
    rows: &mut String,
    pages: &mut String,
    costs: &mut Vec<Cost>,
) -> Result<bool> {
    let original = corpus.join("bin").join(program.file);
    let folder = corpus.join("bench").join(program.name);
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let mut accounts: Vec<Value> = vec![];
    let mut candidates = vec![Candidate::new("plain", &original)];
    for mode in MODES {
        let output = folder.join(format!("{mode}.inst"));
        let (_, said) = tools.postlink(
            &folder,
            &[
                "instrument".as_ref(),
                "--json".as_ref(),
                "--mode".as_ref(),
                mode.as_ref(),
                &original,
                "-o".as_ref(),
                &output,
            ],
        )?;
        accounts.push(serde_json::from_slice(&said).context("postlink instrument --json")?);
        candidates.push(Candidate::new(mode, &output));
        // A program leaves the file of another one, or of an older version of itself, alone.
        let _ = fs::remove_file(folder.join(format!("{mode}.mipraw")));
    }
    let mut figures = Figures::new(program.name);
    alternate(
        program,
        corpus,
        &folder,
        runs,
        &mut candidates,
        &mut figures,
    )?;
    let plain_size = Stripped::of(&original, &folder)?;
    for (mode, account) in MODES.iter().zip(&accounts) {
        let number = |key: &str| account[key].as_u64().unwrap_or(0);
        let percent = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
        let time = ratio(&candidates, mode).map(|r| r.other / r.plain);
        let size = Stripped::of(&folder.join(format!("{mode}.inst")), &folder)?.by(plain_size);
        costs.push(Cost {
            mode,
            plain: plain_size.llvm,
            size,
            time,
        });
        let time = time.map_or_else(
            || "-".to_owned(),
            |t| format!("{:+.1} %", 100.0 * (t - 1.0)),
        );
        let _ = writeln!(
            rows,
            "| {} | {mode} | {:.1} % | {:.1} % | {} | {} | {time} |",
            program.name,
            percent(number("instrumented"), number("functions")),
            percent(number("counted"), number("blocks")),
            more(size.0),
            more(size.1),
        );
    }
    let ran = covered(&folder, tools)?;
    for (mode, functions) in &ran[1..] {
        // Counters at entries see functions that cannot be emitted anew, and the other way round: only what
        // both count is compared. And a server's threads end when they like.
        let (first, known) = (&ran[0].1, counted(&folder, mode)?);
        let known_first = counted(&folder, MODES[0])?;
        let missing = |a: &BTreeSet<String>, b: &BTreeSet<String>| {
            a.difference(b)
                .filter(|f| known.contains(*f) && known_first.contains(*f))
                .cloned()
                .collect::<Vec<_>>()
        };
        let (less, more) = (missing(first, functions), missing(functions, first));
        if program.name != "redis" && !(less.is_empty() && more.is_empty()) {
            figures.differences.push(format!("{mode}: other functions ran than by function coverage: without {less:?}, with {more:?}"));
        }
    }
    for difference in &figures.differences {
        let _ = writeln!(rows, "| {} | {difference} | | | | | |", program.name);
    }
    if folder.join("call-graph.mipraw").exists() {
        orders(program.name, &folder, tools, pages)?;
    }
    Ok(figures.differences.is_empty())
}

/// What a mode costs a program, relative to the plain one.
struct Cost {
    mode: &'static str,
    /// Bytes of the plain program, stripped.
    plain: u64,
    /// By LLVM's strip and by GNU's.
    size: (f64, f64),
    time: Option<f64>,
}

/// Sizes of a file without symbols and debug information.
#[derive(Clone, Copy)]
struct Stripped {
    llvm: u64,
    gnu: u64,
}

impl Stripped {
    fn of(file: &Path, folder: &Path) -> Result<Stripped> {
        let size = |strip: &str| -> Result<u64> {
            let to = folder.join("stripped");
            let run = process::run(
                Command::new(strip).arg("-o").arg(&to).arg(file),
                &folder.join("tool.out"),
                &folder.join("tool.err"),
            )?;
            if !run.status.success() {
                bail!("{strip} {}: {}", file.display(), run.status);
            }
            let size = fs::metadata(&to)
                .with_context(|| to.display().to_string())?
                .len();
            fs::remove_file(&to)?;
            Ok(size)
        };
        Ok(Stripped {
            llvm: size("llvm-strip-22")?,
            gnu: size("strip")?,
        })
    }

    /// Relative to another file.
    fn by(self, plain: Stripped) -> (f64, f64) {
        (
            self.llvm as f64 / plain.llvm as f64,
            self.gnu as f64 / plain.gnu as f64,
        )
    }
}

/// How much more a ratio is than one.
fn more(ratio: f64) -> String {
    format!("{:+.1} %", 100.0 * (ratio - 1.0))
}

/// By mode: the functions that ran.
fn covered(folder: &Path, tools: &Tools) -> Result<Vec<(&'static str, BTreeSet<String>)>> {
    let mut all = vec![];
    for mode in MODES {
        let (raw, profile) = (
            folder.join(format!("{mode}.mipraw")),
            folder.join(format!("{mode}.mip")),
        );
        let map = folder.join(format!("{mode}.inst.mipmap"));
        let _ = fs::remove_file(&profile);
        let arguments: [&Path; 8] = [
            "mip".as_ref(),
            "merge".as_ref(),
            "--map".as_ref(),
            &map,
            "-p".as_ref(),
            &profile,
            &raw,
            "--strict".as_ref(),
        ];
        tools.postlink(folder, &arguments)?;
        let (_, said) = tools.postlink(
            folder,
            &["mip".as_ref(), "covered".as_ref(), "-p".as_ref(), &profile],
        )?;
        all.push((
            mode,
            String::from_utf8_lossy(&said)
                .lines()
                .map(str::to_owned)
                .collect(),
        ));
    }
    Ok(all)
}

/// Names of all functions that have a counter in a mode: whatever is in the map's text.
fn counted(folder: &Path, mode: &str) -> Result<BTreeSet<String>> {
    let map = folder.join(format!("{mode}.inst.mipmap"));
    let bytes = fs::read(&map).with_context(|| map.display().to_string())?;
    let name = |b: &u8| b.is_ascii_graphic();
    Ok(bytes
        .split(|b| !name(b))
        .filter(|part| !part.is_empty())
        .map(|part| String::from_utf8_lossy(part).into_owned())
        .collect())
}

/// A row on the pages that a run touches.
fn orders(name: &str, folder: &Path, tools: &Tools, pages: &mut String) -> Result<()> {
    let profile = folder.join("call-graph.mip");
    let mut cells = vec![];
    for by in ["first-call", "start-up"] {
        let (_, said) = tools.postlink(
            folder,
            &[
                "mip".as_ref(),
                "order".as_ref(),
                "--json".as_ref(),
                "--by".as_ref(),
                by.as_ref(),
                "-p".as_ref(),
                &profile,
            ],
        )?;
        let said: Value = serde_json::from_slice(&said).context("postlink mip order --json")?;
        cells.push((
            said["functions"].as_u64().unwrap_or(0),
            said["pages_before"].as_u64().unwrap_or(0),
            said["pages_after"].as_u64().unwrap_or(0),
        ));
    }
    if let [first, start] = cells[..] {
        let change = |after: u64| 100.0 * (after as f64 / first.1.max(1) as f64 - 1.0);
        let _ = writeln!(
            pages,
            "| {} | {} | {} | {} ({:+.1} %) | {} ({:+.1} %) |",
            name,
            first.0,
            first.1,
            first.2,
            change(first.2),
            start.2,
            change(start.2)
        );
    }
    Ok(())
}

/// The large program: sizes, and the pages of its start.
fn large(
    corpus: &Path,
    tools: &Tools,
    rows: &mut String,
    pages: &mut String,
    costs: &mut Vec<Cost>,
) -> Result<()> {
    let original = corpus.join("bin").join(LARGE);
    if !original.is_file() {
        eprintln!("bin/{LARGE} is not in the corpus: the row on a large program is missing");
        let _ = writeln!(pages, "| {LARGE} | not in the corpus | | | |");
        return Ok(());
    }
    eprintln!("== {LARGE}");
    let folder = corpus.join("bench").join(LARGE);
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let source = folder.join("empty.c");
    fs::write(&source, "int main(void) { return 0; }\n")?;
    let plain = Stripped::of(&original, &folder)?;
    for mode in ["function-coverage", "call-graph"] {
        let output = folder.join(format!("{mode}.inst"));
        let arguments: [&Path; 7] = [
            "instrument".as_ref(),
            "--json".as_ref(),
            "--mode".as_ref(),
            mode.as_ref(),
            &original,
            "-o".as_ref(),
            &output,
        ];
        let (run, said) = tools.postlink(&folder, &arguments)?;
        let account: Value = serde_json::from_slice(&said).context("postlink instrument --json")?;
        let number = |key: &str| account[key].as_u64().unwrap_or(0);
        let size = Stripped::of(&output, &folder)?.by(plain);
        let _ = writeln!(
            rows,
            "| {LARGE} (instrumented in {:.1} s) | {mode} | {:.1} % | | {} | {} | |",
            run.wall.as_secs_f64(),
            100.0 * number("instrumented") as f64 / number("functions").max(1) as f64,
            more(size.0),
            more(size.1),
        );
        costs.push(Cost {
            mode,
            plain: plain.llvm,
            size,
            time: None,
        });
        if mode != "call-graph" {
            fs::remove_file(&output)?;
            continue;
        }
        let raw = folder.join("call-graph.mipraw");
        let _ = fs::remove_file(&raw);
        let mut command = Command::new(&output);
        command
            .env("LLVM_MIP_PROFILE_FILENAME", &raw)
            .args(["-O2", "-c"])
            .arg(&source)
            .arg("-o")
            .arg(folder.join("empty.o"));
        let run = process::run(
            &mut command,
            &folder.join("workload.out"),
            &folder.join("workload.err"),
        )?;
        if !run.status.success() {
            bail!("{}: {}", output.display(), run.status);
        }
        let (map, profile) = (
            folder.join("call-graph.inst.mipmap"),
            folder.join("call-graph.mip"),
        );
        let _ = fs::remove_file(&profile);
        let arguments: [&Path; 8] = [
            "mip".as_ref(),
            "merge".as_ref(),
            "--map".as_ref(),
            &map,
            "-p".as_ref(),
            &profile,
            &raw,
            "--strict".as_ref(),
        ];
        tools.postlink(&folder, &arguments)?;
        orders(LARGE, &folder, tools, pages)?;
    }
    fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())
}
