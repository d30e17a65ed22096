//! Raw machine profiles, damaged in places, merged into a profile.
#![no_main]

use std::sync::OnceLock;

use arbitrary::Unstructured;
use libfuzzer_sys::fuzz_target;

static SCRATCH: OnceLock<tempfile::TempDir> = OnceLock::new();

fuzz_target!(|data: &[u8]| {
    let scratch = SCRATCH.get_or_init(|| tempfile::tempdir().expect("a temporary directory"));
    if let Ok((map, raw)) = postlink_fuzzing::mip::raw(&mut Unstructured::new(data)) {
        postlink_fuzzing::mip::check_raw(&map, &raw, scratch.path());
    }
});
