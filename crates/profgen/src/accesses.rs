//! Samples of reads of data: which virtual tables a program read, and where.
//!
//! Of all reads those of virtual tables say something that branches do not: of which type an object was whose function
//! was called. A compiler that knows may compare the table's address, and need not read the table before it knows which
//! function is called.
//!
//! What is read is a recording with the addresses of data (`perf record -d`), or its text by `perf report -D`:
//!
//! | line | content |
//! |---|---|
//! | `… PERF_RECORD_MMAP2 PID/TID: [0xADDR(0xLEN) @ OFF …]: r--p PATH` | a part of the file is mapped |
//! | `… PERF_RECORD_SAMPLE(…): PID/TID: 0xIP period: N addr: 0xADDR` | the instruction at IP read the word at ADDR |
//!
//! Each sample counts as one. Tables are the data objects of the symbol table whose names begin with `_ZTV`, as the C++
//! interface of all compilers on these machines has it. Addresses become those of the file by the mappings of its
//! process, of data as of code; an address that no mapping of the file holds is taken as it is, which is right where
//! files are loaded at the addresses that they are linked for.

use std::path::Path;

use memchr::memmem;
use postlink_elf::elf::{Elf, SymbolTable};
use postlink_profile::perf_data::PerfData;
use postlink_profile::{Mapping, RecognisedBy, perf_script};
use rustc_hash::FxHashMap;

use crate::FormatError;
use crate::script::Options;

/// Beginning of the names of virtual tables.
const VTABLE: &[u8] = b"_ZTV";
/// `STT_OBJECT`
const OBJECT: u8 = 1;

/// How often which instruction read which virtual table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accesses {
    /// By instruction and name.
    counts: Vec<(u64, Box<[u8]>, u64)>,
    /// Samples with an address of data.
    pub samples: u64,
}

/// A part of the file in the memory of a process.
#[derive(Clone, Copy, Debug)]
struct Part {
    start: u64,
    len: u64,
    offset: u64,
}

/// The virtual tables of a file, and where its parts are.
struct File<'d> {
    /// Start, end and name, ascending.
    tables: Vec<(u64, u64, &'d [u8])>,
    /// Offset, length and address of what is loaded.
    loads: Vec<(u64, u64, u64)>,
}

/// Reads while they are counted.
struct Counting<'d> {
    file: File<'d>,
    counts: FxHashMap<(u64, &'d [u8]), u64>,
    samples: u64,
}

impl Accesses {
    /// Reads a recording, or the text of `perf report -D`.
    ///
    /// # Errors
    /// A recording that is damaged or has no mapping of the file; a text without any sample that has an address of
    /// data.
    pub fn read(bytes: &[u8], elf: &Elf<'_>, options: &Options) -> Result<Accesses, FormatError> {
        let mut counting = Counting {
            file: File::new(elf),
            counts: FxHashMap::default(),
            samples: 0,
        };
        if bytes.starts_with(b"PERFILE2") {
            counting.recording(bytes, elf, options)?;
        } else {
            counting.text(bytes, options);
        }
        if counting.samples == 0 {
            return Err(FormatError::new(
                "no sample in it has an address of data: record with perf record -d, and give the recording or its text by perf report -D",
            ));
        }
        let counts = counting.counts.into_iter();
        let mut counts: Vec<_> = counts.map(|((ip, name), n)| (ip, name.into(), n)).collect();
        counts.sort_unstable();
        Ok(Accesses {
            counts,
            samples: counting.samples,
        })
    }

    /// An error if there are any, where a profile has no place for them.
    pub(crate) fn refuse(&self, profile: &str) -> Result<(), FormatError> {
        if self.samples == 0 {
            return Ok(());
        }
        Err(FormatError::new(format!(
            "virtual tables that were read cannot be put into a profile with {profile}"
        )))
    }

