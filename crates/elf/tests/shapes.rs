//! Files that are not like most: very many sections or segments, no section headers, data after the end; and what the
//! writer does besides moving code: unwind tables, dynamic tags, the entry, refusals.

mod common;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use common::{Toolchain, have, move_work, no_new_complaints, run, scratch, succeed, work};
use object::{Object, ObjectSection, ObjectSymbol};
use postlink_elf::InputAddr;
use postlink_elf::elf::{Elf, SymbolTable};
use postlink_elf::raw::{self, Ehdr, Phdr, Shdr};
use postlink_elf::unwind::eh_frame::{EhFrame, merged_sizes, write_merged};
use postlink_elf::write::{
    InSection, NewKind, NewSection, NewSymbol, SymbolEdit, TableGrowth, WriteError, WriteOptions,
    Writer,
};

fn section(name: &str, kind: NewKind, align: u64, size: u64) -> NewSection {
    NewSection {
        name: name.into(),
        kind,
        align,
        size,
    }
}

fn refusal(error: WriteError) -> String {
    match error {
        WriteError::Format(e) => e.what,
        WriteError::Io { path, source } => panic!("{path}: {source}"),
    }
}

/// Names of symbols with the names of their sections, as another reader sees them.
fn symbols_with_sections(data: &[u8]) -> HashMap<String, String> {
    let file = object::File::parse(data).unwrap();
    let section = |s: &object::Symbol<'_, '_>| {
        let index = s.section_index()?;
        Some(
            file.section_by_index(index)
                .unwrap()
                .name()
                .unwrap()
                .to_string(),
        )
    };
    file.symbols()
        .filter(|s| s.kind() != object::SymbolKind::Section && s.kind() != object::SymbolKind::File)
        .map(|s| {
            (
                s.name().unwrap().to_string(),
                section(&s).unwrap_or_default(),
            )
        })
        .collect()
}

/// An assembly file of `count` sections with a symbol each.
fn many_sections(path: &Path, count: usize, flags: &str) {
    let mut text = String::from(".globl sym7\n");
    for i in 0..count {
        writeln!(
            text,
            ".section \"x{i}\",\"{flags}\",@progbits\nsym{i}: .quad {i}"
        )
        .unwrap();
    }
    text += ".section .note.GNU-stack,\"\",@progbits\n";
    std::fs::write(path, text).unwrap();
}

#[test]
fn more_sections_than_16_bits_count_keep_their_symbols() {
    for toolchain in [Toolchain::Gnu, Toolchain::Llvm] {
        if !toolchain.is_there() {
            continue;
        }
        let dir = scratch();
        let (many, program, out) = (
            dir.path().join("many.s"),
            dir.path().join("program"),
            dir.path().join("out"),
        );
        many_sections(&many, 66000, "aw");
        toolchain.build(
            &["program.c", many.to_str().unwrap()],
            &["-Wl,-q", "-Wl,--emit-relocs"],
            &program,
        );
        let expected = run(&mut Command::new(&program));
        move_work(&program, &out, true, None, false);
        assert_eq!(run(&mut Command::new(&out)), expected);
        let (before, after) = (
            std::fs::read(&program).unwrap(),
            std::fs::read(&out).unwrap(),
        );
        assert!(Elf::parse(&after).unwrap().sections.len() > 66000);
        let (old, new) = (
            symbols_with_sections(&before),
            symbols_with_sections(&after),
        );
        for (name, section) in &old {
            let expected = if name == "work" {
                ".text.postlink"
            } else {
                section
            };
            assert_eq!(new.get(name).map(String::as_str), Some(expected), "{name}");
        }
        assert_eq!(new.len(), old.len() + 2);
    }
}

