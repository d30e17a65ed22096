//! What perf2bolt does with translation tables beyond reading them.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;

use postlink_profile::bolt_yaml::{self, BoltYaml};

use super::*;

/// A text of `perf script`, mappings and samples: stacks of branches between instructions of a program at
/// fixed addresses, 32 in most of them.
pub fn script(machine: &Machine, binary: &Path) -> (String, String) {
    let code = mnemonics(machine, binary);
    let transfers = |at: u64| (machine.transfers)(code.get(&at).map_or("", String::as_str));
    let padding = |at: u64| {
        let known = code.get(&at).map_or("", String::as_str);
        ["nop", "xchg", "data16", "cs"]
            .iter()
            .any(|m| known.starts_with(m))
    };
    let mut taken: Vec<(u64, u64)> = Vec::new();
    for line in records(machine, binary)
        .lines()
        .filter(|l| l.starts_with('B'))
    {
        let mut words = line.split(' ').skip(1).map(|w| u64::from_str_radix(w, 16));
        if let (Some(Ok(from)), Some(Ok(to))) = (words.next(), words.next())
            && transfers(from)
            && !padding(to)
        {
            taken.push((from, to));
        }
    }
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let mut samples = String::new();
    for sample in 0..400 {
        // Short stacks come before the first full one and after it.
        let depth = match sample {
            0..10 => 20,
            _ if random.below(4) == 0 => 1 + random.below(32),
            _ => 32,
        };
        let _ = write!(samples, " 4242 ");
        for _ in 0..depth {
            let (from, to) = taken[random.below(taken.len() as u64) as usize];
            let _ = write!(samples, " {from:#x}/{to:#x}/P/-/-/1 ");
        }
        samples.push('\n');
    }
    (mappings(binary, 4242, 0), samples)
}

/// The first lines that only one of two texts has.
pub fn differences(ours: &str, theirs: &str) -> String {
    let (a, b): (BTreeSet<_>, BTreeSet<_>) = (ours.lines().collect(), theirs.lines().collect());
    let mut out = String::new();
    for line in a.difference(&b).take(10) {
        let _ = writeln!(out, "ours alone: {line}");
    }
    for line in b.difference(&a).take(10) {
        let _ = writeln!(out, "theirs alone: {line}");
    }
    out
}

/// perf2bolt's profile from a recording: it has a `perf` print one, and gets a false one that prints these texts.
pub fn theirs(bench: &Bench, map: &str, samples: &str, binary: &Path) -> String {
    theirs_and_said(bench, map, samples, binary).0
}

/// The same, and what it says.
fn theirs_and_said(bench: &Bench, map: &str, samples: &str, binary: &Path) -> (String, Output) {
    let write = |name: &str, text: &str| {
        std::fs::write(bench.at(name), text).expect("the directory is ours");
    };
    write("mmap.txt", map);
    write("samples.txt", samples);
    write("perf.data", "PERFILE2");
    let dir = bench.dir.path().display();
    write(
        "perf",
        &format!(
            "#!/bin/sh\ncase \"$*\" in\n*show-mmap-events*) cat {dir}/mmap.txt ;;\n\
             *show-task-events*|*buildid*|*pid,event,addr*) ;;\n*) cat {dir}/samples.txt ;;\nesac\n"
        ),
    );
    let perf = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(bench.at("perf"), perf).expect("the directory is ours");
    let said = run(Command::new(format!("{LLVM}/perf2bolt"))
        .env("PATH", format!("{dir}:/usr/bin:/bin"))
        .arg("--ignore-build-id")
        .arg("-p")
        .args([&bench.at("perf.data"), binary])
        .arg("-o")
        .arg(bench.at("theirs.fdata")));
    let text = std::fs::read_to_string(bench.at("theirs.fdata")).expect("it has been written");
    (text, said)
}

/// What is said of the samples.
fn quality(output: &Output) -> Vec<String> {
    let lines = text(output);
    let wanted = |line: &&str| {
        ["brstack", "samples", "traces"]
            .iter()
            .any(|word| line.contains(word))
    };
    let lines = lines.lines().filter(|line| line.starts_with("PERF2BOLT: "));
    lines.filter(wanted).map(str::to_owned).collect()
}

#[test]
fn recordings_of_several_processes_and_of_the_kernel_are_told_as_perf2bolt_tells_them() {
    let missing = "recordings of several processes are not compared";
    if !is_there(&format!("{LLVM}/perf2bolt"), missing) {
        return;
    }
    let bench = Bench::new(&["-no-pie"]);
    let binary = bench.at("p");
    let (map, samples) = script(&X86_64, &binary);
    // Two of the program, and one of another; interrupts, and branches out of a library.
    let others = mappings(&binary, 4343, 0) + &mappings(&bench.at("inst"), 4444, 0);
    let elsewhere = [
        "",
        " 0xffffffff81000010/0x401020/P/-/-/1 ",
        " 0x7ffff7a01234/0x401020/M/-/-/1 ",
    ];
    let samples: String = samples
        .lines()
        .enumerate()
        .map(|(number, line)| {
            let pid = ["4242", "4343", "4444"][number % 3];
            line.replacen("4242", pid, 1) + elsewhere[number % 7 % 3] + "\n"
        })
        .collect();
    let map = map + &others;
    let (theirs, said) = theirs_and_said(&bench, &map, &samples, &binary);
    std::fs::write(bench.at("whole.script"), map + &samples).expect("the directory is ours");
    let ours = run(postlink()
        .args(["perf2bolt", "-p"])
        .args([bench.at("whole.script"), binary])
        .arg("-o")
        .arg(bench.at("ours.fdata")));
    let text = std::fs::read_to_string(bench.at("ours.fdata")).expect("it has been written");
    assert!(theirs.lines().count() > 500, "{theirs}");
    assert_eq!(differences(&text, &theirs), "");
    let said = quality(&said);
    assert_eq!(said.len(), 4, "{said:?}");
    assert_eq!(quality(&ours), said);
}

