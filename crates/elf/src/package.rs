//! A file of sections alone, without code, symbols or segments: packages of split debug information (`.dwp`).
//!
//! ```text
//! file header │ sections, each at its alignment │ names │ section headers
//! ```
//!
//! It is an object file for the program's machine, as other tools write such packages.

use std::io::{self, Write};

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

/// Writes a file of sections with these names and lengths, for a machine (`e_machine`). `contents` writes the section
/// of a number. Returns the file's length.
///
/// # Errors
///
/// Those of `out`, and a section that does not have the length that it was said to have.
pub fn write(
    machine: u16,
    sections: &[(&str, u64)],
    mut contents: impl FnMut(usize, &mut dyn Write) -> io::Result<()>,
    out: &mut dyn Write,
) -> io::Result<u64> {
    let mut names = vec![0];
    let mut headers = vec![[0; SECTION]];
    let mut end = HEADER as u64;
    let mut header = |name: &str, kind: u32, flags: u64, len: Option<u64>| -> u64 {
        let name_at = names.len() as u32;
        names.extend_from_slice(name.as_bytes());
        names.push(0);
        let (start, len) = (end.next_multiple_of(8), len.unwrap_or(names.len() as u64));
        end = start + len;
        let mut bytes = Vec::with_capacity(SECTION);
        bytes.extend(name_at.to_le_bytes());
        bytes.extend(kind.to_le_bytes());
        for n in [flags, 0, start, len, 0, 1, 0] {
            bytes.extend(n.to_le_bytes());
        }
        if let Ok(bytes) = bytes.try_into() {
            headers.push(bytes);
        }
        start
    };
    let starts: Vec<u64> = sections
        .iter()
        .map(|(name, len)| header(name, SHT_PROGBITS, SHF_EXCLUDE, Some(*len)))
        .collect();
    let names_at = header(".shstrtab", SHT_STRTAB, 0, None);
    let table = end.next_multiple_of(8);
    let count = headers.len() as u16; // a dozen
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
    let mut out = Counted { out, bytes: 0 };
    out.write_all(&front)?;
    for (i, ((name, len), start)) in sections.iter().zip(starts).enumerate() {
        out.fill_up_to(start)?;
        contents(i, &mut out)?;
        let written = out.bytes - start;
        if written != *len {
            let what = format!("{name}: {written} bytes were written of {len}");
            return Err(io::Error::other(what));
        }
    }
    out.fill_up_to(names_at)?;
    out.write_all(&names)?;
    out.fill_up_to(table)?;
    out.write_all(&headers.concat())?;
    Ok(out.bytes)
}

/// What is written, with its length so far.
struct Counted<'o> {
    out: &'o mut dyn Write,
    bytes: u64,
}

impl Counted<'_> {
    /// Writes zeros up to an offset, at most seven.
    fn fill_up_to(&mut self, offset: u64) -> io::Result<()> {
        let padding = [0; 7];
        let len = offset.saturating_sub(self.bytes) as usize;
        self.write_all(padding.get(..len).unwrap_or(&padding))
    }
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
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
        let lengths = sections.map(|(name, bytes)| (name, bytes.len() as u64));
        let mut file = Vec::new();
        let contents = |i: usize, out: &mut dyn Write| out.write_all(sections[i].1);
        let len = write(raw::EM_X86_64, &lengths, contents, &mut file).expect("there is room");
        assert_eq!(len, file.len() as u64);
        let elf = Elf::parse_debug_file(&file).expect("it was just written");
        for (name, bytes) in sections {
            let (_, section) = elf.section(name).expect("it is there");
            assert_eq!(elf.section_data(section), bytes);
        }
        assert_eq!((elf.machine, elf.sections.len()), (raw::EM_X86_64, 5));
    }
    #[test]
    fn a_section_of_another_length_than_was_said_is_an_error() {
        let contents = |_: usize, out: &mut dyn Write| out.write_all(b"six by");
        let written = write(raw::EM_X86_64, &[(".a", 7)], contents, &mut Vec::new());
        let what = written.map_err(|e| e.to_string());
        assert_eq!(what, Err(".a: 6 bytes were written of 7".to_owned()));
    }
}
