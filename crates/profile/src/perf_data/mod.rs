//! `perf.data`, as `perf record` writes it: mapped, and read in parallel without `perf`.
//!
//! | part | |
//! |---|---|
//! | header | [`header`]: `PERFILE2`, sections, optional features (build-ids, event names) |
//! | attributes | [`attr`]: one per event; what its samples hold and in which order |
//! | records | [`record`]: header of 8 bytes (type u32, misc u16, size u16), then the contents |
//!
//! In pipe mode (`perf record -o -`) the header is 16 bytes, and attributes and features are records among the others.
//!
//! Two passes. The first walks over the record headers, in order: it collects attributes, mappings and
//! processes, and cuts the rest into pieces. The second decodes samples, piece by piece in parallel; their
//! addresses are looked up as of their time (see [`crate::spaces`]), because records of different CPUs are
//! not in the order of time.
//!
//! Records that are compressed (`perf record -z`) are unpacked first: [`compressed`]. Not read: big-endian
//! recordings, which are an error that says so. Of trace data ([`auxtrace`]) those of Arm SPE are decoded
//! ([`spe`]); Intel PT and CoreSight ETM are an error that says what to do, if no sample has branches.
//!
//! What the file says decides where to read next, so nothing here is indexed: each read is checked.

#![warn(clippy::indexing_slicing)]

mod attr;
mod auxtrace;
mod compressed;
mod cursor;
mod header;
mod record;
mod spe;

use std::path::Path;

use crate::address::AddressProfile;
use crate::samples::{self, Adder, FirstFull, Options, Sample};
use crate::source::{Pages, Source, piece_count, share};
use crate::spaces::Spaces;
use crate::{Error, progress};

pub use attr::Attribute;
use auxtrace::Kind;
use header::Header;
use record::Recording;

/// A wrong place in the file: offset and a sentence.
#[derive(Debug)]
pub(crate) struct Wrong(Box<(u64, String)>);

impl Wrong {
    #[cold]
    fn new(at: usize, what: impl Into<String>) -> Wrong {
        Wrong(Box::new((at as u64, what.into())))
    }

    /// The same, with where that is.
    fn inside(mut self, place: &str) -> Wrong {
        self.0.1 = format!("{place}: {}", self.0.1);
        self
    }

    fn locate(self, path: &Path) -> Error {
        let (at, what) = *self.0;
        Error::at_byte(path, at, what)
    }
}

/// A recording whose first pass is done.
#[derive(Debug)]
pub struct PerfData<'a> {
    recording: Recording<'a>,
    spaces: Spaces,
}

