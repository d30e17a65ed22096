//! Golden tests: assembly in, text out, compared with a file that is committed.
//!
//! A source is `tests/golden/NAME.s`. Its first line is a comment, `/* MACHINE: what it is about */`, where
//! the machine is `x86-64` or `aarch64`. It is assembled and linked (with `--emit-relocs`) by GNU binutils
//! for that machine, and shown in four ways:
//!
//! | expected | shown |
//! |---|---|
//! | `NAME.discover.txt` | functions with their pieces, entries, labels and reasons to stay |
//! | `NAME.cfg.txt` | blocks, edges, indirect jumps, tables; or why there is no graph |
//! | `NAME.emit.txt` | new code with its blocks in the opposite order, and its fixups |
//! | `NAME.link.txt` | the same linked: functions that stay, what fixups became, what changed in the old image |
//!
//! `placements.txt` has, for all sources together, where counters are: see [`placements`].
//!
//! All addresses are shown by the last symbol before them and the distance from it, so the linker is free to
//! place sections. Labels that are neither global nor typed as functions are names in the text alone.
//!
//! `BLESS=1 cargo test -p postlink-rewrite golden` rewrites the expected files. Without binutils for a
//! machine its tests are skipped, with a line on standard error.

mod attached;
mod linked;
mod placements;
mod show;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use postlink_elf::elf::Elf;
use postlink_isa::aarch64::AArch64;
use postlink_isa::x86_64::X86_64;

/// A machine that sources can be assembled for.
struct Machine {
    name: &'static str,
    /// What binutils' programs begin with.
    prefix: &'static str,
    package: &'static str,
}

const MACHINES: [Machine; 2] = [
    Machine {
        name: "x86-64",
        prefix: if cfg!(target_arch = "x86_64") {
            ""
        } else {
            "x86_64-linux-gnu-"
        },
        package: "binutils-x86-64-linux-gnu",
    },
    Machine {
        name: "aarch64",
        prefix: if cfg!(target_arch = "aarch64") {
            ""
        } else {
            "aarch64-linux-gnu-"
        },
        package: "binutils-aarch64-linux-gnu",
    },
];

/// Runs one of binutils' programs; `None` if it is not installed.
fn run(program: &str, arguments: &[&str], dir: &Path) -> Option<Result<(), String>> {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(dir)
        .output()
        .ok()?;
    Some(if output.status.success() {
        Ok(())
    } else {
        let said = String::from_utf8_lossy(&output.stderr);
        Err(format!("{program} {}: {said}", arguments.join(" ")))
    })
}

/// The linked file of a source; `None` if there are no tools for its machine.
fn link(machine: &Machine, source: &Path) -> Option<Result<Vec<u8>, String>> {
    let dir = tempfile::tempdir().expect("a folder for the linked file");
    let path = source.display().to_string();
    let assembler = format!("{}as", machine.prefix);
    let linker = format!("{}ld", machine.prefix);
    let steps = [
        (&assembler, &["-o", "x.o", path.as_str()][..]),
        (&linker, &["--emit-relocs", "-e", "0", "-o", "x", "x.o"][..]),
    ];
    for (program, arguments) in steps {
        if let Err(what) = run(program, arguments, dir.path())? {
            return Some(Err(what));
        }
    }
    Some(fs::read(dir.path().join("x")).map_err(|e| e.to_string()))
}

