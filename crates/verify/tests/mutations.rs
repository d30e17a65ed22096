//! Every fault that is put into a correct output must be found.
//!
//! The pairs are made by the tests' own small rewriter, and taken from `POSTLINK_PAIRS=input:output,input:output…`.

mod support;

use postlink_verify::mutate::{Faults, Kind};
use postlink_verify::{InputCode, Keep, Options, Report, verify, verify_again};
use std::collections::BTreeMap;

/// Places tried for each kind in each pair.
const TRIES: u64 = 12;

/// Injects faults of all kinds; counts applied ones and returns those that were not found.
fn spoil(
    name: &str,
    input: &[u8],
    output: &[u8],
    kinds: &[Kind],
    applied: &mut BTreeMap<Kind, u64>,
) -> Vec<String> {
    let faults = Faults::new(input, output).unwrap_or_else(|e| panic!("{name}: {e}"));
    let (mut missed, mut mutants, mut taken_over) = (Vec::new(), 0, 0);
    let (options, code) = (Options::default(), InputCode::default());
    let checked = verify_again((input, &code), output, None, Keep::Always, &options);
    let (_, before) = checked.unwrap_or_else(|e| panic!("{name}: {e}"));
    // Large files take longer: fewer places, but all kinds.
    let tries = if output.len() > 20 << 20 { 1 } else { TRIES };
    // `POSTLINK_KINDS=IncrementLost,LiveFlags` asks for some kinds alone.
    let chosen = std::env::var("POSTLINK_KINDS").ok();
    let asked = |k: &&Kind| {
        let name = format!("{k:?}");
        chosen
            .as_ref()
            .is_none_or(|c| c.split(',').any(|c| c == name))
    };
    for &kind in kinds.iter().filter(asked) {
        for seed in 0..tries {
            let Some(mutant) = faults.inject(kind, seed) else {
                break;
            };
            *applied.entry(kind).or_default() += 1;
            mutants += 1;
            // A file that cannot even be read is not proved either.
            let fresh = verify(input, &mutant.image, &options);
            if fresh.as_ref().is_ok_and(Report::is_proved) {
                missed.push(format!("{name}: {}", mutant.what));
            }
            // With what is known of the output without the fault it is the same, word by word.
            if seed % 4 != 0 {
                continue;
            }
            let before = Some(before.clone());
            let again = verify_again(
                (input, &code),
                &mutant.image,
                before,
                Keep::Always,
                &options,
            );
            if again.as_ref().map(|checked| &checked.0) != fresh.as_ref() {
                missed.push(format!("{name}, checked again: {}", mutant.what));
            }
            taken_over += again.map_or(0, |checked| checked.1.taken_over());
        }
    }
    assert!(
        mutants < 10 || taken_over > 0,
        "{name}: no verdict was used again"
    );
    missed
}

