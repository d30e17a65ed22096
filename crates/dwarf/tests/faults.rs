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
            // A flag that is set is any number but 0.
            if name == ".debug_info" && before == 1 && wrong[at] != 0 {
                continue;
            }
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
            &MapParts {
                // A row that says that a prologue ends may be missing.
                entry_blocks: Vec::new(),
                ..random_map(&program, 3)
            },
            i as u64,
            500,
        );
        assert_eq!(found, [""; 0], "{compiler} {options:?}");
    }
}

/// One more row may say that a prologue ends, but only where each entry into the function comes to it first.
#[test]
fn a_prologue_that_ends_elsewhere_is_found() {
    let variants: [(&str, &[&str]); 2] = [
        ("clang-19", &["-O2", "-gdwarf-5"]),
        ("clang-19", &["-O2", "-gdwarf-3"]),
    ];
    for (compiler, options) in variants {
        let Some(program) = compile(compiler, options, &["calls.c", "second.c"]) else {
            continue;
        };
        let old = Loaded::new(&program);
        let (mut one_more, mut found) = (0, 0);
        for seed in 0..8 {
            let parts = random_map(&program, seed);
            let without = MapParts {
                entry_blocks: Vec::new(),
                ..parts.clone()
            };
            let written = |parts: &MapParts| {
                let (update, report) = update_and_check(&old, parts);
                assert_eq!(report.failures, [""; 0], "{compiler} {options:?} {seed}");
                old.updated(&update)
            };
            let failed = |new: &Loaded, right: &MapParts| {
                let checker = for_checker(right);
                postlink_verify::debug::check(|n| old.get(n), |n| new.get(n), &checker).failed > 0
            };
            let lines = |of: &Loaded| of.get(".debug_line").to_vec();
            let (with, before) = (written(&parts), written(&without));
            if lines(&with) == lines(&before) {
                continue;
            }
            one_more += 1;
            // It may be missing, as it was not there before; but where there is no entry it may not be.
            assert!(!failed(&before, &parts), "{compiler} {options:?} {seed}");
            assert!(failed(&with, &without), "{compiler} {options:?} {seed}");
            let mut elsewhere = parts.clone();
            for block in &mut elsewhere.entry_blocks {
                (block.sure, block.last) = (block.sure + 1, block.last + 1);
            }
            let wrong = written(&elsewhere);
            if lines(&wrong) != lines(&with) {
                found += 1;
                assert!(failed(&wrong, &parts), "{compiler} {options:?} {seed}");
            }
        }
        assert!(
            one_more > 4 && found > 2,
            "{compiler} {options:?}: {one_more}, {found}"
        );
    }
}

#[test]
fn damaged_sections_are_refused_or_updated_and_never_panic() {
    // One number, which the environment may set, makes all that is random here.
    let seed = std::env::var("POSTLINK_TEST_SEED").map_or(7, |s| s.parse().expect("a number"));
    eprintln!("POSTLINK_TEST_SEED={seed}");
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
        let parts = random_map(&program, seed % 16);
        let map = AddressMap::new(parts.clone()).unwrap();
        let checker = for_checker(&parts);
        let mut random = Random(seed);
        let (mut refused, mut updated, mut with_stale, mut disproved) = (0, 0, 0, 0);
        let mut shown: Vec<String> = Vec::new();
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
                    let new: Vec<Vec<u8>> = Section::ALL
                        .map(|s| update.changes.get(s).apply(sections.get(s)))
                        .into();
                    for (section, new) in Section::ALL.into_iter().zip(&new) {
                        let len = sections.get(section).len() as u64;
                        let new_len = update.changes.get(section).new_len(len);
                        assert_eq!(new.len() as u64, new_len, "{}", section.name());
                    }
                    // Units that stay have the same bytes, and so has what they lead to.
                    for stale in &update.stale {
                        with_stale += 1;
                        let range = stale.range.start as usize..stale.range.end as usize;
                        let before = &sections.get(stale.section)[range.clone()];
                        assert_eq!(&new[stale.section as usize][range], before, "{stale:?}");
                        let growing = [Section::Abbrev, Section::Line, Section::Ranges]
                            .into_iter()
                            .chain([Section::Rnglists, Section::Loc, Section::Loclists])
                            .chain([Section::Addr, Section::Macro]);
                        for s in growing {
                            assert!(new[s as usize].starts_with(sections.get(s)), "{stale:?}");
                        }
                    }
                    // The checker may refuse what damaged input became, but does not panic either.
                    let old = |name: &str| match Section::ALL.iter().find(|s| s.name() == name) {
                        Some(s) => sections.get(*s),
                        None => whole.get(name),
                    };
                    let now = |name: &str| match Section::ALL.iter().find(|s| s.name() == name) {
                        Some(s) => &new[*s as usize][..],
                        None => whole.get(name),
                    };
                    let report = postlink_verify::debug::check(old, now, &checker);
                    if report.failed > 0 {
                        disproved += 1;
                        shown.push(format!(
                            "{}: {:?} {:?}",
                            section.name(),
                            report.failures.first(),
                            update.stale
                        ));
                    }
                }
                Err(error) => {
                    refused += 1;
                    assert!(!error.to_string().is_empty());
                }
            }
        }
        assert!(
            refused > 0 && updated > 20 && with_stale > 20,
            "{refused} refused, {updated} updated, {with_stale} units stayed"
        );
        shown.iter().take(25).for_each(|line| eprintln!("{line}"));
        eprintln!(
            "{compiler} {options:?}: {refused} refused, {updated} updated, {with_stale} units stayed, {disproved} disproved"
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

/// Where each unit of `.debug_info` begins and ends.
fn units(info: &[u8]) -> Vec<std::ops::Range<usize>> {
    let (mut out, mut at) = (Vec::new(), 0);
    while at + 4 <= info.len() {
        let len = u32::from_le_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]]);
        let end = at + 4 + len as usize;
        out.push(at..end);
        at = end;
    }
    out
}

