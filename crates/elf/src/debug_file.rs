//! Debug information in a file of its own, for a program that was rewritten.
//!
//! `objcopy --only-keep-debug` splits such a file off a program: it has all of the program's sections, those
//! that are loaded without contents, and what is not loaded. Debuggers find it by the program's build-id and
//! take its addresses for the program's. So the file of a rewritten program is made of two:
//!
//! | part | from |
//! |---|---|
//! | file header, program headers, loaded sections | the rewritten program; notes with contents, all else without |
//! | sections that are not loaded | the debug file of the input, with those that changed replaced |
//! | symbols | the debug file's, those of moved code with their new values, and new ones |
//!
//! Relocations that the linker kept are left out: they say where code was.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, Write};

use crate::elf::{Elf, Section};
use crate::raw::{self, Ehdr, Phdr, Shdr, Sym};
use crate::{ErrorKind, FormatError};

/// Contents of a section of the new file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    /// Index of the section in the input's debug file; `None` if it has none like it.
    pub index: Option<usize>,
    /// Name.
    pub name: String,
    /// The bytes as they are in the file.
    pub bytes: Vec<u8>,
    /// Whether they are compressed (`SHF_COMPRESSED`).
    pub compressed: bool,
    /// `sh_addralign`
    pub align: u64,
}

/// New value and size of a symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MovedSymbol {
    /// `st_value`
    pub value: u64,
    /// `st_size`
    pub size: u64,
}

/// A local function symbol to be added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddedSymbol {
    /// Index of the symbol of the debug file that it belongs to.
    pub after: u32,
    /// Name.
    pub name: Vec<u8>,
    /// `st_value`
    pub value: u64,
    /// `st_size`
    pub size: u64,
}

/// What the new file is made of.
#[derive(Debug)]
pub struct Parts<'p, 'd> {
    /// The rewritten program.
    pub program: &'p Elf<'d>,
    /// The debug file of the input ([`Elf::parse_debug_file`]).
    pub debug: &'p Elf<'d>,
    /// Sections that changed.
    pub changed: Vec<Contents>,
    /// Symbols that moved, by their index in the debug file.
    pub moved: BTreeMap<u32, MovedSymbol>,
    /// New symbols.
    pub added: Vec<AddedSymbol>,
}

/// The new file, ready to be written.
#[derive(Debug)]
pub struct DebugFile<'d> {
    /// Offset and bytes, ascending.
    pieces: Vec<(u64, Cow<'d, [u8]>)>,
    end: u64,
}

impl<'d> DebugFile<'d> {
    /// Puts the file together.
    pub fn new(parts: Parts<'_, 'd>) -> Result<Self, FormatError> {
        Assembly::new(parts)?.finish()
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.end
    }

    /// Writes it.
    pub fn write_to(&self, out: &mut impl Write) -> io::Result<()> {
        let mut at = 0;
        for (offset, bytes) in &self.pieces {
            io::copy(&mut io::Read::take(io::repeat(0), offset - at), out)?;
            out.write_all(bytes)?;
            at = offset + bytes.len() as u64;
        }
        Ok(())
    }

    /// Puts bytes at the end, or at the next multiple of the alignment. Gives their offset.
    fn put(&mut self, align: u64, bytes: Cow<'d, [u8]>) -> u64 {
        let align = if align.is_power_of_two() && align <= 4096 {
            align
        } else {
            1
        };
        let at = self.end.next_multiple_of(align);
        self.end = at + bytes.len() as u64;
        self.pieces.push((at, bytes));
        at
    }
}

/// The file being put together.
struct Assembly<'p, 'd> {
    parts: Parts<'p, 'd>,
    file: DebugFile<'d>,
    headers: Vec<Shdr>,
    names: Vec<u8>,
    /// Indexes in the new file, by those in the program and in the debug file.
    of_program: BTreeMap<usize, u32>,
    of_debug: BTreeMap<usize, u32>,
}

/// Whether a section of the debug file has a place in the new one.
fn is_kept(section: &Section<'_>) -> bool {
    let made = [
        raw::SHT_NULL,
        raw::SHT_RELA,
        raw::SHT_REL,
        raw::SHT_CREL,
        raw::SHT_GROUP,
    ];
    !section.is_alloc() && !made.contains(&section.kind)
}

