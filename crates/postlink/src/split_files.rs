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
use postlink_rewrite::{SplitData, skeletons};

/// Where the package of a program is.
pub fn package_of(program: &Path) -> PathBuf {
    let mut name = OsString::from(program);
    name.push(".dwp");
    PathBuf::from(name)
}

/// Maps a file, if it is there and not empty.
fn map(path: &Path) -> Option<SplitData> {
    let file = std::fs::File::open(path).ok()?;
    if !file.metadata().is_ok_and(|m| m.is_file() && m.len() > 0) {
        return None;
    }
    // SAFETY: as for inputs: the map is private and read-only.
    let map = unsafe { Mmap::map(&file) }.ok()?;
    Some(SplitData {
        name: path.display().to_string(),
        bytes: Arc::new(map),
    })
}

/// The package beside an output, if there is one.
pub fn package(program: &Path) -> Option<SplitData> {
    map(&package_of(program))
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
