//! Turns a recording (`perf.data`, or the text of `perf script`) to pre-aggregated text for one binary, and
//! says what was in it.
//!
//! ```text
//! cargo run --release -p postlink-profile --example aggregate -- perf.data /usr/bin/prog 0x400000 > prog.preagg
//! perf2bolt-22 -pa -p prog.preagg -o prog.fdata /usr/bin/prog
//! ```
//!
//! The last argument is what to add to an offset in the file to get the address it is linked at: of the
//! executable segment, its address less its offset.

use std::io::{Read, Write};
use std::path::Path;

use postlink_profile::samples::Options;
use postlink_profile::{Error, perf_data, perf_script, preaggregated};

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [input, binary, bias] = &arguments[..] else {
        println!("usage: aggregate perf.data|perf.script BINARY BIAS");
        return Ok(());
    };
    let path = Path::new(input);
    let options = Options::default();
    let mut start = [0; 8];
    let recorded = std::fs::File::open(path)
        .and_then(|mut file| file.read_exact(&mut start))
        .is_ok()
        && &start == b"PERFILE2";
    let profile = if recorded {
        perf_data::read(path, &options)?
    } else {
        perf_script::read(path, &options)?
    };
    let bias = u64::from_str_radix(bias.trim_start_matches("0x"), 16).unwrap_or(0);

    eprintln!("{:?}", profile.statistics);
    for module in profile.modules() {
        eprintln!("{}", String::from_utf8_lossy(&module.path));
    }
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let written =
        preaggregated::write_to(&mut out, &profile, preaggregated::Dialect::V19, |place| {
            let module = profile.module(place.module)?;
            (module.path == binary.as_bytes()).then(|| place.address.wrapping_add(bias))
        });
    if let Err(e) = written.and_then(|()| out.flush()) {
        eprintln!("standard output: {e}");
    }
    Ok(())
}
