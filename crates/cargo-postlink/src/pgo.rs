//! The compiler, and its own profile-guided optimisation: build with counters, run, merge, build again by the profile.
//!
//! Raw profiles are read by `llvm-profdata` of the compiler's own version of LLVM: that of rustup's component
//! `llvm-tools`, or that of a Linux distribution.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::tool;

/// What the compiler says of itself.
pub struct Compiler {
    /// Its path.
    pub rustc: PathBuf,
    /// `rustc 1.95.0 (…)`
    pub version: String,
    /// The triple of this machine.
    pub host: String,
    /// The major version of its LLVM.
    pub llvm: u32,
    /// Where its libraries and tools are.
    pub sysroot: PathBuf,
}

impl Compiler {
    /// Asks it.
    pub fn ask(rustc: &Path) -> Result<Compiler> {
        let said = tool::output(Command::new(rustc).arg("-vV"))?;
        let field = |name: &str| {
            said.lines()
                .find_map(|line| line.strip_prefix(name))
                .map(str::to_owned)
                .with_context(|| format!("rustc -vV has no '{name}'"))
        };
        let llvm = field("LLVM version: ")?;
        let major = llvm.split('.').next().and_then(|major| major.parse().ok());
        let sysroot = tool::output(Command::new(rustc).args(["--print", "sysroot"]))?;
        Ok(Compiler {
            rustc: rustc.to_owned(),
            version: said.lines().next().unwrap_or_default().to_owned(),
            host: field("host: ")?,
            llvm: major.with_context(|| format!("rustc -vV names no version of LLVM: {llvm}"))?,
            sysroot: PathBuf::from(sysroot.trim()),
        })
    }

    /// An `llvm-profdata` that reads what this compiler's programs write.
    pub fn profdata(&self) -> Result<PathBuf> {
        if let Some(given) = std::env::var_os("LLVM_PROFDATA") {
            return Ok(given.into());
        }
        let in_sysroot = self
            .sysroot
            .join(format!("lib/rustlib/{}/bin/llvm-profdata", self.host));
        let of_version = format!("llvm-profdata-{}", self.llvm);
        let of_distribution = format!("/usr/lib/llvm-{}/bin/llvm-profdata", self.llvm);
        let candidates = [
            in_sysroot.clone(),
            of_version.clone().into(),
            of_distribution.clone().into(),
            "llvm-profdata".into(),
        ];
        let mut others = vec![];
        for candidate in candidates {
            let Ok(said) = tool::output(Command::new(&candidate).arg("--version")) else {
                continue;
            };
            match major(&said) {
                // What is in the compiler's folder belongs to it.
                _ if candidate == in_sysroot => return Ok(candidate),
                Some(found) if found >= self.llvm => return Ok(candidate),
                found => others.push(format!(
                    "{} is of LLVM {}",
                    candidate.display(),
                    found.map_or("?".to_owned(), |found| found.to_string())
                )),
            }
        }
        let others = match others.as_slice() {
            [] => String::new(),
            others => format!("; {}", others.join(", ")),
        };
        bail!(
            "no llvm-profdata of LLVM {} for {}: `rustup component add llvm-tools`, or the package llvm-{} of your distribution, or name one in LLVM_PROFDATA{others}",
            self.llvm,
            self.version,
            self.llvm
        )
    }
}

fn major(said: &str) -> Option<u32> {
    let (_, version) = said.split_once("LLVM version ")?;
    version.split('.').next()?.parse().ok()
}

/// Raw profiles in a folder.
pub fn raw_profiles(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = vec![];
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.with_context(|| folder.display().to_string())?.path();
        if path.extension() == Some(OsStr::new("profraw")) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Merges raw profiles into one file.
pub fn merge(profdata: &Path, raw: &[PathBuf], output: &Path) -> Result<()> {
    let mut command = Command::new(profdata);
    command.arg("merge").args(raw).arg("-o").arg(output);
    tool::output(&mut command)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_llvm_is_read_as_rust_and_debian_print_it() {
        assert_eq!(
            major("LLVM (http://llvm.org/):\n  LLVM version 22.1.2-rust-1.95.0-stable\n"),
            Some(22)
        );
        assert_eq!(major("Debian LLVM version 14.0.6\n"), Some(14));
        assert_eq!(major("something else"), None);
    }
}