#[test]
fn new_sections_may_push_indexes_beyond_16_bits() {
    if !Toolchain::Gnu.is_there() {
        return;
    }
    let dir = scratch();
    let (many, program, out) = (
        dir.path().join("many.s"),
        dir.path().join("program"),
        dir.path().join("out"),
    );
    // As many as still fit without a table of full indexes; those that are not loaded come last.
    let build = |count: usize| {
        many_sections(&many, count, "");
        Toolchain::Gnu.build(&["program.c", many.to_str().unwrap()], &[], &program);
        let data = std::fs::read(&program).unwrap();
        Elf::parse(&data).unwrap().sections.len()
    };
    let others = build(100) - 100;
    assert_eq!(build(0xff00 - 1 - others), 0xff00 - 1);
    let before = std::fs::read(&program).unwrap();
    assert!(
        !Elf::parse(&before)
            .unwrap()
            .sections
            .iter()
            .any(|s| s.kind == raw::SHT_SYMTAB_SHNDX)
    );
    move_work(&program, &out, true, None, false);
    assert_eq!(
        run(&mut Command::new(&out)),
        run(&mut Command::new(&program))
    );
    let after = std::fs::read(&out).unwrap();
    let (old, new) = (
        symbols_with_sections(&before),
        symbols_with_sections(&after),
    );
    assert!(
        Elf::parse(&after)
            .unwrap()
            .section(".symtab_shndx")
            .is_some()
    );
    for (name, section) in &old {
        let expected = if name == "work" {
            ".text.postlink"
        } else {
            section
        };
        assert_eq!(new.get(name).map(String::as_str), Some(expected), "{name}");
    }
    if have(&["readelf"]) {
        let said = run(Command::new("readelf").args(["-S", "-s", "-W"]).arg(&out));
        assert!(
            said.stderr.is_empty(),
            "{}",
            String::from_utf8_lossy(&said.stderr)
        );
    }
}

/// Where synthetic files are loaded: a table of very many segments has space below.
const BASE: u64 = 0x4000_0000;

/// A small file of `segments` program headers: one loads the whole file at [`BASE`], the others are empty.
fn synthetic(segments: u32) -> Vec<u8> {
    let table = u64::from(segments) * raw::PHDR;
    let names_at = raw::EHDR + table;
    let names = b"\0.text\0.shstrtab\0";
    let shoff = (names_at + names.len() as u64).next_multiple_of(8) + 16;
    let big = segments >= u32::from(raw::PN_XNUM);
    let header = Ehdr {
        e_type: raw::ET_EXEC,
        e_machine: raw::EM_X86_64,
        e_version: 1,
        e_entry: BASE + shoff - 16,
        e_phoff: raw::EHDR,
        e_shoff: shoff,
        e_ehsize: 64,
        e_phentsize: 56,
        e_phnum: if big { raw::PN_XNUM } else { segments as u16 },
        e_shentsize: 64,
        e_shnum: 3,
        e_shstrndx: 2,
        ..Ehdr::default()
    };
    let mut out = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    out.extend(header.bytes());
    let load = Phdr {
        p_type: raw::PT_LOAD,
        p_flags: 5,
        p_vaddr: BASE,
        p_paddr: BASE,
        p_filesz: shoff,
        p_memsz: shoff,
        p_align: 0x1000,
        ..Phdr::default()
    };
    out.extend(load.bytes());
    out.resize(names_at as usize, 0);
    out.extend(names);
    out.resize(shoff as usize, 0xc3);
    let text = Shdr {
        sh_name: 1,
        sh_type: raw::SHT_PROGBITS,
        sh_flags: 6,
        sh_addr: BASE + shoff - 16,
        sh_offset: shoff - 16,
        sh_size: 16,
        sh_addralign: 1,
        ..Shdr::default()
    };
    let strings = Shdr {
        sh_name: 7,
        sh_type: raw::SHT_STRTAB,
        sh_offset: names_at,
        sh_size: names.len() as u64,
        sh_addralign: 1,
        ..Shdr::default()
    };
    out.extend(
        Shdr {
            sh_info: if big { segments } else { 0 },
            ..Shdr::default()
        }
        .bytes(),
    );
    out.extend(text.bytes());
    out.extend(strings.bytes());
    out
}

