//! Sections that are not loaded and compressed: debug information, for the most part.
//!
//! Two forms are in use:
//!
//! | form | section | before the compressed bytes |
//! |---|---|---|
//! | gABI | flag `SHF_COMPRESSED`, any name | u32 type (1 zlib, 2 zstd), u32 0, u64 size when unpacked, u64 alignment when unpacked |
//! | older GNU tools | `.zdebug_*`, no flag | `ZLIB`, big-endian u64 size when unpacked |
//!
//! What a header says of sizes is not believed: memory grows with what is really unpacked, up to that size.

use std::borrow::Cow;
use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;

use crate::elf::{Elf, Section};
use crate::raw;
use crate::{ErrorKind, FormatError};

/// How a section is compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Packing {
    /// Not at all.
    #[default]
    None,
    /// zlib, with the gABI's header.
    Zlib,
    /// zstd, with the gABI's header.
    Zstd,
    /// zlib, with the header of older GNU tools; the section's name begins with `.z`.
    Gnu,
}

/// Sections of DWARF that say where code comes from: entries, lines, scopes, and what they refer to.
pub const DEBUG_SECTIONS: [&str; 12] = [
    ".debug_abbrev",
    ".debug_addr",
    ".debug_aranges",
    ".debug_info",
    ".debug_line",
    ".debug_line_str",
    ".debug_loc",
    ".debug_ranges",
    ".debug_rnglists",
    ".debug_str",
    ".debug_str_offsets",
    ".debug_types",
];

const ELFCOMPRESS_ZLIB: u32 = 1;
const ELFCOMPRESS_ZSTD: u32 = 2;
/// Alignment of a section with the gABI's header.
pub const ALIGN: u64 = 8;
/// Size of the gABI's header.
const HEADER: usize = 24;
/// Size and beginning of the older one.
const GNU_HEADER: usize = 12;
const GNU_MAGIC: &[u8] = b"ZLIB";

/// A section's contents, unpacked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unpacked<'d> {
    /// The bytes.
    pub bytes: Cow<'d, [u8]>,
    /// How they are compressed in the file.
    pub packing: Packing,
    /// Alignment of the unpacked bytes; 0 if they were not compressed.
    pub align: u64,
}

/// What a compressed section says of itself.
struct Header {
    packing: Packing,
    size: u64,
    align: u64,
    /// Bytes of the header.
    len: usize,
}

/// Whether a section's contents are compressed.
pub fn is_compressed(section: &Section<'_>) -> bool {
    section.flags & raw::SHF_COMPRESSED != 0 || section.name.starts_with(".zdebug_")
}

fn header(section: &Section<'_>, data: &[u8]) -> Result<Header, FormatError> {
    let short = || {
        FormatError::new(format!(
            "{} of {} bytes is too short for the header of a compressed section",
            section.name,
            data.len()
        ))
        .of(ErrorKind::Truncated)
        .at_offset(section.offset)
        .values(data.len(), GNU_HEADER)
    };
    if section.flags & raw::SHF_COMPRESSED == 0 {
        let size = data.get(GNU_MAGIC.len()..GNU_HEADER).ok_or_else(short)?;
        if !data.starts_with(GNU_MAGIC) {
            return Err(FormatError::new(format!(
                "{} does not begin with \"ZLIB\" but with {:02x?}",
                section.name,
                &data[..GNU_MAGIC.len()]
            ))
            .at_offset(section.offset)
            .values(format!("{:02x?}", &data[..GNU_MAGIC.len()]), "ZLIB"));
        }
        let size = size.iter().fold(0, |sum, b| sum << 8 | u64::from(*b));
        return Ok(Header {
            packing: Packing::Gnu,
            size,
            align: 1,
            len: GNU_HEADER,
        });
    }
    let fields = (
        raw::u32_at(data, 0),
        raw::u64_at(data, 8),
        raw::u64_at(data, 16),
    );
    let (Some(kind), Some(size), Some(align)) = fields else {
        return Err(short());
    };
    let packing = match kind {
        ELFCOMPRESS_ZLIB => Packing::Zlib,
        ELFCOMPRESS_ZSTD => Packing::Zstd,
        _ => {
            return Err(FormatError::new(format!(
                "{} is compressed in a way of type {kind}; 1 (zlib) and 2 (zstd) are known",
                section.name
            ))
            .of(ErrorKind::Unsupported)
            .at_offset(section.offset)
            .values(kind, "1 or 2"));
        }
    };
    Ok(Header {
        packing,
        size,
        align,
        len: HEADER,
    })
}

/// Unpacks a section's contents, `data`. What is not compressed is returned as it is.
pub fn unpack<'d>(section: &Section<'_>, data: &'d [u8]) -> Result<Unpacked<'d>, FormatError> {
    if !is_compressed(section) {
        return Ok(Unpacked {
            bytes: Cow::Borrowed(data),
            packing: Packing::None,
            align: 0,
        });
    }
    let header = header(section, data)?;
    let packed = data.get(header.len..).unwrap_or_default();
    let mut bytes = Vec::new();
    // One byte more than announced shows that there are more.
    let limit = header.size.saturating_add(1);
    let read = match header.packing {
        Packing::Zstd => match ruzstd::decoding::StreamingDecoder::new(packed) {
            Ok(frames) => frames.take(limit).read_to_end(&mut bytes),
            Err(e) => Err(std::io::Error::other(e.to_string())),
        },
        _ => ZlibDecoder::new(packed).take(limit).read_to_end(&mut bytes),
    };
    if let Err(e) = read {
        return Err(FormatError::new(format!(
            "{} cannot be unpacked after {} of {} bytes: {e}",
            section.name,
            bytes.len(),
            header.size
        ))
        .at_offset(section.offset)
        .values(bytes.len(), header.size));
    }
    if bytes.len() as u64 != header.size {
        let more = if bytes.len() as u64 > header.size {
            "more"
        } else {
            "fewer"
        };
        return Err(FormatError::new(format!(
            "{} says that it has {} bytes when unpacked, but it has {more} ({})",
            section.name,
            header.size,
            bytes.len()
        ))
        .of(ErrorKind::Mismatch)
        .at_offset(section.offset)
        .values(bytes.len(), header.size));
    }
    Ok(Unpacked {
        bytes: Cow::Owned(bytes),
        packing: header.packing,
        align: header.align,
    })
}

