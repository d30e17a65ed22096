//! An empty profile from a map, or from the program that still has its map.
//!
//! The map is either a file (what `objcopy --dump-section=__llvm_mipmap=…` takes out), or the section inside
//! a linked ELF or Mach-O file, of any architecture. Its contents are the same in both cases: distances
//! between places are fixed when the program is linked.
//!
//! In a relocatable object file they are not: there the section's relocations are applied first, with sections laid
//! out one after the other. Functions have no addresses yet, but counters, sizes and blocks can be looked at.

use std::path::Path;

use object::{
    Architecture, Object, ObjectSection, ObjectSymbol, RelocationFlags, RelocationKind,
    RelocationTarget, SectionIndex, elf,
};
use postlink_profile::Error;
use rustc_hash::FxHashMap;

use crate::map;
use crate::model::Profile;
use crate::reader::bad;

/// Section of the counters.
pub const RAW_SECTION: &str = "__llvm_mipraw";
/// Section of the map.
pub const MAP_SECTION: &str = "__llvm_mipmap";

/// Reads a map, or the map in a program.
pub fn open(path: &Path) -> Result<Profile, Error> {
    let bytes = crate::mip::read_file(path)?;
    read(path, &bytes)
}

/// Reads the bytes of a map or of a program with a map.
pub fn read(path: &Path, bytes: &[u8]) -> Result<Profile, Error> {
    if bytes.starts_with(&crate::header::MAGIC) {
        return map::read(path, bytes).map(|map| map.profile);
    }
    let kind = object::FileKind::parse(bytes);
    if kind.is_err() {
        // Says what the file is not.
        return map::read(path, bytes).map(|map| map.profile);
    }
    let wrong = |error: object::Error| bad(path, 0, error.to_string());
    let file = object::File::parse(bytes).map_err(wrong)?;
    let section = contents(path, &file)?;
    let mut profile = map::read(path, &section)?.profile;
    if let Ok(Some(id)) = file.build_id() {
        profile.identity = identity(id);
    }
    Ok(profile)
}

/// The first eight bytes of a build id as a number, little endian.
pub fn identity(build_id: &[u8]) -> u64 {
    let mut first = [0; 8];
    let len = build_id.len().min(8);
    first[..len].copy_from_slice(&build_id[..len]);
    u64::from_le_bytes(first)
}

/// The size of the field of a relocation that represents the distance from itself to a symbol; none for any other.
fn distance(machine: Architecture, relocation: &object::Relocation) -> Option<usize> {
    let RelocationFlags::Elf { r_type } = relocation.flags() else {
        let relative = relocation.kind() == RelocationKind::Relative;
        return match relocation.size() {
            32 if relative => Some(4),
            64 if relative => Some(8),
            _ => None,
        };
    };
    match (machine, r_type) {
        (Architecture::X86_64, elf::R_X86_64_PC64) => Some(8),
        (Architecture::X86_64, elf::R_X86_64_PC32) => Some(4),
        (Architecture::Aarch64, elf::R_AARCH64_PREL64) => Some(8),
        (Architecture::Aarch64, elf::R_AARCH64_PREL32) => Some(4),
        (Architecture::Arm, elf::R_ARM_REL32) => Some(4),
        _ => None,
    }
}

/// The contents of the map section of a program, or of all of them in an object file, relocated.
fn contents(path: &Path, file: &object::File<'_>) -> Result<Vec<u8>, Error> {
    let wrong = |error: object::Error| bad(path, 0, error.to_string());
    let maps: Vec<_> = file
        .sections()
        .filter(|section| section.name() == Ok(MAP_SECTION))
        .collect();
    if maps.is_empty() {
        return Err(bad(
            path,
            0,
            format!(
                "there is no section {MAP_SECTION}: the program was not instrumented, or the map has been taken out of it"
            ),
        ));
    }
    if file.kind() != object::ObjectKind::Relocatable {
        let [map] = maps.as_slice() else {
            return Err(bad(
                path,
                0,
                format!("{} sections {MAP_SECTION}, expected one", maps.len()),
            ));
        };
        return map.data().map(<[u8]>::to_vec).map_err(wrong);
    }
    // Sections of one name are together, as a linker puts them: header first, since that is how they come.
    let mut addresses: FxHashMap<SectionIndex, u64> = FxHashMap::default();
    let mut at = 0u64;
    for name in [Some(RAW_SECTION), Some(MAP_SECTION), None] {
        at = at.saturating_add(0x1000);
        for section in file.sections() {
            let own = section.name().unwrap_or_default();
            let known = own == RAW_SECTION || own == MAP_SECTION;
            if name.map_or(known, |name| name != own) {
                continue;
            }
            let align = section.align().clamp(1, 1 << 16);
            at = at.checked_next_multiple_of(align).unwrap_or(u64::MAX);
            addresses.insert(section.index(), at);
            at = at.saturating_add(section.size());
        }
    }
    let mut out: Vec<u8> = Vec::new();
    let start = addresses.get(&maps[0].index()).copied().unwrap_or(0);
    for map in &maps {
        let place = addresses.get(&map.index()).copied().unwrap_or(0);
        let from = usize::try_from(place.saturating_sub(start)).unwrap_or(usize::MAX);
        if from < out.len() || from - out.len() > 1 << 16 {
            return Err(bad(path, 0, format!("sections {MAP_SECTION} overlap")));
        }
        out.resize(from, 0);
        let mut data = map.data().map_err(wrong)?.to_vec();
        for (offset, relocation) in map.relocations() {
            let target = match relocation.target() {
                RelocationTarget::Symbol(symbol) => {
                    file.symbol_by_index(symbol).ok().and_then(|symbol| {
                        let section = addresses.get(&symbol.section_index()?)?;
                        Some(section.wrapping_add(symbol.address()))
                    })
                }
                RelocationTarget::Section(section) => addresses.get(&section).copied(),
                _ => None,
            };
            let len = distance(file.architecture(), &relocation);
            let field = usize::try_from(offset)
                .ok()
                .zip(len)
                .and_then(|(at, len)| data.get_mut(at..at.checked_add(len)?));
            let (Some(target), Some(field), Some(len)) = (target, field, len) else {
                return Err(bad(
                    path,
                    offset,
                    format!(
                        "a relocation of {MAP_SECTION} at {offset:#x} is not the distance to a place in this file"
                    ),
                ));
            };
            let mut addend = relocation.addend();
            if relocation.has_implicit_addend() {
                let mut bytes = [0; 8];
                bytes[..len].copy_from_slice(field);
                addend = addend.wrapping_add(match len {
                    4 => i64::from(i64::from_le_bytes(bytes) as i32),
                    _ => i64::from_le_bytes(bytes),
                });
            }
            let here = place.wrapping_add(offset);
            let value = target.wrapping_add_signed(addend).wrapping_sub(here);
            field.copy_from_slice(&value.to_le_bytes()[..len]);
        }
        out.extend(data);
    }
    Ok(out)
}
