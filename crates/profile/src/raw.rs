//! `.plraw`: the counters of an instrumented program, exactly as they are in its memory.
//!
//! The program maps this file `MAP_SHARED` where its counters are. Whatever ends it, the counts are there;
//! there is nothing to dump. So a reader must take a file that is being written right now: counts may grow
//! between two reads, and a program that has just started may have left the header empty.
//!
//! All numbers are little-endian.
//!
//! | offset | size | |
//! |---|---|---|
//! | 0 | 8 | magic `PLRAW\x01\r\n`, written last: zero while the file is being set up |
//! | 8 | 4 | version, 1 |
//! | 12 | 4 | how many bytes of the header must agree before a program adds to an existing file: 96 |
//! | 16 | 64 | the subject: binary, counter map, table sizes; see [`Subject::encode`] |
//! | 80 | 4 | unit: offset of the counters, and what the file's length is a multiple of; 0 represents 4096 |
//! | 84 | 4 | 1: there may be several areas; 0: there is one |
//! | 88 | 8 | zero |
//! | unit | | areas |
//!
//! An area:
//!
//! | offset | size | |
//! |---|---|---|
//! | 0 | 8 × counters | counters |
//! | next multiple of 64 | 64 × sites | call-site tables |
//! | | | zero to a multiple of the unit |
//!
//! A program with per-thread counters has an area for each thread, one with biased counters an area for the thread that
//! loads it and one for all others; all are alike, and what was counted is
//! their sum. Their number follows from the file's length. A thread takes over the area of one that has
//! ended, so there are as many as ever counted at once. Both processes that count in one file must agree on
//! how areas are used, so the number 84 belongs to what must agree.
//!
//! A file can be mapped only at offsets that are multiples of the page size, so the unit is the largest page
//! size of the machine's systems: 4 KiB on x86-64, 64 KiB on AArch64.
//!
//! A call-site table is eight numbers `t0 c0 t1 c1 t2 c2 external overflow`: link-time address of a target (0
//! = free) and its count, three times; calls out of the binary; calls of other targets. Two threads that
//! claim slots at once may both write the same target: its counts are added up.
//!
//! The reader never maps the file (its owner could truncate it, which would kill the reader) but reads pieces
//! of it, and asks the file system for its holes so that the counters never touched cost nothing.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::model::OutOfMemory;
use crate::{Error, Profile, Site, Subject, model, output};

/// Offset of the word that says whether there may be several areas.
const MANY_AT: usize = 84;

/// First bytes of the file. The line ends show a transfer in text mode.
pub const MAGIC: [u8; 8] = *b"PLRAW\x01\r\n";
/// Version of the format.
pub const VERSION: u32 = 1;
/// Bytes of the header that are in use and must agree; the rest of its page is zero.
pub const HEADER_LEN: usize = 96;
/// Offset of the counters in the file, and the unit of their length.
pub const PAGE: u64 = 4096;
/// Size of a call-site table in bytes.
pub const SITE_LEN: u64 = 64;

/// Bytes read at once: whole pages, whole site tables.
const PIECE: usize = 1 << 19;

/// Largest [unit](self) that a reader accepts.
const MAX_UNIT: u64 = 1 << 24;

/// The header of a file with the smallest unit.
pub fn header_bytes(subject: &Subject) -> [u8; HEADER_LEN] {
    header_bytes_with(subject, PAGE)
}

/// The header, with the magic in place. The program writes what follows the magic first. `unit` is a power of
/// two from 4096 to 16 MiB.
pub fn header_bytes_with(subject: &Subject, unit: u64) -> [u8; HEADER_LEN] {
    header_bytes_for(subject, unit, false)
}

