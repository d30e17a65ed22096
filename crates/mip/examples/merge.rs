//! How fast raw files are merged: `cargo run --release -p postlink-mip --example merge -- FILES FUNCTIONS`.
//!
//! Makes that many raw files in a temporary directory, of function coverage and of calls, in which about half
//! of the functions have run, and merges them three times each; the files are in the page cache.

use std::time::Instant;

use postlink_mip::merge::{Options, merge};
use postlink_mip::{Function, Profile, Types, Width, hash, raw};
use postlink_profile::Weighted;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<usize>());
    let files = numbers.next().transpose()?.unwrap_or(10_000);
    let functions = numbers.next().transpose()?.unwrap_or(100_000);
    for (what, types, size) in [
        ("function coverage", Types::FUNCTION_COVERAGE, 1),
        ("calls and first calls", Types::CALL_GRAPH, 8),
    ] {
        let profile = profile(types, functions / size, size);
        let dir = tempfile::tempdir()?;
        let mut list = Vec::with_capacity(files);
        let mut bytes = 0;
        for n in 0..files {
            let path = dir.path().join(format!("{n}.mipraw"));
            let run = run(&profile, size, n as u64);
            bytes += run.len();
            std::fs::write(&path, run)?;
            list.push(Weighted { path, weight: 1 });
        }
        let options = Options {
            strict: true,
            traces: true,
        };
        for _ in 0..3 {
            let mut sum = profile.clone();
            let since = Instant::now();
            let merged = merge(&mut sum, &list, options)?;
            let seconds = since.elapsed().as_secs_f64();
            println!(
                "{what}: {} files, {:.3} GB in {seconds:.2} s: {:.2} GB/s",
                merged.files,
                bytes as f64 / 1e9,
                bytes as f64 / 1e9 / seconds
            );
        }
    }
    Ok(())
}

fn profile(types: Types, functions: usize, size: usize) -> Profile {
    Profile {
        types,
        functions: (0..functions)
            .map(|n| {
                let name = format!("function_{n}");
                Function {
                    signature: hash::md5_64(name.as_bytes()),
                    name: name.into_bytes(),
                    raw_offset: (32 + n * size) as u64,
                    size: 64,
                    ..Function::default()
                }
            })
            .collect(),
        ..Profile::default()
    }
}

fn run(profile: &Profile, size: usize, seed: u64) -> Vec<u8> {
    let mut out = raw::empty(profile, Width::Wide, 0);
    let mut state = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut time = 0u32;
    for counter in out[32..].chunks_exact_mut(size) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        if state & 1 == 0 {
            continue;
        }
        match counter {
            [flag] => *flag = 0,
            counter => {
                time += 1;
                counter[..4].copy_from_slice(&((state >> 40) as u32 + 1).to_le_bytes());
                counter[4..8].copy_from_slice(&time.to_le_bytes());
            }
        }
    }
    out
}
