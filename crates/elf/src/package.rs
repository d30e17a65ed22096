//! A file of sections alone, without code, symbols or segments: packages of split debug information (`.dwp`).
//!
//! ```text
//! file header │ sections, each at its alignment │ names │ section headers
//! ```
//!
//! It is an object file for the program's machine, as other tools write such packages.

use crate::raw;

/// `e_type` of object files.
const ET_REL: u16 = 1;
const SHT_PROGBITS: u32 = 1;
const SHT_STRTAB: u32 = 3;
/// Linkers leave such sections out.
const SHF_EXCLUDE: u64 = 0x8000_0000;
/// Bytes of the file header.
const HEADER: usize = 64;
/// Bytes of a section header.
const SECTION: usize = 64;

/// Writes a file of these sections, for a machine (`e_machine`).
pub fn write<'s>(machine: u16, sections: impl Iterator<Item = (&'s str, &'s [u8])>) -> Vec<u8> {
    let mut out = vec![0; HEADER];
    let mut names = vec![0];
    let mut headers = vec![[0; SECTION]];
    let mut put = |out: &mut Vec<u8>, (name_at, kind, flags): (usize, u32, u64), bytes: &[u8]| {
        out.resize(out.len().next_multiple_of(8), 0);
        let mut header = Vec::with_capacity(SECTION);
        header.extend((name_at as u32).to_le_bytes());
        header.extend(kind.to_le_bytes());
        for n in [flags, 0, out.len() as u64, bytes.len() as u64, 0, 1, 0] {
            header.extend(n.to_le_bytes());
        }
        if let Ok(header) = header.try_into() {
            headers.push(header);
        }
        out.extend_from_slice(bytes);
    };
    for (name, bytes) in sections {
        let at = names.len();
        names.extend_from_slice(name.as_bytes());
        names.push(0);
        put(&mut out, (at, SHT_PROGBITS, SHF_EXCLUDE), bytes);
    }
    let at = names.len();
    names.extend_from_slice(b".shstrtab\0");
    put(&mut out, (at, SHT_STRTAB, 0), &names);
    out.resize(out.len().next_multiple_of(8), 0);
    let table = out.len() as u64;
    let count = headers.len() as u16; // a dozen
    out.extend(headers.concat());
    let header = raw::Ehdr {
        e_type: ET_REL,
        e_machine: machine,
        e_version: 1,
        e_entry: 0,
        e_phoff: 0,
        e_shoff: table,
        e_flags: 0,
        e_ehsize: HEADER as u16,
        e_phentsize: 0,
        e_phnum: 0,
        e_shentsize: SECTION as u16,
        e_shnum: count,
        e_shstrndx: count - 1,
    };
    // 64-bit, little-endian, version 1.
    let mut front = vec![0x7f, b'E', b'L', b'F', 2, 1, 1];
    front.resize(HEADER - header.bytes().len(), 0);
    front.extend(header.bytes());
    if let Some(place) = out.get_mut(..HEADER) {
        place.copy_from_slice(&front);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::Elf;

    #[test]
    fn sections_are_read_as_they_were_written() {
        let sections: [(&str, &[u8]); 3] = [
            (".debug_info.dwo", b"entries"),
            (".debug_str.dwo", b""),
            (".debug_cu_index", &[5; 9]),
        ];
        let file = write(raw::EM_X86_64, sections.iter().copied());
        let elf = Elf::parse_debug_file(&file).expect("it was just written");
        for (name, bytes) in sections {
            let (_, section) = elf.section(name).expect("it is there");
            assert_eq!(elf.section_data(section), bytes);
        }
        assert_eq!((elf.machine, elf.sections.len()), (raw::EM_X86_64, 5));
    }
}
