//! The same plans on a cluster: a scheduler and executors as processes of this machine, each with a folder and a port
//! of its own, so that rows of other executors come by the network as they do from other machines.
#![cfg(feature = "cluster")]

mod common;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ballista_core::execution_plans::execute_physical_plan;
use ballista_core::extension::SessionConfigExt;
use common::{
    Folder, ID, builds, counters, fleet, four, profile, refused, run, subject, symbol, text,
    weighted,
};
use datafusion::arrow::datatypes::Schema;
use datafusion::common::DataFusionError;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::prelude::SessionConfig;
use datafusion_proto::physical_plan::{PhysicalExtensionCodec, PhysicalProtoConverterExtension};
use datafusion_proto::protobuf::PhysicalPlanNode;
use postlink_fleet::operator::Over;
use postlink_fleet::scan::Scan;
use postlink_profile::{Profile, Subject, merge, plprof};

const PROGRAM: &str = env!("CARGO_BIN_EXE_postlink-fleet");
/// What an executor has here.
const USING: [&str; 4] = ["--threads", "1", "--memory", "128M"];
/// More memory than any process has here with `--memory 64M`.
const MOST: u64 = 256 << 20;
/// The same of one that sorts: DataFusion's sort has 285 MB on one machine, of three times the rows 328 MB.
const MOST_TO_SORT: u64 = 440 << 20;
/// Nothing here takes so long.
const PATIENCE: Duration = Duration::from_secs(180);

/// A process that ends with its test.
struct Process {
    child: Child,
    // Nobody reads on, but a closed pipe would end the process that says more.
    _stdout: BufReader<ChildStdout>,
    /// The first line that it said.
    said: String,
}

impl Process {
    fn start(command: &mut Command) -> Process {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut said = String::new();
        stdout.read_line(&mut said).unwrap();
        Process {
            child,
            _stdout: stdout,
            said,
        }
    }

    /// Ends it as a machine does that loses its power.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // One that has ended already is no error.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Cluster {
    url: String,
    executors: Vec<Process>,
    scheduler: Process,
}

impl Cluster {
    fn new(folder: &Folder, executors: usize) -> Cluster {
        Cluster::using(folder, executors, &USING)
    }

    fn using(folder: &Folder, executors: usize, using: &[&str]) -> Cluster {
        let mut command = Command::new(PROGRAM);
        command.args([
            "cluster",
            "scheduler",
            "--port",
            "0",
            "--executor-timeout",
            "8",
        ]);
        let scheduler = Process::start(&mut command);
        let url = scheduler.said.trim().strip_prefix("scheduler: ");
        let mut cluster = Cluster {
            url: url.expect("it says where it listens").to_owned(),
            executors: vec![],
            scheduler,
        };
        for number in 0..executors {
            let mut command = Command::new(PROGRAM);
            command.args(["cluster", "executor", "--scheduler", &cluster.url]);
            command.args(["--temporary", &folder.name(&format!("executor{number}"))]);
            cluster.executors.push(Process::start(command.args(using)));
        }
        cluster
    }

    /// The option.
    fn option(&self) -> [&str; 2] {
        ["--cluster", &self.url]
    }

    /// Runs a command on it, which must end with success.
    fn fleet(&self, arguments: &[&str]) -> String {
        text(&fleet(&[arguments, &self.option()].concat()))
    }

    /// The message of one that must fail.
    fn refused(&self, arguments: &[&str]) -> String {
        refused(&[arguments, &self.option()].concat())
    }
}

/// Files of rows below the folder of an executor, `postlink-fleet-executor-…/rows/JOB/STAGE/PART`, with their sizes.
fn written(folder: &Path) -> Vec<(PathBuf, u64)> {
    let inside = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten();
    let executors = inside(folder).map(|executor| executor.path().join("rows"));
    let jobs = executors.flat_map(|rows| inside(&rows).collect::<Vec<_>>());
    let stages = jobs.flat_map(|job| inside(&job.path()).collect::<Vec<_>>());
    let parts = stages.flat_map(|stage| inside(&stage.path()).collect::<Vec<_>>());
    let files = parts.flat_map(|part| inside(&part.path()).collect::<Vec<_>>());
    let size = |file: std::fs::DirEntry| Some((file.path(), file.metadata().ok()?.len()));
    files.filter_map(size).collect()
}

