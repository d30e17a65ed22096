//! The merged `.eh_frame` and `.eh_frame_hdr` of the output file.
//!
//! # Layout
//!
//! | `.eh_frame` | |
//! |---|---|
//! | CIEs | all of the input, each once, in their order |
//! | new FDEs | in the caller's order, 32-bit form, padded with `DW_CFA_nop` to 4 bytes |
//! | old FDEs | all of the input, by address (discarded ones first) |
//! | end | a zero length |
//!
//! | `.eh_frame_hdr` | |
//! |---|---|
//! | version 1, encodings 0x1b, 0x03, 0x3b | |
//! | address of `.eh_frame` | 4 bytes relative to the field |
//! | number of entries | 4 bytes |
//! | table of (code, FDE), sorted by code | 4 bytes each, relative to the header |
//!
//! Old entries are copied byte for byte but for what depends on their place: the distance to the CIE and the
//! position-relative pointers (personality, code, LSDA, `DW_CFA_set_loc`). So nothing has to be understood of the old
//! programs.
//!
//! New FDEs are before the old ones and win in the search table: should both describe an address, a reader that walks
//! the list and one that searches the table agree on the new one.
//!
//! FDEs are padded to 4 bytes, not 8 as some linkers do: that is what assemblers do, what readers need (they load a
//! 4-byte length), and smaller by two bytes per FDE on average.
//!
//! # Invariant
//!
//! [`merged_sizes`] depends on nothing but the number of FDEs, the length of their instructions and their CIEs: it is
//! right before addresses are known. Should table entries coincide after all, the table ends early and the rest of its
//! section is zero.

#![warn(clippy::indexing_slicing)]

use super::cfi::{Instruction, Instructions, op};
use super::cursor::{put_uleb, uleb_len};
use super::eh_frame::{Cie, EhFrame, Fde, NewFde, cie_pointers, entry_body, fde_head};
use super::pointer::{self, Bases, DATAREL_SDATA4, FORMAT, OMIT, PCREL_SDATA4, UDATA4};
use crate::{ErrorKind, FormatError};

pub(super) const HEADER: u64 = 12;
pub(super) const ENTRY: u64 = 8;
const END_MARKER: u64 = 4;
const ALIGN: u64 = 4;

/// Bytes of a new FDE, length field included. A CIE index out of range counts as a CIE without LSDA; writing refuses
/// it.
fn new_size(old: &EhFrame<'_>, new: &NewFde) -> u64 {
    let mut size = 8 + new.instructions.len() as u64;
    if let Some(cie) = old.cies.get(new.cie) {
        size += 2 * pointer::size(cie.fde_encoding).unwrap_or(0) as u64;
        if cie.has_augmentation_data() {
            let data = pointer::size(cie.lsda_encoding).unwrap_or(0);
            size += (uleb_len(data as u64) + data) as u64;
        }
    }
    size.next_multiple_of(ALIGN)
}

/// Sizes that a merged table will have: (`.eh_frame`, `.eh_frame_hdr`).
pub fn merged_sizes(old: &EhFrame<'_>, new: &[NewFde]) -> (u64, u64) {
    let cies: u64 = old.cies.iter().map(|c| c.bytes.len() as u64).sum();
    let fdes: u64 = old.fdes.iter().map(|f| f.bytes.len() as u64).sum();
    let added: u64 = new.iter().map(|n| new_size(old, n)).sum();
    let live = old.fdes.iter().filter(|f| !f.is_discarded());
    let mut count = new.len() as u64;
    let mut last = None;
    for fde in live {
        count += u64::from(last != Some(fde.start));
        last = Some(fde.start);
    }
    (cies + added + fdes + END_MARKER, HEADER + count * ENTRY)
}

