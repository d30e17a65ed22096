//! Traces of windows of a run, damaged in places.
#![no_main]

use std::sync::OnceLock;

use arbitrary::Unstructured;
use libfuzzer_sys::fuzz_target;

static SCRATCH: OnceLock<tempfile::TempDir> = OnceLock::new();

fuzz_target!(|data: &[u8]| {
    let scratch = SCRATCH.get_or_init(|| tempfile::tempdir().expect("a temporary directory"));
    if let Ok(file) = postlink_fuzzing::profiles::trace(&mut Unstructured::new(data)) {
        postlink_fuzzing::profiles::check_profile(&file, scratch.path());
    }
});