/// Files below a folder.
fn below(folder: PathBuf) -> usize {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return 0;
    };
    let entries = entries.flatten().map(|entry| entry.path());
    let count = |path: PathBuf| if path.is_dir() { below(path) } else { 1 };
    entries.map(count).sum()
}

fn names(files: Vec<PathBuf>) -> Vec<String> {
    let name = |file: &PathBuf| file.file_name().unwrap().to_str().unwrap().to_owned();
    files.iter().map(name).collect()
}

/// Shards of so many rows each, which differ in a part of their rows.
fn large(folder: &Folder, shards: u64, rows: u64) -> String {
    let to = folder.name("large");
    for shard in 0..shards {
        let branches: String = (0..rows)
            .map(|k| {
                let from = 0x1000 + 7 * (k + shard % 3 * rows / 2);
                format!("B {from:x} {:x} {} 0\n", from ^ 0x5555, k % 9 + 1)
            })
            .collect();
        let path = folder.file("large.preagg", &branches);
        let run = shard.to_string();
        fleet(&["add", &path, "--build-id", ID, "--run", &run, "-o", &to]);
    }
    to
}

#[test]
fn one_two_and_four_executors_give_the_bytes_of_one_machine() {
    let folder = Folder::new();
    let expected = four(&folder);
    let a = folder.file(
        "a.fdata",
        "1 main 0 1 f\\ x 4 3 7\n0 [unknown] 0 1 main 0 0 18446744073709551615\n1 main 8 0 libc.so 1f 0 2\n",
    );
    let b = folder.file(
        "b.preagg",
        "E cycles\nB 1060 1080 10 2\nT 1080 1090 10a0 7 1\nF 1060 1070 8\nS 1060 4\n",
    );
    // A name that a URL and a path in a store write differently.
    let shards = folder.name("shards of ü%20#?+");
    std::fs::rename(folder.path("shards"), &shards).unwrap();
    for path in [&a, &b] {
        fleet(&["add", path, "--build-id", ID, "-o", &shards]);
        fleet(&[
            "add",
            &format!("{path}:3"),
            "--build-id",
            ID,
            "--run",
            "x",
            "-o",
            &shards,
        ]);
    }
    let fdata = profile(&folder, &[&shards], "here.fdata", &[]);
    let preagg = profile(&folder, &[&shards], "here.preagg", &[]);
    fleet(&["merge", &shards, "-o", &folder.name("here")]);
    let quality = text(&fleet(&["quality", &shards]));
    let sql = "SELECT kind, source, count(*) AS n, sum(CAST(count AS DECIMAL(20, 0))) AS s FROM counts \
               GROUP BY kind, source ORDER BY kind, source";
    let table = text(&fleet(&["query", sql, &shards]));
    for executors in [1, 2, 4] {
        let cluster = Cluster::new(&folder, executors);
        let option = cluster.option();
        assert_eq!(profile(&folder, &[&shards], "a.plprof", &option), expected);
        assert_eq!(profile(&folder, &[&shards], "a.fdata", &option), fdata);
        assert_eq!(profile(&folder, &[&shards], "a.preagg", &option), preagg);
        let there = format!("there{executors}");
        cluster.fleet(&["merge", &shards, "-o", &folder.name(&there)]);
        // A name has the hash of all bytes.
        assert_eq!(names(folder.shards(&there)), names(folder.shards("here")));
        assert_eq!(cluster.fleet(&["quality", &shards]), quality);
        assert_eq!(cluster.fleet(&["query", sql, &shards]), table);
    }
}

