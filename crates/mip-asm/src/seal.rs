//! Ties a linked program to its map.
//!
//! A raw profile has nothing but counters; which function they belong to, only the map knows. With the map of
//! another build, all names would be wrong without anybody noticing. So map and raw file carry the same
//! *module hash*. The compiler cannot know it: a file's header has a hash of the link unit's name only, as
//! the proposal had it. Once the program is linked, the hash of the map's contents (names, sizes, blocks,
//! distances, all as linked) is put in both places:
//!
//! * in the header in `__llvm_mipmap`, with the map's length, so that one that was cut short or damaged later
//!   is refused;
//! * in the header that the run-time copies into raw files. It has no symbol in a stripped program, but it is
//!   a pattern of 32 bytes that is known entirely, and must be there exactly once.
//!
//! A program that was linked by something else works just as well, with the weaker hash.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use object::elf;
use object::read::elf::{FileHeader, SectionHeader};
use object::{Endianness, FileKind};
use postlink_mip::{Header, Kind, Types};

/// What sealing found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sealed {
    /// Nothing to seal: no ELF file, or none with a map.
    NoMap,
    /// Both places have this hash.
    Done(u32),
    /// The hash of the name stays, and why.
    NotDone(String),
}

/// Something wrong with the linked program.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read or written.
    #[error("{path}: {cause}")]
    Io {
        /// The file.
        path: String,
        /// What the system says.
        cause: std::io::Error,
    },
    /// The linker put something in front of the headers.
    #[error(
        "{path}: the counters' header is at {header:#x}, and their section begins at {section:#x}: the linker must keep the order of files in __llvm_mipraw"
    )]
    Order {
        /// The file.
        path: String,
        /// Where the header is.
        header: u64,
        /// Where it must be.
        section: u64,
    },
}

struct Found {
    /// Address and size of the raw section.
    raw: Option<(u64, u64)>,
    /// Position and size of the map in the file.
    map: Option<(u64, u64)>,
    /// Where initialised data are in the file.
    data: Vec<(u64, u64)>,
}

fn sections<E: FileHeader<Endian = Endianness>>(bytes: &[u8]) -> object::Result<Found> {
    let header = E::parse(bytes)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, bytes)?;
    let mut found = Found {
        raw: None,
        map: None,
        data: vec![],
    };
    for section in sections.iter() {
        let name = sections.section_name(endian, section)?;
        let address: u64 = section.sh_addr(endian).into();
        let size: u64 = section.sh_size(endian).into();
        let offset: u64 = section.sh_offset(endian).into();
        let is_loaded = section.sh_flags(endian).contains(elf::SHF_ALLOC);
        if name == b"__llvm_mipraw" {
            found.raw = Some((address, size));
        } else if name == b"__llvm_mipmap" {
            found.map = Some((offset, size));
        } else if is_loaded && section.sh_type(endian) == elf::SHT_PROGBITS {
            found.data.push((offset, size));
        }
    }
    Ok(found)
}

fn part(bytes: &[u8], (offset, size): (u64, u64)) -> Option<&[u8]> {
    let start = usize::try_from(offset).ok()?;
    let end = usize::try_from(offset.checked_add(size)?).ok()?;
    bytes.get(start..end)
}

/// Seals a linked program in place. `page` is what counters are aligned to.
pub fn seal(path: &Path, page: u64) -> Result<Sealed, Error> {
    let io = |cause| Error::Io {
        path: path.display().to_string(),
        cause,
    };
    if !fs::metadata(path).is_ok_and(|data| data.is_file()) {
        return Ok(Sealed::NoMap);
    }
    let bytes = fs::read(path).map_err(io)?;
    let found = match FileKind::parse(&*bytes) {
        Ok(FileKind::Elf64) => sections::<elf::FileHeader64<Endianness>>(&bytes),
        Ok(FileKind::Elf32) => sections::<elf::FileHeader32<Endianness>>(&bytes),
        _ => return Ok(Sealed::NoMap),
    };
    let Ok(Found {
        raw: Some((raw_address, raw_size)),
        map: Some(map_at),
        data,
    }) = found
    else {
        return Ok(Sealed::NoMap);
    };
    let not_done = |why: &str| Ok(Sealed::NotDone(format!("{}: {why}", path.display())));
    let Some(map) = part(&bytes, map_at) else {
        return not_done("the map is outside of the file");
    };
    let header = match Header::read_kind(path, map, map.len() as u64, Kind::Map) {
        Ok(header) => header,
        Err(error) => return Ok(Sealed::NotDone(error.to_string())),
    };
    if header.word != raw_address {
        return Err(Error::Order {
            path: path.display().to_string(),
            header: header.word,
            section: raw_address,
        });
    }
    let old = Header::new(
        Kind::Raw,
        header.width,
        header.types.without(Types::INFERRED_BLOCKS),
        header.module_hash,
    )
    .to_bytes();
    let mut places = data.iter().filter_map(|&place| {
        let section = part(&bytes, place)?;
        let first = find(section, &old)?;
        // Twice in one section is as bad as in two.
        let again = find(&section[first + 1..], &old).is_some();
        Some((place.0 + first as u64, again))
    });
    let (place, again) = match (places.next(), places.next()) {
        (Some(place), None) => place,
        (None, _) => return not_done("the header for raw files is nowhere in it"),
        (Some((place, _)), Some(_)) => (place, true),
    };
    if again {
        return not_done("the header for raw files is in it more than once");
    }
    let mut contents = map.to_vec();
    let length = u32::try_from(map.len()).unwrap_or(0).to_le_bytes();
    contents[24..28].copy_from_slice(&length);
    let hash = postlink_mip::map::contents_hash(&contents);
    let file = OpenOptions::new().write(true).open(path).map_err(io)?;
    file.write_all_at(&hash.to_le_bytes(), place + 12)
        .map_err(io)?;
    file.write_all_at(&hash.to_le_bytes(), map_at.0 + 12)
        .map_err(io)?;
    file.write_all_at(&length, map_at.0 + 24).map_err(io)?;
    // The last piece is one byte at the start of a page.
    if raw_address.wrapping_add(raw_size).wrapping_sub(1) % page != 0 {
        return not_done(
            "counters are after the end of what is recorded: the run-time must be the last file",
        );
    }
    Ok(Sealed::Done(hash))
}

fn find(bytes: &[u8], pattern: &[u8]) -> Option<usize> {
    let first = *pattern.first()?;
    let mut from = 0;
    while let Some(at) = bytes[from..].iter().position(|&byte| byte == first) {
        if bytes[from + at..].starts_with(pattern) {
            return Some(from + at);
        }
        from += at + 1;
    }
    None
}