#[test]
fn more_segments_than_16_bits_count_are_read_and_written() {
    let dir = scratch();
    let out = dir.path().join("out");
    for segments in [1, 70, 0xfffd, 0xfffe, 0xffff, 0x1_2345] {
        let data = synthetic(segments);
        let elf = Elf::parse(&data).unwrap();
        assert_eq!(elf.segments.len(), segments as usize);
        let mut writer = Writer::new(&elf, common::with_zeroes(true)).unwrap();
        let text = writer.append(section(".text.new", NewKind::Code, 64, 100));
        writer.contents(text.id).fill(0x90);
        let zeroes = writer.append_zero_fill(".zeroes", 1);
        let summary = writer.write(&out, 0o755).unwrap();
        assert_eq!(summary.program_headers, TableGrowth::PageBelow);
        let written = std::fs::read(&out).unwrap();
        let new = Elf::parse(&written).unwrap();
        assert_eq!(new.segments.len(), segments as usize + 2, "{segments}");
        assert_eq!(new.bytes_at(text.addr.get(), 100), Some(&[0x90; 100][..]));
        assert_eq!(
            new.load_at(zeroes.addr.get())
                .map(|p| (p.file_size, p.mem_size)),
            Some((0, 4096))
        );
        assert_eq!(
            new.bytes_at(elf.entry, 16),
            Some(&[0xc3; 16][..]),
            "the old image is where it was"
        );
        // another reader agrees
        let other =
            object::read::elf::ElfFile64::<object::LittleEndian>::parse(&written[..]).unwrap();
        assert_eq!(other.elf_program_headers().len(), segments as usize + 2);
    }
}

#[test]
fn program_without_section_headers_runs() {
    if !Toolchain::Gnu.is_there() {
        return;
    }
    let dir = scratch();
    let program = dir.path().join("program");
    for (flags, growth) in [
        (&["-rdynamic"][..], TableGrowth::Elsewhere),
        (
            &["-rdynamic", "-Wl,--hash-style=sysv"],
            TableGrowth::Elsewhere,
        ),
        (&["-no-pie"], TableGrowth::PageBelow),
        (&["-static"], TableGrowth::PageBelow),
    ] {
        Toolchain::Gnu.build(&["program.c"], flags, &program);
        let expected = run(&mut Command::new(&program));
        let mut data = std::fs::read(&program).unwrap();
        let (_, addr, size) = work(&Elf::parse(&data).unwrap(), SymbolTable::Static).unwrap();
        let exported = Elf::parse(&data)
            .unwrap()
            .symbols(SymbolTable::Dynamic)
            .len();
        let mut header = Ehdr::read(&data, 16).unwrap();
        data.truncate(header.e_shoff as usize);
        (header.e_shoff, header.e_shnum, header.e_shstrndx) = (0, 0, 0);
        data[16..64].copy_from_slice(&header.bytes());
        std::fs::write(&program, &data).unwrap();
        let elf = Elf::parse(&data).unwrap();
        assert!(elf.sections.is_empty());
        let hashed = flags.contains(&"-rdynamic");
        if hashed {
            assert_eq!(elf.symbols(SymbolTable::Dynamic).len(), exported);
        }
        let out = dir.path().join("out");
        let summary = move_work(&program, &out, true, Some((addr, size)), false);
        assert_eq!(summary.program_headers, growth);
        assert_eq!(run(&mut Command::new(&out)), expected, "{flags:?}");
        let written = std::fs::read(&out).unwrap();
        let new = Elf::parse(&written).unwrap();
        assert!(new.sections.is_empty() && new.shoff == 0);
        let moved = work(&new, SymbolTable::Dynamic).map(|w| w.1 > addr);
        assert_eq!(moved, hashed.then_some(true));
    }
}

#[test]
fn data_behind_the_end_stays_behind_the_end() {
    if !Toolchain::Gnu.is_there() {
        return;
    }
    let dir = scratch();
    let (program, out) = (dir.path().join("program"), dir.path().join("out"));
    Toolchain::Gnu.build(&["program.c"], &[], &program);
    let mut data = std::fs::read(&program).unwrap();
    data.extend(b"PK an archive");
    std::fs::write(&program, &data).unwrap();
    move_work(&program, &out, true, None, false);
    let written = std::fs::read(&out).unwrap();
    assert!(written.ends_with(b"PK an archive"));
    assert_eq!(
        run(&mut Command::new(&out)),
        run(&mut Command::new(&program))
    );
}