#[test]
fn the_front_end_leaves_out_the_newest_of_32_branches_as_perf2bolt_does() {
    if !is_there(
        &format!("{LLVM}/perf2bolt"),
        "stacks of 32 branches are not compared",
    ) {
        return;
    }
    let bench = Bench::new(&["-no-pie"]);
    let binary = bench.optimize("p.plraw", "ours");
    let (map, samples) = script(&X86_64, &binary);
    let theirs = theirs(&bench, &map, &samples, &binary);
    std::fs::write(bench.at("whole.script"), map + &samples).expect("the directory is ours");
    let ours = |command: &str, output: &str| {
        run(postlink()
            .arg(command)
            .arg("-p")
            .args([bench.at("whole.script"), binary.clone()])
            .arg("-o")
            .arg(bench.at(output)));
        std::fs::read_to_string(bench.at(output)).expect("it has been written")
    };
    let (front, all) = (ours("perf2bolt", "front"), ours("aggregate", "all"));
    assert!(theirs.lines().count() > 500, "{theirs}");
    assert_eq!(differences(&front, &theirs), "");
    // It makes a difference.
    assert_ne!(differences(&all, &theirs), "");
}

/// What a function's blocks say, each thing once and added up: calls by block, offset, callee and entry,
/// edges by their ends.
type Said = BTreeMap<(u32, String), (u64, u64)>;

fn said(yaml: &BoltYaml) -> BTreeMap<String, (u64, u64, u32, Said)> {
    let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
    let names: BTreeMap<u32, String> = yaml
        .functions
        .iter()
        .map(|f| (f.fid, text(&f.name)))
        .collect();
    let mut all = BTreeMap::new();
    for f in &yaml.functions {
        let mut said = Said::new();
        for block in &f.blocks {
            let mut add = |what: String, count: u64, mispredictions: u64| {
                let sum = said.entry((block.bid, what)).or_default();
                *sum = (sum.0 + count, sum.1 + mispredictions);
            };
            for call in &block.calls {
                let callee = names.get(&call.fid).map_or("?", String::as_str);
                // perf2bolt looks for entries in the code that llvm-bolt left in place too.
                let entry = if callee.starts_with("__BOLT_FDE_FUNCat") {
                    0
                } else {
                    call.discriminator
                };
                add(
                    format!("call {:x} {callee} {entry}", call.offset),
                    call.count,
                    call.mispredictions,
                );
            }
            for edge in &block.successors {
                add(format!("to {}", edge.bid), edge.count, edge.mispredictions);
            }
            // A block without counts need not be there.
            if !(block.calls.is_empty() && block.successors.is_empty()) {
                add(format!("hash {:x}, {}", block.hash, block.insns), 0, 0);
            }
        }
        all.insert(text(&f.name), (f.hash, f.exec, f.nblocks, said));
    }
    all
}

#[test]
fn blocks_through_tables_have_the_counts_that_perf2bolt_gives_them() {
    if !is_there(
        &format!("{LLVM}/perf2bolt"),
        "profiles by blocks through tables are not compared",
    ) {
        return;
    }
    let bench = Bench::new(&["-no-pie"]);
    for (binary, entries) in [
        (bench.optimize("p.plraw", "ours"), true),
        // With -w perf2bolt takes returns out of the code that llvm-bolt left in place for branches from
        // nowhere, and counts entries; without it not.
        (bench.bolt(), false),
    ] {
        let samples = bench.at("samples");
        std::fs::write(&samples, records(&X86_64, &binary)).expect("the directory is ours");
        run(Command::new(format!("{LLVM}/perf2bolt"))
            .arg(&binary)
            .args(["-pa", "-p"])
            .arg(&samples)
            .arg("-o")
            .arg(bench.at("theirs.fdata"))
            .arg("-w")
            .arg(bench.at("theirs.yaml")));
        run(postlink()
            .args(["aggregate", "--only-explained", "-p"])
            .args([&samples, &binary])
            .arg("-o")
            .arg(bench.at("ours.yaml")));
        let read = |name: &str| said(&bolt_yaml::read(&bench.at(name)).expect("it is YAML"));
        let (ours, theirs) = (read("ours.yaml"), read("theirs.yaml"));
        let moved = text(&run(postlink()
            .args(["bat", "dump", "--json"])
            .arg(&binary)));
        let moved: serde_json::Value = serde_json::from_str(&moved).expect("JSON");
        let list = moved["functions"].as_array().expect("a list");
        let mut compared = 0;
        for function in list {
            // Local functions have their file's name in them in profiles.
            let name = function["name"].as_str().expect("a name");
            let name = name.split('/').next().unwrap_or(name);
            let of = |all: &BTreeMap<String, (u64, u64, u32, Said)>| {
                all.iter()
                    .filter(|(known, _)| known.split('/').next() == Some(name))
                    .map(|(known, said)| {
                        let mut said = said.clone();
                        said.1 *= u64::from(entries);
                        (known.clone(), said)
                    })
                    .collect::<Vec<_>>()
            };
            let (ours, theirs) = (of(&ours), of(&theirs));
            assert_eq!(ours, theirs, "{name} in {}", binary.display());
            compared += ours.len();
        }
        assert!(compared > 5, "{compared} functions");
    }
}
