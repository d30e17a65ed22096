//! OpenTelemetry's profiles, `v1development`: a message `ProfilesData`, as `opentelemetry-ebpf-profiler` and collectors
//! send and store it; compressed by gzip or not.
//!
//! | message | fields that are read |
//! |---|---|
//! | `ProfilesData` | 1 `resource_profiles`, 2 `dictionary` |
//! | `ResourceProfiles` | 1 `resource` (attribute `process.pid`), 2 `scope_profiles` |
//! | `ScopeProfiles` | 2 `profiles` |
//! | `Profile` | 1 `sample_type`, 2 `samples`, 5 `period_type`, 6 `period` |
//! | `Sample` | 1 `stack_index`, 4 `values`, 5 `timestamps_unix_nano` |
//! | `ProfilesDictionary` | 1 `mapping_table`, 2 `location_table`, 5 `string_table`, 6 `attribute_table`, 7 `stack_table` |
//! | `Mapping` | 1 `memory_start`, 2 `memory_limit`, 3 `file_offset`, 4 `filename_strindex`, 5 `attribute_indices` |
//! | `Location` | 1 `mapping_index`, 2 `address` |
//! | `Stack` | 1 `location_indices`, innermost first |
//!
//! A sample has values, or times, or both: without values it counts as often as it has times. Mapping 0 stands for
//! none. Times are not looked at beyond their number: clocks of hosts differ.
//!
//! Source: <https://github.com/open-telemetry/opentelemetry-proto>, `opentelemetry/proto/profiles/v1development`; the
//! messages have its names and numbers. The format is not final: a file of an earlier draft has other fields in
//! these places, and is refused where that can be seen.

use std::path::Path;

use prost::Message;

use super::{Adding, Mapped, Measured, build_id, samples_of, undecodable, unpack, whole};
use crate::Error;
use crate::address::{AddressProfile, Place};
use crate::samples::Options;
use crate::source::Source;

#[derive(Clone, PartialEq, Message)]
struct ProfilesData {
    #[prost(message, repeated, tag = "1")]
    resource_profiles: Vec<ResourceProfiles>,
    #[prost(message, optional, tag = "2")]
    dictionary: Option<Dictionary>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceProfiles {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_profiles: Vec<ScopeProfiles>,
}

#[derive(Clone, PartialEq, Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

/// One of several; the fields that are read.
#[derive(Clone, PartialEq, Message)]
struct AnyValue {
    #[prost(bytes = "vec", tag = "1")]
    string_value: Vec<u8>,
    #[prost(int64, tag = "3")]
    int_value: i64,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeProfiles {
    #[prost(message, repeated, tag = "2")]
    profiles: Vec<Profile>,
}

#[derive(Clone, PartialEq, Message)]
struct Profile {
    #[prost(message, optional, tag = "1")]
    sample_type: Option<ValueType>,
    #[prost(message, repeated, tag = "2")]
    samples: Vec<Sample>,
    #[prost(message, optional, tag = "5")]
    period_type: Option<ValueType>,
    #[prost(int64, tag = "6")]
    period: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct ValueType {
    #[prost(int32, tag = "1")]
    type_strindex: i32,
    #[prost(int32, tag = "2")]
    unit_strindex: i32,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(int32, tag = "1")]
    stack_index: i32,
    #[prost(int64, repeated, tag = "4")]
    values: Vec<i64>,
    #[prost(fixed64, repeated, tag = "5")]
    timestamps_unix_nano: Vec<u64>,
}

#[derive(Clone, PartialEq, Message)]
struct Dictionary {
    #[prost(message, repeated, tag = "1")]
    mapping_table: Vec<Mapping>,
    #[prost(message, repeated, tag = "2")]
    location_table: Vec<Location>,
    #[prost(bytes = "vec", repeated, tag = "5")]
    string_table: Vec<Vec<u8>>,
    #[prost(message, repeated, tag = "6")]
    attribute_table: Vec<KeyValueAndUnit>,
    #[prost(message, repeated, tag = "7")]
    stack_table: Vec<Stack>,
}

#[derive(Clone, PartialEq, Message)]
struct Mapping {
    #[prost(uint64, tag = "1")]
    memory_start: u64,
    #[prost(uint64, tag = "2")]
    memory_limit: u64,
    #[prost(uint64, tag = "3")]
    file_offset: u64,
    #[prost(int32, tag = "4")]
    filename_strindex: i32,
    #[prost(int32, repeated, tag = "5")]
    attribute_indices: Vec<i32>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Location {
    #[prost(int32, tag = "1")]
    mapping_index: i32,
    #[prost(uint64, tag = "2")]
    address: u64,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValueAndUnit {
    #[prost(int32, tag = "1")]
    key_strindex: i32,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct Stack {
    #[prost(int32, repeated, tag = "1")]
    location_indices: Vec<i32>,
}

/// The attribute with a mapping's GNU build-id in hexadecimal.
const BUILD_ID: &[u8] = b"process.executable.build_id.gnu";
/// The attribute with a resource's process.
const PID: &[u8] = b"process.pid";

/// Reads a file.
pub fn read(path: &Path, options: &Options) -> Result<AddressProfile, Error> {
    read_bytes(path, &Source::open(path)?, options)
}

/// Reads the contents of a file; `name` is what errors call it.
pub fn read_bytes(name: &Path, bytes: &[u8], options: &Options) -> Result<AddressProfile, Error> {
    let unpacked = unpack(name, bytes)?;
    let data = ProfilesData::decode(&unpacked[..]).map_err(|error| {
        undecodable(
            name,
            "the OpenTelemetry profiles (v1development, as of opentelemetry-proto 1.9)",
            &error,
        )
    })?;
    let dictionary = data.dictionary.unwrap_or_default();
    let mut reader = Reader::new(name, &dictionary)?;
    for resource in &data.resource_profiles {
        if !options.pids.is_empty()
            && !process(resource).is_some_and(|pid| options.pids.contains(&pid))
        {
            continue;
        }
        for profile in resource
            .scope_profiles
            .iter()
            .flat_map(|scope| &scope.profiles)
        {
            reader.profile(profile, options)?;
        }
    }
    reader.out.finish(name)
}

fn process(resource: &ResourceProfiles) -> Option<i32> {
    let mut attributes = resource.resource.as_ref()?.attributes.iter();
    let value = attributes
        .find(|attribute| attribute.key == PID)?
        .value
        .as_ref()?;
    i32::try_from(value.int_value).ok()
}

struct Reader<'d> {
    path: &'d Path,
    dictionary: &'d Dictionary,
    /// By place in the table.
    mappings: Vec<Mapped>,
    out: Adding,
}

/// An element of a table by the number that a file gives.
fn element<'t, T>(path: &Path, table: &'t [T], what: &str, place: i32) -> Result<&'t T, Error> {
    let found = usize::try_from(place)
        .ok()
        .and_then(|place| table.get(place));
    found.ok_or_else(|| {
        whole(
            path,
            format!("{what} {place} is wanted, and there are {}", table.len()),
        )
    })
}

impl<'d> Reader<'d> {
    fn new(path: &'d Path, dictionary: &'d Dictionary) -> Result<Reader<'d>, Error> {
        let mut reader = Reader {
            path,
            dictionary,
            mappings: Vec::new(),
            out: Adding::default(),
        };
        for mapping in &dictionary.mapping_table {
            let file = reader.text(mapping.filename_strindex)?.to_vec();
            let mut id = Vec::new();
            for &place in &mapping.attribute_indices {
                let attribute = element(path, &dictionary.attribute_table, "attribute", place)?;
                if reader.text(attribute.key_strindex)? == BUILD_ID
                    && let Some(value) = &attribute.value
                {
                    id = build_id(&value.string_value);
                }
            }
            let module = reader.out.module(file, id);
            reader.mappings.push(Mapped {
                module,
                start: mapping.memory_start,
                limit: mapping.memory_limit,
                file_offset: mapping.file_offset,
            });
        }
        Ok(reader)
    }

