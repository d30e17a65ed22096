//! Assembly of any kind, for the inserter of machine profiles.
#![no_main]

use arbitrary::Unstructured;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    // Input that ends early is no finding.
    let _ = postlink_fuzzing::assembly::check(&mut Unstructured::new(data));
});
