//! Machine profiles, damaged in places.
#![no_main]

use arbitrary::Unstructured;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(file) = postlink_fuzzing::mip::profile(&mut Unstructured::new(data)) {
        postlink_fuzzing::mip::check_profile(&file);
    }
});
