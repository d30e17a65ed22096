//! Veneers that the linker of the input has made (AArch64): jumps to functions that calls do not reach.

use postlink_isa::Decode;
use postlink_isa::aarch64::AArch64;

use super::file::EM_AARCH64;
use super::program::Program;

/// Where the function that begins at `addr` leads, if it is nothing but a linker's veneer.
pub fn behind(program: &Program<'_>, addr: u64) -> Option<u64> {
    if program.elf.machine != EM_AARCH64 {
        return None;
    }
    let piece = program.piece_at(addr).filter(|p| p.start == addr)?;
    // The last word may be padding that the symbol's size includes.
    if piece.end - piece.start > 16 {
        return None;
    }
    AArch64::veneer_target(program.elf.bytes_at(addr, 12)?, addr)
}
