//! `cargo xtask debian`: programs as the distribution ships them, in all states; writes `bench/debian.md`.
//!
//! ```text
//!  catalogue ──► archive: fetched, unpacked ──► states: made, run, compared, measured ──► report
//!                              corpus: linked with kept relocations ──► relinked ──────┘
//! ```
//!
//! Everything happens in `target/debian` (or `--folder`); no package is installed and no file of the system is written.
//! A program whose output differs from the original's makes the job fail, and stands in the report under "Wrong".

mod archive;
mod catalogue;
mod relinked;
mod report;
mod states;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;

use self::archive::Archive;
use self::report::Report;
use self::states::Lab;
use crate::packages;

/// The job's options.
#[derive(Args, Debug)]
pub struct Options {
    /// Programs to try; all if none is named
    names: Vec<String>,
    /// Say what there is, and end
    #[arg(long)]
    list: bool,
    /// Rounds of runs to measure, each of all states; 0 compares outputs alone
    #[arg(long, value_name = "N", default_value_t = 6)]
    runs: u32,
    /// Programs built with and without kept relocations as well: lua, sqlite, gawk
    #[arg(long)]
    relinked: bool,
    /// Where packages are unpacked and outputs are made
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Keep what was unpacked and made
    #[arg(long)]
    keep: bool,
    /// This postlink instead of one that is built now
    #[arg(long, value_name = "FILE")]
    postlink: Option<PathBuf>,
    /// The report
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// The load averages of one, five and fifteen minutes.
fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let first: Vec<&str> = text.split(' ').take(3).collect();
    if first.is_empty() {
        "unknown".into()
    } else {
        first.join(" ")
    }
}

/// The job.
pub fn run(options: &Options) -> Result<bool> {
    let chosen = catalogue::choose(&options.names)?;
    if options.list {
        for entry in chosen {
            println!("{:<14} {:<62} {}", entry.name, entry.file, entry.what);
        }
        return Ok(true);
    }
    packages::install(packages::FOR_DEBIAN, true);
    let root = crate::bench::root()?;
    let folder = options.folder.clone();
    let folder = folder.unwrap_or_else(|| root.join("target/debian"));
    let archive = Archive::open(&folder)?;
    let mut tools = crate::bench::tools::Tools::at(options.postlink.as_deref())?;
    tools.bolt = packages::find_program("llvm-bolt-22");
    let output = options.output.clone();
    let output = output.unwrap_or_else(|| root.join("bench/debian.md"));
    let begin = load();
    let (mut figures, mut failed, mut relinked) = (Vec::new(), Vec::new(), None);
    let write = |figures: &[_], failed: &[_], relinked: &Option<String>| {
        let report = Report {
            figures,
            failed,
            runs: options.runs,
            versions: &tools.versions(),
            load: [begin.clone(), load()],
            relinked: relinked.clone(),
        };
        fs::write(&output, report.text()).with_context(|| output.display().to_string())
    };
    for entry in chosen {
        eprintln!("== {}", entry.name);
        let done = archive.unpack(entry).and_then(|(_, version)| {
            let lab = Lab {
                entry,
                version,
                folder: archive.folder(entry),
                postlink: tools.program(),
                bolt: tools.bolt.as_deref(),
                runs: options.runs,
            };
            lab.figures()
        });
        match done {
            Ok(found) => {
                println!("{}", report::line(&found));
                figures.push(found);
            }
            Err(error) => {
                println!("{}: {error:#}", entry.name);
                failed.push((entry.name, format!("{error:#}")));
            }
        }
        if !options.keep {
            archive.remove(entry)?;
        }
        // After each program: they take minutes together.
        write(&figures, &failed, &relinked)?;
    }
    if options.relinked {
        relinked = Some(relinked::run(
            &tools,
            &folder.join("relinked"),
            options.runs,
        )?);
        write(&figures, &failed, &relinked)?;
    }
    eprintln!("written to {}", output.display());
    Ok(failed.is_empty() && figures.iter().all(|f| f.faults().is_empty()))
}
