//! Comparison with `perf` on recordings made here (software clock: no hardware is needed). Without `perf`, or
//! where it may not record, these tests say so and pass.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use postlink_profile::perf_data::PerfData;
use postlink_profile::samples::{Options, Sample};
use postlink_profile::{Source, Spaces, perf_script};

/// Records a shell that forks, execs and works; `None` if that cannot be.
fn record(path: &Path, options: &[&str], pipe: bool) -> Option<()> {
    let script = "for i in 1 2 3; do (j=0; while [ $j -lt 60000 ]; do j=$((j+1)); done) & done; wait; head -c 3000000 /dev/urandom | sort | cksum >/dev/null";
    let mut command = Command::new("perf");
    command
        .args(["record", "-q", "-F", "1999"])
        .args(options)
        .arg("-o");
    if pipe {
        command
            .arg("-")
            .stdout(std::fs::File::create(path).unwrap());
    } else {
        command.arg(path).stdout(Stdio::null());
    }
    let done = command
        .args(["sh", "-c", script])
        .stderr(Stdio::null())
        .status();
    let recorded = done.is_ok_and(|status| status.success())
        && std::fs::metadata(path).is_ok_and(|data| data.len() > 1000);
    if !recorded {
        eprintln!("SKIPPED: perf cannot record here");
    }
    recorded.then_some(())
}

fn perf_script_text(path: &Path, fields: &str) -> Vec<u8> {
    let output = Command::new("perf")
        .args([
            "script",
            "-F",
            fields,
            "--show-mmap-events",
            "--show-task-events",
            "-i",
        ])
        .arg(path)
        .stderr(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success());
    output.stdout
}

/// Process, file and offset of the instruction, call chain: how many samples.
type Counts = BTreeMap<(Option<i32>, String, u64, Vec<u64>), usize>;

fn count(counts: &mut Counts, spaces: &Spaces, sample: &Sample) {
    let ip = sample.ip.or(sample.callchain.first().copied()).unwrap();
    let place = spaces.process(sample.pid).resolve(ip, sample.time);
    let path = spaces
        .modules()
        .get(place.module.0 as usize)
        .map_or(String::new(), |module| {
            String::from_utf8_lossy(&module.path).into_owned()
        });
    *counts
        .entry((sample.pid, path, place.address, sample.callchain.clone()))
        .or_default() += 1;
}

fn compare(options: &[&str], fields: &str, pipe: bool) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("perf.data");
    if record(&path, options, pipe).is_none() {
        return;
    }
    let source = Source::open(&path).unwrap();
    let data = PerfData::new(&path, &source).unwrap();
    let mut ours = Counts::new();
    data.for_each_sample(&path, |sample| count(&mut ours, data.spaces(), sample))
        .unwrap();

    let text = perf_script_text(&path, fields);
    let name = Path::new("perf script");
    let spaces = perf_script::spaces(name, &text).unwrap();
    let mut theirs = Counts::new();
    perf_script::for_each_sample(name, &text, |sample| count(&mut theirs, &spaces, sample))
        .unwrap();

    assert!(
        ours.values().sum::<usize>() > 20,
        "{} samples",
        ours.values().sum::<usize>()
    );
    assert_eq!(ours, theirs);
    let placed: usize = ours
        .iter()
        .filter(|(key, _)| !key.1.is_empty())
        .map(|(_, count)| count)
        .sum();
    assert!(
        placed * 10 >= ours.values().sum::<usize>() * 9,
        "only {placed} samples are in a file"
    );
    let profile = data.aggregate(&path, &Options::default()).unwrap();
    assert_eq!(
        profile.statistics.samples as usize,
        ours.values().sum::<usize>()
    );
}

#[test]
fn samples_of_several_processes_are_those_of_perf_script() {
    compare(&["-e", "cpu-clock:u"], "pid,event,ip", false);
}

