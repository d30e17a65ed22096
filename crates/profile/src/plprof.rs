//! `.plprof`: a merged profile in a compact file.
//!
//! | size | |
//! |---|---|
//! | 8 | magic `PLPROF\r\n` |
//! | 4 | version, 1 |
//! | 4 | zero |
//! | 64 | the subject: binary, counter map, table sizes; see [`Subject::encode`] |
//! | … | the counters, as runs |
//! | … | the call sites |
//! | 8 | XXH3 hash (64 bits) of everything before it |
//!
//! Fixed numbers are little-endian, all others are LEB128 in their shortest form. The counters are runs until
//! there are as many as the subject says:
//!
//! * number of zero counters (0 in the first run only),
//! * number of counters that follow and are not zero (0 only where the zeros reach the end),
//! * these counters.
//!
//! The call sites are, until there are as many as the subject says:
//!
//! * number of sites to skip, because they called nothing; if that is not the end:
//! * number of targets, then for each its address less the one before (the first less 0) and its count; then
//!   external, overflow.
//!
//! There is exactly one file for each profile. The reader refuses every other spelling, so equal profiles are
//! equal files, and files can be compared by their bytes.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3;

use crate::raw::{Collect, Sink};
use crate::{Error, Profile, Site, Subject, output, varint};

/// First bytes of the file.
pub const MAGIC: [u8; 8] = *b"PLPROF\r\n";
/// Version of the format.
pub const VERSION: u32 = 1;

const HEADER_LEN: usize = 16 + Subject::ENCODED;
const CHECKSUM_LEN: usize = 8;
/// Counters handed on at once, and the size of the buffers in bytes.
const PIECE: usize = 1 << 16;

/// Writes a profile to `path`, by way of a temporary beside it.
pub fn write(path: &Path, profile: &Profile) -> Result<(), Error> {
    output::write_atomically(path, |out| write_to(out, profile))
}

/// Writes a profile to any stream.
pub fn write_to(out: &mut impl Write, profile: &Profile) -> std::io::Result<()> {
    let mut out = Hashing {
        out,
        hash: Xxh3::new(),
        buffer: Vec::with_capacity(PIECE + 64),
    };
    out.buffer.extend_from_slice(&MAGIC);
    out.buffer.extend_from_slice(&VERSION.to_le_bytes());
    out.buffer.extend_from_slice(&[0; 4]);
    out.buffer.extend_from_slice(&profile.subject().encode());
    let mut rest = profile.counters();
    while !rest.is_empty() {
        let zeros = rest
            .iter()
            .position(|&count| count != 0)
            .unwrap_or(rest.len());
        rest = &rest[zeros..];
        let counted = rest
            .iter()
            .position(|&count| count == 0)
            .unwrap_or(rest.len());
        varint::put(&mut out.buffer, zeros as u64);
        varint::put(&mut out.buffer, counted as u64);
        for &count in &rest[..counted] {
            varint::put(&mut out.buffer, count);
            out.drain(PIECE)?;
        }
        rest = &rest[counted..];
        out.drain(PIECE)?;
    }
    let mut next = 0;
    for (index, site) in profile.sites() {
        varint::put(&mut out.buffer, index - next);
        varint::put(&mut out.buffer, site.targets().len() as u64);
        let mut before = 0;
        for &(target, count) in site.targets() {
            varint::put(&mut out.buffer, target - before);
            varint::put(&mut out.buffer, count);
            before = target;
            out.drain(PIECE)?;
        }
        varint::put(&mut out.buffer, site.external);
        varint::put(&mut out.buffer, site.overflow);
        out.drain(PIECE)?;
        next = index + 1;
    }
    if next < profile.subject().sites {
        varint::put(&mut out.buffer, profile.subject().sites - next);
    }
    out.drain(0)?;
    let hash = out.hash.digest();
    out.out.write_all(&hash.to_le_bytes())
}