#[test]
fn entry_and_dynamic_tags_lead_to_new_code() {
    if !Toolchain::Gnu.is_there() {
        return;
    }
    let dir = scratch();
    let (program, out) = (dir.path().join("program"), dir.path().join("out"));
    for flags in [&[][..], &["-no-pie"], &["-static"]] {
        Toolchain::Gnu.build(&["program.c"], flags, &program);
        let data = std::fs::read(&program).unwrap();
        let elf = Elf::parse(&data).unwrap();
        let mut writer = Writer::new(&elf, WriteOptions::default()).unwrap();
        let text = writer.append(section(".text.start", NewKind::Code, 1, 16));
        let jump = |at: u64, to: u64| {
            [
                &[0xe9][..],
                &((to as i64 - at as i64 - 5) as i32).to_le_bytes(),
            ]
            .concat()
        };
        writer.set_entry(text.addr);
        writer.contents(text.id)[..5].copy_from_slice(&jump(text.addr.get(), elf.entry));
        const DT_INIT: i64 = 12;
        match elf.dynamic_value(DT_INIT) {
            Some(init) => {
                writer.contents(text.id)[8..13].copy_from_slice(&jump(text.addr.get() + 8, init));
                writer.set_dynamic(DT_INIT, 1).unwrap();
                writer.set_dynamic(DT_INIT, text.addr.get() + 8).unwrap();
            }
            None => assert!(flags.contains(&"-static")),
        }
        let error = writer.set_dynamic(0x1234, 0x77).unwrap_err();
        assert!(
            error.what.contains("0x1234") && error.what.contains("0x77"),
            "{error}"
        );
        writer.write(&out, 0o755).unwrap();
        let written = std::fs::read(&out).unwrap();
        let new = Elf::parse(&written).unwrap();
        assert_eq!(new.entry, text.addr.get());
        if elf.dynamic_value(DT_INIT).is_some() {
            assert_eq!(new.dynamic_value(DT_INIT), Some(text.addr.get() + 8));
        }
        assert_eq!(
            run(&mut Command::new(&out)),
            run(&mut Command::new(&program)),
            "{flags:?}"
        );
    }
}

/// strip numbers sections anew, but not in the dynamic symbols. So one that was of data may be of a section that is
/// left out of the output; it is defined all the same, and no absolute value, to which the loader would add nothing.
#[test]
fn a_dynamic_symbol_of_a_section_that_is_left_out_stays_defined() {
    if !Toolchain::Gnu.is_there() {
        return;
    }
    let dir = scratch();
    let (program, out) = (dir.path().join("program"), dir.path().join("out"));
    Toolchain::Gnu.build(&["program.c"], &["-rdynamic"], &program);
    let mut data = std::fs::read(&program).unwrap();
    let elf = Elf::parse(&data).unwrap();
    let (left_out, _) = elf.section(".comment").unwrap();
    let (_, table) = elf.section(".dynsym").unwrap();
    let symbols: Vec<_> = elf.symbols(SymbolTable::Dynamic).iter().collect();
    let main = symbols.iter().position(|s| s.name == b"main").unwrap();
    let place = (table.offset + main as u64 * raw::SYM) as usize + 6;
    data[place..place + 2].copy_from_slice(&(left_out as u16).to_le_bytes());
    let elf = Elf::parse(&data).unwrap();
    let mut writer = Writer::new(&elf, WriteOptions::default()).unwrap();
    writer.append(section(".text.more", NewKind::Code, 1, 16));
    writer.leave_out(left_out).unwrap();
    writer.write(&out, 0o755).unwrap();
    let written = std::fs::read(&out).unwrap();
    let new = Elf::parse(&written).unwrap();
    let index = new.symbols(SymbolTable::Dynamic).get(main).unwrap().section;
    assert!(
        index != 0 && index < raw::SHN_LORESERVE,
        "section {index:#x}"
    );
}

