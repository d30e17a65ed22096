//! Sections with compilers' maps of basic blocks.
#![no_main]

use arbitrary::Unstructured;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(section) = postlink_fuzzing::bb_addr_map(&mut Unstructured::new(data)) {
        postlink_fuzzing::check_bb_addr_map(&section);
    }
});
