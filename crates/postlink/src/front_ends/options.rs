//! Command lines as LLVM's tools read them.
//!
//! Options have one dash or two; a value is after `=` or in the next argument; a switch may be given one too
//! (`-nl=0`). `--` ends the options. `@FILE` represents the arguments in a file.
//!
//! A tool says for each option what is done with it. Those that only tune the insides of LLVM are taken with
//! a note; those that ask for something that cannot be done, and what is unknown, are errors.

use std::collections::HashMap;

use anyhow::{Context, Result, anyhow, bail};

/// What is done with an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It has a value.
    Value,
    /// It is on or off, or has a value after `=`.
    Switch,
    /// It has a value that changes nothing here.
    IgnoredValue,
    /// It changes nothing here.
    IgnoredSwitch,
    /// It asks for what cannot be done.
    Refused,
}

/// An option.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// Its name, without dashes.
    pub name: &'static str,
    /// What is done with it.
    pub kind: Kind,
    /// What it does, for `--help`; why it does nothing, for those that do nothing; why it cannot be done.
    pub about: &'static str,
}

/// An option with a value.
pub const fn value(name: &'static str, about: &'static str) -> Known {
    Known {
        name,
        kind: Kind::Value,
        about,
    }
}

/// A switch.
pub const fn switch(name: &'static str, about: &'static str) -> Known {
    Known {
        name,
        kind: Kind::Switch,
        about,
    }
}

/// A switch that changes nothing, and why.
pub const fn ignored(name: &'static str, why: &'static str) -> Known {
    Known {
        name,
        kind: Kind::IgnoredSwitch,
        about: why,
    }
}

/// An option with a value that changes nothing, and why.
pub const fn ignored_value(name: &'static str, why: &'static str) -> Known {
    Known {
        name,
        kind: Kind::IgnoredValue,
        about: why,
    }
}

/// A switch that asks for what cannot be done, and why.
pub const fn refused(name: &'static str, why: &'static str) -> Known {
    Known {
        name,
        kind: Kind::Refused,
        about: why,
    }
}

/// A tool's command line.
#[derive(Clone, Copy, Debug)]
pub struct Tool {
    /// Its name.
    pub name: &'static str,
    /// What `--help` says first.
    pub overview: &'static str,
    /// How it is called.
    pub usage: &'static str,
    /// Its options.
    pub options: &'static [Known],
    /// Other names of options.
    pub aliases: &'static [(&'static str, &'static str)],
}

/// What a command line says.
#[derive(Debug)]
pub enum Asked {
    /// Work.
    Work(Given),
    /// Help; with what was given before that option.
    Help(Given),
    /// The version.
    Version,
}

/// Which options `--print-options` and `--print-all-options` show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Print {
    Given,
    All,
}

/// An option on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Occurrence {
    /// Its name.
    pub name: &'static str,
    /// The argument.
    pub argument: String,
    /// How many arguments that are no options are in front of it.
    pub positional_before: usize,
}

/// What was given.
#[derive(Debug, Default)]
pub struct Given {
    values: HashMap<&'static str, Vec<String>>,
    /// Arguments that are no options.
    pub positional: Vec<String>,
    /// Options that change something, in their order.
    pub occurrences: Vec<Occurrence>,
    /// Options that change nothing, as they were written, and why.
    pub ignored: Vec<(String, &'static str)>,
}

impl Tool {
    /// Reads arguments. Prints help or version and ends the program where these are asked for.
    pub fn parse(&self, arguments: &mut dyn Iterator<Item = String>) -> Result<Given> {
        match self.read(arguments)? {
            Asked::Work(given) => return Ok(given),
            Asked::Help(_) => self.help(),
            Asked::Version => println!(
                "postlink {}: {}, compatible with LLVM 22",
                env!("CARGO_PKG_VERSION"),
                self.name
            ),
        }
        std::process::exit(0);
    }

