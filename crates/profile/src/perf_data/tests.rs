//! Files made here byte by byte. Real ones, and perf as the judge, are in `tests/perf.rs` of the crate.

use super::*;
use crate::address::Place;

/// Builds a recording.
struct Builder {
    pipe: bool,
    records: Vec<u8>,
}

const SAMPLE_TYPE: u64 =
    attr::IP | attr::TID | attr::TIME | attr::CALLCHAIN | attr::BRANCH_STACK | attr::IDENTIFIER;

fn attribute() -> Vec<u8> {
    let mut out = vec![0; 112];
    out[4] = 112;
    out[24..32].copy_from_slice(&SAMPLE_TYPE.to_le_bytes());
    out[40..48].copy_from_slice(&(1u64 << 18 | 1 << 5).to_le_bytes());
    out[72..80].copy_from_slice(&(1u64 << 17).to_le_bytes());
    out
}

impl Builder {
    fn new(pipe: bool) -> Builder {
        let mut builder = Builder {
            pipe,
            records: Vec::new(),
        };
        if pipe {
            let body: Vec<u8> = attribute().into_iter().chain(77u64.to_le_bytes()).collect();
            builder.record(64, 0, &body);
        }
        builder
    }

    fn record(&mut self, kind: u32, misc: u16, body: &[u8]) {
        self.records.extend(kind.to_le_bytes());
        self.records.extend(misc.to_le_bytes());
        self.records.extend((8 + body.len() as u16).to_le_bytes());
        self.records.extend(body);
    }

    /// With identification: process, time, id.
    fn side(&mut self, kind: u32, misc: u16, words: &[u32], longs: &[u64], rest: &[u8], time: u64) {
        let mut body: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        body.extend(longs.iter().flat_map(|word| word.to_le_bytes()));
        body.extend(rest);
        body.resize(body.len().next_multiple_of(8), 0);
        body.extend([0; 8]);
        body.extend(time.to_le_bytes());
        body.extend(77u64.to_le_bytes());
        self.record(kind, misc, &body);
    }

    fn map(&mut self, pid: u32, start: u64, len: u64, offset: u64, path: &str, time: u64) {
        let mut rest = vec![3, 0, 0, 0, 0xaa, 0xbb, 0xcc];
        rest.resize(32, 0);
        rest.extend(path.bytes());
        rest.push(0);
        self.side(10, 1 << 14, &[pid, pid], &[start, len, offset], &rest, time);
    }

    fn sample(&mut self, pid: u32, time: u64, chain: &[u64], branches: &[(u64, u64, u64)]) {
        let mut body: Vec<u8> = [77u64, chain[0]]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        body.extend(pid.to_le_bytes());
        body.extend(pid.to_le_bytes());
        let mut words = vec![time, chain.len() as u64 + 1, u64::MAX - 511];
        words.extend(chain);
        words.extend([branches.len() as u64, 0]);
        words.extend(
            branches
                .iter()
                .flat_map(|&(from, to, flags)| [from, to, flags]),
        );
        body.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        self.record(9, 2, &body);
    }

    fn finish(&self) -> Vec<u8> {
        let mut out = b"PERFILE2".to_vec();
        let mut word = |value: u64| out.extend(value.to_le_bytes());
        if self.pipe {
            word(16);
        } else {
            let data = 104 + 8 + 128;
            [
                104,
                128,
                112,
                128,
                data,
                self.records.len() as u64,
                0,
                0,
                0,
                0,
                0,
                0,
            ]
            .into_iter()
            .for_each(&mut word);
            word(77);
            out.extend(attribute());
            out.extend(104u64.to_le_bytes());
            out.extend(8u64.to_le_bytes());
        }
        out.extend(&self.records);
        out
    }
}

fn recording(pipe: bool) -> Vec<u8> {
    let mut builder = Builder::new(pipe);
    builder.sample(
        5,
        30,
        &[0x40_1010],
        &[(0x40_1010, 0x40_1020, 1), (0x40_1030, 0x40_1008, 2)],
    );
    builder.map(5, 0x40_1000, 0x1000, 0x1000, "/bin/five", 10);
    builder.side(7, 0, &[6, 5, 6, 5], &[20], &[], 20);
    builder.sample(6, 25, &[0x40_1040], &[(0x40_1010, 0x40_1020, 0)]);
    builder.side(3, 1 << 13, &[6, 6], &[], b"six\0", 40);
    builder.map(6, 0x40_0000, 0x2000, 0, "/bin/six", 41);
    builder.sample(6, 50, &[0x40_1040], &[(0x40_1010, 0x40_1020, 0)]);
    builder.sample(6, 51, &[0x40_1040, 0x40_1050], &[]);
    builder.side(2, 0, &[], &[77, 11], &[], 60);
    builder.record(71, 0, &[16, 0, 0, 0, 0, 0, 0, 0]);
    builder.records.extend([0xff; 16]);
    builder.sample(6, 52, &[0xffff_8000_0000_0000], &[]);
    builder.finish()
}