/// What is shown of a file.
type Show = fn(&Elf<'_>, &Machine) -> String;

fn discover(elf: &Elf<'_>, machine: &Machine) -> String {
    by_machine(
        elf,
        machine,
        show::discover::<X86_64>,
        show::discover::<AArch64>,
    )
}

fn cfg(elf: &Elf<'_>, machine: &Machine) -> String {
    by_machine(elf, machine, show::cfg::<X86_64>, show::cfg::<AArch64>)
}

fn emit(elf: &Elf<'_>, machine: &Machine) -> String {
    by_machine(elf, machine, show::emit::<X86_64>, show::emit::<AArch64>)
}

fn link_all(elf: &Elf<'_>, machine: &Machine) -> String {
    by_machine(
        elf,
        machine,
        linked::link::<X86_64>,
        linked::link::<AArch64>,
    )
}

fn by_machine(
    elf: &Elf<'_>,
    machine: &Machine,
    x86_64: fn(&Elf<'_>) -> String,
    aarch64: fn(&Elf<'_>) -> String,
) -> String {
    match machine.name {
        "x86-64" => x86_64(elf),
        _ => aarch64(elf),
    }
}

/// What is shown of all sources, or why nothing can be.
fn shown(show: Show) -> Vec<(PathBuf, Result<String, String>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut sources: Vec<PathBuf> = fs::read_dir(&dir)
        .expect("sources have a folder")
        .map(|entry| entry.expect("the folder can be read").path())
        .filter(|path| path.extension().is_some_and(|e| e == "s"))
        .collect();
    sources.sort();
    assert!(!sources.is_empty(), "{}: no sources", dir.display());
    let mut all = Vec::new();
    for source in sources {
        let text = fs::read_to_string(&source).expect("the source can be read");
        let machine = MACHINES
            .iter()
            .find(|m| text.starts_with(&format!("/* {}: ", m.name)));
        let Some(machine) = machine else {
            let what = "the first line must be '/* MACHINE: what it is about */'";
            all.push((source, Err(what.into())));
            continue;
        };
        let Some(linked) = link(machine, &source) else {
            eprintln!(
                "SKIPPED: {}: no {}as and ld (Debian's package {})",
                source.display(),
                machine.prefix,
                machine.package
            );
            continue;
        };
        let shown = linked.and_then(|data| {
            let elf = Elf::parse(&data).map_err(|e| e.to_string())?;
            Ok(show(&elf, machine))
        });
        all.push((source, shown));
    }
    all
}

/// Shows all sources, and compares with the expected files of this kind.
fn check(kind: &str, show: Show) {
    let bless = std::env::var_os("BLESS").is_some();
    let mut failed = Vec::new();
    for (source, shown) in shown(show) {
        let shown = match shown {
            Ok(shown) => shown,
            Err(what) => {
                failed.push(format!("{}: {what}", source.display()));
                continue;
            }
        };
        let expected = source.with_extension(format!("{kind}.txt"));
        if bless {
            fs::write(&expected, shown).expect("the expected text can be written");
        } else if fs::read_to_string(&expected).ok().as_ref() != Some(&shown) {
            failed.push(format!(
                "{} is not what is shown:\n{shown}",
                expected.display()
            ));
        }
    }
    assert!(
        failed.is_empty(),
        "{}\n(BLESS=1 writes what is shown into the expected files)",
        failed.join("\n")
    );
}

#[test]
fn golden_discover() {
    check("discover", discover);
}

#[test]
fn golden_cfg() {
    check("cfg", cfg);
}

#[test]
fn golden_emit() {
    check("emit", emit);
}

#[test]
fn functions_analysed_once_have_the_same_counts() {
    let differences = |elf: &Elf<'_>, machine: &Machine| {
        by_machine(
            elf,
            machine,
            attached::differences::<X86_64>,
            attached::differences::<AArch64>,
        )
    };
    for (source, differences) in shown(differences) {
        assert_eq!(differences, Ok(String::new()), "{}", source.display());
    }
}

#[test]
fn counters_are_where_their_version_says() {
    let digest = |elf: &Elf<'_>, machine: &Machine| {
        by_machine(
            elf,
            machine,
            placements::digest::<X86_64>,
            placements::digest::<AArch64>,
        )
    };
    let name = |source: &Path| source.file_stem().map(|s| s.to_string_lossy().into_owned());
    let list: Vec<(String, String)> = shown(digest)
        .into_iter()
        .filter_map(|(source, digest)| Some((name(&source)?, digest.unwrap_or_else(|what| what))))
        .collect();
    placements::check(&list);
}

#[test]
fn golden_link() {
    check("link", link_all);
}
