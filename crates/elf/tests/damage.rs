//! Damaged files: whatever is wrong with them, reader and writer say so or make do, and do not panic.

mod common;

use std::path::Path;

use common::{Toolchain, scratch};
use postlink_elf::elf::{Elf, SymbolTable};
use postlink_elf::note::Note;
use postlink_elf::raw::{self, Ehdr, Phdr, Shdr};
use postlink_elf::write::{InSection, NewKind, NewSection, NewSymbol, SymbolEdit, Writer};
use postlink_elf::{ErrorKind, InputAddr, Place, Value};

/// A linked program with kept relocations, symbols and all; where there is no compiler, a program of the system.
fn samples() -> Vec<Vec<u8>> {
    if !Toolchain::Gnu.is_there() {
        return ["/bin/true", "/usr/bin/env"]
            .iter()
            .filter_map(|p| std::fs::read(p).ok())
            .collect();
    }
    let dir = scratch();
    let build = |flags: &[&str]| {
        let to = dir.path().join("program");
        Toolchain::Gnu.build(&["program.c"], flags, &to);
        std::fs::read(to).unwrap()
    };
    vec![
        build(&[
            "-Wl,-q",
            "-Wl,-z,pack-relative-relocs",
            "-Wl,--hash-style=both",
            "-rdynamic",
        ]),
        build(&["-no-pie", "-g0", "-Wl,-q"]),
    ]
}

/// Uses everything that the reader offers.
fn read_all(elf: &Elf<'_>) {
    for table in [SymbolTable::Static, SymbolTable::Dynamic] {
        let symbols = elf.symbols(table);
        assert_eq!(symbols.iter().count(), symbols.len());
        assert!(symbols.get(symbols.len()).is_none());
        for s in symbols.iter().take(500) {
            let _ = (
                elf.section_at(s.value),
                elf.bytes_at(s.value, s.size),
                elf.u64_at(s.value),
            );
        }
    }
    for s in &elf.sections {
        assert!(!s.has_contents() || elf.section_data(s).len() as u64 == s.size);
        if s.is_alloc() {
            let _ = (
                elf.section_at(s.addr),
                elf.section_at(s.end()),
                elf.bytes_at(s.addr, s.size),
            );
        }
    }
    for p in &elf.segments {
        for addr in [
            p.addr,
            p.addr.wrapping_add(p.mem_size),
            p.addr.wrapping_sub(1),
        ] {
            let offset = elf.offset_of(addr);
            assert!(offset.is_none_or(|at| (at as usize) < elf.data.len()));
            assert_eq!(offset.is_some(), elf.bytes_at(addr, 1).is_some());
            assert!(elf.bytes_at(addr, u64::MAX).is_none());
        }
    }
    if let Ok(relocs) = elf.dyn_relocs() {
        for r in relocs.iter().filter_map(|r| r.addend_at) {
            assert!(elf.bytes_at(r, 8).is_some());
        }
    }
    let _ = (
        elf.kept_relocs(),
        elf.has_kept_relocs(),
        elf.interpreter(),
        elf.extent(),
        Note::read(elf),
    );
}

/// Writes it with some of everything. `None` if that is refused, else whether the result can be read: a
/// damaged file may say that its tables overlap, and then a change of one damages the other.
fn write_some(elf: &Elf<'_>, zero_fill: bool, to: &Path) -> Option<bool> {
    let Ok(mut writer) = Writer::new(elf, common::with_zeroes(zero_fill)) else {
        return None;
    };
    let text = writer.append(NewSection {
        name: ".text.new".into(),
        kind: NewKind::Code,
        align: 64,
        size: 100,
    });
    let note = writer.append(NewSection {
        name: ".note.new".into(),
        kind: NewKind::Note,
        align: 4,
        size: 12,
    });
    if zero_fill {
        writer.append_zero_fill(".zeroes", 1);
    }
    writer.contents(text.id).fill(0x90);
    writer.contents(note.id).fill(0);
    let (first, last) = elf.extent();
    // The ELF header itself is written anew.
    for addr in [first.wrapping_add(64), elf.entry, last.wrapping_sub(8)] {
        let _ = writer.patch(InputAddr::new(addr), &[0; 4]);
    }
    if let Some((tag, ..)) = elf.dynamic.last() {
        writer.set_dynamic(*tag, 77).expect("it exists");
    }
    let section = InSection::New(text.id);
    for table in [SymbolTable::Static, SymbolTable::Dynamic] {
        let count = elf.symbols(table).len() as u32;
        if count > 2 {
            writer.edit_symbol(
                table,
                count - 1,
                SymbolEdit {
                    value: text.addr.get(),
                    size: 1,
                    section,
                },
            );
        }
    }
    writer.add_symbol(NewSymbol {
        name: b"new".to_vec(),
        value: text.addr.get(),
        size: 1,
        kind: 2,
        after: Some(2),
        section,
    });
    writer.write(to, 0o600).ok()?;
    let data = std::fs::read(to).unwrap();
    let Ok(new) = Elf::parse(&data) else {
        return Some(false);
    };
    assert_eq!(new.bytes_at(text.addr.get(), 100), Some(&[0x90; 100][..]));
    read_all(&new);
    Some(true)
}

