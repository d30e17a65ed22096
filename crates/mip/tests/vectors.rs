//! The byte-exact examples of the format, and what must hold for everything that is read.

use std::path::Path;

use postlink_mip::merge::{Options, merge};
use postlink_mip::{
    Block, Edge, Function, InferredBlock, MovedCaller, Profile, Trace, Types, Width, create, map,
    mip, raw, yaml,
};
use postlink_profile::Weighted;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits
        .chunks(2)
        .map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap())
        .collect()
}

/// A function's blocks: where they begin, and whether they ran.
fn coverage(function: &Function) -> Vec<(u32, bool)> {
    let blocks = function.all_blocks();
    blocks.iter().map(|b| (b.offset, b.covered)).collect()
}

fn new_map() -> Vec<u8> {
    hex("FB4D4950 0800 1400 01000000 EFBEADDE
         A0FEFFFFFFFFFFFF 00000000 20000000
         A0FEFFFFFFFFFFFF 80FFFFFFFFFFFFFF
         10000000 15770E00 01000000 04000000
         03000000 666F6F 00
         79FEFFFFFFFFFFFF 68FFFFFFFFFFFFFF
         30000000 11110000 00000000
         04000000 6D61696E")
}

fn new_raw() -> Vec<u8> {
    hex("FB4D4950 0800 1100 01000000 EFBEADDE 00000000 00000000 00000000 20000000 00 FF")
}

fn profile_bytes(foo_ran: bool) -> Vec<u8> {
    let count = if foo_ran { "01" } else { "00" };
    hex(&format!(
        "FB4D4950 0800 0800 01000000 EFBEADDE 0000000000000000 00000000 20000000
         0200000000000000
         ACBD18DB4CC2F85C 2000000000000000 0001000000000000 10000000 15770E00 01000000 {count}000000
         {count}00000000000000 0000000000000000 04000000 00 00000000
         FAD58DE7366495DB 2100000000000000 1001000000000000 30000000 11110000 00000000 00000000
         0000000000000000 0000000000000000 00000000
         0200000000000000 666F6F00 6D61696E00"
    ))
}

fn merged(profile: &mut Profile, raws: &[(Vec<u8>, u64)]) -> Result<usize, String> {
    let dir = tempfile::tempdir().unwrap();
    let files: Vec<Weighted> = raws
        .iter()
        .enumerate()
        .map(|(n, (bytes, weight))| {
            let path = dir.path().join(n.to_string());
            std::fs::write(&path, bytes).unwrap();
            Weighted {
                path,
                weight: *weight,
            }
        })
        .collect();
    let options = Options {
        strict: true,
        traces: true,
    };
    merge(profile, &files, options)
        .map(|merged| merged.files)
        .map_err(|e| e.to_string().rsplit('/').next().unwrap().to_owned())
}

#[test]
fn a_map_and_a_raw_of_version_8_give_the_profile_of_the_vectors() {
    assert_eq!(new_map().len(), 108);
    let mut profile = create::read(Path::new("m"), &new_map()).unwrap();
    assert_eq!(mip::to_bytes(&profile), profile_bytes(false));
    assert_eq!(merged(&mut profile, &[(new_raw(), 1)]), Ok(1));
    assert_eq!(mip::to_bytes(&profile), profile_bytes(true));
    assert_eq!(profile_bytes(true).len(), 182);
    assert_eq!(
        mip::read(Path::new("p"), &profile_bytes(true)).unwrap(),
        profile
    );
    // Again: one more run, and coverage stays coverage.
    merged(&mut profile, &[(new_raw(), 1)]).unwrap();
    let foo = &profile.functions[0];
    assert_eq!((foo.raw_count, foo.call_count), (2, 1));
}

#[test]
fn a_map_is_written_as_it_was_read() {
    let map = map::read(Path::new("m"), &new_map()).unwrap();
    let mut expected = new_map();
    expected.resize(112, 0); // the last record's padding may be missing; we write it
    // The distance of the raw section from the map.
    assert_eq!(map.header.word as i64, -0x160);
    // The vector's records are not laid out for that distance, but say the same.
    let again = map::write(&map.profile, Width::Wide, map.header.word);
    assert_eq!(again.len(), expected.len());
    assert_eq!(
        map::read(Path::new("m"), &again).unwrap().profile,
        map.profile
    );
}

#[test]
fn maps_and_raws_of_version_7_are_read() {
    let old_map = hex("FB4D4950 0700 0200 01000000 EFBEADDE 00000000 18000000
         80FEFFFF 98FEFFFF 80FFFFFF 10000000 15770E00 01000000 04000000 03000000 666F6F 00 00000000
         98FEFFFF B1FEFFFF A8FFFFFF 30000000 11110000 00000000 04000000 6D61696E");
    assert_eq!(old_map.len(), 96);
    let old_raw = hex("FB4D4950 0700 0100 01000000 EFBEADDE 00000000 18000000 00 FF");
    let mut profile = create::read(Path::new("m"), &old_map).unwrap();
    merged(&mut profile, &[(old_raw, 1)]).unwrap();
    let mut expected = mip::read(Path::new("p"), &profile_bytes(true)).unwrap();
    expected.functions[0].raw_offset = 0x18;
    expected.functions[1].raw_offset = 0x19;
    assert_eq!(profile, expected);
}

#[test]
fn profiles_of_version_7_are_read() {
    let old = hex("FB4D4950 0700 0300 01000000 EFBEADDE 00000000 18000000
         0100000000000000
         ACBD18DB4CC2F85C 18000000 00FFFFFF 10000000 15770E00 01000000 01000000
         0100000000000000 0000000000000000 04000000 01 00000000
         0100000000000000 666F6F00");
    let profile = mip::read(Path::new("p"), &old).unwrap();
    let foo = &profile.functions[0];
    assert_eq!((foo.raw_offset, foo.address), (0x18, -0x100));
    assert_eq!(foo.name, b"foo");
    assert!(foo.blocks[0].covered);
}

/// A profile with everything in it.
fn everything(calls: bool, zero_filled: bool) -> Profile {
    let mut types = if calls {
        Types::CALL_GRAPH
    } else {
        Types::FUNCTION_COVERAGE
    };
    types = types
        .with(Types::BLOCK_COVERAGE)
        .with(Types::INFERRED_BLOCKS);
    if zero_filled {
        types = types.with(Types::ZERO_FILLED);
    }
    let function = |name: &str, raw_offset: u64, address: i64| Function {
        name: name.into(),
        signature: postlink_mip::hash::md5_64(name.as_bytes()),
        raw_offset,
        address,
        size: 64,
        cfg_signature: 5,
        ..Function::default()
    };
    let block = |offset| Block {
        offset,
        covered: false,
    };
    Profile {
        types,
        module_hash: 42,
        identity: 0,
        functions: vec![
            Function {
                blocks: vec![block(8), block(32)],
                inferred: vec![
                    InferredBlock {
                        offset: 16,
                        from: vec![1, 2],
                    },
                    InferredBlock {
                        offset: 48,
                        from: vec![0],
                    },
                ],
                ..function("alpha", 32, -4096)
            },
            function("beta", 44, -4032),
        ],
        traces: Vec::new(),
        callers: Vec::new(),
    }
}

/// Calls that are in another place in the program that ran.
const MOVED: [MovedCaller; 3] = [
    MovedCaller {
        ran: 0x8005,
        source: -4000,
    },
    MovedCaller {
        ran: 0x8006,
        source: i64::MAX,
    },
    MovedCaller {
        ran: i64::MAX,
        source: i64::MIN,
    },
];

/// The same profile with these.
fn with_moved(profile: Profile) -> Profile {
    Profile {
        types: profile.types.with(Types::MOVED_CALLERS),
        callers: MOVED.to_vec(),
        ..profile
    }
}

#[test]
fn all_that_version_9_has_is_read_as_it_was_written() {
    for calls in [false, true] {
        for zero_filled in [false, true] {
            let mut profile = everything(calls, zero_filled);
            for width in [Width::Wide, Width::Narrow] {
                let bytes = map::write(&profile, width, 0x4000);
                let read = map::read(Path::new("m"), &bytes).unwrap();
                assert_eq!(read.profile, profile);
                assert_eq!(map::write(&read.profile, width, read.header.word), bytes);
            }
            profile.identity = 99;
            profile.functions[1].edges = vec![
                Edge {
                    source: -4000,
                    weight: 7,
                },
                Edge {
                    source: -40,
                    weight: u64::MAX,
                },
            ];
            profile.traces = vec![Trace {
                key: 3,
                functions: vec![1, 0],
                weight: 2,
            }];
            let bytes = mip::to_bytes(&profile);
            assert_eq!(mip::read(Path::new("p"), &bytes).unwrap(), profile);
        }
    }
}

#[test]
fn blocks_without_counters_follow_from_those_with() {
    let mut profile = everything(false, true);
    let mut raw = raw::empty(&profile, Width::Wide, 0);
    assert_eq!(raw.len(), 45);
    raw[32] = 1; // alpha
    raw[34] = 1; // its second block with a counter
    merged(&mut profile, &[(raw, 1)]).unwrap();
    assert_eq!(
        coverage(&profile.functions[0]),
        [(0, true), (8, false), (16, true), (32, true), (48, true)]
    );
}

#[test]
fn an_entry_without_a_counter_follows_from_those_of_blocks_in_each_run() {
    for zero_filled in [false, true] {
        let mut profile = everything(false, zero_filled);
        let entry = InferredBlock {
            offset: 0,
            from: vec![1, 2],
        };
        profile.functions[0].inferred[1].from = vec![2];
        profile.functions[0].inferred.insert(0, entry);
        assert_eq!(profile.functions[0].block_count(), 5);
        let bytes = map::write(&profile, Width::Wide, 0x4000);
        assert_eq!(map::read(Path::new("m"), &bytes).unwrap().profile, profile);
        let run = |blocks: &[usize]| {
            let mut raw = raw::empty(&profile, Width::Wide, 0);
            for block in blocks {
                raw[32 + block] = u8::from(zero_filled);
            }
            raw
        };
        // Each run counts once, however many of its blocks ran.
        let raws = [(run(&[1]), 1), (run(&[1, 2]), 3), (run(&[]), 1)];
        merged(&mut profile, &raws).unwrap();
        let alpha = &profile.functions[0];
        assert_eq!((alpha.raw_count, alpha.call_count), (4, 1));
        assert!(alpha.is_covered() && !profile.functions[1].is_covered());
        assert_eq!(
            coverage(alpha),
            [(0, true), (8, true), (16, true), (32, true), (48, true)]
        );
    }
}

/// A raw in which functions were called so often, in that order.
fn calls(profile: &Profile, calls: &[(usize, u32)]) -> Vec<u8> {
    let mut raw = raw::empty(profile, Width::Wide, 0);
    for (time, (function, count)) in (1u32..).zip(calls) {
        let at = profile.functions[*function].raw_offset as usize;
        raw[at..at + 4].copy_from_slice(&count.to_le_bytes());
        raw[at + 4..at + 8].copy_from_slice(&time.to_le_bytes());
    }
    raw
}

#[test]
fn calls_and_first_calls_add_up_with_weights() {
    for zero_filled in [false, true] {
        let mut profile = everything(true, zero_filled);
        let one = calls(&profile, &[(0, 5), (1, 7)]);
        let two = calls(&profile, &[(1, 2)]);
        merged(&mut profile, &[(one, 1), (two, 10)]).unwrap();
        let [alpha, beta] = &profile.functions[..] else {
            panic!()
        };
        assert_eq!(
            (alpha.raw_count, alpha.call_count, alpha.order_sum),
            (1, 5, 1)
        );
        assert_eq!(
            (beta.raw_count, beta.call_count, beta.order_sum),
            (11, 27, 12)
        );
        let mut traces: Vec<(&[u32], u64)> = profile
            .traces
            .iter()
            .map(|trace| (&trace.functions[..], trace.weight))
            .collect();
        traces.sort_unstable();
        assert_eq!(traces, [(&[0, 1][..], 1), (&[1][..], 10)]);
    }
}

#[test]
fn sums_saturate() {
    let mut profile = everything(true, true);
    let raw = calls(&profile, &[(0, u32::MAX), (1, 2)]);
    merged(&mut profile, &[(raw.clone(), u64::MAX), (raw, 1 << 40)]).unwrap();
    let alpha = &profile.functions[0];
    assert_eq!((alpha.raw_count, alpha.call_count), (u32::MAX, u64::MAX));
    let mut coverage = everything(false, true);
    let mut raw = raw::empty(&coverage, Width::Wide, 0);
    raw[32] = 1;
    let raws = vec![(raw, u64::MAX); 600];
    merged(&mut coverage, &raws).unwrap();
    let alpha = &coverage.functions[0];
    assert_eq!((alpha.raw_count, alpha.call_count), (u32::MAX, 1));
}

#[test]
fn samples_of_return_addresses_become_edges() {
    let mut profile = everything(true, true);
    let mut raw = raw::empty(&profile, Width::Wide, 3);
    let slots = raw.len() - 3 * raw::SLOT;
    let mut put = |n: usize, callee: u32, source: i32, weight: u64| {
        let at = slots + n * raw::SLOT;
        raw[at..at + 4].copy_from_slice(&callee.to_le_bytes());
        raw[at + 4..at + 8].copy_from_slice(&source.to_le_bytes());
        raw[at + 8..at + 16].copy_from_slice(&weight.to_le_bytes());
    };
    put(0, 44, -4000, 6);
    put(2, 32, -4000, 1);
    // The older form: one call each, empty slots are all zeros or all ones.
    let mut header = postlink_mip::Header::new(
        postlink_mip::Kind::Samples,
        Some(Width::Wide),
        Types::RETURN_ADDRESS,
        42,
    );
    header.version = 8;
    let mut old = header.to_bytes().to_vec();
    for (callee, source) in [(44u32, -4000i32), (0, 0), (u32::MAX, -1), (77, 1)] {
        old.extend(callee.to_le_bytes());
        old.extend(source.to_le_bytes());
    }
    assert_eq!(merged(&mut profile, &[(raw, 2), (old, 1)]), Ok(2));
    let edges: Vec<Vec<(i64, u64)>> = profile
        .functions
        .iter()
        .map(|f| {
            f.edges
                .iter()
                .map(|edge| (edge.source, edge.weight))
                .collect()
        })
        .collect();
    assert_eq!(edges, [vec![(-4000, 2)], vec![(-4000, 13)]]);
}

#[test]
fn calls_that_are_in_another_place_are_read_as_they_were_written() {
    for callers in [&MOVED[..], &[]] {
        let profile = Profile {
            callers: callers.to_vec(),
            ..with_moved(everything(true, true))
        };
        for width in [Width::Wide, Width::Narrow] {
            let bytes = map::write(&profile, width, 0x4000);
            let read = map::read(Path::new("m"), &bytes).unwrap();
            assert_eq!(read.profile, profile);
        }
        let bytes = mip::to_bytes(&profile);
        assert_eq!(mip::read(Path::new("p"), &bytes).unwrap(), profile);
        let text = yaml::write(&profile, None);
        assert_eq!(
            yaml::read(Path::new("y"), text.as_bytes()).unwrap(),
            profile
        );
    }
    let text = yaml::write(&with_moved(everything(true, true)), None);
    for (from, to, said) in [
        ("0x8006", "0x8005", "two calls return to 0x8005"),
        ("0x8005", "0xFFFFFFFFFFFFFFFF", "in front of the program"),
        (", Moved Callers ]", " ]", "does not have"),
    ] {
        let error = yaml::read(Path::new("y"), text.replacen(from, to, 1).as_bytes());
        let error = error.unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn return_addresses_that_do_not_ascend_are_refused() {
    let bytes = mip::to_bytes(&with_moved(everything(true, true)));
    let at = bytes
        .windows(3)
        .rposition(|w| w == [0x85, 0x80, 0x02])
        .unwrap();
    let mut same = bytes.clone();
    same[at..at + 3].copy_from_slice(&[0x80, 0x80, 0x00]);
    let error = mip::read(Path::new("p"), &same).unwrap_err().to_string();
    assert!(error.contains("does not ascend"), "{error}");
    for len in at..bytes.len() {
        assert!(mip::read(Path::new("p"), &bytes[..len]).is_err(), "{len}");
    }
}

#[test]
fn samples_of_calls_in_another_place_become_edges_of_the_input() {
    let mut profile = with_moved(everything(true, true));
    let mut raw = raw::empty(&profile, Width::Wide, 4);
    let slots = raw.len() - 4 * raw::SLOT;
    // One in new code, the same one in old code, one that is not listed, one from outside.
    for (n, source, weight) in [(0, 0x8005, 64u64), (1, -4000, 1), (2, 0x9000, 2), (3, 0, 4)] {
        let at = slots + n * raw::SLOT;
        raw[at..at + 4].copy_from_slice(&44u32.to_le_bytes());
        raw[at + 4..at + 8].copy_from_slice(&i32::to_le_bytes(source));
        raw[at + 8..at + 16].copy_from_slice(&weight.to_le_bytes());
    }
    assert_eq!(merged(&mut profile, &[(raw, 2)]), Ok(1));
    let edges = profile.functions[1].edges.iter();
    let edges: Vec<(i64, u64)> = edges.map(|e| (e.source, e.weight)).collect();
    assert_eq!(edges, [(-4000, 130), (0, 8), (0x9000, 4)]);
    // Another program's list is refused.
    let mut other = profile.clone();
    other.callers.pop();
    let names = (Path::new("a"), Path::new("b"));
    let error = postlink_mip::merge::add_profile(&mut profile, &other, 1, names);
    let error = error.unwrap_err().to_string();
    assert!(error.contains('3') && error.contains('2'), "{error}");
}

#[test]
fn a_raw_of_another_build_is_refused_with_both_values() {
    let profile = create::read(Path::new("m"), &new_map()).unwrap();
    let refused = |at: usize, with: u8| {
        let mut raw = new_raw();
        raw[at] = with;
        merged(&mut profile.clone(), &[(raw, 1)]).unwrap_err()
    };
    assert_eq!(
        refused(12, 0),
        "0 at offset 0xc: the module hash is 0xDEADBE00, expected 0xDEADBEEF as in the profile: this is from another program, or from another build of it"
    );
    assert_eq!(
        refused(8, 3),
        "0 at offset 0x8: the profile type is 0x3, and that of the profile 0x1: they record different things"
    );
    let mut short = new_raw();
    short.pop();
    assert_eq!(
        merged(&mut profile.clone(), &[(short, 1)]).unwrap_err(),
        "0: cut short: a run of this program needs 34 bytes, the file has 33"
    );
}

#[test]
fn a_function_with_one_of_its_two_counters_set_is_corrupt() {
    for zero_filled in [false, true] {
        let profile = everything(true, zero_filled);
        let mut raw = calls(&profile, &[(0, 5), (1, 7)]);
        raw[48..52].fill(if zero_filled { 0 } else { 0xFF });
        let mut tried = profile.clone();
        let error = merged(&mut tried, &[(raw, 1)]).unwrap_err();
        assert!(
            error.starts_with(
                "0 at offset 0x2c: the call count is 0x7 and the time of the first call"
            ),
            "{error}"
        );
        assert_eq!(tried, profile);
    }
}

#[test]
fn merging_gives_the_same_in_any_order_and_grouping() {
    arbtest::arbtest(|u| {
        let empty = everything(true, u.arbitrary()?);
        let mut raws = Vec::new();
        for _ in 0..u.int_in_range(1..=6)? {
            let mut list = vec![(0, u.arbitrary::<u32>()?.clamp(1, 1 << 31)), (1, 3)];
            if u.arbitrary()? {
                list.swap(0, 1);
            }
            list.truncate(u.int_in_range(0..=2)?);
            raws.push((calls(&empty, &list), u.int_in_range(1..=3)?));
        }
        let mut together = empty.clone();
        merged(&mut together, &raws).unwrap();
        let mut reversed = empty.clone();
        raws.reverse();
        merged(&mut reversed, &raws).unwrap();
        assert_eq!(together, reversed);
        let (one, two) = raws.split_at(u.choose_index(raws.len())?);
        let (mut a, mut b) = (empty.clone(), empty.clone());
        merged(&mut a, one).unwrap();
        merged(&mut b, two).unwrap();
        let names = (Path::new("a"), Path::new("b"));
        postlink_mip::merge::add_profile(&mut a, &b, 1, names).unwrap();
        assert_eq!(together, a);
        Ok(())
    });
}