impl<'a> PerfData<'a> {
    /// Reads everything but the samples; `name` is what errors call the file.
    pub fn new(name: &Path, bytes: impl Into<Pages<'a>>) -> Result<PerfData<'a>, Error> {
        PerfData::parse(bytes.into()).map_err(|wrong| wrong.locate(name))
    }

    fn parse(pages: Pages<'a>) -> Result<PerfData<'a>, Wrong> {
        let header = Header::parse(pages.bytes())?;
        let mut recording = Recording::scan(pages, header)?;
        let events = std::mem::take(&mut recording.space_events);
        let spaces = Spaces::new(events, &recording.build_ids);
        Ok(PerfData { recording, spaces })
    }

    /// The mappings of all processes.
    pub fn spaces(&self) -> &Spaces {
        &self.spaces
    }

    /// The sampled events.
    pub fn attributes(&self) -> &[Attribute] {
        &self.recording.attributes
    }

    /// Records that perf says it lost.
    pub fn lost(&self) -> u64 {
        self.recording.lost
    }

    /// Calls `each` with every sample, in the order of the file.
    pub fn for_each_sample(&self, name: &Path, mut each: impl FnMut(&Sample)) -> Result<(), Error> {
        let (mut sample, mut buffer) = (Sample::default(), Vec::new());
        for piece in &self.recording.pieces {
            self.recording
                .samples(piece, false, &mut sample, &mut buffer, &mut each)
                .map_err(|wrong| wrong.locate(name))?;
        }
        Ok(())
    }

    /// Gives the samples of each piece of the file to `each`, in parallel, with something that `new` makes
    /// for the piece. Returns these in the order of the file.
    pub fn map_samples<T: Send>(
        &self,
        name: &Path,
        new: impl Fn() -> T + Sync + Send,
        each: impl Fn(&mut T, &Sample) + Sync + Send,
    ) -> Result<Vec<T>, Error> {
        progress::expect(self.recording.pieces.len());
        let pieces = &self.recording.pieces;
        let size = pieces.len().div_ceil(piece_count()).max(1);
        let all = postlink_parallel::flat_map_chunks(pieces, size, |pieces| {
            let all = || {
                let (mut made, mut sample, mut buffer) = (new(), Sample::default(), Vec::new());
                for piece in pieces {
                    self.recording.samples(
                        piece,
                        false,
                        &mut sample,
                        &mut buffer,
                        &mut |sample| each(&mut made, sample),
                    )?;
                    progress::did(1);
                }
                Ok(made)
            };
            Some(all())
        });
        all.into_iter()
            .collect::<Result<Vec<T>, Wrong>>()
            .map_err(|wrong| wrong.locate(name))
    }

    /// When the first full branch stack was recorded. The file is not in the order of time: all of it is looked at.
    fn first_full(&self, name: &Path, options: &Options) -> Result<u64, Error> {
        let new = || FirstFull::new(options);
        let found = self.map_samples(name, new, |first, sample| first.see(sample))?;
        let times = found.into_iter().map(|first| first.time);
        Ok(times.min().unwrap_or(u64::MAX))
    }

    /// Adds up all samples, in parallel.
    pub fn aggregate(&self, name: &Path, options: &Options) -> Result<AddressProfile, Error> {
        let first = if options.without_newest {
            self.first_full(name, options)?
        } else {
            u64::MAX
        };
        let adders = share(
            &self.recording.pieces,
            || {
                (
                    Adder::new(&self.spaces, options).without_newest_from(first),
                    Sample::default(),
                    Vec::new(),
                )
            },
            |(adder, sample, buffer), piece| {
                self.recording
                    .samples(piece, options.basic, sample, buffer, &mut |sample| {
                        adder.add(sample)
                    })
            },
        )
        .map_err(|wrong: Wrong| wrong.locate(name))?;
        let collectors = adders.into_iter().map(|(adder, ..)| adder.collector);
        let mut profile = samples::finish(collectors.collect(), &self.spaces);
        profile.statistics.lost = profile.statistics.lost.saturating_add(self.recording.lost);
        let undecoded = &self.recording.undecoded;
        profile.statistics.lost += undecoded.records();
        profile.statistics.undecoded = undecoded.bytes();
        if profile.statistics.with_branches == 0 && !options.basic {
            self.refuse_other_traces(name)?;
        }
        Ok(profile)
    }

    /// An error if there is trace data that is not decoded here.
    fn refuse_other_traces(&self, name: &Path) -> Result<(), Error> {
        let Some(kind) = self.recording.kind.filter(|&kind| kind != Kind::ArmSpe) else {
            return Ok(());
        };
        let buffers = &self.recording.buffers;
        let size = buffers.iter().map(|buffer| buffer.data.len() as u64).sum();
        match buffers.first() {
            Some(first) if size > 0 => Err(Wrong::new(first.at, kind.refusal(size)).locate(name)),
            _ => Ok(()),
        }
    }
}

/// Reads a file and adds up its samples.
pub fn read(path: &Path, options: &Options) -> Result<AddressProfile, Error> {
    let source = Source::open(path)?;
    PerfData::new(path, &source)?.aggregate(path, options)
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, reason = "a test that fails may panic")]
mod tests;
