//! `.eh_frame`: which code has which unwind program. Reading here, writing in [`write_merged`].
//!
//! The section is a list of entries. A CIE holds what many functions share; an FDE describes one range of code and
//! names its CIE by the distance back to it. Format: LSB core specification, "Exception Frames"; DWARF 5, section 6.4.
//!
//! | field | CIE | FDE |
//! |---|---|---|
//! | length of the rest | 4 bytes; or 0xffffffff and 8 bytes | same |
//! | id, 4 bytes in either form | 0 | distance from this field back to the CIE |
//! | | version: 1, 3 or 4 | first address, encoded as `R` says |
//! | | augmentation string, zero-terminated | length of the code, in the same format without base |
//! | | version 4: address size 8, segment size 0 | |
//! | | code alignment ULEB, data alignment SLEB | |
//! | | return address register: byte in version 1, else ULEB | |
//! | with `z` | ULEB length of what follows | same |
//! | | a value per letter | with `L`: address of the LSDA |
//! | | instructions up to the end | same |
//!
//! Letters: `R` encoding of addresses in FDEs, `L` encoding of LSDA pointers, `P` encoding and value of the personality
//! routine, `S` signal frame, `B` (AArch64) return addresses signed with key B, `G` (AArch64) tagged stack. An unknown
//! letter may represent data of unknown size and is refused, as is GCC 2's `eh` style.
//!
//! A length of zero ends the list for a reader that walks it, but tools leave such an end in the middle now and then
//! (after the contribution of an object file that brings its own) and readers that search by `.eh_frame_hdr` never
//! notice. So the entries after it are read too.
//!
//! A statically linked program of the GNU tools has no `.eh_frame_hdr`: its start-up code hands the address of
//! `.eh_frame` to the unwinder, which walks the list. The unwinder asks there first, and then looks for a segment of
//! type `PT_GNU_EH_FRAME` all the same. So moved code in such a program is found if the output has that segment, while
//! what stays in place is looked up in the old list.
//!
//! Linkers zero the addresses of FDEs whose code they discarded, or leave such FDEs with an empty range. They are kept
//! in the list ([`Fde::is_discarded`]) but describe nothing and are in no search table.

#![warn(clippy::indexing_slicing)]

use super::cursor::Cursor;
use super::pointer::{self, Bases, FORMAT, INDIRECT, OMIT};
use crate::elf::Elf;
use crate::{ErrorKind, FormatError};

pub use super::merge::{merged_sizes, write_merged};

/// A common information entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cie<'d> {
    /// Offset in the section.
    pub offset: u64,
    /// Link-time address of the entry.
    pub addr: u64,
    /// Whole entry, length field included.
    pub bytes: &'d [u8],
    /// Augmentation string.
    pub augmentation: &'d [u8],
    /// Code alignment factor.
    pub code_align: u64,
    /// Data alignment factor.
    pub data_align: i64,
    /// Return address register.
    pub ra_register: u64,
    /// Encoding of addresses in FDEs (`R`), 0 if absent.
    pub fde_encoding: u8,
    /// Encoding of LSDA pointers (`L`), 0xff if none.
    pub lsda_encoding: u8,
    /// Personality (`P`): encoding, and the value decoded to a link-time address (of the pointer slot if indirect).
    pub personality: Option<(u8, u64)>,
    /// `S`: signal frame.
    pub signal_frame: bool,
    /// Initial instructions.
    pub instructions: &'d [u8],
}

impl<'d> Cie<'d> {
    /// Link-time address of the first instruction.
    pub fn instructions_addr(&self) -> u64 {
        instructions_addr(self.addr, self.bytes, self.instructions)
    }
    /// Whether FDEs of it have augmentation data.
    pub(super) fn has_augmentation_data(&self) -> bool {
        self.augmentation.first() == Some(&b'z')
    }
    #[cfg(test)]
    pub(super) fn for_tests(instructions: &'d [u8], code_align: u64, data_align: i64) -> Self {
        Cie {
            offset: 0,
            addr: 0,
            bytes: instructions,
            augmentation: b"",
            code_align,
            data_align,
            ra_register: 16,
            fde_encoding: 0,
            lsda_encoding: OMIT,
            personality: None,
            signal_frame: false,
            instructions,
        }
    }
}

