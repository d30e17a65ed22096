//! The layout of `target/postlink`.
//!
//! | file | is |
//! |---|---|
//! | `cargo/TARGET/PROFILE/NAME` | what cargo made; cargo's own target folder, in which no other build runs |
//! | `cargo/TARGET/PROFILE/NAME.instrumented` | the instrumented copy: programs look for files beside them |
//! | `profiles/TARGET/PROFILE/NAME/DIGEST/program` | the program that was counted, for when it has changed |
//! | `profiles/TARGET/PROFILE/NAME/DIGEST/current.plraw` | where the instrumented copy counts |
//! | `profiles/TARGET/PROFILE/NAME/DIGEST/run-N.plraw` | counts of a run that ended well, or was interrupted |
//! | `profiles/TARGET/PROFILE/NAME/DIGEST/failed-N.plraw` | counts of a run that failed: not used |
//! | `TARGET/PROFILE/NAME` | the result |
//!
//! Counters are of one program, byte for byte, so profiles are in a folder that has the digest of the program's bytes
//! for its name: what a program counted stays usable when it was built with other features in between.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use crate::options::Relocations;
use crate::say;
use crate::tool::{self, done};

/// The name of the file that an instrumented program counts in.
const CURRENT: &str = "current.plraw";

/// The folders of one target and profile.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Store {
    /// `target/postlink`
    pub root: PathBuf,
    /// `TARGET/PROFILE`, with `-pgo` if the compiler has used a profile.
    pub place: PathBuf,
    /// Where cargo puts programs.
    pub built: PathBuf,
    /// What programs are linked with.
    pub relocations: Relocations,
}

/// A program that cargo made.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its path in cargo's folder: a name, `examples/NAME`, `deps/NAME-HASH`.
    pub label: PathBuf,
    /// Where cargo put it.
    pub program: PathBuf,
    /// Of its bytes.
    digest: String,
    /// For all builds of it.
    profiles: PathBuf,
    /// Where the result goes.
    pub result: PathBuf,
}

/// What is known of where a program goes.
pub enum Known {
    /// Nothing.
    Nothing,
    /// Counts of this very program.
    Exact(Vec<PathBuf>),
    /// Counts of another build of it, and that build.
    Older(Vec<PathBuf>, PathBuf),
}

impl Store {
    /// A program below cargo's folder; `None` if it is elsewhere.
    pub fn entry(&self, program: &Path) -> Result<Option<Entry>> {
        let named = || program.display().to_string();
        let real = program.canonicalize().with_context(named)?;
        let Ok(built) = self.built.canonicalize() else {
            return Ok(None);
        };
        let Ok(label) = real.strip_prefix(&built) else {
            return Ok(None);
        };
        let bytes = fs::read(&real).with_context(named)?;
        Ok(Some(Entry {
            label: label.to_owned(),
            digest: format!("{:032x}", xxh3_128(&bytes)),
            profiles: self.root.join("profiles").join(&self.place).join(label),
            result: self.root.join(&self.place).join(label),
            program: real,
        }))
    }

    /// Gives every file that programs counted in a name of its own.
    pub fn settle(&self, failed: bool) -> Result<()> {
        let kind = if failed { "failed" } else { "run" };
        let mut folders = vec![self.root.join("profiles").join(&self.place)];
        while let Some(folder) = folders.pop() {
            let Ok(entries) = fs::read_dir(&folder) else {
                continue;
            };
            for entry in entries {
                let path = entry.with_context(|| folder.display().to_string())?.path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.ends_with(CURRENT) {
                    let free = (1..)
                        .map(|n: u64| folder.join(format!("{kind}-{n}.plraw")))
                        .find(|name| !name.exists());
                    let free = free.context("no number is free")?;
                    fs::rename(&path, &free).with_context(|| path.display().to_string())?;
                }
            }
        }
        Ok(())
    }

    /// Forgets all counts of this target and profile.
    pub fn forget(&self) -> Result<()> {
        let folder = self.root.join("profiles").join(&self.place);
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| folder.display().to_string())
            }
            _ => Ok(()),
        }
    }
}

impl Entry {
    /// The instrumented copy's path.
    pub fn instrumented(&self) -> PathBuf {
        let mut name = self.program.clone().into_os_string();
        name.push(".instrumented");
        name.into()
    }

    fn folder(&self) -> PathBuf {
        self.profiles.join(&self.digest)
    }

    /// Makes the instrumented copy, unless it is there and of this program.
    pub fn instrument(&self, relocations: Relocations) -> Result<PathBuf> {
        let (copy, folder) = (self.instrumented(), self.folder());
        let mark = self.profiles.join("instrumented");
        let content = format!(
            "{} {relocations:?} {}\n",
            self.digest,
            env!("CARGO_PKG_VERSION")
        );
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let known = folder.join("program");
        if !known.exists() {
            fs::copy(&self.program, &known).with_context(|| known.display().to_string())?;
        }
        if copy.is_file() && fs::read_to_string(&mark).is_ok_and(|found| found == content) {
            return Ok(copy);
        }
        say::step("Instrument", self.label.display());
        let counts = folder.join(CURRENT);
        let pattern = counts
            .to_str()
            .with_context(|| format!("{}: the path is not UTF-8", counts.display()))?
            .replace('%', "%%");
        let mut command = tool::postlink("instrument");
        command
            .args(["--quiet", "--profile", &pattern])
            .arg(&self.program)
            .arg("-o")
            .arg(&copy)
            .args(relocations.options());
        done(&mut command, "postlink instrument")?;
        fs::write(&mark, content).with_context(|| mark.display().to_string())?;
        Ok(copy)
    }

    /// What was counted of this program; if nothing, what was counted of the build before it.
    pub fn known(&self) -> Result<Known> {
        let exact = counts(&self.folder())?;
        if !exact.is_empty() {
            return Ok(Known::Exact(exact));
        }
        let mut builds = vec![];
        for entry in fs::read_dir(&self.profiles).into_iter().flatten() {
            let folder = entry
                .with_context(|| self.profiles.display().to_string())?
                .path();
            let program = folder.join("program");
            if !folder.is_dir() || !program.is_file() {
                continue;
            }
            let files = counts(&folder)?;
            if let Some(last) = files
                .iter()
                .filter_map(|f| f.metadata().ok()?.modified().ok())
                .max()
            {
                builds.push((last, files, program));
            }
        }
        builds.sort();
        Ok(match builds.pop() {
            Some((_, files, program)) => Known::Older(files, program),
            None => Known::Nothing,
        })
    }

    /// A file beside the counts.
    pub fn beside_counts(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }
}

/// Files with counts in a folder, in order.
fn counts(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = vec![];
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.with_context(|| folder.display().to_string())?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.ends_with(".plraw") && !name.starts_with("failed-") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

impl Relocations {
    /// For postlink.
    pub fn options(self) -> [&'static str; 2] {
        match self {
            Relocations::Kept => ["--relocations", "kept"],
            Relocations::None => ["--relocations", "none"],
        }
    }
}
