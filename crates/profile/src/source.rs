//! The bytes of an input file: mapped where that is possible, read where not (pipes), and cut into pieces of
//! whole lines for the parsers of text formats.
//!
//! A mapped file must not be shortened by another process while it is read. Finished profiles are not; the raw
//! profiles of running programs are, and are therefore never mapped (see [`crate::raw`]).

use std::fs::File;
use std::io::Read;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::{Error, Place};

/// Bytes that are worked on at a time, and then given back.
pub(crate) const PIECE: usize = 1 << 20;

/// The contents of a file.
#[derive(Debug)]
pub enum Source {
    /// A regular file.
    Mapped(File, memmap2::Mmap),
    /// Anything else.
    Read(Vec<u8>),
}

impl Deref for Source {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Source::Mapped(_, map) => map,
            Source::Read(bytes) => bytes,
        }
    }
}

impl Source {
    /// Opens a file; reads it if it cannot be mapped.
    pub fn open(path: &Path) -> Result<Source, Error> {
        let file = File::open(path).map_err(|e| Error::io(path, "open", e))?;
        Source::from_file(path, file)
    }

    /// The same with a file that is open already, at its start.
    pub fn from_file(path: &Path, mut file: File) -> Result<Source, Error> {
        let data = file
            .metadata()
            .map_err(|e| Error::io(path, "get the size", e))?;
        if data.is_file() && data.len() > 0 {
            // SAFETY: the map is only read, and every parser checks what it reads. That no process shortens the
            // file is said above.
            if let Ok(map) = unsafe { memmap2::Mmap::map(&file) } {
                return Ok(Source::Mapped(file, map));
            }
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)
            .map_err(|e| Error::io(path, "read", e))?;
        Ok(Source::Read(bytes))
    }
}

/// Bytes that may be those of a mapped file.
///
/// To go through a large file once it is twice as fast to copy it piece by piece to a buffer that stays in
/// the caches than to have each of its pages mapped and unmapped; and what has been read does not stay in
/// memory. So parsers look at the mapping for single places, and get whole pieces by [`Pages::load`].
#[derive(Clone, Copy, Debug)]
pub struct Pages<'a> {
    bytes: &'a [u8],
    file: Option<&'a File>,
    map: Option<&'a memmap2::Mmap>,
}

impl<'a> From<&'a [u8]> for Pages<'a> {
    fn from(bytes: &'a [u8]) -> Pages<'a> {
        Pages {
            bytes,
            file: None,
            map: None,
        }
    }
}

impl<'a> From<&'a Vec<u8>> for Pages<'a> {
    fn from(bytes: &'a Vec<u8>) -> Pages<'a> {
        Pages::from(&bytes[..])
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Pages<'a> {
    fn from(bytes: &'a [u8; N]) -> Pages<'a> {
        Pages::from(&bytes[..])
    }
}

impl<'a> From<&'a Source> for Pages<'a> {
    fn from(source: &'a Source) -> Pages<'a> {
        match source {
            Source::Mapped(file, map) => Pages {
                bytes: map,
                file: Some(file),
                map: Some(map),
            },
            Source::Read(bytes) => Pages::from(&bytes[..]),
        }
    }
}

impl<'a> Pages<'a> {
    /// All of them.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// A part of them that is read once; `buffer` may be used to hold it.
    pub(crate) fn load<'b>(&self, range: Range<usize>, buffer: &'b mut Vec<u8>) -> &'b [u8]
    where
        'a: 'b,
    {
        let bytes = &self.bytes[range.clone()];
        #[cfg(unix)]
        if let Some(file) = self.file {
            use std::os::unix::fs::FileExt;
            buffer.resize(bytes.len(), 0);
            if file.read_exact_at(buffer, range.start as u64).is_ok() {
                self.release(range);
                return buffer;
            }
        }
        bytes
    }

    /// Takes what was read out of memory; it can be read again.
    pub(crate) fn release(&self, range: Range<usize>) {
        #[cfg(unix)]
        if let Some(map) = self.map.filter(|map| range.end <= map.len()) {
            // Not the pages at the ends, which others may be reading: they would have to be fetched again.
            let start = range.start.next_multiple_of(1 << 12);
            let end = if range.end == map.len() {
                range.end
            } else {
                range.end & !((1 << 12) - 1)
            };
            if start < end {
                // SAFETY: the map is shared and never written through: its pages come back from the file as they were.
                let _ = unsafe {
                    map.unchecked_advise_range(
                        memmap2::UncheckedAdvice::DontNeed,
                        start,
                        end - start,
                    )
                };
            }
        }
    }
}

/// Works on pieces in parallel. Each thread has a value of its own, that `new` makes, and takes one piece
/// after the other. Returns the values, or the error of the first wrong piece.
pub(crate) fn share<P: Sync, S: Send, E: Send>(
    pieces: &[P],
    new: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, &P) -> Result<(), E> + Sync,
) -> Result<Vec<S>, E> {
    let next = AtomicUsize::new(0);
    let threads = rayon::current_num_threads().min(pieces.len());
    let results: Vec<Result<S, (usize, E)>> = postlink_parallel::map_range(threads, |_| {
        let mut value = new();
        loop {
            // Pieces are handed out in order, so all before a wrong one are looked at.
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(piece) = pieces.get(index) else {
                return Ok(value);
            };
            work(&mut value, piece).map_err(|wrong| (index, wrong))?;
        }
    });
    let mut values = Vec::with_capacity(threads);
    let mut first: Option<(usize, E)> = None;
    for result in results {
        match result {
            Ok(value) => values.push(value),
            Err(wrong) if first.as_ref().is_none_or(|known| wrong.0 < known.0) => {
                first = Some(wrong);
            }
            Err(_) => {}
        }
    }
    match first {
        Some((_, wrong)) => Err(wrong),
        None => Ok(values),
    }
}

