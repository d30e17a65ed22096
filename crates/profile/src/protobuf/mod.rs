//! Profiles that are protobuf messages: pprof's `profile.proto`, OpenTelemetry's profiles, and [what simpleperf
//! reports](simpleperf), which is a row of messages behind a magic number.
//!
//! The first two list *samples*: a chain of locations, innermost first, and values. A location has an address and the
//! mapping that it is in. What is taken of a sample is its innermost address: an offset in the mapped file. Callers
//! are left out, as the samples of their own blocks say how often they ran.
//!
//! | | [`pprof`] | [`otlp`] |
//! |---|---|---|
//! | message | `perftools.profiles.Profile` | `opentelemetry.proto.profiles.v1development.ProfilesData` |
//! | tables | in the profile, by ids | one dictionary for all profiles, by places |
//! | build-id | a field of the mapping | attribute `process.executable.build_id.gnu` of the mapping |
//! | compressed | by gzip, usually | as the sender likes; gzip is read |
//!
//! Nothing in these files says which of the two they are. Both begin with field 1, which is a message: of a pprof file
//! it has numbers (a type and its unit, by places in the string table), of the other messages (a resource, scopes).
//!
//! Values are counts or times. A time is divided by the period at which samples were taken, if the file says it for the
//! same type; else it is taken for a count, as only ratios matter. Negative values (pprof's differences of two
//! profiles) are an error, and so are profiles of memory and locks, which do not say where time was spent.

pub mod otlp;
pub mod pprof;
pub mod simpleperf;

use std::borrow::Cow;
use std::io::Read;
use std::path::Path;

use flate2::read::MultiGzDecoder;
use rustc_hash::FxHashMap;

use crate::address::{AddressKind, AddressProfile, Collector, Module, ModuleId, Place, Seen};
use crate::{Error, Format, source};

/// Unpacked bytes that are read at most.
const MOST: u64 = 2 << 30;

const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Whether a file that begins like this is one of these, and which.
pub(crate) fn recognise(start: &[u8]) -> Option<Format> {
    if start.starts_with(simpleperf::MAGIC) {
        return Some(Format::Simpleperf);
    }
    let mut unpacked = [0; 64];
    let start = if start.starts_with(&GZIP) {
        // The file goes on after what is at hand: an error after some bytes is none.
        let mut decoder = MultiGzDecoder::new(start);
        let mut len = 0;
        while let Some(rest) = unpacked.get_mut(len..).filter(|rest| !rest.is_empty()) {
            match decoder.read(rest) {
                Ok(more) if more > 0 => len += more,
                _ => break,
            }
        }
        unpacked.get(..len)?
    } else {
        start
    };
    const FIELD_1: u8 = 0x0a;
    const FIELD_2: u8 = 0x12;
    let (&field, rest) = without_times(start).split_first()?;
    // The length, of up to ten bytes.
    let len = rest.iter().take(10).position(|byte| byte & 0x80 == 0)? + 1;
    let inner = *rest.get(len)?;
    let short = len == 1 && rest.first().is_some_and(|&len| (2..=22).contains(&len));
    match (field, inner) {
        // A value type: field 1 or 2, both numbers.
        (FIELD_1, 0x08 | 0x10) if short => Some(Format::Pprof),
        // A resource, scopes, the address of a schema; all are messages or text.
        (FIELD_1, 0x0a | 0x12 | 0x1a) => Some(Format::Otlp),
        // A dictionary that comes first: with a table of mappings.
        (FIELD_2, 0x0a) => Some(Format::Otlp),
        _ => None,
    }
}

/// What follows numbers that Go writes first in a pprof profile: time (field 9), duration (10) and period (12).
fn without_times(mut start: &[u8]) -> &[u8] {
    while let Some((0x48 | 0x50 | 0x60, rest)) = start.split_first() {
        let Some(last) = rest.iter().take(10).position(|byte| byte & 0x80 == 0) else {
            break;
        };
        start = rest.get(last + 1..).unwrap_or_default();
    }
    start
}

/// The message in a file.
fn unpack<'b>(path: &Path, bytes: &'b [u8]) -> Result<Cow<'b, [u8]>, Error> {
    if !bytes.starts_with(&GZIP) {
        return Ok(Cow::Borrowed(bytes));
    }
    let mut out = Vec::new();
    MultiGzDecoder::new(bytes)
        .take(MOST + 1)
        .read_to_end(&mut out)
        .map_err(|e| Error::io(path, "unpack (gzip)", e))?;
    if out.len() as u64 > MOST {
        return Err(Error::at_byte(
            path,
            0,
            format!("unpacks to more than {MOST} bytes, which are read at most"),
        ));
    }
    Ok(Cow::Owned(out))
}

/// The error of a message that is none.
fn undecodable(path: &Path, what: &str, error: &prost::DecodeError) -> Error {
    whole(path, format!("{what} cannot be decoded: {error}"))
}

fn whole(path: &Path, what: String) -> Error {
    Error::Format {
        path: path.to_owned(),
        place: crate::Place::Whole,
        what,
    }
}

/// A build-id as text; empty if it is not one in hexadecimal (Go's own ids are other text).
fn build_id(text: &[u8]) -> Vec<u8> {
    let byte = |pair: &[u8]| {
        let byte = source::hex(pair).filter(|_| pair.len() == 2)?;
        u8::try_from(byte).ok()
    };
    text.chunks(2)
        .map(byte)
        .collect::<Option<_>>()
        .unwrap_or_default()
}

/// A part of a file in memory.
#[derive(Clone, Copy)]
struct Mapped {
    module: ModuleId,
    start: u64,
    /// Exclusive; 0 if it is not known.
    limit: u64,
    file_offset: u64,
}