#[test]
fn exceptions_find_replaced_unwind_tables() {
    if !have(&["g++"]) || !Toolchain::Gnu.is_there() {
        return;
    }
    let dir = scratch();
    let (program, out) = (dir.path().join("program"), dir.path().join("out"));
    for flags in [
        &[][..],
        &["-no-pie"],
        &["-static"],
        &["-fuse-ld=lld", "-B/usr/lib/llvm-19/bin"],
    ] {
        if flags.len() > 1 && !Toolchain::Llvm.is_there() {
            continue;
        }
        succeed(
            Command::new("g++")
                .args(["-O1", "-w"])
                .args(flags)
                .arg(common::source("throws.cpp"))
                .arg("-o")
                .arg(&program),
        );
        let expected = run(&mut Command::new(&program));
        assert!(expected.status.success(), "{expected:?}");
        let data = std::fs::read(&program).unwrap();
        let elf = Elf::parse(&data).unwrap();
        let old = EhFrame::parse(&elf).unwrap();
        let (size, hdr_size) = merged_sizes(&old, &[]);
        let mut writer = Writer::new(&elf, WriteOptions::default()).unwrap();
        let frame = writer.append(section(".eh_frame", NewKind::ReadOnly, 8, size));
        let hdr = writer.append(section(".eh_frame_hdr", NewKind::ReadOnly, 4, hdr_size));
        let (mut frame_bytes, mut hdr_bytes) = (vec![0; size as usize], vec![0; hdr_size as usize]);
        write_merged(
            &old,
            &[],
            frame.addr.get(),
            &mut frame_bytes,
            hdr.addr.get(),
            &mut hdr_bytes,
        )
        .unwrap();
        writer.contents(frame.id).copy_from_slice(&frame_bytes);
        writer.contents(hdr.id).copy_from_slice(&hdr_bytes);
        writer.replace_unwind(frame.id, Some(hdr.id));
        // The old search table is of no use to anybody: without the new one nothing would be caught. (GNU ld
        // makes none for static programs, whose start-up code registers the old entries.)
        let old_hdr = elf.section(".eh_frame_hdr").map(|(_, s)| (s.addr, s.size));
        assert_eq!(old_hdr.is_none(), flags.contains(&"-static"));
        if let Some((addr, size)) = old_hdr {
            writer
                .patch(InputAddr::new(addr), &vec![0xff; size as usize])
                .unwrap();
        }
        writer.write(&out, 0o755).unwrap();
        assert_eq!(run(&mut Command::new(&out)), expected, "{flags:?}");
        let written = std::fs::read(&out).unwrap();
        let new = Elf::parse(&written).unwrap();
        for (name, placed) in [(".eh_frame", frame), (".eh_frame_hdr", hdr)] {
            let (_, now) = new.section(name).unwrap();
            assert_eq!(now.addr, placed.addr.get());
            if let Some((_, before)) = elf.section(name) {
                let (_, kept) = new.section(&format!("{name}.old")).unwrap();
                assert_eq!(
                    (kept.addr, kept.size, kept.kind),
                    (before.addr, before.size, before.kind)
                );
                assert_eq!(now.kind, before.kind);
            }
        }
        no_new_complaints(&program, &out);
        let segment = new
            .segments
            .iter()
            .find(|p| p.kind == raw::PT_GNU_EH_FRAME)
            .unwrap();
        assert_eq!((segment.addr, segment.mem_size), (hdr.addr.get(), hdr_size));
        assert_eq!(new.bytes_at(hdr.addr.get(), hdr_size), Some(&hdr_bytes[..]));
    }
}

#[test]
fn patches_follow_what_made_way() {
    if !Toolchain::Gnu.is_there() {
        return;
    }
    let dir = scratch();
    let (program, out) = (dir.path().join("program"), dir.path().join("out"));
    Toolchain::Gnu.build(&["program.c"], &[], &program);
    let data = std::fs::read(&program).unwrap();
    let elf = Elf::parse(&data).unwrap();
    let (_, note) = elf.section(".note.gnu.build-id").unwrap();
    let mut writer = Writer::new(&elf, common::with_zeroes(true)).unwrap();
    writer.append(section(".more", NewKind::ReadOnly, 1, 1));
    writer
        .patch(InputAddr::new(note.addr + note.size - 1), &[0xee])
        .unwrap();
    assert_eq!(
        writer.write(&out, 0o755).unwrap().program_headers,
        TableGrowth::MadeWay
    );
    let written = std::fs::read(&out).unwrap();
    let new = Elf::parse(&written).unwrap();
    assert_ne!(
        new.section(".note.gnu.build-id").unwrap().1.addr,
        note.addr,
        "the test is about a note that moves"
    );
    let mut id = elf.build_id.unwrap().to_vec();
    *id.last_mut().unwrap() = 0xee;
    assert_eq!(new.build_id, Some(&id[..]));
}

