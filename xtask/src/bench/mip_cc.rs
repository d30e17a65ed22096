//! `cargo xtask bench mip-cc`: what machine profiles made at compile time cost, in size and instructions, next to other instrumentation.
//!
//! Programs: 24 of nauty's graph tools (Debian source package `nauty`, unpacked by `apt-get source` and configured, without those that need cliquer), each with a small workload over
//! the same graphs. Debian has no package that is a collection of benchmark programs and nothing else; these are
//! many programs of one collection, written to compute, and their output is text that can be compared.
//!
//! All are built by clang 19 at `-O2`: plain, with our three modes, with `-fsanitize-coverage=bb,inline-bool-flag`, `-fprofile-generate`,
//! `-finstrument-functions` (with functions that count, inlined nowhere), and XRay. Sizes are of stripped files. Instructions are
//! counted by cachegrind: on a machine with other load they are steadier than time.
//!
//! Exactness: the same programs at `-O0`, where each function of the source is one of the machine; call counts and coverage must be those of
//! `-fprofile-instr-generate`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use anyhow::{Context, Result, bail, ensure};

use super::root;

/// Programs: source file, arguments; all but `geng` read graphs from standard input.
const PROGRAMS: &[(&str, &str, &str)] = &[
    ("geng", "geng.c", "-q 7"),
    ("gentreeg", "gentreeg.c", "-q 13"),
    ("genrang", "genrang.c", "-q -S7 30 100"),
    ("listg", "listg.c", "-q"),
    ("labelg", "labelg.c", "-q"),
    ("showg", "showg.c", "-q"),
    ("complg", "complg.c", "-q"),
    ("catg", "catg.c", ""),
    ("copyg", "copyg.c", "-q"),
    ("deledgeg", "deledgeg.c", "-q"),
    ("addedgeg", "addedgeg.c", "-q"),
    ("newedgeg", "newedgeg.c", "-q"),
    ("delptg", "delptg.c", "-q"),
    ("NRswitchg", "NRswitchg.c", "-q"),
    ("ranlabg", "ranlabg.c", "-q -S7"),
    ("linegraphg", "linegraphg.c", "-q"),
    ("subdivideg", "subdivideg.c", "-q"),
    ("planarg", "planarg.c planarity.c", "-q -u"),
    ("multig", "multig.c", "-q -e8:9 -T"),
    ("vcolg", "vcolg.c", "-q -m2 -u"),
    ("edgetransg", "edgetransg.c", "-q"),
    ("hamheuristic", "hamheuristic.c", "-q"),
    ("nbrhoodg", "nbrhoodg.c", "-q"),
    ("underlyingg", "underlyingg.c", "-q"),
];

/// What the programs share.
const COMMON: &[&str] = &[
    "gtools.c",
    "gtnauty.c",
    "naututil.c",
    "gutil1.c",
    "gutil2.c",
    "nautinv.c",
    "traces.c",
    "naugroup.c",
    "nauty.c",
    "nautil.c",
    "nausparse.c",
    "naugraph.c",
    "schreier.c",
    "naurng.c",
];
/// `geng` has its own, with sets of one word.
const ONE_WORD: &[&str] = &["-DMAXN=WORDSIZE", "-DWORDSIZE=32"];

/// A way to build.
struct Way {
    name: &'static str,
    /// Flags of our driver, if it is ours.
    ours: Option<&'static [&'static str]>,
    flags: &'static [&'static str],
    /// Whether it is run under cachegrind.
    counted: bool,
}

const WAYS: &[Way] = &[
    Way {
        name: "plain",
        ours: None,
        flags: &["-O2"],
        counted: true,
    },
    Way {
        name: "function coverage",
        ours: Some(&["-fmachine-profile-function-coverage"]),
        flags: &["-O2"],
        counted: true,
    },
    Way {
        name: "block coverage",
        ours: Some(&[
            "-fmachine-profile-function-coverage",
            "-fmachine-profile-block-coverage",
        ]),
        flags: &["-O2"],
        counted: true,
    },
    Way {
        name: "call graph",
        ours: Some(&[]),
        flags: &["-O2"],
        counted: true,
    },
    Way {
        name: "inline-bool-flag",
        ours: None,
        flags: &["-O2", "-fsanitize-coverage=bb,inline-bool-flag"],
        counted: true,
    },
    Way {
        name: "profile-generate",
        ours: None,
        flags: &["-O2", "-fprofile-generate"],
        counted: true,
    },
    Way {
        name: "instrument-functions",
        ours: None,
        flags: &["-O2", "-finstrument-functions"],
        counted: true,
    },
    Way {
        name: "XRay",
        ours: None,
        flags: &["-O2", "-fxray-instrument", "-fxray-instruction-threshold=1"],
        counted: true,
    },
    Way {
        name: "exact",
        ours: None,
        flags: &["-O0", "-fprofile-instr-generate", "-fcoverage-mapping"],
        counted: false,
    },
    Way {
        name: "calls -O0",
        ours: Some(&[]),
        flags: &["-O0"],
        counted: false,
    },
    Way {
        name: "coverage -O0",
        ours: Some(&["-fmachine-profile-function-coverage"]),
        flags: &["-O0"],
        counted: false,
    },
];

