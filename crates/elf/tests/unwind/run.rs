//! Real programs with their tables rewritten, run by real unwinders.
//!
//! The code stays where it is, but every function is cut at random places into up to four fragments, each with an FDE
//! and LSDA of its own, as if they had been moved apart: rows begin in the middle of functions, and landing pads are
//! before, in and after their fragment. The new tables go to a section that the program keeps free for them, and the
//! old ones are wiped. Then the program must do what it did before: throw through everything, run the cleanups,
//! terminate where it must, and see the same frames with the same frame addresses.

use std::path::Path;
use std::process::{Command, Output};

use postlink_elf::elf::Elf;
use postlink_elf::unwind::eh_frame::{EhFrame, NewFde, merged_sizes, write_merged};
use postlink_elf::unwind::lsda::{CallSite, Lsda};
use postlink_elf::unwind::rows;

use crate::common::{Random, part, starting_programs, table};

const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
const PT_GNU_PROPERTY: u32 = 0x6474_e553;
const SPARE: usize = 4 << 20;

/// The parts of call sites that are in `from..to`.
fn sites_in(sites: &[CallSite], from: u64, to: u64) -> Vec<CallSite> {
    let cut = |site: &CallSite| {
        let (start, end) = (site.start.max(from), site.end().min(to));
        (start < end).then(|| CallSite {
            start,
            len: end - start,
            ..*site
        })
    };
    sites.iter().filter_map(cut).collect()
}

/// What was written.
#[derive(Debug, Default)]
struct Cut {
    fdes: usize,
    areas: usize,
    with_base: usize,
}

/// Moves all unwind tables of `file` to its section `spare_tables`, functions cut in pieces.
fn cut_up(file: &[u8], seed: u64) -> (Vec<u8>, Cut) {
    let elf = Elf::parse(file).expect("a program just built");
    let (old, _) = table(&elf);
    let (_, spare) = elf.section("spare_tables").expect("the program has it");
    let mut random = Random(seed);
    let mut cut = Cut::default();
    let mut blob = Vec::new();
    let mut new = Vec::new();
    for fde in old.fdes.iter().filter(|f| !f.is_discarded()) {
        let cie = &old.cies[fde.cie];
        let initial = rows::initial_row(cie).expect("a compiler's CIE");
        let all = rows::rows(cie, fde).expect("a compiler's program");
        let lsda = fde
            .lsda
            .map(|at| Lsda::parse(&elf, at, fde.start).unwrap_or_else(|e| panic!("{}", e.what)));
        let mut cuts: Vec<u64> = (0..random.below(4))
            .map(|_| random.below(fde.len))
            .chain([0, fde.len])
            .collect();
        // Fragments that begin at a landing pad, or right after one.
        for pad in lsda
            .iter()
            .flat_map(|l| &l.call_sites)
            .filter_map(|s| s.landing_pad)
        {
            if random.below(4) == 0 {
                cuts.push((pad - fde.start + random.below(2)).min(fde.len));
            }
        }
        cuts.sort();
        cuts.dedup();
        for ends in cuts.windows(2) {
            let (from, to) = (fde.start + ends[0], fde.start + ends[1]);
            let instructions = rows::encode(cie, &initial, &part(&all, ends[0], ends[1]))
                .expect("rows of this CIE");
            let lsda = lsda.as_ref().map(|lsda| {
                let at = spare.addr + blob.len() as u64;
                let bytes = lsda
                    .encode(&sites_in(&lsda.call_sites, from, to), from, at)
                    .unwrap_or_else(|e| panic!("{}", e.what));
                cut.areas += 1;
                cut.with_base += usize::from(bytes[0] != 0xff);
                blob.extend(bytes);
                blob.resize(blob.len().next_multiple_of(4), 0);
                at
            });
            new.push(NewFde {
                cie: fde.cie,
                start: from,
                len: to - from,
                lsda,
                instructions,
            });
        }
    }
    cut.fdes = new.len();
    // As a rewriter may have them in any order.
    for i in (1..new.len()).rev() {
        new.swap(i, random.below(i as u64 + 1) as usize);
    }
    let only_cies = EhFrame {
        fdes: Vec::new(),
        ..old
    };
    blob.resize(blob.len().next_multiple_of(8), 0);
    let (frame_size, header_size) = merged_sizes(&only_cies, &new);
    let header_at = blob.len();
    let frame_at = (header_at + header_size as usize).next_multiple_of(8);
    blob.resize(frame_at + frame_size as usize, 0);
    assert!(blob.len() <= SPARE);
    let (head, frame) = blob.split_at_mut(frame_at);
    let header = &mut head[header_at..header_at + header_size as usize];
    let place = |at: usize| (spare.addr + at as u64, spare.offset + at as u64);
    write_merged(
        &only_cies,
        &new,
        place(frame_at).0,
        frame,
        place(header_at).0,
        header,
    )
    .unwrap_or_else(|e| panic!("{}", e.what));

    let mut out = file.to_vec();
    out[spare.offset as usize..][..blob.len()].copy_from_slice(&blob);
    let put = |out: &mut Vec<u8>, at: u64, value: u64| {
        out[at as usize..][..8].copy_from_slice(&value.to_le_bytes())
    };
    // A static program of GNU tools has no such segment: its start-up code registers the old table by address. Where
    // that knows nothing (here: it is wiped) the unwinder looks for the segment all the same. One that nobody needs
    // makes space.
    let has = |kind| elf.segments.iter().any(|s| s.kind == kind);
    let kind = if has(PT_GNU_EH_FRAME) {
        PT_GNU_EH_FRAME
    } else {
        PT_GNU_PROPERTY
    };
    assert!(has(kind));
    for (i, segment) in elf.segments.iter().enumerate() {
        if segment.kind == kind {
            let at = elf.phoff + 56 * i as u64;
            let (addr, offset) = place(header_at);
            out[at as usize..][..4].copy_from_slice(&PT_GNU_EH_FRAME.to_le_bytes());
            for (field, value) in [
                (8, offset),
                (16, addr),
                (24, addr),
                (32, header_size),
                (40, header_size),
            ] {
                put(&mut out, at + field, value);
            }
        }
    }
    for (i, section) in elf.sections.iter().enumerate() {
        let ((addr, offset), size) = match section.name {
            ".eh_frame" => (place(frame_at), frame_size),
            ".eh_frame_hdr" => (place(header_at), header_size),
            ".gcc_except_table" => {
                out[section.offset as usize..][..section.size as usize].fill(0);
                continue;
            }
            _ => continue,
        };
        out[section.offset as usize..][..section.size as usize].fill(0);
        let at = elf.shoff + 64 * i as u64;
        for (field, value) in [(16, addr), (24, offset), (32, size)] {
            put(&mut out, at + field, value);
        }
    }
    (out, cut)
}

