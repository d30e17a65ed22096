//! Names of functions from outside of a stripped file, for people alone.
//!
//! Distributions strip their files. The names are elsewhere, in one of two forms:
//!
//! | form | what it is |
//! |---|---|
//! | debug file | an ELF file with `.symtab` and debug information, found by build-id or by `.gnu_debuglink` |
//! | `.gnu_debugdata` | a section of the file: an ELF file in xz (LZMA2) whose `.symtab` lists what `.dynsym` does not ("MiniDebugInfo") |
//!
//! Addresses are those of the file in both. Nothing that is written or proved rests on these names: a file that is
//! found by its name may be an old one, and one and the same input must give the same output wherever it is rewritten.

use std::io::Read;

use lzma_rust2::XzReader;

use crate::elf::{Elf, SymbolTable};
use crate::raw;
use crate::{ErrorKind, FormatError};

/// Most bytes that `.gnu_debugdata` may have when unpacked, and most memory that unpacking may take.
const LARGEST: u64 = 64 << 20;

/// Names of functions, by their address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// Ascending, one name an address.
    of: Vec<(u64, Vec<u8>)>,
}

impl Names {
    /// Names of the functions that `.symtab` of a file defines. Of several at one address one with a size is taken,
    /// then a global one, then the first.
    pub fn of(elf: &Elf<'_>) -> Names {
        let table = elf.symbols(SymbolTable::Static);
        let functions = table.iter().filter(|symbol| {
            let kind = symbol.kind == raw::STT_FUNC || symbol.kind == raw::STT_GNU_IFUNC;
            kind && symbol.section != 0 && !symbol.name.is_empty()
        });
        let mut all: Vec<_> = functions
            .enumerate()
            .map(|(i, s)| (s.value, (s.size == 0, s.binding == 0, i), s.name.to_vec()))
            .collect();
        all.sort_unstable();
        all.dedup_by_key(|(address, ..)| *address);
        let of = all.into_iter().map(|(address, _, name)| (address, name));
        Names { of: of.collect() }
    }

    /// The name of the function that begins at an address.
    pub fn at(&self, address: u64) -> Option<&[u8]> {
        let found = self.of.binary_search_by_key(&address, |(at, _)| *at);
        found
            .ok()
            .and_then(|i| self.of.get(i))
            .map(|(_, name)| name.as_slice())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.of.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.of.is_empty()
    }
}

/// The ELF file in `.gnu_debugdata`; `None` if there is no such section.
pub fn unpack_debugdata(elf: &Elf<'_>) -> Result<Option<Vec<u8>>, FormatError> {
    let Some((_, section)) = elf.section(".gnu_debugdata") else {
        return Ok(None);
    };
    let packed = elf.section_data(section);
    let mut bytes = Vec::new();
    let limit = (LARGEST / 1024) as u32; // far below 4 TiB
    let mut reader = XzReader::new_mem_limit(packed, true, limit).take(LARGEST + 1);
    if let Err(error) = reader.read_to_end(&mut bytes) {
        return Err(FormatError::new(format!(
            ".gnu_debugdata at {:#x} of the file, {} bytes, cannot be unpacked as xz: {error}",
            section.offset,
            packed.len()
        ))
        .at_offset(section.offset)
        .values(error.to_string(), "contents packed with xz"));
    }
    if bytes.len() as u64 > LARGEST {
        return Err(FormatError::new(format!(
            ".gnu_debugdata at {:#x} of the file has {} bytes and more than {LARGEST} when unpacked; names of that size are not read",
            section.offset,
            packed.len()
        ))
        .of(ErrorKind::TooLarge)
        .at_offset(section.offset)
        .values(bytes.len(), LARGEST));
    }
    Ok(Some(bytes))
}

/// A build-id as messages show it: in hexadecimal, or `none`.
pub fn build_id_text(id: &[u8]) -> String {
    match id {
        [] => "none".to_owned(),
        _ => crate::hex(id),
    }
}

/// Whether a debug file is of this program: the same build-id if the program has one, and each of its sections with
/// instructions at the same address with the same size. The error says what differs.
pub fn check_debug_file(debug: &Elf<'_>, program: &Elf<'_>) -> Result<(), FormatError> {
    let id = |elf: &Elf<'_>| build_id_text(elf.build_id.unwrap_or_default());
    if program.build_id.is_some() && debug.build_id != program.build_id {
        return Err(FormatError::new(format!(
            "is of another file: its build-id is {}, the program's {}",
            id(debug),
            id(program)
        ))
        .of(ErrorKind::Mismatch)
        .values(id(debug), id(program)));
    }
    if debug.machine != program.machine {
        return Err(FormatError::new(format!(
            "is for machine {}, the program for {}",
            debug.machine, program.machine
        ))
        .of(ErrorKind::Mismatch)
        .values(debug.machine, program.machine));
    }
    for section in &debug.sections {
        if section.flags & raw::SHF_EXECINSTR == 0 {
            continue;
        }
        let alike = program.section(section.name).map(|(_, s)| (s.addr, s.size));
        if alike != Some((section.addr, section.size)) {
            let of_program = alike.map_or("none".to_owned(), |(addr, size)| {
                format!("{size:#x} bytes at {addr:#x}")
            });
            return Err(FormatError::new(format!(
                "is of another file: its section {} has {:#x} bytes at {:#x}, the program's {of_program}",
                section.name, section.size, section.addr
            ))
            .of(ErrorKind::Mismatch)
            .at_address(section.addr)
            .values(section.size, of_program.clone()));
        }
    }
    Ok(())
}
