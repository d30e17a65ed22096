//! How fast address translation tables are read, written and asked.
//!
//! ```text
//! cargo run --release -p postlink-elf --example bat_time -- ./app.opt 10000000
//! ```
//!
//! Prints a line of numbers: bytes of the section, entries, and the best of several rounds in nanoseconds for
//! reading it, for writing it, for making the look-up structure, and for that many translations of random
//! addresses of the program's code, each by address alone.

use std::hint::black_box;
use std::time::{Duration, Instant};

use postlink_elf::bat::parents::Parents;
use postlink_elf::bat::{self, Bat, Translator};
use postlink_elf::elf::Elf;

fn best<T>(rounds: usize, mut work: impl FnMut() -> T) -> Duration {
    let times = (0..rounds).map(|_| {
        let start = Instant::now();
        black_box(work());
        start.elapsed()
    });
    times.min().unwrap_or_default()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [binary, number] = &arguments[..] else {
        println!("usage: bat_time BINARY TRANSLATIONS");
        return Ok(());
    };
    let data = std::fs::read(binary)?;
    let elf = Elf::parse(&data)?;
    let number: usize = number.parse()?;
    let (_, section) = elf
        .section(bat::SECTION)
        .ok_or("the binary has no tables")?;
    let bytes = elf.section_data(section);
    let tables = Bat::parse(bytes)?;
    let parents = Parents::with_symbols(&tables, &elf);
    let translator = Translator::new(&tables, &parents);
    // Addresses in the order of a sampled run: anywhere.
    let starts: Vec<u64> = tables.hot().iter().map(|h| h.start).collect();
    let (low, high) = match (starts.first(), starts.last()) {
        (Some(low), Some(high)) => (*low, *high),
        _ => return Err("the tables are empty".into()),
    };
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let addresses: Vec<u64> = (0..number)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            low + state % (high - low + 1)
        })
        .collect();
    let read = best(9, || Bat::parse(bytes));
    let written = best(9, || tables.encode());
    let made = best(9, || Translator::new(&tables, &parents));
    let translated = best(3, || {
        let mut sum = 0u64;
        for &address in &addresses {
            if let Some(table) = translator.fragment_before(address) {
                let offset = address - translator.start(table);
                sum = sum.wrapping_add(translator.translate_in(table, offset, address & 1 == 0));
            }
        }
        sum
    });
    println!(
        "{} {} {} {} {} {}",
        bytes.len(),
        tables.len(),
        read.as_nanos(),
        written.as_nanos(),
        made.as_nanos(),
        translated.as_nanos()
    );
    Ok(())
}
