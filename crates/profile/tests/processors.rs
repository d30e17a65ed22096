//! Samples of processors that are not at hand: recordings that [`recorder`] writes, read here and by perf, where
//! it is installed, with the same result. Without `perf` these tests say so and compare with the text alone that
//! its documents describe. Arm SPE is compared with that text alone.

mod recorder;

use std::path::Path;
use std::process::{Command, Stdio};

use postlink_profile::address::AddressProfile;
use postlink_profile::perf_data::PerfData;
use postlink_profile::perf_script;
use postlink_profile::samples::Options;

use recorder::{Branch, Event, Picked, Recorder};

const PID: u32 = 4321;
const START: u64 = 0xaaaa_0000_0000;

fn perf(args: &[&str], path: &Path) -> Option<String> {
    let done = Command::new("perf")
        .args(args)
        .args(["-f", "-i"])
        .arg(path)
        .env("PAGER", "cat")
        .stderr(Stdio::piped())
        .output();
    let Ok(done) = done else {
        eprintln!("SKIPPED: perf is not installed");
        return None;
    };
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}");
    Some(String::from_utf8_lossy(&done.stdout).into_owned())
}

fn aggregate(bytes: &[u8], options: &Options) -> AddressProfile {
    let name = Path::new("perf.data");
    let data = PerfData::new(name, bytes).expect("a recording");
    data.aggregate(name, options).expect("whole samples")
}

/// What the text of `perf script` says, without its statistics and event names.
fn of_text(text: &str, options: &Options) -> AddressProfile {
    perf_script::read_bytes(Path::new("text"), text.as_bytes(), options).expect("a text")
}

/// Branches with counts, and runs with counts.
type Sums = (Vec<(u64, u64, u64, u64)>, Vec<(u64, u64, u64)>);

fn sums(profile: &AddressProfile) -> Sums {
    let branches = profile.branches();
    let branches = branches.iter().map(|((from, to), counts)| {
        (
            from.address,
            to.address,
            counts.count,
            counts.mispredictions,
        )
    });
    let runs = profile.fall_throughs();
    let runs = runs
        .iter()
        .map(|((start, end, _), counts)| (start.address, *end, counts.count));
    (branches.collect(), runs.collect())
}

fn mapping_line() -> String {
    format!(
        "program {PID}/{PID} 1.0: PERF_RECORD_MMAP2 {PID}/{PID}: [{START:#x}(0x10000) @ 0 08:01 1234 0]: r-xp /nowhere/program\n"
    )
}

fn begin(event: Event) -> Recorder {
    let mut recorder = Recorder::new(event, "aarch64");
    recorder.runs(PID, "/nowhere/program", START, 0x10000, 0, 1_000_000);
    recorder
}

/// Branches up and down a page, some not taken, some with the target before.
fn picked(previous: bool) -> Vec<Picked> {
    (0..200u64)
        .map(|i| {
            let pc = START + 0x1000 + i % 7 * 0x20;
            let not_taken = i % 5 == 0;
            Picked {
                pc,
                branch: i % 11 != 3,
                target: Some(if not_taken {
                    pc + 4
                } else {
                    START + 0x2000 + i % 3 * 0x40
                }),
                previous: (previous && i % 4 != 1).then_some(pc - 0x10),
                not_taken,
                mispredicted: i % 6 == 0,
                thread: Some(PID),
                time: Some(2_000_000 + i * 4000),
            }
        })
        .collect()
}

fn spe(list: &[Picked]) -> Recorder {
    let mut recorder = begin(Event::spe());
    recorder.spe_header();
    for (number, part) in list.chunks(70).enumerate() {
        let data: Vec<u8> = part.iter().flat_map(Picked::packets).collect();
        recorder.trace(Some(PID), 0, number as u64 * 0x10000, &data);
    }
    recorder.exits(PID, 9_000_000);
    recorder
}

