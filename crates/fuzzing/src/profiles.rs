//! Profiles in every text and binary format, plausible and damaged.
//!
//! What must hold: a reader answers or refuses, and what a reader has read, written again and read again, is
//! what it was.

use std::fmt::Write;
use std::path::Path;

use arbitrary::{Result, Unstructured};
use postlink_profile::any::{self, Any};
use postlink_profile::protobuf::{otlp, pprof, simpleperf};
use postlink_profile::samples::Options;
use postlink_profile::windows::{Step, Window, Windows};
use postlink_profile::{
    Format, Identity, bolt_yaml, fdata, orders, perf_data, perf_script, preaggregated,
};

use crate::{damaged, number};

/// A number as texts write it; sometimes one that does not fit.
fn decimal(u: &mut Unstructured<'_>) -> Result<String> {
    Ok(match u.int_in_range(0..=15)? {
        0 => "99999999999999999999999".to_owned(),
        1 => "-1".to_owned(),
        2..=4 => number(u)?.to_string(),
        _ => u.int_in_range(0..=500u32)?.to_string(),
    })
}

/// A name, now and then a strange one.
fn name(u: &mut Unstructured<'_>) -> Result<String> {
    let names = [
        "main",
        "f/1",
        "g/a.c/2",
        "operator\\ new",
        "a\\\\b",
        "[unknown]",
        "x.cold.0",
        "",
        "é",
        "f(*2)",
    ];
    Ok((*u.choose(&names)?).to_owned())
}

/// Text with a few bytes changed, now and then.
fn text(u: &mut Unstructured<'_>, whole: String) -> Result<Vec<u8>> {
    let mut bytes = whole.into_bytes();
    if u.ratio(1, 3)? && !bytes.is_empty() {
        for _ in 0..u.int_in_range(1..=3)? {
            let at = u.int_in_range(0..=bytes.len() - 1)?;
            let strange = [b'\n', b' ', b'\r', 0, b':', b'{', b'-', b'0', b'\\', 0xff];
            match u.int_in_range(0..=2)? {
                0 => bytes[at] = *u.choose(&strange)?,
                1 => bytes.insert(at, *u.choose(&strange)?),
                _ => bytes.truncate(at.max(1)),
            }
        }
    }
    Ok(bytes)
}

/// An fdata text.
pub fn fdata_text(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let mut out = String::new();
    let basic = u.ratio(1, 4)?;
    if basic {
        out += "no_lbr cycles:u\n";
    }
    if u.ratio(1, 4)? {
        out += "boltedcollection\n";
    }
    for _ in 0..u.int_in_range(0..=20)? {
        let (a, b) = (name(u)?, name(u)?);
        let (x, y): (u16, u16) = (u.arbitrary()?, u.arbitrary()?);
        let kind = u.int_in_range(0..=2u8)?;
        let (count, missed) = (decimal(u)?, decimal(u)?);
        let _ = match u.int_in_range(0..=4)? {
            0 => writeln!(out, "4 {a} {x:x} {} {b} {y:x} {count}", kind + 3),
            _ if basic => writeln!(out, "{kind} {a} {x:x} {count}"),
            _ => writeln!(out, "{kind} {a} {x:x} 1 {b} {y:x} {missed} {count}"),
        };
    }
    text(u, out)
}

/// A pre-aggregated text.
pub fn preaggregated_text(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let mut out = String::new();
    let address = |u: &mut Unstructured<'_>| -> Result<String> {
        let n = number(u)?;
        Ok(match u.int_in_range(0..=7)? {
            0 => format!("X:{n:x}"),
            1 => format!("abcd:{n:x}"),
            2 => format!("abc:{n:x}"),
            _ => format!("{:x}", n & 0xffff),
        })
    };
    for _ in 0..u.int_in_range(0..=20)? {
        let (a, b, c) = (address(u)?, address(u)?, address(u)?);
        let (n, m) = (decimal(u)?, decimal(u)?);
        let _ = match u.int_in_range(0..=6)? {
            0 => writeln!(out, "E cycles"),
            1 => writeln!(out, "S {a} {n}"),
            2 => writeln!(out, "F {a} {b} {n}"),
            3 => writeln!(out, "r {a} {b} {n}"),
            4 => writeln!(out, "T {a} {b} {c} {n}"),
            5 => writeln!(out, "R {a} {b} {c} {n} {m}"),
            _ => writeln!(out, "B {a} {b} {n} {m}"),
        };
    }
    text(u, out)
}