/// The same; `many` says that the file may have any number of areas.
pub fn header_bytes_for(subject: &Subject, unit: u64, many: bool) -> [u8; HEADER_LEN] {
    let mut out = [0; HEADER_LEN];
    out[..8].copy_from_slice(&MAGIC);
    out[8..12].copy_from_slice(&VERSION.to_le_bytes());
    out[12..16].copy_from_slice(&(HEADER_LEN as u32).to_le_bytes());
    out[16..16 + Subject::ENCODED].copy_from_slice(&subject.encode());
    if unit != PAGE {
        out[80..84].copy_from_slice(&(unit as u32).to_le_bytes());
    }
    out[MANY_AT] = u8::from(many);
    out
}

/// Offset of the first call-site table from the first counter, in bytes: the same in memory and in the file,
/// where the first counter is at [`PAGE`].
pub fn sites_offset(counters: u64) -> u64 {
    counters
        .saturating_mul(8)
        .checked_next_multiple_of(SITE_LEN)
        .unwrap_or(u64::MAX)
}

/// Length of the counters together with the call-site tables, in bytes, rounded up to whole pages: what the
/// program maps.
pub fn counters_len(counters: u64, sites: u64) -> u64 {
    sites_offset(counters)
        .saturating_add(sites.saturating_mul(SITE_LEN))
        .checked_next_multiple_of(PAGE)
        .unwrap_or(u64::MAX)
}

/// Length of the whole file in bytes, with the smallest unit.
pub fn file_len(subject: &Subject) -> u64 {
    file_len_with(subject, PAGE)
}

/// Length of the whole file in bytes.
pub fn file_len_with(subject: &Subject, unit: u64) -> u64 {
    counters_len(subject.counters, subject.sites)
        .checked_next_multiple_of(unit)
        .map_or(u64::MAX, |len| len.saturating_add(unit))
}

/// Receives a profile piece by piece. Pieces that are all zero may be left out.
pub trait Sink {
    /// Counters from number `first` on.
    fn counters(&mut self, first: u64, counts: &[u64]) -> Result<(), Error>;
    /// One call site that is not empty.
    fn site(&mut self, index: u64, site: Site) -> Result<(), Error>;
}

/// A raw profile whose header has been read and checked.
#[derive(Debug)]
pub struct RawFile {
    path: PathBuf,
    file: File,
    subject: Subject,
    /// Offset of the counters.
    unit: u64,
    /// Number of areas when it was opened.
    areas: u64,
    /// There may be more.
    many: bool,
}

impl RawFile {
    /// Opens a file and checks its header and size.
    ///
    /// Errors: [`Error::NothingRecorded`] for an empty file or one whose magic is still zero;
    /// [`Error::CutShort`]; a wrong magic, version or value in the header.
    pub fn open(path: &Path) -> Result<RawFile, Error> {
        let file = File::open(path).map_err(|e| Error::io(path, "open", e))?;
        RawFile::from_file(path, file)
    }