#[test]
fn arm_spe_is_the_text_that_perf_documents_for_it() {
    let as_perf2bolt = Options::default();
    for previous in [false, true] {
        let list = picked(previous);
        let lines: String = list
            .iter()
            .filter(|item| item.branch)
            .map(|item| item.line(PID) + "\n")
            .collect();
        let theirs = of_text(&(mapping_line() + &lines), &as_perf2bolt);
        for pipe in [false, true] {
            let bytes = spe(&list).finish(pipe);
            let ours = aggregate(&bytes, &as_perf2bolt);
            assert_eq!(sums(&ours), sums(&theirs));
            assert_eq!(sums(&ours).1.is_empty(), !previous);
            assert_eq!(
                ours.statistics.samples,
                list.iter().filter(|item| item.branch).count() as u64
            );
        }
    }
}

#[test]
fn damaged_trace_data_costs_the_rest_of_their_buffer_and_is_counted() {
    let list = picked(false);
    let of = |part: &[Picked]| -> Vec<u8> { part.iter().flat_map(Picked::packets).collect() };
    let (first, second) = list.split_at(100);
    let mut damaged = of(first);
    let good = damaged.len();
    damaged.extend([0xff; 40]);
    let cut = [of(second), of(&second[..1])[..5].to_vec()].concat();
    let mut recorder = begin(Event::spe());
    recorder.spe_header();
    recorder.trace(Some(PID), 0, 0, &damaged);
    recorder.trace(Some(PID), 0, 0x10000, &cut);
    recorder.exits(PID, 9_000_000);
    let bytes = recorder.finish(false);
    let ours = aggregate(&bytes, &Options::default());
    let whole = aggregate(&spe(&list).finish(false), &Options::default());
    assert_eq!(sums(&ours), sums(&whole));
    let start = bytes
        .windows(damaged.len())
        .position(|window| window == damaged)
        .unwrap();
    let undecoded = Some((40, (start + good) as u64));
    assert_eq!(
        (ours.statistics.lost, ours.statistics.undecoded),
        (1, undecoded)
    );
    assert_eq!(whole.statistics.undecoded, None);
}

#[test]
fn a_branch_that_arm_spe_picked_counts_once_and_the_arrival_before_it_does_not() {
    let item = Picked {
        pc: START + 0x1010,
        branch: true,
        target: Some(START + 0x2000),
        previous: Some(START + 0x1000),
        thread: Some(PID),
        time: Some(2_000_000),
        ..Picked::default()
    };
    let bytes = spe(&[item]).finish(false);
    let options = Options {
        even: true,
        event_ip: true,
        ..Options::default()
    };
    let (branches, runs) = sums(&aggregate(&bytes, &options));
    assert_eq!(branches, [(0x1010, 0x2000, 1, 0)]);
    assert_eq!(runs, [(0x1000, 0x1010, 1)]);
    let options = Options {
        basic: true,
        ..Options::default()
    };
    let basic = aggregate(&bytes, &options);
    assert_eq!(basic.samples().len(), 1);
    assert!(basic.traces().is_empty());
}

/// The process of an operation: by its context, or by the thread of the buffer; a clock that counts something else
/// does not lose it.
#[test]
fn operations_of_arm_spe_find_their_process_with_clocks_that_count_something_else() {
    let clear = |list: &mut Vec<Picked>, thread: Option<u32>, time: Option<u64>| {
        for item in list {
            (item.thread, item.time) = (thread, time);
        }
    };
    let expected = sums(&aggregate(
        &spe(&picked(true)).finish(false),
        &Options::default(),
    ));
    for (thread, time) in [
        (None, None),
        (Some(99_999), Some(3_000_000)),
        (Some(PID), Some(40)),
        (None, Some(u64::MAX)),
    ] {
        let mut list = picked(true);
        clear(&mut list, thread, time);
        let ours = aggregate(&spe(&list).finish(false), &Options::default());
        assert_eq!(sums(&ours), expected, "thread {thread:?}, time {time:?}");
    }
}

