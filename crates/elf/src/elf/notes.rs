//! ELF notes: a sequence of (name, type, description).
//!
//! Name and description are each padded to the alignment of the segment or section: 4, or 8 where that says 8
//! (`.note.gnu.property`). The name's size counts its zero byte.

use crate::raw;

/// One note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElfNote<'d> {
    /// Owner, without the zero byte at its end.
    pub name: &'d [u8],
    /// `n_type`, whose meaning depends on the owner.
    pub kind: u32,
    /// Description.
    pub desc: &'d [u8],
    /// Where the description begins in the bytes that were read.
    pub desc_at: usize,
}

/// The notes in `data`, padded for `align`. Ends where the first note does not fit.
pub fn notes(data: &[u8], align: u64) -> impl Iterator<Item = ElfNote<'_>> {
    let pad = if align == 8 { 8 } else { 4 };
    let mut at = 0u64;
    std::iter::from_fn(move || {
        let [name_size, desc_size, kind] =
            [0, 4, 8].map(|field| raw::u32_at(data, at.checked_add(field)?));
        let name_at = at.checked_add(12)?;
        let desc_at = name_at
            .checked_add(name_size?.into())?
            .checked_next_multiple_of(pad)?;
        let desc_end = desc_at.checked_add(desc_size?.into())?;
        let slice =
            |from: u64, to: u64| data.get(usize::try_from(from).ok()?..usize::try_from(to).ok()?);
        let name = slice(name_at, name_at + u64::from(name_size?))?;
        let note = ElfNote {
            name: name.strip_suffix(&[0]).unwrap_or(name),
            kind: kind?,
            desc: slice(desc_at, desc_end)?,
            desc_at: usize::try_from(desc_at).ok()?,
        };
        at = desc_end.checked_next_multiple_of(pad)?;
        Some(note)
    })
}
