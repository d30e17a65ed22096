//! Records of pseudo probes.
#![no_main]

use arbitrary::Unstructured;
use libfuzzer_sys::fuzz_target;
use postlink_fuzzing::probes;

fuzz_target!(|data: &[u8]| {
    if let Ok(input) = probes::probes(&mut Unstructured::new(data)) {
        probes::check_probes(&input);
    }
    probes::check_probes(data);
});
