//! Windows programs: a PE file with DWARF, seen as an ELF file.
//!
//! Everything here asks an ELF file for the same few things: sections with code, their symbols, debug sections, and where code is loaded.
//! A PE file has them too. So it is rewritten, in memory, to a small ELF file with one segment from the image's base to the end of its code, its
//! code and debug sections, and its COFF symbols.
//!
//! | part of a PE file | content |
//! |---|---|
//! | 0x3c | u32 offset of the signature `PE\0\0` |
//! | behind it, 20 bytes | u16 machine, u16 number of sections, u32 time, u32 offset and u32 number of symbols, u16 size of the next part, u16 flags |
//! | optional header | u16 0x20b for 64 bits; the image's base is the u64 at 24 |
//! | a section, 40 bytes | name (8 bytes, or `/` and an offset into the strings), u32 length, u32 address, u32 length in the file, u32 offset in the file, 12 bytes, u32 flags |
//! | a symbol, 18 bytes | name (8 bytes, or u32 0 and u32 offset into the strings), u32 value, i16 section, u16 type, u8 class, u8 number of symbols to skip |
//! | strings, behind the symbols | u32 length with itself, then names |
//!
//! In the mappings that profilers on Windows write, the address is that of the image and the offset that of its first code: the segment says the same.

use postlink_image::raw;

use crate::FormatError;

/// Flag of a section: code.
const CODE: u32 = 0x20;
const AMD64: u16 = 0x8664;

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    raw::u16_at(bytes, at as u64)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    raw::u32_at(bytes, at as u64)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    raw::u64_at(bytes, at as u64)
}

struct Section<'d> {
    name: &'d [u8],
    address: u64,
    bytes: &'d [u8],
    code: bool,
}

/// Whether bytes look like a PE file.
pub fn recognise(bytes: &[u8]) -> bool {
    bytes.starts_with(b"MZ") && signature(bytes).is_some()
}

fn signature(bytes: &[u8]) -> Option<usize> {
    let at = u32_at(bytes, 0x3c)? as usize;
    bytes.get(at..)?.starts_with(b"PE\0\0").then_some(at)
}

fn until_zero(bytes: &[u8]) -> &[u8] {
    let len = bytes.iter().position(|&byte| byte == 0);
    &bytes[..len.unwrap_or(bytes.len())]
}

/// Rewrites a PE file as an ELF file.
///
/// # Errors
/// Headers cut short, another machine than x86-64, no code.
pub fn as_elf(bytes: &[u8]) -> Result<Vec<u8>, FormatError> {
    let bad = |what: &str| FormatError::new(format!("PE file: {what}"));
    let cut = || bad("its headers are cut short");
    let head = signature(bytes).ok_or_else(|| bad("there is no signature"))? + 4;
    let half = |at: usize| u16_at(bytes, at).ok_or_else(cut);
    let word = |at: usize| u32_at(bytes, at).ok_or_else(cut);
    let machine = half(head)?;
    if machine != AMD64 {
        return Err(bad(&format!(
            "machine is {machine:#x}, but only x86-64 ({AMD64:#x}) is supported"
        )));
    }
    let (symbols, symbol_count) = (word(head + 8)? as usize, word(head + 12)? as usize);
    let optional = head + 20;
    if half(optional)? != 0x20b {
        return Err(bad("it is not for 64 bits"));
    }
    let base = u64_at(bytes, optional + 24).ok_or_else(cut)?;
    let strings = symbol_count
        .checked_mul(18)
        .and_then(|len| bytes.get(symbols.checked_add(len)?..))
        .unwrap_or_default();
    let string = |at: usize| until_zero(strings.get(at..).unwrap_or_default());
    let mut sections = Vec::new();
    let table = optional + usize::from(half(head + 16)?);
    for number in 0..usize::from(half(head + 2)?) {
        let at = table + number * 40;
        let short = until_zero(bytes.get(at..at + 8).ok_or_else(cut)?);
        let long = short
            .strip_prefix(b"/")
            .and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
        let (len, in_file) = (word(at + 8)?, word(at + 16)?);
        let from = word(at + 20)? as usize;
        let contents = from
            .checked_add(len.min(in_file) as usize)
            .and_then(|end| bytes.get(from..end));
        sections.push(Section {
            name: long.map_or(short, string),
            address: u64::from(word(at + 12)?),
            bytes: contents.unwrap_or_default(),
            code: word(at + 36)? & CODE != 0,
        });
    }
    let mut out = Builder::new(base, &sections).ok_or_else(|| bad("there is no code in it"))?;
    let mut number = 0;
    while number < symbol_count {
        let Some(symbol) = symbols
            .checked_add(number.saturating_mul(18))
            .and_then(|at| bytes.get(at..at.checked_add(18)?))
        else {
            break;
        };
        number += 1 + usize::from(symbol[17]);
        let name = match u32_at(symbol, 0) {
            Some(0) => string(u32_at(symbol, 4).unwrap_or(0) as usize),
            _ => until_zero(&symbol[..8]),
        };
        let section = u16_at(symbol, 12).unwrap_or(0);
        // Classes: 2 external, 3 static.
        if matches!(symbol[16], 2 | 3)
            && let Some(place) = usize::from(section).checked_sub(1)
            && let Some(holder) = sections.get(place)
        {
            let value = u64::from(u32_at(symbol, 8).unwrap_or(0));
            let address = base.wrapping_add(holder.address).wrapping_add(value);
            let is_function = symbol[14] == 0x20;
            out.symbol(name, address, section, is_function);
        }
    }
    Ok(out.finish(&sections))
}

