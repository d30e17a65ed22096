//! Files as they come: begin with a corpus of small programs that were linked with `-Wl,-q`.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;

static SCRATCH: OnceLock<tempfile::TempDir> = OnceLock::new();

fuzz_target!(|data: &[u8]| {
    let scratch = SCRATCH.get_or_init(|| tempfile::tempdir().expect("a temporary directory"));
    postlink_fuzzing::check_elf(data, scratch.path());
});
