//! `.eh_frame` and `.eh_frame_hdr`: reading, and writing a merged table.

use crate::FormatError;
use crate::elf::Elf;

/// A common information entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cie<'d> {
    /// Offset in the section.
    pub offset: u64,
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

/// A frame description entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fde<'d> {
    /// Offset in the section.
    pub offset: u64,
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

/// A parsed `.eh_frame`.
#[derive(Clone, Debug, Default)]
pub struct EhFrame<'d> {
    /// Address of the section.
    pub addr: u64,
    /// In the file's order.
    pub cies: Vec<Cie<'d>>,
    /// In ascending order of `start`.
    pub fdes: Vec<Fde<'d>>,
}

impl<'d> EhFrame<'d> {
    /// Parses the file's `.eh_frame`; empty if there is none.
    pub fn parse(_elf: &Elf<'d>) -> Result<Self, FormatError> {
        todo!()
    }
    /// The FDE that covers an address.
    pub fn fde_at(&self, _addr: u64) -> Option<&Fde<'d>> {
        todo!()
    }
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

/// Sizes that a merged table will have: (`.eh_frame`, `.eh_frame_hdr`).
pub fn merged_sizes(_old: &EhFrame<'_>, _new: &[NewFde]) -> (u64, u64) {
    todo!()
}

/// Writes all old FDEs and the new ones as an `.eh_frame` at `eh_frame_addr`, and the sorted search table for both at `hdr_addr`.
/// Position-relative pointers of copied entries are adjusted.
pub fn write_merged(
    _old: &EhFrame<'_>,
    _new: &[NewFde],
    _eh_frame_addr: u64,
    _eh_frame: &mut [u8],
    _hdr_addr: u64,
    _hdr: &mut [u8],
) -> Result<(), FormatError> {
    todo!()
}
