//! Rows in their order, in memory or in a temporary file, and several of them merged.
//!
//! A file has blocks of rows ([`super::block`]), each after its length as 32 bits, little-endian. Files are written
//! here, or come from other machines block by block. At most [`TOGETHER`] are merged at once; of more, the first become
//! one until there are no more than that, so memory does not depend on their number.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::fs::File;
use std::io::{BufReader, BufWriter, Seek, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::block::{Packer, Unpacker};
use super::table::Sorted;

/// How many are merged at once.
pub const TOGETHER: usize = 64;
/// Bytes of a file that are read at once.
const BUFFER: usize = 1 << 15;

/// Where temporary files are.
#[derive(Clone, Debug)]
pub struct Temporary(PathBuf);

impl Temporary {
    /// In a folder, which is made when it is needed; that of the system if none is given.
    pub fn new(folder: Option<&Path>) -> Temporary {
        Temporary(folder.map_or_else(std::env::temp_dir, Path::to_owned))
    }

    fn file(&self) -> Result<File> {
        let folder = self.0.display();
        std::fs::create_dir_all(&self.0)
            .with_context(|| format!("{folder}: cannot make the folder"))?;
        tempfile::tempfile_in(&self.0)
            .with_context(|| format!("{folder}: cannot make a temporary file in it"))
    }
}

/// Rows in their order, each key once.
pub enum Run {
    Memory(Box<Sorted>),
    File { file: File, blocks: u64 },
}

/// A row of several runs.
pub struct Row<'a> {
    pub key: &'a [u8],
    pub count: u64,
    pub mispredictions: u64,
}

enum Source {
    Memory {
        rows: Box<Sorted>,
        next: usize,
        head: usize,
    },
    File {
        file: BufReader<File>,
        /// Blocks that are not read yet.
        left: u64,
        block: Vec<u8>,
        /// Where the next row is in the block.
        at: usize,
    },
}

/// A run, and its row at hand.
struct Cursor {
    source: Source,
    key: Vec<u8>,
    count: u64,
    mispredictions: u64,
}

impl Cursor {
    fn new(run: Run) -> Result<Cursor> {
        let source = match run {
            Run::Memory(rows) => Source::Memory {
                rows,
                next: 0,
                head: 0,
            },
            Run::File { mut file, blocks } => {
                file.rewind().context("a temporary file")?;
                Source::File {
                    file: BufReader::with_capacity(BUFFER, file),
                    left: blocks,
                    block: Vec::new(),
                    at: 0,
                }
            }
        };
        Ok(Cursor {
            source,
            key: Vec::new(),
            count: 0,
            mispredictions: 0,
        })
    }

    /// Goes to the next row, if there is one.
    fn advance(&mut self, unpacker: &mut Unpacker) -> Result<bool> {
        match &mut self.source {
            Source::Memory { rows, next, head } => {
                if *next >= rows.len() {
                    return Ok(false);
                }
                (*head, self.count, self.mispredictions) = rows.key(*next, *head, &mut self.key);
                *next += 1;
            }
            Source::File {
                file,
                left,
                block,
                at,
            } => {
                while *at >= block.len() {
                    if *left == 0 {
                        return Ok(false);
                    }
                    unpacker.read(file, block)?;
                    *left -= 1;
                    *at = 0;
                }
                (self.count, self.mispredictions) = unpacker.row(block, at, &mut self.key)?;
            }
        }
        Ok(true)
    }
}

/// The one with the least key is the greatest, as a heap gives the greatest.
impl Ord for Cursor {
    fn cmp(&self, other: &Cursor) -> Ordering {
        other.key.cmp(&self.key)
    }
}

