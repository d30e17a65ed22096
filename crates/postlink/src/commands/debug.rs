//! `postlink debug`: debug information in a file of its own, for an optimised program.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use postlink_elf::elf::Elf;
use postlink_rewrite::{DebugFileError, update_debug_file};
use postlink_verify::{Options, Report};

use crate::debug_files;
use crate::input::Input;
use crate::options::CompressDebugArg;
use crate::rewriting::{beside, put_in_place};
use crate::ui::{GOOD, Ui, bytes, change, count, counted};

/// Update debug information that is in a file of its own
///
/// Distributions strip their programs and ship debug information in files that debuggers find by build-id. Such a
/// file describes the program as it was. This command makes one that describes the optimised program, from the
/// two programs and the file; no profile is needed. The checker compares the result with both programs before it is
/// in place.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  postlink debug /usr/bin/app ./app.opt -o app.opt.debug
  postlink debug ./app ./app.opt app.debug -o app.opt.debug

Debuggers find the new file in /usr/lib/debug/.build-id/, under the name that is printed, or through a link:
  objcopy --add-gnu-debuglink=app.opt.debug app.opt")]
pub struct Debug {
    /// The original program, without its debug information
    #[arg(value_name = "INPUT")]
    pub input: PathBuf,
    /// What `optimize` made of it
    #[arg(value_name = "OUTPUT")]
    pub optimized: PathBuf,
    /// The original's debug information [default: where debuggers look, by its build-id or its .gnu_debuglink]
    #[arg(value_name = "DEBUG")]
    pub debug: Option<PathBuf>,
    /// The file to write
    #[arg(long, short, value_name = "FILE")]
    pub output: PathBuf,
    /// How sections of debug information are compressed
    #[arg(long, value_name = "HOW", default_value = "keep")]
    pub compress_debug_sections: CompressDebugArg,
    /// Do not compare the result with the programs
    #[arg(long)]
    pub no_verify: bool,
}

impl Debug {
    pub fn run(self, ui: &Ui) -> Result<ExitCode> {
        let mut watched = ui.phases("debug");
        watched.phases.begin("update");
        let input = Input::open(&self.input)?;
        let of_input = input.elf()?;
        let optimized = Input::open(&self.optimized)?;
        let debug_path = match &self.debug {
            Some(path) => path.clone(),
            None => find(&self.input, &of_input)?,
        };
        let debug = Input::open(&debug_path)?;
        for file in [&input, &optimized, &debug] {
            file.must_differ_from(&self.output)?;
        }
        let of_debug = Elf::parse_debug_file(debug.bytes());
        let of_debug = of_debug.with_context(|| debug_path.display().to_string())?;
        let program = optimized.elf()?;
        let compress = self.compress_debug_sections.into();
        let made = update_debug_file(&of_input, &program, &of_debug, compress);
        let made = made.map_err(|e| named(e, &self.optimized, &debug_path))?;
        watched.phases.begin("write");
        let file = beside(&self.output)?;
        let mut out = BufWriter::new(std::fs::File::create(&file)?);
        let written = made.image.write_to(&mut out).and_then(|()| out.flush());
        written.with_context(|| self.output.display().to_string())?;
        drop(out);
        let certificate = if self.no_verify {
            None
        } else {
            watched.phases.begin("check");
            let new = Input::open(&file)?;
            Some(self.check(&input, &optimized, &debug, &new)?)
        };
        watched.finish();
        put_in_place(file, &self.output)?;
        self.say(ui, &made, certificate.as_ref(), program.build_id);
        Ok(ExitCode::SUCCESS)
    }

    /// Has the result compared with the programs.
    fn check(
        &self,
        input: &Input,
        optimized: &Input,
        debug: &Input,
        new: &Input,
    ) -> Result<Report> {
        let report = postlink_verify::verify_debug_file(
            input.bytes(),
            optimized.bytes(),
            debug.bytes(),
            new.bytes(),
            &Options::default(),
        )?;
        if let Some(failure) = report.file_failures.first() {
            bail!(
                "{}: the result could not be proved, so it was not written: {failure}",
                debug.path.display()
            );
        }
        if let Some((function, failure)) = report.failures().next() {
            bail!(
                "{}: is not proved to do what {} does, so nothing can be said of its debug information: {}: {failure}",
                optimized.path.display(),
                input.path.display(),
                function.shown_name()
            );
        }
        Ok(report)
    }

    fn say(
        &self,
        ui: &Ui,
        made: &postlink_rewrite::DebugFile<'_>,
        certificate: Option<&Report>,
        build_id: Option<&[u8]>,
    ) {
        let report = &made.report;
        ui.say(format_args!(
            "{}: {}, {} ({}), {} moved",
            self.output.display(),
            bytes(made.image.size()),
            counted(report.units, "unit", "units"),
            change(report.input_bytes as f64, report.output_bytes as f64),
            counted(made.moved_symbols, "symbol", "symbols"),
        ));
        if let Some(c) = certificate.and_then(|c| c.debug) {
            ui.say(format_args!(
                "  {GOOD}proved{GOOD:#}: {} scopes, {} places, {} rows describe code where it is now",
                count(c.scopes),
                count(c.places),
                count(c.rows)
            ));
        }
        super::optimize::say_losses(ui, report);
        if let Some(path) =
            build_id.and_then(|id| debug_files::by_build_id(Path::new(debug_files::FOLDER), id))
        {
            ui.say(format_args!(
                "  debuggers look for it in {}",
                path.display()
            ));
        }
    }
}

fn named(error: DebugFileError, optimized: &Path, debug: &Path) -> anyhow::Error {
    let path = match &error {
        DebugFileError::OfOutput(_) => optimized,
        DebugFileError::OfDebugFile(_) => debug,
    };
    anyhow::Error::new(error).context(path.display().to_string())
}

/// Finds a program's debug information where debuggers look for it.
fn find(program: &Path, elf: &Elf<'_>) -> Result<PathBuf> {
    let tried = debug_files::places(program, elf, Path::new(debug_files::FOLDER))?;
    if let Some(path) = tried.iter().find(|path| path.is_file()) {
        return Ok(path.clone());
    }
    let list: Vec<String> = tried.iter().map(|p| p.display().to_string()).collect();
    if list.is_empty() {
        bail!(
            "{}: has neither a build-id nor a .gnu_debuglink, so the file with its debug information has to be named",
            program.display()
        )
    } else {
        bail!(
            "{}: its debug information is in none of {}: name the file, or install the package with it",
            program.display(),
            list.join(", ")
        )
    }
}
