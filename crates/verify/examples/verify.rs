//! Checks an output against its input and prints the verdicts: `verify INPUT OUTPUT [CERTIFICATE.json]`.

use postlink_verify::{Options, verify};
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [input, output, rest @ ..] = args.as_slice() else {
        eprintln!("usage: verify INPUT OUTPUT [CERTIFICATE.json]");
        return ExitCode::from(2);
    };
    match run(input, output, rest.first()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::from(2)
        }
    }
}

fn run(input: &str, output: &str, certificate: Option<&String>) -> Result<bool, String> {
    let open = |path: &str| {
        let file = std::fs::File::open(path).map_err(|e| format!("{path}: {e}"))?;
        // SAFETY: the files are not changed while the check runs; this program writes only the certificate.
        unsafe { memmap2::Mmap::map(&file) }.map_err(|e| format!("{path}: {e}"))
    };
    let (old, new) = (open(input)?, open(output)?);
    let begin = std::time::Instant::now();
    let report = verify(&old, &new, &Options::default()).map_err(|e| e.to_string())?;
    let seconds = begin.elapsed().as_secs_f64();
    for failure in &report.file_failures {
        println!("file: {failure}");
    }
    for (function, failure) in report.failures() {
        println!("{} ({:#x}): {failure}", function.name, function.old);
    }
    let unreached: u64 = report
        .functions
        .iter()
        .flat_map(|f| &f.unreached)
        .map(|u| u.1)
        .sum();
    let assumed: u64 = report.functions.iter().map(|f| f.assumed_no_return).sum();
    let instructions: u64 = report.functions.iter().map(|f| f.instructions).sum();
    println!(
        "{} proved, {} failed, {} identical, {} failures of the file; {instructions} instructions, {} references and {} pointers changed, \
         {assumed} calls taken not to return, {unreached} bytes not reached; {seconds:.3} s",
        report.proved,
        report.failed,
        report.identical,
        report.file_failure_count,
        report.retargeted,
        report.pointers
    );
    if let Some(path) = certificate {
        std::fs::write(path, report.to_json()).map_err(|e| format!("{path}: {e}"))?;
    }
    Ok(report.is_proved())
}