#[test]
fn files_that_end_anywhere_are_refused_or_read() {
    let dir = scratch();
    let out = dir.path().join("out");
    for data in samples() {
        // Headers byte by byte, the rest in steps.
        let lengths = (0..0x400)
            .chain((0x400..data.len()).step_by(61))
            .chain(data.len() - 200..=data.len());
        for length in lengths {
            let Ok(elf) = Elf::parse(&data[..length]) else {
                continue;
            };
            read_all(&elf);
            write_some(&elf, false, &out);
        }
        assert!(
            Elf::parse(&data[..data.len() - 1]).is_err(),
            "section headers stand at the end"
        );
    }
}

/// Offsets of every field of every header of a file, with its size.
fn fields(data: &[u8]) -> Vec<(usize, usize)> {
    let header = Ehdr::read(data, 16).unwrap();
    let mut fields: Vec<(usize, usize)> = vec![
        (4, 1),
        (5, 1),
        (16, 2),
        (18, 2),
        (24, 8),
        (32, 8),
        (40, 8),
        (52, 2),
        (54, 2),
        (56, 2),
        (58, 2),
        (60, 2),
        (62, 2),
    ];
    for i in 0..usize::from(header.e_phnum) {
        let at = header.e_phoff as usize + i * 56;
        fields.extend(
            [(at, 4), (at + 4, 4)]
                .into_iter()
                .chain((1..7).map(|k| (at + k * 8, 8))),
        );
    }
    for i in 0..usize::from(header.e_shnum) {
        let at = header.e_shoff as usize + i * 64;
        fields.extend([(at, 4), (at + 4, 4), (at + 40, 4), (at + 44, 4)]);
        fields.extend([8, 16, 24, 32, 48, 56].map(|k| (at + k, 8)));
    }
    for s in
        (0..u64::from(header.e_shnum)).filter_map(|i| Shdr::read(data, header.e_shoff + i * 64))
    {
        // the dynamic section, hash tables, symbols
        if matches!(
            s.sh_type,
            raw::SHT_DYNAMIC
                | raw::SHT_HASH
                | raw::SHT_GNU_HASH
                | raw::SHT_SYMTAB
                | raw::SHT_DYNSYM
                | raw::SHT_RELR
        ) {
            fields.extend(
                (s.sh_offset as usize..(s.sh_offset + s.sh_size) as usize)
                    .step_by(8)
                    .map(|at| (at, 8)),
            );
        }
    }
    fields.retain(|(at, size)| at + size <= data.len());
    fields
}