/// A frame description entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fde<'d> {
    /// Offset in the section.
    pub offset: u64,
    /// Link-time address of the entry.
    pub addr: u64,
    /// Whole entry, length field included.
    pub bytes: &'d [u8],
    /// Index into [`EhFrame::cies`].
    pub cie: usize,
    /// First address.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
    /// Address of the LSDA.
    pub lsda: Option<u64>,
    /// Instructions.
    pub instructions: &'d [u8],
}

impl<'d> Fde<'d> {
    /// Link-time address of the first instruction.
    pub fn instructions_addr(&self) -> u64 {
        instructions_addr(self.addr, self.bytes, self.instructions)
    }
    /// One past the last address. Parsing has checked that it does not overflow.
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }
    /// Left over from code that the linker discarded: no code, or at address 0.
    pub fn is_discarded(&self) -> bool {
        self.start == 0 || self.len == 0
    }
    #[cfg(test)]
    pub(super) fn for_tests(instructions: &'d [u8], start: u64, len: u64) -> Self {
        Fde {
            offset: 0x20,
            addr: 0x20,
            bytes: instructions,
            cie: 0,
            start,
            len,
            lsda: None,
            instructions,
        }
    }
}

/// Instructions are the tail of their entry.
fn instructions_addr(addr: u64, bytes: &[u8], instructions: &[u8]) -> u64 {
    addr.wrapping_add((bytes.len() as u64).saturating_sub(instructions.len() as u64))
}

/// A parsed `.eh_frame`.
#[derive(Clone, Debug, Default)]
pub struct EhFrame<'d> {
    /// Address of the section.
    pub addr: u64,
    /// What pointers are relative to.
    pub bases: Bases,
    /// In the file's order.
    pub cies: Vec<Cie<'d>>,
    /// In ascending order of `start`; equal ones in the file's order.
    pub fdes: Vec<Fde<'d>>,
}

impl<'d> EhFrame<'d> {
    /// Parses the file's `.eh_frame`; empty if there is none.
    ///
    /// In a file without section headers it is found through the segment of type `PT_GNU_EH_FRAME`.
    pub fn parse(elf: &Elf<'d>) -> Result<Self, FormatError> {
        let bases = Bases::of(elf);
        if let Some((_, section)) = elf.section(".eh_frame") {
            return Self::parse_section(elf.section_data(section), section.addr, bases);
        }
        if !elf.sections.is_empty() {
            return Ok(EhFrame::default());
        }
        use crate::raw::PT_GNU_EH_FRAME;
        let Some(header) = elf.segments.iter().find(|s| s.kind == PT_GNU_EH_FRAME) else {
            return Ok(EhFrame::default());
        };
        let bytes = elf.bytes_at(header.addr, header.file_size).unwrap_or(&[]);
        let addr = header_target(bytes, header.addr, &bases)?;
        let data = elf
            .load_at(addr)
            .and_then(|s| elf.bytes_at(addr, s.file_size.checked_sub(addr - s.addr)?))
            .ok_or_else(|| {
                FormatError::new(format!(
                    "no segment holds the unwind table that should be at {addr:#x}"
                ))
                .of(ErrorKind::OutOfBounds)
                .at_address(addr)
                .values(addr, "an address in a loaded segment")
            })?;
        // Nothing but the end marker tells where the table ends.
        Self::parse_section(until_end_marker(data), addr, bases)
    }

    /// Parses the bytes of a section at link-time address `addr`.
    pub fn parse_section(data: &'d [u8], addr: u64, bases: Bases) -> Result<Self, FormatError> {
        let mut this = EhFrame {
            addr,
            bases,
            cies: Vec::new(),
            fdes: Vec::new(),
        };
        let mut cursor = Cursor::new(data, addr);
        while !cursor.is_empty() {
            let offset = cursor.pos() as u64;
            if cursor.rest().len() < 4 && cursor.rest().iter().all(|&b| b == 0) {
                break;
            }
            this.entry(&mut cursor, offset)
                .map_err(|e| e.within(format_args!("the unwind entry at offset {offset:#x}")))?;
        }
        // Stable: the first of equal ones stays the first.
        this.fdes.sort_by_key(|f| f.start);
        this.fdes.shrink_to_fit();
        Ok(this)
    }