/// Collects bytes, and hashes what it passes on.
struct Hashing<'a, W> {
    out: &'a mut W,
    hash: Xxh3,
    buffer: Vec<u8>,
}

impl<W: Write> Hashing<'_, W> {
    /// Passes on what has gathered if it is more than `limit` bytes.
    fn drain(&mut self, limit: usize) -> std::io::Result<()> {
        if self.buffer.len() > limit {
            self.hash.update(&self.buffer);
            self.out.write_all(&self.buffer)?;
            self.buffer.clear();
        }
        Ok(())
    }
}

/// A merged profile whose header has been read and checked.
#[derive(Debug)]
pub struct PlprofFile {
    path: PathBuf,
    input: Hashed,
    subject: Subject,
}

impl PlprofFile {
    /// Opens a file and checks its header.
    pub fn open(path: &Path) -> Result<PlprofFile, Error> {
        let file = File::open(path).map_err(|e| Error::io(path, "open", e))?;
        PlprofFile::from_file(path, file)
    }

    /// The same with a file that is open already, at its start.
    pub fn from_file(path: &Path, file: File) -> Result<PlprofFile, Error> {
        let found = file
            .metadata()
            .map_err(|e| Error::io(path, "get the size", e))?
            .len();
        let least = (HEADER_LEN + CHECKSUM_LEN) as u64;
        if found < least {
            return Err(Error::CutShort {
                path: path.to_owned(),
                what: "a merged profile".into(),
                expected: least,
                found,
            });
        }
        let mut input = Hashed {
            path: path.to_owned(),
            file,
            left: found - CHECKSUM_LEN as u64,
            hash: Xxh3::new(),
            buffer: Vec::new(),
            at: 0,
            buffer_at: 0,
        };
        let mut header = [0; HEADER_LEN];
        input.exactly(&mut header)?;
        if header[..8] != MAGIC {
            let what = format!(
                "not a merged profile: it starts with \"{}\", must be \"{}\"",
                header[..8].escape_ascii(),
                MAGIC.escape_ascii()
            );
            return Err(Error::at_byte(path, 0, what));
        }
        let word = |at: usize| {
            u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        if word(8) != VERSION {
            let what = format!(
                "version {} of the merged profile format, this program reads version {VERSION}",
                word(8)
            );
            return Err(Error::at_byte(path, 8, what));
        }
        if word(12) != 0 {
            return Err(Error::at_byte(
                path,
                12,
                format!("padding is {:#x}, must be 0", word(12)),
            ));
        }
        let mut fixed = [0; Subject::ENCODED];
        fixed.copy_from_slice(&header[16..]);
        let subject =
            Subject::decode(&fixed).map_err(|(at, what)| Error::at_byte(path, 16 + at, what))?;
        Ok(PlprofFile {
            path: path.to_owned(),
            input,
            subject,
        })
    }

    /// What the counts belong to.
    pub fn subject(&self) -> &Subject {
        &self.subject
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads it in pieces. What `sink` was given is worth nothing if this returns an error: the checksum comes last.
    pub fn stream(mut self, sink: &mut impl Sink) -> Result<(), Error> {
        let input = &mut self.input;
        let mut piece = Vec::new();
        let mut next = 0;
        while next < self.subject.counters {
            let left = self.subject.counters - next;
            let zeros = input.number_up_to(left, "counters")?;
            if zeros == 0 && next != 0 {
                return Err(input.wrong("an empty run of zero counters"));
            }
            next += zeros;
            let counted = input.number_up_to(left - zeros, "counters")?;
            if counted == 0 && next != self.subject.counters {
                return Err(input.wrong("an empty run of counters before the end"));
            }
            let end = next + counted;
            while next < end {
                piece.clear();
                while piece.len() < PIECE && next + (piece.len() as u64) < end {
                    let count = input.number()?;
                    if count == 0 {
                        return Err(input.wrong("a zero in a run of counters that are not zero"));
                    }
                    piece.push(count);
                }
                sink.counters(next, &piece)?;
                next += piece.len() as u64;
            }
        }
        let mut next = 0;
        while next < self.subject.sites {
            next += input.number_up_to(self.subject.sites - next, "call sites")?;
            if next == self.subject.sites {
                break;
            }
            let count = input.number()?;
            let mut targets = Vec::new();
            let mut address = 0u64;
            for _ in 0..count {
                let (step, count) = (input.number()?, input.number()?);
                address = match address.checked_add(step) {
                    Some(sum) if step != 0 => sum,
                    _ => {
                        return Err(input.wrong(&format!(
                            "a call target {step:#x} after {address:#x}: not rising"
                        )));
                    }
                };
                if count == 0 {
                    return Err(input.wrong("a call target that was called 0 times"));
                }
                targets.push((address, count));
            }
            let site = Site::new(targets, input.number()?, input.number()?);
            if site.is_empty() {
                return Err(input.wrong("a call site without counts"));
            }
            sink.site(next, site)?;
            next += 1;
        }
        input.finish()
    }

    /// The whole profile.
    pub fn read(self) -> Result<Profile, Error> {
        let mut collect = Collect::new(&self.path, self.subject)?;
        self.stream(&mut collect)?;
        Ok(collect.finish())
    }
}

/// Reads a file in pieces and hashes it on the way.
struct Hashed {
    path: PathBuf,
    file: File,
    /// Bytes not read yet, without the checksum.
    left: u64,
    hash: Xxh3,
    buffer: Vec<u8>,
    /// Position in the buffer.
    at: usize,
    /// Offset in the file of the buffer's start.
    buffer_at: u64,
}

impl std::fmt::Debug for Hashed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "at {:#x}, {} bytes left", self.offset(), self.left)
    }
}