#[test]
fn an_intel_pt_recording_says_which_command_makes_a_text() {
    let mut recorder = begin(Event::spe());
    recorder.record(70, 0, &[1, 0, 0, 0, 0, 0, 0, 0]);
    recorder.trace(Some(PID), 0, 0, &[2; 64]);
    let bytes = recorder.finish(false);
    let name = Path::new("pt.data");
    let data = PerfData::new(name, &bytes).expect("a recording");
    let said = data
        .aggregate(name, &Options::default())
        .expect_err("nothing can be read")
        .to_string();
    assert!(said.starts_with("pt.data at offset 0x"), "{said}");
    assert!(said.contains("a trace of Intel PT (64 bytes"), "{said}");
    assert!(said.contains("perf script --itrace=i"), "{said}");
    let basic = Options {
        basic: true,
        ..Options::default()
    };
    assert!(data.aggregate(name, &basic).is_ok());
}

/// Flags of a branch: mispredicted, predicted, cycles, type, speculation, extended type, privilege.
fn flags(mispredicted: bool, cycles: u64, kind: u64, spec: u64, new_kind: u64, level: u64) -> u64 {
    u64::from(mispredicted)
        | u64::from(!mispredicted) << 1
        | cycles << 4
        | kind << 20
        | spec << 24
        | new_kind << 26
        | level << 30
}

/// A loop with a call, as a stack of `len` branches, newest first.
fn stack(len: u64, spec: bool) -> Vec<Branch> {
    (0..len)
        .map(|i| {
            let (from, to, kind) = match i % 3 {
                0 => (0x1030, 0x1000, 1),
                1 => (0x2008, 0x1024, 6),
                _ => (0x1020, 0x2000, 4),
            };
            Branch {
                from: START + from,
                to: START + to,
                flags: flags(i % 4 == 0, 3 + i, kind, u64::from(spec) * 3, 0, 1),
            }
        })
        .collect()
}

fn same_as_perf_script(recorder: &Recorder, what: &str) -> AddressProfile {
    let bytes = recorder.finish(false);
    let options = Options::default();
    let ours = aggregate(&bytes, &options);
    assert_eq!(
        sums(&ours),
        sums(&aggregate(&recorder.finish(true), &options)),
        "{what}: a pipe"
    );
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("perf.data");
    std::fs::write(&path, bytes).expect("the directory is ours");
    if let Some(text) = perf(&["script", "-F", "pid,brstack"], &path) {
        assert!(text.contains("/0x"), "{what}: {text}");
        let theirs = of_text(&(mapping_line() + &text), &options);
        assert_eq!(sums(&ours), sums(&theirs), "{what}");
    }
    ours
}

/// The branch records of Intel's LBR, with all that `--branch-filter` can ask for, of AMD's BRS and LbrExtV2, and
/// of Arm's BRBE are stacks that differ in their flags and in what stands before and after them.
#[test]
fn branch_stacks_of_every_processor_are_what_perf_prints_of_them() {
    use recorder::*;
    let extra = [
        ("Intel LBR", 0, 32),
        (
            "Intel LBR with types and an index",
            BRANCH_TYPE_SAVE | BRANCH_HW_INDEX,
            32,
        ),
        ("AMD BRS", 0, 16),
        ("AMD LbrExtV2", BRANCH_TYPE_SAVE | BRANCH_PRIV_SAVE, 16),
        (
            "Arm BRBE",
            BRANCH_TYPE_SAVE | BRANCH_PRIV_SAVE | BRANCH_HW_INDEX,
            64,
        ),
    ];
    let mut known: Option<Sums> = None;
    for (what, fields, len) in extra {
        let mut recorder = begin(Event::stacks(fields));
        for i in 0..192 / len {
            recorder.stack(PID, 2_000_000 + i, START + 0x1000, &stack(len, false), &[]);
        }
        recorder.exits(PID, 9_000_000);
        let ours = same_as_perf_script(&recorder, what);
        assert_eq!(ours.statistics.entries, 192, "{what}");
        let (branches, runs) = sums(&ours);
        assert_eq!((branches.len(), runs.len()), (3, 3), "{what}");
        let total: u64 = branches.iter().map(|branch| branch.2).sum();
        if let Some(known) = &known {
            let before: u64 = known.0.iter().map(|branch| branch.2).sum();
            assert_eq!(total, before, "{what}");
        }
        known = Some((branches, runs));
    }
}