    fn entry(&mut self, cursor: &mut Cursor<'d>, offset: u64) -> Result<(), FormatError> {
        let (addr, start, whole) = (cursor.addr(), cursor.pos(), cursor.rest());
        let mut len = u64::from(cursor.u32("its length")?);
        match len {
            0 => return Ok(()),
            0xffff_ffff => len = cursor.u64("its length")?,
            0xffff_fff0.. => {
                return Err(
                    FormatError::new(format!("its length {len:#x} is a reserved value"))
                        .at_offset(offset)
                        .values(len, "less than 0xfffffff0"),
                );
            }
            _ => {}
        }
        let mut body = cursor.sub(len, "the entry")?;
        // `sub` has moved on by what it checked.
        let bytes = whole.get(..cursor.pos() - start).unwrap_or(whole);
        let id_offset = offset + (bytes.len() - body.rest().len()) as u64;
        let id = body.u32("its CIE distance")?;
        if id == 0 {
            self.cies
                .push(cie(&mut body, offset, addr, bytes, &self.bases)?);
            return Ok(());
        }
        let at = id_offset.checked_sub(id.into());
        let index = at.and_then(|at| match self.cies.last() {
            Some(last) if last.offset == at => Some(self.cies.len() - 1),
            _ => self.cies.binary_search_by_key(&at, |c| c.offset).ok(),
        });
        let Some((index, cie)) = index.and_then(|index| Some((index, self.cies.get(index)?)))
        else {
            return Err(FormatError::new(format!(
                "its CIE should be {id:#x} bytes before offset {id_offset:#x}, but there is none"
            ))
            .of(ErrorKind::OutOfBounds)
            .at_offset(id_offset)
            .values(id, "the distance of a CIE"));
        };
        self.fdes.push(fde(
            &mut body,
            offset,
            addr,
            bytes,
            index,
            cie,
            &self.bases,
        )?);
        Ok(())
    }

    /// The FDE that covers an address.
    pub fn fde_at(&self, addr: u64) -> Option<&Fde<'d>> {
        let after = self.fdes.partition_point(|f| f.start <= addr);
        // Discarded ones with a start of their own may be in between; ranges do not overlap.
        let last = self
            .fdes
            .get(..after)?
            .iter()
            .rev()
            .find(|f| !f.is_discarded())?;
        let first = self.fdes.partition_point(|f| f.start < last.start);
        self.fdes
            .get(first..after)?
            .iter()
            .find(|f| !f.is_discarded() && addr < f.end())
    }
}

/// The entries before the first zero length.
fn until_end_marker(data: &[u8]) -> &[u8] {
    let mut cursor = Cursor::new(data, 0);
    loop {
        let end = cursor.pos();
        let len = match cursor.u32("") {
            Ok(0xffff_ffff) => cursor.u64(""),
            Ok(0) => return data.get(..end).unwrap_or(data),
            other => other.map(u64::from),
        };
        // What is cut off is an error of the parser, not of this search.
        if len.and_then(|len| cursor.take(len, "")).is_err() {
            return data;
        }
    }
}

/// Where the `.eh_frame_hdr` in `bytes` at `addr` says that `.eh_frame` is.
fn header_target(bytes: &[u8], addr: u64, bases: &Bases) -> Result<u64, FormatError> {
    let mut cursor = Cursor::new(bytes, addr);
    let version = cursor.u8("the version of the unwind search table")?;
    if version != 1 {
        return Err(FormatError::new(format!(
            "the unwind search table at {addr:#x} has version {version}, not 1"
        ))
        .of(ErrorKind::Unsupported)
        .at_address(addr)
        .values(version, 1u64));
    }
    let encoding = cursor.u8("the unwind search table")?;
    cursor.take(2, "the unwind search table")?;
    pointer::read(
        encoding,
        &mut cursor,
        bases,
        "the pointer to the unwind table",
    )
}

