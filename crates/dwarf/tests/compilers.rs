//! What compilers write, for made-up moves: the independent checker must find every scope, place and row
//! where it belongs.

mod support;

use postlink_dwarf::Loss;
use support::{Loaded, compile, random_map, update_and_check};

/// Compiles with each set of options, moves code in several ways, and compares.
fn check(compiler: &str, common: &[&str], variants: &[&[&str]], sources: &[&str]) {
    for variant in variants {
        let options: Vec<&str> = common.iter().chain(*variant).copied().collect();
        let Some(program) = compile(compiler, &options, sources) else {
            return;
        };
        let old = Loaded::new(&program);
        for seed in 0..6 {
            let (update, report) = update_and_check(&old, &random_map(&program, seed));
            assert_eq!(
                report.failures, [""; 0],
                "{compiler} {options:?}, seed {seed}"
            );
            // Made-up maps drop bytes anywhere, calls as well; nothing else may be lost.
            let mut losses = update.report.losses.clone();
            losses.remove(&Loss::AddressGone);
            let reasons = &update.report.reasons;
            assert_eq!(
                losses,
                Default::default(),
                "{compiler} {options:?}, seed {seed}: {reasons:?}"
            );
            assert!(report.scopes > 5 && report.rows > 50, "{report:?}");
        }
    }
}

const VERSIONS: [&[&str]; 4] = [
    &["-gdwarf-2", "-gno-strict-dwarf"],
    &["-gdwarf-3"],
    &["-gdwarf-4"],
    &["-gdwarf-5"],
];

#[test]
fn gcc_of_all_versions() {
    check("gcc", &["-O2", "-g"], &VERSIONS, &["calls.c", "second.c"]);
}

#[test]
fn gcc_variants() {
    let variants: [&[&str]; 6] = [
        &["-gno-variable-location-views"],
        &["-O3", "-g3"],
        &["-g1"],
        &["-O0"],
        &["-gdwarf-5", "-gdwarf64"],
        &["-flto", "-ffunction-sections"],
    ];
    check("gcc", &["-O2", "-g"], &variants, &["calls.c", "second.c"]);
}

#[test]
fn clang_of_all_versions() {
    check(
        "clang-19",
        &["-O2", "-g"],
        &[
            &["-gdwarf-2"],
            &["-gdwarf-3"],
            &["-gdwarf-4"],
            &["-gdwarf-5"],
        ],
        &["calls.c", "second.c"],
    );
}

#[test]
fn clang_variants() {
    let variants: [&[&str]; 3] = [&["-ffunction-sections"], &["-gline-tables-only"], &["-O0"]];
    check(
        "clang-19",
        &["-O2", "-g"],
        &variants,
        &["calls.c", "second.c"],
    );
    check("clang-22", &["-O2", "-g"], &[&[]], &["calls.c", "second.c"]);
}

#[test]
fn cpp_with_landing_pads() {
    check(
        "g++",
        &["-O2", "-g"],
        &[
            &["-gdwarf-4"],
            &["-gdwarf-5"],
            &["-fdebug-types-section", "-gdwarf-4"],
        ],
        &["throws.cpp"],
    );
    check(
        "clang++-19",
        &["-O2", "-g"],
        &[
            &["-gdwarf-4"],
            &["-gdwarf-5"],
            &["-fdebug-types-section", "-gdwarf-5"],
        ],
        &["throws.cpp"],
    );
}

/// `.debug_frame` stayed as it was: where a program has no other unwind tables, debuggers lost their way in new code.
#[test]
fn debug_frame_has_entries_for_moved_code() {
    let tables = ["-O2", "-g", "-fno-asynchronous-unwind-tables"];
    for compiler in ["gcc", "clang-19"] {
        check(
            compiler,
            &tables,
            &[&[], &["-O0"], &["-fno-omit-frame-pointer"]],
            &["calls.c", "second.c"],
        );
        let Some(program) = compile(compiler, &tables, &["calls.c", "second.c"]) else {
            continue;
        };
        let old = Loaded::new(&program);
        let (update, _) = update_and_check(&old, &random_map(&program, 1));
        let frame = update.changes.get(postlink_dwarf::Section::Frame);
        assert!(!frame.is_empty(), "{compiler}");
        let mut random = support::Random(3);
        let parts = random_map(&program, 1);
        let checker = support::for_checker(&parts);
        let new = old.updated(&update);
        let from = old.get(".debug_frame").len() as u64;
        // Padding at entries' ends may be any instruction that does nothing.
        let mut survivors = 0;
        for _ in 0..60 {
            let mut wrong = new.get(".debug_frame").to_vec();
            let at = (from + random.next(wrong.len() as u64 - from)) as usize;
            wrong[at] = wrong[at].wrapping_add(1);
            let by_name = |n: &str| {
                if n == ".debug_frame" {
                    &wrong[..]
                } else {
                    new.get(n)
                }
            };
            let found = postlink_verify::debug::check(|n| old.get(n), by_name, &checker);
            survivors += usize::from(found.failed == 0);
        }
        assert!(
            survivors <= 3,
            "{compiler}: {survivors} of 60 faults were not found"
        );
    }
}
