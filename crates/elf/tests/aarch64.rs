//! AArch64 programs, whose pages may be of 64 KiB. They are linked by lld on any host, and run where qemu is installed.

mod common;

use std::path::Path;
use std::process::Command;

use common::{have, run, scratch, source, succeed, work};
use postlink_elf::InputAddr;
use postlink_elf::elf::{Elf, SymbolTable};
use postlink_elf::raw;
use postlink_elf::write::{NewKind, NewSection, TableGrowth, WriteOptions, WriteSummary, Writer};

#[test]
fn segments_agree_with_the_largest_page_that_the_linker_allowed_for() {
    if !have(&["clang-19", "ld.lld-19"]) {
        return;
    }
    let dir = scratch();
    let (program, out) = (dir.path().join("program"), dir.path().join("out"));
    for (flags, page, growth) in [
        (&["-static", "-no-pie"][..], 0x10000, TableGrowth::PageBelow),
        (
            &["-static", "-no-pie", "-Wl,-z,max-page-size=4096"],
            0x1000,
            TableGrowth::PageBelow,
        ),
        (
            &[
                "-static-pie",
                "-fPIE",
                "-DUNRELOCATED",
                "-Wl,--build-id",
                "-Wl,-q",
            ],
            0x10000,
            TableGrowth::MadeWay,
        ),
        (
            &["-static", "-no-pie", "-Wl,-z,max-page-size=0x200000"],
            0x10000,
            TableGrowth::PageBelow,
        ),
    ] {
        build(flags, &program);
        let data = std::fs::read(&program).unwrap();
        let elf = Elf::parse(&data).unwrap();
        assert_eq!(elf.machine, raw::EM_AARCH64);
        let (_, addr, size) = work(&elf, SymbolTable::Static).unwrap();
        let mut writer = Writer::new(&elf, common::with_zeroes(true)).unwrap();
        let text = writer.append(NewSection {
            name: ".text.new".into(),
            kind: NewKind::Code,
            align: 4,
            size,
        });
        writer
            .contents(text.id)
            .copy_from_slice(elf.bytes_at(addr, size).unwrap());
        let zeroes = writer.append_zero_fill(".zeroes", 1);
        assert_eq!(zeroes.addr.get() % page, 0);
        // b .text.new; the rest of the old function traps
        let branch = 0x1400_0000 | ((text.addr.get().wrapping_sub(addr) >> 2) as u32 & 0x03ff_ffff);
        let mut old = branch.to_le_bytes().to_vec();
        old.resize(size as usize, 0);
        writer.patch(InputAddr::new(addr), &old).unwrap();
        let summary = writer.write(&out, 0o755).unwrap();
        assert_eq!(summary.program_headers, growth, "{flags:?}");
        let written = std::fs::read(&out).unwrap();
        let new = Elf::parse(&written).unwrap();
        for p in new.loads() {
            assert!(
                p.align >= page && p.addr % p.align == p.offset % p.align,
                "{flags:?}: {p:?}"
            );
        }
        assert_eq!(
            new.load_at(zeroes.addr.get()).map(|p| p.mem_size),
            Some(page)
        );
        runs_alike(&program, &out, &[]);
    }
}

/// A note as long as a program header, for which it can make way.
const NOTE: &str = "-Wl,--build-id=0x000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f2021222324252627";

/// A program without libraries, linked by lld.
fn build(flags: &[&str], program: &Path) {
    succeed(
        Command::new("clang-19")
            .args([
                "--target=aarch64-linux-gnu",
                "-nostdlib",
                "-O1",
                "-ffreestanding",
                "-fno-stack-protector",
            ])
            .args(["-fuse-ld=lld", "-B/usr/lib/llvm-19/bin"])
            .args(flags)
            .arg(source("bare_aarch64.c"))
            .arg("-o")
            .arg(program),
    );
}

/// Runs both, where qemu is, and compares.
fn runs_alike(program: &Path, out: &Path, options: &[&str]) {
    // Not `have`: a machine without it still checks the structure.
    let qemu = || Command::new("qemu-aarch64");
    if qemu().arg("--version").output().is_err() {
        return;
    }
    let play = |file: &Path| run(qemu().args(options).arg(file));
    let expected = play(program);
    assert!(
        expected.stdout.len() == 12 && expected.stderr.is_empty(),
        "{expected:?}"
    );
    assert_eq!(play(out), expected);
}

