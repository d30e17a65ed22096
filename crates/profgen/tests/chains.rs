//! Context-sensitive profiles, recordings and streams, on a program built here and on made-up samples of it.
//!
//! Every profile form must be what `llvm-profgen` makes of the same samples, byte for byte as text. The same
//! samples as text, in any number of pieces, on any number of threads, must give the same bytes.

use std::io::Read;
use std::path::Path;
use std::process::Command;

use postlink_elf::elf::Elf;
use postlink_profgen::dwarf::Lines;
use postlink_profgen::{Format, Input, Options, Program, generate, preinline};

use postlink_profgen::testing::Walk;

mod common;
use common::{build, have};

/// Samples of a program as text.
fn samples(elf: &Elf<'_>, count: usize, chains: bool, bias: u64) -> Vec<u8> {
    let lines = Lines::load(elf).unwrap();
    let program = Program::new(elf, &lines);
    let mut walk = Walk::new(&program, 7).unwrap();
    let mut text = Vec::new();
    walk.write_mapping("program", bias, &mut text).unwrap();
    for _ in 0..count {
        walk.advance(300);
        walk.write(chains, bias, &mut text).unwrap();
    }
    text
}

/// Hands out a few bytes at a time.
struct Trickle<'a>(&'a [u8]);

impl Read for Trickle<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let len = self.0.len().min(out.len()).min(4093);
        let (now, later) = self.0.split_at(len);
        out[..len].copy_from_slice(now);
        self.0 = later;
        Ok(len)
    }
}

fn ours(elf: &Elf<'_>, text: &[u8], options: &Options) -> String {
    let lines = Lines::load(elf).unwrap();
    let mut out = Vec::new();
    let options = Options {
        format: Format::Text,
        script: postlink_profgen::ScriptOptions {
            file: "program".to_owned(),
            branches_only: true,
            ..options.script.clone()
        },
        ..options.clone()
    };
    let input = Input::Script(&mut Trickle(text));
    generate(elf, &lines, input, &options, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn theirs(program: &Path, script: &Path, options: &[&str]) -> String {
    let out = program.with_extension("theirs");
    let run = Command::new("llvm-profgen-19")
        .args(["--format=text"])
        .args(options)
        .arg(format!("--binary={}", program.display()))
        .arg(format!("--perfscript={}", script.display()))
        .arg(format!("--output={}", out.display()))
        .output()
        .unwrap();
    assert!(
        run.status.success(),
        "{options:?}: {}",
        String::from_utf8_lossy(&run.stderr)
    );
    std::fs::read_to_string(out).unwrap()
}

#[test]
fn profiles_of_every_form_are_those_of_the_llvm_tool() {
    if !have("clang++-19") || !have("llvm-profgen-19") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), &["-O2", "-fuse-ld=lld", "-fPIE", "-pie"]);
    let data = std::fs::read(&program).unwrap();
    let elf = Elf::parse(&data).unwrap();
    let text = samples(&elf, 300, true, 0x5555_0000_0000);
    let script = dir.path().join("script");
    std::fs::write(&script, &text).unwrap();
    let plain = Options::default();
    let no_inliner = Options {
        preinliner: None,
        ..plain.clone()
    };
    let forms: [(&[&str], Options); 9] = [
        (&[], plain.clone()),
        (
            &["--gen-cs-nested-profile=0"],
            Options {
                nested: false,
                ..plain.clone()
            },
        ),
        (&["--csspgo-preinliner=0"], no_inliner.clone()),
        (
            &["--csspgo-preinliner=0", "--gen-cs-nested-profile=0"],
            Options {
                nested: false,
                ..no_inliner.clone()
            },
        ),
        (
            &["--infer-missing-frames=0", "--trim-cold-profile"],
            Options {
                infer_frames: false,
                trim_cold: true,
                ..plain.clone()
            },
        ),
        (
            &[
                "--csspgo-replay-preinline",
                "--generate-merged-base-profiles",
            ],
            Options {
                preinliner: Some(preinline::Options {
                    replay: true,
                    ..preinline::Options::default()
                }),
                duplicate: true,
                ..plain.clone()
            },
        ),
        (
            &["--ignore-stack-samples"],
            Options {
                script: postlink_profgen::ScriptOptions {
                    ignore_chains: true,
                    ..postlink_profgen::ScriptOptions::default()
                },
                ..plain.clone()
            },
        ),
        (
            &["--use-dwarf-correlation"],
            Options {
                by_lines: true,
                ..plain.clone()
            },
        ),
        (&["--skip-symbolization"], Options { raw: true, ..plain }),
    ];
    for (options, form) in forms {
        let theirs = theirs(&program, &script, options);
        let ours = ours(&elf, &text, &form);
        assert!(theirs.lines().count() > 50, "{options:?}");
        for (number, (ours, theirs)) in ours.lines().zip(theirs.lines()).enumerate() {
            assert_eq!(ours, theirs, "{options:?}: line {}", number + 1);
        }
        assert_eq!(ours.lines().count(), theirs.lines().count(), "{options:?}");
    }
}