/// The same with an empty search table: nothing can be unwound.
fn without_entries(file: &[u8]) -> Vec<u8> {
    let elf = Elf::parse(file).expect("just written");
    let header = elf
        .segments
        .iter()
        .find(|s| s.kind == PT_GNU_EH_FRAME)
        .expect("just written");
    let mut out = file.to_vec();
    let (_, frame) = elf.section(".eh_frame").expect("just written");
    out[header.offset as usize + 8..][..4].fill(0);
    out[frame.offset as usize..][..4].fill(0);
    out
}

fn have(tool: &str) -> bool {
    Command::new(tool)
        .arg("--version")
        .output()
        .is_ok_and(|o| o.status.success())
}

fn compile(tool: &str, arguments: &[&str], source: &Path, output: &Path) -> bool {
    let result = Command::new(tool)
        .args(arguments)
        .arg(source)
        .arg("-o")
        .arg(output)
        .output()
        .expect("the tool is there");
    if !result.status.success() {
        eprintln!(
            "{tool} {arguments:?}: {}",
            String::from_utf8_lossy(&result.stderr)
        );
    }
    result.status.success()
}

fn run(path: &Path, bytes: &[u8]) -> Output {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, bytes).expect("a temporary file");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
        .expect("a temporary file");
    crate::tools::run(&mut Command::new(path))
}

fn check(name: &str, dir: &Path, program: &Path, seeds: u64) {
    let original = std::fs::read(program).expect("just built");
    let before = run(&dir.join("before"), &original);
    let text = String::from_utf8_lossy(&before.stdout).into_owned();
    assert!(
        text.contains("end of main"),
        "{name}: {text} {}",
        String::from_utf8_lossy(&before.stderr)
    );
    let mut said = false;
    let mut with_base = 0;
    for seed in 1..=seeds {
        let (bytes, cut) = cut_up(&original, seed);
        let after = run(&dir.join("after"), &bytes);
        assert_eq!(
            text,
            String::from_utf8_lossy(&after.stdout),
            "{name}, seed {seed}: {}",
            String::from_utf8_lossy(&after.stderr)
        );
        assert_eq!(before.status, after.status, "{name}, seed {seed}");
        assert!(cut.areas > 0, "{name}: {cut:?}");
        with_base += cut.with_base;
        if !std::mem::replace(&mut said, true) {
            eprintln!("{name}: {cut:?}, {} lines of output", text.lines().count());
            // And the new tables are what was used.
            let broken = run(&dir.join("broken"), &without_entries(&bytes));
            assert_ne!(broken.stdout, before.stdout, "{name} without its tables");
        }
    }
    assert!(
        with_base > 0,
        "{name}: no landing pad lies before its fragment"
    );
}

const CPP: &str = include_str!("programs/throw.cpp");
const RUST: &str = include_str!("programs/unwind.rs.txt");

/// Sources and outputs of one test.
fn workplace() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(dir.path().join("throw.cpp"), CPP).expect("a temporary file");
    std::fs::write(dir.path().join("unwind.rs"), RUST).expect("a temporary file");
    dir
}

