//! `postlink inspect`: what a file is, and what can be done with it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use postlink_rewrite::{Inspection, JumpOutcome, JumpReason};

use crate::debug_files;
use crate::input::Input;
use crate::options;
use crate::ui::{BOLD, DIM, Ui, bytes, count, counted, demangle, percent, shorten};

/// Tell what a file is and what can be moved in it
///
/// Lists how many functions were found, how many can be moved, and why the others stay. A function that stays
/// works as before; it is only not made faster.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  postlink inspect ./app
  postlink inspect ./app --pinned          # every function that stays, with its reason
  postlink inspect ./app --jumps           # every indirect jump that is not understood, with its reason
  postlink inspect ./app --json | jq .movable")]
pub struct Inspect {
    /// The program or shared library
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    #[command(flatten)]
    pub reading: options::Reading,
    #[command(flatten)]
    pub naming: options::Naming,
    /// List every function that stays
    #[arg(long)]
    pub pinned: bool,
    /// List every indirect jump that keeps its function, or that may continue in old code
    #[arg(long, conflicts_with = "pinned")]
    pub jumps: bool,
    /// Print everything as JSON
    #[arg(long, conflicts_with_all = ["pinned", "jumps"])]
    pub json: bool,
    /// Print symbol names as they are in the file
    #[arg(long)]
    pub no_demangle: bool,
}

impl Inspect {
    pub fn run(self, ui: &Ui) -> Result<ExitCode> {
        let mut watched = ui.phases("inspect");
        let input = Input::open(&self.file)?.using(self.reading.relocations)?;
        let input = debug_files::name(input, &self.naming, ui)?;
        let inspection = postlink_rewrite::inspect(&input.elf()?, &mut watched.phases)
            .with_context(|| self.file.display().to_string())?;
        watched.finish();
        if self.json {
            println!("{}", serde_json::to_string_pretty(&inspection)?);
        } else if self.pinned {
            self.print_pinned(&inspection);
        } else if self.jumps {
            self.print_jumps(&inspection);
        } else {
            self.print(&inspection);
        }
        Ok(ExitCode::SUCCESS)
    }

    fn print(&self, i: &Inspection) {
        let id = i
            .build_id
            .as_deref()
            .map_or("no build-id".to_owned(), |id| format!("build-id {id}"));
        anstream::println!(
            "{BOLD}{}{BOLD:#}: {}, {}, {}, {id}",
            self.file.display(),
            i.kind,
            i.machine,
            bytes(i.size)
        );
        let row = |name: &str, text: String| anstream::println!("  {name:<12} {text}");
        if let Some(why) = &i.refused {
            row("refused", why.clone());
        }
        row(
            "functions",
            format!(
                "{} found, {} can move ({}; {} of {} of code)",
                count(i.functions),
                count(i.movable),
                percent(i.movable as u64, i.functions as u64),
                percent(i.movable_bytes, i.function_bytes),
                bytes(i.function_bytes)
            ),
        );
        for (k, (pin, n)) in i.pinned.iter().enumerate() {
            row(
                if k == 0 { "stay" } else { "" },
                format!("{:>7} {DIM}{}{DIM:#}", count(*n), pin.explain()),
            );
        }
        row(
            "to count",
            format!(
                "{} {}; {}",
                counted(i.blocks, "block needs", "blocks need"),
                counted(i.counters, "counter", "counters"),
                counted(i.sites, "indirect call", "indirect calls")
            ),
        );
        let kept = if i.relocations_kept {
            "relocations kept"
        } else {
            "no relocations kept"
        };
        row(
            "references",
            format!(
                "{kept}; {} to code in data; {}",
                counted(i.code_pointers, "pointer", "pointers"),
                counted(
                    i.dynamic_relocations,
                    "dynamic relocation",
                    "dynamic relocations"
                )
            ),
        );
        let pointers = match &i.pointers_stay {
            Some(why) => format!("pointers to functions that move keep their values: {why}"),
            None => "pointers to functions that move lead to the new code where the program cannot notice"
                .to_owned(),
        };
        row("", pointers);
        if !i.relocations_kept {
            row(
                "old entries",
                format!(
                    "a jump fits in all functions that can move but {}, which code that stays still enters at the old address",
                    count(i.led)
                ),
            );
            let (proved, guarded) = i.own_tables;
            row(
                "jump tables",
                format!(
                    "{} of new code's own, {} of them with a comparison of the index or the base added, {} with entries that continue in old code",
                    counted(proved + guarded, "table", "tables"),
                    count(guarded),
                    count(i.tables_to_old_code)
                ),
            );
            let (functions, jumps) = i.falls_back;
            row(
                "old code",
                format!(
                    "{} in {} there: their tables stay; {} by pointers to functions, which keep their values",
                    counted(
                        jumps,
                        "indirect jump may continue",
                        "indirect jumps may continue"
                    ),
                    counted(functions, "function", "functions"),
                    counted(i.tail_calls, "tail call goes", "tail calls go"),
                ),
            );
        }
        // Which of them, and why: the most frequent reasons first.
        let mut reasons: BTreeMap<(JumpOutcome, JumpReason), usize> = BTreeMap::new();
        for jump in &i.indirect_jumps {
            let kind = (jump.jump.outcome, jump.jump.reason);
            *reasons.entry(kind).or_default() += 1;
        }
        let mut reasons: Vec<_> = reasons.into_iter().collect();
        reasons.sort_by_key(|r| std::cmp::Reverse(r.1));
        for (k, ((outcome, reason), n)) in reasons.into_iter().enumerate() {
            row(
                if k == 0 { "jumps" } else { "" },
                format!(
                    "{:>7} {DIM}{}: {}{DIM:#}",
                    count(n),
                    outcome.explain(),
                    reason.explain()
                ),
            );
        }
        row(
            "symbols",
            format!(
                "{} static, {} dynamic",
                count(i.symbols),
                count(i.dynamic_symbols)
            ),
        );
        row(
            "unwinding",
            format!(
                "{}, {}",
                counted(i.unwind_entries, "entry", "entries"),
                counted(
                    i.exception_tables,
                    "with an exception table",
                    "with exception tables"
                )
            ),
        );
    }

    fn print_jumps(&self, i: &Inspection) {
        for j in &i.indirect_jumps {
            let name = if self.no_demangle {
                j.function.clone()
            } else {
                demangle(&j.function)
            };
            anstream::println!(
                "{:#12x} {:<60} {DIM}{}: {}{DIM:#}",
                j.jump.address,
                shorten(&name, 60),
                j.jump.outcome.explain(),
                j.jump.reason.explain()
            );
        }
    }

    fn print_pinned(&self, i: &Inspection) {
        for f in &i.pinned_functions {
            let name = if self.no_demangle {
                f.name.clone()
            } else {
                demangle(&f.name)
            };
            anstream::println!(
                "{:#12x} {:>8} {:<60} {DIM}{}{DIM:#}",
                f.address,
                f.size,
                shorten(&name, 60),
                f.reason.explain()
            );
        }
    }
}