impl<'p, 'd> Assembly<'p, 'd> {
    /// Gives every section its index.
    fn new(parts: Parts<'p, 'd>) -> Result<Self, FormatError> {
        let (mut of_program, mut of_debug) = (BTreeMap::new(), BTreeMap::new());
        let mut count = 1;
        let mut next = |_| {
            count += 1;
            count - 1
        };
        let all = |elf: &Elf<'_>| 0..elf.sections.len();
        let loaded = all(parts.program).filter(|i| parts.program.sections[*i].is_alloc());
        of_program.extend(loaded.map(|i| (i, next(i))));
        let kept = all(parts.debug).filter(|i| is_kept(&parts.debug.sections[*i]));
        of_debug.extend(kept.map(|i| (i, next(i))));
        let total = count as usize + parts.changed.len();
        if total >= raw::SHN_LORESERVE as usize {
            return Err(FormatError::new(format!(
                "the file would have {total} sections; {} are possible",
                raw::SHN_LORESERVE - 1
            ))
            .of(ErrorKind::TooLarge)
            .values(total, raw::SHN_LORESERVE - 1));
        }
        Ok(Assembly {
            parts,
            file: DebugFile {
                pieces: Vec::new(),
                end: 0,
            },
            headers: vec![Shdr::default()],
            names: vec![0],
            of_program,
            of_debug,
        })
    }

