//! Firefox Profiler's JSON ("processed profile"), by crate `fxprof-processed-profile`.
//!
//! The format is for samples over time, and counts have no time: each chain of callers is one sample, a millisecond
//! after the one before it, with what was executed as its weight. So the call tree, the inverted tree and the flame
//! graph are right, and the graph over time says nothing.
//!
//! A weight has 31 bits. Where a chain has more instructions, all weights are divided by the power of ten that makes
//! them fit, and it is said.

use fxprof_processed_profile::{
    CategoryHandle, CpuDelta, Frame, FrameFlags, FrameInfo, Profile, ReferenceTimestamp,
    SamplingInterval, Timestamp, WeightType,
};

use crate::folded::missing;
use crate::stacks::{chain, stacks};
use crate::{Error, Export, Subject};

/// The file.
pub fn firefox(subject: &Subject<'_, '_>) -> Result<Export, Error> {
    let nodes = stacks(subject.facts);
    let own = || nodes.iter().enumerate().filter(|(_, node)| node.own > 0);
    let unit = unit(own().map(|(_, node)| node.own).max().unwrap_or(0));
    let name = subject.path.rsplit('/').next().unwrap_or_default();
    // Not the time of now: the same profile gives the same bytes.
    let begin = ReferenceTimestamp::from_millis_since_unix_epoch(0.0);
    let mut profile = Profile::new(name, begin, SamplingInterval::from_millis(1));
    let at = |sample: usize| Timestamp::from_millis_since_reference(sample as f64);
    let process = profile.add_process(name, 1, at(0));
    let thread = profile.add_thread(process, 1, at(0), true);
    profile.set_thread_name(thread, &format!("{name}: executed instructions"));
    profile.set_thread_samples_weight_type(thread, WeightType::Samples);
    for (sample, (node, own)) in own().map(|(at, node)| (at, node.own)).enumerate() {
        let names = chain(&nodes, node);
        let frames: Vec<FrameInfo> = names
            .iter()
            .map(|f| FrameInfo {
                frame: Frame::Label(profile.intern_string(&(subject.demangle)(
                    &subject.facts.functions[*f as usize].name,
                ))),
                category_pair: CategoryHandle::OTHER.into(),
                flags: FrameFlags::empty(),
            })
            .collect();
        let stack = profile.intern_stack_frames(thread, frames.into_iter());
        let weight = i32::try_from(own / unit).unwrap_or(i32::MAX);
        profile.add_sample(thread, at(sample), stack, CpuDelta::ZERO, weight);
    }
    let bytes = serde_json::to_vec(&profile).map_err(|error| Error::Writing {
        format: "firefox",
        why: error.to_string(),
    })?;
    let mut missing = missing(subject);
    if unit > 1 {
        missing.push(format!(
            "weights have 31 bits: one unit is {unit} instructions"
        ));
    }
    Ok(Export { bytes, missing })
}

/// The smallest power of ten that makes a weight fit.
fn unit(largest: u64) -> u64 {
    let mut unit = 1;
    while largest / unit > i32::MAX as u64 {
        unit *= 10;
    }
    unit
}

#[cfg(test)]
mod tests {
    use super::unit;

    #[test]
    fn weights_that_do_not_fit_are_divided() {
        assert_eq!(unit(0), 1);
        assert_eq!(unit(i32::MAX as u64), 1);
        assert_eq!(unit(i32::MAX as u64 + 1), 10);
        assert_eq!(unit(u64::MAX), 10_000_000_000);
    }
}