    /// Reads arguments.
    pub fn read(&self, arguments: &mut dyn Iterator<Item = String>) -> Result<Asked> {
        let mut pending: Vec<String> = expand(arguments)?;
        pending.reverse();
        let mut given = Given::default();
        let mut only_positional = false;
        let mut print = None;
        while let Some(argument) = pending.pop() {
            let option = argument
                .strip_prefix("--")
                .or_else(|| argument.strip_prefix('-'))
                .filter(|option| !only_positional && !option.is_empty());
            let Some(option) = option else {
                if argument == "--" && !only_positional {
                    only_positional = true;
                } else {
                    given.positional.push(argument);
                }
                continue;
            };
            let (name, inline) = match option.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (option, None),
            };
            let name = self
                .aliases
                .iter()
                .find(|alias| alias.0 == name)
                .map_or(name, |alias| alias.1);
            match name {
                "help" | "h" | "help-hidden" | "help-list" | "help-list-hidden" => {
                    return Ok(Asked::Help(given));
                }
                "version" => return Ok(Asked::Version),
                "print-options" => {
                    print.get_or_insert(Print::Given);
                    continue;
                }
                "print-all-options" => {
                    print = Some(Print::All);
                    continue;
                }
                _ => {}
            }
            let Some(known) = self.options.iter().find(|known| known.name == name) else {
                bail!(
                    "Unknown command line argument '{argument}'.  Try: '{} --help'",
                    self.name
                );
            };
            if matches!(known.kind, Kind::Value | Kind::Switch) {
                given.occurrences.push(Occurrence {
                    name: known.name,
                    argument: argument.clone(),
                    positional_before: given.positional.len(),
                });
            }
            match known.kind {
                Kind::Value | Kind::IgnoredValue => {
                    let value = inline.or_else(|| pending.pop());
                    let value = value
                        .ok_or_else(|| anyhow!("for the --{name} option: requires a value!"))?;
                    if known.kind == Kind::IgnoredValue {
                        given.ignored.push((argument, known.about));
                    } else {
                        given.values.entry(known.name).or_default().push(value);
                    }
                }
                Kind::Switch => given
                    .values
                    .entry(known.name)
                    .or_default()
                    .push(inline.unwrap_or_default()),
                Kind::IgnoredSwitch => given.ignored.push((argument, known.about)),
                Kind::Refused if matches!(inline.as_deref(), Some("0" | "false")) => {}
                Kind::Refused => bail!("--{name} is not supported: {}", known.about),
            }
        }
        if let Some(print) = print {
            self.print(&given, print);
        }
        Ok(Asked::Work(given))
    }

    /// Prints options that have an effect, with their last values.
    fn print(&self, given: &Given, print: Print) {
        let width = self.options.iter().map(|o| o.name.len()).max();
        for known in self.options {
            let value = given.value(known.name);
            let taken = matches!(known.kind, Kind::Value | Kind::Switch);
            if !taken || (print == Print::Given && value.is_none()) {
                continue;
            }
            let value = match (value, known.kind) {
                (None, _) => "*no default*",
                (Some(""), Kind::Switch) => "1",
                (Some(value), _) => value,
            };
            println!("  -{:<1$} = {value}", known.name, width.unwrap_or(0));
        }
    }

    fn help(&self) {
        println!(
            "OVERVIEW: {}\n\nUSAGE: {}\n\nOPTIONS:\n",
            self.overview, self.usage
        );
        for known in self.options {
            let spelling = match known.kind {
                Kind::Value | Kind::IgnoredValue => format!("--{}=<value>", known.name),
                Kind::Switch | Kind::IgnoredSwitch | Kind::Refused => format!("--{}", known.name),
            };
            let about = match known.kind {
                Kind::IgnoredValue | Kind::IgnoredSwitch => format!("(no effect: {})", known.about),
                Kind::Refused => format!("(not supported: {})", known.about),
                Kind::Value | Kind::Switch => known.about.to_owned(),
            };
            println!("  {spelling:<32} - {about}");
        }
        println!(
            "\n  {:<32} - Display available options\n  {:<32} - Display the version of this program",
            "--help", "--version"
        );
    }
}

