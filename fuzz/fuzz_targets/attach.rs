//! Profiles of a program, which the environment variable POSTLINK_FUZZ_PROGRAM names (x86-64, linked with
//! `-Wl,-q`), attached to it.
#![no_main]

use std::sync::OnceLock;

use arbitrary::Unstructured;
use libfuzzer_sys::fuzz_target;
use postlink_fuzzing::attach;

static PROGRAM: OnceLock<(Vec<u8>, Vec<(String, u64)>)> = OnceLock::new();

fuzz_target!(|data: &[u8]| {
    let (program, functions) = PROGRAM.get_or_init(|| {
        let path = std::env::var_os("POSTLINK_FUZZ_PROGRAM").expect("POSTLINK_FUZZ_PROGRAM is not set");
        let program = std::fs::read(path).expect("POSTLINK_FUZZ_PROGRAM cannot be read");
        let functions = attach::functions(&program);
        (program, functions)
    });
    let mut u = Unstructured::new(data);
    if let Ok(text) = attach::named(&mut u, functions) {
        let _ = attach::check(&mut u, program, &text);
    }
});