/// Counters follow the stack: [`perf`] 6.9 and later.
#[test]
fn a_stack_with_counters_is_read_up_to_them() {
    use recorder::*;
    let mut with = begin(Event::stacks(BRANCH_COUNTERS));
    let mut without = begin(Event::stacks(0));
    for i in 0..4 {
        let branches = stack(32, false);
        with.stack(PID, 2_000_000 + i, START, &branches, &[0xff; 32]);
        without.stack(PID, 2_000_000 + i, START, &branches, &[]);
    }
    let options = Options::default();
    assert_eq!(
        sums(&aggregate(&with.finish(false), &options)),
        sums(&aggregate(&without.finish(false), &options))
    );
}

/// LbrExtV2 records branches of a path that was given up.
#[test]
fn branches_of_a_wrong_path_are_left_out_unless_all_is_counted_as_perf2bolt_counts() {
    const WRONG_PATH: u64 = 1;
    let mut branches = stack(9, true);
    let wrong = Branch {
        from: START + 0x1010,
        to: START + 0x3000,
        flags: flags(false, 1, 1, WRONG_PATH, 0, 1),
    };
    branches.insert(4, wrong);
    let mut recorder = begin(Event::stacks(recorder::BRANCH_TYPE_SAVE));
    recorder.stack(PID, 2_000_000, START + 0x1000, &branches, &[]);
    recorder.exits(PID, 9_000_000);
    let bytes = recorder.finish(false);
    let all = sums(&same_as_perf_script(&recorder, "all"));
    assert!(all.0.iter().any(|branch| branch.1 == 0x3000), "{all:?}");
    let even = Options {
        even: true,
        ..Options::default()
    };
    let profile = aggregate(&bytes, &even);
    let (branches, runs) = sums(&profile);
    assert!(branches.iter().all(|branch| branch.1 != 0x3000));
    assert_eq!(runs.iter().map(|run| run.2).sum::<u64>(), 8);
    assert_eq!(profile.statistics.wrong_path, 1);
}

/// A kernel's branch, and an interrupt of which a user may see one end.
#[test]
fn branches_of_the_kernel_are_left_out_and_ends_that_are_hidden_are_outside() {
    const KERNEL: u64 = 0xffff_8000_8000_0000;
    let branch = |from: u64, to: u64| Branch {
        from,
        to,
        flags: flags(false, 1, 12, 0, 0, 1),
    };
    let branches = [
        branch(START + 0x1030, START + 0x1000),
        branch(KERNEL + 0x100, START + 0x1020),
        branch(KERNEL + 0x40, KERNEL + 0x80),
        branch(START + 0x101c, KERNEL),
        branch(START + 0x1040, START + 0x1010),
        branch(START + 0x1050, 0),
        branch(0, START + 0x1048),
    ];
    let mut recorder = begin(Event::stacks(0));
    recorder.stack(PID, 2_000_000, START + 0x1000, &branches, &[]);
    recorder.exits(PID, 9_000_000);
    let ours = same_as_perf_script(&recorder, "kernel");
    let (branches, runs) = sums(&ours);
    assert_eq!(branches.len(), 4, "{branches:?}");
    assert_eq!(runs, [(0x1010, 0x1030, 1), (0x1048, 0x1050, 1)]);
}

/// Android's simpleperf has records from number 32,768 on and features from 128 on of its own; what it shares with
/// perf is the same.
#[test]
fn a_recording_of_simpleperf_is_read_without_what_only_android_knows() {
    let record = |android: bool| {
        let mut recorder = begin(Event::stacks(0));
        for i in 0..12 {
            if android {
                // Kernel symbols, files, symbols, event ids, call chains, debug information.
                let body: Vec<u8> = (0..40 + 8 * i as u8).collect();
                recorder.record(32_769 + i as u32 % 9, 0xffff, &body);
            }
            recorder.stack(PID, 2_000_000 + i, START + 0x1000, &stack(16, false), &[]);
        }
        recorder.exits(PID, 9_000_000);
        recorder
    };
    let options = Options::default();
    let plain = aggregate(&record(false).finish(false), &options);
    let (file, meta) = (b"\x05\0\0\0/app\0", b"simpleperf_version\x001.build.1\0");
    let bytes = record(true).with_features(&[file, meta]);
    let ours = aggregate(&bytes, &options);
    assert_eq!(sums(&ours), sums(&plain));
    assert_eq!(ours.statistics, plain.statistics);
    assert_eq!(ours.events, plain.events);
}

