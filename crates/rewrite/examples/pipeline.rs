//! The library's whole line without the command line: instruments a program, and, given a profile, optimises it.
//!
//! ```text
//! cargo run --release -p postlink-rewrite --example pipeline -- ./app            # what can be moved, and why not
//! cargo run --release -p postlink-rewrite --example pipeline -- ./app ./app.inst # an instrumented binary
//! POSTLINK_PROFILE=run.plraw ./app.inst
//! cargo run --release -p postlink-rewrite --example pipeline -- ./app ./app.opt run.plraw
//! ```

use std::error::Error;
use std::path::Path;

use postlink_elf::elf::Elf;
use postlink_rewrite::{InstrumentOptions, OptimizeOptions, Phases, inspect, instrument, optimize};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(input) = arguments.first() else {
        return Err("give a program, then an output, then a profile".into());
    };
    let data = std::fs::read(input)?;
    let elf = Elf::parse(&data)?;
    let mut phases = Phases::default();
    match &arguments[1..] {
        [] => {
            let i = inspect(&elf, &mut phases)?;
            println!(
                "{}: {} functions, {} can move, {} blocks",
                i.kind, i.functions, i.movable, i.blocks
            );
            for p in i.pinned_functions {
                println!("{:#x} {} {}", p.address, p.name, p.reason.explain());
            }
        }
        [output] => {
            let report = instrument(
                &elf,
                &InstrumentOptions::default(),
                Path::new(output),
                0o755,
                &mut phases,
            )?;
            println!(
                "{} functions instrumented with {} counters",
                report.instrumented, report.counters
            );
        }
        [output, profile, ..] => {
            let profile = postlink_profile::open(Path::new(profile))?.read()?;
            let report = optimize(
                &elf,
                &profile,
                &OptimizeOptions::default(),
                Path::new(output),
                0o755,
                &mut phases,
            )?;
            println!(
                "{} functions moved; ext-TSP score {:.0} -> {:.0}",
                report.moved, report.score_before, report.score_after
            );
        }
    }
    for (name, time) in phases.times {
        println!("{name:12} {time:?}");
    }
    Ok(())
}