    fn text(&self, place: i32) -> Result<&'d [u8], Error> {
        if place == 0 {
            return Ok(b"");
        }
        Ok(element(
            self.path,
            &self.dictionary.string_table,
            "text",
            place,
        )?)
    }

    fn measured(&self, of: ValueType) -> Result<Measured<'d>, Error> {
        Ok(Measured {
            name: self.text(of.type_strindex)?,
            unit: self.text(of.unit_strindex)?,
        })
    }

    /// Where a sample is, and whether that has an address.
    fn place(&self, sample: &Sample) -> Result<(Place, bool), Error> {
        let tables = self.dictionary;
        let stack = element(self.path, &tables.stack_table, "stack", sample.stack_index)?;
        let Some(&location) = stack.location_indices.first() else {
            return Ok((Place::OUTSIDE, true));
        };
        let location = element(self.path, &tables.location_table, "location", location)?;
        if location.address == 0 {
            return Ok((Place::OUTSIDE, false));
        }
        if location.mapping_index == 0 {
            return Ok((Place::OUTSIDE, true));
        }
        let mapped = element(self.path, &self.mappings, "mapping", location.mapping_index)?;
        Ok((mapped.place(location.address), true))
    }

    fn profile(&mut self, profile: &Profile, options: &Options) -> Result<(), Error> {
        let measured = self.measured(profile.sample_type.unwrap_or_default())?;
        let mut events = options.events.iter();
        if !options.events.is_empty()
            && !events.any(|event| memchr::memmem::find(measured.name, event.as_bytes()).is_some())
        {
            return Ok(());
        }
        if !measured.is_of_time() {
            return Err(whole(
                self.path,
                format!("samples are {}: not of what ran", measured.says()),
            ));
        }
        let same = match profile.period_type {
            Some(of) => self.measured(of)? == measured,
            None => false,
        };
        let period = u64::try_from(profile.period)
            .ok()
            .filter(|_| same)
            .unwrap_or(1);
        if !profile.samples.is_empty() && !measured.name.is_empty() {
            self.out.collector.events.insert(measured.name.to_vec());
        }
        for (number, sample) in profile.samples.iter().enumerate() {
            let mut count = if sample.values.is_empty() {
                sample.timestamps_unix_nano.len() as u64
            } else {
                0
            };
            let mut value = 0i64;
            for &next in &sample.values {
                // Each is looked at, so that no negative one hides behind a larger one.
                samples_of(self.path, number, next, 1)?;
                value = value.saturating_add(next);
            }
            if !sample.values.is_empty() {
                count = samples_of(self.path, number, value, period)?;
            }
            let (place, has_address) = self.place(sample)?;
            if !has_address {
                self.out.without_address = self.out.without_address.saturating_add(count);
            }
            self.out.sample(place, count);
        }
        Ok(())
    }
}