/// What the others need: a run-time that counts.
const HOOKS: &str = "\
static unsigned long calls;
__attribute__((no_instrument_function)) void __cyg_profile_func_enter(void *f, void *c) { (void)f; (void)c; calls++; }
__attribute__((no_instrument_function)) void __cyg_profile_func_exit(void *f, void *c) { (void)f; (void)c; }
void __sanitizer_cov_bool_flag_init(char *start, char *end) { (void)start; (void)end; }
";

struct Bench {
    folder: PathBuf,
    source: PathBuf,
    postlink: PathBuf,
    /// The example `mip-cc` in place of `postlink mip cc`: the same driver, built in a minute.
    driver: Option<PathBuf>,
    graphs: PathBuf,
}

/// The job.
pub fn run(arguments: &[String]) -> Result<bool> {
    let root = root()?;
    let mut folder = root.join("target/mip-cc");
    let mut postlink = root.join("target/release/postlink");
    let mut output = root.join("bench/mip-cc.md");
    let mut driver = None;
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let value = rest
            .next()
            .with_context(|| format!("{argument} needs a value"))?;
        match argument.as_str() {
            "--folder" => folder = value.into(),
            "--postlink" => postlink = value.into(),
            "--output" => output = value.into(),
            "--driver" => driver = Some(PathBuf::from(value)),
            other => bail!("cargo xtask bench mip-cc has no option '{other}'"),
        }
    }
    crate::packages::install(crate::packages::FOR_MIP_CC, true);
    if !postlink.is_file() && driver.is_none() {
        let built = Command::new("cargo")
            .args(["build", "--release", "-p", "postlink"])
            .current_dir(&root)
            .status()?;
        ensure!(built.success(), "postlink does not build");
    }
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let source = unpack(&folder)?;
    let bench = Bench {
        graphs: folder.join("graphs.g6"),
        folder,
        source,
        postlink,
        driver,
    };
    let text = bench.all()?;
    println!("{text}");
    fs::write(&output, &text).with_context(|| output.display().to_string())?;
    Ok(!text.contains("DIFFERENT"))
}

/// The sources of nauty, configured.
fn unpack(folder: &Path) -> Result<PathBuf> {
    let find = || -> Option<PathBuf> {
        fs::read_dir(folder)
            .ok()?
            .flatten()
            .map(|entry| entry.path())
            .find(|path| {
                path.is_dir()
                    && path
                        .file_name()
                        .is_some_and(|name| name.to_string_lossy().starts_with("nauty-"))
            })
    };
    if find().is_none() {
        quiet(
            Command::new("apt-get")
                .args(["source", "-qq", "nauty"])
                .current_dir(folder),
        )?;
    }
    let source = find().context("apt-get source nauty left no folder")?;
    if !source.join("nauty.h").is_file() {
        quiet(Command::new("autoreconf").arg("-fi").current_dir(&source))?;
        quiet(Command::new("./configure").current_dir(&source))?;
    }
    // Some of Debian's sources include <nauty/…>.
    let include = folder.join("include");
    fs::create_dir_all(&include)?;
    let link = include.join("nauty");
    if !link.exists() {
        std::os::unix::fs::symlink(source.canonicalize()?, &link)?;
    }
    Ok(source)
}

fn quiet(command: &mut Command) -> Result<Vec<u8>> {
    let out = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("{command:?}"))?;
    if !out.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&out.stderr));
    }
    Ok(out.stdout)
}

/// A program built in one way.
#[derive(Clone, Copy, Default)]
struct Cost {
    size: u64,
    instructions: u64,
}

