//! `postlink report`: a program, its profile and what was made of it as one page to look at.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use postlink_elf::elf::Elf;
use postlink_elf::note::{Note, NoteKind};
use postlink_measure::Paired;
use postlink_profile::progress;
use postlink_report::model::{Measured, Program, Proof, Verdict};
use postlink_report::{Moment, Room, Subjects};
use postlink_rewrite::attach::Source;
use postlink_rewrite::{Phases, facts};

use super::optimize::read_any;
use crate::debug_files;
use crate::input::Input;
use crate::options;
use crate::rewriting;
use crate::ui::{BOLD, Ui, Watched, bytes, demangle};

/// The largest source file whose text is put on the page.
const SOURCE_LIMIT: u64 = 1 << 20;

/// Make a page that shows where a program's time goes, and what was done about it
///
/// One HTML file that needs no network: layout of the code as a heat map, functions, flame graph, the graph
/// of each hot function with its counts and instructions, sizes, coverage of lines and branches; with
/// --optimized before and after, and what was proved.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  postlink report ./app --profile run.plraw -o report.html --open
  postlink report ./app --profile run.plraw --optimized ./app.opt -o report.html
  postlink report ./app --profile monday.plraw --compare tuesday.plraw -o report.html
  postlink report ./app --profile run.plraw --startup snap.*.plraw -o report.html   # of `postlink watch`")]
pub struct Report {
    /// The program or shared library (not its instrumented copy)
    #[arg(value_name = "INPUT")]
    pub input: PathBuf,
    /// Profile of any kind, with a weight if it counts more than once; several are added up
    #[arg(long, short, value_name = "FILE", required = true)]
    pub profile: Vec<String>,
    /// What `postlink optimize` made of the program
    #[arg(long, value_name = "FILE")]
    pub optimized: Option<PathBuf>,
    /// Copies of the live profile of one run, as `postlink watch` takes them, for pages of code over time
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub startup: Vec<PathBuf>,
    /// A second profile, to be compared with the first
    #[arg(long, value_name = "FILE")]
    pub compare: Option<String>,
    /// The page to write
    #[arg(long, short, value_name = "FILE")]
    pub output: PathBuf,
    /// Write the page's data as JSON, and no page
    #[arg(long)]
    pub json: bool,
    /// Number of functions whose graphs and instructions are put on the page at most
    #[arg(long, value_name = "N", default_value_t = Room::default().graphs)]
    pub graphs: usize,
    /// Leave the text of source files out
    #[arg(long)]
    pub no_source: bool,
    /// Open the page in a browser
    #[arg(long, conflicts_with = "json")]
    pub open: bool,
    /// Do not have the optimised program checked
    #[arg(long)]
    pub no_verify: bool,
    #[command(flatten)]
    pub reading: options::Reading,
    #[command(flatten)]
    pub naming: options::Naming,
    /// Take a profile of a program with another build-id
    #[arg(long)]
    pub ignore_build_id: bool,
}

/// What a page is made of, and where it goes.
pub struct Page<'a> {
    /// The program.
    pub input: &'a Input,
    /// Its profile.
    pub profile: Source<'a>,
    /// The profile's files.
    pub profile_names: Vec<String>,
    /// What was made of the program.
    pub optimized: Option<&'a Path>,
    /// Copies of the live profile of one run.
    pub startup: &'a [PathBuf],
    /// A second profile and its name.
    pub compare: Option<(Source<'a>, &'a str)>,
    /// Times that were measured.
    pub measured: Option<&'a Paired>,
    /// What the checker has said of it, if it was asked already.
    pub certificate: Option<&'a postlink_verify::Report>,
    /// Have it checked otherwise.
    pub prove: bool,
    /// Put the text of source files on it.
    pub with_source: bool,
    /// How much to put on it.
    pub room: Room,
    /// Only the data.
    pub json: bool,
    /// The file to write.
    pub target: &'a Path,
}

fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str());
    name.to_string_lossy().into_owned()
}