#[test]
fn room_that_is_not_used_leaves_no_segment() {
    let data = synthetic(3);
    let elf = Elf::parse(&data).unwrap();
    let dir = scratch();
    let out = dir.path().join("out");
    let mut writer = Writer::new(&elf, common::with_zeroes(true)).unwrap();
    writer.patch(InputAddr::new(elf.entry), &[0x90]).unwrap();
    writer.write(&out, 0o755).unwrap();
    let written = std::fs::read(&out).unwrap();
    let new = Elf::parse(&written).unwrap();
    assert_eq!(new.segments.len(), 3);
    assert_eq!(new.bytes_at(elf.entry, 2), Some(&[0x90, 0xc3][..]));
}

#[test]
fn refused_calls_leave_the_target_and_the_directory_as_they_were() {
    let data = synthetic(2);
    let elf = Elf::parse(&data).unwrap();
    let dir = scratch();
    let target = dir.path().join("target");
    std::fs::write(&target, "precious").unwrap();
    let refused = |what: &str, calls: &dyn Fn(&mut Writer<'_>), zero_fill: bool| {
        let mut writer = Writer::new(&elf, common::with_zeroes(zero_fill)).unwrap();
        calls(&mut writer);
        let said = refusal(writer.write(&target, 0o755).unwrap_err());
        assert!(said.contains(what), "{said:?} should contain {what:?}");
        assert_eq!(std::fs::read(&target).unwrap(), b"precious");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    };
    let bad_align = |w: &mut Writer<'_>| {
        w.append(section(".x", NewKind::Code, 3, 1));
    };
    refused("alignment of section .x is 0x3", &bad_align, false);
    refused(
        "0xffffffffffffff00",
        &|w| {
            w.append(section(".x", NewKind::Code, 1, 0xffff_ffff_ffff_ff00));
        },
        false,
    );
    refused(
        "fit memory",
        &|w| {
            w.append(section(".x", NewKind::Note, 1, 1 << 62));
        },
        false,
    );
    refused(
        ".z",
        &|w| {
            w.append_zero_fill(".z", 1);
        },
        false,
    );
    let twice = |w: &mut Writer<'_>| {
        w.append_zero_fill(".z", 1);
        w.append_zero_fill(".zz", 1);
    };
    refused(".zz", &twice, true);
    let behind = |w: &mut Writer<'_>| {
        w.append_zero_fill(".z", 1);
        w.append(section(".late", NewKind::ReadOnly, 1, 1));
    };
    refused(".late", &behind, true);
    let disagreeing = |w: &mut Writer<'_>| {
        w.patch(InputAddr::new(elf.entry), &[1, 2, 3]).unwrap();
        w.patch(InputAddr::new(elf.entry + 2), &[4]).unwrap();
    };
    refused("0x03 and 0x04", &disagreeing, false);
    let edit = SymbolEdit {
        value: 0,
        size: 0,
        section: InSection::Old(1),
    };
    refused(
        "symbol 9 was to be changed",
        &|w| w.edit_symbol(SymbolTable::Static, 9, edit),
        false,
    );
    let strangers = |w: &mut Writer<'_>| {
        let mut other = Writer::new(&elf, WriteOptions::default()).unwrap();
        let id = other.append(section(".x", NewKind::ReadOnly, 1, 1)).id;
        w.replace_unwind(id, Some(id));
    };
    refused("0 were appended", &strangers, false);

    // In a file that keeps its headers, patches cannot change them.
    let mut writer = Writer::new(&elf, WriteOptions::default()).unwrap();
    for (addr, len) in [(BASE + data.len() as u64, 1), (BASE - 1, 2), (u64::MAX, 1)] {
        let said = writer
            .patch(InputAddr::new(addr), &vec![0; len])
            .unwrap_err()
            .what;
        assert!(said.contains(&format!("{addr:#x}")), "{said}");
    }
    assert!(writer.patch(InputAddr::new(0), &[]).is_ok());

    // What the system refuses.
    let missing = dir.path().join("no/such/directory");
    let writer = Writer::new(&elf, WriteOptions::default()).unwrap();
    let said = writer.write(&missing, 0o755).unwrap_err();
    assert!(
        matches!(&said, WriteError::Io { path, .. } if path.contains("no/such")),
        "{said}"
    );
    // An input that was cut while it was read.
    let mut whole = data.clone();
    whole.resize(data.len() + (1 << 20), 7);
    let elf = Elf::parse(&whole).unwrap();
    let mut cut = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut cut, &whole[..whole.len() - 9]).unwrap();
    let mut writer = Writer::new(&elf, WriteOptions::default()).unwrap();
    writer.copy_from(&cut);
    let said = writer.write(&target, 0o755).unwrap_err().to_string();
    assert!(said.contains("it was changed"), "{said}");
    assert_eq!(std::fs::read(&target).unwrap(), b"precious");
    let directory = dir.path().join("directory");
    std::fs::create_dir(&directory).unwrap();
    std::fs::write(directory.join("file"), "").unwrap();
    let writer = Writer::new(&elf, WriteOptions::default()).unwrap();
    assert!(matches!(
        writer.write(&directory, 0o755),
        Err(WriteError::Io { .. })
    ));
    assert_eq!(
        std::fs::read_dir(dir.path()).unwrap().count(),
        2,
        "no temporary file is left"
    );
}

