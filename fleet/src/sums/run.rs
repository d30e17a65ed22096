//! Rows in their order, in memory or in a temporary file, and several of them merged.
//!
//! A file has of each row, little-endian:
//!
//! ```text
//! shared          32 bits    bytes of the key that are those of the key before
//! length          32 bits    bytes that follow
//! count           64 bits
//! mispredictions  64 bits
//! the bytes
//! ```
//!
//! Keys that follow each other differ in their ends, so a row has a few dozen bytes. At most [`TOGETHER`] are merged at
//! once; of more, the first become one until there are no more than that, so memory does not depend on their number.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::table::Sorted;

/// How many are merged at once.
pub const TOGETHER: usize = 64;
/// Bytes of a file that are read at once.
const BUFFER: usize = 1 << 15;
/// No key is longer: names of functions have kilobytes at most.
const LONGEST: usize = 1 << 30;

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
    File { file: File, rows: u64 },
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
        left: u64,
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
            Run::File { mut file, rows } => {
                file.rewind().context("a temporary file")?;
                Source::File {
                    file: BufReader::with_capacity(BUFFER, file),
                    left: rows,
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
    fn advance(&mut self) -> Result<bool> {
        match &mut self.source {
            Source::Memory { rows, next, head } => {
                if *next >= rows.len() {
                    return Ok(false);
                }
                (*head, self.count, self.mispredictions) = rows.key(*next, *head, &mut self.key);
                *next += 1;
            }
            Source::File { left: 0, .. } => return Ok(false),
            Source::File { file, left } => {
                let failed = "cannot read a temporary file";
                let mut fixed = [[0; 8]; 3];
                for number in &mut fixed {
                    file.read_exact(number).context(failed)?;
                }
                let [lengths, count, mispredictions] = fixed.map(u64::from_le_bytes);
                let (shared, length) = (lengths as u32 as usize, (lengths >> 32) as usize);
                if shared > self.key.len() || length > LONGEST {
                    bail!(
                        "a temporary file is damaged: a key of {length} bytes after {shared} of the {} of the one before",
                        self.key.len()
                    );
                }
                self.key.resize(shared + length, 0);
                let rest = self.key.get_mut(shared..).unwrap_or_default();
                file.read_exact(rest).context(failed)?;
                (self.count, self.mispredictions) = (count, mispredictions);
                *left -= 1;
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
}

impl Merging {
    /// At the beginning of all.
    pub fn new(runs: Vec<Run>) -> Result<Merging> {
        let mut cursors = BinaryHeap::with_capacity(runs.len());
        for run in runs {
            let mut cursor = Cursor::new(run)?;
            if cursor.advance()? {
                cursors.push(cursor);
            }
        }
        Ok(Merging {
            cursors,
            key: Vec::new(),
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
            if !first.advance()? {
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

/// Writes runs as one to a temporary file; gives its bytes, too.
pub fn spill(runs: Vec<Run>, temporary: &Temporary) -> Result<(Run, u64)> {
    let file = temporary.file()?;
    let failed = || format!("{}: cannot write a temporary file", temporary.0.display());
    let mut out = BufWriter::with_capacity(BUFFER, file);
    let mut merging = Merging::new(runs)?;
    let (mut before, mut rows, mut bytes) = (Vec::new(), 0u64, 0u64);
    while let Some(row) = merging.next()? {
        let same = before.iter().zip(row.key).take_while(|(a, b)| a == b);
        let shared = same.count();
        let rest = row.key.get(shared..).unwrap_or_default();
        let lengths = shared as u64 | (rest.len() as u64) << 32;
        for number in [lengths, row.count, row.mispredictions] {
            out.write_all(&number.to_le_bytes()).with_context(failed)?;
        }
        out.write_all(rest).with_context(failed)?;
        before.truncate(shared);
        before.extend_from_slice(rest);
        rows += 1;
        bytes += 24 + rest.len() as u64;
    }
    let file = out.into_inner().map_err(|error| error.into_error());
    let file = file.with_context(failed)?;
    Ok((Run::File { file, rows }, bytes))
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
