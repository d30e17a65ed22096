//! What several tests share.
#![allow(dead_code)] // Each test crate uses a part of it.

use std::path::Path;

/// The executable sections of a 64-bit little-endian ELF file, as (link-time address, bytes).
pub fn text_of(path: &Path) -> Option<Vec<(u64, Vec<u8>)>> {
    let file = std::fs::read(path).ok()?;
    if file.get(..6)? != b"\x7fELF\x02\x01" || file.get(18..20)? != [62, 0] {
        return None;
    }
    let word = |at: usize| Some(u64::from_le_bytes(*file.get(at..)?.first_chunk()?));
    let table = word(0x28)? as usize;
    let count = usize::from(u16::from_le_bytes(*file.get(0x3c..)?.first_chunk()?));
    let mut text = Vec::new();
    for section in 0..count {
        let at = table + section * 64;
        let (kind, flags) = (word(at)? >> 32, word(at + 8)?);
        if kind == 1 && flags & 4 != 0 {
            let (addr, offset, size) = (
                word(at + 16)?,
                word(at + 24)? as usize,
                word(at + 32)? as usize,
            );
            text.push((addr, file.get(offset..offset + size)?.to_vec()));
        }
    }
    Some(text)
}

/// Bytes from hexadecimal text; blanks are ignored.
pub fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .bytes()
        .filter(|byte| !byte.is_ascii_whitespace())
        .collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

pub mod machine;
pub mod program;
