//! How large address translation tables are, and whether they are the same when written again.
//!
//! ```text
//! cargo run --release -p postlink-elf --example bat_size -- ./app.opt
//! ```
//!
//! Prints a line of numbers: bytes of the section; bytes of what the encoder makes of its decoded form;
//! functions, split-off parts, entries. Ends with 1 if the two are not the same, byte for byte.

use postlink_elf::bat::{self, Bat};
use postlink_elf::elf::Elf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Some(binary) = std::env::args().nth(1) else {
        println!("usage: bat_size BINARY");
        return Ok(());
    };
    let data = std::fs::read(&binary)?;
    let elf = Elf::parse(&data)?;
    let (_, section) = elf
        .section(bat::SECTION)
        .ok_or("the binary has no tables")?;
    let bytes = elf.section_data(section);
    let tables = Bat::parse(bytes)?;
    let again = tables.encode()?;
    println!(
        "{} {} {} {} {}",
        bytes.len(),
        again.len(),
        tables.hot().len(),
        tables.cold().len(),
        tables.len()
    );
    let differ = bytes.iter().zip(&again).position(|(a, b)| a != b);
    match differ {
        None if bytes.len() == again.len() => Ok(()),
        at => Err(format!(
            "{binary}: written again, {} bytes become {}, which differ from byte {} on",
            bytes.len(),
            again.len(),
            at.unwrap_or(bytes.len().min(again.len()))
        )
        .into()),
    }
}