impl Bench {
    fn all(&self) -> Result<String> {
        let hooks = self.folder.join("hooks.c");
        fs::write(&hooks, HOOKS)?;
        for way in WAYS
            .iter()
            .filter(|way| way.counted || self.postlink.is_file())
        {
            eprintln!("== building: {}", way.name);
            self.build(way, &hooks)?;
        }
        let graphs = quiet(Command::new(self.program(&WAYS[0], "geng")).args(["-q", "6"]))?;
        fs::write(&self.graphs, graphs)?;
        let mut costs: BTreeMap<(&str, &str), Cost> = BTreeMap::new();
        let mut wrong = vec![];
        for (name, _, arguments) in PROGRAMS {
            eprintln!("== {name}");
            let expected = self.output(&WAYS[0], name, arguments)?;
            for way in WAYS.iter().filter(|way| way.counted) {
                if self.output(way, name, arguments)? != expected {
                    wrong.push(format!("{name}: DIFFERENT output with {}", way.name));
                }
                let cost = Cost {
                    size: self.stripped_size(way, name)?,
                    instructions: self.instructions(way, name, arguments)?,
                };
                costs.insert((name, way.name), cost);
            }
        }
        let mut functions = 0;
        let comparable = if self.postlink.is_file() {
            PROGRAMS
        } else {
            &[]
        };
        for (name, _, arguments) in comparable {
            match self.compare(name, arguments) {
                Ok(compared) => functions += compared,
                Err(error) => wrong.push(format!("{name}: DIFFERENT: {error:#}")),
            }
        }
        Ok(report(&costs, functions, &wrong))
    }

    fn way_folder(&self, way: &Way) -> PathBuf {
        self.folder.join(way.name.replace(' ', "-"))
    }

    fn program(&self, way: &Way, name: &str) -> PathBuf {
        self.way_folder(way).join(name)
    }

    fn cc(&self, way: &Way) -> Command {
        let mut command = match way.ours {
            Some(flags) => match &self.driver {
                Some(driver) => {
                    let mut command = Command::new(driver);
                    command.arg("clang-19").args(flags);
                    command
                }
                None => {
                    let mut command = Command::new(&self.postlink);
                    command
                        .args(["mip", "cc"])
                        .args(flags)
                        .args(["--", "clang-19"]);
                    command
                }
            },
            None => Command::new("clang-19"),
        };
        command
            .args(way.flags)
            .arg("-w")
            .arg("-I")
            .arg(&self.source)
            .arg("-I")
            .arg(self.folder.join("include"))
            .current_dir(&self.source);
        command
    }

    fn build(&self, way: &Way, hooks: &Path) -> Result<()> {
        let folder = self.way_folder(way);
        if folder.join("done").is_file() {
            return Ok(());
        }
        fs::create_dir_all(&folder)?;
        let mut jobs: Vec<Command> = vec![];
        let mut objects = vec![];
        for file in COMMON {
            let object = folder.join(file).with_extension("o");
            let mut command = self.cc(way);
            command.args(["-c", file, "-o"]).arg(&object);
            jobs.push(command);
            objects.push(object);
        }
        let object = folder.join("hooks.o");
        quiet(
            Command::new("clang-19")
                .args(["-O2", "-c"])
                .arg(hooks)
                .arg("-o")
                .arg(&object),
        )?;
        objects.push(object);
        in_parallel(jobs)?;
        let archive = folder.join("common.a");
        let _ = fs::remove_file(&archive);
        quiet(Command::new("ar").arg("rcs").arg(&archive).args(&objects))?;
        let mut jobs: Vec<Command> = vec![];
        for (name, sources, _) in PROGRAMS {
            let mut command = self.cc(way);
            match *name {
                "geng" => {
                    command.args(ONE_WORD);
                    command.args([
                        "gtools.c",
                        "nauty.c",
                        "nautil.c",
                        "naugraph.c",
                        "schreier.c",
                        "naurng.c",
                    ]);
                }
                _ => {}
            }
            command
                .args(sources.split(' '))
                .arg("-o")
                .arg(folder.join(name))
                .arg(&archive);
            jobs.push(command);
        }
        in_parallel(jobs)?;
        fs::write(folder.join("done"), "")?;
        Ok(())
    }