#[test]
fn any_number_of_threads_makes_the_same_profile() {
    if !have("clang++-19") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), &["-O2", "-fuse-ld=lld", "-no-pie"]);
    let data = std::fs::read(&program).unwrap();
    let elf = Elf::parse(&data).unwrap();
    // More than one block.
    let text = samples(&elf, 6000, true, 0);
    assert!(text.len() > 5 << 20);
    let all: Vec<String> = [1, 2, 7]
        .into_iter()
        .map(|threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
            let pool = pool.build().unwrap();
            pool.install(|| ours(&elf, &text, &Options::default()))
        })
        .collect();
    assert!(all[0].lines().count() > 100);
    assert!(all.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn samples_without_branches_give_a_flat_profile() {
    if !have("clang++-19") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), &["-O1", "-fuse-ld=lld", "-no-pie"]);
    let data = std::fs::read(&program).unwrap();
    let elf = Elf::parse(&data).unwrap();
    let lines = Lines::load(&elf).unwrap();
    let code = Program::new(&elf, &lines);
    let start = code.ranges()[0].start;
    let (single, stacked) = (
        format!("{start:17x}\n"),
        format!("\t{start:16x}\n\t{start:16x}\n\n"),
    );
    for sample in [single, stacked] {
        let options = Options {
            format: Format::Text,
            by_lines: true,
            ..Options::default()
        };
        let (mut out, text) = (Vec::new(), sample.repeat(40));
        let input = Input::Script(&mut Trickle(text.as_bytes()));
        let report = generate(&elf, &lines, input, &options, &mut out).unwrap();
        assert_eq!(report.samples, 40);
        let out = String::from_utf8(out).unwrap();
        assert!(out.contains(": 40"), "{out}");
        let strict = Options {
            script: postlink_profgen::ScriptOptions {
                branches_only: true,
                ..postlink_profgen::ScriptOptions::default()
            },
            ..options
        };
        let input = Input::Script(&mut Trickle(text.as_bytes()));
        let error = generate(&elf, &lines, input, &strict, &mut Vec::new()).unwrap_err();
        assert_eq!(error.to_string(), "Invalid perf script input!");
    }
}

#[test]
fn processes_with_their_own_load_address_are_told_apart() {
    if !have("clang++-19") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), &["-O2", "-fuse-ld=lld", "-fPIE", "-pie"]);
    let data = std::fs::read(&program).unwrap();
    let elf = Elf::parse(&data).unwrap();
    let once = samples(&elf, 50, false, 0x5555_0000_0000);
    let twice = {
        let other = samples(&elf, 50, false, 0x5666_0000_0000);
        let of = |text: &[u8], pid: u32| -> (String, String) {
            let text = String::from_utf8(text.to_vec()).unwrap();
            let (maps, samples): (Vec<&str>, Vec<&str>) =
                text.lines().partition(|line| line.contains("MMAP"));
            let maps: String = maps
                .iter()
                .map(|line| line.replace("4242/4242", &format!("{pid}/{pid}")) + "\n")
                .collect();
            let samples = samples.iter().map(|line| format!("{pid} {line}\n"));
            (maps, samples.collect())
        };
        let ((a, first), (b, second)) = (of(&once, 10), of(&other, 11));
        // All mappings first: without the process the latest would hold for all samples.
        (a + &b + &first + &second).into_bytes()
    };
    let raw = Options {
        raw: true,
        ..Options::default()
    };
    let (once, twice) = (ours(&elf, &once, &raw), ours(&elf, &twice, &raw));
    assert_eq!(once.lines().count(), twice.lines().count());
    for (once, twice) in once.lines().zip(twice.lines()) {
        let count = |line: &str| {
            let (key, count) = line.rsplit_once(':')?;
            Some((key.to_owned(), count.parse::<u64>().ok()?))
        };
        if let (Some(once), Some(twice)) = (count(once), count(twice)) {
            assert_eq!((once.0, once.1 * 2), twice);
        }
    }
}