/// Writes all old FDEs and the new ones as an `.eh_frame` at `eh_frame_addr`, and the sorted search table for both at
/// `hdr_addr`. Position-relative pointers of copied entries are adjusted.
///
/// # Errors
///
/// Buffers of other sizes than [`merged_sizes`] says; a new FDE without code or with an unknown CIE; a pointer that
/// does not fit its encoding, with both addresses; instructions that cannot be read if they may hold a
/// `DW_CFA_set_loc`.
pub fn write_merged(
    old: &EhFrame<'_>,
    new: &[NewFde],
    eh_frame_addr: u64,
    eh_frame: &mut [u8],
    hdr_addr: u64,
    hdr: &mut [u8],
) -> Result<(), FormatError> {
    let sizes = merged_sizes(old, new);
    if sizes != (eh_frame.len() as u64, hdr.len() as u64) {
        return Err(FormatError::new(format!(
            "the merged unwind tables take {:#x} and {:#x} bytes, but {:#x} and {:#x} are given",
            sizes.0,
            sizes.1,
            eh_frame.len(),
            hdr.len()
        ))
        .of(ErrorKind::Mismatch)
        .values(eh_frame.len(), sizes.0));
    }
    let mut writer = Writer {
        old,
        addr: eh_frame_addr,
        before: 0,
        out: Vec::new(),
        cies: Vec::with_capacity(old.cies.len()),
        scratch: Vec::new(),
        table: Vec::new(),
    };
    for cie in &old.cies {
        writer.cie(cie)?;
    }
    let (start, mut rest) = eh_frame.split_at_mut(writer.out.len());
    start.copy_from_slice(&writer.out);
    // The sizes of entries say where each part goes.
    let mut before = start.len();
    let new = new
        .chunks(PART)
        .zip(0..)
        .map(|(list, n)| Part::New(n * PART, list));
    let parts: Vec<(Part<'_, '_>, usize, &mut [u8])> = new
        .chain(old.fdes.chunks(PART).map(Part::Old))
        .map(|part| {
            let size = part.size(old);
            let own;
            (own, rest) = std::mem::take(&mut rest).split_at_mut(size);
            before += size;
            (part, before - size, own)
        })
        .collect();
    rest.fill(0);
    let table = Vec::with_capacity((hdr.len() as u64 / ENTRY) as usize);
    let cies = &writer.cies;
    let written = postlink_parallel::map_owned(parts, |(part, before, place)| {
        let mut writer = Writer {
            old,
            addr: eh_frame_addr.wrapping_add(before as u64),
            before,
            out: Vec::with_capacity(place.len()),
            cies: cies.clone(),
            scratch: Vec::new(),
            table: Vec::new(),
        };
        writer.part(&part)?;
        if writer.out.len() != place.len() {
            return Err(FormatError::new(format!(
                "a part of the merged unwind table came out {:#x} bytes long where {:#x} were planned",
                writer.out.len(),
                place.len()
            ))
            .of(ErrorKind::Mismatch)
            .values(writer.out.len(), place.len()));
        }
        place.copy_from_slice(&writer.out);
        Ok(writer.table)
    });
    let mut table: Vec<(u64, u64)> = table;
    for part in written {
        table.extend(part?);
    }
    write_header(table, eh_frame_addr, hdr_addr, hdr)
}

/// Entries that one thread writes at a time.
const PART: usize = 2048;

/// Some of the entries.
enum Part<'a, 'd> {
    /// New ones, and the number of the first.
    New(usize, &'a [NewFde]),
    Old(&'a [Fde<'d>]),
}

impl Part<'_, '_> {
    /// Bytes that they will have.
    fn size(&self, old: &EhFrame<'_>) -> usize {
        match self {
            Part::New(_, list) => list.iter().map(|fde| new_size(old, fde) as usize).sum(),
            Part::Old(list) => list.iter().map(|fde| fde.bytes.len()).sum(),
        }
    }
}

struct Writer<'a, 'd> {
    old: &'a EhFrame<'d>,
    /// Of the first byte of `out`.
    addr: u64,
    /// Bytes of the new section in front of `out`.
    before: usize,
    out: Vec<u8>,
    /// Offsets of the CIEs in the section.
    cies: Vec<usize>,
    scratch: Vec<u8>,
    /// (code, FDE), in order of preference for equal code.
    table: Vec<(u64, u64)>,
}

impl<'a, 'd> Writer<'a, 'd> {
    fn here(&self) -> u64 {
        self.addr.wrapping_add(self.out.len() as u64)
    }

    /// Adjusts the pointer at `at` in the entry that was copied to `start` from the address `old`.
    fn relocate(
        &mut self,
        encoding: u8,
        start: usize,
        at: usize,
        old: u64,
        what: &str,
    ) -> Result<(), FormatError> {
        let new = self.addr.wrapping_add((start + at) as u64);
        let bytes = self.out.get_mut(start + at..).unwrap_or(&mut []);
        pointer::relocate(
            encoding,
            bytes,
            old.wrapping_add(at as u64),
            new,
            &mut self.scratch,
            what,
        )
    }

