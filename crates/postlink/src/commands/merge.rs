//! `postlink merge`: many profiles into one.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::optimize::read_profiles;
use crate::ui::{BOLD, Ui, count, percent};

/// Add profiles up into one file
///
/// Raw and merged profiles of one program, in any order and mixture: the result is the same, byte for byte.
/// Counts saturate.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  postlink merge a.plraw b.plraw -o all.plprof
  postlink merge weekday.plprof:5 weekend.plprof:2 -o week.plprof")]
pub struct Merge {
    /// Profiles; FILE:N counts N times
    #[arg(value_name = "FILE[:WEIGHT]", required = true)]
    pub inputs: Vec<String>,
    /// The merged profile to write
    #[arg(long, short, value_name = "OUTPUT")]
    pub output: PathBuf,
}

impl Merge {
    pub fn run(self, ui: &Ui) -> Result<ExitCode> {
        let mut watched = ui.phases("merge");
        watched.phases.begin("read");
        let profile = read_profiles(ui, &self.inputs)?;
        watched.phases.begin("write");
        postlink_profile::plprof::write(&self.output, &profile)?;
        watched.finish();
        let used = profile.counters().iter().filter(|c| **c > 0).count();
        ui.say(format_args!(
            "{BOLD}{}{BOLD:#}: {} files, {} counts in {} of {} counters ({})",
            self.output.display(),
            count(self.inputs.len()),
            count(profile.total()),
            count(used),
            count(profile.counters().len()),
            percent(used as u64, profile.counters().len() as u64)
        ));
        Ok(ExitCode::SUCCESS)
    }
}
