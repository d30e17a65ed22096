//! The driver alone, for trying things out: `cargo run --example mip-cc -- gcc -c main.c`.

use std::process::ExitCode;

use postlink_mip_asm::{Flags, driver};

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let Some((compiler, rest)) = arguments.split_first() else {
        eprintln!("usage: mip-cc COMPILER ARGUMENT…");
        return ExitCode::from(2);
    };
    match driver::run(compiler, rest, Flags::default()) {
        Ok(outcome) => {
            eprintln!("{:?} {:?}", outcome.report, outcome.notes);
            ExitCode::from(outcome.code)
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
