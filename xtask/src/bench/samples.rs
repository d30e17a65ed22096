//! `cargo xtask bench samples`: what a layout loses when its profile is not exact.
//!
//! Each program is instrumented and run; layouts are made from its exact counts and from poorer profiles of the same
//! run, and all are judged by the exact counts (`rewrite::judge`): how many taken branches each saves of those that
//! the exact profile's layout saves. Figures are exact and repeat, but for those of perf's clock, and of lua and redis,
//! whose runs depend on addresses and time.
//!
//! | profile | what it is |
//! |---|---|
//! | drawn | 20,000 instructions, drawn from the exact counts: a processor that counts instructions, without its inaccuracies |
//! | trace | `postlink trace --for profile`: 5,000 windows of 300 single steps, of as many runs as that takes, at most 16 |
//! | clock | `perf record -e cpu-clock:u` at 10 kHz: what most clouds allow. The workload runs until there are 20,000 samples |
//! | before | exact counts of the older release that the heading names, by blocks (`convert --to yaml`) |
//! | llvm-bolt's | the same, as llvm-bolt writes it; given to postlink, and to llvm-bolt with `--infer-stale-profile` |

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::programs;
use super::report::ToolRun;
use super::tools::Tools;
use crate::packages;
use crate::text::grouped;

/// Samples of each program.
const SAMPLES: &str = "20000";
/// So often a workload runs at most to get them from a clock: perl's and vim's take a tenth of a second.
const MOST_RUNS: u32 = 60;
/// Programs of two releases. What is tried must help on most: a rule may fit one program by chance.
const RELEASES: &[Releases] = &[
    Releases {
        workload: "lua",
        n: "2",
        old: "5.4.4",
        new: "5.4.6",
        between: None,
    },
    Releases {
        workload: "sqlite",
        n: "100000",
        old: "3.39.2",
        new: "3.41.2",
        between: None,
    },
    Releases {
        workload: "redis",
        n: "100000",
        old: "6.2.14",
        new: "7.0.15",
        between: None,
    },
    Releases {
        workload: "redis",
        n: "100000",
        old: "6.0.16",
        new: "6.2.14",
        between: None,
    },
    Releases {
        workload: "redis",
        n: "100000",
        old: "6.0.16",
        new: "7.0.15",
        between: Some("6.2"),
    },
    Releases {
        workload: "bash",
        n: "3000",
        old: "5.1",
        new: "5.2.15",
        between: None,
    },
    Releases {
        workload: "perl",
        n: "30000",
        old: "5.32.1",
        new: "5.36.0",
        between: Some("5.34"),
    },
    Releases {
        workload: "vim",
        n: "500",
        old: "8.2",
        new: "9.0",
        between: None,
    },
];

/// A program of two releases: `bin/WORKLOAD-RELEASE` of the corpus.
struct Releases {
    workload: &'static str,
    /// How long the workload is.
    n: &'static str,
    old: &'static str,
    new: &'static str,
    /// A release that lies between them: more has changed than from one to the next.
    between: Option<&'static str>,
}

impl Releases {
    fn old_program(&self, corpus: &Path) -> PathBuf {
        corpus.join(format!("bin/{}-{}", self.workload, self.old))
    }

    fn new_program(&self, corpus: &Path) -> PathBuf {
        corpus.join(format!("bin/{}-{}", self.workload, self.new))
    }
}

/// llvm-bolt's options for a profile of the release before.
const STALE: &[&str] = &[
    "-infer-stale-profile",
    "-reorder-blocks=ext-tsp",
    "-reorder-functions=cdsort",
    "-enable-bat",
];

/// What the command line says.
struct Wishes {
    output: PathBuf,
    /// Programs that are built already: postlink, and the examples `judge` and `draw`.
    built: Option<[PathBuf; 3]>,
    /// Those of [`RELEASES`] that are measured; none: all.
    names: Vec<String>,
}

impl Wishes {
    fn parse(arguments: &[String]) -> Result<Wishes> {
        let mut wishes = Wishes {
            output: super::root()?.join("bench/samples.md"),
            built: None,
            names: Vec::new(),
        };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let mut value = || {
                rest.next()
                    .with_context(|| format!("{argument} needs a value"))
            };
            match argument.as_str() {
                "--output" => wishes.output = value()?.into(),
                "--built" => {
                    let folder = PathBuf::from(value()?);
                    let at = |name: &str| folder.join(name);
                    wishes.built =
                        Some([at("postlink"), at("examples/judge"), at("examples/draw")]);
                }
                other if other.starts_with('-') => {
                    bail!("cargo xtask bench samples has no option '{other}'")
                }
                name if RELEASES.iter().any(|of| of.workload == name) => {
                    wishes.names.push(name.to_owned());
                }
                other => bail!("there are no two releases of '{other}'"),
            }
        }
        Ok(wishes)
    }
}