/// `perf script --itrace=i…il -F +brstack` makes samples with stacks of a trace of Intel PT or CoreSight: they are
/// those of a recording with the same stacks.
#[test]
fn samples_that_perf_makes_of_a_trace_are_those_of_a_recording_with_the_same_stacks() {
    let mut recorder = begin(Event::stacks(0));
    let mut text = mapping_line();
    for i in 0..20u64 {
        let branches = stack(8 + i % 3, false);
        recorder.stack(PID, 2_000_000_000 + i, START + 0x1000, &branches, &[]);
        let entries: Vec<String> = branches
            .iter()
            .map(|branch| {
                let missed = if branch.flags & 1 != 0 { 'M' } else { 'P' };
                format!("{:#x}/{:#x}/{missed}/-/-/0", branch.from, branch.to)
            })
            .collect();
        // Decoded, and as perf prints such an event by itself: name, process, processor, time, period, event,
        // instruction.
        text += &format!(
            "program {PID} [003]     2.{i:09}:        100 instructions:u:  {:16x} {}\n",
            START + 0x1000,
            entries.join(" ")
        );
    }
    let options = Options::default();
    let ours = aggregate(&recorder.finish(false), &options);
    let theirs = of_text(&text, &options);
    assert_eq!(sums(&theirs), sums(&ours));
    assert_eq!(theirs.statistics.samples, 20);
    assert!(sums(&ours).1.len() > 2, "{ours:?}");
}

/// Clocks that lie: a sample from before its program was mapped is counted and is in no file; nothing else is lost.
#[test]
fn samples_with_impossible_times_are_counted() {
    let mut recorder = begin(Event::stacks(0));
    let branches = stack(3, false);
    for time in [0, 999_999, 1_000_000, 5_000_000, u64::MAX - 1, u64::MAX] {
        recorder.stack(PID, time, START + 0x1000, &branches, &[]);
    }
    let ours = aggregate(&recorder.finish(false), &Options::default());
    let counted: u64 = sums(&ours).0.iter().map(|branch| branch.2).sum();
    assert_eq!(ours.statistics.samples, 6);
    assert_eq!(counted + ours.statistics.outside, 6 * 3);
    // Mappings end before the last time there is.
    assert_eq!(ours.statistics.outside, 3 * 3, "{:?}", ours.statistics);
}

/// Mappings whose ends and offsets do not fit into 64 bits, and stacks that say that they are longer than their record.
#[test]
fn sizes_that_overflow_are_refused_or_left_out() {
    let options = Options::default();
    let name = Path::new("perf.data");
    for (start, len, offset) in [
        (START, u64::MAX, 0),
        (u64::MAX - 10, 100, 0),
        (START, 0x10000, u64::MAX - 0x10),
        (0, u64::MAX, u64::MAX),
    ] {
        let mut recorder = Recorder::new(Event::stacks(0), "aarch64");
        recorder.runs(PID, "/nowhere/program", start, len, offset, 1);
        recorder.stack(PID, 2, START + 0x1000, &stack(3, false), &[]);
        let ours = aggregate(&recorder.finish(false), &options);
        assert_eq!(
            ours.statistics.samples, 1,
            "{start:#x} {len:#x} {offset:#x}"
        );
    }
    for entries in [4, 1 << 61, u64::MAX] {
        let mut recorder = begin(Event::stacks(0));
        let mut body: Vec<u8> = [77, START]
            .iter()
            .flat_map(|word: &u64| word.to_le_bytes())
            .collect();
        body.extend([PID.to_le_bytes(), PID.to_le_bytes()].concat());
        for word in [2_000_000, 0, entries, 1, 2, 3] {
            body.extend(u64::to_le_bytes(word));
        }
        recorder.record(9, 2, &body);
        let bytes = recorder.finish(false);
        let read = PerfData::new(name, &bytes).and_then(|data| data.aggregate(name, &options));
        let said = read.expect_err("a stack that is too long").to_string();
        assert!(said.starts_with("perf.data at offset 0x"), "{said}");
    }
}
