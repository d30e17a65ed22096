//! Outputs of a small rewriter of the tests' own: what is right is proved, and still runs.

mod support;

use postlink_verify::{Files, InputCode, Options, SplitUnits, Verdict, verify, verify_mapped};
use std::sync::atomic::{AtomicUsize, Ordering};

fn each(mut check: impl FnMut(&str, &[u8], &support::Rewritten, &[&str])) {
    for &(name, source, compiler, flags, args) in support::PROGRAMS {
        let Some(input) = support::compile(name, source, compiler, flags) else {
            eprintln!("{compiler} is not here: {name} is left out");
            continue;
        };
        for pointers in [false, true] {
            // Entry jumps would break old bodies that still run: with pointers unchanged they all may.
            let rewritten = support::rewrite(
                &input,
                &[],
                support::Options {
                    pointers,
                    entry_jumps: true,
                    any_front: false,
                    shift: 0,
                    bare: false,
                },
            );
            check(name, &input, &rewritten, args);
        }
    }
}

#[test]
fn moved_programs_run_as_before() {
    each(|name, input, rewritten, args| {
        assert_eq!(
            support::run(input, args),
            support::run(&rewritten.image, args),
            "{name}"
        );
    });
}

#[test]
fn correct_outputs_are_proved_function_by_function() {
    each(|name, input, rewritten, _| {
        let report =
            verify(input, &rewritten.image, &Options::default()).expect("both can be read");
        for f in &report.file_failures {
            eprintln!("{name}: file: {f}");
        }
        for (f, failure) in report.failures() {
            eprintln!("{name}: {}: {failure}", f.name);
        }
        assert!(report.is_proved(), "{name}: {:?}", rewritten.moved);
        assert!(
            report.proved as usize == rewritten.moved.len() && report.proved > 0,
            "{name}: {} proved of {:?}",
            report.proved,
            rewritten.moved
        );
        for f in &report.functions {
            assert!(
                f.verdict == Verdict::Proved && f.instructions > 0,
                "{name}: {f:x?}"
            );
            // The small rewriter keeps jumps after padding that nothing reaches, and literals.
            let at = |addr: u64| rewritten.image[support::offset(&rewritten.image, addr)];
            let arm = support::is_a64(input);
            assert!(
                f.unreached
                    .iter()
                    .all(|u| (arm || at(u.0) == 0xe9) && u.1 <= 20),
                "{name}: {f:x?}"
            );
        }
    });
}

/// The command `verify` kept every page that it had read of both files.
#[test]
fn a_check_of_mapped_files_gives_their_pages_back_and_says_the_same() {
    each(|name, input, rewritten, _| {
        let (released, freed) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let input_code = InputCode::default();
        let files = Files {
            input,
            input_code: &input_code,
            output: &rewritten.image,
            split: SplitUnits::default(),
            release: &|| _ = released.fetch_add(1, Ordering::Relaxed),
            freed: &|| _ = freed.fetch_add(1, Ordering::Relaxed),
        };
        let options = Options::default();
        let mapped = verify_mapped(files, &options).expect("both can be read");
        let plain = verify(input, &rewritten.image, &options).expect("both can be read");
        assert_eq!(mapped.to_json(), plain.to_json(), "{name}");
        let times = [released, freed].map(AtomicUsize::into_inner);
        assert!(times.iter().all(|times| *times > 0), "{name}: {times:?}");
    });
}

#[test]
fn the_report_is_the_same_on_one_thread() {
    each(|name, input, rewritten, _| {
        let many = verify(input, &rewritten.image, &Options::default());
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(1)
            .build()
            .expect("one thread is to be had");
        assert_eq!(
            pool.install(|| verify(input, &rewritten.image, &Options::default())),
            many,
            "{name}"
        );
    });
}
