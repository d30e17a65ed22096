//! Bytes that look like instructions.
#![no_main]

use arbitrary::Unstructured;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(code) = postlink_fuzzing::code(&mut Unstructured::new(data)) {
        postlink_fuzzing::check_code(&code, 0x40_0000);
    }
});