#[test]
fn expiring_and_merging_in_place_on_a_cluster_lose_and_repeat_nothing() {
    let folder = Folder::new();
    let shards = folder.name("shards");
    let days = ["2026-01-01", "2026-02-01", "2026-03-01"];
    for (seed, day) in (1..).zip(days) {
        let path = folder.counters(&format!("{seed}.plprof"), &counters(seed, 1));
        fleet(&["add", &path, "-o", &shards, "--day", day]);
    }
    let cluster = Cluster::new(&folder, 2);
    // A shard twice, under another name.
    let first = folder.shards("shards")[0].clone();
    std::fs::copy(&first, first.with_file_name("copy.parquet")).unwrap();
    cluster.fleet(&["merge", &shards, "-o", &shards, "--replace"]);
    assert_eq!(folder.shards("shards").len(), 1);
    cluster.fleet(&["expire", &shards, "--before", "2026-02-01"]);
    let kept = ["2.plprof", "3.plprof"].map(|name| weighted(&folder.name(name), 1));
    let mut bytes = Vec::new();
    plprof::write_to(&mut bytes, &merge(&kept).unwrap().profile).unwrap();
    assert_eq!(
        profile(&folder, &[&shards], "a.plprof", &cluster.option()),
        bytes
    );
}

#[test]
fn rows_are_carried_over_to_a_new_build_on_a_cluster() {
    let folder = Folder::new();
    let Some((old, new)) = builds(&folder) else {
        println!("SKIPPED: gcc is not installed");
        return;
    };
    let (same, size) = symbol(&old, "same");
    let lines = (0..size).map(|at| format!("S {:x} {}\n", same + at, at + 1));
    let samples = folder.file("a.preagg", &lines.collect::<String>());
    let shards = folder.name("shards");
    fleet(&["add", &samples, "--binary", &old, "-o", &shards]);
    let cluster = Cluster::new(&folder, 2);
    let (here, there) = (folder.name("here"), folder.name("there"));
    let ask = ["stale", &shards, "--from", &old, "--to", &new, "-o"];
    fleet(&[&ask[..], &[&here]].concat());
    cluster.fleet(&[&ask[..], &[&there]].concat());
    assert_eq!(names(folder.shards("there")), names(folder.shards("here")));
}

#[test]
fn a_damaged_shard_is_named_and_left_out_on_a_cluster_only_if_asked() {
    let folder = Folder::new();
    four(&folder);
    let shards = folder.name("shards");
    let victim = folder.shards("shards")[1].clone();
    let whole = std::fs::read(&victim).unwrap();
    std::fs::write(&victim, &whole[..whole.len() / 2]).unwrap();
    let cluster = Cluster::new(&folder, 1);
    let (here, there) = (folder.name("here"), folder.name("there"));
    let message = cluster.refused(&["merge", &shards, "-o", &there]);
    let name = victim.file_name().unwrap().to_str().unwrap();
    assert!(
        message.contains(name) && message.contains("PAR1"),
        "{message}"
    );
    fleet(&["merge", &shards, "-o", &here, "--skip-damaged"]);
    let said = cluster.fleet(&["merge", &shards, "-o", &there, "--skip-damaged"]);
    assert!(
        said.contains("1 damaged files were left out, 3 are used"),
        "{said}"
    );
    assert_eq!(names(folder.shards("there")), names(folder.shards("here")));
}

/// Executors check shards where these are many. What they find, and what is made of it, is as on one machine.
#[test]
fn many_shards_are_checked_by_executors() {
    let folder = Folder::new();
    let profile = folder.counters("a.plprof", &counters(1, 0xabc));
    let of = folder.name("shards");
    let weighted: Vec<String> = (1..=300).map(|w| format!("{profile}:{w}")).collect();
    let mut add = vec!["add", "-o", &of];
    add.extend(weighted.iter().map(String::as_str));
    fleet(&add);
    // A file that has others in it, one that is cut short, one whose bytes changed, and one that is there twice.
    let all = folder.shards("shards");
    let mut merge = vec!["merge", "-o", &of];
    merge.extend(all[..20].iter().map(|path| path.to_str().unwrap()));
    fleet(&merge);
    let whole = std::fs::read(&all[100]).unwrap();
    std::fs::write(&all[100], &whole[..whole.len() / 2]).unwrap();
    let mut changed = std::fs::read(&all[200]).unwrap();
    changed[10] ^= 1;
    std::fs::write(&all[200], changed).unwrap();
    std::fs::copy(&all[250], all[250].with_file_name("twice.parquet")).unwrap();
    let cluster = Cluster::new(&folder, 2);
    let check = |option: &[&str]| {
        let done = run(&[&["check", &of][..], option].concat());
        assert_eq!(done.status.code(), Some(1));
        text(&done)
    };
    let (here, there) = (check(&[]), check(&cluster.option()));
    assert_eq!(here, there);
    let count = |word: &str| here.lines().filter(|line| line.starts_with(word)).count();
    assert_eq!((count("damaged: "), count("repeated: ")), (2, 21), "{here}");
    let executors = ["executor0", "executor1"].map(|name| written(&folder.path(name)));
    assert!(executors.iter().any(|files| !files.is_empty()));

    let there = folder.name("there");
    let refused = cluster.refused(&["merge", &of, "-o", &there]);
    assert!(refused.contains("a shard cannot be used"), "{refused}");
    let merge = ["merge", &of, "--skip-damaged", "-o"];
    let said = cluster.fleet(&[&merge[..], &[&there]].concat());
    assert!(said.contains("2 damaged files were left out"), "{said}");
    fleet(&[&merge[..], &[&folder.name("here")]].concat());
    assert_eq!(names(folder.shards("there")), names(folder.shards("here")));
}