/// A layout, by what it was made from.
struct Row {
    profile: String,
    /// Taken branches, or why there are none.
    taken: Result<u64, String>,
}

struct Bench {
    tools: Tools,
    draw: PathBuf,
    corpus: PathBuf,
    folder: PathBuf,
}

/// Taken branches of a layout in a judgement.
fn taken(worth: &Value) -> Option<u64> {
    let of = |name: &str| worth["dyno_stats"][name].as_u64();
    let conditional = of("taken_forward_branches")?.checked_add(of("taken_backward_branches")?)?;
    conditional.checked_add(of("executed_unconditional_branches")?)
}

impl Bench {
    fn at(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Instruments a program and runs it: its exact counts.
    fn exact(&self, of: &Releases, path: &Path, name: &str) -> Result<PathBuf> {
        let copy = self.at("instrumented");
        self.tools.postlink_instrument(path, &copy, &self.folder)?;
        let profile = self.at(&format!("{name}.plraw"));
        let _ = fs::remove_file(&profile); // It may not be there.
        let mut command = programs::command_of(of.workload, &copy, &self.corpus, Some(of.n))?;
        let output = command.env("POSTLINK_PROFILE", &profile).output();
        let output = output.context("the workload cannot be started")?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            bail!("{}: {}: {said}", copy.display(), output.status);
        }
        Ok(profile)
    }

    /// postlink's layout by a profile.
    fn layout(&self, program: &Path, profile: &Path, name: &str) -> Result<PathBuf> {
        let output = self.at(name);
        let (folder, bat) = (&self.folder, ["--enable-bat"]);
        self.tools
            .postlink_optimize(program, profile, &output, folder, &bat)?;
        Ok(output)
    }

    /// Samples drawn from exact counts.
    fn drawn(&self, program: &Path, profile: &Path) -> Result<PathBuf> {
        let output = Command::new(&self.draw)
            .arg(program)
            .arg(profile)
            .arg(SAMPLES)
            .output();
        let output = output.with_context(|| self.draw.display().to_string())?;
        if !output.status.success() {
            bail!("draw: {}", String::from_utf8_lossy(&output.stderr));
        }
        let file = self.at("drawn.preagg");
        fs::write(&file, output.stdout).with_context(|| file.display().to_string())?;
        Ok(file)
    }

    /// Samples of perf's clock, and how many; `None` where perf cannot record. The workload runs until there are
    /// as many as wanted.
    fn clock(&self, of: &Releases, path: &Path) -> Result<Option<(PathBuf, u64)>> {
        let file = self.at("clock.data");
        let text = self.at("clock.preagg");
        let runner = format!(
            "perf record -q -F 9999 -e cpu-clock:u -o {}",
            file.display()
        );
        let (mut head, mut at) = (String::new(), BTreeMap::<String, u64>::new());
        for _ in 0..MOST_RUNS {
            let mut command = programs::command_of(of.workload, path, &self.corpus, Some(of.n))?;
            let done = command.env("RUNNER", &runner).output();
            if !done.is_ok_and(|done| done.status.success()) {
                return Ok(None);
            }
            let arguments = [
                "convert".as_ref(),
                file.as_path(),
                "--binary".as_ref(),
                path,
                "-o".as_ref(),
                &text,
            ];
            self.tools.postlink(&self.folder, &arguments)?;
            let read = fs::read_to_string(&text).with_context(|| text.display().to_string())?;
            head.clear();
            for line in read.lines() {
                let sample = line
                    .strip_prefix("S ")
                    .and_then(|rest| rest.rsplit_once(' '));
                match sample.and_then(|(place, count)| Some((place, count.parse::<u64>().ok()?))) {
                    Some((place, count)) => *at.entry(place.to_owned()).or_default() += count,
                    None => head = head + line + "\n",
                }
            }
            if at.values().sum::<u64>() >= SAMPLES.parse()? {
                break;
            }
        }
        for (place, count) in &at {
            let _ = writeln!(head, "S {place} {count}");
        }
        fs::write(&text, head).with_context(|| text.display().to_string())?;
        Ok(Some((text, at.values().sum())))
    }

