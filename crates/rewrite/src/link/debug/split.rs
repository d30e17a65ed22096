//! Split DWARF: files of units that the program has only skeletons of, and the package that the output gets.
//!
//! ```text
//! .dwo files or a .dwp ─► sections, unpacked ─► SplitFile ─► updated with the program ─► one .dwp
//! ```
//!
//! Where the files are is found out by whoever calls ([`skeletons`] says under which names), so that the same
//! input and the same files give the same output.

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;

use postlink_dwarf::split::{self, Skeleton};
use postlink_dwarf::{SplitFile, Update};
use postlink_elf::compressed;
use postlink_elf::elf::Elf;
use postlink_elf::write::WriteError;

use super::sections::NotUpdated;

/// A file of split units, in memory or mapped.
#[derive(Clone)]
pub struct SplitData {
    /// Its name, for messages.
    pub name: String,
    /// Its contents.
    pub bytes: Arc<dyn Contents>,
}

/// Contents of a file.
pub trait Contents: AsRef<[u8]> + Send + Sync {
    /// Gives back the memory of what was read so far, if it is a map: what is needed again is read again.
    fn release(&self) {}
}

impl fmt::Debug for SplitData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let len = (*self.bytes).as_ref().len();
        write!(f, "{} ({len} bytes)", self.name)
    }
}

impl SplitData {
    /// Its contents.
    pub fn contents(&self) -> &[u8] {
        (*self.bytes).as_ref()
    }

    /// Gives back the memory of what was read so far of it.
    pub fn release(&self) {
        self.bytes.release();
    }
}

/// Units of a program whose entries are in files of their own. None if its debug information cannot be read.
pub fn skeletons(elf: &Elf<'_>) -> Vec<Skeleton> {
    let Ok(by_name) = super::sections::unpack(elf) else {
        return Vec::new();
    };
    split::skeletons(|name| by_name.get(name).map_or(&[][..], |(_, of)| &of.bytes[..]))
}

/// Ids of the units in a package; none if it cannot be read.
pub fn package_ids(package: &SplitData) -> Vec<u64> {
    let (sections, _) = load(std::slice::from_ref(package));
    sections.first().map_or(Vec::new(), |s| split::ids(s))
}

/// Sections by name, unpacked.
pub(super) type Sections<'d> = Vec<(String, Cow<'d, [u8]>)>;

/// Sections of files of split units. Files that cannot be read are left out; what is wrong with them is said.
pub(super) fn load(files: &[SplitData]) -> (Vec<Sections<'_>>, Vec<String>) {
    let (mut out, mut wrong) = (Vec::new(), Vec::new());
    for file in files {
        let read = || -> Result<Sections<'_>, postlink_elf::FormatError> {
            let elf = Elf::parse_debug_file(file.contents())?;
            let wanted = elf
                .sections
                .iter()
                .filter(|s| s.name.starts_with(".debug_"));
            let unpacked = wanted.map(|section| {
                let contents = compressed::unpack(section, elf.section_data(section))?;
                Ok((section.name.to_owned(), contents.bytes))
            });
            unpacked.collect()
        };
        match read() {
            Ok(sections) => out.push(sections),
            Err(what) => wrong.push(format!("{}: {what}", file.name)),
        }
    }
    (out, wrong)
}

/// Takes files apart into those of units.
pub(super) fn files<'d>(loaded: &'d [Sections<'d>], wrong: &mut Vec<String>) -> Vec<SplitFile<'d>> {
    let mut out = Vec::new();
    for sections in loaded {
        match split::read(sections) {
            Ok(files) => out.extend(files),
            Err(what) => wrong.push(what.to_string()),
        }
    }
    out
}

/// Writes the output's package to a file. Returns its length; 0: nothing was updated in any file, and nothing is
/// written.
pub(super) fn package(
    machine: u16,
    (program, files): (&postlink_dwarf::Sections<'_>, &[SplitFile<'_>]),
    update: &Update,
    path: &Path,
) -> Result<u64, NotUpdated> {
    if update.files.iter().all(Option::is_none) {
        return Ok(0);
    }
    let package = split::package(program, files, &update.files).map_err(NotUpdated::because)?;
    let sections: Vec<(&str, u64)> = package.sections().collect();
    let write = || -> io::Result<u64> {
        // Contributions are in buffers already, strings and lists of a few bytes are not.
        const BUFFER: usize = 1 << 16;
        let mut out = BufWriter::with_capacity(BUFFER, File::create(path)?);
        let contents = |number: usize, out: &mut dyn Write| package.write(number, out);
        let len = postlink_elf::package::write(machine, &sections, contents, &mut out)?;
        out.flush()?;
        Ok(len)
    };
    let written = write().map_err(|source| WriteError::Io {
        path: path.display().to_string(),
        source,
    });
    Ok(written?)
}
