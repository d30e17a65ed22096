//! Rewritten programs: they run as before, and other tools take them for ordinary ones.

mod common;

use std::path::Path;
use std::process::Command;

use common::{
    Toolchain, have, move_work, move_work_by, no_new_complaints, run, succeed, with_zeroes, work,
};
use postlink_elf::elf::{Elf, Segment, SymbolTable};
use postlink_elf::raw;
use postlink_elf::write::{NewKind, NewSection, TableGrowth, WriteOptions, Writer};

/// What must hold for every output, seen through the reader.
fn check_structure(before: &[u8], after: &[u8]) {
    let (old, new) = (Elf::parse(before).unwrap(), Elf::parse(after).unwrap());
    for p in new.loads() {
        assert_eq!(p.addr % p.align.max(1), p.offset % p.align.max(1), "{p:?}");
    }
    assert_eq!(old.build_id, new.build_id);
    assert_eq!(old.interpreter(), new.interpreter());
    assert!(!new.has_kept_relocs());
    if !new.sections.is_empty() {
        for name in [".text.postlink", ".rodata.postlink"] {
            assert!(new.section(name).is_some_and(|(_, s)| new.bytes_at(s.addr, s.size) == Some(new.section_data(s))), "{name}");
        }
        assert!(
            new.section(".note.postlink")
                .is_some_and(|(_, s)| s.kind == raw::SHT_NOTE && !s.is_alloc())
        );
    }
    // Every loaded section is where its address says.
    for s in new
        .sections
        .iter()
        .filter(|s| s.is_alloc() && s.has_contents() && s.size > 0)
    {
        assert_eq!(new.offset_of(s.addr), Some(s.offset), "{s:?}");
    }
    // All old sections are there with their contents, but for those that are written anew and the function.
    for s in old.sections.iter().filter(|s| s.has_contents()) {
        if matches!(s.kind, raw::SHT_SYMTAB | raw::SHT_DYNAMIC | raw::SHT_DYNSYM) {
            continue;
        }
        let dropped = s.kind == raw::SHT_RELA && !s.is_alloc();
        let found = new
            .sections
            .iter()
            .find(|n| n.name == s.name && n.kind == s.kind);
        assert_eq!(found.is_none(), dropped, "{s:?}");
        let Some(found) = found else { continue };
        if !s.is_code() {
            assert!(
                new.section_data(found).starts_with(old.section_data(s)),
                "{}",
                s.name
            );
        }
    }
    // Symbols: the same ones by name, in sections of the same names, and three in new places.
    let key = |elf: &Elf<'_>, s: &postlink_elf::elf::Symbol<'_>| {
        let section = if s.section < 0xff00 {
            elf.sections[s.section as usize].name
        } else {
            "-"
        };
        (s.name.to_vec(), section.to_string(), s.kind, s.binding)
    };
    let mut missing: Vec<_> = old
        .symbols(SymbolTable::Static)
        .iter()
        .map(|s| key(&old, &s))
        .collect();
    let mut extra: Vec<_> = new
        .symbols(SymbolTable::Static)
        .iter()
        .map(|s| key(&new, &s))
        .collect();
    missing.sort();
    extra.sort();
    for k in &missing.clone() {
        if let Ok(at) = extra.binary_search(k) {
            extra.remove(at);
            missing.remove(missing.binary_search(k).unwrap());
        }
    }
    if !old.symbols(SymbolTable::Static).is_empty() {
        assert_eq!(
            (missing.len(), extra.len()),
            (1, 3),
            "{missing:?} {extra:?}"
        );
        let (_, symtab) = new.section(".symtab").unwrap();
        let bindings: Vec<bool> = new
            .symbols(SymbolTable::Static)
            .iter()
            .map(|s| s.binding == 0)
            .collect();
        assert_eq!(
            bindings
                .iter()
                .position(|local| !local)
                .unwrap_or(bindings.len()),
            symtab.info as usize
        );
        assert!(bindings[symtab.info as usize..].iter().all(|local| !local));
    }
}