/// Text of `perf script`.
pub fn script_text(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let mut out = String::new();
    for _ in 0..u.int_in_range(0..=16)? {
        let (start, len, offset) = (number(u)?, number(u)?, number(u)?);
        let pid = u.int_in_range(0..=3)?;
        let _ = match u.int_in_range(0..=6)? {
            0 => writeln!(
                out,
                "p {pid}/{pid} 1.0: PERF_RECORD_MMAP2 {pid}/{pid}: [{start:#x}({len:#x}) @ {offset:#x} 08:01 1 1]: r-xp /bin/p"
            ),
            1 => writeln!(
                out,
                "p {pid}/{pid} 1.0: PERF_RECORD_FORK({pid}:{pid}):(1:1)"
            ),
            2 => writeln!(
                out,
                "p {pid}/{pid} 1.0: PERF_RECORD_COMM exec: p:{pid}/{pid}"
            ),
            3 => writeln!(
                out,
                "p {pid} 1.0: 1 cycles:u: \n\t{start:>16x} f+0x1 (/bin/p)\n"
            ),
            _ => {
                let _ = write!(out, " {pid} {start:>18x} ");
                for _ in 0..u.int_in_range(0..=4)? {
                    let _ = write!(out, " {:#x}/{:#x}/M/-/-/0 ", number(u)?, number(u)?);
                }
                writeln!(out)
            }
        };
    }
    text(u, out)
}

/// A BOLT YAML profile.
pub fn yaml_text(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let mut out = String::from(
        "---\nheader:\n  profile-version: 1\n  binary-name: 'a b'\n  binary-build-id: 'ab'\n  profile-flags: [ lbr ]\n  profile-origin: test\n  profile-events: ''\n",
    );
    if u.ratio(1, 2)? {
        out += "  dfs-order: false\n  hash-func: xxh3\n";
    }
    out += "functions:\n";
    for fid in 1..=u.int_in_range(0..=5u32)? {
        let _ = writeln!(
            out,
            "  - name: \"{}\"\n    fid: {fid}\n    hash: {:#x}\n    exec: {}\n    nblocks: {}",
            name(u)?.replace('\\', ""),
            number(u)?,
            decimal(u)?,
            decimal(u)?
        );
        if u.ratio(1, 4)? {
            continue;
        }
        out += "    blocks:\n";
        for bid in 0..u.int_in_range(1..=3u32)? {
            let _ = writeln!(
                out,
                "      - bid: {bid}\n        insns: 3\n        hash: {:#x}\n        exec: {}",
                number(u)?,
                decimal(u)?
            );
            if u.ratio(1, 2)? {
                let _ = writeln!(
                    out,
                    "        calls: [ {{ off: 0x{:X}, fid: {}, cnt: {} }} ]",
                    u.int_in_range(0..=64u32)?,
                    u.int_in_range(0..=6u32)?,
                    decimal(u)?
                );
            }
            if u.ratio(1, 2)? {
                let _ = writeln!(
                    out,
                    "        succ: [ {{ bid: {}, cnt: {}, mis: {} }} ]",
                    decimal(u)?,
                    decimal(u)?,
                    decimal(u)?
                );
            }
        }
    }
    out += "...\n";
    text(u, out)
}

/// A recording whose structure mostly holds: an event, mappings, samples with branch stacks, damage.
pub fn recording(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let pipe = u.ratio(1, 3)?;
    let kind: u64 = if u.ratio(3, 4)? {
        1 | 2 | 4 | 0x20 | 0x800
    } else {
        number(u)?
    };
    let mut attribute = vec![0u8; 112];
    attribute[4] = 112;
    attribute[24..32].copy_from_slice(&kind.to_le_bytes());
    attribute[40..48].copy_from_slice(&(1u64 << 18).to_le_bytes());
    let mut records = Vec::new();
    let push = |out: &mut Vec<u8>, kind: u32, misc: u16, body: &[u8]| {
        out.extend(kind.to_le_bytes());
        out.extend(misc.to_le_bytes());
        out.extend((8 + body.len() as u16).to_le_bytes());
        out.extend(body);
    };
    if pipe {
        push(&mut records, 64, 0, &attribute);
    }
    for _ in 0..u.int_in_range(0..=8)? {
        let mut body = Vec::new();
        match u.int_in_range(0..=4)? {
            0 => {
                body.extend([7, 0, 0, 0, 7, 0, 0, 0]);
                for _ in 0..3 {
                    body.extend(number(u)?.to_le_bytes());
                }
                body.extend([0; 32]);
                body.extend(b"/bin/p\0\0");
                body.extend([0; 16]);
                push(&mut records, 10, 2, &body);
            }
            1 => {
                let len = u.int_in_range(0..=40usize)?;
                body.extend(u.bytes(len.min(u.len()))?);
                let kind = *u.choose(&[1, 2, 3, 7, 13, 66, 67, 71, 80, 81, 83, 9])?;
                push(&mut records, kind, u.arbitrary()?, &body);
            }
            _ => {
                for _ in 0..3 {
                    body.extend(number(u)?.to_le_bytes());
                }
                let chain = u.int_in_range(0..=3u64)?;
                body.extend(chain.to_le_bytes());
                for _ in 0..chain {
                    body.extend(number(u)?.to_le_bytes());
                }
                let stack = u.int_in_range(0..=4u64)?;
                body.extend(if u.ratio(9, 10)? { stack } else { number(u)? }.to_le_bytes());
                for _ in 0..3 * stack {
                    body.extend(number(u)?.to_le_bytes());
                }
                push(&mut records, 9, 2, &body);
            }
        }
    }
    let mut file = b"PERFILE2".to_vec();
    if pipe {
        file.extend(16u64.to_le_bytes());
    } else {
        for word in [
            104u64,
            128,
            104,
            128,
            232,
            records.len() as u64,
            0,
            0,
            0,
            0,
            0,
            0,
        ] {
            file.extend(word.to_le_bytes());
        }
        file.extend(&attribute);
        file.extend([0; 16]);
    }
    file.extend(records);
    if u.ratio(1, 2)? {
        damaged(u, &file)
    } else {
        Ok(file)
    }
}

