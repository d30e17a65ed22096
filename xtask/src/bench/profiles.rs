//! `cargo xtask bench profiles`: reading, aggregating and merging profiles, side by side with perf2bolt and
//! merge-fdata 22.
//!
//! The recordings are made up: walks over the real branches of a program of the corpus, so that stacks look
//! as those of hardware do: 312,500 samples with 32 entries each are ten million branch records. perf2bolt
//! runs `perf` to get at a recording; to measure its own work alone it is given a `perf` that does nothing
//! but print a text that is there already, which is also how it is compared on texts.
//!
//! The same with a binary that has translation tables: the program as postlink optimises it by the first
//! profile, and walks over its code. Here stacks have 16 entries, as those of older processors: of stacks
//! with 32 perf2bolt leaves out the two newest ones if there are tables, for the sake of a defect of one
//! processor, and the profiles could not be compared.
//!
//! For merging, a thousand fdata files are made up from the lines of one (see [`many`]), and some with the
//! names of clang.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::{programs, root, tools::Tools};
use crate::process::{self, Run};

const RECORDS: usize = 10_000_000;
const FILES: usize = 1_000;
/// Lines of each of them, at most: together some 1 GB.
const LINES: usize = 20_000;
const LOAD: u64 = 0x5555_5555_0000;
/// Profiles of clang's size: files, functions and lines of each function.
const CLANG_FILES: usize = 12;
const CLANG_FUNCTIONS: usize = 25_000;
const CLANG_LINES: usize = 12;
const LLVM: &str = "/usr/lib/llvm-22/bin";

/// A small random number generator: the same files every time.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}

/// What an instruction that changes the flow does.
#[derive(Clone, Copy)]
enum Flow {
    Call(u64),
    Jump(u64),
    Return,
}

/// The branches of a program in a section, by address.
fn branches(program: &Path, section: &str) -> Result<BTreeMap<u64, Flow>> {
    let output = Command::new("objdump")
        .args(["-d", "--no-show-raw-insn", "-j", section])
        .arg(program)
        .output()
        .context("objdump")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut all = BTreeMap::new();
    for line in text.lines() {
        let Some((address, insn)) = line.trim_start().split_once(":\t") else {
            continue;
        };
        let mut words = insn.split_whitespace();
        let name = words.next().unwrap_or_default();
        let target = words
            .next()
            .and_then(|word| u64::from_str_radix(word, 16).ok());
        let flow = match (name, target) {
            ("ret" | "repz", _) => Flow::Return,
            ("call", Some(target)) => Flow::Call(target),
            (name, Some(target)) if name.starts_with('j') => Flow::Jump(target),
            _ => continue,
        };
        if let Ok(address) = u64::from_str_radix(address, 16) {
            all.insert(address, flow);
        }
    }
    if all.len() < 100 {
        bail!(
            "{}: objdump finds {} branches",
            program.display(),
            all.len()
        );
    }
    Ok(all)
}

/// Stacks of taken branches, newest first.
fn walk(
    all: &BTreeMap<u64, Flow>,
    depth: usize,
    mut each: impl FnMut(&[(u64, u64)]) -> Result<()>,
) -> Result<()> {
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let list: Vec<(u64, Flow)> = all.iter().map(|(at, flow)| (*at, *flow)).collect();
    let mut here = 0;
    let mut returns: Vec<u64> = Vec::new();
    let mut ring: Vec<(u64, u64)> = Vec::new();
    let mut samples = 0;
    let mut skip = 0;
    while samples < RECORDS / depth {
        // A conditional branch is taken every other time.
        let (at, flow) = list[here % list.len()];
        let to = match flow {
            Flow::Jump(_) if random.below(2) == 0 => {
                here += 1;
                continue;
            }
            Flow::Jump(to) => to,
            Flow::Call(to) => {
                returns.push(at + 5);
                if returns.len() > 200 {
                    returns.clear();
                }
                to
            }
            Flow::Return => match returns.pop() {
                Some(to) => to,
                None => list[random.below(list.len())].0,
            },
        };
        ring.push((at, to));
        if random.below(64) == 0 {
            // Loops end.
            here = random.below(list.len());
        } else {
            here = list.partition_point(|branch| branch.0 < to);
        }
        skip += 1;
        if ring.len() >= depth && skip >= 41 {
            let stack: Vec<(u64, u64)> = ring.iter().rev().take(depth).copied().collect();
            each(&stack)?;
            samples += 1;
            skip = 0;
        }
        if ring.len() > 4096 {
            ring.drain(..4096 - depth);
        }
    }
    Ok(())
}