#[test]
fn every_kind_of_fault_applies_somewhere_and_is_found_everywhere() {
    let mut applied = BTreeMap::new();
    let mut missed = Vec::new();
    let mut on_arm = BTreeMap::new();
    let (mut compiled, mut arm) = (false, false);
    for &(name, source, compiler, flags, _) in support::PROGRAMS {
        let Some(input) = support::compile(name, source, compiler, flags) else {
            continue;
        };
        compiled = true;
        let is_arm = support::is_a64(&input);
        arm |= is_arm;
        let applied = if is_arm { &mut on_arm } else { &mut applied };
        let options = support::Options {
            pointers: true,
            entry_jumps: true,
            any_front: false,
            shift: 0,
            bare: false,
        };
        let rewritten = support::rewrite(&input, &[], options);
        missed.extend(spoil(name, &input, &rewritten.image, Kind::ALL, applied));
        // With pointers that stay, once so that they could follow, once not.
        for shift in [0, 4] {
            let staying = support::Options {
                pointers: false,
                any_front: true,
                shift,
                ..options
            };
            let rewritten = support::rewrite(&input, &[], staying);
            let kinds = Kind::POINTERS_STAY;
            missed.extend(spoil(name, &input, &rewritten.image, kinds, applied));
        }
        // As if no relocations had been kept.
        let without: Vec<&str> = flags.iter().copied().filter(|f| *f != "-Wl,-q").collect();
        let bare = support::compile(name, source, compiler, &without).filter(|_| !is_arm);
        if let Some(input) = bare {
            let pair = support::without_relocations(&input, |input, output| {
                let report = verify(input, output, &Options::default()).expect("both can be read");
                let failed = report.failures().map(|(f, _)| f.old).collect();
                assert!(
                    report.file_failures.is_empty(),
                    "{name}: {:?}",
                    report.file_failures
                );
                failed
            });
            missed.extend(spoil(name, &input, &pair.image, Kind::ALL, applied));
        }
        // With some functions staying, calls between those that stay and those that moved.
        if let Some(f) = rewritten.moved.first() {
            let some: Vec<&str> = rewritten
                .moved
                .iter()
                .skip(1)
                .map(|m| m.0.as_str())
                .filter(|n| *n != f.0 && *n != "main")
                .collect();
            let rewritten = support::rewrite(&input, &some, options);
            missed.extend(spoil(name, &input, &rewritten.image, Kind::ALL, applied));
        }
    }
    // As many of the kinds that are not for one machine alone as of those that are.
    assert!(!arm || on_arm.len() >= 50, "only {on_arm:?}");
    eprintln!(
        "kinds of faults: {} on AArch64, {} on x86-64",
        on_arm.len(),
        applied.len()
    );
    applied.extend(on_arm);
    assert!(missed.is_empty(), "not found:\n{}", missed.join("\n"));
    if compiled {
        // Pairs with registered tables, those that count and those of Ada are made by the real rewriter, and
        // spoilt in its tests.
        let elsewhere = |k: &Kind| {
            let lists = [
                Kind::REGISTERED,
                Kind::HEADER_ADDED,
                Kind::COUNTING,
                Kind::ROUTINES,
                Kind::CALLS,
                Kind::CALLERS,
                Kind::CALLERS_SIGNED,
                Kind::OWN_TABLES,
                Kind::OWN_TABLES_AARCH64,
                Kind::RESTORED,
                Kind::LABEL_TABLES,
                Kind::LABEL_TABLES_X86_64,
                Kind::DEBUG,
                Kind::CHANGES,
                Kind::START_UP,
                Kind::LABELS_FOLLOW,
                Kind::FAULTS_RAISE,
                Kind::FAULTS_RAISE_AT_ENTRIES,
                Kind::FLAGS_AT_ENTRIES,
            ];
            lists.iter().any(|list| list.contains(k))
        };
        let asked = |k: &&Kind| (arm || !Kind::AARCH64.contains(k)) && !elsewhere(k);
        let never: Vec<&Kind> = Kind::ALL
            .iter()
            .filter(asked)
            .filter(|k| !applied.contains_key(k))
            .collect();
        assert!(never.is_empty(), "never applied: {never:?}");
    } else {
        eprintln!("no compiler is here: nothing was checked");
    }
}

#[test]
fn faults_in_the_pairs_of_the_environment_are_found() {
    let Ok(pairs) = std::env::var("POSTLINK_PAIRS") else {
        return;
    };
    let mut applied = BTreeMap::new();
    let mut missed = Vec::new();
    for pair in pairs.split(',').filter(|p| !p.is_empty()) {
        let (input, output) = pair
            .split_once(':')
            .unwrap_or_else(|| panic!("{pair:?} is not input:output"));
        let read = |path: &str| std::fs::read(path).unwrap_or_else(|e| panic!("{path}: {e}"));
        let (input, changed) = (read(input), read(output));
        missed.extend(spoil(output, &input, &changed, Kind::ALL, &mut applied));
    }
    for kind in Kind::ALL {
        println!(
            "{kind:?}: {} applied",
            applied.get(kind).copied().unwrap_or(0)
        );
    }
    assert!(missed.is_empty(), "not found:\n{}", missed.join("\n"));
}