#[test]
fn headers_that_are_written_anew_cannot_be_patched() {
    if !Toolchain::Gnu.is_there() {
        return;
    }
    let dir = scratch();
    let (program, out) = (dir.path().join("program"), dir.path().join("out"));
    Toolchain::Gnu.build(&["program.c"], &[], &program);
    let data = std::fs::read(&program).unwrap();
    let elf = Elf::parse(&data).unwrap();
    for addr in [8, elf.phoff + 8] {
        let mut writer = Writer::new(&elf, WriteOptions::default()).unwrap();
        writer.patch(InputAddr::new(addr), &[1]).unwrap();
        assert!(refusal(writer.write(&out, 0o755).unwrap_err()).contains("that are rewritten"));
    }
}

#[test]
fn symbols_can_be_added_behind_any_local_one() {
    if !Toolchain::Gnu.is_there() {
        return;
    }
    let dir = scratch();
    let (program, out) = (dir.path().join("program"), dir.path().join("out"));
    Toolchain::Gnu.build(&["program.c"], &[], &program);
    let data = std::fs::read(&program).unwrap();
    let elf = Elf::parse(&data).unwrap();
    let symbols = elf.symbols(SymbolTable::Static);
    let locals = symbols.iter().position(|s| s.binding != 0).unwrap() as u32;
    let mut writer = Writer::new(&elf, WriteOptions::default()).unwrap();
    let places = [
        Some(0),
        Some(3),
        Some(3),
        Some(locals - 1),
        Some(locals + 2),
        Some(u32::MAX),
        None,
    ];
    for (i, after) in places.into_iter().enumerate() {
        let name = format!("new{i}").into_bytes();
        writer.add_symbol(NewSymbol {
            name,
            value: i as u64,
            size: 0,
            kind: 0,
            after,
            section: InSection::Old(1),
        });
    }
    writer.write(&out, 0o755).unwrap();
    let written = std::fs::read(&out).unwrap();
    let new = Elf::parse(&written).unwrap();
    let found = new.symbols(SymbolTable::Static);
    let order: Vec<Vec<u8>> = found.iter().map(|s| s.name.to_vec()).collect();
    let mut expected: Vec<Vec<u8>> = symbols.iter().map(|s| s.name.to_vec()).collect();
    let name = |i: usize| format!("new{i}").into_bytes();
    expected.splice(locals as usize..locals as usize, (3..7).map(name));
    expected.splice(4..4, (1..3).map(name));
    expected.insert(1, name(0));
    assert_eq!(order, expected);
    let (_, symtab) = new.section(".symtab").unwrap();
    assert_eq!(symtab.info, locals + 7);
    assert!(
        found
            .iter()
            .filter(|s| s.name.starts_with(b"new"))
            .all(|s| s.binding == 0 && s.section == 1)
    );
}
