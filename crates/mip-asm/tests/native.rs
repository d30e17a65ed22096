//! Programs built for this machine: what their profiles say against what is known, and against clang's exact counts.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod common;

use std::collections::BTreeMap;
use std::fs;

use common::{Scratch, counts, exact_counts, have, programs, tool};
use postlink_mip::{Profile, raw::Raw};
use postlink_mip_asm::driver::Error;

const COVERAGE: &str = "-fmachine-profile-function-coverage";
const BLOCKS: &str = "-fmachine-profile-block-coverage";
const ALL: &str = "-fmachine-profile-all-blocks";

fn compilers() -> Vec<(&'static str, &'static str)> {
    [("gcc", "g++"), ("clang-19", "clang++-19")]
        .into_iter()
        .filter(|(c, _)| have(c, "code by this compiler"))
        .collect()
}

#[test]
fn counts_and_coverage_are_those_of_clangs_exact_profile() {
    if !have("clang++-19", "exact counts") || !have("llvm-profdata-19", "exact counts") {
        return;
    }
    let scratch = Scratch::new();
    for (compiler, sources) in [
        ("clang++-19", "@exceptions.cc @other.cc"),
        ("clang-19", "@control.c"),
    ] {
        let list: Vec<&str> = sources.split(' ').chain(["-O0"]).collect();
        let exact = exact_counts(&scratch, compiler, &list);
        assert!(exact.values().filter(|&&count| count > 0).count() > 3);
        scratch.build(&format!("{compiler} -O0 {sources} -o %/calls"));
        scratch.run(&["calls"], "calls.mipraw");
        let calls = counts(&scratch.profile("calls", "calls.mipraw"));
        scratch.build(&format!("{compiler} {COVERAGE} -O0 {sources} -o %/covered"));
        scratch.run(&["covered"], "covered.mipraw");
        let covered = counts(&scratch.profile("covered", "covered.mipraw"));
        let mut compared = 0;
        for (name, count) in &exact {
            // Inline functions that are not called are not emitted.
            let Some(found) = calls.get(name) else {
                assert_eq!(*count, 0, "{name} ran and is not in the profile");
                continue;
            };
            assert_eq!(found, count, "calls of {name}");
            assert_eq!(covered[name] > 0, *count > 0, "coverage of {name}");
            compared += 1;
        }
        assert!(
            compared > 8,
            "{compared} functions compared: {exact:?} {calls:?}"
        );
    }
}

#[test]
fn instrumented_programs_print_what_plain_ones_print() {
    let scratch = Scratch::new();
    for (c, cxx) in compilers() {
        for (compiler, sources) in [(cxx, "@exceptions.cc @other.cc"), (c, "@control.c")] {
            for level in [
                "-O0",
                "-Os -fno-omit-frame-pointer",
                "-O2 -fcf-protection -fPIE",
            ] {
                scratch.build(&format!(
                    "{compiler} -fno-machine-profile-generate {level} {sources} -o %/plain"
                ));
                let plain = scratch.run(&["plain"], "plain.mipraw");
                assert!(plain.status.success());
                for mode in [
                    COVERAGE.to_owned(),
                    format!("{COVERAGE} {BLOCKS}"),
                    format!("{BLOCKS} -fmachine-profile-runtime-buffer=4096"),
                ] {
                    scratch.build(&format!("{compiler} {mode} {level} {sources} -o %/app"));
                    let app = scratch.run(&["app"], "app.mipraw");
                    assert_eq!(app.status, plain.status, "{compiler} {level} {mode}");
                    assert_eq!(
                        String::from_utf8_lossy(&app.stdout),
                        String::from_utf8_lossy(&plain.stdout),
                        "{compiler} {level} {mode}"
                    );
                    let ran = counts(&scratch.profile("app", "app.mipraw"));
                    assert!(ran["main"] > 0);
                }
            }
        }
    }
}

/// Coverage of all blocks, by function and number.
fn block_coverage(profile: &Profile) -> BTreeMap<String, Vec<bool>> {
    profile
        .functions
        .iter()
        .map(|function| {
            let covered = function.all_blocks().iter().map(|b| b.covered).collect();
            (
                String::from_utf8_lossy(&function.name).into_owned(),
                covered,
            )
        })
        .collect()
}

