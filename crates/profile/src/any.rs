//! A profile of any format, as one of four models.
//!
//! | model | formats | what it knows |
//! |---|---|---|
//! | [`Profile`] | raw counters, merged counters | counters of an instrumented program |
//! | [`AddressProfile`] | `perf.data`, text of `perf script`, pre-aggregated, pprof, OpenTelemetry | branches, runs and samples by address |
//! | [`SymbolicProfile`] | fdata | branches and samples by function and offset |
//! | [`BoltYaml`] | BOLT YAML | counts by function and block |
//!
//! A compiler's sample profile is recognised, too: it speaks of source lines, which only the binary leads back to code.
//! So is a trace: which of its instructions are branches, only the binary says.
//!
//! Profiles of one model can be added up without a look at the binary; to make one model of another takes the
//! binary and is done elsewhere.

use std::path::Path;

use crate::address::AddressProfile;
use crate::bolt_yaml::{self, BoltYaml};
use crate::samples::Options;
use crate::symbolic::SymbolicProfile;
use crate::{
    Error, Format, Profile, Weighted, fdata, perf_data, perf_script, preaggregated, progress,
    protobuf,
};

/// A profile.
#[derive(Clone, Debug)]
pub enum Any {
    /// Counters.
    Counters(Box<Profile>),
    /// By addresses.
    Addresses(AddressProfile),
    /// By names.
    Symbols(SymbolicProfile),
    /// By blocks.
    Blocks(BoltYaml),
}

/// Which model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Model {
    /// Counters.
    Counters,
    /// By addresses.
    Addresses,
    /// By names.
    Symbols,
    /// By blocks.
    Blocks,
    /// By source lines: samples by address once the binary is at hand.
    Lines,
    /// By instructions, in the order of their execution: branches and runs by address once the binary is at hand.
    Steps,
}

impl Model {
    /// The model that a format is read to.
    pub fn of(format: Format) -> Model {
        match format {
            Format::Raw | Format::Plprof => Model::Counters,
            Format::PerfData
            | Format::PreAggregated
            | Format::PerfScript
            | Format::Pprof
            | Format::Otlp
            | Format::Simpleperf => Model::Addresses,
            Format::Fdata => Model::Symbols,
            Format::BoltYaml => Model::Blocks,
            Format::SampleProfile => Model::Lines,
            Format::Trace => Model::Steps,
        }
    }

    /// Whether it becomes samples by address, which takes the binary.
    pub fn is_by_address_with_binary(self) -> bool {
        matches!(self, Model::Lines | Model::Steps)
    }

    /// Whether it is samples by address once the binary is at hand.
    pub fn may_be_by_address(self) -> bool {
        self == Model::Addresses || self.is_by_address_with_binary()
    }
}

impl std::fmt::Display for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Model::Counters => "counters of an instrumented program",
            Model::Addresses => "samples by address",
            Model::Symbols => "counts by function and offset (fdata)",
            Model::Blocks => "counts by function and block (BOLT YAML)",
            Model::Lines => "counts by source line (a sample profile)",
            Model::Steps => "steps of a run (a trace)",
        })
    }
}

/// The format of a file by its contents. An error if it is none of this crate's.
pub fn format_of(path: &Path) -> Result<Format, Error> {
    Format::of(path)?.ok_or_else(|| {
        Error::at_byte(
            path,
            0,
            "not a profile that can be read: neither raw or merged counters, perf.data, text of perf script, pprof, OpenTelemetry profiles, fdata, BOLT YAML, pre-aggregated, a sample profile nor a trace",
        )
    })
}

