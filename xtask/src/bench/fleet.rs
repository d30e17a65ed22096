//! `cargo xtask bench fleet`: adding, merging and reading of many shards, made from real profiles.
//!
//! A shard of weight w is the real profile with every count times w, so any number of different shards can be made of
//! one file, and their sum is known: the profile of weight 1 + 2 + … + n. What `fleet profile` writes must be what
//! `postlink merge` makes of that, byte for byte; a figure of a wrong sum would be worth nothing.
//!
//! Two widths of one machine are compared, one thread and two; and clusters of executors on this machine, each of one
//! thread. Memory is the peak of the process, on a cluster that of the largest of who asks, the scheduler and the
//! executors; the processor time of a cluster is that of all its processes.
//!
//! Rows of counters cannot be carried over to a newer build: a program with `--to FILE` behind it is measured apart, by
//! a profile of addresses, which is added, carried over and expired.
//!
//! What a million shards a day cost follows from the largest number of shards that was measured: processor time is
//! that of a shard times a million, by the seconds of a day.

use std::ffi::OsStr;
use std::fmt::Write;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};

use super::root;
use crate::process::{self, Run};

/// Profiles that one call adds.
const AT_ONCE: u64 = 10_000;

/// A real profile, and how many shards are made of it.
struct Group {
    profile: PathBuf,
    binary: PathBuf,
    /// A newer build of the program, to which rows of addresses are carried over.
    to: Option<PathBuf>,
    shards: Vec<u64>,
}

struct Wishes {
    groups: Vec<Group>,
    executors: Vec<usize>,
    output: PathBuf,
    folder: PathBuf,
    cargo_profile: String,
    /// Where both programs are, if they are not to be built.
    programs: Option<PathBuf>,
}

impl Wishes {
    fn parse(arguments: &[String]) -> Result<Wishes> {
        let root = root()?;
        let mut wishes = Wishes {
            groups: vec![],
            executors: vec![],
            output: root.join("bench/fleet.md"),
            folder: std::env::temp_dir(),
            cargo_profile: "release".to_owned(),
            programs: None,
        };
        let needed = "--profile FILE names counters of a real run (.plraw), --binary FILE after it the program that \
                      they are of";
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let value = rest
                .next()
                .with_context(|| format!("{argument} needs a value"))?;
            match argument.as_str() {
                "--profile" => wishes.groups.push(Group {
                    profile: value.into(),
                    binary: PathBuf::new(),
                    to: None,
                    shards: vec![1000, 10_000],
                }),
                "--binary" => wishes.groups.last_mut().context(needed)?.binary = value.into(),
                "--to" => wishes.groups.last_mut().context(needed)?.to = Some(value.into()),
                "--shards" => {
                    wishes.groups.last_mut().context(needed)?.shards = numbers(argument, value)?;
                }
                "--executors" => wishes.executors = numbers(argument, value)?,
                "--output" => wishes.output = value.into(),
                "--folder" => wishes.folder = value.into(),
                "--cargo-profile" => wishes.cargo_profile.clone_from(value),
                "--programs" => wishes.programs = Some(value.into()),
                option => bail!("cargo xtask bench fleet has no option '{option}'"),
            }
        }
        let whole = |group: &Group| !group.binary.as_os_str().is_empty();
        ensure!(
            !wishes.groups.is_empty() && wishes.groups.iter().all(whole),
            needed
        );
        Ok(wishes)
    }
}

impl Wishes {
    /// The programs of fleet and postlink, built.
    fn programs(&self) -> Result<(PathBuf, PathBuf)> {
        if let Some(folder) = &self.programs {
            return Ok((folder.join("postlink-fleet"), folder.join("postlink")));
        }
        let mut of_fleet = vec!["--manifest-path", "fleet/Cargo.toml"];
        if !self.executors.is_empty() {
            of_fleet.extend(["--features", "cluster,s3"]);
        }
        let of_postlink = match self.cargo_profile.as_str() {
            "release" => "release",
            // The workspace of postlink knows no other profile of fleet's, and only what comes of it is used.
            _ => "dev",
        };
        let fleet = build(&self.cargo_profile, &of_fleet)?;
        let postlink = build(of_postlink, &["--package", "postlink"])?;
        Ok((fleet.join("postlink-fleet"), postlink.join("postlink")))
    }
}