    /// The same with a file that is open already.
    pub fn from_file(path: &Path, file: File) -> Result<RawFile, Error> {
        let found = file
            .metadata()
            .map_err(|e| Error::io(path, "get the size", e))?
            .len();
        let cut_short = |what: &str, expected| Error::CutShort {
            path: path.to_owned(),
            what: what.to_owned(),
            expected,
            found,
        };
        let mut header = [0; HEADER_LEN];
        let have = found.min(HEADER_LEN as u64) as usize;
        match file.read_exact_at(&mut header[..have], 0) {
            Ok(()) => {}
            Err(e) => return Err(Error::io(path, "read the header", e)),
        }
        if header[..8] == [0; 8] {
            return Err(Error::NothingRecorded {
                path: path.to_owned(),
            });
        }
        if have < HEADER_LEN && header[..have.min(8)] == MAGIC[..have.min(8)] {
            return Err(cut_short("the header of a raw profile", HEADER_LEN as u64));
        }
        if header[..8] != MAGIC {
            return Err(Error::at_byte(
                path,
                0,
                format!(
                    "not a raw profile: it starts with \"{}\", must be \"{}\"",
                    header[..8].escape_ascii(),
                    MAGIC.escape_ascii()
                ),
            ));
        }
        let word = |at: usize| {
            u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        if word(8) != VERSION {
            return Err(Error::at_byte(
                path,
                8,
                format!(
                    "version {} of the raw profile format, this program reads version {VERSION}",
                    word(8)
                ),
            ));
        }
        if word(12) as usize != HEADER_LEN {
            return Err(Error::at_byte(
                path,
                12,
                format!("header of {} bytes, must be {HEADER_LEN}", word(12)),
            ));
        }
        let mut fixed = [0; Subject::ENCODED];
        fixed.copy_from_slice(&header[16..16 + Subject::ENCODED]);
        let subject =
            Subject::decode(&fixed).map_err(|(at, what)| Error::at_byte(path, 16 + at, what))?;
        let unit = match u64::from(word(80)) {
            0 => PAGE,
            unit if unit.is_power_of_two() && (PAGE..=MAX_UNIT).contains(&unit) => unit,
            other => {
                return Err(Error::at_byte(
                    path,
                    80,
                    format!(
                        "unit of {other} bytes, must be a power of two from {PAGE} to {MAX_UNIT}, or 0"
                    ),
                ));
            }
        };
        let many = match word(MANY_AT) {
            0 => false,
            1 => true,
            other => {
                return Err(Error::at_byte(
                    path,
                    MANY_AT as u64,
                    format!("kind of areas is {other}, must be 0 (one) or 1 (several)"),
                ));
            }
        };
        if let Some(at) = (MANY_AT + 4..HEADER_LEN).find(|&at| header[at] != 0) {
            return Err(Error::at_byte(
                path,
                at as u64,
                format!("padding byte is {:#04x}, must be 0", header[at]),
            ));
        }
        if found < file_len_with(&subject, unit) {
            let what = format!(
                "a raw profile of {} counters and {} call-site tables",
                subject.counters, subject.sites
            );
            return Err(cut_short(&what, file_len_with(&subject, unit)));
        }
        let area = file_len_with(&subject, unit) - unit;
        let areas = if many {
            (found - unit).checked_div(area).unwrap_or(1)
        } else {
            1
        };
        if many && area > 0 && (found - unit) % area != 0 {
            let what = format!(
                "a raw profile of {} counters and {} call-site tables for {} threads ({area} bytes each)",
                subject.counters,
                subject.sites,
                areas + 1
            );
            return Err(cut_short(
                &what,
                unit.saturating_add(area.saturating_mul(areas + 1)),
            ));
        }
        Ok(RawFile {
            path: path.to_owned(),
            file,
            subject,
            unit,
            areas,
            many,
        })
    }

    /// What the counts belong to.
    pub fn subject(&self) -> &Subject {
        &self.subject
    }

    /// How many areas it has: as many threads have counted in it at once.
    pub fn areas(&self) -> u64 {
        self.areas
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads every counter of every area once, in pieces.
    pub fn stream(&self, sink: &mut impl Sink) -> Result<(), Error> {
        let sites_start = sites_offset(self.subject.counters);
        let sites_end = sites_start + self.subject.sites * SITE_LEN;
        let mut words: Vec<u64> = Vec::with_capacity(PIECE / 8);
        self.pieces(|_, at, bytes| {
            // `at` and the length are multiples of 64 from the first counter, except at the very end of the file.
            words.clear();
            words.extend(bytes.chunks_exact(8).map(|word| {
                u64::from_le_bytes([
                    word[0], word[1], word[2], word[3], word[4], word[5], word[6], word[7],
                ])
            }));
            let first = at / 8;
            let counters = self
                .subject
                .counters
                .saturating_sub(first)
                .min(words.len() as u64) as usize;
            if counters > 0 {
                sink.counters(first, &words[..counters])?;
            }
            let end = at + bytes.len() as u64;
            let mut table_at = sites_start.max(at);
            while table_at + SITE_LEN <= sites_end.min(end) {
                let word = ((table_at - at) / 8) as usize;
                let table = &words[word..word + 8];
                if table.iter().any(|&count| count != 0) {
                    let targets = [
                        (table[0], table[1]),
                        (table[2], table[3]),
                        (table[4], table[5]),
                    ];
                    let site = Site::new(targets, table[6], table[7]);
                    if !site.is_empty() {
                        sink.site((table_at - sites_start) / SITE_LEN, site)?;
                    }
                }
                table_at += SITE_LEN;
            }
            Ok(())
        })
    }

    /// The profile as it is now.
    pub fn read(&self) -> Result<Profile, Error> {
        let mut collect = Collect::new(&self.path, self.subject)?;
        self.stream(&mut collect)?;
        Ok(collect.finish())
    }

    /// Length of an area in the file.
    fn area_len(&self) -> u64 {
        file_len_with(&self.subject, self.unit).saturating_sub(self.unit)
    }

    /// Calls `visit` with every piece of the areas that is not a hole: the area's offset in the file, the
    /// piece's offset from the area's first counter, a multiple of [`PAGE`], and its bytes, whole pages.
    fn pieces(
        &self,
        mut visit: impl FnMut(u64, u64, &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let len = counters_len(self.subject.counters, self.subject.sites);
        let mut buffer = vec![0; PIECE.min(len as usize)];
        let mut area = 0;
        while area < self.areas {
            let first = self.unit + area * self.area_len();
            let mut at = 0;
            while at < len {
                let (start, end) = match self.data_after(first + at) {
                    // Areas begin at multiples of the page, and `start` is not before `first`.
                    Some((start, end)) => (
                        start / PAGE * PAGE - first,
                        end.div_ceil(PAGE).saturating_mul(PAGE) - first,
                    ),
                    None => return Ok(()),
                };
                at = at.max(start);
                let end = end.min(len);
                while at < end {
                    let bytes = &mut buffer[..((end - at) as usize).min(PIECE)];
                    self.file
                        .read_exact_at(bytes, first + at)
                        .map_err(|e| match e.kind() {
                            io::ErrorKind::UnexpectedEof => Error::CutShort {
                                path: self.path.clone(),
                                what: "a raw profile that shrank while it was read".into(),
                                expected: first + len,
                                found: self.file.metadata().map_or(0, |data| data.len()),
                            },
                            _ => Error::io(&self.path, "read the counters", e),
                        })?;
                    visit(first, at, bytes)?;
                    at += bytes.len() as u64;
                }
            }
            // Areas that are holes need no look each.
            area = (area + 1).max(
                at.saturating_sub(len)
                    .checked_div(self.area_len())
                    .unwrap_or(0)
                    + area,
            );
        }
        Ok(())
    }

    /// The first range of file offsets with data at or after `at`; `None` if only a hole follows. Where the
    /// file system knows no holes, everything is data.
    fn data_after(&self, at: u64) -> Option<(u64, u64)> {
        let seek = |from: u64, whence| {
            let from = libc::off_t::try_from(from).ok()?;
            // SAFETY: lseek only moves this descriptor's offset, which nothing here depends on.
            let found = unsafe { libc::lseek(self.file.as_raw_fd(), from, whence) };
            u64::try_from(found).ok()
        };
        match seek(at, libc::SEEK_DATA) {
            Some(start) => {
                let start = start.max(at);
                Some((
                    start,
                    seek(start, libc::SEEK_HOLE)
                        .filter(|&end| end > start)
                        .unwrap_or(u64::MAX / 2),
                ))
            }
            None if io::Error::last_os_error().raw_os_error() == Some(libc::ENXIO) => None,
            None => Some((at, u64::MAX / 2)),
        }
    }
}

/// Collects what a [`Sink`] is given to a profile.
pub(crate) struct Collect {
    subject: Subject,
    counters: Vec<u64>,
    sites: std::collections::BTreeMap<u64, Site>,
}

impl Collect {
    pub(crate) fn new(path: &Path, subject: Subject) -> Result<Collect, Error> {
        Ok(Collect {
            subject,
            counters: model::zeroed(subject.counters).map_err(|e| out_of_memory(path, e))?,
            sites: Default::default(),
        })
    }

    pub(crate) fn finish(self) -> Profile {
        // The sink below keeps to the subject's sizes.
        Profile::from_parts(self.subject, self.counters, self.sites)
            .expect("parts were made to the subject's sizes")
    }
}

impl Sink for Collect {
    fn counters(&mut self, first: u64, counts: &[u64]) -> Result<(), Error> {
        if let Some(mine) = usize::try_from(first)
            .ok()
            .and_then(|first| self.counters.get_mut(first..))
        {
            model::add_counters(mine, counts, 1);
        }
        Ok(())
    }

    fn site(&mut self, index: u64, site: Site) -> Result<(), Error> {
        if index < self.subject.sites {
            model::add_site(&mut self.sites, index, &site, 1);
        }
        Ok(())
    }
}

pub(crate) fn out_of_memory(path: &Path, e: OutOfMemory) -> Error {
    Error::io(
        path,
        "hold the profile",
        io::Error::new(io::ErrorKind::OutOfMemory, e),
    )
}

/// Copies a raw profile that may be in use to `to`: the header is checked, every counter is read once,
/// untouched pages stay holes. Returns what it is a profile of.
///
/// The program continues counting meanwhile, so the copy is not one instant: a later counter may be ahead of an
/// earlier one by what ran during the copy. Each count is a value that it really had.
pub fn snapshot(live: &Path, to: &Path) -> Result<Subject, Error> {
    let raw = RawFile::open(live)?;
    output::replacing(to, |out| {
        let write = |bytes: &[u8], at: u64| {
            out.write_all_at(bytes, at)
                .map_err(|e| Error::io(to, "write", e))
        };
        out.set_len(raw.unit + raw.areas * raw.area_len())
            .map_err(|e| Error::io(to, "set the size", e))?;
        raw.pieces(|area, at, bytes| {
            for (i, page) in bytes.chunks(PAGE as usize).enumerate() {
                if page.iter().any(|&byte| byte != 0) {
                    write(page, area + at + i as u64 * PAGE)?;
                }
            }
            Ok(())
        })?;
        write(&header_bytes_for(&raw.subject, raw.unit, raw.many), 0)
    })?;
    Ok(raw.subject)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{Digest, Identity};

    pub(crate) fn subject(counters: u64, sites: u64) -> Subject {
        Subject {
            identity: Identity::from_build_id(&[0xab; 20]).unwrap(),
            digest: Digest(0x1234),
            counters,
            sites,
        }
    }

    /// A raw file as a program would leave it.
    pub(crate) fn image(
        subject: &Subject,
        counters: &[(u64, u64)],
        sites: &[(u64, [u64; 8])],
    ) -> Vec<u8> {
        let mut out = vec![0; file_len(subject) as usize];
        out[..HEADER_LEN].copy_from_slice(&header_bytes(subject));
        let mut put = |at: u64, value: u64| {
            out[at as usize..at as usize + 8].copy_from_slice(&value.to_le_bytes())
        };
        for &(index, count) in counters {
            put(PAGE + index * 8, count);
        }
        for (index, table) in sites {
            for (i, &word) in table.iter().enumerate() {
                put(
                    PAGE + sites_offset(subject.counters) + index * SITE_LEN + i as u64 * 8,
                    word,
                );
            }
        }
        out
    }

    fn file(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.plraw");
        std::fs::write(&path, bytes).unwrap();
        (dir, path)
    }

    #[test]
    fn the_header_has_the_documented_bytes() {
        let header = header_bytes(&subject(3, 2));
        assert_eq!(&header[..16], b"PLRAW\x01\r\n\x01\0\0\0\x60\0\0\0");
        assert_eq!(&header[16..36], &[0xab; 20]);
        assert_eq!(
            &header[36..56],
            b"\0\0\0\0\0\0\0\0\0\0\0\0\x14\0\0\0\0\0\0\0"
        );
        assert_eq!(&header[56..64], &0x1234u64.to_le_bytes());
        assert_eq!(&header[64..72], &3u64.to_le_bytes());
        assert_eq!(&header[72..80], &2u64.to_le_bytes());
        assert_eq!(&header[80..], &[0; 16]);
    }

    #[test]
    fn site_tables_start_at_a_multiple_of_64_and_lengths_are_whole_pages() {
        assert_eq!(sites_offset(0), 0);
        assert_eq!(sites_offset(1), 64);
        assert_eq!(sites_offset(8), 64);
        assert_eq!(sites_offset(9), 128);
        assert_eq!(counters_len(0, 0), 0);
        assert_eq!(counters_len(1, 0), 4096);
        assert_eq!(counters_len(512, 0), 4096);
        assert_eq!(counters_len(512, 1), 8192);
        assert_eq!(counters_len(u64::MAX, u64::MAX), u64::MAX);
    }

    #[test]
    fn counters_and_sites_are_read_and_double_targets_add_up() {
        let subject = subject(100_000, 70_000);
        let image = image(
            &subject,
            &[(0, 5), (65_535, 6), (65_536, 7), (99_999, u64::MAX)],
            &[
                (0, [0x10, 1, 0x20, 2, 0x10, 3, 4, 5]),
                (69_999, [0, 0, 0, 0, 0, 0, 0, 1]),
                (3, [0x30, 0, 0, 9, 0, 0, 0, 0]),
            ],
        );
        let (_dir, path) = file(&image);
        let profile = RawFile::open(&path).unwrap().read().unwrap();
        let counted: Vec<(usize, u64)> = profile
            .counters()
            .iter()
            .copied()
            .enumerate()
            .filter(|c| c.1 != 0)
            .collect();
        assert_eq!(
            counted,
            [(0, 5), (65_535, 6), (65_536, 7), (99_999, u64::MAX)]
        );
        assert_eq!(
            profile.sites().collect::<Vec<_>>(),
            [
                (0, &Site::new([(0x10, 4), (0x20, 2)], 4, 5)),
                (69_999, &Site::new([], 0, 1))
            ]
        );
    }

    /// The same file with more areas, each given by what it counts.
    fn areas(subject: &Subject, areas: &[&[(u64, u64)]]) -> Vec<u8> {
        let mut out = image(subject, &[], &[])[..PAGE as usize].to_vec();
        out[..HEADER_LEN].copy_from_slice(&header_bytes_for(subject, PAGE, true));
        for counters in areas {
            out.extend_from_slice(
                &image(subject, counters, &[(2, [0x10, 1, 0, 0, 0, 0, 0, 1])])[PAGE as usize..],
            );
        }
        out
    }

    #[test]
    fn areas_are_added_up_and_a_snapshot_has_them_all() {
        let subject = subject(70_000, 3);
        let (dir, path) = file(&areas(
            &subject,
            &[
                &[(0, 5), (69_999, 1)],
                &[],
                &[(0, u64::MAX), (7, 2)],
                &[(7, 3)],
            ],
        ));
        let raw = RawFile::open(&path).unwrap();
        assert_eq!(raw.areas(), 4);
        let profile = raw.read().unwrap();
        assert_eq!(
            (
                profile.counters()[0],
                profile.counters()[7],
                profile.counters()[69_999]
            ),
            (u64::MAX, 5, 1)
        );
        assert_eq!(
            profile.sites().collect::<Vec<_>>(),
            [(2, &Site::new([(0x10, 4)], 0, 4))]
        );
        let copy = dir.path().join("copy.plraw");
        assert_eq!(snapshot(&path, &copy).unwrap(), subject);
        assert_eq!(std::fs::read(&copy).unwrap(), std::fs::read(&path).unwrap());
    }

    #[test]
    fn areas_that_are_holes_cost_nothing_and_those_behind_them_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sparse.plraw");
        let subject = subject(1 << 20, 0);
        let area = file_len(&subject) - PAGE;
        let out = File::create(&path).unwrap();
        out.set_len(PAGE + 3000 * area).unwrap();
        out.write_all_at(&header_bytes_for(&subject, PAGE, true), 0)
            .unwrap();
        for number in [1, 2, 1500, 2999] {
            out.write_all_at(&1u64.to_le_bytes(), PAGE + number * area + 8 * (number + 1))
                .unwrap();
        }
        let raw = RawFile::open(&path).unwrap();
        assert_eq!((raw.areas(), raw.read().unwrap().total()), (3000, 4));
    }

    #[test]
    fn a_length_that_is_not_one_of_whole_areas_is_an_error_with_both_sizes() {
        let subject = subject(1000, 7);
        let whole = areas(&subject, &[&[(1, 1)], &[(1, 1)]]);
        let area = (whole.len() - PAGE as usize) / 2;
        for len in [
            whole.len() - 1,
            whole.len() - 4096,
            PAGE as usize + area + 1,
        ] {
            let (_dir, path) = file(&whole[..len]);
            let text = RawFile::open(&path).unwrap_err().to_string();
            assert!(
                text.contains(&format!("needs {} bytes, the file has {len}", whole.len())),
                "{text}"
            );
        }
        let mut other = whole;
        other[84] = 2;
        let (_dir, path) = file(&other);
        let text = RawFile::open(&path).unwrap_err().to_string();
        assert!(
            text.contains("kind of areas is 2, must be 0 (one) or 1 (several)"),
            "{text}"
        );
    }

    #[test]
    fn holes_are_zeros() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sparse.plraw");
        let subject = subject(4 << 20, 1000);
        let out = File::create(&path).unwrap();
        out.set_len(file_len(&subject)).unwrap();
        out.write_all_at(&header_bytes(&subject), 0).unwrap();
        out.write_all_at(&9u64.to_le_bytes(), PAGE + 8 * 3_000_000)
            .unwrap();
        out.write_all_at(
            &8u64.to_le_bytes(),
            PAGE + sites_offset(4 << 20) + 999 * 64 + 48,
        )
        .unwrap();
        let profile = RawFile::open(&path).unwrap().read().unwrap();
        assert_eq!(profile.counters()[3_000_000], 9);
        assert_eq!(profile.total(), 9);
        assert_eq!(
            profile.sites().collect::<Vec<_>>(),
            [(999, &Site::new([], 8, 0))]
        );
    }

    #[test]
    fn a_file_that_is_being_set_up_has_nothing_recorded() {
        let mut image = image(&subject(10, 0), &[(1, 1)], &[]);
        image[..8].fill(0);
        for bytes in [&[][..], &[0; 5], &[0; 4096], &image] {
            let (_dir, path) = file(bytes);
            assert!(
                matches!(RawFile::open(&path), Err(Error::NothingRecorded { .. })),
                "{} bytes",
                bytes.len()
            );
        }
    }

    #[test]
    fn a_file_cut_short_is_an_error_with_both_sizes() {
        let whole = image(&subject(1000, 7), &[(1, 1)], &[]);
        for len in [1, 7, 8, 95, 96, 4096, whole.len() - 1] {
            let (_dir, path) = file(&whole[..len]);
            let text = RawFile::open(&path).unwrap_err().to_string();
            let expected = if len < HEADER_LEN {
                HEADER_LEN
            } else {
                whole.len()
            };
            assert!(
                text.contains(&format!("needs {expected} bytes, the file has {len}")),
                "{text}"
            );
        }
    }

    #[test]
    fn wrong_magic_and_version_are_named_with_what_must_be() {
        let good = image(&subject(10, 0), &[], &[]);
        let broken = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            let (_dir, path) = file(&bytes);
            RawFile::open(&path)
                .unwrap_err()
                .to_string()
                .split_once(".plraw")
                .unwrap()
                .1
                .to_owned()
        };
        assert_eq!(
            broken(6, b'\n'),
            r#" at offset 0x0: not a raw profile: it starts with "PLRAW\x01\n\n", must be "PLRAW\x01\r\n""#
        );
        assert_eq!(
            broken(8, 9),
            " at offset 0x8: version 9 of the raw profile format, this program reads version 1"
        );
        assert_eq!(
            broken(12, 9),
            " at offset 0xc: header of 9 bytes, must be 96"
        );
        assert_eq!(
            broken(48, 33),
            " at offset 0x30: length of the identity is 33, must be 1 to 32"
        );
        assert_eq!(
            broken(71, 1),
            " at offset 0x40: 72057594037927946 counters, at most 1073741824 are possible"
        );
        assert_eq!(
            broken(90, 1),
            " at offset 0x5a: padding byte is 0x01, must be 0"
        );
    }