#[test]
fn blocks_without_counters_follow_from_others_as_if_they_had_them() {
    let scratch = Scratch::new();
    for (c, cxx) in compilers() {
        for (compiler, sources) in [(cxx, "@exceptions.cc @other.cc"), (c, "@control.c")] {
            for level in ["-O0", "-O1", "-O2"] {
                let build = |more: &str, name: &str| {
                    let done = scratch.build(&format!(
                        "{compiler} {COVERAGE} {BLOCKS} {more} {level} {sources} -o %/{name}"
                    ));
                    scratch.run(&[name], &format!("{name}.mipraw"));
                    (
                        block_coverage(&scratch.profile(name, &format!("{name}.mipraw"))),
                        done.report,
                    )
                };
                let (all, full) = build(ALL, "all");
                let (some, fewer) = build("", "some");
                assert_eq!(full.inferred, 0);
                assert_eq!(full.blocks, fewer.blocks + fewer.inferred);
                assert!(fewer.inferred > 0);
                assert_eq!(all, some, "{compiler} {level}");
                let covered = all.values().flatten().filter(|&&c| c).count();
                let cold = all.values().flatten().filter(|&&c| !c).count();
                assert!(covered > 20 && cold > 5, "{covered} {cold}");
            }
        }
    }
}

#[test]
fn a_program_and_its_library_have_files_of_their_own() {
    for (compiler, _) in compilers() {
        let scratch = Scratch::new();
        scratch.build(&format!(
            "{compiler} -O1 -fPIC -shared @library.c -o %/libit.so"
        ));
        scratch.build(&format!(
            "{compiler} -O0 @uses-library.c %/libit.so -Wl,-rpath,{} -o %/app",
            scratch.0.path().display()
        ));
        // Twice: files of the run before are replaced.
        for _ in 0..2 {
            let out = scratch.run(&["app"], "x.mipraw");
            assert_eq!(out.stdout, b"370\n");
            let files: Vec<String> = fs::read_dir(scratch.0.path())
                .unwrap()
                .map(|e| e.unwrap().file_name().into_string().unwrap())
                .filter(|name| name.ends_with(".mipraw"))
                .collect();
            assert_eq!(files.len(), 2, "{files:?}");
            let own = files.iter().find(|name| *name != "x.mipraw").unwrap();
            // The library comes first.
            let library = counts(&scratch.profile("libit.so", "x.mipraw"));
            let program = counts(&scratch.profile("app", own));
            assert_eq!(library["from_library"], 10);
            assert_eq!(library["unused_in_library"], 0);
            assert_eq!((program["main"], program["same"]), (1, 10));
        }
        // With the hash in the name nothing has to be added.
        scratch.run(&["app"], "%h.raw");
        let hash = |name: &str| {
            let map = postlink_mip::create::open(&scratch.path(name)).unwrap();
            format!("{:04x}.raw", map.module_hash & 0xFFFF)
        };
        for name in ["app", "libit.so"] {
            assert!(scratch.path(&hash(name)).is_file(), "{name}");
        }
    }
}