/// Arguments with those from files in their place.
fn expand(arguments: &mut dyn Iterator<Item = String>) -> Result<Vec<String>> {
    let mut out = Vec::new();
    for argument in arguments {
        match argument.strip_prefix('@') {
            Some(file) if std::path::Path::new(file).is_file() => {
                let text = std::fs::read_to_string(file).with_context(|| file.to_owned())?;
                out.extend(text.split_whitespace().map(str::to_owned));
            }
            _ => out.push(argument),
        }
    }
    Ok(out)
}

impl Given {
    /// The one argument that is no option: the program.
    pub fn executable(&self) -> Result<&String> {
        match &self.positional[..] {
            [program] => Ok(program),
            [] => bail!("no executable specified."),
            several => bail!(
                "Too many positional arguments specified: {}",
                several.join(" ")
            ),
        }
    }

    /// The last value of an option.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.values(name).last().map(String::as_str)
    }

    /// All values of an option.
    pub fn values(&self, name: &str) -> &[String] {
        self.values.get(name).map_or(&[], Vec::as_slice)
    }

    /// A number.
    pub fn number<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>> {
        let Some(text) = self.value(name) else {
            return Ok(None);
        };
        match text.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => bail!("for the --{name} option: '{text}' value invalid for uint argument!"),
        }
    }

    /// A number of which any negative value means "no limit".
    pub fn unlimited(&self, name: &str) -> Result<Option<usize>> {
        let number: Option<i64> = self.number(name)?;
        Ok(number.and_then(|number| usize::try_from(number).ok()))
    }

    /// Whether a switch is on.
    pub fn switch(&self, name: &str, default: bool) -> Result<bool> {
        match self.value(name) {
            None => Ok(default),
            Some("" | "1" | "true" | "TRUE" | "True") => Ok(true),
            Some("0" | "false" | "FALSE" | "False") => Ok(false),
            Some(other) => bail!(
                "for the --{name} option: '{other}' is invalid value for boolean argument! Try 0 or 1"
            ),
        }
    }

    /// Says on standard error which options changed nothing.
    pub fn say_ignored(&self, program: &str) {
        for (spelling, why) in &self.ignored {
            eprintln!("{program}: note: {spelling} has no effect here: {why}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOOL: Tool = Tool {
        name: "tool",
        overview: "a tool",
        usage: "tool [options]",
        options: &[
            value("output", "where to"),
            switch("nl", "no branches"),
            ignored("fast", "it is anyway"),
            ignored_value("level", "there is only one"),
            refused("fly", "it has no wings"),
        ],
        aliases: &[("o", "output")],
    };

    fn parse(line: &str) -> Result<Given> {
        TOOL.parse(&mut line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn one_dash_or_two_and_values_in_both_places() {
        for line in [
            "-o x a",
            "--o=x a",
            "-output x a",
            "a --output=x",
            "-o=x -- a",
        ] {
            let given = parse(line).unwrap();
            assert_eq!(given.value("output"), Some("x"), "{line}");
            assert_eq!(given.positional, ["a"], "{line}");
        }
        assert!(parse("-nl").unwrap().switch("nl", false).unwrap());
        assert!(!parse("-nl=0").unwrap().switch("nl", true).unwrap());
        assert!(parse("-nl=maybe").unwrap().switch("nl", true).is_err());
    }

    #[test]
    fn what_cannot_be_done_is_refused_with_the_reason() {
        let error = parse("--fly").unwrap_err().to_string();
        assert_eq!(error, "--fly is not supported: it has no wings");
        assert!(parse("--fly=0").is_ok());
    }

    #[test]
    fn what_tunes_is_noted_and_what_is_unknown_refused() {
        let given = parse("-fast -level=3 --level 4").unwrap();
        assert_eq!(given.ignored.len(), 3);
        assert_eq!(
            given.ignored[1],
            ("-level=3".to_owned(), "there is only one")
        );
        assert!(parse("-fats").unwrap_err().to_string().contains("'-fats'"));
        assert!(
            parse("-o")
                .unwrap_err()
                .to_string()
                .contains("requires a value")
        );
    }
}
