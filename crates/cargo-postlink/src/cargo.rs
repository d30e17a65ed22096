//! Builds by cargo: which programs there are is read from its messages, never guessed from names.

use std::io::BufReader;
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use cargo_metadata::{Message, TargetKind};
use postlink_measure::ending;

use crate::session::{Flavour, Session};

/// What kind of program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A program of the package.
    Program,
    /// An example.
    Example,
    /// Tests or benches.
    Harness,
}

/// A program that cargo made.
#[derive(Clone, Debug)]
pub struct Built {
    /// Its name in Cargo.toml.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// Where it is.
    pub path: PathBuf,
}

/// Builds, and gives the programs that were asked for and those that they depend on. `command` is `build`, or `test` or
/// `bench`, which are told not to run anything.
pub fn build(
    session: &Session,
    flavour: &Flavour,
    command: &str,
    selection: &[std::ffi::OsString],
) -> Result<Vec<Built>> {
    let mut cargo = session.cargo(command, flavour);
    cargo
        .args(selection)
        .arg("--message-format=json-render-diagnostics")
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    if command != "build" {
        cargo.arg("--no-run");
    }
    let mut child = cargo.spawn().context("cargo cannot be started")?;
    let output = child
        .stdout
        .take()
        .context("cargo has no standard output")?;
    let mut built: Vec<Built> = vec![];
    for message in Message::parse_stream(BufReader::new(output)) {
        let Message::CompilerArtifact(artifact) = message.context("cargo's messages")? else {
            continue;
        };
        let Some(path) = artifact.executable else {
            continue;
        };
        let is = |kind: TargetKind| artifact.target.kind.contains(&kind);
        let kind = match () {
            () if artifact.profile.test || is(TargetKind::Bench) || is(TargetKind::Test) => {
                Kind::Harness
            }
            () if is(TargetKind::Example) => Kind::Example,
            () if is(TargetKind::Bin) => Kind::Program,
            () => continue,
        };
        built.push(Built {
            name: artifact.target.name,
            kind,
            path: path.into_std_path_buf(),
        });
    }
    let status = child.wait().context("cargo")?;
    if !status.success() {
        bail!(
            "cargo {command} {}{}",
            ending(status),
            session.missing_target()
        );
    }
    built.sort_by(|a, b| a.path.cmp(&b.path));
    built.dedup_by(|a, b| a.path == b.path);
    Ok(built)
}

/// What is said when cargo made no program.
pub const NOTHING: &str = "cargo has built no program: the selected packages have none (libraries cannot be optimised on their own)";