    #[test]
    fn a_file_that_is_mapped_and_counting_can_be_read_and_copied() {
        let subject = subject(500_000, 3);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("live.plraw");
        let out = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .unwrap();
        out.set_len(file_len(&subject)).unwrap();
        // SAFETY: the file is this test's own and keeps its size.
        let mut map = unsafe { memmap2::MmapMut::map_mut(&out).unwrap() };
        map[8..HEADER_LEN].copy_from_slice(&header_bytes(&subject)[8..]);
        assert!(matches!(
            RawFile::open(&path),
            Err(Error::NothingRecorded { .. })
        ));
        map[..8].copy_from_slice(&MAGIC);
        let live = RawFile::open(&path).unwrap();
        for count in 1..4u8 {
            map[PAGE as usize + 8 * 400_000] = count;
            assert_eq!(live.read().unwrap().counters()[400_000], u64::from(count));
            let copy = dir.path().join("copy.plraw");
            snapshot(&path, &copy).unwrap();
            assert_eq!(
                RawFile::open(&copy).unwrap().read().unwrap().total(),
                u64::from(count)
            );
        }
    }

    #[test]
    fn a_snapshot_is_the_same_profile_and_keeps_the_holes() {
        use std::os::unix::fs::MetadataExt;
        let subject = subject(4 << 20, 3);
        let (dir, path) = file(&image(
            &subject,
            &[(0, 1), (2_000_000, 5)],
            &[(2, [1, 1, 0, 0, 0, 0, 0, 0])],
        ));
        let copy = dir.path().join("copy.plraw");
        assert_eq!(snapshot(&path, &copy).unwrap(), subject);
        assert_eq!(std::fs::read(&copy).unwrap(), std::fs::read(&path).unwrap());
        let (dense, sparse) = (
            std::fs::metadata(&path).unwrap().blocks(),
            std::fs::metadata(&copy).unwrap().blocks(),
        );
        assert!(sparse <= dense, "{sparse} > {dense}");
    }

    #[test]
    fn any_bytes_are_read_or_refused() {
        let good = image(
            &subject(300, 4),
            &[(1, 1)],
            &[(1, [1, 1, 2, 2, 3, 3, 4, 4])],
        );
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        arbtest::arbtest(|u| {
            let mut bytes = good.clone();
            for _ in 0..u.int_in_range(0..=4)? {
                let at = if u.ratio(3, 4)? {
                    u.int_in_range(0..=95)?
                } else {
                    u.choose_index(bytes.len())?
                };
                bytes[at] = u.arbitrary()?;
            }
            bytes.truncate(u.int_in_range(0..=good.len() * 4)?);
            std::fs::write(&path, &bytes).unwrap();
            if let Ok(raw) = RawFile::open(&path) {
                let profile = raw.read().unwrap();
                assert_eq!(profile.counters().len() as u64, raw.subject().counters);
            }
            Ok(())
        });
    }
}
