//! `postlink mip to-yaml` and `from-yaml`: a profile as text.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use postlink_mip::{Symbolizer, mip, yaml};

use super::{Of, put};
use crate::ui::{BOLD, Ui, count};

/// Write a profile as YAML
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  postlink mip to-yaml -p app.mip -o app.yaml
  postlink mip to-yaml -p app.mip --debug ./app.unstripped | less")]
pub struct ToYaml {
    #[command(flatten)]
    of: Of,
    /// A copy of the program with debug information, for source lines
    #[arg(long, value_name = "FILE")]
    debug: Option<PathBuf>,
    /// Which part of a universal Mach-O file: name or number [default: arm64]
    #[arg(long, value_name = "NAME", requires = "debug")]
    arch: Option<String>,
    /// Where to write; - is standard output
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl ToYaml {
    pub fn run(self, ui: &Ui) -> Result<ExitCode> {
        let mut watched = ui.phases("mip to-yaml");
        watched.phases.begin("read the profile");
        let profile = mip::open(&self.of.profile)?;
        watched.phases.begin("lines");
        let symbolizer = match &self.debug {
            Some(path) => Some(Symbolizer::open(path, self.arch.as_deref())?),
            None => None,
        };
        let text = yaml::write(&profile, symbolizer.as_ref());
        watched.printing();
        put(self.output.as_deref(), text.as_bytes())?;
        watched.finish();
        Ok(ExitCode::SUCCESS)
    }
}

/// Make a profile from YAML
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  postlink mip from-yaml -p app.mip app.yaml
  postlink mip to-yaml -p a.mip | sed s/old_name/new_name/ | postlink mip from-yaml -p b.mip")]
pub struct FromYaml {
    #[command(flatten)]
    of: Of,
    /// The text; - is standard input
    #[arg(value_name = "YAML", default_value = "-")]
    yaml: PathBuf,
}

impl FromYaml {
    pub fn run(self, ui: &Ui) -> Result<ExitCode> {
        let profile = read(&self.yaml)?;
        mip::save(&self.of.profile, &profile)?;
        ui.say(format_args!(
            "{BOLD}{}{BOLD:#}: a profile of {} functions",
            self.of.profile.display(),
            count(profile.functions.len())
        ));
        Ok(ExitCode::SUCCESS)
    }
}

/// Reads a profile from a text, `-` is standard input.
pub(crate) fn read(path: &Path) -> Result<postlink_mip::Profile> {
    let mut text = Vec::new();
    if path == "-" {
        let mut input = std::io::stdin().lock();
        input.read_to_end(&mut text).context("standard input")?;
    } else {
        text = std::fs::read(path).with_context(|| path.display().to_string())?;
    }
    Ok(yaml::read(path, &text)?)
}
