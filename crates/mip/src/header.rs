//! The header that all three files begin with. Little endian on every target.
//!
//! | offset | size | field | |
//! |---|---|---|---|
//! | 0 | 4 | magic | `FB 4D 49 50` |
//! | 4 | 2 | version | 8, or 9 |
//! | 6 | 2 | kind | [`Kind`], and for maps and raws [`Width`] |
//! | 8 | 4 | types | [`Types`] |
//! | 12 | 4 | module hash | ties the files of one program together |
//! | 16 | 8 | map: raw section offset | address of the raw section less that of the map section; 4 bytes and 4 zeros on 32-bit targets |
//! | | | raw, `.mip`: identity | zero in version 8 |
//! | 24 | 4 | slots | zero; in a raw of version 9 the number of sample slots ([`crate::raw`]) |
//! | | | map: length | zero, or the bytes of the whole map, and then the module hash is that of its contents ([`crate::map`]) |
//! | 28 | 4 | offset to data | 0x20 |
//!
//! The header of older files has 24 bytes: the same up to 16, then four reserved bytes and the offset to
//! data, 0x18. Their kinds are numbers, not bits. Which of the two it is, the offset to data tells.
//!
//! # Version 9
//!
//! * `identity` is the first eight bytes of the program's build id (zero: not known). A raw and a profile
//!   that both know theirs must agree. In raws of programs instrumented at compile time the second half is
//!   all ones, and the first tells the processes apart that made them; readers take that for zero.
//! * Types may have [`Types::ZERO_FILLED`], [`Types::INFERRED_BLOCKS`] and [`Types::COUNTS_DOWN`].

#![warn(clippy::indexing_slicing)]

use std::fmt;
use std::path::Path;

use postlink_profile::{Error, Place};

use crate::reader::bad;

/// First bytes of every file.
pub const MAGIC: [u8; 4] = [0xFB, b'M', b'I', b'P'];
/// The version that we write when it suffices.
pub const VERSION: u16 = 8;
/// The version that has everything.
pub const VERSION_MAX: u16 = 9;
/// Size of the header that we write.
pub const SIZE: usize = 32;
/// Size of the older header.
pub const OLD_SIZE: usize = 24;

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Counters of a run.
    Raw,
    /// Sampled return addresses of a run.
    Samples,
    /// What counters mean.
    Map,
    /// An indexed profile.
    Profile,
}

impl Kind {
    fn bits(self) -> u16 {
        match self {
            Kind::Raw => 1,
            Kind::Samples => 2,
            Kind::Map => 4,
            Kind::Profile => 8,
        }
    }

    /// What the kind is called by its file name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Raw => ".mipraw",
            Kind::Samples => ".mipret",
            Kind::Map => ".mipmap",
            Kind::Profile => ".mip",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How wide the target's addresses are, which decides about fields of maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// 32 bits.
    Narrow,
    /// 64 bits.
    Wide,
}

impl Width {
    fn bits(self) -> u16 {
        match self {
            Width::Wide => 0x10,
            Width::Narrow => 0x20,
        }
    }

    /// Bytes of an address; records of a map are aligned to that.
    pub fn bytes(self) -> usize {
        match self {
            Width::Wide => 8,
            Width::Narrow => 4,
        }
    }
}

/// What is counted, and how: a set of bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Types(pub u32);

impl Types {
    /// A byte for each function.
    pub const FUNCTION_COVERAGE: Types = Types(0x01);
    /// A byte for each block but the entry.
    pub const BLOCK_COVERAGE: Types = Types(0x02);
    /// When a function was called first.
    pub const FUNCTION_TIMESTAMP: Types = Types(0x04);
    /// How often a function was called.
    pub const FUNCTION_CALL_COUNT: Types = Types(0x08);
    /// Where functions were called from.
    pub const RETURN_ADDRESS: Types = Types(0x10);
    /// Version 9: counters are zero before anything has run, and a block that ran has any other byte.
    /// Otherwise they are all ones, and it has zero.
    pub const ZERO_FILLED: Types = Types(0x20);
    /// Version 9: maps and profiles say which blocks follow from others.
    pub const INFERRED_BLOCKS: Types = Types(0x40);
    /// Version 9: call counts go down from zero, modulo 2³²; an instrumented entry then knows the first call
    /// by the borrow.
    pub const COUNTS_DOWN: Types = Types(0x80);
    /// Version 9: maps and profiles give return addresses in the program that ran those of the input.
    pub const MOVED_CALLERS: Types = Types(0x100);
    /// Calls and first calls.
    pub const CALL_GRAPH: Types = Types(0x0C);