    fn cie(&mut self, cie: &Cie<'_>) -> Result<(), FormatError> {
        let start = self.out.len();
        self.cies.push(start);
        self.out.extend_from_slice(cie.bytes);
        if let (Some((encoding, _)), Some(at)) = (
            cie.personality,
            cie_pointers(cie, &self.old.bases)?.personality,
        ) {
            self.relocate(
                encoding,
                start,
                at,
                cie.addr,
                "the pointer to the personality routine",
            )?;
        }
        // A CIE's program cannot hold `set_loc`: it has no place in the code.
        Ok(())
    }

    /// Appends entries.
    fn part(&mut self, part: &Part<'_, 'd>) -> Result<(), FormatError> {
        match part {
            Part::New(first, list) => {
                for (index, fde) in (*first..).zip(*list) {
                    self.new_fde(fde).map_err(|e| {
                        e.within(format_args!(
                            "the new FDE {index} for the code at {:#x}",
                            fde.start
                        ))
                    })?;
                }
            }
            Part::Old(list) => {
                for fde in *list {
                    self.old_fde(fde).map_err(|e| {
                        e.within(format_args!(
                            "the FDE at offset {:#x} of the input",
                            fde.offset
                        ))
                    })?;
                }
            }
        }
        Ok(())
    }

    /// A CIE, and the distance from the field at `field` of `out` back to it.
    fn cie_distance(
        &self,
        field: usize,
        cie: usize,
    ) -> Result<(&'a Cie<'d>, [u8; 4]), FormatError> {
        let field = self.before + field;
        let known = self.old.cies.get(cie).zip(self.cies.get(cie));
        let (cie, target) = known.map(|(cie, at)| (cie, *at)).ok_or_else(|| {
            FormatError::new(format!(
                "it uses CIE {cie}, but there are only {}",
                self.cies.len()
            ))
            .of(ErrorKind::OutOfBounds)
            .at_entry(cie as u64)
            .values(cie, self.cies.len())
        })?;
        u32::try_from(field - target)
            .map(|distance| (cie, distance.to_le_bytes()))
            .map_err(|_| {
                FormatError::new(format!(
                    "its CIE at offset {target:#x} is more than 4 GiB before offset {field:#x}"
                ))
                .of(ErrorKind::TooLarge)
                .at_offset(target as u64)
                .values(field - target, u32::MAX)
            })
    }

    fn new_fde(&mut self, fde: &NewFde) -> Result<(), FormatError> {
        let bases = &self.old.bases;
        let start = self.out.len();
        if fde.len == 0 || fde.start == 0 || fde.start.checked_add(fde.len).is_none() {
            return Err(FormatError::new(format!(
                "{:#x} bytes of code there cannot be described",
                fde.len
            ))
            .at_address(fde.start)
            .values(fde.len, "a length that keeps within the address space"));
        }
        let (cie, distance) = self.cie_distance(start + 4, fde.cie)?;
        let size = new_size(self.old, fde);
        let length = u32::try_from(size - 4)
            .ok()
            .filter(|&l| l < 0xffff_fff0)
            .ok_or_else(|| {
                FormatError::new(format!(
                    "its instructions take {:#x} bytes",
                    fde.instructions.len()
                ))
                .of(ErrorKind::TooLarge)
                .at_address(fde.start)
                .values(fde.instructions.len(), u32::MAX)
            })?;
        self.out.extend(length.to_le_bytes());
        self.out.extend(distance);
        let field = self.here();
        pointer::write(
            &mut self.out,
            cie.fde_encoding,
            fde.start,
            field,
            bases,
            "the address of an FDE's code",
        )?;
        let width = pointer::size(cie.fde_encoding).unwrap_or(0);
        pointer::write_raw(
            &mut self.out,
            cie.fde_encoding & FORMAT,
            fde.len,
            width,
            || format!("the length of the code at {:#x}", fde.start),
        )?;
        if cie.has_augmentation_data() {
            put_uleb(
                &mut self.out,
                pointer::size(cie.lsda_encoding).unwrap_or(0) as u64,
            );
            if cie.lsda_encoding != OMIT {
                let field = self.addr.wrapping_add(self.out.len() as u64);
                let target = fde.lsda.unwrap_or(0);
                pointer::write(
                    &mut self.out,
                    cie.lsda_encoding,
                    target,
                    field,
                    bases,
                    "the LSDA pointer",
                )?;
            }
        }
        if let (Some(lsda), OMIT) = (fde.lsda, cie.lsda_encoding) {
            return Err(FormatError::new(format!(
                "it has an LSDA at {lsda:#x}, but its CIE (at offset {:#x} of the input) has no place for one",
                cie.offset
            ))
            .of(ErrorKind::Unsupported)
            .at_address(fde.start)
            .values(lsda, "no LSDA"));
        }
        self.out.extend_from_slice(&fde.instructions);
        self.out.resize(start + size as usize, op::NOP);
        self.table
            .push((fde.start, self.addr.wrapping_add(start as u64)));
        Ok(())
    }