    fn prepared(&self, mut command: Command, arguments: &str) -> Result<Command> {
        command
            .args(arguments.split_whitespace())
            .env("LLVM_MIP_PROFILE_FILENAME", self.folder.join("x.mipraw"))
            .env("LLVM_PROFILE_FILE", self.folder.join("x.profraw"))
            .env("XRAY_OPTIONS", "patch_premain=false")
            .stdin(File::open(&self.graphs).context("the graphs")?)
            .stderr(Stdio::piped());
        Ok(command)
    }

    fn output(&self, way: &Way, name: &str, arguments: &str) -> Result<Vec<u8>> {
        let mut command = self.prepared(Command::new(self.program(way, name)), arguments)?;
        let out = command.output()?;
        ensure!(
            out.status.success(),
            "{name} with {}: {}: {}",
            way.name,
            out.status,
            String::from_utf8_lossy(&out.stderr)
        );
        Ok(out.stdout)
    }

    fn stripped_size(&self, way: &Way, name: &str) -> Result<u64> {
        let to = self.folder.join("stripped");
        quiet(
            Command::new("strip")
                .args(["-R", "__llvm_mipmap", "-o"])
                .arg(&to)
                .arg(self.program(way, name)),
        )?;
        Ok(fs::metadata(&to)?.len())
    }

    fn instructions(&self, way: &Way, name: &str, arguments: &str) -> Result<u64> {
        let mut command = Command::new("valgrind");
        command
            .args([
                "--tool=cachegrind",
                "--cache-sim=no",
                "--cachegrind-out-file=/dev/null",
            ])
            .arg(self.program(way, name));
        let out = self.prepared(command, arguments)?.output()?;
        let said = String::from_utf8_lossy(&out.stderr);
        let line = said
            .lines()
            .find(|line| line.contains("refs:"))
            .with_context(|| format!("cachegrind on {name}: {said}"))?;
        let number: String = line
            .rsplit("refs:")
            .next()
            .unwrap_or_default()
            .chars()
            .filter(char::is_ascii_digit)
            .collect();
        number.parse().with_context(|| line.to_owned())
    }

    /// Compares counts and coverage with the exact ones. Gives the number of functions compared.
    fn compare(&self, name: &str, arguments: &str) -> Result<usize> {
        let way = |name: &str| WAYS.iter().find(|way| way.name == name).context("a way");
        self.output(way("exact")?, name, arguments)?;
        let data = self.folder.join("x.profdata");
        quiet(
            Command::new("llvm-profdata-19")
                .arg("merge")
                .arg(self.folder.join("x.profraw"))
                .arg("-o")
                .arg(&data),
        )?;
        let text = quiet(
            Command::new("llvm-profdata-19")
                .args(["show", "--all-functions"])
                .arg(&data),
        )?;
        let mut exact: BTreeMap<String, u64> = BTreeMap::new();
        let mut function = String::new();
        for line in String::from_utf8_lossy(&text).lines() {
            if let Some(count) = line.trim().strip_prefix("Function count: ") {
                *exact.entry(function.clone()).or_default() += count.parse::<u64>()?;
            } else if line.starts_with("  ") && !line.starts_with("   ") {
                function = line
                    .trim()
                    .trim_end_matches(':')
                    .rsplit([':', ';'])
                    .next()
                    .unwrap_or_default()
                    .to_owned();
            }
        }
        let counts = |which: &str| -> Result<BTreeMap<String, u64>> {
            self.output(way(which)?, name, arguments)?;
            let profile = self.folder.join("x.mip");
            let p = ["-q", "-p"];
            quiet(
                Command::new(&self.postlink)
                    .args(["mip", "create"])
                    .args(p)
                    .arg(&profile)
                    .arg(self.program(way(which)?, name)),
            )?;
            quiet(
                Command::new(&self.postlink)
                    .args(["mip", "merge"])
                    .args(p)
                    .arg(&profile)
                    .arg(self.folder.join("x.mipraw")),
            )?;
            let shown = quiet(
                Command::new(&self.postlink)
                    .args(["mip", "show", "-p"])
                    .arg(&profile),
            )?;
            let mut counts: BTreeMap<String, u64> = BTreeMap::new();
            let mut function = String::new();
            for line in String::from_utf8_lossy(&shown).lines() {
                if let Some(count) = line.trim().strip_prefix("Call Count: ") {
                    *counts.entry(function.clone()).or_default() += count.parse::<u64>()?;
                } else if !line.starts_with(' ') {
                    function = line.to_owned();
                }
            }
            Ok(counts)
        };
        let (calls, covered) = (counts("calls -O0")?, counts("coverage -O0")?);
        let mut compared = 0;
        for (function, count) in &exact {
            let found = calls.get(function).copied();
            if found.is_none() && *count == 0 {
                continue; // never emitted, or not in this program's part of the archive
            }
            ensure!(
                found == Some(*count),
                "{function} was called {count} times, the profile says {found:?}"
            );
            ensure!(
                covered
                    .get(function)
                    .is_some_and(|&c| (c > 0) == (*count > 0)),
                "coverage of {function}"
            );
            compared += 1;
        }
        ensure!(compared > 0, "no function to compare");
        Ok(compared)
    }
}

