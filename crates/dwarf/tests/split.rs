//! Split DWARF: what compilers write into files of their own, for made-up moves. The independent checker must
//! find every scope and place where it belongs, in one package, and every wrong byte of it.

mod support;

use postlink_dwarf::{Section, Splices};
use support::{Random, Split, SplitUpdate, check_split, compile_split, random_map, update_split};

const OLD: [&str; 3] = ["-O2", "-g", "-gdwarf-4"];
const NEW: [&str; 3] = ["-O2", "-g", "-gdwarf-5"];

/// Compiles in several ways, moves code, and compares.
fn check(compiler: &str, variants: &[&[&str]], sources: &[&str], packed: Option<&str>) {
    for options in variants {
        let Some(split) = compile_split(compiler, options, sources, packed) else {
            return;
        };
        for seed in 0..6 {
            let parts = random_map(&split.program, seed);
            let done = update_split(&split, &parts);
            let report = check_split(&split, &done, &done.package, &parts);
            let what = format!("{compiler} {options:?}, seed {seed}");
            assert_eq!(done.update.stale, [], "{what}");
            assert_eq!(report.failures, [""; 0], "{what}");
            let mut losses = done.update.report.losses.clone();
            losses.remove(&postlink_dwarf::Loss::AddressGone);
            let reasons = &done.update.report.reasons;
            assert_eq!(losses, Default::default(), "{what}: {reasons:?}");
            assert!(report.scopes > 5 && report.rows > 50, "{what}: {report:?}");
            assert!(report.places > 5, "{what}: {report:?}");
        }
    }
}

#[test]
fn gcc_splits_of_both_versions() {
    check("gcc", &[&OLD, &NEW], &["calls.c", "second.c"], None);
}

/// GCC counts them from behind the header of the lists in files of DWARF 5, and files with them were left as they were.
#[test]
fn views_in_files_of_dwarf_5_are_found_behind_the_header() {
    let views = ["-O2", "-g", "-gdwarf-5", "-gvariable-location-views"];
    check("gcc", &[&views], &["calls.c"], None);
}

#[test]
fn clang_splits_of_both_versions() {
    check("clang-19", &[&OLD, &NEW], &["calls.c", "second.c"], None);
}

#[test]
fn packages_of_the_input_are_updated() {
    let packer = Some("llvm-dwp-19");
    // No tool packs what GCC makes of DWARF 5: llvm-dwp does not end, GNU's dwp fails.
    check("gcc", &[&OLD], &["calls.c", "second.c"], packer);
    check("gcc", &[&OLD], &["calls.c", "second.c"], Some("dwp"));
    check("clang-19", &[&OLD, &NEW], &["calls.c", "second.c"], packer);
}

#[test]
fn type_units_are_packed_with_the_others() {
    let old: Vec<&str> = OLD
        .iter()
        .copied()
        .chain(["-fdebug-types-section"])
        .collect();
    let new: Vec<&str> = NEW
        .iter()
        .copied()
        .chain(["-fdebug-types-section"])
        .collect();
    for packer in [None, Some("llvm-dwp-19")] {
        check("g++", &[&old, &new], &["throws.cpp"], packer);
        check("clang++-19", &[&old, &new], &["throws.cpp"], packer);
    }
}

/// Bytes of a section of the package that may matter. Of lists and abbreviations those that the update wrote: nothing
/// refers any more to what they replaced, and that stays. Everything of other sections.
fn bytes_in_use(split: &Split, done: &SplitUpdate, name: &str, len: usize) -> Vec<usize> {
    let sections = [
        Section::Abbrev,
        Section::Loc,
        Section::Loclists,
        Section::Rnglists,
    ];
    let Some(section) = sections
        .into_iter()
        .find(|s| name.strip_suffix(".dwo") == Some(s.name()))
    else {
        return (0..len).collect();
    };
    // The files' parts of a section follow each other.
    let (mut out, mut start) = (Vec::new(), 0);
    for (file, changes) in split.files.iter().zip(&done.update.files) {
        let old = file.iter().find(|s| s.0 == name).map_or(0, |s| s.1.len());
        let splices = changes
            .as_ref()
            .expect("all files are updated")
            .get(section);
        // A file without range lists is given a header of 12 bytes in front of its first ones.
        let old = match (old, section) {
            (0, Section::Rnglists) if !splices.is_empty() => 12,
            _ => old,
        };
        out.extend(written(splices).into_iter().map(|at| start + at));
        start += splices.new_len(old as u64) as usize;
    }
    assert_eq!(start, len, "{name}");
    out
}

/// Where new bytes are in the new section.
fn written(splices: &Splices) -> Vec<usize> {
    let (mut out, mut at, mut old) = (Vec::new(), 0, 0);
    for (range, new) in splices.iter() {
        at += range.start as usize - old;
        out.extend(at..at + new.len());
        at += new.len();
        old = range.end as usize;
    }
    out
}

