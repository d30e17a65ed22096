//! How long the samples of a recording take to add up, on one thread or several.
//!
//! ```text
//! cargo run --release -p postlink-profile --example aggregate_time -- perf.data 1
//! ```

use std::path::Path;
use std::time::Instant;

use postlink_profile::any;
use postlink_profile::samples::Options;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, threads] = &arguments[..] else {
        println!("usage: aggregate_time RECORDING THREADS");
        return Ok(());
    };
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads.parse()?)
        .build_global()?;
    let path = Path::new(file);
    let format = any::format_of(path)?;
    let start = Instant::now();
    let profile = any::read_addresses(path, format, &Options::default())?;
    println!(
        "{} traces of {} entries in {:?}",
        profile.traces().len(),
        profile.statistics.entries,
        start.elapsed()
    );
    Ok(())
}
