//! Windows programs: a PE file with DWARF, seen as an ELF file.
//!
//! Everything here asks an ELF file for the same few things: sections with code, their symbols, debug
//! sections, and where code is loaded. A PE file has them too. So it is rewritten, in memory, to a small ELF
//! file with one segment from the image's base to the end of its code, its code and debug sections, and its
//! COFF symbols.
//!
//! Headers and tables are read by the crate `object`. No more memory is taken than the file has bytes, and
//! what the first address of code costs (a program has its code in front): the segment of the ELF file is one
//! that is in memory alone.
//!
//! In the mappings that profilers on Windows write, the address is that of the image and the offset that of
//! its first code: the segment says the same.

use object::LittleEndian as LE;
use object::pe::{
    IMAGE_FILE_MACHINE_AMD64, IMAGE_NT_OPTIONAL_HDR64_MAGIC, IMAGE_SCN_CNT_CODE,
    IMAGE_SYM_CLASS_EXTERNAL, IMAGE_SYM_CLASS_STATIC, IMAGE_SYM_DTYPE_FUNCTION, ImageDosHeader,
    ImageNtHeaders64,
};
use object::read::coff::Symbol as _;
use object::read::pe::{ImageNtHeaders as _, ImageOptionalHeader as _, optional_header_magic};

use crate::{ErrorKind, FormatError};

/// Offsets in the ELF file are zeros up to where the segment begins. Code that begins so far after the end of
/// the PE file is not believed.
const MOST_IN_FRONT: u64 = 64 << 20;

struct Section<'d> {
    name: &'d [u8],
    address: u64,
    bytes: &'d [u8],
    code: bool,
}

/// Whether bytes look like a PE file.
pub fn recognise(bytes: &[u8]) -> bool {
    ImageDosHeader::parse(bytes).is_ok_and(|head| {
        let rest = bytes.get(head.nt_headers_offset() as usize..);
        rest.is_some_and(|rest| rest.starts_with(b"PE\0\0"))
    })
}

