//! What Android's `simpleperf report-sample --protobuf` writes: samples of a recording, with files for their addresses.
//!
//! | bytes | |
//! |---|---|
//! | 10 | `SIMPLEPERF` |
//! | 2 | version: 1 |
//! | 4, then as many | size and bytes of a message `Record`; one after the other |
//! | 4 | 0: the end |
//!
//! | message | fields that are read |
//! |---|---|
//! | `Record` | one of 1 `sample`, 2 `lost`, 3 `file`, 4 `thread`, 5 `meta_info` |
//! | `Sample` | 2 `thread_id`, 3 `callchain`, innermost first, 5 `event_type_id` |
//! | `CallChainEntry` | 1 `vaddr_in_file`, 2 `file_id` |
//! | `LostSituation` | 2 `lost_count` |
//! | `File` | 1 `id`, 2 `path` |
//! | `Thread` | 1 `thread_id`, 2 `process_id` |
//! | `MetaInfo` | 1 `event_type` |
//!
//! Addresses are those of the file as it was linked. Files and threads may come after the samples that name them.
//! Build-ids are not in it. The recording itself (`simpleperf record`) is a `perf.data`, which [`crate::perf_data`]
//! reads; so is what is recorded in app profilers with it.
//!
//! Source: Android's `platform/system/extras`, `simpleperf/cmd_report_sample.proto`.

use std::path::Path;

use prost::Message;
use rustc_hash::FxHashMap;

use super::whole;
use crate::Error;
use crate::address::{AddressKind, AddressProfile, Collector, Module, ModuleId, Place};
use crate::samples::Options;
use crate::source::Source;

/// How files begin.
pub(super) const MAGIC: &[u8] = b"SIMPLEPERF";
const VERSION: u16 = 1;

