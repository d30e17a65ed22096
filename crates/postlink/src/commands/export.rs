//! `postlink export`: a program and its profile as files for other tools.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use postlink_export::{Export as File, Subject, propeller};
use postlink_lines::Lines;
use postlink_rewrite::attach::Source;
use postlink_rewrite::facts;

use super::optimize::read_any;
use crate::debug_files;
use crate::input::Input;
use crate::input::Parsed;
use crate::options;
use crate::rewriting;
use crate::ui::{BOLD, Ui, Watched, bytes, demangle};

/// A format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Coverage of lines, functions and branches as lcov's tracefile: genhtml, editors
    Lcov,
    /// The same as Cobertura's XML: continuous integration
    Cobertura,
    /// Functions, calls and their costs: callgrind_annotate, KCachegrind
    Callgrind,
    /// Chains of callers, a line each, by instructions: flamegraph.pl, inferno
    Folded,
    /// The same as speedscope's JSON
    Speedscope,
    /// The same for pprof: profile.proto, compressed by gzip
    Pprof,
    /// The same as JSON of the Firefox Profiler
    Firefox,
    /// The same as a flame graph to open in a browser
    Svg,
    /// Basic blocks that ran, version 2: Lighthouse
    Drcov,
    /// The control-flow graph of one function (--function) for Graphviz
    Dot,
    /// Clusters of basic blocks: clang's -fbasic-block-sections=list= (Propeller), for a program compiled with
    /// -fbasic-block-address-map
    Propeller,
    /// The same in its version 0
    PropellerV0,
    /// Functions in the order of a good layout: lld's --symbol-ordering-file
    SymbolOrder,
}

/// Write a program's profile as a file for other tools
///
/// Coverage is exact, of any program with debug information, and needs no other build than the one that was profiled.
/// What a profile cannot fill is reported.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  postlink export ./app --profile run.plraw --to lcov -o app.info && genhtml app.info -o coverage
  postlink export ./app --profile run.plraw --to cobertura -o coverage.xml
  postlink export ./app --profile run.plraw --to propeller -o clusters && clang -fbasic-block-sections=list=clusters …
  postlink export ./app --profile run.plraw --to dot --function main -o main.dot && dot -Tsvg main.dot > main.svg")]
pub struct Export {
    /// The program or shared library (not its instrumented copy)
    #[arg(value_name = "INPUT")]
    pub input: PathBuf,
    /// Profile of any kind, with a weight if it counts more than once; several are added up
    #[arg(long, short, value_name = "FILE", required = true)]
    pub profile: Vec<String>,
    /// The format
    #[arg(long, value_name = "FORMAT")]
    pub to: Format,
    /// The file to write
    #[arg(long, short, value_name = "FILE")]
    pub output: PathBuf,
    #[command(flatten)]
    pub naming: options::Naming,
    /// The function that dot draws
    #[arg(long, value_name = "NAME")]
    pub function: Option<String>,
    /// Take a profile of a program with another build-id
    #[arg(long)]
    pub ignore_build_id: bool,
}

impl Export {
    pub fn run(self, ui: &Ui) -> Result<ExitCode> {
        let mut watched = ui.phases("export");
        watched.phases.begin("profile");
        let input = debug_files::name(Input::open(&self.input)?, &self.naming, ui)?;
        let parsed = input.parse()?;
        input.must_differ_from(&self.output)?;
        let profile = read_any(ui, &parsed, &self.profile, self.ignore_build_id)?;
        let file = profile.with_source(|profile| self.make(&parsed, profile, watched))?;
        postlink_profile::write_atomically(&self.output, |out| out.write_all(&file.bytes))?;
        for missing in &file.missing {
            ui.warn(missing);
        }
        ui.say(format_args!(
            "{BOLD}{}{BOLD:#}: {}",
            self.output.display(),
            bytes(file.bytes.len() as u64)
        ));
        Ok(ExitCode::SUCCESS)
    }

    fn make(&self, input: &Parsed<'_>, profile: Source<'_>, mut watched: Watched) -> Result<File> {
        let named = || self.input.display().to_string();
        let facts = facts::facts(&input.elf, profile, &mut watched.phases)
            .with_context(|| format!("{} with {}", named(), self.profile.join(", ")))?;
        watched.phases.begin("lines");
        let debug = input.debug()?;
        let lines = Lines::load(debug.as_ref().unwrap_or(&input.elf), &facts);
        watched.phases.begin("file");
        let path = rewriting::runnable(&self.input)?;
        let subject = Subject {
            elf: &input.elf,
            facts: &facts,
            lines: lines.as_ref().map_err(String::as_str),
            path: &path.to_string_lossy(),
            demangle: &demangle,
        };
        let file = match self.to {
            Format::Lcov => postlink_export::lcov(&subject),
            Format::Cobertura => postlink_export::cobertura(&subject),
            Format::Callgrind => Ok(postlink_export::callgrind(&subject)),
            Format::Folded => Ok(postlink_export::folded(&subject)),
            Format::Speedscope => Ok(postlink_export::speedscope(&subject)),
            Format::Pprof => postlink_export::pprof(&subject),
            Format::Firefox => postlink_export::firefox(&subject),
            Format::Svg => postlink_export::flame_graph(&subject),
            Format::Drcov => Ok(postlink_export::drcov(&subject)),
            Format::Dot => postlink_export::dot(&subject, self.function.as_deref()),
            Format::Propeller => propeller::clusters(&subject, propeller::Version::V1),
            Format::PropellerV0 => propeller::clusters(&subject, propeller::Version::V0),
            Format::SymbolOrder => Ok(propeller::symbol_order(&subject)),
        };
        watched.finish();
        file.with_context(named)
    }
}