fn numbers<T: FromStr>(option: &str, value: &str) -> Result<Vec<T>>
where
    T::Err: std::error::Error + Send + Sync + 'static,
{
    value
        .split(',')
        .map(|number| {
            number
                .parse()
                .with_context(|| format!("{option} needs numbers, not '{number}'"))
        })
        .collect()
}

/// The job.
pub fn run(arguments: &[String]) -> Result<bool> {
    let wishes = Wishes::parse(arguments)?;
    let (fleet, postlink) = wishes.programs()?;
    let folder = tempfile::Builder::new()
        .prefix("postlink-bench-fleet-")
        .tempdir_in(&wishes.folder)?;
    let bench = Bench {
        fleet,
        postlink,
        folder: folder.path().to_owned(),
        wishes,
    };
    let mut lines = String::new();
    let mut costs = vec![];
    for group in &bench.wishes.groups {
        if let Some(to) = &group.to {
            for &shards in &group.shards {
                bench.stale(group, to, shards, &mut lines)?;
            }
            continue;
        }
        let measured = group.shards.iter();
        let measured = measured.map(|&shards| bench.measure(group, shards, &mut lines));
        let measured = measured.collect::<Result<Vec<_>>>()?;
        costs.extend(measured.into_iter().max_by_key(|costs| costs.shards));
    }
    let text = bench.report(&lines, &of_a_million(&costs))?;
    fs::write(&bench.wishes.output, &text)
        .with_context(|| bench.wishes.output.display().to_string())?;
    print!("{text}");
    Ok(true)
}

/// Builds a program; gives the folder that it is in.
fn build(profile: &str, what: &[&str]) -> Result<PathBuf> {
    let root = root()?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
    let status = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()))
        .args(["build", "--locked", "--profile", profile])
        .args(what)
        .arg("--target-dir")
        .arg(&target)
        .current_dir(&root)
        .status()
        .context("cargo build")?;
    ensure!(status.success(), "cargo build: {status}");
    Ok(target.join(if profile == "dev" { "debug" } else { profile }))
}

/// What a number of shards cost on one machine.
struct Costs {
    shards: u64,
    rows: u64,
    /// Bytes of all.
    bytes: u64,
    /// Bytes of the one that they were merged to.
    merged: u64,
    /// Seconds of processor time.
    add: f64,
    merge: f64,
    profile: f64,
}

/// What a million shards a day would cost.
fn of_a_million(all: &[Costs]) -> String {
    let mut text = "\n## A million shards a day\n\n\
        A million times the processor time of a shard on one machine, where its shards are most; and how many processors \
        are busy with that all day (86,400 s). Those that are merged are grouped by weight, too, and here each has one of its \
        own, so that no rows are added up: it is the most that merging takes, and the largest file that it gives.\n\n\
        | shards | rows in each | kB each | GB a day | add | merge | profile | processors | merged |\n\
        |--:|--:|--:|--:|--:|--:|--:|--:|--:|\n"
        .to_owned();
    for costs in all {
        let shards = costs.shards as f64;
        let million = |seconds: f64| seconds / shards * 1e6;
        let together = million(costs.add) + million(costs.merge) + million(costs.profile);
        let _ = writeln!(
            text,
            "| {} | {:.0} | {:.1} | {:.1} | {:.0} s | {:.0} s | {:.0} s | {:.2} | {:.1} MB |",
            costs.shards,
            costs.rows as f64 / shards,
            costs.bytes as f64 / shards / 1e3,
            costs.bytes as f64 / shards * 1e6 / 1e9,
            million(costs.add),
            million(costs.merge),
            million(costs.profile),
            together / 86_400.0,
            costs.merged as f64 / 1e6
        );
    }
    text
}

/// Shards that are measured.
struct Shown {
    program: String,
    shards: u64,
    rows: u64,
    /// Bytes of all.
    bytes: u64,
}

impl Shown {
    /// A line of the table: seconds of wall and processor time, bytes of memory.
    fn line(&self, what: &str, wall: f64, cpu: f64, peak: Option<u64>) -> String {
        let peak = peak.map_or(String::new(), |peak| format!("{:.0} MB", peak as f64 / 1e6));
        format!(
            "| {} | {} | {} | {:.1} MB | {what} | {wall:.2} s | {cpu:.2} s | {:.2} M | {peak} |\n",
            self.program,
            self.shards,
            self.rows,
            self.bytes as f64 / 1e6,
            self.rows as f64 / cpu.max(1e-9) / 1e6
        )
    }
}