#[derive(Clone, PartialEq, Message)]
struct Record {
    #[prost(message, optional, tag = "1")]
    sample: Option<Sample>,
    #[prost(message, optional, tag = "2")]
    lost: Option<LostSituation>,
    #[prost(message, optional, tag = "3")]
    file: Option<File>,
    #[prost(message, optional, tag = "4")]
    thread: Option<Thread>,
    #[prost(message, optional, tag = "5")]
    meta_info: Option<MetaInfo>,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(int32, tag = "2")]
    thread_id: i32,
    #[prost(message, repeated, tag = "3")]
    callchain: Vec<CallChainEntry>,
    #[prost(uint32, tag = "5")]
    event_type_id: u32,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct CallChainEntry {
    #[prost(uint64, tag = "1")]
    vaddr_in_file: u64,
    #[prost(uint32, tag = "2")]
    file_id: u32,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct LostSituation {
    #[prost(uint64, tag = "2")]
    lost_count: u64,
}

#[derive(Clone, PartialEq, Message)]
struct File {
    #[prost(uint32, tag = "1")]
    id: u32,
    #[prost(bytes = "vec", tag = "2")]
    path: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Thread {
    #[prost(uint32, tag = "1")]
    thread_id: u32,
    #[prost(uint32, tag = "2")]
    process_id: u32,
}

#[derive(Clone, PartialEq, Message)]
struct MetaInfo {
    #[prost(bytes = "vec", repeated, tag = "1")]
    event_type: Vec<Vec<u8>>,
}

/// Reads a file.
pub fn read(path: &Path, options: &Options) -> Result<AddressProfile, Error> {
    read_bytes(path, &Source::open(path)?, options)
}

/// Where an innermost entry is, of which event and thread; and how often.
type Counts = FxHashMap<(u32, u64, u32, i32), u64>;

/// Reads the contents of a file; `name` is what errors call it.
pub fn read_bytes(name: &Path, bytes: &[u8], options: &Options) -> Result<AddressProfile, Error> {
    let mut counts = Counts::default();
    let mut files: FxHashMap<u32, Vec<u8>> = FxHashMap::default();
    let mut processes: FxHashMap<i32, i32> = FxHashMap::default();
    let mut events: Vec<Vec<u8>> = Vec::new();
    let mut sum = Collector::default();
    for_each_record(name, bytes, |record| {
        if let Some(sample) = record.sample
            && let Some(entry) = sample.callchain.first()
        {
            let key = (
                entry.file_id,
                entry.vaddr_in_file,
                sample.event_type_id,
                sample.thread_id,
            );
            *counts.entry(key).or_default() += 1;
        }
        if let Some(lost) = record.lost {
            sum.statistics.lost = lost.lost_count;
        }
        if let Some(file) = record.file {
            files.insert(file.id, file.path);
        }
        if let Some(thread) = record.thread {
            processes.insert(thread.thread_id as i32, thread.process_id as i32);
        }
        if let Some(info) = record.meta_info {
            events = info.event_type;
        }
    })?;
    let mut numbers: Vec<(u32, Vec<u8>)> = files.into_iter().collect();
    numbers.sort_unstable();
    let modules: Vec<Module> = numbers
        .iter()
        .map(|(_, path)| Module {
            path: path.clone(),
            build_id: Vec::new(),
            kind: AddressKind::LinkTime,
        })
        .collect();
    for ((file, address, event, thread), count) in counts {
        let event = usize::try_from(event)
            .ok()
            .and_then(|event| events.get(event));
        let event = event.map_or(&b""[..], Vec::as_slice);
        let process = processes.get(&thread).copied().unwrap_or(thread);
        let wanted = |name: &String| memchr::memmem::find(event, name.as_bytes()).is_some();
        if !options.pids.is_empty() && !options.pids.contains(&process)
            || !options.events.is_empty() && !options.events.iter().any(wanted)
        {
            continue;
        }
        if !event.is_empty() {
            sum.events.insert(event.to_vec());
        }
        let statistics = &mut sum.statistics;
        statistics.samples = statistics.samples.saturating_add(count);
        let module = numbers.binary_search_by_key(&file, |item| item.0);
        match module.ok().and_then(|module| u32::try_from(module).ok()) {
            Some(module) => sum.sample(
                Place {
                    module: ModuleId(module),
                    address,
                },
                count,
            ),
            None => statistics.outside = statistics.outside.saturating_add(count),
        }
    }
    Ok(sum.finish(&modules))
}

fn for_each_record(name: &Path, bytes: &[u8], mut each: impl FnMut(Record)) -> Result<(), Error> {
    let cut = |expected: usize| Error::CutShort {
        path: name.to_owned(),
        what: "a record of simpleperf's report".to_owned(),
        expected: expected as u64,
        found: bytes.len() as u64,
    };
    let Some((version, rest)) = bytes
        .strip_prefix(MAGIC)
        .and_then(<[u8]>::split_first_chunk)
    else {
        return Err(cut(MAGIC.len() + 2));
    };
    let version = u16::from_le_bytes(*version);
    if version != VERSION {
        return Err(Error::at_byte(
            name,
            MAGIC.len() as u64,
            format!("version {version} of simpleperf's report, must be {VERSION}"),
        ));
    }
    let mut rest = rest;
    loop {
        let at = bytes.len() - rest.len();
        let Some((size, after)) = rest.split_first_chunk() else {
            return Err(cut(at + 4));
        };
        let size = u32::from_le_bytes(*size) as usize;
        if size == 0 {
            return Ok(());
        }
        let Some((message, after)) = after.split_at_checked(size) else {
            return Err(cut(at.saturating_add(4).saturating_add(size)));
        };
        let record = Record::decode(message).map_err(|error| {
            whole(
                name,
                format!("the record of {size} bytes at offset {at:#x} cannot be decoded: {error}"),
            )
        })?;
        each(record);
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(records: &[Record]) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend(VERSION.to_le_bytes());
        for record in records {
            let message = record.encode_to_vec();
            out.extend((message.len() as u32).to_le_bytes());
            out.extend(message);
        }
        out.extend(0u32.to_le_bytes());
        out
    }

    fn sample(file_id: u32, vaddr_in_file: u64, thread_id: i32, event: u32) -> Record {
        Record {
            sample: Some(Sample {
                thread_id,
                callchain: vec![
                    CallChainEntry {
                        vaddr_in_file,
                        file_id,
                    },
                    CallChainEntry {
                        vaddr_in_file: 1,
                        file_id: 0,
                    },
                ],
                event_type_id: event,
            }),
            ..Record::default()
        }
    }

    /// Files, threads and events come after the samples, as simpleperf writes them.
    fn records() -> Vec<Record> {
        let named = |id, path: &str| Record {
            file: Some(File {
                id,
                path: path.into(),
            }),
            ..Record::default()
        };
        vec![
            sample(1, 0x1234, 11, 0),
            sample(1, 0x1234, 12, 0),
            sample(0, 0x10, 11, 1),
            sample(9, 0x10, 11, 0),
            Record {
                lost: Some(LostSituation { lost_count: 5 }),
                ..Record::default()
            },
            named(0, "/system/lib64/libc.so"),
            named(1, "/data/app/libapp.so"),
            Record {
                thread: Some(Thread {
                    thread_id: 12,
                    process_id: 11,
                }),
                ..Record::default()
            },
            Record {
                meta_info: Some(MetaInfo {
                    event_type: vec![b"cpu-cycles".to_vec(), b"cpu-clock".to_vec()],
                }),
                ..Record::default()
            },
        ]
    }

    #[test]
    fn samples_are_of_files_that_come_later() {
        let bytes = file(&records());
        let name = Path::new("report");
        let profile = read_bytes(name, &bytes, &Options::default()).unwrap();
        let paths: Vec<&[u8]> = profile.modules().iter().map(|m| &m.path[..]).collect();
        assert_eq!(
            paths,
            [&b"/data/app/libapp.so"[..], b"/system/lib64/libc.so"]
        );
        let samples: Vec<(u32, u64, u64)> = profile
            .samples()
            .iter()
            .map(|(place, count)| (place.module.0, place.address, *count))
            .collect();
        assert_eq!(samples, [(0, 0x1234, 2), (1, 0x10, 1)]);
        assert_eq!(
            (profile.statistics.samples, profile.statistics.outside),
            (4, 1)
        );
        assert_eq!(profile.statistics.lost, 5);
        let only = Options {
            pids: vec![11],
            events: vec!["cycles".into()],
            ..Options::default()
        };
        let profile = read_bytes(name, &bytes, &only).unwrap();
        assert_eq!(profile.samples().len(), 1);
        assert_eq!(profile.samples()[0].1, 2);
    }

    #[test]
    fn cut_files_and_other_versions_are_refused() {
        let bytes = file(&records());
        for len in 0..bytes.len() {
            assert!(read_bytes(Path::new("r"), &bytes[..len], &Options::default()).is_err());
        }
        let mut other = bytes;
        other[10] = 2;
        let said = read_bytes(Path::new("r"), &other, &Options::default()).unwrap_err();
        assert_eq!(
            said.to_string(),
            "r at offset 0xa: version 2 of simpleperf's report, must be 1"
        );
    }
}
