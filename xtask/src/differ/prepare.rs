//! What goes into the two runs: the output, made from the input, and a copy of the input that takes as much
//! space as the output.
//!
//! An output has more segments than its input. The emulator, and the loader, put what comes next (heap,
//! libraries) after them, so all pointers would differ by a distance, and so would everything that a program
//! calculates from pointers: hashes, orders, remainders. A static program's libc even allocates memory for
//! each segment. Therefore the run of the input uses a copy in which headers that are not needed (of notes)
//! have become empty segments where the output has its new ones. If there are too few of those, the last
//! segment grows in memory. Nothing else changes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use postlink_elf::elf::{Elf, Segment};

const LOAD: u32 = 1;
const NOTE: u32 = 4;
const PROPERTY: u32 = 0x6474_e553;
const WRITABLE: u32 = 2;
const PAGE: u64 = 4096;
/// Bytes of a program header.
const HEADER: usize = 56;

/// A copy of the input with as many segments as the output, and as much memory.
pub fn padded(input: &[u8], output: &[u8]) -> Result<Vec<u8>> {
    let (old, new) = (
        Elf::parse(input).context("the input")?,
        Elf::parse(output).context("the output")?,
    );
    let end = |s: &Segment| s.addr.saturating_add(s.mem_size);
    let loads = |elf: &Elf<'_>| -> Vec<Segment> {
        let all = elf.segments.iter().filter(|s| s.kind == LOAD);
        all.cloned().collect()
    };
    let mut copy = input.to_vec();
    let highest = loads(&old).iter().map(end).max().unwrap_or(0);
    let wanted = loads(&new).iter().map(end).max().unwrap_or(0);
    let last_load = old.segments.iter().rposition(|s| s.kind == LOAD);
    let added: Vec<Segment> = loads(&new)
        .into_iter()
        .filter(|s| s.addr >= highest)
        .collect();
    // Headers of segments ascend, so only those after the last one can become one.
    let spare: Vec<usize> = (0..old.segments.len())
        .filter(|i| Some(*i) > last_load && matches!(old.segments[*i].kind, NOTE | PROPERTY))
        .collect();
    // The loader answers for a program without gaps from its first segment to its last, else for single segments.
    let has_gaps = has_gaps(&loads(&new));
    let mut reached = highest;
    for (i, (segment, index)) in added.iter().zip(&spare).enumerate() {
        // The last one stands for those that there is no header for.
        let until = if i + 1 == spare.len() {
            wanted
        } else {
            end(segment)
        };
        // Whole pages, of which the file has nothing: so no loader has to clear the rest of one.
        let next = reached.next_multiple_of(PAGE);
        let start = if has_gaps {
            next.max(segment.addr & !(PAGE - 1))
        } else {
            next
        };
        if start >= until {
            continue;
        }
        let words = [
            u64::from(LOAD) | u64::from(WRITABLE | 4) << 32,
            0,
            start,
            start,
            0,
            until - start,
            PAGE,
        ];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let at = old.phoff as usize + index * HEADER;
        copy.get_mut(at..at + HEADER)
            .context("the program headers")?
            .copy_from_slice(&bytes);
        reached = until;
    }
    if reached == highest
        && wanted > highest
        && let Some(index) = last_load
        && old.segments[index].flags & WRITABLE != 0
    {
        let size = old.segments[index].mem_size + (wanted - highest);
        let at = old.phoff as usize + index * HEADER + 40;
        copy.get_mut(at..at + 8)
            .context("the program headers")?
            .copy_from_slice(&size.to_le_bytes());
    }
    Ok(copy)
}

/// Whether there are pages between segments.
fn has_gaps(loads: &[Segment]) -> bool {
    loads.windows(2).any(|pair| {
        let end = pair[0].addr.saturating_add(pair[0].mem_size);
        pair[1].addr & !(PAGE - 1) > end.next_multiple_of(PAGE)
    })
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
    /// Further options of `instrument`.
    pub instrument: &'a [String],
    /// A mode of `instrument`: the output is the program that counts.
    pub mode: Option<&'a str>,
    /// A profile that is there.
    pub profile: Option<&'a Path>,
    /// Where a profile goes that is not.
    pub keep_profile: Option<&'a Path>,
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
            command.args(["--mode", mode]).args(self.instrument);
            succeed(&mut command)
        };
        if let Some(mode) = self.mode {
            instrument(mode, &output)?;
            return Ok(output);
        }
        let profile = match self.profile {
            Some(profile) => profile.to_owned(),
            None => {
                let counting = self.folder.join("counting");
                let own = || self.folder.join("train.plraw");
                let profile = self.keep_profile.map_or_else(own, Path::to_owned);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_have_gaps_if_pages_are_between_them() {
        let segment = |addr, mem_size| Segment {
            kind: LOAD,
            flags: 4,
            offset: 0,
            addr,
            file_size: mem_size,
            mem_size,
            align: PAGE,
        };
        assert!(!has_gaps(&[segment(0x1000, 0x1800), segment(0x3010, 0x10)]));
        assert!(has_gaps(&[segment(0x1000, 0x1800), segment(0x4010, 0x10)]));
    }
}