/// Rewrites a PE file as an ELF file.
///
/// # Errors
/// Headers or tables that are damaged, another machine than x86-64, no code.
pub fn as_elf(bytes: &[u8]) -> Result<Vec<u8>, FormatError> {
    let bad = |what: String| FormatError::new(format!("PE file: {what}"));
    let damaged = |part: &str| {
        let part = part.to_owned();
        move |error: object::read::Error| bad(format!("{part}: {error}"))
    };
    let dos = ImageDosHeader::parse(bytes).map_err(damaged("header"))?;
    if optional_header_magic(bytes).map_err(damaged("header"))? != IMAGE_NT_OPTIONAL_HDR64_MAGIC {
        return Err(bad("it is not for 64 bits".to_owned()).of(ErrorKind::Unsupported));
    }
    let mut offset = u64::from(dos.nt_headers_offset());
    let (head, _) = ImageNtHeaders64::parse(bytes, &mut offset).map_err(damaged("header"))?;
    let machine = head.file_header().machine.get(LE);
    if machine != IMAGE_FILE_MACHINE_AMD64 {
        return Err(bad(format!(
            "machine is {:#x}, but only x86-64 ({:#x}) is supported",
            machine.0, IMAGE_FILE_MACHINE_AMD64.0
        ))
        .of(ErrorKind::Unsupported)
        .values(machine.0, IMAGE_FILE_MACHINE_AMD64.0));
    }
    let base = head.optional_header().image_base();
    let table = head
        .sections(bytes, offset)
        .map_err(damaged("table of sections"))?;
    let symbols = head.symbols(bytes).map_err(damaged("symbols"))?;
    let sections: Vec<Section<'_>> = table
        .iter()
        .map(|section| Section {
            name: section
                .name(symbols.strings())
                .unwrap_or(section.raw_name()),
            address: u64::from(section.virtual_address.get(LE)),
            // What the file does not have is not there.
            bytes: section.pe_data(bytes).unwrap_or_default(),
            code: section.characteristics.get(LE).0 & IMAGE_SCN_CNT_CODE.0 != 0,
        })
        .collect();
    let mut out = Builder::new(base, &sections, bytes.len() as u64).map_err(bad)?;
    for (_, symbol) in symbols.iter() {
        let class = symbol.storage_class();
        if class != IMAGE_SYM_CLASS_EXTERNAL && class != IMAGE_SYM_CLASS_STATIC {
            continue;
        }
        let Some(section) = symbol.section() else {
            continue;
        };
        if let Some(holder) = section.0.checked_sub(1).and_then(|at| sections.get(at))
            && let Ok(number) = u16::try_from(section.0)
        {
            let address = base
                .wrapping_add(holder.address)
                .wrapping_add(u64::from(symbol.value()));
            let name = symbol
                .name(symbols.strings())
                .map_err(damaged("name of a symbol"))?;
            let is_function = symbol.derived_type() == IMAGE_SYM_DTYPE_FUNCTION;
            out.symbol(name, address, number, is_function);
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
    fn new(base: u64, sections: &[Section<'_>], file: u64) -> Result<Builder, String> {
        let code = || sections.iter().filter(|section| section.code);
        let start = code().map(|section| section.address & !0xfff).min();
        let end = code()
            .map(|section| section.address.saturating_add(section.bytes.len() as u64))
            .max();
        let (Some(start), Some(end)) = (start, end) else {
            return Err("there is no code in it".to_owned());
        };
        if start < 0x1000 || start.saturating_sub(file) > MOST_IN_FRONT {
            return Err(format!(
                "its code begins {start:#x} bytes after the image's base, and the file has {file:#x} bytes"
            ));
        }
        if base & 0xfff != 0 || base.checked_add(end).is_none() {
            return Err(format!(
                "the image's base is {base:#x}, and its code ends {end:#x} bytes after it"
            ));
        }
        Ok(Builder {
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
        let mut out = vec![0; self.start as usize];
        // Name, kind, flags, address, offset, length, link, entry size.
        let mut headers: Vec<[u64; 8]> = vec![[0; 8]];
        let mut names = vec![0];
        let mut named = |name: &[u8]| {
            let at = names.len() as u64;
            names.extend(
                name.iter()
                    .map(|byte| if byte.is_ascii() { *byte } else { b'?' }),
            );
            names.push(0);
            at
        };
        for section in sections {
            let name = named(section.name);
            let len = section.bytes.len() as u64;
            if section.code {
                let address = self.base + section.address;
                headers.push([name, 1, 6, address, out.len() as u64, len, 0, 0]);
                out.extend_from_slice(section.bytes);
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
        // One segment, readable and executable; none of it in the file.
        head.extend(1u32.to_le_bytes());
        head.extend(5u32.to_le_bytes());
        for word in [self.start, self.base, self.base, 0, self.end, 0x1000] {
            head.extend(word.to_le_bytes());
        }
        for (to, from) in out.iter_mut().zip(head) {
            *to = from;
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postlink_elf::elf::{Elf, SymbolTable};

    /// A PE file with one section of code, one of debug information, and two symbols.
    fn small() -> Vec<u8> {
        let mut out = vec![0; 0x400];
        out[..2].copy_from_slice(b"MZ");
        out[0x3c] = 0x80;
        out[0x80..0x84].copy_from_slice(b"PE\0\0");
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(0x84, &IMAGE_FILE_MACHINE_AMD64.0.to_le_bytes());
        put(0x86, &[2, 0]);
        put(0x8c, &0x300u32.to_le_bytes());
        put(0x90, &[2]);
        put(0x94, &[112, 0]);
        put(0x98, &[0x0b, 0x02]);
        put(0x98 + 24, &0x1_4000_0000u64.to_le_bytes());
        let table = 0x98 + 112;
        for (at, name, address, flags) in [
            (table, &b".text"[..], 0x1000u32, IMAGE_SCN_CNT_CODE.0),
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
    fn a_header_that_claims_gigabytes_of_code_costs_no_memory() {
        let mut bytes = small();
        let table = 0x98 + 112;
        // Where the code is in memory, and a second section of code far after it.
        bytes[table + 40..table + 45].copy_from_slice(b".far\0");
        bytes[table + 52..table + 56].copy_from_slice(&0x3000_0000u32.to_le_bytes());
        bytes[table + 76..table + 80].copy_from_slice(&IMAGE_SCN_CNT_CODE.0.to_le_bytes());
        let elf_bytes = as_elf(&bytes).unwrap();
        assert!(elf_bytes.len() < 0x3000, "{}", elf_bytes.len());
        let elf = Elf::parse(&elf_bytes).unwrap();
        let (_, far) = elf.section(".far").unwrap();
        assert_eq!((far.addr, elf.section_data(far)[4]), (0x1_7000_0000, 0xc3));
        // The only code, and far after what the file has.
        bytes[table + 12..table + 16].copy_from_slice(&0x3000_0000u32.to_le_bytes());
        let error = as_elf(&bytes).unwrap_err().what;
        assert_eq!(
            error,
            "PE file: its code begins 0x30000000 bytes after the image's base, and the file has 0x400 bytes"
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
