//! Prints what the reader finds in a file: `cargo run --release --example elfdump -- FILE [--symbols] [--relocs]`.
//!
//! One line each for segments, sections and dynamic entries, then counts of what is only read on demand, with
//! the time it took.

use std::fs::File;
use std::io::{self, Write};
use std::time::Instant;

use postlink_elf::elf::{Elf, SymbolTable};
use postlink_elf::note::Note;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let wants = |option: &str| arguments.iter().any(|a| a == option);
    let Some(path) = arguments.iter().find(|a| !a.starts_with("--")) else {
        return Err("usage: elfdump FILE [--symbols] [--relocs]".into());
    };
    let file = File::open(path)?;
    // SAFETY: the file is only read, and whoever changes it while this runs gets what they ask for.
    let map = unsafe { memmap2::Mmap::map(&file)? };
    let start = Instant::now();
    let elf = Elf::parse(&map).map_err(|e| format!("{path}: {e}"))?;
    let parsed = start.elapsed();

    let mut out = io::BufWriter::new(io::stdout().lock());
    writeln!(
        out,
        "type {}, machine {}, entry {:#x}",
        elf.etype, elf.machine, elf.entry
    )?;
    for p in &elf.segments {
        let flags = ["-", "x", "w", "wx", "r", "rx", "rw", "rwx"][(p.flags & 7) as usize];
        writeln!(
            out,
            "segment {:#010x} {flags:3} address {:#x} memory {:#x} offset {:#x} file {:#x} align {:#x}",
            p.kind, p.addr, p.mem_size, p.offset, p.file_size, p.align
        )?;
    }
    for (i, s) in elf.sections.iter().enumerate() {
        writeln!(
            out,
            "section {i} {} type {:#x} flags {:#x} address {:#x} offset {:#x} size {:#x} link {} info {}",
            s.name, s.kind, s.flags, s.addr, s.offset, s.size, s.link, s.info
        )?;
    }
    for (tag, value, at) in &elf.dynamic {
        writeln!(out, "dynamic {tag:#x} = {value:#x} at {at:#x}")?;
    }
    if let Some(interpreter) = elf.interpreter() {
        writeln!(out, "interpreter {}", String::from_utf8_lossy(interpreter))?;
    }
    if let Some(id) = elf.build_id {
        let hex: String = id.iter().map(|b| format!("{b:02x}")).collect();
        writeln!(out, "build-id {hex}")?;
    }
    if wants("--symbols") {
        for table in [SymbolTable::Static, SymbolTable::Dynamic] {
            for s in elf.symbols(table).iter() {
                let name = String::from_utf8_lossy(s.name);
                writeln!(
                    out,
                    "{table:?} {:#x} {} kind {} binding {} section {} {name}",
                    s.value, s.size, s.kind, s.binding, s.section
                )?;
            }
        }
    }
    if wants("--relocs") {
        for r in elf.dyn_relocs()? {
            writeln!(
                out,
                "dynamic relocation {} at {:#x}: symbol {} addend {:#x}",
                r.kind, r.addr, r.symbol, r.addend
            )?;
        }
        for r in elf.kept_relocs()? {
            writeln!(
                out,
                "kept relocation {} at {:#x}: symbol {} addend {:#x}",
                r.kind, r.addr, r.symbol, r.addend
            )?;
        }
    }
    if let Some(note) = Note::read(&elf)? {
        writeln!(
            out,
            "written by postlink: {:?}, {} functions moved",
            note.kind,
            note.functions.len()
        )?;
    }
    let timed = |what: &str, count: &dyn Fn() -> usize| -> String {
        let start = Instant::now();
        let n = count();
        format!("{n} {what} in {:.1?}", start.elapsed())
    };
    writeln!(out, "headers parsed in {parsed:.1?}")?;
    for line in [
        timed("symbols", &|| {
            elf.symbols(SymbolTable::Static)
                .iter()
                .filter(|s| s.section != 0)
                .count()
        }),
        timed("dynamic symbols", &|| {
            elf.symbols(SymbolTable::Dynamic)
                .iter()
                .filter(|s| s.section != 0)
                .count()
        }),
        timed("dynamic relocations", &|| {
            elf.dyn_relocs().map_or(0, |r| r.len())
        }),
        timed("kept relocations", &|| {
            elf.kept_relocs().map_or(0, |r| r.len())
        }),
    ] {
        writeln!(out, "{line}")?;
    }
    Ok(())
}
