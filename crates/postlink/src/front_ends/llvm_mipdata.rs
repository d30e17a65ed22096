//! The program under the name `llvm-mipdata`, or as `postlink llvm-mipdata`: the original's commands, options
//! and texts, the same work.
//!
//! Remarks and errors go to standard error. After what was wrong comes the line `error: Invalid argument`, as
//! scripts know it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, anyhow, bail};
use postlink_mip::{Profile, Symbolizer, create, merge, mip, order, report, yaml};
use postlink_profile::Weighted;
use regex::bytes::Regex;

use super::Arguments;
use super::options::{Asked, Given, Kind, Occurrence, Tool, switch, value};
use crate::commands::mip as ours;

/// The name, also that of the subcommand.
pub const NAME: &str = "llvm-mipdata";

const HELP: &str = "\
OVERVIEW: llvm machine ir profile data tool

USAGE: llvm-mipdata [subcommand] [options]

SUBCOMMANDS:

  covered  - List the functions that were called.
  create   - Create an empty profile from a map file.
  info     - Print statistics about a profile.
  merge    - Merge raw profiles into a profile.
  mip2yaml - Convert a profile to YAML.
  order    - Print functions in the order of their first calls.
  show     - Print the counts of a profile.
  yaml2mip - Convert YAML to a profile.

  Type \"llvm-mipdata <subcommand> --help\" to get more help on a specific subcommand

OPTIONS:

Generic Options:

  --help    - Display available options (--help-hidden for more)
  --version - Display the version of this program
";

/// A subcommand: its name, what its positional arguments are, and the options that it has beside `--profile`.
const COMMANDS: &[(&str, &str, &[&str])] = &[
    ("create", "<map file>", &[]),
    ("merge", "<raw profiles>", &["strict"]),
    ("show", "", &["regex", "debug", "output", "arch"]),
    ("order", "", &["regex"]),
    (
        "covered",
        "",
        &["regex", "debug", "lines", "paths", "output", "arch"],
    ),
    ("info", "", &["output"]),
    ("mip2yaml", "", &["output", "debug", "arch"]),
    ("yaml2mip", "<yaml file>", &[]),
];

/// All options; which command has which is in the table above.
const TOOL: Tool = Tool {
    name: NAME,
    overview: "llvm machine ir profile data tool",
    usage: "llvm-mipdata [subcommand] [options]",
    options: &[
        value("profile", "The profile (required)"),
        value("regex", "Only functions whose mangled name matches"),
        value("debug", "A file with debug information"),
        value("output", "The output file, - for standard output"),
        value("arch", "Architecture in a universal file"),
        switch("lines", "Print file and line"),
        switch("paths", "Print file paths"),
        switch("strict", "Stop at the first corrupt raw profile"),
    ],
    aliases: &[
        ("p", "profile"),
        ("r", "regex"),
        ("o", "output"),
        ("d", "debug"),
    ],
};

/// Runs with arguments (without the program's name).
pub fn main(arguments: Arguments<'_>) -> ExitCode {
    let request = match parse(arguments) {
        Ok(Some(request)) => request,
        Ok(None) => return ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{NAME}: {error}");
            return ExitCode::FAILURE;
        }
    };
    match request.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let system = error
                .chain()
                .find_map(|cause| cause.downcast_ref::<std::io::Error>())
                .map(std::io::Error::kind);
            eprintln!("{error}");
            eprintln!(
                "error: {}",
                match system {
                    Some(std::io::ErrorKind::NotFound) => "No such file or directory",
                    Some(std::io::ErrorKind::PermissionDenied) => "Permission denied",
                    _ => "Invalid argument",
                }
            );
            ExitCode::FAILURE
        }
    }
}

/// What is to be done.
struct Request {
    command: &'static str,
    given: Given,
}

/// What was asked for; `None` if that was help or the version.
fn parse(arguments: Arguments<'_>) -> Result<Option<Request>> {
    let (given, is_help) = match TOOL.read(arguments)? {
        Asked::Work(given) => (given, false),
        Asked::Help(given) => (given, true),
        Asked::Version => {
            println!("postlink {}", env!("CARGO_PKG_VERSION"));
            println!("MIP Version {}", postlink_mip::VERSION);
            return Ok(None);
        }
    };
    let (mut command, mut positional, mut known): (_, _, &[&str]) = ("", "", &[]);
    if let Some(argument) = given.positional.first() {
        let found = COMMANDS.iter().find(|(name, _, _)| name == argument);
        (command, positional, known) = *found.ok_or_else(|| {
            anyhow!("Unknown subcommand '{argument}'.  Try: 'llvm-mipdata --help'")
        })?;
    }
    // The options of a command are after its name.
    let misplaced = given.occurrences.iter().find(|option| {
        option.name != "profile" && (option.positional_before == 0 || !known.contains(&option.name))
    });
    if let Some(Occurrence { argument, .. }) = misplaced {
        bail!("Unknown command line argument '{argument}'.  Try: 'llvm-mipdata --help'");
    }
    if is_help || command.is_empty() {
        help(command, positional, known);
        return Ok(None);
    }
    for name in ["lines", "paths", "strict"] {
        given.switch(name, false)?;
    }
    if given.value("profile").is_none() {
        bail!("for the --profile option: must be specified at least once!");
    }
    match (command, given.positional.len() - 1) {
        ("create", 0) | ("merge", 0) => {
            bail!(
                "Not enough positional command line arguments specified!\nMust specify at least 1 positional argument: See: llvm-mipdata --help"
            )
        }
        ("create" | "yaml2mip", 0 | 1) | ("merge", _) | (_, 0) => {}
        (_, _) => bail!("Too many positional arguments specified!"),
    }
    Ok(Some(Request { command, given }))
}

