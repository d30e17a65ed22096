//! Faults: the checker finds every wrong byte, and damaged sections make nobody panic.

mod support;

use postlink_dwarf::{AddressMap, MapParts, Section, Update, update};
use support::{Loaded, Random, compile, for_checker, random_map, update_and_check};

/// Offsets of new bytes in the new section.
fn new_bytes(update: &Update, section: Section) -> Vec<usize> {
    let (mut out, mut at, mut old) = (Vec::new(), 0, 0);
    for (range, new) in update.changes.get(section).iter() {
        at += range.start as usize - old;
        out.extend(at..at + new.len());
        at += new.len();
        old = range.end as usize;
    }
    out
}

/// Changes single bytes that an update wrote; whatever the checker does not notice is returned.
fn survivors(old: &Loaded, parts: &MapParts, seed: u64, each: u64) -> Vec<String> {
    let (update, report) = update_and_check(old, parts);
    assert_eq!(report.failures, [""; 0]);
    let new = old.updated(&update);
    let checker = for_checker(parts);
    let mut random = Random(seed);
    let mut out = Vec::new();
    for section in Section::ALL {
        let places = new_bytes(&update, section);
        for _ in 0..each.min(places.len() as u64 * 2) {
            let at = places[random.next(places.len() as u64) as usize];
            let mut wrong = new.get(section.name()).to_vec();
            let before = wrong[at];
            wrong[at] = match random.next(3) {
                0 => before.wrapping_add(1),
                1 => before.wrapping_sub(1),
                _ => before ^ (1 << random.next(7)),
            };
            let name = section.name();
            let changed = |n: &str| if n == name { &wrong[..] } else { new.get(n) };
            let found = postlink_verify::debug::check(|n| old.get(n), changed, &checker);
            if found.failed == 0 {
                out.push(format!(
                    "{name} at {at:#x}: {:#x} for {before:#x}",
                    wrong[at]
                ));
            }
        }
    }
    out
}

#[test]
fn every_byte_that_was_written_matters_to_the_checker() {
    let variants: [(&str, &[&str]); 3] = [
        (
            "gcc",
            &["-O2", "-g", "-gdwarf-5", "-gno-variable-location-views"],
        ),
        (
            "gcc",
            &["-O2", "-g", "-gdwarf-4", "-gno-variable-location-views"],
        ),
        (
            "gcc",
            &["-O2", "-g", "-gdwarf-2", "-gno-variable-location-views"],
        ),
    ];
    for (i, (compiler, options)) in variants.iter().enumerate() {
        let Some(program) = compile(compiler, options, &["calls.c", "second.c"]) else {
            continue;
        };
        let found = survivors(
            &Loaded::new(&program),
            &random_map(&program, 3),
            i as u64,
            25,
        );
        assert_eq!(found, [""; 0], "{compiler} {options:?}");
    }
}

#[test]
fn damaged_sections_are_refused_or_updated_and_never_panic() {
    let variants: [(&str, &[&str]); 3] = [
        ("gcc", &["-O2", "-g", "-gdwarf-5", "-g3"]),
        ("gcc", &["-O2", "-g", "-gdwarf-4", "-fdebug-types-section"]),
        ("clang-19", &["-O2", "-gdwarf-5"]),
    ];
    for (compiler, options) in variants {
        let Some(program) = compile(compiler, options, &["calls.c", "second.c"]) else {
            continue;
        };
        let whole = Loaded::new(&program);
        let map = AddressMap::new(random_map(&program, 1)).unwrap();
        let mut random = Random(7);
        let (mut refused, mut updated) = (0, 0);
        for _ in 0..600 {
            let section = Section::ALL[random.next(Section::ALL.len() as u64) as usize];
            let mut bytes = whole.get(section.name()).to_vec();
            if bytes.is_empty() {
                continue;
            }
            if random.one_in(8) {
                bytes.truncate(random.next(bytes.len() as u64) as usize);
            } else {
                for _ in 0..1 + random.next(3) {
                    let at = random.next(bytes.len() as u64) as usize;
                    bytes[at] = random.next(256) as u8;
                }
            }
            let mut sections = whole.sections();
            sections.set(section, &bytes);
            match update(&sections, &map) {
                Ok(update) => {
                    updated += 1;
                    // What was written can be put together.
                    for (section, splices) in update.changes.sections() {
                        let len = sections.get(section).len() as u64;
                        assert_eq!(
                            splices.apply(sections.get(section)).len() as u64,
                            splices.new_len(len)
                        );
                    }
                }
                Err(error) => {
                    refused += 1;
                    assert!(!error.to_string().is_empty());
                }
            }
        }
        assert!(
            refused > 20 && updated > 20,
            "{refused} refused, {updated} updated"
        );
    }
}

#[test]
fn the_result_does_not_depend_on_threads() {
    let Some(program) = compile("gcc", &["-O2", "-g"], &["calls.c", "second.c"]) else {
        return;
    };
    let (old, map) = (
        Loaded::new(&program),
        AddressMap::new(random_map(&program, 2)).unwrap(),
    );
    let with = |threads| {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .unwrap();
        let update = pool.install(|| update(&old.sections(), &map).unwrap());
        Section::ALL.map(|s| update.changes.get(s).clone())
    };
    assert_eq!(with(1), with(3));
}
