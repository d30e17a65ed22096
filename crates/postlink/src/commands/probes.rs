//! `postlink probes`: what pseudo probes a file has.

use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use postlink_profgen::Guid;
use postlink_profgen::probe::{self, Listed};

use crate::input::Input;
use crate::ui::Ui;

/// Look into the pseudo probes of a file
///
/// Pseudo probes say which block or call of which source function is at an address. A compiler writes them with
/// -fpseudo-probe-for-profiling.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  postlink probes show ./app
  postlink probes show ./app --function main
  postlink probes show ./app --json | jq '.probes | length'")]
pub struct Probes {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List functions, and probes by address with where they were inlined
    Show(Show),
}

#[derive(Args, Debug)]
struct Show {
    /// The program, shared library or object file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Only this function, alone and inlined (linkage name)
    #[arg(long, value_name = "NAME")]
    function: Option<String>,
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
}

impl Probes {
    pub fn run(self, ui: &Ui) -> Result<ExitCode> {
        let What::Show(show) = self.what;
        let mut watched = ui.phases("probes show");
        watched.phases.begin("read");
        let named = || show.file.display().to_string();
        let input = Input::open(&show.file)?;
        let Some(loaded) = probe::load(&input.elf_or_object()?).with_context(named)? else {
            bail!(
                "{}: no pseudo probes (compile with -fpseudo-probe-for-profiling)",
                named()
            );
        };
        let only = show.function.as_ref().map(|name| Guid::of(name.as_bytes()));
        if let Some(guid) = only
            && loaded.descriptors.get(guid).is_none()
        {
            bail!(
                "{}: no function {} has probes",
                named(),
                show.function.as_deref().unwrap_or_default()
            );
        }
        let statistics = loaded.probes.statistics;
        if statistics.unanchored > 0 {
            ui.warn(format_args!(
                "{} of {} records have no symbol to start at: their addresses are unreliable",
                statistics.unanchored, statistics.records
            ));
        }
        let listed = Listed {
            loaded: &loaded,
            only,
        };
        watched.printing();
        let mut out = BufWriter::new(std::io::stdout().lock());
        if show.json {
            listed.json(&mut out)?
        } else {
            listed.text(&mut out)?
        }
        out.flush()?;
        watched.finish();
        Ok(ExitCode::SUCCESS)
    }
}
