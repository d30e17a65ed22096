//! The reader against another one (`object`) on whatever the machine has, and against damaged files.

use std::path::PathBuf;

use object::read::elf::{FileHeader, ProgramHeader, SectionHeader, Sym};
use object::{Endianness, elf::FileHeader64};
use postlink_elf::elf::{Elf, SymbolTable};

/// ELF files that every Linux machine has, this test among them.
fn samples() -> Vec<PathBuf> {
    let mut files = vec![std::env::current_exe().expect("a running test has a file")];
    for dir in [
        "/usr/bin",
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
    ] {
        let Ok(entries) = std::fs::read_dir(dir) else {
            continue;
        };
        let mut found: Vec<PathBuf> = entries
            .flatten()
            .filter(|e| e.file_type().is_ok_and(|t| t.is_file()))
            .map(|e| e.path())
            .filter(|p| std::fs::metadata(p).is_ok_and(|m| (64..8 << 20).contains(&m.len())))
            .collect();
        found.sort();
        files.extend(found.into_iter().take(120));
    }
    files
}

fn compare(data: &[u8]) -> Option<usize> {
    let header = FileHeader64::<Endianness>::parse(data).ok()?;
    let e = header.endian().ok()?;
    if !matches!(header.e_type(e).0, 2 | 3) || !header.is_little_endian() {
        return None;
    }
    let elf = Elf::parse(data).expect("what object reads can be read");
    let segments = header.program_headers(e, data).expect("checked by object");
    assert_eq!(segments.len(), elf.segments.len());
    for (a, b) in segments.iter().zip(&elf.segments) {
        let ours = (
            b.kind,
            b.flags,
            b.offset,
            b.addr,
            b.file_size,
            b.mem_size,
            b.align,
        );
        let theirs = (
            a.p_type(e).0,
            a.p_flags(e).0,
            a.p_offset(e),
            a.p_vaddr(e),
            a.p_filesz(e),
            a.p_memsz(e),
            a.p_align(e),
        );
        assert_eq!(ours, theirs);
    }
    let sections = header.sections(e, data).expect("checked by object");
    assert_eq!(sections.len(), elf.sections.len());
    for (a, b) in sections.iter().zip(&elf.sections) {
        assert_eq!(
            sections.section_name(e, a).expect("named"),
            b.name.as_bytes()
        );
        assert_eq!(
            (a.sh_type(e).0, a.sh_addr(e), a.sh_size(e)),
            (b.kind, b.addr, b.size)
        );
        assert_eq!(a.data(e, data).expect("in the file"), elf.section_data(b));
    }
    let mut seen = 0;
    for (kind, table) in [
        (object::elf::SHT_SYMTAB, SymbolTable::Static),
        (object::elf::SHT_DYNSYM, SymbolTable::Dynamic),
    ] {
        let theirs = sections.symbols(e, data, kind).expect("readable");
        let ours = elf.symbols(table);
        if theirs.is_empty() {
            continue;
        }
        assert_eq!(theirs.len(), ours.len());
        for (i, a) in theirs.iter().enumerate() {
            let b = ours.get(i).expect("below the length");
            assert_eq!(theirs.symbol_name(e, a).expect("named"), b.name);
            assert_eq!(
                (a.st_value(e), a.st_size(e), a.st_info().0),
                (b.value, b.size, b.binding << 4 | b.kind)
            );
            seen += 1;
        }
    }
    let build_id = sections.iter().find_map(|s| {
        let mut notes = s.notes(e, data).ok()??;
        std::iter::from_fn(|| notes.next().ok()?)
            .find(|n| n.name() == b"GNU" && n.n_type(e).0 == 3)
            .map(|n| n.desc())
    });
    assert_eq!(build_id, elf.build_id);
    assert!(elf.dyn_relocs().is_ok(), "{:?}", elf.dyn_relocs().err());
    assert!(elf.kept_relocs().is_ok());
    Some(seen)
}

#[test]
fn agrees_with_another_reader_on_the_files_of_this_machine() {
    let (mut files, mut symbols) = (0, 0);
    for path in samples() {
        let Ok(data) = std::fs::read(&path) else {
            continue;
        };
        eprintln!("{}", path.display());
        if let Some(seen) = compare(&data) {
            files += 1;
            symbols += seen;
        }
    }
    assert!(
        files > 0 && symbols > 1000,
        "{files} files, {symbols} symbols"
    );
}