struct Bench {
    fleet: PathBuf,
    postlink: PathBuf,
    folder: PathBuf,
    wishes: Wishes,
}

impl Bench {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn call<A: AsRef<OsStr>>(&self, program: &Path, arguments: &[A]) -> Result<Run> {
        let (out, err) = (self.path("stdout"), self.path("stderr"));
        let run = process::run(Command::new(program).args(arguments), &out, &err)?;
        if !run.status.success() {
            bail!(
                "{}: {}: {}",
                program.display(),
                run.status,
                fs::read_to_string(err).unwrap_or_default()
            );
        }
        Ok(run)
    }

    /// How many rows shards have, and the only build that they are of.
    fn ask(&self, shards: &Path) -> Result<(u64, String)> {
        let sql =
            "SELECT count(*), count(DISTINCT nullif(build_id, '')), max(build_id) FROM counts";
        let arguments = ["query", sql, "--format", "csv"].map(OsStr::new);
        let mut arguments = arguments.to_vec();
        arguments.push(shards.as_os_str());
        self.call(&self.fleet, &arguments)?;
        let text = fs::read_to_string(self.path("stdout"))?;
        let fields: Vec<&str> = text.lines().nth(1).unwrap_or_default().split(',').collect();
        let [rows, "1", id] = fields[..] else {
            bail!("one profile must give rows of one build: {text:?}");
        };
        let rows = rows.parse().with_context(|| format!("{text:?}"))?;
        Ok((rows, id.to_owned()))
    }

    /// Adds shards of weights 1 to `shards`; gives the seconds of wall and processor time.
    fn add(&self, group: &Group, shards: u64, folder: &Path) -> Result<(f64, f64)> {
        let mut wall = 0.0;
        let mut cpu = 0.0;
        for first in (1..=shards).step_by(AT_ONCE as usize) {
            let weights = first..=shards.min(first + AT_ONCE - 1);
            let profiles = weights.map(|w| format!("{}:{w}", group.profile.display()));
            let mut arguments: Vec<String> = vec!["add".into(), "--quiet".into()];
            arguments.extend(profiles);
            arguments.extend(["--binary".into(), group.binary.display().to_string()]);
            arguments.extend(["-o".into(), folder.display().to_string()]);
            let run = self.call(&self.fleet, &arguments)?;
            wall += run.wall.as_secs_f64();
            cpu += run.cpu.as_secs_f64();
        }
        Ok((wall, cpu))
    }

    /// What there is in a folder of shards, and the build that it is of.
    fn shown(&self, group: &Group, shards: u64, folder: &Path) -> Result<(Shown, String)> {
        let (rows, id) = self.ask(folder)?;
        let bytes = fs::read_dir(folder)?
            .map(|entry| Ok(entry?.metadata()?.len()))
            .sum::<Result<u64>>()?;
        let program = name(&group.binary);
        Ok((
            Shown {
                program,
                shards,
                rows,
                bytes,
            },
            id,
        ))
    }

    /// Adds rows of addresses, carries them over to a newer build, and expires them all.
    fn stale(&self, group: &Group, to: &Path, shards: u64, lines: &mut String) -> Result<()> {
        let (folder, carried) = (self.path("shards"), self.path("carried"));
        for old in [&folder, &carried] {
            if old.exists() {
                fs::remove_dir_all(old)?;
            }
        }
        let (wall, cpu) = self.add(group, shards, &folder)?;
        let (shown, _) = self.shown(group, shards, &folder)?;
        lines.push_str(&shown.line("add", wall, cpu, None));
        let (from, to) = (group.binary.as_os_str(), to.as_os_str());
        let ask = ["stale", "--from", "--to", "-o"].map(OsStr::new);
        let [stale, option, option_to, output] = ask;
        let of = folder.as_os_str();
        let ask = [
            stale,
            of,
            option,
            from,
            option_to,
            to,
            output,
            carried.as_os_str(),
        ];
        let run = self.call(&self.fleet, &ask)?;
        let (wall, cpu) = (run.wall.as_secs_f64(), run.cpu.as_secs_f64());
        lines.push_str(&shown.line("stale", wall, cpu, Some(run.peak)));
        // That it is one shard.
        only_name(&carried)?;
        self.expire(&shown, &folder, lines)
    }