    const KNOWN: u32 = 0x1F;
    const KNOWN_9: u32 = 0x1FF;

    /// Whether all bits of another set are in it.
    pub fn has(self, other: Types) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both sets together.
    pub fn with(self, other: Types) -> Types {
        Types(self.0 | other.0)
    }

    /// Without the bits of the other set.
    pub fn without(self, other: Types) -> Types {
        Types(self.0 & !other.0)
    }

    /// Bits that version 8 does not have.
    pub(crate) fn has_extensions(self) -> bool {
        self.0 & (Types::KNOWN_9 & !Types::KNOWN) != 0
    }

    /// Bytes of a function's entry: call count and time, or the coverage byte.
    pub fn entry_bytes(self) -> u64 {
        if self.has(Types::CALL_GRAPH) { 8 } else { 1 }
    }

    /// Names of the bits, as YAML has them.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        NAMES
            .iter()
            .filter(move |(bit, _)| self.has(*bit))
            .map(|(_, name)| *name)
    }

    /// The set of one name.
    pub fn named(name: &str) -> Option<Types> {
        NAMES
            .iter()
            .find(|(_, known)| *known == name)
            .map(|(bit, _)| *bit)
    }
}

const NAMES: [(Types, &str); 9] = [
    (Types::FUNCTION_COVERAGE, "Function Coverage"),
    (Types::BLOCK_COVERAGE, "Block Coverage"),
    (Types::FUNCTION_TIMESTAMP, "Function Timestamp"),
    (Types::FUNCTION_CALL_COUNT, "Function Call Count"),
    (Types::RETURN_ADDRESS, "Return Address"),
    (Types::ZERO_FILLED, "Zero Filled"),
    (Types::INFERRED_BLOCKS, "Inferred Blocks"),
    (Types::COUNTS_DOWN, "Counts Down"),
    (Types::MOVED_CALLERS, "Moved Callers"),
];

/// A header, whatever its layout was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// 7 to 9, or what an old file says.
    pub version: u16,
    /// What the file is.
    pub kind: Kind,
    /// Maps and raws of newer files have one.
    pub width: Option<Width>,
    /// What is counted.
    pub types: Types,
    /// Hash of the link unit.
    pub module_hash: u32,
    /// Raw section offset of a map, identity of other files.
    pub word: u64,
    /// Number of sample slots in a raw; length of a map that was sealed.
    pub slots: u32,
    /// Where the data begins: 32, or 24 in older files.
    pub size: usize,
}

impl Header {
    /// A new header; its version is 9 if the types ask for it.
    pub fn new(kind: Kind, width: Option<Width>, types: Types, module_hash: u32) -> Header {
        Header {
            version: if types.has_extensions() {
                VERSION_MAX
            } else {
                VERSION
            },
            kind,
            width,
            types,
            module_hash,
            word: 0,
            slots: 0,
            size: SIZE,
        }
    }

    /// Whether the file has the older layout, in records too.
    pub fn is_old(&self) -> bool {
        self.size == OLD_SIZE
    }