impl Hashed {
    fn offset(&self) -> u64 {
        self.buffer_at + self.at as u64
    }

    fn wrong(&self, what: &str) -> Error {
        Error::at_byte(
            &self.path,
            self.offset(),
            format!("damaged merged profile: {what}"),
        )
    }

    /// Makes at least `want` bytes available, or all that are left.
    fn fill(&mut self, want: usize) -> Result<&[u8], Error> {
        if self.buffer.len() - self.at < want && self.left > 0 {
            self.buffer.drain(..self.at);
            self.buffer_at += self.at as u64;
            self.at = 0;
            let have = self.buffer.len();
            let more = self.left.min((PIECE - have.min(PIECE)).max(want) as u64) as usize;
            self.buffer.resize(have + more, 0);
            self.file
                .read_exact(&mut self.buffer[have..])
                .map_err(|e| Error::io(&self.path, "read", e))?;
            self.hash.update(&self.buffer[have..]);
            self.left -= more as u64;
        }
        Ok(&self.buffer[self.at..])
    }

    fn exactly(&mut self, out: &mut [u8]) -> Result<(), Error> {
        let bytes = self.fill(out.len())?;
        match bytes.get(..out.len()) {
            Some(bytes) => out.copy_from_slice(bytes),
            None => return Err(self.wrong("ends too early")),
        }
        self.at += out.len();
        Ok(())
    }

    #[inline]
    fn number(&mut self) -> Result<u64, Error> {
        // One byte is by far the most frequent length.
        if let Some(&byte) = self.buffer.get(self.at)
            && byte < 0x80
        {
            self.at += 1;
            return Ok(u64::from(byte));
        }
        match varint::get(self.fill(varint::MAX_LEN)?) {
            Some((value, len)) => {
                self.at += len;
                Ok(value)
            }
            None => Err(self.wrong("no valid number (cut off, or not in its shortest form)")),
        }
    }

    fn number_up_to(&mut self, limit: u64, of: &str) -> Result<u64, Error> {
        let number = self.number()?;
        if number > limit {
            return Err(self.wrong(&format!("a run of {number} {of} where {limit} are left")));
        }
        Ok(number)
    }