/// Address, offset and size of the segment with the code that holds an address.
fn code_segment(program: &Path, holds: u64) -> Result<(u64, u64, u64)> {
    let output = Command::new("readelf")
        .arg("-lW")
        .arg(program)
        .output()
        .context("readelf")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let number = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok();
    text.lines()
        .filter(|line| line.contains("LOAD") && line.contains("R E"))
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            Some((number(words[2])?, number(words[1])?, number(words[5])?))
        })
        .find(|(address, _, size)| (*address..address.saturating_add(*size)).contains(&holds))
        .with_context(|| format!("{}: no segment with code at {holds:#x}", program.display()))
}

/// Writes the recording as text (apart, mappings and the samples without their addresses, which perf2bolt does not
/// ask for), as one text, and as `perf.data`. It tells of one mapping,
/// that of the section: perf2bolt takes the first one for the only one.
fn recordings(program: &Path, section: &str, depth: usize, dir: &Path) -> Result<()> {
    let branches = branches(program, section)?;
    let first = branches.keys().next().copied().unwrap_or(0);
    let (address, offset, size) = code_segment(program, first)?;
    let path = program.canonicalize()?;
    let path = path.to_str().context("the corpus has a strange path")?;
    let page = |n: u64| n & !0xfff;
    let mut text = BufWriter::with_capacity(1 << 20, File::create(dir.join("samples.txt"))?);
    let mut whole = BufWriter::with_capacity(1 << 20, File::create(dir.join("whole.txt"))?);
    let mut records = Vec::new();
    let record = |out: &mut Vec<u8>, kind: u32, misc: u16, body: &[u8]| {
        out.extend(kind.to_le_bytes());
        out.extend(misc.to_le_bytes());
        out.extend((8 + body.len() as u16).to_le_bytes());
        out.extend(body);
    };
    let mut body = Vec::new();
    let start = LOAD + page(address);
    let len = (size + 0xfff + address - page(address)) & !0xfff;
    let offset = page(offset);
    let map = format!(
        "app  4242/4242 1.000000: PERF_RECORD_MMAP2 4242/4242: [{start:#x}({len:#x}) @ {offset:#x} 08:01 1 1]: r-xp {path}\n"
    );
    for word in [4242u32, 4242] {
        body.extend(word.to_le_bytes());
    }
    for word in [start, len, offset] {
        body.extend(word.to_le_bytes());
    }
    body.extend([0; 24]);
    body.extend([5, 0, 0, 0, 2, 0, 0, 0]);
    body.extend(path.bytes());
    body.push(0);
    body.resize(body.len().next_multiple_of(8), 0);
    for word in [u64::from(4242u32) | 4242 << 32, 1] {
        body.extend(word.to_le_bytes());
    }
    record(&mut records, 10, 2, &body);
    fs::write(dir.join("mmap.txt"), &map)?;
    whole.write_all(map.as_bytes())?;
    let mut data = BufWriter::with_capacity(1 << 20, File::create(dir.join("perf.data"))?);
    // Instruction, thread, time, branch stack.
    let kind: u64 = 1 | 2 | 4 | 0x800;
    let mut attribute = vec![0u8; 112];
    attribute[4] = 112;
    attribute[24..32].copy_from_slice(&kind.to_le_bytes());
    attribute[40..48].copy_from_slice(&(1u64 << 18 | 1 << 8 | 1 << 5).to_le_bytes());
    attribute[72..80].copy_from_slice(&9u64.to_le_bytes());
    let sample_size = (8 + 8 + 8 + 8 + 8 + 24 * depth) as u64;
    let all_records = records.len() as u64 + (RECORDS / depth) as u64 * sample_size;
    data.write_all(b"PERFILE2")?;
    for word in [104u64, 128, 104, 128, 232, all_records, 0, 0, 0, 0, 0, 0] {
        data.write_all(&word.to_le_bytes())?;
    }
    data.write_all(&attribute)?;
    data.write_all(&[0; 16])?;
    data.write_all(&records)?;
    let (mut line, mut out) = (String::new(), Vec::new());
    let mut time = 10u64;
    walk(&branches, depth, |stack| {
        line.clear();
        body.clear();
        time += 1000;
        let ip = LOAD + stack[0].1;
        let _ = write!(line, " 4242 {ip:>18x} ");
        let first = line.len();
        for word in [ip, 4242 | 4242 << 32, time, stack.len() as u64] {
            body.extend(word.to_le_bytes());
        }
        for &(from, to) in stack {
            let (from, to) = (LOAD + from, LOAD + to);
            let _ = write!(line, " {from:#x}/{to:#x}/P/-/-/1 ");
            for word in [from, to, 2] {
                body.extend(word.to_le_bytes());
            }
        }
        line.push('\n');
        text.write_all(b" 4242 ")?;
        text.write_all(&line.as_bytes()[first..])?;
        whole.write_all(line.as_bytes())?;
        out.clear();
        record(&mut out, 9, 2, &body);
        data.write_all(&out)?;
        Ok(())
    })?;
    text.flush()?;
    whole.flush()?;
    Ok(data.flush()?)
}