    /// Instruction, name of the table and count, in a fixed order.
    pub fn counts(&self) -> impl Iterator<Item = (u64, &[u8], u64)> {
        self.counts
            .iter()
            .map(|(ip, name, count)| (*ip, &**name, *count))
    }
}

impl<'d> File<'d> {
    fn new(elf: &Elf<'d>) -> File<'d> {
        let symbols = elf.symbols(SymbolTable::Static);
        let tables = symbols.iter().filter(|s| {
            s.kind == OBJECT && s.section != 0 && s.size > 0 && s.name.starts_with(VTABLE)
        });
        let mut tables: Vec<_> = tables
            .map(|s| (s.value, s.value.saturating_add(s.size), s.name))
            .collect();
        tables.sort_unstable();
        let loads = elf.loads();
        File {
            tables,
            loads: loads.map(|l| (l.offset, l.file_size, l.addr)).collect(),
        }
    }

    /// The table that holds a word of the file's memory.
    fn table(&self, address: u64) -> Option<&'d [u8]> {
        let after = self.tables.partition_point(|table| table.0 <= address);
        let before = self.tables.get(..after)?.iter().rev();
        // Tables do not overlap, but one may have several names: the first of them.
        let (start, ..) = *before.clone().find(|table| address < table.1)?;
        let same = before.take_while(|table| table.0 == start);
        same.filter(|table| address < table.1)
            .last()
            .map(|table| table.2)
    }

    /// The address at which an offset of the file is loaded.
    fn address(&self, offset: u64) -> Option<u64> {
        let load = self
            .loads
            .iter()
            .find(|load| load.0 <= offset && offset - load.0 < load.1)?;
        Some(load.2.wrapping_add(offset - load.0))
    }
}

impl Counting<'_> {
    fn add(&mut self, ip: u64, address: u64) {
        self.samples += 1;
        if let Some(name) = self.file.table(address) {
            let count = self.counts.entry((ip, name)).or_default();
            *count = count.saturating_add(1);
        }
    }

    fn recording(
        &mut self,
        bytes: &[u8],
        elf: &Elf<'_>,
        options: &Options,
    ) -> Result<(), FormatError> {
        let path = Path::new("perf.data");
        let bad = |error: postlink_profile::Error| FormatError::new(error.to_string());
        let data = PerfData::new(path, bytes).map_err(bad)?;
        let spaces = data.spaces();
        let name = options.file.as_bytes();
        let found = postlink_profile::modules_of_binary(spaces.modules(), name, elf.build_id);
        if found.by == RecognisedBy::Nothing {
            return Err(FormatError::new(format!(
                "no mapping in it is of {}",
                options.file
            )));
        }
        let parts = data.map_samples(path, Vec::new, |part: &mut Vec<(u64, u64)>, sample| {
            let pid = sample.pid.map(i64::from);
            let other = options.pid.is_some_and(|wanted| pid != Some(wanted));
            let (Some(ip), Some(data), false) = (sample.ip, sample.address, other) else {
                return;
            };
            let mut space = spaces.process(sample.pid);
            let [ip, data] = [ip, data].map(|address| {
                let place = space.resolve(address, sample.time);
                let wanted = found.modules.get(place.module.0 as usize);
                let ours = wanted.is_some_and(|wanted| *wanted);
                ours.then(|| self.file.address(place.address))
                    .flatten()
                    .unwrap_or(address)
            });
            part.push((ip, data));
        });
        for (ip, data) in parts.map_err(bad)?.into_iter().flatten() {
            self.add(ip, data);
        }
        Ok(())
    }

    fn text(&mut self, text: &[u8], options: &Options) {
        let mut parts: FxHashMap<i64, Vec<Part>> = FxHashMap::default();
        for line in text.split(|&byte| byte == b'\n') {
            if let Some(at) = memmem::find(line, b"PERF_RECORD_MMAP") {
                let (pid, mapping) = match event(line, at) {
                    Some(event) => event,
                    None => continue,
                };
                let name = mapping.path.rsplit(|&byte| byte == b'/').next();
                if name.is_some_and(|name| name.trim_ascii() == options.file.as_bytes()) {
                    parts.entry(pid).or_default().push(Part {
                        start: mapping.start,
                        len: mapping.len,
                        offset: mapping.file_offset,
                    });
                }
                continue;
            }
            let Some((pid, ip, data)) = sample(line) else {
                continue;
            };
            if options.pid.is_some_and(|wanted| wanted != pid) {
                continue;
            }
            let own = parts.get(&pid).map_or(&[][..], Vec::as_slice);
            let [ip, data] = [ip, data].map(|address| {
                // The latest mapping holds.
                let holds = |part: &&Part| address.wrapping_sub(part.start) < part.len;
                let part = own.iter().rev().find(holds);
                let in_file = part.and_then(|p| self.file.address(address - p.start + p.offset));
                in_file.unwrap_or(address)
            });
            self.add(ip, data);
        }
    }
}

