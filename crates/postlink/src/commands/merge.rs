//! `postlink merge`: many profiles into one.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use postlink_profile::any::Any;

use super::convert::How;
use crate::profiles::{self, Target};
use crate::ui::{BOLD, Ui, count, percent};

/// Add profiles up into one file
///
/// Profiles of one kind are added up as they are: counters of instrumented programs, samples by address,
/// fdata, BOLT YAML. A mixture of kinds takes the binary and becomes fdata or YAML. In any order the result
/// is the same, byte for byte. Counts saturate.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  postlink merge a.plraw b.plraw -o all.plprof
  postlink merge weekday.plprof:5 weekend.plprof:2 -o week.plprof
  postlink merge a.fdata:3 b.fdata -o all.fdata
  postlink merge run.plraw perf.data old.fdata --binary ./app -o all.fdata")]
pub struct Merge {
    /// Profiles; FILE:N counts N times
    #[arg(value_name = "FILE[:WEIGHT]", required = true)]
    pub inputs: Vec<String>,
    /// The merged profile to write
    #[arg(long, short, value_name = "OUTPUT")]
    pub output: PathBuf,
    /// Its format [default: that of the inputs; of a mixture, by the output's name, else fdata]
    #[arg(long, value_name = "FORMAT")]
    pub to: Option<Target>,
    #[command(flatten)]
    pub how: How,
}

impl Merge {
    pub fn run(self, ui: &Ui) -> Result<ExitCode> {
        let mut watched = ui.phases("merge");
        watched.phases.begin("read");
        let reading = self.how.reading();
        let inputs = profiles::weighted(&self.inputs)?;
        // With the binary the name of the output decides; without it only what is there can be written.
        let by_name = Target::of(&self.output).filter(|_| reading.binary.is_some());
        let wanted = self.to.or(by_name).map(Target::model);
        let profile = profiles::read(ui, &inputs, wanted, &reading)?;
        watched.phases.begin("write");
        profiles::write(&self.output, &profile, self.how.dialect(), &reading)?;
        watched.finish();
        let files = count(self.inputs.len());
        match &profile {
            Any::Counters(profile) => {
                let used = profile.counters().iter().filter(|c| **c > 0).count();
                ui.say(format_args!(
                    "{BOLD}{}{BOLD:#}: {files} files, {} counts in {} of {} counters ({})",
                    self.output.display(),
                    count(profile.total()),
                    count(used),
                    count(profile.counters().len()),
                    percent(used as u64, profile.counters().len() as u64)
                ));
            }
            other => ui.say(format_args!(
                "{BOLD}{}{BOLD:#}: {files} files, {}",
                self.output.display(),
                profiles::summary(other)
            )),
        }
        Ok(ExitCode::SUCCESS)
    }
}