#[test]
fn damaged_headers_are_refused_or_read_and_written() {
    let dir = scratch();
    let out = dir.path().join("out");
    let samples = samples();
    let fields: Vec<_> = samples.iter().map(|data| fields(data)).collect();
    let (mut read, mut written, mut unreadable) = (0, 0, 0);
    arbtest::arbtest(|u| {
        let which = u.choose_index(samples.len())?;
        let mut data = samples[which].clone();
        for _ in 0..u.int_in_range(1..=3)? {
            let (at, size) = *u.choose(&fields[which])?;
            let old = data[at..at + size]
                .iter()
                .rev()
                .fold(0u64, |n, b| n << 8 | u64::from(*b));
            let (_, other) = u
                .choose(&fields[which])
                .map(|(at, _)| (at, u64::from(data[*at])))?;
            // Values that are nearly right, right elsewhere, or extreme.
            let new = match u.int_in_range(0..=7)? {
                0 => old.wrapping_add(u.int_in_range(0..=64)?),
                1 => old.wrapping_sub(u.int_in_range(0..=64)?),
                2 => old ^ 1 << u.int_in_range(0..=63)?,
                3 => data.len() as u64 - u.int_in_range(0..=9)?,
                4 => u64::MAX - u.int_in_range(0..=9)?,
                5 => 0,
                6 => other,
                _ => u.arbitrary()?,
            };
            data[at..at + size].copy_from_slice(&new.to_le_bytes()[..size]);
        }
        let Ok(elf) = Elf::parse(&data) else {
            return Ok(());
        };
        read += 1;
        read_all(&elf);
        match write_some(&elf, u.arbitrary()?, &out) {
            Some(true) => written += 1,
            Some(false) => unreadable += 1,
            None => {}
        }
        Ok(())
    })
    .budget_ms(2_400);
    assert!(
        read > 20 && written > 5,
        "{read} were read, {written} written: the damage is too great to test anything"
    );
    assert!(
        unreadable * 20 < written + 20,
        "of {written} outputs, {unreadable} cannot be read"
    );
}

#[test]
fn damaged_bytes_are_refused_or_read_and_written() {
    let dir = scratch();
    let out = dir.path().join("out");
    let samples = samples();
    arbtest::arbtest(|u| {
        let mut data = u.choose(&samples)?.clone();
        for _ in 0..u.int_in_range(1..=20)? {
            let at = u.choose_index(data.len())?;
            data[at] = u.arbitrary()?;
        }
        if let Ok(elf) = Elf::parse(&data) {
            read_all(&elf);
            write_some(&elf, u.arbitrary()?, &out);
        }
        Ok(())
    })
    .budget_ms(1_200);
}

/// A change to a file and words of the sentence that refuses it.
type Case<'a> = (&'a str, &'a [&'a str], &'a dyn Fn(&mut Vec<u8>));

#[test]
fn refusals_name_the_place_and_the_values() {
    if !Toolchain::Gnu.is_there() {
        return;
    }
    let sample = &samples()[0];
    let header = Ehdr::read(sample, 16).unwrap();
    let find = |wanted: u32| {
        let table = (0..u64::from(header.e_shnum)).map(|i| header.e_shoff + i * 64);
        table
            .into_iter()
            .find(|at| Shdr::read(sample, *at).is_some_and(|s| s.sh_type == wanted))
            .unwrap()
    };
    let put = |data: &mut Vec<u8>, at: u64, value: u64, size: usize| {
        data[at as usize..at as usize + size].copy_from_slice(&value.to_le_bytes()[..size]);
    };
    let loads: Vec<u64> = (0..u64::from(header.e_phnum))
        .map(|i| header.e_phoff + i * 56)
        .filter(|at| Phdr::read(sample, *at).is_some_and(|p| p.p_type == raw::PT_LOAD))
        .collect();
    let (symtab, dynsym) = (find(raw::SHT_SYMTAB), find(raw::SHT_DYNSYM));
    let cases: &[Case<'_>] = &[
        ("magic", &["not an ELF file", "7e, 45"], &|d| d[0] = 0x7e),
        ("class", &["EI_CLASS is 1", "EI_DATA 1"], &|d| d[4] = 1),
        ("order", &["EI_DATA 2"], &|d| d[5] = 2),
        ("type", &["e_type is 1"], &|d| d[16] = 1),
        ("entry size", &["e_phentsize is 55", "56"], &|d| d[54] = 55),
        (
            "table",
            &["program headers at offset 0x7fffffffffffffff"],
            &|d| put(d, 32, i64::MAX as u64, 8),
        ),
        (
            "sections",
            &["section headers at offset", "do not fit"],
            &|d| put(d, 60, 0xfe00, 2),
        ),
        ("section table", &["begin at offset 0x1122334455"], &|d| {
            put(d, 40, 0x11_2233_4455, 8)
        }),
        ("names", &["section 5000", "e_shstrndx"], &|d| {
            put(d, 62, 5000, 2)
        }),
        ("segment", &["program header", "0xfffff0000"], &|d| {
            put(d, loads[1] + 8, 0xf_ffff_0000, 8)
        }),
        ("memory", &["loadable segment", "0x1 in memory"], &|d| {
            put(d, loads[1] + 40, 1, 8)
        }),
        ("align", &["no power of two", "0x1001"], &|d| {
            put(d, loads[1] + 48, 0x1001, 8)
        }),
        ("wrap", &["end of the address space"], &|d| {
            put(d, loads[3] + 40, u64::MAX, 8)
        }),
        ("overlap", &["loadable segment", "before segment"], &|d| {
            put(d, loads[0] + 40, 0x10_0000, 8);
        }),
        ("section end", &[".symtab", "the file ends at"], &|d| {
            put(d, symtab + 32, 24 << 30, 8)
        }),
        ("entries", &["in entries of 25", "symbols have 24"], &|d| {
            put(d, symtab + 56, 25, 8)
        }),
        (
            "strings",
            &[".dynsym", "section 1", "no string table"],
            &|d| put(d, dynsym + 40, 1, 4),
        ),
        (
            "section wrap",
            &[".dynsym", "end of the address space"],
            &|d| put(d, dynsym + 16, u64::MAX, 8),
        ),
        ("null", &["section 0 has type 0x1"], &|d| {
            put(d, header.e_shoff + 4, 1, 4)
        }),
        ("name", &["sh_name 0xffffff00"], &|d| {
            put(d, dynsym, 0xffff_ff00, 4)
        }),
    ];
    for (name, words, change) in cases {
        let mut data = sample.clone();
        change(&mut data);
        let said = Elf::parse(&data).expect_err(name).what;
        for word in *words {
            assert!(
                said.contains(word),
                "{name}: {said:?} should contain {word:?}"
            );
        }
    }
}

