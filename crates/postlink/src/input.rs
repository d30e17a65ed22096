//! The binary that a command works on: mapped, never opened for writing.

use std::fs::File;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result, bail};
use memmap2::Mmap;
use postlink_elf::elf::Elf;
use postlink_elf::names::Names;
use postlink_verify::InputCode;

use crate::options::Relocations;

/// An open binary.
pub struct Input {
    /// As the user named it.
    pub path: PathBuf,
    /// Permissions, which the output gets too.
    pub mode: u32,
    /// User and group that it belongs to.
    pub owner: (u32, u32),
    file: File,
    map: Mmap,
    identity: (u64, u64),
    relocations: Relocations,
    /// The file without veneers for an erratum, if it has any.
    without_veneers: OnceLock<Option<Vec<u8>>>,
    /// The same for the checker, which makes its own.
    checked_code: InputCode,
    /// Names from elsewhere, and the file with debug information, for display.
    names: Option<Arc<Names>>,
    debug: Option<Box<Input>>,
}

impl Input {
    /// Maps a file.
    pub fn open(path: &Path) -> Result<Input> {
        let named = || path.display().to_string();
        let file = File::open(path).with_context(named)?;
        let metadata = file.metadata().with_context(named)?;
        if !metadata.is_file() {
            bail!(
                "{}: not a regular file: an ELF file is needed",
                path.display()
            );
        }
        if metadata.len() == 0 {
            bail!(
                "{}: the file is empty: an ELF file is needed",
                path.display()
            );
        }
        // SAFETY: the map is private and read-only. Someone who truncates the file under us ends us by a
        // signal, as with every linker and debugger; nothing that was there before is touched then.
        let map = unsafe { Mmap::map(&file) }.with_context(named)?;
        Ok(Input {
            path: path.to_owned(),
            mode: metadata.permissions().mode() & 0o7777,
            owner: (metadata.uid(), metadata.gid()),
            file,
            map,
            identity: (metadata.dev(), metadata.ino()),
            relocations: Relocations::Auto,
            without_veneers: OnceLock::new(),
            checked_code: InputCode::default(),
            names: None,
            debug: None,
        })
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Gives back the memory of what was read so far of it.
    pub fn release(&self) {
        postlink_elf::memory::give_back_read(&self.map);
    }

    /// The same file, read with these relocations alone.
    pub fn using(mut self, relocations: Relocations) -> Result<Input> {
        self.relocations = relocations;
        if relocations == Relocations::Kept && !self.elf()?.has_kept_relocs() {
            bail!(
                "{}: --relocations kept: the linker kept no relocations: link with -Wl,-q (--emit-relocs)",
                self.path.display()
            );
        }
        Ok(self)
    }

    /// Reads it as ELF.
    pub fn elf(&self) -> Result<Elf<'_>> {
        let elf = Elf::parse_file(&self.map, &self.file);
        let elf = elf.with_context(|| self.path.display().to_string())?;
        let elf = match self.relocations {
            Relocations::Auto | Relocations::Kept => elf,
            Relocations::None => elf.without_kept_relocs(),
        };
        let code = || elf.without_erratum_veneers();
        let elf = match self.without_veneers.get_or_init(code) {
            Some(code) => elf.with_code(code),
            None => elf,
        };
        Ok(match &self.names {
            Some(names) => elf.with_names(names.clone()),
            None => elf,
        })
    }

    /// Where the checker keeps what it made of its code.
    pub fn checked_code(&self) -> &InputCode {
        &self.checked_code
    }

    /// The same file with names from elsewhere, and the file with its debug information.
    pub fn with_debug(mut self, names: Arc<Names>, debug: Option<Input>) -> Input {
        self.names = Some(names);
        self.debug = debug.map(Box::new);
        self
    }

    /// Reads it as a file with debug information alone.
    pub fn debug_elf(&self) -> Result<Elf<'_>> {
        Elf::parse_debug_file(&self.map).with_context(|| self.path.display().to_string())
    }

    /// The file with its debug information, if it is another one and was looked for.
    pub fn debug(&self) -> Result<Option<Elf<'_>>> {
        self.debug.as_deref().map(Input::debug_elf).transpose()
    }

    /// Reads it as ELF, once for a whole command.
    pub fn parse(&self) -> Result<Parsed<'_>> {
        Ok(Parsed {
            elf: self.elf()?,
            input: self,
        })
    }

    /// Reads it as ELF; object files are taken too.
    pub fn elf_or_object(&self) -> Result<Elf<'_>> {
        Elf::parse_with_objects(&self.map).with_context(|| self.path.display().to_string())
    }

    /// Numbers of its device and of the file there.
    pub fn device_and_inode(&self) -> (u64, u64) {
        self.identity
    }

    /// Whether a path leads to this file, under whatever name.
    pub fn is(&self, path: &Path) -> bool {
        std::fs::metadata(path)
            .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.identity)
    }

    /// Refuses an output that is the input under whatever name.
    pub fn must_differ_from(&self, output: &Path) -> Result<()> {
        if self.is(output) {
            bail!(
                "{}: is the input itself ({}): give the output another name",
                output.display(),
                self.path.display()
            );
        }
        Ok(())
    }
}

/// An open binary that was read as ELF.
pub struct Parsed<'f> {
    /// What was read.
    pub elf: Elf<'f>,
    input: &'f Input,
}

impl<'f> Parsed<'f> {
    /// Where the checker keeps what it made of its code.
    pub fn checked_code(&self) -> &'f InputCode {
        self.input.checked_code()
    }
}

impl std::ops::Deref for Parsed<'_> {
    type Target = Input;

    fn deref(&self) -> &Input {
        self.input
    }
}