/// Builds a program, moves its function with and without counters, and holds the results against the original.
fn check_program(toolchain: Toolchain, flags: &[&str], growth: [TableGrowth; 2]) {
    if !toolchain.is_there() {
        return;
    }
    let dir = common::scratch();
    let program = dir.path().join("program");
    toolchain.build(&["program.c"], flags, &program);
    let expected = run(&mut Command::new(&program));
    assert!(
        String::from_utf8_lossy(&expected.stdout).contains("destructor"),
        "{expected:?}"
    );
    // Where a stripped program has the function is known from the one with symbols.
    let at = flags.contains(&"-s").then(|| {
        let flags: Vec<&str> = flags.iter().copied().filter(|f| *f != "-s").collect();
        let named = dir.path().join("named");
        toolchain.build(&["program.c"], &flags, &named);
        let data = std::fs::read(named).unwrap();
        let (_, addr, size) = work(&Elf::parse(&data).unwrap(), SymbolTable::Static).unwrap();
        (addr, size)
    });
    for (zero_fill, map_hole) in [(false, 0), (true, 0), (true, 64)] {
        let what = format!("zero_fill {zero_fill}, map_hole {map_hole}");
        let options = WriteOptions {
            map_hole,
            ..with_zeroes(zero_fill)
        };
        let out = dir.path().join(format!("program.{zero_fill}.{map_hole}"));
        let summary = move_work_by(&program, &out, options, at, false);
        assert_eq!(
            summary.program_headers,
            growth[usize::from(zero_fill)],
            "{what}"
        );
        let (before, after) = (
            std::fs::read(&program).unwrap(),
            std::fs::read(&out).unwrap(),
        );
        check_structure(&before, &after);
        if summary.program_headers == Elsewhere {
            older_kernels_find_the_table(&after);
        }
        // A page for the segments at most, when the kept relocations are counted. For older kernels a table that is
        // elsewhere is as far into the file as into memory.
        let gap = match summary.program_headers {
            Elsewhere => 6 * 4096,
            _ => 0,
        };
        assert!(
            after.len() < before.len() + 6000 + gap,
            "{} bytes became {}",
            before.len(),
            after.len()
        );
        let again = dir.path().join("again");
        move_work_by(&program, &again, options, at, true);
        assert_eq!(
            std::fs::read(&again).unwrap(),
            after,
            "the same calls give the same bytes"
        );
        assert_eq!(run(&mut Command::new(&out)), expected, "{what}");

        no_new_complaints(&program, &out);
        for (tool, args) in [
            ("strip", &["-o"][..]),
            ("objcopy", &[]),
            ("strip", &["-g", "-o"]),
        ] {
            if !have(&[tool]) || summary.program_headers == TableGrowth::Elsewhere {
                continue;
            }
            let copy = dir.path().join("copy");
            let mut command = Command::new(tool);
            match args.last() {
                Some(_) => command.args(args).arg(&copy).arg(&out),
                None => command.arg(&out).arg(&copy),
            };
            let said = run(&mut command);
            assert!(
                said.status.success() && said.stderr.is_empty(),
                "{command:?}: {}",
                String::from_utf8_lossy(&said.stderr)
            );
            assert_eq!(run(&mut Command::new(&copy)), expected, "after {command:?}");
        }
        if have(&["gdb"]) && at.is_none() {
            let elf = Elf::parse(&after).unwrap();
            let (_, addr, _) = work(&elf, SymbolTable::Static).unwrap();
            let ask = format!("info symbol {addr:#x}");
            let said = succeed(
                Command::new("gdb")
                    .args([
                        "-batch",
                        "-nx",
                        "-ex",
                        &ask,
                        "-ex",
                        "break main",
                        "-ex",
                        "run",
                        "-ex",
                        "next",
                        "-ex",
                        "continue",
                    ])
                    .arg(&out),
            );
            assert!(said.contains("work in section .text.postlink"), "{said}");
            let code = expected.status.code().unwrap();
            assert!(
                said.contains("main (argc=")
                    && said.contains(&format!("exited with code 0{code:o}")),
                "{said}"
            );
        }
    }
}

use TableGrowth::{Elsewhere, InGap, MadeWay, PageBelow};

