//! Lists what depends on position in a piece of x86-64 code given as hexadecimal bytes.
//!
//! ```text
//! $ cargo run -p postlink-isa --example branches -- 401000 "85 ff 74 05 e8 10 00 00 00 48 8b 05 20 00 00 00 c3"
//! 401002  +2  CondJump { cond: Cond(4), target: 0x401009 }   field at 1: Rel8 { trail: 0 } to 0x401009
//! …
//! ```
//!
//! Without bytes it shows a small function; with the path of an x86-64 ELF file it sweeps the executable sections and
//! says how fast that went.

use std::process::ExitCode;
use std::time::Instant;

use postlink_isa::x86_64::X86_64;
use postlink_isa::{Decode, Flow, Insn};

/// `test edi,edi; je 1f; call f; 1: mov rax,[rip+0x20]; ret`
const EXAMPLE: &str = "85 ff 74 05 e8 10 00 00 00 48 8b 05 20 00 00 00 c3";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.as_slice() {
        [] => list(EXAMPLE, 0x40_1000),
        [path] => measure(path),
        [addr, bytes @ ..] => match u64::from_str_radix(addr.trim_start_matches("0x"), 16) {
            Ok(addr) => list(&bytes.concat(), addr),
            Err(error) => Err(format!("address {addr}: {error}")),
        },
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("branches: {error}");
            ExitCode::FAILURE
        }
    }
}

fn list(text: &str, addr: u64) -> Result<(), String> {
    let digits: Vec<char> = text
        .chars()
        .filter(|character| !character.is_whitespace())
        .collect();
    let bytes = digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(&pair.iter().collect::<String>(), 16))
        .collect::<Result<Vec<u8>, _>>()
        .map_err(|error| format!("bytes {text:?}: {error}"))?;
    let stop = X86_64::sweep(&bytes, addr, |insn| {
        if let Some(line) = describe(insn) {
            println!("{:x}  +{}  {line}", insn.addr, insn.len);
        }
        true
    });
    match stop {
        Some(at) => Err(format!("no instruction at {at:#x}")),
        None => Ok(()),
    }
}

/// One line for an instruction that a rewriter must know about.
fn describe(insn: &Insn) -> Option<String> {
    let flow = match insn.flow {
        Flow::Next if insn.field.is_none() => return None,
        Flow::Jump { target } => format!("jump to {target:#x}"),
        Flow::CondJump { cond, target } => format!("jump on condition {} to {target:#x}", cond.0),
        Flow::ShortCond { target } => format!("short conditional to {target:#x}"),
        Flow::Call { target } => format!("call of {target:#x}"),
        other => format!("{other:?}"),
    };
    Some(match insn.field {
        Some(field) => format!(
            "{flow}; byte {} holds {:?} to {:#x}",
            field.at, field.kind, field.target
        ),
        None => flow,
    })
}

/// Sweeps the executable sections of a file, and prints the counts and the speed.
fn measure(path: &str) -> Result<(), String> {
    let file = std::fs::read(path).map_err(|error| format!("{path}: {error}"))?;
    let word =
        |at: usize| -> Option<u64> { Some(u64::from_le_bytes(*file.get(at..)?.first_chunk()?)) };
    let sections = || -> Option<Vec<(u64, &[u8])>> {
        let (table, count) = (
            word(0x28)? as usize,
            u16::from_le_bytes(*file.get(0x3c..)?.first_chunk()?),
        );
        let mut sections = Vec::new();
        for index in 0..usize::from(count) {
            let at = table.checked_add(index * 64)?;
            if word(at)? >> 32 == 1 && word(at + 8)? & 4 != 0 {
                let (offset, size) = (word(at + 24)? as usize, word(at + 32)? as usize);
                sections.push((word(at + 16)?, file.get(offset..)?.get(..size)?));
            }
        }
        Some(sections)
    };
    let sections =
        sections().ok_or_else(|| format!("{path}: not a 64-bit ELF file with whole sections"))?;
    let start = Instant::now();
    let (mut insns, mut branches, mut fields, mut odd, mut bytes) = (0u64, 0u64, 0u64, 0u64, 0u64);
    for (addr, text) in sections {
        let mut at = 0;
        while at < text.len() {
            let stop = X86_64::sweep(&text[at..], addr.wrapping_add(at as u64), |insn| {
                insns += 1;
                branches += u64::from(insn.flow != Flow::Next);
                fields += u64::from(insn.field.is_some());
                true
            });
            let Some(stop) = stop else { break };
            odd += 1;
            at = stop.wrapping_sub(addr) as usize + 1;
        }
        bytes += text.len() as u64;
    }
    let seconds = start.elapsed().as_secs_f64();
    let speed = bytes as f64 / 1e6 / seconds;
    println!(
        "{insns} instructions, {branches} branches, {fields} fields, {odd} bytes that begin none"
    );
    println!("{bytes} bytes in {seconds:.3} s: {speed:.0} MB/s");
    Ok(())
}