/// A `perf` that prints what is there.
fn false_perf(dir: &Path) -> Result<PathBuf> {
    let bin = dir.join("bin");
    fs::create_dir_all(&bin)?;
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in\n*show-mmap-events*) cat {0}/mmap.txt ;;\n*show-task-events*|*buildid*|*pid,event,addr*) ;;\n*) cat {0}/samples.txt ;;\nesac\n",
        dir.display()
    );
    let perf = bin.join("perf");
    fs::write(&perf, script)?;
    fs::set_permissions(&perf, fs::Permissions::from_mode(0o755))?;
    Ok(bin)
}

/// What the lines of a program's profiles begin with, from one of them.
fn keys_of(one: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(one)?;
    let every = text.lines().count().div_ceil(LINES).max(1);
    // Without the headers: a digit begins a record.
    let records = text
        .lines()
        .filter(|line| line.starts_with(|c: char| c.is_ascii_digit()));
    Ok(records
        .step_by(every)
        .filter_map(|line| Some(line.rsplitn(3, ' ').nth(2)?.to_owned()))
        .collect())
}

/// The same for a program of clang's size, with its names.
fn keys_of_clang(clang: &Path) -> Result<Vec<String>> {
    let names = super::fdata::names(clang)?;
    let every = names.len().div_ceil(CLANG_FUNCTIONS).max(1);
    let names: Vec<&String> = names.values().step_by(every).collect();
    let mut random = Random(0x6a09_e667_f3bc_c909);
    let mut keys = Vec::new();
    for name in &names {
        let mut offset = 0;
        for _ in 0..CLANG_LINES {
            offset += 3 + random.below(60);
            keys.push(match random.below(4) {
                0 => format!(
                    "1 {name} {offset:x} 1 {} 0",
                    names[random.below(names.len())]
                ),
                _ => format!("1 {name} {offset:x} 1 {name} {:x}", random.below(2000)),
            });
        }
    }
    Ok(keys)
}

/// Profiles of one program from many machines. What is hot is in all of them; of what is executed now and
/// then a file has some lines and lacks others. How often a line is met in the mean is spread evenly over
/// orders of magnitude, from one in thirty files to 100,000 in each; half of the lines have mispredictions.
fn many(folder: &Path, keys: &[String], files: usize) -> Result<Vec<PathBuf>> {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let unit = |random: &mut Random| (random.next() >> 11) as f64 / (1u64 << 53) as f64;
    let means: Vec<(f64, f64)> = keys
        .iter()
        .map(|_| {
            let mean = 10f64.powf(-1.5 + 6.5 * unit(&mut random));
            let missed = match random.below(2) {
                0 => 0.0,
                _ => 0.1 * unit(&mut random).powi(2),
            };
            (mean, missed)
        })
        .collect();
    fs::create_dir_all(folder)?;
    (0..files)
        .map(|file| {
            let mut out = String::new();
            for (key, (mean, missed)) in keys.iter().zip(&means) {
                // Machines are not equally busy; small counts are a Poisson process's.
                let mut count = (mean * (0.7 + 0.6 * unit(&mut random))) as u64;
                if *mean < 16.0 {
                    count = 0;
                    let mut left = unit(&mut random);
                    while left > (-mean).exp() && count < 64 {
                        count += 1;
                        left *= unit(&mut random);
                    }
                }
                if count > 0 {
                    let _ = writeln!(out, "{key} {} {count}", (count as f64 * missed) as u64);
                }
            }
            let path = folder.join(format!("{file}.fdata"));
            fs::write(&path, out)?;
            Ok(path)
        })
        .collect()
}

/// A line of the table.
struct Line {
    what: String,
    ours: Run,
    theirs: Option<Run>,
    size: u64,
}

fn size(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |data| data.len())
}