fn proof(report: &postlink_verify::Report) -> Proof {
    let of_functions = report
        .failures()
        .map(|(f, failure)| format!("{}: {failure}", demangle(&f.shown_name())));
    let of_file = report.file_failures.iter().map(ToString::to_string);
    Proof {
        proved: report.is_proved(),
        functions: report.proved,
        failed: report.failed,
        identical: report.identical,
        instructions: report.functions.iter().map(|f| f.instructions).sum(),
        references: (report.retargeted, report.pointers),
        assumptions: report
            .assumptions
            .iter()
            .map(|a| (a.id.to_owned(), a.text.to_owned(), a.functions))
            .collect(),
        failures: of_file.chain(of_functions).take(20).collect(),
    }
}

fn measured(paired: &Paired) -> Option<Measured> {
    let ratio = paired.cpu_ratio()?;
    let (low, high) = ratio.interval;
    Some(Measured {
        verdict: ratio.verdict().words().to_owned(),
        sentence: ratio.sentence("The optimised program", "processor time"),
        estimate: ratio.estimate,
        interval: (low > 0.0 && high.is_finite()).then_some(ratio.interval),
        pairs: paired
            .pairs
            .iter()
            .map(|(before, after)| (before.cpu.as_secs_f64(), after.cpu.as_secs_f64()))
            .collect(),
    })
}

/// Makes a page and writes it; `watched` watches its phases, which may have begun with those of reading.
pub fn write(ui: &Ui, page: &Page<'_>, mut watched: Watched) -> Result<()> {
    page.input.must_differ_from(page.target)?;
    let named = || page.input.path.display().to_string();
    let elf = page.input.elf()?;
    let mut facts_of = |profile| facts::facts(&elf, profile, &mut watched.phases);
    let facts = facts_of(page.profile)
        .with_context(|| format!("{} with {}", named(), page.profile_names.join(", ")))?;
    let other = match page.compare {
        Some((profile, name)) => {
            let facts = facts_of(profile).with_context(|| format!("{} with {name}", named()))?;
            Some((facts, name))
        }
        None => None,
    };
    if !page.startup.is_empty() {
        watched.phases.begin("start-up");
    }
    let moments = moments(&elf, page)?;
    let written = page.optimized.map(Input::open).transpose()?;
    let output = written.as_ref().map(Input::elf).transpose()?;
    let note = match (&output, page.optimized) {
        (Some(output), Some(path)) => Some(note_of(output, path)?),
        _ => None,
    };
    let mut verdict = Verdict {
        measured: page.measured.and_then(measured),
        proof: page.certificate.map(proof),
        ..Verdict::default()
    };
    if let (None, Some(path), true) = (page.certificate, page.optimized, page.prove) {
        watched.phases.begin("verify");
        let options = postlink_verify::Options::default();
        verdict.proof = Some(proof(&rewriting::check(page.input, path, &options)?));
    }
    watched.phases.begin("page");
    let with_source = page.with_source;
    let debug = page.input.debug()?;
    let subjects = Subjects {
        input: &elf,
        debug: debug.as_ref(),
        facts: &facts,
        output: output.as_ref().zip(note.as_ref()),
        moments: &moments,
        other: other.as_ref().map(|(facts, name)| (facts, *name)),
        program: Program {
            name: file_name(&page.input.path),
            output: page.optimized.map(file_name),
            profile: page
                .profile_names
                .iter()
                .map(|name| file_name(Path::new(name)))
                .collect(),
            tool: concat!("postlink ", env!("CARGO_PKG_VERSION")).to_owned(),
            ..Program::default()
        },
        verdict,
        demangle: &demangle,
        source: &|path| with_source.then(|| text_of(Path::new(path)))?,
    };
    let text = if page.json {
        let model = postlink_report::gather(&subjects, page.room);
        postlink_report::json(&model)?
    } else {
        postlink_report::fitting(&subjects, page.room)?.1
    };
    postlink_profile::write_atomically(page.target, |out| out.write_all(text.as_bytes()))?;
    watched.finish();
    ui.say(format_args!(
        "{BOLD}{}{BOLD:#}: {}",
        page.target.display(),
        bytes(text.len() as u64)
    ));
    Ok(())
}

