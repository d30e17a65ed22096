//! Where the files of split units are (`-gsplit-dwarf`): found as debuggers find them.
//!
//! 1. `APP.dwp` beside the program: a package of all of them.
//! 2. By the name in each skeleton, relative to the folder in which it was compiled.
//! 3. By that name, and by its last part, beside the program.
//!
//! What is not found is no error: such units stay as they are, with a warning. The package of an output is
//! `APP.opt.dwp` beside it.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;
use postlink_elf::elf::Elf;
use postlink_elf::note::Note;
use postlink_rewrite::{SplitContents, SplitData, package_ids, skeletons};

/// Where the package of a program is.
pub fn package_of(program: &Path) -> PathBuf {
    let mut name = OsString::from(program);
    name.push(".dwp");
    PathBuf::from(name)
}

/// Maps a file, if it is there and not empty.
pub fn map(path: &Path) -> Option<SplitData> {
    let file = std::fs::File::open(path).ok()?;
    if !file.metadata().is_ok_and(|m| m.is_file() && m.len() > 0) {
        return None;
    }
    // SAFETY: as for inputs: the map is private and read-only.
    let map = unsafe { Mmap::map(&file) }.ok()?;
    Some(SplitData {
        name: path.display().to_string(),
        bytes: Arc::new(Mapped(map)),
    })
}

/// A file that is mapped.
struct Mapped(Mmap);

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl SplitContents for Mapped {
    fn release(&self) {
        postlink_elf::memory::give_back_read(&self.0);
    }
}

/// The package beside an output, if there is one.
pub fn package(program: &Path) -> Option<SplitData> {
    map(&package_of(program))
}

/// A package beside an output for which none was made.
pub struct Stale {
    /// Where it is.
    pub path: PathBuf,
    /// It was made for the output that is replaced: of no use any more.
    pub is_ours: bool,
}

/// A package that is beside a target, but has no unit of the program that is to be put there. Debuggers would read it
/// all the same, and look for no other file.
pub fn stale(target: &Path, written: &Path) -> Option<Stale> {
    let package = package(target)?;
    let ids = package_ids(&package);
    if ids_of(written, false).iter().any(|id| ids.contains(id)) {
        return None;
    }
    // Each output gives its units ids of their own, so they say of which one a package is.
    let before = ids_of(target, true);
    Some(Stale {
        path: package_of(target),
        is_ours: !ids.is_empty() && ids.iter().all(|id| before.contains(id)),
    })
}

/// Ids of a program's skeletons; `ours`: if postlink wrote it.
fn ids_of(program: &Path, ours: bool) -> BTreeSet<u64> {
    let Some(file) = map(program) else {
        return BTreeSet::new();
    };
    let Ok(elf) = Elf::parse(file.contents()) else {
        return BTreeSet::new();
    };
    if ours && !matches!(Note::read(&elf), Ok(Some(_))) {
        return BTreeSet::new();
    }
    skeletons(&elf).iter().map(|s| s.id).collect()
}

/// The files with the units that a program has only skeletons of.
pub fn find(program: &Path, elf: &Elf<'_>) -> Vec<SplitData> {
    let wanted = skeletons(elf);
    if wanted.is_empty() {
        return Vec::new();
    }
    if let Some(package) = package(program) {
        return vec![package];
    }
    let beside = program.parent().unwrap_or(Path::new(""));
    let mut known = BTreeSet::new();
    let mut out = Vec::new();
    for skeleton in wanted {
        let name = Path::new(OsStr::from_bytes(&skeleton.name));
        let dir = Path::new(OsStr::from_bytes(&skeleton.dir));
        let mut places = vec![dir.join(name), beside.join(name)];
        places.extend(name.file_name().map(|last| beside.join(last)));
        let found = places.into_iter().find(|path| path.is_file());
        if let Some(path) = found.filter(|path| known.insert(path.clone())) {
            out.extend(map(&path));
        }
    }
    out
}
