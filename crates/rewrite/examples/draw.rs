//! Samples of instructions, drawn from exact counts: what a processor that counts instructions would give, without its
//! inaccuracies. Pre-aggregated text goes to the standard output; the same arguments give the same samples.
//!
//! ```text
//! cargo run --release -p postlink-rewrite --example draw -- ./app run.plraw 20000 > app.preagg
//! ```

use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write;
use std::path::Path;

use postlink_elf::elf::Elf;
use postlink_isa::{Isa, Machine, with_isa};
use postlink_rewrite::facts::{Facts, facts};

/// Addresses of instructions, each with the number of instructions that were executed up to it.
fn instructions<I: Isa>(elf: &Elf<'_>, facts: &Facts) -> Vec<(u128, u64)> {
    let mut out = Vec::new();
    let mut sum = 0;
    let ran = facts.functions.iter().filter_map(|f| f.ran.as_ref());
    for block in ran
        .flat_map(|ran| &ran.blocks)
        .filter(|block| block.count > 0)
    {
        let size = block.end.saturating_sub(block.start);
        let Some(code) = elf.bytes_at(block.start, size) else {
            continue;
        };
        I::sweep(code, block.start, |insn| {
            if !insn.traits.nop {
                sum += u128::from(block.count);
                out.push((sum, insn.addr));
            }
            true
        });
    }
    out
}

/// Numbers without a pattern (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [program, profile, number] = &arguments[..] else {
        return Err("give a program, a profile of it by counters, and a number of samples".into());
    };
    let number: u64 = number.parse()?;
    let data = std::fs::read(program)?;
    let elf = Elf::parse(&data)?;
    let profile = postlink_profile::open(Path::new(profile))?.read()?;
    let facts = facts(&elf, &profile, &mut Default::default())?;
    let machine = Machine::of_elf(elf.machine).ok_or("a machine that is not supported")?;
    let executed = with_isa!(machine, I => instructions::<I>(&elf, &facts));
    let Some(&(total, _)) = executed.last() else {
        return Err("nothing was executed".into());
    };
    let mut random = Random(1);
    let mut samples: BTreeMap<u64, u64> = BTreeMap::new();
    for _ in 0..number {
        let wide = u128::from(random.next()) << 64 | u128::from(random.next());
        let at = wide % total;
        let index = executed.partition_point(|(end, _)| *end <= at);
        if let Some((_, address)) = executed.get(index) {
            *samples.entry(*address).or_default() += 1;
        }
    }
    let mut out = std::io::stdout().lock();
    writeln!(out, "E instructions:u")?;
    for (address, count) in samples {
        writeln!(out, "S {address:x} {count}")?;
    }
    Ok(())
}
