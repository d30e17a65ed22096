//! Unwind tables whose structure mostly holds.
#![no_main]

use arbitrary::Unstructured;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut u = Unstructured::new(data);
    if let (Ok(addr), Ok(section)) = (u.arbitrary(), postlink_fuzzing::frames(&mut u)) {
        postlink_fuzzing::check_unwind(&section, addr);
    }
});
