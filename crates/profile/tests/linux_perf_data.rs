//! perf.data against another reader (`linux-perf-data`): recordings written byte by byte by [`recorder`], and, where
//! perf may record, real ones as a file and through a pipe. What that reader has no use for (branch stacks, trace
//! data) is compared with perf itself in the tests beside this one.

mod recorder;

use std::io::{Cursor, Read};
use std::path::Path;
use std::process::{Command, Stdio};

use linux_perf_data::linux_perf_event_reader::EventRecord;
use linux_perf_data::{PerfFileReader, PerfFileRecord};
use postlink_profile::Source;
use postlink_profile::perf_data::PerfData;

use recorder::{Branch, Event, Recorder};

/// Process, time, event, instruction and return addresses of a sample.
type Seen = (Option<i32>, u64, String, Option<u64>, Vec<u64>);

/// Marks in call chains begin here: kernel, user, guest.
const MARKS: u64 = -4095i64 as u64;

/// The samples of a recording as the other reader has them, in a fixed order, and how many mappings of code there are.
fn theirs<R: Read>(reader: PerfFileReader<R>) -> (Vec<Seen>, usize) {
    let PerfFileReader {
        mut perf_file,
        mut record_iter,
    } = reader;
    let (mut samples, mut mappings) = (Vec::new(), 0);
    loop {
        let names: Vec<String> = perf_file
            .event_attributes()
            .iter()
            .map(|a| a.name().unwrap_or_default().to_owned())
            .collect();
        let Some(record) = record_iter.next_record(&mut perf_file).unwrap() else {
            break;
        };
        let PerfFileRecord::EventRecord { attr_index, record } = record else {
            continue;
        };
        match record.parse().unwrap() {
            EventRecord::Sample(sample) => {
                let chain = sample.callchain.map_or(Vec::new(), |chain| {
                    (0..chain.len()).filter_map(|i| chain.get(i)).collect()
                });
                samples.push((
                    sample.pid,
                    sample.timestamp.unwrap_or_default(),
                    names[attr_index].clone(),
                    sample.ip,
                    chain.into_iter().filter(|ip| *ip < MARKS).collect(),
                ));
            }
            EventRecord::Mmap2(mapping) => mappings += usize::from(mapping.protection & 4 != 0),
            _ => {}
        }
    }
    samples.sort();
    (samples, mappings)
}

fn ours(bytes: &[u8]) -> Vec<Seen> {
    let name = Path::new("perf.data");
    let data = PerfData::new(name, bytes).expect("a recording");
    let mut samples = Vec::new();
    data.for_each_sample(name, |sample| {
        samples.push((
            sample.pid,
            sample.time,
            String::from_utf8_lossy(&sample.event).into_owned(),
            sample.ip,
            sample.callchain.clone(),
        ));
    })
    .expect("whole samples");
    samples.sort();
    samples
}

fn read(bytes: &[u8], pipe: bool) -> (Vec<Seen>, usize) {
    if pipe {
        theirs(PerfFileReader::parse_pipe(bytes).unwrap())
    } else {
        theirs(PerfFileReader::parse_file(Cursor::new(bytes)).unwrap())
    }
}

#[test]
fn recordings_written_byte_by_byte_are_read_as_the_other_reader_does() {
    for pipe in [false, true] {
        let mut recorder = Recorder::new(Event::stacks(0), "x86_64");
        for pid in [11, 12, 13] {
            let start = 0x5555_0000_0000 + u64::from(pid) * 0x10_0000;
            recorder.runs(pid, "/nowhere/program", start, 0x10000, 0, 1_000_000);
            for i in 0..100 {
                let branch = Branch {
                    from: start + 0x100 + i,
                    to: start + 0x40,
                    flags: 0,
                };
                recorder.stack(pid, 2_000_000 + i * 1000, start + 0x48, &[branch], &[]);
            }
        }
        let bytes = recorder.finish(pipe);
        let (samples, mappings) = read(&bytes, pipe);
        assert_eq!((samples.len(), mappings), (300, 3));
        let known = ours(&bytes);
        if pipe {
            // Names of events are in no record of this one.
            let nameless = |list: Vec<Seen>| -> Vec<_> {
                let parts = list.into_iter();
                parts
                    .map(|(pid, time, _, ip, chain)| (pid, time, ip, chain))
                    .collect()
            };
            assert_eq!(nameless(known), nameless(samples));
        } else {
            assert_eq!(known, samples);
        }
    }
}

#[test]
fn real_recordings_are_read_as_the_other_reader_does() {
    let dir = tempfile::tempdir().unwrap();
    for (options, pipe) in [
        (&["-e", "cpu-clock:u", "-g"][..], false),
        (&["-e", "cpu-clock:u,page-faults:u"], false),
        (&["-e", "cpu-clock:u,page-faults:u", "-g"], true),
    ] {
        let path = dir.path().join("perf.data");
        let mut command = Command::new("perf");
        command.args(["record", "-q", "-F", "1999"]).args(options);
        command.args(["-o", if pipe { "-" } else { path.to_str().unwrap() }]);
        command.args([
            "sh",
            "-c",
            "for i in 1 2 3; do (head -c 3000000 /dev/urandom | sort | cksum >/dev/null) & done; wait",
        ]);
        let output = command.stderr(Stdio::null()).stdin(Stdio::null()).output();
        let Ok(output) = output
            .as_ref()
            .map_err(|_| ())
            .and_then(|o| if o.status.success() { Ok(o) } else { Err(()) })
        else {
            eprintln!("SKIPPED: perf cannot record here");
            return;
        };
        if pipe {
            std::fs::write(&path, &output.stdout).unwrap();
        }
        let source = Source::open(&path).unwrap();
        let (samples, mappings) = read(&source, pipe);
        assert!(
            samples.len() > 20 && mappings > 3,
            "{} samples, {mappings} mappings",
            samples.len()
        );
        assert_eq!(ours(&source), samples, "{options:?}");
    }
}