    /// Checks that everything has been read, and the checksum.
    fn finish(&mut self) -> Result<(), Error> {
        let rest = (self.buffer.len() - self.at) as u64 + self.left;
        if rest != 0 {
            return Err(self.wrong(&format!("{rest} bytes too many before the checksum")));
        }
        let mut stored = [0; CHECKSUM_LEN];
        self.file
            .read_exact(&mut stored)
            .map_err(|e| Error::io(&self.path, "read the checksum", e))?;
        let (stored, computed) = (u64::from_le_bytes(stored), self.hash.digest());
        if stored != computed {
            return Err(self.wrong(&format!(
                "checksum {stored:016x}, of the contents {computed:016x}"
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::arbitrary_profile;

    fn bytes(profile: &Profile) -> Vec<u8> {
        let mut out = Vec::new();
        write_to(&mut out, profile).unwrap();
        out
    }

    #[test]
    fn profiles_survive_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.plprof");
        arbtest::arbtest(|u| {
            let profile = arbitrary_profile(u)?;
            write(&path, &profile).unwrap();
            assert_eq!(PlprofFile::open(&path).unwrap().read().unwrap(), profile);
            Ok(())
        });
    }

    #[test]
    fn large_profiles_cross_every_buffer() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.plprof");
        let subject = crate::raw::tests::subject(400_000, 100_000);
        let counters = (0..400_000u64)
            .map(|i| {
                if i % 7 == 3 {
                    0
                } else {
                    i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (i % 64)
                }
            })
            .collect();
        let sites = (0..100_000)
            .step_by(3)
            .map(|i| (i, Site::new((1..i % 5).map(|t| (t * 4096 + i, i)), i, 0)))
            .collect();
        let profile = Profile::from_parts(subject, counters, sites).unwrap();
        write(&path, &profile).unwrap();
        assert_eq!(PlprofFile::open(&path).unwrap().read().unwrap(), profile);
    }

    #[test]
    fn an_empty_profile_of_a_large_program_is_tiny() {
        let profile = Profile::new(crate::raw::tests::subject(10_000_000, 100_000)).unwrap();
        assert_eq!(bytes(&profile).len(), HEADER_LEN + 4 + 1 + 3 + CHECKSUM_LEN);
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.plprof");
        arbtest::arbtest(|u| {
            let profile = arbitrary_profile(u)?;
            let mut bytes = bytes(&profile);
            let at = u.choose_index(bytes.len())?;
            bytes[at] ^= u.int_in_range(1..=255)?;
            std::fs::write(&path, &bytes).unwrap();
            assert!(
                PlprofFile::open(&path).and_then(PlprofFile::read).is_err(),
                "offset {at}"
            );
            bytes.truncate(at);
            std::fs::write(&path, &bytes).unwrap();
            assert!(
                PlprofFile::open(&path).and_then(PlprofFile::read).is_err(),
                "cut at {at}"
            );
            Ok(())
        });
    }

    #[test]
    fn other_spellings_with_a_right_checksum_are_refused_or_the_same_profile() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.plprof");
        arbtest::arbtest(|u| {
            let mut bytes = bytes(&arbitrary_profile(u)?);
            bytes.truncate(bytes.len() - CHECKSUM_LEN);
            let at = u.int_in_range(HEADER_LEN..=bytes.len() - 1)?;
            bytes[at] = if u.arbitrary()? { 0 } else { u.arbitrary()? };
            let hash = xxhash_rust::xxh3::xxh3_64(&bytes);
            bytes.extend_from_slice(&hash.to_le_bytes());
            std::fs::write(&path, &bytes).unwrap();
            if let Ok(profile) = PlprofFile::open(&path).and_then(PlprofFile::read) {
                assert_eq!(super::tests::bytes(&profile), bytes);
            }
            Ok(())
        });
    }
}
