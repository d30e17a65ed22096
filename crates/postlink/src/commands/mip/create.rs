//! `postlink mip create` and `merge`: profiles from maps and runs.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use postlink_mip::merge::{Merged, Options, merge};
use postlink_mip::{Profile, create, mip};
use postlink_profile::Weighted;

use super::Of;
use crate::ui::{BOLD, Ui, bytes, count};

/// Make an empty profile from a map
///
/// The map is a .mipmap file, or the program itself while it still has the section __llvm_mipmap. From the
/// program, its build id is kept too, so that runs of another build are refused.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  postlink mip create -p app.mip app.mipmap
  postlink mip create -p app.mip ./app.unstripped")]
pub struct Create {
    #[command(flatten)]
    of: Of,
    /// The map, or a program with its map
    #[arg(value_name = "MAP")]
    map: PathBuf,
}

impl Create {
    pub fn run(self, ui: &Ui) -> Result<ExitCode> {
        let profile = create::open(&self.map)?;
        mip::save(&self.of.profile, &profile)?;
        ui.say(format_args!(
            "{BOLD}{}{BOLD:#}: an empty profile of {} functions",
            self.of.profile.display(),
            count(profile.functions.len())
        ));
        let shared = shared_counters(&profile);
        if shared > 0 {
            ui.warn(format_args!(
                "{} functions have their counters in the same place as another, so their counts are those of both",
                count(shared)
            ));
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Functions whose counters begin where those of another do.
fn shared_counters(profile: &Profile) -> usize {
    let mut offsets: Vec<u64> = profile.functions.iter().map(|f| f.raw_offset).collect();
    offsets.sort_unstable();
    let all = offsets.len();
    offsets.dedup();
    all - offsets.len()
}

/// Add runs to a profile
///
/// In place: the profile is replaced when the new one is complete. Runs that do not belong to it or are
/// damaged are left out, with a warning; with --strict the first ends it and nothing changes. Sums saturate
/// and do not depend on the order of files.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  postlink mip merge -p app.mip run1.mipraw run2.mipraw
  postlink mip merge -p app.mip --map ./app.unstripped runs/
  postlink mip merge -p week.mip weekday.mip:5 weekend.mip:2 --strict")]
pub struct Merge {
    #[command(flatten)]
    of: Of,
    /// Raw profiles, other profiles, directories with .mipraw files; FILE:N counts N times
    #[arg(value_name = "RAW[:WEIGHT]", required = true)]
    raws: Vec<String>,
    /// Begin with an empty profile from this map or program, whatever the profile held
    #[arg(long, value_name = "MAP")]
    map: Option<PathBuf>,
    /// Stop at the first file that cannot be used
    #[arg(long)]
    strict: bool,
    /// Do not keep first-call orders of single runs
    ///
    /// They are what `order --by start-up` works with, but a profile that has them is of version 9, which the
    /// original tool refuses.
    #[arg(long)]
    no_traces: bool,
}

impl Merge {
    pub fn run(self, ui: &Ui) -> Result<ExitCode> {
        let mut watched = ui.phases("mip merge");
        watched.phases.begin("read the profile");
        let mut profile = match &self.map {
            Some(map) => create::open(map)?,
            None => mip::open(&self.of.profile)?,
        };
        let files = files(&self.raws)?;
        watched.phases.begin("merge");
        let options = Options {
            strict: self.strict,
            traces: !self.no_traces,
        };
        let merged = merge(&mut profile, &files, options)?;
        for error in &merged.refused {
            ui.warn(format_args!("left out: {error}"));
        }
        if merged.files == 0 {
            bail!(
                "none of {} files could be used; {} is as it was",
                files.len(),
                self.of.profile.display()
            );
        }
        watched.phases.begin("write the profile");
        mip::save(&self.of.profile, &profile)?;
        watched.finish();
        say(ui, &self.of.profile, &profile, &merged);
        Ok(ExitCode::SUCCESS)
    }
}

fn say(ui: &Ui, path: &Path, profile: &Profile, merged: &Merged) {
    let ran = profile.functions.iter().filter(|f| f.is_covered()).count();
    ui.say(format_args!(
        "{BOLD}{}{BOLD:#}: {} {} added ({}); {} of {} functions have run",
        path.display(),
        count(merged.files),
        if merged.files == 1 { "file" } else { "files" },
        bytes(merged.bytes),
        count(ran),
        count(profile.functions.len())
    ));
    if merged.strays > 0 {
        ui.warn(format_args!(
            "{} sampled calls are of functions that the profile does not have",
            count(merged.strays)
        ));
    }
}

/// Files and weights; a directory represents the raws in it.
fn files(arguments: &[String]) -> Result<Vec<Weighted>> {
    let mut files = Vec::with_capacity(arguments.len());
    for argument in arguments {
        let given = Weighted::parse(argument)?;
        if !given.path.is_dir() {
            files.push(given);
            continue;
        }
        let before = files.len();
        let entries = std::fs::read_dir(&given.path).with_context(|| argument.clone())?;
        for entry in entries {
            let path = entry.with_context(|| argument.clone())?.path();
            if path
                .extension()
                .is_some_and(|extension| extension == "mipraw" || extension == "mipret")
            {
                files.push(Weighted {
                    path,
                    weight: given.weight,
                });
            }
        }
        if files.len() == before {
            bail!("{argument}: no .mipraw file in this directory");
        }
        files[before..].sort_by(|a, b| a.path.cmp(&b.path));
    }
    Ok(files)
}
