//! Debug information by maps of addresses.
#![no_main]

use arbitrary::Unstructured;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(units) = postlink_fuzzing::units::units(&mut Unstructured::new(data)) {
        postlink_fuzzing::units::check(&units);
    }
});