/// Builds the library and a program that uses it, moves the library's function, and runs the program with both.
fn check_library(toolchain: Toolchain, flags: &[&str]) {
    if !toolchain.is_there() {
        return;
    }
    let dir = common::scratch();
    let (original, moved) = (dir.path().join("original"), dir.path().join("moved"));
    for d in [&original, &moved] {
        std::fs::create_dir(d).unwrap();
    }
    let library = original.join("libtwice.so");
    let map = format!(
        "-Wl,--version-script={}",
        common::source("library.map").display()
    );
    let flags: Vec<&str> = ["-shared", "-fPIC", &map, "-Wl,-soname,libtwice.so"]
        .iter()
        .chain(flags)
        .copied()
        .collect();
    toolchain.build(&["library.c"], &flags, &library);
    let user = dir.path().join("user");
    toolchain.build(&["user.c", library.to_str().unwrap()], &["-ldl"], &user);
    let play = |directory: &Path| run(Command::new(&user).env("LD_LIBRARY_PATH", directory));
    let expected = play(&original);
    assert!(
        String::from_utf8_lossy(&expected.stdout).contains("twice"),
        "{expected:?}"
    );
    for zero_fill in [false, true] {
        let out = moved.join("libtwice.so");
        let summary = move_work(&library, &out, zero_fill, None, false);
        assert_eq!(summary.program_headers, MadeWay);
        check_structure(
            &std::fs::read(&library).unwrap(),
            &std::fs::read(&out).unwrap(),
        );
        assert_eq!(play(&moved), expected, "zero_fill {zero_fill}");
        no_new_complaints(&library, &out);
        if have(&["strip"]) {
            succeed(Command::new("strip").arg(&out));
            assert_eq!(play(&moved), expected, "stripped, zero_fill {zero_fill}");
        }
    }
}

#[test]
fn library_with_symbol_versions_is_found_linked_and_opened() {
    check_library(Toolchain::Gnu, &[]);
    check_library(Toolchain::Gnu, &["-Wl,-q", "-Wl,--hash-style=both"]);
    check_library(
        Toolchain::Gnu,
        &["-Wl,--build-id=none", "-Wl,--hash-style=sysv"],
    );
    check_library(Toolchain::Llvm, &["-Wl,-q"]);
    check_library(
        Toolchain::Llvm,
        &["-Wl,--hash-style=both", "-Wl,-z,pack-relative-relocs"],
    );
}

#[test]
fn an_output_can_be_written_again() {
    if !Toolchain::Gnu.is_there() {
        return;
    }
    let dir = common::scratch();
    let program = dir.path().join("program");
    for flags in [
        &["-Wl,-q"][..],
        &["-static", "-Wl,--eh-frame-hdr"],
        &["-static-pie"],
    ] {
        Toolchain::Gnu.build(&["program.c"], flags, &program);
        let expected = run(&mut Command::new(&program));
        let (mut from, mut places) = (program.clone(), Vec::new());
        for round in 0..6 {
            let to = dir.path().join(format!("round.{round}"));
            // Counters only in the end: the code that counts cannot be copied again.
            places.push(move_work(&from, &to, round == 5, None, false).program_headers);
            assert_eq!(
                run(&mut Command::new(&to)),
                expected,
                "{flags:?}, round {round}"
            );
            from = to;
        }
        // One more, after the segment of zeroes.
        let data = std::fs::read(&from).unwrap();
        let elf = Elf::parse(&data).unwrap();
        let mut writer = Writer::new(&elf, common::with_zeroes(true)).unwrap();
        writer.append(NewSection {
            name: ".more".into(),
            kind: NewKind::ReadOnly,
            align: 8,
            size: 8,
        });
        writer.append_zero_fill(".zeroes", 5000);
        let to = dir.path().join("last");
        writer.write(&to, 0o755).unwrap();
        assert_eq!(run(&mut Command::new(&to)), expected, "{flags:?}, last");
        // In the end there is space where large sections were.
        assert_eq!(
            (places[0], places[5]),
            (MadeWay, InGap),
            "{flags:?}: {places:?}"
        );
    }
}

/// Linux before 5.18 takes the distance of the first segment from its place in the file for that of the table.
fn older_kernels_find_the_table(data: &[u8]) {
    let elf = Elf::parse(data).unwrap();
    let first = elf.loads().next().unwrap();
    let taken = first.addr - first.offset + elf.phoff;
    let is_at = |p: &&Segment| p.kind == raw::PT_PHDR;
    if let Some(table) = elf.segments.iter().find(is_at) {
        assert_eq!(taken, table.addr);
    }
    let end = taken + elf.segments.len() as u64 * raw::PHDR;
    let loaded = |p: &Segment| p.addr <= taken && end <= p.addr + p.file_size;
    assert!(elf.loads().any(loaded), "{taken:#x}");
}

