//! How often each block of a program ran, by a profile of it: address and count, a line each.
//!
//! ```text
//! cargo run --release -p postlink-rewrite --example counts -- ./app run.plraw
//! ```

use std::error::Error;
use std::path::Path;

use postlink_elf::elf::Elf;
use postlink_rewrite::Phases;
use postlink_rewrite::counts::counts;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [input, profile] = &arguments[..] else {
        return Err("give a program and a profile of it".into());
    };
    let data = std::fs::read(input)?;
    let elf = Elf::parse(&data)?;
    let profile = postlink_profile::open(Path::new(profile))?.read()?;
    let counts = counts(&elf, &profile, &mut Phases::default())?;
    for function in counts.functions {
        for block in function.blocks {
            println!("{:x} {} {}", block.address, block.count, function.name);
        }
    }
    Ok(())
}