#[test]
fn call_chains_are_those_of_perf_script() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("perf.data");
    if record(&path, &["-e", "cpu-clock:u", "-g"], false).is_none() {
        return;
    }
    let source = Source::open(&path).unwrap();
    let data = PerfData::new(&path, &source).unwrap();
    let text = perf_script_text(&path, "pid,event,ip");
    let mut theirs: BTreeMap<(Option<i32>, Vec<u64>), usize> = BTreeMap::new();
    perf_script::for_each_sample(Path::new("perf script"), &text, |sample| {
        *theirs
            .entry((sample.pid, sample.callchain.clone()))
            .or_default() += 1;
    })
    .unwrap();
    // In call chains perf prints the offset in the file where it knows one; older versions print addresses.
    let (mut offsets, mut addresses) = (BTreeMap::new(), BTreeMap::new());
    data.for_each_sample(&path, |sample| {
        let mut space = data.spaces().process(sample.pid);
        let placed = |&ip: &u64| {
            let place = space.resolve(ip, sample.time);
            if place.is_outside() {
                ip
            } else {
                place.address
            }
        };
        *offsets
            .entry((
                sample.pid,
                sample.callchain.iter().map(placed).collect::<Vec<_>>(),
            ))
            .or_default() += 1;
        *addresses
            .entry((sample.pid, sample.callchain.clone()))
            .or_default() += 1;
    })
    .unwrap();
    assert!(theirs.values().sum::<usize>() > 20);
    if theirs != addresses {
        assert_eq!(offsets, theirs);
    }
}

#[test]
fn a_recording_to_a_pipe_with_several_events_is_that_of_perf_script() {
    compare(&["-e", "cpu-clock:u,page-faults:u"], "pid,event,ip", true);
}

#[test]
fn a_compressed_recording_is_that_of_perf_script() {
    compare(&["-z", "-e", "cpu-clock:u"], "pid,event,ip", false);
}

/// The files of a recording that samples are in, with their build-ids, and the samples of each.
fn files(path: &Path) -> BTreeMap<(String, String), u64> {
    let source = Source::open(path).unwrap();
    let data = PerfData::new(path, &source).unwrap();
    let profile = data.aggregate(path, &Options::default()).unwrap();
    let mut files = BTreeMap::new();
    for (place, count) in profile.samples() {
        let Some(module) = profile.module(place.module) else {
            continue;
        };
        let id: String = module
            .build_id
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let path = String::from_utf8_lossy(&module.path).into_owned();
        *files.entry((path, id)).or_default() += count;
    }
    files
}

fn perf_inject(from: &Path, to: &Path, options: &[&str]) -> bool {
    let done = Command::new("perf")
        .arg("inject")
        .args(options)
        .arg("-i")
        .arg(from)
        .arg("-o")
        .arg(to)
        .stderr(Stdio::piped())
        .output();
    let said = done
        .as_ref()
        .map(|done| String::from_utf8_lossy(&done.stderr));
    let injected = done.as_ref().is_ok_and(|done| done.status.success());
    if !injected {
        eprintln!("SKIPPED: perf inject {options:?}: {said:?}");
    }
    injected
}

/// `perf inject` writes build-ids that a recording lacks, as records of their own.
#[test]
fn an_injected_file_has_the_same_samples_and_build_ids() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("perf.data");
    // -B: none are collected at the end of the recording.
    if record(&path, &["-e", "cpu-clock:u", "-B"], false).is_none() {
        return;
    }
    let plain = files(&path);
    assert!(plain.keys().all(|(_, id)| id.is_empty()), "{plain:?}");
    let by_path = |files: &BTreeMap<(String, String), u64>| -> BTreeMap<String, u64> {
        files
            .iter()
            .map(|((path, _), count)| (path.clone(), *count))
            .collect()
    };
    for options in [["-b"], ["--buildid-all"]] {
        let injected = dir.path().join("injected.data");
        if !perf_inject(&path, &injected, &options) {
            continue;
        }
        let ours = files(&injected);
        assert_eq!(by_path(&ours), by_path(&plain), "{options:?}");
        let list = Command::new("perf")
            .args(["buildid-list", "-i"])
            .arg(&injected)
            .output();
        let list = String::from_utf8(list.unwrap().stdout).unwrap();
        let theirs: BTreeMap<&str, &str> = list
            .lines()
            .filter_map(|line| {
                line.trim()
                    .split_once(' ')
                    .map(|(id, path)| (path.trim(), id))
            })
            .collect();
        let mut known = 0;
        for (path, id) in ours.keys() {
            if let Some(expected) = theirs.get(path.as_str()) {
                assert_eq!(id, expected, "{options:?}: {path}");
                known += 1;
            }
        }
        assert!(known > 0, "{options:?}: {ours:?} {list}");
    }
}