/// Changes single bytes of the package; whatever the checker does not notice is returned.
#[test]
fn every_byte_of_a_package_that_was_written_matters_to_the_checker() {
    for (compiler, options) in [
        ("gcc", OLD),
        ("gcc", NEW),
        ("clang-19", OLD),
        ("clang-19", NEW),
    ] {
        // Numbers of views are copied, or zero: nothing depends on them but an order of places at one address.
        let views: &[&str] = match compiler {
            "gcc" => &["-gno-variable-location-views"],
            _ => &[],
        };
        let all = [&options[..], views].concat();
        let Some(split) = compile_split(compiler, &all, &["calls.c", "second.c"], None) else {
            continue;
        };
        let parts = random_map(&split.program, 3);
        let done = update_split(&split, &parts);
        let mut random = Random(5);
        let mut survivors: Vec<String> = Vec::new();
        for i in 0..done.package.len() {
            let name = done.package[i].0.clone();
            let places = bytes_in_use(&split, &done, &name, done.package[i].1.len());
            for _ in 0..20.min(places.len()) {
                let mut package = done.package.clone();
                let bytes = package[i].1.to_mut();
                let at = places[random.next(places.len() as u64) as usize];
                bytes[at] ^= 1 << random.next(7);
                if check_split(&split, &done, &package, &parts).failed == 0 {
                    let (was, is) = (done.package[i].1[at], package[i].1[at]);
                    survivors.push(format!("{name} at {at:#x}: {is:#x} for {was:#x}"));
                }
            }
        }
        assert_eq!(survivors, [""; 0], "{compiler} {options:?}");
    }
}

#[test]
fn a_missing_file_leaves_its_skeleton_as_it_was() {
    for options in [OLD, NEW] {
        let Some(mut split) = compile_split("gcc", &options, &["calls.c", "second.c"], None) else {
            return;
        };
        split.files.remove(0);
        let parts = random_map(&split.program, 1);
        let done = update_split(&split, &parts);
        let [stale] = &done.update.stale[..] else {
            panic!("{:?}", done.update.stale);
        };
        let old = support::Loaded::new(&split.program);
        let range = stale.range.start as usize..stale.range.end as usize;
        assert_eq!(
            done.new.get(".debug_info")[range.clone()],
            old.get(".debug_info")[range]
        );
        assert!(
            stale.why.what.contains("which was not found"),
            "{}",
            stale.why
        );
        let report = check_split(&split, &done, &done.package, &parts);
        assert_eq!(report.failures, [""; 0], "{options:?}");
        assert_eq!(report.stale.len(), 1, "{options:?}");
    }
}

#[test]
fn units_of_the_package_are_found_by_their_new_ids_alone() {
    let Some(split) = compile_split("clang-19", &NEW, &["calls.c", "second.c"], None) else {
        return;
    };
    let ids = |loaded: &support::Loaded| -> Vec<u64> {
        let all = postlink_dwarf::split::skeletons(|name| loaded.get(name));
        assert!(all.iter().all(|s| s.name.ends_with(b".dwo")), "{all:?}");
        all.iter().map(|s| s.id).collect()
    };
    let old = ids(&support::Loaded::new(&split.program));
    let done: Vec<Vec<u64>> = (0..2)
        .map(|seed| ids(&update_split(&split, &random_map(&split.program, seed)).new))
        .collect();
    assert!(old.len() == 2 && done.iter().all(|new| new.len() == 2));
    assert!(
        done.concat().iter().all(|id| !old.contains(id)),
        "{old:x?} {done:x?}"
    );
    assert!(done[0].iter().all(|id| !done[1].contains(id)), "{done:x?}");
}

#[test]
fn damaged_files_are_refused_or_updated_and_never_panic() {
    let packer = Some("llvm-dwp-19");
    for (compiler, options, packer) in [
        ("gcc", NEW, None),
        ("gcc", OLD, packer),
        ("clang-19", OLD, None),
        ("clang-19", NEW, packer),
    ] {
        let Some(split) = compile_split(compiler, &options, &["calls.c", "second.c"], packer)
        else {
            continue;
        };
        let parts = random_map(&split.program, 2);
        let map = postlink_dwarf::AddressMap::new(parts).unwrap();
        let old = support::Loaded::new(&split.program);
        let mut random = Random(11);
        let (mut refused, mut updated) = (0, 0);
        for _ in 0..300 {
            let mut files = split.files.clone();
            let file = random.next(files.len() as u64) as usize;
            let section = random.next(files[file].len() as u64) as usize;
            let bytes = files[file][section].1.to_mut();
            if bytes.is_empty() {
                continue;
            }
            if random.one_in(6) {
                bytes.truncate(random.next(bytes.len() as u64) as usize);
            } else {
                let at = random.next(bytes.len() as u64) as usize;
                bytes[at] = random.next(256) as u8;
            }
            let all: Result<Vec<_>, _> = files
                .iter()
                .map(|f| postlink_dwarf::split::read(f))
                .collect();
            let Ok(all) = all else {
                refused += 1;
                continue;
            };
            let all = all.concat();
            let done = postlink_dwarf::update_split(&old.sections(), &all, &map);
            let packed = done.and_then(|done| {
                postlink_dwarf::split::package(&old.sections(), &all, &done.files)
                    .map(|package| support::written(&package))
            });
            *(if packed.is_ok() {
                &mut updated
            } else {
                &mut refused
            }) += 1;
        }
        assert!(
            updated > 20,
            "{compiler}: {refused} refused, {updated} updated"
        );
    }
}