/// Pages are looked at when they are read: by an executor, which must say of them what one machine says.
#[test]
fn damaged_pages_that_an_executor_finds_are_told_as_on_one_machine() {
    let folder = Folder::new();
    four(&folder);
    let shards = folder.name("shards");
    let victim = folder.shards("shards")[2].clone();
    let mut bytes = std::fs::read(&victim).unwrap();
    // Its first page; a name without a hash, so that nothing is found before it is read.
    bytes[4..60].fill(0xff);
    std::fs::write(victim.with_file_name("plain.parquet"), bytes).unwrap();
    std::fs::remove_file(&victim).unwrap();
    let cluster = Cluster::new(&folder, 1);
    let out = folder.name("out");
    let ask = ["merge", &shards, "-o", &out];
    let (here, there) = (refused(&ask), cluster.refused(&ask));
    let what = here.split_once("error: ").unwrap().1.trim();
    assert!(what.contains("plain.parquet: in row group 0"), "{what}");
    assert!(there.contains(what), "{there}, not {what}");
    assert_eq!(below(folder.path("out")), 0);
    let profile = folder.name("out.plprof");
    let ask = ["profile", &shards, "--build-id", ID, "-o", &profile];
    let there = cluster.refused(&ask);
    assert!(there.contains("plain.parquet: in row group 0"), "{there}");
    assert!(!folder.path("out.plprof").exists());
}

/// What a client of a later version sends.
#[derive(Debug)]
struct Later;