/// A wrong place in a text, before it is known which line that is: offset in bytes and a sentence.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Bad(pub(crate) Box<(usize, String)>);

impl Bad {
    #[cold]
    pub(crate) fn new(at: usize, what: impl Into<String>) -> Bad {
        Bad(Box::new((at, what.into())))
    }

    /// The same with the offset moved by the start of the piece.
    pub(crate) fn shift(mut self, by: usize) -> Bad {
        self.0.0 += by;
        self
    }

    /// The error for the user; counts the lines up to the place.
    pub(crate) fn locate(self, path: &Path, text: &[u8]) -> Error {
        self.locate_after(path, text, 0)
    }

    /// The same for a text that begins after some lines of the file.
    pub(crate) fn locate_after(self, path: &Path, text: &[u8], lines: u64) -> Error {
        let (at, what) = *self.0;
        let before = &text[..at.min(text.len())];
        let line = lines + 1 + before.iter().filter(|&&byte| byte == b'\n').count() as u64;
        Error::Format {
            path: path.to_owned(),
            place: Place::Line(line),
            what,
        }
    }
}

/// Cuts a text into at most `pieces` parts of about equal size that end at line ends; each with its offset.
pub(crate) fn split_lines(text: &[u8], pieces: usize) -> Vec<(usize, &[u8])> {
    let size = text.len().div_ceil(pieces.max(1)).max(1 << 16);
    let mut out = Vec::new();
    let mut start = 0;
    while start < text.len() {
        let wish = start.saturating_add(size).min(text.len());
        let end = match text[wish..].iter().position(|&byte| byte == b'\n') {
            Some(more) => wish + more + 1,
            None => text.len(),
        };
        out.push((start, &text[start..end]));
        start = end;
    }
    out
}

/// How many pieces to cut a text into: a few per thread, so that a slow one does not hold up the rest.
pub(crate) fn piece_count() -> usize {
    rayon::current_num_threads() * 4
}

/// The lines of a text without their ends; each with its offset.
pub(crate) fn lines(text: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut start = 0;
    std::iter::from_fn(move || {
        if start >= text.len() {
            return None;
        }
        let at = start;
        let len = find_byte(&text[at..], b'\n').unwrap_or(text.len() - at);
        start = at + len + 1;
        Some((at, &text[at..at + len]))
    })
}

/// Position of the first `wanted`.
#[inline]
pub(crate) fn find_byte(text: &[u8], wanted: u8) -> Option<usize> {
    memchr::memchr(wanted, text)
}

/// A hexadecimal number without prefix that is all of `text`, in either case.
#[inline]
pub(crate) fn hex(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 16 {
        return None;
    }
    let mut value = 0;
    for &byte in text {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' => byte - b'A' + 10,
            _ => return None,
        };
        value = value << 4 | u64::from(digit);
    }
    Some(value)
}

/// A decimal number that is all of `text`.
#[inline]
pub(crate) fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    let mut value = 0u64;
    for &byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    Some(value)
}

/// A piece of input for an error text: shortened, and with everything unprintable escaped.
pub(crate) fn quote(text: &[u8]) -> String {
    const MOST: usize = 80;
    if text.len() <= MOST {
        format!("\"{}\"", text.escape_ascii())
    } else {
        format!("\"{}…\"", text[..MOST].escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_whole_lines_and_all_of_the_text() {
        arbtest::arbtest(|u| {
            let mut text: Vec<u8> = u.arbitrary()?;
            while text.len() < 200_000 && !text.is_empty() {
                text.extend_from_within(..);
            }
            let pieces = split_lines(&text, u.int_in_range(0..=9)?);
            let mut at = 0;
            for (i, &(start, piece)) in pieces.iter().enumerate() {
                assert_eq!(start, at);
                at += piece.len();
                assert!(piece.ends_with(b"\n") || i + 1 == pieces.len());
            }
            assert_eq!(at, text.len());
            Ok(())
        });
    }

    #[test]
    fn bytes_are_found_where_they_are() {
        arbtest::arbtest(|u| {
            let text: Vec<u8> = u.arbitrary()?;
            let wanted = u.arbitrary()?;
            assert_eq!(
                find_byte(&text, wanted),
                text.iter().position(|&b| b == wanted)
            );
            Ok(())
        });
    }

    #[test]
    fn numbers_are_all_of_the_text() {
        assert_eq!(hex(b"fF0"), Some(0xff0));
        assert_eq!(hex(b"ffffffffffffffff"), Some(u64::MAX));
        assert_eq!(
            [hex(b""), hex(b"0x1"), hex(b"10000000000000000")],
            [None; 3]
        );
        assert_eq!(decimal(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(
            [
                decimal(b""),
                decimal(b"-1"),
                decimal(b"18446744073709551616")
            ],
            [None; 3]
        );
    }
}