    /// Removes all shards of a folder, as they are of a day long before.
    fn expire(&self, shown: &Shown, folder: &Path, lines: &mut String) -> Result<()> {
        let of = folder.as_os_str();
        let ask = ["expire", "--before", "2999-01-01"].map(OsStr::new);
        let run = self.call(&self.fleet, &[&ask[..], &[of]].concat())?;
        let (wall, cpu) = (run.wall.as_secs_f64(), run.cpu.as_secs_f64());
        lines.push_str(&shown.line("expire", wall, cpu, Some(run.peak)));
        let left = fs::read_dir(folder)?.count();
        ensure!(left == 0, "{left} shards are left after their day");
        Ok(())
    }

    fn measure(&self, group: &Group, shards: u64, lines: &mut String) -> Result<Costs> {
        let (folder, merged) = (self.path("shards"), self.path("merged"));
        for old in [&folder, &merged] {
            if old.exists() {
                fs::remove_dir_all(old)?;
            }
        }
        let (wall, cpu) = self.add(group, shards, &folder)?;
        let (shown, id) = self.shown(group, shards, &folder)?;
        let (rows, bytes) = (shown.rows, shown.bytes);
        let mut row = |what: &str, wall: f64, cpu: f64, peak: Option<u64>| {
            lines.push_str(&shown.line(what, wall, cpu, peak));
        };
        row("add", wall, cpu, None);
        let mut costs = Costs {
            shards,
            rows,
            bytes,
            merged: 0,
            add: cpu,
            merge: 0.0,
            profile: 0.0,
        };
        for threads in ["1", "2"] {
            let run = self.profile(group, (shards, &id), &folder, &["--threads", threads])?;
            costs.profile = run.cpu.as_secs_f64();
            let what = format!("profile, threads: {threads}");
            row(
                &what,
                run.wall.as_secs_f64(),
                run.cpu.as_secs_f64(),
                Some(run.peak),
            );
        }
        for memory in ["1G", "64M"] {
            if merged.exists() {
                fs::remove_dir_all(&merged)?;
            }
            let run = self.merge(&folder, &merged, &["--memory", memory])?;
            // What the smallest memory costs.
            costs.merge = run.cpu.as_secs_f64();
            let what = format!("merge, --memory {memory}");
            row(
                &what,
                run.wall.as_secs_f64(),
                run.cpu.as_secs_f64(),
                Some(run.peak),
            );
        }
        let expected = only_name(&merged)?;
        costs.merged = fs::metadata(merged.join(&expected))?.len();
        for &executors in &self.wishes.executors {
            let cluster = Cluster::new(&self.fleet, &self.folder, executors)?;
            let option = ["--cluster", &cluster.url];
            for what in ["profile", "merge"] {
                let before = cluster.cpu()?;
                let run = if what == "profile" {
                    self.profile(group, (shards, &id), &folder, &option)?
                } else {
                    fs::remove_dir_all(&merged)?;
                    self.merge(&folder, &merged, &option)?
                };
                row(
                    &format!("{what}, executors: {executors}"),
                    run.wall.as_secs_f64(),
                    run.cpu.as_secs_f64() + cluster.cpu()? - before,
                    Some(cluster.peak()?.max(run.peak)),
                );
            }
            let found = only_name(&merged)?;
            ensure!(
                found == expected,
                "{shards} shards, {executors} executors: {found}, and on one machine {expected}"
            );
        }
        self.expire(&shown, &folder, lines)?;
        Ok(costs)
    }

    fn merge(&self, folder: &Path, merged: &Path, more: &[&str]) -> Result<Run> {
        let (folder, merged) = (folder.display().to_string(), merged.display().to_string());
        let ask = ["merge", &folder, "-o", &merged];
        self.call(&self.fleet, &[&ask[..], more].concat())
    }

    /// Writes the profile and compares it with that of `postlink merge`.
    fn profile(
        &self,
        group: &Group,
        (shards, id): (u64, &str),
        folder: &Path,
        more: &[&str],
    ) -> Result<Run> {
        let (ours, expected) = (self.path("ours.plprof"), self.path("expected.plprof"));
        let sum = shards * (shards + 1) / 2;
        let weighted = format!("{}:{sum}", group.profile.display());
        self.call(
            &self.postlink,
            &[
                "merge".as_ref(),
                weighted.as_ref(),
                "-o".as_ref(),
                expected.as_os_str(),
            ],
        )?;
        let folder_text = folder.display().to_string();
        let out = ours.display().to_string();
        let ask = ["profile", &folder_text, "--build-id", id, "-o", &out];
        let run = self.call(&self.fleet, &[&ask[..], more].concat())?;
        ensure!(
            fs::read(&ours)? == fs::read(&expected)?,
            "{shards} shards: another profile than postlink merge makes"
        );
        Ok(run)
    }

