//! What layouts are worth that several tools made of one program by one profile, as JSON. Outputs need
//! address translation tables (`--enable-bat`). With a number, also the functions in which the first output
//! scores least beside the second.
//!
//! ```text
//! cargo run --release -p postlink-rewrite --example judge -- ./app run.plraw ./app.opt ./app.bolt [NUMBER]
//! ```

use std::error::Error;
use std::path::Path;

use postlink_elf::elf::Elf;
use postlink_rewrite::judge::judge;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = arguments.last().and_then(|last| last.parse::<usize>().ok());
    if number.is_some() {
        arguments.pop();
    }
    let [input, profile, outputs @ ..] = &arguments[..] else {
        return Err("give a program, a profile of it, and outputs".into());
    };
    let data = std::fs::read(input)?;
    let elf = Elf::parse(&data)?;
    let profile = postlink_profile::open(Path::new(profile))?.read()?;
    let files = outputs
        .iter()
        .map(std::fs::read)
        .collect::<Result<Vec<_>, _>>()?;
    let outputs = files
        .iter()
        .map(|data| Elf::parse(data))
        .collect::<Result<Vec<_>, _>>()?;
    let mut judgement = judge(&elf, &profile, &outputs)?;
    let mut shown = serde_json::json!({
        "functions": judgement.functions.len(),
        "moved": judgement.moved,
        "left_out": judgement.left_out,
        "worth": judgement.worth,
    });
    if let Some(number) = number {
        let lead = |f: &postlink_rewrite::judge::Judged| match &f.worth[..] {
            [_, first, second, ..] => first.score - second.score,
            _ => 0.0,
        };
        judgement
            .functions
            .sort_by(|a, b| lead(a).total_cmp(&lead(b)));
        judgement.functions.truncate(number);
        shown["worst"] = serde_json::to_value(&judgement.functions)?;
    }
    println!("{shown}");
    Ok(())
}
