//! Profiles in protobuf that others wrote: Go's run-time wrote the pprof file, and Go's pprof says what is in it; the
//! OpenTelemetry file was written by PyPI's `opentelemetry-proto` 1.45 and is kept here. Without Go the test of pprof
//! says so and passes.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use flate2::Compression;
use flate2::read::GzEncoder;
use postlink_profile::address::{AddressKind, AddressProfile};
use postlink_profile::any;
use postlink_profile::protobuf::{otlp, pprof};
use postlink_profile::samples::Options;
use postlink_profile::{Format, Weighted};

const PROGRAM: &str = r#"package main

import (
	"os"
	"runtime/pprof"
	"time"
)

//go:noinline
func hot(n int) int {
	s := 1
	for i := 0; i < n; i++ {
		s = s*3 + i
	}
	return s
}

func main() {
	file, _ := os.Create(os.Args[1])
	pprof.StartCPUProfile(file)
	s := 0
	for end := time.Now().Add(400 * time.Millisecond); time.Now().Before(end); {
		s += hot(100000)
	}
	pprof.StopCPUProfile()
	file.Close()
	os.Exit(s & 0)
}
"#;

/// The lines of a text after one, up to one that begins so.
fn part<'t>(text: &'t str, from: &'t str, to: &'t str) -> impl Iterator<Item = &'t str> {
    let lines = text.lines().skip_while(move |line| *line != from).skip(1);
    lines.take_while(move |line| !line.starts_with(to))
}

/// Samples by offset in the file, as `pprof -raw` tells them: the innermost location of each is the first one.
fn told(text: &str) -> BTreeMap<u64, u64> {
    let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap();
    let mapping = part(text, "Mappings", "\0").next().unwrap();
    let mut bounds = mapping.split(' ').nth(1).unwrap().split('/').map(hex);
    let (start, _, offset) = (
        bounds.next().unwrap(),
        bounds.next(),
        bounds.next().unwrap(),
    );
    let locations: BTreeMap<u64, u64> = part(text, "Locations", "Mappings")
        .filter_map(|line| {
            let (id, rest) = line.trim().split_once(": ")?;
            Some((id.parse().ok()?, hex(rest.split(' ').next()?)))
        })
        .collect();
    let mut sums = BTreeMap::new();
    for line in part(text, "Samples:", "Locations").skip(1) {
        let (values, stack) = line.split_once(':').unwrap();
        let count: u64 = values.split_whitespace().next().unwrap().parse().unwrap();
        let leaf: u64 = stack.split_whitespace().next().unwrap().parse().unwrap();
        *sums.entry(locations[&leaf] - start + offset).or_default() += count;
    }
    sums
}

fn by_address(profile: &AddressProfile) -> BTreeMap<u64, u64> {
    let samples = profile.samples().iter();
    samples
        .map(|(place, count)| (place.address, *count))
        .collect()
}

#[test]
fn what_go_wrote_is_what_gos_pprof_reads() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name);
    std::fs::write(file("main.go"), PROGRAM).unwrap();
    let go = |args: &[&str]| {
        Command::new("go")
            .args(args)
            .current_dir(dir.path())
            .env("GO111MODULE", "off")
            .output()
    };
    match go(&["build", "-o", "program", "main.go"]) {
        Ok(done) if done.status.success() => {}
        _ => {
            eprintln!("SKIPPED: go is not installed, or cannot build");
            return;
        }
    }
    let status = Command::new(file("program"))
        .arg(file("cpu"))
        .status()
        .unwrap();
    assert!(status.success());
    let raw = go(&["tool", "pprof", "-raw", "cpu"]).unwrap();
    assert!(
        raw.status.success(),
        "{}",
        String::from_utf8_lossy(&raw.stderr)
    );
    let theirs = told(&String::from_utf8(raw.stdout).unwrap());
    assert!(!theirs.is_empty(), "no samples");
    let path = file("cpu");
    assert_eq!(any::format_of(&path).unwrap(), Format::Pprof);
    let ours = pprof::read(&path, &Options::default()).unwrap();
    assert_eq!(by_address(&ours), theirs);
    // The time of each sample in place of their number: Go samples every 10 ms.
    let by_time = Options {
        events: vec!["cpu".into()],
        ..Options::default()
    };
    assert_eq!(by_address(&pprof::read(&path, &by_time).unwrap()), theirs);
    let [module] = ours.modules() else {
        panic!("{:?}", ours.modules())
    };
    assert!(module.path.ends_with(b"/program"), "{module:?}");
    assert_eq!(module.kind, AddressKind::FileOffset);
    let unknown = Options {
        events: vec!["wall".into()],
        ..Options::default()
    };
    let said = pprof::read(&path, &unknown).unwrap_err().to_string();
    assert!(
        said.contains("wall: there are samples/count, cpu/nanoseconds"),
        "{said}"
    );
}