#[test]
fn nothing_is_lost_by_a_kill() {
    for (compiler, _) in compilers() {
        let scratch = Scratch::new();
        scratch.build(&format!("{compiler} -O2 @endless.c -o %/app"));
        let out = scratch.run(&["app"], "%p.mipraw");
        assert!(!out.status.success());
        let file = fs::read_dir(scratch.0.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .find(|name| name.ends_with(".mipraw"))
            .unwrap();
        assert!(file.bytes().next().unwrap().is_ascii_digit());
        assert_eq!(counts(&scratch.profile("app", &file))["work"], 1000);
    }
}

#[test]
fn a_program_may_reset_and_dump_by_itself() {
    for (compiler, _) in compilers() {
        for flags in ["-fno-machine-profile-dump", ""] {
            let scratch = Scratch::new();
            scratch.build(&format!("{compiler} {flags} -O2 @by-hand.c -o %/app"));
            let out = scratch.run(&["app", "%/by-hand.mipraw"], "auto.mipraw");
            assert!(out.status.success());
            assert_eq!(scratch.path("auto.mipraw").exists(), flags.is_empty());
            let found = counts(&scratch.profile("app", "by-hand.mipraw"));
            assert_eq!((found["before"], found["after"]), (0, 2));
        }
    }
}

#[test]
fn the_map_can_be_taken_out_and_the_program_stripped() {
    let objcopy = "/usr/lib/llvm-19/bin/llvm-objcopy";
    for (compiler, _) in compilers() {
        let scratch = Scratch::new();
        scratch.build(&format!("{compiler} {COVERAGE} -O1 @control.c -o %/app"));
        let app = scratch.path("app");
        let stripped = scratch.path("stripped");
        tool(
            "strip",
            &[
                "-R".as_ref(),
                "__llvm_mipmap".as_ref(),
                app.as_ref(),
                "-o".as_ref(),
                stripped.as_ref(),
            ],
        );
        scratch.run(&["stripped"], "x.mipraw");
        assert!(counts(&scratch.profile("app", "x.mipraw"))["main"] > 0);
        if have(objcopy, "llvm-objcopy --dump-section") {
            let argument = format!(
                "--dump-section=__llvm_mipmap={}",
                scratch.path("app.mipmap").display()
            );
            tool(
                objcopy,
                &[argument.as_ref(), app.as_ref(), "/dev/null".as_ref()],
            );
            let by_map = scratch.profile("app.mipmap", "x.mipraw");
            assert_eq!(counts(&by_map), counts(&scratch.profile("app", "x.mipraw")));
        }
        // One byte a function and the header; nothing in the file.
        let functions = scratch.profile("app", "x.mipraw").functions.len();
        let raw = fs::metadata(scratch.path("x.mipraw")).unwrap().len();
        assert_eq!(raw, 32 + functions as u64);
    }
}

#[test]
fn the_map_of_another_build_is_refused() {
    let scratch = Scratch::new();
    for (compiler, _) in compilers() {
        scratch.build(&format!("{compiler} -O1 @control.c -o %/app"));
        scratch.run(&["app"], "x.mipraw");
        fs::rename(scratch.path("app"), scratch.path("old")).unwrap();
        scratch.build(&format!("{compiler} -O1 @endless.c -o %/app"));
        let new = postlink_mip::create::open(&scratch.path("app")).unwrap();
        let old = postlink_mip::create::open(&scratch.path("old")).unwrap();
        assert_ne!(new.module_hash, old.module_hash);
        let raw = fs::read(scratch.path("x.mipraw")).unwrap();
        let path = scratch.path("x.mipraw");
        assert_eq!(
            Raw::parse(&path, &raw).unwrap().header.module_hash,
            old.module_hash
        );
    }
}

#[test]
fn each_function_is_in_one_group() {
    let scratch = Scratch::new();
    let compiler = "gcc";
    let mut seen = BTreeMap::new();
    for group in 0..3 {
        scratch.build(&format!(
            "{compiler} -fmachine-profile-function-group-count=3 -fmachine-profile-selected-function-group={group} -O0 @control.c -o %/app"
        ));
        for name in counts(&postlink_mip::create::open(&scratch.path("app")).unwrap()).into_keys() {
            *seen.entry(name).or_insert(0) += 1;
        }
    }
    assert!(
        seen.len() > 8 && seen.values().all(|&times| times == 1),
        "{seen:?}"
    );
    scratch.build(&format!(
        "{compiler} -fmachine-profile-min-instruction-count=40 -O0 @control.c -o %/app"
    ));
    let large = counts(&postlink_mip::create::open(&scratch.path("app")).unwrap());
    assert!(large.contains_key("main") && !large.contains_key("first"));
}

#[test]
fn functions_that_the_linker_drops_are_in_no_map() {
    let links = [
        "-fuse-ld=bfd",
        "-fuse-ld=/usr/bin/ld.lld-19",
        "-fuse-ld=gold",
    ];
    for (compiler, _) in compilers() {
        for link in links {
            if compiler == "gcc" && link.contains("lld") {
                continue; // gcc finds linkers by their short names
            }
            let is_gold = link.ends_with("gold");
            if is_gold && !have("ld.gold", "linking by gold") {
                continue;
            }
            if link.contains('/') && !have("/usr/bin/ld.lld-19", "linking by lld") {
                continue;
            }
            let scratch = Scratch::new();
            let done = scratch.build(&format!(
                "{compiler} {link} -O1 -ffunction-sections -Wl,--gc-sections @uses-library.c @library.c -o %/app"
            ));
            // gold keeps records of functions that it drops, and then complains about them: so it drops
            // nothing, and that is said.
            assert_eq!(done.notes.len(), usize::from(is_gold), "{compiler} {link}");
            scratch.run(&["app"], "x.mipraw");
            let found = counts(&scratch.profile("app", "x.mipraw"));
            assert_eq!(found["from_library"], 10, "{compiler} {link}");
            assert_eq!(
                found.contains_key("unused_in_library"),
                is_gold,
                "{compiler} {link}"
            );
        }
    }
}

#[test]
fn local_functions_of_the_same_name_have_counters_of_their_own() {
    for (_, compiler) in compilers() {
        let scratch = Scratch::new();
        scratch.build(&format!("{compiler} -O0 @exceptions.cc @other.cc -o %/app"));
        scratch.run(&["app"], "x.mipraw");
        let profile = scratch.profile("app", "x.mipraw");
        let all = |name: &[u8]| {
            profile
                .functions
                .iter()
                .filter(|f| f.name == name)
                .map(|f| f.call_count)
                .collect::<Vec<_>>()
        };
        assert_eq!(all(b"_ZL4samei"), [1, 1]);
        // One that is inline in both files is there once, with the calls of both.
        assert_eq!(all(b"_Z3inli"), [2]);
    }
}

#[test]
fn sampled_return_addresses_find_the_frequent_edges() {
    for (compiler, _) in compilers() {
        let scratch = Scratch::new();
        // Eight sets of four slots, for thirteen edges.
        scratch.build(&format!(
            "{compiler} -fmachine-profile-runtime-buffer=512 -O1 -fno-inline @edges.c -o %/app"
        ));
        scratch.run(&["app"], "x.mipraw");
        let profile = scratch.profile("app", "x.mipraw");
        let calls = counts(&profile);
        assert_eq!((calls["heavy"], calls["light"]), (900_000, 90_000));
        let edges = |name: &[u8]| -> u64 {
            let function = profile.functions.iter().find(|f| f.name == name).unwrap();
            function.edges.iter().map(|edge| edge.weight).sum()
        };
        let (heavy, light) = (edges(b"heavy"), edges(b"light"));
        assert!((850_000..950_000).contains(&heavy), "heavy: {heavy}");
        assert!((70_000..110_000).contains(&light), "light: {light}");
    }
}

#[test]
fn files_of_different_modes_cannot_be_linked() {
    let scratch = Scratch::new();
    scratch.build(&format!("gcc {COVERAGE} -c @library.c -o %/a.o"));
    scratch.build("gcc -c @uses-library.c -o %/b.o");
    assert_ne!(scratch.cc("gcc %/a.o %/b.o -o %/app").code, 0);
}

#[test]
fn all_ways_to_call_a_compiler_work() {
    let scratch = Scratch::new();
    let at = scratch.0.path().display().to_string();
    let source = programs().join("library.c");
    let source = source.display();
    for (compiler, _) in compilers() {
        // Dependencies are named after the object, as without us.
        scratch.build(&format!("{compiler} -MD -c @library.c -o %/d.o"));
        let ours = fs::read_to_string(scratch.path("d.d")).unwrap();
        scratch.build(&format!(
            "{compiler} -fno-machine-profile-generate -MD -c @library.c -o %/d.o"
        ));
        assert_eq!(ours, fs::read_to_string(scratch.path("d.d")).unwrap());
        // A language, a pipe, a response file.
        fs::write(
            scratch.path("response"),
            format!("-O1 \"-DX=1\"\n-c {source}"),
        )
        .unwrap();
        scratch.build(&format!("{compiler} @@{at}/response -pipe -o %/r.o"));
        scratch.build(&format!("{compiler} -x c -c @library.c -o%/x.o"));
        // Assembly as output, and as input: ours goes through, and the counters are in it once.
        scratch.build(&format!("{compiler} -S @uses-library.c -o %/u.s"));
        let text = fs::read_to_string(scratch.path("u.s")).unwrap();
        assert!(text.contains("main$RAW:"));
        scratch.build(&format!("{compiler} -c %/u.s -o %/u.o"));
        scratch.build(&format!("{compiler} %/u.o %/x.o -o %/app"));
        scratch.run(&["app"], "x.mipraw");
        assert_eq!(counts(&scratch.profile("app", "x.mipraw"))["same"], 20);
        // An archive between.
        let _ = fs::remove_file(scratch.path("lib.a"));
        tool(
            "ar",
            &[
                "rcs".as_ref(),
                scratch.path("lib.a").as_ref(),
                scratch.path("x.o").as_ref(),
            ],
        );
        scratch.build(&format!(
            "{compiler} -x c @uses-library.c -x none %/lib.a -static -o %/app"
        ));
        scratch.run(&["app"], "x.mipraw");
        assert_eq!(
            counts(&scratch.profile("app", "x.mipraw"))["from_library"],
            10
        );
        // Preprocessed only; an error; what cannot be.
        let out = scratch.build(&format!("{compiler} -E @library.c -o %/out.i"));
        assert_eq!(out.report.functions, 0);
        fs::write(scratch.path("wrong.c"), "int f( {").unwrap();
        assert_eq!(
            scratch
                .cc(&format!("{compiler} -c %/wrong.c -o %/wrong.o"))
                .code,
            1
        );
        let refused = scratch.try_cc(&format!("{compiler} -flto -c @library.c -o %/l.o"));
        assert!(matches!(refused, Err(Error::Lto)));
    }
}

#[test]
fn functions_of_inline_assembly_are_left_alone_and_counted() {
    let scratch = Scratch::new();
    fs::write(
        scratch.path("a.c"),
        "__asm__(\".text\\n.globl g\\n.type g,@function\\ng: ret\\n.size g,.-g\\n\");\nvoid g(void);\nint main(void) { g(); return 0; }\n",
    )
    .unwrap();
    for (compiler, _) in compilers() {
        let done = scratch.build(&format!("{compiler} %/a.c -o %/app"));
        if compiler == "gcc" {
            assert_eq!(done.report.functions, 1);
            let source = scratch.path("a.c");
            let note = format!(
                "{}: left alone: 1 × defined in inline assembly",
                source.display()
            );
            assert_eq!(done.notes, [note]);
        } else {
            // clang does not say that it is inline assembly; it is a function like any other, too.
            assert_eq!(done.report.functions, 2);
        }
        assert!(scratch.run(&["app"], "x.mipraw").status.success());
    }
}

#[test]
fn functions_are_placed_by_a_profile() {
    let scratch = Scratch::new();
    let addresses = |program: &str| -> BTreeMap<String, u64> {
        tool("nm", &[scratch.path(program).as_ref()])
            .lines()
            .filter_map(|line| {
                let mut words = line.split(' ');
                let address = u64::from_str_radix(words.next()?, 16).ok()?;
                Some((words.nth(1)?.to_owned(), address))
            })
            .collect()
    };
    for (compiler, link) in [
        ("gcc", "-fuse-ld=bfd"),
        ("gcc", "-fuse-ld=gold"),
        ("clang-19", "-fuse-ld=bfd"),
        ("clang-19", "-fuse-ld=/usr/bin/ld.lld-19"),
    ] {
        if !have(compiler, "placement by this compiler")
            || link.ends_with("lld-19") && !have("/usr/bin/ld.lld-19", "placement by lld")
            || link.ends_with("gold") && !have("ld.gold", "placement by gold")
        {
            continue;
        }
        scratch.build(&format!("{compiler} -O1 -fno-inline @warmth.c -o %/app"));
        let expected = scratch.run(&["app"], "x.mipraw").stdout;
        let profile = scratch.profile("app", "x.mipraw");
        postlink_mip::mip::save(&scratch.path("app.mip"), &profile).unwrap();
        let done = scratch.build(&format!(
            "{compiler} {link} -fmachine-profile-use={} -O1 -fno-inline @warmth.c -o %/used",
            scratch.path("app.mip").display()
        ));
        assert!(done.warm >= 4 && done.cold == 2, "{done:?}");
        let out = scratch.run(&["used"], "none.mipraw");
        assert_eq!(out.stdout, expected, "{compiler} {link}");
        assert!(!scratch.path("none.mipraw").exists());
        let at = addresses("used");
        let order = postlink_mip::order::by_first_call(&profile);
        let placed: Vec<u64> = order
            .iter()
            .filter_map(|&f| profile.functions.get(f as usize))
            .filter(|f| f.name != b"main") // where the compiler wants it
            .map(|f| at[std::str::from_utf8(&f.name).unwrap()])
            .collect();
        assert!(
            placed.len() == 4 && placed.is_sorted(),
            "{compiler} {link}: {at:x?}"
        );
        let (first, last) = (placed[0], placed[placed.len() - 1]);
        for function in profile.functions.iter().filter(|f| !f.is_covered()) {
            let cold = at[std::str::from_utf8(&function.name).unwrap()];
            assert!(
                !(first..=last).contains(&cold),
                "{compiler} {link}: {at:x?}"
            );
        }
    }
    // A program that uses a profile makes none.
    let both = "gcc -fmachine-profile-generate -fmachine-profile-use=x.mip -c @control.c";
    assert!(scratch.try_cc(both).is_err());
    assert!(
        scratch
            .try_cc("gcc -fmachine-profile-use=/nowhere/no.mip -c @control.c")
            .is_err()
    );
}

#[test]
fn a_launcher_in_the_compilers_place_is_told_where_it_goes() {
    let scratch = Scratch::new();
    let done = scratch.build("env gcc -c @library.c -o %/a.o");
    let [note] = done.notes.as_slice() else {
        panic!("{:?}", done.notes);
    };
    assert!(
        note.contains("env does not say what machine it compiles for"),
        "{note}"
    );
    assert!(scratch.path("a.o").is_file());
}
