//! What the user's profile says of stripping, and stripping a result.
//!
//! A program that was stripped of its symbols while it was linked has no relocations either (lld refuses to link such
//! a one), so `strip = "symbols"` must not reach the linker: it becomes `strip = "debuginfo"` on cargo's command line,
//! and the result is stripped instead, once it is proved. What is left is proved again.
//!
//! Which setting counts is asked in cargo's order: `--config`, the environment, configuration files from the folder of
//! the command upwards, the workspace's Cargo.toml; and all of that for the profile that a profile inherits from.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use cargo_config2::Walk;
use toml::{Table, Value};

use crate::tool;

/// Settings of profiles, the strongest first.
pub struct Settings {
    tables: Vec<Table>,
    environment: Vec<(String, String)>,
    given: usize,
}

impl Settings {
    /// Reads what cargo reads. `given` are the values of `--config`.
    pub fn read(workspace: &Path, folder: &Path, given: &[String]) -> Result<Settings> {
        let mut tables = vec![];
        // The last one counts.
        for given in given.iter().rev() {
            let path = folder.join(given);
            if path.is_file() {
                tables.push(parse(&path)?);
            } else {
                tables.push(given.parse().with_context(|| format!("--config {given}"))?);
            }
        }
        let given = tables.len();
        for path in Walk::new(folder) {
            tables.push(parse(&path)?);
        }
        tables.push(parse(&workspace.join("Cargo.toml"))?);
        let environment = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .filter(|(name, _)| name.starts_with("CARGO_PROFILE_"))
            .collect();
        Ok(Settings {
            tables,
            environment,
            given,
        })
    }

    /// The value of a key of a profile: `None` if it is not set.
    pub fn value(&self, profile: &str, key: &str) -> Option<Value> {
        let mut profile = profile.to_owned();
        // Profiles cannot inherit in a circle; cargo refuses that. Nothing here is to hang on it.
        for _ in 0..100 {
            if let Some(value) = self.own(&profile, key) {
                return Some(value);
            }
            profile = match (profile.as_str(), self.own(&profile, "inherits")) {
                ("bench", _) => "release".to_owned(),
                ("test", _) => "dev".to_owned(),
                (_, Some(Value::String(parent))) => parent,
                _ => return None,
            };
        }
        None
    }

    fn own(&self, profile: &str, key: &str) -> Option<Value> {
        let in_table = |table: &Table| {
            let value = table.get("profile")?.get(profile)?.get(key)?;
            Some(value.clone())
        };
        let (given, files) = self.tables.split_at(self.given);
        let name = format!("CARGO_PROFILE_{}_{}", upper(profile), upper(key));
        let in_environment = || {
            let (_, value) = self.environment.iter().find(|(found, _)| *found == name)?;
            // As cargo reads it: true and false are no strings.
            Some(match value.as_str() {
                "true" => Value::Boolean(true),
                "false" => Value::Boolean(false),
                other => Value::String(other.to_owned()),
            })
        };
        given
            .iter()
            .find_map(in_table)
            .or_else(in_environment)
            .or_else(|| files.iter().find_map(in_table))
    }

    /// Whether a profile has symbols stripped.
    pub fn strips_symbols(&self, profile: &str) -> bool {
        match self.value(profile, "strip") {
            Some(Value::Boolean(all)) => all,
            Some(Value::String(what)) => what == "symbols",
            _ => false,
        }
    }
}

fn upper(name: &str) -> String {
    name.to_uppercase().replace('-', "_")
}

fn parse(path: &Path) -> Result<Table> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    text.parse().with_context(|| path.display().to_string())
}

/// A program that strips files for a target: that of the compiler, LLVM's, or that of the target's binutils.
pub fn finder(sysroot: &Path, host: &str, target: &str) -> Option<(PathBuf, Vec<&'static str>)> {
    let in_sysroot = sysroot.join(format!("lib/rustlib/{host}/bin"));
    let of_target = match target.split('-').next() {
        _ if target == host => "strip",
        Some("aarch64") => "aarch64-linux-gnu-strip",
        _ => "x86_64-linux-gnu-strip",
    };
    let candidates = [
        (of_target.into(), vec!["--strip-all", "-o"]),
        (in_sysroot.join("rust-objcopy"), vec!["--strip-all"]),
        (in_sysroot.join("llvm-strip"), vec!["--strip-all", "-o"]),
        ("llvm-strip".into(), vec!["--strip-all", "-o"]),
    ];
    candidates.into_iter().find(|(program, _): &(PathBuf, _)| {
        Command::new(program)
            .arg("--version")
            .output()
            .is_ok_and(|output| output.status.success())
    })
}

/// Strips a file into another.
pub fn strip(with: &(PathBuf, Vec<&'static str>), from: &Path, to: &Path) -> Result<()> {
    let (program, options) = with;
    let mut command = Command::new(program);
    if options.last() == Some(&"-o") {
        command.args(options).arg(to).arg(from);
    } else {
        command.args(options).arg(from).arg(to);
    }
    tool::output(&mut command)?;
    if !to.is_file() {
        bail!(
            "{}: {} has written no file",
            to.display(),
            program.display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(tables: &[&str], given: usize, environment: &[(&str, &str)]) -> Settings {
        Settings {
            tables: tables.iter().map(|text| text.parse().unwrap()).collect(),
            given,
            environment: environment
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
        }
    }

    #[test]
    fn a_profile_has_what_it_inherits() {
        let manifest = "[profile.release]\nstrip = true\n[profile.small]\ninherits = 'release'\n[profile.open]\n\
                        inherits = 'small'\nstrip = 'debuginfo'";
        let settings = settings(&[manifest], 0, &[]);
        for (profile, strips) in [
            ("release", true),
            ("bench", true),
            ("small", true),
            ("open", false),
            ("dev", false),
            ("unknown", false),
        ] {
            assert_eq!(settings.strips_symbols(profile), strips, "{profile}");
        }
    }

    #[test]
    fn the_command_line_counts_more_than_the_environment_and_that_more_than_files() {
        let manifest = "profile.release.strip = false";
        let environment = [("CARGO_PROFILE_RELEASE_STRIP", "symbols")];
        assert!(!settings(&[manifest], 0, &[]).strips_symbols("release"));
        assert!(settings(&[manifest], 0, &environment).strips_symbols("release"));
        let given = "profile.release.strip = 'none'";
        assert!(!settings(&[given, manifest], 1, &environment).strips_symbols("release"));
    }
}