/// A program whose second unit cannot be read: by its version, by a code of an entry, by the place of its
/// abbreviations, or because a line program is said to be where none is.
fn with_a_broken_unit(program: &[u8], how: &str) -> (Loaded, std::ops::Range<usize>) {
    let mut old = Loaded::new(program);
    let mut info = old.get(".debug_info").to_vec();
    let all = units(&info);
    let second = all[all.len() - 1].clone();
    let version = info[second.start + 4];
    let header = if version == 5 { 12 } else { 11 };
    match how {
        "version" => info[second.start + 4] = 9,
        "code" => info[second.start + header] = 0x7e,
        "abbreviations" => {
            let field = second.start + if version == 5 { 8 } else { 6 };
            info[field..field + 4].copy_from_slice(&0x00ff_ffffu32.to_le_bytes());
        }
        "end" => info[second.end - 3..second.end].copy_from_slice(&[0x7e, 0x7f, 0x7e]),
        _ => unreachable!("it is one of these"),
    }
    old.set(".debug_info", info);
    (old, second)
}

const BREAKS: [&str; 4] = ["version", "code", "abbreviations", "end"];

fn variants_with_two_units() -> Vec<(&'static str, Vec<&'static str>)> {
    vec![
        ("gcc", vec!["-O2", "-g", "-gdwarf-5", "-g3"]),
        ("gcc", vec!["-O2", "-g", "-gdwarf-4"]),
        ("clang-19", vec!["-O2", "-g", "-gdwarf-5"]),
        (
            "clang-19",
            vec!["-O2", "-g", "-gdwarf-4", "-gdwarf-aranges"],
        ),
    ]
}

/// One unit that could not be read refused the update of all.
#[test]
fn a_unit_that_cannot_be_read_stays_byte_for_byte_and_others_are_updated() {
    for (compiler, options) in variants_with_two_units() {
        let Some(program) = compile(compiler, &options, &["calls.c", "second.c"]) else {
            continue;
        };
        for how in BREAKS {
            let what = format!("{compiler} {options:?}: {how}");
            let (old, second) = with_a_broken_unit(&program, how);
            for seed in 0..4 {
                let (update, report) = update_and_check(&old, &random_map(&program, seed));
                assert_eq!(report.failures, [""; 0], "{what}, seed {seed}");
                let lost = update.report.losses.get(&postlink_dwarf::Loss::Unit);
                let reasons = &update.report.reasons;
                assert_eq!(lost, Some(&1), "{what}: {reasons:?}");
                assert!(report.scopes > 5 && report.rows > 50, "{what}: {report:?}");
                let stale: Vec<u64> = report.stale.iter().map(|s| s.1).collect();
                assert_eq!(stale, [second.start as u64], "{what}");
                let new = old.updated(&update);
                let bytes = |of: &Loaded| of.get(".debug_info")[second.clone()].to_vec();
                assert_eq!(bytes(&new), bytes(&old), "{what}");
                assert_ne!(new.get(".debug_info"), old.get(".debug_info"), "{what}");
            }
        }
    }
}

/// The checker sees if such a unit changed, if what it leads to went elsewhere, and if a unit that can be read stayed.
#[test]
fn stale_units_that_changed_or_need_not_be_stale_are_found() {
    for (compiler, options) in variants_with_two_units() {
        let Some(program) = compile(compiler, &options, &["calls.c", "second.c"]) else {
            continue;
        };
        let parts = random_map(&program, 3);
        let checker = for_checker(&parts);
        for how in BREAKS {
            let (old, second) = with_a_broken_unit(&program, how);
            let (update, report) = update_and_check(&old, &parts);
            assert_eq!(report.failures, [""; 0]);
            let new = old.updated(&update);
            let failed = |name: &str, data: &[u8]| {
                let changed = |n: &str| if n == name { data } else { new.get(n) };
                postlink_verify::debug::check(|n| old.get(n), changed, &checker).failed
            };
            let mut info = new.get(".debug_info").to_vec();
            info[second.end - 1] ^= 1;
            assert_ne!(failed(".debug_info", &info), 0, "{how}: a byte of it");
            // The first byte of a section that it may lead to.
            for name in [".debug_abbrev", ".debug_line"] {
                let mut wrong = new.get(name).to_vec();
                wrong.insert(old.get(name).len(), 0);
                wrong.remove(0);
                assert_ne!(failed(name, &wrong), 0, "{how}: {name} went elsewhere");
            }
            // All units as they were, though the first ones can be read.
            let info = old.get(".debug_info");
            assert_ne!(failed(".debug_info", info), 0, "{how}: all units stayed");
        }
    }
}
