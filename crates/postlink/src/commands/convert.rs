//! `postlink convert`: a profile in another format.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueEnum};
use postlink_aggregate as aggregate;
use postlink_profile::preaggregated::Dialect;
use postlink_profile::samples::Options;

use crate::options;
use crate::profiles::{self, Reading, Target};
use crate::ui::{BOLD, Ui};

/// Write a profile in another format
///
/// Any format becomes any that can represent it. From samples or counters to names and blocks, and
/// between these, takes the binary.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  postlink convert run.plraw --binary ./app -o app.fdata
  postlink convert app.fdata --binary ./app -o app.yaml
  postlink convert perf.data --binary ./app -o app.preagg
  postlink convert run.plraw -o run.plprof")]
pub struct Convert {
    /// The profile
    #[arg(value_name = "PROFILE")]
    pub input: String,
    /// The file to write
    #[arg(long, short, value_name = "OUTPUT")]
    pub output: PathBuf,
    /// Its format [default: by its name, else that of the input]
    #[arg(long, value_name = "FORMAT")]
    pub to: Option<Target>,
    #[command(flatten)]
    pub how: How,
}

/// What converting and merging have in common.
#[derive(Args, Debug)]
pub struct How {
    /// The binary that the profile is of
    #[arg(long, short, value_name = "FILE")]
    pub binary: Option<PathBuf>,
    /// For which version of BOLT pre-aggregated text is written
    #[arg(long, value_name = "VERSION", default_value = "22")]
    pub dialect: Version,
    #[command(flatten)]
    pub reading: options::Reading,
    /// Take samples of another version of the binary
    #[arg(long)]
    pub ignore_build_id: bool,
    /// Only samples of this process; may be given several times
    #[arg(long, value_name = "ID")]
    pub pid: Vec<i32>,
    /// Only samples of events with this in their name; may be given several times
    #[arg(long, value_name = "NAME")]
    pub event: Vec<String>,
}

/// A version of BOLT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Version {
    /// Branches and runs
    #[value(name = "19")]
    V19,
    /// Samples, events, and branches with the runs after them too
    #[value(name = "22")]
    V22,
}

impl How {
    /// How profiles are read.
    pub fn reading(&self) -> Reading {
        Reading {
            binary: self.binary.clone(),
            relocations: self.reading.relocations,
            samples: Options {
                pids: self.pid.clone(),
                events: self.event.clone(),
                ..Options::default()
            },
            aggregate: aggregate::Options {
                ignore_build_id: self.ignore_build_id,
                ..aggregate::Options::default()
            },
        }
    }

    /// Which tool pre-aggregated text is written for.
    pub fn dialect(&self) -> Dialect {
        match self.dialect {
            Version::V19 => Dialect::V19,
            Version::V22 => Dialect::V22,
        }
    }
}

impl Convert {
    pub fn run(self, ui: &Ui) -> Result<ExitCode> {
        let mut watched = ui.phases("convert");
        watched.phases.begin("read");
        let reading = self.how.reading();
        let inputs = profiles::weighted(std::slice::from_ref(&self.input))?;
        let wanted = self.to.or(Target::of(&self.output)).map(Target::model);
        let profile = profiles::read(ui, &inputs, wanted, &reading)?;
        watched.phases.begin("write");
        profiles::write(&self.output, &profile, self.how.dialect(), &reading)?;
        watched.finish();
        ui.say(format_args!(
            "{BOLD}{}{BOLD:#}: {}",
            self.output.display(),
            profiles::summary(&profile)
        ));
        Ok(ExitCode::SUCCESS)
    }
}