/// The work function goes to a section that may be anywhere, and zeros of a known size are asked for; the
/// writer's summary, and where both went.
fn move_anywhere(program: &Path, out: &Path, padding: u64) -> (WriteSummary, u64, u64) {
    let data = std::fs::read(program).unwrap();
    let elf = Elf::parse(&data).unwrap();
    let (_, addr, size) = work(&elf, SymbolTable::Static).unwrap();
    let mut writer = Writer::new(
        &elf,
        WriteOptions {
            no_way: false,
            like_text: false,
            adds_search_table: false,
            zero_fill: true,
            zero_size: Some((100, 0x10000)),
            no_search_table: true,
            map_hole: 0,
        },
    )
    .unwrap();
    let text = writer.append_anywhere(NewSection {
        name: ".text.new".into(),
        kind: NewKind::Code,
        align: 4,
        size: size + padding,
    });
    writer.contents(text.id)[..size as usize].copy_from_slice(elf.bytes_at(addr, size).unwrap());
    let zeroes = writer.append_zero_fill_aligned(".zeroes", 100, 0x10000);
    let branch = 0x1400_0000 | ((text.addr.get().wrapping_sub(addr) >> 2) as u32 & 0x03ff_ffff);
    let mut old = branch.to_le_bytes().to_vec();
    old.resize(size as usize, 0);
    writer.patch(InputAddr::new(addr), &old).unwrap();
    (
        writer.write(out, 0o755).unwrap(),
        text.addr.get(),
        zeroes.addr.get(),
    )
}

#[test]
fn code_fills_the_hole_that_pages_of_64_kib_leave_in_the_file() {
    if !have(&["clang-19", "ld.lld-19"]) {
        return;
    }
    let dir = scratch();
    let (program, out) = (dir.path().join("program"), dir.path().join("out"));
    let flags = [
        "-static",
        "-no-pie",
        NOTE,
        "-Wl,-z,separate-loadable-segments",
    ];
    build(&flags, &program);
    let (summary, text, _) = move_anywhere(&program, &out, 0x1000);
    let before = std::fs::read(&program).unwrap();
    let (old, data) = (Elf::parse(&before).unwrap(), std::fs::read(&out).unwrap());
    let new = Elf::parse(&data).unwrap();
    let code = |elf: &Elf<'_>| {
        elf.loads()
            .find(|p| p.flags & raw::PF_X != 0)
            .cloned()
            .unwrap()
    };
    let (was, is) = (code(&old), code(&new));
    assert_eq!((was.offset, was.addr), (is.offset, is.addr));
    assert!(text >= was.addr + was.file_size && text < is.addr + is.file_size);
    assert_eq!(is.file_size, is.mem_size);
    // Headers and names only.
    assert!(summary.size < before.len() as u64 + 0x400, "{summary:?}");
    for pair in new.loads().collect::<Vec<_>>().windows(2) {
        assert!(
            (pair[0].addr + pair[0].mem_size).next_multiple_of(0x10000) <= pair[1].addr & !0xffff,
            "{pair:?}"
        );
    }
    for page in ["4096", "65536"] {
        runs_alike(&program, &out, &["-p", page]);
    }
}

#[test]
fn what_does_not_fit_the_hole_comes_behind_the_image() {
    if !have(&["clang-19", "ld.lld-19"]) {
        return;
    }
    let dir = scratch();
    let (program, out) = (dir.path().join("program"), dir.path().join("out"));
    let flags = ["-static", "-no-pie", "-Wl,-z,separate-loadable-segments"];
    build(&flags, &program);
    let (_, text, zeroes) = move_anywhere(&program, &out, 0x10000);
    let before = std::fs::read(&program).unwrap();
    let old = Elf::parse(&before).unwrap();
    assert!(text >= old.extent().1 && zeroes >= old.extent().1);
    runs_alike(&program, &out, &[]);
}

#[test]
fn zeros_of_known_size_continue_the_last_writable_segment_and_need_no_program_header() {
    if !have(&["clang-19", "ld.lld-19"]) {
        return;
    }
    let dir = scratch();
    let (program, out) = (dir.path().join("program"), dir.path().join("out"));
    build(&["-static", "-no-pie", NOTE], &program);
    let (summary, text, zeroes) = move_anywhere(&program, &out, 0);
    let before = std::fs::read(&program).unwrap();
    let (old, data) = (Elf::parse(&before).unwrap(), std::fs::read(&out).unwrap());
    let new = Elf::parse(&data).unwrap();
    assert_eq!(new.segments.len(), old.segments.len() + 1);
    let last = new.load_at(zeroes).unwrap();
    assert_eq!(last.flags, raw::PF_R | raw::PF_W);
    assert!(zeroes.is_multiple_of(0x10000) && zeroes >= old.extent().1);
    assert_eq!(last.addr + last.mem_size, zeroes + 0x10000);
    assert!(
        old.loads().any(|p| p.addr == last.addr),
        "it was there before"
    );
    assert!(text >= last.addr + last.mem_size);
    // A page in front of the file would be 64 KiB.
    assert_eq!(summary.program_headers, TableGrowth::MadeWay);
    assert!(summary.size < before.len() as u64 + 0x1000, "{summary:?}");
    runs_alike(&program, &out, &[]);
}
