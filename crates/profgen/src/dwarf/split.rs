//! Debug information outside of the program: split DWARF.
//!
//! With `-gsplit-dwarf` a unit of the program is a skeleton: it has the line table, ranges, an id, and the
//! name of the file with everything else. That file is an object (`.o`), a file of its own (`.dwo`), or a
//! package of many (`.dwp`). In each the sections are called `.debug_info.dwo` and so on; addresses stay in
//! the program, and the files refer to them by number.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use gimli::{Dwarf, DwarfPackage, DwoId, EndianSlice, LittleEndian, SectionId, Unit};
use postlink_elf::compressed;
use postlink_elf::elf::Elf;
use postlink_profile::Source;

use super::{Part, Slice, Units, bad, section};
use crate::FormatError;

/// The files with the debug information of a program.
#[derive(Debug, Default)]
pub struct Files {
    package: Option<Source>,
    /// By id.
    units: Vec<(u64, Source)>,
    /// Files that are needed and not there.
    pub missing: Vec<PathBuf>,
    /// Sections of the program itself that are compressed, unpacked.
    unpacked: Unpacked,
}

/// Sections that are compressed, by name.
type Unpacked = Vec<(&'static str, Vec<u8>)>;

/// Unpacks what is compressed.
fn unpack(elf: &Elf<'_>) -> Result<Unpacked, FormatError> {
    let mut out = Unpacked::new();
    if !elf.sections.iter().any(compressed::is_compressed) {
        return Ok(out);
    }
    for name in compressed::DEBUG_SECTIONS {
        if let Some(Cow::Owned(bytes)) = compressed::by_name(elf, name)? {
            out.push((name, bytes));
        }
    }
    Ok(out)
}

impl Files {
    /// None at all.
    pub const NONE: Files = Files {
        package: None,
        units: Vec::new(),
        missing: Vec::new(),
        unpacked: Vec::new(),
    };

    /// What a program without further files needs: its compressed sections, unpacked.
    ///
    /// # Errors
    /// Sections that cannot be unpacked.
    pub fn of_program(elf: &Elf<'_>) -> Result<Files, FormatError> {
        Ok(Files {
            unpacked: unpack(elf)?,
            ..Files::default()
        })
    }

    /// Debug information of the program.
    pub(super) fn program<'d>(&'d self, elf: &Elf<'d>) -> Result<Dwarf<Slice<'d>>, FormatError> {
        let contents = |id: SectionId| {
            let unpacked = self.unpacked.iter().find(|(name, _)| *name == id.name());
            match unpacked {
                Some((_, bytes)) => EndianSlice::new(bytes, LittleEndian),
                None => section(elf, id.name()),
            }
        };
        Dwarf::load(|id| Ok(contents(id))).map_err(|error: gimli::Error| bad(&error))
    }

    /// Opens what a program refers to. `package` is the package's path; if it is not given, the program's
    /// path with `.dwp` appended is tried.
    ///
    /// # Errors
    /// Debug information that cannot be read, a package that was named and is not there.
    pub fn open(
        elf: &Elf<'_>,
        program: &Path,
        package: Option<&Path>,
    ) -> Result<Files, FormatError> {
        let mut files = Files::of_program(elf)?;
        let wanted = wanted(&files.program(elf)?);
        if wanted.is_empty() {
            return Ok(files);
        }
        let guess = PathBuf::from(format!("{}.dwp", program.display()));
        if package.is_some() || guess.exists() {
            let path = package.unwrap_or(&guess);
            let source = Source::open(path).map_err(|error| FormatError::new(error.to_string()))?;
            files.package = Some(source);
        }
        for (id, path) in wanted {
            match Source::open(&path) {
                Ok(source) => files.units.push((id, source)),
                Err(_) if files.package.is_some() => {}
                Err(_) => files.missing.push(path),
            }
        }
        Ok(files)
    }
}

/// Id and file of every unit that is a skeleton.
fn wanted(dwarf: &Dwarf<Slice<'_>>) -> Vec<(u64, PathBuf)> {
    let mut wanted = Vec::new();
    let mut headers = dwarf.units();
    while let Ok(Some(header)) = headers.next() {
        // Units that cannot be read are counted when they are read for good.
        let Ok(unit) = dwarf.unit(header) else {
            continue;
        };
        let (Some(id), Ok(Some(name))) = (unit.dwo_id, unit.dwo_name()) else {
            continue;
        };
        let Ok(name) = dwarf.attr_string(&unit, name) else {
            continue;
        };
        let text = |bytes: &[u8]| PathBuf::from(String::from_utf8_lossy(bytes).into_owned());
        let dir = unit.comp_dir.map(|dir| text(dir.slice()));
        wanted.push((id.0, dir.unwrap_or_default().join(text(name.slice()))));
    }
    wanted
}

/// The files, parsed.
pub(super) struct Parsed<'d> {
    package: Option<DwarfPackage<Slice<'d>>>,
    units: Vec<(u64, Elf<'d>)>,
}

impl<'d> Parsed<'d> {
    pub(super) fn new(files: &'d Files) -> Result<Parsed<'d>, FormatError> {
        let parse = |source: &'d Source| {
            Elf::parse_with_objects(source).map_err(|error| {
                FormatError::new(format!("file with split debug information: {error}"))
            })
        };
        let package = match &files.package {
            Some(source) => {
                let elf = parse(source)?;
                let load = |id: SectionId| {
                    Ok(id
                        .dwo_name()
                        .map_or(EndianSlice::new(&[], LittleEndian), |name| {
                            section(&elf, name)
                        }))
                };
                let empty = EndianSlice::new(&[], LittleEndian);
                let package = DwarfPackage::load(load, empty);
                Some(package.map_err(|error: gimli::Error| bad(&error))?)
            }
            None => None,
        };
        let mut units = Vec::new();
        for (id, source) in &files.units {
            units.push((*id, parse(source)?));
        }
        units.sort_by_key(|unit| unit.0);
        Ok(Parsed { package, units })
    }

    /// Collects the scopes of the unit that a skeleton stands for. Nothing if there is none.
    pub(super) fn scopes(
        &self,
        parent: &Dwarf<Slice<'d>>,
        skeleton: &Unit<Slice<'d>>,
        part: &mut Part<'d>,
    ) -> Result<(), gimli::Error> {
        let Some(id) = skeleton.dwo_id else {
            return Ok(());
        };
        let Some(dwarf) = self.dwarf(id, parent)? else {
            return Ok(());
        };
        let mut headers = dwarf.units();
        while let Some(header) = headers.next()? {
            let mut unit = dwarf.unit(header)?;
            if unit.dwo_id != Some(id) {
                continue;
            }
            unit.copy_relocated_attributes(skeleton);
            let all = Units {
                dwarf: &dwarf,
                units: std::slice::from_ref(&unit),
            };
            all.scopes(&unit, part)?;
        }
        Ok(())
    }

    fn dwarf(
        &self,
        id: DwoId,
        parent: &Dwarf<Slice<'d>>,
    ) -> Result<Option<Dwarf<Slice<'d>>>, gimli::Error> {
        if let Some(package) = &self.package
            && let Some(dwarf) = package.find_cu(id, parent)?
        {
            return Ok(Some(dwarf));
        }
        let Ok(at) = self.units.binary_search_by_key(&id.0, |unit| unit.0) else {
            return Ok(None);
        };
        let Some((_, elf)) = self.units.get(at) else {
            return Ok(None);
        };
        let mut dwarf = Dwarf::load(|id: SectionId| {
            Ok::<_, gimli::Error>(
                id.dwo_name()
                    .map_or(EndianSlice::new(&[], LittleEndian), |name| {
                        section(elf, name)
                    }),
            )
        })?;
        dwarf.make_dwo(parent);
        Ok(Some(dwarf))
    }
}
