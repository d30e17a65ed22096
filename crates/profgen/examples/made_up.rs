//! Makes up input for measurements.
//!
//! `made_up script PROGRAM MEGABYTES flat|chains` writes a perf script of samples of a program;
//! `made_up program MEGABYTES` writes a program that hardly does anything and has that many megabytes of
//! pseudo probes. Both to the standard output.

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use postlink_elf::elf::Elf;
use postlink_profgen::dwarf::Lines;
use postlink_profgen::testing::Walk;
use postlink_profgen::{Guid, Program};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["script", program, megabytes, kind] => match megabytes.parse() {
            Ok(megabytes) => script(program, megabytes, kind == "chains"),
            Err(error) => Err(io::Error::other(error)),
        },
        ["program", megabytes] => match megabytes.parse() {
            Ok(megabytes) => program(megabytes),
            Err(error) => Err(io::Error::other(error)),
        },
        _ => Err(io::Error::other(
            "usage: made_up script PROGRAM MEGABYTES flat|chains, made_up program MEGABYTES",
        )),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Counts what is written.
struct Counted<W> {
    out: W,
    written: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write_all(bytes)?;
        self.written += bytes.len() as u64;
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn script(path: &str, megabytes: u64, chains: bool) -> io::Result<()> {
    let data = std::fs::read(path)?;
    let elf = Elf::parse(&data).map_err(io::Error::other)?;
    let lines = Lines::load(&elf).map_err(io::Error::other)?;
    let program = Program::new(&elf, &lines);
    let name = path.rsplit('/').next().unwrap_or(path);
    let mut walk = Walk::new(&program, 1).ok_or_else(|| io::Error::other("no functions"))?;
    let mut out = Counted {
        out: BufWriter::with_capacity(1 << 20, io::stdout().lock()),
        written: 0,
    };
    walk.write_mapping(name, 0x1000_0000, &mut out)?;
    while out.written < megabytes << 20 {
        walk.advance(400);
        walk.write(chains, 0x1000_0000, &mut out)?;
    }
    out.flush()
}

fn uleb(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Functions of 64 bytes; each has probes of its own, and inlined into it two bodies of its neighbours, one
/// in the other.
fn program(megabytes: u64) -> io::Result<()> {
    const BASE: u64 = 0x40_0000;
    const SIZE: u64 = 64;
    const FUNCTION: [u8; 16] = [
        0x89, 0xf8, 0x01, 0xf0, 0x85, 0xc0, 0x75, 0x02, 0xff, 0xc0, 0x0f, 0x1f, 0x44, 0x00, 0x00,
        0x90,
    ];
    let (mut text, mut probes, mut described) = (Vec::new(), Vec::new(), Vec::new());
    let (mut symbols, mut strings) = (vec![0; 24], vec![0]);
    let mut number = 0u64;
    let name = |number: u64| format!("_Z{}function_{number:07}v", 16);
    let text_at = 0x1000;
    while (probes.len() as u64) < megabytes << 20 {
        let address = BASE + text_at + number * SIZE;
        let own = name(number);
        for _ in 0..3 {
            text.extend(FUNCTION);
        }
        text.extend([0x90; 15]);
        text.push(0xc3);
        let guid = Guid::of(own.as_bytes());
        described.extend(guid.0.to_le_bytes());
        described.extend((0xffff_ffff | number << 48).to_le_bytes());
        uleb(&mut described, own.len() as u64);
        described.extend(own.as_bytes());
        symbols.extend((strings.len() as u32).to_le_bytes());
        symbols.extend([0x12, 0]);
        symbols.extend(1u16.to_le_bytes());
        symbols.extend(address.to_le_bytes());
        symbols.extend(SIZE.to_le_bytes());
        strings.extend(own.as_bytes());
        strings.push(0);
        // (depth, number of probes): the function, and two bodies inlined into each other.
        for depth in 0..3u64 {
            if depth > 0 {
                uleb(&mut probes, depth + 1);
            }
            let body = Guid::of(name((number + depth) % 1000).as_bytes());
            let body = if depth == 0 { guid } else { body };
            probes.extend(body.0.to_le_bytes());
            uleb(&mut probes, 8);
            uleb(&mut probes, u64::from(depth < 2));
            for index in 1..=8 {
                uleb(&mut probes, index);
                probes.push(0x80);
                // Back by 32 at the start of an inlined body, else from instruction to instruction.
                probes.push(match (index, depth) {
                    (1, 0) => 0,
                    (1, _) => 0x60,
                    (2 | 6, _) => 2,
                    (3 | 7, _) => 2,
                    (4 | 8, _) => 2,
                    _ => 10,
                });
            }
        }
        number += 1;
    }
    let sections: [(&str, u32, u64, &[u8], u32, u64); 5] = [
        (".text", 1, 6, &text, 0, 0),
        (".pseudo_probe_desc", 1, 0, &described, 0, 0),
        (".pseudo_probe", 1, 0, &probes, 0, 0),
        (".symtab", 2, 0, &symbols, 5, 24),
        (".strtab", 3, 0, &strings, 0, 0),
    ];
    let (mut out, mut headers, mut names) = (vec![0; 0x1000], vec![0u8; 64], vec![0u8]);
    for (name, kind, flags, bytes, link, entry) in sections {
        out.resize(out.len().next_multiple_of(8), 0);
        let address = if flags == 0 {
            0
        } else {
            BASE + out.len() as u64
        };
        headers.extend((names.len() as u32).to_le_bytes());
        headers.extend(kind.to_le_bytes());
        for word in [flags, address, out.len() as u64, bytes.len() as u64] {
            headers.extend(word.to_le_bytes());
        }
        headers.extend(link.to_le_bytes());
        headers.extend(u32::from(kind == 2).to_le_bytes());
        headers.extend(16u64.to_le_bytes());
        headers.extend(entry.to_le_bytes());
        names.extend(name.as_bytes());
        names.push(0);
        out.extend(bytes);
    }
    headers.extend((names.len() as u32).to_le_bytes());
    names.extend(b".shstrtab\0");
    headers.extend(3u32.to_le_bytes());
    for word in [0, 0, out.len() as u64, names.len() as u64] {
        headers.extend(word.to_le_bytes());
    }
    headers.extend([0; 8]);
    headers.extend(1u64.to_le_bytes());
    headers.extend(0u64.to_le_bytes());
    out.extend(names);
    out.resize(out.len().next_multiple_of(8), 0);
    let table = out.len() as u64;
    out.extend(headers);
    let mut head = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0\x01\0\0\0".to_vec();
    for word in [BASE + text_at, 64, table] {
        head.extend(word.to_le_bytes());
    }
    head.extend([0; 4]);
    for half in [64u16, 56, 1, 64, 7, 6] {
        head.extend(half.to_le_bytes());
    }
    head.extend([1, 0, 0, 0, 5, 0, 0, 0]);
    let len = text_at + text.len() as u64;
    for word in [0, BASE, BASE, len, len, 0x1000] {
        head.extend(word.to_le_bytes());
    }
    out[..head.len()].copy_from_slice(&head);
    io::stdout().lock().write_all(&out)
}