#[test]
fn notes_that_code_refers_to_stay() {
    check_program(Toolchain::Gnu, &["-DOWN_NOTE"], [MadeWay, Elsewhere]);
    check_program(
        Toolchain::Gnu,
        &["-DOWN_NOTE", "-Wl,-q"],
        [MadeWay, Elsewhere],
    );
    check_program(
        Toolchain::Gnu,
        &["-DOWN_NOTE", "-static-pie"],
        [Elsewhere, Elsewhere],
    );
    check_program(
        Toolchain::Llvm,
        &["-DOWN_NOTE", "-Wl,-q"],
        [Elsewhere, Elsewhere],
    );
    check_program(
        Toolchain::Gnu,
        &["-DOWN_NOTE", "-no-pie", "-Wl,-q"],
        [MadeWay, PageBelow],
    );
    check_program(
        Toolchain::Llvm,
        &["-DOWN_NOTE", "-no-pie", "-Wl,-q"],
        [PageBelow, PageBelow],
    );
}

#[test]
fn a_hole_that_is_not_behind_code_is_loaded_by_a_segment_of_its_own() {
    if !Toolchain::Gnu.is_there() {
        return;
    }
    let dir = common::scratch();
    let (program, out) = (dir.path().join("program"), dir.path().join("out"));
    let flags = ["-Wl,-q", "-Wl,-z,separate-code"];
    Toolchain::Gnu.build(&["program.c"], &flags, &program);
    let before = std::fs::read(&program).unwrap();
    let old = Elf::parse(&before).unwrap();
    let mut hole: Vec<u64> = old.loads().map(|p| p.offset + p.file_size).collect();
    hole.sort_unstable();
    let write = |map_hole| {
        let options = WriteOptions {
            map_hole,
            zero_size: Some((100, 1)),
            ..with_zeroes(true)
        };
        let summary = move_work_by(&program, &out, options, None, false);
        (summary, std::fs::read(&out).unwrap())
    };
    let (summary, after) = write(0x200);
    let new = Elf::parse(&after).unwrap();
    check_structure(&before, &after);
    let loaded = new.loads().filter(|p| p.addr >= old.extent().1);
    let mapped: Vec<_> = loaded
        .filter(|p| hole.contains(&p.offset) && p.flags & raw::PF_W == 0)
        .collect();
    let [mapped] = mapped[..] else {
        panic!("{:?}", new.segments)
    };
    assert_eq!(mapped.file_size, mapped.mem_size);
    // What is in it was zeros that nothing loads.
    let end = mapped.offset + mapped.file_size;
    assert!(
        before[mapped.offset as usize..end as usize]
            .iter()
            .all(|b| *b == 0)
    );
    assert!(
        old.loads()
            .all(|p| p.offset + p.file_size <= mapped.offset || p.offset >= end)
    );
    let (wide, _) = write(0x10000);
    write(0x200);
    // The function and the table of forty bytes.
    let (_, text) = new.section(".text.postlink").unwrap();
    assert!(
        summary.size + text.size + 40 < wide.size,
        "{summary:?} {wide:?}"
    );
    // One strip leaves it there, another one puts it after the others.
    let expected = run(&mut Command::new(&program));
    for (strip, stays) in [("llvm-strip-19", true), ("strip", false)] {
        if !have(&[strip]) {
            continue;
        }
        let stripped = dir.path().join(strip);
        succeed(Command::new(strip).arg("-o").arg(&stripped).arg(&out));
        let bytes = std::fs::read(&stripped).unwrap();
        let elf = Elf::parse(&bytes).unwrap();
        let there = elf.load_at(mapped.addr).unwrap();
        assert_eq!(there.offset == mapped.offset, stays, "{strip}");
        assert_eq!(run(&mut Command::new(&stripped)), expected, "{strip}");
    }
}

#[test]
fn position_independent_program_of_gnu_ld_runs_and_is_ordinary() {
    check_program(Toolchain::Gnu, &[], [MadeWay, MadeWay]);
}