/// Where the pointers are in the augmentation data of a CIE: for the writer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CiePointers {
    /// Offset of the personality pointer from the first byte of the entry.
    pub personality: Option<usize>,
}

fn cie<'d>(
    body: &mut Cursor<'d>,
    offset: u64,
    addr: u64,
    bytes: &'d [u8],
    bases: &Bases,
) -> Result<Cie<'d>, FormatError> {
    parse_cie(body, offset, addr, bytes, bases).map(|(cie, _)| cie)
}

/// Finds the pointers of a parsed CIE again.
pub(super) fn cie_pointers(cie: &Cie<'_>, bases: &Bases) -> Result<CiePointers, FormatError> {
    let mut body = entry_body(cie.bytes, cie.addr)?;
    parse_cie(&mut body, cie.offset, cie.addr, cie.bytes, bases).map(|(_, pointers)| pointers)
}

/// A cursor after the id of an entry, with the entry's address.
pub(super) fn entry_body(bytes: &[u8], addr: u64) -> Result<Cursor<'_>, FormatError> {
    let mut cursor = Cursor::new(bytes, addr);
    if cursor.u32("the length of an entry")? == u32::MAX {
        cursor.u64("the length of an entry")?;
    }
    cursor.u32("the CIE distance of an entry")?;
    Ok(cursor)
}

fn parse_cie<'d>(
    body: &mut Cursor<'d>,
    offset: u64,
    addr: u64,
    bytes: &'d [u8],
    bases: &Bases,
) -> Result<(Cie<'d>, CiePointers), FormatError> {
    let version = body.u8("the version of a CIE")?;
    if !matches!(version, 1 | 3 | 4) {
        return Err(FormatError::new(format!(
            "CIE version {version} is unknown (1, 3 and 4 are known)"
        ))
        .of(ErrorKind::Unsupported)
        .at_address(body.addr())
        .values(version, "1, 3 or 4"));
    }
    let augmentation = body.string("the augmentation string of a CIE")?;
    let unknown = |letter: &str| {
        FormatError::new(format!(
            "the augmentation \"{}\" of a CIE is not supported: {letter}",
            augmentation.escape_ascii()
        ))
        .of(ErrorKind::Unsupported)
        .values(
            augmentation.escape_ascii().to_string(),
            "a known augmentation",
        )
    };
    if augmentation.starts_with(b"eh") {
        return Err(unknown("the style of GCC 2"));
    }
    if version == 4 {
        let (size, segment) = (
            body.u8("the address size")?,
            body.u8("the segment selector size")?,
        );
        if (size, segment) != (8, 0) {
            return Err(FormatError::new(format!(
                "a CIE has address size {size} and segment selector size {segment}, not 8 and 0"
            ))
            .of(ErrorKind::Unsupported)
            .values(size, 8u64));
        }
    }
    let code_align = body.uleb("the code alignment")?;
    let data_align = body.sleb("the data alignment")?;
    let ra_register = match version {
        1 => body.u8("the return address register")?.into(),
        _ => body.uleb("the return address register")?,
    };
    let mut this = Cie {
        offset,
        addr,
        bytes,
        augmentation,
        code_align,
        data_align,
        ra_register,
        fde_encoding: 0,
        lsda_encoding: OMIT,
        personality: None,
        signal_frame: false,
        instructions: &[],
    };
    let mut pointers = CiePointers::default();
    let (with_data, letters) = match augmentation {
        [b'z', letters @ ..] => (true, letters),
        letters => (false, letters),
    };
    let mut data = if with_data {
        let len = body.uleb("the length of augmentation data")?;
        body.sub(len, "augmentation data")?
    } else {
        Cursor::new(&[], body.addr())
    };
    for &letter in letters {
        match letter {
            b'R' if with_data => {
                this.fde_encoding = data.u8("the encoding of addresses")?;
                if this.fde_encoding == OMIT || this.fde_encoding & INDIRECT != 0 {
                    return Err(FormatError::new(format!(
                        "addresses of code cannot have pointer encoding {:#04x}",
                        this.fde_encoding
                    ))
                    .of(ErrorKind::Unsupported)
                    .values(this.fde_encoding, "a direct encoding"));
                }
            }
            b'L' if with_data => {
                this.lsda_encoding = data.u8("the encoding of LSDA pointers")?;
                if this.lsda_encoding != OMIT && this.lsda_encoding & INDIRECT != 0 {
                    return Err(FormatError::new(format!(
                        "indirect LSDA pointers (encoding {:#04x}) are not supported",
                        this.lsda_encoding
                    ))
                    .of(ErrorKind::Unsupported)
                    .values(this.lsda_encoding, "a direct encoding"));
                }
            }
            b'P' if with_data => {
                let encoding = data.u8("the encoding of the personality routine")?;
                let field = data.addr();
                let value = pointer::read(encoding, &mut data, bases, "the personality routine")?;
                if encoding != OMIT {
                    pointers.personality = Some(field.wrapping_sub(addr) as usize);
                    this.personality = Some((encoding, value));
                }
            }
            b'S' => this.signal_frame = true,
            // Both say how return addresses and the stack are to be authenticated; the entry is copied with them.
            b'B' | b'G' => {}
            _ => return Err(unknown(&format!("letter '{}'", letter.escape_ascii()))),
        }
    }
    this.instructions = body.rest();
    Ok((this, pointers))
}

