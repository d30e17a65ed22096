//! The program under the name `llvm-mipdata`, or as `postlink llvm-mipdata`: the original's commands, options and texts, the same work.
//!
//! Remarks and errors go to standard error. After what was wrong comes the line `error: Invalid argument`, as scripts know it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, anyhow, bail};
use postlink_mip::symbolize::Symbolizer;
use postlink_mip::{Profile, create, merge, mip, order, report, yaml};
use postlink_profile::Weighted;
use regex::bytes::Regex;

use super::mip as ours;

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

/// Options: name, whether it takes a value, what it is.
const OPTIONS: &[(&str, bool, &str)] = &[
    ("profile", true, "The profile (required)"),
    ("regex", true, "Only functions whose mangled name matches"),
    ("debug", true, "A file with debug information"),
    ("output", true, "The output file, - for standard output"),
    ("arch", true, "Architecture in a universal file"),
    ("lines", false, "Print file and line"),
    ("paths", false, "Print file paths"),
    ("strict", false, "Stop at the first corrupt raw profile"),
];

const ALIASES: &[(&str, &str)] = &[
    ("p", "profile"),
    ("r", "regex"),
    ("o", "output"),
    ("d", "debug"),
];

/// Runs with arguments (without the program's name).
pub fn main(arguments: &mut dyn Iterator<Item = String>) -> ExitCode {
    let arguments: Vec<String> = arguments.collect();
    let given = match parse(&arguments) {
        Ok(Some(given)) => given,
        Ok(None) => return ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{NAME}: {error}");
            return ExitCode::FAILURE;
        }
    };
    match given.run() {
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

#[derive(Default)]
struct Given<'a> {
    command: &'static str,
    options: Vec<(&'static str, &'a str)>,
    files: Vec<&'a str>,
}

/// What was asked for; `None` if that was help or the version.
fn parse(arguments: &[String]) -> Result<Option<Given<'_>>> {
    let mut given = Given::default();
    let mut known: &[&str] = &[];
    let mut positional = "";
    let mut rest = arguments.iter();
    let mut only_files = false;
    while let Some(argument) = rest.next() {
        let option = argument
            .strip_prefix("--")
            .or_else(|| argument.strip_prefix('-'))
            .filter(|name| !only_files && !name.is_empty());
        let Some(option) = option else {
            if argument == "--" && !only_files {
                only_files = true;
            } else if given.command.is_empty() {
                let found = COMMANDS.iter().find(|(name, _, _)| name == argument);
                let (name, files, options) = found.ok_or_else(|| {
                    anyhow!("Unknown subcommand '{argument}'.  Try: 'llvm-mipdata --help'")
                })?;
                (given.command, positional, known) = (name, files, options);
            } else {
                given.files.push(argument);
            }
            continue;
        };
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        let name = ALIASES
            .iter()
            .find(|alias| alias.0 == name)
            .map_or(name, |alias| alias.1);
        match name {
            "help" | "h" | "help-hidden" => {
                help(given.command, positional, known);
                return Ok(None);
            }
            "version" => {
                println!("postlink {}", env!("CARGO_PKG_VERSION"));
                println!("MIP Version {}", postlink_mip::header::VERSION);
                return Ok(None);
            }
            _ => {}
        }
        let found = OPTIONS
            .iter()
            .find(|known_option| known_option.0 == name)
            .filter(|(name, _, _)| *name == "profile" || known.contains(name));
        let Some((name, takes_value, _)) = found else {
            bail!("Unknown command line argument '{argument}'.  Try: 'llvm-mipdata --help'");
        };
        let value = match (takes_value, value) {
            (false, None | Some("" | "1" | "true")) => "1",
            (false, Some("0" | "false")) => continue,
            (false, Some(other)) => bail!(
                "for the --{name} option: '{other}' is invalid value for boolean argument! Try 0 or 1"
            ),
            (true, Some(value)) => value,
            (true, None) => rest
                .next()
                .ok_or_else(|| anyhow!("for the --{name} option: requires a value!"))?,
        };
        given.options.push((name, value));
    }
    if given.command.is_empty() {
        help("", "", &[]);
        return Ok(None);
    }
    if given.value("profile").is_none() {
        bail!("for the --profile option: must be specified at least once!");
    }
    match (given.command, given.files.len()) {
        ("create", 0) | ("merge", 0) => {
            bail!(
                "Not enough positional command line arguments specified!\nMust specify at least 1 positional argument: See: llvm-mipdata --help"
            )
        }
        ("create" | "yaml2mip", 0 | 1) | ("merge", _) | (_, 0) => {}
        (_, _) => bail!("Too many positional arguments specified!"),
    }
    Ok(Some(given))
}

fn help(command: &str, positional: &str, known: &[&str]) {
    if command.is_empty() {
        print!("{HELP}");
        return;
    }
    println!("USAGE: llvm-mipdata {command} [options] {positional}\n\nOPTIONS:\n");
    for (name, takes_value, what) in OPTIONS {
        if *name == "profile" || known.contains(name) {
            let value = if *takes_value { "=<string>" } else { "" };
            println!("  --{name}{value} - {what}");
        }
    }
}

impl Given<'_> {
    fn value(&self, name: &str) -> Option<&str> {
        let mut of = self.options.iter().rev();
        of.find(|option| option.0 == name).map(|option| option.1)
    }

    fn has(&self, name: &str) -> bool {
        self.value(name).is_some()
    }

    fn run(&self) -> Result<()> {
        let path = PathBuf::from(self.value("profile").unwrap_or_default());
        match self.command {
            "create" => {
                let profile = create::open(Path::new(self.files[0]))?;
                mip::save(&path, &profile)?;
                eprintln!("remark: Wrote empty profile to {}", path.display());
            }
            "merge" => self.merge(&path)?,
            "yaml2mip" => {
                let from = self.files.first().copied().unwrap_or("-");
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
            .files
            .iter()
            .map(|file| Weighted {
                path: file.into(),
                weight: 1,
            })
            .collect();
        let options = merge::Options {
            strict: self.has("strict"),
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
        let (lines, paths) = (self.has("lines"), self.has("paths"));
        if lines && paths {
            bail!("--lines and --paths cannot be used together");
        }
        if (lines || paths) && !self.has("debug") {
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