/// Reads samples: `perf.data`, text of `perf script`, pre-aggregated ones, pprof's or OpenTelemetry's.
pub fn read_addresses(
    path: &Path,
    format: Format,
    options: &Options,
) -> Result<AddressProfile, Error> {
    match format {
        Format::PerfData => perf_data::read(path, options),
        Format::PerfScript => perf_script::read(path, options),
        Format::PreAggregated => {
            let profile = preaggregated::read(path)?;
            Ok(if options.basic {
                profile.without_traces()
            } else {
                profile
            })
        }
        Format::Pprof => protobuf::pprof::read(path, options),
        Format::Otlp => protobuf::otlp::read(path, options),
        Format::Simpleperf => protobuf::simpleperf::read(path, options),
        other => {
            // An empty file passes for counters of a program that is just starting.
            let is_empty = std::fs::metadata(path).is_ok_and(|data| data.len() == 0);
            let what = if is_empty {
                "there is nothing in the file".to_owned()
            } else {
                format!("this is a {other}")
            };
            Err(Error::at_byte(
                path,
                0,
                format!(
                    "{what}: samples are perf.data, text of perf script, pre-aggregated, pprof or OpenTelemetry profiles"
                ),
            ))
        }
    }
}

/// Reads and adds up samples, each file with its weight. One file at a time is in memory beside the sum; each
/// is read in parallel.
pub fn merge_addresses(inputs: &[Weighted], options: &Options) -> Result<AddressProfile, Error> {
    let mut total = AddressProfile::default();
    progress::files(inputs.len());
    for input in inputs {
        let format = format_of(&input.path)?;
        let mut profile = read_addresses(&input.path, format, options)?;
        if input.weight != 1 {
            profile.scale(input.weight);
        }
        total = total.merge(profile);
        progress::file_done();
    }
    progress::reset();
    Ok(total)
}

/// The models of some files.
pub fn models(inputs: &[Weighted]) -> Result<Vec<Model>, Error> {
    let models = postlink_parallel::map(inputs, |input| format_of(&input.path).map(Model::of));
    models.into_iter().collect()
}

/// Reads and adds up files of one model.
///
/// Errors: files of different models; what the model's own merging refuses; nothing recorded in any.
pub fn merge(inputs: &[Weighted], options: &Options) -> Result<Any, Error> {
    let models = models(inputs)?;
    let Some(&model) = models.first() else {
        return Ok(Any::Addresses(AddressProfile::default()));
    };
    if let Some(at) = models.iter().position(|other| *other != model) {
        return Err(Error::at_byte(
            &inputs[at].path,
            0,
            format!(
                "holds {}, and {} {model}: without the binary they cannot be added up",
                models[at],
                inputs[0].path.display()
            ),
        ));
    }
    merge_of(model, inputs, options)
}

/// The same where it is known of which model they are.
pub fn merge_of(model: Model, inputs: &[Weighted], options: &Options) -> Result<Any, Error> {
    Ok(match model {
        Model::Counters => Any::Counters(Box::new(crate::merge(inputs)?.profile)),
        Model::Addresses => Any::Addresses(merge_addresses(inputs, options)?),
        Model::Symbols => Any::Symbols(fdata::merge(inputs)?),
        Model::Blocks => Any::Blocks(merge_blocks(inputs)?),
        Model::Lines | Model::Steps => {
            let path = inputs.first().map_or(Path::new(""), |input| &input.path);
            return Err(Error::Format {
                path: path.to_owned(),
                place: crate::Place::Whole,
                what: format!("holds {model}: only with the binary it becomes another profile"),
            });
        }
    })
}

/// Reads and adds up BOLT YAML files; in memory at a time is the sum and one file a thread.
fn merge_blocks(inputs: &[Weighted]) -> Result<BoltYaml, Error> {
    let batch = rayon::current_num_threads().max(1);
    let mut total: Option<(&Path, BoltYaml)> = None;
    progress::files(inputs.len());
    for inputs in inputs.chunks(batch) {
        let read = postlink_parallel::map(inputs, |input| {
            let mut profile = bolt_yaml::read(&input.path)?;
            if input.weight != 1 {
                profile.scale(input.weight);
            }
            progress::file_done();
            Ok((input.path.as_path(), profile))
        });
        let read: Result<Vec<(&Path, BoltYaml)>, Error> = read.into_iter().collect();
        let mut list: Vec<(&Path, BoltYaml)> = total.take().into_iter().collect();
        list.extend(read?);
        let name = list.first().map_or(Path::new(""), |item| item.0);
        total = Some((name, bolt_yaml::merge(list)?));
    }
    Ok(total.map_or_else(BoltYaml::default, |item| item.1))
}
