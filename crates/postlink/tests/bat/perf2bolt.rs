//! What perf2bolt does with translation tables beyond reading them.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;

use super::*;

/// A text of `perf script`, mappings and samples: stacks of branches between instructions of a program at fixed addresses, 32 in most of them.
/// Nothing is in the padding behind a function: of recordings, and of them alone, perf2bolt takes runs that end there for damaged ones.
fn script(binary: &Path) -> (String, String) {
    let code = mnemonics(binary);
    let transfers = |at: u64| {
        let known = code.get(&at).map_or("", String::as_str);
        ["j", "call", "ret"].iter().any(|m| known.starts_with(m))
    };
    let padding = |at: u64| {
        let known = code.get(&at).map_or("", String::as_str);
        ["nop", "xchg", "data16", "cs"]
            .iter()
            .any(|m| known.starts_with(m))
    };
    let mut taken: Vec<(u64, u64)> = Vec::new();
    for line in records(binary).lines().filter(|l| l.starts_with('B')) {
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
        let _ = write!(samples, " 4242 {:>18x} ", taken[0].1);
        for _ in 0..depth {
            let (from, to) = taken[random.below(taken.len() as u64) as usize];
            let _ = write!(samples, " {from:#x}/{to:#x}/P/-/-/1 ");
        }
        samples.push('\n');
    }
    (mappings(binary, 4242), samples)
}

/// The first lines that only one of two texts has.
fn differences(ours: &str, theirs: &str) -> String {
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
    let (map, samples) = script(&binary);
    let write = |name: &str, text: &str| {
        std::fs::write(bench.at(name), text).expect("the directory is ours");
    };
    write("mmap.txt", &map);
    write("samples.txt", &samples);
    write("whole.script", &(map + &samples));
    write("perf.data", "PERFILE2");
    // perf2bolt has `perf` print a recording.
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
    run(Command::new(format!("{LLVM}/perf2bolt"))
        .env("PATH", format!("{dir}:/usr/bin:/bin"))
        .arg("--ignore-build-id")
        .arg("-p")
        .args([bench.at("perf.data"), binary.clone()])
        .arg("-o")
        .arg(bench.at("theirs.fdata")));
    let ours = |command: &str, output: &str| {
        run(postlink()
            .arg(command)
            .arg("-p")
            .args([bench.at("whole.script"), binary.clone()])
            .arg("-o")
            .arg(bench.at(output)));
        std::fs::read_to_string(bench.at(output)).expect("it has been written")
    };
    let theirs = std::fs::read_to_string(bench.at("theirs.fdata")).expect("it has been written");
    let (front, all) = (ours("perf2bolt", "front"), ours("aggregate", "all"));
    assert!(theirs.lines().count() > 500, "{theirs}");
    assert_eq!(differences(&front, &theirs), "");
    // It makes a difference.
    assert_ne!(differences(&all, &theirs), "");
}
