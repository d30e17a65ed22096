//! Sample profiles in every form.
#![no_main]

use arbitrary::Unstructured;
use libfuzzer_sys::fuzz_target;
use postlink_fuzzing::probes;

fuzz_target!(|data: &[u8]| {
    if let Ok(input) = probes::sample_profile(&mut Unstructured::new(data)) {
        probes::check_sample_profile(&input);
    }
    probes::check_sample_profile(data);
});