/// What had run in each of the copies of a live profile. Their counters are the program's alone: other profiles do not
/// say which blocks had run.
fn moments(elf: &Elf<'_>, page: &Page<'_>) -> Result<Vec<Moment>> {
    let mut moments = Vec::new();
    progress::files(page.startup.len());
    for path in page.startup {
        let opened = postlink_profile::open(path)?;
        let counts = opened.read()?;
        // The files are counted, and not what is done for each.
        let facts = facts::facts(elf, Source::Exact(&counts), &mut Phases::default())
            .with_context(|| format!("{} with {}", page.input.path.display(), path.display()))?;
        moments.push(Moment::new(&facts));
        progress::file_done();
    }
    progress::reset();
    Ok(moments)
}

/// The text of a source file, if it is a file of moderate size that is text.
fn text_of(path: &Path) -> Option<String> {
    let metadata = std::fs::metadata(path).ok()?;
    if !metadata.is_file() || metadata.len() > SOURCE_LIMIT {
        return None;
    }
    std::fs::read_to_string(path).ok()
}

fn note_of(output: &postlink_elf::elf::Elf<'_>, path: &Path) -> Result<Note> {
    let note = Note::read(output).with_context(|| path.display().to_string())?;
    match note {
        None => bail!(
            "{}: was not made by postlink: it has no note that says what moved",
            path.display()
        ),
        Some(note) if note.kind != NoteKind::Optimised => bail!(
            "{}: is an instrumented program; --optimized takes what `postlink optimize` wrote",
            path.display()
        ),
        Some(note) => Ok(note),
    }
}

/// Opens a page as the desktop does. A machine without one is no error: the page is there.
fn open(ui: &Ui, page: &Path) {
    let program = if cfg!(target_os = "macos") {
        "open"
    } else {
        "xdg-open"
    };
    let done = std::process::Command::new(program)
        .arg(page)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .status();
    match done {
        Ok(status) if status.success() => {}
        Ok(status) => ui.warn(format_args!("{program} could not open the page: {status}")),
        Err(error) => ui.warn(format_args!(
            "the page cannot be opened: {program}: {error}"
        )),
    }
}

impl Report {
    pub fn run(self, ui: &Ui) -> Result<ExitCode> {
        let mut watched = ui.phases("report");
        watched.phases.begin("profile");
        let input = Input::open(&self.input)?.using(self.reading.relocations)?;
        let input = debug_files::name(input, &self.naming, ui)?;
        let parsed = input.parse()?;
        let profile = read_any(ui, &parsed, &self.profile, self.ignore_build_id)?;
        let compare = self.compare.as_ref().map(|file| {
            let files = std::slice::from_ref(file);
            read_any(ui, &parsed, files, self.ignore_build_id)
        });
        let compare = compare.transpose()?;
        profile.with_source(|profile| match &compare {
            Some(other) => {
                other.with_source(|other| self.write(ui, &input, profile, Some(other), watched))
            }
            None => self.write(ui, &input, profile, None, watched),
        })?;
        if self.open {
            open(ui, &self.output);
        }
        Ok(ExitCode::SUCCESS)
    }

    fn write(
        &self,
        ui: &Ui,
        input: &Input,
        profile: Source<'_>,
        other: Option<Source<'_>>,
        watched: Watched,
    ) -> Result<()> {
        let name = self.compare.as_deref();
        let name = name.map(|name| file_name(Path::new(name)));
        write(
            ui,
            &Page {
                input,
                profile,
                profile_names: self.profile.clone(),
                optimized: self.optimized.as_deref(),
                startup: &self.startup,
                compare: other.zip(name.as_deref()),
                measured: None,
                certificate: None,
                prove: !self.no_verify,
                with_source: !self.no_source,
                room: Room {
                    graphs: self.graphs,
                    ..Room::default()
                },
                json: self.json,
                target: &self.output,
            },
            watched,
        )
    }
}