    fn finish(mut self) -> Result<DebugFile<'d>, FormatError> {
        let segments = self.parts.program.segments.len() as u64;
        self.file.end = raw::EHDR + segments * raw::PHDR;
        self.loaded();
        let names_index = self.not_loaded()?;
        let name = self.headers[names_index].sh_name;
        let names = std::mem::take(&mut self.names);
        self.headers[names_index] = Shdr {
            sh_name: name,
            sh_type: raw::SHT_STRTAB,
            sh_size: names.len() as u64,
            sh_offset: self.file.put(1, Cow::Owned(names)),
            sh_addralign: 1,
            ..Shdr::default()
        };
        let headers: Vec<u8> = self.headers.iter().flat_map(Shdr::bytes).collect();
        let sections_at = self.file.put(8, Cow::Owned(headers));
        let front = self.front(sections_at, names_index)?;
        self.file.pieces.insert(0, (0, Cow::Owned(front)));
        Ok(self.file)
    }

    fn name(&mut self, name: &str) -> u32 {
        let at = self.names.len() as u32; // names of less than 65280 sections
        self.names.extend(name.bytes().filter(|b| *b != 0));
        self.names.push(0);
        at
    }

    /// The program's loaded sections. Notes have their contents: the build-id is one.
    fn loaded(&mut self) {
        let program = self.parts.program;
        let indexes: Vec<usize> = self.of_program.keys().copied().collect();
        for index in indexes {
            let s = &program.sections[index];
            let is_note = s.kind == raw::SHT_NOTE;
            let offset = if is_note {
                self.file
                    .put(s.align, Cow::Borrowed(program.section_data(s)))
            } else {
                self.file.end
            };
            let of = |link: u32| self.of_program.get(&(link as usize)).copied().unwrap_or(0);
            let sh_link = of(s.link);
            let sh_info = if s.flags & raw::SHF_INFO_LINK != 0 {
                of(s.info)
            } else {
                s.info
            };
            let header = Shdr {
                sh_name: self.name(s.name),
                sh_type: if is_note { s.kind } else { raw::SHT_NOBITS },
                sh_flags: s.flags,
                sh_addr: s.addr,
                sh_offset: offset,
                sh_size: s.size,
                sh_link,
                sh_info,
                sh_addralign: s.align,
                sh_entsize: s.entry_size,
            };
            self.headers.push(header);
        }
    }

    /// What is not loaded. Gives the index of the section with sections' names, whose contents come last.
    fn not_loaded(&mut self) -> Result<usize, FormatError> {
        let debug = self.parts.debug;
        let symtab = debug.section_of_kind(raw::SHT_SYMTAB);
        let symtab = symtab.filter(|(_, s)| !s.is_alloc()).map(|(i, _)| i);
        let symbols = match symtab {
            Some(index) => Some(self.symbols(index)?),
            None => None,
        };
        let strings = symtab.map(|i| debug.sections[i].link as usize);
        let mut changed: BTreeMap<usize, Contents> = BTreeMap::new();
        let mut new = Vec::new();
        for contents in std::mem::take(&mut self.parts.changed) {
            match contents.index {
                Some(index) => drop(changed.insert(index, contents)),
                None => new.push(contents),
            }
        }
        let mut names_index = None;
        for index in self.of_debug.keys().copied().collect::<Vec<_>>() {
            let s = &debug.sections[index];
            let with = changed.remove(&index);
            let name = with.as_ref().map_or(s.name, |with| &with.name).to_owned();
            let mut header = Shdr {
                sh_name: self.name(&name),
                sh_type: s.kind,
                sh_flags: s.flags,
                sh_addr: 0,
                sh_offset: self.file.end,
                sh_size: s.size,
                sh_link: self.of_debug.get(&(s.link as usize)).copied().unwrap_or(0),
                sh_info: s.info,
                sh_addralign: s.align,
                sh_entsize: s.entry_size,
            };
            let data: Cow<'d, [u8]> = match (with, &symbols) {
                (Some(with), _) => {
                    header.sh_flags &= !raw::SHF_COMPRESSED;
                    if with.compressed {
                        header.sh_flags |= raw::SHF_COMPRESSED;
                    }
                    header.sh_addralign = with.align;
                    Cow::Owned(with.bytes)
                }
                (None, Some(symbols)) if symtab == Some(index) => {
                    header.sh_info = symbols.locals;
                    Cow::Owned(symbols.table.clone())
                }
                (None, Some(symbols)) if strings == Some(index) => {
                    Cow::Owned(symbols.names.clone())
                }
                _ => Cow::Borrowed(debug.section_data(s)),
            };
            if index == debug.names_index as usize && strings != Some(index) {
                names_index = Some(self.headers.len());
            } else if s.has_contents() {
                header.sh_size = data.len() as u64;
                header.sh_offset = self.file.put(header.sh_addralign, data);
            }
            self.headers.push(header);
        }
        for contents in new {
            let header = Shdr {
                sh_name: self.name(&contents.name),
                sh_type: raw::SHT_PROGBITS,
                sh_size: contents.bytes.len() as u64,
                sh_offset: self.file.put(contents.align, Cow::Owned(contents.bytes)),
                sh_addralign: contents.align,
                ..Shdr::default()
            };
            self.headers.push(header);
        }
        Ok(names_index.unwrap_or_else(|| {
            let sh_name = self.name(".shstrtab");
            self.headers.push(Shdr {
                sh_name,
                ..Shdr::default()
            });
            self.headers.len() - 1
        }))
    }

    /// The section of the new file for a symbol of the debug file's section.
    fn section_of(&self, index: u32, value: u64) -> u32 {
        let by_address = || {
            let (i, _) = self.parts.program.section_at(value)?;
            self.of_program.get(&i).copied()
        };
        let Some(s) = self.parts.debug.sections.get(index as usize) else {
            return index; // absolute, common and the like
        };
        if index == 0 {
            return 0;
        }
        if let Some(new) = self.of_debug.get(&(index as usize)) {
            return *new;
        }
        let old_name = format!("{}.old", s.name);
        let all = self.of_program.iter();
        let like = all.filter(|(i, _)| {
            let p = &self.parts.program.sections[**i];
            p.addr == s.addr && (p.name == s.name || p.name == old_name)
        });
        let mut like = like.map(|(_, new)| *new);
        like.next().or_else(by_address).unwrap_or(raw::SHN_ABS)
    }

    /// The new symbol table, its names, and the number of local symbols.
    fn symbols(&self, index: usize) -> Result<SymbolTable, FormatError> {
        let debug = self.parts.debug;
        let section = &debug.sections[index];
        let data = debug.section_data(section);
        let strings = debug.sections.get(section.link as usize);
        let mut names = strings.map_or_else(Vec::new, |s| debug.section_data(s).to_vec());
        if names.last() != Some(&0) {
            names.push(0);
        }
        let locals = section.info;
        let count = (data.len() as u64 / raw::SYM) as u32;
        if locals > count {
            return Err(FormatError::new(format!(
                "sh_info of {} is {locals}, but it has {count} symbols",
                section.name
            ))
            .of(ErrorKind::Mismatch)
            .values(locals, count));
        }
        let mut added: BTreeMap<u32, Vec<&AddedSymbol>> = BTreeMap::new();
        for symbol in &self.parts.added {
            let last = locals.saturating_sub(1);
            added
                .entry(symbol.after.min(last))
                .or_default()
                .push(symbol);
        }
        let mut out = SymbolTable {
            table: Vec::with_capacity(data.len()),
            names: Vec::new(),
            locals: locals + self.parts.added.len() as u32, // fewer than symbols of the program
        };
        for at in 0..count {
            let Some(mut symbol) = Sym::read(data, u64::from(at) * raw::SYM) else {
                break; // the count is of whole symbols
            };
            if u32::from(symbol.st_shndx) == raw::SHN_XINDEX {
                return Err(FormatError::new(format!(
                    "symbol {at} of {} is in a section of index 65280 or more, which is not supported",
                    section.name
                ))
                .of(ErrorKind::Unsupported)
                .at_entry(at.into())
                .values(0xff00u64, "less"));
            }
            if let Some(to) = self.parts.moved.get(&at) {
                (symbol.st_value, symbol.st_size) = (to.value, to.size);
                symbol.st_shndx = self.at_address(to.value);
            } else {
                let index = u32::from(symbol.st_shndx);
                symbol.st_shndx = self.section_of(index, symbol.st_value) as u16; // below 65536
            }
            out.table.extend(symbol.bytes());
            for new in added.get(&at).into_iter().flatten() {
                let symbol = Sym {
                    st_name: u32::try_from(names.len()).map_err(|_| {
                        FormatError::new("the names of symbols exceed 4 GiB".to_owned())
                            .of(ErrorKind::TooLarge)
                            .values(names.len(), u32::MAX)
                    })?,
                    st_info: raw::STB_LOCAL << 4 | raw::STT_FUNC,
                    st_other: 0,
                    st_shndx: self.at_address(new.value),
                    st_value: new.value,
                    st_size: new.size,
                };
                names.extend(new.name.iter().copied().filter(|b| *b != 0));
                names.push(0);
                out.table.extend(symbol.bytes());
            }
        }
        out.names = names;
        Ok(out)
    }

    /// The index of the program's section at an address.
    fn at_address(&self, value: u64) -> u16 {
        let found = self.parts.program.section_at(value);
        let new = found.and_then(|(i, _)| self.of_program.get(&i));
        new.map_or(raw::SHN_ABS as u16, |i| *i as u16) // below 65280
    }

    /// File header and program headers. Segments have no contents.
    fn front(&self, sections_at: u64, names_index: usize) -> Result<Vec<u8>, FormatError> {
        let program = self.parts.program;
        let ident = program.data.get(..16).unwrap_or_default();
        let Some(header) = Ehdr::read(program.data, 16) else {
            return Err(FormatError::new("the program has no file header")
                .of(ErrorKind::Missing)
                .at_offset(0)
                .values(program.data.len(), raw::EHDR));
        };
        let header = Ehdr {
            e_phoff: raw::EHDR,
            e_shoff: sections_at,
            e_phnum: program.segments.len() as u16, // as in the program
            e_shnum: self.headers.len() as u16,     // checked in `new`
            e_shstrndx: names_index as u16,
            ..header
        };
        let mut out = [ident, &header.bytes()].concat();
        // The headers themselves are there, in the segment that has them in the program.
        let size = raw::EHDR + program.segments.len() as u64 * raw::PHDR;
        for p in &program.segments {
            let (p_offset, p_filesz) = match p.kind {
                raw::PT_PHDR if p.offset == raw::EHDR => (p.offset, p.file_size),
                raw::PT_LOAD if p.offset == 0 => (0, p.file_size.min(size)),
                _ => (p.addr % p.align.max(1), 0),
            };
            let header = Phdr {
                p_type: p.kind,
                p_flags: p.flags,
                p_offset,
                p_vaddr: p.addr,
                p_paddr: p.addr,
                p_filesz,
                p_memsz: p.mem_size,
                p_align: p.align,
            };
            out.extend(header.bytes());
        }
        Ok(out)
    }
}

struct SymbolTable {
    table: Vec<u8>,
    names: Vec<u8>,
    locals: u32,
}