    /// The 32 bytes. (Headers of the older layout are only read.)
    pub fn to_bytes(&self) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        let kind = self.kind.bits() | self.width.map_or(0, Width::bits);
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&self.version.to_le_bytes());
        bytes[6..8].copy_from_slice(&kind.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.types.0.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.module_hash.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.word.to_le_bytes());
        if self.kind == Kind::Map && self.width == Some(Width::Narrow) {
            bytes[20..24].fill(0);
        }
        bytes[24..28].copy_from_slice(&self.slots.to_le_bytes());
        bytes[28..].copy_from_slice(&(SIZE as u32).to_le_bytes());
        bytes
    }

    /// Reads and checks a header; `bytes` may be the file's first [`SIZE`] bytes only, `len` is the length of
    /// the whole file.
    pub fn read(path: &Path, bytes: &[u8], len: u64) -> Result<Header, Error> {
        if bytes.starts_with(b"PIM\xFB") {
            return Err(bad(
                path,
                0,
                "the magic number is 50 49 4D FB: this was written big endian, and the format is little endian on all targets",
            ));
        }
        if let Some(&found) = bytes.first_chunk::<4>()
            && found != MAGIC
        {
            return Err(bad(
                path,
                0,
                format!(
                    "the magic number is {:#010X}, expected {:#010X}{}",
                    u32::from_le_bytes(found),
                    u32::from_le_bytes(MAGIC),
                    match &found {
                        b"\x7FELF" => ": this is an ELF file",
                        [0, 0, 0, 0] => ": nothing recorded yet",
                        _ => ": not a machine profile",
                    }
                ),
            ));
        }
        let word = |at: usize| -> Option<u32> {
            let bytes = bytes.get(at..at.checked_add(4)?)?;
            Some(u32::from_le_bytes(bytes.try_into().ok()?))
        };
        let short = |expected: usize| Error::CutShort {
            path: path.to_owned(),
            what: "the header".to_owned(),
            expected: expected as u64,
            found: len,
        };
        let (Some(numbers), Some(types), Some(module_hash), Some(old_data)) =
            (word(4), word(8), word(12), word(20))
        else {
            return Err(short(SIZE));
        };
        let (version, kind_bits) = (numbers as u16, (numbers >> 16) as u16);
        if version > VERSION_MAX {
            return Err(bad(
                path,
                4,
                format!("version {version}; the newest that is known is {VERSION_MAX}"),
            ));
        }
        let has_width = kind_bits & 0x30 != 0;
        let data = word(28);
        let old = old_data as usize == OLD_SIZE
            && !has_width
            && version <= VERSION
            && (data != Some(SIZE as u32) || kind_bits == 3);
        if !old {
            match data {
                None => return Err(short(SIZE)),
                Some(data) if data as usize != SIZE => {
                    return Err(bad(
                        path,
                        28,
                        format!(
                            "the offset to the data is {data:#x}, expected {SIZE:#x} (or {OLD_SIZE:#x} at offset 0x14 in older files, where {old_data:#x} is)"
                        ),
                    ));
                }
                Some(_) => {}
            }
        }
        let kind = match (old, kind_bits & 0x0F) {
            (_, 1) => Kind::Raw,
            (true, 2) | (false, 4) => Kind::Map,
            (true, 3) | (false, 8) => Kind::Profile,
            (true, 4) | (false, 2) => Kind::Samples,
            _ => {
                return Err(bad(
                    path,
                    6,
                    format!("the kind of file is {kind_bits:#x}, which is none that is known"),
                ));
            }
        };
        let width = match kind_bits & 0xFFF0 {
            0 => None,
            0x10 => Some(Width::Wide),
            0x20 => Some(Width::Narrow),
            0x30 => {
                return Err(bad(
                    path,
                    6,
                    format!("the kind of file, {kind_bits:#x}, says both 64 bit and 32 bit"),
                ));
            }
            _ => {
                return Err(bad(
                    path,
                    6,
                    format!("the kind of file, {kind_bits:#x}, has unknown bits"),
                ));
            }
        };
        let types = check_types(path, version, Types(types), kind)?;
        Ok(Header {
            version,
            kind,
            width,
            types,
            module_hash,
            word: match u64::from(word(16).unwrap_or(0)) | u64::from(old_data) << 32 {
                _ if old => 0,
                maker if kind == Kind::Raw && maker >> 32 == 0xFFFF_FFFF => 0,
                word => word,
            },
            slots: if old { 0 } else { word(24).unwrap_or(0) },
            size: if old { OLD_SIZE } else { SIZE },
        })
    }

    /// Reads a header and wants a file of one kind.
    pub fn read_kind(path: &Path, bytes: &[u8], len: u64, kind: Kind) -> Result<Header, Error> {
        let header = Header::read(path, bytes, len)?;
        if header.kind == kind {
            return Ok(header);
        }
        Err(Error::Format {
            path: path.to_owned(),
            place: Place::Byte(6),
            what: format!("this is a {} file, expected {kind}", header.kind),
        })
    }
}