impl PhysicalExtensionCodec for Later {
    fn try_decode(
        &self,
        _: &[u8],
        _: &[Arc<dyn ExecutionPlan>],
        _: &TaskContext,
        _: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Arc<dyn ExecutionPlan>, DataFusionError> {
        unreachable!("nothing is received")
    }

    fn try_encode(
        &self,
        _: Arc<dyn ExecutionPlan>,
        out: &mut Vec<u8>,
        _: &dyn PhysicalProtoConverterExtension,
    ) -> Result<(), DataFusionError> {
        out.extend_from_slice(b"\0postlink-fleet\xff\0\0\0\x039.9 and more");
        Ok(())
    }
}

#[test]
fn a_plan_of_another_version_is_refused_with_both_versions() {
    let folder = Folder::new();
    let cluster = Cluster::new(&folder, 0);
    let files = Arc::new(EmptyExec::new(Arc::new(Schema::empty())));
    let scan = Scan {
        schema: postlink_fleet::schema::schema(),
        build: None,
    };
    let plan = Arc::new(Over::new(scan, files));
    let config = SessionConfig::new_with_ballista();
    let url = cluster.url.replace("df://", "http://");
    let options = config.ballista_config();
    let sent = execute_physical_plan::<PhysicalPlanNode>(
        url,
        &options,
        plan,
        &Later,
        "session".into(),
        config,
    );
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().unwrap();
    let Err(error) = runtime.block_on(sent) else {
        panic!("a plan of version 255 was taken");
    };
    let error = error.to_string();
    for part in [
        "postlink-fleet 9.9 and has version 255",
        "which runs version 3: the scheduler, the executors and the client must be of one version",
    ] {
        assert!(error.contains(part), "{error}");
    }
}

/// Starts a merge, and gives it when an executor has written rows, and the number of that executor.
fn begun(folder: &Folder, cluster: &Cluster, shards: &str) -> (Child, usize) {
    let mut command = Command::new(PROGRAM);
    command.args(["merge", shards, "-o", &folder.name("there")]);
    let mut merge = command
        .args(cluster.option())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let start = Instant::now();
    let at = loop {
        assert!(
            merge.try_wait().unwrap().is_none(),
            "it must be in the middle"
        );
        let mut all = 0..cluster.executors.len();
        let of = |at| written(&folder.path(&format!("executor{at}")));
        if let Some(at) = all.find(|at| !of(*at).is_empty()) {
            break at;
        }
        assert!(start.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(
        merge.try_wait().unwrap().is_none(),
        "it must be in the middle"
    );
    (merge, at)
}

fn signal(process: &Child, name: &str) {
    let id = process.id().to_string();
    let status = Command::new("kill").args([name, &id]).status();
    assert!(status.unwrap().success());
}

/// The one that has written rows, and the other one.
#[test]
fn an_executor_that_is_killed_in_the_middle_costs_time_and_no_row() {
    let folder = Folder::new();
    let shards = large(&folder, 24, 8000);
    fleet(&["merge", &shards, "-o", &folder.name("here")]);
    for of_rows in [true, false] {
        let mut cluster = Cluster::new(&folder, 2);
        let (merge, at) = begun(&folder, &cluster, &shards);
        let victim = if of_rows { at } else { 1 - at };
        cluster.executors[victim].kill();
        let done = merge.wait_with_output().unwrap();
        assert!(done.status.success(), "{of_rows}: {}", text(&done));
        assert_eq!(names(folder.shards("there")), names(folder.shards("here")));
        drop(cluster);
        for left in ["there", "executor0", "executor1"] {
            std::fs::remove_dir_all(folder.path(left)).unwrap();
        }
    }
}

/// Its rows are added up again, and only its rows.
#[test]
fn an_executor_that_is_killed_before_its_rows_are_fetched_costs_time_and_no_row() {
    let folder = Folder::new();
    let shards = large(&folder, 24, 8000);
    fleet(&["merge", &shards, "-o", &folder.name("here")]);
    let mut cluster = Cluster::new(&folder, 2);
    let (merge, at) = begun(&folder, &cluster, &shards);
    // The client sleeps until all is done.
    signal(&merge, "-STOP");
    let all = || ["executor0", "executor1"].map(|name| written(&folder.path(name)));
    let (start, mut last, mut since) = (Instant::now(), all(), Instant::now());
    // Two shards are a part.
    while last.concat().len() < 12 || since.elapsed() < Duration::from_secs(3) {
        assert!(start.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(50));
        let now = all();
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    cluster.executors[at].kill();
    signal(&merge, "-CONT");
    let done = merge.wait_with_output().unwrap();
    let message = text(&done);
    assert!(done.status.success(), "{message}");
    let lost = format!("{} parts cannot be fetched", last[at].len());
    assert!(message.contains(&lost), "{message}, not {lost}");
    assert_eq!(names(folder.shards("there")), names(folder.shards("here")));
}

/// Sorted rows of all executors are merged by one of them, whose temporary files are rows of others.
#[test]
fn an_executor_that_is_killed_while_another_fetches_its_rows_costs_time_and_no_row() {
    let folder = Folder::new();
    let shards = large(&folder, 24, 8000);
    let sorted = "SELECT from_address, to_address, count, run FROM counts ORDER BY count, run, 1, 2 OFFSET 150000";
    let ask = ["query", sorted, &shards];
    let mut cluster = Cluster::new(&folder, 2);
    let mut command = Command::new(PROGRAM);
    command.args(ask).args(cluster.option());
    let query = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let query = query.spawn().unwrap();
    let fetched = |at: &usize| {
        let folders = std::fs::read_dir(folder.name(&format!("executor{at}")));
        let folders = folders.into_iter().flatten().flatten();
        let files: usize = folders.map(|one| below(one.path().join("spilled"))).sum();
        files > 0
    };
    let start = Instant::now();
    let at = loop {
        if let Some(at) = (0..2).find(fetched) {
            break at;
        }
        assert!(start.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(1));
    };
    cluster.executors[1 - at].kill();
    let done = query.wait_with_output().unwrap();
    assert!(done.status.success(), "{}", text(&done));
    let (there, here) = (done.stdout, fleet(&ask).stdout);
    assert!(there == here, "{}", String::from_utf8_lossy(&there));
}

/// The most memory that a process has had, in bytes; 0 of one that has ended.
fn peak(process: &Child) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.id()));
    let status = status.unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) << 10
}

