//! `postlink mip order`: an order of functions for the linker.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use postlink_elf::elf::Elf;
use postlink_mip::create::RAW_SECTION;
use postlink_mip::{Profile, mip, order};
use regex::bytes::Regex;
use serde::Serialize;

use super::{Of, put};
use crate::input::Input;
use crate::ui::{Ui, count};

/// Make an order file for the linker
///
/// Functions that ran, in an order that is good for something. The linker needs each in a section of its own
/// (-ffunction-sections) and leaves all others as they are, after them.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  postlink mip order -p app.mip --by start-up -o app.order
  clang -ffunction-sections … -fuse-ld=lld -Wl,--symbol-ordering-file=app.order
  postlink mip order -p app.mip --by call-graph --format gold -o app.sections
  gcc -ffunction-sections … -fuse-ld=gold -Wl,--section-ordering-file=app.sections
  postlink mip order -p app.mip --cold-by-similarity ./app -o app.order")]
pub struct Order {
    #[command(flatten)]
    of: Of,
    /// What the order is to be good for
    #[arg(long, value_name = "WHAT", default_value = "first-call")]
    by: By,
    /// How the linker wants it
    #[arg(long, value_name = "FORMAT", default_value = "symbols")]
    format: Format,
    /// Put functions that never ran last, similar ones side by side, so that the file compresses well; takes
    /// the program that the profile is of
    #[arg(long, value_name = "PROGRAM")]
    cold_by_similarity: Option<PathBuf>,
    /// Only functions whose mangled name matches
    #[arg(long, short, value_name = "REGEX")]
    regex: Option<Regex>,
    /// Print the order with figures as JSON
    #[arg(long, conflicts_with = "output")]
    json: bool,
    /// Where to write; - is standard output
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum By {
    /// As called first, on average over all runs
    FirstCall,
    /// Fewest pages when the program starts: balanced partitioning of the first calls of each run
    StartUp,
    /// Fewest cache and TLB misses: callers and callees near each other
    CallGraph,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// A symbol a line: lld's --symbol-ordering-file, ld64's -order_file
    Symbols,
    /// A section a line: gold's --section-ordering-file
    Gold,
    /// GNU ld's --section-ordering-file (2.43 or newer)
    Ld,
}

impl Order {
    pub fn run(self, ui: &Ui) -> Result<ExitCode> {
        let mut watched = ui.phases("mip order");
        watched.phases.begin("read the profile");
        let profile = mip::open(&self.of.profile)?;
        watched.phases.begin("order");
        let path = self.of.profile.display();
        let ordered = match self.by {
            By::FirstCall => {
                if profile.functions.iter().all(|f| f.order_sum == 0) {
                    ui.warn(format_args!(
                        "{path}: the profile has no first calls, only coverage; the order is that of the map"
                    ));
                }
                Some(order::by_first_call(&profile))
            }
            By::StartUp => order::by_start_up(&profile),
            By::CallGraph => order::by_call_graph(&profile),
        };
        let Some(mut ordered) = ordered else {
            match self.by {
                By::CallGraph => bail!("{path}: {}", no_edges(&profile)),
                _ => bail!(
                    "{path}: no first calls: instrument for the call graph rather than for coverage"
                ),
            }
        };
        let ran = ordered.len();
        if let Some(program) = &self.cold_by_similarity {
            ordered.extend(cold(&profile, program)?);
        }
        if let Some(regex) = &self.regex {
            ordered.retain(|&f| regex.is_match(&profile.functions[f as usize].name));
        }
        let format = match self.format {
            Format::Symbols => order::Format::Symbols,
            Format::Gold => order::Format::Gold,
            Format::Ld => order::Format::Ld,
        };
        let figures = Figures::of(&profile, &ordered, ran);
        watched.finish();
        if self.json {
            println!("{}", serde_json::to_string_pretty(&figures)?);
            return Ok(ExitCode::SUCCESS);
        }
        put(
            self.output.as_deref(),
            &order::file(&profile, &ordered, format),
        )?;
        figures.say(ui);
        Ok(ExitCode::SUCCESS)
    }
}

/// Why there is no call graph.
fn no_edges(profile: &Profile) -> String {
    let edges: usize = profile.functions.iter().map(|f| f.edges.len()).sum();
    let sampled = "one call in 64 is sampled, so let the program run for longer";
    match edges {
        0 => format!(
            "no call edges: instrument with return addresses (a run-time buffer, or --mode call-edges); {sampled}"
        ),
        _ => format!(
            "{} call edges, but none from a function of the profile: {sampled}",
            count(edges)
        ),
    }
}

/// What an order is, and what it does to the pages that runs touch with their first calls, against the order
/// by address.
#[derive(Serialize)]
struct Figures<'p> {
    functions: usize,
    ran: usize,
    runs: usize,
    pages_before: usize,
    pages_after: usize,
    order: Vec<std::borrow::Cow<'p, str>>,
}

impl<'p> Figures<'p> {
    fn of(profile: &'p Profile, ordered: &[u32], ran: usize) -> Figures<'p> {
        let runs = profile.traces.len();
        let mean = |layout: &[u32]| {
            let pages = order::pages_touched(profile, layout, 4096);
            pages.iter().sum::<usize>() / runs.max(1)
        };
        Figures {
            functions: ordered.len(),
            ran,
            runs,
            pages_before: mean(&order::by_address(profile)),
            pages_after: mean(ordered),
            order: ordered
                .iter()
                .map(|&f| profile.functions[f as usize].display_name())
                .collect(),
        }
    }

    fn say(&self, ui: &Ui) {
        ui.say(format_args!(
            "{} functions in order; {} have run",
            count(self.functions),
            count(self.ran)
        ));
        if self.runs > 0 {
            ui.say(format_args!(
                "  pages touched by the first calls of a run, mean of {}: {} where they are, {} in this order",
                count(self.runs),
                count(self.pages_before),
                count(self.pages_after)
            ));
        }
    }
}

fn cold(profile: &Profile, program: &Path) -> Result<Vec<u32>> {
    let input = Input::open(program)?;
    let elf: Elf<'_> = input.elf()?;
    let raw_section = elf
        .section(RAW_SECTION)
        .map_or(0, |(_, section)| section.addr);
    let code = |function: u32| {
        let function = &profile.functions[function as usize];
        let address = raw_section.wrapping_add_signed(function.address);
        elf.bytes_at(address, function.size.into())
    };
    let functions = 0..profile.functions.len() as u32;
    if !profile.functions.is_empty() && functions.clone().all(|f| code(f).is_none()) {
        bail!(
            "{}: none of the profile's functions is where the profile says: another build?",
            program.display()
        );
    }
    Ok(order::by_similarity(profile, code))
}
