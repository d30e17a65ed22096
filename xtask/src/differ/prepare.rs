//! What goes into the two runs: the output, made from the input, and a copy of the input that takes as much room as the output.
//!
//! An output has more segments than its input. The emulator, and the loader, put what comes next (heap, libraries) behind them, so all pointers would differ by
//! a distance, and so would everything that a program calculates from pointers: hashes, orders, remainders. Therefore the run of the input uses a
//! copy whose last writable segment ends, in memory, where the output's last segment ends. Nothing else of it changes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use postlink_image::elf::Elf;

/// A copy of the input whose memory ends where the output's does. As it is if its last segment cannot grow.
pub fn padded(input: &[u8], output: &[u8]) -> Result<Vec<u8>> {
    let end = |elf: &Elf<'_>| {
        let loads = elf.segments.iter().enumerate().filter(|(_, s)| s.kind == 1);
        loads
            .map(|(i, s)| (s.addr.saturating_add(s.mem_size), i))
            .max()
    };
    let (old, new) = (
        Elf::parse(input).context("the input")?,
        Elf::parse(output).context("the output")?,
    );
    let mut copy = input.to_vec();
    let (Some((low, last)), Some((high, _))) = (end(&old), end(&new)) else {
        return Ok(copy);
    };
    let segment = &old.segments[last];
    const WRITABLE: u32 = 2;
    if high > low && segment.flags & WRITABLE != 0 {
        let size = segment.mem_size + (high - low);
        // p_memsz is at 40 in a header of 56 bytes.
        let at = old.phoff as usize + last * 56 + 40;
        copy.get_mut(at..at + 8)
            .context("the program headers")?
            .copy_from_slice(&size.to_le_bytes());
    }
    Ok(copy)
}

/// How an output is made.
#[derive(Clone, Debug)]
pub struct Recipe<'a> {
    /// postlink.
    pub postlink: &'a Path,
    /// The file to rewrite.
    pub input: &'a Path,
    /// Where files go.
    pub folder: &'a Path,
    /// Options of `optimize`.
    pub optimize: Vec<String>,
    /// A mode of `instrument`: the output is the program that counts.
    pub mode: Option<&'a str>,
    /// A profile that is there.
    pub profile: Option<&'a Path>,
}

/// Runs a command that must succeed.
pub fn succeed(command: &mut Command) -> Result<()> {
    let shown = format!("{command:?}");
    let output = command.output().with_context(|| shown.clone())?;
    if !output.status.success() {
        bail!(
            "{shown}: {}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}

impl Recipe<'_> {
    /// Makes the output. `train` runs the program with the given file in place of the subject.
    pub fn make(&self, train: impl FnOnce(&Path, &Path) -> Result<()>) -> Result<PathBuf> {
        let output = self.folder.join("output");
        let instrument = |mode: &str, to: &Path| {
            let mut command = Command::new(self.postlink);
            command.args(["-q", "--threads", "1", "instrument"]);
            command.arg(self.input).arg("-o").arg(to);
            command.args(["--mode", mode]);
            succeed(&mut command)
        };
        if let Some(mode) = self.mode {
            instrument(mode, &output)?;
            return Ok(output);
        }
        let profile = match self.profile {
            Some(profile) => profile.to_owned(),
            None => {
                let (counting, profile) = (
                    self.folder.join("counting"),
                    self.folder.join("train.plraw"),
                );
                instrument("edges", &counting)?;
                train(&counting, &profile)?;
                if !profile.exists() {
                    bail!("the program that counts wrote no profile");
                }
                fs::remove_file(&counting)?;
                profile
            }
        };
        let mut command = Command::new(self.postlink);
        command.args(["-q", "--threads", "1", "optimize"]);
        command.arg(self.input).arg("-o").arg(&output);
        command.arg("-p").arg(profile).args(&self.optimize);
        succeed(&mut command)?;
        Ok(output)
    }
}