    /// A trace of single steps, and how many windows it has; `None` where nothing may be traced.
    fn trace(&self, of: &Releases, path: &Path) -> Result<Option<(PathBuf, String)>> {
        let file = self.at("app.pltrace");
        let _ = fs::remove_file(&file); // It may not be there.
        let workload = programs::command_of(of.workload, "{}".as_ref(), &self.corpus, Some(of.n))?;
        let mut command = Command::new(self.tools.program());
        command
            .args(["trace", "--for", "profile"])
            .arg(path)
            .arg("-o")
            .arg(&file);
        command
            .arg("--")
            .arg(workload.get_program())
            .args(workload.get_args());
        let output = command.env("N", of.n).env_remove("RUNNER").output();
        let output = output.context("the workload cannot be traced")?;
        if !file.is_file() {
            eprintln!("{}", String::from_utf8_lossy(&output.stderr));
            return Ok(None);
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let windows = said
            .lines()
            .find_map(|line| line.trim().split_once(" windows of "));
        let (windows, _) = windows.with_context(|| format!("no number of windows: {said}"))?;
        Ok(Some((file, windows.to_owned())))
    }

    /// A profile by blocks that llvm-bolt writes of exact counts.
    fn bolts_profile(&self, program: &Path, profile: &Path) -> Result<Result<PathBuf, String>> {
        let data = self.at("old.fdata");
        let arguments = [
            "convert".as_ref(),
            profile,
            "--binary".as_ref(),
            program,
            "-o".as_ref(),
            data.as_path(),
        ];
        self.tools.postlink(&self.folder, &arguments)?;
        let (yaml, nothing) = (self.at("bolt.yaml"), self.at("nothing"));
        let (data, write) = (
            format!("-data={}", data.display()),
            format!("-w={}", yaml.display()),
        );
        let arguments = [program, Path::new(&data), Path::new(&write)];
        Ok(
            match self.tools.bolt(&self.folder, &nothing, &arguments).0 {
                ToolRun::Ok { .. } => Ok(yaml),
                ToolRun::Failed(why) => Err(why),
            },
        )
    }

    /// Judges layouts by exact counts: of the input, then of each.
    fn judge(
        &self,
        program: &Path,
        exact: &Path,
        layouts: Vec<(String, Result<PathBuf, String>)>,
    ) -> Result<Vec<Row>> {
        let files: Vec<&Path> = layouts
            .iter()
            .filter_map(|(_, file)| file.as_deref().ok())
            .collect();
        let said = self.tools.judge(program, exact, &files, &self.folder)?;
        let mut worths = said["worth"].as_array().context("a judgement")?.iter();
        let mut next = || {
            let worth = worths.next().context("a layout was not judged")?;
            taken(worth).context("taken branches")
        };
        let mut rows = vec![Row {
            profile: "none".to_owned(),
            taken: Ok(next()?),
        }];
        for (profile, file) in layouts {
            let taken = match file {
                Ok(_) => Ok(next()?),
                Err(why) => Err(why),
            };
            rows.push(Row { profile, taken });
        }
        Ok(rows)
    }

    /// Poorer profiles of the same run.
    fn sampled(&self, of: &Releases) -> Result<Vec<Row>> {
        let path = of.new_program(&self.corpus);
        let exact = self.exact(of, &path, "exact")?;
        let mut layouts = vec![(
            "exact counts".to_owned(),
            Ok(self.layout(&path, &exact, "by.exact")?),
        )];
        let drawn = self.drawn(&path, &exact)?;
        layouts.push((
            format!("drawn, {} samples", grouped(SAMPLES.parse().unwrap_or(0))),
            Ok(self.layout(&path, &drawn, "by.drawn")?),
        ));
        if let Some((trace, windows)) = self.trace(of, &path)? {
            let layout = self.layout(&path, &trace, "by.trace")?;
            layouts.push((format!("trace, {windows} windows"), Ok(layout)));
        }
        if let Some((clock, samples)) = self.clock(of, &path)? {
            let layout = self.layout(&path, &clock, "by.clock")?;
            layouts.push((format!("clock, {} samples", grouped(samples)), Ok(layout)));
        }
        self.judge(&path, &exact, layouts)
    }

    /// Profiles of the release before.
    fn stale(&self, of: &Releases) -> Result<Vec<Row>> {
        let (old, new) = (of.old_program(&self.corpus), of.new_program(&self.corpus));
        let before = self.exact(of, &old, "before")?;
        let exact = self.exact(of, &new, "exact")?;
        let yaml = self.at("old.yaml");
        let arguments = [
            "convert".as_ref(),
            before.as_path(),
            "--binary".as_ref(),
            &old,
            "-o".as_ref(),
            &yaml,
        ];
        self.tools.postlink(&self.folder, &arguments)?;
        let mut layouts = vec![
            (
                "exact counts".to_owned(),
                Ok(self.layout(&new, &exact, "by.exact")?),
            ),
            (
                "before".to_owned(),
                Ok(self.layout(&new, &yaml, "by.before")?),
            ),
        ];
        match self.bolts_profile(&old, &before)? {
            Ok(theirs) => {
                let layout = self.layout(&new, &theirs, "by.theirs")?;
                layouts.push(("llvm-bolt's of before, in postlink".to_owned(), Ok(layout)));
                let output = self.at("bolt");
                let data = format!("-data={}", theirs.display());
                let mut arguments = vec![new.as_path(), Path::new(&data)];
                arguments.extend(STALE.iter().map(Path::new));
                let layout = match self.tools.bolt(&self.folder, &output, &arguments).0 {
                    ToolRun::Ok { .. } => Ok(output),
                    ToolRun::Failed(why) => Err(why),
                };
                layouts.push(("llvm-bolt's of before, in llvm-bolt".to_owned(), layout));
            }
            Err(why) => layouts.push(("llvm-bolt's of before".to_owned(), Err(why))),
        }
        self.judge(&new, &exact, layouts)
    }
}

/// A table of what profiles are worth.
fn table(title: &str, rows: &[Row], text: &mut String) {
    let of = |place: usize| {
        rows.get(place)
            .and_then(|row| row.taken.as_ref().ok())
            .copied()
    };
    let (before, best) = (of(0).unwrap_or(0), of(1).unwrap_or(0));
    let _ = writeln!(
        text,
        "## {title}\n\n| profile | taken branches | of the exact profile's gain |\n|---|--:|--:|"
    );
    for row in rows {
        let _ = match &row.taken {
            Ok(taken) => {
                let gain = (before as f64 - *taken as f64) / (before as f64 - best as f64).max(1.0);
                writeln!(
                    text,
                    "| {} | {} | {:.1} % |",
                    row.profile,
                    grouped(*taken),
                    100.0 * gain
                )
            }
            Err(why) => writeln!(
                text,
                "| {} | failed: {} | |",
                row.profile,
                why.replace('|', "/")
            ),
        };
    }
    text.push('\n');
}

/// The job.
pub fn run(arguments: &[String]) -> Result<bool> {
    let wishes = Wishes::parse(arguments)?;
    packages::install(packages::FOR_SAMPLES, true);
    let corpus = programs::corpus()?;
    let folder = corpus.join("samples");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let bolt = packages::find_program("llvm-bolt-22");
    let (tools, draw) = match &wishes.built {
        Some([postlink, judge, draw]) => (Tools::of(postlink, judge, bolt)?, draw.clone()),
        None => Tools::with_draw(bolt)?,
    };
    let bench = Bench {
        tools,
        draw,
        corpus,
        folder,
    };
    let mut text = format!(
        "# Profiles that are not exact\n\nWritten by `cargo xtask bench samples` ({}). What is counted, and how, `xtask/src/bench/samples.rs` says: taken branches \
         of a run, by its exact counts, with the layouts that profiles lead to. Figures repeat exactly, but for those of perf's clock, and of lua and redis, whose runs depend on addresses and time: by about a \
         point.\n\n",
        bench.tools.versions().join("; ")
    );
    programs::build_releases(&bench.corpus, &wishes.names)?;
    let is_wanted = |of: &&Releases| {
        wishes.names.is_empty() || wishes.names.iter().any(|name| name == of.workload)
    };
    let mut sampled = BTreeSet::new();
    for of in RELEASES.iter().filter(is_wanted) {
        if sampled.insert((of.workload, of.new)) {
            eprintln!("== {} {}", of.workload, of.new);
            let rows = bench.sampled(of).with_context(|| of.workload.to_owned())?;
            let title = format!("{} {}: samples", of.workload, of.new);
            table(&title, &rows, &mut text);
        }
        eprintln!("== {} {}, counts of {}", of.workload, of.new, of.old);
        let rows = bench.stale(of).with_context(|| of.workload.to_owned())?;
        let between = of
            .between
            .map(|other| format!(" ({other} lies between)"))
            .unwrap_or_default();
        let title = format!("{} {}: counts of {}{between}", of.workload, of.new, of.old);
        table(&title, &rows, &mut text);
    }
    fs::write(&wishes.output, &text).with_context(|| wishes.output.display().to_string())?;
    println!("{text}");
    Ok(true)
}