/// A section of a file by the name that it has when it is not compressed, unpacked. `None` if there is none, or it has
/// no contents (debug information that is in another file).
pub fn by_name<'d>(elf: &Elf<'d>, name: &str) -> Result<Option<Cow<'d, [u8]>>, FormatError> {
    let older = || elf.section(&name.replacen(".debug_", ".zdebug_", 1));
    let found = elf.section(name).or_else(older);
    match found.filter(|(_, s)| s.has_contents()) {
        Some((_, section)) => Ok(Some(unpack(section, elf.section_data(section))?.bytes)),
        None => Ok(None),
    }
}

/// A section's contents as they are in the file. `align` is the alignment of the unpacked bytes.
pub fn pack(bytes: Vec<u8>, packing: Packing, align: u64) -> std::io::Result<Vec<u8>> {
    let size = bytes.len() as u64;
    let gabi = |kind: u32| {
        let mut out = kind.to_le_bytes().to_vec();
        out.extend([0; 4]);
        out.extend(size.to_le_bytes());
        out.extend(align.max(1).to_le_bytes());
        out
    };
    let zlib = |front: Vec<u8>| {
        let mut packer = ZlibEncoder::new(front, Compression::new(LEVEL));
        packer.write_all(&bytes)?;
        packer.finish()
    };
    match packing {
        Packing::None => Ok(bytes),
        Packing::Zlib => zlib(gabi(ELFCOMPRESS_ZLIB)),
        Packing::Gnu => zlib([GNU_MAGIC, &size.to_be_bytes()].concat()),
        Packing::Zstd => {
            let mut out = gabi(ELFCOMPRESS_ZSTD);
            let level = ruzstd::encoding::CompressionLevel::Fastest;
            out.extend(ruzstd::encoding::compress_to_vec(&bytes[..], level));
            Ok(out)
        }
    }
}

/// zlib's level: most of what the highest saves, for a third of its time.
const LEVEL: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn section(name: &'static str, flags: u64) -> Section<'static> {
        Section {
            name,
            kind: raw::SHT_PROGBITS,
            flags,
            ..Section::default()
        }
    }

    const WAYS: [(&str, u64, Packing); 3] = [
        (".debug_info", raw::SHF_COMPRESSED, Packing::Zlib),
        (".debug_info", raw::SHF_COMPRESSED, Packing::Zstd),
        (".zdebug_info", 0, Packing::Gnu),
    ];

    #[test]
    fn what_was_packed_unpacks_to_itself() {
        let bytes: Vec<u8> = (0..20_000u32).flat_map(|i| (i / 7).to_le_bytes()).collect();
        for (name, flags, packing) in WAYS {
            let packed = pack(bytes.clone(), packing, 8).expect("memory does not fail");
            assert!(packed.len() < bytes.len() / 2, "{packing:?}");
            let unpacked = unpack(&section(name, flags), &packed).expect("it is well-formed");
            assert_eq!(
                (&unpacked.bytes[..], unpacked.packing),
                (&bytes[..], packing)
            );
        }
        let plain = unpack(&section(".debug_info", 0), &bytes).expect("nothing to unpack");
        assert_eq!((plain.packing, plain.align), (Packing::None, 0));
    }

    #[test]
    fn damage_is_an_error_with_the_sections_name() {
        let bytes = vec![7; 5_000];
        for (name, flags, packing) in WAYS {
            let of = section(name, flags);
            let packed = pack(bytes.clone(), packing, 1).expect("memory does not fail");
            for cut in 0..packed.len() {
                let error = unpack(&of, &packed[..cut]).expect_err("it is cut short");
                assert!(error.what.contains(name), "{error}");
            }
            // A size that is not true, in both directions.
            let low_byte = if packing == Packing::Gnu { 11 } else { 8 };
            for by in [1, 255] {
                let mut wrong = packed.clone();
                wrong[low_byte] = wrong[low_byte].wrapping_add(by);
                let error = unpack(&of, &wrong).expect_err("the size is wrong");
                assert!(error.what.contains("5000"), "{error}");
            }
        }
    }

    #[test]
    fn an_enormous_size_allocates_nothing() {
        let of = section(".debug_info", raw::SHF_COMPRESSED);
        let mut packed = pack(vec![1; 100], Packing::Zlib, 1).expect("memory does not fail");
        packed[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
        let error = unpack(&of, &packed).expect_err("there are 100 bytes");
        assert!(error.what.contains("fewer (100)"), "{error}");
    }

    #[test]
    fn unknown_ways_are_named() {
        let of = section(".debug_info", raw::SHF_COMPRESSED);
        let error = unpack(&of, &[9; 24]).expect_err("no such type");
        assert!(error.what.contains("type 151587081"), "{error}");
    }
}