/// What is before the instructions of an FDE, with the offsets of its pointers from the first byte of the entry.
pub(super) struct FdeHead {
    pub start: (usize, u64),
    pub len: u64,
    pub lsda: Option<(usize, u64)>,
}

/// Reads up to the instructions.
pub(super) fn fde_head(
    body: &mut Cursor<'_>,
    addr: u64,
    cie: &Cie<'_>,
    bases: &Bases,
) -> Result<FdeHead, FormatError> {
    let at = body.addr().wrapping_sub(addr) as usize;
    let start = pointer::read(
        cie.fde_encoding,
        body,
        bases,
        "the address of an FDE's code",
    )?;
    let len = pointer::read_raw(
        cie.fde_encoding & FORMAT,
        body,
        "the length of an FDE's code",
    )?;
    let mut lsda = None;
    if cie.has_augmentation_data() {
        let size = body.uleb("the length of augmentation data")?;
        let mut data = body.sub(size, "augmentation data")?;
        if cie.lsda_encoding != OMIT {
            let at = data.addr().wrapping_sub(addr) as usize;
            lsda = Some((
                at,
                pointer::read(cie.lsda_encoding, &mut data, bases, "the LSDA pointer")?,
            ));
        }
    }
    Ok(FdeHead {
        start: (at, start),
        len,
        lsda,
    })
}

fn fde<'d>(
    body: &mut Cursor<'d>,
    offset: u64,
    addr: u64,
    bytes: &'d [u8],
    index: usize,
    cie: &Cie<'d>,
    bases: &Bases,
) -> Result<Fde<'d>, FormatError> {
    let head = fde_head(body, addr, cie, bases)?;
    let (_, start) = head.start;
    if start.checked_add(head.len).is_none() {
        return Err(FormatError::new(format!(
            "its code at {start:#x} of length {:#x} goes beyond the address space",
            head.len
        ))
        .of(ErrorKind::TooLarge)
        .at_address(start)
        .values(head.len, u64::MAX - start));
    }
    Ok(Fde {
        offset,
        addr,
        bytes,
        cie: index,
        start,
        len: head.len,
        lsda: head.lsda.map(|l| l.1).filter(|&l| l != 0),
        instructions: body.rest(),
    })
}

/// An FDE to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewFde {
    /// Index of the input's CIE that it uses.
    pub cie: usize,
    /// First address.
    pub start: u64,
    /// Length.
    pub len: u64,
    /// Address of the LSDA.
    pub lsda: Option<u64>,
    /// Instructions, from [`super::rows::encode`].
    pub instructions: Vec<u8>,
}
