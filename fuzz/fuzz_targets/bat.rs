//! Address translation tables, maybe damaged.
#![no_main]

use arbitrary::Unstructured;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut u = Unstructured::new(data);
    if let Ok(section) = postlink_fuzzing::bat_section(&mut u) {
        postlink_fuzzing::check_bat(&section);
    }
    // As it is, after a header that holds.
    let mut section = vec![5, 0, 0, 0];
    section.extend_from_slice(&(data.len() as u32).to_le_bytes());
    section.extend_from_slice(b"\x01\0\0\0BOLT\0\0\0\0");
    section.extend_from_slice(data);
    postlink_fuzzing::check_bat(&section);
});