/// Runs a command on a cluster; none of its processes may have had so much memory.
fn bounded(cluster: &Cluster, arguments: &[&str], most: u64) -> String {
    let mut command = Command::new(PROGRAM);
    command.args(arguments).args(cluster.option());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut said = String::new();
        stdout.read_to_string(&mut said).unwrap();
        said
    });
    let mut of_command = 0;
    let status = loop {
        of_command = peak(&child).max(of_command);
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    assert!(status.success());
    let mut peaks = vec![of_command, peak(&cluster.scheduler.child)];
    peaks.extend(cluster.executors.iter().map(|process| peak(&process.child)));
    println!("client, scheduler, executors: {peaks:?}");
    assert!(
        peaks.iter().all(|peak| (1..most).contains(peak)),
        "{peaks:?}"
    );
    reader.join().unwrap()
}

/// Many shards of a profile of so many counters, none of which has a row like another's.
fn different(folder: &Folder, shards: u64, rows: u64) -> String {
    let subject = Subject {
        counters: rows,
        sites: 0,
        ..subject(1)
    };
    let values = (0..rows).map(|at| at % 1000 + 1).collect();
    let values = Profile::from_parts(subject, values, BTreeMap::new()).unwrap();
    let path = folder.counters("a.plprof", &values);
    let weighted: Vec<String> = (1..=shards).map(|w| format!("{path}:{w}")).collect();
    let of = folder.name("shards");
    let mut add = vec!["add", "-o", &of];
    add.extend(weighted.iter().map(String::as_str));
    fleet(&add);
    of
}

/// What executors have in the tests of their memory.
const LITTLE: [&str; 4] = ["--threads", "1", "--memory", "64M"];

/// Rows that are all different, so that an executor, or the client, gets as many rows of others as there are. As Arrow
/// has them in memory, half of them are more than is allowed.
#[test]
fn memory_is_bounded_however_many_rows_come_from_other_executors() {
    let folder = Folder::new();
    let of = different(&folder, 24, 150_000);
    let cluster = Cluster::using(&folder, 2, &LITTLE);
    let there = folder.name("there");
    bounded(
        &cluster,
        &["merge", &of, "-o", &there, "--memory", "64M"],
        MOST,
    );
    fleet(&["merge", &of, "-o", &folder.name("here"), "--memory", "64M"]);
    assert_eq!(names(folder.shards("there")), names(folder.shards("here")));
}

/// Ballista's reader kept what a task of another executor wrote for one of this one in memory, and where sorted rows
/// are merged that of all tasks.
#[test]
fn memory_is_bounded_however_many_rows_of_other_executors_are_merged_in_order() {
    let folder = Folder::new();
    let (shards, rows) = (24, 150_000);
    let of = different(&folder, shards, rows);
    let cluster = Cluster::using(&folder, 2, &LITTLE);
    let last = shards * rows - 20;
    let sorted = format!(
        "SELECT * FROM counts ORDER BY count * 7 % 1009, from_address, weight, count OFFSET {last}"
    );
    let ask = ["query", &sorted, &of, "--memory", "64M"];
    let there = bounded(&cluster, &ask, MOST_TO_SORT);
    assert_eq!(there, text(&fleet(&ask)));
    assert!(there.lines().count() >= 20, "{there}");
    // Nothing is left of what was fetched.
    for executor in ["executor0", "executor1"] {
        let folders = std::fs::read_dir(folder.name(executor)).unwrap().flatten();
        let spilled: usize = folders.map(|one| below(one.path().join("spilled"))).sum();
        assert_eq!(spilled, 0);
    }
}