/// A change to a file, and what the error says to a program.
type Parts<'a> = (ErrorKind, Place, [Value; 2], &'a dyn Fn(&mut Vec<u8>));

#[test]
fn refusals_tell_a_program_their_kind_place_and_values() {
    let mut sample = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    let header = Ehdr {
        e_type: raw::ET_EXEC,
        e_version: 1,
        e_phoff: 64,
        e_phentsize: 56,
        e_phnum: 2,
        ..Ehdr::default()
    };
    sample.extend(header.bytes());
    for addr in [0x1000, 0x2000] {
        let load = Phdr {
            p_type: raw::PT_LOAD,
            p_vaddr: addr,
            p_filesz: 0x10,
            p_memsz: 0x10,
            ..Phdr::default()
        };
        sample.extend(load.bytes());
    }
    assert!(Elf::parse(&sample).is_ok());
    let put = |data: &mut Vec<u8>, at: usize, value: u64| {
        data[at..at + 8].copy_from_slice(&value.to_le_bytes());
    };
    let cases: &[Parts<'_>] = &[
        (
            ErrorKind::Unsupported,
            Place::Offset(0x10),
            [1u16.into(), "2 or 3".into()],
            &|d| d[0x10] = 1,
        ),
        (
            ErrorKind::Malformed,
            Place::Offset(0x36),
            [57u16.into(), 56u64.into()],
            &|d| d[0x36] = 57,
        ),
        (
            ErrorKind::Truncated,
            Place::Offset(64),
            [(64usize + 56).into(), (64u64 + 112).into()],
            &|d| d.truncate(64 + 56),
        ),
        (
            ErrorKind::Truncated,
            Place::Offset(0x1000),
            [(64usize + 112).into(), 0x1010u64.into()],
            &|d| put(d, 64 + 8, 0x1000),
        ),
        (
            ErrorKind::TooLarge,
            Place::Address(0x2000),
            [u64::MAX.into(), (u64::MAX - 0x2000).into()],
            &|d| put(d, 64 + 56 + 40, u64::MAX),
        ),
        (
            ErrorKind::Mismatch,
            Place::Address(0x1000),
            [0x10u64.into(), 1u64.into()],
            &|d| put(d, 64 + 40, 1),
        ),
        (
            ErrorKind::Order,
            Place::Address(0x2000),
            [0x2000u64.into(), 0x2001u64.into()],
            &|d| put(d, 64 + 40, 0x1001),
        ),
    ];
    for (kind, place, [found, expected], change) in cases {
        let mut data = sample.clone();
        change(&mut data);
        let error = Elf::parse(&data).expect_err("it is damaged");
        assert_eq!(error.kind(), *kind, "{error}");
        assert_eq!(error.place(), Some(*place), "{error}");
        assert_eq!(error.found(), Some(found), "{error}");
        assert_eq!(error.expected(), Some(expected), "{error}");
    }
}