/// Two at a time.
fn in_parallel(jobs: Vec<Command>) -> Result<()> {
    let queue = Mutex::new(jobs);
    let failed = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let Some(mut job) = queue.lock().ok().and_then(|mut queue| queue.pop()) else {
                        return;
                    };
                    if let Err(error) = quiet(&mut job) {
                        if let Ok(mut failed) = failed.lock() {
                            failed.get_or_insert(error);
                        }
                        return;
                    }
                }
            });
        }
    });
    match failed.into_inner() {
        Ok(Some(error)) => Err(error),
        _ => Ok(()),
    }
}

fn geomean(values: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut count) = (0.0, 0);
    for value in values {
        sum += value.ln();
        count += 1;
    }
    (sum / f64::from(count.max(1))).exp()
}

fn percent(ratio: f64) -> String {
    format!("{:+.1} %", (ratio - 1.0) * 100.0)
}

fn report(costs: &BTreeMap<(&str, &str), Cost>, functions: usize, wrong: &[String]) -> String {
    let counted: Vec<&Way> = WAYS.iter().filter(|way| way.counted).collect();
    let mut text = String::from(
        "# Machine profiles at compile time: cost\n\nMade by `cargo xtask bench mip-cc`; what is measured and how, `xtask/src/bench/mip_cc.rs` says.\nclang 19, `-O2`; stripped file size and instructions (cachegrind) against the plain program.\n\n",
    );
    let ratio = |program: &str, way: &str, part: fn(&Cost) -> u64| -> f64 {
        let (cost, plain) = (costs.get(&(program, way)), costs.get(&(program, "plain")));
        match (cost, plain) {
            (Some(cost), Some(plain)) => part(cost) as f64 / part(plain).max(1) as f64,
            _ => 1.0,
        }
    };
    let programs: Vec<&str> = PROGRAMS.iter().map(|(name, ..)| *name).collect();
    let _ = writeln!(
        text,
        "| geometric mean of {} programs | size | worst | instructions | worst |\n|---|---:|---:|---:|---:|",
        programs.len()
    );
    for way in &counted[1..] {
        let sizes = || programs.iter().map(|p| ratio(p, way.name, |c| c.size));
        let instructions = || {
            programs
                .iter()
                .map(|p| ratio(p, way.name, |c| c.instructions))
        };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} |",
            way.name,
            percent(geomean(sizes())),
            percent(sizes().fold(0.0, f64::max)),
            percent(geomean(instructions())),
            percent(instructions().fold(0.0, f64::max))
        );
    }
    if functions == 0 {
        text.push_str("\nExactness was not compared in this run: that needs postlink itself.\n");
    }
    let _ = writeln!(
        text,
        "\nXRay's sleds are not patched: its instructions are those of a program that records nothing.\n\nExactness at `-O0`: call counts and coverage of {functions} functions are those of `-fprofile-instr-generate`{}",
        if wrong.is_empty() { "." } else { ", but for:" }
    );
    for line in wrong {
        let _ = writeln!(text, "* {line}");
    }
    for (title, part) in [
        (
            "Stripped size, bytes",
            (|c: &Cost| c.size) as fn(&Cost) -> u64,
        ),
        ("Instructions", |c: &Cost| c.instructions),
    ] {
        let _ = write!(text, "\n## {title}\n\n| program | plain |");
        for way in &counted[1..] {
            let _ = write!(text, " {} |", way.name);
        }
        text.push_str("\n|---|---:|");
        text.push_str(&"---:|".repeat(counted.len() - 1));
        text.push('\n');
        for program in &programs {
            let _ = write!(
                text,
                "| {program} | {} |",
                costs.get(&(*program, "plain")).map_or(0, part)
            );
            for way in &counted[1..] {
                let _ = write!(text, " {} |", percent(ratio(program, way.name, part)));
            }
            text.push('\n');
        }
    }
    text
}