const OTLP: &[u8] = include_bytes!("data/otlp.bin");

/// Path, build-id's length, address, samples.
type Told = Vec<(String, usize, u64, u64)>;

fn all(profile: &AddressProfile) -> Told {
    let samples = profile.samples().iter();
    samples
        .map(|(place, count)| {
            let module = profile.module(place.module).unwrap();
            let path = String::from_utf8(module.path.clone()).unwrap();
            (path, module.build_id.len(), place.address, *count)
        })
        .collect()
}

#[test]
fn what_opentelemetrys_library_wrote_is_read() {
    let name = Path::new("otlp");
    let profile = otlp::read_bytes(name, OTLP, &Options::default()).unwrap();
    // A sample counts as its values say, or as often as it has times; a sum of times counts in periods. What is behind
    // the end of its mapping, or in none, is outside.
    let expected = [
        ("app".to_owned(), 20, 0x1010, 6),
        ("app".to_owned(), 20, 0x1020, 2),
        ("libother.so".to_owned(), 0, 0x40, 7),
    ];
    assert_eq!(all(&profile), expected);
    assert_eq!(
        (profile.statistics.samples, profile.statistics.outside),
        (39, 24)
    );
    let one = Options {
        pids: vec![78],
        ..Options::default()
    };
    let profile = otlp::read_bytes(name, OTLP, &one).unwrap();
    assert_eq!(all(&profile), [("app".to_owned(), 20, 0x1010, 3)]);
}

#[test]
fn a_compressed_file_is_the_same_and_formats_are_told_by_contents() {
    use std::io::Read;
    let dir = tempfile::tempdir().unwrap();
    let mut compressed = Vec::new();
    GzEncoder::new(OTLP, Compression::fast())
        .read_to_end(&mut compressed)
        .unwrap();
    let plain = dir.path().join("plain");
    std::fs::write(&plain, OTLP).unwrap();
    let packed = dir.path().join("packed");
    std::fs::write(&packed, &compressed).unwrap();
    let options = Options::default();
    for path in [&plain, &packed] {
        assert_eq!(any::format_of(path).unwrap(), Format::Otlp);
    }
    let read = |path: &Path| otlp::read(path, &options).unwrap();
    assert_eq!(read(&plain), read(&packed));
    // Weights, and both added up.
    let input = |path: &Path, weight| Weighted {
        path: path.to_owned(),
        weight,
    };
    let sum = any::merge_addresses(&[input(&plain, 3), input(&packed, 1)], &options).unwrap();
    let (sum, one) = (all(&sum), all(&read(&plain)));
    assert!(sum.iter().zip(&one).all(|(sum, one)| sum.3 == 4 * one.3));
    // Cut anywhere: an error, or what the whole messages up to there say.
    compressed.truncate(compressed.len() / 2);
    let said = otlp::read_bytes(Path::new("cut"), &compressed, &options).unwrap_err();
    assert!(
        said.to_string().starts_with("cut: cannot unpack (gzip)"),
        "{said}"
    );
}