impl Mapped {
    /// Where an address of it is in the file; outside if it is not in the mapping.
    fn place(&self, address: u64) -> Place {
        let inside = self.limit == 0 || address < self.limit;
        match address.checked_sub(self.start) {
            Some(offset) if inside => Place {
                module: self.module,
                address: self.file_offset.saturating_add(offset),
            },
            _ => Place::OUTSIDE,
        }
    }
}

/// Samples that are being added up.
#[derive(Default)]
struct Adding {
    modules: Vec<Module>,
    numbers: FxHashMap<Module, ModuleId>,
    collector: Collector,
    /// Samples without an address: a run-time knew names alone.
    without_address: u64,
}

impl Adding {
    fn module(&mut self, path: Vec<u8>, build_id: Vec<u8>) -> ModuleId {
        let module = Module {
            path,
            build_id,
            kind: AddressKind::FileOffset,
        };
        if let Some(&known) = self.numbers.get(&module) {
            return known;
        }
        let number = ModuleId(u32::try_from(self.modules.len()).unwrap_or(u32::MAX));
        self.modules.push(module.clone());
        self.numbers.insert(module, number);
        number
    }

    /// Adds samples of one address.
    fn sample(&mut self, place: Place, count: u64) {
        let statistics = &mut self.collector.statistics;
        statistics.samples = statistics.samples.saturating_add(count);
        if place.is_outside() {
            statistics.outside = statistics.outside.saturating_add(count);
        } else {
            self.collector.sample(place, count);
        }
    }

    fn finish(self, path: &Path) -> Result<AddressProfile, Error> {
        let samples = self.collector.statistics.samples;
        if samples > 0 && self.without_address == samples {
            return Err(whole(
                path,
                format!(
                    "none of {samples} samples has an address: only functions by name, which say nothing of blocks"
                ),
            ));
        }
        let mut profile = self.collector.finish(&self.modules);
        if samples > 0 {
            let seen = Seen {
                samples,
                ..Seen::default()
            };
            profile.mapped = self
                .modules
                .into_iter()
                .map(|module| (module, seen))
                .collect();
        }
        Ok(profile)
    }
}

/// What is measured, in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Measured<'t> {
    name: &'t [u8],
    unit: &'t [u8],
}

impl Measured<'_> {
    /// Whether samples are of what ran, not of memory or of waiting.
    fn is_of_time(&self) -> bool {
        const OTHERS: [&[u8]; 8] = [
            b"alloc_",
            b"inuse_",
            b"objects",
            b"space",
            b"contentions",
            b"delay",
            b"goroutine",
            b"thread",
        ];
        self.unit != b"bytes" && !OTHERS.iter().any(|other| self.name.starts_with(other))
    }

    fn says(&self) -> String {
        format!(
            "{}/{}",
            String::from_utf8_lossy(self.name),
            String::from_utf8_lossy(self.unit)
        )
    }
}

/// Samples of a value: one for each period, if that is known (else 1), and one at least for what is not 0.
fn samples_of(path: &Path, number: usize, value: i64, period: u64) -> Result<u64, Error> {
    let value = u64::try_from(value).map_err(|_| {
        whole(
            path,
            format!("sample {number} has the value {value}: a difference of profiles says nothing of what ran"),
        )
    })?;
    let rounded = value.saturating_add(period / 2) / period.max(1);
    Ok(rounded.max(u64::from(value > 0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bytes_tell_the_two_apart() {
        assert_eq!(recognise(b"\x0a\x04\x08\x01\x10\x02"), Some(Format::Pprof));
        // As Go writes it: the time comes first.
        let go = b"\x48\x86\xc9\x99\xb3\x90\xec\xd0\xf5\x18\x0a\x04\x08\x01\x10\x02";
        assert_eq!(recognise(go), Some(Format::Pprof));
        assert_eq!(recognise(b"\x48\xff\xff\xff"), None);
        assert_eq!(recognise(b"Hello\n"), None);
        assert_eq!(recognise(b"\x0a\x80\x01\x0a\x02"), Some(Format::Otlp));
        assert_eq!(recognise(b"\x12\x80\x80\x01\x0a\x00"), Some(Format::Otlp));
        assert_eq!(recognise(b"\n\nB 10 20 1 0\n"), None);
        assert_eq!(recognise(b"\n"), None);
        assert_eq!(recognise(b"\x1f\x8b"), None);
    }

    #[test]
    fn values_are_periods() {
        let path = Path::new("p");
        assert_eq!(samples_of(path, 0, 25_000_000, 10_000_000).unwrap(), 3);
        assert_eq!(samples_of(path, 0, 1, 10_000_000).unwrap(), 1);
        assert_eq!(samples_of(path, 0, 0, 10).unwrap(), 0);
        assert_eq!(samples_of(path, 0, i64::MAX, 0).unwrap(), i64::MAX as u64);
        let negative = samples_of(path, 7, -3, 1).unwrap_err().to_string();
        assert_eq!(
            negative,
            "p: sample 7 has the value -3: a difference of profiles says nothing of what ran"
        );
    }

    #[test]
    fn a_mapping_ends_where_it_ends() {
        let mapped = Mapped {
            module: ModuleId(0),
            start: 0x1000,
            limit: 0x2000,
            file_offset: 0x400,
        };
        assert_eq!(mapped.place(0x1010).address, 0x410);
        assert!(mapped.place(0x2000).is_outside());
        assert!(mapped.place(0xfff).is_outside());
        let huge = Mapped {
            limit: 0,
            file_offset: u64::MAX,
            ..mapped
        };
        assert_eq!(huge.place(u64::MAX).address, u64::MAX);
    }
}