/// The best of some runs, by processor time.
fn best(dir: &Path, runs: usize, make: impl Fn() -> Command) -> Result<Run> {
    let mut best: Option<Run> = None;
    for _ in 0..runs {
        let run = process::run(&mut make(), &dir.join("out.txt"), &dir.join("err.txt"))?;
        if !run.status.success() {
            let said = fs::read_to_string(dir.join("err.txt")).unwrap_or_default();
            bail!("{:?}: {}", make(), said.lines().last().unwrap_or_default());
        }
        if best.is_none_or(|known| run.cpu < known.cpu) {
            best = Some(run);
        }
    }
    best.context("no run")
}

/// The job.
pub fn run(arguments: &[String]) -> Result<bool> {
    let mut program = None;
    let mut runs = 3;
    let mut keep = None;
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--binary" => program = rest.next().map(PathBuf::from),
            "--runs" => runs = rest.next().context("--runs needs a value")?.parse()?,
            "--keep" => keep = rest.next().map(PathBuf::from),
            other => bail!("cargo xtask bench profiles has no option '{other}'"),
        }
    }
    let program = match program {
        Some(program) => program,
        None => {
            let chosen = programs::choose(&["sqlite".to_owned()])?;
            let corpus = programs::corpus()?;
            programs::build(chosen[0], &corpus)?;
            corpus.join("bin").join(chosen[0].file)
        }
    };
    let tools = Tools::find(false)?;
    let scratch = tempfile::tempdir().context("a temporary directory")?;
    let dir = keep.as_deref().unwrap_or(scratch.path());
    fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    let perf2bolt = Path::new(LLVM).join("perf2bolt");
    let merge_fdata = Path::new(LLVM).join("merge-fdata");
    let there = perf2bolt.exists();
    if !there {
        eprintln!("perf2bolt of LLVM 22 is not installed: postlink alone is measured");
    }
    let mut lines = Vec::new();
    let mut same = true;
    let optimised = dir.join("optimised");
    for (binary, section, depth, with) in [
        (&program, ".text", 32, ""),
        (&optimised, ".text.hot", 16, ", through translation tables"),
    ] {
        if *binary == optimised {
            let mut optimize = Command::new(tools.program());
            optimize
                .args(["--quiet", "optimize", "--enable-bat", "-p"])
                .arg(dir.join("plain.fdata"))
                .arg(&program)
                .arg("-o")
                .arg(&optimised);
            best(dir, 1, || {
                let mut again = Command::new(optimize.get_program());
                again.args(optimize.get_args());
                again
            })?;
        }
        eprintln!("making recordings{with}");
        recordings(binary, section, depth, dir)?;
        let bin = false_perf(dir)?;
        let path = format!(
            "{}:{}",
            bin.display(),
            std::env::var("PATH").unwrap_or_default()
        );
        let ours = |input: &str, threads: &str| {
            let mut command = Command::new(tools.program());
            command
                .args([
                    "--quiet",
                    "--threads",
                    threads,
                    "aggregate",
                    "--only-explained",
                    "-p",
                ])
                .arg(dir.join(input))
                .arg(binary)
                .arg("-o")
                .arg(dir.join("ours.fdata"));
            command
        };
        let theirs = || {
            let mut command = Command::new(&perf2bolt);
            command
                .env("PATH", &path)
                .arg("--ignore-build-id")
                .arg("-p")
                .arg(dir.join("perf.data"))
                .arg(binary)
                .arg("-o")
                .arg(dir.join("theirs.fdata"));
            command
        };
        let aggregated = there.then(|| best(dir, 1, theirs)).transpose()?;
        for (what, input, threads) in [
            ("perf script text", "whole.txt", "2"),
            ("perf.data", "perf.data", "2"),
            ("perf.data, one thread", "perf.data", "1"),
        ] {
            eprintln!("{what}{with}");
            lines.push(Line {
                what: format!("aggregate {what}{with}"),
                ours: best(dir, runs, || ours(input, threads))?,
                theirs: aggregated,
                size: size(&dir.join(input)),
            });
        }
        if there {
            let sorted = |name: &str| -> Result<Vec<String>> {
                let text = fs::read_to_string(dir.join(name))?;
                let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
                lines.sort();
                Ok(lines)
            };
            let equal = sorted("ours.fdata")? == sorted("theirs.fdata")?;
            if !equal {
                eprintln!("{}: the profiles differ", binary.display());
            }
            same &= equal;
        }
        if *binary == program {
            fs::copy(dir.join("ours.fdata"), dir.join("plain.fdata"))?;
        }
    }
    let mut families = vec![("fdata files", FILES, keys_of(&dir.join("plain.fdata"))?)];
    let clang = programs::corpus()?.join("bin/clang-no-pie");
    if clang.exists() {
        families.push((
            "fdata files of clang's size",
            CLANG_FILES,
            keys_of_clang(&clang)?,
        ))
    } else {
        eprintln!("no clang in the corpus: profiles of its size are left out")
    }
    for (what, count, keys) in families {
        let folder = dir.join("many");
        let files = many(&folder, &keys, count)?;
        let all: u64 = files.iter().map(|file| size(file)).sum();
        eprintln!("merging {count} {what}");
        let ours = best(dir, runs, || {
            let mut command = Command::new(tools.program());
            command.args(["--quiet", "--threads", "2", "merge", "-o"]);
            command.arg(dir.join("merged.fdata")).args(&files);
            command
        })?;
        let theirs = there
            .then(|| {
                best(dir, runs, || {
                    let mut command = Command::new(&merge_fdata);
                    command
                        .arg("-q")
                        .arg("-o")
                        .arg(dir.join("theirs.merged"))
                        .args(&files);
                    command
                })
            })
            .transpose()?;
        lines.push(Line {
            what: format!("merge {count} {what}"),
            ours,
            theirs,
            size: all,
        });
        if there {
            let sums = |name: &str| -> Result<BTreeMap<String, u64>> {
                let text = fs::read_to_string(dir.join(name))?;
                let mut sums = BTreeMap::new();
                for line in text.lines() {
                    let mut fields = line.rsplitn(3, ' ');
                    let count = fields.next().and_then(|count| count.parse::<u64>().ok());
                    if let (Some(count), Some(key)) = (count, fields.nth(1)) {
                        *sums.entry(key.to_owned()).or_insert(0) += count;
                    }
                }
                Ok(sums)
            };
            if sums("merged.fdata")? != sums("theirs.merged")? {
                bail!("the sums of {what} differ");
            }
        }
        if keep.is_none() || count != FILES {
            fs::remove_dir_all(&folder).context("the files that were merged")?;
        }
    }
    let text = table(&lines, same, there, &program);
    println!("{text}");
    let output = root()?.join("bench/profiles.md");
    fs::write(&output, text).with_context(|| output.display().to_string())?;
    eprintln!("written to {}", output.display());
    Ok(same)
}

