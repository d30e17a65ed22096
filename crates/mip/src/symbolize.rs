//! Functions to source: which file, which line, what is inlined at the entry.
//!
//! A profile knows where a function is from the raw section. A copy of the program with debug information
//! says where the raw section is, so there is the function's address. A program that was instrumented after
//! linking has no such section in its original; addresses in its map count from zero, and so they are its
//! addresses.
//!
//! Debug information may be in the program itself (ELF, Mach-O, or one architecture of a universal file), or
//! in a `.dSYM` bundle with exactly one file in it.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use addr2line::Context;
use gimli::{EndianReader, RunTimeEndian};
use object::{Object, ObjectSection};
use postlink_profile::Error;

use crate::create::RAW_SECTION;
use crate::model::Function;
use crate::reader::bad;

type Reader = EndianReader<RunTimeEndian, Rc<[u8]>>;

/// A place in the source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceFrame {
    /// Name of the function, demangled.
    pub function: String,
    /// Path of the file.
    pub file: String,
    /// Line in it; 0 if there is none.
    pub line: u32,
}

/// A program's debug information.
pub struct Symbolizer {
    context: Context<Reader>,
    raw_section: u64,
}

impl Symbolizer {
    /// Reads debug information. `arch` chooses from a universal file: a name (`arm64`, `x86_64`, …) or number.
    pub fn open(path: &Path, arch: Option<&str>) -> Result<Symbolizer, Error> {
        let path = &inside_bundle(path)?;
        let bytes = crate::mip::read_file(path)?;
        let wrong = |error: object::Error| bad(path, 0, error.to_string());
        let slice = slice(path, &bytes, arch)?;
        let file = object::File::parse(slice).map_err(wrong)?;
        let endian = if file.is_little_endian() {
            RunTimeEndian::Little
        } else {
            RunTimeEndian::Big
        };
        let load = |id: gimli::SectionId| -> Result<Reader, Error> {
            let data = match file.section_by_name(id.name()) {
                Some(section) => {
                    let compressed = section
                        .compressed_file_range()
                        .is_ok_and(|range| range.format != object::CompressionFormat::None);
                    if compressed {
                        return Err(bad(
                            path,
                            0,
                            format!(
                                "section {} is compressed; `objcopy --decompress-debug-sections` makes a copy that can be read",
                                id.name()
                            ),
                        ));
                    }
                    section.data().map_err(wrong)?
                }
                None => &[],
            };
            Ok(EndianReader::new(Rc::from(data), endian))
        };
        let dwarf = gimli::Dwarf::load(load)?;
        let context = Context::from_dwarf(dwarf)
            .map_err(|error| bad(path, 0, format!("debug information: {error}")))?;
        let raw = file.sections().find(|s| s.name() == Ok(RAW_SECTION));
        Ok(Symbolizer {
            context,
            raw_section: raw.map_or(0, |section| section.address()),
        })
    }

    /// What a function's first instruction belongs to: the innermost inlined function first.
    pub fn frames(&self, function: &Function) -> Vec<SourceFrame> {
        let address = self.raw_section.wrapping_add_signed(function.address);
        let mut found = Vec::new();
        let Ok(mut frames) = self.context.find_frames(address).skip_all_loads() else {
            return found;
        };
        while let Ok(Some(frame)) = frames.next() {
            let name = frame
                .function
                .as_ref()
                .and_then(|name| name.raw_name().ok().map(|raw| demangle(raw.as_ref())));
            let location = frame.location;
            found.push(SourceFrame {
                function: name.unwrap_or_default(),
                file: location
                    .as_ref()
                    .and_then(|location| location.file)
                    .unwrap_or_default()
                    .to_owned(),
                line: location.and_then(|location| location.line).unwrap_or(0),
            });
        }
        found.retain(|frame| !frame.file.is_empty() || !frame.function.is_empty());
        found
    }
}

/// A name as it was written in the source.
pub fn demangle(name: &str) -> String {
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        return format!("{rust:#}");
    }
    // Mach-O puts one more underscore in front.
    let plain = name.strip_prefix('_').filter(|rest| rest.starts_with("_Z"));
    let mangled = plain.unwrap_or(name);
    if mangled.starts_with("_Z")
        && let Ok(symbol) = cpp_demangle::Symbol::new(mangled)
        && let Ok(text) = symbol.demangle()
    {
        return text;
    }
    name.to_owned()
}

/// The file in a `.dSYM` bundle; any other path is itself.
fn inside_bundle(path: &Path) -> Result<PathBuf, Error> {
    if !path.is_dir() {
        return Ok(path.to_owned());
    }
    let inside = path.join("Contents/Resources/DWARF");
    let entries = std::fs::read_dir(&inside).map_err(|source| Error::Io {
        path: inside.clone(),
        doing: "read the bundle's directory".to_owned(),
        source,
    })?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    match (files.pop(), files.len()) {
        (Some(only), 0) => Ok(only),
        (_, more) => Err(bad(
            &inside,
            0,
            format!(
                "the bundle holds {} files, expected exactly one",
                more + usize::from(more > 0)
            ),
        )),
    }
}

/// The part of a universal file for one architecture; any other file is itself.
fn slice<'a>(path: &Path, bytes: &'a [u8], arch: Option<&str>) -> Result<&'a [u8], Error> {
    use object::read::macho::{FatArch, MachOFatFile32, MachOFatFile64};
    let wrong = |error: object::Error| bad(path, 0, error.to_string());
    let wanted = arch.unwrap_or("arm64");
    let mut have = Vec::new();
    let mut pick = |arch: (u32, u32), data: object::Result<&'a [u8]>| {
        let name = arch_name(arch.0, arch.1);
        if name == wanted || arch.0.to_string() == wanted {
            return Some(data);
        }
        have.push(name);
        None
    };
    let found = match object::FileKind::parse(bytes) {
        Ok(object::FileKind::MachOFat32) => MachOFatFile32::parse(bytes)
            .map_err(wrong)?
            .arches()
            .iter()
            .find_map(|a| pick((a.cputype().0, a.cpusubtype().0), a.data(bytes))),
        Ok(object::FileKind::MachOFat64) => MachOFatFile64::parse(bytes)
            .map_err(wrong)?
            .arches()
            .iter()
            .find_map(|a| pick((a.cputype().0, a.cpusubtype().0), a.data(bytes))),
        _ => return Ok(bytes),
    };
    match found {
        Some(data) => data.map_err(wrong),
        None => Err(bad(
            path,
            0,
            format!(
                "the universal file has no {wanted}; it has {}",
                have.join(", ")
            ),
        )),
    }
}

fn arch_name(cpu: u32, sub: u32) -> String {
    match (cpu, sub & 0x00FF_FFFF) {
        (0x0100_000C, 2) => "arm64e".to_owned(),
        (0x0100_000C, _) => "arm64".to_owned(),
        (0x0200_000C, _) => "arm64_32".to_owned(),
        (0x0100_0007, 8) => "x86_64h".to_owned(),
        (0x0100_0007, _) => "x86_64".to_owned(),
        (7, _) => "i386".to_owned(),
        (12, 9) => "armv7".to_owned(),
        (12, 11) => "armv7s".to_owned(),
        (12, 12) => "armv7k".to_owned(),
        (12, _) => "arm".to_owned(),
        _ => cpu.to_string(),
    }
}
