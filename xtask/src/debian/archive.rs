//! Packages of the distribution, unpacked into folders of their own.
//!
//! Nothing is installed. `apt-get --simulate` names what an installation of a package would fetch now: the package
//! itself, and of what it depends on the packages that this system does not have. They are fetched by `apt-get
//! download` into `archives`, once for all, and unpacked by `dpkg-deb` into one folder a program. libc6 is left out
//! unless it is what is measured: programs run with the loader of the system, which takes its own C library only.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::catalogue::Entry;

/// The folder of all packages and all programs.
pub struct Archive {
    folder: PathBuf,
}

fn said(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?}: {}: {}", output.status, error.trim_end());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The packages that apt would install, by what its simulation prints: `Inst NAME [OLD] (NEW …)`.
fn to_install(simulation: &str) -> BTreeSet<String> {
    let named = |line: &str| Some(line.strip_prefix("Inst ")?.split(' ').next()?.to_owned());
    simulation.lines().filter_map(named).collect()
}

/// A folder that may not be there.
fn clear(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| folder.display().to_string())
        }
        _ => Ok(()),
    }
}

impl Archive {
    /// The archive in a folder, which is made if it is not there.
    pub fn open(folder: &Path) -> Result<Archive> {
        let archives = folder.join("archives");
        fs::create_dir_all(&archives).with_context(|| archives.display().to_string())?;
        let folder = folder.canonicalize()?;
        Ok(Archive { folder })
    }

    /// The folder of a program.
    pub fn folder(&self, entry: &Entry) -> PathBuf {
        self.folder.join(entry.name)
    }

    /// Fetches and unpacks what a program needs, afresh. Gives the folder of what was unpacked, and the version of the
    /// package that has the file.
    pub fn unpack(&self, entry: &Entry) -> Result<(PathBuf, String)> {
        let root = self.folder(entry).join("root");
        clear(&root)?;
        fs::create_dir_all(&root).with_context(|| root.display().to_string())?;
        let mut simulate = Command::new("apt-get");
        simulate
            .args(["--simulate", "--reinstall", "--no-install-recommends"])
            .arg("install")
            .args(entry.packages);
        let mut wanted = to_install(&said(&mut simulate)?);
        wanted.extend(entry.packages.iter().map(|name| (*name).to_owned()));
        if !entry.packages.contains(&"libc6") {
            wanted.remove("libc6");
        }
        let mut version = None;
        for package in &wanted {
            let file = self.fetch(package)?;
            let mut unpack = Command::new("dpkg-deb");
            said(unpack.arg("--extract").args([&file, &root]))?;
            if *package == entry.packages[0] {
                let mut field = Command::new("dpkg-deb");
                let field = field.arg("--field").arg(&file).arg("Version");
                version = Some(said(field)?.trim_end().to_owned());
            }
        }
        let version = version.context("no package was named")?;
        Ok((root, version))
    }

    /// The file of a package in the version that apt would install; it is fetched only once.
    fn fetch(&self, package: &str) -> Result<PathBuf> {
        let archives = self.folder.join("archives");
        let mut uris = Command::new("apt-get");
        let uris = said(uris.args(["download", "--print-uris", package]))?;
        // 'ADDRESS' NAME SIZE DIGEST
        let name = uris
            .split_whitespace()
            .nth(1)
            .with_context(|| format!("apt-get download --print-uris {package} named no file"))?;
        let file = archives.join(name);
        if !file.exists() {
            let mut download = Command::new("apt-get");
            download.current_dir(&archives);
            said(download.args(["--quiet=2", "download", package]))?;
        }
        if !file.exists() {
            bail!("{}: apt-get download did not write it", file.display());
        }
        Ok(file)
    }

    /// Removes what was unpacked for a program.
    pub fn remove(&self, entry: &Entry) -> Result<()> {
        clear(&self.folder(entry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_of_a_simulation_are_read() {
        let text = "NOTE: This is only a simulation!\nInst libpq5 [15.1-0] (15.2-0 Debian:12 [amd64]) []\n\
                    Inst sox (14.4 Debian:12 [amd64])\nConf sox (14.4 Debian:12 [amd64])\n";
        let packages: Vec<String> = to_install(text).into_iter().collect();
        assert_eq!(packages, ["libpq5", "sox"]);
    }
}