fn table(lines: &[Line], same: bool, there: bool, program: &Path) -> String {
    let mut out = String::from("# Profiles: postlink beside perf2bolt and merge-fdata 22\n\n");
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let _ = writeln!(
        out,
        "Made by `cargo xtask bench profiles`: recordings of {RECORDS} branch records of {name}, 32 a sample (16 with translation tables), made up by walks over its branches. perf2bolt is given a \
`perf` that prints the samples as text from a file, so its times are without perf's own. Time is processor time (user and system, all threads) and, in \
brackets, time on the clock; memory is the peak. Targets: 10 times as fast, a third of the memory, 500 MB/s of perf.data a core.\n"
    );
    out.push_str("| what | input | postlink | MB/s per core | memory | LLVM 22 | memory | faster (processor / clock) | memory |\n|---|---|---|---|---|---|---|---|---|\n");
    for line in lines {
        let seconds = |run: &Run| (run.cpu.as_secs_f64(), run.wall.as_secs_f64());
        let (cpu, wall) = seconds(&line.ours);
        let mb = line.size as f64 / 1e6;
        let memory = |run: &Run| run.peak as f64 / 1e6;
        let _ = write!(
            out,
            "| {} | {mb:.0} MB | {cpu:.2} s ({wall:.2} s) | {:.0} | {:.0} MB |",
            line.what,
            mb / cpu,
            memory(&line.ours)
        );
        match &line.theirs {
            Some(theirs) => {
                let (their_cpu, their_wall) = seconds(theirs);
                let _ = writeln!(
                    out,
                    " {their_cpu:.2} s ({their_wall:.2} s) | {:.0} MB | {:.1}× / {:.1}× | {:.2} |",
                    memory(theirs),
                    their_cpu / cpu,
                    their_wall / wall,
                    memory(&line.ours) / memory(theirs)
                );
            }
            None => out.push_str(" – | – | – | – |\n"),
        }
    }
    if there {
        let _ = writeln!(
            out,
            "\nThe aggregated profiles are {}. The merged ones have the same sums.",
            if same {
                "the same, line by line"
            } else {
                "**not the same**"
            }
        );
    }
    out
}