/// The ELF file being made.
struct Builder {
    base: u64,
    /// Offset in the file of the image's base.
    start: u64,
    /// End of the code, from the base.
    end: u64,
    symbols: Vec<u8>,
    strings: Vec<u8>,
}

impl Builder {
    fn new(base: u64, sections: &[Section<'_>]) -> Option<Builder> {
        let code = || sections.iter().filter(|section| section.code);
        let start = code().map(|section| section.address & !0xfff).min()?;
        let end = code()
            .map(|section| section.address.saturating_add(section.bytes.len() as u64))
            .max()?;
        // Offsets are addresses here: a hostile file could name any.
        (start >= 0x1000 && end < 1 << 30 && base & 0xfff == 0 && base.checked_add(end).is_some())
            .then(|| Builder {
                base,
                start,
                end,
                symbols: vec![0; 24],
                strings: vec![0],
            })
    }

    fn symbol(&mut self, name: &[u8], address: u64, section: u16, is_function: bool) {
        let at = self.strings.len() as u32;
        self.strings.extend_from_slice(name);
        self.strings.push(0);
        self.symbols.extend(at.to_le_bytes());
        self.symbols.push(0x10 | if is_function { 2 } else { 0 });
        self.symbols.push(0);
        self.symbols.extend(section.to_le_bytes());
        self.symbols.extend(address.to_le_bytes());
        self.symbols.extend([0; 8]);
    }

    fn finish(self, sections: &[Section<'_>]) -> Vec<u8> {
        let mut out = vec![0; (self.start + self.end) as usize];
        // Name, kind, flags, address, offset, length, link, entry size.
        let mut headers: Vec<[u64; 8]> = vec![[0; 8]];
        let mut names = vec![0];
        let mut named = |name: &[u8]| {
            let at = names.len() as u64;
            names.extend(name.iter().map(|byte| match byte.is_ascii() {
                true => *byte,
                false => b'?',
            }));
            names.push(0);
            at
        };
        for section in sections {
            let name = named(section.name);
            let len = section.bytes.len() as u64;
            if section.code {
                let at = self.start + section.address;
                if let Some(place) = out.get_mut(at as usize..(at + len) as usize) {
                    place.copy_from_slice(section.bytes);
                }
                let address = self.base + section.address;
                headers.push([name, 1, 6, address, at, len, 0, 0]);
            } else if section.name.starts_with(b".debug_") {
                headers.push([name, 1, 0, 0, out.len() as u64, len, 0, 0]);
                out.extend_from_slice(section.bytes);
            } else {
                // Keeps the numbers of the sections.
                headers.push([name, 1, 0, 0, 0, 0, 0, 0]);
            }
        }
        let strings = headers.len() as u64 + 1;
        for (name, kind, bytes, link, size) in [
            (&b".symtab"[..], 2, &self.symbols, strings, 24),
            (b".strtab", 3, &self.strings, 0, 0),
        ] {
            out.resize(out.len().next_multiple_of(8), 0);
            let len = bytes.len() as u64;
            headers.push([named(name), kind, 0, 0, out.len() as u64, len, link, size]);
            out.extend_from_slice(bytes);
        }
        let name = named(b".shstrtab");
        headers.push([name, 3, 0, 0, out.len() as u64, names.len() as u64, 0, 0]);
        out.extend_from_slice(&names);
        out.resize(out.len().next_multiple_of(8), 0);
        let table = out.len() as u64;
        for [name, kind, flags, address, at, len, link, size] in &headers {
            out.extend((*name as u32).to_le_bytes());
            out.extend((*kind as u32).to_le_bytes());
            for word in [flags, address, at, len] {
                out.extend(word.to_le_bytes());
            }
            out.extend((*link as u32).to_le_bytes());
            out.extend(u32::from(*kind == 2).to_le_bytes());
            out.extend(1u64.to_le_bytes());
            out.extend(size.to_le_bytes());
        }
        let mut head = Vec::new();
        head.extend(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
        for half in [2u16, 62] {
            head.extend(half.to_le_bytes());
        }
        head.extend(1u32.to_le_bytes());
        for word in [self.base, 64, table] {
            head.extend(word.to_le_bytes());
        }
        head.extend(0u32.to_le_bytes());
        let count = headers.len() as u16;
        for half in [64, 56, 1, 64, count, count - 1] {
            head.extend(half.to_le_bytes());
        }
        // One segment, readable and executable.
        head.extend(1u32.to_le_bytes());
        head.extend(5u32.to_le_bytes());
        for word in [self.start, self.base, self.base, self.end, self.end, 0x1000] {
            head.extend(word.to_le_bytes());
        }
        out[..head.len()].copy_from_slice(&head);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postlink_image::elf::{Elf, SymbolTable};

    /// A PE file with one section of code, one of debug information, and two symbols.
    fn small() -> Vec<u8> {
        let mut out = vec![0; 0x400];
        out[..2].copy_from_slice(b"MZ");
        out[0x3c] = 0x80;
        out[0x80..0x84].copy_from_slice(b"PE\0\0");
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(0x84, &AMD64.to_le_bytes());
        put(0x86, &[2, 0]);
        put(0x8c, &0x300u32.to_le_bytes());
        put(0x90, &[2]);
        put(0x94, &[112, 0]);
        put(0x98, &[0x0b, 0x02]);
        put(0x98 + 24, &0x1_4000_0000u64.to_le_bytes());
        let table = 0x98 + 112;
        for (at, name, address, flags) in [
            (table, &b".text"[..], 0x1000u32, CODE),
            (table + 40, b"/4", 0x2000, 0),
        ] {
            put(at, name);
            put(at + 8, &8u32.to_le_bytes());
            put(at + 12, &address.to_le_bytes());
            put(at + 16, &8u32.to_le_bytes());
            put(at + 20, &0x200u32.to_le_bytes());
            put(at + 36, &flags.to_le_bytes());
        }
        put(0x200, &[0x90, 0x90, 0x90, 0x90, 0xc3, 0xcc, 0xcc, 0xcc]);
        put(0x300, b"main");
        put(0x30c, &[1, 0, 0x20, 0, 2, 0]);
        put(0x312, b"tail");
        put(0x31a, &[4]);
        put(0x31e, &[1, 0, 0, 0, 3, 0]);
        put(0x324, &16u32.to_le_bytes());
        put(0x328, b".debug_info\0");
        out
    }

    #[test]
    fn sections_and_symbols_are_those_of_the_pe_file() {
        let bytes = small();
        assert!(recognise(&bytes));
        let elf_bytes = as_elf(&bytes).unwrap();
        let elf = Elf::parse(&elf_bytes).unwrap();
        let (_, text) = elf.section(".text").unwrap();
        assert_eq!((text.addr, text.size), (0x1_4000_1000, 8));
        assert_eq!(elf.section_data(text)[4], 0xc3);
        assert!(elf.section(".debug_info").is_some());
        let load = elf.loads().next().unwrap();
        assert_eq!((load.addr, load.offset), (0x1_4000_0000, 0x1000));
        let symbols: Vec<_> = elf
            .symbols(SymbolTable::Static)
            .iter()
            .map(|symbol| (symbol.name, symbol.value, symbol.section))
            .collect();
        assert!(
            symbols.contains(&(b"main", 0x1_4000_1000, 1)),
            "{symbols:?}"
        );
        assert!(
            symbols.contains(&(b"tail", 0x1_4000_1004, 1)),
            "{symbols:?}"
        );
    }

    #[test]
    fn damaged_files_are_refused_or_rewritten() {
        let bytes = small();
        for at in 0..bytes.len() {
            for change in [1, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[at] ^= change;
                if let Ok(elf) = as_elf(&changed) {
                    let _ = Elf::parse(&elf);
                }
            }
            let _ = as_elf(&bytes[..at]);
        }
    }
}