/// The varint of protobuf.
fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A field with bytes.
fn field(out: &mut Vec<u8>, tag: u64, bytes: &[u8]) {
    varint(out, tag << 3 | 2);
    varint(out, bytes.len() as u64);
    out.extend(bytes);
}

/// A message of numbers: fields from 1 on, mostly small.
fn numbers(u: &mut Unstructured<'_>, fields: u64) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    for tag in 1..=fields {
        if u.ratio(4, 5)? {
            varint(&mut out, tag << 3);
            let value = if u.ratio(1, 8)? {
                number(u)?
            } else {
                u.int_in_range(0..=4)?
            };
            varint(&mut out, value);
        }
    }
    Ok(out)
}

/// A pprof profile: messages that mostly hold, in field numbers of `profile.proto`.
pub fn pprof_profile(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    field(&mut out, 1, &numbers(u, 2)?);
    for tag in [2, 2, 3, 4, 4, 5, 11] {
        for _ in 0..u.int_in_range(0..=2)? {
            let message = numbers(u, 6)?;
            field(&mut out, tag, &message);
        }
    }
    for text in ["", "samples", "count", "cpu", "nanoseconds", "0a0b"] {
        field(&mut out, 6, text.as_bytes());
    }
    wrapped(u, out)
}

/// OpenTelemetry profiles: a dictionary with all tables, and samples.
pub fn otlp_profiles(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let mut dictionary = Vec::new();
    for tag in [1, 1, 2, 2, 3, 6, 6, 7, 7] {
        let message = numbers(u, 5)?;
        field(&mut dictionary, tag, &message);
    }
    for text in ["", "samples", "count", "process.executable.build_id.gnu"] {
        field(&mut dictionary, 5, text.as_bytes());
    }
    let mut profile = Vec::new();
    field(&mut profile, 1, &numbers(u, 2)?);
    for _ in 0..u.int_in_range(0..=3)? {
        let message = numbers(u, 4)?;
        field(&mut profile, 2, &message);
    }
    let (mut scope, mut resource, mut out) = (Vec::new(), Vec::new(), Vec::new());
    field(&mut scope, 2, &profile);
    field(&mut resource, 2, &scope);
    field(&mut out, 1, &resource);
    field(&mut out, 2, &dictionary);
    wrapped(u, out)
}

/// A report of simpleperf: records with their sizes.
pub fn simpleperf_report(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let mut out = b"SIMPLEPERF\x01\0".to_vec();
    for _ in 0..u.int_in_range(0..=5)? {
        let (mut sample, mut record) = (numbers(u, 2)?, Vec::new());
        field(&mut sample, 3, &numbers(u, 2)?);
        field(&mut record, u.int_in_range(1..=6)?, &sample);
        out.extend((record.len() as u32).to_le_bytes());
        out.extend(record);
    }
    out.extend([0; 4]);
    wrapped(u, out)
}

/// A temporal profile as text.
pub fn temporal_text(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let traces = u.int_in_range(0..=4)?;
    let mut out = format!(":ir\n:temporal_prof_traces\n{traces}\n{}\n", decimal(u)?);
    for _ in 0..traces {
        let _ = writeln!(out, "# Weight:\n{}", decimal(u)?);
        for _ in 0..u.int_in_range(1..=5)? {
            out += &name(u)?;
            out += ",";
        }
        out += "\n";
    }
    text(u, out)
}