impl PartialOrd for Cursor {
    fn partial_cmp(&self, other: &Cursor) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Cursor {
    fn eq(&self, other: &Cursor) -> bool {
        self.key == other.key
    }
}

impl Eq for Cursor {}

/// Several runs as one.
pub struct Merging {
    /// Those that have a row.
    cursors: BinaryHeap<Cursor>,
    key: Vec<u8>,
    unpacker: Unpacker,
}

impl Merging {
    /// At the beginning of all.
    pub fn new(runs: Vec<Run>) -> Result<Merging> {
        let mut cursors = BinaryHeap::with_capacity(runs.len());
        let mut unpacker = Unpacker::new()?;
        for run in runs {
            let mut cursor = Cursor::new(run)?;
            if cursor.advance(&mut unpacker)? {
                cursors.push(cursor);
            }
        }
        Ok(Merging {
            cursors,
            key: Vec::new(),
            unpacker,
        })
    }

    /// The next row, in which all with its key are added up.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Row<'_>>> {
        let Some(first) = self.cursors.peek() else {
            return Ok(None);
        };
        self.key.clear();
        self.key.extend_from_slice(&first.key);
        let (mut count, mut mispredictions) = (0u64, 0u64);
        while let Some(mut first) = self.cursors.peek_mut()
            && first.key == self.key
        {
            count = count.saturating_add(first.count);
            mispredictions = mispredictions.saturating_add(first.mispredictions);
            if !first.advance(&mut self.unpacker)? {
                PeekMut::pop(first);
            }
        }
        Ok(Some(Row {
            key: &self.key,
            count,
            mispredictions,
        }))
    }
}

/// A run that is being written to a temporary file.
pub struct Writing {
    out: BufWriter<File>,
    blocks: u64,
    /// Bytes so far.
    pub bytes: u64,
    folder: PathBuf,
}

impl Writing {
    /// Without rows.
    pub fn new(temporary: &Temporary) -> Result<Writing> {
        Ok(Writing {
            out: BufWriter::with_capacity(BUFFER, temporary.file()?),
            blocks: 0,
            bytes: 0,
            folder: temporary.0.clone(),
        })
    }

    /// Appends a block, whose rows come after all that are there.
    pub fn add(&mut self, block: &[u8]) -> Result<()> {
        let length = u32::try_from(block.len())
            .with_context(|| format!("a block of {} bytes", block.len()))?;
        for bytes in [&length.to_le_bytes(), block] {
            self.out
                .write_all(bytes)
                .with_context(|| cannot_write(&self.folder))?;
        }
        self.blocks += 1;
        self.bytes += 4 + block.len() as u64;
        Ok(())
    }

    /// All that was written.
    pub fn finish(self) -> Result<Run> {
        let file = self.out.into_inner().map_err(|error| error.into_error());
        Ok(Run::File {
            file: file.with_context(|| cannot_write(&self.folder))?,
            blocks: self.blocks,
        })
    }
}

fn cannot_write(folder: &Path) -> String {
    format!("{}: cannot write a temporary file", folder.display())
}

/// Gives `each` the rows of runs in their order as blocks, until it says no; whether it took all.
pub fn blocks(runs: Vec<Run>, mut each: impl FnMut(Vec<u8>) -> Result<bool>) -> Result<bool> {
    let mut merging = Merging::new(runs)?;
    let mut packer = Packer::new()?;
    while let Some(row) = merging.next()? {
        packer.add(row.key, row.count, row.mispredictions);
        if packer.is_full() && !each(packer.take()?)? {
            return Ok(false);
        }
    }
    Ok(packer.is_empty() || each(packer.take()?)?)
}

/// Writes runs as one to a temporary file; gives its bytes, too.
pub fn spill(runs: Vec<Run>, temporary: &Temporary) -> Result<(Run, u64)> {
    let mut writing = Writing::new(temporary)?;
    blocks(runs, |block| writing.add(&block).map(|()| true))?;
    let bytes = writing.bytes;
    Ok((writing.finish()?, bytes))
}

/// As many runs as can be merged at once, of which the same comes; and bytes that were written for that.
pub fn together(mut runs: Vec<Run>, temporary: &Temporary) -> Result<(Vec<Run>, u64)> {
    let mut written = 0;
    while runs.len() > TOGETHER {
        // The oldest are the smallest, as what comes of them goes to the end.
        let rest = runs.split_off(TOGETHER);
        let (run, bytes) = spill(runs, temporary)?;
        written += bytes;
        runs = rest;
        runs.push(run);
    }
    Ok((runs, written))
}
