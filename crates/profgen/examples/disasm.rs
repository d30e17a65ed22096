//! Prints a file's code with probes (`-p`) and source locations (`-s`), in Intel syntax with `-i`.

use std::io::Write;

use postlink_elf::elf::Elf;
use postlink_isa::x86_64::text::Syntax;
use postlink_profgen::{Listing, Machine, dwarf::Lines, probe};

fn main() {
    let mut flags = std::env::args().skip(1).collect::<Vec<_>>();
    let path = flags.pop().unwrap_or_default();
    let has = |flag: &str| flags.iter().any(|given| given == flag);
    let run = || -> Result<(), Box<dyn std::error::Error>> {
        let data = std::fs::read(&path)?;
        let elf = Elf::parse(&data)?;
        let probes = if has("-p") { probe::load(&elf)? } else { None };
        let lines = if has("-s") {
            Some(Lines::load(&elf)?)
        } else {
            None
        };
        let listing = Listing {
            elf: &elf,
            name: &path,
            probes: probes.as_ref(),
            lines: lines.as_ref(),
            machine: Machine::of(&elf).ok_or("unknown instruction set")?,
            syntax: if has("-i") {
                Syntax::Intel
            } else {
                Syntax::Att
            },
            canonical: false,
            only: None,
        };
        let mut out = std::io::stdout();
        listing.write(&mut out)?;
        out.flush()?;
        Ok(())
    };
    if let Err(error) = run() {
        eprintln!("{path}: {error}");
        std::process::exit(1);
    }
}
