//! `postlink verify`: the checker alone.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use postlink_verify::{Accepted, Options, Report};

use crate::errors::Usage;
use crate::input::Input;
use crate::rewriting;
use crate::ui::{BAD, BOLD, DIM, GOOD, Ui, count, counted, demangle};

/// Prove that an optimised program does what its original does
///
/// The checker has another ELF reader and another decoder than the rewriter. It walks old and new code in
/// lock step from every entry, and compares jump tables, relocations, symbols, unwind tables and landing
/// pads. It trusts nothing that the output says of itself. What the proof rests on beside that is listed with
/// a number; see docs/what-a-program-may-see.md.
///
/// The exit code is 1 when anything could not be proved.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  postlink verify ./app ./app.opt
  postlink verify ./app ./app.opt --json > certificate.json")]
pub struct Verify {
    /// The original
    #[arg(value_name = "INPUT")]
    pub input: PathBuf,
    /// What postlink made of it
    #[arg(value_name = "OUTPUT")]
    pub output: PathBuf,
    /// List every moved function with its verdict
    #[arg(long)]
    pub functions: bool,
    /// Print the certificate as JSON
    #[arg(long, conflicts_with = "functions")]
    pub json: bool,
    /// Take calls as the only instructions that throw no longer for granted (C++ with -fnon-call-exceptions; for
    /// Ada it never is)
    #[arg(long)]
    pub non_call_exceptions: bool,
    /// Fail functions whose proof rests on assumptions other than these: ids as this command lists them, with
    /// commas between
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    pub strict_assumptions: Option<Vec<String>>,
    /// Fail functions whose instructions were changed: code may only be placed (docs/passes.md lists the changes
    /// for which there is a rule)
    #[arg(long)]
    pub placement_only: bool,
    /// Print at most this many failures
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub failures: usize,
}

impl Verify {
    pub fn run(self, ui: &Ui) -> Result<ExitCode> {
        let mut watched = ui.phases("verify");
        watched.phases.begin("check");
        let input = Input::open(&self.input)?;
        let options = Options {
            non_call_exceptions: self.non_call_exceptions,
            accepted: self.accepted()?,
            placement_only: self.placement_only,
            ..Options::default()
        };
        let report = rewriting::check(&input, &self.output, &options)?;
        watched.finish();
        if self.json {
            println!("{}", report.to_json());
        } else {
            self.print(&report);
        }
        Ok(if report.is_proved() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }

    /// The assumptions on which a proof may rest.
    fn accepted(&self) -> Result<Accepted> {
        let Some(ids) = &self.strict_assumptions else {
            return Ok(Accepted::default());
        };
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        Accepted::parse(&ids).ok_or_else(|| {
            let text = format!(
                "--strict-assumptions {}: not all of these are assumptions; docs/what-a-program-may-see.md lists them",
                ids.join(",")
            );
            Usage(text).into()
        })
    }

    fn print(&self, report: &Report) {
        if self.functions {
            for f in &report.functions {
                let verdict = match &f.verdict {
                    postlink_verify::Verdict::Proved => format!("{GOOD}proved{GOOD:#}"),
                    postlink_verify::Verdict::Failed(failure) => {
                        format!("{BAD}failed{BAD:#} {failure}")
                    }
                };
                anstream::println!(
                    "{:#12x} -> {:#12x} {verdict} {} {DIM}{} instructions{DIM:#}",
                    f.old,
                    f.new,
                    demangle(&f.shown_name()),
                    f.instructions
                );
            }
        }
        let (name, rest) = if report.is_proved() {
            (format!("{GOOD}proved{GOOD:#}"), String::new())
        } else {
            (
                format!("{BAD}NOT PROVED{BAD:#}"),
                format!(
                    ", {} failed, {} in the whole file",
                    count(report.failed),
                    counted(report.file_failure_count, "difference", "differences")
                ),
            )
        };
        anstream::println!(
            "{BOLD}{}{BOLD:#}: {name}: {}, {}{rest}",
            self.output.display(),
            counted(
                report.proved,
                "moved function is equivalent to the input's",
                "moved functions are equivalent to the input's"
            ),
            counted(report.identical, "is unchanged", "are unchanged"),
        );
        anstream::println!(
            "  {} compared; {} in code and {} in data and tables lead to the same places",
            counted(
                report.functions.iter().map(|f| f.instructions).sum::<u64>(),
                "instruction",
                "instructions"
            ),
            counted(report.retargeted, "reference", "references"),
            count(report.pointers)
        );
        for changed in &report.changes {
            anstream::println!(
                "  changed by rule: {}: {}",
                changed.kind.text(),
                count(changed.sites)
            );
        }
        if report.moved_stack_rows > 0 {
            anstream::println!(
                "  {} that {} moved the stack pointer, as unwind rows say",
                counted(
                    report.moved_stack_rows,
                    "instruction of code that counts",
                    "instructions of code that counts"
                ),
                if report.moved_stack_rows == 1 {
                    "has"
                } else {
                    "have"
                },
            );
        }
        if report.routine_rows > 0 {
            anstream::println!(
                "  {} can be unwound from",
                counted(
                    report.routine_rows,
                    "instruction of routines that count",
                    "instructions of routines that count"
                ),
            );
        }
        if report.asks_for_huge_pages {
            anstream::println!("  asks for huge pages when it starts, and does nothing else then");
        }
        for a in &report.assumptions {
            anstream::println!(
                "  {DIM}{} ({}): {}{DIM:#}",
                a.id,
                counted(a.functions, "function", "functions"),
                a.text
            );
        }
        for failure in report.file_failures.iter().take(self.failures) {
            anstream::println!("  {BAD}failed{BAD:#} {failure}");
        }
        if !self.functions {
            for (f, failure) in report.failures().take(self.failures) {
                anstream::println!(
                    "  {BAD}failed{BAD:#} {}: {failure}",
                    demangle(&f.shown_name())
                );
            }
        }
    }
}