    fn report(&self, lines: &str, daily: &str) -> Result<String> {
        let cores = std::thread::available_parallelism()?;
        let profile = match self.wishes.cargo_profile.as_str() {
            // As fleet/Cargo.toml has it.
            "measuring" => {
                "measuring (what reads, adds up and writes rows is optimised, the engine of `profile` is not)"
            }
            other => other,
        };
        let clusters = match self.wishes.executors[..] {
            [] => " Clusters were not measured.",
            _ => "",
        };
        Ok(format!(
            "# Shards of a fleet\n\n\
             Written by `cargo xtask bench fleet`: shards made from real profiles, counters of a program, by weights 1 to n; profile of cargo: {profile}; {cores} processors. \
             What `fleet profile` writes is compared with `postlink merge`, byte for byte.{clusters}\n\n\
             | program | shards | rows | size | | wall | processor | rows a second a core | peak |\n\
             |---|--:|--:|--:|---|--:|--:|--:|--:|\n{lines}{daily}"
        ))
    }
}

/// The name of a file, without its folder.
fn name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// The name of the only file in a folder; that of a shard has the hash of its bytes.
fn only_name(folder: &Path) -> Result<String> {
    let entries: Vec<_> = fs::read_dir(folder)?.collect::<std::io::Result<_>>()?;
    let [only] = &entries[..] else {
        bail!("{}: {} files, not one", folder.display(), entries.len())
    };
    Ok(only.file_name().to_string_lossy().into_owned())
}

/// A scheduler and executors of one thread each, which end with it.
struct Cluster {
    url: String,
    /// The scheduler is the first.
    processes: Vec<Child>,
}

impl Cluster {
    fn new(fleet: &Path, folder: &Path, executors: usize) -> Result<Cluster> {
        let mut cluster = Cluster {
            url: String::new(),
            processes: vec![],
        };
        let said = cluster.start(fleet, &["scheduler", "--port", "0"])?;
        let url = said.trim().strip_prefix("scheduler: ");
        cluster.url = url.with_context(|| format!("{said:?}"))?.to_owned();
        let temporary = folder.display().to_string();
        for _ in 0..executors {
            let url = cluster.url.clone();
            let executor = ["executor", "--scheduler", &url, "--threads", "1"];
            let executor = [&executor[..], &["--temporary", &temporary]].concat();
            cluster.start(fleet, &executor)?;
        }
        Ok(cluster)
    }

    /// Starts a process, and gives the first line that it says.
    fn start(&mut self, fleet: &Path, arguments: &[&str]) -> Result<String> {
        let mut child = Command::new(fleet)
            .arg("cluster")
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| fleet.display().to_string())?;
        let stdout = child.stdout.take();
        self.processes.push(child);
        let mut said = String::new();
        BufReader::new(stdout.context("no standard output")?).read_line(&mut said)?;
        Ok(said)
    }

    /// Seconds of processors, of all.
    fn cpu(&self) -> Result<f64> {
        let mut ticks = 0;
        for process in &self.processes {
            let stat = fs::read_to_string(format!("/proc/{}/stat", process.id()))?;
            // After the name, which is in parentheses, the 12th and 13th field are user and system time.
            let (_, fields) = stat.rsplit_once(')').context("no name of a process")?;
            let fields = fields.split_whitespace().skip(11).take(2);
            ticks += fields
                .filter_map(|field| field.parse::<u64>().ok())
                .sum::<u64>();
        }
        // SAFETY: it reads a constant of the system.
        let second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
        Ok(ticks as f64 / second.max(1) as f64)
    }

    /// The largest memory of a process in bytes.
    fn peak(&self) -> Result<u64> {
        let mut peak = 0;
        for process in &self.processes {
            let status = fs::read_to_string(format!("/proc/{}/status", process.id()))?;
            let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
            let kilobytes =
                line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
            peak = peak.max(kilobytes.context("no VmHWM of a process")? * 1024);
        }
        Ok(peak)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for process in &mut self.processes {
            // One that has ended already is no error. Their folders are in that of the bench.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