#[test]
fn cpp_programs_in_pieces_unwind_as_before() {
    let _alone = starting_programs();
    let dir = workplace();
    let source = dir.path().join("throw.cpp");
    let program = dir.path().join("program");
    let spare = format!("-DSPARE={SPARE}");
    let common = ["-std=c++14", "-Wno-deprecated", spare.as_str()];
    // Other unwinders bring the same functions as libgcc; linked first, they are the ones that are called. One more can
    // be named.
    let named = std::env::var("POSTLINK_TEST_UNWINDER").unwrap_or_default();
    let nongnu = "/usr/lib/x86_64-linux-gnu/libunwind.so.8";
    let llvm = "/usr/lib/llvm-19/lib/libunwind.so.1";
    let variants: &[(&str, &[&str], Option<&str>)] = &[
        ("g++", &["-O2", "-fPIE", "-pie"], None),
        ("g++", &["-O0", "-fno-pie", "-no-pie"], None),
        ("g++", &["-O2", "-static"], None),
        ("g++", &["-Os", "-mno-accumulate-outgoing-args"], None),
        ("clang++-19", &["-O2", "-fPIE", "-pie"], None),
        (
            "clang++-19",
            &["-O1", "-fno-pie", "-no-pie", "-fuse-ld=lld-19"],
            None,
        ),
        ("g++", &["-O2"], Some(nongnu)),
        ("g++", &["-O2"], Some(llvm)),
        ("g++", &["-O2"], Some(&named)),
    ];
    let mut done = 0;
    for &(tool, flags, unwinder) in variants {
        let name = format!("{tool} {flags:?} with {}", unwinder.unwrap_or("libgcc"));
        if !have(tool) || unwinder.is_some_and(|u| !Path::new(u).exists()) {
            eprintln!("left out: {name}");
            continue;
        }
        let mut arguments = [&common[..], flags].concat();
        let folder = unwinder
            .and_then(|u| Path::new(u).parent())
            .map(|d| format!("-Wl,-rpath,{}", d.display()));
        arguments.extend(unwinder.into_iter().flat_map(|u| ["-Wl,--no-as-needed", u]));
        arguments.extend(folder.as_deref());
        // Static libraries are not everywhere.
        if !compile(tool, &arguments, &source, &program) && flags.contains(&"-static") {
            continue;
        }
        check(&name, dir.path(), &program, 12);
        done += 1;
    }
    eprintln!("{done} variants");
}

#[test]
fn a_rust_program_in_pieces_unwinds_as_before() {
    let _alone = starting_programs();
    if !have("rustc") {
        eprintln!("no rustc");
        return;
    }
    let dir = workplace();
    let (source, program) = (dir.path().join("unwind.rs"), dir.path().join("program"));
    for flags in [
        &["-O"][..],
        &["-Ccodegen-units=4"],
        &[
            "-O",
            "-Crelocation-model=static",
            "-Ctarget-feature=+crt-static",
        ],
    ] {
        let arguments = [&["--edition=2021"], flags].concat();
        if compile("rustc", &arguments, &source, &program) {
            check(&format!("rustc {flags:?}"), dir.path(), &program, 6);
        }
    }
}

#[test]
fn gdb_sees_the_same_frames_and_registers_in_a_program_in_pieces() {
    let _alone = starting_programs();
    if !have("gdb") || !have("g++") {
        eprintln!("no gdb or no g++");
        return;
    }
    let dir = workplace();
    let program = dir.path().join("program");
    let spare = format!("-DSPARE={SPARE}");
    assert!(compile(
        "g++",
        &["-O2", "-std=c++14", "-Wno-deprecated", &spare],
        &dir.path().join("throw.cpp"),
        &program
    ));
    let original = std::fs::read(&program).expect("just built");
    let look = |bytes: &[u8]| {
        // The same path for both, since it is on the program's stack.
        let path = dir.path().join("looked-at");
        run(&path, bytes);
        let commands = [
            "set debuginfod enabled off",
            "set style enabled off",
            "break look_here",
            "run",
            "bt",
            "frame 2",
            "info registers rbx rbp rsp r12 r13 r14 r15 rip",
            "frame 5",
            "info registers rbx rbp rsp r12 r13 r14 r15 rip",
            "continue 3",
            "bt",
        ];
        let output = Command::new("gdb")
            .args(["-nx", "-batch"])
            .args(commands.iter().flat_map(|c| ["-ex", c]))
            .arg(&path)
            .env("DEBUGINFOD_URLS", "")
            .output()
            .expect("gdb is there");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let before = look(&original);
    if !before.contains("#5") {
        eprintln!("gdb cannot run programs here: {before}");
        return;
    }
    for seed in 1..=3 {
        assert_eq!(before, look(&cut_up(&original, seed).0), "seed {seed}");
    }
    eprintln!("{} lines are the same", before.lines().count());
}