/// Checks that a set of types is known and makes sense.
fn check_types(path: &Path, version: u16, types: Types, kind: Kind) -> Result<Types, Error> {
    let known = if version > VERSION {
        Types::KNOWN_9
    } else {
        Types::KNOWN
    };
    let complain = |what: String| Err(bad(path, 8, what));
    if types.0 & !known != 0 {
        return complain(format!(
            "the profile type {:#x} has unknown bits {:#x}; version {version} has {known:#x}",
            types.0,
            types.0 & !known
        ));
    }
    let coverage = types.has(Types::FUNCTION_COVERAGE);
    let calls = types.0 & Types::CALL_GRAPH.0;
    if calls != 0 && calls != Types::CALL_GRAPH.0 {
        return complain(format!(
            "the profile type {:#x} has only one of call counts (0x8) and timestamps (0x4)",
            types.0
        ));
    }
    if coverage && calls != 0 {
        return complain(format!(
            "the profile type {:#x} has both function coverage (0x1) and call counts (0xC)",
            types.0
        ));
    }
    // Old profiles of single blocks say block coverage alone and mean both.
    if !coverage && calls == 0 && !types.has(Types::BLOCK_COVERAGE) && kind != Kind::Samples {
        return complain(format!(
            "the profile type {:#x} has neither function coverage (0x1) nor call counts (0xC)",
            types.0
        ));
    }
    Ok(types)
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, reason = "a test that fails may panic")]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Header, String> {
        Header::read(Path::new("f"), bytes, bytes.len() as u64).map_err(|e| e.to_string())
    }

    fn raw() -> [u8; SIZE] {
        Header::new(
            Kind::Raw,
            Some(Width::Wide),
            Types::FUNCTION_COVERAGE,
            0xDEAD_BEEF,
        )
        .to_bytes()
    }

    #[test]
    fn a_header_is_read_as_it_was_written() {
        for kind in [Kind::Raw, Kind::Samples, Kind::Map, Kind::Profile] {
            for width in [None, Some(Width::Wide), Some(Width::Narrow)] {
                for types in [
                    Types(1),
                    Types(3),
                    Types(0xC),
                    Types(0xE),
                    Types(0x6F & !0x0C),
                ] {
                    let mut header = Header::new(kind, width, types, 7);
                    header.word = 0x1234;
                    header.slots = 3;
                    assert_eq!(read(&header.to_bytes()), Ok(header));
                }
            }
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_both_values() {
        let patched = |at: usize, with: &[u8]| {
            let mut bytes = raw();
            bytes[at..at + with.len()].copy_from_slice(with);
            read(&bytes).unwrap_err()
        };
        assert_eq!(
            read(&raw()[..20]).unwrap_err(),
            "f: cut short: the header needs 32 bytes, the file has 20"
        );
        assert_eq!(
            patched(0, b"\x7FELF"),
            "f at offset 0x0: the magic number is 0x464C457F, expected 0x50494DFB: this is an ELF file"
        );
        assert_eq!(
            patched(4, &[10]),
            "f at offset 0x4: version 10; the newest that is known is 9"
        );
        assert_eq!(
            patched(6, &[0x31]),
            "f at offset 0x6: the kind of file, 0x31, says both 64 bit and 32 bit"
        );
        assert_eq!(
            patched(8, &[0x21]),
            "f at offset 0x8: the profile type 0x21 has unknown bits 0x20; version 8 has 0x1f"
        );
        assert_eq!(
            patched(8, &[0x05]),
            "f at offset 0x8: the profile type 0x5 has only one of call counts (0x8) and timestamps (0x4)"
        );
        assert!(patched(28, &[0x21]).contains("the offset to the data is 0x21, expected 0x20"));
        let map = Header::read_kind(Path::new("f"), &raw(), 32, Kind::Map).unwrap_err();
        assert_eq!(
            map.to_string(),
            "f at offset 0x6: this is a .mipraw file, expected .mipmap"
        );
    }

    #[test]
    fn kinds_of_older_files_are_numbers() {
        for (number, kind) in [
            (1, Kind::Raw),
            (2, Kind::Map),
            (3, Kind::Profile),
            (4, Kind::Samples),
        ] {
            let mut bytes = [0; OLD_SIZE];
            bytes[..4].copy_from_slice(&MAGIC);
            bytes[4] = 7;
            bytes[6] = number;
            bytes[8] = 1;
            bytes[20] = 0x18;
            let header = read(&bytes).unwrap();
            assert_eq!((header.kind, header.size), (kind, 24));
        }
    }
}
