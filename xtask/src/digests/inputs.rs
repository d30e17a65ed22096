//! The programs whose outputs are compared, each built once, with a profile of one run of it.
//!
//! A program has a folder named after its case and its kind: what the build has made, the profile
//! `run.plraw`, and a file `ready` that is written last, so that a build that was interrupted is made again.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail};

use super::cases::build::{self, Built, Kind, Target};
use super::cases::directives::Case;
use super::cases::{run, select};

/// How many programs there are for each one that `--quick` takes.
const QUICK: usize = 6;

/// A program that is to be there.
pub struct Wanted {
    /// Case and kind; has no spaces.
    pub name: String,
    /// The case.
    pub case: Case,
    /// How it is built.
    pub kind: Kind,
    /// Further flags of its compiler.
    pub flags: Vec<String>,
}

/// A program that is there.
pub struct Input {
    /// As in [`Wanted::name`].
    pub name: String,
    /// The program or library that postlink works on.
    pub subject: PathBuf,
    /// The profile of its run, if the run leaves one.
    pub profile: Option<PathBuf>,
    /// Options that the case gives to `postlink instrument`.
    pub instrument: Vec<String>,
    /// Options that the case gives to `postlink optimize`.
    pub optimize: Vec<String>,
}

/// The programs asked for, in the order of their cases.
pub fn select(all: bool, quick: bool, filter: Option<&str>) -> Result<Vec<Wanted>> {
    let (cases, wrong) = select::read_cases();
    if let Some(wrong) = wrong.first() {
        bail!("{wrong}");
    }
    let (mut wanted, mut found) = (vec![], HashMap::new());
    for (number, case) in cases.iter().enumerate() {
        let mut kinds = select::kinds(case, number);
        kinds.retain(|kind| match select::skip_reason(case, *kind, &mut found) {
            None => true,
            Some(reason) => {
                if all || reason.ends_with("is not installed") {
                    eprintln!("SKIPPED: {} in {}: {reason}", case.name, kind.name);
                }
                false
            }
        });
        if !all {
            kinds = one_of_each_machine(&kinds, number);
        }
        for kind in kinds {
            wanted.push(Wanted {
                name: format!("{}.{}", case.name, kind.name),
                case: case.clone(),
                kind,
                flags: vec![],
            });
            let builds = case.builds.iter().filter(|_| kind.takes_builds(case));
            wanted.extend(builds.map(|build| Wanted {
                name: format!("{}.{}.{}", case.name, kind.name, build.name),
                case: case.clone(),
                kind,
                flags: build.flags.clone(),
            }));
        }
    }
    if quick {
        wanted = wanted.into_iter().step_by(QUICK).collect();
    }
    if let Some(filter) = filter {
        wanted.retain(|wanted| wanted.name.contains(filter));
    }
    if wanted.is_empty() {
        bail!("no program is left: none has that name, or no compiler is installed");
    }
    Ok(wanted)
}

/// One kind of this machine and one of AArch64, others for another number.
fn one_of_each_machine(kinds: &[Kind], number: usize) -> Vec<Kind> {
    [Target::Host, Target::Aarch64]
        .into_iter()
        .filter_map(|target| {
            let of_target: Vec<&Kind> = kinds.iter().filter(|k| k.target == target).collect();
            let index = number.checked_rem(of_target.len())?;
            of_target.get(index).map(|kind| **kind)
        })
        .collect()
}

/// Builds a program and runs it for its profile, if that has not been done.
pub fn provide(wanted: &Wanted, folder: &Path, postlink: &Path) -> Result<Input> {
    let dir = folder.join(&wanted.name);
    let ready = dir.join("ready");
    let profile = dir.join("run.plraw");
    let subject = if ready.is_file() {
        let name = fs::read_to_string(&ready).with_context(|| ready.display().to_string())?;
        dir.join(name.trim())
    } else {
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        let built = build::build(&wanted.case, wanted.kind, &wanted.flags, &dir)
            .map_err(|what| anyhow!("{what}"))?;
        if wanted.case.profile_expected {
            count(wanted, &built, &dir, &profile, postlink)?;
        }
        let name = built.subject.file_name().unwrap_or_default();
        fs::write(&ready, name.as_encoded_bytes()).with_context(|| ready.display().to_string())?;
        built.subject
    };
    Ok(Input {
        name: wanted.name.clone(),
        subject,
        profile: profile.is_file().then_some(profile),
        instrument: wanted.case.instrument.clone(),
        optimize: wanted.case.optimize.clone(),
    })
}

/// Runs the instrumented program once.
fn count(
    wanted: &Wanted,
    built: &Built,
    dir: &Path,
    profile: &Path,
    postlink: &Path,
) -> Result<()> {
    let place = dir.join("instrumented");
    fs::create_dir_all(&place).with_context(|| place.display().to_string())?;
    for file in built.beside.iter().chain([&built.program]) {
        let target = place.join(file.file_name().unwrap_or_default());
        fs::copy(file, &target).with_context(|| target.display().to_string())?;
    }
    let mut instrument = Command::new(postlink);
    instrument
        .args(["--threads", "1", "instrument", "--no-verify"])
        .arg(&built.subject)
        .arg("-o")
        .arg(place.join(built.subject.file_name().unwrap_or_default()))
        .args(&wanted.case.instrument);
    run::tool(instrument, dir, "instrument").map_err(|what| anyhow!("{what}"))?;
    let program = place.join(built.program.file_name().unwrap_or_default());
    let mut command = wanted.kind.run(&program);
    command
        .args(&wanted.case.args)
        .current_dir(dir)
        .env("LC_ALL", "C")
        .env("POSTLINK_PROFILE", profile);
    // How it ends is the case's affair; the profile is there in any case.
    run::run(command, dir, "run").map_err(|what| anyhow!("{what}"))?;
    fs::remove_dir_all(&place).with_context(|| place.display().to_string())?;
    if !profile.is_file() {
        bail!("its run has left no profile");
    }
    Ok(())
}
