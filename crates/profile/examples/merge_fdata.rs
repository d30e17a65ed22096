//! Adds up `.fdata` profiles and says which functions are entered most often.
//!
//! ```text
//! cargo run --release -p postlink-profile --example merge_fdata -- sum.fdata a.fdata b.fdata:3
//! ```

use std::path::Path;

use postlink_profile::{Error, Weighted, fdata};

fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let Some(output) = arguments.next() else {
        println!("usage: merge_fdata OUTPUT INPUT[:WEIGHT]...");
        return Ok(());
    };
    let inputs = arguments
        .map(|text| Weighted::parse(&text))
        .collect::<Result<Vec<_>, _>>()?;
    let profile = fdata::merge(&inputs)?;
    fdata::write(Path::new(&output), &profile)?;

    let counts = profile.execution_counts();
    let mut functions: Vec<_> = profile
        .names()
        .iter()
        .map(|(id, name)| (counts[id.0 as usize], name))
        .collect();
    functions.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(b.1)));
    for (count, name) in functions.iter().take(10).filter(|function| function.0 > 0) {
        println!("{count:>16} {}", String::from_utf8_lossy(name));
    }
    Ok(())
}
