//! A file that was written, and is changed in a few places.
//!
//! What is loaded stays where it is and what it is, but for what is changed: so it needs no memory, and nobody has to
//! make it once more. What is not loaded may have another size: headers, symbols and notes are put together anew, with
//! the calls that the file was first made of, and only what differs is written.

use std::fs::File;
use std::path::Path;

use super::assembly::{self, Layout};
use super::output::{read_at, write_at};
use super::{NewId, Onto, WriteError, WriteSummary, Writer};
use crate::addr::{InputAddr, InputOffset, OutputAddr, OutputOffset};
use crate::{ErrorKind, FormatError};

/// A file that was written.
#[derive(Debug)]
pub struct Written<'d> {
    writer: Writer<'d>,
    layout: Layout,
}

impl<'d> Written<'d> {
    pub(super) fn new(mut writer: Writer<'d>) -> Self {
        let loaded = |kind: Option<super::NewKind>| kind.is_none_or(super::NewKind::is_loaded);
        for new in writer.new.iter_mut().filter(|new| loaded(new.kind)) {
            new.contents = Vec::new();
        }
        writer.is_written = true;
        let layout = Layout::new(&writer);
        Written { writer, layout }
    }

    /// Contents of a section that is not loaded.
    pub fn filled(&self, id: NewId) -> &[u8] {
        self.writer.filled(id)
    }

    /// Gives a section that is not loaded other contents, of any size.
    pub fn replace(&mut self, id: NewId, contents: Vec<u8>) {
        let new = self.writer.new.get_mut(id.0 as usize);
        if let Some(new) = new.filter(|new| new.kind.is_some_and(|kind| !kind.is_loaded())) {
            new.size = contents.len() as u64;
            new.contents = contents;
        }
    }

    /// Symbols whose new addresses are among these stay what they are in the input; those that were added there are
    /// gone.
    pub fn keep_symbols(&mut self, gone: impl Fn(u64) -> bool) {
        self.writer.static_edits.retain(|e| !gone(e.1.value));
        self.writer.added.retain(|s| !gone(s.value));
    }

    /// The sections of the unwind table and of its search table, if they are new: address and bytes each.
    pub fn unwind(&self) -> Option<[Option<(OutputAddr, u64)>; 2]> {
        let (frames, search) = self.writer.unwind?;
        let place = |id: NewId| {
            let new = self.writer.new.get(id.0 as usize)?;
            Some((new.addr, new.size))
        };
        Some([place(frames), search.and_then(place)])
    }

    /// Where bytes of a new section that is loaded are.
    pub fn offset(&self, addr: OutputAddr) -> OutputOffset {
        self.layout.place(addr, 0).offset
    }

    /// Bytes of a new section that is loaded, from the file.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or does not have so many.
    pub fn read(&self, path: &Path, addr: OutputAddr, len: u64) -> Result<Vec<u8>, WriteError> {
        let io = |source| WriteError::Io {
            path: path.display().to_string(),
            source,
        };
        let file = File::open(path).map_err(io)?;
        let mut bytes = vec![0; len as usize];
        read_at(&file, &mut bytes, self.offset(addr).get()).map_err(io)?;
        Ok(bytes)
    }

    /// Notes that bytes of a new section are others.
    pub fn put(&self, changes: &mut Changes, addr: OutputAddr, bytes: Vec<u8>) {
        changes.0.push((self.offset(addr), bytes));
    }

    /// Notes that bytes of the old image are what they are in the input.
    ///
    /// # Errors
    ///
    /// They are not in the input.
    pub fn restore(
        &self,
        changes: &mut Changes,
        addr: InputAddr,
        len: u64,
    ) -> Result<(), FormatError> {
        let elf = self.writer.elf;
        let inside = elf.bytes_at(addr.get(), len).is_some();
        let offset = elf.offset_of(addr.get()).filter(|_| inside);
        let bytes = offset.and_then(|at| elf.data.get(at as usize..(at + len) as usize));
        let (bytes, offset) = bytes.zip(offset).ok_or_else(|| {
            FormatError::new(format!(
                "{len} bytes at address {addr:#x} are not inside the file contents of one loaded segment"
            ))
            .of(ErrorKind::OutOfBounds)
            .at_address(addr.get())
            .values(len, "bytes inside one loaded segment")
        })?;
        let offset = InputOffset::new(offset).shifted(self.layout.shift);
        changes.0.push((offset, bytes.to_vec()));
        Ok(())
    }

    /// Changes the file, which nobody else has, nor has mapped.
    ///
    /// # Errors
    ///
    /// It cannot be written, or cannot be expressed.
    pub fn write(
        &mut self,
        path: &Path,
        mode: u32,
        changes: &Changes,
    ) -> Result<WriteSummary, WriteError> {
        let summary = assembly::write(&mut self.writer, path, mode, Onto::Before)?;
        let file = File::options().write(true).open(path);
        let written = file.and_then(|file| {
            let mut all = changes.0.iter();
            all.try_for_each(|(at, bytes)| write_at(&file, bytes, *at))
        });
        written.map_err(|source| WriteError::Io {
            path: path.display().to_string(),
            source,
        })?;
        Ok(summary)
    }
}

/// Bytes that are others in a file that was written.
#[derive(Debug, Default)]
pub struct Changes(Vec<(OutputOffset, Vec<u8>)>);
