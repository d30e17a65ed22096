//! Samples of AArch64 programs beside perf2bolt, which reads them on any host.

use super::perf2bolt::{differences, script, theirs};
use super::*;

const AARCH64: Machine = Machine {
    compiler: "aarch64-linux-gnu-g++",
    objdump: "aarch64-linux-gnu-objdump",
    transfers: |insn| {
        let mnemonic = insn.split_whitespace().next().unwrap_or_default();
        let plain = ["b", "bl", "br", "blr", "ret", "cbz", "cbnz", "tbz", "tbnz"];
        mnemonic.starts_with("b.") || plain.contains(&mnemonic)
    },
};

/// Where the libraries are.
const ROOT: &str = "/usr/aarch64-linux-gnu";

/// The program, and what llvm-bolt and postlink make of it with tables, from counts of one run.
fn programs(link: &[&str]) -> (Bench, Vec<PathBuf>) {
    let bench = Bench::built(SOURCE, AARCH64.compiler, link);
    run(postlink()
        .arg("instrument")
        .arg(bench.at("p"))
        .arg("-o")
        .arg(bench.at("inst")));
    run(Command::new("qemu-aarch64")
        .args(["-L", ROOT])
        .arg(bench.at("inst"))
        .env("POSTLINK_PROFILE", bench.at("p.plraw")));
    let ours = bench.optimize("p.plraw", "ours");
    run(postlink()
        .arg("convert")
        .arg(bench.at("p.plraw"))
        .arg("--binary")
        .arg(bench.at("p"))
        .arg("-o")
        .arg(bench.at("p.fdata")));
    run(Command::new(format!("{LLVM}/llvm-bolt"))
        .arg(bench.at("p"))
        .arg(format!("-data={}", bench.at("p.fdata").display()))
        .args(["-reorder-blocks=ext-tsp", "-reorder-functions=cdsort"])
        .args(["-split-functions", "-split-all-cold", "-enable-bat", "-o"])
        .arg(bench.at("bolt.out")));
    let all = vec![bench.at("p"), ours, bench.at("bolt.out")];
    (bench, all)
}

/// The lines about the quality of samples.
fn quality(output: &Output) -> Vec<String> {
    let lines = text(output);
    let lines = lines.lines().filter(|line| line.contains("traces"));
    lines.map(str::to_owned).collect()
}

#[test]
fn samples_of_aarch64_become_the_text_that_perf2bolt_writes() {
    for tool in [
        AARCH64.compiler,
        AARCH64.objdump,
        "qemu-aarch64",
        format!("{LLVM}/perf2bolt").as_str(),
        format!("{LLVM}/llvm-bolt").as_str(),
    ] {
        if !is_there(tool, "profiles of AArch64 are not compared") {
            return;
        }
    }
    for link in [&["-no-pie"][..], &[]] {
        let (bench, programs) = programs(link);
        for binary in programs {
            let what = format!("{link:?}, {}", binary.display());
            let samples = bench.at("samples");
            let records = records(&AARCH64, &binary);
            std::fs::write(&samples, records).expect("the directory is ours");
            let said = run(Command::new(format!("{LLVM}/perf2bolt"))
                .arg(&binary)
                .args(["-pa", "-p"])
                .arg(&samples)
                .arg("-o")
                .arg(bench.at("theirs.fdata")));
            let ours = run(postlink()
                .arg("perf2bolt")
                .arg(&binary)
                .args(["-pa", "-p"])
                .arg(&samples)
                .arg("-o")
                .arg(bench.at("ours.fdata")));
            let read =
                |name: &str| std::fs::read_to_string(bench.at(name)).expect("it has been written");
            let (a, b) = (read("ours.fdata"), read("theirs.fdata"));
            assert!(b.lines().count() > 500, "{what}: {b}");
            assert_eq!(differences(&a, &b), "", "{what}");
            assert_eq!(quality(&ours), quality(&said), "{what}");
            if link.is_empty() {
                continue; // where it would be loaded is not known
            }
            let (map, samples) = script(&AARCH64, &binary);
            let b = theirs(&bench, &map, &samples, &binary);
            std::fs::write(bench.at("whole.script"), map + &samples)
                .expect("the directory is ours");
            run(postlink()
                .arg("perf2bolt")
                .arg("-p")
                .args([&bench.at("whole.script"), &binary])
                .arg("-o")
                .arg(bench.at("ours.fdata")));
            assert!(b.lines().count() > 500, "{what}: {b}");
            assert_eq!(differences(&read("ours.fdata"), &b), "", "{what}, script");
        }
    }
}
