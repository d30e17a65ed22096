//! AArch64 programs, whose pages may be of 64 KiB. They are linked by lld on any host, and run where qemu is installed.

mod common;

use std::process::Command;

use common::{have, run, scratch, source, succeed, work};
use postlink_image::elf::{Elf, SymbolTable};
use postlink_image::raw;
use postlink_image::write::{NewKind, NewSection, TableGrowth, WriteOptions, Writer};

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
                .arg(&program),
        );
        let data = std::fs::read(&program).unwrap();
        let elf = Elf::parse(&data).unwrap();
        assert_eq!(elf.machine, raw::EM_AARCH64);
        let (_, addr, size) = work(&elf, SymbolTable::Static).unwrap();
        let mut writer = Writer::new(&elf, WriteOptions { zero_fill: true }).unwrap();
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
        assert_eq!(zeroes.addr % page, 0);
        // b .text.new; the rest of the old function traps
        let branch = 0x1400_0000 | ((text.addr.wrapping_sub(addr) >> 2) as u32 & 0x03ff_ffff);
        let mut old = branch.to_le_bytes().to_vec();
        old.resize(size as usize, 0);
        writer.patch(addr, &old).unwrap();
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
        assert_eq!(new.load_at(zeroes.addr).map(|p| p.mem_size), Some(page));
        // Not `have`: a machine without it still checks the structure.
        if Command::new("qemu-aarch64")
            .arg("--version")
            .output()
            .is_ok()
        {
            let play = |file| run(Command::new("qemu-aarch64").arg(file));
            let expected = play(&program);
            assert!(
                expected.stdout.len() == 12 && expected.stderr.is_empty(),
                "{expected:?}"
            );
            assert_eq!(play(&out), expected, "{flags:?}");
        }
    }
}
