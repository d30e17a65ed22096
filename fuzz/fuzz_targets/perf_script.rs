//! Scripts of samples of a program, which the environment variable POSTLINK_FUZZ_PROGRAM names.
#![no_main]

use std::sync::OnceLock;

use arbitrary::Unstructured;
use libfuzzer_sys::fuzz_target;
use postlink_fuzzing::probes;

static PROGRAM: OnceLock<Vec<u8>> = OnceLock::new();

fuzz_target!(|data: &[u8]| {
    let program = PROGRAM.get_or_init(|| {
        let path = std::env::var_os("POSTLINK_FUZZ_PROGRAM").expect("POSTLINK_FUZZ_PROGRAM is not set");
        std::fs::read(path).expect("POSTLINK_FUZZ_PROGRAM cannot be read")
    });
    if let Ok(script) = probes::script(&mut Unstructured::new(data), program) {
        probes::check_script(&script, program);
    }
    probes::check_script(data, program);
});