    fn old_fde(&mut self, fde: &Fde<'_>) -> Result<(), FormatError> {
        let bases: Bases = self.old.bases;
        let start = self.out.len();
        self.out.extend_from_slice(fde.bytes);
        let mut body = entry_body(fde.bytes, fde.addr)?;
        let id = body.pos() - 4;
        let (cie, distance) = self.cie_distance(start + id, fde.cie)?;
        if let Some(field) = self.out.get_mut(start + id..start + id + 4) {
            field.copy_from_slice(&distance);
        }
        let head = fde_head(&mut body, fde.addr, cie, &bases)?;
        self.relocate(
            cie.fde_encoding,
            start,
            head.start.0,
            fde.addr,
            "the address of an FDE's code",
        )?;
        if let Some((at, _)) = head.lsda {
            self.relocate(cie.lsda_encoding, start, at, fde.addr, "the LSDA pointer")?;
        }
        // Few programs have the byte at all, so few have to be walked.
        if pointer::is_pcrel(cie.fde_encoding) && fde.instructions.contains(&op::SET_LOC) {
            let base = fde.bytes.len() - fde.instructions.len();
            let mut instructions =
                Instructions::new(cie, fde.instructions, fde.instructions_addr());
            loop {
                let at = base + instructions.cursor.pos() + 1;
                match instructions.next()? {
                    None => break,
                    Some(Instruction::SetLoc(_)) => {
                        self.relocate(
                            cie.fde_encoding,
                            start,
                            at,
                            fde.addr,
                            "the address of DW_CFA_set_loc",
                        )?;
                    }
                    Some(_) => {}
                }
            }
        }
        if !fde.is_discarded() {
            self.table
                .push((fde.start, self.addr.wrapping_add(start as u64)));
        }
        Ok(())
    }
}

fn write_header(
    mut table: Vec<(u64, u64)>,
    eh_frame_addr: u64,
    hdr_addr: u64,
    hdr: &mut [u8],
) -> Result<(), FormatError> {
    // Stable: of equal ones the first in the section stays.
    table.sort_by_key(|e| e.0);
    table.dedup_by_key(|e| e.0);
    // A table entry is relative to the header, so the header is the data base here.
    let bases = Bases {
        data: Some(hdr_addr),
        position_independent: true,
    };
    let mut out = Vec::with_capacity(hdr.len());
    out.extend([1, PCREL_SDATA4, UDATA4, DATAREL_SDATA4]);
    let field = hdr_addr.wrapping_add(4);
    pointer::write(
        &mut out,
        PCREL_SDATA4,
        eh_frame_addr,
        field,
        &bases,
        "the pointer to .eh_frame in .eh_frame_hdr",
    )?;
    let count = u32::try_from(table.len()).map_err(|_| {
        FormatError::new(format!(
            "{} FDEs are too many for .eh_frame_hdr",
            table.len()
        ))
        .of(ErrorKind::TooLarge)
        .values(table.len(), u32::MAX)
    })?;
    out.extend(count.to_le_bytes());
    for (code, fde) in table {
        for target in [code, fde] {
            // Code is never at the header, so the distance is never the 0 that would mean null.
            let field = hdr_addr.wrapping_add(out.len() as u64);
            pointer::write(
                &mut out,
                DATAREL_SDATA4,
                target,
                field,
                &bases,
                "the search table entry in .eh_frame_hdr",
            )?;
        }
    }
    out.resize(out.len().max(hdr.len()), 0);
    if out.len() != hdr.len() {
        return Err(FormatError::new(format!(
            "the unwind search table came out {:#x} bytes long where {:#x} were planned",
            out.len(),
            hdr.len()
        ))
        .of(ErrorKind::Mismatch)
        .values(out.len(), hdr.len()));
    }
    hdr.copy_from_slice(&out);
    Ok(())
}