#[test]
fn program_with_kept_relocations_loses_them_and_runs() {
    check_program(Toolchain::Gnu, &["-Wl,-q"], [MadeWay, MadeWay]);
    check_program(Toolchain::Llvm, &["-Wl,-q"], [MadeWay, MadeWay]);
}

#[test]
fn program_at_a_fixed_address_runs_and_is_ordinary() {
    check_program(Toolchain::Gnu, &["-no-pie"], [MadeWay, MadeWay]);
    check_program(Toolchain::Gnu, &["-no-pie", "-Wl,-q"], [MadeWay, MadeWay]);
    check_program(Toolchain::Llvm, &["-no-pie", "-Wl,-q"], [MadeWay, MadeWay]);
}

// GNU ld makes no search table for the unwind entries of static programs. One may be added, so there has to
// be space for its segment too, and the notes in front of the relocations that code refers to are too short
// for that.

#[test]
fn static_program_runs_and_is_ordinary() {
    check_program(Toolchain::Gnu, &["-static"], [PageBelow, PageBelow]);
    check_program(
        Toolchain::Gnu,
        &["-static", "-Wl,-q"],
        [PageBelow, PageBelow],
    );
    check_program(
        Toolchain::Gnu,
        &["-static", "-Wl,--eh-frame-hdr"],
        [MadeWay, PageBelow],
    );
    check_program(
        Toolchain::Llvm,
        &["-static", "-Wl,-q"],
        [MadeWay, PageBelow],
    );
}

#[test]
fn static_program_without_build_id_grows_by_a_page_below() {
    check_program(
        Toolchain::Gnu,
        &["-static", "-Wl,--build-id=none", "-Wl,-z,norelro"],
        [PageBelow, PageBelow],
    );
}

#[test]
fn static_position_independent_program_runs_and_is_ordinary() {
    check_program(Toolchain::Gnu, &["-static-pie"], [MadeWay, MadeWay]);
    check_program(
        Toolchain::Gnu,
        &["-static-pie", "-Wl,-q"],
        [MadeWay, MadeWay],
    );
}

#[test]
fn program_of_lld_runs_and_is_ordinary() {
    check_program(Toolchain::Llvm, &[], [MadeWay, MadeWay]);
}

#[test]
fn stripped_program_runs_and_is_ordinary() {
    check_program(Toolchain::Gnu, &["-s"], [MadeWay, MadeWay]);
    check_program(Toolchain::Llvm, &["-s", "-no-pie"], [MadeWay, MadeWay]);
}

#[test]
fn packed_relative_relocations_survive() {
    check_program(
        Toolchain::Gnu,
        &["-Wl,-z,pack-relative-relocs"],
        [MadeWay, MadeWay],
    );
    check_program(
        Toolchain::Llvm,
        &["-Wl,-z,pack-relative-relocs", "-Wl,-q"],
        [MadeWay, MadeWay],
    );
}

#[test]
fn both_hash_tables_survive() {
    check_program(
        Toolchain::Gnu,
        &["-Wl,--hash-style=both", "-rdynamic"],
        [MadeWay, MadeWay],
    );
    check_program(
        Toolchain::Llvm,
        &["-Wl,--hash-style=both", "-rdynamic"],
        [MadeWay, MadeWay],
    );
    check_program(
        Toolchain::Gnu,
        &["-Wl,--hash-style=sysv", "-rdynamic", "-Wl,-q"],
        [MadeWay, MadeWay],
    );
}

#[test]
fn unusual_segment_layouts_survive() {
    check_program(
        Toolchain::Gnu,
        &["-Wl,-z,noseparate-code"],
        [MadeWay, MadeWay],
    );
    check_program(
        Toolchain::Gnu,
        &["-Wl,-z,max-page-size=0x200000", "-no-pie"],
        [MadeWay, MadeWay],
    );
    check_program(
        Toolchain::Gnu,
        &["-Wl,-z,max-page-size=0x200000"],
        [MadeWay, MadeWay],
    );
    check_program(
        Toolchain::Gnu,
        &["-static", "-Wl,-z,max-page-size=0x200000"],
        [PageBelow, PageBelow],
    );
    check_program(
        Toolchain::Llvm,
        &["-Wl,-z,separate-loadable-segments"],
        [MadeWay, MadeWay],
    );
}