#[test]
fn a_cluster_without_executors_left_is_an_error_and_nothing_is_written() {
    let folder = Folder::new();
    let shards = large(&folder, 24, 8000);
    let mut cluster = Cluster::new(&folder, 1);
    let (merge, _) = begun(&folder, &cluster, &shards);
    cluster.executors[0].kill();
    let done = merge.wait_with_output().unwrap();
    let message = text(&done);
    assert!(!done.status.success(), "{message}");
    assert!(message.contains("all executors were lost"), "{message}");
    assert!(!message.contains("panicked"), "{message}");
    assert_eq!(below(folder.path("there")), 0);
}

#[test]
fn a_scheduler_that_is_killed_in_the_middle_is_an_error_and_nothing_is_written() {
    let folder = Folder::new();
    let shards = large(&folder, 24, 8000);
    let mut cluster = Cluster::new(&folder, 1);
    let (merge, _) = begun(&folder, &cluster, &shards);
    cluster.scheduler.kill();
    let done = merge.wait_with_output().unwrap();
    let message = text(&done);
    assert!(!done.status.success(), "{message}");
    assert!(!message.contains("panicked"), "{message}");
    assert_eq!(below(folder.path("there")), 0);
}

#[test]
fn a_full_disk_of_an_executor_is_an_error_and_nothing_is_written() {
    let folder = Folder::new();
    let shards = large(&folder, 3, 8000);
    let before = folder.shards("large");
    let mut cluster = Cluster::new(&folder, 0);
    // A limit for files, whose signal is ignored, is what a full disk looks like to a writer.
    let script = format!(
        "ulimit -f 8; trap '' XFSZ; exec '{PROGRAM}' cluster executor --scheduler {} --temporary '{}' {}",
        cluster.url,
        folder.name("executor0"),
        USING.join(" ")
    );
    let mut command = Command::new("bash");
    cluster
        .executors
        .push(Process::start(command.args(["-c", &script])));
    let message = cluster.refused(&["merge", &shards, "-o", &shards, "--replace"]);
    assert!(message.contains("File too large"), "{message}");
    assert_eq!(folder.shards("large"), before);
}

#[test]
fn wrong_requests_to_a_cluster_are_sentences() {
    let folder = Folder::new();
    four(&folder);
    let shards = folder.name("shards");
    let ask = ["query", "SELECT 1", &shards, "--cluster"];
    for (url, expected) in [
        ("http://127.0.0.1:1", "must be df://HOST:PORT"),
        ("df://127.0.0.1:1", "no scheduler answers"),
        ("df://no-such-host.invalid", "no such host"),
    ] {
        let message = refused(&[&ask[..], &[url]].concat());
        assert!(message.contains(expected), "{message}");
    }
    let executor = ["cluster", "executor", "--threads", "3", "--memory", "100M"];
    let message = refused(&executor);
    assert!(
        message.contains("needs 201326592 bytes of --memory"),
        "{message}"
    );
    let cluster = Cluster::new(&folder, 1);
    let message = cluster.refused(&["query", "SELECT nothing FROM counts", &shards]);
    assert!(message.contains("nothing"), "{message}");
    let out = folder.name("out.plprof");
    let message = cluster.refused(&["profile", &shards, "--build-id", "00", "-o", &out]);
    assert!(message.contains("it has none at all"), "{message}");
    // Its port is taken.
    let (_, port) = cluster.url.rsplit_once(':').unwrap();
    let second = run(&["cluster", "scheduler", "--port", port]);
    assert!(
        text(&second).contains("cannot listen at port"),
        "{}",
        text(&second)
    );
}

/// An executor that is asked to end leaves no files.
#[test]
fn an_executor_that_is_ended_removes_its_folder() {
    let folder = Folder::new();
    four(&folder);
    let mut cluster = Cluster::new(&folder, 1);
    cluster.fleet(&["merge", &folder.name("shards"), "-o", &folder.name("there")]);
    assert!(below(folder.path("executor0")) > 0);
    let executor = &mut cluster.executors[0].child;
    let id = executor.id().to_string();
    assert!(Command::new("kill").arg(&id).status().unwrap().success());
    let start = Instant::now();
    while executor.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(20));
    }
    let left = std::fs::read_dir(folder.path("executor0")).unwrap();
    assert_eq!(left.count(), 0);
}