fn help(command: &str, positional: &str, known: &[&str]) {
    if command.is_empty() {
        print!("{HELP}");
        return;
    }
    println!("USAGE: llvm-mipdata {command} [options] {positional}\n\nOPTIONS:\n");
    for option in TOOL.options {
        if option.name == "profile" || known.contains(&option.name) {
            let value = match option.kind {
                Kind::Value => "=<string>",
                _ => "",
            };
            println!("  --{}{value} - {}", option.name, option.about);
        }
    }
}

impl Request {
    fn value(&self, name: &str) -> Option<&str> {
        self.given.value(name)
    }

    /// Arguments that are no options, without the command.
    fn files(&self) -> &[String] {
        self.given.positional.get(1..).unwrap_or_default()
    }

    fn run(&self) -> Result<()> {
        let path = PathBuf::from(self.value("profile").unwrap_or_default());
        match self.command {
            "create" => {
                let profile =
                    create::open(Path::new(self.files().first().map_or("", String::as_str)))?;
                mip::save(&path, &profile)?;
                eprintln!("remark: Wrote empty profile to {}", path.display());
            }
            "merge" => self.merge(&path)?,
            "yaml2mip" => {
                let from = self.files().first().map_or("-", String::as_str);
                let profile = ours::yaml::read(Path::new(from))?;
                mip::save(&path, &profile)?;
                eprintln!("remark: Wrote empty profile to {}", path.display());
            }
            _ => self.print(&mip::open(&path)?)?,
        }
        Ok(())
    }

    fn merge(&self, path: &Path) -> Result<()> {
        let mut profile = mip::open(path)?;
        let files: Vec<Weighted> = self
            .files()
            .iter()
            .map(|file| Weighted {
                path: file.into(),
                weight: 1,
            })
            .collect();
        let options = merge::Options {
            strict: self.given.switch("strict", false)?,
            // A profile that the original could read stays one.
            traces: profile.needs_version_9(),
        };
        let merged = merge::merge(&mut profile, &files, options)?;
        for error in &merged.refused {
            eprintln!("{error}");
        }
        mip::save(path, &profile)?;
        eprintln!(
            "remark: Merged {} raw profiles into {}",
            merged.files,
            path.display()
        );
        Ok(())
    }

    fn print(&self, profile: &Profile) -> Result<()> {
        let regex = match self.value("regex") {
            Some(text) => Some(Regex::new(text).map_err(|error| anyhow!("{text}: {error}"))?),
            None => None,
        };
        let (lines, paths) = (
            self.given.switch("lines", false)?,
            self.given.switch("paths", false)?,
        );
        if lines && paths {
            bail!("--lines and --paths cannot be used together");
        }
        if (lines || paths) && self.value("debug").is_none() {
            bail!("--lines and --paths need --debug");
        }
        let symbolizer = match self.value("debug") {
            Some(file) => Some(Symbolizer::open(Path::new(file), self.value("arch"))?),
            None => None,
        };
        let output = self.value("output").map(Path::new);
        let options = report::Options {
            filter: &|name| regex.as_ref().is_none_or(|regex| regex.is_match(name)),
            symbolizer: symbolizer.as_ref(),
            color: output.is_none() && ours::show::colored(),
        };
        let mut out = Vec::new();
        let mut remarks = Vec::new();
        match self.command {
            "show" => report::show(&mut out, profile, options)?,
            "info" => report::Info::of(profile).print(&mut out)?,
            "mip2yaml" => out = yaml::write(profile, symbolizer.as_ref()).into_bytes(),
            "order" => {
                let order = order::by_first_call(profile);
                out = order::file(profile, &order, order::Format::Symbols);
                remarks.push(format!("remark: Ordered {} functions", order.len()));
            }
            _ => {
                let how = match (lines, paths) {
                    (true, _) => report::Covered::Lines,
                    (_, true) => report::Covered::Paths,
                    _ => report::Covered::Names,
                };
                let found = report::covered(&mut out, profile, options, how)?;
                let unknown = found.unknown.iter();
                remarks
                    .extend(unknown.map(|name| format!("warning: No debug info found for {name}")));
                remarks.push(format!(
                    "remark: {} total functions are covered",
                    found.total
                ));
            }
        }
        ours::put(output, &out)?;
        for remark in remarks {
            eprintln!("{remark}");
        }
        Ok(())
    }
}