/// A trace of windows of a run.
pub fn trace(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let mut trace = Windows {
        identity: Identity::of_contents(u.bytes(3)?),
        windows: Vec::new(),
    };
    for _ in 0..u.int_in_range(0..=3)? {
        let mut window = Window::default();
        for _ in 0..u.int_in_range(0..=20)? {
            let at = number(u)?;
            window.push(if u.arbitrary()? {
                Step::Inside(at)
            } else {
                Step::Elsewhere(at)
            });
        }
        trace.windows.push(window);
    }
    wrapped(u, trace.to_bytes())
}

/// Bytes as they are or damaged.
fn wrapped(u: &mut Unstructured<'_>, bytes: Vec<u8>) -> Result<Vec<u8>> {
    if u.ratio(1, 2)? {
        damaged(u, &bytes)
    } else {
        Ok(bytes)
    }
}

/// Whatever a profile is, it is read or refused; what was read can be written, and is the same when it is
/// read again. `scratch` is for files.
pub fn check_profile(bytes: &[u8], scratch: &Path) {
    let name = Path::new("profile");
    let options = Options::default();
    if let Ok(profile) = fdata::read_bytes(name, bytes) {
        let written = |profile| {
            let mut out = Vec::new();
            fdata::write_to(&mut out, profile).expect("memory can be written to");
            out
        };
        let text = written(&profile);
        let again = fdata::read_bytes(name, &text).expect("our own text");
        // Counts that LLVM cannot read are cut, so the text is what stays.
        assert_eq!(
            written(&again),
            text,
            "fdata changed by being written and read"
        );
    }
    if let Ok(profile) = preaggregated::read_bytes(name, bytes) {
        let written = |profile| {
            let mut out = Vec::new();
            let place = |place: postlink_profile::address::Place| {
                (!place.is_outside()).then_some(place.address)
            };
            preaggregated::write_to(&mut out, profile, preaggregated::Dialect::V22, place)
                .expect("memory can be written to");
            out
        };
        let text = written(&profile);
        let again = preaggregated::read_bytes(name, &text).expect("our own text");
        let second = written(&again);
        let third = preaggregated::read_bytes(name, &second).expect("our own text");
        assert_eq!(
            written(&third),
            second,
            "pre-aggregated text changed by being written and read"
        );
    }
    if let Ok(profile) = bolt_yaml::read_bytes(name, bytes) {
        let text = bolt_yaml::to_bytes(&profile);
        let again = bolt_yaml::read_bytes(name, &text).expect("our own text");
        assert_eq!(
            bolt_yaml::to_bytes(&again),
            text,
            "YAML changed by being written and read"
        );
    }
    if let Ok(trace) = Windows::read_bytes(name, bytes) {
        assert_eq!(trace.to_bytes(), bytes, "there is one file for each trace");
    }
    let _ = perf_script::read_bytes(name, bytes, &options);
    let _ = orders::read_bytes(name, bytes);
    let _ = pprof::read_bytes(name, bytes, &options);
    let _ = otlp::read_bytes(name, bytes, &options);
    let _ = simpleperf::read_bytes(name, bytes, &options);
    if let Ok(data) = perf_data::PerfData::new(name, bytes) {
        let _ = data.aggregate(name, &options);
        let _ = data.for_each_sample(name, |_| {});
    }
    // By content, from a file, as the commands do; and added to itself.
    if let Some(format) = Format::recognise(&bytes[..bytes.len().min(4096)])
        && !matches!(format, Format::Raw | Format::Plprof)
    {
        let path = scratch.join("profile");
        std::fs::write(&path, bytes).expect("the scratch directory is writable");
        let input = |weight| postlink_profile::Weighted {
            path: path.clone(),
            weight,
        };
        let twice = any::merge(&[input(1), input(1)], &options);
        let doubled = any::merge(&[input(2)], &options);
        match (twice, doubled) {
            (Ok(Any::Symbols(a)), Ok(Any::Symbols(b))) => {
                assert!(a == b, "twice is not the double")
            }
            (Ok(Any::Blocks(a)), Ok(Any::Blocks(b))) => {
                assert!(
                    bolt_yaml::to_bytes(&a) == bolt_yaml::to_bytes(&b)
                        || a.functions.len() == b.functions.len(),
                    "twice is not the double"
                );
            }
            (Ok(Any::Addresses(a)), Ok(Any::Addresses(b))) => {
                assert!(a.traces() == b.traces(), "twice is not the double");
            }
            _ => {}
        }
    }
}
