//! Files with debug information that distributions ship apart from programs: where they are, and what they name.
//!
//! Where debuggers look: below `/usr/lib/debug` by build-id; the name in `.gnu_debuglink` beside the program, in
//! `.debug` there, and below `/usr/lib/debug`; and what a debuginfod client has fetched. Nothing is downloaded. A file
//! counts only if it is of this program ([`check_debug_file`]; without build-id by the checksum in the link). Without
//! such a file the names in `.gnu_debugdata` are taken. All of this is for reading: no output rests on it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use postlink_elf::elf::Elf;
use postlink_elf::names::{Names, check_debug_file, unpack_debugdata};

use crate::input::Input;
use crate::options::Naming;
use crate::ui::{Ui, counted};

/// Where distributions put files with debug information.
pub const FOLDER: &str = "/usr/lib/debug";

/// The path of a file with debug information, by the program's build-id.
pub fn by_build_id(folder: &Path, id: &[u8]) -> Option<PathBuf> {
    let hex = postlink_elf::hex(id);
    let (first, rest) = hex.split_at_checked(2)?;
    Some(folder.join(format!(".build-id/{first}/{rest}.debug")))
}

/// What `.gnu_debuglink` says: a name, and a checksum of the whole file at the next multiple of four.
fn link<'d>(elf: &Elf<'d>) -> Option<(&'d [u8], u32)> {
    let (_, section) = elf.section(".gnu_debuglink")?;
    let bytes = elf.section_data(section);
    let end = bytes.iter().position(|b| *b == 0).filter(|end| *end > 0)?;
    let at = (end + 1).next_multiple_of(4);
    let checksum = bytes.get(at..at + 4)?.try_into().ok()?;
    Some((&bytes[..end], u32::from_le_bytes(checksum)))
}

/// What a debuginfod client would have fetched.
fn fetched(id: &[u8]) -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let folder = match (
        set("DEBUGINFOD_CACHE_PATH"),
        set("XDG_CACHE_HOME"),
        set("HOME"),
    ) {
        (Some(path), ..) => PathBuf::from(path),
        (_, Some(cache), _) => Path::new(&cache).join("debuginfod_client"),
        (_, _, Some(home)) => Path::new(&home).join(".cache/debuginfod_client"),
        _ => return None,
    };
    let hex = postlink_elf::hex(id);
    Some(folder.join(hex).join("debuginfo"))
}

/// Where a program's debug information may be, the best place first.
pub fn places(program: &Path, elf: &Elf<'_>, debug: &Path) -> Result<Vec<PathBuf>> {
    let id = elf.build_id.filter(|id| !id.is_empty());
    let mut places: Vec<PathBuf> = id
        .and_then(|id| by_build_id(debug, id))
        .into_iter()
        .collect();
    if let Some((name, _)) = link(elf) {
        let name = String::from_utf8_lossy(name).into_owned();
        let folder = std::path::absolute(program)?;
        let folder = folder.parent().unwrap_or(Path::new("/")).to_owned();
        let below = folder.strip_prefix("/").unwrap_or(&folder);
        places.extend([
            folder.join(&name),
            folder.join(".debug").join(&name),
            debug.join(below).join(&name),
        ]);
    }
    places.extend(id.and_then(fetched));
    Ok(places)
}

/// Opens a debug file if it is of this program.
fn open(path: &Path, program: &Elf<'_>) -> Result<Input> {
    let file = Input::open(path)?;
    let debug = file.debug_elf()?;
    check_debug_file(&debug, program).with_context(|| path.display().to_string())?;
    if let (None, Some((_, wanted))) = (program.build_id, link(program)) {
        let found = crc32fast::hash(file.bytes());
        if found != wanted {
            bail!(
                "{}: is of another program: its checksum is {found:#010x}, .gnu_debuglink of the program wants {wanted:#010x}",
                path.display()
            );
        }
    }
    Ok(file)
}

/// The debug file of a program: the one that was named, or the first that is where debuggers look and is of this
/// program.
fn find(input: &Input, elf: &Elf<'_>, naming: &Naming, ui: &Ui) -> Result<Option<Input>> {
    if let Some(path) = &naming.debug_file {
        return open(path, elf).map(Some);
    }
    for path in places(&input.path, elf, &naming.debug_dir)? {
        if !path.is_file() || input.is(&path) {
            continue;
        }
        match open(&path, elf) {
            Ok(file) => return Ok(Some(file)),
            Err(error) => ui.warn(format_args!("debug information is not used: {error:#}")),
        }
    }
    Ok(None)
}

/// The names that a program's own `.gnu_debugdata` holds.
fn names_inside(elf: &Elf<'_>) -> Result<Option<Names>> {
    let Some(bytes) = unpack_debugdata(elf)? else {
        return Ok(None);
    };
    let inner = Elf::parse_debug_file(&bytes).context("the file in .gnu_debugdata")?;
    Ok(Some(Names::of(&inner)))
}

/// Names and lines for a program that was stripped of them.
pub fn name(input: Input, naming: &Naming, ui: &Ui) -> Result<Input> {
    let elf = input.elf()?;
    let has = |name: &str| elf.section(name).is_some();
    let is_complete = has(".debug_line") || has(".zdebug_line");
    if is_complete && naming.debug_file.is_none() {
        drop(elf);
        return Ok(input);
    }
    let debug = find(&input, &elf, naming, ui)?;
    let mut names = match &debug {
        Some(file) => Names::of(&file.debug_elf()?),
        None => Names::default(),
    };
    let mut source = debug.as_ref().map(|file| file.path.display().to_string());
    if names.is_empty() {
        match names_inside(&elf) {
            Ok(Some(inside)) => {
                names = inside;
                source = Some(".gnu_debugdata".to_owned());
            }
            Ok(None) => {}
            Err(error) => ui.warn(format_args!("{}: {error:#}", input.path.display())),
        }
    }
    drop(elf);
    if let (Some(source), false) = (source, names.is_empty()) {
        ui.say(format_args!(
            "{} of {}",
            counted(names.len(), "name of a function", "names of functions"),
            source
        ));
    }
    Ok(input.with_debug(Arc::new(names), debug))
}
