//! `cargo postlink build`: programs and their instrumented copies, for who runs them in a way of their own.

use std::process::ExitCode;

use anyhow::{Result, bail};

use super::{RELEASE, count, selected};
use crate::cargo;
use crate::options::Build;
use crate::say;
use crate::session::Session;

/// Builds and instruments what was asked for.
pub fn run(options: &Build) -> Result<ExitCode> {
    let session = Session::open(&options.building, RELEASE)?;
    let _lock = session.lock()?;
    let flavour = count::known_flavour(&session)?;
    let selection = selected(options.programs.arguments(), &options.others);
    let built = cargo::build(&session, &flavour, "build", &selection)?;
    if built.is_empty() {
        bail!("{}", cargo::NOTHING);
    }
    let store = session.store(&flavour);
    for built in &built {
        let Some(entry) = store.entry(&built.path)? else {
            bail!(
                "{}: cargo has put it outside of {}",
                built.path.display(),
                store.built.display()
            );
        };
        let copy = entry.instrument(store.relocations)?;
        say::step("Instrumented", copy.display());
    }
    say::more("`cargo postlink optimize` uses the profiles that they write when they run");
    Ok(ExitCode::SUCCESS)
}
