//! pprof's file: a message `perftools.profiles.Profile`, compressed by gzip or not.
//!
//! | field | of | |
//! |---|---|---|
//! | 1 `sample_type`, 11 `period_type`, 12 `period`, 14 `default_sample_type` | profile | which value a sample has, at what distance |
//! | 2 `sample` | profile | 1 `location_id`, innermost first; 2 `value`, one for each type |
//! | 3 `mapping` | profile | 1 `id`, 2 `memory_start`, 3 `memory_limit`, 4 `file_offset`, 5 `filename`, 6 `build_id` |
//! | 4 `location` | profile | 1 `id`, 2 `mapping_id`, 3 `address` |
//! | 6 `string_table` | profile | texts are places in it |
//!
//! Of several values the one is taken that counts samples (`samples/count`), else the default one, else the last;
//! `--event NAME` chooses another.
//!
//! Source: <https://github.com/google/pprof/blob/main/proto/profile.proto>; the messages have its names and numbers,
//! and only fields that are read.

use std::path::Path;

use prost::Message;
use rustc_hash::FxHashMap;

use super::{Adding, Mapped, Measured, build_id, samples_of, undecodable, unpack, whole};
use crate::Error;
use crate::address::{AddressProfile, Place};
use crate::samples::Options;
use crate::source::Source;

#[derive(Clone, PartialEq, Message)]
struct Profile {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "3")]
    mapping: Vec<Mapping>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(bytes = "vec", repeated, tag = "6")]
    string_table: Vec<Vec<u8>>,
    #[prost(message, optional, tag = "11")]
    period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    period: i64,
    #[prost(int64, tag = "14")]
    default_sample_type: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    r#type: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Mapping {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    memory_start: u64,
    #[prost(uint64, tag = "3")]
    memory_limit: u64,
    #[prost(uint64, tag = "4")]
    file_offset: u64,
    #[prost(int64, tag = "5")]
    filename: i64,
    #[prost(int64, tag = "6")]
    build_id: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    mapping_id: u64,
    #[prost(uint64, tag = "3")]
    address: u64,
}

/// Reads a file.
pub fn read(path: &Path, options: &Options) -> Result<AddressProfile, Error> {
    read_bytes(path, &Source::open(path)?, options)
}

/// Reads the contents of a file; `name` is what errors call it.
pub fn read_bytes(name: &Path, bytes: &[u8], options: &Options) -> Result<AddressProfile, Error> {
    let unpacked = unpack(name, bytes)?;
    let profile = Profile::decode(&unpacked[..])
        .map_err(|error| undecodable(name, "the pprof profile", &error))?;
    if !options.pids.is_empty() {
        return Err(whole(
            name,
            "a pprof profile does not say which process samples are of".to_owned(),
        ));
    }
    profile.samples(name, options)
}

impl Profile {
    fn text(&self, path: &Path, place: i64) -> Result<&[u8], Error> {
        let found = usize::try_from(place)
            .ok()
            .and_then(|place| self.string_table.get(place));
        match found {
            Some(text) => Ok(text),
            // An empty table is one with an empty text.
            None if place == 0 => Ok(b""),
            None => Err(whole(
                path,
                format!(
                    "text {place} is wanted, and there are {}",
                    self.string_table.len()
                ),
            )),
        }
    }

    fn measured(&self, path: &Path, of: ValueType) -> Result<Measured<'_>, Error> {
        Ok(Measured {
            name: self.text(path, of.r#type)?,
            unit: self.text(path, of.unit)?,
        })
    }

    /// Which value of the samples is taken, and the period that one is for.
    fn value(&self, path: &Path, options: &Options) -> Result<(usize, Measured<'_>, u64), Error> {
        let types = self
            .sample_type
            .iter()
            .map(|&of| self.measured(path, of))
            .collect::<Result<Vec<_>, _>>()?;
        let wanted = |measured: &Measured<'_>| {
            let mut events = options.events.iter();
            events.any(|event| memchr::memmem::find(measured.name, event.as_bytes()).is_some())
        };
        let of_samples =
            |measured: &Measured<'_>| measured.name == b"samples" && measured.unit == b"count";
        let default = self.text(path, self.default_sample_type)?;
        let is_default = |measured: &Measured<'_>| measured.name == default;
        let all = || {
            types
                .iter()
                .map(Measured::says)
                .collect::<Vec<_>>()
                .join(", ")
        };
        let index = if options.events.is_empty() {
            (types.iter().position(of_samples))
                .or_else(|| types.iter().position(is_default))
                .or(types.len().checked_sub(1))
        } else {
            types.iter().position(wanted)
        };
        let Some((index, &measured)) = index.and_then(|index| Some((index, types.get(index)?)))
        else {
            return Err(whole(
                path,
                if types.is_empty() {
                    "the pprof profile has no types of samples".to_owned()
                } else {
                    format!(
                        "no type of samples is called {}: there are {}",
                        options.events.join(", "),
                        all()
                    )
                },
            ));
        };
        if !measured.is_of_time() {
            return Err(whole(
                path,
                format!("samples are {}: not of what ran", all()),
            ));
        }
        let same = match self.period_type {
            Some(of) => self.measured(path, of)? == measured,
            None => false,
        };
        let period = u64::try_from(self.period).ok().filter(|_| same);
        Ok((index, measured, period.unwrap_or(1)))
    }

    fn samples(&self, path: &Path, options: &Options) -> Result<AddressProfile, Error> {
        let (index, measured, period) = self.value(path, options)?;
        let mut out = Adding::default();
        let mut mappings = FxHashMap::default();
        for mapping in &self.mapping {
            let file = self.text(path, mapping.filename)?.to_vec();
            let module = out.module(file, build_id(self.text(path, mapping.build_id)?));
            mappings.insert(
                mapping.id,
                Mapped {
                    module,
                    start: mapping.memory_start,
                    limit: mapping.memory_limit,
                    file_offset: mapping.file_offset,
                },
            );
        }
        let locations: FxHashMap<u64, &Location> = self
            .location
            .iter()
            .map(|location| (location.id, location))
            .collect();
        out.collector.events.insert(measured.name.to_vec());
        for (number, sample) in self.sample.iter().enumerate() {
            let Some(&value) = sample.value.get(index) else {
                return Err(whole(
                    path,
                    format!(
                        "sample {number} has {} values, and there are {} types",
                        sample.value.len(),
                        self.sample_type.len()
                    ),
                ));
            };
            let count = samples_of(path, number, value, period)?;
            let place = match sample.location_id.first() {
                None => Place::OUTSIDE,
                Some(id) => {
                    let location = locations.get(id).ok_or_else(|| {
                        whole(
                            path,
                            format!("sample {number} is of location {id}, which is not there"),
                        )
                    })?;
                    if location.address == 0 {
                        out.without_address = out.without_address.saturating_add(count);
                    }
                    let mapped = mappings.get(&location.mapping_id);
                    mapped.map_or(Place::OUTSIDE, |mapped| mapped.place(location.address))
                }
            };
            out.sample(place, count);
        }
        out.finish(path)
    }
}