/// A mapping event, whose name is at `at` in its line.
fn event(line: &[u8], at: usize) -> Option<(i64, Mapping)> {
    let record = line.get(at..)?;
    let blank = memchr::memchr(b' ', record)?;
    let (pid, mapping) = perf_script::mapping(record.get(blank..)?)?;
    Some((i64::from(pid), mapping))
}

/// Process, instruction and address of data of a sample's line.
fn sample(line: &[u8]) -> Option<(i64, u64, u64)> {
    const NAME: &[u8] = b"PERF_RECORD_SAMPLE(";
    let line = line.get(memmem::find(line, NAME)? + NAME.len()..)?;
    let line = line.get(memmem::find(line, b"): ")? + 3..)?;
    let mut words = line
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty());
    let process = words.next()?;
    let process = process.split(|&byte| byte == b'/').next()?;
    let pid = i64::try_from(crate::counters::parse(process, 10)?).ok()?;
    let number = |word: &[u8]| crate::counters::parse(word.strip_prefix(b"0x")?, 16);
    let ip = number(words.next()?)?;
    words.find(|word| *word == b"addr:")?;
    Some((pid, ip, number(words.next()?)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_say_where_and_what_was_read() {
        let line = b"12 0x8660 [0x60]: PERF_RECORD_SAMPLE(IP, 0x4002): 77/78: 0x2608a2 period: 233 addr: 0x3b3f70";
        assert_eq!(sample(line), Some((77, 0x2608a2, 0x3b3f70)));
        for other in [
            &b"PERF_RECORD_SAMPLE(IP, 0x4002): 77/78: 0x2608a2 period: 233"[..],
            b"PERF_RECORD_SAMPLE(IP, 0x4002): 77/78: 2608a2 period: 233 addr: 0x3b3f70",
            b"PERF_RECORD_SAMPLE(IP, 0x4002): x/78: 0x26 period: 233 addr: 0x3b3f70",
            b"PERF_RECORD_SAMPLE(IP, 0x4002): 77/78: 0x26 period: 233 addr: 0x",
            b"PERF_RECORD_COMM: 77/78",
            b"",
        ] {
            assert_eq!(sample(other), None, "{}", String::from_utf8_lossy(other));
        }
    }

    #[test]
    fn a_word_belongs_to_the_table_that_holds_it() {
        let file = File {
            tables: vec![
                (16, 40, b"_ZTV1A"),
                (16, 40, b"_ZTV1B"),
                (64, 72, b"_ZTV1C"),
            ],
            loads: vec![(0, 0x100, 0x1000), (0x100, 0x80, 0x3100)],
        };
        let name = |at| file.table(at);
        assert_eq!([name(15), name(40), name(63), name(72)], [None; 4]);
        assert_eq!([name(16), name(39)], [Some(&b"_ZTV1A"[..]); 2]);
        assert_eq!(name(64), Some(&b"_ZTV1C"[..]));
        assert_eq!(file.address(0x17f), Some(0x317f));
        assert_eq!(file.address(0x180), None);
    }
}