#[test]
fn samples_are_placed_by_process_and_time_in_file_and_pipe_mode() {
    for pipe in [false, true] {
        let bytes = recording(pipe);
        let name = Path::new("x");
        let data = PerfData::new(name, &bytes).unwrap();
        assert_eq!(data.attributes()[0].name, b"cycles:u");
        let mut chains = Vec::new();
        data.for_each_sample(name, |sample| {
            chains.push((sample.pid, sample.callchain.clone()))
        })
        .unwrap();
        assert_eq!(chains[3], (Some(6), vec![0x40_1040, 0x40_1050]));
        let profile = data.aggregate(name, &Options::default()).unwrap();
        let paths: Vec<&[u8]> = profile
            .modules()
            .iter()
            .map(|module| &module.path[..])
            .collect();
        assert_eq!(paths, [&b"/bin/five"[..], b"/bin/six"]);
        assert_eq!(profile.modules()[0].build_id, [0xaa, 0xbb, 0xcc]);
        let place = |module: u32, address| Place {
            module: crate::address::ModuleId(module),
            address,
        };
        let branches: Vec<_> = profile
            .branches()
            .into_iter()
            .map(|(key, counts)| (key, counts.count, counts.mispredictions))
            .collect();
        assert_eq!(
            branches,
            [
                ((place(0, 0x1010), place(0, 0x1020)), 2, 1),
                ((place(0, 0x1030), place(0, 0x1008)), 1, 0),
                ((place(1, 0x1010), place(1, 0x1020)), 1, 0),
            ]
        );
        assert_eq!(profile.fall_throughs().len(), 1);
        assert_eq!(profile.samples(), [(place(1, 0x1040), 1)]);
        assert_eq!(
            (
                profile.statistics.samples,
                profile.statistics.lost,
                profile.statistics.outside
            ),
            (5, 11, 1)
        );
    }
}

/// Arm's branch record buffer keeps branches of which it knows one end alone: the other is 0.
#[test]
fn branches_with_one_end_count_for_it_and_a_number_used_again_is_another_process() {
    for pipe in [false, true] {
        let mut builder = Builder::new(pipe);
        builder.map(5, 0x40_1000, 0x1000, 0x1000, "/bin/five", 10);
        let stack = [
            (0, 0x40_1020, 2),
            (0x40_1030, 0, 2),
            (0x40_1040, 0x40_1008, 2),
        ];
        builder.sample(5, 20, &[0x40_1010], &stack);
        builder.side(4, 0, &[5, 1, 5, 1], &[25], &[], 25);
        builder.side(7, 0, &[5, 9, 5, 9], &[30], &[], 30);
        builder.sample(5, 40, &[0x40_1010], &stack[2..]);
        let bytes = builder.finish();
        let name = Path::new("x");
        let data = PerfData::new(name, &bytes).unwrap();
        let profile = data.aggregate(name, &Options::default()).unwrap();
        let place = |address| Place {
            module: crate::address::ModuleId(0),
            address,
        };
        let branches: Vec<_> = profile.branches().into_iter().map(|(key, _)| key).collect();
        for key in [
            (Place::OUTSIDE, place(0x1020)),
            (place(0x1030), Place::OUTSIDE),
            (place(0x1040), place(0x1008)),
        ] {
            assert!(branches.contains(&key), "{key:?}: {branches:?}");
        }
        assert_eq!(branches.len(), 3);
        // From where the oldest led to where the next one left.
        assert_eq!(profile.fall_throughs().len(), 1);
        assert_eq!(profile.statistics.outside, 1);
    }
}

#[test]
fn what_cannot_be_read_is_said() {
    let error = |bytes: &[u8]| {
        PerfData::new(Path::new("x"), bytes)
            .unwrap_err()
            .to_string()
    };
    assert!(error(b"2ELIFREP").contains("big-endian"));
    assert!(error(b"\x7fELF").contains("starts with \"\\x7fELF\", must be \"PERFILE2\""));
    assert_eq!(
        error(b"PERFILE2"),
        "x at offset 0x8: the file ends after 8 bytes, in its header"
    );
    let mut builder = Builder::new(true);
    builder.record(81, 0, &[0; 8]);
    let said = error(&builder.finish());
    assert!(
        said.contains("cannot be unpacked after 0 of their 8 bytes"),
        "{said}"
    );
    let mut bytes = recording(false);
    bytes[104 + 8 + 128 + 6] = 4;
    bytes[104 + 8 + 128 + 7] = 0;
    assert!(
        error(&bytes).contains("record of type 9 and 4 bytes"),
        "{}",
        error(&bytes)
    );
}

#[test]
fn a_recording_that_was_cut_off_is_read_as_far_as_it_goes() {
    let mut bytes = recording(false);
    bytes[48..56].fill(0);
    bytes.truncate(bytes.len() - 20);
    let data = PerfData::new(Path::new("x"), &bytes).unwrap();
    assert_eq!(
        data.aggregate(Path::new("x"), &Options::default())
            .unwrap()
            .statistics
            .samples,
        4
    );
}

#[test]
fn any_bytes_are_read_or_refused() {
    let good = [recording(false), recording(true)];
    arbtest::arbtest(|u| {
        let mut bytes = u.choose(&good)?.clone();
        for _ in 0..u.int_in_range(0..=6)? {
            let at = u.choose_index(bytes.len())?;
            bytes[at] = if u.arbitrary()? { u.arbitrary()? } else { 0xff };
        }
        bytes.truncate(u.int_in_range(0..=bytes.len() * 3)?);
        let name = Path::new("x");
        if let Ok(data) = PerfData::new(name, &bytes)
            && let Ok(profile) = data.aggregate(name, &Options::default())
        {
            let mut samples = 0;
            data.for_each_sample(name, |_| samples += 1).unwrap();
            assert_eq!(profile.statistics.samples, samples);
        }
        Ok(())
    });
}
